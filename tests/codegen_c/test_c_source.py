"""Printed C: readable, strict about warnings, and right for every kind of statement."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt.codegen_c.c_source import as_c, as_c_header
from polyopt.dsl.ir import Cast, Const, Op, Reducer, Var
from polyopt.dtypes import bool_, f16, f32, f64, i32, i64
from polyopt.loops.ir import Alloc, Block, Buffer, Check, If, Load, integer
from tests.codegen_c.kernels import (
    BoundsFailure,
    fl,
    i,
    index_var,
    j,
    load,
    loop,
    op,
    program_of,
    run_c,
    store,
    total,
)
from tests.codegen_c.test_reductions import matmul

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
N = index_var("N")


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).integers(-8, 9, shape).astype(np.float32)


def test_a_matrix_product_reads_like_one(tmp_path: Path) -> None:
    a, b, c = numbers(13, 7), numbers(7, 70), np.zeros((13, 70), np.float32)
    text = run_c(matmul(13, 70, 7, 6, 64), {"A": a, "B": b, "C": c}, tmp_path)
    np.testing.assert_array_equal(c, a @ b)
    assert "for (int64_t it = 0; it < 13; it += 6) { /* parallel */" in text
    assert "C[i * 70 + j] += A[i * 7 + k] * B[k * 70 + j]; /* S */" in text


def test_openmp_marks_parallel_loops(tmp_path: Path) -> None:
    a, b, c = numbers(50, 7), numbers(7, 20), np.zeros((50, 20), np.float32)
    text = run_c(matmul(50, 20, 7, 6, 64), {"A": a, "B": b, "C": c}, tmp_path, openmp=True)
    assert "#pragma omp parallel for" in text
    np.testing.assert_array_equal(c, a @ b)


def test_workspace_and_local_buffers(tmp_path: Path) -> None:
    x, y = numbers(12, 33), np.zeros((12, 33), np.float32)
    shared = Buffer("s", f32, (N, integer(33)), "workspace")
    private = Buffer("p", f32, (integer(33),), "workspace")
    scratch = Buffer("t", f32, (), "local")
    doubled = store("t", [], fl("add", load("x", i, j), load("x", i, j)))
    first = loop("i", N, loop("j", 33, Alloc(scratch, Block((doubled, store("s", [i, j], load("t")))))))
    copy = loop("j", 33, store("p", [op("sub", 32, j)], load("s", i, j)))
    back = loop("j", 33, store("y", [i, j], load("p", j)))
    body = Block((first, loop("i", N, Alloc(private, Block((copy, back))), kind="parallel")))
    run_c(body, {"x": x, "y": y}, tmp_path, workspace=(shared,), sizes=("N",), size_values=(12,))
    np.testing.assert_array_equal(y, 2 * x[:, ::-1])


def test_a_failed_check_is_returned(tmp_path: Path) -> None:
    x, y, ids = numbers(6), np.zeros(9, np.float32), np.arange(9) % 6
    value = load("x", Load("ids", (i,), i64), checks=(Check(0, 5),))
    body = loop("i", 9, store("y", [i], value))
    run_c(body, {"x": x, "ids": ids, "y": y}, tmp_path)
    np.testing.assert_array_equal(y, x[ids])
    ids[4] = -1
    with pytest.raises(BoundsFailure) as failure:
        run_c(body, {"x": x, "ids": ids, "y": y}, tmp_path)
    assert failure.value.args == (5,)
    assert y[4] == 0


def test_a_checked_store_does_not_happen(tmp_path: Path) -> None:
    bins, h = np.array([0, 2, 5, 2], np.int32), np.zeros(3, np.int64)
    update = store("h", [Cast(Load("b", (i,), i32), i64)], Const(1, i64), total(i64), checks=(Check(0, 1),))
    with pytest.raises(BoundsFailure):
        run_c(loop("i", 4, update), {"b": bins, "h": h}, tmp_path)
    np.testing.assert_array_equal(h, [1, 0, 2])


def test_strides_that_are_no_whole_items_and_run_time_strides(tmp_path: Path) -> None:
    records = np.zeros(20, np.dtype([("pad", np.int8), ("value", np.float32)]))
    records["value"] = numbers(20)
    x, y = records["value"], np.zeros(20, np.float32)
    run_c(loop("i", 20, store("y", [i], load("x", i))), {"x": x, "y": y}, tmp_path)
    np.testing.assert_array_equal(y, x)
    shape = (integer(20),)
    arguments = (Buffer("x", f32, shape, "argument", (index_var("s"),)), Buffer("y", f32, shape, "argument"))
    body = loop("i", 20, store("y", [i], load("x", i), total()))
    run_c(body, {"x": x, "y": y}, tmp_path, arguments=arguments, sizes=("s",), size_values=x.strides)
    np.testing.assert_array_equal(y, 2 * x)


def test_every_reducer(tmp_path: Path) -> None:
    x = numbers(30)
    combine: Op[Any] = Op("add", (Op("mul", (Var("a", f32), Const(0.5, f32)), f32), Var("b", f32)), f32)
    reducers = {
        "max": Reducer("max", f32, None),
        "min": Reducer("min", f32, None),
        "prod": Reducer("prod", f32, Const(1, f32)),
        "custom": Reducer("custom", f32, Const(0, f32), combine),
    }
    y = np.zeros(4, np.float32)
    body = Block(tuple(loop("i", 30, store("y", [n], load("x", i), r)) for n, r in enumerate(reducers.values())))
    run_c(body, {"x": x, "y": y}, tmp_path)
    running = np.float32(0)
    for value in x:
        running = running * np.float32(0.5) + value
    np.testing.assert_array_equal(y, [max(0, x.max()), min(0, x.min()), 0, running])


def test_bool_and_half_buffers_and_conditions(tmp_path: Path) -> None:
    x, flags = numbers(30).astype(np.float16), np.arange(30) % 3 == 0
    y = np.zeros(30, np.float16)
    value = fl("mul", load("x", i, dtype=f16), Const(0.1, f16))
    body: Stmt = loop(
        "i", 30, If(load("flags", i, dtype=bool_), store("y", [i], value), store("y", [i], Const(1, f16)))
    )
    run_c(body, {"x": x, "flags": flags, "y": y}, tmp_path)
    np.testing.assert_array_equal(y, np.where(flags, x * np.float16(0.1), np.float16(1)))


def test_names_that_mean_something_in_c(tmp_path: Path) -> None:
    x, y = numbers(5), np.zeros(5, np.float32)
    var = index_var("for")
    body = loop("for", 5, store("out[0]", [var], load("double", var)))
    text = run_c(body, {"double": x, "out[0]": y}, tmp_path)
    assert "double_" in text and "out_0_" in text
    np.testing.assert_array_equal(y, x)


@pytest.mark.parametrize(("function", "size"), [("combine_0", "n"), ("f", "_Bool"), ("f", "asm"), ("f", "combine_0")])
def test_functions_and_sizes_that_mean_something_in_c(function: str, size: str) -> None:
    extent, position = po.size(size), po.index("position")

    def largest(x: Any) -> object:
        y = po.tensor("y")
        y[()] = po.reduce(lambda a, b: po.maximum(a, b), x[position], position, init=0.0) + po.cast(extent, f32)
        return y

    largest.__name__, largest.__annotations__ = function, {"x": f32[extent]}
    text = po.op(dynamic=True)(largest).lower().source("c")
    for options in (["-std=c11"], []):
        command = ["gcc", "-fsyntax-only", *options, "-xc", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_an_array_a_size_and_a_loop_of_one_name(tmp_path: Path) -> None:
    x, y = numbers(5), np.zeros(5, np.float32)
    body = loop("x", N, store("N", [index_var("x")], load("x", index_var("x"))))
    arguments = Buffer("x", f32, (N,), "argument"), Buffer("N", f32, (N,), "argument")
    run_c(body, {"x": x, "N": y}, tmp_path, size_values=(5,), sizes=("N",), arguments=arguments)
    np.testing.assert_array_equal(y, x)


def test_extreme_constants(tmp_path: Path) -> None:
    numbers_ = [np.inf, -np.inf, np.nan, 5e-324, 1.7976931348623157e308, -0.0, 0.1]
    y = np.ones(len(numbers_))
    whole = np.zeros(3, np.int64)
    limits = [-(2**63), 2**63 - 1, -(2**31)]
    stores = [store("y", [n], Const(value, f64)) for n, value in enumerate(numbers_)]
    stores += [store("w", [n], Const(value, i64)) for n, value in enumerate(limits)]
    run_c(Block(tuple(stores)), {"w": whole, "y": y}, tmp_path)
    np.testing.assert_array_equal(y, numbers_)
    np.testing.assert_array_equal(np.signbit(y), np.signbit(numbers_))
    np.testing.assert_array_equal(whole, limits)


def test_the_header_declares_the_function(tmp_path: Path) -> None:
    program, _ = program_of(loop("i", 5, store("y", [i], Const(0, f32))), {"y": np.zeros(5, np.float32)})
    header = as_c_header(program)
    (tmp_path / "kernel.h").write_text(header)
    source = tmp_path / "kernel.c"
    source.write_text('#include "kernel.h"\n' + as_c(program))
    done = subprocess.run(
        ["gcc", "-std=c11", "-Wall", "-Werror", "-c", "-o", str(tmp_path / "k.o"), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "int64_t kernel(float *y);" in header


def compiled(op: po.Op, folder: Path, *args: Any) -> Any:
    """The operator's printed C as a function on arrays, compiled with optimisations."""
    source, library = folder / f"{op.__name__}.c", folder / f"{op.__name__}.so"
    source.write_text(op.lower(*args).source("c"))
    command = ["gcc", "-std=c11", "-O2", "-shared", "-fPIC", str(source), "-o", str(library), "-lm"]
    subprocess.run(command, check=True, capture_output=True)
    function = getattr(ctypes.CDLL(str(library)), op.__name__)
    return lambda *arrays: function(*(ctypes.c_void_p(array.ctypes.data) for array in arrays))


