"""Stores of loop statements: into registers, into partial results of a vector loop, or into memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from polyopt.classes import dataclass
from polyopt.codegen_c import conversions, memory, transposes
from polyopt.codegen_c.expressions import Context, Expressions, Slot, coefficient, neutral_number, slot_of
from polyopt.codegen_c.lanes import narrow_factors
from polyopt.codegen_c.llvm_text import Function, Value
from polyopt.codegen_c.memory import Address, Place
from polyopt.codegen_c.values import (
    Linear,
    any_lane,
    binary,
    bitcast,
    both,
    compare,
    constant,
    convert,
    first_lanes,
    int64,
    lane_bits,
    lane_mask,
    like,
    linear,
    memory_scalar,
    register_scalar,
    select,
    shuffle,
    splat,
)
from polyopt.codegen_c.waiting import Waiting
from polyopt.dots import Dot
from polyopt.dsl.ir import Reducer
from polyopt.loops.interned import interned
from polyopt.loops.ir import Expr, Load, Store, walk_expr
from polyopt.loops.once import Once


def _zero(value: Value) -> Value:
    return constant(0, value.scalar)


@dataclass(frozen=True, slots=True)
class Partial:
    """The running values of one reduction of a vector loop, lane by lane.

    slots: one register per copy of the unrolled body
    seen:  for a custom reducer: which lanes hold a value yet
    dot:   what multiplies and adds groups of the loop's lanes; then there are as many running values as groups
    """

    store: Store
    reducer: Reducer
    lanes: int
    slots: tuple[Slot, ...]
    seen: tuple[Slot, ...]
    dot: Dot | None = None


Partials = Mapping[tuple[str, tuple[Expr, ...]], Partial]

Accumulate = Callable[[Value], Value]
"""What makes a running value of 32-bit lanes out of the one before."""


def add_products(f: Function, dot: Dot, operands: Sequence[Value], old: Value) -> Value:
    """`old` and the products of groups of the operands, group by group."""
    symbol = dot.symbol(32 * old.lanes)
    assert symbol is not None, "there is an instruction for vectors of this width"
    if dot.total.is_float:
        numbers = [bitcast(f, operand, "bfloat", operand.lanes) for operand in operands]
        return f.intrinsic(symbol, "float", old.lanes, [old, *numbers])
    if dot.accumulates:
        return f.intrinsic(symbol, "i32", old.lanes, [old, *operands])
    return binary(f, "add", old, f.intrinsic(symbol, "i32", old.lanes, list(operands)))


class Stores:
    """Emits stores into one LLVM function."""

    def __init__(self, x: Expressions) -> None:
        self._x = x
        self._f = x.f
        self._values: Once[Expr, Expr] = Once()

    def _value_of(self, store: Store) -> Expr:
        return self._values(store.value, interned)

    @contextmanager
    def last(self) -> Iterator[None]:
        """Vectors that are stored inside are written when it ends, behind all loads."""
        waiting = self._x.waiting = Waiting()
        try:
            yield
        finally:
            self._x.waiting = None
        waiting.write()

    def store(self, store: Store, context: Context, partials: Partials) -> None:
        x = self._x
        x.forget()
        running = partials.get((store.buffer, store.indices))
        if running is not None and running.dot is not None:
            self._accumulate_groups(running, running.dot, store, context)
            return
        if running is not None:
            self._accumulate(running, x.value(self._value_of(store), context), context)
            return
        place = x.places[store.buffer]
        value = x.value(self._value_of(store), context)
        slot = x.promoted(store.buffer, store.indices, context)
        if slot is not None:
            self._store_register(store, place, slot, value, context)
            return
        indices = [x.index(index, context) for index in store.indices]
        guard, report = self._in_range(store, place, indices, context)
        address = memory.address_of(self._f, place, indices, context.lanes)
        waiting = x.waiting
        if waiting is not None and (guard is not None or context.lanes == 1):
            waiting.write()
        if context.lanes == 1:
            handed = slot_of(context.handed, store.buffer, indices)
            self._guarded(guard, lambda: self._store_scalar(store, place, address, value, handed), report)
        elif guard is not None and guard.lanes > 1:
            self._store_lanes(store, place, address, value, context.lanes, both(self._f, context.mask, guard))
        else:
            mask = context.mask
            if self._may_fill(place, indices, context):
                assert mask is not None, "lanes past the end are masked"
                value, mask = select(self._f, mask, splat(self._f, value, context.lanes), _zero(value)), None
            write = partial(self._store_lanes, store, place, address, value, context.lanes, mask)
            if waiting is not None and guard is None:
                whole = splat(self._f, value, context.lanes)
                waiting.add((store.buffer, tuple(indices)), place.buffer.dtype, whole, write)
            else:
                self._guarded(guard, write, report)

    def _in_range(
        self, store: Store, place: Place, indices: Sequence[memory.Index], context: Context
    ) -> tuple[Value | None, Callable[[], None] | None]:
        """Whether all checked subscripts are in range, and what writes to the error record which of them are not: at
        once where lanes differ, else only where the store does not happen."""
        x, f = self._x, self._f
        tests = [(check, *x.tested(place, indices, check, context)) for check in store.checks]
        guard: Value | None = None
        for *_, inside in tests:
            guard = both(f, guard, inside)

        def report() -> None:
            before: Value | None = None
            for check, index, extent, inside in tests:
                x.report_outside(check, index, extent, inside, both(f, before, context.mask))
                before = both(f, before, inside)

        if guard is not None and guard.lanes > 1:
            report()
            return guard, None
        return guard, report

    def can_turn(self, store: Store, lane: str, lanes: int, count: int, context: Context) -> bool:
        """Whether vectors of `count` iterations that store neighbours (`Expressions.stored_across`) can turn in
        registers: their lanes lie apart, all are stored, and nothing that they read.

        lane: the variable of the lanes
        """
        place = self._x.places[store.buffer]
        is_plain = store.reducer is None and not store.checks and context.mask is None and place.lanes == 1
        own = (node for node in walk_expr(store.value) if isinstance(node, Load) and node.buffer == store.buffer)
        if not is_plain or store.buffer in context.registers or any(own):
            return False
        if lanes > transposes.MOST_LANES or 4 * count < lanes or place.itemsize < 4:
            return False
        return self._x.step(place, store, lane) not in (None, 0, place.itemsize)

    def store_turned(self, store: Store, contexts: Sequence[Context]) -> None:
        """Stores of vectors side by side, which `can_turn`: blocks of them turn in registers.

        contexts: one for each iteration, with the same lanes
        """
        x, f, lanes = self._x, self._f, contexts[0].lanes
        x.forget()
        place = x.places[store.buffer]
        on = lanes if contexts[0].mask is None else first_lanes(contexts[0].mask)
        assert on is not None, "the loop is written out, and how long it is known"
        values = [splat(f, x.value(self._value_of(store), context), lanes) for context in contexts]
        rows = [conversions.to_memory(f, value, place.buffer.dtype) for value in values]
        for first in range(0, len(rows), lanes):
            block = rows[first : first + lanes]
            mask = None if len(block) == lanes else lane_mask(lanes, len(block))
            nothing = Value("poison", block[0].scalar, lanes)
            filled = [*block, *[nothing] * (lanes - len(block))]
            columns = [transposes.column(f, lanes, 8 * place.itemsize, n, filled.__getitem__) for n in range(on)]
            indices = [x.index(index, contexts[first]) for index in store.indices]
            address = memory.address_of(f, place, indices, lanes)
            for number, column in enumerate(columns):
                step = Linear(number * address.offset.lane_factor, lane_factor=place.itemsize)
                memory.write(f, place, Address(address.base, address.offset.first_lane + step), lanes, mask, column)

    def _may_fill(self, place: Place, indices: Sequence[memory.Index], context: Context) -> bool:
        """Whether lanes past the end of a loop may store zeros: behind what a row of a panel holds, and still in it.

        Whole vectors read panels to the end of the row. What memory held before is full of subnormal numbers, and
        arithmetic on them takes a hundred times as long.
        """
        if not place.buffer.padded or context.mask is None or context.mask != context.tail:
            return False
        last, extent = indices[-1], place.extents[-1]
        if not isinstance(last, Linear) or last.terms or last.lane_factor != 1 or not extent.is_constant:
            return False
        return last.constant % context.lanes == 0 and last.constant + context.lanes <= extent.constant

    def _guarded(
        self, guard: Value | None, write: Callable[[], None], otherwise: Callable[[], None] | None = None
    ) -> None:
        if guard is None:
            write()
        else:
            self._f.branch(guard, write, otherwise)

    # --- registers -----------------------------------------------------------------------------------------

    def _store_register(self, store: Store, place: Place, slot: Slot, value: Value, context: Context) -> None:
        f = self._f
        scalar = register_scalar(place.buffer.dtype)
        if slot.lanes < value.lanes:
            raise AssertionError("a vector is stored to one promoted element")
        if store.reducer is not None:
            value = self._combined(store, place, f.read(slot.pointer, scalar, slot.lanes), value)
        self._write_register(store, slot, scalar, value, context)

    def accumulate(self, store: Store, context: Context, add: Accumulate) -> None:
        """A sum of 32-bit lanes, of which `add` makes the next running value."""
        x, f = self._x, self._f
        place = x.places[store.buffer]
        scalar = register_scalar(place.buffer.dtype)
        slot = x.promoted(store.buffer, store.indices, context)
        if slot is not None:
            assert slot.lanes == context.lanes, "a vector of sums stays in a register of as many lanes"
            self._write_register(store, slot, scalar, add(f.read(slot.pointer, scalar, slot.lanes)), context)
            return
        address = memory.address_of(f, place, [x.index(index, context) for index in store.indices], context.lanes)
        self._store_lanes(store, place, address, add(constant(0, scalar, context.lanes)), context.lanes, context.mask)

    def _write_register(self, store: Store, slot: Slot, scalar: str, value: Value, context: Context) -> None:
        f = self._f
        condition = self._happens(store, slot, context)
        if context.mask is not None and context.mask != slot.mask:
            condition = both(f, condition, context.mask)
        if condition is not None:
            value = select(f, condition, value, f.read(slot.pointer, scalar, slot.lanes))
        f.write(slot.pointer, splat(f, value, slot.lanes))

    def _happens(self, store: Store, slot: Slot, context: Context) -> Value | None:
        """Whether a store to a register happens, where iterations that do not happen share it.

        An iteration whose loop moves the element has a register of its own, which is then not written back; but for one
        that is an element of what always happens, too.
        """
        condition: Value | None = None
        for var, happens in context.happens.items():
            if slot.happens is None or not any(coefficient(index, var) for index in store.indices):
                condition = both(self._f, condition, happens)
        return condition

    def _combined(self, store: Store, place: Place, old: Value, value: Value) -> Value:
        """`old` and `value`, combined in the reducer's dtype; of the buffer's dtype."""
        assert store.reducer is not None, "only reductions combine"
        reducer, dtype = store.reducer, place.buffer.dtype
        wide = self._x.cast(old, dtype, reducer.dtype)
        return self._x.cast(self._x.combine(reducer, wide, value), reducer.dtype, dtype)

    # --- memory --------------------------------------------------------------------------------------------

    def _store_scalar(
        self, store: Store, place: Place, address: Address, value: Value, handed: Slot | None = None
    ) -> None:
        """handed: the register that is to have the value as well"""
        if store.reducer is not None:
            value = self._combined(store, place, self._old(place, address, 1, None), value)
        if handed is not None:
            self._f.write(handed.pointer, value)
            self._x.handed_on.add(handed.pointer.text)
        memory.write(self._f, place, address, 1, None, conversions.to_memory(self._f, value, place.buffer.dtype))

    def _old(self, place: Place, address: Address, lanes: int, mask: Value | None) -> Value:
        stored = memory.read(self._f, place, address, lanes, mask, None)
        return conversions.from_memory(self._f, stored, place.buffer.dtype)

    def _store_lanes(
        self, store: Store, place: Place, address: Address, value: Value, lanes: int, mask: Value | None
    ) -> None:
        is_apart = address.scattered is None and abs(address.offset.lane_factor) >= place.itemsize
        if not is_apart and (store.reducer is not None or address.is_uniform):
            self._store_lane_by_lane(store, place, address, value, lanes, mask)
            return
        if store.reducer is not None:
            value = self._combined(store, place, self._old(place, address, lanes, mask), value)
        memory.write(self._f, place, address, lanes, mask, conversions.to_memory(self._f, value, place.buffer.dtype))

    def _store_lane_by_lane(
        self, store: Store, place: Place, address: Address, value: Value, lanes: int, mask: Value | None
    ) -> None:
        """One lane after the other, for lanes that may meet in one element."""
        f = self._f
        value = splat(f, value, lanes)
        values = self._spill(conversions.to_memory(f, value, store.value.dtype))
        offsets = self._spill(splat(f, address.scattered, lanes)) if address.scattered is not None else None
        bits = None if mask is None else convert(f, "zext", lane_bits(f, mask), "i64")

        def one(number: Value) -> None:
            here = Linear(address.offset.constant, address.offset.terms) + linear(number) * address.offset.lane_factor
            if offsets is not None:
                here = here + linear(self._spilled(offsets, "i64", number)) * address.unit
            element = Address(address.base, here)
            raw = self._spilled(values, memory_scalar(store.value.dtype), number)
            item = conversions.from_memory(f, raw, store.value.dtype)
            self._store_scalar(store, place, element, item)

        def guarded(number: Value) -> None:
            if bits is None:
                one(number)
                return
            bit = binary(f, "and", binary(f, "lshr", bits, number), constant(1, "i64"))
            f.branch(compare(f, "ne", bit, int64(0)), lambda: one(number))

        f.loop(int64(0), int64(lanes), 1, guarded, frozenset({place.name}))

    def _spill(self, vector: Value) -> Value:
        stack = self._f.alloca(vector.type, 64)
        self._f.write(stack, vector)
        return stack

    def _spilled(self, stack: Value, scalar: str, number: Value) -> Value:
        f = self._f
        place = f.instruction(f"getelementptr {scalar}, {stack}, {number}", "ptr", 1, [number], "cheap")
        return f.read(place, scalar)

    # --- partial results of vector loops -------------------------------------------------------------------

    def open_partial(self, store: Store, lanes: int, copies: int, dot: Dot | None) -> Partial:
        """Registers for a reduction over a vector loop, set to what changes nothing."""
        lanes = lanes if dot is None else lanes // dot.points
        assert store.reducer is not None, "only reductions have partial results"
        reducer = store.reducer
        neutral = neutral_number(reducer)
        start = constant(0 if neutral is None else neutral, register_scalar(reducer.dtype), lanes)
        slots = tuple(self._slot(start) for _ in range(copies))
        seen = tuple(self._slot(constant(False, "i1", lanes)) for _ in range(copies)) if neutral is None else ()
        return Partial(store, reducer, lanes, slots, seen, dot)

    def _slot(self, start: Value) -> Slot:
        slot = Slot(self._f.alloca(start.type, 64), start.lanes)
        self._f.write(slot.pointer, start)
        return slot

    def _accumulate(self, partial: Partial, value: Value, context: Context) -> None:
        f = self._f
        scalar = register_scalar(partial.reducer.dtype)
        slot = partial.slots[context.copy]
        old = f.read(slot.pointer, scalar, slot.lanes)
        new = splat(f, self._x.combine(partial.reducer, old, value), slot.lanes)
        if partial.seen:
            seen = f.read(partial.seen[context.copy].pointer, "i1", slot.lanes)
            new = select(f, seen, new, value)
            active = context.mask or constant(True, "i1", slot.lanes)
            f.write(partial.seen[context.copy].pointer, binary(f, "or", seen, active))
        f.write(slot.pointer, new if context.mask is None else select(f, context.mask, new, old))

    def _accumulate_groups(self, partial: Partial, dot: Dot, store: Store, context: Context) -> None:
        """Adds the products of a vector of narrow integers; lanes that are off are zeros."""
        f, factors = self._f, narrow_factors(store)
        assert factors is not None, "a dot instruction adds products"
        left, right = factors if dot.left in (factors[0].dtype, dot.right) else factors[::-1]
        operands = []
        for load, dtype in ((left, dot.left), (right, dot.right)):
            value = conversions.cast(f, self._x.value(load, context), load.dtype, dtype)
            value = splat(f, value, context.lanes)
            operands.append(value if context.mask is None else select(f, context.mask, value, like(value, 0)))
        slot = partial.slots[context.copy]
        f.write(slot.pointer, add_products(f, dot, operands, f.read(slot.pointer, "i32", slot.lanes)))

    def close_partial(self, partial: Partial, context: Context) -> None:
        """Combines lanes and copies in a tree, then the result with the element, once."""
        f = self._f
        scalar = register_scalar(partial.reducer.dtype)
        values = [f.read(slot.pointer, scalar, slot.lanes) for slot in partial.slots]
        seen: list[Value] | None = [f.read(slot.pointer, "i1", slot.lanes) for slot in partial.seen] or None
        while len(values) > 1:
            values, seen = self._fold(partial.reducer, values[0::2], values[1::2], seen)
        while values[0].lanes > 1:
            half = values[0].lanes // 2
            low, high = range(half), range(half, 2 * half)
            split = [[shuffle(f, values[0], part)] for part in (low, high)]
            if seen is not None:
                seen = [shuffle(f, seen[0], low), shuffle(f, seen[0], high)]
            values, seen = self._fold(partial.reducer, split[0], split[1], seen)
        self._store_result(partial.store, values[0], None if seen is None else seen[0], context)

    def _fold(
        self, reducer: Reducer, left: list[Value], right: list[Value], seen: list[Value] | None
    ) -> tuple[list[Value], list[Value] | None]:
        f = self._f
        totals = [self._x.combine(reducer, a, b) for a, b in zip(left, right, strict=True)]
        if seen is None:
            return totals, None
        pairs = list(zip(seen[0::2], seen[1::2], strict=True))
        chosen = [
            select(f, first, select(f, second, total, a), b)
            for total, a, b, (first, second) in zip(totals, left, right, pairs, strict=True)
        ]
        return chosen, [binary(f, "or", first, second) for first, second in pairs]

    def _store_result(self, store: Store, value: Value, seen: Value | None, context: Context) -> None:
        x = self._x
        place = x.places[store.buffer]

        def write() -> None:
            slot = x.promoted(store.buffer, store.indices, context)
            if slot is not None:
                self._store_register(store, place, slot, value, context)
                return
            indices = [x.index(index, context) for index in store.indices]
            self._store_scalar(store, place, memory.address_of(self._f, place, indices, 1), value)

        self._guarded(None if seen is None else any_lane(self._f, seen), write)
