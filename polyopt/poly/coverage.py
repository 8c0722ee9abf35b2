"""Which elements the definitions of a tensor cover: each at most once, and all that are read.

Sets of elements live in a space with one dimension per subscript, named `@0`, `@1`, ... beside the axes around a
reference, so that a counterexample shows both the point and the element.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

import islpy as isl

from polyopt.dsl import ir
from polyopt.dsl.affine import (
    TRUE,
    Affine,
    And,
    AxisRef,
    Compare,
    Condition,
    Or,
    axes_of,
    axis,
    conjunction,
    is_nonnegative,
    map_condition,
    substitute,
)
from polyopt.errors import DefinitionError, PolyoptError
from polyopt.poly.contexts import ReadContext, Scope, element_text, read_contexts
from polyopt.poly.intervals import extreme, is_plainly_empty
from polyopt.poly.misses import Miss, misses
from polyopt.poly.proof import Proof, decided, domain, element, place, point_text, values_at
from polyopt.poly.space import Point, Space, coalesced, insert_axes, project_onto


def reach(equation: ir.Equation) -> Scope:
    """Where the left side counts as defined: an accumulation defines all of it, whatever is added."""
    guard = TRUE if equation.is_accumulation else equation.guard
    return Scope(equation.axes, (0,) * len(equation.axes), guard)


def is_scatter(equation: ir.Equation) -> bool:
    """Whether a subscript of the left side is data; then the whole tensor counts as defined."""
    return any(isinstance(subscript, ir.DataIndex) for subscript in equation.subscripts)


# --- each element at most once -------------------------------------------------------------------------------


def check_single_definition(proof: Proof) -> None:
    """No element has two plain definitions. Raises `DefinitionError` with the element and both places."""
    for tensor in proof.program.tensors:
        plain = [e for e in proof.program.definitions(tensor.name) if not e.is_accumulation and not _is_void(e)]
        for equation in plain:
            if not _is_plainly_injective(equation):
                _check_apart(equation, equation, proof)
        for first, second in combinations(plain, 2):
            if not _are_plainly_apart(first, second):
                _check_apart(first, second, proof)


def _is_void(equation: ir.Equation) -> bool:
    return any(is_plainly_empty(axis) for axis in equation.axes)


def _is_plainly_injective(equation: ir.Equation) -> bool:
    """Whether each axis can be read off a subscript that depends on it alone."""
    found: set[str] = set()
    for subscript in _affine(equation.subscripts):
        names = axes_of(subscript)
        if (
            len(names) == 1
            and all(subscript.coefficient(AxisRef(name)) for name in names)
            and not _has_floor(subscript)
        ):
            found |= names
    return found >= {axis.name for axis in equation.axes}


def _has_floor(subscript: Affine) -> bool:
    return any(not isinstance(atom, AxisRef) and axes_of(Affine(0, ((atom, 1),))) for atom, _ in subscript.terms)


def _are_plainly_apart(first: ir.Equation, second: ir.Equation) -> bool:
    """Whether some subscript of one is always above that of the other."""
    boxes = [{axis.name: axis for axis in equation.axes} for equation in (first, second)]
    for left, right in zip(_affine(first.subscripts), _affine(second.subscripts), strict=True):
        low = [extreme(s, box, largest=False) for s, box in zip((left, right), boxes, strict=True)]
        high = [extreme(s, box, largest=True) for s, box in zip((left, right), boxes, strict=True)]
        if _is_above(low[0], high[1]) or _is_above(low[1], high[0]):
            return True
    return False


def _is_above(low: Affine | None, high: Affine | None) -> bool:
    return low is not None and high is not None and is_nonnegative(low - high - 1)


def _affine(subscripts: Sequence[ir.Subscript]) -> list[Affine]:
    assert all(isinstance(s, Affine) for s in subscripts), "the front end refuses a plain definition by data"
    return [s for s in subscripts if isinstance(s, Affine)]


def _check_apart(first: ir.Equation, second: ir.Equation, proof: Proof) -> None:
    """No two points define one element; for one equation with itself, no two different points."""
    primed = _primed(second)
    scope, other = reach(first), reach(primed)
    space = proof.space(scope, (axis.name for axis in other.axes))
    pairs = zip(_affine(first.subscripts), _affine(primed.subscripts), strict=True)
    same = [Compare(left - right, "==") for left, right in pairs]
    with decided(f"whether an element of '{first.tensor}' has two definitions"):
        both = domain(space, scope).intersect(domain(space, other)).intersect(space.condition(And(tuple(same))))
        if first is second:
            both = both.intersect(space.condition(_is_before(scope, other)))
        proof.refute(both, lambda point: _defined_twice(first, second, point))


def _primed(equation: ir.Equation) -> ir.Equation:
    """The equation's left side with a prime on each axis."""

    def renamed(affine: Affine) -> Affine:
        return substitute(affine, lambda atom: axis(f"{atom.name}'") if isinstance(atom, AxisRef) else None)

    axes = tuple(ir.Axis(f"{a.name}'", a.lower, a.upper) for a in equation.axes)
    subscripts = tuple(renamed(subscript) for subscript in _affine(equation.subscripts))
    guard = map_condition(reach(equation).condition, renamed)
    return ir.Equation(equation.name, equation.tensor, axes, subscripts, equation.value, guard)


