"""Storage: a few planes, a box for one iteration, or the whole array; never less than what is alive."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64
from polyopt.dsl.affine import Affine, axis, constant, size
from polyopt.errors import LegalityError
from polyopt.loops import lower as loops_lower
from polyopt.loops.interpret import interpret
from polyopt.pipeline import Lowering
from polyopt.poly import legality, storage
from polyopt.poly.lifetimes import overwritten, relations
from polyopt.poly.order import Order
from polyopt.poly.storage import Storage, StoragePlan
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree, as_schedule, kinds, loops
from polyopt.target import preset
from tests.poly import running
from tests.poly.operators import M, N, i, j, jacobi_1d, jacobi_2d, k, layernorm, prefix, product, softmax


def decided(lowering: Lowering, tree: Tree) -> StoragePlan:
    """The plan for a tree, which the proof accepts."""
    schedule = as_schedule(tree, lowering.scop)
    plan = storage.decide(lowering.scop, lowering.dependences, tree, schedule)
    legality.prove(lowering.scop, lowering.dependences, schedule, kinds(tree), plan)
    return plan


def buffer_of(lowering: Lowering, array: str) -> Storage:
    found = lowering.storage.of(array)
    assert found is not None
    return found


def fused_product(kind: str = "serial") -> Tree:
    """One loop over the rows, all else inside."""
    rows = tuple((name, axis("i")) for name in ("y_init", "y_update", "out"))
    inner = (
        Loop("j", (("y_init", axis("j")),), Leaf("y_init")),
        Loop("j#2", (("y_update", axis("j")),), Loop("k", (("y_update", axis("k")),), Leaf("y_update"))),
        Loop("j#3", (("out", axis("j")),), Leaf("out")),
    )
    return Loop("i", rows, Sequence(inner), kind=kind)  # type: ignore[arg-type]  # a kind's name


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_a_row_made_and_used_in_one_iteration_is_private_to_it(kind: str) -> None:
    lowering = product.lower(M=3, N=4, K=5)
    (buffer,) = decided(lowering, fused_product(kind)).buffers
    assert buffer == Storage("y", ("i",), (axis("i"), Affine(0)), (constant(1), constant(4)), (None, None))
    assert str(buffer) == "y[1, 4]: private to an iteration of i"


def test_nothing_is_private_to_a_lane() -> None:
    lowering = product.lower(M=3, N=4, K=5)
    (buffer,) = decided(lowering, fused_product("vector")).buffers
    assert buffer == storage.whole(lowering.scop.array("y"))
    assert str(buffer) == "y[3, 4]: whole call"


def test_an_unrolled_row_is_folded_rather_than_private() -> None:
    lowering = product.lower(M=3, N=4, K=5)
    (buffer,) = decided(lowering, fused_product("unrolled")).buffers
    assert not buffer.scope and buffer.modulo == (1, None)


def test_separate_nests_keep_the_whole_array() -> None:
    lowering = product.lower(M=3, N=4, K=5)
    inner = fused_product()
    assert isinstance(inner, Loop) and isinstance(inner.body, Sequence)
    apart = Sequence(
        tuple(
            Loop(f"i#{n}", ((name, axis("i")),), child)
            for n, (name, child) in enumerate(zip(("y_init", "y_update", "out"), inner.body.children, strict=True))
        )
    )
    assert decided(lowering, apart) == storage.whole_plan(lowering.scop)


def test_a_tile_is_held_from_its_first_element() -> None:
    lowering = product.lower(M=7, N=4, K=5)
    inner = fused_product()
    assert isinstance(inner, Loop)
    tiles = tuple((name, axis("i") // 3 * 3) for name in inner.statements)
    (buffer,) = decided(lowering, replace(inner, name="i_tile", rows=tiles, body=inner)).buffers
    assert buffer.scope == ("i_tile", "i") and buffer.extent[0] == constant(1)
    reverse = tuple((name, -axis("i")) for name in inner.statements)
    (buffer,) = decided(lowering, replace(inner, rows=reverse)).buffers
    assert buffer.offset[0] == -axis("i")


@pytest.mark.parametrize("steps", [3, 10])
def test_a_time_stepped_stencil_keeps_two_planes(steps: int) -> None:
    lowering = jacobi_2d.lower(M=12, N=13, steps=steps)
    buffer = buffer_of(lowering, "u")
    assert buffer.modulo == (2, None, None) and not buffer.scope
    assert buffer.extent == (constant(2), constant(12), constant(13))
    assert str(buffer) == "u[2 planes, 12, 13]: whole call"


def test_two_steps_back_keep_three_planes() -> None:
    @po.op
    def wave(start: f64[N], steps: int):
        u = po.tensor("u")
        t = po.index("t", 1, steps)
        u[0, i] = start[i]
        u[1, i] = start[i]
        u[t + 1, i] = po.where((i > 0) & (i < N - 1), u[t, i - 1] + u[t, i + 1] - u[t - 1, i], 0.0)
        return u[steps]

    buffer = buffer_of(wave.lower(N=8, steps=6), "u")
    assert buffer.modulo == (3, None)


def test_a_stencil_of_as_many_steps_as_planes_is_kept_whole() -> None:
    assert not buffer_of(jacobi_1d.lower(N=5, steps=1), "u").is_folded


def test_all_planes_are_kept_where_all_are_returned() -> None:
    @po.op
    def history(start: f64[N], steps: int):
        u = po.tensor("u")
        t = po.index("t", extent=steps)
        u[0, i] = start[i]
        u[t + 1, i] = u[t, i] * 2.0
        return u

    assert history.lower(N=5, steps=4).storage.buffers == ()


def test_planes_that_a_later_statement_reads_are_not_folded_away() -> None:
    @po.op
    def first_and_last(start: f64[N], steps: int):
        u, y = po.tensors("u y")
        t = po.index("t", extent=steps)
        u[0, i] = start[i]
        u[t + 1, i] = po.where((i > 0) & (i < N - 1), u[t, i - 1] + u[t, i + 1], u[t, i])
        y[i] = u[1, i] + u[steps, i]
        return y

    lowering = first_and_last.lower(N=6, steps=5)
    assert not buffer_of(lowering, "u").is_folded
    x = np.arange(6.0)
    np.testing.assert_allclose(first_and_last(x, 5), first_and_last.reference(x, 5))


def test_statistics_of_a_row_are_scalars_private_to_it() -> None:
    rows = {"shared"}  # the exponentials of a softmax, which its sum and its result take
    for lowering in (softmax.lower(M=5, N=40), layernorm.lower(M=5, N=40)):
        for buffer in lowering.storage.buffers:
            extent = (constant(1), constant(40)) if buffer.array in rows else (constant(1),)
            assert buffer.extent == extent and buffer.scope, str(buffer)


def test_a_temporary_without_dimensions_can_be_private() -> None:
    @po.op
    def last(x: f64[N]):
        s, y = po.tensors("s y")
        s[()] = po.sum(x[k] * x[k], k)
        y[i] = x[i] / s[()]
        return y

    buffer = buffer_of(last.lower(N=5), "s")
    assert buffer == Storage("s", (), (), (), ())


def test_symbolic_rows_are_held_by_constant_boxes() -> None:
    @po.op(dynamic=True)
    def normed(x: f64[M, N]):
        y = po.tensor("y")
        y[i, j] = x[i, j] / po.sum(x[i, k], k)
        return y

    (buffer,) = normed.lower().storage.buffers
    assert buffer.extent == (constant(1),) and buffer.offset == (axis("i"),)


def test_a_symbolic_stencil_keeps_two_planes() -> None:
    @po.op(dynamic=["N"])
    def steps_of(start: f64[N], steps: int):
        u = po.tensor("u")
        t = po.index("t", extent=steps)
        u[0, i] = start[i]
        u[t + 1, i] = po.where((i > 0) & (i < N - 1), u[t, i - 1] + u[t, i + 1], u[t, i])
        return u[steps]

    buffer = buffer_of(steps_of.lower(steps=6), "u")
    assert buffer.modulo == (2, None) and buffer.extent == (constant(2), size("N"))


def test_a_distance_that_no_size_bounds_is_found_quickly() -> None:
    """Its greatest value as an expression of the sizes took more operations than a plan may take."""

    @po.op(dynamic=True)
    def recurrences(x: f64[M, N], start: f64[po.size("K")]):
        t, u, y = po.tensors("t u y")
        k = po.index("k", extent=po.size("K"))
        t[j, i] = po.when(j < 1, x[i, j])
        t[j, i] = po.when(~(j < 1), t[j - 1, i] + x[i, j])
        u[i, j] += t[j, i]
        y[k] = po.when(k < 1, start[k])
        y[k] = po.when(~(k < 1), u.clamp()[k // 3 + k % 2, k % 3] - y[k - 1])
        return y

    lowering = recurrences.lower()
    assert lowering.settled is lowering and not lowering.fallback
    assert buffer_of(lowering, "t").modulo == (2, None) and buffer_of(lowering, "u").modulo == (None, None)


def test_a_temporary_that_nothing_touches_has_its_whole_place() -> None:
    lowering = prefix.lower(N=4)
    unused = replace(lowering.scop.array("s"), name="unused", role="local")
    scop = replace(lowering.scop, arrays=(*lowering.scop.arrays, unused))
    plan = storage.decide(scop, lowering.dependences, lowering.tree, lowering.schedule)
    assert plan == StoragePlan((storage.whole(unused),))
    assert str(StoragePlan(())) == "no temporaries" and plan.of("s") is None


# --- lifetimes --------------------------------------------------------------------------------------------------


def test_a_value_survives_in_a_cell_until_its_last_reading() -> None:
    lowering = jacobi_1d.lower(N=6, steps=4)
    order = Order.of(lowering.scop, lowering.schedule, kinds(lowering.tree))
    own = [d for d in lowering.dependences.ordered if d.array == "u"]
    assert overwritten("u", (2, None), own, order) is None
    assert overwritten("u", (None, None), own, order) is None
    found = overwritten("u", (1, None), own, order)
    assert found is not None and found[0] in own and found[1].is_subset(found[0].relation)
    assert overwritten("u", (2, 3), own, order) is not None


def test_an_update_touches_what_it_reads_and_what_it_writes() -> None:
    lowering = product.lower(M=2, N=3, K=2)
    update, out = lowering.scop.statement("y_update"), lowering.scop.statement("out")
    assert relations(update, "y") == [update.write]
    assert [r.is_equal(out.reads[0].relation) for r in relations(out, "y")] == [True]
    assert relations(out, "x") == []


@pytest.mark.parametrize("planes", [1, 2, 3, 4])
def test_folding_is_judged_as_running_the_loops_judges_it(planes: int) -> None:
    """With too few planes the loop program gives wrong numbers, with enough of them right ones."""
    lowering = jacobi_1d.lower(N=6, steps=4)
    order = Order.of(lowering.scop, lowering.schedule, kinds(lowering.tree))
    own = [d for d in lowering.dependences.ordered if d.array == "u"]
    buffer = Storage("u", (), (Affine(0),) * 2, (constant(planes), constant(6)), (planes, None))
    program = loops_lower.lower(
        lowering.scop,
        lowering.tree,
        StoragePlan((buffer,)),
        parameters=lowering.program.parameters,
        results=lowering.program.results,
        strides={},
    )
    start = np.random.default_rng(0).random(6)
    (result,) = lowering.program.results
    out = np.zeros(6)
    interpret(program, {"start": start, result: out})
    right = np.allclose(out, jacobi_1d.reference(start, 4))
    assert right == (overwritten("u", (planes, None), own, order) is None)


def test_the_planes_of_a_mixed_precision_state_are_those_of_its_loop() -> None:
    @po.op
    def two_states(start: f32[N], steps: int):
        u, v = po.tensors("u v")
        t = po.index("t", extent=steps)
        u[0, i] = start[i]
        v[0, i] = start[i] * 0.5
        u[t + 1, i] = u[t, i] + v[t, i]
        v[t + 1, i] = po.where(i > 0, v[t, i] - u[t + 1, i] * u[t + 1, i - 1], 0.0)
        return u[steps]

    lowering = two_states.lower(N=9, steps=7)
    assert {b.array: b.modulo for b in lowering.storage.buffers} == {"u": (2, None), "v": (2, None)}
    x = np.linspace(0, 0.1, 9, dtype=np.float32)
    np.testing.assert_allclose(two_states(x, 7), two_states.reference(x, 7), rtol=1e-5)


# --- random plans -----------------------------------------------------------------------------------------------

RANDOM_PLANS = {
    "jacobi_1d": lambda: jacobi_1d.lower(N=5, steps=4),
    "product": lambda: product.lower(M=3, N=4, K=2),
    "softmax": lambda: softmax.lower(M=3, N=4),
    "layernorm": lambda: layernorm.lower(M=2, N=4),
}


def random_buffer(lowering: Lowering, array: str, draw: Random) -> Storage:
    """A buffer somewhere between nothing and everything, private to some of the loops around a use of the array."""
    shape = lowering.scop.array(array).shape
    users = [s.name for s in lowering.scop.statements if s.array == array]
    around = [loop.name for loop in loops(lowering.tree) if users[0] in loop.statements]
    scope = tuple(around[: draw.randint(0, len(around))]) if draw.random() < 0.8 else ()
    fields: list[tuple[Affine, Affine, int | None]] = []
    for extent in shape:
        offset = axis(draw.choice(scope)) if scope and draw.random() < 0.6 else Affine(0)
        modulo = draw.randint(1, 3) if draw.random() < 0.3 else None
        held = modulo if modulo and draw.random() < 0.8 else draw.randint(1, extent.constant + 1)
        fields.append((offset + draw.choice((0, 0, 0, 0, 1, -1)), constant(held), modulo))
    chosen = lowering.storage.of(array)
    assert chosen is not None
    if draw.random() < 0.3:
        return chosen
    return Storage(array, scope, *(tuple(column) for column in zip(*fields, strict=True)))


@pytest.mark.parametrize("name", RANDOM_PLANS)
def test_a_random_plan_that_is_proved_gives_right_numbers(name: str) -> None:
    """Loops with the plan, their parallel iterations shuffled, against loops with whole arrays."""
    lowering = RANDOM_PLANS[name]()
    draw, accepted, refused = Random(name), 0, 0
    numbers = np.random.default_rng(0)
    inputs = {}
    for parameter in lowering.program.parameters:
        tensor = lowering.program.tensor(parameter)
        shape = tuple(extent.constant for extent in tensor.shape or ())
        inputs[parameter] = numbers.random(shape).astype(tensor.dtype.numpy)
    whole = running.loop_program(lowering.rewritten, lowering.scop, lowering.tree, storage.whole_plan(lowering.scop))
    (wanted,) = running.run(whole, inputs).values()
    for seed in range(150):
        plan = StoragePlan(tuple(random_buffer(lowering, b.array, draw) for b in lowering.storage.buffers))
        try:
            legality.prove(lowering.scop, lowering.dependences, lowering.schedule, kinds(lowering.tree), plan)
        except LegalityError:
            refused += 1
            continue
        accepted += 1
        program = running.loop_program(lowering.rewritten, lowering.scop, lowering.tree, plan)
        (found,) = running.run(program, inputs, seed=seed).values()
        np.testing.assert_allclose(found, wanted, rtol=1e-4, err_msg=str(plan))
    assert accepted >= 3 and refused >= 30, f"one-sided: {accepted} accepted, {refused} refused"


def test_storage_for_an_illegal_order_is_proposed_and_then_refused() -> None:
    """Where values are used steps before they are made, no number of planes follows from the delay."""

    @po.op
    def column(x: f64[M]):
        root, total = po.tensors("root total")
        root[i] = po.sqrt(x[i]) + po.sqrt(x[i + 1]) + po.sqrt(x[i + 2])
        total[i] = root[i] * root[i + 1] * root[i + 2]
        return total

    lowering = column.lower(M=8)
    early = Loop(
        "i", (("root", axis("i") + 1), ("total", axis("i"))), Sequence((Leaf("root"), Leaf("total"))), coincident=False
    )
    with pytest.raises(LegalityError):
        decided(lowering, early)


def test_a_box_that_takes_long_to_find_costs_no_other_plan() -> None:
    """With open sizes, isl looked for the least element of an iteration until the planner's share was spent."""

    term = po.index("term", extent=M)

    @po.op(dynamic=True, target=replace(preset("generic"), parallel_ns=1, l1_bytes=256, l2_bytes=1024, l3_bytes=1024))
    def branches(x: f32[N], c: po.u32[()], s: f32[M, N]):
        y = po.tensor("y", shape=(M, N), dtype=po.u32)
        near = ((i // 4 + 2 * j) % 3 == 1) | (i + j < M)
        y[i, j] = po.when(near, c[()])
        y[i, j] = po.when(~near, po.cast(po.clip(po.min(x[j], term), 0, 8), po.u32))
        return y

    lowering = branches.lower()
    assert not lowering.settled.fallback
    assert buffer_of(lowering, "y_min").extent == (size("N"),)


def test_what_a_size_may_not_exceed_is_no_extent() -> None:
    """A size that a value is divided by fits 32 bits. The copies of a block held so many rows: 2 TB, a MemoryError."""
    depth = po.size("K")

    @po.op(dynamic=True)
    def mean_product(x: f64[M, depth], y: f64[depth, N]):
        z = po.tensor("z")
        z[i, j] = po.sum(x[i, k] * y[k, j], k) / (depth - 1)
        return z

    found = buffer_of(mean_product.lower(target=preset("avx512")), "y_packed")
    assert found.scope and found.extent[1] == size("K")
    x, y = np.ones((40, 50)), np.ones((50, 400))
    np.testing.assert_array_equal(mean_product(x, y), np.full((40, 400), 50 / 49))
