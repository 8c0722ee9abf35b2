"""Tables whose elements depend on the one above and on the one to the left are computed in a temporary.

Antidiagonals of such a table run at once, in lanes, and a temporary is stored so that each of them is a row
(`poly.skewed`). The caller's array has rows of its own; each lane would be gathered and scattered there. Copied in the
end, each element is gathered once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from polyopt import graphs, picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, axis, constant
from polyopt.names import unused
from polyopt.poly import skewed

LEAST = 32
"""Rows and columns for lanes along antidiagonals to find work."""


@dataclass(frozen=True, slots=True)
class Fronted:
    """The program with its tables in temporaries, and a sentence for each."""

    program: ir.Program
    notes: tuple[str, ...] = ()


def copy_out(program: ir.Program) -> Fronted:
    """The program whose results that wavefronts compute are copied from temporaries."""
    notes: list[str] = []
    for tensor in program.tensors:
        if tensor.role != "output" or not _is_long(tensor) or not _is_alone(program, tensor.name):
            continue
        if _needs_a_front(program, tensor.name) and picks.agreed(f"{tensor.name} by way of a table", True):
            program = _by_way(program, tensor)
            notes.append(f"{tensor.name} is copied from a table whose antidiagonals are computed in lanes")
    return Fronted(program, tuple(notes))


def _is_long(tensor: ir.Tensor) -> bool:
    """Whether there is something along antidiagonals for lanes to do, in a table that may be stored by them."""
    if tensor.shape is None or len(tensor.shape) < 2 or not all(extent.is_constant for extent in tensor.shape):
        return False
    *outer, width, length = (extent.constant for extent in tensor.shape)
    return min(width, length) >= LEAST and skewed.fits(width, length, 1, prod(outer) * tensor.dtype.itemsize)


def _is_alone(program: ir.Program, name: str) -> bool:
    """Whether a tensor depends on itself, and on no other one that depends on it. Of several, each has its order."""
    edges = [(read.tensor, equation.tensor) for equation in program.equations for read in equation.reads()]
    found = graphs.components([t.name for t in program.tensors], edges)
    return (name,) in found and (name, name) in edges


def _needs_a_front(program: ir.Program, name: str) -> bool:
    """Whether no order of rows, and none of columns, leaves anything that can run at once, while antidiagonals do."""
    distances: set[tuple[int, int]] = set()
    for equation in program.definitions(name):
        if equation.is_reduction:
            return False
        for distance in _distances(equation):
            if distance is None or max(distance) > 0:
                return False
            distances.add(distance)
    along = any(above == 0 and left < 0 for above, left in distances)
    down = any(left == 0 and above < 0 for above, left in distances)
    return along and down


def _distances(equation: ir.Equation) -> Iterator[tuple[int, int] | None]:
    """How far from the element it defines an equation reads others of its tensor, in the last two dimensions; None
    where that depends on the element. Equations for an edge of a table define a row or a column: they do not count."""
    own = equation.subscripts[-2:]
    axes = [_axis_alone(subscript) for subscript in own]
    if len(own) < 2 or None in axes or axes[0] == axes[1]:
        return
    for read in equation.reads():
        if read.tensor == equation.tensor:
            pairs = zip(read.subscripts[-2:], own, strict=False)
            apart = [r - s for r, s in pairs if isinstance(r, Affine) and isinstance(s, Affine)]
            known = len(read.subscripts) == len(equation.subscripts) and len(apart) == 2
            constants = [distance.constant for distance in apart if distance.is_constant]
            yield (constants[0], constants[1]) if known and len(constants) == 2 else None


def _axis_alone(subscript: ir.Subscript) -> str | None:
    """The axis that a subscript is, beside a number."""
    if not isinstance(subscript, Affine) or len(subscript.terms) != 1:
        return None
    atom, factor = subscript.terms[0]
    return atom.name if isinstance(atom, AxisRef) and factor == 1 else None


def _by_way(program: ir.Program, tensor: ir.Tensor) -> ir.Program:
    """The program with a temporary in the place of a result where this one is defined."""
    assert tensor.shape is not None, "the extents are numbers"
    taken = {t.name for t in program.tensors} | {e.name for e in program.equations}
    name = unused(f"{tensor.name}_table", taken)
    copy = unused(f"{tensor.name}_copy", taken | {name})

    def renamed(expr: ir.Expr) -> ir.Expr:
        expr = ir.rebuild(expr, renamed)
        return replace(expr, tensor=name) if isinstance(expr, ir.Read) and expr.tensor == tensor.name else expr

    equations: list[ir.Equation] = []
    for equation in program.equations:
        if equation.tensor != tensor.name:
            equations.append(equation)
            continue
        subscripts = ir.map_data(equation.subscripts, renamed)
        equations.append(replace(equation, tensor=name, subscripts=subscripts, value=renamed(equation.value)))
    shown = [f"{name}{n}" for n in range(len(tensor.shape))]
    for equation in program.definitions(tensor.name):
        found = [_axis_alone(subscript) for subscript in equation.subscripts]
        if None not in found and len(set(found)) == len(shown):
            shown = [str(own) for own in found]
    axes = tuple(ir.Axis(own, (constant(0),), (extent,)) for own, extent in zip(shown, tensor.shape, strict=True))
    elements = tuple(axis(a.name) for a in axes)
    source = ir.Read(name, elements, tensor.dtype, None, tensor.span)
    equations.append(ir.Equation(copy, tensor.name, axes, elements, source, span=tensor.span))
    table = replace(tensor, name=name, role="local")
    return replace(program, tensors=(*program.tensors, table), equations=tuple(equations))
