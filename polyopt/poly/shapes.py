"""Shapes of defined tensors: the smallest box from 0 that holds every element their definitions reach."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, product
from typing import Literal

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import (
    FALSE,
    TRUE,
    Affine,
    Atom,
    Compare,
    Condition,
    ExtentRef,
    axes_of,
    axis,
    condition_affines,
    conjunction,
    evaluate,
    is_axis,
    is_nonnegative,
    sizes_of,
    substitute,
)
from polyopt.dsl.recognise import fold
from polyopt.errors import DefinitionError
from polyopt.poly.equalities import Equalities
from polyopt.poly.intervals import extreme, tightest
from polyopt.poly.proof import Proof, Refutation, decided
from polyopt.poly.space import Space, coalesced, greatest, is_greatest, named

Ranges = Mapping[tuple[int, str], ir.Axis]
"""The ranges of an equation's axes, by binder and name (`contexts.Scope`)."""

_ELEMENT = "e"
"""The one dimension of a set of elements along a dimension."""

_LARGE = 1 << 20
"""Symbolic extents are compared at this size: which of two bounds is meant shows when no size is small."""


@dataclass(frozen=True, slots=True)
class _Unguarded:
    """An extent without guards, what it asks of the sizes, and the definitions that it is the extent of."""

    extent: Affine
    needs: tuple[Compare, ...]
    definitions: tuple[tuple[ir.Equation, Ranges], ...]


