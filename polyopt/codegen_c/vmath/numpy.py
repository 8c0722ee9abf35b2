"""The NumPy instance: the math functions evaluated on arrays, bit for bit as the compiled kernels compute them.

`call("exp", x)` takes arrays of f16, bf16, f32 or f64 and returns that dtype; the 16-bit formats are computed in
f32 and rounded once. NumPy has no fused multiply-add, so `fma32` and `fma64` emulate it exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyopt.codegen_c.vmath.builder import F32, F64, FloatPredicate, Format, IntPredicate
from polyopt.codegen_c.vmath.catalogue import FUNCTIONS

Array = NDArray[Any]

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "oeq": np.equal,
    "une": np.not_equal,
    "olt": np.less,
    "ole": np.less_equal,
    "ogt": np.greater,
    "oge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
    "slt": np.less,
    "sgt": np.greater,
}


def call(name: str, *operands: Any) -> Array:
    """The function `name` of arrays that broadcast; `operands` share one float dtype, which the result has."""
    arrays = np.broadcast_arrays(*map(np.asarray, operands))
    dtype = arrays[0].dtype
    assert all(a.dtype == dtype for a in arrays), "the operands of a math function share one dtype"
    builder = NumpyBuilder(F64 if dtype == np.float64 else F32)
    inputs = [np.atleast_1d(a).astype(builder.float_dtype) for a in arrays]
    with np.errstate(all="ignore"):
        result: Array = FUNCTIONS[name].body(builder, *inputs)
        return result.astype(dtype).reshape(arrays[0].shape)


class NumpyBuilder:
    """A `Builder` whose values are arrays; constants are arrays of one element."""

    def __init__(self, form: Format) -> None:
        self.format = form
        self.float_dtype: np.dtype[Any] = np.dtype(f"f{form.bits // 8}")
        self._int_dtype: np.dtype[Any] = np.dtype(f"i{form.bits // 8}")
        self._unsigned: np.dtype[Any] = np.dtype(f"u{form.bits // 8}")

    @property
    def wide(self) -> NumpyBuilder:
        return NumpyBuilder(F64)

    # --- floats ---

    def const(self, value: float) -> Array:
        return np.array([value], dtype=self.float_dtype)

    def fadd(self, a: Array, b: Array) -> Array:
        return np.add(a, b)

    def fsub(self, a: Array, b: Array) -> Array:
        return np.subtract(a, b)

    def fmul(self, a: Array, b: Array) -> Array:
        return np.multiply(a, b)

    def fdiv(self, a: Array, b: Array) -> Array:
        return np.divide(a, b)

    def fma(self, a: Array, b: Array, c: Array) -> Array:
        return fma32(a, b, c) if self.format is F32 else fma64(a, b, c)

    def fneg(self, a: Array) -> Array:
        return np.negative(a)

    def fabs(self, a: Array) -> Array:
        return np.abs(a)

    def copysign(self, magnitude: Array, sign: Array) -> Array:
        return np.copysign(magnitude, sign)

    def rint(self, a: Array) -> Array:
        return np.rint(a)

    def fcmp(self, predicate: FloatPredicate, a: Array, b: Array) -> Array:
        if predicate == "uno":
            return np.logical_or(np.isnan(a), np.isnan(b))
        return _COMPARE[predicate](a, b)

    # --- integers ---

    def iconst(self, value: int) -> Array:
        wrapped = value % (1 << self.format.bits)
        return np.array([wrapped], dtype=self._unsigned).view(self._int_dtype)

    def iadd(self, a: Array, b: Array) -> Array:
        return np.add(a, b)

    def isub(self, a: Array, b: Array) -> Array:
        return np.subtract(a, b)

    def imul(self, a: Array, b: Array) -> Array:
        return np.multiply(a, b)

    def iand(self, a: Array, b: Array) -> Array:
        return np.bitwise_and(a, b)

    def ior(self, a: Array, b: Array) -> Array:
        return np.bitwise_or(a, b)

    def shl(self, a: Array, count: Array) -> Array:
        return np.left_shift(a, count)

    def lshr(self, a: Array, count: Array) -> Array:
        return np.right_shift(a.view(self._unsigned), count.view(self._unsigned)).view(self._int_dtype)

    def ashr(self, a: Array, count: Array) -> Array:
        return np.right_shift(a, count)

    def icmp(self, predicate: IntPredicate, a: Array, b: Array) -> Array:
        return _COMPARE[predicate](a, b)

    def lookup(self, table: tuple[int, ...], index: Array) -> Array:
        values: Array = np.array(table, dtype=self._unsigned).view(self._int_dtype)
        return values[index]

    # --- between the sorts ---

    def as_int(self, a: Array) -> Array:
        return a.view(self._int_dtype)

    def as_float(self, a: Array) -> Array:
        return a.view(self.float_dtype)

    def int_to_float(self, a: Array) -> Array:
        return a.astype(self.float_dtype)

    def widen(self, a: Array) -> Array:
        return a.astype(np.float64)

    def narrow(self, a: Array) -> Array:
        return a.astype(self.float_dtype)

    # --- masks ---

    def mask_and(self, a: Array, b: Array) -> Array:
        return np.logical_and(a, b)

    def mask_or(self, a: Array, b: Array) -> Array:
        return np.logical_or(a, b)

    def mask_not(self, a: Array) -> Array:
        return np.logical_not(a)

    def select(self, mask: Array, then: Array, otherwise: Array) -> Array:
        return np.where(mask, then, otherwise)

    def select_int(self, mask: Array, then: Array, otherwise: Array) -> Array:
        return np.where(mask, then, otherwise)

    def select_rare(
        self, mask: Array, then: Callable[[], tuple[Array, ...]], otherwise: tuple[Array, ...]
    ) -> tuple[Array, ...]:
        if not mask.any():
            return otherwise
        return tuple(np.where(mask, value, other) for value, other in zip(then(), otherwise, strict=True))

    def outline(self, name: str, body: Callable[..., Array], operands: tuple[Array, ...]) -> Array:
        return body(self, *operands)


def fma32(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` of f32 arrays, rounded once.

    The product is exact in f64. Their sum is rounded to odd there, after which rounding to f32 is that of the exact
    value, since f64 has more than two bits to spare, for subnormal results too.
    Source: Boldo & Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE TC 2008.
    """
    product = np.multiply(a, b, dtype=np.float64)
    return _sum_to_odd(product, c.astype(np.float64)).astype(np.float32)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """`a * b + c` of f64 arrays, rounded once.

    Where the product and its rounding error are plain f64 numbers, by error-free transformations [BM08]; elsewhere
    (close to overflow or underflow, infinities, NaN) on operands scaled to [1/2, 1).
    """
    a, b, c = np.broadcast_arrays(a, b, c)
    result = _fma64_plain(a, b, c)
    with np.errstate(all="ignore"):
        product, size_a, size_b = np.abs(a * b), np.abs(a), np.abs(b)
        plain = (size_a < 2.0**990) & (size_b < 2.0**990) & (np.abs(c) < 2.0**1020)
        plain &= ((product > 2.0**-900) & (product < 2.0**1020)) | (a == 0) | (b == 0)
    rest = np.nonzero(~plain)
    if rest[0].size:
        result[rest] = _fma64_scaled(a[rest], b[rest], c[rest])
    return result


