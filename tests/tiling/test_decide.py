"""Tiles, register tiles and lanes: what is chosen, that it fits the machine, and that it is right at every size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64, i64
from polyopt.dsl.affine import Affine, axis
from polyopt.poly.scop import Scop
from polyopt.poly.tree import Leaf, Loop, Sequence, numbered
from polyopt.target import Target
from polyopt.testing.guarded import guarded_copy, survives
from polyopt.tiling import cost
from polyopt.tiling import decide as tiling
from polyopt.tiling.cost import axis_of, covered, is_transposed, lane_score
from polyopt.tiling.plan import NestPlan, TilingPlan
from polyopt.tiling.steps import Steps
from tests.golden.test_golden import MACHINE
from tests.poly.operators import (
    K,
    M,
    N,
    gauss_seidel,
    histogram,
    i,
    j,
    jacobi_2d,
    k,
    linear_relu,
    product,
    softmax,
    ten_steps,
)

AVX512 = replace(MACHINE, name="avx512", vector_bits=512, vector_registers=32)


def plan_of(op: po.Op, target: Target = MACHINE, **sizes: Any) -> TilingPlan:
    lowering = op.lower(target=target, **sizes)
    assert lowering.fallback == ""
    return tiling.decide(lowering.scop, numbered(lowering.fusion.tree), target)


# --- plans ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [MACHINE, AVX512], ids=lambda target: target.name)
@pytest.mark.parametrize(("m", "n", "depth"), [(512, 512, 512), (6, 16, 4), (7, 100, 3), (1, 64, 64), (64, 1, 64)])
def test_a_register_tile_fits_the_register_file(target: Target, m: int, n: int, depth: int) -> None:
    for nest in plan_of(product, target, M=m, N=n, K=depth).nests:
        if nest.rows is None or nest.vector is None:
            continue
        vectors = -(-(nest.tile(nest.vector) or 0) // target.lanes(32))
        rows = nest.tile(nest.rows) or 0
        assert rows * vectors + vectors + 1 <= target.vector_registers


def test_a_product_has_a_two_dimensional_register_tile_with_lanes_along_its_columns() -> None:
    (nest,) = plan_of(product, M=100, N=100, K=100).nests
    assert (nest.rows, nest.vector) == ("i", "j")
    assert (nest.tile("i") or 0) > 1 and (nest.tile("j") or 0) % MACHINE.lanes(32) == 0
    assert "stay in registers" in nest.reason


def test_a_transposed_product_has_lanes_where_its_operand_is_contiguous() -> None:
    @po.op
    def transposed(x: f32[M, K], w: f32[K, N]):
        y = po.tensor("y")
        y[j, i] += x[i, k] * w[k, j]
        return y

    nest = plan_of(transposed, M=96, N=96, K=96).nests[-1]
    assert nest.vector is not None and nest.vector[0] in "ij" and nest.rows is not None


def test_a_row_reduction_has_lanes_of_partial_results() -> None:
    nests = plan_of(softmax, M=64, N=1000).nests
    sums = [nest for nest in nests if nest.reason == "lanes hold partial results"]
    assert len(sums) == 2 and all(nest.vector == nest.chain[0] and not nest.tiles for nest in sums)
    assert nests[0].vector is None and "loops inside suit lanes better" in nests[0].reason


def test_lanes_of_a_scatter_would_meet() -> None:
    nests = plan_of(histogram, N=100, count=10).nests
    (scatter,) = [nest for nest in nests if "meet" in nest.reason]
    assert scatter.vector is None


def test_a_sum_that_would_gather_stays_scalar() -> None:
    @po.op
    def gathered(x: f64[M, N], ids: i64[K]):
        s = po.tensor("s")
        s[()] = po.sum(x[ids[k], 0], k)
        return s

    nests = plan_of(gathered, M=10, N=10, K=100).nests
    assert [nest.vector for nest in nests] == [None] and "gather" in nests[0].reason


def test_a_lone_long_loop_is_cut_into_strips_for_threads() -> None:
    (nest,) = plan_of(ten_steps, N=100_000).nests
    assert nest.tiles and nest.vector == "i" and "parallel" in nest.reason
    (short,) = plan_of(ten_steps, N=1000).nests
    assert short.tiles == () and short.vector == "i"


def test_a_wavefronts_lanes_run_along_its_parallel_loop_or_not_at_all() -> None:
    wave, _copy = plan_of(gauss_seidel, M=40, N=50).nests
    assert wave.chain == ("i",) and "i + j" not in wave.order


def test_a_transposition_turns_square_blocks_in_registers() -> None:
    @po.op
    def turned(x: f32[M, N]):
        y = po.tensor("y")
        y[j, i] = x[i, j] * 2.0
        return y

    (nest,) = plan_of(turned, M=64, N=64).nests
    lanes = MACHINE.lanes(32)
    assert dict(nest.tiles) == {"i": lanes, "j": lanes} and nest.rows is not None
    x = np.random.default_rng(0).random((19, 33), np.float32)
    np.testing.assert_array_equal(turned(x), 2 * x.T)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33])
def test_tiles_of_every_remainder_give_the_reference(size: int) -> None:
    numbers = np.random.default_rng(size)
    for m, n, depth in ((size, 20, 5), (20, size, 5), (9, 17, size)):
        x, w, b = (numbers.integers(-3, 4, s).astype(np.float32) for s in ((m, depth), (depth, n), (n,)))
        np.testing.assert_array_equal(linear_relu(x, w, b), np.maximum(x @ w + b, 0))


def test_a_time_loop_is_not_tiled() -> None:
    plan = plan_of(jacobi_2d, M=40, N=40, steps=4)
    assert not any("t" in nest.chain for nest in plan.nests)


def test_a_plan_prints_a_line_per_nest() -> None:
    tiled = NestPlan(("i", "j"), ("j", "i"), (("i", 4), ("j", 24)), "i", "j", "4 x 24 accumulators")
    plain = NestPlan(("k",), ("k",), (), None, None, "lanes would gather")
    assert str(TilingPlan((tiled, plain))).splitlines() == [
        "nest i, j: tiles i by 4, j by 24; register rows i; vector j; 4 x 24 accumulators",
        "nest k: no vector loop; lanes would gather",
    ]
    assert str(TilingPlan(())) == "nothing to tile"
    assert tiled.tile("i") == 4 and tiled.tile("k") is None


# --- costs ------------------------------------------------------------------------------------------------------


def steps_of(scop: Scop) -> Steps:
    return Steps({array.name: array for array in scop.arrays})


def test_a_row_scans_an_axis_alone_forwards_or_backwards() -> None:
    assert axis_of(axis("i")) == "i" and axis_of(-axis("i") + 3) == "i"
    for row in (axis("i") + axis("j"), axis("i") * 2, axis("i") // 4, Affine(3)):
        assert axis_of(row) is None


def test_lanes_are_worth_most_where_accesses_are_contiguous() -> None:
    scop = linear_relu.lower(M=8, N=8, K=8).scop
    update, out = scop.statement("y_update"), scop.statement("out")
    scores = {name: lane_score(steps_of(scop), update, name) for name in ("i", "j", "k")}
    assert scores["j"] == cost.CONTIGUOUS * 2 + cost.INVARIANT == max(scores.values())
    assert scores["i"] < 0 and scores["k"] < scores["j"]
    assert lane_score(steps_of(scop), out, "j") == cost.CONTIGUOUS * 3


def test_steps_back_and_over_an_element_are_near_and_data_is_a_gather() -> None:
    @po.op
    def gathers(x: f64[N], ids: i64[N], s: f64[()]):
        y = po.tensor("y")
        y[i] = po.where(i < N // 2, x.pad(0)[2 * i], 0.0) + x[N - 1 - i] + x[ids[i]] + s[()]
        return y

    scop = gathers.lower(N=8).scop
    (statement,) = scop.statements
    contiguous, near = 2, 2  # ids[i] and y[i]; every second element, and backwards
    expected = contiguous * cost.CONTIGUOUS + near * cost.NEAR + cost.STRIDED + cost.INVARIANT
    assert lane_score(steps_of(scop), statement, "i") == expected


def test_a_layout_says_along_which_axis_elements_lie() -> None:
    @po.op
    def op(x: f32[M, N]):
        return x * 2

    scop = op.lower(M=100, N=50).scop
    (statement,) = scop.statements
    read = statement.reads[0].read
    i, j = statement.axes
    plain, columns = steps_of(scop), Steps({a.name: a for a in scop.arrays}, {"x": (4, 400)})
    assert [plain.along("x", read.subscripts, axis) for axis in (i, j)] == [50, 1]
    assert [columns.along("x", read.subscripts, axis) for axis in (i, j)] == [1, 100]
    assert is_transposed(columns, statement, i, j) and not is_transposed(plain, statement, i, j)


def test_a_read_is_transposed_where_it_is_contiguous_along_the_other_axis() -> None:
    @po.op
    def turned(x: f32[M, N], ids: i64[M]):
        y = po.tensor("y")
        y[j, i] = x[i, j] + x[ids[i], j]
        return y

    scop = turned.lower(M=4, N=5).scop
    (statement,) = scop.statements
    assert is_transposed(steps_of(scop), statement, "j", "i") and not is_transposed(steps_of(scop), statement, "i", "j")


def test_the_share_of_full_tiles() -> None:
    assert covered(16, 8) == 1.0 and covered(17, 8) == 17 / 24 and covered(0, 8) == 1.0 and covered(3, 8) == 3 / 8


def test_lanes_along_a_loop_that_scans_no_axis_alone_are_not_planned() -> None:
    lowering = ten_steps.lower(N=50)
    (statement,) = lowering.scop.statements
    skewed = Loop("w", ((statement.name, axis("i") * 2),), Leaf(statement.name), coincident=True)
    (nest,) = tiling.decide(lowering.scop, skewed, MACHINE).nests
    assert nest.vector is None and "no loop scans an axis alone" in nest.reason
    assert tiling.decide(lowering.scop, Sequence(()), MACHINE) == TilingPlan(())


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (16, 16), (33, 17), (64, 50)])
def test_blocks_turn_that_are_read_from_either_side(rows: int, columns: int) -> None:
    """Quarter turns read what lies side by side from the one end or from the other."""

    @po.op
    def left(x: f32[M, N]):
        y = po.tensor("y")
        y[i, j] = x[j, N - 1 - i]
        return y

    @po.op
    def right(x: f32[M, N]):
        y = po.tensor("y")
        y[i, j] = x[M - 1 - j, i]
        return y

    x = np.random.default_rng(rows).random((rows, columns), np.float32)
    np.testing.assert_array_equal(left(x), np.rot90(x))
    np.testing.assert_array_equal(right(x), np.rot90(x, -1))
    if min(rows, columns) >= 16:
        for operator in (left, right):
            (nest,) = plan_of(operator, M=rows, N=columns).nests
            assert "turn in registers" in nest.reason
            assert "masked.gather" not in operator.lower(M=rows - rows % 16, N=columns - columns % 16).source("llvm")


def test_blocks_that_turn_read_nothing_outside() -> None:
    """The array begins and ends where a page does."""

    @po.op
    def left(x: f32[M, N]):
        y = po.tensor("y")
        y[i, j] = x[j, N - 1 - i]
        return y

    for shape in ((32, 32), (16, 64), (64, 16), (48, 17)):
        x = np.random.default_rng(0).random(shape, np.float32)
        np.testing.assert_array_equal(left(x), np.rot90(x))
        copy = guarded_copy(x)  # a page of its own, or two
        assert survives(lambda copy=copy: left(copy.array))


def test_sums_of_what_lies_near_run_in_lanes() -> None:
    """Every second, third or fourth element, or backwards; further apart, or where data says, lanes would gather."""
    n = po.index("n")

    @po.op
    def near(x: f32[N, 3]):
        y = po.tensor("y")
        y[()] = po.sum(x[n, 0] * x[n, 1] * x[n, 2], n)
        return y

    @po.op
    def backwards(x: f32[N], w: f32[N]):
        y = po.tensor("y")
        y[()] = po.sum(x[n] * w[N - 1 - n], n)
        return y

    @po.op
    def far(x: f32[N, 40]):
        y = po.tensor("y")
        y[()] = po.sum(x[n, 0], n)
        return y

    numbers = np.random.default_rng(0).integers(-2, 3, (101, 40)).astype(np.float32)
    x, w = numbers[:, 3].copy(), numbers[:, 4].copy()
    for operator, arrays, wanted, lanes in (
        (near, (numbers[:, :3].copy(),), numbers[:, :3].prod(1).sum(), "n"),
        (backwards, (x, w), x @ w[::-1], "n"),
        (far, (numbers,), numbers[:, 0].sum(), None),
    ):
        (nest,) = operator.lower(*arrays).tiling.nests
        assert nest.vector == lanes
        assert operator(*arrays) == wanted


def test_lanes_are_rows_where_their_elements_are_read_once() -> None:
    """The first operand lies apart in lanes along `i`, but stays in registers while `j` passes by."""

    @po.op
    def nearest(x: f32[M, 2], y: f32[N, 2]):
        d = po.tensor("d")
        d[i] = po.min((x[i, 0] - y[j, 0]) ** 2 + (x[i, 1] - y[j, 1]) ** 2, j)
        return d

    random = np.random.default_rng(0)
    x, y = random.integers(0, 9, (50, 2)).astype(np.float32), random.integers(0, 9, (40, 2)).astype(np.float32)
    (nest,) = nearest.lower(x, y).tiling.nests
    assert nest.vector == "i"
    np.testing.assert_array_equal(nearest(x, y), ((x[:, None] - y) ** 2).sum(2).min(1))


def test_what_a_register_tile_reads_again_is_near_where_it_is_contiguous() -> None:
    """Every second element, anew for each term of the sum, against the same read once."""

    @po.op
    def pairs(x: f32[N, M, 2], y: f32[N], w: f32[M, 2]):
        z, k = po.tensor("z"), po.index("k")
        z[i] = po.sum(x[k, i, 0] * y[k], k) * w[i, 0]
        return z

    scop = pairs.lower(M=64, N=64).scop
    steps = Steps({array.name: array for array in scop.arrays}, {})
    update = next(statement for statement in scop.statements if statement.is_update)
    again, once = (lane_score(steps, update, "i", inside=inside) for inside in (("k",), ()))
    assert again == once - cost.NEAR + cost.STRIDED
