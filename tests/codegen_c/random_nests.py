"""Random loop programs of several nests: loops side by side and inside one another share names, but not lengths.

What `random_programs` makes is one nest over one result. Here results are read and stored by many, locals live for part
of a nest, lower and upper bounds move with the loops around, and one name stands for loops of several lengths, which
is where what a pass knows of one loop can end up in another.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyopt.dsl.ir import Const, Op, Reducer, Var
from polyopt.dtypes import bool_, f32, f64, i8, i32, i64
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    If,
    Load,
    LoopProgram,
    Site,
    Stmt,
    Store,
    index_var,
    integer,
    walk,
    walk_expr,
)
from tests.codegen_c.random_programs import Axis, Case, Maker, op

LONGEST = 20
ROOM = 3
NAMES = ("i", "j", "k")


@dataclass(frozen=True)
class Scope:
    """What a statement may use: the loops around it, and the locals that live there.

    tile:   the loop over tiles, and its step
    points: loops over the points of a tile
    """

    axes: tuple[Axis, ...] = ()
    tile: tuple[str, int] | None = None
    points: frozenset[str] = frozenset()

    @property
    def names(self) -> set[str]:
        return {axis.name for axis in self.axes}


class Nests(Maker):
    """Makes one program from a seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        r = self.random
        self.dtype = r.choice([f32, f32, f64, i32, i8, i64])
        self.ranks = {f"y{n}": r.choice([0, 1, 1, 2, 2]) for n in range(r.randint(1, 3))}
        self.reducers: dict[str, Reducer] = {}
        self.of_tile: set[str] = set()
        self.left = 7

    def case(self) -> Case:
        r = self.random
        for name, rank in self.ranks.items():
            shape = (LONGEST + ROOM,) * rank
            self.arrays[name] = np.zeros(shape, self.dtype.numpy)
            self.buffers.append(Buffer(name, self.dtype, tuple(map(integer, shape)), "argument"))
            self._reducer(name)
        first = [self._filled(name) for name in self.ranks]
        body = Block((*first, *(self._tree(Scope(), r.randint(2, 4)) for _ in range(r.randint(1, 2)))))
        buffers = (
            *(b for b in self.buffers if b.name not in self.ranks),
            *(b for b in self.buffers if b.name in self.ranks),
        )
        sites = (Site("x", 0, None),) * 4
        program = LoopProgram("random", tuple(buffers), (), tuple(self.sizes), tuple(self.ranks), _ordered(body), sites)
        return Case(program, {b.name: self.arrays[b.name] for b in buffers}, self.sizes)

    def extent(self, axis: Axis) -> Expr:
        """A number, or a size of its own: loops of one name have several lengths here."""
        if self.random.random() < 0.7:
            return integer(axis.extent)
        name = f"N{len(self.sizes)}"
        self.sizes[name] = axis.extent
        return index_var(name)

    def _reducer(self, name: str) -> None:
        kind: Any = self.random.choice(["sum", "sum", "max", "min"])
        self.reducers[name] = Reducer(kind, self.dtype, Const(0, self.dtype))

    def _filled(self, name: str, room: int = LONGEST + ROOM) -> Stmt:
        indices = tuple(index_var(f"f{d}") for d in range(self.ranks[name]))
        body: Stmt = Store("S", (), name, indices, Const(self.random.randint(0, 2), self.dtype))
        for index in reversed(indices):
            body = For(index.name, integer(0), integer(room), body)
        return body

    # --- trees ---------------------------------------------------------------------------------------------------

    def _tree(self, scope: Scope, depth: int) -> Stmt:
        r = self.random
        choice = r.random()
        if depth == 0 or self.left <= 1 or (scope.axes and choice < 0.1):
            return self._statement(scope)
        if choice < 0.75:
            return self._loop(scope, depth)
        if choice < 0.87 and scope.axes:
            return self._local(scope, depth)
        if scope.axes and choice < 0.93:
            otherwise = self._block(scope, depth - 1) if r.random() < 0.4 else None
            return If(self.condition(list(scope.axes)), self._block(scope, depth - 1), otherwise)
        return self._block(scope, depth)

    def _block(self, scope: Scope, depth: int) -> Stmt:
        parts = [self._tree(scope, depth) for _ in range(self.random.choice([1, 1, 2, 2, 3]))]
        return parts[0] if len(parts) == 1 else Block(tuple(parts))

    def _loop(self, scope: Scope, depth: int) -> Stmt:
        r = self.random
        free = [name for name in NAMES if name not in scope.names]
        if not free:
            return self._statement(scope)
        if scope.tile is None and r.random() < 0.3:
            step = r.choice([2, 4, 8, 16])
            tile = Axis("t", r.choice([5, 8, 16, 17, 20]), 0, is_reduced=False)
            inside = Scope((*scope.axes, tile), ("t", step))
            return For("t", integer(0), self.extent(tile), self._block(inside, depth), step, "serial", "t")
        name = r.choice(free)
        step = r.choice([1] * 7 + [2, 3])
        is_point = scope.tile is not None and r.random() < 0.55
        axis, lower, upper = self._points(name, scope) if is_point else self._range(name, scope)
        inside = Scope((*scope.axes, axis), scope.tile, scope.points | {name} if is_point else scope.points)
        body = self._block(inside, depth - 1)
        wanted: Any = r.choice(["serial", "unrolled", "unrolled", "vector", "vector", "vector"])
        return For(name, lower, upper, body, step, wanted, name)

    def _points(self, name: str, scope: Scope) -> tuple[Axis, Expr, Expr]:
        """A loop over the points of the tile around it."""
        assert scope.tile is not None, "there is a tile"
        axis, (tile, step) = self._new_axis(name), scope.tile
        start = index_var(tile)
        return axis, start, op("minimum", op("add", start, integer(step)), self.extent(axis))

    def _new_axis(self, name: str) -> Axis:
        extent = self.random.choice([0, 1, 2, 3, 5, 8, 8, 9, 15, 16, 17, 20])
        return Axis(name, extent, 0, is_reduced=False)

    def _range(self, name: str, scope: Scope) -> tuple[Axis, Expr, Expr]:
        """A loop's axis, with the numbers that it stays below, and its bounds."""
        r = self.random
        axis = self._new_axis(name)
        end = self.extent(axis)
        if scope.axes and r.random() < 0.6:
            other = r.choice(scope.axes)
            var, whole = index_var(other.name), Axis(name, max(axis.extent, other.extent), 0, is_reduced=False)
            match r.randrange(6):
                case 0:
                    return whole, integer(0), op("add", var, integer(1))
                case 1:
                    return axis, var, end
                case 2:
                    return axis, op("maximum", var, integer(2)), end
                case 3:
                    return axis, integer(0), op("minimum", var, end)
                case 4:
                    return axis, var, op("minimum", op("add", var, integer(r.choice([3, 8]))), end)
                case _:
                    return axis, integer(0), op("minimum", op("add", var, integer(2)), end)
        return axis, integer(0), end

    def _local(self, scope: Scope, depth: int) -> Stmt:
        """A local that is set, used by a few nests, and perhaps read at the end."""
        r = self.random
        name = f"a{self.count}"
        self.count += 1
        self._reducer(name)
        rank, room = r.choice([0, 0, 1]), LONGEST + ROOM
        if rank and scope.tile is not None and r.random() < 0.6:
            room = max(2, scope.tile[1])
            self.of_tile.add(name)
        local = Buffer(name, self.dtype, (integer(room),) * rank, "local")
        self.ranks[name] = rank
        first = self._filled(name, room)
        body = Block((first, self._block(scope, depth - 1), self._statement(scope, reads=name)))
        del self.ranks[name]
        return Alloc(local, body)

    # --- statements ----------------------------------------------------------------------------------------------

    def _statement(self, scope: Scope, reads: str | None = None) -> Stmt:
        r = self.random
        self.left -= 1
        name = r.choice(sorted(self.ranks))
        value = self.value(list(scope.axes), r.randint(0, 2))
        read = reads or (r.choice(sorted(self.ranks)) if r.random() < 0.3 else None)
        if read is not None:
            own = Load(read, self._place(read, scope), self.dtype)
            value = op(r.choice(["minimum", "maximum"]), own, value, dtype=self.dtype)
        reducer = self.reducers[name] if r.random() < 0.6 else None
        if reducer is not None and reducer.name == "sum" and read is not None and self.dtype.is_float:
            reducer = None  # twice itself, again and again, would soon be rounded
        return Store("S", (), name, self._place(name, scope), value, reducer)

    def _place(self, name: str, scope: Scope) -> tuple[Expr, ...]:
        r = self.random
        if name in self.of_tile and self.ranks[name]:
            inside = sorted(scope.points)
            if scope.tile is None or not inside or r.random() < 0.15:
                return (integer(r.randint(0, 1)),)
            return (op("sub", index_var(r.choice(inside)), index_var(scope.tile[0])),)
        axes = r.sample(scope.axes, min(len(scope.axes), self.ranks[name]))
        indices: list[Expr] = []
        for number in range(self.ranks[name]):
            offset = r.choice([0, 0, 0, 1, 2])
            if number >= len(axes) or r.random() < 0.15:
                indices.append(integer(offset))
                continue
            var = index_var(axes[number].name)
            indices.append(op("add", var, integer(offset)) if offset else var)
        return tuple(indices)


