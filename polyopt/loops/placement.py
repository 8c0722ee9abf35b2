"""Where a private buffer is allocated: inside the loops that it is private to, around everything that uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations, product

from polyopt.classes import dataclass
from polyopt.dsl.ir import Op
from polyopt.loops.affine import as_affine
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    If,
    Stmt,
    Store,
    buffers_used,
    stores_of,
    substatements,
)


def allocate(body: Stmt, private: Sequence[tuple[Buffer, tuple[str, ...]]], loop_of: Mapping[str, str]) -> Stmt:
    """The body of a program with private buffers allocated in it, each in the one nest that uses it if one does.

    private: buffers, with the names of the loops around each, outermost first
    loop_of: the loop that each variable scans
    """
    if not private:
        return body
    nests: list[Stmt] = list(body.body) if isinstance(body, Block) else [body]
    uses = {id(store): buffers_used(store) for store in stores_of(body)}
    users: dict[str, list[int]] = {}
    for number, nest in enumerate(nests):
        for name in frozenset().union(*(uses[id(store)] for store in stores_of(nest))):
            users.setdefault(name, []).append(number)
    for buffer, scope in private:
        found = users.get(buffer.name, [])
        if len(found) > 1:
            nests, users, found = [Block(tuple(nests))], {name: [0] for name in users}, [0]
        for number in found:
            nests[number] = Placement(buffer, scope, loop_of, uses).place(nests[number])
    return nests[0] if len(nests) == 1 else Block(tuple(nests))


@dataclass(frozen=True, slots=True)
class Placement:
    """One private buffer.

    scope:   names of the loops around the buffer, outermost first
    loop_of: the loop that each variable scans
    uses:    the buffers that each store of the body touches, by the identity of the store
    """

    buffer: Buffer
    scope: tuple[str, ...]
    loop_of: Mapping[str, str]
    uses: Mapping[int, frozenset[str]]

    def place(self, body: Stmt) -> Stmt:
        """`body` with the buffer allocated in it. Every use ends up inside exactly one allocation that is in
        force, and an iteration of a parallel loop of the scope has its own."""
        return self._inside(body, 0)

    def _inside(self, body: Stmt, depth: int) -> Stmt:
        """`body` runs within one iteration of the first `depth` loops of the scope."""
        if not self._is_used(body):
            return body
        if depth == len(self.scope):
            return Alloc(self.buffer, body)
        if not any(self._pieces(body, self.scope[depth])):
            return self._inside(body, depth + 1)  # the loop has one iteration, and isl left it out
        if self._is_used(body, outside=self.scope[depth]) or self._pieces_meet(body, self.scope[depth]):
            return Alloc(self.buffer, self._in_order(body, self.scope[depth:]))
        return self._map_loops(body, self.scope[depth], lambda inner: self._inside(inner, depth + 1))

    def _in_order(self, statement: Stmt, scope: tuple[str, ...]) -> Stmt:
        """The statement with no parallel loop of the scope: isl took what runs first or last in an iteration out of
        the loop, or into another piece of it, so that all iterations share one buffer."""
        match statement:
            case For(body=body):
                is_shared = statement.kind in ("parallel", "grid", "block") and self.loop_of[statement.var] in scope
                kind = "serial" if is_shared else statement.kind
                return replace(statement, kind=kind, body=self._in_order(body, scope))
            case Alloc(body=body):
                return replace(statement, body=self._in_order(body, scope))
            case Block(body):
                return Block(tuple(self._in_order(inner, scope) for inner in body))
            case If(_, then, otherwise):
                other = None if otherwise is None else self._in_order(otherwise, scope)
                return replace(statement, then=self._in_order(then, scope), otherwise=other)
            case Store():
                return statement

    def _is_used(self, statement: Stmt, outside: str = "") -> bool:
        """Whether the buffer is touched; with `outside`, other than in that loop."""
        if isinstance(statement, For) and outside and self.loop_of[statement.var] == outside:
            return False
        if isinstance(statement, Store):
            return self.buffer.name in self.uses[id(statement)]
        return any(self._is_used(inner, outside) for inner in substatements(statement))

    def _pieces_meet(self, statement: Stmt, loop: str) -> bool:
        """Whether a piece of a loop may begin in an iteration that a piece before it runs as well: isl may end one
        piece and begin the next inside the same iteration, so both need the same buffer."""
        inner = substatements(statement)
        if isinstance(statement, For) and self.loop_of[statement.var] == loop:
            return False
        if isinstance(statement, Block):
            for first, second in combinations((list(self._pieces(part, loop)) for part in inner), 2):
                if not all(_is_at_most(one.upper, other.lower) for one, other in product(first, second)):
                    return True
        return any(self._pieces_meet(part, loop) for part in inner)

    def _pieces(self, statement: Stmt, loop: str) -> Iterator[For]:
        """The pieces of a loop that use the buffer, in order."""
        if isinstance(statement, For) and self.loop_of[statement.var] == loop:
            if self._is_used(statement):
                yield statement
            return
        for inner in substatements(statement):
            yield from self._pieces(inner, loop)

    def _map_loops(self, statement: Stmt, loop: str, change: Callable[[Stmt], Stmt]) -> Stmt:
        """The statement with the body of every piece of a loop changed."""
        match statement:
            case For() if self.loop_of[statement.var] == loop:
                return replace(statement, body=change(statement.body))
            case For() | Alloc():
                return replace(statement, body=self._map_loops(statement.body, loop, change))
            case Block(body):
                return Block(tuple(self._map_loops(inner, loop, change) for inner in body))
            case If(_, then, otherwise):
                other = None if otherwise is None else self._map_loops(otherwise, loop, change)
                return replace(statement, then=self._map_loops(then, loop, change), otherwise=other)
            case Store():
                return statement


def _is_at_most(left: Expr, right: Expr) -> bool:
    """Whether one bound is known not to exceed another."""
    match left, right:
        case Op("minimum", arms), _:
            return any(_is_at_most(arm, right) for arm in arms)
        case _, Op("maximum", arms):
            return any(_is_at_most(left, arm) for arm in arms)
        case _:
            low, high = as_affine(left), as_affine(right)
            if low is None or high is None:
                return left == right
            return (high - low).is_constant and (high - low).constant >= 0
