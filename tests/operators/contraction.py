"""Contractions: products, tensor decompositions, distances."""

from __future__ import annotations

import numpy as np

import polyopt as po
from polyopt import f32, i8
from tests.operators.operator import NUMBER, PRECISE, SIGNED, Array, Operator

M, N, K = po.sizes("M N K")
b, i, j, k, m, r, d = po.indices("b i j k m r d")


@po.op
def matmul(x, y):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def linear_relu(x, w, c):
    y, out = po.tensors("y out")
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j] + c[j], 0)
    return out


@po.op
def batched_matmul(x, y):
    z = po.tensor("z")
    z[b, i, j] += x[b, i, k] * y[b, k, j]
    return z


@po.op
def matvec(a, x):
    y = po.tensor("y")
    y[i] += a[i, j] * x[j]
    return y


@po.op
def dot(x, y):
    s = po.tensor("s")
    s[()] += x[i] * y[i]
    return s


@po.op
def outer(x, y):
    z = po.tensor("z")
    z[i, j] = x[i] * y[j]
    return z


@po.op
def trace(a):
    s = po.tensor("s")
    s[()] += a[i, i]
    return s


@po.op
def gram(x):
    g = po.tensor("g")
    g[i, j] += x[k, i] * x[k, j]
    return g


@po.op
def bilinear(x, a, y):
    z = po.tensor("z")
    z[b, k] += x[b, i] * a[k, i, j] * y[b, j]
    return z


@po.op
def kronecker(x, y):
    z = po.tensor("z")
    z[i, k, j, m] = x[i, j] * y[k, m]
    return z.reshape((x.shape[0] * y.shape[0], x.shape[1] * y.shape[1]))


@po.op
def mttkrp(x, p, q):
    """Matricised tensor times Khatri-Rao product."""
    z = po.tensor("z")
    z[i, r] += x[i, j, k] * p[j, r] * q[k, r]
    return z


@po.op
def ttm(x, u):
    """Tensor times matrix along the middle axis."""
    z = po.tensor("z")
    z[i, r, k] += x[i, j, k] * u[r, j]
    return z


@po.op
def chain(a, x, c):
    return po.einsum("ij,jk,km->im", a, x, c)


@po.op
def sum_of_products(x, y):
    """Two contractions and a scaled sum, in sugar."""
    return 2 * (x @ y) + x.transpose() @ y.T


@po.op
def int8_matmul(x: i8[M, K], w: i8[K, N], scale: f32[N]):
    """Quantised weights: products of bytes summed in 32 bits, then scaled per column."""
    acc, y = po.tensors("acc y")
    acc[i, j] += x[i, k] * w[k, j]
    y[i, j] = po.cast(acc[i, j], f32) * scale[j]
    return acc, y


def int8_matmul_numpy(x: Array, w: Array, scale: Array) -> tuple[Array, Array]:
    acc = x @ w
    return acc.astype(np.int32), (acc * scale).astype(np.float32)


@po.op
def pairwise_distances(x, y):
    z = po.tensor("z")
    z[i, j] = po.sqrt(po.sum((x[i, d] - y[j, d]) ** 2, d))
    return z


def pairwise_distances_numpy(x: Array, y: Array) -> Array:
    return np.sqrt(((x[:, None] - y[None]) ** 2).sum(axis=2))


@po.op
def kmeans_assignment(x, centres):
    """The nearest centre of each point, and its squared distance."""
    dist, nearest, least = po.tensors("dist nearest least")
    dist[i, j] += (x[i, d] - centres[j, d]) ** 2
    nearest[i] = po.argmin(dist[i, j], j)
    least[i] = po.min(dist[i, j], j)
    return nearest, least


def kmeans_assignment_numpy(x: Array, centres: Array) -> tuple[Array, Array]:
    dist = ((x[:, None] - centres[None]) ** 2).sum(axis=2)
    return dist.argmin(axis=1), dist.min(axis=1)


@po.op
def cosine_similarity(x, y):
    xx, yy, z = po.tensors("xx yy z")
    xx[i] += x[i, d] * x[i, d]
    yy[j] += y[j, d] * y[j, d]
    z[i, j] = po.sum(x[i, d] * y[j, d], d) * po.rsqrt(xx[i] * yy[j])
    return z


def cosine_similarity_numpy(x: Array, y: Array) -> Array:
    return x @ y.T / np.sqrt((x**2).sum(axis=1)[:, None] * (y**2).sum(axis=1))


@po.op
def matrix_power(a, steps: int):
    """a to the power `steps`, and the powers before it."""
    t = po.index("t", extent=steps)
    p = po.tensor("p", shape=(steps + 1, *a.shape), dtype=a.dtype)
    p[0, i, j] = po.where(i == j, 1, 0)
    p[t + 1, i, j] = po.sum(p[t, i, k] * a[k, j], k)
    return p[steps]


@po.op
def tucker(core, u, v, w):
    """A tensor from its core and three factor matrices."""
    return po.einsum("abc,ia,jb,kc->ijk", core, u, v, w)


@po.op
def lower_times_vector(a, x):
    """A triangular product: only j <= i is ever read."""
    y = po.tensor("y")
    y[i] += po.when(j <= i, a[i, j] * x[j])
    return y


@po.op
def accumulate_twice(x, y, z):
    """Several accumulations on one tensor add up."""
    s = po.tensor("s")
    s[i] = z[i]
    s[i] += x[i, j]
    s[j] += y[i, j]
    return s


MNK = {"M": 16, "N": 16, "K": 16}

