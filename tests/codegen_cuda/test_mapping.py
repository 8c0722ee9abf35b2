"""What blocks and threads share, for small operators of each kind."""

from __future__ import annotations

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, f32
from polyopt.codegen_cuda.plan import CudaMapping
from polyopt.loops.ir import For, walk
from polyopt.target import GPU_PRESETS, gpu_preset
from tests.codegen_cuda.running import emulate, lowered
from tests.codegen_cuda.test_emulated import needs_compiler
from tests.golden.test_golden import load

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")


@po.op
def scaled(x: f32[M, N]) -> object:
    y = po.tensor("y")
    y[i, j] = 2 * x[i, j]
    return y


@po.op
def turned(x: f32[M, N]) -> object:
    y = po.tensor("y")
    y[j, i] = x[i, j]
    return y


@po.op
def product(x: f32[M, K], w: f32[K, N]) -> object:
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j]
    return y


@po.op
def row_sums(x: f32[M, N]) -> object:
    y = po.tensor("y")
    y[i] += x[i, j]
    return y


@po.op
def column_sums(x: f32[M, N]) -> object:
    y = po.tensor("y")
    y[j] += x[i, j]
    return y


@po.op
def total(x: f32[N]) -> object:
    y = po.tensor("y")
    y[()] += x[i]
    return y


@po.op
def running(x: f32[N]) -> object:
    y = po.tensor("y")
    y[0] = x[0]
    t = po.index("t", 1, x.shape[0])
    y[t] = y[t - 1] + x[t]
    return y


def mapping(op: Op, **sizes: int) -> CudaMapping:
    return lowered(op, **sizes).mapping


def test_neighboring_threads_touch_neighboring_elements() -> None:
    (nest,) = mapping(scaled, M=512, N=4096).nests
    assert nest.style == "points"
    assert nest.grid == ("i", "j") and nest.chunks == (1, 256)


def test_a_contraction_is_cut_into_tiles_along_the_contiguous_axis() -> None:
    (nest,) = mapping(product, M=2048, N=2048, K=256).nests
    assert nest.style == "tiles" and nest.chunks == (128, 128)
    assert nest.grid[-1] == "j"


def test_sums_along_rows_are_shared_by_threads() -> None:
    (nest,) = mapping(row_sums, M=1024, N=4096).nests
    assert nest.style == "rows"
    assert nest.shared == ("j",) and nest.threads == 256


def test_short_rows_get_a_warp_each() -> None:
    (nest,) = mapping(row_sums, M=4096, N=64).nests
    assert nest.threads == 32 and nest.chunks == (8,)


@needs_compiler
def test_few_short_rows_get_as_many_warps_as_keep_the_gpu_busy() -> None:
    (nest,) = mapping(row_sums, M=500, N=301).nests
    assert nest.style == "rows" and nest.threads == 128
    x = np.random.default_rng(2).integers(-9, 9, (500, 301)).astype(np.float32)
    outcome = emulate(lowered(row_sums, M=500, N=301), {"x": x}, {})
    assert outcome.problems == () and np.array_equal(outcome.results[0], x.sum(1))


def test_sums_along_columns_stay_with_a_thread() -> None:
    (nest,) = mapping(column_sums, M=512, N=1 << 17).nests
    assert nest.style == "points" and nest.grid == ("j",)


def test_a_sum_of_everything_is_one_block() -> None:
    (nest,) = mapping(total, N=1000).nests
    assert nest.style == "one block" and nest.shared == ("i",)


def test_a_recurrence_has_no_parallel_loop() -> None:
    loops = lowered(running, N=100).loops
    assert {loop.kind for loop in walk(loops.body) if isinstance(loop, For)} <= {"serial", "unrolled"}
    assert "one thread" in str(mapping(running, N=100))


def test_a_nest_with_too_few_points_is_cut_into_kernels() -> None:
    plan = mapping(load("unsharp_mask", "unsharp_mask"), H=256, W=300)
    assert plan.cut
    assert [len(nest.grid) for nest in plan.nests] == [2, 2]
    assert all(nest.grid[-1].startswith("j") for nest in plan.nests)


@pytest.mark.parametrize("op", [scaled, turned, product, row_sums, column_sums], ids=lambda op: op.__name__)
@pytest.mark.parametrize("sizes", [(1, 1, 1), (37, 65, 20), (640, 33, 5)])
def test_tiles_are_powers_of_two_within_a_block(op: Op, sizes: tuple[int, int, int]) -> None:
    names = {"M": sizes[0], "N": sizes[1]} | ({"K": sizes[2]} if op is product else {})
    for nest in mapping(op, **names).nests:
        threads = int(np.prod(nest.chunks, dtype=int)) * nest.threads
        assert 1 <= threads <= (1 << 14 if nest.style == "tiles" else 1024)
        assert all(chunk & (chunk - 1) == 0 for chunk in nest.chunks)


@pytest.mark.parametrize("name", GPU_PRESETS)
def test_presets_have_the_figures_of_the_programming_guide(name: str) -> None:
    preset = gpu_preset(name).gpu
    assert preset is not None
    assert preset.capability == (int(name[3]), int(name[4]))
    assert preset.shared_bytes % 1024 == 0 and preset.sm_threads in (1536, 2048)


def test_the_proof_knows_blocks_and_threads() -> None:
    lowering = lowered(row_sums, M=1024, N=4096)
    assert "updates of one element never meet" in str(lowering.verify())
    assert not lowering.fallback


@needs_compiler
@pytest.mark.parametrize("shapes", [(40, 50), (100, 900), (33, 1024)])
def test_sums_of_several_lengths_in_one_op_keep_their_blocks(shapes: tuple[int, int]) -> None:
    """Each wants a block of its own shape, which one kernel does not have: they were mapped a thread per point."""

    @po.op
    def two(x: f32[M], y: f32[N]):
        return po.sum(x, axis=0), po.max(y, axis=0)

    x, y = (np.arange(1, n + 1, dtype=np.float32) for n in shapes)
    lowering = lowered(two, x, y)
    assert not lowering.fallback and "po_shfl" in lowering.cuda.text
    outcome = emulate(lowering, {"x": x, "y": y}, {})
    assert outcome.problems == () and [float(r) for r in outcome.results] == [x.sum(), y.max()]
