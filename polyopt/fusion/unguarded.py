"""Sums of products that a condition leaves some results of, computed for all of them, on a GPU.

A tile of a contraction is a rectangle: the scores of a causal attention,

    p[i, t] = where(t <= i, sum(q[i, d] * k[t, d], d), -inf)

are a triangle, which no tile has. Computed everywhere they are a product like any other, by tensor cores where these
suit, of which the condition takes what it wants. What is computed in excess is read by nobody.

Exact: all that is asked for stays the same, bit for bit. Only where every operand is there at every point, and where
the condition holds often enough.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from itertools import count
from math import sqrt

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import (
    TRUE,
    Affine,
    Condition,
    Not,
    axes_of,
    axis,
    condition_affines,
    conjunction,
    evaluate,
    holds,
    sizes_of,
)
from polyopt.fusion.axes import ASSUMED, axes_in
from polyopt.fusion.inside import reads_inside
from polyopt.fusion.rewrite import depends_on
from polyopt.fusion.short_sums import is_contraction, is_whole_sum
from polyopt.names import unused

WORTH = 8.0
"""How many times as fast tiles are, at least, as a thread for each result that reads all operands for itself."""

SAMPLES = 1024
"""Points at which a condition is asked."""


@dataclass(frozen=True, slots=True)
class Unguarded:
    """The program with such sums, and a sentence for each."""

    program: ir.Program
    notes: tuple[str, ...] = ()


def unguard(program: ir.Program) -> Unguarded:
    """The program whose contractions are computed everywhere where that is worth it."""
    found = _Finder(program, {t.name for t in program.tensors} | {e.name for e in program.equations})
    equations = tuple(one for equation in program.equations for one in found.equation(equation))
    return Unguarded(replace(program, tensors=(*program.tensors, *found.tensors), equations=equations), found.notes)


@dataclass(slots=True)
class _Finder:
    """Rewrites one equation after the other. taken: names; tensors: new ones"""

    program: ir.Program
    taken: set[str]
    tensors: tuple[ir.Tensor, ...] = ()
    notes: tuple[str, ...] = ()
    made: dict[ir.Reduce, ir.Equation] = field(default_factory=dict)

    def equation(self, equation: ir.Equation) -> Iterator[ir.Equation]:
        """The equation, after those of the sums that it then reads."""
        self.made = {}
        if equation.is_accumulation or not all(map(_is_plain, equation.axes)):
            yield equation
            return
        if self.may_go(equation):
            self.notes += (f"{equation.tensor} is computed everywhere, by tiles: its sums are products",)
            equation = replace(equation, guard=TRUE)
        value = self.visit(equation.value, equation, TRUE)
        yield from self.made.values()
        yield replace(equation, value=value)

    def may_go(self, equation: ir.Equation) -> bool:
        """Whether a local tensor is made of contractions under a guard that it can do without."""
        if equation.guard == TRUE or self.program.tensor(equation.tensor).role != "local":
            return False
        if not is_whole_sum(self.program, replace(equation, guard=TRUE)):
            return False
        sums = [n for n in _outside_branches(equation.value) if isinstance(n, ir.Reduce)]
        return (
            any(self.is_product(node, equation.axes) for node in sums)
            and self.is_defined(equation.value, equation, equation.axes)
            and share(equation.guard, equation.axes) >= 1 / WORTH
        )

    def visit(self, expr: ir.Expr, equation: ir.Equation, condition: Condition) -> ir.Expr:
        """The expression with contractions in branches read from tensors of their own. condition: of the branch"""
        match expr:
            case ir.Where(where, then, otherwise):
                return replace(
                    expr,
                    then=self.visit(then, equation, conjunction(condition, where)),
                    otherwise=self.visit(otherwise, equation, conjunction(condition, Not(where))),
                )
            case ir.Reduce():
                return self.moved(expr, equation, condition) if self.should_move(expr, equation, condition) else expr
            case _:
                return ir.rebuild(expr, lambda child: self.visit(child, equation, condition))

    def should_move(self, node: ir.Reduce, equation: ir.Equation, condition: Condition) -> bool:
        if condition == TRUE or equation.guard != TRUE or not self.is_product(node, equation.axes):
            return False
        axes = self.axes_of(node, equation)
        asked = frozenset().union(*(axes_of(affine) for affine in condition_affines(condition)))
        return (
            bool(asked & {a.name for a in axes})
            and self.is_defined(node, equation, axes)
            and share(condition, equation.axes) >= 1 / WORTH
        )

    @staticmethod
    def axes_of(node: ir.Reduce, equation: ir.Equation) -> tuple[ir.Axis, ...]:
        used = axes_in(node)
        return tuple(a for a in equation.axes if a.name in used)

    def is_product(self, node: ir.Reduce, free: Sequence[ir.Axis]) -> bool:
        """Whether a sum's operands are read again along two axes, as tiles want them."""
        names = frozenset(a.name for a in free)
        reads = list(dict.fromkeys(ir.reads(node.body)))
        plain = not any(isinstance(n, ir.Reduce | ir.Where) for n in ir.walk(node.body)) and node.guard == TRUE
        apart = all(not axes_of(bound) & names for a in node.axes for bound in (*a.lower, *a.upper))
        return plain and apart and is_contraction([frozenset(axes_in(read)) for read in reads], names)

    def is_defined(self, expr: ir.Expr, equation: ir.Equation, axes: Sequence[ir.Axis]) -> bool:
        """Whether an expression has a value at every point of axes, before the equation has any."""
        reads = list(ir.reads(expr))
        if any(isinstance(s, ir.DataIndex) for read in reads for s in read.subscripts):
            return False  # the data may say anything where it is not used
        for name in dict.fromkeys(read.tensor for read in reads):
            made = self.program.definitions(name)
            if self.program.tensor(name).role != "input" and not all(is_whole_sum(self.program, e) for e in made):
                return False
        is_earlier = not depends_on(self.program, (read.tensor for read in reads), equation.tensor)
        return is_earlier and reads_inside(self.program, expr, axes)

    def moved(self, node: ir.Reduce, equation: ir.Equation, condition: Condition) -> ir.Read:
        """The read of a sum that is a tensor of its own."""
        axes = self.axes_of(node, equation)
        subscripts = tuple(axis(a.name) for a in axes)
        if node not in self.made:
            name = unused(f"{equation.tensor}_{node.reducer.name}", self.taken)
            self.taken.add(name)
            shape = tuple(a.upper[0] for a in axes)
            self.tensors += (ir.Tensor(name, node.dtype, shape, "local", len(axes), node.span),)
            self.made[node] = ir.Equation(name, name, axes, subscripts, node, span=equation.span)
            self.notes += (f"{name} is computed everywhere, by tiles, though {equation.tensor} has a condition for it",)
        return ir.Read(self.made[node].tensor, subscripts, node.dtype, span=node.span)


