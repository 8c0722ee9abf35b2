"""Loop programs print as code that one can read."""

from __future__ import annotations

import json

import pytest

from polyopt.dsl.ir import Cast, Const, Op, Reducer, Var
from polyopt.dtypes import bool_, f32, f64, i32, i64
from polyopt.loops.ir import Buffer, Store, index_var
from polyopt.loops.text import buffer_text, expr_text, head_text, loop_dot, loop_html, loop_json, loop_text
from tests.loops.nests import gather, guarded, ints, less, load, matmul, op, scan

MATMUL = """\
kernel linear:
    in x: f64[5, 4]  # 160 bytes
    in w: f64[4, 6]  # 192 bytes
    out out: f64[5, 6]  # 240 bytes

    parallel for i in range(5):  # i tile, 2 iterations a chunk
        local acc: f64[6]  # 48 bytes, aligned
        vector for j in range(6):
            acc[j] = 0.0  # y_start
        for k in range(4):
            vector for j in range(6):
                acc[j] += x[i, k] * w[k, j]  # y_sum
        vector for j in range(6):
            out[i, j] = max(acc[j], 0.0)  # out_def
"""


def test_a_nest_shows_marks_buffers_and_statements():
    assert loop_text(matmul()) == MATMUL


def test_conditions_masks_checks_and_sizes_are_shown():
    assert "t[i] = (t[i - 1] if 0 < i else 0) + x[i]  # t_def" in loop_text(scan())
    assert "workspace t: f64[6]  # 48 bytes" in loop_text(scan())
    assert "y[i] = table[check(ids[i])]" in loop_text(gather())
    text = loop_text(guarded())
    assert text.startswith("kernel guarded[N]:\n    out y: f64[N]\n")
    assert "        if i < 3:\n            y[i] = 1.0  # low\n        else:\n            y[i] = 2.0  # high\n" in text


I, J = index_var("i"), index_var("j")


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (op("sub", I, op("sub", J, 1)), "i - (j - 1)"),
        (op("sub", op("sub", I, J), 1), "i - j - 1"),
        (op("add", I, -2), "i - 2"),
        (op("mul", op("add", I, 1), 2), "(i + 1) * 2"),
        (op("add", op("mul", 2, I), op("floordiv", J, 4)), "2*i + j//4"),
        (op("mod", op("add", I, J), 3), "(i + j) % 3"),
        (op("mul", I, op("floordiv", J, 2)), "i * (j//2)"),
        (op("neg", op("add", I, J)), "-(i + j)"),
        (op("sub", 0, -1), "0 - -1"),
        (Op("and", (less(I, 3), less(0, J)), bool_), "(i < 3) & (0 < j)"),
        (Op("not", (less(I, 3),), bool_), "~(i < 3)"),
        (Op("select", (less(I, 3), I, op("add", J, 1)), i64), "i if i < 3 else j + 1"),
        (op("minimum", I, op("add", J, 1)), "min(i, j + 1)"),
        (op("exp", load("x", I), dtype=f64), "exp(x[i])"),
        (op("pow", load("x", I), Const(2.0, f64), dtype=f64), "x[i]**2.0"),
        (Cast(op("neg", load("x", I), dtype=f64), f32), "f32(-x[i])"),
        (Cast(Const(True, bool_), i32), "i32(True)"),
        (load("s"), "s[()]"),
        (Const(float("inf"), f32), "inf"),
    ],
)
def test_expressions_are_infix_with_only_the_needed_parentheses(expr, text):
    assert expr_text(expr) == text


def test_updates_by_any_reducer():
    a, b = Var("a", f64), Var("b", f64)
    custom = Reducer("custom", f64, Const(0.0, f64), Op("add", (a, Op("mul", (b, b), f64)), f64))
    value = op("add", load("x", "i"), Const(1.0, f64), dtype=f64)
    for reducer, text in [
        (Reducer("max", f64, None), "m[()] max= x[i] + 1.0  # s"),
        (custom, "m[()] = m[()] + (x[i] + 1.0) * (x[i] + 1.0)  # s"),
    ]:
        assert head_text(Store("s", (), "m", (), value, reducer)) == text


def test_strides_and_unknown_sizes_of_buffers():
    strided = Buffer("x", f32, ints(3, "N"), "argument", strides=ints("s0", 4))
    assert buffer_text(strided) == "x: f32[3, N] strides (s0, 4)"


def test_json_holds_the_nest():
    value = json.loads(loop_json(matmul()))
    assert value["results"] == ["out"]
    assert value["body"]["loop"] == "parallel"
    assert value["body"]["body"]["buffer"]["bytes"] == 48
    stores = value["body"]["body"]["body"]["body"]
    assert stores[1]["body"]["body"]["text"] == "acc[j] += x[i, k] * w[k, j]"
    assert json.loads(loop_json(guarded()))["body"]["body"]["else"]["statement"] == "high"


def test_dot_and_html_hold_every_line():
    dot, page = loop_dot(matmul()), loop_html(matmul())
    assert dot.startswith("digraph") and dot.count("->") == dot.count("label=") - 1
    assert page.count("\n") >= MATMUL.count("\n")
    assert '<span class="m">vector</span> <span class="k">for</span>' in page
    assert "0 &lt; i" in loop_html(scan())
