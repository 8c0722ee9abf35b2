"""Contractions by tiles: operands in shared memory, results in registers.

A nest whose innermost work is a sum of products reads each operand again and again. Here a block takes a tile of two
loops of the grid, each thread a smaller one whose sums stay in registers, and the sum is cut into pieces. For each
piece the block copies what its tile reads of an operand to shared memory, exactly that, zeros where the tile goes
beyond the operand's guards; threads then read the copy. Whatever a tile has beyond the nest is computed and never
stored, so that only the stores are guarded. Sources: [PPCG13] for footprints, [BLIS15] for register tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from polyopt.classes import dataclass
from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.dsl.ir import Cast, Const, Op, Reducer, Var
from polyopt.dtypes import bool_, i64
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
    index_var,
    integer,
    substitute,
    walk_expr,
)
from polyopt.loops.scan import both

SIDE = 16
"""Threads along each side of a block's tile."""

STAGE_BYTES = 64
"""Bytes along the sum of one piece of an operand: half a line of cache."""

TOGETHER = 0
"""How many threads share a loop inside a thread: all of the block, which come by together."""

Fresh = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class _Sum:
    """The parts of a nest's body. around: loops of the sum, outermost first; local: buffers of a point's own"""

    before: tuple[Store, ...]
    around: tuple[For, ...]
    update: Store
    after: tuple[Store, ...]
    local: tuple[Buffer, ...]


@dataclass(frozen=True, slots=True)
class _Side:
    """One loop of the tile. tile: variable of the first point; thread, place: which points are a thread's"""

    loop: For
    tile: str
    thread: str
    place: str
    points: int

    @property
    def local(self) -> Expr:
        """A point's place in the tile."""
        return Op("add", (index_var(self.thread), Op("mul", (index_var(self.place), integer(SIDE)), i64)), i64)

    @property
    def value(self) -> Expr:
        return Op("add", (index_var(self.tile), self.local), i64)

    @property
    def inside(self) -> Expr | None:
        """That a point exists; None where tiles divide the loop."""
        return _below(self.value, self.loop, self.points)


def staged(loops: Sequence[For], body: Stmt, fresh: Fresh, *, reorderable: bool) -> Stmt | None:
    """The nest by tiles of its two loops that have more than one point per block; None where it does not suit.

    reorderable: whether the loops of the sum may change places
    """
    wide = [loop for loop in loops if loop.chunk > 1]
    found = _parts(body)
    if len(wide) != 2 or found is None or not all(_is_plain(loop, loops) for loop in wide):
        return None
    depth = _tiled_loop(found, reorderable=reorderable)
    if depth is None:
        return None
    rows, columns = (
        _Side(loop, fresh(f"{loop.var}_block"), fresh(f"{side}"), fresh(f"{loop.var}_own"), loop.chunk)
        for loop, side in zip(wide, ("row", "column"))
    )
    return _Tiler(found, rows, columns, depth, fresh).nest(loops)


def _parts(body: Stmt) -> _Sum | None:
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
    while isinstance(inner, For) and inner.kind in ("serial", "unrolled"):
        around.append(inner)
        inner = inner.body
    if not isinstance(inner, Store) or inner.reducer is None or inner.checks or inner.reducer.neutral is None:
        return None
    scanned = {loop.var for loop in around}
    if any(isinstance(n, Var) and n.name in scanned for index in inner.indices for n in walk_expr(index)):
        return None
    own = {buffer.name for buffer in local}
    if any(store.buffer != inner.buffer for store in stores[: sums[0]]):
        return None  # what is made before the sum for the sum would have to be kept for each point
    if any(isinstance(node, Load) and node.buffer in own for node in walk_expr(inner.value)):
        return None
    return _Sum(stores[: sums[0]], tuple(around), inner, stores[sums[0] :], tuple(local))


def _is_plain(loop: For, loops: Sequence[For]) -> bool:
    """Whether a loop has constant bounds and unit steps."""
    return loop.step == 1 and as_number(loop.lower) is not None and as_number(loop.upper) is not None