class Edges(Nests):
    """Subscripts clamped, wrapped and divided, and conditions of two parts: what passes over loops decide."""

    def index(self, axes: list[Axis]) -> tuple[Expr, int]:
        r = self.random
        if not axes or r.random() < 0.5:
            return super().index(axes)
        axis, other = r.choice(axes), r.choice(axes)
        last, var, zero = max(0, axis.extent - 1), index_var(axis.name), integer(0)
        moved = op(r.choice(["add", "sub"]), var, integer(r.choice([0, 1, 2, 5])))
        match r.randrange(5):
            case 0:
                return op("minimum", op("maximum", moved, zero), integer(last)), last + 1
            case 1:
                return op("maximum", op("minimum", moved, integer(last)), zero), last + 1
            case 2:
                return op("mod", moved, integer(last + 1)), last + 1
            case 3:
                by = r.choice([2, 4, 8])
                return op("add", op("floordiv", moved, integer(by)), integer(3)), (last + 5) // by + 4
            case _:
                both, by = op("add", var, index_var(other.name)), r.choice([2, 4])
                farthest = last + max(0, other.extent - 1)
                parts = op("mod", both, integer(by)), op("floordiv", both, integer(by))
                return op("add", *parts), by + farthest // by

    def condition(self, axes: list[Axis]) -> Op[Expr]:
        r = self.random
        if not axes or r.random() < 0.5:
            return super().condition(axes)
        one = op(r.choice(["lt", "ge", "le", "gt"]), self.index(axes)[0], integer(r.choice([0, 1, 3, 8])), dtype=bool_)
        name, number = r.choice(axes).name, r.choice([0, 1, 3, 7])
        two = op(r.choice(["lt", "ge", "eq", "ne"]), index_var(name), integer(number), dtype=bool_)
        return op(r.choice(["and", "or"]), one, two, dtype=bool_)