class Extents:
    """Extents of all tensors: given ones, and inferred ones that grow as ranges of definitions become known."""

    def __init__(self, program: ir.Program) -> None:
        self._program = program
        self._fixed = {t.name: t.shape for t in program.tensors if t.shape is not None}
        self._definitions = {t.name: program.definitions(t.name) for t in program.tensors if t.shape is None}
        self._inferred: dict[tuple[str, int], Affine] = {}
        self._known: Mapping[str, Ranges] = {}
        self._unguarded: dict[tuple[str, int, tuple[str, ...]], _Unguarded] = {}
        self._takers: set[tuple[str, str, int]] = set()
        self._reached_by: dict[tuple[str, int], list[tuple[ir.Equation, Ranges]]] = {}
        self._final: set[tuple[str, int]] = set()
        self._same = Equalities(program.conditions)
        self._conditions: list[Condition] = list(program.conditions)
        self._taken_in = self.demands

    def is_fixed(self, tensor: str) -> bool:
        """Whether the extents are given: a parameter's, or by `shape=`."""
        return tensor in self._fixed

    def get(self, tensor: str, dimension: int, *, final: bool = False) -> Affine | None:
        """The extent as far as it is known (`final`: only if it cannot grow any more)."""
        if tensor in self._fixed:
            return self._same.apply(self._fixed[tensor][dimension])
        if final and (tensor, dimension) not in self._final:
            return None
        extent = self._inferred.get((tensor, dimension))
        return None if extent is None else self._same.apply(extent)

    def value(self, tensor: str, dimension: int) -> Affine:
        """The extent, known to be known."""
        extent = self.get(tensor, dimension)
        assert extent is not None, f"the extent of dimension {dimension} of {tensor} is not known yet"
        return extent

    def unguarded(self, tensor: str, dimension: int) -> Affine | None:
        """Where indices of a tensor's own equations end that follow from it: its extent if guards always held.

        So it is of the definitions that do not take theirs from it, as far as they are known.
        """
        if tensor in self._fixed:
            return self.value(tensor, dimension)
        found = self._found_unguarded(tensor, dimension)
        return None if found is None else self._same.apply(found.extent)

    def is_settled(self, tensor: str, dimension: int) -> bool:
        """Whether the definitions that are still open can only take what the others reach: none reaches further."""
        return all(
            _is_ready(replace(d, guard=TRUE), dimension, self._known[d.name]) or _is_axis(d.subscripts[dimension])
            for d in self._definitions.get(tensor, ())
        )

    def _found_unguarded(self, tensor: str, dimension: int) -> _Unguarded | None:
        plain = [replace(d, guard=TRUE) for d in self._definitions[tensor]]
        known = {d.name: self._known[d.name] for d in plain}
        ready = [d for d in plain if _is_ready(d, dimension, known[d.name]) and not self._takes(d, dimension)]
        key = tensor, dimension, tuple(d.name for d in ready)
        if ready and key not in self._unguarded:
            needs: list[Compare] = []
            extent = self._extent_of(ready, dimension, known, needs)
            assert extent is not None, "what is known reaches something"
            self._unguarded[key] = _Unguarded(extent, tuple(needs), tuple((d, known[d.name]) for d in ready))
        return self._unguarded.get(key)

    def _takes(self, definition: ir.Equation, dimension: int) -> bool:
        names = {name for equation, name, taken in self._takers if (equation, taken) == (definition.name, dimension)}
        subscript = definition.subscripts[dimension]
        return isinstance(subscript, Affine) and not names.isdisjoint(axes_of(subscript))

    def take_unguarded(self, definition: ir.Equation, axis: str, dimension: int, error: Refutation) -> None:
        """Notes that an axis of a definition takes the extent of its own tensor without guards.

        Asks the sizes that it is reached; `error` is for sizes for which it is not.
        """
        tensor = definition.tensor
        if (found := self._found_unguarded(tensor, dimension)) is not None:
            for need in found.needs:
                self.demand(need)
            if self.get(tensor, dimension, final=True) is None:
                self._demand_last(dimension, found.extent, found.definitions, error)
        self._takers.add((definition.name, axis, dimension))

    def same(self, extent: Affine) -> Affine:
        """The expression in the sizes that stand for all that are equal."""
        return self._same.apply(extent)

    def axis(self, axis: ir.Axis) -> ir.Axis:
        """The range in the sizes that stand for all that are equal."""
        return self._same.axis(axis)

    def demand(self, condition: Compare) -> None:
        """Asks the sizes for a condition; of sizes that must be equal one stands for all from now on."""
        self._conditions.append(condition)
        if condition.op == "==":
            self._same.add(condition.left)

    def agree(self, agreement: ir.Agreement | ir.UsedExtent) -> None:
        """Asks the sizes for what extents must fulfil that are all known. Raises `ShapeError` where it never holds."""
        found = agreement.map(lambda affine: self.same(substitute(affine, self._extent)))
        condition = fold(found.condition)
        if condition == FALSE:
            raise found.error()
        if isinstance(condition, Compare):
            self.demand(condition)
        elif condition != TRUE:
            self._conditions.append(condition)

    def _extent(self, atom: Atom) -> Affine | None:
        return self.value(atom.tensor, atom.dimension) if isinstance(atom, ExtentRef) else None

    @property
    def demands(self) -> int:
        """How many conditions the sizes have to fulfil so far: as they grow, sizes become known to be equal."""
        return len(self._conditions)

    def update(self, known: Mapping[str, Ranges], changed: Collection[str]) -> None:
        """Takes in the ranges found so far, by equation; `changed` names those with ranges that are new."""
        has_demands, self._taken_in, self._known = self.demands != self._taken_in, self.demands, known
        for name, definitions in self._definitions.items():
            if not has_demands and not any(d.name in changed for d in definitions):
                continue
            for dimension in range(self._program.tensor(name).rank):
                if (name, dimension) not in self._final:
                    self._update_one(name, dimension, definitions, known)

    def _update_one(
        self, name: str, dimension: int, definitions: Sequence[ir.Equation], known: Mapping[str, Ranges]
    ) -> None:
        ready = [d for d in definitions if _is_ready(d, dimension, known[d.name])]
        needs: list[Compare] = []
        extent = self._extent_of(ready, dimension, known, needs)
        if extent is not None:
            self._inferred[name, dimension] = extent
            self._reached_by[name, dimension] = [(d, known[d.name]) for d in ready]
        if len(ready) == len(definitions):
            self._final.add((name, dimension))
            for need in (*needs, *self._needs_of_ranges(name, dimension)):
                self.demand(need)

    def _extent_of(
        self, definitions: Sequence[ir.Equation], dimension: int, known: Mapping[str, Ranges], needs: list[Compare]
    ) -> Affine | None:
        """What definitions reach together; None of none."""
        sizes, certain = self._program.sizes, self._certain(definitions, dimension, known)
        reached = [
            self._same.apply(_reach(d, dimension, known[d.name], sizes, needs))
            for d in definitions
            if not self._is_within(d, dimension, known[d.name], certain)
        ]
        if not reached:
            return None
        if len(tightest(reached, largest=True)) > 1:
            joint = _reach_together([(d, known[d.name]) for d in definitions], dimension, sizes)
            reached = reached if joint is None else [self._same.apply(joint)]
        return _greatest_of(reached, needs)

    def _certain(self, ready: Sequence[ir.Equation], dimension: int, known: Mapping[str, Ranges]) -> list[Affine]:
        """The ends of what definitions reach without guards, by ranges of one end each."""
        found: list[Affine] = []
        for definition in ready:
            subscript, axes = _subscript(definition, dimension, known[definition.name])
            if _reach_guard(definition) == TRUE and all(len(a.upper) == 1 == len(a.lower) for a in axes.values()):
                end = extreme(subscript, axes, largest=True)
                found += [] if end is None else [self._same.apply(end)]
        return found

    def _is_within(self, definition: ir.Equation, dimension: int, ranges: Ranges, certain: Sequence[Affine]) -> bool:
        """Whether a definition with a range of several ends, the least of which counts, reaches no further than others.

        So it is for the diagonal, `y[i, i] += 1`, of a tensor of M x N elements, whatever is larger.
        """
        subscript, axes = _subscript(definition, dimension, ranges)
        if not certain or all(len(a.upper) == 1 == len(a.lower) for a in axes.values()):
            return False
        for bounds in product(*(product(a.lower, a.upper) for a in axes.values())):
            single = {name: ir.Axis(name, (low,), (high,)) for name, (low, high) in zip(axes, bounds, strict=True)}
            end = extreme(subscript, single, largest=True)
            if end is not None and any(is_nonnegative(other - self._same.apply(end)) for other in certain):
                return True
        return False

    def _needs_of_ranges(self, name: str, dimension: int) -> Iterator[Compare]:
        """That ranges have points where a guard makes the extent end before they do: without any it ends as they do."""
        for definition, ranges in self._reached_by.get((name, dimension), ()):
            subscript, axes = _subscript(definition, dimension, ranges)
            end = None if _reach_guard(definition) == TRUE else extreme(subscript, axes, largest=True)
            if end is None or is_nonnegative(self.value(name, dimension) - 1 - self._same.apply(end)):
                continue
            for one in axes.values():
                spans = (upper - lower - 1 for lower in one.lower for upper in one.upper)
                yield from (Compare(s, ">=") for s in spans if not s.is_constant and not is_nonnegative(s))

    def is_guarded(self, tensor: str, dimension: int) -> bool:
        """Whether all definitions that an extent comes from have guards, which for some sizes may never hold."""
        return all(_reach_guard(definition) != TRUE for definition, _ in self._reached_by.get((tensor, dimension), ()))

    def demand_reached(self, tensor: str, dimension: int, error: Refutation) -> None:
        """Asks the sizes that the extent known so far is reached; `error` is for sizes for which it is not.

        So it must be where an index takes its range from it: a guard may keep the definitions from the last elements
        for some sizes.
        """
        self._demand_last(dimension, self.value(tensor, dimension), self._reached_by[tensor, dimension], error)

    def _demand_last(
        self, dimension: int, extent: Affine, definitions: Sequence[tuple[ir.Equation, Ranges]], error: Refutation
    ) -> None:
        program, extent = self._program, self._same.apply(extent)
        everywhere = [(d, r) for d, r in definitions if _reach_guard(d) == TRUE and _has_end_if_empty(d, dimension)]
        ends = (self._same.apply(_reach(d, dimension, ranges, program.sizes, [])) for d, ranges in everywhere)
        if not program.sizes or extent in ends:
            return
        space = Space("", (_ELEMENT,), program.sizes)
        last = conjunction(Compare(axis(_ELEMENT) - extent + 1, "=="), Compare(extent - 1, ">="))
        with decided(f"whether dimension {dimension} of '{definitions[0][0].tensor}' has extent {extent}"):
            unreached = space.condition(last) - named(_values(definitions, dimension, program.sizes), (_ELEMENT,))
            for definition, ranges in definitions:
                if not _has_end_if_empty(definition, dimension):
                    continue
                subscript, axes = _subscript(definition, dimension, ranges)
                end = extreme(subscript, axes, largest=True)
                if end is not None and self._same.apply(end) + 1 == extent:  # as it is without a point
                    unreached = unreached.intersect_params(_box(axes, program.sizes).params())
            self.refute(unreached, error)

    def refute(self, counterexamples: isl.Set, error: Refutation) -> None:
        """Asks the sizes that there is no counterexample; raises `error` where there always is one."""
        proof = Proof(replace(self._program, conditions=self.conditions()))
        proof.refute(counterexamples, error, plain=False)
        self._conditions += proof.conditions

    def shape(self, tensor: ir.Tensor) -> tuple[Affine, ...]:
        """The shape. Raises `DefinitionError` for a tensor that nothing defines."""
        if tensor.name in self._fixed:
            return self._fixed[tensor.name]
        if not self._definitions[tensor.name]:
            raise _undefined(tensor)
        return tuple(self.value(tensor.name, dimension) for dimension in range(tensor.rank))

    def conditions(self) -> tuple[Condition, ...]:
        """What the sizes must fulfil for the extents to hold."""
        return tuple(dict.fromkeys(self._conditions))


