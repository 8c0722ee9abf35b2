"""Faults to plant: each function changes one thing at a random place of a value of the chain, or gives None.

The classes are those of the miscompiles that compilers of this field shipped, and more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from random import Random
from typing import Any

import islpy as isl

from polyopt.dsl.ir import Cast, Const, Op
from polyopt.dtypes import f32, f64, i32, i64
from polyopt.fuzz import plans
from polyopt.loops.ir import Alloc, Block, Buffer, Expr, For, If, Load, LoopProgram, Store, integer, walk
from polyopt.poly.dependence import Dependences
from polyopt.poly.storage import Storage, StoragePlan
from polyopt.poly.tree import Loop, LoopKind, Tree, loops

# --- trees: orders and marks ------------------------------------------------------------------------------------


def order(tree: Tree, random: Random) -> Tree | None:
    """Another order: reversed, shifted, skewed, interchanged, shuffled, distributed, fused, or a loop left out."""
    steps = [step for step in plans.STEPS if step is not plans.with_another_kind]
    places = list(plans.places_of(tree))
    if not places:
        return None
    place = random.choice(places)
    if isinstance(place, Loop):
        return plans.replaced(tree, place, random.choice(steps)(place, random))
    return plans.replaced(tree, place, random.choice((plans.shuffled, plans.fused))(place, random))  # type: ignore[arg-type]


def mark(tree: Tree, random: Random) -> Tree | None:
    """A parallel or vector mark where the compiler put none."""
    places = [loop for loop in loops(tree) if loop.kind in ("serial", "unrolled")]
    if not places:
        return None
    place = random.choice(places)
    kind: LoopKind = random.choice(("parallel", "vector"))
    return plans.replaced(tree, place, replace(place, kind=kind))


# --- dependences ------------------------------------------------------------------------------------------------


def dependence(found: Dependences, random: Random) -> Dependences | None:
    """A dependence forgotten, turned, or narrowed to all pairs but one."""
    if not found.ordered:
        return None
    place = random.randrange(len(found.ordered))
    old = found.ordered[place]
    others = (*found.ordered[:place], *found.ordered[place + 1 :])
    match random.randrange(3):
        case 0:
            return replace(found, ordered=others)
        case 1:
            turned = replace(old, source=old.target, target=old.source, relation=old.relation.reverse())
            return replace(found, ordered=(*others, turned))
        case _:
            one = isl.Map.from_basic_map(old.relation.sample())
            return replace(found, ordered=(*others, replace(old, relation=old.relation - one)))


# --- storage ----------------------------------------------------------------------------------------------------


def storage(plan: StoragePlan, random: Random) -> StoragePlan | None:
    """A buffer one smaller, moved by one, of fewer planes, folded, of another scope, or left out."""
    if not plan.buffers:
        return None
    place = random.randrange(len(plan.buffers))
    buffer = plan.buffers[place]
    changed = random.choice((_smaller, _moved, _folded, _outside, _left_out))(buffer, random)
    if changed is None:
        return None
    return StoragePlan((*plan.buffers[:place], *changed, *plan.buffers[place + 1 :]))


def _smaller(buffer: Storage, random: Random) -> tuple[Storage, ...] | None:
    if not buffer.extent:
        return None
    d = random.randrange(len(buffer.extent))
    modulus = buffer.modulo[d]
    if modulus is not None:
        return (replace(buffer, modulo=plans.put(buffer.modulo, d, modulus - 1)),) if modulus > 1 else None
    return (replace(buffer, extent=plans.put(buffer.extent, d, buffer.extent[d] - 1)),)


def _moved(buffer: Storage, random: Random) -> tuple[Storage, ...] | None:
    if not buffer.extent:
        return None
    d = random.randrange(len(buffer.extent))
    return (replace(buffer, offset=plans.put(buffer.offset, d, buffer.offset[d] + random.choice((-1, 1)))),)


def _folded(buffer: Storage, random: Random) -> tuple[Storage, ...] | None:
    if not buffer.extent or buffer.is_folded:
        return None
    d = random.randrange(len(buffer.extent))
    if not buffer.extent[d].is_constant or buffer.extent[d].constant < 2:
        return None
    return (replace(buffer, modulo=plans.put(buffer.modulo, d, random.randint(1, buffer.extent[d].constant - 1))),)


def _outside(buffer: Storage, random: Random) -> tuple[Storage, ...] | None:
    return (replace(buffer, scope=buffer.scope[1:]),) if buffer.scope else None


def _left_out(buffer: Storage, random: Random) -> tuple[Storage, ...] | None:
    return ()


# --- loop programs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Site:
    """A place in a loop program and what stands there."""

    path: tuple[tuple[str, int | None], ...]
    node: Any


def _sites(node: Any, path: tuple[tuple[str, int | None], ...] = ()) -> Iterator[_Site]:
    """Every statement and expression of a loop program's body."""
    yield _Site(path, node)
    if not isinstance(node, Block | For | If | Alloc | Store | Op | Cast | Load):
        return
    for item in fields(node):
        value = getattr(node, item.name)
        if item.name == "instance":
            continue
        if isinstance(value, tuple):
            for position, part in enumerate(value):
                if isinstance(part, _NODES):
                    yield from _sites(part, (*path, (item.name, position)))
        elif isinstance(value, _NODES):
            yield from _sites(value, (*path, (item.name, None)))


