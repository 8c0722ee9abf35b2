"""Every f32 argument of every math function of one operand: `pytest -m exhaustive tests/codegen_c`."""

from __future__ import annotations

import pytest

from tests.codegen_c.exhaustive import MOST_ULP, NAMES, worst_of_all


@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", NAMES)
def test_no_f32_argument_is_off_by_more_than_two_ulp(name: str) -> None:
    greatest, where = worst_of_all(name)
    print(where)  # noqa: T201  # shown by `pytest -s`: the figure that the docstrings quote
    assert greatest <= MOST_ULP, where
