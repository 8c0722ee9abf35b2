"""Loops over tiles split where the tests of whole tiles change: interior tiles test nothing, all else is the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, u8
from polyopt.dsl.affine import Affine, AxisRef
from polyopt.dsl.ir import Op
from polyopt.loops import interior
from polyopt.loops.affine import as_affine
from polyopt.loops.instances import enumerate_instances
from polyopt.loops.interpret import interpret
from polyopt.loops.ir import Block, Expr, For, LoopProgram, Store, walk, walk_expr
from tests.golden.test_golden import MACHINE
from tests.loops.nests import argument, load, loop, op, store

H, W = po.sizes("H W")
i, j = po.indices("i j")
di, dj = po.index("di", -1, 2), po.index("dj", -1, 2)
far_i, far_j = po.index("far_i", -3, 4), po.index("far_j", -3, 4)  # too many terms to write out: loops inside tiles


@po.op
def around(x: u8[H, W]):
    """All neighbors up to three steps away, on a torus."""
    y = po.tensor("y", shape=(H, W))
    y[i, j] = po.sum(x.wrap()[i + far_i, j + far_j], (far_i, far_j))
    return y


@po.op
def nearest(x: f32[H, W]):
    """The same with the last rows and columns repeated beyond the edge."""
    y = po.tensor("y", shape=(H, W))
    y[i, j] = po.sum(x.clamp()[i + far_i, j + far_j], (far_i, far_j))
    return y


@po.op
def life(world: u8[H, W], steps: int):
    t = po.index("t", extent=steps)
    alive, near = po.tensors("alive near")
    alive[0, i, j] = world[i, j]
    near[t, i, j] = po.sum(alive.wrap()[t, i + di, j + dj], (di, dj)) - alive[t, i, j]
    alive[t + 1, i, j] = po.cast((near[t, i, j] == 3) | ((near[t, i, j] == 2) & (alive[t, i, j] == 1)), u8)
    return alive[steps]


@po.op
def blur(x: f32[H, W], w: f32[5]):
    d = po.index("d", -2, 3)
    across, y = po.tensor("across", shape=(H, W)), po.tensor("y", shape=(H, W))
    across[i, j] = po.sum(w[d + 2] * x.clamp()[i, j + d], d)
    y[i, j] = po.sum(w[d + 2] * across.clamp()[i + d, j], d)
    return y


def quotients(loop: For) -> int:
    """Divisions in subscripts that a loop's variable, or one inside it, moves."""
    moved = {loop.var, *(inner.var for inner in walk(loop.body) if isinstance(inner, For) and inner.kind == "vector")}
    exprs = [e for s in walk(loop.body) if isinstance(s, Store) for e in (*s.indices, s.value)]
    found = [n for e in exprs for n in walk_expr(e) if isinstance(n, Op) and n.name == "floordiv"]
    return sum(any(getattr(part, "name", "") in moved for part in walk_expr(n)) for n in found)


def length_of(loop: For) -> int:
    lower, upper = as_affine(loop.lower), as_affine(loop.upper)
    assert lower is not None and upper is not None
    return (upper - lower).constant


def tile_loops(program: LoopProgram) -> list[For]:
    return [s for s in walk(program.body) if isinstance(s, For) and s.var.startswith("j_tile")]


def test_interior_tiles_of_a_torus_have_no_quotient_for_lanes_to_gather_by() -> None:
    lowering = around.lower(H=16, W=512)
    pieces = tile_loops(lowering.loops)
    assert len(pieces) == 3
    first, inside, last = pieces
    assert quotients(inside) == 0
    assert quotients(first) and quotients(last)


def test_one_tile_between_two_edges_is_interior() -> None:
    pieces = tile_loops(around.lower(H=16, W=96, target=MACHINE).loops)
    assert [len(range(int(p.lower.value), int(p.upper.value), p.step)) for p in pieces] == [1, 1, 1]  # type: ignore[union-attr]  # constants
    assert [quotients(piece) > 0 for piece in pieces] == [True, False, True]


def test_all_but_the_edges_of_life_gather_nothing() -> None:
    """Wide tiles, made for sums that stream, left three tiles of a row, each of which gathered."""
    program = life.lower(H=256, W=256, steps=4, target=MACHINE).loops
    (step,) = (s for s in walk(program.body) if isinstance(s, For) and s.var == "t")
    inside = [s for s in walk(step) if isinstance(s, For) and s.kind == "vector" and not quotients(s)]
    assert [int(s.upper.value) - int(s.lower.value) for s in inside] == [254]  # type: ignore[union-attr]  # constants


