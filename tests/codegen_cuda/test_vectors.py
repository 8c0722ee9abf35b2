"""Vector accesses: where they are proved to be aligned and contiguous, and what the emulator says of wrong ones."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, bf16, f32, f64, i8, i64
from polyopt.codegen_cuda.alignment import divisor, first_lane, is_vector, slope, uniform
from polyopt.dsl.ir import Op as Operation
from polyopt.dtypes import bool_
from polyopt.dtypes import f32 as float32
from polyopt.dtypes import i64 as int64
from polyopt.loops.ir import Buffer, Expr, index_var, integer
from tests.codegen_cuda.running import emulate, interpreted, lowered
from tests.codegen_cuda.test_emulated import assert_equals, inputs, needs_compiler
from tests.codegen_cuda.test_faults import planted, problems

K, M, N = po.sizes("K M N")
i, j, k = po.indices("i j k")


@po.op
def added(x: f32[M, N], b: f32[N]) -> object:
    y = po.tensor("y")
    y[i, j] = x[i, j] + b[j]
    return y


@po.op
def narrow(x: bf16[M, N]) -> object:
    y = po.tensor("y")
    y[i, j] = x[i, j] * 2
    return y


@po.op
def wide(x: f64[M, N]) -> object:
    y = po.tensor("y")
    y[i, j] = x[i, j] * 2
    return y


@po.op
def widened(x: i8[M, N]) -> object:
    y = po.tensor("y")
    y[i, j] = po.cast(x[i, j], f32) * 2
    return y


@po.op
def shifted(x: f32[M, N]) -> object:
    y = po.tensor("y")
    y[i, j] = x[i, j] + x[i, j + 1]
    return y


@po.op
def rows(x: f32[M, N]) -> object:
    return po.softmax(x, axis=-1)


@po.op
def chosen(t: f32[K, N], ids: i64[M]) -> object:
    y = po.tensor("y")
    y[i, j] = t[ids[i], j]
    return y


@po.op
def halves(x: f32[M, N]) -> object:
    y = po.tensor("y")
    y[i, j] = po.where(i < 2, x[i, j], -x[i, j])
    return y


@po.op
def ends(x: f64[M], z: f64[M]) -> object:
    y = po.tensor("y", shape=(M,))
    y[i] = po.when(i >= M - 2, 3 * z[i])
    y[i] = po.when(~(i >= M - 2), 2 * x[i])
    return y


@po.op
def gram(x: f32[M, K]) -> object:
    y = po.tensor("y")
    y[i, j] += x[i, k] * x[j, k]
    return y


def widths(op: Op, **sizes: int) -> set[int]:
    """Of the loads and stores in an op's kernels."""
    return {int(width) for width in re.findall(r"po_(?:load|store)<(\d+)>", lowered(op, **sizes).source("cuda"))}


@pytest.mark.parametrize(
    ("op", "columns", "width"),
    [
        (added, 4096, 4),
        (added, 4098, 2),
        (added, 4097, None),
        (narrow, 4096, 8),
        (narrow, 4100, 4),
        (wide, 4096, 2),
        (wide, 4097, None),
        (widened, 4096, 4),
        (shifted, 4096, None),
        (rows, 4096, 4),
        (rows, 4100, 4),
        (chosen, 4096, 4),
        (halves, 4096, 4),
    ],
)
def test_accesses_are_as_wide_as_rows_allow(op: Op, columns: int, width: int | None) -> None:
    extra = {"K": 100} if op is chosen else {}
    assert widths(op, M=512, N=columns, **extra) == (set() if width is None else {width})


def test_a_size_that_is_not_known_has_no_vectors() -> None:
    assert widths(added, M=512) == set()


def arrays(op: Op, rows: int, columns: int) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    if op is chosen:
        return random.standard_normal((7, columns), np.float32), random.integers(0, 7, rows)
    x = random.integers(-9, 9, (rows, columns))
    if op is narrow:
        return (x.astype(bf16.numpy),)
    x = x.astype({wide: np.float64, widened: np.int8}.get(op, np.float32))
    return (x, random.standard_normal(columns, np.float32)) if op is added else (x,)


