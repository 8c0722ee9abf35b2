"""Whether what an expression reads is there, for every point of axes where a guard holds."""

from __future__ import annotations

from collections.abc import Sequence

import islpy as isl

from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, Compare, Condition, Not, Or, conjunction
from polyopt.poly.space import Space


def conditions(program: ir.Program, space: Space) -> isl.Set:
    """Where the conditions of a program on its sizes hold."""
    return space.condition(conjunction(*program.conditions))


def reads_inside(
    program: ir.Program,
    expr: ir.Expr,
    axes: Sequence[ir.Axis],
    guard: Condition = TRUE,
    *,
    choices: bool = True,
) -> bool:
    """Whether no read of an expression leaves its array, for all points of axes where a guard holds.

    choices: whether a read in a branch happens only where the branch is taken
    """
    match expr:
        case ir.Where(condition, then, otherwise) if choices:
            return reads_inside(program, then, axes, conjunction(guard, condition)) and reads_inside(
                program, otherwise, axes, conjunction(guard, Not(condition))
            )
        case ir.Reduce():
            axes, guard = (*axes, *expr.axes), conjunction(guard, expr.guard)
        case ir.Read(boundary=None | ir.Clamp() | ir.Wrap()):
            shape = program.tensor(expr.tensor).shape if any(t.name == expr.tensor for t in program.tensors) else ()
            space = Space("", tuple(a.name for a in axes), program.sizes)
            box = space.box(axes) & space.condition(guard) & conditions(program, space)
            for subscript, size in zip(expr.subscripts, shape or (), strict=False):
                outside = _outside(subscript, size, expr.boundary)
                if outside is not None and not (box & space.condition(outside)).is_empty():
                    return False
        case _:
            pass
    return all(reads_inside(program, child, axes, guard, choices=choices) for child in ir.children(expr))


def _outside(subscript: ir.Subscript, size: Affine, boundary: ir.Boundary | None) -> Condition | None:
    """When a subscript finds no element: a boundary leads into an array only if there is one. None: data decide."""
    if boundary is not None:
        return Compare(size, "<=")
    if isinstance(subscript, Affine):
        return Or((Compare(subscript, "<"), Compare(subscript - size, ">=")))
    return None
