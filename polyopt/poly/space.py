"""Conversion between the language's affine expressions and isl, by name of dimension.

A `Space` names the dimensions; positions appear in this module alone. All spaces of one program carry the same
sizes in the same order, so that their sets need no alignment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TypeVar, assert_never, cast

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import (
    Affine,
    And,
    AxisRef,
    Compare,
    Condition,
    FloorDiv,
    Not,
    Or,
    SizeRef,
)
from polyopt.errors import ScheduleError

_PARAM, _SET, _IN, _OUT, _DIV = (
    isl.dim_type.param,
    isl.dim_type.set,
    isl.dim_type.in_,
    isl.dim_type.out,
    isl.dim_type.div,
)

_Pieces = TypeVar("_Pieces", isl.Set, isl.Map, isl.UnionSet, isl.PwAff)

_NEGATED: Mapping[str, str] = {"==": "!=", "!=": "==", ">=": "<", "<": ">=", ">": "<=", "<=": ">"}


@contextmanager
def isl_errors(what: str, *operands: object) -> Iterator[None]:
    """Turns an `isl.Error` of the block into a `ScheduleError` that says `what` failed and prints the operands."""
    try:
        yield
    except isl.Error as error:
        shown = "\n".join(str(operand) for operand in operands)
        raise ScheduleError(f"the polyhedral library failed to {what}", why=shown) from error


_MOST_PIECES = 24
"""Of a piecewise bound that is looked at: one with more is not a minimum of a few expressions."""

_SMALL = (8, 64, 512, 4096)
"""Coordinates of a point that is easy to read, the easiest first."""

OPERATIONS = 400_000
"""Of isl's, that one expensive call may take: a second or so."""


@contextmanager
def operation_budget(operations: int = OPERATIONS) -> Iterator[None]:
    """Lets isl do so many operations in the block; beyond, its calls raise `isl.Error`."""
    context = isl.DEFAULT_CONTEXT
    around = context.get_max_operations()
    context.set_max_operations(operations)
    context.reset_operations()
    try:
        yield
    finally:
        context.set_max_operations(around)
        context.reset_operations()


def coalesced(pieces: _Pieces) -> _Pieces:
    """The same in as few pieces as isl finds; as it is where isl fails.

    isl's search for pieces to merge ends, for some sets with floors, at an assertion of its own ("original tableau does
    not correspond to original basic map"). What it searches for is only a shorter form.
    """
    try:
        return pieces.coalesce()
    except isl.Error:
        return pieces


def simplified(relation: isl.Map) -> isl.Map:
    """The same in as few pieces as isl finds, each with its equalities in sight.

    An equality that only two bounds of a floor make plain costs later subtractions a case for each of its sides, and
    for each piece subtracted: a million operations, where they take a few once it is written as what it is.
    """
    return coalesced(relation.detect_equalities())


def node_kind(node: isl.ScheduleNode) -> isl.schedule_node_type:
    """What a node of a schedule tree is; isl's Python types call it a number."""
    return cast(isl.schedule_node_type, node.get_type())


