"""Shapes and ranges of a program with symbolic sizes are those of the program with numbers for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import product
from random import Random
from typing import Any

import pytest

import polyopt as po
from polyopt.dsl import ir
from polyopt.dsl.affine import evaluate, holds
from polyopt.dsl.bind import specialise
from polyopt.errors import PolyoptError
from polyopt.fuzz.check import load
from polyopt.fuzz.generate import random_case
from polyopt.poly.contexts import reduce_contexts
from polyopt.poly.ranges import resolve

M, N = po.sizes("M N")
i, j, k = po.indices("i j k")

Tensor = Any
Sizes = Mapping[str, int]


def board(x: Tensor, y: Tensor) -> None:
    y[i, j] = po.when((i + j) % 2 == 0, x[i, j])
    y[i, j] = po.when((i + j) % 2 == 1, 0)


def two_rows(x: Tensor, y: Tensor) -> None:
    y[i, j] = po.when(i < 2, x.pad(1)[i, j])
    y[i, j] = y[i - 2, j]


def above_the_diagonal(x: Tensor, y: Tensor) -> None:
    y[i, j] = po.when(i < j, x.pad(1)[i, j])
    y[i, j] = po.when(i >= j, y[i - 2, j])


def other_rows(x: Tensor, y: Tensor) -> None:
    y[i, j] = po.when(i % 2 == 0, x[i, j])
    y[i, j] = po.when(i % 2 == 1, y[i - 1, j])


def a_gap(x: Tensor, y: Tensor) -> None:
    y[i, j] = po.when(i == 0, x.clamp()[i, j])
    y[i, j] = po.when(i >= 5, x.clamp()[i, j])
    y[i, j] = po.when((i >= 1) & (i < 5), y.clamp()[i - 1, j])


def a_corner(x: Tensor, y: Tensor) -> None:
    y[i, j] = po.when(i + j < 3, x[i, j])
    y[i, j] = po.when(i + j >= 3, y.clamp()[i - 3, j - 3])


def three_back(x: Tensor, y: Tensor) -> None:
    y[i, j] = x.pad(2)[i, j]
    y[i, j] = y[i - 3, j]


def a_guarded_window(x: Tensor, y: Tensor) -> None:
    y[i] = x.pad(1)[i, 0] + po.sum(po.where((i + k >= 0) & (i + k < N), x[0, i + k], 1), k)


def a_term_that_never_happens(x: Tensor, y: Tensor) -> None:
    there = (j >= 1) & (j - 2 * k >= 0) & (j - 2 * k < M)
    y[j] = x.pad(1)[0, j] + po.sum(po.where(there, x[j - 2 * k, j - 1], 1), k)


def rows_below_the_diagonal(x: Tensor, y: Tensor) -> None:
    """Of the tensor that y takes its rows from, no element is defined where there is one row."""
    t = po.tensor("t")
    t[i, j] = po.when(j < i, x[i, j])
    y[i] = po.sum(t[i, j], j, where=j < i)


def narrowed_by_another_read(x: Tensor, y: Tensor) -> None:
    """Where the index stands alone too, other reads may end it sooner, for some sizes before they happen."""
    y[i] = po.where(i < 2, x[i, 0], x[2 * i + 2, 0])


def as_long_as_a_read_that_rarely_happens(x: Tensor, y: Tensor) -> None:
    y[j] = po.where(j >= 5, x[j + 1, 0], x[0, j])


def beyond_a_gap(x: Tensor, y: Tensor) -> None:
    """No read happens at the gap, but one beyond it is out of bounds: the gap is inside."""
    y[i] = po.where(i != 2, x[i + 1, 0], 5)


def beyond_another_gap(x: Tensor, y: Tensor) -> None:
    y[i] += po.when(i != 1, x[2 * i, 0])


def good_where_the_first_read_is_not(x: Tensor, y: Tensor) -> None:
    y[i] = po.where(i >= 2, x[2 * i + 3, (i + 3) // 2], x[0, N - 1 - i])


def rows_of_nothing(x: Tensor, y: Tensor) -> None:
    """Without rows the columns reach nothing either, and the rest has no element to add to."""
    y[2 * i + j] += x[i, j]
    y[k] += 7


def unit_diagonal(x: Tensor, y: Tensor) -> None:
    """The last column of the first equation is the diagonal's; with one row it has no element."""
    y[i, j] = po.when(i > j, x.pad(1)[i, j])
    y[i, i] = 1
    y[i, j] = po.when(i < j, 0)


def mirrored(x: Tensor, y: Tensor) -> None:
    y[i, j] = po.when(i < j, x[i, 0] + x[j, 0])
    y[i, i] = 0
    y[i, j] = po.when(i > j, y[j, i])


def two_and_all_after(x: Tensor, y: Tensor) -> None:
    y[i] = po.when(i < 2, x[i, 0])
    y[i] = po.when(i >= 2, y[i - 1] + y[i - 2])


def the_last_one(x: Tensor, y: Tensor) -> None:
    y[i] = po.when(i < M - 1, x[i + 1, 0] - x[i, 0])
    y[i] = po.when(i == M - 1, 100)


