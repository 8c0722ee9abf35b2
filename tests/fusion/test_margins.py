"""Sums read copies with margins where they read beyond edges often, and the numbers are the same to the last bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, i32
from polyopt.loops.interpret import interpret

Array = np.ndarray[Any, Any]

N, C, F, H, W, K, M = po.sizes("N C F H W K M")
n, c, f, r, s, i, j, k = po.indices("n c f r s i j k")
far_r, far_s = po.index("far_r", -3, 4), po.index("far_s", -3, 4)
h, w = po.index("h", extent=H), po.index("w", extent=W)


def windows(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
    return z


padded, padded_in_order = po.op(windows), po.op(numerics="strict")(windows)
of_any_height = po.op(dynamic=["H"])(windows)


@po.op
def clamped(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    z = po.tensor("z")
    z[n, f, h, w] += x.clamp()[n, c, h + r - 1, w + s - 1] * t[f, c, r, s]
    return z


clamped_at_any_height = po.op(dynamic=["H"])(clamped.__wrapped__)
"""A copy would read an image of no rows at its edge."""


@po.op
def wrapped_and_turned(x: f32[N, C, H, W], t: f32[F, C, 3, 3]):
    """A convolution in the mathematical sense, on a torus; rows beyond both ends."""
    z = po.tensor("z")
    z[n, f, h, w] += x.wrap()[n, c, 2 - 3 * h - r, w - s] * t[f, c, r, s]
    return z


@po.op
def strided_and_dilated(x: f32[N, C, H, W], t: f32[F, C, 3, 3], b: f32[F]):
    y, z = po.tensors("y z")
    p, q = po.index("p", extent=(H + 1) // 2), po.index("q", extent=(W + 1) // 2)
    y[n, f, p, q] += x.pad(1.5)[n, c, 2 * p + r - 1, 2 * q + 3 * s - 3] * t[f, c, r, s]
    z[n, f, p, q] = po.relu(y[n, f, p, q] + b[f])
    return z


@po.op
def tropical(x: f32[C, H], t: f32[F, C, 3]):
    """The greatest of many sums; nothing beyond the edge is ever the greatest."""
    z = po.tensor("z")
    z[f, h] = po.max(x.pad(float("-inf"))[c, h + r - 1] + t[f, c, r], (c, r))
    return z


@po.op
def guarded(x: f32[C, H, W], t: f32[F, C, 3, 3]):
    z = po.tensor("z")
    z[f, h, w] += po.when(c <= f, x.pad(0)[c, h + r - 1, w + s - 1] * t[f, c, r, s])
    return z


@po.op
def twice(x: f32[C, H], t: f32[F, C, 3]):
    """Two layers; the second reads what the first one makes."""
    y, z = po.tensors("y z")
    y[f, h] += x.pad(0)[c, h + r - 1] * t[f, c, r]
    z[f, h] += po.relu(y.pad(0)[k, h + r - 1]) * t[f, k, r]
    return z


@po.op
def depthwise(x: f32[C, H, W], t: f32[C, 3, 3]):
    z = po.tensor("z")
    z[c, h, w] += x.pad(0)[c, h + r - 1, w + s - 1] * t[c, r, s]
    return z


@po.op
def box_filter(x: f32[H, W]):
    """49 terms for each element, and one result."""
    z = po.tensor("z")
    z[h, w] = po.sum(x.pad(0)[h + far_r, w + far_s], (far_r, far_s))
    return z


@po.op
def pointwise(x: f32[N, C, H, W], t: f32[F, C, 1, 1]):
    """A window of one point."""
    z = po.tensor("z")
    z[n, f, h, w] += x.pad(0)[n, c, h + r, w + s] * t[f, c, r, s]
    return z


@po.op
def looked_up(x: f32[M, C], ids: i32[K], t: f32[C, F]):
    """Which rows it reads is data."""
    z = po.tensor("z")
    z[k, f] += x.pad(0)[ids[k], c] * t[c, f]
    return z


@po.op
def recurrent(a: f32[M, 80]):
    """Each row needs the ones before it."""
    u = po.tensor("u", shape=(M, 80))
    u[i, j] = a[i, j] + po.sum(u.pad(0)[i - 1 - k, j] * a[k, j], k)
    return u


@po.op
def partly_defined(x: f32[C, H], t: f32[F, C, 3]):
    """What the sum reads of y is defined; the rest of y is not."""
    y, z = po.tensor("y", shape=(C, H)), po.tensor("z")
    y[c, h] = po.when(c > 0, po.exp(x[c, h]))
    z[f, h] += po.when(c > 0, y.pad(0)[c, h + r - 1] * t[f, c, r])
    return z


def copies(op: po.Op, *args: Array) -> dict[str, tuple[int, ...]]:
    """Shapes of the copies with margins."""
    tensors = op.lower(*args).rewritten.tensors
    return {t.name: tuple(e.constant for e in t.shape or ()) for t in tensors if t.name.endswith("_wide")}


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


FILTERS = numbers(33, 2, 3, 3)


@pytest.mark.parametrize(
    ("op", "shape", "box"),
    [
        (padded, (1, 2, 7, 9), (1, 2, 9, 11)),
        (padded_in_order, (1, 2, 3, 18), (1, 2, 5, 20)),
        (padded, (1, 2, 1, 1), (1, 2, 3, 3)),
        (clamped, (1, 2, 4, 17), (1, 2, 6, 19)),
        (wrapped_and_turned, (1, 2, 5, 9), (1, 2, 15, 11)),
    ],
)
def test_a_sum_reads_a_copy_of_the_box_it_needs(op: po.Op, shape: tuple[int, ...], box: tuple[int, ...]) -> None:
    x = numbers(*shape)
    assert copies(op, x, FILTERS) == {"x_wide": box}
    lowering = op.lower(x, FILTERS)
    assert not any(word in str(lowering.rewritten).split("z[")[1] for word in ("pad", "clamp", "wrap"))
    np.testing.assert_array_equal(op(x, FILTERS), op.reference(x, FILTERS))
    z = np.full_like(op(x, FILTERS), np.nan)
    interpret(lowering.loops, {"x": x, "t": FILTERS, "z": z}, seed=1)
    np.testing.assert_array_equal(z, op.reference(x, FILTERS))


@pytest.mark.parametrize("height", [0, 1, 2, 8])
def test_copies_of_any_height(height: int) -> None:
    x = numbers(1, 2, height, 8)
    lowering = of_any_height.lower(x, FILTERS)
    assert lowering.fallback == "" and lowering.rewritten.tensor("x_wide").shape is not None
    assert [str(extent) for extent in lowering.rewritten.tensor("x_wide").shape or ()] == ["1", "2", "H + 2", "10"]
    np.testing.assert_array_equal(of_any_height(x, FILTERS), of_any_height.reference(x, FILTERS))


@pytest.mark.parametrize("shape", [(1, 2, 14, 14), (2, 2, 9, 20)])
def test_strides_dilations_and_an_epilogue(shape: tuple[int, ...]) -> None:
    x, b = numbers(*shape), numbers(33)
    assert "x_wide" in copies(strided_and_dilated, x, FILTERS, b)
    np.testing.assert_array_equal(
        strided_and_dilated(x, FILTERS, b), strided_and_dilated.reference(x, FILTERS, b)
    )  # fmt: skip


@pytest.mark.parametrize("op", [tropical, guarded])
def test_other_reductions_and_sums_over_part_of_their_axes(op: po.Op) -> None:
    args = (numbers(6, 21), numbers(40, 6, 3)) if op is tropical else (numbers(6, 9, 9), numbers(40, 6, 3, 3))
    args[0][..., 0] = 4
    assert "x_wide" in copies(op, *args)
    np.testing.assert_array_equal(op(*args), op.reference(*args))


def test_what_an_earlier_sum_makes_is_copied_too() -> None:
    x, t = numbers(40, 11), numbers(40, 40, 3)
    assert set(copies(twice, x, t)) == {"x_wide", "y_wide"}
    np.testing.assert_array_equal(twice(x, t), twice.reference(x, t))


def test_the_report_says_so() -> None:
    report = str(padded.lower(N=1, C=2, H=8, W=8, F=64).report())
    assert "x_wide is x with what its sum reads beyond the edges: each element counts in 368 terms" in report


@pytest.mark.parametrize(
    ("op", "args"),
    [
        (box_filter, (numbers(9, 20),)),
        (depthwise, (numbers(4, 9, 9), numbers(4, 3, 3))),
        (padded, (numbers(1, 2, 8, 8), numbers(3, 2, 3, 3))),
        (clamped_at_any_height, (numbers(1, 2, 8, 8), FILTERS)),
        (looked_up, (numbers(9, 40), np.arange(-2, 12, dtype=np.int32), numbers(40, 70))),
        (recurrent, (numbers(20, 80) / 64,)),
        (partly_defined, (numbers(4, 20) / 4, numbers(40, 4, 3))),
        (padded, (numbers(1, 0, 8, 8), numbers(33, 0, 3, 3))),
        (padded, (numbers(1, 2, 0, 8), FILTERS)),
    ],
)
def test_what_is_read_rarely_or_may_not_be_read_as_a_whole_is_not_copied(op: po.Op, args: tuple[Array, ...]) -> None:
    assert copies(op, *args) == {}
    np.testing.assert_allclose(op(*args), op.reference(*args), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("stride", [(1, 2), (-1, 1), (1, -3)])
def test_strided_images(stride: tuple[int, int]) -> None:
    x = numbers(1, 2, 12, 27)[:, :, :: stride[0], :: stride[1]]
    np.testing.assert_array_equal(padded(x, FILTERS), padded.reference(x, FILTERS))


def test_a_read_that_stays_inside_has_no_edge() -> None:
    x, t = numbers(1, 3, 8, 8), numbers(40, 3, 1, 1)
    assert copies(pointwise, x, t) == {} and "pad" not in str(pointwise.lower(x, t).rewritten)
    np.testing.assert_array_equal(pointwise(x, t), pointwise.reference(x, t))
