"""Reductions over a few points, written out: `x[j] + x[j + 1] + x[j + 2]` instead of a loop over three points.

A window, a stencil given as a sum or a pooling has a handful of terms for each element. A loop over them costs more
than the terms do, and nothing can be fused into it. Written out in the order of the loop, the element is the same to
the last bit, and the equation is pointwise: it is inlined, fused and tiled as one. Sums whose operands a register tile
reuses stay loops, and so do those whose terms lie side by side in memory, where lanes run along the terms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, AxisRef, axes_of, axis
from polyopt.fusion.axes import at_axes, length
from polyopt.fusion.rewrite import LARGEST_VALUE, cost

MOST_TERMS = 27
"""Terms that are written out: windows of 5 x 5 and 3 x 3 x 3 points."""

MOST_COST = 160
"""Scalar operations of all terms together."""

FEWEST_LANES = 8
"""Points of the shortest axis that is worth lanes."""

FARTHEST = 4
"""Elements from one lane to the next that vectors and shuffles read."""

FEWEST_REUSED = 5
"""Terms from which a register tile gains from operands that it reuses though its rows are too short for lanes."""

COMBINE: Mapping[str, str] = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum"}


@dataclass(frozen=True, slots=True)
class ShortSum:
    """A reduction that is written out.

    equation:  name of the equation
    reduction: the reduction inside its value; None for an accumulation, whose whole value it is
    axes:      what it runs over
    terms:     for each element
    lanes:     an axis of the equation along which all its reads are contiguous, or nearly so, or the same
    """

    equation: str
    reduction: ir.Reduce | None
    axes: tuple[str, ...]
    terms: int
    lanes: str

    def __str__(self) -> str:
        over = ", ".join(self.axes)
        return f"{self.equation}: {self.terms} terms over {over} are written out, neighbours along {self.lanes} at once"


def decide(program: ir.Program) -> tuple[ShortSum, ...]:
    """The reductions of a resolved program that are worth writing out."""
    return tuple(found for equation in program.equations for found in _in_equation(program, equation))


def apply(program: ir.Program, plan: Sequence[ShortSum]) -> ir.Program:
    """The program with these reductions written out, term after term in the order of their axes."""
    return replace(program, equations=tuple(_written(program, equation, plan) for equation in program.equations))


# --- decisions ----------------------------------------------------------------------------------------------------


def _in_equation(program: ir.Program, equation: ir.Equation) -> Iterator[ShortSum]:
    nodes = {node: None for node in ir.walk(equation.value) if isinstance(node, ir.Reduce)}
    if equation.is_accumulation:
        if not nodes and is_whole_sum(program, equation):
            reducer = equation.reducer
            assert reducer is not None, "an accumulation has a reducer"
            yield from _short(program, equation, None, reducer, equation.value, equation.axes, equation.reduce_axes)
        return
    room = LARGEST_VALUE
    for node in nodes:
        if node.guard == TRUE and not any(isinstance(inner, ir.Reduce) for inner in ir.walk(node.body)):
            for found in _short(program, equation, node, node.reducer, node.body, equation.axes, node.axes):
                room -= found.terms * _nodes(node.body)
                if room >= 0:
                    yield found


def is_whole_sum(program: ir.Program, equation: ir.Equation) -> bool:
    """Whether an accumulation is all there is of its tensor, element by element."""
    tensor = program.tensor(equation.tensor)
    return (
        equation.guard == TRUE
        and len(program.definitions(equation.tensor)) == 1
        and equation.subscripts == tuple(axis(a.name) for a in equation.axes)
        and tensor.shape == tuple(a.upper[0] for a in equation.axes)
        and all(len(a.upper) == 1 and a.lower == (Affine(0),) for a in equation.axes)
        and not any(read.tensor == equation.tensor for read in ir.reads(equation.value))
    )


def _short(
    program: ir.Program,
    equation: ir.Equation,
    node: ir.Reduce | None,
    reducer: ir.Reducer,
    body: ir.Expr,
    free: Sequence[ir.Axis],
    summed: Sequence[ir.Axis],
) -> Iterator[ShortSum]:
    """The plan for one reduction, if it is worth it."""
    lengths = [length(a) for a in summed]
    if reducer.name not in COMBINE or not all(lengths):
        return
    terms = prod(n for n in lengths if n is not None)
    if None in lengths or terms > MOST_TERMS or terms * _nodes(body) > LARGEST_VALUE or terms * cost(body) > MOST_COST:
        return
    long = tuple(a.name for a in free if length(a) != 1)
    reads = list(ir.reads(body))
    used = [_axes(read) for read in reads]
    has_rows = bool(free) and (length(free[-1]) or FEWEST_LANES) >= FEWEST_LANES
    reuses = is_contraction(used, frozenset(long)) and (has_rows or terms >= FEWEST_REUSED)
    if not set(long) <= frozenset().union(*used) or reuses:
        return  # it is computed once for many elements, or its operands are kept in registers
    suited = [a.name for a in free if (length(a) or FEWEST_LANES) >= FEWEST_LANES and _suits(program, reads, a.name)]
    if suited:
        yield ShortSum(equation.name, node, tuple(a.name for a in summed), terms, suited[-1])


def _nodes(expr: ir.Expr) -> int:
    return sum(1 for _ in ir.walk(expr))


def _axes(read: ir.Read) -> frozenset[str]:
    """The axes that a read depends on, those of data subscripts included."""
    parts = [axes_of(s) if isinstance(s, Affine) else _axes_of_data(s) for s in read.subscripts]
    return frozenset().union(*parts)


def _axes_of_data(subscript: ir.DataIndex) -> frozenset[str]:
    return frozenset().union(*(_axes(read) for read in ir.reads(subscript.value)))


def is_contraction(used: Sequence[frozenset[str]], free: frozenset[str]) -> bool:
    """Whether two reads are each the same along a free axis that the other depends on."""
    reuse = [free - axes for axes in used]
    return any((one - other) and (other - one) for n, one in enumerate(reuse) for other in reuse[n + 1 :])


def _suits(program: ir.Program, reads: Sequence[ir.Read], name: str) -> bool:
    """Whether every read is contiguous along an axis, or nearly so, or does not depend on it, and some read does."""
    return any(name in _axes(read) for read in reads) and all(_suits_read(program, read, name) for read in reads)


def _suits_read(program: ir.Program, read: ir.Read, name: str) -> bool:
    if name not in _axes(read):
        return True
    step, distance = 1, 0
    shape = program.tensor(read.tensor).shape
    assert shape is not None, "shapes are resolved"
    for subscript, extent in zip(reversed(read.subscripts), reversed(shape), strict=True):
        if name in _axes(replace(read, subscripts=(subscript,))):
            if not isinstance(subscript, Affine) or not step:  # or sizes decide how far apart rows are
                return False
            if any(not isinstance(atom, AxisRef) for atom, _ in subscript.terms):
                return False
            distance += subscript.coefficient(AxisRef(name)) * step
        step = step * extent.constant if extent.is_constant else 0
    return 0 < distance <= FARTHEST


# --- writing out ----------------------------------------------------------------------------------------------------


def _written(program: ir.Program, equation: ir.Equation, plan: Sequence[ShortSum]) -> ir.Equation:
    mine = [short for short in plan if short.equation == equation.name]
    chosen = {short.reduction for short in mine if short.reduction is not None}
    if chosen:
        return replace(equation, value=_replaced(equation.value, chosen))
    if not mine:
        return equation
    assert equation.reducer is not None, "an accumulation has a reducer"
    value = _terms(equation.reducer, equation.value, equation.reduce_axes)
    dtype = program.tensor(equation.tensor).dtype
    if value.dtype != dtype:
        value = ir.Cast(value, dtype)
    return replace(equation, value=value, reducer=None, reduce_axes=())


def _replaced(expr: ir.Expr, chosen: set[ir.Reduce]) -> ir.Expr:
    if isinstance(expr, ir.Reduce) and expr in chosen:
        return _terms(expr.reducer, expr.body, expr.axes)
    return ir.rebuild(expr, lambda child: _replaced(child, chosen))


def _terms(reducer: ir.Reducer, body: ir.Expr, axes: Sequence[ir.Axis]) -> ir.Expr:
    """The start value, if there is one, combined with one term after the other."""
    points = product(*(range(max(b.constant for b in a.lower), min(b.constant for b in a.upper)) for a in axes))
    terms: list[ir.Expr] = [
        at_axes(body, {a.name: Affine(v) for a, v in zip(axes, point, strict=True)}) for point in points
    ]
    total, *rest = terms if reducer.neutral is None else [reducer.neutral, *terms]
    for term in rest:
        total = ir.Op(COMBINE[reducer.name], (total, term), reducer.dtype)
    return total
