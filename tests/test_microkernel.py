"""What long and short axes are worth to a tile of registers, on machines that take vectors whole and in halves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from polyopt.microkernel import Operand, cycles, speed
from polyopt.target import Target, preset

AVX2, AVX512 = preset("avx2"), preset("avx512")
ZEN4 = replace(AVX512, cpu="znver4")
LANES, ROWS = Operand(by_lane=True, contiguous=True, by_row=False), Operand(False, False, by_row=True)


def share(rows: int, vectors: int, target: Target) -> float:
    """Of the multiply-adds that the processor could do, of whole tiles of 160 terms."""
    depth, several = 160, 100
    needed = rows * vectors * several**2 * depth / 2
    return needed / cycles((LANES, ROWS), (rows * several, rows), (vectors * several, vectors), depth, target)


# what tiles of AVX2 reach of 118.4 GFLOP/s on Zen 4, operands in the first cache
MEASURED = {
    (14, 1): 101.6, (12, 1): 101.1, (10, 1): 100.8, (8, 1): 99.0, (7, 1): 97.5, (6, 1): 87.1, (6, 2): 116.0,
    (5, 2): 111.4, (4, 2): 108.7, (3, 2): 88.2, (4, 3): 115.5, (3, 3): 109.2,
}  # fmt: skip


def test_tiles_rank_as_they_were_measured() -> None:
    modelled = {tile: share(*tile, AVX2) for tile in MEASURED}
    best = max(modelled, key=modelled.__getitem__)
    assert best in ((6, 2), (4, 3))
    for tile, gflops in MEASURED.items():
        for other, fewer in MEASURED.items():
            if gflops > 1.09 * fewer:
                assert modelled[tile] > modelled[other], f"{tile} and {other}"


def test_a_tile_one_vector_wide_waits_for_loads_where_vectors_are_taken_whole() -> None:
    for target in (AVX2, AVX512):
        width = target.lanes(32)
        assert speed(64, 16 * width, 576, 32, target) > 1.05 * speed(64, width, 576, 32, target)
    assert speed(64, 256, 576, 32, ZEN4) < 1.05 * speed(64, 16, 576, 32, ZEN4)


@pytest.mark.parametrize("target", [AVX2, AVX512, ZEN4], ids=["avx2", "avx512", "zen4"])
def test_lanes_and_rows_that_are_left_over_cost_time(target: Target) -> None:
    width = target.lanes(32)
    assert speed(600, 12 * width, 200, 32, target) > speed(600, 12 * width + 1, 200, 32, target)
    assert speed(1, 12 * width, 200, 32, target) < speed(600, 12 * width, 200, 32, target) <= 1
    assert speed(600, 12 * width, 2, 32, target) < speed(600, 12 * width, 200, 32, target), "short sums"
    assert speed(64, 6 * target.lanes(64), 200, 64, target) == speed(64, 6 * width, 200, 32, target)
