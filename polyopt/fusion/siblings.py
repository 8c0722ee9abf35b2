"""Statements that compute side by side from the same operands.

`y[2*e]` and `y[2*e + 1]` of a rotation, the three coordinates of a force, or the least and the greatest number of a
row: none of them waits for another, so no dependence asks for a loop that they share. In one loop, what all of them
read is loaded once, and what all of them compute is computed once.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyopt.dsl.ir import DataIndex
from polyopt.dtypes import f32
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Scop

LEAST_COMMON = 0.5
"""Of the elements that the one with fewer reads: as many the other one reads too."""

MOST = 8
"""Statements side by side: a processor follows as many streams of stores (32 products of one vector of 65,536 with
numbers took 0.44 ms together, and 0.20 one after the other)."""


def are_siblings(scop: Scop, roles: Roles, first: Sequence[str], second: Sequence[str]) -> bool:
    """Whether two groups of statements run over the same points, and read the same for the most part.

    Start values, which read nothing, go with their sums. Contractions hold their operands in registers as it is; sums
    of narrow numbers have instructions that add up products, one sum at a time; what adds up, or stores where data
    says, would take lanes and threads from what does not.
    """
    groups = [[scop.statement(name) for name in names] for names in (first, second)]
    one, other = ([statement for statement in group if statement.reads] for group in groups)
    readers = [*one, *other]
    if not one or not other or len(readers) > MOST:
        return False
    if len({(s.axes, roles.by_statement[s.name].reduced) for s in readers}) > 1:
        return False
    if any(
        roles.by_statement[s.name].contraction or any(isinstance(i, DataIndex) for i in s.subscripts) for s in readers
    ):
        return False
    if any(s.is_update and any(a.read.dtype.bits < f32.bits for a in s.reads) for s in readers):
        return False
    read, also = ({(a.read.tensor, a.read.subscripts) for s in group for a in s.reads} for group in (one, other))
    if len(read & also) < LEAST_COMMON * min(len(read), len(also)):
        return False
    domain, *rest = (statement.domain.reset_tuple_id() for statement in readers)
    return all(domain.plain_is_equal(another) for another in rest)
