"""Attention and the rest of a transformer block. Tensors are (batch, head, position, feature)."""

from __future__ import annotations

import math

import numpy as np

import polyopt as po
from tests.operators.normalisation import softmax_numpy
from tests.operators.operator import PRECISE, REAL, Array, Operator

b, h, i, j, k, d, g = po.indices("b h i j k d g")


@po.op
def attention(q, k, v):
    score, top, weight, out = po.tensors("score top weight out")
    score[b, h, i, j] = po.sum(q[b, h, i, d] * k[b, h, j, d], d) * po.rsqrt(po.cast(q.shape[3], q.dtype))
    top[b, h, i] = po.max(score[b, h, i, j], j)
    weight[b, h, i, j] = po.exp(score[b, h, i, j] - top[b, h, i])
    out[b, h, i, d] = po.sum(weight[b, h, i, j] * v[b, h, j, d], j) / po.sum(weight[b, h, i, j], j)
    return out


def attention_numpy(q: Array, k: Array, v: Array, bias: Array | float = 0.0) -> Array:
    return softmax_numpy(q @ np.swapaxes(k, -1, -2) / math.sqrt(q.shape[-1]) + bias) @ v


@po.op
def causal_attention(q, k, v):
    """Position i attends to the positions up to i; nothing else is computed."""
    score, top, weight, out = po.tensors("score top weight out")
    score[h, i, j] = po.when(j <= i, po.sum(q[h, i, d] * k[h, j, d], d) * po.rsqrt(po.cast(q.shape[2], q.dtype)))
    top[h, i] = po.max(score[h, i, j], j, where=j <= i)
    weight[h, i, j] = po.when(j <= i, po.exp(score[h, i, j] - top[h, i]))
    out[h, i, d] = po.sum(weight[h, i, j] * v[h, j, d], j, where=j <= i) / po.sum(weight[h, i, j], j, where=j <= i)
    return out


def causal_attention_numpy(q: Array, k: Array, v: Array) -> Array:
    length = q.shape[1]
    return attention_numpy(q, k, v, np.where(np.tri(length, dtype=bool), 0.0, -np.inf))


@po.op
def grouped_query_attention(q, k, v):
    """Query heads (group, member) share the key and value head of their group."""
    score, top, weight, out = po.tensors("score top weight out")
    score[g, h, i, j] = po.sum(q[g, h, i, d] * k[g, j, d], d)
    top[g, h, i] = po.max(score[g, h, i, j], j)
    weight[g, h, i, j] = po.exp(score[g, h, i, j] - top[g, h, i])
    out[g, h, i, d] = po.sum(weight[g, h, i, j] * v[g, j, d], j) / po.sum(weight[g, h, i, j], j)
    return out


def grouped_query_attention_numpy(q: Array, k: Array, v: Array) -> Array:
    return softmax_numpy(np.einsum("ghid,gjd->ghij", q, k)) @ v[:, None]


@po.op
def biased_attention(q, k, v, bias):
    """In sugar: a bias per pair of positions, shared by the heads."""
    return po.softmax(po.einsum("hid,hjd->hij", q, k) + bias) @ v


def biased_attention_numpy(q: Array, k: Array, v: Array, bias: Array) -> Array:
    return softmax_numpy(np.einsum("hid,hjd->hij", q, k) + bias) @ v


@po.op
def relative_attention(q, k, v, offset):
    """A learned bias per distance of positions: offset[i - j + n - 1]."""
    n = q.shape[0]
    score, weight, out = po.tensors("score weight out")
    score[i, j] = po.sum(q[i, d] * k[j, d], d) + offset[i - j + n - 1]
    weight[i, j] = po.exp(score[i, j])
    out[i, d] = po.sum(weight[i, j] * v[j, d], j) / po.sum(weight[i, j], j)
    return out


def relative_attention_numpy(q: Array, k: Array, v: Array, offset: Array) -> Array:
    positions = np.arange(len(q))
    return softmax_numpy(q @ k.T + offset[positions[:, None] - positions + len(q) - 1]) @ v


