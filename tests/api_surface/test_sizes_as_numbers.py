"""Equations that hold together only with the numbers of a call: slices that clip, shapes that numbers make fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f64

N = po.size("N")
Sugar = Callable[[Any, Any], Any]
"""Of an array `x`, with the functions of NumPy or of polyopt."""

CLIPPED: dict[str, Sugar] = {
    "from behind": lambda x, _: x[-3:],
    "one element, broadcast": lambda x, _: x[:1] + x[:1],
    "how many are behind the third": lambda x, m: x[3:].shape[0] + m.arange(2),
    "how many are among the last three": lambda x, m: m.arange(x[-3:].shape[0]),
    "how many are before the fourth": lambda x, m: m.arange(1, x[3::-1].shape[0]),
    "how many are inside": lambda x, m: x[1:-1].shape[0] + m.arange(2),
    "sums of the last rows": lambda x, m: m.sum(x[-3:, None] + m.zeros((1, 0)), axis=1),
}


def op_of(sugar: Sugar, **choices: Any) -> po.Op:
    @po.op(**choices)
    def sliced(x: f64[N]):
        return sugar(x, po)

    return sliced


def numpy_of(sugar: Sugar, x: np.ndarray) -> np.ndarray:
    return np.asarray(sugar(x, np))


@pytest.mark.parametrize("sugar", CLIPPED.values(), ids=CLIPPED)
def test_the_kernel_the_reference_and_numpy_clip_alike(sugar: Sugar) -> None:
    op = op_of(sugar)
    for n in range(6):
        x = np.arange(float(n)) + 1
        wanted = numpy_of(sugar, x)
        for found in (op(x), op.reference(x), op.reference(x, numerics="strict")):
            assert found.shape == wanted.shape, f"N = {n}"
            np.testing.assert_array_equal(found, wanted, err_msg=f"N = {n}")


def test_a_reference_of_open_sizes_refuses_what_the_kernel_refuses() -> None:
    op = op_of(CLIPPED["how many are behind the third"], dynamic=True)
    np.testing.assert_array_equal(op.reference(np.ones(5)), [2, 3])
    for run in (op, op.reference):
        with pytest.raises(po.ShapeError, match="do not satisfy N >= 3"):
            run(np.ones(1))


RESHAPED: dict[str, Sugar] = {
    "to numbers": lambda x, _: x.reshape(2, 2),
    "a stack": lambda x, m: m.stack([x[:3], x[1:]]).reshape((3, 2)),
}


@pytest.mark.parametrize("step", [1, 2], ids=["contiguous", "strided"])
@pytest.mark.parametrize("sugar", [*RESHAPED.values(), *CLIPPED.values()], ids=[*RESHAPED, *CLIPPED])
def test_a_first_call_writes_into_arrays(sugar: Sugar, step: int) -> None:
    """No call without `out=` has been before, which would leave what is looked at."""
    x = np.arange(4.0)
    wanted = numpy_of(sugar, x)
    out = np.zeros([step * extent for extent in wanted.shape], wanted.dtype)[(np.s_[::step],) * wanted.ndim]
    op = op_of(sugar)
    for _ in range(2):
        assert op(x, out=out) is out
        np.testing.assert_array_equal(out, wanted)
        out[...] = -1
