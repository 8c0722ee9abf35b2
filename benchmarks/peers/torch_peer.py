"""PyTorch, eager: oneDNN and MKL behind its functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as fn

from benchmarks.cases import BETA1, BETA2, BLUR, EPSILON, LEARNING_RATE, Case

VERSION = torch.__version__


def _adam(p: Any, g: Any, m: Any, v: Any) -> Any:
    m2 = BETA1 * m + (1 - BETA1) * g
    v2 = BETA2 * v + (1 - BETA2) * g * g
    return p - LEARNING_RATE * m2 / (torch.sqrt(v2) + EPSILON), m2, v2


def _blur(x: Any) -> Any:
    h, w = x.shape
    padded = fn.pad(x[None, None], (2, 2, 2, 2), mode="replicate")[0, 0]
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


def _rmsnorm(x: Any, g: Any) -> Any:
    return x * torch.rsqrt((x * x).mean(dim=1, keepdim=True) + 1e-5) * g


def _chain(x: Any, y: Any) -> Any:
    a = x * y + 1.5
    b = torch.sqrt(a) + torch.exp(-x)
    return torch.clamp_min(torch.tanh(b * y) - 0.25 * a, -1.0) / (1 + y * y)


def _attention(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    return fn.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=causal)[0]


def _plain_attention(q: Any, k: Any, v: Any) -> Any:
    return torch.softmax(q @ k.transpose(1, 2) / math.sqrt(q.shape[2]), dim=2) @ v


def _depthwise(x: Any, f: Any) -> Any:
    return fn.conv2d(x, f[:, None], padding=f.shape[1] // 2, groups=len(f))


TABLE: Mapping[str, Callable[..., Any]] = {
    "gemm": torch.matmul,
    "gemm_tn": lambda a, b: a.T @ b,
    "batched": torch.bmm,
    "gemv": torch.mv,
    "conv": lambda x, f: fn.conv2d(x, f, padding=f.shape[2] // 2),
    "conv_bias_relu": lambda x, f, b: fn.relu_(fn.conv2d(x, f, b, padding=f.shape[2] // 2)),
    "depthwise": _depthwise,
    "mttkrp": lambda t, b, c: torch.einsum("ijr,jr->ir", torch.tensordot(t, c, 1), b),
    "ttm": lambda x, a, b, c: torch.einsum(
        "ibc,ia->abc", torch.einsum("ijc,jb->ibc", torch.einsum("ijk,kc->ijc", x, c), b), a
    ),
    "bilinear": lambda x, w, z: fn.bilinear(x, z, w),
    "tensordot": lambda x, w: torch.einsum("aebf,fced->abcd", x, w),
    "attention": _attention,
    "attention_causal": lambda q, k, v: _attention(q, k, v, True),
    "softmax": lambda x: torch.softmax(x, dim=1),
    "layernorm": lambda x, g, b: fn.layer_norm(x, (x.shape[1],), g, b, 1e-5),
    "rmsnorm": _rmsnorm,
    "nll": fn.cross_entropy,
    "chain": _chain,
    "gelu": fn.gelu,
    "bias_relu": lambda x, b: torch.relu(x + b),
    "gelu_linear": lambda x, w, b: fn.gelu(torch.addmm(b, x, w)),
    "adam": _adam,
    "blur": _blur,
    "unsharp": lambda x: torch.clamp(x + 1.5 * (x - _blur(x)), 0, 1),
    "harris": _harris,
}


def tensor(array: Any) -> Any:
    """The same memory as a tensor. torch does not know NumPy's bfloat16."""
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def prepare(case: Case, arrays: list[Any]) -> Callable[[], Any] | None:
    torch.set_grad_enabled(False)
    tensors = [tensor(array) for array in arrays]
    if case.dtype == "i8":
        return lambda: torch._int_mm(*tensors)  # type: ignore[no-untyped-call,unused-ignore]
    if case.kind == "adam":
        return _fused_adam(tensors)
    function = TABLE[case.kind]
    return lambda: function(*tensors)


def _fused_adam(tensors: list[Any]) -> Callable[[], Any]:
    """The optimizer's own fused step, on copies: it works in place, so each call starts from the last one's result.

    The first call's result is right, and that is the one that is checked; the time does not depend on the values.
    """
    p, g, m, v = (value.clone() for value in tensors)
    step = torch.tensor(1e9)  # bias corrections of 1, as in the plain definition

    def call() -> Any:
        torch._fused_adam_(
            [p], [g], [m], [v], [], [step], lr=LEARNING_RATE, beta1=BETA1, beta2=BETA2, weight_decay=0.0, eps=EPSILON,
            amsgrad=False, maximize=False,
        )  # fmt: skip
        return p, m, v

    return call
