"""Contractions by tiles of the tensor cores: what `staging` does, with warps that multiply together.

Each warp has a part of the block's tile, and its lanes the sums that the instruction gives them: to the rest of the
nest these are a thread's points as any others, so that what stands before and after the sum is the same. The copies lie
in shared memory without padding, swizzled; beyond the sum's end they hold zeros, so that all pieces are whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from polyopt.codegen_cuda.instructions import COLUMN_LANES, COLUMN_WIDTH, COLUMNS, ROW_LANES
from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.codegen_cuda.plan import Contraction
from polyopt.codegen_cuda.shapes import replaced
from polyopt.codegen_cuda.staging import Tiler
from polyopt.codegen_cuda.sums import Sum
from polyopt.codegen_cuda.tiles import Copy, Side, below, extent
from polyopt.codegen_cuda.vectors import Vectors
from polyopt.dsl.ir import Cast, Const, Op
from polyopt.dtypes import i64
from polyopt.errors import ScheduleError
from polyopt.loops.ir import Block, Expr, For, Load, LoopKind, Stmt, Store, index_var, integer, substitute, walk

ROW_WARPS = 2
COLUMN_WARPS = 2
"""Warps along the sides of a tile: the fewer, the less each reads from shared memory for one product."""
SPLIT_COLUMN_WARPS = 4
"""The same where operands come in two parts, whose fragments would leave too few registers for the sums."""


class TensorTiler(Tiler):
    """Builds the nest of one contraction that an instruction of the tensor cores sums up.

    _is_each: whether columns are stored one by one, since they are no vectors in memory
    _is_exchanged: whether instructions leave lanes columns of one another
    """

    _swizzle: Literal["", "lines", "atoms"] = "lines"
    _kind: LoopKind = "warp"

    def __init__(self, found: Sum, rows: Side, columns: Side, depth: For, vectors: Vectors, plan: Contraction) -> None:
        super().__init__(found, rows, columns, depth, vectors, plan)
        assert plan.instruction is not None
        self._instruction = plan.instruction
        self._is_each = False
        self._is_exchanged = False
        self._points = plan.piece
        self._slots = plan.slots if extent(depth) is None else min(plan.slots, self._pieces() * self._rounds())

    def _pieces(self) -> int:
        return -(-(extent(self._depth) or 0) // self._points)

    def _end(self) -> Expr:
        depth, size = self._depth, integer(self._points)
        if extent(depth) is not None:
            return super()._end()
        steps = folded("sub", folded("add", depth.upper, integer(self._points - 1)), depth.lower)
        return folded("add", depth.lower, folded("mul", folded("floordiv", steps, size), size))

    def _rest(self, whole: Expr) -> list[Stmt]:
        return []

    def _in_sum(self, step: Expr) -> Expr | None:
        return below(step, self._depth, self._points)

    def _fit(self) -> None:
        found, one = self._loads(), self._instruction
        sides = [self._copies[load].side.loop for load in found if load in self._copies]
        value = self._sum.update.value
        factors = value.args if isinstance(value, Op) and value.name == "mul" else ()
        if not factors or not all(isinstance(f.arg if isinstance(f, Cast) else f, Load) for f in factors):
            raise ScheduleError(
                f"tensor cores cannot sum up '{self._sum.update.statement}'", why="it is no sum of products of elements"
            )
        if sorted(loop.var for loop in sides) != sorted(side.loop.var for side in self._sides()):
            raise ScheduleError(
                f"tensor cores cannot sum up '{self._sum.update.statement}'",
                why="its operands do not each lie along one side of the tile",
            )
        rows, columns = self._sides()
        down, across = self._warps()
        self._rows = self._in_warps(rows, down, ROW_LANES, one.row_width)
        self._columns = self._in_warps(columns, across, COLUMN_LANES, COLUMN_WIDTH)
        if not one.is_of_bytes:
            self._columns = replace(self._columns, half=self._fresh(f"{columns.loop.var}_half"))
            self._is_exchanged = self._exchanges()

    def _warps(self) -> tuple[int, int]:
        """Warps along the rows and along the columns of the tile."""
        across = SPLIT_COLUMN_WARPS if self._instruction.is_split else COLUMN_WARPS
        return ROW_WARPS, min(across, self._columns.points // COLUMNS)

    def _exchanges(self) -> bool:
        """Whether instructions leave lanes columns of one another."""
        return any(copy.axes[1] == self._columns.loop.var for copy in self._copies.values())

    def _in_warps(self, side: Side, warps: int, threads: int, width: int) -> Side:
        name = self._fresh(f"{side.loop.var}_warp")
        return replace(side, width=width, threads=threads, warps=warps, warp=name)

    def _in_copy(self, copy: Copy, at: Mapping[str, Expr]) -> tuple[Expr, ...]:
        """The place of a point in a slot of a copy. at: the point, by axis"""
        return tuple(at[axis] for axis in copy.axes)

    # --- before and after the sum -----------------------------------------------------------------------------------

    def _ends(self) -> tuple[Stmt, Stmt]:
        before, after = self._both_ends()
        if self._is_exchanged:
            stores = [inner for inner in walk(before) if isinstance(inner, Store)]
            if not all(isinstance(store.value, Const) for store in stores):
                before = Block((before, self._exchanged()))
            after = Block((self._exchanged(), after))
        return before, after

    def _exchanged(self) -> Stmt:
        """The sums between the lanes that store them and those whose instructions add them up."""
        lane, own = self._columns.lane, (*self._rows.own, *self._columns.own)
        kept = Store(f"{self._name} exchanged", (), self._name, own, Load(self._name, own, self._reducer.dtype))
        body = For(lane, integer(0), integer(self._columns.width), kept, 1, "exchange", lane)
        return self._rows.over(self._columns.over(body, lanes=None))

    def _both_ends(self) -> tuple[Stmt, Stmt]:
        columns = self._columns
        self._vectors.lanes[columns.thread] = columns.lane
        known = {side.tile: (as_number(side.loop.lower) == 0 and side.points) or 1 for side in self._sides()}
        self._vectors.known = {**known, columns.warp: columns.points // columns.warps, columns.half: COLUMNS // 2}
        before, after = (
            self._vectors.spread(body, columns.thread, columns.width, {self._name})
            for body in (self._started(), self._finished())
        )
        if before is not None and after is not None:
            return self._over_own(before), self._over_own(after)
        self._is_each = True
        before, after = (self._rows.over(columns.over(body)) for body in (self._started(), self._finished()))
        self._is_each = False
        return before, after

    def _column(self) -> Expr:
        return self._columns.local if self._is_each else self._columns.first

    def _own(self) -> tuple[Expr, ...]:
        return (*super()._own(), index_var(self._columns.lane)) if self._is_each else super()._own()

    # --- the sum ----------------------------------------------------------------------------------------------------

    def _added(self, size: int, end: Expr | None = None) -> Stmt:
        """What a piece adds to a warp's sums, an instruction's steps at a time; all of them, zeros at its end."""
        update, rows, columns = self._sum.update, self._rows, self._columns
        step = Op("add", (index_var(self._step), index_var(self._lane)), i64)
        here = {side.loop.var: side.global_(side.local) for side in (rows, columns)}
        here[self._depth.var] = self._inner(step)

        def from_copy(load: Load) -> Expr:
            copy = self._copies[load]
            at = {self._depth.var: step, rows.loop.var: rows.local, columns.loop.var: columns.local}
            return Load(copy.buffer.name, self._in_slot(self._in_copy(copy, at)), load.dtype)

        value = replaced(update.value, from_copy)
        instance = tuple(substitute(value, here) for value in update.instance)
        own = (*rows.own, *columns.own)
        body: Stmt = Store(update.statement, instance, self._name, own, value, self._reducer)
        steps = self._instruction.steps
        body = For(
            self._lane, integer(0), integer(steps), rows.over(columns.over(body)), 1, self._kind, self._depth.axis
        )
        return For(self._step, integer(0), integer(size), body, steps, "unrolled", self._depth.axis)
