"""Transposes by tiles: what neighboring threads would read far apart is copied to shared memory along its own rows.

A block takes a square of two loops. An operand that is contiguous along the first of them, while threads are neighbors
along the second, comes to shared memory in its own order; each row of the copy has one word more than the square, so
that a column of it lies in as many banks as it has elements. Source: [PPCG13] for copies of what is not coalesced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd

from polyopt.classes import dataclass
from polyopt.codegen_cuda.alignment import VECTOR_BYTES, slope
from polyopt.codegen_cuda.intervals import Interval, as_number, interval, of_loop
from polyopt.codegen_cuda.shapes import replaced
from polyopt.codegen_cuda.staging import TOGETHER
from polyopt.codegen_cuda.tiles import below
from polyopt.codegen_cuda.vectors import Vectors
from polyopt.dsl.ir import Op
from polyopt.dtypes import i64
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    If,
    Load,
    Stmt,
    Store,
    index_var,
    integer,
    substitute,
    uses,
    walk,
    walk_expr,
)
from polyopt.loops.scan import both

THREADS = 256
WORD = 4
"""Bytes of a bank of shared memory."""

COPY_BYTES = 40 << 10
"""Shared memory for the copies of a block."""


def turned(loops: Sequence[For], body: Stmt, vectors: Vectors) -> Stmt | None:
    """The nest by squares of its two loops that have more than one point per block; None where it does not suit."""
    wide = [loop for loop in loops if loop.chunk > 1]
    if len(wide) != 2 or wide[0].chunk != wide[1].chunk or any(isinstance(inner, For) for inner in walk(body)):
        return None
    if (
        any(as_number(bound) is None for loop in loops for bound in (loop.lower, loop.upper))
        or wide[-1] is not loops[-1]
    ):
        return None
    if any(loop.step != 1 for loop in wide):
        return None
    return _Turner(loops, wide[0], wide[1], body, vectors).nest()


@dataclass(slots=True, eq=False)
class _Turner:
    """One nest. across: the loop along which turned operands are contiguous; along: that of neighboring threads"""

    loops: Sequence[For]
    across: For
    along: For
    body: Stmt
    vectors: Vectors

    def nest(self) -> Stmt | None:
        loads = list(dict.fromkeys(self.loads()))
        side = self.across.chunk
        copies = {load: self.copy_of(load) for load in loads}
        if (
            not loads
            or sum(side * (side * b.dtype.itemsize + max(b.dtype.itemsize, WORD)) for b in copies.values()) > COPY_BYTES
        ):
            return None
        fresh = self.vectors.fresh
        tiles = {loop.var: fresh(f"{loop.var}_block") for loop in (self.across, self.along)}
        row, column, own = fresh("row"), fresh("column"), fresh(f"{self.across.var}_own")
        self.vectors.buffers.update({copy.name: copy for copy in copies.values()})
        self.vectors.lanes[column] = fresh(f"{self.along.var}_lane")
        starts = {loop.var: as_number(loop.lower) or 0 for loop in (self.across, self.along)}
        self.vectors.known = {tiles[name]: gcd(side, start) for name, start in starts.items()}
        width = max(2 * VECTOR_BYTES // min(b.dtype.itemsize for b in copies.values()), 2)
        spread: Stmt | None = None
        while spread is None:
            width //= 2
            rows = min(side, THREADS * width // side)
            turns = side // rows
            across: Expr = index_var(row)
            if turns > 1:
                across = Op("add", (across, Op("mul", (index_var(own), integer(rows)), i64)), i64)
            point = self.point(tiles, across, index_var(column), copies)
            spread = self.vectors.spread(point, column, width) if width > 1 else point
        if turns > 1:
            spread = For(own, integer(0), integer(turns), spread, 1, "unrolled", self.across.axis)
        inner: Stmt = Block((*(self.filled(load, copy, tiles) for load, copy in copies.items()), spread))
        for copy in copies.values():
            inner = Alloc(copy, inner)
        axes = f"{self.along.axis} in tile", f"{self.across.axis} in tile"
        inner = For(column, integer(0), integer(side), inner, width, "block", axes[0], side // width)
        inner = For(row, integer(0), integer(rows), inner, 1, "block", axes[1], rows)
        for loop in reversed(self.loops):
            inner = replace(loop, body=inner, chunk=1)
            if loop.var in tiles:
                inner = replace(inner, var=tiles[loop.var], step=side, axis=f"{loop.axis} block")
        return inner

    def loads(self) -> Iterator[Load]:
        """The operands that are contiguous across the neighbors."""
        written = {store.buffer for store in walk(self.body) if isinstance(store, Store)}
        own = {inner.buffer.name for inner in walk(self.body) if isinstance(inner, Alloc)}
        is_guarded = any(isinstance(inner, If) for inner in walk(self.body))
        ranges: dict[str, Interval] = {}
        for loop in self.loops:
            ranges[loop.var] = of_loop(loop, ranges)
        for store in walk(self.body):
            for load in walk_expr(store.value) if isinstance(store, Store) else ():
                if not isinstance(load, Load) or load.checks or load.buffer in written | own or len(load.indices) < 2:
                    continue
                *others, last = load.indices
                if slope(last, self.across.var) != 1 or _uses([last], self.along.var) or _uses(others, self.across.var):
                    continue
                if not _uses(others, self.along.var) or any(slope(i, self.along.var) not in (0, 1) for i in others):
                    continue
                if any(isinstance(node, Load) for e in (*load.indices, *_mask(load)) for node in walk_expr(e)):
                    continue
                if is_guarded and (load.mask is not None or not self.exists(load, ranges)):
                    continue
                yield load

    def exists(self, load: Load, ranges: dict[str, Interval]) -> bool:
        """Whether every point of the nest could read the operand."""
        for index, extent in zip(load.indices, self.vectors.buffers[load.buffer].shape, strict=True):
            low, high = (as_number(bound) for bound in interval(index, ranges))
            length = as_number(extent)
            if low is None or high is None or length is None or low < 0 or high >= length:
                return False
        return True

    def copy_of(self, load: Load) -> Buffer:
        side, item = self.across.chunk, load.dtype.itemsize
        strides = integer(side * item + max(item, WORD)), integer(item)
        name = self.vectors.fresh(f"{load.buffer}_tile")
        return Buffer(name, load.dtype, (integer(side), integer(side)), "local", strides)

    def point(self, tiles: dict[str, str], across: Expr, along: Expr, copies: dict[Load, Buffer]) -> Stmt:
        """What is done at a point of the square."""
        here: dict[str, Expr] = {
            self.across.var: Op("add", (index_var(tiles[self.across.var]), across), i64),
            self.along.var: Op("add", (index_var(tiles[self.along.var]), along), i64),
        }

        def from_copy(load: Load) -> Expr | None:
            if load not in copies:
                return None
            return Load(copies[load].name, (along, across), load.dtype)

        def at(expr: Expr) -> Expr:
            return substitute(replaced(expr, from_copy), here)

        def visit(statement: Stmt) -> Stmt:
            match statement:
                case Store():
                    return replace(
                        statement,
                        instance=tuple(at(value) for value in statement.instance),
                        indices=tuple(at(index) for index in statement.indices),
                        value=at(statement.value),
                    )
                case Block(body):
                    return Block(tuple(visit(inner) for inner in body))
                case If(condition, then, otherwise):
                    other = None if otherwise is None else visit(otherwise)
                    return If(at(condition), visit(then), other)
                case Alloc(body=body):
                    return replace(statement, body=visit(body))
                case For():
                    raise AssertionError("there are no loops inside")

        side = self.across.chunk
        inside = both(*(below(here[loop.var], loop, side) for loop in (self.across, self.along)))
        return visit(self.body) if inside is None else If(inside, visit(self.body))

    def filled(self, load: Load, copy: Buffer, tiles: dict[str, str]) -> Stmt:
        """The copy of an operand by all threads of the block; zeros where there is nothing to copy."""
        side = self.across.chunk
        places = {loop.var: self.vectors.fresh(f"{loop.var}_place") for loop in (self.along, self.across)}
        here: dict[str, Expr] = {
            var: Op("add", (index_var(tiles[var]), index_var(place)), i64) for var, place in places.items()
        }
        mask = None if load.mask is None else substitute(load.mask, here)
        for loop in (self.across, self.along):
            mask = both(below(here[loop.var], loop, side), mask)
        value = replace(load, indices=tuple(substitute(index, here) for index in load.indices), mask=mask)
        body: Stmt = Store(f"{copy.name} copied", (), copy.name, tuple(index_var(p) for p in places.values()), value)
        for loop in (self.across, self.along):
            body = For(places[loop.var], integer(0), integer(side), body, 1, "block", loop.axis, TOGETHER)
        return body


def _mask(load: Load) -> list[Expr]:
    return [] if load.mask is None else [load.mask]


def _uses(exprs: Sequence[Expr], var: str) -> bool:
    return any(uses(expr, var) for expr in exprs)
