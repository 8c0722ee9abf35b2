"""Expressions and conditions as loop expressions: the same values, whatever form isl gives them."""

from __future__ import annotations

from itertools import product
from typing import Any

import islpy as isl
import pytest

from polyopt.dsl import affine
from polyopt.dsl.affine import FALSE, TRUE, Affine, And, Compare, Not, Or, axis, size
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.ir import Const, Op, Var
from polyopt.dtypes import bool_, i64
from polyopt.errors import ScheduleError
from polyopt.loops.ir import Expr, index_var, integer
from polyopt.loops.lower import _plus_one
from polyopt.loops.scan import NotAffine, affine_expr, as_affine, as_condition, as_expr, both, condition_expr

SIZES = frozenset({"n", "m"})
VALUES = [dict(zip(("n", "m"), pair, strict=True)) for pair in product((-7, -1, 0, 1, 2, 5, 12), (1, 3, 4))]


def value(expr: Expr, values: dict[str, int]) -> int:
    """What an index expression evaluates to."""
    match expr:
        case Const(number):
            return int(number)
        case Var(name):
            return values[name]
        case Op("select", (condition, then, otherwise)):
            return value(then if value(condition, values) else otherwise, values)
        case Op("not", (part,)):
            return int(not value(part, values))
        case Op(name, args):
            return int(BUILTINS[name].numpy(*(value(arg, values) for arg in args)))
    raise AssertionError(f"no index expression: {expr}")


def ast_of(text: str) -> isl.AstExpr:
    """isl's AST of a quasi-affine expression of the sizes n and m."""
    build = isl.AstBuild.from_context(isl.Set("[n, m] -> { : }"))
    return build.expr_from_pw_aff(isl.PwAff(f"[n, m] -> {{ [({text})] }}"))


def condition_of(text: str) -> isl.AstExpr:
    build = isl.AstBuild.from_context(isl.Set("[n, m] -> { : }"))
    return build.expr_from_set(isl.Set(f"[n, m] -> {{ : {text} }}"))


