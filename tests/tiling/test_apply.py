"""Applying a tiling plan: strips, point loops moved innermost, lanes, and names that stay unique."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

import polyopt as po
from polyopt import f32
from polyopt.dsl.affine import Affine, axis
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree, loops
from polyopt.tiling.apply import apply
from polyopt.tiling.plan import NestPlan, TilingPlan

L, M, N, K = po.sizes("L M N K")
i, j, k, i_tile = po.indices("i j k i_tile")


def loop(name: str, body: Tree, *statements: str, **fields: Any) -> Loop:
    """A loop whose row is the axis of its name in every statement."""
    axis_name = name.partition("#")[0]
    return Loop(name, tuple((s, axis(axis_name)) for s in statements), body, **fields)


def plan(*chain: str, order: tuple[str, ...] = (), rows: str | None = None, vector: str | None = None, **tiles: int):
    return NestPlan(chain, order or chain, tuple(tiles.items()), rows, vector, "a test")


def rows_of(tree: Tree, statement: str) -> list[tuple[str, str, Affine]]:
    """(name, kind, row) of the loops around a statement, outermost first."""
    return [(one.name, one.kind, one.row(statement)) for one in loops(tree) if statement in one.statements]


def test_a_tree_without_plans_stays_as_it_is() -> None:
    tree = Sequence((loop("i", Leaf("S"), "S", coincident=True), Leaf("T")))
    assert apply(tree, TilingPlan(())) == tree


def test_a_tiled_loop_becomes_a_loop_over_first_points_around_a_point_loop() -> None:
    tree = loop("i", Leaf("S"), "S", coincident=True)
    tiled = apply(tree, TilingPlan((plan("i", i=8),)))
    assert rows_of(tiled, "S") == [("i_tile", "serial", axis("i") // 8 * 8), ("i", "serial", axis("i"))]


def test_rows_and_lanes_move_inside_the_reduction() -> None:
    body = Sequence((Leaf("init"), loop("k", Leaf("update"), "update", reduction=True), Leaf("out")))
    tree = loop("i", loop("j", body, "init", "update", "out", coincident=True), "init", "update", "out")
    tiled = apply(tree, TilingPlan((plan("i", "j", rows="i", vector="j", i=6, j=16),)))
    assert [(name, kind) for name, kind, _ in rows_of(tiled, "update")] == [
        ("i_tile", "serial"),
        ("j_tile", "serial"),
        ("k", "serial"),
        ("i", "unrolled"),
        ("j", "vector"),
    ]
    for around in ("init", "out"):
        assert [kind for _, kind, _ in rows_of(tiled, around)] == ["serial", "serial", "unrolled", "vector"]


def test_a_vector_loop_without_a_tile_moves_innermost_whole() -> None:
    tree = loop("i", loop("j", Leaf("S"), "S", coincident=True), "S", coincident=True)
    tiled = apply(tree, TilingPlan((plan("i", "j", order=("j",), vector="i"),)))
    assert [(name, kind) for name, kind, _ in rows_of(tiled, "S")] == [("j", "serial"), ("i", "vector")]
    moved = apply(tree, TilingPlan((plan("i", "j", order=("j", "i"), vector="i", i=4),)))
    assert [(name, kind) for name, kind, _ in rows_of(moved, "S")] == [
        ("j", "serial"),
        ("i_tile", "serial"),
        ("i", "vector"),
    ]


def test_nests_inside_a_nest_are_tiled_too() -> None:
    inner = loop("j", Leaf("S"), "S", coincident=True)
    tree = loop("i", Sequence((inner, Leaf("T"))), "S", "T", coincident=True)
    tiled = apply(tree, TilingPlan((plan("i"), plan("j", j=4, vector="j"))))
    assert [name for name, _, _ in rows_of(tiled, "S")] == ["i", "j_tile", "j"]


def test_a_loop_over_tiles_never_takes_the_name_of_another_loop() -> None:
    tree = loop("i_tile", loop("i", Leaf("S"), "S", coincident=True), "S", coincident=True)
    tiled = apply(tree, TilingPlan((plan("i_tile", "i", i_tile=2, i=8),)))
    names = Counter(one.name for one in loops(tiled))
    assert set(names.values()) == {1}, names
    assert len(names) == 4


def test_an_index_of_the_user_may_be_called_like_a_loop_over_tiles() -> None:
    @po.op
    def batched(x: f32[L, M, K], w: f32[K, N]):
        y = po.tensor("y")
        y[i_tile, i, j] += x[i_tile, i, k] * w[k, j]
        return y

    numbers = np.random.default_rng(0)
    x, w = numbers.random((3, 20, 9), np.float32), numbers.random((9, 33), np.float32)
    assert batched.lower(x, w).fallback == ""
    np.testing.assert_allclose(batched(x, w), x @ w, rtol=1e-5)
