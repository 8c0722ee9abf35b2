"""Sums that scatter, a share of their terms at a time, each into results of its own (array privatization).

`h[bins[i]] += x[i]` adds wherever data says, so any two terms may meet at one element, and the loop over them cannot
run in parallel. Each of P shares of the terms can, with a copy of `h` for itself, and a last sum adds up the copies:

    h_partial[p, bins[T*p + q]] += x[T*p + q]
    h[d] += h_partial[p, d]

A core takes a stretch of T terms, neighboring threads of a GPU take neighboring terms: `bins[p + P*q]`. How many
shares there are depends on the sizes and on the target, never on threads, so results repeat. Floats are added in
another order, so strict numerics go without it; whole numbers are the same in any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, Compare, axis, conjunction, constant, map_condition
from polyopt.fusion import short_sums
from polyopt.fusion.axes import at_axes, length, placed
from polyopt.fusion.rewrite import depends_on
from polyopt.names import unused
from polyopt.target import LAUNCH_BYTES, GpuTarget, Target

LEAST_UPDATES = 1 << 16
"""Of one element each: fewer take a core less time than it takes to wake others."""

CORE_PARTS = (16, 8, 4)
"""Shares for the cores of a processor: work for some threads, and little to add up."""

UPDATES_PER_COPY = 4
"""For each element of a copy: it is cleared and added up with vectors, many times as fast as it is updated."""

STEP_BYTES = 1 << 20
"""What could cross a GPU's memory bus while a thread reads an element, adds to it and writes it."""

UPDATE_BYTES = 64
"""What an update anywhere in memory moves: a sector of 32 bytes both ways."""

COPY_MOVES = 3
"""Times that a copy crosses the bus beside its updates: it is cleared, and read by the last sum."""

MOST_COPY_BYTES = 1 << 28
"""Of all copies together, in a GPU's memory."""

WORTH = 2.0
"""How many times as fast it has to be on a GPU, by the reckoning of bytes."""


@dataclass(frozen=True, slots=True)
class Privatized:
    """One scattered sum to be shared out.

    equation:    name of the equation
    axis:        the reduced axis whose points are shared out
    parts:       how many shares, and copies of the result
    terms:       points of a share; the last ones may have fewer
    interleaved: whether neighboring points are of neighboring shares, and not of one
    reason:      why it is worth it
    """

    equation: str
    axis: str
    parts: int
    terms: int
    interleaved: bool
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.equation}: scatters into {self.parts} copies, {self.terms} terms along {self.axis} each, which a "
            f"last sum adds up: {self.reason}"
        )

    def point(self, part: str) -> Affine:
        """The point of the whole axis, by the axis over shares and the one in a share, which keeps the name."""
        if self.interleaved:
            return axis(self.axis) * self.parts + axis(part)
        return axis(part) * self.terms + axis(self.axis)


@dataclass(frozen=True, slots=True)
class Copied:
    """A program whose scattered sums are shared out, the names of the copies, and a sentence for each sum."""

    program: ir.Program
    copies: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def privatize(program: ir.Program, target: Target, *, reorder: bool) -> Copied:
    """The program with the scattered sums shared out that are worth it. On a processor the last sums are written out,
    term by term: a loop over shares might be put around the shares themselves, one after the other."""
    plan = decide(program, target, reorder=reorder)
    shared = apply(program, plan)
    copies = tuple(tensor.name for tensor in shared.tensors[len(program.tensors) :])
    if target.gpu is None:
        names = {one.equation for one in plan}
        shared = short_sums.apply(shared, [short for short in short_sums.decide(shared) if short.equation in names])
    return Copied(shared, copies, tuple(map(str, plan)))


def decide(program: ir.Program, target: Target, *, reorder: bool) -> tuple[Privatized, ...]:
    """The sums worth sharing out. Static sizes only.

    reorder: whether floats may be added in another order
    """
    found = (_privatized(program, equation, target, reorder) for equation in program.equations)
    return tuple(plan for plan in found if plan is not None)


