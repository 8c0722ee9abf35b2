"""The order of a schedule by enumeration: every instance, every pair that the equations order, every date.

It judges what `poly.legality` proves, and shares nothing with it but the statements: dates come from the rows of a loop
tree, evaluated in Python; pairs come from the subscripts of the statements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

import islpy as isl

from polyopt.dsl import affine as af
from polyopt.dsl.affine import Affine
from polyopt.dsl.ir import Subscript
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree

Verdict = Literal["before", "after", "at once"]
Point = tuple[int, ...]
Element = tuple[str, Point]
Key = tuple[str, Point]


@dataclass(frozen=True, slots=True)
class Pairs:
    """What the equations of a scop ask of every order.

    axes:    each instance with the values of its axes
    ordered: the first must run before the second
    updates: both combine into one element: in any order, and not at once unless as lanes that are combined
    """

    scop: Scop
    axes: Mapping[Key, Mapping[str, int]]
    ordered: tuple[tuple[Key, Key], ...]
    updates: tuple[tuple[Key, Key], ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One coordinate of a date: the loop, or None for a sequence, and the value of its variable or the position."""

    loop: Loop | None
    value: int


def pairs(scop: Scop) -> Pairs:
    """The pairs of a scop without symbolic sizes and without data subscripts."""
    axes: dict[Key, Mapping[str, int]] = {}
    writers: dict[Element, list[Key]] = {}
    reads: list[tuple[Element, Key]] = []
    for statement in scop.statements:
        taken = [(a.read, frozenset(points(a.relation.domain()))) for a in statement.reads]
        for point in points(statement.domain):
            key, values = (statement.name, point), dict(zip(statement.axes, point, strict=True))
            axes[key] = values
            writers.setdefault((statement.array, _element(statement.subscripts, values)), []).append(key)
            reads += [((r.tensor, _element(r.subscripts, values)), key) for r, where in taken if point in where]
    ordered = [(writer, reader) for element, reader in reads for writer in writers.get(element, ())]
    updates: list[tuple[Key, Key]] = []
    for same in writers.values():
        first = [key for key in same if not scop.statement(key[0]).is_update]
        later = [key for key in same if scop.statement(key[0]).is_update]
        ordered += [(start, update) for start in first for update in later]
        updates += [(one, other) for n, one in enumerate(later) for other in later[:n]]
    return Pairs(scop, axes, tuple(ordered), tuple(updates))


def violation(needed: Pairs, tree: Tree) -> tuple[Key, Key] | None:
    """A pair that the order of `tree` breaks; None for a legal one."""
    paths = dict(_paths(tree, ()))
    dates = {key: _date(paths[key[0]], key[0], values) for key, values in needed.axes.items()}
    at: dict[tuple[str, tuple[int, ...]], Key] = {}
    for key, date in dates.items():
        twin = at.setdefault((key[0], tuple(step.value for step in date)), key)
        if twin != key:
            return twin, key
    for first, second in needed.ordered:
        if first == second or _order(dates[first], dates[second]) != "before":
            return first, second
    for first, second in needed.updates:
        if _order(dates[first], dates[second]) == "at once":
            step = _where_they_part(dates[first], dates[second])
            if step is None or not _are_combined(needed.scop.statement(first[0]), second[0], step):
                return first, second
    return None


def _order(first: tuple[Step, ...], second: tuple[Step, ...]) -> Verdict:
    for one, other in zip(first, second, strict=False):
        if one.value != other.value:
            if one.loop is not None and one.loop.kind in ("parallel", "vector"):
                return "at once"
            return "before" if one.value < other.value else "after"
    return "at once"


def _where_they_part(first: tuple[Step, ...], second: tuple[Step, ...]) -> Step | None:
    return next((one for one, other in zip(first, second, strict=False) if one.value != other.value), None)


def _are_combined(statement: Statement, other: str, step: Step) -> bool:
    """Lanes of one statement that update one element: its subscripts do not depend on what the lanes scan."""
    if step.loop is None or step.loop.kind != "vector" or statement.name != other:
        return False
    lanes = af.axes_of(step.loop.row(statement.name))
    return all(isinstance(s, Affine) and not af.axes_of(s) & lanes for s in statement.subscripts)


def _paths(tree: Tree, outer: tuple[Loop | int, ...]) -> Iterator[tuple[str, tuple[Loop | int, ...]]]:
    """For each statement the loops around it and its positions in sequences, outermost first."""
    match tree:
        case Leaf(statement):
            yield statement, outer
        case Sequence(children):
            for position, child in enumerate(children):
                yield from _paths(child, (*outer, position))
        case Loop():
            yield from _paths(tree.body, (*outer, tree))


def _date(path: tuple[Loop | int, ...], statement: str, axes: Mapping[str, int]) -> tuple[Step, ...]:
    return tuple(
        Step(None, part) if isinstance(part, int) else Step(part, int(af.evaluate(part.row(statement), axes, {})))
        for part in path
    )


def _element(subscripts: tuple[Subscript, ...], axes: Mapping[str, int]) -> Point:
    assert all(isinstance(s, Affine) for s in subscripts), "a data subscript has no element before it runs"
    return tuple(int(af.evaluate(s, axes, {})) for s in subscripts if isinstance(s, Affine))


def points(domain: isl.Set) -> list[Point]:
    """All points of a bounded set, in order."""
    found: list[Point] = []
    size = domain.dim(isl.dim_type.set)

    def add(point: isl.Point) -> None:
        found.append(tuple(point.get_coordinate_val(isl.dim_type.set, n).to_python() for n in range(size)))

    domain.foreach_point(add)
    return sorted(found)
