"""Where the reads of an equation stand: the axes around each one and the condition under which it happens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import assert_never

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, Condition, Not, conjunction


@dataclass(frozen=True, slots=True)
class Scope:
    """The axes around an expression and the condition under which it is evaluated.

    axes:      of the equation (those of the left side, then its reduction's), then of each enclosing reduction,
               outermost first
    binders:   what binds each axis: 0 the equation, n its n-th nested reduction in source order, the data
               subscripts of the left side first
    condition: guard of the equation, guards of the reductions and the `where` branches around the expression
    """

    axes: tuple[ir.Axis, ...]
    binders: tuple[int, ...]
    condition: Condition

    def restricted(self, condition: Condition) -> Scope:
        return Scope(self.axes, self.binders, conjunction(self.condition, condition))

    def inside(self, reduction: ir.Reduce, binder: int) -> Scope:
        """The scope of the reduction's body."""
        binders = self.binders + (binder,) * len(reduction.axes)
        return Scope(self.axes + reduction.axes, binders, conjunction(self.condition, reduction.guard))


@dataclass(frozen=True, slots=True)
class ReadContext:
    """One read of an equation with its scope; it happens at the points of `axes` where `condition` holds."""

    read: ir.Read
    scope: Scope

    @property
    def axes(self) -> tuple[ir.Axis, ...]:
        return self.scope.axes

    @property
    def condition(self) -> Condition:
        return self.scope.condition


@dataclass(frozen=True, slots=True)
class ReduceContext:
    """One nested reduction of an equation with the scope around it (its own axes and guard not included)."""

    reduction: ir.Reduce
    scope: Scope
    binder: int


Context = ReadContext | ReduceContext


def equation_scope(equation: ir.Equation) -> Scope:
    """The scope of the equation's value: all its axes and its guard."""
    return Scope(equation.all_axes, (0,) * len(equation.all_axes), conjunction(equation.guard))


def contexts(equation: ir.Equation) -> Iterator[Context]:
    """Every read and every nested reduction, parents first, data subscripts of the left side before the value."""
    scope, binders = equation_scope(equation), count(1)
    for subscript in equation.subscripts:
        if isinstance(subscript, ir.DataIndex):
            yield from _walk(subscript.value, scope, binders)
    yield from _walk(equation.value, scope, binders)


def read_contexts(equation: ir.Equation) -> Iterator[ReadContext]:
    """Every read of the equation in its context, data subscripts included, in the order of `contexts`."""
    return (context for context in contexts(equation) if isinstance(context, ReadContext))


def reduce_contexts(equation: ir.Equation) -> Iterator[ReduceContext]:
    """Every nested reduction of the equation in its context, in the order of `contexts`."""
    return (context for context in contexts(equation) if isinstance(context, ReduceContext))


def _walk(expr: ir.Expr, scope: Scope, binders: Iterator[int]) -> Iterator[Context]:
    match expr:
        case ir.Read():
            yield ReadContext(expr, scope)
            for child in ir.children(expr):
                yield from _walk(child, scope, binders)
        case ir.Where(condition=condition, then=then, otherwise=otherwise):
            yield from _walk(then, scope.restricted(condition), binders)
            yield from _walk(otherwise, scope.restricted(Not(condition)), binders)
        case ir.Reduce(body=body):
            binder = next(binders)
            yield ReduceContext(expr, scope, binder)
            yield from _walk(body, scope.inside(expr, binder), binders)
        case ir.Op() | ir.Cast():
            for child in ir.children(expr):
                yield from _walk(child, scope, binders)
        case ir.Const() | ir.IndexValue() | ir.Var():
            return
        case _:
            assert_never(expr)


def replace_axes(equation: ir.Equation, resolved: dict[tuple[int, str], ir.Axis]) -> ir.Equation:
    """The equation with each axis replaced by `resolved[binder, name]`, numbered as in `Scope.binders`."""
    binders = count(1)

    def change(expr: ir.Expr) -> ir.Expr:
        if not isinstance(expr, ir.Reduce):
            return ir.rebuild(expr, change)
        binder = next(binders)
        axes = tuple(resolved[binder, axis.name] for axis in expr.axes)
        return replace(expr, axes=axes, body=change(expr.body))

    subscripts = ir.map_data(equation.subscripts, change)
    return replace(
        equation,
        axes=tuple(resolved[0, axis.name] for axis in equation.axes),
        reduce_axes=tuple(resolved[0, axis.name] for axis in equation.reduce_axes),
        subscripts=subscripts,
        value=change(equation.value),
    )


def element_text(tensor: str, subscripts: Sequence[ir.Subscript]) -> str:
    """The reference as the user would write it; a data subscript shows as the tensor it reads."""
    return f"{tensor}[{', '.join(_subscript_text(s) for s in subscripts) or '()'}]"


def _subscript_text(subscript: ir.Subscript) -> str:
    if isinstance(subscript, Affine):
        return str(subscript)
    read = next(ir.reads(subscript.value), None)
    return element_text(read.tensor, read.subscripts) if read is not None else "..."
