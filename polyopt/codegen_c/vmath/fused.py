"""The fused multiply-add of NumPy arrays: `a * b + c` rounded once, for every operand.

Both rest on rounding to odd: of the two neighbors of an inexact value, the one whose last bit is 1. A value rounded
to odd with at least two bits to spare rounds on to the nearest as the exact value would.
Source: [BM08] Boldo & Melquiond, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding to
odd", IEEE Transactions on Computers 57(4), 2008.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Terms further apart than this many binades meet only in the direction of a rounding.
FAR = 200
# Exponents beyond this are past overflow or underflow for any of the values here.
EXTREME = 2200


def fma32(a: Array, b: Array, c: Array) -> Array:
    """Of f32 arrays: the product is exact in f64, and so is its sum with c but for a rounding to odd."""
    with np.errstate(all="ignore"):
        product = np.multiply(a, b, dtype=np.float64)
        return _sum_to_odd(product, c.astype(np.float64)).astype(np.float32)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """Of f64 arrays: by error-free transformations where nothing overflows or underflows, else on scaled operands."""
    a, b, c = np.broadcast_arrays(a, b, c)
    with np.errstate(all="ignore"):
        no_product = (a == 0) | (b == 0)
        result = np.where(no_product, a * b + c, _round_once(*_exact_terms(a, b, c)))
        rest = np.nonzero(~(no_product | _is_moderate(a, b, c)))
        if rest[0].size:
            result[rest] = _fma64_at_edges(a[rest], b[rest], c[rest])
    return result


def _is_moderate(a: Array, b: Array, c: Array) -> Array:
    """Where products, their errors and sums are in the normal range."""
    product = np.abs(a * b)
    bounded = (np.abs(a) < 2.0**990) & (np.abs(b) < 2.0**990) & (np.abs(c) < 2.0**1020) & (product < 2.0**1020)
    return np.asarray(bounded & (product > 2.0**-900))


def _fma64_at_edges(a: Array, b: Array, c: Array) -> Array:
    """The same near overflow and underflow, and for infinities and NaN; a and b are not 0."""
    result = _fma64_scaled(a, b, c)
    result = np.where(c == 0, a * b, result)
    result = np.where(np.isfinite(c), result, c)
    return np.where(np.isfinite(a) & np.isfinite(b), result, a * b + c)


def _fma64_scaled(a: Array, b: Array, c: Array) -> Array:
    """Of finite operands that are not 0: their exponents are taken out, and put back at the end."""
    (a, a_exponent), (b, b_exponent), (c, c_exponent) = np.frexp(a), np.frexp(b), np.frexp(c)
    scale = a_exponent.astype(np.int64) + b_exponent
    distance = c_exponent - scale
    scale = np.where(distance > FAR, c_exponent - FAR, scale)
    value, rest = _exact_terms(a, b, np.ldexp(c, np.clip(distance, -FAR, FAR)))
    result = _times_power_of_two(_round_once(value, rest), scale)
    subnormal = (np.abs(result) < 2.0**-1022) & ((value != 0) | (rest != 0))
    return np.where(subnormal, _round_as_subnormal(value, rest, scale), result)


def _round_as_subnormal(value: Array, rest: Array, scale: Array) -> Array:
    """(value + rest) * 2**scale, rounded to a multiple of the least number 2**-1074.

    Next to an anchor of 2**52 such multiples, that is where a sum of f64 numbers is rounded.
    """
    sign = _round_once(value, rest)
    anchor = np.copysign(np.ldexp(1.0, np.clip(52 - 1074 - scale, -1000, 1000)), sign)
    anchored, left = _two_sum(anchor, value)
    multiple = _round_once(anchored, _sum_to_odd(left, rest)) - anchor
    return np.copysign(_times_power_of_two(multiple, scale), sign)


def _exact_terms(a: Array, b: Array, c: Array) -> tuple[Array, Array]:
    """`a * b + c` as a float, and what it lacks, rounded to odd."""
    product, product_error = _two_product(a, b)
    low, low_error = _two_sum(c, product_error)
    value, error = _two_sum(product, low)
    return value, _sum_to_odd(low_error, error)


def _round_once(value: Array, rest: Array) -> Array:
    return np.asarray(value + rest)


def _times_power_of_two(value: Array, exponent: Array) -> Array:
    """`value * 2**exponent` for any exponent, in two steps, since one may exceed what `ldexp` takes exactly."""
    exponent = np.clip(exponent, -EXTREME, EXTREME)
    half = exponent // 2
    return np.asarray(np.ldexp(np.ldexp(value, half), exponent - half))


def _sum_to_odd(a: Array, b: Array) -> Array:
    """`a + b` rounded to odd."""
    total, error = _two_sum(a, b)
    bits = total.view(np.int64)
    to_move = np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    outwards = (error > 0) == (total > 0)
    odd: Array = np.where(to_move, bits + np.where(outwards, 1, -1), bits)
    return odd.view(np.float64)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """`a + b` and its rounding error (Knuth)."""
    total = np.asarray(a + b)
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """`a * b` and its rounding error (Dekker, with Veltkamp's splitting)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _halves(a: Array) -> tuple[Array, Array]:
    """a as a sum of two numbers of at most 26 bits."""
    scaled = a * (2.0**27 + 1)
    high = scaled - (scaled - a)
    return high, a - high
