"""Times kernels in a process of its own: `python -m polyopt.runtime.trial`, one JSON line a request.

A kernel that crashes, hangs or eats memory ends this process and nothing else. The first kernel given is the one that
the others are held against: their results must agree with its results, and they are timed in turns with it.

    {"object": FILE, "info": {...}, "parameters": [...], "arrays": [[shape, strides, dtype], ...], "seconds": 0.1}
    -> {"ms": 1.5, "base_ms": 2.0} or {"error": "..."}; `ms` is the median share of the base's time, times that
"""

from __future__ import annotations

import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyopt import dtypes
from polyopt.runtime import kernel as kernels
from polyopt.runtime.arrays import Array
from polyopt.runtime.kernel import Kernel

TURNS = 5
_AGREES = 1e-2
_MEMORY_BYTES = 4 << 30


class Bench:
    """The arrays, and the kernel that others are held against."""

    def __init__(self) -> None:
        self._arrays: list[Array] = []
        self._base: Callable[[], None] | None = None
        self._expected: list[Array] = []

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        info = kernels.from_json(request["info"])
        kernel = Kernel(info, Path(request["object"]).read_bytes())
        if not self._arrays:
            self._arrays = _inputs(request["arrays"])
        outputs = self._arrays[len(info.inputs) :]
        for output in outputs:
            output.view(np.uint8).fill(0xA5) if output.flags.c_contiguous else output.fill(0)
        bound = kernel.bind(tuple(request["parameters"]))
        pointers = [array.ctypes.data for array in self._arrays]

        def call() -> None:
            bound(pointers)

        call()
        found = [output.copy() for output in outputs]
        if self._base is None:
            self._base, self._expected = call, found
            return {"ms": _median_ms(call, request["seconds"]), "base_ms": 0.0}
        if not all(map(_agree, found, self._expected)):
            return {"error": "the result differs from that of the cost model's plan"}
        base, own = [], []
        for _ in range(TURNS):
            base.append(_median_ms(self._base, request["seconds"] / TURNS / 2))
            own.append(_median_ms(call, request["seconds"] / TURNS / 2))
        share = statistics.median(mine / other for mine, other in zip(own, base))
        return {"ms": share * min(base), "base_ms": min(base)}


def _inputs(described: Sequence[Sequence[Any]]) -> list[Array]:
    """Arrays as described. Floats between 1/2 and 3/2; integers are 0, so that they are in range as subscripts."""
    random = np.random.default_rng(0)
    made = []
    for shape, strides, name in described:
        dtype = dtypes.from_name(name)
        numbers = random.uniform(0.5, 1.5, shape) if dtype.is_float else np.zeros(shape)
        array = numbers.astype(dtype.numpy)
        made.append(array if strides is None else _strided(array, strides))
    return made


def _strided(array: Array, strides: Sequence[int]) -> Array:
    """The array's values in an array with these byte strides."""
    ends = [stride * (extent - 1) for extent, stride in zip(array.shape, strides)]
    low = sum(end for end in ends if end < 0)
    size = sum(map(abs, ends)) + array.itemsize
    view: Array = np.ndarray(array.shape, array.dtype, np.zeros(size, np.uint8), -low, tuple(strides))
    view[...] = array
    return view


def _agree(found: Array, expected: Array) -> bool:
    if found.dtype.kind in "biu":
        return bool(np.array_equal(found, expected))
    a, b = found.astype(np.float64), expected.astype(np.float64)
    scale = float(np.max(np.abs(b), initial=0, where=np.isfinite(b)))
    return bool(np.allclose(a, b, rtol=_AGREES, atol=_AGREES * scale, equal_nan=True))


def _median_ms(call: Callable[[], None], seconds: float) -> float:
    """The median of calls for about `seconds`; several to a sample where one is too short for the clock."""
    start = time.perf_counter()
    call()
    count = max(1, math.ceil(1e-4 / max(time.perf_counter() - start, 1e-7)))
    samples: list[float] = []
    until = start + seconds
    while len(samples) < 3 or time.perf_counter() < until:
        begin = time.perf_counter()
        for _ in range(count):
            call()
        samples.append((time.perf_counter() - begin) / count)
    return 1e3 * statistics.median(samples)


def _limit_memory(array_bytes: int) -> None:
    try:
        import resource
    except ImportError:  # Windows
        return
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES + 4 * array_bytes,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer requests until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    bench, is_limited = Bench(), False
    for line in sys.stdin:
        request = json.loads(line)
        if not is_limited:
            is_limited = True
            _limit_memory(sum(8 * math.prod(shape) for shape, _, _ in request["arrays"]))
        try:
            answer = bench.answer(request)
        except (MemoryError, OSError, ValueError, KeyError, TypeError) as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
