"""Tiles of contractions: which loops they are of, how large, and how a block sums up its own.

A tile is as large as leaves enough blocks for the GPU. Tensor cores sum it up where an instruction does what the
equations say; the plan has the reason where none does. Operands come to shared memory in pieces of the sum, whose
copies run ahead in a ring where the machine copies asynchronously and shared memory has room.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import prod
from typing import Literal

from polyopt.classes import dataclass
from polyopt.codegen_cuda.cost import SECTOR_BYTES, access_bytes, length, power_above
from polyopt.codegen_cuda.instructions import ATOM_BYTES, GROUPS, Instruction, instruction_of
from polyopt.codegen_cuda.plan import Contraction, CudaNest
from polyopt.codegen_cuda.rings import MOST_SLOTS, slots_of
from polyopt.codegen_cuda.sums import start_of
from polyopt.codegen_cuda.tiles import SIDE
from polyopt.dsl.affine import Affine, axes_of
from polyopt.dsl.ir import Cast, DataIndex, Expr, Op, Pad, Read
from polyopt.dtypes import DType
from polyopt.loops.body import is_plus_zero
from polyopt.poly.roles import roles_of
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.tree import Loop, Tree, statements
from polyopt.target import GpuTarget
from polyopt.tiling.cost import axis_of
from polyopt.tiling.extents import Extents

TILES = (128, 64, 32)
"""Points along each side of a block's tile of a contraction; 256 threads have 64, 16 or 4 of them each."""

GROUP_TILE = 128, 256
"""Rows and columns of a block's tile that warps sum up four at a time: 8 of them, whose threads have 128 sums each. One
block of a multiprocessor, with copies two pieces ahead, is 15 % quicker on an H100 than two with 128 columns."""

MOST_PADDED = 1.25
"""Points of such tiles for each result: beyond it, smaller tiles are as quick."""

LEAST_BUSY = 0.65
"""Share of the multiprocessors that they keep busy, on average over their rounds: below it, smaller tiles are as quick,
of which a multiprocessor has two at a time."""

LEAST_SIDE = 8
LONG_SUM = 256
"""Points along a side from which on a tile pays, though the smallest has 32, where sums have so many terms: an operand
comes once, and not for each of its results."""

WRITTEN_OUT = 2400
"""Instructions of the points of a thread, whose sums are registers: each point is written out, and what is summed for
as many terms as come at once. Beyond it, tiles are smaller; 30,000 lines of PTX took the compiler half a minute."""

WRITTEN_AROUND = 5120
"""The same where tensor cores multiply, and threads compute nothing but what comes before and after the sum."""

TERMS = 4
"""That come at once."""

PIECE_BYTES = 64
"""Bytes along the sum of one piece of an operand: half a line of cache. Twice as many of the smallest tiles where sums
are long, since it is memory that these wait for, and twice of that where tensor cores multiply and shared memory has
room for a ring of them: 16 x 8192 x 8192 in bf16 takes an H200 39 us so, and 44 with half of it."""

ROW_PADDING = 16
"""Bytes between the rows of a copy whose columns neighboring threads read: they then lie in different banks."""

THREAD_REGISTERS = 64
"""Of a thread, beside its sums: what ptxas gives the kernels of the tests."""

BLOCK_OWN_BYTES = 1 << 10
"""Shared memory that the machine takes for each block."""

Products = Literal["split", "all", "exact", "none"]
"""Instructions of the tensor cores that may be used: also those that take operands in parts, in fast numerics; exact
ones only, where sums run in the order of their indices."""

TENSOR_CORES = (8, 0)
"""The first GPUs that have all instructions of the table."""

ASYNCHRONOUS = (8, 0)
"""The first GPUs that copy to shared memory on their own."""

