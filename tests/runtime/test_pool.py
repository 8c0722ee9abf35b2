"""The thread pool: every chunk once, whatever the callers do."""

from __future__ import annotations

import ctypes
import os
import platform
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from polyopt.errors import ArgumentError
from polyopt.runtime import jit, pool, pool_ir
from polyopt.settings import override
from polyopt.target import host

pytestmark = pytest.mark.skipif(not pool.is_supported(), reason="there is no thread pool on this system")

# count(pool_run, counters, chunks): each chunk adds 1 to its own counter; the last counter is the greatest slot
COUNTING = """
define internal void @body(ptr %counters, i64 %chunk, i64 %chunks, i64 %slot) {
  %p = getelementptr i64, ptr %counters, i64 %chunk
  %o = atomicrmw add ptr %p, i64 1 monotonic
  %q = getelementptr i64, ptr %counters, i64 %chunks
  %m = atomicrmw max ptr %q, i64 %slot monotonic
  ret void
}
define void @count(ptr %pool_run, ptr %counters, i64 %chunks) {
  call void %pool_run(ptr @body, ptr %counters, i64 %chunks)
  ret void
}
"""


class Counting:
    """Runs a region of `chunks` chunks on a pool and gives the counters back, the greatest slot last."""

    def __init__(self) -> None:
        self.code = jit.load_object(jit.compile_object(COUNTING, host()), ["count"])
        kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
        self.function = kind(self.code.addresses["count"])

    def __call__(self, used: pool.Pool, chunks: int) -> list[int]:
        counters = (ctypes.c_int64 * (chunks + 1))()
        self.function(used.run, counters, chunks)
        return list(counters)


@pytest.fixture(scope="module")
def count() -> Counting:
    return Counting()


@pytest.fixture(scope="module")
def four() -> Iterator[pool.Pool]:
    pools = pool.Pools()
    pools.set_num_threads(4)
    yield pools.current()
    pools.current().stop()


@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 7, 64, 1000])
def test_every_chunk_runs_once_in_a_slot_below_the_limit(count: Counting, four: pool.Pool, chunks: int) -> None:
    for _ in range(50):
        *counters, greatest_slot = count(four, chunks)
        assert counters == [1] * chunks
        assert 0 <= greatest_slot < four.slots


def test_regions_of_changing_size_never_lose_or_repeat_a_chunk(count: Counting, four: pool.Pool) -> None:
    for round_ in range(3000):
        chunks = 2 + round_ * 7 % 13
        assert count(four, chunks)[:-1] == [1] * chunks


def test_concurrent_callers_each_get_all_their_chunks(count: Counting, four: pool.Pool) -> None:
    failures: list[list[int]] = []

    def call() -> None:
        for _ in range(300):
            counters = count(four, 5)[:-1]
            if counters != [1] * 5:
                failures.append(counters)

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_stopped_pool_starts_again(count: Counting) -> None:
    pools = pool.Pools()
    for threads in (3, 1, 3, 2, 3):
        pools.set_num_threads(threads)
        used = pools.current()
        assert used.slots == threads
        if used.run:
            assert count(used, 9)[:-1] == [1] * 9
    pools.set_num_threads(1)


def test_the_number_of_threads_may_be_one_of_numpys() -> None:
    try:
        pool.set_num_threads(np.int64(2))
        assert pool.num_threads() == 2
        for wrong in (np.int64(0), np.bool_(True), 2.0, "2"):
            with pytest.raises(ArgumentError, match="number of threads"):
                pool.set_num_threads(wrong)
    finally:
        pool.set_num_threads(pool.usable_cores())


def test_a_forked_child_computes_and_ends(count: Counting) -> None:
    pool.set_num_threads(3)
    try:
        used = pool.POOLS.current()
        assert count(used, 6)[:-1] == [1] * 6
        for _ in range(20):
            child = os.fork()
            if child == 0:
                os._exit(0 if all(count(used, 6)[:-1] == [1] * 6 for _ in range(20)) else 1)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        pool.set_num_threads(pool.usable_cores())


