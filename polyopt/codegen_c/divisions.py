"""Division of vectors by one number that their loop does not change: the same bits as the instruction's, sooner.

A vector division takes ten cycles and more. Once y = 1 / b is known, rounded, so is the quotient of each a, from the
remainders of two approximations: q = q + (a - b q) y, the second time with the bits of a / b itself [Markstein90]. That
holds while nothing overflows or loses bits below the least normal number; other vectors are divided as ever.
"""

from __future__ import annotations

from polyopt.codegen_c.llvm_text import Function, Value, vector_type
from polyopt.codegen_c.values import (
    binary,
    compare,
    constant,
    convert,
    intrinsic,
    splat,
)

WIDE = 512
"""Bits of a vector from which division is slower than eight multiplications, comparisons and their like."""

SAFE = 60
"""Powers of two: dividing by numbers from 2**-SAFE to 2**SAFE, what `_FORMATS` calls safe has quotients and remainders
that are exact or normal."""

_FORMATS = {"float": (32, 23, 127, 64), "double": (64, 52, 1023, 512)}
"""Bits, those of the fraction, the bias of the exponent; numbers of 2**-safe to 2**safe are half of all exponents, so
that one bit tells them from the others."""


def is_worth(f: Function, a: Value, b: Value) -> bool:
    """Whether `a / b` is a division of wide vectors by a number from outside the loop at hand."""
    return a.scalar in _FORMATS and b.lanes == 1 and b.level < min(a.level, f.level) and _bits(a) >= WIDE


def _bits(a: Value) -> int:
    return a.lanes * _FORMATS[a.scalar][0]


def divided(f: Function, a: Value, b: Value) -> Value:
    """The bits of `a / b`, for `b` of one lane."""
    y = splat(f, binary(f, "fdiv", constant(1.0, b.scalar), b), a.lanes)
    divisor = splat(f, b, a.lanes)
    is_unsafe = _some_outside(f, a)
    result = f.alloca(vector_type(a.scalar, a.lanes), 64)
    f.branch(
        binary(f, "or", is_unsafe, _is_outside(f, b)),
        lambda: f.write(result, binary(f, "fdiv", a, divisor)),
        lambda: f.write(result, _by_remainders(f, a, divisor, y)),
    )
    return f.read(result, a.scalar, a.lanes)


def _some_outside(f: Function, values: Value) -> Value:
    """Whether a lane is 0, not finite, or too small or large for the remainders to be exact.

    The bits that tell are tested as they lie, together: a mask of lanes would be turned into bytes first.
    """
    bits, _, _, safe = _FORMATS[values.scalar]
    top = binary(f, "and", _above(f, values, -safe), constant(1 << (bits - 1), f"i{bits}"))
    whole = f"i{bits * values.lanes}"
    return compare(f, "ne", f.instruction(f"bitcast {top} to {whole}", whole, 1, [top]), constant(0, whole))


def _is_outside(f: Function, value: Value) -> Value:
    """Whether a divisor is 0, not finite, or too small or large for the remainders to be exact."""
    bits, fraction, _, _ = _FORMATS[value.scalar]
    return compare(f, "uge", _above(f, value, -SAFE), constant(2 * SAFE << (fraction + 1), f"i{bits}"))


def _above(f: Function, value: Value, power: int) -> Value:
    """The bits of a number without its sign, doubled, less those of 2**power; they wrap around."""
    bits, fraction, bias, _ = _FORMATS[value.scalar]
    whole = f"i{bits}"
    without_sign = binary(f, "shl", convert(f, "bitcast", value, whole), constant(1, whole))
    return binary(f, "sub", without_sign, constant((bias + power) << (fraction + 1), whole))


def _by_remainders(f: Function, a: Value, b: Value, y: Value) -> Value:
    minus_b = f.instruction(f"fneg {b}", b.scalar, b.lanes, [b])
    quotient = binary(f, "fmul", a, y)
    for _ in range(2):
        quotient = intrinsic(f, "fma", intrinsic(f, "fma", minus_b, quotient, a), y, quotient)
    return quotient
