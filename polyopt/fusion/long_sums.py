"""Long reductions with few results, shared out among a processor's threads.

The sum of all elements of an array has one result, and so one thread, which gets a part of what the memory could give
to all of them. Its partial results (see `partials`) are a thread's work each. How many there are depends on the sizes
and on the target alone, never on the number of threads: results repeat. Where a call's sizes say how many terms there
are, it is the terms of a part that are fixed.

A reduction stays whole where the program makes what it passes over: the two may share loops then, and the array is
near.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence, Set
from dataclasses import replace
from math import prod

from polyopt import picks
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, constant
from polyopt.fusion.axes import assumed_length, axes_in, is_range, length
from polyopt.fusion.partials import WHOLE, PartialSum, reductions
from polyopt.fusion.rewrite import cost, depends_on
from polyopt.fusion.short_sums import is_contraction
from polyopt.target import Target

NEAR_BYTES_PER_NS, FAR_BYTES_PER_NS = 50.0, 15.0
"""Read by one core from its own caches, and from beyond them."""

OPERATIONS_PER_NS = 4.0
"""Of one lane."""

STRIP = 512
"""Results in lanes that are reduced to by one loop: as many as rows are read in runs for."""

ENOUGH = 8
"""Loops that reduce, each to results of its own, and are work for the threads as they are."""

MOST_PARTS = 16
"""As many cores as the memory keeps busy."""

LEAST_TERMS = 16
"""Of a part."""


def decide(program: ir.Program, target: Target, taken: Collection[str] = ()) -> tuple[PartialSum, ...]:
    """The reductions worth it, in parts that are alike where they are of one axis: what reads the same stays one loop.

    taken: equations that are split already
    """
    found: list[tuple[PartialSum, ir.Axis]] = []
    for equation in program.equations:
        for whole, reduction in reductions(program, equation) if equation.name not in taken else ():
            partial = _partial(program, equation, whole, reduction, target)
            if partial is not None:
                found.append((partial, next(a for a in whole.axes if a.name == partial.axis)))
    finest: dict[ir.Axis, PartialSum] = {}
    for partial, cut in found:
        finest[cut] = min(finest.get(cut, partial), partial, key=lambda one: one.terms)
    return tuple(replace(p, parts=finest[cut].parts, terms=finest[cut].terms) for p, cut in found)


def _partial(
    program: ir.Program, equation: ir.Equation, whole: ir.Reduce, reduction: ir.Reduce | None, target: Target
) -> PartialSum | None:
    """The plan for one reduction."""
    axes = {a.name: a for a in (*equation.axes, *whole.axes)}
    own, reads = axes_in(whole), list(dict.fromkeys(ir.reads(whole.body)))
    if whole.reducer.name == "custom" or not own <= axes.keys() or not all(map(is_range, axes.values())):
        return None
    if any(length(axes[name]) is None for name in own):
        return None  # a size may make results as many as terms
    if depends_on(program, (read.tensor for read in reads), equation.tensor):
        return None
    known = [frozenset(axes_in(read)) & axes.keys() for read in reads]
    points = {name: assumed_length(a) for name, a in axes.items()}
    passing = [read for read, axes in zip(reads, known, strict=True) if axes - own]
    are_given = all(program.tensor(read.tensor).role == "input" for read in passing)
    if not passing or not are_given or is_contraction(known, frozenset(own)):
        return None
    if _loops(passing, own, points) >= ENOUGH:
        return None
    longest = max(whole.axes, key=lambda a: points[a.name])
    ns = _nanoseconds(whole, own, reads, points, target)
    parts = _parts(longest, points[longest.name], ns, target)
    question = f"parts of the long reduction of {equation.tensor} over {longest.name}"
    if parts is None or not picks.choose(question, True, lambda: (True, False)):
        return None
    count, terms = parts
    reason = f"few results, and {', '.join(dict.fromkeys(read.tensor for read in passing))} to pass over"
    return PartialSum(equation.name, longest.name, count, terms, reason, reduction, whole.reducer.name)


def _loops(reads: Sequence[ir.Read], own: Set[str], points: Mapping[str, int]) -> int:
    """How many loops reduce to results of their own. Neighbours in all that is passed over share one, in lanes."""
    beside = [name for name in own if all(_runs_along(read, name) for read in reads)]
    lanes = max((points[name] for name in beside), default=1)
    return prod(points[name] for name in own) // lanes * -(-lanes // STRIP)


def _runs_along(read: ir.Read, name: str) -> bool:
    last = read.subscripts[-1] if read.subscripts else None
    return isinstance(last, Affine) and abs(last.coefficient(AxisRef(name))) == 1


def _nanoseconds(
    whole: ir.Reduce, own: Set[str], reads: Sequence[ir.Read], points: Mapping[str, int], target: Target
) -> float:
    """Of a whole reduction to all results, on one core; what is open may be far."""
    size = 0
    for read in reads:
        size += prod(points[name] for name in axes_in(read) if name in points) * read.dtype.itemsize
    lanes = target.lanes(8 * max((read.dtype.itemsize for read in reads), default=1))
    terms = prod(points[name] for name in own) * prod(points[a.name] for a in whole.axes)
    is_near = size <= target.l2_bytes and all(length(a) is not None for a in whole.axes)
    rate = NEAR_BYTES_PER_NS if is_near else FAR_BYTES_PER_NS
    return max(size / rate, terms * (1 + cost(whole.body)) / lanes / OPERATIONS_PER_NS)


def _parts(cut: ir.Axis, extent: int, ns: float, target: Target) -> tuple[Affine, int] | None:
    """How many parts there are of an axis, and the terms of one: each is worth waking a thread. None for a single one.

    ns: of all terms
    """
    waking_ns = max(target.parallel_ns, 1)
    if length(cut) is None:
        terms = _power_of_two(max(LEAST_TERMS, waking_ns * extent / ns))
        return (cut.upper[0] + terms - 1) // terms, terms
    parts = _power_of_two(min(MOST_PARTS, ns / waking_ns, extent / LEAST_TERMS))
    if parts < 2:
        return None
    whole = WHOLE if extent >= WHOLE * parts else 1
    terms = -(-extent // (parts * whole)) * whole
    return constant(-(-extent // terms)), terms


def _power_of_two(number: float) -> int:
    """The greatest one that is not greater; 1 for what is less."""
    return 1 << max(int(number), 1).bit_length() - 1
