"""A `pycuda` whose device is this machine's memory: everything above pycuda runs, on the emulator.

It holds callers to pycuda's own rules: a context is current, contexts are left as they were found, a launch packs as
many parameters as were declared, more than 48 KiB of shared memory is asked for first.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from polyopt import compilation
from polyopt.runtime.cuda import compilers, devices, image
from polyopt.runtime.cuda.image import CudaImage, KernelImage
from polyopt.runtime.emulator.driver import EmulatedMemory, Emulator

SHARED_BYTES = 227 << 10


class Error(Exception):
    """As pycuda.driver.Error."""


class OutOfMemory(Error):
    """As pycuda.driver.MemoryError."""


class LogicError(Error):
    """As pycuda.driver.LogicError."""


@dataclass
class Device:
    """The one device, and what was done to it."""

    emulator: Emulator
    total_bytes: int = 1 << 30
    memories: dict[int, EmulatedMemory] = field(default_factory=dict)
    stack: list[str] = field(default_factory=list)
    launches: list[tuple[str, tuple[int, ...], Any]] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    pushes: int = 0
    is_idle: bool = True
    page_locked: list[Any] = field(default_factory=list)

    def allocate(self, size: int) -> EmulatedMemory:
        self.need_context()
        if size + sum(memory.size for memory in self.memories.values()) > self.total_bytes:
            raise OutOfMemory("cuMemAlloc failed: out of memory")
        memory = self.emulator.allocate(size, f"memory{len(self.memories)}", is_written=True)
        self.memories[memory.address] = memory
        return memory

    def need_context(self) -> None:
        if not self.stack:
            raise LogicError("no currently active context?")

    def bytes_at(self, address: int, size: int) -> Any:
        for start, memory in self.memories.items():
            if start <= address and address + size <= start + memory.size:
                return memory.bytes[address - start : address - start + size]
        raise LogicError("cuMemcpy failed: invalid argument")


class _Allocation(int):
    """Memory of the device: its address, and the memory itself. As pycuda's, it may end where no context is current."""

    memory: EmulatedMemory
    device: Device

    def __del__(self) -> None:
        self.device.memories.pop(int(self), None)


class _Stream:
    handle = 4242

    def __init__(self, device: Device) -> None:
        self._device = device

    def synchronize(self) -> None:
        self._device.events.append("stream waited for")


class _Function:
    def __init__(self, device: Device, module: Any, found: CudaImage, kernel: KernelImage) -> None:
        self._device, self._module, self._image, self._kernel = device, module, found, kernel
        self._types: list[str] = []
        self._shared = 48 << 10

    def set_attribute(self, name: str, value: int) -> None:
        assert name == "MAX_DYNAMIC_SHARED_SIZE_BYTES"
        self._shared = value

    def prepare(self, types: list[str]) -> _Function:
        self._types = types
        return self

    def prepared_async_call(self, grid: Any, block: Any, stream: Any, *words: int, shared_size: int = 0) -> None:
        device = self._device
        device.need_context()
        if shared_size > self._shared:
            raise LogicError("cuLaunchKernel failed: invalid argument")
        assert len(words) == len(self._types)
        assert block == self._kernel.block
        assert all(type(n) is int for n in (*grid, *block, *words))
        queue = device.emulator.begin(self._module, tuple(device.memories.values()))
        queue.launch(self._module, self._kernel, grid, words)
        queue.finish()
        device.launches.append((self._kernel.name, grid, stream))


class _Module:
    def __init__(self, device: Device, code: bytes) -> None:
        device.need_context()
        if code not in _texts:
            raise Error("cuModuleLoadDataEx failed: device kernel image is invalid")
        self._device, self._image = device, _texts[code]
        self._loaded = device.emulator.load(self._image)

    def get_function(self, name: str) -> _Function:
        return _Function(self._device, self._loaded, self._image, self._image.kernel(name))


_texts: dict[bytes, CudaImage] = {}
"""What each cubin was made from, for the emulator."""