_NODES = (Block, For, If, Alloc, Store, Op, Cast, Load, Const)


def _put(node: Any, path: tuple[tuple[str, int | None], ...], new: Any) -> Any:
    if not path:
        return new
    (name, position), rest = path[0], path[1:]
    value = getattr(node, name)
    if position is None:
        return replace(node, **{name: _put(value, rest, new)})
    return replace(node, **{name: (*value[:position], _put(value[position], rest, new), *value[position + 1 :])})


Change = Callable[[Any, Random], Any]


def _at(program: LoopProgram, random: Random, kinds: tuple[type, ...], change: Change) -> LoopProgram | None:
    found = [site for site in _sites(program.body) if isinstance(site.node, kinds)]
    random.shuffle(found)
    for site in found:
        new = change(site.node, random)
        if new is not None and new != site.node:
            return replace(program, body=_put(program.body, site.path, new))
    return None


def _one_off(expr: Expr, random: Random) -> Expr:
    return Op(random.choice(("add", "sub")), (expr, integer(1)), i64)


def bound(program: LoopProgram, random: Random) -> LoopProgram | None:
    """A tail forgotten or too long: a bound one off, or another step."""

    def change(loop: For, random: Random) -> For:
        match random.randrange(3):
            case 0:
                return replace(loop, lower=_one_off(loop.lower, random))
            case 1:
                return replace(loop, upper=_one_off(loop.upper, random))
            case _:
                return replace(loop, step=loop.step + random.choice((1, 2)))

    return _at(program, random, (For,), change)


def guard(program: LoopProgram, random: Random) -> LoopProgram | None:
    """A guard or a mask dropped, or a comparison of an index changed."""

    def change(node: Any, random: Random) -> Any:
        match node:
            case If(_, then, _):
                return then
            case Load(mask=mask) if mask is not None and random.random() < 0.5:
                return replace(node, mask=None)
            case Op("lt" | "le" | "gt" | "ge" | "eq" | "ne", args) if args[0].dtype == i64:
                names = ("lt", "le", "gt", "ge", "eq", "ne")
                return replace(node, name=random.choice([name for name in names if name != node.name]))
        return None

    return _at(program, random, (If, Load, Op), change)


def index(program: LoopProgram, random: Random) -> LoopProgram | None:
    """A load or store one element off, of two indices swapped, or from another buffer."""

    def change(node: Any, random: Random) -> Any:
        if not node.indices:
            return None
        d = random.randrange(len(node.indices))
        if len(node.indices) > 1 and random.random() < 0.3:
            swapped = list(node.indices)
            swapped[d], swapped[d - 1] = swapped[d - 1], swapped[d]
            return replace(node, indices=tuple(swapped))
        return replace(node, indices=plans.put(node.indices, d, _one_off(node.indices[d], random)))

    return _at(program, random, (Load, Store), change)


def buffer(program: LoopProgram, random: Random) -> LoopProgram | None:
    """A load from another buffer of the same dtype and rank: a live one that is shared."""
    buffers = [*program.arguments, *program.workspace]
    buffers += [s.buffer for s in walk(program.body) if isinstance(s, Alloc)]
    by_name = {b.name: b for b in buffers}

    def change(node: Any, random: Random) -> Any:
        own = by_name[node.buffer]
        others = [
            b.name for b in buffers if b.name != own.name and b.dtype == own.dtype and len(b.shape) == len(own.shape)
        ]
        return replace(node, buffer=random.choice(others)) if others else None

    return _at(program, random, (Load, Store), change)


def statement(program: LoopProgram, random: Random) -> LoopProgram | None:
    """A store left out, done twice, out of order, or no longer combined with what is there."""

    def change(node: Any, random: Random) -> Any:
        match node:
            case Block(body) if len(body) > 1:
                at = random.randrange(len(body))
                match random.randrange(3):
                    case 0:
                        return Block((*body[:at], *body[at + 1 :]))
                    case 1:
                        return Block((*body[:at], body[at], *body[at:]))
                    case _:
                        return Block((*body[at:], *body[:at]))
            case Store(reducer=reducer) if reducer is not None:
                return replace(node, reducer=None)
        return None

    return _at(program, random, (Block, Store), change)


def kind(program: LoopProgram, random: Random) -> LoopProgram | None:
    """A mark on a loop of the loop program."""
    return _at(program, random, (For,), lambda loop, r: replace(loop, kind=r.choice(("parallel", "vector"))))


