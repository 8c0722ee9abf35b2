"""A compiled kernel: what a caller must know of it, and how it is called.

The calling convention is that of `codegen_c.abi`: one pointer to a block of words.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NoReturn

import numpy as np

from polyopt import dtypes
from polyopt.classes import dataclass
from polyopt.codegen_c.abi import ALIGNMENT, ERROR_RECORD_WORDS, FIRST_ARGUMENT
from polyopt.dtypes import DType
from polyopt.errors import BoundsError, Span
from polyopt.runtime import extent, jit, memory
from polyopt.runtime.extent import Extent
from polyopt.runtime.pool import POOLS, SERIAL

KEPT_WORKSPACE_BYTES = 256 << 20
"""A thread keeps its workspace for the next call up to this size; a larger one is given back after the call."""


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """One array that a kernel reads or writes.

    shape:   extents over the sizes
    strides: bytes per step of each dimension, numbers or names of run-time strides; None: C-contiguous
    """

    name: str
    dtype: DType
    role: Literal["input", "output"]
    shape: tuple[Extent, ...]
    strides: tuple[Extent, ...] | None = None


@dataclass(frozen=True, slots=True)
class SiteInfo:
    """What a run-time check checks: subscript `dimension` of `array`, at a place in the user's file."""

    array: str
    dimension: int
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class ConditionInfo:
    """A condition on sizes that a call must meet; `test` evaluates to 0 where it does not."""

    text: str
    test: Extent


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """All that a caller must know of a compiled kernel.

    entry:         its symbol in the object code
    arguments:     the arrays, inputs in call order, then results, as the words block holds them
    parameters:    names of the i64 parameters in order: symbolic sizes, then run-time strides
    shared_bytes:  workspace of the whole call
    private_bytes: workspace of each worker slot
    is_parallel:   whether it uses the thread pool
    sites:         run-time checks; the error record holds the number of a site
    conditions:    on sizes, checked at each call with sizes that no call has had before
    in_place:      pairs (result, input) whose memory may be the same: each element depends on itself only
    """

    entry: str
    arguments: tuple[ArrayInfo, ...]
    parameters: tuple[str, ...] = ()
    shared_bytes: Extent = 0
    private_bytes: Extent = 0
    is_parallel: bool = False
    sites: tuple[SiteInfo, ...] = ()
    conditions: tuple[ConditionInfo, ...] = ()
    in_place: tuple[tuple[str, str], ...] = ()

    @property
    def inputs(self) -> tuple[ArrayInfo, ...]:
        return tuple(array for array in self.arguments if array.role == "input")

    @property
    def results(self) -> tuple[ArrayInfo, ...]:
        return tuple(array for array in self.arguments if array.role == "output")

    def temporary_bytes(self, sizes: Mapping[str, int], slots: int) -> int:
        """Bytes of workspace that a call allocates for temporaries."""
        return extent.evaluate(self.shared_bytes, sizes) + slots * extent.evaluate(self.private_bytes, sizes)


def as_json(info: KernelInfo) -> dict[str, Any]:
    """The info as plain lists, dictionaries, numbers and strings."""
    return {
        "entry": info.entry,
        "arguments": [[a.name, a.dtype.name, a.role, a.shape, a.strides] for a in info.arguments],
        "parameters": info.parameters,
        "shared_bytes": info.shared_bytes,
        "private_bytes": info.private_bytes,
        "is_parallel": info.is_parallel,
        "sites": [[site.array, site.dimension, _span_as_json(site.span)] for site in info.sites],
        "conditions": [[condition.text, condition.test] for condition in info.conditions],
        "in_place": info.in_place,
    }


def from_json(data: Mapping[str, Any]) -> KernelInfo:
    """The info that `as_json` wrote. Raises `ValueError`, `KeyError` or `TypeError` for anything else."""
    return KernelInfo(
        entry=str(data["entry"]),
        arguments=tuple(_array_from_json(*item) for item in data["arguments"]),
        parameters=tuple(map(str, data["parameters"])),
        shared_bytes=extent.from_json(data["shared_bytes"]),
        private_bytes=extent.from_json(data["private_bytes"]),
        is_parallel=bool(data["is_parallel"]),
        sites=tuple(SiteInfo(str(a), int(d), _span_from_json(span)) for a, d, span in data["sites"]),
        conditions=tuple(ConditionInfo(str(text), extent.from_json(test)) for text, test in data["conditions"]),
        in_place=tuple((str(result), str(source)) for result, source in data["in_place"]),
    )


def _array_from_json(name: str, dtype: str, role: str, shape: Any, strides: Any) -> ArrayInfo:
    if role not in ("input", "output"):
        raise ValueError(f"not a role: {role!r}")
    return ArrayInfo(
        str(name),
        dtypes.from_name(dtype),
        "input" if role == "input" else "output",
        tuple(map(extent.from_json, shape)),
        None if strides is None else tuple(map(extent.from_json, strides)),
    )


