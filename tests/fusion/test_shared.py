"""Costly values that a sum and what follows from it both compute: when they become a row, and with which numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64
from polyopt.fusion import rewrite, shared
from tests.golden.test_golden import MACHINE

M, N = po.sizes("M N")
i, j, k = po.indices("i j k")
CACHE = MACHINE.l2_bytes // 4


@po.op
def rows(x: f32[M, N]):
    return po.softmax(x, axis=-1)


@po.op
def columns(x: f32[M, N]):
    return po.softmax(x, axis=0)


@po.op
def in_one_equation(x: f64[M, N]):
    y = po.tensor("y")
    y[i, j] = po.tanh(x[i, j]) / po.sum(po.tanh(x[i, k]), k)
    return y


@po.op
def accumulated(x: f64[M, N]):
    t, y = po.tensors("t y")
    t[i] += po.exp(x[i, k])
    y[i, j] = po.exp(x[i, j]) * 2.0 + t[i]
    return y


@po.op
def cheap(x: f64[M, N]):
    t, y = po.tensors("t y")
    t[i] += x[i, j] * x[i, j]
    y[i, j] = x[i, j] * x[i, j] / t[i]
    return y


@po.op
def apart(x: f64[M, N]):
    """The second result does not need the sum, so its loops need not be the sum's."""
    t, y = po.tensors("t y")
    t[i] += po.exp(x[i, j])
    y[i, j] = po.exp(x[i, j])
    return t, y


@po.op
def guarded(x: f64[M, N]):
    t, y = po.tensors("t y")
    t[i] = po.sum(po.exp(x[i, j]), j, where=j <= i)
    y[i, j] = po.exp(x[i, j]) / t[i]
    return y


@po.op
def shifted(x: f64[M, N]):
    t, y = po.tensors("t y")
    t[i] += po.exp(x[i, j])
    y[i, j] = po.exp(x[i, j + 1]) / t[i]
    return y


def decided(operator: po.Op, **sizes: Any) -> shared.SharedValue | None:
    return shared.decide(rewrite.rewrite(operator.lower(**sizes).program), cache_bytes=CACHE)


@pytest.mark.parametrize("operator", [rows, in_one_equation, accumulated])
def test_a_function_that_a_sum_and_its_consumer_take_is_computed_once(operator: po.Op) -> None:
    value = decided(operator, M=40, N=50)
    assert value is not None and len(value.axes) == 2
    lowering = operator.lower(M=40, N=50, target=MACHINE)
    assert str(lowering.loops).count("exp(") + str(lowering.loops).count("tanh(") == 1
    assert lowering.report().temporary_bytes < 64 * 50, "a row, not the matrix"
    assert "computed once, for a sum and for what follows from it" in str(lowering.report())
    assert not lowering.fallback


@pytest.mark.parametrize(
    ("operator", "n"),
    [(columns, 50), (cheap, 50), (apart, 50), (guarded, 40), (shifted, 50), (rows, CACHE // 4 + 1)],
)
def test_other_values_are_computed_where_they_are_needed(operator: po.Op, n: int) -> None:
    assert decided(operator, M=40, N=n) is None


@pytest.mark.parametrize("dynamic", [["M"], ["N"], ["M", "N"]], ids=str)
def test_rows_of_open_sizes_are_computed_once(dynamic: list[str]) -> None:
    sizes = {name: 50 for name in ("M", "N") if name not in dynamic}
    lowering = po.op(dynamic=dynamic)(rows.__wrapped__).lower(target=MACHINE, **sizes)
    assert str(lowering.loops).count("exp(") == 1 and not lowering.fallback
    buffer = next(found for found in lowering.storage.buffers if found.array.startswith("shared"))
    assert buffer.scope, "a row, not the matrix"


def test_a_gpu_computes_it_again() -> None:
    lowering = rows.lower(M=40, N=50, target="sm_80")
    assert not any(tensor.name.startswith("shared") for tensor in lowering.rewritten.tensors)


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 7), (9, 61), (5, 1027)])
def test_results_are_those_of_the_reference(polyopt_check: Any, m: int, n: int) -> None:
    for operator in (rows, in_one_equation, accumulated):
        polyopt_check(operator, M=m, N=n)


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_nan_and_infinities_stay_in_their_rows(numerics: Any) -> None:
    x = np.random.default_rng(0).standard_normal((6, 33)).astype(np.float32)
    x[1, 4], x[2, 5], x[3, 6] = np.nan, np.inf, -np.inf
    with np.errstate(invalid="ignore"):
        e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
        expected = e / e.sum(1, keepdims=True)
    found = po.op(numerics=numerics)(rows.__wrapped__)(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_strided_view_gives_what_its_copy_gives() -> None:
    view = np.random.default_rng(1).standard_normal((12, 90)).astype(np.float32)[::2, ::2]
    np.testing.assert_allclose(rows(view), rows(view.copy()), rtol=1e-6)
