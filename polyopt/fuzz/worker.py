"""A child process that runs cases, so that a crash or an endless loop of one is an outcome like any other."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any

from polyopt.fuzz.case import Case
from polyopt.fuzz.check import Outcome, check

PATIENCE_S = 60.0
"""Processor time after which a case counts as one that never ends."""

STALLED = 10
"""A case that waits counts as one that never ends after so many times its processor time."""

_SHOW_STACK = getattr(signal, "SIGUSR1", None)

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
            if self._answers(pipe):
                outcome: Outcome = pipe.recv()
                return outcome
            self._show_stack()
            self._stop()
            return Outcome("fails", "hang", f"no result after {self._patience_s:.0f} s of processor time")
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self._process.join()
            code = self._process.exitcode
            self._stop()
            return Outcome("fails", "crash", f"the process ended with exit code {code}")

    def _answers(self, pipe: Connection) -> bool:
        """Whether an answer comes. On a machine with other work a process may wait long for its turn, so what counts is
        the processor time that it takes."""
        begun, end = _processor_s(self._process.pid), time.monotonic() + STALLED * self._patience_s
        while time.monotonic() < end and _processor_s(self._process.pid) - begun < self._patience_s:
            if pipe.poll(1.0):
                return True
        return False

    def _show_stack(self) -> None:
        """Let the process say on its standard error where it is."""
        if _SHOW_STACK is not None:
            os.kill(self._process.pid, _SHOW_STACK)
            self._process.join(1.0)

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _started(self) -> Connection:
        if self._pipe is None:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            try:
                process.start()
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
            self._pipe, self._process, self._count = ours, process, 0
        return self._pipe

    def _stop(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
            self._process.kill()
            self._process.join()
        self._pipe = None


def _processor_s(process: int) -> float:
    """The processor time that a process has taken; the time of day where the system does not tell."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    except OSError:
        return time.monotonic()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _serve(pipe: Connection) -> None:
    os.environ["POLYOPT_CACHE_BYTES"] = "0"  # no random kernel is wanted again
    faulthandler.enable()
    if _SHOW_STACK is not None:
        faulthandler.register(_SHOW_STACK)
    while True:
        try:
            case: Case = pipe.recv()
        except EOFError:
            return
        pipe.send(check(case))
