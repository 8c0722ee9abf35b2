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
from math import gcd

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, axes_of, axis, constant
from polyopt.dtypes import DType
from polyopt.names import unused
from polyopt.poly.dependence import Dependences
from polyopt.poly.distance import DistanceTester
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Access, Array, Scop, Statement
from polyopt.poly.space import Space
from polyopt.target import Target
from polyopt.tiling.contraction import RegisterTile, choose, is_contiguous, rows_along
from polyopt.tiling.cost import moves
from polyopt.tiling.extents import Extents

LEAST_REUSE = 32
"""Times that a panel must be read for its copy to pay."""

BLOCK_COLUMNS = (64, 80, 96, 112, 128)
"""Columns of a block, about: enough to reuse a row of the other operand that often from the first cache."""

LEAST_BLOCKS = 4
"""Blocks of columns that repay a copy inside their loop: as many pieces of work at least for the threads."""

WAYS = 8
"""Associativity of the first cache, as on most processors."""


@dataclass(frozen=True, slots=True)
class Packing:
    """One operand of one contraction.

    update: the contraction
    read:   number of the operand among the statement's reads
    axis:   the axis that panels are cut along; empty for a copy that lies as the operand does
    points: of the axis, per panel
    block:  points of the axis that are copied at once; 0 for all panels, ahead of the contraction
    dtype:  of the copy: that which the contraction converts the operand to, if it does
    panel_bytes: size of one panel
    reason: why where it lies is not good enough
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

    def __str__(self) -> str:
        if not self.axis:
            return f"{self.array} copied for {self.update}, all of it ahead: {self.reason}"
        when = f"{self.block} columns at a time" if self.block else "all of it ahead"
        return (
            f"{self.array} packed for {self.update} in panels of {self.points} along {self.axis} "
            f"({self.panel_bytes} bytes each), {when}: {self.reason}"
        )


@dataclass(frozen=True, slots=True)
class PackPlan:
    """The packings of a scop, and the register tiles that they were made for, by contraction."""

    packings: tuple[Packing, ...] = ()
    tiles: Mapping[str, RegisterTile] = field(default_factory=dict)

    def __str__(self) -> str:
        return "\n".join(str(packing) for packing in self.packings)


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """The scop with its copies, and names and rows of the loops over blocks that come before a statement's own."""

    scop: Scop
    rows: Mapping[str, tuple[tuple[str, Affine], ...]]


# --- deciding -------------------------------------------------------------------------------------------------


def decide(scop: Scop, dependences: Dependences, target: Target) -> PackPlan:
    """The operands worth packing. Static sizes only."""
    if scop.sizes:
        return PackPlan()
    roles, extents = Roles.of(scop), Extents(scop)
    packings: list[Packing] = []
    tiles: dict[str, RegisterTile] = {}
    for statement in scop.statements:
        if roles.by_statement[statement.name].contraction and statement.name not in dependences.recurrent:
            chooser = _Chooser(statement, roles, extents, target)
            tile = chooser.tile()
            found = tuple(chooser.packings(tile)) if tile is not None else ()
            if tile is not None and found:
                packings.extend(found)
                tiles[statement.name] = tile
    return PackPlan(tuple(packings), tiles)


