"""The interpreter does what the loop program says, and stops where that is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from polyopt.dsl.ir import Cast, Const, Op, Reducer, Var
from polyopt.dtypes import bool_, f32, f64, i8, i64, u8
from polyopt.errors import BoundsError, LegalityError, ShapeError
from polyopt.loops.interpret import interpret
from polyopt.loops.ir import Block, Buffer, Expr, For, LoopProgram, index_var
from tests.loops.nests import SUM, argument, gather, guarded, ints, load, loop, matmul, op, scan, store

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("seed", [None, 0, 1])
def test_a_matrix_product_in_any_order_of_its_parallel_loops(seed):
    x, w, out = RNG.random((5, 4)) - 0.5, RNG.random((4, 6)), np.empty((5, 6))
    interpret(matmul(), {"x": x, "w": w, "out": out}, seed=seed)
    assert_allclose(out, np.maximum(x @ w, 0))


def test_masked_loads_read_nothing():
    x, s = RNG.random(6), np.empty(6)
    interpret(scan(), {"x": x, "s": s})
    assert_allclose(s, np.cumsum(x))


def test_strided_arrays_and_symbolic_sizes():
    y = np.zeros(10)
    interpret(guarded(), {"y": y[::-2]}, {"N": 5})
    assert_array_equal(y, [0, 2, 0, 2, 0, 1, 0, 1, 0, 1])


def test_shuffling_reveals_a_loop_that_is_not_parallel():
    wrong = scan(40)
    assert isinstance(wrong.body, Block)
    first, second = wrong.body.body
    assert isinstance(first, For)
    wrong = replace(wrong, body=Block((replace(first, kind="parallel"), second)))
    with pytest.raises(LegalityError) as caught:
        interpret(wrong, {"x": np.ones(40), "s": np.empty(40)}, seed=1)
    assert caught.value.facts["rule"] == "uninitialised"


def test_a_failed_check_is_reported_after_the_run_and_reads_nothing():
    table, y = np.ones(3), np.zeros(4)
    with pytest.raises(BoundsError) as caught:
        interpret(gather(), {"table": table, "ids": np.array([0, -1, 7, 2]), "y": y})
    assert caught.value.facts == {"array": "table", "dimension": 0, "index": -1, "extent": 3}
    assert_array_equal(y, [1, 0, 0, 1])


def test_accesses_outside_a_buffer_are_refused():
    beyond = loop("i", 4, store("s", "y", (op("add", "i", 1),), load("x", "i")))
    program = LoopProgram("bad", (argument("x", 4), argument("y", 4)), (), (), ("y",), beyond)
    with pytest.raises(LegalityError) as caught:
        interpret(program, {"x": np.ones(4), "y": np.empty(4)})
    assert caught.value.facts == {"buffer": "y", "index": (4,), "rule": "bounds"}


def test_an_accumulation_onto_nothing_is_refused():
    program = LoopProgram(
        "bad", (argument("x", 4), argument("y")), (), (), ("y",), loop("i", 4, store("s", "y", (), load("x", "i"), SUM))
    )
    with pytest.raises(LegalityError) as caught:
        interpret(program, {"x": np.ones(4), "y": np.zeros(())})
    assert caught.value.facts["rule"] == "uninitialised"


def test_arrays_must_be_what_the_buffers_say():
    with pytest.raises(ShapeError):
        interpret(scan(), {"x": np.ones(5), "s": np.empty(6)})
    with pytest.raises(ShapeError):
        interpret(scan(), {"x": np.ones(6, np.float32), "s": np.empty(6)})


def run(value: Expr, dtype, **arrays):
    """The value of an expression."""
    inputs = tuple(Buffer(name, _dtype(a), ints(*a.shape), "argument") for name, a in arrays.items())
    out = np.empty((), dtype.numpy)
    body = store("s", "out", (), value)
    program = LoopProgram("one", (*inputs, argument("out", dtype=dtype)), (), (), ("out",), body)
    interpret(program, {**arrays, "out": out})
    return out[()]


def _dtype(array):
    return {"int8": i8, "uint8": u8, "float32": f32, "int64": i64}[array.dtype.name]


def test_values_have_exactly_their_dtype():
    assert run(Op("add", (Const(200, u8), Const(100, u8)), u8), u8) == 44
    assert run(Op("mul", (Const(1 << 62, i64), Const(2, i64)), i64), i64) == -(1 << 63)
    assert run(op("floordiv", -7, 2), i64) == -4
    assert run(op("mod", -7, 4), i64) == 1
    assert run(op("mod", -7, 0), i64) == 0
    third = Op("truediv", (Const(1.0, f32), Const(3.0, f32)), f32)
    assert run(Cast(third, f64), f64) == np.float32(1) / np.float32(3)
    assert run(Cast(Const((1 << 53) + 1, i64), f32), f32) == np.int64((1 << 53) + 1).astype(np.float32)
    assert run(Op("shl", (Const(1, i64), Const(70, i64)), i64), i64) == 0
    assert run(Cast(op("lt", load("x", 0, dtype=i8), Const(3, i8), dtype=bool_), i8), i8, x=np.array([2], np.int8)) == 1


def test_reducers_combine_with_what_is_there():
    x = np.array([3.0, np.nan, 1.0])
    square: Op[Any] = Op("add", (Var("a", f64), Op("mul", (Var("b", f64), Var("b", f64)), f64)), f64)
    for reducer, start, expected in [
        (Reducer("max", f64, None), -np.inf, np.nan),
        (Reducer("sum", f64, Const(0.0, f64)), 1.0, np.nan),
        (Reducer("custom", f64, Const(0.0, f64), square), 2.0, np.nan),
    ]:
        for data, result in [(x, expected), (x[::2], None)]:
            body = Block(
                (
                    store("start", "y", (), Const(start, f64)),
                    loop("i", len(data), store("s", "y", (), load("x", "i"), reducer)),
                )
            )
            program = LoopProgram("r", (argument("x", len(data)), argument("y")), (), (), ("y",), body)
            y = np.empty(())
            interpret(program, {"x": data, "y": y})
            assert_array_equal(y, {"max": 3.0, "sum": 5.0, "custom": 12.0}[reducer.name] if result is None else result)


def test_given_functions_replace_numpys():
    y = np.empty(())
    body = store("s", "y", (), Op("exp", (Const(1.0, f64),), f64))
    interpret(LoopProgram("f", (argument("y"),), (), (), ("y",), body), {"y": y}, functions={"exp": lambda v: v + 41})
    assert y == 42


def test_index_variables_are_values():
    body = loop("i", 3, store("s", "y", ("i",), Cast(index_var("i"), f64)))
    y = np.empty(3)
    interpret(LoopProgram("v", (argument("y", 3),), (), (), ("y",), body), {"y": y})
    assert_array_equal(y, [0, 1, 2])
