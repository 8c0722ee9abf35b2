"""Section 1 of the language: scalar operations, promotion and dtypes, one test for each statement."""

from __future__ import annotations

import math
import operator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import polyopt as po
from polyopt import bf16, bool_, f16, f32, f64, i8, i32, i64

M, N, K, T = po.sizes("M N K T")
i, j, k, l, r = po.indices("i j k l r")

RNG = np.random.default_rng(12)
X = RNG.standard_normal((5, 7))
V = RNG.standard_normal(9)


def value_of(expression: Any, *inputs: Any) -> Any:
    """What an op of unannotated parameters returns."""
    return po.op(expression)(*inputs)


# --- elementwise ------------------------------------------------------------------------------------------------

POSITIVE = np.linspace(0.1, 8.0, 37)
UNARY = {
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "log1p": np.log1p,
    "expm1": np.expm1,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "tanh": np.tanh,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(math.erf),
    "abs": np.abs,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "sign": np.sign,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
}


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scalar_functions(name: str, dtype: Any) -> None:
    x = POSITIVE.astype(dtype)
    if name not in ("log", "log2", "log1p", "sqrt", "rsqrt"):
        x = np.concatenate([-x, x])

    @po.op
    def f(x):
        y = po.tensor("y")
        y[i] = getattr(po, name)(x[i])
        return y

    tolerance = 2e-6 if dtype == np.float32 else 1e-14
    assert_allclose(f(x), UNARY[name](x.astype(np.float64)), rtol=tolerance, atol=tolerance)
    assert f(x).dtype == (np.bool_ if name.startswith("is") else dtype)


def test_the_tanh_form_of_gelu() -> None:
    x = np.linspace(-3, 3, 31)
    wanted = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
    assert_allclose(value_of(lambda x: po.gelu(x, approximate=True), x), wanted, atol=1e-12)


def test_round_is_half_to_even() -> None:
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    assert_array_equal(value_of(lambda x: po.round(x), x), np.round(x))


def test_operators_of_arithmetic_and_comparison() -> None:
    x, y = RNG.standard_normal(33) * 5, RNG.standard_normal(33) * 3
    for expression, wanted in (
        (lambda x, y: x + y, x + y),
        (lambda x, y: x - y, x - y),
        (lambda x, y: x * y, x * y),
        (lambda x, y: x / y, x / y),
        (lambda x, y: x // y, x // y),
        (lambda x, y: x % y, x % y),
        (lambda x, y: abs(x) ** y, abs(x) ** y),
        (lambda x, y: -x, -x),
        (lambda x, y: x < y, x < y),
        (lambda x, y: x <= y, x <= y),
        (lambda x, y: x > y, x > y),
        (lambda x, y: x >= y, x >= y),
        (lambda x, y: x == y, x == y),
        (lambda x, y: x != y, x != y),
        (lambda x, y: po.maximum(x, y), np.maximum(x, y)),
        (lambda x, y: po.minimum(x, y), np.minimum(x, y)),
        (lambda x, y: po.clip(x, -1, 1), np.clip(x, -1, 1)),
        (lambda x, y: po.where(x > y, x, y), np.where(x > y, x, y)),
        (lambda x, y: 2 - x, 2 - x),
        (lambda x, y: 1 / x, 1 / x),
        (lambda x, y: x**2, x**2),
        (lambda x, y: 2**x, 2**x),
    ):
        result = value_of(expression, x, y)
        assert result.dtype == wanted.dtype
        assert_allclose(result, wanted, rtol=1e-14)


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64])
def test_integer_operations_follow_numpy(dtype: Any) -> None:
    info = np.iinfo(dtype)
    edge = [info.min, info.min + 1, info.max, info.max - 1, 0, 1, 2, 3, 7]
    x = np.array(edge * 9, dtype)
    y = np.repeat(np.array(edge, dtype), 9)
    nonzero = np.where(y == 0, dtype(1), y)
    small = (y % dtype(8)).astype(dtype)
    with np.errstate(all="ignore"):
        for expression, other, wanted in (
            (lambda x, y: x + y, y, x + y),
            (lambda x, y: x - y, y, x - y),
            (lambda x, y: x * y, y, x * y),
            (lambda x, y: x // y, nonzero, x // nonzero),
            (lambda x, y: x % y, nonzero, x % nonzero),
            (lambda x, y: x & y, y, x & y),
            (lambda x, y: x | y, y, x | y),
            (lambda x, y: x ^ y, y, x ^ y),
            (lambda x, y: ~x, y, ~x),
            (lambda x, y: x << y, small, x << small),
            (lambda x, y: x >> y, small, x >> small),
            (lambda x, y: abs(x), y, abs(x)),
            (lambda x, y: -x, y, -x),
            (lambda x, y: po.sign(x), y, np.sign(x)),
            (lambda x, y: po.maximum(x, y), y, np.maximum(x, y)),
            (lambda x, y: x / y, nonzero, x / nonzero),
            (lambda x, y: x < y, y, x < y),
            (lambda x, y: x**2, y, x**2),
        ):
            result = value_of(expression, x, other)
            assert result.dtype == wanted.dtype, expression.__code__.co_consts
            assert_array_equal(result, wanted)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint32, np.int64, np.uint64])
