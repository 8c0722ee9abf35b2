"""log, log2 and log1p.

Method [Muller16, chapters 3 and 11]: x = 2**k m with sqrt(1/2) <= m < sqrt(2), and a minimax polynomial for log(m) in
f = m - 1, so that log(x) = k ln 2 + f + f**2 p(f) has a small relative error near x = 1 as well.
"""

from __future__ import annotations

import math
from typing import TypeVar

from polyopt.codegen_c.vmath import coefficients as c
from polyopt.codegen_c.vmath.builder import Builder, Format, long_polynomial
from polyopt.codegen_c.vmath.doubled import two_sum

V = TypeVar("V")


def log(b: Builder[V], x: V) -> V:
    """Natural logarithm. Error < 1 ulp for f64, < 1.5 ulp for f32."""
    k, f = _reduce(b, x)
    return _special(b, x, _assemble(b, k, f), 0.0)


def log2(b: Builder[V], x: V) -> V:
    """Logarithm to base 2. Error < 1.5 ulp; exact on powers of two."""
    k, f = _reduce(b, x)
    log2e_high, log2e_low = c.LOG2E[b.format.name]
    high = b.const(log2e_high)
    tail = b.fma(f, b.const(log2e_low), b.fmul(_tail(b, f), high))
    return _special(b, x, b.fadd(k, b.fma(f, high, tail)), 0.0)


def log1p(b: Builder[V], x: V) -> V:
    """log(1 + x). Error < 2 ulp.

    1 + x is a sum of two floats; scaled by 2**-k, the second joins f. For k = 0 f is x itself.
    """
    form = b.format
    one = b.const(1.0)
    total, error = two_sum(b, one, x)
    k, m = split(b, total)
    # 2**(1 - k), because 2**-k would be below the exponents for the largest k
    k_bits = b.isub(b.as_int(total), b.as_int(m))
    twice_scale = b.as_float(b.isub(b.iconst((form.bias + 1) << form.fraction), k_bits))
    f = b.fma(b.fmul(error, b.const(0.5)), twice_scale, b.fsub(m, one))
    f = b.select(b.fcmp("oeq", k, b.const(0.0)), x, f)
    value = b.select(b.fcmp("oeq", x, b.const(0.0)), x, _assemble(b, k, f))
    return _special(b, x, value, -1.0)


def _assemble(b: Builder[V], k: V, f: V) -> V:
    """k ln 2 + log(1 + f), the smallest terms first; k times the high part of ln 2 is exact."""
    ln2_high, ln2_low = c.LN2_SHORT[b.format.name]
    tail = b.fma(k, b.const(ln2_low), _tail(b, f))
    return b.fma(k, b.const(ln2_high), b.fadd(f, tail))


def _tail(b: Builder[V], f: V) -> V:
    """log(1 + f) - f."""
    f2 = b.fmul(f, f)
    return b.fmul(f2, long_polynomial(b, f, f2, c.LOG[b.format.name]))


def _reduce(b: Builder[V], x: V) -> tuple[V, V]:
    """A positive finite x = 2**k (1 + f): k as a float, and f."""
    scaled, shift = normalise(b, x)
    k, m = split(b, scaled)
    return b.fadd(k, shift), b.fsub(m, b.const(1.0))


def normalise(b: Builder[V], x: V) -> tuple[V, V]:
    """A positive x as a normal number times 2**shift; shift is a float."""
    form = b.format
    subnormal = b.fcmp("olt", x, b.const(2.0 ** (1 - form.bias)))
    scaled = b.select(subnormal, b.fmul(x, b.const(2.0**form.bits)), x)
    return scaled, b.select(subnormal, b.const(-float(form.bits)), b.const(0.0))


def split(b: Builder[V], x: V) -> tuple[V, V]:
    """A positive normal x = 2**k m with sqrt(1/2) <= m < sqrt(2): k as a float, and m. Anything for other x.

    With the bits of sqrt(1/2) taken off, what is left above the fraction counts the binades from there.
    """
    form = b.format
    root_half = _root_half_bits(form)
    above = b.iadd(b.as_int(x), b.iconst((form.bias << form.fraction) - root_half))
    k = small_int_to_float(b, b.lshr(above, b.iconst(form.fraction)), form.bias)
    fraction = b.iand(above, b.iconst((1 << form.fraction) - 1))
    return k, b.as_float(b.iadd(fraction, b.iconst(root_half)))


def small_int_to_float(b: Builder[V], value: V, bias: int) -> V:
    """`value - bias` as a float, for a value that leaves half of the significand free.

    By way of the rounder's low bits: many machines convert no 64-bit integers in lanes.
    """
    form = b.format
    rounder_bits = ((form.bias + form.fraction) << form.fraction) + (1 << (form.fraction - 1))
    return b.fsub(b.as_float(b.iadd(value, b.iconst(rounder_bits))), b.const(form.rounder + bias))


def _root_half_bits(form: Format) -> int:
    """The bits of sqrt(1/2): the exponent -1 and the fraction of sqrt(2)."""
    return ((form.bias - 1) << form.fraction) + int((math.sqrt(2.0) - 1.0) * 2.0**form.fraction)


def _special(b: Builder[V], x: V, value: V, pole: float) -> V:
    """The values of a logarithm at its pole, below it, at infinity and NaN."""
    value = b.select(b.fcmp("olt", x, b.const(math.inf)), value, x)
    at_pole = b.select(b.fcmp("oeq", x, b.const(pole)), b.const(-math.inf), b.const(math.nan))
    return b.select(b.fcmp("ole", x, b.const(pole)), at_pole, value)
