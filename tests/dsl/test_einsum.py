"""Specifications of einsum: NumPy's notations, and what NumPy refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import ArgumentError, ShapeError, f32
from polyopt.dsl.einsum import Contraction, parse
from tests.dsl.tracing import equations, program

N = po.size("N")


def parsed(*arguments: Any) -> Contraction:
    return parse(arguments, lambda operand: np.asarray(operand).ndim)[1]


A, B, C = np.zeros((2, 3)), np.zeros((3, 4)), np.zeros((5, 2, 3))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("ij,jk->ik", A, B), "ij,jk->ik"),
        (("ij,jk", A, B), "ij,jk->ik"),
        (("ba", A), "ba->ab"),
        (("ij->", A), "ij->"),
        (("ii", np.zeros((3, 3))), "ii->"),
        ((" i j , j k -> k i ", A, B), "ij,jk->ki"),
        (("...j,jk", C, B), ".2.1j,jk->.2.1k"),
        (("...ij->...ji", C), ".1ij->.1ji"),
        (("i...->...", A), "i.1->.1"),
        ((A, [0, 1], B, [1, 2], [0, 2]), "AB,BC->AC"),
        ((A, [0, 1], B, [1, 2]), "AB,BC->AC"),
        ((C, [Ellipsis, 0], [0, Ellipsis]), ".2.1A->A.2.1"),
    ],
)
def test_notations(arguments: tuple[Any, ...], text: str) -> None:
    assert str(parsed(*arguments)) == text


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("ij", A, B),
        ("ijk->i", A),
        ("i->i", A),
        ("ij->k", A),
        ("ij->ii", A),
        ("i$", A),
        ("...i...", A),
        ("...j->j", C),
        (A, [0, 99]),
        (A, "ij"),
        ("i..j", A),
    ],
)
def test_what_numpy_refuses_is_refused(arguments: tuple[Any, ...]) -> None:
    with pytest.raises((ValueError, TypeError)):
        np.einsum(*arguments)
    with pytest.raises(ArgumentError) as caught:
        parsed(*arguments)
    assert caught.value.fix


def test_extents_of_one_repeat_and_others_must_agree() -> None:
    def op(x: f32[N, 1], y: f32[N, 4]) -> Any:
        return po.einsum("ij,ij->i", x, y)

    assert equations(op) == ["einsum[i] += x[i, 0] * y[i, j]"]

    def wrong(x: f32[N, 3], y: f32[N, 4]) -> Any:
        return po.einsum("ij,ij->i", x, y)

    with pytest.raises(ShapeError, match="label 'j'"):
        program(wrong)


def test_a_diagonal_repeats_its_index() -> None:
    def op(x: f32[N, N]) -> Any:
        return po.einsum("ii->i", x), po.einsum("ii", x)

    assert equations(op) == ["einsum[i] = x[i, i]", "einsum_1[()] += x[i, i]"]


def test_an_operand_of_einsum_in_an_op_is_a_tensor() -> None:
    def op(x: f32[N]) -> Any:
        return po.einsum("i,i", x, 3)

    with pytest.raises(ArgumentError):
        program(op)