def _tiled_loop(found: _Sum, *, reorderable: bool) -> For | None:
    """The loop of the sum that is cut into pieces: the longest, if it may become the innermost."""
    plain = [loop for loop in found.around if loop.step == 1 and _extent(loop) is not None]
    if not reorderable:
        plain = [loop for loop in plain if loop is found.around[-1]]
    used = {
        n.name for loop in found.around for e in (loop.lower, loop.upper) for n in walk_expr(e) if isinstance(n, Var)
    }
    plain = [loop for loop in plain if loop.var not in used]
    return max(plain, key=lambda loop: _extent(loop) or 0, default=None)


def _extent(loop: For) -> int | None:
    return as_number(folded("sub", loop.upper, loop.lower))


def _below(value: Expr, loop: For, points: int) -> Expr | None:
    extent = _extent(loop)
    if extent is not None and extent % points == 0:
        return None
    return Op("lt", (value, loop.upper), bool_)


class _Tiler:
    """Builds the nest of one contraction."""

    def __init__(self, found: _Sum, rows: _Side, columns: _Side, depth: For, fresh: Fresh) -> None:
        self._sum, self._rows, self._columns, self._depth = found, rows, columns, depth
        self._fresh = fresh
        self._piece = fresh(f"{depth.var}_block")
        self._step = fresh(f"{depth.var}_own")
        reducer = found.update.reducer
        assert reducer is not None
        self._reducer: Reducer = reducer
        self._sums = Buffer(fresh(f"{found.update.buffer}_tile"), reducer.dtype, self._own_shape(), "local")
        self._copies: dict[Load, tuple[Buffer, tuple[str, ...]]] = {}
        item = max((load.dtype.itemsize for load in self._loads()), default=4)
        self._points = max(1, min(STAGE_BYTES // item, _extent(depth) or 1))
        self._point_of = {rows.loop.var: rows.value, columns.loop.var: columns.value}

    def _own_shape(self) -> tuple[Expr, ...]:
        return integer(self._rows.points // SIDE), integer(self._columns.points // SIDE)

    def _loads(self) -> list[Load]:
        return [node for node in walk_expr(self._sum.update.value) if isinstance(node, Load)]

    # --- the nest -------------------------------------------------------------------------------------------------

    def nest(self, loops: Sequence[For]) -> Stmt | None:
        self._choose_copies()
        if not self._copies:
            return None
        body: Stmt = Block((self._started(), self._summed(), self._finished()))
        for buffer, _ in self._copies.values():
            body = Alloc(buffer, body)
        body = Alloc(self._sums, body)
        for side in (self._columns, self._rows):
            body = For(side.thread, integer(0), integer(SIDE), body, 1, "block", f"{side.loop.axis} in tile", SIDE)
        for loop in reversed(loops):
            own = next((side for side in (self._rows, self._columns) if side.loop is loop), None)
            if own is None:
                body = replace(loop, body=body, chunk=1)
            else:
                body = replace(loop, var=own.tile, step=own.points, body=body, chunk=1, axis=f"{loop.axis} block")
        return body

    def _over_own(self, body: Stmt) -> Stmt:
        """`body` for each point of a thread."""
        for side in (self._columns, self._rows):
            body = For(side.place, integer(0), integer(side.points // SIDE), body, 1, "unrolled", side.loop.axis)
        return body

    def _own(self) -> tuple[Expr, ...]:
        return index_var(self._rows.place), index_var(self._columns.place)

    def _guarded(self, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
        inside = both(self._rows.inside, self._columns.inside)
        return then if inside is None else If(inside, then, otherwise)

    def _started(self) -> Stmt:
        """The sums before anything is added."""
        neutral = self._reducer.neutral
        assert neutral is not None
        update = self._sum.update
        nothing = Store(update.statement, (), self._sums.name, self._own(), neutral)
        if not self._writes_sum(self._sum.before):
            kept = Load(update.buffer, self._at_point(update.indices), self._reducer.dtype)
            return self._over_own(self._guarded(replace(nothing, value=kept), nothing))
        before = Block(tuple(self._pointwise(store) for store in self._sum.before))
        if all(store.buffer == update.buffer and not _has_loads(store.value) for store in self._sum.before):
            return self._over_own(before)
        return self._over_own(self._guarded(before, nothing))

    def _writes_sum(self, stores: Sequence[Store]) -> bool:
        return any(store.buffer == self._sum.update.buffer for store in stores)

    def _finished(self) -> Stmt:
        """What is done with the sums."""
        update = self._sum.update
        stores: list[Stmt] = []
        if all(buffer.name != update.buffer for buffer in self._sum.local):
            value = Load(self._sums.name, self._own(), self._reducer.dtype)
            instance = tuple(self._at(value) for value in update.instance)
            stores.append(Store(update.statement, instance, update.buffer, self._at_point(update.indices), value))
        stores += [self._pointwise(store) for store in self._sum.after]
        body: Stmt = Block(tuple(stores))
        for buffer in self._sum.local:
            if buffer.name != update.buffer:
                body = Alloc(buffer, body)
        return self._over_own(self._guarded(body))

    def _pointwise(self, store: Store) -> Store:
        """A store of a point with its sum in registers."""
        buffer, indices = store.buffer, self._at_point(store.indices)
        if buffer == self._sum.update.buffer:
            buffer, indices = self._sums.name, self._own()
        instance = tuple(self._at(value) for value in store.instance)
        return replace(store, buffer=buffer, indices=indices, value=self._at(store.value), instance=instance)

    def _at(self, expr: Expr) -> Expr:
        """An expression at a thread's point, with the sum in registers."""
        return _replaced(substitute(expr, self._point_of), self._load_of_sum)

    def _load_of_sum(self, load: Load) -> Expr | None:
        if load.buffer != self._sum.update.buffer:
            return None
        return Load(self._sums.name, self._own(), load.dtype, load.mask)

    def _at_point(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(substitute(index, self._point_of) for index in indices)

    # --- the sum --------------------------------------------------------------------------------------------------

    def _summed(self) -> Stmt:
        """The loops of the sum, the longest in pieces and innermost."""
        depth, size = self._depth, self._points
        extent = _extent(depth)
        assert extent is not None
        whole = folded("add", depth.lower, integer(extent // size * size))
        parts: list[Stmt] = []
        if extent >= size:
            body = Block((*self._copied(size), self._added(size)))
            parts.append(For(self._piece, depth.lower, whole, body, size, "serial", f"{depth.axis} block"))
        if extent % size:
            rest = extent % size
            body = Block((*self._copied(rest), self._added(rest)))
            parts.append(For(self._piece, whole, depth.upper, body, size, "serial", f"{depth.axis} rest"))
        result: Stmt = Block(tuple(parts))
        for loop in reversed([loop for loop in self._sum.around if loop is not depth]):
            result = replace(loop, kind="serial", body=result)
        return result

    def _added(self, size: int) -> Stmt:
        """What a piece adds to a thread's sums."""
        update = self._sum.update
        here = {**self._point_of, self._depth.var: self._inner(index_var(self._step))}
        value = _replaced(update.value, self._from_copy)
        store = Store(
            update.statement,
            tuple(substitute(value, here) for value in update.instance),
            self._sums.name,
            self._own(),
            substitute(value, here),
            self._reducer,
        )
        return For(self._step, integer(0), integer(size), self._over_own(store), 1, "unrolled", self._depth.axis)

    def _inner(self, place: Expr) -> Expr:
        return Op("add", (index_var(self._piece), place), i64)

    def _choose_copies(self) -> None:
        """The operands that some loop of the tile reads again, and the coordinates of their copies."""
        for load in dict.fromkeys(self._loads()):
            used = {n.name for e in _exprs_of(load) for n in walk_expr(e) if isinstance(n, Var)}
            is_data = load.checks or any(isinstance(n, Load) for e in _exprs_of(load) for n in walk_expr(e))
            sides = [side for side in (self._rows, self._columns) if side.loop.var in used]
            if is_data or len(sides) != 1 or self._depth.var not in used or not self._spreads(load, sides[0]):
                continue
            axes = [self._depth.var, sides[0].loop.var]
            if _is_contiguous(load, self._depth.var):
                axes.reverse()
            shape = tuple(integer(self._size(axis)) for axis in axes)
            row = self._size(axes[1]) * load.dtype.itemsize
            padded = row + 16 if axes[1] == self._depth.var and sides[0] is self._columns else row
            strides = (integer(padded), integer(load.dtype.itemsize))
            buffer = Buffer(self._fresh(f"{load.buffer}_tile"), load.dtype, shape, "local", strides)
            self._copies[load] = buffer, tuple(axes)

    def _spreads(self, load: Load, side: _Side) -> bool:
        """Whether different places in the tile read different elements: else a copy has more than is needed."""
        alone = {self._depth.var: 0, side.loop.var: 0}
        for index in load.indices:
            names = {n.name for n in walk_expr(index) if isinstance(n, Var)} & alone.keys()
            if len(names) == 1:
                alone[names.pop()] += 1
        return all(alone.values())

    def _size(self, axis: str) -> int:
        if axis == self._depth.var:
            return self._points
        return next(side.points for side in (self._rows, self._columns) if side.loop.var == axis)

    def _from_copy(self, load: Load) -> Expr | None:
        if load not in self._copies:
            return self._where_it_exists(load)
        buffer, axes = self._copies[load]
        local: dict[str, Expr] = {self._depth.var: index_var(self._step)}
        local |= {side.loop.var: side.local for side in (self._rows, self._columns)}
        return Load(buffer.name, tuple(local[axis] for axis in axes), load.dtype)

    def _where_it_exists(self, load: Load) -> Load:
        """A load that is not copied, at those points of the tile that exist."""
        mask = load.mask
        used = {n.name for e in _exprs_of(load) for n in walk_expr(e) if isinstance(n, Var)}
        for side in (self._rows, self._columns):
            if side.loop.var in used:
                mask = both(side.inside, mask)
        return replace(load, mask=mask)

    def _copied(self, size: int) -> list[Stmt]:
        """The copies of a piece, each by all threads of the block."""
        return [self._copy(load, buffer, axes, size) for load, (buffer, axes) in self._copies.items()]

    def _copy(self, load: Load, buffer: Buffer, axes: tuple[str, ...], size: int) -> Stmt:
        places = {axis: self._fresh(f"{axis}_place") for axis in axes}
        here: dict[str, Expr] = {}
        mask: Expr | None = None
        for axis, place in places.items():
            if axis == self._depth.var:
                here[axis] = self._inner(index_var(place))
                continue
            side = next(side for side in (self._rows, self._columns) if side.loop.var == axis)
            here[axis] = Op("add", (index_var(side.tile), index_var(place)), i64)
            mask = both(mask, _below(here[axis], side.loop, side.points))
        own = None if load.mask is None else substitute(load.mask, here)
        value = replace(load, indices=tuple(substitute(i, here) for i in load.indices), mask=both(mask, own))
        name = f"{buffer.name} copied"
        body: Stmt = Store(name, (), buffer.name, tuple(index_var(places[axis]) for axis in axes), value)
        for axis in reversed(axes):
            count = size if axis == self._depth.var else self._size(axis)
            body = For(places[axis], integer(0), integer(count), body, 1, "block", axis, TOGETHER)
        return body


def _has_loads(expr: Expr) -> bool:
    return any(isinstance(node, Load) for node in walk_expr(expr))


def _exprs_of(load: Load) -> list[Expr]:
    return [*load.indices, *([] if load.mask is None else [load.mask])]


def _is_contiguous(load: Load, var: str) -> bool:
    """Whether neighbors along a loop are neighbors in memory."""
    if not load.indices or any(n == index_var(var) for index in load.indices[:-1] for n in walk_expr(index)):
        return False
    return any(n == index_var(var) for n in walk_expr(load.indices[-1]))


def _replaced(expr: Expr, change: Callable[[Load], Expr | None]) -> Expr:
    """The expression with loads replaced where `change` gives something else."""
    match expr:
        case Load():
            other = change(expr)
            if other is not None:
                return other
            mask = None if expr.mask is None else _replaced(expr.mask, change)
            return replace(expr, indices=tuple(_replaced(i, change) for i in expr.indices), mask=mask)
        case Op(args=args):
            return replace(expr, args=tuple(_replaced(arg, change) for arg in args))
        case Cast(arg=arg):
            return replace(expr, arg=_replaced(arg, change))
        case Const() | Var():
            return expr
