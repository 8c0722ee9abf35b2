"""Causal attention: each position attends to itself and to what came before.

The guard `j <= i` is part of the domain: what lies above the diagonal is never computed, nor tested for.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import polyopt as po
from polyopt import f32

H, T, D = po.sizes("H T D")
h, i, j, d = po.indices("h i j d")


@po.op
def causal_attention(q: f32[H, T, D], k: f32[H, T, D], v: f32[H, T, D]):
    score, top, weight, out = po.tensors("score top weight out")
    score[h, i, j] = po.when(j <= i, po.sum(q[h, i, d] * k[h, j, d], d) * po.rsqrt(po.cast(D, f32)))
    top[h, i] = po.max(score[h, i, j], j, where=j <= i)
    weight[h, i, j] = po.when(j <= i, po.exp(score[h, i, j] - top[h, i]))
    out[h, i, d] = po.sum(weight[h, i, j] * v[h, j, d], j, where=j <= i) / po.sum(weight[h, i, j], j, where=j <= i)
    return out


def with_numpy(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    score = q @ k.transpose(0, 2, 1) / np.sqrt(np.float32(q.shape[2]))
    score[:, ~np.tri(q.shape[1], dtype=bool)] = -np.inf
    weight = np.exp(score - score.max(axis=2, keepdims=True))
    return weight / weight.sum(axis=2, keepdims=True) @ v


def demo_case() -> tuple[po.Op, tuple[Any, ...], Any]:
    draw = np.random.default_rng(0).standard_normal
    return causal_attention, tuple(draw((4, 256, 64), np.float32) for _ in range(3)), with_numpy


if __name__ == "__main__":
    op, inputs, oracle = demo_case()
    np.testing.assert_allclose(op(*inputs), oracle(*inputs), rtol=1e-3, atol=1e-4)
    print(op)
    print(op.lower(*inputs).loops)
