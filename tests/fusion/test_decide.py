"""Which statements share which loops: the shapes that known operators must take, and reasons that are true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64
from polyopt.fusion import decide
from polyopt.fusion.plan import Decision, FusionPlan
from polyopt.pipeline import Lowering
from polyopt.poly.dependence import Dependence
from polyopt.poly.distance import DistanceTester
from polyopt.poly.storage import common_loops
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree, loops, statements, tree_text
from polyopt.tiling.cost import axis_of
from tests.golden.test_golden import MACHINE
from tests.poly.operators import (
    K,
    M,
    N,
    gauss_seidel,
    histogram,
    i,
    j,
    jacobi_1d,
    jacobi_2d,
    k,
    layernorm,
    linear_relu,
    lower_triangle_solve,
    product,
    smith_waterman,
    softmax,
    ten_steps,
)

Dependences = tuple[Dependence, ...]

OPERATORS: dict[str, Any] = {
    "gauss_seidel": lambda: gauss_seidel.lower(M=6, N=7),
    "histogram": lambda: histogram.lower(N=6, count=4),
    "jacobi_1d": lambda: jacobi_1d.lower(N=8, steps=4),
    "layernorm": lambda: layernorm.lower(M=4, N=9),
    "linear_relu": lambda: linear_relu.lower(M=8, N=9, K=7),
    "lower_triangle_solve": lambda: lower_triangle_solve.lower(N=7),
    "smith_waterman": lambda: smith_waterman.lower(M=5, N=6),
    "softmax": lambda: softmax.lower(M=4, N=9),
}


def top(tree: Tree) -> tuple[Tree, ...]:
    return tree.children if isinstance(tree, Sequence) else (tree,)


def shared(lowering: Lowering, *names: str) -> list[str]:
    """The axes of the loops around all of the statements."""
    return [
        str(axis_of(loop.row(names[0])) or loop.row(names[0])) for loop in common_loops(lowering.fusion.tree, names)
    ]


@pytest.mark.parametrize("name", OPERATORS)
def test_every_statement_stands_in_the_tree_once(name: str) -> None:
    lowering = OPERATORS[name]()
    assert sorted(statements(lowering.fusion.tree)) == sorted(s.name for s in lowering.scop.statements)


@pytest.mark.parametrize("name", OPERATORS)
def test_what_a_loop_is_said_to_carry_is_what_it_carries(name: str) -> None:
    """A coincident loop carries nothing, a reduction loop only updates: measured anew from outside in."""
    lowering = OPERATORS[name]()
    tester = DistanceTester.of(lowering.scop)

    def check(tree: Tree, ordered: Dependences, reductions: Dependences) -> None:
        match tree:
            case Sequence(children):
                for child in children:
                    check(child, ordered, reductions)
            case Loop(body=body):
                rows = dict(tree.rows)
                own = [d for d in ordered if {d.source, d.target} <= set(rows)]
                sums = [d for d in reductions if {d.source, d.target} <= set(rows)]
                assert tester.respects(own, rows)
                if tree.coincident:
                    assert tester.is_coincident(own, rows) and tester.is_coincident(sums, rows)
                if tree.reduction:
                    assert tester.is_coincident(own, rows)
                check(body, tester.left(own, rows), tester.left(sums, rows))
            case _:
                pass

    check(lowering.fusion.tree, lowering.dependences.ordered, lowering.dependences.reductions)


@pytest.mark.parametrize("name", OPERATORS)
def test_deciding_twice_gives_the_same_plan(name: str) -> None:
    lowering = OPERATORS[name]()
    again = decide.decide(lowering.scop, lowering.dependences)
    assert str(replace(again, copies=lowering.fusion.copies)) == str(
        lowering.fusion
    )  # what a rewrite noted comes after


def test_a_linear_layer_is_one_nest_with_a_register_tile() -> None:
    lowering = linear_relu.lower(M=96, N=96, K=64, target=MACHINE)
    (nest,) = top(lowering.fusion.tree)
    assert set(statements(nest)) == {s.name for s in lowering.scop.statements}
    assert shared(lowering, "y_init", "y_update", "out") == ["i", "j"]
    inside = {loop.kind for loop in loops(lowering.tree) if "y_update" in loop.statements}
    assert inside >= {"unrolled", "vector"}
    update = [loop for loop in loops(lowering.tree) if "y_update" in loop.statements]
    assert [loop.reduction for loop in update].index(True) < [loop.kind for loop in update].index("unrolled")


@pytest.mark.parametrize("operator", [softmax, layernorm], ids=["softmax", "layernorm"])
def test_a_normalisation_is_one_nest_over_rows_without_a_full_temporary(operator: po.Op) -> None:
    lowering = operator.lower(M=64, N=500, target=MACHINE)
    (nest,) = top(lowering.fusion.tree)
    assert isinstance(nest, Loop) and nest.coincident
    assert shared(lowering, *(s.name for s in lowering.scop.statements)) == ["i"]
    assert lowering.report().temporary_bytes < 64 * 500


def test_a_chain_of_ten_elementwise_steps_has_one_loop_and_no_temporary() -> None:
    lowering = ten_steps.lower(N=1000)
    assert lowering.storage.buffers == () and len(list(loops(lowering.fusion.tree))) == 1


def test_a_start_value_shares_the_loops_of_its_updates() -> None:
    for lowering in (product.lower(M=5, N=6, K=7), linear_relu.lower(M=5, N=6, K=7)):
        assert shared(lowering, "y_init", "y_update") == ["i", "j"]


def test_a_time_loop_is_outside_and_the_space_loops_inside_are_parallel() -> None:
    lowering = jacobi_2d.lower(M=12, N=13, steps=4)
    around = [loop for loop in loops(lowering.fusion.tree) if "u_1" in loop.statements]
    assert [str(axis_of(loop.row("u_1"))) for loop in around] == ["t", "i", "j"]
    assert [loop.coincident for loop in around] == [False, True, True]


def test_an_alignment_runs_as_a_wavefront_with_a_parallel_loop_inside() -> None:
    lowering = smith_waterman.lower(M=20, N=30)
    first, second = loops(lowering.fusion.tree)
    (name,) = statements(lowering.fusion.tree)
    assert str(first.row(name)) == "i + j" and not first.coincident
    assert second.coincident


def test_a_triangular_solve_sums_inside_the_loop_over_its_rows() -> None:
    lowering = lower_triangle_solve.lower(N=9)
    (nest,) = top(lowering.fusion.tree)
    assert isinstance(nest, Loop) and not nest.coincident
    assert [loop.reduction for loop in loops(nest.body)] == [True]


def test_two_contractions_stay_apart_so_that_both_keep_their_tiles() -> None:
    @po.op
    def two(a: f32[M, K], b: f32[K, N], c: f32[N, K]):
        y, z = po.tensors("y z")
        y[i, j] += a[i, k] * b[k, j]
        z[i, k] += y[i, j] * c[j, k]
        return z

    lowering = two.lower(M=16, N=17, K=18)
    updates = [s.name for s in lowering.scop.statements if s.is_update]
    assert shared(lowering, *updates) == []
    assert any("register tile would lose its reuse" in d.reason for d in lowering.fusion.decisions)


def test_recurrences_over_the_same_time_share_its_loop() -> None:
    @po.op
    def coupled(x: f64[N], steps: int):
        u, v = po.tensors("u v")
        t = po.index("t", extent=steps)
        u[0, i] = x[i]
        v[0, i] = x[i] * 2.0
        u[t + 1, i] = u[t, i] + v[t, N - 1 - i]
        v[t + 1, i] = v[t, i] - u[t + 1, i] * u[t, i]
        return u[steps]

    lowering = coupled.lower(N=7, steps=5)
    assert shared(lowering, "u_1", "v_1")[0] == "t"
    x = np.linspace(0, 0.1, 7)
    np.testing.assert_allclose(coupled(x, 5), coupled.reference(x, 5))


def test_recurrences_that_isl_takes_long_over_stay_apart_and_nothing_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """What isl did for them counted against the whole plan, which was given up for one nest a statement."""

    @po.op
    def chained(x: f64[N], steps: int):
        u, v, w = po.tensors("u v w")
        t = po.index("t", extent=steps)
        u[0, i] = x[i]
        u[t + 1, i] = u[t, i] * 0.5 + x[i]
        v[0, i] = x[i]
        v[t + 1, i] = v[t, i] - u[t + 1, i]
        w[i] = v[steps, i] + u[steps, i]
        return w

    lowering = chained.lower(N=7, steps=5)
    assert any("run in order together" in d.reason for d in lowering.fusion.decisions)
    monkeypatch.setattr(decide, "JOIN_OPERATIONS", 1)
    apart = Lowering(lowering.program, lowering.options)
    assert any("does not say in time" in d.reason for d in apart.fusion.decisions)
    assert not apart.settled.fallback and not apart.settled.given_up
    x = np.linspace(0, 1, 7)
    np.testing.assert_allclose(chained(x, 5), chained.reference(x, 5))


def test_what_stands_between_keeps_its_neighbors_apart() -> None:
    """b needs all of a, and c needs both: a and c cannot share a loop around b."""

    @po.op
    def between(x: f64[N]):
        a, b, c = po.tensors("a b c")
        a[i] = po.exp(x[i])
        b[()] = po.sum(a[k], k)
        c[i] = a[i] / b[()] + a[N - 1 - i]
        return c

    lowering = between.lower(N=9)
    assert shared(lowering, "a", "c") == []
    x = np.linspace(0, 1, 9)
    np.testing.assert_allclose(between(x), between.reference(x))


def test_a_shift_between_producer_and_consumer_is_no_shared_iteration() -> None:
    @po.op
    def shifted(x: f64[N]):
        a, b = po.tensors("a b")
        a[i] = po.exp(x[i]) + po.sum(x[k], k, where=k < i)
        b[i] = a.pad(0)[i - 1] + a.pad(0)[i - 2] + x[i]
        return b

    lowering = shifted.lower(N=9)
    assert shared(lowering, "a", "b") == []
    assert any(d.verdict == "kept apart" and "in one iteration" in d.reason for d in lowering.fusion.decisions)


def test_a_shared_loop_saves_the_traffic_of_its_array() -> None:
    lowering = linear_relu.lower(M=8, N=9, K=7)
    fused = [d for d in lowering.fusion.decisions if d.verdict == "fused" and d.array == "y"]
    assert fused and all(d.bytes_saved == 2 * 8 * 9 * 4 for d in fused)


def test_a_plan_prints_its_tree_and_its_reasons() -> None:
    fused = Decision("a", "b", "x", "fused", "share the loop over i", 64)
    apart = Decision("a", "c", "x", "kept apart", "one side runs its loop in order")
    assert str(fused) == "a -> b: fused: share the loop over i, 64 bytes of x stay close"
    assert str(apart) == "a -> c: kept apart: one side runs its loop in order"
    plan = FusionPlan(Leaf("a"), (fused, apart), ("x copied",))
    assert str(plan).splitlines() == ["a", "", "x copied", "", str(fused), str(apart)]
    assert str(FusionPlan(Leaf("a"), ())) == tree_text(Leaf("a"))


def test_a_loop_that_meets_itself_on_the_left_side_is_not_parallel() -> None:
    """Points of `y[2*h + r] += ...` that differ in both axes add to one element; either loop alone told them apart."""
    H, R, C = po.sizes("H R C")
    h, r, c = po.indices("h r c")

    @po.op(dynamic=True)
    def scattered(x: f32[C, H], f: f32[C, R]):
        y = po.tensor("y")
        y[2 * h + r] += x[c, h] * f[c, r]
        return y

    lowering = scattered.lower()
    assert lowering.fallback == ""
    assert all(loop.kind == "serial" or "y_update" not in statements(loop) for loop in loops(lowering.tree))


@pytest.mark.parametrize("extent", [7, 100])
def test_points_that_meet_in_a_quotient_or_a_remainder_are_a_reduction(
    extent: int, caplog: pytest.LogCaptureFixture
) -> None:
    """They were taken for points apart, and the plan with lanes along them was given up."""
    t = po.index("t")

    @po.op
    def sums(x: f32[N]) -> object:
        halves, thirds = po.tensors("halves thirds")
        halves[t // 2] += x[t]
        thirds[t % 3] += x[t]
        return halves, thirds

    x = np.arange(extent, dtype=np.float32)
    halves, thirds = sums(x)
    np.testing.assert_array_equal(halves, np.add.reduceat(x, range(0, extent, 2)))
    np.testing.assert_array_equal(thirds, [x[r::3].sum() for r in range(3)])
    assert not caplog.records


def test_what_isl_orders_shares_the_outermost_loop_alone() -> None:
    """isl moved the update of p by a step, and put it into the first row of the product: a test for each term."""

    @po.op
    def descent(a: f64[N, N], b: f64[N], steps: int):
        t, u = po.index("t", extent=steps), po.index("u", extent=steps + 1)
        i, k = po.index("i", extent=N), po.index("k", extent=N)
        r, p, ap, rs = po.tensors("r p ap rs")
        r[0, i] = b[i]
        p[0, i] = b[i]
        rs[u] = po.sum(r[u, k] * r[u, k], k)
        ap[t, i] = po.sum(a[i, k] * p[t, k], k)
        r[t + 1, i] = r[t, i] - ap[t, i] / 8
        p[t + 1, i] = r[t + 1, i] + rs[t + 1] / rs[t] * p[t, i]
        return p[steps]

    tree = descent.lower(N=300, steps=20).fusion.tree
    assert [loop.name for loop in loops(tree) if "ap_update" in loop.statements] == ["t", "i", "k"]
    assert [loop.name for loop in loops(tree) if "p_1" in loop.statements] == ["t", "i"]
    a, b = np.random.default_rng(3).random((40, 40)), np.arange(1.0, 41)
    r, p = b, b
    for _ in range(5):
        before = r @ r
        r = r - a @ p / 8
        p = r + r @ r / before * p
    np.testing.assert_allclose(descent(a, b, 5), p, rtol=1e-10)


def test_two_sums_of_one_element_keep_loops_of_their_own(caplog: pytest.LogCaptureFixture) -> None:
    """They shared the loop that makes what both add up, whose lanes held partial results of either: not legal, and the
    plain order was left."""

    @po.op
    def moments(x: f32[N, M]):
        t, s, i, j = *po.tensors("t s"), po.index("i"), po.index("j")
        t[i, j] = x[i, j] * 2
        s[i] += t.wrap()[i, j]
        s[i] += t.wrap()[i, j]
        return s

    x = np.random.default_rng(0).integers(-9, 9, (5, 40)).astype(np.float32)
    with caplog.at_level("WARNING", logger="polyopt"):
        np.testing.assert_array_equal(moments(x), 4 * x.sum(1))
    assert not caplog.messages
    tree = moments.lower(x).fusion.tree
    assert all(len({"s_update", "s_1_update"} & set(loop.statements)) == 1 for loop in loops(tree) if loop.reduction)


def test_a_contraction_and_a_sum_of_its_results_share_what_both_have() -> None:
    """Products of 200 matrices and their columns' sums went through memory in between, all of them."""
    B, b = po.size("B"), po.index("b")

    @po.op
    def weighted(t: f32[B, M, K], y: f32[K, N], x: f32[M, N]):
        inner, out = po.tensors("inner out")
        inner[b, i, j] += t[b, i, k] * y[k, j]
        out[b, j] += inner[b, i, j] * x[i, j]
        return out

    lowering = weighted.lower(B=200, M=100, N=32, K=20, target=MACHINE)
    shared = [loop for loop in loops(lowering.fusion.tree) if {"inner_update", "out_update"} <= set(loop.statements)]
    assert [loop.name for loop in shared] == ["b"] and "workspace inner: f32[1, 100, 32]" in str(lowering.loops)
    for few in ({"B": 3, "M": 100}, {"B": 200, "M": 20}):  # no work for many threads, and few rows for register tiles
        kept = weighted.lower(**few, N=32, K=20, target=MACHINE).fusion
        assert not any({"inner_update", "out_update"} <= set(loop.statements) for loop in loops(kept.tree))
    draw = np.random.default_rng(0).integers
    t, y, x = (draw(-3, 4, shape).astype(np.float32) for shape in ((20, 70, 9), (9, 18), (70, 18)))
    np.testing.assert_array_equal(weighted(t, y, x), ((t @ y) * x).sum(1))
