"""Search for a better plan than the cost models', measured: `polyopt tune`, `@po.op(tune=True)`.

What is searched are answers to the questions that the deciders ask (`picks.py`), never code. Each candidate is compiled
like any kernel, its schedule proved, and run in a child process with limits on time and memory; its results must agree
with those of the model's plan, with which it is timed in turns. Questions are taken one after the other, options from
the most promising; what is better by a margin is kept, and where new questions follow from an answer, they are asked
too. The best picks are recorded as text (`records.py`), and later compiles use them.
"""

from __future__ import annotations

import json
import logging
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import IO, Any

from polyopt import compilation, records, settings
from polyopt.classes import dataclass
from polyopt.errors import ArgumentError, CompileError, PolyoptError
from polyopt.picks import Pick, Question
from polyopt.problem import Picks, Problem, digest_of
from polyopt.records import Record
from polyopt.runtime import extent, jit, kernel, pool
from polyopt.runtime.kernel import KernelInfo

SECONDS = 30.0
MOST_OPTIONS = 12
"""Options of one question that are tried, the most promising first."""
MARGIN = 0.97
"""A plan replaces a simpler one only where it takes at most this share of its time."""
MEASURE_S, LIMIT_S, START_LIMIT_S = 0.06, 10.0, 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Trial:
    """One candidate. ms, base_ms: its time and that of the model's plan beside it; failure: why it has none"""

    picks: Picks
    ms: float = 0.0
    base_ms: float = 0.0
    failure: str = ""

    @property
    def share(self) -> float:
        """Its time over that of the model's plan; infinite for a failure."""
        return self.ms / self.base_ms if not self.failure and self.base_ms > 0 else float("inf")


@dataclass(slots=True)
class Outcome:
    """What a search found. base_ms: the model's plan; best: the best candidate, None where the model's plan stays"""

    op: str
    base_ms: float
    best: Trial | None = None
    trials: list[Trial] = field(default_factory=list)
    questions: tuple[Question, ...] = ()

    def record(self, problem: Problem) -> Record:
        key, machine = problem.tuning_key, compilation.machine()
        if self.best is None:
            return Record(key, self.op, machine, (), self.base_ms, self.base_ms)
        return Record(key, self.op, machine, self.best.picks, self.best.ms, self.best.base_ms)


class TrialFailed(Exception):
    """A candidate crashed, took too long, or gave another result."""


def tune(
    problem: Problem,
    sizes: Mapping[str, int],
    *,
    seconds: float = SECONDS,
    progress: Callable[[str], None] | None = None,
) -> Outcome:
    """Search for a better plan for a problem at these sizes, and record what was found.

    sizes:    of every size that the kernel leaves symbolic
    progress: called with a line about each trial
    Raises the errors of compiling the problem, and `CompileError` where its own kernel cannot be measured.
    """
    if problem.target.gpu is not None:
        raise CompileError(
            f"the kernel of '{problem.program.name}' is for a GPU, and only those for the CPU are tuned",
            fix="op.on('cpu'), or leave tune= out",
            facts={"op": problem.program.name},
        )
    tell = progress or _log.info
    until = time.monotonic() + seconds
    with _Children(problem, sizes) as children:
        try:
            base_ms, questions = children.base()
        except TrialFailed as failure:
            raise CompileError(
                f"the kernel of '{problem.program.name}' cannot be measured",
                why=str(failure),
                fix="try smaller sizes",
                facts={"op": problem.program.name},
            ) from None
        outcome = Outcome(problem.program.name, base_ms, questions=questions)
        tell(f"the cost model's plan: {base_ms:.4g} ms")
        _search(outcome, children, until, tell)
        if outcome.best is not None:
            outcome.best = children.again(outcome.best.picks)
            if outcome.best.share >= MARGIN:
                outcome.best = None
    records.add([outcome.record(problem)])
    return outcome


def ensure(problem: Problem, sizes: Mapping[str, int], *, seconds: float = SECONDS / 3) -> None:
    """Tune a problem that has no record on this machine yet; what goes wrong is logged, and the model's plan stays."""
    if records.known(problem.tuning_key, compilation.machine()) is not None:
        return
    try:
        tune(problem, sizes, seconds=seconds)
    except CompileError as error:
        _log.warning("not tuned: %s", error.what)


def _search(outcome: Outcome, children: _Children, until: float, tell: Callable[[str], None]) -> None:
    asked: set[str] = set()
    current: Picks = ()
    questions = outcome.questions
    best_share = 1.0
    while (question := next((q for q in questions if q.text not in asked), None)) is not None:
        asked.add(question.text)
        for option in _options(question):
            if time.monotonic() > until:
                tell("no time left")
                return
            picks = _with(current, Pick(question.text, option))
            trial, follow = children.trial(picks)
            outcome.trials.append(trial)
            tell(f"{picks[-1]}: {trial.failure or f'{trial.ms:.4g} ms, {1 / trial.share:.2f} times as fast'}")
            if trial.share < MARGIN * best_share:
                best_share, outcome.best, questions = trial.share, trial, follow
        current = outcome.best.picks if outcome.best is not None else ()
    outcome.questions = questions


