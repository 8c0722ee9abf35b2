"""Vector accesses: a thread takes neighboring iterations of a loop, and each access of them is one of up to 16 bytes.

The loop steps by the width of the vector, and each statement inside gets a loop of kind "vector" over the lanes.
Iterations of a loop that threads share may run in any order, so that a loop over lanes can stand inside the loops
around a statement; what was one iteration's own becomes the lanes' own. Whether lanes of an access lie in one aligned
vector is proved from what divides the variables, the bounds and the extents; arrays start at multiples of 16 bytes.
Source: [CUDA] for vector accesses.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from math import gcd, prod
from typing import assert_never

from polyopt.classes import dataclass
from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.codegen_cuda.shapes import replaced
from polyopt.dsl.ir import Const, Op, Var
from polyopt.dtypes import bool_, i64
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
    walk,
    walk_expr,
)

VECTOR_BYTES = 16
"""The widest access, and what the address of every array is a multiple of."""

LANE_ELEMS = 16
"""A buffer of one iteration with more elements than this is not multiplied by the lanes."""

STATEMENT_NODES = 1000
"""Operations of a statement, all lanes together: more would be long to compile and gain nothing."""

Fresh = Callable[[str], str]


# --- what divides an index ----------------------------------------------------------------------------------------


def note(known: dict[str, int], loop: For) -> None:
    """Puts down what divides a loop's variable inside the loop."""
    known[loop.var] = gcd(divisor(loop.lower, known), loop.step)


def facts(condition: Expr) -> dict[str, int]:
    """What divides variables where a condition holds, as far as it says so: `n % 4 == 0`."""
    match condition:
        case Op("and", args):
            return {name: by for arg in args for name, by in facts(arg).items()}
        case Op("eq", (Op("mod", (Var(name), Const(by))), Const(rest))) if int(rest) == 0:
            return {name: int(by)}
        case _:
            return {}


def divisor(expr: Expr, known: Mapping[str, int]) -> int:
    """A number that divides an index expression whatever the variables are; 0 where the expression is 0."""
    match expr:
        case Const(value):
            return abs(int(value))
        case Var(name):
            return known.get(name, 1)
        case Op("add" | "sub" | "minimum" | "maximum", (left, right)):
            return gcd(divisor(left, known), divisor(right, known))
        case Op("mul", (left, right)):
            return divisor(left, known) * divisor(right, known)
        case Op("mod", (left, Const(by))):
            return gcd(divisor(left, known), abs(int(by)))
        case _:
            return 1


def slope(expr: Expr, var: str) -> int | None:
    """By how much an expression grows with a variable; None where that is not one number."""
    match expr:
        case Var(name):
            return int(name == var)
        case Op("add" | "sub" as name, (left, right)):
            a, b = slope(left, var), slope(right, var)
            return None if a is None or b is None else a + b if name == "add" else a - b
        case Op("mul", (Const(by), other)) | Op("mul", (other, Const(by))):
            inner = slope(other, var)
            return None if inner is None else int(by) * inner
        case _:
            return None if _uses(expr, var) else 0


def _uses(expr: Expr, var: str) -> bool:
    return any(isinstance(node, Var) and node.name == var for node in walk_expr(expr))


def first_lane(expr: Expr, lane: str) -> Expr:
    """The expression in the first lane."""
    match expr:
        case Var(name):
            return integer(0) if name == lane else expr
        case Op("add" | "sub" | "mul" as name, (left, right)):
            a, b = first_lane(left, lane), first_lane(right, lane)
            return replace(expr, args=(a, b)) if (a, b) == expr.args else folded(name, a, b)
        case _:
            return substitute(expr, {lane: integer(0)})


def is_vector(buffer: Buffer, indices: tuple[Expr, ...], lane: str, width: int, known: Mapping[str, int]) -> bool:
    """Whether the lanes' elements lie in order in one vector at a multiple of its size."""
    item = buffer.dtype.itemsize
    if not indices or width * item > VECTOR_BYTES or any(_uses(index, lane) for index in indices[:-1]):
        return False
    if slope(indices[-1], lane) != 1:
        return False
    total = 0
    for index, stride in zip(indices, _strides(buffer), strict=True):
        total = gcd(total, divisor(first_lane(index, lane), known) * divisor(stride, known))
    last = _strides(buffer)[-1]
    return as_number(last) == item and total % (width * item) == 0


