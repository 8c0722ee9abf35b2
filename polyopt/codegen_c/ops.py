"""The operations of `dsl.builtins` as LLVM instructions.

Every operation is total: integers wrap, a division by zero gives 0, a shift by too much shifts everything out.
Values are those of `values.register_scalar`; f16 and bf16 are computed in f32 and rounded after each operation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import partial
from math import copysign
from typing import Protocol

from polyopt.codegen_c import divisions
from polyopt.codegen_c.conversions import rounded
from polyopt.codegen_c.llvm_text import Function, Value, scalar_bits, vector_type
from polyopt.codegen_c.values import (
    any_lane,
    binary,
    compare,
    constant,
    convert,
    intrinsic,
    is_nan,
    like,
    select,
    splat,
    wrapped,
)
from polyopt.dtypes import DType, bf16, f16, f32

Emit = Callable[..., Value]

SIGNIFICAND_BITS = {"float": 24, "double": 53}


class MathFunctions(Protocol):
    """Where exp, sin, ... come from."""

    def call(self, f: Function, name: str, dtype: DType, operands: list[Value]) -> Value: ...


# Operations whose result on numbers of a narrow format is a number of that format.
_EXACT = frozenset({"neg", "abs", "sign", "minimum", "maximum", "select", "floor", "ceil", "round"})


def apply(f: Function, name: str, dtype: DType, operands: list[Value], math: MathFunctions) -> Value:
    """The operation `name` on operands of `dtype` (the second operand's dtype for "select")."""
    if name == "select":
        return select(f, *operands)
    if dtype.is_float:
        emit = _FLOAT.get(name)
        computed = f32 if dtype in (f16, bf16) else dtype
        result = emit(f, *operands) if emit else math.call(f, name, computed, operands)
        return result if name in _EXACT or result.scalar == "i1" else rounded(f, result, dtype)
    if dtype.is_bool:
        return _BOOL[name](f, *operands)
    return _integer_table(signed=dtype.kind == "i")[name](f, *operands)


# --- floats ---------------------------------------------------------------------------------------------------


def _arithmetic(opcode: str) -> Emit:
    return lambda f, a, b: binary(f, opcode, a, b, f.flags)


def _quotient(f: Function, a: Value, b: Value) -> Value:
    if divisions.is_worth(f, a, b) and "arcp" not in f.flags:
        return divisions.divided(f, a, b)
    return binary(f, "fdiv", a, b, f.flags)


def _float_compare(predicate: str) -> Emit:
    return lambda f, a, b: compare(f, predicate, a, b)


def _extremum(f: Function, a: Value, b: Value, *, predicate: str) -> Value:
    """The larger ("ogt") or smaller ("olt"); NaN if either is. One comparison where one operand is a number.

    In strict numerics 0.0 is larger than -0.0, so that neither order nor lanes show; else either of the two is taken.
    """
    for number, other in ((a, b), (b, a)):
        if number.constant is not None and number.constant == number.constant:
            if f.orders_zeros and number.constant == 0 and (copysign(1, number.constant) > 0) == (predicate == "ogt"):
                return select(f, compare(f, predicate.replace("o", "u", 1), other, number), other, number)
            return select(f, compare(f, predicate, number, other), number, other)
    chosen = select(f, compare(f, predicate, a, b), a, b)
    chosen = _signed_zero(f, a, b, chosen, is_max=predicate == "ogt") if f.orders_zeros else chosen
    return select(f, is_nan(f, a), a, chosen)


def _signed_zero(f: Function, a: Value, b: Value, chosen: Value, *, is_max: bool) -> Value:
    """`chosen`; where `a` and `b` are equal the bits that both have or, for a minimum, that either has."""
    left, right = (convert(f, "bitcast", value, f"i{scalar_bits(value.scalar)}") for value in (a, b))
    both = convert(f, "bitcast", binary(f, "and" if is_max else "or", left, right), a.scalar)
    return select(f, compare(f, "oeq", a, b), both, chosen)


def _float_sign(f: Function, a: Value) -> Value:
    zero, one = like(a, 0.0), like(a, 1.0)
    positive = select(f, compare(f, "ogt", a, zero), one, zero)
    signed = select(f, compare(f, "olt", a, zero), like(a, -1.0), positive)
    return select(f, is_nan(f, a), a, signed)


def _is_infinite(f: Function, a: Value) -> Value:
    return compare(f, "oeq", intrinsic(f, "fabs", a), like(a, float("inf")))


def _remainder(f: Function, a: Value, b: Value) -> Value:
    """C's `fmod` but for the sign of zero, exact: `a` less `b` as often as the quotient says, with the sign of `a`.

    A quotient of fewer bits than a significand has, rounded and cut off, is right or one too many; the product of it
    and `b`, subtracted in one operation, then leaves what needs no rounding. For others there is C's own function,
    which finds one bit after the other.
    """
    quotient = intrinsic(f, "trunc", binary(f, "fdiv", a, b))
    left = intrinsic(f, "fma", _negated(f, quotient), b, a)
    zero = like(left, 0.0)
    turned = binary(f, "xor", compare(f, "olt", left, zero), compare(f, "olt", a, zero))
    too_many = binary(f, "and", compare(f, "one", left, zero), turned)
    left = select(f, too_many, binary(f, "fadd", left, intrinsic(f, "copysign", b, a)), left)
    finite = binary(f, "fadd", a, binary(f, "fsub", a, a))  # NaN for infinity
    left = select(f, _is_infinite(f, b), finite, left)
    limit = 2.0 ** SIGNIFICAND_BITS[left.scalar]
    has_more = any_lane(f, compare(f, "oge", intrinsic(f, "fabs", quotient), like(quotient, limit)))
    slot = f.alloca(vector_type(left.scalar, left.lanes), 64)
    f.write(slot, left)
    f.branch(has_more, lambda: f.write(slot, splat(f, binary(f, "frem", a, b), left.lanes)))
    return f.read(slot, left.scalar, left.lanes)


def _divide_floored(f: Function, a: Value, b: Value, remainder: Value) -> tuple[Value, Value]:
    """Quotient and remainder as NumPy's `divmod` of floats computes them, for b != 0. remainder: C's"""
    zero, one = like(a, 0.0), like(a, 1.0)
    quotient = binary(f, "fdiv", binary(f, "fsub", a, remainder), b)
    inexact = compare(f, "une", remainder, zero)
    opposite = binary(f, "xor", compare(f, "olt", b, zero), compare(f, "olt", remainder, zero))
    adjust = binary(f, "and", inexact, opposite)
    modulus = select(f, adjust, binary(f, "fadd", remainder, b), remainder)
    modulus = select(f, inexact, modulus, intrinsic(f, "copysign", zero, b))
    quotient = select(f, adjust, binary(f, "fsub", quotient, one), quotient)
    return quotient, modulus


def _float_floordiv(f: Function, a: Value, b: Value) -> Value:
    zero = like(a, 0.0)
    quotient, _ = _divide_floored(f, a, b, _remainder(f, a, b))
    whole = intrinsic(f, "floor", quotient)
    too_low = compare(f, "ogt", binary(f, "fsub", quotient, whole), like(a, 0.5))
    whole = select(f, too_low, binary(f, "fadd", whole, like(a, 1.0)), whole)
    plain = binary(f, "fdiv", a, b)
    whole = select(f, compare(f, "une", quotient, zero), whole, intrinsic(f, "copysign", zero, plain))
    return select(f, compare(f, "oeq", b, zero), plain, whole)


def _float_mod(f: Function, a: Value, b: Value) -> Value:
    remainder = _remainder(f, a, b)
    _, modulus = _divide_floored(f, a, b, remainder)
    return select(f, compare(f, "oeq", b, like(a, 0.0)), remainder, modulus)


def _unary(name: str) -> Emit:
    return lambda f, a: intrinsic(f, name, a)


def _negated(f: Function, a: Value) -> Value:
    return f.instruction(f"fneg {a}", a.scalar, a.lanes, [a])


_FLOAT: Mapping[str, Emit] = {
    "add": _arithmetic("fadd"),
    "sub": _arithmetic("fsub"),
    "mul": _arithmetic("fmul"),
    "truediv": _quotient,
    "floordiv": _float_floordiv,
    "mod": _float_mod,
    "minimum": partial(_extremum, predicate="olt"),
    "maximum": partial(_extremum, predicate="ogt"),
    "neg": _negated,
    "abs": _unary("fabs"),
    "sign": _float_sign,
    "lt": _float_compare("olt"),
    "le": _float_compare("ole"),
    "gt": _float_compare("ogt"),
    "ge": _float_compare("oge"),
    "eq": _float_compare("oeq"),
    "ne": _float_compare("une"),
    "floor": _unary("floor"),
    "ceil": _unary("ceil"),
    "round": _unary("roundeven"),
    "sqrt": _unary("sqrt"),
    "isnan": is_nan,
    "isinf": _is_infinite,
}


# --- integers -------------------------------------------------------------------------------------------------


def _plain(opcode: str) -> Emit:
    return lambda f, a, b: binary(f, opcode, a, b)


def _bitwise(opcode: str, combined: Callable[[int, int], int]) -> Emit:
    """An operation that is a constant where both operands are, or one is a zero that absorbs the other."""

    def emit(f: Function, a: Value, b: Value) -> Value:
        lanes = max(a.lanes, b.lanes)
        if opcode in ("mul", "and") and 0 in (a.constant, b.constant):
            return constant(0, a.scalar, lanes)
        if a.constant is not None and b.constant is not None:
            return constant(combined(int(a.constant), int(b.constant)), a.scalar, lanes)
        return binary(f, opcode, a, b)

    return emit


def _int_compare(predicate: str) -> Emit:
    """A comparison; one with an end of the type's range is decided, or asks whether that is the number.

    LLVM 22 takes `x < ~0 ? ~0 - x : x - ~0` of unsigned lanes for `x - ~0` (its absolute difference of them).
    """
    if predicate in ("eq", "ne"):
        return lambda f, a, b: compare(f, predicate, a, b)
    sign, order = predicate[0], predicate[1:]

    def emit(f: Function, a: Value, b: Value) -> Value:
        least, greatest = _range(a.scalar, signed=sign == "s")
        for number, asked in ((b, order), (a, _SWAPPED[order])):
            if number.constant in (least, greatest):
                answer = _AT_THE_END[asked if number.constant == greatest else _SWAPPED[asked]]
                if isinstance(answer, bool):
                    return constant(answer, "i1", max(a.lanes, b.lanes))
                return compare(f, answer, a, b)
        return compare(f, predicate, a, b)

    return emit


_SWAPPED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le"}
_AT_THE_END: Mapping[str, bool | str] = {"gt": False, "le": True, "ge": "eq", "lt": "ne"}
"""What a comparison with the greatest number says, or asks."""


def _range(scalar: str, *, signed: bool) -> tuple[int, int]:
    """The least and the greatest integer, as constants have them."""
    bits = scalar_bits(scalar)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, wrapped((1 << bits) - 1, bits))


