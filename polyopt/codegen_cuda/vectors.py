"""Vector accesses: a thread takes neighboring iterations of a loop, and each access of them is one of up to 16 bytes.

The loop steps by the width of the vector, and each statement inside gets a loop of kind "vector" over the lanes.
Iterations of a loop that threads share may run in any order, so that a loop over lanes can stand inside the loops
around a statement; what was one iteration's own becomes the lanes' own. Whether lanes of an access lie in one aligned
vector is proved from what divides the variables, the bounds and the extents; arrays start at multiples of 16 bytes.
Loads beside a vector of their row may stand with it (`halos`).
Source: [CUDA] for vector accesses.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from math import prod
from typing import assert_never

from polyopt.classes import dataclass
from polyopt.codegen_cuda.alignment import VECTOR_BYTES, divisor, facts, is_vector, note, uniform
from polyopt.codegen_cuda.halos import halos
from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.codegen_cuda.shapes import replaced
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

LANE_ELEMS = 16
"""A buffer of one iteration with more elements than this is not multiplied by the lanes."""

STATEMENT_NODES = 1000
"""Operations of a statement, all lanes together: more would be long to compile and gain nothing."""

Fresh = Callable[[str], str]


class _Unsuited(Exception):
    """Some statement has no vectors."""


@dataclass(slots=True)
class Vectors:
    """Finds the widths of loops and spreads their bodies over lanes.

    buffers: all of the program; known: what divides each variable outside; sizes: and each size, where a guard says so
    lanes: the name of the loop over the lanes of each loop
    """

    buffers: dict[str, Buffer]
    fresh: Fresh
    known: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, int] = field(default_factory=dict)
    lanes: dict[str, str] = field(default_factory=dict)

    def widest(self, loop: For, body: Stmt, most: int = VECTOR_BYTES) -> tuple[int, Stmt | None]:
        """The most lanes that suit every statement in a loop of unit steps, and the statements spread over them; 1 and
        None where there are none."""
        width = min(most, VECTOR_BYTES // min((b.dtype.itemsize for b in self._touched(body, loop.var)), default=16))
        bounds = loop.lower, loop.upper
        while loop.step == 1 and width > 1:
            spread = None
            if not any(divisor(bound, self.divisors) % width for bound in bounds):
                spread = self.spread(body, loop.var, width)
            if spread is not None:
                return width, spread
            width //= 2
        return 1, None

    def _touched(self, body: Stmt, var: str) -> Iterator[Buffer]:
        """The arrays that are accessed along a loop."""
        for buffer, indices in _accesses(body):
            found = self.buffers[buffer]
            if found.space != "local" and any(uses(index, var) for index in indices):
                yield found

    def spread(self, body: Stmt, var: str, width: int, own: Collection[str] = ()) -> Stmt | None:
        """The statements of `width` iterations from `var` on; None where something in them is no vector.

        own: buffers outside whose last dimension is the lanes', which indices leave out
        """
        before = dict(self.known)
        self.known[var] = width
        for loop in walk(body):
            if isinstance(loop, For):
                self.known[loop.var] = 1
        lane = self.lanes.setdefault(var, "") or self.fresh(f"{var}_lane")
        self.lanes[var] = lane
        spreader = _Spreader(self, var, lane, width, set(own))
        try:
            return spreader.visit(body) if own or any(True for _ in self._touched(body, var)) else None
        except _Unsuited:
            return None
        finally:
            self.known.clear()
            self.known.update(before)

    @contextmanager
    def given(self, condition: Expr) -> Iterator[None]:
        """Takes what a condition says of the sizes for granted."""
        before = self.sizes
        self.sizes = {**before, **facts(condition)}
        yield
        self.sizes = before

    @property
    def divisors(self) -> Mapping[str, int]:
        """What divides variables and sizes."""
        return ChainMap(self.known, self.sizes)

    def everywhere(self, statement: Stmt) -> Stmt:
        """The statement with the innermost loops that threads share spread over lanes."""
        match statement:
            case Block(body):
                return Block(tuple(self.everywhere(inner) for inner in body))
            case For():
                note(self.known, statement)
                return self._loop(statement)
            case If(condition, then, otherwise):
                other = None if otherwise is None else self.everywhere(otherwise)
                with self.given(condition):
                    return replace(statement, then=self.everywhere(then), otherwise=other)
            case Alloc(body=body):
                return replace(statement, body=self.everywhere(body))
            case Store():
                return statement
            case _:
                assert_never(statement)

    def _loop(self, loop: For) -> Stmt:
        is_innermost = not any(isinstance(inner, For) and inner.kind == "block" for inner in walk(loop.body))
        if loop.kind != "block" or not is_innermost or loop.step != 1:
            return replace(loop, body=self.everywhere(loop.body))
        extent = as_number(folded("sub", loop.upper, loop.lower))
        if extent is None or extent <= 0:
            return loop
        busy = extent // loop.chunk if loop.chunk else extent  # no thread is to be idle for the sake of another one
        width, body = self.widest(loop, loop.body, 1 << min(max(busy, 1).bit_length() - 1, 4))
        return loop if body is None else replace(loop, body=body, step=width)


@dataclass(slots=True)
class _Spreader:
    """One loop's body. own: buffers that every lane has for itself"""

    outside: Vectors
    var: str
    lane: str
    width: int
    own: set[str] = field(default_factory=set)

    @property
    def first(self) -> str:
        """Stands for the variable in what all lanes share."""
        return f"first {self.var}"

    def visit(self, statement: Stmt) -> Stmt:
        match statement:
            case Block(body):
                return Block(tuple(self.visit(inner) for inner in body))
            case For(lower=lower, upper=upper):
                if statement.kind not in ("serial", "unrolled") or uses(lower, self.var) or uses(upper, self.var):
                    raise _Unsuited
                return replace(statement, body=self.visit(statement.body))
            case If(condition, then, otherwise):
                other = None if otherwise is None else self.visit(otherwise)
                return replace(statement, condition=self.same(condition), then=self.visit(then), otherwise=other)
            case Alloc(buffer, body):
                elems = prod(as_number(extent) or LANE_ELEMS + 1 for extent in buffer.shape)
                if elems > LANE_ELEMS or buffer.strides is not None:
                    raise _Unsuited
                self.own.add(buffer.name)
                return Alloc(replace(buffer, shape=(*buffer.shape, integer(self.width))), self.visit(body))
            case Store():
                return self.store(statement)
            case _:
                assert_never(statement)

    def store(self, store: Store) -> Stmt:
        if sum(1 for _ in walk_expr(store.value)) * self.width > STATEMENT_NODES:
            raise _Unsuited
        here: dict[str, Expr] = {self.var: Op("add", (index_var(self.var), index_var(self.lane)), i64)}
        here[self.first] = index_var(self.var)
        if store.checks:
            raise _Unsuited
        changed = replace(
            store,
            instance=tuple(substitute(value, here) for value in store.instance),
            indices=self.placed(store.buffer, tuple(substitute(self.loads(i), here) for i in store.indices)),
            value=substitute(self.loads(store.value), here),
        )
        self.check(changed)
        return For(self.lane, integer(0), integer(self.width), changed, 1, "vector", self.lane)

    def placed(self, buffer: str, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (*indices, index_var(self.lane)) if buffer in self.own else indices

    def loads(self, expr: Expr) -> Expr:
        """The expression with each load at its lane; `var` still stands for the first one's iteration."""
        return replaced(expr, self.load)

    def load(self, load: Load) -> Load:
        if any(uses(load.indices[check.dimension], self.var) for check in load.checks):
            raise _Unsuited
        mask = None
        if load.mask is not None:
            mask = substitute(self.loads(self.same(load.mask)), {self.var: index_var(self.first)})
        indices = tuple(self.loads(index) for index in load.indices)
        return replace(load, indices=self.placed(load.buffer, indices), mask=mask)

    def check(self, store: Store) -> None:
        """That each access is a vector or beside one, the same for all lanes, or not to memory outside."""
        outside, known = self.outside.buffers, self.outside.divisors
        loads = dict.fromkeys(e for x in (store.value, *store.indices) for e in walk_expr(x) if isinstance(e, Load))
        moving = [load for load in loads if self.is_outside(load.buffer, load.indices)]
        beside = halos(moving, self.lane, self.width, outside, known)
        places = [(load.buffer, load.indices) for load in moving if load not in beside]
        if self.is_outside(store.buffer, store.indices):
            places.append((store.buffer, store.indices))
        if not all(is_vector(outside[name], indices, self.lane, self.width, known) for name, indices in places):
            raise _Unsuited

    def is_outside(self, buffer: str, indices: tuple[Expr, ...]) -> bool:
        """Whether an access is to memory outside, with elements that differ between lanes."""
        if buffer in self.own or not any(uses(index, self.lane) for index in indices):
            return False
        return self.outside.buffers[buffer].space != "local"

    def same(self, condition: Expr) -> Expr:
        """A condition that all lanes share."""
        here: dict[str, Expr] = {self.var: Op("add", (index_var(self.var), index_var(self.lane)), i64)}
        if any(isinstance(node, Load) for node in walk_expr(condition)) and uses(condition, self.var):
            raise _Unsuited
        found = uniform(substitute(condition, here), self.lane, self.width, self.outside.divisors)
        if found is None:
            raise _Unsuited
        return found


def _accesses(body: Stmt) -> Iterator[tuple[str, tuple[Expr, ...]]]:
    for store in walk(body):
        if isinstance(store, Store):
            yield store.buffer, store.indices
            for expr in (store.value, *store.indices):
                yield from ((e.buffer, e.indices) for e in walk_expr(expr) if isinstance(e, Load))
