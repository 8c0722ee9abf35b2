"""What one iteration keeps for itself: on the chip where it has a number of elements and is small, else in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, f32
from polyopt.codegen_cuda import buffers
from polyopt.codegen_cuda.shapes import extents_of
from polyopt.dsl.ir import Var
from polyopt.dtypes import i64
from polyopt.errors import ScheduleError
from polyopt.loops.ir import Buffer
from tests.codegen_cuda.running import Array, lowered
from tests.codegen_cuda.test_emulated import needs_compiler

T, N = po.sizes("T N")
t, i = po.index("t", extent=T), po.index("i", extent=N)


def back_and_forth(x: f32[T, N]):
    """Rows of b that one step alone needs, by one thread, beside a nest for all."""
    b, c, z = po.tensors("b c z")
    z[t, i] = x[t, i] + 1
    b[t, i] = po.minimum(b.pad(0)[t, i - 1], 9.0) + x[t, i] + c.pad(0)[t - 1, N - 1 - i]
    c[t, i] = po.minimum(c.pad(0)[t, i - 1] - b[t, N - 1 - i], 7.0)
    return c, z


def with_a_maximum(x: f32[T, N]):
    """The same in a block whose other threads find the maximum of a row."""
    b, c, s = po.tensors("b c s")
    b[t, i] = po.minimum(b.pad(0)[t, i - 1], 9.0) + x[t, i] + s.pad(0)[t - 1]
    c[t, i] = po.minimum(c.pad(0)[t, i - 1] - b[t, N - 1 - i], 7.0)
    s[t] = po.maximum(po.minimum(po.max(c[t, i] + x[t, i], i), 9.0), -9.0)
    return c, s


def by_rows(function: Callable[..., Any], x: Array) -> tuple[Array, Array]:
    """What the equations say, element by element."""
    rows, columns = x.shape
    b, c, s = np.zeros(columns, "f4"), np.zeros_like(x), np.zeros(rows, "f4")
    for row in range(rows):
        for column in range(columns):
            before = c[row - 1, columns - 1 - column] if function is back_and_forth else s[row - 1]
            b[column] = min(b[column - 1] if column else 0, 9) + x[row, column] + (before if row else 0)
        for column in range(columns):
            c[row, column] = min((c[row, column - 1] if column else 0) - b[columns - 1 - column], 7)
        s[row] = np.clip((c[row] + x[row]).max(), -9, 9)
    return c, x + 1 if function is back_and_forth else s


@needs_compiler
@pytest.mark.parametrize("dynamic", [(), ("N",), ("T", "N")], ids=str)
@pytest.mark.parametrize("function", [back_and_forth, with_a_maximum])
def test_a_row_that_sequential_loops_share_has_all_its_elements(
    polyopt_check: Any, function: Callable[..., Any], dynamic: tuple[str, ...]
) -> None:
    """Of open length it had one element on the chip, and any length on a thread's stack."""
    op = po.op(dynamic=list(dynamic))(function)
    for shape in ((5, 12), (3, 40), (2, 700)):
        x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)
        polyopt_check(op, x, expected=by_rows(function, x), target="cuda")


@pytest.mark.parametrize("function", [back_and_forth, with_a_maximum])
def test_a_long_row_is_in_memory(function: Callable[..., Any]) -> None:
    op: Op = po.op(function)
    for length, is_there in ((buffers.THREAD_BYTES // 4, False), (buffers.BLOCK_BYTES, True)):
        whole = [buffer.array for buffer in lowered(op, T=4, N=length).storage.buffers if not buffer.scope]
        assert ("b" in whole) == is_there


def test_memory_on_the_chip_has_a_length() -> None:
    open_ended = Buffer("b", f32, (Var("N", i64),), "local")
    with pytest.raises(ScheduleError, match="sizes decide"):
        extents_of(open_ended)
