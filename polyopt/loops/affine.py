"""Expressions of loop variables and sizes in normal form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyopt.dsl.affine import Affine, AxisRef, FloorDiv, SizeRef, axis, constant
from polyopt.dsl.ir import Const, Op, Var
from polyopt.dtypes import i64
from polyopt.loops.ir import Expr
from polyopt.loops.scan import affine_expr
from polyopt.poly.magnitudes import MOST_EXPRESSION, MOST_INDEX

_MOST_FACTOR, _MOST_CONSTANT = MOST_EXPRESSION // 4 // MOST_INDEX, MOST_EXPRESSION // 4
"""Nothing overflows that has such numbers in it, nor the difference of two."""


def as_affine(expr: Expr) -> Affine | None:
    """An i64 expression of loop variables and sizes in normal form; None where it is not affine, or a value that may
    wrap around."""
    found = _as_affine(expr)
    if found is None or abs(found.constant) > _MOST_CONSTANT:
        return None
    return found if sum(abs(factor) for _, factor in found.terms) <= _MOST_FACTOR else None


def _as_affine(expr: Expr) -> Affine | None:
    match expr:
        case Const(value, dtype) if not dtype.is_float:
            return constant(int(value))
        case Var(name):
            return axis(name)
        case Op("add" | "sub" | "mul" | "floordiv" | "mod", (left, right)):
            first, second = as_affine(left), as_affine(right)
            return None if first is None or second is None else _combined(expr.name, first, second)
        case _:
            return None


def _combined(name: str, left: Affine, right: Affine) -> Affine | None:
    if name == "add":
        return left + right
    if name == "sub":
        return left - right
    if name == "mul":
        factor, value = (left, right) if left.is_constant else (right, left)
        return value * factor.constant if factor.is_constant else None
    if not right.is_constant or right.constant <= 0:
        return None
    return left // right.constant if name == "floordiv" else left % right.constant


def tidy(index: Expr) -> Expr:
    """An index in normal form, where it is affine or the smaller or greater of such ones."""
    affine = as_affine(index)
    if affine is not None:
        return affine_expr(affine)
    match index:
        case Op("minimum" | "maximum" as name, (left, right), dtype) if dtype == i64:
            left, right = tidy(left), tidy(right)
            difference = as_affine(Op("sub", (left, right), i64))
            if difference is None or not difference.is_constant:
                return replace(index, args=(left, right))
            return left if (difference.constant >= 0) == (name == "maximum") else right
        case _:
            return index


def arms(expr: Expr, name: str) -> Iterator[Expr]:
    """What a minimum or a maximum of several is of."""
    match expr:
        case Op(own, (left, right)) if own == name:
            yield from arms(left, name)
            yield from arms(right, name)
        case _:
            yield expr


def plain_atoms(affine: Affine) -> Iterator[AxisRef | SizeRef]:
    for atom, _ in affine.terms:
        if isinstance(atom, FloorDiv):
            yield from plain_atoms(atom.numerator)
        else:
            yield atom
