"""Rows inside lanes that sum along them, written out as statements side by side.

`vector for k: unrolled for i in range(i0, i0 + 4): z[i] += x[i, k] * y[k]` has four sums at once, each of all lanes. As
statements of their own they are what a vector loop keeps partial results of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polyopt.dsl.ir import Op
from polyopt.dtypes import bool_
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
    """The same instances, with rows inside lanes side by side; where it is not known that they are few, there are no
    lanes."""
    return replace(program, body=_visit(program.body))


def _visit(statement: Stmt) -> Stmt:
    match statement:
        case Block(body):
            return Block(tuple(map(_visit, body)))
        case For(kind="vector") if (rows := rows_inside(statement)) is not None:
            return _in_full(statement, rows) or _cut_short(statement, rows) or replace(statement, kind="serial")
        case For() | Alloc():
            return replace(statement, body=_visit(statement.body))
        case If(_, then, otherwise):
            return replace(statement, then=_visit(then), otherwise=None if otherwise is None else _visit(otherwise))
        case Store():
            return statement


def _in_full(lanes: For, rows: Stmt) -> For | None:
    """Lanes around rows that are written out; None where it is not known that there are few."""
    stores = _stores(rows)
    return replace(lanes, body=Block(stores)) if stores else None


def _cut_short(lanes: For, rows: For) -> Stmt | None:
    """The same where a size may cut rows short: then they are summed one after the other, each by all lanes, and the
    terms of each sum stay in order. None where no size does."""
    nest: list[For] = []
    inside: Stmt = rows
    while isinstance(inside, For):
        nest.append(inside)
        inside = inside.body
    for cut in nest:
        ends = _ends(cut)
        if ends is None:
            continue
        whole, size = ends
        full = _in_full(lanes, _around([replace(o, upper=whole) if o is cut else o for o in nest], inside))
        one = _in_full(lanes, _around([other for other in nest if other is not cut], inside))
        if full is not None and one is not None:
            return If(Op("le", (whole, size), bool_), full, replace(cut, kind="serial", body=one))
    return None


def _ends(rows: For) -> tuple[Expr, Expr] | None:
    """Where a loop ends that has all its iterations, and what may end it before; None for any other loop."""
    match rows.upper:
        case Op("minimum", (left, right)):
            first = as_affine(rows.lower)
            for whole, size in ((left, right), (right, left)):
                last = as_affine(whole)
                if first is not None and last is not None and (last - first).is_constant:
                    return whole, size
    return None


def _around(nest: Sequence[For], inside: Stmt) -> Stmt:
    for loop in reversed(nest):
        inside = replace(loop, body=inside)
    return inside


def _stores(rows: Stmt) -> tuple[Stmt, ...]:
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
