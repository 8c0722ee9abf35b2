"""When instances run: the order that a schedule tree and the kinds of its loops guarantee, and no more.

Inside a parallel, vector, grid or block loop nothing is ordered. Both the storage planner and the proof ask here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field

import islpy as isl

from polyopt.classes import dataclass
from polyopt.errors import LegalityError
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.space import node_kind, sample
from polyopt.poly.tree import LoopKind

_NODE = isl.schedule_node_type
CONCURRENT = ("parallel", "vector", "grid", "block")
"""Kinds of loops whose iterations may run at once."""
COMBINED = ("vector", "block")
"""Those of them that combine what their iterations add to one element."""


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """One coordinate of an instance's date: a loop's row, or a position in a sequence.

    loop: the loop's name; empty for a sequence
    row:  `{ S[x] -> [value] }`; None for a sequence
    """

    loop: str
    kind: LoopKind
    row: isl.Map | None
    position: int = 0


def _steps(node: isl.ScheduleNode, statement: Statement, kinds: Mapping[str, LoopKind]) -> tuple[Step, ...]:
    """The date of a statement's instances: what stands on the way from the root of the schedule tree to it."""
    name = statement.name
    steps: list[Step] = []
    mark = ""
    while (kind := node_kind(node)) != _NODE.leaf:
        if kind == _NODE.mark:
            mark = node.mark_get_id().get_name()
            node = node.child(0)
        elif kind == _NODE.band:
            assert node.band_n_member() == 1 and mark in kinds, "every loop is one band under its own mark"
            if any(step.loop == mark for step in steps):
                raise LegalityError(f"two loops around '{name}' are called '{mark}'", facts={"loop": mark})
            rows = isl.UnionMap.from_multi_union_pw_aff(node.band_get_partial_schedule())
            steps.append(Step(mark, kinds[mark], _of_statement(rows, name)))
            node = node.child(0)
        elif kind in (_NODE.sequence, _NODE.set):
            position = _child_of(node, statement)
            steps.append(Step("", "serial", None, position))
            node = node.child(position).child(0)
        else:
            raise LegalityError("the schedule has a node that cannot be read back", why=str(kind))
    return tuple(steps)


def _child_of(node: isl.ScheduleNode, statement: Statement) -> int:
    """The child of a sequence that runs a statement, all instances of it."""
    for position in range(node.n_children()):
        chosen = node.child(position).filter_get_filter().extract_set(statement.domain.get_space())
        if statement.domain.is_subset(chosen):
            return position
    raise LegalityError(
        f"the schedule tears '{statement.name}' apart: no child of a sequence runs all of it",
        facts={"statement": statement.name},
    )


def _check_domain(scop: Scop, schedule: isl.Schedule) -> None:
    """Raise `LegalityError` where the schedule leaves out an instance or has one of its own."""
    domain = schedule.get_domain()
    for statement in scop.statements:
        scheduled = domain.extract_set(statement.domain.get_space())
        domain = domain.subtract(isl.UnionSet.from_set(scheduled))
        for points, verb in ((statement.domain - scheduled, "never runs"), (scheduled - statement.domain, "invents")):
            point = sample(points)
            if point is not None:
                raise LegalityError(
                    f"the schedule {verb} an instance of '{statement.name}'",
                    why=f"for example {statement.name}{point}",
                    facts={"statement": statement.name, "point": point},
                )
    if not domain.is_empty():
        raise LegalityError("the schedule runs a statement that the scop does not have", why=str(domain))


def _of_statement(rows: isl.UnionMap, name: str) -> isl.Map:
    maps = rows.get_map_list()
    found = (maps.get_at(n) for n in range(maps.n_map()))
    return next(m for m in found if m.get_tuple_name(isl.dim_type.in_) == name)


@dataclass(slots=True, eq=False)
class Order:
    """The guaranteed order of a scop's instances under one schedule."""

    scop: Scop
    steps: Mapping[str, tuple[Step, ...]]
    _orders: dict[tuple[str, str], isl.Map] = field(default_factory=dict)

    @staticmethod
    def of(scop: Scop, schedule: isl.Schedule, kinds: Mapping[str, LoopKind]) -> Order:
        """Reads the order back from an isl schedule tree whose loops are single-member bands under marks.

        kinds: how each loop, by the name in its mark, is mapped
        Raises `LegalityError` where the tree does not run every instance of every statement, in one place.
        """
        _check_domain(scop, schedule)
        root = schedule.get_root().child(0)
        return Order(scop, {s.name: _steps(root, s, kinds) for s in scop.statements})

    def before(self, first: str, second: str) -> isl.Map:
        """`{ first[x] -> second[y] : x surely runs before y }`, where both are instances.

        The domains, which may have many pieces, are left out: what is asked of it are pairs of instances.
        """
        if (first, second) not in self._orders:
            self._orders[first, second] = self._before(first, second)
        return self._orders[first, second]

    def _before(self, first: str, second: str) -> isl.Map:
        together = isl.Map.universe(self.pairs(first, second).get_space())
        ordered = together - together
        for one, other in self.common(first, second):
            if one.row is None or other.row is None:
                if one.position < other.position:
                    ordered = ordered | together
                if one.position != other.position:
                    break
                continue
            if one.kind not in CONCURRENT:
                ordered = ordered | (together & _rows_related(one.row, other.row, isl.Map.lex_lt))
            together = together & one.row.apply_range(other.row.reverse())
        return ordered

    def in_one_iteration(self, first: str, second: str, loop: str) -> isl.Map:
        """Pairs of instances in one iteration of a loop around both statements, and so of all loops outside it; no
        pair where the loop is not around both."""
        together = self.pairs(first, second)
        for one, other in self.common(first, second):
            if one.row is None or other.row is None:
                continue
            together = together & one.row.apply_range(other.row.reverse())
            if one.loop == loop:
                return together
        return together - together

    def pairs(self, first: str, second: str) -> isl.Map:
        return isl.Map.from_domain_and_range(self.scop.statement(first).domain, self.scop.statement(second).domain)

    def common(self, first: str, second: str) -> Iterator[tuple[Step, Step]]:
        """The steps shared by two statements, up to the sequence where they part."""
        for one, other in zip(self.steps[first], self.steps[second], strict=False):
            yield one, other
            if one.row is None and one.position != other.position:
                return


def _rows_related(first: isl.Map, second: isl.Map, relate: Callable[[isl.Space], isl.Map]) -> isl.Map:
    return first.apply_range(relate(first.get_space().range())).apply_range(second.reverse())
