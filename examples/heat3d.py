"""Heat in a cube, iterated in time: the border keeps its temperature.

`u` has a value for every step, but two planes of time are all that is stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import polyopt as po
from polyopt import f32

N = po.size("N")
i, j, k = po.indices("i j k")


@po.op
def heat3d(start: f32[N, N, N], steps: int):
    t = po.index("t", extent=steps)
    u = po.tensor("u")
    inside = (i > 0) & (i < N - 1) & (j > 0) & (j < N - 1) & (k > 0) & (k < N - 1)
    u[0, i, j, k] = start[i, j, k]
    u[t + 1, i, j, k] = po.where(
        inside,
        u[t, i, j, k]
        + 0.125 * (u[t, i + 1, j, k] - 2 * u[t, i, j, k] + u[t, i - 1, j, k])
        + 0.125 * (u[t, i, j + 1, k] - 2 * u[t, i, j, k] + u[t, i, j - 1, k])
        + 0.125 * (u[t, i, j, k + 1] - 2 * u[t, i, j, k] + u[t, i, j, k - 1]),
        u[t, i, j, k],
    )
    return u[steps]


def with_numpy(start: np.ndarray, steps: int) -> np.ndarray:
    u = start
    for _ in range(steps):
        centre = u[1:-1, 1:-1, 1:-1]
        new = u.copy()
        new[1:-1, 1:-1, 1:-1] += np.float32(0.125) * (
            (u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1] - 2 * centre)
            + (u[1:-1, 2:, 1:-1] + u[1:-1, :-2, 1:-1] - 2 * centre)
            + (u[1:-1, 1:-1, 2:] + u[1:-1, 1:-1, :-2] - 2 * centre)
        )
        u = new
    return u


def demo_case() -> tuple[po.Op, tuple[Any, ...], Any]:
    return heat3d, (np.random.default_rng(0).random((64, 64, 64), np.float32), 10), with_numpy


if __name__ == "__main__":
    op, inputs, oracle = demo_case()
    np.testing.assert_allclose(op(*inputs), oracle(*inputs), rtol=1e-4, atol=1e-5)
    print(op)
    print(op.lower(*inputs).loops)
