"""The scop: statements with integer domains and access relations, every reduction a statement of its own.

A tensor's storage is one element per element; no order is implied. A *define* or *init* statement writes an
element once, an *update* combines a value into it, and every read from elsewhere sees the finished value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Literal

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine
from polyopt.dsl.ir import Expr, Read, Reducer, Subscript
from polyopt.dtypes import DType
from polyopt.errors import Span


@dataclass(frozen=True, slots=True)
class Array:
    """Storage of a tensor, or of the running value of a reduction inside an expression.

    shape:  extents, affine in the symbolic sizes
    padded: a panel, whose rows may end in elements that nothing defines
    of:     the user's tensor, where this holds its running value in a wider dtype
    """

    name: str
    dtype: DType
    shape: tuple[Affine, ...]
    role: Literal["input", "output", "local"]
    padded: bool = False
    of: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Access:
    """One read of a statement.

    read:     the reference in the statement's value
    relation: `{ S[i, j] -> A[a] }` on the instances that take the branches around the read; a subscript that
              is data is related to every element of its dimension
    """

    read: Read
    relation: isl.Map


@dataclass(frozen=True, eq=False)
class Statement:
    """One assignment, executed once per point of `domain`.

    domain: `{ S[i, j, k] : ... }`, in the statement's own space
    role:   "define": plain value; "init": a reduction's start value; "update": combines into the element
    write:  `{ S[i, j, k] -> A[a] }`
    reads:  one access per reference of `value`, in source order (an update's own running value is not among
            them)
    """

    name: str
    axes: tuple[str, ...]
    domain: isl.Set
    role: Literal["define", "init", "update"]
    array: str
    subscripts: tuple[Subscript, ...]
    value: Expr
    write: isl.Map
    reads: tuple[Access, ...]
    reducer: Reducer | None = None
    span: Span | None = None

    @property
    def is_update(self) -> bool:
        return self.role == "update"

    @cached_property
    def references(self) -> tuple[tuple[str, isl.Map], ...]:
        """The arrays that the value reads and the relations it reads them by, each one once: a value that squares
        a sum of nine elements makes 18 reads of nine kinds."""
        found: dict[str, list[isl.Map]] = {}
        for access in self.reads:
            own = found.setdefault(access.read.tensor, [])
            if not any(access.relation.plain_is_equal(relation) for relation in own):
                own.append(access.relation)
        return tuple((array, relation) for array, own in found.items() for relation in own)


@dataclass(frozen=True, eq=False)
class Scop:
    """All statements of a program, the arrays they touch and the sizes they depend on.

    statements: in source order, a reduction's init before its update
    context:    `[N] -> { : ... }`, what is known of the symbolic sizes
    """

    name: str
    sizes: tuple[str, ...]
    context: isl.Set
    arrays: tuple[Array, ...]
    statements: tuple[Statement, ...]

    @cached_property
    def _statements(self) -> Mapping[str, Statement]:
        return {s.name: s for s in self.statements}

    @cached_property
    def _arrays(self) -> Mapping[str, Array]:
        return {a.name: a for a in self.arrays}

    @cached_property
    def _writers(self) -> Mapping[str, tuple[Statement, ...]]:
        return _by_array((s, (s.array,)) for s in self.statements)

    @cached_property
    def _users(self) -> Mapping[str, tuple[Statement, ...]]:
        return _by_array((s, (*(access.read.tensor for access in s.reads), s.array)) for s in self.statements)

    def statement(self, name: str) -> Statement:
        return self._statements[name]

    def array(self, name: str) -> Array:
        return self._arrays[name]

    def writers(self, array: str) -> tuple[Statement, ...]:
        """The statements that write an array, in source order."""
        return self._writers.get(array, ())

    def users(self, array: str) -> tuple[Statement, ...]:
        """The statements that read or write an array, in source order."""
        return self._users.get(array, ())

    def __str__(self) -> str:
        """Arrays, then statements with their instances."""
        from polyopt.poly.text import scop_text  # the printer reads this module's types

        return scop_text(self)


def _by_array(found: Iterable[tuple[Statement, Iterable[str]]]) -> Mapping[str, tuple[Statement, ...]]:
    """The statements of each array that stands with one of them, in order."""
    result: dict[str, list[Statement]] = {}
    for statement, arrays in found:
        for array in dict.fromkeys(arrays):
            result.setdefault(array, []).append(statement)
    return {array: tuple(statements) for array, statements in result.items()}