def _is_axis(subscript: ir.Subscript) -> bool:
    return isinstance(subscript, Affine) and is_axis(subscript)


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


def _reach(
    equation: ir.Equation, dimension: int, ranges: Ranges, sizes: tuple[str, ...], needs: list[Compare]
) -> Affine:
    """One more than the greatest value of the subscript; not below 0 where that shows."""
    subscript, axes = _subscript(equation, dimension, ranges)
    if not _has_end_if_empty(equation, dimension) and any(_is_empty(axes[name]) for name in axes_of(subscript)):
        return Affine(0)  # where the others end counts for nothing
    guard = _reach_guard(equation)
    last = extreme(subscript, axes, largest=True) if guard == TRUE else None
    if last is None:
        values = _values([(equation, ranges)], dimension, sizes)
        if values.is_empty() and not _box(axes, sizes).is_empty():
            return Affine(0)
        last = None if values.is_empty() else greatest(values, 0)
    if last is None and guard != TRUE:  # the guard makes it the smaller of two bounds; the box without it is affine
        last = extreme(subscript, axes, largest=True)
    if last is None:
        single = {name: _with_one_bound(axis, needs) for name, axis in axes.items()}
        last = extreme(subscript, single, largest=True)
    if last is None:
        raise _no_extent(equation, dimension, f"the greatest value of '{subscript}' depends on which size is larger")
    return Affine(max(last.constant + 1, 0)) if last.is_constant else last + 1


