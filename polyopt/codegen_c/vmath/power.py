"""pow, with every special case of C's Annex F.

|x|**y = 2**(y log2 |x|). The product loses as many bits as its exponent has, so log2 is computed with more precision
than the result has: for f32 in f64, for f64 as a sum of two floats.
"""

from __future__ import annotations

import math
from typing import TypeVar

from polyopt.codegen_c.vmath import coefficients as c
from polyopt.codegen_c.vmath.builder import F32, F64, Builder, polynomial
from polyopt.codegen_c.vmath.doubled import fast_two_sum, multiply, two_product
from polyopt.codegen_c.vmath.exponential import EXP2_RANGE, clamp, double_bias, rounder_with, scale
from polyopt.codegen_c.vmath.logarithm import normalise, split

V = TypeVar("V")


def pow(b: Builder[V], x: V, y: V) -> V:  # noqa: A001  # C's name
    """x**y. Error < 1 ulp."""
    size = b.fabs(x)
    value = _positive_f32(b, size, y) if b.format is F32 else _positive_f64(b, size, y)
    return _special(b, x, size, y, value)


def _positive_f32(b: Builder[V], x: V, y: V) -> V:
    """x**y for x >= 0, through f64: error 0.51 ulp."""
    w = b.wide
    x_wide = b.widen(x)
    k, m = split(w, x_wide)
    f = w.fsub(m, w.const(1.0))
    log2 = _at_ends(w, x_wide, w.fma(f, polynomial(w, f, c.LOG2_SHORT["f64"]), k))
    rounder = w.const(F64.rounder + F64.bias)
    exponent = clamp(w, w.fmul(b.widen(y), log2), -200.0, 200.0)
    rounded = w.fadd(exponent, rounder)
    r = w.fsub(exponent, w.fsub(rounded, rounder))
    power = w.as_float(w.shl(w.as_int(rounded), w.iconst(F64.fraction)))
    return b.narrow(w.fmul(polynomial(w, r, c.EXP2_SHORT["f64"]), power))


def _positive_f64(b: Builder[V], x: V, y: V) -> V:
    """x**y for x >= 0, with log2(x) to 2**-64: error below 1 ulp."""
    high, low = _log2_doubled(b, x)
    high = _at_ends(b, x, high)
    product, error = two_product(b, y, high)
    error = b.fma(y, low, error)
    lowest, highest = EXP2_RANGE["f64"]
    inside = b.mask_and(b.fcmp("ogt", product, b.const(lowest)), b.fcmp("olt", product, b.const(highest)))
    error = b.select(inside, error, b.const(0.0))
    exponent = clamp(b, product, lowest, highest)
    rounder = rounder_with(b, double_bias(F64))
    rounded = b.fadd(exponent, rounder)
    r = b.fadd(b.fsub(exponent, b.fsub(rounded, rounder)), error)
    return scale(b, polynomial(b, r, (1.0, *c.EXP2["f64"])), rounded)


def _log2_doubled(b: Builder[V], x: V) -> tuple[V, V]:
    """log2(x) of a positive x as a sum of two floats, relative error below 2**-64.

    With x = 2**k m and s = (m - 1) / (m + 1): log2(x) = k + 2 / ln(2) * (s + s**3 (1/3 + s**2 p(s**2))).
    """
    scaled, shift = normalise(b, x)
    k, m = split(b, scaled)
    s = _ratio(b, m)
    square = multiply(b, s, s)
    third_high, third_low = c.THIRD["f64"]
    tail = b.fmul(square[0], polynomial(b, square[0], c.ATANH["f64"]))
    high, low = fast_two_sum(b, b.const(third_high), tail)
    cubic = multiply(b, square, (high, b.fadd(low, b.const(third_low))))
    head, rest = s, multiply(b, s, cubic)
    high, low = fast_two_sum(b, head[0], rest[0])
    doubled = high, b.fadd(low, b.fadd(rest[1], head[1]))
    factor = c.TWO_LOG2E["f64"]
    high, low = multiply(b, doubled, (b.const(factor[0]), b.const(factor[1])))
    total, error = fast_two_sum(b, b.fadd(k, shift), high)
    return fast_two_sum(b, total, b.fadd(error, low))


def _ratio(b: Builder[V], m: V) -> tuple[V, V]:
    """(m - 1) / (m + 1) as a sum of two floats."""
    one = b.const(1.0)
    numerator = b.fsub(m, one)
    denominator = b.fadd(m, one)
    denominator_low = b.fsub(m, b.fsub(denominator, one))
    inverse = b.fdiv(one, denominator)
    quotient = b.fmul(numerator, inverse)
    negated = b.fneg(quotient)
    remainder = b.fma(negated, denominator_low, b.fma(negated, denominator, numerator))
    return fast_two_sum(b, quotient, b.fmul(remainder, inverse))


def _at_ends(b: Builder[V], x: V, log2: V) -> V:
    """The logarithm of 0 and of infinity, which decide overflow and underflow for any y but 0."""
    log2 = b.select(b.fcmp("oeq", x, b.const(0.0)), b.const(-math.inf), log2)
    return b.select(b.fcmp("oeq", x, b.const(math.inf)), x, log2)


def _special(b: Builder[V], x: V, size: V, y: V, value: V) -> V:
    """Signs, domain errors and NaN, from the value of |x|**y."""
    zero, one, infinity = b.const(0.0), b.const(1.0), b.const(math.inf)
    whole = b.fcmp("oeq", b.rint(y), y)
    half = b.fmul(y, b.const(0.5))
    odd = b.mask_and(whole, b.fcmp("une", b.rint(half), half))
    value = b.copysign(value, b.select(odd, x, one))
    finite_negative = b.mask_and(b.fcmp("olt", x, zero), b.fcmp("ogt", x, b.const(-math.inf)))
    outside = b.mask_and(finite_negative, b.fcmp("une", b.rint(y), y))
    value = b.select(outside, b.const(math.nan), value)
    value = b.select(b.fcmp("uno", x, y), b.fadd(x, y), value)
    unit = b.mask_and(b.fcmp("oeq", size, one), b.fcmp("oeq", b.fabs(y), infinity))
    unit = b.mask_or(unit, b.mask_or(b.fcmp("oeq", x, one), b.fcmp("oeq", y, zero)))
    return b.select(unit, one, value)
