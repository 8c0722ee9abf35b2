"""Sizes that must be equal: one of them stands for all in every extent and range."""

from __future__ import annotations

from collections.abc import Iterable

from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, And, Atom, Compare, Condition, SizeRef, substitute
from polyopt.poly.intervals import as_range


class Equalities:
    """Equations between sizes, each solved for one size."""

    def __init__(self, conditions: Iterable[Condition] = ()) -> None:
        self._solved: dict[Atom, Affine] = {}
        for condition in conditions:
            for part in condition.parts if isinstance(condition, And) else (condition,):
                if isinstance(part, Compare) and part.op == "==":
                    self.add(part.left)

    def add(self, difference: Affine) -> None:
        """Takes in `difference == 0`; one that cannot be solved for a size is left out."""
        difference = self.apply(difference)
        for atom, factor in reversed(difference.terms):
            if isinstance(atom, SizeRef) and factor in (1, -1) and not _occurs_twice(difference, atom):
                solution = (difference - Affine(0, ((atom, factor),))) * -factor
                self._solved = {name: _replaced(value, atom, solution) for name, value in self._solved.items()}
                self._solved[atom] = solution
                return

    def apply(self, expression: Affine) -> Affine:
        """The expression with every solved size replaced."""
        return substitute(expression, self._solved.get) if self._solved else expression

    def axis(self, axis: ir.Axis) -> ir.Axis:
        """The range with every solved size replaced."""
        if not self._solved:
            return axis
        return as_range(axis.name, map(self.apply, axis.lower), map(self.apply, axis.upper))


def _occurs_twice(expression: Affine, atom: SizeRef) -> bool:
    """Whether the size stands under a floor as well."""
    without = expression - Affine(0, ((atom, expression.coefficient(atom)),))
    return _replaced(without, atom, Affine(0)) != without


def _replaced(expression: Affine, atom: Atom, value: Affine) -> Affine:
    return substitute(expression, lambda other: value if other == atom else None)
