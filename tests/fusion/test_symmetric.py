"""Symmetric products are summed for one half and mirrored: the same bits, in half of the operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f16, f32, f64, i32
from polyopt.fusion import symmetric

Array = np.ndarray[Any, Any]

B, K, M, N = po.sizes("B K M N")
b, i, j, k = po.indices("b i j k")


@po.op
def gram(x: f32[K, N]):
    y = po.tensor("y")
    y[i, j] += x[k, i] * x[k, j]
    return y


@po.op
def by_rows(x: f64[N, K]):
    """A product with itself, turned around, and scaled."""
    y = po.tensor("y")
    y[i, j] = po.sum(x[j, k] * x[i, k], k) / x.shape[1] - po.cast(i, f64)
    return y


@po.op
def covariance(x: f64[K, N]):
    mean, y = po.tensors("mean y")
    mean[i] = po.mean(x[k, i], k)
    y[i, j] = po.sum((x[k, i] - mean[i]) * (x[k, j] - mean[j]), k) / (x.shape[0] - 1)
    return y


@po.op
def whole(x: f32[N, K]):
    return x @ x.T


@po.op
def product(x: f32[N, K], w: f32[N, K]):
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[j, k]
    return y


@po.op
def skewed(x: f32[K, N]):
    y = po.tensor("y")
    y[i, j] += x[k, i] * (x[k, j] - 1)
    return y


@po.op
def integers(x: i32[K, N]):
    y = po.tensor("y")
    y[i, j] += x[k, i] * x[k, j]
    return y


@po.op
def halves(x: f16[K, N]):
    y = po.tensor("y")
    y[i, j] += x[k, i] * x[k, j]
    return y


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matrices of any size are worth it."""
    for name in ("LEAST_SIDE", "LEAST_TERMS", "LEAST_PRODUCTS"):
        monkeypatch.setattr(symmetric, name, 2)


def numbers(*shape: int, dtype: type = np.float32) -> Array:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(dtype)


def is_halved(operator: po.Op, *arrays: Array) -> bool:
    said = "is symmetric in" in str(operator.lower(*arrays).fusion)
    assert said == ("_half" in str(operator.lower(*arrays).rewritten))
    return said


@pytest.mark.parametrize("side", [2, 3, 14, 33, 64, 150])
def test_both_halves_have_their_numbers(side: int) -> None:
    x = numbers(40, side)
    np.testing.assert_array_equal(gram(x), x.T @ x)
    rows = numbers(side, 32, dtype=np.float64)
    np.testing.assert_array_equal(by_rows(rows), rows @ rows.T / 32 - np.arange(side)[:, None])
    np.testing.assert_array_equal(whole(x.T.copy()), x.T @ x)
    assert is_halved(gram, x) and is_halved(by_rows, rows) and is_halved(whole, x.T.copy())


def test_what_is_computed_first_may_be_in_both_factors() -> None:
    x = np.random.default_rng(0).random((130, 140))
    np.testing.assert_allclose(covariance(x), np.cov(x, rowvar=False), rtol=1e-10, atol=1e-13)
    assert is_halved(covariance, x)
    found = covariance(x)
    np.testing.assert_array_equal(found, found.T)


def test_bits_are_those_of_the_whole_product() -> None:
    """Each element adds the same terms in the same order: strict numerics have it as well."""

    @po.op(numerics="strict")
    def strict(x: f32[K, N]):
        y = po.tensor("y")
        y[i, j] += x[k, i] * x[k, j]
        return y

    x = np.random.default_rng(1).random((200, 133), np.float32) - 0.5
    found = strict(x)
    assert is_halved(strict, x)
    running = np.zeros((133, 133), np.float32)
    for row in x:
        running += row[:, None] * row
    np.testing.assert_array_equal(found, running)


def test_what_is_not_symmetric_stays_whole() -> None:
    x, w = numbers(14, 15), numbers(14, 15)
    np.testing.assert_array_equal(product(x, w), x @ w.T)
    np.testing.assert_array_equal(skewed(x), x.T @ (x - 1))
    assert not is_halved(product, x, w) and not is_halved(skewed, x)

    @po.op
    def moved(x: f32[K, N]):
        y, p, q = po.tensor("y"), po.index("p", extent=N - 1), po.index("q", extent=N - 1)
        y[p, q] += x[k, p + 1] * x[k, q]
        return y

    @po.op
    def padded(x: f32[K, N]):
        y, p, q = po.tensor("y"), po.index("p", extent=N), po.index("q", extent=N + 2)
        y[p, q] += x.pad(0)[k, p] * x.pad(0)[k, q]
        return y

    @po.op
    def triangle(x: f32[K, N]):
        y = po.tensor("y")
        y[i, j] += po.when(j < i + 3, x[k, i] * x[k, j])
        return y

    for operator, wanted in (
        (moved, x[:, 1:].T @ x[:, :-1]),
        (padded, np.pad(x.T @ x, ((0, 0), (0, 2)))),
        (triangle, np.tril(x.T @ x, 2)),
    ):
        np.testing.assert_array_equal(operator(x), wanted)
        assert not is_halved(operator, x)


