"""Windows that many results read are written out as columns, and the sum over them is a product of matrices.

A convolution of images of 7 x 7 points has rows of 7: lanes along them are half empty, and a tile of registers meets an
edge at each row. A temporary that holds a column of terms for each place, `u[c, r, s, h, w] = x[c, h + r, w + s]`,
makes `h` and `w` neighbours that every array walks together, and `c`, `r` and `s` as well: `joined` makes one long axis
of each. The temporary is several times as large as the image, but never whole: `tiling.pack` computes a block of it
where a panel would be copied.

Exact: the terms and their order stay. Worth it where the copy costs less than the lanes that rows leave empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, axes_of, axis
from polyopt.fusion.axes import assumed_length, is_range
from polyopt.fusion.margins import is_whole
from polyopt.fusion.rewrite import cost, depends_on
from polyopt.fusion.windows import is_window, known
from polyopt.microkernel import speed
from polyopt.names import unused
from polyopt.poly.intervals import is_within
from polyopt.target import Target

LEAST_REUSE = 32
"""Results that read an element of a column, for writing it to pay."""

COPY = 2.0
"""Cycles that one vector of a column costs: a load and a store that cross lines of the cache, and its part of loops."""

GATHER = 8.0
"""Loads that a vector of elements apart costs."""

MOST_COST = 4
"""Scalar operations of an element that its columns may repeat."""


@dataclass(frozen=True, slots=True)
class Unfolded:
    """The program with its columns, and a sentence for each."""

    program: ir.Program
    notes: tuple[str, ...] = ()


def unfold(program: ir.Program, target: Target) -> Unfolded:
    """The program whose sums over windows read columns where that fills more lanes than it costs."""
    unfolder = _Unfolder(program, target, {t.name for t in program.tensors} | {e.name for e in program.equations})
    equations = tuple(one for equation in program.equations for one in unfolder.equation(equation))
    tensors = (*program.tensors, *unfolder.tensors)
    return Unfolded(replace(program, tensors=tensors, equations=equations), tuple(unfolder.notes))


@dataclass(slots=True)
class _Unfolder:
    """Rewrites one equation after the other. made: equations and reads of columns, by sum and read"""

    program: ir.Program
    target: Target
    taken: set[str]
    tensors: list[ir.Tensor] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    made: dict[object, tuple[ir.Equation, ir.Read]] = field(default_factory=dict)

    def equation(self, equation: ir.Equation) -> tuple[ir.Equation, ...]:
        """The equation, behind those of its columns."""
        own = len(self.made)
        value = self.visit(equation.value, equation, equation.reduce_axes)
        return (*(columns for columns, _ in list(self.made.values())[own:]), replace(equation, value=value))

    def visit(self, expr: ir.Expr, equation: ir.Equation, summed: Sequence[ir.Axis]) -> ir.Expr:
        """The expression with reads of columns. summed: the axes of the sum around it, none outside of sums"""
        if isinstance(expr, ir.Reduce) and not summed:
            return replace(expr, body=self.visit(expr.body, equation, expr.axes))
        read = _operand(expr) if summed else None
        if read is not None:
            key = equation.name, expr, tuple(summed)
            if key not in self.made and self.pays(read, equation, summed):
                self.made[key] = self.columns(expr, read, equation, summed)
            return self.made[key][1] if key in self.made else expr
        if isinstance(expr, ir.Where):
            return expr  # what is in a branch may not be read where it is not taken
        return ir.rebuild(expr, lambda child: self.visit(child, equation, summed))

    def pays(self, read: ir.Read, equation: ir.Equation, summed: Sequence[ir.Axis]) -> bool:
        """Whether columns of what is read cost less than the lanes that they fill, and may be computed."""
        around = {a.name: a for a in (*equation.axes, *summed)}
        rows, lanes = (_alone(subscript) for subscript in (None, None, *equation.subscripts)[-2:])
        seen = known(read)
        if rows is None or lanes is None or rows == lanes or not {rows, lanes} <= seen:
            return False
        if read.boundary is not None or not is_window(read):
            return False
        if not all(map(is_range, around.values())) or not seen <= around.keys():
            return False
        reuse = prod(assumed_length(a) for a in equation.axes if a.name not in seen)
        if not self.is_readable(read, around):
            return False
        if depends_on(self.program, (read.tensor,), equation.tensor):
            return False
        depth = prod(map(assumed_length, summed))
        better = reuse >= LEAST_REUSE and self.is_better(read, around[rows], around[lanes], reuse, depth)
        return picks.agreed(f"columns of {read.tensor} for {equation.name}", better)

    def is_better(self, read: ir.Read, rows: ir.Axis, lanes: ir.Axis, reuse: int, depth: int) -> bool:
        """Whether copying an element into columns takes fewer cycles than its results gain by full tiles.

        depth: terms of each sum
        """
        bits, height, run = read.dtype.bits, assumed_length(rows), assumed_length(lanes)
        width, load = self.target.lanes(bits), 1.0 if _is_contiguous(read, lanes.name) else GATHER
        copied = COPY * load * -(-run // width) / run  # per element
        short, full = (
            reuse / (2 * width * speed(reuse, points, depth, bits, self.target)) for points in (run, height * run)
        )
        return copied + full < load * short

    def is_readable(self, read: ir.Read, around: Mapping[str, ir.Axis]) -> bool:
        """Whether the read has a value at all points of the axes, whatever guards keep the sum from."""
        shape = self.program.tensor(read.tensor).shape
        return is_whole(self.program, read.tensor) and all(
            isinstance(subscript, Affine) and is_within(subscript, extent, around)
            for subscript, extent in zip(read.subscripts, shape or (), strict=True)
        )

    def columns(
        self, value: ir.Expr, read: ir.Read, equation: ir.Equation, summed: Sequence[ir.Axis]
    ) -> tuple[ir.Equation, ir.Read]:
        """The equation of the columns of a value that one read is in, and the read of them."""
        seen = known(read)
        written = {_alone(subscript) for subscript in equation.subscripts[-2:]}
        axes = (
            *(a for a in equation.axes if a.name in seen - written),
            *(a for a in summed if a.name in seen),
            *(a for s in equation.subscripts[-2:] for a in equation.axes if a.name == _alone(s)),
        )
        name = unused(f"{read.tensor}_columns", self.taken)
        self.taken.add(name)
        shape = tuple(a.upper[0] for a in axes)
        elements = tuple(axis(a.name) for a in axes)
        self.tensors.append(ir.Tensor(name, value.dtype, shape, "local", len(axes), read.span))
        self.notes.append(f"{name} holds what {equation.tensor} reads of {read.tensor} as columns of terms")
        own = ir.Equation(name, name, axes, elements, value, span=equation.span)
        return own, ir.Read(name, elements, value.dtype, span=read.span)


def _is_contiguous(read: ir.Read, name: str) -> bool:
    """Whether neighbours along the axis are neighbours in memory."""
    *outer, last = (s for s in read.subscripts if isinstance(s, Affine))
    return last.coefficient(AxisRef(name)) == 1 and not any(name in axes_of(s) for s in outer)


def _operand(expr: ir.Expr) -> ir.Read | None:
    """The one read of a read, or of a cheap function of it and constants; a conversion stays with the sum."""
    if not isinstance(expr, ir.Read | ir.Op) or cost(expr) > MOST_COST:
        return None
    nodes = list(ir.walk(expr))
    reads = {node for node in nodes if isinstance(node, ir.Read)}
    plain = all(isinstance(node, ir.Read | ir.Op | ir.Const) for node in nodes)
    return reads.pop() if plain and len(reads) == 1 else None


def _alone(subscript: ir.Subscript | None) -> str | None:
    """The axis that is all there is in a subscript."""
    if isinstance(subscript, Affine) and len(subscript.terms) == 1:
        atom, _ = subscript.terms[0]
        if isinstance(atom, AxisRef) and subscript == axis(atom.name):
            return atom.name
    return None
