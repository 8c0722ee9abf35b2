"""The log of what was tried stays small: one line for each figure and commit."""

from __future__ import annotations

from pathlib import Path

from polyopt.fuzz import log
from polyopt.fuzz.log import Entry


def test_runs_of_one_commit_are_one_line_of_totals(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    log.add(path, Entry("programs", "abc", {"kernels": 10, "programs": 3}, 0, ((0, 2),)))
    log.add(path, Entry("programs", "abc", {"kernels": 20, "programs": 5}, 1, ((3, 7),)))
    log.add(path, Entry("programs", "abc", {"kernels": 1, "programs": 1}, 0, ((100, 100),)))
    log.add(path, Entry("programs", "def", {"kernels": 1, "programs": 1}, 0, ((0, 0),)))
    first, second = log.read(path)
    assert (first.counts, first.failures) == ({"kernels": 31, "programs": 9}, 1)
    assert first.seeds == ((0, 7), (100, 100))
    assert (second.commit, second.seeds) == ("def", ((0, 0),))


def test_there_is_no_log_before_the_first_run(tmp_path: Path) -> None:
    assert log.read(tmp_path / "none.json") == []
