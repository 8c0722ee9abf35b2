"""Where each array lives: the whole array, a buffer private to one iteration of some loops, or a few planes.

After scheduling, an array that is only used within single iterations of its enclosing loops shrinks to the box
that one iteration touches, and one that a serial loop steps through keeps only as many planes as are alive at
once. A plan is a proposal: `legality.prove` checks it against every value's lifetime. Sources: [Lefebvre98] for
modulo folding, [PPCG13] for boxes per iteration.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, AxisRef, axis, constant
from polyopt.poly import skewed
from polyopt.poly.dependence import Dependence, Dependences
from polyopt.poly.distance import DistanceTester
from polyopt.poly.lifetimes import overwritten, raced, relations
from polyopt.poly.order import Order
from polyopt.poly.scop import Array, Scop
from polyopt.poly.space import Space, affine_from_aff, coalesced, operation_budget
from polyopt.poly.tree import Leaf, Loop, Tree, kinds, statements
from polyopt.poly.tree import Sequence as TreeSequence

_IN, _OUT = isl.dim_type.in_, isl.dim_type.out

_LOG = logging.getLogger(__name__)

WIDEST = 1 << 16
"""Elements that one iteration touches of a dimension whose extent sizes decide."""

FOLD_OPERATIONS = 600_000
"""What isl may do to show that the planes of one array suffice: a twentieth of a second."""

SIDE_OPERATIONS = 50_000
"""What isl may do to find how many elements of a dimension one iteration touches."""


@dataclass(frozen=True, slots=True)
class Storage:
    """The buffer of one array.

    scope:   names of the loops around the buffer, outermost first; empty for a buffer that lives for the call
    offset:  per dimension, the first element held, affine in the scope's loop names (as axes)
    extent:  per dimension, elements held
    modulo:  per dimension, the folding modulus; None where elements are not folded
    strides: elements from one to the next along each dimension; None for rows one after the other
    """

    array: str
    scope: tuple[str, ...]
    offset: tuple[Affine, ...]
    extent: tuple[Affine, ...]
    modulo: tuple[int | None, ...]
    strides: tuple[int, ...] | None = None

    @property
    def is_folded(self) -> bool:
        return any(m is not None for m in self.modulo)

    def __str__(self) -> str:
        where = f"private to an iteration of {self.scope[-1]}" if self.scope else "whole call"
        shape = ", ".join(f"{e}" if m is None else f"{m} planes" for e, m in zip(self.extent, self.modulo, strict=True))
        order = "" if self.strides is None else ", one antidiagonal after the other"
        return f"{self.array}[{shape}]: {where}{order}"


@dataclass(frozen=True, slots=True)
class StoragePlan:
    """Storage of every local array."""

    buffers: tuple[Storage, ...]

    def of(self, array: str) -> Storage | None:
        return next((b for b in self.buffers if b.array == array), None)

    def __str__(self) -> str:
        return "\n".join(str(b) for b in self.buffers) or "no temporaries"


def decide(scop: Scop, dependences: Dependences, tree: Tree, schedule: isl.Schedule) -> StoragePlan:
    """The smallest storage found for each local array under the final schedule (`tree`, and the same as isl's)."""
    planner = _Planner(scop, dependences, DistanceTester.of(scop), Order.of(scop, schedule, kinds(tree)))
    return StoragePlan(tuple(planner.storage(array, tree) for array in scop.arrays if array.role == "local"))


def whole_plan(scop: Scop) -> StoragePlan:
    """Every local array whole, for the whole call."""
    return StoragePlan(tuple(whole(array) for array in scop.arrays if array.role == "local"))


def whole(array: Array) -> Storage:
    """All elements, for the whole call."""
    rank = len(array.shape)
    return Storage(array.name, (), (constant(0),) * rank, array.shape, (None,) * rank)


@dataclass(frozen=True, slots=True)
class _Planner:
    scop: Scop
    dependences: Dependences
    tester: DistanceTester
    order: Order

    def storage(self, array: Array, tree: Tree) -> Storage:
        found = self.shrunk(array, tree)
        if found.is_folded:
            return found
        return replace(found, strides=skewed.strides(array.name, found.extent, self.scop, tree))

    def shrunk(self, array: Array, tree: Tree) -> Storage:
        """What has to be held of an array."""
        users = [statement.name for statement in self.scop.users(array.name)]
        if not users:
            return whole(array)
        own = [d for d in (*self.dependences.ordered, *self.dependences.reductions) if d.array == array.name]
        scope = self.private_scope(users, own, tree)
        box = self.boxed(array, users, scope) if scope else None
        if box is not None and (_unknown(box.extent) == 0 or _size(box.extent) < _size(array.shape)):
            return self.folded(array, box, own, tree)
        return self.folded(array, whole(array), own, tree)

    def private_scope(self, users: Sequence[str], own: Sequence[Dependence], tree: Tree) -> list[Loop]:
        """The loops around all users in each iteration of which every value is made and used."""
        scope: list[Loop] = []
        for loop in common_loops(tree, users):
            rows = {name: loop.row(name) for name in users}
            if loop.kind in ("vector", "unrolled", "group") or not self.tester.is_coincident(own, rows):
                break
            scope.append(loop)
        return scope

    def boxed(self, array: Array, users: Sequence[str], scope: Sequence[Loop]) -> Storage:
        """The box that one iteration of the scope touches; the whole extent where no constant size was found."""
        if not array.shape:
            return Storage(array.name, tuple(loop.name for loop in scope), (), (), ())
        touched = self.touched(array, users, scope)
        found = [self.side(subscript_relation(touched, d), scope) for d in range(len(array.shape))]
        sides = [
            (constant(0), extent) if side is None or not _is_narrower(side[1], extent) else side
            for side, extent in zip(found, array.shape, strict=True)
        ]
        offset, extent = zip(*sides, strict=True)
        return Storage(array.name, tuple(loop.name for loop in scope), offset, extent, (None,) * len(array.shape))

    def side(self, line: isl.Map, scope: Sequence[Loop]) -> tuple[Affine, Affine] | None:
        """The first element and the constant number of elements of one dimension, over all iterations.

        line: `{ [rows of the scope] -> [element] }`. Every piece of the least element is tried as the first one
        held; the one that needs least space is taken. None where no constant size suffices, or none is found in time.
        """
        try:
            with operation_budget(SIDE_OPERATIONS):
                return self.least_side(line, scope)
        except isl.Error:
            _LOG.info("isl does not say in time what one iteration touches: the whole dimension is kept")
            return None

    def least_side(self, line: isl.Map, scope: Sequence[Loop]) -> tuple[Affine, Affine] | None:
        """As `side`, without a bound on what isl may do."""
        best: tuple[Affine, Affine] | None = None
        for _, piece in line.lexmin_pw_multi_aff().get_pw_aff(0).get_pieces():
            first = piece.gist(line.domain())
            held = line.flat_range_product(isl.Map.from_aff(first)).range().apply(_difference(self.scop.sizes))
            lowest, greatest = held.dim_min_val(0), held.dim_max_val(0)
            if not (lowest.is_int() and greatest.is_int()) or lowest.is_neg():
                continue
            extent = constant(int(greatest.to_python()) + 1)
            if best is None or extent.constant < best[1].constant:
                for position, loop in enumerate(scope):
                    first = first.set_dim_name(_IN, position, loop.name)
                best = affine_from_aff(first), extent
        return best

    def touched(self, array: Array, users: Sequence[str], scope: Sequence[Loop]) -> isl.Map:
        """`{ [rows of the scope] -> array[element] }`"""
        result: isl.Map | None = None
        for name in users:
            statement = self.scop.statement(name)
            space = Space(statement.name, statement.axes, self.scop.sizes)
            outer = isl.Map.from_domain_and_range(space.universe(), Space("", (), self.scop.sizes).universe())
            for loop in scope:
                outer = outer.flat_range_product(isl.Map.from_aff(space.aff(loop.row(name))))
            outer = outer.intersect_domain(statement.domain)
            for relation in relations(statement, array.name):
                one = relation.apply_domain(outer)
                result = one if result is None else result | one
        assert result is not None, "an array with users is touched"
        return coalesced(result)

    def folded(self, array: Array, held: Storage, own: Sequence[Dependence], tree: Tree) -> Storage:
        """The storage with a modulus for the dimension that a serial loop inside its scope, around the array's
        recurrence, steps through."""
        planes = self.planes(array, own, tree, frozenset(held.scope))
        if planes is None:
            return held
        dimension, modulus = planes
        extent = held.extent[dimension]
        if extent.is_constant and extent.constant <= modulus:
            return held
        modulo = tuple(modulus if d == dimension else None for d in range(len(array.shape)))
        ordered = (d for d in own if d in self.dependences.ordered)
        try:
            with operation_budget(FOLD_OPERATIONS):
                if overwritten(array.name, modulo, ordered, self.order) is not None:
                    return held
                if raced(array.name, modulo, self.order) is not None:
                    return held
        except isl.Error:  # not decided in time: all planes are right too, and the loops stay as they are
            return held
        zero = constant(0)
        shape = tuple(constant(modulus) if d == dimension else e for d, e in enumerate(held.extent))
        offset = tuple(zero if d == dimension else o for d, o in enumerate(held.offset))
        return Storage(array.name, held.scope, offset, shape, modulo)

    def planes(
        self, array: Array, own: Sequence[Dependence], tree: Tree, scope: frozenset[str]
    ) -> tuple[int, int] | None:
        """(dimension, planes alive at once) for the outermost serial loop inside a scope that writes plane after
        plane."""
        writers = self.scop.writers(array.name)
        for loop in _serial_loops(tree):
            if loop.name in scope:
                continue
            inside = [s for s in writers if s.name in loop.statements]
            if not inside:
                continue
            for dimension in range(len(array.shape)):
                if not all(self.steps_through(s.name, loop, dimension) for s in inside):
                    continue
                delays = [
                    self.delay(d, loop) for d in own if d.source in loop.statements and d.target in loop.statements
                ]
                known = [delay for delay in delays if delay is not None and delay >= 0]
                if known and len(known) == len(delays):  # a delay below zero is one of an illegal order
                    return dimension, max(known) + 1
        return None

    def steps_through(self, name: str, loop: Loop, dimension: int) -> bool:
        """Whether the written subscript is the loop's row plus a constant."""
        subscript = self.scop.statement(name).subscripts[dimension]
        if not isinstance(subscript, Affine):
            return False
        difference = subscript - loop.row(name)
        return difference.is_constant and any(isinstance(atom, AxisRef) for atom, _ in subscript.terms)

    def delay(self, dependence: Dependence, loop: Loop) -> int | None:
        """The greatest distance of a dependence along a loop, for any sizes; None where none is the greatest."""
        source = self.tester.row_map(dependence.source, loop.row(dependence.source))
        target = self.tester.row_map(dependence.target, loop.row(dependence.target))
        deltas = dependence.relation.apply_domain(source).apply_range(target).deltas()
        largest = deltas.dim_max_val(0)
        return int(largest.to_python()) if largest.is_int() else None


def _is_narrower(side: Affine, extent: Affine) -> bool:
    """Whether a number of elements says more than an extent that sizes decide: what no size may exceed, 2**31 for one
    that is counted in 32 bits, says nothing of what an iteration touches."""
    return extent.is_constant or side.constant <= WIDEST


def _unknown(shape: Sequence[Affine]) -> int:
    """How many extents symbolic sizes decide."""
    return sum(not extent.is_constant for extent in shape)


def _size(shape: Sequence[Affine]) -> tuple[int, int]:
    """What tells a small shape from a large one: how many extents sizes decide, and what the others multiply to."""
    return _unknown(shape), prod(extent.constant for extent in shape if extent.is_constant)


def subscript_relation(relation: isl.Map, dimension: int) -> isl.Map:
    """The relation to one subscript alone."""
    rank = relation.dim(_OUT)
    relation = relation.reset_tuple_id(_OUT).project_out(_OUT, dimension + 1, rank - dimension - 1)
    return relation.project_out(_OUT, 0, dimension)


def _difference(sizes: tuple[str, ...]) -> isl.Map:
    """`{ [element, first] -> [element - first] }`"""
    return isl.Map.from_aff(Space("", ("element", "first"), sizes).aff(axis("element") - axis("first")))


def common_loops(tree: Tree, names: Sequence[str]) -> Iterator[Loop]:
    """The loops around all of the statements, outermost first."""
    wanted = set(names)
    node = tree
    while True:
        match node:
            case Loop():
                yield node
                node = node.body
            case TreeSequence(children):
                inside = [child for child in children if wanted <= set(statements(child))]
                if not inside:
                    return
                node = inside[0]
            case Leaf():
                return


def _serial_loops(tree: Tree) -> Iterator[Loop]:
    match tree:
        case Loop(coincident=False, reduction=False):
            yield tree
            yield from _serial_loops(tree.body)
        case Loop():
            yield from _serial_loops(tree.body)
        case TreeSequence(children):
            for child in children:
                yield from _serial_loops(child)
        case Leaf():
            return
