"""The element types of the language, their NumPy counterparts and promotion.

A dtype doubles as an annotation: `f32[M, K]` is a tensor type, bare `f32` a run-time scalar.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Optional

import numpy as np
from numpy.typing import NDArray

from polyopt.classes import dataclass
from polyopt.errors import DefinitionError, DTypeError

Array = NDArray[Any]
Kind = Literal["b", "i", "u", "f"]
ARRAY_PROTOCOLS = ("__dlpack__", "__array_interface__", "__cuda_array_interface__")
"""What arrays have, of whatever library: the attributes by which others get at their memory."""


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    kind: "b" boolean, "i" signed, "u" unsigned, "f" floating point
    bits: storage size; a boolean is stored in 8 bits
    """

    name: str
    kind: Kind
    bits: int

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "f"

    @property
    def is_integer(self) -> bool:
        return self.kind in "iu"

    @property
    def is_bool(self) -> bool:
        return self.kind == "b"

    @property
    def numpy(self) -> np.dtype:
        """The NumPy dtype. Raises `DTypeError` for bf16 where ml_dtypes is not installed."""
        if self.name == "bf16":
            return _bfloat16()
        return np.dtype(
            {"b": "?", "i": "i", "u": "u", "f": "f"}[self.kind] + ("" if self.is_bool else str(self.itemsize))
        )

    def __getitem__(self, dims: object) -> TensorType:
        return TensorType(self, dims if isinstance(dims, tuple) else (dims,))

    def __or__(self, other: object) -> object:
        return _or_none(self, other)

    __ror__ = __or__

    def __repr__(self) -> str:
        return self.name

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor annotation. dims: sizes as integers, names, or affine expressions over sizes."""

    dtype: DType
    dims: tuple[object, ...]

    def __or__(self, other: object) -> object:
        return _or_none(self, other)

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.dims)) or '()'}]"


def _or_none(one: DType | TensorType, other: object) -> object:
    """The annotation `f32[M, K] | None`. Raises `DefinitionError` for any other alternative."""
    if other is None or other is type(None):
        return Optional[one]  # noqa: UP045  # `one` is no class, and has this as its `|`
    raise alternatives((one, other))


def alternatives(kinds: Sequence[object]) -> DefinitionError:
    """The error for a parameter that is annotated as one of several kinds."""
    return DefinitionError(
        f"a parameter of an op cannot be one of {' and '.join(map(annotation_text, kinds))}",
        why="Each tensor or scalar of an op has one dtype and shape; only None may stand beside it.",
        fix="give the parameter no annotation, or write two ops.",
    )


def annotation_text(annotation: object) -> str:
    """An annotation as it is written."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


bool_ = DType("bool", "b", 8)
i8 = DType("i8", "i", 8)
i16 = DType("i16", "i", 16)
i32 = DType("i32", "i", 32)
i64 = DType("i64", "i", 64)
u8 = DType("u8", "u", 8)
u16 = DType("u16", "u", 16)
u32 = DType("u32", "u", 32)
u64 = DType("u64", "u", 64)
f16 = DType("f16", "f", 16)
bf16 = DType("bf16", "f", 16)
f32 = DType("f32", "f", 32)
f64 = DType("f64", "f", 64)

ALL = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64)
_BY_NAME = {dtype.name: dtype for dtype in ALL}


def _bfloat16() -> np.dtype[Any]:
    try:
        import ml_dtypes  # bf16 is an extra: NumPy itself has no such dtype
    except ImportError:
        raise DTypeError(
            "bf16 arrays need the package ml_dtypes", fix="pip install 'polyopt[bf16]'", facts={"dtype": "bf16"}
        ) from None
    bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
    return bfloat16


def from_name(name: str) -> DType:
    """The dtype called `name` ("f32"). Raises `DTypeError` for any other name."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    raise DTypeError(f"there is no dtype '{name}'", fix=f"one of {', '.join(_BY_NAME)}", facts={"dtype": name})


def from_numpy(dtype: np.dtype) -> DType:
    """The dtype of a NumPy dtype. Raises `DTypeError` for objects, complex, structured and other-endian ones."""
    if dtype.name == "bfloat16":
        return bf16
    if dtype.isnative and dtype.kind == "b":
        return bool_
    found = _BY_NAME.get(f"{dtype.kind}{8 * dtype.itemsize}")
    if dtype.isnative and dtype.kind in "iuf" and found is not None:
        return found
    reason = "is not in this machine's byte order" if not dtype.isnative else "is not supported"
    raise DTypeError(
        f"dtype {dtype} {reason}",
        why=f"supported dtypes: {', '.join(_BY_NAME)}",
        fix="convert the array with .astype(...)" if dtype.isnative else "x.astype(x.dtype.newbyteorder('='))",
        facts={"dtype": str(dtype)},
    )


def promote(left: DType, right: DType) -> DType:
    """The common dtype of two strong operands, as NumPy 2 promotes them; bf16 with f16 gives f32."""
    if left == right:
        return left
    if bf16 in (left, right):
        other = right if left == bf16 else left
        if other.is_bool or (other.is_integer and other.bits == 8):
            return bf16
        if other == f16:
            return f32
        return promote(f32 if other.is_integer and other.bits <= 16 else f64 if other.is_integer else other, other)
    return from_numpy(np.promote_types(left.numpy, right.numpy))


def converted(values: Array, dtype: DType) -> Array:
    """The values in another dtype, as `numpy.ndarray.astype` where that says what they are.

    A float is truncated to an integer. One that does not fit, NaN and infinities among them, gives the lowest number of
    32 bits, or of 64 for i64, u32 and u64, as x86's conversions do, of which narrower dtypes keep the low bits; as u64,
    2**64 and more is 0. NumPy leaves that to the processor and to how far an array reaches.
    """
    if not dtype.is_integer or values.dtype.kind in "biu":
        return values.astype(dtype.numpy, copy=False)
    numbers = values.astype(np.float64)
    wide = np.int64 if dtype.bits == 64 or dtype.name == "u32" else np.int32
    if dtype.name != "u64":
        return _truncated(numbers, wide).astype(dtype.numpy)
    above = _truncated(numbers - 2.0**63, wide) ^ np.int64(-(2**63))
    return np.where(numbers >= 2.0**63, above, _truncated(numbers, wide)).astype(dtype.numpy)


def _truncated(numbers: Array, wide: type[np.int32] | type[np.int64]) -> Array:
    """Numbers without what follows the point; the lowest of `wide` where they do not fit."""
    limit = 2.0 ** (8 * np.dtype(wide).itemsize - 1)
    fits = (numbers >= -limit) & (numbers < limit)
    return np.where(fits, np.where(fits, numbers, 0).astype(wide), np.iinfo(wide).min)


def accumulator(dtype: DType) -> DType:
    """The dtype a sum or product over `dtype` runs in: f32 for f16/bf16, i32 for bool and narrow integers."""
    if dtype in (f16, bf16):
        return f32
    if dtype.is_bool or (dtype.is_integer and dtype.bits < 32):
        return i32
    return dtype
