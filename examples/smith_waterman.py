"""Smith-Waterman: the best local alignment of two sequences, as one equation.

score[i, j] depends on its three neighbours above and to the left, so antidiagonals run in parallel.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import polyopt as po
from polyopt import i32

M, N = po.sizes("M N")
i, j = po.indices("i j")

MATCH, MISMATCH, GAP = 3, -3, 2


@po.op
def smith_waterman(a: i32[M], b: i32[N]):
    score, best = po.tensor("score", dtype=i32), po.tensor("best")
    score[i, j] = po.maximum(
        po.maximum(score.pad(0)[i - 1, j - 1] + po.where(a[i] == b[j], MATCH, MISMATCH), 0),
        po.maximum(score.pad(0)[i - 1, j], score.pad(0)[i, j - 1]) - GAP,
    )
    best[()] = po.max(score[i, j], (i, j))
    return best, score


def with_numpy(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One antidiagonal after the other, stored as rows of a sheared table: sheared[i + j + 2, i + 1]."""
    m, n = len(a), len(b)
    sheared = np.zeros((m + n + 1, m + 1), np.int32)
    score = np.zeros((m, n), np.int32)
    for diagonal in range(m + n - 1):
        i = np.arange(max(0, diagonal - n + 1), min(m, diagonal + 1))
        j = diagonal - i
        step = np.where(a[i] == b[j], MATCH, MISMATCH)
        gap = np.maximum(sheared[diagonal + 1, i], sheared[diagonal + 1, i + 1]) - GAP
        score[i, j] = sheared[diagonal + 2, i + 1] = np.maximum(np.maximum(sheared[diagonal, i] + step, gap), 0)
    return np.array(score.max()), score


def demo_case() -> tuple[po.Op, tuple[Any, ...], Any]:
    random = np.random.default_rng(0)
    a, b = (random.integers(0, 4, length, dtype=np.int32) for length in (600, 500))
    return smith_waterman, (a, b), with_numpy


if __name__ == "__main__":
    op, inputs, oracle = demo_case()
    for ours, theirs in zip(op(*inputs), oracle(*inputs), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    print(f"best local alignment score: {op(*inputs)[0]}")
    print(op)
    print(op.lower(*inputs).loops)
