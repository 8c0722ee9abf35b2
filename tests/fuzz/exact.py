"""One operator with arrays whose result NumPy has to the bit: what the generators of larger programs draw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyopt import settings
from polyopt.fuzz.arrays import LAYOUTS, draw
from polyopt.fuzz.check import load
from polyopt.target import Target

Array = NDArray[Any]

MOST_TERMS = 40_000_000
"""Multiply-adds of one operator."""
REWRITES = ("partial", "turned", "columns", "wide", "zeros")
"""Parts of the names of temporaries that plans for such sizes have."""


@dataclass(frozen=True, slots=True)
class Exact:
    """One operator with its arrays.

    source:    of a module with the operator `fuzzed`
    dtype:     of all arguments
    shapes:    of them
    magnitude: of their elements, whole numbers: no sum of products exceeds 2^24, up to which f32 holds every one
    special:   an argument that has an element that is not finite
    expected:  the exact result, from arguments in f64
    """

    seed: int
    source: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    layouts: tuple[str, ...]
    threads: int
    expected: Callable[..., Array]
    magnitude: int = 3
    special: int | None = None

    def __str__(self) -> str:
        shapes = ", ".join(f"{layout} {shape}" for layout, shape in zip(self.layouts, self.shapes, strict=True))
        special = "" if self.special is None else f", argument {self.special} has an element that is not finite"
        return f"seed {self.seed}, {self.threads} threads, {shapes}{special}\n{self.source}"

    @property
    def arguments(self) -> list[Array]:
        found = [
            draw(shape, self.dtype, -self.magnitude, self.magnitude, layout, seed=self.seed + number)
            for number, (shape, layout) in enumerate(zip(self.shapes, self.layouts, strict=True))
        ]
        if self.special is not None:
            random, chosen = Random(self.seed), found[self.special]
            chosen[tuple(map(random.randrange, chosen.shape))] = random.choice((np.inf, -np.inf, np.nan))
        return found


def drawn(
    seed: int,
    random: Random,
    source: str,
    shapes: Sequence[tuple[int, ...]],
    dtype: str,
    expected: Callable[..., Array],
    magnitude: int = 3,
    special: int | None = None,
) -> Exact:
    """The operator with layouts and threads; arguments of which one has a special element are contiguous."""
    layouts = tuple(
        random.choice(LAYOUTS) if random.random() < 0.25 and special is None else "contiguous" for _ in shapes
    )
    return Exact(seed, source, dtype, tuple(shapes), layouts, random.randint(1, 3), expected, magnitude, special)


def source(
    dtype: str, annotations: Sequence[str], body: Sequence[str], numerics: str = "default", names: str = "xyc"
) -> str:
    """The module of an operator `fuzzed`. annotations: the dimensions of each parameter"""
    parameters = ", ".join(f"{name}: po.{dtype}[{dims}]" for name, dims in zip(names, annotations, strict=False))
    lines = ["import polyopt as po", "", f"@po.op(numerics={numerics!r})", f"def fuzzed({parameters}):"]
    return "\n".join([*lines, *(f"    {line}" for line in body)]) + "\n"


def rewrites(case: Exact, target: Target) -> set[str]:
    """Those of `REWRITES` that its plan for a target has."""
    lowering = load(case.source).on(target).lower(*case.arguments)
    return {rewrite for rewrite in REWRITES if any(rewrite in array.name for array in lowering.scop.arrays)}


def failure(case: Exact, target: Target | None = None) -> str:
    """What is wrong with the result of its kernel for a target, this machine's by default; empty where it is exact."""
    operator = load(case.source)
    if target is not None:
        operator = operator.on(target)
    arguments = case.arguments
    with settings.override(num_threads=case.threads):
        got = operator(*arguments)
    with np.errstate(invalid="ignore"):
        wanted = case.expected(*(argument.astype(np.float64) for argument in arguments))
        rounded = wanted.astype(got.dtype).astype(np.float64)
    own = got.astype(np.float64)
    wrong = np.argwhere((own != rounded) & ~(np.isnan(own) & np.isnan(rounded)))
    if not len(wrong):
        return ""
    place = tuple(map(int, wrong[0]))
    return f"element {place} is {got[place]} and should be {rounded[place]}, {len(wrong)} are wrong: {case}"
