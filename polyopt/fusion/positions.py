"""Positions that a minimum is taken of, in 32 bits where they fit.

The place of an extremum is the least index at which it is attained, an i64 as in NumPy. A vector has twice as many
lanes of 32 bits, and on x86 without AVX-512 no minimum of 64 bits at all. The greatest i64 stands for "nowhere".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyopt.dsl import ir
from polyopt.dsl.integers import integer_range
from polyopt.dtypes import bool_, i32, i64
from polyopt.poly.intervals import extreme

Ranges = Mapping[str, ir.Axis]

NOWHERE = ir.Const(integer_range(i64)[1], i64)
NOWHERE_32 = ir.Const(integer_range(i32)[1], i32)


def narrow(program: ir.Program) -> ir.Program:
    """The program whose minima of indices, and of the greatest i64, are found in i32."""
    equations = tuple(
        replace(equation, value=_visit(equation.value, {axis.name: axis for axis in equation.all_axes}))
        for equation in program.equations
    )
    return program if equations == program.equations else replace(program, equations=equations)


def _visit(expr: ir.Expr, ranges: Ranges) -> ir.Expr:
    if not isinstance(expr, ir.Reduce):
        return ir.rebuild(expr, lambda child: _visit(child, ranges))
    ranges = {**ranges, **{axis.name: axis for axis in expr.axes}}
    reducer, body = expr.reducer, _in_32_bits(expr.body, ranges)
    if reducer.name != "min" or expr.dtype != i64 or body is None or reducer.neutral not in (None, NOWHERE):
        return replace(expr, body=_visit(expr.body, ranges))
    neutral = None if reducer.neutral is None else NOWHERE_32
    least: ir.Expr = replace(expr, reducer=replace(reducer, dtype=i32, neutral=neutral), body=body, dtype=i32)
    is_nowhere: ir.Expr = ir.Op("eq", (least, NOWHERE_32), bool_)
    return ir.Op("select", (is_nowhere, NOWHERE, ir.Cast(least, i64)), i64)


def _in_32_bits(expr: ir.Expr, ranges: Ranges) -> ir.Expr | None:
    """A choice of positions, each of which fits; None for anything else."""
    match expr:
        case ir.Op("select", (condition, then, otherwise)):
            first, second = _in_32_bits(then, ranges), _in_32_bits(otherwise, ranges)
            if first is None or second is None:
                return None
            return replace(expr, args=(_visit(condition, ranges), first, second), dtype=i32)
        case ir.Const() if expr == NOWHERE:
            return NOWHERE_32
    span = _span(expr, ranges)
    is_free = span is not None and integer_range(i32)[0] <= span[0] and span[1] < NOWHERE_32.value
    return _low_bits(expr) if is_free else None


def _span(expr: ir.Expr, ranges: Ranges) -> tuple[int, int] | None:
    """The least and greatest value of an expression of indices; None where that is no number."""
    match expr:
        case ir.Const(int() as value, dtype) if dtype == i64:
            return value, value
        case ir.IndexValue(affine):
            ends = extreme(affine, ranges, largest=False), extreme(affine, ranges, largest=True)
            if ends[0] is None or ends[1] is None or not (ends[0].is_constant and ends[1].is_constant):
                return None
            return ends[0].constant, ends[1].constant
        case ir.Op("add" | "mul" as name, (left, right)):
            spans = _span(left, ranges), _span(right, ranges)
            if spans[0] is None or spans[1] is None:
                return None
            found = [a + b if name == "add" else a * b for a in spans[0] for b in spans[1]]
            return min(found), max(found)
    return None


def _low_bits(expr: ir.Expr) -> ir.Expr:
    """The low 32 bits of what `_span` has an answer for; sums and products need no others."""
    match expr:
        case ir.Const(int() as value):
            return ir.Const((value + (1 << 31)) % (1 << 32) - (1 << 31), i32)
        case ir.Op():
            return replace(expr, args=tuple(map(_low_bits, expr.args)), dtype=i32)
    return ir.Cast(expr, i32)
