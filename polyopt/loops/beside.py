"""Rows inside lanes that sum along them, written out as statements side by side.

`vector for k: unrolled for i in range(i0, i0 + 4): z[i] += x[i, k] * y[k]` has four sums at once, each of all lanes. As
statements of their own they are what a vector loop keeps partial results of.
"""

from __future__ import annotations

from dataclasses import replace

from polyopt.loops.affine import as_affine
from polyopt.loops.ir import Alloc, Block, For, If, LoopProgram, Stmt, Store, substitute_in, uses
from polyopt.loops.scan import affine_expr
from polyopt.loops.split import decide

MOST = 8
"""Rows that are written out."""


def rows_inside(lanes: For) -> For | None:
    """The loop over rows that is all there is in a loop whose iterations add to the same elements, one for each row."""
    rows = lanes.body
    if not isinstance(rows, For) or rows.kind != "unrolled" or rows.step != 1 or not isinstance(rows.body, Store):
        return None
    store, var = rows.body, lanes.var
    is_moved = any(uses(expr, var) for expr in (rows.lower, rows.upper, *store.indices))
    return None if store.reducer is None or store.checks or is_moved else rows


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
    first, last = as_affine(rows.lower), as_affine(rows.upper)
    if first is None or last is None or not (last - first).is_constant or (last - first).constant > MOST:
        return ()
    numbers = range((last - first).constant)
    written = (substitute_in(rows.body, {rows.var: affine_expr(first + number)}) for number in numbers)
    return tuple(decide(store, {}) for store in written if isinstance(store, Store))
