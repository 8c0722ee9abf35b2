"""Random contractions on a GPU, each held to its exact result.

Sums of thousands of terms, tensors whose axes lie anyhow, convolutions and products by cases, and products of halves
that are large enough for the instructions of four warps.

`python -m tools.gpu.contractions FIRST STEP SECONDS` runs every STEPth seed from FIRST on for that long, and writes a
line of JSON: how many, the last seed, and what failed.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np

from polyopt.runtime.cuda import devices
from polyopt.target import Target, gpu_preset
from tests.codegen_cuda import test_random_groups
from tests.fuzz.contractions import random_contraction
from tests.fuzz.exact import failure
from tools.gpu.together import told, totals

FIRST_SEED = 7_100_000_000
"""Far from the seeds of other campaigns."""
NARROW_SHARE = 0.6
"""Of the products of f32 that become products of a dtype that tensor cores multiply."""
MOST_FAILURES = 3
"""After so many a process stops; a kernel that wrote where it may not ends its context, and all after it fail."""


def of_any_size(seed: int, target: Target) -> str:
    """What is wrong with the result of a contraction of any dtype; empty where it is exact."""
    found, random = random_contraction(seed), Random(f"hardware {seed}")
    if found.dtype == "f32" and len(found.shapes) == 2 and random.random() < NARROW_SHARE:
        dtype = random.choice(("bf16", "f16", "i8"))
        found = replace(found, dtype=dtype, source=found.source.replace("po.f32", f"po.{dtype}"))
    return failure(found, target)


def of_four_warps(seed: int, target: Target) -> str:
    """The same of a product or a convolution of halves, with what comes before and after it."""
    random = Random(seed)
    op, arguments = random.choice((test_random_groups.product, test_random_groups.convolution))(random)
    got, wanted = op.on(target)(*arguments), op.reference(*arguments, numerics="strict")
    wrong = np.argwhere(got != wanted)
    if not len(wrong):
        return ""
    place = tuple(map(int, wrong[0]))
    return f"element {place} is {got[place]} and should be {wanted[place]}, {len(wrong)} are wrong"


KINDS = (of_any_size, of_any_size, of_four_warps)


def run(first: int, step: int, seconds: float = math.inf, most: int = sys.maxsize) -> dict[str, Any]:
    """What came of every `step`-th seed from `first` on, on the GPU of this machine; of `most`, if there is time."""
    arch = devices.driver().limits.arch
    counts: Counter[str] = Counter()
    failures: list[dict[str, Any]] = []
    last = first
    for seed in told(first, step, seconds, most):
        if len(failures) >= MOST_FAILURES:
            break
        random = Random(f"contraction {seed}")
        kind, sms = random.choice(KINDS), random.choice((None, 1, 1, 4, 16))  # few, which small ones fill
        try:
            wrong = kind(seed, gpu_preset(arch, sms=sms))
        except Exception as error:  # noqa: BLE001  # whatever it is, the next one is tried
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            failures.append({"seed": seed, "kind": kind.__name__, "sms": sms, "detail": wrong})
        counts[kind.__name__] += not wrong
        last = seed
    return {"counts": counts, "last": last, "failures": failures}


def run_together(seconds: float, processes: int | None = None) -> dict[str, Any]:
    """The same with a process for each core but one; one that dies is a failure."""
    return totals("tools.gpu.contractions", FIRST_SEED, seconds, processes)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(run(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))) + "\n")
