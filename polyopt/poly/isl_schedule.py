"""isl's scheduler on one component of mutually dependent statements, as a loop tree.

Used where no plain axis order is legal: isl's integer programming finds skewed rows. It runs under an operation
budget, first with its default algorithm, then with Feautrier's. Sources: [Pluto08], [Feautrier92], [isl].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import islpy as isl

from polyopt.dsl.affine import Affine
from polyopt.errors import DefinitionError, ScheduleError
from polyopt.poly.dependence import Dependence
from polyopt.poly.scop import Scop
from polyopt.poly.space import affine_from_aff, node_kind, sample
from polyopt.poly.tree import Leaf, Loop, Tree, sequence

_BUDGET = 400_000
_NODE = isl.schedule_node_type


def schedule(scop: Scop, component: Sequence[str], dependences: Sequence[Dependence]) -> Tree:
    """A legal tree for the component.

    Raises `DefinitionError` where an element depends on itself, `ScheduleError` where isl finds no schedule.
    """
    _refuse_self_dependence(scop, dependences)
    domain = _union([isl.UnionSet.from_set(scop.statement(name).domain) for name in component])
    relations = [isl.UnionMap.from_map(d.relation) for d in dependences]
    validity = relations[0]
    for relation in relations[1:]:
        validity = validity.union(relation)
    for feautrier in (False, True):
        found = _compute(domain, validity, scop.context, feautrier=feautrier)
        if found is not None:
            return _tree(found.get_root().child(0), scop)
    raise DefinitionError(
        "no order of evaluation was found for these equations",
        where=next((scop.statement(name).span for name in component if scop.statement(name).span), None),
        why=f"{', '.join(component)} depend on one another, probably in a cycle",
        fix="check that every recurrence refers to elements that are defined without it",
        facts={"statements": tuple(component)},
    )


def _refuse_self_dependence(scop: Scop, dependences: Sequence[Dependence]) -> None:
    for dependence in dependences:
        if dependence.source != dependence.target:
            continue
        same = dependence.relation & isl.Map.identity(dependence.relation.get_space())
        point = sample(same.domain())
        if point is not None:
            statement = scop.statement(dependence.source)
            element = f"{dependence.array} at {', '.join(f'{k} = {v}' for k, v in point.items())}"
            raise DefinitionError(
                f"'{dependence.array}' depends on itself",
                where=statement.span,
                why=f"the value of {element} needs that same value",
                fix="refer to an earlier element, such as t - 1, or give the other value a name of its own",
                facts={"tensor": dependence.array, "point": point},
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
    context.set_max_operations(_BUDGET)
    context.reset_operations()
    try:
        yield
    finally:
        context.set_schedule_algorithm(before[0])
        context.set_schedule_outer_coincidence(before[1])
        context.set_max_operations(0)
        context.reset_operations()


def _compute(domain: isl.UnionSet, validity: isl.UnionMap, context: isl.Set, *, feautrier: bool) -> isl.Schedule | None:
    with isl_options(feautrier=feautrier):
        constraints = isl.ScheduleConstraints.on_domain(domain).set_validity(validity).set_coincidence(validity)
        try:
            return constraints.set_proximity(validity).set_context(context).compute_schedule()
        except isl.Error:
            return None


def _tree(node: isl.ScheduleNode, scop: Scop) -> Tree:
    kind = node_kind(node)
    if kind == _NODE.leaf:
        names = _names(node.get_domain())
        return sequence([Leaf(name) for name in names])
    if kind in (_NODE.sequence, _NODE.set):
        return sequence([_tree(node.child(n).child(0), scop) for n in range(node.n_children())])
    if kind == _NODE.band:
        return _band(node, scop)
    raise ScheduleError("isl's schedule has a node that was not asked for", why=str(kind))


def _band(node: isl.ScheduleNode, scop: Scop) -> Tree:
    partial = node.band_get_partial_schedule()
    names = _names(node.get_domain())
    tree = _tree(node.child(0), scop)
    for member in reversed(range(node.band_n_member())):
        function = partial.get_union_pw_aff(member)
        rows = tuple((name, _row(function, scop, name)) for name in names)
        widest = max((row for _, row in rows), key=lambda row: len(row.terms))
        coincident = bool(node.band_member_get_coincident(member))
        tree = Loop(str(widest), rows, tree, coincident=coincident)
    return tree


def _row(function: isl.UnionPwAff, scop: Scop, name: str) -> Affine:
    statement = scop.statement(name)
    piecewise = function.extract_pw_aff(statement.domain.get_space())
    pieces = piecewise.get_pieces()
    if len(pieces) != 1:
        raise ScheduleError("isl's schedule has a piecewise row", why=str(piecewise))
    aff = pieces[0][1]
    for position, axis in enumerate(statement.axes):
        aff = aff.set_dim_name(isl.dim_type.in_, position, axis)
    return affine_from_aff(aff)


def _names(domain: isl.UnionSet) -> list[str]:
    sets = domain.get_set_list()
    return sorted(sets.get_at(n).get_tuple_name() for n in range(sets.n_set()))
