"""polyopt beside its peers, row by row: `make bench`, `make bench-quick`.

    python -m benchmarks.run [--quick] [--only REGEX] [--threads 1,2] [--peers NAME,...] [--resume] [--minutes N]

Every peer family runs in a process of its own, so that no two threading runtimes share one, and rounds go from process
to process. Those that wait are stopped, since idle workers of some spin, and take a core from the one at turn. With
one thread all processes are bound to the same core. A result is compared with float64 before it is timed. A peer that
fails, hangs or is not installed is shown as such; it never ends the run. Rows are written as they are measured, so
`--resume` goes on where a run was stopped.

results/KIND.jsonl: the newest complete run of each kind of machine; RESULTS.md and ratios.svg are made from these.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np

from benchmarks import publish
from benchmarks.cases import QUICK, Case, all_cases, expected, inputs
from benchmarks.peers import PEERS
from polyopt.runtime import pool, rates
from polyopt.target import Rates, host

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
ROUNDS, ROUND_S = 5, 0.05
PAUSE_S = 0.004
"""Between processes."""
PREPARE_LIMIT_S, TIME_LIMIT_S, START_LIMIT_S = 90.0, 20.0, 90.0
SLOW = 6.0
"""A peer this many times slower than polyopt and the best peer is timed in one round only."""
SAMPLED_ABOVE = 2 * 10**7
"""Elements above which every 97th element of an element-wise result is compared."""


class Died(Exception):
    """A peer's process ended, or did not answer in time."""


