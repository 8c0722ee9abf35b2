"""Tells affine expressions and conditions from data, and turns them into `dsl.affine`'s normal form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl.affine import Affine, Condition
from polyopt.dsl.expr import (
    AffineSize,
    Call,
    Convert,
    Element,
    Expr,
    Index,
    InScope,
    Passed,
    Reduction,
    Size,
    source_text,
    walk,
)
from polyopt.dsl.expr import Literal as Number
from polyopt.dtypes import i64
from polyopt.errors import DefinitionError, ShapeError, Span

COMPARISONS: Mapping[str, Literal["==", "!=", ">=", ">", "<=", "<"]] = {
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "eq": "==",
    "ne": "!=",
}


class NeedsSizes(DefinitionError):
    """The definition is affine once the sizes are numbers: it has a product of sizes, or of a size and an index."""


class InnerSizes(dict[str, Affine]):
    """What the names of sizes mean in an inlined op: no other name is a size there.

    given: indices that the caller passed, with what the sizes in their ranges mean
    """

    def __init__(self, op: str) -> None:
        super().__init__()
        self.op = op
        self.given: dict[Index, Mapping[str, Affine]] = {}


def range_sizes(index: Index, sizes: Mapping[str, Affine]) -> Mapping[str, Affine]:
    """What sizes in the range of an index mean at a place where they mean `sizes`: the same wherever it is passed."""
    return sizes.given.get(index, sizes) if isinstance(sizes, InnerSizes) else sizes


def ranges_in(roots: Iterable[Expr], sizes: Mapping[str, Affine]) -> dict[Index, tuple[Mapping[str, Affine], ...]]:
    """What sizes in the range of each index mean where it occurs free, or else at the reductions over it."""
    free: dict[Index, dict[int, Mapping[str, Affine]]] = {}
    bound: dict[Index, dict[int, Mapping[str, Affine]]] = {}
    seen: set[tuple[Expr, int, frozenset[Index]]] = set()
    stack: list[tuple[Expr, Mapping[str, Affine], frozenset[Index]]]
    stack = [(root, sizes, frozenset()) for root in reversed(list(roots))]
    while stack:
        node, here, inside = stack.pop()
        if (node, id(here), inside) in seen:
            continue
        seen.add((node, id(here), inside))
        if isinstance(node, Index) and node not in inside:
            meant = range_sizes(node, here)
            free.setdefault(node, {})[id(meant)] = meant
        inner = inside
        if isinstance(node, Reduction):
            inner = inside | frozenset(node.indices)
            for index in node.indices:
                meant = range_sizes(index, here)
                bound.setdefault(index, {})[id(meant)] = meant
        outer = node.init if isinstance(node, Reduction) else None
        here = node.sizes if isinstance(node, InScope) else here
        stack.extend((child, here, inside if child is outer else inner) for child in reversed(node.children()))
    return {index: tuple(meanings.values()) for index, meanings in {**bound, **free}.items()}


class NotAffine(Exception):
    """Why an expression is not affine. Never leaves `dsl`.

    needs_sizes: it is affine once the sizes are numbers
    scalar:      the run-time parameter that would have to be a compile-time one
    """

    def __init__(self, reason: str, span: Span | None, *, needs_sizes: bool = False, scalar: str = "") -> None:
        super().__init__(reason)
        self.reason, self.span, self.needs_sizes, self.scalar = reason, span, needs_sizes, scalar


@dataclass(frozen=True, slots=True, eq=False)
class Scope:
    """What names mean at a place of an equation. Two scopes are the same place where they are one object.

    axes:  the axis of each index that is bound there
    sizes: the affine expression of each size whose name does not simply mean itself
    levels: how often an index is bound on the way here, so that an inner use gets a name of its own
    """

    axes: Mapping[Index, str]
    sizes: Mapping[str, Affine]
    levels: Mapping[Index, int]

    def of_sizes(self, sizes: Mapping[str, Affine]) -> Scope:
        return replace(self, sizes=sizes)


def size_scope(sizes: Mapping[str, Affine]) -> Scope:
    """A scope without indices, for extents."""
    return Scope({}, sizes, {})


def affine_of(expr: Expr, scope: Scope) -> Affine:
    """The expression's normal form. Raises `NotAffine`, and `DefinitionError` for an index that is not bound."""
    match expr:
        case Number(value=value) if isinstance(value, int | np.integer) and not isinstance(value, bool):
            return af.constant(int(value))
        case Index():
            return af.axis(_axis_of(expr, scope))
        case Size(name=name):
            return _size_of(name, expr, scope)
        case AffineSize(affine=affine):
            return affine
        case InScope(body=body, sizes=sizes):
            return affine_of(body, scope.of_sizes(sizes))
        case Passed(arg=arg, dtype=dtype) if dtype == i64 or (dtype.is_integer and isinstance(arg, Number)):
            return affine_of(arg, scope)
        case Call(name=name, args=args):
            return _affine_call(expr, name, args, scope)
        case Number():
            raise NotAffine(f"'{source_text(expr)}' is not an integer.", expr.span)
        case Element(tensor=tensor, subscripts=()) if tensor.role == "input":
            raise NotAffine(f"'{tensor.name}' is data: it comes with each call.", expr.span, scalar=tensor.name)
        case _:
            raise NotAffine(f"'{source_text(expr)}' is data.", expr.span)


