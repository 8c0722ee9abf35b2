"""Conversion between the language's expressions and isl."""

from __future__ import annotations

from itertools import product

import islpy as isl
import pytest

from polyopt.dsl import affine, ir
from polyopt.dsl.affine import Affine, And, Compare, Condition, Not, Or
from polyopt.poly.space import (
    Bounds,
    Space,
    affine_from_aff,
    bounds,
    coalesced,
    condition_from_set,
    greatest,
    insert_axes,
    is_independent,
    operation_budget,
    project_onto,
    sample,
    sample_point,
)
from tests.poly.build import M, N, a, axis, eq, i, j, k, le, lt

SPACE = Space("S", ("i", "j"), ("M", "N"))

EXPRESSIONS = [
    Affine(0),
    Affine(-3),
    i * 2 + j - 1,
    M - 1 - i,
    i // 2,
    (i + N) // 3 - (j % 4),
    ((i // 2) + j) // 3 * 5 + N // 2,
    -(i // 2) + (i - j) // -4,
]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_an_expression_survives_the_way_to_isl_and_back(expression: Affine) -> None:
    returned = affine_from_aff(SPACE.aff(expression))
    sizes = {"M": 5, "N": 7}
    for x, y in product(range(-4, 5), repeat=2):
        point = {"i": x, "j": y}
        assert affine.evaluate(returned, point, sizes) == affine.evaluate(expression, point, sizes)


CONDITIONS: list[Condition] = [
    affine.TRUE,
    affine.FALSE,
    lt(j, i),
    Compare(i - j, "!="),
    Not(eq(i, j)),
    And((le(0, i), Not(Or((eq(j, 1), lt(i + j, 2)))))),
    Not(And((lt(i, 2), Or((lt(j, 0), eq(i % 2, 0)))))),
]


@pytest.mark.parametrize("condition", CONDITIONS, ids=affine.condition_text)
def test_a_condition_holds_on_the_same_points_in_isl(condition: Condition) -> None:
    space = Space("", ("i", "j"), ())
    points = space.condition(condition)
    for x, y in product(range(-3, 4), repeat=2):
        here = points.intersect(space.condition(And((eq(i, x), eq(j, y)))))
        assert (not here.is_empty()) == bool(affine.holds(condition, {"i": x, "j": y}, {}))


def test_a_box_takes_the_largest_lower_and_the_smallest_upper_bound() -> None:
    axes = [ir.Axis("i", (a(0), N - 3), (M, N)), axis("j", 0, N // 2)]
    expected = isl.Set("[M, N] -> { S[i, j] : 0 <= i and N - 3 <= i and i < M and i < N and 0 <= 2j <= N - 2 }")
    assert SPACE.box(axes).is_equal(expected)


def test_an_access_relation_names_both_ends() -> None:
    relation = SPACE.access("A", [i + 1, j // 2, M - 1])
    assert relation.is_equal(isl.Map("[M, N] -> { S[i, j] -> A[i + 1, floor(j / 2), M - 1] }"))
    assert SPACE.access("s", []).is_equal(isl.Map("[M, N] -> { S[i, j] -> s[] }"))


def test_a_space_without_axes_holds_one_point() -> None:
    space = Space("S", (), ())
    assert space.universe().is_equal(isl.Set("{ S[] }"))
    assert sample(space.universe()) == {}


def test_the_bounds_of_a_triangle_without_sizes_are_exact() -> None:
    space = Space("S", ("i", "j"), ())
    triangle = space.box([axis("i", 0, 5), axis("j", 0, 5)]).intersect(space.condition(lt(j, i)))
    assert [bounds(triangle, position) for position in (0, 1)] == [
        Bounds((a(1),), (a(5),)),
        Bounds((a(0),), (a(4),)),
    ]


def test_a_range_over_sizes_may_have_several_bounds() -> None:
    box = SPACE.box([ir.Axis("i", (a(0),), (M, N)), axis("j", 1, 3)])
    first, second = bounds(box, 0), bounds(box, 1)
    assert (first.lower, set(first.upper)) == ((a(0),), {M, N})
    assert second == Bounds((a(1),), (a(3),))


def test_a_range_has_no_bound_where_the_set_is_unbounded() -> None:
    space = Space("", ("i",), ())
    assert bounds(space.condition(le(2, i)), 0) == Bounds((a(2),), ())
    assert bounds(Space("", ("i",), ("N",)).condition(lt(i, N)), 0) == Bounds((), (N,))


def test_the_range_of_nothing_is_empty() -> None:
    assert bounds(SPACE.empty(), 0) == Bounds((a(0),), (a(0),))


def test_the_greatest_value_is_one_expression_or_none() -> None:
    assert greatest(Space("", ("i",), ("N",)).box([axis("i", 0, N)]), 0) == N - 1
    assert greatest(SPACE.box([ir.Axis("i", (a(0),), (M, N)), axis("j", 0, 1)]), 0) is None


def test_a_sample_is_small_and_includes_sizes() -> None:
    triangle = SPACE.box([axis("i", 0, M), axis("j", 0, N)]).intersect(SPACE.condition(lt(j, i)))
    assert sample(triangle) == {"M": 2, "N": 1, "i": 1, "j": 0}
    assert sample(SPACE.empty()) is None


def test_a_sample_prefers_small_coordinates() -> None:
    far = And((eq(affine.axis("i"), 0), eq(affine.axis("j"), 5000)))
    near = And((eq(affine.axis("i"), 3), eq(affine.axis("j"), 2)))
    space = Space("", ("i", "j"), ())
    assert sample(space.condition(far) | space.condition(near)) == {"i": 3, "j": 2}
    assert sample(space.condition(far)) == {"i": 0, "j": 5000}


def test_a_sample_of_an_unbounded_set_is_some_point_of_it() -> None:
    point = sample_point(Space("", ("i",), ()).condition(lt(i, -3)))
    assert point is not None and point.axes["i"] < -3


def test_a_size_and_an_axis_of_one_name_keep_apart() -> None:
    point = sample_point(Space("", ("n",), ("n",)).condition(And((eq(affine.axis("n"), 1), eq(affine.size("n"), 4)))))
    assert point is not None and (dict(point.sizes), dict(point.axes)) == ({"n": 4}, {"n": 1})


def test_projection_and_insertion_go_by_name() -> None:
    space = Space("", ("i", "j", "k"), ())
    box = space.box([axis("i", 0, 3), axis("j", 0, 4), axis("k", 0, 5)]).intersect(space.condition(lt(j, k)))
    assert project_onto(box, ("i", "k")).is_equal(isl.Set("{ [i, k] : 0 <= i < 3 and 1 <= k < 5 }"))
    wide = insert_axes(isl.Set("{ [a] : 0 <= a < 2 }"), space)
    assert wide.is_equal(isl.Set("{ [i, j, k] : 0 <= k < 2 }"))
    assert wide.get_dim_name(isl.dim_type.set, 2) == "k"


def test_a_set_of_sizes_reads_as_a_condition() -> None:
    for text in ("[M, N] -> { : M >= 3 and N = M }", "[M, N] -> { : M <= 2 or N > 4 }", "[M, N] -> { : N mod 4 = 1 }"):
        sizes = isl.Set(text).params()
        condition = condition_from_set(sizes)
        for m, n in product(range(7), repeat=2):
            here = sizes.intersect(isl.Set(f"[M, N] -> {{ : M = {m} and N = {n} }}").params())
            assert (not here.is_empty()) == bool(affine.holds(condition, {}, {"M": m, "N": n})), text


def test_a_tuple_named_or_not_makes_one_space() -> None:
    assert Space("", ("k",), ()).aff(k + 1).to_str() == "{ [k] -> [(1 + k)] }"


def test_what_isl_cannot_coalesce_stays_as_it_is() -> None:
    halves = isl.Set("{ [i] : 0 <= i <= 3 or 4 <= i <= 9 }")
    assert coalesced(halves).n_basic_set() == 1
    with operation_budget(1):
        assert coalesced(halves) is halves


@pytest.mark.parametrize(
    ("domain", "independent"),
    [
        ("{ S[i, j] : 0 <= i < 4 and 0 <= j < 9 }", (True, True)),
        ("[N] -> { S[i, j] : 0 <= i < N and 0 <= j < 9 }", (True, True)),
        ("[N] -> { S[i, j] : 0 <= i < N and 0 <= j < N }", (True, True)),
        ("{ S[i, j] : 0 <= i < 4 and 0 <= j <= i }", (False, False)),
        ("{ S[i, j] : 1 <= i < 4 and 0 <= j < 9 }", (False, True)),
        ("[N] -> { S[i, j] : 0 <= i < 4 and i <= j < N + i }", (False, False)),
    ],
)
def test_an_axis_is_independent_where_it_has_the_same_values_from_0_on(
    domain: str, independent: tuple[bool, bool]
) -> None:
    assert tuple(is_independent(isl.Set(domain), position) for position in (0, 1)) == independent
