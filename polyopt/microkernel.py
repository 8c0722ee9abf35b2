"""The cycles of a micro-kernel: a tile of accumulators that stay in registers while their sums run.

A cycle has two multiply-adds of vectors and two loads, a chain of additions waits for the one before it, and the last
tiles of an axis, with the rows and vectors that are left, take their own time. A processor that takes vectors in two
passes loads as many elements in each: there a cycle is that of two passes, and has four loads of elements. What the
tile is of, which axes are its rows and lanes, is for `tiling.contraction` to say; rewrites ask here what long or short
axes are worth. Source: [BLIS15], section 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

from polyopt.classes import dataclass
from polyopt.target import Target

LATENCY = 4
"""Cycles until a multiply-add may follow the one that it adds to, on every recent x86 core."""

LOADING = 1.06
"""Cycles that two loads take where nothing else keeps a tile waiting (measured on Zen 4, of 8 lanes and 7 to 14
rows)."""

LOOP = 0.5
"""Cycles for the counter and the branch of a loop, of which the rest of the body hides the most."""

FAR = 0.3
"""Cycles that a cache line takes longer than one in the first cache: vectors come from the second as a rule."""

BEHIND = 4.0
"""The same of a line from behind the second cache, of those that no prefetcher foresees (measured on Zen 4, of 8 images
of 7 x 7 points, with rows along the images and along their columns)."""

PAGE_BYTES = 4096
"""Also of a way of the first cache, which is looked up by the bits of an address within a page, on every x86 core."""

CROWDED = 0.35
"""Cycles that an element takes to broadcast which comes from the second cache each time, as others of its tile have
taken its line's place in the first one (measured on Zen 4, of 14 rows that start pages: a quarter of the speed)."""

START = 8.0
"""Cycles to begin and end a tile's sum, besides those for each accumulator: a branch that is not foreseen."""

FOLD = 6.0
"""Cycles to add up the lanes of a vector."""

MOST_ROWS, MOST_VECTORS = 14, 4

GATHER = 8.0
"""Loads that one gathered vector costs."""


@dataclass(frozen=True, slots=True)
class Operand:
    """How one read meets the lanes and the rows of a tile.

    pitch: bytes between rows where these are broadcast
    run:   terms of the sum that a line of the cache serves one after the other, under a window; 0 where it serves all
           whose elements it holds
    """

    by_lane: bool
    contiguous: bool
    by_row: bool
    pitch: int = 0
    run: int = 0

    def loads(self, height: int, vectors: int) -> float:
        """Loads per point of the sums."""
        if not self.by_lane:
            return height if self.by_row else 1
        return vectors * (height if self.by_row else 1) * (1.0 if self.contiguous else GATHER)

    def crowded(self, height: int, target: Target) -> int:
        """Loads per point of the sums that find their lines gone from the first cache: all rows', where more of their
        lines fall into one set than it has ways, one of them for what else passes by."""
        if self.by_lane or not self.by_row:
            return 0
        middle = target.line_bytes // 2  # where rows that are almost pages apart keep together
        lines = {(middle + row * self.pitch) // target.line_bytes for row in range(height)}
        sets = Counter(line % (PAGE_BYTES // target.line_bytes) for line in lines)
        return height if max(sets.values()) >= target.l1_bytes // PAGE_BYTES else 0

    def new_lines(self, height: int, target: Target) -> float:
        """Lines of the cache per point of the sums that rows are newly broadcast from, where the sums leave a line
        before they have taken all of it."""
        if self.by_lane or not self.by_row or not self.run:
            return 0.0
        return (1 + (height - 1) * min(self.pitch / target.line_bytes, 1.0)) / self.run


def tiles(
    registers: int, operands: Sequence[Operand], width: int, height: int, length: int, most: int
) -> Iterator[tuple[int, int]]:
    """(rows, vectors) of every tile that fits the register file.

    most: vectors side by side; a sum that streams its operands past one row wants many
    """
    for vectors in range(1, most + 1):
        if vectors > 1 and (vectors - 1) * width >= length:
            break
        for rows in range(1, min(height, MOST_ROWS) + 1):
            held = vectors if rows > 1 and any(o.by_lane and not o.by_row for o in operands) else 1
            if rows * vectors + held + 1 > registers:
                break
            yield rows, vectors


def cycles(
    operands: Sequence[Operand], down: tuple[int, int], along: tuple[int, int], depth: int, target: Target
) -> float:
    """Cycles for all tiles of a result, those at its edges included.

    down:  its rows, and those of a tile; along: the same for vectors
    depth: terms of each sum
    """
    total, far = 0.0, FAR * target.vector_bits / 8 / target.line_bytes
    for row_tiles, rows in _pieces(*down):
        crowded = CROWDED * sum(operand.crowded(rows, target) for operand in operands)
        lines = sum(operand.new_lines(rows, target) for operand in operands)
        stays = 2 * lines * depth * target.line_bytes <= target.l2_bytes  # until the next tile, whose rows share them
        crowded += lines * (FAR if stays else BEHIND)
        for column_tiles, vectors in _pieces(*along):
            wide = sum(operand.loads(rows, vectors) for operand in operands if operand.by_lane)
            loads = wide + sum(o.loads(rows, vectors) for o in operands if not o.by_lane) / target.passes
            term = max(rows * vectors / 2, LOADING * loads / 2, LATENCY) + LOOP + far * wide + crowded
            total += row_tiles * column_tiles * (depth * term + rows * vectors + START)
    return total


def sum_cycles(down: tuple[int, int], across: tuple[int, int], vectors: int) -> float:
    """Cycles for tiles of sums with lanes along the sum: each is an accumulator whose lanes are added up at its end.

    down, across: rows of either operand, and those of a tile; vectors: of each sum
    """
    total = 0.0
    for tiles, height in _pieces(*down):
        for others, width in _pieces(*across):
            term = max(height * width / 2, LOADING * (height + width) / 2, LATENCY) + LOOP
            total += tiles * others * (vectors * term + height * width * FOLD + START)
    return total


def _pieces(extent: int, tile: int) -> Iterator[tuple[int, int]]:
    """How many tiles there are of each length."""
    whole, rest = divmod(extent, tile)
    if whole:
        yield whole, tile
    if rest:
        yield 1, rest


@cache
def speed(rows: int, run: int, depth: int, bits: int, target: Target) -> float:
    """The share of the processor's multiply-adds that the best tile reaches, of a sum of products of two operands: one
    lies along the lanes, the other is broadcast.

    rows: points of the axis that the first operand does not know; run: of the one that the second does not know, and
    along which vectors lie; depth: terms of each sum; bits: of an element
    """
    width = target.lanes(bits)
    operands = (Operand(by_lane=True, contiguous=True, by_row=False), Operand(False, False, by_row=True))
    vectors = -(-run // width)
    fastest = min(
        cycles(operands, (rows, height), (vectors, columns), depth, target)
        for height, columns in tiles(target.vector_registers, operands, width, rows, run, MOST_VECTORS)
    )
    return rows * run / width * depth / 2 / fastest