def _axis_of(index: Index, scope: Scope) -> str:
    if index in scope.axes:
        return scope.axes[index]
    raise DefinitionError(
        f"index '{index.name}' has no meaning here",
        where=index.span,
        why="It is neither on the left side nor bound by a reduction around this place.",
        fix=f"put '{index.name}' on the left side, or reduce over it with po.sum(..., {index.name}).",
        facts={"index": index.name},
    )


def _size_of(name: str, expr: Expr, scope: Scope) -> Affine:
    if not isinstance(scope.sizes, InnerSizes):
        return scope.sizes.get(name, af.size(name))
    if name not in scope.sizes:
        raise ShapeError(
            f"size '{name}' does not follow from the arguments of '{scope.sizes.op}'",
            where=expr.span,
            why="No parameter of the inlined op has it as an extent, and a size of the caller is not seen there.",
            fix=f"use it in the annotation of a tensor, or make it a parameter, '{name}: int', and pass the size.",
            facts={"size": name, "op": scope.sizes.op},
        )
    found = scope.sizes[name]
    for extent in af.extents_of(found):
        raise DefinitionError(
            f"size '{name}' of the inlined op is not known here",
            where=expr.span,
            why=f"It is the extent of '{extent.tensor}', which follows from ranges that are found later.",
            fix=f"give the tensor its shape: po.tensor('{extent.tensor}', shape=(...)).",
            facts={"size": name},
        )
    return found


def _affine_call(expr: Call, name: str, args: tuple[Expr, ...], scope: Scope) -> Affine:
    if name not in ("add", "sub", "neg", "mul", "floordiv", "mod"):
        raise NotAffine(f"'{source_text(expr)}' is not a sum of indices and sizes times constants.", expr.span)
    values = [affine_of(arg, scope) for arg in args]
    if name == "neg":
        return -values[0]
    left, right = values
    if name == "add":
        return left + right
    if name == "sub":
        return left - right
    if name == "mul":
        return _product(expr, left, right)
    if not right.is_constant:
        sizes_only = not af.axes_of(right)
        reason = (
            f"'{source_text(expr)}' divides by {'a size' if sizes_only else 'an index'}; a divisor must be a constant."
        )
        raise NotAffine(reason, expr.span, needs_sizes=sizes_only)
    if right.constant == 0:
        raise DefinitionError(
            f"'{source_text(expr)}' divides by zero", where=expr.span, fix="divide by a constant other than 0."
        )
    return left // right.constant if name == "floordiv" else left % right.constant


def _product(expr: Call, left: Affine, right: Affine) -> Affine:
    if right.is_constant:
        return left * right.constant
    if left.is_constant:
        return right * left.constant
    if af.axes_of(left) and af.axes_of(right):
        raise NotAffine(
            f"'{source_text(expr)}' multiplies two indices; a subscript must be a sum of indices times constants.",
            expr.span,
        )
    raise NotAffine(
        f"'{source_text(expr)}' multiplies by a size that is not a number here.", expr.span, needs_sizes=True
    )


