"""Processes that work on one GPU at once, a core each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MOST_SECONDS_OVER = 60
"""What a process may take beyond its time: a kernel that never ends must not keep the machine."""


def collected(
    module: str, arguments: Callable[[int, int], Sequence[str]], seconds: float, processes: int | None = None
) -> list[dict[str, Any]]:
    """The last lines of a module's processes, each an object in JSON; for one that dies or is ended as it takes too
    long, what it "died" of, with the end of what it wrote to standard error, where `told` says what it was at.

    arguments: of a process, by its number and how many there are: one for each core but one, unless `processes` says
    """
    count = processes or max(1, (os.cpu_count() or 2) - 1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    found: list[dict[str, Any]] = []
    with ExitStack() as files:
        started = []
        for number in range(count):
            # Files, as a pipe that nobody reads yet stops who writes to it.
            output, errors = (files.enter_context(tempfile.TemporaryFile("w+")) for _ in range(2))
            command = [sys.executable, "-m", module, *arguments(number, count)]
            process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=errors)
            started.append((process, output, errors))
        end = time.monotonic() + seconds + MOST_SECONDS_OVER
        for process, output, errors in started:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            output.seek(0), errors.seek(0)
            if process.returncode:
                found.append({"died": f"ended with {process.returncode}: {errors.read()[-2000:]}"})
            else:
                found.append(json.loads(output.read().splitlines()[-1]))
    return found


def told(first: int, step: int, seconds: float, most: int) -> Iterator[int]:
    """Every `step`-th seed from `first` on while there is time, `most` at most. Each is written to standard error
    first: the last one there is what a process died of."""
    end = time.monotonic() + seconds
    for seed in range(first, first + most * step, step):
        if time.monotonic() >= end:
            return
        sys.stderr.write(f"seed {seed}\n")
        sys.stderr.flush()
        yield seed


def totals(module: str, first: int, seconds: float, processes: int | None = None) -> dict[str, Any]:
    """What a module counts and sees fail from a seed on, in all processes; one that dies is a failure."""
    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    last = first

    def arguments(number: int, count: int) -> list[str]:
        return [str(first + number), str(count), str(seconds)]

    for found in collected(module, arguments, seconds, processes):
        if "died" in found:
            failures.append({"kind": "a process died", "detail": found["died"]})
            continue
        counts.update(found["counts"])
        failures += found["failures"]
        last = max(last, found["last"])
    return {"seeds": [first, last], "counts": dict(counts), "failures": failures}
