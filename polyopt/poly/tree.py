"""The schedule as a tree of loops, and its isl schedule tree.

A tree is a `Leaf` (a statement), a `Sequence` (children one after the other) or a `Loop` (one dimension, with a
row per statement: the value of the loop's variable at which an instance runs). Plans rewrite trees; isl receives
the final one to prove it and to scan it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal, assert_never

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine
from polyopt.errors import LegalityError
from polyopt.poly.scop import Scop
from polyopt.poly.space import Space

LoopKind = Literal["serial", "parallel", "vector", "unrolled", "group", "grid", "block"]
"""How a loop is mapped; `loops.ir.For` says what each kind means."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """All remaining dimensions of one statement are fixed: one instance."""

    statement: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """Children in order."""

    children: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """One schedule dimension.

    name:       the axes it scans, for the reader and for isl's mark; unique in a tree once `numbered`
    rows:       for each statement below, its value of the loop variable: quasi-affine over the statement's axes
    coincident: no dependence is carried, so iterations may run at once
    reduction:  only reduction dependences are carried: iterations may run in any order
    kind:       how it is mapped
    chunk:      for a parallel loop, iterations per unit of work; for a group, how many it has; for a grid loop,
                iterations per block of threads; for a block loop, the threads that share its iterations
    """

    name: str
    rows: tuple[tuple[str, Affine], ...]
    body: Tree
    coincident: bool = False
    reduction: bool = False
    kind: LoopKind = "serial"
    chunk: int = 1

    def row(self, statement: str) -> Affine:
        return dict(self.rows)[statement]

    @property
    def statements(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.rows)


Tree = Leaf | Sequence | Loop


def statements(tree: Tree) -> tuple[str, ...]:
    """The statements below, in order of the text."""
    match tree:
        case Leaf(statement):
            return (statement,)
        case Sequence(children):
            return tuple(name for child in children for name in statements(child))
        case Loop(body=body):
            return statements(body)
        case _:
            assert_never(tree)


def children_of(tree: Tree) -> tuple[Tree, ...]:
    """What a sequence runs one after the other; a tree that is none, alone."""
    return tree.children if isinstance(tree, Sequence) else (tree,)


def loops(tree: Tree) -> Iterator[Loop]:
    """Every loop, outer ones first."""
    match tree:
        case Leaf():
            return
        case Sequence(children):
            for child in children:
                yield from loops(child)
        case Loop(body=body):
            yield tree
            yield from loops(body)
        case _:
            assert_never(tree)


def kinds(tree: Tree) -> dict[str, LoopKind]:
    """How the loops of each name are mapped. Raises `LegalityError` where loops of one name are mapped differently."""
    found: dict[str, LoopKind] = {}
    for loop in loops(tree):
        if found.setdefault(loop.name, loop.kind) != loop.kind:
            raise LegalityError(
                f"loops called '{loop.name}' are mapped in two ways",
                why=f"one is {found[loop.name]}, another {loop.kind}",
                facts={"loop": loop.name},
            )
    return found


def sequence(children: list[Tree]) -> Tree:
    """The children in order; nested sequences are flattened, one child stands for itself."""
    flat: list[Tree] = []
    for child in children:
        flat.extend(child.children if isinstance(child, Sequence) else [child])
    return flat[0] if len(flat) == 1 else Sequence(tuple(flat))


def numbered(tree: Tree) -> Tree:
    """The tree with every loop's name made unique, so that it can stand as an isl mark."""
    seen: dict[str, int] = {}

    def visit(node: Tree) -> Tree:
        match node:
            case Leaf():
                return node
            case Sequence(children):
                return Sequence(tuple(visit(child) for child in children))
            case Loop(name=name):
                seen[name] = seen.get(name, 0) + 1
                unique = name if seen[name] == 1 else f"{name}#{seen[name]}"
                return replace(node, name=unique, body=visit(node.body))
            case _:
                assert_never(node)

    return visit(tree)


def as_schedule(tree: Tree, scop: Scop) -> isl.Schedule:
    """The isl schedule tree: one single-member band under a mark for each loop."""
    spaces = {s.name: Space(s.name, s.axes, scop.sizes) for s in scop.statements}

    def visit(node: Tree) -> isl.Schedule:
        match node:
            case Leaf(name):
                return isl.Schedule.from_domain(isl.UnionSet.from_set(scop.statement(name).domain))
            case Sequence(()):
                return isl.Schedule.from_domain(isl.UnionSet.empty(isl.Space.params_alloc(isl.DEFAULT_CONTEXT, 0)))
            case Sequence(children):
                schedule = visit(children[0])
                for child in children[1:]:
                    schedule = schedule.sequence(visit(child))
                return schedule
            case Loop(name=name, rows=rows):
                schedule = visit(node.body).insert_partial_schedule(_partial(rows, spaces))
                band = schedule.get_root().child(0)
                band = band.band_member_set_coincident(0, int(node.coincident))
                return band.insert_mark(isl.Id(name)).get_schedule()
            case _:
                assert_never(node)

    return visit(tree)


def _partial(rows: tuple[tuple[str, Affine], ...], spaces: Mapping[str, Space]) -> isl.MultiUnionPwAff:
    union = None
    for name, row in rows:
        function = isl.UnionPwAff.from_pw_aff(isl.PwAff.from_aff(spaces[name].aff(row)))
        union = function if union is None else union.union_add(function)
    assert union is not None, "a loop scans at least one statement"
    return isl.MultiUnionPwAff.from_union_pw_aff(union)


def tree_text(tree: Tree, indent: int = 0) -> str:
    """An indented outline: loops with their rows, statements by name."""
    pad = "  " * indent
    match tree:
        case Leaf(statement):
            return f"{pad}{statement}"
        case Sequence(children):
            return "\n".join(tree_text(child, indent) for child in children)
        case Loop(name=name, rows=rows, kind=kind):
            marks: list[str] = [kind] if kind != "serial" else []
            marks += ["coincident"] if tree.coincident and kind == "serial" else []
            marks += ["reduction"] if tree.reduction else []
            shown = ", ".join(f"{statement}: {row}" for statement, row in rows)
            head = f"{pad}{' '.join([*marks, 'loop'])} {name}  [{shown}]"
            return f"{head}\n{tree_text(tree.body, indent + 1)}"
        case _:
            assert_never(tree)
