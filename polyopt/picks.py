"""Decisions that may be taken otherwise than a cost model takes them.

A decider that weighs alternatives asks `choose(question, preferred, ranked)` and as a rule gets back what it prefers.
Inside `steered(picks)` a recorded answer replaces the preference, and what was asked is noted, with the alternatives
from the most to the least promising: that is all that a tuner knows, so a new kind of choice is one call in a decider.
Inside `decided(function)` the function answers: the fuzzer draws.
A pick changes a plan and never code; what comes of it is proved like every schedule.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import TypeVar

from polyopt.classes import dataclass

_log = logging.getLogger(__name__)
Option = TypeVar("Option")


@dataclass(frozen=True, slots=True, order=True)
class Pick:
    """An answer to take. question: as the decider asks it; answer: one of the options, as text"""

    question: str
    answer: str

    def __str__(self) -> str:
        return f"{self.question}: {self.answer}"


@dataclass(frozen=True, slots=True)
class Question:
    """What a decider asked. options: as text, the most promising first; preferred: the cost model's answer"""

    text: str
    options: tuple[str, ...]
    preferred: str

    def __str__(self) -> str:
        return f"{self.text}: {self.preferred} of {', '.join(self.options)}"


@dataclass(slots=True)
class Steering:
    """Answers in force, and the questions that came.

    questions: each once, in the order in which they came
    decide:    answers what has no answer yet; None: the cost models do
    """

    answers: dict[str, str]
    questions: dict[str, Question] = field(default_factory=dict)
    decide: Callable[[Question], str] | None = None

    def choose(
        self, question: str, preferred: Option, options: Iterable[Option], as_text: Callable[[Option], str]
    ) -> Option:
        by_text = {as_text(option): option for option in options}
        wanted = as_text(preferred)
        by_text.setdefault(wanted, preferred)
        self.questions[question] = asked = Question(question, tuple(by_text), wanted)
        if self.decide is not None and self.answers.get(question) not in by_text:
            self.answers[question] = self.decide(asked)
        answer = self.answers.get(question, wanted)
        if answer not in by_text:
            _log.warning("%s: the recorded answer %s is no option any more", question, answer)
            return preferred
        return by_text[answer]


_current: ContextVar[Steering | None] = ContextVar("polyopt_picks", default=None)


def choose(
    question: str,
    preferred: Option,
    ranked: Callable[[], Iterable[Option]],
    as_text: Callable[[Option], str] = str,
) -> Option:
    """The option to take: `preferred`, unless a pick says otherwise.

    question: names the place and the kind of choice, the same for the same program; asked again it gets the same answer
    ranked:   gives the options, the most promising first; called only where somebody listens
    as_text:  a name of an option that is the same in every run
    """
    steering = _current.get()
    return preferred if steering is None else steering.choose(question, preferred, ranked(), as_text)


def agreed(question: str, preferred: bool) -> bool:
    """Whether to do what may be done and what a cost model likes or not, unless a pick says otherwise."""
    return choose(question, preferred, lambda: (preferred, not preferred))


@contextmanager
def steered(picks: Sequence[Pick] | None) -> Iterator[Steering | None]:
    """Let the picks decide inside the block, and note what is asked; None leaves everything as it is outside."""
    if picks is None:
        yield None
        return
    with _steering(Steering({pick.question: pick.answer for pick in picks})) as steering:
        yield steering


@contextmanager
def decided(decide: Callable[[Question], str]) -> Iterator[None]:
    """Let a function decide inside the block, for all whose options have no picks; the same where the options are."""
    with _steering(Steering({}, decide=decide)):
        yield


@contextmanager
def _steering(steering: Steering) -> Iterator[Steering]:
    token = _current.set(steering)
    try:
        yield steering
    finally:
        _current.reset(token)
