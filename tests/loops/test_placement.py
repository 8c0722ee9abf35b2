"""Where private buffers are allocated: every use inside exactly one allocation in force, one per iteration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyopt as po
from polyopt import i64
from polyopt.dsl.ir import Const
from polyopt.dtypes import f64
from polyopt.loops.interpret import interpret
from polyopt.loops.ir import Alloc, Block, Buffer, For, If, LoopProgram, Stmt, buffers_used, stores_of, walk
from polyopt.loops.placement import Placement
from polyopt.loops.verify import verify
from tests.loops.nests import argument, ints, less, load, loop, op, store

ONE = Buffer("a", f64, ints(1), "local")


def make(at: str | int, value: float = 1.0) -> Stmt:
    """`a[0] = value`"""
    return replace(store("make", "a", (0,), Const(value, f64)), instance=ints(at))


def use(at: str | int) -> Stmt:
    """`out[at] = a[0] + at`"""
    return store("use", "out", (at,), op("add", load("a", 0), load("x", at), dtype=f64))


def placed(body: Stmt, *scope: str) -> Stmt:
    uses = {id(store): buffers_used(store) for store in stores_of(body)}
    return Placement(ONE, scope, {v: v.rstrip("_0123456789") for v in ("i", "j", "i_2")}, uses).place(body)


def run(body: Stmt, size: int = 4, seed: int | None = None) -> np.ndarray:
    """The result of a body that is a well-formed loop program."""
    program = LoopProgram("p", (argument("x", size), argument("out", size)), (), (), ("out",), body)
    verify(program)
    x, out = np.arange(float(size)), np.zeros(size)
    interpret(program, {"x": x, "out": out}, seed=seed)
    return out


def allocations(body: Stmt) -> list[Stmt]:
    return [inner for inner in walk(body) if isinstance(inner, Alloc)]


def test_a_buffer_is_allocated_inside_its_loop_around_its_uses() -> None:
    body = placed(loop("i", 4, Block((make("i"), use("i")))), "i")
    assert isinstance(body, For) and isinstance(body.body, Alloc)
    assert run(body).tolist() == [1, 2, 3, 4]


def test_a_loop_that_does_not_use_the_buffer_gets_none() -> None:
    other = store("other", "out", ("i",), load("x", "i"))
    body = placed(Block((loop("i", 4, other), loop("i_2", 4, Block((make("i_2"), use("i_2")))))), "i")
    assert len(allocations(body)) == 1
    assert allocations(loop("i", 4, other)) == []


def test_every_piece_of_a_cut_loop_gets_its_own_allocation() -> None:
    pieces = Block((loop("i", 2, Block((make("i"), use("i")))), loop("i_2", 4, Block((make("i_2"), use("i_2"))), 2)))
    body = placed(pieces, "i")
    assert len(allocations(body)) == 2
    assert run(body).tolist() == [1, 2, 3, 4]


def test_a_loop_that_isl_left_out_counts_as_one_iteration() -> None:
    body = placed(loop("j", 4, Block((make("j"), use("j")))), "i", "j")
    assert isinstance(body, For) and isinstance(body.body, Alloc)
    body = placed(Block((make(0), use(0))), "i")
    assert isinstance(body, Alloc)


@pytest.mark.parametrize("kind", ["serial", "parallel"])
def test_what_isl_took_out_of_the_loop_shares_one_allocation_with_it(kind: str) -> None:
    """The first iteration's value is made before the loop: all uses share a buffer, so iterations run in order."""
    first = If(less("i", 1), use("i"), Block((make("i", 2.0), use("i"))))
    body = placed(Block((make(0), loop("i", 4, first, kind=kind))), "i")
    assert len(allocations(body)) == 1 and isinstance(body, Alloc)
    assert not any(isinstance(inner, For) and inner.kind == "parallel" for inner in walk(body))
    assert run(body, seed=3).tolist() == [1, 3, 4, 5]


@pytest.mark.parametrize("meet", [False, True])
def test_pieces_of_a_loop_that_meet_in_an_iteration_share_one_allocation(meet: bool) -> None:
    """isl may end one piece of a loop and begin the next inside the same iteration."""
    first = loop("i", 2 if meet else 1, Block((make("i", 2.0), If(less("i", 1), use("i")))), kind="parallel")
    rest = Block((If(less(1 if meet else 0, "i_2"), make("i_2")), use("i_2")))
    body = placed(Block((first, loop("i_2", 4, rest, 1, kind="parallel"))), "i")
    assert len(allocations(body)) == (1 if meet else 2)
    assert any(isinstance(inner, For) and inner.kind == "parallel" for inner in walk(body)) is not meet
    assert run(body, seed=3).tolist() == ([2, 3, 3, 4] if meet else [2, 2, 3, 4])


def test_what_was_taken_out_keeps_other_loops_parallel() -> None:
    inner = loop("j", 4, store("other", "out", ("j",), load("x", "j")), kind="parallel")
    nested = Alloc(Buffer("b", f64, ints(1), "local"), If(less("i", 1), Block((inner, use("i")))))
    body = placed(Block((make(0), loop("i", 4, nested, kind="parallel"))), "i")
    kinds = {inner.var: inner.kind for inner in walk(body) if isinstance(inner, For)}
    assert kinds == {"i": "serial", "j": "parallel"}


def test_uses_under_conditions_are_found() -> None:
    body = placed(loop("i", 4, If(less("i", 2), Block((make("i"), use("i"))), Block((make("i"), use("i"))))), "i")
    assert len(allocations(body)) == 1
    assert run(body).tolist() == [1, 2, 3, 4]


def test_a_loop_inside_a_condition_gets_its_allocation() -> None:
    piece = loop("i", 4, Block((make("i"), use("i"))))
    body = placed(If(less(0, 1), piece, piece), "i")
    assert isinstance(body, If) and len(allocations(body)) == 2


def test_an_operator_whose_first_iteration_leaves_its_loop_gives_right_numbers() -> None:
    """Only row 0 reduces, all rows are computed: isl starts the reduction before the loop over the rows."""
    m, n = po.sizes("M N")

    @po.op
    def first_row(x: i64[m, n], y: i64[n]):
        i, j, k = po.index("i", extent=m), po.index("j", extent=n), po.index("k", extent=n)
        t, out = po.tensor("t", shape=(m, n)), po.tensor("out", shape=(m, n))
        t[0, j] = y[j]
        later = po.index("later", 1, m)
        t[later, j] = x.clamp()[j, later]
        out[i, j] = po.max(t.clamp()[k, i] + y[k], k) * 2
        return out

    numbers = np.random.default_rng(0)
    for rows, columns in ((1, 5), (2, 5), (5, 2)):
        x, y = numbers.integers(-9, 9, (rows, columns)), numbers.integers(-9, 9, columns)
        np.testing.assert_array_equal(first_row(x, y), first_row.reference(x, y))
