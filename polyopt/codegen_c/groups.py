"""Group loops in lanes: a few neighbours that one instruction multiplies and adds, or that are stored side by side.

A lane of 32 bits holds a group. Where no instruction fits, pairs of bf16 are widened in their lanes. For other dtypes,
where the operands turn out not to be neighbours, or where there are no lanes, the loop is a loop like others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial, reduce

from polyopt.codegen_c import conversions, memory
from polyopt.codegen_c.expressions import Context, Expressions
from polyopt.codegen_c.flatten import Trip
from polyopt.codegen_c.lanes import narrow_factors
from polyopt.codegen_c.llvm_text import Value
from polyopt.codegen_c.memory import Place
from polyopt.codegen_c.stores import Stores, add_products
from polyopt.codegen_c.values import Linear, binary, bitcast, constant, convert, shuffle, splat
from polyopt.dots import Dot
from polyopt.dsl.ir import Cast, Op, Var
from polyopt.dtypes import bf16, f32, i32
from polyopt.loops.ir import Expr, For, Load, Store, expr_children, walk_expr

WORD_BYTES = 4


class Groups:
    """Emits group loops into one LLVM function."""

    def __init__(self, x: Expressions, stores: Stores, dots: Sequence[Dot]) -> None:
        """dots: what the processor has"""
        self._x = x
        self._f = x.f
        self._stores = stores
        self._dots = dots

    def write(self, loop: For, trip: Trip, context: Context) -> bool:
        """Writes the loop if it can be done at once; else nothing, and False."""
        store = loop.body
        if not isinstance(store, Store) or trip.count != loop.chunk or context.lanes == 1 or store.checks:
            return False
        self._x.forget()
        if store.reducer is None:
            return self._side_by_side(loop, store, trip, context)
        return self._products(loop, store, trip, context)

    # --- products ------------------------------------------------------------------------------------------

    def _products(self, loop: For, store: Store, trip: Trip, context: Context) -> bool:
        """`sum += left * right` over the group, by an instruction, or a place in the group after the other."""
        loads = narrow_factors(store) or narrow_factors(store, f32)
        if loads is None:
            return False
        for dot in self._dots:
            is_whole = dot.symbol(32 * context.lanes) is not None
            for left, right in (loads, loads[::-1]):
                if dot.points == trip.count and (left.dtype, right.dtype) == (dot.left, dot.right) and is_whole:
                    operands = self._operands((left, right), loop, trip, context)
                    if operands is not None:
                        self._stores.accumulate(store, context, partial(add_products, self._f, dot, operands))
                        return True
        operands = self._operands(loads, loop, trip, context) if loads[0].dtype == loads[1].dtype == bf16 else None
        if operands is None:
            return False
        self._stores.accumulate(store, context, partial(self._add_one_by_one, operands))
        return True

    def _operands(self, loads: Sequence[Load], loop: For, trip: Trip, context: Context) -> list[Value] | None:
        """The groups of either load; None where some are no neighbours."""
        found = [self._words(load, loop, trip, context) for load in loads]
        operands = [words for words in found if words is not None]
        return operands if len(operands) == len(loads) else None

    def _add_one_by_one(self, operands: Sequence[Value], old: Value) -> Value:
        """`old` and the products of pairs of bf16: each widened, which takes one operation on its word."""
        f, total = self._f, old
        words = [bitcast(f, operand, "i32", old.lanes) for operand in operands]
        lower = [binary(f, "shl", word, constant(16, "i32")) for word in words]
        upper = [binary(f, "and", word, constant(-0x10000, "i32")) for word in words]
        for pair in (lower, upper):
            left, right = (bitcast(f, word, "float", old.lanes) for word in pair)
            total = binary(f, "fadd", total, binary(f, "fmul", left, right, f.flags), f.flags)
        return total

    def _words(self, load: Load, loop: For, trip: Trip, context: Context) -> Value | None:
        """The groups of all lanes, as a vector of the load's dtype; None where they are no neighbours."""
        x, f = self._x, self._f
        place = x.places[load.buffer]
        points = loop.chunk
        if load.mask is not None or load.checks or place.lanes > 1 or points * place.itemsize != WORD_BYTES:
            return None
        first = context.bind(loop.var, trip.lower)
        address = memory.address_of(f, place, [x.index(index, first) for index in load.indices], context.lanes)
        if x.step(place, load, loop.var) == place.itemsize:
            mask = None if x.may_read_on(place, context) else context.mask
            words = memory.read(f, _of_words(place), address, context.lanes, mask, None)
        elif address.is_uniform:
            words = self._collected(load, loop, trip, context)
        else:
            return None
        return bitcast(f, splat(f, words, context.lanes), place.scalar, context.lanes * points)

    def _collected(self, load: Load, loop: For, trip: Trip, context: Context) -> Value:
        """One group of elements that lie apart, as a number of 32 bits."""
        f, parts = self._f, list[Value]()
        for number in range(loop.chunk):
            item = self._x.value(load, context.bind(loop.var, trip.lower + Linear(number)))
            item = conversions.to_memory(f, item, load.dtype)
            shift = constant(8 * number * WORD_BYTES // loop.chunk, "i32")
            parts.append(binary(f, "shl", convert(f, "zext", item, "i32"), shift))
        return reduce(lambda left, right: binary(f, "or", left, right), parts)

    # --- stores side by side -------------------------------------------------------------------------------

    def _side_by_side(self, loop: For, store: Store, trip: Trip, context: Context) -> bool:
        """`packed[lane, place in the group] = value`, whole groups at once."""
        x, f = self._x, self._f
        place, points, lanes = x.places[store.buffer], loop.chunk, context.lanes
        first = context.bind(loop.var, trip.lower)
        address = memory.address_of(f, place, [x.index(index, first) for index in store.indices], lanes)
        is_beside = address.scattered is None and address.offset.lane_factor == WORD_BYTES
        if not is_beside or points * place.itemsize != WORD_BYTES or x.step(place, store, loop.var) != place.itemsize:
            return False
        value = self._turned(loop, store.value, trip, context) or self._interleaved(loop, store.value, trip, context)
        stored = conversions.to_memory(f, value, store.value.dtype)
        memory.write(f, _of_words(place), address, lanes, context.mask, bitcast(f, stored, "i32", lanes))
        return True

    def _turned(self, loop: For, value: Expr, trip: Trip, context: Context) -> Value | None:
        """The value from an array in which groups are neighbours already: each is read as a whole."""
        loads = [node for node in walk_expr(value) if isinstance(node, Load)]
        words = self._words(loads[0], loop, trip, context) if len(loads) == 1 else None
        if words is None or _depends_otherwise(value, loads[0]):
            return None
        held = conversions.from_memory(self._f, words, loads[0].dtype)
        wide = replace(context, lanes=words.lanes, mask=None, operands={**context.operands, loop.var: held})
        return self._x.value(_with(value, loads[0], Var(loop.var, loads[0].dtype)), wide)

    def _interleaved(self, loop: For, value: Expr, trip: Trip, context: Context) -> Value:
        """The values of each place in the group, lane by lane."""
        f = self._f
        vectors = []
        for number in range(loop.chunk):
            item = self._x.value(value, context.bind(loop.var, trip.lower + Linear(number)))
            vectors.append(splat(f, item, context.lanes))
        while len(vectors) > 1:
            half, lanes = len(vectors) // 2, vectors[0].lanes
            order = [entry for lane in range(lanes) for entry in (lane, lanes + lane)]
            vectors = [shuffle(f, a, order, b) for a, b in zip(vectors[:half], vectors[half:], strict=True)]
        return vectors[0]


def _of_words(place: Place) -> Place:
    """The buffer as one of groups."""
    return replace(place, buffer=replace(place.buffer, dtype=i32))


def _depends_otherwise(value: Expr, load: Load) -> bool:
    """Whether a value knows a loop but through its one load."""
    if value is load:
        return False
    return isinstance(value, Var) or any(_depends_otherwise(child, load) for child in expr_children(value))


def _with(value: Expr, load: Load, other: Var) -> Expr:
    """The value with its load replaced."""
    if value is load:
        return other
    match value:
        case Op(args=args):
            return replace(value, args=tuple(_with(arg, load, other) for arg in args))
        case Cast(arg=arg):
            return replace(value, arg=_with(arg, load, other))
        case _:
            return value
