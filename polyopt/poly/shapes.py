"""Shapes of defined tensors: the smallest box from 0 that holds every element their definitions reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain

from polyopt.dsl import ir
from polyopt.dsl.affine import TRUE, Affine, Compare, Condition, axes_of, condition_affines
from polyopt.errors import DefinitionError
from polyopt.poly.intervals import extreme, is_nonnegative, tightest
from polyopt.poly.space import Space, greatest

Ranges = Mapping[tuple[int, str], ir.Axis]


class Extents:
    """Extents of all tensors: given ones, and inferred ones that grow as ranges of definitions become known."""

    def __init__(self, program: ir.Program) -> None:
        self._program = program
        self._fixed = {t.name: t.shape for t in program.tensors if t.shape is not None}
        self._definitions = {t.name: program.definitions(t.name) for t in program.tensors if t.shape is None}
        self._inferred: dict[tuple[str, int], Affine] = {}
        self._final: set[tuple[str, int]] = set()
        self._conditions: list[Condition] = []

    def is_fixed(self, tensor: str) -> bool:
        """Whether the extents are given: a parameter's, or by `shape=`."""
        return tensor in self._fixed

    def get(self, tensor: str, dimension: int, *, final: bool = False) -> Affine | None:
        """The extent as far as it is known (`final`: only if it cannot grow any more)."""
        if tensor in self._fixed:
            return self._fixed[tensor][dimension]
        if final and (tensor, dimension) not in self._final:
            return None
        return self._inferred.get((tensor, dimension))

    def value(self, tensor: str, dimension: int) -> Affine:
        """The extent, known to be known."""
        extent = self.get(tensor, dimension)
        assert extent is not None, f"the extent of dimension {dimension} of {tensor} is not known yet"
        return extent

    def update(self, known: Mapping[str, Ranges]) -> None:
        """Takes in the ranges found so far, by equation."""
        for name, definitions in self._definitions.items():
            for dimension in range(self._program.tensor(name).rank):
                if (name, dimension) not in self._final:
                    self._update_one(name, dimension, definitions, known)

    def _update_one(
        self, name: str, dimension: int, definitions: Sequence[ir.Equation], known: Mapping[str, Ranges]
    ) -> None:
        ready = [d for d in definitions if _is_ready(d, dimension, known[d.name])]
        reached = [_reach(d, dimension, known[d.name], self._program.sizes) for d in ready]
        if reached:
            extent, conditions = _greatest_of(name, dimension, reached, ready)
            self._inferred[name, dimension] = extent
        if len(ready) == len(definitions):
            self._final.add((name, dimension))
            if reached:
                self._conditions += conditions

    def shape(self, tensor: ir.Tensor) -> tuple[Affine, ...]:
        """The shape. Raises `DefinitionError` for a tensor that nothing defines."""
        if tensor.name in self._fixed:
            return self._fixed[tensor.name]
        if not self._definitions[tensor.name]:
            raise _undefined(tensor)
        return tuple(self.value(tensor.name, dimension) for dimension in range(tensor.rank))

    def conditions(self) -> list[Condition]:
        """What the sizes must fulfil for the inferred shapes to hold."""
        return self._conditions


def _is_ready(equation: ir.Equation, dimension: int, ranges: Ranges) -> bool:
    """Whether the ranges of all axes that decide about the extent are known."""
    subscript = equation.subscripts[dimension]
    if isinstance(subscript, ir.DataIndex):
        raise _scatter_without_shape(equation, dimension)
    return all((0, name) in ranges for name in _involved(equation, subscript))


def _involved(equation: ir.Equation, subscript: Affine) -> list[str]:
    """The axes that decide which elements are reached along a dimension: the subscript's and those of the guard."""
    guard = condition_affines(_reach_guard(equation))
    names = set(chain(axes_of(subscript), *(axes_of(part) for part in guard)))
    return [axis.name for axis in equation.axes if axis.name in names]


def _reach_guard(equation: ir.Equation) -> Condition:
    """The guard of what is covered: an accumulation covers its left side whatever its guard."""
    return TRUE if equation.is_accumulation else equation.guard


def _reach(equation: ir.Equation, dimension: int, ranges: Ranges, sizes: tuple[str, ...]) -> Affine:
    """One more than the greatest value of the subscript; not below 0 where that shows."""
    subscript = equation.subscripts[dimension]
    assert isinstance(subscript, Affine), "a data subscript has a given extent"
    names = _involved(equation, subscript)
    axes = {name: ranges[0, name] for name in names}
    if _reach_guard(equation) == TRUE:
        last = extreme(subscript, axes, largest=True)
        if last is not None:
            return _not_negative(last + 1)
    space = Space("", tuple(names), sizes)
    domain = space.box(list(axes.values())).intersect(space.condition(_reach_guard(equation)))
    values = domain.apply(space.access("", [subscript]))
    if values.is_empty():
        return Affine(0)
    last = greatest(values, 0)
    if last is None:
        raise _no_extent(equation.tensor, dimension, equation, f"the greatest element has no affine index: {values}")
    return _not_negative(last + 1)


def _not_negative(extent: Affine) -> Affine:
    return Affine(max(extent.constant, 0)) if extent.is_constant else extent


def _greatest_of(
    name: str, dimension: int, reached: Sequence[Affine], definitions: Sequence[ir.Equation]
) -> tuple[Affine, list[Condition]]:
    """The greatest extent, and the conditions on sizes under which it is the greatest and not negative."""
    candidates = tightest(reached, largest=True)
    conditions: list[Condition] = []
    for candidate in candidates:
        differences = [candidate - other for other in candidates if other != candidate]
        if all(_grows(difference) for difference in differences):
            conditions += [Compare(difference, ">=") for difference in differences]
            if not any(is_nonnegative(one) for one in candidates):
                conditions.append(Compare(candidate, ">="))
            return candidate, conditions
    shown = " or ".join(str(candidate) for candidate in candidates)
    raise _no_extent(name, dimension, definitions[-1], f"its extent is {shown}, whichever is larger")


def _grows(difference: Affine) -> bool:
    """Whether an expression of sizes is at least 0 once the sizes are large enough."""
    return is_nonnegative(difference - difference.constant)


def _no_extent(tensor: str, dimension: int, equation: ir.Equation, reason: str) -> DefinitionError:
    return DefinitionError(
        f"the extent of dimension {dimension} of '{tensor}' is not an affine expression of sizes",
        where=equation.span,
        why=reason,
        fix=f'say its shape: po.tensor("{tensor}", shape=(...))',
        facts={"tensor": tensor, "dimension": dimension},
    )


def _scatter_without_shape(equation: ir.Equation, dimension: int) -> DefinitionError:
    return DefinitionError(
        f"'{equation.tensor}' needs a shape: dimension {dimension} has a data subscript",
        where=equation.span,
        why="which elements a data subscript reaches is known only as the kernel runs",
        fix=f'po.tensor("{equation.tensor}", shape=(...))',
        facts={"tensor": equation.tensor, "dimension": dimension},
    )


def _undefined(tensor: ir.Tensor) -> DefinitionError:
    return DefinitionError(
        f"tensor '{tensor.name}' has no definition",
        where=tensor.span,
        fix=f"define it: {tensor.name}[...] = ...",
        facts={"tensor": tensor.name},
    )
