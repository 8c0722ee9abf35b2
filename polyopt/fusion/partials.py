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

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import field, replace
from math import prod

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, axes_of, axis, constant
from polyopt.fusion import short_sums
from polyopt.fusion.axes import at_axes, axes_in, length
from polyopt.fusion.short_sums import is_contraction, is_whole_sum
from polyopt.names import unused
from polyopt.target import Target

LEAST_TERMS = 256
"""Terms of a partial sum: beginning and ending it in registers takes a few per cent of that."""

WHOLE = 64
"""Terms come in multiples of so many, so that stretches begin where lines of the cache do, and groups of terms."""

LEAST_PARTS, MOST_PARTS = 4, 16
"""Partial sums: work for some threads, and little to add up."""

LEAST_TILES, TILE = 20, 24
"""Tiles of sums with lanes along the sum, and sums of a tile, that share out work as parts would."""

LEAST_REUSE = 8
"""Times that each element of an operand is used: below that a sum is as fast as its operands come from memory."""


@dataclass(frozen=True, slots=True)
class PartialSum:
    """One sum to be split.

    equation:  name of the equation
    axis:      the axis whose points are shared out
    parts:     into how many stretches; where a size says how many points there are, it says that
    terms:     points of a stretch; the last one may have fewer
    reason:    why it is worth it
    reduction: the reduction inside the equation's value; None for an accumulation, whose whole value it is
    kind:      of its reducer
    """

    equation: str
    axis: str
    parts: Affine
    terms: int
    reason: str
    reduction: ir.Reduce | None = None
    kind: str = "sum"

    def __str__(self) -> str:
        results = {"sum": "sums", "prod": "products", "max": "maxima", "min": "minima"}.get(self.kind, "results")
        return f"{self.equation}: {self.parts} partial {results} of {self.terms} terms along {self.axis}: {self.reason}"


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
    if longest.lower != (Affine(0),):
        return None
    most = min(MOST_PARTS, 1 << (max(size[longest.name] // LEAST_TERMS, 1).bit_length() - 1))
    results = prod(size[name] for name in free) * equation.reducer.dtype.itemsize
    read_bytes = sum(prod(size[n] for n in axes) * read.dtype.itemsize for read, axes in zip(reads, known, strict=True))
    worth = (
        most >= LEAST_PARTS
        and all(longest.name in axes for axes in known)
        and all(prod(size[n] for n in free - axes) >= LEAST_REUSE for axes in known)
        and 2 * read_bytes > target.l2_bytes
        and 4 * most * results <= target.l2_bytes
        and not _runs_together(reads, longest.name, size, free, target)
    )
    best = most if worth else 1
    counts = [best, *(n for n in (1, 2, 4, 8, 16) if n != best and n <= size[longest.name])]
    parts = picks.choose(f"parts of the sums of {equation.tensor}", best, lambda: counts)
    if parts == 1:
        return None
    whole = WHOLE if size[longest.name] >= WHOLE * parts else 1
    terms = -(-size[longest.name] // (parts * whole)) * whole
    reason = f"few results to share among threads, and {read_bytes} bytes of operands, more than stay near a core"
    reason = reason if worth else "a pick asks for them"
    return PartialSum(equation.name, longest.name, constant(-(-size[longest.name] // terms)), terms, reason)


def _runs_together(
    reads: Sequence[ir.Read], along: str, size: Mapping[str, int], free: Set[str], target: Target
) -> bool:
    """Whether tiles of the sums run together with lanes along them (`tiling.sums`), enough for threads, over rows of
    which the shorter operand's stay in the second cache."""
    known = [_axes(read) for read in reads]
    if any(read.subscripts[-1:] != (axis(along),) for read in reads):
        return False
    shorter = min(prod(size[n] for n in axes) * read.dtype.itemsize for read, axes in zip(reads, known, strict=True))
    return prod(size[n] for n in free) >= LEAST_TILES * TILE and 2 * shorter <= target.l2_bytes


def reductions(program: ir.Program, equation: ir.Equation) -> Iterator[tuple[ir.Reduce, ir.Reduce | None]]:
    """The reductions of an equation that may be split, and where each is in its value; None for an accumulation, which
    is all of it."""
    if any(len(a.upper) != 1 or a.lower != (Affine(0),) or length(a) == 0 for a in equation.axes):
        return
    if equation.reducer is not None:
        if is_whole_sum(program, equation):
            yield ir.Reduce(equation.reducer, equation.value, equation.reduce_axes, equation.reducer.dtype), None
    elif equation.guard == TRUE:
        for node in dict.fromkeys(_unconditional(equation.value)):
            yield node, node


def _unconditional(expr: ir.Expr) -> Iterator[ir.Reduce]:
    """The reductions in a value, but for those in branches, under guards and in sums of nothing, or of what may be
    nothing: there they may have nothing to read."""
    if isinstance(expr, ir.Where) or (isinstance(expr, ir.Reduce) and expr.guard != TRUE):
        return
    if isinstance(expr, ir.Reduce):
        lengths = [length(a) for a in expr.axes]
        if 0 in lengths:
            return
        yield expr
        if None in lengths:
            return
    for child in ir.children(expr):
        yield from _unconditional(child)


def apply(program: ir.Program, plan: Sequence[PartialSum]) -> ir.Program:
    """The program with these sums split, and the last ones written out."""
    program = split(program, plan, alike=True)
    names = {partial.equation for partial in plan}
    return short_sums.apply(program, [short for short in short_sums.decide(program) if short.equation in names])


def split(program: ir.Program, plan: Sequence[PartialSum], *, alike: bool = False) -> ir.Program:
    """The program with these reductions split; new tensors hold the partial results, one part after the other.

    alike: whether the same parts of one axis have one name, so that what reads the same may share their loop
    """
    splitter = _Splitter({t.name for t in program.tensors} | {e.name for e in program.equations} | set(program.sizes))
    splitter.parts = {} if alike else None
    splitter.taken |= {a.name for equation in program.equations for a in equation.bound_axes}
    equations = []
    for equation in program.equations:
        whole = splitter.equation(equation, [partial for partial in plan if partial.equation == equation.name])
        equations += [*splitter.filling, whole]
        splitter.filling = []
    return replace(program, tensors=(*program.tensors, *splitter.tensors), equations=tuple(equations))


@dataclass(slots=True)
class _Splitter:
    """Rewrites one equation after the other.

    taken:   names of tensors, equations and axes
    tensors: of partial results
    filling: the equations that compute them, for the equation at hand
    parts:   names of axes over parts that are alike, by axis, number and terms; None where each has its own
    """

    taken: set[str]
    parts: dict[tuple[str, Affine, int], str] | None = None
    tensors: list[ir.Tensor] = field(default_factory=list)
    filling: list[ir.Equation] = field(default_factory=list)

    def unused(self, wanted: str) -> str:
        name = unused(wanted, self.taken)
        self.taken.add(name)
        return name

    def part(self, partial: PartialSum) -> str:
        """The name of the axis over its parts."""
        wanted, alike = f"{partial.axis}_part", (partial.axis, partial.parts, partial.terms)
        if self.parts is None:
            return self.unused(wanted)
        if alike not in self.parts:
            self.parts[alike] = self.unused(wanted)
        return self.parts[alike]

    def equation(self, equation: ir.Equation, plan: Sequence[PartialSum]) -> ir.Equation:
        """The equation, which reads its partial results."""
        inside = {partial.reduction: partial for partial in plan}
        if None in inside:
            assert equation.reducer is not None, "an accumulation has a reducer"
            whole = ir.Reduce(equation.reducer, equation.value, equation.reduce_axes, equation.reducer.dtype)
            part, read = self.taken_out(equation, whole, inside[None], accumulates=True)
            return replace(equation, value=read, reduce_axes=(part,))

        done: dict[ir.Expr, ir.Expr] = {}  # what occurs twice is reduced once

        def visit(expr: ir.Expr) -> ir.Expr:
            if not isinstance(expr, ir.Reduce) or expr not in inside:
                return ir.rebuild(expr, visit)
            if expr not in done:
                whole = ir.rebuild(expr, visit)
                assert isinstance(whole, ir.Reduce), "a reduction stays one"
                part, read = self.taken_out(equation, whole, inside[expr], accumulates=False)
                done[expr] = replace(whole, body=read, axes=(part,))
            return done[expr]

        return replace(equation, value=visit(equation.value)) if plan else equation

    def taken_out(
        self, equation: ir.Equation, whole: ir.Reduce, partial: PartialSum, *, accumulates: bool
    ) -> tuple[ir.Axis, ir.Read]:
        """What is left to reduce: the axis over the parts, and the read of a partial result.

        accumulates: whether partial results are written as an accumulation, as the whole was
        """
        name = self.unused(f"{equation.tensor}_partial")
        part = ir.Axis(self.part(partial), (Affine(0),), (partial.parts,))
        first = axis(part.name) * partial.terms
        (shared,) = (a for a in whole.axes if a.name == partial.axis)
        is_even = partial.parts.is_constant and length(shared) == partial.parts.constant * partial.terms
        rest = () if is_even else tuple(end - first for end in shared.upper)
        term = ir.Axis(partial.axis, (Affine(0),), (constant(partial.terms), *rest))
        own = (part, *(a for a in equation.axes if a.name in axes_in(whole)))
        places = tuple(axis(a.name) for a in own)
        is_point = partial.terms == 1 and len(whole.axes) > 1  # a loop of one step would part those around it
        body = at_axes(whole.body, {partial.axis: first if is_point else first + axis(partial.axis)})
        axes = tuple(term if a is shared else a for a in whole.axes if not (is_point and a is shared))
        filling = ir.Equation(name, name, own, places, body, span=equation.span)
        if accumulates:
            filling = replace(filling, reducer=whole.reducer, reduce_axes=axes)
        else:
            filling = replace(filling, value=replace(whole, body=body, axes=axes))
        self.filling.append(filling)
        shape = tuple(a.upper[0] for a in own)
        self.tensors.append(ir.Tensor(name, whole.dtype, shape, "local", len(own), equation.span))
        return part, ir.Read(name, places, whole.dtype, span=equation.span)


def _axes(read: ir.Read) -> frozenset[str]:
    return frozenset().union(*(axes_of(s) for s in read.subscripts if isinstance(s, Affine)))


def _is_affine(read: ir.Read) -> bool:
    return all(isinstance(s, Affine) for s in read.subscripts)
