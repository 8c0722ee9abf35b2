"""Products that are symmetric in two axes are summed for one half of them, and mirrored.

`y[i, j] += x[k, i] * x[k, j]`, a Gram or covariance matrix, has the same terms at `[i, j]` and `[j, i]`, in the same
order, so the lower triangle has all there is:

    y_half[i, j] += x[k, i] * x[k, j]                                  where j <= i
    y[i, j] = y_half[i, j] if j <= i else y_half[j, i]

An element is the sum of the same terms in the same order. (Where a factor is a sum of products itself, default numerics
may contract it from either side.) What follows the sum in its definition is applied to either half.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, Compare, axis
from polyopt.dtypes import DType, f32, f64
from polyopt.fusion.axes import at_axes, length
from polyopt.fusion.residues import filled, total_of
from polyopt.names import unused

LEAST_SIDE = 192
"""Rows and columns, for tiles along the diagonal not to waste most of what is saved."""

LEAST_TERMS = 256
"""Of each sum, for half of them to be worth the copy of the other half."""

LEAST_PRODUCTS = 1 << 26
"""Of all sums (Zen 4, one thread: 256 x 256 of 256 terms 1.2 to 1.6 times as slow by halves, 512 x 512 of 512 1.5
times as fast)."""

MOST_BYTES = 1 << 28
"""Of the half that is computed."""

_COMMUTATIVE = frozenset({"add", "mul"})


@dataclass(frozen=True, slots=True)
class Mirrored:
    """The program whose symmetric sums are computed by halves, and a sentence for each."""

    program: ir.Program
    notes: tuple[str, ...] = ()


def mirror(program: ir.Program) -> Mirrored:
    """The program with halves of those sums whose other half is the same."""
    taken = {t.name for t in program.tensors} | {e.name for e in program.equations}
    notes: list[str] = []
    tensors = list(program.tensors)
    equations: list[ir.Equation] = []
    for equation in program.equations:
        total, frame = total_of(equation)
        pair = _symmetric_axes(program, total)
        if pair is None or not picks.agreed(f"half of {equation.name}", _is_worth(total, pair)):
            equations.append(equation)
            continue
        name = unused(f"{equation.tensor}_half", taken)
        taken.add(name)
        half, whole = _halved(total, frame, pair, name, program.tensor(equation.tensor).dtype)
        shape = program.tensor(equation.tensor).shape
        tensors.append(ir.Tensor(name, half.value.dtype, shape, "local", len(half.axes), equation.span))
        equations += [half, whole]
        notes.append(f"{equation.tensor} is symmetric in {pair[0]} and {pair[1]}: one half is summed up, and mirrored")
    return Mirrored(replace(program, tensors=tuple(tensors), equations=tuple(equations)), tuple(notes))


def _symmetric_axes(program: ir.Program, equation: ir.Equation) -> tuple[str, str] | None:
    """The two axes of a sum of products for every element of a matrix, where they may change places.

    With a third axis the halves would share its loop, and lose their tiles; a reduction of the matrix would read it
    across, or wait for it where it could have gone on row by row.
    """
    reducer = equation.reducer
    if reducer is None or reducer.name != "sum" or reducer.dtype not in (f32, f64) or equation.guard != TRUE:
        return None
    product = equation.value
    if not isinstance(product, ir.Op) or product.name != "mul" or len(program.definitions(equation.tensor)) != 1:
        return None
    if equation.subscripts != tuple(axis(a.name) for a in equation.axes):
        return None
    reads = list(equation.reads())
    if any(read.tensor == equation.tensor or read.dtype not in (f32, f64) for read in reads):
        return None  # narrow ones have instructions that add products up, for whole tiles
    shape = program.tensor(equation.tensor).shape
    known = [length(a) for a in equation.axes]
    if len(known) != 2 or shape is None or [Affine(n) for n in known if n is not None] != list(shape):
        return None
    first, second = equation.axes
    if (first.lower, first.upper) != (second.lower, second.upper) or not _is_symmetric(product, first, second):
        return None
    return (first.name, second.name) if _is_read_alike(program, equation) else None


def _is_read_alike(program: ir.Program, equation: ir.Equation) -> bool:
    """Whether at most one equation reads the matrix, element by element where it defines one."""
    readers = [e for e in program.equations if any(read.tensor == equation.tensor for read in e.reads())]
    if not readers:
        return True
    own = [read.subscripts for read in readers[0].reads() if read.tensor == equation.tensor]
    return len(readers) == 1 and not readers[0].is_reduction and all(s == readers[0].subscripts for s in own)


def _is_symmetric(value: ir.Expr, first: ir.Axis, second: ir.Axis) -> bool:
    turned = at_axes(value, {first.name: axis(second.name), second.name: axis(first.name)})
    return value != turned and _ordered(value) == _ordered(turned)


def _ordered(expr: ir.Expr) -> ir.Expr:
    """The expression with operands that may change places in one order."""
    expr = ir.rebuild(expr, _ordered)
    if isinstance(expr, ir.Op) and expr.name in _COMMUTATIVE and len(expr.args) == 2:
        return replace(expr, args=tuple(sorted(expr.args, key=repr)))
    return expr


def _is_worth(equation: ir.Equation, pair: tuple[str, str]) -> bool:
    lengths: Mapping[str, int] = {a.name: length(a) or 0 for a in equation.all_axes}
    terms = prod(lengths[a.name] for a in equation.reduce_axes)
    side = lengths[pair[0]]
    fits = side * side * equation.value.dtype.itemsize <= MOST_BYTES
    return fits and terms >= LEAST_TERMS and side >= LEAST_SIDE and side * side * terms >= LEAST_PRODUCTS


def _halved(
    equation: ir.Equation, frame: ir.Expr | None, pair: tuple[str, str], name: str, dtype: DType
) -> tuple[ir.Equation, ir.Equation]:
    """The sum for one half, and the definition of the tensor by it."""
    down, right = (axis(own) for own in pair)
    below = Compare(down - right, ">=")
    half = replace(equation, name=name, tensor=name, guard=below)
    turned = {pair[0]: right, pair[1]: down}

    def element(subscripts: tuple[Affine, ...]) -> ir.Read:
        return ir.Read(name, subscripts, equation.value.dtype, span=equation.span)

    own = tuple(axis(a.name) for a in equation.axes)
    other = tuple(turned.get(a.name, axis(a.name)) for a in equation.axes)
    value: ir.Expr = ir.Where(below, element(own), element(other), equation.value.dtype)
    if frame is not None:
        value = filled(frame, value)
    elif value.dtype != dtype:
        value = ir.Cast(value, dtype)
    whole = replace(equation, value=value, reducer=None, reduce_axes=())
    return half, whole
