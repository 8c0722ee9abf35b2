"""Positions in 32 bits where all of them fit, and what stands for "nowhere"."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, i32, i64
from polyopt.dsl import ir
from polyopt.dsl.bind import specialise
from polyopt.fusion import positions
from polyopt.poly.ranges import resolve

Array = np.ndarray[Any, Any]

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")
LAST = 2**63 - 1


@po.op
def rows(x: f32[M, N]):
    y = po.tensor("y")
    y[i] = po.argmax(x[i, j], j)
    return y


@po.op
def whole(x: f32[M, N, K]):
    return po.argmin(x)


@po.op
def chosen(x: f32[M, N], w: i64[M]):
    """Other positions than those of an extremum, the least of which may be the end of i64, and a choice in a choice."""
    y, z, s, t = po.tensors("y z s t")
    y[i] = po.min(po.where(x[i, j] > 0, 2 * j - 3 * i, LAST), j)
    z[i] = po.min(po.where(x[i, j] > 0, j, w[i]), j)
    s[i] = po.min(po.where(x[i, j] > 0, po.where(x[i, j] > 1, j, 5), LAST - 1), j)
    t[i] = po.max(po.where(x[i, j] > 0, j, LAST), j)
    return y, z, s, t


@po.op
def standing_in(x: f32[M, N]):
    y = po.tensor("y")
    y[i] = po.argmax(x[i, j], j, where=x[i, j] > 0, init=-1)
    return y


def minima(op: po.Op, **sizes: int) -> list[po.DType]:
    """The dtypes of the minima in the equations of an op."""
    program = positions.narrow(resolve(specialise(op._equations.traced_for_values({}).program, sizes)))
    nodes = (node for equation in program.equations for node in ir.walk(equation.value))
    return [node.dtype for node in nodes if isinstance(node, ir.Reduce) and node.reducer.name == "min" != node.dtype]


def test_they_have_32_bits_where_every_one_fits_beside_nowhere() -> None:
    assert i32 in minima(rows, M=3, N=2**31 - 1) and i64 not in minima(rows, M=3, N=2**31 - 1)
    assert i64 in minima(rows, M=3, N=2**31)
    assert i64 in minima(rows, M=3), "the size is open"
    assert i64 not in minima(whole, M=1000, N=1000, K=1000)
    assert i64 in minima(whole, M=2000, N=2000, K=2000)


@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (17, 33), (5, 1000)])
def test_results_are_those_of_numpy(shape: tuple[int, int], numerics: Any) -> None:
    x = np.random.default_rng(1).integers(-4, 4, shape).astype(np.float32)
    x[:, -1] = np.nan
    mine = [po.op(numerics=numerics)(op.__wrapped__) for op in (rows, whole, standing_in)]
    np.testing.assert_array_equal(mine[0](x), np.argmax(x, 1))
    cube = np.nan_to_num(x).reshape(*shape, 1)
    assert mine[1](cube) == np.argmin(cube)
    is_greater = x > 0
    found = mine[2](x)
    expected = np.where(is_greater.any(1), np.argmax(np.where(is_greater, x, -np.inf), 1), -1)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int64


@pytest.mark.parametrize("target", [None, "cuda"])
def test_other_choices_of_positions_keep_their_values(polyopt_check: Any, target: str | None) -> None:
    for shape in ((3, 1), (4, 37), (2, 300)):
        x = np.random.default_rng(2).integers(-4, 4, shape).astype(np.float32)
        x[0] = -1  # nowhere greater
        w = np.array([LAST, -LAST, 7, 3])[: shape[0]]
        column, row = np.arange(shape[1]), np.arange(shape[0])[:, None]
        expected = (
            np.where(x > 0, 2 * column - 3 * row, LAST).min(1),
            np.where(x > 0, column, w[:, None]).min(1),
            np.where(x > 0, np.where(x > 1, column, 5), LAST - 1).min(1),
            np.where(x > 0, column, LAST).max(1),
        )
        polyopt_check(chosen, x, w, expected=expected, target=target)