# modes(pool_run, words, chunks): chunk k stores its thread's MXCSR in word k
MODES = """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)
define internal void @body(ptr %words, i64 %chunk, i64 %chunks, i64 %slot) {
  %p = getelementptr i64, ptr %words, i64 %chunk
  call void @llvm.x86.sse.stmxcsr(ptr %p)
  ret void
}
define void @modes(ptr %pool_run, ptr %words, i64 %chunks) {
  %old = alloca i32
  %flush = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %old)
  store i32 40896, ptr %flush
  call void @llvm.x86.sse.ldmxcsr(ptr %flush)
  call void %pool_run(ptr @body, ptr %words, i64 %chunks)
  call void @llvm.x86.sse.ldmxcsr(ptr %old)
  ret void
}
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="MXCSR is a register of x86")
def test_workers_compute_in_the_callers_floating_point_mode(four: pool.Pool) -> None:
    code = jit.load_object(jit.compile_object(MODES, host()), ["modes"])
    modes = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(code.addresses["modes"])
    for _ in range(50):
        words = (ctypes.c_int64 * 64)()
        modes(four.run, words, 64)
        assert {word & 0x8040 for word in words} == {40896 & 0x8040}


@pytest.mark.parametrize("threads", [0, -1, 1025, 2.0, True, "2"])
def test_a_senseless_thread_count_is_refused(threads: object) -> None:
    with pytest.raises(ArgumentError, match="number of threads"):
        pool.set_num_threads(threads)


def test_the_environment_sets_the_first_thread_count() -> None:
    with override(num_threads=3):
        assert pool.Pools().current().slots == 3


@pytest.mark.parametrize(("text", "cores"), [("max 100000", None), ("150000 100000", 1.5)])
def test_a_control_group_quota_is_read(tmp_path: Path, text: str, cores: float | None) -> None:
    (tmp_path / "cpu.max").write_text(text + "\n")
    assert pool._cgroup_quota(tmp_path) == cores


def test_an_old_control_group_quota_is_read(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("50000\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert pool._cgroup_quota(tmp_path) == 0.5


@pytest.mark.parametrize("architecture", pool_ir.ARCHITECTURES)
def test_the_pool_is_valid_ir_for_each_architecture(architecture: str) -> None:
    from llvmlite import binding

    binding.parse_assembly(pool_ir.pool_ir(architecture, pool_ir.Patience(1, 1, 1))).verify()


def workers_of(used: pool.Pool, count: Counting) -> list[int]:
    """The threads that a first region starts."""
    tasks = Path("/proc/self/task")
    before = {path.name for path in tasks.iterdir()}
    count(used, 64)
    return [int(path.name) for path in tasks.iterdir() if path.name not in before]


def asleep(tids: list[int]) -> list[set[int]]:
    """The cores that threads may use once they sleep."""
    deadline = time.monotonic() + 20
    while not all("S (sleeping)" in Path(f"/proc/self/task/{tid}/status").read_text() for tid in tids):
        assert time.monotonic() < deadline, "idle workers sleep"
        time.sleep(0.01)
    return [os.sched_getaffinity(tid) for tid in tids]


def test_workers_sleep_off_the_callers_core_and_may_use_it_again_when_they_wake(count: Counting) -> None:
    """On the caller's core they would begin when the caller has done everything."""
    usable, pools = os.sched_getaffinity(0), pool.Pools()
    pools.set_num_threads(3)
    tids = workers_of(pools.current(), count)
    assert len(tids) == 2
    try:
        for cores in asleep(tids):
            assert cores < usable and len(cores) == len(usable) - 1 if len(usable) > 1 else cores == usable
        seen: list[set[int]] = []
        deadline = time.monotonic() + 20
        while usable not in seen and time.monotonic() < deadline:
            count(pools.current(), 1000)
            seen += [os.sched_getaffinity(tid) for tid in tids]
        assert usable in seen
    finally:
        pools.current().stop()


