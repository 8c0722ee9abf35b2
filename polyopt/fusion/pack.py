"""Copies of an operand's panel to contiguous storage, where the operand's own layout defeats the cache.

The rows of a panel that lie a large power of two apart fall into few sets of the cache and evict one another. A
contraction whose operand does so is cut into column tiles, and each tile first copies the panel that it reads, to
be read many times from where it lies densely. The copy is a statement like any other, so that the dependences, the
storage and the proof need no special case. Sources: [GotoBLAS08], [BLIS15].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

import islpy as isl

from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, axis, constant
from polyopt.fusion.attach import Attached
from polyopt.poly.dependence import Dependences
from polyopt.poly.distance import DistanceTester
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Access, Array, Scop, Statement
from polyopt.poly.space import Space

_SET, _OUT = isl.dim_type.set, isl.dim_type.out

COLUMNS = 64
"""Columns of a packed panel: what the widest register tile takes."""

LEAST_REUSE = 32
"""Rows that must pass over a panel for its copy to pay."""

WAYS, LINE_BYTES = 8, 64
"""Associativity and line of the second cache, as on most processors."""


@dataclass(frozen=True, slots=True)
class Packing:
    """One operand of one contraction.

    update:  the contraction
    read:    number of the operand among the statement's reads
    columns: the axis that the panel is cut along
    """

    update: str
    read: int
    columns: str
    array: str
    panel_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.array} packed for {self.update} by {COLUMNS} columns of {self.columns}: "
            f"rows of the panel ({self.panel_bytes} bytes) share sets of the cache"
        )


@dataclass(frozen=True, slots=True)
class PackPlan:
    """The packings of a scop."""

    packings: tuple[Packing, ...] = ()

    def __str__(self) -> str:
        return "\n".join(str(packing) for packing in self.packings)


def decide(scop: Scop, dependences: Dependences, *, cache_bytes: int) -> PackPlan:
    """The operands worth packing, for a second cache of `cache_bytes`. Static sizes only."""
    if scop.sizes:
        return PackPlan()
    roles = Roles.of(scop)
    recurrent = dependences.recurrent
    found = (
        _packing(scop, roles, statement, number, cache_bytes)
        for statement in scop.statements
        if roles.by_statement[statement.name].contraction and statement.name not in recurrent
        for number in range(len(statement.reads))
    )
    one_each: dict[str, Packing] = {}
    for packing in found:
        if packing is not None:
            one_each.setdefault(packing.update, packing)
    return PackPlan(tuple(one_each.values()))


def _packing(scop: Scop, roles: Roles, update: Statement, number: int, cache_bytes: int) -> Packing | None:
    read = update.reads[number].read
    own = roles.by_statement[update.name]
    axes = [_single_axis(subscript) for subscript in read.subscripts]
    if read.boundary is not None or not axes or None in axes or len(set(axes)) < len(axes):
        return None
    columns = axes[-1]
    if columns not in own.free or not set(own.reduced) & set(axes):
        return None
    rows = [a for a in own.free if a not in axes]
    if not rows or max(_extent(update, a) for a in rows) < LEAST_REUSE or _extent(update, columns) <= COLUMNS:
        return None
    array = scop.array(read.tensor)
    depth = 1
    for name in own.reduced:
        depth *= _extent(update, name) if name in axes else 1
    row_bytes = array.shape[-1].constant * array.dtype.itemsize
    panel_bytes = depth * COLUMNS * array.dtype.itemsize
    if 2 * panel_bytes <= _usable(cache_bytes, row_bytes, COLUMNS * array.dtype.itemsize):
        return None
    return Packing(update.name, number, columns, array.name, panel_bytes)


def _usable(cache_bytes: int, row_bytes: int, width_bytes: int) -> int:
    """Bytes of the cache that the rows of a panel can occupy, `row_bytes` apart and `width_bytes` wide."""
    way = cache_bytes // WAYS
    distinct_rows = way // gcd(row_bytes, way) if row_bytes else 1
    return min(way, distinct_rows * max(width_bytes, LINE_BYTES)) * WAYS


def _single_axis(subscript: ir.Subscript) -> str | None:
    if isinstance(subscript, Affine) and subscript.constant == 0 and len(subscript.terms) == 1:
        atom, coefficient = subscript.terms[0]
        if isinstance(atom, AxisRef) and coefficient == 1:
            return atom.name
    return None


def _extent(statement: Statement, name: str) -> int:
    position = statement.axes.index(name)
    low, high = statement.domain.dim_min_val(position), statement.domain.dim_max_val(position)
    return int(high.to_python()) - int(low.to_python()) + 1


# --- applying -------------------------------------------------------------------------------------------------


def apply(attached: Attached, dependences: Dependences, plan: PackPlan) -> Attached:
    """The scop with a copy statement for each packing, and tile rows for all that shares the tile loop with it."""
    scop, rows = attached.scop, dict(attached.rows)
    for packing in plan.packings:
        tester = DistanceTester.of(scop)
        tile = f"{packing.columns}_tile"
        sharing = _sharing(packing, dependences, tester, Roles.of(scop))
        if any(name in rows for name in sharing):
            continue
        scop = _packed(scop, packing, tile)
        rows |= {name: ((tile, axis(column) // COLUMNS),) for name, column in sharing.items()}
    return Attached(scop, rows)


def _sharing(packing: Packing, dependences: Dependences, tester: DistanceTester, roles: Roles) -> Mapping[str, str]:
    """The statements that can share the tile loop: the column axis of each, found along coincident dependences."""
    apart = dependences.recurrent
    found = {packing.update: packing.columns}
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


def _packed(scop: Scop, packing: Packing, tile: str) -> Scop:
    update = scop.statement(packing.update)
    access = update.reads[packing.read]
    names = {s.name for s in scop.statements} | {a.name for a in scop.arrays}
    name = _fresh(f"{packing.array}_packed", names)
    source = scop.array(packing.array)
    copy = _copy_statement(scop, update, access, name, tile)
    count = -(-source.shape[-1].constant // COLUMNS)
    array = Array(name, source.dtype, (constant(count), *source.shape), "local")
    redirected = _redirected(scop, update, access, name, axis(packing.columns) // COLUMNS)
    statements = tuple(redirected if s is update else s for s in scop.statements)
    return replace(scop, statements=(copy, *statements), arrays=(*scop.arrays, array))


def _copy_statement(scop: Scop, update: Statement, access: Access, name: str, tile: str) -> Statement:
    """`packed[tile, e] = operand[e]` for every element that a tile reads."""
    read = access.read
    axes = (tile, *(str(_single_axis(s)) for s in read.subscripts))
    space = Space(name, axes, scop.sizes)
    column = axis(axes[-1])
    elements = access.relation.range().reset_tuple_id().insert_dims(_SET, 0, 1)
    for position, axis_name in enumerate(axes):
        elements = elements.set_dim_name(_SET, position, axis_name)
    domain = elements.set_tuple_name(name) & space.aff(axis(tile)).eq_set(space.aff(column // COLUMNS))
    value = ir.Read(read.tensor, tuple(axis(a) for a in axes[1:]), read.dtype, span=read.span)
    return Statement(
        name,
        axes,
        domain,
        "define",
        name,
        tuple(axis(a) for a in axes),
        value,
        space.access(name, [axis(a) for a in axes]).intersect_domain(domain),
        (Access(value, space.access(read.tensor, [axis(a) for a in axes[1:]]).intersect_domain(domain)),),
        span=update.span,
    )


def _redirected(scop: Scop, update: Statement, access: Access, name: str, tile: Affine) -> Statement:
    """The update reading the packed panel instead of the operand."""
    old = access.read
    new = replace(old, tensor=name, subscripts=(tile, *old.subscripts))

    def visit(expr: ir.Expr) -> ir.Expr:
        expr = ir.rebuild(expr, visit)
        return new if expr == old else expr

    space = Space(update.name, update.axes, scop.sizes)
    prefix = isl.Map.from_aff(space.aff(tile))
    relation = prefix.flat_range_product(access.relation.reset_tuple_id(_OUT)).set_tuple_name(_OUT, name)
    reads = tuple(Access(new, relation) if a.read == old else a for a in update.reads)
    return replace(update, value=visit(update.value), reads=reads)


def _fresh(name: str, taken: Sequence[str] | set[str]) -> str:
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
