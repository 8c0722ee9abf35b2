"""Tables that remember so much and no more: the oldest entries are forgotten first."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, TypeVar

Value = TypeVar("Value")

MOST = 4096
"""Entries that a table keeps."""


def put(table: dict[Hashable, Value], key: Hashable, value: Value, most: int | None = None) -> Value:
    """Remember a value, and return it. most: entries of this table, where it has fewer than others"""
    table[key] = value
    trim(table, most)
    return value


def trim(table: dict[Hashable, Any], most: int | None = None) -> None:
    """Forget what is too much. Safe beside other threads that do the same."""
    while len(table) > (MOST if most is None else most):
        try:
            oldest = next(iter(table))
        except (RuntimeError, StopIteration):  # another thread changed the table between the two steps
            continue
        table.pop(oldest, None)
