"""Rows of a batch that go through the steps of a recurrence together: where it pays, and why.

Row by row, each step reads again what is the same for all rows; or, of an array of `[step, row, lane]`, a cache line
or two of another page, which no processor reads ahead.
"""

from __future__ import annotations

from math import prod

from polyopt.dsl.affine import axis
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Statement

SHORT_BYTES = range(64, 513)
"""Of a run that a processor does not read ahead; lanes along it fill a vector at least."""

PAGE_BYTES = 4096


def reads_short_runs(statement: Statement, roles: Roles, row: str) -> bool:
    """Whether a statement reads, for each point of an axis, a few lanes beside those of the next point, and in another
    step far away."""
    for read in (access.read for access in statement.reads if access.read.tensor != statement.array):
        array = roles.arrays[read.tensor]
        places = [place for place, subscript in enumerate(read.subscripts) if subscript == axis(row)]
        if len(places) != 1 or not all(extent.is_constant for extent in array.shape):
            continue
        extents = [extent.constant for extent in array.shape]
        run = array.dtype.itemsize * prod(extents[places[0] + 1 :])
        if places[0] > 0 and run in SHORT_BYTES and run * extents[places[0]] >= PAGE_BYTES:
            return True
    return False
