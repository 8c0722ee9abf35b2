"""Evaluates tensors that need each other, element by element, in whatever order the equations allow.

The unit is a *cell*: an element, or, for a tensor with data subscripts on a left side, all elements that differ only
in those dimensions (which of them a point adds to is known only once its subscript is). All cells are tried, many at
once. One that reads an element not yet defined waits for it and is tried again afterwards; when none is left to try
and some still wait, they wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl.ir import DataIndex, Equation
from polyopt.errors import DefinitionError
from polyopt.reference.expressions import Evaluator
from polyopt.reference.memory import Cells, element_text
from polyopt.reference.points import BLOCK, Array, Points, blocks, box
from polyopt.reference.whole import defined_twice, equation_points, left_side, started, within

Definitions = Mapping[str, tuple[Cells, tuple[Equation, ...]]]


def define_together(evaluator: Evaluator, definitions: Definitions) -> None:
    """Fills the cells of tensors that read each other (or one that reads itself).

    Raises `DefinitionError` for an element that depends on itself, and the errors of `Evaluator.evaluate`.
    """
    members = [_Member(evaluator, cells, equations) for cells, equations in definitions.values()]
    waiting = _Waiting(members)
    queue = [member.needed for member in members]
    while any(cells.size for cells in queue):
        woken: list[Array] = []
        for number, member in enumerate(members):
            for batch in _batches(queue[number]):
                blocked = member.attempt(evaluator, batch)
                waits = blocked >= 0
                waiting.wait(number, batch[waits], blocked[waits])
                woken.append(waiting.wake(member.elements_of(batch[~waits])))
        queue = waiting.by_member(woken)
    if waiting.is_any:
        raise _cycle_error(members, waiting)
    evaluator.blocked = None
    for member in members:
        member.cells.settle()


def _batches(cells: Array) -> Iterator[Array]:
    for start in range(0, cells.size, BLOCK):
        yield cells[start : start + BLOCK]


# --- one tensor of the recurrence -----------------------------------------------------------------------------


class _Member:
    """A tensor, its equations, and its cells, which are numbered from 0.

    kept:    dimensions that tell cells apart
    dropped: the others; a cell holds an array over them
    needed:  numbers of the cells that some definition reaches
    """

    def __init__(self, evaluator: Evaluator, cells: Cells, equations: tuple[Equation, ...]) -> None:
        self.cells = cells
        rank = cells.tensor.rank
        self.dropped = [d for d in range(rank) if any(isinstance(e.subscripts[d], DataIndex) for e in equations)]
        self.kept = [d for d in range(rank) if d not in self.dropped]
        self.shape = (1, *(cells.shape[d] for d in self.kept))
        self.count = prod(self.shape)
        cells.covered = np.zeros(cells.shape, bool)
        plain = [e for e in equations if not e.is_accumulation]
        self.plain = [self._instances(evaluator, equation) for equation in plain]
        if sum(instances.order.size for instances in self.plain) != np.count_nonzero(cells.covered):
            raise defined_twice(evaluator, cells, plain)
        self.added = [self._instances(evaluator, equation) for equation in equations if equation.is_accumulation]
        reached = self._by_cell(cells.covered).any(axis=tuple(range(1 + len(self.kept), 1 + rank)))
        self.needed: Array = np.flatnonzero(reached)

    def _by_cell(self, array: Array) -> Array:
        """A view of an array over the elements: dimensions 1, kept, dropped."""
        return array[None].transpose(0, *(d + 1 for d in self.kept + self.dropped))

    def rows(self, array: Array, cells: Array) -> Array:
        """A copy of the parts of an array over the elements that belong to `cells`."""
        return self._by_cell(array)[np.unravel_index(cells, self.shape)]

    def elements_of(self, cells: Array) -> Array:
        """The numbers of the elements of the cells."""
        numbers = np.arange(self.cells.values.size).reshape(self.cells.shape) if self.dropped else None
        own = cells if numbers is None else self.rows(numbers, cells).reshape(-1)
        return own + self.cells.offset

    def index_of(self, element: int) -> tuple[int, ...]:
        """The index tuple of an element number."""
        return tuple(map(int, np.unravel_index(element - self.cells.offset, self.cells.shape)))

    def cell_of(self, element: int) -> int:
        index = self.index_of(element)
        return int(np.ravel_multi_index((0, *(index[d] for d in self.kept)), self.shape))

    def _instances(self, evaluator: Evaluator, equation: Equation) -> _Instances:
        """Finds which points write to which cells, and marks the elements that they reach as covered."""
        assert self.cells.covered is not None
        ranges = box(equation.axes, evaluator.sizes)
        targets, numbers = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
        scatters = any(isinstance(subscript, DataIndex) for subscript in equation.subscripts)
        for points in equation_points(evaluator, equation):
            inside = within(evaluator, self.cells, equation, points) if equation.is_accumulation else points
            if inside.is_empty:
                continue
            there = np.ones(points.shape, bool) if inside.mask is None else np.broadcast_to(inside.mask, points.shape)
            place = _affine_left_side(evaluator, self.cells, equation, inside, there)
            if not scatters:
                self.cells.covered[tuple(place)] = True
            zero = np.zeros(np.count_nonzero(there), np.int64)
            targets.append(np.ravel_multi_index((zero, *(place[d] for d in self.kept)), self.shape))
            numbers.append(_numbers(points, equation, ranges)[there])
        if scatters:
            self.cells.covered[...] = True
        target = np.concatenate(targets)
        order = np.concatenate(numbers)[np.argsort(target, kind="stable")]
        counts = np.bincount(target, minlength=self.count)
        return _Instances(equation, ranges, order, np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))

    def attempt(self, evaluator: Evaluator, cells: Array) -> Array:
        """Defines those of the cells that can be; per cell the element it waits for, -1 where it is defined now."""
        assert self.cells.defined is not None and self.cells.covered is not None
        part = _Part(self, cells)
        for instances in self.plain:
            part.assign(evaluator, instances)
        if self.added:
            start = Cells(self.cells.tensor, part.values, part.defined)
            part.values = started(evaluator, start, self.added[0].equation.reducer)
            for instances in self.added:
                part.accumulate(evaluator, instances)
            part.values = evaluator.arithmetic.cast(part.values, self.cells.tensor.dtype)
        done = part.blocked < 0
        place = np.unravel_index(cells[done], self.shape)
        self._by_cell(self.cells.values)[place] = part.values[done]
        self._by_cell(self.cells.defined)[place] = self.rows(self.cells.covered, cells[done])
        return part.blocked


def _affine_left_side(
    evaluator: Evaluator, cells: Cells, equation: Equation, points: Points, there: Array
) -> list[Array]:
    """The indices that the equation writes at the points marked in `there`; 0 along a data dimension."""
    if not any(isinstance(subscript, DataIndex) for subscript in equation.subscripts):
        indices = list(left_side(evaluator, cells, equation, points))
    else:
        zero = np.zeros((1,) * len(points.shape), np.int64)
        indices = [
            zero if isinstance(subscript, DataIndex) else evaluator.subscripts([subscript], points)[0]
            for subscript in equation.subscripts
        ]
    return [np.broadcast_to(index, points.shape)[there] for index in indices]


def _numbers(points: Points, equation: Equation, ranges: Sequence[range]) -> Array:
    """The position of each point in the whole box of the equation's axes."""
    number = np.zeros((1,) * len(points.shape), np.int64)
    for axis, values in zip(equation.axes, ranges, strict=True):
        number = number * len(values) + (points.axes[axis.name] - values.start)
    return np.broadcast_to(number, points.shape)