def _is_before(scope: Scope, other: Scope) -> Condition:
    """The first point is lexicographically smaller than the second."""
    cases: list[Condition] = []
    equal: list[Condition] = []
    for left, right in zip(scope.axes, other.axes, strict=True):
        difference = axis(left.name) - axis(right.name)
        cases.append(And((*equal, Compare(difference, "<"))))
        equal.append(Compare(difference, "=="))
    return Or(tuple(cases))


def _defined_twice(first: ir.Equation, second: ir.Equation, point: Point) -> PolyoptError:
    values = values_at(first.subscripts, point)
    lines = [
        f"{element_text(equation.tensor, equation.subscripts)} {_point_of(equation, point, prime)}".rstrip()
        + place(equation.span)
        for equation, prime in ((first, ""), (second, "'"))
    ]
    return DefinitionError(
        f"{element(first.tensor, values)} has two definitions",
        where=second.span,
        why="\n".join(lines),
        fix="restrict one of them with po.when, or use += to add them up",
        facts={
            "tensor": first.tensor,
            "element": values,
            "equations": (first.name, second.name),
            "sizes": dict(point.sizes),
        },
    )


def _point_of(equation: ir.Equation, point: Point, prime: str) -> str:
    own = Point(point.sizes, {a.name: point.axes[a.name + prime] for a in equation.axes})
    return point_text(own, [a.name for a in equation.axes])


# --- all that is read ----------------------------------------------------------------------------------------


def check_coverage(proof: Proof) -> None:
    """Every read of a defined tensor finds a definition, results are defined whole.

    Raises `DefinitionError` with an element that is read and not defined.
    """
    coverages = {t.name: _Coverage(t, proof) for t in proof.program.tensors if t.role != "input"}
    for equation in proof.program.equations:
        for context in read_contexts(equation):
            coverage = coverages.get(context.read.tensor)
            if coverage is not None and not any(is_plainly_empty(axis) for axis in context.axes):
                coverage.check_read(context)
    for name in dict.fromkeys(proof.program.results):
        if name in coverages:
            coverages[name].check_whole()


