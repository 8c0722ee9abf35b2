"""Room for what compilers call inside each other: on the stack, and in Python's count of calls.

isl, LLVM and the passes call themselves as deep as expressions and loops are nested. A stack of 8 MiB, as a main
thread has and most others, has room for that; one that was made with `threading.stack_size`, or by a C library that
gives its threads 128 KiB, has not. What such a thread compiles is compiled in one made for it, while it waits.
"""

from __future__ import annotations

import _thread
import contextvars
import ctypes
import gc
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from polyopt.forks import COMPILING, is_compiling

if sys.platform != "win32":
    import resource

Value = TypeVar("Value")
_LOG = logging.getLogger(__name__)

DEEPEST_CALLS = 6000
"""Calls inside each other while compiling: those of a thousand operations inside each other."""
ROOM_BYTES = 4 << 20
"""A stack that has so much can hold them."""
STACK_BYTES = 4 * ROOM_BYTES
"""Address space of the stack of a thread made here; what it does not touch takes no memory."""

_MAIN = threading.main_thread().ident
"""Known from the start: in the child of a fork, whichever thread forked is the main one, on the stack it has."""


def with_room(make: Callable[[], Value]) -> Value:
    """What `make` returns or raises, with the lock of compilers held, on a stack with room.

    Where that is no stack of the caller's, `make` sees the caller's context variables, and not its `threading.local`
    ones. A caller that holds the lock already goes on where it is: as a rule it has the room.
    """
    if is_compiling() or _HAS_ROOM.here or sys.is_finalizing():
        with COMPILING:
            return _with_deep_calls(make)
    return _made_elsewhere(make)


def _with_deep_calls(make: Callable[[], Value]) -> Value:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(before, DEEPEST_CALLS))
    try:
        return make()
    finally:
        sys.setrecursionlimit(before)


# --- how much a thread has ---------------------------------------------------------------------------------------


class _HasRoom(threading.local):
    """Whether this thread's stack has room. Asked once."""

    def __init__(self) -> None:
        self.here = stack_bytes() >= ROOM_BYTES


def stack_bytes() -> int:
    """Bytes that the stack of this thread may take; 0 where the system does not say."""
    if threading.get_ident() == _MAIN:
        if sys.platform == "win32":  # what the executable asks for
            return ROOM_BYTES
        most, _ = resource.getrlimit(resource.RLIMIT_STACK)
        return sys.maxsize if most == resource.RLIM_INFINITY else most
    if sys.platform == "win32":
        return 0
    try:
        system = ctypes.CDLL(None)
        system.pthread_self.restype = ctypes.c_void_p
        here = ctypes.c_void_p(system.pthread_self())
        if sys.platform == "darwin":
            system.pthread_get_stacksize_np.restype = ctypes.c_size_t
            return int(system.pthread_get_stacksize_np(here))
        return _from_attributes(system, here)
    except (OSError, AttributeError):  # a system without these functions
        return 0


def _from_attributes(system: Any, thread: ctypes.c_void_p) -> int:
    """As glibc and musl tell it."""
    attributes, size = (ctypes.c_uint64 * 32)(), ctypes.c_size_t()  # a `pthread_attr_t` has 56 or 64 bytes
    if system.pthread_getattr_np(thread, attributes):
        return 0
    failed = system.pthread_attr_getstacksize(attributes, ctypes.byref(size))
    system.pthread_attr_destroy(attributes)
    return 0 if failed else size.value


_HAS_ROOM = _HasRoom()


# --- another thread ----------------------------------------------------------------------------------------------


def _made_elsewhere(make: Callable[[], Value]) -> Value:
    """What `make` returns or raises in a new thread; in this one where the system gives no more threads."""
    made: list[Value] = []
    raised: list[BaseException] = []
    context = contextvars.copy_context()
    ended = _thread.allocate_lock()
    ended.acquire()

    def run() -> None:
        try:
            with COMPILING:
                made.append(context.run(_without_finalisers, make))
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            raised.append(error)
        finally:
            ended.release()

    number = _started(run)
    if number is None:
        with COMPILING:
            return _with_deep_calls(make)
    interrupt = _wait(ended, number)
    if raised:
        _raise(raised.pop())
    if interrupt is not None:
        raise interrupt
    return made.pop()


def _without_finalisers(make: Callable[[], Value]) -> Value:
    """What `make` returns, while no collection runs in this thread: a finaliser may want a lock of the one that waits.

    Other compiles wait meanwhile, so no two change what the user set.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        return _with_deep_calls(make)
    finally:
        if was_enabled:
            gc.enable()


def _started(run: Callable[[], None]) -> int | None:
    """A new thread's number, its stack of `STACK_BYTES`; None where there is no more. `threading` does not know it: its
    threads take locks before they run, which somebody may hold who waits for us."""
    with COMPILING:  # no two change the size of stacks at once, and no fork comes between
        try:
            before = threading.stack_size(STACK_BYTES)
            try:
                return _thread.start_new_thread(run, ())
            finally:
                meanwhile = threading.stack_size(before)
                if meanwhile != STACK_BYTES:  # another thread has asked for stacks of its own
                    threading.stack_size(meanwhile)
        except (RuntimeError, ValueError) as error:
            _LOG.warning("compiling on the caller's stack, which may be too small: %s", error)
            return None


def _wait(ended: _thread.LockType, number: int) -> BaseException | None:
    """Wait for a thread. What interrupts the caller, as Ctrl-C does, interrupts the thread, which raises it unless it
    is at its end already. Returns the interrupt."""
    interrupt: BaseException | None = None
    while True:
        try:
            ended.acquire()
        except BaseException as error:  # noqa: BLE001  # raised there, or by who called
            interrupt = error
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(number), ctypes.py_object(type(error)))
        else:
            return interrupt


def _raise(error: BaseException) -> None:
    """Raise another thread's error, which keeps what it came of."""
    came_of = error.__context__
    try:
        raise error
    finally:
        error.__context__ = came_of or error.__context__
        del error
