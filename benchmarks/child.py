"""One peer in a process of its own: reads requests from standard input, one JSON line each, and answers likewise.

    {"do": "prepare", "case": NAME, "inputs": [FILE, ...], "expected": [FILE, ...], "step": 1}
    {"do": "time", "seconds": 0.06}
    {"do": "drop"}

`prepare` builds the call, runs it once and compares every result with float64; a wrong result is never timed.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks import aligned
from benchmarks.cases import Case, all_cases

LEAST_SAMPLE_S = 3e-4


class Peer:
    """The peer's module and the call at hand."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.cases = {case.name: case for case in all_cases()}
        self.call: Callable[[], Any] | None = None

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        case = self.cases[request["case"]]
        arrays = [load(path) for path in request["inputs"]]
        start = time.perf_counter()
        call = self.module.prepare(case, arrays)
        if call is None:
            return {"status": "none"}
        results = as_arrays(call())
        prepared_s = time.perf_counter() - start
        wanted = [np.load(path, mmap_mode="r") for path in request["expected"]]
        error = worst_error(case, results, wanted, request["step"])
        if error > case.tolerance:
            return {"status": f"wrong: error {error:.1e} of the largest magnitude, allowed {case.tolerance:.0e}"}
        del results
        start = time.perf_counter()
        call()
        once_s = time.perf_counter() - start
        self.call = call
        return {"status": "ok", "error": error, "prepare_ms": 1e3 * prepared_s, "once_ms": 1e3 * once_s}

    def time(self, request: dict[str, Any]) -> dict[str, Any]:
        """The median of samples for about `seconds`; a sample is several calls where one is too short to time."""
        assert self.call is not None, "prepared before"
        call = self.call
        start = time.perf_counter()
        call()
        once = time.perf_counter() - start
        count = max(1, round(LEAST_SAMPLE_S / max(once, 1e-9)))
        samples: list[float] = []
        until = start + request["seconds"]
        while not samples or (time.perf_counter() < until and len(samples) < 1000):
            begin = time.perf_counter()
            for _ in range(count):
                call()
            samples.append((time.perf_counter() - begin) / count)
        return {"status": "ok", "ms": 1e3 * statistics.median(samples)}

    def drop(self, _: dict[str, Any]) -> dict[str, Any]:
        self.call = None
        gc.collect()
        return {"status": "ok"}


def load(path: str) -> np.ndarray[Any, Any]:
    """An array that starts at a cache line; bfloat16 lies in its file as 16-bit integers."""
    array = aligned.copy(np.load(path))
    return array.view(ml_dtypes.bfloat16) if ".bf16." in path else array


def as_arrays(results: Any) -> list[np.ndarray[Any, Any]]:
    parts = results if isinstance(results, tuple | list) else [results]
    return [_as_array(part) for part in parts]


def _as_array(value: Any) -> np.ndarray[Any, Any]:
    if type(value).__module__ == "torch" and str(value.dtype) == "torch.bfloat16":
        value = value.float()
    return np.asarray(value)


def worst_error(case: Case, results: list[Any], wanted: list[Any], step: int) -> float:
    """The largest error over the largest magnitude, the worst of the results; infinity for a wrong shape."""
    if len(results) != len(wanted):
        return float("inf")
    worst = 0.0
    for found, exact in zip(results, wanted):
        picked = found[::step] if step > 1 else found
        if picked.size != exact.size:
            return float("inf")
        difference = np.abs(picked.astype(np.float64).reshape(exact.shape) - exact)
        error = float(np.max(difference, initial=0) / max(float(np.max(np.abs(exact), initial=0)), 1e-300))
        worst = max(worst, error) if error == error else float("inf")
    return worst


def main() -> None:
    name = sys.argv[1]
    # What libraries print goes to standard error; the answers have the former standard output for themselves.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        peer = Peer(importlib.import_module(f"benchmarks.peers.{name}_peer"))
    except ImportError as error:
        answer({"status": f"absent: {error}"})
        return
    answer({"status": "ready", "version": peer.module.VERSION})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer(getattr(peer, request["do"])(request))
        except Exception as error:  # noqa: BLE001  # a peer may fail in any way; the row says so and the run goes on
            traceback.print_exc()
            with contextlib.suppress(Exception):
                peer.call = None
            answer(
                {"status": f"failed: {type(error).__name__}: {str(error).splitlines()[0][:80] if str(error) else ''}"}
            )


if __name__ == "__main__":
    main()
