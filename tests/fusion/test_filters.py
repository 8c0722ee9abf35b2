"""Sums over windows run along their filters, zeros beyond edges are added once, and the numbers stay the same."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64, picks
from polyopt.fusion import beyond
from polyopt.loops import tiles
from polyopt.loops.interpret import interpret
from polyopt.picks import Question
from polyopt.pipeline import Lowering
from polyopt.target import preset

Array = np.ndarray[Any, Any]

N, C, F, H, W, G, D = po.sizes("N C F H W G D")
n, c, f, r, s, g, k, q = po.indices("n c f r s g k q")
h, w, d = po.index("h", extent=H), po.index("w", extent=W), po.index("d", extent=D)
WIDE = preset("avx512")


@po.op
def padded(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
    return z


@po.op
def mirrored(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    """A definition, filters first, a window that runs backwards and one with steps."""
    z = po.tensor("z")
    z[n, f, h, w] = po.sum(t[f, c, r, s] * x.pad(0)[n, c, h - r + 2, w + 2 * s - 1], (c, r, s))
    return z


@po.op
def filters_last(x: f32[N, C, H, W], t: f32[3, 3, C, F]):
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * t[r, s, c, f]
    return z


@po.op
def filters_inside(x: f32[N, C, H, W], t: f32[C, F, 5, 3]):
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(0)[n, c, h + r - 2, w + s - 1] * t[c, f, r, s]
    return z


@po.op
def grouped(x: f32[N, G, C, H, W], t: f32[G, F, C, 3, 3]):
    z = po.tensor("z")
    z[n, g, f, h, w] += x.pad(0)[n, g, c, h + r - 1, w + s - 1] * t[g, f, c, r, s]
    return z


@po.op
def solid(x: f64[N, C, D, H, W], t: f64[F, C, 3, 3, 3]):
    z = po.tensor("z")
    z[n, f, d, h, w] += x.pad(0)[n, c, d + q - 1, h + r - 1, w + s - 1] * t[f, c, q, r, s]
    return z


@po.op
def with_epilogue(x: f32[N, C, H, W], t: f32[F, C, 3, 3], b: f32[F], u: f32[N, F, H, W]):
    y, z = po.tensors("y z")
    y[n, f, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
    z[n, f, h, w] = po.relu(y[n, f, h, w] + b[f]) + u[n, f, h, w]
    return z


@po.op
def layers(x: f32[N, C, H, W], t: f32[F, C, 3, 3], u: f32[F, F, 3, 3]):
    y, z = po.tensors("y z")
    y[n, f, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
    z[n, f, h, w] += y.pad(0)[n, k, h + r - 1, w + s - 1] * u[f, k, r, s]
    return z


@po.op
def shared_filters(x: f32[N, C, H, W], v: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    y, z = po.tensors("y z")
    y[n, f, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
    z[n, f, h, w] += v.pad(0)[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
    return y, z


@po.op
def strided(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    i, j = po.index("i", extent=(H + 1) // 2), po.index("j", extent=(W + 1) // 2)
    z = po.tensor("z")
    z[n, f, i, j] += x.pad(0)[n, c, 2 * i + r - 1, 2 * j + 2 * s - 2] * t[f, c, r, s]
    return z


@po.op
def clamped(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    z = po.tensor("z")
    z[n, f, h, w] += x.clamp()[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
    return z


@po.op
def padded_by_ones(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(1)[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
    return z


@po.op
def pointwise(x: f32[N, C, H, W], t: f32[F, C, G, G]):
    """A window of one element, where G is 1."""
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(0)[n, c, h + r - G // 2, w + s - G // 2] * t[f, c, r, s]
    return z


two = po.index("two", extent=2)


@po.op
def shorter(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    """Filters of which the window takes two rows of three."""
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(0)[n, c, h + two - 1, w + s - 1] * t[f, c, two, s]
    return z


@po.op
def fewer_channels(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(0)[n, two, h + r - 1, w + s - 1] * t[f, two, r, s]
    return z


@po.op
def blurred(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    """A step of the window that the filters do not know."""
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(0)[n, c, h + r + two - 1, w + s - 1] * t[f, c, r, s]
    return z


@po.op
def blurred_along(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(0)[n, c, h + r - 1, w + s + two - 1] * t[f, c, r, s]
    return z


def along_filters(question: Question) -> str:
    """Lanes along filters and zeros apart, wherever that may be."""
    wanted = question.text.startswith(("lanes of ", "zeros of ")) and "True" in question.options
    return "True" if wanted else question.preferred


def lowered(op: po.Op, *args: Array) -> Lowering:
    with picks.decided(along_filters):
        lowering = op.lower(*args, target=WIDE)
        assert not lowering.fallback
        _ = lowering.loops
    return lowering


def numbers(*shape: int, dtype: type = np.float32) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


def tainted(filters: Array) -> Array:
    """Filters of which three elements are not finite: of the first row, the last one, and one in between."""
    filters = filters.copy()
    filters.flat[[0, filters.size // 2, filters.size - 1]] = [np.inf, np.nan, -np.inf]
    return filters


CASES: list[tuple[po.Op, tuple[Array, ...], int, bool]] = [
    (padded, (numbers(2, 2, 4, 3), numbers(18, 2, 3, 3)), 1, True),
    (padded, (numbers(1, 16, 2, 2), numbers(17, 16, 3, 3)), 1, True),
    (padded, (numbers(1, 3, 1, 5), numbers(16, 3, 3, 3)), 1, True),
    (mirrored, (numbers(1, 3, 4, 3), numbers(18, 3, 3, 3)), 1, True),
    (filters_last, (numbers(1, 3, 4, 3), numbers(3, 3, 3, 18)), 1, True),
    (filters_inside, (numbers(1, 3, 4, 3), numbers(3, 18, 5, 3)), 1, True),
    (grouped, (numbers(1, 2, 2, 4, 3), numbers(2, 17, 2, 3, 3)), 1, True),
    (solid, (numbers(1, 2, 3, 2, 3, dtype=np.float64), numbers(9, 2, 3, 3, 3, dtype=np.float64)), 1, True),
    (with_epilogue, (numbers(1, 2, 4, 3), numbers(18, 2, 3, 3), numbers(18), numbers(1, 18, 4, 3)), 1, True),
    (layers, (numbers(1, 2, 3, 3), numbers(17, 2, 3, 3), numbers(17, 17, 3, 3)), 2, True),
    (shared_filters, (numbers(1, 2, 4, 3), numbers(1, 2, 4, 3), numbers(18, 2, 3, 3)), 2, True),
    (strided, (numbers(1, 2, 7, 6), numbers(18, 2, 3, 3)), 1, True),
    (shorter, (numbers(1, 2, 4, 3), numbers(18, 2, 3, 3)), 1, True),
    (fewer_channels, (numbers(1, 3, 4, 3), numbers(18, 3, 3, 3)), 1, True),
    (blurred, (numbers(1, 2, 4, 3), numbers(18, 2, 3, 3)), 1, True),
    (blurred_along, (numbers(1, 2, 4, 3), numbers(18, 2, 3, 3)), 1, True),
    (clamped, (numbers(1, 2, 4, 3), numbers(18, 2, 3, 3)), 1, False),
    (padded_by_ones, (numbers(1, 2, 4, 3), numbers(18, 2, 3, 3)), 1, False),
]


@pytest.mark.parametrize(("op", "args", "filters", "cuts"), CASES)
def test_windows_run_along_filters_also_where_these_are_not_finite(
    op: po.Op, args: tuple[Array, ...], filters: int, cuts: bool
) -> None:
    lowering = lowered(op, *args)
    notes = "\n".join(lowering.fusion.copies)
    assert " is summed with lanes along f" in notes
    assert (" of zeros beyond edges " in notes) == cuts
    for given in (args, (*args[:filters], tainted(args[filters]), *args[filters + 1 :])):
        with np.errstate(all="ignore"):
            wanted = op.reference(*given)
        wanted = wanted if isinstance(wanted, tuple) else (wanted,)
        names = [t.name for t in lowering.program.tensors if t.role == "input"]
        found = {
            t.name: np.full([extent.constant for extent in t.shape or ()], np.nan, t.dtype.numpy)
            for t in lowering.program.tensors
            if t.role == "output"
        }
        with np.errstate(all="ignore"):
            interpret(lowering.loops, dict(zip(names, given, strict=True)) | found, seed=1)
        for result, expected in zip(found.values(), wanted, strict=True):
            np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("is_finite", [True, False])
def test_a_convolution_on_this_machine(images: int, is_finite: bool) -> None:
    x, t = numbers(images, 128, 14, 14), numbers(64, 128, 3, 3)
    assert "lanes along f" in str(padded.lower(x, t, target=WIDE).fusion)
    assert "lanes along f" in str(padded.lower(x, t, target=preset("avx2")).fusion)
    t = t if is_finite else tainted(t)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(padded(x, t), padded.reference(x, t))


def test_a_window_may_take_less_than_the_filters_have() -> None:
    """The filters were seen as if they had no more than the window takes of them."""
    x, t = numbers(1, 128, 14, 14), numbers(64, 128, 3, 3)
    np.testing.assert_array_equal(shorter(x, t), shorter.reference(x, t))


def test_filters_that_are_given_with_strides_keep_their_dimensions() -> None:
    x, t = numbers(1, 2, 4, 3), numbers(18, 2, 3, 6)[..., ::2]
    lowering = lowered(padded, x, t)
    assert " is summed with lanes along f" in "\n".join(lowering.fusion.copies)
    assert "in t: f32[18, 2, 3, 3]" in str(lowering.loops)
    np.testing.assert_array_equal(padded(x, t), padded.reference(x, t))


def test_rows_inside_the_image_are_all_that_a_sum_goes_over() -> None:
    lowering = padded.lower(N=8, C=512, F=512, H=7, W=7, target=WIDE)
    assert "for r in range(max(0, 1 - h), min(3, 7 - h + 1))" in str(lowering.loops)
    assert "18% of the products of z_turned are of zeros beyond edges along h, w" in str(lowering.fusion)
    assert "x_wide" not in str(lowering.loops), "nothing beyond the edges is left to be read"


def test_each_step_of_a_window_has_its_own_rows_of_a_tile() -> None:
    lowering = padded.lower(N=8, C=512, F=512, H=7, W=7, target=WIDE)
    for rows in ("range(1, 7)", "range(7)", "range(6)"):
        assert f"unrolled for w in {rows}:" in str(lowering.loops)
    steps = [block for block in re.split(r"^\.LBB", lowering.source("asm"), flags=re.M) if "vbroadcastss" in block]
    sums = [block for block in steps if block.count("vfmadd") > 6]
    assert [block.count("vfmadd") for block in sums] == [12, 14, 12]
    assert not any("rsp" in line for block in sums for line in block.splitlines() if "zmm" in line), "in registers"


def test_rows_of_several_tiles_keep_their_zeros() -> None:
    """Tiles of a part of a row have an edge each: which rows a step of the window has would depend on the tile."""
    wide = padded.lower(N=8, C=128, F=128, H=7, W=28, target=WIDE)
    assert "of zeros beyond edges along h:" in str(wide.fusion)
    few_registers = padded.lower(N=8, C=512, F=512, H=7, W=7, target=preset("avx2"))
    assert "along h, w" not in str(few_registers.fusion)


def test_steps_that_are_many_or_move_more_than_the_row_keep_its_zeros() -> None:
    """Bounds of the rows of a tile moved with the steps: 2 to 5 times as slow."""
    assert beyond.MOST_STEPS == tiles.MOST_APART

    @po.op
    def long(x: f32[N, C, W], t: f32[F, C, 9]):
        z = po.tensor("z")
        z[n, f, w] += x.pad(0)[n, c, w + s - 4] * t[f, c, s]
        return z

    @po.op
    def slanted(x: f32[N, C, H, W], t: f32[F, C, 3]):
        z = po.tensor("z")
        z[n, f, h, w] += x.pad(0)[n, c, h + s - 1, w + s - 1] * t[f, c, s]
        return z

    for lowering in (
        long.lower(N=64, C=128, F=128, W=14, target=WIDE),
        slanted.lower(N=16, C=128, F=128, H=7, W=7, target=WIDE),
    ):
        bounds = [line for line in str(lowering.loops).splitlines() if "unrolled for w in" in line]
        assert bounds and not any("max(" in line or "min(" in line for line in bounds), bounds


@pytest.mark.parametrize(("rows", "columns"), [(7, 14), (14, 7)])
def test_one_subscript_of_two_dimensions_stays_in_both(rows: int, columns: int) -> None:
    """The image lost its boundary, the proof failed, and the plain order ran."""

    @po.op
    def diagonal(x: f32[N, C, H, W], t: f32[F, C, 3]):
        z = po.tensor("z")
        z[n, f, w] += x.pad(0)[n, c, w + s - 1, w + s - 1] * t[f, c, s]
        return z

    x, t = numbers(16, 16, rows, columns), numbers(32, 16, 3)
    with picks.decided(along_filters):
        assert not diagonal.lower(x, t, target=WIDE).fallback
    np.testing.assert_array_equal(diagonal(x, t), diagonal.reference(x, t))


def test_images_of_few_columns_and_many_rows_have_tiles_down_the_rows() -> None:
    """Cut along h too, each tile had bounds of its own: 8.5 ms for eight of 56 x 6, and 3.4 now."""
    tall = padded.lower(N=8, C=128, F=64, H=56, W=6, target=WIDE)
    assert "beyond edges along w:" in str(tall.fusion)
    bounds = [line for line in str(tall.loops).splitlines() if "unrolled for h in" in line]
    assert bounds and not any("r" in line.split("range(")[1].replace("range", "") for line in bounds), bounds


def test_results_turn_in_registers() -> None:
    """Lanes along filters store elements that are an image apart: one by one they took three times as long."""
    assembly = padded.lower(N=1, C=64, F=64, H=56, W=56, target=WIDE).source("asm")
    assert "vscatter" not in assembly and "vgather" not in assembly


def test_whole_rows_and_few_filters_stay_as_they_are() -> None:
    for sizes in ({"C": 3, "F": 64, "H": 224, "W": 224}, {"C": 64, "F": 4, "H": 14, "W": 14}):
        assert "lanes along f" not in str(padded.lower(N=1, **sizes, target=WIDE).fusion)
    for places in ((5, 5), (1, 31)):  # filters that are read so seldom are not packed, and lanes would gather them
        few = {"C": 64, "F": 64, "H": places[0], "W": places[1]}
        assert "lanes along f" not in str(padded.lower(N=1, **few, target=WIDE).fusion)
    one = numbers(2, 64, 14, 14), numbers(64, 64, 1, 1)
    assert "lanes along f" not in str(pointwise.lower(*one, target=WIDE).fusion)
    np.testing.assert_array_equal(pointwise(*one), pointwise.reference(*one))
    in_order = po.op(numerics="strict")(padded.__wrapped__)
    assert "lanes along f" not in str(in_order.lower(N=1, C=64, F=64, H=14, W=14, target=WIDE).fusion)
