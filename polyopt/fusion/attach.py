"""Producers of windows, computed anew in each tile of their consumer.

A consumer that reads its producer at several offsets cannot share a loop with it, so the producer's array would
travel through memory. Instead the consumer is cut into tiles, and each tile computes the part of the producers
that it reads, halo included, into a buffer of its own (overlapped tiles). A producer gets the tile's coordinates
as leading axes of its domain and of its array, so that every later stage, the proof included, sees ordinary
statements. Sources: [Halide13] for the trade, [PPCG13] and [Zhao20] for footprints of tiles.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, axis, constant
from polyopt.names import unused
from polyopt.poly.dependence import Dependences
from polyopt.poly.distance import DistanceTester
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Access, Array, Scop, Statement
from polyopt.poly.space import Space, coalesced

_SET, _IN, _OUT = isl.dim_type.set, isl.dim_type.in_, isl.dim_type.out

LARGEST_REPEAT = 1.5
"""Most instances of a producer that tiles may compute, for each one that the whole array needs."""

COLUMNS = 256
"""Points of a tile along the innermost axis: a few dozen vectors."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """One consumer and the producers that its tiles compute.

    consumer: the statement that is cut into tiles
    axes:     its tiled axes, outermost first, and the points of a tile along each
    arrays:   the producers' arrays
    repeat:   instances computed for each one needed, at most
    """

    consumer: str
    axes: tuple[tuple[str, int], ...]
    arrays: tuple[str, ...]
    repeat: float
    kept_bytes: int

    def __str__(self) -> str:
        tile = " x ".join(str(points) for _, points in self.axes)
        return (
            f"{', '.join(self.arrays)} computed in each {tile} tile of {self.consumer}: "
            f"{self.kept_bytes} bytes a tile instead of whole arrays, {self.repeat:.2f} times the work"
        )


@dataclass(frozen=True, slots=True)
class AttachPlan:
    """The attachments of a scop; usually none or one."""

    attachments: tuple[Attachment, ...] = ()

    def __str__(self) -> str:
        return "\n".join(str(a) for a in self.attachments)


@dataclass(frozen=True, slots=True, eq=False)
class Attached:
    """A scop whose producers are recomputed by tile, and the tile rows that a consumer's loops start with.

    rows: for each tiled consumer, the name of a tile loop and the row of the consumer in it, outermost first
    """

    scop: Scop
    rows: Mapping[str, tuple[tuple[str, Affine], ...]]


def decide(scop: Scop, dependences: Dependences, *, cache_bytes: int) -> AttachPlan:
    """The consumers worth tiling, for a cache of `cache_bytes` per thread."""
    planner = _Planner(scop, dependences, DistanceTester.of(scop), Roles.of(scop), cache_bytes)
    found = [planner.attachment(statement) for statement in scop.statements]
    return AttachPlan(tuple(attachment for attachment in found if attachment is not None))


@dataclass(frozen=True, slots=True)
class _Planner:
    scop: Scop
    dependences: Dependences
    tester: DistanceTester
    roles: Roles
    cache_bytes: int

    def attachment(self, consumer: Statement) -> Attachment | None:
        if consumer.role != "define" or self.scop.array(consumer.array).role != "output":
            return None
        if consumer.name in self.dependences.recurrent:
            return None
        arrays = self.producers(consumer)
        if not arrays or self.is_near(arrays):
            return None
        free = self.roles.by_statement[consumer.name].free
        if len(free) < 2 or not self.reads_windows(consumer, arrays):
            return None
        if any(_first(consumer, a) is None or _last(self.scop, consumer, a) is None for a in free[-2:]):
            return None
        extents = [self.extent(consumer, name) for name in free[-2:]]
        held = sum(self.scop.array(array).dtype.itemsize for array in arrays)
        columns = min(COLUMNS, extents[1])
        rows = max(8, min(extents[0], self.cache_bytes // 2 // max(columns * held, 1)))
        if rows >= extents[0] and columns >= extents[1]:
            return None
        halo = self.halo(arrays)
        repeat = (rows + halo) * (columns + halo) / (rows * columns)
        if repeat > LARGEST_REPEAT:
            return None
        tile = ((free[-2], rows), (free[-1], columns))
        return Attachment(consumer.name, tile, arrays, repeat, (rows + halo) * (columns + halo) * held)

    def producers(self, consumer: Statement) -> tuple[str, ...]:
        """Local arrays that only the consumer and other such arrays' statements read, without recurrences."""
        recurrent = self.dependences.recurrent
        chosen: dict[str, None] = {}
        candidates = [a.name for a in reversed(self.scop.arrays) if a.role == "local" and len(a.shape) >= 2]
        changed = True
        while changed:
            changed = False
            for array in candidates:
                if array in chosen or not self.is_attachable(array, recurrent):
                    continue
                readers = {s.name for s in self.scop.statements if any(a.read.tensor == array for a in s.reads)}
                inside = {consumer.name} | {s.name for name in chosen for s in self.scop.writers(name)}
                if readers and readers <= inside:
                    chosen[array] = None
                    changed = True
        return tuple(chosen)

    def is_attachable(self, array: str, recurrent: frozenset[str]) -> bool:
        writers = self.scop.writers(array)
        return all(
            s.name not in recurrent
            and not self.roles.by_statement[s.name].contraction
            and all(isinstance(subscript, Affine) for subscript in s.subscripts)
            for s in writers
        )

    def reads_windows(self, consumer: Statement, arrays: Sequence[str]) -> bool:
        """Whether some array is read by one statement at several offsets."""
        readers = [consumer, *(s for array in arrays for s in self.scop.writers(array))]
        return any(
            len({access.read.subscripts for access in s.reads if access.read.tensor == array}) > 1
            for s in readers
            for array in arrays
        )

    def is_near(self, arrays: Sequence[str]) -> bool:
        """Whether the cache holds the arrays whole, as far as that is known."""
        is_known = all(extent.is_constant for array in arrays for extent in self.scop.array(array).shape)
        return is_known and sum(self.roles.bytes(array) for array in arrays) <= self.cache_bytes

    def extent(self, statement: Statement, name: str) -> int:
        """How many points an axis has; many where sizes are open."""
        ends = _ends(statement, name)
        return sys.maxsize if ends is None else ends[1] - ends[0] + 1

    def halo(self, arrays: Sequence[str]) -> int:
        """Rows or columns that a tile computes beyond its own, summed over the chain of windows."""
        total = 0
        for array in arrays:
            widest = 0
            for statement in self.scop.statements:
                reads = [a.read.subscripts for a in statement.reads if a.read.tensor == array]
                for position in range(len(self.scop.array(array).shape)):
                    offsets = [at.constant for at in (s[position] for s in reads) if isinstance(at, Affine)]
                    if offsets:
                        widest = max(widest, max(offsets) - min(offsets))
            total += widest
        return total


