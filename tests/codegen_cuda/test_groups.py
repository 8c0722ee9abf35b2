"""Products of four warps together: chosen where tiles fit, right in every layout, proved, and faults in them found."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, bf16, f16, f32
from polyopt.codegen_cuda import ring_proof
from polyopt.dtypes import DType
from polyopt.errors import LegalityError
from polyopt.gpu_pipeline import GpuLowering
from polyopt.loops.ir import For, Stmt, integer
from polyopt.runtime.cuda import compilers, ptxas, sass
from polyopt.target import gpu_preset
from tests.codegen_cuda.running import Array, changed_text, emulate, lowered
from tests.codegen_cuda.test_emulated import inputs, needs_compiler
from tests.codegen_cuda.test_faults import planted
from tests.codegen_cuda.test_rings import changed, rings, with_slots
from tests.codegen_cuda.test_tensor_tiles import LAYOUTS, fused, multiplied, products, values

B, M, N, K, C, H, W = po.sizes("B M N K C H W")
b, i, j, k = po.indices("b i j k")
HOPPER = gpu_preset("sm_90", sms=1)
"""One multiprocessor, which small problems fill."""


def on_hopper(op: Op, *args: Array) -> GpuLowering:
    """The kernels for one multiprocessor, which four warps sum up together."""
    lowering = lowered(op, *args, target=HOPPER)
    assert not lowering.fallback and "po_wgmma" in lowering.source("cuda"), str(lowering.mapping)
    return lowering


def product(dtype: DType, layout: str, m: int, n: int, steps: int) -> tuple[Op, tuple[Array, Array], Array]:
    """An op, its arguments as the layout wants them, and what it gives."""
    x, w = values(dtype, m, steps), values(dtype, steps, n)
    first, second = layout.split(",")
    args = (
        np.ascontiguousarray(x if first == "mk" else x.T),
        np.ascontiguousarray(w if second == "kn" else w.T),
    )
    return products(dtype, dtype, layout), args, x.astype("f8") @ w.astype("f8")


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
def test_operands_may_lie_along_either_axis(dtype: DType, layout: str) -> None:
    """Ragged in every direction where both lie along the sum; whole vectors, and tiles that are not full, else."""
    sizes = (123, 250, 202) if layout == "mk,nk" else (120, 248, 264)
    op, args, expected = product(dtype, layout, *sizes)
    lowering = on_hopper(op, *args)
    outcome = emulate(lowering, inputs(op, args), {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    np.testing.assert_array_equal(outcome.results[0], expected)


@po.op
def windows(x: f16[B, H, W, C], f: f16[3, 3, C, N]) -> object:
    y = po.tensor("y")
    h, w = po.index("h", extent=x.shape[1]), po.index("w", extent=x.shape[2])
    r, s, c, n = po.indices("r s c n")
    y[b, h, w, n] += x.pad(0)[b, h + r - 1, w + s - 1, c] * f[r, s, c, n]
    return y


@needs_compiler
def test_what_stands_behind_the_sum_of_a_batch() -> None:
    x, w, c = values(bf16, 2, 250, 256), values(bf16, 2, 256, 256), values(f32, 256)
    lowering = on_hopper(fused, x, w, c)
    outcome = emulate(lowering, {"x": x, "w": w, "c": c}, {})
    assert not outcome.problems, outcome.problems[0]
    wide = (x.astype("f8") @ w.astype("f8")).astype(bf16.numpy).astype("f8")
    np.testing.assert_array_equal(outcome.results[0], np.maximum(wide + c, 0))


@needs_compiler
@pytest.mark.parametrize("batch", [1, 2])
def test_rows_of_an_image_are_one_side_of_a_tile(batch: int) -> None:
    """8 rows of 15 points are 120 of 128; of two images, 240 of 256."""
    x, f = values(f16, batch, 8, 15, 32), values(f16, 3, 3, 32, 240)
    lowering = on_hopper(windows, x, f)
    assert "2 loops as one of rows" in str(lowering.mapping)
    outcome = emulate(lowering, {"x": x, "f": f}, {})
    assert not outcome.problems, outcome.problems[0]
    padded = np.pad(x.astype("f8"), ((0, 0), (1, 1), (1, 1), (0, 0)))
    wanted = sum(padded[:, r : r + 8, s : s + 15] @ f[r, s].astype("f8") for r in range(3) for s in range(3))
    np.testing.assert_array_equal(outcome.results[0], np.asarray(wanted).astype(np.float16))


@po.op
def below_the_diagonal(x: bf16[M, 3, 3, C], f: bf16[3, 3, C, N]) -> object:
    y = po.tensor("y", dtype=f32)
    r, s, c = po.indices("r s c")
    y[i, j] = po.sum(x[i, r, s, c] * f[r, s, c, j], (r, s, c), where=s <= r, dtype=f32)
    return y


@needs_compiler
def test_a_ring_stays_inside_loops_whose_bounds_differ() -> None:
    """Of 256 channels it has four pieces in each of them; of 64 it would have one, and warps do by themselves."""
    for channels in (256, 64):
        x, f = values(bf16, 128, 3, 3, channels), values(bf16, 3, 3, channels, 256)
        lowering = (
            on_hopper(below_the_diagonal, x, f) if channels == 256 else lowered(below_the_diagonal, x, f, target=HOPPER)
        )
        assert ("po_wgmma" in lowering.source("cuda")) == (channels == 256)
        assert not lowering.fallback
        outcome = emulate(lowering, {"x": x, "f": f}, {})
        assert not outcome.problems, outcome.problems[0]
        wide, weights = x.astype("f8"), f.astype("f8")
        wanted = sum(wide[:, r, s] @ weights[r, s] for r in range(3) for s in range(r + 1))
        np.testing.assert_array_equal(outcome.results[0], np.asarray(wanted))


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_product_is_of_its_own_elements(layout: str) -> None:
    op, args, _ = product(f16, layout, 128, 256, 256)
    outcome = emulate(on_hopper(op, *args), inputs(op, args), {}, "trace")
    assert outcome.problems == ()


def test_they_are_chosen_where_their_tiles_fit() -> None:
    op = products(bf16, bf16, "mk,kn")

    def plan(m: int, n: int, steps: int, target: str = "sm_90", op: Op = op) -> str:
        return str(lowered(op, M=m, N=n, K=steps, target=target).mapping)

    assert "by wgmma_bf16 of 64 x 256 x 16, four warps together, copies run 2 pieces ahead" in plan(4096, 4096, 4096)
    assert "wgmma" not in plan(4096, 4096, 4096, "sm_80") + plan(4096, 4096, 4096, "sm_89"), "they have none"
    assert "themselves" not in plan(4096, 4096, 4096) + plan(4096, 4096, 4096, "sm_80")
    for sizes, why in {
        (1024, 1024, 1024): "would leave much of them, or of the GPU, idle",  # 32 tiles for 132 multiprocessors
        (1 << 16, 130, 1024): "would leave much of them",  # nearly half of the columns would be nobody's
        (4096, 4096, 192): "the sum has 3 pieces of 64 terms, and 4 are to be under way",
        (4096, 4096, 4095): "threads would wait for each element of rows",
    }.items():
        found = plan(*sizes)
        assert "wgmma" not in found
        assert "warps by themselves: " in found and why in found
    assert "wgmma" not in plan(4096, 4096, 4096, op=products(f32, f32, "mk,kn"))
    assert "wgmma" not in plan(4096, 4096, 4096, op=multiplied(bf16, bf16, numerics="strict"))


def test_the_ring_is_proved_with_a_piece_that_may_still_be_read() -> None:
    op, args, _ = product(bf16, "mk,kn", 128, 256, 384)
    program = on_hopper(op, *args).loops
    assert ring_proof.prove(program) == 1
    (fill, steady) = rings(program)
    assert (fill.upper, steady.chunk) == (integer(2 * 64), 4)

    def short(statement: Stmt) -> Stmt:
        if not isinstance(statement, For) or statement.kind != "pipeline":
            return statement
        return replace(statement, body=changed(statement.body, lambda s: with_slots(s, 3)))

    with pytest.raises(LegalityError, match="may be written while it is read"):
        ring_proof.prove(replace(program, body=changed(program.body, short)))


# --- planted faults -------------------------------------------------------------------------------------------

UNFENCED, EARLY, READ = "no po_async_fence has followed", "cp.async", "may still read"
FAULTS = {
    "the fence": (r"po_async_fence\(\);", ";", (UNFENCED,)),
    "the wait for copies": (r"po_cp_wait<1>\(\);", ";", (EARLY,)),
    "the barrier of a piece": (r"__syncthreads\(\);", ";", ("race", EARLY)),
    "the wait for the products before": (r"po_wgmma_wait<1>\(\);", ";", (READ,)),
    "a wait for one group too few": (r"po_wgmma_wait<1>", "po_wgmma_wait<2>", (READ,)),
    "the wait for all products": (r"po_wgmma_wait<0>\(\);", ";", ("never waited for",)),
    "a slot too few": (r"(const int k_block_next = .*) % 4", r"\1 % 3", ("race", EARLY, "uninitialised", READ)),
    "what begins a group": (r"po_wgmma_begin\(\);", ";", ("without po_wgmma_begin",)),
    "the start of an operand": (r"&x_tile\[k_block_slot \* 8192", "&x_tile[64 + k_block_slot * 8192", ("atom",)),
}


@needs_compiler
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_reported_with_its_line(name: str) -> None:
    pattern, replacement, kinds = FAULTS[name]
    op, args, _ = product(bf16, "mk,kn", 128, 256, 384)
    lowering = on_hopper(op, *args)
    (fault,) = planted(lowering.cuda.text, pattern, replacement)
    outcome = emulate(changed_text(lowering, fault.text), inputs(op, args), {})
    assert outcome.problems, f"without '{fault.without}' nothing is reported"
    assert all(problem.line > 0 for problem in outcome.problems)
    assert any(kind in problem.what for problem in outcome.problems for kind in kinds), outcome.problems


WRONG = {
    "the exchange in an atom": r"po_in_atom<2>",
    "the rows of four warps": r"i_warp / 64 \* 64 \* 64 \+ ",
    "which operand is turned": r"256, 0, 1",
}


@needs_compiler
@pytest.mark.parametrize("name", WRONG)
def test_wrong_elements_are_reported_with_the_line_of_the_product(name: str) -> None:
    op, args, _ = product(bf16, "mk,kn", 128, 256, 256)
    lowering = on_hopper(op, *args)
    faults = planted(lowering.cuda.text, WRONG[name], {"which operand is turned": "256, 1, 1"}.get(name, ""))
    assert faults, "the kernel has nothing of the kind"
    for fault in faults:
        outcome = emulate(changed_text(lowering, fault.text), inputs(op, args), {}, "trace")
        lines = [fault.text.splitlines()[problem.line - 1] for problem in outcome.problems]
        assert any("po_wgmma" in line for line in lines), f"line {fault.line}: nobody misses '{fault.without}'"


def test_they_compile_to_their_instructions_for_this_architecture_alone() -> None:
    op, args, _ = product(f16, "km,nk", 128, 256, 256)
    compiled = compilers.compile_text(on_hopper(op, *args).source("cuda"), "sm_90")
    assert ptxas.remarks(compiled.log) == ()
    codes: Counter[str] = sum(sass.opcodes(compiled.code).values(), Counter())
    assert sass.count(codes, "HGMMA") == 4 * 4, "steps of a piece, of four pieces that are written out"
    assert ".target sm_90a" in on_hopper(op, *args).source("ptx")
