"""Times one row of the table on a GPU: polyopt beside PyTorch eager, torch.compile and a Triton kernel.

torch.compile tunes rows that move data. Of products it calls the library's, as PyTorch does, and makes kernels around
them: to tune its own takes minutes a row, and Triton's are in the table.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from tools.gpu.table import Row

REPEATS = 20
MOST_SECONDS = 2.0
"""What timing one contender may take: the slowest are repeated less."""
L2_BYTES = 256 << 20
"""Inputs rotate through at least this much memory, so that no call finds its own in the cache."""


def measure(name: str, row: Row) -> dict[str, Any]:
    """Milliseconds of each, the largest error of polyopt against PyTorch, and shares of what bounds the row."""

    tensors = [_inputs(row, copy) for copy in range(_copies(row))]
    outputs = row.op(*tensors[0], **row.constants)
    reference = row.library(*(t.float() for t in tensors[0])).float()
    error = float((outputs.float() - reference).abs().max() / reference.abs().max())
    del outputs, reference
    times: dict[str, float] = {}
    failures: dict[str, str] = {}
    for who, call in _contenders(name, row).items():
        try:
            times[who] = _median_ms(call, tensors)
        except Exception as failure:  # a peer that cannot run must not cost the others their times
            if who == "polyopt":
                raise
            failures[who] = f"{type(failure).__name__}: {failure}"[:300]
    best = min(ms for who, ms in times.items() if who != "polyopt")
    return {
        "row": name,
        "ms": times,
        "failures": failures,
        "error": error,
        "over_best_peer": best / times["polyopt"],
        "gbytes_per_s": row.moved / times["polyopt"] / 1e6,
        "tflops_per_s": row.flops / times["polyopt"] / 1e9,
    }


def warm(name: str, row: Row) -> None:
    """Calls everything that `measure` times once, for what it leaves in caches on disk."""
    import torch

    tensors = _inputs(row, 0)
    for call in _contenders(name, row).values():
        with suppress(Exception):
            call(*tensors)
    torch.cuda.synchronize()


def _contenders(name: str, row: Row) -> dict[str, Callable[..., Any]]:
    import torch

    mode = "max-autotune-no-cudagraphs" if row.flops < 10 * row.moved else "default"
    return {
        "polyopt": lambda *args: row.op(*args, **row.constants),
        "torch": row.library,
        "torch.compile": torch.compile(row.library, mode=mode, dynamic=False),
        **dict(_triton(name)),
    }


def copy_bandwidth() -> float:
    """GB a second of a copy inside the device, read and written: what bounds rows that only move data."""
    import torch

    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / _median_ms(lambda: target.copy_(source), [()]) / 1e6


def _inputs(row: Row, copy: int) -> tuple[Any, ...]:
    import torch

    made = torch.Generator("cuda").manual_seed(copy)
    dtype = getattr(torch, row.dtype)
    return tuple(torch.randn(shape, generator=made, device="cuda").to(dtype) for shape in row.shapes)


def _copies(row: Row) -> int:
    return max(1, min(8, int(L2_BYTES // max(1.0, row.moved)) + 1))


def _median_ms(call: Callable[..., Any], inputs: list[tuple[Any, ...]]) -> float:
    """Several launches between two events, so that what Python takes before a launch does not count."""
    import torch

    for arguments in inputs * 3:
        call(*arguments)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for arguments in inputs:
        call(*arguments)
    torch.cuda.synchronize()
    once = time.perf_counter() - start
    found = []
    for _ in range(max(3, min(REPEATS, round(MOST_SECONDS / once)))):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda._sleep(2_000_000)  # the queue fills while the GPU waits
        start.record()
        for arguments in inputs:
            call(*arguments)
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / len(inputs))
    return statistics.median(found)


def _triton(name: str) -> Iterator[tuple[str, Callable[..., Any]]]:
    """A kernel written by hand in Triton, where there is one."""
    from tools.gpu import triton_kernels

    call = triton_kernels.CALLS.get(name)
    if call is not None:
        yield "triton", call
