"""medley: deriche, floyd-warshall, nussinov."""

from __future__ import annotations

import numpy as np

import polyopt as po
from polyopt import f64, i32
from tests.polybench.kernel import Array, Inputs, Kernel, extents

W, H, N = po.sizes("W H N")
i, j, k = po.indices("i j k")


@po.op
def deriche(alpha: f64, x: f64[W, H]):
    """Deriche's recursive smoothing: causal and anticausal along the rows, then along the columns."""
    i, j = po.index("i", extent=W), po.index("j", extent=H)
    e = po.exp(-alpha)
    g = (1 - e) ** 2 / (1 + 2 * alpha * e - po.exp(2 * alpha))
    a1, a2, a3, a4 = g, g * e * (alpha - 1), g * e * (alpha + 1), -g * e**2
    b1, b2 = 2**-alpha, -(e**2)
    right, left, rows = po.tensors("right left rows")
    right[i, j] = a1 * x[i, j] + a2 * x.pad(0)[i, j - 1] + b1 * right.pad(0)[i, j - 1] + b2 * right.pad(0)[i, j - 2]
    left[i, j] = (
        a3 * x.pad(0)[i, j + 1] + a4 * x.pad(0)[i, j + 2] + b1 * left.pad(0)[i, j + 1] + b2 * left.pad(0)[i, j + 2]
    )
    rows[i, j] = right[i, j] + left[i, j]
    down, up, smooth = po.tensors("down up smooth")
    down[i, j] = a1 * rows[i, j] + a2 * rows.pad(0)[i - 1, j] + b1 * down.pad(0)[i - 1, j] + b2 * down.pad(0)[i - 2, j]
    up[i, j] = (
        a3 * rows.pad(0)[i + 1, j] + a4 * rows.pad(0)[i + 2, j] + b1 * up.pad(0)[i + 1, j] + b2 * up.pad(0)[i + 2, j]
    )
    smooth[i, j] = down[i, j] + up[i, j]
    return smooth


def deriche_loops(alpha: float, x: Array) -> Array:
    g = (1 - np.exp(-alpha)) ** 2 / (1 + 2 * alpha * np.exp(-alpha) - np.exp(2 * alpha))
    forward = (g, g * np.exp(-alpha) * (alpha - 1))
    backward = (g * np.exp(-alpha) * (alpha + 1), -g * np.exp(-2 * alpha))
    feedback = (2.0**-alpha, -np.exp(-2 * alpha))
    rows = np.array([_smooth_line(line, forward, backward, feedback) for line in x])
    return np.array([_smooth_line(line, forward, backward, feedback) for line in rows.T]).T


def _smooth_line(
    x: Array, forward: tuple[float, float], backward: tuple[float, float], feedback: tuple[float, float]
) -> Array:
    n = len(x)
    causal, anticausal = np.zeros(n), np.zeros(n)
    x1 = y1 = y2 = 0.0
    for j in range(n):
        causal[j] = forward[0] * x[j] + forward[1] * x1 + feedback[0] * y1 + feedback[1] * y2
        x1, y1, y2 = x[j], causal[j], y1
    x1 = x2 = y1 = y2 = 0.0
    for j in reversed(range(n)):
        anticausal[j] = backward[0] * x1 + backward[1] * x2 + feedback[0] * y1 + feedback[1] * y2
        x1, x2, y1, y2 = x[j], x1, anticausal[j], y1
    return causal + anticausal


def deriche_inputs(n: int, rng: np.random.Generator) -> Inputs:
    w, h, _, _ = extents(n)
    return 0.25, rng.random((w, h))


@po.op
def floyd_warshall(w: i32[N, N]):
    """All shortest paths; path[k] goes through the first k nodes only."""
    k = po.index("k", extent=N)
    path = po.tensor("path")
    path[0, i, j] = w[i, j]
    path[k + 1, i, j] = po.minimum(path[k, i, j], path[k, i, k] + path[k, k, j])
    return path[N]


def floyd_warshall_loops(w: Array) -> Array:
    path = w.copy()
    for k in range(len(w)):
        for i in range(len(w)):
            for j in range(len(w)):
                path[i, j] = min(path[i, j], path[i, k] + path[k, j])
    return path


def floyd_warshall_inputs(n: int, rng: np.random.Generator) -> Inputs:
    w = rng.integers(1, 100, (n, n), dtype=np.int32)
    return (np.where(rng.random((n, n)) < 0.6, np.int32(999), w),)


@po.op
def nussinov(seq: i32[N]):
    """The most base pairs of an RNA sequence between i and j; bases pair when they add up to 3."""
    pair, best = po.tensor("pair"), po.tensor("best", shape=(N, N))
    pair[i, j] = po.cast(seq[i] + seq[j] == 3, i32)
    best[i, j] = po.when(j <= i, 0)
    best[i, j] = po.when(
        j > i,
        po.maximum(
            po.maximum(best[i, j - 1], best[i + 1, j]),
            po.maximum(
                best[i + 1, j - 1] + po.where(i + 1 < j, pair[i, j], 0),
                po.max(best[i, k] + best[k + 1, j], k, where=(i < k) & (k < j), init=0),
            ),
        ),
    )
    return best


def nussinov_loops(seq: Array) -> Array:
    n = len(seq)
    table = np.zeros((n, n), np.int32)
    for i in reversed(range(n)):
        for j in range(i + 1, n):
            pair = int(seq[i] + seq[j] == 3 and i < j - 1)
            table[i, j] = max(table[i, j - 1], table[i + 1, j], table[i + 1, j - 1] + pair)
            for k in range(i + 1, j):
                table[i, j] = max(table[i, j], table[i, k] + table[k + 1, j])
    return table


def nussinov_inputs(n: int, rng: np.random.Generator) -> Inputs:
    return (rng.integers(0, 4, n, dtype=np.int32),)


KERNELS = (
    Kernel("deriche", deriche, deriche_loops, deriche_inputs),
    Kernel("floyd-warshall", floyd_warshall, floyd_warshall_loops, floyd_warshall_inputs),
    Kernel("nussinov", nussinov, nussinov_loops, nussinov_inputs),
)
