"""How many iterations run at once: as elements fit in a vector, and narrow ones that come one by one in half of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import polyopt as po
from polyopt import f32, i32, i64, u8, u16

M, N, K = po.sizes("M N K")
i, j = po.index("i", extent=M), po.index("j", extent=N)


@po.op
def table(x: u8[N], values: u8[256]):
    y = po.tensor("y")
    y[j] = values[po.cast(x[j], i64)]
    return y


@po.op
def picked(x: u16[K], ids: i32[N]):
    y = po.tensor("y")
    y[j] = x[ids[j]] + 1
    return y


@po.op
def rows(x: u8[K, N], ids: i32[M]):
    y = po.tensor("y")
    y[i, j] = x[ids[i], j]
    return y


@po.op
def wide(x: u8[N], values: f32[256]):
    y = po.tensor("y")
    y[j] = values[po.cast(x[j], i64)]
    return y


@pytest.mark.parametrize(("op", "sizes", "lanes"), [(table, {}, 16), (picked, {"K": 50}, 8), (rows, {"K": 5}, 64)])
def test_narrow_elements_that_lanes_find_alone_come_in_short_vectors(
    op: po.Op, sizes: dict[str, int], lanes: int
) -> None:
    text = op.lower(N=4096, **sizes, **({"M": 3} if op is rows else {}), target="avx512").module.text
    bits = 16 if op is picked else 8
    assert f"<{lanes} x i{bits}>" in text
    assert f"<{2 * lanes} x i{bits}>" not in text


def test_wide_elements_keep_whole_vectors() -> None:
    assert "<16 x float>" in wide.lower(N=4096, target="avx512").module.text


@pytest.mark.parametrize("count", [1, 15, 16, 17, 100])
def test_they_are_right(count: int) -> None:
    draw: Any = np.random.default_rng(count).integers
    x, values = draw(0, 256, count).astype(np.uint8), draw(0, 256, 256).astype(np.uint8)
    assert_array_equal(table(x, values), values[x])
    numbers, ids = draw(0, 60000, 50).astype(np.uint16), draw(0, 50, count).astype(np.int32)
    assert_array_equal(picked(numbers, ids), numbers[ids] + 1)
    many = draw(0, 256, (5, count)).astype(np.uint8)
    assert_array_equal(rows(many, ids[:3] % 5), many[ids[:3] % 5])
