"""Last columns of a product that vectors would leave almost empty are summed by themselves.

A product of 129 columns takes nine vectors of 16 lanes for each row and step of its sum, the ninth for one column.
That column is a product of a matrix and a vector: `z[i, 128] = sum(a[i, k] * b_end[k])`, with lanes along the sum,
takes a sixteenth of what it took. The column of the operand is copied first where its elements lie apart.

Exact but for the order of the sum. Only of arguments, and where nothing else in the program reads the result: what
comes before and after a product is computed in its tiles.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, axis, constant
from polyopt.dtypes import f32, f64
from polyopt.fusion import partials
from polyopt.fusion.axes import at_axes, length, plain_axes, starts_at_zero
from polyopt.fusion.margins import is_whole
from polyopt.fusion.turned import as_accumulation
from polyopt.names import unused
from polyopt.target import Target

STEP, ROW, COPY = 1.5, 4.0, 3.0
"""Cycles of a column summed by itself, for each vector of the sum and for each row, and of each element that is copied
first (Zen 4, 33 to 257 columns)."""

MOST_CACHES = 4
"""Of the second caches that `a` fills, which is read once more: from farther away that takes longer than is spared."""

LEAST_SHARE, LEAST_CYCLES = 0.02, 300
"""Of a product, that is saved, for it to be two."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The program with such columns apart, and a sentence for each product."""

    program: ir.Program
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Product:
    """`z[.., j] += a[..] * b[..]`. columns: j, which `a` does not know; summed: what is summed over"""

    equation: ir.Equation
    a: ir.Read
    b: ir.Read
    columns: ir.Axis
    summed: ir.Axis

    @property
    def copies(self) -> int:
        """How many elements a column of `b` has, if it is copied for lanes along the sum; 0 where it is not."""
        along = axis(self.summed.name)
        if not self.a.subscripts[-1] == along != self.b.subscripts[-1]:
            return 0
        known = {*(plain_axes(self.b) or ())} - {self.columns.name}
        return prod(length(own) or 0 for own in self.equation.all_axes if own.name in known)

    @property
    def rows(self) -> int:
        return prod(length(own) or 0 for own in self.equation.axes if own != self.columns)


def take_apart(program: ir.Program, target: Target) -> Ended:
    """The program whose products have no almost empty vectors where that pays. Static sizes only."""
    taken = {t.name for t in program.tensors} | {e.name for e in program.equations}
    notes = []
    for equation in program.equations:
        product = _product_of(program, equation)
        if product is None:
            continue
        extent, width = length(product.columns) or 0, target.lanes(equation.value.dtype.bits)
        last = extent % width
        if not last:
            continue
        pays = _pays(product, extent, last, width) and _is_near(program, product, target)
        pays = pays and equation.name not in {part.equation for part in partials.decide(program, target)}
        if picks.agreed(f"last columns of {equation.name} apart", pays):
            program = _apart(program, product, extent - last, taken)
            notes.append(
                f"the last of {extent} columns of {equation.tensor} along {product.columns.name} by themselves: "
                f"{width - last} of {width} lanes would be empty"
            )
    return Ended(program, tuple(notes))


def _product_of(program: ir.Program, equation: ir.Equation) -> _Product | None:
    """An equation as such a product; None where it is none, or more than that is made of its result."""
    total = as_accumulation(equation)
    value, reducer = total.value, total.reducer
    if reducer is None or reducer.name != "sum" or total.guard != TRUE or len(total.reduce_axes) != 1:
        return None
    if value.dtype not in (f32, f64) or value.dtype != program.tensor(equation.tensor).dtype:
        return None
    if not isinstance(value, ir.Op) or value.name != "mul" or len(program.definitions(equation.tensor)) != 1:
        return None
    result = plain_axes(ir.Read(equation.tensor, total.subscripts, value.dtype))
    if not result or not all(length(a) and starts_at_zero(a) for a in total.all_axes):
        return None
    if not is_whole(program, equation.tensor) or _is_read(program, equation.tensor):
        return None
    axes, (summed,) = {a.name: a for a in total.all_axes}, total.reduce_axes
    for a, b in (value.args, value.args[::-1]):
        if not isinstance(a, ir.Read) or not isinstance(b, ir.Read):
            continue
        if any(program.tensor(operand.tensor).role != "input" for operand in (a, b)):
            continue  # what is computed for the tiles of a product would have two products to wait for
        of_a, of_b = plain_axes(a) or (), plain_axes(b) or ()
        knows_rows = {*of_a} - {*of_b} and {*of_a, *of_b} == {*axes}
        if knows_rows and result[-1] in {*of_b} - {*of_a} and summed.name in {*of_a} & {*of_b}:
            return _Product(total, a, b, axes[result[-1]], summed)
    return None


