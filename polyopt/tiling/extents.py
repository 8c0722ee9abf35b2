"""Trip counts as the cost models see them."""

from __future__ import annotations

from dataclasses import dataclass, field

import islpy as isl

from polyopt.dsl.affine import Affine, AxisRef, FloorDiv
from polyopt.poly.scop import Scop

ASSUMED = 512
"""Extent assumed where a size is symbolic."""


@dataclass(slots=True)
class Extents:
    """Extents of the axes of a scop's statements: of the bounding box of the domain, in points."""

    scop: Scop
    _known: dict[tuple[str, str], int] = field(default_factory=dict)

    def axis(self, statement: str, name: str) -> int:
        key = (statement, name)
        if key not in self._known:
            self._known[key] = self._measure(statement, name)
        return self._known[key]

    def _measure(self, statement: str, name: str) -> int:
        found = self.scop.statement(statement)
        position = found.axes.index(name)
        if found.domain.dim(isl.dim_type.param):
            return ASSUMED
        low, high = found.domain.dim_min_val(position), found.domain.dim_max_val(position)
        if not (low.is_int() and high.is_int()):
            return ASSUMED
        return max(0, int(high.to_python()) - int(low.to_python()) + 1)

    def row(self, statement: str, row: Affine) -> int:
        """Number of values of a loop's row: the sum over its axes for a skewed one."""
        total = 0
        for atom, coefficient in row.terms:
            if isinstance(atom, AxisRef):
                total += abs(coefficient) * self.axis(statement, atom.name)
            elif isinstance(atom, FloorDiv):
                total += -(-self.row(statement, atom.numerator) // atom.divisor)
        return max(total, 1)

    def instances(self, statement: str) -> int:
        """Points of a statement's domain, at most: the product of the greatest extent of each axis for one choice of
        the axes before it. An axis that stays within the tile of an earlier one counts the tile."""
        found = self.scop.statement(statement)
        total = 1
        for position, name in enumerate(found.axes):
            whole = self.axis(statement, name)
            total *= whole if position == 0 or whole <= 1 else min(whole, self._run(found.domain, position))
        return total

    def _run(self, domain: isl.Set, position: int) -> int:
        """The greatest distance of two points that differ in one axis and those behind it, counting both ends."""
        if domain.dim(isl.dim_type.param):
            return ASSUMED
        leading = domain.project_out(isl.dim_type.set, position + 1, domain.dim(isl.dim_type.set) - position - 1)
        values = isl.Map.from_range(leading.reset_tuple_id() if leading.has_tuple_id() else leading)
        values = values.move_dims(isl.dim_type.in_, 0, isl.dim_type.out, 0, position)
        greatest = values.reverse().apply_range(values).deltas().dim_max_val(0)
        return int(greatest.to_python()) + 1 if greatest.is_int() else ASSUMED
