"""Subscripts that are data, counts, and rearrangements."""

from __future__ import annotations

import numpy as np

import polyopt as po
from polyopt import i64
from tests.operators.operator import NUMBER, PRECISE, SIGNED, Array, Operator

i, j, k, p, q = po.indices("i j k p q")
n, c, h, w = po.indices("n c h w")


@po.op
def embedding(table, ids):
    y = po.tensor("y")
    y[i, j] = table[ids[i], j]
    return y


@po.op
def embedding_gradient(dy, ids, rows: int):
    """Rows of dy added up by id: a scatter."""
    dtable = po.tensor("dtable", shape=(rows, dy.shape[1]))
    dtable[ids[i], j] += dy[i, j]
    return dtable


def embedding_gradient_numpy(dy: Array, ids: Array, rows: int) -> Array:
    dtable = np.zeros((rows, dy.shape[1]), dy.dtype)
    np.add.at(dtable, ids, dy)
    return dtable


@po.op
def histogram(bins, count: int):
    hist = po.tensor("hist", shape=(count,), dtype=i64)
    hist[bins[i]] += 1
    return hist


def histogram_numpy(bins: Array, count: int) -> Array:
    return np.bincount(bins, minlength=count)


@po.op
def sparse_matvec(value, row, column, x):
    """A matrix in coordinate form times a vector."""
    y = po.tensor("y", shape=x.shape)
    y[row[p]] += value[p] * x[column[p]]
    return y


def sparse_matvec_numpy(value: Array, row: Array, column: Array, x: Array) -> Array:
    y = np.zeros(x.shape, x.dtype)
    np.add.at(y, row, value * x[column])
    return y


@po.op
def argmax_rows(x):
    y = po.tensor("y")
    y[i] = po.argmax(x[i, j], j)
    return y


@po.op
def top1_accuracy(x, label):
    """Share of the rows whose largest entry is at the label."""
    best, hits = po.tensors("best hits")
    best[i] = po.argmax(x[i, j], j)
    hits[()] = po.mean(po.cast(best[i] == label[i], po.f64), i)
    return hits


def top1_accuracy_numpy(x: Array, label: Array) -> Array:
    return (x.argmax(axis=1) == label).mean()


@po.op
def one_hot(ids, classes: int):
    j = po.index("j", extent=classes)
    y = po.tensor("y")
    y[i, j] = ids[i] == j
    return y


@po.op
def take_along(x, ids):
    y = po.tensor("y")
    y[i, j] = x[i, ids[i, j]]
    return y


@po.op
def transpose3(x):
    y = po.tensor("y")
    y[k, i, j] = x[i, j, k]
    return y


@po.op
def flip(x):
    y = po.tensor("y")
    y[i, j] = x[x.shape[0] - 1 - i, x.shape[1] - 1 - j]
    return y


