"""Reused memory: right for whoever holds an array or a view, bounded, and safe with threads, forks and finalisers."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyopt.runtime import memory
from polyopt.runtime.memory import ALIGNMENT, LEASED_BYTES, SMALLEST_BYTES, Blocks

BYTE, F32 = np.dtype(np.uint8), np.dtype(np.float32)
BIG, MIDDLING = LEASED_BYTES // 4, SMALLEST_BYTES // 4


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
@pytest.mark.parametrize("length", [MIDDLING, BIG])
def test_memory_that_a_view_keeps_is_not_used_again(view: Any, length: int) -> None:
    blocks = Blocks(1 << 28)
    array = blocks.empty((length,), F32)
    array[:] = 5
    kept, place = view(array), address(array)
    del array
    gc.collect()
    other = blocks.empty((length,), F32)
    other[:] = 7
    assert address(other) != place
    assert np.asarray(kept).tobytes()[:4] in (np.float32(5).tobytes(), bytes(np.float32(5).tobytes()[::2]) * 2)
    del kept, other
    gc.collect()
    assert len({address(blocks.empty((length,), F32)) for _ in range(3)}) <= 2


def test_small_arrays_come_from_numpy_and_nothing_is_kept_when_turned_off() -> None:
    assert Blocks(1 << 28).empty((3,), F32).base is None
    off = Blocks(0)
    assert off.empty((BIG,), F32).base is None and off.kept_bytes == 0
    assert off.empty((0, 4), F32).shape == (0, 4) and off.empty((), F32).shape == ()


def test_what_is_kept_is_bounded() -> None:
    blocks = Blocks(10 * LEASED_BYTES)
    held = [blocks.empty((LEASED_BYTES * (1 + n % 3),), BYTE) for n in range(20)]
    del held
    assert 0 < blocks.kept_bytes <= 10 * LEASED_BYTES
    huge = blocks.empty((11 * LEASED_BYTES,), BYTE)
    del huge
    assert blocks.kept_bytes <= 10 * LEASED_BYTES
    blocks.release()
    assert blocks.kept_bytes == 0


def test_arrays_of_middling_size_take_turns() -> None:
    blocks = Blocks(1 << 28)
    first = blocks.empty((MIDDLING,), F32)
    place = address(first)
    assert place % 64 == 0 and first.flags.c_contiguous and first.flags.writeable and type(first) is np.ndarray
    second = blocks.empty((2, MIDDLING // 2), F32)
    assert not np.shares_memory(first, second) and blocks.kept_bytes == 0
    del first
    assert blocks.kept_bytes >= 4 * MIDDLING
    assert address(blocks.empty((MIDDLING,), F32)) == place
    held = [blocks.empty((MIDDLING,), F32) for _ in range(50)]
    assert len({*map(address, held), address(second)}) == 51
    places = {*map(address, held)}
    del held
    assert 0 < blocks.kept_bytes < 20 * 4 * MIDDLING, "a shelf knows a few blocks"
    assert address(blocks.empty((MIDDLING,), F32)) in places
    blocks.release()
    assert blocks.kept_bytes == 0


def test_what_is_kept_of_all_sizes_is_bounded() -> None:
    blocks, limit = Blocks(8 * LEASED_BYTES), 8 * LEASED_BYTES
    for size in range(SMALLEST_BYTES, 3 * LEASED_BYTES, SMALLEST_BYTES // 2):
        held = [blocks.empty((size,), BYTE) for _ in range(4)]
        del held
        assert blocks.kept_bytes <= limit
    assert blocks.kept_bytes > limit // 2


def test_sizes_that_are_used_no_more_make_room_for_others() -> None:
    blocks = Blocks(2 * 8 * LEASED_BYTES)
    others = range(LEASED_BYTES // 2 + 1, LEASED_BYTES, LEASED_BYTES // 16)
    for size in (LEASED_BYTES - 1, *others):
        held = [blocks.empty((size,), BYTE) for _ in range(3)]
        del held
    places = set()
    for _ in range(20):
        held = [blocks.empty((LEASED_BYTES - 1,), BYTE) for _ in range(3)]
        places |= {*map(address, held)}
        del held
    assert len(places) == 3


@pytest.mark.parametrize("alive", [1, 2, 5, 7])
def test_the_last_results_may_stay_alive(alive: int) -> None:
    blocks, window, places = Blocks(1 << 28), deque[Any](maxlen=alive), set()
    for turn in range(80):
        window.append(blocks.empty((MIDDLING,), F32))
        if turn >= 40:
            places.add(address(window[-1]))
    assert len(places) <= 8


def test_memory_of_middling_size_that_cannot_be_had_lets_go_of_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, real, failures = Blocks(1 << 28), np.empty, [MemoryError]
    blocks.empty((BIG,), F32)
    assert blocks.kept_bytes > 0

    def scarce(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(*args)

    monkeypatch.setattr(np, "empty", scarce)
    assert blocks.empty((MIDDLING,), F32).shape == (MIDDLING,) and blocks.kept_bytes == 0


def test_a_base_that_was_frozen_serves_no_other_array() -> None:
    blocks = Blocks(1 << 28)
    frozen = blocks.empty((MIDDLING,), F32)
    assert isinstance(frozen.base, np.ndarray)
    frozen.base.flags.writeable = False
    del frozen
    assert blocks.empty((MIDDLING,), F32).flags.writeable


def test_where_references_are_not_counted_there_is_no_shelf(monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory._is_counted()
    for answers in ([1], [3], [2, 2, 1], [2, 3]):  # as if somebody held the block, or what is seen often were compiled
        with monkeypatch.context() as patch:
            found = iter(answers * 200)
            patch.setattr(sys, "getrefcount", lambda _, found=found: next(found))
            assert not memory._is_counted()
    monkeypatch.setattr(memory, "_IS_COUNTED", False)
    assert Blocks(1 << 28).empty((MIDDLING,), F32).base is None
    assert Blocks(1 << 28).empty((BIG,), F32).base is not None


FAULTS = """
import resource
import numpy as np
import polyopt as po
from polyopt import f32

N = po.size("N")
i, k = po.indices("i k")

@po.op
def mirrored(x: f32[N, N]):
    y, z = po.tensors("y z")
    y[i, k] = po.exp(x[i, N - 1 - k])
    z[i, k] = 0.1 * (y[k, i] + y[i, k] + y[N - 1 - i, k])
    return z

def pages(call):
    for _ in range(8):
        call()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        call()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / 20

worst = 0
for n in (200, 360, 500, 700):
    x = np.ones((n, n), np.float32)
    worst = max(worst, pages(lambda: mirrored(x)), pages(lambda: mirrored(mirrored(x))))
print(worst)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for page faults")
def test_calls_do_not_wait_for_pages_of_results() -> None:
    """What the C library is given back together it returns to the system: two results of 360 KB after one of 360 KB."""
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    assert float(run.stdout) < 20, "pages are new in every call"


def test_blocks_waste_at_most_an_eighth() -> None:
    for size in [SMALLEST_BYTES, LEASED_BYTES + 1, 3 * LEASED_BYTES - 7, (1 << 30) + 1]:
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


@pytest.mark.parametrize("length", [MIDDLING, BIG])
def test_threads_never_share_a_block(length: int) -> None:
    blocks, wrong, start = Blocks(1 << 27), [], threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for turn in range(60):
            array = blocks.empty((length + 64 * (turn % 3),), F32)
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