def _has_end_if_empty(equation: ir.Equation, dimension: int) -> bool:
    """Whether the end of the subscript's range counts also where the range is empty: not that of a sum of axes."""
    subscript = equation.subscripts[dimension]
    return isinstance(subscript, Affine) and len(axes_of(subscript)) <= 1


def _is_empty(one: ir.Axis) -> bool:
    """Whether an axis surely has no point."""
    spans = (upper - lower for lower in one.lower for upper in one.upper)
    return any(span.is_constant and span.constant <= 0 for span in spans)


def _reach_together(
    definitions: Sequence[tuple[ir.Equation, Ranges]], dimension: int, sizes: tuple[str, ...]
) -> Affine | None:
    """The extent without the guards, where definitions that share the elements among them reach all of it.

    So it is for even and odd elements: each definition alone ends where the size is odd, or where it is even.
    None where the guards make the box smaller.
    """
    ends: list[Affine] = []
    for definition, ranges in definitions:
        end = extreme(*_subscript(definition, dimension, ranges), largest=True)
        if end is None:
            return None
        ends.append(end)
    (end, *others) = tightest(ends, largest=True)
    values = _values(definitions, dimension, sizes)
    if not others:
        return end + 1 if is_greatest(values, 0, end) else None
    if not all(_reach_guard(d) == TRUE for d, _ in definitions) or not sizes:
        return None
    last = greatest(coalesced(values), 0)  # of 2*a and 2*b + 1, the one or the other, as the size is odd or even
    return None if last is None else last + 1


