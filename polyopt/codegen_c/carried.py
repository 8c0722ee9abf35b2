"""Recurrences: what one iteration of a serial loop stores and a later one reads is in a register, too.

`for t: y[t + 1] = a * y[t] + x[t + 1]` has its last value back from memory a dozen cycles after it has stored it, and
each iteration waits for the one before: 3.6 ns an element, where the multiplication and the addition take one. Memory
gets every value all the same, so a read that is not recognised here is slow and right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, pairwise

from polyopt.classes import dataclass
from polyopt.codegen_c import conversions, memory
from polyopt.codegen_c.expressions import Context, Expressions, Flat, Key, Slot, coefficient
from polyopt.codegen_c.flatten import Trip, trip_of, unrolled_contexts
from polyopt.codegen_c.values import Linear, register_scalar
from polyopt.loops.ir import Alloc, Block, Expr, For, If, Load, Stmt, Store, parts_of, stores_of, uses

MOST_VALUES = 16
"""Values that the chains of a loop keep: eight rows of a recurrence of second order."""
MOST_DISTANCE = 4
"""Iterations that a value is kept for."""

FlatOf = Callable[[For, Trip, Context], "Flat | None"]
"""How an inner loop is written out; None where it stays a loop."""


@dataclass(frozen=True, slots=True)
class _Access:
    """An access of the first iteration.

    key:        its subscripts there
    factors:    of the loop's variable in each of them
    is_certain: every iteration makes it, once
    """

    key: Key
    factors: tuple[int, ...]
    is_certain: bool


@dataclass(frozen=True, slots=True)
class Chain:
    """Elements of a buffer of which each iteration stores one and reads the last few.

    key:     subscripts of what the first iteration stores
    factors: of the loop's variable in each of them
    slots:   of what this iteration stores, what the one before has stored, and so on
    """

    buffer: str
    key: Key
    factors: tuple[int, ...]
    slots: tuple[Slot, ...]


class Recurrences:
    """Finds and keeps the chains of serial loops in one LLVM function."""

    def __init__(self, x: Expressions, flat_of: FlatOf) -> None:
        self._x = x
        self._flat_of = flat_of

    def start(self, loop: For, trip: Trip, context: Context) -> tuple[Chain, ...]:
        """The chains of a loop that has an iteration, with what its first ones read in their slots."""
        if context.lanes > 1 or context.mask is not None or context.happens:
            return ()
        stored = {store.buffer for store in stores_of(loop.body)} - context.registers.keys()
        if not stored.intersection(_read(loop.body)):
            return ()
        stores: dict[str, list[_Access]] = {}
        loads: dict[str, list[_Access]] = {}
        lost: set[str] = set()
        first = context.bind(loop.var, trip.lower)
        for node, here, certain in self._accesses(loop.body, loop.var, first, certain=True):
            access = self._access(node, loop, here, certain) if node.buffer in stored else None
            if access is not None:
                (stores if isinstance(node, Store) else loads).setdefault(node.buffer, []).append(access)
            elif isinstance(node, Store):
                lost.add(node.buffer)
        chains: list[Chain] = []
        kept = 0
        for buffer, mine in stores.items():
            if buffer in lost or buffer not in self._x.places or not _are_apart(mine, loop.step):
                continue
            for access in dict.fromkeys(mine):
                distance = _distance(access, loads.get(buffer, ()), loop.step)
                if distance and kept + distance <= MOST_VALUES:
                    kept += distance
                    chains.append(self._opened(buffer, access, distance, loop.step))
        return tuple(chains)

    @staticmethod
    def inside(chains: Sequence[Chain], loop: For, moved: Linear, context: Context) -> Context:
        """The context of an iteration.

        moved: how far the loop's variable is from where it starts
        """
        if not chains:
            return context
        earlier = {buffer: dict(slots) for buffer, slots in context.earlier.items()}
        handed = {buffer: dict(slots) for buffer, slots in context.handed.items()}
        for chain in chains:
            handed.setdefault(chain.buffer, {})[_moved(chain.key, chain.factors, moved)] = chain.slots[0]
            for distance, slot in enumerate(chain.slots[1:], 1):
                back = moved + Linear(-distance * loop.step)
                earlier.setdefault(chain.buffer, {})[_moved(chain.key, chain.factors, back)] = slot
        return replace(context, earlier=earlier, handed=handed)

    def hand_on(self, chains: Sequence[Chain]) -> None:
        """Ends an iteration: what it has stored is that of the one before from now on."""
        f = self._x.f
        for chain in chains:
            assert chain.slots[0].pointer.text in self._x.handed_on, "each iteration stores what it hands on"
            scalar = register_scalar(self._x.places[chain.buffer].buffer.dtype)
            for newer, older in reversed(list(pairwise(chain.slots))):
                f.write(older.pointer, f.read(newer.pointer, scalar))

    def _opened(self, buffer: str, access: _Access, distance: int, step: int) -> Chain:
        f, place = self._x.f, self._x.places[buffer]
        scalar = register_scalar(place.buffer.dtype)
        slots = tuple(Slot(f.alloca(scalar, 64), 1) for _ in range(distance + 1))
        for before, slot in enumerate(slots[1:], 1):
            address = memory.address_of(f, place, _moved(access.key, access.factors, Linear(-before * step)), 1)
            stored = memory.read(f, place, address, 1, None, None)
            f.write(slot.pointer, conversions.from_memory(f, stored, place.buffer.dtype))
        return Chain(buffer, access.key, access.factors, slots)

    def _accesses(
        self, statement: Stmt, var: str, context: Context, *, certain: bool
    ) -> Iterator[tuple[Load | Store, Context | None, bool]]:
        """The accesses of an iteration, with loops that are written out written out; without a context where they
        change while it runs, or in number from one iteration to the next.

        var: the variable of the loop
        """
        match statement:
            case Block(body):
                for inner in body:
                    yield from self._accesses(inner, var, context, certain=certain)
            case Alloc(body=body):
                yield from self._accesses(body, var, context, certain=certain)
            case Store(value=value):
                yield from ((node, context, certain) for node in parts_of(value) if isinstance(node, Load))
                yield statement, context, certain
            case If(_, then, otherwise):
                for arm in (then, otherwise):
                    if arm is not None:
                        yield from self._accesses(arm, var, context, certain=False)
            case For(kind="unrolled", lower=lower, upper=upper) if _are_plain(lower, upper, but=var):
                trip = trip_of(self._x, statement, context)
                flat = self._flat_of(statement, trip, context)
                if flat is None or flat.partial:
                    yield from ((store, None, False) for store in stores_of(statement))
                    return
                for inner_context, _ in unrolled_contexts(self._x, statement, trip, flat, context):
                    yield from self._accesses(statement.body, var, inner_context, certain=certain)
            case For():
                yield from ((store, None, False) for store in stores_of(statement))

    def _access(self, node: Load | Store, loop: For, context: Context | None, certain: bool) -> _Access | None:
        """An access whose subscripts grow evenly; None for any other, and for a store that may not happen."""
        is_store = isinstance(node, Store)
        if context is None or node.checks or not _are_plain(*node.indices) or (is_store and not certain):
            return None
        factors = [coefficient(index, loop.var) for index in node.indices]
        forms = [self._x.index(index, context) for index in node.indices]
        key: Key = tuple(form for form in forms if isinstance(form, Linear))
        known = tuple(factor for factor in factors if factor is not None)
        if len(key) < len(forms) or len(known) < len(factors):
            return None
        return _Access(key, known, certain and (isinstance(node, Store) or node.mask is None))


def _moved(key: Key, factors: Sequence[int], distance: Linear) -> Key:
    """The subscripts where the loop's variable is farther by `distance`."""
    return tuple(form + distance * factor for form, factor in zip(key, factors, strict=True))


