"""Operand panels copied by tile: right numbers, proved, and only where the operand's own layout defeats the cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import islpy as isl
import numpy as np
import pytest

import polyopt as po
from polyopt import f16, f32, f64, u16
from polyopt.fusion import decide
from polyopt.loops.ir import Block, For, Store, integer, walk
from polyopt.poly import dependence, extract
from polyopt.poly.scop import Scop
from polyopt.poly.tree import numbered
from polyopt.target import Target, preset
from polyopt.tiling import copies, pack
from polyopt.tiling.pack import Packing, PackPlan
from tests.golden.test_golden import MACHINE
from tests.poly import running
from tests.poly.operators import K, M, N, i, j, k, linear_relu, softmax

L = po.size("L")
TINY = replace(MACHINE, l1_bytes=1 << 10, l2_bytes=1 << 12)


@po.op
def batched(x: f64[M, N, K], w: f64[M, K, N]):
    y = po.tensor("y")
    b = po.index("b", extent=M)
    y[b, i, j] += x[b, i, k] * w[b, k, j]
    return y


def scop_of(op: po.Op, **sizes: int) -> Scop:
    return extract.extract(op.lower(target=MACHINE, **sizes).rewritten)


def planned(op: po.Op, target: Target = TINY, **sizes: Any) -> PackPlan:
    scop = scop_of(op, **sizes)
    return pack.decide(scop, dependence.compute(scop), target)


@pytest.mark.parametrize(("m", "n", "depth"), [(33, 217, 17), (40, 64, 17), (32, 216, 16)])
def test_packed_panels_give_the_reference(m: int, n: int, depth: int) -> None:
    lowering = linear_relu.lower(M=m, N=n, K=depth, target=MACHINE)
    scop = extract.extract(lowering.rewritten)
    dependences = dependence.compute(scop)
    plan = pack.decide(scop, dependences, TINY)
    (packing,) = plan.packings
    assert packing.array == "w"
    found = copies.apply(scop, dependences, plan)
    after = dependence.compute(found.scop)
    tree = numbered(decide.decide(found.scop, after, found.rows, found.shared).tree)
    storage = running.proved(found.scop, after, tree)
    copy = storage.of("w_packed")
    assert copy is not None
    if packing.block:
        around = ("j_tile",) if packing.terms is None else ("j_tile", "k_tile")
        assert copy.scope == around and copy.extent[0].constant == packing.block // packing.points
    loops = running.loop_program(lowering.rewritten, found.scop, tree, storage)
    numbers = np.random.default_rng(0)
    x, w, b = (numbers.integers(-3, 4, shape).astype(np.float32) for shape in ((m, depth), (depth, n), (n,)))
    (result,) = running.run(loops, {"x": x, "w": w, "b": b}).values()
    np.testing.assert_array_equal(result, np.maximum(x @ w + b, 0))


def test_a_copy_holds_what_its_panels_read() -> None:
    scop = scop_of(linear_relu, M=40, N=130, K=20)
    dependences = dependence.compute(scop)
    plan = pack.decide(scop, dependences, TINY)
    points = plan.packings[0].points
    packed = copies.apply(scop, dependences, plan).scop
    copy = packed.statement("w_packed")
    assert copy.role == "define" and packed.array("w_packed").role == "local"
    inside = f"0 <= k < 20 and 0 <= j < 130 and {points}p <= j < {points}p + {points}"
    assert copy.domain.is_equal(isl.Set(f"{{ w_packed[p, k, j] : {inside} }}"))
    assert copy.write.is_equal(isl.Map(f"{{ w_packed[p, k, j] -> w_packed[p, k, j - {points}p] : {inside} }}"))
    update = packed.statement("y_update")
    assert {access.read.tensor for access in update.reads} == {"x", "w_packed"}
    relation = next(a.relation for a in update.reads if a.read.tensor == "w_packed")
    assert relation.is_equal(
        isl.Map(f"{{ y_update[i, j, k] -> w_packed[p, k, j - {points}p] : 0 <= i < 40 and {inside} }}")
    )


def test_an_epilogue_shares_the_blocks_of_its_contraction() -> None:
    scop = scop_of(linear_relu, M=40, N=512, K=64)
    dependences = dependence.compute(scop)
    found = copies.apply(scop, dependences, pack.decide(scop, dependences, replace(TINY, l2_bytes=1 << 16)))
    assert set(found.rows) == {"y_init", "y_update", "out", "w_packed"}
    assert {rows[0][0] for rows in found.rows.values()} == {"j_tile"}


def test_blocks_of_columns_are_copied_as_they_are_needed_where_rows_are_copied_ahead() -> None:
    """The rows' copy, which has no blocks, kept the columns' copy from the loop over blocks."""

    @po.op
    def turned(x: f32[K, M], y: f32[K, N]):
        z = po.tensor("z")
        z[i, j] += x[k, i] * y[k, j]
        return z

    lowering = turned.lower(M=512, N=512, K=512, target=MACHINE)
    assert "y_packed -> z_update: fused: share the loop over j_tile" in str(lowering.fusion)
    x, y = (np.random.default_rng(n).integers(-4, 5, (520, 530)).astype(np.float32) for n in range(2))
    np.testing.assert_array_equal(turned(x, y), x.T @ y)


def test_a_panel_that_fits_its_sets_of_the_cache_is_read_where_it_lies() -> None:
    assert planned(linear_relu, M=40, N=130, K=20).packings
    assert planned(linear_relu, MACHINE, M=40, N=130, K=20) == PackPlan()


def test_rows_a_large_power_of_two_apart_share_few_sets() -> None:
    """The same panel: with rows of 4096 bytes it thrashes a cache that holds it with rows of 4160 bytes."""
    assert planned(linear_relu, MACHINE, M=64, N=1024, K=64).packings
    assert not planned(linear_relu, MACHINE, M=64, N=1040, K=64).packings


def test_an_operand_in_the_second_cache_is_copied_only_for_many_rows() -> None:
    """Rows of 1024 bytes fall into few sets of the first cache, but few tiles pass over them."""
    machine = replace(MACHINE, l2_bytes=1 << 21)
    assert not planned(linear_relu, machine, M=64, N=256, K=300).packings
    assert planned(linear_relu, machine, M=640, N=256, K=300).packings
    assert not planned(linear_relu, machine, M=640, N=250, K=300).packings
    assert planned(linear_relu, machine, M=640, N=1250, K=300).packings


@pytest.mark.parametrize(
    "sizes",
    [{"M": 31, "N": 130, "K": 20}, {"M": 40, "N": 16, "K": 20}],
    ids=["few rows pass over it", "one panel is all of it"],
)
def test_a_copy_that_does_not_repay_is_not_made(sizes: dict[str, Any]) -> None:
    assert planned(linear_relu, **sizes) == PackPlan()


def test_few_columns_are_packed_ahead_and_many_in_blocks_for_the_threads() -> None:
    assert [p.block for p in planned(linear_relu, M=64, N=64, K=64).packings] == [0]
    (packing,) = planned(linear_relu, M=64, N=512, K=64).packings
    assert packing.block % packing.points == 0 and 512 / packing.block >= pack.LEAST_BLOCKS


def test_a_block_of_deep_panels_fills_no_more_than_half_the_second_cache() -> None:
    (deep,) = planned(linear_relu, MACHINE, M=128, N=768, K=2048).packings
    (flat,) = planned(linear_relu, MACHINE, M=128, N=768, K=512).packings
    assert deep.block * 2048 * 4 <= MACHINE.l2_bytes // 2 < flat.block * 2048 * 4


@pytest.mark.parametrize("turned", ["x", "y", "both"])
def test_transposed_operands_are_turned_while_they_are_packed(turned: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "FEW_PASSES", 0)

    @po.op
    def product(x: f32[M, K], y: f32[K, N]):
        z = po.tensor("z")
        left = x[k, i] if turned in ("x", "both") else x[i, k]
        right = y[j, k] if turned in ("y", "both") else y[k, j]
        z[i, j] += left * right
        return z

    numbers = np.random.default_rng(0)
    x, y = (numbers.integers(-3, 4, (35, 35)).astype(np.float32) for _ in range(2))
    lowering = product.lower(x, y, target=MACHINE)
    assert lowering.fallback == ""
    packed = {packing.array for packing in lowering._copies.panels.packings}
    assert packed >= {"x": {"x"}, "y": {"y"}, "both": {"x", "y"}}[turned]
    wanted = (x.T if turned != "y" else x) @ (y.T if turned != "x" else y)
    (result,) = running.run(lowering.loops, {"x": x, "y": y}).values()
    np.testing.assert_array_equal(result, wanted)
    np.testing.assert_array_equal(product(x, y), wanted)


def test_rows_that_few_tiles_read_are_not_copied_where_the_second_cache_holds_them() -> None:
    @po.op
    def gradient(x: f32[K, M], d: f32[K, N]):
        """Of the weights of a layer."""
        g = po.tensor("g")
        g[i, j] += x[k, i] * d[k, j]
        return g

    target = preset("avx512")
    assert "packed" not in str(gradient.lower(M=64, N=64, K=8192, target=target).fusion)  # in parts of 512 terms
    assert "x packed" in str(gradient.lower(M=64, N=96, K=8192, target=target).fusion)
    assert "x packed" in str(gradient.lower(M=512, N=64, K=1024, target=target).fusion)
    x, d = (np.random.default_rng(n).integers(-4, 5, (700, 60)).astype(np.float32) for n in range(2))
    np.testing.assert_array_equal(gradient(x, d), x.T @ d)


@po.op
def few_outputs(x: f32[M, K], w: f32[N, K]):
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[j, k]
    return y


def test_columns_that_lie_apart_are_packed_also_where_they_are_one_panel() -> None:
    """A layer of 32 outputs gathered its lanes: 48 GFLOP/s where one of 64 had 105 (Zen 4, one thread)."""
    for outputs in (16, 20, 32):
        (packing,) = planned(few_outputs, MACHINE, M=1000, N=outputs, K=500).packings
        assert packing.array == "w" and packing.block == 0 and "lie apart" in packing.reason
    assert planned(few_outputs, MACHINE, M=1000, N=3, K=500).packings == ()  # lanes would be empty
    draw = np.random.default_rng(0).integers
    x, w = draw(-3, 4, (70, 50)).astype(np.float32), draw(-3, 4, (20, 50)).astype(np.float32)
    np.testing.assert_array_equal(few_outputs(x, w), x @ w.T)


def test_a_panel_under_windows_leaves_room_in_the_second_cache() -> None:
    """All terms of 512 channels: two panels would be more than it holds, and so would a panel of four vectors."""
    c, r, s = po.indices("c r s")
    h, w = po.index("h", extent=M), po.index("w", extent=M)

    @po.op
    def deep(x: f32[K, M, M], t: f32[N, K, 3, 3]):
        y = po.tensor("y")
        y[j, h, w] += x.pad(0)[c, h + r - 1, w + s - 1] * t[j, c, r, s]
        return y

    wide = preset("avx512")
    (filters,) = deep.lower(K=512, M=7, N=512, target=wide)._copies.panels.packings
    assert filters.array == "t" and filters.block == filters.points and 4 * filters.panel_bytes <= 3 * wide.l2_bytes


@pytest.mark.parametrize("shape", [(28, 32, 9), (64, 64, 64), (33, 100, 5), (32, 48, 20)])
def test_a_product_that_is_kept_transposed_is_stored_in_runs(shape: tuple[int, int, int]) -> None:
    @po.op
    def turned(x: f32[M, K], w: f32[K, N]):
        y, z, v = po.tensors("y z v")
        y[i, j] += x[i, k] * w[k, j]
        z[j, i] = y[i, j]
        v[j, i] = po.relu(y[i, j] + 1)
        return z, v

    @po.op
    def every_second(x: f32[M, K], w: f32[K, N]):
        """Rows two steps apart, which are no neighbours."""
        y, z, u = po.tensor("y"), po.tensor("z", shape=(N, M)), po.tensor("u")
        y[i, j] = po.sum(x[i, k] * w[k, j], k)
        u[j, i] = y[i, j] * 2
        z[j, i] = po.when(i % 2 == 0, y[i, j])
        z[j, i] = po.when(i % 2 == 1, 1.0)
        return z, u

    rows, columns, depth = shape
    draw = np.random.default_rng(0).integers
    x, w = (draw(-3, 4, s).astype(np.float32) for s in ((rows, depth), (depth, columns)))
    assert "vscatter" not in turned.lower(x, w, target=preset("avx512")).source("asm")
    for op in (turned, every_second):
        for found, wanted in zip(op(x, w), op.reference(x, w), strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_only_contractions_pack() -> None:
    assert planned(softmax, M=100, N=300) == PackPlan()


def test_operands_of_other_shapes_are_left_alone() -> None:
    @po.op
    def shifted(x: f32[M, K], w: f32[K, N]):
        y = po.tensor("y")
        y[i, j] += x[i, k] * w.pad(0)[k, j + 1] + w[k, 2 * (j // 2)] * x[i, k]
        return y

    assert planned(shifted, M=40, N=130, K=20) == PackPlan()


def test_a_batch_of_products_packs_each_one() -> None:
    lowering = batched.lower(M=2, N=36, K=18, target=TINY)
    assert lowering.fallback == "" and "packed" in str(lowering.fusion)
    numbers = np.random.default_rng(0)
    x, w = (numbers.integers(-3, 4, s).astype(float) for s in ((2, 36, 18), (2, 18, 36)))
    (result,) = running.run(lowering.loops, {"x": x, "w": w}).values()
    np.testing.assert_array_equal(result, x @ w)


def test_an_operand_that_is_never_read_has_no_copy() -> None:
    """Its copy had no instance, which no schedule runs: StopIteration."""
    i, j, k = po.index("i", extent=M), po.index("j", extent=M), po.index("k", extent=8)
    column = po.index("column", extent=N)

    @po.op
    def spread(t: u16[M, N]):
        y = po.tensor("y", shape=(M, M))
        y[i, j] += po.where(((j + k) % 3 == 1) & (j // 2 >= 1), t[(i + i) // 2, 0], t[j, column])
        return y

    t = np.arange(32, dtype=np.uint16).reshape(32, 1)
    np.testing.assert_array_equal(spread(t), spread.reference(t, numerics="strict"))


def test_an_operand_that_is_named_twice_has_one_copy() -> None:
    """A first minimum reads what it compares twice; the second copy was one of the first copy's panels, and failed."""

    @po.op(target="generic")
    def first(x: f64[M, K], w: f64[N, K]):
        z = po.tensor("z")
        z[i, j] = po.argmin(x[i, k] * w[j, k], k)
        return z

    rng = np.random.default_rng(1)
    x, w = rng.integers(-3, 4, (40, 16)).astype(np.float64), rng.integers(-3, 4, (9, 16)).astype(np.float64)
    assert (first(x, w) == (x[:, None] * w).argmin(-1)).all()


