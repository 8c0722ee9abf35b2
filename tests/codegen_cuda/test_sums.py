"""What nests do to a sum's element besides the sum, and to other elements of its array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt.fuzz.check import compare
from tests.codegen_cuda.running import emulate, lowered

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")

Tensor = Any
Define = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Any]


def one_more(a: Tensor, b: Tensor, d: Tensor, c: Tensor, z: Tensor) -> Any:
    c[i, j] += a[i, k] * b[k, j]
    c[i, j] += d[i, j]
    return c


def one_before(a: Tensor, b: Tensor, d: Tensor, c: Tensor, z: Tensor) -> Any:
    c[i, j] += d[i, j]
    c[i, j] += a[i, k] * b[k, j]
    return c


def started_and_one_more(a: Tensor, b: Tensor, d: Tensor, c: Tensor, z: Tensor) -> Any:
    c[i, j] = d[i, j]
    c[i, j] += a[i, k] * b[k, j]
    c[i, j] += 1
    z[i, j] = c[i, j] + c[i, j]
    return z


def another_element(a: Tensor, b: Tensor, d: Tensor, c: Tensor, z: Tensor) -> Any:
    c[0, i, j] = d[i, j]
    c[1, i, j] += a[i, k] * b[k, j]
    z[i, j] = c[0, i, j] - c[1, i, j]
    return z


def another_element_later(a: Tensor, b: Tensor, d: Tensor, c: Tensor, z: Tensor) -> Any:
    c[1, i, j] += a[i, k] * b[k, j]
    c[0, i, j] = d[i, j]
    z[i, j] = c[0, i, j] - c[1, i, j]
    return z, c


def a_column_and_one_more(a: Tensor, b: Tensor, d: Tensor, c: Tensor, z: Tensor) -> Any:
    c[j] = d[0, j]
    c[j] += b[k, j]
    c[j] += d[1, j]
    z[j] = c[j] - d[2, j]
    return z, c


def a_row_and_one_more(a: Tensor, b: Tensor, d: Tensor, c: Tensor, z: Tensor) -> Any:
    c[i] += a[i, k]
    c[i] += d[i, 0]
    z[i] = c[i] * 2
    return z


def another_row(a: Tensor, b: Tensor, d: Tensor, c: Tensor, z: Tensor) -> Any:
    c[0, i] = d[i, 1]
    c[1, i] += a[i, k]
    z[i] = c[0, i] - c[1, i]
    return z


DEFINITIONS: tuple[Define, ...] = (
    one_more,
    one_before,
    started_and_one_more,
    another_element,
    another_element_later,
    a_column_and_one_more,
    a_row_and_one_more,
    another_row,
)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("dtype", [po.f32, po.f16, po.i64], ids=str)
@pytest.mark.parametrize("define", DEFINITIONS, ids=lambda define: define.__name__)
def test_a_sum_and_what_else_is_done_to_its_array(define: Define, dtype: Any, dynamic: bool) -> None:
    """What was added after the sum was lost, and another element of its array was taken for it."""

    @po.op(target="sm_80", dynamic=dynamic)
    def op(a: dtype[M, K], b: dtype[K, N], d: dtype[M, N]):
        return define(a, b, d, *po.tensors("c z"))

    random = np.random.default_rng(0)
    for shapes in (((64, 40), (40, 64), (64, 64)), ((33, 129), (129, 31), (33, 31))):
        arrays = tuple(random.integers(-3, 4, shape).astype(dtype.numpy) for shape in shapes)
        compare(op, arrays, gpu=True)


def test_a_sum_that_the_same_iterations_read_is_not_shared_by_threads() -> None:
    """Found by random programs: a maximum of one term, read where it is found, was -inf until the threads combined."""

    @po.op(target="sm_80")
    def op(x: po.f64[M, N]):
        own, bounded, top = (po.tensor(name, shape=shape, dtype=po.f32) for name, shape in SHAPES)
        total = po.tensor("total", shape=(M,))
        row, column = po.index("i", extent=M), po.index("j", extent=N)
        inner = po.index("ii", extent=M)
        own[row, column] = po.clip(po.cast(0, po.f32), -3, 3)
        bounded[row, column] = po.clip(po.min(own.pad(2)[inner - 2 * row, column], inner), -3, 3)
        top[row] = po.max(own[row, column], column, where=column <= row)
        total[row] = 64.0 * po.sum(po.exp2(bounded[row, column] - top[row]), column, where=column <= row)
        return total

    x = np.zeros((1, 7))
    outcome = emulate(lowered(op, x), {"x": x}, {})
    assert outcome.problems == () and outcome.results[0].tolist() == [64.0]


SHAPES = (("own", (M, N)), ("bounded", (M, N)), ("top", (M,)))
