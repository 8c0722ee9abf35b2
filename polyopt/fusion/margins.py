"""Tensors that a sum reads beyond their edges are copied once, with a margin, and the sum reads the copy.

A padded convolution asks for each of its terms whether it lies inside the image, though each element of the image
counts in hundreds of terms. A copy of the box that the sum reads, `y[h] = x[h - 1].pad(0)`, asks once for each
element, and the sum becomes one of plain products: what is beyond an edge, padded, clamped or wrapped, is an element
like any other.

Exact: the terms and their order stay. Only a box of numbers that is read often enough is copied, of a tensor whose
elements all have a value, whichever of them the sum visits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from math import prod

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, axes_of, axis, constant
from polyopt.fusion.axes import ASSUMED, assumed_length, is_range, length
from polyopt.fusion.rewrite import depends_on
from polyopt.names import unused
from polyopt.poly.intervals import extreme, is_within

LEAST_USES = 32
"""Terms that read an element, on average, for its copy to pay."""


_Box = tuple[tuple[int, Affine], ...]
"""The least value of each subscript of a read, and how many it has."""


@dataclass(frozen=True, slots=True)
class Widened:
    """The program with its copies, and a sentence for each."""

    program: ir.Program
    notes: tuple[str, ...] = ()


def widen(program: ir.Program) -> Widened:
    """The program whose sums read copies with margins where they read beyond edges often."""
    widener = _Widener(program, {t.name for t in program.tensors} | {e.name for e in program.equations})
    equations = [widener.equation(equation) for equation in program.equations]
    copies = list(widener.copies.values())
    return Widened(
        replace(
            program,
            tensors=(*program.tensors, *(copy.tensor for copy in copies)),
            equations=(*(copy.equation for copy in copies), *equations),
        ),
        tuple(copy.note for copy in copies),
    )


@dataclass(frozen=True, slots=True)
class _Copy:
    """lowest: of each subscript; what the copy's element 0 is"""

    tensor: ir.Tensor
    equation: ir.Equation
    note: str
    lowest: tuple[int, ...]


@dataclass(slots=True)
class _Widener:
    """Rewrites one equation after the other. copies: by tensor, what lies beyond its edges, and box"""

    program: ir.Program
    taken: set[str]
    copies: dict[object, _Copy] = field(default_factory=dict)

    def equation(self, equation: ir.Equation) -> ir.Equation:
        return replace(equation, value=self.visit(equation.value, equation, (), in_sum=equation.is_accumulation))

    def visit(self, expr: ir.Expr, equation: ir.Equation, summed: Sequence[ir.Axis], *, in_sum: bool) -> ir.Expr:
        """The expression with reads of copies. summed: the axes of the reductions around it, inside the equation's"""
        match expr:
            case ir.Reduce(body=body, axes=axes):
                return replace(expr, body=self.visit(body, equation, (*summed, *axes), in_sum=True))
            case ir.Read(boundary=boundary) if in_sum and boundary is not None:
                around = {a.name: a for a in (*equation.all_axes, *summed)}
                if self.stays_inside(expr, around):
                    return replace(expr, boundary=None)
                copy = self.copy(expr, equation, around)
                return expr if copy is None else _moved(expr, copy)
            case _:
                return ir.rebuild(expr, lambda child: self.visit(child, equation, summed, in_sum=in_sum))

    def stays_inside(self, read: ir.Read, around: Mapping[str, ir.Axis]) -> bool:
        """Whether the ranges of the axes alone keep a read within the edges."""
        shape = self.program.tensor(read.tensor).shape
        return shape is not None and all(
            isinstance(subscript, Affine) and is_within(subscript, extent, around)
            for subscript, extent in zip(read.subscripts, shape, strict=True)
        )

    def copy(self, read: ir.Read, equation: ir.Equation, around: Mapping[str, ir.Axis]) -> _Copy | None:
        """The copy that a read should take its elements from; None where it may not or would not pay."""
        box = _box(read, around)
        if box is None or not is_whole(self.program, read.tensor) or self.may_be_empty(read):
            return None
        elements = prod(extent.constant if extent.is_constant else ASSUMED for _, extent in box)
        terms = prod(map(assumed_length, around.values()))
        if not _is_reused(read, around) or depends_on(self.program, (read.tensor,), equation.tensor):
            return None
        if not picks.agreed(f"margins of {read.tensor} for {equation.name}", terms >= LEAST_USES * elements):
            return None
        key = read.tensor, read.boundary, box
        if key not in self.copies:
            self.copies[key] = self.made(read, box, terms // elements)
        return self.copies[key]

    def may_be_empty(self, read: ir.Read) -> bool:
        """Whether a call's sizes may leave a tensor no element, where elements stand for what is beyond the edges."""
        shape = self.program.tensor(read.tensor).shape or ()
        return not isinstance(read.boundary, ir.Pad) and not all(extent.is_constant for extent in shape)

    def made(self, read: ir.Read, box: _Box, uses: int) -> _Copy:
        name = unused(f"{read.tensor}_wide", self.taken)
        self.taken.add(name)
        shape = tuple(extent for _, extent in box)
        axes = tuple(ir.Axis(f"{name}{n}", (constant(0),), (extent,)) for n, extent in enumerate(shape))
        elements = tuple(axis(a.name) for a in axes)
        source = replace(read, subscripts=tuple(e + first for e, (first, _) in zip(elements, box, strict=True)))
        tensor = ir.Tensor(name, read.dtype, shape, "local", len(shape), read.span)
        equation = ir.Equation(name, name, axes, elements, source, span=read.span)
        note = f"{name} is {read.tensor} with what its sum reads beyond the edges: each element counts in {uses} terms"
        return _Copy(tensor, equation, note, tuple(first for first, _ in box))


def is_whole(program: ir.Program, name: str) -> bool:
    """Whether each element of a tensor has a value, whatever the equations read of it."""
    shape = program.tensor(name).shape
    if shape is None or not all(not extent.is_constant or extent.constant > 0 for extent in shape):
        return False
    return program.tensor(name).role == "input" or any(
        equation.guard == TRUE and equation.subscripts == tuple(axis(a.name) for a in equation.axes)
        and all(is_range(a) and a.upper == (extent,) for a, extent in zip(equation.axes, shape, strict=True))
        for equation in program.definitions(name)
    )  # fmt: skip


def _is_reused(read: ir.Read, around: Mapping[str, ir.Axis]) -> bool:
    """Whether several results, and not a window of one alone, take the same elements."""
    known = frozenset().union(*(axes_of(s) for s in read.subscripts if isinstance(s, Affine)))
    return any(a.name not in known and length(a) != 1 for a in around.values())


def _box(read: ir.Read, around: Mapping[str, ir.Axis]) -> _Box | None:
    """What each subscript reaches; None where one is data or starts at no number, or nothing is read."""
    if not all(a.is_resolved and length(a) != 0 for a in around.values()):
        return None
    found: list[tuple[int, Affine]] = []
    for subscript in read.subscripts:
        if not isinstance(subscript, Affine):
            return None
        least, greatest = (extreme(subscript, around, largest=largest) for largest in (False, True))
        if least is None or greatest is None or not least.is_constant or axes_of(greatest):
            return None
        found.append((least.constant, greatest - least + 1))
    return tuple(found)


def _moved(read: ir.Read, copy: _Copy) -> ir.Read:
    """The read of the copy's element."""
    subscripts = tuple(
        subscript - first
        for subscript, first in zip(read.subscripts, copy.lowest, strict=True)
        if isinstance(subscript, Affine)
    )
    return ir.Read(copy.tensor.name, subscripts, read.dtype, span=read.span)
