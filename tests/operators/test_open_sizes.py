"""One kernel for all sizes has the plan that a kernel for one size has, and its numbers at every size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64, i8
from polyopt.target import host, preset

Array = np.ndarray[Any, Any]

B, C, O, H, W, M, N, K = po.sizes("B C O H W M N K")
b, c, o, r, s, i, j, k = po.indices("b c o r s i j k")
h, w = po.index("h", extent=H), po.index("w", extent=W)
WIDE = preset("avx512")
VNNI = replace(WIDE, name="vnni", features=WIDE.features + ",+avx512vnni")


def convolution(x: f32[B, C, H, W], g: f32[O, C, 3, 3]):
    y = po.tensor("y")
    y[b, o, h, w] += x.pad(0)[b, c, h + r - 1, w + s - 1] * g[o, c, r, s]
    return y


def in_a_ring(x: f32[B, C, H, W], g: f32[O, C, 3, 3]):
    y = po.tensor("y")
    y[b, o, h, w] += x.wrap()[b, c, h + r - 1, w + s - 1] * g[o, c, r, s]
    return y


def blur(x: f32[M, N]):
    across, y = po.tensors("across y")
    across[i, j] = x.clamp()[i, j - 1] + 2 * x[i, j] + x.clamp()[i, j + 1]
    y[i, j] = across.clamp()[i - 1, j] + 2 * across[i, j] + across.clamp()[i + 1, j]
    return y


def softmax(x: f32[M, N]):
    top, total, y = po.tensors("top total y")
    top[i] = po.max(x[i, j], j)
    total[i] += po.exp(x[i, j] - top[i])
    y[i, j] = po.exp(x[i, j] - top[i]) / total[i]
    return y


def bytes_of_rows(x: i8[M, K], y: i8[N, K]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[j, k]
    return z


def few_rows(x: f64[M, K], y: f64[N, K]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[j, k]
    return z


def both(x: i8[M, K], y: i8[N, K], u: f32[M, K], v: f32[N, K]):
    z, q = po.tensors("z q")
    z[i, j] += x[i, k] * y[j, k]
    q[i, j] += u[i, k] * v[j, k]
    return z, q


def tiling(define: Callable[..., Any], dynamic: list[str], **sizes: int) -> set[str]:
    """What each nest does, whatever its loops are called."""
    text = str(po.op(dynamic=dynamic)(define).lower(target=WIDE, **sizes).tiling)
    return {line.partition(": ")[2] for line in text.splitlines()}


@pytest.mark.parametrize("channels", [64, 256])
def test_batches_of_any_size_are_convolved_as_one_of_some_size_is(channels: int) -> None:
    sizes = {"C": channels, "O": channels, "H": 14, "W": 14}
    known, open_ = tiling(convolution, [], B=8, **sizes), tiling(convolution, ["B"], **sizes)
    assert known == open_ and any("accumulators stay in registers" in line for line in open_)


def test_images_of_any_size_have_lanes_along_their_filters_and_copies() -> None:
    lowering = po.op(dynamic=["B", "H", "W"])(convolution).lower(C=64, O=64, target=WIDE)
    assert lowering.fallback == "" and not lowering.given_up
    text = str(lowering.report())
    assert "y is summed with lanes along o" in text and "x_wide is x with what its sum reads beyond" in text
    assert "g packed for y_update" in text
    assert {array.name for array in lowering.scop.arrays} >= {"x_wide", "g_packed"}


SHAPES = [(1, 1, 1, 1), (2, 3, 5, 4), (1, 17, 1, 33), (3, 16, 14, 7), (1, 40, 9, 30)]


@pytest.mark.parametrize("dynamic", [["B"], ["B", "H", "W"], ["H"], ["W", "C"], True], ids=str)
@pytest.mark.parametrize("define", [convolution, in_a_ring])
def test_convolutions_of_open_sizes(polyopt_check: Any, define: Callable[..., Any], dynamic: Any) -> None:
    op = po.op(dynamic=dynamic)(define)
    for batch, channels, height, width in SHAPES:
        for filters in (3, 40):
            polyopt_check(op, B=batch, C=channels, O=filters, H=height, W=width)


@pytest.mark.parametrize("define", [convolution, in_a_ring])
def test_of_no_images_and_of_images_of_no_rows_nothing_is_read(define: Callable[..., Any]) -> None:
    op = po.op(dynamic=True)(define)
    for shape in ((0, 2, 3, 4), (2, 0, 3, 4), (2, 3, 0, 4), (2, 3, 4, 0)):
        made = op(np.ones(shape, np.float32), np.ones((5, shape[1], 3, 3), np.float32))
        assert made.shape == (shape[0], 5, *shape[2:]) and not made.any()


def test_windows_of_open_sizes_are_computed_in_tiles() -> None:
    lowering = po.op(dynamic=True)(blur).lower(target=WIDE)
    assert lowering.fallback == "" and lowering.report().temporary_bytes < WIDE.l2_bytes
    assert "across computed in each" in str(lowering.report())
    buffer = lowering.storage.of("across")
    assert buffer is not None and buffer.scope


@pytest.mark.parametrize("dynamic", [["M"], ["N"], True], ids=str)
def test_blurs_of_open_sizes(polyopt_check: Any, dynamic: Any) -> None:
    op = po.op(dynamic=dynamic, target=replace(host(), l2_bytes=1 << 13))(blur)
    for rows, columns in ((1, 1), (2, 3), (8, 256), (9, 257), (40, 300), (17, 700)):
        polyopt_check(op, M=rows, N=columns)
    assert op(np.ones((0, 0), np.float32)).shape == (0, 0)


@pytest.mark.parametrize("dynamic", [["M"], True], ids=str)
def test_exponentials_that_a_sum_and_its_quotient_take_are_computed_once(polyopt_check: Any, dynamic: Any) -> None:
    op = po.op(dynamic=dynamic)(softmax)
    sizes = {} if dynamic is True else {"N": 2048}
    assert str(op.lower(target=WIDE, **sizes).loops).count("exp(") == 1
    for rows, columns in ((1, 1), (3, 7), (70, 600)):
        polyopt_check(op, M=rows, N=columns)


def test_bytes_of_open_rows_are_multiplied_in_groups_but_for_single_ones() -> None:
    lowering = po.op(dynamic=["M"])(bytes_of_rows).lower(N=64, K=96, target=VNNI)
    assert lowering.fallback == "" and "vpdpbusd" in lowering.source("asm")
    assert "if M >= 2" in str(lowering.loops)
    assert "z_update by vpdpbusd" in str(lowering.report()) and "where M >= 2" in str(lowering.report())


@pytest.mark.parametrize("dynamic", [["M"], ["M", "N"], True], ids=str)
@pytest.mark.parametrize("define", [bytes_of_rows, few_rows, both])
def test_products_of_any_rows(polyopt_check: Any, define: Callable[..., Any], dynamic: Any) -> None:
    op = po.op(dynamic=dynamic)(define)
    for rows in (1, 2, 3, 6, 31, 32, 45):
        polyopt_check(op, M=rows, N=70, K=100)


def test_sums_of_rows_that_a_size_cuts_short_have_lanes_all_the_same() -> None:
    """Rows of an unknown number inside lanes left the sum without any: 8 rows took five times as long."""
    lowering = po.op(dynamic=["M"])(few_rows).lower(N=70, K=100, target=WIDE)
    _, few = str(lowering.loops).split("\n    else:\n")
    sums = [line.strip() for line in few.splitlines() if "for k " in line]
    assert sums and set(sums) == {"vector for k in range(100):"}


def small_matrices(x: f32[B, N, N], y: f32[B, N, N]):
    z = po.tensor("z")
    z[b, i, j] += x[b, i, k] * y[b, k, j]
    return z


def test_matrices_that_are_small_in_one_version_stay_in_registers(polyopt_check: Any) -> None:
    """4000 products of 8 x 8 took twenty times as long as those of a known size: nobody saw that rows were short."""
    op = po.op(dynamic=True)(small_matrices)
    assert "vector for j in range(min(N, 31)):" in str(op.lower(target=WIDE).loops)
    for side in (1, 2, 8, 15, 16, 17, 31, 32, 33):
        polyopt_check(op, B=3, N=side)


@pytest.mark.parametrize("dynamic", [["M"], True], ids=str)
def test_windows_whose_results_begin_late_have_tiles_too(polyopt_check: Any, dynamic: Any) -> None:
    """A result of which a window's consumer writes `y[i + 2]` ended in a StopIteration."""

    @po.op(dynamic=dynamic, target=replace(host(), l2_bytes=1 << 13))
    def late(x: f32[M, N]):
        across = po.tensor("across")
        y = po.tensor("y", shape=(M + 2, N))
        across[i, j] = x.clamp()[i, j - 1] + 2 * x[i, j] + x.clamp()[i, j + 1]
        y[0, j] = x[0, j]
        y[1, j] = x[0, j]
        y[i + 2, j] = across.clamp()[i - 1, j] + 2 * across[i, j] + across.clamp()[i + 1, j]
        return y

    for rows, columns in ((1, 3), (9, 257), (40, 300)):
        polyopt_check(late, M=rows, N=columns)


