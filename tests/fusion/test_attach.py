"""Producers computed anew in the tiles of their consumer: right numbers, proved, and only where it pays."""

from __future__ import annotations

from dataclasses import replace

import islpy as isl
import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64, pipeline
from polyopt.dsl import ir
from polyopt.dsl.affine import axis
from polyopt.fusion import attach, decide
from polyopt.fusion.attach import Attached, Attachment, AttachPlan
from polyopt.fusion.rewrite import rewrite
from polyopt.pipeline import Lowering
from polyopt.poly import dependence, extract
from polyopt.poly.tree import Loop, loops, numbered
from tests.golden.test_golden import MACHINE
from tests.poly import running
from tests.poly.operators import M, N, blurred, i, j, jacobi_2d, linear_relu, softmax


@po.op
def three_passes(x: f64[M, N]):
    """Windows of windows, with weights."""
    a, b, c = po.tensors("a b c")
    a[i, j] = po.sqrt(x[i, j]) + po.sqrt(x[i, j + 1])
    b[i, j] = po.sqrt(a[i, j]) * po.sqrt(a[i + 1, j]) * po.sqrt(a[i + 2, j])
    c[i, j] = po.sqrt(b[i, j]) - po.sqrt(b[i, j + 1])
    return c


@po.op
def summed_windows(x: f64[M, N]):
    """The producer is a reduction: its start value and its updates are computed by tile too."""
    a, b = po.tensors("a b")
    r = po.index("r", extent=3)
    a[i, j] += x[i + r, j] * x[i, j]
    b[i, j] = a[i, j] * a[i, j + 1]
    return b


@po.op
def clamped(x: f64[M, N]):
    a, b = po.tensors("a b")
    a[i, j] = po.sqrt(x[i, j]) + 1.0
    b[i, j] = a[i, j] * a.clamp()[i - 1, j] * a.clamp()[i + 1, j] + x[i, j]
    return b


WINDOWS = {"blurred": blurred, "three_passes": three_passes, "summed_windows": summed_windows, "clamped": clamped}


def plain(lowering: Lowering) -> ir.Program:
    """The program with its sums as loops, however short they are."""
    return rewrite(lowering.program)


def attached(lowering: Lowering, rows: int, columns: int) -> tuple[AttachPlan, Attached]:
    """The operator's producers attached to tiles of its consumer."""
    scop = extract.extract(plain(lowering))
    dependences = dependence.compute(scop)
    planner = attach._Planner(scop, dependences, None, attach.Roles.of(scop), 0)  # type: ignore[arg-type]  # not asked
    consumer = next(s for s in scop.statements if scop.array(s.array).role == "output")
    free = planner.roles.by_statement[consumer.name].free
    tile = ((free[-2], rows), (free[-1], columns))
    plan = AttachPlan((Attachment(consumer.name, tile, planner.producers(consumer), 1.0, 0),))
    return plan, attach.apply(scop, plan)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize(("m", "n"), [(9, 11), (4, 5), (8, 7)])
@pytest.mark.parametrize("tile", [(3, 4), (1, 2), (16, 16)])
def test_tiles_with_their_producers_give_the_reference(name: str, m: int, n: int, tile: tuple[int, int]) -> None:
    operator = WINDOWS[name]
    lowering = operator.lower(M=m, N=n)
    plan, found = attached(lowering, *tile)
    assert plan.attachments[0].arrays, "there is something to attach"
    dependences = dependence.compute(found.scop)
    tree = numbered(decide.decide(found.scop, dependences, found.rows).tree)
    storage = running.proved(found.scop, dependences, tree)
    for array in plan.attachments[0].arrays:
        buffer = storage.of(array)
        assert buffer is not None and buffer.scope[:2] == tuple(
            name for name, _ in found.rows[plan.attachments[0].consumer]
        )
        assert buffer.extent[0].constant == buffer.extent[1].constant == 1, "one copy, for the tile at hand"
    loop_program = running.loop_program(plain(lowering), found.scop, tree, storage)
    x = np.random.default_rng(0).uniform(1, 2, (m, n)).astype(lowering.program.tensor("x").dtype.numpy)
    (result,) = lowering.program.results
    np.testing.assert_allclose(running.run(loop_program, {"x": x})[result], operator.reference(x), rtol=1e-5)


