"""Sums of products are nested where that multiplies less, and give the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, f32, i32

Array = np.ndarray[Any, Any]

I, J, K, R, B, O, N, V = po.sizes("I J K R B O N V")
i, j, k, r, b, o, a, c, d = po.indices("i j k r b o a c d")


@po.op(numerics="fast")
def khatri_rao(t: f32[I, J, K], x: f32[J, R], y: f32[K, R]):
    z = po.tensor("z")
    z[i, r] += t[i, j, k] * x[j, r] * y[k, r]
    return z


@po.op
def khatri_rao_as_written(t: f32[I, J, K], x: f32[J, R], y: f32[K, R]):
    z = po.tensor("z")
    z[i, r] += t[i, j, k] * x[j, r] * y[k, r]
    return z


@po.op(numerics="strict")
def khatri_rao_in_order(t: f32[I, J, K], x: f32[J, R], y: f32[K, R]):
    return po.einsum("ijk,jr,kr->ir", t, x, y)


@po.op(dynamic=["I"], numerics="fast")
def khatri_rao_of_any_size(t: f32[I, J, K], x: f32[J, R], y: f32[K, R]):
    z = po.tensor("z")
    z[i, r] += t[i, j, k] * x[j, r] * y[k, r]
    return z


@po.op
def chained(t: f32[I, J], x: f32[J, R], y: f32[R, K]):
    return po.einsum("ij,jr,rk->ik", t, x, y)


@po.op
def bilinear(x: f32[B, N], g: f32[O, N, N], z: f32[B, N], bias: f32[O]):
    y, formed = po.tensor("y"), po.einsum("bi,oij,bj->bo", x, g, z)
    y[b, o] = po.tanh(formed[b, o] + bias[o])
    return y


@po.op(numerics="fast")
def activated(x: f32[B, N], g: f32[O, N, N], z: f32[B, N], bias: f32[O]):
    y = po.tensor("y")
    y[b, o] = po.tanh(po.sum(x[b, i] * g[o, i, j] * z[b, j], (i, j)) + bias[o])
    return y


@po.op(numerics="fast")
def narrow(x: bf16[B, N], g: bf16[O, N, N], z: bf16[B, N]):
    y = po.tensor("y")
    y[b, o] += x[b, i] * g[o, i, j] * z[b, j]
    return y


@po.op
def whole_numbers(x: i32[B, N], g: i32[O, N, N], z: i32[B, N]):
    y = po.tensor("y")
    y[b, o] = 7 * b
    y[b, o] += x[b, i] * g[o, i, j] * z[b, j]
    return y


@po.op(numerics="fast")
def all_modes(t: f32[I, J, K], x: f32[I, R], y: f32[J, R], z: f32[K, R]):
    core = po.tensor("core")
    core[a, b, c] += t[i, j, k] * x[i, a] * y[j, b] * z[k, c]
    return core


@po.op(numerics="fast")
def looked_up(t: f32[I, J, K], x: f32[V, R], y: f32[K, R], ids: i32[J]):
    z = po.tensor("z")
    z[i, r] += t[i, j, k] * x[ids[j], r] * y[k, r]
    return z


@po.op(numerics="fast")
def guarded(t: f32[I, J, K], x: f32[J, R], y: f32[K, R]):
    z = po.tensor("z")
    z[i, r] += po.when(j <= i, t[i, j, k] * x[j, r] * y[k, r])
    return z


@po.op(numerics="fast")
def product(x: f32[I, K], y: f32[K, J]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


def arrays(*shapes: tuple[int, ...], dtype: Any = np.float32) -> list[Array]:
    random = np.random.default_rng(5)
    if dtype == np.int32:
        return [random.integers(-(2**31), 2**31 - 1, shape, dtype=np.int32) for shape in shapes]
    return [random.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes]


def temporaries(op: po.Op, *args: Array, **sizes: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the sums that were taken out."""
    tensors = op.lower(*args, **sizes).rewritten.tensors
    return {t.name: tuple(e.constant for e in t.shape or ()) for t in tensors if "_inner" in t.name}


def test_the_sum_that_multiplies_least_comes_first_and_lies_as_lanes_take_it() -> None:
    assert temporaries(khatri_rao, I=20, J=30, K=40, R=24) == {"z_inner": (20, 30, 24)}
    report = str(khatri_rao.lower(I=20, J=30, K=40, R=24).report())
    assert "z_inner[i, j, r] is summed over k before z is over j" in report
    assert temporaries(bilinear, B=12, N=30, O=20) == {"einsum_inner": (20, 12, 30)}
    assert temporaries(activated, B=12, N=30, O=20) == {"y_inner": (20, 12, 30)}
    first, last = temporaries(all_modes, I=24, J=25, K=26, R=8).values()
    assert (first, last) == ((24, 25, 8), (24, 8, 8))


