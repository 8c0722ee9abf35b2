"""The copies of a pack plan, applied: each is a statement like any other, and the contraction reads what it writes.

A copy has a panel's number first, then the operand's other dimensions in the order in which the contraction steps
through them, then the columns of the panel. Where one instruction takes a group of neighbours along a sum, the groups
stand in that dimension's place, and a group's elements lie side by side behind the columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import reduce

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, Compare, axes_of, axis, constant
from polyopt.names import unused
from polyopt.poly.dependence import Dependences
from polyopt.poly.distance import DistanceTester
from polyopt.poly.roles import Roles, roles_of
from polyopt.poly.scop import Access, Array, Scop, Statement
from polyopt.poly.space import Space, bounds, coalesced, stretched
from polyopt.tiling import produced, versions
from polyopt.tiling.pack import Packing, PackPlan, batches_of, cut_dimension, start_column

ROWS_INSIDE = 2
"""Axes along the columns of a computed block that it scans inside its terms: a run of a few rows is written on end.
Where the block begins and ends in the outer ones, such as images of a batch, takes divisions, once and not for each
term."""

TERMS_INSIDE = 8
"""Points of the outermost sum that a block scans inside its rows where those are cut anywhere: where a row begins and
ends, and the masks of its vectors, are found once for them. So few that the lines which rows share stay in the first
cache."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """How a statement reads or writes groups side by side.

    axis:   along which a group's elements are neighbours; points: how many
    lanes:  the axis along which groups are
    """

    axis: str
    points: int
    lanes: str

    @property
    def place(self) -> Affine:
        """Where an element is within its group."""
        return axis(self.axis) % self.points


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """The scop with its copies.

    rows:   names and rows of the loops over blocks that come before a statement's own
    groups: of the contractions and copies that have any
    shared: names and rows of loops that a contraction, its start and its copy run in together, before all others
    """

    scop: Scop
    rows: Mapping[str, tuple[tuple[str, Affine], ...]]
    groups: Mapping[str, Grouped] = field(default_factory=dict)
    shared: Mapping[str, tuple[tuple[str, Affine], ...]] = field(default_factory=dict)


def apply(scop: Scop, dependences: Dependences, plan: PackPlan) -> Packed:
    """The scop with a copy statement for each packing, and block rows for all that shares the loop over blocks."""
    rows: dict[str, tuple[tuple[str, Affine], ...]] = {}
    groups: dict[str, Grouped] = {}
    shared: dict[str, tuple[tuple[str, Affine], ...]] = {}
    if plan.few is not None:
        scop = versions.split(scop, plan.few)
    for packing in plan.packings:
        if packing.is_computed:
            scop, blocks_of = _computed(scop, dependences, packing, frozenset(rows))
            rows |= blocks_of
            continue
        if packing.terms is not None:
            copy = _Copy.of(scop, packing)
            shared |= _by_terms(copy, {name for of in shared.values() for name, _ in of})
            rows[copy.name] = tuple((name, axis(name)) for name in copy.scanned)
            scop = copy.applied()
            continue
        tile = unused(f"{packing.axis}_tile", _axes_of_all(scop))
        sharing: Mapping[str, str] = {}
        if packing.block:
            sharing = _sharing(packing.update, packing.axis, dependences, scop)
            sharing = {} if any(name in rows for name in sharing) else sharing
        blocks = {name: ((tile, axis(column) // packing.block),) for name, column in sharing.items()}
        copy = _Copy.of(scop, packing)
        scop = copy.applied()
        first = ((tile, axis(packing.axis) // packing.block),) if blocks else ()
        rows |= {**blocks, copy.name: (*first, *((name, axis(name)) for name in copy.scanned))}
        groups |= copy.groups
    return Packed(scop, rows, groups, shared)


def _by_terms(copy: _Copy, taken: set[str]) -> dict[str, tuple[tuple[str, Affine], ...]]:
    """The loops over blocks of columns and of terms, which must run in this order around the contraction and its copy;
    its start is in those over columns.

    taken: names of loops
    """
    packing, update = copy.packing, copy.update
    assert packing.terms is not None, "terms are copied a block at a time"
    summed, terms = packing.terms
    others = (s for s in copy.scop.writers(update.array) if s is not update)
    (start,) = (
        s for s in others if not s.domain.params().is_disjoint(update.domain.params())
    )  # not of another version
    taken = taken | _axes_of_all(copy.scop)
    columns, over_terms = (unused(f"{name}_tile", taken) for name in (packing.axis, summed))
    outer = ((columns, axis(packing.axis) // packing.block),) if packing.block else ()
    both = (*outer, (over_terms, axis(summed) // terms))
    found = {update.name: both, copy.name: both}
    if outer:
        column = start_column(update, start, packing.axis)
        assert column is not None, "terms are copied a block at a time where the start knows its column"
        found[start.name] = ((columns, column // packing.block),)
    return found


def _computed(
    scop: Scop, dependences: Dependences, packing: Packing, settled: frozenset[str]
) -> tuple[Scop, dict[str, tuple[tuple[str, Affine], ...]]]:
    """The scop in which the operand's own statement computes it block by block, and the rows of the loops over blocks,
    inside those over results that have blocks of their own.

    settled: statements that share the loops over blocks of another operand
    """
    copy = _Copy.of(scop, packing)
    update, read = copy.update, copy.access.read
    (writer,) = scop.writers(packing.array)
    panel = unused(f"{packing.axis}_panel", _axes_of_all(scop))
    along = writer.subscripts[copy.dimension(packing.axis)]
    assert isinstance(along, Affine), "what computes an operand has affine subscripts"
    written = copy.place(writer.subscripts, axis(panel))
    own = produced.statement_for(scop, writer, copy.name, (panel, along // packing.points), written, packing.dtype)
    loops: list[tuple[str, Affine, Mapping[str, Affine]]] = []  # name, row of the operand's statement, others' rows
    for batch in batches_of(roles_of(update), read, packing.axis):
        row = writer.subscripts[copy.dimension(batch)]
        assert isinstance(row, Affine), "what computes an operand has affine subscripts"
        sharing = {n: axis(a) for n, a in _sharing(update.name, batch, dependences, scop).items()}
        # a statement may have an axis of that name for something else, whose place the loop would take
        others = {a for n in sharing for a in scop.statement(n).axes if axis(a) != sharing[n]}
        others |= {a for a in writer.axes if axis(a) != row}
        loops.append((unused(batch, others), row, sharing))
    source = scop.array(packing.array)
    array = Array(copy.name, packing.dtype or source.dtype, copy.shape(source), "local")
    if array.shape[0] != constant(1):
        columns = _sharing(update.name, packing.axis, dependences, scop)
        loops.append((panel, axis(panel), {n: axis(a) // packing.points for n, a in columns.items()}))
    together = (
        set.intersection(*(set(sharing) for _, _, sharing in loops)) - {writer.name} - settled if loops else set()
    )
    rows = {n: tuple((loop, sharing[n]) for loop, _, sharing in loops) for n in sorted(together)}
    first = [(loop, row) for loop, row, _ in loops]
    rows[own.name] = (*first, *_rows_inside(own, along, first))
    changed = {writer.name: own, update.name: copy.redirected()}
    statements = tuple(changed.get(s.name, s) for s in scop.statements)
    arrays = (*(a for a in scop.arrays if a is not source), array)
    return replace(scop, statements=statements, arrays=arrays), rows


def _rows_inside(own: Statement, along: Affine, blocks: Sequence[tuple[str, Affine]]) -> Iterator[tuple[str, Affine]]:
    """Names and rows of the loops that come first within a block, of what computes it in an order of its own.

    along:  the column that an instance is for
    blocks: the loops over blocks
    """
    columns = [name for name in own.axes if name in axes_of(along)]
    outside = {axis(own.axes[0]), *(row for _, row in blocks)}  # the first axis is the number of the block
    terms = [name for name in own.axes if name not in columns and axis(name) not in outside]
    outer = columns[:-ROWS_INSIDE]
    yield from ((name, axis(name)) for name in outer)
    if outer and terms:
        taken = {*own.axes, *(name for name, _ in blocks)}
        yield unused(f"{terms[0]}_tile", taken), axis(terms[0]) // TERMS_INSIDE
        yield columns[-ROWS_INSIDE], axis(columns[-ROWS_INSIDE])


def _sharing(update: str, along: str, dependences: Dependences, scop: Scop) -> Mapping[str, str]:
    """The statements that can share a loop over an axis of a contraction, or over blocks of it: the axis of each, found
    along coincident dependences."""
    tester, roles = DistanceTester.of(scop), Roles.of(scop)
    apart = dependences.recurrent
    found = {update: along}
    work = [update]
    while work:
        name = work.pop()
        for dependence in dependences.ordered:
            if name not in (dependence.source, dependence.target):
                continue
            other = dependence.target if dependence.source == name else dependence.source
            if other in found or other in apart or other not in roles.by_statement:
                continue  # one that computes the blocks of another operand has a name of its own
            if roles.by_statement[other].contraction:
                continue
            for candidate in roles.by_statement[other].free:
                if tester.is_coincident([dependence], {name: axis(found[name]), other: axis(candidate)}):
                    found[other] = candidate
                    work.append(other)
                    break
    return found


@dataclass(slots=True, eq=False)
class _Copy:
    """One copy under construction.

    name:     of the array and of the statement that writes it
    order:    the operand's dimensions as the copy has them, without the one that panels are cut along
    elements: the copy statement's axis for each dimension of the operand
    """

    scop: Scop
    packing: Packing
    update: Statement
    access: Access
    name: str
    order: tuple[int, ...] = ()
    elements: tuple[str, ...] = ()

    @staticmethod
    def of(scop: Scop, packing: Packing) -> _Copy:
        update = scop.statement(packing.update)
        names = {s.name for s in scop.statements} | {a.name for a in scop.arrays}
        access = update.reads[packing.read]
        copy = _Copy(scop, packing, update, access, unused(f"{packing.array}_packed", names))
        copy.order = copy.inner_order()
        cut = packing.axis or update.axes[0]
        copy.elements = tuple(_element_axis(update, access.read, d, cut) for d in range(len(access.read.subscripts)))
        return copy

    def applied(self) -> Scop:
        """The scop with the copy, which the contraction reads instead of the operand."""
        update, redirected = self.update, self.redirected()
        statements = tuple(redirected if s is update else s for s in self.scop.statements)
        source = self.scop.array(self.packing.array)
        array = Array(self.name, self.packing.dtype or source.dtype, self.shape(source), "local", padded=True)
        return replace(self.scop, statements=(self.statement(), *statements), arrays=(*self.scop.arrays, array))

    @property
    def scanned(self) -> tuple[str, ...]:
        """The axes that the copy scans first: along the rows of an operand whose columns are neighbours."""
        along = self.packing.axis and self.dimension(self.packing.axis) == len(self.elements) - 1
        return tuple(self.elements[d] for d in self.order) if along else ()

    @property
    def groups(self) -> dict[str, Grouped]:
        group = self.packing.group
        if group is None or not group.lanes:
            return {}
        own = [self.elements[self.dimension(name)] for name in (group.axis, group.lanes)]
        return {
            self.name: Grouped(own[0], group.points, own[1]),
            self.update.name: Grouped(group.axis, group.points, group.lanes),
        }

    # --- the layout -------------------------------------------------------------------------------------------

    def dimension(self, name: str) -> int:
        """The first dimension of the operand whose subscript knows an axis."""
        return cut_dimension(self.access.read, name)

    def inner_order(self) -> tuple[int, ...]:
        """The operand's other dimensions: in the order in which the contraction's loops step through them, or as they
        are where no panels are cut. Lanes, or groups in a row, come last."""
        subscripts, packing = self.access.read.subscripts, self.packing
        if packing.axis:
            cut = self.dimension(packing.axis)
            others = [d for d in range(len(subscripts)) if d != cut]
            return tuple(sorted(others, key=lambda d: self.depth(subscripts[d])))
        if packing.group is None:
            return tuple(range(len(subscripts)))
        last = self.dimension(packing.group.lanes or packing.group.axis)
        return (*(d for d in range(len(subscripts)) if d != last), last)

    def depth(self, subscript: ir.Subscript) -> int:
        assert isinstance(subscript, Affine), "a packed operand has affine subscripts"
        return max((self.update.axes.index(name) for name in axes_of(subscript)), default=-1)

    def place(self, subscripts: Sequence[ir.Subscript], panel: Affine) -> tuple[Affine, ...]:
        """Where an element of the operand lies in the copy."""
        affine = [s for s in subscripts if isinstance(s, Affine)]
        group, inside = self.packing.group, tuple[Affine, ...]()
        cut = self.dimension(self.packing.axis) if self.packing.axis else -1
        if group is not None and group.lanes:
            along = self.dimension(group.axis)
            inside = (affine[along] % group.points,)
            affine[along] = affine[along] // group.points
        place = tuple(affine[d] for d in self.order)
        if self.packing.axis:
            place = (panel, *place, affine[cut] - panel * self.packing.points)
        return (*place, *inside)

    def shape(self, source: Array) -> tuple[Affine, ...]:
        group, extents = self.packing.group, list(source.shape)
        inside: tuple[Affine, ...] = ()
        if group is not None:
            extents[self.dimension(group.axis)] = constant(
                group.extent // group.points if group.lanes else group.extent
            )
            inside = (constant(group.points),) if group.lanes else ()
        shape = tuple(extents[d] for d in self.order)
        if self.packing.axis:
            length, points = source.shape[self.dimension(self.packing.axis)], self.packing.points
            shape = ((length + points - 1) // points, *shape, constant(points))
        return (*shape, *inside)

    # --- the statements ---------------------------------------------------------------------------------------

    def statement(self) -> Statement:
        """`packed[panel, e.., j - panel * points] = operand[e.., j]` for every element read."""
        packing, read = self.packing, self.access.read
        others = tuple(self.elements[d] for d in self.order)
        panel = _fresh_axis(f"{packing.axis}_panel", self.update)
        axes = (panel, *others, packing.axis) if packing.axis else others
        space = Space(self.name, axes, self.scop.sizes)
        source = space.access(read.tensor, [axis(e) for e in self.elements])
        held = source.intersect_range(self.elements_read()).domain()
        if packing.axis:
            held &= space.aff(axis(panel)).eq_set(space.aff(axis(packing.axis) // packing.points))
        element = ir.Read(read.tensor, tuple(axis(e) for e in self.elements), read.dtype, span=read.span)
        domain, value = self.filled(held, axes, self.value(element))
        written = self.place(element.subscripts, axis(panel))
        return Statement(
            self.name,
            axes,
            domain,
            "define",
            self.name,
            written,
            value,
            space.access(self.name, written).intersect_domain(domain),
            (Access(element, source.intersect_domain(held)),),
            span=self.update.span,
        )

    def elements_read(self) -> isl.Set:
        """The elements of the operand that the contraction reads, in whichever of its branches."""
        own = [access.relation.range() for access in self.update.reads if access.read == self.access.read]
        return coalesced(reduce(isl.Set.union, own))

    def value(self, element: ir.Read) -> ir.Expr:
        """The element as the copy has it."""
        group, own = self.packing.group, element.dtype
        value: ir.Expr = element
        if group is not None and group.flips:
            highest = 1 << (own.bits - 1)
            value = ir.Op("xor", (value, ir.Const(-highest if own.kind == "i" else highest, own)), own)
        dtype = self.packing.dtype or own
        return value if dtype == own else ir.Cast(value, dtype)

    def filled(self, held: isl.Set, axes: Sequence[str], value: ir.Expr) -> tuple[isl.Set, ir.Expr]:
        """The copy's instances and value: zeros where the last group goes on past the elements that are read."""
        group = self.packing.group
        if group is None:
            return held, value
        name = self.elements[self.dimension(group.axis)]
        domain = stretched(held, axes.index(name), group.extent)
        if domain.is_equal(held):
            return held, value
        read = bounds(held, axes.index(name)).upper[0]
        inside = Compare(read - 1 - axis(name), ">=")
        return domain, ir.Where(inside, value, ir.Const(0, value.dtype), value.dtype)

    def redirected(self) -> Statement:
        """The update reading the copy instead of the operand, in whole groups."""
        packing, group, update, old = self.packing, self.packing.group, self.update, self.access.read
        subscripts = self.place(old.subscripts, axis(packing.axis) // packing.points if packing.axis else constant(0))
        new = replace(old, tensor=self.name, subscripts=subscripts, dtype=packing.dtype or old.dtype)
        is_converted = packing.dtype is not None and group is None
        replaced: ir.Expr = ir.Cast(old, new.dtype) if is_converted else old

        def visit(expr: ir.Expr) -> ir.Expr:
            expr = ir.rebuild(expr, visit)
            return new if expr == replaced else expr

        space = Space(update.name, update.axes, self.scop.sizes)

        def whole(points: isl.Set) -> isl.Set:
            return points if group is None else stretched(points, update.axes.index(group.axis), group.extent)

        def from_copy(access: Access) -> Access:
            happens = whole(access.relation.domain())
            return Access(new, space.access(self.name, subscripts).intersect_domain(happens))

        domain = whole(update.domain)
        reads = tuple(from_copy(a) if a.read == old else a for a in update.reads)
        written = [s for s in update.subscripts if isinstance(s, Affine)]
        write = update.write if group is None else space.access(update.array, written).intersect_domain(domain)
        return replace(update, domain=domain, value=visit(update.value), write=write, reads=reads)


def _element_axis(update: Statement, read: ir.Read, dimension: int, cut: str) -> str:
    """The axis alone in a subscript, or a name for the elements of the dimension that no axis has."""
    names = [_axis_alone(s) for s in read.subscripts]
    name = names[dimension]
    return name if name is not None and names.count(name) == 1 else _fresh_axis(f"{cut}_element{dimension}", update)


def _axis_alone(subscript: ir.Subscript) -> str | None:
    """The axis that a subscript is, if it is just that."""
    if isinstance(subscript, Affine) and len(subscript.terms) == 1:
        atom, _ = subscript.terms[0]
        if isinstance(atom, AxisRef) and subscript == axis(atom.name):
            return atom.name
    return None


def _axes_of_all(scop: Scop) -> set[str]:
    """The axes of all statements: a loop that several share must be called otherwise."""
    return {name for s in scop.statements for name in s.axes}


def _fresh_axis(name: str, statement: Statement) -> str:
    return unused(name, set(statement.axes))
