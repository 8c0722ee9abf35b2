"""Narrow operands of sums of products with f32, converted by a kernel of their own, for tensor cores in fast numerics.

`o[i, d] += w[i, t] * cast(v[t, d], f32)` has no instruction of the tensor cores: they take two operands of one dtype,
and those of f32 in parts (decision 32). With `v_f32 = cast(v)` as a tensor it has one. The copy takes a pass over an
operand, of which each element is multiplied many times. Exact by itself: the numbers are the same.
"""

from __future__ import annotations

from dataclasses import field, replace
from math import prod

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, axis
from polyopt.dtypes import bf16, f16, f32
from polyopt.fusion.axes import assumed_length, axes_in
from polyopt.fusion.rewrite import depends_on
from polyopt.fusion.short_sums import is_contraction, is_whole_sum
from polyopt.names import unused

LEAST_USES = 32
"""Products of each element, for a pass over the operand to pay: a tile of a contraction has as many points a side."""


@dataclass(frozen=True, slots=True)
class Converted:
    """The program with copies of operands, and a sentence for each."""

    program: ir.Program
    notes: tuple[str, ...] = ()


def convert(program: ir.Program) -> Converted:
    """The program whose sums of products of f32 with a narrow element read a copy in f32 instead."""
    found = _Converter(program, {t.name for t in program.tensors} | {e.name for e in program.equations})
    equations = [found.equation(equation) for equation in program.equations]
    copies = list(found.copies.values())
    return Converted(
        replace(
            program,
            tensors=(*program.tensors, *(tensor for tensor, _ in copies)),
            equations=(*(copy for _, copy in copies), *equations),
        ),
        tuple(f"{name} is copied as f32, which tensor cores multiply by f32" for name in found.copies),
    )


@dataclass(slots=True)
class _Converter:
    """Rewrites one equation after the other. copies: by the name of the operand"""

    program: ir.Program
    taken: set[str]
    copies: dict[str, tuple[ir.Tensor, ir.Equation]] = field(default_factory=dict)

    def equation(self, equation: ir.Equation) -> ir.Equation:
        if equation.reducer is None:
            return replace(equation, value=self.visit(equation.value, equation))
        return replace(equation, value=self.summand(equation.value, equation, equation.reducer, equation.reduce_axes))

    def visit(self, expr: ir.Expr, equation: ir.Equation) -> ir.Expr:
        expr = ir.rebuild(expr, lambda child: self.visit(child, equation))
        if isinstance(expr, ir.Reduce):
            return replace(expr, body=self.summand(expr.body, equation, expr.reducer, expr.axes))
        return expr

    def summand(
        self, value: ir.Expr, equation: ir.Equation, reducer: ir.Reducer, summed: tuple[ir.Axis, ...]
    ) -> ir.Expr:
        """A sum's summand, with the copy of its narrow factor where another one is of f32."""
        match value:
            case ir.Op("mul", (ir.Read() as wide, ir.Cast(ir.Read() as narrow) as cast)) if cast.dtype == f32:
                swapped = False
            case ir.Op("mul", (ir.Cast(ir.Read() as narrow) as cast, ir.Read() as wide)) if cast.dtype == f32:
                swapped = True
            case _:
                return value
        if reducer.name != "sum" or wide.dtype != f32 or not self.may_copy(narrow, equation):
            return value
        if not all(isinstance(subscript, Affine) for read in (wide, narrow) for subscript in read.subscripts):
            return value  # tensor cores take no rows that data chooses
        used = [frozenset(axes_in(read)) for read in (wide, narrow)]
        again = [a for a in (*equation.axes, *summed) if a.name not in used[1]]
        uses = prod(map(assumed_length, again))
        if not is_contraction(used, frozenset(a.name for a in equation.axes)) or uses < LEAST_USES:
            return value
        copy = replace(narrow, tensor=self.copy(narrow.tensor), dtype=f32)
        return replace(value, args=(copy, wide) if swapped else (wide, copy))

    def may_copy(self, read: ir.Read, equation: ir.Equation) -> bool:
        """Whether all elements of a tensor have a value before the equation has any, and reads of it no other."""
        made = self.program.definitions(read.tensor)
        is_whole = self.program.tensor(read.tensor).role == "input" or all(
            is_whole_sum(self.program, equation) for equation in made
        )
        is_earlier = not depends_on(self.program, [read.tensor], equation.tensor)
        return read.dtype in (bf16, f16) and read.boundary is None and is_whole and is_earlier

    def copy(self, name: str) -> str:
        """The tensor with the operand's elements in f32."""
        if name not in self.copies:
            narrow = self.program.tensor(name)
            assert narrow.shape is not None, "shapes are resolved"
            copy = unused(f"{name}_f32", self.taken)
            self.taken.add(copy)
            names = [unused(f"d{n}", self.program.sizes) for n in range(narrow.rank)]
            axes = tuple(ir.Axis(own, (Affine(0),), (extent,)) for own, extent in zip(names, narrow.shape, strict=True))
            places = tuple(axis(own.name) for own in axes)
            value = ir.Cast(ir.Read(name, places, narrow.dtype), f32)
            self.copies[name] = (
                ir.Tensor(copy, f32, narrow.shape, "local", narrow.rank),
                ir.Equation(copy, copy, axes, places, value),
            )
        return self.copies[name][0].name