def test_a_recurrence_on_a_product_does_not_share_its_tiles() -> None:
    @po.op
    def running_sums(x: f64[M, K], w: f64[K, N]):
        y, z = po.tensors("y z")
        y[i, j] += x[i, k] * w[k, j]
        z[i, j] = po.where(i > 0, z[i - 1, j], 0.0) + y[i, j]
        return z

    lowering = running_sums.lower(M=33, N=70, K=18, target=TINY)
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

    scop = product.lower(M=40, N=130, K=20, target=TINY).scop
    assert "w_packed_2" in {array.name for array in scop.arrays}


def test_narrow_operands_are_converted_as_they_are_copied() -> None:
    @po.op
    def narrow(x: f16[M, K], y: f16[K, N]):
        z = po.tensor("z")
        z[i, j] += x[i, k] * y[k, j]
        return z

    numbers = np.random.default_rng(0)
    x, y = (numbers.integers(-3, 4, (40, 40)).astype(np.float16) for _ in range(2))
    lowering = narrow.lower(x, y, target=MACHINE)
    assert lowering.fallback == "" and "x copied for z_update, all of it ahead: it is converted" in str(lowering.fusion)
    assert {a.dtype for a in lowering.scop.arrays if a.name in ("x_packed", "y_packed")} == {f32}
    (result,) = running.run(lowering.loops, {"x": x, "y": y}).values()
    np.testing.assert_array_equal(result, (x.astype(np.float32) @ y.astype(np.float32)).astype(np.float16))
    np.testing.assert_array_equal(narrow(x, y), result)