def test_values_of_index_arithmetic_wrap_in_c_as_in_the_library(tmp_path: Path) -> None:
    """Signed overflow is undefined in C, and gcc makes use of it."""
    own = po.index("own")

    @po.op
    def fifth_powers(x: i64[po.size("N")]):
        power, sign = po.tensors("power sign")
        power[own] = own * own * own * own * own + x[own] * 0
        sign[own] = po.where(own * own * own * own * own < 0, 1, 2) + x[own] * 0
        return power, sign

    x = np.zeros(70_000, np.int64)
    power, sign = np.empty_like(x), np.empty_like(x)
    compiled(fifth_powers, tmp_path, x)(x, power, sign)
    for found, expected in zip((power, sign), fifth_powers(x), strict=True):
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(power, np.arange(70_000) ** 5)


def test_subscripts_of_index_arithmetic_wrap_in_c_as_in_the_library(tmp_path: Path) -> None:
    """gcc left out a maximum with 0 of a product that it took for one that does not overflow."""
    a, b = po.index("a"), po.index("b")

    @po.op
    def hashed(x: i64[po.size("M"), po.size("N")], t: i64[po.size("K")]):
        y = po.tensor("y")
        y[a, b] = t[(x[a, b] + po.maximum(((a + 1) * 2**30) * ((b + 1) * 2**22), 0)) % 19]
        return y

    x, t = np.arange(64 * 64).reshape(64, 64) % 4, np.arange(19) * 100
    product = (np.arange(64)[:, None] + 1) * (np.arange(64) + 1) * 2**52
    wanted, y = t[(x + np.maximum(product, 0)) % 19], np.empty_like(x)
    compiled(hashed, tmp_path, x, t)(x, t, y)
    np.testing.assert_array_equal(y, wanted)
    np.testing.assert_array_equal(hashed(x, t), wanted)


