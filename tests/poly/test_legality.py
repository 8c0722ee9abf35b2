"""Faults planted in schedules, storage, domains, subscripts and dependences: the proof refuses each with a witness.

Beside each fault stands a variant that is legal and must be accepted, so that refusing everything would not do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import islpy as isl
import pytest

import polyopt as po
from polyopt import f64
from polyopt.dsl.affine import Affine, axis, constant
from polyopt.errors import LegalityError
from polyopt.pipeline import Lowering
from polyopt.poly import dependence, legality, storage
from polyopt.poly.dependence import Dependences
from polyopt.poly.legality import Proof
from polyopt.poly.order import Order
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.storage import Storage, StoragePlan
from polyopt.poly.tree import Leaf, Loop, LoopKind, Sequence, Tree, as_schedule, kinds, loops, numbered
from polyopt.tiling import apply as tiling
from polyopt.tiling.plan import NestPlan, TilingPlan
from tests.poly.operators import M, N, histogram, i, j, jacobi_1d, k, prefix, product, smith_waterman, softmax

ROW = axis("i")


def prove(
    lowering: Lowering,
    *,
    tree: Tree | None = None,
    scop: Scop | None = None,
    dependences: Dependences | None = None,
    storage: StoragePlan | None = None,
    schedule: isl.Schedule | None = None,
) -> Proof:
    """The proof of a lowering with some of its stages replaced."""
    tree, scop = tree or lowering.tree, scop or lowering.scop
    return legality.prove(
        scop,
        dependences or (lowering.dependences if scop is lowering.scop else dependence.compute(scop)),
        schedule or as_schedule(tree, scop),
        kinds(tree),
        storage or lowering.storage,
    )


def refused(lowering: Lowering, **replaced: Any) -> LegalityError:
    with pytest.raises(LegalityError) as caught:
        prove(lowering, **replaced)
    assert caught.value.why, "a refusal says for example where"
    return caught.value


def with_loops(tree: Tree, change: Callable[[Loop], Tree]) -> Tree:
    """The tree with every loop changed, inner ones first."""
    match tree:
        case Sequence(children):
            return Sequence(tuple(with_loops(child, change) for child in children))
        case Loop():
            return change(replace(tree, body=with_loops(tree.body, change)))
        case _:
            return tree


def with_loop(tree: Tree, chosen: str, **fields: Any) -> Tree:
    assert chosen in {loop.name for loop in loops(tree)}
    return with_loops(tree, lambda loop: replace(loop, **fields) if loop.name == chosen else loop)


def without_loop(tree: Tree, name: str) -> Tree:
    return with_loops(tree, lambda loop: loop.body if loop.name == name else loop)


def pair(error: LegalityError) -> tuple[dict[str, int], dict[str, int]]:
    """The two instances of a refusal."""
    source: Any = error.facts["source"]
    target: Any = error.facts["target"]
    return source[1], target[1]


# --- schedules --------------------------------------------------------------------------------------------------


def nest(*names: str, body: Leaf, kind: LoopKind = "serial") -> Tree:
    """Loops around one statement, each over the axis of its name; the innermost of the given kind."""
    tree: Tree = body
    for depth, name in enumerate(reversed(names)):
        row = ((body.statement, axis(name.partition("#")[0])),)
        tree = Loop(name, row, tree, kind=kind if depth == 0 else "serial")
    return tree


def plain_product() -> tuple[Lowering, Tree]:
    """A product with a nest of plain loops for each of its statements."""
    nests = (("y_init", "i", "j"), ("y_update", "i#2", "j#2", "k"), ("out", "i#3", "j#3"))
    return product.lower(M=3, N=4, K=5), Sequence(tuple(nest(*names, body=Leaf(name)) for name, *names in nests))


def whole(lowering: Lowering) -> StoragePlan:
    return storage.whole_plan(lowering.scop)


def test_a_plain_order_is_proved_and_the_ledger_counts_what_it_rests_on() -> None:
    lowering, tree = plain_product()
    proof = prove(lowering, tree=tree, storage=whole(lowering))
    assert [str(claim) for claim in proof.claims] == [
        "proved: every instance runs once, at a date of its own (3 statements)",
        "proved: every value is made before it is used (3 dependences)",
        "proved: updates of one element never meet (1 reductions)",
        "proved: no stored value is overwritten while it is needed (1 buffers)",
        "proved: every access stays inside its array, and none is left out (6 accesses)",
        "proved: every element that is needed was written, and once (2 arrays)",
    ]
    assert str(proof) == "\n".join(str(claim) for claim in proof.claims)


@pytest.mark.parametrize("order", [(1, 0, 2), (0, 2, 1), (2, 1, 0)])
def test_swapped_children_of_a_sequence_are_refused(order: tuple[int, ...]) -> None:
    lowering, tree = plain_product()
    assert isinstance(tree, Sequence)
    swapped = Sequence(tuple(tree.children[n] for n in order))
    error = refused(lowering, tree=swapped, storage=whole(lowering))
    source, target = pair(error)
    assert (source["i"], source["j"]) == (target["i"], target["j"])


def test_children_that_share_no_element_may_be_swapped() -> None:
    lowering = softmax.lower(M=3, N=4)
    (loop,) = [one for one in loops(lowering.tree) if len(one.statements) == len(lowering.scop.statements)]
    assert isinstance(loop.body, Sequence)
    children = list(loop.body.children)
    maximum, total = (
        n for n, child in enumerate(children) if isinstance(child, Leaf) and child.statement.endswith("_init")
    )
    first = children.pop(total)
    prove(
        lowering,
        tree=with_loop(lowering.tree, loop.name, body=Sequence((*children[:maximum], first, *children[maximum:]))),
    )


def test_a_reversed_row_of_a_recurrence_is_refused_with_neighbors_in_time() -> None:
    lowering = prefix.lower(N=6)
    (loop,) = loops(lowering.tree)
    backwards = with_loop(lowering.tree, loop.name, rows=tuple((name, -row) for name, row in loop.rows))
    source, target = pair(refused(lowering, tree=backwards))
    assert target["t"] == source["t"] + 1


def test_a_reversed_row_of_a_loop_that_carries_nothing_is_accepted() -> None:
    lowering, tree = plain_product()
    for loop in list(loops(tree)):
        backwards = with_loop(tree, loop.name, rows=tuple((name, -row) for name, row in loop.rows))
        prove(lowering, tree=backwards, storage=whole(lowering))


@pytest.mark.parametrize("kind", ["parallel", "vector"])
def test_a_loop_that_carries_a_value_may_not_run_at_once(kind: LoopKind) -> None:
    lowering = prefix.lower(N=6)
    (loop,) = loops(lowering.tree)
    source, target = pair(refused(lowering, tree=with_loop(lowering.tree, loop.name, kind=kind)))
    assert target["t"] == source["t"] + 1
    prove(lowering, tree=with_loop(lowering.tree, loop.name, kind="unrolled"))


def test_a_reduction_may_not_run_in_parallel_but_its_lanes_are_combined() -> None:
    lowering, tree = plain_product()
    error = refused(lowering, tree=with_loop(tree, "k", kind="parallel"), storage=whole(lowering))
    source, target = pair(error)
    assert source["k"] != target["k"] and (source["i"], source["j"]) == (target["i"], target["j"])
    prove(lowering, tree=with_loop(tree, "k", kind="vector"), storage=whole(lowering))
    prove(lowering, tree=with_loop(tree, "i#2", kind="parallel"), storage=whole(lowering))


def test_lanes_that_scatter_are_refused() -> None:
    lowering = histogram.lower(N=6, count=4)
    (loop,) = [one for one in loops(lowering.tree) if one.statements == ("h_update",)]
    for kind in ("vector", "parallel"):
        error = refused(lowering, tree=with_loop(lowering.tree, loop.name, kind=kind))
        assert "run at once" in error.what
    prove(lowering)


def test_lanes_that_update_an_element_of_their_own_are_accepted() -> None:
    lowering, tree = plain_product()
    update = Loop("k", (("y_update", axis("k")),), Loop("j#2", (("y_update", axis("j")),), Leaf("y_update")))
    middle = Loop("i#2", (("y_update", ROW),), update)
    assert isinstance(tree, Sequence)
    moved = Sequence((tree.children[0], with_loop(middle, "j#2", kind="vector"), tree.children[2]))
    prove(lowering, tree=moved, storage=whole(lowering))


def test_in_strict_mode_a_reduction_runs_in_index_order() -> None:
    lowering, tree = plain_product()
    strict = dependence.compute(lowering.scop, strict=True)
    plan = whole(lowering)
    prove(lowering, tree=tree, dependences=strict, storage=plan)
    backwards = with_loop(tree, "k", rows=(("y_update", -axis("k")),))
    prove(lowering, tree=backwards, storage=plan)
    source, target = pair(refused(lowering, tree=backwards, dependences=strict, storage=plan))
    assert target["k"] > source["k"]
    refused(lowering, tree=with_loop(tree, "k", kind="vector"), dependences=strict, storage=plan)


def test_a_dropped_row_leaves_instances_without_dates_of_their_own() -> None:
    lowering = jacobi_1d.lower(N=6, steps=3)
    (time,) = [loop for loop in loops(lowering.tree) if not loop.coincident]
    error = refused(lowering, tree=without_loop(lowering.tree, time.name))
    assert "no loop tells two instances of 'u_1' apart" in error.what
    source, target = pair(error)
    assert source["t"] != target["t"] and source["i"] == target["i"]
    lowering, tree = plain_product()
    for name in ("i", "k", "j#3"):
        assert "no loop tells" in refused(lowering, tree=without_loop(tree, name), storage=whole(lowering)).what


def test_a_dropped_tile_loop_is_refused_only_where_the_tile_carried_something() -> None:
    lowering = jacobi_1d.lower(N=12, steps=4)
    (time,) = [loop for loop in loops(lowering.tree) if not loop.coincident]
    (space,) = loops(time.body)
    update = time.statements[0]
    tiled = replace(time, name="t_tile", rows=((update, axis("t") // 2 * 2),), body=time)
    good = with_loops(lowering.tree, lambda loop: tiled if loop.name == time.name else loop)
    prove(lowering, tree=good)
    point = replace(time, rows=((update, axis("t") % 2),))
    strip = replace(tiled, rows=((update, axis("t") // 2),), body=point)
    prove(lowering, tree=with_loops(lowering.tree, lambda loop: strip if loop.name == time.name else loop))
    lost = with_loops(lowering.tree, lambda loop: point if loop.name == time.name else loop)
    refused(lowering, tree=lost)
    pieces = replace(space, name="i_tile", rows=((update, ROW // 4),), body=space)
    prove(lowering, tree=with_loops(lowering.tree, lambda loop: pieces if loop.name == space.name else loop))


def test_a_tile_around_time_of_a_stencil_is_refused_and_the_skewed_one_accepted() -> None:
    lowering = jacobi_1d.lower(N=12, steps=4)
    (time,) = [loop for loop in loops(lowering.tree) if not loop.coincident]
    update = time.statements[0]
    plan = whole(lowering)

    def tiled(row: Affine) -> Tree:
        tile = Loop("tile", ((update, row // 3),), time)
        return with_loops(lowering.tree, lambda loop: tile if loop.name == time.name else loop)

    source, target = pair(refused(lowering, tree=tiled(ROW), storage=plan))
    assert target["t"] == source["t"] + 1 and target["i"] == source["i"] - 1
    prove(lowering, tree=tiled(ROW + axis("t")), storage=plan)


def test_an_interchange_that_turns_a_dependence_around_is_refused() -> None:
    lowering = jacobi_1d.lower(N=6, steps=3)
    (time,) = [loop for loop in loops(lowering.tree) if not loop.coincident]
    (space,) = loops(time.body)
    inside_out = replace(space, body=replace(time, body=space.body), kind="serial")
    turned = with_loops(lowering.tree, lambda loop: inside_out if loop.name == time.name else loop)
    refused(lowering, tree=turned, storage=whole(lowering))


def test_an_interchange_of_loops_that_carry_forwards_is_accepted() -> None:
    lowering = smith_waterman.lower(M=4, N=5)
    (name,) = [s.name for s in lowering.scop.statements]
    for names in (("i", "j"), ("j", "i")):
        prove(lowering, tree=nest(*names, body=Leaf(name)))
    source, target = pair(refused(lowering, tree=nest("i", "j", body=Leaf(name), kind="vector")))
    assert source != target
    refused(lowering, tree=nest("j", "i", body=Leaf(name), kind="parallel"))


def test_a_wavefront_with_too_little_skew_is_refused() -> None:
    @po.op
    def reaching_back(start: f64[M, N]):
        a = po.tensor("a")
        a[i, j] = po.where((i < 1) | (j >= N - 2), start[i, j], a[i - 1, j + 2])
        return a

    lowering = reaching_back.lower(M=5, N=9)
    (name,) = [s.name for s in lowering.scop.statements]
    for skew, legal in ((1, False), (2, False), (3, True)):
        tree = Loop("w", ((name, ROW * skew + axis("j")),), nest("i", body=Leaf(name), kind="vector"))
        if legal:
            prove(lowering, tree=tree)
        else:
            source, target = pair(refused(lowering, tree=tree))
            assert target == {"i": source["i"] + 1, "j": source["j"] - 2}


def test_a_loop_shared_with_a_consumer_of_later_elements_is_refused() -> None:
    @po.op
    def shifted(x: f64[N]):
        a, b = po.tensors("a b")
        a[i] += x[i] * x[j]
        b[i] = po.when(i >= 0, a[i + 1])
        return b

    lowering = shifted.lower(N=6)
    consumer = next(s for s in lowering.scop.statements if s.role == "define").name
    names = [s.name for s in lowering.scop.statements]
    update = next(s.name for s in lowering.scop.statements if s.is_update)

    def fused(shift: int) -> Loop:
        rows = tuple((name, ROW + shift if name == consumer else ROW) for name in names)
        inner = Loop("j", ((update, axis("j")),), Leaf(update))
        body = Sequence(tuple(inner if name == update else Leaf(name) for name in names))
        return Loop("i", rows, body)

    plan = whole(lowering)
    source, target = pair(refused(lowering, tree=fused(0), storage=plan))
    assert source["i"] == target["i"] + 1
    prove(lowering, tree=fused(1), storage=plan)
    prove(lowering, tree=replace(fused(1), kind="parallel"), storage=plan)
    prove(lowering, tree=fused(2), storage=plan)
    refused(lowering, tree=replace(fused(2), kind="parallel"), storage=plan)


# --- what a schedule runs ---------------------------------------------------------------------------------------


def test_a_schedule_that_leaves_out_an_instance_is_refused() -> None:
    lowering = product.lower(M=3, N=4, K=5)
    short = lowering.schedule.intersect_domain(isl.UnionSet("{ y_init[i, j] : i < 2; y_update[i, j, k]; out[i, j] }"))
    error = refused(lowering, schedule=short)
    assert error.facts == {"statement": "y_init", "point": {"i": 2, "j": 0}}


def test_a_schedule_that_leaves_out_a_statement_is_refused() -> None:
    lowering = product.lower(M=3, N=4, K=5)
    short = lowering.schedule.intersect_domain(isl.UnionSet("{ y_init[i, j]; y_update[i, j, k] }"))
    assert refused(lowering, schedule=short).facts["statement"] == "out"


def test_a_schedule_that_invents_an_instance_or_a_statement_is_refused() -> None:
    lowering = product.lower(M=3, N=4, K=5)
    smaller = product.lower(M=2, N=4, K=5)
    error = refused(smaller, schedule=lowering.schedule)
    assert "invents" in error.what and error.facts["point"] == {"i": 2, "j": 0}
    extra = isl.Schedule.from_domain(isl.UnionSet("{ stranger[0] }"))
    assert "does not have" in refused(lowering, schedule=lowering.schedule.sequence(extra)).what


def test_a_schedule_that_tears_a_statement_apart_is_refused() -> None:
    lowering = prefix.lower(N=6)
    first, rest = (lowering.scop.statement(name).domain for name in ("s", "s_1"))
    half = isl.Set("{ s_1[t] : t < 3 }")
    torn = isl.Schedule.from_domain(isl.UnionSet.from_set(first))
    for points in (rest & half, rest - half):
        torn = torn.sequence(isl.Schedule.from_domain(isl.UnionSet.from_set(points)))
    with pytest.raises(LegalityError, match="tears 's_1' apart"):
        prove(lowering, schedule=torn)


def test_loops_of_one_name_around_a_statement_are_refused() -> None:
    lowering, tree = plain_product()
    twice = with_loop(tree, "j", name="i")
    with pytest.raises(LegalityError, match="two loops around 'y_init' are called 'i'"):
        prove(lowering, tree=twice, storage=whole(lowering))


def test_loops_of_one_name_are_mapped_in_one_way() -> None:
    _, tree = plain_product()
    renamed = with_loop(with_loop(tree, "i#3", name="i"), "j", kind="vector")
    assert kinds(renamed)["i"] == "serial"
    with pytest.raises(LegalityError, match="mapped in two ways"):
        kinds(with_loops(renamed, lambda loop: replace(loop, kind="parallel") if loop.statements == ("out",) else loop))


def test_a_schedule_with_other_nodes_is_refused() -> None:
    lowering = prefix.lower(N=6)
    guarded = lowering.schedule.get_root().child(0).insert_guard(isl.Set("{ : }")).get_schedule()
    with pytest.raises(LegalityError, match="cannot be read back"):
        Order.of(lowering.scop, guarded, kinds(lowering.tree))


# --- storage ----------------------------------------------------------------------------------------------------


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


# --- domains, subscripts, dependences ---------------------------------------------------------------------------


def with_statement(scop: Scop, name: str, change: Callable[[Statement], Statement]) -> Scop:
    return replace(scop, statements=tuple(change(s) if s.name == name else s for s in scop.statements))


def on(statement: Statement, points: str) -> Statement:
    """The statement on a part of its domain."""
    domain = statement.domain & isl.Set(points)
    reads = tuple(replace(a, relation=a.relation.intersect_domain(domain)) for a in statement.reads)
    return replace(statement, domain=domain, write=statement.write.intersect_domain(domain), reads=reads)


@pytest.mark.parametrize(
    ("name", "array"), [("y_init", "y"), ("out", "out")], ids=["start value missing", "result incomplete"]
)
def test_a_domain_that_is_too_small_is_refused(name: str, array: str) -> None:
    lowering, tree = plain_product()
    scop = with_statement(lowering.scop, name, lambda s: on(s, f"{{ {name}[i, j] : j < 3 }}"))
    error = refused(lowering, tree=tree, scop=scop, storage=whole(lowering))
    assert error.facts["array"] == array and "never written" in error.what
    assert list(error.facts["element"].values()) == [0, 3]


def test_a_recurrence_without_its_first_value_is_refused() -> None:
    lowering = prefix.lower(N=6)
    scop = with_statement(lowering.scop, "s", lambda s: on(s, "{ s[] : 1 = 0 }"))
    assert "never written" in refused(lowering, scop=scop).what


def test_an_element_with_two_definitions_is_refused() -> None:
    lowering = prefix.lower(N=6)
    first = lowering.scop.statement("s_1")
    wide = isl.Set("{ s_1[t] : 0 <= t <= 5 }")
    write = first.write | isl.Map("{ s_1[0] -> s[0] }")
    scop = with_statement(lowering.scop, "s_1", lambda s: replace(s, domain=wide, write=write))
    error = refused(lowering, scop=scop)
    assert "defined twice" in error.what
    assert pair(error) == ({}, {"t": 0})


def test_one_statement_that_defines_an_element_twice_is_refused() -> None:
    lowering, tree = plain_product()
    write = isl.Map("{ out[i, j] -> out[i, 0] : 0 <= i < 3 and 0 <= j < 4 }")
    scop = with_statement(lowering.scop, "out", lambda s: replace(s, write=write))
    error = refused(lowering, tree=tree, scop=scop, storage=whole(lowering))
    assert "defined twice" in error.what
    assert pair(error) == ({"i": 0, "j": 0}, {"i": 0, "j": 1})


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_shifted_read_that_leaves_its_array_is_refused(shift: int) -> None:
    lowering, tree = plain_product()
    move = isl.Map(f"{{ x[a, b] -> x[a + {shift}, b] }}")

    def shifted(statement: Statement) -> Statement:
        reads = tuple(
            replace(a, relation=a.relation.apply_range(move)) if a.read.tensor == "x" else a for a in statement.reads
        )
        return replace(statement, reads=reads)

    scop = with_statement(lowering.scop, "y_update", shifted)
    error = refused(lowering, tree=tree, scop=scop, storage=whole(lowering))
    assert error.facts == {"array": "x", "statement": "y_update"}
    assert "reaches outside 'x'" in error.what


def test_a_shifted_write_that_leaves_its_array_is_refused() -> None:
    lowering, tree = plain_product()
    move = isl.Map("{ out[a, b] -> out[a, b + 1] }")
    scop = with_statement(lowering.scop, "out", lambda s: replace(s, write=s.write.apply_range(move)))
    assert "reaches outside 'out'" in refused(lowering, tree=tree, scop=scop, storage=whole(lowering)).what


def test_any_forgotten_dependence_is_noticed() -> None:
    for lowering in (jacobi_1d.lower(N=5, steps=3), softmax.lower(M=2, N=3), prefix.lower(N=5)):
        ordered = lowering.dependences.ordered
        for place in range(len(ordered)):
            fewer = replace(lowering.dependences, ordered=(*ordered[:place], *ordered[place + 1 :]))
            assert "forgotten" in refused(lowering, dependences=fewer).what
        for place in range(len(lowering.dependences.reductions)):
            reductions = lowering.dependences.reductions
            fewer = replace(lowering.dependences, reductions=(*reductions[:place], *reductions[place + 1 :]))
            assert "forgotten" in refused(lowering, dependences=fewer).what


def test_a_dependence_that_forgets_one_pair_is_noticed_with_that_pair() -> None:
    lowering = prefix.lower(N=6)
    lost = isl.Map("{ s_1[3] -> s_1[4] }")
    ordered = tuple(
        replace(d, relation=d.relation - lost) if d.source == d.target else d for d in lowering.dependences.ordered
    )
    error = refused(lowering, dependences=replace(lowering.dependences, ordered=ordered))
    assert pair(error) == ({"t": 3}, {"t": 4})


def test_the_order_of_two_reductions_may_be_remembered_either_way() -> None:
    lowering, tree = plain_product()
    turned = tuple(replace(d, relation=d.relation.reverse()) for d in lowering.dependences.reductions)
    prove(lowering, tree=tree, dependences=replace(lowering.dependences, reductions=turned), storage=whole(lowering))


# --- symbolic sizes ---------------------------------------------------------------------------------------------


def test_a_symbolic_schedule_is_refused_with_the_sizes_for_which_it_fails() -> None:
    @po.op(dynamic=True)
    def running(x: f64[N]):
        s = po.tensor("s")
        t = po.index("t", 1, N)
        s[0] = x[0]
        s[t] = s[t - 1] + x[t]
        return s

    lowering = running.lower()
    assert lowering.scop.sizes == ("N",)
    prove(lowering)
    (loop,) = loops(lowering.tree)
    backwards = with_loop(lowering.tree, loop.name, rows=tuple((name, -row) for name, row in loop.rows))
    source, target = pair(refused(lowering, tree=backwards))
    assert target["t"] == source["t"] + 1 < source["N"] == target["N"]


# --- references -----------------------------------------------------------------------------------------------------


@po.op
def two_branches(x: f64[M], z: f64[M], w: f64[M]):
    y = po.tensor("y")
    y[i] = po.where(i < 3, x[i] * w[i], z[i] * w[i])
    return y


def test_an_access_that_is_left_out_or_happens_too_seldom_is_refused() -> None:
    lowering = two_branches.lower(M=7)
    (statement,) = lowering.scop.statements
    prove(lowering)
    for number, access in enumerate(statement.reads):
        for reads in (
            (*statement.reads[:number], *statement.reads[number + 1 :]),
            tuple(
                replace(a, relation=a.relation.intersect_domain(isl.Set("{ y[i] : i != 1 and i != 5 }")))
                if a.read == access.read
                else a
                for a in statement.reads
            ),
        ):
            scop = replace(lowering.scop, statements=(replace(statement, reads=reads),))
            found = refused(lowering, scop=scop, dependences=lowering.dependences)
            assert found.facts["array"] == access.read.tensor