@po.op
def rotary(x, angle):
    """Pairs of features turned by an angle that depends on the position: (head, position, pair, 2)."""
    y = po.tensor("y")
    y[h, i, k, 0] = x[h, i, k, 0] * po.cos(angle[i, k]) - x[h, i, k, 1] * po.sin(angle[i, k])
    y[h, i, k, 1] = x[h, i, k, 0] * po.sin(angle[i, k]) + x[h, i, k, 1] * po.cos(angle[i, k])
    return y


def rotary_numpy(x: Array, angle: Array) -> Array:
    turned = (x[..., 0] + 1j * x[..., 1]) * np.exp(1j * angle)
    return np.stack([turned.real, turned.imag], axis=-1)


@po.op
def gated_mlp(x, gate, up, down):
    a, u, y = po.tensors("a u y")
    a[i, j] += x[i, k] * gate[k, j]
    u[i, j] += x[i, k] * up[k, j]
    y[i, j] += po.silu(a[i, k]) * u[i, k] * down[k, j]
    return y


def gated_mlp_numpy(x: Array, gate: Array, up: Array, down: Array) -> Array:
    a = x @ gate
    return (a / (1 + np.exp(-a)) * (x @ up)) @ down


@po.op
def gelu_mlp(x, w, b, v):
    """In sugar: x + gelu(x w + b) v."""
    return x + po.gelu(x @ w + b) @ v


def gelu_mlp_numpy(x: Array, w: Array, b: Array, v: Array) -> Array:
    a = x @ w + b
    return x + (0.5 * a * (1 + np.vectorize(math.erf, otypes=[float])(a / math.sqrt(2)))) @ v


HEADS = {"H": 3, "N": 16, "D": 8}

OPERATORS = (
    Operator(
        "attention",
        attention,
        attention_numpy,
        lambda draw, h, n, d: (draw(2, h, n, d), draw(2, h, n + 3, d), draw(2, h, n + 3, d)),
        HEADS,
        nonempty=frozenset("D"),
    ),
    Operator(
        "causal_attention",
        causal_attention,
        causal_attention_numpy,
        lambda draw, h, n, d: (draw(h, n, d), draw(h, n, d), draw(h, n, d)),
        HEADS,
        nonempty=frozenset("D"),
    ),
    Operator(
        "grouped_query_attention",
        grouped_query_attention,
        grouped_query_attention_numpy,
        lambda draw, h, n, d: (draw(2, h, n, d), draw(2, n + 1, d), draw(2, n + 1, d)),
        HEADS,
        PRECISE,
    ),
    Operator(
        "biased_attention",
        biased_attention,
        biased_attention_numpy,
        lambda draw, h, n, d: (draw(h, n, d), draw(h, n, d), draw(h, n, d), draw(n, n)),
        HEADS,
        PRECISE,
        nonempty=frozenset("N"),
    ),
    Operator(
        "relative_attention",
        relative_attention,
        relative_attention_numpy,
        lambda draw, n, d: (draw(n, d), draw(n, d), draw(n, d), draw(2 * n - 1)),
        {"N": 16, "D": 8},
        PRECISE,
        nonempty=frozenset("N"),
    ),
    Operator(
        "rotary",
        rotary,
        rotary_numpy,
        lambda draw, h, n, d: (draw(h, n, d, 2), draw(n, d)),
        HEADS,
        REAL,
    ),
    Operator(
        "gated_mlp",
        gated_mlp,
        gated_mlp_numpy,
        lambda draw, m, n, k: (draw(m, k), draw(k, n), draw(k, n), draw(n, k)),
        {"M": 8, "N": 16, "K": 8},
        PRECISE,
    ),
    Operator(
        "gelu_mlp",
        gelu_mlp,
        gelu_mlp_numpy,
        lambda draw, m, n, k: (draw(m, k), draw(k, n), draw(n), draw(n, k)),
        {"M": 8, "N": 16, "K": 8},
        PRECISE,
    ),
)
