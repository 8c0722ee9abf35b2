"""linear-algebra/solvers: cholesky, durbin, gramschmidt, lu, ludcmp, trisolv."""

from __future__ import annotations

import numpy as np

import polyopt as po
from polyopt import f64
from tests.polybench.kernel import Array, Inputs, Kernel, extents

M, N = po.sizes("M N")
i, j, k = po.indices("i j k")


@po.op
def cholesky(A: f64[N, N]):
    """A = L L', from the lower triangle of A."""
    L = po.tensor("L")
    L[i, j] = po.when(j < i, (A[i, j] - po.sum(L[i, k] * L[j, k], k, where=k < j)) / L[j, j])
    L[i, i] = po.sqrt(A[i, i] - po.sum(L[i, k] * L[i, k], k, where=k < i))
    L[i, j] = po.when(j > i, 0)
    return L


def cholesky_loops(A: Array) -> Array:
    A = A.copy()
    for i in range(len(A)):
        for j in range(i):
            for k in range(j):
                A[i, j] -= A[i, k] * A[j, k]
            A[i, j] /= A[j, j]
        for k in range(i):
            A[i, i] -= A[i, k] * A[i, k]
        A[i, i] = np.sqrt(A[i, i])
    return np.tril(A)


def cholesky_inputs(n: int, rng: np.random.Generator) -> Inputs:
    B = rng.random((n, n))
    return (B @ B.T + n * np.eye(n),)


@po.op
def durbin(r: f64[N]):
    """The Toeplitz system with first column 1, r[0], ..., r[N - 2] and right side -r, by Levinson's recursion."""
    k, i = po.index("k", extent=N), po.index("i", extent=N)
    a, b, y = po.tensors("a b y")
    b[k] = po.where(k == 0, 1, (1 - a[k - 1] ** 2) * b[k - 1])
    a[k] = -(r[k] + po.sum(r[k - 1 - i] * y[k - 1, i], i, where=i < k)) / b[k]
    y[k, i] = po.when(i < k, y[k - 1, i] + a[k] * y[k - 1, k - 1 - i])
    y[k, k] = a[k]
    return y[N - 1]


def durbin_loops(r: Array) -> Array:
    y = np.zeros(len(r))
    y[0] = alpha = -r[0]
    beta = 1.0
    for k in range(1, len(r)):
        beta = (1 - alpha * alpha) * beta
        total = 0.0
        for i in range(k):
            total += r[k - i - 1] * y[i]
        alpha = -(r[k] + total) / beta
        z = y.copy()
        for i in range(k):
            z[i] = y[i] + alpha * y[k - i - 1]
        y = z
        y[k] = alpha
    return y


def durbin_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return (rng.uniform(-0.5, 0.5, n) / np.arange(2, n + 2),)


@po.op
def gramschmidt(A: f64[M, N]):
    """A = Q R by modified Gram-Schmidt; V[k] is A without its components along the first k columns of Q."""
    k = po.index("k", extent=N)
    V, Q, R = po.tensors("V Q R")
    V[0, i, j] = A[i, j]
    V[k + 1, i, j] = po.when(j > k, V[k, i, j] - Q[i, k] * R[k, j])
    R[k, k] = po.sqrt(po.sum(V[k, i, k] ** 2, i))
    R[k, j] = po.when(j > k, po.sum(Q[i, k] * V[k, i, j], i))
    R[k, j] = po.when(j < k, 0)
    Q[i, k] = V[k, i, k] / R[k, k]
    return Q, R


def gramschmidt_loops(A: Array) -> tuple[Array, ...]:
    A = A.copy()
    m, n = A.shape
    Q, R = np.zeros((m, n)), np.zeros((n, n))
    for k in range(n):
        norm = 0.0
        for i in range(m):
            norm += A[i, k] * A[i, k]
        R[k, k] = np.sqrt(norm)
        Q[:, k] = A[:, k] / R[k, k]
        for j in range(k + 1, n):
            for i in range(m):
                R[k, j] += Q[i, k] * A[i, j]
            A[:, j] -= Q[:, k] * R[k, j]
    return Q, R


def gramschmidt_inputs(n: int, rng: np.random.Generator) -> Inputs:
    n, m, _, _ = extents(n)
    return (rng.random((m, n)) + n * np.eye(m, n),)


@po.op
def lu(A: f64[N, N]):
    """A = L U in one tensor: U on and above the diagonal, L with its unit diagonal left out below."""
    F = po.tensor("F")
    F[i, j] = po.when(j < i, (A[i, j] - po.sum(F[i, k] * F[k, j], k, where=k < j)) / F[j, j])
    F[i, j] = po.when(j >= i, A[i, j] - po.sum(F[i, k] * F[k, j], k, where=k < i))
    return F


def lu_loops(A: Array) -> Array:
    A = A.copy()
    for i in range(len(A)):
        for j in range(i):
            for k in range(j):
                A[i, j] -= A[i, k] * A[k, j]
            A[i, j] /= A[j, j]
        for k in range(i):
            A[i, i:] -= A[i, k] * A[k, i:]
    return A


def lu_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return (rng.random((n, n)) + n * np.eye(n),)


@po.op
def ludcmp(A: f64[N, N], b: f64[N]):
    """A x = b by A = L U, L y = b, U x = y."""
    L, U, y, x = po.tensors("L U y x")
    U[i, j] = po.when(i <= j, A[i, j] - po.sum(L[i, k] * U[k, j], k, where=k < i))
    L[i, j] = po.when(i > j, (A[i, j] - po.sum(L[i, k] * U[k, j], k, where=k < j)) / U[j, j])
    y[i] = b[i] - po.sum(L[i, j] * y[j], j, where=j < i)
    x[i] = (y[i] - po.sum(U[i, j] * x[j], j, where=j > i)) / U[i, i]
    return x


def ludcmp_loops(A: Array, b: Array) -> Array:
    F = lu_loops(A)
    n = len(b)
    y, x = np.zeros(n), np.zeros(n)
    for i in range(n):
        w = b[i]
        for j in range(i):
            w -= F[i, j] * y[j]
        y[i] = w
    for i in reversed(range(n)):
        w = y[i]
        for j in range(i + 1, n):
            w -= F[i, j] * x[j]
        x[i] = w / F[i, i]
    return x


def ludcmp_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return rng.random((n, n)) + n * np.eye(n), rng.random(n)


@po.op
def trisolv(L: f64[N, N], b: f64[N]):
    """L x = b for a lower triangular L."""
    x = po.tensor("x")
    x[i] = (b[i] - po.sum(L[i, j] * x[j], j, where=j < i)) / L[i, i]
    return x


def trisolv_loops(L: Array, b: Array) -> Array:
    x = np.zeros(len(b))
    for i in range(len(b)):
        x[i] = b[i]
        for j in range(i):
            x[i] -= L[i, j] * x[j]
        x[i] = x[i] / L[i, i]
    return x


def trisolv_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return np.tril(rng.random((n, n))) + n * np.eye(n), rng.random(n)


KERNELS = (
    Kernel("cholesky", cholesky, cholesky_loops, cholesky_inputs),
    Kernel("durbin", durbin, durbin_loops, durbin_inputs),
    Kernel("gramschmidt", gramschmidt, gramschmidt_loops, gramschmidt_inputs),
    Kernel("lu", lu, lu_loops, lu_inputs),
    Kernel("ludcmp", ludcmp, ludcmp_loops, ludcmp_inputs),
    Kernel("trisolv", trisolv, trisolv_loops, trisolv_inputs),
)
