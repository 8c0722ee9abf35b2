"""From isl's AST expressions to the loop program's: affine where they can be, operations elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import cast

import islpy as isl

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
    axis,
    constant,
    size,
)
from polyopt.dsl.ir import Const, Op
from polyopt.dtypes import bool_, i64
from polyopt.errors import ScheduleError
from polyopt.loops.ir import Expr, index_var, integer

_OP = isl.ast_expr_op_type
_INT, _ID, _APPLY = isl.ast_expr_type.int, isl.ast_expr_type.id, isl.ast_expr_type.op

_COMPARISONS = {_OP.eq: "eq", _OP.le: "le", _OP.lt: "lt", _OP.ge: "ge", _OP.gt: "gt"}
_MIXED = {_OP.min: "minimum", _OP.max: "maximum", _OP.add: "add", _OP.sub: "sub", _OP.mul: "mul"}
_DIVISIONS = (_OP.fdiv_q, _OP.pdiv_q, _OP.div)
_REMAINDERS = (_OP.pdiv_r, _OP.zdiv_r)


_AND, _OR = (getattr(_OP, name) for name in ("and_", "or_"))  # isl's Python types leave these two out


class NotAffine(Exception):
    """An expression that only operations can say."""


def as_affine(ast: isl.AstExpr, names: Mapping[str, str], sizes: frozenset[str]) -> Affine:
    """The AST expression in normal form.

    names: isl's iterator names to loop variables. Raises `NotAffine` for minima, choices and the like.
    """
    kind = cast(isl.ast_expr_type, ast.get_type())
    if kind == _INT:
        return constant(int(ast.get_val().to_python()))
    if kind == _ID:
        name = ast.get_id().get_name()
        return size(name) if name in sizes else axis(names[name])
    op = operation(ast)
    args = [ast.get_op_arg(n) for n in range(ast.get_op_n_arg())]
    if op not in (_OP.add, _OP.sub, _OP.minus, _OP.mul, *_DIVISIONS, *_REMAINDERS):
        raise NotAffine
    values = [as_affine(arg, names, sizes) for arg in args]
    if op == _OP.add:
        return values[0] + values[1]
    if op == _OP.sub:
        return values[0] - values[1]
    if op == _OP.minus:
        return -values[0]
    if op == _OP.mul:
        factor, value = (values[0], values[1]) if values[0].is_constant else (values[1], values[0])
        if not factor.is_constant:
            raise NotAffine
        return value * factor.constant
    if not values[1].is_constant:
        raise NotAffine
    divisor = values[1].constant
    return values[0] // divisor if op in _DIVISIONS else values[0] % divisor


def as_expr(ast: isl.AstExpr, names: Mapping[str, str], sizes: frozenset[str]) -> Expr:
    """The AST expression as a loop expression: i64, or bool for a comparison."""
    try:
        return affine_expr(as_affine(ast, names, sizes))
    except NotAffine:
        pass
    op = operation(ast)
    args = [as_expr(ast.get_op_arg(n), names, sizes) for n in range(ast.get_op_n_arg())]
    if op in _COMPARISONS:
        return Op(_COMPARISONS[op], tuple(args), bool_)
    if op in (_AND, _OP.and_then):
        return reduce(lambda a, b: Op("and", (a, b), bool_), map(_truth, args))
    if op in (_OR, _OP.or_else):
        return reduce(lambda a, b: Op("or", (a, b), bool_), map(_truth, args))
    if op in (_OP.select, _OP.cond):
        return Op("select", (_truth(args[0]), *args[1:]), i64)
    if op == _OP.minus:
        return Op("neg", tuple(args), i64)
    if op in _DIVISIONS:
        return Op("floordiv", tuple(args), i64)
    if op in _REMAINDERS:
        return Op("mod", tuple(args), i64)
    if op in _MIXED:
        name = _MIXED[op]
        return reduce(lambda a, b: Op(name, (a, b), i64), args)
    raise ScheduleError("isl's AST has an operation that was not expected", why=ast.to_C_str())


def as_condition(ast: isl.AstExpr, names: Mapping[str, str], sizes: frozenset[str]) -> Expr:
    """The AST expression of a guard as a bool."""
    return _truth(as_expr(ast, names, sizes))


def _truth(expr: Expr) -> Expr:
    """A condition as a bool: isl says 1 for what always holds, alone or among comparisons."""
    if expr.dtype == bool_:
        return expr
    return Const(bool(expr.value), bool_) if isinstance(expr, Const) else Op("ne", (expr, integer(0)), bool_)


def operation(ast: isl.AstExpr) -> isl.ast_expr_op_type:
    """Which operation an expression applies; isl's Python types call it a number."""
    return cast(isl.ast_expr_op_type, ast.get_op_type())


def affine_expr(affine: Affine) -> Expr:
    """A quasi-affine expression of loop variables (axes) and sizes as i64 operations; what is added comes first."""
    result: Expr | None = None
    for atom, coefficient in sorted(affine.terms, key=lambda term: term[1] < 0):
        match atom:
            case AxisRef(name) | SizeRef(name):
                value: Expr = index_var(name)
            case FloorDiv(numerator, divisor):
                value = Op("floordiv", (affine_expr(numerator), integer(divisor)), i64)
        if coefficient < 0 and result is None and affine.constant > 0:
            result = integer(affine.constant)
        subtract = coefficient < 0 and result is not None
        factor = -coefficient if subtract else coefficient
        if factor != 1:
            value = Op("mul", (value, integer(factor)), i64)
        result = value if result is None else Op("sub" if subtract else "add", (result, value), i64)
    if result is None:
        return integer(affine.constant)
    started_with_constant = affine.constant > 0 and all(coefficient < 0 for _, coefficient in affine.terms)
    if affine.constant == 0 or started_with_constant:
        return result
    if affine.constant > 0:
        return Op("add", (result, integer(affine.constant)), i64)
    return Op("sub", (result, integer(-affine.constant)), i64)


_NAMES = {"==": "eq", "!=": "ne", ">=": "ge", ">": "gt", "<=": "le", "<": "lt"}


def condition_expr(condition: Condition) -> Expr:
    """An affine condition of loop variables and sizes as a bool expression."""
    match condition:
        case Compare(left, op):
            left, right = _balanced(left)
            return Op(_NAMES[op], (affine_expr(left), affine_expr(right)), bool_)
        case And(parts):
            return _joined("and", [condition_expr(part) for part in parts], empty=True)
        case Or(parts):
            return _joined("or", [condition_expr(part) for part in parts], empty=False)
        case Not(part):
            return Op("not", (condition_expr(part),), bool_)


def _balanced(left: Affine) -> tuple[Affine, Affine]:
    """`left OP 0` with what is negative moved to the right side."""
    positive, negative = Affine(max(left.constant, 0)), Affine(max(-left.constant, 0))
    for atom, coefficient in left.terms:
        term = Affine(0, ((atom, abs(coefficient)),))
        positive, negative = (positive + term, negative) if coefficient > 0 else (positive, negative + term)
    return positive, negative


def _joined(name: str, parts: list[Expr], *, empty: bool) -> Expr:
    if not parts:
        return Const(empty, bool_)
    return reduce(lambda a, b: Op(name, (a, b), bool_), parts)


def both(first: Expr | None, second: Expr | None) -> Expr | None:
    """The conjunction of two masks, where None holds always."""
    if first is None or second is None:
        return second if first is None else first
    return Op("and", (first, second), bool_)
