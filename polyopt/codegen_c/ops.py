"""The operations of `dsl.builtins` and the conversions between dtypes, as LLVM instructions.

Every operation is total: integers wrap, a division by zero gives 0, a shift by too much shifts everything out,
a float too large for an integer gives the lowest integer, as x86 does. Values are those of
`values.register_scalar`; f16 and bf16 are computed in f32 and rounded after each operation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from polyopt.codegen_c.llvm_text import Function, Value
from polyopt.codegen_c.values import (
    binary,
    compare,
    constant,
    convert,
    intrinsic,
    register_scalar,
    select,
    splat,
)
from polyopt.dtypes import DType, bf16, f16, f32, f64

Emit = Callable[..., Value]


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


def _float_compare(predicate: str) -> Emit:
    return lambda f, a, b: compare(f, predicate, a, b)


def _like(value: Value, number: float) -> Value:
    return constant(number, value.scalar)


def is_nan(f: Function, a: Value) -> Value:
    return compare(f, "uno", a, a)


def _extremum(f: Function, a: Value, b: Value, *, predicate: str) -> Value:
    """The larger ("ogt") or smaller ("olt"); NaN if either is. One comparison where one operand is a number."""
    for number, other in ((a, b), (b, a)):
        if number.constant is not None and number.constant == number.constant:
            return select(f, compare(f, predicate, number, other), number, other)
    chosen = select(f, compare(f, predicate, a, b), a, b)
    return select(f, is_nan(f, a), a, chosen)


def _float_sign(f: Function, a: Value) -> Value:
    zero, one = _like(a, 0.0), _like(a, 1.0)
    positive = select(f, compare(f, "ogt", a, zero), one, zero)
    signed = select(f, compare(f, "olt", a, zero), _like(a, -1.0), positive)
    return select(f, is_nan(f, a), a, signed)


def _is_infinite(f: Function, a: Value) -> Value:
    return compare(f, "oeq", intrinsic(f, "fabs", a), _like(a, float("inf")))


def _divide_floored(f: Function, a: Value, b: Value) -> tuple[Value, Value]:
    """Quotient and remainder as NumPy's `divmod` of floats computes them, for b != 0."""
    zero, one = _like(a, 0.0), _like(a, 1.0)
    remainder = binary(f, "frem", a, b)
    quotient = binary(f, "fdiv", binary(f, "fsub", a, remainder), b)
    inexact = compare(f, "une", remainder, zero)
    opposite = binary(f, "xor", compare(f, "olt", b, zero), compare(f, "olt", remainder, zero))
    adjust = binary(f, "and", inexact, opposite)
    modulus = select(f, adjust, binary(f, "fadd", remainder, b), remainder)
    modulus = select(f, inexact, modulus, intrinsic(f, "copysign", zero, b))
    quotient = select(f, adjust, binary(f, "fsub", quotient, one), quotient)
    return quotient, modulus


def _float_floordiv(f: Function, a: Value, b: Value) -> Value:
    zero = _like(a, 0.0)
    quotient, _ = _divide_floored(f, a, b)
    whole = intrinsic(f, "floor", quotient)
    too_low = compare(f, "ogt", binary(f, "fsub", quotient, whole), _like(a, 0.5))
    whole = select(f, too_low, binary(f, "fadd", whole, _like(a, 1.0)), whole)
    plain = binary(f, "fdiv", a, b)
    whole = select(f, compare(f, "une", quotient, zero), whole, intrinsic(f, "copysign", zero, plain))
    return select(f, compare(f, "oeq", b, zero), plain, whole)


def _float_mod(f: Function, a: Value, b: Value) -> Value:
    _, modulus = _divide_floored(f, a, b)
    return select(f, compare(f, "oeq", b, _like(a, 0.0)), binary(f, "frem", a, b), modulus)


def _unary(name: str) -> Emit:
    return lambda f, a: intrinsic(f, name, a)


def _negated(f: Function, a: Value) -> Value:
    return f.instruction(f"fneg {a}", a.scalar, a.lanes, [a])


