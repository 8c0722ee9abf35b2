"""Integers in 16 bits, where no value on the way needs more.

Pixels of 8 bits are averaged in 32, since a sum of two leaves 8: `u8((i32(x[i]) + 2*i32(y[i]) + i32(z[i])) // 4)`.
No value of it leaves 16 bits, and a vector has twice as many lanes of those. So arithmetic whose result is stored in
16 bits or fewer, or compared, runs in i16 or u16 where that holds every number, every partial result included, where
none leaves its own dtype, and where the equation has nothing wider besides.

Exact: the range of each is known from the dtypes of what is read and the constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.integers import Reach, integer_range, reach, within
from polyopt.dtypes import DType, i16, u16

_ARITHMETIC = frozenset({
    "add", "sub", "mul", "floordiv", "mod", "minimum", "maximum", "neg", "abs", "and", "or", "xor", "shl", "shr",
})  # fmt: skip
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_BITS = 16


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The program with narrow arithmetic, and a sentence for each equation that has any."""

    program: ir.Program
    notes: tuple[str, ...] = ()


def narrow(program: ir.Program) -> Narrowed:
    """The program whose integers have 16 bits where none needs more and a narrow result or a comparison takes them."""
    equations = tuple(map(_equation, program.equations))
    changed = [new for old, new in zip(program.equations, equations, strict=True) if new != old]
    notes = tuple(f"integers of {name} have {_BITS} bits: none needs more" for name in {e.name: None for e in changed})
    return Narrowed(replace(program, equations=equations) if changed else program, notes)


def _equation(equation: ir.Equation) -> ir.Equation:
    """The equation with narrow arithmetic; as it is where something else in it is wide, and so has few lanes."""
    found = replace(equation, value=_visit(equation.value))
    return found if all(node.dtype.bits <= _BITS for node in ir.walk(found.value)) else equation


def _visit(expr: ir.Expr) -> ir.Expr:
    match expr:
        case ir.Cast(arg, dtype) if _is_wide(arg) and dtype.is_integer and dtype.bits <= _BITS:
            found = _all_narrow((arg,))
            return expr if found is None else replace(expr, arg=found[0]) if found[0].dtype != dtype else found[0]
        case ir.Op(name, args) if name in _COMPARISONS and all(map(_is_wide, args)):
            found = _all_narrow(args)
            return expr if found is None else replace(expr, args=found)
        case _:
            return ir.rebuild(expr, _visit)


def _is_wide(expr: ir.Expr) -> bool:
    return expr.dtype.is_integer and expr.dtype.bits > _BITS


def _all_narrow(exprs: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...] | None:
    """The expressions in one dtype of 16 bits; None where some number of them does not fit."""
    nodes = (node for expr in exprs for node in ir.walk(expr))
    narrow = (node for node in nodes if node.dtype.is_integer and not _is_wide(node) and not isinstance(node, ir.Const))
    known: dict[ir.Expr, Reach] = {node: integer_range(node.dtype) for node in narrow}  # what they compute may wrap
    for dtype in (i16, u16):
        found = [_in(expr, dtype, known) for expr in exprs]
        fitting = tuple(one for one in found if one is not None)
        if len(fitting) == len(exprs):
            return fitting
    return None


def _in(expr: ir.Expr, dtype: DType, known: Mapping[ir.Expr, Reach]) -> ir.Expr | None:
    """Wide integer arithmetic in a dtype that holds all of its numbers; None where it does not."""
    found = reach(expr, known)
    if found is None or not within(found, dtype) or not within(found, expr.dtype):
        return None
    match expr:
        case ir.Const(value=value):
            return ir.Const(int(value), dtype)
        case ir.Cast(arg) if _is_wide(arg):
            return _in(arg, dtype, known)
        case ir.Cast(arg) if arg.dtype.is_integer or arg.dtype.is_bool:
            inner = _visit(arg)
            return inner if inner.dtype == dtype else ir.Cast(inner, dtype)
        case ir.Op("select", (condition, first, second)):
            then, otherwise = _in(first, dtype, known), _in(second, dtype, known)
            if then is None or otherwise is None:
                return None
            return ir.Op("select", (_visit(condition), then, otherwise), dtype)
        case ir.Where(condition, first, second):
            then, otherwise = _in(first, dtype, known), _in(second, dtype, known)
            return None if then is None or otherwise is None else ir.Where(condition, then, otherwise, dtype)
        case ir.Op(name, args) if name in _ARITHMETIC:
            operands = [_in(arg, dtype, known) for arg in args]
            fitting = [operand for operand in operands if operand is not None]
            return ir.Op(name, tuple(fitting), dtype) if len(fitting) == len(args) else None
        case _:
            return None
