"""NumPy: what a user of arrays writes, with its library of linear algebra where that serves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.cases import BETA1, BETA2, BLUR, EPSILON, LEARNING_RATE, Case

VERSION = np.__version__
F = np.float32


def _attention(q: Any, k: Any, v: Any) -> Any:
    score = q @ k.transpose(0, 2, 1)
    score *= F(1 / np.sqrt(q.shape[2]))
    return _softmax(score) @ v


def _causal(q: Any, k: Any, v: Any) -> Any:
    score = q @ k.transpose(0, 2, 1)
    score *= F(1 / np.sqrt(q.shape[2]))
    score[:, ~np.tri(q.shape[1], dtype=bool)] = -np.inf
    return _softmax(score) @ v


def _softmax(x: Any) -> Any:
    e = x - x.max(axis=-1, keepdims=True)
    np.exp(e, out=e)
    e /= e.sum(axis=-1, keepdims=True)
    return e


def _layernorm(x: Any, g: Any, b: Any) -> Any:
    y = x - x.mean(axis=1, keepdims=True)
    y *= 1 / np.sqrt(np.einsum("ij,ij->i", y, y)[:, None] / F(x.shape[1]) + F(1e-5))
    y *= g
    y += b
    return y


def _nll(x: Any, target: Any) -> Any:
    top = x.max(axis=1)
    return (np.log(np.exp(x - top[:, None]).sum(axis=1)) + top - x[np.arange(len(x)), target]).mean()


def _chain(x: Any, y: Any) -> Any:
    a = x * y + F(1.5)
    b = np.sqrt(a) + np.exp(-x)
    return np.maximum(np.tanh(b * y) - F(0.25) * a, F(-1)) / (1 + y * y)


def _adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m2 = F(BETA1) * m + F(1 - BETA1) * g
    v2 = F(BETA2) * v + F(1 - BETA2) * g * g
    return p - F(LEARNING_RATE) * m2 / (np.sqrt(v2) + F(EPSILON)), m2, v2


def _blur(x: Any) -> Any:
    taps = [F(tap) for tap in BLUR]
    h, w = x.shape
    padded = np.pad(x, 2, mode="edge")
    across = sum(taps[r] * padded[:, r : r + w] for r in range(5))
    return sum(taps[r] * across[r : r + h] for r in range(5))


_TABLE: Mapping[str, Callable[..., Any]] = {
    "gemm": np.matmul,
    "gemm_tn": lambda a, b: a.T @ b,
    "batched": np.matmul,
    "gemv": np.matmul,
    "mttkrp": lambda t, b, c: np.einsum("ijr,jr->ir", np.tensordot(t, c, 1), b),
    "ttm": lambda x, a, b, c: np.einsum("ijk,ia,jb,kc->abc", x, a, b, c, optimize=True),
    "bilinear": lambda x, w, z: np.einsum("bi,oij,bj->bo", x, w, z, optimize=True),
    "tensordot": lambda x, w: np.einsum("aebf,fced->abcd", x, w, optimize=True),
    "attention": _attention,
    "attention_causal": _causal,
    "softmax": _softmax,
    "layernorm": _layernorm,
    "rmsnorm": lambda x, g: x * (1 / np.sqrt(np.einsum("ij,ij->i", x, x)[:, None] / F(x.shape[1]) + F(1e-5))) * g,
    "nll": _nll,
    "chain": _chain,
    "bias_relu": lambda x, b: np.maximum(x + b, 0),
    "adam": _adam,
    "blur": _blur,
    "unsharp": lambda x: np.clip(x + F(1.5) * (x - _blur(x)), 0, 1),
}


def prepare(case: Case, arrays: list[Any]) -> Callable[[], Any] | None:
    if case.kind not in _TABLE or case.dtype in ("bf16", "i8"):  # NumPy computes these one element at a time
        return None
    function = _TABLE[case.kind]
    return lambda: function(*arrays)
