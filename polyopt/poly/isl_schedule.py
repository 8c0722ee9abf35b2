"""isl's scheduler on one component of mutually dependent statements, as a loop tree.

Used where no plain axis order is legal: isl's integer programming finds skewed rows. It runs under an operation
budget, first with its default algorithm, then with Feautrier's. Which loops of its tree carry what is measured anew,
since isl knows nothing of reductions, and of its bands only the first member's loop has what it says of coincidence.
Sources: [Pluto08], [Feautrier92], [isl].
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine
from polyopt.errors import DefinitionError, ScheduleError
from polyopt.poly import cycles
from polyopt.poly.dependence import Dependence
from polyopt.poly.distance import DistanceTester
from polyopt.poly.scop import Scop
from polyopt.poly.space import affine_from_aff, node_kind, operation_budget
from polyopt.poly.tree import Leaf, Loop, Tree, sequence

_NODE = isl.schedule_node_type


def schedule(
    scop: Scop, component: Sequence[str], ordered: Sequence[Dependence], reductions: Sequence[Dependence]
) -> Tree:
    """A legal tree for the component.

    ordered, reductions: the dependences inside the component that no loop outside carries
    Raises `DefinitionError` where an element depends on itself, `ScheduleError` where isl finds no schedule.
    """
    domain = _union([isl.UnionSet.from_set(scop.statement(name).domain) for name in component])
    validity = isl.UnionMap.from_map(ordered[0].relation)
    for dependence in ordered[1:]:
        validity = validity.union(isl.UnionMap.from_map(dependence.relation))
    for feautrier in (False, True):
        found = _compute(domain, validity, scop.context, feautrier=feautrier)
        if found is not None:
            reader = _Reader(scop, DistanceTester.of(scop))
            return reader.tree(found.get_root().child(0), tuple(ordered), tuple(reductions))
    raise _no_schedule(scop, component, ordered)


def _no_schedule(
    scop: Scop, component: Sequence[str], ordered: Sequence[Dependence]
) -> DefinitionError | ScheduleError:
    cycle = cycles.find(scop, ordered)
    if cycle:
        return cycles.error(cycle)
    facts = {"statements": tuple(component)}
    where = next((scop.statement(name).span for name in component if scop.statement(name).span), None)
    what, names = "no order of evaluation was found for these equations", ", ".join(component)
    if cycles.has_none(scop, ordered):
        return ScheduleError(what, where=where, why=f"{names} depend on one another in no affine order", facts=facts)
    return DefinitionError(
        what,
        where=where,
        why=f"{names} depend on one another, probably in a cycle",
        fix="check that every recurrence refers to elements that are defined without it",
        facts=facts,
    )


def _union(sets: Sequence[isl.UnionSet]) -> isl.UnionSet:
    result = sets[0]
    for other in sets[1:]:
        result = result.union(other)
    return result


@contextmanager
def isl_options(*, feautrier: bool) -> Iterator[None]:
    """isl's scheduler options are global: set here, and put back."""
    context = isl.DEFAULT_CONTEXT
    before = context.get_schedule_algorithm(), context.get_schedule_outer_coincidence()
    context.set_schedule_algorithm(1 if feautrier else 0)
    context.set_schedule_outer_coincidence(0)
    try:
        with operation_budget():
            yield
    finally:
        context.set_schedule_algorithm(before[0])
        context.set_schedule_outer_coincidence(before[1])


def _compute(domain: isl.UnionSet, validity: isl.UnionMap, context: isl.Set, *, feautrier: bool) -> isl.Schedule | None:
    with isl_options(feautrier=feautrier):
        try:
            constraints = isl.ScheduleConstraints.on_domain(domain).set_validity(validity).set_coincidence(validity)
            return constraints.set_proximity(validity).set_context(context).compute_schedule()
        except isl.Error:
            return None


@dataclass(frozen=True, slots=True)
class _Reader:
    """Turns isl's schedule tree into ours, with what each loop carries."""

    scop: Scop
    tester: DistanceTester

    def tree(self, node: isl.ScheduleNode, ordered: tuple[Dependence, ...], reductions: tuple[Dependence, ...]) -> Tree:
        kind = node_kind(node)
        if kind == _NODE.leaf:
            names = _names(node.get_domain())
            if ordered:  # isl lets instances of one date depend on one another
                raise _no_schedule(self.scop, names, ordered)
            return sequence([Leaf(name) for name in names])
        if kind in (_NODE.sequence, _NODE.set):
            children = (node.child(n).child(0) for n in range(node.n_children()))
            return sequence([self.child(child, ordered, reductions) for child in children])
        if kind == _NODE.band:
            return self.band(node, 0, ordered, reductions)
        raise ScheduleError("isl's schedule has a node that was not asked for", why=str(kind))

    def child(
        self, node: isl.ScheduleNode, ordered: tuple[Dependence, ...], reductions: tuple[Dependence, ...]
    ) -> Tree:
        """A child of a sequence: what leads from one child to another is carried by the sequence."""
        names = _names(node.get_domain())
        return self.tree(node, _within(names, ordered), _within(names, reductions))

    def band(
        self,
        node: isl.ScheduleNode,
        member: int,
        ordered: tuple[Dependence, ...],
        reductions: tuple[Dependence, ...],
    ) -> Tree:
        """The loops of a band from one member on."""
        if member == node.band_n_member():
            return self.tree(node.child(0), ordered, reductions)
        function = node.band_get_partial_schedule().get_union_pw_aff(member)
        rows = {name: _row(function, self.scop, name) for name in _names(node.get_domain())}
        apart = not self.tester.is_coincident(ordered, rows)
        sums = not self.tester.is_coincident(reductions, rows)
        body = self.band(node, member + 1, self.tester.left(ordered, rows), self.tester.left(reductions, rows))
        widest = max(rows.values(), key=lambda row: len(row.terms))
        return Loop(
            str(widest), tuple(rows.items()), body, coincident=not apart and not sums, reduction=sums and not apart
        )


def _within(names: Iterable[str], dependences: Sequence[Dependence]) -> tuple[Dependence, ...]:
    inside = set(names)
    return tuple(d for d in dependences if d.source in inside and d.target in inside)


def _row(function: isl.UnionPwAff, scop: Scop, name: str) -> Affine:
    """The row of a statement in a function of all statements."""
    functions = function.get_pw_aff_list()
    found = (functions.get_at(n) for n in range(functions.n_pw_aff()))
    piecewise = next(one for one in found if one.domain().get_tuple_name() == name)
    pieces = piecewise.get_pieces()
    if len(pieces) != 1:
        raise ScheduleError("isl's schedule has a piecewise row", why=str(piecewise))
    aff = pieces[0][1]
    for position, axis in enumerate(scop.statement(name).axes):
        aff = aff.set_dim_name(isl.dim_type.in_, position, axis)
    return affine_from_aff(aff)


def _names(domain: isl.UnionSet) -> list[str]:
    sets = domain.get_set_list()
    return sorted(sets.get_at(n).get_tuple_name() for n in range(sets.n_set()))
