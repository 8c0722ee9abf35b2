"""The arrays of `out=`: found in the structure that the op returns, and fit to be written to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polyopt.errors import ArgumentError, with_article
from polyopt.runtime import arrays
from polyopt.runtime.arrays import Array


def by_position(out: Any, positions: Any, place: str) -> dict[int, Any]:
    """The arrays of `out` by position of the result. positions: the op's structure, holding these positions."""
    if isinstance(positions, int):
        return {positions: out}
    if isinstance(positions, dict):
        if not isinstance(out, Mapping) or set(out) != set(positions):
            raise _wrong_structure(place, f"a dictionary with the keys {', '.join(map(repr, positions))}", out)
        pairs = [(out[key], position, f"{place}[{key!r}]") for key, position in positions.items()]
    else:
        if not isinstance(out, tuple | list) or len(out) != len(positions):
            raise _wrong_structure(place, f"a tuple of {len(positions)} arrays", out)
        pairs = [(part, position, f"{place}[{n}]") for n, (part, position) in enumerate(zip(out, positions))]
    return {n: value for part, position, name in pairs for n, value in by_position(part, position, name).items()}


def _wrong_structure(place: str, wanted: str, found: Any) -> ArgumentError:
    return ArgumentError(
        f"{place} must be {wanted}, as the op returns",
        why=f"it is {_shown(found)}",
        fix="give arrays in the structure that a call without out= returns",
        facts={"place": place, "type": type(found).__name__},
    )


def _shown(found: Any) -> str:
    if isinstance(found, Mapping):
        return f"a dictionary with the keys {', '.join(map(repr, found))}" if found else "an empty dictionary"
    if isinstance(found, tuple | list):
        return f"{with_article(type(found).__name__)} of {len(found)}"
    return with_article(type(found).__name__)


def writable(value: Any, name: str) -> Array:
    """The memory of an array to write a result to. Raises `ArgumentError` for one that cannot be written."""
    array = arrays.accept_out(value, name)
    arrays.check_writable(array, name)
    return array
