"""The quick way into kernels: a function of Python made of machine code, tried before it is trusted.

It embeds offsets of this process's Python and NumPy, so a trial on examples decides whether it is used at all; without
it calls go through ctypes.
"""

from __future__ import annotations

import ctypes
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from polyopt.classes import dataclass
from polyopt.errors import CompileError
from polyopt.runtime import jit
from polyopt.runtime.arrays import Array
from polyopt.runtime.fastcall_ir import (
    ARRAY,
    CALL,
    FIRST_DESCRIPTION,
    FLOAT_F32,
    FLOAT_F64,
    INT,
    INT_F32,
    INT_F64,
    SAME,
    SCALAR,
    TRIAL,
    WRITTEN,
)
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


@dataclass(frozen=True, slots=True)
class Number:
    """An argument that is a number of Python or NumPy.

    kind:  its type
    dtype: what the kernel reads
    reach: least and most of an int that the kernel is for, where these are not all of the dtype
    """

    kind: type
    dtype: np.dtype[Any]
    reach: tuple[int, int] | None = None

    @property
    def is_supported(self) -> bool:
        """Whether the quick way converts it exactly as NumPy does."""
        if self.kind is int:  # read as 64 bits with a sign
            return self.dtype.char in "fd?bBhHiIlLqQ" and (self.reach is None or self.reach[0] <= _MOST_INT)
        return (self.kind in _FLOATS and self.dtype.char in "fd") or self.is_of_its_dtype

    @property
    def is_of_its_dtype(self) -> bool:
        """Whether it is a number of NumPy that the kernel reads as it is."""
        return issubclass(self.kind, np.generic) and np.dtype(self.kind) == self.dtype


_MOST_INT = int(np.iinfo(np.int64).max)
_FLOATS = (float, np.float64)
"""Types whose objects hold a double in the same place."""


@dataclass(frozen=True, slots=True)
class Same:
    """An argument that must be this very object: a compile-time value."""

    value: object


@dataclass(frozen=True, slots=True)
class Results:
    """Where results go.

    makers:   for each result that is made, a function and its arguments
    written:  how many of the last arguments are results
    in_place: pairs (written argument, other argument) that may be the same memory, by number
    make:     puts the results together, given a tuple; None: the only one, or the tuple
    """

    makers: tuple[tuple[Callable[..., Any], tuple[Any, ...]], ...] = ()
    written: int = 0
    in_place: frozenset[tuple[int, int]] = frozenset()
    make: Callable[[Any], Any] | None = None


class Entry:
    """One kind of call, as the machine code reads it, and all that it points to.

    kernel:      its code is at `kernel.address`
    examples:    arguments like those of the calls
    order:       for each array of the kernel the number of its argument, or -1 - the number of a made result
    results:     where they go
    parameters:  the kernel's i64 parameters
    workspace:   bytes shared, and private to each slot
    is_parallel: whether the kernel uses the thread pool
    fail:        raises the error that a run-time check found, given what it recorded; None without checks
    """

    def __init__(
        self,
        kernel: Addressed,
        examples: Sequence[Array | Number | Same],
        order: Sequence[int],
        results: Results,
        parameters: Sequence[int] = (),
        workspace: tuple[int, int] = (0, 0),
        *,
        is_parallel: bool = False,
        fail: Callable[[int, int, int], Any] | None = None,
    ) -> None:
        first_written = len(examples) - results.written
        self._kept = (kernel, results, fail, [_kept_part(example) for example in examples])
        written = range(first_written, len(examples))
        self._tail = np.array(
            [
                *order,
                *(id(part) for maker in results.makers for part in maker),
                *parameters,
                *(offset for example in examples for offset in _span(example)),
                *(int((out, other) in results.in_place) for out in written for other in range(len(examples))),
            ],
            np.int64,
        )
        head = [
            kernel.address,
            len(examples),
            len(parameters),
            POOLS.cell_address() if is_parallel else 0,
            *workspace,
            len(order),
            0 if fail is None else id(fail),
            self._tail.ctypes.data,
            id(np.ndarray),
            id(int),
            len(results.makers),
            results.written,
            0 if results.make is None else id(results.make),
        ]
        assert len(head) == FIRST_DESCRIPTION, "as fastcall_ir reads it"
        parts = [_description(example, number >= first_written) for number, example in enumerate(examples)]
        self.words = np.array([*head, *(word for part in parts for word in part)], np.int64)


def _kept_part(example: Array | Number | Same) -> object:
    match example:
        case Number(kind):
            return kind
        case Same(value):
            return value
        case _:
            return example.dtype


def _description(example: Array | Number | Same, is_written: bool) -> list[int]:
    match example:
        case Number():
            return _number_description(example)
        case Same(value):
            return [SAME, id(value), 0]
        case _:
            dimensions = [word for pair in zip(example.shape, example.strides) for word in pair]
            kind_word = WRITTEN if is_written else ARRAY
            return [kind_word, id(example.dtype), example.ndim, example.itemsize - 1, *dimensions]


