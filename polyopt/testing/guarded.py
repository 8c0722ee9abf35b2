"""Arrays with nothing behind them: the element after the last one lies in a page that cannot be touched.

A kernel that reads or writes past the end of such an array stops the process at that instruction (pytest's fault
handler then shows the test); what it writes just before the start is found afterwards.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

_CANARY = 0xA5
_NO_ACCESS = 0


@dataclass(frozen=True, slots=True, eq=False)
class Guarded:
    """A C-contiguous array that ends at a page boundary.

    slack: the bytes between the page boundary before it and its start
    """

    array: Array
    slack: Array

    @property
    def is_intact(self) -> bool:
        """Whether the bytes before the array are as they were."""
        return bool((self.slack == _CANARY).all())


def guarded(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Guarded:
    """An array of undefined content between two pages without access."""
    count = int(np.prod(shape, dtype=np.int64))
    page = mmap.PAGESIZE
    inner = max(1, -(-count * dtype.itemsize // page)) * page
    block = mmap.mmap(-1, inner + 2 * page)
    _forbid(block, 0, page)
    _forbid(block, page + inner, page)
    whole = np.frombuffer(block, np.uint8, inner, offset=page)
    whole[...] = _CANARY
    slack = inner - count * dtype.itemsize
    return Guarded(whole[slack:].view(dtype).reshape(shape), whole[:slack])


def guarded_copy(array: Array) -> Guarded:
    copy = guarded(array.shape, array.dtype)
    copy.array[...] = array
    return copy


def _forbid(block: mmap.mmap, offset: int, size: int) -> None:
    """Takes all access to a range of pages away, where the system can."""
    if sys.platform == "win32":
        return
    start = ctypes.addressof(ctypes.c_char.from_buffer(block)) + offset
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), _NO_ACCESS) != 0:
        raise OSError(ctypes.get_errno(), "mprotect failed")
