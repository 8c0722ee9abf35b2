"""Booleans and conditions of indices among numbers: `&`, sums, Python's own, custom reductions."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import polyopt as po
from polyopt import bool_, f32, i8, i32, i64

N, M = po.sizes("N M")
i, k = po.indices("i k")


@po.op
def chosen(x: i32[N]) -> object:
    y, s = po.tensors("y s")
    y[i] = po.where((i >= 1) & x[i], 10, 20)
    s[()] = po.sum(x[k], k, where=x[k] & (k >= 1))
    return y, s


def test_an_integer_beside_a_condition_is_one_of_bits() -> None:
    x, n = np.array([2, 2, 1, 3, 0, 4], np.int32), np.arange(6)
    for results in (chosen(x), chosen.reference(x)):
        assert_array_equal(results[0], np.where((n >= 1) & x, 10, 20))
        assert_array_equal(results[1], np.sum(x, where=((n >= 1) & x).astype(bool)))


def test_a_float_beside_a_condition_is_refused() -> None:
    @po.op
    def op(x: f32[N]):
        y = po.tensor("y")
        y[i] = po.where((i >= 1) & x[i], 10, 20)
        return y

    with pytest.raises(po.DTypeError):
        op(np.ones(3, np.float32))


def test_python_booleans_count_as_integers() -> None:
    @po.op
    def op(x, a):
        y, z, w = po.tensors("y z w")
        y[i] = x[i] * (a + a)
        z[i] = x[i] * ~a
        w[i] = x[i] * (a - a) + -a
        return y, z, w

    x = np.array([1.0, -2, 3], np.float32)
    for results in (op(x, True), op.reference(x, True)):
        for found, expected in zip(results, (x * 2, x * -2, x * 0 - 1), strict=True):
            assert_array_equal(found, expected)


def test_sums_count_booleans() -> None:
    @po.op
    def counted(x: f32[N], bins: i64[N]):
        s, h = po.tensor("s"), po.tensor("h", shape=(3,))
        s[()] += po.where(x[k] > 0, True, False)
        h[bins[i]] += True
        return s, h

    @po.op
    def taken(mask: bool_[N, M]):
        y = po.tensor("y")
        y[i] = 5
        y[i] -= po.when(i >= 0, mask[i, k])
        return y

    s, h = counted(np.array([1.0, -2, 3, 4], np.float32), np.array([0, 1, 1, 2]))
    assert s == 3 and s.dtype.kind == "i"
    assert_array_equal(h, [1, 2, 1])
    assert_array_equal(taken(np.array([[True, False, True], [True] * 3])), [3, 2])


def test_a_custom_reduction_inside_a_sum_is_taken_in_the_sums_dtype() -> None:
    @po.op
    def op(x: i8[N, M]):
        s = po.tensor("s")
        largest = po.reduce(lambda a, b: po.where(a > b, a, b), x[i, k], k)
        s[()] = po.sum(largest * largest, i)
        return s

    x = np.array([[100, 1], [50, 3]], np.int8)
    assert op(x) == op.reference(x) == 12500
