"""Remainders and floored quotients of floats have NumPy's bits, whatever the numbers are."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f16, f32, f64
from polyopt.dtypes import DType

Array = np.ndarray[Any, Any]

N = po.size("N")
n = po.index("n")

COUNT = 20_000


def operator_of(dtype: DType) -> po.Op:
    @po.op
    def divmod_(x: dtype[N], y: dtype[N]):
        remainder, quotient = po.tensors("remainder quotient")
        remainder[n] = x[n] % y[n]
        quotient[n] = x[n] // y[n]
        return remainder, quotient

    return divmod_


def anything(kind: type[Any], random: np.random.Generator) -> Array:
    return np.frombuffer(random.bytes(COUNT * np.dtype(kind).itemsize), kind)


def pairs(kind: type[Any], random: np.random.Generator) -> list[tuple[Array, Array]]:
    """Special numbers with each other, any bits, and numerators at and beside multiples of the denominator."""
    limits = np.finfo(kind)
    special = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, limits.max, -limits.max, limits.tiny, -limits.tiny]
    special += [limits.smallest_subnormal, 3, 0.1, 1.5, 7, limits.eps, 1 + limits.eps, 2.0**limits.nmant]
    x, y = map(np.array, zip(*itertools.product(np.array(special, kind), repeat=2), strict=True))
    found = [(x, y)]
    found.append((anything(kind, random), anything(kind, random)))
    for bits in (3, limits.nmant, limits.nmant + 1, limits.nmant + 4):
        y = (random.random(COUNT) * 10 + 0.1).astype(kind)
        multiples: Array = (random.integers(1, 1 << bits, COUNT) * y.astype(np.float64)).astype(kind)
        for x in (multiples, np.nextafter(multiples, kind(0)), np.nextafter(multiples, kind(np.inf))):
            found += [(x, y), (-x, y), (x, -y)]
    return found


@pytest.mark.parametrize(("dtype", "kind"), [(f16, np.float16), (f32, np.float32), (f64, np.float64)])
def test_they_are_exact(dtype: DType, kind: type[Any]) -> None:
    operator, whole = operator_of(dtype), np.dtype(f"u{np.dtype(kind).itemsize}")
    with np.errstate(all="ignore"):
        for x, y in pairs(kind, np.random.default_rng(0)):
            for found, wanted in zip(operator(x, y), (x % y, x // y), strict=True):
                same = (found.view(whole) == wanted.view(whole)) | (np.isnan(found) & np.isnan(wanted))
                first = np.flatnonzero(~same)[:1]
                assert same.all(), f"{x[first]} by {y[first]} gives {found[first]}, not {wanted[first]}"


@pytest.mark.parametrize("count", [1, 7, 16, 33])
def test_lanes_that_need_the_long_way_do_not_disturb_the_others(count: int) -> None:
    x = np.random.default_rng(count).random(count).astype(np.float32) * 8
    x[::5] = 1e30
    y = np.full(count, 0.7, np.float32)
    remainder, quotient = operator_of(f32)(x, y)
    np.testing.assert_array_equal(remainder, x % y)
    np.testing.assert_array_equal(quotient, x // y)
