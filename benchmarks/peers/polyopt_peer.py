"""polyopt itself: the bare definitions, and nothing that tells how to compute them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import polyopt as po
from benchmarks import aligned
from benchmarks.cases import BETA1, BETA2, BLUR, EPSILON, LEARNING_RATE, Case
from polyopt import bf16, f32, f64, i8, i64

VERSION = po.__version__

M, N, K, B, C, O, H, R, S, D = po.sizes("M N K B C O H R S D")
i, j, k, l, b, c, o, r, s, d, a, e, f = po.indices("i j k l b c o r s d a e f")
h, w = po.index("h", extent=H), po.index("w", extent=H)


@po.op
def gemm_f32(x: f32[M, K], y: f32[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def gemm_f64(x: f64[M, K], y: f64[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def gemm_bf16(x: bf16[M, K], y: bf16[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def gemm_i8(x: i8[M, K], y: i8[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def gemm_tn(x: f32[K, M], y: f32[K, N]):
    z = po.tensor("z")
    z[i, j] += x[k, i] * y[k, j]
    return z


@po.op
def batched(x: f32[B, N, N], y: f32[B, N, N]):
    z = po.tensor("z")
    z[b, i, j] += x[b, i, k] * y[b, k, j]
    return z


@po.op
def gemv(x: f32[N, N], y: f32[N]):
    z = po.tensor("z")
    z[i] += x[i, k] * y[k]
    return z


@po.op
def conv(x: f32[B, C, H, H], g: f32[O, C, R, R]):
    y = po.tensor("y")
    y[b, o, h, w] += x.pad(0)[b, c, h + r - R // 2, w + s - R // 2] * g[o, c, r, s]
    return y


@po.op
def conv_bias_relu(x: f32[B, C, H, H], g: f32[O, C, R, R], bias: f32[O]):
    y, z = po.tensors("y z")
    y[b, o, h, w] += x.pad(0)[b, c, h + r - R // 2, w + s - R // 2] * g[o, c, r, s]
    z[b, o, h, w] = po.relu(y[b, o, h, w] + bias[o])
    return z


@po.op
def depthwise(x: f32[B, C, H, H], g: f32[C, R, R]):
    y = po.tensor("y")
    y[b, c, h, w] += x.pad(0)[b, c, h + r - R // 2, w + s - R // 2] * g[c, r, s]
    return y


@po.op
def mttkrp(t: f32[M, N, K], x: f32[N, R], y: f32[K, R]):
    return po.einsum("ijk,jr,kr->ir", t, x, y)


@po.op
def ttm(t: f32[N, N, N], x: f32[N, R], y: f32[N, R], z: f32[N, R]):
    u, v, out = po.tensors("u v out")
    u[i, j, c] += t[i, j, k] * z[k, c]
    v[i, b, c] += u[i, j, c] * y[j, b]
    out[a, b, c] += v[i, b, c] * x[i, a]
    return out


@po.op
def bilinear(x: f32[B, N], g: f32[O, N, N], z: f32[B, N]):
    return po.einsum("bi,oij,bj->bo", x, g, z)


@po.op
def tensordot(x: f32[N, N, N, N], y: f32[N, N, N, N]):
    z = po.tensor("z")
    z[a, b, c, d] += x[a, e, b, f] * y[f, c, e, d]
    return z


@po.op
def attention(q: f32[H, S, D], key: f32[H, S, D], v: f32[H, S, D]):
    score, top, weight, out = po.tensors("score top weight out")
    n = po.index("n")
    score[n, i, j] = po.sum(q[n, i, d] * key[n, j, d], d) * po.rsqrt(po.cast(D, f32))
    top[n, i] = po.max(score[n, i, j], j)
    weight[n, i, j] = po.exp(score[n, i, j] - top[n, i])
    out[n, i, d] = po.sum(weight[n, i, j] * v[n, j, d], j) / po.sum(weight[n, i, j], j)
    return out


@po.op
def attention_causal(q: f32[H, S, D], key: f32[H, S, D], v: f32[H, S, D]):
    score, top, weight, out = po.tensors("score top weight out")
    n = po.index("n")
    score[n, i, j] = po.when(j <= i, po.sum(q[n, i, d] * key[n, j, d], d) * po.rsqrt(po.cast(D, f32)))
    top[n, i] = po.max(score[n, i, j], j, where=j <= i)
    weight[n, i, j] = po.when(j <= i, po.exp(score[n, i, j] - top[n, i]))
    out[n, i, d] = po.sum(weight[n, i, j] * v[n, j, d], j, where=j <= i) / po.sum(weight[n, i, j], j, where=j <= i)
    return out


@po.op
def softmax(x: f32[M, N]):
    top, total, y = po.tensors("top total y")
    top[i] = po.max(x[i, j], j)
    total[i] += po.exp(x[i, j] - top[i])
    y[i, j] = po.exp(x[i, j] - top[i]) / total[i]
    return y


@po.op
def layernorm(x: f32[M, N], gain: f32[N], bias: f32[N]):
    mean, variance, y = po.tensors("mean variance y")
    mean[i] = po.mean(x[i, j], j)
    variance[i] = po.mean((x[i, j] - mean[i]) ** 2, j)
    y[i, j] = (x[i, j] - mean[i]) * po.rsqrt(variance[i] + 1e-5) * gain[j] + bias[j]
    return y


@po.op
def rmsnorm(x: f32[M, N], gain: f32[N]):
    square, y = po.tensors("square y")
    square[i] = po.mean(x[i, j] * x[i, j], j)
    y[i, j] = x[i, j] * po.rsqrt(square[i] + 1e-5) * gain[j]
    return y


@po.op
def nll(x: f32[M, N], target: i64[M]):
    top, total, loss = po.tensors("top total loss")
    top[i] = po.max(x[i, j], j)
    total[i] += po.exp(x[i, j] - top[i])
    loss[()] = po.mean(po.log(total[i]) + top[i] - x[i, target[i]], i)
    return loss


@po.op
def chain(x: f32[N], y: f32[N]):
    p, q, t, z = po.tensors("p q t z")
    p[i] = x[i] * y[i] + 1.5
    q[i] = po.sqrt(p[i]) + po.exp(-x[i])
    t[i] = po.tanh(q[i] * y[i]) - 0.25 * p[i]
    z[i] = po.maximum(t[i], -1.0) / (1.0 + y[i] * y[i])
    return z


@po.op
def gelu(x: f32[N]):
    y = po.tensor("y")
    y[i] = po.gelu(x[i])
    return y


@po.op
def bias_relu(x: f32[M, N], bias: f32[N]):
    y = po.tensor("y")
    y[i, j] = po.relu(x[i, j] + bias[j])
    return y


@po.op
def gelu_linear(x: f32[M, K], weight: f32[K, N], bias: f32[N]):
    y, z = po.tensors("y z")
    y[i, j] += x[i, k] * weight[k, j]
    z[i, j] = po.gelu(y[i, j] + bias[j])
    return z


@po.op
def adam(p: f32[N], g: f32[N], m: f32[N], v: f32[N]):
    m2, v2, p2 = po.tensors("m2 v2 p2")
    m2[i] = BETA1 * m[i] + (1 - BETA1) * g[i]
    v2[i] = BETA2 * v[i] + (1 - BETA2) * g[i] * g[i]
    p2[i] = p[i] - LEARNING_RATE * m2[i] / (po.sqrt(v2[i]) + EPSILON)
    return p2, m2, v2


@po.op
def blur(image: f32[M, N]):
    across, y = po.tensors("across y")
    across[i, j] = sum(tap * image.clamp()[i, j + n] for n, tap in enumerate(BLUR, start=-2))
    y[i, j] = sum(tap * across.clamp()[i + n, j] for n, tap in enumerate(BLUR, start=-2))
    return y


@po.op
def unsharp(image: f32[M, N]):
    across, blurred, y = po.tensors("across blurred y")
    across[i, j] = sum(tap * image.clamp()[i, j + n] for n, tap in enumerate(BLUR, start=-2))
    blurred[i, j] = sum(tap * across.clamp()[i + n, j] for n, tap in enumerate(BLUR, start=-2))
    y[i, j] = po.clip(image[i, j] + 1.5 * (image[i, j] - blurred[i, j]), 0, 1)
    return y


@po.op
def harris(x: f32[M, N]):
    gx, gy, xx, yy, xy, y = po.tensors("gx gy xx yy xy y")
    gx[i, j] = (
        (x[i, j + 2] - x[i, j]) + 2 * (x[i + 1, j + 2] - x[i + 1, j]) + (x[i + 2, j + 2] - x[i + 2, j])
    ) * 0.125  # fmt: skip
    gy[i, j] = (
        (x[i + 2, j] - x[i, j]) + 2 * (x[i + 2, j + 1] - x[i, j + 1]) + (x[i + 2, j + 2] - x[i, j + 2])
    ) * 0.125  # fmt: skip
    around = [(u, v) for u in range(3) for v in range(3)]
    xx[i, j] = sum(gx[i + u, j + v] * gx[i + u, j + v] for u, v in around)
    yy[i, j] = sum(gy[i + u, j + v] * gy[i + u, j + v] for u, v in around)
    xy[i, j] = sum(gx[i + u, j + v] * gy[i + u, j + v] for u, v in around)
    trace = xx[i, j] + yy[i, j]
    y[i, j] = xx[i, j] * yy[i, j] - xy[i, j] * xy[i, j] - 0.04 * trace * trace
    return y


_GEMMS = {"f32": gemm_f32, "f64": gemm_f64, "bf16": gemm_bf16, "i8": gemm_i8}
OPS: Mapping[str, po.Op] = {
    operator.signature.name: operator
    for operator in (
        gemm_tn, batched, gemv, conv, conv_bias_relu, depthwise, mttkrp, ttm, bilinear, tensordot, attention,
        attention_causal, softmax, layernorm, rmsnorm, nll, chain, gelu, bias_relu, gelu_linear, adam, blur, unsharp,
        harris,
    )
}  # fmt: skip


def operator_for(case: Case) -> po.Op:
    """The op of a row."""
    return _GEMMS[case.dtype] if case.kind == "gemm" else OPS[case.kind]


def prepare(case: Case, arrays: list[Any]) -> Callable[[], Any] | None:
    operator = operator_for(case)
    operator.compile(*arrays)
    if case.kind == "adam":
        return _in_place(operator, arrays)
    return lambda: operator(*arrays)


def _in_place(operator: po.Op, arrays: list[Any]) -> Callable[[], Any]:
    """A step of an optimizer as one takes it, and as the peers that have one do: into the arrays that it starts from.

    The first call's result is right, and that is the one that is checked; the time does not depend on the values.
    """
    p, g, m, v = (aligned.copy(array) for array in arrays)
    return lambda: operator(p, g, m, v, out=(p, m, v))
