"""The bounds on errors hold for the program's own arithmetic, and are not so wide that faults hide in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt.dsl.affine import axis
from polyopt.dsl.ir import Cast, Const, DataIndex, Op, Reduce, Reducer, Var
from polyopt.dtypes import DType, bf16, bool_, f16, f32, f64, i32, i64
from polyopt.reference import evaluate, evaluate_with_bounds
from tests.equations import adding, ax, less, num, op, plain, program, rd, summing, tensor

RNG = np.random.default_rng(0)
FLOATS = [f16, bf16, f32, f64]


def one(value, dtype: DType, n: int, **inputs: DType):
    """y[i] = value over inputs x[n], w[n], ..."""
    tensors = [*(tensor(name, n, dtype=d) for name, d in inputs.items()), tensor("y", n, dtype=dtype)]
    return program(tensors, [plain(rd("y", "i", dtype=dtype), value, ax("i", n))], " ".join(inputs), "y")


def assert_bounded(program_, inputs, dtype: DType, *, tight: float | None = None):
    """The program's own arithmetic stays within the bound; with `tight`, the bound within so many units."""
    values, bounds = evaluate_with_bounds(program_, inputs)
    exact = evaluate(program_, inputs)
    for precision in ("own", "strict"):
        own = evaluate(program_, inputs, precision=precision)
        for name, value in own.items():
            np.testing.assert_array_equal(values[name], exact[name])
            finite = np.isfinite(exact[name])
            off = np.abs(value.astype(np.float64) - exact[name])[finite]
            assert (off <= bounds[name][finite]).all()
    if tight is not None:
        unit = {f16: 2.0**-11, bf16: 2.0**-8, f32: 2.0**-24, f64: 2.0**-53}[dtype]
        for name, bound in bounds.items():
            assert (bound <= tight * unit * (np.abs(exact[name]) + 1)).all()


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "name", ["add", "sub", "mul", "truediv", "minimum", "maximum", "pow", "floordiv", "mod"], ids=str
)
def test_operations_on_two_operands(dtype, name):
    x, w = ((RNG.random(200) + 0.5).astype(dtype.numpy) for _ in range(2))
    a, b = rd("x", "i", dtype=dtype), rd("w", "i", dtype=dtype)
    assert_bounded(one(op(name, a, b, dtype=dtype), dtype, 200, x=dtype, w=dtype), {"x": x, "w": w}, dtype, tight=16)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    "name", ["exp", "log", "sqrt", "sin", "tanh", "erf", "sigmoid", "expm1", "neg", "abs", "floor"]
)
def test_functions_of_a_computed_value(dtype, name):
    x = (RNG.random(200) + 0.5).astype(dtype.numpy)
    a = rd("x", "i", dtype=dtype)
    inner = op("add", op("mul", a, a, dtype=dtype), num(0.37, dtype), dtype=dtype)
    assert_bounded(one(op(name, inner, dtype=dtype), dtype, 200, x=dtype), {"x": x}, dtype)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ["sum", "prod", "max", "custom"])
def test_reductions(dtype, name):
    n = 300
    combine: Op[Any] = Op("add", (Var("a", dtype), op("mul", Var("b", dtype), num(0.5, dtype), dtype=dtype)), dtype)
    neutral = None if name == "max" else Const(1.0 if name == "prod" else 0.0, dtype)
    reducer = Reducer(name, dtype, neutral, combine if name == "custom" else None)
    value = Reduce(reducer, rd("x", "k", dtype=dtype), (ax("k", n),), dtype)
    total = program(
        [tensor("x", n, dtype=dtype), tensor("y", dtype=dtype)], [plain(rd("y", dtype=dtype), value)], "x", "y"
    )
    x = (RNG.random(n) * 0.1 + (0.95 if name == "prod" else -0.05)).astype(dtype.numpy)
    assert_bounded(total, {"x": x}, dtype)


def test_cancellation_widens_the_bound():
    a = rd("x", "i", dtype=f32)
    value = op("sub", op("add", a, num(1e6, f32), dtype=f32), num(1e6, f32), dtype=f32)
    x = RNG.random(100).astype(np.float32)
    assert_bounded(one(value, f32, 100, x=f32), {"x": x}, f32)