@needs_compiler
@pytest.mark.parametrize("op", [added, narrow, wide, widened, chosen, halves], ids=lambda op: op.__name__)
@pytest.mark.parametrize("shape", [(3, 264), (5, 36)])
def test_vectors_give_what_elements_give(op: Op, shape: tuple[int, int]) -> None:
    args = arrays(op, *shape)
    lowering = lowered(op, *args)
    assert "po_load<" in lowering.source("cuda")
    outcome = emulate(lowering, inputs(op, args), {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    (loops,) = interpreted(lowering, inputs(op, args), {})
    assert_equals(outcome.results[0], loops)
    x = np.asarray(args[0], np.float64)
    expected = {added: lambda: x + args[1], chosen: lambda: x[args[1]], halves: lambda: np.vstack([x[:2], -x[2:]])}
    assert_equals(loops, expected.get(op, lambda: x * 2)())


@needs_compiler
@pytest.mark.parametrize("shape", [(2, 2064), (436, 72)], ids=["a block each", "a warp each"])
def test_rows_take_vectors(shape: tuple[int, int]) -> None:
    args = arrays(rows, *shape)
    lowering = lowered(rows, *args)
    assert lowering.source("cuda").count("po_load<2>") == 1, "the second and third time the vectors are in registers"
    outcome = emulate(lowering, inputs(rows, args), {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    powers = np.exp(args[0].astype(np.float64))
    assert_equals(outcome.results[0], powers / powers.sum(axis=1, keepdims=True))


@needs_compiler
def test_a_nest_of_one_vector_starts_where_it_starts() -> None:
    args = (np.arange(8.0), np.arange(8.0))
    outcome = emulate(lowered(ends, *args), inputs(ends, args), {})
    assert not outcome.problems
    assert_equals(outcome.results[0], np.where(np.arange(8) >= 6, 3 * args[1], 2 * args[0]))


FAULTS = {
    "a vector one element on": (added, (3, 264), r"po_load<4>\(&x\[", "po_load<4>(&x[1 + ", ("misaligned",)),
    "a vector stored one element on": (added, (3, 264), r"po_store<4>\(&y\[", "po_store<4>(&y[1 + ", ("misaligned",)),
    "a vector behind the end": (added, (3, 36), r"if \(j < 36\)", "if (j < 40)", ("outside every buffer", "race")),
    "the barriers of a tile of vectors": (gram, (64, 32), r"__syncthreads\(\);", ";", ("race", "uninitialised")),
    "vectors that overlap": (
        gram,
        (64, 64),
        r"po_cp_async16\(&x_tile\[",
        "po_cp_async16(&x_tile[4 + ",
        ("race", "unin", "outs", "cp.async"),
    ),
}


@needs_compiler
@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_vector_is_reported(name: str) -> None:
    op, shape, pattern, replacement, kinds = FAULTS[name]
    extra = [np.ones(shape[1], np.float32)] if op is added else []
    outcomes = problems(op, shape, lambda text: planted(text, pattern, replacement), *extra)
    assert outcomes, "the kernel has nothing of the kind"
    for fault, found in outcomes:
        assert found, f"line {fault.line}: without '{fault.without}' nothing is reported"
        assert any(kind in problem.what for problem in found for kind in kinds), found


def plus(left: Expr, right: Expr) -> Expr:
    return Operation("add", (left, right), int64)


def times(left: Expr, right: int) -> Expr:
    return Operation("mul", (left, integer(right)), int64)


a, lane = index_var("a"), index_var("lane")


def test_what_divides_an_index() -> None:
    assert divisor(plus(times(a, 6), integer(9)), {}) == 3
    assert divisor(plus(times(a, 6), integer(9)), {"a": 3}) == 9
    assert divisor(integer(0), {}) == 0
    assert divisor(Operation("mod", (times(a, 8), integer(12)), int64), {}) == 4
    assert divisor(Operation("floordiv", (times(a, 8), integer(2)), int64), {}) == 1


def test_how_an_index_grows() -> None:
    assert slope(plus(times(lane, 3), a), "lane") == 3
    assert slope(Operation("sub", (a, lane), int64), "lane") == -1
    assert slope(Operation("mod", (lane, integer(4)), int64), "lane") is None
    assert first_lane(plus(times(a, 4), lane), "lane") == times(a, 4)


def test_a_vector_is_contiguous_and_aligned() -> None:
    rows_of_8 = Buffer("x", float32, (integer(5), integer(8)), "argument")
    rows_of_6 = Buffer("x", float32, (integer(5), integer(6)), "argument")
    index = plus(times(a, 4), lane)
    assert is_vector(rows_of_8, (a, index), "lane", 4, {})
    assert not is_vector(rows_of_6, (a, index), "lane", 4, {}), "every other row starts at half a vector"
    assert is_vector(rows_of_6, (times(a, 2), index), "lane", 4, {})
    assert not is_vector(rows_of_8, (a, plus(index, integer(1))), "lane", 4, {})
    assert not is_vector(rows_of_8, (a, times(index, 2)), "lane", 4, {})
    assert not is_vector(rows_of_8, (lane, index), "lane", 4, {}), "a diagonal"
    assert not is_vector(rows_of_8, (a, index), "lane", 8, {}), "wider than an access can be"
    turned = Buffer("x", float32, (integer(8), integer(8)), "argument", (integer(4), integer(32)))
    assert not is_vector(turned, (a, index), "lane", 4, {})


def test_a_guard_is_the_same_for_all_lanes_where_the_bound_is_whole_vectors() -> None:
    def below(bound: int) -> Expr:
        return Operation("lt", (plus(times(a, 4), lane), integer(bound)), bool_)

    assert uniform(below(12), "lane", 4, {}) == Operation("lt", (times(a, 4), integer(12)), bool_)
    assert uniform(below(10), "lane", 4, {}) is None
    assert uniform(Operation("eq", (lane, a), bool_), "lane", 4, {}) is None