def test_cores_that_somebody_chose_for_a_sleeping_worker_stay_chosen(count: Counting) -> None:
    pools = pool.Pools()
    pools.set_num_threads(2)
    (tid,) = workers_of(pools.current(), count)
    try:
        (cores,) = asleep([tid])
        chosen = (os.sched_getaffinity(0) - cores) or cores
        os.sched_setaffinity(tid, chosen)
        for _ in range(100):
            count(pools.current(), 1000)
        assert os.sched_getaffinity(tid) == chosen
    finally:
        pools.current().stop()


def test_idle_workers_watch_for_a_while_and_then_sleep(count: Counting) -> None:
    pools = pool.Pools()
    pools.set_num_threads(3)
    count(pools.current(), 6)
    time.sleep(0.2)
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.05
    pools.set_num_threads(1)


# slots(pool_run, words, chunks): chunk k stores the slot of its thread in word k. The words behind those count the
# chunks that have begun, those that have ended, and the chunks of each slot. A chunk ends once WAIT says so.
SLOTS = """
declare i32 @sched_yield()
define internal void @body(ptr %words, i64 %chunk, i64 %chunks, i64 %slot) {
entry:
  %p = getelementptr i64, ptr %words, i64 %chunk
  store i64 %slot, ptr %p
  %begun = getelementptr i64, ptr %words, i64 %chunks
  %ended = getelementptr i64, ptr %begun, i64 1
  %own = getelementptr i64, ptr %begun, i64 2
  %mine = getelementptr i64, ptr %own, i64 %slot
  %b = atomicrmw add ptr %begun, i64 1 seq_cst
  %round = atomicrmw add ptr %mine, i64 1 seq_cst
  br label %wait
wait:
  %yielded = call i32 @sched_yield()
  WAIT
  br i1 %go, label %done, label %wait
done:
  %e = atomicrmw add ptr %ended, i64 1 seq_cst
  ret void
}
define void @slots(ptr %pool_run, ptr %words, i64 %chunks) {
  call void %pool_run(ptr @body, ptr %words, i64 %chunks)
  ret void
}
"""
IN_STEP = """
  %now = load atomic i64, ptr %begun seq_cst, align 8
  %done_by_each = add i64 %round, 1
  %by_both = mul i64 %done_by_each, 2
  %all = icmp eq i64 %now, %chunks
  %both = icmp uge i64 %now, %by_both
  %go = or i1 %all, %both
"""
WORKER_WAITS = """
  %now = load atomic i64, ptr %ended seq_cst, align 8
  %others = sub i64 %chunks, 1
  %is_last = icmp eq i64 %now, %others
  %is_caller = icmp eq i64 %slot, 0
  %theirs = load atomic i64, ptr %begun seq_cst, align 8
  %has_company = icmp ugt i64 %theirs, 1
  %caller_goes = and i1 %is_caller, %has_company
  %go = or i1 %is_last, %caller_goes
"""


def _slots(wait: str, chunks: int) -> list[int]:
    """The slot of the thread that ran each of `chunks` chunks on a pool of two."""
    code = jit.load_object(jit.compile_object(SLOTS.replace("WAIT", wait), host()), ["slots"])
    slots = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(code.addresses["slots"])
    pools = pool.Pools()
    pools.set_num_threads(2)
    words = (ctypes.c_int64 * (chunks + 4))()
    slots(pools.current().run, words, chunks)
    pools.set_num_threads(1)
    assert words[chunks] == words[chunks + 1] == chunks
    return list(words)[:chunks]


@pytest.mark.parametrize("chunks", [2, 4, 64])
def test_threads_take_the_chunks_of_their_own_stretches_first(chunks: int) -> None:
    half = chunks // 2
    for _ in range(5):
        assert _slots(IN_STEP, chunks) == [0] * half + [1] * half


@pytest.mark.parametrize("chunks", [2, 3, 7, 64])
def test_what_a_slow_thread_leaves_others_take(chunks: int) -> None:
    half = (chunks + 1) // 2
    for _ in range(5):
        assert _slots(WORKER_WAITS, chunks) == [0] * half + [1] + [0] * (chunks - half - 1)
