"""Reductions inside expressions, lowered to the core's `Reduce`.

A sum or product runs in the accumulator's dtype, to which the reads inside are converted first; means are a sum over
a count; argmax and argmin are a maximum and the least index that attains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, assert_never

import numpy as np

from polyopt.dsl import affine as af
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.constants import Typed, constant
from polyopt.dsl.expr import Expr, Guarded, Index, Reduction, spelled
from polyopt.dsl.expr import Literal as Number
from polyopt.dsl.extents import index_extent
from polyopt.dsl.integers import integer_range
from polyopt.dsl.recognise import NotAffine, Scope, condition_of, extent_of, range_sizes, refusal, split_condition
from polyopt.dsl.types import UNKNOWN, Unknown, WeakType, concrete, join
from polyopt.dsl.values import Builder, Reads
from polyopt.dtypes import DType, accumulator, bool_, converted, f64, i32, i64, promote, u64
from polyopt.errors import DefinitionError, DTypeError

ReducerName = Literal["sum", "prod", "max", "min", "any", "all", "custom"]


class _Points:
    """The points of a reduction: its axes, its affine guard, its condition on data, and what is reduced."""

    def __init__(self, build: Builder, expr: Reduction, outer: Scope) -> None:
        self.scope = build.bind(outer, expr.indices)
        self.axes = tuple(as_axis(index, self.scope) for index in expr.indices)
        self.guard, data = (af.TRUE, None) if expr.where is None else split_condition(expr.where, self.scope)
        self.body, condition = unguarded(expr.body, self.scope)
        self.guard = af.conjunction(self.guard, condition) if condition != af.TRUE else self.guard
        self.data = None if data is None else build.truth(data, self.scope)
        self.span = expr.span

    def kept(self, value: ir.Expr, neutral: ir.Const) -> ir.Expr:
        """The value where the condition on data holds, else the neutral element."""
        return value if self.data is None else ir.Op("select", (self.data, value, neutral), neutral.dtype)

    def reduce(
        self, name: ReducerName, body: ir.Expr, neutral: ir.Const | None, combine: ir.Combine | None = None
    ) -> ir.Expr:
        dtype = body.dtype
        return ir.Reduce(ir.Reducer(name, dtype, neutral, combine), body, self.axes, dtype, self.guard, self.span)


def lower_reduction(build: Builder, expr: Reduction, scope: Scope, reads: Reads | None) -> Typed:
    """The typed form of a reduction. Raises `DefinitionError` for a maximum over data that may be empty."""
    points = _Points(build, expr, scope)
    match expr.kind:
        case "sum" | "prod" as name:
            return _sum(build, expr, points, name, scope, reads)
        case "max" | "min" as name:
            return _extremum(build, expr, points, name, scope, reads)
        case "any" | "all" as name:
            neutral = ir.Const(name == "all", bool_)
            body = points.kept(build.truth(points.body, points.scope), neutral)
            return Typed(points.reduce(name, body, neutral), bool_)
        case "mean":
            return _mean(build, expr, points, reads)
        case "argmax" | "argmin":
            return _position(build, expr, points, scope)
        case _:
            return _custom(build, expr, points, reads)


def unguarded(expr: Expr, scope: Scope) -> tuple[Expr, af.Condition]:
    """The value inside `when`, nested ones too, and the conjunction of the conditions."""
    condition: af.Condition = af.TRUE
    while isinstance(expr, Guarded):
        try:
            part = condition_of(expr.condition, scope)
        except NotAffine as problem:
            raise refusal(
                problem,
                "the condition of po.when must be affine in indices and sizes",
                "choose by data with po.where(condition, a, b), which gives a value everywhere.",
            ) from None
        condition = af.conjunction(condition, part) if condition != af.TRUE else part
        expr = expr.value
    return expr, condition


def as_axis(index: Index, scope: Scope, sizes: Mapping[str, Affine] | None = None) -> ir.Axis:
    """The axis of an index, with its explicit range if it has one. sizes: what those in its range mean"""
    sizes = range_sizes(index, scope.sizes) if sizes is None else sizes
    starts = [index.lower] if index.lower is not None else []
    ends = [end for end in (index.upper, index.cap) if end is not None]
    return ir.Axis(
        scope.axes[index],
        tuple(extent_of(start, sizes, f"the start of index '{index.name}'", index.span) for start in starts),
        tuple(extent_of(end, sizes, f"the end of index '{index.name}'", index.span) for end in ends),
    )


# --- sums and products -----------------------------------------------------------------------------------------------


def summand(build: Builder, body: Expr, scope: Scope, reads: Reads | None = None) -> Typed:
    """The body in the type that it has outside a sum; where a number in it does not fit that, in i32, if it does in the
    sum of narrow integers. Raises `DTypeError` where it does not fit there either."""
    try:
        return build.build(body, scope, reads)
    except DTypeError:
        if reads is not None:
            raise
        wider = build.build(body, scope, Reads(i32))
        if wider.type != i32:
            raise
        return wider


def accumulated(
    build: Builder, body: Expr, scope: Scope, reads: Reads | None, asked: Reads | None
) -> tuple[Typed, DType]:
    """The body with its reads in the accumulator's dtype, and the dtype that the result has.

    reads: of an enclosing sum, whose dtype then is the accumulator's and no rounding happens in between
    asked: the accumulator, where it does not follow from the body
    """
    if asked is not None:
        value = build.build(body, scope, asked)
        return Typed(build.convert(value, asked.dtype, body.span), asked.dtype), asked.dtype
    natural = summand(build, body, scope, reads)
    if isinstance(natural.type, Unknown) or (isinstance(natural.type, WeakType) and build.converter.provisional):
        return natural, natural.node.dtype
    result = concrete(natural.type)
    inner = accumulator(result)
    value = natural if reads is not None else build.build(body, scope, Reads(inner))
    rounded = result if result.is_float else inner
    return Typed(build.convert(value, inner, body.span), inner), rounded


def _sum(
    build: Builder, expr: Reduction, points: _Points, name: Literal["sum", "prod"], scope: Scope, reads: Reads | None
) -> Typed:
    start = None if expr.init is None else build.build(expr.init, scope)
    asked = None if expr.dtype is None else Reads(expr.dtype, always=True)
    value, result = accumulated(build, points.body, points.scope, reads, asked)
    if start is not None and expr.dtype is None and isinstance(value.type, DType):
        both = concrete(join((result, start.type)))
        if both != result:
            value, result = accumulated(build, points.body, points.scope, None, Reads(both))
    dtype = value.node.dtype
    neutral = constant(int(name == "prod"), dtype, expr.span)
    reducer, operation = _OF_BOOLEANS[name] if dtype.is_bool else (name, {"sum": "add", "prod": "mul"}[name])
    total = points.reduce(reducer, points.kept(value.node, neutral), neutral)
    if start is not None:
        first = build.convert(start, dtype, expr.span)
        total = ir.Op(operation, (first, total), dtype)
    if not isinstance(value.type, DType):
        return Typed(total, value.type)
    return Typed(total if result == dtype else ir.Cast(total, result), result)


_OF_BOOLEANS: Mapping[str, tuple[Literal["any", "all"], str]] = {"sum": ("any", "or"), "prod": ("all", "and")}
"""What a sum and a product of booleans are, and how two of them combine: as NumPy adds and multiplies booleans."""


def _mean(build: Builder, expr: Reduction, points: _Points, reads: Reads | None) -> Typed:
    """sum / count; in f32 for f16 and bf16, which are rounded once at the end."""
    natural = summand(build, points.body, points.scope, reads)
    known = not isinstance(natural.type, Unknown)
    result = expr.dtype or (concrete(natural.type) if concrete(natural.type).is_float else f64)
    if not result.is_float:
        raise DTypeError(
            f"a mean is no {result}",
            where=expr.span,
            why="It is a quotient, which integers and booleans do not hold.",
            fix=f"convert the mean: po.cast(po.mean(...), {result}).",
            facts={"dtype": str(result)},
        )
    inner = accumulator(result)
    value = build.build(points.body, points.scope, Reads(inner, always=expr.dtype is not None))
    zero = constant(0, inner, expr.span)
    total = points.reduce("sum", points.kept(build.convert(value, inner, expr.span), zero), zero)
    mean = ir.Op("truediv", (total, ir.Cast(_count(build, expr, points), inner)), inner)
    return Typed(mean if result == inner else ir.Cast(mean, result), result if known else UNKNOWN)


def _count(build: Builder, expr: Reduction, points: _Points) -> ir.Expr:
    """The number of points: a product of extents where that is plain, else counted.

    The count reads what the sum reads, and keeps nothing of it, since the reads are what give its axes their ranges.
    """
    if expr.known is not None:
        return build.build(expr.known, points.scope).node
    extents = [index_extent(points.body, index, points.scope) for index in expr.indices]
    known = [extent for extent in extents if extent is not None]
    if points.guard == af.TRUE and points.data is None and len(known) == len(extents):
        return _product(known)
    zero = ir.Const(0, i64)
    read = ir.Cast(build.build(points.body, points.scope).node, i64)
    one: ir.Expr = ir.Op("select", (ir.Const(True, bool_), ir.Const(1, i64), read), i64)
    return points.reduce("sum", points.kept(one, zero), zero)


def _product(extents: Sequence[af.Affine]) -> ir.Expr:
    first, *others = map(_extent_value, extents)
    product = first
    for extent in others:
        product = ir.Op("mul", (product, extent), i64)
    return product


def _extent_value(extent: af.Affine) -> ir.Expr:
    """An extent as a number: 0 for the sizes for which it is below that."""
    value = ir.IndexValue(extent, i64)
    return value if af.is_nonnegative(extent) else ir.Op("maximum", (value, ir.Const(0, i64)), i64)


# --- maxima and minima -----------------------------------------------------------------------------------------------


def _extremum(
    build: Builder, expr: Reduction, points: _Points, name: Literal["max", "min"], scope: Scope, reads: Reads | None
) -> Typed:
    start = None if expr.init is None else build.build(expr.init, scope)
    natural = build.build(points.body, points.scope, reads)
    if isinstance(natural.type, Unknown):
        return natural
    type_ = natural.type if start is None else join((natural.type, start.type))
    dtype = concrete(type_)
    if expr.dtype is not None:
        type_ = dtype = expr.dtype
    worst = extreme(name, dtype)
    neutral = worst if start is not None else None
    if points.data is not None and start is None:
        raise _empty_data(expr)
    body = points.kept(build.convert(natural, dtype, expr.span), worst)
    if start is not None and isinstance(expr.init, Number):
        first = build.convert(start, dtype, expr.span)
        assert isinstance(first, ir.Const), "a number converts to a constant"
        return Typed(points.reduce(name, body, first), type_ if build.converter.provisional else dtype)
    result = points.reduce(name, body, neutral)
    if start is not None:
        builtin = "maximum" if name == "max" else "minimum"
        result = ir.Op(builtin, (build.convert(start, dtype, expr.span), result), dtype)
    return Typed(result, type_ if build.converter.provisional else dtype)


def extreme(name: str, dtype: DType) -> ir.Const:
    """The value that never wins a maximum ("max") or minimum ("min")."""
    if dtype.is_float:
        return ir.Const(-math.inf if name == "max" else math.inf, dtype)
    if dtype.is_bool:
        return ir.Const(name == "min", dtype)
    low, high = integer_range(dtype)
    return ir.Const(low if name == "max" else high, dtype)


def _empty_data(expr: Reduction) -> DefinitionError:
    return DefinitionError(
        f"po.{spelled(expr.kind)} over points chosen by data needs init=",
        where=expr.span,
        why="No point may be left, and a maximum over nothing has no value.",
        fix=f"po.{spelled(expr.kind)}(..., where=..., init=...).",
    )


# --- positions -------------------------------------------------------------------------------------------------------


def _position(build: Builder, expr: Reduction, points: _Points, scope: Scope) -> Typed:
    """The least index whose value is the extremum; NaN counts as the extremum, as in NumPy."""
    name: Literal["max", "min"] = "max" if expr.kind == "argmax" else "min"
    if points.data is not None and expr.init is None:
        raise _empty_data(expr)
    inner = _Points(build, expr, points.scope)
    natural = build.build(inner.body, inner.scope)
    if isinstance(natural.type, Unknown):
        return Typed(ir.IndexValue(af.constant(0), i64), i64)
    dtype = concrete(natural.type)
    worst = extreme(name, dtype)
    if expr.known is not None:
        best = build.convert(build.build(expr.known, points.scope), dtype, expr.span)
    else:
        values = inner.kept(build.convert(natural, dtype, expr.span), worst)
        best = inner.reduce(name, values, worst if expr.init is not None else None)
    attains, never = _attains(build, expr, points, best, dtype), extreme("min", i64)
    where = ir.Op("select", (attains, _flat_position(expr, points), never), i64)
    if expr.init is None:
        return Typed(points.reduce("min", where, None), i64)
    first = points.reduce("min", where, never)
    init = _stand_in(build, expr, expr.init, scope)
    return Typed(ir.Op("select", (ir.Op("eq", (first, never), bool_), init, first), i64), i64)


def _attains(build: Builder, expr: Reduction, points: _Points, best: ir.Expr, dtype: DType) -> ir.Expr:
    """Whether a point has the extremum."""
    value = build.convert(build.build(points.body, points.scope), dtype, expr.span)
    attains: ir.Expr = ir.Op("eq", (value, best), bool_)
    if dtype.is_float:
        attains = ir.Op("or", (attains, ir.Op("isnan", (value,), bool_)), bool_)
    if points.data is not None:
        attains = ir.Op("and", (points.data, attains), bool_)
    return attains


def _stand_in(build: Builder, expr: Reduction, init: Expr, scope: Scope) -> ir.Expr:
    """What `init=` gives as the place where there is none. Raises `DTypeError` for what i64 may not hold."""
    value = build.build(init, scope)
    dtype = concrete(value.type)
    if dtype.is_float or (dtype == u64 and not isinstance(value.node, ir.Const)):
        raise DTypeError(
            f"init= of po.{expr.kind} is {dtype}",
            where=expr.span,
            why="It stands for a position, which is an i64.",
            fix="give an integer, such as init=-1, or convert it: po.cast(..., i64).",
            facts={"dtype": str(dtype)},
        )
    if isinstance(value.node, ir.Const):
        return constant(value.node.value, i64, expr.span)
    return build.convert(value, i64, expr.span)


def _flat_position(expr: Reduction, points: _Points) -> ir.Expr:
    """The index itself, or the row-major position of several indices with explicit ranges."""
    if len(points.axes) == 1:
        return ir.IndexValue(af.axis(points.axes[0].name), i64)
    position: ir.Expr = ir.Const(0, i64)
    for axis, index in zip(points.axes, expr.indices, strict=True):
        if not axis.is_resolved:
            raise _needs_extent(expr, index)
        extent = ir.IndexValue(axis.upper[0] - axis.lower[0], i64)
        own = ir.IndexValue(af.axis(axis.name) - axis.lower[0], i64)
        position = ir.Op("add", (ir.Op("mul", (position, extent), i64), own), i64)
    return position


def _needs_extent(expr: Reduction, index: Index) -> DefinitionError:
    return DefinitionError(
        f"po.{expr.kind} over several indices needs their extents",
        where=expr.span,
        why=f"The position counts points row by row, and the range of '{index.name}' is not written down.",
        fix=f"give it: {index.name} = po.index('{index.name}', extent=...), or use po.{expr.kind} on the whole tensor.",
        facts={"index": index.name},
    )


# --- custom ----------------------------------------------------------------------------------------------------------


def _custom(build: Builder, expr: Reduction, points: _Points, reads: Reads | None) -> Typed:
    assert expr.combine is not None, "a custom reduction comes with its function"
    natural = build.build(points.body, points.scope, reads)
    start = None if expr.init is None else build.build(expr.init, points.scope)
    type_ = join([natural.type] + ([] if start is None else [start.type]))
    dtype, combine = _combine(build, expr.combine, expr.dtype or concrete(type_), points.scope)
    neutral = None if start is None else build.convert(start, dtype, expr.span)
    if neutral is not None and not isinstance(neutral, ir.Const):
        raise DefinitionError(
            "init= of po.reduce must be a number",
            where=expr.span,
            why="It is the neutral element.",
            fix="combine anything else with the result afterwards.",
        )
    if points.data is not None and neutral is None:
        raise _empty_data(expr)
    if points.data is not None and neutral is not None and not _is_kept(combine, neutral):
        raise DefinitionError(
            "init= of po.reduce must be its neutral element where data chooses the points",
            where=expr.span,
            why=f"It stands for each point left out, and {neutral.value} combined with itself is another value.",
            fix="give the neutral element as init=, and combine anything else with the result afterwards.",
        )
    value = build.convert(natural, dtype, expr.span)
    body = value if neutral is None else points.kept(value, neutral)
    known = not isinstance(natural.type, Unknown)
    return Typed(points.reduce("custom", body, neutral, combine), dtype if known else UNKNOWN)


def _is_kept(combine: ir.Combine, start: ir.Const) -> bool:
    """Whether the start combined with itself is the start: then it may be combined any number of times."""

    def value(node: ir.Combine) -> np.ndarray:
        match node:
            case ir.Const(number, dtype):
                return np.asarray(number).astype(dtype.numpy)
            case ir.Var():
                return value(start)
            case ir.Op(name, args, dtype):
                return np.asarray(BUILTINS[name].numpy(*map(value, args))).astype(dtype.numpy)
            case ir.Cast(arg, dtype):
                return converted(value(arg), dtype)
            case _:
                assert_never(node)

    with np.errstate(all="ignore"):
        return bool(np.array_equal(value(combine), value(start), equal_nan=start.dtype.is_float))


def _combine(build: Builder, expr: Expr, dtype: DType, scope: Scope) -> tuple[DType, ir.Combine]:
    """The function typed so that its result has the dtype of its operands."""
    while True:
        build.placeholders.update(a=dtype, b=dtype)
        build.forget()
        value = build.build(expr, scope)
        wider = promote(dtype, concrete(value.type)) if isinstance(value.type, DType) else dtype
        if wider == dtype:
            return dtype, _as_combine(build.convert(value, dtype, expr.span), expr)
        dtype = wider


def _as_combine(node: ir.Expr, expr: Expr) -> ir.Combine:
    """The function's expression, which is made of its two values and numbers alone."""
    match node:
        case ir.Const() | ir.Var():
            return node
        case ir.Cast(arg, dtype):
            return ir.Cast(_as_combine(arg, expr), dtype)
        case ir.Op(name, args, dtype):
            return ir.Op(name, tuple(_as_combine(arg, expr) for arg in args), dtype)
        case _:
            raise DefinitionError(
                "the function of po.reduce uses more than its two values",
                where=expr.span,
                why="It combines partial results in any order, and they belong to no index.",
                fix="put indices and elements of tensors into the expression that is reduced.",
            )