def test_operands_of_a_custom_reduction_have_names_of_their_own(tmp_path: Path) -> None:
    rows, columns, k = po.size("N"), po.size("M"), po.index("k")

    @po.op
    def largest(a: f64[rows, columns], b: f64[rows]):
        y, own = po.tensor("y"), po.index("a")
        y[own] = po.reduce(lambda p, q: po.maximum(p, q) + 0 * p, a[own, k], k, init=-9.0) + b[own]
        return y

    a, b, y = np.arange(20.0).reshape(4, 5), np.ones(4), np.empty(4)
    compiled(largest, tmp_path, a, b)(a, b, y)
    np.testing.assert_array_equal(y, a.max(1) + 1)


@pytest.mark.parametrize("n", [2, 7])
def test_a_bound_that_is_a_choice(n: int, tmp_path: Path) -> None:
    """isl gives piecewise bounds so; `i < c ? a : b` chose by `i < c`."""
    upper = op("select", op("gt", N, 5, dtype=bool_), 3, N)
    x, y = np.arange(1, 9, dtype=np.float32), np.zeros(1, np.float32)
    run_c(
        loop("i", upper, store("y", [0], load("x", i), total())),
        {"x": x, "y": y},
        tmp_path,
        sizes=("N",),
        size_values=(n,),
    )
    assert y[0] == x[: 3 if n > 5 else n].sum()


