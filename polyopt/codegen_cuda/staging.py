"""Contractions by tiles: operands in shared memory, results in registers.

A nest whose innermost work is a sum of products reads each operand again and again. Here a block takes a tile of two
loops of the grid, each thread a smaller one whose sums stay in registers, and the sum is cut into pieces. For each
piece the block copies what its tile reads of an operand to shared memory, exactly that, zeros where the tile goes
beyond the operand's guards; threads then read the copy. Whatever a tile has beyond the nest is computed and never
stored, so that only the stores are guarded. Sources: [PPCG13] for footprints, [BLIS15] for register tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import gcd, prod
from typing import Literal

from polyopt.codegen_cuda.alignment import VECTOR_BYTES
from polyopt.codegen_cuda.contractions import ROW_PADDING
from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.codegen_cuda.plan import Contraction
from polyopt.codegen_cuda.rings import Ring
from polyopt.codegen_cuda.shapes import replaced
from polyopt.codegen_cuda.sums import Sum, exprs_of, has_loads, is_contiguous, start_of
from polyopt.codegen_cuda.tiles import SIDE, Copy, Side, below, extent
from polyopt.codegen_cuda.vectors import Vectors
from polyopt.dsl.ir import Op, Reducer, Var
from polyopt.dtypes import i64
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    If,
    Load,
    LoopKind,
    Stmt,
    Store,
    index_var,
    integer,
    substitute,
    walk_expr,
)
from polyopt.loops.scan import both

TOGETHER = 0
"""How many threads share a loop inside a thread: all of the block, which come by together."""

UNROLLED = 1024
"""Steps of a thread in a piece of the sum that are written out; one with many operations is several."""

OPERATIONS = 2
"""Of such a step: a difference and its square, say."""


class Tiler:
    """Builds the nest of one contraction."""

    _swizzle: Literal["", "lines", "atoms"] = ""

    def __init__(self, found: Sum, rows: Side, columns: Side, depth: For, vectors: Vectors, plan: Contraction) -> None:
        self._sum, self._rows, self._columns, self._depth = found, rows, columns, depth
        self._vectors = vectors
        self._fresh = vectors.fresh
        self._piece = self._fresh(f"{depth.var}_block")
        self._step = self._fresh(f"{depth.var}_own")
        self._lane = self._fresh(f"{depth.var}_lane")
        reducer = found.update.reducer
        assert reducer is not None
        self._reducer: Reducer = reducer
        self._name = self._fresh(f"{found.update.buffer}_tile")
        self._copies: dict[Load, Copy] = {}
        self._places: dict[tuple[str, str], str] = {}
        steps = extent(depth)
        self._points = plan.piece if steps is None else min(plan.piece, steps or 1)
        self._slots = plan.slots if steps is None else min(plan.slots, self._pieces() * self._rounds())
        self._slot: Expr = integer(0)
        self._lag = plan.lag

    def _pieces(self) -> int:
        """Pieces of the same size; what is left is one of its own. Only of sums whose length is known."""
        return (extent(self._depth) or 0) // self._points

    def _end(self) -> Expr:
        """Where the whole pieces end."""
        depth, size = self._depth, integer(self._points)
        if extent(depth) is not None:
            return folded("add", depth.lower, integer(self._pieces() * self._points))
        steps = folded("sub", depth.upper, depth.lower)
        if not isinstance(steps, Var):  # a size is never negative, a sum from 3 to K - 5 may have no steps
            steps = folded("maximum", steps, integer(0))
        pieces = folded("floordiv", steps, size)
        return folded("add", depth.lower, folded("mul", pieces, size))

    def _loads(self) -> list[Load]:
        return [node for node in walk_expr(self._sum.update.value) if isinstance(node, Load)]

    # --- the nest -------------------------------------------------------------------------------------------------

    def nest(self, loops: Sequence[For]) -> Stmt | None:
        self._choose_copies()
        if not self._copies:
            return None
        self._fit()
        before, after = self._ends()
        body: Stmt = Block((before, self._summed(), after))
        for copy in self._copies.values():
            body = Alloc(copy.buffer, body)
        shape = (*self._rows.shape, *self._columns.shape) or (integer(1),)
        body = Alloc(Buffer(self._name, self._reducer.dtype, shape, "local"), body)
        body = self._rows.over_threads(self._columns.over_threads(body))
        body = self._rows.over_warps(self._columns.over_warps(body))
        for loop in reversed(loops):
            own = next((side for side in (self._rows, self._columns) if side.loop is loop), None)
            if own is None:
                body = replace(loop, body=body, chunk=1)
            else:
                body = replace(loop, var=own.tile, step=own.points, body=body, chunk=1, axis=f"{loop.axis} block")
        return body

    def _fit(self) -> None:
        """Gives each thread its points."""
        self._rows = replace(self._rows, width=self._width(self._rows))

    def _width(self, side: Side) -> int:
        """Neighbors that a thread has along a side: what one access to the copies takes."""
        copies = [copy for copy in self._copies.values() if copy.side.loop is side.loop]
        if not copies or any(copy.axes[1] == self._depth.var for copy in copies):
            return 1
        return min(side.points // SIDE, *(VECTOR_BYTES // copy.buffer.dtype.itemsize for copy in copies))

    def _ends(self) -> tuple[Stmt, Stmt]:
        """What stands before and after the sum, with as many columns together as are a vector in memory."""
        self._vectors.lanes[self._columns.thread] = self._columns.lane
        self._vectors.known = {side.tile: gcd(side.points, as_number(side.loop.lower) or 0) for side in self._sides()}
        width = self._width(self._columns)
        while width > 1:
            self._columns = replace(self._columns, width=width)
            found = [
                self._vectors.spread(body, self._columns.thread, width, {self._name})
                for body in (self._started(), self._finished())
            ]
            if found[0] is not None and found[1] is not None:
                return self._over_own(found[0]), self._over_own(found[1])
            width //= 2
        self._columns = replace(self._columns, width=1)
        return self._over_own(self._started()), self._over_own(self._finished())

    def _sides(self) -> tuple[Side, Side]:
        return self._rows, self._columns

    def _over_own(self, body: Stmt) -> Stmt:
        """`body` for each point of a thread; lanes of columns are inside it."""
        return self._rows.over(self._columns.over(body, lanes=None))

    def _own(self) -> tuple[Expr, ...]:
        """The place of the first lane's sum; all there is of it where a column is alone."""
        groups = (index_var(self._columns.place),) if self._columns.groups > 1 else ()
        own = (*self._rows.own, *groups)
        return own if own or self._columns.width > 1 else (integer(0),)

    def _at_first(self) -> dict[str, Expr]:
        """The point of a thread; the first one of its columns."""
        rows, columns = self._rows, self._columns
        return {rows.loop.var: rows.global_(rows.local), columns.loop.var: columns.global_(self._column())}

    def _column(self) -> Expr:
        """A thread's place along the columns; its lanes come later."""
        return self._columns.first

    def _guarded(self, then: Stmt, otherwise: Stmt | None = None) -> Stmt:
        inside = both(self._rows.inside(self._rows.local), self._columns.inside(self._column()))
        return then if inside is None else If(inside, then, otherwise)

    def _started(self) -> Stmt:
        """The sums before anything is added."""
        neutral = start_of(self._reducer)
        assert neutral is not None, "a sum by tiles has a number to start from"
        update = self._sum.update
        nothing = Store(update.statement, (), self._name, self._own(), neutral)
        before = Block(tuple(self._pointwise(store) for store in self._sum.before))
        if not self._sum.is_started:
            kept = Load(update.buffer, self._at_point(update.indices), self._reducer.dtype)
            return self._guarded(Block((replace(nothing, value=kept), *before.body)), nothing)
        if all(store.buffer == update.buffer and not has_loads(store.value) for store in self._sum.before):
            return before
        return self._guarded(before, nothing)

    def _finished(self) -> Stmt:
        """What is done with the sums."""
        update = self._sum.update
        stores: list[Stmt] = [self._pointwise(store) for store in self._sum.rest]
        if all(buffer.name != update.buffer for buffer in self._sum.local):
            value = Load(self._name, self._own(), self._reducer.dtype)
            instance = tuple(self._at(value) for value in update.instance)
            stores.append(Store(update.statement, instance, update.buffer, self._at_point(update.indices), value))
        stores += [self._pointwise(store) for store in self._sum.after]
        body: Stmt = Block(tuple(stores))
        for buffer in self._sum.local:
            if buffer.name != update.buffer:
                body = Alloc(buffer, body)
        return self._guarded(body)

    def _pointwise(self, store: Store) -> Store:
        """A store of a point with its sum in registers."""
        buffer, indices = store.buffer, self._at_point(store.indices)
        if buffer == self._sum.update.buffer:
            buffer, indices = self._name, self._own()
        instance = tuple(self._at(value) for value in store.instance)
        return replace(store, buffer=buffer, indices=indices, value=self._at(store.value), instance=instance)

    def _at(self, expr: Expr) -> Expr:
        """An expression at a thread's point, with the sum in registers."""
        return replaced(substitute(expr, self._at_first()), self._load_of_sum)

    def _load_of_sum(self, load: Load) -> Expr | None:
        if load.buffer != self._sum.update.buffer:
            return None
        return Load(self._name, self._own(), load.dtype, load.mask)

    def _at_point(self, indices: Sequence[Expr]) -> tuple[Expr, ...]:
        return tuple(substitute(index, self._at_first()) for index in indices)

    # --- the sum --------------------------------------------------------------------------------------------------

    def _summed(self) -> Stmt:
        """The loops of the sum, the longest in pieces and innermost; a ring goes through all of them."""
        depth, size, whole = self._depth, self._points, self._end()
        if self._slots > 1 and self._rounds() > 1:
            return self._through_all(whole)
        parts: list[Stmt] = []
        if self._slots > 1:
            ring = Ring(self._piece, depth.lower, whole, size, self._slots, f"{depth.axis} block", self._lag)
            parts.append(self._ring(ring, lambda first: self._copied(size, first, ring.slot(first)), self._added))
        elif whole != depth.lower:
            body = Block((*self._copied(size), self._added(size)))
            parts.append(For(self._piece, depth.lower, whole, body, size, "serial", f"{depth.axis} block"))
        result: Stmt = Block((*parts, *self._rest(whole)))
        for loop in reversed(self._outside()):
            result = replace(loop, kind="serial", body=result)
        return result

    def _rest(self, whole: Expr) -> list[Stmt]:
        """What is left of the sum behind its whole pieces."""
        depth, steps = self._depth, extent(self._depth)
        if steps is None:
            left = Op("sub", (depth.upper, index_var(self._piece)), i64)
            parts = *self._copied(self._points, is_cut=True), self._added(self._points, left)
        elif (rest := steps - self._pieces() * self._points) > 0:
            parts = *self._copied(rest), self._added(rest)
        else:
            return []
        return [For(self._piece, whole, depth.upper, Block(parts), self._points, "serial", f"{depth.axis} rest")]

    def _ring(self, ring: Ring, copied: Callable[[Expr], Sequence[Stmt]], added: Callable[[int], Stmt]) -> Stmt:
        """A ring of the pieces' copies; what is added reads the slot of the present one."""
        self._slot = ring.slot(index_var(ring.var))
        body = added(self._points)
        self._slot = integer(0)
        return ring.around(copied, body)

    def _outside(self) -> list[For]:
        """The loops of the sum around its pieces."""
        return [loop for loop in self._sum.around if loop is not self._depth]

    def _rounds(self) -> int:
        """How often the pieces of the longest loop come, where one ring can go through all of them; 1 else."""
        if extent(self._depth) is None:
            return 1
        outside = self._outside()
        is_plain = all(loop.step == 1 and as_number(loop.lower) is not None and extent(loop) for loop in outside)
        is_whole = self._pieces() * self._points >= (extent(self._depth) or 0)
        return prod(extent(loop) or 1 for loop in outside) if is_plain and is_whole else 1

    def _through_all(self, whole: Expr) -> Stmt:
        """One ring for all loops of the sum: pieces are counted, and their places in the loops calculated."""
        depth, outside, size = self._depth, self._outside(), self._points
        last = replace(depth, var=self._piece, upper=whole, step=size, axis=f"{depth.axis} block")
        counts = [extent(loop) or 1 for loop in outside] + [self._pieces()]
        name = f"{', '.join(loop.axis for loop in (*outside, depth))} block"
        ring = Ring(self._fresh("piece"), integer(0), integer(prod(counts)), 1, self._slots, name, self._lag)

        def at(piece: Expr, body: Stmt) -> Stmt:
            below = 1
            for loop, count in reversed(list(zip((*outside, last), counts, strict=True))):
                place = folded("floordiv", piece, integer(below))
                place = place if loop is outside[0] else Op("mod", (place, integer(count)), i64)
                first = folded("add", folded("mul", place, integer(loop.step)), loop.lower)
                end = Op("add", (first, integer(loop.step)), i64)
                body = replace(loop, lower=first, upper=end, kind="serial", chunk=1, body=body)
                below *= count
            return body

        def copied(piece: Expr) -> list[Stmt]:
            return [at(piece, Block(tuple(self._copied(size, None, ring.slot(piece)))))]

        return self._ring(ring, copied, lambda size: at(index_var(ring.var), self._added(size)))

    def _added(self, size: int, end: Expr | None = None) -> Stmt:
        """What a piece adds to a thread's sums: operands go to registers first, vectors along the sum or the tile.

        end: where the piece ends, if that is before its last step
        """
        update, depth = self._sum.update, self._depth.var
        width = self._depth_width(size) if end is None else 1
        fragments = {load: self._fragment(copy, width) for load, copy in self._copies.items()}
        rows, columns = self._rows, self._columns
        place: Expr = index_var(self._step)
        if width > 1:
            place = Op("add", (place, index_var(self._lane)), i64)
        here: dict[str, Expr] = {side.loop.var: side.global_(side.local) for side in (rows, columns)}
        here[depth] = self._inner(place)
        read = {**here, **{side.loop.var: side.existing(side.local) for side in (rows, columns)}}

        def from_registers(load: Load) -> Expr:
            if load not in fragments:
                return self._where_it_exists(load)
            copy, fragment = self._copies[load], fragments[load]
            along = (index_var(self._lane),) if copy.axes[1] == depth and width > 1 else ()
            return Load(fragment.name, (*copy.side_of(rows, columns).own, *along) or (integer(0),), load.dtype)

        own = (*rows.own, *columns.own) or (integer(0),)
        value = substitute(replaced(update.value, from_registers), read)
        instance = tuple(substitute(value, here) for value in update.instance)
        body: Stmt = Store(update.statement, instance, self._name, own, value, self._reducer)
        body = rows.over(columns.over(body))
        for is_along in (False, True):
            loads = [load for load, copy in self._copies.items() if (copy.axes[1] == depth) == is_along]
            body = Block((*(self._fetched(self._copies[load], fragments[load], width) for load in loads), body))
            for load in loads:
                body = Alloc(fragments[load], body)
            if not is_along and width > 1:
                body = For(self._lane, integer(0), integer(width), body, 1, "unrolled", self._depth.axis)
        points = (rows.points // SIDE) * (columns.points // SIDE)
        operations = sum(isinstance(one, Op) for one in walk_expr(value))
        steps = size * points * -(-operations // OPERATIONS)
        kind: LoopKind = "unrolled" if steps <= UNROLLED and end is None else "serial"
        return For(self._step, integer(0), end or integer(size), body, width, kind, self._depth.axis)

    def _depth_width(self, size: int) -> int:
        """How many steps of the sum are read at once, where the copies lie along it."""
        along = [copy.buffer for copy in self._copies.values() if copy.axes[1] == self._depth.var]
        return gcd(size, *(min(4, VECTOR_BYTES // buffer.dtype.itemsize) for buffer in along)) if along else 1

    def _fragment(self, copy: Copy, width: int) -> Buffer:
        """Registers for a thread's part of a copy."""
        side = copy.side_of(self._rows, self._columns)
        along = (integer(width),) if copy.axes[1] == self._depth.var and width > 1 else ()
        shape = (*side.shape, *along) or (integer(1),)
        return Buffer(self._fresh(f"{copy.name}_own"), copy.buffer.dtype, shape, "local")

    def _fetched(self, copy: Copy, fragment: Buffer, width: int) -> Stmt:
        """From shared memory to registers."""
        side, depth = copy.side_of(self._rows, self._columns), self._depth.var
        step: Expr = index_var(self._step)
        if width > 1:
            step = Op("add", (step, index_var(self._lane)), i64)
        at = {depth: step, side.loop.var: side.local}
        value = Load(copy.buffer.name, self._in_slot(at[axis] for axis in copy.axes), copy.buffer.dtype)
        along = (index_var(self._lane),) if copy.axes[1] == depth and width > 1 else ()
        name = f"{copy.buffer.name} read"
        body: Stmt = Store(name, (), fragment.name, (*side.own, *along) or (integer(0),), value)
        if along:
            body = For(self._lane, integer(0), integer(width), body, 1, "vector", self._depth.axis)
            return side.over(body)
        return side.over(body, lanes="vector")

    def _inner(self, place: Expr, first: Expr | None = None) -> Expr:
        """A step of the sum by its place in the piece that starts at `first`."""
        return Op("add", (first or index_var(self._piece), place), i64)

    def _in_sum(self, step: Expr) -> Expr | None:
        """That a step of a piece exists; None where all do."""
        return None

    def _in_slot(self, place: Iterable[Expr], slot: Expr | None = None) -> tuple[Expr, ...]:
        """A place in a copy."""
        return ((slot or self._slot), *place) if self._slots > 1 else tuple(place)

    def _choose_copies(self) -> None:
        """The operands that some loop of the tile reads again, and the coordinates of their copies."""
        for load in dict.fromkeys(self._loads()):
            used = {n.name for e in exprs_of(load) for n in walk_expr(e) if isinstance(n, Var)}
            is_data = load.checks or any(isinstance(n, Load) for e in exprs_of(load) for n in walk_expr(e))
            sides = [side for side in (self._rows, self._columns) if side.loop.var in used]
            if is_data or len(sides) != 1 or self._depth.var not in used or not self._spreads(load, sides[0]):
                continue
            axes = [self._depth.var, sides[0].loop.var]
            if is_contiguous(load, self._depth.var):
                axes.reverse()
            buffer = self._buffer(load, (axes[0], axes[1]), sides[0])
            self._copies[load] = Copy(load.buffer, buffer, (axes[0], axes[1]), sides[0])

    def _buffer(self, load: Load, axes: tuple[str, str], side: Side) -> Buffer:
        """Shared memory for an operand's copy, which lies along the last of its axes."""
        row = self._size(axes[1]) * load.dtype.itemsize
        is_turned = axes[1] == self._depth.var and side is self._columns
        padded = row + ROW_PADDING if is_turned and not self._swizzle else row
        shape = (self._slots, self._size(axes[0]), self._size(axes[1]))
        strides = (shape[1] * padded, padded, load.dtype.itemsize)
        first = 0 if self._slots > 1 else 1
        sizes, steps = (tuple(integer(number) for number in numbers[first:]) for numbers in (shape, strides))
        return Buffer(self._fresh(f"{load.buffer}_tile"), load.dtype, sizes, "local", steps, swizzled=self._swizzle)

    def _spreads(self, load: Load, side: Side) -> bool:
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

    def _where_it_exists(self, load: Load) -> Load:
        """A load that is not copied. A point beyond the nest reads what the last one does, and no guard is needed; but
        where an index is data that is looked at, which may come from a copy and is none there."""
        mask = load.mask
        if not any(isinstance(node, Load) and node.checks for node in walk_expr(load)):
            return load
        used = {n.name for e in exprs_of(load) for n in walk_expr(e) if isinstance(n, Var)}
        for side in (self._rows, self._columns):
            if side.loop.var in used:
                mask = both(side.inside(side.local), mask)
        return replace(load, mask=mask)

    def _copied(
        self, size: int, first: Expr | None = None, slot: Expr | None = None, *, is_cut: bool = False
    ) -> list[Stmt]:
        """The copies of the piece that starts at `first`, each by all threads of the block.

        is_cut: whether the piece may end before its last step
        """
        return [self._copy(load, copy, size, first, slot, is_cut=is_cut) for load, copy in self._copies.items()]

    def _copy(self, load: Load, copy: Copy, size: int, first: Expr | None, slot: Expr | None, *, is_cut: bool) -> Stmt:
        buffer, axes = copy.buffer, copy.axes
        places = {axis: self._place(buffer.name, axis) for axis in axes}
        here: dict[str, Expr] = {}
        mask: Expr | None = None
        for axis, place in places.items():
            if axis == self._depth.var:
                here[axis] = self._inner(index_var(place), first)
                mask = both(mask, below(here[axis], self._depth, size) if is_cut else self._in_sum(here[axis]))
                continue
            side = next(side for side in (self._rows, self._columns) if side.loop.var == axis)
            here[axis] = Op("add", (index_var(side.tile), index_var(place)), i64)
            mask = both(mask, below(here[axis], side.loop, side.points))
        own = None if load.mask is None else substitute(load.mask, here)
        value = replace(load, indices=tuple(substitute(i, here) for i in load.indices), mask=both(mask, own))
        name = f"{buffer.name} copied"
        at = self._in_slot((index_var(places[axis]) for axis in axes), slot)
        body: Stmt = Store(name, (), buffer.name, at, value)
        for axis in reversed(axes):
            count = size if axis == self._depth.var else self._size(axis)
            body = For(places[axis], integer(0), integer(count), body, 1, "block", axis, TOGETHER)
        return body

    def _place(self, buffer: str, axis: str) -> str:
        """The variable of a copy's place along an axis: the same in all copies to a buffer."""
        found = self._places.get((buffer, axis))
        if found is None:
            found = self._places[buffer, axis] = self._fresh(f"{axis}_place")
        return found
