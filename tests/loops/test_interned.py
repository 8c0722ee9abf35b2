"""Equal parts of an expression as one object, and kernels that compute them once."""

from __future__ import annotations

import numpy as np

import polyopt as po
from polyopt import f64, picks
from polyopt.dsl.ir import Cast, Const, Op, Var
from polyopt.dtypes import bool_, f32, i64
from polyopt.loops.interned import interned
from polyopt.loops.ir import Check, Expr, Load, walk_expr

I, J = Var("i", i64), Var("j", i64)


def element(index: Expr, mask: Expr | None = None, checks: tuple[Check, ...] = ()) -> Load:
    return Load("x", (index,), f32, mask, checks)


def total(*parts: Expr) -> Expr:
    found, *others = parts
    for part in others:
        found = Op("add", (found, part), f32)
    return found


def test_equal_parts_are_one_object_and_others_stay_apart() -> None:
    is_inside = Op("lt", (Var("i", i64), Var("j", i64)), bool_)
    different = (
        element(I),
        element(J),
        element(Op("add", (I, Const(1, i64)), i64)),
        element(I, is_inside),
        element(I, None, (Check(0, 3),)),
        Const(0.0, f32),
        Const(-0.0, f32),
        Cast(Load("n", (I,), i64), f32),
    )
    again = tuple(element(Var("i", i64), Op("lt", (Var("i", i64), Var("j", i64)), bool_)) for _ in range(2))
    whole = total(*different, *again, *different)
    found = interned(whole)
    assert found == whole
    assert len({id(node) for node in walk_expr(found)}) == len(set(walk_expr(whole)))


def test_neighbors_that_many_equations_share_are_loaded_once_in_each() -> None:
    """Every one of nine equations held every read some twenty times, and LLVM was given them all."""
    H, W = po.sizes("H W")
    h, w = po.index("h", extent=H), po.index("w", extent=W)

    @po.op
    def op(f: f64[9, H, W]):
        g, at = po.tensor("g"), f.wrap()
        cells = [at[n, h - n % 3 + 1, w - n // 3 + 1] for n in range(9)]
        density = sum(cells[1:], cells[0])
        speed = sum((cell * n for n, cell in enumerate(cells)), 0.0) / density
        for n in range(9):
            g[n, h, w] = cells[n] + density * (1 + n * speed + speed * speed)
        return g

    f = np.random.default_rng(0).random((9, 4, 12))
    cells = np.stack([np.roll(f[n], (n % 3 - 1, n // 3 - 1), (0, 1)) for n in range(9)])
    density, n = cells.sum(0), np.arange(9.0)[:, None, None]
    speed = (cells * n).sum(0) / density
    np.testing.assert_allclose(op(f), cells + density * (1 + n * speed + speed * speed), rtol=1e-12)
    shared = op.lower(H=40, W=400, target="avx2").source("llvm")
    with picks.decided(lambda asked: "False" if " beside " in asked.text else asked.preferred):
        text = op.lower(H=40, W=401, target="avx2").source("llvm")
    assert text.count("fdiv") == 36, "each equation divides once in each of its four loops"
    assert text.count(" load ") < 300
    assert shared.count("fdiv") < 36 and shared.count(" load ") < 300, "equations that share loops divide once for all"
