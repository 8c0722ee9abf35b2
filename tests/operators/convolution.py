"""Convolutions and pooling. Images are (batch, channel, height, width), filters (out, in, height, width)."""

from __future__ import annotations

from typing import Any

import numpy as np

import polyopt as po
from tests.operators.operator import NUMBER, REAL, SIGNED, Array, Draw, Operator

n, o, c, g = po.indices("n o c g")
d, h, w = po.indices("d h w")
q, r, s = po.indices("q r s")


def windows(x: Array, extents: tuple[int, ...], *, stride: int = 1, dilation: int = 1) -> Array:
    """View of all windows over the last axes: (..., *positions, *extents)."""
    axes = tuple(range(x.ndim - len(extents), x.ndim))
    reach = tuple((e - 1) * dilation + 1 for e in extents)
    if any(x.shape[axis] < need for axis, need in zip(axes, reach, strict=True)):
        positions = tuple(len(range(0, x.shape[a] - need + 1, stride)) for a, need in zip(axes, reach, strict=True))
        return np.zeros((*x.shape[: axes[0]], *positions, *extents), x.dtype)
    view: Array = np.lib.stride_tricks.sliding_window_view(x, reach, axes)
    every, strided, dilated = slice(None), slice(None, None, stride), slice(None, None, dilation)
    return view[(*(every,) * axes[0], *(strided for _ in axes), *(dilated for _ in axes))]


@po.op
def conv1d(x, f):
    y = po.tensor("y")
    y[n, o, w] += x[n, c, w + s] * f[o, c, s]
    return y


def conv1d_numpy(x: Array, f: Array) -> Array:
    return np.einsum("ncws,ocs->now", windows(x, f.shape[2:]), f)


@po.op
def conv2d(x, f):
    y = po.tensor("y")
    y[n, o, h, w] += x[n, c, h + r, w + s] * f[o, c, r, s]
    return y


def conv2d_numpy(x: Array, f: Array, **options: int) -> Array:
    return np.einsum("nchwrs,ocrs->nohw", windows(x, f.shape[2:], **options), f)


@po.op
def conv2d_strided(x, f):
    y = po.tensor("y")
    y[n, o, h, w] += x[n, c, 2 * h + r, 2 * w + s] * f[o, c, r, s]
    return y


@po.op
def conv2d_dilated(x, f):
    y = po.tensor("y")
    y[n, o, h, w] += x[n, c, h + 2 * r, w + 2 * s] * f[o, c, r, s]
    return y


