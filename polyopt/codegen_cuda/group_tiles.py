"""Contractions by instructions that four warps of a block run together: what `tensor_tiles` does, with another layout.

The instruction takes both operands from shared memory, where they lie in atoms: 8 lines of 128 bytes, whose parts of 16
bytes are exchanged by the number of their line. A copy along the sum has a line for each point of its side; one that
lies along its side has panels of 64 points, in which every step has a line. Each warp has 16 rows of the tile and all
of its columns, in their own order, so that lanes exchange pairs of them behind the sum.
Source: [PTX], "Matrices in shared memory", the canonical layouts with a swizzle of 128 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyopt.codegen_cuda.instructions import ATOM_BYTES, ROWS
from polyopt.codegen_cuda.intervals import folded
from polyopt.codegen_cuda.rings import MOST_SLOTS
from polyopt.codegen_cuda.staging import TOGETHER
from polyopt.codegen_cuda.tensor_tiles import TensorTiler
from polyopt.codegen_cuda.tiles import Copy, Side
from polyopt.dsl.ir import Op
from polyopt.dtypes import i64
from polyopt.errors import ScheduleError
from polyopt.loops.ir import Buffer, Expr, For, Load, Stmt, Store, index_var, integer, substitute


class GroupTiler(TensorTiler):
    """Builds the nest of one contraction that instructions of four warps sum up."""

    _swizzle = "atoms"
    _kind = "warpgroup"

    def nest(self, loops: Sequence[For]) -> Stmt | None:
        if self._slots < MOST_SLOTS:
            raise ScheduleError(
                f"four warps cannot sum up '{self._sum.update.statement}'",
                why=f"its loops have {self._slots} pieces together, and a ring of them needs {MOST_SLOTS}",
            )
        return super().nest(loops)

    def _warps(self) -> tuple[int, int]:
        return self._rows.points // ROWS, 1

    def _exchanges(self) -> bool:
        return True

    def _lies_along(self, axes: tuple[str, str]) -> bool:
        """Whether a copy is contiguous along the sum."""
        return axes[1] == self._depth.var

    def _buffer(self, load: Load, axes: tuple[str, str], side: Side) -> Buffer:
        found = super()._buffer(load, axes, side)
        if self._lies_along(axes):
            return found
        item = load.dtype.itemsize
        width = ATOM_BYTES // item
        sizes = (self._slots, side.points // width, self._points, width)
        strides = (side.points * self._points * item, width * self._points * item, ATOM_BYTES, item)
        shape, steps = (tuple(integer(number) for number in numbers) for numbers in (sizes, strides))
        return replace(found, shape=shape, strides=steps)

    def _in_copy(self, copy: Copy, at: Mapping[str, Expr]) -> tuple[Expr, ...]:
        if self._lies_along(copy.axes):
            return super()._in_copy(copy, at)
        step, point = (at[axis] for axis in copy.axes)
        width = integer(ATOM_BYTES // copy.buffer.dtype.itemsize)
        return folded("floordiv", point, width), step, Op("mod", (point, width), i64)

    def _copy(self, load: Load, copy: Copy, size: int, first: Expr | None, slot: Expr | None, *, is_cut: bool) -> Stmt:
        found = super()._copy(load, copy, size, first, slot, is_cut=is_cut)
        if self._lies_along(copy.axes):
            return found
        assert isinstance(found, For) and isinstance(found.body, For) and isinstance(found.body.body, Store)
        steps, points, store = found, found.body, found.body.body
        width = ATOM_BYTES // copy.buffer.dtype.itemsize
        panel = self._place(copy.buffer.name, f"{copy.axes[1]}_panel")
        place = folded("add", folded("mul", index_var(panel), integer(width)), index_var(points.var))
        value = substitute(store.value, {points.var: place})
        at = (*store.indices[:-2], index_var(panel), index_var(steps.var), index_var(points.var))
        line = replace(points, upper=integer(width), body=replace(store, indices=at, value=value))
        count = integer(self._size(copy.axes[1]) // width)
        return For(panel, integer(0), count, replace(steps, body=line), 1, "block", copy.axes[1], TOGETHER)
