"""The numbers behind tiling: how well a loop suits lanes, and how much of a tile is used."""

from __future__ import annotations

from collections.abc import Sequence

from polyopt.dsl.affine import Affine, AxisRef, FloorDiv, axes_of
from polyopt.dsl.ir import DataIndex, Subscript
from polyopt.poly.scop import Statement

LEAST_PANEL = 8
"""Columns of the narrowest panel that vectors lie in; a quotient by less is not constant within a vector."""

CONTIGUOUS, INVARIANT, STRIDED = 2.0, 1.0, -6.0
"""Worth of one access in a vector loop: a vector load, a broadcast, a gather. A gather of 16 lanes costs about as
much as six vector loads (measured on AVX-512)."""


def axis_of(row: Affine) -> str | None:
    """The axis that a row scans alone, forwards or backwards."""
    if len(row.terms) == 1:
        atom, coefficient = row.terms[0]
        if isinstance(atom, AxisRef) and abs(coefficient) == 1:
            return atom.name
    return None


def lane_score(statement: Statement, axis: str, within: Affine | None = None) -> float:
    """How well the statement's accesses suit lanes along `axis`; larger is better, negative means gathers.

    within: the place in a group, where groups are what lanes hold: it is no step between them
    """
    accesses = [access.read.subscripts for access in statement.reads] + [statement.subscripts]
    held = [s[:-1] if within is not None and s and s[-1] == within else s for s in accesses]
    return sum(_access_score(subscripts, axis) for subscripts in held)


def _access_score(subscripts: Sequence[Subscript], axis: str) -> float:
    if not subscripts:
        return INVARIANT
    if any(moves(s, axis) for s in subscripts[:-1]):
        return STRIDED
    last = subscripts[-1]
    if not moves(last, axis):
        return INVARIANT
    if isinstance(last, DataIndex):
        return STRIDED
    return CONTIGUOUS if last.coefficient(AxisRef(axis)) == 1 else STRIDED


def moves(subscript: Subscript, axis: str) -> bool:
    """Whether a subscript differs between the lanes of a vector along the axis; a quotient, such as the number of a
    panel, is the same in all of them."""
    if isinstance(subscript, DataIndex):
        return True  # a lane's index is its own
    return any(
        (isinstance(atom, AxisRef) and atom.name == axis)
        or (isinstance(atom, FloorDiv) and atom.divisor < LEAST_PANEL and axis in axes_of(atom.numerator))
        for atom, _ in subscript.terms
    )


def is_transposed(statement: Statement, along: str, across: str) -> bool:
    """Whether some read is contiguous along one axis and strides along the other, as a transposed operand does."""
    for access in statement.reads:
        subscripts = access.read.subscripts
        if not subscripts or not all(isinstance(s, Affine) for s in subscripts):
            continue
        last = subscripts[-1]
        contiguous = isinstance(last, Affine) and last.coefficient(AxisRef(along)) == 1 and not moves(last, across)
        if contiguous and any(moves(s, across) for s in subscripts[:-1]):
            return True
    return False


def covered(extent: int, tile: int) -> float:
    """The share of a loop's last tile, and of all before it, that holds points of the loop."""
    return extent / (-(-extent // tile) * tile) if extent > 0 else 1.0
