"""isl's scheduler as the last resort: where no axis order is legal, and the cycles that no order can save."""

from __future__ import annotations

from functools import partial

import islpy as isl
import numpy as np
import pytest

import polyopt as po
from polyopt import f64
from polyopt.errors import DefinitionError, ScheduleError
from polyopt.fusion import decide
from polyopt.pipeline import Lowering
from polyopt.poly import cycles, dependence, extract, isl_schedule
from polyopt.poly.distance import DistanceTester
from polyopt.poly.schedule import choose_rows
from polyopt.poly.space import operation_budget
from polyopt.poly.tree import Loop, loops, statements
from tests import brute_force
from tests.poly.operators import M, N, gauss_seidel, i, j, k


@po.op
def crossing(x: f64[M, N]):
    """Distances (1, -2) and (-1, 1): every axis, forwards or backwards, runs against one of them."""
    a = po.tensor("a")
    inside = (i > 0) & (i < M - 1) & (j > 0) & (j < N - 2)
    a[i, j] = po.where(inside, a[i - 1, j + 2] + a[i + 1, j - 1], x[i, j])
    return a


@po.op
def crossing_sums(x: f64[M, N]):
    a = po.tensor("a")
    inside = (i > 0) & (i < M - 1) & (j > 0) & (j < N - 2)
    sums = po.sum(x[i, k] * a[i - 1, j + 2], k)
    a[i, j] = po.where(inside, sums + a[i + 1, j - 1], x[i, j])
    return a


@po.op
def crossing_pair(x: f64[M, N]):
    a, b = po.tensors("a b")
    inside = (i > 0) & (i < M - 1) & (j > 0) & (j < N - 2)
    a[i, j] = po.where(inside, a[i - 1, j + 2] - b[i + 1, j - 1], x[i, j])
    b[i, j] = po.where(inside, b[i - 1, j + 2] + a[i + 1, j - 1], x[i, j])
    return b


every_crossing = pytest.mark.parametrize("op", [crossing, crossing_sums, crossing_pair], ids=lambda op: op.__name__)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The components that isl's scheduler was asked for."""
    components: list[tuple[str, ...]] = []
    schedule = isl_schedule.schedule

    def noting(scop, component, ordered, reductions):
        components.append(tuple(component))
        return schedule(scop, component, ordered, reductions)

    monkeypatch.setattr(isl_schedule, "schedule", noting)
    return components


@every_crossing
def test_a_recurrence_without_a_legal_axis_order_is_scheduled_by_isl(op, asked: list[tuple[str, ...]]) -> None:
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (7, 9))
    lowering = op.lower(x)
    assert lowering.fallback == ""
    assert len(asked) == 1
    component = [d for d in lowering.dependences.ordered if {d.source, d.target} <= set(asked[0])]
    axes = {s.name: s.axes for s in lowering.scop.statements}
    assert choose_rows(asked[0], component, axes, DistanceTester.of(lowering.scop)) is None
    assert brute_force.violation(brute_force.pairs(lowering.scop), lowering.tree) is None
    np.testing.assert_allclose(op(x), op.reference(x), rtol=1e-12)


def test_isl_is_not_asked_where_an_axis_order_is_legal(asked: list[tuple[str, ...]]) -> None:
    assert gauss_seidel.lower(M=6, N=7).fallback == ""
    assert asked == []


@every_crossing
@pytest.mark.parametrize("m, n", [(1, 1), (2, 3), (3, 5), (6, 4)])
def test_isl_schedules_are_right_at_small_sizes(op, m: int, n: int) -> None:
    x = np.random.default_rng(0).uniform(-0.5, 0.5, (m, n))
    np.testing.assert_allclose(op(x), op.reference(x), rtol=1e-12)


def carried(lowering: Lowering, loop: Loop, *, reductions: bool) -> bool:
    """Whether some pair of instances that share the loops outside is apart in `loop`, by enumeration."""
    needed = brute_force.pairs(lowering.scop)
    outside = []
    for outer in loops(lowering.fusion.tree):
        if outer == loop:
            break
        if set(loop.statements) <= set(outer.statements):
            outside.append(outer)
    for (first, at), (second, to) in needed.updates if reductions else needed.ordered:
        if not {first, second} <= set(loop.statements):
            continue
        ends = needed.axes[first, at], needed.axes[second, to]
        rows = [
            tuple(brute_force.af.evaluate(one.row(name), axes, {}) for name, axes in zip((first, second), ends))
            for one in (*outside, loop)
        ]
        if all(a == b for a, b in rows[:-1]) and rows[-1][0] != rows[-1][1]:
            return True
    return False