def test_what_is_not_worth_it_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    for operator, dtype in ((integers, np.int32), (halves, np.float16)):
        y = numbers(13, 13, dtype=dtype)
        np.testing.assert_allclose(operator(y), operator.reference(y), rtol=1e-3)
        assert not is_halved(operator, y)
    for name, value in (("LEAST_SIDE", 16), ("LEAST_TERMS", 21), ("LEAST_PRODUCTS", 4501), ("MOST_BYTES", 899)):
        with monkeypatch.context() as patch:
            patch.setattr(symmetric, name, value)
            x = numbers(20, 15)
            np.testing.assert_array_equal(gram(x), x.T @ x)
            assert not is_halved(gram, x), name


@pytest.mark.parametrize("spec", ["bki,bkj->bij", "kib,kjb->ijb", "bki,bkj->ibj"])
def test_with_a_third_axis_it_stays_whole(spec: str) -> None:
    @po.op
    def several(x: f32[B, M, N]):
        return po.einsum(spec, x, x)

    x = numbers(5, 6, 7)
    np.testing.assert_array_equal(several(x), np.einsum(spec, x, x))
    assert not is_halved(several, x)


def test_rows_that_are_reduced_stay_whole() -> None:
    @po.op
    def attention(x: f32[N, K]):
        return po.softmax(x @ x.T, axis=-1)

    @po.op
    def twice(x: f32[N, K]):
        y, z = po.tensors("y z")
        y[i, j] += x[i, k] * x[j, k]
        z[i, j] = y[i, j] + y[j, i]
        return z

    x = numbers(30, 20) / 8
    scores = np.exp(x @ x.T - (x @ x.T).max(1, keepdims=True))
    np.testing.assert_allclose(attention(x), scores / scores.sum(1, keepdims=True), rtol=1e-5)
    np.testing.assert_array_equal(twice(x), 2 * (x @ x.T))
    assert not is_halved(attention, x) and not is_halved(twice, x)


def test_recurrences_and_several_definitions_stay_whole() -> None:
    s = po.index("s", extent=2)

    @po.op
    def squared(x: f64[N, N]):
        u = po.tensor("u")
        u[0, i, j] = x[i, j]
        u[s + 1, i, j] = po.sum(u[s, i, k] * u[s, j, k], k)
        return u[2]

    @po.op
    def of_itself(x: f64[N, N]):
        """Each row of the triangle from the ones before: no half is known ahead of the other."""
        y = po.tensor("y")
        y[i, j] = x[i, j] - po.sum(y[i, k] * y[j, k], k, where=(k < i) & (k < j))
        return y

    @po.op
    def onto(x: f64[N, N]):
        y = po.tensor("y")
        y[i, j] = x[i, j]
        y[i, j] += x[i, k] * x[j, k]
        return y

    x = numbers(130, 130, dtype=np.float64) / 4
    np.testing.assert_array_equal(squared(x), (x @ x.T) @ (x @ x.T).T)
    np.testing.assert_array_equal(onto(x), x + x @ x.T)
    assert not is_halved(squared, x) and not is_halved(onto, x) and not is_halved(of_itself, x)


def test_what_follows_reads_the_half() -> None:
    @po.op
    def kernel(x: f32[N, K]):
        """Of an exponential of distances: only half of the products are ever stored."""
        y, z = po.tensors("y z")
        y[i, j] += x[i, k] * x[j, k]
        z[i, j] = po.exp(0.01 * y[i, j])
        return z

    x = numbers(140, 130)
    np.testing.assert_allclose(kernel(x), np.exp(0.01 * (x @ x.T)), rtol=1e-5)
    assert is_halved(kernel, x) and [t.name for t in kernel.lower(x).rewritten.tensors] == ["x", "z", "y_half"]


def test_into_a_given_array() -> None:
    x = numbers(256, 256)
    out = np.zeros((256, 512), np.float32)[:, ::2]
    gram(x, out=out)
    np.testing.assert_array_equal(out, x.T @ x)
    own = x.copy()
    gram(own, out=own)
    np.testing.assert_array_equal(own, x.T @ x)
    assert is_halved(gram, x)
