"""Sums over pairs of rows, in tiles of several sums with lanes along the sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, f16, f32, f64, i8, picks, u8
from polyopt.loops.interpret import interpret
from polyopt.loops.verify import verify
from polyopt.target import preset

Array = np.ndarray[Any, Any]

B, M, N, K = po.sizes("B M N K")
b, i, j, k = po.indices("b i j k")
WIDE = preset("avx512")


@po.op
def product(x: f32[M, K], w: f32[N, K]):
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[j, k]
    return y


@po.op
def layer(x: f32[M, K], w: f32[N, K], bias: f32[N]):
    y = po.tensor("y")
    y[i, j] = po.relu(po.sum(x[i, k] * w[j, k], k) + bias[j])
    return y


@po.op
def distances(x: f64[M, K], w: f64[N, K]):
    y = po.tensor("y")
    y[i, j] = po.sum((x[i, k] - w[j, k]) ** 2, k)
    return y


@po.op
def farthest(x: f32[M, K], w: f32[N, K]):
    y = po.tensor("y")
    y[i, j] = po.max(po.abs(x[i, k] - w[j, k]), k)
    return y


@po.op
def batched(x: f32[B, M, K], w: f32[B, N, K]):
    y = po.tensor("y")
    y[b, i, j] += x[b, i, k] * w[b, j, k]
    return y


def numbers(*shape: int, dtype: type = np.float32) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


def tiling(op: po.Op, *arrays: Array) -> str:
    return str(op.lower(*arrays, target=WIDE).tiling)


@pytest.mark.parametrize("rows", [2, 5, 9, 24])
@pytest.mark.parametrize(("columns", "length"), [(3, 1030), (5, 64), (96, 100)])
def test_every_shape_gives_the_same_sums(rows: int, columns: int, length: int) -> None:
    x, w, bias = numbers(rows, length), numbers(columns, length), numbers(columns)
    assert "sums run together" in tiling(product, x, w)
    np.testing.assert_array_equal(product(x, w), x @ w.T)
    assert "sums run together" in tiling(layer, x, w, bias)
    np.testing.assert_array_equal(layer(x, w, bias), np.maximum(x @ w.T + bias, 0))
    differences = x[:, None] - w[None]
    assert "sums run together" in tiling(farthest, x, w)
    np.testing.assert_array_equal(farthest(x, w), np.abs(differences).max(-1))
    doubles = x.astype(np.float64), w.astype(np.float64)
    assert "sums run together" in tiling(distances, *doubles)
    np.testing.assert_array_equal(distances(*doubles), (differences**2).sum(-1))


def test_batches_and_rows_that_begin_anywhere() -> None:
    x, w = numbers(3, 6, 128), numbers(3, 20, 128)
    assert "6 x 4 sums run together" in tiling(batched, x, w)
    np.testing.assert_array_equal(batched(x, w), x @ w.transpose(0, 2, 1))
    for shift in range(1, 5):
        moved = [np.ravel(numbers(a.size + 16))[shift : shift + a.size].reshape(a.shape) for a in (x[0], w[0])]
        np.testing.assert_array_equal(product(*moved), moved[0] @ moved[1].T)


def test_each_sum_is_a_statement_of_its_own_in_whole_tiles_and_at_edges() -> None:
    x, w = numbers(9, 96), numbers(11, 96)
    with picks.decided(lambda asked: "4 x 3" if "4 x 3" in asked.options else asked.preferred):
        loops = product.lower(x, w, target=WIDE).loops
    verify(loops)
    text = str(loops)
    assert text.count("y[i_tile + 3, j_tile + 2] +=") == 1 and text.count("y[i_tile, j_tile] +=") == 4
    y = np.zeros((9, 11), np.float32)
    interpret(loops, {"x": x, "w": w, "y": y}, seed=1)
    np.testing.assert_array_equal(y, x @ w.T)


@pytest.mark.parametrize("rows", [1, 3, 4, 9, 31])
def test_rows_that_a_size_cuts_short_are_summed_one_by_one(rows: int) -> None:
    x, w = numbers(rows, 96), numbers(11, 96)
    loops = po.op(dynamic=["M"])(product.__wrapped__).lower(N=11, K=96, target=WIDE).loops
    verify(loops)
    assert "if i_tile + 4 <= M:" in str(loops)
    assert {line.strip() for line in str(loops).splitlines() if " for k " in line} == {"vector for k in range(96):"}
    y = np.zeros((rows, 11), np.float32)
    interpret(loops, {"x": x, "w": w, "y": y}, {"M": rows}, seed=1)
    np.testing.assert_array_equal(y, x @ w.T)


def test_the_shorter_operand_is_copied_where_all_its_rows_can_begin_at_cache_lines() -> None:
    def copies(*sizes: int) -> str:
        return str(product.lower(M=sizes[0], N=sizes[1], K=sizes[2], target=WIDE).fusion)

    assert "x copied for y_update, all of it ahead: its rows begin at cache lines there" in copies(16, 500, 2048)
    assert "w copied for" in copies(500, 8, 2048) and "x copied" not in copies(500, 8, 2048)
    assert "copied" not in copies(16, 500, 2050)  # rows of 8200 bytes begin anywhere
    assert "copied" not in copies(16, 20, 2048)  # too few sums for each
    assert "copied" not in copies(4, 500, 512)  # the first cache holds it
    assert "copied" not in str(batched.lower(B=40, M=16, N=500, K=2048, target=WIDE).fusion)  # each is of one product


def test_sums_that_tiles_share_out_are_not_cut_into_parts() -> None:
    assert "partial" not in str(product.lower(M=16, N=1024, K=8192, target=WIDE).fusion)
    assert "partial sums" in str(product.lower(M=8, N=8, K=1 << 17, target=WIDE).fusion)


def test_sums_over_two_axes_and_with_factors_of_no_axis() -> None:
    """An operand without axes has no last subscript to ask for."""

    @po.op
    def over_both(x: f32[B, M, K], w: f32[B, N, K]):
        y = po.tensor("y")
        y[i, j] += x[b, i, k] * w[b, j, k]
        return y

    @po.op
    def scaled(x: f32[M, K], w: f32[N, K], alpha: f32, beta: f32[()]):
        y = po.tensor("y")
        y[i, j] += alpha * x[i, k] * w[j, k] * beta[()]
        return y

    x, w = numbers(3, 7, 100), numbers(3, 40, 100)
    assert "7 x 3 sums run together" in tiling(over_both, x, w)
    np.testing.assert_array_equal(over_both(x, w), np.einsum("bik,bjk->ij", x, w))
    assert "sums run together" in str(scaled.lower(M=8, N=33, K=2048, target=WIDE).tiling)
    np.testing.assert_array_equal(scaled(x[0], w[0], 2.0, np.array(3, np.float32)), 6 * x[0] @ w[0].T)
    assert "sums run together" in str(scaled.lower(M=8, N=8, K=1 << 17, target=WIDE).tiling)


@pytest.mark.parametrize(("weights", "inputs"), [(i8, f32), (u8, f32), (bf16, f32), (f16, f32), (bf16, bf16)])
def test_narrow_operands_are_converted_in_their_tiles(weights: po.DType, inputs: po.DType) -> None:
    @po.op
    def quantised(x: inputs[M, K], w: weights[N, K], scale: f32[N]):
        y = po.tensor("y")
        y[i, j] = po.sum(po.cast(x[i, k], f32) * po.cast(w[j, k], f32), k) * scale[j]
        return y

    @po.op
    def one_row(x: inputs[K], w: weights[N, K]):
        y = po.tensor("y")
        y[j] = po.sum(po.cast(x[k], f32) * po.cast(w[j, k], f32), k)
        return y

    x, w, scale = numbers(9, 1030), np.abs(numbers(50, 1030)), numbers(50)
    narrow = x.astype(inputs.numpy), w.astype(weights.numpy)
    assert "sums run together" in tiling(quantised, *narrow, scale)
    np.testing.assert_array_equal(quantised(*narrow, scale), x @ w.T * scale)
    assert "are read side by side" in tiling(one_row, narrow[0][0], narrow[1])
    np.testing.assert_array_equal(one_row(narrow[0][0], narrow[1]), w @ x[0])


def test_turned_operands_of_a_few_rows() -> None:
    """A transposed view lies along the sum, whatever its subscripts say."""

    @po.op
    def turned(x: f32[M, K], w: f32[K, N]):
        y = po.tensor("y")
        y[i, j] += x[i, k] * w[k, j]
        return y

    for rows in (9, 40):
        x, w = numbers(rows, 300), numbers(2050, 300)
        np.testing.assert_array_equal(turned(x, w.T), x @ w.T)
    assert "sums run together" in tiling(turned, numbers(9, 300), w.T)
    assert "w packed" in str(turned.lower(numbers(40, 300), w.T, target=WIDE).fusion)
    x, w = numbers(24, 1100), numbers(600, 1100)  # in parts, the last of which is shorter
    assert "k_part, i, j" in tiling(turned, x, w.T) and "8 x 3 sums run together" in tiling(turned, x, w.T)
    np.testing.assert_array_equal(turned(x, w.T), x @ w.T)


def test_a_nan_in_one_row_is_of_its_sums_alone() -> None:
    x, w = numbers(9, 200), numbers(11, 200)
    x[4, 77] = np.nan
    assert (np.isnan(product(x, w)).sum(1) == np.where(np.arange(9) == 4, 11, 0)).all()
    w[3, 199] = np.inf
    np.testing.assert_array_equal(farthest(x, w), np.abs(x[:, None] - w[None]).max(-1))


def plain(x: f32[M, K], w: f32[N, K]):
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[j, k]
    return y


def triangle(x: f32[M, K], w: f32[M, K]):
    y = po.tensor("y", shape=(M, M))
    y[i, j] = po.when(j <= i, po.sum(x[i, k] * w[j, k], k))
    y[i, j] = po.when(j > i, 0.0)
    return y


def later(x: f32[M, K], w: f32[N, K]):
    y = po.tensor("y", shape=(M, N))
    y[i, j] = po.when(i >= 3, po.sum(x[i, k] * w[j, k], k))
    y[i, j] = po.when(i < 3, 7.0)
    return y


def diagonal(x: f32[M, K], w: f32[M, K]):
    y = po.tensor("y")
    y[i] += x[i, k] * w[i, k]
    return y


@pytest.mark.parametrize(
    ("definition", "options"), [(plain, {"numerics": "strict"}), (triangle, {}), (later, {}), (diagonal, {})]
)
def test_orders_that_count_and_sums_that_are_no_box_have_none(
    definition: Callable[..., Any], options: dict[str, Any]
) -> None:
    op = po.op(**options)(definition)
    x, w = numbers(12, 160), numbers(12, 160)
    assert "sums run together" not in tiling(op, x, w)
    np.testing.assert_array_equal(op(x, w), op.reference(x, w))