def test_a_negation_of_a_negation_is_no_decrement(tmp_path: Path) -> None:
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    twice = op("neg", op("neg", i))
    text = run_c(loop("i", 4, store("y", [twice], load("x", twice))), {"x": x, "y": y}, tmp_path)
    assert "--" not in text.replace("i++", "")
    np.testing.assert_array_equal(y, x)


M, n, K = po.sizes("M N K")
at, of = po.indices("at of")
LEFT_OUT = {
    "and": lambda x, t, ids: po.where((x[at] > 0) & (t[ids[at]] > 0), x[at], 2.0),
    "or": lambda x, t, ids: po.where((x[at] < 0) | (t[ids[at]] > 0), x[at], 2.0),
    "least": lambda x, t, ids: po.cast(po.minimum(x[at] > 0, t[ids[at]] > 0), f32),
    "greatest": lambda x, t, ids: po.cast(po.maximum(x[at] < 0, t[ids[at]] > 0), f32),
    "first": lambda x, t, ids: po.where(x[at] > 0, t[ids[at]], 2.0),
    "second": lambda x, t, ids: po.where(x[at] < 0, 2.0, t[ids[at]] + 1),
    "inside": lambda x, t, ids: po.where(x[at] > 0, po.where(x[at] > 5, 3.0, po.exp(t[ids[at]])), 2.0),
}
"""Expressions whose last operand C need not evaluate where x is negative."""


def left_out(name: str) -> tuple[po.Op, tuple[np.ndarray[Any, Any], ...]]:
    """An operator, and arguments of which a subscript is out of range there."""

    @po.op
    def chosen(x: f32[n], t: f32[M], ids: i32[n]):
        y = po.tensor("y")
        y[at] = LEFT_OUT[name](x, t, ids)
        return y

    return chosen, (np.array([-1, 1, -1], "f4"), np.ones(2, "f4"), np.array([99, 1, 0], "i4"))


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_subscript_is_checked_where_its_element_does_not_matter(name: str, tmp_path: Path) -> None:
    """What C leaves out of `&&`, `||` and `?:` was not checked."""
    op, args = left_out(name)
    with pytest.raises(po.BoundsError):
        op(*args)
    kernel, y = compiled(op, tmp_path, *args), np.empty(3, np.float32)
    assert kernel(*args, y) != 0
    args[2][0] = 1
    assert kernel(*args, y) == 0
    np.testing.assert_allclose(y, op(*args), rtol=1e-6)


FOUND = {
    "any": lambda t, ids: po.any(t[ids[at, of]] > 0, (at, of)),
    "all": lambda t, ids: po.all(t[ids[at, of]] < 0, (at, of)),
    "max": lambda t, ids: po.max(t[ids[at, of]] > 0, (at, of)),
    "min": lambda t, ids: po.min(t[ids[at, of]] < 0, (at, of)),
}
"""Reductions that are decided by their first term, where all elements of t are 1."""


def found(name: str) -> tuple[po.Op, tuple[np.ndarray[Any, Any], ...]]:
    """An operator, and arguments of which a later subscript is out of range."""

    @po.op
    def reduced(t: f32[M], ids: i32[n, K]):
        y = po.tensor("y")
        y[()] = FOUND[name](t, ids)
        return y

    return reduced, (np.ones(4, "f4"), np.array([[0, 1, 99, 2, 1]] * 64, "i4"))


@pytest.mark.parametrize("name", FOUND)
def test_a_subscript_is_checked_where_the_terms_before_decide(name: str, tmp_path: Path) -> None:
    """`||` and `&&` left out the terms after the first that decided, and their checks."""
    op, args = found(name)
    kernel, y = compiled(op, tmp_path, *args), np.empty((), np.bool_)
    assert kernel(*args, y) != 0
    args[1][:, 2] = 0
    assert kernel(*args, y) == 0
    np.testing.assert_array_equal(y, op(*args))
