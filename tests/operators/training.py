"""Steps of optimisers, and elementwise operators."""

from __future__ import annotations

import math

import numpy as np

import polyopt as po
from tests.operators.operator import INTEGER, NUMBER, PRECISE, REAL, Array, Operator

i, j = po.indices("i j")


# --- optimisers -----------------------------------------------------------------------------------------------


@po.op
def sgd_momentum(w, v, grad, rate: float = 0.1):
    return {"w": w - rate * (0.9 * v + grad), "v": 0.9 * v + grad}


def sgd_momentum_numpy(w: Array, v: Array, grad: Array) -> dict[str, Array]:
    return {"w": w - 0.1 * (0.9 * v + grad), "v": 0.9 * v + grad}


@po.op
def adam(w, m, v, grad, step: int):
    """One step of Adam with bias correction."""
    m2, v2, w2 = po.tensors("m2 v2 w2")
    m2[i, j] = 0.9 * m[i, j] + 0.1 * grad[i, j]
    v2[i, j] = 0.99 * v[i, j] + 0.01 * grad[i, j] ** 2
    w2[i, j] = w[i, j] - 0.01 * (m2[i, j] / (1 - 0.9**step)) / (po.sqrt(v2[i, j] / (1 - 0.99**step)) + 1e-3)
    return w2, m2, v2


def adam_numpy(w: Array, m: Array, v: Array, grad: Array, step: int) -> tuple[Array, Array, Array]:
    m = 0.9 * m + 0.1 * grad
    v = 0.99 * v + 0.01 * grad**2
    return w - 0.01 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.99**step)) + 1e-3), m, v


@po.op
def rmsprop(w, v, grad):
    v2, w2 = po.tensors("v2 w2")
    v2[i, j] = 0.9 * v[i, j] + 0.1 * grad[i, j] * grad[i, j]
    w2[i, j] = w[i, j] - 0.01 * grad[i, j] * po.rsqrt(v2[i, j] + 1e-3)
    return w2, v2


def rmsprop_numpy(w: Array, v: Array, grad: Array) -> tuple[Array, Array]:
    v = 0.9 * v + 0.1 * grad * grad
    return w - 0.01 * grad / np.sqrt(v + 1e-3), v


@po.op
def clip_by_norm(grad):
    """The gradient scaled so that its norm is at most 1."""
    norm, y = po.tensors("norm y")
    norm[()] = po.sqrt(po.sum(grad[i, j] ** 2, (i, j)))
    y[i, j] = grad[i, j] / po.maximum(norm[()], 1)
    return y


def clip_by_norm_numpy(grad: Array) -> Array:
    return grad / max(np.sqrt((grad**2).sum()), 1)


@po.op
def linear_gradients(x, w, dy):
    """Gradients of y = relu(x w) for given dy."""
    y, dz, dx, dw = po.tensors("y dz dx dw")
    k = po.index("k")
    y[i, j] += x[i, k] * w[k, j]
    dz[i, j] = po.where(y[i, j] > 0, dy[i, j], 0)
    dx[i, k] += dz[i, j] * w[k, j]
    dw[k, j] += x[i, k] * dz[i, j]
    return dx, dw


def linear_gradients_numpy(x: Array, w: Array, dy: Array) -> tuple[Array, Array]:
    dz = np.where(x @ w > 0, dy, 0)
    return dz @ w.T, x.T @ dz


# --- elementwise ----------------------------------------------------------------------------------------------


@po.op
def axpy(x, y):
    z = po.tensor("z")
    z[i, j] = 3 * x[i, j] + y[i, j]
    return z


@po.op
def broadcast_sum(x, y):
    """A column plus a row, in sugar."""
    return x[:, None] + y


@po.op
def activations(x):
    return po.relu(x), po.sigmoid(x), po.tanh(x), po.silu(x), po.gelu(x), po.softplus(x)