_FLOAT: Mapping[str, Emit] = {
    "add": _arithmetic("fadd"),
    "sub": _arithmetic("fsub"),
    "mul": _arithmetic("fmul"),
    "truediv": _arithmetic("fdiv"),
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


def _int_compare(predicate: str) -> Emit:
    return lambda f, a, b: compare(f, predicate, a, b)


def _floor_divide(f: Function, a: Value, b: Value, *, want: str) -> Value:
    """Signed division rounded down ("quotient"), or its remainder; 0 for a zero divisor."""
    if b.constant is not None and b.constant > 0:
        return _divide_by_positive(f, a, b, want=want)
    zero = _like(a, 0)
    is_zero, is_minus_one = compare(f, "eq", b, zero), compare(f, "eq", b, _like(a, -1))
    divisor = select(f, binary(f, "or", is_zero, is_minus_one), _like(a, 1), b)
    remainder = binary(f, "srem", a, divisor)
    opposite = compare(f, "slt", binary(f, "xor", remainder, divisor), zero)
    adjust = binary(f, "and", compare(f, "ne", remainder, zero), opposite)
    if want == "remainder":
        return select(f, adjust, binary(f, "add", remainder, divisor), remainder)
    quotient = binary(f, "sdiv", a, divisor)
    quotient = select(f, adjust, binary(f, "sub", quotient, _like(a, 1)), quotient)
    return select(f, is_zero, zero, select(f, is_minus_one, binary(f, "sub", zero, a), quotient))


def _divide_by_positive(f: Function, a: Value, b: Value, *, want: str) -> Value:
    divisor = int(b.constant or 0)
    if divisor & (divisor - 1) == 0:
        if want == "remainder":
            return binary(f, "and", a, _like(a, divisor - 1))
        return binary(f, "ashr", a, _like(a, divisor.bit_length() - 1))
    remainder = binary(f, "srem", a, b)
    is_negative = compare(f, "slt", remainder, _like(a, 0))
    if want == "remainder":
        return select(f, is_negative, binary(f, "add", remainder, b), remainder)
    quotient = binary(f, "sdiv", a, b)
    return select(f, is_negative, binary(f, "sub", quotient, _like(a, 1)), quotient)


def _unsigned_divide(f: Function, a: Value, b: Value, *, opcode: str) -> Value:
    if b.constant:
        return binary(f, opcode, a, b)
    zero = _like(a, 0)
    is_zero = compare(f, "eq", b, zero)
    return select(f, is_zero, zero, binary(f, opcode, a, select(f, is_zero, _like(a, 1), b)))


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
    zero, one, minus_one = _like(a, 0), _like(a, 1), _like(a, -1)
    odd = compare(f, "ne", binary(f, "and", b, one), zero)
    of_minus_one = select(f, odd, splat(f, minus_one, a.lanes), splat(f, one, a.lanes))
    inverse = select(f, compare(f, "eq", a, minus_one), of_minus_one, splat(f, zero, a.lanes))
    inverse = select(f, compare(f, "eq", a, one), splat(f, one, a.lanes), inverse)
    return select(f, compare(f, "slt", b, zero), inverse, power)


def _constant_power(f: Function, a: Value, exponent: int) -> Value:
    result = _like(a, 1)
    base = a
    while exponent:
        if exponent & 1:
            result = base if result.constant == 1 else binary(f, "mul", result, base)
        exponent >>= 1
        if exponent:
            base = binary(f, "mul", base, base)
    return splat(f, result, a.lanes)


def _int_extremum(name: str) -> Emit:
    return lambda f, a, b: intrinsic(f, name, a, b)


def _int_sign(f: Function, a: Value, *, signed: bool) -> Value:
    zero, one = _like(a, 0), _like(a, 1)
    if not signed:
        return select(f, compare(f, "ne", a, zero), splat(f, one, a.lanes), splat(f, zero, a.lanes))
    positive = convert(f, "zext", compare(f, "sgt", a, zero), a.scalar)
    return binary(f, "sub", positive, convert(f, "zext", compare(f, "slt", a, zero), a.scalar))


def _absolute(f: Function, a: Value, *, signed: bool) -> Value:
    if not signed:
        return a
    return select(f, compare(f, "slt", a, _like(a, 0)), binary(f, "sub", _like(a, 0), a), a)


def _shift(f: Function, a: Value, b: Value, *, opcode: str) -> Value:
    bits = int(a.scalar[1:])
    inside = compare(f, "ult", b, _like(a, bits))
    if opcode != "shl":
        return binary(f, opcode, a, select(f, inside, b, splat(f, _like(a, bits - 1), b.lanes)))
    shifted = binary(f, opcode, a, select(f, inside, b, splat(f, _like(a, 0), b.lanes)))
    return select(f, inside, shifted, splat(f, _like(a, 0), shifted.lanes))


def _inverted(f: Function, a: Value) -> Value:
    return binary(f, "xor", a, _like(a, -1))


def _integer_table(*, signed: bool) -> Mapping[str, Emit]:
    return _SIGNED if signed else _UNSIGNED


def _make_integer_table(*, signed: bool) -> Mapping[str, Emit]:
    prefix = "s" if signed else "u"
    table: dict[str, Emit] = {
        "add": _plain("add"),
        "sub": _plain("sub"),
        "mul": _plain("mul"),
        "pow": partial(_power, signed=signed),
        "minimum": _int_extremum(f"{prefix}min"),
        "maximum": _int_extremum(f"{prefix}max"),
        "neg": lambda f, a: binary(f, "sub", _like(a, 0), a),
        "abs": partial(_absolute, signed=signed),
        "sign": partial(_int_sign, signed=signed),
        "lt": _int_compare(f"{prefix}lt"),
        "le": _int_compare(f"{prefix}le"),
        "gt": _int_compare(f"{prefix}gt"),
        "ge": _int_compare(f"{prefix}ge"),
        "eq": _int_compare("eq"),
        "ne": _int_compare("ne"),
        "and": _plain("and"),
        "or": _plain("or"),
        "xor": _plain("xor"),
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


# --- conversions ----------------------------------------------------------------------------------------------


def cast(f: Function, value: Value, source: DType, target: DType) -> Value:
    """NumPy's astype."""
    if source == target:
        return value
    if value.constant is not None and not source.is_float and not target.is_float and not target.is_bool:
        number = int(value.constant) % (1 << source.bits) if source.kind == "u" else value.constant
        return constant(number, register_scalar(target), value.lanes)
    if target.is_bool:
        return compare(f, "une" if source.is_float else "ne", value, _like(value, 0))
    if source.is_float:
        return _from_float(f, value, source, target)
    if target.is_float:
        return _int_to_float(f, value, source, target)
    if source.bits >= target.bits and not source.is_bool:
        return convert(f, "trunc", value, register_scalar(target))
    return convert(f, "sext" if source.kind == "i" else "zext", value, register_scalar(target))


def _int_to_float(f: Function, value: Value, source: DType, target: DType) -> Value:
    opcode = "sitofp" if source.kind == "i" else "uitofp"
    return rounded(f, convert(f, opcode, value, register_scalar(target)), target)


def _from_float(f: Function, value: Value, source: DType, target: DType) -> Value:
    if not target.is_float:
        return _float_to_int(f, value, target)
    if target == f64:
        return convert(f, "fpext", value, "double")
    if source == f64:
        narrow = _rounded_to_odd(f, value) if target == f16 else convert(f, "fptrunc", value, "float")
        return rounded(f, narrow, target)
    return rounded(f, value, target)


def _float_to_int(f: Function, value: Value, target: DType) -> Value:
    """Truncation; what does not fit in 32 or 64 bits gives the lowest integer, then narrow types wrap."""
    if target.kind == "u" and target.bits == 64:
        return _float_to_u64(f, value)
    wide = "i64" if target.bits == 64 or target.name == "u32" else "i32"
    return convert(f, "trunc", _truncated(f, value, wide), register_scalar(target))


def _truncated(f: Function, value: Value, scalar: str) -> Value:
    limit = 2.0 ** (int(scalar[1:]) - 1)
    low = compare(f, "oge", value, _like(value, -limit))
    fits = binary(f, "and", low, compare(f, "olt", value, _like(value, limit)))
    number = convert(f, "fptosi", select(f, fits, value, _like(value, 0.0)), scalar)
    return select(f, fits, number, constant(-int(limit), scalar, value.lanes))


def _float_to_u64(f: Function, value: Value) -> Value:
    half = _like(value, 2.0**63)
    is_large = compare(f, "oge", value, half)
    above = _truncated(f, binary(f, "fsub", value, half), "i64")
    high = binary(f, "xor", above, constant(-(2**63), "i64"))
    return select(f, is_large, high, _truncated(f, value, "i64"))


def _rounded_to_odd(f: Function, value: Value) -> Value:
    """An f64 as f32 such that rounding once more to f16 is right: inexact results get an odd significand."""
    nearest = convert(f, "fptrunc", value, "float")
    back = convert(f, "fpext", nearest, "double")
    bits = convert(f, "bitcast", nearest, "i32")
    beyond = compare(f, "ogt", intrinsic(f, "fabs", back), intrinsic(f, "fabs", value))
    inexact = binary(f, "and", compare(f, "one", back, value), compare(f, "ord", value, value))
    towards_zero = binary(f, "sub", bits, convert(f, "zext", beyond, "i32"))
    odd = binary(f, "or", towards_zero, constant(1, "i32"))
    return convert(f, "bitcast", select(f, inexact, odd, bits), "float")


def rounded(f: Function, value: Value, dtype: DType) -> Value:
    """An f32 rounded to f16 or bf16 and held as f32; values of other dtypes unchanged."""
    if dtype not in (f16, bf16):
        return value
    if value.constant is not None:
        return constant(rounded_number(float(value.constant), dtype), "float", value.lanes)
    return from_memory(f, to_memory(f, value, dtype), dtype)


def rounded_number(number: float, dtype: DType) -> float:
    """The number of `dtype` (f16 or bf16) nearest to an f32."""
    if dtype == f16:
        try:
            return float(struct.unpack("<e", struct.pack("<e", number))[0])
        except OverflowError:  # struct refuses to round a finite number to infinity
            return float("inf") if number > 0 else float("-inf")
    if number != number:
        return number
    bits = int(struct.unpack("<I", struct.pack("<f", number))[0])
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


# --- memory ---------------------------------------------------------------------------------------------------


def to_memory(f: Function, value: Value, dtype: DType) -> Value:
    """The bits that are stored: i8 for a bool, i16 for a 16-bit float."""
    if dtype.is_bool:
        return convert(f, "zext", value, "i8")
    if dtype == bf16:
        return _brain_bits(f, value)
    if dtype == f16:
        return _half_bits(f, value)
    return value


def from_memory(f: Function, value: Value, dtype: DType) -> Value:
    """The register value of stored bits."""
    if dtype.is_bool:
        return compare(f, "ne", value, _like(value, 0))
    if dtype == bf16:
        wide = binary(f, "shl", convert(f, "zext", value, "i32"), constant(16, "i32"))
        return convert(f, "bitcast", wide, "float")
    if dtype == f16:
        return _half_number(f, value)
    return value


def _brain_bits(f: Function, value: Value) -> Value:
    """The upper half of an f32, rounded to nearest even; NaN stays NaN."""
    bits = convert(f, "bitcast", value, "i32")
    odd = binary(f, "and", binary(f, "lshr", bits, constant(16, "i32")), constant(1, "i32"))
    near = binary(f, "add", bits, binary(f, "add", odd, constant(0x7FFF, "i32")))
    quiet = binary(f, "or", bits, constant(0x400000, "i32"))
    chosen = select(f, is_nan(f, value), quiet, near)
    return convert(f, "trunc", binary(f, "lshr", chosen, constant(16, "i32")), "i16")


def _half_bits(f: Function, value: Value) -> Value:
    if f.has_half:
        return convert(f, "bitcast", convert(f, "fptrunc", value, "half"), "i16")
    word = partial(constant, scalar="i32")
    bits = convert(f, "bitcast", value, "i32")
    magnitude = binary(f, "and", bits, word(0x7FFFFFFF))
    is_nan_or_inf = select(
        f, is_nan(f, value), splat(f, word(0x7E00), value.lanes), splat(f, word(0x7C00), value.lanes)
    )
    # Below the normal range, adding 0.5 lets the float unit round at the subnormal's last place.
    shifted = binary(f, "fadd", convert(f, "bitcast", magnitude, "float"), constant(0.5, "float"))
    subnormal = binary(f, "sub", convert(f, "bitcast", shifted, "i32"), word(0x3F000000))
    odd = binary(f, "and", binary(f, "lshr", magnitude, word(13)), word(1))
    rebased = binary(f, "add", binary(f, "add", magnitude, word(0xC8000FFF)), odd)
    normal = binary(f, "lshr", rebased, word(13))
    small = select(f, compare(f, "ult", magnitude, word(0x38800000)), subnormal, normal)
    chosen = select(f, compare(f, "uge", magnitude, word(0x47800000)), is_nan_or_inf, small)
    sign = binary(f, "and", binary(f, "lshr", bits, word(16)), word(0x8000))
    return convert(f, "trunc", binary(f, "or", chosen, sign), "i16")


def _half_number(f: Function, value: Value) -> Value:
    if f.has_half:
        return convert(f, "fpext", convert(f, "bitcast", value, "half"), "float")
    word = partial(constant, scalar="i32")
    bits = convert(f, "zext", value, "i32")
    magnitude = binary(f, "shl", binary(f, "and", bits, word(0x7FFF)), word(13))
    exponent = binary(f, "and", magnitude, word(0x0F800000))
    normal = binary(f, "add", magnitude, word(112 << 23))
    special = binary(f, "add", normal, word(112 << 23))
    above = convert(f, "bitcast", binary(f, "add", normal, word(1 << 23)), "float")
    subnormal = convert(f, "bitcast", binary(f, "fsub", above, constant(2.0**-14, "float")), "i32")
    small = select(f, compare(f, "eq", exponent, word(0)), subnormal, normal)
    chosen = select(f, compare(f, "eq", exponent, word(0x0F800000)), special, small)
    sign = binary(f, "shl", binary(f, "and", bits, word(0x8000)), word(16))
    return convert(f, "bitcast", binary(f, "or", chosen, sign), "float")
