"""Normalisations and losses. Rows are (batch, feature), images (batch, channel, height, width)."""

from __future__ import annotations

import numpy as np

import polyopt as po
from tests.operators.operator import PRECISE, Array, Operator

i, j, k = po.indices("i j k")
n, c, g, h, w = po.indices("n c g h w")

EPS = 1e-3


@po.op
def softmax(x):
    top, e, y = po.tensors("top e y")
    top[i] = po.max(x[i, j], j)
    e[i, j] = po.exp(x[i, j] - top[i])
    y[i, j] = e[i, j] / po.sum(e[i, k], k)
    return y


def softmax_numpy(x: Array) -> Array:
    e = np.exp(x - x.max(axis=-1, keepdims=True, initial=-np.inf))
    return e / e.sum(axis=-1, keepdims=True)


@po.op
def softmax_columns(x):
    """In sugar, along the first axis."""
    return po.softmax(x, axis=0)


@po.op
def log_softmax(x):
    top, total, y = po.tensors("top total y")
    top[i] = po.max(x[i, j], j)
    total[i] += po.exp(x[i, j] - top[i])
    y[i, j] = x[i, j] - top[i] - po.log(total[i])
    return y


def log_softmax_numpy(x: Array) -> Array:
    return np.log(softmax_numpy(x))


@po.op
def log_sum_exp(x):
    top, y = po.tensors("top y")
    top[i] = po.max(x[i, j], j)
    y[i] = top[i] + po.log(po.sum(po.exp(x[i, j] - top[i]), j))
    return y


def log_sum_exp_numpy(x: Array) -> Array:
    return np.log(np.exp(x).sum(axis=1))


@po.op
def cross_entropy(x, label):
    """Mean over the batch of -log softmax(x)[label]."""
    top, loss = po.tensors("top loss")
    top[i] = po.max(x[i, j], j)
    loss[()] = po.mean(top[i] + po.log(po.sum(po.exp(x[i, j] - top[i]), j)) - x[i, label[i]], i)
    return loss


def cross_entropy_numpy(x: Array, label: Array) -> Array:
    return -np.mean(np.log(softmax_numpy(x))[np.arange(len(x)), label])


@po.op
def layernorm(x, gain, bias):
    mean, var, y = po.tensors("mean var y")
    mean[i] = po.mean(x[i, j], j)
    var[i] = po.mean((x[i, j] - mean[i]) ** 2, j)
    y[i, j] = (x[i, j] - mean[i]) * po.rsqrt(var[i] + EPS) * gain[j] + bias[j]
    return y


def layernorm_numpy(x: Array, gain: Array, bias: Array) -> Array:
    return (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + EPS) * gain + bias


@po.op
def rmsnorm(x, gain):
    y = po.tensor("y")
    y[i, j] = x[i, j] * po.rsqrt(po.mean(x[i, k] ** 2, k) + EPS) * gain[j]
    return y


def rmsnorm_numpy(x: Array, gain: Array) -> Array:
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + EPS) * gain


@po.op
def batchnorm(x, gain, bias):
    """Statistics per channel over batch and image; the statistics are results too."""
    mean, var, y = po.tensors("mean var y")
    mean[c] = po.mean(x[n, c, h, w], (n, h, w))
    var[c] = po.mean((x[n, c, h, w] - mean[c]) ** 2, (n, h, w))
    y[n, c, h, w] = (x[n, c, h, w] - mean[c]) * po.rsqrt(var[c] + EPS) * gain[c] + bias[c]
    return y, mean, var


def batchnorm_numpy(x: Array, gain: Array, bias: Array) -> tuple[Array, Array, Array]:
    mean, var = x.mean(axis=(0, 2, 3)), x.var(axis=(0, 2, 3))
    y = (x - mean[:, None, None]) / np.sqrt(var + EPS)[:, None, None] * gain[:, None, None] + bias[:, None, None]
    return y, mean, var


@po.op
def groupnorm(x):
    """Channels in groups: (batch, group, channel, height, width)."""
    mean, var, y = po.tensors("mean var y")
    mean[n, g] = po.mean(x[n, g, c, h, w], (c, h, w))
    var[n, g] = po.mean((x[n, g, c, h, w] - mean[n, g]) ** 2, (c, h, w))
    y[n, g, c, h, w] = (x[n, g, c, h, w] - mean[n, g]) * po.rsqrt(var[n, g] + EPS)
    return y


