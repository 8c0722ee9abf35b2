"""Dependences and distances: exact, compared with enumeration and as relations."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import pytest

import polyopt as po
from polyopt import f64
from polyopt.dsl.affine import Affine, axis
from polyopt.pipeline import Lowering
from polyopt.poly import dependence
from polyopt.poly.dependence import Dependence, Dependences
from polyopt.poly.distance import Distance, DistanceTester
from tests import brute_force
from tests.poly.operators import (
    N,
    gauss_seidel,
    histogram,
    i,
    jacobi_1d,
    k,
    layernorm,
    lower_triangle_solve,
    prefix,
    product,
    smith_waterman,
    softmax,
)

OPERATORS = {
    "gauss_seidel": lambda: gauss_seidel.lower(M=4, N=5),
    "jacobi_1d": lambda: jacobi_1d.lower(N=5, steps=3),
    "layernorm": lambda: layernorm.lower(M=2, N=3),
    "lower_triangle_solve": lambda: lower_triangle_solve.lower(N=5),
    "smith_waterman": lambda: smith_waterman.lower(M=3, N=4),
    "softmax": lambda: softmax.lower(M=2, N=3),
}


def instances(d: Dependence) -> set[tuple[brute_force.Key, brute_force.Key]]:
    size = d.relation.dim(isl.dim_type.in_)
    flat = brute_force.points(d.relation.wrap().flatten())
    return {((d.source, point[:size]), (d.target, point[size:])) for point in flat}


@pytest.mark.parametrize("name", OPERATORS)
def test_dependences_are_the_pairs_of_enumeration(name: str) -> None:
    lowering = OPERATORS[name]()
    needed = brute_force.pairs(lowering.scop)
    assert {pair for d in lowering.dependences.ordered for pair in instances(d)} == set(needed.ordered)
    unordered = {frozenset(pair) for d in lowering.dependences.reductions for pair in instances(d)}
    assert unordered == {frozenset(pair) for pair in needed.updates}


@pytest.mark.parametrize("name", OPERATORS)
def test_in_strict_mode_updates_of_one_element_run_in_index_order(name: str) -> None:
    scop = OPERATORS[name]().scop
    strict = dependence.compute(scop, strict=True)
    assert strict.reductions == ()
    position = {s.name: n for n, s in enumerate(scop.statements)}
    for d in strict.ordered:
        if d.kind == "order":
            for (first, at), (second, to) in instances(d):
                assert (position[first], at) < (position[second], to)
    needed = {frozenset(pair) for pair in brute_force.pairs(scop).updates}
    found = {frozenset(pair) for d in strict.ordered if d.kind == "order" for pair in instances(d)}
    assert found == needed


def test_every_kind_of_dependence_is_told_apart() -> None:
    found = product.lower(M=2, N=3, K=4).dependences
    assert [(d.kind, d.source, d.target, d.array) for d in found.ordered] == [
        ("flow", "y_init", "out", "y"),
        ("flow", "y_update", "out", "y"),
        ("start", "y_init", "y_update", "y"),
    ]
    (reduction,) = found.reductions
    wanted = isl.Map(
        "{ y_update[i, j, k] -> y_update[i, j, l] : 0 <= i < 2 and 0 <= j < 3 and 0 <= k, l < 4 and k != l }"
    )
    assert reduction.relation.is_equal(wanted)


def test_updates_of_different_statements_that_meet_are_a_reduction() -> None:
    @po.op
    def both(x: f64[N], w: f64[N]):
        y = po.tensor("y", shape=(N,))
        y[i] += x[i] * x[k]
        y[i] += w[i] * w[k]
        return y

    reductions = both.lower(N=3).dependences.reductions
    pairs = {(d.source, d.target) for d in reductions}
    assert len(pairs) == 3 and len([pair for pair in pairs if pair[0] != pair[1]]) == 1


def test_any_two_updates_of_a_scatter_may_meet() -> None:
    (reduction,) = histogram.lower(N=3, count=2).dependences.reductions
    assert reduction.relation.is_equal(isl.Map("{ h_update[i] -> h_update[j] : 0 <= i, j < 3 and i != j }"))


def test_reads_of_one_array_are_one_dependence() -> None:
    lowering = gauss_seidel.lower(M=4, N=5)
    (flow,) = [d for d in lowering.dependences.ordered if d.source == d.target]
    assert flow.relation.is_equal(
        isl.Map(
            "{ a[i, j] -> a[i + 1, j] : 0 <= i < 3 and 1 <= j < 5; a[i, j] -> a[i, j + 1] : 1 <= i < 4 and 0 <= j < 4 }"
        )
    )


def test_dependences_print_in_a_line_each_and_are_found_by_pair() -> None:
    found = product.lower(M=2, N=3, K=4).dependences
    lines = str(found).splitlines()
    assert len(lines) == 4 and lines[0].startswith("flow  y: ") and lines[-1].startswith("reduction y: ")
    assert str(Dependences((), ())) == "none"
    assert found.by_pair["y_init", "y_update"] == (found.ordered[2],)
    assert ("out", "y_init") not in found.by_pair


# --- distances --------------------------------------------------------------------------------------------------


def measuring(lowering: Lowering) -> tuple[DistanceTester, tuple[Dependence, ...]]:
    return DistanceTester.of(lowering.scop), lowering.dependences.ordered


def measured(d: Dependence, rows: dict[str, Affine]) -> Distance:
    """The distances of a dependence, by enumeration."""
    found = []
    for (_, first), (_, second) in instances(d):
        ends = []
        for name, point in ((d.source, first), (d.target, second)):
            axes = dict(zip(AXES[name], point, strict=True))
            ends.append(brute_force.af.evaluate(rows[name], axes, {}))
        found.append(ends[1] - ends[0])
    return Distance(all(n >= 0 for n in found), all(n > 0 for n in found), all(n == 0 for n in found))


AXES: dict[str, tuple[str, ...]] = {}


@pytest.mark.parametrize("name", OPERATORS)
def test_distances_are_those_of_enumeration(name: str) -> None:
    lowering = OPERATORS[name]()
    tester, ordered = measuring(lowering)
    AXES.clear()
    AXES.update({s.name: s.axes for s in lowering.scop.statements})
    for d in ordered:
        for source in [*map(axis, AXES[d.source]), Affine(0)]:
            for target in [*map(axis, AXES[d.target]), Affine(1)]:
                if d.source == d.target:
                    target = source
                for rows in ({d.source: source, d.target: target}, {d.source: -source, d.target: -target}):
                    assert tester.distance(d, rows) == measured(d, rows)


def test_a_row_is_legal_where_no_distance_is_negative() -> None:
    lowering = prefix.lower(N=5)
    tester, ordered = measuring(lowering)
    inner = [d for d in ordered if d.source == d.target]
    assert tester.respects(inner, {"s_1": axis("t")})
    assert not tester.respects(inner, {"s_1": -axis("t")})
    assert tester.is_coincident(inner, {"s_1": Affine(0)}) and not tester.is_coincident(inner, {"s_1": axis("t")})


def test_what_a_row_carries_is_not_left_for_the_loops_inside() -> None:
    lowering = gauss_seidel.lower(M=4, N=5)
    tester, ordered = measuring(lowering)
    assert tester.left(ordered, {"a": axis("i") + axis("j")}) == ()
    (along_rows,) = tester.left(ordered, {"a": axis("i")})
    assert along_rows.relation.is_equal(isl.Map("{ a[i, j] -> a[i, j + 1] : 1 <= i < 4 and 0 <= j < 4 }"))
    assert tester.left(ordered, {"a": Affine(0)}) == ordered


def test_a_dependence_whose_pairs_of_distance_zero_are_gone_is_dropped() -> None:
    lowering = prefix.lower(N=6)
    tester = DistanceTester.of(lowering.scop)
    mixed = isl.Map("{ s_1[t] -> s_1[u] : 0 < t < u < 6 or (t = 3 and u = 1) }")
    (own,) = [d for d in lowering.dependences.ordered if d.source == d.target]
    assert tester.left([replace(own, relation=mixed)], {"s_1": axis("t")}) == ()


def test_two_dependences_never_share_what_is_remembered_of_distances() -> None:
    """Their identities are the keys: a dependence that is no longer used must not give its place away."""
    lowering = prefix.lower(N=6)
    tester = DistanceTester.of(lowering.scop)
    (own,) = [d for d in lowering.dependences.ordered if d.source == d.target]
    for distance in range(-3, 4):
        moved = isl.Map(f"{{ s_1[t] -> s_1[t + {distance}] : 3 < t < 6 }}")
        found = tester.distance(replace(own, relation=moved), {"s_1": axis("t")})
        assert found == Distance(distance >= 0, distance > 0, distance == 0)
