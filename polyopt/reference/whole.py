"""Evaluates a tensor that does not depend on itself: each equation over its whole box, block by block."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from polyopt.dsl.affine import Affine, AxisRef
from polyopt.dsl.ir import DataIndex, Equation, Reducer
from polyopt.errors import DefinitionError
from polyopt.reference.expressions import Evaluator
from polyopt.reference.memory import Cells, bounds_error, element_text, index_at, outside, point_text
from polyopt.reference.points import BLOCK, Array, Points, blocks, box, grid


def define_whole(evaluator: Evaluator, cells: Cells, equations: tuple[Equation, ...]) -> None:
    """Fills `cells` from the plain definitions, then the accumulations in text order."""
    assert cells.defined is not None, "the cells of a tensor to be defined carry a mask"
    plain = [equation for equation in equations if not equation.is_accumulation]
    points = sum(_assign(evaluator, cells, equation) for equation in plain)
    if points != np.count_nonzero(cells.defined):
        raise defined_twice(evaluator, cells, plain)
    accumulations = [equation for equation in equations if equation.is_accumulation]
    if accumulations:
        _accumulate(evaluator, cells, accumulations)
    cells.settle()


def _assign(evaluator: Evaluator, cells: Cells, equation: Equation) -> int:
    """Evaluates a plain definition; the number of points at which it defines an element."""
    assert cells.defined is not None
    count = 0
    for points in equation_points(evaluator, equation):
        value = evaluator.evaluate(equation.value, points)
        place = left_side(evaluator, cells, equation, points)
        if points.mask is None:
            cells.values[place] = value
            cells.defined[place] = True
            count += int(np.prod(points.shape, dtype=np.int64))
        else:
            there = np.broadcast_to(points.mask, points.shape)
            chosen = tuple(np.broadcast_to(index, points.shape)[there] for index in place)
            cells.values[chosen] = np.broadcast_to(value, points.shape)[there]
            cells.defined[chosen] = True
            count += int(np.count_nonzero(there))
    return count


def equation_points(evaluator: Evaluator, equation: Equation, *, reduced: bool = False) -> list[Points] | Any:
    """The points of an equation under its guard, block by block; with `reduced`, its reduction axes included."""
    axes = equation.all_axes if reduced else equation.axes
    for block in blocks(box(axes, evaluator.sizes), BLOCK):
        points = grid([axis.name for axis in axes], block)
        if reduced or not equation.is_accumulation:
            points = points.where(evaluator.holds(equation.guard, points))
        if not points.is_empty:
            yield points


def left_side(evaluator: Evaluator, cells: Cells, equation: Equation, points: Points) -> tuple[Array, ...]:
    """The elements that the equation writes at `points`. Raises `BoundsError` for one outside the tensor."""
    indices = evaluator.subscripts(equation.subscripts, points)
    off = outside(indices, cells.shape)
    if off is not False:
        bad = evaluator.live(off, points)
        if bad.any():
            raise bounds_error(cells, indices, points, bad, equation.span)
        indices = [np.where(off, 0, index) for index in indices]
    return tuple(indices)


# --- accumulations --------------------------------------------------------------------------------------------


def _accumulate(evaluator: Evaluator, cells: Cells, equations: list[Equation]) -> None:
    """Adds the accumulations to the plain values and rounds once, at the end."""
    assert cells.defined is not None
    total = started(evaluator, cells, equations[0].reducer)
    for equation in equations:
        assert equation.reducer is not None
        total = evaluator.arithmetic.cast(total, equation.reducer.dtype)
        if has_one_target_per_point(equation):
            _reduce_into(evaluator, cells, equation, total)
        else:
            _scatter_into(evaluator, cells, equation, total)
    cells.values[...] = evaluator.arithmetic.cast(total, cells.tensor.dtype)


def started(evaluator: Evaluator, cells: Cells, reducer: Reducer | None) -> Array:
    """What an accumulation starts from: the plain values, elsewhere the neutral element."""
    assert reducer is not None and reducer.neutral is not None, "an accumulation has a neutral element"
    neutral = evaluator.arithmetic.constant(reducer.neutral)
    if cells.defined is None:
        return evaluator.arithmetic.cast(cells.values, reducer.dtype)
    plain = np.where(cells.defined, cells.values, np.zeros((), cells.values.dtype))
    return np.where(cells.defined, evaluator.arithmetic.cast(plain, reducer.dtype), neutral)


def has_one_target_per_point(equation: Equation) -> bool:
    """Whether different values of the left side's axes surely write different elements."""
    alone = {name for subscript in equation.subscripts if (name := _only_axis(subscript)) is not None}
    data = any(isinstance(subscript, DataIndex) for subscript in equation.subscripts)
    return not data and alone.issuperset(axis.name for axis in equation.axes)


def _only_axis(subscript: Affine | DataIndex) -> str | None:
    if isinstance(subscript, Affine) and len(subscript.terms) == 1 and isinstance(subscript.terms[0][0], AxisRef):
        return subscript.terms[0][0].name
    return None