def _span_as_json(span: Span | None) -> list[Any] | None:
    return None if span is None else [span.file, span.line, span.column, span.end_column]


def _span_from_json(data: Any) -> Span | None:
    if data is None:
        return None
    file, line, column, end_column = data
    return Span(str(file), int(line), int(column), int(end_column))


class Kernel:
    """A kernel in memory: `launch` runs it. Safe to call from several threads at once."""

    def __init__(self, info: KernelInfo, object_code: bytes) -> None:
        self.info = info
        self._code = jit.load_object(object_code, (info.entry,))
        self.address = self._code.addresses[info.entry]

    def launch(self, pointers: Sequence[int], parameters: Sequence[int] = ()) -> None:
        """Run on the arrays at `pointers` (in the order of `info.arguments`); a shorthand for `bind` and a call."""
        self.bind(parameters)(pointers)

    def bind(self, parameters: Sequence[int] = ()) -> BoundKernel:
        """The kernel with its i64 parameters fixed, ready for calls with pointers only."""
        return BoundKernel(self, tuple(parameters))


class BoundKernel:
    """A kernel whose sizes are known. Calling it releases the GIL while the kernel runs.

    workspace: bytes shared, and private to each slot
    """

    __slots__ = ("_function", "_has_sites", "_is_parallel", "_pack", "kernel", "parameters", "workspace")

    def __init__(self, kernel: Kernel, parameters: tuple[int, ...]) -> None:
        info = kernel.info
        sizes = dict(zip(info.parameters, parameters, strict=True))
        self.kernel = kernel
        self.parameters = parameters
        self.workspace = extent.evaluate(info.shared_bytes, sizes), extent.evaluate(info.private_bytes, sizes)
        self._is_parallel = info.is_parallel
        self._has_sites = bool(info.sites)
        self._pack = struct.Struct(f"={FIRST_ARGUMENT + len(info.arguments) + len(parameters)}q").pack
        self._function = _ENTRY(kernel.address)

    def __call__(self, pointers: Sequence[int]) -> None:
        """Run on the arrays at `pointers`.

        Raises `BoundsError` where a data subscript was out of range (the results then hold nothing of use), and
        `MemoryError` where there is no memory for temporaries.
        """
        pool = POOLS.current() if self._is_parallel else SERIAL
        shared, private = self.workspace
        needed = shared + pool.slots * private
        workspace, _kept = _WORKSPACE.reserve(needed) if needed else (0, None)
        if not self._has_sites:
            self._function(self._pack(pool.run, workspace, 0, pool.slots, *pointers, *self.parameters))
            return
        record = _RECORD()
        error_address = ctypes.addressof(record)
        self._function(self._pack(pool.run, workspace, error_address, pool.slots, *pointers, *self.parameters))
        if record[0]:
            self.fail(*record)

    def fail(self, site: int, index: int, length: int) -> NoReturn:
        """Raise the `BoundsError` that a run-time check recorded."""
        raise bounds_error(self.kernel.info.sites[site - 1], index, length)


_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_RECORD = ctypes.c_int64 * ERROR_RECORD_WORDS


_BYTE = np.dtype(np.uint8)


class _Workspace(threading.local):
    """The calling thread's scratch memory, kept from call to call."""

    held: np.ndarray[Any, Any] | None = None

    def reserve(self, size: int) -> tuple[int, np.ndarray[Any, Any]]:
        """The address of at least `size` bytes, aligned as kernels want it, and what holds them.

        Others of the thread's calls may use them too, none while this one's kernel runs. Whoever runs a kernel holds
        them: a signal handler or a finaliser that calls an op before the kernel starts may let the thread keep others.
        """
        found = self.held
        room = 0 if found is None else found.nbytes - ALIGNMENT
        if found is None or size > room or (room > KEPT_WORKSPACE_BYTES and room >= 2 * size):
            found = self.held = None
            found = self.held = memory.empty((size + ALIGNMENT,), _BYTE)
        return -(-found.ctypes.data // ALIGNMENT) * ALIGNMENT, found


_WORKSPACE = _Workspace()


def bounds_error(site: SiteInfo, index: int, length: int) -> BoundsError:
    """The error for a subscript that is data and was out of range."""
    return BoundsError(
        f"subscript {site.dimension} of '{site.array}' is {index}, outside its extent {length}",
        where=site.span,
        why=f"the subscript is data, checked as the kernel runs; valid values are 0 to {length - 1}"
        if length
        else "the subscript is data, checked as the kernel runs; the extent is 0, so no value is valid",
        fix="correct the index array (a negative index does not wrap around)",
        facts={"array": site.array, "dimension": site.dimension, "index": index, "extent": length},
    )
