"""The printed program, and the checks that a program passes before the next stage reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import polyopt as po
from polyopt import f16, f32, i32
from polyopt.dsl import affine as af
from polyopt.dsl import ir
from polyopt.dsl.text import expr_text, program_text
from polyopt.dsl.verify import verify
from polyopt.dtypes import bool_, f64, i64
from tests.dsl.tracing import program

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")


def linear_relu(x: f32[M, K], w: f32[K, N], b: f32[N]) -> Any:
    y, out = po.tensors("y out")
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j] + b[j], 0)
    return out


def test_a_program_prints_as_its_user_would_write_it() -> None:
    assert program_text(program(linear_relu)) == "\n".join(
        [
            "linear_relu(x: f32[M, K], w: f32[K, N], b: f32[N]) -> out: f32[?, ?]",
            "  local y: f32[?, ?]",
            "  y[i, j] += x[i, k] * w[k, j]",
            "  out[i, j] = maximum(y[i, j] + b[j], 0)",
        ]
    )


def test_ranges_guards_and_conditions_print() -> None:
    def op(x: f16[N], a: f32) -> Any:
        y, t = po.tensor("y", shape=(N,)), po.index("t", 1, N)
        y[t] = po.when(t < 5, a * x.pad(0)[t - 1])
        return y

    found = replace(program(op), conditions=(af.Compare(af.size("N") - 1, ">="),))
    assert program_text(found) == "\n".join(
        [
            "op(x: f16[N], a: f32[()]) -> y: f32[N]",
            "  if N >= 1",
            "  y[t] = when(t < 5, a * cast(x.pad(0)[t - 1], f32))  for t in 1..N",
        ]
    )


X = ir.Var("x", f64)
Y = ir.Var("y", f64)


def op(name: str, *args: ir.Expr) -> ir.Expr:
    return ir.Op(name, args, f64)


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (op("mul", op("add", X, Y), X), "(x + y) * x"),
        (op("sub", X, op("sub", Y, X)), "x - (y - x)"),
        (op("sub", op("sub", X, Y), X), "x - y - x"),
        (op("pow", op("neg", X), Y), "(-x) ** y"),
        (op("neg", op("pow", X, Y)), "-x ** y"),
        (op("pow", X, op("pow", X, Y)), "x ** x ** y"),
        (op("lt", op("lt", X, Y), X), "(x < y) < x"),
        (op("maximum", op("add", X, Y), X), "maximum(x + y, x)"),
        (op("mul", X, ir.Const(-1.0, f64)), "x * -1"),
        (op("mul", X, ir.Const(0.1, f64)), "x * 0.1"),
        (op("mul", ir.IndexValue(af.axis("i") + 1, i64), X), "(i + 1) * x"),
        (ir.Const(float("inf"), f64), "inf"),
    ],
)
def test_parentheses_stand_where_python_needs_them(expr: ir.Expr, text: str) -> None:
    assert expr_text(expr) == text


def break_reads(found: ir.Program) -> ir.Program:
    first = found.equations[0]
    value = ir.rebuild(first.value, lambda child: replace(child, dtype=f64) if isinstance(child, ir.Read) else child)
    return replace(found, equations=(replace(first, value=value), *found.equations[1:]))


def change_first(**changes: Any) -> Callable[[ir.Program], ir.Program]:
    return lambda found: replace(found, equations=(replace(found.equations[0], **changes), *found.equations[1:]))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda p: replace(p, tensors=p.tensors + p.tensors[:1]), "names of tensors"),
        (lambda p: replace(p, equations=p.equations * 2), "names of equations"),
        (lambda p: replace(p, results=("z",)), "'z' is not a tensor"),
        (lambda p: replace(p, results=("y",)), "role of"),
        (break_reads, "does not fit its rank or dtype"),
        (change_first(axes=()), "axis 'i' is not in scope"),
        (change_first(reducer=None), "reduced axes"),
        (change_first(subscripts=()), "does not fit the rank"),
        (change_first(tensor="x"), "an input is defined"),
        (change_first(value=ir.Const(1, i32)), "the value is i32 and not f32"),
        (change_first(value=ir.Op("exq", (ir.Const(1.0, f32),), f32)), "not an operation"),
        (change_first(value=ir.Op("add", (ir.Const(1.0, f32), ir.Const(1, i32)), f32)), "differ in dtype"),
        (change_first(value=ir.Op("lt", (ir.Const(1.0, f32), ir.Const(1.0, f32)), f32)), "wrong dtype"),
        (change_first(value=ir.Op("and", (ir.Const(1.0, f32), ir.Const(1.0, f32)), f32)), "not defined for f32"),
        (change_first(value=ir.IndexValue(af.axis("q"), f32)), "'q' is not in scope"),
        (change_first(guard=af.Compare(af.axis("q"), "<")), "'q' is not in scope"),
        (
            change_first(value=ir.Where(af.TRUE, ir.Const(1.0, f32), ir.Const(True, bool_), f32)),
            "branches of a choice",
        ),
        (
            change_first(
                value=ir.Reduce(ir.Reducer("sum", f32, None), ir.Const(1.0, f32), (ir.Axis("i"),), f32),
            ),
            "bound twice",
        ),
    ],
)
def test_a_damaged_program_is_refused(damage: Callable[[ir.Program], ir.Program], says: str) -> None:
    found = program(linear_relu)
    verify(found)
    with pytest.raises(AssertionError, match=says):
        verify(damage(found))
