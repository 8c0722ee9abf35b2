"""sinh, cosh, tanh and the logistic function."""

from __future__ import annotations

from typing import TypeVar

from polyopt.codegen_c.vmath import coefficients as c
from polyopt.codegen_c.vmath.builder import Builder, polynomial
from polyopt.codegen_c.vmath.exponential import double_bias, exp, power_minus, reduce, scale

V = TypeVar("V")

# From here on tanh rounds to 1.
TANH_HIGHEST = {"f32": 10.0, "f64": 20.0}
# From here on sinh and cosh are infinite.
COSH_HIGHEST = {"f32": 90.0, "f64": 711.0}


def tanh(b: Builder[V], x: V) -> V:
    """Hyperbolic tangent. Error < 2 ulp; f32 takes 27 operations, one of them a division.

    tanh |x| = t / (t + 2) with t = e**(2 |x|) - 1.
    """
    size = _bounded_size(b, x, TANH_HIGHEST[b.format.name])
    rounded, r = reduce(b, b.fadd(size, size), b.format.bias)
    t = power_minus(b, rounded, r, 1.0)
    return b.copysign(_quotient(b, t, t, 2.0), x)


def sigmoid(b: Builder[V], x: V) -> V:
    """1 / (1 + e**-x). Error < 2 ulp; f32 takes 27 operations, one of them a division.

    With e = exp(-|x|) it is 1 / (1 + e), or e / (1 + e) for negative x, which keeps the subnormal results.
    """
    e = exp(b, b.fneg(b.fabs(x)))
    numerator = b.select(b.fcmp("olt", x, b.const(0.0)), e, b.const(1.0))
    return _quotient(b, numerator, e, 1.0)


def sinh(b: Builder[V], x: V) -> V:
    """Hyperbolic sine. Error < 2 ulp. A polynomial up to 1; beyond, e**|x| / 2 - e**-|x| / 2 cancels little."""
    size = _bounded_size(b, x, COSH_HIGHEST[b.format.name])
    square = b.fmul(size, size)
    body = b.fma(b.fmul(x, square), polynomial(b, square, c.SINH[b.format.name]), x)
    half = _half_exp(b, size)
    tail = b.copysign(b.fsub(half, b.fdiv(b.const(0.25), half)), x)
    return b.select(b.fcmp("olt", size, b.const(1.0)), body, tail)


def cosh(b: Builder[V], x: V) -> V:
    """Hyperbolic cosine. Error < 2 ulp."""
    half = _half_exp(b, _bounded_size(b, x, COSH_HIGHEST[b.format.name]))
    return b.fadd(half, b.fdiv(b.const(0.25), half))


def _half_exp(b: Builder[V], x: V) -> V:
    """e**x / 2, which is finite wherever cosh is."""
    rounded, r = reduce(b, x, double_bias(b.format) - 1)
    return scale(b, polynomial(b, r, (1.0, 1.0, *c.EXP[b.format.name])), rounded)


def _bounded_size(b: Builder[V], x: V, highest: float) -> V:
    """|x|, or `highest` where it is greater; NaN stays."""
    size = b.fabs(x)
    return b.select(b.fcmp("ogt", size, b.const(highest)), b.const(highest), size)


def _quotient(b: Builder[V], numerator: V, e: V, base: float) -> V:
    """numerator / (base + e), free of the rounding error of the denominator.

    One Newton step on the quotient, whose remainder is that of the exact denominator.
    """
    inverse = b.fdiv(b.const(1.0), b.fadd(e, b.const(base)))
    quotient = b.fmul(numerator, inverse)
    remainder = b.fma(b.fneg(quotient), e, b.fma(quotient, b.const(-base), numerator))
    return b.fma(remainder, inverse, quotient)
