"""A concrete cycle of dependences: elements whose values need one another, for the message that says so."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.errors import DefinitionError
from polyopt.poly.dependence import Dependence
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.space import Point, coalesced, operation_budget, sample_point

LONGEST = 1 << 12
"""Instances of the longest cycle that is looked for."""

_SHOWN = 6


@dataclass(frozen=True, slots=True)
class Instance:
    """One execution of a statement, at sizes for which the cycle exists."""

    statement: Statement
    at: Point

    @property
    def element(self) -> tuple[int, ...]:
        """The element that it writes; a data subscript counts as 0."""
        written = sample_point(self.statement.write.intersect_domain(self.points).range())
        assert written is not None, "an instance writes an element"
        return tuple(written.axes.values())

    @property
    def points(self) -> isl.Set:
        """The set of this instance alone."""
        points = self.statement.domain
        for kind, values in ((isl.dim_type.param, self.at.sizes), (isl.dim_type.set, self.at.axes)):
            for position, value in enumerate(values.values()):
                points = points.fix_val(kind, position, isl.Val(value))
        return points

    def __str__(self) -> str:
        return f"{self.statement.array}[{', '.join(map(str, self.element))}]"


def has_none(scop: Scop, dependences: Sequence[Dependence]) -> bool:
    """Whether it is certain that no instance depends on itself, by way of others or directly."""
    return _on_cycles(scop, dependences) == ()


def find(scop: Scop, dependences: Sequence[Dependence]) -> tuple[Instance, ...]:
    """A cycle through the first instance found on one, the shortest; each instance waits for the next one.

    Empty where none was found, which does not mean that there is none.
    """
    for start in _on_cycles(scop, dependences) or ():
        found = _around(start, scop, dependences)
        if found:
            return found
    return ()


def error(cycle: Sequence[Instance]) -> DefinitionError:
    """The error that names the elements of a cycle."""
    names = list(dict.fromkeys(str(instance) for instance in cycle))
    shown = names if len(names) <= _SHOWN else [*names[:3], "...", *names[-2:]]
    first = cycle[0]
    where = ", ".join(f"{name} = {value}" for name, value in {**first.at.sizes, **first.at.axes}.items())
    why = " needs ".join([*shown, names[0]]) + (f", at {where}" if where else "")
    fix = "refer to an earlier element, such as t - 1, or give the other value a name of its own"
    if _is_through_data(cycle):
        why += "\na subscript that is data may be any element, whatever conditions on data say"
        fix = "refer to elements that indices alone make earlier, such as those of row t - 1"
    return DefinitionError(
        f"{names[0]} depends on itself",
        where=next((instance.statement.span for instance in cycle if instance.statement.span), None),
        why=why,
        fix=fix,
        facts={
            "tensor": first.statement.array,
            "element": first.element,
            "cycle": tuple(names),
            "sizes": dict(first.at.sizes),
        },
    )


def _is_through_data(cycle: Sequence[Instance]) -> bool:
    """Whether a statement of the cycle reads what the cycle writes at a subscript that is data."""
    arrays = {instance.statement.array for instance in cycle}
    reads = (access.read for instance in cycle for access in instance.statement.reads)
    return any(read.tensor in arrays and any(isinstance(s, ir.DataIndex) for s in read.subscripts) for read in reads)


def _on_cycles(scop: Scop, dependences: Sequence[Dependence]) -> tuple[Instance, ...] | None:
    """One instance per statement that is on a cycle, as far as the transitive closure can tell; None where isl
    cannot compute it."""
    edges = _edges(scop, dependences)
    try:
        with operation_budget():
            closure, _ = edges.transitive_closure()
            on_cycles = closure.intersect(edges.domain().identity()).domain()
    except isl.Error:
        return None
    found = []
    for statement in scop.statements:
        point = sample_point(on_cycles.extract_set(statement.domain.get_space()))
        if point is not None:
            found.append(Instance(statement, point))
    return tuple(found)


def _around(start: Instance, scop: Scop, dependences: Sequence[Dependence]) -> tuple[Instance, ...]:
    """The shortest way from an instance to itself, against the dependences; empty where there is none."""
    origin = isl.UnionSet.from_set(start.points)
    edges = _edges(scop, dependences).intersect_params(start.points.params())
    waits_for = edges.reverse()
    reached = [origin]
    while True:
        reached.append(coalesced(reached[-1].apply(waits_for)))
        if origin.is_subset(reached[-1]):
            break
        if reached[-1].is_empty() or len(reached) > LONGEST:
            return ()
    backwards = [start]
    here = origin
    for layer in reversed(reached[1:-1]):
        instance = _any(here.apply(edges).intersect(layer), scop)
        here = isl.UnionSet.from_set(instance.points)
        backwards.append(instance)
    return (start, *reversed(backwards[1:]))


def _any(points: isl.UnionSet, scop: Scop) -> Instance:
    for statement in scop.statements:
        point = sample_point(points.extract_set(statement.domain.get_space()))
        if point is not None:
            return Instance(statement, point)
    raise AssertionError("a cycle leads through every layer")


def _edges(scop: Scop, dependences: Sequence[Dependence]) -> isl.UnionMap:
    """`{ source[x] -> target[y] }` for all dependences, at sizes that can occur."""
    edges = isl.UnionMap.from_map(dependences[0].relation)
    for dependence in dependences[1:]:
        edges = edges.union(isl.UnionMap.from_map(dependence.relation))
    return edges.intersect_params(scop.context)
