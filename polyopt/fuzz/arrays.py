"""Arrays of small whole numbers, or of rough ones, in every memory layout that an argument can have."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyopt.dtypes import from_name

Array = NDArray[Any]
Argument = Array | np.generic | int | float

LAYOUTS = ("contiguous", "transposed", "strided", "negative", "broadcast", "offset")
WRITABLE_LAYOUTS = tuple(layout for layout in LAYOUTS if layout != "broadcast")


SCALARS = ("python", "numpy", "contiguous")
"""What a scalar may be given as: a number of Python, one of NumPy, an array without dimensions."""


def draw(
    shape: tuple[int, ...],
    dtype: str,
    low: int,
    high: int,
    layout: str = "contiguous",
    *,
    seed: int,
    rough: bool = False,
) -> Any:
    """An array of whole numbers in [low, high], or a scalar.

    rough: floats with fractions, of every sign and size, NaN and infinities among them, whatever the range
    """
    generator = np.random.default_rng(seed)
    kept = from_name(dtype.rstrip("_")).numpy
    if rough and dtype in ("f16", "bf16", "f32", "f64"):
        with np.errstate(over="ignore"):
            array = _rough(generator, shape).astype(kept)
    else:
        numbers = generator.integers(low, high, shape, dtype=np.int64, endpoint=True)
        array = np.asarray(numbers).astype(np.uint64 if dtype == "u64" else np.int64).astype(kept)
    if layout == "python":
        return array.item()
    return array[()] if layout == "numpy" else lay_out(array, layout)


def _rough(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Every second array has numbers that are special to some operation, about one in ten elements."""
    numbers = np.asarray(generator.standard_normal(shape) * 2.0 ** generator.integers(-3, 5))
    if generator.random() < 0.5:
        special = generator.choice((np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -1.5, 1.0, 1e-45, 3e38, -65504.0), shape)
        numbers = np.where(generator.random(shape) < 0.1, special, numbers)
    return np.asarray(numbers)


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
