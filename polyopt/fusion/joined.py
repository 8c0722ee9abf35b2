"""Neighbouring axes that every array walks together become one axis.

The rows and columns of an image under a 1 x 1 convolution, the batch and the positions of a linear layer, two summed
axes of a tensor contraction: where each array that knows one of two axes has both, alone in neighbouring dimensions,
and the inner one runs along the whole dimension, `h * W + w` is one axis and the two dimensions are one. Nothing else
changes, but loops are long where they were cut into short ones: register tiles, lanes and panels have fewer edges.

The arrays stay where they are, so a dimension is joined only where its elements surely follow those of the dimension
outside it: never in an argument that was given with strides.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import field, replace

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, Atom, AxisRef, axes_of, axis, condition_affines, substitute
from polyopt.fusion.axes import length
from polyopt.fusion.short_sums import FEWEST_LANES
from polyopt.names import unused

WORTH = 256
"""Points of two axes that are worth being one where nothing is summed."""


@dataclass(frozen=True, slots=True)
class Joined:
    """The program with its joined axes, and a sentence for each."""

    program: ir.Program
    notes: tuple[str, ...] = ()


def join(program: ir.Program, *, strided: Collection[str], reorder: bool) -> Joined:
    """The program with all axes joined that its sums can do without.

    strided: the arguments whose elements do not follow one another
    reorder: whether the terms of a sum may be added in another order
    """
    moved = replace(program, equations=tuple(map(_without_points, program.equations)))
    found = _joined(moved, strided, reorder=reorder) if moved != program else None
    return found if found is not None and found.notes else _joined(program, strided, reorder=reorder)


def _without_points(equation: ir.Equation) -> ir.Equation:
    """The sum whose reads have the one value of an axis of the results in its place, where it is a part of a subscript:
    `x[p + r]`, the window of a filter of one tap, walks its array as `x[p]` does. Copies of windows stay apart."""
    places = {a.name: a.lower[0] for a in equation.axes if length(a) == 1 and len(a.lower) == 1}

    def place(atom: Atom) -> Affine | None:
        return places.get(atom.name) if isinstance(atom, AxisRef) else None

    def moved(subscript: ir.Subscript) -> ir.Subscript:
        if not isinstance(subscript, Affine) or len(axes_of(subscript)) < 2:
            return subscript
        return substitute(subscript, place)

    def change(expr: ir.Expr) -> ir.Expr:
        expr = ir.rebuild(expr, change)
        return replace(expr, subscripts=tuple(map(moved, expr.subscripts))) if isinstance(expr, ir.Read) else expr

    return replace(equation, value=change(equation.value)) if places and equation.is_reduction else equation


def _joined(program: ir.Program, strided: Collection[str], *, reorder: bool) -> Joined:
    notes: list[str] = []
    refused: set[tuple[str, str, str]] = set()
    while True:
        found = _first(program, strided, refused, reorder=reorder)
        if found is None:
            return Joined(program, tuple(notes))
        program, note = _applied(program, found)
        notes.append(note)


@dataclass(slots=True)
class _Class:
    """Axes and dimensions that are joined together, or not at all.

    width:      extent of each inner axis and dimension
    axes:       by name of an equation, its pairs of an outer and an inner axis
    dimensions: by tensor, the outer ones of pairs
    """

    width: int
    axes: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    dimensions: dict[str, set[int]] = field(default_factory=dict)


def _first(
    program: ir.Program, strided: Collection[str], refused: set[tuple[str, str, str]], *, reorder: bool
) -> _Class | None:
    """What a pair of axes needs, of a sum or too short for lanes, if all of it can be joined.

    refused: pairs that cannot; gains more
    """
    for equation in program.equations:
        sums = equation.is_reduction
        for pair in _pairs(equation):
            if (equation.name, *pair) in refused or not (sums or _is_short(equation, pair)):
                continue
            found = _closure(program, equation, pair, strided, reorder=reorder)
            if found is not None:
                return found
            refused.add((equation.name, *pair))
    return None


def _is_short(equation: ir.Equation, pair: tuple[str, str]) -> bool:
    """Whether an inner axis has too few points for lanes, and the two together have many."""
    width = _whole_extent(equation, pair[1])
    if width is None or width >= FEWEST_LANES:
        return False
    count = _whole_extent(equation, pair[0])
    return count is None or count * width >= WORTH


def _pairs(equation: ir.Equation) -> tuple[tuple[str, str], ...]:
    """The pairs of axes that are two subscripts side by side, of each reference the last one first."""
    found: dict[tuple[str, str], None] = {}
    for reference in _references(equation):
        for outer, inner in reversed([*zip(reference.subscripts, reference.subscripts[1:])]):
            pair = _pair(outer, inner)
            if pair is not None:
                found.setdefault(pair)
    return tuple(found)


def _pair(outer: ir.Subscript, inner: ir.Subscript) -> tuple[str, str] | None:
    """The names of two axes that are all there is in two subscripts."""
    names = _alone(outer), _alone(inner)
    return (names[0], names[1]) if names[0] is not None and names[1] is not None and names[0] != names[1] else None


def _alone(subscript: ir.Subscript) -> str | None:
    if isinstance(subscript, Affine) and len(subscript.terms) == 1:
        atom, factor = subscript.terms[0]
        if isinstance(atom, AxisRef) and factor == 1 and subscript.constant == 0:
            return atom.name
    return None


# --- what belongs together --------------------------------------------------------------------------------------------


def _closure(
    program: ir.Program, equation: ir.Equation, pair: tuple[str, str], strided: Collection[str], *, reorder: bool
) -> _Class | None:
    """All that has to be joined with a pair of axes; None where some of it cannot be."""
    width = _whole_extent(equation, pair[1])
    if width is None:
        return None
    found = _Class(width)
    work: list[tuple[ir.Equation, tuple[str, str]]] = [(equation, pair)]
    while work:
        equation, pair = work.pop()
        pairs = found.axes.setdefault(equation.name, set())
        if pair in pairs:
            continue
        if any({*pair} & {*other} for other in pairs) or not _can_be_one(equation, pair, width, reorder=reorder):
            return None
        pairs.add(pair)
        for reference in _references(equation):
            places = [n for n, s in enumerate(reference.subscripts) if isinstance(s, Affine) and axes_of(s) & {*pair}]
            if not places:
                continue
            first = places[0]
            if places != [first, first + 1] or _pair(*reference.subscripts[first : first + 2]) != pair:
                return None
            dimensions = found.dimensions.setdefault(reference.tensor, set())
            if first in dimensions:
                continue
            if {first - 1, first + 1} & dimensions or reference.tensor in strided:
                return None
            dimensions.add(first)
            shape = program.tensor(reference.tensor).shape
            if shape is None or shape[first + 1] != Affine(width):
                return None
            for user in program.equations:
                for other in _references(user):
                    if other.tensor != reference.tensor:
                        continue
                    if other.boundary is not None:
                        return None  # it may lie outside one of the dimensions and inside both joined
                    own = _pair(*other.subscripts[first : first + 2])
                    if _spreads(user, own) and (other.subscripts == user.subscripts or _parts(user, own)):
                        continue  # writes to the joined dimension, or reads from it
                    if own is None or not all(isinstance(s, Affine) for s in other.subscripts):
                        return None
                    work.append((user, own))
    return found


def _spreads(equation: ir.Equation, pair: tuple[str, str] | None) -> bool:
    """Whether an equation sums nothing and knows its axes otherwise than as neighbours: they stay apart there."""
    subscripts = [s for reference in _references(equation) for s in reference.subscripts]
    windows = any(isinstance(s, Affine) and len(s.terms) > 1 for s in subscripts[len(equation.subscripts) :])
    return (
        not equation.is_reduction
        and all(isinstance(s, Affine) for s in subscripts)
        and (windows or _parts(equation, pair))
    )


def _parts(equation: ir.Equation, pair: tuple[str, str] | None) -> bool:
    """Whether some array has the axes of a pair, each alone, but not side by side."""
    return pair is not None and any(
        {*pair} <= {_alone(s) for s in reference.subscripts}
        and pair not in [_pair(*two) for two in zip(reference.subscripts, reference.subscripts[1:])]
        for reference in _references(equation)
    )


def _can_be_one(equation: ir.Equation, pair: tuple[str, str], width: int, *, reorder: bool) -> bool:
    """Whether the equation knows the two axes only together, in subscripts."""
    outer, inner = pair
    if _whole_extent(equation, inner) != width:
        return False
    for axes in _axis_lists(equation):
        names = [a.name for a in axes]
        if (outer in names) != (inner in names):
            return False
        if inner in names and not reorder and names.index(inner) != names.index(outer) + 1:
            return False
    return not any(axes_of(affine) & {*pair} for affine in _other_affines(equation))


def _whole_extent(equation: ir.Equation, name: str) -> int | None:
    """The number of points of an axis that runs from 0 to a number wherever it is bound."""
    widths: set[int | None] = set()
    for one in (one for axes in _axis_lists(equation) for one in axes if one.name == name):
        constants = one.is_resolved and all(bound.is_constant for bound in (*one.lower, *one.upper))
        from_zero = constants and max(bound.constant for bound in one.lower) == 0
        widths.add(min(bound.constant for bound in one.upper) if from_zero else None)
    return widths.pop() if len(widths) == 1 else None


def _axis_lists(equation: ir.Equation) -> Iterator[tuple[ir.Axis, ...]]:
    yield equation.axes
    yield equation.reduce_axes
    for expr in equation.exprs:
        yield from (node.axes for node in ir.walk(expr) if isinstance(node, ir.Reduce))


def _references(equation: ir.Equation) -> Iterator[ir.Read]:
    """Every read, and the left side as if it were one."""
    yield ir.Read(equation.tensor, equation.subscripts, equation.value.dtype)
    yield from equation.reads()


def _other_affines(equation: ir.Equation) -> Iterator[Affine]:
    """What an equation says of its axes elsewhere than in subscripts."""
    yield from condition_affines(equation.guard)
    for node in (node for expr in equation.exprs for node in ir.walk(expr)):
        match node:
            case ir.IndexValue(affine):
                yield affine
            case ir.Where(condition) | ir.Reduce(guard=condition):
                yield from condition_affines(condition)
            case _:
                pass


# --- joining ----------------------------------------------------------------------------------------------------------


def _applied(program: ir.Program, found: _Class) -> tuple[ir.Program, str]:
    """The program with the axes and dimensions of a class joined, and a sentence about it."""
    tensors = tuple(_with_shape(t, found.dimensions.get(t.name, set()), found.width) for t in program.tensors)
    taken = {a.name for e in program.equations for axes in _axis_lists(e) for a in axes} | set(program.sizes)
    equations: list[ir.Equation] = []
    note = ""
    for equation in program.equations:
        names: dict[tuple[str, str], str] = {}
        for pair in sorted(found.axes.get(equation.name, ())):
            names[pair] = unused("_".join(pair), {*taken, *names.values()})
        if names:
            pair, *_ = names
            note = note or (
                f"{pair[0]} and {pair[1]} run as one axis: in {', '.join(sorted(found.dimensions))} "
                f"the next {found.width} points of {pair[1]} follow where the last end"
            )
        if names or any(reference.tensor in found.dimensions for reference in _references(equation)):
            equation = _Joiner(found, names).equation(equation)
        equations.append(equation)
    return replace(program, tensors=tensors, equations=tuple(equations)), note


def _with_shape(tensor: ir.Tensor, dimensions: set[int], width: int) -> ir.Tensor:
    if not dimensions:
        return tensor
    assert tensor.shape is not None, "shapes are resolved"
    shape = tuple(
        extent * width if n in dimensions else extent
        for n, extent in enumerate(tensor.shape)
        if n - 1 not in dimensions
    )
    return replace(tensor, shape=shape, rank=len(shape))


@dataclass(frozen=True, slots=True)
class _Joiner:
    """Writes one equation with its joined axes. names: of the joined axis, by pair"""

    found: _Class
    names: dict[tuple[str, str], str]

    def equation(self, equation: ir.Equation) -> ir.Equation:
        return replace(
            equation,
            axes=self.axes(equation.axes),
            reduce_axes=self.axes(equation.reduce_axes),
            subscripts=self.subscripts(equation.tensor, equation.subscripts),
            value=self.value(equation.value),
        )

    def axes(self, axes: tuple[ir.Axis, ...]) -> tuple[ir.Axis, ...]:
        inner = {pair[1] for pair in self.names}
        outer = {pair[0]: name for pair, name in self.names.items()}

        def one(axis: ir.Axis) -> ir.Axis:
            if axis.name not in outer:
                return axis
            lower, upper = (tuple(b * self.found.width for b in bounds) for bounds in (axis.lower, axis.upper))
            return ir.Axis(outer[axis.name], lower, upper)

        return tuple(one(axis) for axis in axes if axis.name not in inner)

    def subscripts(self, tensor: str, subscripts: tuple[ir.Subscript, ...]) -> tuple[ir.Subscript, ...]:
        dimensions = self.found.dimensions.get(tensor, set())
        joined: list[ir.Subscript] = []
        for n, subscript in enumerate(subscripts):
            if n in dimensions:
                inner = subscripts[n + 1]
                pair = _pair(subscript, inner)
                if pair in self.names:
                    joined.append(axis(self.names[pair]))
                else:
                    assert isinstance(subscript, Affine) and isinstance(inner, Affine), "the equation spreads"
                    joined.append(subscript * self.found.width + inner)
            elif n - 1 not in dimensions:
                joined.append(
                    replace(subscript, value=self.value(subscript.value))
                    if isinstance(subscript, ir.DataIndex)
                    else subscript
                )
        return tuple(joined)

    def value(self, expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Read(tensor, subscripts):
                return replace(expr, subscripts=self.subscripts(tensor, subscripts))
            case ir.Reduce(body=body, axes=axes):
                return replace(expr, body=self.value(body), axes=self.axes(axes))
            case _:
                return ir.rebuild(expr, self.value)
