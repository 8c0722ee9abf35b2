"""Arrays with nothing behind them: the element after the last one lies in a page that cannot be touched.

A kernel that reads or writes past the end of such an array stops the process at that instruction, so `survives` runs
it in a forked child, which shares the memory of these arrays; what it writes just before the start is found afterwards.
"""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyopt.classes import dataclass

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


def survives(run: Callable[[], object]) -> bool:
    """Runs a function in a forked child; False where a signal, such as that of a forbidden access, stopped it.

    What it writes to guarded arrays is seen here. An exception in the child is raised again, by running it here;
    so is everything on systems without fork.
    """
    if not hasattr(os, "fork"):
        run()
        return True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # "multi-threaded": our own pool allows for forks
        child = os.fork()
    if child == 0:
        _run_and_exit(run)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return False
    if os.waitstatus_to_exitcode(status) != 0:
        run()
    return True


def _run_and_exit(run: Callable[[], object]) -> None:
    """Runs it and ends the process without the parent's clean-up, tests of its own, or messages."""
    code = 1
    try:
        faulthandler.disable()
        run()
        code = 0
    finally:
        os._exit(code)


def _forbid(block: mmap.mmap, offset: int, size: int) -> None:
    """Takes all access to a range of pages away, where the system can."""
    if sys.platform == "win32":
        return
    start = ctypes.addressof(ctypes.c_char.from_buffer(block)) + offset
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), _NO_ACCESS) != 0:
        raise OSError(ctypes.get_errno(), "mprotect failed")