@pytest.mark.parametrize(("height", "width"), [(300, 256), (300, 260), (300, 259), (2048, 2048), (70, 40)])
def test_strips_of_columns_gather_nothing_but_at_the_ends_of_rows(height: int, width: int) -> None:
    """A strip between others clamped its columns too, and lanes gathered them: loops over blocks of one step, and
    parallel ones, were left as they are."""
    lowering = blur.lower(H=height, W=width, target=MACHINE)
    lanes = [s for s in walk(lowering.loops.body) if isinstance(s, For) and s.kind == "vector"]
    clamped = [s for s in lanes if "x[i, max(" in str(LoopProgram("lanes", (), (), (), (), s))]
    assert clamped and all(length_of(s) <= 4 for s in clamped)
    assert len(lanes) > len(clamped)


@pytest.mark.parametrize(("height", "width"), [(64, 256), (65, 260), (9, 259), (300, 70)])
def test_blurred_images_stay_the_same(height: int, width: int) -> None:
    x = np.random.default_rng(width).integers(0, 9, (height, width)).astype(np.float32)
    w = np.array([1, 2, 3, 2, 1], np.float32)
    padded = np.pad(x, 2, mode="edge")
    expected = sum(w[a] * w[b] * padded[a : a + height, b : b + width] for a in range(5) for b in range(5))
    np.testing.assert_array_equal(blur(x, w), expected)


@pytest.mark.parametrize("operator", [around, nearest], ids=["torus", "nearest"])
@pytest.mark.parametrize("width", [5, 64, 130, 257])
def test_the_numbers_stay_the_same(operator: po.Op, width: int) -> None:
    dtype: Any = np.uint8 if operator is around else np.float32
    x = np.random.default_rng(width).integers(0, 6, (6, width)).astype(dtype)  # 49 of them fit a byte
    padded = np.pad(x, 3, mode="wrap" if operator is around else "edge").astype(np.int64)
    expected = sum(padded[a : a + 6, b : b + width] for a in range(7) for b in range(7))
    np.testing.assert_array_equal(operator(x), expected)


def test_the_pieces_hold_every_instance_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def instances() -> list[tuple[str, tuple[int, ...]]]:
        return [(one.statement, one.point) for one in enumerate_instances(around.lower(H=1, W=300).loops)]

    pieces = instances()
    monkeypatch.setattr(interior, "split", lambda program: program)
    assert pieces == instances()


@pytest.mark.parametrize("wraps", [False, True])
def test_each_of_two_loops_of_one_name_decides_for_itself(wraps: bool) -> None:
    """What the first of two loops side by side decided was written into the second, whose variable has its name."""
    place = op("sub", "k", op("mul", op("floordiv", "k", 6), 6)) if wraps else op("minimum", "k", 5)

    def lanes(first: str | Expr, last: str | Expr, statement: str) -> For:
        return loop("k", last, store(statement, "y", ("k",), load("x", place)), start=first, kind="vector")

    tile, middle = "k_tile", op("add", "k_tile", 6 if wraps else 5)
    body = Block((lanes(tile, middle, "low"), lanes(middle, op("add", tile, 8), "high")))
    around = loop(tile, 8, body, step=8, kind="serial")
    program = LoopProgram("edge", (argument("x", 6), argument("y", 8)), (), (), ("y",), around)
    y = np.empty(8)
    interpret(interior.split(program), {"x": np.arange(6.0), "y": y})
    np.testing.assert_array_equal(y, [0, 1, 2, 3, 4, 5, *((0, 1) if wraps else (5, 5))])


def test_a_stretch_never_leaves_its_loop() -> None:
    """Iterations before the loop's first one were taken for a part of it."""
    whole = interior.Stretch("j", 0, 4, 0, 6)
    variable = Affine(0, ((AxisRef("j"), 1),))
    for affine, expected in (
        (variable + 100, (0, 6)),
        (variable - 100, (0, 0)),
        (-variable - 100, (0, 0)),
        (-variable + 100, (0, 6)),
        (variable - 5, (2, 6)),
        (-variable + 9, (0, 3)),
    ):
        part = whole.part(affine)
        assert (part.first, part.last) == expected
