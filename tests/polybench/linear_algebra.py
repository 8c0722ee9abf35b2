"""linear-algebra/kernels: 2mm, 3mm, atax, bicg, doitgen, mvt."""

from __future__ import annotations

import numpy as np

import polyopt as po
from polyopt import f64
from tests.polybench.kernel import Array, Inputs, Kernel, extents

M, N, K, L, P = po.sizes("M N K L P")
i, j, k = po.indices("i j k")
p, q, r, s = po.indices("p q r s")


@po.op
def two_mm(alpha: f64, beta: f64, A: f64[M, K], B: f64[K, N], C: f64[N, L], D: f64[M, L]):
    T, E = po.tensors("T E")
    T[i, j] += alpha * A[i, k] * B[k, j]
    E[i, j] = beta * D[i, j]
    E[i, j] += T[i, k] * C[k, j]
    return E


def matmul_loops(A: Array, B: Array) -> Array:
    C = np.zeros((A.shape[0], B.shape[1]))
    for i in range(A.shape[0]):
        for k in range(A.shape[1]):
            C[i] += A[i, k] * B[k]
    return C


def two_mm_loops(alpha: float, beta: float, A: Array, B: Array, C: Array, D: Array) -> Array:
    return beta * D + matmul_loops(matmul_loops(alpha * A, B), C)


def two_mm_inputs(n: int, rng: np.random.Generator) -> Inputs:
    m, n, k, l_ = extents(n)
    return 1.5, 1.2, rng.random((m, k)), rng.random((k, n)), rng.random((n, l_)), rng.random((m, l_))


@po.op
def three_mm(A: f64[M, K], B: f64[K, N], C: f64[N, P], D: f64[P, L]):
    E, F, G = po.tensors("E F G")
    E[i, j] += A[i, k] * B[k, j]
    F[i, j] += C[i, k] * D[k, j]
    G[i, j] += E[i, k] * F[k, j]
    return G


def three_mm_loops(A: Array, B: Array, C: Array, D: Array) -> Array:
    return matmul_loops(matmul_loops(A, B), matmul_loops(C, D))


def three_mm_inputs(n: int, rng: np.random.Generator) -> Inputs:
    m, n, k, l_ = extents(n)
    return rng.random((m, k)), rng.random((k, n)), rng.random((n, m)), rng.random((m, l_))


@po.op
def atax(A: f64[M, N], x: f64[N]):
    t, y = po.tensors("t y")
    t[i] += A[i, j] * x[j]
    y[j] += A[i, j] * t[i]
    return y


def atax_loops(A: Array, x: Array) -> Array:
    y = np.zeros(A.shape[1])
    for i in range(A.shape[0]):
        t = 0.0
        for j in range(A.shape[1]):
            t += A[i, j] * x[j]
        for j in range(A.shape[1]):
            y[j] += A[i, j] * t
    return y


def atax_inputs(n: int, rng: np.random.Generator) -> Inputs:
    m, n, _, _ = extents(n)
    return rng.random((m, n)), rng.random(n)


@po.op
def bicg(A: f64[N, M], p: f64[M], r: f64[N]):
    s, q = po.tensors("s q")
    s[j] += r[i] * A[i, j]
    q[i] += A[i, j] * p[j]
    return s, q


def bicg_loops(A: Array, p: Array, r: Array) -> tuple[Array, ...]:
    n, m = A.shape
    s, q = np.zeros(m), np.zeros(n)
    for i in range(n):
        for j in range(m):
            s[j] += r[i] * A[i, j]
            q[i] += A[i, j] * p[j]
    return s, q


def bicg_inputs(n: int, rng: np.random.Generator) -> Inputs:
    m, n, _, _ = extents(n)
    return rng.random((n, m)), rng.random(m), rng.random(n)


@po.op
def doitgen(A: f64[M, N, P], C: f64[P, P]):
    B = po.tensor("B")
    B[r, q, p] += A[r, q, s] * C[s, p]
    return B


def doitgen_loops(A: Array, C: Array) -> Array:
    A = A.copy()
    for r in range(A.shape[0]):
        for q in range(A.shape[1]):
            total = np.zeros(A.shape[2])
            for s in range(A.shape[2]):
                total += A[r, q, s] * C[s]
            A[r, q] = total
    return A


def doitgen_inputs(n: int, rng: np.random.Generator) -> Inputs:
    m, n, p, _ = extents(n)
    return rng.random((m, n, p)), rng.random((p, p))


@po.op
def mvt(A: f64[N, N], x1: f64[N], x2: f64[N], y1: f64[N], y2: f64[N]):
    z1, z2 = po.tensors("z1 z2")
    z1[i] = x1[i] + po.sum(A[i, j] * y1[j], j)
    z2[i] = x2[i] + po.sum(A[j, i] * y2[j], j)
    return z1, z2


def mvt_loops(A: Array, x1: Array, x2: Array, y1: Array, y2: Array) -> tuple[Array, ...]:
    x1, x2 = x1.copy(), x2.copy()
    for i in range(len(x1)):
        for j in range(len(x1)):
            x1[i] += A[i, j] * y1[j]
            x2[i] += A[j, i] * y2[j]
    return x1, x2


def mvt_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return rng.random((n, n)), *(rng.random(n) for _ in range(4))


KERNELS = (
    Kernel("2mm", two_mm, two_mm_loops, two_mm_inputs),
    Kernel("3mm", three_mm, three_mm_loops, three_mm_inputs),
    Kernel("atax", atax, atax_loops, atax_inputs),
    Kernel("bicg", bicg, bicg_loops, bicg_inputs),
    Kernel("doitgen", doitgen, doitgen_loops, doitgen_inputs),
    Kernel("mvt", mvt, mvt_loops, mvt_inputs),
)
