"""Unsharp masking: sharpen an image by what a blur takes away from it.

The example draws its own image, a blurred ring pattern on a gradient, and writes it before and after:

    python unsharp_mask.py [FOLDER]

The blur of a row, the blur of a column and the sharpening are three equations, computed tile by tile.
"""

from __future__ import annotations

import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

import polyopt as po
from polyopt import f32

H, W = po.sizes("H W")
i, j = po.indices("i j")

TAPS = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
AMOUNT = 1.5


@po.op
def unsharp_mask(image: f32[H, W]):
    across, blurred, sharp = po.tensors("across blurred sharp")
    across[i, j] = sum(tap * image.clamp()[i, j + r] for r, tap in enumerate(TAPS, start=-2))
    blurred[i, j] = sum(tap * across.clamp()[i + r, j] for r, tap in enumerate(TAPS, start=-2))
    sharp[i, j] = po.clip(image[i, j] + AMOUNT * (image[i, j] - blurred[i, j]), 0, 1)
    return sharp


def with_numpy(image: np.ndarray) -> np.ndarray:
    h, w = image.shape
    taps = np.array(TAPS, np.float32)
    padded = np.pad(image, 2, mode="edge")
    across = sum(taps[r] * padded[:, r : r + w] for r in range(5))
    blurred = sum(taps[r] * across[r : r + h] for r in range(5))
    return np.clip(image + np.float32(AMOUNT) * (image - blurred), 0, 1)


def soft_rings(size: int) -> np.ndarray:
    """A square image in [0, 1]: rings with soft edges on a gradient."""
    y, x = np.mgrid[:size, :size] / size
    radius = np.hypot(x - 0.5, y - 0.45)
    rings = 1 / (1 + np.exp(-6 * np.cos(60 * radius)))
    return (0.15 + 0.5 * rings + 0.25 * x * y).astype(np.float32)


def write_png(path: Path, image: np.ndarray) -> None:
    """An 8-bit greyscale PNG of an image in [0, 1]."""
    rows = (image * 255 + 0.5).astype(np.uint8)
    height, width = rows.shape
    pixels = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    chunks = (b"IHDR", struct.pack(">2I5B", width, height, 8, 0, 0, 0, 0)), (b"IDAT", pixels), (b"IEND", b"")
    with path.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, data in chunks:
            file.write(struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)))


def demo_case() -> tuple[po.Op, tuple[Any, ...], Any]:
    return unsharp_mask, (soft_rings(512),), with_numpy


if __name__ == "__main__":
    op, (image,), oracle = demo_case()
    sharp = op(image)
    np.testing.assert_allclose(sharp, oracle(image), rtol=1e-4, atol=1e-5)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.gettempdir())
    for name, pixels in (("before", image), ("after", sharp)):
        write_png(folder / f"unsharp_{name}.png", pixels)
        print(f"wrote {folder / f'unsharp_{name}.png'}")
    print(op)
    print(op.lower(image).loops)
