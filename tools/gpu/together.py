"""Processes that work on one GPU at once, a core each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
MOST_SECONDS_OVER = 120
"""What a process may take beyond its time: a kernel that never ends must not keep the machine."""


def collected(
    module: str, arguments: Callable[[int, int], Sequence[str]], seconds: float, processes: int | None = None
) -> list[dict[str, Any]]:
    """The last lines of a module's processes, each an object in JSON; for one that dies, what it "died" of.

    arguments: of a process, by its number and how many there are: one for each core but one, unless `processes` says
    """
    count = processes or max(1, (os.cpu_count() or 2) - 1)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments(number, count)],
            cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(count)
    ]  # fmt: skip
    found: list[dict[str, Any]] = []
    for process in started:
        try:
            output, errors = process.communicate(timeout=seconds + MOST_SECONDS_OVER)
        except subprocess.TimeoutExpired:
            process.kill()
            output, errors = process.communicate()
        if process.returncode:
            found.append({"died": f"ended with {process.returncode}: {errors[-2000:]}"})
        else:
            found.append(json.loads(output.splitlines()[-1]))
    return found
