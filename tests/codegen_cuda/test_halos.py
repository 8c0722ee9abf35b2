"""Stencils on a GPU: vectors inside, with what lies beside them, and single points where a vector meets an edge."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, bf16, f32, f64, i8, i32, u8
from polyopt.codegen_cuda.halos import halos
from polyopt.dsl.ir import Op as Operation
from polyopt.dtypes import f32 as float32
from polyopt.dtypes import i64 as int64
from polyopt.loops.ir import Buffer, Expr, Load, index_var, integer
from tests.codegen_cuda.running import emulate, interpreted, lowered
from tests.codegen_cuda.test_emulated import Array, assert_equals, inputs, needs_compiler
from tests.codegen_cuda.test_faults import planted, problems

L, M, N = po.sizes("L M N")
i, j, k = po.indices("i j k")


@po.op
def jacobi(u: f32[M, N], steps: int) -> object:
    v, t = po.tensor("v"), po.index("t", extent=steps)
    v[0, i, j] = u[i, j]
    inside = (0 < i) & (i < M - 1) & (0 < j) & (j < N - 1)
    around = v[t, i - 1, j] + v[t, i + 1, j] + v[t, i, j - 1] + v[t, i, j + 1]
    v[t + 1, i, j] = po.where(inside, v[t, i, j] + around, v[t, i, j])
    return v[steps]


@po.op
def padded(x: f32[M, N]) -> object:
    y = po.tensor("y", shape=(M, N))
    y[i, j] = x.pad(1)[i, j - 1] + 2 * x[i, j] + x.pad(3)[i, j + 1]
    return y


@po.op
def clamped(x: f64[M, N]) -> object:
    y = po.tensor("y", shape=(M, N))
    y[i, j] = x.clamp()[i - 1, j] + x.clamp()[i, j - 1] + x.clamp()[i, j + 1]
    return y


@po.op
def wrapped(x: i32[M, N]) -> object:
    y = po.tensor("y", shape=(M, N))
    y[i, j] = x.wrap()[i - 1, j] + x.wrap()[i, j + 1] - x[i, j]
    return y


@po.op
def far(x: bf16[M, N]) -> object:
    y = po.tensor("y", shape=(M, N))
    y[i, j] = x.pad(0)[i, j - 2] + x.pad(0)[i, j + 2] - x[i, j]
    return y


@po.op
def three(x: f32[L, M, N]) -> object:
    y = po.tensor("y", shape=(L, M, N))
    inside = (0 < i) & (i < L - 1) & (0 < j) & (j < M - 1) & (0 < k) & (k < N - 1)
    around = x[i - 1, j, k] + x[i + 1, j, k] + x[i, j - 1, k] + x[i, j + 1, k] + x[i, j, k - 1] + x[i, j, k + 1]
    y[i, j, k] = po.where(inside, around, 7)
    return y


@po.op
def bordered(x: u8[M, N]) -> object:
    y = po.tensor("y", shape=(M, N))
    edge = (i == 0) | (j == 0) | (j == N - 1)
    y[i, j] = po.where(edge, 9, x.pad(0)[i, j - 1] ^ x.pad(0)[i, j + 1])
    return y


def text(op: Op, *args: Any, **how: Any) -> str:
    return lowered(op, *args, **how).source("cuda")


def numbers(seed: int, dtype: Any, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)


def neighbor(x: Any, *by: int, mode: Any, value: int = 0) -> Array:
    """`x` at other places, with what lies outside as `np.pad` has it."""
    widths = [(abs(step), abs(step)) for step in by]
    more = {"constant_values": value} if mode == "constant" else {}
    bigger = np.pad(np.asarray(x), widths, mode=mode, **more)
    return bigger[tuple(slice(abs(s) + s, abs(s) + s + n) for s, n in zip(by, x.shape, strict=True))]


def test_a_stencil_reads_each_element_of_a_row_once() -> None:
    source = text(jacobi, M=512, N=512, steps=2)
    assert "if ((i >= 1 && i < 511) && (j >= 4 && j < 508)) {" in source
    inside = source[source.index("j < 508") :].partition("} else {")[0]
    assert inside.count("po_load<4>") == 3 and len(re.findall(r"v_row\[\d\] = v\[", inside)) == 2
    assert "?" not in inside, "no point inside asks where it is"


@pytest.mark.parametrize(
    ("op", "loads"),
    [(padded, {4}), (clamped, {2}), (wrapped, {4}), (far, {2, 8}), (bordered, {16})],
    ids=lambda one: one.__name__ if isinstance(one, Op) else "",
)
def test_accesses_are_as_wide_as_their_places_allow(op: Op, loads: set[int]) -> None:
    found = {int(width) for width in re.findall(r"po_load<(\d+)>", text(op, M=512, N=512))}
    assert found == loads


def test_rows_that_read_the_same_are_in_one_block() -> None:
    def blocks(op: Op) -> str:
        return str(lowered(op, M=4096, N=4096, **({"steps": 2} if op is jacobi else {})).mapping)

    assert "blocks take i#2 by 8, j#2 by 32" in blocks(jacobi)
    assert "blocks take i by 1, j by 256" in blocks(padded), "which reads along a row alone"


EXPECTED: dict[Op, tuple[Any, Callable[[Array], Any]]] = {
    padded: (
        np.float32,
        lambda x: neighbor(x, 0, -1, mode="constant", value=1) + 2 * x + neighbor(x, 0, 1, mode="constant", value=3),
    ),
    clamped: (np.float64, lambda x: sum(neighbor(x, *by, mode="edge") for by in ((-1, 0), (0, -1), (0, 1)))),
    wrapped: (np.int32, lambda x: np.roll(x, 1, 0) + np.roll(x, -1, 1) - x),
    far: (
        bf16.numpy,
        lambda x: neighbor(x, 0, -2, mode="constant") + neighbor(x, 0, 2, mode="constant") - np.asarray(x),
    ),
}


@needs_compiler
@pytest.mark.parametrize("op", EXPECTED, ids=lambda op: op.__name__)
@pytest.mark.parametrize("shape", [(13, 64), (40, 96), (3, 16)])
def test_stencils_give_what_their_equations_say(op: Op, shape: tuple[int, int]) -> None:
    dtype, expected = EXPECTED[op]
    x = numbers(1, dtype, *shape)
    assert_same(op, (x,), expected(x))


@needs_compiler
def test_edges_of_all_loops() -> None:
    x = numbers(2, np.uint8, 20, 64)
    want = neighbor(x, 0, -1, mode="constant") ^ neighbor(x, 0, 1, mode="constant")
    want[0] = want[:, 0] = want[:, -1] = 9
    assert_same(bordered, (x,), want)

    u = numbers(3, np.float32, 24, 48)
    v = u.copy()
    for _ in range(3):
        w = v.copy()
        w[1:-1, 1:-1] += v[:-2, 1:-1] + v[2:, 1:-1] + v[1:-1, :-2] + v[1:-1, 2:]
        v = w
    assert_same(jacobi, (u, 3), v)

    z = numbers(4, np.float32, 16, 18, 40)
    y = np.full_like(z, 7)
    c = slice(1, -1)
    y[c, c, c] = z[:-2, c, c] + z[2:, c, c] + z[c, :-2, c] + z[c, 2:, c] + z[c, c, :-2] + z[c, c, 2:]
    assert_same(three, (z,), y)


def assert_same(op: Op, args: tuple[Any, ...], want: Any) -> None:
    """That the emulator finds nothing and gives what is wanted, as the loops do."""
    lowering = lowered(op, *args)
    given = inputs(op, args)
    assert not lowering.fallback
    outcome = emulate(lowering, given, {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    assert_equals(outcome.results[0], want)
    assert_equals(interpreted(lowering, given, {})[0], want)


@needs_compiler
@pytest.mark.parametrize("seed", range(12))
def test_random_stencils(seed: int) -> None:
    random = Random(seed)
    dtype = random.choice([f32, f64, i32, u8, i8])
    mode = random.choice(["constant", "edge", "wrap"])
    offsets = [(random.randint(-1, 1), random.randint(-3, 3)) for _ in range(random.randint(2, 5))]
    offsets.append((0, 0))
    guarded = random.choice([True, False])
    low, high = random.randint(0, 2), random.randint(0, 3)

    @po.op
    def op(x: dtype[M, N]) -> object:
        y = po.tensor("y", shape=(M, N), dtype=dtype)
        read = {"constant": lambda: x.pad(0), "edge": lambda: x.clamp(), "wrap": lambda: x.wrap()}[mode]()
        total = sum((read[i + di, j + dj] for di, dj in offsets[1:]), start=read[i + offsets[0][0], j + offsets[0][1]])
        y[i, j] = po.cast(po.where((low <= j) & (j < N - high), total, 5) if guarded else total, dtype)
        return y

    x = numbers(seed, dtype.numpy, random.choice([9, 17]), random.choice([32, 48, 64]))
    moved: Sequence[Array] = [neighbor(x, *by, mode=mode) for by in offsets]
    want = np.add.reduce(moved, dtype=dtype.numpy)
    if guarded:
        want[:, :low] = 5
        want[:, x.shape[1] - high :] = 5
    assert_same(op, (x,), want)


FAULTS = {
    "a vector inside that starts an element late": (r"&x\[i \* 48 \+ j\]\)\);", "&x[i * 48 + j + 1]));", "misaligned"),
    "an element beside it that lies elsewhere": (r"= x\[i \* 48 \+ j \+ 4\];", "= x[i * 48 + j + 4096];", "outside"),
}


@needs_compiler
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_halo_is_reported(name: str) -> None:
    pattern, replacement, kind = FAULTS[name]
    outcomes = problems(padded, (24, 48), lambda source: planted(source, pattern, replacement))
    assert outcomes, "the kernel has nothing of the kind"
    for _, found in outcomes:
        assert found and any(kind in problem.what for problem in found), found


def test_which_loads_share_a_row() -> None:
    buffer = Buffer("x", float32, (integer(8), integer(64)), "argument")
    a, lane = index_var("a"), index_var("lane")

    def load(row: int, *parts: Expr | int) -> Load:
        total: Expr = lane
        for part in parts:
            total = Operation("add", (total, integer(part) if isinstance(part, int) else part), int64)
        return Load("x", (integer(row), total), float32)

    def found(*loads: Load) -> dict[Load, tuple[int, int, int]]:
        result = halos(loads, "lane", 4, {"x": buffer}, {"a": 4})
        return {one: (place, halo.first, halo.last) for one, (halo, place) in result.items()}

    left, middle, right = load(1, a, -1), load(1, a), load(1, a, 1)
    assert found(left, middle, right) == {left: (-1, -1, 5), middle: (0, -1, 5), right: (1, -1, 5)}
    assert found(left, right) == {left: (-1, -1, 5), right: (1, -1, 5)}
    assert found(middle, load(2, a)) == {}, "vectors by themselves"
    assert found(right) == {}, "no vector in it"
    assert found(load(0, a, 1), middle) == {}, "of another row"
    assert found(load(1, a, -9), middle) == {}, "too far away"
    assert found(middle, load(1, a, 4), load(1, a, 6)) == {
        middle: (0, 0, 10),
        load(1, a, 4): (4, 0, 10),
        load(1, a, 6): (6, 0, 10),
    }
    (halo, _) = halos([left, load(1, a, 2)], "lane", 4, {"x": buffer}, {"a": 4})[left]
    assert list(halo.pieces(4)) == [(-1, 1), (0, 4), (4, 2)]
    assert str(halo.element(-1).indices[1]) == str(Operation("sub", (a, integer(1)), int64))
