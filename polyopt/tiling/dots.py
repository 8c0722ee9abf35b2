"""Contractions by dot instructions: groups of neighbours along a sum, multiplied and added at once.

A sum of products of narrow numbers qualifies where the processor has an instruction that is right for their values,
one operand lies along the lanes, and the other does not know them. The operand of the lanes is packed in groups that
lie beside the columns; the other one is read in groups where it lies, if the sum steps through neighbours, or copied
so that it does. Where the axis has no whole groups, the copies end in zeros.

`vpdpbf16ps` is right for products that are not too small (`dots.LEAST_PRODUCT`). So both operands must be the caller's
arrays, which the kernel looks through when it starts, and the sums must start from 0.

`vpdpbusd` multiplies unsigned by signed bytes. If both are signed, the copy of the lanes' operand has 128 added, and
128 times the sum of the other operand is taken off where the result starts: modulo 2**32 the result is the same for
every value. Sources: [Intel21], vector neural network instructions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod
from typing import Literal

import islpy as isl

from polyopt import dots as instructions
from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dots import Dot
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, axes_of, axis
from polyopt.dtypes import DType, bf16, f32, i8, i16, i32, u8
from polyopt.names import unused
from polyopt.poly.dependence import Dependences
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Access, Array, Scop, Statement
from polyopt.poly.space import Space, named, stretched
from polyopt.target import Target
from polyopt.tiling.contraction import RegisterTile
from polyopt.tiling.copies import Grouped, Packed
from polyopt.tiling.cost import moves
from polyopt.tiling.extents import Extents
from polyopt.tiling.pack import Chooser, Group, Packing, PackPlan, is_one_condition, where

LEAST_REUSE = 2
"""Times that an element of the lanes' operand must be used for its copy to pay."""

SCREENED_REUSE = 16
"""Products for each element of an array that make a look at it pay: it comes from memory then, as a rule, and so do
those elements that the contraction does not read."""

MOST_SCREENED = 4
"""Products of a kernel that screen their operands: all its loops are compiled twice then."""


@dataclass(frozen=True, slots=True)
class Product:
    """One contraction by one instruction.

    update:   the contraction
    dot:      the instruction
    axis:     along which groups are
    other:    number of the read that does not know the lanes
    offset:   what the copy of the lanes' operand has added to each element; 0, 128 or -128
    packings: the copies that it needs
    screened: the operands, where their elements decide whether the instruction is used
    """

    update: str
    dot: Dot
    axis: str
    other: int
    offset: int
    tile: RegisterTile
    packings: tuple[Packing, ...]
    screened: tuple[str, str] | None = None

    def __str__(self) -> str:
        text = f"{self.update} by {self.dot.name}, groups of {self.dot.points} along {self.axis}"
        if self.offset:
            text += f"; one operand has {self.offset} added to make it {self.dot.left}, and the sum starts lower"
        if self.screened:
            text += (
                f"; by multiply-adds of f32 where elements of {' and '.join(self.screened)} are so small that sums "
                "could be subnormal numbers, which the instruction takes for zero"
            )
        return text


@dataclass(frozen=True, slots=True)
class DotPlan:
    """The contractions that dot instructions compute. few: sizes for which they do not pay, if some do not"""

    products: tuple[Product, ...] = ()
    few: isl.Set | None = None

    @property
    def panels(self) -> PackPlan:
        """The copies, and the register tiles that they are for."""
        packings = tuple(packing for product in self.products for packing in product.packings)
        return PackPlan(packings, {product.update: product.tile for product in self.products}, self.few)

    @property
    def screened(self) -> tuple[tuple[str, str], ...]:
        """The pairs of arrays that the kernel looks through when it starts."""
        pairs = [product.screened for product in self.products if product.screened is not None]
        return tuple(dict.fromkeys(pairs))

    def __str__(self) -> str:
        return "\n".join(map(str, self.products))


# --- deciding -------------------------------------------------------------------------------------------------


def decide(scop: Scop, dependences: Dependences, target: Target, *, floats: bool = True) -> DotPlan:
    """The contractions worth it.

    floats: whether sums of floats may be such, too
    """
    found = tuple(dot for dot in instructions.available(target) if floats or not dot.total.is_float)
    if not found:
        return DotPlan()
    roles, extents = Roles.of(scop), Extents(scop)
    held = 0 if all(dot.accumulates for dot in found) else 1  # a register holds what is to be added
    products, few = [], list[isl.Set | None]()
    for statement in scop.statements:
        if roles.by_statement[statement.name].contraction and statement.name not in dependences.recurrent:
            taken = held + (instructions.WIDENED_REGISTERS if statement.value.dtype.is_float else 0)
            tiled = replace(target, vector_registers=target.vector_registers - taken)
            chooser = Chooser(statement, roles, extents, tiled)
            product = _Finder(scop, statement, chooser).find(found)
            few.append(None)
            if product is not None:
                products.append(product)
                few[-1] = chooser.fewer(statement.reads[1 - product.other].read, LEAST_REUSE)
    few_screened = sum(product.screened is not None for product in products) <= MOST_SCREENED
    kept = tuple(product for product in products if few_screened or product.screened is None)
    common = _in_common(scop, few) if len(kept) == len(few) else None
    if common is not None:
        many = scop.context.subtract(common)
        kept = tuple(replace(p, packings=tuple(where(many, packing, scop) for packing in p.packings)) for p in kept)
    return DotPlan(kept, common)


