"""Rows for recurrences: which dimension of mutually dependent statements to run in order.

For statements that depend on one another around a cycle, one row per statement is sought under which no
dependence runs backwards. Axes and their reversals are tried first, since they keep subscripts simple; sums of
axes (wavefronts) follow where plain axes would leave no parallelism; isl's scheduler is the last resort, inside
the component alone and under an operation budget. Sources: [Feautrier92], [Pluto08], [Wolfe86] for wavefronts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice, product

from polyopt import graphs
from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, axis
from polyopt.poly.dependence import Dependence
from polyopt.poly.distance import DistanceTester, Rows

_MOST_ASSIGNMENTS = 64
_MOST_STEPS = 20_000
"""Choices that are looked at for one row: a component of many statements has exponentially many."""


@dataclass(frozen=True, slots=True)
class RowChoice:
    """One row per statement of a component.

    spent:      the axis of each statement that the row replaces
    coincident: no dependence is carried
    why:        for the report
    settles:    whether no recurrence is left inside
    """

    rows: Rows
    spent: Mapping[str, str]
    coincident: bool
    why: str
    settles: bool = True


def choose_rows(
    component: Sequence[str],
    dependences: Sequence[Dependence],
    remaining: Mapping[str, Sequence[str]],
    tester: DistanceTester,
) -> RowChoice | None:
    """The best next row for a component whose dependences form a cycle; None where only isl can help.

    Preference: a row that carries nothing (an outer parallel loop), one that carries everything (all inside is
    parallel), one that leaves no cycle, a wavefront that carries everything, then the row that carries most.
    """
    legal = list(islice(_legal_assignments(component, dependences, remaining, tester), _MOST_ASSIGNMENTS))
    for rows in legal:
        if tester.is_coincident(dependences, rows):
            return _choice(rows, coincident=True, why="carries no dependence")
    for rows in legal:
        if tester.is_carrying(dependences, rows):
            return _choice(rows, why="carries every dependence")
    left: list[int] = []
    for rows in legal:
        inside = tester.left(dependences, rows)
        if not _has_cycle(component, inside):
            return _choice(rows, why="leaves no recurrence inside")
        left.append(len(inside))
    wavefront = _wavefront(component, dependences, remaining, legal, tester)
    if wavefront is not None:
        return wavefront
    if not legal:
        return None
    return _choice(legal[left.index(min(left))], why="carries most dependences", settles=False)


def _choice(rows: Rows, *, coincident: bool = False, why: str, settles: bool = True) -> RowChoice:
    spent = {name: next((atom.name for atom, _ in row.terms), "") for name, row in rows.items()}  # type: ignore[union-attr]  # rows of plain axes
    return RowChoice(dict(rows), spent, coincident, why, settles)


def _legal_assignments(
    component: Sequence[str],
    dependences: Sequence[Dependence],
    remaining: Mapping[str, Sequence[str]],
    tester: DistanceTester,
) -> Iterator[dict[str, Affine]]:
    """Every choice of an axis, forwards or backwards, per statement that respects all dependences; forwards and
    in the order of the axes first."""

    def options(name: str) -> list[Affine]:
        forwards = [axis(a) for a in remaining[name]]
        return [*forwards, *(-row for row in forwards)] or [Affine(0)]

    steps = count()

    def extend(chosen: dict[str, Affine], rest: Sequence[str]) -> Iterator[dict[str, Affine]]:
        if not rest:
            yield dict(chosen)
            return
        name, following = rest[0], rest[1:]
        for row in options(name):
            if next(steps) >= _MOST_STEPS:
                return
            rows = {**chosen, name: row}
            touching = [d for d in dependences if name in (d.source, d.target) and {d.source, d.target} <= rows.keys()]
            if tester.respects(touching, rows):
                yield from extend(rows, following)

    for rows in extend({}, _connected_order(component, dependences)):
        if any(row.terms for row in rows.values()):
            yield rows


def _connected_order(component: Sequence[str], dependences: Sequence[Dependence]) -> list[str]:
    """The statements so that each one touches an earlier one: wrong choices are found early."""
    order = [component[0]]
    while len(order) < len(component):
        near = {d.target for d in dependences if d.source in order} | {
            d.source for d in dependences if d.target in order
        }
        order.append(next(name for name in component if name not in order and (name in near or not near - set(order))))
    return order


def _has_cycle(component: Sequence[str], dependences: Sequence[Dependence]) -> bool:
    edges = [(d.source, d.target) for d in dependences]
    if any(source == target for source, target in edges):
        return True
    return len(graphs.components(component, edges)) < len(component)


def _wavefront(
    component: Sequence[str],
    dependences: Sequence[Dependence],
    remaining: Mapping[str, Sequence[str]],
    legal: Sequence[Rows],
    tester: DistanceTester,
) -> RowChoice | None:
    """A sum of a legal row and another that carries every dependence and leaves an axis to run in parallel."""
    if any(len(remaining[name]) < 2 for name in component):
        return None
    for first, weight, second in product(legal, (1, 2), _uniform_assignments(component, remaining)):
        if any(_same_axis(first[name], second[name]) for name in component):
            continue
        rows = {name: first[name] * weight + second[name] for name in component}
        if tester.is_carrying(dependences, rows):
            spent = {name: second[name].terms[0][0].name for name in component}  # type: ignore[union-attr]  # an axis
            return RowChoice(rows, spent, False, "wavefront: carries every dependence")
    return None


def _uniform_assignments(
    component: Sequence[str], remaining: Mapping[str, Sequence[str]]
) -> Iterator[dict[str, Affine]]:
    """Rows that give every statement the same of its remaining axes, counted from the first or the last."""
    depth = min(len(remaining[name]) for name in component)
    for position, sign in product(range(depth), (1, -1)):
        yield {name: axis(remaining[name][position]) * sign for name in component}


def _same_axis(left: Affine, right: Affine) -> bool:
    return {atom for atom, _ in left.terms} == {atom for atom, _ in right.terms}
