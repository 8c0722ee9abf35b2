"""Operators through the CUDA path on the emulator, every access checked for races, bounds and missing values."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op
from polyopt.dtypes import from_name
from polyopt.runtime import arguments
from tests.codegen_c.test_c_source import FOUND, LEFT_OUT, found, left_out
from tests.codegen_cuda.running import Array, emulate, interpreted, lowered
from tests.operators.catalogue import OPERATORS
from tests.operators.operator import Case, Operator
from tests.operators.test_operators import covering_cases
from tests.polybench import KERNELS
from tests.polybench.kernel import Kernel

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")

SHARE = 2
"""Every second operator of the catalogue runs on the interpreter too."""

_PRECISION = {"f16": 4e-3, "bf16": 4e-2, "f32": 1e-4, "f64": 1e-9}


def assert_equals(got: Array, want: Any) -> None:
    """Integers exactly, floats to the rounding of their dtype against the largest magnitude."""
    want = np.asarray(want)
    assert got.shape == want.shape
    if got.dtype.kind in "iub":
        np.testing.assert_array_equal(got, want)
        return
    share = _PRECISION.get({2: "bf16", 4: "f32", 8: "f64"}[got.dtype.itemsize], 0.0)
    finite = np.abs(want.astype(np.float64))[np.isfinite(want.astype(np.float64))]
    np.testing.assert_allclose(
        got.astype(np.float64), want.astype(np.float64), rtol=share, atol=share * float(finite.max(initial=1.0))
    )


def parts(expected: Any) -> list[Any]:
    if isinstance(expected, Mapping):
        return list(expected.values())
    return list(expected) if isinstance(expected, tuple) else [expected]


def contiguous(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(np.ascontiguousarray(a).reshape(a.shape) if isinstance(a, np.ndarray) else a for a in args)


def inputs(op: Op, args: tuple[Any, ...]) -> dict[str, Array]:
    return dict(arguments.bind(op.signature, args, {}).arrays)


def check(op: Op, args: tuple[Any, ...], expected: Any) -> None:
    args = contiguous(args)
    lowering = lowered(op, *args)
    assert not lowering.fallback
    outcome = emulate(lowering, inputs(op, args), {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    assert outcome.failed is None
    for got, want in zip(outcome.results, parts(expected), strict=True):
        assert_equals(got, want)


@needs_compiler
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_polybench_equals_its_loops(kernel: Kernel) -> None:
    args = kernel.inputs(7, np.random.default_rng(1))
    check(kernel.op, args, kernel.loops(*args))


def ragged_cases() -> list[Case]:
    """One case of each operator; sizes, layouts and dtypes start elsewhere for each, so that all of them occur."""
    return [next(covering_cases(operator, start)) for start, operator in enumerate(OPERATORS)]


@needs_compiler
@pytest.mark.parametrize("case", ragged_cases(), ids=str)
def test_operators_give_what_numpy_gives(polyopt_check: Callable[..., Any], case: Case) -> None:
    """As a user calls them, twice, the second time with `out=` and the threads in another order."""
    arguments = case.arguments
    expected = case.operator.expected(from_name(case.dtype), arguments)
    bound = {"rtol": case.operator.rtol[case.dtype]} if case.dtype in case.operator.rtol else {}
    polyopt_check(case.operator.op, *arguments, expected=expected, target="cuda", **bound)


@pytest.mark.parametrize("operator", OPERATORS[1::SHARE], ids=lambda operator: operator.name)
def test_mapped_loops_mean_what_the_equations_mean(operator: Operator) -> None:
    """Blocks and threads in a random order on the interpreter, which poisons what was never written."""
    case = Case(
        operator, tuple("1" if n else "prime" for n in range(len(operator.sizes))), "contiguous", operator.dtypes[0]
    )
    args = contiguous(case.arguments)
    lowering = lowered(operator.op, *args)
    got = interpreted(lowering, inputs(operator.op, args), {})
    for result, want in zip(got, parts(operator.expected(from_name(case.dtype), args)), strict=True):
        assert_equals(result, want)


@needs_compiler
def test_the_names_of_sums_are_no_names_of_arrays() -> None:
    """A sum kept by a thread had the name of the array `y_sum_1`, which the kernel then read as an array."""

    @po.op
    def named(x: po.f32[8, 70], y_sum_1: po.f32[70], y_sum_1__any: po.f32[70]):
        row, column = po.indices("row column")
        y = po.tensor("y")
        y[row] += po.when(column + row < 70, x[row, column] * y_sum_1[column] + y_sum_1__any[column])
        return y

    x, weights = np.ones((8, 70), np.float32), np.arange(70, dtype=np.float32)
    check(named, (x, weights, weights), 2 * np.array([weights[: 70 - row].sum() for row in range(8)]))


@needs_compiler
@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_subscript_is_checked_where_its_element_does_not_matter(name: str) -> None:
    op, args = left_out(name)
    arguments = inputs(op, args)
    assert emulate(lowered(op, *args), arguments, {}).failed is not None
    arguments["ids"][0] = 1
    assert emulate(lowered(op, *args), arguments, {}).failed is None


@needs_compiler
@pytest.mark.parametrize("name", FOUND)
def test_a_subscript_is_checked_where_the_terms_before_decide(name: str) -> None:
    op, args = found(name)
    arguments = inputs(op, args)
    assert emulate(lowered(op, *args), arguments, {}).failed is not None
    arguments["ids"][:, 2] = 0
    assert emulate(lowered(op, *args), arguments, {}).failed is None


@needs_compiler
def test_steps_that_start_elsewhere_in_each_row_are_all_done() -> None:
    M, N = po.sizes("M N")
    i, j = po.indices("i j")

    @po.op
    def thirds(x: po.f32[M, N]) -> object:
        y = po.tensor("y", shape=(M, N))
        y[j, i] = po.when((i + j) % 3 == 1, 2 * x[j, i])
        y[j, i] = po.when(~((i + j) % 3 == 1), 3 * x[j, i])
        return y

    x = np.arange(512.0, dtype=np.float32).reshape(16, 32)
    rows, columns = np.indices(x.shape)
    check(thirds, (x,), np.where((rows + columns) % 3 == 1, 2 * x, 3 * x))