def _floor_divide(f: Function, a: Value, b: Value, *, want: str) -> Value:
    """Signed division rounded down ("quotient"), or its remainder; 0 for a zero divisor."""
    if b.constant is not None and b.constant > 0:
        return _divide_by_positive(f, a, b, want=want)
    zero = like(a, 0)
    is_zero, is_minus_one = compare(f, "eq", b, zero), compare(f, "eq", b, like(a, -1))
    divisor = select(f, binary(f, "or", is_zero, is_minus_one), like(a, 1), b)
    remainder = binary(f, "srem", a, divisor)
    opposite = compare(f, "slt", binary(f, "xor", remainder, divisor), zero)
    adjust = binary(f, "and", compare(f, "ne", remainder, zero), opposite)
    if want == "remainder":
        return select(f, adjust, binary(f, "add", remainder, divisor), remainder)
    quotient = binary(f, "sdiv", a, divisor)
    quotient = select(f, adjust, binary(f, "sub", quotient, like(a, 1)), quotient)
    return select(f, is_zero, zero, select(f, is_minus_one, binary(f, "sub", zero, a), quotient))


def _divide_by_positive(f: Function, a: Value, b: Value, *, want: str) -> Value:
    divisor = int(b.constant or 0)
    if divisor & (divisor - 1) == 0:
        if want == "remainder":
            return binary(f, "and", a, like(a, divisor - 1))
        return binary(f, "ashr", a, like(a, divisor.bit_length() - 1))
    remainder = binary(f, "srem", a, b)
    is_negative = compare(f, "slt", remainder, like(a, 0))
    if want == "remainder":
        return select(f, is_negative, binary(f, "add", remainder, b), remainder)
    quotient = binary(f, "sdiv", a, b)
    return select(f, is_negative, binary(f, "sub", quotient, like(a, 1)), quotient)


