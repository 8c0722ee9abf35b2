"""Trip counts as the cost models see them."""

from __future__ import annotations

import math
from dataclasses import field

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, AxisRef, FloorDiv, axes_of
from polyopt.poly.scop import Scop

ASSUMED = 512
"""A size assumed where it is symbolic. An axis then has as many points as it gains when the size does: those of tiles
are few, and margins do not count."""


@dataclass(slots=True)
class Extents:
    """Extents of the axes of a scop's statements: of the bounding box of the domain, in points."""

    scop: Scop
    _known: dict[tuple[str, str], int] = field(default_factory=dict)
    _points: dict[str, int] = field(default_factory=dict)

    def axis(self, statement: str, name: str) -> int:
        key = (statement, name)
        if key not in self._known:
            self._known[key] = self._measure(statement, name)
        return self._known[key]

    def _measure(self, statement: str, name: str) -> int:
        known = self.known(statement, name)
        if known is not None:
            return known
        return max(1, round(self.gained(statement, name)))

    def gained(self, statement: str, name: str) -> float:
        """How many more points an axis has where symbolic sizes are greater by what is assumed of them; of tiles longer
        than that it is a part of one."""
        found, times = self.scop.statement(statement), 64
        position = found.axes.index(name)
        shorter, longer = (_length(_as_assumed(found.domain, n * ASSUMED), position) for n in (times, 2 * times))
        return float(ASSUMED) if shorter is None or longer is None else (longer - shorter) / times

    def known(self, statement: str, name: str) -> int | None:
        """The greatest extent of an axis over all values of symbolic sizes; None where there is none."""
        found = self.scop.statement(statement)
        return _length(found.domain, found.axes.index(name))

    def is_open(self, statement: str, row: Affine) -> bool:
        """Whether a call's sizes say how many values a loop's row has."""
        return any(self.known(statement, name) is None for name in axes_of(row))

    def happens(self, statement: str) -> bool:
        """Whether a statement has an instance where symbolic sizes are what is assumed of them."""
        return not _as_assumed(self.scop.statement(statement).domain).is_empty()

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

    def points(self, statement: str) -> int:
        """About as many as the domain has points; not more than `instances`.

        Exact for boxes; of a triangle or a simplex of up to three axes inside its first one, within rounding: the
        points of its slices are a polynomial, which two slices in the right places tell (Gauss and Legendre).
        """
        if statement not in self._points:
            domain = self.scop.statement(statement).domain
            whole = self.instances(statement)
            is_known = not domain.dim(isl.dim_type.param) and not domain.is_box()
            self._points[statement] = min(whole, round(_count(domain.reset_tuple_id()))) if is_known else whole
        return self._points[statement]

    def _run(self, domain: isl.Set, position: int) -> int:
        """The greatest distance of two points that differ in one axis and those behind it, counting both ends."""
        domain = _as_assumed(domain)
        leading = domain.project_out(isl.dim_type.set, position + 1, domain.dim(isl.dim_type.set) - position - 1)
        values = isl.Map.from_range(leading.reset_tuple_id() if leading.has_tuple_id() else leading)
        values = values.move_dims(isl.dim_type.in_, 0, isl.dim_type.out, 0, position)
        greatest = values.reverse().apply_range(values).deltas().dim_max_val(0)
        return int(greatest.to_python()) + 1 if greatest.is_int() else ASSUMED


def _as_assumed(domain: isl.Set, size: int = ASSUMED) -> isl.Set:
    """A domain where symbolic sizes are what is assumed of them."""
    for number in range(domain.dim(isl.dim_type.param)):
        domain = domain.fix_val(isl.dim_type.param, number, isl.Val(size))
    return domain


def _length(domain: isl.Set, position: int) -> int | None:
    """The extent of an axis; None where it is not a number."""
    low, high = domain.dim_min_val(position), domain.dim_max_val(position)
    return max(0, int(high.to_python()) - int(low.to_python()) + 1) if low.is_int() and high.is_int() else None


_GAUSS_LEGENDRE = (0.5 - 0.5 / math.sqrt(3), 0.5 + 0.5 / math.sqrt(3))


def _count(domain: isl.Set) -> float:
    """About the number of points of a bounded set without parameters."""
    depth = domain.dim(isl.dim_type.set)
    if depth == 0:
        return 0.0 if domain.is_empty() else 1.0
    first = domain.project_out(isl.dim_type.set, 1, depth - 1)
    if first.is_empty():
        return 0.0
    low, high = first.dim_min_val(0), first.dim_max_val(0)
    if not (low.is_int() and high.is_int()):
        return float(ASSUMED)
    start, length = int(low.to_python()), int(high.to_python()) - int(low.to_python()) + 1
    if depth == 1:
        return float(length)
    nodes = range(length) if length <= 2 else (round((length - 1) * node) for node in _GAUSS_LEGENDRE)
    slices = [_count(_slice(domain, start + node)) for node in nodes]
    return length * sum(slices) / len(slices)


def _slice(domain: isl.Set, value: int) -> isl.Set:
    """The points with this first coordinate, without it."""
    return domain.fix_val(isl.dim_type.set, 0, isl.Val(value)).project_out(isl.dim_type.set, 0, 1)