@dataclass(frozen=True, slots=True, eq=False)
class _Instances:
    """For each cell the points of one equation that write to it.

    order:  positions of the points in the box `ranges` of the equation's axes, cell by cell, ascending
    starts: where in `order` each cell begins; one more entry at the end
    """

    equation: Equation
    ranges: tuple[range, ...]
    order: Array
    starts: Array

    def turns(self, cells: Array) -> Iterator[tuple[Array, Points]]:
        """The first point of each cell, then the second, and so on: positions in `cells`, and the points."""
        for turn in range(int((self.starts[cells + 1] - self.starts[cells]).max(initial=0))):
            has = np.flatnonzero(self.starts[cells] + turn < self.starts[cells + 1])
            numbers = self.order[self.starts[cells[has]] + turn]
            places = np.unravel_index(numbers, (1, *(len(values) for values in self.ranges)))[1:]
            axes = {
                axis.name: place.astype(np.int64) + values.start
                for axis, place, values in zip(self.equation.axes, places, self.ranges, strict=True)
            }
            yield has, Points(axes, (has.size,))


class _Part:
    """Some cells of a tensor being tried: dimensions are the cells, then the dropped ones.

    blocked: per cell the greatest number of an element that it has to wait for, -1 for none
    """

    def __init__(self, member: _Member, cells: Array) -> None:
        shape = (cells.size, *(member.cells.shape[d] for d in member.dropped))
        self.member = member
        self.numbers = cells
        self.values: Array = np.zeros(shape, member.cells.values.dtype)
        self.defined: Array = np.zeros(shape, bool)
        self.blocked: Array = np.full(cells.size, -1, np.int64)

    def assign(self, evaluator: Evaluator, instances: _Instances) -> None:
        """Evaluates a plain definition; its guard already chose the points."""
        for rows, points in instances.turns(self.numbers):
            evaluator.blocked = self.blocked[rows]
            value = evaluator.evaluate(instances.equation.value, points)
            place = self._place(evaluator, instances.equation, rows, points)
            self.values[place] = value
            self.defined[place] = True
            self.blocked[rows] = evaluator.blocked

    def accumulate(self, evaluator: Evaluator, instances: _Instances) -> None:
        """Adds what one accumulation contributes to the cells."""
        equation = instances.equation
        assert equation.reducer is not None
        self.values = evaluator.arithmetic.cast(self.values, equation.reducer.dtype)
        scatters = any(isinstance(subscript, DataIndex) for subscript in equation.subscripts)
        for rows, points in instances.turns(self.numbers):
            evaluator.blocked = self.blocked[rows]
            if scatters:
                self._scatter(evaluator, equation, rows, points)
            else:
                place = self._place(evaluator, equation, rows, points)
                self.values[place] = evaluator.reduce(
                    equation.reducer,
                    equation.value,
                    equation.reduce_axes,
                    equation.guard,
                    points,
                    start=self.values[place],
                )
            self.blocked[rows] = evaluator.blocked

    def _place(self, evaluator: Evaluator, equation: Equation, rows: Array, points: Points) -> tuple[Array, ...]:
        indices = left_side(evaluator, self.member.cells, equation, points)
        lifted = rows.reshape((-1,) + (1,) * (len(points.shape) - 1))
        return (lifted, *(indices[d] for d in self.member.dropped))

    def _scatter(self, evaluator: Evaluator, equation: Equation, rows: Array, points: Points) -> None:
        assert equation.reducer is not None
        names = [axis.name for axis in equation.reduce_axes]
        length = prod(len(values) for values in box(equation.all_axes, evaluator.sizes))
        for block in blocks(box(equation.reduce_axes, evaluator.sizes), max(1, BLOCK // max(1, rows.size))):
            inner = points.extended(names, block)
            inner = inner.where(evaluator.holds(equation.guard, inner))
            if inner.is_empty:
                continue
            value = evaluator.evaluate(equation.value, inner)
            place = self._place(evaluator, equation, rows, inner)
            there = evaluator.live(np.ones((1,) * len(inner.shape), bool), inner)
            there = np.broadcast_to(there, inner.shape)
            chosen = tuple(np.broadcast_to(index, inner.shape)[there] for index in place)
            evaluator.arithmetic.fold_at(
                equation.reducer, self.values, chosen, np.broadcast_to(value, inner.shape)[there], length
            )


# --- who waits for what ---------------------------------------------------------------------------------------


class _Waiting:
    """Cells that wait for elements: a linked list per element, kept in arrays.

    Cells are numbered over all members, from `offsets[member]` on.
    """

    def __init__(self, members: Sequence[_Member]) -> None:
        self.offsets = np.concatenate([[0], np.cumsum([member.count for member in members])]).astype(np.int64)
        elements = sum(member.cells.values.size for member in members)
        self._first = np.full(elements, -1, np.int64)
        self._next = np.full(int(self.offsets[-1]), -1, np.int64)
        self.blocker: Array = np.full(int(self.offsets[-1]), -1, np.int64)

    @property
    def is_any(self) -> bool:
        return bool((self.blocker >= 0).any())

    def wait(self, member: int, cells: Array, elements: Array) -> None:
        """Lets each of the cells wait for its element."""
        if not cells.size:
            return
        order = np.argsort(elements, kind="stable")
        numbers, keys = cells[order] + self.offsets[member], elements[order]
        self.blocker[numbers] = keys
        starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
        ends = np.concatenate([starts[1:], [keys.size]]) - 1
        self._next[numbers[:-1]] = numbers[1:]
        self._next[numbers[ends]] = self._first[keys[ends]]
        self._first[keys[starts]] = numbers[starts]

    def wake(self, elements: Array) -> Array:
        """The numbers of the cells that waited for the elements, which are defined now."""
        found = []
        current = self._first[elements]
        self._first[elements] = -1
        current = current[current >= 0]
        while current.size:
            found.append(current)
            self.blocker[current] = -1
            current = self._next[current]
            current = current[current >= 0]
        return np.concatenate(found) if found else np.empty(0, np.int64)

    def by_member(self, woken: Sequence[Array]) -> list[Array]:
        """Cell numbers apart by member, each member's own numbers in ascending order."""
        numbers = np.sort(np.concatenate(woken)) if woken else np.empty(0, np.int64)
        cuts = np.searchsorted(numbers, self.offsets)
        return [numbers[a:b] - start for a, b, start in zip(cuts, cuts[1:], self.offsets, strict=False)]


def _cycle_error(members: Sequence[_Member], waiting: _Waiting) -> DefinitionError:
    """The error that names an element that depends on itself, and by way of which others."""
    cell = int(np.flatnonzero(waiting.blocker >= 0)[0])
    seen: dict[int, int] = {}
    trail: list[tuple[_Member, tuple[int, ...]]] = []
    while cell not in seen:
        seen[cell] = len(trail)
        element = int(waiting.blocker[cell])
        number = next(n for n, m in enumerate(members) if 0 <= element - m.cells.offset < m.cells.values.size)
        member = members[number]
        trail.append((member, member.index_of(element)))
        cell = int(waiting.offsets[number]) + member.cell_of(element)
    cycle = trail[seen[cell] :]
    names = [element_text(member.cells.tensor.name, index) for member, index in cycle]
    member, index = cycle[-1]
    shown = names if len(names) <= 6 else [*names[:3], "...", *names[-2:]]
    return DefinitionError(
        f"{names[-1]} depends on itself",
        where=member.cells.tensor.span,
        why=" needs ".join([names[-1], *shown]),
        fix="an element may only use elements whose values can be found before its own",
        facts={"tensor": member.cells.tensor.name, "index": index, "cycle": tuple(names)},
    )
