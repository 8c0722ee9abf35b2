"""Maxima inside the summands of other reductions, given tensors of their own so that a cascade may start from them."""

from __future__ import annotations

from dataclasses import replace

from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Condition, axis, conjunction
from polyopt.fusion.axes import axes_in
from polyopt.fusion.cascade import has_points
from polyopt.names import unused


def maxima(program: ir.Program) -> ir.Program:
    """The program with every maximum or minimum that a summand takes as given written as a tensor.

    `sum(exp(x[i, j] - max(x[i, j], j)), j)` reads `m[i]` instead, with `m[i] = max(x[i, j], j)`. Equal maxima share a
    tensor. Those under a condition stay where they are, and those that some row has no summand for: in that row there
    may be nothing to take the maximum of.
    """
    for equation in program.equations:
        if equation.guard == TRUE:
            program = _lifted(program, equation)
    return program


def _lifted(program: ir.Program, equation: ir.Equation) -> ir.Program:
    used = {tensor.name for tensor in program.tensors} | {e.name for e in program.equations}
    found: dict[ir.Reduce, ir.Read] = {}
    tensors: list[ir.Tensor] = []
    equations: list[ir.Equation] = []

    def lift(node: ir.Reduce) -> ir.Read:
        own = axes_in(node)
        axes = tuple(a for a in equation.axes if a.name in own)
        name = unused(f"{equation.tensor}_{node.reducer.name}", used)
        used.add(name)
        subscripts = tuple(axis(a.name) for a in axes)
        tensors.append(ir.Tensor(name, node.dtype, tuple(a.upper[0] for a in axes), "local", len(axes), node.span))
        equations.append(ir.Equation(name, name, axes, subscripts, node, span=node.span))
        return ir.Read(name, subscripts, node.dtype, span=node.span)

    def visit(expr: ir.Expr, around: tuple[ir.Axis, ...], guard: Condition) -> ir.Expr:
        """around, guard: the summands that the expression is part of"""
        match expr:
            case ir.Where():
                return expr
            case ir.Reduce() if around and is_given(expr, around):
                if expr not in found:
                    if not _starts_at_zero(equation, expr) or not has_points(program, equation, around, guard):
                        return expr
                    found[expr] = lift(expr)
                return found[expr]
            case ir.Reduce(axes=axes):
                within = conjunction(guard, expr.guard)
                return ir.rebuild(expr, lambda child: visit(child, (*around, *axes), within))
            case _:
                return ir.rebuild(expr, lambda child: visit(child, around, guard))

    def is_given(node: ir.Reduce, around: tuple[ir.Axis, ...]) -> bool:
        return node.reducer.name in ("max", "min") and not axes_in(node) & {a.name for a in around}

    value = visit(equation.value, equation.reduce_axes, TRUE)
    if not found:
        return program
    changed = tuple(replace(e, value=value) if e is equation else e for e in program.equations)
    return replace(program, tensors=(*program.tensors, *tensors), equations=(*changed, *equations))


def _starts_at_zero(equation: ir.Equation, node: ir.Reduce) -> bool:
    """Whether a tensor over the axes that a reduction uses can hold it index by index."""
    own = axes_in(node)
    simple = [
        len(a.upper) == 1 and all(bound.is_constant and not bound.constant for bound in a.lower)
        for a in equation.axes
        if a.name in own
    ]
    return bool(simple) and all(simple)