def test_a_missing_term_is_far_outside_the_bound():
    n = 1000
    total = program(
        [tensor("x", n, dtype=f32), tensor("y", dtype=f32)],
        [adding(rd("y", dtype=f32), rd("x", "k", dtype=f32), [], [ax("k", n)], reducer=summing(f32))],
        "x",
        "y",
    )
    values, bounds = evaluate_with_bounds(total, {"x": np.ones(n, np.float32)})
    assert values["y"] == n
    assert bounds["y"] < 0.05


def test_a_decision_between_close_values_is_uncertain():
    value = Op("select", (Op("gt", (op("mul", rd("x", "i"), num(3.0)), num(1.0)), bool_), num(5.0), num(7.0)), f64)
    x = np.array([1 / 3, 1.0, 0.0])
    _, bounds = evaluate_with_bounds(one(value, f64, 3, x=f64), {"x": x})
    assert bounds["y"][0] >= 2 and (bounds["y"][1:] < 1e-12).all()


def test_rounding_to_integers_is_uncertain_only_at_a_jump():
    value = Cast(op("floor", op("mul", rd("x", "i"), num(3.0))), i32)
    x = np.array([1 / 3, 0.5])
    _, bounds = evaluate_with_bounds(one(value, i32, 2, x=f64), {"x": x})
    assert bounds["y"][0] >= 1 and bounds["y"][1] == 0


def test_an_overflow_on_the_way_bounds_nothing():
    value = op("truediv", op("exp", rd("x", "i", dtype=f32), dtype=f32), num(2.0, f32), dtype=f32)
    _, bounds = evaluate_with_bounds(one(value, f32, 2, x=f32), {"x": np.array([100, 1], np.float32)})
    assert np.isinf(bounds["y"][0]) and bounds["y"][1] < 1e-5


def test_integers_and_infinities_have_no_error():
    ids = one(op("add", rd("x", "i", dtype=i64), num(3, i64), dtype=i64), i64, 3, x=i64)
    _, bounds = evaluate_with_bounds(ids, {"x": np.arange(3)})
    assert not bounds["y"].any()
    _, bounds = evaluate_with_bounds(
        one(op("add", rd("x", "i"), num(1.0)), f64, 2, x=f64), {"x": np.array([np.inf, np.nan])}
    )
    assert not bounds["y"].any()


def test_recurrences_scatters_and_gathers_carry_bounds_along():
    n = 60
    value = op(
        "add",
        op("mul", rd("s", axis("i") - 1, dtype=f32), num(0.9, f32), dtype=f32),
        rd("x", "i", dtype=f32),
        dtype=f32,
    )
    scan = program(
        [tensor("x", n, dtype=f32), tensor("s", n, dtype=f32)],
        [plain(rd("s", "i", dtype=f32), value, ax("i", n, 1)), plain(rd("s", 0, dtype=f32), rd("x", 0, dtype=f32))],
        "x",
        "s",
    )
    x = RNG.random(n).astype(np.float32)
    assert_bounded(scan, {"x": x}, f32, tight=60)
    bins = rd("b", "i", dtype=i64)
    scatter = program(
        [tensor("x", n, dtype=f32), tensor("b", n, dtype=i64), tensor("h", 4, dtype=f32)],
        [
            adding(
                rd("h", DataIndex(bins), dtype=f32),
                rd("x", "i", dtype=f32),
                [],
                [ax("i", n)],
                guard=less("i", n - 1),
                reducer=summing(f32),
            )
        ],
        "x b",
        "h",
    )
    assert_bounded(scatter, {"x": x, "b": RNG.integers(0, 4, n)}, f32)


def test_a_sum_that_is_infinite_is_checked() -> None:
    N, M = po.sizes("N M")
    i, k = po.indices("i k")

    @po.op
    def sums(x: f32[N, M]):
        y = po.tensor("y")
        y[i] = po.sum(x[i, k], k)
        return y

    x = np.ones((3, 4), np.float32)
    x[0, 1], x[1, 1] = np.inf, np.nan
    equations = sums.lower(x).program
    _, bounds = evaluate_with_bounds(equations, {"x": x}, {})
    assert np.isfinite(bounds[equations.results[0]]).all()
    huge = np.full((1, 4), 3e38, np.float32)
    equations = sums.lower(huge).program
    _, bounds = evaluate_with_bounds(equations, {"x": huge}, {})
    assert np.isinf(bounds[equations.results[0]]).all(), "a partial sum may overflow"
