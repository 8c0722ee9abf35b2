"""Products of the tensor cores: chosen by a plan with reasons, right in every layout, without bank conflicts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyopt as po
from polyopt import Op, bf16, f16, f32, i8, u8
from polyopt.codegen_cuda.instructions import INSTRUCTIONS
from polyopt.dtypes import DType
from polyopt.loops.ir import For, walk
from tests.codegen_cuda.running import Array, changed_text, emulate, interpreted, lowered
from tests.codegen_cuda.test_emulated import assert_equals, inputs, needs_compiler
from tests.codegen_cuda.test_faults import planted

B, M, N, K, C, H, W = po.sizes("B M N K C H W")
b, i, j, k = po.indices("b i j k")
RANDOM = np.random.default_rng(0)


def values(dtype: DType, *shape: int) -> Array:
    """Random values: all bytes, or floats of few bits, whose sums are exact in any order."""
    if dtype.itemsize == 1:
        info = np.iinfo(dtype.numpy)
        return RANDOM.integers(info.min, info.max + 1, shape).astype(dtype.numpy)
    found: Array = (RANDOM.integers(-8, 9, shape) / 4).astype(dtype.numpy)
    return found


def products(left: DType, right: DType, layout: str, result: DType | None = None) -> Op:
    """A product whose operands lie as einsum's subscripts say: "mk,nk". Of f32 in fast numerics, for tensor cores."""
    result = result or (po.i32 if left.itemsize == 1 else f32)
    first, second = layout.split(",")
    sizes, indices = {"m": M, "n": N, "k": K}, {"m": i, "n": j, "k": k}

    def multiply(x: Any, w: Any) -> object:
        y = po.tensor("y", dtype=result)
        y[i, j] += x[tuple(indices[c] for c in first)] * w[tuple(indices[c] for c in second)]
        return y

    multiply.__annotations__ = {
        "x": left[tuple(sizes[c] for c in first)],
        "w": right[tuple(sizes[c] for c in second)],
    }
    return po.op(numerics="fast" if left == f32 else "default")(multiply)