def random_nests(seed: int, *, edges: bool = False) -> Case:
    return (Edges if edges else Nests)(seed).case()


# --- marks -------------------------------------------------------------------------------------------------------


def _ordered(statement: Stmt, *, is_outside: bool = True) -> Stmt:
    """The statement with vector loops serial where they are not innermost or their iterations depend on one another."""
    match statement:
        case Block(body):
            return Block(tuple(_ordered(inner, is_outside=is_outside) for inner in body))
        case For():
            loop = replace(statement, body=_ordered(statement.body, is_outside=False))
            has_loops = any(isinstance(inner, For) for inner in walk(loop.body))
            kind: Any = loop.kind
            if kind == "vector" and (has_loops or not _is_free(loop, may_add=True)):
                kind = "serial"
            if is_outside and kind == "serial" and _is_free(loop, may_add=False):
                kind = "parallel"
            return replace(loop, kind=kind)
        case If(condition, then, otherwise):
            rest = None if otherwise is None else _ordered(otherwise, is_outside=False)
            return If(condition, _ordered(then, is_outside=False), rest)
        case Alloc(buffer, body):
            return Alloc(buffer, _ordered(body, is_outside=False))
        case Store():
            return statement


def _is_free(loop: For, *, may_add: bool) -> bool:
    """Whether iterations may run in any order: each has elements of its own, or all of them add to what none reads."""
    inner = list(walk(loop.body))
    private = {s.buffer.name for s in inner if isinstance(s, Alloc)}
    moving = {s.var for s in inner if isinstance(s, For)}
    stored = {s.buffer for s in inner if isinstance(s, Store)} - private
    return all(_has_own(loop, buffer, moving) or (may_add and _adds(loop, buffer)) for buffer in stored)


def _has_own(loop: For, buffer: str, moving: set[str]) -> bool:
    places = [place for name, place, _ in _accesses(loop) if name == buffer]
    for columns in zip(*places, strict=True):
        names = {node.name for node in walk_expr(columns[0]) if isinstance(node, Var)}
        if len(set(columns)) == 1 and names == {loop.var} and not names & moving:
            return True
    return False


def _adds(loop: For, buffer: str) -> bool:
    return all(reducer is not None for name, _, reducer in _accesses(loop) if name == buffer)


def _accesses(loop: For) -> Iterator[tuple[str, tuple[Expr, ...], Reducer | None]]:
    for statement in walk(loop.body):
        yield from _loads(_expressions(statement))
        if isinstance(statement, Store):
            yield statement.buffer, statement.indices, statement.reducer


def _expressions(statement: Stmt) -> Iterable[Expr]:
    match statement:
        case Store(indices=indices, value=value):
            return (*indices, value)
        case If(condition):
            return (condition,)
        case For(lower=lower, upper=upper):
            return (lower, upper)
        case _:
            return ()


def _loads(exprs: Iterable[Expr]) -> Iterator[tuple[str, tuple[Expr, ...], Reducer | None]]:
    for expr in exprs:
        for node in walk_expr(expr):
            if isinstance(node, Load):
                yield node.buffer, node.indices, None
