"""Two versions of a kernel of symbolic sizes, with copies for many rows and without for few: right numbers in both."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import islpy as isl
import numpy as np
import pytest

import polyopt as po
from polyopt import f16, f32, f64, i32, i64, pipeline, u8
from polyopt.errors import BoundsError
from polyopt.export import c_compiler
from polyopt.poly import dependence, extract
from polyopt.target import preset
from polyopt.tiling import pack
from tests.codegen_c.kernels import guarded
from tests.exported.sanitized import exported, run
from tests.poly.operators import K, M, N, i, j, k

L = po.size("L")


@po.op(dynamic=True)
def product(x: f64[M, K], w: f64[K, N]):
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j]
    return y


@po.op(dynamic=True)
def by_rows(x: f32[M, K], w: f32[N, K], bias: f32[N]):
    y, z = po.tensors("y z")
    y[i, j] += x[i, k] * w[j, k]
    z[i, j] = po.relu(y[i, j] + bias[j])
    return z


@po.op(dynamic=True)
def of_columns(x: i32[K, M], w: i32[K, N]):
    y = po.tensor("y")
    y[i, j] += x[k, i] * w[k, j]
    return y


@po.op(dynamic=True)
def batched(x: f32[L, M, K], w: f32[L, N, K]):
    y, b = po.tensor("y"), po.index("b", extent=L)
    y[b, i, j] += x[b, i, k] * w[b, j, k]
    return y


@po.op(dynamic=True)
def twice(x: f64[M, K], w: f64[K, N], v: f64[N, K]):
    return po.relu(x @ w) @ v


@po.op(dynamic=True)
def halves(x: f16[M, K], w: f16[N, K]):
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[j, k]
    return y


@po.op(dynamic=True)
def chosen(x: f64[M, K], w: f64[K, N], rows: i32[M]):
    y = po.tensor("y")
    y[i, j] += po.where(k <= i, x[rows[i], k], -1.0) * w[k, j]
    return y


SHAPES: dict[str, tuple[po.Op, tuple[str, ...]]] = {
    "product": (product, ("mk", "kn")),
    "by_rows": (by_rows, ("mk", "nk", "n")),
    "of_columns": (of_columns, ("km", "kn")),
    "batched": (batched, ("2mk", "2nk")),
    "twice": (twice, ("mk", "kn", "nk")),
    "halves": (halves, ("mk", "nk")),
    "chosen": (chosen, ("mk", "kn", "m")),
}


def arguments(name: str, rows: int, depth: int) -> list[Any]:
    """Integers: sums are exact in any order."""
    op, shapes = SHAPES[name]
    sizes = {"m": rows, "n": 131 if rows % 2 else 37, "k": depth, "2": 2}
    numbers = np.random.default_rng(rows + depth)
    args = []
    for parameter, letters in zip(op.signature.parameters, shapes, strict=True):
        low = 0 if parameter.name == "rows" else -2
        drawn = numbers.integers(low, max(rows, 1) if parameter.name == "rows" else 3, [sizes[s] for s in letters])
        assert parameter.dtype is not None
        args.append(drawn.astype(parameter.dtype.numpy))
    return args


@pytest.mark.parametrize("depth", [0, 1, 19, 40])
@pytest.mark.parametrize("rows", [0, 1, 31, 32, 33, 70])
@pytest.mark.parametrize("name", SHAPES)
def test_both_versions_give_the_reference(name: str, rows: int, depth: int) -> None:
    op, args = SHAPES[name][0], arguments(name, rows, depth)
    np.testing.assert_array_equal(op(*args), op.reference(*args))


def at_guard_pages() -> None:
    for name, (op, _) in SHAPES.items():
        for rows in (5, 33):
            args = [guarded(array) for array in arguments(name, rows, 19)]
            wanted = op(*args)
            np.testing.assert_array_equal(op(*args, out=guarded(np.zeros_like(wanted))), wanted)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
def test_no_version_leaves_an_array() -> None:
    call = "from tests.tiling.test_versions import at_guard_pages; at_guard_pages()"
    folder = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", call], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not c_compiler(), reason="there is no C compiler")
def test_both_versions_as_c_under_sanitizers(tmp_path: Path) -> None:
    names = [name for name in SHAPES if name != "halves"]  # C11 has no f16
    cases = [(name, rows) for name in names for rows in (5, 33)]
    kernels = [exported(f"{name}_{rows}", SHAPES[name][0], arguments(name, rows, 19)) for name, rows in cases]
    run(kernels, c_compiler() or "", tmp_path)


SMALL_CACHES = replace(preset("avx2"), l1_bytes=64, l2_bytes=256, l3_bytes=256)


def test_terms_are_copied_a_block_at_a_time_in_one_version() -> None:
    """The sums of both versions start in the result: which one starts a contraction's was not asked (ValueError)."""

    @po.op(dynamic=True, target=SMALL_CACHES)
    def op(x: f64[M, N], w: f64[N, K]):
        y = po.tensor("y", shape=(M, K))
        y[i, k] += x[i, j] * w[j, k]
        return y

    assert "terms along j at a time" in str(op.lower().report()) and op.lower().fallback == ""
    for rows in (3, 40):
        x, w = np.full((rows, 150), 2.0), np.full((150, 70), 3.0)
        np.testing.assert_array_equal(op(x, w), 900.0)


