"""Loops as lists of contexts: how many iterations a loop has, and what its variable is in each of them.

Emission and the search for promotable elements enumerate iterations with the same functions, so both see the same
subscripts.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace

from polyopt.classes import dataclass
from polyopt.codegen_c.abi import SLACK_BYTES
from polyopt.codegen_c.expressions import Context, Expressions, Flat, coefficient
from polyopt.codegen_c.llvm_text import Value
from polyopt.codegen_c.values import Linear, both, intrinsic, lane_mask, linear, scalar_of
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.ir import Const, Op, Var
from polyopt.dtypes import i32
from polyopt.loops.ir import (
    Block,
    Expr,
    For,
    If,
    Load,
    Stmt,
    Store,
    expr_children,
    parts_of,
    stores_of,
    substatements,
    uses,
)
from polyopt.loops.once import Once

MOST_COPIES = 32
MOST_CODE = 2048
"""Instructions of a loop that is written out because its values stay in registers."""
MOST_PLAIN_CODE = 256
"""Instructions of one that is written out for nothing more than its counter and its tests."""
SCATTERED = 16
"""What a lane of 8 or 16 bits costs that is stored by itself: no instruction scatters them, and LLVM's search for
stores to join takes a second for 256 of them and seven for 512."""
MOST_TAIL = SLACK_BYTES // 64
"""Vectors of a loop that may lie past its end and still read a buffer of ours."""


@dataclass(frozen=True, slots=True)
class Trip:
    """The iterations of a loop: `lower, lower + step, ... < upper`.

    count: their number, if known
    bound: their greatest number, if known: the loop is "full" when it has that many
    """

    lower: Linear
    upper: Linear
    step: int
    count: int | None
    bound: int | None


def trip_of(x: Expressions, loop: For, context: Context) -> Trip:
    """The trip of a loop whose bounds are known in `context`."""
    lower, upper = x.uniform(loop.lower, context), x.uniform(loop.upper, context)
    distance = upper - lower
    count = _steps(distance.constant, loop.step) if distance.is_constant else None
    above = [upper, *_parts(x, loop.upper, "minimum", context)]
    below = [lower, *_parts(x, loop.lower, "maximum", context)]
    spans = [high - low for high in above for low in below]
    bounds = [_steps(span.constant, loop.step) for span in spans if span.is_constant]
    return Trip(lower, upper, loop.step, count, min(bounds, default=None))


def _steps(distance: int, step: int) -> int:
    return max(0, -(-distance // step))


def _parts(x: Expressions, expr: Expr, combine: str, context: Context) -> list[Linear]:
    """Linear forms that `expr` is the minimum, or the maximum, of."""
    match expr:
        case Op(name, (left, right)) if name == combine:
            return _parts(x, left, combine, context) + _parts(x, right, combine, context)
        case Op("add" | "sub" as name, (left, right)):
            shift = x.uniform(right, context)
            moved = shift if name == "add" else shift * -1
            return [bound + moved for bound in _parts(x, left, combine, context)]
        case _:
            return [x.uniform(expr, context)]


def can_be_flat(loop: For, trip: Trip, lanes: int, cost: int, most_code: int = MOST_CODE) -> bool:
    """Whether a loop that is wanted flat has few enough iterations to be written out, whose bodies have this cost."""
    if trip.bound is None or loop.kind not in ("unrolled", "vector"):
        return False
    copies = -(-trip.bound // lanes)
    scattered = trip.bound * SCATTERED * _narrow_scatters(loop) if lanes > 1 else 0
    return copies <= MOST_COPIES and copies * cost + scattered <= most_code


def _narrow_scatters(loop: For) -> int:
    """Stores of 8 or 16 bits whose elements lie apart in memory where the lanes are this loop's iterations."""
    count = 0
    for store in stores_of(loop.body):
        if store.indices and store.value.dtype.bits < i32.bits:
            *outer, last = store.indices
            count += coefficient(last, loop.var) not in (0, 1) or any(uses(index, loop.var) for index in outer)
    return count


def is_full(x: Expressions, trip: Trip) -> Value:
    """Whether the loop has as many iterations as its bound says."""
    assert trip.bound is not None, "only a bounded loop can be full"
    slack = trip.upper - trip.lower - Linear((trip.bound - 1) * trip.step)
    return x.compare_to_zero("sgt", slack, 1)


def runs(x: Expressions, trip: Trip) -> Value:
    """Whether there is an iteration at all."""
    return x.compare_to_zero("sgt", trip.upper - trip.lower, 1)


def unrolled_contexts(
    x: Expressions, loop: For, trip: Trip, flat: Flat, context: Context
) -> Iterator[tuple[Context, Value | None]]:
    """Every iteration of a loop that is written out, each with the condition on which it happens.

    In a partial loop the variable is clamped to the last iteration, so that reads stay in bounds.
    """
    for number in range(flat.count):
        position = trip.lower + Linear(number * trip.step)
        if not flat.partial and trip.step == 1:
            written = {**context.written, loop.var: (number, flat.count)}
            yield context.bind(loop.var, position, position, written=written), None
            continue
        if not flat.partial or number == 0:
            yield context.bind(loop.var, position, position), None
            continue
        happens = x.compare_to_zero("slt", position - trip.upper, 1)
        last = x.bounded(intrinsic(x.f, "smin", scalar_of(x.f, position), _last(x, trip)))
        known = {**context.happens, loop.var: happens}
        yield context.bind(loop.var, linear(last), position, happens=known), happens


