"""Random contractions of symbolic sizes, which both versions of a kernel serve: to the bit what the reference gives.

Operands are copied from three results on, so that small sizes meet the version with copies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt.dtypes import DType
from polyopt.target import Target, preset
from polyopt.tiling import pack

SIZES = dict(zip("ijkl", po.sizes("M N K L"), strict=True))
AXES = {name: po.index(name, extent=size) for name, size in SIZES.items()}
EXTENTS = (0, 1, 2, 3, 4, 5, 7, 9, 17, 20, 33)
MOST_TERMS = 20_000
SMALL_CACHES = replace(preset("avx2"), l1_bytes=256, l2_bytes=1024, l3_bytes=1024)


@dataclass(frozen=True, slots=True)
class Contraction:
    """`y[result] += x[operands[0]] * w[operands[1]]`, under a guard or none, with y as it is or after another step.

    limit:   of the magnitude of elements: sums are exact in the dtype
    through: which operand is read through a boundary, if any
    """

    result: tuple[str, ...]
    operands: tuple[tuple[str, ...], ...]
    dtype: DType
    limit: int
    guard: int
    through: int
    after: int
    numerics: Any
    target: Target | None

    @staticmethod
    def drawn(random: Random) -> Contraction:
        names = random.sample(sorted(AXES), random.choice((3, 3, 4)))
        result = tuple(names[: random.randint(2, len(names) - 1)])
        summed = [name for name in names if name not in result]
        knowing = {name: random.choice(((n % 2,), (n % 2,), (n % 2,), (0, 1))) for n, name in enumerate(result)}
        known = [summed + [name for name in result if number in knowing[name]] for number in range(2)]
        operands = tuple(tuple(random.sample(of, len(of))) for of in known)
        dtype, limit = random.choice(((po.f32, 2), (po.f64, 2), (po.i32, 9), (po.f16, 1), (po.i8, 9)))
        numerics = random.choice(("default", "strict", "fast"))
        guard, through, after = random.randrange(8), random.randrange(8), random.randrange(8)
        target = random.choice((None, SMALL_CACHES))
        return Contraction(result, operands, dtype, limit, guard, through, after, numerics, target)

    def op(self) -> po.Op:
        def contraction(x: Any, w: Any) -> Any:
            y = po.tensor("y", shape=tuple(SIZES[name] for name in self.result))
            place = tuple(AXES[name] for name in self.result)
            y[place] += self.guarded(self.read(x, 0) * self.read(w, 1))
            return {0: lambda: po.relu(y) + 1, 1: lambda: (y, 2 * y)}.get(self.after, lambda: y)()

        annotations = {
            name: self.dtype[tuple(SIZES[a] for a in of)] for name, of in zip("xw", self.operands, strict=True)
        }
        contraction.__annotations__ = annotations
        return po.op(dynamic=True, numerics=self.numerics, target=self.target)(contraction)

    def read(self, tensor: Any, number: int) -> Any:
        place = [AXES[name] for name in self.operands[number]]
        if number == 0 and self.through == 0:
            return tensor.pad(1)[(place[0] - 1, *place[1:])]
        if number == 1 and self.through == 1:
            return tensor.wrap()[(*place[:-1], place[-1] + 1)]
        return tensor[tuple(place)]

    def guarded(self, value: Any) -> Any:
        names = [*self.operands[0], *self.operands[1]]
        first, last = AXES[names[0]], AXES[names[-1]]
        match self.guard:
            case 0:
                return po.where(first <= last, value, 1)
            case 1:
                return po.when(first <= last, value)
            case 2:
                return po.when(last % 2 == 0, value)
            case _:
                return value

    def arguments(self, random: Random) -> list[Any]:
        while True:
            extents = {name: random.choice(EXTENTS) for name in AXES}
            names = {*self.result, *self.operands[0], *self.operands[1]}
            if np.prod([extents[name] for name in names]) <= MOST_TERMS:
                break
        numbers = np.random.default_rng(random.randrange(1 << 30))
        shapes = [[extents[name] for name in of] for of in self.operands]
        return [numbers.integers(-self.limit, self.limit + 1, shape).astype(self.dtype.numpy) for shape in shapes]


@pytest.mark.parametrize("seed", range(60))
def test_a_random_contraction_gives_the_reference(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "LEAST_REUSE", 3)
    random = Random(seed)
    case = Contraction.drawn(random)
    op = case.op()
    for _ in range(4):
        args = case.arguments(random)
        found, wanted = op(*args), op.reference(*args, numerics="strict")
        pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
        for result, expected in pairs:
            np.testing.assert_array_equal(result, expected)


def test_some_of_them_have_two_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "LEAST_REUSE", 3)
    lowerings = [Contraction.drawn(Random(seed)).op().lower() for seed in range(20)]
    assert all(lowering.fallback == "" for lowering in lowerings)
    assert sum("packed" in str(lowering.report()) for lowering in lowerings) >= 3