def _unsigned_divide(f: Function, a: Value, b: Value, *, opcode: str) -> Value:
    if b.constant:
        return binary(f, opcode, a, b)
    zero = like(a, 0)
    is_zero = compare(f, "eq", b, zero)
    return select(f, is_zero, zero, binary(f, opcode, a, select(f, is_zero, like(a, 1), b)))


def _power(f: Function, a: Value, b: Value, *, signed: bool) -> Value:
    """Repeated squaring; an integer to a negative power is 0, 1 or -1."""
    if b.constant is not None and 0 <= b.constant <= 64:
        return _constant_power(f, a, int(b.constant))
    lanes = max(a.lanes, b.lanes)
    a, b = splat(f, a, lanes), splat(f, b, lanes)
    bits = int(a.scalar[1:])
    zero, one = constant(0, a.scalar, lanes), constant(1, a.scalar, lanes)
    slots = [f.alloca(a.type, 64) for _ in range(3)]
    result_slot, base_slot, rest_slot = slots
    for slot, start in zip(slots, (one, a, b), strict=True):
        f.write(slot, start)

    def step(_: Value) -> None:
        result, base, rest = (f.read(slot, a.scalar, lanes) for slot in slots)
        odd = compare(f, "ne", binary(f, "and", rest, one), zero)
        f.write(result_slot, select(f, odd, binary(f, "mul", result, base), result))
        f.write(base_slot, binary(f, "mul", base, base))
        f.write(rest_slot, binary(f, "lshr", rest, one))

    f.loop(constant(0, "i64"), constant(bits, "i64"), 1, step)
    power = f.read(result_slot, a.scalar, lanes)
    return _negative_power(f, a, b, power) if signed else power


