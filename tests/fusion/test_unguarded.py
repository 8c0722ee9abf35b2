"""On a GPU, sums of products under conditions are computed everywhere where that is exact and worth it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, f32, i32
from polyopt.dsl.affine import TRUE, And, Compare, Condition, axis, constant
from polyopt.dsl.ir import Axis, Program
from polyopt.fusion.unguarded import share
from tests.codegen_cuda.test_emulated import needs_compiler

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")


@po.op
def triangle(x: f32[M, K], y: f32[M, K]):
    z = po.tensor("z")
    z[i, j] = po.where(j <= i, 2 * po.sum(x[i, k] * y[j, k], k), -1)
    return z


@po.op(numerics="strict")
def triangle_in_order(x: f32[M, K], y: f32[M, K]):
    z = po.tensor("z")
    z[i, j] = po.where(j <= i, 2 * po.sum(x[i, k] * y[j, k], k), -1)
    return z


@po.op(dynamic=True)
def guarded_of_any_size(x: f32[M, K], y: f32[M, K]):
    scores, z = po.tensors("scores z")
    scores[i, j] = po.when(j <= i, po.sum(x[i, k] * y[j, k], k))
    z[i] = po.sum(po.exp(scores[i, j]), j, where=j <= i)
    return z


@po.op
def guarded(x: f32[M, K], y: f32[M, K]):
    scores, z = po.tensors("scores z")
    scores[i, j] = po.when(j <= i, po.sum(x[i, k] * y[j, k], k))
    z[i] = po.sum(po.exp(scores[i, j]), j, where=j <= i)
    return z


@po.op
def band(x: f32[M, K], y: f32[M, K]):
    z = po.tensor("z")
    z[i, j] = po.where((i - j < 4) & (j - i < 4), po.sum(x[i, k] * y[j, k], k), 0)
    return z


@po.op
def beyond(x: f32[M, K], y: f32[M, K]):
    z = po.tensor("z")
    n = x.shape[0]
    j = po.index("j", 0, n)
    z[i, j] = po.where(i + j < n, po.sum(x[i, k] * y[i + j, k], k), 0)
    return z


@po.op
def looked_up(x: f32[M, K], y: f32[M, K], at: i32[M]):
    z = po.tensor("z")
    z[i, j] = po.where(j <= i, po.sum(x[i, k] * y[at[j], k], k), 0)
    return z


@po.op
def returned(x: f32[M, K], y: f32[M, K]):
    z = po.tensor("z")
    z[i, j] = po.when(j <= i, po.sum(x[i, k] * y[j, k], k))
    z[i, j] = po.when(j > i, 0)
    return z


@po.op
def without_reuse(x: f32[M, N, K]):
    z = po.tensor("z")
    z[i, j] = po.where(j <= i, po.sum(x[i, j, k], k), 0)
    return z


def rewritten(op: Op, sizes: Mapping[str, int], target: str = "sm_80") -> Program:
    return op.lower(target=target, **sizes).rewritten


def test_a_product_in_a_branch_is_a_tensor_of_its_own() -> None:
    program = rewritten(triangle, {"M": 128, "K": 64})
    (made,) = (e for e in program.equations if e.tensor == "z_sum")
    assert made.guard == TRUE and [a.name for a in made.axes] == ["i", "j"]
    assert program.tensor("z_sum").role == "local"


def test_a_local_tensor_of_products_goes_without_its_guard() -> None:
    (equation,) = rewritten(guarded, {"M": 128, "K": 64}).definitions("scores")
    assert equation.guard == TRUE


@pytest.mark.parametrize("op", [band, beyond, looked_up, returned, without_reuse], ids=lambda op: str(op.__name__))
def test_others_keep_their_conditions(op: Op) -> None:
    sizes = {"M": 256, "K": 64} | ({"N": 256} if op is without_reuse else {})
    program = rewritten(op, sizes)
    assert {t.name for t in program.tensors} == {t.name for t in rewritten(op, sizes, "avx2").tensors}


def test_a_processor_computes_what_is_asked_for() -> None:
    assert [t.name for t in rewritten(triangle, {"M": 128, "K": 64}, "avx2").tensors if t.role == "local"] == []


@needs_compiler
@pytest.mark.parametrize("op", [triangle, triangle_in_order, guarded, guarded_of_any_size], ids=lambda op: op.__name__)
def test_results_are_those_of_the_reference(op: Op, polyopt_check: Callable[..., None]) -> None:
    generator = np.random.default_rng(3)
    x, y = (generator.normal(size=(45, 12)).astype(np.float32) for _ in range(2))
    x[40, 3], y[44, 2] = np.inf, np.nan  # what nobody asks for reaches nobody
    polyopt_check(op, x, y, target="cuda")


def share_of(condition: Condition, size: int = 512) -> float:
    return share(condition, tuple(Axis(name, (constant(0),), (constant(size),)) for name in "ij"))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Compare(axis("i") - axis("j"), ">="), 1 / 2),
        (And((Compare(axis("i") - 256, ">="), Compare(axis("j") - 256, ">="))), 1 / 4),
        (Compare(axis("i") - axis("j"), "=="), 1 / 512),
    ],
    ids=["triangle", "quarter", "diagonal"],
)
def test_the_share_of_points_where_a_condition_holds(condition: Condition, expected: float) -> None:
    assert share_of(condition) == pytest.approx(expected, abs=0.03)
