"""The ordinary run's share of verdicts on random schedules; `python -m tests.fuzz.verdicts` gives many more."""

from __future__ import annotations

import pytest

from polyopt.poly import legality
from tests.fuzz.verdicts import Verdicts, judge

OPERATORS, BLOCKS = 8, 3


@pytest.mark.parametrize("block", range(BLOCKS))
def test_no_schedule_is_proved_that_enumeration_finds_illegal(block: int) -> None:
    found = Verdicts()
    for seed in range(block * OPERATORS, (block + 1) * OPERATORS):
        judge(seed, found)
    assert not found.false_legal, found.false_legal[0]
    assert found.counts["legal"] > found.total / 5, f"one-sided: {found}"
    assert found.counts["illegal"] > found.total / 20, f"one-sided: {found}"


def test_a_proof_that_leaves_out_the_order_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legality._Prover, "check_order", lambda self, dependence: None)
    found = Verdicts()
    for seed in range(8):
        judge(seed, found, trees=20)
    assert found.false_legal
