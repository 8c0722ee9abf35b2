"""Sums along rows of an operand that outgrows the first cache take a few rows at once, and give the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64, i32
from polyopt.loops.interpret import interpret
from polyopt.loops.verify import verify
from polyopt.target import preset

Array = np.ndarray[Any, Any]

M, K = po.sizes("M K")
i, k = po.indices("i k")
WIDE = preset("avx512")


@po.op
def product(x: f32[M, K], y: f32[K]):
    z = po.tensor("z")
    z[i] += x[i, k] * y[k]
    return z


@po.op
def in_doubles(x: f64[M, K], y: f64[K], b: f64[M]):
    z = po.tensor("z")
    z[i] = po.relu(po.sum(x[i, k] * y[k], k) - b[i])
    return z


@po.op
def largest(x: f32[M, K]):
    z = po.tensor("z")
    z[i] = po.max(x[i, k], k)
    return z


@po.op
def whole(x: i32[M, K], y: i32[K]):
    z = po.tensor("z")
    z[i] += x[i, k] * y[k]
    return z


@po.op
def windows(x: f32[K], y: f32[M]):
    """Rows that overlap are one stream."""
    z = po.tensor("z")
    z[i] += x[i + k] * y[k]
    return z


def numbers(*shape: int, dtype: type = np.float32) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


@pytest.mark.parametrize(("rows", "apart"), [(8, 2), (9, 3), (10, 3), (11, 3), (31, 8), (64, 16)])
@pytest.mark.parametrize("length", [1200, 2049])
def test_rows_side_by_side_give_the_same_sums(rows: int, apart: int, length: int) -> None:
    x, y, b = numbers(rows, length), numbers(length), numbers(rows)
    said = f"{-(-rows // apart)} rows, {apart} apart, are read side by side"
    assert said in str(product.lower(x, y, target=WIDE).tiling)
    np.testing.assert_array_equal(product(x, y), x @ y)
    doubles = [a.astype(np.float64) for a in (x, y, b)]
    assert said in str(in_doubles.lower(*doubles, target=WIDE).tiling)
    np.testing.assert_array_equal(in_doubles(*doubles), np.maximum(x @ y - b, 0))
    assert said in str(largest.lower(x, target=WIDE).tiling)
    np.testing.assert_array_equal(largest(x), x.max(1))


def test_each_row_is_a_statement_of_its_own_with_those_left_at_the_end() -> None:
    x, y = numbers(11, 1030), numbers(1030)
    loops = product.lower(x, y, target=WIDE).loops
    verify(loops)
    text = str(loops)
    assert text.count("z[i_tile + 9] += x[i_tile + 9, k] * y[k]") == 1 and text.count("z[i_tile + 6] +=") == 2
    z = np.zeros(11, np.float32)
    interpret(loops, {"x": x, "y": y, "z": z}, seed=1)
    np.testing.assert_array_equal(z, x @ y)


def test_a_nan_in_one_row_is_of_that_row_alone() -> None:
    x = numbers(12, 1100)
    x[5, 777] = np.nan
    np.testing.assert_array_equal(largest(x), x.max(1))
    y = np.ones(1100, np.float32)
    np.testing.assert_array_equal(np.isnan(product(x, y)), np.arange(12) == 5)


def test_rows_that_are_near_few_short_or_of_integers_stay() -> None:
    for sizes in ({"M": 20, "K": 100}, {"M": 5, "K": 9000}, {"M": 9000, "K": 60}):
        assert "side by side" not in str(product.lower(**sizes, target=WIDE).tiling)
    assert "side by side" not in str(whole.lower(M=100, K=2000, target=WIDE).tiling)
    assert "side by side" not in str(windows.lower(M=2000, K=90000, target=WIDE).tiling)
    in_order = po.op(numerics="strict")(product.__wrapped__)
    assert "side by side" not in str(in_order.lower(M=100, K=2000, target=WIDE).tiling)
    x, y = numbers(9, 1100, dtype=np.int32), numbers(1100, dtype=np.int32)
    np.testing.assert_array_equal(whole(x, y), x @ y)


def test_rows_under_conditions_and_of_triangles_keep_their_lanes() -> None:
    """Rows of unlike lengths were no statements of their own, and ran without lanes: 4 to 23 times as slow."""

    @po.op
    def triangle(x: f32[M, M], y: f32[M]):
        z = po.tensor("z")
        z[i] = po.sum(x[i, k] * y[k], k, where=k <= i)
        return z

    @po.op
    def some(x: f32[M, M], y: f32[M]):
        z = po.tensor("z", shape=(M,))
        z[i] = po.when(i % 3 != 1, po.sum(x[i, k] * y[k], k))
        z[i] = po.when(i % 3 == 1, 7.0)
        return z

    @po.op
    def later(x: f32[M, M], y: f32[M]):
        z = po.tensor("z", shape=(M,))
        z[i] = po.when(i >= 3, po.sum(x[i, k] * y[k], k))
        z[i] = po.when(i < 3, 7.0)
        return z

    for op in (triangle, some, later):
        lowering = op.lower(M=1100, target=WIDE)
        assert "side by side" not in str(lowering.tiling) and "vector for k" in str(lowering.loops)
        x, y = numbers(150, 150), numbers(150)
        np.testing.assert_array_equal(op(x, y), op.reference(x, y))
