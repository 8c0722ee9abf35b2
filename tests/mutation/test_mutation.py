"""The ordinary run's share of planted faults; `python -m tests.mutation.harness` plants many more."""

from __future__ import annotations

import sys

import pytest

from tests.mutation.harness import CLASSES, campaign

FAULTS = 5


@pytest.mark.skipif(not hasattr(sys, "getdlopenflags"), reason="mutants of machine code run in forked children")
@pytest.mark.parametrize("name", CLASSES)
def test_planted_faults_are_killed(name: str) -> None:
    kills = campaign(FAULTS, 1, (name,))
    assert kills.planted(name) == FAULTS, f"too few faults could be planted:\n{kills.table()}"
    assert kills.killed(name) == FAULTS, "\n".join(kills.survivors)