def _strides(buffer: Buffer) -> list[Expr]:
    """Bytes per step of each dimension."""
    if buffer.strides is not None:
        return list(buffer.strides)
    found: list[Expr] = []
    step: Expr = integer(buffer.dtype.itemsize)
    for extent in reversed(buffer.shape):
        found.insert(0, step)
        step = folded("mul", extent, step)
    return found


def uniform(condition: Expr, lane: str, width: int, known: Mapping[str, int]) -> Expr | None:
    """A condition that says for all lanes what `condition` says for each of them; None where they may differ."""
    if not _uses(condition, lane):
        return condition
    match condition:
        case Op("and" | "or" | "not", args):
            found = [uniform(arg, lane, width, known) for arg in args]
            kept = tuple(arg for arg in found if arg is not None)
            return replace(condition, args=kept) if len(kept) == len(args) else None
        case Op("lt" | "ge", (left, right)) if slope(left, lane) == 1 and not _uses(right, lane):
            first = first_lane(left, lane)
            is_whole = divisor(first, known) % width == 0 and divisor(right, known) % width == 0
            return Op(condition.name, (first, right), bool_) if is_whole else None
        case _:
            return None


# --- loops over lanes ---------------------------------------------------------------------------------------------


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

    def widest(self, loop: For, body: Stmt, most: int = VECTOR_BYTES) -> int:
        """Lanes that suit every statement in a loop of unit steps; 1 where there are none."""
        width = min(most, VECTOR_BYTES // min((b.dtype.itemsize for b in self._touched(body, loop.var)), default=16))
        while width > 1 and (
            loop.step != 1
            or divisor(loop.lower, self.divisors) % width
            or divisor(loop.upper, self.divisors) % width
            or self.spread(body, loop.var, width) is None
        ):
            width //= 2
        return width

    def _touched(self, body: Stmt, var: str) -> Iterator[Buffer]:
        """The arrays that are accessed along a loop."""
        for buffer, indices in _accesses(body):
            found = self.buffers[buffer]
            if found.space != "local" and any(_uses(index, var) for index in indices):
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
        width = self.widest(loop, loop.body, 1 << min(max(busy, 1).bit_length() - 1, 4))
        body = self.spread(loop.body, loop.var, width) if width > 1 else None
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
                if statement.kind not in ("serial", "unrolled") or _uses(lower, self.var) or _uses(upper, self.var):
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
        self.check(store.buffer, store.indices)
        changed = replace(
            store,
            instance=tuple(substitute(value, here) for value in store.instance),
            indices=self.placed(store.buffer, tuple(substitute(self.loads(i), here) for i in store.indices)),
            value=substitute(self.loads(store.value), here),
        )
        return For(self.lane, integer(0), integer(self.width), changed, 1, "vector", self.lane)

    def placed(self, buffer: str, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        return (*indices, index_var(self.lane)) if buffer in self.own else indices

    def loads(self, expr: Expr) -> Expr:
        """The expression with each load at its lane; `var` still stands for the first one's iteration."""
        return replaced(expr, self.load)

    def load(self, load: Load) -> Load:
        self.check(load.buffer, load.indices)
        if any(_uses(load.indices[check.dimension], self.var) for check in load.checks):
            raise _Unsuited
        mask = None
        if load.mask is not None:
            mask = substitute(self.loads(self.same(load.mask)), {self.var: index_var(self.first)})
        indices = tuple(self.loads(index) for index in load.indices)
        return replace(load, indices=self.placed(load.buffer, indices), mask=mask)

    def check(self, buffer: str, indices: tuple[Expr, ...]) -> None:
        """Whether an access is a vector, the same for all lanes, or not to memory outside."""
        if buffer in self.own or not any(_uses(index, self.var) for index in indices):
            return
        found = self.outside.buffers[buffer]
        at = tuple(
            substitute(i, {self.var: Op("add", (index_var(self.var), index_var(self.lane)), i64)}) for i in indices
        )
        if found.space != "local" and not is_vector(found, at, self.lane, self.width, self.outside.divisors):
            raise _Unsuited

    def same(self, condition: Expr) -> Expr:
        """A condition that all lanes share."""
        here: dict[str, Expr] = {self.var: Op("add", (index_var(self.var), index_var(self.lane)), i64)}
        if any(isinstance(node, Load) for node in walk_expr(condition)) and _uses(condition, self.var):
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
