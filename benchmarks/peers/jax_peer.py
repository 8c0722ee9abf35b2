"""JAX under `jit`: XLA's code for the CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
from jax import lax

from benchmarks.cases import BETA1, BETA2, BLUR, EPSILON, LEARNING_RATE, Case

VERSION = jax.__version__
jax.config.update("jax_enable_x64", True)


def _conv(x: Any, f: Any, groups: int = 1) -> Any:
    return lax.conv_general_dilated(x, f, (1, 1), "SAME", feature_group_count=groups)


def _attention(q: Any, k: Any, v: Any) -> Any:
    score = jnp.einsum("hid,hjd->hij", q, k) * jnp.float32(q.shape[2] ** -0.5)
    return jax.nn.softmax(score) @ v


def _causal(q: Any, k: Any, v: Any) -> Any:
    score = jnp.einsum("hid,hjd->hij", q, k) * jnp.float32(q.shape[2] ** -0.5)
    return jax.nn.softmax(jnp.where(jnp.tri(q.shape[1], dtype=bool), score, -jnp.inf)) @ v


def _layernorm(x: Any, g: Any, b: Any) -> Any:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred * lax.rsqrt((centred * centred).mean(axis=1, keepdims=True) + 1e-5) * g + b


def _nll(x: Any, target: Any) -> Any:
    return -jnp.take_along_axis(jax.nn.log_softmax(x), target[:, None], axis=1).mean()


def _chain(x: Any, y: Any) -> Any:
    a = x * y + 1.5
    b = jnp.sqrt(a) + jnp.exp(-x)
    return jnp.maximum(jnp.tanh(b * y) - 0.25 * a, -1.0) / (1 + y * y)


def _adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m2 = BETA1 * m + (1 - BETA1) * g
    v2 = BETA2 * v + (1 - BETA2) * g * g
    return p - LEARNING_RATE * m2 / (jnp.sqrt(v2) + EPSILON), m2, v2


def _blur(x: Any) -> Any:
    h, w = x.shape
    padded = jnp.pad(x, 2, mode="edge")
    across = sum(BLUR[r] * padded[:, r : r + w] for r in range(5))
    return sum(BLUR[r] * across[r : r + h] for r in range(5))


def _harris(x: Any) -> Any:
    gx = ((x[:-2, 2:] - x[:-2, :-2]) + 2 * (x[1:-1, 2:] - x[1:-1, :-2]) + (x[2:, 2:] - x[2:, :-2])) * 0.125
    gy = ((x[2:, :-2] - x[:-2, :-2]) + 2 * (x[2:, 1:-1] - x[:-2, 1:-1]) + (x[2:, 2:] - x[:-2, 2:])) * 0.125

    def box(a: Any) -> Any:
        rows = a[:-2] + a[1:-1] + a[2:]
        return rows[:, :-2] + rows[:, 1:-1] + rows[:, 2:]

    xx, yy, xy = box(gx * gx), box(gy * gy), box(gx * gy)
    return xx * yy - xy * xy - 0.04 * (xx + yy) ** 2


_TABLE: Mapping[str, Callable[..., Any]] = {
    "gemm_tn": lambda a, b: a.T @ b,
    "batched": jnp.matmul,
    "gemv": jnp.matmul,
    "conv": _conv,
    "conv_bias_relu": lambda x, f, b: jax.nn.relu(_conv(x, f) + b[:, None, None]),
    "depthwise": lambda x, f: _conv(x, f[:, None], len(f)),
    "mttkrp": lambda t, b, c: jnp.einsum("ijk,jr,kr->ir", t, b, c),
    "ttm": lambda x, a, b, c: jnp.einsum("ijk,ia,jb,kc->abc", x, a, b, c),
    "bilinear": lambda x, w, z: jnp.einsum("bi,oij,bj->bo", x, w, z),
    "tensordot": lambda x, w: jnp.einsum("aebf,fced->abcd", x, w),
    "attention": _attention,
    "attention_causal": _causal,
    "softmax": lambda x: jax.nn.softmax(x),
    "layernorm": _layernorm,
    "rmsnorm": lambda x, g: x * lax.rsqrt((x * x).mean(axis=1, keepdims=True) + 1e-5) * g,
    "nll": _nll,
    "chain": _chain,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "bias_relu": lambda x, b: jnp.maximum(x + b, 0),
    "gelu_linear": lambda x, w, b: jax.nn.gelu(x @ w + b, approximate=False),
    "adam": _adam,
    "blur": _blur,
    "unsharp": lambda x: jnp.clip(x + 1.5 * (x - _blur(x)), 0, 1),
    "harris": _harris,
}


def _gemm(case: Case) -> Callable[..., Any]:
    if case.dtype == "i8":
        return lambda a, b: lax.dot(a, b, preferred_element_type=jnp.int32)
    return jnp.matmul


def prepare(case: Case, arrays: list[Any]) -> Callable[[], Any] | None:
    values = [jax.device_put(array) for array in arrays]
    function = jax.jit(_gemm(case) if case.kind == "gemm" else _TABLE[case.kind])
    return lambda: jax.block_until_ready(function(*values))
