"""Compares a kernel's results with what they should be, and says where they are furthest off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyopt.classes import dataclass

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How far results may be off.

    rtol, atol: the user's: `atol + rtol * |expected|` instead of the computed bound; where only rtol is given, the
                bound takes the place of atol
    """

    rtol: float | None = None
    atol: float | None = None

    def allowed(self, expected: Array, bound: Array) -> Array:
        """The greatest difference per element. bound: the error that the arithmetic itself can have."""
        if self.rtol is None and self.atol is None:
            return bound
        floor = bound if self.atol is None else np.full(expected.shape, self.atol)
        size = np.abs(expected.astype(np.float64))
        return np.asarray(floor + (self.rtol or 0.0) * np.where(np.isfinite(size), size, 0.0))


@dataclass(frozen=True, slots=True)
class Difference:
    """The element of a result that is furthest outside its tolerance."""

    name: str
    index: tuple[int, ...]
    got: Any
    expected: Any
    off: float
    allowed: float
    count: int
    total: int
    dtype: str

    def __str__(self) -> str:
        place = f"{self.name}[{', '.join(map(str, self.index)) or '()'}]"
        return (
            f"{place} is {self.got} and should be {self.expected} ({self.dtype})\n"
            f"off by {self.off:.3g}, allowed {self.allowed:.3g}; {self.count} of {self.total} elements are off, "
            "this one the furthest"
        )


def difference(name: str, got: Array, expected: Array, allowed: Array) -> Difference | None:
    """The element furthest outside `allowed`; None where all are within. Equal NaNs and infinities are equal."""
    off = np.asarray(_distance(got, expected))
    wrong = ~(off <= allowed)
    if not wrong.any():
        return None
    excess = np.where(wrong, np.where(np.isinf(off), np.inf, off - np.minimum(allowed, off)), -1.0)
    index = tuple(map(int, np.unravel_index(int(np.argmax(excess)), got.shape)))
    return Difference(
        name,
        index,
        got[index],
        expected[index],
        float(off[index]),
        float(allowed[index]),
        int(np.count_nonzero(wrong)),
        got.size,
        str(got.dtype),
    )


def _distance(got: Array, expected: Array) -> Array:
    """|got - expected|: 0 for equal infinities and for two NaNs, infinite for one; exact for integers."""
    if got.dtype.kind in "iu" and expected.dtype.kind in "iu":
        exact = np.abs(np.asarray(got.astype(object) - expected.astype(object), dtype=object))  # i64, u64 have no more
        return np.asarray(exact, dtype=np.float64).reshape(got.shape)
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        off = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(off), np.inf, off))


def flatten(value: Any) -> dict[str, Any]:
    """The arrays of a result by where they stand in it: "result", "result[0]", "result['loss']", "result.loss"."""
    found: dict[str, Any] = {}
    _flatten(value, "result", found)
    return found


def _flatten(value: Any, place: str, found: dict[str, Any]) -> None:
    if isinstance(value, Mapping):
        for key, part in value.items():
            _flatten(part, f"{place}[{key!r}]", found)
    elif isinstance(value, tuple | list):
        names = getattr(value, "_fields", None)
        for number, part in enumerate(value):
            _flatten(part, f"{place}.{names[number]}" if names else f"{place}[{number}]", found)
    else:
        found[place] = value


def rebuild(like: Any, parts: list[Any]) -> Any:
    """`like` with its arrays, in the order of `flatten`, replaced by `parts`, which is used up."""
    if isinstance(like, Mapping):
        return {key: rebuild(part, parts) for key, part in like.items()}
    if isinstance(like, tuple | list):
        built = [rebuild(part, parts) for part in like]
        return type(like)(*built) if hasattr(like, "_fields") else type(like)(built)
    return parts.pop(0)
