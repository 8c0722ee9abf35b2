"""Sums over windows of short rows run with lanes along the filters, into a result that is turned.

A convolution `y[o, h, w] += x[c, h + r, w + s] * f[o, c, r, s]` of images of 14 x 14 has rows of 14 for lanes of 16,
and each vector of an image lies across two lines of the cache. Along `o` all lanes are full, whatever the image: a tile
of registers takes 14 places of a row times 32 filters, broadcasts the image as it lies, and reads filters that are
packed once. So the sum is made as `y_turned[h, w, o]`, which is copied to where it belongs; and the dimensions of the
filters that are summed over are seen as one, so that the packing turns blocks of them in registers.

Exact but for the order of the sum. Worth it where turning the filters and the result costs less than columns of the
windows (`columns`), or than the lanes that short rows leave empty.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import field, replace

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import axis, constant
from polyopt.fusion import beyond
from polyopt.fusion.axes import length, plain_axes
from polyopt.fusion.windows import Window, known, window_of
from polyopt.microkernel import speed
from polyopt.names import unused
from polyopt.target import Target

TURN, TURN_APART = 0.5, 2.0
"""Cycles to copy an element of the filters to where lanes read it: a block of them turned in registers, and one by one
(Zen 4: 0.31 ms for 512 x 4608 elements)."""

LEAST_REUSE = 32
"""Results that read a filter's element, for packing it where its lanes lie apart: with fewer, lanes would gather."""

COPY = 5.0
"""Cycles that a vector of columns takes, with all that it keeps from the caches (Zen 4, 14 to 56 columns)."""

SCATTER = 1.0
"""Cycles to bring an element of the result to where it belongs."""


@dataclass(frozen=True, slots=True)
class Turned:
    """The program with lanes along filters, and a sentence for each sum."""

    program: ir.Program
    notes: tuple[str, ...] = ()


def turn(program: ir.Program, target: Target, *, strided: Collection[str]) -> Turned:
    """The program whose sums over windows have lanes along their filters where that pays.

    strided: the arguments whose elements do not follow one another
    """
    turner = _Turner(program, target, frozenset(strided), {t.name for t in program.tensors})
    turner.taken |= {equation.name for equation in program.equations}
    for name in [equation.name for equation in program.equations]:
        window = window_of(turner.program, next(e for e in turner.program.equations if e.name == name))
        if window is not None and turner.pays(window):
            turner.apply(window)
    return Turned(turner.program, tuple(turner.notes))


