"""Bounds that the sizes of a version imply, written where they can be seen.

In the version of a kernel for few rows `for i in range(M)` runs at most 31 times, as its sizes are `M <= 31`. isl
leaves that out. A loop that is to be lanes or registers must be seen to be short.
"""

from __future__ import annotations

from dataclasses import replace

from polyopt.dsl.affine import axis
from polyopt.dsl.ir import Const, Op
from polyopt.dtypes import i64
from polyopt.loops.ir import For, integer
from polyopt.poly.scop import Scop
from polyopt.poly.tree import Loop

MOST = 64
"""Iterations of a loop that may be written out."""


def shown(loop: For, source: Loop, scop: Scop) -> For:
    """The loop; if it is over an axis from 0 to a size, with the most iterations that its statements' domains have.

    source: of the tree, that it was made from
    """
    is_plain = loop.lower == integer(0) and loop.step == 1 and not isinstance(loop.upper, Const)
    if not scop.sizes or not is_plain or source.kind not in ("vector", "unrolled"):
        return loop
    most = 0
    for name, row in source.rows:
        statement = scop.statement(name)
        position = next((n for n, own in enumerate(statement.axes) if row == axis(own)), None)
        last = None if position is None else statement.domain.dim_max_val(position)
        if last is None or not last.is_int():
            return loop
        most = max(most, int(last.to_python()) + 1)
    return replace(loop, upper=Op("minimum", (loop.upper, integer(most)), i64)) if most <= MOST else loop