# --- from the language to isl --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Space:
    """A tuple of axes in an order, with the size parameters around it.

    tuple_name: isl's name of the tuple; empty for an anonymous one
    axes:       names of the dimensions, outermost first
    sizes:      names of the parameters
    """

    tuple_name: str
    axes: tuple[str, ...]
    sizes: tuple[str, ...]

    @cached_property
    def isl_space(self) -> isl.Space:
        """The space of a set: `[sizes] -> { tuple_name[axes] }`."""
        space = isl.Space.set_alloc(isl.DEFAULT_CONTEXT, len(self.sizes), len(self.axes))
        for position, name in enumerate(self.sizes):
            space = space.set_dim_name(_PARAM, position, name)
        for position, name in enumerate(self.axes):
            space = space.set_dim_name(_SET, position, name)
        return space.set_tuple_name(_SET, self.tuple_name) if self.tuple_name else space

    @cached_property
    def _zero(self) -> isl.Aff:
        return isl.Aff.zero_on_domain_space(self.isl_space)

    @cached_property
    def _axis_position(self) -> Mapping[str, int]:
        return {name: position for position, name in enumerate(self.axes)}

    @cached_property
    def _size_position(self) -> Mapping[str, int]:
        return {name: position for position, name in enumerate(self.sizes)}

    def universe(self) -> isl.Set:
        return isl.Set.universe(self.isl_space)

    def empty(self) -> isl.Set:
        return isl.Set.empty(self.isl_space)

    def aff(self, affine: Affine) -> isl.Aff:
        """The quasi-affine function `{ tuple_name[axes] -> [affine] }`; its axes and sizes must be ours."""
        result = self._zero
        floors: list[isl.Aff] = []
        for atom, coefficient in affine.terms:
            match atom:
                case AxisRef(name):
                    result = result.set_coefficient_val(_IN, self._axis_position[name], coefficient)
                case SizeRef(name):
                    result = result.set_coefficient_val(_PARAM, self._size_position[name], coefficient)
                case FloorDiv(numerator, divisor):
                    floor = self.aff(numerator).scale_down_val(divisor).floor()
                    floors.append(floor.scale_val(coefficient))
                case _:
                    assert_never(atom)
        if affine.constant:
            result = result.set_constant_val(affine.constant)
        for floor in floors:
            result = result.add(floor)
        return result

    def condition(self, condition: Condition) -> isl.Set:
        """The points where the condition holds."""
        return self._condition(condition, holds=True)

    def _condition(self, condition: Condition, *, holds: bool) -> isl.Set:
        match condition:
            case Compare(left, op):
                return self._compare(left, op if holds else _NEGATED[op])
            case And(parts) | Or(parts):
                sets = [self._condition(part, holds=holds) for part in parts]
                if isinstance(condition, And) == holds:
                    return _fold(isl.Set.intersect, self.universe(), sets)
                return _fold(isl.Set.union, self.empty(), sets)
            case Not(part):
                return self._condition(part, holds=not holds)
            case _:
                assert_never(condition)

    def _compare(self, left: Affine, op: str) -> isl.Set:
        if op == ">=":
            return self.aff(left).ge_basic_set(self._zero).to_set()
        if op == "<=":
            return self.aff(left).le_basic_set(self._zero).to_set()
        if op == ">":
            return self.aff(left).gt_basic_set(self._zero).to_set()
        if op == "<":
            return self.aff(left).lt_basic_set(self._zero).to_set()
        if op == "==":
            return self.aff(left).zero_basic_set().to_set()
        assert op == "!=", f"a comparison with the operator {op}"
        return self.aff(left).ne_set(self._zero)

    def box(self, axes: Sequence[ir.Axis]) -> isl.Set:
        """The points whose coordinates lie in the ranges of `axes` (a subset of ours); an unset side is unbounded."""
        box = isl.BasicSet.universe(self.isl_space)
        for axis in axes:
            variable = self._zero.set_coefficient_val(_IN, self._axis_position[axis.name], 1)
            for lower in axis.lower:
                box = box.intersect(variable.ge_basic_set(self.aff(lower)))
            for upper in axis.upper:
                box = box.intersect(variable.lt_basic_set(self.aff(upper)))
        return box.to_set()

    def access(self, array: str, subscripts: Sequence[Affine]) -> isl.Map:
        """The relation `{ tuple_name[axes] -> array[subscripts] }`, without the domain's constraints."""
        return isl.Map.from_multi_aff(self.multi_aff(array, subscripts))

    def multi_aff(self, array: str, values: Sequence[Affine]) -> isl.MultiAff:
        """The function `{ tuple_name[axes] -> array[values] }`."""
        space = self.isl_space.from_domain().add_dims(_OUT, len(values))
        if array:
            space = space.set_tuple_name(_OUT, array)
        affs = isl.AffList.alloc(isl.DEFAULT_CONTEXT, len(values))
        for value in values:
            affs = affs.add(self.aff(value))
        return isl.MultiAff.from_aff_list(space, affs)


