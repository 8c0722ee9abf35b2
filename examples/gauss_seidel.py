"""Gauss-Seidel relaxation of Laplace's equation on a square.

Above and to the left stand this sweep's values, below and to the right the last sweep's. The text names them;
the skewed, parallel order follows from it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import polyopt as po
from polyopt import f64

N = po.size("N")
i, j = po.indices("i j")


@po.op
def gauss_seidel(start: f64[N, N], sweeps: int):
    t = po.index("t", extent=sweeps)
    u = po.tensor("u")
    inside = (i > 0) & (i < N - 1) & (j > 0) & (j < N - 1)
    u[0, i, j] = start[i, j]
    u[t + 1, i, j] = po.where(
        inside,
        (u[t + 1, i - 1, j] + u[t + 1, i, j - 1] + u[t, i, j + 1] + u[t, i + 1, j]) / 4,
        u[t, i, j],
    )
    return u[sweeps]


def with_numpy(start: np.ndarray, sweeps: int) -> np.ndarray:
    """Plain loops: NumPy has no whole-array form for values of the same sweep."""
    u = start.tolist()
    for _ in range(sweeps):
        for row, here, following in zip(u, u[1:], u[2:], strict=False):
            for j in range(1, len(here) - 1):
                here[j] = (row[j] + here[j - 1] + here[j + 1] + following[j]) / 4
    return np.array(u)


def demo_case() -> tuple[po.Op, tuple[Any, ...], Any]:
    return gauss_seidel, (np.random.default_rng(0).random((128, 128)), 20), with_numpy


if __name__ == "__main__":
    op, inputs, oracle = demo_case()
    np.testing.assert_allclose(op(*inputs), oracle(*inputs), rtol=1e-10)
    print(op)
    print(op.lower(*inputs).loops)