@dataclass(slots=True)
class _Chooser:
    """Decides for one contraction."""

    update: Statement
    roles: Roles
    extents: Extents
    target: Target

    def tile(self) -> RegisterTile | None:
        """The best register tile whose lanes lie where the result's elements are neighbours."""
        shape = self.roles.by_statement[self.update.name]
        best: RegisterTile | None = None
        for lanes in shape.free:
            if not is_contiguous(self.update.subscripts, lanes):
                continue
            rows = rows_along(self.update, self.roles, shape.free, lanes)
            packed = [number for number in range(len(self.update.reads)) if self.by_lanes(number, lanes)]
            tile = choose(
                self.update, self.roles, self.extents, self.target, lanes=lanes, rows=rows, packed=tuple(packed)
            )
            best = tile if best is None or tile.speed > best.speed else best
        return best if best is not None and best.rows is not None else None

    def packings(self, tile: RegisterTile) -> Iterator[Packing]:
        blocked = False
        reads = [access.read for access in self.update.reads]
        for number, access in enumerate(self.update.reads):
            if access.read in reads[:number]:
                continue  # an operand that is named twice has one copy
            packing = self.lane_panels(tile, number) or self.row_panels(tile, number) or self.converted(number)
            if packing is None or (packing.block and blocked):
                continue
            blocked |= packing.block > 0
            yield replace(packing, dtype=_converted_to(self.update, access.read))

    def converted(self, number: int) -> Packing | None:
        """A copy of an operand that is converted each time it is read."""
        read = self.update.reads[number].read
        dtype = _converted_to(self.update, read)
        plain = read.boundary is None and all(isinstance(s, Affine) for s in read.subscripts)
        if dtype is None or not plain or self.reuse(read) < LEAST_REUSE:
            return None
        reason = f"it is converted to {dtype.name} once"
        return Packing(self.update.name, number, "", 0, 0, read.tensor, 0, reason)

    def lane_panels(self, tile: RegisterTile, number: int) -> Packing | None:
        """Panels of the operand that the lanes run along."""
        read = self.update.reads[number].read
        if not self.by_lanes(number, tile.lanes) or self.reuse(read) < LEAST_REUSE:
            return None
        length = self.extents.axis(self.update.name, tile.lanes)
        if length <= tile.columns:
            return None
        panel_bytes, reason = self.panel_bytes(read, tile.columns), ""
        if not is_contiguous(read.subscripts, tile.lanes):
            reason = f"neighbours along {tile.lanes} lie apart"
        elif 2 * panel_bytes > self.usable(read, tile.columns):
            reason = "its rows would not stay in the first cache"
        if not reason:
            return None
        block = 0 if self.batched(read, tile.lanes) else block_of(length, tile.columns)
        return Packing(self.update.name, number, tile.lanes, tile.columns, block, read.tensor, panel_bytes, reason)

    def row_panels(self, tile: RegisterTile, number: int) -> Packing | None:
        """Panels of the operand that is broadcast, where the sums step through it in large strides."""
        read = self.update.reads[number].read
        shape = self.roles.by_statement[self.update.name]
        if tile.rows is None or not self.cut_along(read, tile.rows) or self.reuse(read) < LEAST_REUSE:
            return None
        inner = [axis for axis in shape.reduced if any(moves(s, axis) for s in read.subscripts)]
        if any(moves(s, tile.lanes) for s in read.subscripts) or not inner:
            return None
        if moves(read.subscripts[-1], inner[-1]) or self.depth(read) < LEAST_REUSE:
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
        free = set(self.roles.by_statement[self.update.name].free) - {lanes}
        return any(self.extents.axis(self.update.name, name) > 1 for name in free & _axes(read))

    def reuse(self, read: ir.Read) -> int:
        """Times that an element of the operand is read."""
        points = 1
        for name in set(self.roles.by_statement[self.update.name].free) - _axes(read):
            points *= self.extents.axis(self.update.name, name)
        return points

    def depth(self, read: ir.Read) -> int:
        """Elements of the operand that one result sums over."""
        points = 1
        for name in set(self.roles.by_statement[self.update.name].reduced) & _axes(read):
            points *= self.extents.axis(self.update.name, name)
        return points

    def panel_bytes(self, read: ir.Read, points: int) -> int:
        return self.depth(read) * points * self.roles.arrays[read.tensor].dtype.itemsize

    def usable(self, read: ir.Read, points: int) -> int:
        """Bytes of the first cache that the rows of a panel where it lies can occupy."""
        array = self.roles.arrays[read.tensor]
        row_bytes = array.shape[-1].constant * array.dtype.itemsize
        way = self.target.l1_bytes // WAYS
        distinct_rows = way // gcd(row_bytes, way) if row_bytes else 1
        return min(way, distinct_rows * max(points * array.dtype.itemsize, self.target.line_bytes)) * WAYS


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


