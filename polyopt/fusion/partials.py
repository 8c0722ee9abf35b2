"""Long sums with few results, a stretch of terms at a time.

`z[i, j] += x[i, k] * y[k, j]` with 64 rows, 64 columns and 8192 terms has five register tiles to share among threads,
and each passes over all of an operand that no cache near the core holds. As 16 sums of 512 terms each, which a last
one adds up,

    z_partial[p, i, j] += x[i, 512*p + q] * y[512*p + q, j]
    z[i, j] = z_partial[0, i, j] + ... + z_partial[15, i, j]

threads take stretches of their own, and what all tiles of a stretch read stays in a core's cache. The stretches depend
on the sizes alone, so results do not depend on threads. The terms are added in another order, so strict numerics go
without it.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, axes_of, axis, constant
from polyopt.fusion import short_sums
from polyopt.fusion.rewrite import at_axes
from polyopt.fusion.short_sums import is_contraction, is_whole_sum, length
from polyopt.names import unused
from polyopt.target import Target

LEAST_TERMS = 256
"""Terms of a partial sum: beginning and ending it in registers takes a few per cent of that."""

WHOLE = 64
"""Terms come in multiples of so many, so that stretches begin where lines of the cache do, and groups of terms."""

LEAST_PARTS, MOST_PARTS = 4, 16
"""Partial sums: work for some threads, and little to add up."""

LEAST_REUSE = 16
"""Times that each element of an operand is used: below that a sum is as fast as its operands come from memory."""


@dataclass(frozen=True, slots=True)
class PartialSum:
    """One sum to be split.

    equation: name of the accumulation
    axis:     the axis whose points are shared out
    parts:    into how many stretches
    terms:    points of a stretch; the last one may have fewer
    read_bytes: of the operands
    """

    equation: str
    axis: str
    parts: int
    terms: int
    read_bytes: int

    def __str__(self) -> str:
        return (
            f"{self.equation}: {self.parts} partial sums of {self.terms} terms along {self.axis}: "
            f"few results to share among threads, and {self.read_bytes} bytes of operands, more than stay near a core"
        )


def decide(program: ir.Program, target: Target) -> tuple[PartialSum, ...]:
    """The sums worth splitting. Static sizes only."""
    found = (_partial(program, equation, target) for equation in program.equations)
    return tuple(partial for partial in found if partial is not None)


def _partial(program: ir.Program, equation: ir.Equation, target: Target) -> PartialSum | None:
    """The plan for one accumulation: a product of operands that are each used often, together more than half the
    second cache holds, where all partial results take a quarter of it at most."""
    reads = list(dict.fromkeys(ir.reads(equation.value)))
    plain = all(isinstance(node, ir.Read | ir.Op | ir.Cast | ir.Const) for node in ir.walk(equation.value))
    lengths = {a.name: length(a) for a in equation.all_axes}
    if not equation.reduce_axes or not plain or not is_whole_sum(program, equation) or not all(lengths.values()):
        return None
    assert equation.reducer is not None, "an accumulation has a reducer"
    size = {name: extent or 1 for name, extent in lengths.items()}
    known = [_axes(read) for read in reads]
    free = {a.name for a in equation.axes}
    if equation.reducer.name != "sum" or not is_contraction(known, frozenset(free)):
        return None
    if any(read.boundary is not None or read.dtype != equation.reducer.dtype or not _is_affine(read) for read in reads):
        return None  # what is converted is copied whole, or goes to instructions that take groups of terms
    longest = max(equation.reduce_axes, key=lambda a: size[a.name])
    parts = min(MOST_PARTS, 1 << (max(size[longest.name] // LEAST_TERMS, 1).bit_length() - 1))
    results = prod(size[name] for name in free) * equation.reducer.dtype.itemsize
    read_bytes = sum(prod(size[n] for n in axes) * read.dtype.itemsize for read, axes in zip(reads, known, strict=True))
    worth = (
        parts >= LEAST_PARTS
        and longest.lower == (Affine(0),)
        and all(longest.name in axes for axes in known)
        and all(prod(size[n] for n in free - axes) >= LEAST_REUSE for axes in known)
        and 2 * read_bytes > target.l2_bytes
        and 4 * parts * results <= target.l2_bytes
    )
    if not worth or not picks.choose(f"partial sums of {equation.tensor}", True, lambda: (True, False)):
        return None
    terms = -(-size[longest.name] // (parts * WHOLE)) * WHOLE
    return PartialSum(equation.name, longest.name, -(-size[longest.name] // terms), terms, read_bytes)


def apply(program: ir.Program, plan: tuple[PartialSum, ...]) -> ir.Program:
    """The program with these sums split, and the last ones written out."""
    for partial in plan:
        program = _applied(program, partial)
    names = {partial.equation for partial in plan}
    return short_sums.apply(program, [short for short in short_sums.decide(program) if short.equation in names])


def _applied(program: ir.Program, partial: PartialSum) -> ir.Program:
    (equation,) = (e for e in program.equations if e.name == partial.equation)
    assert equation.reducer is not None, "an accumulation has a reducer"
    taken = {t.name for t in program.tensors} | {e.name for e in program.equations} | set(program.sizes)
    name = unused(f"{equation.tensor}_partial", taken)
    axes = {a.name for a in equation.all_axes}
    part = ir.Axis(unused(f"{partial.axis}_part", axes), (Affine(0),), (constant(partial.parts),))
    first = axis(part.name) * partial.terms
    (whole,) = (a for a in equation.reduce_axes if a.name == partial.axis)
    rest = () if length(whole) == partial.parts * partial.terms else tuple(upper - first for upper in whole.upper)
    term = ir.Axis(partial.axis, (Affine(0),), (constant(partial.terms), *rest))
    own = (part, *equation.axes)
    places = tuple(axis(a.name) for a in own)
    partials = replace(
        equation,
        name=name,
        tensor=name,
        axes=own,
        subscripts=places,
        value=at_axes(equation.value, {partial.axis: first + axis(partial.axis)}),
        reduce_axes=tuple(term if a is whole else a for a in equation.reduce_axes),
    )
    read = ir.Read(name, places, equation.reducer.dtype, span=equation.span)
    total = replace(equation, value=read, reduce_axes=(part,))
    shape = tuple(a.upper[0] for a in own)
    tensor = ir.Tensor(name, equation.reducer.dtype, shape, "local", len(own), equation.span)
    position = program.equations.index(equation)
    return replace(
        program,
        tensors=(*program.tensors, tensor),
        equations=(*program.equations[:position], partials, total, *program.equations[position + 1 :]),
    )


def _axes(read: ir.Read) -> frozenset[str]:
    return frozenset().union(*(axes_of(s) for s in read.subscripts if isinstance(s, Affine)))


def _is_affine(read: ir.Read) -> bool:
    return all(isinstance(s, Affine) for s in read.subscripts)
