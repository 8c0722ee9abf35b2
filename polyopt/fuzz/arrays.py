"""Arrays of small whole numbers in every memory layout that an argument can have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyopt.dtypes import from_name

Array = NDArray[Any]

LAYOUTS = ("contiguous", "transposed", "strided", "negative", "broadcast", "offset")
WRITABLE_LAYOUTS = tuple(layout for layout in LAYOUTS if layout != "broadcast")


def draw(shape: tuple[int, ...], dtype: str, low: int, high: int, layout: str = "contiguous", *, seed: int) -> Array:
    """An array of whole numbers in [low, high]."""
    numbers = np.random.default_rng(seed).integers(low, high, shape, dtype=np.int64, endpoint=True)
    kept = from_name(dtype.rstrip("_")).numpy
    return lay_out(np.asarray(numbers).astype(np.uint64 if dtype == "u64" else np.int64).astype(kept), layout)


def lay_out(array: Array, layout: str) -> Array:
    """A copy of the array in the given layout; "broadcast" repeats its first row."""
    if array.ndim == 0:
        return array
    match layout:
        case "transposed":
            return np.asfortranarray(array)
        case "strided":
            wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
            wide[..., ::2] = array
            return wide[..., ::2]
        case "negative":
            return np.ascontiguousarray(array[::-1])[::-1]
        case "broadcast":
            return np.broadcast_to(array[:1].copy(), array.shape) if len(array) else array
        case "offset":
            wide = np.zeros((*array.shape[:-1], array.shape[-1] + 1), array.dtype)
            wide[..., 1:] = array
            return wide[..., 1:]
        case _:
            return np.ascontiguousarray(array)


def shifted(array: Array) -> tuple[Array, Array]:
    """A copy of a contiguous array, and an array of its shape that begins one element later in the same memory."""
    memory = np.zeros(array.size + 1, array.dtype)
    memory[: array.size] = array.ravel()
    return memory[: array.size].reshape(array.shape), memory[1:].reshape(array.shape)
