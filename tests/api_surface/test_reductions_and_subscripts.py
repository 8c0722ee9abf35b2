"""Section 1 of the language: reductions, subscripts and boundaries, one test for each statement."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import polyopt as po
from polyopt import bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

M, N, K, T = po.sizes("M N K T")
i, j, k, l, r = po.indices("i j k l r")

RNG = np.random.default_rng(12)
X = RNG.standard_normal((5, 7))
V = RNG.standard_normal(9)


def value_of(expression: Any, *inputs: Any) -> Any:
    """What an op of unannotated parameters returns."""
    return po.op(expression)(*inputs)


# --- reductions -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean"])
def test_reductions_over_an_index(name: str) -> None:
    @po.op
    def f(x: f64[M, N]):
        y, z, all_ = po.tensors("y z all_")
        y[i] = getattr(po, name)(x[i, j], j)
        z[j] = 1 + getattr(po, name)(2 * x[i, j], i)
        all_[()] = getattr(po, name)(x[i, j], (i, j))
        return y, z, all_

    y, z, every = f(X)
    reduce = getattr(np, name)
    assert_allclose(y, reduce(X, axis=1))
    assert_allclose(z, 1 + reduce(2 * X, axis=0))
    assert_allclose(every, reduce(X))


@pytest.mark.parametrize("name", ["any", "all"])
def test_any_and_all(name: str) -> None:
    @po.op
    def f(x: bool_[M, N]):
        y = po.tensor("y")
        y[i] = getattr(po, name)(x[i, j], j)
        return y

    x = np.array([[True, False], [True, True], [False, False]])
    result = f(x)
    assert result.dtype == np.bool_
    assert_array_equal(result, getattr(np, name)(x, axis=1))
    assert_array_equal(f(x[:, :0]), getattr(np, name)(x[:, :0], axis=1))


@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_argmax_and_argmin_take_the_first_and_give_i64(name: str) -> None:
    @po.op
    def f(x: f64[M, N]):
        y = po.tensor("y")
        y[i] = getattr(po, name)(x[i, j], j)
        return y

    x = np.array([[1.0, 3.0, 3.0, 1.0], [2.0, 2.0, 2.0, 2.0], [-1.0, 5.0, -1.0, 5.0]])
    result = f(x)
    assert result.dtype == np.int64
    assert_array_equal(result, getattr(np, name)(x, axis=1))
    wide = RNG.integers(0, 5, (9, 133)).astype(float)
    assert_array_equal(f(wide), getattr(np, name)(wide, axis=1))


def test_a_reduction_over_several_indices_with_a_condition() -> None:
    @po.op
    def f(x: f64[M, N]):
        y = po.tensor("y")
        y[()] = po.sum(x[k, l], (k, l), where=k < l)
        return y

    assert_allclose(f(X), np.triu(X, 1).sum())


def test_a_custom_reduction() -> None:
    @po.op
    def f(x: f64[M, N]):
        y = po.tensor("y")
        y[i] = po.reduce(lambda a, b: a + b + a * b, x[i, k], k, init=0.0)
        return y

    assert_allclose(f(X), np.prod(1 + X, axis=1) - 1, rtol=1e-9)


@pytest.mark.parametrize("name", ["max", "min", "argmax"])
def test_a_maximum_over_nothing_is_an_error_that_names_the_point(name: str) -> None:
    @po.op
    def f(x: f64[M, N]):
        y = po.tensor("y")
        y[i] = getattr(po, name)(x[i, k], k, where=k < i)
        return y

    with pytest.raises(po.DefinitionError, match="0"):
        f(X)


def test_a_maximum_over_nothing_is_init_where_that_is_given() -> None:
    @po.op
    def f(x: f64[M, N]):
        y, z = po.tensors("y z")
        y[i] = po.max(x[i, k], k, where=k < i, init=-7)
        z[i] = po.min(x[i, k], k, where=k < i, init=math.inf)
        return y, z

    y, z = f(X)
    assert_array_equal(y, [max([-7, *X[n, :n]]) for n in range(5)])
    assert_array_equal(z, [min([np.inf, *X[n, :n]]) for n in range(5)])


def test_a_nan_wins_a_maximum() -> None:
    @po.op
    def f(x: f64[N]):
        return po.max(x), po.min(x), po.relu(x)

    x = V.copy()
    x[3] = np.nan
    high, low, positive = f(x)
    assert np.isnan(high) and np.isnan(low) and np.isnan(positive[3])


@pytest.mark.parametrize("dtype", [bool_, i8, i16, u8, u16])
def test_sums_of_small_integers_are_i32(dtype: Any) -> None:
    @po.op
    def f(x: dtype[N], y: dtype[N]):
        s, p, dot = po.tensors("s p dot")
        s[()] += x[i]
        p[()] += po.where(x[i] == 0, 0, 1)
        dot[()] += x[i] * y[i]
        return s, dot, po.sum(x)

    x = np.full(300, 1 if dtype is bool_ else 100).astype(dtype.numpy)
    s, dot, whole = f(x, x)
    assert s.dtype == dot.dtype == whole.dtype == np.int32
    assert int(s) == int(whole) == 300 * int(x[0]) and int(dot) == 300 * int(x[0]) ** 2


@pytest.mark.parametrize("dtype", [f16, bf16])
def test_sums_of_halves_run_in_f32_and_are_rounded_back(dtype: Any) -> None:
    @po.op
    def f(x: dtype[N]):
        s = po.tensor("s")
        s[()] += x[i] * x[i]
        return s, po.sum(x)

    x = np.full(3000, 1).astype(dtype.numpy)
    dot, total = f(x)
    assert dot.dtype == total.dtype == x.dtype
    assert float(dot) == float(total) == float(np.float32(3000).astype(dtype.numpy))


@pytest.mark.parametrize("dtype", [i32, i64, u32, u64, f32, f64])
def test_other_sums_keep_the_operands_dtype(dtype: Any) -> None:
    @po.op
    def f(x: dtype[N]):
        s = po.tensor("s")
        s[()] += x[i]
        return s, po.sum(x), po.prod(x)

    for value in f(np.ones(5, dtype.numpy)):
        assert value.dtype == dtype.numpy


def test_a_dtype_sets_accumulator_and_result() -> None:
    @po.op
    def f(x: i32[N], y: f32[N]):
        return po.sum(x, dtype=i64), po.sum(y, dtype=f64), po.sum(x, dtype=f64)

    x, y = np.full(9, 2**31 - 1, np.int32), np.full(9, 0.1, np.float32)
    whole, exact, real = f(x, y)
    assert whole.dtype == np.int64 and int(whole) == 9 * (2**31 - 1)
    assert exact.dtype == np.float64 and abs(float(exact) - float(np.sum(y, dtype=np.float64))) < 1e-12
    assert real.dtype == np.float64 and float(real) == 9.0 * (2**31 - 1)


# --- subscripts and boundaries ------------------------------------------------------------------------------------


def test_subscripts_may_be_affine_and_quasi_affine() -> None:
    @po.op
    def f(x: f64[N]):
        y, z = po.tensors("y z")
        a = po.index("a", extent=2 * N)
        y[a] = x[a // 2] * po.cast(a % 4, f64)
        b = po.index("b", extent=(N + 1) // 2)
        z[b] = x[2 * b]
        return y, z

    y, z = f(V)
    n = np.arange(18)
    assert_array_equal(y, V[n // 2] * (n % 4))
    assert_array_equal(z, V[::2])


def test_a_stride_in_a_convolution() -> None:
    @po.op
    def f(x: f64[N], w: f64[K]):
        y = po.tensor("y")
        y[i] += x.pad(0)[2 * i + r - 1] * w[r]
        return y

    with pytest.raises(po.DefinitionError, match="extent="):
        f(V, V[:3])

    @po.op
    def g(x: f64[N], w: f64[K]):
        y = po.tensor("y", shape=((N + 1) // 2,))
        y[i] += x.pad(0)[2 * i + r - 1] * w[r]
        return y

    padded = np.pad(V, 1)
    assert_allclose(g(V, V[:3]), [padded[2 * n : 2 * n + 3] @ V[:3] for n in range(5)])


@pytest.mark.parametrize("dtype", [i8, i16, i32, i64, u8, u16, u32, u64])
def test_data_subscripts_gather(dtype: Any) -> None:
    @po.op
    def f(table: f64[M, N], ids: dtype[K]):
        y = po.tensor("y")
        y[i, j] = table[ids[i], j]
        return y

    ids = np.array([4, 0, 4, 2], dtype.numpy)
    assert_array_equal(f(X, ids), X[ids])


@pytest.mark.parametrize("bad", [5, -1, 2**31 - 1, -(2**31)])
def test_a_data_subscript_out_of_range_is_a_bounds_error(bad: int) -> None:
    @po.op
    def f(table: f64[N], ids: i32[K]):
        y = po.tensor("y")
        y[i] = table[ids[i]]
        return y

    ids = np.zeros(100, np.int32)
    ids[57] = bad
    with pytest.raises(po.BoundsError, match=str(bad)) as failure:
        f(V[:5], ids)
    assert isinstance(failure.value, IndexError)
    assert_array_equal(f(V[:5], np.zeros(3, np.int32)), np.full(3, V[0]))


def test_a_data_subscript_on_the_left_scatters_and_is_checked() -> None:
    @po.op
    def f(bins: i32[N]):
        hist = po.tensor("hist", shape=(M_BINS,))
        hist[bins[i]] += 1
        return hist

    bins = RNG.integers(0, M_BINS, 1000).astype(np.int32)
    assert_array_equal(f(bins), np.bincount(bins, minlength=M_BINS))
    bins[5] = M_BINS
    with pytest.raises(po.BoundsError):
        f(bins)


M_BINS = 16


def test_a_scatter_that_adds_in_a_wider_dtype_is_named_as_the_user_named_it() -> None:
    @po.op
    def f(bins: i32[N], w: f16[N]):
        hist = po.tensor("hist", shape=(4,))
        hist[bins[i]] += w[i]
        return hist

    with pytest.raises(po.BoundsError, match="subscript 0 of 'hist' is 4, outside its extent 4"):
        f(np.array([0, 4], np.int32), np.ones(2, np.float16))


def test_an_out_of_bounds_read_is_an_error_with_a_witness() -> None:
    t = po.index("t", extent=N)

    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        y[t] = x[t + 1]
        return y

    with pytest.raises(po.BoundsError) as failure:
        f(V)
    assert "t = 8" in str(failure.value)


def test_pad_clamp_and_wrap() -> None:
    @po.op
    def f(x: f64[N]):
        padded, clamped, wrapped = po.tensors("padded clamped wrapped")
        padded[i] = x[i] * 0 + x.pad(5)[i - 2]
        clamped[i] = x[i] * 0 + x.clamp()[i + 3]
        wrapped[i] = x[i] * 0 + x.wrap()[i - 3]
        return padded, clamped, wrapped

    for n in (1, 2, 5, 9):
        x = V[:n]
        at = np.arange(n)
        padded, clamped, wrapped = f(x)
        assert_array_equal(padded, np.where(at < 2, 5, np.pad(x, (2, 0))[:n]))
        assert_array_equal(clamped, x[np.minimum(at + 3, n - 1)])
        assert_array_equal(wrapped, x[(at - 3) % n])


def test_boundaries_hold_for_data_subscripts_too() -> None:
    @po.op
    def f(x: f64[N], ids: i32[K]):
        a, b, c = po.tensors("a b c")
        a[i] = x.pad(0)[ids[i]]
        b[i] = x.clamp()[ids[i]]
        c[i] = x.wrap()[ids[i]]
        return a, b, c

    ids = np.array([-20, -1, 0, 8, 9, 30], np.int32)
    a, b, c = f(V, ids)
    inside = (ids >= 0) & (ids < 9)
    assert_array_equal(a, np.where(inside, V[np.clip(ids, 0, 8)], 0))
    assert_array_equal(b, V[np.clip(ids, 0, 8)])
    assert_array_equal(c, V[ids % 9])


def test_a_start_that_data_would_repeat_is_refused() -> None:
    @po.op
    def with_start(x: f32[M]):
        s = po.tensor("s")
        s[()] = po.reduce(lambda a, b: a + b, x[k], k, init=5, where=x[k] > 0)
        return s

    @po.op
    def neutral(x: f32[M]):
        s = po.tensor("s")
        s[()] = po.reduce(lambda a, b: a + b, x[k], k, init=0, where=x[k] > 0)
        return s

    x = np.array([1, -2, 3, -4], np.float32)
    with pytest.raises(po.DefinitionError, match="neutral element"):
        with_start(x)
    assert neutral(x) == 4


def test_a_subscript_may_be_computed_from_indices_by_a_cast() -> None:
    @po.op
    def votes(x: f64[M]):
        found = po.tensor("found", shape=(8,))
        found[po.cast(po.floor(po.sqrt(po.cast(i, f64))), i64)] += x[i]
        return found

    @po.op
    def taken(x: f64[M]):
        y = po.tensor("y")
        own = po.index("own", extent=M)
        y[own] = x[po.cast(po.floor(po.sqrt(po.cast(own, f64))), i64)]
        return y

    x = np.arange(10.0)
    bins = np.floor(np.sqrt(x)).astype(int)
    assert_array_equal(votes(x), np.bincount(bins, x, 8))
    assert_array_equal(taken(x), x[bins])


@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("form", ["where", "when", "reduction", "even", "slice", "diagonal"])
def test_a_subscript_out_of_range_is_an_error_wherever_its_tensor_is_read(form: str, numerics: Any) -> None:
    """It was looked at where the reader reads alone, if the tensor was written into its reader."""

    @po.op(numerics=numerics)
    def op(x: i32[M], ids: i64[N]):
        t, y, pairs = po.tensors("t y pairs")
        t[i] = x[ids[i]]
        pairs[i, j] = x[po.where(i == j, 0, ids[j])] * po.cast(ids[i] < 9, i32)
        if form == "where":
            y[i] = po.where(i < 5, t[i], 0)
        elif form == "when":
            y[i] = po.when(i < 5, t[i])
        elif form == "reduction":
            y[()] = po.sum(t[i], i, where=i < 5)
        elif form == "even":
            y[i] = t[2 * i] + t[2 * i]
        elif form == "diagonal":
            y[i] = pairs[i, i]
        else:
            return t[0:5]
        return y

    ids = np.zeros(20, np.int64)
    ids[7] = 99
    for call in (op, op.reference):
        with pytest.raises(po.BoundsError):
            call(np.zeros(4, np.int32), ids)


def test_a_subscript_out_of_range_is_an_error_where_its_reader_has_no_point() -> None:
    @po.op
    def op(x: i32[M], ids: i64[N], w: i32[K]):
        t, y = po.tensors("t y")
        t[i] = x[ids[i]]
        y[()] = po.sum(t[i] * w[j], (i, j))
        return y

    for call in (op, op.reference):
        with pytest.raises(po.BoundsError):
            call(np.zeros(4, np.int32), np.array([0, 99]), np.zeros(0, np.int32))
