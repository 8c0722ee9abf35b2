"""Tiles of sums that run together with lanes along the sum: `y[i, j] += x[i, k] * w[j, k]` with few rows `x`.

Both operands lie along the sum. With many rows, copies of `w` that lie along `j` pay; with few they do not. Lanes along
`k` then hold partial results of one sum each, and some rows of `x` meet some of `w`, as in any register tile: each
vector is loaded once for all the sums that it is in, and `w` comes from memory once. Nothing asks for products: any
sum, maximum or minimum over pairs of rows has such tiles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import permutations

from polyopt import microkernel, picks
from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine
from polyopt.dtypes import f32, f64
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Statement
from polyopt.poly.space import is_independent
from polyopt.target import Target
from polyopt.tiling.contraction import EDGE, lanes_of
from polyopt.tiling.extents import Extents
from polyopt.tiling.steps import Steps

MOST = 8
"""Rows of either operand in a tile: as many streams as a core follows."""


@dataclass(frozen=True, slots=True)
class SumTile:
    """Sums that run together.

    down, across:  the axes of the results; `across` is the longer one
    height, width: points of a tile along them
    """

    down: str
    across: str
    height: int
    width: int


@dataclass(frozen=True, slots=True)
class Lengthwise:
    """Sums whose lanes run along the sum."""

    roles: Roles
    steps: Steps
    extents: Extents
    target: Target

    def tile(self, statement: Statement, free: Sequence[str], along: str) -> SumTile | None:
        """The best tile along two of some axes of the results; None where no vector would be in several sums."""
        run = self.extents.known(statement.name, along)
        if run is None or run < 2 * lanes_of(statement, self.roles, self.target):
            return None
        several = [axis for axis in free if self.has_several(statement, axis)]
        pairs = [pair for pair in permutations(several, 2) if self.is_apart(statement, *pair, along)]
        if not pairs:
            return None
        count = {axis: self.extents.axis(statement.name, axis) for axis in several}
        down, across = max(pairs, key=lambda pair: (count[pair[0]] * count[pair[1]], count[pair[1]]))
        merits = dict(self.merits(statement, (count[down], count[across]), run))
        ranked = sorted(merits, key=lambda size: merits[size])
        question = f"sums of {statement.name} side by side"
        height, width = picks.choose(question, ranked[0], lambda: ranked, lambda size: f"{size[0]} x {size[1]}")
        return SumTile(down, across, height, width)

    def merits(
        self, statement: Statement, count: tuple[int, int], run: int
    ) -> Iterator[tuple[tuple[int, int], tuple[float, int]]]:
        """Each tile that the registers hold, beside a vector of each row across and one of those down, with its cycles
        for all results; of equal ones the tallest is best: it passes over the longer operand least often."""
        vectors = -(-run // lanes_of(statement, self.roles, self.target))
        for height in range(2, min(count[0], MOST) + 1):
            for width in range(2, min(count[1], MOST) + 1):
                if height * width + width + 1 <= self.target.vector_registers:
                    cycles = microkernel.sum_cycles((count[0], height), (count[1], width), vectors)
                    edges = bool(count[0] % height) + bool(count[1] % width)
                    yield (height, width), (round(cycles * (1 + EDGE * edges)), -height)

    def has_several(self, statement: Statement, axis: str) -> bool:
        """Whether an axis runs from 0 over several points, whatever the others are: the sums of a tile are all of one
        length."""
        return self.extents.axis(statement.name, axis) > 1 and is_independent(
            statement.domain, statement.axes.index(axis)
        )

    def is_apart(self, statement: Statement, down: str, across: str, along: str) -> bool:
        """Whether every operand lies along the sum and knows at most one of two axes of the results, either one."""
        if not (self.is_plain(statement, down, along) and self.is_plain(statement, across, along)):
            return False
        reads = [access.read for access in statement.reads]
        known = {tuple(self.steps.along(r.tensor, r.subscripts, a) != 0 for a in (down, across)) for r in reads}
        return {(True, False), (False, True)} <= known and (True, True) not in known

    def is_plain(self, statement: Statement, down: str, along: str) -> bool:
        """Whether the points of an axis add to floats of their own, and lanes find operands side by side or in one
        place. Narrow operands are converted; integers have instructions that add groups of them."""
        dtype = self.roles.arrays[statement.array].dtype
        if statement.reducer is None or statement.reducer.name == "custom" or dtype not in (f32, f64):
            return False
        if any(self.roles.arrays[access.read.tensor].dtype.bits > dtype.bits for access in statement.reads):
            return False
        for access in statement.reads:
            read = access.read
            is_affine = read.boundary is None and all(isinstance(s, Affine) for s in read.subscripts)
            if not is_affine or self.steps.along(read.tensor, read.subscripts, along) not in (0, 1):
                return False
        return self.steps.along(statement.array, statement.subscripts, down) not in (0, None)
