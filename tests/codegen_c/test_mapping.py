"""Which loops run on several threads."""

from __future__ import annotations

from dataclasses import replace

import polyopt as po
from polyopt import f32
from polyopt.codegen_c import mapping
from polyopt.codegen_c.mapping import CpuMapping, ParallelLoop
from polyopt.dsl.affine import axis
from polyopt.pipeline import Lowering
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree, loops
from tests.golden.test_golden import MACHINE
from tests.poly.operators import K, M, N, i, j, jacobi_2d, k, prefix, product, softmax

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
    assert parallel(lowering) == [] and lowering.mapping.too_short == ("i",)


def test_space_loops_inside_a_time_loop_count_their_work_per_step() -> None:
    small, large = (jacobi_2d.lower(M=size, N=size, steps=1000) for size in (20, 1000))
    assert not any("u_1" in loop.statements for loop in loops(small.tree) if loop.kind == "parallel")
    assert any("u_1" in loop.statements for loop in loops(large.tree) if loop.kind == "parallel")
    step = next(one for one in large.mapping.parallel if one.name == parallel(large)[1])
    assert 900_000 < step.instances < 1_100_000


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
    found = CpuMapping((ParallelLoop("i", 2, 99_000),), ("j",))
    assert str(found).splitlines() == [
        "i: parallel, 2 iterations a chunk, about 99000 instances",
        "j: could be parallel, too little work",
    ]


def test_a_batch_of_one_leaves_the_threads_to_the_loop_inside() -> None:
    one, eight = (batched.lower(B=size, M=200, N=60, K=60, target=MACHINE) for size in (1, 8))
    assert parallel(eight) == ["b"]
    assert len(parallel(one)) == 1 and parallel(one) != ["b"]
