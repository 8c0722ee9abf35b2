"""Prints scops, domains, accesses and schedules: sorted, one line for a statement or a piece of a relation.

isl's own order of the pieces of a union is that of a hash, so nothing is printed as isl prints a union.
"""

from __future__ import annotations

from collections.abc import Iterator

import islpy as isl

from polyopt.dsl.ir import Read
from polyopt.dsl.text import expr_text
from polyopt.poly.scop import Array, Scop, Statement

_UPDATES = {"sum": "+=", "prod": "*="}


def scop_text(scop: Scop) -> str:
    """Arrays, then statements with their instances and what they read."""
    lines = [f"{scop.name}[{', '.join(scop.sizes)}]:" if scop.sizes else f"{scop.name}:"]
    if not scop.context.plain_is_universe():
        lines.append(f"    given {scop.context}")
    lines += [f"    {array_text(array)}" for array in scop.arrays]
    for statement in scop.statements:
        lines += [f"    {line}" for line in _statement_lines(statement)]
    return "\n".join(lines)


def array_text(array: Array) -> str:
    """`y: f32[512, 128], local`."""
    shape = f"[{', '.join(map(str, array.shape))}]" if array.shape else ""
    return f"{array.name}: {array.dtype}{shape}, {array.role}"


def _statement_lines(statement: Statement) -> Iterator[str]:
    reducer = statement.reducer
    update = "=" if reducer is None or not statement.is_update else _UPDATES.get(reducer.name, f"{reducer.name}=")
    left = expr_text(Read(statement.array, statement.subscripts, statement.value.dtype))
    yield f"{statement.name}[{', '.join(statement.axes)}]: {left} {update} {expr_text(statement.value)}"
    yield f"    instances {statement.domain}"


def domains_text(scop: Scop) -> str:
    """The instances of each statement, in source order."""
    return "\n".join(str(statement.domain) for statement in scop.statements)


def accesses_text(scop: Scop) -> str:
    """For each statement what it writes and reads, in source order."""
    lines: list[str] = []
    for statement in scop.statements:
        lines.append(f"{statement.name}:")
        lines.append(f"    writes {statement.write}")
        lines += [f"    reads  {access.relation}" for access in statement.reads]
    return "\n".join(lines)


def schedule_text(schedule: isl.Schedule) -> str:
    """The schedule tree: a line for each node, children below it."""
    return "\n".join(_node_lines(schedule.get_root(), 0))


def _node_lines(node: isl.ScheduleNode, depth: int) -> Iterator[str]:
    label = _label(node)
    if label:
        yield "  " * depth + label
    for number in range(node.n_children()):
        yield from _node_lines(node.child(number), depth + bool(label))


def _label(node: isl.ScheduleNode) -> str:
    """One node in words; empty for a leaf, which says nothing."""
    types = isl.schedule_node_type
    kind: object = node.get_type()  # islpy's stubs call it an int
    if kind == types.domain:
        return f"domain {_sorted_set(node.domain_get_domain())}"
    if kind == types.band:
        members = range(node.band_n_member())
        marks = ["coincident" if node.band_member_get_coincident(member) else "serial" for member in members]
        return f"band {'; '.join(_members(node.band_get_partial_schedule()))} {', '.join(marks)}"
    if kind == types.filter:
        return f"filter {_sorted_set(node.filter_get_filter())}"
    if kind == types.mark:
        return f"mark {node.mark_get_id().get_name()}"
    if kind == types.extension:
        return f"extension {node.extension_get_extension()}"
    if kind == types.context:
        return f"context {node.context_get_context()}"
    return "" if kind == types.leaf else str(kind).rpartition(".")[2]


def _members(partial: isl.MultiUnionPwAff) -> Iterator[str]:
    """What each member of a band maps an instance to."""
    for member in range(partial.dim(isl.dim_type.out)):
        pieces = partial.get_union_pw_aff(member).get_pw_aff_list()
        yield ", ".join(sorted(str(pieces.get_at(n)) for n in range(pieces.n_pw_aff())))


def _sorted_set(union: isl.UnionSet) -> str:
    return "; ".join(sorted(str(union.get_set_list().get_at(n)) for n in range(union.n_set())))