def _fma64_plain(a: Array, b: Array, c: Array) -> Array:
    high, low = _two_product(a, b)
    sum_high, sum_low = _two_sum(c, low)
    value, error = _two_sum(high, sum_high)
    return value + _sum_to_odd(sum_low, error)


def _fma64_scaled(a: Array, b: Array, c: Array) -> Array:
    """The same for all operands: with exponents taken out, and the last rounding at the subnormals' place."""
    (fa, ea), (fb, eb), (fc, ec) = np.frexp(a), np.frexp(b), np.frexp(c)
    scale = ea.astype(np.int64) + eb
    # a term 200 binades below the other decides nothing but the direction of the rounding, wherever it stands
    shift = np.clip(ec - scale, -200, 200)
    scale = np.where(ec - scale > 200, ec.astype(np.int64) - 200, scale)
    high, low = _two_product(fa, fb)
    sum_high, sum_low = _two_sum(np.ldexp(fc, shift), low)
    value, error = _two_sum(high, sum_high)
    rest = _sum_to_odd(sum_low, error)
    result = _times_power_of_two(value + rest, scale)
    # below the normal range: 2**52 units of the last place, added, make the sum round there
    unit_exponent = -1074 - scale
    tiny = np.abs(result) < 2.0**-1022
    anchor = np.copysign(np.ldexp(1.0, np.clip(unit_exponent + 52, -1000, 1000)), value)
    anchored, left = _two_sum(anchor, value)
    rounded = _times_power_of_two((anchored + _sum_to_odd(left, rest)) - anchor, scale)
    result = np.where(tiny & (result != 0) & (fc != 0), np.copysign(rounded, value), result)
    regular = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    exact_term = (fa == 0) | (fb == 0)
    single = np.where(fc == 0, _product_rounded_once(a, b) + c, result)
    return np.where(regular & ~exact_term, single, a * b + c)


def _product_rounded_once(a: Array, b: Array) -> Array:
    return a * b


def _times_power_of_two(value: Array, exponent: Array) -> Array:
    """`value * 2**exponent` for any exponent, exact unless the result leaves the normal range."""
    half = np.clip(exponent, -2200, 2200) // 2
    return np.ldexp(np.ldexp(value, half), np.clip(exponent, -2200, 2200) - half)


def _sum_to_odd(a: Array, b: Array) -> Array:
    """`a + b` rounded to odd: where inexact, the neighbor whose last bit is 1."""
    total, error = _two_sum(a, b)
    bits = total.view(np.int64)
    inexact = np.isfinite(error) & (error != 0) & (bits & 1 == 0)
    outwards = (error > 0) == (total > 0)
    odd: Array = np.where(inexact, bits + np.where(outwards, 1, -1), bits)
    return odd.view(np.float64)


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """`a + b` and its rounding error (Knuth)."""
    total = a + b
    shadow = total - a
    return total, (a - (total - shadow)) + (b - shadow)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """`a * b` and its rounding error (Dekker, with Veltkamp's splitting)."""
    product = a * b
    (a_high, a_low), (b_high, b_low) = _halves(a), _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _halves(a: Array) -> tuple[Array, Array]:
    scaled = a * 134217729.0  # 2**27 + 1
    high = scaled - (scaled - a)
    return high, a - high
