"""Affine expressions and conditions: the normal form has the value that Python's operators give."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyopt as po
from polyopt import f32
from polyopt.dsl import affine as af
from polyopt.dsl.expr import Expr, as_expr
from polyopt.dsl.extents import known_extents
from polyopt.dsl.recognise import NeedsSizes, NotAffine, Scope, affine_of, condition_of, fold
from polyopt.poly.ranges import infer
from tests.dsl.tracing import program

i, j = po.indices("i j")
N = po.size("N")
SCOPE = Scope({i: "i", j: "j"}, {}, {})

Pair = tuple[Any, Callable[[int, int, int], int]]
"""A symbolic expression and the Python function of i, j and N that it stands for."""

leaves = st.sampled_from([0, 1, 2]).map(
    lambda n: [(i, lambda a, b, c: a), (j, lambda a, b, c: b), (N, lambda a, b, c: c)][n]
)


def combined(parts: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    numbers = st.integers(-4, 4)
    divisors = st.integers(1, 4) | st.integers(-4, -1)
    additions = st.tuples(st.sampled_from([operator.add, operator.sub]), parts, parts).map(
        lambda t: (t[0](t[1][0], t[2][0]), lambda a, b, c: t[0](t[1][1](a, b, c), t[2][1](a, b, c)))
    )
    scaled = st.tuples(st.sampled_from([operator.add, operator.sub, operator.mul]), parts, numbers).map(
        lambda t: (t[0](t[1][0], t[2]), lambda a, b, c: t[0](t[1][1](a, b, c), t[2]))
    )
    divided = st.tuples(st.sampled_from([operator.floordiv, operator.mod]), parts, divisors).map(
        lambda t: (t[0](t[1][0], t[2]), lambda a, b, c: t[0](t[1][1](a, b, c), t[2]))
    )
    negated = parts.map(lambda p: (-p[0], lambda a, b, c: -p[1](a, b, c)))
    return additions | scaled | divided | negated


pairs: st.SearchStrategy[Pair] = st.recursive(leaves, combined, max_leaves=6)
points = st.tuples(st.integers(-5, 9), st.integers(-5, 9), st.integers(0, 9))


@given(pairs, points)
def test_an_affine_expression_has_the_value_of_the_python_one(pair: Pair, point: tuple[int, int, int]) -> None:
    expr, function = pair
    a, b, c = point
    assert af.evaluate(affine_of(expr, SCOPE), {"i": a, "j": b}, {"N": c}) == function(a, b, c)


COMPARE = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)
LOGIC = (operator.and_, operator.or_, operator.xor)


@given(pairs, pairs, st.sampled_from(COMPARE), st.sampled_from(COMPARE), st.sampled_from(LOGIC), st.booleans(), points)
def test_a_condition_holds_where_the_python_one_does(
    left: Pair, right: Pair, first: Any, second: Any, logic: Any, negate: bool, point: tuple[int, int, int]
) -> None:
    expr: Expr = logic(first(left[0], right[0]), second(left[0], 2))
    a, b, c = point
    value = logic(first(left[1](a, b, c), right[1](a, b, c)), second(left[1](a, b, c), 2))
    condition = condition_of(~expr if negate else expr, SCOPE)
    assert af.holds(condition, {"i": a, "j": b}, {"N": c}) == (value ^ negate)
    assert af.holds(fold(condition), {"i": a, "j": b}, {"N": c}) == (value ^ negate)


@pytest.mark.parametrize(
    ("build", "needs_sizes"), [(lambda: i * j, False), (lambda: i * N, True), (lambda: N * N, True)]
)
def test_products_are_affine_only_with_numbers(build: Callable[[], Expr], needs_sizes: bool) -> None:
    with pytest.raises(NotAffine) as caught:
        affine_of(build(), SCOPE)
    assert caught.value.needs_sizes == needs_sizes
    known = Scope({i: "i", j: "j"}, {"N": af.constant(3)}, {})
    if needs_sizes:
        affine_of(build(), known)


@pytest.mark.parametrize("build", [lambda: i / 2, lambda: i**2, lambda: i & 1, lambda: as_expr(1.5), lambda: i // j])
def test_what_is_not_affine(build: Callable[[], Expr]) -> None:
    with pytest.raises(NotAffine):
        affine_of(build(), SCOPE)


def test_a_subscript_that_needs_sizes_says_so() -> None:
    def op(x: f32[N]) -> Any:
        y = po.tensor("y")
        y[i, j] = x[i * N + j]
        return y

    with pytest.raises(NeedsSizes) as caught:
        program(op)
    assert caught.value.facts["needs_sizes"]
    assert not program(op, sizes={"N": 4}).sizes


@given(
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3), st.integers(0, 2)), min_size=1, max_size=3),
    st.integers(1, 2),
    st.integers(12, 20),
)
def test_extents_that_are_plain_while_tracing_are_those_that_ranges_finds(
    windows: list[tuple[int, int, int]], stride: int, extent: int
) -> None:
    r = po.index("r", 3)
    seen: list[Any] = []

    def op(x: Any) -> Any:
        y = po.tensor("y")
        y[stride * i] += sum((x[a * i + b + c * r] for a, b, c in windows), start=0 * r)
        seen.append(known_extents(y))
        return y

    found = program(op, {"x": (f32, 1)}, {"x_0": extent})
    ((plain,),) = seen
    (resolved,) = infer(found).tensor("y").shape or ()
    assert plain is None or plain == resolved
