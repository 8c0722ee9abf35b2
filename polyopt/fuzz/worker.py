"""A child process that runs cases, so that a crash or an endless loop of one is an outcome like any other."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.connection import Connection
from types import TracebackType
from typing import Any

from polyopt.fuzz.case import Case
from polyopt.fuzz.check import Outcome, check

PATIENCE_S = 60.0
"""Time after which a case counts as one that never ends."""

CASES = 1000
"""Cases after which a fresh process takes over, so that code that is loaded does not pile up."""


class Worker:
    """Runs cases one at a time in a child process, which is replaced when it dies. Use it in a `with` block."""

    def __init__(self, patience_s: float = PATIENCE_S) -> None:
        self._patience_s = patience_s
        self._context = multiprocessing.get_context("spawn")
        self._process: Any = None
        self._pipe: Connection | None = None
        self._count = 0

    def check(self, case: Case) -> Outcome:
        """The outcome of a case; that of one that kills or stalls the process is a failure too."""
        if self._count >= CASES:
            self._stop()
        pipe = self._started()
        self._count += 1
        try:
            pipe.send(case)
            if pipe.poll(self._patience_s):
                outcome: Outcome = pipe.recv()
                return outcome
            self._stop()
            return Outcome("fails", "hang", f"no result after {self._patience_s:.0f} s")
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            self._stop()
            return Outcome("fails", "crash", f"the process ended with exit code {code}")

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _started(self) -> Connection:
        if self._pipe is None:
            self._pipe, theirs = self._context.Pipe()
            self._process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            self._process.start()
            theirs.close()
            self._count = 0
        return self._pipe

    def _stop(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
        self._pipe = None


def _serve(pipe: Connection) -> None:
    os.environ["POLYOPT_CACHE_BYTES"] = "0"  # no random kernel is wanted again
    while True:
        try:
            case: Case = pipe.recv()
        except EOFError:
            return
        pipe.send(check(case))
