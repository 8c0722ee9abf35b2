"""Random programs on a GPU, each held against its reference: `polyopt fuzz` with the hardware in place of the emulator.

`python -m tools.gpu.programs FIRST STEP SECONDS` runs every STEPth seed from FIRST on for that long, and writes a line
of JSON: how many programs agreed, how many both sides refused, kernels, the last seed, and what failed with its source.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

from polyopt.fuzz.case import Case
from polyopt.fuzz.check import check
from polyopt.fuzz.expressions import EXACT_FUNCTIONS
from polyopt.fuzz.generate import random_case
from polyopt.runtime.cuda import devices
from tools.gpu.together import told, totals

FIRST_SEED = 7_000_000_000
"""Far from the seeds of other campaigns."""
ROUGH_SHARE = 0.4
MOST_FAILURES = 3
"""After so many a process stops; a kernel that wrote where it may not ends its context, and all after it fail."""


def case_of(seed: int, arch: str) -> Case:
    """The case of a seed for this kind of GPU, most with few multiprocessors, whose tiles small cases fill."""
    random = Random(f"hardware {seed}")
    case = random_case(seed, rough=random.random() < ROUGH_SHARE, functions=EXACT_FUNCTIONS)
    sms = random.choice((None, 1, 1, 2, 4))
    options = {**dict(case.options), "target": f'gpu_preset("{arch}"{"" if sms is None else f", sms={sms}"})'}
    return replace(case, options=tuple(options.items()), plans=())


def run(first: int, step: int, seconds: float = math.inf, most: int = sys.maxsize) -> dict[str, Any]:
    """What came of every `step`-th seed from `first` on, on the GPU of this machine; of `most`, if there is time."""
    arch = devices.driver().limits.arch
    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    last = first
    for seed in told(first, step, seconds, most):
        if len(failures) >= MOST_FAILURES:
            break
        case = case_of(seed, arch)
        outcome = check(case)
        counts[outcome.verdict] += 1
        counts["kernels"] += outcome.kernels
        if outcome.verdict == "fails":
            found = {"seed": seed, "kind": outcome.kind, "detail": outcome.detail, "program": case.script()}
            failures.append(found)
        last = seed
    return {"counts": counts, "last": last, "failures": failures}


def run_together(seconds: float, processes: int | None = None) -> dict[str, Any]:
    """The same with a process for each core but one; one that dies is a failure."""
    return totals("tools.gpu.programs", FIRST_SEED, seconds, processes)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))) + "\n")
