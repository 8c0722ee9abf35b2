"""The types of expressions while they are being elaborated: dtypes, weak Python scalars, and not known yet.

Promotion follows NumPy 2: a weak scalar takes the dtype of what it meets as long as its kind fits.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from polyopt.classes import dataclass
from polyopt.dtypes import DType, bool_, f16, f32, f64, i64, promote


@dataclass(frozen=True, slots=True)
class WeakType:
    """A Python scalar's type: "b", "i" or "f"."""

    kind: Literal["b", "i", "f"]


@dataclass(frozen=True, slots=True)
class Unknown:
    """The type of a tensor in a recurrence before its definitions have been seen."""


Type = DType | WeakType | Unknown

WEAK_BOOL, WEAK_INT, WEAK_FLOAT = WeakType("b"), WeakType("i"), WeakType("f")
UNKNOWN = Unknown()
_ORDER = "bif"


def join(types: Iterable[Type]) -> Type:
    """The common type of operands; unknown ones do not count."""
    result: Type = UNKNOWN
    for type_ in types:
        result = _join(result, type_)
    return result


def chosen(types: Iterable[Type]) -> Type:
    """The type of a choice between values of these, or of an element: NumPy's, which has one kind of booleans."""
    found = join(types)
    return bool_ if found == WEAK_BOOL else found


def _join(left: Type, right: Type) -> Type:
    if isinstance(left, Unknown):
        return right
    if isinstance(right, Unknown):
        return left
    if isinstance(left, WeakType):
        if isinstance(right, WeakType):
            return left if _ORDER.index(left.kind) >= _ORDER.index(right.kind) else right
        return _meet_weak(right, left)
    if isinstance(right, WeakType):
        return _meet_weak(left, right)
    return promote(left, right)


def _meet_weak(strong: DType, weak: WeakType) -> DType:
    if weak.kind == "b" or strong.is_float:
        return strong
    if weak.kind == "f":
        return f64
    return i64 if strong.is_bool else strong


def concrete(type_: Type) -> DType:
    """The dtype a type ends as when nothing else decides: i64 or f64 for Python's numbers."""
    match type_:
        case WeakType("b"):
            return bool_
        case WeakType("i"):
            return i64
        case DType():
            return type_
        case _:
            return f64


def as_float(type_: Type) -> Type:
    """The type of a floating-point function of an operand of this type, as NumPy's functions choose it."""
    match type_:
        case WeakType() if type_.kind != "f":
            return WEAK_FLOAT
        case DType() if not type_.is_float:
            return f16 if type_.bits == 8 else f32 if type_.bits == 16 else f64
        case _:
            return type_
