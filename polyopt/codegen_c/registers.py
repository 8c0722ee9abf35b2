"""Scalar replacement: which elements stay in registers while a serial loop runs.

An element of a buffer is promoted when every access to the buffer in the loop is to an element that the loop does
not move: its subscripts know neither the loop's variable nor that of a loop inside which is not written out. A
matmul's `for k { for i unrolled { for j vector { C[i, j] += A[i, k] * B[k, j] }}}` promotes the whole tile of C.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import replace

from polyopt.classes import dataclass
from polyopt.codegen_c import conversions, memory
from polyopt.codegen_c.expressions import Context, Expressions, Flat, Key, Slot, mentioned
from polyopt.codegen_c.flatten import (
    Trip,
    can_be_flat,
    stored_buffers,
    trip_of,
    unrolled_contexts,
    vector_contexts,
    visible_count,
)
from polyopt.codegen_c.lanes import LanePlanner
from polyopt.codegen_c.llvm_text import Value, vector_type
from polyopt.codegen_c.memory import Place
from polyopt.codegen_c.values import Linear, conjunction, int64, intrinsic, linear, register_scalar, scalar_of
from polyopt.loops.ir import Alloc, Block, Expr, For, If, Load, Stmt, Store, buffers_used, parts_of
from polyopt.loops.once import Once

MOST_SLOTS = 64


@dataclass(frozen=True, slots=True)
class Access:
    """An access to a buffer while a loop runs.

    context:     of the iteration; None where the subscripts change as the loop runs
    happens:     the condition on which it happens in a partial tile
    is_certain:  it happens in every iteration of the loop (that condition aside)
    sets:        it stores a value that does not depend on what was there
    """

    buffer: str
    indices: tuple[Expr, ...]
    context: Context | None
    happens: Value | None
    is_certain: bool
    sets: bool = False


@dataclass(frozen=True, slots=True)
class Promoted:
    """An element, or a vector of them, that stays in a register.

    is_set:  it is stored before it is read
    clamped: it may be none of the buffer where the loop does not touch it; another one is then read and written back
    """

    buffer: str
    key: Key
    lanes: int
    mask: Value | None
    happens: Value | None
    is_set: bool = False
    clamped: bool = False


@dataclass(frozen=True, slots=True)
class Plan:
    """What one loop keeps in registers.

    flat:     the loops inside that must be written out for it, with unknown numbers of iterations: their trips, one for
              each iteration of the loops around that are written out; all of one bound
    needed:   serial loops inside of which each must run at least once for it
    is_whole: every store of the loop goes to a register, from inside all loops of `flat` and `needed`
    """

    promoted: tuple[Promoted, ...]
    flat: dict[str, tuple[Trip, ...]]
    needed: dict[str, Trip]
    is_whole: bool


NOTHING = Plan((), {}, {}, False)


class Planner:
    """Looks for promotable elements."""

    def __init__(self, x: Expressions, lanes: LanePlanner, calls: Container[int]) -> None:
        """calls: the loops that are called, by identity"""
        self._x = x
        self._lanes = lanes
        self._calls = calls

    def plan(self, loop: For, context: Context, *, partial: bool) -> Plan:
        """What `loop` keeps in registers; nothing if `promoted` is empty.

        partial: for loops that may have fewer iterations than they are written out for
        """
        return self._plan(loop.body, frozenset({loop.var}), context, partial=partial)

    def plan_block(self, block: Block, context: Context) -> Plan:
        """What stays in registers from statement to statement of a block; nothing where a number of iterations is open.

        A sum is set to zero, added up in a loop and used in place, all of it in registers.
        """
        if not hands_on(block, context.registers):
            return NOTHING
        left = self._stored_across(block) | context.handed.keys()  # these go to memory and to a register of their own
        plan = self._plan(block, frozenset(), context, partial=False, left=left)
        return NOTHING if plan.flat or plan.needed else plan

    def _stored_across(self, block: Block) -> frozenset[str]:
        """The buffers that one statement of a block alone touches, whose written-out rows store runs of what lanes have
        apart: blocks of them turn in registers as they are stored."""
        found: set[str] = set()
        for inner in block.body:
            store = self._x.stored_across(inner) if isinstance(inner, For) else None
            others = (buffers_used(other) for other in block.body if other is not inner)
            if store is not None and not any(store.buffer in used for used in others):
                found.add(store.buffer)
        return frozenset(found)

    def _plan(
        self,
        body: Stmt,
        moving: frozenset[str],
        context: Context,
        *,
        partial: bool,
        left: frozenset[str] = frozenset(),
    ) -> Plan:
        walker = _Walker(self._x, self._lanes, body, moving, self._calls, partial)
        accesses = list(walker.statement(body, context, None, certain=True))
        stored = stored_buffers(body) - left
        promoted: list[Promoted] = []
        for buffer in sorted(stored - set(context.registers)):
            mine = [access for access in accesses if access.buffer == buffer]
            promoted.extend(self._promotable(buffer, mine, context) or ())
        kept = {element.buffer for element in promoted}
        is_whole = stored - set(context.registers) == kept and walker.is_one_nest
        if len(promoted) > MOST_SLOTS or not walker.is_consistent or not promoted:
            return NOTHING
        return Plan(tuple(promoted), walker.edges, walker.needed, is_whole)

    def _promotable(self, buffer: str, accesses: list[Access], context: Context) -> list[Promoted] | None:
        place = self._x.places.get(buffer)
        if place is None or any(access.context is None for access in accesses):
            return None
        if place.buffer.space != "local" and not all(access.is_certain for access in accesses):
            return None
        elements: dict[Key, Promoted] = {}
        touched: set[Key] = set()
        for access in accesses:
            assert access.context is not None, "checked above"
            unclamped = access.context.unclamped
            indices = [self._x.index(index, unclamped) for index in access.indices]
            key: Key = tuple(index for index in indices if isinstance(index, Linear))
            if len(key) < len(indices):
                return None
            is_vector = any(form.lane_factor for form in key)
            lanes = access.context.lanes if is_vector else 1
            mask = access.context.mask if is_vector else None
            is_set = access.sets and access.is_certain and access.happens is None
            element = Promoted(buffer, key, lanes, mask, access.happens, is_set)
            both = _both(elements.get(key, element), element)
            if both is None:
                return None
            elements[key] = both
            if access.is_certain:
                touched.add(key)
        found = list(elements.values())
        if not are_disjoint(found):
            return None
        unsure = [element for element in found if element.key not in touched and not _is_inside(element, place)]
        if not unsure:
            return found
        return [replace(found[0], clamped=True)] if len(found) == 1 and found[0].lanes == 1 else None

    def load(self, promoted: tuple[Promoted, ...], context: Context) -> Context:
        """Reads the elements into registers, but those that are set first; the context in which they live there."""
        registers = {buffer: dict(slots) for buffer, slots in context.registers.items()}
        f = self._x.f
        for element in promoted:
            place = self._x.places[element.buffer]
            scalar = register_scalar(place.buffer.dtype)
            pointer = f.alloca(vector_type(scalar, element.lanes), 64)
            slot = Slot(pointer, element.lanes, element.mask, element.happens)
            registers.setdefault(element.buffer, {})[element.key] = slot
            if element.is_set:
                continue
            address = memory.address_of(f, place, self._key(element, place), element.lanes)
            stored = memory.read(f, place, address, element.lanes, element.mask, element.happens)
            f.write(slot.pointer, conversions.from_memory(f, stored, place.buffer.dtype))
        return replace(context, registers=registers)

    def store(self, promoted: tuple[Promoted, ...], context: Context) -> None:
        """Writes the registers back."""
        for element in promoted:
            place = self._x.places[element.buffer]
            slot = context.registers[element.buffer][element.key]
            self._store_one(place, element, slot)

    def _key(self, element: Promoted, place: Place) -> Key:
        if not element.clamped:
            return element.key
        return tuple(self._clamped(form, extent) for form, extent in zip(element.key, place.extents, strict=True))

    def _clamped(self, form: Linear, extent: Linear) -> Linear:
        """The index nearest to `form` that a dimension has."""
        if extent.is_constant and extent.constant == 1:
            return Linear()
        f = self._x.f
        last = scalar_of(f, extent + Linear(-1))
        return linear(intrinsic(f, "smax", intrinsic(f, "smin", scalar_of(f, form), last), int64(0)))

    def _store_one(self, place: Place, element: Promoted, slot: Slot) -> None:
        f = self._x.f

        def write() -> None:
            value = f.read(slot.pointer, register_scalar(place.buffer.dtype), slot.lanes)
            address = memory.address_of(f, place, self._key(element, place), element.lanes)
            memory.write(
                f, place, address, element.lanes, element.mask, conversions.to_memory(f, value, place.buffer.dtype)
            )

        if element.happens is None:
            write()
        else:
            f.branch(element.happens, write)


def _is_inside(element: Promoted, place: Place) -> bool:
    """Whether an element is one of the buffer's as its subscripts stand, whatever the loop does."""
    return all(
        not form.terms
        and extent.is_constant
        and min(form.constant, form.constant + form.lane_factor * (element.lanes - 1)) >= 0
        and max(form.constant, form.constant + form.lane_factor * (element.lanes - 1)) < extent.constant
        for form, extent in zip(element.key, place.extents, strict=True)
    )


