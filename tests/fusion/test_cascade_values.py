"""Chains that look as if they ran in one pass with their maximum, at values and in forms where that asks for care."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import bool_, f32, i64

N = K = 192
D = 8
i, j, d, e, a, b, k = po.indices("i j d e a b k")
Array = np.ndarray[Any, Any]
RANDOM = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return RANDOM.standard_normal(shape, np.float32)


def scores(q: Array, keys: Array) -> Array:
    return q.astype("f8") @ keys.T.astype("f8")


def weights(s: Array, axis: int = 1) -> Array:
    found: Array = np.exp(s - s.max(axis, keepdims=True))
    return found


def passes(op: po.Op, *args: Any) -> int:
    """How many one-pass notes the report has; no plan was given up on the way."""
    lowering = op.lower(*args)
    assert not lowering.fallback, lowering.fallback
    return str(lowering.report()).count("in one pass")


# --- values -------------------------------------------------------------------------------------------------------


@po.op
def maximum_of_fewer(q: f32[N, D], keys: f32[K, D], mask: bool_[N, K]) -> object:
    s, m, o = po.tensors("s m o")
    s[i, j] += q[i, d] * keys[j, d]
    m[i] = po.max(po.where(mask[i, j], s[i, j], -np.inf), j)
    o[i] = po.sum(po.exp(s[i, j] - m[i]), j)
    return o


def test_terms_before_the_first_point_of_the_maximum_count() -> None:
    q, keys = normal(N, D), normal(K, D)
    mask = np.zeros((N, K), bool)
    mask[:, 100:] = True
    s = scores(q, keys)
    expected = np.exp(s - np.where(mask, s, -np.inf).max(1)[:, None]).sum(1)
    np.testing.assert_allclose(maximum_of_fewer(q, keys, mask), expected, rtol=1e-4)


@po.op
def other_summand(q: f32[N, D], keys: f32[K, D], t: f32[N, K]) -> object:
    s, m, o = po.tensors("s m o")
    s[i, j] += q[i, d] * keys[j, d]
    m[i] = po.max(s[i, j], j)
    o[i] = po.sum(po.exp(t[i, j] - m[i]), j)
    return o


def test_a_summand_that_the_maximum_does_not_bound_does_not_overflow_on_the_way() -> None:
    q, keys = np.zeros((N, D), np.float32), np.zeros((K, D), np.float32)
    q[:, 0], keys[-1, 0] = 1, 100
    np.testing.assert_array_equal(other_summand(q, keys, np.full((N, K), 100, np.float32)), K)


@po.op
def gathered(q: f32[N, D], keys: f32[K, D], ids: i64[N]) -> object:
    s, m, c, o = po.tensors("s m c o")
    s[i, j] += q[i, d] * keys[j, d]
    m[i] = po.max(s[i, j], j)
    c[i] = m[i] * 1.0
    o[i] = po.sum(po.exp(s[i, j] - c[ids[i]]), j)
    return o


@po.op
def padded(q: f32[N, D], keys: f32[K, D]) -> object:
    s, m, p, o = po.tensors("s m p o")
    jj, jk = po.index("jj", N // 2), po.index("jk", K)
    s[i, j] += q[i, d] * keys[j, d]
    m[i] = po.max(s[i, j], j)
    p[i, jj] = po.exp(s[i, jj] - m[i])
    o[i] = po.sum(p.pad(0)[i, jk], jk)
    return o


def test_the_maximum_of_another_row_and_padded_weights_are_read_as_they_stand() -> None:
    q, keys, ids = normal(N, D) / 2, normal(K, D), RANDOM.permutation(N)
    s = scores(q, keys)
    np.testing.assert_allclose(gathered(q, keys, ids), np.exp(s - s.max(1)[ids][:, None]).sum(1), rtol=1e-4)
    np.testing.assert_allclose(padded(q, keys), weights(s)[:, : N // 2].sum(1), rtol=1e-4)


@po.op
def scaled(q: f32[N, D], keys: f32[K, D], t: f32[K], u: f32[N], v: f32[N], c: f32[N]) -> object:
    s, m, w, x, y, z = po.tensors("s m w x y z")
    s[i, j] += q[i, d] * keys[j, d]
    m[i] = po.max(s[i, j], j)
    w[i] = po.sum(po.exp(s[i, j] - m[i]) * t[j] * t[j], j)
    x[i] = po.sum(po.exp(s[i, j] - m[i]) * t[j] / t[j] * t[j] / t[j], j)
    y[i] = po.sum(po.exp(s[i, j] - m[i]) * u[i] / v[i] * u[i] / v[i], j)
    z[i] = po.sum(po.exp(s[i, j] - m[i]) * c[i], j)
    return w, x, y, z


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_factors_of_a_summand_meet_as_they_are_written() -> None:
    q, keys = np.zeros((N, D), np.float32), np.zeros((K, D), np.float32)
    q[:, 0], keys[1:, 0], keys[5, 0] = 1, -70, -200
    t, u, v, c = (np.full(n, value, np.float32) for n, value in ((K, 1e30), (N, 1e30), (N, 1e29), (N, np.inf)))
    t[0] = 1
    p = weights((q @ keys.T).astype(np.float32))
    big, small, last = u[:, None], v[:, None], c[:, None]
    expected = p * t * t, p * t / t * t / t, p * big / small * big / small, p * last
    for got, want in zip(scaled(q, keys, t, u, v, c), expected, strict=True):
        np.testing.assert_allclose(got, want.sum(1), rtol=1e-4)


@po.op
def guarded(q: f32[N, D], t: f32[50, D], ids: i64[N, K]) -> object:
    s, m, o = po.tensors("s m o")
    s[i, j] = po.when(j <= i, po.sum(q[i, d] * t[ids[i, j], d], d))
    m[i] = po.max(s[i, j], j, where=j <= i)
    o[i] = po.sum(po.exp(s[i, j] - m[i]), j, where=j <= i)
    return o


@po.op
def branch(q: f32[N, D], t: f32[50, D], ids: i64[N, K]) -> object:
    s, m, o = po.tensors("s m o")
    s[i, j] = po.where(j <= i, po.sum(q[i, d] * t[ids[i, j], d], d), -np.inf)
    m[i] = po.max(s[i, j], j)
    o[i] = po.sum(po.exp(s[i, j] - m[i]), j)
    return o


@pytest.mark.parametrize("op", [guarded, branch])
def test_a_subscript_that_no_guard_reaches_may_be_anything(op: po.Op) -> None:
    q, t = normal(N, D), normal(50, D)
    ids = RANDOM.integers(0, 50, (N, K))
    ids[np.triu_indices(N, 1)] = -7
    s = np.where(np.tri(N) > 0, np.einsum("id,ijd->ij", q, t[ids.clip(0)]), -np.inf)
    np.testing.assert_allclose(op(q, t, ids), weights(s).sum(1), rtol=1e-4)


# --- forms --------------------------------------------------------------------------------------------------------


@po.op
def layers(q: f32[N, D], keys: f32[K, D], v: f32[K, D], keys2: f32[K, D]) -> object:
    s, m, o, m2, s2, o3 = po.tensors("s m o m2 s2 o3")
    s[i, j] += q[i, d] * keys[j, d]
    m[i] = po.max(s[i, j], j)
    o[i, d] = po.sum(po.exp(s[i, j] - m[i]) * v[j, d], j) / po.sum(po.exp(s[i, j] - m[i]), j)
    s2[i, j] += o[i, d] * keys2[j, d]
    m2[i] = po.max(s2[i, j], j)
    o3[i, d] = po.sum(po.exp(s2[i, j] - m2[i]) * v[j, d], j) / po.sum(po.exp(s2[i, j] - m2[i]), j)
    return o3


@po.op
def difference(q: f32[N, D], keys: f32[K, D], keys2: f32[K, D], v: f32[K, D]) -> object:
    s, t, m, n, o = po.tensors("s t m n o")
    s[i, j] += q[i, d] * keys[j, d]
    t[i, j] += q[i, d] * keys2[j, d]
    m[i] = po.max(s[i, j], j)
    n[i] = po.max(t[i, j], j)
    o[i, d] = po.sum(po.exp(s[i, j] - m[i]) * v[j, d], j) - po.sum(po.exp(t[i, j] - n[i]) * v[j, d], j)
    return o


def test_two_chains_run_in_one_pass_each() -> None:
    q, keys, keys2, v = normal(N, D), normal(K, D), normal(K, D), normal(K, D)
    p = weights(scores(q, keys))
    first = p @ v / p.sum(1, keepdims=True)
    second = weights(scores(first, keys2))
    np.testing.assert_allclose(
        layers(q, keys, v, keys2), second @ v / second.sum(1, keepdims=True), rtol=1e-3, atol=1e-4
    )
    other = weights(scores(q, keys2))
    np.testing.assert_allclose(difference(q, keys, keys2, v), p @ v - other @ v, rtol=1e-3, atol=1e-3)
    assert passes(layers, q, keys, v, keys2) == passes(difference, q, keys, keys2, v) == 2


@po.op
def relative_values(q: f32[N, D], keys: f32[K, D], v: f32[N, K, 5]) -> object:
    s, m, o = po.tensors("s m o")
    s[i, j] += q[i, d] * keys[j, d]
    m[i] = po.max(s[i, j], j)
    o[i, e] = po.sum(po.exp(s[i, j] - m[i]) * v[i, j, e], j)
    return o


@po.op
def two_depths(q: f32[N, D], keys: f32[K, D], q2: f32[N, 16], keys2: f32[K, 16]) -> object:
    s, s2, m, o = po.tensors("s s2 m o")
    s2[i, j] += q2[i, d] * keys2[j, d]
    s[i, j] += q[i, d] * keys[j, d]
    m[i] = po.max(s2[i, j] + s[i, j], j)
    o[i] = po.sum(po.exp(s2[i, j] + s[i, j] - m[i]), j)
    return o


@po.op
def in_a_branch(q: f32[N, D], keys: f32[K, D]) -> object:
    s, m, o = po.tensors("s m o")
    dd = po.index("dd", D)
    s[i, j] += po.where(dd < D - 1, q[i, dd + 1], 0) * keys[j, dd]
    m[i] = po.max(s[i, j], j)
    o[i] = po.sum(po.exp(s[i, j] - m[i]), j)
    return o


@po.op
def fewer_rows(q: f32[N, D], keys: f32[K, D], v: f32[N - 1, K]) -> object:
    s, m, o = po.tensors("s m o")
    s[i, j] += q[i, d] * keys[j, d]
    m[i] = po.max(s[i, j], j)
    o[i] = po.sum(po.exp(s[i, j] - m[i]) * v[i - 1, j], j)
    return o[1:]


@po.op
def guarded_maximum(q: f32[N, D], keys: f32[K, D], w: f32[N - 1, K]) -> object:
    s, m, o = po.tensors("s m o")
    ii, i2 = po.index("ii", N), po.index("i2", 1, N)
    s[i, j] += q[i, d] * keys[j, d]
    m[ii] = po.when(ii >= 1, po.max(s[ii, j] + w[ii - 1, j], j))
    o[i2] = po.sum(po.exp(s[i2, j] + w[i2 - 1, j] - m[i2]), j)
    return o[1:]


@po.op
def pairs(q: f32[N, D], keys: f32[K, D]) -> object:
    s, m, o = po.tensors("s m o")
    s[i, j] += q[i, d] * keys[j, d]
    m[i] = po.max(s[i, j], j)
    o[a, b] = po.sum(po.exp(s[a, j] - m[a]), j) * po.sum(po.exp(s[b, j] - m[b]), j)
    return o


def moved(q: Array) -> Array:
    return np.concatenate([q[:, 1:], np.zeros((N, 1), np.float32)], 1)


FORMS: dict[str, tuple[po.Op, Callable[..., Array], tuple[tuple[int, ...], ...]]] = {
    "values of each row": (
        relative_values,
        lambda q, k, v: np.einsum("ij,ije->ie", weights(scores(q, k)), v),
        ((N, D), (K, D), (N, K, 5)),
    ),
    "scores of two depths": (
        two_depths,
        lambda q, k, q2, k2: weights(scores(q, k) + scores(q2, k2)).sum(1),
        ((N, D), (K, D), (N, 16), (K, 16)),
    ),
    "a read in a branch": (in_a_branch, lambda q, k: weights(scores(moved(q), k)).sum(1), ((N, D), (K, D))),
    "fewer rows than the maximum": (
        fewer_rows,
        lambda q, k, v: (weights(scores(q, k))[1:] * v).sum(1),
        ((N, D), (K, D), (N - 1, K)),
    ),
    "a guarded maximum": (
        guarded_maximum,
        lambda q, k, w: weights(scores(q, k)[1:] + w).sum(1),
        ((N, D), (K, D), (N - 1, K)),
    ),
    "two rows at once": (
        pairs,
        lambda q, k: np.outer(*[weights(scores(q, k)).sum(1)] * 2),
        ((N, D), (K, D)),
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_unusual_forms_are_right_and_give_up_no_plan(name: str) -> None:
    op, reference, shapes = FORMS[name]
    args = [normal(*shape) for shape in shapes]
    passes(op, *args)
    np.testing.assert_allclose(op(*args), reference(*args), rtol=1e-3, atol=1e-3)


@po.op
def one_guard(x: f32[64, 64], w: f32[64, 512]) -> object:
    y = po.tensor("y")
    y[i, j] = po.sum(po.exp(x[i, k]) * w[k, j], k, where=k < 3) - po.sum(po.exp(x[i, k]) * (w[k, j] + 1), k)
    return y


def test_a_factor_that_two_sums_repeat_is_computed_where_each_has_points() -> None:
    x, w = normal(64, 64), normal(64, 512)
    assert not one_guard.lower(x, w).fallback
    expected = np.exp(x)[:, :3] @ w[:3] - np.exp(x) @ (w + 1)
    np.testing.assert_allclose(one_guard(x, w), expected, rtol=1e-3, atol=1e-3)


def test_a_constant_stays_in_a_running_sum() -> None:
    rows = columns = 192

    @po.op
    def op(q: f32[rows, 8], keys: f32[columns, 8], v: f32[columns]):
        s, largest, y = po.tensors("s largest y")
        s[i, j] += q[i, k] * keys[j, k]
        largest[i] = po.max(s[i, j], j)
        y[i] = po.sum(po.exp(s[i, j] - largest[i]) * v[j] * 0.001, j)
        return y

    q, keys, v = np.zeros((rows, 8), "f4"), np.zeros((columns, 8), "f4"), np.full(columns, 1e37, "f4")
    np.testing.assert_allclose(op(q, keys, v), np.full(rows, 1.92e36), rtol=1e-5)