class _Coverage:
    """The elements that the definitions of one tensor cover."""

    def __init__(self, tensor: ir.Tensor, proof: Proof) -> None:
        self._tensor = tensor
        self._proof = proof
        self._shape = proof.shape(tensor.name)
        self._definitions = proof.program.definitions(tensor.name)
        self._elements = tuple(f"@{dimension}" for dimension in range(tensor.rank))
        self._plainly_whole = any(_covers_all(equation, self._shape) for equation in self._definitions)
        self._missing_set: isl.Set | None = None

    def _missing(self) -> isl.Set:
        """The elements of the tensor's box without a definition."""
        if self._missing_set is None:
            missing = Space("", self._elements, self._proof.sizes).condition(self._box())
            for equation in self._definitions:
                missing = missing.subtract(self._image(equation))
            self._missing_set = coalesced(missing)
        return self._missing_set

    def _box(self) -> Condition:
        inside: list[Condition] = []
        for name, extent in zip(self._elements, self._shape, strict=True):
            inside += [Compare(axis(name), ">="), Compare(axis(name) - extent, "<")]
        return conjunction(*inside)

    def _image(self, equation: ir.Equation) -> isl.Set:
        scope = reach(equation)
        space = self._proof.space(scope, self._elements)
        if is_scatter(equation):
            return Space("", self._elements, self._proof.sizes).condition(self._box())
        same = _elements_are(self._elements, _affine(equation.subscripts))
        return project_onto(domain(space, scope).intersect(space.condition(same)), self._elements)

    def check_whole(self) -> None:
        if not self._plainly_whole:
            with decided(f"whether '{self._tensor.name}' is defined whole"):
                self._proof.refute(self._missing(), self._not_whole)

    def check_read(self, context: ReadContext) -> None:
        if self._plainly_whole:
            return
        with decided(f"whether {element_text(context.read.tensor, context.read.subscripts)} is defined"):
            if not self._missing().is_empty():
                self._check_elements(context)

    def _check_elements(self, context: ReadContext) -> None:
        """No element that the read may need is missing."""
        space = self._proof.space(context.scope, self._elements)
        found = [
            _element_of(name, subscript, extent, context.read.boundary)
            for name, subscript, extent in zip(self._elements, context.read.subscripts, self._shape, strict=True)
        ]
        elements = domain(space, context.scope).intersect(space.condition(conjunction(*found)))
        missing = insert_axes(self._missing(), space)
        self._proof.refute(elements.intersect(missing), lambda point: self._not_covered(context, point))

    def _not_whole(self, point: Point) -> PolyoptError:
        values = tuple(point.axes[name] for name in self._elements)
        shown = element(self._tensor.name, values)
        return DefinitionError(
            f"result '{self._tensor.name}' has no value at {shown} {point_text(point, ())}".rstrip(),
            where=self._definitions[-1].span if self._definitions else self._tensor.span,
            why=f"returning '{self._tensor.name}' reads all of it\n{self._definitions_text(point)}",
            fix=f"define the missing elements, {self._remedy(point)}or return a slice that is defined",
            facts={"tensor": self._tensor.name, "element": values, "sizes": dict(point.sizes)},
        )

    def _not_covered(self, context: ReadContext, point: Point) -> PolyoptError:
        values = tuple(point.axes[name] for name in self._elements)
        names = [a.name for a in context.axes]
        text = element_text(context.read.tensor, context.read.subscripts)
        return DefinitionError(
            f"{text} reads {element(self._tensor.name, values)}, which no definition covers",
            where=context.read.span,
            why=f"{point_text(point, names)}\n{self._definitions_text(point)}".strip(),
            fix=f"define that element, {self._remedy(point)}or guard the read with po.when or po.where",
            facts={
                "tensor": self._tensor.name,
                "element": values,
                "index": {name: point.axes[name] for name in names},
                "sizes": dict(point.sizes),
            },
        )

    def _definitions_text(self, point: Point) -> str:
        lines = [f"{element_text(e.tensor, e.subscripts)}{place(e.span)}" for e in self._definitions]
        found = f"'{self._tensor.name}' is defined by " + ", ".join(lines)
        return "\n".join((found, *(miss.text for miss in self._misses(point))))

    def _remedy(self, point: Point) -> str:
        """What lets a range go on that a read ends."""
        return next((miss.remedy for miss in self._misses(point) if miss.remedy), "")

    def _misses(self, point: Point) -> list[Miss]:
        """Where the definitions stop short of the missing element."""
        missing = [point.axes[name] for name in self._elements]
        return [miss for e in self._definitions for miss in misses(e, missing, point.sizes, self._proof)]


def _covers_all(equation: ir.Equation, shape: Sequence[Affine]) -> bool:
    """Whether one definition plainly covers the whole box: each subscript an axis of its own over the whole extent."""
    if is_scatter(equation):
        return True
    if reach(equation).condition != TRUE:
        return False
    ranges = {axis.name: axis for axis in equation.axes}
    for subscript, extent in zip(_affine(equation.subscripts), shape, strict=True):
        if subscript == Affine(0) and extent == Affine(1):
            continue
        name = next(iter(axes_of(subscript)), "")
        found = ranges.pop(name, None)  # a second subscript by the same axis covers a diagonal only
        if found is None or subscript != axis(name):
            return False
        if not all(is_nonnegative(-lower) for lower in found.lower):
            return False
        if not all(is_nonnegative(upper - extent) for upper in found.upper):
            return False
    return not ranges


def _elements_are(names: Sequence[str], subscripts: Sequence[Affine]) -> Condition:
    return conjunction(*(Compare(axis(name) - value, "==") for name, value in zip(names, subscripts, strict=True)))


def _element_of(name: str, subscript: ir.Subscript, extent: Affine, boundary: ir.Boundary | None) -> Condition:
    """What holds of one coordinate of the element that is read; data may be anything in the dimension."""
    coordinate = axis(name)
    inside: Condition = And((Compare(coordinate, ">="), Compare(coordinate - extent, "<")))
    if not isinstance(subscript, Affine):
        return inside
    here = Compare(coordinate - subscript, "==")
    match boundary:
        case None:
            return here
        case ir.Pad():
            return And((here, inside))
        case ir.Clamp():
            below = And((Compare(subscript, "<"), Compare(coordinate, "==")))
            above = And((Compare(subscript - extent, ">="), Compare(coordinate - extent + 1, "==")))
            return Or((And((here, inside)), below, above))
        case ir.Wrap():
            if extent.is_constant and extent.constant > 0:
                return Compare(coordinate - subscript % extent.constant, "==")
            return inside