def share(condition: Condition, axes: Sequence[ir.Axis]) -> float:
    """The share of the points of axes where a condition holds, about; a size that is not known is taken for 512."""
    affines = [*condition_affines(condition), *(own.upper[0] for own in axes)]
    sizes = dict.fromkeys((name for affine in affines for name in sizes_of(affine)), ASSUMED)
    numbers = np.arange(SAMPLES)
    points = {
        own.name: (numbers * root % 1 * evaluate(own.upper[0], {}, sizes)).astype(int)
        for own, root in zip(axes, _roots(), strict=False)
    }
    return float(np.mean(holds(condition, points, sizes)))


def _roots() -> Iterator[float]:
    """Numbers of which no two go together: square roots of primes."""
    primes: list[int] = []
    for candidate in count(2):
        if all(candidate % prime for prime in primes):
            primes.append(candidate)
            yield sqrt(candidate)


def _is_plain(own: ir.Axis) -> bool:
    """Whether an axis goes from 0 to an end that no other axis moves."""
    return own.lower == (Affine(0),) and len(own.upper) == 1 and not axes_of(own.upper[0])


def _outside_branches(expr: ir.Expr) -> Iterator[ir.Expr]:
    yield expr
    if not isinstance(expr, ir.Where | ir.Reduce):
        for child in ir.children(expr):
            yield from _outside_branches(child)
