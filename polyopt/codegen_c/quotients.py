"""Floor division and modulo of a linear subscript by a constant, in lanes.

Vectors of 64-bit integers divide slowly. A linear form divides fast: quotient and remainder of lane 0 are scalars,
and how far the other lanes are from it is a small number, divided in 32 bits or by one comparison.
"""

from __future__ import annotations

from polyopt.codegen_c import ops
from polyopt.codegen_c.llvm_text import Function, Value
from polyopt.codegen_c.values import (
    Linear,
    binary,
    compare,
    constant,
    convert,
    int64,
    lane_numbers,
    scalar_of,
    select,
    splat,
)
from polyopt.dtypes import i64


def is_easy(form: Linear, divisor: Value, lanes: int) -> bool:
    """Whether `divided` applies: a positive constant, and lanes that stay close together."""
    reach = abs(form.lane_factor) * lanes
    return lanes > 1 and divisor.constant is not None and divisor.constant > 0 and divisor.constant + reach < 1 << 30


def divided(f: Function, form: Linear, divisor: int, lanes: int, math: ops.MathFunctions) -> tuple[Value, Value]:
    """Quotient and remainder of every lane, as i64 vectors."""
    base, by = scalar_of(f, form.first_lane), int64(divisor)
    quotient = ops.apply(f, "floordiv", i64, [base, by], math)
    remainder = ops.apply(f, "mod", i64, [base, by], math)
    reach = form.lane_factor * (lanes - 1)
    borrowed = max(0, -(reach // divisor))  # whole divisors that keep the small numbers from being negative
    start = binary(f, "add", remainder, int64(borrowed * divisor))
    small = binary(
        f,
        "add",
        splat(f, convert(f, "trunc", start, "i32"), lanes),
        lane_numbers("i32", lanes, form.lane_factor),
    )
    whole, rest = _divided_small(f, small, divisor, greatest=(borrowed + 1) * divisor - 1 + max(0, reach))
    first = splat(f, binary(f, "sub", quotient, int64(borrowed)), lanes)
    return binary(f, "add", first, convert(f, "zext", whole, "i64")), convert(f, "zext", rest, "i64")


def _divided_small(f: Function, small: Value, divisor: int, *, greatest: int) -> tuple[Value, Value]:
    """The same for 32-bit lanes from 0 to `greatest`."""
    by = constant(divisor, "i32")
    if greatest >= 2 * divisor:
        return binary(f, "udiv", small, by), binary(f, "urem", small, by)
    carries = compare(f, "uge", small, by)
    return convert(f, "zext", carries, "i32"), select(f, carries, binary(f, "sub", small, by), small)
