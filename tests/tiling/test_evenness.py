"""How evenly two threads share blocks of columns."""

from __future__ import annotations

from dataclasses import replace

import pytest

import polyopt as po
from polyopt import i32
from polyopt.target import preset
from polyopt.tiling.evenness import evenness

B, C, O, H, R = po.sizes("B C O H R")
b, c, o, r, s = po.indices("b c o r s")
h, w = po.index("h", extent=H), po.index("w", extent=H)
MACHINE = replace(preset("avx512"), l1_bytes=48 << 10, l2_bytes=2 << 20)


@po.op
def convolution(x: i32[B, C, H, H], g: i32[O, C, R, R]):
    """Of integers, whose lanes stay along rows."""
    y = po.tensor("y")
    y[b, o, h, w] += x.pad(0)[b, c, h + r - R // 2, w + s - R // 2] * g[o, c, r, s]
    return y


@pytest.mark.parametrize(
    ("length", "block", "busy"),
    [
        (100, 100, 0.5),
        (128, 64, 1.0),
        (7 * 448, 448, 0.88),
        (14 * 224, 224, 1.0),
        (196, 64, 0.81),
        (196, 96, 0.93),
        (16, 48, 0.5),
    ],
)
def test_evenness_is_the_share_of_time_that_two_threads_work(length: int, block: int, busy: float) -> None:
    assert evenness(length, block, 16) == busy


@pytest.mark.parametrize(("channels", "size"), [(64, 56), (128, 28), (256, 14)])
def test_columns_of_windows_are_cut_so_that_two_threads_end_together(channels: int, size: int) -> None:
    lowering = convolution.lower(B=1, C=channels, O=channels, H=size, R=3, target=MACHINE)
    (columns,) = [p for p in lowering._copies.panels.packings if p.is_computed]
    assert evenness(size * size, columns.block, 16) >= 0.93
    assert columns.panel_bytes <= MACHINE.l2_bytes // 2
