"""Memory for results: aligned, reused, bounded.

A large array from the C library is memory that the system has just mapped, and touching it costs more than most kernels
do. Here the memory of a large array comes back when the array and every view of it are gone, and serves the next one.
What is kept for that is bounded (`settings.kept_bytes`, by default a part of the machine's memory); small arrays come
from NumPy.

A large array has a base: the lease, which holds the memory and gives it back when it is finalised. That may happen
anywhere, also inside this module, and so may a signal handler that asks for an array. A thread that is already in here
then waits for nothing: what it gives back is queued, and what it asks for is new.

For an array of middling size that takes too long. Its base is a block that `Shelf` refers to as well, few of them and
for good, and a block to which nothing else refers is free.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from polyopt import settings

Array = np.ndarray[Any, Any]
_Row = deque[tuple[Array, int]]
"""Blocks of one size, and in each the offset of a line of the cache."""

SMALLEST_BYTES = 128 << 10
"""Arrays below this come from NumPy. Of larger ones the C library returns two or three that go together to the system,
and the next ones wait for every page."""
LEASED_BYTES = 2 << 20
"""Arrays from this size on have a lease, which takes some microseconds. They are worth them: vectors that start at a
line of the cache are stored twice as fast where several arrays are written side by side."""
ALIGNMENT = 4096
_LINE_BYTES = 64
_MOST_SHELVED_BYTES, _MOST_OF_A_SIZE = 32 << 20, 8
"""Of the blocks on a shelf, used or free: enough for the steps of a computation that are alive together. A size with so
many in use gets every second array from NumPy."""
_BYTE = np.dtype(np.uint8)
_STEPS = 8
"""Sizes of blocks between a power of two and the next: at most an eighth of a block is wasted."""
_MOST_KEPT_BYTES = 1 << 30
_SHARE_KEPT = 16
_CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


class _Lease(np.ndarray[Any, Any]):
    """A block while arrays use it: their base. Its own base is the mapping, which is no array: NumPy would skip a base
    that stands for another array.
    """

    home: Blocks | None = None

    def __del__(self) -> None:
        block: Any = self.base
        if self.home is not None:
            self.home.give_back(block)


class Shelf:
    """Blocks of middling size, by size: each is an array of bytes, free where nothing but the shelf refers to it.

    A block is taken off before it is looked at, so that neither another thread nor a signal handler can find it free.
    The last one that was used comes first, as it may still be in a cache, and then those that were used longest ago.

    limit:   bytes of blocks, used or free; the shelf forgets what goes beyond it, which others' references keep alive
    release: lets go of memory where there is no more of it
    """

    def __init__(self, limit: int, release: Callable[[], None]) -> None:
        self.limit = limit
        self._release = release
        self._rows: OrderedDict[int, _Row] = OrderedDict()

    @property
    def kept_bytes(self) -> int:
        """Bytes of the blocks that wait for their next use."""
        found = 0
        for room, row in list(self._rows.items()):
            for _ in range(len(row)):
                with suppress(IndexError):  # another thread has it
                    entry = row.popleft()
                    found += room * (_references(entry) == _UNUSED)
                    row.append(entry)
        return found

    def maker(self, size: int) -> Callable[..., Array]:
        """What makes a C-contiguous array of a shape and a dtype with so many bytes, not initialised, at the start of a
        cache line; it raises `MemoryError`."""
        room = _block_bytes(size)
        if room > self.limit or not _IS_COUNTED:
            return np.empty
        row, ndarray = self._rows.setdefault(room, deque()), np.ndarray
        takes = row.pop, *[row.popleft] * (_MOST_OF_A_SIZE - 1)

        def make(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            try:
                for take in takes:
                    entry = take()
                    if _references(entry) == _UNUSED and entry[0].flags.writeable:
                        array = ndarray(shape, dtype, *entry)
                        row.append(entry)
                        return array
                    row.append(entry)
                if len(row) >= _MOST_OF_A_SIZE:
                    row.popleft()
                    return np.empty(shape, dtype)
            except IndexError:  # there is none, or other threads have them
                pass
            entry = self._new(room)
            array = ndarray(shape, dtype, *entry)
            row.append(entry)
            return array

        return make

    def release(self) -> None:
        """Forget all blocks."""
        for row in list(self._rows.values()):
            row.clear()

    def _new(self, room: int) -> tuple[Array, int]:
        """A block. What is beyond the limit with it is forgotten, first of sizes that had a new one the longest ago."""
        self._rows.move_to_end(room)
        known = list(self._rows.items())
        total = room + sum(size * len(row) for size, row in known)
        for size, row in known:
            while total > self.limit and row:
                with suppress(IndexError):
                    row.popleft()
                total -= size
        try:
            block = np.empty(room + _LINE_BYTES, _BYTE)
        except MemoryError:
            self._release()
            block = np.empty(room + _LINE_BYTES, _BYTE)
        return block, -block.__array_interface__["data"][0] % _LINE_BYTES


def _references(entry: tuple[Array, int]) -> int:
    """How many references there are to the block of an entry, the entry's and this function's own included."""
    return sys.getrefcount(entry[0])


_UNUSED = 2
"""References to a block that nothing but an entry refers to."""


def _is_counted() -> bool:
    """Whether the interpreter counts references as CPython with its lock does, in code that it has seen often too."""
    if sys.implementation.name != "cpython" or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    entry = np.empty(1, _BYTE), 0
    free = {_references(entry) for _ in range(100)}
    array = np.ndarray((1,), _BYTE, *entry)
    used = {_references(entry) for _ in range(100)}
    return free == {_UNUSED} and used == {_UNUSED + 1} and array.base is entry[0]


_IS_COUNTED = _is_counted()


class Blocks:
    """Blocks of memory that are free to be used again, by size.

    limit: bytes of free blocks that are kept, beside those of the shelf
    shelf: has blocks of middling size
    _is_at_work: whether the holder of the lock is changing what is below; asked by the holder alone
    """

    def __init__(self, limit: int) -> None:
        self.shelf = Shelf(min(limit // 2, _MOST_SHELVED_BYTES), self.release)
        self.limit = limit - self.shelf.limit
        self._lock = threading.RLock()
        self._is_at_work = False
        self._returned: deque[mmap.mmap] = deque()
        self._free: dict[int, list[mmap.mmap]] = {}
        self._kept_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """Bytes of the blocks that wait for their next use."""
        with self._alone() as is_alone:
            if is_alone:
                self._settle()
            return self._kept_bytes + self.shelf.kept_bytes

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """A C-contiguous array, not initialised, large ones at the start of a page. Raises `MemoryError`."""
        return self.maker(math.prod(shape) * dtype.itemsize)(shape, dtype)

    def maker(self, size: int) -> Callable[..., Array]:
        """What makes such an array of a shape and a dtype with so many bytes."""
        if size < SMALLEST_BYTES or not self.limit:
            return np.empty
        if size < LEASED_BYTES:
            return self.shelf.maker(size)
        return self._leased

    def _leased(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        block = self._take(_block_bytes(math.prod(shape) * dtype.itemsize))
        lease = _Lease(len(block), _BYTE, block)
        lease.home = self
        return np.ndarray(shape, dtype, lease)

    def give_back(self, block: mmap.mmap) -> None:
        """Let a block be used again. Called by finalisers, whatever the thread at hand is doing."""
        self._returned.append(block)
        with self._alone(wait=False) as is_alone:
            if is_alone:
                self._settle()

    def release(self) -> None:
        """Return all free blocks to the system, and those of the shelf to the C library."""
        self.shelf.release()
        with self._alone() as is_alone:
            if is_alone:
                self._returned.clear()
                self._free.clear()
                self._kept_bytes = 0

    def after_fork(self) -> None:
        """In a forked child: a lock that nobody holds. Blocks are the child's own copies."""
        self._lock = threading.RLock()
        self._is_at_work = False

    @contextmanager
    def _alone(self, *, wait: bool = True) -> Iterator[bool]:
        """Whether what is below may be changed: not where this thread is changing it further out, nor where another
        one is and nobody waits for it."""
        if not self._lock.acquire(blocking=wait):
            yield False
            return
        try:
            if self._is_at_work:
                yield False
                return
            self._is_at_work = True
            try:
                yield True
            finally:
                self._is_at_work = False
        finally:
            self._lock.release()

    def _take(self, size: int) -> mmap.mmap:
        with self._alone() as is_alone:
            if is_alone:
                self._settle()
                known = self._free.get(size)
                if known:
                    self._kept_bytes -= size
                    return known.pop()
        try:
            return _new_block(size)
        except MemoryError:
            self.release()
            return _new_block(size)

    def _settle(self) -> None:
        """File what came back, and drop the largest blocks above the limit. Alone."""
        while self._returned:
            block = self._returned.popleft()
            if len(block) > self.limit:
                continue
            self._free.setdefault(len(block), []).append(block)
            self._kept_bytes += len(block)
        while self._kept_bytes > self.limit:
            size = max(size for size, blocks in self._free.items() if blocks)
            self._free[size].pop(0)
            self._kept_bytes -= size


