"""Questions about the statements of one kernel: shapes of blocks, trip counts, and what a thread may keep."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from math import prod

from polyopt.codegen_cuda.intervals import Interval, as_number, folded, interval
from polyopt.dsl.ir import Cast, Const, Op, Var
from polyopt.errors import ScheduleError
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
    integer,
    substatements,
    walk,
    walk_expr,
)

REGISTER_ELEMS = 16
"""A buffer of at most this many elements, all indices known, is kept in registers."""


def extents_of(buffer: Buffer) -> tuple[int, ...]:
    """The extents of a buffer on the chip. Raises `ScheduleError` where sizes decide them: its memory has a length."""
    extents = [as_number(extent) for extent in buffer.shape]
    if None in extents:
        raise ScheduleError(f"'{buffer.name}' is kept on the chip, and sizes decide about its length")
    return tuple(extent for extent in extents if extent is not None)


def dims(statement: Stmt) -> tuple[int, ...]:
    """Threads along each dimension of a block. Raises `ScheduleError` where nests want different ones."""
    found = common(_paths(statement, ()))
    if found is None:
        raise ScheduleError(
            "nests of one kernel want blocks of different shapes", why=", ".join(map(str, {*_paths(statement, ())}))
        )
    return found


def common(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The longest of some shapes of blocks, of which all others are beginnings; None where there is none."""
    longest: tuple[int, ...] = ()
    for shape in shapes:
        shorter, longer = sorted((shape, longest), key=len)
        if longer[: len(shorter)] != shorter:
            return None
        longest = longer
    return longest


def shape_of(statement: Stmt) -> tuple[int, ...] | None:
    """Threads along each dimension of a block for a statement; None where its nests want different ones."""
    return common(_paths(statement, ()))


