"""Dtypes: promotion as NumPy 2 has it, weak Python scalars, accumulators, recurrences."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyopt as po
from polyopt import DTypeError, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from polyopt.dsl import ir
from polyopt.dtypes import DType, from_numpy
from tests.dsl.tracing import dtypes, equations, program

N = po.size("N")
i, k, t = po.indices("i k t")

NUMPY_DTYPES = (bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, f32, f64)
OPERATORS = (operator.add, operator.mul, operator.truediv, operator.floordiv, operator.mod, operator.pow)


def result_of(build: Callable[[Any, Any], Any], left: DType, right: DType | bool | int | float) -> str:
    """The dtype of an elementwise operation of a tensor with a tensor or a Python number."""

    def op(x: Any, y: Any = None) -> object:
        z = po.tensor("z")
        z[i] = build(x[i], y[i] if isinstance(right, DType) else right)
        return z

    given = {"x": (left, 1)} | ({"y": (right, 1)} if isinstance(right, DType) else {})
    return dtypes(op, given)["z"]


def numpy_result(build: Callable[[Any, Any], Any], left: DType, right: DType | bool | int | float) -> str:
    other = np.ones(1, right.numpy) if isinstance(right, DType) else right
    return str(from_numpy(build(np.ones(1, left.numpy), other).dtype))


@pytest.mark.parametrize("build", OPERATORS, ids=lambda build: build.__name__)
@pytest.mark.parametrize("left", NUMPY_DTYPES, ids=str)
def test_operators_promote_as_numpy_does(build: Callable[[Any, Any], Any], left: DType) -> None:
    for right in (*NUMPY_DTYPES, 3, 2.5, True):
        assert result_of(build, left, right) == numpy_result(build, left, right), (left, right)


@pytest.mark.parametrize("name", ["exp", "sqrt", "tanh", "floor", "abs", "isnan"])
@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_functions_give_numpys_dtypes(name: str, dtype: DType) -> None:
    def op(x: Any) -> object:
        z = po.tensor("z")
        z[i] = getattr(po, name)(x[i])
        return z

    expected = getattr(np, name)(np.ones(1, dtype.numpy)).dtype
    assert dtypes(op, {"x": (dtype, 1)})["z"] == str(from_numpy(expected))


def test_a_function_without_a_numpy_namesake_treats_integers_as_numpy_would() -> None:
    def op(a: i8[N], b: i16[N], c: i64[N]) -> object:
        x, y, z = po.tensors("x y z")
        x[i], y[i], z[i] = po.erf(a[i]), po.sigmoid(b[i]), po.erf(c[i])
        return x, y, z

    assert dtypes(op) == {"x": "f16", "y": "f32", "z": "f64"}


def test_bf16_meets_narrow_integers_and_widens_with_f16() -> None:
    assert result_of(operator.add, bf16, i8) == "bf16"
    assert result_of(operator.add, bf16, f16) == "f32"
    assert result_of(operator.add, bf16, 1.5) == "bf16"


def test_numpy_scalars_are_strong_on_either_side() -> None:
    def op(x: f32[N], z: i32[N]) -> object:
        a, b, c = po.tensors("a b c")
        a[i] = np.float64(2) * x[i]
        b[i] = x[i] + np.float32(1)
        c[i] = np.int64(3) - z[i]
        return a, b, c

    assert dtypes(op) == {"a": "f64", "b": "f32", "c": "i64"}


def test_run_time_scalars_are_strong_and_python_numbers_given_to_unannotated_parameters_need_not_be() -> None:
    def op(x: f16[N], a: f32, b: Any) -> object:
        y, z = po.tensors("y z")
        y[i] = x[i] * a
        z[i] = x[i] * b
        return y, z

    assert dtypes(op, {"b": (f64, 0)}) == {"y": "f32", "z": "f64"}
    assert dtypes(op, {"b": (f64, 0, (), True, None)}) == {"y": "f32", "z": "f16"}


def test_sizes_are_weak_as_python_integers_and_indices_strong_as_arange() -> None:
    def op(x: f32[N]) -> object:
        y, z = po.tensors("y z")
        y[i] = x[i] / N
        z[i] = x[i] + i
        return y, z

    assert dtypes(op) == {"y": "f32", "z": "f64"}


def test_a_python_integer_that_does_not_fit_is_refused_except_in_a_comparison() -> None:
    def sums(x: u8[N]) -> object:
        y = po.tensor("y")
        y[i] = x[i] + 300
        return y

    def compares(x: u8[N]) -> object:
        y = po.tensor("y")
        y[i] = x[i] > -1
        return y

    with pytest.raises(DTypeError, match="300 does not fit u8"):
        program(sums)
    assert equations(compares) == ["y[i] = x[i] >= 0"]


def test_constants_take_the_dtype_of_what_they_meet() -> None:
    def op(x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = x[i] * 0.1 + 2
        return y

    constants = [node for node in ir.walk(program(op).equations[0].value) if isinstance(node, ir.Const)]
    assert constants == [ir.Const(float(np.float32(0.1)), f32), ir.Const(2.0, f32)]


# --- definitions ------------------------------------------------------------------------------------------------------


def test_a_definition_that_is_a_python_scalar_follows_the_others() -> None:
    def op(x: f16[N]) -> object:
        y, z, w = po.tensors("y z w")
        y[0] = 0
        y[i + 1] = x[i]
        z[()] = 1
        w[()] = 1.5
        return y, z, w

    assert dtypes(op) == {"y": "f16", "z": "i64", "w": "f64"}


def test_recurrences_settle() -> None:
    def op(x: f32[N]) -> object:
        u, v, w = po.tensors("u v w")
        t = po.index("t", 0, 5)
        u[0] = 0
        u[t + 1] = v[t] * 2
        v[t] = u[t] + x[t]
        w[0] = 1
        w[t + 1] = w[t] / 2
        return u, v, w

    assert dtypes(op) == {"u": "f32", "v": "f32", "w": "f64"}


def test_a_recurrence_through_a_maximum_over_itself_keeps_its_dtype() -> None:
    def op(x: i32[N]) -> object:
        best = po.tensor("best", shape=(N,))
        best[0] = 0
        best[i] = po.when(i > 0, x[i] + po.max(best[k], k, where=k < i, init=0))
        return best

    assert dtypes(op) == {"best": "i32"}


def test_a_given_dtype_decides() -> None:
    def op(x: f64[N]) -> object:
        y = po.tensor("y", dtype=f32)
        z = po.tensor("z", dtype="i16")
        y[i] = x[i]
        z[i] = 7
        return y, z

    assert dtypes(op) == {"y": "f32", "z": "i16"}
    assert equations(op)[0] == "y[i] = cast(x[i], f32)"


def test_a_local_tensor_says_its_dtype() -> None:
    def op(x: f16[N]) -> object:
        y = po.tensor("y")
        y[i] = x[i] * 2
        assert y.dtype == f16 and x.dtype == f16 and y.ndim == 1
        return y

    program(op)


# --- accumulators -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "result", "inside"),
    [(i8, "i32", "i32"), (u8, "i32", "i32"), (i16, "i32", "i32"), (bool_, "i32", "i32"), (i64, "i64", "i64")]
    + [(u32, "u32", "u32"), (f16, "f16", "f32"), (bf16, "bf16", "f32"), (f32, "f32", "f32"), (f64, "f64", "f64")],
    ids=str,
)
def test_sums_run_in_the_accumulator_to_which_reads_are_converted_first(dtype: DType, result: str, inside: str) -> None:
    def op(x: Any) -> object:
        y, z = po.tensors("y z")
        y[()] = po.sum(x[i] * x[i], i)
        z[()] += x[i] * x[i]
        return y, z

    found = program(op, {"x": (dtype, 1)})
    assert dtypes(op, {"x": (dtype, 1)}) == {"y": result, "z": result}
    reduction, accumulation = found.equations
    (reduce,) = [node for node in ir.walk(reduction.value) if isinstance(node, ir.Reduce)]
    assert str(reduce.dtype) == inside
    assert accumulation.reducer is not None and str(accumulation.reducer.dtype) == inside
    read = "x[i]" if str(dtype) == inside else f"cast(x[i], {inside})"
    assert equations(op, {"x": (dtype, 1)})[1] == f"z[()] += {read} * {read}"


def test_comparisons_inside_a_sum_keep_their_dtype() -> None:
    def op(x: f16[N], m: bool_[N]) -> object:
        y, z = po.tensors("y z")
        y[()] = po.sum(x[i] > 0, i)
        z[()] = po.sum(~m[i], i)
        return y, z

    assert equations(op) == ["y[()] = sum(cast(x[i] > 0, i32), i)", "z[()] = sum(cast(~m[i], i32), i)"]


def test_a_dtype_sets_accumulator_and_result() -> None:
    def op(x: f32[N], q: i8[N]) -> object:
        y, z = po.tensors("y z")
        y[()] = po.sum(x[i] * x[i], i, dtype=f64)
        z[()] = po.sum(q[i], i, dtype=i64)
        return y, z

    assert dtypes(op) == {"y": "f64", "z": "i64"}
    assert equations(op)[0] == "y[()] = sum(cast(x[i], f64) * cast(x[i], f64), i)"


def test_a_nested_sum_is_not_rounded_in_between() -> None:
    def op(x: f16[N, N]) -> object:
        y = po.tensor("y")
        y[()] = po.sum(po.sum(x[i, k], k), i)
        return y

    assert equations(op) == ["y[()] = cast(sum(sum(cast(x[i, k], f32), k), i), f16)"]


def test_an_accumulation_into_a_wider_tensor_runs_in_its_dtype() -> None:
    def op(x: f32[N], q: i8[N]) -> object:
        y, z = po.tensor("y", dtype=f64), po.tensor("z", dtype=i8)
        y[()] += x[i]
        z[()] += q[i]
        return y, z

    wide, narrow = program(op).equations
    assert wide.reducer is not None and wide.reducer.dtype == f64
    assert narrow.reducer is not None and narrow.reducer.dtype == i32


def test_means_are_floats() -> None:
    def op(x: f16[N], q: i8[N]) -> object:
        y, z = po.tensors("y z")
        y[()] = po.mean(x[i], i)
        z[()] = po.mean(q[i], i)
        return y, z

    assert dtypes(op) == {"y": "f16", "z": "f64"}
    assert equations(op) == [
        "y[()] = cast(sum(cast(x[i], f32), i) / cast(N, f32), f16)",
        "z[()] = sum(cast(q[i], f64), i) / cast(N, f64)",
    ]


# --- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "build",
    [lambda m, x: m - m, lambda m, x: -m, lambda m, x: x & x, lambda m, x: ~x, lambda m, x: x << 1],
    ids=["bool_minus_bool", "minus_bool", "float_and_float", "not_float", "float_shift"],
)
def test_operations_that_numpy_refuses_are_refused(build: Callable[[Any, Any], Any]) -> None:
    def op(m: bool_[N], x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = build(m[i], x[i])
        return y

    with pytest.raises(DTypeError) as caught:
        program(op)
    assert caught.value.fix and caught.value.where is not None


def test_a_shift_of_u64_by_an_index_names_what_to_convert() -> None:
    """No integer dtype holds both; the advice was to cut the u64 to 32 bits."""

    def bits(x: u64[N]) -> object:
        y, k = po.tensor("y"), po.index("k", extent=64)
        y[i, k] = (x[i] >> k) & 1
        return y

    with pytest.raises(DTypeError, match="'shr' of u64 and i64") as caught:
        program(bits)
    assert "po.cast(k, u64)" in caught.value.fix


def test_an_integer_to_a_negative_power_is_refused() -> None:
    def op(x: i32[N]) -> object:
        y = po.tensor("y")
        y[i] = x[i] ** -2
        return y

    with pytest.raises(DTypeError, match="negative power"):
        program(op)


def test_small_powers_multiply() -> None:
    def op(x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = x[i] ** 2 + x[i] ** 3 + x[i] ** 0.5 + x[i] ** -1 + x[i] ** 1.5
        return y

    assert equations(op) == ["y[i] = x[i] * x[i] + x[i] * x[i] * x[i] + sqrt(x[i]) + 1 / x[i] + x[i] ** 1.5"]


def test_no_dtype_is_refused_by_name() -> None:
    def op(x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = po.cast(x[i], "f31")
        return y

    with pytest.raises(DTypeError, match="is not a dtype"):
        program(op)


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "int4", "uint2", "float6_e2m3fn"])
def test_narrower_floats_and_integers_of_other_libraries_are_refused(name: str) -> None:
    with pytest.raises(DTypeError, match=name):
        from_numpy(np.dtype(getattr(ml_dtypes, name)))