def _number_description(number: Number) -> list[int]:
    dtype = number.dtype
    if number.kind in _FLOATS:
        return [FLOAT_F64 if dtype.char == "d" else FLOAT_F32, id(number.kind), 0]
    if number.is_of_its_dtype:
        return [SCALAR, id(number.kind), 0]
    if dtype.char in "fd":
        most = 1 << np.finfo(dtype).nmant
        return [INT_F64 if dtype.char == "d" else INT_F32, -most, most]
    if dtype.char == "?":
        return [INT, 0, 1]
    least, most = number.reach or (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    return [INT, least, min(most, _MOST_INT)]


def _span(example: Array | Number | Same) -> tuple[int, int]:
    """The bytes that an argument touches, from its pointer."""
    match example:
        case Number():
            return 1, 0
        case Same():
            return 0, 0
        case _:
            if not example.size:
                return 0, 0
            ends = [stride * (extent - 1) for extent, stride in zip(example.shape, example.strides)]
            return sum(end for end in ends if end < 0), sum(end for end in ends if end > 0) + example.itemsize


class Addressed(Protocol):
    """What has machine code and keeps it alive."""

    @property
    def address(self) -> int: ...


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
        """Know one more kind of call, and forget the oldest where there are too many. Callers hold `forks.LEARNING`."""
        self._entries = (entry, *self._entries)[:KEPT_ENTRIES]
        self.call = self._function()

    def knows(self, entry: Entry) -> bool:
        """Whether the kind of call is still known."""
        return entry in self._entries

    def _function(self) -> Quick:
        words = [len(self._entries), *(known.words.ctypes.data for known in self._entries)]
        definition = _MethodDefinition(b"quick", self._code.addresses[CALL], _METH_FASTCALL, None)
        table = np.array(words, np.int64).view(_Table)
        table.kept = (definition, self._code, self._entries)
        return _new_function(ctypes.addressof(definition), id(table))


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
    made = Results(((np.empty, ((2, 2), np.dtype(np.int64))),))
    entries, trial = Entries(code), _Trial(code.addresses[TRIAL])
    entries.add(Entry(trial, [y, x], [1, 0, -1], made, [7]))
    entries.add(Entry(trial, [x, x], [0, 1, -1], made, [100], (64, 64)))
    for value in range(3):
        x[0, 0] = value
        for found, expected in ((entries.call(x, x), value + 100), (entries.call(y, x), value + 7)):
            if not isinstance(found, np.ndarray) or found.shape != (2, 2) or found[0, 0] != expected:
                return False
    shifted = np.frombuffer(b"\0" * 100, np.uint8)[1:97].view(np.int64)
    own_dtype = x.view(np.dtype(x.dtype, copy=True))
    if entries.call(own_dtype, own_dtype) is None:
        return False
    others: list[Any] = [
        x.tolist(),
        x.astype(np.float64),
        x.view(x.dtype.newbyteorder()),
        x[:2],
        x[::-1],
        x.copy(),
        x[0],
        np.lib.stride_tricks.as_strided(shifted, x.shape, x.strides),
        x.view(np.matrix),
    ]
    misfits = [(), (x,), (x, x, x), *((other, x) for other in others), *((y, other) for other in others)]
    return all(entries.call(*arguments) is None for arguments in misfits) and _numbers_work(code, x)


def _numbers_work(code: LoadedCode, x: Array) -> bool:
    """Whether numbers of Python arrive as the kernel reads them, several results and written arguments work."""
    trial, whole, double = _Trial(code.addresses[TRIAL]), np.dtype(np.int64), np.dtype(np.float64)
    maker = (np.empty, ((), whole))
    entries = Entries(code)
    entries.add(Entry(trial, [Number(int, whole), Same(None)], [0, 0, -1], Results((maker, maker)), [1]))
    entries.add(Entry(trial, [Number(float, double), Same(None)], [0, 0, -1], Results((maker,)), [1]))
    entries.add(Entry(trial, [Number(np.float64, double), Same(None)], [0, 0, -1], Results((maker,)), [1]))
    entries.add(Entry(trial, [Number(np.int64, whole), Same(None)], [0, 0, -1], Results((maker,)), [3]))
    entries.add(Entry(trial, [x, x.copy()], [0, 0, 1], Results(written=1), [5]))
    pair, bits = entries.call(-3, None), entries.call(1.5, None)
    if not (isinstance(pair, tuple) and len(pair) == 2 and pair[0] == -2):
        return False
    if not isinstance(bits, np.ndarray) or bits != np.float64(1.5).view(np.int64) + 1:
        return False
    numpys, same_bits = entries.call(np.int64(-3), None), entries.call(np.float64(1.5), None)
    if not isinstance(numpys, np.ndarray) or numpys != 0 or not isinstance(same_bits, np.ndarray) or same_bits != bits:
        return False
    out = x.copy()
    if entries.call(x, out) is not out or out[0, 0] != x[0, 0] + 5:
        return False
    frozen = out.copy()
    frozen.flags.writeable = False
    numbers: list[Any] = [2**70, True, "1", np.int32(1), np.float32(1)]
    misfits = [(x, frozen), (1, 1), *((number, None) for number in numbers)]
    return all(entries.call(*arguments) is None for arguments in misfits)