def groupnorm_numpy(x: Array) -> Array:
    axes = (2, 3, 4)
    return (x - x.mean(axis=axes, keepdims=True)) / np.sqrt(x.var(axis=axes, keepdims=True) + EPS)


@po.op
def instancenorm(x):
    mean, var, y = po.tensors("mean var y")
    mean[n, c] = po.mean(x[n, c, h, w], (h, w))
    var[n, c] = po.mean(x[n, c, h, w] ** 2, (h, w)) - mean[n, c] ** 2
    y[n, c, h, w] = (x[n, c, h, w] - mean[n, c]) * po.rsqrt(var[n, c] + 0.1)
    return y


def instancenorm_numpy(x: Array) -> Array:
    return (x - x.mean(axis=(2, 3), keepdims=True)) / np.sqrt(x.var(axis=(2, 3), keepdims=True) + 0.1)


@po.op
def unit_vectors(x):
    y = po.tensor("y")
    y[i, j] = x[i, j] / po.sqrt(po.sum(x[i, k] * x[i, k], k))
    return y


def unit_vectors_numpy(x: Array) -> Array:
    return x / np.sqrt((x * x).sum(axis=1, keepdims=True))


@po.op
def mean_squared_error(x, y):
    return po.mean((x - y) ** 2)


ROWS = {"M": 8, "N": 32}
IMAGE = {"C": 4, "H": 8, "W": 8}

OPERATORS = (
    Operator("softmax", softmax, softmax_numpy, lambda draw, m, n: (draw(m, n),), ROWS, nonempty=frozenset("N")),
    Operator(
        "softmax_columns",
        softmax_columns,
        lambda x: softmax_numpy(x.T).T,
        lambda draw, m, n: (draw(m, n),),
        ROWS,
        nonempty=frozenset("M"),
    ),
    Operator(
        "log_softmax",
        log_softmax,
        log_softmax_numpy,
        lambda draw, m, n: (draw(m, n),),
        ROWS,
        nonempty=frozenset("N"),
    ),
    Operator(
        "log_sum_exp",
        log_sum_exp,
        log_sum_exp_numpy,
        lambda draw, m, n: (draw(m, n),),
        ROWS,
        PRECISE,
        nonempty=frozenset("N"),
    ),
    Operator(
        "cross_entropy",
        cross_entropy,
        cross_entropy_numpy,
        lambda draw, m, n: (draw(m, n), draw.indices(m, below=n)),
        ROWS,
        PRECISE,
        nonempty=frozenset("MN"),
    ),
    Operator(
        "layernorm",
        layernorm,
        layernorm_numpy,
        lambda draw, m, n: (draw(m, n), draw(n), draw(n)),
        ROWS,
        nonempty=frozenset("N"),
    ),
    Operator(
        "rmsnorm",
        rmsnorm,
        rmsnorm_numpy,
        lambda draw, m, n: (draw(m, n), draw(n)),
        ROWS,
        nonempty=frozenset("N"),
    ),
    Operator(
        "batchnorm",
        batchnorm,
        batchnorm_numpy,
        lambda draw, c, h, w: (draw(3, c, h, w), draw(c), draw(c)),
        IMAGE,
        PRECISE,
        nonempty=frozenset("HW"),
    ),
    Operator(
        "groupnorm",
        groupnorm,
        groupnorm_numpy,
        lambda draw, c, h, w: (draw(2, 2, c, h, w),),
        IMAGE,
        PRECISE,
        nonempty=frozenset("CHW"),
    ),
    Operator(
        "instancenorm",
        instancenorm,
        instancenorm_numpy,
        lambda draw, c, h, w: (draw(2, c, h, w),),
        IMAGE,
        PRECISE,
        nonempty=frozenset("HW"),
    ),
    Operator(
        "unit_vectors",
        unit_vectors,
        unit_vectors_numpy,
        lambda draw, m, n: (draw.positive(m, n),),
        ROWS,
    ),
    Operator(
        "mean_squared_error",
        mean_squared_error,
        lambda x, y: np.mean((x - y) ** 2),
        lambda draw, m, n: (draw(m, n), draw(m, n)),
        ROWS,
        PRECISE,
        nonempty=frozenset("MN"),
    ),
)
