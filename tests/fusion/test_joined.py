"""Axes that all arrays walk together become one, others stay apart, and the numbers are the same either way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, i32
from polyopt.loops.interpret import interpret

Array = np.ndarray[Any, Any]

N, C, F, H, W, K, L, M = po.sizes("N C F H W K L M")
n, c, f, h, w, k, l, m, r = po.indices("n c f h w k l m r")  # the axes of a tensor contraction


@po.op
def pointwise(x: f32[N, C, H, W], t: f32[F, C]):
    z = po.tensor("z")
    z[n, f, h, w] += x[n, c, h, w] * t[f, c]
    return z


@po.op
def channels_last(x: f32[N, H, W, C], t: f32[C, F]):
    z = po.tensor("z")
    z[n, h, w, f] += x[n, h, w, c] * t[c, f]
    return z


@po.op
def contracted(x: f32[M, N, K, L], y: f32[K, L, F, C]):
    z = po.tensor("z")
    z[m, n, f, c] += x[m, n, k, l] * y[k, l, f, c]
    return z


@po.op(numerics="strict")
def contracted_in_order(x: f32[M, N, K, L], y: f32[K, L, F, C]):
    z = po.tensor("z")
    z[m, n, f, c] += x[m, n, k, l] * y[k, l, f, c]
    return z


def swapped(x: f32[M, K, L], y: f32[K, L, F]):
    z = po.tensor("z")
    z[m, f] = po.sum(x[m, k, l] * y[k, l, f], (l, k))
    return z


swapped_sums, swapped_in_order = po.op(swapped), po.op(numerics="strict")(swapped)


@po.op(dynamic=["N", "H"])
def some_symbolic(x: f32[N, C, H, W], t: f32[F, C]):
    z = po.tensor("z")
    z[n, f, h, w] += x[n, c, h, w] * t[f, c]
    return z


@po.op
def with_epilogue(x: f32[N, C, H, W], t: f32[F, C], b: f32[F], u: f32[N, F, H, W], beta: f32):
    z, out = po.tensors("z out")
    z[n, f, h, w] = beta * u[n, f, h, w]
    z[n, f, h, w] += x[n, c, h, w] * t[f, c]
    out[n, f, h, w] = po.maximum(z[n, f, h, w] + b[f], 0)
    return out


@po.op
def by_row(x: f32[C, H, W], b: f32[W]):
    """The bias knows the inner axis alone."""
    z = po.tensor("z")
    z[h, w] += x[c, h, w] * b[w]
    return z


@po.op
def window(x: f32[C, H, W]):
    """Neighbours along the inner axis are not neighbours of the joined one at the end of a row."""
    z = po.tensor("z")
    z[h, w] += x[c, h, w] + x[c, h, w + 1]
    return z


@po.op
def part_of_rows(x: f32[C, H, 8]):
    z, q = po.tensor("z"), po.index("q", extent=7)
    z[h, q] += x[c, h, q]
    return z


@po.op
def guarded(x: f32[C, H, W]):
    z = po.tensor("z")
    z[h, w] += po.when(w <= h, x[c, h, w])
    return z


@po.op
def by_position(x: f32[C, H, W]):
    z = po.tensor("z")
    z[h, w] += x[c, h, w] * po.cast(w, f32)
    return z


@po.op
def turned(x: f32[C, H, W]):
    z = po.tensor("z")
    z[w, h] += x[c, h, w]
    return z


@po.op
def looked_up(ids: i32[N, H], table: f32[C, F], t: f32[F, M]):
    z = po.tensor("z")
    z[n, h, m] += table[ids[n, h], f] * t[f, m]
    return z


def shapes(op: po.Op, *args: Array) -> dict[str, tuple[int, ...]]:
    """Of the tensors after rewriting."""
    tensors = op.lower(*args).rewritten.tensors
    return {t.name: tuple(extent.constant for extent in t.shape or ()) for t in tensors}


def numbers(*shape: int) -> Array:
    """Small whole numbers: sums of their products are exact in any order."""
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


def test_the_rows_and_columns_under_a_pointwise_convolution_are_one_axis() -> None:
    x, t = numbers(2, 3, 5, 7), numbers(4, 3)
    assert shapes(pointwise, x, t) == {"x": (2, 3, 35), "t": (4, 3), "z": (2, 4, 35)}
    report = str(pointwise.lower(x, t).report())
    assert "h and w run as one axis: in x, z the next 7 points of w follow where the last end" in report


def test_axes_are_joined_as_often_as_they_can_be() -> None:
    assert shapes(channels_last, numbers(2, 3, 5, 4), numbers(4, 6))["z"] == (30, 6)
    found = shapes(contracted, numbers(2, 3, 4, 5), numbers(4, 5, 6, 7))
    assert found == {"x": (6, 20), "y": (20, 42), "z": (6, 42)}


@pytest.mark.parametrize("op", [by_row, window, part_of_rows, guarded, by_position, turned])
def test_axes_stay_apart_where_an_array_or_a_condition_knows_one_of_them(op: po.Op) -> None:
    x = numbers(3, 6, 8)
    args = (x, numbers(8)) if op is by_row else (x,)
    assert shapes(op, *args)["x"] == x.shape
    np.testing.assert_array_equal(op(*args), op.reference(*args))


def test_strict_numerics_join_summed_axes_only_in_the_order_of_the_sum() -> None:
    x, y = numbers(3, 4, 5), numbers(4, 5, 6)
    assert shapes(swapped_sums, x, y)["x"] == (3, 20)
    assert shapes(swapped_in_order, x, y)["x"] == (3, 4, 5)
    a, b = numbers(2, 3, 4, 5), numbers(4, 5, 6, 7)
    assert shapes(contracted_in_order, a, b)["x"] == (6, 20)
    wild = np.random.default_rng(0).standard_normal((2, 3, 4, 5), np.float32)
    np.testing.assert_array_equal(contracted_in_order(wild, b), contracted.reference(wild, b, numerics="strict"))


def test_arguments_with_strides_stay_as_they_are() -> None:
    x, t = numbers(2, 3, 5, 14)[..., ::2], numbers(4, 3)
    lowering = pointwise.lower(x, t)
    assert lowering.loops.arguments[0].given is None
    np.testing.assert_array_equal(pointwise(x, t), np.einsum("nchw,fc->nfhw", x, t))
    around = np.full((2, 4, 5, 9), 7, np.float32)
    pointwise(np.ascontiguousarray(x), t, out=around[..., :7])
    np.testing.assert_array_equal(around[..., :7], np.einsum("nchw,fc->nfhw", x, t))
    assert (around[..., 7:] == 7).all()


def test_a_kernel_is_called_with_the_shapes_of_its_definition() -> None:
    x, t = numbers(2, 3, 5, 7), numbers(4, 3)
    info = pointwise.lower(x, t).info
    assert [a.shape for a in info.arguments] == [(2, 3, 5, 7), (4, 3), (2, 4, 5, 7)]
    with pytest.raises(po.ShapeError):
        pointwise(x, t, out=np.empty((2, 4, 35), np.float32))
    assert "x: input, f32[2][3][5][7]" in pointwise.lower(x, t).source("c")


@pytest.mark.parametrize(
    "size", [(1, 1, 1, 1, 1), (2, 40, 3, 7, 33), (3, 5, 0, 4, 2), (2, 5, 4, 0, 2), (2, 0, 3, 3, 2)]
)
def test_every_size_gives_the_reference(size: tuple[int, ...]) -> None:
    batch, channels, rows, columns, filters = size
    x, t = numbers(batch, channels, rows, columns), numbers(filters, channels)
    np.testing.assert_array_equal(pointwise(x, t), np.einsum("nchw,fc->nfhw", x, t))
    b, u = numbers(filters), numbers(batch, filters, rows, columns)
    expected = np.maximum(3 * u + np.einsum("nchw,fc->nfhw", x, t) + b[:, None, None], 0)
    np.testing.assert_array_equal(with_epilogue(x, t, b, u, 3.0), expected)


def test_symbolic_outer_sizes_are_joined_with_inner_ones_that_are_numbers() -> None:
    for rows in (1, 6, 0):
        x, t = numbers(2, 3, rows, 5), numbers(4, 3)
        np.testing.assert_array_equal(some_symbolic(x, t), np.einsum("nchw,fc->nfhw", x, t))
    lowering = some_symbolic.lower(numbers(2, 3, 6, 5), numbers(4, 3))
    assert [len(b.shape) for b in lowering.loops.arguments] == [3, 2, 3]


def test_indices_that_are_data_may_be_joined_but_not_what_they_point_at() -> None:
    ids = np.random.default_rng(1).integers(0, 9, (3, 5)).astype(np.int32)
    table, t = numbers(9, 4), numbers(4, 6)
    with po.strict_checks():
        np.testing.assert_array_equal(looked_up(ids, table, t), table[ids] @ t)
    ids[1, 2] = 9
    with pytest.raises(po.BoundsError):
        looked_up(ids, table, t)


def test_the_interpreter_takes_arrays_that_lie_otherwise() -> None:
    x, t = numbers(2, 3, 7, 5).transpose(0, 1, 3, 2), numbers(4, 3)
    z = np.zeros((2, 7, 5, 4), np.float32).transpose(0, 3, 2, 1)
    interpret(pointwise.lower(N=2, C=3, H=5, W=7, F=4).loops, {"x": x, "t": t, "z": z}, seed=0)
    np.testing.assert_array_equal(z, np.einsum("nchw,fc->nfhw", x, t))


@pytest.mark.parametrize("boundary", ["pad", "wrap", "clamp"])
def test_a_read_past_the_edge_of_one_dimension_keeps_both(boundary: str) -> None:
    """In both joined such a place is the beginning of the next row: its value was read for the boundary's."""
    a, b = po.index("a", 0, 8), po.index("b", 0, 7)

    @po.op
    def moved(x: f32[6, 5], w: f32[40, 6, 5]):
        s, z = po.tensors("s z")
        s[n] += x[h, l] * w[n, h, l]
        z[b, a] = (x.pad(0) if boundary == "pad" else getattr(x, boundary)())[a, b]
        return s, z

    x, w = numbers(6, 5), numbers(40, 6, 5)
    _, z = moved(x, w)
    rows, columns = np.arange(8), np.arange(7)
    near = {"wrap": (rows % 6, columns % 5)}.get(boundary, (rows.clip(0, 5), columns.clip(0, 4)))
    wanted = x[np.ix_(*near)]
    if boundary == "pad":
        wanted[6:], wanted[:, 5:] = 0, 0
    np.testing.assert_array_equal(z, wanted.T)


