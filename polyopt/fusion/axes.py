"""What is asked about axes: which ones an expression mentions, how long they are; and other axes in their place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from polyopt.dsl import ir
from polyopt.dsl.affine import (
    Affine,
    AxisRef,
    Condition,
    axes_of,
    axis,
    condition_affines,
    map_condition,
    substitute,
)
from polyopt.names import unused

ASSUMED = 512
"""Values of an axis that is as long as sizes say."""


def length(one: ir.Axis) -> int | None:
    """How many values an axis has; None where that is no number."""
    bounds = (*one.lower, *one.upper)
    if not one.is_resolved or not all(bound.is_constant for bound in bounds):
        return None
    return max(0, min(b.constant for b in one.upper) - max(b.constant for b in one.lower))


def starts_at_zero(one: ir.Axis) -> bool:
    """Whether an axis runs from 0 to one bound."""
    return one.lower == (Affine(0),) and len(one.upper) == 1


def is_range(one: ir.Axis) -> bool:
    """Whether an axis runs from 0 to a number that is not 0, or to what sizes say."""
    return one.is_resolved and starts_at_zero(one) and not axes_of(one.upper[0]) and length(one) != 0


def assumed_length(one: ir.Axis) -> int:
    """The same, or what is assumed."""
    found = length(one)
    return ASSUMED if found is None else found


def plain_axes(read: ir.Read) -> tuple[str, ...] | None:
    """The axes of a read whose subscripts are different axes alone."""
    names = []
    for subscript in read.subscripts:
        if not isinstance(subscript, Affine) or subscript.constant or len(subscript.terms) != 1:
            return None
        atom, coefficient = subscript.terms[0]
        if not isinstance(atom, AxisRef) or coefficient != 1:
            return None
        names.append(atom.name)
    return tuple(names) if len(set(names)) == len(names) and read.boundary is None else None


def axes_in(expr: ir.Expr) -> set[str]:
    """Every axis that an expression mentions, those of reductions in it left out."""
    found: set[str] = set()
    match expr:
        case ir.IndexValue(affine):
            found |= axes_of(affine)
        case ir.Read(subscripts=subscripts):
            found |= {name for s in subscripts if isinstance(s, Affine) for name in axes_of(s)}
        case ir.Where(condition):
            found |= condition_axes(condition)
        case ir.Reduce(guard=guard):
            found |= condition_axes(guard)
        case _:
            pass
    for child in ir.children(expr):
        found |= axes_in(child)
    return found - ({a.name for a in expr.axes} if isinstance(expr, ir.Reduce) else set())


def condition_axes(condition: Condition) -> set[str]:
    return {name for affine in condition_affines(condition) for name in axes_of(affine)}


# --- other axes -----------------------------------------------------------------------------------------------------


def placed(affine: Affine, at: Mapping[str, Affine]) -> Affine:
    """The affine expression with axes replaced by others."""
    return substitute(affine, lambda atom: at.get(atom.name) if isinstance(atom, AxisRef) else None)


def at_axes(expr: ir.Expr, at: Mapping[str, Affine], *, deep: bool = True) -> ir.Expr:
    """The expression with axes replaced by affine expressions; reductions keep theirs. Without `deep` its own ones are,
    not those of its parts."""

    def moved(affine: Affine) -> Affine:
        return placed(affine, at)

    if deep:
        expr = ir.rebuild(expr, lambda child: at_axes(child, at))
    match expr:
        case ir.IndexValue(affine):
            return replace(expr, affine=moved(affine))
        case ir.Read(subscripts=subscripts):
            return replace(expr, subscripts=tuple(moved(s) if isinstance(s, Affine) else s for s in subscripts))
        case ir.Where(condition):
            return replace(expr, condition=map_condition(condition, moved))
        case ir.Reduce(guard=guard):
            return replace(expr, guard=map_condition(guard, moved))
        case _:
            return expr


def apart(equation: ir.Equation, names: Mapping[str, str], taken: Iterable[str]) -> dict[str, str]:
    """The names, and new ones for the other axes of an equation that would be called as something else is.

    taken: what something else is called
    """
    taken = set(taken)
    result = dict(names)
    bound = {a.name for a in equation.bound_axes}
    for name in sorted(bound - names.keys()):
        fresh = unused(name, taken)
        taken.add(fresh)
        if fresh != name:
            result[name] = fresh
    return result


def renamed(equation: ir.Equation, names: Mapping[str, str]) -> ir.Equation:
    """The equation with its axes called otherwise, all at once."""
    at = {old: axis(new) for old, new in names.items() if old != new}

    def moved(affine: Affine) -> Affine:
        return placed(affine, at)

    def one(own: ir.Axis) -> ir.Axis:
        bounds = tuple(map(moved, own.lower)), tuple(map(moved, own.upper))
        return ir.Axis(names.get(own.name, own.name), *bounds)

    def visit(expr: ir.Expr) -> ir.Expr:
        if isinstance(expr, ir.Reduce):
            inner = visit(expr.body)
            return replace(expr, body=inner, axes=tuple(map(one, expr.axes)), guard=map_condition(expr.guard, moved))
        return at_axes(ir.rebuild(expr, visit), at, deep=False)

    subscripts = tuple(
        moved(s) if isinstance(s, Affine) else replace(s, value=visit(s.value)) for s in equation.subscripts
    )
    return replace(
        equation,
        axes=tuple(map(one, equation.axes)),
        reduce_axes=tuple(map(one, equation.reduce_axes)),
        subscripts=subscripts,
        value=visit(equation.value),
        guard=map_condition(equation.guard, moved),
    )
