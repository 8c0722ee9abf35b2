"""Statements of a loop program as LLVM code: loops, conditions, allocations.

A serial loop first asks `registers` what it can keep in registers. A vector loop becomes whole vectors, several at
once where the body is small, and masked vectors for the rest; what cannot run in lanes runs one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import assert_never

from polyopt.codegen_c import memory
from polyopt.codegen_c.abi import SLACK_BYTES
from polyopt.codegen_c.carried import Recurrences
from polyopt.codegen_c.expressions import Context, Expressions, Flat
from polyopt.codegen_c.flatten import (
    MOST_CODE,
    MOST_PLAIN_CODE,
    Trip,
    can_be_flat,
    is_full,
    runs,
    stored_buffers,
    stretches,
    trip_of,
    unrolled_contexts,
    vector_contexts,
)
from polyopt.codegen_c.groups import Groups
from polyopt.codegen_c.lanes import LanePlanner, Lanewise
from polyopt.codegen_c.llvm_text import Value
from polyopt.codegen_c.memory import Place
from polyopt.codegen_c.registers import NOTHING, Plan, Planner
from polyopt.codegen_c.stores import Partials, Stores
from polyopt.codegen_c.values import (
    TRUE,
    Linear,
    any_lane,
    binary,
    both,
    compare,
    conjunction,
    constant,
    int64,
    lane_mask,
    linear,
    memory_scalar,
    scalar_of,
)
from polyopt.dots import Dot
from polyopt.dsl.ir import Const, Op, Var
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
    buffers_used,
    integer,
    parts_of,
    stores_of,
    walk,
    walk_expr,
)

MOST_PARTIALS = 12
"""Vectors of partial results that a loop keeps: enough for the processor to wait for none, and no more than registers
hold besides operands where there are 16."""

Workspace = Callable[[Buffer, Callable[[], None]], None]


class Statements:
    """Emits statements into one LLVM function."""

    def __init__(
        self,
        x: Expressions,
        lanes: LanePlanner,
        parallel: Callable[[For, Context], None],
        workspace: Workspace,
        dots: Sequence[Dot],
        calls: Mapping[int, Callable[[], None]],
    ) -> None:
        """parallel:  emits a parallel loop
        workspace: runs the body of an `Alloc` with a place for its buffer
        calls:     by the identity of a loop that stands elsewhere, as a function, what emits a call of it
        """
        self._x = x
        self._f = x.f
        self._lanes = lanes
        self._planner = Planner(x, lanes, calls)
        self._recurrences = Recurrences(x, lambda loop, trip, context: self._flat(loop, trip, 1, context))
        self._stores = Stores(x)
        self._groups = Groups(x, self._stores, dots)
        self._parallel = parallel
        self._workspace = workspace
        self._calls = calls
        self._partials: Partials = {}

    def statement(self, statement: Stmt, context: Context) -> None:
        self._x.forget()  # what another arm of a branch has computed is not known in this one
        match statement:
            case Block():
                self._block(statement, context)
            case For(lower=lower, upper=upper):
                self._loop(statement, context.where(lower, upper))
            case If(condition, then, otherwise):
                self._if(self._x.value(condition, context), then, otherwise, context.where(condition))
            case Alloc(buffer, body):
                if buffer.space == "workspace":
                    self._workspace(buffer, lambda: self.statement(body, context))
                    return
                self._x.places[buffer.name] = self._local(buffer, context)
                self.statement(body, context)
            case Store():
                self._stores.store(statement, context, self._partials)
            case _:
                assert_never(statement)

    def _block(self, block: Block, context: Context) -> None:
        """The statements in turn; what each takes over from the one before stays in registers where it can."""
        for run in stretches(block, self._calls, self._lanes.cost):
            plan = self._planner.plan_block(run, context)
            held = context
            if plan.promoted:
                fills_half = 2 * len(plan.promoted) >= len(self._f.module.registers)
                self._f.landmark(is_alone=fills_half)  # beside which masks of the loops around would not fit
                held = self._planner.load(plan.promoted, context)
            for inner in run.body:
                self.statement(inner, held)
            self._planner.store(plan.promoted, held)

    # --- conditions and storage ----------------------------------------------------------------------------

    def _if(self, condition: Value, then: Stmt, otherwise: Stmt | None, context: Context) -> None:
        if condition.lanes == 1:
            rest = None if otherwise is None else lambda: self.statement(otherwise, context)
            self._f.branch(condition, lambda: self.statement(then, context), rest)
            return
        self._masked(condition, then, context)
        if otherwise is not None:
            self._masked(binary(self._f, "xor", condition, constant(True, "i1")), otherwise, context)

    def _masked(self, condition: Value, statement: Stmt, context: Context) -> None:
        mask = both(self._f, context.mask, condition)
        assert mask is not None, "a condition on lanes is a mask"
        inner = replace(context, mask=mask)
        self._f.branch(any_lane(self._f, mask), lambda: self.statement(statement, inner))

    def _local(self, buffer: Buffer, context: Context) -> Place:
        extents = tuple(constant_extent(extent) for extent in buffer.shape)
        strides, count = row_major(extents)
        lanes = context.lanes
        size = buffer.dtype.itemsize
        room = max(count, 1) * lanes + SLACK_BYTES // size
        base = self._f.alloca(f"[{room} x {memory_scalar(buffer.dtype)}]", 64)
        return Place(
            buffer,
            base,
            tuple(Linear(stride * size * lanes) for stride in strides),
            tuple(Linear(extent) for extent in extents),
            size,
            lanes,
        )

    # --- loops ---------------------------------------------------------------------------------------------

    def _loop(self, loop: For, context: Context) -> None:
        if id(loop) in self._calls:
            self._calls[id(loop)]()
            return
        if loop.kind == "parallel":
            self._parallel(loop, context)
            return
        if loop.kind == "vector" and context.lanes == 1:
            lanewise = self._lanes.plan(loop)
            if lanewise.lanes > 1:
                self._vector(loop, lanewise, context)
                return
        trip = trip_of(self._x, loop, context)
        if loop.kind == "group" and self._groups.write(loop, trip, context):
            return
        flat = self._flat(loop, trip, 1, context)
        if flat is not None and self._turned(loop, trip, flat, context):
            return
        if flat is not None:
            for inner, _ in unrolled_contexts(self._x, loop, trip, flat, context):
                self.statement(loop.body, inner)
            return
        self._serial(loop, trip, context)

    def _turned(self, loop: For, trip: Trip, flat: Flat, context: Context) -> bool:
        """Writes out a loop whose lanes store across the grain, by vectors along the loop; whether it is one."""
        store, inner, x = self._x.stored_across(loop), loop.body, self._x
        if store is None or not isinstance(inner, For) or flat.partial or not flat.count or context.lanes > 1:
            return False
        lanewise = self._lanes.plan(inner)
        lanes = lanewise.lanes
        if lanes == 1 or lanewise.reductions:
            return False
        if not self._stores.can_turn(store, inner.var, lanes, flat.count, context):
            return False
        rows = [row for row, _ in unrolled_contexts(x, loop, trip, flat, context)]
        trips = [trip_of(x, inner, row) for row in rows]
        written = {self._flat(inner, one, lanes, row) for one, row in zip(trips, rows, strict=True)}
        whole = written.pop()
        if written or whole is None or whole.partial:
            return False
        vectors = (vector_contexts(x, inner, one, whole, lanes, row) for one, row in zip(trips, rows, strict=True))
        for contexts in zip(*vectors, strict=True):
            self._stores.store_turned(store, contexts)
        return True

    def _guarded(self, trip: Trip, write: Callable[[], None]) -> None:
        if trip.count is None:
            self._f.branch(runs(self._x, trip), write, kind="guard")
        elif trip.count > 0:
            write()

    def _serial(self, loop: For, trip: Trip, context: Context) -> None:
        stores = stored_buffers(loop.body)

        def whole() -> None:
            is_done = stores <= context.registers.keys()
            plan = NOTHING if is_done else self._planner.plan(loop, context, partial=False)
            if not plan.promoted:
                self._plain(loop, trip, context)
            elif not plan.needed:
                self._tiled(loop, trip, plan, context)
            else:
                rest = None if plan.is_whole else partial(self._plain, loop, trip, context)
                run = partial(self._tiled, loop, trip, plan, context)
                self._f.branch(self._all(runs, plan.needed.values()), run, rest, kind="guard")

        self._guarded(trip, lambda: self._f.region(whole, stores))

    def _tiled(self, loop: For, trip: Trip, plan: Plan, context: Context) -> None:
        """One version for full tiles, one for those at an edge."""

        def at_the_edge() -> None:
            clamped = self._planner.plan(loop, context, partial=True) if plan.is_whole else NOTHING
            if not clamped.is_whole:  # a store that goes to memory would, clamped, go there again and again
                self._plain(loop, trip, context)
                return
            run = partial(self._promoted, loop, trip, clamped, context, partial=True)
            has_triangle = any(len(trips) > 1 for trips in clamped.flat.values())
            rest = partial(self._plain, loop, trip, context) if has_triangle else None  # some rows may be empty
            self._f.branch(self._all(runs, _trips(clamped)), run, rest, kind="guard")

        full = partial(self._promoted, loop, trip, plan, context, partial=False)
        self._f.branch(self._all(is_full, _trips(plan)), full, at_the_edge, kind="split")

    def _all(self, holds: Callable[[Expressions, Trip], Value], trips: Iterable[Trip]) -> Value:
        """Whether something holds of every trip."""
        return conjunction(self._f, [holds(self._x, trip) for trip in trips]) or TRUE

    def _promoted(self, loop: For, trip: Trip, plan: Plan, context: Context, *, partial: bool) -> None:
        """The loop with its promoted elements in registers."""
        inner = self._planner.load(plan.promoted, context)
        flat = {var: Flat(trips[0].bound or 0, partial) for var, trips in plan.flat.items()}
        self._plain(loop, trip, replace(inner, flat={**context.flat, **flat}))
        self._planner.store(plan.promoted, inner)

    def serial(self, loop: For, context: Context) -> None:
        """The loop, one iteration after the other."""
        self._serial(loop, trip_of(self._x, loop, context), context)

    def iterations(self, loop: For, first: Value, last: Value, context: Context) -> None:
        """The iterations number `first` to `last` (exclusive) of a parallel loop."""
        x, f = self._x, self._f
        trip = trip_of(x, loop, context)

        def body(number: Value) -> None:
            position = trip.lower + linear(x.bounded(number)) * trip.step
            self.statement(loop.body, context.bind(loop.var, position))

        f.branch(
            compare(f, "slt", first, last),
            lambda: f.loop(first, last, 1, body, stored_buffers(loop.body)),
            kind="guard",
        )

    def _plain(self, loop: For, trip: Trip, context: Context) -> None:
        """The loop; it has at least one iteration."""
        x = self._x
        chains = self._recurrences.start(loop, trip, context)

        def body(index: Value) -> None:
            position = linear(x.bounded(index))
            inner = self._recurrences.inside(chains, loop, position - trip.lower, context)
            self.statement(loop.body, inner.bind(loop.var, position))
            self._recurrences.hand_on(chains)

        lower, upper = scalar_of(self._f, trip.lower), scalar_of(self._f, trip.upper)
        self._f.loop(lower, upper, loop.step, body, stored_buffers(loop.body))

    # --- vector loops --------------------------------------------------------------------------------------

    def _vector(self, loop: For, lanewise: Lanewise, context: Context) -> None:
        trip = trip_of(self._x, loop, context)
        lanes = lanewise.lanes
        flat = self._flat(loop, trip, lanes, context)
        if flat is not None and flat.count == 0:
            return

        def whole() -> None:
            copies = 1 if flat is not None and flat.count <= lanes else self._copies(loop, trip, lanes)
            opened = {
                (store.buffer, store.indices): self._stores.open_partial(store, lanes, copies, lanewise.dot)
                for store in lanewise.reductions
            }
            outer, self._partials = self._partials, opened
            if flat is not None:
                self._flat_vectors(loop, trip, flat, lanes, copies, context)
            elif self._can_be_flat(loop, trip, lanes, context):
                self._full_or_not(loop, trip, lanes, copies, context)
            else:
                self._vectors(loop, trip, lanes, copies, context)
            self._partials = outer
            for running in opened.values():
                self._stores.close_partial(running, context)

        if flat is not None:
            whole()
        else:
            self._guarded(trip, lambda: self._f.region(whole, stored_buffers(loop.body)))

    def _flat(self, loop: For, trip: Trip, lanes: int, context: Context) -> Flat | None:
        """How a loop is written out, one of known length by itself, another as the registers around it need it; None
        where it stays a loop. Loops side by side may have one name, and lengths of their own."""
        if trip.count is None:
            return context.flat.get(loop.var)
        return Flat(trip.count, partial=False) if self._can_be_flat(loop, trip, lanes, context) else None

    def _can_be_flat(self, loop: For, trip: Trip, lanes: int, context: Context) -> bool:
        return can_be_flat(loop, trip, lanes, self._lanes.cost(loop.body), self._most_code(loop, context))

    def _most_code(self, loop: For, context: Context) -> int:
        """The most instructions for which a loop is written out: it has to be where registers hold its values."""
        is_held = context.registers and not buffers_used(loop).isdisjoint(context.registers)
        return MOST_CODE if is_held or self._x.stored_across(loop) is not None else MOST_PLAIN_CODE

    def _flat_vectors(self, loop: For, trip: Trip, flat: Flat, lanes: int, copies: int, context: Context) -> None:
        for number, inner in enumerate(vector_contexts(self._x, loop, trip, flat, lanes, context)):
            self.statement(loop.body, replace(inner, copy=number % copies))

    def _full_or_not(self, loop: For, trip: Trip, lanes: int, copies: int, context: Context) -> None:
        """A loop over the points of a tile: written out without masks for full tiles, and with masks for others."""
        assert trip.bound is not None, "a loop that can be written out is bounded"

        def written(*, partial: bool) -> None:
            self._flat_vectors(loop, trip, Flat(trip.bound or 0, partial), lanes, copies, context)

        self._f.branch(
            is_full(self._x, trip), lambda: written(partial=False), lambda: written(partial=True), kind="split"
        )

    def _copies(self, loop: For, trip: Trip, lanes: int) -> int:
        """Vectors per iteration of the main loop."""
        cost = self._lanes.cost(loop.body)
        sums = sum(store.reducer is not None for store in stores_of(loop.body))
        copies = (4 if cost <= 24 else 2 if cost <= 64 else 1) if sums else 4 if cost <= 16 else 2 if cost <= 32 else 1
        while copies > 1 and (
            sums * copies > MOST_PARTIALS or (trip.count is not None and trip.count < lanes * copies)
        ):
            copies //= 2
        return copies

    def _vectors(self, loop: For, trip: Trip, lanes: int, copies: int, context: Context) -> None:
        """The main loop over full vectors, then masked vectors."""
        x, f = self._x, self._f
        stores = stored_buffers(loop.body)
        count = self.count(trip)
        block = lanes * copies
        main = (
            binary(f, "and", count, int64(-block))
            if count.constant is None
            else int64(int(count.constant) // block * block)
        )

        def full(first: Value) -> None:
            start = linear(x.bounded(first))
            with self._stores.last() if copies > 1 and _only_defines(loop.body) else nullcontext():
                for copy in range(copies):
                    position = start + Linear(copy * lanes)
                    self._fetch_ahead(loop, trip, position, lanes, context)
                    self._one_vector(loop, trip, position, lanes, None, copy, context)

        def masked(first: Value) -> None:
            position = linear(x.bounded(first))
            left = replace(position, lane_factor=1) - linear(count)
            mask = x.compare_to_zero("slt", left, lanes)
            self._one_vector(loop, trip, position, lanes, mask, 0, context)

        if count.constant is not None:
            self._known_vectors(loop, trip, lanes, copies, context, full)
            return
        x.bounded(count)
        x.bounded(main)
        f.branch(
            x.compare_to_zero("sgt", linear(main), 1), lambda: f.loop(int64(0), main, block, full, stores), kind="split"
        )
        rest = x.compare_to_zero("slt", linear(main) - linear(count), 1)
        if copies == 1:
            f.branch(rest, lambda: masked(main), kind="split")
        else:
            f.branch(rest, lambda: f.loop(main, count, lanes, masked, stores), kind="split")

    def _known_vectors(
        self, loop: For, trip: Trip, lanes: int, copies: int, context: Context, full: Callable[[Value], None]
    ) -> None:
        """The same for a known number of iterations: no test is left."""
        assert trip.count is not None, "the number of iterations is known"
        block = lanes * copies
        main = trip.count // block * block
        if main:
            self._f.loop(int64(0), int64(main), block, full, stored_buffers(loop.body))
        for number, first in enumerate(range(main, trip.count, lanes)):
            left = trip.count - first
            mask = lane_mask(lanes, left) if left < lanes else None
            self._one_vector(loop, trip, Linear(first), lanes, mask, number % copies, context)

    def _fetch_ahead(self, loop: For, trip: Trip, first: Linear, lanes: int, context: Context) -> None:
        """Asks for what a later vector reads of the operands that are wanted ahead."""
        places = self._x.places
        if context.mask is not None or not any(place.buffer.ahead for place in places.values()):
            return
        inner = replace(context, lanes=lanes).bind(loop.var, _position(trip, first))
        for statement, buffer, indices in dict.fromkeys(_loads_of(loop.body)):
            place = places.get(buffer)
            fetch = None if place is None else place.buffer.ahead
            parts = (part for index in indices for part in walk_expr(index))
            is_known = all(part.name in inner.env for part in parts if isinstance(part, Var))  # no loop inside moves it
            if place is None or fetch is None or fetch.reader != statement or not is_known:
                continue
            steps = fetch.further or (0,) * len(indices)
            moved = (Op("add", (i, integer(step)), i64) for i, step in zip(indices, steps, strict=True))
            forms = [self._x.index(index, inner) for index in moved]
            address = memory.address_of(self._f, place, forms, lanes)
            if address.scattered is None and address.offset.lane_factor == place.itemsize:
                self._f.prefetch(memory.pointer(self._f, address, fetch.bytes), is_near=fetch.is_near)

    def _one_vector(
        self, loop: For, trip: Trip, first: Linear, lanes: int, mask: Value | None, copy: int, context: Context
    ) -> None:
        position = _position(trip, first)
        tail = mask if context.mask is None else None
        inner = replace(context, lanes=lanes, mask=both(self._f, context.mask, mask), copy=copy, tail=tail)
        self.statement(loop.body, inner.bind(loop.var, position))

    def count(self, trip: Trip) -> Value:
        """The number of iterations; not positive where there are none."""
        if trip.count is not None:
            return int64(trip.count)
        if trip.step == 1:
            return scalar_of(self._f, trip.upper - trip.lower)
        rounded = scalar_of(self._f, trip.upper - trip.lower + Linear(trip.step - 1))
        return binary(self._f, "sdiv", rounded, int64(trip.step))


def _only_defines(body: Stmt) -> bool:
    """Whether a body stores plain values alone, and reads of what it stores to nothing but what it has just stored."""
    stores = stores_of(body)
    if any(s.reducer for s in stores) or not all(isinstance(inner, Block | Store) for inner in walk(body)):
        return False
    stored, known = {store.buffer for store in stores}, set[tuple[str, tuple[Expr, ...]]]()
    for store in stores:
        places = (part for index in store.indices for part in parts_of(index))
        for part in (*places, *parts_of(store.value)):
            if isinstance(part, Load) and part.buffer in stored and (part.buffer, part.indices) not in known:
                return False
        known.add((store.buffer, store.indices))
    return True


def _position(trip: Trip, first: Linear) -> Linear:
    """The variable of a vector loop in the vector whose first iteration has this number."""
    return replace(trip.lower + first * trip.step, lane_factor=trip.step)


def _loads_of(statement: Stmt) -> Iterator[tuple[str, str, tuple[Expr, ...]]]:
    """The elements that the values of stores are computed from, and by which statement."""
    for store in stores_of(statement):
        loads = (load for load in parts_of(store.value) if isinstance(load, Load))
        yield from ((store.statement, load.buffer, load.indices) for load in loads)


def _trips(plan: Plan) -> Iterator[Trip]:
    """Every trip of the loops that a plan writes out."""
    return (trip for trips in plan.flat.values() for trip in trips)


def constant_extent(extent: object) -> int:
    """An extent of a local buffer, which is known when the kernel is compiled."""
    assert isinstance(extent, Const), "a local buffer has constant extents"
    return int(extent.value)


def row_major(extents: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
    """Strides in elements of a C-contiguous array, and the number of its elements."""
    strides: list[int] = []
    count = 1
    for extent in reversed(extents):
        strides.append(count)
        count *= extent
    return tuple(reversed(strides)), count
