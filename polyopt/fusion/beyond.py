"""Products with zeros beyond the edges of an image are added up once, and no sum takes them again.

Of the products of a padded convolution of images of 7 x 7, one in ten is of a row above or below the image: zeros times
filters. They cannot be left out, since a filter that is infinite or NaN makes NaN of a zero; but what they add up to
does not depend on the image. `zeros[o, r] = sum(0 * f[o, c, r, s])` is 0 or NaN, and a sum starts from those of the
rows of its window that lie beyond an edge, `start[h, o]`, and goes over the rows inside alone.

Exact: a zero more or less in a sum that starts at zero changes nothing, and NaN stays NaN. Rows of a tile of registers
end all at once: along them only where a tile takes a whole row of the result, so that each step of a window is written
out with the rows that it has (`loops/tiles.py`). Where no zeros are left to take, the image is read as it lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from math import gcd

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, Compare, Condition, Or, axes_of, axis, conjunction, constant
from polyopt.dsl.ir import Const
from polyopt.fusion.axes import length
from polyopt.fusion.windows import Window
from polyopt.names import unused
from polyopt.poly.intervals import is_within
from polyopt.target import Target

LEAST_SAVED = 8
"""Products that an element of the filters is spared, for it to be read once more."""

MOST_STEPS = 8
"""Of a window along a row, each written out with the places that it has: no more than `loops.tiles` writes out."""

LANES = 16
"""Windows of a filter whose zeros are summed side by side, at most: enough for whole vectors of them."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What stands for a sum: its equations in order, the tensors that these need, and a sentence."""

    equations: tuple[ir.Equation, ...]
    tensors: tuple[ir.Tensor, ...] = ()
    notes: tuple[str, ...] = ()


def share(program: ir.Program, window: Window, target: Target) -> float:
    """The share of all products that lie beyond an edge and need not be taken for each place."""
    found = _share(program, window, target)
    return found if _is_worth_it(window, found) else 0.0


def take_out(program: ir.Program, window: Window, taken: set[str], target: Target) -> Parts:
    """The sum, and before it what its products beyond the edges add up to, where that is worth it.

    taken: names; gains more
    """
    found = _share(program, window, target)
    question = f"zeros of {window.equation.name} apart"
    if not found or not picks.agreed(question, _is_worth_it(window, found)):
        return Parts((window.equation,))
    return _Apart(program, window, taken, _cuts(program, window, target), found).parts()


def _share(program: ir.Program, window: Window, target: Target) -> float:
    inside = 1.0
    for subscript, extent in _cuts(program, window, target).items():
        inside *= _points_inside(subscript, extent, window) / window.points(axes_of(subscript))
    return 1 - inside


def _is_worth_it(window: Window, share: float) -> bool:
    return share * window.points({*window.result} - {*window.free}) >= LEAST_SAVED


def _cuts(program: ir.Program, window: Window, target: Target) -> dict[Affine, Affine]:
    """The subscripts of the image that leave it, and the least extent that each leaves, where zeros are beyond: each of
    an axis of the result and one of the sum."""
    image, shape = window.image, program.tensor(window.image.tensor).shape
    if not isinstance(image.boundary, ir.Pad) or image.boundary.value != Const(0.0, image.dtype) or shape is None:
        return {}
    found: dict[Affine, Affine] = {}
    for subscript, extent in zip(image.subscripts, shape, strict=True):
        if not isinstance(subscript, Affine) or not extent.is_constant:
            continue
        names = axes_of(subscript)
        steps, places = names & {*window.summed}, names & {*window.result}
        is_window = len(steps) == 1 == len(places) and len(names) == 2 and not names & {*window.free}
        is_window = is_window and all(length(window.axes[name]) for name in names)
        if not is_window or is_within(subscript, extent, window.axes):
            continue
        (step,), (place,) = steps, places
        along = _along_rows(window, step, target) if place == window.rows else not _is_in_tile(window, place, target)
        if along:
            known = found.get(subscript, extent)
            found[subscript] = min(known, extent, key=lambda one: one.constant)
    return found


