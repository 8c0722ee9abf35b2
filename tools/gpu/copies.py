"""Arrays of the host that go to a GPU and back under load: does every byte arrive?

`python -m tools.gpu.copies SEED SECONDS [pageable]` calls one op again and again with arrays of random sizes and writes
a line of JSON: how many calls, how many were wrong, and where the first of them was. With `pageable` arrays are copied
from where they are, not through page-locked memory, which is what the runtime did when random programs on an H100 saw
parts of older arrays.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

import polyopt as po
from polyopt import u8
from tools.gpu.together import collected

MOST_BYTES = 20_000
N = po.size("N")
i = po.index("i")


@po.op(dynamic=["N"], target="cuda")
def turned(x: u8[N]) -> object:
    y = po.tensor("y")
    y[i] = x[N - 1 - i]
    return y


def run(seed: int, seconds: float, *, most: int = sys.maxsize, is_pageable: bool = False) -> dict[str, Any]:
    """What came of calls with random arrays, one after the other."""
    if is_pageable:
        _copy_from_where_they_are()
    random = np.random.default_rng(seed)
    wrong, first, end, calls = 0, "", time.monotonic() + seconds, 0
    while time.monotonic() < end and calls < most:
        x = random.integers(0, 256, int(random.integers(1, MOST_BYTES)), np.uint8)
        places = np.flatnonzero(turned(x)[::-1] != x)
        calls += 1
        wrong += bool(len(places))
        if len(places) and not first:
            first = f"call {calls}: {len(places)} of {x.nbytes} bytes, from {places[0]} to {places[-1]}"
    return {"calls": calls, "wrong": wrong, "first": first}


def run_together(seconds: float, processes: int | None = None, *, is_pageable: bool = False) -> list[dict[str, Any]]:
    """The same with a process for each core but one."""
    more = ["pageable"] if is_pageable else []
    return collected("tools.gpu.copies", lambda number, _: [str(number), str(seconds), *more], seconds, processes)


def _copy_from_where_they_are() -> None:
    import pycuda.driver as cuda

    from polyopt.runtime.cuda import gpu

    def put(self: Any, memory: Any, array: Any) -> None:
        if array.nbytes:
            cuda.memcpy_htod_async(memory.address, array.reshape(-1).view(np.uint8), self.stream)

    gpu.GpuQueue.put = put  # type: ignore[method-assign]


if __name__ == "__main__":
    found = run(int(sys.argv[1]), float(sys.argv[2]), is_pageable="pageable" in sys.argv[3:])
    sys.stdout.write(json.dumps(found) + "\n")
