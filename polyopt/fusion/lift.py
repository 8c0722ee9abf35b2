"""Maxima inside the summands of other reductions, given tensors of their own so that a cascade may start from them."""

from __future__ import annotations

from dataclasses import replace

from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, axis
from polyopt.fusion.cascade import axes_in
from polyopt.names import unused


def maxima(program: ir.Program) -> ir.Program:
    """The program with every maximum or minimum that a summand takes as given written as a tensor.

    `sum(exp(x[i, j] - max(x[i, j], j)), j)` reads `m[i]` instead, with `m[i] = max(x[i, j], j)`. Equal maxima share a
    tensor. Those under a condition stay where they are.
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

    def visit(expr: ir.Expr, inside: frozenset[str]) -> ir.Expr:
        match expr:
            case ir.Where():
                return expr
            case ir.Reduce() if expr.reducer.name in ("max", "min") and inside and not axes_in(expr) & inside:
                if not _starts_at_zero(equation, expr):
                    return expr
                if expr not in found:
                    found[expr] = lift(expr)
                return found[expr]
            case ir.Reduce():
                within = inside | {a.name for a in expr.axes}
                return ir.rebuild(expr, lambda child: visit(child, within))
            case _:
                return ir.rebuild(expr, lambda child: visit(child, inside))

    value = visit(equation.value, frozenset(a.name for a in equation.reduce_axes))
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
