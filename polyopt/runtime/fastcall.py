"""The quick way into kernels: a function of Python made of machine code, tried before it is trusted.

It embeds offsets of this process's Python and NumPy, so a trial on examples decides whether it is used at all; without
it calls go through ctypes.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from polyopt.errors import CompileError
from polyopt.runtime import jit
from polyopt.runtime.arrays import Array
from polyopt.runtime.fastcall_ir import CALL, TRIAL
from polyopt.runtime.objects import LoadedCode
from polyopt.runtime.pool import POOLS

KEPT_ENTRIES = 8
"""Kinds of calls that an op's quick way knows; each costs a comparison, so only the latest stay."""
_METH_FASTCALL = 0x80
_log = logging.getLogger(__name__)

Quick = Callable[..., Any]


class _MethodDefinition(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Entry:
    """One kind of call, as the machine code reads it, and all that it points to.

    kernel:      its code is at `kernel.address`
    examples:    arrays like the arguments
    order:       for each kernel input the number of its argument
    result:      shape and dtype
    parameters:  the kernel's i64 parameters
    workspace:   bytes shared, and private to each slot
    is_parallel: whether the kernel uses the thread pool
    """

    def __init__(
        self,
        kernel: Addressed,
        examples: Sequence[Array],
        order: Sequence[int],
        result: tuple[tuple[int, ...], np.dtype[Any]],
        parameters: Sequence[int] = (),
        workspace: tuple[int, int] = (0, 0),
        *,
        is_parallel: bool = False,
    ) -> None:
        assert len(order) == len(examples), "every argument is a kernel input"
        self._kept = (kernel, result, [example.dtype for example in examples])
        self._tail = np.array([*order, id(result), *parameters], np.int64)
        head = [
            kernel.address,
            len(examples),
            len(parameters),
            POOLS.cell_address() if is_parallel else 0,
            *workspace,
            id(np.empty),
            id(self),
            self._tail.ctypes.data,
            id(np.ndarray),
        ]
        self.words = np.array([*head, *(word for example in examples for word in _description(example))], np.int64)


class Addressed(Protocol):
    """What has machine code and keeps it alive."""

    @property
    def address(self) -> int: ...


def _description(example: Array) -> list[int]:
    dimensions = [word for pair in zip(example.shape, example.strides) for word in pair]
    return [id(example.dtype), example.ndim, example.itemsize - 1, *dimensions]


class _Table(np.ndarray[Any, Any]):
    """The words that one quick function reads: how many entries there are, then their addresses.

    It never changes once a function was made of it. The function owns it, and it owns all that it points to, so
    whoever is inside the function, and therefore holds it, can rely on everything.
    """

    kept: tuple[object, ...]


class Entries:
    """The kinds of calls that one function knows, the latest first. `call` is the function that knows them all now.

    Learning makes a new function; those made before go on working for whoever is calling them.
    """

    def __init__(self, code: LoadedCode) -> None:
        self._code = code
        self._entries: tuple[Entry, ...] = ()
        self.call: Quick = self._function()

    def add(self, entry: Entry) -> None:
        """Know one more kind of call, and forget the oldest where there are too many. Callers hold `LEARNING`."""
        self._entries = (entry, *self._entries)[:KEPT_ENTRIES]
        self.call = self._function()

    def _function(self) -> Quick:
        words = [len(self._entries), *(known.words.ctypes.data for known in self._entries)]
        definition = _MethodDefinition(b"quick", self._code.addresses[CALL], _METH_FASTCALL, None)
        table = np.array(words, np.int64).view(_Table)
        table.kept = (definition, self._code, self._entries)
        return _new_function(ctypes.addressof(definition), id(table))


LEARNING = threading.Lock()
"""Held while a function learns a kind of call, so that none is lost where threads learn at once. Held for
microseconds, and by a fork, so that a child never inherits it locked."""
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=LEARNING.acquire, after_in_parent=LEARNING.release, after_in_child=LEARNING.release)


def _new_function(definition: int, self_address: int) -> Quick:
    """A function of Python. It holds the object at `self_address`, and that must hold the definition."""
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    function: Quick = new(definition, self_address, None)
    return function


def load(object_code: bytes) -> LoadedCode | None:
    """The machine code of `fastcall_ir`, tried out; None where it does not work in this process."""
    if not _is_plain_cpython():
        return None
    try:
        code = jit.load_object(object_code, (CALL, TRIAL))
    except CompileError as error:
        _log.warning("calls go through ctypes: %s", error.what)
        return None
    if _works(code):
        return code
    _log.warning("calls go through ctypes: the quick way does not fit this Python or NumPy")
    return None


def _is_plain_cpython() -> bool:
    """CPython with its lock, and without debugging fields in its objects."""
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    return sys.implementation.name == "cpython" and object.__basicsize__ == 16 and has_lock


@dataclass(frozen=True, slots=True)
class _Trial:
    """The kernel that adds its parameter to the first element."""

    address: int


def _works(code: LoadedCode) -> bool:
    """Whether examples that fit give the right result, and examples that differ in one thing give None."""
    x = np.arange(12, dtype=np.int64).reshape(3, 4)[:, ::2]
    y = np.ones(3, np.int32)
    result = ((2, 2), np.dtype(np.int64))
    entries = Entries(code)
    entries.add(Entry(_Trial(code.addresses[TRIAL]), [y, x], [1, 0], result, [7]))
    entries.add(Entry(_Trial(code.addresses[TRIAL]), [x, x], [0, 1], result, [100], (64, 64)))
    for value in range(3):
        x[0, 0] = value
        for found, expected in ((entries.call(x, x), value + 100), (entries.call(y, x), value + 7)):
            if not isinstance(found, np.ndarray) or found.shape != (2, 2) or found[0, 0] != expected:
                return False
    shifted = np.frombuffer(b"\0" * 100, np.uint8)[1:97].view(np.int64)
    others: list[Any] = [
        x.tolist(),
        x.astype(np.float64),
        x[:2],
        x[::-1],
        x.copy(),
        x[0],
        np.lib.stride_tricks.as_strided(shifted, x.shape, x.strides),
        x.view(np.matrix),
    ]
    misfits = [(), (x,), (x, x, x), *((other, x) for other in others), *((y, other) for other in others)]
    return all(entries.call(*arguments) is None for arguments in misfits)