def _block_bytes(size: int) -> int:
    """The size of the block for `size` bytes: the next of eight steps between powers of two."""
    step = max(ALIGNMENT, 1 << max(0, (size - 1).bit_length() - 1 - int(math.log2(_STEPS))))
    return -(-size // step) * step


def _new_block(size: int) -> mmap.mmap:
    """Memory of its own, on a page, private to this process and its future children. Raises `MemoryError`."""
    try:
        if not hasattr(mmap, "MAP_PRIVATE"):
            return mmap.mmap(-1, size)
        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, OverflowError):
        raise MemoryError(f"{size} bytes for a result") from None
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):
            block.madvise(mmap.MADV_HUGEPAGE)
    return block


@cache
def blocks() -> Blocks:
    """The blocks of this process."""
    wanted = settings.current().kept_bytes
    found = Blocks(_default_limit() if wanted is None else wanted)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=found.after_fork)
    return found


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """As `Blocks.empty`, from the blocks of this process."""
    return blocks().empty(shape, dtype)


def maker(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Callable[..., Array]:
    """The function that makes such an array with the least ado."""
    return blocks().maker(math.prod(shape) * dtype.itemsize)


def _default_limit() -> int:
    """A sixteenth of the memory that this process may use, at most 1 GiB."""
    return min(_MOST_KEPT_BYTES, _usable_bytes() // _SHARE_KEPT)


def _usable_bytes() -> int:
    found = [_MOST_KEPT_BYTES * _SHARE_KEPT]
    with suppress(AttributeError, OSError, ValueError):
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    for path in _CGROUP_LIMITS:
        try:
            found.append(int(path.read_text()))
        except (OSError, ValueError):
            continue
    return min(value for value in found if value > 0)
