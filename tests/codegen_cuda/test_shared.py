"""Shared memory that is asked for at the launch: rings of large tiles, their places, and faults in them."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyopt as po
from polyopt import Op, bf16, f32, i8
from polyopt.codegen_cuda import rings
from polyopt.codegen_cuda.contractions import room
from polyopt.gpu_pipeline import GpuLowering
from polyopt.target import GPU_PRESETS, STATIC_SHARED_BYTES, Target, gpu_preset
from tests.codegen_cuda.gate_ops import matmul_f32
from tests.codegen_cuda.running import Array, changed_text, emulate, lowered
from tests.codegen_cuda.test_emulated import inputs, needs_compiler
from tests.codegen_cuda.test_faults import planted

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")
RANDOM = np.random.default_rng(0)


@po.op
def floats(x: f32[M, K], w: f32[K, N]) -> object:
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j]
    return y


@po.op
def halves(x: bf16[M, K], w: bf16[K, N]) -> object:
    y = po.tensor("y", dtype=f32)
    y[i, j] += x[i, k] * w[k, j]
    return y


@po.op
def bytes_(x: i8[M, K], w: i8[N, K]) -> object:
    y = po.tensor("y", dtype=po.i32)
    y[i, j] += x[i, k] * w[j, k]
    return y


def small_gpu(name: str = "sm_80") -> Target:
    """A GPU of one multiprocessor: a single block keeps it busy, so that its tile is a large one."""
    return gpu_preset(name, sms=1)


def values(dtype: Any, *shape: int) -> Array:
    found: Array = RANDOM.integers(-8, 9, shape).astype(dtype)
    return found


CASES: dict[str, tuple[Op, tuple[Array, ...], Array]] = {
    "floats": (floats, (a := (values("f4", 100, 70), values("f4", 70, 130))), a[0] @ a[1]),
    "halves": (
        halves,
        (b := (values(ml_dtypes.bfloat16, 100, 134), values(ml_dtypes.bfloat16, 134, 72))),
        b[0].astype("f4") @ b[1].astype("f4"),
    ),
    "bytes": (
        bytes_,
        (c := (values("i1", 100, 300), values("i1", 130, 300))),
        c[0].astype("i4") @ c[1].T.astype("i4"),
    ),
}


@pytest.fixture
def four_slots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rings of the largest tiles take more than a block has without asking."""
    monkeypatch.setattr(rings, "LONG_SLOTS", 4)


def of_large_tiles(op: Op, args: tuple[Array, ...]) -> GpuLowering:
    lowering = lowered(op, *args, target=small_gpu())
    (kernel,) = lowering.cuda.kernels
    assert kernel.shared_bytes == 4 * 2 * 128 * 64 > STATIC_SHARED_BYTES and not lowering.fallback
    return lowering


def test_a_ring_leaves_a_multiprocessor_the_blocks_that_registers_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in GPU_PRESETS:
        gpu = gpu_preset(name).gpu
        assert gpu is not None
        assert 2 * (room(gpu, (128, 128)) + 1024) <= gpu.shared_bytes + 1024
        (kernel,) = lowered(matmul_f32, M=4096, N=4096, K=4096, target=name).cuda.kernels
        assert kernel.shared_bytes == 0, "three slots are what any block has"
    monkeypatch.setattr(rings, "LONG_SLOTS", 4)
    for name in GPU_PRESETS:
        (kernel,) = lowered(matmul_f32, M=4096, N=4096, K=2048, target=name).cuda.kernels
        assert kernel.shared_bytes == (65536 if name in ("sm_80", "sm_90") else 0), "a slot more, where there is room"


@needs_compiler
@pytest.mark.usefixtures("four_slots")
@pytest.mark.parametrize("name", CASES)
def test_rings_of_large_tiles_give_what_numpy_gives(name: str) -> None:
    op, args, expected = CASES[name]
    lowering = of_large_tiles(op, args)
    assert "PO_DYN_SHARED(shared);  // 65536 bytes" in lowering.cuda.text
    outcome = emulate(lowering, inputs(op, args), {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    np.testing.assert_array_equal(outcome.results[0], expected)


@needs_compiler
@pytest.mark.usefixtures("four_slots")
@pytest.mark.parametrize("name", ["halves", "bytes"])
def test_products_are_followed_through_it_and_banks_do_not_conflict(name: str) -> None:
    op, args, _ = CASES[name]
    assert emulate(of_large_tiles(op, args), inputs(op, args), {}, "trace").problems == ()
    outcome = emulate(of_large_tiles(op, args), inputs(op, args), {}, "count")
    assert all(row.used == row.ideal for row in outcome.traffic if row.space == "shared")
    assert any(row.space == "shared" for row in outcome.traffic)


FAULTS = {
    "the wait": ("floats", r"po_cp_wait<2>\(\);", ";", ("cp.async",)),
    "a wait for one group too few": ("halves", r"po_cp_wait<2>", "po_cp_wait<3>", ("cp.async",)),
    "the barrier of a piece": ("bytes", r"__syncthreads\(\);", ";", ("race", "cp.async")),
    "a slot too few": ("floats", r"(const int k_block_next = .*) % 4", r"\1 % 3", ("race", "cp.async")),
    "a place of its own": ("floats", r"\(shared \+ 32768\)", "(shared + 30720)", ("race", "cp.async")),
    "room for the last slot": ("halves", r"\(shared \+ 32768\)", "(shared + 32896)", ("outside every buffer",)),
}


@needs_compiler
@pytest.mark.usefixtures("four_slots")
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_reported_with_a_line(name: str) -> None:
    case, pattern, replacement, kinds = FAULTS[name]
    op, args, _ = CASES[case]
    lowering = of_large_tiles(op, args)
    faults = planted(lowering.cuda.text, pattern, replacement)
    assert faults, "the kernel has nothing of the kind"
    for fault in faults:
        outcome = emulate(changed_text(lowering, fault.text), inputs(op, args), {})
        assert outcome.problems, f"line {fault.line}: without '{fault.without}' nothing is reported"
        assert all(problem.line > 0 for problem in outcome.problems)
        assert any(kind in problem.what for problem in outcome.problems for kind in kinds), outcome.problems


@needs_compiler
@pytest.mark.usefixtures("four_slots")
def test_a_wrong_swizzle_in_it_is_reported() -> None:
    op, args, _ = CASES["halves"]
    lowering = of_large_tiles(op, args)
    (fault, *_) = planted(lowering.cuda.text, r"^( *po_ldmatrix.*)po_swizzled<2>", r"\1")
    outcome = emulate(changed_text(lowering, fault.text), inputs(op, args), {}, "trace")
    assert any(re.search("mma|product", problem.what) for problem in outcome.problems)
