"""Room on the stack for what compilers call.

isl, LLVM and the passes call themselves as deep as expressions and loops are nested. The main thread's stack has room
for that; another one's may have been made with `threading.stack_size`, or by a C library that gives its threads 128
KiB. What such a thread compiles is therefore compiled in one made for it, while it waits.
"""

from __future__ import annotations

import contextvars
import logging
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from polyopt.forks import COMPILING, is_compiling

if sys.platform != "win32":
    import resource

Value = TypeVar("Value")
_LOG = logging.getLogger(__name__)

MAIN_STACK_BYTES = 8 << 20
"""A main thread that may have less is treated as any other one."""
STACK_BYTES = 16 << 20
"""Address space of a compiling thread's stack; what it does not touch takes no memory."""

_MAIN = threading.main_thread().ident
"""Known from the start: in the child of a fork, whichever thread forked is the main one, on the stack it has."""


def with_room(make: Callable[[], Value]) -> Value:
    """What `make` returns or raises, with the lock of compilers held, on a stack with room.

    It sees the caller's context variables, and not its `threading.local` ones. A caller that holds the lock already
    goes on where it is: as a rule it is the main thread or one that was made here.
    """
    if is_compiling() or _has_room():
        with COMPILING:
            return make()
    return _made_elsewhere(make)


def _has_room() -> bool:
    """Whether this is the main thread, with the stack that main threads have."""
    if threading.get_ident() != _MAIN:
        return False
    if sys.platform == "win32":  # it has what the executable asks for
        return True
    most, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return most == resource.RLIM_INFINITY or most >= MAIN_STACK_BYTES


def _made_elsewhere(make: Callable[[], Value]) -> Value:
    """What `make` returns or raises in a new thread; in this one where the system gives no more threads."""
    made: list[Value] = []
    raised: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        try:
            with COMPILING:
                made.append(context.run(make))
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            raised.append(error)

    thread = threading.Thread(target=run, name="polyopt-compile", daemon=True)
    with COMPILING:  # no two change the size of stacks at once, and no fork comes between
        if not _starts(thread):
            return make()
    thread.join()
    if raised:
        raise raised.pop()
    return made.pop()


def _starts(thread: threading.Thread) -> bool:
    """Start a thread with `STACK_BYTES`, and leave the size for others as it is. False where there is no more."""
    try:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            meanwhile = threading.stack_size(before)
            if meanwhile != STACK_BYTES:  # another thread has asked for stacks of its own
                threading.stack_size(meanwhile)
    except (RuntimeError, ValueError) as error:
        _LOG.warning("compiling on the caller's stack, which may be too small: %s", error)
        return False
    return True
