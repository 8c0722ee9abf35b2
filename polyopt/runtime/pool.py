"""The process's threads: how many there are, and the pool that kernels run their parallel loops on.

A pool is made per thread count and never changes its number of slots, so a kernel that was handed a pool and scratch
memory for that many slots stays right when another thread calls `set_num_threads` meanwhile. Worker threads start with
the first parallel loop. Elsewhere than on Linux kernels run on the calling thread.
"""

from __future__ import annotations

import ctypes
import logging
import math
import operator
import os
import platform
import sys
from pathlib import Path
from typing import ClassVar, SupportsIndex

from polyopt import settings
from polyopt.classes import dataclass
from polyopt.errors import ArgumentError
from polyopt.forks import COMPILING
from polyopt.room import with_room
from polyopt.runtime import jit
from polyopt.runtime.objects import LoadedCode
from polyopt.runtime.pool_ir import ARCHITECTURES, INIT, RUN, STOP, Patience, pool_ir
from polyopt.settings import MOST_THREADS
from polyopt.target import preset

_PATIENCE = Patience(pauses=40, offers=80, caller=500)
"""Idle workers watch for 50 to 200 us: longer than Python takes from one operator to the next."""
_CGROUP = Path("/sys/fs/cgroup")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Pool:
    """Threads that share the chunks of a parallel loop.

    slots: threads at most at work in one region, the caller (slot 0) included
    run:   address of `pool_run(body, context, chunks)`; 0: there is no pool, run serially
    code:  what keeps the code at that address alive; None without code
    """

    slots: int
    run: int
    code: LoadedCode | None

    def reset(self) -> None:
        """Forget the workers: in a forked child they do not exist."""
        if self.code is not None:
            ctypes.CFUNCTYPE(None, ctypes.c_int64)(self.code.addresses[INIT])(self.slots)

    def stop(self) -> None:
        """End the workers once no region runs. They start again when needed."""
        if self.code is not None:
            ctypes.CFUNCTYPE(None)(self.code.addresses[STOP])()


SERIAL = Pool(1, 0, None)


class Pools:
    """The pools made so far and the one in use."""

    _alive: ClassVar[list[Pool]] = []
    """Every pool ever made: a worker that is about to end still runs its pool's code."""

    def __init__(self) -> None:
        self._by_threads = {1: SERIAL}
        self._object_code: bytes | None = None
        self._current: Pool | None = None
        self._cell = (ctypes.c_int64 * 2)()

    def current(self) -> Pool:
        """The pool that launches use now. The first call reads POLYOPT_NUM_THREADS and makes it."""
        return self._current or self._use(settings.current().num_threads or usable_cores())

    def cell_address(self) -> int:
        """The address of two words that hold `run` and `slots` of the pool in use."""
        self.current()
        return ctypes.addressof(self._cell)

    def set_num_threads(self, threads: int) -> None:
        """Use `threads` threads from the next launch on, and end the workers that are then idle."""
        former = self._current
        if self._use(threads) is not former and former is not None:
            former.stop()

    @property
    def has_object_code(self) -> bool:
        """Whether the pool's machine code is known, so that none need be compiled."""
        return self._object_code is not None

    def object_code(self) -> bytes:
        """The pool's machine code, good for every machine of this architecture; compiled once per process."""
        return with_room(self._object)

    def provide_object_code(self, object_code: bytes) -> None:
        """Take the machine code from a cache instead of compiling it."""
        with COMPILING:
            self._object_code = self._object_code or object_code

    def after_fork(self) -> None:
        """Start afresh in a forked child, without workers."""
        for pool in self._by_threads.values():
            pool.reset()

    def _use(self, threads: int) -> Pool:
        def use() -> Pool:
            if threads not in self._by_threads:
                self._by_threads[threads] = self._make(threads)
            self._current = self._by_threads[threads]
            self._cell[:] = [self._current.run, self._current.slots]
            return self._current

        return with_room(use)

    def _make(self, threads: int) -> Pool:
        if not is_supported():
            _log.info("no thread pool on %s %s: kernels run serially", sys.platform, platform.machine())
            return SERIAL
        code = jit.load_object(self._object(), (INIT, RUN, STOP))
        pool = Pool(threads, code.addresses[RUN], code)
        self._alive.append(pool)
        pool.reset()
        return pool

    def _object(self) -> bytes:
        if self._object_code is None:
            self._object_code = jit.compile_object(pool_text(), preset("generic"), opt=1)
        return self._object_code


POOLS = Pools()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=POOLS.after_fork)


def is_supported() -> bool:
    """Whether there is a thread pool for this system."""
    return sys.platform == "linux" and platform.machine() in ARCHITECTURES


def pool_text() -> str:
    """The LLVM IR of the pool for this machine's architecture."""
    return pool_ir(platform.machine(), _PATIENCE)


def set_num_threads(threads: object) -> None:
    """Run kernels on `threads` threads, the calling one included. Raises `ArgumentError` below 1 and above 1024."""
    count = 0 if isinstance(threads, bool) or not isinstance(threads, SupportsIndex) else operator.index(threads)
    if not 1 <= count <= MOST_THREADS:
        raise ArgumentError(
            f"the number of threads cannot be {threads!r}",
            why=f"it must be a whole number from 1 to {MOST_THREADS}",
            facts={"threads": threads},
        )
    POOLS.set_num_threads(count)


def num_threads() -> int:
    """How many threads a kernel may use now."""
    return POOLS.current().slots


def usable_cores() -> int:
    """The cores this process may use: its affinity, and the quota of its control group rounded up."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota(_CGROUP)
    return min(MOST_THREADS, cores, max(1, math.ceil(quota))) if quota else min(MOST_THREADS, cores)


def _cgroup_quota(root: Path) -> float | None:
    """Cores that the control group at `root` grants (version 2, else 1); None for no limit."""
    for reader in (_quota_v2, _quota_v1):
        try:
            return reader(root)
        except (OSError, ValueError):
            continue
    return None


def _quota_v2(root: Path) -> float | None:
    quota, period = (root / "cpu.max").read_text().split()
    return None if quota == "max" else int(quota) / int(period)


def _quota_v1(root: Path) -> float | None:
    quota = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
    period = int((root / "cpu" / "cpu.cfs_period_us").read_text())
    return quota / period if quota > 0 else None
