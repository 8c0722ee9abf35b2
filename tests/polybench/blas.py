"""linear-algebra/blas: gemm, gemver, gesummv, symm, syr2k, syrk, trmm."""

from __future__ import annotations

import numpy as np

import polyopt as po
from polyopt import f64
from tests.polybench.kernel import Array, Inputs, Kernel, extents

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")


@po.op
def gemm(alpha: f64, beta: f64, A: f64[M, K], B: f64[K, N], C: f64[M, N]):
    D = po.tensor("D")
    D[i, j] = beta * C[i, j]
    D[i, j] += alpha * A[i, k] * B[k, j]
    return D


def gemm_loops(alpha: float, beta: float, A: Array, B: Array, C: Array) -> Array:
    C = C.copy()
    for i in range(C.shape[0]):
        C[i] *= beta
        for k in range(A.shape[1]):
            C[i] += alpha * A[i, k] * B[k]
    return C


def gemm_inputs(n: int, rng: np.random.Generator) -> Inputs:
    m, n, p, _ = extents(n)
    return 1.5, 1.2, rng.random((m, p)), rng.random((p, n)), rng.random((m, n))


@po.op
def gemver(alpha: f64, beta: f64, A: f64[N, N], u1: f64[N], v1: f64[N], u2: f64[N], v2: f64[N], y: f64[N], z: f64[N]):
    B, x, w = po.tensors("B x w")
    B[i, j] = A[i, j] + u1[i] * v1[j] + u2[i] * v2[j]
    x[i] = z[i] + po.sum(beta * B[j, i] * y[j], j)
    w[i] = po.sum(alpha * B[i, j] * x[j], j)
    return B, x, w


def gemver_loops(
    alpha: float, beta: float, A: Array, u1: Array, v1: Array, u2: Array, v2: Array, y: Array, z: Array
) -> tuple[Array, ...]:
    A = A.copy()
    n = A.shape[0]
    x, w = np.zeros(n), np.zeros(n)
    for i in range(n):
        A[i] += u1[i] * v1 + u2[i] * v2
    for i in range(n):
        for j in range(n):
            x[i] += beta * A[j, i] * y[j]
    x += z
    for i in range(n):
        for j in range(n):
            w[i] += alpha * A[i, j] * x[j]
    return A, x, w


def gemver_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return 1.5, 1.2, rng.random((n, n)), *(rng.random(n) for _ in range(6))


@po.op
def gesummv(alpha: f64, beta: f64, A: f64[N, N], B: f64[N, N], x: f64[N]):
    y = po.tensor("y")
    y[i] = alpha * po.sum(A[i, j] * x[j], j) + beta * po.sum(B[i, j] * x[j], j)
    return y


def gesummv_loops(alpha: float, beta: float, A: Array, B: Array, x: Array) -> Array:
    n = len(x)
    tmp, y = np.zeros(n), np.zeros(n)
    for i in range(n):
        for j in range(n):
            tmp[i] += A[i, j] * x[j]
            y[i] += B[i, j] * x[j]
        y[i] = alpha * tmp[i] + beta * y[i]
    return y


def gesummv_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return 1.5, 1.2, rng.random((n, n)), rng.random((n, n)), rng.random(n)


@po.op
def symm(alpha: f64, beta: f64, A: f64[M, M], B: f64[M, N], C: f64[M, N]):
    """A is symmetric and only its lower triangle is read."""
    D = po.tensor("D")
    D[i, j] = beta * C[i, j] + alpha * po.sum(po.where(k <= i, A[i, k], A[k, i]) * B[k, j], k)
    return D


def symm_loops(alpha: float, beta: float, A: Array, B: Array, C: Array) -> Array:
    C = C.copy()
    for i in range(C.shape[0]):
        for j in range(C.shape[1]):
            temp = 0.0
            for k in range(i):
                C[k, j] += alpha * B[i, j] * A[i, k]
                temp += B[k, j] * A[i, k]
            C[i, j] = beta * C[i, j] + alpha * B[i, j] * A[i, i] + alpha * temp
    return C