def added_to_all(x: Tensor, y: Tensor) -> None:
    y[i, j] = po.when((i + j) % 2 == 0, x[i, j])
    y[i, j] += 7


@pytest.mark.parametrize(
    "define",
    [
        unit_diagonal,
        mirrored,
        two_and_all_after,
        the_last_one,
        added_to_all,
        rows_of_nothing,
        narrowed_by_another_read,
        as_long_as_a_read_that_rarely_happens,
        beyond_a_gap,
        beyond_another_gap,
        good_where_the_first_read_is_not,
        board,
        two_rows,
        above_the_diagonal,
        other_rows,
        a_gap,
        a_corner,
        three_back,
        a_guarded_window,
        a_term_that_never_happens,
        rows_below_the_diagonal,
    ],
    ids=lambda define: define.__name__,
)
def test_recurrences_and_guards(define: Callable[[Tensor, Tensor], None]) -> None:
    """A recurrence took the extent that a guard's box has, also where the guard keeps the definition from its end."""

    @po.op
    def op(x: po.i32[M, N]):
        y = po.tensor("y")
        define(x, y)
        return y

    program = op._equations.traced_for_values({}).program
    shared = 0
    for dynamic in ({"M"}, {"N"}, {"M", "N"}):
        for sizes in (dict(zip("MN", values, strict=True)) for values in product(range(7), range(5))):
            shared += _agree(program, {s: n for s, n in sizes.items() if s not in dynamic}, sizes)
    assert shared


def test_a_range_that_ends_where_one_of_two_guards_does() -> None:
    """Which guard ends it depends on the sizes; the range was that of a hull around both."""

    @po.op
    def op(x: po.f64[M, N], w: po.f64[4]):
        t, u, y = po.tensor("t", shape=(M, N)), po.tensor("u"), po.tensor("y")
        t[i, j] = x[i, j] + x.clamp()[i - 1, j - 1]
        u[i, j] = t[i, j] + t.clamp()[i, j - 1] + t.clamp()[i - 1, j + 1]
        column = po.where((j - 2 * i >= 0) & (j - 2 * i < M), t[j - 2 * i, j], 1.0)
        half = po.where(((i + j) // 2 >= 0) & ((i + j) // 2 < M), u[(i + j) // 2, j], 1.0)
        edge = po.where((i + 1 >= 0) & (i + 1 < 4), w[i + 1], 1.0)
        inner = po.maximum(column, x.pad(2)[i - 1, i - i]) + y[i, j - 1]
        outer = po.where(t.wrap()[(i + j) // 2, j] != half, edge, w.wrap()[2 * i + 1])
        y[i, j] = po.where((i >= 2) & (j >= 2) & (j < N - 1), inner, outer)
        return y

    program = op._equations.traced_for_values({}).program
    shared = sum(_agree(program, {}, {"M": m, "N": n}) for m, n in product(range(1, 7), range(1, 7)))
    assert shared


def test_random_operators() -> None:
    shared = 0
    for seed in range(7_100_000, 7_100_150):
        random = Random(seed)
        program = load(random_case(seed).operator_source())._equations.traced_for_values({}).program
        for _ in range(4):
            sizes = {name: random.choice((0, 1, 1, 2, 2, 3, 4, 6)) for name in program.sizes}
            known = {name: value for name, value in sizes.items() if random.random() < 0.3}
            shared += _agree(program, known, sizes)
    assert shared > 400


def _agree(program: ir.Program, known: Sizes, sizes: Sizes) -> bool:
    """Whether the program with symbolic sizes accepts these; then the other does, if no array is empty, and agrees."""
    try:
        symbolic = resolve(specialise(program, known))
    except PolyoptError:
        return False
    if not all(holds(condition, {}, sizes) for condition in symbolic.conditions):
        return False
    try:
        concrete = resolve(specialise(program, sizes))
    except PolyoptError:
        assert 0 in sizes.values(), (known, sizes)
        return False
    assert list(_shapes(symbolic, sizes)) == list(_shapes(concrete, {})), (known, sizes)
    for one, other in zip(symbolic.equations, concrete.equations, strict=True):
        assert _ranges(one, sizes) == _ranges(other, {}), (known, sizes)
    return True


def _shapes(program: ir.Program, sizes: Sizes) -> Iterator[tuple[str, tuple[int, ...]]]:
    for tensor in program.tensors:
        yield tensor.name, tuple(int(evaluate(extent, {}, sizes)) for extent in tensor.shape or ())


def _ranges(equation: ir.Equation, sizes: Sizes) -> dict[tuple[int, str], range]:
    """The values of every axis; none at all of an equation without points."""
    axes = [(0, axis) for axis in equation.all_axes]
    for context in reduce_contexts(equation):
        axes += [(context.binder, axis) for axis in context.reduction.axes]
    found = {(binder, axis.name): _values(axis, sizes) for binder, axis in axes}
    return found if all(values for (binder, _), values in found.items() if binder == 0) else {}


def _values(axis: ir.Axis, sizes: Sizes) -> range:
    lower = max(int(evaluate(bound, {}, sizes)) for bound in axis.lower)
    return range(lower, min(int(evaluate(bound, {}, sizes)) for bound in axis.upper))