@every_crossing
def test_what_a_loop_of_isl_carries_is_measured_reductions_included(op) -> None:
    lowering = op.lower(M=6, N=7)
    tree = lowering.fusion.tree
    for loop in loops(tree):
        values, sums = (carried(lowering, loop, reductions=which) for which in (False, True))
        assert loop.coincident == (not values and not sums), loop.name
        assert loop.reduction == (sums and not values), loop.name


def test_a_loop_that_only_sums_is_a_reduction_although_isl_calls_it_coincident() -> None:
    """Two updates of one element are no dependence for isl, so that it calls a sum's loop parallel."""
    lowering = crossing_sums.lower(M=6, N=7)
    scop, dependences = lowering.scop, lowering.dependences
    names = tuple(s.name for s in scop.statements)
    update = next(s.name for s in scop.statements if s.is_update)
    ordered = [d for d in dependences.ordered if d.target == update and d.kind == "start"]
    tree = isl_schedule.schedule(scop, names, ordered, dependences.reductions)
    over_k = [loop for loop in loops(tree) if update in loop.statements and str(loop.row(update)) in ("k", "-k")]
    assert over_k
    assert not any(loop.coincident for loop in over_k)
    assert set(statements(tree)) == set(names)


def test_isls_options_are_put_back() -> None:
    context = isl.DEFAULT_CONTEXT
    before = context.get_schedule_algorithm(), context.get_schedule_outer_coincidence()
    with pytest.raises(ZeroDivisionError), isl_schedule.isl_options(feautrier=True):
        assert context.get_schedule_algorithm() == 1
        assert context.get_max_operations() > 0
        raise ZeroDivisionError
    assert (context.get_schedule_algorithm(), context.get_schedule_outer_coincidence()) == before
    assert context.get_max_operations() == 0


# --- cycles -----------------------------------------------------------------------------------------------------


@po.op
def two_tensors(x: f64[N]):
    hen, egg = po.tensors("hen egg")
    hen[i] = po.exp(egg[i]) + po.exp(egg[i] + 1) + x[i]
    egg[i] = po.exp(hen[i]) + po.exp(hen[i] * x[i])
    return egg


@po.op
def around(x: f64[N]):
    ring = po.tensor("ring", shape=(N,))
    ring[i] = ring.wrap()[i - 1] + x[i]
    return ring


@po.op
def there_and_back(x: f64[N]):
    a = po.tensor("a", shape=(N,))
    a[i] = po.where(i % 2 == 0, a[N - 1 - i], x[i])
    return a


@po.op
def through_a_sum(x: f64[N]):
    a, b = po.tensors("a b")
    a[i] = x[i] * b[i]
    b[i] = x[i] + po.sum(po.exp(a[j] + x[i]), j, where=j >= i)
    return b


@po.op
def late(x: f64[N]):
    """Only the last two elements need one another."""
    a = po.tensor("a", shape=(N,))
    a[i] = po.where(i < N - 2, x[i], po.where(i == N - 2, a[N - 1], a[N - 2]))
    return a


def cycle_error(op, n: int) -> DefinitionError:
    with pytest.raises(DefinitionError) as caught:
        op(np.ones(n))
    return caught.value


def test_a_cycle_of_two_tensors_names_an_element_of_each() -> None:
    error = cycle_error(two_tensors, 5)
    assert error.what == "hen[0] depends on itself"
    assert error.facts["cycle"] == ("hen[0]", "egg[0]")
    assert "hen[0] needs egg[0] needs hen[0], at i = 0" in str(error)
    assert error.where is not None and error.fix


def test_a_ring_of_elements_is_named_in_order_and_shortened() -> None:
    assert cycle_error(around, 4).facts["cycle"] == ("ring[0]", "ring[3]", "ring[2]", "ring[1]")
    error = cycle_error(around, 50)
    assert error.facts["cycle"] == ("ring[0]", *(f"ring[{n}]" for n in range(49, 0, -1)))
    assert "ring[0] needs ring[49] needs ring[48] needs ... needs ring[2] needs ring[1] needs ring[0]" in error.why


