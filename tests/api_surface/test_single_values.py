"""A value that depends on no index is a tensor of rank 0; one of each point says that it is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import polyopt as po
from polyopt import f32, f64

N = po.size("N")
i = po.index("i")


@pytest.mark.parametrize(
    ("function", "want"),
    [
        (lambda x: (po.sum(x) + 1).reshape(1), [4.0]),
        (lambda x: (x[0] * x[1]).reshape(-1), [0.0]),
        (lambda x: po.cast(x[2], f32).reshape(1, 1), [[2.0]]),
        (lambda x: po.where(x[1] > 1, x[0], x[2]).reshape(1), [2.0]),
        (lambda x: x[1].T + x[2].transpose(), 3.0),
        (lambda x: po.cast(x[2] + 1, x[2].dtype), 3.0),
        (lambda x: po.einsum(",i->i", x[2] * x[2], x), [0.0, 4.0, 8.0]),
        (lambda x: po.sum(x[2] * x[2]), 4.0),
        (lambda x: po.max(x[2] + 1, axis=None), 3.0),
    ],
)
def test_a_single_value_is_a_tensor_of_rank_0(function: Any, want: Any) -> None:
    """It had no `reshape` of its own, and the error named a class of polyopt's."""
    assert_array_equal(po.op(function)(np.arange(3.0)), np.array(want))


@pytest.mark.parametrize("name", ["reshape", "T", "astype", "frobnicate"])
def test_a_value_of_each_point_says_that_it_is_no_tensor(name: str) -> None:
    with pytest.raises(po.DefinitionError, match=f"a single value has no attribute '{name}'"):
        po.op(lambda x: getattr(x[i] + 1, name))(np.arange(3.0))


def test_ops_that_call_each_other_without_end_are_refused() -> None:
    @po.op
    def first(x: f64[N]) -> object:
        return second(x)

    @po.op
    def second(x: f64[N]) -> object:
        return first(x)

    with pytest.raises(po.DefinitionError, match="calls functions inside each other without end"):
        first(np.ones(3))
