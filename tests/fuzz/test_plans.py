"""Plans that are drawn by chance: the same for a seed, of every kind, and held against the reference."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

import polyopt as po
from polyopt.fuzz import check, plans
from polyopt.fuzz.check import Mismatch, compare
from polyopt.loops.ir import For, walk
from polyopt.pipeline import Lowering
from polyopt.poly.tree import loops
from tests.poly.operators import K, M, N, i, j, k, product, softmax

SEEDS = range(60)
a, b = po.indices("a b")


def test_a_seed_gives_the_same_plan_every_time() -> None:
    first, second = (plans.draw(product.lower(M=5, N=4, K=3), 4) for _ in range(2))
    assert first is not None and second is not None
    assert plans.plan_text(first, 4) == plans.plan_text(second, 4)


def test_plans_hold_every_kind_of_loop_tile_and_storage() -> None:
    lowering = softmax.lower(M=7, N=9)
    drawn = [plan for plan in (plans.draw(lowering, seed) for seed in SEEDS) if plan is not None]
    assert len(drawn) > len(SEEDS) / 2, "most of the plans should be legal"
    kinds = {s.kind for plan in drawn for s in walk(plan.loops.body) if isinstance(s, For)}
    assert kinds == {"serial", "parallel", "vector", "unrolled"}
    assert {plan.options.target.vector_bits for plan in drawn} >= {128}
    assert any("//" in str(row) for plan in drawn for loop in loops(plan.tree) for _, row in loop.rows)
    assert len({str(plan.storage) for plan in drawn}) > 5
    assert len({str(plan.tree) for plan in drawn}) > len(drawn) / 2


def test_rewrites_that_pay_in_large_programs_only_are_drawn_for_small_ones() -> None:
    @po.op
    def convolution(x: po.f32[M, N], w: po.f32[K, 3, 3]):
        y = po.tensor("y", shape=(K, M, N))
        y[k, i, j] += x.pad(0)[i + a - 1, j + b - 1] * po.exp(w[k, a, b])
        return y

    lowering = convolution.lower(M=5, N=4, K=3)
    drawn = [plans.answered(lowering, Random(seed)) for seed in range(12)]
    made = {tensor.name for plan in drawn for tensor in plan.rewritten.tensors if tensor.role == "local"}
    kinds = {kind for kind in ("wide", "factor", "columns") if any(kind in name for name in made)}
    assert kinds == {"wide", "factor", "columns"}, made


def test_a_plan_that_computes_something_else_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(lowering: Lowering, arguments: list[np.ndarray], *, effort: int) -> list[np.ndarray]:
        return [array + 1 for array in plans.run(lowering, arguments, effort=effort)]

    monkeypatch.setattr(check, "run_plan", wrong)
    with pytest.raises(Mismatch, match=r"differs from the reference(.|\n)*plan 1, vectors of"):
        compare(product, (np.ones((4, 3), np.float32), np.ones((3, 5), np.float32)), plans=(1, 2))


def test_plans_of_symbolic_sizes_and_strided_arrays_run() -> None:
    @po.op(dynamic=True)
    def total(x: po.i32[M, N]):
        y = po.tensor("y")
        y[i] += x[i, j] * 2
        return y

    x = np.arange(60, dtype=np.int32).reshape(5, 12)[:, ::-3]
    assert compare(total, (x,), plans=range(12)) > 6
