"""From trees to loops: every instance once, in order, with right bounds, names, buffers and checks."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64, i32, i64
from polyopt.dsl.affine import Affine, axis
from polyopt.errors import BoundsError, LegalityError, ScheduleError
from polyopt.loops import lower as loops_lower
from polyopt.loops.instances import enumerate_instances, instance_counts
from polyopt.loops.interpret import interpret
from polyopt.loops.ir import Alloc, For, If, LoopProgram, Store, integer, walk
from polyopt.loops.verify import check_accesses
from polyopt.pipeline import Lowering
from polyopt.poly import storage
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree
from tests import brute_force
from tests.poly import running
from tests.poly.operators import (
    K,
    M,
    N,
    gauss_seidel,
    i,
    j,
    jacobi_1d,
    k,
    layernorm,
    lower_triangle_solve,
    prefix,
    product,
    smith_waterman,
    softmax,
)
from tests.test_checkers import mutated

OPERATORS: dict[str, Any] = {
    "gauss_seidel": (gauss_seidel, {"M": 4, "N": 5}),
    "jacobi_1d": (jacobi_1d, {"N": 6, "steps": 3}),
    "layernorm": (layernorm, {"M": 3, "N": 4}),
    "lower_triangle_solve": (lower_triangle_solve, {"N": 5}),
    "product": (product, {"M": 3, "N": 4, "K": 2}),
    "softmax": (softmax, {"M": 3, "N": 4}),
}


def whole(lowering: Lowering, tree: Tree) -> LoopProgram:
    """The loops of a tree with whole arrays."""
    return running.loop_program(lowering.rewritten, lowering.scop, tree, storage.whole_plan(lowering.scop))


def inputs_of(lowering: Lowering, seed: int = 0) -> dict[str, np.ndarray]:
    numbers = np.random.default_rng(seed)
    found = {}
    for name in lowering.program.parameters:
        tensor = lowering.program.tensor(name)
        shape = tuple(extent.constant for extent in tensor.shape or ())
        found[name] = numbers.uniform(0.5, 1.5, shape).astype(tensor.dtype.numpy)
    return found


def loops_of(program: LoopProgram) -> list[For]:
    return [s for s in walk(program.body) if isinstance(s, For)]


@pytest.mark.parametrize("name", OPERATORS)
def test_legal_trees_of_any_shape_run_every_instance_once_and_right(name: str) -> None:
    operator, sizes = OPERATORS[name]
    lowering = operator.lower(**sizes)
    needed = brute_force.pairs(lowering.scop)
    inputs = inputs_of(lowering)
    constants = [value for key, value in sizes.items() if key == "steps"]
    wanted = operator.reference(*inputs.values(), *constants)
    domains = {s.name: Counter(brute_force.points(s.domain)) for s in lowering.scop.statements}
    draw, ran = Random(name), 0
    while ran < 12:
        tree = lowering.tree
        for _ in range(draw.randint(0, 3)):
            tree = mutated(tree, draw)
        if brute_force.violation(needed, tree) is not None:
            continue
        try:
            plan = running.proved(lowering.scop, lowering.dependences, tree)
        except LegalityError:  # lanes that are combined, or two kinds for loops of one name
            continue
        for chosen in (plan, storage.whole_plan(lowering.scop)):
            program = running.loop_program(lowering.rewritten, lowering.scop, tree, chosen)
            assert instance_counts(enumerate_instances(program)) == domains
            (result,) = running.run(program, inputs, seed=ran).values()
            np.testing.assert_allclose(result, wanted, rtol=1e-5)
        ran += 1


# --- loops ------------------------------------------------------------------------------------------------------


def test_loops_are_named_for_their_axes_and_labelled_for_the_reader() -> None:
    lowering = product.lower(M=3, N=4, K=2)
    update = Loop("k", (("y_update", axis("k")),), Leaf("y_update"))
    rows = tuple((name, axis("i")) for name in ("y_init", "y_update", "out"))
    columns = tuple((name, axis("j")) for name, _ in rows)
    inner = Loop("j", columns, Sequence((Leaf("y_init"), update, Leaf("out"))))
    tiles = tuple((name, axis("i") // 2 * 2) for name, _ in rows)
    program = whole(lowering, Loop("i_tile", tiles, Loop("i#2", rows, inner)))
    assert [(loop.axis, loop.step) for loop in loops_of(program)] == [("i tile", 2), ("i", 1), ("j", 1), ("k", 1)]
    assert len({loop.var for loop in loops_of(program)}) == 4
    assert all(loop.var.isidentifier() for loop in loops_of(program))


@pytest.mark.parametrize("m", [5, 6, 7, 8, 64])
@pytest.mark.parametrize("scale", [1, 4, 8, 12])
def test_a_loop_variable_is_the_value_of_its_row(m: int, scale: int) -> None:
    """isl likes to count iterations of a loop whose values lie a stride apart; elements of a private buffer and tiles
    are computed from the variable."""
    lowering = product.lower(M=m, N=4, K=5)
    update = Loop("k", (("y_update", axis("k")),), Leaf("y_update"))

    def nest(number: int, name: str, body: Tree) -> Tree:
        return Loop(f"i#{number}", ((name, axis("i")),), Loop(f"j#{number}", ((name, axis("j")),), body))

    points = Sequence((nest(1, "y_init", Leaf("y_init")), nest(2, "y_update", update), nest(3, "out", Leaf("out"))))
    tiles = Loop("i_tile", tuple((name, axis("i") // 4 * scale) for name in ("y_init", "y_update", "out")), points)
    plan = running.proved(lowering.scop, lowering.dependences, tiles)
    assert [buffer.scope for buffer in plan.buffers] == [("i_tile",)]
    program = running.loop_program(lowering.rewritten, lowering.scop, tiles, plan)
    check_accesses(program)
    inputs = inputs_of(lowering)
    (result,) = running.run(program, inputs).values()
    np.testing.assert_allclose(result, product.reference(*inputs.values()), rtol=1e-5)


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.parametrize("block", [1, 3])
def test_a_loop_over_rows_of_two_kinds_runs_each_with_its_own_buffers(scale: int, block: int) -> None:
    """isl joins rows that lie a stride apart, even and odd ones, in iterations of the first: then the variable is not
    the row of the others, and their private buffers were written outside."""

    @po.op
    def even_and_odd(x: f32[M, N, K]):
        y = po.tensor("y")
        y[i, j] = po.when(i % 2 == 0, x[i, j, 0])
        y[i, j] = po.when(i % 2 == 1, po.sum(x[i, j, k], k) * 2)
        return y

    lowering = even_and_odd.lower(M=13, N=2, K=3)
    even, *odd, out = (s.name for s in lowering.scop.statements)
    init, update = odd
    points = tuple((name, axis("j")) for name in (init, update, out))
    sums = Sequence((Leaf(init), Loop("k", ((update, axis("k")),), Leaf(update)), Leaf(out)))
    body = Sequence((Loop("j", ((even, axis("j")),), Leaf(even)), Loop("j#2", points, sums)))
    row = axis("i") * scale
    rows = ((even, row), *((name, row + 2 * (block - 1)) for name in (init, update, out)))
    tree = Loop("i", rows, body)
    plan = running.proved(lowering.scop, lowering.dependences, tree)
    assert [buffer.scope for buffer in plan.buffers] == [("i", "j#2")]
    program = running.loop_program(lowering.rewritten, lowering.scop, tree, plan)
    check_accesses(program)
    inputs = inputs_of(lowering)
    (result,) = running.run(program, inputs).values()
    np.testing.assert_allclose(result, even_and_odd.reference(*inputs.values()), rtol=1e-5)


def test_a_loop_of_one_iteration_is_left_out() -> None:
    program = whole(product.lower(M=1, N=4, K=1), product.lower(M=1, N=4, K=1).fusion.tree)
    assert {loop.axis for loop in loops_of(program)} == {"j"}


def test_kinds_and_chunks_come_from_the_tree() -> None:
    lowering = product.lower(M=3, N=4, K=2)
    tree = lowering.fusion.tree
    assert isinstance(tree, Loop)
    program = whole(lowering, replace(tree, kind="parallel", chunk=2))
    assert (loops_of(program)[0].kind, loops_of(program)[0].chunk) == ("parallel", 2)


def test_lanes_with_anything_inside_but_statements_run_in_order() -> None:
    """A guard or a loop inside a vector loop has no lanes: the loop is scanned serially."""
    lowering = product.lower(M=3, N=4, K=2)
    tree = lowering.fusion.tree
    assert isinstance(tree, Loop)
    program = whole(lowering, replace(tree, kind="vector"))
    assert loops_of(program)[0].kind == "serial"


def test_a_skewed_loop_has_bounds_that_hold_exactly_its_points() -> None:
    lowering = smith_waterman.lower(M=3, N=5)
    (name,) = [s.name for s in lowering.scop.statements]
    for row in (axis("i") + axis("j"), axis("i") * 2 + axis("j"), axis("j") - axis("i") * 3, -axis("i") - axis("j")):
        inner = Loop("i", ((name, axis("i")),), Leaf(name))
        program = loops_lower.lower(
            lowering.scop,
            Loop("w", ((name, row),), inner),
            storage.whole_plan(lowering.scop),
            parameters=("same",),
            results=("h",),
            strides={},
        )
        counts = instance_counts(enumerate_instances(program))
        assert counts == {name: Counter(brute_force.points(lowering.scop.statement(name).domain))}


def test_statements_that_only_some_iterations_run_are_guarded() -> None:
    lowering = prefix.lower(N=5)
    rows = (("s", Affine(3)), ("s_1", axis("t")))
    fused = Loop("t", rows, Sequence((Leaf("s"), Leaf("s_1"))))
    program = loops_lower.lower(
        lowering.scop, fused, storage.whole_plan(lowering.scop), parameters=("x",), results=("s",), strides={}
    )
    assert any(isinstance(s, If) for s in walk(program.body)) or len(loops_of(program)) > 1
    assert instance_counts(enumerate_instances(program)) == {
        "s": Counter([()]), "s_1": Counter([(t,) for t in range(1, 5)])
    }  # fmt: skip


# --- symbolic sizes ---------------------------------------------------------------------------------------------


@po.op(dynamic=True)
def normed(x: f64[M, N]):
    y = po.tensor("y")
    y[i, j] = x[i, j] / po.sum(x[i, k] * x[i, k], k) + x.wrap()[i, j + 1] + x.clamp()[i - 1, j]
    return y


@po.op(dynamic=True)
def triangle(x: f64[N, N]):
    y = po.tensor("y")
    y[i] = po.sum(x[i, k] * x[k, i], k, where=k <= i)
    return y


@pytest.mark.parametrize(("m", "n"), [(1, 1), (2, 3), (7, 5), (16, 33)])
def test_one_program_of_symbolic_sizes_serves_them_all(m: int, n: int) -> None:
    lowering = normed.lower()
    assert lowering.loops.sizes[:2] == ("M", "N")
    x = np.random.default_rng(0).uniform(1, 2, (m, n))
    (result,) = running.run(lowering.loops, {"x": x}, {"M": m, "N": n}, seed=1).values()
    np.testing.assert_allclose(result, normed.reference(x), rtol=1e-12)


@pytest.mark.parametrize("n", [1, 2, 7, 17])
def test_triangles_of_symbolic_size_are_scanned_exactly(n: int) -> None:
    lowering = triangle.lower()
    x = np.random.default_rng(0).uniform(1, 2, (n, n))
    counts = instance_counts(enumerate_instances(lowering.loops, {"N": n}))
    update = next(s.name for s in lowering.scop.statements if s.is_update)
    assert counts[update] == Counter((row, column) for row in range(n) for column in range(row + 1))
    (result,) = running.run(lowering.loops, {"x": x}, {"N": n}).values()
    np.testing.assert_allclose(result, triangle.reference(x), rtol=1e-12)


# --- buffers ----------------------------------------------------------------------------------------------------


def test_strides_are_numbers_of_a_static_kernel_and_parameters_of_a_dynamic_one() -> None:
    static, dynamic = product.lower(M=3, N=4, K=5), normed.lower()
    fixed = lowered(static, {"x": (40, 8)})
    assert fixed.arguments[0].strides == (integer(40), integer(8)) and fixed.arguments[1].strides is None
    assert fixed.sizes == ()
    open_ = lowered(dynamic, {"x": (40, 8)})
    assert open_.sizes == ("M", "N", "x.stride0", "x.stride1")
    assert open_.arguments[0].strides is not None and open_.arguments[1].strides is None


def lowered(lowering: Lowering, strides: dict[str, Any]) -> LoopProgram:
    return loops_lower.lower(
        lowering.scop,
        lowering.tree,
        lowering.storage,
        parameters=lowering.program.parameters,
        results=lowering.program.results,
        strides=strides,
    )


def test_a_large_private_buffer_is_no_stack_memory() -> None:
    @po.op
    def rows(x: f64[M, N]):
        a, y = po.tensors("a y")
        a[i, j] = po.exp(x[i, j]) + po.sum(x[i, k], k)
        y[i, j] = a[i, j] * a[i, N - 1 - j]
        return y

    for n, space in ((100, "local"), (100_000, "workspace")):
        program = rows.lower(M=2, N=n).loops
        buffers = {s.buffer.name: s.buffer.space for s in walk(program.body) if isinstance(s, Alloc)}
        assert buffers["a"] == space


def test_rows_of_a_buffer_are_aligned_where_their_bytes_are() -> None:
    for n, aligned in ((16, True), (17, False)):
        lowering = product.lower(M=3, N=n, K=2)
        (buffer,) = whole(lowering, Sequence(tuple(
            Loop(f"i#{p}", ((s.name, axis("i")),), Loop(f"j#{p}", ((s.name, axis("j")),), body(s.name, p)))
            for p, s in enumerate(lowering.scop.statements)
        ))).workspace  # fmt: skip
        assert buffer.aligned == aligned


def body(statement: str, position: int) -> Tree:
    if statement == "y_update":
        return Loop(f"k#{position}", ((statement, axis("k")),), Leaf(statement))
    return Leaf(statement)


# --- bodies -----------------------------------------------------------------------------------------------------


def test_reads_of_every_boundary_and_data_stay_inside_their_arrays() -> None:
    @po.op
    def bounded(x: f64[M, N], ids: i32[N]):
        a, y = po.tensor("a"), po.tensor("y")
        p, q = po.index("p", extent=M), po.index("q", extent=N)
        a[p, q] = po.exp(x[p, q]) + po.sum(x[p, k], k)
        y[p, q] = (
            a.pad(1.5)[p - 1, q + 1]
            + a.clamp()[p + 2, q - 3]
            + a.wrap()[p + 1, 2 * q + 5]
            + a.clamp()[ids[q], q]
            + a.wrap()[p, ids[q]]
            + a.pad(2.5)[ids[q], q]
            + po.where((p > 0) & (q < N - 1), a.pad(0)[p - 1, q + 2], a[p, q])
            + po.cast(p - 2 * q, f64)
        )
        return y

    for m, n in ((1, 1), (2, 3), (5, 4)):
        x = np.random.default_rng(0).uniform(0, 1, (m, n))
        ids = np.arange(n, dtype=np.int32) * 3 - 4
        np.testing.assert_allclose(bounded(x, ids), bounded.reference(x, ids), rtol=1e-12)
        lowering = bounded.lower(x, ids)
        (result,) = running.run(lowering.loops, {"x": x, "ids": ids}).values()
        np.testing.assert_allclose(result, bounded.reference(x, ids), rtol=1e-12)


def test_every_data_subscript_without_a_boundary_is_a_site_of_its_own() -> None:
    @po.op
    def gather(x: f32[M, N], ids: i64[K]):
        y = po.tensor("y")
        y[k] = x[ids[k], ids[k]] + x[ids[k], 0] + x[0, ids[k]]
        return y

    program = gather.lower(M=3, N=4, K=5).loops
    assert {(site.array, site.dimension) for site in program.sites} == {("x", 0), ("x", 1)}
    assert all(site.span is not None for site in program.sites)
    x, ids = np.ones((3, 4), np.float32), np.array([0, 1, 2, 3, 0])
    with pytest.raises(BoundsError):
        interpret(program, {"x": x, "ids": ids, "y": np.zeros(5, np.float32)})


def test_a_store_names_its_instance_in_the_order_of_its_axes() -> None:
    program = product.lower(M=2, N=3, K=2).loops
    for store in (s for s in walk(program.body) if isinstance(s, Store)):
        assert len(store.instance) == len({"y_init": "ij", "y_update": "ijk", "out": "ij"}[store.statement])


def test_isl_has_so_many_operations_for_the_loops_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took minutes for a recurrence of many cases under a drawn plan."""
    monkeypatch.setattr(loops_lower, "OPERATIONS", 10)
    with pytest.raises(ScheduleError, match="failed to scan the loops of 'product'"):
        _ = product.lower(M=8, N=8, K=8).loops
    monkeypatch.setattr(loops_lower, "OPERATIONS", 20_000)
    assert not product.lower(M=8, N=8, K=8).fallback