def test_a_cycle_of_two_elements_of_one_tensor_is_named() -> None:
    assert cycle_error(there_and_back, 7).facts["cycle"] == ("a[0]", "a[6]")
    assert cycle_error(late, 9).facts["cycle"] == ("a[7]", "a[8]")


def test_an_element_that_comes_back_through_a_sum_is_named() -> None:
    cycle = cycle_error(through_a_sum, 5).facts["cycle"]
    assert isinstance(cycle, tuple) and cycle[0] == "a[0]" and any(name.startswith("b[") for name in cycle)


def test_a_symbolic_cycle_is_named_at_sizes_for_which_it_exists() -> None:
    @po.op(dynamic=True)
    def hens(x: f64[N]):
        hen, egg = po.tensors("hen egg")
        hen[i] = po.exp(egg[i]) + po.exp(egg[i] + 1) + x[i]
        egg[i] = po.exp(hen[i]) + po.exp(hen[i] * x[i])
        return egg

    with pytest.raises(DefinitionError) as caught:
        hens(np.ones(3))
    assert caught.value.facts["sizes"] == {"N": 1}
    assert caught.value.facts["cycle"] == ("hen[0]", "egg[0]")


def test_a_recurrence_without_a_cycle_is_known_to_have_none() -> None:
    lowering = gauss_seidel.lower(M=4, N=5)
    assert cycles.has_none(lowering.scop, lowering.dependences.ordered)
    assert cycles.find(lowering.scop, lowering.dependences.ordered) == ()


def test_where_isl_gives_up_the_error_says_whether_there_is_a_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isl_schedule, "_compute", lambda *_, **__: None)
    program = crossing.lower(M=5, N=6).program
    scop = extract.extract(program)
    dependences = dependence.compute(scop)
    with pytest.raises(ScheduleError, match="no order of evaluation"):
        decide.decide(scop, dependences)
    monkeypatch.setattr(cycles, "_on_cycles", lambda *_: None)
    with pytest.raises(DefinitionError, match="no order of evaluation") as caught:
        decide.decide(scop, dependences)
    assert caught.value.facts["statements"] == ("a",)


def test_isl_itself_gives_up_beyond_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (isl_schedule, cycles):
        monkeypatch.setattr(module, "operation_budget", partial(operation_budget, 1))
    program = crossing.lower(M=5, N=6).program
    scop = extract.extract(program)
    dependences = dependence.compute(scop)
    with pytest.raises(DefinitionError, match="no order of evaluation"):
        isl_schedule.schedule(scop, ("a",), dependences.ordered, ())
    assert not cycles.has_none(scop, dependences.ordered)


def test_a_tree_of_isl_with_other_nodes_is_refused() -> None:
    lowering = crossing.lower(M=5, N=6)
    node = lowering.schedule.get_root().child(0).insert_guard(isl.Set("{ : }"))
    reader = isl_schedule._Reader(lowering.scop, DistanceTester.of(lowering.scop))
    with pytest.raises(ScheduleError, match="not asked for"):
        reader.tree(node, (), ())


def test_a_piecewise_row_of_isl_is_refused() -> None:
    lowering = crossing.lower(M=5, N=6)
    function = isl.UnionPwAff("{ a[i, j] -> [(i)] : i >= 2; a[i, j] -> [(j)] : i < 2 }")
    with pytest.raises(ScheduleError, match="piecewise"):
        isl_schedule._row(function, lowering.scop, "a")


def test_a_component_of_several_statements_comes_back_whole() -> None:
    lowering = crossing_sums.lower(M=5, N=6)
    names = tuple(s.name for s in lowering.scop.statements if s.role != "init")
    ordered = [d for d in lowering.dependences.ordered if {d.source, d.target} <= set(names)]
    tree = isl_schedule.schedule(lowering.scop, names, ordered, lowering.dependences.reductions)
    assert sorted(statements(tree)) == sorted(names)
    assert {loop.kind for loop in loops(tree)} == {"serial"}
