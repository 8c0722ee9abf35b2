"""Sums of products of several factors are nested: what few axes know is summed first.

`z[i, r] += t[i, j, k] * x[j, r] * y[k, r]` multiplies twice for each of its terms, though x is the same for all k. The
sum over k alone, `u[i, j, r] += t[i, j, k] * y[k, r]`, is a product of matrices, and what is left to sum,
`z[i, r] += u[i, j, r] * x[j, r]`, has a k-th of the terms. A bilinear form, a tensor times a matrix along each of its
dimensions, any chain of factors is nested in the order that multiplies least, the temporaries counted.

Sums are multiplied where each term was. For integers, which wrap, that is exact. Floats may overflow on another way,
and an infinity among the factors may give an infinity where its terms one by one give NaN: so an equation stays as it
is written, unless its numerics are "fast" or it is an einsum, which leaves the order free. Not for strict numerics.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import field, replace
from functools import reduce
from itertools import combinations
from math import prod

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, AxisRef, axes_of, axes_outer_first, axis
from polyopt.fusion.axes import assumed_length, axes_in, is_range, length
from polyopt.fusion.rewrite import depends_on
from polyopt.names import unused

TEMPORARY = 8
"""Multiplications that an element of a temporary costs, which is written, and read again."""

LEAST_SAVED = 1 << 12
"""Multiplications that repay a loop of its own."""

MOST_BYTES = 1 << 26
"""Bytes of a temporary that may be larger than all that its sum reads."""

MOST_FACTORS = 6
"""Factors among which all orders are tried."""


@dataclass(frozen=True, slots=True)
class Nested:
    """The program with its sums inside sums, and a sentence for each."""

    program: ir.Program
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Product:
    """The product of `factors`, summed over `summed` for each point of `kept`."""

    factors: tuple[ir.Expr, ...]
    kept: tuple[ir.Axis, ...]
    summed: tuple[ir.Axis, ...]

    @property
    def cost(self) -> int:
        """Multiplications of all results; the last of each term adds, too."""
        return _points((*self.kept, *self.summed)) * max(1, len(self.factors) - 1)


@dataclass(frozen=True, slots=True)
class _Step:
    """What is summed first.

    chosen: numbers of its factors
    inner:  their product
    rest:   the factors that are left to the sum around it
    summed: the axes that are left to it
    cost:   multiplications, the temporary counted
    """

    chosen: tuple[int, ...]
    inner: _Product
    rest: tuple[ir.Expr, ...]
    summed: tuple[ir.Axis, ...]
    cost: int

    @property
    def lies_well(self) -> int:
        """How well memory suits the product: one factor has lanes along the result, another runs along the sum."""
        last = {name for factor in self.inner.factors if (name := _last(factor)) is not None}
        return 2 * bool(last & _names(self.inner.kept)) + bool(last & _names(self.inner.summed))


def nest(program: ir.Program, *, reorder: bool) -> Nested:
    """The program whose sums of products are nested where that multiplies less.

    reorder: whether products of floats may be summed in any order although no einsum says so
    """
    nester = _Nester(program, reorder, {t.name for t in program.tensors} | {e.name for e in program.equations})
    equations = tuple(one for equation in program.equations for one in nester.nested(equation))
    if not nester.notes:
        return Nested(program)
    return Nested(
        replace(program, tensors=(*program.tensors, *nester.tensors), equations=equations), tuple(nester.notes)
    )


@dataclass(slots=True)
class _Nester:
    """Rewrites one equation after the other. inner: the sums that the equation at hand needs"""

    program: ir.Program
    reorder: bool
    taken: set[str]
    tensors: list[ir.Tensor] = field(default_factory=list)
    inner: list[ir.Equation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def nested(self, equation: ir.Equation) -> tuple[ir.Equation, ...]:
        """The equation, behind the sums that were taken out of it and are nested in their turn."""
        if equation.guard != TRUE or any(isinstance(s, ir.DataIndex) for s in equation.subscripts):
            return (equation,)
        self.inner = []
        if equation.reducer is None:
            outer = replace(equation, value=self.visit(equation.value, equation))
        else:
            value, axes = self.sum(equation.value, equation.reducer, equation.axes, equation.reduce_axes, equation)
            outer = replace(equation, value=value, reduce_axes=axes)
        inner = tuple(self.inner)
        return (*(one for part in inner for one in self.nested(part)), outer)

    def visit(self, expr: ir.Expr, equation: ir.Equation) -> ir.Expr:
        """The expression with its sums nested; what is in a branch may not be computed where it is not taken."""
        match expr:
            case ir.Where():
                return expr
            case ir.Reduce(body=body, reducer=reducer, axes=axes, guard=guard):
                if guard != TRUE:
                    return expr
                body, axes = self.sum(body, reducer, equation.axes, axes, equation)
                return replace(expr, body=body, axes=axes)
            case _:
                return ir.rebuild(expr, lambda child: self.visit(child, equation))

    def sum(
        self,
        value: ir.Expr,
        reducer: ir.Reducer,
        kept: tuple[ir.Axis, ...],
        summed: tuple[ir.Axis, ...],
        equation: ir.Equation,
    ) -> tuple[ir.Expr, tuple[ir.Axis, ...]]:
        """The summand and axes of a sum that is left when others were taken out of it."""
        while (step := self.step(value, reducer, kept, summed, equation)) is not None:
            value, summed = self.taken_out(step, reducer, kept, equation), step.summed
        return value, summed

    def step(
        self,
        value: ir.Expr,
        reducer: ir.Reducer,
        kept: tuple[ir.Axis, ...],
        summed: tuple[ir.Axis, ...],
        equation: ir.Equation,
    ) -> _Step | None:
        """What to sum first; None where nothing is worth it."""
        axes = (*kept, *summed)
        if reducer.name != "sum" or len(summed) < 2 or not all(map(is_range, axes)):
            return None
        if not (self.reorder or reducer.is_contraction or reducer.dtype.is_integer):
            return None
        factors = tuple(_factors(value, reducer.dtype))
        if not 2 <= len(factors) <= MOST_FACTORS or any(isinstance(n, ir.Reduce) for n in ir.walk(value)):
            return None
        if depends_on(self.program, (read.tensor for read in ir.reads(value)), equation.tensor):
            return None
        whole = _Product(factors, kept, summed)
        room = max(
            MOST_BYTES // reducer.dtype.itemsize, *(_points(a for a in axes if a.name in axes_in(f)) for f in factors)
        )
        fitting = (step for step in _steps(whole) if _points(step.inner.kept) <= room and _stays_small(step, whole))
        steps = sorted(fitting, key=lambda step: (step.cost, -step.lies_well))
        best = steps[0] if steps and steps[0].cost + LEAST_SAVED <= whole.cost else None
        question = f"factors of {equation.name} over {', '.join(a.name for a in summed)} to be summed first"
        return picks.choose(question, best, lambda: dict.fromkeys((best, *steps, None)), _as_text)

    def taken_out(self, step: _Step, reducer: ir.Reducer, kept: tuple[ir.Axis, ...], equation: ir.Equation) -> ir.Expr:
        """The summand that is left, which reads a temporary; the sum that fills it goes to `inner`."""
        inner, dtype = step.inner, reducer.dtype
        axes = _in_order(inner, kept)
        before = _Product((*inner.factors, *step.rest), kept, (*inner.summed, *step.summed)).cost
        name = unused(f"{equation.tensor}_inner", self.taken)
        self.taken.add(name)
        elements = tuple(axis(a.name) for a in axes)
        shape = tuple(a.upper[0] for a in axes)
        self.tensors.append(ir.Tensor(name, dtype, shape, "local", len(axes), equation.span))
        value = reduce(lambda left, right: ir.Op("mul", (left, right), dtype), inner.factors)
        zero = replace(reducer, neutral=ir.Const(0.0 if dtype.is_float else 0, dtype))
        self.inner.append(
            ir.Equation(name, name, axes, elements, value, reducer=zero, reduce_axes=inner.summed, span=equation.span)
        )
        first, rest = (", ".join(a.name for a in some) for some in (inner.summed, step.summed))
        self.notes.append(
            f"{name}[{', '.join(a.name for a in axes)}] is summed over {first} before {equation.tensor} is over "
            f"{rest}: as much as {step.cost} multiplications instead of {before}"
        )
        read: ir.Expr = ir.Read(name, elements, dtype, span=equation.span)
        return reduce(lambda left, right: ir.Op("mul", (left, right), dtype), step.rest, read)


def _factors(expr: ir.Expr, dtype: object) -> Iterator[ir.Expr]:
    """What is multiplied, in the dtype of the sum."""
    if isinstance(expr, ir.Op) and expr.name == "mul" and expr.dtype == dtype:
        for arg in expr.args:
            yield from _factors(arg, dtype)
    else:
        yield expr


def _steps(product: _Product) -> Iterator[_Step]:
    """The sums that can be taken out: of some factors, over the axes that no other knows."""
    known = [axes_in(factor) for factor in product.factors]
    numbers = range(len(product.factors))
    for count in range(1, len(product.factors)):
        for chosen in combinations(numbers, count):
            inside = frozenset().union(*(known[n] for n in chosen))
            outside = frozenset().union(*(known[n] for n in numbers if n not in chosen))
            own = tuple(a for a in product.summed if a.name in inside - outside)
            left = tuple(a for a in product.summed if a not in own)
            if own and left:
                around = tuple(a for a in (*product.kept, *left) if a.name in inside)
                inner = _Product(tuple(product.factors[n] for n in chosen), around, own)
                rest = tuple(product.factors[n] for n in numbers if n not in chosen)
                outer = _Product((inner.factors[0], *rest), product.kept, left)
                yield _Step(chosen, inner, rest, left, inner.cost + outer.cost + TEMPORARY * _points(around))


def _stays_small(step: _Step, product: _Product) -> bool:
    """Whether a temporary is no larger than a factor where sizes say how large it is: whatever they are, and though
    other axes of the factor may have one point."""
    kept = step.inner.kept
    if not _open(kept):
        return True
    known = (axes_in(factor) for factor in product.factors)
    factors = ([a for a in (*product.kept, *product.summed) if a.name in axes] for axes in known)
    return any(_open(kept) <= _open(axes) and _known_points(kept) <= _known_points(axes) for axes in factors)


def _open(axes: Iterable[ir.Axis]) -> set[str]:
    return {a.name for a in axes if length(a) is None}


def _known_points(axes: Iterable[ir.Axis]) -> int:
    return prod(length(a) or 1 for a in axes)


def _as_text(step: _Step | None) -> str:
    return "none" if step is None else " ".join(map(str, step.chosen))


def _points(axes: Iterable[ir.Axis]) -> int:
    return prod(map(assumed_length, axes))


def _names(axes: Iterable[ir.Axis]) -> set[str]:
    return {a.name for a in axes}


def _last(factor: ir.Expr) -> str | None:
    """The axis along which the elements of a factor are neighbours, if it is a read."""
    while isinstance(factor, ir.Cast):
        factor = factor.arg
    if isinstance(factor, ir.Read) and factor.subscripts:
        last = factor.subscripts[-1]
        if isinstance(last, Affine) and len(axes_of(last)) == 1:
            (name,) = axes_of(last)
            return name if last.coefficient(AxisRef(name)) == 1 else None
    return None


def _in_order(inner: _Product, kept: tuple[ir.Axis, ...]) -> tuple[ir.Axis, ...]:
    """The axes of a temporary: as its largest factor has them, but last one that lanes can take, if any in `kept`."""
    by_name = {a.name: a for a in inner.kept}
    sizes = {factor: _points(a for a in inner.kept if a.name in axes_in(factor)) for factor in inner.factors}
    by_size = sorted(inner.factors, key=lambda factor: -sizes[factor])
    scanned = [name for factor in by_size for read in ir.reads(factor) for name in _subscripted(read)]
    order = [name for name in dict.fromkeys((*scanned, *by_name)) if name in by_name]
    lanes = [a.name for a in (*inner.kept, *kept) if a.name in {_last(factor) for factor in inner.factors} & {*order}]
    if lanes:
        order.remove(lanes[-1])
        order.append(lanes[-1])
    return tuple(by_name[name] for name in order)


def _subscripted(read: ir.Read) -> Iterator[str]:
    for subscript in read.subscripts:
        if isinstance(subscript, Affine):
            yield from axes_outer_first(subscript)
