"""Rings of shared memory: copies run ahead of what reads them, and each piece has a slot until it has been read.

A sum in pieces needs the copies of a piece when it comes to it. With as many slots as pieces may be on their way at
once, the copy statement is shifted along the loop: the loop fills all slots but one before it starts, then copies the
piece that is so many ahead. This is a property of the loop program, not of its printing: slots are a dimension of the
buffers, so that the interpreter runs a ring and `ring_proof` proves it.
Sources: [PPCG13] for copies, [CUDA] for groups.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from polyopt.classes import dataclass
from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.dsl.ir import Op
from polyopt.dtypes import bool_, i64
from polyopt.loops.ir import Block, Expr, For, If, Load, Stmt, Store, index_var, integer, walk, walk_expr

MOST_SLOTS = 4
"""Pieces on their way and under work at once: more only hides latency that three hide already."""

LONG_SLOTS = 3
"""The same where a block works on a piece about as long as a copy is on its way: on an H100 products of 4096 rows are 7
(tensor cores) and 8 % (f32) quicker than with four."""


def slots_of(piece_bytes: int, pieces: int, room: int, *, is_long: bool = False) -> int:
    """How many slots a ring gets in `room` bytes of shared memory; 1 where nothing can run ahead."""
    return max(1, min(LONG_SLOTS if is_long else MOST_SLOTS, pieces, room // max(piece_bytes, 1)))


@dataclass(frozen=True, slots=True)
class Ring:
    """The pieces of `size` steps from `lower` to `upper` of a loop, through so many slots.

    var: the variable that is the first step of a piece; axis: what it scans, for the reader
    lag: pieces that may still be read while the one at `var` is: no copy goes to their slots
    """

    var: str
    lower: Expr
    upper: Expr
    size: int
    slots: int
    axis: str
    lag: int = 0

    @property
    def _filled(self) -> Expr:
        """Steps of the pieces that are copied before the first one is read."""
        return integer((self.slots - 1 - self.lag) * self.size)

    @property
    def ahead(self) -> Expr:
        """The first step of the piece that is copied while the one at `var` is read."""
        return Op("add", (index_var(self.var), self._filled), i64)

    def slot(self, first: Expr) -> Expr:
        """The slot of the piece with this first step."""
        piece = folded("floordiv", folded("sub", first, self.lower), integer(self.size))
        return Op("mod", (piece, integer(self.slots)), i64)

    def around(self, copied: Callable[[Expr], Sequence[Stmt]], read: Stmt) -> Stmt:
        """The loop, its slots filled before.

        copied: the copies of the piece with a given first step; read: what is done with the one at `var`
        """
        filled = folded("add", self.lower, self._filled)
        fill: Stmt = Block(tuple(copied(index_var(self.var))))
        if as_number(folded("sub", self.upper, self.lower)) is None:
            fill = If(Op("lt", (index_var(self.var), self.upper), bool_), fill)
        more = Op("lt", (self.ahead, self.upper), bool_)
        steady = Block((If(more, Block(tuple(copied(self.ahead)))), read))
        return Block((self._loop(self.lower, filled, fill), self._loop(self.lower, self.upper, steady)))

    def _loop(self, lower: Expr, upper: Expr, body: Stmt) -> For:
        return For(self.var, lower, upper, body, self.size, "pipeline", self.axis, self.slots)


# --- what a loop does with its ring -------------------------------------------------------------------------------


def lag_of(loop: For) -> int:
    """How many iterations before the present one may still read their pieces: instructions of warp groups do so on
    their own, and are waited for an iteration later."""
    return int(any(isinstance(inner, For) and inner.kind == "warpgroup" for inner in walk(loop.body)))


def copies(statement: Stmt) -> bool:
    """Whether a statement only copies, all threads together."""
    match statement:
        case If(_, then, None):
            return copies(then)
        case Block(body):
            return bool(body) and all(copies(part) for part in body)
        case For(kind="block", chunk=0):
            return True
        case For(kind="serial"):
            return is_once(statement) and copies(statement.body)
        case _:
            return False


def is_once(loop: For) -> bool:
    """Whether a loop has one iteration: its variable is a name for the lower bound."""
    return as_number(folded("sub", loop.upper, loop.lower)) == loop.step


def around(statement: Stmt) -> tuple[list[For], Stmt]:
    """The loops of one iteration around a statement, which are names for a piece's place, and the statement."""
    names: list[For] = []
    while isinstance(statement, For) and statement.kind == "serial" and is_once(statement):
        names.append(statement)
        statement = statement.body
    return names, statement


def pieces_of(loop: For) -> tuple[list[Stmt], list[Stmt]]:
    """A pipelined loop's copies, and what reads them."""
    parts = loop.body.body if isinstance(loop.body, Block) else (loop.body,)
    return [part for part in parts if copies(part)], [part for part in parts if not copies(part)]


def written(statements: Sequence[Stmt]) -> dict[str, Expr]:
    """The slot that each buffer is written in."""
    return {store.buffer: store.indices[0] for store in stores(statements)}


def stores(statements: Sequence[Stmt]) -> list[Store]:
    return [inner for statement in statements for inner in walk(statement) if isinstance(inner, Store)]


def read(statements: Sequence[Stmt], buffers: Collection[str]) -> dict[str, Expr]:
    """The slot that each of these buffers is read in."""
    found = (e for store in stores(statements) for e in walk_expr(store.value) if isinstance(e, Load))
    return {load.buffer: load.indices[0] for load in found if load.buffer in buffers}
