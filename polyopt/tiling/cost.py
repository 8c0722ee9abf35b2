"""The numbers behind tiling: how well a loop suits lanes, and how much of a tile is used."""

from __future__ import annotations

from collections.abc import Sequence

from polyopt.dsl.affine import Affine, AxisRef, FloorDiv, axes_of
from polyopt.dsl.ir import DataIndex, Subscript
from polyopt.poly.scop import Statement
from polyopt.tiling.steps import LEAST_PANEL, Steps

CONTIGUOUS, INVARIANT, NEAR, STRIDED = 2.0, 1.0, 0.5, -6.0
"""Worth of one access in a vector loop: a vector load, a broadcast, a few vectors of which every second to fourth
element is taken, a gather. A gather of 16 lanes costs about as much as six vector loads (measured on AVX-512)."""

NEAR_STEPS = (-1, 2, 3, 4)
"""Elements between neighboring lanes that cost some vectors and shuffles."""


def axis_of(row: Affine) -> str | None:
    """The axis that a row scans alone, forwards or backwards."""
    if len(row.terms) == 1:
        atom, coefficient = row.terms[0]
        if isinstance(atom, AxisRef) and abs(coefficient) == 1:
            return atom.name
    return None


def lane_score(
    steps: Steps, statement: Statement, axis: str, within: Affine | None = None, *, inside: Sequence[str] = ()
) -> float:
    """How well the statement's accesses suit lanes along `axis`; larger is better, negative means gathers.

    within: the place in a group, where groups are what lanes hold: it is no step between them
    inside: the summed axes inside, along which a register tile reads what they move again, and shuffles it again
    """
    accesses = [(access.read.tensor, access.read.subscripts) for access in statement.reads]
    total = 0.0
    for array, subscripts in [*accesses, (statement.array, statement.subscripts)]:
        held = subscripts[:-1] if within is not None and subscripts and subscripts[-1] == within else subscripts
        is_once = not any(moves(subscript, other) for subscript in subscripts for other in inside)
        total += _access_score(steps.along(array, held, axis), is_once=is_once)
    return total


def _access_score(step: int | None, *, is_once: bool) -> float:
    if step in (0, 1):
        return CONTIGUOUS if step else INVARIANT
    return NEAR if step in NEAR_STEPS and is_once else STRIDED


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


def is_transposed(steps: Steps, statement: Statement, along: str, across: str) -> bool:
    """Whether some read is contiguous along one axis, forwards or backwards, and strides along the other, as a
    transposed operand does."""
    for access in statement.reads:
        array, subscripts = access.read.tensor, access.read.subscripts
        if not all(isinstance(s, Affine) for s in subscripts) or steps.along(array, subscripts, along) not in (1, -1):
            continue
        step = steps.along(array, subscripts, across)
        if step is None or abs(step) > max(NEAR_STEPS):
            return True
    return False


def covered(extent: int, tile: int) -> float:
    """The share of a loop's last tile, and of all before it, that holds points of the loop."""
    return extent / (-(-extent // tile) * tile) if extent > 0 else 1.0