def _fold(combine: Callable[[isl.Set, isl.Set], isl.Set], start: isl.Set, sets: Sequence[isl.Set]) -> isl.Set:
    if not sets:
        return start
    result = sets[0]
    for other in sets[1:]:
        result = combine(result, other)
    return result


# --- from isl to the language --------------------------------------------------------------------------------


def affine_from_aff(aff: isl.Aff) -> Affine:
    """The language's expression for a quasi-affine function whose value is an integer wherever it matters."""
    numerator, denominator = _numerator(aff)
    return numerator // denominator


def _numerator(aff: isl.Aff) -> tuple[Affine, int]:
    """The function as (integer combination, positive common denominator)."""
    denominator = _integer(aff.get_denominator_val())
    numerator = Affine(_integer(aff.get_constant_val().mul(denominator)))
    for kind in (_PARAM, _IN):
        for position in range(aff.dim(kind)):
            coefficient = _integer(aff.get_coefficient_val(kind, position).mul(denominator))
            if coefficient:
                name = aff.get_dim_name(kind, position)
                assert name is not None, "every dimension of a space has a name"
                atom = SizeRef(name) if kind == _PARAM else AxisRef(name)
                numerator = numerator + Affine(0, ((atom, coefficient),))
    for position in range(aff.dim(_DIV)):
        coefficient = _integer(aff.get_coefficient_val(_DIV, position).mul(denominator))
        if coefficient:
            numerator = numerator + affine_from_aff(aff.get_div(position)) * coefficient
    return numerator, denominator


def _integer(value: isl.Val) -> int:
    assert value.is_int(), f"{value} is not an integer"
    return int(value.to_python())


@dataclass(frozen=True, slots=True)
class Point:
    """A concrete point of a set: the values of its sizes and of its dimensions, by name."""

    sizes: Mapping[str, int]
    axes: Mapping[str, int]


def sample_point(domain: isl.Set) -> Point | None:
    """One point and the sizes it exists for; None for an empty set.

    The lexicographically smallest of non-negative sizes and then axes where that exists, so that a witness is short; of
    those with small coordinates if there are any. Without such a bound isl may search for minutes, and count nothing.
    An unnamed dimension is called `_` and its position.
    """
    if domain.is_empty():
        return None
    flat, names = _sizes_as_axes(domain)
    flat = _small(flat)
    try:
        point = flat.lexmin().sample_point()
    except isl.Error:  # unbounded below
        with isl_errors("find a point of a set", domain):
            point = flat.sample_point()
    values = [_integer(point.get_coordinate_val(_SET, position)) for position in range(len(names))]
    sizes = domain.dim(_PARAM)
    return Point(
        dict(zip(names[:sizes], values[:sizes], strict=True)), dict(zip(names[sizes:], values[sizes:], strict=True))
    )


def _small(flat: isl.Set) -> isl.Set:
    """The points in the smallest of a few boxes that holds any; all points where none does."""
    for bound in _SMALL:
        inside = flat
        for position in range(flat.dim(_SET)):
            inside = inside.upper_bound_val(_SET, position, bound)
        if not inside.is_empty():
            return inside
    return flat


def sample(domain: isl.Set) -> dict[str, int] | None:
    """One point as in `sample_point`, sizes and axes in one dictionary."""
    point = sample_point(domain)
    return None if point is None else {**point.sizes, **point.axes}


def condition_from_set(sizes: isl.Set) -> Condition:
    """The condition on sizes that holds exactly on a set of parameters."""
    pieces = [_conjunction_of(piece) for piece in coalesced(sizes).compute_divs().get_basic_sets()]
    return pieces[0] if len(pieces) == 1 else Or(tuple(pieces))


def _conjunction_of(piece: isl.BasicSet) -> Condition:
    comparisons: list[Condition] = []
    for constraint in piece.get_constraints():
        if not constraint.is_div_constraint():
            left = affine_from_aff(constraint.get_aff())
            comparisons.append(Compare(left, "==" if constraint.is_equality() else ">="))
    return comparisons[0] if len(comparisons) == 1 else And(tuple(comparisons))


