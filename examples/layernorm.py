"""Layer normalisation: every row to mean 0 and variance 1, then a learned gain and bias."""

from __future__ import annotations

from typing import Any

import numpy as np

import polyopt as po
from polyopt import f32

M, N = po.sizes("M N")
i, j = po.indices("i j")


@po.op
def layernorm(x: f32[M, N], gain: f32[N], bias: f32[N]):
    mean, variance, y = po.tensors("mean variance y")
    mean[i] = po.mean(x[i, j], j)
    variance[i] = po.mean((x[i, j] - mean[i]) ** 2, j)
    y[i, j] = (x[i, j] - mean[i]) * po.rsqrt(variance[i] + 1e-5) * gain[j] + bias[j]
    return y


def with_numpy(x: np.ndarray, gain: np.ndarray, bias: np.ndarray) -> np.ndarray:
    mean, variance = x.mean(axis=1, keepdims=True), x.var(axis=1, keepdims=True)
    return (x - mean) / np.sqrt(variance + np.float32(1e-5)) * gain + bias


def demo_case() -> tuple[po.Op, tuple[Any, ...], Any]:
    draw = np.random.default_rng(0).standard_normal
    return layernorm, tuple(draw(shape, np.float32) for shape in ((512, 768), (768,), (768,))), with_numpy


if __name__ == "__main__":
    op, inputs, oracle = demo_case()
    np.testing.assert_allclose(op(*inputs), oracle(*inputs), rtol=1e-4, atol=1e-4)
    print(op)
    print(op.lower(*inputs).loops)
