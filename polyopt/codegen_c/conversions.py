"""Conversions between dtypes, and between registers and memory.

A float that does not fit an integer gives the lowest integer of 32 or 64 bits, as x86 does; narrower integers then
wrap. 16-bit floats are held in registers as f32, already rounded.
"""

from __future__ import annotations

import struct
from functools import partial

from polyopt.codegen_c.llvm_text import Function, Value
from polyopt.codegen_c.values import (
    binary,
    compare,
    constant,
    convert,
    intrinsic,
    is_nan,
    like,
    register_scalar,
    select,
    splat,
)
from polyopt.dtypes import DType, bf16, f16, f64


def cast(f: Function, value: Value, source: DType, target: DType) -> Value:
    """What `dtypes.converted` gives."""
    if source == target:
        return value
    if value.constant is not None and not source.is_float and not target.is_float and not target.is_bool:
        number = int(value.constant) % (1 << source.bits) if source.kind == "u" else value.constant
        return constant(number, register_scalar(target), value.lanes)
    if target.is_bool:
        return compare(f, "une" if source.is_float else "ne", value, like(value, 0))
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
    low = compare(f, "oge", value, like(value, -limit))
    fits = binary(f, "and", low, compare(f, "olt", value, like(value, limit)))
    number = convert(f, "fptosi", select(f, fits, value, like(value, 0.0)), scalar)
    return select(f, fits, number, constant(-int(limit), scalar, value.lanes))


def _float_to_u64(f: Function, value: Value) -> Value:
    half = like(value, 2.0**63)
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
    return _rounded_to_brain(f, value) if dtype == bf16 else from_memory(f, to_memory(f, value, dtype), dtype)


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
    """The bits that are stored: i8 for a bool, i16 for a 16-bit float, which `value` is already rounded to."""
    if dtype.is_bool:
        return convert(f, "zext", value, "i8")
    if dtype == bf16:
        upper = binary(f, "lshr", convert(f, "bitcast", value, "i32"), constant(16, "i32"))
        return convert(f, "trunc", upper, "i16")
    if dtype == f16:
        return _half_bits(f, value)
    return value


def from_memory(f: Function, value: Value, dtype: DType) -> Value:
    """The register value of stored bits."""
    if dtype.is_bool:
        return compare(f, "ne", value, like(value, 0))
    if dtype == bf16:
        wide = binary(f, "shl", convert(f, "zext", value, "i32"), constant(16, "i32"))
        return convert(f, "bitcast", wide, "float")
    if dtype == f16:
        return _half_number(f, value)
    return value


def _rounded_to_brain(f: Function, value: Value) -> Value:
    """An f32 rounded to its upper half, to nearest even; NaN stays NaN."""
    bits = convert(f, "bitcast", value, "i32")
    odd = binary(f, "and", binary(f, "lshr", bits, constant(16, "i32")), constant(1, "i32"))
    near = binary(f, "add", bits, binary(f, "add", odd, constant(0x7FFF, "i32")))
    quiet = binary(f, "or", bits, constant(0x400000, "i32"))
    chosen = select(f, is_nan(f, value), quiet, near)
    return convert(f, "bitcast", binary(f, "and", chosen, constant(-0x10000, "i32")), "float")


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
