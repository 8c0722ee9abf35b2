"""Rows for recurrences: what is preferred, and that every row chosen is legal."""

from __future__ import annotations

import pytest

import polyopt as po
from polyopt import f64
from polyopt.dsl.affine import axis
from polyopt.graphs import reachable
from polyopt.pipeline import Lowering
from polyopt.poly.dependence import Dependence
from polyopt.poly.distance import DistanceTester
from polyopt.poly.schedule import RowChoice, choose_rows
from tests.poly.operators import M, N, gauss_seidel, i, j, jacobi_1d, jacobi_2d, k, lower_triangle_solve, prefix


def chosen(lowering: Lowering, *component: str) -> RowChoice | None:
    names = component or tuple(s.name for s in lowering.scop.statements)
    ordered = [d for d in lowering.dependences.ordered if {d.source, d.target} <= set(names)]
    axes = {name: lowering.scop.statement(name).axes for name in names}
    tester = DistanceTester.of(lowering.scop)
    choice = choose_rows(names, ordered, axes, tester)
    if choice is not None:
        assert tester.respects(ordered, choice.rows)
        assert choice.coincident == tester.is_coincident(ordered, choice.rows)
        assert choice.settles == (choice.coincident or not cyclic(names, tester.left(ordered, choice.rows)))
        assert all(choice.spent[name] in axes[name] or not axes[name] for name in names)
    return choice


def cyclic(names: tuple[str, ...], left: tuple[Dependence, ...]) -> bool:
    edges = [(d.source, d.target) for d in left]
    return any(name in reachable(name, edges) for name in names)


def test_a_row_that_carries_nothing_comes_first() -> None:
    """Each row of the image is a recurrence of its own: the loop over rows is parallel and outside."""

    @po.op
    def along_rows(x: f64[M, N]):
        a = po.tensor("a")
        a[i, j] = po.where(j == 0, x[i, j], a[i, j - 1] + x[i, j])
        return a

    choice = chosen(along_rows.lower(M=4, N=5))
    assert choice is not None and choice.coincident
    assert choice.rows == {"a": axis("i")} and "carries no dependence" in choice.why


def test_a_row_that_carries_everything_leaves_parallel_loops_inside() -> None:
    for lowering in (jacobi_1d.lower(N=6, steps=3), jacobi_2d.lower(M=5, N=6, steps=3)):
        choice = chosen(lowering, "u_1")
        assert choice is not None and not choice.coincident
        assert choice.rows == {"u_1": axis("t")} and "every dependence" in choice.why


def test_a_recurrence_backwards_runs_backwards() -> None:
    @po.op
    def suffix(x: f64[N]):
        s = po.tensor("s")
        s[i] = po.where(i == N - 1, x[i], s[i + 1] + x[i])
        return s

    choice = chosen(suffix.lower(N=5))
    assert choice is not None and choice.rows == {"s": -axis("i")} and choice.spent == {"s": "i"}


def test_neighbors_in_two_directions_run_as_a_wavefront() -> None:
    choice = chosen(gauss_seidel.lower(M=5, N=6))
    assert choice is not None and "wavefront" in choice.why
    assert choice.rows == {"a": axis("i") + axis("j")}


def test_a_steep_recurrence_runs_as_a_steep_wavefront() -> None:
    @po.op
    def steep(x: f64[M, N]):
        a = po.tensor("a")
        inside = (i > 0) & (j > 0) & (j < N - 1)
        a[i, j] = po.where(inside, a[i - 1, j + 1] + a[i, j - 1], x[i, j])
        return a

    choice = chosen(steep.lower(M=6, N=7))
    assert choice is not None and "wavefront" in choice.why
    assert choice.rows == {"a": axis("i") * 2 + axis("j")}


def test_a_component_of_several_statements_has_a_row_for_each() -> None:
    lowering = lower_triangle_solve.lower(N=5)
    names = [s.name for s in lowering.scop.statements if s.role != "init"]
    choice = chosen(lowering, *names)
    assert choice is not None and set(choice.rows) == set(names)
    assert set(choice.rows.values()) == {axis("i")}


def test_one_axis_alone_has_no_wavefront() -> None:
    choice = chosen(prefix.lower(N=5), "s_1")
    assert choice is not None and choice.rows == {"s_1": axis("t")}


def test_where_no_axis_is_legal_there_is_no_choice() -> None:
    @po.op
    def crossing(x: f64[M, N]):
        a = po.tensor("a")
        inside = (i > 0) & (i < M - 1) & (j > 0) & (j < N - 2)
        a[i, j] = po.where(inside, a[i - 1, j + 2] + a[i + 1, j - 1], x[i, j])
        return a

    assert chosen(crossing.lower(M=6, N=7)) is None


def test_a_row_that_carries_only_a_part_is_taken_last() -> None:
    """A sum over all earlier elements of both axes: no sum of axes carries all pairs, one axis carries some."""

    @po.op
    def all_before(x: f64[M, N]):
        a = po.tensor("a")
        a[i, j] = x[i, j] + po.sum(a[i, k], k, where=k < j) + po.where(i > 0, a[i - 1, N - 1 - j], 0.0)
        return a

    lowering = all_before.lower(M=4, N=5)
    names = [s.name for s in lowering.scop.statements if s.role != "init"]
    choice = chosen(lowering, *names)
    assert choice is not None and set(choice.rows.values()) == {axis("i")}


@pytest.mark.parametrize("statements", [1, 3])
def test_the_same_component_gets_the_same_rows_every_time(statements: int) -> None:
    lowering = lower_triangle_solve.lower(N=5) if statements > 1 else gauss_seidel.lower(M=4, N=4)
    names = [s.name for s in lowering.scop.statements if s.role != "init"]
    first, second = chosen(lowering, *names), chosen(lowering, *names)
    assert first == second
