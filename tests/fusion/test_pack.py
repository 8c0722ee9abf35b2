"""Operand panels copied by tile: right numbers, proved, and only where the operand's own layout defeats the cache."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64
from polyopt.fusion import decide, pack
from polyopt.fusion.attach import Attached
from polyopt.fusion.pack import Packing, PackPlan
from polyopt.poly import dependence, extract
from polyopt.poly.scop import Scop
from polyopt.poly.tree import numbered
from tests.golden.test_golden import MACHINE
from tests.poly import running
from tests.poly.operators import K, M, N, i, j, k, linear_relu, softmax

SMALL_CACHE = 1 << 12


@po.op
def batched(x: f64[M, N, K], w: f64[M, K, N]):
    y = po.tensor("y")
    b = po.index("b", extent=M)
    y[b, i, j] += x[b, i, k] * w[b, k, j]
    return y


def scop_of(op: po.Op, **sizes: int) -> Scop:
    return extract.extract(op.lower(target=MACHINE, **sizes).rewritten)


def planned(op: po.Op, cache_bytes: int = SMALL_CACHE, **sizes: int) -> PackPlan:
    scop = scop_of(op, **sizes)
    return pack.decide(scop, dependence.compute(scop), cache_bytes=cache_bytes)


@pytest.mark.parametrize(("m", "n", "depth"), [(33, 65, 20), (40, 130, 17), (32, 128, 16)])
def test_packed_panels_give_the_reference(m: int, n: int, depth: int) -> None:
    lowering = linear_relu.lower(M=m, N=n, K=depth, target=MACHINE)
    scop = extract.extract(lowering.rewritten)
    dependences = dependence.compute(scop)
    plan = pack.decide(scop, dependences, cache_bytes=SMALL_CACHE)
    assert [packing.array for packing in plan.packings] == ["w"]
    found = pack.apply(Attached(scop, {}), dependences, plan)
    after = dependence.compute(found.scop)
    tree = numbered(decide.decide(found.scop, after, found.rows).tree)
    storage = running.proved(found.scop, after, tree)
    copy = storage.of("w_packed")
    assert copy is not None and copy.scope == ("j_tile",) and copy.extent[0].constant == 1
    loops = running.loop_program(lowering.rewritten, found.scop, tree, storage)
    numbers = np.random.default_rng(0)
    x, w, b = (numbers.integers(-3, 4, shape).astype(np.float32) for shape in ((m, depth), (depth, n), (n,)))
    (result,) = running.run(loops, {"x": x, "w": w, "b": b}).values()
    np.testing.assert_array_equal(result, np.maximum(x @ w + b, 0))


def test_a_copy_holds_what_its_tile_reads() -> None:
    scop = scop_of(linear_relu, M=40, N=130, K=20)
    dependences = dependence.compute(scop)
    plan = pack.decide(scop, dependences, cache_bytes=SMALL_CACHE)
    packed = pack.apply(Attached(scop, {}), dependences, plan).scop
    copy = packed.statement("w_packed")
    assert copy.role == "define" and packed.array("w_packed").role == "local"
    assert copy.domain.is_equal(isl.Set("{ w_packed[t, k, j] : 0 <= k < 20 and 0 <= j < 130 and 64t <= j < 64t + 64 }"))
    update = packed.statement("y_update")
    assert {access.read.tensor for access in update.reads} == {"x", "w_packed"}
    relation = next(a.relation for a in update.reads if a.read.tensor == "w_packed")
    assert relation.is_equal(
        isl.Map(
            "{ y_update[i, j, k] -> w_packed[t, k, j] : 0 <= i < 40 and 0 <= j < 130 and 0 <= k < 20 "
            "and 64t <= j < 64t + 64 }"
        )
    )


def test_an_epilogue_shares_the_tiles_of_its_contraction() -> None:
    scop = scop_of(linear_relu, M=40, N=130, K=20)
    dependences = dependence.compute(scop)
    found = pack.apply(Attached(scop, {}), dependences, pack.decide(scop, dependences, cache_bytes=SMALL_CACHE))
    assert set(found.rows) == {"y_init", "y_update", "out"}
    assert {name for rows in found.rows.values() for name, _ in rows} == {"j_tile"}


def test_a_panel_that_fits_its_sets_of_the_cache_is_read_where_it_lies() -> None:
    assert planned(linear_relu, M=40, N=130, K=20).packings
    assert planned(linear_relu, cache_bytes=1 << 20, M=40, N=130, K=20) == PackPlan()


def test_rows_a_large_power_of_two_apart_share_few_sets() -> None:
    """The same panel: with rows of 4096 bytes it thrashes a cache that holds it with rows of 4160 bytes."""
    assert planned(linear_relu, cache_bytes=1 << 17, M=64, N=1024, K=200).packings
    assert not planned(linear_relu, cache_bytes=1 << 17, M=64, N=1040, K=200).packings


@pytest.mark.parametrize(
    "sizes",
    [{"M": 31, "N": 130, "K": 20}, {"M": 40, "N": 64, "K": 20}],
    ids=["few rows pass over it", "one panel is all of it"],
)
def test_a_copy_that_does_not_repay_is_not_made(sizes: dict[str, int]) -> None:
    assert planned(linear_relu, **sizes) == PackPlan()


def test_only_contractions_pack() -> None:
    assert planned(softmax, M=100, N=300) == PackPlan()


def test_operands_of_other_shapes_are_left_alone() -> None:
    @po.op
    def shifted(x: f32[M, K], w: f32[K, N]):
        y = po.tensor("y")
        y[i, j] += x[i, k] * w.pad(0)[k, j + 1] + w[k, 2 * (j // 2)] * x[i, k]
        return y

    assert planned(shifted, M=40, N=130, K=20) == PackPlan()


def test_symbolic_sizes_are_not_packed() -> None:
    @po.op(dynamic=True)
    def product(x: f32[M, K], w: f32[K, N]):
        y = po.tensor("y")
        y[i, j] += x[i, k] * w[k, j]
        return y

    scop = extract.extract(product.lower().program)
    assert pack.decide(scop, dependence.compute(scop), cache_bytes=1) == PackPlan()


def test_a_consumer_that_is_tiled_already_is_not_packed_for() -> None:
    scop = scop_of(linear_relu, M=40, N=130, K=20)
    dependences = dependence.compute(scop)
    plan = pack.decide(scop, dependences, cache_bytes=SMALL_CACHE)
    tiled = Attached(scop, {"out": ()})
    assert pack.apply(tiled, dependences, plan).scop is scop


def test_a_batch_of_products_packs_each_one() -> None:
    tiny = replace(MACHINE, l2_bytes=SMALL_CACHE)
    lowering = batched.lower(M=2, N=70, K=18, target=tiny)
    assert lowering.fallback == "" and "packed" in str(lowering.fusion)
    numbers = np.random.default_rng(0)
    x, w = (numbers.integers(-3, 4, s).astype(float) for s in ((2, 70, 18), (2, 18, 70)))
    (result,) = running.run(lowering.loops, {"x": x, "w": w}).values()
    np.testing.assert_array_equal(result, x @ w)


def test_a_recurrence_on_a_product_does_not_share_its_tiles() -> None:
    @po.op
    def running_sums(x: f64[M, K], w: f64[K, N]):
        y, z = po.tensors("y z")
        y[i, j] += x[i, k] * w[k, j]
        z[i, j] = po.where(i > 0, z[i - 1, j], 0.0) + y[i, j]
        return z

    tiny = replace(MACHINE, l2_bytes=SMALL_CACHE)
    lowering = running_sums.lower(M=33, N=70, K=18, target=tiny)
    assert lowering.fallback == "" and "packed" in str(lowering.fusion)
    numbers = np.random.default_rng(0)
    x, w = (numbers.integers(-3, 4, shape).astype(float) for shape in ((33, 18), (18, 70)))
    (result,) = running.run(lowering.loops, {"x": x, "w": w}).values()
    np.testing.assert_array_equal(result, np.cumsum(x @ w, axis=0))


def test_names_of_copies_are_new() -> None:
    @po.op
    def product(x: f32[M, K], w: f32[K, N], w_packed: f32[N]):
        y, out = po.tensors("y out")
        y[i, j] += x[i, k] * w[k, j]
        out[i, j] = y[i, j] + w_packed[j]
        return out

    tiny = replace(MACHINE, l2_bytes=SMALL_CACHE)
    scop = product.lower(M=40, N=130, K=20, target=tiny).scop
    assert "w_packed_2" in {array.name for array in scop.arrays}


def test_a_plan_says_why_an_operand_is_packed() -> None:
    plan = PackPlan((Packing("y_update", 1, "j", "w", 16384),))
    assert str(plan) == (
        "w packed for y_update by 64 columns of j: rows of the panel (16384 bytes) share sets of the cache"
    )
