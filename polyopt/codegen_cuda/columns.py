"""Sums along columns: neighboring threads run along the results, others share the sum.

A block takes 32 neighboring results. The threads of a warp read 32 neighboring elements at each step of the sum, the
warps take its steps in turn; then one warp adds up what each of them has, in order, through shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.codegen_cuda.shapes import replaced
from polyopt.codegen_cuda.sums import Sum, parts_of, start_of
from polyopt.codegen_cuda.tiles import below
from polyopt.codegen_cuda.vectors import Vectors
from polyopt.dsl.ir import Op, Var
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
    walk_expr,
)
from polyopt.loops.scan import both
from polyopt.target import WARP


def columns(loops: Sequence[For], body: Stmt, vectors: Vectors) -> Stmt | None:
    """The nest with a warp along its last loop and the sum's outermost loop shared by warps; None where it does not
    suit."""
    last, found = loops[-1], parts_of(body, outermost="block")
    if last.chunk != WARP or any(loop.chunk > 1 for loop in loops[:-1]) or last.step != 1 or found is None:
        return None
    if not found.can_stay(vectors.buffers[found.update.buffer]):
        return None
    shared = found.around[0]
    bounds = (last.lower, last.upper, shared.lower, shared.upper)
    if shared.kind != "block" or shared.step != 1 or any(as_number(bound) is None for bound in bounds):
        return None
    scanned = {loop.var for loop in (*loops, shared)}
    inner = [bound for loop in found.around[1:] for bound in (loop.lower, loop.upper)]
    if any(isinstance(node, Var) and node.name in scanned for bound in inner for node in walk_expr(bound)):
        return None
    return _nest(loops, found, vectors)


def _nest(loops: Sequence[For], found: Sum, vectors: Vectors) -> Stmt:
    fresh, last, shared, update = vectors.fresh, loops[-1], found.around[0], found.update
    reducer = update.reducer
    assert reducer is not None
    neutral = start_of(reducer)
    assert neutral is not None, "a sum of parts has a number to start from"
    tile, part, column = fresh(f"{last.var}_block"), fresh("part"), fresh("column")
    point: dict[str, Expr] = {last.var: Op("add", (index_var(tile), index_var(column)), i64)}
    inside = below(point[last.var], last, WARP)
    zero, names = (integer(0),), (fresh(f"{update.buffer}_own"), fresh(f"{update.buffer}_all"))
    own, total = (Buffer(name, reducer.dtype, (integer(1),), "local") for name in names)
    shape = (integer(shared.chunk), integer(WARP))
    parts = Buffer(fresh(f"{update.buffer}_parts"), reducer.dtype, shape, "local")

    def at(expr: Expr) -> Expr:
        return substitute(replaced(expr, in_total), point)

    def in_total(load: Load) -> Expr | None:
        return replace(load, buffer=total.name, indices=zero) if load.buffer == update.buffer else None

    def pointwise(store: Store) -> Store:
        is_sum = store.buffer == update.buffer
        return replace(
            store,
            buffer=total.name if is_sum else store.buffer,
            indices=zero if is_sum else tuple(at(index) for index in store.indices),
            value=at(store.value),
            instance=tuple(at(value) for value in store.instance),
        )

    def dealt(body: Stmt, part: str, column: str) -> Stmt:
        body = For(column, integer(0), integer(WARP), body, 1, "block", f"{last.axis} in tile", WARP)
        return For(part, integer(0), integer(shared.chunk), body, 1, "block", f"{shared.axis} part", shared.chunk)

    def there(condition: Expr | None, body: Stmt) -> Stmt:
        return body if condition is None else If(condition, body)

    added: Stmt = replace(
        update,
        buffer=own.name,
        indices=zero,
        value=substitute(update.value, point),
        instance=tuple(substitute(value, point) for value in update.instance),
    )
    for loop in reversed(found.around[1:]):
        added = replace(loop, kind="serial", body=added)
    start = folded("add", shared.lower, index_var(part))
    added = replace(shared, kind="serial", lower=start, step=shared.chunk, chunk=1, body=added)
    here = index_var(part), index_var(column)
    nothing = Store(update.statement, (), own.name, zero, neutral)
    kept = Store(f"{parts.name} kept", (), parts.name, here, Load(own.name, zero, reducer.dtype))
    first = dealt(Alloc(own, Block((nothing, there(inside, added), kept))), part, column)

    part, column = fresh("part"), fresh("column")
    point[last.var] = Op("add", (index_var(tile), index_var(column)), i64)
    inside = below(point[last.var], last, WARP)

    at_point = tuple(substitute(index, point) for index in update.indices)
    before: list[Stmt] = [pointwise(store) for store in found.before]
    if not found.is_started:
        old = Load(update.buffer, at_point, reducer.dtype)
        before = [Store(update.statement, (), total.name, zero, old), *before]
    other = fresh("other")
    one = Load(parts.name, (index_var(other), index_var(column)), reducer.dtype)
    combined = Store(f"{parts.name} combined", (), total.name, zero, one, reducer)
    after: list[Stmt] = [For(other, integer(0), integer(shared.chunk), combined, 1, "serial")]
    after += [pointwise(store) for store in found.rest]
    if all(buffer.name != update.buffer for buffer in found.local):
        result = Load(total.name, zero, reducer.dtype)
        after.append(Store(f"{parts.name} stored", (), update.buffer, at_point, result))
    after += [pointwise(store) for store in found.after]
    finish: Stmt = Alloc(total, Block((*before, *after)))
    for buffer in found.local:
        if buffer.name != update.buffer:
            finish = Alloc(buffer, finish)
    leader: Expr = Op("eq", (index_var(part), integer(0)), bool_)
    second = dealt(there(both(leader, inside), finish), part, column)
    body: Stmt = Alloc(parts, Block((first, second)))
    for loop in reversed(loops):
        body = replace(loop, body=body, chunk=1)
        if loop is last:
            body = replace(body, var=tile, step=WARP, axis=f"{last.axis} block")
    return body
