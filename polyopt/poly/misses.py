"""Why a definition leaves out an element: the index whose range ends before it, and the read that ends the range."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, axes_of, axis, evaluate, holds
from polyopt.poly.contexts import ReadContext, element_text, read_contexts
from polyopt.poly.proof import Proof, element, place, values_at
from polyopt.poly.space import Point


@dataclass(frozen=True, slots=True)
class Miss:
    """One index of a definition that stops short of an element.

    text: its range and, where a read bounds it, that read with the element outside that it would be
    read: the tensor of that read; empty where there is none
    index: its name, where that read would not even happen: a range of its own would let it go on
    """

    text: str
    read: str = ""
    index: str = ""

    @property
    def remedy(self) -> str:
        """What lets the range go on; empty where no read ends it."""
        if self.index:
            return f"give {self.index} a range of its own (po.index({self.index!r}, extent=...)), "
        return f"say what lies outside ({self.read}.pad(0), .clamp() or .wrap()), " if self.read else ""


def misses(equation: ir.Equation, missing: Sequence[int], sizes: Mapping[str, int], proof: Proof) -> Iterator[Miss]:
    """The indices of a left side that would have to leave their ranges for the element `missing`."""
    values = _values_for(equation, missing)
    for index in equation.axes if values is not None else ():
        assert values is not None, "there are no indices otherwise"
        low = max(evaluate(bound, {}, sizes) for bound in index.lower)
        high = min(evaluate(bound, {}, sizes) for bound in index.upper)
        if index.name in values and not low <= values[index.name] < high:
            yield _miss(equation, index, Point(dict(sizes), values), proof)


def _values_for(equation: ir.Equation, missing: Sequence[int]) -> dict[str, int] | None:
    """What the indices of the left side are at an element; None where no value of them gives it."""
    values: dict[str, int] = {}
    for subscript, wanted in zip(equation.subscripts, missing, strict=True):
        if not isinstance(subscript, Affine) or len(subscript.terms) > 1:
            continue
        if not subscript.terms:
            if subscript.constant != wanted:
                return None
            continue
        (atom, coefficient), distance = subscript.terms[0], wanted - subscript.constant
        if not isinstance(atom, AxisRef):
            continue
        if distance % coefficient or values.setdefault(atom.name, distance // coefficient) != distance // coefficient:
            return None
    return values


def _miss(equation: ir.Equation, index: ir.Axis, point: Point, proof: Proof) -> Miss:
    name = index.name
    text = f"{element_text(equation.tensor, equation.subscripts)} is defined for {range_text(index)} alone"
    outside = sorted(_reads_outside(equation, name, point, proof), key=lambda found: not found[2])
    if not outside:
        return Miss(text)
    context, values, happens = outside[0]
    read = context.read
    would = f"would lie outside, at {element(read.tensor, values)}{place(read.span)}"
    text = f"{text}: at {name} = {point.axes[name]}, {element_text(read.tensor, read.subscripts)} {would}"
    if happens:
        return Miss(text, read.tensor)
    return Miss(f"{text}; that it is guarded there gives {name} no other range", index=name)


def _reads_outside(
    equation: ir.Equation, name: str, point: Point, proof: Proof
) -> Iterator[tuple[ReadContext, tuple[int | str, ...], bool]]:
    """The reads that bound the index, with an element outside for which it stands at the point, and whether a read
    would happen there."""
    for context in read_contexts(equation):
        read = context.read
        if read.boundary is not None or not any(name in _axes(subscript) for subscript in read.subscripts):
            continue
        for corner in _corners(context, point):
            if not _axes(*read.subscripts) <= corner.axes.keys():
                continue
            values = values_at(read.subscripts, corner)
            extents = values_at(proof.shape(read.tensor), corner)
            pairs = zip(read.subscripts, values, extents, strict=True)
            if any(name in _axes(s) and not 0 <= int(value) < int(extent) for s, value, extent in pairs):
                yield context, values, _happens(context, corner)


def _happens(context: ReadContext, point: Point) -> bool:
    try:
        return bool(holds(context.condition, point.axes, point.sizes))
    except KeyError:  # the condition is on an index without a value here
        return False


def _corners(context: ReadContext, point: Point) -> Iterator[Point]:
    """The point with the first and the last value of each further index around a read."""
    rest = [index for index in context.axes if index.name not in point.axes]
    ends = [
        (
            max(evaluate(bound, {}, point.sizes) for bound in index.lower),
            min(evaluate(bound, {}, point.sizes) for bound in index.upper) - 1,
        )
        for index in rest
    ]
    for values in product(*ends):
        yield Point(point.sizes, {**point.axes, **{index.name: value for index, value in zip(rest, values)}})


def _axes(*subscripts: ir.Subscript) -> set[str]:
    return {name for subscript in subscripts if isinstance(subscript, Affine) for name in axes_of(subscript)}


def range_text(index: ir.Axis) -> str:
    """`1 <= i < N - 1`."""
    lower, upper = (
        str(bounds[0]) if len(bounds) == 1 else f"{name}({', '.join(map(str, bounds))})"
        for name, bounds in (("max", index.lower), ("min", index.upper))
    )
    return f"{lower} <= {axis(index.name)} < {upper}"
