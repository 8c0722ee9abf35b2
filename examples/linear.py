"""A dense layer: matrix product, bias and relu in two equations.

`k` is only on the right, so it is summed; the bias and the relu join the product's loops by themselves.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import polyopt as po
from polyopt import f32

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")


@po.op
def linear_relu(x: f32[M, K], w: f32[K, N], b: f32[N]):
    y, out = po.tensors("y out")
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j] + b[j], 0)
    return out


def with_numpy(x: np.ndarray, w: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.maximum(x @ w + b, 0)


def demo_case() -> tuple[po.Op, tuple[Any, ...], Any]:
    draw = np.random.default_rng(0).standard_normal
    shapes = (384, 256), (256, 512), (512,)
    return linear_relu, tuple(draw(shape, np.float32) for shape in shapes), with_numpy


if __name__ == "__main__":
    op, inputs, oracle = demo_case()
    np.testing.assert_allclose(op(*inputs), oracle(*inputs), rtol=1e-4, atol=1e-3)
    print(op)
    print(op.lower(*inputs).loops)