def _along_rows(window: Window, step: str, target: Target) -> bool:
    """Whether a tile of registers holds a whole row of the result, and each step of the window is written out with the
    places that it has: nothing but the row may end with it."""
    moved = sum(step in axes_of(s) for s in window.image.subscripts if isinstance(s, Affine))
    return window.points((window.rows,)) <= _tile(target) and moved == 1 and window.points((step,)) <= MOST_STEPS


def _is_in_tile(window: Window, place: str, target: Target) -> bool:
    """Whether a tile takes its rows along another axis than `window.rows`: where that one fills less than half."""
    return 2 * window.points((window.rows,)) < _tile(target) < window.points((place,))


def _tile(target: Target) -> int:
    """How many rows of two vectors registers hold, besides what goes into them."""
    return (target.vector_registers - 3) // 2


def _points_inside(subscript: Affine, extent: Affine, window: Window) -> int:
    """How many points of its two axes keep a subscript inside its dimension."""
    steps = [(step, window.points((atom.name,))) for atom, step in subscript.terms if isinstance(atom, AxisRef)]
    (step, count), (other, points) = sorted(steps, key=lambda one: one[1])
    return sum(_inside_along(subscript.constant + step * n, other, points, extent.constant) for n in range(count))


def _inside_along(first: int, step: int, points: int, extent: int) -> int:
    """How many of the numbers `first, first + step, ..` lie in an extent."""
    if step < 0:
        first, step = first + step * (points - 1), -step
    below, inside = (min(max(-(-(bound - first) // step), 0), points) for bound in (0, extent))
    return inside - below


@dataclass(frozen=True, slots=True)
class _Zeros:
    """What products of zeros and filters add up to, for each filter and step of the window.

    equations: in order; the last one defines it, and its axes are those of the filters and of the steps
    steps:     axes of the window
    """

    equations: tuple[ir.Equation, ...]
    steps: tuple[ir.Axis, ...]

    @property
    def read(self) -> ir.Read:
        *_, last = self.equations
        return ir.Read(last.tensor, last.subscripts, last.value.dtype, span=last.span)


@dataclass(slots=True)
class _Apart:
    """One sum under construction.

    cuts:  extents, by subscripts of the image that leave them
    share: of all products, that are of zeros beyond them
    """

    program: ir.Program
    window: Window
    taken: set[str]
    cuts: Mapping[Affine, Affine]
    share: float
    tensors: list[ir.Tensor] = field(default_factory=list)

    def parts(self) -> Parts:
        window, equation = self.window, self.window.equation
        zeros = self.flat_zeros() if window.is_flat else self.plain_zeros()
        start = self.start(zeros)
        first = replace(
            equation,
            name=self.name(f"{equation.name}_first"),
            value=ir.Read(start.tensor, start.subscripts, equation.value.dtype, span=equation.span),
            reducer=None,
            reduce_axes=(),
        )
        inside = conjunction(*(_inside(*cut) for cut in self.cuts.items()))
        rest = replace(equation, guard=inside, value=ir.rebuild(equation.value, self.plain))
        note = (
            f"{self.share:.0%} of the products of {equation.tensor} are of zeros beyond edges along "
            f"{', '.join(self.cut)}: added up once, in {zeros.read.tensor}, for filters that are not finite"
        )
        return Parts((*zeros.equations, start, first, rest), tuple(self.tensors), (note,))

    def plain(self, operand: ir.Expr) -> ir.Expr:
        """An operand of the sum; the image without its zeros, where no window that is left takes any."""
        window, shape = self.window, self.program.tensor(self.window.image.tensor).shape
        if operand != window.image or shape is None:
            return operand
        places = zip(window.image.subscripts, shape, strict=True)
        takes_none = all(self.is_inside(subscript, extent) for subscript, extent in places)
        return replace(window.image, boundary=None) if takes_none else operand

    def is_inside(self, subscript: ir.Subscript, extent: Affine) -> bool:
        """Whether what is left of the windows stays in an extent."""
        if not isinstance(subscript, Affine):
            return False
        kept = self.cuts.get(subscript)
        is_kept = kept is not None and extent.is_constant and kept.constant <= extent.constant
        return is_kept or is_within(subscript, extent, self.window.axes)

    @property
    def cut(self) -> tuple[str, ...]:
        """The axes of the result along which windows leave the image."""
        return tuple(name for name in self.window.result if any(name in axes_of(s) for s in self.cuts))

    def plain_zeros(self) -> _Zeros:
        """Summed up for each filter and step of the window beyond an edge."""
        window, axes = self.window, self.window.axes
        steps = [name for name in window.summed if any(name in axes_of(s) for s in self.cuts)]
        where = tuple(axes[name] for name in (*steps, *window.free))
        summed = tuple(axes[name] for name in window.summed if name not in steps)
        return _Zeros((self.define(where, self.times_zero(window.filters), summed),), tuple(axes[n] for n in steps))

    def flat_zeros(self) -> _Zeros:
        """The same of filters whose terms follow one another: what neighbouring windows make is summed side by side
        first, so that it is read in whole vectors."""
        window, axes = self.window, self.window.axes
        first = min(n for n, name in enumerate(window.summed) if any(name in axes_of(s) for s in self.cuts))
        outer, inner = window.points(window.summed[:first]), window.summed[first:]
        side = gcd(outer, LANES)
        row = side * window.points(inner)
        place, block, part = (self.axis(f"{inner[-1]}_{role}") for role in ("place", "block", "part"))
        *dimensions, _ = window.filters.subscripts
        read = replace(window.filters, subscripts=(*dimensions, axis(block) * row + axis(place)))
        free = tuple(axes[name] for name in window.free)
        wide = self.define((*free, _range(place, row)), self.times_zero(read), (_range(block, outer // side),))
        flat = axis(part)
        for name in inner:
            flat = flat * window.points((name,)) + axis(name)
        terms = ir.Read(wide.tensor, (*map(axis, window.free), flat), read.dtype, span=read.span)
        steps = tuple(axes[name] for name in inner)
        return _Zeros((wide, self.define((*free, *steps), terms, (_range(part, side),))), steps)

    @staticmethod
    def times_zero(read: ir.Read) -> ir.Expr:
        """0, or NaN where what is read is not finite."""
        return ir.Op[ir.Expr]("mul", (Const(0.0, read.dtype), read), read.dtype)

    def define(self, axes: tuple[ir.Axis, ...], value: ir.Expr, summed: tuple[ir.Axis, ...]) -> ir.Equation:
        """A tensor of zeros over some axes, which are summed up over others."""
        equation = self.window.equation
        name = self.local(f"{equation.tensor}_zeros", axes)
        reducer = equation.reducer if summed else None
        where = tuple(axis(a.name) for a in axes)
        return ir.Equation(name, name, axes, where, value, reducer=reducer, reduce_axes=summed, span=equation.span)

    def start(self, zeros: _Zeros) -> ir.Equation:
        """What a sum starts from: the zeros of the steps of its window that are beyond an edge."""
        window, equation = self.window, self.window.equation
        axes = tuple(window.axes[name] for name in (*self.cut, *window.free))
        name = self.local(f"{equation.tensor}_start", axes)
        return replace(
            equation,
            name=name,
            tensor=name,
            axes=axes,
            subscripts=tuple(axis(a.name) for a in axes),
            value=zeros.read,
            reduce_axes=zeros.steps,
            guard=Or(tuple(part for cut in self.cuts.items() for part in _outside(*cut))),
        )

    def local(self, wanted: str, axes: tuple[ir.Axis, ...]) -> str:
        """The name of a new temporary over some axes."""
        name = self.name(wanted)
        shape = tuple(a.upper[0] for a in axes)
        self.tensors.append(ir.Tensor(name, self.window.equation.value.dtype, shape, "local", len(shape)))
        return name

    def name(self, wanted: str) -> str:
        found = unused(wanted, self.taken)
        self.taken.add(found)
        return found

    def axis(self, wanted: str) -> str:
        """The name of a new axis."""
        return unused(wanted, {*self.window.axes, *self.program.sizes})


def _range(name: str, extent: int) -> ir.Axis:
    return ir.Axis(name, (constant(0),), (constant(extent),))


def _inside(subscript: Affine, extent: Affine) -> Condition:
    return conjunction(Compare(subscript, ">="), Compare(subscript - extent, "<"))


def _outside(subscript: Affine, extent: Affine) -> tuple[Condition, ...]:
    return Compare(subscript, "<"), Compare(subscript - extent, ">=")
