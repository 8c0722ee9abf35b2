"""Operands asked for ahead: which ones, where, and the same numbers with every array at the end of its pages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, i32
from polyopt.codegen_c import ahead
from polyopt.codegen_c.ahead import Ahead
from polyopt.fusion import long_sums
from polyopt.loops.ir import Fetch
from polyopt.target import Target, host, preset
from polyopt.testing.guarded import guarded_copy
from tests.poly.operators import K, M, N, i, j, k, layernorm, shifted, softmax

WIDE = preset("avx512")


@po.op
def bent(x: f32[M, N], b: f32[N]):
    y = po.tensor("y")
    y[i, j] = po.tanh(po.exp(x[i, j]) * b[j])
    return y


@po.op
def of_a_product(x: f32[M, K], w: f32[K, N]):
    h = po.tensor("h")
    h[i, j] += x[i, k] * w[k, j]
    return po.softmax(h)


@po.op
def of_planes(x: f32[M, N, K]):
    total, y = po.tensors("total y")
    total[i] = po.sum(x[i, j, k] * x[i, j, k], (j, k))
    y[i, j, k] = x[i, j, k] / (total[i] + 1)
    return y


@po.op
def of_columns(x: f32[M, N]):
    total, y = po.tensors("total y")
    total[j] = po.sum(x[i, j], i)
    y[i, j] = x[i, j] / (total[j] + 10)
    return y


@po.op
def picked(x: f32[M, N], at: i32[M]):
    top, y = po.tensors("top y")
    top[i] = po.max(x[i, j], j)
    y[i] = po.sum(po.exp(x[i, j] - top[i]), j) - x[i, at[i]]
    return y


def asked(op: po.Op, **sizes: int) -> tuple[Ahead, ...]:
    return op.lower(**sizes, target=WIDE).mapping.ahead


def tiny(parallel_ns: int, l2_bytes: int) -> Target:
    """This machine with a first cache that holds nothing, and rows of half the second that are worth asking for."""
    return replace(host(), parallel_ns=parallel_ns, l1_bytes=64, l2_bytes=l2_bytes, l3_bytes=l2_bytes)


def test_what_slow_loops_read_once_from_memory_is_asked_for_ahead() -> None:
    """Each vector of a long loop waited for its operand where the result went past the caches (2.7 times as long)."""
    lowering = bent.lower(M=4096, N=4096, target=WIDE)
    assert lowering.mapping.ahead == (Ahead("x", 1 << 26, Fetch("y", ahead.AHEAD_BYTES)),)
    assert "x: read ahead: 67108864 bytes from behind the second cache, each once" in str(lowering.report())
    assert "# 67108864 bytes, read ahead" in str(lowering.loops)
    assert "call void @llvm.prefetch.p0" in lowering.source("llvm")
    for other, size in ((bent, 256), (shifted, 4096)):
        near = other.lower(M=size, N=size, target=WIDE)  # near, and quick
        assert near.mapping.ahead == () and "prefetch" not in near.source("llvm")


def test_operands_of_open_sizes_are_asked_for_as_well() -> None:
    (row,) = po.op(dynamic=["M"])(softmax.__wrapped__).lower(N=4096, target=WIDE).mapping.ahead
    assert (row.array, row.whole_bytes, row.row_bytes) == ("x", 0, 16384)
    lowering = po.op(dynamic=True)(bent.__wrapped__).lower(target=WIDE)
    assert lowering.mapping.ahead == (Ahead("x", 0, Fetch("y", ahead.AHEAD_BYTES)),)
    assert "x: read ahead: if it is large, from behind the second cache, each once" in str(lowering.report())


def test_the_pass_that_computes_most_asks_for_the_next_row() -> None:
    """The first pass over a row waited for the memory, the others kept it waiting: 1.3 to 1.8 times as long."""
    lowering = softmax.lower(M=4096, N=4096, target=WIDE)
    (operand,) = lowering.mapping.ahead
    assert (operand.array, operand.fetch.further, operand.row_bytes) == ("x", (1, 0), 16384)
    assert operand.fetch.reader == lowering.scop.statement("shared").name, "the exponentials are the most work"
    said = "x: read ahead: 67108864 bytes from behind the second cache, by rows of 16384; shared asks for the next one"
    assert said in str(lowering.report())
    assert "i32 2, i32 1)" in lowering.source("llvm"), "a long row is asked for into the second cache"
    (shorter,) = asked(softmax, M=65536, N=1024)
    assert shorter.fetch.is_near and not operand.fetch.is_near
    (last,) = asked(layernorm, M=4096, N=4096)
    assert last.fetch.reader == "y"


def test_rows_of_planes_of_temporaries_and_beside_picked_elements_are_asked_for() -> None:
    (plane,) = asked(of_planes, M=512, N=64, K=64)
    assert plane.fetch.further[0] == 1 and not any(plane.fetch.further[1:]) and plane.row_bytes == 16384
    temporary = {operand.array: operand for operand in asked(of_a_product, M=4096, N=4096, K=64)}
    assert temporary["h"].fetch.further == (1, 0)
    (beside,) = asked(picked, M=4096, N=4096)
    assert beside.fetch.reader.startswith("y_sum"), beside


def test_rows_that_are_near_short_or_too_long_and_columns_are_not() -> None:
    for m, n in ((32, 4096), (1 << 18, 64), (64, 1 << 18)):
        assert asked(softmax, M=m, N=n) == ()
    assert asked(of_columns, M=4096, N=4096) == ()
    assert "prefetch" not in softmax.lower(M=32, N=4096, target=WIDE).source("llvm")


def test_only_loops_that_take_long_ask_for_what_the_last_cache_holds() -> None:
    """What a layer norm of 512 x 2048 reads is there before it is asked for: 0.195 ms with, 0.170 without."""
    assert asked(layernorm, M=512, N=2048) == ()
    (operand,) = asked(softmax, M=512, N=2048)
    assert operand.row_bytes == 8192


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 37), (5, 129), (40, 16), (2, 700), (3, 1100), (9, 2048)])
def test_asking_behind_the_end_of_an_array_does_no_harm(rows: int, columns: int) -> None:
    x = np.random.default_rng(7).standard_normal((rows, columns)).astype(np.float32)
    expected, normal = bent(x, x[0].copy()), softmax(x)
    for threads in (0, 1 << 40):
        machine = tiny(threads, 2 * x.nbytes // rows)
        at_the_end = guarded_copy(x), guarded_copy(x[0])
        np.testing.assert_array_equal(bent.on(machine)(*(one.array for one in at_the_end)), expected)
        np.testing.assert_allclose(softmax.on(machine)(at_the_end[0].array), normal, rtol=1e-6)
        is_asked = softmax.lower(M=rows, N=columns, target=machine).mapping.ahead != ()
        is_whole = threads > 0 or rows >= long_sums.ENOUGH  # a few rows are reduced in parts where threads repay it
        assert is_asked == (rows > 2 and 4 * columns >= ahead.LEAST_ROW and is_whole)


def test_rows_are_asked_for_where_they_lie() -> None:
    """Backwards, and with steps between rows: as far from the row that is read as the next one is."""
    x = np.random.default_rng(3).standard_normal((64, 2 * 4096)).astype(np.float32)
    for view in (x[:, ::-1][:, :4096], x[::-2, :4096], x[:, :4096]):
        np.testing.assert_allclose(softmax(view), softmax(view.copy()), rtol=1e-6)