LAYOUTS = ["".join((x, ",", w)) for x, w in product(("mk", "km"), ("kn", "nk"))]


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("one", INSTRUCTIONS, ids=lambda one: one.helper)
def test_operands_may_lie_along_either_axis(one: Any, layout: str) -> None:
    """Ragged where both operands lie along the sum, whole pieces of it and several warps else."""
    m, n, steps = (35, 39, 70) if layout == "mk,nk" else (64, 64, 96)
    x, w = values(one.left, m, steps), values(one.right, steps, n)
    op = products(one.left, one.right, layout)
    first, second = layout.split(",")
    args = tuple(np.ascontiguousarray(a if name in ("mk", "kn") else a.T) for a, name in ((x, first), (w, second)))
    lowering = lowered(op, *args)
    assert not lowering.fallback and one.helper in lowering.source("cuda")
    outcome = emulate(lowering, inputs(op, args), {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    np.testing.assert_array_equal(outcome.results[0], x.astype("f8") @ w.astype("f8"))


@needs_compiler
@pytest.mark.parametrize(("size", "steps"), [(128, 64), (64, 32), (32, 16)])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [bf16, i8, f32], ids=str)
def test_no_bank_conflicts(dtype: DType, layout: str, size: int, steps: int) -> None:
    """Neither tiles of other sizes nor other layouts, hence rows of 16 to 512 bytes, make two rows meet in a bank."""
    rows = {name: size if name != "k" else max(8, steps * 2 // dtype.itemsize) for name in "mnk"}
    first, second = layout.split(",")
    args = (values(dtype, *(rows[c] for c in first)), values(dtype, *(rows[c] for c in second)))
    outcome = emulate(lowered(products(dtype, dtype, layout), *args), {"x": args[0], "w": args[1]}, {}, "count")
    assert outcome.problems == ()
    for row in outcome.traffic:
        assert row.space == "global" or row.used == row.ideal, row


@po.op
def fused(x: bf16[B, M, K], w: bf16[B, K, N], c: f32[N]) -> object:
    y, out = po.tensors("y out")
    y[b, i, j] += x[b, i, k] * w[b, k, j]
    out[b, i, j] = po.maximum(po.cast(y[b, i, j], f32) + c[j], 0)
    return out


@po.op
def continued(x: i8[M, K], w: i8[K, N], c: po.i32[M, N]) -> object:
    y = po.tensor("y")
    y[i, j] = 3 * c[i, j]
    y[i, j] += x[i, k] * w[k, j]
    return y


@po.op
def onto(x: bf16[M, K], w: bf16[K, N], c: f32[M, N]) -> object:
    y = po.tensor("y")
    y[i, j] = 3 * c[i, j]
    y[i, j] += x[i, k] * w[k, j]
    return y


@po.op
def cast_before(x: bf16[M, K], w: bf16[N, K]) -> object:
    return po.einsum("mk,nk->mn", po.cast(x, f32), po.cast(w, f32))


@po.op
def windows(x: f16[B, H, W, C], f: f16[3, 3, C, N]) -> object:
    y = po.tensor("y", dtype=f32)
    r, s, c = po.indices("r s c")
    h, w = po.index("h", extent=x.shape[1]), po.index("w", extent=x.shape[2])
    y[b, h, w, j] += x.pad(0)[b, h + r - 1, w + s - 1, c] * f[r, s, c, j]
    return y


def convolved(x: Array, f: Array) -> Array:
    padded = np.pad(x.astype("f8"), ((0, 0), (1, 1), (1, 1), (0, 0)))
    h, w = x.shape[1:3]
    found: Array = sum(padded[:, r : r + h, s : s + w] @ f[r, s].astype("f8") for r, s in product(range(3), range(3)))
    return found


def case(op: Op, reference: Callable[..., Array], *args: Array) -> tuple[Op, tuple[Array, ...], Array]:
    return op, args, reference(*args)


def fused_reference(x: Array, w: Array, c: Array) -> Array:
    y = (x.astype("f8") @ w.astype("f8")).astype(ml_dtypes.bfloat16)
    return np.maximum(y.astype("f4") + c, 0)


CASES: dict[str, tuple[Op, tuple[Array, ...], Array]] = {
    "batched, with an epilogue": case(
        fused,
        fused_reference,
        *(values(bf16, 2, 33, 48), values(bf16, 2, 48, 40), RANDOM.standard_normal(40, np.float32)),
    ),
    "onto other sums": case(
        continued,
        lambda x, w, c: 3 * c + x.astype("i4") @ w.astype("i4"),
        *(values(i8, 40, 80), values(i8, 80, 36), np.arange(40 * 36, dtype=np.int32).reshape(40, 36)),
    ),
    "of lanes that exchange them, onto other sums": case(
        onto,
        lambda x, w, c: 3 * c + x.astype("f8") @ w.astype("f8"),
        *(values(bf16, 40, 80), values(bf16, 80, 36), values(f16, 40, 36).astype(np.float32)),
    ),
    "of operands that are widened before": case(
        cast_before,
        lambda x, w: x.astype("f8") @ w.T.astype("f8"),
        *(values(bf16, 40, 90), values(bf16, 36, 90)),
    ),
    "windows": case(windows, convolved, values(f16, 1, 3, 35, 24), values(f16, 3, 3, 24, 34)),
}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_forms_of_contractions_come_the_same_way(name: str) -> None:
    op, args, expected = CASES[name]
    lowering = lowered(op, *args)
    assert not lowering.fallback and "po_mma_" in lowering.source("cuda") and len(lowering.cuda.kernels) == 1
    outcome = emulate(lowering, inputs(op, args), {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    assert_equals(outcome.results[0], expected)


def test_what_an_instruction_means_is_what_the_interpreter_runs() -> None:
    args = values(bf16, 32, 16), values(bf16, 16, 32)
    lowering = lowered(products(bf16, bf16, "mk,kn"), *args)
    assert [s for s in walk(lowering.loops.body) if isinstance(s, For) and s.kind == "warp"]
    (got,) = interpreted(lowering, {"x": args[0], "w": args[1]}, {})
    np.testing.assert_array_equal(got, args[0].astype("f8") @ args[1].astype("f8"))


# --- which products -------------------------------------------------------------------------------------------


def chosen(op: Op, **options: Any) -> str:
    return str(lowered(op, M=64, N=64, K=64, **options).mapping)


def multiplied(left: DType, right: DType, **options: Any) -> Op:
    def multiply(x: Any, w: Any) -> object:
        y = po.tensor("y")
        y[i, j] += x[i, k] * w[k, j]
        return y

    multiply.__annotations__ = {"x": left[M, K], "w": right[K, N]}
    return po.op(multiply, **options)


def test_the_plan_names_the_instruction() -> None:
    assert "by mma_bf16 of 16 x 8 x 16" in chosen(multiplied(bf16, bf16))
    assert "by mma_s8_u8 of 16 x 8 x 32" in chosen(multiplied(i8, u8))


def test_floats_of_full_precision_come_in_two_parts_and_in_fast_numerics_only() -> None:
    said = chosen(multiplied(f32, f32))
    assert "no tensor cores: none sums products of f32 as they are; with numerics='fast' they come in two parts" in said
    assert "by mma_tf32 of 16 x 8 x 8, operands in two parts" in chosen(multiplied(f32, f32, numerics="fast"))
    assert "no tensor cores: none sums products of f32" in chosen(multiplied(f32, f32, numerics="strict"))


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
def test_floats_in_two_parts_keep_what_a_short_sum_keeps(layout: str) -> None:
    """Of all magnitudes: within 2^-19 of the sum of magnitudes, where a single tf32 each is off by 2^-11."""
    scales = np.exp2(RANDOM.integers(-30, 30, (2, 64, 64)))
    x, w = (RANDOM.standard_normal((2, 64, 64)) * scales).astype(np.float32)
    first, second = layout.split(",")
    args = tuple(np.ascontiguousarray(a if name in ("mk", "kn") else a.T) for a, name in ((x, first), (w, second)))
    op = products(f32, f32, layout)
    outcome = emulate(lowered(op, *args), inputs(op, args), {})
    assert outcome.problems == ()
    exact, magnitudes = x.astype("f8") @ w.astype("f8"), np.abs(x).astype("f8") @ np.abs(w).astype("f8")
    assert (np.abs(outcome.results[0] - exact) <= 2.0**-19 * magnitudes).all()


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_part_that_is_left_out_is_missed(layout: str) -> None:
    args = tuple(RANDOM.standard_normal((64, 64), np.float32) for _ in range(2))
    op = products(f32, f32, layout)
    lowering = lowered(op, *args)
    right = emulate(lowering, inputs(op, args), {}).results[0]
    faults = planted(lowering.cuda.text, r"po_mma_tf32\(.*\);", ";")
    assert len(faults) == 3
    for fault in faults:
        outcome = emulate(changed_text(lowering, fault.text), inputs(op, args), {})
        assert np.abs(outcome.results[0] - right).max() > 2.0**-12, fault.without


def test_strict_sums_run_in_order_unless_any_order_is_exact() -> None:
    assert "no tensor cores: sums run in order" in chosen(multiplied(f16, f16, numerics="strict"))
    assert "by mma_s8" in chosen(multiplied(i8, i8, numerics="strict"))


@po.op
def scaled(x: bf16[M, K], w: bf16[K, N], s: bf16[K]) -> object:
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j] * s[k]
    return y


@po.op
def shifted(x: bf16[M], w: bf16[K, N]) -> object:
    y = po.tensor("y")
    y[i, j] += x[i + k] * w[k, j]
    return y


@po.op
def rounded(x: bf16[M, K], w: f16[K, N]) -> object:
    y = po.tensor("y", dtype=f32)
    y[i, j] += po.cast(x[i, k], f16) * w[k, j]
    return y


def test_other_sums_stay_with_threads_and_the_plan_says_why() -> None:
    assert "the sum is not one of products of two elements" in chosen(scaled)
    assert "the sum is not one of products of two elements" in chosen(rounded)
    assert "not each factor lies along one side" in str(lowered(shifted, M=200, N=64, K=64).mapping)


# --- planted faults -------------------------------------------------------------------------------------------

WRONG = {
    "a swizzle left out": (r"po_swizzled<2>", ""),
    "rows of a fragment": (r"lane % 16", "lane % 8"),
    "steps of a fragment": (r"lane / 16 \* 8", "0"),
    "which of two fragments": (r"\[half \* 2\]", "[0]"),
    "the warp's part of the tile": (r"i_warp \+ lane", "lane"),
    "the lane's row of the results": (r"i_warp \+ row", "i_warp"),
}


@needs_compiler
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_fragment_is_reported_with_the_line_of_the_product(name: str) -> None:
    """On every line on which it may stand: the emulator knows which elements a product is of."""
    args = values(bf16, 64, 64), values(bf16, 64, 64)
    lowering = lowered(products(bf16, bf16, "mk,kn"), *args)
    faults = planted(lowering.cuda.text, *WRONG[name])
    assert faults, "the kernel has nothing of the kind"
    for fault in faults:
        outcome = emulate(changed_text(lowering, fault.text), {"x": args[0], "w": args[1]}, {}, "trace")
        assert outcome.problems, f"line {fault.line}: nobody misses '{fault.without}'"
        lines = [fault.text.splitlines()[problem.line - 1] for problem in outcome.problems]
        assert any(text in line for line in lines for text in ("po_mma_bf16", "po_store", "po_ldmatrix")), lines


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [f16, i8, f32], ids=str)
def test_every_product_is_of_its_own_elements(dtype: DType, layout: str) -> None:
    args = tuple(values(dtype, *(128 if axis == "k" else 64 for axis in axes)) for axes in layout.split(","))
    outcome = emulate(lowered(products(dtype, dtype, layout), *args), {"x": args[0], "w": args[1]}, {}, "trace")
    assert outcome.problems == ()


@needs_compiler
def test_bytes_that_are_not_taken_apart_are_reported() -> None:
    args = values(i8, 64, 128), values(i8, 128, 64)
    lowering = lowered(products(i8, i8, "mk,kn"), *args)
    faults = planted(lowering.cuda.text, r"po_unzip\(.*\);", ";")
    assert len(faults) == 4, "two of the first step, and of each that is fetched while another is multiplied"
    for fault in faults:
        outcome = emulate(changed_text(lowering, fault.text), {"x": args[0], "w": args[1]}, {}, "trace")
        assert "po_mma_s8" in fault.text.splitlines()[outcome.problems[0].line - 1]


@needs_compiler
def test_copies_that_are_not_swizzled_conflict_and_the_counters_name_the_lines() -> None:
    args = values(bf16, 64, 64), values(bf16, 64, 64)
    lowering = lowered(products(bf16, bf16, "mk,kn"), *args)
    text = lowering.cuda.text.replace("po_swizzled<2>", "")
    outcome = emulate(changed_text(lowering, text), {"x": args[0], "w": args[1]}, {}, "count")
    lines = {row.line for row in outcome.traffic if row.space == "shared" and row.used > row.ideal}
    assert lines == {n for n, line in enumerate(text.splitlines(), 1) if "po_ldmatrix" in line}


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [bf16, f16], ids=str)
def test_results_of_two_bytes_leave_in_whole_sectors(dtype: DType, layout: str) -> None:
    """Lanes exchange a pair of columns after the sum where they could not read them in the order of the results."""
    m, n, steps = 64, 96, 64
    x, w = values(dtype, m, steps), values(dtype, steps, n)
    first, second = layout.split(",")
    args = tuple(np.ascontiguousarray(a if name in ("mk", "kn") else a.T) for a, name in ((x, first), (w, second)))
    op = products(dtype, dtype, layout, dtype)
    lowering = lowered(op, *args)
    text = lowering.cuda.text
    assert ("po_exchange<2>" in text) == (second == "kn") and "po_store<4>" in text
    outcome = emulate(lowering, inputs(op, args), {}, "count")
    assert outcome.problems == ()
    assert all(row.used == row.ideal for row in outcome.traffic), outcome.traffic
    assert_equals(outcome.results[0].astype("f8"), (x.astype("f8") @ w.astype("f8")).astype(dtype.numpy).astype("f8"))
    for fault in planted(text, r"po_exchange<2>\(.*\);", ";"):
        wrong = emulate(changed_text(lowering, fault.text), inputs(op, args), {})
        assert (wrong.results[0] != outcome.results[0]).any(), "columns are where they were"


@needs_compiler
@pytest.mark.parametrize("pattern", [r"po_cp_wait<\d>\(\);", r"__syncthreads\(\);"])
def test_a_product_that_does_not_wait_is_reported_with_the_line(pattern: str) -> None:
    args = values(i8, 32, 256), values(i8, 256, 32)
    lowering = lowered(products(i8, i8, "mk,kn"), *args)
    for fault in planted(lowering.cuda.text, pattern, ";"):
        outcome = emulate(changed_text(lowering, fault.text), {"x": args[0], "w": args[1]}, {})
        assert outcome.problems, f"line {fault.line}: nobody waits for '{fault.without}'"
        lines = fault.text.splitlines()
        assert any(
            name in lines[problem.line - 1] for problem in outcome.problems for name in ("po_ldmatrix", "po_cp_async")
        )


@needs_compiler
@pytest.mark.parametrize("dtype", [bf16, f32], ids=str)
def test_a_sum_that_blocks_share_keeps_its_tiles_where_the_last_part_is_shorter(dtype: DType) -> None:
    """Its bound is then of the part, which is the block's: threads added up in global memory."""
    args = values(dtype, 64, 2001), values(dtype, 2001, 64)
    op = products(dtype, dtype, "mk,kn")
    lowering = lowered(op, *args)
    assert "_part" in str(lowering.loops) and "po_cp_async" in lowering.cuda.text
    assert dtype == f32 or "po_mma_bf16" in lowering.cuda.text
    outcome = emulate(lowering, inputs(op, args), {})
    assert outcome.problems == ()
    np.testing.assert_array_equal(outcome.results[0], args[0].astype("f8") @ args[1].astype("f8"))


def test_rows_that_data_chooses_are_not_copied_for_tensor_cores() -> None:
    """None of them takes such rows, and an error would name an array that the user does not have."""

    @po.op(numerics="fast")
    def op(x: f32[M, K], w: po.f16[K, N], ids: po.i32[K]):
        y = po.tensor("y")
        y[i, j] += x[i, k] * w[ids[k], j]
        return y

    assert "w_f32" not in str(op.lower(M=64, K=72, N=64, target="sm_90").rewritten)