class Child:
    """A peer's process. Started when needed, and again after it died."""

    def __init__(self, name: str, threads: int, cores: Sequence[int]) -> None:
        self.name, self.threads, self.cores = name, threads, cores
        self.version = ""
        self.absent = ""
        self._process: subprocess.Popen[str] | None = None

    def ask(self, limit_s: float, **request: Any) -> dict[str, Any]:
        """The answer to a request; until then and afterwards the process is stopped. Raises `Died`."""
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None, "just started"
        self._signal("SIGCONT")
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        except OSError:
            self.end()
            raise Died("crashed") from None
        answer = self._answer(limit_s)
        self._signal("SIGSTOP")
        return answer

    def _signal(self, name: str) -> None:
        """Sends a signal to the process and what it started, where the system has it."""
        if self._process is not None and hasattr(signal, name):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, getattr(signal, name))

    def command(self) -> list[str]:
        return [sys.executable, "-m", "benchmarks.child", self.name]

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self.command(), cwd=ROOT, env=self._environment(), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, preexec_fn=self._bind, start_new_session=True,
        )  # fmt: skip
        status = self._answer(START_LIMIT_S)
        if status["status"] != "ready":
            self.absent = status["status"].removeprefix("absent: ")
            self.end()
            raise Died(self.absent)
        self.version = status["version"]

    def _bind(self) -> None:
        if hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, self.cores)

    def _environment(self) -> dict[str, str]:
        """One thread count for all runtimes; a C library that reuses memory, which peers that make new results need."""
        count = str(self.threads)
        names = ("OMP", "MKL", "OPENBLAS", "NUMBA", "POLYOPT")
        return {
            **os.environ,
            **{f"{name}_NUM_THREADS": count for name in names},
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "MALLOC_MMAP_THRESHOLD_": str(4 << 30),
            "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
            "KMP_BLOCKTIME": "1",
            "GOMP_SPINCOUNT": "100000",
            "JAX_PLATFORMS": "cpu",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }

    def _answer(self, limit_s: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdout is not None, "started before"
        pipe: IO[str] = self._process.stdout
        if not select.select([pipe], [], [], limit_s)[0]:
            self.end()
            raise Died(f"no answer in {limit_s:.0f} s")
        line = pipe.readline()
        if not line:
            self.end()
            raise Died("crashed")
        found: dict[str, Any] = json.loads(line)
        return found

    def has_nothing(self) -> bool:
        """Whether the peer said that it is not installed."""
        return bool(self.absent)

    def end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()


@dataclass(slots=True)
class Measured:
    """What became of one row: times by peer and round, and why peers have none."""

    times: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    prepare_ms: dict[str, float] = field(default_factory=dict)

    def best_peer(self) -> str | None:
        peers = {name: statistics.median(times) for name, times in self.times.items() if name != "polyopt"}
        return min(peers, key=lambda name: peers[name]) if peers else None

    def ratio(self) -> float | None:
        """The median over rounds of the best peer's time over polyopt's; 2 means twice as fast as every peer."""
        best = self.best_peer()
        if best is None or "polyopt" not in self.times:
            return None
        pairs = list(zip(self.times[best], self.times["polyopt"]))
        return statistics.median(peer / own for peer, own in pairs)


def measure_row(case: Case, children: Sequence[Child], folder: Path, rounds: int) -> Measured:
    """Prepare, check and time one row on every peer that has it."""
    row = Measured()
    request = _write_inputs(case, folder)
    ready: list[Child] = []
    once: dict[str, float] = {}
    for child in children:
        if child.has_nothing():
            row.missing[child.name] = "absent"
            continue
        try:
            answer = child.ask(PREPARE_LIMIT_S, do="prepare", **request)
        except Died as error:
            row.missing[child.name] = "absent" if child.has_nothing() else str(error)
            continue
        if answer["status"] == "ok":
            ready.append(child)
            once[child.name] = answer["once_ms"]
            row.prepare_ms[child.name] = answer["prepare_ms"]
        elif answer["status"] != "none":
            row.missing[child.name] = answer["status"]
    for number in range(rounds):
        for child in ready[number % max(1, len(ready)) :] + ready[: number % max(1, len(ready))]:
            if child.name in row.missing or (number and _is_hopeless(child.name, row)):
                continue
            time.sleep(PAUSE_S)
            try:
                answer = child.ask(TIME_LIMIT_S + 4e-3 * once[child.name], do="time", seconds=ROUND_S)
            except Died as error:
                row.missing[child.name] = str(error)
                continue
            if answer["status"] == "ok":
                row.times.setdefault(child.name, []).append(answer["ms"])
            else:
                row.missing[child.name] = answer["status"]
    for child in ready:
        with contextlib.suppress(Died):
            if child.name not in row.missing:
                child.ask(TIME_LIMIT_S, do="drop")
    for name in row.missing:
        row.times.pop(name, None)
    return row


def _is_hopeless(name: str, row: Measured) -> bool:
    if name == "polyopt" or name not in row.times or "polyopt" not in row.times:
        return False
    best = row.best_peer()
    limit = min(row.times["polyopt"][0], row.times[best][0] if best else float("inf"))
    return name != best and row.times[name][0] > SLOW * limit


def _write_inputs(case: Case, folder: Path) -> dict[str, Any]:
    """The row's inputs and expected results as files that every process reads."""
    for path in folder.iterdir():
        path.unlink()
    arrays = inputs(case)
    step = 97 if arrays[0].ndim == 1 and arrays[0].size > SAMPLED_ABOVE else 1
    paths = []
    for number, array in enumerate(arrays):
        is_bf16 = array.dtype.name == "bfloat16"
        path = folder / f"in{number}{'.bf16' if is_bf16 else ''}.npy"
        np.save(path, array.view(np.int16) if is_bf16 else array)
        paths.append(str(path))
    wanted = expected(case, [array[::step] for array in arrays] if step > 1 else arrays)
    exact = []
    for number, array in enumerate(wanted):
        np.save(folder / f"out{number}.npy", array)
        exact.append(str(folder / f"out{number}.npy"))
    return {"case": case.name, "inputs": paths, "expected": exact, "step": step}


# --- what the machine allows ------------------------------------------------------------------------------------


def bound_ms(case: Case, found: Rates, threads: int) -> float:
    """The least time that the machine allows: operations over the measured peak, or bytes over the bandwidth of the
    cache that holds the row's arrays, whichever is more.
    """
    peak = {"f32": found.fma_f32, "f64": found.fma_f64, "bf16": found.fma_bf16, "i8": found.fma_i8}[case.dtype]
    return max(case.flops / (peak * threads), case.traffic / _bandwidth(case, found, threads)) / 1e6


def _bandwidth(case: Case, found: Rates, threads: int) -> float:
    machine = host()
    for size, rate in ((machine.l1_bytes, found.l1), (machine.l2_bytes, found.l2)):
        if case.traffic <= size * threads:
            return rate * threads
    if case.traffic <= machine.l3_bytes:
        return found.l3 * threads
    return max(found.dram, found.copy) if threads == 1 else max(found.dram_all, found.copy_all, found.dram)


def as_record(case: Case, row: Measured, threads: int, found: Rates) -> dict[str, Any]:
    """One line of the results."""
    ms = {name: _rounded(statistics.median(times)) for name, times in row.times.items()}
    ratio, floor = row.ratio(), bound_ms(case, found, threads)
    own = ms.get("polyopt")
    return {
        "row": case.name,
        "family": case.family,
        "threads": threads,
        "ms": ms,
        "best": row.best_peer(),
        "ratio": None if ratio is None else _rounded(ratio),
        "gops": None if own is None else _rounded(case.flops / own / 1e6),
        "gbytes": None if own is None else _rounded(case.traffic / own / 1e6),
        "share": None if own is None else _rounded(floor / own),
        "missing": {name: why for name, why in row.missing.items() if why != "absent"},
        "compile_ms": _rounded(row.prepare_ms.get("polyopt", 0.0)),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def machine_header(found: Rates, versions: dict[str, str]) -> dict[str, Any]:
    machine = host()
    return {
        "machine": kind_of_machine(),
        "cores": pool.usable_cores(),
        "caches": [machine.l1_bytes, machine.l2_bytes, machine.l3_bytes],
        "commit": commit(),
        "python": platform.python_version(),
        "when": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "versions": versions,
        "rates": {name: _rounded(value) for name, value in found.as_json().items()},
    }


def kind_of_machine() -> str:
    """A name for machines like this one, as a file may have it."""
    machine = host()
    return f"{machine.cpu}-{machine.name}-{pool.usable_cores()}cores"


def commit() -> str:
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.strip()


# --- the run ----------------------------------------------------------------------------------------------------


def main() -> None:
    options = _options()
    cases = [case for case in all_cases() if re.search(options.only, case.name)]
    if options.quick:
        cases = [case for case in cases if case.name in QUICK]
    counts = sorted({1, pool.usable_cores()} if options.threads is None else set(map(int, options.threads.split(","))))
    names = ["polyopt", *(name for name in options.peers.split(",") if name != "polyopt")]
    found = rates.measure()
    deadline = time.monotonic() + 60 * options.minutes
    partial = RESULTS / f"{kind_of_machine()}.partial.jsonl"
    RESULTS.mkdir(exist_ok=True)
    known = _known(partial) if options.resume else {}
    if not options.resume:
        partial.unlink(missing_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="polyopt-bench-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    versions: dict[str, str] = {}
    records, left_out = list(known.values()), []
    try:
        for threads in counts:
            cores = sorted(os.sched_getaffinity(0))[:threads] if hasattr(os, "sched_getaffinity") else range(threads)
            children = [Child(name, threads, cores) for name in names]
            try:
                for case in cases:
                    if (case.name, threads) in known:
                        continue
                    if time.monotonic() > deadline or case.memory > _free_bytes():
                        left_out.append(f"{case.name} on {threads}")
                        continue
                    record = as_record(case, measure_row(case, children, folder, options.rounds), threads, found)
                    records.append(record)
                    with partial.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(record) + "\n")
                    print(line_of(record), flush=True)
                versions |= {child.name: child.version or f"absent ({child.absent})" for child in children}
            finally:
                for child in children:
                    child.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    order = {case.name: number for number, case in enumerate(all_cases())}
    records.sort(key=lambda record: (order.get(record["row"], len(order)), record["threads"]))
    header = machine_header(found, versions) | {"left_out": left_out}
    print("\n" + publish.summary(records))
    if left_out:
        print(f"left out for want of time or memory: {', '.join(left_out)}")
    if options.quick or options.only != ".":
        return
    lines = [json.dumps(value) for value in (header, *records)]
    (RESULTS / f"{kind_of_machine()}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    partial.unlink(missing_ok=True)
    publish.write(RESULTS)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.run", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a dozen rows; nothing is published")
    parser.add_argument("--only", default=".", metavar="REGEX", help="rows whose names match; nothing is published")
    parser.add_argument("--threads", metavar="N,...", help="thread counts; default: 1 and all cores")
    parser.add_argument("--peers", default=",".join(PEERS), metavar="NAME,...", help=", ".join(PEERS))
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default: {ROUNDS}")
    parser.add_argument("--minutes", type=float, default=28.0, help="rows not begun by then are left out; default: 28")
    parser.add_argument("--resume", action="store_true", help="keep the rows that a stopped run has measured")
    return parser.parse_args()


def _known(partial: Path) -> dict[tuple[str, int], dict[str, Any]]:
    if not partial.is_file():
        return {}
    records = [json.loads(line) for line in partial.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return {(record["row"], record["threads"]): record for record in records}


def _free_bytes() -> float:
    """Memory that is free now; infinity where the system does not say."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * float(line.split()[1])
    return float("inf")


def line_of(record: dict[str, Any]) -> str:
    times = "  ".join(f"{name} {ms:.4g}" for name, ms in record["ms"].items())
    ratio = "  -  " if record["ratio"] is None else f"{record['ratio']:5.2f}"
    missing = "".join(f"  [{name}: {why}]" for name, why in record["missing"].items())
    return f"{record['row']:<28} {record['threads']:>2} thr  {ratio}  {times} ms{missing}"


if __name__ == "__main__":
    main()
