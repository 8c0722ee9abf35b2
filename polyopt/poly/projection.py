"""The range of one index by projection: where every read is in bounds for all values of the other indices.

Used where guards or floors stand in the way of arithmetic on bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

import islpy as isl

from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, Compare, Condition, Or, axes_of, condition_affines, conjunction, size
from polyopt.errors import DefinitionError, ScheduleError
from polyopt.poly.intervals import as_range, window
from polyopt.poly.space import Space, bounds, isl_errors, operation_budget, project_onto

GuardedSubscript = tuple[Affine, Affine, Condition, Mapping[str, ir.Axis]]
"""A subscript, the extent it must stay below, the condition of its read, and the known ranges of axes."""

_MOST_PIECES = 256

_LARGE = 16
"""Sizes from here on are not small."""


def largest_interval(
    base: ir.Axis, reads: Sequence[GuardedSubscript], sizes: tuple[str, ...], equation: ir.Equation
) -> ir.Axis | None:
    """The largest interval of the axis within `base` for which the reads that happen are in bounds.

    base: the axis with the bounds known by now, perhaps none. Where nothing bounds a side, it ends with the last
    value at which some read happens. None if no read happens, or reads happen without end. Of equally long
    intervals the first. Raises `DefinitionError` where the interval has no affine bounds in symbolic sizes.
    """
    space = Space("", (base.name,), sizes)
    with isl_errors(f"find the range of index '{base.name}'"), operation_budget():
        bad, happening = _all_projected(base.name, reads, sizes)
        if base.is_resolved:  # by a read that no guard restricts, or by an index alone
            happening = happening.union(space.box([base]))
        if happening.is_empty():
            return _without_guards(base, reads)
        good = space.box([base]).subtract(bad)
        context = good.intersect(happening).params()
        if context.is_empty():
            return as_range(base.name, (Affine(0),), (Affine(0),))
        try:
            return _interval(base, good, bad, happening.intersect(good), context, space, equation)
        except ScheduleError:
            raise _ambiguous(base.name, equation, "where it ends is no affine expression of the sizes") from None


def sizes_of_other_ranges(
    base: ir.Axis, found: ir.Axis, reads: Sequence[GuardedSubscript], sizes: tuple[str, ...], *, summed: bool
) -> isl.Set:
    """The sizes for which the interval within `base` is another one than `found`, which holds for most.

    No read happens, and the interval is that of the subscripts by themselves; or none happens in bounds, and it is
    empty; or some does, and it is not; or a side of it goes further, to where the last read happens, which no affine
    expression says, or to where one is out of bounds.

    summed: whether the axis is of a reduction, which adds nothing for sizes for which other axes have no value
    """
    space = Space("", (base.name,), sizes)
    box = space.box([found])
    bad, happening = _all_projected(base.name, reads, sizes)
    if base.is_resolved:  # as for the interval itself
        happening = happening | space.box([base])
    plain = _without_guards(base, reads)
    without = space.box([plain]) if plain is not None else space.empty()
    other = ((box - without) | (without - box)).params() - happening.params()
    good = space.box([base]) - bad
    inside = happening & good
    other = other | ((box.params() & happening.params()) - (box & inside).params())
    other = other | (inside.params() - box.params())
    for last, further in ((box.lexmax(), isl.Map.lex_lt), (box.lexmin(), isl.Map.lex_gt)):
        beyond = last.apply(further(last.get_space()))
        following = beyond.lexmin() if further is isl.Map.lex_lt else beyond.lexmax()
        stops_elsewhere = (last - inside).params() | (beyond & (inside | bad)).params()
        other = other | ((following & good).params() & stops_elsewhere)
    for read in reads if summed else ():
        others = [axis for name, axis in read[3].items() if name != base.name]
        other = other & Space("", tuple(axis.name for axis in others), sizes).box(others).params()
    return other


def _without_guards(base: ir.Axis, reads: Sequence[GuardedSubscript]) -> ir.Axis | None:
    """What the subscripts say by themselves: for guards that never hold, or other axes without a point."""
    lower, upper = list(base.lower), list(base.upper)
    for subscript, extent, _, ranges in reads:
        found = window(subscript, base.name, ranges, extent)
        if found is not None:
            lower.append(found[0])
            upper.append(found[1])
    axis = as_range(base.name, lower, upper)
    return axis if axis.is_resolved else None


def _all_projected(target: str, reads: Sequence[GuardedSubscript], sizes: tuple[str, ...]) -> tuple[isl.Set, isl.Set]:
    """The values of the target for which a read is out of bounds somewhere, and for which one happens."""
    space = Space("", (target,), sizes)
    bad, happening = space.empty(), space.empty()
    for read in reads:
        read_bad, read_happening = _projected(target, read, sizes)
        bad, happening = bad.union(read_bad), happening.union(read_happening)
    return bad, happening


def _projected(target: str, read: GuardedSubscript, sizes: tuple[str, ...]) -> tuple[isl.Set, isl.Set]:
    """The values of the target for which the read is out of bounds somewhere, and for which it happens."""
    subscript, extent, condition, ranges = read
    involved = set(chain(axes_of(subscript), *(axes_of(part) for part in condition_affines(condition)))) - {target}
    space = Space("", (target, *sorted(involved)), sizes)
    others = [ranges[name] for name in sorted(involved) if name in ranges]
    domain = space.box(others).intersect(space.condition(condition))
    outside = space.condition(Or((Compare(subscript, "<"), Compare(subscript - extent, ">="))))
    return project_onto(domain.intersect(outside), (target,)), project_onto(domain, (target,))


def _interval(
    base: ir.Axis,
    good: isl.Set,
    bad: isl.Set,
    happening: isl.Set,
    context: isl.Set,
    space: Space,
    equation: ir.Equation,
) -> ir.Axis | None:
    """The hull of the good values if no bad one lies in it; a side without end stops at the reads that happen.

    With symbolic sizes the hull may be that of all sizes, or of sizes that are not small: then the check of bounds
    finds which sizes it is right for.
    """
    axis = _hull(base, good, happening, context)
    if axis is None or _is_free_of(bad, axis, context, space):
        return axis
    if not space.sizes:
        return _longest_run(axis, space.box([axis]).subtract(bad), happening, space, equation)
    large = space.condition(conjunction(*(Compare(size(name) - _LARGE, ">=") for name in space.sizes)))
    for sizes in (context, context.intersect(large.params())):
        for values in (good, happening):
            axis = _hull(base, values, happening, sizes)
            if axis is not None and _is_free_of(bad, axis, sizes, space):
                return axis
    raise _ambiguous(base.name, equation, "the reads are in bounds on several separate intervals")


def _hull(base: ir.Axis, values: isl.Set, happening: isl.Set, sizes: isl.Set) -> ir.Axis | None:
    """The smallest range around the values; where they have no end, around those at which reads happen.

    A side whose end is too hard to find ends where `base` does. None where nothing ends a side. Raises `ScheduleError`
    where the ends are no affine expressions of the sizes.
    """
    whole = bounds(values.intersect_params(sizes), 0)
    reading = bounds(happening.intersect_params(sizes), 0)
    lower, upper = whole.lower or reading.lower or base.lower, whole.upper or reading.upper or base.upper
    axis = as_range(base.name, lower, upper)
    return axis if axis.is_resolved else None


def _is_free_of(bad: isl.Set, axis: ir.Axis, sizes: isl.Set, space: Space) -> bool:
    return bool(space.box([axis]).intersect_params(sizes).intersect(bad).is_empty())


def _longest_run(axis: ir.Axis, good: isl.Set, happening: isl.Set, space: Space, equation: ir.Equation) -> ir.Axis:
    """The longest interval of consecutive good values in which some read happens; no sizes."""
    best: ir.Axis | None = None
    rest = good
    for _ in range(_MOST_PIECES):
        if rest.is_empty():
            return best or as_range(axis.name, (Affine(0),), (Affine(0),))
        run = _first_run(axis, rest, space)
        inside = space.box([run])
        if not inside.intersect(happening).is_empty() and (best is None or _length(run) > _length(best)):
            best = run
        rest = rest.subtract(inside)
    raise _ambiguous(axis.name, equation, f"the reads are in bounds on more than {_MOST_PIECES} separate intervals")


def _first_run(axis: ir.Axis, good: isl.Set, space: Space) -> ir.Axis:
    """The first interval of consecutive values."""
    hull = bounds(good, 0)
    gaps = space.box([ir.Axis(axis.name, hull.lower, hull.upper)]).subtract(good)
    upper = hull.upper if gaps.is_empty() else bounds(gaps, 0).lower
    return ir.Axis(axis.name, hull.lower, upper)


def _length(axis: ir.Axis) -> int:
    return axis.upper[0].constant - axis.lower[0].constant


def _ambiguous(name: str, equation: ir.Equation, reason: str) -> DefinitionError:
    return DefinitionError(
        f"index '{name}' in the definition of '{equation.tensor}' has no single range",
        where=equation.span,
        why=reason,
        fix=f'say its range: po.index("{name}", extent=...)',
        facts={"index": name, "tensor": equation.tensor},
    )