def test_comparisons_with_python_integers_are_exact(dtype: Any) -> None:
    info = np.iinfo(dtype)
    x = np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], dtype)
    for number in (-(2**70), -(2**63) - 1, -1, 0, info.max, info.max + 1, 2**53 + 1, 2**63, 2**64 - 1, 2**64, 2**70):
        found = value_of(compared_with(number), x)
        wanted = [[compare(int(value), number) for value in x] for compare in COMPARISONS]
        wanted += [[compare(number, int(value)) for value in x] for compare in COMPARISONS]
        assert [part.tolist() for part in found] == wanted, number


COMPARISONS = (operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne)


def compared_with(number: int) -> Any:
    """All comparisons of an array with a number on the right, then on the left."""
    return lambda x: (*(c(x, number) for c in COMPARISONS), *(c(number, x) for c in COMPARISONS))


@pytest.mark.parametrize("name", ["isnan", "isinf"])
def test_integers_are_neither_nan_nor_infinite(name: str) -> None:
    assert value_of(lambda x: getattr(po, name)(x), np.arange(3)).tolist() == [False] * 3
    assert value_of(lambda x: getattr(po, name)(x), np.array([True, False])).tolist() == [False] * 2


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_shifts_by_the_width_or_more_follow_numpy(dtype: Any) -> None:
    info = np.iinfo(dtype)
    counts = np.array([0, 1, info.bits - 1, info.bits, info.bits + 1, 100] * 7, dtype)
    x = np.repeat(np.array([1, 3, 5, info.max, info.min, info.max - 1, 0], dtype), 6)
    assert_array_equal(value_of(lambda x, y: x << y, x, counts), x << counts)
    assert_array_equal(value_of(lambda x, y: x >> y, x, counts), x >> counts)
    assert_array_equal(po.op(lambda x, y: x >> y).reference(x, counts), x >> counts)


