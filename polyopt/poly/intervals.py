"""Ranges of affine expressions over boxes, without isl: exact, or no answer.

Sizes are at least 0 throughout: that is what the shape of an array can be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

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
    atoms,
    is_nonnegative,
    substitute,
)

Comparison = Literal["==", "!=", ">=", ">", "<=", "<"]


def tightest(bounds: Iterable[Affine], *, largest: bool) -> tuple[Affine, ...]:
    """The bounds without those that another one plainly implies; `largest` for lower bounds."""
    kept: list[Affine] = []
    for bound in bounds:
        if any(_implies(other, bound, largest=largest) for other in kept):
            continue
        kept = [other for other in kept if not _implies(bound, other, largest=largest)]
        kept.append(bound)
    return tuple(kept)


def _implies(strong: Affine, weak: Affine, *, largest: bool) -> bool:
    return is_nonnegative(strong - weak if largest else weak - strong)


def extreme(expression: Affine, ranges: Mapping[str, ir.Axis], *, largest: bool) -> Affine | None:
    """The greatest or least value over a box, affine in sizes; None where that takes more than monotony.

    The box counts as non-empty. An axis that occurs twice, or that has no range or several bounds, gives None.
    """
    occurrences = Counter(atom.name for atom in atoms(expression) if isinstance(atom, AxisRef))
    if any(count > 1 for count in occurrences.values()):
        return None
    result = Affine(expression.constant)
    for atom, coefficient in expression.terms:
        value = _atom_extreme(atom, ranges, largest=largest == (coefficient > 0))
        if value is None:
            return None
        result = result + value * coefficient
    return result


def _atom_extreme(atom: AxisRef | SizeRef | FloorDiv, ranges: Mapping[str, ir.Axis], *, largest: bool) -> Affine | None:
    match atom:
        case SizeRef():
            return Affine(0, ((atom, 1),))
        case FloorDiv(numerator, divisor):
            value = extreme(numerator, ranges, largest=largest)
            return None if value is None else value // divisor
        case AxisRef(name):
            axis = ranges.get(name)
            bounds = () if axis is None else axis.upper if largest else axis.lower
            if len(bounds) != 1:
                return None
            return bounds[0] - 1 if largest else bounds[0]


def is_within(subscript: Affine, extent: Affine, ranges: Mapping[str, ir.Axis]) -> bool:
    """Whether the bounds of the axes alone show that `0 <= subscript < extent`."""
    least = extreme(subscript, ranges, largest=False)
    if least is None or not is_nonnegative(least):
        return False
    greatest = extreme(subscript, ranges, largest=True)
    return greatest is not None and is_nonnegative(extent - 1 - greatest)


def narrowed(ranges: Mapping[str, ir.Axis], condition: Condition) -> dict[str, ir.Axis]:
    """Ranges of the points where the condition holds, as far as comparisons of single axes with sizes tell."""
    result = dict(ranges)
    for comparison in _necessary(condition, holds=True):
        for atom, factor in comparison.left.terms:
            if isinstance(atom, AxisRef) and atom.name in result and factor in (1, -1):
                rest = comparison.left - Affine(0, ((atom, factor),))
                if not any(isinstance(other, AxisRef) for other in atoms(rest)):
                    result[atom.name] = _restricted(result[atom.name], factor, rest, comparison.op)
    return result


_NEGATED: Mapping[Comparison, Comparison] = {"==": "!=", "!=": "==", ">=": "<", "<": ">=", ">": "<=", "<=": ">"}
_MIRRORED: Mapping[Comparison, Comparison] = {"==": "==", "!=": "!=", ">=": "<=", "<": ">", ">": "<", "<=": ">="}


def _necessary(condition: Condition, *, holds: bool) -> Iterator[Compare]:
    """Comparisons that are true wherever the condition is (`holds=False`: wherever it is not)."""
    match condition:
        case Compare(left, op):
            yield condition if holds else Compare(left, _NEGATED[op])
        case Not(part):
            yield from _necessary(part, holds=not holds)
        case And(parts) | Or(parts):
            if isinstance(condition, And) == holds:
                for part in parts:
                    yield from _necessary(part, holds=holds)


def _restricted(axis: ir.Axis, factor: int, rest: Affine, op: Comparison) -> ir.Axis:
    """The range where `factor * axis + rest OP 0`; `!=` tells something at the ends only."""
    value = rest * -factor
    op = op if factor > 0 else _MIRRORED[op]
    lower, upper = axis.lower, axis.upper
    match op:
        case "==":
            lower, upper = (*lower, value), (*upper, value + 1)
        case ">=":
            lower = (*lower, value)
        case ">":
            lower = (*lower, value + 1)
        case "<=":
            upper = (*upper, value + 1)
        case "<":
            upper = (*upper, value)
        case "!=":
            lower = tuple(bound + 1 if bound == value else bound for bound in lower)
            upper = tuple(bound - 1 if bound == value + 1 else bound for bound in upper)
    return ir.Axis(axis.name, tightest(lower, largest=True), tightest(upper, largest=False))


def window(
    subscript: Affine, target: str, ranges: Mapping[str, ir.Axis], extent: Affine
) -> tuple[Affine, Affine] | None:
    """The half-open range of axis `target` for which `0 <= subscript < extent` for all values of the other axes.

    None where the target stands under a floor or the other axes' part has no plain extremes.
    """
    reference = AxisRef(target)
    factor = subscript.coefficient(reference)
    rest = substitute(subscript, lambda atom: Affine(0) if atom == reference else None)
    if factor == 0 or any(atom == reference for atom in atoms(_floors(subscript))):
        return None
    least, greatest = extreme(rest, ranges, largest=False), extreme(rest, ranges, largest=True)
    if least is None or greatest is None:
        return None
    room = extent - 1 - greatest
    if factor > 0:
        return -(least // factor), room // factor + 1
    return -(room // -factor), least // -factor + 1


def _floors(expression: Affine) -> Affine:
    return Affine(0, tuple(term for term in expression.terms if isinstance(term[0], FloorDiv)))


def is_plainly_empty(axis: ir.Axis) -> bool:
    """Whether the range has no point whatever the sizes, as far as that shows without isl."""
    return any(is_nonnegative(lower - upper) for lower in axis.lower for upper in axis.upper)


def as_range(name: str, lower: Iterable[Affine], upper: Iterable[Affine]) -> ir.Axis:
    """The axis with these bounds, redundant ones dropped.

    A range that is empty at all sizes starts where it ends, or at 0 where it ends before: what is computed from its
    end, such as an extent, is the same whether the sizes are known or not.
    """
    axis = ir.Axis(name, tightest(lower, largest=True), tightest(upper, largest=False))
    if not is_plainly_empty(axis):
        return axis
    ends = tuple(Affine(max(end.constant, 0)) if end.is_constant else end for end in axis.upper)
    return ir.Axis(name, ends, ends)
