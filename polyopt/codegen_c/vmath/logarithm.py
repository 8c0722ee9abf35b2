"""log, log2 and log1p.

Method [Muller16, section 11.1]: x = 2**k m with sqrt(1/2) <= m < sqrt(2), and a minimax polynomial for log(m) in
f = m - 1, so that log(x) = k ln 2 + f + f**2 p(f) has a small relative error near x = 1 as well.
"""

from __future__ import annotations

import math
from typing import TypeVar

from polyopt.codegen_c.vmath import coefficients as c
from polyopt.codegen_c.vmath.builder import Builder, Format, long_polynomial

V = TypeVar("V")


def log(b: Builder[V], x: V) -> V:
    """Natural logarithm. Error < 1 ulp for f64, < 1.5 ulp for f32."""
    k, f = _reduce(b, x)
    ln2_high, ln2_low = c.LN2_SHORT[b.format.name]
    tail = b.fma(k, b.const(ln2_low), _tail(b, f))
    return _special(b, x, b.fma(k, b.const(ln2_high), b.fadd(f, tail)))


def log2(b: Builder[V], x: V) -> V:
    """Logarithm to base 2. Error < 1.5 ulp; exact on powers of two."""
    k, f = _reduce(b, x)
    log2e_high, log2e_low = c.LOG2E[b.format.name]
    high = b.const(log2e_high)
    tail = b.fma(f, b.const(log2e_low), b.fmul(_tail(b, f), high))
    return _special(b, x, b.fadd(k, b.fma(f, high, tail)))


def _tail(b: Builder[V], f: V) -> V:
    """log(1 + f) - f."""
    f2 = b.fmul(f, f)
    return b.fmul(f2, long_polynomial(b, f, f2, c.LOG[b.format.name]))


def _reduce(b: Builder[V], x: V) -> tuple[V, V]:
    """x = 2**k (1 + f): k as a float, and f. For any other x than a positive number, anything."""
    form = b.format
    subnormal = b.fcmp("olt", x, b.const(2.0 ** (1 - form.bias)))
    scaled = b.select(subnormal, b.fmul(x, b.const(2.0**form.bits)), x)
    k, m = split(b, scaled)
    shift = b.select(subnormal, b.const(-float(form.bits)), b.const(0.0))
    return b.fadd(b.int_to_float(k), shift), b.fsub(m, b.const(1.0))


def split(b: Builder[V], x: V) -> tuple[V, V]:
    """A positive normal x = 2**k m with sqrt(1/2) <= m < sqrt(2): k as an integer, and m."""
    fraction = b.iconst(b.format.fraction)
    x_bits = b.as_int(x)
    k = b.ashr(b.isub(x_bits, b.iconst(_root_half_bits(b.format))), fraction)
    return k, b.as_float(b.isub(x_bits, b.shl(k, fraction)))


def _root_half_bits(form: Format) -> int:
    """The bits of sqrt(1/2): with the exponent -1, the fraction of sqrt(2)."""
    return ((form.bias - 1) << form.fraction) + int((math.sqrt(2.0) - 1.0) * 2.0**form.fraction)


def _special(b: Builder[V], x: V, value: V) -> V:
    """The logarithm's values at 0, below 0, at infinity and NaN."""
    value = b.select(b.fcmp("olt", x, b.const(math.inf)), value, x)
    at_zero = b.select(b.fcmp("oeq", x, b.const(0.0)), b.const(-math.inf), b.const(math.nan))
    return b.select(b.fcmp("ole", x, b.const(0.0)), at_zero, value)