def _paths(statement: Stmt, outside: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if isinstance(statement, For) and statement.kind == "block" and statement.chunk:
        outside = (*outside, statement.chunk)
        yield outside
    for inner in substatements(statement):
        yield from _paths(inner, outside)


def count(loop: For, ranges: Mapping[str, Interval]) -> Expr:
    """How many iterations a loop has at most."""
    upper = loop.upper
    exact = as_number(folded("sub", upper, loop.lower))
    if exact is not None:
        return integer(-(-exact // loop.step))
    if isinstance(upper, Op) and upper.name == "minimum":
        counts = [as_number(folded("sub", arg, loop.lower)) for arg in upper.args]
        known = [count for count in counts if count is not None]
        if known:
            return integer(-(-min(known) // loop.step))
    low, high = interval(loop.lower, ranges)[0], interval(upper, ranges)[1]
    extent = as_number(folded("sub", high, low))
    return folded("sub", high, low) if extent is None else integer(-(-extent // loop.step))


def without_tile(loop: For) -> Expr:
    """The bound of a loop without the end of its tile, which no thread's place goes beyond."""
    upper = loop.upper
    if isinstance(upper, Op) and upper.name == "minimum":
        end = loop.chunk * loop.step
        for number, arg in enumerate(upper.args):
            if as_number(folded("sub", arg, loop.lower)) == end:
                return upper.args[1 - number]
    return upper


def is_replicable(buffer: Buffer, body: Stmt) -> bool:
    """Whether every thread can keep a copy: few elements, all indices known, written by all threads alike."""
    extents = [as_number(extent) for extent in buffer.shape]
    if any(extent is None for extent in extents) or prod(e or 0 for e in extents) > REGISTER_ELEMS:
        return False
    accesses = [store.indices for store in walk(body) if isinstance(store, Store) and store.buffer == buffer.name]
    for statement in walk(body):
        for expr in exprs(statement):
            accesses += [e.indices for e in walk_expr(expr) if isinstance(e, Load) and e.buffer == buffer.name]
    if prod(e or 0 for e in extents) > 1 and any(not isinstance(i, Const) for indices in accesses for i in indices):
        return False
    return not any(_is_one_threads_inside(inner, buffer.name) for inner in walk(body) if isinstance(inner, For))


def is_filled_together(buffer: str, body: Stmt) -> bool:
    """Whether all threads of a block fill a buffer that is declared inside a thread: it is the block's."""
    shared = (loop for loop in walk(body) if isinstance(loop, For) and loop.kind == "block" and not loop.chunk)
    return any(isinstance(inner, Store) and inner.buffer == buffer for loop in shared for inner in walk(loop))


def _is_one_threads_inside(loop: For, buffer: str) -> bool:
    """Whether one thread of a block loop stores to a buffer what the others do not get: a plain value, or a summand of
    an element that indices or equalities leave to it."""
    if loop.kind != "block":
        return False
    scanned = [inner for inner in walk(loop) if isinstance(inner, For)]
    dealt = {inner.var for inner in scanned if inner.kind == "block"}
    for store in walk(loop.body):
        if isinstance(store, Store) and store.buffer == buffer:
            used = index_vars(store)
            moving = {inner.var for inner in scanned} - used
            if store.reducer is None or dealt & (used | pinned(loop.body, store, moving)):
                return True
    return False


def index_vars(store: Store) -> set[str]:
    """The variables that decide which element is stored to."""
    return {node.name for index in store.indices for node in walk_expr(index) if isinstance(node, Var)}


def is_inside_block(statement: Stmt, alloc: Alloc) -> bool:
    """Whether a buffer is allocated inside a block loop of the statement: by a thread for itself."""
    blocks = (loop for loop in walk(statement) if isinstance(loop, For) and loop.kind == "block")
    return any(inner is alloc for loop in blocks for inner in walk(loop.body))


def outside_sums(nest: Sequence[For], body: Stmt) -> int:
    """How many loops of a nest are outside the sums in it: each of their iterations has elements of its own."""
    own = {s.buffer.name for s in walk(body) if isinstance(s, Alloc)}
    outside = len(nest)
    for store in walk(body):
        if not isinstance(store, Store) or store.reducer is None or store.buffer in own:
            continue
        used = index_vars(store)
        depth = next((n for n, loop in enumerate(nest) if loop.var not in used), len(nest))
        if depth and not used & {loop.var for loop in nest[depth:]}:
            outside = min(outside, depth)
    return outside


def always_runs(body: Stmt, store: Store) -> bool:
    """Whether a store runs in every iteration of the loops around `body`."""
    if body is store:
        return True
    match body:
        case Block(parts):
            return any(always_runs(part, store) for part in parts)
        case For(lower=lower, upper=upper):
            extent = as_number(folded("sub", upper, lower))
            return extent is not None and extent > 0 and always_runs(body.body, store)
        case Alloc(body=inner):
            return always_runs(inner, store)
        case _:
            return False


def pinned(body: Stmt, store: Store, moving: Set[str]) -> frozenset[str]:
    """The variables of which equalities around a store leave one value: `i` of `if i + 1 == n: y[n - 1] += ...`.

    moving: variables that may have several values for one element; an equality of two of them leaves many pairs
    """
    match body:
        case If(condition, then, otherwise):
            if any(inner is store for inner in walk(then)):
                return _of_one_value(condition, moving) | pinned(then, store, moving)
            return frozenset() if otherwise is None else pinned(otherwise, store, moving)
        case _:
            return frozenset().union(*(pinned(inner, store, moving) for inner in substatements(body)))


def _of_one_value(condition: Expr, moving: Set[str]) -> frozenset[str]:
    match condition:
        case Op("and", parts):
            return frozenset().union(*(_of_one_value(part, moving) for part in parts))
        case Op("eq", (left, right)):
            factors = _factors(folded("sub", left, right)) or {}
            found = [name for name, factor in factors.items() if factor and name in moving]
            return frozenset(found) if len(found) == 1 else frozenset()
        case _:
            return frozenset()


def _factors(expr: Expr) -> dict[str, int] | None:
    """What the variables of a sum are multiplied by; None for what is no sum of them."""
    match expr:
        case Const():
            return {}
        case Var(name):
            return {name: 1}
        case Op("add" | "sub" as op, (left, right)):
            one, other = _factors(left), _factors(right)
            if one is None or other is None:
                return None
            sign = 1 if op == "add" else -1
            return {name: one.get(name, 0) + sign * other.get(name, 0) for name in {**one, **other}}
        case Op("mul", (inner, Const(by))) | Op("mul", (Const(by), inner)):
            factors = _factors(inner)
            return None if factors is None else {name: factor * int(by) for name, factor in factors.items()}
        case _:
            return None


def exprs(statement: Stmt) -> Iterator[Expr]:
    match statement:
        case For():
            yield from (statement.lower, statement.upper)
        case If(condition):
            yield condition
        case Store():
            yield from (*statement.indices, statement.value)
        case _:
            return


def replaced(expr: Expr, change: Callable[[Load], Expr | None]) -> Expr:
    """The expression with loads replaced where `change` gives something else."""
    match expr:
        case Load():
            other = change(expr)
            if other is not None:
                return other
            mask = None if expr.mask is None else replaced(expr.mask, change)
            return replace(expr, indices=tuple(replaced(i, change) for i in expr.indices), mask=mask)
        case Op(args=args):
            return replace(expr, args=tuple(replaced(arg, change) for arg in args))
        case Cast(arg=arg):
            return replace(expr, arg=replaced(arg, change))
        case Const() | Var():
            return expr