def test_floor_division_and_remainder_follow_the_sign_of_python() -> None:
    x, y = np.array([7, -7, 7, -7], np.int32), np.array([3, 3, -3, -3], np.int32)
    assert_array_equal(value_of(lambda x, y: x // y, x, y), [2, -3, -3, 2])
    assert_array_equal(value_of(lambda x, y: x % y, x, y), [1, 2, -2, -1])


def test_operations_on_booleans() -> None:
    x, y = np.array([True, True, False, False]), np.array([True, False, True, False])
    for expression, wanted in (
        (lambda x, y: x & y, x & y),
        (lambda x, y: x | y, x | y),
        (lambda x, y: x ^ y, x ^ y),
        (lambda x, y: ~x, ~x),
        (lambda x, y: x == y, x == y),
    ):
        result = value_of(expression, x, y)
        assert result.dtype == np.bool_
        assert_array_equal(result, wanted)


def test_an_index_and_a_size_are_values() -> None:
    @po.op
    def f(x: f32[N]):
        y, z = po.tensors("y z")
        y[i] = x[i] + po.cast(i, f32) * po.cast(x.shape[0], f32)
        z[i] = po.where(x[i] == x[i], i, i)
        return y, z

    x = np.arange(5, dtype=np.float32)
    y, z = f(x)
    assert_array_equal(y, x + np.arange(5) * 5)
    assert_array_equal(z, np.arange(5))
    assert z.dtype == np.int64


NUMPY_DTYPES = [np.dtype(name) for name in ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]]


@pytest.mark.parametrize("left", NUMPY_DTYPES, ids=str)
def test_promotion_follows_numpy_2(left: np.dtype[Any]) -> None:
    for right in NUMPY_DTYPES:
        x, y = np.ones(3, left), np.ones(3, right)
        assert value_of(lambda x, y: x * y, x, y).dtype == (x * y).dtype, (left, right)
        assert value_of(lambda x, y: x / y, x, y).dtype == (x / y).dtype, (left, right)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_python_scalars_are_weak_and_numpy_scalars_are_strong(dtype: np.dtype[Any]) -> None:
    x = np.ones(3, dtype)
    for expression in (
        lambda x: x + 1,
        lambda x: 1 + x,
        lambda x: x * 2.5,
        lambda x: x + np.float64(1),
        lambda x: np.float32(1) * x,
        lambda x: np.int64(3) + x,
        lambda x: x * np.int8(1),
        lambda x: x * True,
    ):
        assert value_of(expression, x).dtype == expression(x).dtype


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_python_scalars_are_weak_as_arguments_too(dtype: np.dtype[Any]) -> None:
    op = po.op(lambda x, y: x * y)
    x = np.ones(3, dtype)
    for number in (2, 2.5, True, np.float64(2), np.int8(1), np.float32(2), 3):
        for _ in range(2):
            assert op(x, number).dtype == (x * number).dtype, number
            assert_array_equal(op(x, number), x * number)


def test_bare_dtype_parameters_are_strong() -> None:
    @po.op
    def f(x: f32[N], a: f64):
        return x * a, a * x

    for value in f(np.ones(3, np.float32), 2):
        assert value.dtype == np.float64


def test_a_definition_that_is_only_a_python_scalar_takes_the_dtype_of_the_others() -> None:
    @po.op
    def f(x: f32[N]):
        y, z, w, v = po.tensors("y z w v")
        y[i] = po.when(i > 0, x[i])
        y[0] = 0
        z[j] = po.when(j > 0, po.cast(x[j], i8))
        z[0] = 1
        a = po.index("a", extent=3)
        w[a] = 2
        v[a] = 2.5
        return y, z, w, v

    y, z, w, v = f(np.arange(4, dtype=np.float32))
    assert (y.dtype, z.dtype, w.dtype, v.dtype) == (np.float32, np.int8, np.int64, np.float64)
    assert_array_equal(y, [0, 1, 2, 3])
    assert_array_equal(z, [1, 1, 2, 3])


def test_a_condition_has_no_truth_value_and_the_error_says_what_to_use() -> None:
    for function in (
        lambda x: po.where((0 < i) and (i < 3), x, x),
        lambda x: po.where(not (i < 3), x, x),
        lambda x: x if x > 0 else -x,
    ):
        with pytest.raises(po.DefinitionError, match="&"):
            value_of(function, V)

    @po.op
    def chained(x: f64[N]):
        y = po.tensor("y")
        y[i] = po.when(0 < i < 4, x[i])
        return y

    with pytest.raises(po.DefinitionError, match="&"):
        chained(V)


def test_a_recurrence_takes_part_in_its_own_dtype() -> None:
    t = po.index("t", 1, N)

    @po.op
    def f(x: f32[N]):
        y = po.tensor("y")
        y[0] = 0
        y[t] = y[t - 1] + x[t]
        return y

    assert f(np.ones(5, np.float32)).dtype == np.float32


def test_a_tensor_may_fix_shape_and_dtype() -> None:
    @po.op
    def f(x: f32[N]):
        y = po.tensor("y", shape=(N, 2), dtype=f64)
        y[i, j] = x[i] / 3
        return y

    x = np.arange(4, dtype=np.float32)
    result = f(x)
    assert result.dtype == np.float64 and result.shape == (4, 2)


def test_casts() -> None:
    x = np.array([-1.7, -0.5, 0.5, 1.7, 100.9])
    for dtype in (i8, i32, i64, f16, f32, bf16):
        assert_array_equal(value_of(lambda x, d=dtype: po.cast(x, d), x), x.astype(dtype.numpy))
    assert_array_equal(value_of(lambda x: po.cast(x, bool_), np.array([0.0, 0.5, np.nan])), [False, True, True])


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_gelu_of_16_bits_keeps_its_negative_tail(kind: str, approximate: bool) -> None:
    @po.op
    def op(x):
        return po.gelu(x, approximate=approximate)

    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    x = np.linspace(-4, 4, 257).astype(dtype)
    found = op(x)
    assert found.dtype == dtype
    exact = op.reference(x.astype("f8"))
    assert_allclose(found.astype("f8"), exact, rtol=2 * float(ml_dtypes.finfo(dtype).eps), atol=1e-7)


@pytest.mark.parametrize("function", [po.silu, po.softplus], ids=["silu", "softplus"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_functions_of_16_bits_round_once(kind: str, function: Any) -> None:
    """silu rounded its sigmoid: 9 units in the last place of f16 at -17, 41 of bf16 at -93."""

    @po.op
    def op(x):
        return function(x)

    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    with np.errstate(invalid="ignore"):  # NaNs among them
        wide = np.arange(2**16, dtype=np.uint16).view(dtype).astype("f8")
    x = wide[np.abs(wide) < 85].astype(dtype)
    found, exact = op(x), op.reference(x.astype("f8"))
    assert found.dtype == dtype
    info = ml_dtypes.finfo(dtype)
    error = np.abs(found.astype("f8") - exact)
    assert np.all(error <= np.maximum(float(info.eps) * np.abs(exact), float(info.smallest_subnormal)))
