"""Register tiles out of access relations: which axis is which, and that the tile fits the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest

import polyopt as po
from polyopt import f32
from polyopt.fusion.rewrite import rewrite
from polyopt.poly import extract
from polyopt.poly.roles import Roles
from polyopt.target import Target
from polyopt.tiling.contraction import RegisterTile, choose, rows_along
from polyopt.tiling.extents import Extents
from tests.golden.test_golden import MACHINE
from tests.poly.operators import product

AVX512 = replace(MACHINE, name="avx512", vector_bits=512, vector_registers=32)
H, W, C, F, R, S, B, M, N, K = po.sizes("H W C F R S B M N K")
h, w, c, f, r, s, b, i, j, k = po.indices("h w c f r s b i j k")


@po.op
def channels_first(x: f32[C, H, W], weights: f32[F, C, R, S]):
    y = po.tensor("y")
    y[f, h, w] += x[c, h + r, w + s] * weights[f, c, r, s]
    return y


@po.op
def batched(x: f32[B, M, K], y: f32[B, K, N]):
    z = po.tensor("z")
    z[b, i, j] += x[b, i, k] * y[b, k, j]
    return z


def tile_of(
    op: po.Op,
    lanes: str,
    target: Target = MACHINE,
    packed: tuple[int, ...] = (),
    blocks: Mapping[str, int] = MappingProxyType({}),
    **sizes: Any,
) -> RegisterTile:
    scop = extract.extract(rewrite(op.lower(target=target, **sizes).program))  # sums as loops
    (update,) = [statement for statement in scop.statements if statement.is_update]
    roles = Roles.of(scop)
    rows = rows_along(update, roles, roles.by_statement[update.name].free, lanes)
    return choose(update, roles, Extents(scop), target, lanes=lanes, rows=rows, packed=packed, blocks=blocks)


@pytest.mark.parametrize("target", [MACHINE, AVX512], ids=lambda target: target.name)
@pytest.mark.parametrize(("m", "n"), [(512, 512), (1, 100), (100, 1), (5, 17), (6, 16)])
def test_a_tile_fits_the_register_file_and_the_operands(target: Target, m: int, n: int) -> None:
    tile = tile_of(product, "j", target, M=m, N=n, K=32)
    vectors = tile.columns // target.lanes(32)
    held = vectors if tile.height > 1 else 1  # one row reads each vector once, as it is needed
    assert tile.height * vectors + held + 1 <= target.vector_registers
    assert tile.height <= m and (vectors - 1) * target.lanes(32) < n


@po.op
def turned_rows(x: f32[K, M], y: f32[K, N]):
    z = po.tensor("z")
    z[i, j] += x[k, i] * y[k, j]
    return z


@pytest.mark.parametrize(
    ("kibibytes", "ways", "depth"),
    [(32, 8, 1023), (32, 8, 1024), (32, 8, 1025), (32, 8, 3072), (48, 12, 1024), (48, 12, 3072)],
)
def test_rows_pages_apart_leave_a_way_of_their_set_free(kibibytes: int, ways: int, depth: int) -> None:
    """14 of them took each other's place in the first cache, and a quarter of the speed (Zen 4, 1024 cubed)."""
    target = replace(AVX512, l1_bytes=kibibytes << 10)
    tile = tile_of(product, "j", target, packed=(1,), M=1024, N=1024, K=depth)
    assert tile.height * tile.columns // 16 >= 21 and tile.height < ways
    for apart in (1000, 512):  # other sets, or two sets
        assert tile_of(product, "j", target, packed=(1,), M=1024, N=1024, K=apart).height == 14
    assert tile_of(turned_rows, "j", target, packed=(1,), M=1024, N=1024, K=depth).height == 14, (
        "one line holds all rows"
    )


@pytest.mark.parametrize("target", [MACHINE, AVX512], ids=lambda target: target.name)
def test_a_large_product_loads_less_than_once_per_multiply_add(target: Target) -> None:
    tile = tile_of(product, "j", target, M=512, N=512, K=512)
    assert tile.rows == "i" and tile.loads < 0.75 and tile.speed > 0.85


