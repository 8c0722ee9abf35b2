"""Sums over divided indices, written by the remainder: what is left has no division and no remainder.

A transposed convolution reads `x[h // 2 - r]`, or sums where `(h - r) % 2 == 0`, or adds to `y[2*h + r]`. Read as it
stands, lanes along `h` gather, or most points of the domain are guarded away. With `h = 2*h' + p` for each remainder p
the subscripts are affine with step 1, so the sum becomes one ordinary contraction for each p, and the result takes
every second element from each.

Two rewrites, both exact in that each element is the sum of the same terms:

- *gather*: `y[a*h + r] += e(h, r)` becomes, for each element d of y, the sum over r of e((d - r) / a, r) where that
  is a whole number in range. It changes the order of the terms, so strict numerics go without it.
- *split*: an accumulation whose axes are divided by d becomes one for each choice of remainders, into a temporary;
  those whose condition never holds fall away. Splitting a summed axis reorders too.

Only extents that are numbers are split, and only into a few parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import lcm, prod

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import (
    FALSE,
    TRUE,
    Affine,
    And,
    AxisRef,
    Compare,
    Condition,
    FloorDiv,
    axis,
    condition_affines,
    conjunction,
    map_condition,
)
from polyopt.dtypes import f32
from polyopt.fusion.axes import at_axes, placed
from polyopt.names import unused

MOST_PARTS = 16
"""Temporaries that one tensor is split into."""

MOST_TERMS = 64
"""Combinations of remainders that are looked at, those of summed axes included."""

FEWEST_TERMS = 8
"""Terms of a sum below which a temporary would cost more than the divisions do."""

At = Mapping[str, Affine]


def split(program: ir.Program, fold: Callable[[ir.Expr], ir.Expr], *, reorder: bool) -> ir.Program:
    """The program with its divided sums split by remainders.

    fold:    folds constants, and takes choices that are decided
    reorder: whether the terms of a sum may be added in another order
    """
    names = {tensor.name for tensor in program.tensors} | {equation.name for equation in program.equations}
    for tensor in program.tensors:
        definitions = program.definitions(tensor.name)
        if len(definitions) != 1:
            continue
        total, frame = total_of(definitions[0])
        gathered = (_gathered(total, tensor) if reorder and total is definitions[0] else None) or total
        parts = _parts(gathered, tensor, frame, reorder=reorder)
        if parts is None:
            continue
        tensors, equations = _written(parts, tensor, fold, names)
        position = program.equations.index(definitions[0])
        program = replace(
            program,
            tensors=(*program.tensors, *tensors),
            equations=(*program.equations[:position], *equations, *program.equations[position + 1 :]),
        )
    return program


# --- from scattered sums to gathered ones ----------------------------------------------------------------------------


def _gathered(equation: ir.Equation, tensor: ir.Tensor) -> ir.Equation | None:
    """`y[a*h + r] += e` as a sum for each element of y; None where the left side is not of this kind."""
    neutral = equation.reducer.neutral if equation.reducer is not None else None
    if neutral is None or tensor.shape is None or any(isinstance(s, ir.DataIndex) for s in equation.subscripts):
        return None
    by_name = {a.name: a for a in equation.axes}
    if not all(_is_plain(a) for a in equation.all_axes):
        return None
    at: dict[str, Affine] = {}
    axes: list[ir.Axis] = []
    summed: list[ir.Axis] = []
    whole: list[Condition] = []
    inside: list[Condition] = []
    taken = {a.name for a in equation.bound_axes}
    used: set[str] = set()
    for dimension, (subscript, extent) in enumerate(zip(equation.subscripts, tensor.shape, strict=True)):
        assert isinstance(subscript, Affine), "data subscripts are left alone"
        names = [atom.name for atom, _ in subscript.terms if isinstance(atom, AxisRef)]
        if len(names) != len(subscript.terms) or used & set(names) or not extent.is_constant:
            return None
        used |= set(names)
        if len(names) == 1 and subscript == axis(names[0]) and _range(by_name[names[0]]) == (0, extent.constant):
            axes.append(by_name[names[0]])
            continue
        solved = max(
            names, key=lambda name: (abs(subscript.coefficient(AxisRef(name))), _length(by_name[name])), default=""
        )
        step = subscript.coefficient(AxisRef(solved)) if solved else 0
        if step <= 0 or len(names) < 2:
            return None
        element = _fresh(f"{solved}_{dimension}", taken)
        axes.append(ir.Axis(element, (Affine(0),), (extent,)))
        summed.extend(by_name[name] for name in names if name != solved)
        rest = axis(element) - (subscript - axis(solved) * step)
        low, high = _range(by_name[solved])
        at[solved] = rest // step
        whole.append(Compare(rest % step, "=="))
        in_range = (Compare(at[solved] - low, ">="), Compare(at[solved] - high, "<"))
        (inside if dimension == len(tensor.shape) - 1 else whole).extend(in_range)  # lanes run along the last one
    if not at or used != set(by_name):
        return None
    return replace(
        equation,
        axes=tuple(axes),
        subscripts=tuple(axis(a.name) for a in axes),
        value=ir.Where(conjunction(*inside), at_axes(equation.value, at), neutral, neutral.dtype),
        guard=_decided(conjunction(*whole, _moved(equation.guard, at))),
        reduce_axes=(*summed, *equation.reduce_axes),
    )


PART = ir.Var("part", f32)
"""Where the sum stands in what is made of it."""


def total_of(equation: ir.Equation) -> tuple[ir.Equation, ir.Expr | None]:
    """A definition by one reduction, `y[h] = f(sum(e, r))`, as the accumulation `y[h] += e` and as `f` of `PART`; any
    other equation as it is. A reduction in a branch of `where` may have nothing to read elsewhere."""
    found = [node for node in ir.walk(equation.value) if isinstance(node, ir.Reduce)]
    if equation.is_accumulation or equation.guard != TRUE or len(found) != 1:
        return equation, None
    (total,) = found
    choices = (node for node in ir.walk(equation.value) if isinstance(node, ir.Where))
    if any(inner is total for choice in choices for inner in ir.walk(choice)):
        return equation, None

    def around(expr: ir.Expr) -> ir.Expr:
        return replace(PART, dtype=total.dtype) if expr is total else ir.rebuild(expr, around)

    accumulation = replace(equation, value=total.body, guard=total.guard, reducer=total.reducer, reduce_axes=total.axes)
    return accumulation, around(equation.value)


# --- parts -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Parts:
    """What an accumulation is split by.

    left, summed: the divisors of its axes, those that have one
    frame:        what the tensor makes of the sum, over `PART`; None for the sum itself
    """

    equation: ir.Equation
    left: Mapping[str, int]
    summed: Mapping[str, int]
    frame: ir.Expr | None = None


def _parts(equation: ir.Equation, tensor: ir.Tensor, frame: ir.Expr | None, *, reorder: bool) -> _Parts | None:
    reducer = equation.reducer
    if reducer is None or reducer.neutral is None or tensor.shape is None or tensor.role == "input":
        return None
    plain = tuple(axis(a.name) for a in equation.axes)
    whole = all(
        _is_plain(a) and extent.is_constant and _range(a) == (0, extent.constant)
        for a, extent in zip(equation.axes, tensor.shape)
    )
    if equation.subscripts != plain or not whole or _terms(equation) < FEWEST_TERMS:
        return None
    divisors = _divisors(equation)
    if not any(a.name in divisors for a in equation.axes) or not _resolves(equation, divisors):
        return None
    left = {a.name: divisors[a.name] for a in equation.axes if a.name in divisors}
    summed = {a.name: divisors[a.name] for a in equation.reduce_axes if a.name in divisors}
    if summed and not (reorder and all(_is_plain(a) for a in equation.reduce_axes if a.name in summed)):
        return None
    many = prod(left.values()) > MOST_PARTS or prod([*left.values(), *summed.values()]) > MOST_TERMS
    return None if many else _Parts(equation, left, summed, frame)


def _divisors(equation: ir.Equation) -> dict[str, int]:
    """By axis, the least common multiple of what it is divided by."""
    found: dict[str, int] = {}
    for affine in _affines(equation):
        for floor in _floors(affine):
            for atom, coefficient in floor.numerator.terms:
                if isinstance(atom, AxisRef) and coefficient % floor.divisor:
                    found[atom.name] = lcm(found.get(atom.name, 1), floor.divisor)
    return found


def _resolves(equation: ir.Equation, divisors: Mapping[str, int]) -> bool:
    """Whether no division is left when the axes are multiples: none of a division, a size, or an axis further in."""
    own = {a.name for a in equation.all_axes}
    for affine in _affines(equation):
        for floor in _floors(affine):
            simple = all(
                isinstance(atom, AxisRef)
                and (atom.name in own)
                and (c * divisors.get(atom.name, 1)) % floor.divisor == 0
                for atom, c in floor.numerator.terms
            )
            if not simple:
                return False
    return True


def _affines(equation: ir.Equation) -> Iterator[Affine]:
    yield from condition_affines(equation.guard)
    for node in ir.walk(equation.value):
        match node:
            case ir.IndexValue(affine):
                yield affine
            case ir.Read(subscripts=subscripts):
                yield from (s for s in subscripts if isinstance(s, Affine))
            case ir.Where(condition) | ir.Reduce(guard=condition):
                yield from condition_affines(condition)
            case _:
                pass


def _floors(affine: Affine) -> Iterator[FloorDiv]:
    for atom, _ in affine.terms:
        if isinstance(atom, FloorDiv):
            yield atom
            yield from _floors(atom.numerator)


def _terms(equation: ir.Equation) -> int:
    """The number of points that are summed for one element; 0 where it is not a number."""
    return prod(_length(a) if _is_plain(a) else 0 for a in equation.reduce_axes)


# --- writing them down -----------------------------------------------------------------------------------------------


def _written(
    parts: _Parts, tensor: ir.Tensor, fold: Callable[[ir.Expr], ir.Expr], names: set[str]
) -> tuple[list[ir.Tensor], list[ir.Equation]]:
    """A temporary for each choice of remainders of the left axes, and the tensor put together from them."""
    tensors: list[ir.Tensor] = []
    equations: list[ir.Equation] = []
    equation = parts.equation
    assert equation.reducer is not None and equation.reducer.neutral is not None, "an accumulation that can be empty"
    for remainders in _choices(parts.left):
        axes = _thinned(equation.axes, parts.left, remainders)
        if any(_length(a) == 0 for a in axes):
            continue
        terms = list(_accumulations(parts, axes, remainders, fold))
        subscripts = tuple(axis(a.name) for a in axes)
        dtype = tensor.dtype if parts.frame is None else equation.reducer.dtype
        value: ir.Expr = ir.Const(equation.reducer.neutral.value, dtype)
        if terms:
            part = ir.Tensor(
                _fresh(f"{tensor.name}_part", names),
                dtype,
                tuple(a.upper[0] for a in axes),
                "local",
                len(axes),
                tensor.span,
            )
            tensors.append(part)
            equations += [replace(term, name=_fresh(part.name, names), tensor=part.name) for term in terms]
            value = ir.Read(part.name, subscripts, dtype, span=equation.span)
        if parts.frame is not None:
            at = {name: _multiple(name, parts.left, remainders) for name in parts.left}
            value = fold(filled(at_axes(parts.frame, at), value))
        places = tuple(_multiple(a.name, parts.left, remainders) for a in axes)
        name = _fresh(equation.name, names)
        equations.append(ir.Equation(name, tensor.name, axes, places, value, span=equation.span))
    return tensors, equations


def filled(frame: ir.Expr, value: ir.Expr) -> ir.Expr:
    """What a frame makes of a value."""
    is_place = isinstance(frame, ir.Var) and frame.name == PART.name
    return value if is_place else ir.rebuild(frame, lambda child: filled(child, value))


def _accumulations(
    parts: _Parts, axes: tuple[ir.Axis, ...], remainders: Mapping[str, int], fold: Callable[[ir.Expr], ir.Expr]
) -> Iterator[ir.Equation]:
    """The sums over each choice of remainders of the summed axes, without those that are empty."""
    equation = parts.equation
    for others in _choices(parts.summed):
        at = {name: _multiple(name, parts.left, remainders) for name in parts.left}
        at |= {name: _multiple(name, parts.summed, others) for name in parts.summed}
        guard = _decided(_moved(equation.guard, at))
        reduced = _thinned(equation.reduce_axes, parts.summed, others)
        if guard == FALSE or any(_is_plain(a) and _length(a) == 0 for a in reduced):
            continue
        yield replace(
            equation,
            axes=axes,
            subscripts=tuple(axis(a.name) for a in axes),
            value=fold(at_axes(equation.value, at)),
            guard=guard,
            reduce_axes=reduced,
        )


def _choices(divisors: Mapping[str, int]) -> Iterator[dict[str, int]]:
    for chosen in product(*(range(d) for d in divisors.values())):
        yield dict(zip(divisors, chosen, strict=True))


def _multiple(name: str, divisors: Mapping[str, int], remainders: Mapping[str, int]) -> Affine:
    return axis(name) * divisors.get(name, 1) + remainders.get(name, 0)


def _thinned(
    axes: Sequence[ir.Axis], divisors: Mapping[str, int], remainders: Mapping[str, int]
) -> tuple[ir.Axis, ...]:
    """The axes that count multiples: `d * a + p` runs where the axis did."""

    def thin(one: ir.Axis) -> ir.Axis:
        if one.name not in divisors:
            return one
        divisor, remainder = divisors[one.name], remainders[one.name]
        low, high = _range(one)
        first, last = -((remainder - low) // divisor), -((remainder - high) // divisor)
        return ir.Axis(one.name, (Affine(first),), (Affine(max(first, last)),))

    return tuple(map(thin, axes))


def _decided(condition: Condition) -> Condition:
    """A conjunction without the comparisons of numbers that hold; FALSE where one does not."""
    parts = condition.parts if isinstance(condition, And) else (condition,)
    kept = []
    for part in parts:
        if isinstance(part, Compare) and part.left.is_constant:
            if not _COMPARE[part.op](part.left.constant):
                return FALSE
            continue
        kept.append(part)
    return conjunction(*kept) if kept else TRUE


_COMPARE: Mapping[str, Callable[[int], bool]] = {
    "==": lambda value: value == 0,
    "!=": lambda value: value != 0,
    ">=": lambda value: value >= 0,
    ">": lambda value: value > 0,
    "<=": lambda value: value <= 0,
    "<": lambda value: value < 0,
}


# --- substitution ----------------------------------------------------------------------------------------------------


def _moved(condition: Condition, at: At) -> Condition:
    return map_condition(condition, lambda affine: placed(affine, at))


# --- axes ------------------------------------------------------------------------------------------------------------


def _is_plain(one: ir.Axis) -> bool:
    """Whether an axis runs between two numbers."""
    return len(one.lower) == len(one.upper) == 1 and one.lower[0].is_constant and one.upper[0].is_constant


def _range(one: ir.Axis) -> tuple[int, int]:
    return one.lower[0].constant, one.upper[0].constant


def _length(one: ir.Axis) -> int:
    low, high = _range(one)
    return max(0, high - low)


def _fresh(name: str, taken: set[str]) -> str:
    """A name that is not taken, and is from now on."""
    found = unused(name, taken)
    taken.add(found)
    return found
