"""The operators whose kernels are held to figures: resources, instructions, traffic."""

from __future__ import annotations

import polyopt as po
from polyopt import bf16, f16, f32, i8

B, C, D, H, K, M, N, S, W = po.sizes("B C D H K M N S W")
c, h, i, j, k, n, w = po.indices("c h i j k n w")


@po.op
def matmul_f32(x: f32[M, K], y: f32[K, N]):
    return x @ y


@po.op(numerics="fast")
def matmul_f32_fast(x: f32[M, K], y: f32[K, N]):
    return x @ y


@po.op
def matmul_bf16(x: bf16[M, K], y: bf16[K, N]):
    return x @ y


@po.op
def matmul_f16(x: f16[M, K], y: f16[K, N]):
    return x @ y


@po.op
def matmul_i8(x: i8[M, K], y: i8[K, N]):
    return x @ y


@po.op
def conv2d(x: f32[B, H, W, C], f: f32[3, 3, C, N]):
    y = po.tensor("y")
    b, r, s = po.indices("b r s")
    y[b, h, w, n] += x[b, h + r, w + s, c] * f[r, s, c, n]
    return y


@po.op
def conv2d_bf16(x: bf16[B, H, W, C], f: bf16[3, 3, C, N]):
    y = po.tensor("y")
    b, r, s = po.indices("b r s")
    y[b, h, w, n] += x[b, h + r, w + s, c] * f[r, s, c, n]
    return y


@po.op
def pointwise_bf16(x: bf16[M, N], b: bf16[N], r: bf16[M, N]):
    y = po.tensor("y")
    y[i, j] = po.gelu(x[i, j] + b[j]) + r[i, j]
    return y


@po.op
def layernorm(x: f32[M, N]):
    y, mean, var = po.tensors("y mean var")
    mean[i] = po.mean(x[i, j], j)
    var[i] = po.mean((x[i, j] - mean[i]) * (x[i, j] - mean[i]), j)
    y[i, j] = (x[i, j] - mean[i]) * po.rsqrt(var[i] + 1e-5)
    return y


@po.op
def softmax(x: f32[M, N]):
    return po.softmax(x, axis=-1)


@po.op
def column_sum(x: f32[M, N]):
    s = po.tensor("s")
    s[j] += x[i, j]
    return s


@po.op
def transpose(x: f32[M, N]):
    y = po.tensor("y")
    y[j, i] = x[i, j]
    return y


@po.op
def jacobi(u: f32[N, N]):
    v = po.tensor("v")
    inside = (0 < i) & (i < N - 1) & (0 < j) & (j < N - 1)
    v[i, j] = po.where(inside, (u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]) * 0.25, u[i, j])
    return v


@po.op
def attention(q: f32[H, S, D], keys: f32[H, S, D], v: f32[H, S, D]):
    t = po.index("t")
    d = po.index("d")
    p, o = po.tensors("p o")
    p[h, i, t] = po.sum(q[h, i, d] * keys[h, t, d], d)
    weights = po.softmax(p, axis=-1)
    o[h, i, d] += weights[h, i, t] * v[h, t, d]
    return o


@po.op
def attention_bf16(q: bf16[H, S, D], keys: bf16[H, S, D], v: bf16[H, S, D]):
    t = po.index("t")
    d = po.index("d")
    p, o = po.tensors("p o")
    p[h, i, t] = po.sum(q[h, i, d] * keys[h, t, d], d)
    weights = po.softmax(p, axis=-1)
    o[h, i, d] += weights[h, i, t] * v[h, t, d]
    return o


Sizes = dict[str, int]
OPS: dict[str, tuple[po.Op, Sizes, Sizes]] = {
    "matmul_f32": (matmul_f32, {"M": 4096, "N": 4096, "K": 4096}, {"M": 128, "N": 128, "K": 64}),
    "matmul_f32_fast": (matmul_f32_fast, {"M": 4096, "N": 4096, "K": 4096}, {"M": 128, "N": 128, "K": 64}),
    "matmul_bf16": (matmul_bf16, {"M": 4096, "N": 4096, "K": 4096}, {"M": 128, "N": 128, "K": 64}),
    "matmul_f16": (matmul_f16, {"M": 4096, "N": 4096, "K": 4096}, {"M": 128, "N": 128, "K": 64}),
    "matmul_i8": (matmul_i8, {"M": 4096, "N": 4096, "K": 4096}, {"M": 128, "N": 128, "K": 64}),
    "conv2d": (
        conv2d,
        {"B": 32, "H": 58, "W": 58, "C": 256, "N": 256},
        {"B": 1, "H": 10, "W": 10, "C": 32, "N": 64},
    ),
    "conv2d_bf16": (
        conv2d_bf16,
        {"B": 32, "H": 58, "W": 58, "C": 256, "N": 256},
        {"B": 1, "H": 4, "W": 34, "C": 32, "N": 64},
    ),
    "pointwise_bf16": (pointwise_bf16, {"M": 16384, "N": 8192}, {"M": 4, "N": 512}),
    "layernorm": (layernorm, {"M": 16384, "N": 8192}, {"M": 4, "N": 512}),
    "softmax": (softmax, {"M": 16384, "N": 8192}, {"M": 4, "N": 512}),
    "column_sum": (column_sum, {"M": 65536, "N": 4096}, {"M": 64, "N": 128}),
    "transpose": (transpose, {"M": 16384, "N": 16384}, {"M": 64, "N": 96}),
    "jacobi": (jacobi, {"N": 8192}, {"N": 128}),
    "attention_bf16": (attention_bf16, {"H": 16, "S": 2048, "D": 128}, {"H": 1, "S": 64, "D": 32}),
    "attention": (attention, {"H": 16, "S": 2048, "D": 128}, {"H": 1, "S": 64, "D": 32}),
}
"""By name: the op, sizes of the benchmark table, and small ones for the emulator's counters."""
