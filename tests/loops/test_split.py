"""Loops split where conditions and bounds change: the same instances, in the same order."""

from __future__ import annotations

import math

import numpy as np

import polyopt as po
from polyopt import f32
from polyopt.dsl.ir import Var
from polyopt.dtypes import i64
from polyopt.loops.ir import Const, Expr, For, LoopProgram, Op, Store, index_var, integer, walk, walk_expr
from polyopt.loops.split import split

N = po.size("N")
i, j, k = po.indices("i j k")


def test_a_comparison_of_data_with_infinity_decides_nothing() -> None:
    """The compiler took the infinity for a bound and could not make it an integer."""

    @po.op
    def finite(x: f32[N]):
        y = po.tensor("y")
        y[i] = po.where(x[i] == math.inf, 0.0, x.pad(0)[i - 1])
        return y

    x = np.array([1, np.inf, 3] * 10, np.float32)
    np.testing.assert_array_equal(finite(x), np.where(np.isinf(x), 0, np.concatenate([[0], x[:-1]])))


def test_a_triangle_is_a_register_tile_up_to_its_diagonal() -> None:
    @po.op
    def triangle(a: f32[N, N], b: f32[N, N]):
        y = po.tensor("y")
        y[i, j] = po.sum(a[i, k] * b[k, j], k, where=k <= i)
        return y

    lowering = triangle.lower(N=64)
    rows = [loop for loop in walk(lowering.loops.body) if isinstance(loop, For) and loop.kind == "unrolled"]
    fixed = [loop for loop in rows if not isinstance(loop.lower, Op | Const) or loop.lower.name != "maximum"]  # type: ignore[union-attr]
    moved = [loop for loop in rows if isinstance(loop.lower, Op) and loop.lower.name == "maximum"]
    assert fixed and moved
    a = np.random.default_rng(0).standard_normal((64, 64), np.float32)
    np.testing.assert_allclose(triangle(a, a), np.tril(a) @ a, rtol=1e-4, atol=1e-5)


def test_a_loop_is_not_split_at_an_iteration_that_a_loop_inside_decides() -> None:
    """A skewed recurrence under a drawn plan: the pieces' bounds named a variable that no loop around them had."""
    here, far = index_var("u"), index_var("v")
    distance: Expr = Op("sub", (far, here), i64)
    later: Expr = Op("sub", (distance, integer(32)), i64)
    following: Expr = Op("add", (here, integer(1)), i64)
    innermost = For(
        "w",
        Op("maximum", (integer(0), later), i64),
        Op("minimum", (integer(4), following), i64),
        Store("S", (here, far, index_var("w")), "y", (), Const(1.0, f32)),
        kind="unrolled",
    )
    strip: Expr = Op("mul", (here, integer(2)), i64)
    middle = For("v", strip, Op("add", (strip, integer(2)), i64), innermost, kind="unrolled")
    program = split(LoopProgram("skewed", (), (), (), (), For("u", integer(0), integer(36), middle)))
    outermost = [loop for loop in walk(program.body) if isinstance(loop, For) and loop.var == "u"]
    assert outermost
    for loop in outermost:
        assert not [v for bound in (loop.lower, loop.upper) for v in walk_expr(bound) if isinstance(v, Var)]
