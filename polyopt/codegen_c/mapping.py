"""Which loops run on several threads.

The outermost coincident loop of each nest is parallel if the work under it repays waking the threads. Chunks
depend on the trip count alone, never on the number of threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import assert_never

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.poly.scop import Scop
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree, statements
from polyopt.target import Target
from polyopt.tiling.extents import Extents


@dataclass(frozen=True, slots=True)
class ParallelLoop:
    """A loop given to the threads. instances: statement instances under it, per execution."""

    name: str
    chunk: int
    instances: int

    def __str__(self) -> str:
        return f"{self.name}: parallel, {self.chunk} iterations a chunk, about {self.instances} instances"


@dataclass(frozen=True, slots=True)
class CpuMapping:
    """The parallel loops of a kernel, and the loops kept serial because they are too short."""

    parallel: tuple[ParallelLoop, ...]
    too_short: tuple[str, ...]

    def __str__(self) -> str:
        lines = [str(loop) for loop in self.parallel]
        lines += [f"{name}: could be parallel, too little work" for name in self.too_short]
        return "\n".join(lines) or "no parallel loop"


def decide(scop: Scop, tree: Tree, target: Target) -> CpuMapping:
    """Chooses the parallel loops of a tiled tree."""
    extents = Extents(scop)
    found = list(_candidates(tree, extents, {}))
    parallel = tuple(loop for loop in found if _is_worth_threads(loop, target))
    return CpuMapping(parallel, tuple(loop.name for loop in found if loop not in parallel))


def _is_worth_threads(loop: ParallelLoop, target: Target) -> bool:
    enough = loop.instances >= target.parallel_instances
    return picks.choose(f"threads for {loop.name}", enough, lambda: (enough, not enough))


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


def _holds_parallel(loop: Loop) -> bool:
    """Whether the one loop directly inside could be parallel in its place."""
    return isinstance(loop.body, Loop) and loop.body.coincident and loop.body.kind == "serial"


def _candidates(tree: Tree, extents: Extents, outside: dict[str, int]) -> Iterator[ParallelLoop]:
    """The outermost coincident loops; `outside`: trip counts already spent per statement."""
    match tree:
        case Leaf():
            return
        case Sequence(children):
            for child in children:
                yield from _candidates(child, extents, outside)
        case Loop(coincident=True, kind="serial") if _iterations(tree, extents) > 1 or not _holds_parallel(tree):
            inside = sum(extents.points(name) // max(outside.get(name, 1), 1) for name in statements(tree))
            yield ParallelLoop(tree.name, 1, inside)
        case Loop():
            spent = {name: outside.get(name, 1) * extents.row(name, tree.row(name)) for name in tree.statements}
            yield from _candidates(tree.body, extents, {**outside, **spent})
        case _:
            assert_never(tree)
