"""Systems of linear equations: substitution, elimination, factorisation, sweeps."""

from __future__ import annotations

import numpy as np

import polyopt as po
from tests.operators.operator import PRECISE, Array, Draw, Operator

i, j, k = po.indices("i j k")


@po.op
def triangular_solve(a, c):
    """A x = c for several right sides."""
    x = po.tensor("x")
    x[i, j] = (c[i, j] - po.sum(a[i, k] * x[k, j], k, where=k < i)) / a[i, i]
    return x


def well_conditioned(draw: Draw, n: int) -> Array:
    """A matrix with a dominant diagonal."""
    return draw.exactly(draw.random.uniform(-1, 1, (n, n)) / max(n, 1) + 2 * np.eye(n))


def symmetric(draw: Draw, n: int) -> Array:
    """A symmetric matrix with eigenvalues from 1 to 3, so positive definite."""
    values = draw.random.uniform(-1, 1, (n, n)) / max(n, 1)
    return draw.exactly((values + values.T) / 2 + 2 * np.eye(n))


@po.op
def cholesky(a):
    """A = L L' of a symmetric positive definite matrix."""
    L = po.tensor("L")
    L[i, j] = po.when(j < i, (a[i, j] - po.sum(L[i, k] * L[j, k], k, where=k < j)) / L[j, j])
    L[i, i] = po.sqrt(a[i, i] - po.sum(L[i, k] * L[i, k], k, where=k < i))
    L[i, j] = po.when(j > i, 0)
    return L


@po.op
def tridiagonal_solve(below, diagonal, above, c):
    """Thomas' algorithm: elimination forwards, substitution backwards."""
    n = c.shape[0]
    p, q, x = po.tensors("p q x")
    p[i] = above[i] / (diagonal[i] - po.where(i == 0, 0, below[i] * p.pad(0)[i - 1]))
    q[i] = (c[i] - below[i] * q.pad(0)[i - 1]) / (diagonal[i] - below[i] * p.pad(0)[i - 1])
    x[i] = q[i] - po.where(i < n - 1, p[i] * x.pad(0)[i + 1], 0)
    return x


def tridiagonal_solve_numpy(below: Array, diagonal: Array, above: Array, c: Array) -> Array:
    a = np.diag(diagonal) + np.diag(below[1:], -1) + np.diag(above[: len(c) - 1], 1) if len(c) else np.zeros((0, 0))
    return np.linalg.solve(a, c) if len(c) else c


@po.op
def gauss_seidel(a, c, steps: int):
    """Sweeps of x_i = (c_i - sum of a_ij x_j) / a_ii, using what this sweep has already found."""
    t = po.index("t", extent=steps)
    x = po.tensor("x")
    x[0, i] = 0
    x[t + 1, i] = (
        c[i] - po.sum(a[i, j] * x[t + 1, j], j, where=j < i) - po.sum(a[i, j] * x[t, j], j, where=j > i)
    ) / a[i, i]
    return x[steps]


def gauss_seidel_numpy(a: Array, c: Array, steps: int) -> Array:
    x = np.zeros_like(c)
    for _ in range(steps):
        for i in range(len(c)):
            x[i] = (c[i] - a[i, :i] @ x[:i] - a[i, i + 1 :] @ x[i + 1 :]) / a[i, i]
    return x


OPERATORS = (
    Operator(
        "triangular_solve",
        triangular_solve,
        lambda a, c: np.linalg.solve(np.tril(a), c),
        lambda draw, m, n: (well_conditioned(draw, m), draw(m, n)),
        {"M": 16, "N": 16},
        PRECISE,
    ),
    Operator(
        "cholesky",
        cholesky,
        np.linalg.cholesky,
        lambda draw, n: (symmetric(draw, n),),
        {"N": 16},
        PRECISE,
    ),
    Operator(
        "tridiagonal_solve",
        tridiagonal_solve,
        tridiagonal_solve_numpy,
        lambda draw, n: (draw(n), draw.exactly(np.full(n, 3.0)), draw(n), draw(n)),
        {"N": 64},
        PRECISE,
    ),
    Operator(
        "gauss_seidel",
        gauss_seidel,
        gauss_seidel_numpy,
        lambda draw, n: (well_conditioned(draw, n), draw(n), 3),
        {"N": 16},
        PRECISE,
    ),
)