@po.op
def pixel_shuffle(x):
    """Four channels become a 2 by 2 block of pixels."""
    y = po.tensor("y")
    y[n, h, w] = x[n, 2 * (h % 2) + w % 2, h // 2, w // 2]
    return y


def pixel_shuffle_numpy(x: Array) -> Array:
    n, _, h, w = x.shape
    return x.reshape(n, 2, 2, h, w).transpose(0, 3, 1, 4, 2).reshape(n, 2 * h, 2 * w)


@po.op
def interleave(x, y):
    """Two definitions with strided left sides."""
    z = po.tensor("z")
    z[2 * i] = x[i]
    z[2 * i + 1] = y[i]
    return z


@po.op
def diagonal_blocks(x, y):
    """x and y on the diagonal, zeros elsewhere: four definitions of one tensor."""
    m, n = x.shape[0], y.shape[0]
    i, j = po.index("i", extent=m), po.index("j", extent=m)
    p, q = po.index("p", m, m + n), po.index("q", m, m + n)
    z = po.tensor("z")
    z[i, j] = x[i, j]
    z[p, q] = y[p - m, q - m]
    z[i, q] = 0
    z[p, j] = 0
    return z


def diagonal_blocks_numpy(x: Array, y: Array) -> Array:
    return np.block([[x, np.zeros((len(x), len(y)), x.dtype)], [np.zeros((len(y), len(x)), x.dtype), y]])


@po.op
def im2col(x):
    k = po.index("k", extent=3)
    y = po.tensor("y")
    y[i, k] = x[i + k]
    return y


@po.op
def concatenate_and_stack(x, y):
    return po.concatenate([x, y], axis=0), po.stack([x, x + 1], axis=1)


@po.op
def matrix_slices(x):
    return x[::2], x[:, 0], x.T


PLANE = {"M": 16, "N": 16}

OPERATORS = (
    Operator(
        "embedding",
        embedding,
        lambda table, ids: table[ids],
        lambda draw, m, n: (draw(7, n), draw.indices(m, below=7)),
        PLANE,
        NUMBER,
    ),
    Operator(
        "embedding_gradient",
        embedding_gradient,
        embedding_gradient_numpy,
        lambda draw, m, n: (draw(m, n), draw.indices(m, below=5), 5),
        PLANE,
        SIGNED,
        integers="sum",
    ),
    Operator(
        "histogram",
        histogram,
        histogram_numpy,
        lambda draw, n: (draw.indices(n, below=10), 10),
        {"N": 128},
        ("i64",),
    ),
    Operator(
        "sparse_matvec",
        sparse_matvec,
        sparse_matvec_numpy,
        lambda draw, n: (draw(2 * n), draw.indices(2 * n, below=n), draw.indices(2 * n, below=n), draw(n)),
        {"N": 32},
        ("f32", "f64", "i32", "i64"),
    ),
    Operator(
        "argmax_rows",
        argmax_rows,
        lambda x: x.argmax(axis=1),
        lambda draw, m, n: (draw(m, n),),
        PLANE,
        NUMBER,
        nonempty=frozenset("N"),
        integers="wide",
    ),
    Operator(
        "top1_accuracy",
        top1_accuracy,
        top1_accuracy_numpy,
        lambda draw, m, n: (draw(m, n), draw.indices(m, below=n)),
        PLANE,
        ("f64",),
        nonempty=frozenset("MN"),
    ),
    Operator(
        "one_hot",
        one_hot,
        lambda ids, classes: ids[:, None] == np.arange(classes),
        lambda draw, m: (draw.indices(m, below=6), 6),
        {"M": 16},
        ("bool",),
    ),
    Operator(
        "take_along",
        take_along,
        lambda x, ids: np.take_along_axis(x, ids, axis=1),
        lambda draw, m, n: (draw(m, 5), draw.indices(m, n, below=5)),
        PLANE,
        NUMBER,
    ),
    Operator(
        "transpose3",
        transpose3,
        lambda x: x.transpose(2, 0, 1),
        lambda draw, m, n, k: (draw(m, n, k),),
        {"M": 8, "N": 8, "K": 16},
        (*NUMBER, "bool"),
    ),
    Operator("flip", flip, lambda x: x[::-1, ::-1], lambda draw, m, n: (draw(m, n),), PLANE, (*NUMBER, "bool")),
    Operator(
        "pixel_shuffle",
        pixel_shuffle,
        pixel_shuffle_numpy,
        lambda draw, h, w: (draw(2, 4, h, w),),
        {"H": 8, "W": 8},
        NUMBER,
    ),
    Operator(
        "interleave",
        interleave,
        lambda x, y: np.stack([x, y], axis=1).reshape(-1),
        lambda draw, n: (draw(n), draw(n)),
        {"N": 32},
        NUMBER,
    ),
    Operator(
        "diagonal_blocks",
        diagonal_blocks,
        diagonal_blocks_numpy,
        lambda draw, m, n: (draw(m, m), draw(n, n)),
        PLANE,
        NUMBER,
    ),
    Operator(
        "im2col",
        im2col,
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 3),
        lambda draw, n: (draw(n + 2),),
        {"N": 64},
        NUMBER,
        nonempty=frozenset("N"),
    ),
    Operator(
        "concatenate_and_stack",
        concatenate_and_stack,
        lambda x, y: (np.concatenate([x, y]), np.stack([x, x + 1], axis=1)),
        lambda draw, m, n: (draw(m, n), draw(m + 2, n)),
        PLANE,
        SIGNED,
    ),
    Operator(
        "matrix_slices",
        matrix_slices,
        lambda x: (x[::2], x[:, 0], x.T),
        lambda draw, m, n: (draw(m, n),),
        PLANE,
        PRECISE,
        nonempty=frozenset("N"),
    ),
)
