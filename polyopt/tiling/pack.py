"""Copies of an operand's panels to where they lie densely, in the order in which the register tiles read them.

A register tile reads a few columns of an operand, row after row: one line of the cache out of each row, from as many
pages as there are rows. Where such a panel outgrows the sets of the first cache that its rows fall into, or where
the columns are no neighbours at all, panels are copied first, each to be read many times. Panels of the axis that the
lanes take are copied inside a loop over blocks of columns, so that a block stays in the second cache while all rows
pass over it; where there are too few blocks to share among threads, or the panels are of rows, all of them are copied
ahead. The copy is a statement like any other, so that the dependences, the storage and the proof need no special
case. Sources: [GotoBLAS08], [BLIS15].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from math import gcd, prod
from types import MappingProxyType

import islpy as isl

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, axes_of, axis, condition_text
from polyopt.dtypes import DType
from polyopt.microkernel import PAGE_BYTES
from polyopt.poly.dependence import Dependences
from polyopt.poly.roles import AxisRoles, Roles
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.space import condition_from_set
from polyopt.target import Target
from polyopt.tiling import produced
from polyopt.tiling.contraction import (
    COPY,
    RegisterTile,
    choose,
    is_contiguous,
    lanes_of,
    rows_along,
    rows_passing,
)
from polyopt.tiling.cost import moves
from polyopt.tiling.evenness import evenness
from polyopt.tiling.extents import ASSUMED, Extents
from polyopt.tiling.steps import Steps
from polyopt.tiling.sums import Lengthwise

LEAST_REUSE = 32
"""Times that an element must be read for its copy to pay."""

CROWDED, PAGED = 0.5, 4.0
"""Cycles that a cache line takes longer each time that a tile reads it where its rows fall into few sets of the first
cache, and where each row starts a page (measured on AVX-512 with 48 KiB and 2 MiB, the second cache holding all)."""

BLOCK_COLUMNS = (64, 80, 96, 112, 128)
"""Columns of a block, about: enough to reuse a row of the other operand that often from the first cache."""

FEW_PASSES = 2
"""Tiles side by side that read rows from the second cache where they lie sooner than copies of them are made."""

LEAST_BLOCKS = 4
"""Blocks of columns that repay a copy inside their loop: as many pieces of work at least for the threads."""

WAYS = 8
"""Associativity of the first cache, as on most processors."""

LINE_TERMS = 16
"""Terms that are copied at once come in multiples of these: rows of the other operand go on where a line begins."""


@dataclass(frozen=True, slots=True)
class Group:
    """Neighbours along an axis that is summed over, which one instruction takes at once.

    axis:   the axis
    points: of a group
    extent: points of the axis in whole groups; what the operand does not have of them is 0 in its copy
    lanes:  the axis along which groups lie side by side; empty where they lie one after the other
    flips:  the copy's elements have their highest bit flipped: x + 128 modulo 256, of bytes
    """

    axis: str
    points: int
    extent: int
    lanes: str = ""
    flips: bool = False


@dataclass(frozen=True, slots=True)
class Packing:
    """One operand of one contraction.

    update: the contraction
    read:   number of the operand among the statement's reads
    axis:   the axis that panels are cut along; empty for a copy that lies as the operand does
    points: of the axis, per panel
    block:  points of the axis that are copied at once; 0 for all panels, ahead of the contraction
    dtype:  of the copy: that which the contraction converts the operand to, if it does
    group:  what one instruction takes; its elements are neighbours in the copy
    terms:  an axis that is summed over, and how many of its points are copied at once, after which a block of results
            waits for the next ones; None for all of them
    panel_bytes: size of one panel
    reason: why where it lies is not good enough
    is_computed: what computes the operand computes the block; nothing is copied
    """

    update: str
    read: int
    axis: str
    points: int
    block: int
    array: str
    panel_bytes: int
    reason: str
    dtype: DType | None = None
    group: Group | None = None
    terms: tuple[str, int] | None = None
    is_computed: bool = False

    def __str__(self) -> str:
        if self.is_computed:
            return (
                f"{self.array} computed for {self.update} in blocks of {self.points} along {self.axis} "
                f"({self.panel_bytes} bytes each): {self.reason}"
            )
        if not self.axis:
            return f"{self.array} copied for {self.update}, all of it ahead: {self.reason}"
        columns = f"{self.block} columns" if self.block else "all columns"
        when = f"{columns} at a time" if self.block else "all of it ahead"
        if self.terms is not None:
            name, points = self.terms
            when = f"{columns} and {points} terms along {name} at a time, since a block of all terms outgrows the cache"
        return (
            f"{self.array} packed for {self.update} in panels of {self.points} along {self.axis} "
            f"({self.panel_bytes} bytes each), {when}: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class PackPlan:
    """The packings of a scop, and the register tiles that they were made for, by contraction.

    few: sizes for which copies do not pay; None where they do for all
    """

    packings: tuple[Packing, ...] = ()
    tiles: Mapping[str, RegisterTile] = field(default_factory=dict)
    few: isl.Set | None = None

    def __str__(self) -> str:
        return "\n".join(str(packing) for packing in self.packings)


# --- deciding -------------------------------------------------------------------------------------------------


def decide(
    scop: Scop,
    dependences: Dependences,
    target: Target,
    known: PackPlan | None = None,
    layouts: Mapping[str, tuple[int, ...] | None] = MappingProxyType({}),
) -> PackPlan:
    """The operands worth packing. With symbolic sizes, those that are worth it for the same ones as the first.

    known:   contractions whose operands are packed already
    layouts: byte strides of arguments that are not C-contiguous
    """
    known = known or PackPlan()
    roles, extents = Roles.of(scop), Extents(scop)
    packings = list(known.packings)
    few = known.few
    tiles = dict(known.tiles)
    for statement in scop.statements:
        is_open = statement.name not in dependences.recurrent and statement.name not in tiles
        if roles.by_statement[statement.name].contraction and is_open:
            chooser = Chooser(statement, roles, extents, target, layouts)
            tile = chooser.tile()
            found = []
            for packing in chooser.packings(tile) if tile is not None else ():
                own = chooser.few(packing)
                if own is not None and not is_one_condition(own, scop.context):
                    continue
                few = own if few is None else few
                if own is None or (few is not None and own.is_subset(few)):
                    found.append(packing if own is None else where(scop.context.subtract(own), packing, scop))
            if tile is not None and found and not chooser.passes_by(tile, found):
                packings.extend(found)
                tiles[statement.name] = tile
            elif not scop.sizes:
                packings.extend(chooser.straightened())
    return PackPlan(tuple(packings), tiles, few)


def is_one_condition(few: isl.Set, context: isl.Set) -> bool:
    """Whether a comparison tells the sizes from all others, of which there are some."""
    many = context.subtract(few).coalesce()
    return not many.is_empty() and few.n_basic_set() == many.n_basic_set() == 1


def where(sizes: isl.Set, packing: Packing, scop: Scop) -> Packing:
    """The packing, which says for which sizes it is made."""
    condition = condition_text(condition_from_set(sizes.gist(scop.context)))
    return replace(packing, reason=f"{packing.reason}; where {condition}")


@dataclass(slots=True)
class Chooser:
    """Decides for one contraction."""

    update: Statement
    roles: Roles
    extents: Extents
    target: Target
    layouts: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)

    def tile(self) -> RegisterTile | None:
        """The best register tile whose lanes lie where the result's elements are neighbours."""
        shape = self.roles.by_statement[self.update.name]
        best: RegisterTile | None = None
        for lanes in shape.free:
            if not is_contiguous(self.update.subscripts, lanes):
                continue
            rows = rows_along(self.update, self.roles, shape.free, lanes)
            packed = [number for number in range(len(self.update.reads)) if self.by_lanes(number, lanes)]
            most = partial(
                choose, self.update, self.roles, self.extents, self.target, lanes=lanes, rows=rows, packed=tuple(packed)
            )
            tile = most()
            fitting = min((self.fitting(number, tile) for number in packed), default=tile.columns)
            if fitting < tile.columns:
                tile = most(blocks={lanes: fitting})
            best = tile if best is None or tile.speed > best.speed else best
        return best if best is not None and best.rows is not None else None

    def fitting(self, number: int, tile: RegisterTile) -> int:
        """Columns of a tile, whole vectors, of which three quarters of the second cache hold a panel of an operand; as
        many as the tile has where none of all its terms is copied, or not even a vector's would stay."""
        read, width = self.update.reads[number].read, lanes_of(self.update, self.roles, self.target)
        most = self.target.l2_bytes * 3 // 4 // max(self.panel_bytes(read, 1), 1) // width * width
        is_whole = self.terms(read, tile) is None and not self.batched(read, tile.lanes) and self.is_reused(read)
        return min(most, tile.columns) if most and is_whole else tile.columns

    def packings(self, tile: RegisterTile) -> Iterator[Packing]:
        blocked = False
        reads = [access.read for access in self.update.reads]
        for number, access in enumerate(self.update.reads):
            if access.read in reads[:number]:
                continue  # an operand that is named twice has one copy
            if access.relation.is_empty():
                continue  # in a branch that is never taken there is nothing to copy
            packing = self.lane_panels(tile, number) or self.row_panels(tile, number) or self.converted(number)
            if packing is None or (packing.block and blocked):
                continue
            blocked |= packing.block > 0
            yield replace(packing, dtype=_converted_to(self.update, access.read))

    def passes_by(self, tile: RegisterTile, packings: Sequence[Packing]) -> bool:
        """Whether blocks of sums had better pass by the one operand whose panels would be copied because its rows lie
        far apart. Static sizes only."""
        if len(packings) != 1 or tile.rows is None or self.extents.scop.sizes:
            return False
        (packing,) = packings
        read = self.update.reads[packing.read].read
        lies_in_rows = packing.axis == tile.lanes and is_contiguous(read.subscripts, tile.lanes)
        is_even = self.row_bytes(read) % (self.target.line_bytes // 2) == 0  # vectors lie in one line, or half of them
        if not lies_in_rows or not is_even or not self.is_given(read) or packing.dtype is not None:
            return False
        rows = rows_passing(self.update, self.roles, self.extents, self.target, (tile.rows, tile.lanes))
        return picks.agreed(f"blocks of sums of {self.update.name} pass by", rows > 0) if rows else False

    def is_given(self, read: ir.Read) -> bool:
        """Whether an operand is a caller's, and C-contiguous."""
        return self.roles.arrays[read.tensor].role == "input" and self.layouts.get(read.tensor) is None

    def computed(self, tile: RegisterTile, number: int, length: int) -> Packing:
        """Blocks of an operand that is computed as they are needed."""
        read = self.update.reads[number].read
        shape = self.roles.by_statement[self.update.name]
        batches = prod(self.extents.axis(self.update.name, name) for name in batches_of(shape, read, tile.lanes))
        width = lanes_of(self.update, self.roles, self.target)
        block = produced.block_of(length, tile.columns, width, self.panel_bytes(read, 1), batches, self.target)
        reason = "the whole of it is never needed at once"
        panel_bytes = self.panel_bytes(read, block)
        return Packing(
            self.update.name, number, tile.lanes, block, block, read.tensor, panel_bytes, reason, is_computed=True
        )

    def straightened(self) -> Iterator[Packing]:
        """Copies of the shorter operand of sums with lanes along the sum, where the second cache holds it: its rows
        begin at cache lines there, while a caller's need not, and a vector that lies in two of them is loaded twice."""
        shape = self.roles.by_statement[self.update.name]
        summed = [name for name in shape.reduced if self.extents.axis(self.update.name, name) > 1]
        sums = Lengthwise(self.roles, Steps(self.roles.arrays, self.layouts), self.extents, self.target)
        tile = sums.tile(self.update, shape.free, summed[0]) if len(summed) == 1 else None
        if tile is None:
            return
        for number, read in enumerate(access.read for access in self.update.reads):
            is_rows = _axes(read) == {tile.down, summed[0]} and read.subscripts[-1] == axis(summed[0])
            if not is_rows or not self.is_given(read) or not self.is_reused(read):
                continue
            size = self.panel_bytes(read, self.extents.axis(self.update.name, tile.down))
            is_near = 2 * size <= self.target.l1_bytes
            if not is_near and self.row_bytes(read) % self.target.line_bytes == 0:
                yield Packing(self.update.name, number, "", 0, 0, read.tensor, 0, "its rows begin at cache lines there")

    def converted(self, number: int) -> Packing | None:
        """A copy of an operand that is converted each time it is read."""
        read = self.update.reads[number].read
        dtype = _converted_to(self.update, read)
        plain = read.boundary is None and all(isinstance(s, Affine) for s in read.subscripts)
        if dtype is None or not plain or not self.is_reused(read):
            return None
        reason = f"it is converted to {dtype.name} once"
        return Packing(self.update.name, number, "", 0, 0, read.tensor, 0, reason)

    def lane_panels(self, tile: RegisterTile, number: int) -> Packing | None:
        """Panels of the operand that the lanes run along."""
        read = self.update.reads[number].read
        if not self.by_lanes(number, tile.lanes) or not self.is_reused(read):
            return None
        length = self.extents.axis(self.update.name, tile.lanes)
        if produced.producer(self.extents.scop, self.update, read, cut_dimension(read, tile.lanes)) is not None:
            return self.computed(tile, number, length)
        lie_apart = not is_contiguous(read.subscripts, tile.lanes)
        if length < lanes_of(self.update, self.roles, self.target) or (length <= tile.columns and not lie_apart):
            return None
        panel_bytes, reason = self.panel_bytes(read, tile.columns), ""
        if lie_apart:
            reason = f"neighbours along {tile.lanes} lie apart"
        elif 2 * panel_bytes > self.usable(read, tile.columns) and self.repays(read, tile):
            reason = "its rows would not stay in the first cache"
        if not reason:
            return None
        terms = self.terms(read, tile)
        depth = self.depth(read) if terms is None else terms[1]
        block, panel_bytes = self.block(read, tile, depth), panel_bytes // self.depth(read) * depth
        return Packing(
            self.update.name, number, tile.lanes, tile.columns, block, read.tensor, panel_bytes, reason, terms=terms
        )

    def terms(self, read: ir.Read, tile: RegisterTile) -> tuple[str, int] | None:
        """The axis of a sum so long that half the second cache does not hold its narrowest block, and as many terms as
        let a quarter hold the widest one. Source: [GotoBLAS08], section 4."""
        narrowest, widest = (self.panel_bytes(read, columns) for columns in (BLOCK_COLUMNS[0], BLOCK_COLUMNS[-1]))
        if 2 * narrowest <= self.target.l2_bytes or self.batched(read, tile.lanes):
            return None
        shape = self.roles.by_statement[self.update.name]
        summed = [name for name in shape.reduced if self.extents.axis(self.update.name, name) > 1]
        others = [s for s in self.extents.scop.writers(self.update.array) if s is not self.update]
        is_alone = len(summed) == 1 and axis(summed[0]) in read.subscripts and len(others) == 1
        is_alone = is_alone and start_column(self.update, others[0], tile.lanes) is not None
        question = f"a block of terms of {self.update.name} at a time"
        if not is_alone or not picks.choose(question, True, lambda: (True, False)):
            return None
        length = self.depth(read)
        pieces = -(-4 * widest // self.target.l2_bytes)
        return summed[0], -(-length // (pieces * LINE_TERMS)) * LINE_TERMS

    def block(self, read: ir.Read, tile: RegisterTile, depth: int) -> int:
        """Columns to copy at once, of a block of so many terms that half the second cache holds; 0 for all of them."""
        if self.batched(read, tile.lanes):
            return 0
        fitting = self.target.l2_bytes // 2 // max(1, self.panel_bytes(read, 1) // self.depth(read) * depth)
        width = lanes_of(self.update, self.roles, self.target)
        return block_of(self.extents.axis(self.update.name, tile.lanes), tile.columns, width, fitting)

    def repays(self, read: ir.Read, tile: RegisterTile) -> bool:
        """Whether tiles would wait longer for the panels where they lie than a copy takes."""
        row_bytes, rows = self.row_bytes(read), self.depth(read)
        length = self.extents.axis(self.update.name, tile.lanes)
        itemsize = self.roles.arrays[read.tensor].dtype.itemsize
        if 2 * rows * length * itemsize > self.target.l2_bytes:
            return True
        slower = CROWDED if 4 * self.usable(read, tile.columns) < self.target.l1_bytes else 0.0
        if row_bytes % PAGE_BYTES == 0:
            slower = PAGED
        return slower * self.reuse(read) / tile.height > COPY

    def row_panels(self, tile: RegisterTile, number: int) -> Packing | None:
        """Panels of the operand that is broadcast, where the sums step through it in large strides."""
        read = self.update.reads[number].read
        shape = self.roles.by_statement[self.update.name]
        if tile.rows is None or not self.cut_along(read, tile.rows) or not self.is_reused(read):
            return None
        inner = [axis for axis in shape.reduced if any(moves(s, axis) for s in read.subscripts)]
        if any(moves(s, tile.lanes) for s in read.subscripts) or not inner:
            return None
        if moves(read.subscripts[-1], inner[-1]) or self.depth(read) < LEAST_REUSE:
            return None
        passes = -(-self.extents.axis(self.update.name, tile.lanes) // tile.columns)
        if passes <= FEW_PASSES and 2 * self.depth(read) * self.row_bytes(read) <= self.target.l2_bytes:
            return None
        reason = f"the sum over {inner[-1]} would take a new line of the cache for each of its terms"
        panel_bytes = self.panel_bytes(read, tile.height)
        return Packing(self.update.name, number, tile.rows, tile.height, 0, read.tensor, panel_bytes, reason)

    def by_lanes(self, number: int, lanes: str) -> bool:
        read = self.update.reads[number].read
        return self.cut_along(read, lanes) and read.boundary is None

    def cut_along(self, read: ir.Read, name: str) -> bool:
        """Whether the operand can be cut along the axis: one subscript is the axis, no other knows it."""
        if read.boundary is not None or not all(isinstance(s, Affine) for s in read.subscripts):
            return False
        shape = self.roles.by_statement[self.update.name]
        own = [s for s in read.subscripts if isinstance(s, Affine) and name in axes_of(s)]
        return own == [axis(name)] and bool(set(shape.reduced) & _axes(read))

    def batched(self, read: ir.Read, lanes: str) -> bool:
        """Whether each of several results has a panel of its own."""
        shape = self.roles.by_statement[self.update.name]
        return any(self.extents.axis(self.update.name, name) > 1 for name in batches_of(shape, read, lanes))

    def reuse(self, read: ir.Read) -> int:
        """Times that an element of the operand is read."""
        points = 1
        for name in set(self.roles.by_statement[self.update.name].free) - _axes(read):
            points *= self.extents.axis(self.update.name, name)
        return points

    def is_reused(self, read: ir.Read) -> bool:
        """Whether reads of a copy repay its writing."""
        return picks.agreed(f"copies of {read.tensor} for {self.update.name}", self.reuse(read) >= LEAST_REUSE)

    def few(self, packing: Packing) -> isl.Set | None:
        """Sizes for which so few results read an element that its copy does not pay; None where there are none, or
        where sums would take elements that lie apart one by one without it."""
        read = self.update.reads[packing.read].read
        if packing.axis and not is_contiguous(read.subscripts, packing.axis) and not self.runs_along_sum(read):
            return None
        return self.fewer(read, LEAST_REUSE)

    def fewer(self, read: ir.Read, least: int) -> isl.Set | None:
        """Sizes for which, as far as one comparison tells, fewer results than `least` read an element; None where there
        are none."""
        scop, domain = self.extents.scop, self.update.domain
        free = [name for name in self.roles.by_statement[self.update.name].free if name not in _axes(read)]
        known = {name: self.extents.known(self.update.name, name) for name in free}
        several = -(-least // max(prod(extent for extent in known.values() if extent is not None), 1))
        unknown = [self.update.axes.index(name) for name in free if known[name] is None]
        if not unknown or several <= 1:
            return None
        lengths = [domain.dim_max(axis).sub(domain.dim_min(axis)) for axis in unknown]
        alike = sum(length.is_equal(lengths[-1]) for length in lengths)  # of the others there may be one point
        each = next(points for points in range(1, several + 1) if points**alike >= several)
        many = lengths[-1].ge_set(isl.PwAff.zero_on_domain(lengths[-1].get_domain_space()).add_constant_val(each - 1))
        return scop.context.subtract(many.params().gist(domain.params())).coalesce()

    def runs_along_sum(self, read: ir.Read) -> bool:
        """Whether terms of a sum are neighbours, vectors of them: then lanes may run along it."""
        reduced = self.roles.by_statement[self.update.name].reduced
        along = [name for name in reduced if read.subscripts[-1:] == (axis(name),)]
        width = lanes_of(self.update, self.roles, self.target)
        return any(self.extents.axis(self.update.name, name) >= 2 * width for name in along)

    def depth(self, read: ir.Read) -> int:
        """Elements of the operand that one result sums over."""
        points = 1
        for name in set(self.roles.by_statement[self.update.name].reduced) & _axes(read):
            points *= self.extents.axis(self.update.name, name)
        return points

    def panel_bytes(self, read: ir.Read, points: int) -> int:
        return self.depth(read) * points * self.roles.arrays[read.tensor].dtype.itemsize

    def row_bytes(self, read: ir.Read) -> int:
        array = self.roles.arrays[read.tensor]
        last = array.shape[-1]
        return (last.constant if last.is_constant else ASSUMED) * array.dtype.itemsize

    def usable(self, read: ir.Read, points: int) -> int:
        """Bytes of the first cache that the rows of a panel where it lies can occupy."""
        array, row_bytes = self.roles.arrays[read.tensor], self.row_bytes(read)
        way = self.target.l1_bytes // WAYS
        distinct_rows = way // gcd(row_bytes, way) if row_bytes else 1
        return min(way, distinct_rows * max(points * array.dtype.itemsize, self.target.line_bytes)) * WAYS


def batches_of(shape: AxisRoles, read: ir.Read, lanes: str) -> tuple[str, ...]:
    """The axes of the result, other than the lanes, that an operand knows: it has a panel for each of their points."""
    return tuple(name for name in shape.free if name != lanes and name in _axes(read))


def start_column(update: Statement, start: Statement, lanes: str) -> Affine | None:
    """The point along the lanes of a contraction that an instance of what its sums start from is for; None where the
    instance's own axes do not say."""
    written, own = update.subscripts[-1], start.subscripts[-1]
    if not isinstance(written, Affine) or not isinstance(own, Affine):
        return None
    offset = written - axis(lanes)
    return own - offset if offset.is_constant else None


def cut_dimension(read: ir.Read, name: str) -> int:
    """The dimension of an operand that an axis runs along, the first one."""
    return next(d for d, s in enumerate(read.subscripts) if isinstance(s, Affine) and name in axes_of(s))


def _converted_to(update: Statement, read: ir.Read) -> DType | None:
    """The dtype that every use of a read is converted to, at once and to more bits; None where there is none."""
    casts = {e.dtype for e in ir.walk(update.value) if isinstance(e, ir.Cast) and e.arg == read}
    uses = sum(e == read for e in ir.walk(update.value))
    converted = sum(isinstance(e, ir.Cast) and e.arg == read for e in ir.walk(update.value))
    if len(casts) != 1 or uses != converted:
        return None
    (dtype,) = casts
    return dtype if dtype.bits > read.dtype.bits else None


def _axes(read: ir.Read) -> frozenset[str]:
    return frozenset().union(*(axes_of(s) for s in read.subscripts if isinstance(s, Affine)))


def block_of(length: int, columns: int, width: int, fitting: int) -> int:
    """Columns per block, whole panels of them: the blocks are shared evenly by pairs of threads, and fully used.
    0 where there would be too few.

    width:   columns of a vector
    fitting: columns that the cache holds; blocks of one panel may have more
    """
    best: tuple[float, int] = (0.0, 0)
    for about in (min(BLOCK_COLUMNS[0], fitting), *(wider for wider in BLOCK_COLUMNS[1:] if wider <= fitting)):
        block = max(about // columns, 1) * columns
        if -(-length // block) >= LEAST_BLOCKS:
            best = max(best, (evenness(length, block, width), block))
    return best[1]
