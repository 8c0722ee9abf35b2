"""Proofs about a resolved program: bounds, single definition, coverage, reductions that need a value.

Each claim is tried first by arithmetic on bounds; isl decides the rest and finds the counterexample that an error
shows. Where a claim holds for some symbolic sizes only, it becomes a condition.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Literal, assert_never

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, Compare, Condition, Or, axes_of, conjunction, is_nonnegative, size
from polyopt.errors import BoundsError, DefinitionError, PolyoptError, Span
from polyopt.poly.contexts import ReadContext, ReduceContext, Scope, contexts, element_text
from polyopt.poly.coverage import check_coverage, check_single_definition, reach
from polyopt.poly.intervals import is_plainly_empty, is_within, narrowed
from polyopt.poly.magnitudes import MOST_SYMBOLIC, check_magnitudes
from polyopt.poly.misses import Miss, misses
from polyopt.poly.proof import Proof, decided, domain, element, point_text, values_at
from polyopt.poly.space import Point, project_onto


def check(program: ir.Program) -> tuple[Condition, ...]:
    """The conditions on symbolic sizes that the program needs, besides those it has.

    program: resolved
    Raises `BoundsError` for a read or write outside a tensor, and `DefinitionError` for an element with two
    definitions, a read of an element with none, a maximum over nothing, an element that depends on itself, and an index
    expression that may leave 64 bits.
    """
    proof = Proof(program)
    for equation in program.equations:
        for name in sorted(check_magnitudes(equation)):
            proof.conditions.append(Compare(size(name) - MOST_SYMBOLIC, "<"))
        _check_bounds(_write(equation), proof)
        for context in contexts(equation):
            if _never_happens(context.scope):
                continue
            if isinstance(context, ReduceContext):
                _check_not_empty(context, proof)
                continue
            match context.read.boundary:
                case None:
                    _check_bounds(_read(context), proof)
                case ir.Clamp() | ir.Wrap():
                    _check_has_elements(_read(context), proof)
                case ir.Pad():
                    pass
                case _:
                    assert_never(context.read.boundary)
            if context.read.tensor == equation.tensor:
                _check_not_itself(equation, context, proof)
    check_single_definition(proof)
    check_coverage(proof)
    return tuple(proof.conditions)


def _never_happens(scope: Scope) -> bool:
    return any(is_plainly_empty(axis) for axis in scope.axes)


# --- bounds --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reference:
    """An element of a tensor that is read or written at each point of a scope."""

    verb: Literal["reads", "writes"]
    tensor: str
    subscripts: tuple[ir.Subscript, ...]
    scope: Scope
    span: Span | None


def _read(context: ReadContext) -> _Reference:
    return _Reference("reads", context.read.tensor, context.read.subscripts, context.scope, context.read.span)


def _write(equation: ir.Equation) -> _Reference:
    return _Reference("writes", equation.tensor, equation.subscripts, reach(equation), equation.span)


def _check_bounds(reference: _Reference, proof: Proof) -> None:
    """Every affine subscript lies in its dimension wherever the reference happens."""
    if _never_happens(reference.scope):
        return
    ranges = narrowed({axis.name: axis for axis in reference.scope.axes}, reference.scope.condition)
    for dimension, extent in enumerate(proof.shape(reference.tensor)):
        subscript = reference.subscripts[dimension]
        if isinstance(subscript, Affine) and not is_within(subscript, extent, ranges):
            _check_dimension(reference, dimension, subscript, extent, proof)


def _check_dimension(reference: _Reference, dimension: int, subscript: Affine, extent: Affine, proof: Proof) -> None:
    space = proof.space(reference.scope)
    with decided(f"whether {element_text(reference.tensor, reference.subscripts)} is in bounds"):
        outside = space.condition(Or((Compare(subscript, "<"), Compare(subscript - extent, ">="))))
        proof.refute(
            domain(space, reference.scope).intersect(outside),
            lambda point: _out_of_bounds(reference, dimension, extent, point, proof),
        )


def _out_of_bounds(reference: _Reference, dimension: int, extent: Affine, point: Point, proof: Proof) -> PolyoptError:
    values = values_at(reference.subscripts, point)
    axes = _axes_in_order(reference.subscripts, reference.scope)
    (length,) = values_at((extent,), point)
    text = _as_written(reference, dimension)
    before = _before_the_first(reference, dimension, point, int(length))
    guard = "guard it with po.when or po.where"
    boundary = f", or say what lies outside: {reference.tensor}.pad(0), .clamp() or .wrap()"
    ended = _ended_before(reference, values, point, proof)
    if ended:
        guard, boundary = f"{ended[0].remedy}or guard this read with po.when or po.where", ""
    return BoundsError(
        f"{text} {reference.verb} {element(reference.tensor, values)} {point_text(point, axes)}".rstrip(),
        where=reference.span,
        why="\n".join(
            (
                f"dimension {dimension} of '{reference.tensor}' has extent {length}{before}",
                *(miss.text for miss in ended),
            )
        ),
        fix=guard + (boundary if reference.verb == "reads" else ", or give the tensor a larger shape="),
        facts={
            "tensor": reference.tensor,
            "element": values,
            "dimension": dimension,
            "extent": length,
            "index": dict(point.axes),
            "sizes": dict(point.sizes),
        },
    )


def _as_written(reference: _Reference, dimension: int) -> str:
    """The reference; as its line has it where the subscript is a position: `x[-9]` is known as `x[N - 9]` here."""
    text = reference.span.text if reference.span is not None and not _moves(reference, dimension) else ""
    return text if text.startswith(f"{reference.tensor}[") else element_text(reference.tensor, reference.subscripts)


def _ended_before(reference: _Reference, values: Sequence[int | str], point: Point, proof: Proof) -> Sequence[Miss]:
    """Where definitions of the tensor stop before the element because another tensor ends."""
    element = [value for value in values if isinstance(value, int) and value >= 0]
    if reference.verb != "reads" or len(element) < len(values):
        return ()
    definitions = proof.program.definitions(reference.tensor)
    found = (miss for e in definitions for miss in misses(e, element, point.sizes, proof))
    return [miss for miss in found if miss.remedy and miss.read != reference.tensor]


def _before_the_first(reference: _Reference, dimension: int, point: Point, length: int) -> str:
    """Where a position is that lies before the first element, which is often meant from the end."""
    (position,) = values_at((reference.subscripts[dimension],), point)
    if _moves(reference, dimension) or not isinstance(position, int) or position >= 0:
        return ""
    is_written = reference.span is not None and f"{position}" in reference.span.text
    if reference.verb == "reads" and not is_written:  # `x[-9]` is known as `x[N - 9]` here
        return f"; {length - position} from its end is before its first element"
    where = "beside an index" if reference.verb == "reads" else "on the left side"
    return f"; {where}, {position} is a position and does not count from the end: the last position is {length - 1}"


def _moves(reference: _Reference, dimension: int) -> bool:
    """Whether the subscript is not one position for all points."""
    subscript = reference.subscripts[dimension]
    return not isinstance(subscript, Affine) or bool(axes_of(subscript))


def _check_has_elements(reference: _Reference, proof: Proof) -> None:
    """There is an element to read instead of one outside."""
    for dimension, extent in enumerate(proof.shape(reference.tensor)):
        if is_nonnegative(extent - 1):
            continue
        space = proof.space(reference.scope)
        with decided(f"whether '{reference.tensor}' has elements"):
            is_empty = space.condition(Compare(extent - 1, "<"))
            proof.refute(
                domain(space, reference.scope).intersect(is_empty),
                partial(_nothing_to_read, reference, dimension),
            )


def _nothing_to_read(reference: _Reference, dimension: int, point: Point) -> PolyoptError:
    text = element_text(reference.tensor, reference.subscripts)
    at = point_text(point, [axis.name for axis in reference.scope.axes])
    return BoundsError(
        f"{text} has nothing to read {at}".rstrip(),
        where=reference.span,
        why=f"dimension {dimension} of '{reference.tensor}' has extent 0, so that no element is the nearest",
        fix=f"guard it with po.when or po.where, or give the value outside: {reference.tensor}.pad(0)",
        facts={
            "tensor": reference.tensor,
            "dimension": dimension,
            "extent": 0,
            "index": dict(point.axes),
            "sizes": dict(point.sizes),
        },
    )


def _axes_in_order(subscripts: Sequence[ir.Subscript], scope: Scope) -> list[str]:
    used = {name for subscript in subscripts if isinstance(subscript, Affine) for name in axes_of(subscript)}
    return [axis.name for axis in scope.axes if axis.name in used]


# --- reductions ----------------------------------------------------------------------------------------------


def _check_not_empty(context: ReduceContext, proof: Proof) -> None:
    """A reduction without a start value has something to reduce wherever it is evaluated."""
    reduction = context.reduction
    if reduction.reducer.neutral is not None:
        return
    if reduction.guard == TRUE and all(_is_plainly_not_empty(axis) for axis in reduction.axes):
        return
    inner = context.scope.inside(reduction, context.binder)
    outer_space, inner_space = proof.space(context.scope), proof.space(inner)
    with decided(f"whether a {_kind(reduction)} is over nothing"):
        filled = project_onto(domain(inner_space, inner), outer_space.axes)
        proof.refute(domain(outer_space, context.scope).subtract(filled), lambda point: _over_nothing(context, point))


def _kind(reduction: ir.Reduce) -> str:
    """What the user calls it."""
    return "po.reduce" if reduction.reducer.name == "custom" else reduction.reducer.name


def _is_plainly_not_empty(axis: ir.Axis) -> bool:
    return all(is_nonnegative(upper - lower - 1) for lower in axis.lower for upper in axis.upper)


def _over_nothing(context: ReduceContext, point: Point) -> PolyoptError:
    reduction = context.reduction
    kind = _kind(reduction)
    names = ", ".join(f"'{axis.name}'" for axis in reduction.axes)
    at = point_text(point, [axis.name for axis in context.scope.axes])
    return DefinitionError(
        f"{kind} over {names} has nothing to reduce {at}".rstrip(),
        where=reduction.span,
        why=f"a {kind} over nothing has no value",
        fix="give the value for that case with init=, or guard the equation with po.when",
        facts={"reducer": reduction.reducer.name, "index": dict(point.axes), "sizes": dict(point.sizes)},
    )


# --- dependence on itself ------------------------------------------------------------------------------------


def _check_not_itself(equation: ir.Equation, context: ReadContext, proof: Proof) -> None:
    """No element is read to compute that same element, in one step."""
    pairs = zip(equation.subscripts, context.read.subscripts, strict=True)
    differences = [to - of for to, of in pairs if isinstance(to, Affine) and isinstance(of, Affine)]
    if len(differences) < len(equation.subscripts) or context.read.boundary is not None:
        return  # decided as the kernel is scheduled: which element is read is not affine
    if any(difference.is_constant and difference.constant != 0 for difference in differences):
        return
    space = proof.space(context.scope)
    with decided(f"whether an element of '{equation.tensor}' depends on itself"):
        same = space.condition(conjunction(*(Compare(difference, "==") for difference in differences)))
        proof.refute(
            domain(space, context.scope).intersect(same), lambda point: _depends_on_itself(equation, context, point)
        )


def _depends_on_itself(equation: ir.Equation, context: ReadContext, point: Point) -> PolyoptError:
    values = values_at(equation.subscripts, point)
    at = point_text(point, [axis.name for axis in context.scope.axes])
    text = element_text(context.read.tensor, context.read.subscripts)
    return DefinitionError(
        f"{element(equation.tensor, values)} depends on itself",
        where=context.read.span or equation.span,
        why=f"{text} reads the element being defined {at}".rstrip(),
        fix="refer to another element, or define a new tensor: each element has one value, not a history",
        facts={
            "tensor": equation.tensor,
            "element": values,
            "index": dict(point.axes),
            "sizes": dict(point.sizes),
        },
    )
