"""Arithmetic on bounds: exact or no answer, never a wrong one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st

from polyopt.dsl import affine, ir
from polyopt.dsl.affine import Affine, And, Compare, Condition, Not, Or, is_nonnegative
from polyopt.poly.equalities import Equalities
from polyopt.poly.intervals import as_range, extreme, is_within, narrowed, tightest, window
from tests.poly.build import K, M, N, a, axis, eq, i, j, lt

coefficients = st.integers(-2, 2)
expressions = st.one_of(
    st.builds(lambda c, d, e: i * c + j * d + e, coefficients, coefficients, st.integers(-5, 5)),
    st.builds(
        lambda c, m, d, e: (i * c + 1) // m + j * d + e, coefficients, st.integers(2, 3), coefficients, coefficients
    ),
    st.builds(lambda m, d: i % m + j * d, st.integers(2, 3), coefficients),
)
extents = st.integers(1, 5)
comparisons = st.builds(
    lambda c, d, e, op: Compare(i * c + j * d + e, op),
    st.sampled_from([1, -1, 0, 2]),
    st.sampled_from([0, 0, 1]),
    st.integers(-4, 4),
    st.sampled_from(["==", "!=", ">=", ">", "<=", "<"]),
)
conditions: st.SearchStrategy[Condition] = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.builds(Not, inner),
        st.builds(lambda x, y: And((x, y)), inner, inner),
        st.builds(lambda x, y: Or((x, y)), inner, inner),
    ),
    max_leaves=4,
)


def values(one: ir.Axis) -> range:
    return range(max(b.constant for b in one.lower), min(b.constant for b in one.upper))


def points(axes: Sequence[ir.Axis]) -> Iterator[dict[str, int]]:
    for point in product(*map(values, axes)):
        yield dict(zip((one.name for one in axes), point, strict=True))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(expressions, extents, extents)
def test_an_extreme_is_reached_and_not_exceeded(expression: Affine, width: int, height: int) -> None:
    axes = [axis("i", -1, width), axis("j", 1, 1 + height)]
    reached = [affine.evaluate(expression, point, {}) for point in points(axes)]
    ranges = {one.name: one for one in axes}
    for largest, expected in ((True, max(reached)), (False, min(reached))):
        found = extreme(expression, ranges, largest=largest)
        assert found is None or found == Affine(expected)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(expressions, st.integers(0, 8), extents)
def test_a_window_holds_the_values_in_bounds_for_all_others(subscript: Affine, extent: int, height: int) -> None:
    others = [axis("j", 0, height)]
    bounds = window(subscript, "i", {"j": others[0]}, Affine(extent))
    if bounds is None:
        return
    good = [
        value
        for value in range(-40, 40)
        if all(0 <= affine.evaluate(subscript, {**point, "i": value}, {}) < extent for point in points(others))
    ]
    assert good == list(range(bounds[0].constant, bounds[1].constant))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(conditions, expressions, st.integers(1, 6))
def test_narrowing_by_a_condition_loses_no_point_of_it(condition: Condition, subscript: Affine, extent: int) -> None:
    axes = [axis("i", 0, 5), axis("j", -1, 4)]
    ranges = narrowed({one.name: one for one in axes}, condition)
    inside = [point for point in points(axes) if affine.holds(condition, point, {})]
    assert all(point[name] in values(ranges[name]) for point in inside for name in point)
    if is_within(subscript, Affine(extent), ranges):
        assert all(0 <= affine.evaluate(subscript, point, {}) < extent for point in inside)


def test_a_guard_at_the_border_narrows_over_symbolic_sizes() -> None:
    interior = And((lt(0, i), Not(Or((lt(N - 2, i), eq(j, 0))))))
    ranges = narrowed({"i": axis("i", 0, N), "j": axis("j", 0, M)}, interior)
    assert ranges == {"i": axis("i", 1, N - 1), "j": axis("j", 1, M)}
    assert is_within(i - 1, N, ranges) and is_within(i + 1, N, ranges) and not is_within(i + 2, N, ranges)
    last = narrowed({"i": axis("i", 0, N)}, Compare(i - N + 1, "!="))
    assert last == {"i": axis("i", 0, N - 1)}


def test_only_plainly_implied_bounds_are_dropped() -> None:
    assert tightest([N, N - 2, M], largest=False) == (N - 2, M)
    assert tightest([N, N - 2, a(3)], largest=True) == (N, a(3))
    assert is_nonnegative(N // 2 + M) and not is_nonnegative(N - 1) and not is_nonnegative(N - M)


def test_an_empty_range_starts_where_it_ends() -> None:
    """Like one whose emptiness shows only with numbers for the sizes: an extent is computed from where it ends."""
    assert as_range("i", [a(4)], [a(2)]) == ir.Axis("i", (a(2),), (a(2),))
    assert as_range("i", [N + 1], [N - 2]) == ir.Axis("i", (N - 2,), (N - 2,))
    assert as_range("i", [a(0)], [a(-2)]) == ir.Axis("i", (a(0),), (a(0),))


def test_equal_sizes_are_replaced_by_one() -> None:
    same = Equalities([And((Compare(M - N, "=="), lt(M, 4))), Compare(N + 1 - K, "==")])
    assert same.apply(N * 2 + K) == same.apply(M * 3 + 1)
    assert same.apply(N - M) == Affine(0)
    halves = Equalities([Compare(M * 2 - N * 2, "==")])
    assert halves.apply(N) == N  # not solvable for a size without a fraction
    floors = Equalities([Compare(M - M // 2 - 3, "==")])
    assert floors.apply(M) == M
    assert same.axis(ir.Axis("i", (a(0),), (M, N))) == axis("i", 0, same.apply(N))
