"""Conway's Game of Life on a torus: `alive.wrap()` makes the edges meet."""

from __future__ import annotations

from typing import Any

import numpy as np

import polyopt as po
from polyopt import u8

H, W = po.sizes("H W")
i, j = po.indices("i j")
di, dj = po.index("di", -1, 2), po.index("dj", -1, 2)


@po.op
def life(world: u8[H, W], steps: int):
    t = po.index("t", extent=steps)
    alive, near = po.tensors("alive near")
    alive[0, i, j] = world[i, j]
    near[t, i, j] = po.sum(alive.wrap()[t, i + di, j + dj], (di, dj)) - alive[t, i, j]
    alive[t + 1, i, j] = po.cast((near[t, i, j] == 3) | ((near[t, i, j] == 2) & (alive[t, i, j] == 1)), u8)
    return alive[steps]


def with_numpy(world: np.ndarray, steps: int) -> np.ndarray:
    shifts = [(di, dj) for di in (-1, 0, 1) for dj in (-1, 0, 1) if (di, dj) != (0, 0)]
    for _ in range(steps):
        near = sum(np.roll(world, shift, axis=(0, 1)) for shift in shifts)
        world = ((near == 3) | ((near == 2) & (world == 1))).astype(np.uint8)
    return world


def demo_case() -> tuple[po.Op, tuple[Any, ...], Any]:
    return life, (np.random.default_rng(0).integers(0, 2, (256, 256), dtype=np.uint8), 20), with_numpy


def glider(size: int) -> np.ndarray:
    world = np.zeros((size, size), np.uint8)
    world[[0, 1, 2, 2, 2], [1, 2, 0, 1, 2]] = 1
    return world


if __name__ == "__main__":
    op, inputs, oracle = demo_case()
    np.testing.assert_array_equal(op(*inputs), oracle(*inputs))
    print(op)
    for steps in (0, 4, 8):
        print(f"after {steps} steps", *("".join(".#"[cell] for cell in row) for row in op(glider(8), steps)), sep="\n")
