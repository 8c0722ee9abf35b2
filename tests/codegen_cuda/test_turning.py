"""Transposes by squares in shared memory: every width of elements, ragged edges, guards, and planted faults."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, bf16, f32, f64, i8
from tests.codegen_cuda.running import emulate, interpreted, lowered
from tests.codegen_cuda.test_emulated import assert_equals, inputs, needs_compiler
from tests.codegen_cuda.test_faults import planted, problems

B, M, N = po.sizes("B M N")
b, i, j = po.indices("b i j")


@po.op
def turned(x: f32[M, N]) -> object:
    y = po.tensor("y")
    y[j, i] = x[i, j]
    return y


@po.op
def turned_f64(x: f64[M, N]) -> object:
    y = po.tensor("y")
    y[j, i] = x[i, j] + 1
    return y


@po.op
def turned_bf16(x: bf16[M, N]) -> object:
    y = po.tensor("y")
    y[j, i] = x[i, j]
    return y


@po.op
def turned_i8(x: i8[M, N]) -> object:
    y = po.tensor("y")
    y[j, i] = x[i, j]
    return y


@po.op
def batched(x: f32[B, M, N], s: f32[N]) -> object:
    y = po.tensor("y")
    y[b, j, i] = x[b, i, j] * s[j]
    return y


@po.op
def both_ways(x: f32[M, M], z: f32[M, M]) -> object:
    y = po.tensor("y")
    y[i, j] = x[i, j] + x[j, i] + z[j, i]
    return y


@po.op
def padded(x: f32[M, N]) -> object:
    y = po.tensor("y")
    i, j = po.index("i", extent=x.shape[0]), po.index("j", extent=x.shape[1])
    y[j, i] = x.pad(0)[i - 1, j + 1]
    return y


@po.op
def lower(x: f32[M, M]) -> object:
    y = po.tensor("y")
    y[i, j] = po.where(i >= j, x[j, i], 0)
    return y


def given(*shapes: tuple[int, ...], dtype: Any = np.float32) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    return tuple(random.integers(-9, 9, shape).astype(dtype) for shape in shapes)


def shift(x: Any) -> Any:
    result = np.zeros_like(x)
    result[1:, :-1] = x[:-1, 1:]
    return result.T


CASES: dict[str, tuple[Op, tuple[Any, ...], Any]] = {
    "whole": (turned, (a := given((64, 96))), a[0].T),
    "ragged": (turned, (a := given((37, 70))), a[0].T),
    "halves": (turned, (a := given((36, 68))), a[0].T),
    "doubles": (turned_f64, (a := given((40, 34), dtype=np.float64)), a[0].T + 1),
    "bf16": (turned_bf16, (a := given((72, 128), dtype=bf16.numpy)), a[0].T),
    "bytes": (turned_i8, (a := given((80, 65), dtype=np.int8)), a[0].T),
    "batched": (batched, (a := given((2, 33, 48), (48,))), a[0].transpose(0, 2, 1) * a[1][:, None]),
    "both ways": (both_ways, (a := given((40, 40), (40, 40))), a[0] + a[0].T + a[1].T),
    "padded": (padded, (a := given((36, 44))), shift(a[0])),
    "a triangle": (lower, (a := given((40, 40))), np.tril(a[0].T)),
}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_squares_give_what_numpy_gives(name: str) -> None:
    op, args, expected = CASES[name]
    lowering = lowered(op, *args)
    assert [nest.style for nest in lowering.mapping.nests] == ["turned"] and not lowering.fallback
    assert "_tile[" in lowering.source("cuda"), "operands come through shared memory"
    outcome = emulate(lowering, inputs(op, args), {}, "count")
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    assert_equals(outcome.results[0], expected)
    if name in ("whole", "doubles", "bf16"):
        for row in outcome.traffic:
            assert row.used <= 2 * row.ideal, f"{row}\n{lowering.source('cuda')}"


def test_squares_mean_what_the_loops_mean() -> None:
    args = given((37, 18))
    (got,) = interpreted(lowered(turned, *args), inputs(turned, args), {})
    assert_equals(got, args[0].T)


def test_small_or_unknown_extents_are_left_alone() -> None:
    assert lowered(turned, M=8, N=4096).mapping.nests[0].style == "points"
    assert lowered(turned, M=512).mapping.nests[0].style == "points"


FAULTS = {
    "the barrier before the square is read": (r"__syncthreads\(\);", ";", ("race", "uninitialised")),
    "the guard of a point": (r"if \(j_block", "if (true || j_block", ("outside every buffer", "race")),
    "a copy one row on": (r"\(i_block \+ i_place\)", "(i_block + i_place + 1)", ("outside every buffer",)),
}


@needs_compiler
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_a_square_is_reported(name: str) -> None:
    pattern, replacement, kinds = FAULTS[name]
    outcomes = problems(turned, (37, 70), lambda text: planted(text, pattern, replacement))
    assert outcomes, "the kernel has nothing of the kind"
    for fault, found in outcomes:
        assert found, f"line {fault.line}: without '{fault.without}' nothing is reported"
        assert any(kind in problem.what for problem in found for kind in kinds), found
