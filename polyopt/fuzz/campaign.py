"""Checks cases by the seed until time is up, and shrinks what fails."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import field, replace

from polyopt.classes import dataclass
from polyopt.fuzz.case import Case
from polyopt.fuzz.check import Outcome
from polyopt.fuzz.generate import campaign_case
from polyopt.fuzz.shrink import shrink
from polyopt.fuzz.worker import Worker


@dataclass(frozen=True, slots=True)
class Finding:
    """A failure: the seed, the smallest case that fails alike, and what that one does.

    The case as drawn, and what it did, where nothing fails alike when it runs again.
    """

    seed: int
    smallest: Case
    outcome: Outcome

    def __str__(self) -> str:
        return f"seed {self.seed}: {self.outcome.kind}: {self.outcome.detail}\n\n{self.smallest.script()}"


@dataclass(slots=True)
class Campaign:
    """A run over the seeds from `seed` on.

    counts:     of verdicts
    rejections: of kinds of errors
    kernels:    how many were right, the plans that were drawn among them
    """

    seed: int
    counts: Counter[str] = field(default_factory=Counter)
    rejections: Counter[str] = field(default_factory=Counter)
    kernels: int = 0

    @property
    def total(self) -> int:
        return self.counts.total()

    def run(self, seconds: float) -> Iterator[Finding | None]:
        """Check one case after another: None for a case that is as it should be, else what was found."""
        end = time.monotonic() + seconds
        with Worker() as worker:
            while time.monotonic() < end:
                yield self.step(worker)

    def step(self, worker: Worker) -> Finding | None:
        """Check the next case."""
        seed = self.seed + self.total
        case = campaign_case(seed)
        outcome = worker.check(case)
        self.counts[outcome.verdict] += 1
        self.kernels += outcome.kernels
        if outcome.verdict == "rejected":
            self.rejections[outcome.kind] += 1
        return _finding(worker, case, outcome) if outcome.verdict == "fails" else None


def _finding(worker: Worker, case: Case, outcome: Outcome) -> Finding:
    def fails(candidate: Case) -> bool:
        found = worker.check(candidate)
        return (found.verdict, found.kind) == (outcome.verdict, outcome.kind)

    if outcome.kind == "hang":
        return Finding(case.seed, case, outcome)
    smallest = shrink(case, fails)
    again = worker.check(smallest)
    if again.verdict != "fails":
        again = replace(outcome, detail=f"{outcome.detail}\nseen once: it agrees when it runs again")
    return Finding(case.seed, smallest, again)
