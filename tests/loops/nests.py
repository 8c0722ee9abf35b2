"""Loop programs built by hand, for the tests of what reads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from polyopt.dsl.ir import Const, Op, Reducer
from polyopt.dtypes import DType, bool_, f64, i64
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    Check,
    Expr,
    For,
    If,
    Load,
    LoopProgram,
    Site,
    Stmt,
    Store,
    index_var,
    integer,
)

SUM = Reducer("sum", f64, Const(0.0, f64))


def ints(*values: int | str | Expr) -> tuple[Expr, ...]:
    """Index expressions: constants, variables by name, or given ones."""
    return tuple(integer(v) if isinstance(v, int) else index_var(v) if isinstance(v, str) else v for v in values)


def op(name: str, *args: int | str | Expr, dtype: DType = i64) -> Op[Expr]:
    return Op(name, ints(*args), dtype)


def less(left: int | str | Expr, right: int | str | Expr) -> Op[Expr]:
    return op("lt", left, right, dtype=bool_)


def load(buffer: str, *indices: int | str | Expr, dtype: DType = f64, mask: Expr | None = None) -> Load:
    return Load(buffer, ints(*indices), dtype, mask)


def store(
    statement: str, buffer: str, indices: tuple[int | str | Expr, ...], value: Expr, reducer: Reducer | None = None
) -> Store:
    """A store whose instance is the tuple of its indices."""
    return Store(statement, ints(*indices), buffer, ints(*indices), value, reducer)


def loop(var: str, stop: int | str | Expr, body: Stmt, start: int | str | Expr = 0, **fields: Any) -> For:
    lower, upper = ints(start, stop)
    return For(var, lower, upper, body, **fields)


def argument(name: str, *shape: int | str, dtype: DType = f64) -> Buffer:
    return Buffer(name, dtype, ints(*shape), "argument")


def matmul(m: int = 5, n: int = 6, k: int = 4) -> LoopProgram:
    """y = relu(x @ w): parallel rows, a local accumulator row, vector columns."""
    acc = Buffer("acc", f64, ints(n), "local", aligned=True)
    product = op("mul", load("x", "i", "k"), load("w", "k", "j"), dtype=f64)
    update = replace(store("y_sum", "acc", ("j",), product, SUM), instance=ints("i", "j", "k"))
    start = replace(store("y_start", "acc", ("j",), Const(0.0, f64)), instance=ints("i", "j"))
    relu = op("maximum", load("acc", "j"), Const(0.0, f64), dtype=f64)
    row = Block(
        (
            loop("j", n, start, kind="vector"),
            loop("k", k, loop("j", n, update, kind="vector")),
            loop("j", n, store("out_def", "out", ("i", "j"), relu), kind="vector"),
        )
    )
    body = loop("i", m, Alloc(acc, row), kind="parallel", axis="i tile", chunk=2)
    return LoopProgram(
        "linear", (argument("x", m, k), argument("w", k, n), argument("out", m, n)), (), (), ("out",), body
    )


def scan(n: int = 6) -> LoopProgram:
    """s[i] = s[i - 1] + x[i], by way of a workspace array; copied to the result."""
    before = load("t", op("sub", "i", 1), mask=less(0, "i"))
    value = op("add", before, load("x", "i"), dtype=f64)
    body = Block(
        (
            loop("i", n, store("t_def", "t", ("i",), value)),
            loop("i", n, store("s_def", "s", ("i",), load("t", "i")), kind="vector"),
        )
    )
    workspace = (Buffer("t", f64, ints(n), "workspace"),)
    return LoopProgram("scan", (argument("x", n), argument("s", n)), workspace, (), ("s",), body)


def gather(n: int = 4, table: int = 3) -> LoopProgram:
    """y[i] = table[ids[i]], checked."""
    index = load("ids", "i", dtype=i64)
    value = Load("table", (index,), f64, checks=(Check(0, 0),))
    return LoopProgram(
        "gather",
        (argument("table", table), argument("ids", n, dtype=i64), argument("y", n)),
        (),
        (),
        ("y",),
        loop("i", n, store("y_def", "y", ("i",), value), kind="parallel"),
        (Site("table", 0, None),),
    )


def guarded(n: str = "N") -> LoopProgram:
    """y[i] = 1 below 3, else 2; symbolic size."""
    branch = If(less("i", 3), store("low", "y", ("i",), Const(1.0, f64)), store("high", "y", ("i",), Const(2.0, f64)))
    return LoopProgram("guarded", (argument("y", n),), (), (n,), ("y",), loop("i", n, branch))
