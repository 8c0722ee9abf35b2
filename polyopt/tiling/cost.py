"""The numbers behind tiling: how well a loop suits lanes, and which register tile to take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polyopt.dsl.affine import Affine, AxisRef, axes_of
from polyopt.dsl.ir import DataIndex, Subscript
from polyopt.poly.scop import Statement

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


def lane_score(statement: Statement, axis: str) -> float:
    """How well the statement's accesses suit lanes along `axis`; larger is better, negative means gathers."""
    accesses = [access.read.subscripts for access in statement.reads] + [statement.subscripts]
    return sum(_access_score(subscripts, axis) for subscripts in accesses)


def _access_score(subscripts: Sequence[Subscript], axis: str) -> float:
    if not subscripts:
        return INVARIANT
    if any(_depends(s, axis) for s in subscripts[:-1]):
        return STRIDED
    last = subscripts[-1]
    if not _depends(last, axis):
        return INVARIANT
    if isinstance(last, DataIndex):
        return STRIDED
    return CONTIGUOUS if last.coefficient(AxisRef(axis)) == 1 else STRIDED


def _depends(subscript: Subscript, axis: str) -> bool:
    if isinstance(subscript, DataIndex):
        return True  # a lane's index is its own
    return axis in axes_of(subscript)


def is_transposed(statement: Statement, along: str, across: str) -> bool:
    """Whether some read is contiguous along one axis and strides along the other, as a transposed operand does."""
    for access in statement.reads:
        subscripts = access.read.subscripts
        if not subscripts or not all(isinstance(s, Affine) for s in subscripts):
            continue
        last = subscripts[-1]
        contiguous = isinstance(last, Affine) and last.coefficient(AxisRef(along)) == 1 and not _depends(last, across)
        if contiguous and any(_depends(s, across) for s in subscripts[:-1]):
            return True
    return False


def register_tiles(registers: int, lanes: int, rows: int, columns: int) -> Iterator[tuple[float, int, int]]:
    """(merit, rows, vectors) of every register tile that fits.

    merit: multiply-adds per load, times the share of the iteration space that full tiles cover. Accumulators,
    one row of operand vectors and one broadcast must fit the register file. Source: [BLIS15], section 3.
    """
    for vectors in range(1, 5):
        for height in range(1, 15):
            if height * vectors + vectors + 1 > registers or height > max(rows, 1):
                continue
            if vectors > 1 and (vectors - 1) * lanes >= columns:
                continue
            full = covered(rows, height) * covered(columns, vectors * lanes)
            yield height * vectors / (height + vectors) * full, height, vectors


def covered(extent: int, tile: int) -> float:
    """The share of a loop's last tile, and of all before it, that holds points of the loop."""
    return extent / (-(-extent // tile) * tile) if extent > 0 else 1.0
