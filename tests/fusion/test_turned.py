"""Contractions whose axes no array walks together read and write copies that do, where that pays."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, f32, i32
from polyopt.target import preset

Array = np.ndarray[Any, Any]

N, M, B, C, O, H, W, K = po.sizes("N M B C O H W K")
a, b, c, d, e, f, o, h, w, k, r, s = po.indices("a b c d e f o h w k r s")


def four_axes(x: f32[M, N, M, N], y: f32[N, M, N, M]):
    z = po.tensor("z")
    z[a, b, c, d] += x[a, e, b, f] * y[f, c, e, d]
    return z


contraction, in_order = po.op(four_axes), po.op(numerics="strict")(four_axes)


@po.op
def defined_by_a_sum(x: f32[M, N, M, N], y: f32[N, M, N, M]):
    z = po.tensor("z")
    z[a, b, c, d] = po.sum(x[a, e, b, f] * y[f, c, e, d], (e, f))
    return z


@po.op
def narrow(x: bf16[M, N, M, N], y: bf16[N, M, N, M]):
    z = po.tensor("z")
    z[a, b, c, d] += x[a, e, b, f] * y[f, c, e, d]
    return z


@po.op
def onto_a_start(x: f32[M, N, M, N], y: f32[N, M, N, M]):
    z = po.tensor("z")
    z[a, b, c, d] = a - d
    z[a, b, c, d] += x[a, e, b, f] * y[f, c, e, d]
    return z


@po.op
def batch_of_images(x: f32[B, C, H, W], t: f32[O, C], bias: f32[O]):
    y, z = po.tensors("y z")
    y[b, o, h, w] += x[b, c, h, w] * t[o, c]
    z[b, o, h, w] = po.relu(y[b, o, h, w] + bias[o])
    return z


@po.op
def windows(x: i32[B, C, H, W], t: i32[O, C, 3, 3]):
    """Products of integers, whose lanes stay along rows."""
    y = po.tensor("y", shape=(B, O, H, W))
    y[b, o, h, w] += x.pad(0)[b, c, h + r - 1, w + s - 1] * t[o, c, r, s]
    return y


@po.op
def integers(x: i32[B, C, H, W], t: i32[O, C]):
    y = po.tensor("y")
    y[b, o, h, w] += x[b, c, h, w] * t[o, c]
    return y


def arrays(*shapes: tuple[int, ...], dtype: Any = np.float32) -> list[Array]:
    """Small whole numbers, whose sums are exact in any order."""
    random = np.random.default_rng(len(shapes))
    return [random.integers(-4, 5, shape).astype(dtype) for shape in shapes]


def shapes(op: po.Op, *args: Array) -> dict[str, tuple[int, ...]]:
    """Of the tensors of the program that is scheduled."""
    tensors = op.lower(*args, target=preset("avx2")).rewritten.tensors
    return {t.name: tuple(e.constant for e in t.shape or ()) for t in tensors}


FOUR = (17, 20, 17, 20), (20, 17, 20, 17)


def test_axes_of_a_kind_lie_side_by_side_and_run_as_one() -> None:
    args = arrays(*FOUR)
    found = shapes(contraction, *args)
    assert (found["x_turned"], found["y_turned"], found["z"]) == ((289, 400), (400, 289), (289, 289))
    report = str(contraction.lower(*args, target=preset("avx2")).report())
    assert "z is summed from copies in which its columns c, d lie side by side, so that 289 of them run as" in report
    np.testing.assert_array_equal(contraction(*args), np.einsum("aebf,fced->abcd", *args, optimize=True))


def test_a_definition_by_a_sum_is_turned_too() -> None:
    args = arrays(*FOUR)
    assert shapes(defined_by_a_sum, *args)["y_turned"] == (400, 289)
    np.testing.assert_array_equal(defined_by_a_sum(*args), np.einsum("aebf,fced->abcd", *args, optimize=True))


def test_narrow_operands_are_copied_as_they_are() -> None:
    args = arrays(*FOUR, dtype=bf16.numpy)
    assert shapes(narrow, *args)["y_turned"] == (400, 289)
    exact = np.einsum("aebf,fced->abcd", *(one.astype(np.float32) for one in args), optimize=True)
    np.testing.assert_allclose(narrow(*args).astype(np.float32), exact, rtol=2**-8)


def test_a_result_that_is_summed_onto_keeps_its_place() -> None:
    args = arrays(*FOUR)
    found = shapes(onto_a_start, *args)
    assert "y_turned" in found and "z_turned" not in found
    start = np.arange(17)[:, None, None, None] - np.arange(17)
    np.testing.assert_array_equal(
        onto_a_start(*args), start + np.einsum("aebf,fced->abcd", *args, optimize=True).astype(np.float32)
    )


@pytest.mark.parametrize(("channels", "places"), [(512, (3, 3)), (400, (1, 17)), (301, (1, 9))])
def test_the_places_of_a_batch_are_one_row_of_columns(channels: int, places: tuple[int, int]) -> None:
    x, t, bias = arrays((6, channels, *places), (200, channels), (200,))
    columns = 6 * places[0] * places[1]
    assert shapes(batch_of_images, x, t, bias)["y_turned"] == (200, columns)
    expected = np.einsum("bchw,oc->bohw", x, t) + bias[:, None, None]
    np.testing.assert_array_equal(batch_of_images(x, t, bias), np.maximum(expected, 0))
    whole = [one.astype(np.int32) for one in (x, t)]
    assert shapes(integers, *whole)["y_turned"] == (200, columns)
    np.testing.assert_array_equal(integers(*whole), np.einsum("bchw,oc->bohw", *whole))


def test_columns_of_windows_are_written_side_by_side_at_once() -> None:
    x, t = arrays((4, 33, 3, 3), (130, 33, 3, 3), dtype=np.int32)
    found = shapes(windows, x, t)
    assert found["x_wide_columns"] == (297, 36)
    assert not any("columns_turned" in name for name in found)
    np.testing.assert_array_equal(windows(x, t), windows.reference(x, t))


def test_where_a_block_begins_in_a_batch_is_found_once_and_not_for_each_term() -> None:
    x, t = arrays((4, 33, 5, 5), (130, 33, 3, 3), dtype=np.int32)
    lines = str(windows.lower(x, t, target=preset("avx2")).loops).splitlines()
    (written,) = (n for n, line in enumerate(lines) if line.lstrip().startswith("x_wide_columns_packed["))
    axes = [re.findall(r"for (\w+) in", line)[0] for line in lines[written - 7 : written]]
    assert axes == ["b", "c_tile", "h", "c", "r", "s", "w"]  # and where a row begins and ends, once for eight channels
    np.testing.assert_array_equal(windows(x, t), windows.reference(x, t))


def test_what_is_long_enough_few_or_in_order_stays() -> None:
    assert "y_turned" not in shapes(in_order, *arrays(*FOUR))
    assert "y_turned" not in shapes(contraction, *arrays((32, 4, 32, 4), (4, 32, 4, 32)))
    x, t, bias = arrays((6, 20, 5, 5), (8, 20), (8,))
    assert "y_turned" not in shapes(batch_of_images, x, t, bias)  # the copies would cost more
    np.testing.assert_array_equal(in_order(*arrays(*FOUR)), in_order.reference(*arrays(*FOUR), numerics="strict"))


def test_an_operand_that_says_where_another_equation_adds_is_copied() -> None:
    """What was read for places was overlooked: its axes changed order for the contraction alone."""
    bins = po.size("bins")
    a, b, c, d, e, f = po.indices("a b c d e f")

    @po.op
    def counted(x: po.i32[60, 12, 60, 12], y0: po.i32[12, 12, 12, 5], like: po.i64[bins]):
        y, z = po.tensors("y z")
        h = po.tensor("h", shape=(bins,))
        y[f, c, e, d] = (y0[f, c, e, d] * y0[f, c, e, d] + 3) % 61
        z[a, b, c, d] += x[a, e, b, f] * y[f, c, e, d]
        h[y[f, c, e, d]] += f + 100 * e
        return z, h

    random = np.random.default_rng(0)
    x = random.integers(-5, 5, (60, 12, 60, 12)).astype(np.int32)
    y0 = random.integers(0, 50, (12, 12, 12, 5)).astype(np.int32)
    y = (y0 * y0 + 3) % 61
    wanted = np.zeros(64, np.int64)
    fs, _, es, _ = np.indices(y.shape)
    np.add.at(wanted, y, fs + 100 * es)
    z, h = counted(x, y0, np.zeros(64, np.int64))
    np.testing.assert_array_equal(h, wanted)
    np.testing.assert_array_equal(z, np.einsum("aebf,fced->abcd", x, y))
