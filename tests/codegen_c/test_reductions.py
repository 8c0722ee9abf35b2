"""Reductions: in lanes, in registers, onto what memory holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyopt.dsl.ir import Const, Op, Reducer, Var
from polyopt.dtypes import DType, bool_, f32, f64, from_numpy, i32
from polyopt.loops.ir import Block, Expr, Stmt, index_var
from polyopt.runtime import jit
from polyopt.target import host
from tests.codegen_c.kernels import fl, i, j, k, load, loop, module_of, op, run, store, total

SIZES = [1, 15, 16, 17, 64, 100, 1000]
N = index_var("N")


def rows(value: Expr, reducer: Reducer, kind: str = "vector") -> Stmt:
    """Each of 5 rows reduced onto `s`."""
    return loop("i", 5, loop("j", N, store("s", [i], value, reducer), kind=kind))


def reduce_rows(x: np.ndarray[Any, Any], start: Any, reducer: Reducer, **options: Any) -> np.ndarray[Any, Any]:
    s = np.full(5, start, x.dtype)
    body = rows(load("x", i, j, dtype=from_numpy(x.dtype)), reducer)
    run(body, {"x": x, "s": s}, sizes=("N",), size_values=(x.shape[1],), **options)
    return s


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.int8, np.uint64])
def test_sums_and_products_and_extrema_over_lanes(n: int, dtype: Any) -> None:
    x = np.random.default_rng(n).integers(-2 if np.dtype(dtype).kind != "u" else 0, 3, (5, n)).astype(dtype)
    own = from_numpy(x.dtype)
    reducers = {name: Reducer(name, own, Const(1 if name == "prod" else 0, own)) for name in ("sum", "prod")}
    extrema = {name: Reducer(name, own, None) for name in ("max", "min")}
    np.testing.assert_array_equal(reduce_rows(x, 3, reducers["sum"]), x.sum(1, dtype=dtype) + dtype(3))
    np.testing.assert_array_equal(reduce_rows(x, 1, reducers["prod"]), x.prod(1, dtype=dtype))
    np.testing.assert_array_equal(reduce_rows(x, x[0, 0], extrema["max"]), np.maximum(x.max(1), x[0, 0]))
    np.testing.assert_array_equal(reduce_rows(x, x[0, 0], extrema["min"]), np.minimum(x.min(1), x[0, 0]))


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("name", ["max", "min"])
def test_extrema_propagate_nan(n: int, name: Any) -> None:
    x = np.random.default_rng(n).standard_normal((5, n)).astype(np.float32)
    x[2, n // 2] = np.nan
    start = -np.inf if name == "max" else np.inf
    wanted = x.max(1) if name == "max" else x.min(1)
    np.testing.assert_array_equal(reduce_rows(x, start, Reducer(name, f32, None)), wanted)


def test_a_sum_of_negative_zeros_keeps_the_sign() -> None:
    assert np.signbit(reduce_rows(np.full((5, 33), -0.0, np.float32), -0.0, total())).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("name", "reduce"), [("any", np.any), ("all", np.all)])
def test_any_and_all(n: int, name: Any, reduce: Any) -> None:
    x = np.random.default_rng(n).random((5, n)) < (0.02 if name == "any" else 0.98)
    neutral = Const(name == "all", bool_)
    np.testing.assert_array_equal(reduce_rows(x, name == "all", Reducer(name, bool_, neutral)), reduce(x, axis=1))


@pytest.mark.parametrize("n", SIZES)
def test_a_custom_reducer_whose_start_value_is_not_neutral_counts_it_once(n: int) -> None:
    a, b = Var("a", f64), Var("b", f64)
    combine: Op[Any] = Op("add", (Op("mul", (a, b), f64), Op("add", (a, b), f64)), f64)
    reducer = Reducer("custom", f64, Const(0.5, f64), combine)
    x = np.random.default_rng(n).standard_normal((5, n)) * 0.01
    np.testing.assert_allclose(reduce_rows(x, 0.5, reducer), 1.5 * np.prod(1 + x, axis=1) - 1, rtol=1e-10)


def test_a_narrow_buffer_is_combined_in_the_accumulators_dtype() -> None:
    x, s = np.full((5, 40), 100, np.int8), np.zeros(5, np.int32)
    value: Op[Any] = Op("add", (Const(0, i32), _as_i32(load("x", i, j, dtype=from_numpy(x.dtype)))), i32)
    run(rows(value, total(i32)), {"x": x, "s": s}, sizes=("N",), size_values=(40,))
    np.testing.assert_array_equal(s, 4000)


def _as_i32(value: Expr) -> Any:
    from polyopt.dsl.ir import Cast

    return Cast(value, i32)


# --- register tiles -------------------------------------------------------------------------------------------


def matmul(m: int, n: int, depth: int, rows_: int, columns: int, dtype: DType = f32, *, kernel: str = "mul") -> Stmt:
    """Tiles of rows_ x columns, with edges where they do not divide."""
    it, jt = index_var("it"), index_var("jt")
    i_end, j_end = op("minimum", op("add", it, rows_), m), op("minimum", op("add", jt, columns), n)

    def tile(inner: Stmt) -> Stmt:
        return loop("i", i_end, loop("j", j_end, inner, lower=jt, kind="vector"), lower=it, kind="unrolled")

    product = fl(kernel, load("A", i, k, dtype=dtype), load("B", k, j, dtype=dtype))
    init = tile(store("C", [i, j], Const(0, dtype)))
    update = loop("k", depth, tile(store("C", [i, j], product, total(dtype))))
    return loop("it", m, loop("jt", n, init, update, step=columns), step=rows_, kind="parallel")


@pytest.mark.parametrize(
    "shape", [(12, 128, 20), (13, 129, 7), (5, 63, 9), (7, 1, 3), (1, 70, 1), (6, 64, 0), (0, 5, 3)]
)
@pytest.mark.parametrize("dtype", [f32, f64, i32])
@pytest.mark.parametrize("vector_bits", [128, 512])
def test_a_tiled_matrix_product_with_edges(shape: tuple[int, int, int], dtype: DType, vector_bits: int) -> None:
    m, n, depth = shape
    random = np.random.default_rng(0)
    a = random.integers(-4, 5, (m, depth)).astype(dtype.numpy)
    b = random.integers(-4, 5, (depth, n)).astype(dtype.numpy)
    c = np.full((m, n), 9, dtype.numpy)
    run(matmul(m, n, depth, 6, 64, dtype), {"A": a, "B": b, "C": c}, vector_bits=vector_bits)
    np.testing.assert_array_equal(c, a @ b)


def test_a_full_tile_keeps_its_accumulators_in_registers() -> None:
    arrays = {name: np.zeros((64, 64), np.float32) for name in "ABC"}
    _, module = module_of(matmul(64, 64, 64, 4, 32), arrays)
    if host().vector_bits < 512:
        pytest.skip("needs AVX-512")
    assembly = jit.assembly(module.text, host())
    inner = [block for block in assembly.split("\n.L") if block.count("vfmadd") == 8]
    assert inner, "no block holds the 4 x 2 multiply-adds of a tile"
    spills = [line for block in inner for line in block.splitlines() if "zmm" in line and "(%rsp)" in line]
    assert not spills, "an accumulator is spilled"


def test_an_unrolled_reduction_at_an_edge_counts_each_iteration_once() -> None:
    x, y = np.arange(21, dtype=np.float32), np.zeros(3, np.float32)
    kt = index_var("kt")
    inner = loop(
        "k",
        op("minimum", op("add", kt, 4), 7),
        store("y", [i], load("x", op("add", op("mul", i, 7), k)), total()),
        lower=kt,
        kind="unrolled",
    )
    outer = loop("t", 1, loop("kt", 7, loop("i", 3, inner, kind="unrolled"), step=4))
    run(outer, {"x": x, "y": y})
    np.testing.assert_array_equal(y, x.reshape(3, 7).sum(1))


def test_a_running_value_lives_in_a_register_across_iterations() -> None:
    """A recurrence on one element, read and written plainly."""
    x, y = np.arange(1, 30, dtype=np.float64), np.ones(1)
    step = store("y", [0], fl("add", fl("mul", load("y", 0, dtype=f64), Const(0.5, f64)), load("x", i, dtype=f64)))
    run(loop("i", 29, step), {"x": x, "y": y})
    wanted = 1.0
    for value in x:
        wanted = wanted * 0.5 + value
    np.testing.assert_array_equal(y, wanted)


def test_strict_mode_does_not_contract() -> None:
    x = np.array([[1 + 2.0**-12]], np.float32)
    results = {}
    for numerics in ("strict", "default"):
        y = np.full(1, -1, np.float32)
        square = store("y", [0], fl("mul", load("x", 0, j), load("x", 0, j)), total())
        run(Block((loop("j", 1, square),)), {"x": x, "y": y}, numerics=numerics)
        results[numerics] = float(y[0])
    assert results["strict"] == float(x[0, 0] * x[0, 0] - np.float32(1))
