"""Reductions over a few points that are written out: which ones, and that not one bit changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, f32, i8, i64
from polyopt.dsl import ir
from polyopt.fusion import short_sums

M, N, K = po.sizes("M N K")
i, j, k, c = po.indices("i j k c")
r, s = po.index("r", extent=3), po.index("s", extent=3)


@po.op
def box(x: f32[M, N]):
    y = po.tensor("y")
    y[i, j] = po.sum(x[i + r, j + s], (r, s)) * (1 / 9)
    return y


@po.op
def pooled(x: f32[M, N]):
    y = po.tensor("y")
    y[i, j] = po.max(x[i + r, j + s], (r, s))
    return y


@po.op
def depthwise(x: f32[K, M, N], g: f32[K, 3, 3]):
    y = po.tensor("y", shape=x.shape)
    y[c, i, j] += x.pad(0)[c, i + r - 1, j + s - 1] * g[c, r, s]
    return y


@po.op
def short_columns(x: bf16[K, N]):
    y = po.tensor("y")
    y[j] += x[k, j]
    return y


@po.op
def short_rows(x: f32[M, K]):
    y = po.tensor("y")
    y[i] += x[i, k]
    return y


@po.op
def product(x: f32[M, K], w: f32[K, N]):
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j]
    return y


@po.op
def scaled(x: f32[M, N], w: f32[3]):
    y = po.tensor("y")
    y[i, j] = x[i, j] * po.sum(w[r], r)
    return y


@po.op
def gathered(table: f32[M, N], at: i64[K, 3]):
    y = po.tensor("y")
    y[k, j] = po.sum(table[at[k, r], j], r)
    return y


@po.op
def bytes_added(x: i8[M, N]):
    y = po.tensor("y")
    y[i, j] = po.sum(x[i + r, j + s], (r, s))
    return y


def with_numerics(operator: Any, numerics: Any) -> po.Op:
    return po.op(numerics=numerics)(operator.__wrapped__)


def decided(operator: Any, **sizes: int) -> list[tuple[str, int, str]]:
    plan = short_sums.decide(operator.lower(**sizes).program)
    return [(short.equation, short.terms, short.lanes) for short in plan]


@pytest.mark.parametrize(
    ("operator", "sizes", "expected"),
    [
        (box, {"M": 20, "N": 40}, [("y", 9, "j")]),
        (pooled, {"M": 20, "N": 40}, [("y", 9, "j")]),
        (depthwise, {"K": 4, "M": 20, "N": 40}, [("y", 9, "j")]),
        (short_columns, {"K": 5, "N": 40}, [("y", 5, "j")]),
        (gathered, {"M": 9, "N": 40, "K": 7}, [("y", 3, "j")]),
        (box, {"M": 20, "N": 9}, []),  # seven columns: no lanes
        (short_columns, {"K": short_sums.MOST_TERMS + 1, "N": 40}, []),
        (short_rows, {"M": 40, "K": 5}, []),  # the terms lie side by side
        (product, {"M": 40, "N": 40, "K": 5}, []),  # a register tile reuses both operands
        (scaled, {"M": 40, "N": 40}, []),  # one sum for all elements
    ],
)
def test_sums_are_written_out_where_neighbours_are_computed_at_once(
    operator: Any, sizes: dict[str, int], expected: list[tuple[str, int, str]]
) -> None:
    assert decided(operator, **sizes) == expected


def test_what_is_written_out_has_no_reduction_left_and_the_report_says_so() -> None:
    lowering = box.lower(M=20, N=40)
    (equation,) = lowering.rewritten.equations
    assert not any(isinstance(node, ir.Reduce) for node in ir.walk(equation.value))
    assert "y: 9 terms over r, s are written out, neighbours along j at once" in str(lowering.report())


@pytest.mark.parametrize("numerics", ["default", "strict", "fast"])
def test_a_nan_and_an_infinity_reach_every_window_that_holds_them(numerics: str) -> None:
    x = np.random.default_rng(0).standard_normal((21, 43)).astype(np.float32)
    x[5, 6], x[11, 30], x[12, 31] = np.nan, np.inf, -np.inf
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3))
    with np.errstate(invalid="ignore"):
        total = windows.sum((2, 3)) * np.float32(1 / 9)
    np.testing.assert_allclose(with_numerics(box, numerics)(x), total, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(with_numerics(pooled, numerics)(x), windows.max((2, 3)))


def test_strict_sums_add_the_terms_in_order() -> None:
    x = (np.random.default_rng(1).standard_normal((19, 33)) * 10.0 ** np.arange(-16, 17)).astype(np.float32)
    total = np.zeros((17, 31), np.float32)
    for down in range(3):
        for right in range(3):
            total = total + x[down : down + 17, right : right + 31]
    strict = with_numerics(box, "strict")
    np.testing.assert_array_equal(strict(x), total * np.float32(1 / 9))


@pytest.mark.parametrize(
    ("operator", "sizes"),
    [
        (depthwise, {"K": 2, "M": 5, "N": 17}),
        (short_columns, {"K": 7, "N": 33}),
        (gathered, {"M": 6, "N": 19, "K": 4}),
        (bytes_added, {"M": 9, "N": 67}),
        (pooled, {"M": 3, "N": 10}),
    ],
)
@pytest.mark.parametrize("target", ["cpu", "avx512", "generic"])
def test_results_are_those_of_the_reference(
    polyopt_check: Any, operator: Any, sizes: dict[str, int], target: str
) -> None:
    if target == "cpu":
        polyopt_check(operator, **sizes)
        return
    operator.lower(**sizes, target=target).verify()


def test_a_strided_view_is_summed_like_a_copy() -> None:
    wide = np.random.default_rng(2).standard_normal((24, 80)).astype(np.float32)
    view = wide[::2, ::2]
    np.testing.assert_array_equal(box(view), box(view.copy()))
