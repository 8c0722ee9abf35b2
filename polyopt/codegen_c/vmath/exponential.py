"""exp, exp2 and expm1.

Method [Muller16, chapter 11; Cody & Waite 1980]: x = n ln 2 + r with |r| <= ln(2) / 2, a minimax polynomial for
exp(r), and 2**n put back by two exact factors of about half the exponent each, so that results beyond the largest
number overflow and those below the least normal one are rounded once, as subnormals.

The integer n is found by adding a number so large that the sum has no fraction (`Format.rounder`): the sum's low
bits are n in two's complement, ready to be shifted into an exponent, and subtracting gives n as a float. A bias in
the rounder's low bits comes for nothing.
"""

from __future__ import annotations

from typing import TypeVar

from polyopt.codegen_c.vmath import coefficients as c
from polyopt.codegen_c.vmath.builder import Builder, Format, polynomial

V = TypeVar("V")

# Beyond these exp and exp2 are infinite, or round to zero.
EXP_RANGE = {"f32": (-104.0, 89.0), "f64": (-746.0, 710.0)}
EXP2_RANGE = {"f32": (-151.0, 129.0), "f64": (-1076.0, 1025.0)}
# Below this expm1 rounds to -1.
EXPM1_LOWEST = {"f32": -18.0, "f64": -38.0}
# Up to this magnitude expm1(x) rounds to x.
EXPM1_IDENTITY = {"f32": 2.0**-25, "f64": 2.0**-54}


def exp(b: Builder[V], x: V) -> V:
    """e**x. Error < 1 ulp; f32 takes 17 operations."""
    rounded, r = reduce(b, clamp(b, x, *EXP_RANGE[b.format.name]), double_bias(b.format))
    return scale(b, polynomial(b, r, (1.0, 1.0, *c.EXP[b.format.name])), rounded)


def exp2(b: Builder[V], x: V) -> V:
    """2**x. Error < 1 ulp; exact where x is an integer."""
    x = clamp(b, x, *EXP2_RANGE[b.format.name])
    rounder = rounder_with(b, double_bias(b.format))
    rounded = b.fadd(x, rounder)
    r = b.fsub(x, b.fsub(rounded, rounder))
    return scale(b, polynomial(b, r, (1.0, *c.EXP2[b.format.name])), rounded)


def expm1(b: Builder[V], x: V) -> V:
    """e**x - 1. Error < 2 ulp. Formed at half its size, as 2**n alone may overflow."""
    form = b.format
    lowest, highest = EXPM1_LOWEST[form.name], EXP_RANGE[form.name][1]
    rounded, r = reduce(b, clamp(b, x, lowest, highest), form.bias - 1)
    half = power_minus(b, rounded, r, 0.5)
    tiny = b.fcmp("ole", b.fabs(x), b.const(EXPM1_IDENTITY[form.name]))
    return b.select(tiny, x, b.fadd(half, half))


# --- shared with the hyperbolic functions ---


def clamp(b: Builder[V], x: V, lowest: float, highest: float) -> V:
    """x within the bounds; NaN stays NaN."""
    x = b.select(b.fcmp("olt", x, b.const(lowest)), b.const(lowest), x)
    return b.select(b.fcmp("ogt", x, b.const(highest)), b.const(highest), x)


def double_bias(form: Format) -> int:
    """The bias that `scale` expects."""
    return 2 * form.bias


def rounder_with(b: Builder[V], bias: int) -> V:
    """Added, it leaves n + `bias` in the low bits; subtracted again it leaves n."""
    return b.const(b.format.rounder + bias)


def reduce(b: Builder[V], x: V, bias: int) -> tuple[V, V]:
    """x = n ln 2 + r: the rounder's sum, whose low bits are n + `bias`, and r.

    The first step is exact: n times the high part and x agree in their leading bits, and fma does not round between.
    """
    log2e, (ln2_high, ln2_low) = c.LOG2E[b.format.name][0], c.LN2[b.format.name]
    rounder = rounder_with(b, bias)
    rounded = b.fma(x, b.const(log2e), rounder)
    n = b.fsub(rounded, rounder)
    r = b.fma(n, b.const(-ln2_high), x)
    return rounded, b.fma(n, b.const(-ln2_low), r)


def power_minus(b: Builder[V], rounded: V, r: V, one: float) -> V:
    """s * e**r - `one`, with small relative error. s: 2**(n + bias of `rounded` - bias of the format), normal.

    As s e**r = s + s r + s r**2 p(r): the terms are added by falling size, s - one being exact where it matters.
    """
    s = b.as_float(b.shl(b.as_int(rounded), b.iconst(b.format.fraction)))
    tail = b.fmul(b.fmul(r, r), polynomial(b, r, c.EXP[b.format.name]))
    return b.fma(tail, s, b.fma(r, s, b.fsub(s, b.const(one))))


def scale(b: Builder[V], value: V, rounded: V) -> V:
    """value * 2**n from a rounded sum with twice the format's bias, for any n that the ranges above allow.

    The biased sum is halved, once downwards and once upwards; each half is an exponent. NaN passes, because the
    factors are multiplied and not added to the exponent. The first product is exact and the second rounds, as the
    one instruction of some processors does.
    """
    if b.has_scaling:
        return b.scaled(value, b.fsub(rounded, rounder_with(b, double_bias(b.format))))
    fraction = b.iconst(b.format.fraction)
    sum_bits = b.as_int(rounded)
    lower = b.lshr(sum_bits, b.iconst(1))
    upper = b.isub(sum_bits, lower)
    first = b.as_float(b.shl(lower, fraction))
    second = b.as_float(b.shl(upper, fraction))
    return b.fmul(b.fmul(value, first), second)