def _both(one: Promoted, other: Promoted) -> Promoted | None:
    """The element for two accesses, the first of which is `one`: all lanes, and always, where one of them takes all and
    always happens. None where neither covers the other, or their vectors differ."""
    if one.lanes != other.lanes:
        return None
    if _covers(one, other):
        return one
    return replace(other, is_set=False) if _covers(other, one) else None


def _covers(element: Promoted, inner: Promoted) -> bool:
    return element.mask in (None, inner.mask) and element.happens in (None, inner.happens)


def are_disjoint(elements: list[Promoted]) -> bool:
    """Whether different keys are surely different elements: they differ by constants that keep vectors apart."""
    if not elements:
        return True
    first = elements[0]
    for element in elements[1:]:
        for form, other in zip(element.key, first.key, strict=True):
            if form.terms != other.terms or form.lane_factor != other.lane_factor or element.lanes != first.lanes:
                return False
            width = abs(form.lane_factor) * element.lanes
            if width and (form.constant - other.constant) % width:
                return False
    return sum(bool(form.lane_factor) for form in first.key) <= 1


def hands_on(block: Block, registers: Container[str] = ()) -> bool:
    """Whether registers may keep elements from statement to statement of a block: some of them store to one buffer, and
    a serial loop is among them.

    registers: buffers that are in registers already
    """
    stored = [{name for name in stored_buffers(inner) if name not in registers} for inner in block.body]
    for number, inner in enumerate(block.body):
        others = set().union(*stored[:number], *stored[number + 1 :])
        if isinstance(inner, For) and inner.kind == "serial" and stored[number] & others:
            return True
    return False


