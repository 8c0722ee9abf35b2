"""Scattered sums on a GPU: threads fill copies of their own, and kernels more add them up."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from polyopt.fusion import device_sums, privatized
from polyopt.loops.ir import Const
from polyopt.target import GpuTarget, resolve
from tests.codegen_cuda.running import emulate, interpreted, lowered
from tests.codegen_cuda.test_emulated import assert_equals, inputs, needs_compiler
from tests.fusion.test_privatized import CASES, chain, histogram, numbers, places, rows


@pytest.fixture
def small_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """One on which small sums are worth sharing out: its kernels start at once, and it has few threads."""
    monkeypatch.setattr(privatized, "LAUNCH_BYTES", 16)
    monkeypatch.setattr(device_sums, "LAUNCH_BYTES", 16)
    target = resolve("sm_80")
    assert isinstance(target.gpu, GpuTarget)
    return replace(target, gpu=replace(target.gpu, sms=2, sm_threads=1024))


def agrees(results: Any, expected: Any) -> None:
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, wanted in zip(results, expected, strict=True):
        assert_equals(got, np.asarray(wanted, got.dtype))


@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_agrees(name: str, small_gpu: Any) -> None:
    op, arguments, expected = CASES[name]
    lowering = lowered(op, *arguments, target=small_gpu)
    assert not lowering.fallback and "_partial" in str(lowering.rewritten)
    agrees(interpreted(lowering, inputs(op, arguments), {}, seed=1), expected)


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_the_emulator_agrees_and_finds_nothing_wrong(name: str, small_gpu: Any) -> None:
    op, arguments, expected = CASES[name]
    outcome = emulate(lowered(op, *arguments, target=small_gpu), inputs(op, arguments), {})
    assert outcome.problems == () and outcome.failed is None
    agrees(outcome.results, expected)


@needs_compiler
def test_a_subscript_out_of_range_is_the_users(small_gpu: Any) -> None:
    at, x = places(1000), numbers(1000, dtype=np.float32)
    at[777] = -1
    lowering = lowered(histogram, at, x, target=small_gpu)
    outcome = emulate(lowering, inputs(histogram, (at, x)), {})
    assert outcome.problems == () and outcome.failed is not None
    site = lowering.cuda.sites[outcome.failed.site]
    assert (site.array, site.dimension, outcome.failed.index, outcome.failed.extent) == ("h", 0, -1, 16)


def test_a_histogram_keeps_a_gpu_busy() -> None:
    """One thread took a million steps."""
    lowering = lowered(histogram, N=1_000_000, target="sm_90")
    assert "h: scatters into 16384 copies, 62 terms along i each" in str(lowering.fusion)
    kernel = next(kernel for kernel in lowering.cuda.kernels if "at" in kernel.parameters)
    assert prod(length.value for length in kernel.grid if isinstance(length, Const)) * prod(kernel.block) == 16384


@pytest.mark.parametrize(
    ("op", "sizes"), [(rows, {"N": 64, "D": 1 << 16}), (chain, {"N": 4096})], ids=["rows of threads", "a recurrence"]
)
def test_what_would_gain_nothing_stays_whole(op: Any, sizes: dict[str, int]) -> None:
    assert "_partial" not in str(lowered(op, **sizes).rewritten)
