"""Which loops run on several threads.

The outermost coincident loop of each nest is parallel if the time of what is under it repays waking the threads. It
is handed out in few chunks of about equal time: enough to balance the threads, each long beside what a claim costs.
Chunks depend on the trip count alone, never on the number of threads. Where a call's sizes say how many iterations a
loop has, there may be enough of them: a chunk has so many that two of them repay the threads, and one wakes nobody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import assert_never

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.codegen_c import ahead, streams, work
from polyopt.codegen_c.ahead import Ahead
from polyopt.codegen_c.streams import Stream
from polyopt.dsl.affine import Affine, AxisRef, FloorDiv
from polyopt.poly.scop import Scop
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree, children_of
from polyopt.target import Target
from polyopt.tiling.extents import Extents
from polyopt.tiling.steps import Steps

CHUNKS_WORTH_WAKING = 4
"""Chunks of a loop that is just worth the threads. A claim costs 50 ns where others claim too, a chunk is 2 us."""

MOST_CHUNKS = 256
"""More balance no better, and only cost."""

DISPATCHES = 16
"""Parallel regions, with nothing to do, in the time of work that repays one: where that was measured."""


@dataclass(frozen=True, slots=True)
class ParallelLoop:
    """A loop given to the threads. chunk: iterations claimed at once; ns: of one execution on one core, estimated."""

    name: str
    chunk: int
    ns: int

    def __str__(self) -> str:
        return f"{self.name}: parallel, {self.chunk} iterations a chunk, about {_microseconds(self.ns)}"


@dataclass(frozen=True, slots=True)
class ShortLoop:
    """A loop that could be parallel, and takes about `ns` where threads repay `least_ns`."""

    name: str
    ns: int
    least_ns: int

    def __str__(self) -> str:
        takes, least = _microseconds(self.ns), _microseconds(self.least_ns)
        return f"{self.name}: could be parallel, too little work: about {takes}, threads repay {least}"


def _microseconds(ns: int) -> str:
    return f"{ns / 1000:.3g} us"


@dataclass(frozen=True, slots=True)
class CpuMapping:
    """The parallel loops of a kernel, the loops kept serial because they are too short, the results that are stored
    past the caches, and the operands that are asked for ahead."""

    parallel: tuple[ParallelLoop, ...]
    too_short: tuple[ShortLoop, ...]
    streams: tuple[Stream, ...] = ()
    ahead: tuple[Ahead, ...] = ()

    def __str__(self) -> str:
        loops = [*map(str, (*self.parallel, *self.too_short))] or ["no parallel loop"]
        return "\n".join([*loops, *map(str, self.streams), *map(str, self.ahead)])


def decide(
    scop: Scop, tree: Tree, target: Target, layouts: Mapping[str, tuple[int, ...] | None] | None = None
) -> CpuMapping:
    """Chooses the parallel loops of a tiled tree. layouts: byte strides of arguments that are not C-contiguous"""
    extents, waking_ns = Extents(scop), _waking_ns(target)
    steps = Steps({array.name: array for array in scop.arrays}, layouts or {})
    parallel: list[ParallelLoop] = []
    too_short: list[ShortLoop] = []
    shared: set[str] = set()
    for loop, outside in _candidates(tree, extents, {}):
        ns = work.nanoseconds(scop, loop, extents, target, outside)
        least_ns = waking_ns + round(
            2 * work.handed_ns(scop, loop, target, shared)
        )  # two threads halve the time, not this
        is_open = _is_open(loop, extents)
        if _is_worth_threads(loop, is_open or ns >= least_ns):
            worth = ns / (least_ns if is_open else waking_ns)
            chunk = _open_chunk(loop, extents, worth) if is_open else _chunk(_iterations(loop, extents), worth)
            parallel.append(ParallelLoop(loop.name, chunk, round(ns)))
            shared |= {scop.statement(name).array for name in loop.statements}
        else:
            too_short.append(ShortLoop(loop.name, round(ns), least_ns))
    passing = streams.decide(scop, tree, extents, target)
    asked = ahead.decide(scop, tree, steps, extents, target)
    return CpuMapping(tuple(parallel), tuple(too_short), passing, asked)


def _is_worth_threads(loop: Loop, enough: bool) -> bool:
    return picks.choose(f"threads for {loop.name}", enough, lambda: (enough, not enough))


def _waking_ns(target: Target) -> int:
    """The least work that repays waking the threads."""
    measured = 0.0 if target.rates is None else 1000 * target.rates.dispatch_us
    return max(target.parallel_ns, round(DISPATCHES * measured), 1)


def _chunk(iterations: int, worth: float) -> int:
    """Iterations of a chunk: a power of two of chunks, as even as they can be, or one for each iteration if few.

    worth: the time of all of them over the time that repays waking the threads
    """
    fitting = max(1.0, CHUNKS_WORTH_WAKING * worth)
    chunks = min(MOST_CHUNKS, 1 << (int(fitting).bit_length() - 1))
    return 1 if iterations <= 2 * chunks else -(-iterations // chunks)


def _open_chunk(loop: Loop, extents: Extents, worth: float) -> int:
    """As many iterations as a chunk of a loop has that is just worth the threads. worth: as for `_chunk`"""
    iterations = max(_part(name, row, extents) for name, row in loop.rows)
    return max(1, round(iterations / (CHUNKS_WORTH_WAKING * worth))) if worth > 0 else 1


def _part(statement: str, row: Affine, extents: Extents) -> float:
    """Iterations of a loop for a statement: less than one where an axis is taken to be shorter than a tile."""
    match row.terms:
        case ((AxisRef(name), 1 | -1),):
            return extents.gained(statement, name)
        case ((FloorDiv(numerator, divisor), _),):
            return extents.row(statement, numerator) / divisor
        case _:
            return extents.row(statement, row)


def apply(tree: Tree, mapping: CpuMapping) -> Tree:
    """Marks the parallel loops."""
    chunks = {loop.name: loop.chunk for loop in mapping.parallel}
    match tree:
        case Leaf():
            return tree
        case Sequence(children):
            return Sequence(tuple(apply(child, mapping) for child in children))
        case Loop(name=name) if name in chunks:
            return replace(tree, kind="parallel", chunk=chunks[name])
        case Loop():
            return replace(tree, body=apply(tree.body, mapping))
        case _:
            assert_never(tree)


def _iterations(loop: Loop, extents: Extents) -> int:
    """The most iterations that a loop has for any statement. A batch of one is no work to share."""
    return max(extents.row(name, row) for name, row in loop.rows)


def _is_open(loop: Loop, extents: Extents) -> bool:
    """Whether a call's sizes say how many iterations a loop has."""
    return any(extents.is_open(name, row) for name, row in loop.rows)


def _may_have_several(loop: Loop, extents: Extents) -> bool:
    return _is_open(loop, extents) or _iterations(loop, extents) > 1


def _holds_parallel(loop: Loop) -> bool:
    """Whether a loop directly inside could be parallel in its place."""
    inside = [child for child in children_of(loop.body) if isinstance(child, Loop)]
    return any(child.coincident and child.kind == "serial" for child in inside)


def _candidates(tree: Tree, extents: Extents, outside: dict[str, int]) -> Iterator[tuple[Loop, dict[str, int]]]:
    """The outermost coincident loops, with the trip counts of the loops around them, by statement."""
    match tree:
        case Leaf():
            return
        case Sequence(children):
            for child in children:
                yield from _candidates(child, extents, outside)
        case Loop(coincident=True, kind="serial") if _may_have_several(tree, extents) or not _holds_parallel(tree):
            yield tree, outside
        case Loop():
            spent = {name: outside.get(name, 1) * extents.row(name, tree.row(name)) for name in tree.statements}
            yield from _candidates(tree.body, extents, {**outside, **spent})
        case _:
            assert_never(tree)