class _Walker:
    """Enumerates the accesses inside a loop, with loops that can be written out written out."""

    def __init__(
        self,
        x: Expressions,
        lanes: LanePlanner,
        body: Stmt,
        moving: frozenset[str],
        calls: Container[int],
        partial: bool,
    ) -> None:
        """moving: variables that change while the statement runs, besides those of its own loops
        calls: the loops that are called, by identity"""
        self._x = x
        self._lanes = lanes
        self._moving = {*moving}
        self._calls = calls
        self._local: set[str] = set()
        self._stored = stored_buffers(body)
        self._loads: Once[Expr, list[Load]] = Once()
        self._names: Once[Expr, set[str]] = Once()
        self._partial = partial
        self.edges: dict[str, tuple[Trip, ...]] = {}
        self.needed: dict[str, Trip] = {}
        self._has_one_trip = True
        self._kept: set[str] = set()
        self._nests: set[frozenset[str]] = set()

    @property
    def is_consistent(self) -> bool:
        """Whether loops side by side that have one name can be written alike: what is planned goes by their names."""
        return self._has_one_trip and self._kept.isdisjoint(self.edges)

    @property
    def is_one_nest(self) -> bool:
        """Whether each store is inside all the loops whose number of iterations is not known."""
        return all(nest == {*self.edges, *self.needed} for nest in self._nests)

    def statement(
        self,
        statement: Stmt,
        context: Context,
        happens: Value | None,
        *,
        certain: bool,
        nest: frozenset[str] = frozenset(),
    ) -> Iterator[Access]:
        match statement:
            case Block(body):
                for inner in body:
                    yield from self.statement(inner, context, happens, certain=certain, nest=nest)
            case For():
                yield from self._loop(statement, context, happens, certain=certain, nest=nest)
            case If(condition, then, otherwise):
                yield from self._reads(condition, context, happens, certain)
                for arm in (then, otherwise):
                    if arm is not None:
                        yield from self.statement(arm, context, happens, certain=False, nest=nest)
            case Alloc(buffer, body):
                self._local.add(buffer.name)
                yield from self.statement(body, context, happens, certain=certain, nest=nest)
            case Store():
                self._nests.add(nest)
                yield from self._store(statement, context, happens, certain)

    def _loop(
        self, loop: For, context: Context, happens: Value | None, *, certain: bool, nest: frozenset[str]
    ) -> Iterator[Access]:
        yield from self._reads(loop.lower, context, happens, certain)
        yield from self._reads(loop.upper, context, happens, certain)
        if loop.kind == "parallel" or id(loop) in self._calls:
            yield from (replace(access, context=None) for access in self._inside(loop, context))
            return
        trip = None if self._moves(loop.lower) or self._moves(loop.upper) else trip_of(self._x, loop, context)
        if trip is not None and can_be_flat(loop, trip, self._width(loop, context), self._lanes.cost(loop.body)):
            assert trip.bound is not None, "a loop that can be written out is bounded"
            if trip.count is None:
                self._has_one_trip &= self._add_edge(loop.var, trip)
                nest = nest | {loop.var}
            flat = Flat(trip.bound, partial=self._partial and trip.count is None)
            yield from self._flat_loop(
                loop, trip, flat, context, happens, certain=certain and trip.bound > 0, nest=nest
            )
            return
        self._moving.add(loop.var)
        if trip is None or trip.count is None:
            self._kept.add(loop.var)
        if trip is not None and trip.count is None:
            self._has_one_trip &= self.needed.setdefault(loop.var, trip) == trip
            nest = nest | {loop.var}
        runs = trip.count != 0 if trip is not None else bool(visible_count(loop)) and loop.kind == "group"
        yield from self.statement(loop.body, context, happens, certain=certain and runs, nest=nest)

    def _add_edge(self, var: str, trip: Trip) -> bool:
        """Notes one more trip of a loop that is to be written out; whether it can be, as its other trips are."""
        known = self.edges.get(var, ())
        if trip not in known:
            self.edges[var] = (*known, trip)
        return all(other.bound == trip.bound and other.step == trip.step for other in known)

    def _flat_loop(
        self,
        loop: For,
        trip: Trip,
        flat: Flat,
        context: Context,
        happens: Value | None,
        *,
        certain: bool,
        nest: frozenset[str],
    ) -> Iterator[Access]:
        lanes = self._width(loop, context)
        if lanes > 1:
            for inner in vector_contexts(self._x, loop, trip, flat, lanes, context):
                yield from self.statement(loop.body, inner, happens, certain=certain, nest=nest)
            return
        for inner, here in unrolled_contexts(self._x, loop, trip, flat, context):
            condition = conjunction(self._x.f, [happens, here])
            yield from self.statement(loop.body, inner, condition, certain=certain, nest=nest)

    def _inside(self, loop: For, context: Context) -> Iterator[Access]:
        """The accesses of a loop that another function runs, which sees no register of this one."""
        self._moving.add(loop.var)
        yield from self.statement(loop.body, context, None, certain=False)

    def _width(self, loop: For, context: Context) -> int:
        return self._lanes.plan(loop).lanes if loop.kind == "vector" and context.lanes == 1 else 1

    def _store(self, store: Store, context: Context, happens: Value | None, certain: bool) -> Iterator[Access]:
        for index in store.indices:
            yield from self._reads(index, context, happens, certain)
        yield from self._reads(store.value, context, happens, certain)
        yield self._access(store, context, happens, certain)

    def _reads(self, expr: Expr, context: Context, happens: Value | None, certain: bool) -> Iterator[Access]:
        for load in self._loads_of(expr):
            yield self._access(load, context, happens, certain)

    def _loads_of(self, expr: Expr) -> list[Load]:
        """Of what is stored while the loop runs."""

        def find(expr: Expr) -> list[Load]:
            return [inner for inner in parts_of(expr) if isinstance(inner, Load) and inner.buffer in self._stored]

        return self._loads(expr, find)

    def _access(self, access: Load | Store, context: Context, happens: Value | None, certain: bool) -> Access:
        is_plain = not access.checks and (isinstance(access, Store) or access.mask is None)
        moves = not is_plain or access.buffer in self._local or any(self._moves(index) for index in access.indices)
        sets = isinstance(access, Store) and access.reducer is None
        return Access(access.buffer, access.indices, None if moves else context, happens, certain, sets)

    def _moves(self, expr: Expr) -> bool:
        """Whether an expression may change while the loop runs."""
        return bool(self._loads_of(expr)) or not self._moving.isdisjoint(self._names(expr, mentioned))