def _last(x: Expressions, trip: Trip) -> Value:
    """The greatest value of the loop variable, for a loop that runs."""
    span = trip.upper - trip.lower - Linear(1)
    if trip.step == 1:
        return scalar_of(x.f, trip.upper - Linear(1))
    whole = scalar_of(x.f, span)
    step = Value(str(trip.step), "i64", 1, 0, trip.step)
    steps = x.f.instruction(f"udiv {whole}, {step.text}", "i64", 1, [whole], "cheap")
    return scalar_of(x.f, trip.lower + linear(steps) * trip.step)


def vector_contexts(
    x: Expressions, loop: For, trip: Trip, flat: Flat, lanes: int, context: Context
) -> Iterator[Context]:
    """The vectors of a vector loop that is written out; the last lanes are masked off where there is nothing to do."""
    for first in range(0, flat.count, lanes):
        position = trip.lower + Linear(first * trip.step)
        mask: Value | None = None
        if flat.partial:
            mask = lanes_below(x, trip, position, lanes)
        elif flat.count - first < lanes:
            mask = lane_mask(lanes, flat.count - first)
        tail = mask if context.mask is None and flat.count <= MOST_TAIL * lanes else None
        form = replace(position, lane_factor=trip.step)
        yield context.bind(loop.var, form, form, lanes=lanes, mask=both(x.f, context.mask, mask), tail=tail)


def lanes_below(x: Expressions, trip: Trip, position: Linear, lanes: int) -> Value:
    """The mask of the lanes whose iteration, from `position` on, is below the upper bound."""
    return x.compare_to_zero("slt", replace(position, lane_factor=trip.step) - trip.upper, lanes)


# --- costs -----------------------------------------------------------------------------------------------------------


def stored_buffers(statement: Stmt) -> frozenset[str]:
    return frozenset(store.buffer for store in stores_of(statement))


def cost_of(statement: Stmt, known: Once[Stmt, int] | None = None) -> int:
    """Roughly the instructions that a statement becomes.

    known: the costs of what has been asked for before
    """
    costs = Once[Stmt, int]() if known is None else known

    def find(statement: Stmt) -> int:
        match statement:
            case Store(value=value):
                return 1 + _expr_cost(value, {})
            case For(kind="unrolled" | "vector" as kind, body=body):
                count = visible_count(statement)
                copies = 1 if count is None or count > 64 else count if kind == "unrolled" else -(-count // 8)
                return copies * cost_of(body, costs)
            case _:
                return isinstance(statement, If) * 2 + sum(cost_of(inner, costs) for inner in substatements(statement))

    return costs(statement, find)


def stretches(block: Block, calls: Collection[int], cost: Callable[[Stmt], int] = cost_of) -> Iterator[Block]:
    """The statements of a block, in stretches between which registers keep nothing: a loop that is called, or too much
    code to be written out, is one by itself.

    calls: the loops that are called, by identity
    """
    stretch: list[Stmt] = []
    for inner in block.body:
        is_long = isinstance(inner, For) and inner.kind != "serial" and cost(inner) > MOST_PLAIN_CODE
        if is_long or id(inner) in calls:
            yield Block(tuple(stretch))
            yield Block((inner,))
            stretch = []
        else:
            stretch.append(inner)
    yield Block(tuple(stretch))


def visible_count(loop: For) -> int | None:
    """The greatest number of iterations, where the bounds show it: `it` to `min(it + 6, N)`."""
    match loop.upper:
        case Const(stop) if isinstance(loop.lower, Const):
            return _steps(int(stop) - int(loop.lower.value), loop.step)
        case Op("add", (start, Const(width))) if start == loop.lower:
            return _steps(int(width), loop.step)
        case Op("minimum", parts):
            counts = [visible_count(replace(loop, upper=part)) for part in parts]
            return min((count for count in counts if count is not None), default=None)
        case _:
            return None


def _expr_cost(expr: Expr, known: dict[int, int]) -> int:
    """known: of expressions, by the object: what an expression repeats is one object, and counts each time"""
    if id(expr) not in known:
        own = 1
        if isinstance(expr, Op) and BUILTINS[expr.name].ulp:
            own = 20
        elif isinstance(expr, Op) and expr.name in ("floordiv", "mod"):
            own = 1 if isinstance(expr.args[0], Var) and isinstance(expr.args[1], Const) else 8  # a tile's number: once
        known[id(expr)] = own + sum(_expr_cost(c, known) for c in expr_children(expr) if not _is_address(expr, c))
    return known[id(expr)]


def _is_address(expr: Expr, index: Expr) -> bool:
    """Whether a subscript of a load is an offset that the load's address takes: no instruction of its own."""
    if not isinstance(expr, Load) or index is expr.mask:
        return False
    return all(
        isinstance(node, (Const, Var)) or (isinstance(node, Op) and node.name in ("add", "sub", "mul"))
        for node in parts_of(index)
    )