EXPRESSIONS = {
    "7": lambda n, m: 7,
    "n": lambda n, m: n,
    "2n + 3m - 5": lambda n, m: 2 * n + 3 * m - 5,
    "-n": lambda n, m: -n,
    "-n - m + 1": lambda n, m: -n - m + 1,
    "floor((n + m)/4)": lambda n, m: (n + m) // 4,
    "n mod 5": lambda n, m: n % 5,
    "3*floor(n/3) - (m mod 2)": lambda n, m: 3 * (n // 3) - m % 2,
    "floor((2*floor(n/3) + 1)/2)": lambda n, m: (2 * (n // 3) + 1) // 2,
}


@pytest.mark.parametrize("text", EXPRESSIONS)
def test_an_affine_expression_comes_back_in_normal_form(text: str) -> None:
    ast = ast_of(text)
    found = as_affine(ast, {}, SIZES)
    for values in VALUES:
        wanted = EXPRESSIONS[text](**values)
        assert affine.evaluate(found, {}, values) == wanted
        assert value(as_expr(ast, {}, SIZES), values) == wanted


PIECEWISE = {
    "min(n, m)": lambda n, m: min(n, m),
    "max(n, 2m, 3)": lambda n, m: max(n, 2 * m, 3),
    "min(n, m) + max(n, 0)": lambda n, m: min(n, m) + max(n, 0),
    "3*min(n, m) - 2": lambda n, m: 3 * min(n, m) - 2,
    "floor(min(n, m)/3)": lambda n, m: min(n, m) // 3,
    "min(n, m) mod 3": lambda n, m: min(n, m) % 3,
    "-min(n, 2m + 1)": lambda n, m: -min(n, 2 * m + 1),
}


@pytest.mark.parametrize("text", PIECEWISE)
def test_what_is_not_affine_becomes_operations(text: str) -> None:
    expr = as_expr(ast_of(text), {}, SIZES)
    for values in VALUES:
        assert value(expr, values) == PIECEWISE[text](**values)
        assert value(_plus_one(expr), values) == PIECEWISE[text](**values) + 1


def test_a_choice_between_expressions_is_a_select() -> None:
    build = isl.AstBuild.from_context(isl.Set("[n, m] -> { : }"))
    ast = build.expr_from_pw_aff(isl.PwAff("[n, m] -> { [(n)] : m = 1; [(7)] : m > 1 }"))
    with pytest.raises(NotAffine):
        as_affine(ast, {}, SIZES)
    expr = as_expr(ast, {}, SIZES)
    for values in VALUES:
        assert value(expr, values) == (values["n"] if values["m"] == 1 else 7)


CONDITIONS = {
    "n = m": lambda n, m: n == m,
    "n >= 2 and m < 4": lambda n, m: n >= 2 and m < 4,
    "n < 0 or m = 3 or n > 4": lambda n, m: n < 0 or m == 3 or n > 4,
    "n mod 2 = 0 and n > m": lambda n, m: n % 2 == 0 and n > m,
    "n <= -1 or (n >= 1 and m >= 3)": lambda n, m: n <= -1 or (n >= 1 and m >= 3),
}


@pytest.mark.parametrize("text", CONDITIONS)
def test_a_guard_is_a_condition_of_comparisons(text: str) -> None:
    expr = as_expr(condition_of(text), {}, SIZES)
    assert expr.dtype == bool_
    for values in VALUES:
        assert bool(value(expr, values)) == CONDITIONS[text](**values)


def test_what_always_holds_is_a_condition_among_others() -> None:
    """isl says the number 1 for it: `n < 0 or 1`."""
    always, below = isl.AstExpr.from_val(isl.Val(1)), condition_of("n < 0")
    for ast, always_holds in ((always, True), (below.or_(always), True), (below.and_(always), False)):
        expr = as_condition(ast, {}, SIZES)
        assert expr.dtype == bool_
        assert all(bool(value(expr, values)) == (always_holds or values["n"] < 0) for values in VALUES)
        assert all(part.dtype == bool_ for part in getattr(expr, "args", ()) if isinstance(part, Const))


def test_iterators_take_the_names_of_the_loops() -> None:
    build = isl.AstBuild.from_context(isl.Set("{ : }"))
    node = build.node_from_schedule_map(isl.UnionMap("{ S[i] -> [2i + 1] : 0 <= i < 3 }"))
    call = node.for_get_body().user_get_expr()
    iterator = node.for_get_iterator().get_id().get_name()
    found = as_affine(call.get_op_arg(1), {iterator: "x"}, frozenset())
    assert {affine.evaluate(found, {"x": x}, {}) for x in (1, 3, 5)} == {0, 1, 2}


def test_an_operation_that_isl_never_makes_of_indices_is_refused() -> None:
    call = isl.AstBuild.from_context(isl.Set("{ : }")).access_from_pw_multi_aff(isl.PwMultiAff("{ A[1, 2] }"))
    with pytest.raises(ScheduleError, match="not expected"):
        as_expr(call, {"A": "a"}, frozenset())


# --- the language's own expressions ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "expression",
    [
        Affine(0),
        Affine(-3),
        axis("n"),
        -axis("n") - axis("m") - 2,
        axis("n") * -3 + axis("m") * 2 + 1,
        (axis("n") + 5) // 3 * 2 - axis("m") % 4,
        size("n") // 2 - size("m"),
    ],
)
def test_affine_expressions_are_sums_of_products(expression: Affine) -> None:
    expr = affine_expr(expression)
    assert expr.dtype == i64
    for values in VALUES:
        assert value(expr, values) == affine.evaluate(expression, values, values)
        assert value(_plus_one(expr), values) == affine.evaluate(expression, values, values) + 1


A, B = Compare(axis("n") - axis("m") * 2 + 1, ">="), Compare(axis("n"), "<")


@pytest.mark.parametrize("op", ["==", "!=", ">=", ">", "<=", "<"])
def test_comparisons_keep_their_sense_with_all_terms_positive(op: Any) -> None:
    condition = Compare(axis("n") * 2 - axis("m") - 3, op)
    expr = condition_expr(condition)
    for values in VALUES:
        assert bool(value(expr, values)) == affine.holds(condition, values, {})
    assert "-" not in str(affine_expr(Affine(3)))


@pytest.mark.parametrize("condition", [TRUE, FALSE, A, And((A, B)), Or((A, B)), Not(A), Not(Or((A, And((B,)))))])
def test_conditions_are_conjunctions_disjunctions_and_negations(condition: Any) -> None:
    expr = condition_expr(condition)
    assert expr.dtype == bool_
    for values in VALUES:
        assert bool(value(expr, values)) == bool(affine.holds(condition, values, {}))


def test_two_masks_hold_together_and_none_holds_always() -> None:
    mask, other = condition_expr(A), condition_expr(B)
    assert both(None, None) is None and both(mask, None) == mask and both(None, other) == other
    assert both(mask, other) == Op("and", (mask, other), bool_)


def test_one_more_than_a_bound_stays_simple() -> None:
    n = index_var("n")
    assert _plus_one(integer(4)) == integer(5)
    assert _plus_one(Op("sub", (n, integer(1)), i64)) == n
    assert _plus_one(Op("sub", (n, integer(4)), i64)) == Op("sub", (n, integer(3)), i64)
    assert _plus_one(Op("add", (n, integer(4)), i64)) == Op("add", (n, integer(5)), i64)
    assert _plus_one(n) == Op("add", (n, integer(1)), i64)