def _options(question: Question) -> Iterator[str]:
    yield from [option for option in question.options if option != question.preferred][:MOST_OPTIONS]


def _with(picks: Picks, pick: Pick) -> Picks:
    return (*(kept for kept in picks if kept.question != pick.question), pick)


class _Children:
    """Compiles candidates here, and has them measured in a child process; a new one after each that died."""

    def __init__(self, problem: Problem, sizes: Mapping[str, int]) -> None:
        self._problem = problem
        self._sizes = sizes
        self._process: subprocess.Popen[str] | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="polyopt-tune-")
        self._base_request: dict[str, Any] = {}
        self._measured: dict[str, Trial] = {}

    def __enter__(self) -> _Children:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        self._folder.cleanup()

    def base(self) -> tuple[float, tuple[Question, ...]]:
        """Milliseconds of the model's plan, and what its deciders asked. Raises `TrialFailed`."""
        request, digest, questions = self._compiled(())
        self._base_request = request
        base_ms = float(self._ask(request, START_LIMIT_S)["ms"])
        self._measured[digest] = Trial((), base_ms, base_ms)
        return base_ms, questions

    def trial(self, picks: Picks) -> tuple[Trial, tuple[Question, ...]]:
        """One candidate, and the questions that its deciders asked. Equal code is measured once."""
        try:
            request, digest, questions = self._compiled(picks)
            if digest in self._measured:
                seen = self._measured[digest]
                return Trial(picks, seen.ms, seen.base_ms, seen.failure), questions
            answer = self._ask(request, LIMIT_S)
        except (TrialFailed, PolyoptError) as error:
            return Trial(picks, failure=str(error).partition("\n")[0]), ()
        self._measured[digest] = Trial(picks, float(answer["ms"]), float(answer["base_ms"]))
        return self._measured[digest], questions

    def again(self, picks: Picks) -> Trial:
        """A candidate measured once more, for longer: the best of many is the luckiest of them too."""
        try:
            request, _, _ = self._compiled(picks)
            answer = self._ask({**request, "seconds": 5 * MEASURE_S}, LIMIT_S)
        except (TrialFailed, PolyoptError) as error:
            return Trial(picks, failure=str(error).partition("\n")[0])
        return Trial(picks, float(answer["ms"]), float(answer["base_ms"]))

    def _compiled(self, picks: Picks) -> tuple[dict[str, Any], str, tuple[Question, ...]]:
        """What the child needs. Raises the errors of a compile; `TrialFailed` for picks that give no legal plan."""
        lowering = compilation.lower_with(self._problem, picks)
        if lowering.settled.fallback:
            raise TrialFailed(f"no legal plan: {lowering.settled.fallback}")
        text = lowering.module.text
        object_code = jit.compile_object(text, self._problem.target)
        digest = digest_of(text)
        path = Path(self._folder.name, f"{digest}.o")
        path.write_bytes(object_code)
        info = lowering.info
        request = {
            "object": str(path),
            "info": kernel.as_json(info),
            "parameters": [self._parameter(name, info) for name in info.parameters],
            "arrays": [self._array(array) for array in info.arguments],
            "seconds": MEASURE_S,
        }
        return request, digest, lowering.questions

    def _array(self, array: kernel.ArrayInfo) -> list[Any]:
        shape = [extent.evaluate(length, self._sizes) for length in array.shape]
        layout = self._problem.layouts.get(array.name)
        return [shape, None if layout is None else list(layout), array.dtype.name]

    def _parameter(self, name: str, info: KernelInfo) -> int:
        if name in self._sizes:
            return self._sizes[name]
        for array in info.arguments:
            for dimension, stride in enumerate(array.strides or ()):
                layout = self._problem.layouts.get(array.name)
                if stride == name and layout is not None:
                    return layout[dimension]
        raise ArgumentError(
            f"the size '{name}' is not known", why="a kernel is tuned at the sizes of a call", fix=f"{name}=512"
        )

    def _ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """The child's answer. Raises `TrialFailed`."""
        if self._process is None:
            self._process = self._start()
            if request is not self._base_request:
                self._say(self._base_request, START_LIMIT_S)
        return self._say(request, limit_s)

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "polyopt.runtime.trial"]
        return subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=settings.child_environment(num_threads=pool.num_threads()),
        )

    def _say(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None, "started before"
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            is_there = _has_something_to_read(process.stdout, limit_s)
            line = process.stdout.readline() if is_there else ""
        except OSError:
            is_there, line = True, ""
        if not line:
            self._end()
            raise TrialFailed("crashed" if is_there else f"took more than {limit_s:.0f} s")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise TrialFailed(answer["error"])
        return answer

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with suppress(OSError):  # what the child has not read
                        pipe.close()


def _has_something_to_read(pipe: IO[str], limit_s: float) -> bool:
    """Whether something, or the end, comes through a pipe in so many seconds."""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        return bool(selector.select(limit_s))