def test_a_tile_computes_exactly_what_it_reads() -> None:
    _, found = attached(blurred.lower(M=10, N=12), 4, 5)
    across = found.scop.statement("across")
    assert across.axes == ("i_tile", "j_tile", "i", "j")
    wanted = isl.Set(
        "{ across[p, q, i, j] : 0 <= i, j < 10 and 4p <= i < 4p + 6 and 5q <= j < 5q + 5 and 0 <= p, q < 2 }"
    )
    assert across.domain.is_equal(wanted)
    assert found.rows == {"down": (("i_tile", axis("i") // 4), ("j_tile", axis("j") // 5))}
    array = found.scop.array("across")
    assert [extent.constant for extent in array.shape] == [2, 2, 10, 10]


def test_without_a_plan_the_scop_is_the_same() -> None:
    scop = extract.extract(blurred.lower(M=10, N=12).rewritten)
    found = attach.apply(scop, AttachPlan())
    assert found.scop is scop and found.rows == {}


def decided(operator: po.Op, cache_bytes: int, **sizes: int) -> AttachPlan:
    scop = extract.extract(rewrite(operator.lower(**sizes).program))  # type: ignore[arg-type]  # sizes
    return attach.decide(scop, dependence.compute(scop), cache_bytes=cache_bytes)


def test_a_blur_larger_than_the_cache_is_attached_by_tiles() -> None:
    lowering = blurred.lower(M=2002, N=3002, target=MACHINE)
    assert lowering.fallback == ""
    assert [loop.name for loop in loops(lowering.tree)][:2] == ["i_tile", "j_tile"]
    buffer = lowering.storage.of("across")
    assert buffer is not None and buffer.scope
    assert lowering.report().temporary_bytes < MACHINE.l2_bytes


def test_copies_of_a_producer_are_not_counted_as_traffic_saved() -> None:
    lowering = blurred.lower(M=2002, N=3002, target=MACHINE)
    assert [d.bytes_saved for d in lowering.fusion.decisions if d.array == "across"] == [0] * 4


def test_a_blur_that_fits_the_cache_is_left_alone() -> None:
    assert decided(blurred, 1 << 20, M=100, N=100).attachments == ()
    assert decided(blurred, 1 << 12, M=200, N=300).attachments


def test_tiles_that_would_repeat_too_much_are_not_taken() -> None:
    @po.op
    def tall(x: f32[M, N]):
        a, b = po.tensors("a b")
        a[i, j] = po.sqrt(x[i, j]) + po.sqrt(x[i, j + 1])
        b[i, j] = a[i, j] * a[i + 40, j]
        return b

    assert decided(tall, 1 << 12, M=300, N=300).attachments == ()


@pytest.mark.parametrize(
    ("operator", "sizes"),
    [
        (softmax, {"M": 300, "N": 300}),
        (linear_relu, {"M": 200, "N": 200, "K": 50}),
        (jacobi_2d, {"M": 90, "N": 90, "steps": 3}),
    ],
    ids=["softmax", "linear_relu", "jacobi_2d"],
)
def test_what_is_no_chain_of_windows_is_not_attached(operator: po.Op, sizes: dict[str, int]) -> None:
    assert decided(operator, 1 << 10, **sizes).attachments == ()


def test_tiles_of_symbolic_sizes_are_those_of_large_ones() -> None:
    @po.op(dynamic=True)
    def blurs(x: f32[M, N]):
        a, b = po.tensors("a b")
        a[i, j] = po.sqrt(x[i, j]) + po.sqrt(x[i, j + 1])
        b[i, j] = a[i, j] * a[i + 1, j] * a[i + 2, j]
        return b

    scop = extract.extract(blurs.lower().program)
    (found,) = attach.decide(scop, dependence.compute(scop), cache_bytes=1 << 13).attachments
    assert (found.consumer, found.axes, found.arrays) == ("b", (("i", 8), ("j", 256)), ("a",))
    tiled = attach.apply(scop, AttachPlan((found,)))
    assert [str(extent) for extent in tiled.scop.array("a").shape] == ["(M + 5)//8", "(N + 254)//256", "M", "N - 1"]


def test_a_plan_says_what_a_tile_computes() -> None:
    plan = AttachPlan((Attachment("y", (("i", 8), ("j", 256)), ("a", "b"), 1.25, 4096),))
    assert str(plan) == (
        "a, b computed in each 8 x 256 tile of y: 4096 bytes a tile instead of whole arrays, 1.25 times the work"
    )


def test_sizes_around_the_tile_are_right_in_the_kernel() -> None:
    """The kernel itself, with tiles that the planner chooses for a machine with a tiny cache."""
    tiny = replace(MACHINE, l2_bytes=1 << 13)
    for m, n in ((17, 257), (33, 300), (40, 256)):
        lowering = three_passes.lower(M=m, N=n, target=tiny)
        assert lowering.fallback == "" and any(loop.name == "i_tile" for loop in loops(lowering.tree))
        x = np.random.default_rng(0).uniform(1, 2, (m, n))
        (result,) = running.run(lowering.loops, {"x": x}).values()
        np.testing.assert_allclose(result, three_passes.reference(x), rtol=1e-12)


def test_a_consumer_that_is_a_recurrence_is_not_cut_into_tiles() -> None:
    @po.op
    def running(x: f64[M, N]):
        a, b = po.tensors("a b")
        a[i, j] = po.sqrt(x[i, j]) + po.sqrt(x[i, j + 1])
        b[i, j] = a[i, j] * a[i + 1, j] + po.where(i > 0, b[i - 1, j], 0.0)
        return b

    assert decided(running, 1 << 10, M=100, N=300).attachments == ()
    lowering = running.lower(M=1000, N=1000, target=MACHINE)
    assert lowering.fallback == "" and not lowering.fusion.copies


def test_tiles_of_a_recurrence_are_no_axes_to_choose_from() -> None:
    """Whoever asks for them: the recurrence runs along its own axes, and the order is legal."""
    lowering = jacobi_2d.lower(M=5, N=6, steps=3)
    rows = {"u_1": (("i_tile", axis("i") // 2),)}
    tree = numbered(decide.decide(lowering.scop, lowering.dependences, rows).tree)
    running.proved(lowering.scop, lowering.dependences, tree)


@po.op
def harris(x: f32[M, N]):
    """Nine products of two gradients, three sums of which are used five times: hundreds of reads of nine kinds."""
    gx, gy, xx, yy, xy, y = po.tensors("gx gy xx yy xy y")
    gx[i, j] = (x[i, j + 2] - x[i, j]) + 2 * (x[i + 1, j + 2] - x[i + 1, j]) + (x[i + 2, j + 2] - x[i + 2, j])
    gy[i, j] = (x[i + 2, j] - x[i, j]) + 2 * (x[i + 2, j + 1] - x[i, j + 1]) + (x[i + 2, j + 2] - x[i, j + 2])
    around = [(u, v) for u in range(3) for v in range(3)]
    xx[i, j] = sum(gx[i + u, j + v] * gx[i + u, j + v] for u, v in around)
    yy[i, j] = sum(gy[i + u, j + v] * gy[i + u, j + v] for u, v in around)
    xy[i, j] = sum(gx[i + u, j + v] * gy[i + u, j + v] for u, v in around)
    trace = xx[i, j] + yy[i, j]
    y[i, j] = xx[i, j] * yy[i, j] - xy[i, j] * xy[i, j] - 0.04 * trace * trace
    return y


@pytest.mark.parametrize("sizes", [{"M": 2048, "N": 2048}, {"M": 1999, "N": 1003}], ids=["even", "odd"])
def test_corners_are_planned_and_proved_in_a_fraction_of_the_budget(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine boxes a window made unions of products of nine, and the plans were given up for the plain order."""
    monkeypatch.setattr(pipeline, "PLAN_OPERATIONS", pipeline.PLAN_OPERATIONS // 2)
    monkeypatch.setattr(pipeline, "PROOF_OPERATIONS", pipeline.PROOF_OPERATIONS // 10)
    lowering = harris.lower(**sizes, target=MACHINE)
    assert lowering.settled is lowering and lowering.fallback == ""
    assert [loop.name for loop in loops(lowering.tree)][:2] == ["i_tile", "j_tile"], "one nest, around all statements"
    assert isinstance(lowering.tree, Loop)
    for statement in lowering.scop.statements:
        assert statement.domain.n_basic_set() == 1
    for array in ("gx", "gy"):
        buffer = lowering.storage.of(array)
        assert buffer is not None and buffer.scope == ("i_tile", "j_tile")


def test_the_box_of_a_tile_holds_no_element_outside_the_producer() -> None:
    """Reads far apart: the elements between are computed too, and only those that are defined."""

    @po.op
    def apart(x: f32[M, N]):
        a, b = po.tensors("a b")
        a[i, j] = po.sqrt(x[i, j]) + po.sqrt(x[i, j] + 1) + po.sqrt(x[i, j] + 2)
        b[i, j] = a[i, j] * a[i, j + 5] * a[i + 5, j] * a[i + 5, j + 5]
        return b

    _, found = attached(apart.lower(M=12, N=13), 2, 3)
    wanted = isl.Set(
        "{ a[p, q, i, j] : 0 <= p <= 3 and 0 <= q <= 2 and 0 <= i < 12 and 0 <= j < 13"
        " and 2p <= i <= 2p + 6 and 3q <= j <= 3q + 7 }"
    )
    assert found.scop.statement("a").domain.is_subset(wanted)
    assert found.scop.statement("a").domain.n_basic_set() == 1
    assert wanted.is_subset(found.scop.statement("a").domain)
