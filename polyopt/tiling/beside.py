"""Sums and recurrences along rows, several rows at a time.

A product of a matrix and a vector reads each element once, row after row: one stream. A processor follows several, and
what memory gives to one of them is a part of what it has; and each row loads the vector again. Several rows side by
side are as many streams. A recurrence waits for its last value before it goes on; meanwhile other rows can.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Statement
from polyopt.poly.tree import Loop, Tree, children_of, loops
from polyopt.target import Target
from polyopt.tiling.contraction import lanes_of
from polyopt.tiling.cost import axis_of
from polyopt.tiling.extents import Extents
from polyopt.tiling.steps import Steps
from polyopt.tiling.sums import Lengthwise, SumTile

ROWS = 4
"""Side by side (Zen 4, 4096 x 4096 from memory: 5.4 ms one after the other and two at a time, 4.3 four)."""

STEPS = 8
"""Statements of recurrences that go on in turn (Zen 4, sums of 1024 rows of 1000: 0.82 ms for one row after the other,
0.32 for four or for eight; of 512
rows of 2048 0.50 and 0.31)."""

LEAST_RUN = 8
"""Vectors of a row, for the sums of several to pay at their ends."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Decides it for the nests of one scop. Extents that are numbers only."""

    roles: Roles
    steps: Steps
    extents: Extents
    target: Target

    def tile(self, chain: Sequence[Loop], body: Tree) -> tuple[Loop, Loop, SumTile] | None:
        """The tile of sums that run together, and the loops that it goes down and across."""
        total = self.total(body)
        while total is not None and isinstance(total.body, Loop) and total.body.reduction:
            total = total.body  # lanes are along the innermost axis of the sum
        if total is None or any(loops(total.body)):
            return None
        statement, along = self.roles.statements[total.statements[0]], axis_of(total.row(total.statements[0]))
        loop_of = {axis: loop for loop in chain if (axis := axis_of(loop.row(statement.name))) is not None}
        tile = self.lengthwise.tile(statement, tuple(loop_of), along) if along is not None else None
        return None if tile is None else (loop_of[tile.down], loop_of[tile.across], tile)

    def rows(self, rows: Loop, body: Tree) -> int:
        """How many iterations of a loop run together whose body is one sum and at most what begins or follows it."""
        total = self.total(body)
        if total is None or any(loops(total.body)):
            return 1
        statement, along = self.roles.statements[total.statements[0]], axis_of(total.row(total.statements[0]))
        down = axis_of(rows.row(statement.name))
        if along is None or down is None or not self.has_many(statement, down, along):
            return 1
        is_plain = self.lengthwise.is_plain(statement, down, along)
        if not is_plain or self.row_bytes(statement, down, along) <= self.target.l1_bytes:
            return 1
        return picks.choose(f"rows of {statement.name} side by side", ROWS, lambda: (ROWS, 1))

    @property
    def lengthwise(self) -> Lengthwise:
        return Lengthwise(self.roles, self.steps, self.extents, self.target)

    def total(self, body: Tree) -> Loop | None:
        """The loop of the one sum inside a body that holds at most what begins or follows it besides."""
        inside = [child for child in children_of(body) if isinstance(child, Loop)]
        is_one = len(inside) == 1 and inside[0].reduction and len(inside[0].statements) == 1
        return inside[0] if is_one else None

    def in_step(self, rows: Loop, body: Tree) -> int:
        """How many iterations of a loop go through the recurrence inside together, step by step: all there is inside
        are its steps, as many in each row, and what begins or follows them."""
        inside = [child for child in children_of(body) if isinstance(child, Loop)]
        if len(inside) != 1 or inside[0].coincident or inside[0].reduction or any(loops(inside[0].body)):
            return 1
        (steps,) = inside
        together = STEPS // len(steps.statements)
        for name in rows.statements:
            statement, down = self.roles.statements[name], axis_of(rows.row(name))
            count = self.extents.known(name, down) if down is not None else None
            if not statement.domain.is_box() or count is None or count < 2 * together:
                return 1
        if together < 2:
            return 1
        return picks.choose(f"rows of {steps.name} in step", together, lambda: (together, 1))

    def has_many(self, statement: Statement, down: str, along: str) -> bool:
        """Whether there are several groups of rows, the first at 0, all of one length, of many vectors."""
        count, run = (self.extents.known(statement.name, axis) for axis in (down, along))
        low = statement.domain.dim_min_val(statement.axes.index(down))
        if not statement.domain.is_box() or not low.is_zero():
            return False
        least = LEAST_RUN * lanes_of(statement, self.roles, self.target)
        return count is not None and run is not None and count >= 2 * ROWS and run >= least

    def row_bytes(self, statement: Statement, down: str, along: str) -> int:
        """Bytes of all rows of the operands that have another one for each result."""
        points = self.extents.axis(statement.name, along) * self.extents.axis(statement.name, down)
        total = 0
        for read in (access.read for access in statement.reads):
            steps = [self.steps.along(read.tensor, read.subscripts, axis) for axis in (along, down)]
            if steps[0] == 1 and steps[1] not in (0, 1):
                total += points * self.roles.arrays[read.tensor].dtype.itemsize
        return total
