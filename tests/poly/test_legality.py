"""Faults planted in schedules, domains, subscripts and dependences: the proof refuses each with a witness.

Beside each fault stands a variant that is legal and must be accepted, so that refusing everything would not do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import islpy as isl
import pytest

import polyopt as po
from polyopt import f64
from polyopt.dsl.affine import Affine, axis
from polyopt.errors import LegalityError
from polyopt.poly import dependence
from polyopt.poly.order import Order
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.tree import Leaf, Loop, LoopKind, Sequence, Tree, kinds, loops
from tests.poly.operators import M, N, histogram, i, j, jacobi_1d, prefix, product, smith_waterman, softmax
from tests.poly.proving import nest, pair, plain_product, prove, refused, whole, with_loop, with_loops, without_loop

ROW = axis("i")


# --- schedules --------------------------------------------------------------------------------------------------


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
