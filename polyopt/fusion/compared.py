"""Floats that an extremum is taken of and that are then compared with it, given a tensor: they are computed once.

The place of a maximum is the least one where the value is the maximum. Written down twice, a value may be computed in
two ways, each within the rounding that numerics allow: then no place has the maximum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Condition, axes_of, axis, condition_affines, conjunction
from polyopt.fusion.axes import at_axes, axes_in
from polyopt.fusion.inside import reads_inside
from polyopt.fusion.rewrite import depends_on, nonempty
from polyopt.names import unused


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A comparison of a value with an extremum of the same one.

    axes:  around it, outermost first
    guard: where it happens
    best:  the extremum; other: the value as that has it
    """

    axes: tuple[ir.Axis, ...]
    guard: Condition
    value: ir.Expr
    best: ir.Reduce
    other: ir.Expr


def separate(program: ir.Program) -> tuple[ir.Program, frozenset[str]]:
    """The program with such values as tensors, and their names: they are not to be written back."""
    made: set[str] = set()
    for equation in program.equations:
        for found in _comparisons(equation.value, equation.all_axes, equation.guard):
            changed = _separated(program, equation, found)
            if changed is not None:
                program, name = changed
                made.add(name)
                equation = next(e for e in program.equations if e.name == equation.name)
    return program, frozenset(made)


def _comparisons(expr: ir.Expr, axes: tuple[ir.Axis, ...], guard: Condition) -> Iterator[_Comparison]:
    """Comparisons outside of branches."""
    if isinstance(expr, ir.Where):
        return
    if isinstance(expr, ir.Op) and expr.name == "eq" and expr.args[0].dtype.is_float:
        for value, best in (expr.args, expr.args[::-1]):
            if isinstance(best, ir.Reduce) and best.reducer.name in ("max", "min"):
                yield from (_Comparison(axes, guard, value, best, other) for other in _values(best.body))
    if isinstance(expr, ir.Reduce):
        axes, guard = (*axes, *expr.axes), conjunction(guard, expr.guard)
    for child in ir.children(expr):
        yield from _comparisons(child, axes, guard)


def _values(body: ir.Expr) -> Iterator[ir.Expr]:
    """What an extremum is taken of, without the points that data leave out."""
    yield body
    if isinstance(body, ir.Op) and body.name == "select":
        yield body.args[1]


def _separated(program: ir.Program, equation: ir.Equation, found: _Comparison) -> tuple[ir.Program, str] | None:
    """The program with the value as a tensor; None where it is an element, or not the value of the extremum."""
    value, best = found.value, found.best
    used = axes_in(value)
    axes = tuple(a for a in found.axes if a.name in used)
    own = tuple(a for a in axes if a not in equation.all_axes)
    if isinstance(value, ir.Read) or len(own) != len(best.axes) or not all(map(_is_plain, axes)):
        return None
    if any((a.lower, a.upper) != (b.lower, b.upper) for a, b in zip(own, best.axes, strict=True)):
        return None
    renamed = {b.name: axis(a.name) for a, b in zip(own, best.axes, strict=True)}
    if at_axes(found.other, renamed) != value:
        return None
    if depends_on(program, (read.tensor for read in ir.reads(value)), equation.tensor):
        return None
    moved = at_axes(best, renamed, deep=False)
    assert isinstance(moved, ir.Reduce), "only its axes are called otherwise"
    guard = _guard(program, found, conjunction(equation.guard, moved.guard), axes)
    if guard is None:
        return None
    taken = {tensor.name for tensor in program.tensors} | {e.name for e in program.equations}
    name = unused(f"{equation.tensor}_value", taken)
    places = tuple(axis(a.name) - a.lower[0] for a in axes)
    tensor = ir.Tensor(name, value.dtype, tuple(a.upper[0] - a.lower[0] for a in axes), "local", len(axes))
    definition = ir.Equation(name, name, axes, places, value, guard, span=equation.span)
    read = ir.Read(name, places, value.dtype, span=equation.span)
    again = at_axes(read, {a.name: axis(b.name) for a, b in zip(own, best.axes, strict=True)})

    def visit(expr: ir.Expr, axes: tuple[ir.Axis, ...], within: Condition) -> ir.Expr:
        """Beside the comparison the same value may be taken where the tensor has no element."""
        if expr == found.value and (guard == TRUE or (axes, within) == (found.axes, found.guard)):
            return read
        if expr == found.best:
            return replace(best, body=_with(best.body, found.other, again))
        if isinstance(expr, ir.Reduce):
            axes, within = (*axes, *expr.axes), conjunction(within, expr.guard)
        return ir.rebuild(expr, lambda child: visit(child, axes, within))

    changed = replace(equation, value=visit(equation.value, equation.all_axes, equation.guard))
    equations = tuple(changed if e.name == equation.name else e for e in program.equations)
    return replace(program, tensors=(*program.tensors, tensor), equations=(definition, *equations)), name


def _with(expr: ir.Expr, old: ir.Expr, new: ir.Expr) -> ir.Expr:
    return new if expr == old else ir.rebuild(expr, lambda child: _with(child, old, new))


def _is_plain(own: ir.Axis) -> bool:
    return len(own.lower) == 1 and len(own.upper) == 1


def _guard(program: ir.Program, found: _Comparison, of_best: Condition, axes: tuple[ir.Axis, ...]) -> Condition | None:
    """Where the tensor is defined: everywhere, if no read leaves its array or is told by data where to go; else where
    both the extremum and the comparison want it; None where these differ."""
    chosen_by_data = any(isinstance(s, ir.DataIndex) for read in ir.reads(found.value) for s in read.subscripts)
    if not chosen_by_data and reads_inside(program, found.value, axes):
        return TRUE
    names = frozenset(a.name for a in axes)
    named = frozenset().union(*(axes_of(affine) for affine in condition_affines(found.guard)))
    if of_best != found.guard or not named <= names:
        return None
    return conjunction(found.guard, nonempty([a for a in found.axes if a.name not in names], names))
