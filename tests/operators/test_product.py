"""Runs of the full product that are cut into stretches, and what they log."""

from __future__ import annotations

import ctypes
import os
import sys

import numpy as np
import pytest

import polyopt as po
from polyopt.testing.check import Checker
from polyopt.testing.guarded import guarded
from tests.operators import children, product
from tests.operators.catalogue import OPERATORS
from tests.operators.operator import LAYOUTS, Case


def test_the_rows_are_the_whole_product_in_the_same_order_every_time() -> None:
    rows = product.rows()
    assert rows == product.rows() and rows != sorted(rows, key=lambda row: row[0].name)
    names = [(operator.name, layout, dtype) for operator, layout, dtype in rows]
    assert len(set(names)) == len(names) == sum(len(LAYOUTS) * len(operator.dtypes) for operator in OPERATORS)


def test_a_run_counts_its_cases_and_failures_and_says_where_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = product.rows()[7]
    cases = list(product.cases(row))

    def check(_: Checker, case: Case) -> None:
        if case == cases[1]:
            raise po.CompileError("a planted failure", where=None, fix="none")
        if case in (cases[2], cases[-1]):
            os._exit(9)

    monkeypatch.setattr(children, "check", check)
    entry = product.run(7, 0.0, Checker())
    assert entry.seeds == ((7, 7),)
    assert entry.counts == {"rows": 1, "cases": len(cases)}
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("row ")]
    assert entry.failures == len(said) == 3
    assert said[0].startswith(f"row 7, {cases[1]}: a planted failure")
    assert [f"row 7, {cases[n]}: the process that checks it ended with 9" for n in (2, -1)] == said[1:]


@pytest.mark.skipif(sys.platform == "win32", reason="arrays are placed between guard pages on POSIX systems alone")
def test_a_kernel_that_leaves_its_arrays_is_a_failure_of_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """No child process of its own catches it here."""
    case = next(product.cases(product.rows()[7]))
    monkeypatch.setattr(children, "check", lambda *_: guarded((4,), np.dtype(np.float32)).array.ctypes.data)
    assert list(children.failed([case], Checker())) == []

    def behind(_: Checker, case: Case) -> None:
        array = guarded((4,), np.dtype(np.float32)).array
        ctypes.memset(array.ctypes.data, 0, 17)

    monkeypatch.setattr(children, "check", behind)
    assert list(children.failed([case], Checker())) == [f"{case}: the process that checks it ended with -11"]
