"""Runs of the full product that are cut into stretches, and what they log."""

from __future__ import annotations

from typing import Any

import pytest

import polyopt as po
from tests.operators import product
from tests.operators.catalogue import OPERATORS
from tests.operators.operator import LAYOUTS


def test_the_rows_are_the_whole_product_in_the_same_order_every_time() -> None:
    rows = product.rows()
    assert rows == product.rows() and rows != sorted(rows, key=lambda row: row[0].name)
    names = [(operator.name, layout, dtype) for operator, layout, dtype in rows]
    assert len(set(names)) == len(names) == sum(len(LAYOUTS) * len(operator.dtypes) for operator in OPERATORS)


def test_a_run_counts_its_cases_and_failures_and_says_where_to_go_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checked: list[Any] = []

    def check(_: Any, case: Any) -> None:
        checked.append(case)
        if len(checked) == 2:
            raise po.CompileError("a planted failure", where=None, fix="none")

    monkeypatch.setattr(product, "check", check)
    checker: Any = None
    entry = product.run(7, 0.0, checker)
    assert entry.seeds == ((7, 7),)
    assert entry.counts == {"rows": 1, "cases": len(list(product.cases(product.rows()[7])))}
    assert entry.failures == 1 and f"row 7, {checked[1]}: a planted failure" in capsys.readouterr().out
