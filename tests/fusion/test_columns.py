"""Windows become columns where rows leave lanes empty, blocks of them are computed, and the numbers stay the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, f32, i32
from polyopt.loops.interpret import interpret
from polyopt.target import preset

Array = np.ndarray[Any, Any]

N, C, F, H, W, G = po.sizes("N C F H W G")
n, c, f, r, s, g, i, j = po.indices("n c f r s g i j")
h, w = po.index("h", extent=H), po.index("w", extent=W)
WIDE = preset("avx512")


def windows(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
    return z


padded, padded_in_order = po.op(windows), po.op(numerics="strict")(windows)


@po.op
def inside(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    """Only windows that lie inside the image."""
    z = po.tensor("z")
    z[n, f, i, j] += x[n, c, i + r, j + s] * t[f, c, r, s]
    return z


@po.op
def with_epilogue(x: f32[N, C, H, W], t: f32[F, C, 3, 3], b: f32[F], u: f32[N, F, H, W]):
    """A sum inside an expression, a bias, a residual and a clip."""
    z = po.tensor("z")
    z[n, f, h, w] = (
        po.relu(po.sum(x.clamp()[n, c, h - r + 1, w + s - 1] * t[f, c, r, s], (c, r, s)) + b[f]) + u[n, f, h, w]
    )
    return z


@po.op
def strided(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    p, q = po.index("p", extent=(H + 1) // 2), po.index("q", extent=(W + 1) // 2)
    z = po.tensor("z")
    z[n, f, p, q] += x.pad(0)[n, c, 2 * p + r - 1, 2 * q + 2 * s - 2] * t[f, c, r, s]
    return z


@po.op
def grouped(x: f32[N, G, C, H, W], t: f32[G, F, C, 3, 3]):
    z = po.tensor("z")
    z[n, g, f, h, w] += x.wrap()[n, g, c, h + r - 1, w + s - 1] * t[g, f, c, r, s]
    return z


@po.op
def layers(x: f32[N, C, H, W], t: f32[F, C, 3, 3], u: f32[F, F, 3, 3]):
    y, z = po.tensors("y z")
    k = po.index("k")
    y[n, f, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
    z[n, f, h, w] += po.relu(y.pad(0)[n, k, h + r - 1, w + s - 1]) * u[f, k, r, s]
    return z


@po.op
def rectified(x: bf16[N, C, H, W], t: bf16[F, C, 3, 3]):
    """A function of what is read, and sums of another dtype."""
    z = po.tensor("z", dtype=f32)
    z[n, f, h, w] += po.maximum(x.pad(0)[n, c, h + r - 1, w + s - 1], 0) * t[f, c, r, s]
    return z


@po.op
def where_inside(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    """What the guard keeps the sum from reading is not there."""
    z = po.tensor("z")
    z[n, f, h, w] += po.when((h + r < H) & (w + s < W), x[n, c, h + r, w + s] * t[f, c, r, s])
    return z


@po.op
def whole_numbers(x: i32[N, C, H, W], t: i32[F, C, 3, 3]):
    """Products of integers, whose lanes stay along rows."""
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
    return z


def columns(op: po.Op, *args: Array, target: Any = WIDE) -> dict[str, tuple[int, ...]]:
    """Shapes of the columns."""
    tensors = op.lower(*args, target=target).rewritten.tensors
    return {t.name: tuple(e.constant for e in t.shape or ()) for t in tensors if t.name.endswith("_columns")}


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


FILTERS = numbers(70, 3, 3, 3)


@pytest.mark.parametrize(
    ("op", "shape", "found"),
    [
        (padded, (1, 3, 7, 7), {"x_wide_columns": (1, 27, 49)}),
        (padded, (2, 3, 9, 5), {"x_wide_columns": (2, 27, 45)}),
        (padded, (2, 3, 11, 23), {"x_wide_columns": (2, 27, 253)}),
        (inside, (1, 3, 12, 19), {"x_columns": (1, 27, 170)}),
        (strided, (2, 3, 12, 13), {"x_wide_columns": (2, 27, 42)}),
    ],
)
def test_windows_of_short_rows_become_one_long_axis(
    op: po.Op, shape: tuple[int, ...], found: dict[str, tuple[int, ...]]
) -> None:
    x = numbers(*shape)
    assert columns(op, x, FILTERS) == found
    lowering = op.lower(x, FILTERS, target=WIDE)
    assert not lowering.fallback and f"{next(iter(found))} computed for z_update in blocks" in str(lowering.fusion)
    np.testing.assert_array_equal(op(x, FILTERS), op.reference(x, FILTERS))


def test_blocks_in_any_order_of_what_may_run_at_once() -> None:
    x, t = numbers(1, 1, 7, 5), numbers(32, 1, 3, 3)
    assert columns(padded, x, t) == {"x_wide_columns": (1, 9, 35)}
    z = np.full_like(padded(x, t), np.nan)
    interpret(padded.lower(x, t, target=WIDE).loops, {"x": x, "t": t, "z": z}, seed=1)
    np.testing.assert_array_equal(z, padded.reference(x, t))


def test_a_block_is_all_that_is_ever_kept_of_the_columns() -> None:
    report = str(whole_numbers.lower(N=2, C=64, H=14, W=14, F=64, target=WIDE).storage)
    assert "x_wide_columns_packed[1, 1, 576, " in report and "private to an iteration of h_w_panel" in report


def test_what_a_batch_reads_is_made_image_by_image() -> None:
    """All margins ahead of all images would come back from memory; one image has its loops for the threads."""
    several = whole_numbers.lower(N=3, C=64, H=28, W=7, F=64, target=WIDE)
    assert "x_wide -> x_wide_columns_packed: fused: share the loop over x_wide0, n" in str(several.fusion)
    assert "workspace x_wide: i32[1, 64, 30, 9]" in str(several.loops)
    batch = whole_numbers.lower(N=3, C=8, H=14, W=7, F=64, target=WIDE)
    assert "local x_wide: i32[1, 1, 16, 9]" in str(batch.loops)  # where an image is one block, channel by channel
    alone = whole_numbers.lower(N=1, C=8, H=14, W=7, F=64, target=WIDE)
    assert "x_wide -> x_wide_columns_packed: kept apart" in str(alone.fusion)
    x, t = numbers(3, 2, 14, 7).astype(np.int32), numbers(32, 2, 3, 3).astype(np.int32)
    small = whole_numbers.lower(x, t, target=WIDE)
    assert "local x_wide: i32[1, 1, 16, 9]" in str(small.loops)
    z = np.full_like(whole_numbers(x, t), -1)
    interpret(small.loops, {"x": x, "t": t, "z": z}, seed=1)
    np.testing.assert_array_equal(z, whole_numbers.reference(x, t))


def test_an_epilogue_stays_with_its_sum() -> None:
    x, b, u = numbers(2, 3, 6, 7), numbers(70), numbers(2, 70, 6, 7)
    assert "x_wide_columns" in columns(with_epilogue, x, FILTERS, b, u)
    assert "local z_sum" in str(with_epilogue.lower(x, FILTERS, b, u, target=WIDE).loops)
    np.testing.assert_array_equal(with_epilogue(x, FILTERS, b, u), with_epilogue.reference(x, FILTERS, b, u))


def test_groups_have_columns_of_their_own() -> None:
    x, t = numbers(2, 3, 4, 7, 5), numbers(3, 40, 4, 3, 3)
    assert columns(grouped, x, t) == {"x_wide_columns": (2, 3, 36, 35)}
    np.testing.assert_array_equal(grouped(x, t), grouped.reference(x, t))


def test_functions_and_conversions_of_what_is_read() -> None:
    x, t = numbers(1, 3, 7, 7).astype(bf16.numpy), FILTERS.astype(bf16.numpy)
    assert "x_wide_columns" in columns(rectified, x, t)
    np.testing.assert_array_equal(rectified(x, t), rectified.reference(x, t))


def test_layers_follow_each_other() -> None:
    x, t, u = numbers(2, 3, 7, 7), numbers(40, 3, 3, 3), numbers(40, 40, 3, 3)
    assert len(columns(layers, x, t, u)) == 2
    np.testing.assert_array_equal(layers(x, t, u), layers.reference(x, t, u))


def test_rows_that_fill_their_tiles_stay_where_they_are() -> None:
    assert columns(padded, numbers(1, 3, 8, 16), FILTERS, target=preset("avx2")) == {}
    assert columns(padded, numbers(1, 3, 8, 8), FILTERS, target=preset("avx2")), "tiles one vector wide wait for loads"
    assert columns(padded, numbers(1, 3, 8, 32), FILTERS) == {}
    assert columns(padded, numbers(1, 3, 7, 7), numbers(8, 3, 3, 3)) == {}
    assert columns(padded_in_order, numbers(1, 3, 7, 7), FILTERS) == {}


def test_what_a_guard_hides_is_not_read() -> None:
    x = numbers(1, 3, 7, 7)
    assert columns(where_inside, x, FILTERS) == {}
    np.testing.assert_array_equal(where_inside(x, FILTERS), where_inside.reference(x, FILTERS))


@pytest.mark.parametrize("axes", [(0, 1, 3, 2), (1, 0, 2, 3)])
def test_strided_images_and_results(axes: tuple[int, ...]) -> None:
    x = np.ascontiguousarray(numbers(2, 3, 7, 9).transpose(axes)).transpose(np.argsort(axes))
    z = np.zeros((2, 70, 9, 7), np.float32).transpose(0, 1, 3, 2)
    np.testing.assert_array_equal(padded(x, FILTERS, out=z), padded.reference(x, FILTERS))


def heads(names: str, kind: str) -> list[str]:
    """The loops and buffers of a convolution whose row and column are called as given, called u and v."""
    extents = (H, W) if kind == "padded" else (None, None)
    row, column = (po.index(name, extent=extent) for name, extent in zip(names.split(), extents, strict=True))

    @po.op(target=WIDE)
    def window(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
        z = po.tensor("z")
        read = x.pad(0)[n, c, row + r - 1, column + s - 1] if kind == "padded" else x[n, c, row + r, column + s]
        z[n, f, row, column] += (x[n, c, 2 * row + r, 2 * column + s] if kind == "strided" else read) * t[f, c, r, s]
        return z

    text = str(window.lower(N=2, C=64, H=56, W=56, F=64).loops)
    for name, other in zip(names.split(), ("u", "v"), strict=True):
        text = text.replace(name, other)
    return [line for line in text.splitlines() if " for " in line or "local" in line or "workspace" in line]


@pytest.mark.parametrize("kind", ["inside", "padded", "strided"])
@pytest.mark.parametrize("names", ["yy xx", "qq pp"])
def test_names_decide_nothing(names: str, kind: str) -> None:
    """Of two axes that run as one the first by name was taken for the outer one: fifty times as slow for y and x."""
    assert heads(names, kind) == heads("hh ww", kind)


@pytest.mark.parametrize("shape", [(1, 16, 7, 7), (3, 16, 7, 7), (1, 64, 14, 14)])
def test_two_sums_over_windows_of_one_image(shape: tuple[int, ...], caplog: pytest.LogCaptureFixture) -> None:
    """What computes the first one's columns was looked for under its old name: the call ended in a KeyError."""
    a, b = po.index("a", extent=3), po.index("b", extent=3)

    @po.op
    def both(x: i32[N, C, H, W], t: i32[F, C, 3, 3], u: i32[G, C, 3, 3]):
        y, z = po.tensors("y z")
        y[n, f, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
        z[n, g, h, w] += x.pad(0)[n, c, h + i - 1, w + j - 1] * u[g, c, i, j]
        return y, z

    @po.op
    def step(x: f32[N, C, H, W], t: f32[F, C, 3, 3], wanted: f32[N, F, H, W]):
        """A convolution, and its filters a step on."""
        y, change, d = po.tensors("y change d")
        y[n, f, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
        change[f, c, a, b] += x.pad(0)[n, c, h + a - 1, w + b - 1] * (wanted[n, f, h, w] - y[n, f, h, w])
        d[f, c, a, b] = t[f, c, a, b] - change[f, c, a, b]
        return d

    x, t, u = numbers(*shape), numbers(33, shape[1], 3, 3), numbers(40, shape[1], 3, 3)
    whole = [array.astype(np.int32) for array in (x, t, u)]
    with caplog.at_level("WARNING", logger="polyopt"):
        for found, expected in zip(both(*whole), both.reference(*whole), strict=True):
            np.testing.assert_array_equal(found, expected)
        wanted = numbers(shape[0], 33, *shape[2:])
        np.testing.assert_array_equal(step(x, t, wanted), step.reference(x, t, wanted))
    assert not caplog.messages
