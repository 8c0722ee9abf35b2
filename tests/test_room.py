"""Compiling where the caller's stack is small: in a thread of its own, which sees what the caller would."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from polyopt import room
from polyopt.forks import is_compiling
from polyopt.room import with_room

VALUE: ContextVar[int] = ContextVar("value", default=0)


def in_a_thread(do: Callable[[], Any]) -> Any:
    """What `do` returns in a thread that is not the main one."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(do()))
    thread.start()
    thread.join()
    return found[0]


def test_the_main_thread_works_itself_and_holds_the_lock() -> None:
    assert with_room(lambda: (threading.get_ident(), is_compiling())) == (threading.get_ident(), True)
    assert not is_compiling()


def test_other_threads_have_it_done_once_however_deep_they_ask() -> None:
    here, outer, inner = in_a_thread(
        lambda: (
            threading.get_ident(),
            *with_room(lambda: (threading.get_ident(), with_room(threading.get_ident))),
        )
    )
    assert here != outer == inner


def test_context_variables_are_the_callers() -> None:
    def ask() -> int:
        VALUE.set(7)
        return with_room(VALUE.get)

    assert in_a_thread(ask) == 7


def test_what_is_raised_is_the_callers() -> None:
    def ask() -> BaseException | None:
        try:
            with_room(lambda: 1 // 0)
        except ZeroDivisionError as error:
            return error
        return None

    assert isinstance(in_a_thread(ask), ZeroDivisionError)


def test_the_size_of_stacks_stays_as_the_user_gave_it() -> None:
    before = threading.stack_size(1 << 20)
    try:
        in_a_thread(lambda: with_room(lambda: None))
        assert threading.stack_size(1 << 20) == 1 << 20
    finally:
        threading.stack_size(before)


def test_where_there_are_no_more_threads_the_caller_works_and_it_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def ask() -> bool:
        def refuse(_: threading.Thread) -> None:
            raise RuntimeError("can't start new thread")

        monkeypatch.setattr(room.threading.Thread, "start", refuse)
        return with_room(is_compiling)

    with caplog.at_level(logging.WARNING, logger="polyopt"):
        assert in_a_thread(ask)
    assert "can't start new thread" in caplog.text