def test_a_plan_says_why_an_operand_is_packed() -> None:
    plan = PackPlan((Packing("y_update", 1, "j", 16, 96, "w", 16384, "its rows would not stay in the first cache"),))
    assert str(plan) == (
        "w packed for y_update in panels of 16 along j (16384 bytes each), 96 columns at a time: "
        "its rows would not stay in the first cache"
    )


def test_an_index_may_have_the_name_that_a_copy_would_give_its_own(caplog: pytest.LogCaptureFixture) -> None:
    q = po.index("j_element0")

    @po.op
    def op(x: f32[M, K, L], w: f32[K, L, N]):
        y = po.tensor("y")
        y[i, j] += x[i, k, q] * w[K - 1 - k, q, j]
        return y

    x, w = (np.random.default_rng(0).integers(-4, 5, s).astype(np.float32) for s in ((64, 65, 9), (65, 9, 1024)))
    np.testing.assert_array_equal(op(x, w), np.einsum("ikq,kqj->ij", x, w[::-1]))
    assert not caplog.records


def test_an_index_may_have_the_name_of_a_loop_over_blocks(caplog: pytest.LogCaptureFixture) -> None:
    e = po.index("j_tile")

    @po.op
    def op(x: f32[M, K], w: f32[K, N], b: f32[N]):
        y, z = po.tensors("y z")
        y[i, j] = b[j]
        y[i, j] += x[i, k] * w[k, j]
        z[i, e] = po.maximum(y[i, e], 0)
        return z

    x, w, b = (np.random.default_rng(0).integers(-3, 4, s).astype(np.float32) for s in ((64, 513), (513, 1024), 1024))
    np.testing.assert_array_equal(op(x, w, b), np.maximum(x @ w + b, 0))
    assert not caplog.records


