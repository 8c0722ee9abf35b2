"""Offsets in sums of products of narrow integers, such as zero points, taken out of the sums.

`sum((x[i, k] - p) * (y[k, j] - q), k)` is `sum(x[i, k] * y[k, j], k) - p * sum(y[k, j], k) - q * sum(x[i, k] - p, k)`.
What is left multiplies narrow integers, as dot instructions do, and the other sums know fewer axes. Integers wrap, so
this is exact for all values: the equations hold modulo 2**32.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, axes_of, axis
from polyopt.dtypes import i8, i16, i32, u8
from polyopt.fusion.axes import axes_in

NARROW = (i8, u8, i16)


@dataclass(frozen=True, slots=True)
class Distributed:
    """The program without the offsets, and a sentence for each sum that had any."""

    program: ir.Program
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Factor:
    """`narrow + offset`; None for no offset."""

    narrow: ir.Expr
    read: ir.Read
    offset: ir.Expr | None


def distribute(program: ir.Program) -> Distributed:
    """The program with offsets of narrow factors taken out of its sums of static sizes."""
    equations, notes = list[ir.Equation](), list[str]()
    for equation in program.equations:
        summed = _as_definition(program, equation)
        value = _visit(summed.value)
        equations.append(equation if value == summed.value else replace(summed, value=value))
        if value != summed.value:
            notes.append(f"offsets taken out of the products that {equation.tensor} sums: what is left is narrow")
    return Distributed(replace(program, equations=tuple(equations)), tuple(notes)) if notes else Distributed(program)


def _as_definition(program: ir.Program, equation: ir.Equation) -> ir.Equation:
    """An accumulation that is all there is of its tensor as a definition by a sum; any other equation as it is."""
    tensor = program.tensor(equation.tensor)
    reducer = equation.reducer
    if reducer is None or reducer.dtype != tensor.dtype or len(program.definitions(tensor.name)) != 1:
        return equation
    whole = tensor.shape is not None and len(equation.axes) == len(equation.subscripts)
    extents = zip(equation.axes, equation.subscripts, tensor.shape or (), strict=False)
    if not whole or not all(_is_whole(a, subscript, extent) for a, subscript, extent in extents):
        return equation
    total = ir.Reduce(reducer, equation.value, equation.reduce_axes, reducer.dtype, equation.guard, equation.span)
    mentioned = {name for one in equation.reduce_axes for bound in (*one.lower, *one.upper) for name in axes_of(bound)}
    if equation.guard != TRUE or mentioned:
        return equation
    return replace(equation, value=total, reducer=None, reduce_axes=())


def _is_whole(one: ir.Axis, subscript: ir.Subscript, extent: Affine) -> bool:
    """Whether an axis scans a whole dimension."""
    return subscript == axis(one.name) and one.lower == (Affine(0),) and one.upper == (extent,)


def _visit(expr: ir.Expr) -> ir.Expr:
    expr = ir.rebuild(expr, _visit)
    match expr:
        case ir.Reduce(body=ir.Op("mul", (left, right))) if _sums_all_points(expr):
            summed = frozenset(a.name for a in expr.axes)
            factors = _factor(left, summed), _factor(right, summed)
            if factors[0] is not None and factors[1] is not None:
                return _without_offsets(expr, factors[0], factors[1])
            return expr
        case _:
            return expr


def _sums_all_points(total: ir.Reduce) -> bool:
    """Whether it adds 32-bit integers over a box of known size."""
    bounds = [(*a.lower, *a.upper) for a in total.axes]
    boxed = all(len(ends) == 2 and all(end.is_constant for end in ends) for ends in bounds)
    return total.reducer.name == "sum" and total.dtype == i32 and total.guard == TRUE and boxed


def _factor(expr: ir.Expr, summed: frozenset[str]) -> Factor | None:
    """A narrow read that knows all summed axes, with what is added to it, which knows none."""
    match expr:
        case ir.Cast(ir.Read(dtype=dtype, boundary=None) as read) if dtype in NARROW:
            known = frozenset(name for s in read.subscripts if isinstance(s, Affine) for name in axes_of(s))
            plain = all(isinstance(s, Affine) for s in read.subscripts)
            return Factor(expr, read, None) if plain and summed <= known else None
        case ir.Op("add" | "sub" as name, (left, right)):
            for inner, offset in ((left, right), (right, left)):
                found = _factor(inner, summed)
                if found is None or axes_in(offset) & summed or any(isinstance(n, ir.Reduce) for n in ir.walk(offset)):
                    continue
                if name == "sub" and inner is right:
                    return None  # offset - read
                signed = ir.Op("neg", (offset,), i32) if name == "sub" else offset
                return replace(found, offset=signed if found.offset is None else _add(found.offset, signed))
            return None
        case _:
            return None


def _without_offsets(total: ir.Reduce, left: Factor, right: Factor) -> ir.Expr:
    """`sum(l * r) + p * sum(r) + q * (sum(l) + points * p)`, for the factors l + p and r + q; a sum over nothing as it
    is, since nothing says then that there is an offset."""
    points = prod(max(0, a.upper[0].constant - a.lower[0].constant) for a in total.axes)
    if points == 0 or (left.offset is None and right.offset is None):
        return total
    value: ir.Expr = replace(total, body=_mul(left.narrow, right.narrow))
    if left.offset is not None:
        value = _add(value, _mul(left.offset, replace(total, body=right.narrow)))
    if right.offset is not None:
        others: ir.Expr = replace(total, body=left.narrow)
        if left.offset is not None:
            others = _add(others, _mul(left.offset, ir.Const(points, i32)))
        value = _add(value, _mul(right.offset, others))
    return value


def _add(left: ir.Expr, right: ir.Expr) -> ir.Expr:
    return ir.Op("add", (left, right), i32)


def _mul(left: ir.Expr, right: ir.Expr) -> ir.Expr:
    return ir.Op("mul", (left, right), i32)
