"""Which loops run on several threads."""

from __future__ import annotations

from dataclasses import replace

import polyopt as po
from polyopt import f32
from polyopt.codegen_c import mapping, work
from polyopt.codegen_c.mapping import CpuMapping, ParallelLoop, ShortLoop
from polyopt.dsl.affine import axis
from polyopt.pipeline import Lowering
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree, loops
from polyopt.target import Rates, preset
from tests.golden.test_golden import MACHINE
from tests.poly.operators import K, M, N, i, j, jacobi_2d, k, prefix, product, softmax

RATES = Rates(100, 50, 100, 160, 200, 100, 40, 20, 18, 28, 27, 5.0, 2)
B = po.size("B")
b = po.index("b")


@po.op
def batched(x: f32[B, M, K], y: f32[B, K, N]):
    z = po.tensor("z")
    z[b, i, j] += x[b, i, k] * y[b, k, j]
    return z


def parallel(lowering: Lowering) -> list[str]:
    return [loop.name for loop in loops(lowering.tree) if loop.kind == "parallel"]


def test_the_outermost_coincident_loop_of_a_large_nest_is_parallel() -> None:
    lowering = softmax.lower(M=500, N=1000)
    assert parallel(lowering) == ["i"]
    assert [one.name for one in lowering.mapping.parallel] == ["i"]


def test_a_small_nest_is_not_worth_waking_the_threads() -> None:
    lowering = softmax.lower(M=5, N=10)
    assert parallel(lowering) == [] and [one.name for one in lowering.mapping.too_short] == ["i"]


def test_space_loops_inside_a_time_loop_count_their_work_per_step() -> None:
    small, large = (jacobi_2d.lower(M=size, N=size, steps=1000) for size in (20, 1000))
    assert not any("u_1" in loop.statements for loop in loops(small.tree) if loop.kind == "parallel")
    assert any("u_1" in loop.statements for loop in loops(large.tree) if loop.kind == "parallel")
    step = next(one for one in large.mapping.parallel if one.name == parallel(large)[1])
    whole = sum(one.ns for one in large.mapping.parallel)
    assert 10_000 < step.ns < 10_000_000 and whole < 1000 * step.ns


def test_a_recurrence_runs_on_one_thread() -> None:
    lowering = prefix.lower(N=1_000_000)
    assert parallel(lowering) == [] and str(lowering.mapping) == "no parallel loop"


def test_no_parallel_loop_is_inside_another() -> None:
    lowering = product.lower(M=512, N=512, K=512)
    (outer,) = [loop for loop in loops(lowering.tree) if loop.kind == "parallel"]
    assert all(loop.kind != "parallel" for loop in loops(outer.body))


def test_a_plan_is_applied_to_the_loops_that_it_names_alone() -> None:
    inner = Loop("j", (("S", axis("j")),), Leaf("S"), coincident=True)
    tree: Tree = Sequence((Loop("i", (("S", axis("i")),), inner), Leaf("T")))
    marked = mapping.apply(tree, CpuMapping((ParallelLoop("j", 3, 1 << 20),), ()))
    wanted = replace(inner, kind="parallel", chunk=3)
    assert marked == Sequence((Loop("i", (("S", axis("i")),), wanted), Leaf("T")))
    assert mapping.apply(tree, CpuMapping((), ())) == tree


def test_a_mapping_prints_a_line_per_loop() -> None:
    found = CpuMapping((ParallelLoop("i", 2, 99_000),), (ShortLoop("j", 2_500, 10_000),))
    assert str(found).splitlines() == [
        "i: parallel, 2 iterations a chunk, about 99 us",
        "j: could be parallel, too little work: about 2.5 us, threads repay 10 us",
    ]


def test_a_batch_of_one_leaves_the_threads_to_the_loop_inside() -> None:
    one, eight = (batched.lower(B=size, M=200, N=60, K=60, target=MACHINE) for size in (1, 8))
    assert parallel(eight) == ["b"]
    assert len(parallel(one)) == 1 and parallel(one) != ["b"]


@po.op
def row_sums(x: f32[M, N]):
    y = po.tensor("y")
    y[i] += x[i, j]
    return y


def test_work_is_handed_out_in_few_chunks_each_of_microseconds() -> None:
    (short,) = batched.lower(B=4000, M=8, N=8, K=8, target=MACHINE).mapping.parallel
    (long,) = batched.lower(B=400_000, M=8, N=8, K=8, target=MACHINE).mapping.parallel
    assert short.name == long.name == "b"
    assert 2 <= -(-4000 // short.chunk) <= 64 and short.ns * short.chunk / 4000 > 1000
    assert -(-400_000 // long.chunk) == mapping.MOST_CHUNKS


def test_the_decision_is_one_of_time_and_not_of_instances() -> None:
    few, many = row_sums.lower(M=64, N=64, target=MACHINE), softmax.lower(M=64, N=64, target=MACHINE)
    assert parallel(row_sums.lower(M=256, N=256, target=MACHINE)) == []  # 65536 additions, 2 us
    assert few.mapping.too_short[0].ns < many.mapping.too_short[0].ns / 4


def test_threads_wait_for_more_work_where_waking_them_was_measured_to_be_slow() -> None:
    slow = replace(MACHINE, rates=replace(RATES, dispatch_us=1000.0))
    assert parallel(row_sums.lower(M=2000, N=2000, target=MACHINE)) == ["i_tile"]
    assert parallel(row_sums.lower(M=2000, N=2000, target=slow)) == []


@po.op
def turned(x: f32[M, K], w: f32[N, K]):
    """A product whose second operand is copied ahead, to where its columns are neighbours."""
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[j, k]
    return y


def test_a_panel_that_one_core_fills_for_the_others_counts_against_threads() -> None:
    machine = preset("avx512")
    lowering = turned.lower(M=128, N=128, K=128, target=machine)
    (packing, tiles) = [loop for loop in tree_of(lowering).children if isinstance(loop, Loop)]
    panel = lowering.scop.statement(packing.statements[0]).array
    alone = work.handed_ns(lowering.scop, tiles, machine, set())
    assert alone == 128 * 128 * 4 / work.HANDED_BYTES_PER_NS
    assert work.handed_ns(lowering.scop, tiles, machine, {panel}) == alone / 2
    assert work.handed_ns(lowering.scop, tiles, replace(machine, l2_bytes=1 << 16), set()) == 0
    assert work.handed_ns(lowering.scop, packing, machine, set()) == 0
    assert lowering.mapping.too_short[-1].least_ns == machine.parallel_ns + 2 * alone


def test_threads_that_read_panels_of_their_own_hand_over_half() -> None:
    machine = preset("avx512")
    lowering = turned.lower(M=128, N=128, K=128, target=machine)
    (packing, tiles) = [loop for loop in tree_of(lowering).children if isinstance(loop, Loop)]
    (columns,) = [loop for loop in loops(tiles) if loop.name.startswith("j") and loop.kind == "serial"]
    whole, half = (work.handed_ns(lowering.scop, loop, machine, set()) for loop in (tiles, columns))
    assert half == whole / 2 > 0


def tree_of(lowering: Lowering) -> Sequence:
    assert isinstance(lowering.tree, Sequence)
    return lowering.tree