def _read(statement: Stmt) -> set[str]:
    """The buffers that stores compute their values from."""
    parts = (node for store in stores_of(statement) for node in parts_of(store.value))
    return {node.buffer for node in parts if isinstance(node, Load)}


def _are_plain(*exprs: Expr, but: str = "") -> bool:
    """Whether expressions are of loop variables, but for one, and sizes alone."""
    return not any(isinstance(node, Load) for expr in exprs for node in parts_of(expr)) and not (
        but and any(uses(expr, but) for expr in exprs)
    )


def _distance(store: _Access, loads: Sequence[_Access], step: int) -> int:
    """How many of the last iterations' values are read, each of them in every iteration."""
    if not any(store.factors):
        return 0
    read = {load.key for load in loads if load.is_certain and load.factors == store.factors}
    distance = 0
    while distance < MOST_DISTANCE and _moved(store.key, store.factors, Linear(-(distance + 1) * step)) in read:
        distance += 1
    return distance


def _are_apart(stores: Sequence[_Access], step: int) -> bool:
    """Whether stores of different subscripts never store to one element, in any two iterations."""
    return all(_is_apart(one, other, step) for one, other in combinations(dict.fromkeys(stores), 2))


def _is_apart(one: _Access, other: _Access, step: int) -> bool:
    """Whether two subscripts of one dimension differ by what no number of iterations makes up."""
    for form, factor, other_form, other_factor in zip(one.key, one.factors, other.key, other.factors, strict=True):
        difference = form - other_form
        if factor != other_factor or not difference.is_constant:
            continue
        if difference.constant % (factor * step) if factor else difference.constant:
            return True
    return False