def _reduce_into(evaluator: Evaluator, cells: Cells, equation: Equation, total: Array) -> None:
    assert equation.reducer is not None and cells.defined is not None
    for points in equation_points(evaluator, equation):
        inside = within(evaluator, cells, equation, points)
        if inside.is_empty:
            continue
        place = left_side(evaluator, cells, equation, inside)
        value = evaluator.reduce(
            equation.reducer, equation.value, equation.reduce_axes, equation.guard, inside, start=total[place]
        )
        if inside.mask is None:
            total[place] = value
            cells.defined[place] = True
        else:
            there = np.broadcast_to(inside.mask, inside.shape)
            chosen = tuple(np.broadcast_to(index, inside.shape)[there] for index in place)
            total[chosen] = np.broadcast_to(value, inside.shape)[there]
            cells.defined[chosen] = True


def within(evaluator: Evaluator, cells: Cells, equation: Equation, points: Points) -> Points:
    """The points whose element lies in the tensor.

    Elsewhere nothing may be added: raises `BoundsError` where the guard holds for a point of the reduction.
    """
    indices = [
        np.zeros((1,) * len(points.shape), np.int64)
        if isinstance(subscript, DataIndex)
        else evaluator.subscripts([subscript], points)[0]
        for subscript in equation.subscripts
    ]
    off = outside(indices, cells.shape)
    if off is False:
        return points
    stray = points.where(off)
    for block in blocks(box(equation.reduce_axes, evaluator.sizes), max(1, BLOCK // int(np.prod(points.shape)))):
        inner = stray.extended([axis.name for axis in equation.reduce_axes], block)
        added = inner.where(evaluator.holds(equation.guard, inner))
        if not added.is_empty:
            bad = np.ones((1,) * len(inner.shape), bool) if added.mask is None else added.mask
            lifted = [i.reshape(i.shape + (1,) * len(block)) for i in indices]
            raise bounds_error(cells, lifted, added, bad, equation.span)
    return points.where(~off)


def _scatter_into(evaluator: Evaluator, cells: Cells, equation: Equation, total: Array) -> None:
    """Adds point by point in lexicographic order, where several points may add to one element."""
    assert equation.reducer is not None and cells.defined is not None
    length = prod(len(values) for values in box(equation.all_axes, evaluator.sizes))
    for points in equation_points(evaluator, equation, reduced=True):
        value = evaluator.evaluate(equation.value, points)
        place = left_side(evaluator, cells, equation, points)
        there = np.ones(points.shape, bool) if points.mask is None else np.broadcast_to(points.mask, points.shape)
        chosen = tuple(np.broadcast_to(index, points.shape)[there] for index in place)
        evaluator.arithmetic.fold_at(
            equation.reducer, total, chosen, np.broadcast_to(value, points.shape)[there], length
        )
    if any(isinstance(subscript, DataIndex) for subscript in equation.subscripts):
        cells.defined[...] = True
        return
    for points in equation_points(evaluator, equation):
        inside = within(evaluator, cells, equation, points)
        if not inside.is_empty:
            there = np.ones(points.shape, bool) if inside.mask is None else np.broadcast_to(inside.mask, points.shape)
            place = left_side(evaluator, cells, equation, inside)
            cells.defined[tuple(np.broadcast_to(index, points.shape)[there] for index in place)] = True


# --- two definitions of one element ---------------------------------------------------------------------------


def defined_twice(evaluator: Evaluator, cells: Cells, plain: list[Equation]) -> DefinitionError:
    """The error that names an element with two plain definitions, and both points that define it."""
    first: dict[tuple[int, ...], tuple[Equation, dict[str, int]]] = {}
    for equation in plain:
        for points in equation_points(evaluator, equation):
            there = np.ones(points.shape, bool) if points.mask is None else np.broadcast_to(points.mask, points.shape)
            place = left_side(evaluator, cells, equation, points)
            for where in np.argwhere(there):
                here = np.zeros(points.shape, bool)
                here[tuple(where)] = True
                index, point = index_at(place, points.shape, here), points.first(here)
                if index in first:
                    return _twice_error(cells, index, first[index], (equation, point))
                first[index] = (equation, point)
    raise AssertionError("more points than elements, yet no element is defined twice")


def _twice_error(
    cells: Cells,
    index: tuple[int, ...],
    first: tuple[Equation, dict[str, int]],
    second: tuple[Equation, dict[str, int]],
) -> DefinitionError:
    element = element_text(cells.tensor.name, index)
    ways = [f"by '{e.name}'" + (f" for {point_text(p)}" if p else "") for e, p in (first, second)]
    return DefinitionError(
        f"{element} has two definitions",
        where=second[0].span,
        why=f"it is defined {ways[0]} and {ways[1]}",
        fix="keep one, separate them with po.when, or add up with +=",
        facts={"tensor": cells.tensor.name, "index": index, "equations": (first[0].name, second[0].name)},
    )
