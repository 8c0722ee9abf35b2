"""The NumPy instance: the math functions evaluated on arrays, bit for bit as the compiled kernels compute them.

`call("exp", x)` takes arrays of f16, bf16, f32 or f64 and returns that dtype; the 16-bit formats are computed in
f32 and rounded once. NumPy has no fused multiply-add; `fused` emulates it exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyopt.codegen_c.vmath.builder import F32, F64, FloatPredicate, Format, IntPredicate
from polyopt.codegen_c.vmath.catalogue import FUNCTIONS
from polyopt.codegen_c.vmath.fused import fma32, fma64

Array = NDArray[Any]

_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "oeq": np.equal,
    "une": np.not_equal,
    "olt": np.less,
    "ole": np.less_equal,
    "ogt": np.greater,
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


def forms() -> dict[str, Callable[..., Array]]:
    """All functions, by name."""
    return {name: partial(call, name) for name in FUNCTIONS}


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
        shifted: Array = np.right_shift(a.view(self._unsigned), count.view(self._unsigned))
        return shifted.view(self._int_dtype)

    def icmp(self, predicate: IntPredicate, a: Array, b: Array) -> Array:
        return np.equal(a, b) if predicate == "eq" else np.less(a.view(self._unsigned), b.view(self._unsigned))

    def lookup(self, table: tuple[int, ...], index: Array) -> Array:
        values: Array = np.array(table, dtype=self._unsigned).view(self._int_dtype)
        return values[index]

    # --- between the sorts ---

    def as_int(self, a: Array) -> Array:
        bits: Array = a.view(self._int_dtype)
        return bits

    def as_float(self, a: Array) -> Array:
        floats: Array = a.view(self.float_dtype)
        return floats

    def widen(self, a: Array) -> Array:
        return a.astype(np.float64)

    def narrow(self, a: Array) -> Array:
        return a.astype(self.float_dtype)

    has_scaling = False

    def scaled(self, value: Array, n: Array) -> Array:
        raise AssertionError("the factors are multiplied here")

    # --- masks ---

    def mask_and(self, a: Array, b: Array) -> Array:
        return np.logical_and(a, b)

    def mask_or(self, a: Array, b: Array) -> Array:
        return np.logical_or(a, b)

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
