"""The note on the terminal that a compile takes long."""

from __future__ import annotations

import io
import sys
import time

import pytest

from polyopt import progress
from polyopt.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_long_block_shows_its_message_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progress, "PATIENCE_S", 0.01)
    monkeypatch.setattr(progress, "_REFRESH_S", 0.02)
    with Progress("compiling it"):
        time.sleep(0.3)
    assert "compiling it" in terminal.getvalue()


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO(), None])
def test_a_short_block_or_no_terminal_shows_nothing(
    stream: io.StringIO | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", stream)
    with Progress("compiling it"):
        pass
    assert stream is None or stream.getvalue() == ""
