"""Arguments of sin, cos and tan reduced to [-pi/4, pi/4], for every finite float.

Up to `MEDIUM`, x - n pi/2 is taken with pi/2 in three parts, the first two steps without error (Cody & Waite 1980,
with fma). Beyond it, x times 2/pi is formed modulo 4 in integer arithmetic, from the bits of 2/pi that matter
(Payne & Hanek 1983; [Muller16], chapter 11); that branch is taken only where some lane needs it.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Generic, TypeVar

from polyopt.classes import dataclass
from polyopt.codegen_c.vmath import coefficients as c
from polyopt.codegen_c.vmath.builder import F64, Builder
from polyopt.codegen_c.vmath.doubled import fast_two_sum, multiply, two_product, two_sum

V = TypeVar("V")

# Least magnitude for which the bits of 2/pi are used.
MEDIUM = {"f32": 2.0**16, "f64": 2.0**25}
# Zero bits in front of the table, for arguments whose window of 2/pi starts before its first bit.
LEADING_ZEROS = 64


@dataclass(frozen=True, slots=True)
class Reduced(Generic[V]):
    """x = quadrant * pi/2 + high + low, modulo 2 pi.

    quadrant: an integer; only its two low bits mean something
    high, low: floats, |high| < pi/4 + 0.01
    """

    quadrant: V
    high: V
    low: V


def reduce(b: Builder[V], x: V) -> Reduced[V]:
    """NaN for infinities and NaN. The relative error of `high + low` is below 2**-40 (f32) and 2**-60 (f64)."""
    size = b.fabs(x)
    medium = b.const(MEDIUM[b.format.name])
    finite = b.fcmp("olt", size, b.const(math.inf))
    large = b.mask_and(b.fcmp("ogt", size, medium), finite)
    n, high, low = b.select_rare(large, lambda: _reduce_large(b, b.select(large, x, medium)), _reduce_medium(b, x))
    return Reduced(b.as_int(b.fadd(n, b.const(b.format.rounder))), high, low)


def _reduce_medium(b: Builder[V], x: V) -> tuple[V, V, V]:
    """n as a float, high and low."""
    first, second, third = c.HALF_PI[b.format.name]
    rounder = b.const(b.format.rounder)
    n = b.fsub(b.fma(x, b.const(c.TWO_OVER_PI[b.format.name][0]), rounder), rounder)
    rest = b.fma(n, b.const(-first), x)  # exact: both agree in their leading bits
    step, step_error = two_product(b, n, b.const(-second))
    high, error = two_sum(b, rest, step)
    return n, high, b.fma(n, b.const(-third), b.fadd(error, step_error))


def _reduce_large(b: Builder[V], x: V) -> tuple[V, V, V]:
    """The same for MEDIUM <= |x| < inf, through f64 and 64-bit integers."""
    w = b.wide
    x_wide = b.widen(x)
    top, rest = _times_two_over_pi(w, w.fabs(x_wide))
    rounded = w.iadd(top, w.iconst(1 << 61))
    n = _bits_to_float(w, w.lshr(rounded, w.iconst(62)))
    fraction = _as_fraction(w, w.iand(rounded, w.iconst((1 << 62) - 1)), rest)
    half_pi = w.const(c.HALF_PI["f64"][0]), w.const(c.HALF_PI["f64"][1])
    high, low = fast_two_sum(w, *multiply(w, fraction, half_pi))
    short = b.narrow(high)
    rest = b.narrow(w.fadd(w.fsub(high, b.widen(short)), low))
    negative = b.fcmp("olt", x, b.const(0.0))
    n, high, low = (b.select(negative, b.fneg(v), v) for v in (b.narrow(n), short, rest))
    return n, high, low


def _times_two_over_pi(w: Builder[V], x: V) -> tuple[V, V]:
    """The leading 128 bits of x * 2/pi modulo 4, as two words; the first bit counts 2.

    x = m 2**e with a 53-bit m: bits of 2/pi that m and 2**e turn into multiples of 4 are left out at the front, and
    192 of the rest are enough, as no f64 comes closer than 2**-62 to a multiple of pi/2.
    """
    x_bits = w.as_int(x)
    fraction = F64.fraction
    m = w.ior(w.iand(x_bits, w.iconst((1 << fraction) - 1)), w.iconst(1 << fraction))
    # the bit of weight 2**-i is wanted from i = e - 1 on; it stands at e - 2 behind the zeros of the table
    start = w.iadd(w.lshr(x_bits, w.iconst(fraction)), w.iconst(-(F64.bias + fraction) - 2 + LEADING_ZEROS))
    index = w.lshr(start, w.iconst(6))
    first, second, third = _window(w, index, w.iand(start, w.iconst(63)))
    low = w.imul(m, second)
    low_carried = w.iadd(low, _high_word(w, m, third))
    carry = w.select_int(w.icmp("ult", low_carried, low), w.iconst(1), w.iconst(0))
    return w.iadd(w.iadd(w.imul(m, first), _high_word(w, m, second)), carry), low_carried


def _window(w: Builder[V], index: V, shift: V) -> tuple[V, V, V]:
    """Three words of the table of 2/pi, from bit 64 * index + shift on."""
    words = [w.lookup(c.TWO_OVER_PI_WORDS, w.iadd(index, w.iconst(k))) for k in range(4)]
    back = w.isub(w.iconst(63), shift)
    parts = [w.ior(w.shl(left, shift), w.lshr(w.lshr(right, w.iconst(1)), back)) for left, right in pairwise(words)]
    return parts[0], parts[1], parts[2]


def _high_word(w: Builder[V], x: V, y: V) -> V:
    """The high word of a product of two unsigned words, from products of their halves."""
    mask, half = w.iconst(0xFFFFFFFF), w.iconst(32)
    x_low, x_high = w.iand(x, mask), w.lshr(x, half)
    y_low, y_high = w.iand(y, mask), w.lshr(y, half)
    low_high, high_low = w.imul(x_low, y_high), w.imul(x_high, y_low)
    middle = w.iadd(w.lshr(w.imul(x_low, y_low), half), w.iadd(w.iand(low_high, mask), w.iand(high_low, mask)))
    upper = w.iadd(w.lshr(low_high, half), w.lshr(high_low, half))
    return w.iadd(w.imul(x_high, y_high), w.iadd(upper, w.lshr(middle, half)))


def _as_fraction(w: Builder[V], top: V, rest: V) -> tuple[V, V]:
    """(top - 2**61) * 2**-62 + rest * 2**-126 as a sum of two floats; 0 <= top < 2**62.

    The words are cut in pieces of 42, 52 and 32 bits, each of which a float holds exactly.
    """
    first = w.fsub(_bits_to_float(w, w.lshr(top, w.iconst(20))), w.const(2.0**41))
    cut = w.ior(w.shl(w.iand(top, w.iconst((1 << 20) - 1)), w.iconst(32)), w.lshr(rest, w.iconst(32)))
    second = _bits_to_float(w, cut)
    third = _bits_to_float(w, w.iand(rest, w.iconst(0xFFFFFFFF)))
    high, low = fast_two_sum(w, w.fmul(first, w.const(2.0**-42)), w.fmul(second, w.const(2.0**-94)))
    return fast_two_sum(w, high, w.fma(third, w.const(2.0**-126), low))


def _bits_to_float(w: Builder[V], value: V) -> V:
    """An integer in [0, 2**52) as a float: as the fraction of a number in [2**52, 2**53)."""
    anchor = 2.0**F64.fraction
    anchor_bits = (F64.bias + F64.fraction) << F64.fraction
    return w.fsub(w.as_float(w.ior(value, w.iconst(anchor_bits))), w.const(anchor))
