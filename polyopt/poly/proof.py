"""The ground that proofs about a program stand on: its sizes, what is assumed of them, and what a claim needs.

A claim is refuted by a set of counterexamples. With concrete sizes any counterexample is an error. With symbolic
sizes the claim may hold for some of them; then it becomes a condition that is checked at each call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import islpy as isl

from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, Compare, Condition, conjunction, evaluate, size
from polyopt.errors import PolyoptError, Span
from polyopt.poly.contexts import Scope
from polyopt.poly.space import Point, Space, coalesced, condition_from_set, isl_errors, operation_budget, sample_point

Refutation = Callable[[Point], PolyoptError]
"""Makes the error that a counterexample deserves."""

_MOST_CASES = 2

_ORDINARY = 2
"""A claim that fails whenever all sizes are at least this is an error, not a condition on the sizes."""


class Proof:
    """Collects the conditions on sizes under which the claims made so far hold."""

    def __init__(self, program: ir.Program) -> None:
        self.program = program
        self.sizes = program.sizes
        self.conditions: list[Condition] = []
        self._assumed = self._of_sizes(self._at_least(0), *program.conditions)

    def shape(self, tensor: str) -> tuple[Affine, ...]:
        shape = self.program.tensor(tensor).shape
        assert shape is not None, f"the shape of {tensor} is resolved before anything is proved"
        return shape

    def space(self, scope: Scope, more: Iterable[str] = ()) -> Space:
        """The space of the points of a scope, perhaps with more dimensions after its axes."""
        return Space("", (*(axis.name for axis in scope.axes), *more), self.sizes)

    def refute(self, counterexamples: isl.Set, error: Refutation, *, plain: bool = True) -> None:
        """Raises the error of a counterexample, unless there is none for the sizes that a condition leaves.

        plain: whether a plain condition that leaves out some empty tensors is preferred to one of many cases
        """
        if counterexamples.is_empty():
            return
        if self.sizes:
            counterexamples = counterexamples.intersect_params(self._assumed)
        if not counterexamples.is_empty():
            self._refute(counterexamples, error, plain=plain)

    def _refute(self, counterexamples: isl.Set, error: Refutation, *, plain: bool) -> None:
        if self.sizes:
            holds = self._assumed.subtract(counterexamples.params())
            ordinary = self._of_sizes(self._at_least(_ORDINARY))
            if not holds.intersect(ordinary).is_empty():
                needed = self._simplest(holds) if plain else coalesced(holds.gist(self._assumed))
                self.conditions.append(condition_from_set(needed))
                self._assumed = coalesced(self._assumed.intersect(needed))
                return
            usual = counterexamples.intersect_params(ordinary)
            counterexamples = counterexamples if usual.is_empty() else usual
        point = sample_point(counterexamples)
        assert point is not None, "a set that is not empty has a point"
        raise error(point)

    def _simplest(self, holds: isl.Set) -> isl.Set:
        """What to ask of the sizes so that they lie in `holds`, beyond what is assumed.

        Of an empty tensor a claim may hold for no other reason than that. Where a condition has more than
        `_MOST_CASES` cases, such ones are left out if that makes it a plain one.
        """
        exact = coalesced(holds.gist(self._assumed))
        if exact.n_basic_set() <= _MOST_CASES:
            return exact
        positive = self._of_sizes(self._at_least(1))
        plain = coalesced(holds.intersect(positive).gist(self._assumed.intersect(positive)))
        wrong = self._assumed.intersect(plain).subtract(holds)
        if wrong.is_empty():
            return plain
        nonzero = {name: self._of_sizes(Compare(size(name) - 1, ">=")) for name in self.sizes}
        for name in self.sizes:
            if wrong.is_disjoint(nonzero[name]):
                return plain.intersect(nonzero[name])
        return exact

    def _at_least(self, value: int) -> Condition:
        return conjunction(*(Compare(size(name) - value, ">=") for name in self.sizes))

    def _of_sizes(self, *conditions: Condition) -> isl.Set:
        return Space("", (), self.sizes).condition(conjunction(*conditions)).params()


@contextmanager
def decided(claim: str) -> Iterator[None]:
    """Bounds the work of the block; raises `ScheduleError` where a claim takes more than that."""
    with isl_errors(f"decide {claim}"), operation_budget():
        yield


def domain(space: Space, scope: Scope) -> isl.Set:
    """The points where the scope's condition holds; dimensions of the space beyond the scope's are free."""
    return space.box(scope.axes).intersect(space.condition(scope.condition))


# --- text ----------------------------------------------------------------------------------------------------


def values_at(subscripts: Sequence[ir.Subscript], point: Point) -> tuple[int | str, ...]:
    """The subscripts' values at a point; data stay data."""
    return tuple(
        int(evaluate(subscript, point.axes, point.sizes)) if isinstance(subscript, Affine) else "..."
        for subscript in subscripts
    )


def element(tensor: str, values: Iterable[int | str]) -> str:
    """`x[3, 0]`."""
    return f"{tensor}[{', '.join(str(value) for value in values) or '()'}]"


def point_text(point: Point, names: Iterable[str]) -> str:
    """`at i = 0, j = 3 with N = 5`: the named axes and all sizes."""
    axes = ", ".join(f"{name} = {point.axes[name]}" for name in names)
    sizes = ", ".join(f"{name} = {value}" for name, value in point.sizes.items())
    return " ".join(part for part in (axes and f"at {axes}", sizes and f"with {sizes}") if part)


def place(span: Span | None) -> str:
    """` (kernel.py:3)`, or nothing."""
    return f" ({span})" if span is not None else ""
