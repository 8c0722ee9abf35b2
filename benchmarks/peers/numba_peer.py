"""numba: loops over rows and elements, compiled with fast math, threads and reused results."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numba
import numpy as np
from numba import njit, prange

from benchmarks import aligned
from benchmarks.cases import BETA1, BETA2, EPSILON, LEARNING_RATE, Case

VERSION = numba.__version__
F = np.float32
_jit: Any = njit(parallel=True, fastmath=True)
HALF, ONE, CUBE, RATE, EPS = F(0.5), F(1), F(1e-5), F(LEARNING_RATE), F(EPSILON)
B1, C1, B2, C2 = F(BETA1), F(1 - BETA1), F(BETA2), F(1 - BETA2)
ROOT = F(1 / math.sqrt(2))


@_jit
def _softmax(x, out):
    for i in prange(x.shape[0]):
        top = x[i, 0]
        for j in range(x.shape[1]):
            top = max(top, x[i, j])
        total = F(0)
        for j in range(x.shape[1]):
            e = np.exp(x[i, j] - top)
            out[i, j] = e
            total += e
        scale = ONE / total
        for j in range(x.shape[1]):
            out[i, j] *= scale


@_jit
def _layernorm(x, g, b, out):
    for i in prange(x.shape[0]):
        total = F(0)
        for j in range(x.shape[1]):
            total += x[i, j]
        mean = total / F(x.shape[1])
        square = F(0)
        for j in range(x.shape[1]):
            square += (x[i, j] - mean) * (x[i, j] - mean)
        scale = ONE / np.sqrt(square / F(x.shape[1]) + CUBE)
        for j in range(x.shape[1]):
            out[i, j] = (x[i, j] - mean) * scale * g[j] + b[j]


@_jit
def _rmsnorm(x, g, out):
    for i in prange(x.shape[0]):
        square = F(0)
        for j in range(x.shape[1]):
            square += x[i, j] * x[i, j]
        scale = ONE / np.sqrt(square / F(x.shape[1]) + CUBE)
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] * scale * g[j]


@_jit
def _nll(x, target, out):
    loss = 0.0
    for i in prange(x.shape[0]):
        top = x[i, 0]
        for j in range(x.shape[1]):
            top = max(top, x[i, j])
        total = F(0)
        for j in range(x.shape[1]):
            total += np.exp(x[i, j] - top)
        loss += np.log(total) + top - x[i, target[i]]
    out[0] = loss / x.shape[0]


@_jit
def _chain(x, y, out):
    for i in prange(x.shape[0]):
        a = x[i] * y[i] + F(1.5)
        b = np.sqrt(a) + np.exp(-x[i])
        c = np.tanh(b * y[i]) - F(0.25) * a
        out[i] = max(c, F(-1)) / (ONE + y[i] * y[i])


@_jit
def _gelu(x, out):
    for i in prange(x.shape[0]):
        out[i] = HALF * x[i] * (ONE + math.erf(x[i] * ROOT))


@_jit
def _bias_relu(x, b, out):
    for i in prange(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = max(x[i, j] + b[j], F(0))


@_jit
def _adam(p, g, m, v, p2, m2, v2):
    for i in prange(p.shape[0]):
        first = B1 * m[i] + C1 * g[i]
        second = B2 * v[i] + C2 * g[i] * g[i]
        m2[i] = first
        v2[i] = second
        p2[i] = p[i] - RATE * first / (np.sqrt(second) + EPS)


@_jit
def _gemv(x, y, out):
    for i in prange(x.shape[0]):
        total = F(0)
        for j in range(x.shape[1]):
            total += x[i, j] * y[j]
        out[i] = total


@njit(fastmath=True, inline="always")  # type: ignore[misc,unused-ignore]
def _across(x, i, j):
    w = x.shape[1] - 1
    a, b, c, d = max(j - 2, 0), max(j - 1, 0), min(j + 1, w), min(j + 2, w)
    return F(1 / 16) * (x[i, a] + x[i, d]) + F(1 / 4) * (x[i, b] + x[i, c]) + F(3 / 8) * x[i, j]


@_jit
def _blur_rows(x, t):
    h, w = x.shape
    for i in prange(h):
        for j in range(2, w - 2):
            t[i, j] = (
                F(1 / 16) * (x[i, j - 2] + x[i, j + 2]) + F(1 / 4) * (x[i, j - 1] + x[i, j + 1]) + F(3 / 8) * x[i, j]
            )
        for j in (0, 1, w - 2, w - 1):
            t[i, j] = _across(x, i, j)


@_jit
def _blur_columns(t, out):
    h, w = t.shape
    for i in prange(h):
        a, b, c, d = max(i - 2, 0), max(i - 1, 0), min(i + 1, h - 1), min(i + 2, h - 1)
        for j in range(w):
            out[i, j] = F(1 / 16) * (t[a, j] + t[d, j]) + F(1 / 4) * (t[b, j] + t[c, j]) + F(3 / 8) * t[i, j]


@_jit
def _unsharp_columns(x, t, out):
    h, w = t.shape
    for i in prange(h):
        a, b, c, d = max(i - 2, 0), max(i - 1, 0), min(i + 1, h - 1), min(i + 2, h - 1)
        for j in range(w):
            soft = F(1 / 16) * (t[a, j] + t[d, j]) + F(1 / 4) * (t[b, j] + t[c, j]) + F(3 / 8) * t[i, j]
            out[i, j] = min(max(x[i, j] + F(1.5) * (x[i, j] - soft), F(0)), F(1))


@_jit
def _gradients(x, xx, yy, xy):
    for i in prange(x.shape[0] - 2):
        for j in range(x.shape[1] - 2):
            gx = F(0.125) * (
                (x[i, j + 2] - x[i, j]) + 2 * (x[i + 1, j + 2] - x[i + 1, j]) + (x[i + 2, j + 2] - x[i + 2, j])
            )
            gy = F(0.125) * (
                (x[i + 2, j] - x[i, j]) + 2 * (x[i + 2, j + 1] - x[i, j + 1]) + (x[i + 2, j + 2] - x[i, j + 2])
            )
            xx[i, j] = gx * gx
            yy[i, j] = gy * gy
            xy[i, j] = gx * gy


@_jit
def _corners(xx, yy, xy, out):
    for i in prange(out.shape[0]):
        for j in range(out.shape[1]):
            a = F(0)
            b = F(0)
            c = F(0)
            for u in range(3):
                for v in range(3):
                    a += xx[i + u, j + v]
                    b += yy[i + u, j + v]
                    c += xy[i + u, j + v]
            out[i, j] = a * b - c * c - F(0.04) * (a + b) * (a + b)


def _into(function: Any, *shapes: Callable[[Any], tuple[int, ...]]) -> Callable[..., Callable[[], Any]]:
    """Calls that write into results made once."""

    def make(*arrays: Any) -> Callable[[], Any]:
        results = [aligned.empty(shape(arrays[0])) for shape in shapes]

        def call() -> Any:
            function(*arrays, *results)
            return tuple(results)

        return call

    return make


def _adam_in_place(*arrays: Any) -> Callable[[], Any]:
    p, g, m, v = (aligned.copy(array) for array in arrays)

    def call() -> Any:
        _adam(p, g, m, v, p, m, v)
        return p, m, v

    return call


def _same(x: Any) -> tuple[int, ...]:
    return tuple(x.shape)


def _pair(first: Any, second: Any, *, with_input: bool) -> Callable[..., Callable[[], Any]]:
    def make(x: Any) -> Callable[[], Any]:
        between, out = aligned.empty(x.shape), aligned.empty(x.shape)

        def call() -> Any:
            first(x, between)
            if with_input:
                second(x, between, out)
            else:
                second(between, out)
            return (out,)

        return call

    return make


def _harris(x: Any) -> Callable[[], Any]:
    n = x.shape[0]
    products = [aligned.empty((n - 2, n - 2)) for _ in range(3)]
    out = aligned.empty((n - 4, n - 4))

    def call() -> Any:
        _gradients(x, *products)
        _corners(*products, out)
        return (out,)

    return call


_TABLE: Mapping[str, Callable[..., Callable[[], Any]]] = {
    "softmax": _into(_softmax, _same),
    "layernorm": _into(_layernorm, _same),
    "rmsnorm": _into(_rmsnorm, _same),
    "nll": _into(_nll, lambda x: (1,)),
    "chain": _into(_chain, _same),
    "gelu": _into(_gelu, _same),
    "bias_relu": _into(_bias_relu, _same),
    "adam": _adam_in_place,
    "gemv": _into(_gemv, lambda x: (x.shape[0],)),
    "blur": _pair(_blur_rows, _blur_columns, with_input=False),
    "unsharp": _pair(_blur_rows, _unsharp_columns, with_input=True),
    "harris": _harris,
}


def prepare(case: Case, arrays: list[Any]) -> Callable[[], Any] | None:
    return _TABLE[case.kind](*arrays) if case.kind in _TABLE else None