def test_what_only_many_rows_have_is_in_one_version() -> None:
    """A sum over rows two apart, of which the version for at most two rows has none (StopIteration)."""

    @po.op(dynamic=["M"])
    def op(x: u8[K], w: f32[N, K], z: i64[M, M]):
        r, s, t = po.index("r", extent=M), po.index("s", extent=N), po.index("t", extent=K)
        u, y = po.tensor("u", shape=(M, N)), po.tensor("y", shape=(N, M), dtype=u8)
        u[i, j] = po.cast(1, i64) + po.sum(po.cast(1, i64), r, where=r + 1 < i)
        y[j, i] += po.where(po.cast(1, i64) < z[i, i], po.cast(po.clip(w[j, t], 0, 8), u8), x[t])
        y[j, i] += po.where(po.cast(1, i64) >= u[i, s], po.cast(1, u8), po.cast(1, u8))
        return y

    for rows in (1, 2, 3, 40):
        args = np.ones(1, np.uint8), np.full((11, 1), 3, np.float32), np.full((rows, rows), 2)
        np.testing.assert_array_equal(op(*args), op.reference(*args))
        assert op.lower(*args).fallback == ""


def test_symbolic_sizes_are_packed_from_some_rows_on() -> None:
    scop = extract.extract(product.lower().program)
    plan = pack.decide(scop, dependence.compute(scop), product.lower().options.target)
    assert [packing.array for packing in plan.packings] == ["w"]
    assert plan.few is not None
    few = plan.few.intersect(scop.context)
    assert [few.is_disjoint(_at(scop.context, M=rows)) for rows in (0, 31, 32, 500)] == [False, False, True, True]
    assert "w packed for y_update" in str(product.lower().report())
    assert product.lower().fallback == ""


def _plan(op: po.Op) -> tuple[pack.PackPlan, Any]:
    lowering = op.lower()
    scop = extract.extract(lowering.program)
    return pack.decide(scop, dependence.compute(scop), lowering.options.target), scop.context


def test_rows_of_two_axes_of_one_size_count_together() -> None:
    @po.op(dynamic=["L"])
    def places(x: f32[L, L, 64], w: f32[96, 64]):
        y = po.tensor("y")
        y[i, j, k] += x[i, j, r] * w[k, r]
        return y

    r = po.index("r")
    plan, context = _plan(places)
    assert plan.few is not None and [packing.array for packing in plan.packings] == ["w"]
    few = plan.few.intersect(context)
    assert [few.is_disjoint(_at(context, L=side)) for side in (5, 6)] == [False, True]


def test_what_lanes_would_take_one_by_one_is_copied_for_all_sizes() -> None:
    """Images of less than 6 x 6 were convolved by scalars, sixty times as slow as those of 6 x 6."""

    @po.op(dynamic=["L"])
    def windows(x: f32[64, L + 2], w: f32[96, 64, 3]):
        y = po.tensor("y", shape=(L, 96))
        y[i, k] += x[c, i + r] * w[k, c, r]
        return y

    c, r = po.indices("c r")
    plan, _ = _plan(windows)
    assert plan.few is None and [packing.array for packing in plan.packings] == ["w"]


@pytest.mark.parametrize("rows", [5, 50])
def test_an_index_out_of_range_is_named_in_both_versions(rows: int) -> None:
    x, w = np.ones((rows, 7)), np.ones((7, 20))
    chosen(x, w, np.zeros(rows, np.int32))
    with pytest.raises(BoundsError, match=f"subscript 0 of 'x' is {rows}, outside"):
        chosen(x, w, np.full(rows, rows, np.int32))


def test_rows_that_no_one_comparison_counts_have_no_copies() -> None:
    """Of `min(M, L)` rows."""

    @po.op(dynamic=True)
    def op(x: f64[M, K], w: f64[K, N], z: f64[L]):
        y = po.tensor("y", shape=(M, N))
        y[i, j] += po.when(i < L, x[i, k] * w[k, j])
        return y

    x, w = np.ones((50, 7)), np.ones((7, 20))
    for some in (3, 40, 60):
        wanted = np.where(np.arange(50)[:, None] < some, 7.0, 0.0) * np.ones(20)
        np.testing.assert_array_equal(op(x, w, np.zeros(some)), wanted)


def test_few_rows_for_all_sizes_have_one_version_without_copies() -> None:
    @po.op(dynamic=["K", "N"])
    def op(x: f32[M, K], w: f32[K, N]):
        return x @ w

    few, many = (op.lower(M=rows, target=preset("avx512")) for rows in (31, 32))
    assert "packed" not in str(few.report()) and len(few.scop.statements) == 2
    assert "packed" in str(many.report()) and len(many.scop.statements) == 3


def test_kernels_that_are_too_long_twice_have_one_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def wide(x: f32[M, K], w: f32[N, K]):
        y = po.tensor("y")
        y[i, j] += x[i, k] * w[j, k]
        return y

    lines = po.op(dynamic=True)(wide).lower().source("llvm").count("\n")
    monkeypatch.setattr(pipeline, "MOST_LINES", lines // 2)
    lowering = po.op(dynamic=["M", "N"])(wide).lower(K=64)
    assert lowering.fallback == "" and "w_packed" not in str(lowering.loops)
    assert "operands are not copied for many rows: the kernel of 'wide' is too long" in str(lowering.report())


def test_strict_numerics_are_those_of_the_reference_in_both_versions() -> None:
    op = po.op(numerics="strict", dynamic=True)(lambda x, w: x @ w)
    for rows in (5, 77):
        x, w = (np.random.default_rng(rows).standard_normal(s).astype(np.float32) for s in ((rows, 45), (45, 67)))
        assert op(x, w).tobytes() == op.reference(x, w, numerics="strict").tobytes()


def test_the_same_kernel_serves_both(polyopt_check: Any) -> None:
    for rows in (7, 64):
        polyopt_check(by_rows, M=rows, N=50, K=33)
    _ = product.lower().verify()


def _at(context: Any, **sizes: int) -> Any:
    for name, size in sizes.items():
        context = context.fix_val(isl.dim_type.param, context.get_var_names(isl.dim_type.param).index(name), size)
    return context
