"""Dependences: which instance must run before which, exactly, because equations leave no choice of writer.

A read names an element; whoever writes the element runs first (`write^-1 . read`). A reduction's start value
runs before its updates. Updates of one element commute: those pairs are *reduction* dependences, kept apart,
since a mapping may reorder them but not run them at once on one storage.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Literal

import islpy as isl

from polyopt import graphs
from polyopt.classes import dataclass
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.space import simplified


@dataclass(frozen=True, slots=True, eq=False)
class Dependence:
    """Instances of `target` that must wait for instances of `source`.

    relation: `{ source[x] -> target[y] }`
    kind:     "flow": y reads what x wrote; "start": x writes the start value that y updates;
              "order": strict mode's order of the updates of one element
    """

    source: str
    target: str
    array: str
    kind: Literal["flow", "start", "order"]
    relation: isl.Map

    def __str__(self) -> str:
        return f"{self.kind:5} {self.array}: {self.relation}"


@dataclass(frozen=True, eq=False)
class Dependences:
    """All dependences of a scop.

    ordered:    must be respected
    reductions: `{ update[x] -> update'[y] }`, both updates of one element, x and y different; either order
    """

    ordered: tuple[Dependence, ...]
    reductions: tuple[Dependence, ...]

    @cached_property
    def by_pair(self) -> Mapping[tuple[str, str], tuple[Dependence, ...]]:
        pairs: dict[tuple[str, str], list[Dependence]] = {}
        for dependence in self.ordered:
            pairs.setdefault((dependence.source, dependence.target), []).append(dependence)
        return {pair: tuple(found) for pair, found in pairs.items()}

    @cached_property
    def recurrent(self) -> frozenset[str]:
        """The statements that depend on themselves, directly or by way of others."""
        edges = [(d.source, d.target) for d in self.ordered]
        return frozenset(graphs.on_cycles(sorted({name for edge in edges for name in edge}), edges))

    def __str__(self) -> str:
        lines = [str(d) for d in self.ordered]
        lines += [f"reduction {d.array}: {d.relation}" for d in self.reductions]
        return "\n".join(lines) or "none"


def compute(scop: Scop, *, strict: bool = False) -> Dependences:
    """The dependences of a scop; with `strict`, the updates of one element run in index order, statement by
    statement in source order."""
    reductions = tuple(_reductions(scop))
    ordered = [*_flows(scop), *_starts(scop)]
    if strict:
        ordered += _index_order(scop, reductions)
        reductions = ()
    return Dependences(tuple(ordered), reductions)


def _flows(scop: Scop) -> Iterator[Dependence]:
    for target in scop.statements:
        for array, read in _reads_by_array(target).items():
            for source in scop.writers(array):
                relation = source.write.apply_range(read.reverse())
                if not relation.is_empty():
                    yield Dependence(source.name, target.name, array, "flow", simplified(relation))


def _reads_by_array(statement: Statement) -> dict[str, isl.Map]:
    """One relation per array read, the union of the statement's references to it."""
    relations: dict[str, isl.Map] = {}
    for array, relation in statement.references:
        relations[array] = relations[array] | relation if array in relations else relation
    return relations


def _starts(scop: Scop) -> Iterator[Dependence]:
    for update in scop.statements:
        if not update.is_update:
            continue
        for source in scop.writers(update.array):
            if source.is_update:
                continue
            relation = simplified(source.write.apply_range(update.write.reverse()))
            if not relation.is_empty():
                yield Dependence(source.name, update.name, update.array, "start", relation)


def _reductions(scop: Scop) -> Iterator[Dependence]:
    updates = [s for s in scop.statements if s.is_update]
    for first, source in enumerate(updates):
        for target in updates[first:]:
            if source.array != target.array:
                continue
            relation = simplified(source.write.apply_range(target.write.reverse()))
            if source is target:
                relation = relation - isl.Map.identity(relation.get_space())
            if not relation.is_empty():
                yield Dependence(source.name, target.name, source.array, "order", relation)


def _index_order(scop: Scop, reductions: tuple[Dependence, ...]) -> list[Dependence]:
    result = []
    for dependence in reductions:
        relation = dependence.relation
        if dependence.source == dependence.target:
            domain = scop.statement(dependence.source).domain
            relation = relation & isl.Map.lex_lt(domain.get_space())
        result.append(Dependence(dependence.source, dependence.target, dependence.array, "order", relation))
    return result
