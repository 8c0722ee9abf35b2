"""sinh, cosh, tanh and the logistic function."""

from __future__ import annotations

from typing import TypeVar

from polyopt.codegen_c.vmath.builder import Builder
from polyopt.codegen_c.vmath.exponential import exp, power_minus, reduce

V = TypeVar("V")

# From here on tanh rounds to 1.
TANH_HIGHEST = {"f32": 10.0, "f64": 20.0}


def tanh(b: Builder[V], x: V) -> V:
    """Hyperbolic tangent. Error < 2 ulp; f32 takes 27 operations, one of them a division.

    tanh |x| = t / (t + 2) with t = e**(2 |x|) - 1.
    """
    form = b.format
    highest = b.const(TANH_HIGHEST[form.name])
    size = b.fabs(x)
    size = b.select(b.fcmp("ogt", size, highest), highest, size)
    rounded, r = reduce(b, b.fadd(size, size), form.bias)
    t = power_minus(b, rounded, r, 1.0)
    return b.copysign(_quotient(b, t, t, 2.0), x)


def sigmoid(b: Builder[V], x: V) -> V:
    """1 / (1 + e**-x). Error < 2 ulp; f32 takes 27 operations, one of them a division.

    With e = exp(-|x|) it is 1 / (1 + e), or e / (1 + e) for negative x, which keeps the subnormal results.
    """
    e = exp(b, b.fneg(b.fabs(x)))
    numerator = b.select(b.fcmp("olt", x, b.const(0.0)), e, b.const(1.0))
    return _quotient(b, numerator, e, 1.0)


def _quotient(b: Builder[V], numerator: V, e: V, base: float) -> V:
    """numerator / (base + e), free of the rounding error of the denominator.

    One Newton step on the quotient, whose remainder is that of the exact denominator.
    """
    inverse = b.fdiv(b.const(1.0), b.fadd(e, b.const(base)))
    quotient = b.fmul(numerator, inverse)
    remainder = b.fma(b.fneg(quotient), e, b.fma(quotient, b.const(-base), numerator))
    return b.fma(remainder, inverse, quotient)
