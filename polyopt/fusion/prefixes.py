"""Sums over a prefix, each from the one before: `y[n] = sum(x[k], k, where=k <= n)` in n additions, not n squared.

A reduction whose terms do not know the result's index, and of which a guard `k <= n + c` takes one more point for each
step of it, is a recurrence: the first result is reduced as it was written, each other one is the result before and the
terms of one point. So are cumulative sums and maxima, numbers of earlier elements, suffixes (`k >= n`), along one
index after the other integral images, and what stands inside another reduction, where it has no more results than
something that it reads has elements. Source: simplifying reductions, [Gautam06].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import (
    TRUE,
    Affine,
    And,
    AxisRef,
    Compare,
    Condition,
    axes_of,
    axis,
    conjunction,
    is_nonnegative,
    map_condition,
    substitute,
)
from polyopt.fusion.axes import at_axes, axes_in, condition_axes, length, plain_axes
from polyopt.fusion.rewrite import depends_on, nonempty
from polyopt.fusion.short_sums import COMBINE, is_whole_sum
from polyopt.names import unused

LEAST_STEPS = 256
"""Results from which the additions that are saved take longer than waiting for the result before."""

_AT_MOST = {"<=": (1, 0), "<": (1, 1), ">=": (-1, 0), ">": (-1, 1)}
"""Comparisons with 0 as `factor * left + shift <= 0`."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """A reduction that is made step by step.

    whole:   as it was written
    step:    the axis of the equation along which it grows
    steps:   along it, or enough where sizes decide
    grows:   1 where more is taken as the step's axis grows, -1 as it falls
    summed:  the axis of which each step takes one more value
    value:   that value, where the step is at its axis
    is_last: whether it is the greatest that is taken
    others:  what else the guard asks
    """

    whole: ir.Reduce
    step: str
    steps: int
    grows: int
    summed: ir.Axis
    value: Affine
    is_last: bool
    others: tuple[Condition, ...]

    @property
    def left(self) -> tuple[ir.Axis, ...]:
        """What each step still reduces."""
        return tuple(a for a in self.whole.axes if a is not self.summed)

    @property
    def inner(self) -> tuple[Condition, ...]:
        """What the guard asks of each term of a step."""
        names = {a.name for a in self.left}
        return tuple(part for part in self.others if condition_axes(part) & names)

    def at(self) -> dict[str, Affine]:
        return {self.summed.name: self.value}


@dataclass(frozen=True, slots=True)
class Stepped:
    """The program with its prefixes made step by step, and a sentence for each."""

    program: ir.Program
    notes: tuple[str, ...] = ()


def step(program: ir.Program, *, in_order: bool) -> Stepped:
    """The program with its prefixes made step by step.

    in_order: whether floats must be combined as the reduction's axes run, to the last bit
    """
    stepper = _Stepper(program, in_order)
    stepper.run()
    done = replace(program, tensors=tuple(stepper.tensors), equations=tuple(stepper.done))
    return Stepped(done, tuple(stepper.notes))


def find(program: ir.Program, equation: ir.Equation, whole: ir.Reduce, *, in_order: bool) -> Prefix | None:
    """How a reduction in the value of an equation is made step by step, if it can be."""
    if whole.reducer.name not in COMBINE or equation.guard != TRUE:
        return None
    if any(depends_on(program, [read.tensor], equation.tensor) for read in ir.reads(whole.body)):
        return None  # each of its values may need those of other equations in between
    parts = _parts(whole.guard)
    for number, part in enumerate(parts):
        others = (*parts[:number], *parts[number + 1 :])
        known = axes_in(replace(whole, guard=conjunction(*others)))
        for along in (a for a in equation.axes if a.name not in known):
            prefix = _growing(part, along, whole, others)
            if prefix is not None and _suits(equation, prefix, in_order=in_order):
                return prefix
    return None


def _suits(equation: ir.Equation, prefix: Prefix, *, in_order: bool) -> bool:
    """Whether a prefix may be made step by step, and has steps."""
    whole = prefix.whole
    is_exact = not whole.dtype.is_float or whole.reducer.name in ("max", "min")
    keeps_order = is_exact or (prefix.is_last and len(whole.axes) == 1)
    own = [a for a in equation.axes if a.name in axes_in(whole)]
    return (
        (keeps_order or not in_order)
        and prefix.steps > 1
        and all(any(map(is_nonnegative, a.lower)) for a in own)
        and all(length(a) != 0 for a in equation.axes)
        and (whole.reducer.neutral is not None or not prefix.inner)
    )


def _is_plain(one: ir.Axis) -> bool:
    """Whether its bounds are two, and those of no other axis."""
    return len(one.lower) == 1 == len(one.upper) and not axes_of(one.lower[0]) | axes_of(one.upper[0])


def _extent(one: ir.Axis) -> int:
    """How many values a plain axis has, from n to n + 1 also; enough where sizes decide."""
    extent = one.upper[0] - one.lower[0]
    return extent.constant if extent.is_constant else LEAST_STEPS


def _growing(part: Condition, along: ir.Axis, whole: ir.Reduce, others: tuple[Condition, ...]) -> Prefix | None:
    """The prefix for a guard that takes one more value of a summed axis for each step of an axis."""
    if not isinstance(part, Compare) or part.op not in _AT_MOST:
        return None
    factor, shift = _AT_MOST[part.op]
    bound = part.left * factor + shift
    points = [a for a in whole.axes if a.name in axes_of(bound)]
    if len(points) != 1:
        return None
    of_point, of_step = (bound.coefficient(AxisRef(a.name)) for a in (points[0], along))
    rest = bound - axis(points[0].name) * of_point
    if abs(of_point) != 1 or abs(of_step) != 1 or not (_is_plain(points[0]) and _is_plain(along)):
        return None
    if {points[0].name, along.name} & axes_of(rest - axis(along.name) * of_step):
        return None  # inside a quotient
    steps = min(_extent(along), _extent(points[0]))
    return Prefix(whole, along.name, steps, -of_step, points[0], rest * -of_point, of_point == 1, others)


def _parts(guard: Condition) -> tuple[Condition, ...]:
    return guard.parts if isinstance(guard, And) else (guard,)


@dataclass(slots=True)
class _Stepper:
    """Rewrites one equation after the other, and those that come of it."""

    program: ir.Program
    in_order: bool
    tensors: list[ir.Tensor] = field(default_factory=list)
    done: list[ir.Equation] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)

    def run(self) -> None:
        self.tensors = list(self.program.tensors)
        self.taken = {t.name for t in self.tensors} | {e.name for e in self.program.equations}
        self.taken |= set(self.program.sizes)
        given = {equation.name for equation in self.program.equations}
        waiting = list(reversed(self.program.equations))
        while waiting:
            equation = waiting.pop()
            made: list[ir.Equation] = []
            if equation.is_accumulation:
                equation = self.as_value(equation)
            alone = self.alone(equation) if equation.name in given else None
            if alone is not None:
                self.define(equation, alone, equation.tensor, made)
            else:
                self.done.append(self.equation(equation, made))
            waiting.extend(reversed(made))

    def equation(self, equation: ir.Equation, made: list[ir.Equation]) -> ir.Equation:
        """The equation, which reads what `made` defines."""
        known: dict[tuple[ir.Reduce, tuple[ir.Axis, ...]], ir.Expr] = {}

        def visit(expr: ir.Expr, around: ir.Equation) -> ir.Expr:
            """around: the equation as if it had an element for each point that the expression is computed at"""
            if isinstance(expr, ir.Where):
                return expr  # what it does not choose may have nothing to read
            if not isinstance(expr, ir.Reduce):
                return ir.rebuild(expr, lambda child: visit(child, around))
            if (expr, around.axes) not in known:
                prefix = self.chosen(around, expr)
                if prefix is None or (around.axes != equation.all_axes and not _is_read_whole(prefix, around)):
                    known[expr, around.axes] = inside(expr, around)
                else:
                    known[expr, around.axes] = self.made(around, prefix, made)
            return known[expr, around.axes]

        def inside(whole: ir.Reduce, around: ir.Equation) -> ir.Expr:
            names = {a.name for a in around.axes}
            if whole.guard != TRUE or any(a.name in names for a in whole.axes):
                return whole
            return replace(whole, body=visit(whole.body, replace(around, axes=(*around.axes, *whole.axes))))

        around = replace(equation, axes=equation.all_axes, reduce_axes=())
        return replace(equation, value=visit(equation.value, around))

    def chosen(self, equation: ir.Equation, whole: ir.Reduce) -> Prefix | None:
        """How a reduction is made step by step, where that is worth it or a pick asks for it."""
        prefix = find(self.program, equation, whole, in_order=self.in_order)
        if prefix is None or not picks.choose(
            f"{equation.tensor} along {prefix.step} from the one before",
            prefix.steps >= LEAST_STEPS,
            lambda: (True, False),
        ):
            return None
        return prefix

    def alone(self, equation: ir.Equation) -> Prefix | None:
        """The prefix that is all of a tensor, whose elements can be made from one another."""
        whole = equation.value
        if (
            not isinstance(whole, ir.Reduce)
            or equation.is_accumulation
            or not is_whole_sum(self.program, equation)
            or not {a.name for a in equation.axes} <= axes_in(whole)
        ):
            return None
        return self.chosen(equation, whole)

    def as_value(self, equation: ir.Equation) -> ir.Equation:
        """An accumulation that is all there is of its tensor and has a prefix, as a reduction in a value."""
        assert equation.reducer is not None, "an accumulation has a reducer"
        reducer, guard, tensor = equation.reducer, equation.guard, self.program.tensor(equation.tensor)
        whole = ir.Reduce(reducer, equation.value, equation.reduce_axes, reducer.dtype, guard, equation.span)
        value = whole if whole.dtype == tensor.dtype else ir.Cast(whole, tensor.dtype)
        as_value = replace(equation, value=value, guard=TRUE, reducer=None, reduce_axes=())
        summed = {a.name for a in equation.reduce_axes}
        if (
            reducer.neutral is None
            or not all(condition_axes(part) & summed for part in _parts(guard))
            or not is_whole_sum(self.program, replace(equation, guard=TRUE))
            or self.chosen(as_value, whole) is None
        ):
            return equation
        return as_value

    def made(self, equation: ir.Equation, prefix: Prefix, made: list[ir.Equation]) -> ir.Read:
        """The read of an element of a new tensor, which `made` defines."""
        name, dtype = self.unused(f"{equation.tensor}_prefix"), prefix.whole.dtype
        own = [a for a in equation.axes if a.name in axes_in(prefix.whole)]
        shape = tuple(a.upper[0] for a in own)
        self.tensors.append(ir.Tensor(name, dtype, shape, "local", len(own), equation.span))
        others = [a for a in equation.axes if a not in own]
        self.define(equation, prefix, name, made, nonempty(others, frozenset(a.name for a in own)))
        return ir.Read(name, tuple(axis(a.name) for a in own), dtype, span=equation.span)

    def define(
        self, equation: ir.Equation, prefix: Prefix, name: str, made: list[ir.Equation], where: Condition = TRUE
    ) -> None:
        """A tensor's elements along the axis of the step: the first one, and each from the one before.

        where: that the equation has a point for them
        """
        whole, span = prefix.whole, equation.span
        own = [a for a in equation.axes if a.name in axes_in(whole)]
        (along,) = (a for a in own if a.name == prefix.step)
        here = tuple(axis(a.name) for a in own)
        back = tuple(place - prefix.grows * (a is along) for a, place in zip(own, here, strict=True))
        first, others = _divided(along, prefix.grows)
        following = _next(prefix, ir.Read(name, back, whole.dtype, span=span), others)
        for label, steps, value in ((name, first, whole), (self.unused(f"{name}_next"), others, following)):
            axes = tuple(steps if a is along else a for a in own)
            made.append(ir.Equation(label, name, axes, here, value, where, span=span))
        self.notes.append(f"{name} is made along {prefix.step}, each from the one before and one {prefix.summed.name}")

    def unused(self, wanted: str) -> str:
        name = unused(wanted, self.taken)
        self.taken.add(name)
        return name


def _is_read_whole(prefix: Prefix, around: ir.Equation) -> bool:
    """Whether something that is reduced has an element for each result, so that these take no more room."""
    results = {a.name for a in around.axes if a.name in axes_in(prefix.whole)}
    reads = (plain_axes(read) or () for read in ir.reads(prefix.whole.body))
    return any(results <= {prefix.step if name == prefix.summed.name else name for name in names} for names in reads)


def _divided(along: ir.Axis, grows: int) -> tuple[ir.Axis, ir.Axis]:
    """The first step, if there is one, and the others."""
    (lower,), (upper,) = along.lower, along.upper
    bounds = (lower, lower + 1) if grows == 1 else (upper - 1, upper)
    first = replace(along, lower=(bounds[0],), upper=(bounds[1],))
    if not is_nonnegative(upper - lower - 1):
        first = replace(first, lower=tuple({bounds[0], lower}), upper=tuple({bounds[1], upper}))
    return first, replace(along, lower=(lower + 1,)) if grows == 1 else replace(along, upper=(upper - 1,))


def _next(prefix: Prefix, before: ir.Read, others: ir.Axis) -> ir.Expr:
    """A result from the one before it. others: the steps but the first"""
    whole, at = prefix.whole, prefix.at()
    term = at_axes(whole.body, at)
    if prefix.left:
        inner = conjunction(*(_moved(part, at) for part in prefix.inner))
        term = replace(whole, body=term, axes=prefix.left, guard=inner)
    combined = ir.Op(COMBINE[whole.reducer.name], (before, term), whole.dtype)
    outer = [_moved(part, at) for part in prefix.others if part not in prefix.inner]
    guard = conjunction(*outer, *_inside(prefix, others))
    return combined if guard == TRUE else ir.Where(guard, combined, before, whole.dtype)


def _moved(condition: Condition, at: Mapping[str, Affine]) -> Condition:
    return map_condition(
        condition, lambda affine: substitute(affine, lambda a: at.get(a.name) if isinstance(a, AxisRef) else None)
    )


def _inside(prefix: Prefix, others: ir.Axis) -> Iterator[Condition]:
    """That the value which a step takes is one of the summed axis, where that is not known."""
    (lower,), (upper,) = prefix.summed.lower, prefix.summed.upper
    ends = (others.lower[0], others.upper[0] - 1)
    for slack in (prefix.value - lower, upper - 1 - prefix.value):
        factor = slack.coefficient(AxisRef(prefix.step))
        least = slack - axis(prefix.step) * factor + (ends[0] if factor > 0 else ends[1]) * factor
        if not is_nonnegative(least):
            yield Compare(slack, ">=")
