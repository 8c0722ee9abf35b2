"""The ordinary run's share of planted faults; `python -m tests.mutation.harness` plants many more."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from polyopt.fuzz import log
from tests.mutation import harness
from tests.mutation.harness import CLASSES, campaign

FAULTS = 5


@pytest.mark.skipif(not hasattr(sys, "getdlopenflags"), reason="mutants of machine code run in forked children")
@pytest.mark.parametrize("name", CLASSES)
def test_planted_faults_are_killed(name: str) -> None:
    kills = campaign(FAULTS, 1, (name,))
    assert kills.planted(name) == FAULTS, f"too few faults could be planted:\n{kills.table()}"
    assert kills.killed(name) == FAULTS, "\n".join(kills.survivors)


def test_the_command_logs_what_it_planted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    harness.main(["--count", "2", "--classes", "order", "--log", str(tmp_path / "log.json")])
    (entry,) = log.read(tmp_path / "log.json")
    assert entry.figure == "faults" and entry.failures == 0
    assert entry.counts["order"] == entry.counts["planted"] == entry.counts["killed"] == 2
    assert "2 of 2 faults killed" in capsys.readouterr().out
