"""The log of what was tried: a line of totals for each figure and commit, however long the runs were."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from polyopt.classes import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """What was tried for one figure on one commit.

    figure:   what was counted: "programs", "verdicts", "faults"
    counts:   totals by name
    failures: how many were not as they should be
    seeds:    ranges of seeds, first and last
    day:      of the last run
    """

    figure: str
    commit: str
    counts: dict[str, int]
    failures: int = 0
    seeds: tuple[tuple[int, int], ...] = ()
    day: str = field(default_factory=lambda: datetime.now(UTC).date().isoformat())

    def joined(self, other: Entry) -> Entry:
        """Both runs as one; ranges of seeds that follow each other are one range."""
        counts = {
            name: self.counts.get(name, 0) + other.counts.get(name, 0) for name in {**self.counts, **other.counts}
        }
        seeds: list[tuple[int, int]] = []
        for first, last in sorted((*self.seeds, *other.seeds)):
            if seeds and first <= seeds[-1][1] + 1:
                seeds[-1] = seeds[-1][0], max(last, seeds[-1][1])
            else:
                seeds.append((first, last))
        return replace(self, counts=counts, failures=self.failures + other.failures, seeds=tuple(seeds), day=other.day)


def read(path: Path) -> list[Entry]:
    """The entries of a log; none where there is no file, or an empty one."""
    if not path.exists() or not path.stat().st_size:
        return []
    return [_from_json(item) for item in json.loads(path.read_text(encoding="utf-8"))]


def add(path: Path, entry: Entry) -> None:
    """Puts a run into a log, joined with what is there for the same figure and commit."""
    entries = read(path)
    for number, old in enumerate(entries):
        if (old.figure, old.commit) == (entry.figure, entry.commit):
            entries[number] = old.joined(entry)
            break
    else:
        entries.append(entry)
    lines = ",\n".join(json.dumps(asdict(item)) for item in entries)
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def commit() -> str:
    """The commit of the working tree at hand, short; "unknown" outside a repository."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short=10", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parent,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def _from_json(item: dict[str, Any]) -> Entry:
    return Entry(**{**item, "seeds": tuple((first, last) for first, last in item["seeds"])})
