"""The emulator as a driver: host memory stands for device memory, and each launch is checked access by access."""

from __future__ import annotations

import ctypes
import itertools
import re
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from polyopt.classes import dataclass
from polyopt.errors import BackendUnavailable
from polyopt.forks import COMPILING
from polyopt.runtime.cuda import compilers
from polyopt.runtime.cuda.driver import Array, Limits, Memory, Module
from polyopt.runtime.cuda.image import CudaImage, KernelImage
from polyopt.runtime.emulator import build, from_ptx

Mode = Literal["fast", "check", "count", "trace"]
ALIGNMENT = 256
REDZONE_BYTES = 4096
"""Between two arrays lies memory that belongs to none, so that an access past an end is found."""
SHARED_LIMIT = 227 << 10
_MODES: dict[Mode, int] = {"fast": 0, "check": 1, "count": 2, "trace": 3}
_ATOMIC, _GLOBAL = 2, 16
_AHEAD = {"read of uninitialised shared memory", "read of an element that nothing has written"}
_names = itertools.count()


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a kernel must not do.

    what:  "race: read after unordered write", "access outside every buffer", ...
    line:  of the kernels' text; 0 where it is not known
    detail: the element, the threads, and where the other access stands
    """

    what: str
    line: int
    detail: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """Accesses at one line of the kernels' text, of one kind and width.

    requests: by warps; used: 32-byte sectors of global memory, or wavefronts of shared memory; ideal: at the least
    """

    line: int
    space: Literal["global", "shared"]
    kind: Literal["load", "store", "atomic"]
    bytes: int
    requests: int
    used: int
    ideal: int


class EmulatedMemory:
    """Host memory at a multiple of 256 bytes, with nothing of another array near it."""

    def __init__(self, size: int, name: str, is_written: bool) -> None:
        self._whole: Array = np.full(size + ALIGNMENT + 2 * REDZONE_BYTES, 0xFF, np.uint8)
        start = REDZONE_BYTES + -(self._whole.ctypes.data + REDZONE_BYTES) % ALIGNMENT
        self.bytes: Array = self._whole[start : start + size]
        self.name = name
        self.is_written = is_written

    @property
    def address(self) -> int:
        return int(self.bytes.ctypes.data)

    @property
    def size(self) -> int:
        return len(self.bytes)

    @property
    def is_intact(self) -> bool:
        """Whether nothing around it was written."""
        before = self.address - self._whole.ctypes.data
        return bool((self._whole[:before] == 0xFF).all() and (self._whole[before + self.size :] == 0xFF).all())


class EmulatedModule:
    """A library of kernels. mode: "fast" without checks, "check", "count" with checks and counters, or "trace"."""

    def __init__(self, image: CudaImage, runtime: bytes, mode: Mode) -> None:
        self.mode: Mode = mode
        self.path: Path = build.build_kernels(
            image.text, runtime, is_checked=mode != "fast", contract=image.contract, name=f"module{next(_names)}"
        )
        self.library = ctypes.CDLL(str(self.path))
        self.library.po_log.restype = ctypes.c_char_p
        self.library.po_static_shared.restype = ctypes.c_size_t
        self.base = _load_address(self.path)
        weakref.finalize(self, _unload, self.library._handle).atexit = False

    def function(self, name: str) -> Any:
        return ctypes.cast(getattr(self.library, f"{name}__args"), ctypes.c_void_p)


@dataclass(frozen=True, slots=True)
class EmulatedQueue:
    """The launches of one call, run at once."""

    emulator: Emulator
    module: EmulatedModule

    def put(self, memory: Memory, array: Array) -> None:
        _emulated(memory).bytes[: array.nbytes] = array.reshape(-1).view(np.uint8)

    def get(self, memory: Memory, array: Array) -> None:
        array.reshape(-1).view(np.uint8)[:] = _emulated(memory).bytes[: array.nbytes]

    def launch(self, module: Module, kernel: KernelImage, grid: tuple[int, int, int], words: Sequence[int]) -> None:
        loaded = _module(module)
        values = (ctypes.c_int64 * max(1, len(words)))(*words)
        addresses = (ctypes.addressof(values) + n * ctypes.sizeof(ctypes.c_int64) for n in range(len(words)))
        pointers = (ctypes.c_void_p * max(1, len(words)))(*addresses)
        result = loaded.library.po_launch(
            loaded.function(kernel.name),
            (ctypes.c_uint * 3)(*grid),
            (ctypes.c_uint * 3)(*kernel.block),
            pointers,
            ctypes.c_size_t(kernel.shared_bytes),
            _MODES[self.emulator.mode],
            ctypes.c_uint(self.emulator.seed),
        )
        if result < 0:
            raise MemoryError("no memory for the stacks of the emulated threads")

    def finish(self) -> None:
        self.emulator.found.extend(self.emulator.problems(self.module))


@dataclass(slots=True)
class Emulator:
    """A `Driver` for machines without a GPU.

    runtime: gives the emulator's object code; `build.build_runtime`, or a cache in front of it
    seed:    order of the threads: 0 forward, 1 backward, else random
    through_ptx: whether to run what NVRTC makes of a text, and not the text
    found:   what the kernels of all calls did wrong
    """

    runtime: Callable[[], bytes] = build.build_runtime
    mode: Mode = "check"
    seed: int = 0
    through_ptx: bool = False
    found: list[Problem] = field(default_factory=list)
    wants_cubin: ClassVar[bool] = False
    limits: Limits = field(default_factory=lambda: Limits("the CPU emulator", (9, 0), SHARED_LIMIT))

    def active(self) -> AbstractContextManager[None]:
        return nullcontext()

    def load(self, image: CudaImage) -> EmulatedModule:
        """Raises `BackendUnavailable` without g++, `CompileError` where g++ refuses the text."""
        if self.through_ptx:
            made = compilers.compile_text(image.text, self.limits.arch, "ptx", contract=image.contract)
            image = replace(image, text=from_ptx.translated(made.code.decode()), contract=False)
        with COMPILING:
            return EmulatedModule(image, self.runtime(), self.mode)

    def allocate(self, size: int, name: str, *, is_written: bool) -> EmulatedMemory:
        return EmulatedMemory(size, name, is_written)

    def copy(self, target: int, source: int, size: int) -> None:
        ctypes.memmove(target, source, size)

    def wait(self) -> None:
        """Everything has run already."""

    def begin(self, module: Module, memories: Sequence[Memory], home: object = None) -> EmulatedQueue:
        library = _module(module).library
        library.po_reset()
        if self.mode != "fast":
            start = ctypes.c_void_p()
            size = library.po_static_shared(ctypes.byref(start))
            _register(library, start.value or 0, size, "shared memory", is_shared=True, is_written=False)
            for held in map(_emulated, memories):
                _register(library, held.address, held.size, held.name, is_shared=False, is_written=held.is_written)
        return EmulatedQueue(self, _module(module))

    def problems(self, module: EmulatedModule) -> tuple[Problem, ...]:
        """What the launches since `begin` did wrong. A compiler may load what it then does not use."""
        rows = [line.split("\t", 2) for line in module.library.po_log().decode().splitlines()]
        rows = [row for row in rows if not (self.through_ptx and row[0] in _AHEAD)]
        places = [int(pc, 16) for _, pc, _ in rows]
        others = [[int(pc, 16) for pc in re.findall(r"@(0x[0-9a-f]+)", detail)] for _, _, detail in rows]
        lines = _lines(module, [*places, *itertools.chain(*others)])
        found = []
        for what, pc, detail in rows:
            text = re.sub(r"@(0x[0-9a-f]+)", lambda m: f"line {lines[int(m[1], 16)]}", detail)
            found.append(Problem(what, lines[int(pc, 16)], text))
        return tuple(found)

    def traffic(self, module: EmulatedModule) -> tuple[Traffic, ...]:
        """The counters of the last launch, by line. Empty unless the mode is "count"."""
        pc, kind, width, values = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int(), (ctypes.c_uint64 * 3)()
        rows = []
        for n in itertools.count():
            if not module.library.po_count(n, ctypes.byref(pc), ctypes.byref(kind), ctypes.byref(width), values):
                break
            rows.append((pc.value or 0, kind.value, width.value, *values))
        lines = _lines(module, [row[0] for row in rows])
        total: dict[tuple[int, int, int], Traffic] = {}
        for address, code, size, requests, used, ideal in rows:
            key = (lines[address], code, size)
            before = total.get(key) or _no_traffic(*key)
            total[key] = replace(
                before, requests=before.requests + requests, used=before.used + used, ideal=before.ideal + ideal
            )
        return tuple(total[key] for key in sorted(total))


def _no_traffic(line: int, code: int, size: int) -> Traffic:
    kind = code & ~_GLOBAL
    name: Literal["load", "store", "atomic"] = "atomic" if kind == _ATOMIC else "store" if kind else "load"
    return Traffic(line, "global" if code & _GLOBAL else "shared", name, size, 0, 0, 0)


def _emulated(memory: Memory) -> EmulatedMemory:
    if not isinstance(memory, EmulatedMemory):
        raise BackendUnavailable("the emulator cannot use memory of a GPU", facts={"memory": type(memory).__name__})
    return memory


def _module(module: Module) -> EmulatedModule:
    assert isinstance(module, EmulatedModule), "the module was loaded by this driver"
    return module


def _register(library: Any, address: int, size: int, name: str, *, is_shared: bool, is_written: bool) -> None:
    place, length = ctypes.c_void_p(address), ctypes.c_size_t(size)
    library.po_register(place, length, name.encode(), int(is_shared), int(is_written))


def _unload(handle: int) -> None:
    """Gives back what a module holds: its shadow memory, some twenty bytes for one, and its threads' stacks."""
    dlclose = ctypes.CDLL(None).dlclose
    dlclose.argtypes = [ctypes.c_void_p]
    dlclose(handle)


def _load_address(path: Path) -> int:
    """Where the library lies in memory."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            return int(line.split("-")[0], 16)
    return 0


def _lines(module: EmulatedModule, places: Sequence[int]) -> dict[int, int]:
    """The line of the text for each return address: the instruction before it is the one that is meant."""
    distinct = sorted(set(places))
    found = build.lines_of(module.path, [max(0, place - module.base - 1) for place in distinct])
    return dict(zip(distinct, found, strict=True))
