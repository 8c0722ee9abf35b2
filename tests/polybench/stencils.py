"""stencils: adi, fdtd-2d, heat-3d, jacobi-1d, jacobi-2d, seidel-2d.

The first dimension of every state is time. PolyBench's Jacobi kernels and heat-3d make two steps per turn of
their time loop; here `steps` counts single steps.
"""

from __future__ import annotations

import numpy as np

import polyopt as po
from polyopt import f64
from tests.polybench.kernel import Array, Inputs, Kernel, extents, steps_for

M, N, T = po.sizes("M N T")
i, j, k = po.indices("i j k")


@po.op
def jacobi_1d(a: f64[N], steps: int):
    t = po.index("t", extent=steps)
    u = po.tensor("u")
    u[0, i] = a[i]
    u[t + 1, i] = po.where((i > 0) & (i < N - 1), 0.33333 * (u[t, i - 1] + u[t, i] + u[t, i + 1]), u[t, i])
    return u[steps]


def jacobi_1d_loops(a: Array, steps: int) -> Array:
    a = a.copy()
    for _ in range(steps):
        b = a.copy()
        for i in range(1, len(a) - 1):
            b[i] = 0.33333 * (a[i - 1] + a[i] + a[i + 1])
        a = b
    return a


def jacobi_1d_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return rng.random(n), steps_for(n)


@po.op
def jacobi_2d(a: f64[N, N], steps: int):
    t = po.index("t", extent=steps)
    u = po.tensor("u")
    inside = (i > 0) & (i < N - 1) & (j > 0) & (j < N - 1)
    u[0, i, j] = a[i, j]
    u[t + 1, i, j] = po.when(
        inside, 0.2 * (u[t, i, j] + u[t, i, j - 1] + u[t, i, j + 1] + u[t, i + 1, j] + u[t, i - 1, j])
    )
    u[t + 1, i, j] = po.when(~inside, u[t, i, j])
    return u[steps]


def jacobi_2d_loops(a: Array, steps: int) -> Array:
    a = a.copy()
    for _ in range(steps):
        b = a.copy()
        for i in range(1, len(a) - 1):
            for j in range(1, len(a) - 1):
                b[i, j] = 0.2 * (a[i, j] + a[i, j - 1] + a[i, j + 1] + a[i + 1, j] + a[i - 1, j])
        a = b
    return a


def jacobi_2d_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return rng.random((n, n)), steps_for(n)


@po.op
def heat_3d(a: f64[N, N, N], steps: int):
    t = po.index("t", extent=steps)
    u = po.tensor("u")
    inside = (i > 0) & (i < N - 1) & (j > 0) & (j < N - 1) & (k > 0) & (k < N - 1)
    u[0, i, j, k] = a[i, j, k]
    u[t + 1, i, j, k] = po.where(
        inside,
        u[t, i, j, k]
        + 0.125 * (u[t, i + 1, j, k] - 2 * u[t, i, j, k] + u[t, i - 1, j, k])
        + 0.125 * (u[t, i, j + 1, k] - 2 * u[t, i, j, k] + u[t, i, j - 1, k])
        + 0.125 * (u[t, i, j, k + 1] - 2 * u[t, i, j, k] + u[t, i, j, k - 1]),
        u[t, i, j, k],
    )
    return u[steps]


def heat_3d_loops(a: Array, steps: int) -> Array:
    a = a.copy()
    n = len(a)
    for _ in range(steps):
        b = a.copy()
        for i in range(1, n - 1):
            for j in range(1, n - 1):
                line = a[i, j, 1:-1]
                b[i, j, 1:-1] = (
                    0.125 * (a[i + 1, j, 1:-1] - 2 * line + a[i - 1, j, 1:-1])
                    + 0.125 * (a[i, j + 1, 1:-1] - 2 * line + a[i, j - 1, 1:-1])
                    + 0.125 * (a[i, j, 2:] - 2 * line + a[i, j, :-2])
                    + line
                )
        a = b
    return a


def heat_3d_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return rng.random((n, n, n)), steps_for(n)


