"""Sums and recurrences along rows, several rows at a time.

A product of a matrix and a vector reads each element once, row after row: one stream. A processor follows several, and
what memory gives to one of them is a part of what it has; and each row loads the vector again. Several rows side by
side are as many streams. A recurrence waits for its last value before it goes on; meanwhile other rows can.
"""

from __future__ import annotations

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine
from polyopt.dtypes import f32, f64
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Statement
from polyopt.poly.tree import Loop, Tree, children_of, loops
from polyopt.target import Target
from polyopt.tiling.contraction import lanes_of
from polyopt.tiling.cost import axis_of
from polyopt.tiling.extents import Extents
from polyopt.tiling.steps import Steps

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

    def rows(self, rows: Loop, body: Tree) -> int:
        """How many iterations of a loop run together whose body is one sum and at most what begins or follows it."""
        inside = [child for child in children_of(body) if isinstance(child, Loop)]
        if len(inside) != 1 or not inside[0].reduction or any(loops(inside[0].body)):
            return 1
        (total,) = inside
        if len(total.statements) != 1:
            return 1
        statement = self.roles.statements[total.statements[0]]
        down, along = axis_of(rows.row(statement.name)), axis_of(total.row(statement.name))
        if down is None or along is None or not self.has_many(statement, down, along):
            return 1
        if not self.is_plain(statement, down, along) or self.row_bytes(statement, down, along) <= self.target.l1_bytes:
            return 1
        return picks.choose(f"rows of {statement.name} side by side", ROWS, lambda: (ROWS, 1))

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

    def is_plain(self, statement: Statement, down: str, along: str) -> bool:
        """Whether the rows add to elements of their own, and lanes find operands side by side or in one place."""
        arrays = {statement.array, *(access.read.tensor for access in statement.reads)}
        if statement.reducer is None or statement.reducer.name == "custom":
            return False
        if not all(self.roles.arrays[array].dtype in (f32, f64) for array in arrays):
            return False  # narrow ones have instructions that add groups of them
        for access in statement.reads:
            read = access.read
            is_affine = read.boundary is None and all(isinstance(s, Affine) for s in read.subscripts)
            if not is_affine or self.steps.along(read.tensor, read.subscripts, along) not in (0, 1):
                return False
        return self.steps.along(statement.array, statement.subscripts, down) not in (0, None)

    def row_bytes(self, statement: Statement, down: str, along: str) -> int:
        """Bytes of all rows of the operands that have another one for each result."""
        points = self.extents.axis(statement.name, along) * self.extents.axis(statement.name, down)
        total = 0
        for read in (access.read for access in statement.reads):
            steps = [self.steps.along(read.tensor, read.subscripts, axis) for axis in (along, down)]
            if steps[0] == 1 and steps[1] not in (0, 1):
                total += points * self.roles.arrays[read.tensor].dtype.itemsize
        return total
