"""isl's AST held against the domains: iterations that it loses are seen, and run all the same."""

from __future__ import annotations

import itertools
from typing import Any

import islpy as isl
import numpy as np
import pytest

import polyopt as po
from polyopt import f32
from polyopt.fuzz.check import compare
from polyopt.loops import lower as loops_lower
from polyopt.loops import runs
from polyopt.poly.scop import Scop
from polyopt.poly.tree import Tree

M, N, K = po.sizes("M N K")
i, j = po.indices("i j")


def misread(domain: isl.Set) -> list[str]:
    """What isl loses of a domain that is scanned in the order of its dimensions."""
    node = isl.Schedule.from_domain(isl.UnionSet.from_set(domain)).get_root().child(0)
    names = [str(domain.get_dim_name(isl.dim_type.set, n)) for n in range(domain.dim(isl.dim_type.set))]
    for name in names:
        row = isl.MultiUnionPwAff(f"[{{ S[{', '.join(names)}] -> [({name})] }}]")
        node = node.insert_partial_schedule(row).child(0)
    ast = isl.AstBuild.from_context(isl.Set("{ : }")).node_from_schedule(node.get_schedule())
    return runs.misread([ast], {"S": domain}, isl.Set("{ : }"))


def test_iterations_that_isl_loses_are_seen() -> None:
    assert misread(isl.Set("{ S[h, r] : 0 <= h <= 7 and 0 < r <= 4 and exists e: 2e = r + floor(h/4) }")) == ["S"]
    assert misread(isl.Set("{ S[h, r] : 0 <= h < 8 and 0 <= r < 8 and exists e: 5e = r + 2*floor(h/2) }")) == ["S"]
    assert misread(isl.Set("{ S[h, r] : 0 <= h <= 7 and 0 < r <= 4 and exists e: 2e = r + h }")) == []
    assert misread(isl.Set("{ S[h, r] : 0 <= h <= 7 and h // 2 <= r <= h and r % 3 != 1 }")) == []


@po.op
def checker(x: f32[N, M]) -> object:
    z = po.tensor("z")
    z[i, j] = po.when((i // 4 + j) % 2 == 0, x[i, j] * 2)
    z[i, j] = po.when((i // 4 + j) % 2 != 0, -x[i, j])
    return z


@pytest.mark.parametrize("width", range(1, 9))
def test_a_board_has_all_of_its_squares(width: int) -> None:
    x = np.arange(1, 8 * width + 1, dtype=np.float32).reshape(8, width)
    rows, columns = np.arange(8)[:, None], np.arange(width)
    np.testing.assert_array_equal(checker(x), np.where((rows // 4 + columns) % 2 == 0, 2 * x, -x))


def test_the_report_says_what_runs_under_guards() -> None:
    x = np.ones((8, 4), np.float32)
    for target in ("", "cuda"):
        report = str(checker.lower(x, **({"target": target} if target else {})).report())
        assert "z, z_1 run in loops over a hull of their points, under guards" in report
    assert "under guards" not in str(strided(1, 1, 1).lower(x).report())


def strided(modulus: int, factor: int, divisor: int) -> po.Op:
    @po.op
    def op(x: f32[M, N]):
        y = po.tensor("y")
        y[i] += po.when((i // divisor * factor + j) % modulus == 0, x[i, j])
        return y

    return op


@pytest.mark.parametrize(("modulus", "factor", "divisor"), [*itertools.product((2, 3, 5), (1, 2), (2, 3, 4))])
def test_sums_over_strides_that_begin_at_a_floor(modulus: int, factor: int, divisor: int) -> None:
    op = strided(modulus, factor, divisor)
    rows, columns = np.arange(9)[:, None], np.arange(8)
    for width in (2, 4, 8):
        x = np.arange(1, 9 * width + 1, dtype=np.float32).reshape(9, width)
        chosen = (rows // divisor * factor + columns[:width]) % modulus == 0
        np.testing.assert_array_equal(op(x), (x * chosen).sum(1))


def test_the_same_on_open_sizes_and_on_a_gpu(polyopt_check: Any) -> None:
    @po.op(dynamic=True)
    def board(x: f32[N, M]):
        z = po.tensor("z")
        z[i, j] = po.when((i // 4 + j) % 2 == 0, x[i, j] * 2)
        z[i, j] = po.when((i // 4 + j) % 2 != 0, -x[i, j])
        return z

    for width in (1, 3, 4, 7):
        polyopt_check(board, N=8, M=width)
    polyopt_check(checker, N=8, M=4, target="cuda")


def test_rows_of_a_drawn_schedule_that_begin_at_floors() -> None:
    """Tiles of `3*i + 3*j` by twos: four of six elements were written."""
    high, wide = po.index("i", extent=M), po.index("j", extent=N)

    @po.op
    def ones(x: po.i64[M, N]):
        y = po.tensor("y", shape=(M, N), dtype=po.i64)
        y[high, wide] = po.cast(1, po.i64)
        return y

    compare(ones, (np.zeros((2, 3), np.int64),), plans=(694,))


def thirds(x: po.f64[M, N], w: po.f64[K]):
    column, term = po.index("column", extent=N), po.index("term", extent=K)
    row, summed, beside = po.index("row", extent=M), po.index("summed", extent=M), po.index("beside", extent=N)
    y = po.tensor("y", shape=(M, N), dtype=po.i8)
    below = po.cast(w[(term + 1) // 2] + x[summed, beside] < po.cast(1, po.f64), po.i8)
    y[row, column] += po.cast(po.sum(below, summed, where=~((term // 3 + term) % 3 == 1)), po.i8)
    return y


def test_divisions_that_isl_failed_at() -> None:
    """Its code generator ended at "input involves unknown divs", as equalities were not in sight."""
    op, x, w = po.op(thirds), np.random.default_rng(1).random((1, 2)), np.random.default_rng(2).random(8)
    np.testing.assert_array_equal(op(x, w), op.reference(x, w))
    assert "under guards" not in str(op.lower(x, w).report())


def test_divisions_that_isl_fails_at_run_under_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    generated, failed = loops_lower._scanned, []

    def failing(scop: Scop, tree: Tree) -> tuple[isl.AstNode, ...]:
        if floors := [s for s in scop.statements if loops_lower._has_floors(s.domain)]:
            failed.append(floors)
            raise isl.Error("input involves unknown divs")
        return generated(scop, tree)

    monkeypatch.setattr(loops_lower, "_scanned", failing)
    op, x, w = po.op(thirds), np.random.default_rng(1).random((1, 2)), np.random.default_rng(2).random(9)
    assert "under guards" in str(op.lower(x, w).report())
    assert failed
    np.testing.assert_array_equal(op(x, w), op.reference(x, w))
