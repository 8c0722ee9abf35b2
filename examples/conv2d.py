"""A 3 by 3 convolution that keeps height and width, with bias and relu.

Outside the image `x.pad(0)` reads zero. No window is ever copied.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import polyopt as po
from polyopt import f32

N, C, O, H, W = po.sizes("N C O H W")
n, c, o, r, s = po.indices("n c o r s")
h, w = po.index("h", extent=H), po.index("w", extent=W)


@po.op
def conv2d(x: f32[N, C, H, W], f: f32[O, C, 3, 3], b: f32[O]):
    y, out = po.tensors("y out")
    y[n, o, h, w] += x.pad(0)[n, c, h + r - 1, w + s - 1] * f[o, c, r, s]
    out[n, o, h, w] = po.relu(y[n, o, h, w] + b[o])
    return out


def with_numpy(x: np.ndarray, f: np.ndarray, b: np.ndarray) -> np.ndarray:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    y = np.einsum("nchwrs,ocrs->nohw", windows, f, optimize=True)
    return np.maximum(y + b[:, None, None], 0)


def demo_case() -> tuple[po.Op, tuple[Any, ...], Any]:
    draw = np.random.default_rng(0).standard_normal
    shapes = (2, 16, 56, 56), (32, 16, 3, 3), (32,)
    return conv2d, tuple(draw(shape, np.float32) for shape in shapes), with_numpy


if __name__ == "__main__":
    op, inputs, oracle = demo_case()
    np.testing.assert_allclose(op(*inputs), oracle(*inputs), rtol=1e-4, atol=1e-3)
    print(op)
    print(op.lower(*inputs).loops)
