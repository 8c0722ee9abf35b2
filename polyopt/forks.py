"""The locks that a fork waits for, so that a child inherits none that a thread holds which it does not have.

isl and LLVM keep global state, and llvmlite a lock of its own; whoever uses any of them, in whatever thread, holds
`COMPILING` meanwhile. A fork then finds them at rest.
"""

from __future__ import annotations

import os
import threading

COMPILING = threading.RLock()
"""Held while a thread compiles, loads code or asks LLVM for anything. Reentrant: finalisers and handlers of signals
that call ops run in the thread that holds it."""

LEARNING = threading.RLock()
"""Held for microseconds, while a function learns a kind of call. Nobody waits for it but a fork: who finds it taken, by
another thread or by the call that a finaliser or a handler interrupts, learns with a later call."""


def is_compiling() -> bool:
    """Whether this thread holds `COMPILING`, so that it must not wait for a thread that may need it."""
    return bool(COMPILING._is_owned())  # type: ignore[attr-defined]  # as `threading.Condition` asks any lock


def _wait() -> None:
    COMPILING.acquire()
    LEARNING.acquire()


def _go_on() -> None:
    LEARNING.release()
    COMPILING.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_wait, after_in_parent=_go_on, after_in_child=_go_on)