def _subscript(definition: ir.Equation, dimension: int, ranges: Ranges) -> tuple[Affine, dict[str, ir.Axis]]:
    """The subscript, and the ranges of the axes that decide which elements are reached."""
    subscript = definition.subscripts[dimension]
    assert isinstance(subscript, Affine), "a data subscript has a given extent"
    return subscript, {name: ranges[0, name] for name in _involved(definition, subscript)}


def _box(axes: Mapping[str, ir.Axis], sizes: tuple[str, ...]) -> isl.Set:
    return Space("", tuple(axes), sizes).box(list(axes.values()))


def _values(definitions: Sequence[tuple[ir.Equation, Ranges]], dimension: int, sizes: tuple[str, ...]) -> isl.Set:
    """`{ [e] }`: what the definitions reach along a dimension."""
    reached: isl.Set | None = None
    for definition, ranges in definitions:
        subscript, axes = _subscript(definition, dimension, ranges)
        space = Space("", tuple(axes), sizes)
        domain = _box(axes, sizes).intersect(space.condition(_reach_guard(definition)))
        values = domain.apply(space.access("", [subscript]))
        reached = values if reached is None else reached.union(values)
    assert reached is not None, "an extent that is known is reached by something"
    return reached


def _with_one_bound(axis: ir.Axis, needs: list[Compare]) -> ir.Axis:
    """The range by the bounds that are tightest for large sizes; that they are is asked of the sizes."""
    lower = _chosen(axis.lower, needs)
    upper = -_chosen([-bound for bound in axis.upper], needs, tie=">=")
    return ir.Axis(axis.name, (lower,), (upper,))


def _greatest_of(reached: Sequence[Affine], needs: list[Compare]) -> Affine:
    """The greatest of several extents; with symbolic sizes it may ask that it is, and that it is not negative."""
    candidates = tightest(reached, largest=True)
    if not any(is_nonnegative(one) for one in candidates):
        needs.append(Compare(candidates[0], ">="))
    return _chosen(candidates, needs)


def _chosen(candidates: Sequence[Affine], needs: list[Compare], *, tie: Literal["==", ">="] = "==") -> Affine:
    """The expression that is greatest for large equal sizes, the first of those that tie.

    The others must not exceed it. tie: what is asked of those that tie. Two definitions of an extent must agree; of two
    ends of a range, such as that of the slice x[:, :N], the one that is written holds while it is inside the other.
    """
    values = [_at_large_sizes(candidate) for candidate in candidates]
    chosen = candidates[values.index(max(values))]
    for candidate, value in zip(candidates, values, strict=True):
        if candidate != chosen:
            needs.append(Compare(chosen - candidate, tie if value == max(values) else ">="))
    return chosen


def _at_large_sizes(expression: Affine) -> int:
    return int(evaluate(expression, {}, dict.fromkeys(sizes_of(expression), _LARGE)))


def _no_extent(equation: ir.Equation, dimension: int, reason: str) -> DefinitionError:
    tensor = equation.tensor
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