ASYNCHRONOUS_BYTES = 4
"""The least that they copy so; rows must be multiples of it."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Decides about the tiles of a scop's contractions. products: instructions that may be used"""

    scop: Scop
    extents: Extents
    target: GpuTarget
    products: Products

    def nest(self, head: Loop, order: Sequence[Loop], body: Tree) -> CudaNest | None:
        """Tiles of two loops of which a contraction reads one operand along each; None where there are none."""
        for name in statements(body):
            columns = self.stored_along(order, name)
            order = [*(loop for loop in order if loop is not columns), columns]
            statement = self.scop.statement(name)
            shape, column = roles_of(statement), axis_of(columns.row(name))
            if not shape.contraction or column is None or not _has_start(statement):
                continue
            for rows in reversed(order[:-1]):
                row = axis_of(rows.row(name))
                if row is None or not any(row in r and column not in r for r in shape.reuse):
                    continue
                if any(column in r and row not in r for r in shape.reuse):
                    return self.tiled(head, order, rows, name, (row, column), self._lengths(name, statements(body)))
        return None

    def _lengths(self, update: str, names: Iterable[str]) -> tuple[int, int]:
        """Instructions of a term of the sum, and of what comes before and after the sum of a point."""
        is_open = bool(self.scop.sizes)
        lengths = {name: length(self.scop.statement(name).value, is_open=is_open) for name in names}
        return lengths[update], sum(lengths.values()) - lengths[update]

    def stored_along(self, order: Sequence[Loop], name: str) -> Loop:
        """The loop along which results are contiguous: operands come through shared memory, however they lie."""
        statement = self.scop.statement(name)
        own = self.scop.array(statement.array).dtype
        return min(reversed(order), key=lambda loop: _stride_cost(statement, own, axis_of(loop.row(name))))

    def tiled(
        self,
        head: Loop,
        order: Sequence[Loop],
        rows: Loop,
        name: str,
        axes: tuple[str, str],
        lengths: tuple[int, int],
    ) -> CudaNest | None:
        """The largest tile with enough blocks, else the smallest; none where a side has too few points, or where those
        of a thread would be too many instructions.

        lengths: instructions of a term and of the rest
        """
        columns = order[-1]
        item = self.scop.array(self.scop.statement(name).array).dtype.itemsize
        extents = self.extent(rows), self.extent(columns)
        others = prod(self.extent(loop) for loop in order if loop not in (rows, columns))
        terms = prod(self.extents.axis(name, axis) for axis in roles_of(self.scop.statement(name)).reduced)
        if power_above(min(extents)) < (LEAST_SIDE if terms >= LONG_SUM else TILES[-1]):
            return None
        term, rest = lengths
        one, _ = self._instruction(name, axes)
        most, each = (WRITTEN_OUT, TERMS * term + rest) if one is None else (WRITTEN_AROUND, rest)
        sides = [side for side in TILES if each * (side // SIDE) ** 2 <= most]
        if not sides:
            return None
        grouped, alone = self._of_four_warps(name, axes, order, rows, rest)
        found = TILES[-1], TILES[-1]
        for points in [side for side in sides if side < TILES[0] or not (item > 4 or self.scop.sizes)]:
            found = _within(points, extents[0]), _within(points, extents[1])
            if self.scop.sizes:  # neither starves a large product nor leaves a small one to few blocks
                break
            if others * _tiles(extents, found) >= self.target.sms:
                break
        if grouped is not None:
            found = GROUP_TILE
        chunks = tuple(found[0] if loop is rows else found[1] if loop is columns else 1 for loop in order)
        side, other = (loop.name.partition("#")[0] for loop in (rows, columns))
        reason = f"{side} by {other} in registers, operands in shared memory"
        if len(sides) < len(TILES) and grouped is None:
            reason += f", sides of {sides[0]} at most, as a point is {each} instructions"
        names = tuple(loop.name for loop in order)
        plan = grouped or replace(self.plan(name, axes, found), alone=alone)
        return CudaNest(head.name, "tiles", names, chunks, reason=reason, contraction=plan)

    def _of_four_warps(
        self, name: str, axes: tuple[str, str], order: Sequence[Loop], rows: Loop, rest: int
    ) -> tuple[Contraction | None, str]:
        """How a block sums up a tile by instructions of four warps, or why not, where the GPU has them.

        rest: instructions of what comes before and after the sum of a point
        """
        statement = self.scop.statement(name)
        depth = self._depth(statement)
        one, _ = self._instruction(name, axes)
        if one is None or not one.group or self.target.capability != GROUPS:
            return None, ""
        if self.scop.sizes:
            return None, "sizes are open"
        piece, reduced = ATOM_BYTES // one.left.itemsize, roles_of(statement).reduced
        pieces = -(-self.extents.axis(name, depth) // piece)
        if statement.domain.is_box():  # one ring goes through all loops of the sum
            pieces *= prod(self.extents.axis(name, axis) for axis in reduced if axis != depth)
        if pieces < MOST_SLOTS:
            return None, f"the sum has {pieces} pieces of {piece} terms, and {MOST_SLOTS} are to be under way"
        arrays = [self.scop.array(access.read.tensor) for access in statement.reads]
        if any(array.shape[-1].constant * array.dtype.itemsize % ASYNCHRONOUS_BYTES for array in arrays):
            return (
                None,
                f"threads would wait for each element of rows that are no multiple of {ASYNCHRONOUS_BYTES} bytes",
            )
        joined = self._joined(statement, axes[1], order, rows)
        if joined is None:
            return None, f"tiles of {GROUP_TILE[0]} x {GROUP_TILE[1]} would leave much of them, or of the GPU, idle"
        if MOST_SLOTS * sum(GROUP_TILE) * ATOM_BYTES > self.target.shared_bytes:
            return None, "shared memory has no room for their pieces"
        if rest * prod(GROUP_TILE) // SIDE**2 > WRITTEN_AROUND:
            return None, f"what comes before and after a sum has {rest} instructions, for each of a thread's 128"
        return Contraction(name, piece, MOST_SLOTS, one, columns=GROUP_TILE[1], joined=joined), ""

    def _joined(self, statement: Statement, column: str, order: Sequence[Loop], rows: Loop) -> int | None:
        """How many loops outside that of the rows become one with it, so that tiles of four warps fit: the fewest; None
        where they do not. What lies along the columns is to be the same in all of them."""
        place = order.index(rows)
        columns, points = self.extent(order[-1]), 1
        others = prod(self.extent(loop) for loop in order[:-1])
        fixed = {axis for access in statement.reads for axis in _axes(access.read) if column in _axes(access.read)}
        for joined in range(place + 1):
            loop = order[place - joined]
            if joined and axis_of(loop.row(statement.name)) in (None, *fixed):
                break
            points *= self.extent(loop)
            tiles = _tiles((points, columns), GROUP_TILE)
            blocks, sms = others // points * tiles, self.target.sms
            is_full = tiles * prod(GROUP_TILE) <= MOST_PADDED * points * columns
            if is_full and blocks >= LEAST_BUSY * -(-blocks // sms) * sms:
                return joined
        return None

    def _instruction(self, name: str, axes: tuple[str, str]) -> tuple[Instruction | None, str]:
        """The tensor cores' instruction for an update, or why there is none."""
        statement = self.scop.statement(name)
        return _instruction(statement, self.target, axes, self._depth(statement), self.products)

    def _depth(self, statement: Statement) -> str:
        """The longest axis of the sum."""
        return max(roles_of(statement).reduced, key=lambda axis: self.extents.axis(statement.name, axis))

    def extent(self, loop: Loop) -> int:
        return max(self.steps(name, row) for name, row in loop.rows)

    def steps(self, name: str, row: Affine) -> int:
        axis = axis_of(row) if self.scop.sizes else None
        known = None if axis is None else self.extents.known(name, axis)
        return self.extents.row(name, row) if known is None else known

    def plan(self, name: str, axes: tuple[str, str], sides: tuple[int, int]) -> Contraction:
        """How a block sums up its tile. name: the update; axes: those of the tile's sides, rows first"""
        scop, statement = self.scop, self.scop.statement(name)
        depth = self._depth(statement)
        steps = self.extents.axis(name, depth)
        item = max((scop.array(access.read.tensor).dtype.itemsize for access in statement.reads), default=4)
        is_narrow = min(sides) == TILES[-1] and steps >= LONG_SUM and not scop.sizes
        one, reason = self._instruction(name, axes)
        space, wanted = room(self.target, sides), PIECE_BYTES * (2 if is_narrow else 1)
        if is_narrow and one is not None and MOST_SLOTS * sum(sides) * 2 * wanted <= space:
            wanted *= 2
        piece = max(1, min(wanted // item, steps))
        if one is not None:
            piece = -(-piece // one.steps) * one.steps
            pieces, taken = -(-steps // piece), sum(side * piece * one.left.itemsize for side in sides)
        else:
            copies = (_copy_bytes(scop, access.read, axes, sides, depth, piece) for access in statement.reads)
            pieces, taken = steps // piece, sum(copies)
        if pieces * piece >= steps:  # one ring goes through all loops of the sum
            pieces *= prod(self.extents.axis(name, axis) for axis in roles_of(statement).reduced if axis != depth)
        slots = 1
        if self.target.capability >= ASYNCHRONOUS:
            slots = slots_of(taken, pieces, space, is_long=min(sides) >= TILES[0])
        return Contraction(name, piece, slots, one, reason)


def _has_start(statement: Statement) -> bool:
    """Whether its sum is of a kind that points beyond a nest can start, too."""
    return statement.reducer is not None and start_of(statement.reducer) is not None


def room(target: GpuTarget, sides: tuple[int, int]) -> int:
    """Shared memory that a block may take and leave a multiprocessor as many blocks as it has registers for."""
    registers = THREAD_REGISTERS + sides[0] * sides[1] // SIDE**2
    blocks = max(1, min(target.sm_threads, target.registers // registers) // SIDE**2)
    return min(target.shared_bytes, (target.shared_bytes + BLOCK_OWN_BYTES) // blocks - BLOCK_OWN_BYTES)


def _tiles(extents: tuple[int, int], sides: tuple[int, int]) -> int:
    """How many tiles cover the results."""
    return -(-extents[0] // sides[0]) * -(-extents[1] // sides[1])


def _within(side: int, extent: int) -> int:
    """A tile's side, no longer than the extent wants."""
    return max(TILES[-1], min(side, power_above(extent)))


def _stride_cost(statement: Statement, dtype: DType, axis: str | None) -> float:
    """Bytes that a result moves along an axis; those that do not change along it are no neighbors."""
    cost = access_bytes(statement.subscripts, dtype, axis)
    return cost if cost >= dtype.itemsize else SECTOR_BYTES


def _instruction(
    statement: Statement, target: GpuTarget, axes: tuple[str, str], depth: str, products: Products
) -> tuple[Instruction | None, str]:
    """The tensor cores' instruction for a sum, or why there is none."""
    reducer = statement.reducer
    factors = None if reducer is None or reducer.name != "sum" else _factors(statement.value, reducer.dtype)
    if reducer is None or factors is None:
        return None, "the sum is not one of products of two elements"
    rows = [read for read in factors if _lies_along(read, axes[0], axes[1], depth)]
    columns = [read for read in factors if _lies_along(read, axes[1], axes[0], depth)]
    if len(rows) != 1 or len(columns) != 1:
        return None, "not each factor lies along one side of the tile"
    (left,), (right,) = rows, columns
    one = instruction_of(left.dtype, right.dtype, reducer.dtype)
    if one is None:
        return None, f"none sums products of {left.dtype} and {right.dtype} as they are"
    if one.is_split and products in ("all", "exact"):
        return None, f"none sums products of {left.dtype} as they are; with numerics='fast' they come in two parts"
    if products == "exact" and not (one.is_exact and len(roles_of(statement).reduced) == 1):
        return None, "sums run in order"
    if products == "none":
        return None, "they did not fit"
    if target.capability < TENSOR_CORES:
        return None, f"{target.name} has none of this kind"
    return one, ""


def _factors(value: Expr, dtype: DType) -> tuple[Read, Read] | None:
    """The two elements that a value is the product of in a sum's dtype, to which they are converted and no other."""
    if not isinstance(value, Op) or value.name != "mul" or any(arg.dtype != dtype for arg in value.args):
        return None
    left, right = (arg.arg if isinstance(arg, Cast) else arg for arg in value.args)
    if not (isinstance(left, Read) and isinstance(right, Read)):
        return None
    return None if _is_filled(left) or _is_filled(right) else (left, right)


def _is_filled(read: Read) -> bool:
    """Whether a read gives another value than 0 outside its tensor, where copies have zeros."""
    return isinstance(read.boundary, Pad) and not is_plus_zero(read.boundary.value)


def _lies_along(read: Read, axis: str, other: str, depth: str) -> bool:
    """Whether a factor changes with one side and with the sum, each by itself, and not with the other side."""
    if any(isinstance(subscript, DataIndex) for subscript in read.subscripts):
        return False
    used = [frozenset(axes_of(subscript)) for subscript in read.subscripts if isinstance(subscript, Affine)]
    alone = [axes & {axis, depth} for axes in used]
    return not any(other in axes for axes in used) and {axis} in alone and {depth} in alone


def _axes(read: Read) -> set[str]:
    return {axis for subscript in read.subscripts if isinstance(subscript, Affine) for axis in axes_of(subscript)}


def _copy_bytes(scop: Scop, read: Read, axes: Sequence[str], sides: Sequence[int], depth: str, piece: int) -> int:
    """Bytes of a read's copy in shared memory; 0 where it gets none."""
    used = _axes(read)
    along = [side for axis, side in zip(axes, sides, strict=True) if axis in used]
    if len(along) != 1 or depth not in used or any(isinstance(subscript, DataIndex) for subscript in read.subscripts):
        return 0
    dtype = scop.array(read.tensor).dtype
    is_turned = axes[1] in used and access_bytes(read.subscripts, dtype, depth) == dtype.itemsize
    return along[0] * (piece * dtype.itemsize + (ROW_PADDING if is_turned else 0))
