"""Sums that pass by in blocks while an operand is read a few rows at a time: when, how, and with which numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, f32, f64
from polyopt.dsl.affine import axis
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree, loops
from polyopt.target import Target, preset
from polyopt.tiling.apply import apply
from polyopt.tiling.plan import NestPlan, TilingPlan
from tests.golden.test_golden import MACHINE

AVX512 = replace(preset("avx512"), l1_bytes=48 << 10, l2_bytes=1 << 21)

B, M, N, K = po.sizes("B M N K")
b, i, j, k = po.indices("b i j k")


@po.op
def columns(x: f32[M, N]):
    y = po.tensor("y")
    y[j] += x[i, j]
    return y


@po.op
def turned_product(x: f32[M, N], v: f32[M]):
    y = po.tensor("y")
    y[j] += x[i, j] * v[i]
    return y


@po.op
def spread(x: f64[M, N]):
    """Mean and variance of each column: two sums, one after the other, and what follows from them."""
    mean, variance = po.tensors("mean variance")
    mean[j] = po.mean(x[i, j], i)
    variance[j] = po.mean((x[i, j] - mean[j]) * (x[i, j] - mean[j]), i)
    return mean, variance


@po.op
def batches(x: f32[B, M, K, N]):
    y = po.tensor("y")
    y[b, j] = po.max(x[b, i, k, j], (i, k))
    return y


@po.op
def rounded(x: bf16[M, N]):
    y = po.tensor("y")
    y[j] += x[i, j]
    return y


@po.op
def moments(x: f32[M, N]):
    """Two sums over one operand."""
    total, squares = po.tensors("total squares")
    total[j] = po.sum(x[i, j], i)
    squares[j] = po.sum(x[i, j] * x[i, j], i)
    return total, squares


@po.op
def product(x: f32[M, K], w: f32[K, N]):
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j]
    return y


@po.op
def dense(x: f32[M, K], w: f32[K, N], bias: f32[N]):
    y = po.tensor("y")
    y[i, j] = po.maximum(po.sum(x[i, k] * w[k, j], k) + bias[j], 0)
    return y


@po.op
def heads(x: f32[B, M, K], w: f32[B, K, N]):
    y = po.tensor("y")
    y[b, i, j] += x[b, i, k] * w[b, k, j]
    return y


def nests(operator: po.Op, target: Any = MACHINE, **sizes: int) -> list[NestPlan]:
    return list(operator.lower(target=target, **sizes).tiling.nests)


def test_sums_over_many_long_rows_pass_by_in_blocks() -> None:
    (nest,) = nests(columns, M=2048, N=4096)
    lanes = MACHINE.lanes(32)
    assert dict(nest.tiles) == {"j": 8 * lanes} and nest.passes == (("i", 8),)
    assert nest.block == 2048 and nest.block % (8 * lanes) == 0
    assert "blocks of 2048 pass by 8 of i" in str(nest)
    assert "blocks of 2048 pass by 8 of i" in str(columns.lower(target=MACHINE, M=2048, N=4096).report())


@pytest.mark.parametrize(
    ("operator", "sizes"),
    [
        (columns, {"M": 512, "N": 64}),  # one tile holds a row
        (columns, {"M": 16, "N": 8192}),  # few rows
        (columns, {"M": 40, "N": 130}),  # all of it fits the first cache
        (product, {"M": 64, "N": 512, "K": 512}),  # a register tile reuses both operands
    ],
)
def test_other_sums_stay_in_registers(operator: po.Op, sizes: dict[str, int]) -> None:
    assert not any(nest.block for nest in nests(operator, **sizes))


def test_tiles_of_few_rows_pass_by_long_rows_from_behind_the_second_cache() -> None:
    """Each row of w starts a page, and each tile would take three lines of it."""
    (nest,) = nests(product, AVX512, M=6, N=2048, K=1024)
    assert nest.rows == "i" and dict(nest.tiles)["i"] == 6 and nest.passes == (("k", 32),)
    assert nest.order == ("j",) and nest.block >= 1024
    assert "blocks of" in str(nest) and "rows are read in runs" in str(nest)


def test_more_rows_pass_by_panels_of_a_block_in_the_second_cache() -> None:
    (nest,) = nests(product, AVX512, M=40, N=3072, K=768)
    assert nest.panels_first and nest.passes == (("k", 64),) and 512 <= nest.block < 560
    (narrow,) = nests(product, AVX512, M=40, N=768, K=3072)
    assert narrow.panels_first and 192 <= narrow.block < 240  # four blocks for threads
    lowering = product.lower(target=AVX512, M=40, N=3072, K=768)
    assert "packed" not in str(lowering.fusion)
    order = [line.split()[1] for line in str(lowering.loops).splitlines() if "for" in line and "_tile in" in line]
    assert order[-3:] == ["k_tile", "j_tile", "i_tile"]


def test_stretches_of_terms_leave_rows_whole() -> None:
    """Threads share the stretches, so blocks need not be shared out too."""
    nest, _ = nests(product, AVX512, M=12, N=1024, K=1024)
    assert nest.order[0] == "k_part" and nest.block >= 1024 and nest.passes == (("k", 32),)


@pytest.mark.parametrize(
    "sizes",
    [
        {"M": 6, "N": 256, "K": 1024},  # near enough
        {"M": 6, "N": 256, "K": 4096},  # rows are no longer than what is read ahead
        {"M": 6, "N": 8192, "K": 64},  # few rows to pass by
        {"M": 50, "N": 1024, "K": 1024},  # taking up sums of so many rows costs what a copy does
        {"M": 30, "N": 1024, "K": 200},  # too few rows to pass by
        {"M": 40, "N": 1025, "K": 1024},  # rows begin anywhere, and are copied
    ],
)
def test_other_products_stay_in_registers(sizes: dict[str, int]) -> None:
    assert not any(nest.block for nest in nests(product, AVX512, **sizes))


@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize(("m", "n", "k"), [(6, 1100, 520), (9, 1031, 701), (13, 521, 1283)])
def test_products_in_blocks_are_those_of_the_reference(
    polyopt_check: Any, numerics: Any, m: int, n: int, k: int
) -> None:
    operator = po.op(numerics=numerics)(product.__wrapped__)
    polyopt_check(operator, M=m, N=n, K=k)
    for name in ("avx2", "avx512", "generic"):
        operator.lower(target=near(name), M=m, N=n, K=k).verify()
    assert any(nest.block and nest.rows for nest in nests(operator, near("avx512"), M=m, N=n, K=k))


@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize("operator", [product, dense])
def test_products_that_pass_by_panels_are_those_of_the_reference(
    polyopt_check: Any, numerics: Any, operator: po.Op
) -> None:
    sizes = {"M": 41, "N": 2056, "K": 523}
    checked = po.op(numerics=numerics)(operator.__wrapped__)
    polyopt_check(checked, **sizes)
    lowering = checked.lower(target=AVX512, **sizes)
    lowering.verify()
    assert any(nest.panels_first for nest in lowering.tiling.nests) and not lowering.fallback


def test_an_epilogue_and_batches_of_products_in_blocks(polyopt_check: Any) -> None:
    for operator, sizes in ((dense, {"M": 5, "N": 601, "K": 257}), (heads, {"B": 3, "M": 5, "N": 601, "K": 257})):
        polyopt_check(operator, **sizes)
        lowering = operator.lower(target=near("avx512"), **sizes)
        lowering.verify()
        assert any(nest.block and nest.rows for nest in lowering.tiling.nests) and not lowering.fallback


def near(name: str) -> Target:
    """A machine whose second cache holds little."""
    return replace(preset(name), l2_bytes=1 << 18)


def test_each_of_two_sums_passes_by() -> None:
    (nest,) = nests(spread, M=300, N=4096)
    assert nest.block and len(nest.passes) == 2


def loop(name: str, body: Tree, *names: str, coincident: bool = False) -> Loop:
    return Loop(name, tuple((s, axis(name)) for s in names), body, coincident, reduction=not coincident)


def test_a_register_tile_in_a_block_stands_inside_the_rows_that_pass_by() -> None:
    update = loop("k", Leaf("update"), "update")
    body = Sequence((Leaf("init"), update))
    tree = loop("i", loop("j", body, "init", "update", coincident=True), "init", "update", coincident=True)
    nest = NestPlan(("i", "j"), ("j",), (("i", 3), ("j", 4)), "i", "j", "a test", block=16, passes=(("k", 2),))
    blocks = apply(tree, TilingPlan((nest,)))
    around = {s: [(one.name, one.kind) for one in loops(blocks) if s in one.statements] for s in ("init", "update")}
    tile = [("i_tile", "serial"), ("j_tile", "serial")]
    points = [("i", "unrolled"), ("j", "vector")]
    assert around["init"] == [("j_block", "serial"), *tile, *points]
    assert around["update"] == [("j_block", "serial"), ("k_tile", "serial"), *tile, ("k", "serial"), *points]


def test_a_block_goes_around_the_reduction_and_its_tiles_inside() -> None:
    update = loop("i", Leaf("update"), "update")
    tree = loop("j", Sequence((Leaf("init"), update, Leaf("out"))), "init", "update", "out", coincident=True)
    nest = NestPlan(("j",), ("j",), (("j", 4),), None, "j", "a test", block=16, passes=(("i", 2),))
    blocks = apply(tree, TilingPlan((nest,)))
    around = {s: [one for one in loops(blocks) if s in one.statements] for s in ("init", "update", "out")}
    assert [(one.name, one.kind) for one in around["update"]] == [
        ("j_block", "serial"),
        ("i_tile", "serial"),
        ("j_tile", "serial"),
        ("i", "serial"),
        ("j", "vector"),
    ]
    rows = [one.row("update") for one in around["update"]]
    assert rows == [axis("j") // 16 * 16, axis("i") // 2 * 2, axis("j") // 4 * 4, axis("i"), axis("j")]
    for beside in ("init", "out"):
        assert [(one.name, one.kind) for one in around[beside]] == [("j_block", "serial"), ("j", "vector")]


@pytest.mark.parametrize("numerics", ["default", "strict"])
@pytest.mark.parametrize(("m", "n"), [(33, 2049), (61, 1023), (40, 521), (300, 113)])
def test_terms_are_added_in_the_order_of_the_rows(m: int, n: int, numerics: Any) -> None:
    x = np.random.default_rng(m).standard_normal((m, n)).astype(np.float32)
    total = np.zeros(n, np.float32)
    for row in x:
        total = total + row
    found = po.op(numerics=numerics)(columns.__wrapped__)
    np.testing.assert_array_equal(found(x), total)  # lanes are columns: no sum is split


@pytest.mark.parametrize(("m", "n"), [(257, 1031), (64, 520), (35, 2047)])
def test_results_are_those_of_the_reference(polyopt_check: Any, m: int, n: int) -> None:
    polyopt_check(turned_product, M=m, N=n)
    polyopt_check(spread, M=m, N=n)
    polyopt_check(rounded, M=m, N=n)
    polyopt_check(moments, M=m, N=n)


def test_batches_and_sums_over_two_axes(polyopt_check: Any) -> None:
    polyopt_check(batches, B=3, M=5, K=37, N=531)
    assert any(nest.block for nest in nests(batches, B=3, M=5, K=37, N=531))


def test_nan_infinities_and_strides() -> None:
    wide = np.random.default_rng(0).standard_normal((130, 1300)).astype(np.float32)
    view = wide[::2, ::2]
    view[3, 5], view[10, 600], view[64, 649] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(columns(view), columns(view.copy()))
    np.testing.assert_allclose(columns(view), view.astype(np.float64).sum(0), rtol=1e-4, atol=1e-4)


def test_symbolic_sizes(polyopt_check: Any) -> None:
    dynamic = po.op(dynamic=True)(turned_product.__wrapped__)
    for m, n in ((0, 5), (1, 1), (9, 700), (41, 513)):
        polyopt_check(dynamic, M=m, N=n)


@pytest.mark.parametrize("target", ["avx512", "generic", "neon"])
def test_blocks_are_proved_for_other_machines(target: str) -> None:
    lowering = turned_product.lower(M=130, N=2050, target=target)
    lowering.verify()
    assert any(nest.block for nest in lowering.tiling.nests) and not lowering.fallback
