"""Where the threads of a block must wait for one another: between accesses of one element by different threads.

An access belongs to its own thread if its indices name the iteration of the block loops around it: the same indices
in two nests that are dealt out alike are then the same thread's. Whatever else meets in one buffer, one of them
writing, is kept apart by a barrier.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from polyopt.classes import dataclass
from polyopt.codegen_cuda.intervals import as_number
from polyopt.dsl.ir import Const, Op, Var
from polyopt.loops.ir import Expr, For, If, Load, Stmt, Store, index_var, substatements, substitute, walk_expr

LEADER = ("leader",)
"""The owner of what one thread does for all."""


@dataclass(frozen=True, slots=True)
class Touch:
    """An access of a block's threads.

    owner:   equal for two touches whose equal elements are touched by one thread; None where any thread may
    depends: variables that the owner is told by, with a period: equal owners are one thread while the variables have
             the same value, or values that lie a multiple of it apart; a period of 0 is none
    """

    buffer: str
    writes: bool
    owner: tuple[object, ...] | None
    depends: frozenset[tuple[str, int]] = frozenset()


def values_apart(loops: Iterable[For]) -> dict[str, int]:
    """For each variable, what its values in all of the loops are multiples of apart; 0 where that does not show."""
    steps: dict[str, set[tuple[int | None, int]]] = {}
    for loop in loops:
        steps.setdefault(loop.var, set()).add((as_number(loop.lower), loop.step))
    alike = {var: next(iter(found)) for var, found in steps.items() if len(found) == 1}
    return {var: alike[var][1] if var in alike and alike[var][0] is not None else 0 for var in steps}


def in_any_iteration(found: Iterable[Touch], apart: Mapping[str, int]) -> list[Touch]:
    """The touches, beside those of other iterations: any thread's where loops' variables decide whose they are.

    apart: as `values_apart` says; variables that it does not name keep their values
    """

    def moves(name: str, period: int) -> bool:
        return name in apart and not (period and apart[name] and apart[name] % period == 0)

    return [replace(touch, owner=None) if any(moves(*one) for one in touch.depends) else touch for touch in found]


def conflicts(before: Iterable[Touch], after: Iterable[Touch]) -> bool:
    """Whether one thread may touch what another one writes."""
    later = list(after)
    return any(_meet(one, other) for one in before for other in later)


def _meet(one: Touch, other: Touch) -> bool:
    if one.buffer != other.buffer or not (one.writes or other.writes):
        return False
    return one.owner is None or one.owner != other.owner


def touches(
    statement: Stmt,
    nest: Sequence[For],
    private: Collection[str],
    *,
    leader: bool = False,
    lanes: Collection[str] = (),
) -> Iterator[Touch]:
    """The accesses of what threads do inside the block loops of a nest, without buffers that are each thread's own.

    leader: one thread does all of it; lanes: variables of loops over as many neighbors as a loop around steps by
    """
    depends = frozenset(_deciding(nest))

    def touch(buffer: str, indices: tuple[Expr, ...], writes: bool) -> Touch:
        return Touch(buffer, writes, LEADER if leader else _owner(indices, nest, lanes), depends)

    for store in _stores(statement):
        found = [(store.buffer, store.indices, True)]
        if store.reducer is not None:
            found.append((store.buffer, store.indices, False))
        for expr in (store.value, *store.indices):
            found += [(load.buffer, load.indices, False) for load in walk_expr(expr) if isinstance(load, Load)]
        for buffer, indices, writes in found:
            if buffer not in private:
                yield touch(buffer, indices, writes)
    for condition in _conditions(statement):
        for load in walk_expr(condition):
            if isinstance(load, Load) and load.buffer not in private:
                yield touch(load.buffer, load.indices, False)


def _deciding(nest: Sequence[For]) -> Iterator[tuple[str, int]]:
    """What `Touch.depends` says of the threads of a nest: variables around it that decide where its loops start."""
    own = {loop.var for loop in nest}
    for loop in nest:
        names = {node.name for node in walk_expr(loop.lower) if isinstance(node, Var)} - own
        for name in names:
            yield name, loop.step * loop.chunk if _is_shifted(loop.lower, name, ()) else 0


def _owner(indices: tuple[Expr, ...], nest: Sequence[For], lanes: Collection[str]) -> tuple[object, ...] | None:
    if not nest:
        return None
    names = {loop.var: index_var(f"thread {depth}") for depth, loop in enumerate(nest)}
    if not all(any(_is_shifted(index, loop.var, lanes) for index in indices) for loop in nest):
        return None
    dealt = tuple((loop.lower, loop.step, loop.chunk) for loop in nest)
    here = {**dict.fromkeys(lanes, index_var("lane")), **names}
    return (dealt, tuple(substitute(index, dict(here)) for index in indices))


def _is_shifted(index: Expr, var: str, lanes: Collection[str]) -> bool:
    """Whether an index is the variable, plus or minus a constant, or plus the place in a vector."""
    match index:
        case Var(name):
            return name == var
        case Op("add" | "sub", (left, Const())):
            return _is_shifted(left, var, lanes)
        case Op("add", (left, Var(lane))) if lane in lanes:
            return _is_shifted(left, var, lanes)
        case _:
            return False


def _stores(statement: Stmt) -> Iterator[Store]:
    if isinstance(statement, Store):
        yield statement
    for inner in substatements(statement):
        yield from _stores(inner)


def _conditions(statement: Stmt) -> Iterator[Expr]:
    if isinstance(statement, If):
        yield statement.condition
    for inner in substatements(statement):
        yield from _conditions(inner)
