"""Vectors of an operand that threads read again: each keeps its own in registers.

A softmax reads its rows three times. The loops that threads share are dealt out alike, so that a thread reads what it
has read before: where these loops stand one after the other, the first one's vectors stay. What a kernel writes is
never kept, and neither is what a condition guards inside a loop.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping

from polyopt.classes import dataclass
from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.loops.ir import (
    Alloc,
    Block,
    Expr,
    For,
    If,
    Load,
    Stmt,
    Store,
    index_var,
    substatements,
    substitute,
    walk,
    walk_expr,
)

MOST_BYTES = 256
"""Of a thread's registers, of which it has at most four times as many: beyond, caches do as well."""


@dataclass(slots=True, eq=False)
class Slot:
    """The vectors of one operand that a thread keeps.

    buffer, width: whose elements, so many in a vector; turns: vectors of a thread
    name:          of the array of registers, once it is in use; is_loaded: whether it holds them where text is printed
    """

    buffer: str
    width: int
    turns: int
    name: str = ""
    is_loaded: bool = False

    def at(self, turn: str) -> str:
        """The vector of a turn of the loop."""
        return f"{self.name}[{turn}]" if self.turns > 1 else self.name


@dataclass(frozen=True, slots=True)
class Key:
    """What tells a load in a loop from others: where the loop stands, its bounds, and the load by its lanes."""

    scope: int
    bounds: tuple[Expr | int, ...]
    load: Expr
    width: int


Kept = Mapping[tuple[int, Load], Slot]
"""By a loop that threads share, as its `id`, and a load in it."""


def turns_of(loop: For) -> int | None:
    """How often a thread goes through a loop that is dealt out; None where sizes decide."""
    extent = as_number(folded("sub", loop.upper, loop.lower))
    return None if extent is None or as_number(loop.lower) is None else -(-extent // (loop.chunk * loop.step))


def kept(body: Stmt) -> Kept:
    """The loads of a kernel whose vectors stay in registers: those in two loops or more, while there is room."""
    written = {inner.buffer for inner in walk(body) if isinstance(inner, Store)}
    found: defaultdict[Key, list[tuple[int, Load]]] = defaultdict(list)
    slots: dict[Key, Slot] = {}
    for number, phases in enumerate(_scopes(body)):
        for loop in phases:
            for lanes, load in _loads(loop.body, written):
                width, turns = as_number(lanes.upper) or 1, turns_of(loop)
                if turns is None or turns < 1:
                    continue
                names: dict[str, Expr] = {loop.var: index_var("thread's"), lanes.var: index_var("lane's")}
                key = Key(number, (loop.lower, loop.upper, loop.step, loop.chunk), substitute(load, names), width)
                if (id(loop), load) not in found[key]:
                    found[key].append((id(loop), load))
                slots[key] = Slot(load.buffer, width, turns)
    result: dict[tuple[int, Load], Slot] = {}
    left = MOST_BYTES
    for key, places in found.items():
        load = places[0][1]
        size = slots[key].turns * key.width * load.dtype.itemsize
        if len({loop for loop, _ in places}) > 1 and size <= left:
            left -= size
            result.update(dict.fromkeys(places, slots[key]))
    return result


def _scopes(statement: Stmt) -> Iterator[list[For]]:
    """The loops that threads share, by the sequences in which they stand one after the other."""
    phases: list[For] = []
    inside: list[Stmt] = []
    _collect(statement, phases, inside)
    yield phases
    for inner in inside:
        yield from _scopes(inner)


def _collect(statement: Stmt, phases: list[For], inside: list[Stmt]) -> None:
    match statement:
        case Block() | Alloc():
            for inner in substatements(statement):
                _collect(inner, phases, inside)
        case For(kind="block", body=body) if statement.chunk and all(_is_straight(inner) for inner in walk(body)):
            phases.append(statement)
        case For() | If():
            inside.extend(substatements(statement))
        case Store():
            pass


def _is_straight(statement: Stmt) -> bool:
    """Whether a thread comes through a statement once in each of its turns, but for lanes."""
    return not isinstance(statement, If) and (not isinstance(statement, For) or statement.kind == "vector")


def _loads(body: Stmt, written: Collection[str]) -> Iterator[tuple[For, Load]]:
    """What the lanes of a loop's own statements read, with the loop over the lanes."""
    match body:
        case Block() | Alloc():
            for inner in substatements(body):
                yield from _loads(inner, written)
        case For(kind="vector", body=Store() as store):
            for expr in (store.value, *store.indices):
                for node in walk_expr(expr):
                    if isinstance(node, Load) and _is_constant(node, written):
                        yield body, node
        case _:
            return


def _is_constant(load: Load, written: Collection[str]) -> bool:
    """Whether a load, and those that decide which element it takes, give the same all the kernel through."""
    inside = [node for node in walk_expr(load) if isinstance(node, Load)]
    return not any(node.buffer in written or node.checks for node in inside)