def test_positions_under_a_filter_of_one_tap_are_one_axis_too() -> None:
    """The gradient of a 1 x 1 filter, written for any: `x[..., h + r, w + s]` with one r and one s."""
    R, S = po.sizes("R S")
    s = po.index("s")

    def of_any(x: f32[N, C, L, M], d: f32[N, F, H, W], like: f32[R, S]):
        g = po.tensor("g", shape=(F, C, R, S))
        g[f, c, r, s] += x[n, c, h + r, w + s] * d[n, f, h, w]
        return g

    op = po.op(of_any)
    assert "h_w" in str(op.lower(N=3, C=9, F=20, H=6, W=7, L=6, M=7, R=1, S=1).loops)
    assert "h_w" not in str(op.lower(N=3, C=9, F=20, H=6, W=7, L=8, M=9, R=3, S=3).loops)
    for taps in (1, 3):
        x = np.random.default_rng(1).integers(-4, 5, (3, 9, 5 + taps, 6 + taps)).astype(np.float32)
        d = np.random.default_rng(2).integers(-4, 5, (3, 20, 6, 7)).astype(np.float32)
        windows = np.lib.stride_tricks.sliding_window_view(x, (6, 7), (2, 3))
        wanted = np.einsum("ncrshw,nfhw->fcrs", windows, d)
        np.testing.assert_array_equal(op(x, d, np.zeros((taps, taps), np.float32)), wanted)