def lifetime(program: LoopProgram, random: Random) -> LoopProgram | None:
    """A private buffer allocated inside one of the loops that use it."""

    def change(node: Alloc, random: Random) -> Any:
        match node.body:
            case For():
                return replace(node.body, body=replace(node, body=node.body.body))
            case Block(body):
                return Block(tuple(replace(node, body=part) for part in body))
        return None

    return _at(program, random, (Alloc,), change)


def extent(program: LoopProgram, random: Random) -> LoopProgram | None:
    """A temporary one element smaller."""

    def smaller(buffer: Buffer) -> Buffer | None:
        if not buffer.shape:
            return None
        d = random.randrange(len(buffer.shape))
        return replace(buffer, shape=plans.put(buffer.shape, d, Op("sub", (buffer.shape[d], integer(1)), i64)))

    if program.workspace and random.random() < 0.5:
        at = random.randrange(len(program.workspace))
        new = smaller(program.workspace[at])
        return None if new is None else replace(program, workspace=plans.put(program.workspace, at, new))

    def change(node: Alloc, random: Random) -> Alloc | None:
        new = smaller(node.buffer)
        return None if new is None else replace(node, buffer=new)

    return _at(program, random, (Alloc,), change)


_TYPES = (i32, i64, f32, f64)


def dtype(program: LoopProgram, random: Random) -> LoopProgram | None:
    """An operation, conversion, number or load of another type."""

    def change(node: Any, random: Random) -> Any:
        return replace(node, dtype=random.choice([t for t in _TYPES if t != node.dtype]))

    return _at(program, random, (Op, Cast, Const, Load), change)


_SWAPS = {"add": "sub", "sub": "add", "mul": "add", "maximum": "minimum", "minimum": "maximum", "floordiv": "mod"}


def operation(program: LoopProgram, random: Random) -> LoopProgram | None:
    """Another operation of the same type on data."""

    def change(node: Any, random: Random) -> Any:
        match node:
            case Op(name) if name in _SWAPS:
                return replace(node, name=_SWAPS[name])
            case Const(value) if not isinstance(value, bool) and not node.dtype.is_bool:
                return replace(node, value=value + 1)
        return None

    return _at(program, random, (Op, Const), change)


# --- LLVM text --------------------------------------------------------------------------------------------------

_IR_SWAPS = (
    ("fadd", "fsub"), ("fsub", "fadd"), ("fmul", "fadd"), ("add i64", "sub i64"), ("sub i64", "add i64"),
    ("mul i64", "add i64"), ("icmp slt", "icmp sle"), ("icmp sle", "icmp slt"), ("icmp sge", "icmp sgt"),
    ("icmp ult", "icmp ule"), ("icmp eq", "icmp ne"), ("br i1 %", "br i1 not %"), ("sext", "zext"),
    ("fcmp olt", "fcmp ogt"), ("fcmp ugt", "fcmp ult"), ("float", "double"), ("i32", "i64"), ("<8 x", "<4 x"),
    ("<4 x", "<8 x"), ("ret void", "unreachable"), ("zeroinitializer", "undef"),
)  # fmt: skip


def llvm(text: str, random: Random) -> str | None:
    """One instruction of the text changed: another operation, predicate, constant, type, or the line left out."""
    lines = text.splitlines()
    inside = [n for n, line in enumerate(lines) if line.startswith("  ") and not line.lstrip().startswith(";")]
    for _ in range(40):
        at = random.choice(inside)
        changed = _changed_line(lines[at], random)
        if changed != lines[at]:
            return "\n".join([*lines[:at], changed, *lines[at + 1 :]]) + "\n"
    return None


def _changed_line(line: str, random: Random) -> str:
    match random.randrange(3):
        case 0 if line.lstrip().startswith("store"):
            return ""
        case 1:
            numbers = list(re.finditer(r"(?<=[ ,])-?\d+(?=$|,|\))", line))
            if not numbers or "align" in line[: numbers[-1].start()][-7:]:
                return line
            found = random.choice(numbers)
            return f"{line[: found.start()]}{int(found[0]) + random.choice((-1, 1))}{line[found.end() :]}"
        case _:
            fitting = [(old, new) for old, new in _IR_SWAPS if old in line]
            if not fitting:
                return line
            old, new = random.choice(fitting)
            return line.replace(old, new, 1)


TREES: dict[str, Callable[[Tree, Random], Tree | None]] = {"order": order, "mark": mark}
PROGRAMS: dict[str, Callable[[LoopProgram, Random], LoopProgram | None]] = {
    "bound": bound, "guard": guard, "index": index, "buffer": buffer, "statement": statement, "kind": kind,
    "lifetime": lifetime, "extent": extent, "dtype": dtype, "operation": operation,
}  # fmt: skip
