"""Division of vectors by one number that their loop does not change: the same bits as the instruction's, sooner.

A vector division takes ten cycles and more. Once y = 1 / b is known, rounded, so is the quotient of each a, from the
remainders of two approximations: q = q + (a - b q) y, the second time with the bits of a / b itself [Markstein90]. That
holds while nothing overflows or loses bits below the least normal number; other vectors are divided as ever.
"""

from __future__ import annotations

from polyopt.codegen_c.llvm_text import Function, Value, vector_type
from polyopt.codegen_c.values import (
    any_lane,
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
"""Powers of two: numbers from 2**-SAFE to 2**SAFE have quotients and remainders that are exact or normal."""

_FORMATS = {"float": (32, 23, 127), "double": (64, 52, 1023)}


def is_worth(f: Function, a: Value, b: Value) -> bool:
    """Whether `a / b` is a division of wide vectors by a number from outside the loop at hand."""
    return a.scalar in _FORMATS and b.lanes == 1 and b.level < min(a.level, f.level) and _bits(a) >= WIDE


def _bits(a: Value) -> int:
    return a.lanes * _FORMATS[a.scalar][0]


def divided(f: Function, a: Value, b: Value) -> Value:
    """The bits of `a / b`, for `b` of one lane."""
    reciprocal = binary(f, "fdiv", constant(1.0, b.scalar), b)
    is_unsafe = any_lane(f, _is_outside(f, a))
    result = f.alloca(vector_type(a.scalar, a.lanes), 64)
    f.branch(
        binary(f, "or", is_unsafe, _is_outside(f, b)),
        lambda: f.write(result, binary(f, "fdiv", a, b)),
        lambda: f.write(result, _by_remainders(f, a, b, reciprocal)),
    )
    return f.read(result, a.scalar, a.lanes)


def _is_outside(f: Function, value: Value) -> Value:
    """Whether a number is 0, not finite, or too small or large for the remainders to be exact."""
    bits, fraction, bias = _FORMATS[value.scalar]
    least, most = ((bias + power) << (fraction + 1) for power in (-SAFE, SAFE))
    whole = f"i{bits}"
    without_sign = binary(f, "shl", convert(f, "bitcast", value, whole), constant(1, whole))
    return compare(f, "uge", binary(f, "sub", without_sign, constant(least, whole)), constant(most - least, whole))


def _by_remainders(f: Function, a: Value, b: Value, reciprocal: Value) -> Value:
    y, minus_b = splat(f, reciprocal, a.lanes), splat(f, f.instruction(f"fneg {b}", b.scalar, 1, [b]), a.lanes)
    quotient = binary(f, "fmul", a, y)
    for _ in range(2):
        quotient = intrinsic(f, "fma", intrinsic(f, "fma", minus_b, quotient, a), y, quotient)
    return quotient