def _sizes_as_axes(domain: isl.Set) -> tuple[isl.Set, list[str]]:
    """The set with its parameters turned into leading dimensions, non-negative where it can be, and the names."""
    sizes = domain.dim(_PARAM)
    names = [str(domain.get_dim_name(_PARAM, position)) for position in range(sizes)]
    names += [domain.get_dim_name(_SET, position) or f"_{position}" for position in range(domain.dim(_SET))]
    flat = domain.move_dims(_SET, 0, _PARAM, 0, sizes)
    natural = flat
    for position in range(sizes):
        natural = natural.lower_bound_val(_SET, position, 0)
    return (flat if natural.is_empty() else natural), names


# --- operations by name --------------------------------------------------------------------------------------


def named(domain: isl.Set, axes: Sequence[str]) -> isl.Set:
    """The set with names for its dimensions."""
    for position, name in enumerate(axes):
        domain = domain.set_dim_name(_SET, position, name)
    return domain


def stretched(domain: isl.Set, position: int, stop: int) -> isl.Set:
    """The set with one dimension from 0 to `stop` (exclusive), whatever else was known of it."""
    free = domain.drop_constraints_involving_dims(_SET, position, 1)
    return free.lower_bound_val(_SET, position, 0).upper_bound_val(_SET, position, stop - 1)


def is_independent(domain: isl.Set, position: int) -> bool:
    """Whether one dimension runs from 0 to where it does whatever the others are."""
    behind = domain.dim(_SET) - position - 1
    free = domain.reset_tuple_id()
    others = free.project_out(_SET, position, 1).insert_dims(_SET, position, 1)
    own = free.project_out(_SET, position + 1, behind).project_out(_SET, 0, position)
    own = own.insert_dims(_SET, 0, position).insert_dims(_SET, position + 1, behind)
    return bool(domain.dim_min_val(position).is_zero()) and bool(others.intersect(own).is_equal(free))


@dataclass(frozen=True, slots=True)
class Bounds:
    """A half-open range: from the largest of `lower` to the smallest of `upper`; an empty tuple is no bound."""

    lower: tuple[Affine, ...]
    upper: tuple[Affine, ...]


def bounds(domain: isl.Set, position: int) -> Bounds:
    """The smallest range of one dimension that affine bounds can express.

    Without sizes it is the smallest there is. With sizes it may be larger where the set is not convex, and it holds
    where the set is not empty. Of a set that is empty for all sizes the range is empty.
    """
    if domain.is_empty():
        return Bounds((Affine(0),), (Affine(0),))
    if domain.dim(_PARAM) == 0:
        low, high = domain.dim_min_val(position), domain.dim_max_val(position)
        return Bounds(
            (Affine(_integer(low)),) if low.is_int() else (), (Affine(_integer(high) + 1),) if high.is_int() else ()
        )
    upper = tuple(bound + 1 for bound in _extremes(domain, position, largest=True))
    return Bounds(_extremes(domain, position, largest=False), upper)


def _extremes(domain: isl.Set, position: int, *, largest: bool) -> tuple[Affine, ...]:
    """Upper (or lower) bounds of a dimension: exact where affine expressions can say it, else of the convex hull.

    None at all where the dimension is unbounded. Raises `ScheduleError` where the hull has no affine bounds either.
    """
    bound = _extreme(domain, position, largest=largest)
    if bound is None:
        return ()
    found = _as_affines(bound, largest=largest)
    if found is None:
        line = project_onto_position(domain, position).simple_hull().to_set()
        of_hull = _extreme(line, 0, largest=largest)
        found = None if of_hull is None else _as_affines(of_hull, largest=largest)
    if found is None:
        raise ScheduleError("a bound has no affine form", why=str(domain))
    return found


