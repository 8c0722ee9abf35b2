"""Softmax over the rows of a matrix, safe for large numbers.

Three passes over a row in the text; one nest over rows in the loops, and no temporary as large as the matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import polyopt as po
from polyopt import f32

M, N = po.sizes("M N")
i, j = po.indices("i j")


@po.op
def softmax(x: f32[M, N]):
    top, total, y = po.tensors("top total y")
    top[i] = po.max(x[i, j], j)
    total[i] += po.exp(x[i, j] - top[i])
    y[i, j] = po.exp(x[i, j] - top[i]) / total[i]
    return y


def with_numpy(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def demo_case() -> tuple[po.Op, tuple[Any, ...], Any]:
    return softmax, (10 * np.random.default_rng(0).standard_normal((512, 1024), np.float32),), with_numpy


if __name__ == "__main__":
    op, inputs, oracle = demo_case()
    np.testing.assert_allclose(op(*inputs), oracle(*inputs), rtol=1e-4, atol=1e-6)
    print(op)
    print(op.lower(*inputs).loops)
