"""Checks without isl that each instance of a loop program touches the elements that its equation names.

What an instance reads and writes is worked out from the statement in Python: its subscripts at the point, the branch
that its conditions take, and where the storage plan keeps the element. Values are not computed, so a subscript that is
data may be any index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Any, assert_never

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, evaluate, holds
from polyopt.dsl.builtins import BUILTINS
from polyopt.errors import LegalityError
from polyopt.loops.instances import Access, Instance
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.storage import StoragePlan
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree

Index = tuple[int | None, ...]
"""An element of a buffer; None for a subscript that is data."""


def check_places(
    instances: Iterable[Instance], scop: Scop, tree: Tree, storage: StoragePlan, sizes: Mapping[str, int]
) -> None:
    """Raises `LegalityError` with `facts["rule"]` "place" for an instance that touches another element.

    tree, storage: the final loop tree and storage plan, which say where each element is kept
    """
    places = _Places(scop, storage, dict(sizes), dict(_rows(tree, {})))
    for instance in instances:
        places.check(instance)


def _rows(tree: Tree, outer: Mapping[str, Loop]) -> Iterator[tuple[str, Mapping[str, Loop]]]:
    """For each statement the loops around it, by name."""
    match tree:
        case Leaf(statement):
            yield statement, outer
        case Sequence(children):
            for child in children:
                yield from _rows(child, outer)
        case Loop(name=name, body=body):
            yield from _rows(body, {**outer, name: tree})
        case _:
            assert_never(tree)


@dataclass(slots=True)
class _Places:
    scop: Scop
    storage: StoragePlan
    sizes: Mapping[str, int]
    loops: Mapping[str, Mapping[str, Loop]]
    statements: dict[str, Statement] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.statements = {statement.name: statement for statement in self.scop.statements}
        self.shapes = {a.name: tuple(self.value(e, {}) for e in a.shape) for a in self.scop.arrays}

    def value(self, expression: Affine, axes: Mapping[str, int]) -> int:
        return int(evaluate(expression, axes, self.sizes))

    def check(self, instance: Instance) -> None:
        statement = self.statements.get(instance.statement)
        if statement is None:
            raise _fault(instance, f"'{instance.statement}' is no statement")
        axes = dict(zip(statement.axes, instance.point, strict=True))
        written = self.place(statement, statement.array, statement.subscripts, None, axes)
        if not _is(instance.write, statement.array, written):
            raise _fault(instance, f"it writes {_text(instance.write)}, and should write {statement.array}{written}")
        indices = [s.value for s in statement.subscripts if isinstance(s, ir.DataIndex)]
        values = (*indices, statement.value)
        named = [place for expr in values for place in self.reads(statement, expr, axes)]
        for access in instance.reads:
            if not any(_is(access, array, index) for array, index in named):
                raise _fault(instance, f"it reads {_text(access)}, which its equation does not name")
        for array, index in (p for e in values for p in self.reads(statement, e, axes, only_needed=True)):
            if not any(_is(access, array, index) for access in instance.reads) and None not in index:
                raise _fault(instance, f"it does not read {array}{index}, which its equation names")

    def reads(
        self, statement: Statement, expr: ir.Expr, axes: Mapping[str, int], *, only_needed: bool = False
    ) -> Iterator[tuple[str, Index]]:
        """The elements that evaluating an expression reads, in the branches that its conditions take.

        only_needed: but for those whose values do not matter, which a loop program may leave out
        """
        match expr:
            case ir.Const() | ir.Var() | ir.IndexValue():
                return
            case ir.Op():
                for arg in self.needed(expr, axes) if only_needed else expr.args:
                    yield from self.reads(statement, arg, axes, only_needed=only_needed)
            case ir.Cast(arg=arg):
                yield from self.reads(statement, arg, axes, only_needed=only_needed)
            case ir.Where(condition, then, otherwise):
                taken = then if holds(condition, axes, self.sizes) else otherwise
                yield from self.reads(statement, taken, axes, only_needed=only_needed)
            case ir.Read(tensor, subscripts, _, boundary):
                is_padding = isinstance(boundary, ir.Pad) and self.is_outside(tensor, subscripts, axes)
                for subscript in subscripts:
                    if isinstance(subscript, ir.DataIndex) and not (is_padding and only_needed):
                        yield from self.reads(statement, subscript.value, axes, only_needed=only_needed)
                if not is_padding:
                    yield tensor, self.place(statement, tensor, subscripts, boundary, axes)
            case ir.Reduce():
                raise AssertionError("a reduction is a statement of its own")
            case _:
                assert_never(expr)

    def needed(self, expr: ir.Op[ir.Expr], axes: Mapping[str, int]) -> Iterable[ir.Expr]:
        """The operands whose values matter: where what decides is no data, the others are never asked for."""
        if self.number(expr, axes) is not None:
            return ()
        if expr.name == "select" and (chosen := self.number(expr.args[0], axes)) is not None:
            return (expr.args[1] if chosen else expr.args[2],)
        return expr.args

    def number(self, expr: ir.Expr, axes: Mapping[str, int]) -> Any:
        """The value of a condition or an integer as NumPy has it; None where it is data or made of floats."""
        if expr.dtype.is_float:
            return None
        found: Any = None
        match expr:
            case ir.Const(value):
                found = value
            case ir.IndexValue(affine):
                found = self.value(affine, axes)
            case ir.Cast(arg):
                found = self.number(arg, axes)
            case ir.Where(condition, then, otherwise):
                found = self.number(then if holds(condition, axes, self.sizes) else otherwise, axes)
            case ir.Read(tensor, subscripts, _, ir.Pad(value)) if self.is_outside(tensor, subscripts, axes):
                found = self.number(value, axes)
            case ir.Op(name, args):
                known = [self.number(arg, axes) for arg in args]
                decides = {"and": False, "or": True}.get(name) if expr.dtype.is_bool else None
                if decides is not None and any(value is not None and bool(value) is decides for value in known):
                    found = decides
                elif None not in known:
                    with np.errstate(all="ignore"):
                        found = BUILTINS[name].numpy(*known)
        return None if found is None else np.asarray(found).astype(expr.dtype.numpy)[()]

    def is_outside(self, tensor: str, subscripts: tuple[ir.Subscript, ...], axes: Mapping[str, int]) -> bool:
        return any(
            isinstance(subscript, Affine) and not 0 <= self.value(subscript, axes) < extent
            for subscript, extent in zip(subscripts, self.shapes[tensor], strict=True)
        )

    def place(
        self,
        statement: Statement,
        array: str,
        subscripts: tuple[ir.Subscript, ...],
        boundary: ir.Boundary | None,
        axes: Mapping[str, int],
    ) -> Index:
        """Where an element lies in its buffer."""
        buffer = self.storage.of(array)
        found: list[int | None] = []
        for dimension, (subscript, extent) in enumerate(zip(subscripts, self.shapes[array], strict=True)):
            if isinstance(subscript, ir.DataIndex):
                found.append(None)
                continue
            index = self.value(subscript, axes)
            if isinstance(boundary, ir.Clamp):
                index = min(max(index, 0), extent - 1)
            elif isinstance(boundary, ir.Wrap):
                index = index % extent if extent else 0
            if buffer is not None:
                index -= self.value(buffer.offset[dimension], self.loop_values(statement, axes))
                modulus = buffer.modulo[dimension]
                index = index if modulus is None else index % modulus
            found.append(index)
        return tuple(found)

    def loop_values(self, statement: Statement, axes: Mapping[str, int]) -> dict[str, int]:
        return {name: self.value(loop.row(statement.name), axes) for name, loop in self.loops[statement.name].items()}


def _is(access: Access, array: str, index: Index) -> bool:
    return access.buffer == array and all(w is None or w == i for i, w in zip(access.index, index, strict=True))


def _text(access: Access) -> str:
    return f"{access.buffer}{list(access.index)}"


def _fault(instance: Instance, what: str) -> LegalityError:
    return LegalityError(
        f"the loop program is wrong: {instance.statement}{list(instance.point)} touches another element",
        why=f"{what}\nin: {instance.text}",
        facts={"rule": "place", "statement": instance.statement, "point": instance.point},
    )
