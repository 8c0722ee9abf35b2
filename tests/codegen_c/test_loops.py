"""Loops: vectors with masked tails, strides, bounds, conditions, storage, threads."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from polyopt.codegen_c.abi import SLACK_BYTES
from polyopt.dsl.ir import Cast, Const, Op
from polyopt.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i32, i64
from polyopt.loops.ir import Alloc, Block, Buffer, Check, Expr, If, Load, Stmt, integer
from tests.codegen_c.kernels import (
    BoundsFailure,
    add,
    fl,
    i,
    index_var,
    j,
    k,
    load,
    loop,
    module_of,
    op,
    run,
    store,
    t,
    total,
)

SIZES = [0, 1, 2, 15, 16, 17, 63, 64, 65, 200, 1000]
N = index_var("N")


def affine(name: str, *indices: Any) -> Expr:
    return fl("add", fl("mul", load(name, *indices), Const(2.0, f32)), Const(1.0, f32))


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(sum(shape)).integers(-8, 9, shape).astype(np.float32)


# --- vector loops ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_elements_behind_the_last_vector_are_computed_and_nothing_beyond_them(n: int, is_dynamic: bool) -> None:
    x, y = numbers(n + 64), np.full(n + 64, -1, np.float32)
    bound: Any = {"sizes": ("N",), "size_values": (n,)} if is_dynamic else {}
    run(loop("i", N if is_dynamic else n, store("y", [i], affine("x", i)), kind="vector"), {"x": x, "y": y}, **bound)
    np.testing.assert_array_equal(y[:n], x[:n] * 2 + 1)
    np.testing.assert_array_equal(y[n:], -1)


def test_vectors_side_by_side_load_before_they_store() -> None:
    """A load waits for an earlier store that has the same twelve lowest bits: rows of 2048, of which the normalized
    ones lie 64 bytes further on in their page, took half as long again."""
    x, y, z = numbers(1024), np.zeros(1024, np.float32), np.zeros(1024, np.float32)
    arrays = {"x": x, "y": y, "z": z}
    _, module = module_of(loop("i", 1024, store("y", [i], affine("x", i)), kind="vector"), arrays)
    lines = [line for line in module.text.splitlines() if re.search(r"(load|store) <\d+ x float>", line)]
    kinds = ["store" if " store " in line else "load" for line in lines]
    assert kinds == sorted(kinds) and len(kinds) == 8

    follows = Block((store("y", [i], affine("x", i)), store("z", [i], affine("y", i))))  # reads what it has stored
    run(loop("i", 1024, follows, kind="vector"), arrays)
    np.testing.assert_array_equal(z, (x * 2 + 1) * 2 + 1)
    several = Block((store("y", [i], affine("x", i)), store("z", [i], fl("mul", load("x", i), load("x", i)))))
    run(loop("i", 1024, several, kind="vector"), {"x": y, "y": x, "z": z})
    np.testing.assert_array_equal(z, y * y)
    np.testing.assert_array_equal(x, y * 2 + 1)


def test_what_an_iteration_has_just_stored_is_read_from_registers() -> None:
    """A step of adam, whose position reads the means that it stores, loaded each vector behind the stores of the one
    before."""
    arrays = {"x": numbers(1024), **{name: np.zeros(1024, np.float32) for name in ("y", "z")}}
    body = Block((store("y", [i], affine("x", i)), store("z", [i], fl("mul", load("y", i), load("x", i)))))
    _, module = module_of(loop("i", 1024, body, kind="vector"), arrays)
    lines = [line for line in module.text.splitlines() if re.search(r"(load|store) <\d+ x float>", line)]
    kinds = ["store" if " store " in line else "load" for line in lines]
    assert kinds == sorted(kinds) and kinds.count("store") > 2
    run(loop("i", 1024, body, kind="vector"), arrays)
    np.testing.assert_array_equal(arrays["z"], (arrays["x"] * 2 + 1) * arrays["x"])


@pytest.mark.parametrize("dtype", [f32, f16, bf16, i8], ids=str)
def test_what_waits_is_stored_before_it_is_read_otherwise(dtype: DType) -> None:
    """Values that memory rounds, that a condition guards, and that are stored twice."""
    x = numbers(1024) + np.float32(0.3)
    y, z, w = np.zeros(1024, dtype.numpy), np.zeros(1024, np.float32), np.zeros(1024, np.float32)
    rounded = Cast(affine("x", i), dtype) if dtype != f32 else affine("x", i)
    again = Cast(load("z", i), dtype) if dtype != f32 else load("z", i)

    def read(**options: Any) -> Expr:
        loaded = load("y", i, dtype=dtype, **options)
        return Cast(loaded, f32) if dtype != f32 else loaded

    odd = op("eq", op("mod", i, 2), 1, dtype=bool_)
    body = Block(
        (
            store("y", [i], rounded),
            store("z", [i], fl("add", read(), Const(1.0, f32))),
            store("y", [i], again),
            store("w", [i], read(mask=odd)),
        )
    )
    run(loop("i", 1024, body, kind="vector"), {"x": x, "y": y, "z": z, "w": w})
    first = (x * 2 + 1).astype(dtype.numpy)
    np.testing.assert_array_equal(z, first.astype(np.float32) + 1)
    np.testing.assert_array_equal(y, z.astype(dtype.numpy))
    np.testing.assert_array_equal(w, np.where(np.arange(1024) % 2, y.astype(np.float32), 0))


@pytest.mark.parametrize(("terms", "is_written_out"), [(2, True), (40, False)])
def test_long_bodies_are_not_written_out_for_each_vector(terms: int, is_written_out: bool) -> None:
    x, y = numbers(96), np.zeros(96, np.float32)
    value: Expr = load("x", i)
    for number in range(terms):
        value = fl("add", fl("mul", value, load("x", i)), Const(float(number), f32))
    body = loop("i", 96, store("y", [i], value), kind="vector")
    _, module = module_of(body, {"x": x, "y": y}, vector_bits=256)
    assert (module.text.count("store <8 x float>") == 12) == is_written_out
    assert module.text.count("fmul") <= 256
    run(body, {"x": x, "y": y}, vector_bits=256)
    expected = x.copy()
    for number in range(terms):
        expected = expected * x + np.float32(number)
    np.testing.assert_allclose(y, expected, rtol=1e-4)


@pytest.mark.parametrize("n", [1, 16, 37, 130])
@pytest.mark.parametrize("step", [2, 3])
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_vector_loop_with_a_step_and_a_lower_bound(n: int, step: int, is_dynamic: bool) -> None:
    x, y = numbers(n), np.full(n, -1, np.float32)
    bound: Any = {"sizes": ("N",), "size_values": (n,)} if is_dynamic else {}
    body = loop("i", N if is_dynamic else n, store("y", [i], affine("x", i)), lower=1, step=step, kind="vector")
    run(body, {"x": x, "y": y}, **bound)
    wanted = np.full(n, -1, np.float32)
    wanted[1::step] = x[1::step] * 2 + 1
    np.testing.assert_array_equal(y, wanted)


def layouts(n: int) -> dict[str, np.ndarray[Any, Any]]:
    base = numbers(n)
    records = np.zeros(n, np.dtype([("pad", np.int8), ("value", np.float32)]))
    records["value"] = base
    return {
        "reversed": base[::-1],
        "every third": np.repeat(base, 3)[::3],
        "every second, backwards": np.repeat(base, 2)[::-2],
        "broadcast": np.broadcast_to(base[:1], (n,)),
        "unaligned": records["value"],
    }


@pytest.mark.parametrize("name", layouts(1))
@pytest.mark.parametrize("vector_bits", [128, 256, 512])
def test_any_strides_are_read_and_written(name: str, vector_bits: int) -> None:
    for n in (1, 16, 37, 100):
        x = layouts(n)[name]
        y = np.zeros_like(x)
        if name != "broadcast":
            y = layouts(n)[name].copy() if name == "unaligned" else layouts(n)[name]
        wanted = x * 2 + 1
        arrays = {"x": x.copy() if y is x else x, "y": y}
        run(loop("i", n, store("y", [i], affine("x", i)), kind="vector"), arrays, vector_bits=vector_bits)
        np.testing.assert_array_equal(y, wanted)


def test_strides_known_at_run_time_only() -> None:
    x, y = numbers(40, 60)[::2, ::3], np.zeros((20, 20), np.float32)
    shape = (integer(20), integer(20))
    arguments = (
        Buffer("x", f32, shape, "argument", (index_var("sx0"), index_var("sx1"))),
        Buffer("y", f32, shape, "argument"),
    )
    body = loop("i", 20, loop("j", 20, store("y", [i, j], affine("x", i, j)), kind="vector"))
    run(body, {"x": x, "y": y}, arguments=arguments, sizes=("sx0", "sx1"), size_values=x.strides)
    np.testing.assert_array_equal(y, x * 2 + 1)


def test_subscripts_that_are_not_linear_in_the_lane() -> None:
    x, y = numbers(20, 7), np.zeros(60, np.float32)
    body = loop("i", 60, store("y", [i], load("x", op("floordiv", i, 3), op("mod", i, 7))), kind="vector")
    run(body, {"x": x, "y": y})
    np.testing.assert_array_equal(y, [x[n // 3, n % 7] for n in range(60)])


def test_mixed_widths_keep_lanes_together() -> None:
    a = np.random.default_rng(0).integers(-100, 100, 77).astype(np.int8)
    b, y = numbers(77), np.zeros(77, np.float64)
    value = Op("mul", (Cast(Load("a", (i,), i8), f64), Cast(load("b", i), f64)), f64)
    run(loop("i", 77, store("y", [i], value), kind="vector"), {"a": a, "b": b, "y": y})
    np.testing.assert_array_equal(y, a.astype(np.float64) * b)


# --- conditions -----------------------------------------------------------------------------------------------


def test_a_masked_load_reads_nothing_where_its_mask_is_off() -> None:
    x, y = numbers(20), np.zeros(60, np.float32)
    inside = op("and", op("ge", i, 20, dtype=bool_), op("lt", i, 40, dtype=bool_), dtype=bool_)
    value = load("x", op("sub", i, 20), mask=inside)
    for kind in ("vector", "serial"):
        run(loop("i", 60, store("y", [i], value), kind=kind), {"x": x, "y": y})
        np.testing.assert_array_equal(y, np.pad(x, 20))


def test_a_condition_on_lanes_guards_its_stores_and_loads() -> None:
    x, y = numbers(50), np.zeros(50, np.float32)
    body = If(
        op("lt", i, 33, dtype=bool_),
        store("y", [i], load("x", add(i, 17))),
        If(op("gt", load("x", i), Const(0, f32), dtype=bool_), store("y", [i], Const(7, f32))),
    )
    run(loop("i", 50, body, kind="vector"), {"x": x, "y": y})
    wanted = np.where(np.arange(50) < 33, np.roll(x, -17), np.where(x > 0, 7, 0))
    np.testing.assert_array_equal(y, wanted)


def test_a_condition_that_is_known_for_each_lane_is_a_constant() -> None:
    x, y = numbers(8), np.zeros(8, np.float32)
    inside: Expr = Op("lt", (i, integer(3)), bool_)
    body = loop("i", 8, store("y", [i], Op("select", (inside, load("x", i), Const(-1, f32)), f32)), kind="vector")
    _, module = module_of(body, {"x": x, "y": y}, vector_bits=256)
    assert "icmp" not in module.text.partition("define")[2].partition("masked.load")[0]
    run(body, {"x": x, "y": y}, vector_bits=256)
    np.testing.assert_array_equal(y, np.where(np.arange(8) < 3, x, -1))


def test_triangular_bounds() -> None:
    x, y = numbers(40, 40), np.zeros((40, 40), np.float32)
    run(loop("i", 40, loop("j", add(i, 1), store("y", [i, j], affine("x", i, j)), kind="vector")), {"x": x, "y": y})
    np.testing.assert_array_equal(y, np.tril(x * 2 + 1))


# --- data subscripts ------------------------------------------------------------------------------------------


def gather(kind: str) -> Stmt:
    row = Cast(Load("ids", (i,), i64), i64)
    value = load("x", row, j, checks=(Check(0, 5),))
    return loop("i", 9, loop("j", 20, store("y", [i, j], value), kind=kind))


@pytest.mark.parametrize("kind", ["vector", "serial"])
@pytest.mark.parametrize("wrong", [-1, 6, 2**40])
def test_a_subscript_out_of_range_is_reported_and_reads_nothing(kind: str, wrong: int) -> None:
    x, y, ids = numbers(6, 20), np.zeros((9, 20), np.float32), np.arange(9) % 6
    run(gather(kind), {"x": x, "ids": ids, "y": y})
    np.testing.assert_array_equal(y, x[ids])
    ids[4] = wrong
    with pytest.raises(BoundsFailure) as failure:
        run(gather(kind), {"x": x, "ids": ids, "y": y})
    assert failure.value.args == (5, wrong, 6)
    np.testing.assert_array_equal(y[4], 0)


@pytest.mark.parametrize("n", [1, 16, 100])
def test_lanes_that_meet_in_one_element_all_count(n: int) -> None:
    bins = np.random.default_rng(n).integers(0, 3, n).astype(np.int32)
    counts = np.zeros(3, np.int64)
    one = store("h", [Cast(Load("b", (i,), i32), i64)], Const(1, i64), total(i64), checks=(Check(0, 0),))
    run(loop("i", n, one, kind="vector"), {"b": bins, "h": counts})
    np.testing.assert_array_equal(counts, np.bincount(bins, minlength=3))


@pytest.mark.parametrize("inner", ["i", "j"])
@pytest.mark.parametrize("kind", ["vector", "serial"])
def test_rows_chosen_by_data_are_added_to(inner: str, kind: str) -> None:
    g, t, ids = numbers(15, 20), np.zeros((10, 20), np.float32), np.arange(15) % 7
    row = Load("ids", (i,), i64)
    update = store("t", [row, j], load("g", i, j), total(), checks=(Check(0, 2),))
    outer, trips = ("j", (20, 15)) if inner == "i" else ("i", (15, 20))
    nest = loop(outer, trips[0], loop(inner, trips[1], update, kind=kind))
    run(nest, {"g": g, "ids": ids, "t": t})
    wanted = np.zeros_like(t)
    np.add.at(wanted, ids, g)
    np.testing.assert_array_equal(t, wanted)
    ids[3] = -1
    with pytest.raises(BoundsFailure) as failure:
        run(nest, {"g": g, "ids": ids, "t": t})
    assert failure.value.args == (2, -1, 10)


def test_a_gather_over_lanes() -> None:
    x, y = numbers(30), np.zeros(77, np.float32)
    ids = np.random.default_rng(0).integers(0, 30, 77).astype(np.int32)
    value = load("x", Cast(Load("ids", (i,), i32), i64), checks=(Check(0, 1),))
    run(loop("i", 77, store("y", [i], value), kind="vector"), {"x": x, "ids": ids, "y": y})
    np.testing.assert_array_equal(y, x[ids])
    ids[70] = 30
    with pytest.raises(BoundsFailure) as failure:
        run(loop("i", 77, store("y", [i], value), kind="vector"), {"x": x, "ids": ids, "y": y})
    assert failure.value.args == (1, 30, 30)


# --- storage --------------------------------------------------------------------------------------------------


def test_a_local_buffer_inside_a_vector_loop_is_private_to_the_lane() -> None:
    x, y = numbers(40, 3), np.zeros(40, np.float32)
    scratch = Buffer("t", f32, (integer(3),), "local")
    fill = loop("j", 3, store("t", [j], fl("mul", load("x", i, j), Const(2, f32))), kind="unrolled")
    picked = store("y", [i], load("t", op("mod", i, 3)))
    run(loop("i", 40, Alloc(scratch, Block((fill, picked))), kind="vector"), {"x": x, "y": y})
    np.testing.assert_array_equal(y, [2 * x[n, n % 3] for n in range(40)])


def test_workspace_buffers_are_shared_or_private() -> None:
    x, y = numbers(12, 33), np.zeros((12, 33), np.float32)
    shared = Buffer("s", f32, (integer(12), integer(33)), "workspace")
    private = Buffer("p", f32, (integer(33),), "workspace")
    first = loop("i", 12, loop("j", 33, store("s", [i, j], affine("x", i, j)), kind="vector"), kind="parallel")
    copy = loop("j", 33, store("p", [op("sub", 32, j)], load("s", i, j)), kind="vector")
    second = loop("i", 12, Alloc(private, Block((copy, _copy_back()))), kind="parallel")
    body = Block((first, second))
    _, module = module_of(body, {"x": x, "y": y}, workspace=(shared,))
    assert module.shared_bytes == 1600 + SLACK_BYTES and module.private_bytes == 192 + SLACK_BYTES
    run(body, {"x": x, "y": y}, workspace=(shared,), slots=2)
    np.testing.assert_array_equal(y, (x * 2 + 1)[:, ::-1])


def test_a_threads_buffers_lie_behind_those_of_the_loops_around() -> None:
    """Both started at the private block of a slot: the thread that had the outer one wrote over it."""
    x, y = numbers(12, 33), np.zeros((12, 33), np.float32)
    outer = Buffer("s", f32, (integer(12), integer(33)), "workspace")
    inner = Buffer("p", f32, (integer(33),), "workspace")
    first = loop("i", 12, loop("j", 33, store("s", [i, j], affine("x", i, j)), kind="vector"), kind="parallel")
    copy = loop("j", 33, store("p", [op("sub", 32, j)], load("s", op("sub", 11, i), j)), kind="vector")
    second = loop("i", 12, Alloc(inner, Block((copy, _copy_back()))), kind="parallel")
    body = loop("k", 2, Alloc(outer, Block((first, second))))
    _, module = module_of(body, {"x": x, "y": y})
    assert module.private_bytes == 1600 + 192 + SLACK_BYTES
    run(body, {"x": x, "y": y}, slots=2)
    np.testing.assert_array_equal(y, (x * 2 + 1)[::-1, ::-1])


def _copy_back() -> Stmt:
    return loop("j", 33, store("y", [i, j], load("p", j)), kind="vector")


@pytest.mark.parametrize("first", [2, 24])
def test_a_register_holds_the_lanes_of_every_loop_that_uses_it(first: int) -> None:
    """It was loaded and stored with the mask of the first: what the others computed in lanes beyond was lost."""
    x, y = numbers(3, 24), np.zeros((2, 24), np.float32)
    second = 26 - first

    def lanes(body: Stmt) -> Stmt:
        one, other = (loop("j", extent, body, kind="vector") for extent in (first, second))
        return If(op("ge", i, 1, dtype=bool_), one, other)

    start = lanes(store("p", [j], Const(0, f32)))
    adding = loop("k", 3, lanes(store("p", [j], load("x", k, j), total())))
    back = lanes(store("y", [i, j], load("p", j)))
    private = Buffer("p", f32, (integer(24),), "local")
    run(loop("i", 2, Alloc(private, Block((start, adding, back)))), {"x": x, "y": y})
    for row, extent in enumerate((second, first)):
        np.testing.assert_array_equal(y[row, :extent], x.sum(0)[:extent])
        assert not y[row, extent:].any()


def test_dynamic_workspace_sizes_are_expressions_of_the_sizes() -> None:
    x, y = numbers(50), np.zeros(50, np.float32)
    shared = Buffer("s", f32, (N,), "workspace")
    copy = loop("i", N, store("s", [i], affine("x", i)), kind="vector")
    back = loop("i", N, store("y", [i], load("s", i)), kind="vector")
    run(Block((copy, back)), {"x": x, "y": y}, workspace=(shared,), sizes=("N",), size_values=(50,))
    np.testing.assert_array_equal(y, x * 2 + 1)


# --- parallel loops -------------------------------------------------------------------------------------------


def pool(runs: list[int]) -> Any:
    """A `pool_run` that runs the chunks backwards, on two slots."""
    body_type = ctypes.CFUNCTYPE(None, ctypes.c_void_p, *[ctypes.c_int64] * 3)

    def run_chunks(body: int, context: int, chunks: int) -> None:
        runs.append(chunks)
        for chunk in reversed(range(chunks if chunks < 1 << 32 else 0)):
            body_type(body)(context, chunk, chunks, chunk % 2)

    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(run_chunks)


@pytest.mark.parametrize(("n", "chunk", "chunks"), [(0, 1, 0), (1, 1, 1), (10, 1, 10), (10, 3, 4), (9000, 1, 4096)])
def test_the_chunks_cover_a_parallel_loop_once(n: int, chunk: int, chunks: int) -> None:
    y = np.zeros(n + 1, np.float32)
    runs: list[int] = []
    run_chunks = pool(runs)
    address = ctypes.cast(run_chunks, ctypes.c_void_p).value or 0
    one = store("y", [i], Const(1, f32), total())
    run(loop("i", n, one, kind="parallel", chunk=chunk), {"y": y}, pool=address)
    assert runs == [chunks] * bool(n)
    np.testing.assert_array_equal(y, [*[1] * n, 0])


def test_a_parallel_loop_sees_the_loops_around_it_and_runs_inner_ones_serially() -> None:
    y = np.zeros((3, 4, 5), np.float32)
    number = Cast(add(op("mul", add(op("mul", i, 4), j), 5), k), f32)
    inner = loop("k", 5, store("y", [i, j, k], number), kind="parallel")
    runs: list[int] = []
    run_chunks = pool(runs)
    address = ctypes.cast(run_chunks, ctypes.c_void_p).value or 0
    run(loop("i", 3, loop("j", 4, inner, kind="parallel")), {"y": y}, pool=address, slots=2)
    assert len(runs) == 3
    np.testing.assert_array_equal(y.ravel(), np.arange(60))


def test_what_one_arm_of_a_branch_computes_is_not_known_in_the_other() -> None:
    """Both arms used the bound of a parallel loop that the first one had computed: LLVM refused the code."""
    y = np.zeros(12, np.float32)
    bound = op("select", op("le", i, 2, dtype=bool_), 0, 4)
    once, twice = (
        loop("j", add(bound, 2), store("y", [add(i, j)], Const(value, f32), total()), lower=bound, kind="parallel")
        for value in (1, 2)
    )
    run(loop("i", 6, If(op("le", i, 3, dtype=bool_), once, twice)), {"y": y})
    np.testing.assert_array_equal(y, [1, 2, 2, 1, 0, 0, 0, 1, 3, 4, 2, 0])


@pytest.mark.parametrize("opt", [0, 1, 2, 3])
def test_the_number_of_chunks_is_a_whole_word(opt: int) -> None:
    """Of 32 bits, whose upper neighbours LLVM leaves as they are: the pool took them for 2^32 chunks more."""
    y = np.zeros(9, np.float32)
    runs: list[int] = []
    run_chunks = pool(runs)
    address = ctypes.cast(run_chunks, ctypes.c_void_p).value or 0
    one = store("y", [add(j, 1)], Const(1, f32), total())
    row = loop("j", add(index_var("jt"), 2), one, lower=op("maximum", -1, index_var("jt")), kind="parallel")
    run(loop("jt", 7, row, lower=-2, step=2), {"y": y}, pool=address, opt=opt)
    assert runs == [1, 2, 2, 2, 2]
    np.testing.assert_array_equal(y, 1)


@pytest.mark.parametrize("shape", [(16, 16), (32, 48), (33, 50)])
@pytest.mark.parametrize("dtype", [f32, f64, i8])
def test_a_transposed_block_goes_through_registers(shape: tuple[int, int], dtype: DType) -> None:
    rows, columns = shape
    x = np.arange(rows * columns).reshape(shape).astype(dtype.numpy)
    y = np.zeros((columns, rows), dtype.numpy)
    it, jt = index_var("it"), index_var("jt")

    def point(var: str, tile: Expr, extent: int, body: Stmt, kind: str) -> Stmt:
        return loop(var, op("minimum", add(tile, 16), extent), body, lower=tile, kind=kind)

    copy = store("y", [j, i], load("x", i, j, dtype=dtype))
    block = point("j", jt, columns, point("i", it, rows, copy, "vector"), "unrolled")
    nest = loop("jt", columns, loop("it", rows, block, step=16), step=16)
    run(nest, {"x": x, "y": y})
    np.testing.assert_array_equal(y, x.T)


def test_a_full_transposed_block_has_no_gather() -> None:
    arrays = {"x": np.zeros((64, 64), np.float32), "y": np.zeros((64, 64), np.float32)}
    it, jt = index_var("it"), index_var("jt")
    copy = store("y", [j, i], load("x", i, j))
    inner = loop("j", add(jt, 16), loop("i", add(it, 16), copy, lower=it, kind="vector"), lower=jt, kind="unrolled")
    _, module = module_of(loop("jt", 64, loop("it", 64, inner, step=16), step=16), arrays)
    assert "gather" not in module.text and module.text.count("load <16 x float>") == 16


@pytest.mark.parametrize("shape", [(16, 16), (14, 32), (5, 40), (35, 50), (2, 7), (1, 33)])
@pytest.mark.parametrize("dtype", [f32, f64, i32, i8])
def test_lanes_that_store_across_the_grain_turn_in_registers(shape: tuple[int, int], dtype: DType) -> None:
    """Tiles of known and unknown length: 14 rows of two vectors, one at an edge, more rows than a vector has lanes."""
    rows, columns = shape
    x = np.arange(rows * columns).reshape(shape).astype(dtype.numpy)
    y, it = np.zeros((columns + 1, rows + 2), dtype.numpy), index_var("it")
    copy = store("y", [j, add(i, 1)], load("x", i, j, dtype=dtype))
    block = loop("j", columns, copy, kind="vector")
    tiles = loop("i", op("minimum", add(it, 14), rows), block, lower=it, kind="unrolled")
    run(loop("it", rows, tiles, step=14), {"x": x, "y": y})
    np.testing.assert_array_equal(y[:columns, 1 : 1 + rows], x.T)
    y[:columns, 1 : 1 + rows] = 0
    assert not y.any()
    run(loop("i", rows, block, kind="unrolled"), {"x": x, "y": y})
    np.testing.assert_array_equal(y[:columns, 1 : 1 + rows], x.T)


def test_every_second_row_across_the_grain_is_stored_alone() -> None:
    """Rows were taken for neighbours whatever the step of their loop, and what lay between was written over."""
    x, y = np.arange(16 * 32).reshape(16, 32).astype(np.float32), np.full((32, 16), -1, np.float32)
    block = loop("j", 32, store("y", [j, i], load("x", i, j)), kind="vector")
    run(loop("i", 16, block, kind="unrolled", step=2), {"x": x, "y": y})
    np.testing.assert_array_equal(y[:, ::2], x.T[:, ::2])
    np.testing.assert_array_equal(y[:, 1::2], -1)


@pytest.mark.parametrize("columns", [5, 16, 32, 33, 64])
@pytest.mark.parametrize("rows", [4, 8])
def test_tiles_of_open_length_across_the_grain_are_stored(rows: int, columns: int) -> None:
    """A loop around that keeps sums in registers writes full tiles out: of those nothing was stored."""
    depth, size, it, jt = 7, index_var("N"), index_var("it"), index_var("jt")
    x, w = numbers(rows, depth), numbers(depth, columns)
    t, y = np.zeros((rows, columns), np.float32), np.zeros((depth, columns, rows), np.float32)

    def tile(body: Stmt) -> Stmt:
        lanes = loop("j", op("minimum", add(jt, 32), size), body, lower=jt, kind="vector")
        return loop("i", add(it, 4), lanes, lower=it, kind="unrolled")

    sums = tile(store("t", [i, j], fl("mul", load("x", i, k), load("w", k, j)), total()))
    prefixes = tile(store("y", [k, j, i], fl("mul", load("t", i, j), Const(2.0, f32))))
    nest = loop("it", rows, loop("jt", size, loop("k", depth, Block((sums, prefixes))), step=32), step=4)
    run(nest, {"x": x, "w": w, "t": t, "y": y}, sizes=("N",), size_values=(columns,))
    np.testing.assert_allclose(y, 2 * np.cumsum(x.T[:, None, :] * w[:, :, None], 0), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(t, x @ w, rtol=1e-5, atol=1e-5)


def test_a_block_that_is_stored_across_the_grain_has_no_scatter() -> None:
    arrays = {"x": np.zeros((14, 32), np.float32), "y": np.zeros((32, 20), np.float32)}
    block = loop("j", 32, store("y", [j, i], fl("mul", load("x", i, j), Const(2.0, f32))), kind="vector")
    _, module = module_of(loop("i", 14, block, kind="unrolled"), arrays)
    assert "scatter" not in module.text and module.text.count("masked.store") >= 32


def test_lanes_across_the_grain_may_read_what_the_rows_before_have_stored() -> None:
    y = np.zeros((16, 5), np.float32)
    y[:, 0] = np.arange(16)
    step = store("y", [j, i], fl("add", load("y", j, op("sub", i, 1)), Const(1.0, f32)))
    run(loop("i", 5, loop("j", 16, step, kind="vector"), lower=1, kind="unrolled"), {"y": y})
    np.testing.assert_array_equal(y, np.arange(16)[:, None] + np.arange(5))


def test_a_partial_tile_keeps_all_that_it_stores_in_registers_or_nothing() -> None:
    """Sums that only full tiles keep in registers were added to the last element once for each row beyond it."""
    x, w = numbers(7, 4), numbers(4, 5)
    y, z = np.zeros((7, 5), np.float32), np.zeros(11, np.float32)
    it, jt = index_var("it"), index_var("jt")
    term = fl("mul", load("x", i, k), load("w", k, j))
    columns = loop(
        "j",
        op("minimum", 5, add(jt, 2)),
        Block((store("y", [i, j], term, total()), store("z", [add(i, j)], term, total()))),
        lower=jt,
        kind="unrolled",
    )
    rows = loop("i", op("minimum", 7, add(it, 3)), columns, lower=it, kind="unrolled")
    run(loop("it", 7, loop("jt", 5, loop("k", 4, rows), step=2), step=3), {"x": x, "w": w, "y": y, "z": z})
    np.testing.assert_array_equal(y, x @ w)
    wanted = np.zeros(11, np.float32)
    np.add.at(wanted, np.add.outer(np.arange(7), np.arange(5)), x @ w)
    np.testing.assert_array_equal(z, wanted)


@pytest.mark.parametrize("kind", ["serial", "unrolled", "vector"])
@pytest.mark.parametrize("upper", [k, N])
def test_a_loop_beside_rows_that_are_written_out_has_its_own_iterations(kind: str, upper: Expr) -> None:
    """Rows of a tile stay in registers over `k`, written out; the loop beside them has their name, and was written out
    with as many iterations as they have."""
    n, depth = 20, 30
    x, w = numbers(depth, n), numbers(depth)
    rows = loop("i", op("minimum", add(t, 8), N), store("y", [i], load("x", k, i), total()), lower=t, kind="unrolled")
    beside = loop("i", upper, store("z", [0], load("w", i), total()), kind=kind)
    y, z = np.zeros(n, np.float32), np.zeros(1, np.float32)
    body = loop("t", N, loop("k", depth, rows, beside), step=8)
    run(body, {"x": x, "w": w, "z": z, "y": y}, sizes=("N",), size_values=(n,))
    np.testing.assert_array_equal(y, x.sum(axis=0))
    often = sum(w[: number if upper is k else n].sum() for number in range(depth))
    np.testing.assert_array_equal(z, 3 * often)


@pytest.mark.parametrize("n", [0, 1, 2, 3, 7, 10])
def test_rows_behind_the_last_one_leave_an_element_alone_that_is_stored_by_itself_too(n: int) -> None:
    """A row that does not happen was added to a register of its own, or so it seemed: `y[k + 2]` is always stored."""
    x, w, y = numbers(2, 10), numbers(2, 8), np.zeros(10, np.float32)
    own = store("y", [j], load("x", i, j), total())
    by_itself = store("y", [add(k, 2)], load("w", i, k))
    rows = loop("j", op("minimum", add(k, 3), N), own, by_itself, lower=k, kind="unrolled")
    nest = loop("i", 2, rows)
    run(loop("k", 8, nest), {"x": x, "w": w, "y": y}, sizes=("N",), size_values=(n,))
    wanted = np.zeros(10, np.float32)
    for first in range(8):
        for term in range(2):
            for row in range(first, min(first + 3, n)):
                wanted[row] += x[term, row]
                wanted[first + 2] = w[term, first]
    np.testing.assert_array_equal(y, wanted)


FAR = 1 << 24
"""Elements of four bytes to where no process has memory: between its stack and the next mapping."""


def ends_well(work: Callable[[], None]) -> bool:
    """Whether a child that does the work ends by itself."""
    child = os.fork()
    if child == 0:
        work()
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a crash is kept in a child")
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("width", [1, 16])
def test_an_element_that_a_guard_makes_one_of_the_buffer_is_not_touched_without_it(rows: int, width: int) -> None:
    """`kept[(2 - t) * FAR]` is an element where `t == 2`; it was read and written back for each `t`."""
    kind = "vector" if width > 1 else "unrolled"
    kept = Buffer("kept", f32, (integer(rows * width),), "local")
    x, y = numbers(4, 16), np.zeros((6, rows * width), np.float32)
    place = op("mul", op("sub", 2, t), FAR)
    sums = [
        loop("j", width, store("kept", [add(add(place, row * width), j)], load("x", k, j), total()), kind=kind)
        for row in range(rows)
    ]
    summed = loop("k", 4, If(op("eq", t, 2, dtype=bool_), Block(tuple(sums))))
    start = loop("i", rows * width, store("kept", [i], Const(0, f32)))
    used = loop("i", rows * width, store("y", [t, i], load("kept", i)))
    body = loop("t", 6, Alloc(kept, Block((start, summed, used))))
    assert ends_well(lambda: run(body, {"x": x, "y": y}))
    run(body, {"x": x, "y": y})
    wanted = np.zeros_like(y)
    wanted[2] = np.tile(x[:, :width].sum(axis=0), rows)
    np.testing.assert_array_equal(y, wanted)
