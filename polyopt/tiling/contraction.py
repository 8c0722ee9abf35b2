"""The register tile of a contraction: which axis becomes lanes, which one rows, and how many of each.

Read off the access relations alone. An operand that does not know the rows is loaded once for all of them, one that
does not know the lanes is broadcast, and one that knows both is loaded anew for every vector of the tile. The tile
that does most multiply-adds per cycle wins: a cycle has two of them and two loads, a chain of additions waits for
the one before it, and rows or lanes past the end of an axis do nothing. Sources: [BLIS15], section 3, for tiles out
of operand reuse; windows, batches and sums over several axes need nothing more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, AxisRef, axes_of
from polyopt.dsl.ir import Subscript
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Statement
from polyopt.target import Target
from polyopt.tiling.cost import covered, moves
from polyopt.tiling.extents import Extents

LATENCY = 4
"""Cycles until a multiply-add may follow the one that it adds to, on every recent x86 core."""

LOOP = 0.5
"""Cycles for the counter and the branch of a loop, of which the rest of the body hides the most."""

MOST_ROWS, MOST_VECTORS = 14, 4

GATHER = 8.0
"""Loads that one gathered vector costs."""


@dataclass(frozen=True, slots=True)
class RegisterTile:
    """Accumulators that stay in registers while the sums run.

    rows:     the axis of the rows; None for a tile of one row
    lanes:    the axis along which vectors lie
    height:   rows
    columns:  points along `lanes`, whole vectors of them
    loads:    per multiply-add
    traffic:  the same, where a vector counts as three: it comes from a farther cache than what is broadcast
    speed:    share of the processor's multiply-adds that the tile reaches at best, edges included
    """

    rows: str | None
    lanes: str
    height: int
    columns: int
    loads: float
    traffic: float
    speed: float


@dataclass(frozen=True, slots=True)
class Operand:
    """How one read meets the lanes and the rows of a tile."""

    by_lane: bool
    contiguous: bool
    by_row: bool

    def loads(self, height: int, vectors: int) -> float:
        """Loads per point of the sums."""
        if not self.by_lane:
            return height if self.by_row else 1
        return vectors * (height if self.by_row else 1) * (1.0 if self.contiguous else GATHER)


def choose(
    statement: Statement,
    roles: Roles,
    extents: Extents,
    target: Target,
    *,
    lanes: str,
    rows: Sequence[str],
    packed: Sequence[int] = (),
    block: int | None = None,
) -> RegisterTile:
    """The best register tile with vectors along `lanes` and rows along one of `rows`, or none.

    packed: numbers of the reads that will be copied so that their elements lie along the lanes
    block:  an outer loop cuts the axis of the lanes into runs of so many points; tiles fill them without a rest
    """
    width = lanes_of(statement, roles, target)
    length = extents.axis(statement.name, lanes)
    if block is not None and block < length:
        length = block
    merits: dict[RegisterTile, float] = {}
    for axis in (None, *rows):
        height = extents.axis(statement.name, axis) if axis is not None else 1
        operands = [
            _operand(access.read.subscripts, axis, lanes, packed=number in packed)
            for number, access in enumerate(statement.reads)
        ]
        most = MOST_ROWS if axis is None and streams(statement, extents, lanes) else MOST_VECTORS
        for tile in _tiles(target.vector_registers, operands, width, height, length, most):
            candidate = RegisterTile(axis, lanes, *tile)
            if length == block and block % width == 0 and block % candidate.columns:
                continue
            merits[candidate] = candidate.speed * (1 - 0.05 * candidate.traffic)
    assert merits, "a tile of one vector always fits"
    ranked = sorted(merits, key=lambda tile: merits[tile])[::-1]  # of equal ones the inner axis
    return picks.choose(
        f"register tile of {statement.name} along {lanes}",
        ranked[0],
        lambda: ranked,
        lambda tile: f"{tile.height} {tile.rows or '-'} x {tile.columns}",
    )


def streams(statement: Statement, extents: Extents, lanes: str, *, but_steady: bool = False) -> bool:
    """Whether a sum reads each element that lies along the lanes once: every axis with a choice is a subscript alone.

    Windows read an element several times. Wider tiles would load it no less often, and each tile would meet the edges.
    but_steady: what stays the same while the sum runs, such as a mean of the column, does not count
    """
    axes = {name for name in statement.axes if extents.axis(statement.name, name) > 1}
    reads = [access.read.subscripts for access in statement.reads]
    along = [subscripts for subscripts in reads if any(moves(subscript, lanes) for subscript in subscripts)]
    if but_steady:
        written = {name for subscript in statement.subscripts for name in _axes_in(subscript)}
        summed = set(statement.axes) - written
        along = [subscripts for subscripts in along if any(moves(s, name) for s in subscripts for name in summed)]
    return statement.is_update and all(axes <= _axes_alone(subscripts) for subscripts in along)


def _axes_in(subscript: Subscript) -> frozenset[str]:
    return axes_of(subscript) if isinstance(subscript, Affine) else frozenset()


def _axes_alone(subscripts: Sequence[Subscript]) -> set[str]:
    """The axes that are, with an offset, all there is in some subscript."""
    terms = [subscript.terms for subscript in subscripts if isinstance(subscript, Affine)]
    return {atom.name for ((atom, _), *others) in filter(None, terms) if isinstance(atom, AxisRef) and not others}


def lanes_of(statement: Statement, roles: Roles, target: Target) -> int:
    """Lanes of the widest element that the statement touches."""
    arrays = (statement.array, *(access.read.tensor for access in statement.reads))
    return target.lanes(max(roles.arrays[array].dtype.bits for array in arrays))


def _tiles(
    registers: int, operands: Sequence[Operand], width: int, height: int, length: int, most: int
) -> Iterator[tuple[int, int, float, float, float]]:
    """(rows, columns, loads and traffic per multiply-add, speed) of every tile that fits the register file.

    most: vectors side by side; a sum that streams its operands past one row wants many
    """
    for vectors in range(1, most + 1):
        if vectors > 1 and (vectors - 1) * width >= length:
            break
        for rows in range(1, min(height, MOST_ROWS) + 1):
            accumulators = rows * vectors
            held = vectors if rows > 1 and any(o.by_lane and not o.by_row for o in operands) else 1
            if accumulators + held + 1 > registers:
                break
            loads = sum(operand.loads(rows, vectors) for operand in operands)
            cycles = max(accumulators / 2, loads / 2, LATENCY) + LOOP
            full = covered(height, rows) * covered(length, vectors * width)
            far = sum(2 * operand.loads(rows, vectors) for operand in operands if operand.by_lane)
            speed = accumulators / 2 / cycles * full
            yield rows, vectors * width, loads / accumulators, (loads + far) / accumulators, speed


def _operand(subscripts: Sequence[Subscript], rows: str | None, lanes: str, *, packed: bool) -> Operand:
    by_lane = any(moves(subscript, lanes) for subscript in subscripts)
    by_row = rows is not None and any(moves(subscript, rows) for subscript in subscripts)
    return Operand(by_lane, packed or is_contiguous(subscripts, lanes), by_row)


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
