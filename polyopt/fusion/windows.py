"""Sums of products of an image, read through a window, and of filters: what a convolution is, by its subscripts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, AxisRef, axes_of
from polyopt.dtypes import f32, f64
from polyopt.fusion.axes import is_range, length, plain_axes
from polyopt.fusion.margins import is_whole
from polyopt.fusion.rewrite import depends_on
from polyopt.fusion.turned import as_accumulation

OPEN = 28
"""Points of an axis that sizes say: images get as short as that, and are summed as well either way if they are long."""


@dataclass(frozen=True, slots=True)
class Window:
    """One such sum.

    image, filters: the two operands
    result: its axes, one for each dimension of what is summed into
    free:   those of them that the filters know
    summed: the axes of the sum, as the dimensions of the filters have them
    lanes:  the last axis of `free` that the image does not know
    rows:   the axis of the last dimension, which the image knows and the filters do not
    """

    equation: ir.Equation
    image: ir.Read
    filters: ir.Read
    result: tuple[str, ...]
    free: tuple[str, ...]
    summed: tuple[str, ...]
    lanes: str
    rows: str

    @property
    def axes(self) -> Mapping[str, ir.Axis]:
        return {a.name: a for a in self.equation.all_axes}

    @property
    def is_flat(self) -> bool:
        """Whether the filters have one dimension for all that is summed over."""
        return len(self.filters.subscripts) < len(self.free) + len(self.summed)

    def points(self, names: Iterable[str]) -> int:
        """Points of some axes together."""
        found = (length(self.axes[name]) for name in names)
        return prod(OPEN if points is None else points for points in found)


def window_of(program: ir.Program, equation: ir.Equation) -> Window | None:
    """A definition or an accumulation as a sum over windows; None where it is none."""
    equation = as_accumulation(equation)
    value, reducer = equation.value, equation.reducer
    if reducer is None or reducer.name != "sum" or equation.guard != TRUE:
        return None
    if value.dtype not in (f32, f64) or value.dtype != program.tensor(equation.tensor).dtype:
        return None
    if not isinstance(value, ir.Op) or value.name != "mul" or len(program.definitions(equation.tensor)) != 1:
        return None
    if not all(map(is_range, equation.all_axes)):
        return None
    left, right = value.args
    result = plain_axes(ir.Read(equation.tensor, equation.subscripts, value.dtype))
    if not isinstance(left, ir.Read) or not isinstance(right, ir.Read) or not result:
        return None
    if depends_on(program, (left.tensor, right.tensor), equation.tensor) or not is_whole(program, equation.tensor):
        return None
    pairs = ((left, right), (right, left))
    return next((found for pair in pairs if (found := _seen_as(program, equation, result, *pair)) is not None), None)


def _seen_as(
    program: ir.Program, equation: ir.Equation, result: tuple[str, ...], image: ir.Read, filters: ir.Read
) -> Window | None:
    """The sum with its operands in these roles."""
    own, seen, rows = plain_axes(filters), known(image), result[-1]
    if own is None or image.tensor == filters.tensor or not is_window(image) or not is_whole(program, filters.tensor):
        return None
    several = {a.name for a in equation.all_axes if length(a) != 1}
    if not any(isinstance(s, Affine) and len(axes_of(s) & several) > 1 for s in image.subscripts):
        return None  # each step of a window of one element takes a new line of the cache
    free = tuple(name for name in result if name in own)
    summed = tuple(name for name in own if name not in result)
    lanes = [name for name in free if name not in seen]
    if not lanes or not summed or not {*summed} <= seen or rows not in seen or rows in own:
        return None
    if {*own, *seen} != {a.name for a in equation.all_axes}:
        return None
    return Window(equation, image, filters, result, free, summed, lanes[-1], rows)


def known(read: ir.Read) -> frozenset[str]:
    """The axes of a read; none where some subscript is data."""
    if not all(isinstance(s, Affine) for s in read.subscripts):
        return frozenset()
    return frozenset().union(*(axes_of(s) for s in read.subscripts if isinstance(s, Affine)))


def is_window(read: ir.Read) -> bool:
    """Whether some subscript moves with several axes, and each is a sum of axes."""
    affine = [s for s in read.subscripts if isinstance(s, Affine)]
    plain = all(isinstance(atom, AxisRef) for s in affine for atom, _ in s.terms)
    return plain and any(len(s.terms) > 1 for s in affine)
