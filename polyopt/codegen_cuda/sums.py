"""What a contraction is made of: one sum of stored values, and what stands before and after it in its nest."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import takewhile

from polyopt.classes import dataclass
from polyopt.codegen_cuda.tiles import extent
from polyopt.dsl.ir import Const, Reducer, Var
from polyopt.loops.ir import Alloc, Block, Buffer, Expr, For, Load, LoopKind, Stmt, Store, index_var, walk_expr
from polyopt.poly.extract import start_value


@dataclass(frozen=True, slots=True)
class Sum:
    """The parts of a nest's body.

    before: stores to the sum's element; around: loops of the sum, outermost first; rest: stores to that element after
    the sum; after: what is done once it has its value; local: buffers of a point's own
    """

    before: tuple[Store, ...]
    around: tuple[For, ...]
    update: Store
    rest: tuple[Store, ...]
    after: tuple[Store, ...]
    local: tuple[Buffer, ...]

    @property
    def is_started(self) -> bool:
        """Whether the nest gives the element its first value, so that what was there does not matter."""
        if not self.before or self.before[0].reducer is not None:
            return False
        return all(load.buffer != self.update.buffer for load in loads_of(self.before[0].value))

    @property
    def is_alone(self) -> bool:
        """Whether nothing but the sum is added to the element after its first value."""
        added = self.before[1:] if self.is_started else self.before
        return not added and not self.rest

    def can_stay(self, buffer: Buffer) -> bool:
        """Whether the element may stay in a register of the reduction's type until all is added: each addition rounds
        to the array's type, and a sum at its end alone."""
        reducer = self.update.reducer
        return reducer is not None and (self.is_alone or reducer.dtype == buffer.dtype)


def start_of(reducer: Reducer) -> Const | None:
    """What the parts of a sum start from and change nothing by: the least number where a maximum has no `init=`; None
    for a custom reducer without one."""
    return reducer.neutral if reducer.name == "custom" else start_value(reducer)


def parts_of(body: Stmt, outermost: LoopKind = "serial") -> Sum | None:
    """The parts of a nest's body if it is one sum of stored values and what stands around it; None otherwise.

    outermost: the kind of the sum's first loop
    """
    local: list[Buffer] = []
    while isinstance(body, Alloc):
        local.append(body.buffer)
        body = body.body
    statements = body.body if isinstance(body, Block) else (body,)
    sums = [n for n, statement in enumerate(statements) if isinstance(statement, For)]
    stores = tuple(statement for statement in statements if isinstance(statement, Store))
    if len(sums) != 1 or len(stores) != len(statements) - 1:
        return None
    around: list[For] = []
    inner: Stmt = statements[sums[0]]
    while isinstance(inner, For) and inner.kind in ("serial", "unrolled", outermost if not around else "serial"):
        around.append(inner)
        inner = inner.body
    if not isinstance(inner, Store) or inner.reducer is None or inner.checks or start_of(inner.reducer) is None:
        return None
    scanned = {loop.var for loop in around}
    if any(isinstance(n, Var) and n.name in scanned for index in inner.indices for n in walk_expr(index)):
        return None
    if any(load.buffer == inner.buffer for load in loads_of(inner.value)):
        return None
    if not all(_touches_at_most(store, inner) for store in stores):
        return None
    own = {buffer.name for buffer in local}
    if any(store.buffer != inner.buffer for store in stores[: sums[0]]):
        return None  # what is made before the sum for the sum would have to be kept for each point
    if any(isinstance(node, Load) and node.buffer in own for node in walk_expr(inner.value)):
        return None
    rest = tuple(takewhile(lambda store: store.buffer == inner.buffer, stores[sums[0] :]))
    after = stores[sums[0] + len(rest) :]
    if any(store.buffer == inner.buffer for store in after):
        return None
    return Sum(stores[: sums[0]], tuple(around), inner, rest, after, tuple(local))


def _touches_at_most(store: Store, update: Store) -> bool:
    """Whether a store reads and writes no other element of the sum's array than the sum's own."""
    if store.buffer == update.buffer and (store.checks or store.indices != update.indices):
        return False
    loads = (load for load in loads_of(store.value, *store.indices) if load.buffer == update.buffer)
    return all(load.indices == update.indices for load in loads)


def tiled_loop(found: Sum, outside: Collection[str], *, reorderable: bool) -> For | None:
    """The loop of the sum that is cut into pieces: the longest, if it may become the innermost; sizes that only a call
    gives count as long.

    outside: variables of the loops around the sum
    """
    scanned = {*outside, *(loop.var for loop in found.around)}
    plain = [
        loop
        for loop in found.around
        if loop.step == 1 and (extent(loop) is not None or not scanned & _vars(loop.lower, loop.upper))
    ]
    if not reorderable:
        plain = [loop for loop in plain if loop is found.around[-1]]
    used = _vars(*(e for loop in found.around for e in (loop.lower, loop.upper)))
    if used & set(outside):
        return None  # a tile has points of several lengths
    plain = [loop for loop in plain if loop.var not in used]
    return max(plain, key=lambda loop: (extent(loop) is None, extent(loop) or 0), default=None)


def _vars(*exprs: Expr) -> set[str]:
    return {node.name for expr in exprs for node in walk_expr(expr) if isinstance(node, Var)}


def loads_of(*exprs: Expr) -> Iterator[Load]:
    return (node for expr in exprs for node in walk_expr(expr) if isinstance(node, Load))


def has_loads(expr: Expr) -> bool:
    return next(loads_of(expr), None) is not None


def exprs_of(load: Load) -> list[Expr]:
    return [*load.indices, *([] if load.mask is None else [load.mask])]


def is_contiguous(load: Load, var: str) -> bool:
    """Whether neighbors along a loop are neighbors in memory."""
    if not load.indices or any(n == index_var(var) for index in load.indices[:-1] for n in walk_expr(index)):
        return False
    return any(n == index_var(var) for n in walk_expr(load.indices[-1]))