def _negative_power(f: Function, a: Value, b: Value, power: Value) -> Value:
    zero, one, minus_one = like(a, 0), like(a, 1), like(a, -1)
    odd = compare(f, "ne", binary(f, "and", b, one), zero)
    of_minus_one = select(f, odd, splat(f, minus_one, a.lanes), splat(f, one, a.lanes))
    inverse = select(f, compare(f, "eq", a, minus_one), of_minus_one, splat(f, zero, a.lanes))
    inverse = select(f, compare(f, "eq", a, one), splat(f, one, a.lanes), inverse)
    return select(f, compare(f, "slt", b, zero), inverse, power)


def _constant_power(f: Function, a: Value, exponent: int) -> Value:
    result = like(a, 1)
    base = a
    while exponent:
        if exponent & 1:
            result = base if result.constant == 1 else binary(f, "mul", result, base)
        exponent >>= 1
        if exponent:
            base = binary(f, "mul", base, base)
    return splat(f, result, a.lanes)


def _int_extremum(f: Function, a: Value, b: Value, *, name: str, signed: bool) -> Value:
    """ "min" or "max". One with an end of the type's range is known, and LLVM 22 takes `max(x, ~0) - min(x, ~0)` of
    unsigned lanes for `x - ~0` (its absolute difference of them)."""
    least, greatest = _range(a.scalar, signed=signed)
    absorbing, neutral = (least, greatest) if name == "min" else (greatest, least)
    lanes = max(a.lanes, b.lanes)
    for one, other in ((a, b), (b, a)):
        if one.constant == absorbing:
            return splat(f, one, lanes)
        if one.constant == neutral:
            return splat(f, other, lanes)
    return intrinsic(f, f"{'s' if signed else 'u'}{name}", a, b)