def activations_numpy(x: Array) -> tuple[Array, ...]:
    sigmoid = 1 / (1 + np.exp(-x))
    gelu = 0.5 * x * (1 + np.vectorize(math.erf, otypes=[float])(x / math.sqrt(2)))
    return np.maximum(x, 0), sigmoid, np.tanh(x), x * sigmoid, gelu, np.log1p(np.exp(x))


@po.op
def roots_and_powers(x):
    return po.sqrt(x), po.rsqrt(x), x**3, po.log(x), po.log2(x), po.exp2(x), po.log1p(x), po.expm1(x)


def roots_and_powers_numpy(x: Array) -> tuple[Array, ...]:
    return np.sqrt(x), 1 / np.sqrt(x), x**3, np.log(x), np.log2(x), np.exp2(x), np.log1p(x), np.expm1(x)


@po.op
def rounding(x):
    return po.floor(4 * x), po.ceil(4 * x), po.round(4 * x), po.sign(x), abs(x)


def rounding_numpy(x: Array) -> tuple[Array, ...]:
    return np.floor(4 * x), np.ceil(4 * x), np.round(4 * x), np.sign(x), abs(x)


@po.op
def casts(x):
    """To every narrower and wider dtype, towards zero where the fraction is lost."""
    return tuple(po.cast(4 * x, dtype) for dtype in (po.i8, po.i16, po.i32, po.i64, po.f16, po.f32))


def casts_numpy(x: Array) -> tuple[Array, ...]:
    return tuple((4 * x).astype(dtype) for dtype in ("i1", "i2", "i4", "i8", "f2", "f4"))


@po.op
def integer_division(x, y):
    """Towards minus infinity, as in Python."""
    return x // y, x % y


@po.op
def bits(x, y):
    return x & y, x | y, x ^ y, ~x, x << 1, x >> 1


def bits_numpy(x: Array, y: Array) -> tuple[Array, ...]:
    return x & y, x | y, x ^ y, ~x, x << 1, x >> 1


@po.op
def comparisons(x, y):
    return x < y, x <= y, x == y, x != y, (x > y) | (x >= 1)


def comparisons_numpy(x: Array, y: Array) -> tuple[Array, ...]:
    return x < y, x <= y, x == y, x != y, (x > y) | (x >= 1)


@po.op
def reductions(x):
    """Each along the last axis; over nothing, the neutral element where there is one."""
    return po.sum(x, axis=1), po.prod(x, axis=1), po.any(x > 0, axis=1), po.all(x > 0, axis=1)


def reductions_numpy(x: Array) -> tuple[Array, ...]:
    positive = x > 0
    return x.sum(axis=1), x.prod(axis=1), np.any(positive, axis=1), np.all(positive, axis=1)


@po.op
def extremes(x):
    return po.max(x, axis=0), po.min(x, axis=0, keepdims=True), po.argmin(x, axis=0)


def extremes_numpy(x: Array) -> tuple[Array, ...]:
    return x.max(axis=0), x.min(axis=0, keepdims=True), x.argmin(axis=0)


@po.op
def masked_mean(x, mask):
    """The mean of the chosen entries of each row; at least one entry is counted."""
    total, count, y = po.tensors("total count y")
    total[i] += po.where(mask[i, j], x[i, j], 0)
    count[i] += po.cast(mask[i, j], x.dtype)
    y[i] = total[i] / po.maximum(count[i], 1)
    return y


def masked_mean_numpy(x: Array, mask: Array) -> Array:
    return np.where(mask, x, 0).sum(axis=1) / np.maximum(mask.sum(axis=1), 1)


@po.op
def largest_magnitude(x):
    """A reduction of the user's own."""
    y = po.tensor("y")
    y[i] = po.reduce(lambda a, b: po.where(abs(a) >= abs(b), a, b), x[i, j], j, init=0)
    return y


def largest_magnitude_numpy(x: Array) -> Array:
    y = np.zeros(len(x), x.dtype)
    for column in x.T:
        y = np.where(abs(y) >= abs(column), y, column)
    return y


@po.op
def twelve_steps(x):
    """A long element-wise chain."""
    for _ in range(6):
        x = po.tanh(x * 0.5 + 0.25) - x * 0.125
    return x