@po.op
def conv2d_same(x, f, b):
    """Zero padding keeps height and width, then bias and relu."""
    h, w = po.index("h", extent=x.shape[2]), po.index("w", extent=x.shape[3])
    y, z = po.tensors("y z")
    y[n, o, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * f[o, c, r, s]
    z[n, o, h, w] = po.relu(y[n, o, h, w] + b[o])
    return z


def conv2d_same_numpy(x: Array, f: Array, b: Array) -> Array:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.maximum(conv2d_numpy(padded, f) + b[:, None, None], 0)


@po.op
def conv2d_grouped(x, f):
    """The channels of x in groups: (batch, group, channel, height, width)."""
    y = po.tensor("y")
    y[n, g, o, h, w] += x[n, g, c, h + r, w + s] * f[g, o, c, r, s]
    return y


def conv2d_grouped_numpy(x: Array, f: Array) -> Array:
    return np.einsum("ngchwrs,gocrs->ngohw", windows(x, f.shape[3:]), f)


@po.op
def conv2d_depthwise(x, f):
    y = po.tensor("y")
    y[n, c, h, w] += x[n, c, h + r, w + s] * f[c, r, s]
    return y


def conv2d_depthwise_numpy(x: Array, f: Array) -> Array:
    return np.einsum("nchwrs,crs->nchw", windows(x, f.shape[1:]), f)


@po.op
def conv2d_separable(x, f, p):
    """A depthwise convolution, then a pointwise one."""
    y, z = po.tensors("y z")
    y[n, c, h, w] += x[n, c, h + r, w + s] * f[c, r, s]
    z[n, o, h, w] += p[o, c] * y[n, c, h, w]
    return z


def conv2d_separable_numpy(x: Array, f: Array, p: Array) -> Array:
    return np.einsum("oc,nchw->nohw", p, conv2d_depthwise_numpy(x, f))


@po.op
def conv2d_transposed(x, f):
    """Stride 2: every input element adds a scaled copy of the filter; filters are 4 by 4."""
    h, w = po.index("h", extent=2 * x.shape[2] + 2), po.index("w", extent=2 * x.shape[3] + 2)
    r, s = po.index("r", extent=2), po.index("s", extent=2)
    y = po.tensor("y")
    y[n, o, h, w] += x.pad(0)[n, c, h // 2 - r, w // 2 - s] * f[c, o, 2 * r + h % 2, 2 * s + w % 2]
    return y


def conv2d_transposed_numpy(x: Array, f: Array) -> Array:
    y = np.zeros((x.shape[0], f.shape[1], 2 * x.shape[2] + 2, 2 * x.shape[3] + 2), np.result_type(x, f))
    for r in range(4):
        for s in range(4):
            part = np.einsum("nchw,co->nohw", x, f[:, :, r, s])
            y[:, :, r : r + 2 * x.shape[2] : 2, s : s + 2 * x.shape[3] : 2] += part
    return y


@po.op
def conv3d(x, f):
    y = po.tensor("y")
    y[n, o, d, h, w] += x[n, c, d + q, h + r, w + s] * f[o, c, q, r, s]
    return y


def conv3d_numpy(x: Array, f: Array) -> Array:
    return np.einsum("ncdhwqrs,ocqrs->nodhw", windows(x, f.shape[2:]), f)


@po.op
def max_pool2d(x):
    r, s = po.index("r", extent=2), po.index("s", extent=2)
    y = po.tensor("y")
    y[n, c, h, w] = po.max(x[n, c, 2 * h + r, 2 * w + s], (r, s))
    return y


def max_pool2d_numpy(x: Array) -> Array:
    return windows(x, (2, 2), stride=2).max(axis=(-2, -1), initial=-np.inf if x.dtype.kind == "f" else -(2**62))


@po.op
def avg_pool2d(x):
    r, s = po.index("r", extent=3), po.index("s", extent=3)
    y = po.tensor("y")
    y[n, c, h, w] = po.mean(x[n, c, h + r, w + s], (r, s))
    return y


def avg_pool2d_numpy(x: Array) -> Array:
    return windows(x, (3, 3)).sum(axis=(-2, -1)) / 9


@po.op
def global_avg_pool(x):
    y = po.tensor("y")
    y[n, c] = po.mean(x[n, c, h, w], (h, w))
    return y


def global_avg_pool_numpy(x: Array) -> Array:
    return x.mean(axis=(2, 3))


@po.op
def conv_chain(x, f, e):
    """Two convolutions with a relu between them."""
    y, z = po.tensors("y z")
    y[n, o, h, w] += x[n, c, h + r, w + s] * f[o, c, r, s]
    z[n, o, h, w] += po.relu(y[n, c, h + r, w + s]) * e[o, c, r, s]
    return z


def conv_chain_numpy(x: Array, f: Array, e: Array) -> Array:
    return conv2d_numpy(np.maximum(conv2d_numpy(x, f), 0), e)


def images(draw: Draw, channels: int, height: int, width: int, *filters: tuple[int, ...]) -> tuple[Any, ...]:
    return draw(2, channels, height, width), *(draw(*shape) for shape in filters)


IMAGE = {"C": 4, "H": 8, "W": 16}

OPERATORS = (
    Operator(
        "conv1d",
        conv1d,
        conv1d_numpy,
        lambda draw, c, o, w: (draw(2, c, w + 2), draw(o, c, 3)),
        {"C": 4, "O": 4, "W": 32},
        NUMBER,
        integers="sum",
    ),
    Operator(
        "conv2d",
        conv2d,
        conv2d_numpy,
        lambda draw, c, h, w: images(draw, c, h + 2, w + 2, (3, c, 3, 3)),
        IMAGE,
        NUMBER,
        integers="sum",
    ),
    Operator(
        "conv2d_strided",
        conv2d_strided,
        lambda x, f: conv2d_numpy(x, f, stride=2),
        lambda draw, c, h, w: images(draw, c, 2 * h + 1, 2 * w + 1, (3, c, 3, 3)),
        IMAGE,
        SIGNED,
        integers="sum",
    ),
    Operator(
        "conv2d_dilated",
        conv2d_dilated,
        lambda x, f: conv2d_numpy(x, f, dilation=2),
        lambda draw, c, h, w: images(draw, c, h + 4, w + 4, (3, c, 3, 3)),
        IMAGE,
        SIGNED,
        integers="sum",
    ),
    Operator(
        "conv2d_same",
        conv2d_same,
        conv2d_same_numpy,
        lambda draw, c, h, w: images(draw, c, h, w, (3, c, 3, 3), (3,)),
        IMAGE,
    ),
    Operator(
        "conv2d_grouped",
        conv2d_grouped,
        conv2d_grouped_numpy,
        lambda draw, c, h, w: (draw(1, 2, c, h + 2, w + 2), draw(2, 3, c, 3, 3)),
        IMAGE,
        SIGNED,
        integers="sum",
    ),
    Operator(
        "conv2d_depthwise",
        conv2d_depthwise,
        conv2d_depthwise_numpy,
        lambda draw, c, h, w: images(draw, c, h + 2, w + 2, (c, 3, 3)),
        IMAGE,
        SIGNED,
        integers="sum",
    ),
    Operator(
        "conv2d_separable",
        conv2d_separable,
        conv2d_separable_numpy,
        lambda draw, c, h, w: images(draw, c, h + 2, w + 2, (c, 3, 3), (5, c)),
        IMAGE,
    ),
    Operator(
        "conv2d_transposed",
        conv2d_transposed,
        conv2d_transposed_numpy,
        lambda draw, c, h, w: images(draw, c, h, w, (c, 3, 4, 4)),
        IMAGE,
        SIGNED,
        integers="sum",
    ),
    Operator(
        "conv3d",
        conv3d,
        conv3d_numpy,
        lambda draw, c, d, h, w: (draw(1, c, d + 1, h + 1, w + 1), draw(2, c, 2, 2, 2)),
        {"C": 3, "D": 4, "H": 4, "W": 8},
    ),
    Operator(
        "max_pool2d",
        max_pool2d,
        max_pool2d_numpy,
        lambda draw, c, h, w: images(draw, c, 2 * h, 2 * w),
        IMAGE,
        NUMBER,
    ),
    Operator(
        "avg_pool2d",
        avg_pool2d,
        avg_pool2d_numpy,
        lambda draw, c, h, w: images(draw, c, h + 2, w + 2),
        IMAGE,
    ),
    Operator(
        "global_avg_pool",
        global_avg_pool,
        global_avg_pool_numpy,
        lambda draw, c, h, w: images(draw, c, h, w),
        IMAGE,
        nonempty=frozenset("HW"),
    ),
    Operator(
        "conv_chain",
        conv_chain,
        conv_chain_numpy,
        lambda draw, c, h, w: images(draw, c, h + 4, w + 4, (3, c, 3, 3), (2, 3, 3, 3)),
        IMAGE,
        REAL,
    ),
)