def _packages(device: Device) -> dict[str, types.ModuleType]:
    driver = types.ModuleType("pycuda.driver")

    class Context:
        def push(self) -> None:
            device.stack.append("primary")
            device.pushes += 1

        @staticmethod
        def pop() -> None:
            device.stack.pop()

        @staticmethod
        def synchronize() -> None:
            device.need_context()
            device.events.append("device waited for")

    class CudaDevice:
        def __init__(self, ordinal: int) -> None:
            self.ordinal = ordinal

        @staticmethod
        def count() -> int:
            return 1

        def name(self) -> str:
            return "a make-believe GPU"

        def compute_capability(self) -> tuple[int, int]:
            return 9, 0

        def get_attribute(self, name: str) -> int:
            return _ATTRIBUTES[name]

        def retain_primary_context(self) -> Context:
            return Context()

    def allocate(size: int) -> _Allocation:
        memory = device.allocate(size)
        allocation = _Allocation(memory.address)
        allocation.memory, allocation.device = memory, device
        return allocation

    def load(code: bytes) -> _Module:
        return _Module(device, bytes(code))

    def pagelocked_empty(shape: tuple[int, ...], dtype: Any) -> Any:
        device.need_context()
        device.page_locked.append(np.empty(shape, dtype))
        return device.page_locked[-1]

    class Event:
        def __init__(self, flags: str) -> None:
            assert flags == "DISABLE_TIMING"

        def record(self, stream: Any) -> None:
            device.need_context()

        def query(self) -> bool:
            return device.is_idle

        def synchronize(self) -> None:
            device.events.append("event waited for")

    def need_page_locked(array: Any) -> None:
        if not any(np.shares_memory(array, whole) for whole in device.page_locked):
            raise LogicError("an asynchronous copy of memory that is not page-locked")

    def htod(address: int, array: Any, stream: Any) -> None:
        device.need_context()
        need_page_locked(array)
        device.bytes_at(address, array.nbytes)[:] = array

    def dtoh(array: Any, address: int, stream: Any) -> None:
        device.need_context()
        need_page_locked(array)
        array[:] = device.bytes_at(address, array.nbytes)

    def dtod(target: int, source: int, size: int, stream: Any) -> None:
        device.need_context()
        device.bytes_at(target, size)[:] = device.bytes_at(source, size)

    class Names:
        def __getattr__(self, name: str) -> str:
            return name

    vars(driver).update(
        Error=Error,
        MemoryError=OutOfMemory,
        LogicError=LogicError,
        Device=CudaDevice,
        Context=Context,
        Stream=lambda: _Stream(device),
        init=lambda: None,
        device_attribute=Names(),
        function_attribute=Names(),
        mem_alloc=allocate,
        module_from_buffer=load,
        memcpy_htod_async=htod,
        pagelocked_empty=pagelocked_empty,
        Event=Event,
        event_flags=Names(),
        memcpy_dtoh_async=dtoh,
        memcpy_dtod_async=dtod,
    )
    package = types.ModuleType("pycuda")
    vars(package).update(driver=driver)
    return {"pycuda": package, "pycuda.driver": driver}


_ATTRIBUTES = {
    "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": SHARED_BYTES,
    "MULTIPROCESSOR_COUNT": 132,
    "MAX_THREADS_PER_MULTIPROCESSOR": 2048,
    "L2_CACHE_SIZE": 50 << 20,
    "MAX_REGISTERS_PER_MULTIPROCESSOR": 1 << 16,
    "MAX_THREADS_PER_BLOCK": 1024,
    "MAX_GRID_DIM_X": 2**31 - 1,
    "MAX_GRID_DIM_Y": 65535,
    "MAX_GRID_DIM_Z": 65535,
    "MAX_BLOCK_DIM_X": 1024,
    "MAX_BLOCK_DIM_Y": 1024,
    "MAX_BLOCK_DIM_Z": 64,
}


@contextmanager
def installed(patch: pytest.MonkeyPatch) -> Iterator[Device]:
    """While it lasts this machine has a GPU, through pycuda."""
    device = Device(compilation.emulator())
    for name, module in _packages(device).items():
        patch.setitem(sys.modules, name, module)
    patch.delitem(sys.modules, "polyopt.runtime.cuda.gpu", raising=False)
    patch.setattr(devices, "find_spec", lambda name: object())
    from_bytes, from_source = image.from_bytes, image.from_source

    def seen(found: CudaImage) -> CudaImage:
        _texts[found.cubin] = found
        return found

    patch.setattr(image, "from_bytes", lambda data: seen(from_bytes(data)))
    patch.setattr(image, "from_source", lambda source, **more: seen(from_source(source, **more)))
    for cached in (devices._gpu, devices.missing):
        cached.cache_clear()
    assert compilers.nvrtc() is not None, "these tests need NVRTC's wheel"
    try:
        yield device
        assert device.stack == [], "a context was left on the stack"
        assert device.emulator.found == []
    finally:
        patch.undo()
        for cached in (devices._gpu, devices.missing):
            cached.cache_clear()


class Foreign:
    """An array in the memory of the device, of a library that speaks the CUDA array interface."""

    def __init__(self, device: Device, array: Any, *, offset: int = 0, stream: int | None = None) -> None:
        base = np.ascontiguousarray(array)
        device.stack.append("library")
        self._memory = device.allocate(base.nbytes + offset)
        device.stack.pop()
        self._memory.bytes[offset:] = base.reshape(-1).view(np.uint8)
        self.shape, self.dtype, self.offset = base.shape, base.dtype, offset
        self._device, self._stream = device, stream
        self._strides: tuple[int, ...] | None = None

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "strides": self._strides,
            "typestr": self.dtype.str,
            "data": (self._memory.address + self.offset, False),
            "version": 3,
            "stream": self._stream,
        }

    def copy(self) -> Foreign:
        return Foreign(self._device, self.get())

    @property
    def T(self) -> Foreign:
        """The transposed view of the same memory."""
        turned = object.__new__(Foreign)
        vars(turned).update(vars(self))
        turned.shape = self.shape[::-1]
        steps = self._strides or np.empty(self.shape, self.dtype).strides
        turned._strides = tuple(steps[::-1])
        return turned

    def get(self) -> Any:
        flat = self._memory.bytes[self.offset :].view(self.dtype)
        if self._strides is None:
            return flat.reshape(self.shape).copy()
        return np.lib.stride_tricks.as_strided(flat, self.shape, self._strides).copy()


def host_copy(device: Device, own: Any) -> Any:
    """The elements of a result that polyopt made."""
    facts = own.__cuda_array_interface__
    size = int(np.prod(facts["shape"])) * np.dtype(facts["typestr"]).itemsize
    return device.bytes_at(facts["data"][0], size).view(facts["typestr"]).reshape(facts["shape"]).copy()
