"""Where no edge is: what a nest does at most of its points, with the conditions of its edges decided.

A boundary condition, `0 < j`, differs between the lanes of a vector that lies across the edge, and there is no vector
access for lanes that differ. Each loop has a stretch on which its comparisons are decided (`loops.split`); threads
whose points lie there test once, and others take their points one by one. Source: index set splitting, [Griebl00].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from polyopt.classes import dataclass
from polyopt.codegen_cuda.intervals import as_number
from polyopt.dsl.affine import constant
from polyopt.dsl.ir import Op
from polyopt.dtypes import bool_
from polyopt.loops.ir import Expr, For, Stmt, index_var, integer, map_stores
from polyopt.loops.scan import both
from polyopt.loops.split import decide, longest_stretch

LEAST_INSIDE = 0.75
"""The share of a loop's iterations that the stretch without edges must have."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Iterations `first` to `last` (exclusive) of a loop of constant bounds."""

    loop: For
    first: int
    last: int

    def of_vectors(self, width: int) -> Stretch:
        """The whole vectors in it; the loop starts at a multiple of them."""
        return replace(self, first=-(-self.first // width) * width, last=self.last // width * width)

    @property
    def is_long(self) -> bool:
        bounds = as_number(self.loop.lower), as_number(self.loop.upper)
        assert bounds[0] is not None and bounds[1] is not None, "its bounds are constant"
        return self.last - self.first >= LEAST_INSIDE * (bounds[1] - bounds[0])

    @property
    def condition(self) -> Expr | None:
        """That the loop's variable is in it; None where it always is."""
        var = index_var(self.loop.var)
        found: Expr | None = None
        if integer(self.first) != self.loop.lower:
            found = Op("ge", (var, integer(self.first)), bool_)
        if integer(self.last) != self.loop.upper:
            found = both(found, Op("lt", (var, integer(self.last)), bool_))
        return found


@dataclass(frozen=True, slots=True)
class Inside:
    """What is done where no edge is, and the stretches of loops on which that is so, those of the last loop first."""

    body: Stmt
    stretches: tuple[Stretch, ...]

    def condition(self, last: For, width: int) -> Expr | None:
        """Whether a vector's points are all inside. last: the loop of the vector; None where too few would be"""
        found: Expr | None = None
        for stretch in self.stretches:
            own = stretch.of_vectors(width) if stretch.loop is last else stretch
            if not own.is_long:
                return None
            found = both(own.condition, found)
        return found


def inside(loops: Sequence[For], body: Stmt) -> Inside | None:
    """What a nest does where no edge is; None where nothing is decided on most of its points."""
    found: list[Stretch] = []
    for loop in reversed(loops):
        lower, upper = as_number(loop.lower), as_number(loop.upper)
        if lower is None or upper is None or loop.step != 1:
            continue
        stretch = Stretch(loop, lower, upper)
        while True:  # a decision may uncover another
            here = replace(loop, body=body)
            first, last, values = longest_stretch(here, constant(stretch.first), stretch.last - stretch.first)
            narrowed = Stretch(loop, stretch.first + first, stretch.first + last)
            if not values or not narrowed.is_long:
                break
            decided = map_stores(body, partial(decide, values=values))
            if decided == body:
                break
            body, stretch = decided, narrowed
        if (stretch.first, stretch.last) != (lower, upper):
            found.append(stretch)
    return Inside(body, tuple(found)) if found else None
