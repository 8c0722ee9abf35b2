"""Long reductions with few results, on a GPU: as many parts as keep it busy.

A block computes one result, or a tile of a contraction's. The sum of all elements of an array has a single result, and
so one multiprocessor of a hundred; so have products of matrices with few rows and columns and long sums (cuBLAS's and
CUTLASS's "split-K"), and norms of a few long rows. Their partial results (see `partials`) are computed by a block each,
and a kernel more reduces those. How many there are depends on the sizes and on the target alone, never on a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, constant
from polyopt.fusion.axes import axes_in, length
from polyopt.fusion.partials import PartialSum, reductions
from polyopt.fusion.rewrite import cost, depends_on
from polyopt.fusion.short_sums import is_contraction
from polyopt.poly.scop import Scop
from polyopt.target import GPU_OPS_PER_BYTE, LAUNCH_BYTES, WARP, GpuTarget

TILE = 32
"""Rows, and columns, of the least tile of a contraction that a block computes."""

LEAST_TERMS = 256
"""Terms of a partial result of a contraction: its tile begins, and ends, in registers and shared memory."""

WORTH = 2.0
"""How many times as fast it has to be, by the reckoning of bytes."""

ROW_THREADS = 256
"""Threads of a block that reduces to one result, where there are many."""

ALIGNED = 64
"""Elements: parts that begin at multiples of it begin where lines of memory do."""


@dataclass(frozen=True, slots=True)
class _Work:
    """What one reduction asks of a GPU.

    axis:    of which each part has a stretch
    results: elements that are reduced to
    bytes:   of memory in the time that it takes, all multiprocessors together
    units:   what each part keeps busy of the GPU: blocks or threads
    alone:   the same where there is one part
    enough:  units that keep all of it busy
    least:   terms of a part
    """

    axis: str
    results: int
    bytes: float
    units: float
    alone: float
    enough: float
    least: int

    def busy(self, parts: int) -> float:
        """The share of the GPU that so many parts keep busy."""
        return min(1.0, (parts * self.units if parts > 1 else self.alone) / self.enough)

    def time(self, parts: int, item: int) -> float:
        """In bytes of memory. item: bytes of a result"""
        more = LAUNCH_BYTES + 2 * self.results * parts * item if parts > 1 else 0
        return self.bytes / self.busy(parts) + more


def decide(program: ir.Program, gpu: GpuTarget) -> tuple[PartialSum, ...]:
    """The reductions worth splitting. Static sizes only."""
    return tuple(
        found
        for equation in program.equations
        for whole, reduction in reductions(program, equation)
        for found in _partial(program, equation, whole, reduction, gpu)
    )


def _partial(
    program: ir.Program, equation: ir.Equation, whole: ir.Reduce, reduction: ir.Reduce | None, gpu: GpuTarget
) -> Iterator[PartialSum]:
    """The plan for one reduction, if it is worth it."""
    lengths = {a.name: length(a) for a in (*equation.axes, *whole.axes)}
    own = axes_in(whole)
    if whole.reducer.name == "custom" or not own <= {a.name for a in equation.axes} or not all(lengths.values()):
        return
    reads = list(dict.fromkeys(ir.reads(whole.body)))
    if depends_on(program, (read.tensor for read in reads), equation.tensor):
        return  # the steps of a recurrence run one after the other, each with kernels of its own
    size = {name: extent or 1 for name, extent in lengths.items()}
    summed = [a.name for a in whole.axes if a.lower == (Affine(0),) and len(a.upper) == 1]
    if not summed:
        return
    work, item = _work(whole, own, summed, reads, size, gpu), whole.dtype.itemsize
    extent = size[work.axis]
    choices = [1 << n for n in range(1, (extent // work.least).bit_length())]
    parts = min(choices, key=lambda parts: work.time(parts, item), default=1)
    if work.time(1, item) < WORTH * work.time(parts, item):
        return
    aligned = ALIGNED if extent >= ALIGNED * parts else 1
    terms = -(-extent // (parts * aligned)) * aligned
    reason = f"whole it keeps {100 * work.busy(1):.2g} % of the GPU busy"
    count = -(-extent // terms)
    yield PartialSum(equation.name, work.axis, constant(count), terms, reason, reduction, whole.reducer.name)


def _work(
    whole: ir.Reduce,
    own: set[str],
    summed: Sequence[str],
    reads: Sequence[ir.Read],
    size: dict[str, int],
    gpu: GpuTarget,
) -> _Work:
    """What a reduction asks for: threads share one of its axes, along memory where they can, and each takes all steps
    of the others; parts are of the axis along which that leaves a thread the most.

    summed: axes that can be cut
    """
    results, terms = prod(size[name] for name in own), prod(size[a.name] for a in whole.axes)
    longest = max(summed, key=lambda name: size[name])
    known = [frozenset(axes_in(read)) & size.keys() for read in reads]
    read_bytes = sum(prod(size[n] for n in axes) * read.dtype.itemsize for read, axes in zip(reads, known, strict=True))
    amount = max(float(read_bytes), results * terms * (1 + cost(whole.body)) / GPU_OPS_PER_BYTE)
    if is_contraction(known, frozenset(own)) and results >= TILE * TILE:
        tiles = results / (TILE * TILE)
        return _Work(longest, results, amount, tiles, tiles, gpu.sms, LEAST_TERMS)
    along = [a.name for a in whole.axes if any(_runs_along(read, a.name) for read in reads)]
    if own and not along:  # neighboring threads have results of their own
        return _Work(longest, results, amount, results * WARP, results * WARP, gpu.threads / 2, 1)
    shared = max(along or summed, key=lambda name: size[name])
    threads = min(size[shared], ROW_THREADS)
    split = max(summed, key=lambda name: size[name] // threads if name == shared else size[name])
    alone = min(size[shared], gpu.block_threads)
    return _Work(split, results, amount, results * threads, results * alone, gpu.threads / 2, 1)


def _runs_along(read: ir.Read, axis: str) -> bool:
    """Whether neighbors in memory are terms along an axis."""
    last = read.subscripts[-1] if read.subscripts else None
    return isinstance(last, Affine) and abs(last.coefficient(AxisRef(axis))) == 1


def rows(program: ir.Program, scop: Scop, tensors: Sequence[str]) -> dict[str, tuple[tuple[str, Affine], ...]]:
    """The loops that statements of partial results run in before all others, and nothing else does: over parts.

    tensors: that hold partial results
    Tensors with as many parts share the loop where as many partial results lie before the one as before the other: then
    neither depends on the other, and no two loops on one another.
    """
    loops: dict[tuple[tuple[Affine, ...], int], str] = {}
    result: dict[str, tuple[tuple[str, Affine], ...]] = {}
    for name, depth in _depths(program, tensors).items():
        (equation,) = program.definitions(name)
        part = equation.axes[0]
        loop = loops.setdefault((part.upper, depth), part.name)
        for statement in scop.statements:
            if statement.array == name:
                first = statement.subscripts[0]
                assert isinstance(first, Affine), "parts are numbered"
                result[statement.name] = ((loop, first),)
    return result


def _depths(program: ir.Program, tensors: Sequence[str]) -> dict[str, int]:
    """For each tensor, how many others lie before it on the longest path of dependences."""
    depths: dict[str, int] = {}

    def depth(name: str) -> int:
        if name not in depths:
            before = [other for other in tensors if other != name and depends_on(program, [name], other)]
            depths[name] = 1 + max(map(depth, before), default=-1)
        return depths[name]

    return {name: depth(name) for name in tensors}
