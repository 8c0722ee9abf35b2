"""Cholesky factorisation: A = L L' as its textbook recurrence.

Nothing says in which order the elements of L are found; the dependences do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import polyopt as po
from polyopt import f64

N = po.size("N")
i, j, k = po.indices("i j k")


@po.op
def cholesky(A: f64[N, N]):
    L = po.tensor("L")
    L[i, j] = po.when(j < i, (A[i, j] - po.sum(L[i, k] * L[j, k], k, where=k < j)) / L[j, j])
    L[i, i] = po.sqrt(A[i, i] - po.sum(L[i, k] * L[i, k], k, where=k < i))
    L[i, j] = po.when(j > i, 0)
    return L


def demo_case() -> tuple[po.Op, tuple[Any, ...], Any]:
    b = np.random.default_rng(0).standard_normal((192, 192))
    return cholesky, (b @ b.T + 192 * np.eye(192),), np.linalg.cholesky


if __name__ == "__main__":
    op, inputs, oracle = demo_case()
    np.testing.assert_allclose(op(*inputs), oracle(*inputs), rtol=1e-8, atol=1e-8)
    print(op)
    print(op.lower(*inputs).loops)
