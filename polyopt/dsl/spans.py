"""Where in the user's source an expression, a definition or a call was written."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from functools import lru_cache, wraps
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import ParamSpec, TypeVar

from polyopt import settings
from polyopt.errors import (
    ArgumentError,
    BackendUnavailable,
    BoundsError,
    DefinitionError,
    DTypeError,
    PolyoptError,
    ShapeError,
    Span,
)

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


# --- tracebacks -------------------------------------------------------------------------------------------------

_USERS = (DefinitionError, ShapeError, ArgumentError, DTypeError, BoundsError, BackendUnavailable)

Parameters = ParamSpec("Parameters")
Value = TypeVar("Value")


def hide_internals(error: PolyoptError) -> None:
    """Leave the user's own lines alone in the traceback of an error that is the user's to mend.

    To be followed by a bare `raise`, which adds no line of its own. POLYOPT_TRACEBACK=1 leaves every line.
    """
    if isinstance(error, _USERS) and not settings.wants_whole_traceback():
        error.__traceback__ = _users_part(error.__traceback__)


def ends_at_the_user(function: Callable[Parameters, Value]) -> Callable[Parameters, Value]:
    """The function, with `hide_internals` for the errors that leave it."""

    @wraps(function)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Value:
        try:
            return function(*args, **kwargs)
        except PolyoptError as error:
            hide_internals(error)
            raise

    return call


def _users_part(trace: TracebackType | None) -> TracebackType | None:
    entries = []
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
            entries.append(trace)
        trace = trace.tb_next
    shown: TracebackType | None = None
    for entry in reversed(entries):
        shown = TracebackType(shown, entry.tb_frame, entry.tb_lasti, entry.tb_lineno)
    return shown


# --- positions --------------------------------------------------------------------------------------------------


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