def twelve_steps_numpy(x: Array) -> Array:
    for _ in range(6):
        x = np.tanh(x * 0.5 + 0.25) - x * 0.125
    return x


PLANE = {"M": 8, "N": 32}

OPERATORS = (
    Operator(
        "sgd_momentum",
        sgd_momentum,
        sgd_momentum_numpy,
        lambda draw, m, n: (draw(m, n), draw(m, n), draw(m, n)),
        PLANE,
        PRECISE,
    ),
    Operator(
        "adam",
        adam,
        adam_numpy,
        lambda draw, m, n: (draw(m, n), draw(m, n), draw.positive(m, n), draw(m, n), 3),
        PLANE,
        PRECISE,
    ),
    Operator(
        "rmsprop",
        rmsprop,
        rmsprop_numpy,
        lambda draw, m, n: (draw(m, n), draw.positive(m, n), draw(m, n)),
        PLANE,
        PRECISE,
    ),
    Operator("clip_by_norm", clip_by_norm, clip_by_norm_numpy, lambda draw, m, n: (draw(m, n),), PLANE, PRECISE),
    Operator(
        "linear_gradients",
        linear_gradients,
        linear_gradients_numpy,
        lambda draw, m, n, k: (draw(m, k), draw(k, n), draw(m, n)),
        {"M": 8, "N": 16, "K": 8},
        PRECISE,
    ),
    Operator("axpy", axpy, lambda x, y: 3 * x + y, lambda draw, m, n: (draw(m, n), draw(m, n)), PLANE, NUMBER),
    Operator(
        "broadcast_sum",
        broadcast_sum,
        lambda x, y: x[:, None] + y,
        lambda draw, m, n: (draw(m), draw(n)),
        PLANE,
        NUMBER,
    ),
    Operator("activations", activations, activations_numpy, lambda draw, m, n: (draw(m, n),), PLANE, PRECISE),
    Operator(
        "roots_and_powers",
        roots_and_powers,
        roots_and_powers_numpy,
        lambda draw, m, n: (draw.positive(m, n),),
        PLANE,
        REAL,
    ),
    Operator("rounding", rounding, rounding_numpy, lambda draw, m, n: (draw(m, n),), PLANE, PRECISE),
    Operator("casts", casts, casts_numpy, lambda draw, m, n: (draw(m, n),), {"M": 4, "N": 16}, REAL),
    Operator(
        "integer_division",
        integer_division,
        lambda x, y: (x // y, x % y),
        lambda draw, m, n: (draw(m, n), draw.positive(m, n)),
        PLANE,
        INTEGER,
    ),
    Operator("bits", bits, bits_numpy, lambda draw, m, n: (draw(m, n), draw(m, n)), PLANE, INTEGER),
    Operator("comparisons", comparisons, comparisons_numpy, lambda draw, m, n: (draw(m, n), draw(m, n)), PLANE, NUMBER),
    Operator(
        "reductions",
        reductions,
        reductions_numpy,
        lambda draw, m, n: (draw(m, n),),
        {"M": 8, "N": 16},
        ("f64", "i64", "f32", "i32"),
    ),
    Operator(
        "extremes",
        extremes,
        extremes_numpy,
        lambda draw, m, n: (draw(m, n),),
        PLANE,
        ("f32", "f64", "i64"),
        nonempty=frozenset("M"),
        integers="wide",
    ),
    Operator(
        "masked_mean",
        masked_mean,
        masked_mean_numpy,
        lambda draw, m, n: (draw(m, n), draw.random.random((m, n)) < 0.5),
        PLANE,
        PRECISE,
    ),
    Operator(
        "largest_magnitude",
        largest_magnitude,
        largest_magnitude_numpy,
        lambda draw, m, n: (draw(m, n),),
        PLANE,
        PRECISE,
    ),
    Operator("twelve_steps", twelve_steps, twelve_steps_numpy, lambda draw, m, n: (draw(m, n),), PLANE, PRECISE),
)
