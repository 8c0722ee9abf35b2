"""Positions of extrema: `argmax` and `argmin` of computed values, of no values, in rows that may not be there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import polyopt as po
from polyopt import f32, f64, i32, i64

M, N, K = po.sizes("M N K")
i, j, k, m = po.indices("i j k m")
RANDOM = np.random.default_rng(0)


@pytest.mark.parametrize("numerics", ["default", "fast", "strict"])
def test_the_position_of_a_computed_extremum_is_one_of_the_axis(numerics: Any) -> None:
    """The value is computed for the extremum and for its place, and rounds alike in both."""

    @po.op(numerics=numerics)
    def far(x: f32[M, N], y: f32[N]):
        v, w = po.tensors("v w")
        v[i] = po.argmax(y[j] * y[j] + x[i, j] * x[i, j], j)
        w[i] = po.argmin(x[i, j] * 0.3 + y[j] * 0.7, j)
        return v, w

    @po.op(numerics=numerics)
    def near(x: f32[M, K], c: f32[N, K]):
        v, w = po.tensors("v w")
        v[i] = po.argmin(po.sum((x[i, k] - c[j, k]) ** 2, k), j)
        w[i] = po.argmin(po.sum(x[i, k] * c[j, k], k) / po.sqrt(po.sum(c[j, k] * c[j, k], k) + 0.1), j)
        return v, w

    for rows, columns in ((17, 100), (40, 501), (1, 7)):
        x, y = RANDOM.standard_normal((rows, columns), np.float32), RANDOM.standard_normal(columns, np.float32)
        v, w = far(x, y)
        wide, other = x.astype("f8"), y.astype("f8")
        values = [other**2 + wide**2, wide * 0.3 + other * 0.7]
        assert_allclose(np.take_along_axis(values[0], v[:, None], 1)[:, 0], values[0].max(1), rtol=1e-6)
        assert_allclose(np.take_along_axis(values[1], w[:, None], 1)[:, 0], values[1].min(1), rtol=1e-5, atol=1e-6)
    for rows, columns, depth in ((40, 33, 19), (7, 300, 100)):
        p, c = RANDOM.standard_normal((rows, depth)), RANDOM.standard_normal((columns, depth))
        v, w = near(p.astype("f4"), c.astype("f4"))
        values = [((p[:, None] - c) ** 2).sum(-1), p @ c.T / np.sqrt((c * c).sum(1) + 0.1)]
        assert_allclose(np.take_along_axis(values[0], v[:, None], 1)[:, 0], values[0].min(1), rtol=1e-5)
        assert_allclose(np.take_along_axis(values[1], w[:, None], 1)[:, 0], values[1].min(1), rtol=1e-4)


@pytest.mark.parametrize("numerics", ["default", "fast"])
def test_the_nearest_and_the_longest_row_are_rows(numerics: Any) -> None:
    """Of sums whose two copies would be planned apart, and of a maximum of two sums."""

    @po.op(numerics=numerics)
    def rows(c: f64[N, K], w: f64[K]):
        y, z = po.tensors("y z")
        y[()] = po.argmin(po.sqrt(po.sum((c[j, k] - w[k]) ** 2, k)), j)
        z[()] = po.argmax(po.sum(c[j, k] * c[j, k], k), j)
        return y, z

    @po.op(numerics=numerics)
    def larger(x: f32[M, K], c: f32[N, K], w: f32[K]):
        y = po.tensor("y")
        y[i] = po.argmax(po.maximum(po.sum(x[i, k] * c[j, k], k), po.sum(c[j, m] * w[m], m)), j, where=j >= 1)
        return y

    for count, depth in ((33, 19), (400, 33)):
        for _ in range(5):
            c, w = RANDOM.standard_normal((count, depth)), RANDOM.standard_normal(depth)
            assert tuple(map(int, rows(c, w))) == (((c - w) ** 2).sum(1).argmin(), (c * c).sum(1).argmax())
    x, c, w = (RANDOM.standard_normal(s) for s in ((40, 19), (33, 19), (19,)))
    found, values = larger(x.astype("f4"), c.astype("f4"), w.astype("f4")), np.maximum(x @ c.T, c @ w)
    assert_allclose(np.take_along_axis(values, found[:, None], 1)[:, 0], values[:, 1:].max(1), rtol=1e-5)


@pytest.mark.parametrize("columns", [0, 1, 3])
def test_a_position_that_no_element_asks_for_reads_nothing(columns: int) -> None:
    """Its value leaves out an axis; where that has no point, what it reads need not be there."""

    @po.op(dynamic=["M", "K"])
    def op(x: f64[N, M], like: i32[K]):
        y = po.tensor("y", shape=(M,))
        y[i] = po.argmax(po.where((k // 3 + k % 2 >= 0) & (k // 3 + k % 2 < N), x[k // 3 + k % 2, M - 1] * 2, 1.0), k)
        return y

    x, like = RANDOM.standard_normal((2, columns)), np.zeros(5, np.int32)
    assert_array_equal(op(x, like), op.reference(x, like))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_position_in_a_row_that_may_not_be_there_reads_none(rows: int) -> None:
    """A boundary leads back into an array only if that has elements; it was refused as reaching outside."""

    @po.op(dynamic=True)
    def op(x: f32[M, N], ids: i32[K]):
        clamped, wrapped = po.tensor("clamped", shape=(M, N)), po.tensor("wrapped", shape=(M, N))
        clamped[i, j] = po.argmax(po.where(ids[k] == 1, 1.0, x.clamp()[M - 1, j + k]), k)
        wrapped[i, j] = po.argmax(po.where(ids[k] == 1, 1.0, x.wrap()[M - 1, j + k]), k)
        return clamped, wrapped

    args = RANDOM.standard_normal((rows, 4)).astype(np.float32), np.array([0, 1, 0], np.int32)
    for found, wanted in zip(op(*args), op.reference(*args), strict=True):
        assert_array_equal(found, wanted)


def test_a_position_under_a_condition_leaves_the_same_value_elsewhere_alone() -> None:
    """The value had been made a tensor where the position asks for it, and a sum beside it read the rest of that."""

    @po.op
    def by_data(x: f64[M, N], w: i64[N]):
        y, k = po.tensor("y"), po.index("k", 0, N)
        y[i] = po.argmax(x[i, w[k]] * 2, k, where=k >= 3) + po.sum(x[i, w[k]] * 2, k)
        return y

    @po.op
    def behind(x: f64[M, N]):
        y, z, k = po.tensor("y"), po.tensor("z"), po.index("k", 0, N)
        y[i] = po.argmax(po.exp(x[i, k - 1]), k, where=k >= 3) + po.sum(po.exp(x[i, k - 1]), k, where=k >= 1)
        largest = po.max(po.exp(x[i, k - 1]), k, where=k >= 1)
        z[i] = po.argmax(po.exp(x[i, k - 1]), k, where=k >= 3) + po.where(i > 0, largest, 0)
        return y, z

    x, w = RANDOM.standard_normal((3, 9)), np.arange(9)[::-1].copy()
    assert_allclose(by_data(x, w), by_data.reference(x, w))
    assert_allclose(by_data(x, w), 3 + (x[:, w] * 2)[:, 3:].argmax(1) + 2 * x.sum(1))
    for found, wanted in zip(behind(x), behind.reference(x), strict=True):
        assert_allclose(found, wanted)
    for op, args in ((by_data, (x, w)), (behind, (x,))):
        assert not op.lower(*args).fallback


def test_a_sum_inside_a_position_is_computed_once() -> None:
    @po.op
    def near(x: f32[M, K], c: f32[N, K]):
        v = po.tensor("v")
        v[i] = po.argmin(po.sum((x[i, k] - c[j, k]) ** 2, k), j)
        return v

    names = [s.name for s in near.lower(M=7, N=100, K=30).scop.statements]
    assert sum("update" in name for name in names) == 3, f"the sum, the minimum and its place: {names}"


def test_a_gpu_contracts_nothing_where_it_compares() -> None:
    @po.op
    def far(x: f32[M, N], y: f32[N]):
        v = po.tensor("v")
        v[i, j] = po.where(y[j] * y[j] + x[i, j] * x[i, j] >= y[j] * x[i, j], 1.0, 0.0)
        return v

    @po.op
    def plain(x: f32[M, N]):
        v = po.tensor("v")
        v[i] = po.argmax(x[i, j], j)
        return v

    assert not far.lower(M=4, N=64, target="sm_80").cuda.contract
    assert plain.lower(M=4, N=64, target="sm_80").cuda.contract