def test_the_batch_of_a_computed_operand_may_have_the_name_of_its_column(caplog: pytest.LogCaptureFixture) -> None:
    A, C, F, H, Q, W = po.sizes("A C F H Q W")
    q, p, c, o, inner, column = po.indices("q p c o inner j")
    r, a, h, w = (po.index(n, extent=e) for n, e in (("r", 3), ("a", 7), ("p", 21), ("j", 19)))

    @po.op
    def op(x: f32[M, C, A, H, W], f: f32[F, Q]):
        u, y = po.tensors("u y")
        u[q, 3 * c + r, a * (21 * 19) + h * 19 + w] = x[q, c, a, h + r, w]
        y[p, o, column] += f[o, inner] * u[p, inner, column]
        return y

    x, f = (np.random.default_rng(0).integers(-3, 4, s).astype(np.float32) for s in ((2, 40, 7, 23, 19), (33, 120)))
    windows = np.stack([x[:, :, :, r : r + 21] for r in range(3)], 2).reshape(2, 120, -1)
    np.testing.assert_array_equal(op(x, f), f @ windows)
    assert not caplog.records


@pytest.mark.parametrize("columns", [384, 512, 4096])
def test_what_follows_a_packed_product_in_loops_of_its_own_keeps_its_lanes(columns: int) -> None:
    """A loop over the product's blocks of columns stood around the points of a softmax, which ran without lanes: with
    512 columns the whole took 1.6 times as long."""

    @po.op
    def normalised(x: f32[M, K], w: f32[K, N]):
        h = po.tensor("h")
        h[i, j] += x[i, k] * w[k, j]
        return po.softmax(h)

    lowering = normalised.lower(M=512, N=columns, K=512, target=preset("avx512"))
    assert "columns at a time" in str(lowering.fusion)
    along = [loop for loop in walk(lowering.loops.body) if isinstance(loop, For) and loop.lower == integer(0)]
    innermost = [loop for loop in along if all(isinstance(s, Store | Block) for s in walk(loop.body))]
    assert len(innermost) >= 3 and all(loop.kind == "vector" for loop in innermost), str(lowering.loops)
