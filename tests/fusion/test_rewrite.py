"""Exact rewrites: what the equations say stays the same, bit for bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, f16, f32, f64, i64
from polyopt.dsl import ir
from polyopt.dsl.affine import FALSE, TRUE, Affine, And, Compare, Not, Or, axis
from polyopt.dtypes import bool_, i8, i32
from polyopt.fusion.rewrite import LARGEST_VALUE, cost, drop_unused, fold, inline, rewrite
from polyopt.reference import evaluate
from tests.poly.operators import K, M, N, i, j, k, layernorm, softmax, ten_steps
from tests.random_operators import random_case


def op(name: str, *args: ir.Expr, dtype: Any = f64) -> ir.Expr:
    return ir.Op(name, args, dtype)


def num(value: float, dtype: Any = f64) -> ir.Const:
    return ir.Const(value, dtype)


X = ir.Read("x", (axis("i"),), f64)


def program_of(operator: po.Op, *arguments: Any, **sizes: Any) -> ir.Program:
    return operator.lower(*arguments, **sizes).program


def tensors(program: ir.Program) -> set[str]:
    return {tensor.name for tensor in program.tensors if tensor.role != "input"}


# --- constant folding -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expr", "folded"),
    [
        (op("add", num(1.5), num(2.0)), num(3.5)),
        (op("add", X, op("mul", num(2.0), num(3.0))), op("add", X, num(6.0))),
        (op("add", num(100, i8), num(100, i8), dtype=i8), num(-56, i8)),
        (op("floordiv", num(-7, i32), num(2, i32), dtype=i32), num(-4, i32)),
        (op("lt", num(1.0), num(2.0), dtype=bool_), num(True, bool_)),
        (ir.Cast(num(2.7), i32), num(2, i32)),
        (ir.Cast(X, f32), ir.Cast(X, f32)),
        (ir.Where(TRUE, X, num(0.0), f64), X),
        (ir.Where(FALSE, X, num(0.0), f64), num(0.0)),
    ],
)
def test_operations_on_constants_are_done_in_their_dtype(expr: ir.Expr, folded: ir.Expr) -> None:
    assert fold(expr) == folded


def test_functions_that_round_differently_on_other_machines_are_left_alone() -> None:
    expr = op("exp", num(1.0))
    assert fold(expr) == expr
    assert fold(op("sqrt", num(4.0))) == num(2.0)


def test_a_division_by_zero_folds_without_a_warning() -> None:
    folded = fold(op("truediv", num(1.0), num(0.0)))
    assert folded == num(float("inf"))
    assert isinstance(fold(op("floordiv", num(1, i64), num(0, i64), dtype=i64)), ir.Const)


POSITIVE, NEGATIVE, OPEN = Compare(Affine(1), ">"), Compare(Affine(-1), ">"), Compare(axis("i"), ">")


@pytest.mark.parametrize(
    ("condition", "verdict"),
    [
        (POSITIVE, True),
        (NEGATIVE, False),
        (OPEN, None),
        (Not(POSITIVE), False),
        (Not(OPEN), None),
        (And((POSITIVE, POSITIVE)), True),
        (And((OPEN, NEGATIVE)), False),
        (And((OPEN, POSITIVE)), None),
        (Or((OPEN, POSITIVE)), True),
        (Or((OPEN, NEGATIVE)), None),
        (Or((NEGATIVE, NEGATIVE)), False),
    ],
)
def test_a_choice_is_taken_where_its_condition_is_decided(condition: Any, verdict: bool | None) -> None:
    choice = ir.Where(condition, X, num(0.0), f64)
    assert fold(choice) == {True: X, False: num(0.0), None: choice}[verdict]


@pytest.mark.parametrize("verdict", [True, False])
def test_a_choice_by_data_is_taken_where_the_data_is_a_constant(verdict: bool) -> None:
    assert fold(op("select", ir.Cast(num(int(verdict), i64), bool_), X, num(0.0))) == (X if verdict else num(0.0))


# --- dead code --------------------------------------------------------------------------------------------------


def test_what_no_result_needs_is_dropped_and_inputs_stay() -> None:
    @po.op
    def wasteful(x: f64[N], unused: f64[N]):
        a, b, y = po.tensors("a b y")
        a[i] = x[i] * 2.0
        b[i] = a[i] + 1.0
        y[i] = x[i] + unused[0] * 0.0
        return y

    program = program_of(wasteful, N=4)
    kept = drop_unused(program)
    assert tensors(kept) == {"y"} and kept.parameters == program.parameters
    assert {t.name for t in kept.tensors if t.role == "input"} == {"x", "unused"}


def test_what_only_a_data_subscript_needs_is_kept() -> None:
    @po.op
    def scattered(x: f64[N], ids: i64[N]):
        where, h = po.tensor("where"), po.tensor("h", shape=(4,))
        where[i] = ids[i] + po.sum(ids[k], k)
        h[where[i]] += x[i]
        return h

    assert tensors(drop_unused(program_of(scattered, N=3))) == {"where", "h"}


# --- inlining ---------------------------------------------------------------------------------------------------


def test_a_chain_of_pointwise_steps_becomes_one_definition() -> None:
    rewritten = rewrite(program_of(ten_steps, N=100))
    assert len(rewritten.equations) == 1 and tensors(rewritten) == set(rewritten.results)


def lowered_tensors(operator: po.Op, **sizes: Any) -> set[str]:
    return tensors(inline(program_of(operator, **sizes)))


def test_a_costly_producer_with_several_readers_is_kept() -> None:
    @po.op
    def shared(x: f64[N]):
        a, y = po.tensors("a y")
        a[i] = po.exp(x[i])
        y[i] = po.where(i < N - 1, a[i + 1], 0.0) + a[i]
        return y

    assert lowered_tensors(shared, N=5) == {"a", "y"}


def test_a_cheap_producer_is_computed_again_for_each_reader() -> None:
    @po.op
    def shared(x: f64[N]):
        a, y = po.tensors("a y")
        a[i] = x[i] * 2.0
        y[i] = po.where(i < N - 1, a[i + 1], 0.0) + a[i]
        return y

    assert lowered_tensors(shared, N=5) == {"y"}


def test_a_producer_that_would_be_computed_again_along_an_axis_is_kept() -> None:
    @po.op
    def repeated(x: f64[M], w: f64[N]):
        a, y = po.tensors("a y")
        a[i] = x[i] * 2.0
        y[i, j] = a[i] * w[j]
        return y

    assert lowered_tensors(repeated, M=3, N=4) == {"a", "y"}


@po.op
def widened(x: f16[M, K], w: f32[K, N]):
    return po.einsum("mk,kn->mn", po.cast(x, f32), w)


@po.op
def widened_twice(x: bf16[M, K], w: bf16[K, N]):
    return po.einsum("mk,kn->mn", po.cast(x, f32), po.cast(w, f32))


@po.op
def narrowed(x: f32[M, K], w: bf16[K, N]):
    return po.einsum("mk,kn->mn", po.cast(x, bf16), w)


@pytest.mark.parametrize(
    ("operator", "columns", "is_inlined"),
    [
        (widened, 256, True),
        (widened, 4096, False),
        (widened_twice, 256, True),
        (widened_twice, 4096, True),
        (narrowed, 256, False),
    ],
)
def test_where_operations_are_to_spare_a_value_of_one_element_is_computed_again(
    operator: po.Op, columns: int, is_inlined: bool
) -> None:
    """Where it is used seldom, and where tensor cores multiply the elements as they are stored; nowhere else."""
    program = program_of(operator, M=512, N=columns, K=512)
    assert tensors(inline(program)) >= {"cast", "einsum"}
    assert ("cast" not in tensors(drop_unused(inline(program, 6)))) == is_inlined


def test_a_copy_is_inlined_even_along_an_axis() -> None:
    @po.op
    def copied(x: f64[M], w: f64[N]):
        a, y = po.tensors("a y")
        a[i] = x[i]
        y[i, j] = a[i] * w[j]
        return y

    assert lowered_tensors(copied, M=3, N=4) == {"y"}


def test_a_producer_read_inside_a_sum_over_other_axes_is_kept() -> None:
    @po.op
    def in_a_sum(x: f64[M], w: f64[N]):
        a, y = po.tensors("a y")
        a[i] = x[i] * 2.0
        y[i] = po.sum(a[i] * w[k], k)
        return y

    assert "a" in lowered_tensors(in_a_sum, M=3, N=4)


def test_producers_that_are_no_plain_expression_are_kept() -> None:
    @po.op
    def kinds(x: f64[N]):
        summed, guarded, pieces, own, moved, y = po.tensors("summed guarded pieces own moved y")
        t = po.index("t", 1, N)
        summed[i] += x[i] * x[k]
        guarded[i] = po.when(i > 0, x[i])
        guarded[i] = po.when(i == 0, x[i] * 2.0)
        own[0] = x[0]
        own[t] = own[t - 1] + x[t]
        moved[t] = x[t]
        y[i] = summed[i] + guarded[i] + own[i] + po.where(i > 0, moved[i], 0.0)
        return y

    assert lowered_tensors(kinds, N=5) >= {"summed", "guarded", "own", "y"}


@pytest.mark.parametrize("boundary", ["pad", "clamp", "wrap"])
def test_a_producer_that_is_read_beyond_its_border_is_kept(boundary: str) -> None:
    @po.op
    def bounded(x: f64[N]):
        a, y = po.tensors("a y")
        a[i] = x[i] * 2.0
        around = {"pad": a.pad(0.0), "clamp": a.clamp(), "wrap": a.wrap()}[boundary]
        y[i] = around[i + 1] + x[i]
        return y

    assert lowered_tensors(bounded, N=5) == {"a", "y"}


def test_a_producer_that_is_gathered_is_kept() -> None:
    @po.op
    def gathered(x: f64[N], ids: i64[N]):
        a, y = po.tensors("a y")
        a[i] = x[i] * 2.0
        y[i] = a[ids[i]]
        return y

    assert lowered_tensors(gathered, N=5) == {"a", "y"}


def test_a_producer_in_a_data_subscript_is_inlined() -> None:
    @po.op
    def gathered(x: f64[N], ids: i64[N]):
        a, y = po.tensors("a y")
        a[i] = ids[i] - 1
        y[i] = x[a[i]]
        return y

    assert lowered_tensors(gathered, N=5) == {"y"}
    x, ids = np.arange(5.0), np.array([5, 4, 3, 2, 1])
    np.testing.assert_array_equal(gathered(x, ids), x[ids - 1])


def test_a_scatter_through_a_producer_keeps_its_meaning() -> None:
    @po.op
    def scattered(x: f64[N], ids: i64[N]):
        a, h = po.tensor("a"), po.tensor("h", shape=(5,))
        a[i] = ids[i] - 1
        h[a[i]] += x[i]
        return h

    x, ids = np.arange(5.0), np.array([5, 4, 3, 2, 5])
    np.testing.assert_array_equal(scattered(x, ids), scattered.reference(x, ids))
    assert lowered_tensors(scattered, N=5) == {"h"}


def test_results_are_never_inlined_away() -> None:
    @po.op
    def both(x: f64[N]):
        a, y = po.tensors("a y")
        a[i] = x[i] * 2.0
        y[i] = a[i] + 1.0
        return a, y

    assert lowered_tensors(both, N=5) == {"a", "y"}


def test_expressions_stop_growing() -> None:
    @po.op
    def explosive(x: f64[N]):
        y = x
        for _ in range(12):
            z = po.tensor("z")
            z[i] = y[i] + y[i] * y[i]
            y = z
        return y

    rewritten = rewrite(program_of(explosive, N=5))
    assert len(rewritten.equations) > 1
    assert all(sum(1 for _ in ir.walk(e.value)) <= LARGEST_VALUE for e in rewritten.equations)


def test_axes_of_the_producer_become_subscripts_of_the_reader() -> None:
    @po.op
    def shifted(x: f64[N], y: f64[N]):
        a, z, j = po.tensor("a"), po.tensor("z"), po.index("j", extent=N)
        a[i] = po.where(i % 2 == 0, x[i], y[i]) + po.cast(i, f64)
        z[j] = po.when(j < N - 1, a[j + 1])
        z[j] = po.when(j == N - 1, a[j])
        return z

    x, y = np.arange(5.0), np.arange(5.0) * 10
    assert lowered_tensors(shifted, N=5) == {"z"}
    np.testing.assert_array_equal(shifted(x, y), shifted.reference(x, y))


def test_what_an_expression_costs_counts_operations() -> None:
    assert cost(X) == 0 and cost(num(1.0)) == 0
    assert cost(op("add", X, op("mul", X, X))) == 2
    assert cost(op("sqrt", X)) == 4
    assert cost(op("exp", op("add", X, X))) == 21
    assert cost(ir.Where(OPEN, X, ir.Cast(X, f32), f64)) == 2


@pytest.mark.parametrize("seed", range(25))
def test_rewriting_random_operators_changes_no_bit(seed: int) -> None:
    case = random_case(seed)
    program = program_of(case.op, *case.arguments)
    inputs = dict(zip(program.parameters, case.arguments, strict=True))
    before, after = evaluate(program, inputs), evaluate(rewrite(program), inputs)
    for name in program.results:
        np.testing.assert_array_equal(after[name], before[name])


@pytest.mark.parametrize("operator", [softmax, layernorm], ids=["softmax", "layernorm"])
def test_rewriting_twice_is_rewriting_once(operator: po.Op) -> None:
    once = rewrite(program_of(operator, M=3, N=5))
    assert rewrite(once) == once
    assert replace(once) == once


@po.op
def off_mean(x: f32[M, N]):
    """The extent of `wide` is not known where the mean is written, so its points are counted."""
    wide, mean, y = po.tensors("wide mean y")
    wide[i, j] = x[i, j] * 2
    mean[i] = po.mean(wide[i, j], j)
    y[i, j] = wide[i, j] - mean[i]
    return y


def test_points_that_are_counted_are_a_number() -> None:
    for sizes in ({"M": 3, "N": 128}, {"dynamic": True}):
        op = po.op(dynamic=True)(off_mean.__wrapped__) if "dynamic" in sizes else off_mean
        lowering = op.lower(np.ones((3, 128), np.float32))
        counts = [e for e in lowering.rewritten.equations for node in ir.walk(e.value) if _counts(node)]
        assert not counts, str(lowering.rewritten)


def _counts(node: ir.Expr) -> bool:
    return isinstance(node, ir.Reduce) and isinstance(node.body, ir.Const)


@pytest.mark.parametrize("shape", [(3, 128), (3, 1), (0, 5), (2, 0)])
@pytest.mark.parametrize("dynamic", [False, True])
def test_means_over_counted_points(shape: tuple[int, int], dynamic: bool) -> None:
    op = po.op(dynamic=dynamic)(off_mean.__wrapped__)
    x = np.random.default_rng(0).integers(-4, 5, shape).astype(np.float32)
    with np.errstate(all="ignore"):
        want = 2 * x - (2 * x).sum(1, keepdims=True) / shape[1] if shape[1] else x
    np.testing.assert_allclose(op(x), want, rtol=1e-6, atol=1e-6)