def symm_inputs(n: int, rng: np.random.Generator) -> Inputs:
    m, n, _, _ = extents(n)
    lower = np.tril(rng.random((m, m))) + np.triu(np.full((m, m), np.nan), 1)
    return 1.5, 1.2, lower, rng.random((m, n)), rng.random((m, n))


@po.op
def syrk(alpha: f64, beta: f64, A: f64[N, M], C: f64[N, N]):
    """C is symmetric: its lower triangle is updated, the rest stays as it is."""
    D = po.tensor("D")
    D[i, j] = po.when(j <= i, beta * C[i, j] + po.sum(alpha * A[i, k] * A[j, k], k))
    D[i, j] = po.when(j > i, C[i, j])
    return D


def syrk_loops(alpha: float, beta: float, A: Array, C: Array) -> Array:
    C = C.copy()
    for i in range(C.shape[0]):
        C[i, : i + 1] *= beta
        for k in range(A.shape[1]):
            C[i, : i + 1] += alpha * A[i, k] * A[: i + 1, k]
    return C


def syrk_inputs(n: int, rng: np.random.Generator) -> Inputs:
    n, m, _, _ = extents(n)
    return 1.5, 1.2, rng.random((n, m)), rng.random((n, n))


@po.op
def syr2k(alpha: f64, beta: f64, A: f64[N, M], B: f64[N, M], C: f64[N, N]):
    """C is symmetric: its lower triangle is updated, the rest stays as it is."""
    D = po.tensor("D")
    D[i, j] = po.when(j <= i, beta * C[i, j])
    D[i, j] = po.when(j > i, C[i, j])
    D[i, j] += po.when(j <= i, alpha * (A[j, k] * B[i, k] + B[j, k] * A[i, k]))
    return D


def syr2k_loops(alpha: float, beta: float, A: Array, B: Array, C: Array) -> Array:
    C = C.copy()
    for i in range(C.shape[0]):
        C[i, : i + 1] *= beta
        for k in range(A.shape[1]):
            C[i, : i + 1] += A[: i + 1, k] * alpha * B[i, k] + B[: i + 1, k] * alpha * A[i, k]
    return C


def syr2k_inputs(n: int, rng: np.random.Generator) -> Inputs:
    n, m, _, _ = extents(n)
    return 1.5, 1.2, rng.random((n, m)), rng.random((n, m)), rng.random((n, n))


@po.op
def trmm(alpha: f64, A: f64[M, M], B: f64[M, N]):
    """A is lower triangular with a unit diagonal, used transposed."""
    D = po.tensor("D")
    D[i, j] = alpha * (B[i, j] + po.sum(A[k, i] * B[k, j], k, where=k > i))
    return D


def trmm_loops(alpha: float, A: Array, B: Array) -> Array:
    B = B.copy()
    for i in range(B.shape[0]):
        for j in range(B.shape[1]):
            for k in range(i + 1, B.shape[0]):
                B[i, j] += A[k, i] * B[k, j]
            B[i, j] = alpha * B[i, j]
    return B


def trmm_inputs(n: int, rng: np.random.Generator) -> Inputs:
    m, n, _, _ = extents(n)
    return 1.5, rng.random((m, m)), rng.random((m, n))


KERNELS = (
    Kernel("gemm", gemm, gemm_loops, gemm_inputs),
    Kernel("gemver", gemver, gemver_loops, gemver_inputs),
    Kernel("gesummv", gesummv, gesummv_loops, gesummv_inputs),
    Kernel("symm", symm, symm_loops, symm_inputs),
    Kernel("syr2k", syr2k, syr2k_loops, syr2k_inputs),
    Kernel("syrk", syrk, syrk_loops, syrk_inputs),
    Kernel("trmm", trmm, trmm_loops, trmm_inputs),
)
