"""Processes, threads and forks at once: no wrong number, no crash, no hang. `-m trust` runs many more rounds."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from tests.robustness.work import finish, start

PROCESSES, OPERATORS = 8, 20

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and signals")


def a_cold_cache_survives(cache: Path, seed: int, processes: int = PROCESSES, operators: int = OPERATORS) -> None:
    draw = random.Random(seed)
    running = [start(f"compile_all({operators}, {seed + n})", cache) for n in range(processes)]
    for victim in running[: processes // 2]:
        time.sleep(draw.uniform(0.3, 1.2))
        victim.kill()
        victim.communicate()
    for process in running[processes // 2 :]:
        finish(process)
    finish(start(f"compile_all({operators}, {seed})", cache))
    finish(start(f"expect_cached({operators})", cache))


@posix
def test_processes_on_one_cold_cache_where_half_are_killed(tmp_path: Path) -> None:
    a_cold_cache_survives(tmp_path / "cache", 0)


@posix
@pytest.mark.trust
@pytest.mark.parametrize("seed", range(1, 20))
def test_many_more_processes_on_one_cold_cache(tmp_path: Path, seed: int) -> None:
    a_cold_cache_survives(tmp_path / "cache", 100 * seed, processes=16, operators=40)


def test_threads_that_call_and_compile_at_once(tmp_path: Path) -> None:
    finish(start("threads(32, 1000)", tmp_path / "cache"))


@pytest.mark.trust
@pytest.mark.parametrize("round_number", range(20))
def test_threads_many_more_times(tmp_path: Path, round_number: int) -> None:
    finish(start("threads(32, 5000)", tmp_path / "cache"), timeout_s=1000)


@posix
def test_a_signal_handler_waits_for_no_thread_that_waits_for_its_own(tmp_path: Path) -> None:
    finish(start("handler_beside_a_first_call()", tmp_path / "cache"), timeout_s=60)


@posix
@pytest.mark.parametrize("kibibytes", [64, 512])
def test_threads_with_small_stacks(tmp_path: Path, kibibytes: int) -> None:
    finish(start(f"small_stacks({kibibytes})", tmp_path / "cache"))


@posix
def test_a_main_thread_with_a_small_stack(tmp_path: Path) -> None:
    call = "import resource; most = resource.getrlimit(resource.RLIMIT_STACK)[1]"
    limit = "resource.setrlimit(resource.RLIMIT_STACK, (256 << 10, most))"
    finish(start("small_main_stack()", tmp_path / "cache", before=f"{call}; {limit}"))


@posix
def test_forks_after_parallel_use(tmp_path: Path) -> None:
    finish(start("forks(200)", tmp_path / "cache"))


@posix
def test_forks_while_other_threads_compile(tmp_path: Path) -> None:
    finish(start("threads_fork(25)", tmp_path / "cache"))


@posix
@pytest.mark.parametrize("use_of_llvm", ["host", "pool", "version"])
def test_forks_while_another_thread_is_inside_llvm(tmp_path: Path, use_of_llvm: str) -> None:
    finish(start(f"fork_beside({use_of_llvm!r})", tmp_path / "cache"))


@posix
def test_what_calls_import_is_whole_where_a_process_forks(tmp_path: Path) -> None:
    finish(start("imports_as_it_goes()", tmp_path / "cache"))


@posix
@pytest.mark.trust
@pytest.mark.parametrize("round_number", range(10))
def test_many_more_forks(tmp_path: Path, round_number: int) -> None:
    finish(start("forks(1000)", tmp_path / "cache"), timeout_s=1000)