def block_of(length: int, columns: int) -> int:
    """Columns per block, whole panels of them: the blocks are shared evenly by pairs of threads, and fully used.
    0 where there would be too few."""
    best: tuple[float, int] = (0.0, 0)
    for about in BLOCK_COLUMNS:
        block = max(about // columns, 1) * columns
        blocks = -(-length // block)
        if blocks >= LEAST_BLOCKS:
            best = max(best, (round(length / ((blocks + 1) // 2 * 2 * block), 2), block))
    return best[1]


# --- applying -------------------------------------------------------------------------------------------------


def apply(scop: Scop, dependences: Dependences, plan: PackPlan) -> Packed:
    """The scop with a copy statement for each packing, and block rows for all that shares the loop over blocks."""
    rows: dict[str, tuple[tuple[str, Affine], ...]] = {}
    for packing in plan.packings:
        tile = _fresh_axis(f"{packing.axis}_tile", scop.statement(packing.update))
        sharing: Mapping[str, str] = {}
        if packing.block:
            sharing = _sharing(packing, dependences, DistanceTester.of(scop), Roles.of(scop))
            sharing = {} if any(name in rows for name in sharing) else sharing
        blocks = {name: ((tile, axis(column) // packing.block),) for name, column in sharing.items()}
        scop, copy, scanned = _packed(scop, packing)
        first = ((tile, axis(packing.axis) // packing.block),) if blocks else ()
        rows |= {**blocks, copy: (*first, *((name, axis(name)) for name in scanned))}
    return Packed(scop, rows)


def _sharing(packing: Packing, dependences: Dependences, tester: DistanceTester, roles: Roles) -> Mapping[str, str]:
    """The statements that can share the block loop: the column axis of each, found along coincident dependences."""
    apart = dependences.recurrent
    found = {packing.update: packing.axis}
    work = [packing.update]
    while work:
        name = work.pop()
        for dependence in dependences.ordered:
            if name not in (dependence.source, dependence.target):
                continue
            other = dependence.target if dependence.source == name else dependence.source
            if other in found or other in apart or roles.by_statement[other].contraction:
                continue
            for candidate in roles.by_statement[other].free:
                if tester.is_coincident([dependence], {name: axis(found[name]), other: axis(candidate)}):
                    found[other] = candidate
                    work.append(other)
                    break
    return found


def _packed(scop: Scop, packing: Packing) -> tuple[Scop, str, tuple[str, ...]]:
    """The scop with the copy, the copy's name, and the axes that it scans first."""
    update = scop.statement(packing.update)
    access = update.reads[packing.read]
    names = {s.name for s in scop.statements} | {a.name for a in scop.arrays}
    name = unused(f"{packing.array}_packed", names)
    copy, order = _copy_statement(scop, update, access, packing, name)
    source = scop.array(packing.array)
    shape, along = source.shape, False
    if packing.axis:
        cut = _cut_dimension(access.read, packing.axis)
        panels = -(-source.shape[cut].constant // packing.points)
        shape = (constant(panels), *(source.shape[d] for d in order), constant(packing.points))
        along = cut == len(access.read.subscripts) - 1
    redirected = _redirected(scop, update, access, packing, name, order)
    statements = tuple(redirected if s is update else s for s in scop.statements)
    array = Array(name, packing.dtype or source.dtype, shape, "local")
    scanned = copy.axes[1:-1] if along else ()
    return replace(scop, statements=(copy, *statements), arrays=(*scop.arrays, array)), name, scanned


def _cut_dimension(read: ir.Read, name: str) -> int:
    return next(d for d, s in enumerate(read.subscripts) if isinstance(s, Affine) and name in axes_of(s))


def _inner_order(read: ir.Read, update: Statement, packing: Packing) -> tuple[int, ...]:
    """The operand's other dimensions, in the order in which the contraction's loops step through them."""
    if not packing.axis:
        return tuple(range(len(read.subscripts)))
    cut = _cut_dimension(read, packing.axis)

    def depth(dimension: int) -> int:
        subscript = read.subscripts[dimension]
        assert isinstance(subscript, Affine), "a packed operand has affine subscripts"
        return max((update.axes.index(name) for name in axes_of(subscript)), default=-1)

    return tuple(sorted((d for d in range(len(read.subscripts)) if d != cut), key=depth))


def _copy_statement(
    scop: Scop, update: Statement, access: Access, packing: Packing, name: str
) -> tuple[Statement, tuple[int, ...]]:
    """`packed[panel, e.., j - panel * points] = operand[e.., j]` for every element read, and the order of the e."""
    read, order = access.read, _inner_order(access.read, update, packing)
    elements = [_element_axis(read, d, packing.axis or update.axes[0]) for d in range(len(read.subscripts))]
    panel = _fresh_axis(f"{packing.axis}_panel", update)
    others = tuple(elements[d] for d in order)
    axes = (panel, *others, packing.axis) if packing.axis else others
    space = Space(name, axes, scop.sizes)
    source = space.access(read.tensor, [axis(e) for e in elements])
    domain = source.intersect_range(access.relation.range()).domain()
    if packing.axis:
        domain &= space.aff(axis(panel)).eq_set(space.aff(axis(packing.axis) // packing.points))
    element = ir.Read(read.tensor, tuple(axis(e) for e in elements), read.dtype, span=read.span)
    value = element if packing.dtype is None else ir.Cast(element, packing.dtype)
    written = tuple(map(axis, others))
    if packing.axis:
        written = (axis(panel), *written, axis(packing.axis) - axis(panel) * packing.points)
    statement = Statement(
        name,
        axes,
        domain,
        "define",
        name,
        written,
        value,
        space.access(name, written).intersect_domain(domain),
        (Access(element, source.intersect_domain(domain)),),
        span=update.span,
    )
    return statement, order


def _element_axis(read: ir.Read, dimension: int, cut: str) -> str:
    """The axis alone in a subscript, or a name for the elements of the dimension."""
    names = [_axis_alone(s) for s in read.subscripts]
    name = names[dimension]
    return name if name is not None and names.count(name) == 1 else f"{cut}_element{dimension}"


def _axis_alone(subscript: ir.Subscript) -> str | None:
    """The axis that a subscript is, if it is just that."""
    if isinstance(subscript, Affine) and len(subscript.terms) == 1:
        atom, _ = subscript.terms[0]
        if isinstance(atom, AxisRef) and subscript == axis(atom.name):
            return atom.name
    return None


def _redirected(
    scop: Scop, update: Statement, access: Access, packing: Packing, name: str, order: Sequence[int]
) -> Statement:
    """The update reading the packed panels instead of the operand."""
    old = access.read
    subscripts = tuple(old.subscripts[d] for d in order)
    if packing.axis:
        panel = axis(packing.axis) // packing.points
        subscripts = (panel, *subscripts, axis(packing.axis) - panel * packing.points)
    new = replace(old, tensor=name, subscripts=subscripts, dtype=packing.dtype or old.dtype)
    replaced = old if packing.dtype is None else ir.Cast(old, packing.dtype)

    def visit(expr: ir.Expr) -> ir.Expr:
        expr = ir.rebuild(expr, visit)
        return new if expr == replaced else expr

    space = Space(update.name, update.axes, scop.sizes)
    relation = space.access(name, [s for s in new.subscripts if isinstance(s, Affine)])
    relation = relation.intersect_domain(access.relation.domain())
    reads = tuple(Access(new, relation) if a.read == old else a for a in update.reads)
    return replace(update, value=visit(update.value), reads=reads)


def _fresh_axis(name: str, statement: Statement) -> str:
    return unused(name, set(statement.axes))
