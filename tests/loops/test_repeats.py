"""Nests that a program repeats are found, and no other ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from polyopt.dtypes import f32, f64
from polyopt.loops.ir import Alloc, Block, Buffer, Expr, LoopProgram, Stmt, integer
from polyopt.loops.repeats import forms, repeated
from tests.loops.nests import argument, load, loop, op, store


def copied(to: str, var: str, value: Expr) -> Stmt:
    return store(f"{to}_def", to, (var,), value)


def nest(to: str, left: str, right: str, var: str = "i", *, name: str = "add", stop: int = 8, **fields: Any) -> Stmt:
    """`to = left + right`, element by element."""
    return loop(var, stop, copied(to, var, op(name, load(left, var), load(right, var), dtype=f64)), **fields)


def found(*nests: Stmt, buffers: dict[str, Buffer] | None = None) -> list[tuple[int, tuple[str, ...]]]:
    """The position and the buffers of each repeated nest of those."""
    declared = {name: argument(name, 8) for name in "abcdef"} | (buffers or {})
    program = LoopProgram("op", tuple(declared.values()), (), (), ("f",), Block(nests))
    positions = {id(nest): position for position, nest in enumerate(nests)}
    return [(positions[id(one)], form.buffers) for one, form in repeated(forms(program))]


def test_nests_over_other_buffers_and_variables_are_the_same() -> None:
    nests = nest("c", "a", "b"), nest("d", "b", "c", "k"), nest("e", "d", "a")
    assert found(*nests) == [(0, ("c", "a", "b")), (1, ("d", "b", "c")), (2, ("e", "d", "a"))]


@pytest.mark.parametrize(
    "other",
    [
        nest("d", "b", "b"),
        nest("d", "d", "b"),
        nest("d", "b", "c", stop=7),
        nest("d", "b", "c", name="sub"),
        nest("d", "b", "c", kind="vector"),
        nest("d", "b", "c", step=2),
    ],
    ids=["one operand twice", "the result read", "another bound", "another operation", "another kind", "another step"],
)
def test_what_differs_by_more_than_names_is_something_else(other: Stmt) -> None:
    assert found(nest("c", "a", "b"), other) == []


@pytest.mark.parametrize(
    "buffer",
    [
        argument("d", 9),
        argument("d", 8, dtype=f32),
        replace(argument("d", 8), aligned=True),
        replace(argument("d", 8), strides=(integer(8),)),
        replace(argument("d", 8), space="workspace"),
    ],
    ids=["shape", "dtype", "aligned", "strides", "space"],
)
def test_buffers_are_declared_alike(buffer: Buffer) -> None:
    assert found(nest("c", "a", "b"), nest("d", "a", "b"), buffers={"d": buffer}) == []
    assert found(nest("c", "a", "b"), nest("d", "a", "b"))


def test_a_variable_is_no_size_of_the_same_name() -> None:
    inside = loop("i", 8, loop("k", 8, copied("c", "k", load("a", "i"))))
    assert found(inside, loop("i", 8, loop("n", 8, copied("c", "k", load("a", "i"))))) == []
    assert found(inside, loop("n", 8, loop("m", 8, copied("d", "m", load("b", "n")))))


def test_what_a_nest_allocates_is_its_own() -> None:
    def with_row(name: str, to: str, length: int = 8) -> Stmt:
        row = Buffer(name, f64, (integer(length),), "local")
        return loop("i", 8, Alloc(row, Block((copied(name, "i", load("a", "i")), copied(to, "i", load(name, "i"))))))

    assert found(with_row("row", "c"), with_row("other", "d")) == [(0, ("a", "c")), (1, ("a", "d"))]
    assert found(with_row("row", "c"), with_row("other", "d", 16)) == []