@po.op
def seidel_2d(a: f64[N, N], steps: int):
    """Above and to the left the values are this step's, below and to the right the step's before."""
    t = po.index("t", extent=steps)
    u = po.tensor("u")
    inside = (i > 0) & (i < N - 1) & (j > 0) & (j < N - 1)
    u[0, i, j] = a[i, j]
    u[t + 1, i, j] = po.where(
        inside,
        (
            (u[t + 1, i - 1, j - 1] + u[t + 1, i - 1, j] + u[t + 1, i - 1, j + 1])
            + (u[t + 1, i, j - 1] + u[t, i, j] + u[t, i, j + 1])
            + (u[t, i + 1, j - 1] + u[t, i + 1, j] + u[t, i + 1, j + 1])
        )
        / 9,
        u[t, i, j],
    )
    return u[steps]


def seidel_2d_loops(a: Array, steps: int) -> Array:
    a = a.copy()
    for _ in range(steps):
        for i in range(1, len(a) - 1):
            for j in range(1, len(a) - 1):
                a[i, j] = a[i - 1 : i + 2, j - 1 : j + 2].sum() / 9
    return a


def seidel_2d_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return rng.random((n, n)), steps_for(n)


@po.op
def fdtd_2d(ex: f64[M, N], ey: f64[M, N], hz: f64[M, N], source: f64[T], steps: int):
    """Maxwell's equations in two dimensions; `source[t]` drives the first row of ey."""
    t = po.index("t", extent=steps)
    i, j = po.index("i", extent=M), po.index("j", extent=N)
    Ex, Ey, Hz = po.tensors("Ex Ey Hz")
    Ex[0, i, j] = ex[i, j]
    Ey[0, i, j] = ey[i, j]
    Hz[0, i, j] = hz[i, j]
    Ey[t + 1, i, j] = po.where(i == 0, source[t], Ey[t, i, j] - 0.5 * (Hz[t, i, j] - Hz[t, i - 1, j]))
    Ex[t + 1, i, j] = po.where(j == 0, Ex[t, i, j], Ex[t, i, j] - 0.5 * (Hz[t, i, j] - Hz[t, i, j - 1]))
    Hz[t + 1, i, j] = po.where(
        (i < M - 1) & (j < N - 1),
        Hz[t, i, j] - 0.7 * (Ex[t + 1, i, j + 1] - Ex[t + 1, i, j] + Ey[t + 1, i + 1, j] - Ey[t + 1, i, j]),
        Hz[t, i, j],
    )
    return Ex[steps], Ey[steps], Hz[steps]


def fdtd_2d_loops(ex: Array, ey: Array, hz: Array, source: Array, steps: int) -> tuple[Array, ...]:
    ex, ey, hz = ex.copy(), ey.copy(), hz.copy()
    m, n = ex.shape
    for t in range(steps):
        ey[0] = source[t]
        for i in range(1, m):
            ey[i] -= 0.5 * (hz[i] - hz[i - 1])
        for i in range(m):
            ex[i, 1:] -= 0.5 * (hz[i, 1:] - hz[i, :-1])
        for i in range(m - 1):
            hz[i, :-1] -= 0.7 * (ex[i, 1:] - ex[i, :-1] + ey[i + 1, :-1] - ey[i, :-1])
    return ex, ey, hz


def fdtd_2d_inputs(n: int, rng: np.random.Generator) -> Inputs:
    m, n, _, _ = extents(n)
    return *(rng.random((m, n)) for _ in range(3)), rng.random(steps_for(n)), steps_for(n)


