"""Loops of open lengths cut where subscripts wrap around or meet an end: where, and that all points stay right."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import polyopt as po
from polyopt import f32, i32
from polyopt.loops.ir import For, walk

H, N, W = po.sizes("H N W")
h, j, w = po.indices("h j w")
i = po.index("i", extent=N)


@po.op(dynamic=True)
def rolled(x: f32[N]):
    y = po.tensor("y")
    y[i] = x.wrap()[i - 100]
    return y


@po.op(dynamic=True)
def life(u: i32[H, W]):
    v, r = po.tensor("v"), u.wrap()
    v[h, w] = r[h - 1, w] + r[h + 1, w] + r[h, w - 1] + r[h, w + 1] + 2 * u[h, w]
    return v


@po.op(dynamic=True)
def clamped(x: f32[N]):
    y = po.tensor("y")
    y[i] = x.clamp()[i - 1] + 2 * x[i] + x.clamp()[i + 2]
    return y


def loops_of(op: po.Op) -> list[str]:
    return [f"{loop.lower} {loop.upper}" for loop in walk(op.lower().loops.body) if isinstance(loop, For)]


def test_most_points_have_no_remainder() -> None:
    text = str(rolled.lower().loops)
    strip = "for i in range(min(max(100, i_tile), min(N, i_tile + 4096)), min(N, i_tile + 4096)):"
    assert strip in text and "x[i - 100]" in text
    assert "x[N + i - 100]" in text
    assert text.count("%") == 1, "where more than a whole row lies between, at sizes below 100"
    assert "%" not in str(life.lower().loops).replace("% H", ""), "the row is the same for all lanes"


def test_most_points_meet_no_end() -> None:
    text = str(clamped.lower().loops)
    assert "max(i" not in text and "min(i" not in text
    assert len(loops_of(clamped)) == 5, "of strips, and four inside"


@pytest.mark.parametrize("mode", ["wrap", "clamp"])
def test_points_away_from_the_ends_ask_nothing_at_many_distances(mode: str) -> None:
    """There are more cuts than a loop may have: those that most points need come first, and a note tells the rest."""

    @po.op(dynamic=True)
    def stencil(x: f32[N]):
        y, near = po.tensor("y"), x.wrap() if mode == "wrap" else x.clamp()
        y[i] = near[i - 1] + near[i + 1] + near[i - 2] + near[i + 2] + near[i - 3] + near[i + 3]
        return y

    inner = "x[i - 1] + x[i + 1] + x[i - 2] + x[i + 2] + x[i - 3] + x[i + 3]"
    assert inner in str(stencil.lower().loops)
    assert "i: subscripts wrap around or meet an end at more places" in str(stencil.lower().report())
    assert "wrap around" not in str(life.lower().report()), "which has all cuts"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 9, 16, 17, 33, 50, 99, 100, 101, 250])
def test_rolls_of_all_sizes(size: int) -> None:
    x = np.arange(size, dtype=np.float32)
    assert_array_equal(rolled(x), np.roll(x, 100))
    at = np.arange(size)
    assert_array_equal(clamped(x), x[np.maximum(at - 1, 0)] + 2 * x + x[np.minimum(at + 2, size - 1)])


@pytest.mark.parametrize("shape", [(1, 1), (1, 5), (2, 3), (3, 2), (17, 33), (40, 64), (5, 100)])
def test_both_axes_of_a_grid(shape: tuple[int, int]) -> None:
    u = np.random.default_rng(0).integers(0, 9, shape).astype(np.int32)
    around = np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1)
    assert_array_equal(life(u), around + 2 * u)


@pytest.mark.parametrize("seed", range(30))
def test_random_neighbors(seed: int) -> None:
    """Reads at several distances, forwards and backwards, periodic, clamped and padded, of two rows of open lengths."""
    random = Random(seed)
    terms = [
        (
            random.choice(["wrap", "clamp", "pad"]),
            random.choice([1, 1, -1]),
            random.randint(-9, 9),
            random.randint(0, 1),
        )
        for _ in range(random.randint(1, 4))
    ]
    extra = random.randint(0, 3)

    @po.op(dynamic=True)
    def op(x: i32[N], z: i32[W]):
        y, at = po.tensor("y"), po.index("at", extent=N + extra)
        total: Any = 0
        for mode, slope, shift, which in terms:
            own = (x, z)[which]
            read = {"wrap": own.wrap, "clamp": own.clamp, "pad": lambda own=own: own.pad(5)}[mode]()
            total = total + read[at * slope + shift]
        y[at] = total
        return y

    def expected(x: Any, z: Any) -> Any:
        at = np.arange(len(x) + extra)
        total = np.zeros(len(at), np.int32)
        for mode, slope, shift, which in terms:
            own, place = (x, z)[which], at * slope + shift
            inside = (place >= 0) & (place < len(own))
            near = own[place % len(own)] if mode == "wrap" else own[np.clip(place, 0, len(own) - 1)]
            total += np.where(inside, near, 5) if mode == "pad" else near
        return total

    for _ in range(40):
        sizes = [random.choice([1, 2, 3, random.randint(1, 20), random.randint(1, 70)]) for _ in range(2)]
        x, z = (np.random.default_rng(size).integers(0, 99, size).astype(np.int32) for size in sizes)
        assert_array_equal(op(x, z), expected(x, z), err_msg=f"{terms} {sizes}")