@dataclass(slots=True)
class _Turner:
    """Rewrites one sum of the program after the other."""

    program: ir.Program
    target: Target
    strided: frozenset[str]
    taken: set[str]
    notes: list[str] = field(default_factory=list)

    def pays(self, window: Window) -> bool:
        """Whether lanes along the filters take fewer cycles, two multiply-adds in each, than lanes along rows."""
        width = self.target.lanes(window.equation.value.dtype.bits)
        points, run = window.points(window.axes), window.points((window.rows,))
        turned = points * (1 - beyond.share(self.program, window, self.target))
        others = [own for own in window.result if own not in window.free]
        turned /= 2 * width * max(self.speed(window, own, (window.lanes,)) for own in others)
        turned += (TURN if self.flattens(window) else TURN_APART) * window.points((*window.free, *window.summed))
        turned += SCATTER * window.points(window.result)
        straight = points / (2 * width * self.speed(window, window.lanes, (window.rows,)))
        if window.result[-2:-1] and window.result[-2] in known(window.image):  # then there are columns
            full = points / (2 * width * self.speed(window, window.lanes, window.result[-2:]))
            copied = window.points(known(window.image)) / run * -(-run // width)
            straight = min(straight, full + COPY * copied)
        reads = window.points({*window.result} - {*window.free})
        is_packed = window.filters.subscripts[-1] == axis(window.lanes) or reads >= LEAST_REUSE
        better = turned < straight and window.points((window.lanes,)) >= width and is_packed
        return picks.agreed(f"lanes of {window.equation.name} along {window.lanes}", better)

    def speed(self, window: Window, rows: str, along: tuple[str, ...]) -> float:
        """The share of the processor's multiply-adds that tiles with these rows, and lanes along these axes, reach."""
        down, run, depth = (window.points(names) for names in ((rows,), along, window.summed))
        return speed(down, run, depth, window.equation.value.dtype.bits, self.target)

    def flattens(self, window: Window) -> bool:
        """Whether the filters may be seen with one dimension for all that is summed over, which is the last one."""
        name, depth = window.filters.tensor, len(window.summed)
        tensor = self.program.tensor(name)
        reads = [read for equation in self.program.equations for read in equation.reads() if read.tensor == name]
        if tensor.role != "input" or name in self.strided or len(reads) > 1 or depth < 2 or tensor.shape is None:
            return False
        if not all(length(window.axes[own]) for own in window.summed):
            return False
        extents = tuple(constant(window.points((own,))) for own in window.summed)
        is_last = window.filters.subscripts[-depth:] == tuple(map(axis, window.summed))
        return is_last and tensor.shape[-depth:] == extents  # an axis may have been given a shorter range

    def apply(self, window: Window) -> None:
        name = window.equation.name
        if self.flattens(window):
            window = self.flattened(window)
        order = (*(own for own in window.result if own != window.lanes), window.lanes)
        target, copies = self.reordered(window, order) or self.separate(window, order)
        axes = tuple(window.axes[own] for own in order)
        equation = replace(window.equation, tensor=target, axes=axes, subscripts=tuple(map(axis, order)))
        parts = beyond.take_out(self.program, replace(window, equation=equation), self.taken, self.target)
        equations = [*self.program.equations]
        at = [e.name for e in equations].index(name)
        equations[at : at + 1] = [*parts.equations, *copies]
        tensors = (*self.program.tensors, *parts.tensors)
        self.program = replace(self.program, tensors=tensors, equations=tuple(equations))
        self.notes.append(
            f"{window.equation.tensor} is summed with lanes along {window.lanes}, of {window.points((window.lanes,))} "
            f"points, where {window.rows} has {window.points((window.rows,))}"
        )
        self.notes += parts.notes

    def flattened(self, window: Window) -> Window:
        """The window of filters whose summed dimensions are one."""
        name, free = window.filters.tensor, len(window.filters.subscripts) - len(window.summed)
        flat = constant(0)
        for own in window.summed:
            flat = flat * window.points((own,)) + axis(own)

        def one(tensor: ir.Tensor) -> ir.Tensor:
            if tensor.name != name or tensor.shape is None:
                return tensor
            shape = (*tensor.shape[:free], constant(window.points(window.summed)))
            return replace(tensor, shape=shape, rank=len(shape))

        self.program = replace(self.program, tensors=tuple(map(one, self.program.tensors)))
        read = replace(window.filters, subscripts=(*window.filters.subscripts[:free], flat))
        value = ir.rebuild(window.equation.value, lambda arg: read if arg == window.filters else arg)
        return replace(window, equation=replace(window.equation, value=value), filters=read)

    def reordered(self, window: Window, order: tuple[str, ...]) -> tuple[str, tuple[ir.Equation, ...]] | None:
        """The tensor that is summed into, with its dimensions in another order in the whole program; None where it is
        given to the caller, or others read it otherwise than place by place."""
        name, places = window.equation.tensor, [window.result.index(own) for own in order]
        reads = [read for equation in self.program.equations for read in equation.reads() if read.tensor == name]
        if self.program.tensor(name).role != "local" or any(plain_axes(read) is None for read in reads):
            return None

        def moved(expr: ir.Expr) -> ir.Expr:
            expr = ir.rebuild(expr, moved)
            if not isinstance(expr, ir.Read) or expr.tensor != name:
                return expr
            return replace(expr, subscripts=tuple(expr.subscripts[place] for place in places))

        def one(tensor: ir.Tensor) -> ir.Tensor:
            shape = tensor.shape if tensor.name == name else None
            return tensor if shape is None else replace(tensor, shape=tuple(shape[place] for place in places))

        equations = tuple(
            replace(e, value=moved(e.value), subscripts=ir.map_data(e.subscripts, moved))
            for e in self.program.equations
        )
        self.program = replace(self.program, tensors=tuple(map(one, self.program.tensors)), equations=equations)
        return name, ()

    def separate(self, window: Window, order: tuple[str, ...]) -> tuple[str, tuple[ir.Equation, ...]]:
        """A new tensor to sum into, and the copy of that to the result."""
        equation, result = window.equation, self.program.tensor(window.equation.tensor)
        name = unused(f"{result.name}_turned", self.taken)
        self.taken.add(name)
        shape = tuple(window.axes[own].upper[0] for own in order)
        tensor = ir.Tensor(name, result.dtype, shape, "local", len(shape), result.span)
        self.program = replace(self.program, tensors=(*self.program.tensors, tensor))
        read = ir.Read(name, tuple(map(axis, order)), result.dtype, span=equation.span)
        copied = unused(f"{equation.name}_copy", self.taken)
        self.taken.add(copied)
        return name, (replace(equation, name=copied, value=read, reducer=None, reduce_axes=()),)