def test_tiles_of_operands_from_behind_the_second_cache_take_whole_rows() -> None:
    """Each batch of y is read for the first time as the tiles of its first rows run."""
    machine = replace(AVX512, l2_bytes=1 << 21)
    assert tile_of(batched, "j", machine, B=4, M=64, N=64, K=64).columns == 32
    assert tile_of(batched, "j", machine, B=128, M=64, N=64, K=64).columns == 64
    assert tile_of(product, "j", machine, M=8, N=1024, K=1024).height == 8  # rows of pages would be read again
    assert tile_of(product, "j", machine, M=544, N=544, K=544).columns == 32  # too few rows are far to matter


def test_rows_that_outer_loops_come_back_to_are_near() -> None:
    machine = replace(AVX512, l2_bytes=1 << 21)
    assert tile_of(batched, "j", machine, B=128, M=1024, N=64, K=64).columns == 32
    few, many = ({"i": points} for points in (28, 14))
    assert tile_of(batched, "j", machine, blocks=few, B=128, M=28, N=64, K=64).columns == 64
    assert tile_of(batched, "j", machine, blocks=many, B=128, M=14 * 64, N=64, K=64).columns == 32


def test_rows_of_a_window_share_lines_that_are_far() -> None:
    """A line serves three terms of a row of nine points: seven rows along w meet it together, four images one each."""

    @po.op
    def images(x: f32[B, C, H, W], weights: f32[C, R, S, F]):
        y = po.tensor("y")
        y[b, h, w, f] += x[b, c, h + r, w + s] * weights[c, r, s, f]
        return y

    for size, rows in ((1 << 19, "w"), (1 << 22, "b")):
        machine = replace(MACHINE, l2_bytes=size)
        tile = tile_of(images, "f", machine, (1,), {"f": 16}, B=8, C=512, H=9, W=9, F=512, R=3, S=3)
        assert tile.rows == rows


def test_tiles_that_pass_by_wait_for_no_far_row() -> None:
    """Wide tiles of five rows take fewer pieces of each row, but pieces that others take the rest of cost nothing."""
    machine = replace(AVX512, l1_bytes=48 << 10, l2_bytes=1 << 21)
    assert tile_of(product, "j", machine, M=20, N=1000, K=500).height == 10


@pytest.mark.parametrize("target", [MACHINE, AVX512], ids=lambda target: target.name)
def test_a_sum_that_reads_elements_once_is_wider_than_a_window(target: Target) -> None:
    """A window loads no less in a wide tile, and a row of few tiles is all edges."""

    @po.op
    def columns(x: f32[H, W]):
        y = po.tensor("y")
        y[w] += x[h, w]
        return y

    @po.op
    def window(x: f32[H, W]):
        y = po.tensor("y", shape=(H, W))
        u, v = po.index("u", extent=3), po.index("v", extent=3)
        y[h, w] = po.sum(x.wrap()[h + u, w + v], (u, v))
        return y

    lanes = target.lanes(32)
    assert tile_of(columns, "w", target, H=256, W=256).columns > 4 * lanes
    assert tile_of(window, "w", target, H=256, W=256).columns <= 4 * lanes


def test_rows_of_a_window_run_along_the_axis_that_its_input_does_not_know() -> None:
    """Rows along h would load the input anew for every row."""
    tile = tile_of(channels_first, "w", C=16, H=34, W=50, F=32, R=3, S=3)
    assert tile.rows == "f" and tile.loads < 1.1


def test_lanes_that_gather_cost_more_than_packed_ones() -> None:
    @po.op
    def turned(x: f32[C, H], y: f32[F, H]):
        z = po.tensor("z")
        z[c, f] += x[c, h] * y[f, h]
        return z

    sizes: dict[str, Any] = {"C": 64, "F": 64, "H": 64}
    assert tile_of(turned, "f", **sizes).speed < tile_of(turned, "f", packed=(1,), **sizes).speed
