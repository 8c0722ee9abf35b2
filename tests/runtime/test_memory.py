"""Reused memory: right for whoever holds an array or a view, bounded, and safe with threads, forks and finalisers."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyopt.runtime import memory
from polyopt.runtime.memory import ALIGNMENT, SMALLEST_BYTES, Blocks

BYTE, F32 = np.dtype(np.uint8), np.dtype(np.float32)
BIG = SMALLEST_BYTES // 4


def address(array: Any) -> int:
    return int(array.ctypes.data)


def test_memory_of_an_array_that_is_gone_serves_the_next() -> None:
    blocks = Blocks(1 << 28)
    first = blocks.empty((BIG,), F32)
    place = address(first)
    assert place % ALIGNMENT == 0 and first.flags.c_contiguous and first.flags.writeable and type(first) is np.ndarray
    del first
    assert blocks.kept_bytes > 0
    second = blocks.empty((2, BIG // 2), F32)
    assert address(second) == place and second.shape == (2, BIG // 2)
    assert blocks.kept_bytes == 0


@pytest.mark.parametrize(
    "view",
    [lambda a: a[3:7], lambda a: a.view(np.int8)[::2], lambda a: memoryview(a), lambda a: np.from_dlpack(a).T],
    ids=["slice", "dtype", "memoryview", "dlpack"],
)
def test_memory_that_a_view_keeps_is_not_used_again(view: Any) -> None:
    blocks = Blocks(1 << 28)
    array = blocks.empty((BIG,), F32)
    array[:] = 5
    kept, place = view(array), address(array)
    del array
    gc.collect()
    other = blocks.empty((BIG,), F32)
    other[:] = 7
    assert address(other) != place
    assert np.asarray(kept).tobytes()[:4] in (np.float32(5).tobytes(), bytes(np.float32(5).tobytes()[::2]) * 2)
    del kept, other
    gc.collect()
    assert len({address(blocks.empty((BIG,), F32)) for _ in range(3)}) <= 2


def test_small_arrays_come_from_numpy_and_nothing_is_kept_when_turned_off() -> None:
    assert Blocks(1 << 28).empty((3,), F32).base is None
    off = Blocks(0)
    assert off.empty((BIG,), F32).base is None and off.kept_bytes == 0
    assert off.empty((0, 4), F32).shape == (0, 4) and off.empty((), F32).shape == ()


def test_what_is_kept_is_bounded() -> None:
    blocks = Blocks(10 * SMALLEST_BYTES)
    held = [blocks.empty((SMALLEST_BYTES * (1 + n % 3),), BYTE) for n in range(20)]
    del held
    assert 0 < blocks.kept_bytes <= 10 * SMALLEST_BYTES
    huge = blocks.empty((11 * SMALLEST_BYTES,), BYTE)
    del huge
    assert blocks.kept_bytes <= 10 * SMALLEST_BYTES
    blocks.release()
    assert blocks.kept_bytes == 0


def test_blocks_waste_at_most_an_eighth() -> None:
    for size in [SMALLEST_BYTES, SMALLEST_BYTES + 1, 3 * SMALLEST_BYTES - 7, (1 << 30) + 1]:
        assert size <= memory._block_bytes(size) <= size * 1.13


def test_memory_that_cannot_be_had_lets_go_of_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = Blocks(1 << 28)
    blocks.empty((BIG,), F32)
    real, failures = memory._new_block, [MemoryError]

    def scarce(size: int) -> Any:
        if failures:
            raise failures.pop()
        return real(size)

    monkeypatch.setattr(memory, "_new_block", scarce)
    array = blocks.empty((3 * BIG,), F32)
    assert array.shape == (3 * BIG,) and blocks.kept_bytes == 0
    with pytest.raises(MemoryError):
        Blocks(1 << 28).empty((1 << 46,), BYTE)


def test_threads_never_share_a_block() -> None:
    blocks, wrong, start = Blocks(1 << 27), [], threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for turn in range(60):
            array = blocks.empty((BIG + 64 * (turn % 3),), F32)
            array[::1024] = number * 1000 + turn
            if turn % 7 == 0:
                cycle: list[Any] = [array]
                cycle.append(cycle)
            if not np.all(array[::1024] == number * 1000 + turn):
                wrong.append((number, turn))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_finaliser_inside_the_allocator_does_not_hang() -> None:
    blocks = Blocks(1 << 28)
    array = blocks.empty((BIG,), F32)
    with blocks._lock:  # as if a collection ran while a block is taken
        del array
    assert blocks.kept_bytes > 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_has_its_own_memory_and_lock() -> None:
    blocks = memory.blocks()
    array = blocks.empty((BIG,), F32)
    array[:] = 1
    with blocks._lock:
        child = os.fork()
        if child == 0:
            try:
                array[:] = 2
                fine = blocks.empty((BIG,), F32).shape == (BIG,)
                del array
                os._exit(0 if fine and blocks.kept_bytes >= 0 else 1)
            finally:
                os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert array[0] == 1


def test_the_limit_follows_the_memory_of_the_machine_or_its_control_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("160000000\n")
    monkeypatch.setattr(memory, "_CGROUP_LIMITS", (tmp_path / "none", limit))
    assert memory._default_limit() == 10_000_000
    limit.write_text("max\n")
    assert 10_000_000 < memory._default_limit() <= 1 << 30


def test_a_signal_handler_inside_the_allocator_gets_a_block_and_does_not_hang() -> None:
    blocks = Blocks(1 << 28)
    array = blocks.empty((BIG,), F32)
    del array
    before = blocks.kept_bytes
    with blocks._alone() as is_alone:
        assert is_alone
        inner = blocks.empty((BIG,), F32)
        del inner
        blocks.release()
    assert blocks.kept_bytes == 2 * before, "both came back, and nothing was let go meanwhile"
