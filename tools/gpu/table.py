"""The benchmark table for GPUs: the operators, their sizes, what bounds them, and the peers they are held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import polyopt as po
from polyopt import bf16, f32

B, C, H, K, M, N, S, W = po.sizes("B C H K M N S W")
b, c, h, i, j, k = po.indices("b c h i j k")


@po.op
def bias_gelu_residual(x: bf16[M, N], r: bf16[M, N], bias: bf16[N]):
    y = po.tensor("y")
    y[i, j] = po.gelu(x[i, j] + bias[j]) + r[i, j]
    return y


@po.op
def softmax(x: f32[M, N]):
    return po.softmax(x, axis=-1)


@po.op
def layernorm(x: bf16[M, N], g: bf16[N], s: bf16[N]):
    y, wide, mean, var = po.tensors("y wide mean var")
    wide[i, j] = po.cast(x[i, j], f32)
    mean[i] = po.mean(wide[i, j], j)
    var[i] = po.mean((wide[i, j] - mean[i]) * (wide[i, j] - mean[i]), j)
    y[i, j] = po.cast((wide[i, j] - mean[i]) * po.rsqrt(var[i] + 1e-5) * g[j] + s[j], bf16)
    return y


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
def gemm_f32(x: f32[M, K], y: f32[K, N]):
    return x @ y


@po.op
def gemm_bf16(x: bf16[M, K], y: bf16[K, N]):
    return x @ y


@po.op
def batched(x: bf16[B, M, K], y: bf16[B, K, N]):
    z = po.tensor("z")
    z[b, i, j] += x[b, i, k] * y[b, k, j]
    return z


@po.op
def conv2d(x: bf16[B, H, W, C], f: bf16[3, 3, C, N]):
    y = po.tensor("y")
    r, s, n = po.indices("r s n")
    h, w = po.index("h", extent=x.shape[1]), po.index("w", extent=x.shape[2])
    y[b, h, w, n] += x.pad(0)[b, h + r - 1, w + s - 1, c] * f[r, s, c, n]
    return y


@po.op
def attention(q: bf16[B, H, S, K], keys: bf16[B, H, S, K], v: bf16[B, H, S, K]):
    p, o = po.tensors("p o")
    t, d = po.indices("t d")
    scale = 1.0 / 128**0.5
    p[b, h, i, t] = po.sum(q[b, h, i, d] * keys[b, h, t, d], d, dtype=f32) * scale
    weights = po.softmax(p, axis=-1)
    o[b, h, i, d] += weights[b, h, i, t] * po.cast(v[b, h, t, d], f32)
    return po.cast(o, bf16)


@po.op
def gemm_bias_gelu(x: bf16[M, K], y: bf16[K, N], bias: bf16[N]):
    out = po.tensor("out")
    out[i, j] = po.gelu((x @ y)[i, j] + bias[j])
    return out


@po.op
def jacobi(u: f32[N, N], steps: int):
    v = po.tensor("v")
    t = po.index("t", extent=steps)
    v[0, i, j] = u[i, j]
    inside = (0 < i) & (i < N - 1) & (0 < j) & (j < N - 1)
    around = v[t, i, j] + v[t, i - 1, j] + v[t, i + 1, j] + v[t, i, j - 1] + v[t, i, j + 1]
    v[t + 1, i, j] = po.where(inside, around * 0.2, v[t, i, j])
    return v[steps]


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    flops, moved: of one call, operations and compulsory bytes; library: how PyTorch says it
    shapes: of the tensors, in the order of the op's parameters; constants: compile-time parameters
    """

    op: po.Op
    sizes: Mapping[str, int]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    flops: float
    moved: float
    library: Callable[..., Any]
    constants: Mapping[str, int] = field(default_factory=dict)


def _torch() -> Any:
    import torch

    return torch


def _gelu(x: Any) -> Any:
    return _torch().nn.functional.gelu(x)


def _jacobi(u: Any, steps: int = 16) -> Any:
    for _ in range(steps):
        v = u.clone()
        inner = u[1:-1, 1:-1] + u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        v[1:-1, 1:-1] = inner * 0.2
        u = v
    return u