def _in_common(scop: Scop, few: Sequence[isl.Set | None]) -> isl.Set | None:
    """The sizes that are few for all products, where these agree on them; None where they do not."""
    known = [own for own in few if own is not None]
    if len(known) < len(few) or not known or not is_one_condition(known[0], scop.context):
        return None
    return known[0] if all(own.is_equal(known[0]) for own in known) else None


@dataclass(slots=True)
class _Finder:
    scop: Scop
    update: Statement
    chooser: Chooser

    def find(self, dots: Sequence[Dot]) -> Product | None:
        """The update as a product by the first instruction that can do it."""
        factors = _factors(self.update)
        if factors is None:
            return None
        dots = [dot for dot in dots if dot.total == self.update.value.dtype and self.is_worth(dot, factors)]
        tile = self.chooser.tile() if dots else None
        if tile is None:
            return None
        lanes = [n for n, read in enumerate(factors) if any(moves(s, tile.lanes) for s in read.subscripts)]
        if len(lanes) != 1:
            return None
        beside, other = factors[lanes[0]], factors[1 - lanes[0]]
        summed = self.summed(beside, other)
        if summed is None or self.chooser.reuse(beside) < LEAST_REUSE:
            return None
        for dot in dots:
            if self.chooser.extents.axis(self.update.name, summed) < dot.points:
                continue
            dtype = _lanes_dtype(dot, beside.dtype, other.dtype)
            if dtype is None:
                continue
            offset = {(i8, u8): 128, (u8, i8): -128}.get((beside.dtype, dtype), 0)
            if offset and self.start(other) is None:
                continue
            packings = tuple(self.packings(tile, dot, summed, lanes[0], dtype, flips=bool(offset)))
            screened = (factors[0].tensor, factors[1].tensor) if dot.is_screened else None
            return Product(self.update.name, dot, summed, 1 - lanes[0], offset, tile, packings, screened)
        return None

    def is_worth(self, dot: Dot, factors: Sequence[ir.Read]) -> bool:
        """Whether the instruction is the faster way; one that screens its operands needs the caller's arrays."""
        if not dot.is_screened:
            return True
        starts = [s for s in self.scop.writers(self.update.array) if s is not self.update]
        if not all(s.role == "init" and s.value == ir.Const(0, dot.total) for s in starts):
            return False
        points = prod(self.chooser.extents.axis(self.update.name, name) for name in self.update.axes)
        arrays = [self.scop.array(read.tensor) for read in factors]
        if not all(array.role == "input" and all(e.is_constant for e in array.shape) for array in arrays):
            return False
        looks = [SCREENED_REUSE * prod(extent.constant for extent in array.shape) for array in arrays]
        if points < max(looks):
            return False
        fast = instructions.is_fast(dot, self.chooser.target)
        return picks.choose(f"{self.update.name} by {dot.name}", fast, lambda: (fast, not fast))

    def summed(self, beside: ir.Read, other: ir.Read) -> str | None:
        """The axis for groups: one subscript of either operand is the axis alone, and its range is a number, the same
        for all results. One along which the other operand has neighbours is best, then a long one."""
        reduced = self.chooser.roles.by_statement[self.update.name].reduced
        fit = [a for a in reduced if self.is_apart(a) and all(_is_alone(read, a) for read in (beside, other))]

        def merit(name: str) -> tuple[bool, int]:
            return _is_last(other, name), self.chooser.extents.axis(self.update.name, name)

        return max(fit, key=merit, default=None)

    def is_apart(self, name: str) -> bool:
        """Whether an axis runs from 0 to its extent, a number, whatever the others are."""
        extent = self.chooser.extents.known(self.update.name, name)
        domain = self.update.domain
        if extent is None:
            return False
        return bool(stretched(domain, self.update.axes.index(name), extent).is_equal(domain))

    def start(self, other: ir.Read) -> Statement | None:
        """The statement that the sums start from, if it can take the sums of the other operand off.

        It writes the same elements, and the sums are over the same points for all of them.
        """
        reduced = set(self.chooser.roles.by_statement[self.update.name].reduced)
        writers = [s for s in self.scop.writers(self.update.array) if s is not self.update]
        if len(writers) != 1 or writers[0].is_update or not reduced <= _axes(other):
            return None
        (start,) = writers
        plain = all(_are_distinct(s.subscripts) for s in (start, self.update))
        if not plain or not all(self.is_apart(name) for name in reduced):
            return None
        return start if start.write.range().is_equal(self.update.write.range()) else None

    def packings(
        self, tile: RegisterTile, dot: Dot, summed: str, lanes: int, dtype: DType, *, flips: bool
    ) -> Iterator[Packing]:
        """Copies of the operands: of the other one only where its groups are no neighbours or have no end."""
        chooser, update = self.chooser, self.update
        points = chooser.extents.axis(update.name, summed)
        group = Group(summed, dot.points, -(-points // dot.points) * dot.points)
        other, read = update.reads[1 - lanes].read, update.reads[lanes].read
        wanted = other.dtype if dot.left != dot.right else dot.left
        if wanted != other.dtype or group.extent != points or not _is_last(other, summed):
            reason = f"{dot.name} takes groups of {dot.points} along {summed}"
            packing = Packing(update.name, 1 - lanes, "", 0, 0, other.tensor, 0, reason, wanted, group)
            rows = tile.rows
            if rows is not None and not _is_last(other, summed) and chooser.cut_along(other, rows):
                panel = chooser.panel_bytes(other, tile.height)
                beside = replace(group, lanes=rows)
                packing = replace(packing, axis=rows, points=tile.height, panel_bytes=panel, group=beside)
            yield packing
        group = replace(group, lanes=tile.lanes, flips=flips)
        reason = f"groups of {dot.points} along {summed} lie beside the columns"
        if not chooser.cut_along(read, tile.lanes):
            yield Packing(update.name, lanes, "", 0, 0, read.tensor, 0, reason, dtype, group)
            return
        block = chooser.block(read, tile, chooser.depth(read))
        block = self.block(block, read, tile, dtype) if block else 0
        panel = chooser.panel_bytes(read, tile.columns)
        yield Packing(update.name, lanes, tile.lanes, tile.columns, block, read.tensor, panel, reason, dtype, group)

    def block(self, most: int, read: ir.Read, tile: RegisterTile, dtype: DType) -> int:
        """Columns of a block: no more than stay in the first cache, if a panel does, while rows of the other operand
        pass, some in use and as many on their way. A group is read so fast that a farther cache keeps it waiting."""
        line = self.chooser.depth(read) * dtype.itemsize
        room = self.chooser.target.l1_bytes - 2 * tile.height * line
        fitting = room // (line * tile.columns) * tile.columns
        return min(most, fitting) if fitting > 0 else most


_NARROW = {i32: (i8, u8, i16), f32: (bf16,)}
"""The dtypes of factors, by that of their sum."""


def _factors(update: Statement) -> tuple[ir.Read, ir.Read] | None:
    """The two reads, in their order, if the update adds the product of two narrow numbers to a 32-bit sum."""
    reads = [access.read for access in update.reads]
    match update.value:
        case ir.Op("mul", (ir.Cast(ir.Read()), ir.Cast(ir.Read()))) if update.value.dtype in _NARROW:
            is_sum = update.reducer is not None and update.reducer.name == "sum"
            fitting = _NARROW[update.value.dtype]
            narrow = all(read.dtype in fitting and read.boundary is None for read in reads)
            plain = all(isinstance(s, Affine) for read in reads for s in read.subscripts)
            return (reads[0], reads[1]) if is_sum and narrow and plain and len(reads) == 2 else None
        case _:
            return None


def _lanes_dtype(dot: Dot, beside: DType, other: DType) -> DType | None:
    """What the operand of the lanes is copied as, so that the instruction is exact; None where it cannot be."""
    if dot.left == dot.right:
        return dot.left
    if beside.bits != dot.left.bits or other not in (dot.left, dot.right):
        return None
    return dot.left if other == dot.right else dot.right


def _axes(read: ir.Read) -> frozenset[str]:
    return frozenset().union(*(axes_of(s) for s in read.subscripts if isinstance(s, Affine)))


def _is_alone(read: ir.Read, name: str) -> bool:
    """Whether one subscript is the axis, and no other knows it."""
    return [s for s in read.subscripts if isinstance(s, Affine) and name in axes_of(s)] == [axis(name)]


def _is_last(read: ir.Read, name: str) -> bool:
    return read.subscripts[-1] == axis(name)


def _are_distinct(subscripts: Sequence[ir.Subscript]) -> bool:
    """Whether the subscripts are different axes."""
    names = [_name(s) for s in subscripts]
    return None not in names and len(set(names)) == len(names)


def _name(subscript: ir.Subscript) -> str | None:
    """The axis that a subscript is."""
    match subscript:
        case Affine(0, ((AxisRef(name), 1),)):
            return name
        case _:
            return None


# --- applying -------------------------------------------------------------------------------------------------


def apply(before: Scop, packed: Packed, plan: DotPlan) -> Packed:
    """The scop with its copies and with the sums that offsets need, and where groups are.

    before: the scop without copies
    """
    scop, groups = packed.scop, dict(packed.groups)
    for product in plan.products:
        groups[product.update] = Grouped(product.axis, product.dot.points, product.tile.lanes)
        if product.offset:
            scop = _corrected(scop, before, product)
    return replace(packed, scop=scop, groups=groups)


def _corrected(scop: Scop, before: Scop, product: Product) -> Scop:
    """The scop in which the results start lower by the offset times the sums of the other operand, for the sizes that
    have the product."""
    update = before.statement(product.update)
    update = replace(update, domain=update.domain.intersect_params(scop.statement(product.update).domain.params()))
    read = update.reads[product.other].read
    names = {s.name for s in scop.statements} | {a.name for a in scop.arrays}
    # an array's name is free where those of the statements that write it are, too
    parts = {name.removesuffix(part) for name in names for part in ("_init", "_update")}
    name = unused(f"{read.tensor}_sums", names | parts)
    own = [axis_name for axis_name in update.axes if axis_name in _axes(read)]
    written = {_name(s) for s in update.subscripts}
    free = tuple(axis_name for axis_name in own if axis_name in written)
    sums = _Sums(scop, update, read, name, free, tuple(a for a in own if a not in free))
    (start,) = (scop.statement(s.name) for s in before.writers(update.array) if s.name != update.name)
    corrected = sums.taken_off(start, product.offset)
    statements = [corrected if s is start else s for s in scop.statements]
    return replace(scop, statements=(*sums.statements(), *statements), arrays=(*scop.arrays, sums.array()))


@dataclass(slots=True, eq=False)
class _Sums:
    """`sums[free] = sum of the operand over the axes in `reduced``, as the contraction sums its products."""

    scop: Scop
    update: Statement
    read: ir.Read
    name: str
    free: tuple[str, ...]
    reduced: tuple[str, ...]

    def array(self) -> Array:
        result = self.scop.array(self.update.array).shape
        extents = {_name(s): extent for s, extent in zip(self.update.subscripts, result, strict=True)}
        return Array(self.name, i32, tuple(extents[name] for name in self.free), "local")

    def statements(self) -> tuple[Statement, Statement]:
        assert self.update.reducer is not None, "a contraction sums"
        value = ir.Cast(self.read, i32)
        start = self.statement(f"{self.name}_init", self.free, "init", ir.Const(0, i32))
        added = self.statement(f"{self.name}_update", (*self.free, *self.reduced), "update", value)
        return start, added

    def statement(self, name: str, axes: tuple[str, ...], role: Literal["init", "update"], value: ir.Expr) -> Statement:
        space = Space(name, axes, self.scop.sizes)
        around = Space(self.update.name, self.update.axes, self.scop.sizes)
        points = around.access(name, [axis(a) for a in axes]).intersect_domain(self.update.domain).range()
        domain = named(points, axes)
        written = tuple(axis(a) for a in self.free)
        subscripts = [s for s in self.read.subscripts if isinstance(s, Affine)]
        reads: tuple[Access, ...] = ()
        if role == "update":
            reads = (Access(self.read, space.access(self.read.tensor, subscripts).intersect_domain(domain)),)
        write = space.access(self.name, written).intersect_domain(domain)
        reducer, span = self.update.reducer if role == "update" else None, self.update.span
        return Statement(name, axes, domain, role, self.name, written, value, write, reads, reducer, span)

    def taken_off(self, start: Statement, factor: int) -> Statement:
        """The statement with its value less `factor` times the sum for its element."""
        own = dict(zip((_name(s) for s in self.update.subscripts), start.subscripts, strict=True))
        subscripts = tuple(s for s in (own[name] for name in self.free) if isinstance(s, Affine))
        read = ir.Read(self.name, subscripts, i32, span=start.span)
        product: ir.Expr = ir.Op("mul", (read, ir.Const(-factor, i32)), i32)
        value = product if start.value == ir.Const(0, i32) else ir.Op("add", (start.value, product), i32)
        space = Space(start.name, start.axes, self.scop.sizes)
        access = Access(read, space.access(self.name, subscripts).intersect_domain(start.domain))
        return replace(start, value=value, reads=(*start.reads, access))
