"""Integers in 16 bits: where every number fits, and nowhere else; the results are those of the definition."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, i8, i16, i32, i64, u8, u16, u32
from polyopt.dsl import ir
from polyopt.dtypes import DType
from polyopt.fusion.narrowed import narrow
from polyopt.target import preset

N, H, W = po.sizes("N H W")
i, h, w = po.indices("i h w")
NARROW = (u8, i8, u16, i16)


def widths(op: po.Op, *args: Any) -> set[int]:
    """Bits of the integers that the rewritten program computes with."""
    lowering = op.lower(*args, target=preset("avx2"))
    nodes = (node for e in lowering.rewritten.equations for expr in e.exprs for node in ir.walk(expr))
    return {node.dtype.bits for node in nodes if isinstance(node, ir.Op) and node.dtype.is_integer}


def every(dtype: DType, length: int = 4099) -> Any:
    """Numbers of a dtype, its least and greatest among them, next to each other in all ways."""
    info = np.iinfo(dtype.numpy)
    numbers = np.random.default_rng(5).integers(info.min, info.max, length, dtype.numpy, endpoint=True)
    ends = np.array([info.min, info.max, 0, 1, info.max // 2], dtype.numpy)
    numbers[: 5 * 60] = np.random.default_rng(6).choice(ends, 300)
    return numbers


def check(op: po.Op, *args: Any) -> None:
    np.testing.assert_array_equal(op(*args), op.reference(*args))


@po.op
def blurred(x: u8[H, W]):
    y = po.tensor("y")
    left, middle, right = (po.cast(x[h, w + k], i32) for k in range(3))
    y[h, w] = po.cast((left + 2 * middle + right + 2) // 4, u8)
    return y


@po.op
def gray(x: u8[H, W, 3]):
    y = po.tensor("y")
    red, green, blue = (po.cast(x[h, w, k], i64) for k in range(3))
    y[h, w] = po.cast((77 * red + 150 * green + 29 * blue) >> 8, u8)
    return y


def test_pixels_are_averaged_in_16_bits() -> None:
    x = every(u8).reshape(-1)[:4080].reshape(60, 68)
    assert widths(blurred, x) == {16}
    check(blurred, x)
    image = every(u8, 60 * 20 * 3).reshape(60, 20, 3)
    assert widths(gray, image) == {16}, "255 times 256 fits u16"
    check(gray, image)


def test_window_sums_of_known_length_are_narrow_too() -> None:
    three = po.index("three", extent=3), po.index("three_more", extent=3)

    @po.op
    def boxed(x: u8[H, W]):
        y = po.tensor("y")
        total = po.sum(po.cast(x[h + three[0], w + three[1]], i32), three)
        y[h, w] = po.cast(total // 9, u8)
        return y

    x = every(u8, 60 * 68).reshape(60, 68)
    assert widths(boxed, x) == {16}
    check(boxed, x)


def test_differences_are_compared_in_16_bits() -> None:
    @po.op
    def moved(x: u8[N], y: u8[N]):
        z = po.tensor("z")
        z[i] = po.where(po.abs(po.cast(x[i], i32) - po.cast(y[i], i32)) > 40, x[i], y[i])
        return z

    @po.op
    def weighed(x: u8[N], y: u8[N], least: i32, v: f32[N]):
        far, z = po.tensors("far z")
        apart = po.abs(po.cast(x[i], i32) - po.cast(y[i], i32))
        far[i] = po.cast(po.where(apart > least, apart, 0), u8)  # the number of the call has 32 bits
        z[i] = po.where(apart > 40, v[i], -v[i])  # no more lanes than of f32
        return far, z

    x, y = every(u8), every(u8)[::-1].copy()
    assert max(widths(moved, x, y)) == 16
    check(moved, x, y)
    arguments = x, y, 30, np.linspace(-1, 1, len(x), dtype=np.float32)
    assert widths(weighed, *arguments) == {32}
    for found, expected in zip(weighed(*arguments), weighed.reference(*arguments), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("factor", [127, 128, 129, 257, 258, -128, -129])
def test_no_number_leaves_16_bits(factor: int) -> None:
    """Of u8, 128 times fits i16 and 257 times u16."""

    @po.op
    def scaled(x: u8[N]):
        y = po.tensor("y")
        y[i] = po.cast(po.cast(x[i], i32) * factor // 256, i16)
        return y

    x = every(u8)
    assert widths(scaled, x) == ({16} if -128 <= factor <= 257 else {32})
    check(scaled, x)


def test_partial_results_must_fit_as_well() -> None:
    @po.op
    def over(x: i16[N], y: i16[N]):
        z = po.tensor("z")
        z[i] = po.cast((po.cast(x[i], i32) + po.cast(y[i], i32)) // 2, i16)
        return z

    @po.op
    def apart(x: u16[N], y: u16[N]):
        z = po.tensor("z")
        z[i] = po.cast(po.abs(po.cast(x[i], i32) - po.cast(y[i], i32)), u16)
        return z

    assert widths(over, every(i16), every(i16)) == {32}
    check(over, every(i16), every(i16)[::-1].copy())
    assert widths(apart, every(u16), every(u16)) == {32}
    check(apart, every(u16), every(u16)[::-1].copy())


def test_what_wraps_in_fewer_bits_has_all_of_their_range() -> None:
    """`-x` of u8 is up to 255, though exactly it is none above 0."""

    @po.op
    def wrapped(x: u8[N], y: i8[N]):
        z, v = po.tensors("z v")
        z[i] = po.cast((po.cast(-x[i], i32) * 128 + 200) // 4, i16)
        v[i] = po.cast((po.cast(y[i] * y[i], i32) + po.cast(po.cast(x[i], i8), i32) * 250) // 3, i16)
        return z, v

    x, y = every(u8), every(i8)
    for found, expected in zip(wrapped(x, y), wrapped.reference(x, y), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_divisors_that_differ_from_lane_to_lane_stay_wide() -> None:
    """Vectors of 16 bits would be taken apart for them."""

    @po.op
    def ratio(x: u8[N], y: u8[N]):
        z, v = po.tensors("z v")
        a, b = po.cast(x[i], i32), po.cast(y[i], i32)
        z[i] = po.cast(a * 100 // (b + 1), i16)
        v[i] = po.cast(a * 100 % b, i16)
        return z, v

    x, y = every(u8), every(u8)[::-1].copy()
    assert widths(ratio, x, y) == {32}
    for found, expected in zip(ratio(x, y), ratio.reference(x, y), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_long_chains_take_no_longer_than_their_length() -> None:
    @po.op
    def chained(x: u8[N], y: u8[N]):
        z = po.tensor("z")
        value = x[i]
        for _ in range(40):
            value = po.cast(po.cast(value, i32) + (po.cast(y[i], i32) * 150 >> 8), u8)
        z[i] = value
        return z

    x, y = every(u8), every(u8)[::-1].copy()
    start = time.process_time()
    assert widths(chained, x, y) == {16}
    assert time.process_time() - start < 20, "each of them twice as long as the one before takes hours"
    check(chained, x, y)


def test_what_wraps_in_more_bits_is_left_alone() -> None:
    """-1 as u32 is the greatest number of 32 bits, and a third of it is no -1."""

    @po.op
    def divided(x: i8[N]):
        z = po.tensor("z")
        z[i] = po.cast(po.cast(x[i], u32) // 3, u16)
        return z

    check(divided, every(i8))


@pytest.mark.parametrize("name", ["add", "sub", "mul", "floordiv", "mod", "shift", "bits", "least", "chosen"])
@pytest.mark.parametrize("dtype", [u8, i8])
def test_every_operation_gives_the_reference(name: str, dtype: DType) -> None:
    @po.op
    def computed(x: dtype[N], y: dtype[N]):
        z = po.tensor("z")
        a, b = po.cast(x[i], i32), po.cast(y[i], i32)
        values = {
            "add": a + b - 3,
            "sub": 7 - a - b,
            "mul": a * b // 4 if dtype == i8 else a * b,
            "floordiv": (a + 1) // 9 + b // -7,
            "mod": (a - b) % 11 + a % -5,
            "shift": (a >> (b & 31)) + ((a & 15) << (b & 3)),
            "bits": (a & b) + (a | 3) - (a ^ b),
            "least": po.minimum(a - b, 9) + po.maximum(po.abs(a), b),
            "chosen": po.where(a > b, a - b, -b),
        }
        z[i] = po.cast(values[name], i16)
        return z

    x, y = every(dtype), every(dtype)[::-1].copy()
    check(computed, x, y)
    if name != "shift":
        assert widths(computed, x, y) == {16}


def drawn(draw: random.Random, x: Any, y: Any, wide: DType, depth: int) -> Any:
    """A random expression of wide integers over two tensors of narrow ones."""
    if depth == 0 or draw.random() < 0.2:
        read = draw.choice([x[i], y[i], x[i + 1], y[i + 2], -x[i], x[i] * y[i], po.cast(y[i], draw.choice(NARROW))])
        return po.cast(read, wide)
    a, b = drawn(draw, x, y, wide, depth - 1), drawn(draw, x, y, wide, depth - 1)
    number = draw.choice([1, 2, 3, 4, 7, 9, 16, -3, -4, 100, 128, 255, 256])
    made = (
        lambda: a + b, lambda: a - b, lambda: a * b, lambda: a // b, lambda: a % b, lambda: a & b, lambda: a | b,
        lambda: a ^ b, lambda: -a, lambda: po.abs(a), lambda: po.minimum(a, b), lambda: po.maximum(a, b),
        lambda: a >> (b & 31), lambda: (a & 15) << (b & 15), lambda: po.where(a > b, a, b + 1), lambda: a + number,
        lambda: a * number, lambda: a // number,
    )  # fmt: skip
    return draw.choice(made)()


@pytest.mark.parametrize("seed", range(4))
def test_random_arithmetic_gives_the_reference(seed: int) -> None:
    draw, narrowed = random.Random(seed), 0
    for _ in range(12):
        first, second, wide, result = (draw.choice(of) for of in (NARROW, NARROW, (i32, i64, u32), NARROW))

        @po.op
        def computed(x: first[N], y: second[N], draw=draw, wide=wide, result=result):
            z = po.tensor("z")
            z[i] = po.cast(drawn(draw, x, y, wide, draw.choice([1, 2, 3])), result)
            return z

        x, y = every(first, 400), every(second, 400)[::-1].copy()
        try:
            narrowed += 16 in widths(computed, x, y)
            check(computed, x, y)
        except (po.PolyoptError, OverflowError):
            continue  # a number that the dtype does not hold, say
    assert narrowed > 0


def test_numbers_that_wide_results_take_stay_wide() -> None:
    @po.op
    def wide(x: u8[N], y: f32[N]):
        z, v = po.tensors("z v")
        z[i] = po.cast(x[i], i32) * 3
        v[i] = po.cast(po.cast(x[i], i32) + 1, f32) * y[i]
        return z, v

    lowering = wide.lower(N=100)
    assert narrow(lowering.program).program is lowering.program
    assert "16 bits" not in str(lowering.report())


def test_strict_numerics_and_edges() -> None:
    @po.op(numerics="strict")
    def padded(x: u8[H, W]):
        y = po.tensor("y")
        rows, columns = po.index("rows", extent=H), po.index("columns", extent=W)
        around = po.cast(x.pad(0)[rows - 1, columns], i32) + po.cast(x.clamp()[rows, columns + 1], i32)
        y[rows, columns] = po.cast(around // 2, u8)
        return y

    x = every(u8, 60 * 68).reshape(60, 68)
    assert widths(padded, x) == {16}
    check(padded, x)