def _int_sign(f: Function, a: Value, *, signed: bool) -> Value:
    zero, one = like(a, 0), like(a, 1)
    if not signed:
        return select(f, compare(f, "ne", a, zero), splat(f, one, a.lanes), splat(f, zero, a.lanes))
    positive = convert(f, "zext", compare(f, "sgt", a, zero), a.scalar)
    return binary(f, "sub", positive, convert(f, "zext", compare(f, "slt", a, zero), a.scalar))


def _absolute(f: Function, a: Value, *, signed: bool) -> Value:
    if not signed:
        return a
    return select(f, compare(f, "slt", a, like(a, 0)), binary(f, "sub", like(a, 0), a), a)


def _shift(f: Function, a: Value, b: Value, *, opcode: str) -> Value:
    bits = int(a.scalar[1:])
    inside = compare(f, "ult", b, like(a, bits))
    if opcode == "ashr":
        return binary(f, opcode, a, select(f, inside, b, splat(f, like(a, bits - 1), b.lanes)))
    shifted = binary(f, opcode, a, select(f, inside, b, splat(f, like(a, 0), b.lanes)))
    return select(f, inside, shifted, splat(f, like(a, 0), shifted.lanes))


def _inverted(f: Function, a: Value) -> Value:
    return _bitwise("xor", operator.xor)(f, a, like(a, -1))


def _integer_table(*, signed: bool) -> Mapping[str, Emit]:
    return _SIGNED if signed else _UNSIGNED


def _make_integer_table(*, signed: bool) -> Mapping[str, Emit]:
    prefix = "s" if signed else "u"
    table: dict[str, Emit] = {
        "add": _plain("add"),
        "sub": _plain("sub"),
        "mul": _bitwise("mul", operator.mul),
        "pow": partial(_power, signed=signed),
        "minimum": partial(_int_extremum, name="min", signed=signed),
        "maximum": partial(_int_extremum, name="max", signed=signed),
        "neg": lambda f, a: binary(f, "sub", like(a, 0), a),
        "abs": partial(_absolute, signed=signed),
        "sign": partial(_int_sign, signed=signed),
        "lt": _int_compare(f"{prefix}lt"),
        "le": _int_compare(f"{prefix}le"),
        "gt": _int_compare(f"{prefix}gt"),
        "ge": _int_compare(f"{prefix}ge"),
        "eq": _int_compare("eq"),
        "ne": _int_compare("ne"),
        "and": _bitwise("and", operator.and_),
        "or": _bitwise("or", operator.or_),
        "xor": _bitwise("xor", operator.xor),
        "not": _inverted,
        "shl": partial(_shift, opcode="shl"),
        "shr": partial(_shift, opcode="ashr" if signed else "lshr"),
    }
    if signed:
        table["floordiv"] = partial(_floor_divide, want="quotient")
        table["mod"] = partial(_floor_divide, want="remainder")
    else:
        table["floordiv"] = partial(_unsigned_divide, opcode="udiv")
        table["mod"] = partial(_unsigned_divide, opcode="urem")
    return table


_SIGNED = _make_integer_table(signed=True)
_UNSIGNED = _make_integer_table(signed=False)

_BOOL: Mapping[str, Emit] = {
    "minimum": _plain("and"),
    "maximum": _plain("or"),
    "lt": _int_compare("ult"),
    "le": _int_compare("ule"),
    "gt": _int_compare("ugt"),
    "ge": _int_compare("uge"),
    "eq": _int_compare("eq"),
    "ne": _int_compare("ne"),
    "and": _plain("and"),
    "or": _plain("or"),
    "xor": _plain("xor"),
    "not": _inverted,
}
