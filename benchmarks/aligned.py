"""Arrays that start at a cache line, for every peer alike.

Where in a line malloc's arrays start is chance, another one in each process, and decides a quarter of the time of a row
that the caches hold: vectors of 64 bytes then lie in two lines each.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

LINE_BYTES = 64

Array = np.ndarray[Any, Any]


def empty(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """An array with any contents."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + LINE_BYTES, np.uint8)
    start = -memory.ctypes.data % LINE_BYTES
    return memory[start : start + size].view(dtype).reshape(shape)


def copy(array: Array) -> Array:
    """The array's elements in memory of their own, in C order."""
    made = empty(array.shape, array.dtype)
    made[...] = array
    return made
