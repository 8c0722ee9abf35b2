"""Tells on a terminal that a compile is taking long."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

PATIENCE_S = 2.0
_REFRESH_S = 0.25


class Progress:
    """Shows `message` and the seconds so far on the terminal once a `with` block has lasted two seconds."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="polyopt-progress", daemon=True)

    def __enter__(self) -> Progress:
        if sys.stderr is not None and sys.stderr.isatty():
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        if self._done.wait(PATIENCE_S):
            return
        from tqdm import tqdm

        with tqdm(desc=self._message, bar_format="{desc} {elapsed}", leave=False, file=sys.stderr) as bar:
            while not self._done.wait(_REFRESH_S):
                bar.refresh()
