"""sin, cos and tan.

Method [Muller16, chapters 3 and 11]: the argument is reduced to r + r_low in [-pi/4, pi/4] and a quadrant
(`reduction`); minimax polynomials give sin and cos of it, with r_low as a correction of the first order.
"""

from __future__ import annotations

from typing import TypeVar

from polyopt.codegen_c.vmath import coefficients as c
from polyopt.codegen_c.vmath.builder import Builder, polynomial
from polyopt.codegen_c.vmath.doubled import fast_two_sum
from polyopt.codegen_c.vmath.reduction import Reduced, reduce

V = TypeVar("V")


def sin(b: Builder[V], x: V) -> V:
    """Sine of any finite float. Error < 1 ulp."""
    reduced = reduce(b, x)
    return _zero_as_is(b, x, _sine_of_quadrant(b, reduced, reduced.quadrant))


def cos(b: Builder[V], x: V) -> V:
    """Cosine of any finite float. Error < 1 ulp."""
    reduced = reduce(b, x)
    return _sine_of_quadrant(b, reduced, b.iadd(reduced.quadrant, b.iconst(1)))


def tan(b: Builder[V], x: V) -> V:
    """Tangent of any finite float. Error < 1.5 ulp.

    sin / cos, or -cos / sin in odd quadrants, both as sums of two floats.
    """
    reduced = reduce(b, x)
    one = b.const(1.0)
    sine = fast_two_sum(b, reduced.high, _sine_tail(b, reduced))
    cosine = fast_two_sum(b, one, _cosine_tail(b, reduced))
    even = _is_even(b, reduced.quadrant)
    numerator, numerator_low = (b.select(even, s, c) for s, c in zip(sine, cosine, strict=True))
    denominator, denominator_low = (b.select(even, c, b.fneg(s)) for s, c in zip(sine, cosine, strict=True))
    inverse = b.fdiv(one, denominator)
    quotient = b.fmul(numerator, inverse)
    negated = b.fneg(quotient)
    remainder = b.fma(negated, denominator, numerator)
    remainder = b.fadd(remainder, b.fma(negated, denominator_low, numerator_low))
    return _zero_as_is(b, x, b.fma(remainder, inverse, quotient))


def _sine_of_quadrant(b: Builder[V], reduced: Reduced[V], quadrant: V) -> V:
    """sin(r + quadrant * pi/2)."""
    sine = b.fadd(reduced.high, _sine_tail(b, reduced))
    cosine = _cosine(b, reduced)
    value = b.select(_is_even(b, quadrant), sine, cosine)
    # the quadrant's second bit, moved to the sign bit; adding there is changing the sign
    sign = b.shl(b.lshr(quadrant, b.iconst(1)), b.iconst(b.format.bits - 1))
    return b.as_float(b.iadd(b.as_int(value), sign))


def _sine_tail(b: Builder[V], reduced: Reduced[V]) -> V:
    """sin(r + low) - r = r**3 p(r**2) + low * (1 - r**2 / 2)."""
    r, low = reduced.high, reduced.low
    r2 = b.fmul(r, r)
    correction = b.fma(b.fmul(r2, b.const(-0.5)), low, low)
    return b.fma(b.fmul(r, r2), polynomial(b, r2, c.SIN[b.format.name]), correction)


def _cosine(b: Builder[V], reduced: Reduced[V]) -> V:
    """cos(r + low), where the rounding error of 1 - r**2 / 2 is added to the small terms."""
    r2 = b.fmul(reduced.high, reduced.high)
    base, error = fast_two_sum(b, b.const(1.0), b.fmul(r2, b.const(-0.5)))
    return b.fadd(base, b.fadd(error, _cosine_rest(b, reduced, r2)))


def _cosine_tail(b: Builder[V], reduced: Reduced[V]) -> V:
    """cos(r + low) - 1."""
    r2 = b.fmul(reduced.high, reduced.high)
    return b.fma(r2, b.const(-0.5), _cosine_rest(b, reduced, r2))


def _cosine_rest(b: Builder[V], reduced: Reduced[V], r2: V) -> V:
    """r**4 p(r**2) - r * low."""
    correction = b.fmul(b.fneg(reduced.high), reduced.low)
    return b.fma(b.fmul(r2, r2), polynomial(b, r2, c.COS[b.format.name]), correction)


def _is_even(b: Builder[V], quadrant: V) -> V:
    return b.icmp("eq", b.iand(quadrant, b.iconst(1)), b.iconst(0))


def _zero_as_is(b: Builder[V], x: V, value: V) -> V:
    """-0 stays -0: the sums above give +0."""
    return b.select(b.fcmp("oeq", x, b.const(0.0)), x, value)
