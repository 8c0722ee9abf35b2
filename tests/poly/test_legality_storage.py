"""Faults planted in buffer plans: the proof refuses each with a witness.

Beside each fault stands a variant that is legal and must be accepted, so that refusing everything would not do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

import polyopt as po
from polyopt import f64
from polyopt.dsl.affine import Affine, axis, constant
from polyopt.pipeline import Lowering
from polyopt.poly import storage
from polyopt.poly.storage import Storage, StoragePlan
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree, as_schedule, numbered
from polyopt.tiling import apply as tiling
from polyopt.tiling.plan import NestPlan, TilingPlan
from tests.poly.operators import M, N, i, j, jacobi_1d, k, product
from tests.poly.proving import nest, pair, plain_product, prove, refused, whole, with_loop

ROW = axis("i")


def plan_of(lowering: Lowering, array: str, **fields: Any) -> StoragePlan:
    """The chosen plan with the buffer of one array changed."""
    chosen = lowering.storage.of(array)
    assert chosen is not None
    return StoragePlan(tuple(replace(b, **fields) if b is chosen else b for b in lowering.storage.buffers))


def test_too_few_planes_are_refused_and_more_are_accepted() -> None:
    lowering = jacobi_1d.lower(N=6, steps=4)
    buffer = lowering.storage.of("u")
    assert buffer is not None and buffer.modulo == (2, None)
    error = refused(lowering, storage=plan_of(lowering, "u", modulo=(1, None), extent=(constant(1), constant(6))))
    source, target = pair(error)
    assert "overwrites" in error.what and target["i"] - source["i"] in (-1, 0, 1)
    for planes in (2, 3, 5):
        extent = (constant(planes), constant(6))
        prove(lowering, storage=plan_of(lowering, "u", modulo=(planes, None), extent=extent))


def test_a_folded_buffer_without_all_its_planes_is_refused() -> None:
    lowering = jacobi_1d.lower(N=6, steps=4)
    for modulo, planes in (((2, None), 1), ((0, None), 1), ((3, None), 2)):
        extent = (constant(planes), constant(6))
        assert "fewer planes" in refused(lowering, storage=plan_of(lowering, "u", modulo=modulo, extent=extent)).what


def test_folding_a_dimension_that_one_plane_reads_across_is_refused() -> None:
    lowering = jacobi_1d.lower(N=6, steps=4)
    plan = plan_of(lowering, "u", modulo=(2, 5), extent=(constant(2), constant(5)))
    assert "overwrites" in refused(lowering, storage=plan).what


def test_planes_of_a_loop_whose_iterations_run_at_once_are_refused() -> None:
    """Row by row one row of a temporary is alive; with the rows at once all of them are."""
    lowering, tree = plain_product()
    rows = Loop("i", tuple((name, ROW) for name in ("y_init", "y_update", "out")), Sequence(()))
    inner = (
        Loop("j", (("y_init", axis("j")),), Leaf("y_init")),
        Loop("j#2", (("y_update", axis("j")),), Loop("k", (("y_update", axis("k")),), Leaf("y_update"))),
        Loop("j#3", (("out", axis("j")),), Leaf("out")),
    )
    fused = replace(rows, body=Sequence(inner))
    one_row = StoragePlan((Storage("y", (), (Affine(0),) * 2, (constant(1), constant(4)), (1, None)),))
    prove(lowering, tree=fused, storage=one_row)
    assert "overwrites" in refused(lowering, tree=replace(fused, kind="parallel"), storage=one_row).what
    prove(lowering, tree=replace(fused, kind="parallel"), storage=whole(lowering))


def test_values_that_nothing_reads_do_not_race_for_a_cell() -> None:
    """Of four values the third is read. The second and the fourth share a cell, which two threads wrote at once."""

    @po.op
    def third(x: f64[N]):
        s, z = po.tensor("s", shape=(N,)), po.tensor("z", shape=(1,))
        later = po.index("i", 1, N)
        s[0] = 1.0
        s[later] = x[later]
        z[j] = s[j + 2]
        return z

    lowering = third.lower(N=4)
    folded = StoragePlan((Storage("s", (), (Affine(0),), (constant(2),), (2,)),))
    rest = Loop("i", (("s_1", ROW),), Leaf("s_1"))
    tree = Sequence((Leaf("s"), rest, Loop("j", (("z", axis("j")),), Leaf("z"))))
    prove(lowering, tree=tree, storage=folded)
    for kind in ("parallel", "vector"):
        at_once = replace(tree, children=(Leaf("s"), replace(rest, kind=kind), tree.children[2]))
        error = refused(lowering, tree=at_once, storage=folded)
        assert "at once" in error.what and {p["i"] for p in pair(error)} == {1, 3}


@pytest.fixture(scope="module")
def tiled() -> Lowering:
    """A product in tiles, its accumulators private to a tile of 6 rows and 16 columns."""
    lowering = product.lower(M=20, N=40, K=8)
    nest = NestPlan(("i", "j"), ("i", "j"), (("i", 6), ("j", 16)), "i", "j", "a test")
    tree = tiling.apply(numbered(lowering.fusion.tree), TilingPlan((nest,)))
    private = StoragePlan(
        (Storage("y", TILE, (axis("i_tile"), axis("j_tile")), (constant(6), constant(16)), (None,) * 2),)
    )
    decided = replace(lowering._decided, tree=tree, storage=private, schedule=as_schedule(tree, lowering.scop))
    vars(lowering)["_decided"] = decided
    return lowering


TILE = ("i_tile", "j_tile")


def test_a_private_buffer_one_loop_too_deep_is_refused(tiled: Lowering) -> None:
    deep = plan_of(tiled, "y", scope=(*TILE, "i"), offset=(ROW, axis("j_tile")), extent=(constant(1), constant(16)))
    error = refused(tiled, storage=deep)
    assert "private to an iteration but used in another" in error.what
    source, target = pair(error)
    assert (source["i"], source["j"]) == (target["i"], target["j"])


def test_a_buffer_private_to_a_lane_is_refused() -> None:
    lowering = product.lower(M=3, N=4, K=1)
    names = ("y_init", "y_update", "out")
    update = Loop("k", (("y_update", axis("k")),), Leaf("y_update"))
    columns = Loop(
        "j", tuple((name, axis("j")) for name in names), Sequence((Leaf("y_init"), update, Leaf("out"))), kind="vector"
    )
    tree = Loop("i", tuple((name, ROW) for name in names), columns)
    cell = Storage("y", ("i", "j"), (ROW, axis("j")), (constant(1), constant(1)), (None, None))
    error = refused(lowering, tree=tree, storage=StoragePlan((cell,)))
    assert "private to one lane" in error.what
    prove(lowering, tree=with_loop(tree, "j", kind="serial"), storage=StoragePlan((cell,)))
    row = replace(cell, scope=("i",), offset=(ROW, Affine(0)), extent=(constant(1), constant(4)))
    prove(lowering, tree=tree, storage=StoragePlan((row,)))


def test_a_buffer_private_to_a_loop_that_carries_its_values_is_refused() -> None:
    lowering = product.lower(M=3, N=4, K=5)
    update = next(s for s in lowering.scop.statements if s.is_update).name
    names = [s.name for s in lowering.scop.statements]
    tree: Tree = Sequence(tuple(nest(*lowering.scop.statement(n).axes, body=Leaf(n)) for n in names))
    private = StoragePlan((Storage("y", ("k",), (Affine(0),) * 2, (constant(3), constant(4)), (None, None)),))
    error = refused(lowering, tree=tree, storage=private)
    assert "not around every use" in error.what and error.facts["statement"] != update


def test_a_private_buffer_of_an_outer_loop_is_accepted(tiled: Lowering) -> None:
    rows = plan_of(
        tiled, "y", scope=("i_tile",), offset=(axis("i_tile"), Affine(0)), extent=(constant(6), constant(40))
    )
    for plan in (tiled.storage, rows, whole(tiled)):
        prove(tiled, storage=plan)


def test_a_buffer_inside_a_loop_that_its_scope_leaves_out_shares_no_values_across_it() -> None:
    """Private to j within each i: the values of another i are gone, though their j is the same."""

    @po.op
    def columns(x: f64[M, N]):
        a, b = po.tensors("a b")
        a[i, j] += x[i, j] * x[i, k]
        b[i, j] = po.where(i == 0, 0.0, a[i - 1, j])
        return b

    lowering = columns.lower(M=4, N=5)
    names = [s.name for s in lowering.scop.statements]
    update = next(s.name for s in lowering.scop.statements if s.is_update)
    inner = [Loop("k", ((update, axis("k")),), Leaf(n)) if n == update else Leaf(n) for n in names]
    across = Loop("j", tuple((n, axis("j")) for n in names), Sequence(tuple(inner)))

    def rows(shift: int) -> Tree:
        return Loop("i", tuple((n, ROW + shift if n == "b" else ROW) for n in names), across)

    private = StoragePlan((Storage("a", ("j",), (Affine(0), axis("j")), (constant(4), constant(1)), (None, None)),))
    source, target = pair(refused(lowering, tree=rows(0), storage=private))
    assert target["i"] == source["i"] + 1 and target["j"] == source["j"]
    prove(lowering, tree=rows(-1), storage=private)  # in the iteration that makes the value
    prove(lowering, tree=rows(0), storage=whole(lowering))


@pytest.mark.parametrize("dimension", [0, 1])
def test_a_box_one_too_small_or_one_off_is_refused_and_a_larger_one_accepted(tiled: Lowering, dimension: int) -> None:
    buffer = tiled.storage.of("y")
    assert buffer is not None

    def put(values: tuple[Affine, ...], change: int) -> tuple[Affine, ...]:
        return tuple(v + change if d == dimension else v for d, v in enumerate(values))

    for wrong in (
        {"extent": put(buffer.extent, -1)},
        {"offset": put(buffer.offset, 1)},
        {"offset": put(buffer.offset, -1)},
    ):
        error = refused(tiled, storage=plan_of(tiled, "y", **wrong))
        assert f"too small in dimension {dimension}" in error.what
    prove(tiled, storage=plan_of(tiled, "y", extent=put(buffer.extent, 1)))
    prove(tiled, storage=plan_of(tiled, "y", extent=put(buffer.extent, 1), offset=put(buffer.offset, -1)))


def test_a_whole_array_that_is_too_small_is_refused() -> None:
    lowering, tree = plain_product()
    (buffer,) = whole(lowering).buffers
    for wrong in (replace(buffer, extent=(constant(2), constant(4))), replace(buffer, offset=(Affine(0), Affine(1)))):
        assert "too small" in refused(lowering, tree=tree, storage=StoragePlan((wrong,))).what
    larger = replace(buffer, extent=(constant(4), constant(9)))
    prove(lowering, tree=tree, storage=StoragePlan((larger,)))


def test_a_plan_gives_every_temporary_one_buffer_and_nothing_else(tiled: Lowering) -> None:
    (buffer,) = tiled.storage.buffers
    result = storage.whole(tiled.scop.array("out"))
    for buffers in ((), (buffer, buffer), (buffer, result), (replace(buffer, array="z"),)):
        assert "one buffer" in refused(tiled, storage=StoragePlan(buffers)).what


def test_a_scope_of_loops_that_do_not_exist_or_are_out_of_order_is_refused(tiled: Lowering) -> None:
    for scope in (("i_tile", "nowhere"), ("j_tile", "i_tile")):
        assert "not around every use" in refused(tiled, storage=plan_of(tiled, "y", scope=scope)).what
