"""A long short-term memory over a sequence, as the recurrence of its textbook.

x[t, b, k] is a sequence of batches; the four gates are rows of the weights: input, forget, output, candidate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import polyopt as po
from polyopt import f32

T, B, K, N = po.sizes("T B K N")
t, b, j = po.index("t", extent=T), po.index("b", extent=B), po.index("j", extent=N)
g, k, m = po.indices("g k m")


@po.op
def lstm(x: f32[T, B, K], w: f32[4, N, K], u: f32[4, N, N], bias: f32[4, N]):
    z, c, h = po.tensors("z c h")
    h[0, b, j] = 0
    c[0, b, j] = 0
    z[t, b, g, j] = bias[g, j] + po.sum(w[g, j, k] * x[t, b, k], k) + po.sum(u[g, j, m] * h[t, b, m], m)
    c[t + 1, b, j] = po.sigmoid(z[t, b, 1, j]) * c[t, b, j] + po.sigmoid(z[t, b, 0, j]) * po.tanh(z[t, b, 3, j])
    h[t + 1, b, j] = po.sigmoid(z[t, b, 2, j]) * po.tanh(c[t + 1, b, j])
    return h[T]


def with_numpy(x: np.ndarray, w: np.ndarray, u: np.ndarray, bias: np.ndarray) -> np.ndarray:
    h = c = np.zeros((x.shape[1], u.shape[1]), np.float32)
    for step in x:
        z = np.einsum("bk,gjk->gbj", step, w, optimize=True) + np.einsum("bm,gjm->gbj", h, u, optimize=True)
        z += bias[:, None]
        gate = 1 / (1 + np.exp(-z[:3]))
        c = gate[1] * c + gate[0] * np.tanh(z[3])
        h = gate[2] * np.tanh(c)
    return h


def demo_case() -> tuple[po.Op, tuple[Any, ...], Any]:
    draw = np.random.default_rng(0).standard_normal
    shapes = (32, 16, 64), (4, 128, 64), (4, 128, 128), (4, 128)
    return lstm, tuple(draw(shape, np.float32) / 8 for shape in shapes), with_numpy


if __name__ == "__main__":
    op, inputs, oracle = demo_case()
    np.testing.assert_allclose(op(*inputs), oracle(*inputs), rtol=1e-3, atol=1e-4)
    print(op)
    print(op.lower(*inputs).loops)