def _conv(x: Any, f: Any) -> Any:
    turned = _torch().nn.functional.conv2d(x.permute(0, 3, 1, 2), f.permute(3, 2, 0, 1), padding=1)
    return turned.permute(0, 2, 3, 1)


def _rows() -> dict[str, Row]:
    m, n = 16384, 8192
    big, wide = (m, n), (n,)
    return {
        "bias_gelu_residual": Row(
            bias_gelu_residual, {"M": m, "N": n}, (big, big, wide), "bfloat16", 10 * m * n, 6 * m * n,
            lambda x, r, bias: _gelu(x + bias) + r,
        ),
        "softmax": Row(softmax, {"M": m, "N": n}, (big,), "float32", 5 * m * n, 8 * m * n, lambda x: x.softmax(-1)),
        "layernorm": Row(
            layernorm, {"M": m, "N": n}, (big, wide, wide), "bfloat16", 8 * m * n, 4 * m * n,
            lambda x, g, s: _torch().nn.functional.layer_norm(x, (n,), g, s),
        ),
        "column_sum": Row(
            column_sum, {"M": 65536, "N": 4096}, ((65536, 4096),), "float32", 65536 * 4096, 4 * 65536 * 4096,
            lambda x: x.sum(0),
        ),
        "transpose": Row(
            transpose, {"M": m, "N": m}, ((m, m),), "float32", 0, 8 * m * m, lambda x: x.T.contiguous()
        ),
        "gemm_f32": _gemm(gemm_f32, 4096, 4096, 4096, "float32", 4),
        "gemm_bf16_4096": _gemm(gemm_bf16, 4096, 4096, 4096, "bfloat16", 2),
        "gemm_bf16_8192": _gemm(gemm_bf16, 8192, 8192, 8192, "bfloat16", 2),
        "gemm_bf16_skinny": _gemm(gemm_bf16, 16, 8192, 8192, "bfloat16", 2),
        "batched_bf16": Row(
            batched, {"B": 64, "M": 1024, "N": 1024, "K": 1024}, ((64, 1024, 1024),) * 2, "bfloat16",
            2 * 64 * 1024**3, 2 * 3 * 64 * 1024**2, lambda x, y: x @ y,
        ),
        "conv2d": Row(
            conv2d, {"B": 32, "H": 56, "W": 56, "C": 256, "N": 256}, ((32, 56, 56, 256), (3, 3, 256, 256)), "bfloat16",
            2 * 9 * 32 * 56 * 56 * 256 * 256, 2 * (2 * 32 * 56 * 56 * 256 + 9 * 256 * 256), _conv,
        ),
        "attention": Row(
            attention, {"B": 4, "H": 16, "S": 4096, "K": 128}, ((4, 16, 4096, 128),) * 3, "bfloat16",
            4 * 4 * 16 * 4096**2 * 128, 4 * 2 * 4 * 16 * 4096 * 128,
            lambda q, keys, v: _torch().nn.functional.scaled_dot_product_attention(q, keys, v),
        ),
        "gemm_bias_gelu": Row(
            gemm_bias_gelu, {"M": 4096, "N": 4096, "K": 4096}, ((4096, 4096), (4096, 4096), (4096,)), "bfloat16",
            2 * 4096**3, 6 * 4096**2, lambda x, y, bias: _gelu(x @ y + bias),
        ),
        "jacobi": Row(
            jacobi, {"N": 8192}, ((8192, 8192),), "float32", 5 * 16 * 8192**2, 8 * 16 * 8192**2, _jacobi, {"steps": 16}
        ),
    }  # fmt: skip


def _gemm(op: po.Op, m: int, n: int, k: int, dtype: str, size: int) -> Row:
    moved = size * (m * k + k * n + m * n)
    return Row(op, {"M": m, "N": n, "K": k}, ((m, k), (k, n)), dtype, 2.0 * m * n * k, moved, lambda x, y: x @ y)


ROWS = _rows()
