"""Names of users that mean something in a kernel, or that two things have: an array, a size, a loop."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, f32, i32
from tests.codegen_cuda.running import emulate, lowered

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")
i, j = po.indices("i j")
M, N = po.sizes("M N")
MEANINGFUL = [
    *("expf", "fabsf", "sqrtf", "erff", "powf", "int64_t", "int32_t", "uint16_t", "uint_fast8_t"),
    *("PO_KERNEL", "PO_SHARED", "PO_EMU", "combine_0", "sum_of_512_f32", "sum_of_warp_f32"),
    *("po_any", "half_", "threadIdx"),
]
VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def row_sums(array: str, index: str) -> Op:
    """The sums of rows, and twice them: a value of a thread, called as the index over which it is summed may be."""
    k = po.index(index)

    @po.op(numerics="strict")
    def sums(x: f32[N, M]) -> object:
        s, y = po.tensor(array), po.tensor("y")
        s[i] += x[i, k]
        y[i] = 2 * s[i]
        return y

    return sums


def on_emulator(op: Op, **arrays: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    outcome = emulate(lowered(op, **arrays), arrays, {})
    assert not outcome.problems
    return outcome.results[0]


@pytest.mark.parametrize(("array", "index"), [("s", "s"), ("s", "s_"), ("s", "s_1"), ("s", "_s"), ("y_sum", "y_sum_")])
def test_a_loop_is_not_the_array_that_it_sums_into(array: str, index: str) -> None:
    np.testing.assert_array_equal(on_emulator(row_sums(array, index), x=VALUES), [6, 24])


def test_a_loop_is_not_the_value_that_a_reduction_of_the_users_is_made_in() -> None:
    k = po.index("s_1")

    @po.op
    def largest(x: f32[N, M]) -> object:
        s, y = po.tensors("s y")
        s[i] = po.reduce(lambda a, b: po.maximum(po.abs(a), po.abs(b)), x[i, k], k, init=0)
        y[i] = 2 * s[i]
        return y

    np.testing.assert_array_equal(on_emulator(largest, x=VALUES - 5), [10, 4])


def test_a_size_and_an_array_of_one_name() -> None:
    @po.op(dynamic=True)
    def added(x: f32[N], N: f32[3]) -> object:
        y = po.tensor("y")
        y[i, j] = x[i] + N[j]
        return y

    arrays = {"x": VALUES[0], "N": VALUES[1]}
    outcome = emulate(lowered(added), arrays, {"N": 3})
    np.testing.assert_array_equal(outcome.results[0], VALUES[0][:, None] + VALUES[1])


@pytest.mark.parametrize("name", MEANINGFUL)
def test_names_that_mean_something_in_a_kernel(name: str) -> None:
    @po.op
    def rows(x: f32[N, M], ids: i32[M]) -> object:
        s, t, y = po.tensor(name), po.tensors("t y")[0], po.tensor("y")
        s[i] += po.exp(x[i, j] - x[i, j]) + po.sqrt(po.abs(x[i, 0]) * 0)
        t[i] = po.reduce(lambda a, b: po.maximum(po.abs(a), po.abs(b)), x[i, j] ** (x[i, j] * 0), j, init=0)
        y[i] = s[i] + t[i] + ids[0] * po.erf(x[i, 0] * 0)
        return y

    values = np.ones((3, 1100), np.float32)
    np.testing.assert_array_equal(on_emulator(rows, x=values, ids=np.zeros(1100, np.int32)), [1101] * 3)
