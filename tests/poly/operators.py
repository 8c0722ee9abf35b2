"""Small operators whose schedules the tests of the polyhedral core look at and spoil."""

from __future__ import annotations

import polyopt as po
from polyopt import f32, f64

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")


@po.op
def product(x: f32[M, K], w: f32[K, N]):
    y, out = po.tensors("y out")
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j], 0)
    return out


@po.op
def linear_relu(x: f32[M, K], w: f32[K, N], b: f32[N]):
    y, out = po.tensors("y out")
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j] + b[j], 0)
    return out


@po.op
def softmax(x: f32[M, N]):
    return po.softmax(x)


@po.op
def layernorm(x: f32[M, N], gamma: f32[N], beta: f32[N]):
    mean, variance, y = po.tensors("mean variance y")
    mean[i] = po.mean(x[i, j], j)
    variance[i] = po.mean((x[i, j] - mean[i]) ** 2, j)
    y[i, j] = (x[i, j] - mean[i]) * po.rsqrt(variance[i] + 1e-5) * gamma[j] + beta[j]
    return y


@po.op
def jacobi_1d(start: f64[N], steps: int):
    u = po.tensor("u")
    t = po.index("t", extent=steps)
    u[0, i] = start[i]
    u[t + 1, i] = po.where((i == 0) | (i == N - 1), u[t, i], u[t, i - 1] + u[t, i] + u[t, i + 1])
    return u[steps]


@po.op
def jacobi_2d(start: f64[M, N], steps: int):
    u = po.tensor("u")
    t = po.index("t", extent=steps)
    u[0, i, j] = start[i, j]
    edge = (i == 0) | (i == M - 1) | (j == 0) | (j == N - 1)
    around = u[t, i, j] + u[t, i - 1, j] + u[t, i + 1, j] + u[t, i, j - 1] + u[t, i, j + 1]
    u[t + 1, i, j] = po.where(edge, u[t, i, j], around / 5)
    return u[steps]


@po.op
def prefix(x: f64[N]):
    s = po.tensor("s")
    t = po.index("t", 1, N)
    s[0] = x[0]
    s[t] = s[t - 1] + x[t]
    return s


@po.op
def gauss_seidel(start: f64[M, N]):
    a = po.tensor("a")
    a[i, j] = po.where((i == 0) | (j == 0), start[i, j], a[i - 1, j] + a[i, j - 1] + start[i, j])
    return a


@po.op
def smith_waterman(same: f32[M, N]):
    h = po.tensor("h")
    i, j = po.index("i", extent=M + 1), po.index("j", extent=N + 1)
    gap = po.maximum(h[i - 1, j], h[i, j - 1]) - 1
    match = h[i - 1, j - 1] + same[i - 1, j - 1]
    h[i, j] = po.where((i == 0) | (j == 0), 0.0, po.maximum(0, po.maximum(match, gap)))
    return h


@po.op
def blurred(x: f32[M, N]):
    across, down = po.tensors("across down")
    across[i, j] = po.sqrt(x[i, j]) + po.sqrt(x[i, j + 1]) + po.sqrt(x[i, j + 2])
    down[i, j] = across[i, j] * across[i + 1, j] * across[i + 2, j]
    return down


@po.op
def ten_steps(x: f32[N]):
    y = x
    for step in range(10):
        y = po.maximum(y * 2.0 + float(step), 0)
    return y


@po.op
def lower_triangle_solve(a: f64[N, N], b: f64[N]):
    x = po.tensor("x")
    x[i] = (b[i] - po.sum(a[i, j] * x[j], j, where=j < i)) / a[i, i]
    return x


@po.op
def histogram(bins: po.i64[N], weights: f64[N], count: int):
    h = po.tensor("h", shape=(count,), dtype=f64)
    h[bins[i]] += weights[i]
    return h


@po.op
def shifted(x: f32[M, N], b: f32[N]):
    y = po.tensor("y")
    y[i, j] = po.maximum(x[i, j] + b[j], 0)
    return y