@po.op
def adi(a: f64[N, N], steps: int):
    """Alternating directions: v solves a tridiagonal system along each column, then u along each row.

    The elimination coefficients p and r depend neither on time nor on the line.
    """
    t = po.index("t", extent=steps)
    n = po.cast(N, f64)
    mul1, mul2 = 2 * n * n / steps, n * n / steps
    a1, b1, a2, b2 = -mul1 / 2, 1 + mul1, -mul2 / 2, 1 + mul2
    column, row = po.index("column", 1, N - 1), po.index("row", 1, N - 1)

    u, v = po.tensors("u v")
    p, r = po.tensor("p", shape=(N,)), po.tensor("r", shape=(N,))
    q, s = po.tensor("q", shape=(steps, N, N)), po.tensor("s", shape=(steps, N, N))
    u[0, i, j] = a[i, j]
    p[0] = 0.0
    p[row] = -a1 / (a1 * p[row - 1] + b1)
    q[t, column, 0] = 1.0
    q[t, column, row] = (
        -a2 * u[t, row, column - 1]
        + (1 + 2 * a2) * u[t, row, column]
        - a2 * u[t, row, column + 1]
        - a1 * q[t, column, row - 1]
    ) / (a1 * p[row - 1] + b1)
    v[t, 0, column] = 1.0
    v[t, N - 1, column] = 1.0
    v[t, row, column] = p[row] * v[t, row + 1, column] + q[t, column, row]

    r[0] = 0.0
    r[column] = -a2 / (a2 * r[column - 1] + b2)
    s[t, row, 0] = 1.0
    s[t, row, column] = (
        -a1 * v[t, row - 1, column]
        + (1 + 2 * a1) * v[t, row, column]
        - a1 * v[t, row + 1, column]
        - a2 * s[t, row, column - 1]
    ) / (a2 * r[column - 1] + b2)
    u[t + 1, i, j] = po.when((i == 0) | (i == N - 1), u[t, i, j])
    u[t + 1, row, 0] = 1.0
    u[t + 1, row, N - 1] = 1.0
    u[t + 1, row, column] = r[column] * u[t + 1, row, column + 1] + s[t, row, column]
    return u[steps]


def adi_loops(a: Array, steps: int) -> Array:
    u = a.copy()
    n = len(u)
    v, p, q = np.zeros((n, n)), np.zeros((n, n)), np.zeros((n, n))
    mul1, mul2 = 2.0 / steps * n * n, 1.0 / steps * n * n
    a1, b1, a2, b2 = -mul1 / 2, 1 + mul1, -mul2 / 2, 1 + mul2
    for _ in range(steps):
        for i in range(1, n - 1):
            v[0, i], p[i, 0], q[i, 0] = 1.0, 0.0, 1.0
            for j in range(1, n - 1):
                p[i, j] = -a1 / (a1 * p[i, j - 1] + b1)
                q[i, j] = (-a2 * u[j, i - 1] + (1 + 2 * a2) * u[j, i] - a2 * u[j, i + 1] - a1 * q[i, j - 1]) / (
                    a1 * p[i, j - 1] + b1
                )
            v[n - 1, i] = 1.0
            for j in reversed(range(1, n - 1)):
                v[j, i] = p[i, j] * v[j + 1, i] + q[i, j]
        for i in range(1, n - 1):
            u[i, 0], p[i, 0], q[i, 0] = 1.0, 0.0, 1.0
            for j in range(1, n - 1):
                p[i, j] = -a2 / (a2 * p[i, j - 1] + b2)
                q[i, j] = (-a1 * v[i - 1, j] + (1 + 2 * a1) * v[i, j] - a1 * v[i + 1, j] - a2 * q[i, j - 1]) / (
                    a2 * p[i, j - 1] + b2
                )
            u[i, n - 1] = 1.0
            for j in reversed(range(1, n - 1)):
                u[i, j] = p[i, j] * u[i, j + 1] + q[i, j]
    return u


def adi_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return rng.random((n, n)), steps_for(n)


KERNELS = (
    Kernel("adi", adi, adi_loops, adi_inputs),
    Kernel("fdtd-2d", fdtd_2d, fdtd_2d_loops, fdtd_2d_inputs),
    Kernel("heat-3d", heat_3d, heat_3d_loops, heat_3d_inputs),
    Kernel("jacobi-1d", jacobi_1d, jacobi_1d_loops, jacobi_1d_inputs),
    Kernel("jacobi-2d", jacobi_2d, jacobi_2d_loops, jacobi_2d_inputs),
    Kernel("seidel-2d", seidel_2d, seidel_2d_loops, seidel_2d_inputs),
)
