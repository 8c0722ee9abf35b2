"""Where in the user's source an expression, a definition or a call was written."""

from __future__ import annotations

import linecache
import sys
from functools import lru_cache
from pathlib import Path
from types import CodeType, FrameType

from polyopt.errors import Span

_PACKAGE = str(Path(__file__).resolve().parent.parent) + "/"

Position = tuple[int | None, int | None, int | None, int | None]


def user_span() -> Span | None:
    """The place in the nearest calling frame that is not polyopt's own; None where there is no such frame."""
    frame = user_frame()
    return None if frame is None else _frame_span(frame)


def user_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    return frame


def function_span(code: CodeType) -> Span:
    """The line where a function begins (its `def`, or its first decorator)."""
    return Span(code.co_filename, code.co_firstlineno)


def _frame_span(frame: FrameType) -> Span:
    file = frame.f_code.co_filename
    line, end_line, column, end_column = _positions(frame.f_code)[frame.f_lasti // 2]
    if line is None:
        return Span(file, frame.f_lineno)
    if column is None or end_column is None:
        return Span(file, line)
    text = linecache.getline(file, line).rstrip()
    start = _characters(text, column)
    end = _characters(text, end_column) if end_line == line else len(text)
    return Span(file, line, start, max(start, end))


@lru_cache(maxsize=256)
def _positions(code: CodeType) -> tuple[Position, ...]:
    return tuple(code.co_positions())


def _characters(text: str, offset: int) -> int:
    """A column in characters from CPython's offset in UTF-8 bytes."""
    return len(text.encode()[:offset].decode(errors="ignore"))
