"""Sizes: solved from shapes, checked against each other, and put into programs as numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import polyopt as po
from polyopt import ShapeError, f32
from polyopt.dsl import ir
from polyopt.dsl.bind import solve_sizes, specialise
from polyopt.dsl.signature import read_signature
from polyopt.dsl.text import equation_text
from tests.dsl.tracing import program

M, N, K = po.sizes("M N K")
i, j, k, t = po.indices("i j k t")


def solve(function: Callable[..., object], **shapes: tuple[int, ...]) -> dict[str, int]:
    return solve_sizes(read_signature(function), None, shapes)


def matmul(x: f32[M, K], w: f32[K, N]) -> Any:
    return x @ w


def test_sizes_follow_from_shapes() -> None:
    assert solve(matmul, x=(2, 3), w=(3, 4)) == {"M": 2, "K": 3, "N": 4}


def test_two_places_that_disagree_are_both_named() -> None:
    with pytest.raises(ShapeError) as caught:
        solve(matmul, x=(2, 3), w=(5, 4))
    assert caught.value.facts["places"] == ("x.shape[1]", "w.shape[0]")
    assert "K = 3" in caught.value.why and "5" in caught.value.why


def test_affine_extents_are_solved_in_any_order_and_checked() -> None:
    def op(x: f32[2 * N + M], y: f32[M + 1], z: f32[N - 1]) -> Any:
        return x

    assert solve(op, x=(12,), y=(3,), z=(4,)) == {"M": 2, "N": 5}
    with pytest.raises(ShapeError, match=r"x\.shape\[0\]"):
        solve(op, x=(13,), y=(3,), z=(4,))


def test_extents_that_no_size_gives_are_refused() -> None:
    def op(x: f32[2 * N], y: f32[M + 3]) -> Any:
        return x

    with pytest.raises(ShapeError, match="cannot be"):
        solve(op, x=(5,), y=(4,))
    with pytest.raises(ShapeError, match="cannot be"):
        solve(op, x=(4,), y=(2,))


def test_products_and_quotients_are_checked_once_their_sizes_are_known() -> None:
    def op(x: f32[M * N], y: f32[M, N], z: f32[M // 2]) -> Any:
        return y

    assert solve(op, x=(6,), y=(3, 2), z=(1,)) == {"M": 3, "N": 2}
    with pytest.raises(ShapeError, match=r"x\.shape\[0\]"):
        solve(op, x=(7,), y=(3, 2), z=(1,))


def test_sizes_that_do_not_follow_are_refused() -> None:
    def op(x: f32[M + N]) -> Any:
        return x

    with pytest.raises(ShapeError, match="do not follow"):
        solve(op, x=(5,))

    def loop(x: f32[N]) -> Any:
        s = po.index("s", extent=K)
        y = po.tensor("y")
        y[s, i] = x[i]
        return y

    with pytest.raises(ShapeError, match="size 'K'") as caught:
        solve_sizes(read_signature(loop), program(loop), {"x": (3,)})
    assert "int" in caught.value.fix


def test_integer_extents_and_ranks_are_checked() -> None:
    def op(x: f32[N, 3]) -> Any:
        return x

    with pytest.raises(ShapeError) as caught:
        solve(op, x=(5, 4))
    assert caught.value.facts["wanted"] == 3
    with pytest.raises(ShapeError, match="3 dimensions"):
        solve(op, x=(5, 4, 1))


def test_unannotated_parameters_have_sizes_of_their_own() -> None:
    def op(x: Any) -> Any:
        return x + x

    assert solve(op, x=(2, 3)) == {"x_0": 2, "x_1": 3}
    found = program(op, {"x": (f32, 2)})
    assert found.sizes == ("x_0", "x_1")


def test_specialising_replaces_sizes_everywhere() -> None:
    def op(x: f32[M, N]) -> Any:
        y, s = po.tensor("y"), po.index("s", 0, 2 * N)
        y[i, s] = po.when(s < N - 1, po.where(i == M - 1, x[i, N - 1 - s], x[i, s] / N))
        y[i, s] += po.when(s >= N, po.sum(x[i, k] * M, k, where=k < N - 2))
        return y

    found = specialise(program(op), {"M": 4, "N": 3})
    assert not found.sizes
    assert [str(extent) for extent in found.tensor("x").shape or ()] == ["4", "3"]
    assert [equation_text(equation) for equation in found.equations] == [
        "y[i, s] = when(s < 2, where(i == 3, x[i, -s + 2], x[i, s] / 3))  for s in 0..6",
        "y[i, s] += when(s >= 3, sum(x[i, k] * 4, k, where=k < 1))  for s in 0..6",
    ]


def test_specialising_some_sizes_keeps_the_others() -> None:
    found = specialise(program(matmul), {"K": 3})
    assert found.sizes == ("M", "N")


def test_a_choice_that_the_sizes_decide_keeps_one_branch() -> None:
    def op(x: f32[N]) -> Any:
        y = po.tensor("y")
        y[i] = po.where(N > 4, x[i], -x[i])
        return y

    assert not any(isinstance(n, ir.Where) for n in ir.walk(specialise(program(op), {"N": 5}).equations[0].value))
