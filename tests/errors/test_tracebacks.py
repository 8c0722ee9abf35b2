"""The traceback of an error that is the user's to fix holds the user's lines alone."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f64

N = po.size("N")
i = po.index("i")


@po.op
def shifted(x: f64[N]):
    y = po.tensor("y")
    j = po.index("j", extent=N)
    y[j] = x[j + 1]
    return y


@po.op
def branches(x: f64[N]):
    y = po.tensor("y")
    y[i] = x[i] if x[i] > 0 else 0
    return y


@po.op
def calls_another(x: f64[N]):
    return branches(x) + 1


class Owner:
    @po.op
    def shifted(self, x: f64[N]):
        return x[9]


def badly_annotated() -> po.Op:
    @po.op
    def op(x: f64[2.5]):
        return x

    return op


def badly_annotated_with_options() -> po.Op:
    @po.op(dynamic=True)
    def op(x: f64[2.5]):
        return x

    return op


X = np.ones(3)
MISTAKES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a call": (lambda: shifted(X), []),
    "an argument": (lambda: shifted(X, X), []),
    "an equation": (lambda: branches(X), ["branches"]),
    "an op in an op": (lambda: calls_another(X), ["calls_another", "branches"]),
    "a method": (lambda: Owner().shifted(X), []),
    "lower": (lambda: shifted.lower(N=3), []),
    "compile": (lambda: shifted.compile(N=3), []),
    "reference": (lambda: shifted.reference(X), []),
    "einsum": (lambda: po.einsum("ij->i", X), []),
    "an annotation": (badly_annotated, []),
    "an annotation under options": (badly_annotated_with_options, []),
    "a backend": (lambda: shifted.on("cuda")(X), []),
}


def functions(call: Callable[[], Any]) -> list[str]:
    """The functions in the traceback below the call itself."""
    with pytest.raises(po.PolyoptError) as raised:
        call()
    return [entry.name for entry in traceback.extract_tb(raised.value.__traceback__)][2:]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_traceback_shows_the_users_lines_alone(mistake: str) -> None:
    call, lines = MISTAKES[mistake]
    assert functions(call) == lines


def test_all_lines_are_there_where_they_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYOPT_TRACEBACK", "1")
    assert "kernel_for" in functions(lambda: shifted(X))