def _privatized(program: ir.Program, equation: ir.Equation, target: Target, reorder: bool) -> Privatized | None:
    reducer, shape = equation.reducer, program.tensor(equation.tensor).shape
    scatters = any(isinstance(subscript, ir.DataIndex) for subscript in equation.subscripts)
    if not scatters or shape is None or not all(extent.is_constant for extent in shape):
        return None
    assert reducer is not None, "only accumulations scatter"
    if reducer.dtype.is_float and not reorder:
        return None
    if depends_on(program, (read.tensor for read in equation.reads()), equation.tensor):
        return None  # the steps of a recurrence run one after the other
    size = {a.name: length(a) or 0 for a in equation.all_axes}
    plain = [a for a in equation.reduce_axes if a.lower == (Affine(0),) and len(a.upper) == 1]
    elements, updates = prod(extent.constant for extent in shape), prod(size.values())
    if not plain or not elements or not updates:
        return None
    longest = max(plain, key=lambda a: size[a.name])
    extent, units = size[longest.name], prod(size[a.name] for a in equation.axes)
    if (gpu := target.gpu) is not None:
        parts = _parts_on_gpu(gpu, updates, units, elements * reducer.dtype.itemsize, extent)
        reason = f"whole it keeps {units} of the GPU's threads busy"
    else:
        parts = _parts_on_cores(equation.tensor, updates, units, elements, extent)
        reason = "no two of its terms may be added at once"
    if parts == 1:
        return None
    terms = -(-extent // parts)
    used = parts if gpu is not None else -(-extent // terms)  # warps begin where lines of memory do
    return Privatized(equation.name, longest.name, used, terms, gpu is not None, reason)


def _parts_on_cores(tensor: str, updates: int, units: int, elements: int, extent: int) -> int:
    """How many copies the threads of a processor fill.

    units:    results that the loops around the scattered axes tell apart, which threads can share
    elements: of a copy
    extent:   of the axis that is shared out
    """
    worth = updates >= LEAST_UPDATES and units < max(CORE_PARTS)
    fitting = (n for n in CORE_PARTS if n <= extent and n * elements * UPDATES_PER_COPY <= updates)
    best = next(fitting, 1) if worth else 1
    others = [n for n in (1, 4, 16) if n != best and n <= extent]
    return picks.choose(f"copies of {tensor}", best, lambda: [best, *others])


def _parts_on_gpu(gpu: GpuTarget, updates: int, units: int, copy_bytes: int, extent: int) -> int:
    """How many copies as many threads of a GPU fill; `copy_bytes` are of one."""

    def time(parts: int) -> float:
        steps = updates / min(units * parts, gpu.threads)
        copies = 2 * LAUNCH_BYTES + COPY_MOVES * parts * copy_bytes if parts > 1 else 0
        return max(steps * STEP_BYTES, updates * UPDATE_BYTES) + copies

    most = min(extent, MOST_COPY_BYTES // copy_bytes)
    parts = min((1 << n for n in range(most.bit_length())), key=time, default=1)
    return parts if time(1) >= WORTH * time(parts) else 1


def apply(program: ir.Program, plan: Sequence[Privatized]) -> ir.Program:
    """The program with these sums shared out; new tensors hold the copies, one after the other."""
    tensors, equations = list(program.tensors), list(program.equations)
    taken = {t.name for t in tensors} | {e.name for e in equations} | set(program.sizes)
    taken |= {a.name for equation in equations for a in equation.bound_axes}
    for one in plan:
        position, whole = next((n, e) for n, e in enumerate(equations) if e.name == one.equation)
        copies, *shared = _shared_out(whole, program.tensor(whole.tensor), one, taken)
        tensors.append(copies)
        equations[position : position + 1] = shared
    return replace(program, tensors=tuple(tensors), equations=tuple(equations))


def _shared_out(
    equation: ir.Equation, tensor: ir.Tensor, one: Privatized, taken: set[str]
) -> tuple[ir.Tensor, ir.Equation, ir.Equation]:
    """The copies, what fills them, and what adds them up. New names are added to those that are taken."""
    assert equation.reducer is not None, "only accumulations scatter"
    assert tensor.shape is not None, "shapes are resolved"

    def new(wanted: str) -> str:
        name = unused(wanted, taken)
        taken.add(name)
        return name

    name, part = new(f"{tensor.name}_partial"), new(f"{one.axis}_part")
    places = [new(f"d{dimension}") for dimension in range(tensor.rank)]
    at = {one.axis: one.point(part)}
    (shared,) = (a for a in equation.reduce_axes if a.name == one.axis)
    shares = ir.Axis(part, (Affine(0),), (constant(one.parts),))
    points = ir.Axis(one.axis, (Affine(0),), (constant(one.terms),))
    is_whole = shared.upper[0] == constant(one.parts * one.terms)
    is_point = None if is_whole else Compare(at[one.axis] - shared.upper[0], "<")
    filling = replace(
        equation,
        name=name,
        tensor=name,
        axes=(shares, *equation.axes),
        reduce_axes=tuple(points if a is shared else a for a in equation.reduce_axes),
        subscripts=(axis(part), *(_moved(equation, dimension, at) for dimension in range(tensor.rank))),
        value=at_axes(equation.value, at),
        guard=conjunction(map_condition(equation.guard, lambda affine: placed(affine, at)), is_point),
    )
    subscripts = tuple(map(axis, places))
    dtype = equation.reducer.dtype
    whole = replace(
        equation,
        axes=tuple(ir.Axis(a, (Affine(0),), (extent,)) for a, extent in zip(places, tensor.shape, strict=True)),
        reduce_axes=(shares,),
        subscripts=subscripts,
        value=ir.Read(name, (axis(part), *subscripts), dtype, span=equation.span),
        guard=TRUE,
    )
    shape = (constant(one.parts), *tensor.shape)
    return ir.Tensor(name, dtype, shape, "local", len(shape), tensor.span), filling, whole


def _moved(equation: ir.Equation, dimension: int, at: dict[str, Affine]) -> ir.Subscript:
    """A subscript of the left side, in the copy, whose errors still name the user's tensor and dimension."""
    subscript = equation.subscripts[dimension]
    if isinstance(subscript, Affine):
        return placed(subscript, at)
    return ir.DataIndex(at_axes(subscript.value, at), subscript.place or (equation.tensor, dimension))
