"""Strict numerics promise bits: those of the equations evaluated one after the other in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, f16, f32, f64

M, N = po.sizes("M N")
i, j, k = po.indices("i j k")
t = po.index("t", 1, N)

UNARY = [
    *("exp", "exp2", "expm1", "log", "log2", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh"),
    *("sigmoid", "erf", "abs", "floor", "ceil", "round", "sign", "relu", "gelu", "silu", "softplus"),
]
DTYPES = {"f16": f16, "bf16": bf16, "f32": f32, "f64": f64}


def strict(function: Callable[..., Any]) -> Any:
    return po.op(numerics="strict")(function)


def check(op: Any, *inputs: Any) -> None:
    found, wanted = op(*inputs), op.reference(*inputs, numerics="strict")
    for value, expected in zip(*((v if isinstance(v, tuple) else (v,)) for v in (found, wanted)), strict=True):
        assert value.dtype == expected.dtype and value.shape == expected.shape
        np.testing.assert_array_equal(bits(value), bits(expected))


def bits(values: Any) -> Any:
    """The bits of floats, with one pattern for NaN."""
    plain = np.where(np.isnan(values), np.asarray(np.nan, values.dtype), values)
    return plain.view(f"u{values.dtype.itemsize}") if plain.ndim else plain


def numbers(*shape: int, dtype: Any = np.float32) -> Any:
    return (np.random.default_rng(7).standard_normal(shape) * 3).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", UNARY)
def test_a_function_gives_the_references_bits(name: str, dtype: str) -> None:
    def op(x):
        return getattr(po, name)(x)

    x = numbers(203, dtype=DTYPES[dtype].numpy)
    check(strict(op), x)
    check(strict(op), np.abs(x))


@strict
def softmax(x: f32[M, N]):
    return po.softmax(x, axis=-1)


@strict
def layernorm(x: f32[M, N]):
    mean = po.mean(x, axis=1, keepdims=True)
    deviation = x - mean
    return deviation * po.rsqrt(po.mean(deviation * deviation, axis=1, keepdims=True) + 1e-5)


@strict
def logsumexp(x: f64[M, N]):
    top = po.max(x, axis=1, keepdims=True)
    return po.log(po.sum(po.exp(x - top), axis=1)) + top[:, 0]


@strict
def product(x: f32[M, N]):
    y = po.tensor("y")
    y[i, j] += x[i, k] * x[j, k] + 0.1
    return y


@strict
def recurrence(x: f64[N]):
    h = po.tensor("h")
    h[0] = x[0]
    h[t] = po.tanh(h[t - 1] * 0.9 + x[t])
    return h


@strict
def powers(x: f32[N], y: f32[N]):
    return abs(x) ** y, x // y, x % y, x / y


@strict
def halves(x: f16[M, N]):
    return po.sum(x, axis=1), po.prod(x, axis=0), po.mean(x)


@pytest.mark.parametrize(
    ("op", "inputs"),
    [
        (softmax, (numbers(7, 33),)),
        (layernorm, (numbers(5, 67),)),
        (logsumexp, (numbers(5, 67, dtype=np.float64),)),
        (product, (numbers(18, 37),)),
        (recurrence, (numbers(65, dtype=np.float64),)),
        (powers, (numbers(65), numbers(65)[::-1])),
        (halves, (numbers(9, 35, dtype=np.float16),)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_an_operator_gives_the_references_bits(op: Any, inputs: tuple[Any, ...]) -> None:
    check(op, *inputs)


@pytest.mark.parametrize("dtype", [f16, f32, f64], ids=str)
@pytest.mark.parametrize("length", [1, 2, 3, 8, 13, 64])
def test_zeros_have_an_order(dtype: po.DType, length: int) -> None:
    """-0.0 is less than 0.0 in maxima and minima, whichever comes first and whatever lanes there are."""

    @po.op(numerics="strict")
    def extremes(x: dtype[M, N], z: dtype[M, N]) -> object:
        larger, smaller, positive, below, most, least = po.tensors("larger smaller positive below most least")
        larger[i, j] = po.maximum(x[i, j], z[i, j])
        smaller[i, j] = po.minimum(x[i, j], z[i, j])
        positive[i, j] = po.relu(x[i, j])
        below[i, j] = po.minimum(-0.0, x[i, j])
        most[i] = po.max(x[i, j], j)
        least[i] = po.min(x[i, j], j)
        return larger, smaller, positive, below, most, least

    signs = np.random.default_rng(length).random((2, 6, length)) < np.array([0, 0.1, 0.5, 0.5, 0.9, 1])[:, None]
    x, z = np.where(signs, -0.0, 0.0).astype(dtype.numpy)
    elements = (signs[0] & signs[1], signs[0] | signs[1], signs[0] & False, signs[0] | True)
    expected = (*elements, signs[0].all(axis=1), signs[0].any(axis=1))
    for results in (extremes(x, z), extremes.reference(x, z, numerics="strict")):
        for result, is_negative in zip(results, expected, strict=True):
            assert (result == 0).all()
            np.testing.assert_array_equal(np.signbit(result), is_negative)


def test_the_sign_of_a_zero_is_a_zero_without_one() -> None:
    """NumPy's sign of a bf16 -0.0 is -0.0."""

    @strict
    def signs(x: bf16[N]) -> object:
        y = po.tensor("y")
        y[i] = po.sign(x[i])
        return y

    x = np.array([0.0, -0.0, -2.0, np.nan]).astype(bf16.numpy)
    check(signs, x)
    assert not np.signbit(signs(x)[:2]).any()
