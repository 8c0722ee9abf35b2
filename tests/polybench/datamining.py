"""datamining: correlation, covariance."""

from __future__ import annotations

import numpy as np

import polyopt as po
from polyopt import f64
from tests.polybench.kernel import Array, Inputs, Kernel, extents

M, N = po.sizes("M N")
i, j, k = po.indices("i j k")


@po.op
def correlation(data: f64[N, M]):
    """N observations of M variables; a deviation near zero counts as one."""
    mean, variance, sigma, z = po.tensors("mean variance sigma z")
    corr = po.tensor("corr", shape=(M, M))
    mean[j] = po.mean(data[i, j], i)
    variance[j] = po.mean((data[i, j] - mean[j]) ** 2, i)
    sigma[j] = po.where(po.sqrt(variance[j]) <= 0.1, 1, po.sqrt(variance[j]))
    z[i, j] = (data[i, j] - mean[j]) / (po.sqrt(po.cast(N, f64)) * sigma[j])
    corr[i, j] = po.when(i < j, po.sum(z[k, i] * z[k, j], k))
    corr[j, i] = po.when(i < j, corr[i, j])
    corr[i, i] = 1
    return corr


def correlation_loops(data: Array) -> Array:
    data = data.copy()
    n, m = data.shape
    mean, sigma = np.zeros(m), np.zeros(m)
    for j in range(m):
        for i in range(n):
            mean[j] += data[i, j]
        mean[j] /= n
        for i in range(n):
            sigma[j] += (data[i, j] - mean[j]) * (data[i, j] - mean[j])
        sigma[j] = np.sqrt(sigma[j] / n)
        sigma[j] = 1.0 if sigma[j] <= 0.1 else sigma[j]
    for i in range(n):
        data[i] = (data[i] - mean) / (np.sqrt(n) * sigma)
    corr = np.eye(m)
    for i in range(m - 1):
        for j in range(i + 1, m):
            for k in range(n):
                corr[i, j] += data[k, i] * data[k, j]
            corr[j, i] = corr[i, j]
    return corr


def correlation_inputs(n: int, rng: np.random.Generator) -> Inputs:
    m, n, _, _ = extents(n)
    return (rng.normal(size=(n, m)),)


@po.op
def covariance(data: f64[N, M]):
    """N observations of M variables; N > 1."""
    mean, z, cov = po.tensors("mean z cov")
    mean[j] = po.sum(data[i, j], i) / N
    z[i, j] = data[i, j] - mean[j]
    cov[i, j] = po.when(i <= j, po.sum(z[k, i] * z[k, j], k) / (N - 1))
    cov[j, i] = po.when(i < j, cov[i, j])
    return cov


def covariance_loops(data: Array) -> Array:
    data = data.copy()
    n, m = data.shape
    mean = np.zeros(m)
    for j in range(m):
        for i in range(n):
            mean[j] += data[i, j]
        mean[j] /= n
    for i in range(n):
        data[i] -= mean
    cov = np.zeros((m, m))
    for i in range(m):
        for j in range(i, m):
            for k in range(n):
                cov[i, j] += data[k, i] * data[k, j]
            cov[i, j] /= n - 1
            cov[j, i] = cov[i, j]
    return cov


def covariance_inputs(n: int, rng: np.random.Generator) -> Inputs:
    m, n, _, _ = extents(n)
    return (rng.normal(size=(n + 1, m)),)


KERNELS = (
    Kernel("correlation", correlation, correlation_loops, correlation_inputs),
    Kernel("covariance", covariance, covariance_loops, covariance_inputs),
)