def condition_of(expr: Expr, scope: Scope) -> Condition:
    """The condition as comparisons of affine expressions. Raises `NotAffine`."""
    match expr:
        case Number(value=value) if isinstance(value, bool | np.bool_):
            return af.TRUE if value else af.FALSE
        case InScope(body=body, sizes=sizes):
            return condition_of(body, scope.of_sizes(sizes))
        case Call(name=name, args=(left, right)) if name in COMPARISONS:
            return fold(af.Compare(affine_of(left, scope) - affine_of(right, scope), COMPARISONS[name]))
        case Call(name="and", args=(left, right)):
            return af.conjunction(condition_of(left, scope), condition_of(right, scope))
        case Call(name="or", args=(left, right)):
            return af.Or((condition_of(left, scope), condition_of(right, scope)))
        case Call(name="xor", args=(left, right)):
            a, b = condition_of(left, scope), condition_of(right, scope)
            return af.Or((af.conjunction(a, af.Not(b)), af.conjunction(af.Not(a), b)))
        case Call(name="not", args=(part,)):
            return af.Not(condition_of(part, scope))
        case _:
            raise NotAffine(f"'{source_text(expr)}' is not a comparison of indices and sizes.", expr.span)


def try_condition(expr: Expr, scope: Scope) -> Condition | None:
    """The condition, or None where it looks at data."""
    try:
        return condition_of(expr, scope)
    except NotAffine:
        return None


def split_condition(expr: Expr, scope: Scope) -> tuple[Condition, Expr | None]:
    """A conjunction taken apart into its affine part and its data part; None where no part looks at data."""
    condition = try_condition(expr, scope)
    if condition is not None:
        return condition, None
    if isinstance(expr, InScope):
        condition, data = split_condition(expr.body, scope.of_sizes(expr.sizes))
        return condition, None if data is None else InScope(data, expr.sizes)
    if isinstance(expr, Call) and expr.name == "and":
        (left, left_data), (right, right_data) = (split_condition(arg, scope) for arg in expr.args)
        parts = [part for part in (left_data, right_data) if part is not None]
        if len(parts) == 1:  # an integer beside a condition tells by its lowest bit, as True & x does
            return af.conjunction(left, right), Call("beside_condition", tuple(parts))
        return af.conjunction(left, right), Call("and", tuple(parts))
    return af.TRUE, expr


def fold(condition: Condition) -> Condition:
    """The condition with comparisons of constants decided."""
    match condition:
        case af.Compare(left) if left.is_constant:
            return af.TRUE if af.holds(condition, {}, {}) else af.FALSE
        case af.And(parts):
            kept = [part for part in map(fold, parts) if part != af.TRUE]
            return af.FALSE if af.FALSE in kept else af.conjunction(*kept)
        case af.Or(parts):
            kept = [part for part in map(fold, parts) if part != af.FALSE]
            return af.TRUE if af.TRUE in kept else kept[0] if len(kept) == 1 else af.Or(tuple(kept))
        case af.Not(part):
            inner = fold(part)
            return af.FALSE if inner == af.TRUE else af.TRUE if inner == af.FALSE else af.Not(inner)
        case _:
            return condition


def is_data(expr: Expr) -> bool:
    """Whether the expression reads a tensor or a run-time scalar, or is computed by a cast."""
    return any(isinstance(node, Element | Convert) for node in walk(expr))


def extent_of(expr: Expr, sizes: Mapping[str, Affine], what: str, where: Span | None = None) -> Affine:
    """An extent or bound as an affine expression over sizes. Raises `DefinitionError`, or `NeedsSizes`.

    where: the place that has it; a parameter is known to be one of the call
    """
    try:
        return affine_of(expr, size_scope(sizes))
    except NotAffine as problem:
        fix = "use integers, sizes, and sums of sizes times constants."
        if problem.scalar:
            fix = f"make it a compile-time parameter, '{problem.scalar}: int'."
            problem.span = where or problem.span
        raise refusal(problem, f"{what} is not affine in sizes", fix) from None


def refusal(problem: NotAffine, what: str, fix: str = "") -> DefinitionError:
    """The user's error for an expression that had to be affine."""
    if problem.needs_sizes:
        return NeedsSizes(
            what,
            where=problem.span,
            why=problem.reason,
            fix="give the sizes as numbers (leave them out of dynamic=), or make one of the factors an int parameter.",
            facts={"needs_sizes": True},
        )
    return DefinitionError(what, where=problem.span, why=problem.reason, fix=fix)
