"""The register tile of a contraction: which axis becomes lanes, which one rows, and how many of each.

Read off the access relations alone. An operand that does not know the rows is loaded once for all of them, one that
does not know the lanes is broadcast, and one that knows both is loaded anew for every vector of the tile. The tile
that does most multiply-adds per cycle wins: a cycle has two of them and two loads, a chain of additions waits for
the one before it, and the last tiles of an axis, with the rows and vectors that are left, take their own time; of an
operand from behind the second cache whole rows come faster than pieces of them. Sources:
[BLIS15], section 3, for tiles out of operand reuse; windows, batches and sums over several axes need nothing more.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from polyopt import microkernel, picks
from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, AxisRef, axes_of
from polyopt.dsl.ir import Read, Subscript
from polyopt.microkernel import MOST_ROWS, MOST_VECTORS, PAGE_BYTES, Operand
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Statement
from polyopt.target import Target
from polyopt.tiling.cost import moves
from polyopt.tiling.extents import Extents

UNFORESEEN = 20.0
"""Cycles until a row from behind the second cache arrives, where a tile takes a piece of it and goes on to the next:
for each piece, since no prefetcher foresees it (measured on AVX-512, of batches of 64 x 64 and of 64 x 8192)."""

TILES_PASS = 32
"""Rows from behind the second cache that tiles take pieces of before the next rows come, where all tiles pass by them:
so few that what was read ahead is still near, so many that sums are seldom taken up again (measured
on AVX-512: 16 and 64 are slower)."""

LEAST_BLOCK = 512
"""Columns of a block of sums that stays near while rows pass by: long enough to read an operand in runs."""

PANELS_PASS = 64
"""The same rows where a block of sums stays in the second cache, not in the first: panels of so many rows stay near
while all sums of their columns take them in (measured on AVX-512: 32 are slower, and 128 where rows start pages)."""

ROWS = 8
"""Of a register tile, about, that read a line of the operand from the second cache together."""

SUM = 3.75
"""Cycles to take up a vector of sums that lies in the second cache, and to put it back (measured on AVX-512)."""

COPY = 12.0
"""Cycles to copy a cache line to where it lies densely. Of one that comes from memory a half is the wait for it."""

EDGE = 0.003
"""Share of its speed that a tile must gain for the code of tiles at an edge, which is compiled too."""


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """Accumulators that stay in registers while the sums run.

    rows:     the axis of the rows; None for a tile of one row
    lanes:    the axis along which vectors lie
    height:   rows
    columns:  points along `lanes`, whole vectors of them
    loads:    per multiply-add
    speed:    share of the processor's multiply-adds that the tile reaches at best, edges included
    is_whole: the tile takes whole rows of an operand that comes from behind the second cache
    """

    rows: str | None
    lanes: str
    height: int
    columns: int
    loads: float
    speed: float
    is_whole: bool = False


def choose(
    statement: Statement,
    roles: Roles,
    extents: Extents,
    target: Target,
    *,
    lanes: str,
    rows: Sequence[str],
    packed: Sequence[int] = (),
    blocks: Mapping[str, int] = MappingProxyType({}),
) -> RegisterTile:
    """The best register tile with vectors along `lanes` and rows along one of `rows`, or none.

    packed: numbers of the reads that will be copied so that their elements lie along the lanes
    blocks: points of the runs that outer loops cut axes into, by axis; tiles fill them without a rest
    """
    width = lanes_of(statement, roles, target)
    length = min(extents.axis(statement.name, lanes), blocks.get(lanes, sys.maxsize))
    depth = math.prod(extents.axis(statement.name, name) for name in roles.by_statement[statement.name].reduced)
    merits: dict[RegisterTile, float] = {}
    for axis in (None, *rows):
        height = 1 if axis is None else min(extents.axis(statement.name, axis), blocks.get(axis, sys.maxsize))
        operands = [
            replace(
                _operand(access.read.subscripts, axis, lanes, packed=number in packed),
                pitch=0 if axis is None else row_pitch(access.read, roles, axis),
                run=run_of(statement, roles, extents, access.read, target),
            )
            for number, access in enumerate(statement.reads)
        ]
        once, again = far_rows(statement, roles, extents, target, (axis, lanes), packed)
        returns = 1 if axis is None else -(-extents.axis(statement.name, axis) // max(height, 1))
        is_alone = axis is not None and returns == 1
        passing = rows_passing(statement, roles, extents, target, (axis, lanes), packed) if axis and is_alone else 0
        if passing:
            once, again = (once + again if passing == PANELS_PASS else 0.0), 0.0
            operands = [
                replace(operand, pitch=0) for operand in operands
            ]  # what is broadcast waits for what streams by
        most = MOST_ROWS if axis is None and streams(statement, extents, lanes) else MOST_VECTORS
        for rows_held, vectors in microkernel.tiles(target.vector_registers, operands, width, height, length, most):
            cuts = (blocks.get(lanes), vectors * width, width), (blocks.get(axis or ""), rows_held, 1)
            if any(_leaves_rest(*cut) for cut in cuts):
                continue
            loads = sum(operand.loads(rows_held, vectors) for operand in operands) / (rows_held * vectors)
            cycles = microkernel.cycles(operands, (height, rows_held), (-(-length // width), vectors), depth, target)
            pieces, passes = -(-length // (vectors * width)), -(-height // rows_held)
            waits = UNFORESEEN * pieces * (once + again * passes) / returns
            speed = height * length / width * depth / 2 / cycles
            tile = RegisterTile(axis, lanes, rows_held, vectors * width, loads, speed, waits > 0 and pieces == 1)
            edges = bool(height % rows_held) + bool(-(-length // width) % vectors)
            merits[tile] = speed * cycles / (cycles + waits) * (1 - EDGE * edges)
    assert merits, "a tile of one vector always fits"
    ranked = sorted(merits, key=lambda tile: merits[tile])[::-1]  # of equal ones the inner axis
    return picks.choose(
        f"register tile of {statement.name} along {lanes}",
        ranked[0],
        lambda: ranked,
        lambda tile: f"{tile.height} {tile.rows or '-'} x {tile.columns}",
    )


def far_rows(
    statement: Statement,
    roles: Roles,
    extents: Extents,
    target: Target,
    tile: tuple[str | None, str],
    packed: Sequence[int] = (),
) -> tuple[float, float]:
    """Rows that tiles along the lanes take pieces of, of operands that come from behind the second cache: those that
    stay there for the tiles of other rows, and those that do not, as each starts a page and so falls into few sets.

    tile: the axes of its rows and lanes; packed: numbers of the reads that are copied first
    """
    shape = roles.by_statement[statement.name]
    rows = {False: 0.0, True: 0.0}
    for number, access in enumerate(statement.reads):
        read = access.read
        operand = _operand(read.subscripts, *tile, packed=number in packed)
        if number in packed or operand.by_row or not operand.by_lane:
            continue
        known, array = _axes_apart(statement, extents, read.subscripts), roles.arrays[read.tensor]
        points = math.prod(extents.axis(statement.name, name) for name in known)
        is_read_once = all(isinstance(s, Affine) and axes_of(s) <= known for s in read.subscripts)
        if is_read_once and 2 * points * array.dtype.itemsize > target.l2_bytes:
            depth = math.prod(extents.axis(statement.name, name) for name in known & {*shape.reduced})
            reuse = math.prod(extents.axis(statement.name, name) for name in {*shape.free} - known - {*tile})
            row = array.shape[-1]
            rows[row.is_constant and row.constant * array.dtype.itemsize % PAGE_BYTES == 0] += depth / reuse
    return rows[False], rows[True]


def rows_passing(
    statement: Statement,
    roles: Roles,
    extents: Extents,
    target: Target,
    tile: tuple[str, str],
    packed: Sequence[int] = (),
) -> int:
    """How many rows of an operand all tiles of a block of columns had better pass by before the next rows come; 0 where
    each tile had better sum all of them.

    The former where the rows are long and come from behind the second cache, each once, and sums of so many rows of
    the result stay in the first cache; or in the second, if taking them up again costs less than a copy of the operand.
    tile: the axes of its rows and lanes
    """
    rows, lanes = tile
    depth = math.prod(extents.axis(statement.name, name) for name in roles.by_statement[statement.name].reduced)
    down = extents.axis(statement.name, rows)
    sum_bytes = down * LEAST_BLOCK * roles.arrays[statement.array].dtype.itemsize
    if extents.axis(statement.name, lanes) <= LEAST_BLOCK or not streams(statement, extents, lanes, held=rows):
        return 0
    if not sum(far_rows(statement, roles, extents, target, tile, packed)) > 0:
        return 0
    if sum_bytes <= target.l1_bytes:
        return TILES_PASS if depth >= 4 * TILES_PASS else 0
    vectors = target.line_bytes * 8 / target.vector_bits  # of sums, for each line of the operand
    cycles = down * (SUM * vectors / PANELS_PASS + 2 * microkernel.FAR / ROWS)  # a vector may lie in two lines
    fits = 4 * sum_bytes <= target.l2_bytes and depth >= 4 * PANELS_PASS
    return PANELS_PASS if fits and cycles < COPY / 2 else 0


def streams(
    statement: Statement, extents: Extents, lanes: str, *, held: str | None = None, but_steady: bool = False
) -> bool:
    """Whether a sum reads each element that lies along the lanes once: every axis with a choice is a subscript alone,
    or takes steps that the others of its subscript do not fill.

    Windows read an element several times. Wider tiles would load it no less often, and each tile would meet the edges.
    held:       an axis whose points a tile serves with one load
    but_steady: what stays the same while the sum runs, such as a mean of the column, does not count
    """
    axes = {name for name in statement.axes if name != held and extents.axis(statement.name, name) > 1}
    reads = [access.read.subscripts for access in statement.reads]
    along = [subscripts for subscripts in reads if any(moves(subscript, lanes) for subscript in subscripts)]
    if but_steady:
        written = {name for subscript in statement.subscripts for name in _axes_in(subscript)}
        summed = set(statement.axes) - written
        along = [subscripts for subscripts in along if any(moves(s, name) for s in subscripts for name in summed)]
    return statement.is_update and all(axes <= _axes_apart(statement, extents, subscripts) for subscripts in along)


def _axes_in(subscript: Subscript) -> frozenset[str]:
    return axes_of(subscript) if isinstance(subscript, Affine) else frozenset()


def _axes_apart(statement: Statement, extents: Extents, subscripts: Sequence[Subscript]) -> set[str]:
    """The axes of subscripts that are another place for each of their points: with an offset an axis alone, or the
    number of a stretch and the place in it, `512*p + q`."""
    found: set[str] = set()
    for subscript in subscripts:
        terms = subscript.terms if isinstance(subscript, Affine) else ()
        steps = {atom.name: abs(step) for atom, step in terms if isinstance(atom, AxisRef)}
        reach, are_apart = 0, len(steps) == len(terms)
        for name in sorted(steps, key=lambda name: steps[name]):
            are_apart &= reach < steps[name]
            reach += steps[name] * (extents.axis(statement.name, name) - 1)
        found |= {*steps} if are_apart else set()
    return found


def lanes_of(statement: Statement, roles: Roles, target: Target) -> int:
    """Lanes of the widest element that the statement touches."""
    arrays = (statement.array, *(access.read.tensor for access in statement.reads))
    return target.lanes(max(roles.arrays[array].dtype.bits for array in arrays))


def _leaves_rest(block: int | None, tile: int, step: int) -> bool:
    """Whether tiles do not fill a block that some tile of so many steps would fill."""
    return block is not None and block % step == 0 and block % tile > 0


def _operand(subscripts: Sequence[Subscript], rows: str | None, lanes: str, *, packed: bool) -> Operand:
    by_lane = any(moves(subscript, lanes) for subscript in subscripts)
    by_row = rows is not None and any(moves(subscript, rows) for subscript in subscripts)
    return Operand(by_lane, packed or is_contiguous(subscripts, lanes), by_row)


def row_pitch(read: Read, roles: Roles, rows: str) -> int:
    """Bytes between the elements of neighbouring rows of a tile; a page where symbolic sizes decide, since for some of
    them it is one; 0 where data do."""
    array, step = roles.arrays[read.tensor], 0
    for number, subscript in enumerate(read.subscripts):
        if not isinstance(subscript, Affine):
            return 0
        inner = array.shape[number + 1 :]
        if steps := subscript.coefficient(AxisRef(rows)):
            if not all(extent.is_constant for extent in inner):
                return PAGE_BYTES
            step += steps * math.prod(extent.constant for extent in inner)
    return step * array.dtype.itemsize


def run_of(statement: Statement, roles: Roles, extents: Extents, read: Read, target: Target) -> int:
    """Terms of the sum that take neighbours under a window of an operand one after the other, before they come to
    another row of it; 0 where these fill a line of the cache, or there is no window."""
    last = read.subscripts[-1] if read.subscripts else None
    if not isinstance(last, Affine) or len(last.terms) < 2:
        return 0
    summed = roles.by_statement[statement.name].reduced
    run = math.prod(extents.axis(statement.name, n) for n in summed if last.coefficient(AxisRef(n)) == 1)
    return run if run * roles.arrays[read.tensor].dtype.itemsize < target.line_bytes else 0


def is_contiguous(subscripts: Sequence[Subscript], axis: str) -> bool:
    """Whether neighbours along the axis are neighbours in memory."""
    if not subscripts or any(moves(subscript, axis) for subscript in subscripts[:-1]):
        return False
    last = subscripts[-1]
    return isinstance(last, Affine) and last.coefficient(AxisRef(axis)) == 1


def rows_along(statement: Statement, roles: Roles, names: Sequence[str], lanes: str) -> tuple[str, ...]:
    """The free axes among `names` that can be rows: some operand is reused along them."""
    shape = roles.by_statement[statement.name]
    return tuple(
        name for name in names if name != lanes and name in shape.free and any(name in reuse for reuse in shape.reuse)
    )
