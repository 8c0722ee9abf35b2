"""Costly values that a reduction and its consumer both compute, given a tensor so that they are computed once.

Softmax by its definition takes `exp(x[i, j] - m[i])` for the sum and again for the result. The value is the same to the
last bit, and where the loops over rows are shared its tensor is one row, in a cache: cheaper than the function again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import prod

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, axis
from polyopt.fusion.axes import assumed_length, at_axes, axes_in, is_range
from polyopt.fusion.rewrite import cost
from polyopt.names import unused

LEAST_COST = 20
"""Scalar operations from which on a value is worth a store and a load: one transcendental function."""


@dataclass(frozen=True, slots=True)
class SharedValue:
    """A value that several places compute.

    tensor: the name of its new tensor
    axes:   of the tensor, as the consumer names them
    value:  over these axes
    """

    tensor: str
    axes: tuple[ir.Axis, ...]
    value: ir.Expr

    def __str__(self) -> str:
        over = ", ".join(a.name for a in self.axes)
        return f"{self.tensor}[{over}] is computed once, for a sum and for what follows from it"


@dataclass(frozen=True, slots=True)
class _Place:
    """An expression of an equation, and the axes of all loops around it.

    summed: those of them that a reduction sums over
    """

    equation: ir.Equation
    value: ir.Expr
    axes: tuple[ir.Axis, ...]
    summed: tuple[ir.Axis, ...]


def decide(program: ir.Program, *, cache_bytes: int) -> SharedValue | None:
    """The costliest value that a reduction and a plain definition share; None where there is none.

    cache_bytes: room for the part of the tensor between one reduction and its consumer
    """
    if not any(equation.is_reduction for equation in program.equations):
        return None
    places = [place for equation in program.equations for place in _places(equation)]
    consumers = sorted((p for p in places if not p.summed), key=lambda p: cost(p.value), reverse=True)
    names = {tensor.name for tensor in program.tensors} | {equation.name for equation in program.equations}
    for place in consumers:
        for other in places:
            if other.summed and _follows(place, other) and _bytes(other) <= cache_bytes:
                return SharedValue(unused("shared", names), place.axes, place.value)
    return None


def apply(program: ir.Program, shared: SharedValue) -> ir.Program:
    """The program with the value as a tensor that every place reads."""
    subscripts = tuple(axis(a.name) for a in shared.axes)
    shape = tuple(a.upper[0] for a in shared.axes)
    tensor = ir.Tensor(shared.tensor, shared.value.dtype, shape, "local", len(shape))
    read = ir.Read(shared.tensor, subscripts, shared.value.dtype)
    own = ir.Equation(shared.tensor, shared.tensor, shared.axes, subscripts, shared.value)
    plan = _Place(own, shared.value, shared.axes, ())
    equations = tuple(replace(e, value=_with(e, plan, read)) for e in program.equations)
    return replace(program, tensors=(*program.tensors, tensor), equations=(*equations, own))


# --- places -----------------------------------------------------------------------------------------------------------


def _places(equation: ir.Equation) -> Iterator[_Place]:
    """The costly values of an equation that every loop around them changes, outside of conditions."""
    if equation.guard == TRUE and not any(isinstance(s, ir.DataIndex) for s in equation.subscripts):
        yield from _inside(_Place(equation, equation.value, equation.all_axes, equation.reduce_axes))


def _inside(place: _Place) -> Iterator[_Place]:
    expr = place.value
    if isinstance(expr, ir.Where) or cost(expr) < LEAST_COST:
        return
    if _is_shareable(place):
        yield place
    inner = place
    if isinstance(expr, ir.Reduce):
        if expr.guard != TRUE:
            return
        inner = _summand(place, expr)
    for child in ir.children(expr):
        yield from _inside(replace(inner, value=child))


def _summand(place: _Place, reduction: ir.Reduce) -> _Place:
    """The place inside a reduction, which runs once for all values of the axes that it does not use."""
    used = axes_in(reduction)
    axes = tuple(a for a in place.axes if a.name in used)
    summed = tuple(a for a in place.summed if a.name in used)
    return _Place(place.equation, reduction, (*axes, *reduction.axes), (*summed, *reduction.axes))


def _is_shareable(place: _Place) -> bool:
    has_choices = any(isinstance(node, ir.Reduce | ir.Where) for node in ir.walk(place.value))
    if has_choices or len(place.axes) < 2 or not all(map(is_range, place.axes)):
        return False
    return {a.name for a in place.axes} == axes_in(place.value)


def _follows(place: _Place, summand: _Place) -> bool:
    """Whether `place` computes the value that is summed, needs the sum, and has it lie along what is summed.

    Then the loops over the other axes are shared, and the tensor is a row.
    """
    order = _as_in(summand, place)
    if order is None or order[-1] not in summand.summed:
        return False
    read = {r.tensor for r in ir.reads(place.equation.value)}
    return summand.equation is place.equation or summand.equation.tensor in read


def _as_in(place: _Place, other: _Place) -> tuple[ir.Axis, ...] | None:
    """The axes of `place` in the order of `other`'s, if both compute the same value at the same points."""
    if len(place.axes) != len(other.axes) or place.value.dtype != other.value.dtype:
        return None
    matched = _matched(place.value, other.value, place.axes, other.axes)
    pairs = zip(matched or (), other.axes, strict=matched is not None)
    return None if any((a.lower, a.upper) != (b.lower, b.upper) for a, b in pairs) else matched


def _matched(
    value: ir.Expr, wanted: ir.Expr, mine: Sequence[ir.Axis], theirs: Sequence[ir.Axis]
) -> tuple[ir.Axis, ...] | None:
    """The order of `mine` in which `value` is `wanted`: by name, or by position."""
    by_name = {a.name: a for a in mine}
    orders = [tuple(by_name[a.name] for a in theirs)] if by_name.keys() == {a.name for a in theirs} else []
    for order in (*orders, tuple(mine)):
        if at_axes(wanted, {b.name: axis(a.name) for a, b in zip(order, theirs, strict=True)}) == value:
            return order
    return None


def _bytes(place: _Place) -> int:
    """What is kept from a reduction until its consumer has read it, if they share the other loops."""
    return prod(assumed_length(a) for a in place.summed) * place.value.dtype.itemsize


# --- rewriting --------------------------------------------------------------------------------------------------------


def _with(equation: ir.Equation, shared: _Place, read: ir.Read) -> ir.Expr:
    whole = _Place(equation, equation.value, equation.all_axes, equation.reduce_axes)
    return _replaced(whole, shared, read) if equation.guard == TRUE else equation.value


def _replaced(place: _Place, shared: _Place, read: ir.Read) -> ir.Expr:
    expr = place.value
    if cost(expr) < LEAST_COST or isinstance(expr, ir.Where):
        return expr
    order = _as_in(place, shared) if _is_shareable(place) else None
    if order is not None:
        return replace(read, subscripts=tuple(axis(a.name) for a in order))
    inner = place
    if isinstance(expr, ir.Reduce):
        if expr.guard != TRUE:
            return expr
        inner = _summand(place, expr)
    return ir.rebuild(expr, lambda child: _replaced(replace(inner, value=child), shared, read))