def _extreme(domain: isl.Set, position: int, *, largest: bool) -> isl.PwAff | None:
    """The greatest or least value of a dimension as a function of sizes; None if unbounded, or too hard to find."""
    try:
        with operation_budget():
            return domain.dim_max(position) if largest else domain.dim_min(position)
    except isl.Error:  # "unbounded optimum"; `dim_has_upper_bound` overlooks existentially quantified dimensions
        return None


def greatest(domain: isl.Set, position: int) -> Affine | None:
    """The greatest value of a dimension as one affine expression of sizes; None where there is none such."""
    if domain.dim(_PARAM) == 0:
        value = domain.dim_max_val(position)
        return Affine(_integer(value)) if value.is_int() else None
    bound = _extreme(domain, position, largest=True)
    found = None if bound is None else _as_affines(bound, largest=True)
    return found[0] if found and len(found) == 1 else None


def is_greatest(domain: isl.Set, position: int, affine: Affine) -> bool:
    """Whether `affine` is the greatest value of a dimension, for all sizes for which there is one.

    False too where finding out takes too long.
    """
    if domain.dim(_PARAM) == 0:
        return greatest(domain, position) == affine
    try:
        with operation_budget():
            bound = _extreme(coalesced(domain), position, largest=True)
            if bound is None:
                return False
            space = Space("", (), tuple(str(domain.get_dim_name(_PARAM, p)) for p in range(domain.dim(_PARAM))))
            return bool(_on_sizes(bound.domain(), space, affine).is_equal(bound))
    except isl.Error:
        return False


def _as_affines(bound: isl.PwAff, *, largest: bool) -> tuple[Affine, ...] | None:
    """Expressions whose smallest value (largest, for a lower bound) is the piecewise `bound`, as few as suffice.

    None where there are none, or where finding out takes too long.
    """
    if bound.n_piece() > _MOST_PIECES:
        return None
    try:
        with operation_budget():
            return _expressions(coalesced(bound), largest=largest)
    except isl.Error:
        return None


def _expressions(bound: isl.PwAff, *, largest: bool) -> tuple[Affine, ...] | None:
    """`_as_affines`, within the operations that are left: each piece is the smallest (largest) of all where it holds.

    That says the same as combining the pieces and comparing, whose cost isl's operations do not bound.
    """
    domain = bound.domain()
    found = [(where.params(), affine_from_aff(piece)) for where, piece in bound.get_pieces()]
    pieces = tuple(dict.fromkeys(piece for _, piece in found))
    space = Space("", (), tuple(str(domain.get_dim_name(_PARAM, p)) for p in range(domain.dim(_PARAM))))
    for piece in pieces:
        if _on_sizes(domain, space, piece).is_equal(bound):
            return (piece,)
    for where, piece in found:
        for other in pieces:
            difference = piece - other if largest else other - piece
            if other != piece and not where.intersect(space.condition(Compare(difference, ">")).params()).is_empty():
                return None
    return pieces


def _on_sizes(domain: isl.Set, space: Space, affine: Affine) -> isl.PwAff:
    """`affine` (in sizes alone) as a function on the parameter set `domain`."""
    return isl.PwAff.from_aff(space.aff(affine)).project_domain_on_params().intersect_domain(domain)


def project_onto_position(domain: isl.Set, position: int) -> isl.Set:
    """The set of values of one dimension."""
    after = domain.dim(_SET) - position - 1
    return domain.project_out(_SET, position + 1, after).project_out(_SET, 0, position)


def project_onto(domain: isl.Set, names: Sequence[str]) -> isl.Set:
    """The set with every dimension but the named ones projected out; the others keep their order."""
    for position in reversed(range(domain.dim(_SET))):
        if domain.get_dim_name(_SET, position) not in names:
            domain = domain.project_out(_SET, position, 1)
    return domain


def insert_axes(domain: isl.Set, space: Space) -> isl.Set:
    """The set as the trailing dimensions of `space`, whose leading ones are free."""
    wide = domain.insert_dims(_SET, 0, len(space.axes) - domain.dim(_SET))
    for position, name in enumerate(space.axes):
        wide = wide.set_dim_name(_SET, position, name)
    return wide