@pytest.mark.parametrize("size", [(16, 17, 33, 16), (20, 30, 40, 24), (1, 40, 40, 40), (37, 64, 19, 5)])
def test_nested_sums_are_the_sums(size: tuple[int, int, int, int]) -> None:
    rows, one, two, rank = size
    t, x, y, z = arrays((rows, one, two), (one, rank), (two, rank), (rows, rank))
    for op, args in ((khatri_rao, (t, x, y)), (all_modes, (t, z, x, y))):
        expected = op.reference(*args)
        assert temporaries(op, *args)
        np.testing.assert_allclose(op(*args), expected, rtol=1e-4, atol=1e-3)
    g, v, w, bias = arrays((one, two, two), (rows, two), (rows, two), (one,))
    for op in (bilinear, activated):
        np.testing.assert_allclose(op(v, g, w, bias), op.reference(v, g, w, bias), rtol=1e-4, atol=1e-3)


def test_integers_wrap_alike_and_narrow_factors_are_summed_in_the_dtype_of_the_sum() -> None:
    shapes = (12, 30), (20, 30, 30), (12, 30)
    for op, dtype in ((whole_numbers, np.dtype(np.int32)), (narrow, bf16.numpy)):
        args = arrays(*shapes, dtype=dtype)
        assert temporaries(op, *args) == {"y_inner": (20, 12, 30)}
        if op is whole_numbers:
            np.testing.assert_array_equal(op(*args), op.reference(*args))
        else:
            exact = np.einsum("bi,oij,bj->bo", *(one.astype(np.float64) for one in args))
            np.testing.assert_allclose(op(*args).astype(np.float64), exact, rtol=2**-7, atol=1e-2)


def test_factors_that_are_looked_up_are_nested_too() -> None:
    t, x, y = arrays((20, 30, 40), (7, 24), (40, 24))
    ids = np.arange(30, dtype=np.int32) % 7
    assert temporaries(looked_up, t, x, y, ids) == {"z_inner": (20, 30, 24)}
    np.testing.assert_allclose(looked_up(t, x, y, ids), looked_up.reference(t, x, y, ids), rtol=1e-4, atol=1e-3)


def test_an_equation_of_floats_is_taken_at_its_word() -> None:
    """Summed over k first, the infinite factor would make an infinity of what is NaN, and the small one an overflow."""
    t, x, y = np.ones((20, 30, 40), np.float32), np.ones((30, 24), np.float32), np.ones((40, 24), np.float32)
    t[0, :, ::2], x[0, 0] = -1, np.inf
    y[:, 1], x[:, 1], t[1] = 1e30, 1e-30, 1e30
    got = khatri_rao_as_written(t, x, y)
    assert np.isnan(got[0, 0]) and np.isinf(got[2, 0])
    np.testing.assert_allclose(got[1, 1], 30 * 40 * 1e30, rtol=1e-5)


def test_sums_of_open_sizes_are_nested_where_no_size_makes_a_temporary_large() -> None:
    args = arrays((20, 30, 40), (30, 24), (40, 24))
    (made,) = temporaries(khatri_rao_of_any_size, *args)
    assert "inner" in made
    np.testing.assert_allclose(
        khatri_rao_of_any_size(*args), khatri_rao_of_any_size.reference(*args), rtol=1e-4, atol=1e-3
    )
    chain = po.op(dynamic=["I", "J", "K"])(chained.__wrapped__)
    assert temporaries(chain, R=64) == {}, "64 numbers for each row, of which there may be many and short ones"
    batches = po.op(dynamic=["B"])(bilinear.__wrapped__)
    assert temporaries(batches, N=64, O=64) == {}, "64 matrices for each of a batch of any size"


@pytest.mark.parametrize("op", [khatri_rao_as_written, khatri_rao_in_order, guarded])
def test_sums_in_order_or_under_a_guard_stay(op: po.Op) -> None:
    args = arrays((20, 30, 40), (30, 24), (40, 24))
    assert temporaries(op, *args) == {}
    np.testing.assert_allclose(op(*args), op.reference(*args), rtol=1e-4, atol=1e-3)


def test_sums_that_would_save_nothing_stay() -> None:
    assert temporaries(khatri_rao, I=4, J=5, K=6, R=2) == {}  # a few thousand terms
    assert temporaries(khatri_rao, I=64, J=8, K=8, R=64) == {}  # a temporary of an eighth of the terms
    assert temporaries(product, I=64, J=64, K=64) == {}
    assert temporaries(bilinear, B=100_000, N=64, O=64) == {}  # a temporary of 1.6 GB
