"""Rows inside lanes that sum along them, written out as statements side by side.

`vector for k: unrolled for i in range(i0, i0 + 4): z[i] += x[i, k] * y[k]` has four sums at once, each of all lanes. As
statements of their own they are what a vector loop keeps partial results of.
"""

from __future__ import annotations

from dataclasses import replace

from polyopt.loops.affine import as_affine
from polyopt.loops.ir import Alloc, Block, Expr, For, If, LoopProgram, Stmt, Store, substitute_in, uses
from polyopt.loops.scan import affine_expr
from polyopt.loops.split import decide

MOST = 32
"""Rows that are written out, of one loop or of one inside another: no register file holds more sums."""


def rows_inside(lanes: For) -> For | None:
    """The loop over rows, or the outer one of two, that is all there is in a loop whose iterations add to the same
    elements, one for each row."""
    body: Stmt = lanes.body
    bounds: list[Expr] = []
    while isinstance(body, For) and body.kind == "unrolled" and body.step == 1:
        bounds += (body.lower, body.upper)
        body = body.body
    if not bounds or not isinstance(body, Store) or not isinstance(lanes.body, For):
        return None
    is_moved = any(uses(expr, lanes.var) for expr in (*bounds, *body.indices))
    return None if body.reducer is None or body.checks or is_moved else lanes.body


def write_out(program: LoopProgram) -> LoopProgram:
    """The same instances, with rows of known number inside lanes side by side; where that is not known there are no
    lanes."""
    return replace(program, body=_visit(program.body))


def _visit(statement: Stmt) -> Stmt:
    match statement:
        case Block(body):
            return Block(tuple(map(_visit, body)))
        case For(kind="vector") if (rows := rows_inside(statement)) is not None:
            stores = _stores(rows)
            return replace(statement, body=Block(stores)) if stores else replace(statement, kind="serial")
        case For() | Alloc():
            return replace(statement, body=_visit(statement.body))
        case If(_, then, otherwise):
            return replace(statement, then=_visit(then), otherwise=None if otherwise is None else _visit(otherwise))
        case Store():
            return statement


def _stores(rows: For) -> tuple[Stmt, ...]:
    """The sum of each row, if it is known that there are few."""
    written = _written_out(rows)
    return tuple(decide(store, {}) for store in written) if len(written) <= MOST else ()


def _written_out(statement: Stmt) -> tuple[Store, ...]:
    """The store inside loops over rows, once for each; nothing where their number is not known."""
    if isinstance(statement, Store):
        return (statement,)
    assert isinstance(statement, For), "rows are loops around one store"
    first, last = as_affine(statement.lower), as_affine(statement.upper)
    if first is None or last is None or not (last - first).is_constant or (last - first).constant > MOST:
        return ()
    numbers = range((last - first).constant)
    bodies = (substitute_in(statement.body, {statement.var: affine_expr(first + number)}) for number in numbers)
    return tuple(store for body in bodies for store in _written_out(body))