OPERATORS = (
    Operator(
        "matmul",
        matmul,
        lambda x, y: x @ y,
        lambda draw, m, n, k: (draw(m, k), draw(k, n)),
        {"M": 32, "N": 32, "K": 32},
        NUMBER,
        integers="sum",
    ),
    Operator(
        "linear_relu",
        linear_relu,
        lambda x, w, c: np.maximum(x @ w + c, 0),
        lambda draw, m, n, k: (draw(m, k), draw(k, n), draw(n)),
        MNK,
        SIGNED,
        integers="sum",
    ),
    Operator(
        "batched_matmul",
        batched_matmul,
        lambda x, y: x @ y,
        lambda draw, m, n, k: (draw(3, m, k), draw(3, k, n)),
        MNK,
        SIGNED,
        integers="sum",
    ),
    Operator(
        "matvec",
        matvec,
        lambda a, x: a @ x,
        lambda draw, m, n: (draw(m, n), draw(n)),
        {"M": 32, "N": 32},
        NUMBER,
        integers="sum",
    ),
    Operator(
        "dot",
        dot,
        lambda x, y: np.sum(x * y),
        lambda draw, n: (draw(n), draw(n)),
        {"N": 256},
        NUMBER,
        integers="sum",
    ),
    Operator(
        "outer",
        outer,
        np.outer,
        lambda draw, m, n: (draw(m), draw(n)),
        {"M": 16, "N": 32},
        NUMBER,
    ),
    Operator(
        "trace",
        trace,
        np.trace,
        lambda draw, n: (draw(n, n),),
        {"N": 32},
        NUMBER,
        integers="sum",
    ),
    Operator(
        "gram",
        gram,
        lambda x: x.T @ x,
        lambda draw, m, n: (draw(m, n),),
        {"M": 32, "N": 16},
        SIGNED,
        integers="sum",
    ),
    Operator(
        "bilinear",
        bilinear,
        lambda x, a, y: np.einsum("bi,kij,bj->bk", x, a, y),
        lambda draw, m, n, k: (draw(5, m), draw(k, m, n), draw(5, n)),
        {"M": 8, "N": 16, "K": 4},
    ),
    Operator(
        "kronecker",
        kronecker,
        np.kron,
        lambda draw, m, n: (draw(m, 3), draw(4, n)),
        {"M": 8, "N": 8},
        NUMBER,
    ),
    Operator(
        "mttkrp",
        mttkrp,
        lambda x, p, q: np.einsum("ijk,jr,kr->ir", x, p, q),
        lambda draw, m, n, k: (draw(m, n, k), draw(n, 6), draw(k, 6)),
        {"M": 8, "N": 8, "K": 16},
        SIGNED,
        integers="sum",
    ),
    Operator(
        "ttm",
        ttm,
        lambda x, u: np.einsum("ijk,rj->irk", x, u),
        lambda draw, m, n, k: (draw(m, n, k), draw(5, n)),
        {"M": 8, "N": 8, "K": 16},
        SIGNED,
        integers="sum",
    ),
    Operator(
        "chain",
        chain,
        lambda a, x, c: a @ x @ c,
        lambda draw, m, n, k: (draw(m, k), draw(k, n), draw(n, 5)),
        MNK,
        PRECISE,
    ),
    Operator(
        "sum_of_products",
        sum_of_products,
        lambda x, y: 2 * (x @ y) + x.T @ y.T,
        lambda draw, n: (draw(n, n), draw(n, n)),
        {"N": 16},
        PRECISE,
    ),
    Operator(
        "int8_matmul",
        int8_matmul,
        int8_matmul_numpy,
        lambda draw, m, n, k: (draw(m, k), draw(k, n), np.linspace(0.1, 2, n).astype(np.float32)),
        {"M": 16, "N": 32, "K": 64},
        ("i8",),
    ),
    Operator(
        "pairwise_distances",
        pairwise_distances,
        pairwise_distances_numpy,
        lambda draw, m, n, k: (draw(m, k), draw(n, k)),
        {"M": 16, "N": 16, "K": 8},
    ),
    Operator(
        "kmeans_assignment",
        kmeans_assignment,
        kmeans_assignment_numpy,
        lambda draw, m, n, k: (draw(m, k), draw(n, k)),
        {"M": 16, "N": 8, "K": 4},
        PRECISE,
        nonempty=frozenset("N"),
    ),
    Operator(
        "cosine_similarity",
        cosine_similarity,
        cosine_similarity_numpy,
        lambda draw, m, n, k: (draw.positive(m, k), draw.positive(n, k)),
        {"M": 16, "N": 16, "K": 8},
        nonempty=frozenset("K"),
    ),
    Operator(
        "matrix_power",
        matrix_power,
        lambda a, steps: np.linalg.matrix_power(a, steps),
        lambda draw, n: (draw(n, n), 3),
        {"N": 8},
        ("f32", "f64", "i32", "i64"),
    ),
    Operator(
        "tucker",
        tucker,
        lambda core, u, v, w: np.einsum("abc,ia,jb,kc->ijk", core, u, v, w),
        lambda draw, m, n, k: (draw(2, 3, 4), draw(m, 2), draw(n, 3), draw(k, 4)),
        {"M": 4, "N": 8, "K": 8},
        PRECISE,
    ),
    Operator(
        "lower_times_vector",
        lower_times_vector,
        lambda a, x: np.tril(a) @ x,
        lambda draw, n: (draw(n, n), draw(n)),
        {"N": 32},
        NUMBER,
        integers="sum",
    ),
    Operator(
        "accumulate_twice",
        accumulate_twice,
        lambda x, y, z: z + x.sum(axis=1) + y.sum(axis=0),
        lambda draw, m, n: (draw(n, m), draw(m, n), draw(n)),
        {"M": 16, "N": 16},
        ("f32", "i32", "f64", "i64"),
    ),
)
