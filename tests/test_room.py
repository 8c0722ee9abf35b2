"""Compiling where the caller's stack is small: in a thread of its own, which sees what the caller would."""

from __future__ import annotations

import gc
import logging
import signal
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from polyopt import room
from polyopt.forks import is_compiling
from polyopt.room import ROOM_BYTES, stack_bytes, with_room

VALUE: ContextVar[int] = ContextVar("value", default=0)
SMALL = 256 << 10


def in_a_thread(do: Callable[[], Any], size: int = SMALL) -> Any:
    """What `do` returns in a thread with a stack of so many bytes."""
    found: list[Any] = []
    before = threading.stack_size(size)
    thread = threading.Thread(target=lambda: found.append(do()))
    thread.start()
    threading.stack_size(before)
    thread.join(60)
    return found[0]


def where() -> tuple[int, bool]:
    return threading.get_ident(), is_compiling()


@pytest.mark.parametrize("size", [SMALL, ROOM_BYTES, 4 * ROOM_BYTES])
def test_the_system_says_how_much_stack_a_thread_has(size: int) -> None:
    """glibc gives a new thread the stack of one that ended, if it is no more than four times as large."""
    assert size <= in_a_thread(stack_bytes, size) <= 4 * size + (64 << 10)


def test_threads_with_room_work_themselves_and_hold_the_lock() -> None:
    """So they may hold a lock that a finaliser wants, which runs where what it finishes is collected."""
    for outcome in (
        (threading.get_ident(), with_room(where)),
        in_a_thread(lambda: (threading.get_ident(), with_room(where)), ROOM_BYTES),
    ):
        here, there = outcome
        assert there == (here, True)
    assert not is_compiling()


def test_threads_without_have_it_done_once_however_deep_they_ask() -> None:
    here, outer, inner = in_a_thread(
        lambda: (threading.get_ident(), *with_room(lambda: (where(), with_room(threading.get_ident))))
    )
    assert here != outer[0] == inner
    assert outer[1]


def test_the_stack_of_the_other_thread_has_room() -> None:
    assert in_a_thread(lambda: with_room(stack_bytes)) >= ROOM_BYTES


def test_no_finaliser_runs_where_the_caller_waits() -> None:
    """It might want a lock that the caller holds."""
    lock = threading.RLock()

    class Cycle:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            with lock:
                pass

    def ask() -> bool:
        with lock:
            for _ in range(200):
                Cycle()
            return with_room(lambda: gc.isenabled() or not [[] for _ in range(200_000)])

    assert in_a_thread(ask) is False
    assert gc.isenabled()


def test_context_variables_are_the_callers() -> None:
    def ask() -> int:
        VALUE.set(7)
        return with_room(VALUE.get)

    assert in_a_thread(ask) == 7


def test_what_is_raised_is_the_callers_with_what_it_came_of() -> None:
    def fail() -> None:
        try:
            raise KeyError
        except KeyError:
            raise ZeroDivisionError  # noqa: B904  # what it comes of is looked at

    def ask() -> BaseException | None:
        try:
            try:
                raise IndexError
            except IndexError:
                with_room(fail)
        except ZeroDivisionError as error:
            return error
        return None

    found = in_a_thread(ask)
    assert isinstance(found, ZeroDivisionError)
    assert isinstance(found.__context__, KeyError)


def test_what_interrupts_the_caller_interrupts_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C does where the main thread has a small stack."""

    main = threading.get_ident()

    def work() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        end = time.monotonic() + 60
        while time.monotonic() < end:
            time.sleep(0.001)

    monkeypatch.setattr(room._HAS_ROOM, "here", False)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # test processes may ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            with_room(work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not is_compiling()
    assert with_room(lambda: 1) == 1


def test_an_interrupt_that_comes_as_the_work_ends_is_the_callers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody was left to raise it, and Ctrl-C was lost."""

    class Ended:
        """A lock that is free, whose first `acquire` is interrupted before it returns."""

        def __init__(self) -> None:
            self.lock = allocate()

        def acquire(self) -> None:
            self.lock.acquire()
            if waits:
                self.lock.release()
                waits.pop()
                raise KeyboardInterrupt
            waits.append(1)

        def release(self) -> None:
            self.lock.release()

    waits: list[int] = []
    allocate = room._thread.allocate_lock
    monkeypatch.setattr(room._HAS_ROOM, "here", False)
    monkeypatch.setattr(room._thread, "allocate_lock", Ended)
    with pytest.raises(KeyboardInterrupt):
        with_room(lambda: 1)


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
    def refuse(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    def ask() -> tuple[int, tuple[int, bool]]:
        monkeypatch.setattr(room._thread, "start_new_thread", refuse)
        found = with_room(where)
        monkeypatch.undo()
        return threading.get_ident(), found

    with caplog.at_level(logging.WARNING, logger="polyopt"):
        here, there = in_a_thread(ask)
    assert there == (here, True)
    assert "can't start new thread" in caplog.text