# --- applying -------------------------------------------------------------------------------------------------


def apply(scop: Scop, plan: AttachPlan) -> Attached:
    """The scop with the producers of every attachment computed by tile."""
    rows: dict[str, tuple[tuple[str, Affine], ...]] = {}
    for attachment in plan.attachments:
        scop, rows[attachment.consumer] = _Attacher(scop, attachment).attached()
    return Attached(scop, rows)


@dataclass(frozen=True, slots=True)
class _Attacher:
    scop: Scop
    attachment: Attachment

    @property
    def tile_axes(self) -> tuple[str, ...]:
        made = [s for array in self.attachment.arrays for s in self.scop.writers(array)]
        taken = {name for s in (self.scop.statement(self.attachment.consumer), *made) for name in s.axes}
        return tuple(unused(f"{name}_tile", taken) for name, _ in self.attachment.axes)

    def attached(self) -> tuple[Scop, tuple[tuple[str, Affine], ...]]:
        consumer = self.scop.statement(self.attachment.consumer)
        coordinates = tuple((axis(name) - self.first(name)) // points for name, points in self.attachment.axes)
        replaced: dict[str, Statement] = {consumer.name: self.redirected(consumer, coordinates)}
        tiles = self.tile_map(consumer, coordinates)
        existing = isl.Set.from_basic_set(tiles.intersect_domain(consumer.domain).range().simple_hull())
        needed = self.needed_by(replaced[consumer.name], tiles)
        own = tuple(axis(name) for name in self.tile_axes)
        for array in self.attachment.arrays:
            for producer in self.scop.writers(array):
                tiled = self.tiled(producer, _box(needed[array], existing), own)
                replaced[producer.name] = tiled
                for name, touched in self.needed_by(tiled, self.tile_map(tiled, own)).items():
                    needed[name] = needed[name] | touched if name in needed else touched
        statements = tuple(replaced.get(s.name, s) for s in self.scop.statements)
        statements = tuple(s for s in statements if not s.domain.is_empty())  # no tile needs those
        arrays = tuple(self.array(a) if a.name in self.attachment.arrays else a for a in self.scop.arrays)
        rows = tuple(zip(self.tile_axes, coordinates, strict=True))
        return replace(self.scop, statements=statements, arrays=arrays), rows

    def array(self, array: Array) -> Array:
        """The array with a copy for each tile; storage will keep one."""
        counts = tuple((self.last(name) - self.first(name)) // points + 1 for name, points in self.attachment.axes)
        return replace(array, shape=(*counts, *array.shape))

    def first(self, name: str) -> int:
        """The point of a tiled axis that tiles are counted from: 0, or the first one where that is below."""
        first = _first(self.scop.statement(self.attachment.consumer), name)
        assert first is not None, "an axis that begins nowhere is not tiled"
        return min(0, first)

    def last(self, name: str) -> Affine:
        """The last point of a tiled axis."""
        consumer = self.scop.statement(self.attachment.consumer)
        last = _last(self.scop, consumer, name)
        assert last is not None, "an axis that ends nowhere is not tiled"
        return last

    def tile_map(self, statement: Statement, coordinates: Sequence[Affine]) -> isl.Map:
        """`{ S[x] -> [tile coordinates] }`"""
        space = Space(statement.name, statement.axes, self.scop.sizes)
        result = isl.Map.from_domain_and_range(space.universe(), Space("", (), self.scop.sizes).universe())
        for coordinate in coordinates:
            result = result.flat_range_product(isl.Map.from_aff(space.aff(coordinate)))
        return result

    def needed_by(self, statement: Statement, tiles: isl.Map) -> dict[str, isl.Map]:
        """For each producer's array, `{ [tile] -> A[element] }` as the statement reads it, without tile subscripts."""
        needed: dict[str, isl.Map] = {}
        of_tile = tiles.intersect_domain(statement.domain).reverse()
        for name, relation in statement.references:
            if name not in self.attachment.arrays:
                continue
            elements = relation.reset_tuple_id(_OUT).project_out(_OUT, 0, len(self.tile_axes))
            touched = of_tile.apply_range(elements)
            needed[name] = needed[name] | touched if name in needed else touched
        return needed

    def tiled(self, producer: Statement, needed: isl.Map, own: Sequence[Affine]) -> Statement:
        """The producer over each tile and the instances whose elements that tile needs."""
        axes = (*self.tile_axes, *producer.axes)
        instances = needed.apply_range(producer.write.reset_tuple_id(_OUT).reverse())
        domain = _named(instances.reset_tuple_id(_OUT).wrap().flatten(), producer.name, axes)
        plain = replace(producer, axes=axes, domain=domain)
        lifted = replace(
            plain,
            subscripts=(*own, *producer.subscripts),
            write=self.lifted(producer.write, plain, own),
            reads=tuple(Access(a.read, self.lifted(a.relation, plain, ())) for a in producer.reads),
        )
        return self.redirected(lifted, own)

    def lifted(self, relation: isl.Map, statement: Statement, coordinates: Sequence[Affine]) -> isl.Map:
        """A relation of the producer's own axes on the tiled domain, with tile subscripts in front."""
        count = len(self.tile_axes)
        name = relation.get_tuple_name(_OUT)
        wide = relation.reset_tuple_id(_IN).insert_dims(_IN, 0, count)
        for position, axis_name in enumerate(statement.axes):
            wide = wide.set_dim_name(_IN, position, axis_name)
        wide = wide.set_tuple_name(_IN, statement.name).intersect_domain(statement.domain)
        if coordinates:
            wide = _prefixed(wide, self.tile_map(statement, coordinates))
        return wide.set_tuple_name(_OUT, name)

    def redirected(self, statement: Statement, coordinates: Sequence[Affine]) -> Statement:
        """The statement with its reads of the producers' arrays turned to the copies of its tile."""
        arrays = self.attachment.arrays
        tiles = self.tile_map(statement, coordinates)

        def visit(expr: ir.Expr) -> ir.Expr:
            expr = ir.rebuild(expr, visit)
            if isinstance(expr, ir.Read) and expr.tensor in arrays:
                return replace(expr, subscripts=(*coordinates, *expr.subscripts))
            return expr

        reads = tuple(
            Access(
                replace(a.read, subscripts=(*coordinates, *a.read.subscripts)),
                _prefixed(a.relation, tiles).set_tuple_name(_OUT, a.read.tensor),
            )
            if a.read.tensor in arrays
            else a
            for a in statement.reads
        )
        return replace(statement, value=visit(statement.value), reads=reads)


def _ends(statement: Statement, name: str) -> tuple[int, int] | None:
    """The first and last point of an axis; None where sizes are open."""
    position = statement.axes.index(name)
    low, high = statement.domain.dim_min_val(position), statement.domain.dim_max_val(position)
    return (int(low.to_python()), int(high.to_python())) if low.is_int() and high.is_int() else None


def _first(statement: Statement, name: str) -> int | None:
    """The first point of an axis; None where sizes decide."""
    low = statement.domain.dim_min_val(statement.axes.index(name))
    return int(low.to_python()) if low.is_int() else None


def _last(scop: Scop, consumer: Statement, name: str) -> Affine | None:
    """The last point of an axis, or one behind it; None where neither numbers nor the shape of what is written say."""
    ends = _ends(consumer, name)
    if ends is not None:
        return constant(ends[1])
    for subscript, extent in zip(consumer.subscripts, scop.array(consumer.array).shape, strict=True):
        offset = subscript - axis(name) if isinstance(subscript, Affine) else axis(name)
        if offset.is_constant:
            return extent - 1 - offset.constant
    return None


def _prefixed(relation: isl.Map, tiles: isl.Map) -> isl.Map:
    """The relation with tile coordinates in front of its elements."""
    return tiles.flat_range_product(relation.reset_tuple_id(_OUT))


def _box(needed: isl.Map, existing: isl.Set) -> isl.Map:
    """The elements that an existing tile computes: what it needs, and the gaps between, which its buffer holds anyway.

    Windows of nine offsets are a union of nine boxes; every relation made of such a domain would be a union of
    products of them, and isl's differences take seconds where those of a box take milliseconds.
    """
    united = coalesced(needed)
    return (
        united if united.n_basic_map() <= 1 else isl.Map.from_basic_map(united.simple_hull()).intersect_domain(existing)
    )


def _named(points: isl.Set, name: str, axes: Sequence[str]) -> isl.Set:
    for position, axis_name in enumerate(axes):
        points = points.set_dim_name(_SET, position, axis_name)
    return points.set_tuple_name(name)
