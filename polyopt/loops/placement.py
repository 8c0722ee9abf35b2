"""Where a private buffer is allocated: inside the loops that it is private to, around everything that uses it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from polyopt.classes import dataclass
from polyopt.loops.ir import Alloc, Block, Buffer, For, If, Stmt, Store, buffers_used, substatements


@dataclass(frozen=True, slots=True)
class Placement:
    """One private buffer.

    scope:   names of the loops around the buffer, outermost first
    loop_of: the loop that each variable scans
    """

    buffer: Buffer
    scope: tuple[str, ...]
    loop_of: Mapping[str, str]

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
        loops = self._count(body, self.scope[depth])
        if not loops:
            return self._inside(body, depth + 1)  # the loop has one iteration, and isl left it out
        if self._is_used(body, outside=self.scope[depth]):
            return Alloc(self.buffer, self._in_order(body, self.scope[depth:]))
        return self._map_loops(body, self.scope[depth], lambda inner: self._inside(inner, depth + 1))

    def _in_order(self, statement: Stmt, scope: tuple[str, ...]) -> Stmt:
        """The statement with no parallel loop of the scope: isl took what runs first or last in an iteration out of
        the loop, so that all iterations share one buffer."""
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
            return self.buffer.name in buffers_used(statement)
        return any(self._is_used(inner, outside) for inner in substatements(statement))

    def _count(self, statement: Stmt, loop: str) -> int:
        own = isinstance(statement, For) and self.loop_of[statement.var] == loop
        return own + sum(self._count(inner, loop) for inner in substatements(statement))

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