def _is_read(program: ir.Program, tensor: str) -> bool:
    return any(read.tensor == tensor for equation in program.equations for read in equation.reads())


def _is_near(program: ir.Program, product: _Product, target: Target) -> bool:
    """Whether all of `a` stays in caches nearby, from where the columns read it again."""
    axes = {a.name: length(a) or 0 for a in product.equation.all_axes}
    elements = prod(axes[name] for name in plain_axes(product.a) or ())
    return elements * program.tensor(product.a.tensor).dtype.itemsize <= MOST_CACHES * target.l2_bytes


def _pays(product: _Product, extent: int, last: int, width: int) -> bool:
    """Whether the vectors that are spared are worth more than the columns by themselves."""
    steps = length(product.summed) or 0
    if extent < width:
        return False
    spared = product.rows * (steps - last * (STEP * -(-steps // width) + ROW)) - COPY * last * product.copies
    return spared >= LEAST_CYCLES and spared >= LEAST_SHARE * product.rows * steps * -(-extent // width)


def _apart(program: ir.Program, product: _Product, first: int, taken: set[str]) -> ir.Program:
    """The program with the columns from `first` on in an equation of their own."""
    equation, columns = product.equation, product.columns
    names = {a.name for a in equation.all_axes} | {*program.sizes}
    end = ir.Axis(unused(f"{columns.name}_end", names), (constant(0),), (constant((length(columns) or 0) - first),))
    at = {columns.name: axis(end.name) + first}
    others = {a.name: a for a in equation.all_axes} | {columns.name: end}
    tensors, copies, b = program.tensors, [], at_axes(product.b, at)
    if product.copies:
        order = [*(name for name in plain_axes(product.b) or () if name != product.summed.name), product.summed.name]
        axes = tuple(others[name] for name in order)
        name = unused(f"{product.b.tensor}_end", taken)
        taken.add(name)
        where, shape = tuple(axis(a.name) for a in axes), tuple(constant(length(a) or 0) for a in axes)
        copies.append(ir.Equation(name, name, axes, where, b, span=equation.span))
        tensors = (*tensors, ir.Tensor(name, b.dtype, shape, "local", len(axes), product.b.span))
        b = ir.Read(name, where, b.dtype, span=product.b.span)
    name = unused(f"{equation.name}_end", taken)
    taken.add(name)
    rest = replace(
        equation,
        name=name,
        axes=tuple(others[a.name] for a in equation.axes),
        subscripts=tuple(axis(end.name) + first if s == axis(columns.name) else s for s in equation.subscripts),
        value=ir.rebuild(equation.value, lambda factor: b if factor == product.b else factor),
    )
    shorter = ir.Axis(columns.name, columns.lower, (constant(first),))
    main = replace(equation, axes=tuple(shorter if a == columns else a for a in equation.axes))
    equations = [*program.equations]
    place = [e.name for e in equations].index(equation.name)
    equations[place : place + 1] = [*copies, *map(_defined, (main, rest))]
    return replace(program, tensors=tensors, equations=tuple(equations))


def _defined(total: ir.Equation) -> ir.Equation:
    """An accumulation as the definition by a sum that it is."""
    assert total.reducer is not None, "a sum"
    value = ir.Reduce(total.reducer, total.value, total.reduce_axes, total.value.dtype, span=total.span)
    return replace(total, value=value, reducer=None, reduce_axes=())
