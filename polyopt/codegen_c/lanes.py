"""Which vector loops run in lanes: how many lanes, and which of their stores are reductions over the lanes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from polyopt.classes import dataclass
from polyopt.codegen_c.flatten import cost_of, visible_count
from polyopt.dots import Dot, between
from polyopt.dsl.ir import Cast, Op, Var
from polyopt.dtypes import DType, bf16, f16, i32, i64
from polyopt.loops.affine import as_affine
from polyopt.loops.ir import Alloc, Expr, For, If, Load, Stmt, Store, parts_of, stores_of, uses, walk, walk_expr
from polyopt.loops.once import Once


@dataclass(frozen=True, slots=True)
class Lanewise:
    """How a vector loop runs.

    lanes:      iterations at once; 1 where something inside cannot run in lanes
    reductions: one store for each element that all lanes add to
    dot:        what multiplies and adds the lanes, group by group, of the only one
    """

    lanes: int
    reductions: tuple[Store, ...] = ()
    dot: Dot | None = None


LEAST_VECTORS = 2
"""Vectors of narrow integers that a sum must have for groups of them to pay."""

INSERTED_BITS = 128
"""Of a vector into which elements of 8 or 16 bits come one by one, as no instruction gathers them: the processor puts
them into the lower 128 bits alone. 256 K bytes through a table of 256 take 251 us with 16 lanes, and 593 with 64."""

_ONE_BY_ONE = Lanewise(1)


class LanePlanner:
    """Decides it for the loops of one program. A decision depends on the loop alone."""

    def __init__(self, vector_bits: int, dtypes: Mapping[str, DType], dots: Sequence[Dot] = ()) -> None:
        """dtypes: of every buffer of the program; dots: what the processor has for narrow integers"""
        self._vector_bits = vector_bits
        self._dtypes = dtypes
        self._dots = dots
        self._plans: Once[For, Lanewise] = Once()
        self._costs: Once[Stmt, int] = Once()

    def cost(self, statement: Stmt) -> int:
        return cost_of(statement, self._costs)

    def plan(self, loop: For) -> Lanewise:
        return self._plans(loop, self._plan)

    def _plan(self, loop: For) -> Lanewise:
        if not _has_even_bounds(loop) or any(_is_big_allocation(inner) for inner in walk(loop.body)):
            return _ONE_BY_ONE
        reductions = _reductions(loop)
        if reductions is None:
            return _ONE_BY_ONE
        dot = self._dot(loop)
        return Lanewise(self._width(loop) if dot is None else self._vector_bits // dot.left.bits, reductions, dot)

    def _dot(self, loop: For) -> Dot | None:
        """The instruction for a long sum of products of narrow integers, which is all that the loop does."""
        store = loop.body
        factors = narrow_factors(store) if isinstance(store, Store) else None
        if factors is None or not isinstance(store, Store) or (store,) != _reductions(loop):
            return None
        dot = between(self._dots, factors[0].dtype, factors[1].dtype)
        count = visible_count(loop)
        if dot is None or dot.symbol(self._vector_bits) is None or count is None:
            return None
        return dot if count >= LEAST_VECTORS * self._vector_bits // dot.left.bits else None

    def _width(self, loop: For) -> int:
        """As many elements of the widest type of the loop's values as fit in a vector register; of narrow integers that
        come one by one, as fit where these are put."""
        widest = 8
        for store in stores_of(loop):
            for dtype in (self._dtypes[store.buffer], *_value_dtypes(store.value)):
                widest = max(widest, 32 if dtype in (f16, bf16) else dtype.bits)
        for inner in walk(loop.body):
            if isinstance(inner, For) and inner.kind == "group":
                copied = (store.buffer for store in stores_of(inner) if store.reducer is None)
                widest = max([widest, *(inner.chunk * self._dtypes[buffer].bits for buffer in copied)])
        alone = [dtype.bits for dtype in self._one_by_one(loop) if dtype.bits < i32.bits and not dtype.is_float]
        bits = min(self._vector_bits, INSERTED_BITS * widest // min(alone)) if alone else self._vector_bits
        return max(1, bits // widest)

    def _one_by_one(self, loop: For) -> Iterator[DType]:
        """The dtypes of elements that each lane finds by itself: where data says, or along a diagonal."""
        for store in stores_of(loop):
            accesses = [(store.buffer, store.indices)]
            nodes = (node for expr in (store.value, *store.indices) for node in parts_of(expr))
            accesses += [(node.buffer, node.indices) for node in nodes if isinstance(node, Load)]
            for buffer, indices in accesses:
                moving = [index for index in indices if uses(index, loop.var)]
                if len(moving) > 1 or any(isinstance(node, Load) for index in moving for node in parts_of(index)):
                    yield self._dtypes[buffer]


def narrow_factors(store: Store, total: DType = i32) -> tuple[Load, Load] | None:
    """The loads whose product, converted to `total` before, a store adds."""
    match store.value:
        case Op("mul", (Cast(Load() as left), Cast(Load() as right))) if store.value.dtype == total:
            is_sum = store.reducer is not None and store.reducer.name == "sum"
            return (left, right) if is_sum else None
        case _:
            return None


def _value_dtypes(expr: Expr) -> Iterator[DType]:
    """The dtypes that computing a value takes, subscripts left out."""
    match expr:
        case Load(dtype=dtype):
            yield dtype
        case Op(args=args, dtype=dtype):
            if dtype != i64:
                yield dtype
            for arg in args:
                yield from _value_dtypes(arg)
        case Cast(arg=arg, dtype=dtype):
            yield dtype
            yield from _value_dtypes(arg)


def _has_even_bounds(loop: For) -> bool:
    """Whether the loops inside have the same number of iterations in all lanes."""
    inner_loops = [inner for inner in walk(loop.body) if isinstance(inner, For)]
    varying = {loop.var} | {inner.var for inner in inner_loops}
    bounds = (node for inner in inner_loops for bound in (inner.lower, inner.upper) for node in walk_expr(bound))
    return not any(isinstance(node, Load) or (isinstance(node, Var) and node.name in varying) for node in bounds)


def _is_big_allocation(statement: Stmt) -> bool:
    return isinstance(statement, Alloc) and statement.buffer.space != "local"


def _reductions(loop: For) -> tuple[Store, ...] | None:
    """One store for each element that the loop reduces to; None if the loop must run one by one."""
    found: dict[tuple[str, tuple[Expr, ...]], Store] = {}
    varying = {inner.var for inner in walk(loop.body) if isinstance(inner, For)}
    private = {inner.buffer.name for inner in walk(loop.body) if isinstance(inner, Alloc)}
    for store in stores_of(loop.body):
        nodes = [node for index in store.indices for node in walk_expr(index)]
        names = {node.name for node in nodes if isinstance(node, Var)}
        is_data = any(isinstance(node, Load) for node in nodes)
        if store.buffer in private or loop.var in names or (is_data and store.checks):
            continue  # an element of its own for each lane, or one that the store takes lane by lane
        if store.reducer is None or is_data or names & varying or _is_used_otherwise(store, loop.body):
            return None
        found[store.buffer, store.indices] = store
    return tuple(found.values())


def _adds_alike(one: Store, other: Store) -> bool:
    """Whether a store of the same buffer and reducer adds to the same element, or surely to another one."""
    if one.reducer != other.reducer:
        return False
    if one.indices == other.indices:
        return True
    pairs = ((as_affine(a), as_affine(b)) for a, b in zip(one.indices, other.indices, strict=True))
    apart = (a - b for a, b in pairs if a is not None and b is not None)
    return any(distance.is_constant and distance.constant != 0 for distance in apart)


def _is_used_otherwise(store: Store, body: Stmt) -> bool:
    """Whether the loop touches the buffer that it reduces to in any other way."""
    for inner in walk(body):
        expressions: tuple[Expr, ...] = ()
        if isinstance(inner, Store):
            expressions = (inner.value, *inner.indices)
            if inner.buffer == store.buffer and not _adds_alike(inner, store):
                return True
        elif isinstance(inner, If):
            expressions = (inner.condition,)
        nodes = (node for expr in expressions for node in walk_expr(expr))
        if any(isinstance(node, Load) and node.buffer == store.buffer for node in nodes):
            return True
    return False