def test_windows_of_axes_that_begin_early_have_tiles_too(polyopt_check: Any) -> None:
    early = po.index("early", -1, M - 1)

    @po.op(dynamic=True, target=replace(host(), l2_bytes=1 << 13))
    def shifted(x: f32[M, N]):
        across = po.tensor("across", shape=(M, N))
        y = po.tensor("y", shape=(M, N))
        across[i, j] = x.clamp()[i, j - 1] + 2 * x[i, j] + x.clamp()[i, j + 1]
        y[early + 1, j] = across.clamp()[early, j] + 2 * across.clamp()[early + 1, j] + across.clamp()[early + 2, j]
        return y

    assert shifted.lower().fallback == "" and not shifted.lower().settled.given_up
    for rows, columns in ((1, 3), (9, 257), (40, 300)):
        polyopt_check(shifted, M=rows, N=columns)


@pytest.mark.parametrize("dynamic", [[], True], ids=["known", "open"])
def test_what_is_added_once_is_no_long_sum(polyopt_check: Any, dynamic: Any) -> None:
    """An accumulation over no axis ended in `max() arg is an empty sequence`."""

    @po.op(dynamic=dynamic)
    def once(x: f32[N], t: f32[()]):
        y, z = po.tensor("y"), po.tensor("z", shape=())
        y[i] *= x[i] * t[()]
        z[()] += t[()]
        return y, z

    polyopt_check(once, N=100)