@po.op(dynamic=True)
def sums_between_floors(x: f64[N], w: f64[M]):
    y, z = po.tensor("y", shape=(M,)), po.tensor("z", shape=(M,))
    within = ((-4 - 3 * i - j) % 9 >= 3) & ((i + 3 * j) % 12 >= 3) & ((i + 3 * j) % 12 <= 5)
    y[i] += po.when(within, x[j])
    z[i] = po.when(i % 2 == 0, w[i])
    z[i] = po.when(i % 2 == 1, -w[i])
    return y, z


def test_a_statement_of_which_isl_finds_no_loops_in_time_is_left_out_by_itself() -> None:
    """Its operations and those that the others had left were spent before, and all of them ran under guards."""

    def loop(name: str, index: str, body: Tree, tile: int = 1) -> Loop:
        return Loop(name, (("y_update", axis(index) // tile * tile),), body)

    inner = loop("i", "i", loop("j", "j", Leaf("y_update")))
    tiled = loop("j_tile", "j", loop("i_tile", "i", inner, 32), 8)

    def single(name: str) -> Loop:
        return Loop(f"i of {name}", ((name, axis("i")),), Leaf(name))

    x, w = np.arange(40.0), np.arange(37.0)
    lowering = sums_between_floors.lower(x, w)
    tree = Sequence((single("y_init"), tiled, single("z"), single("z_1")))
    assert list(loops_lower.ast(lowering.scop, tree).guards) == ["y_update"]
    for name, result in running.run(whole(lowering, tree), {"x": x, "w": w}, {"M": 37, "N": 40}).items():
        np.testing.assert_array_equal(result, dict(zip("yz", sums_between_floors.reference(x, w)))[name])
