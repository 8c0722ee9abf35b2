"""A GPU through pycuda: the thin layer that no machine without one can run.

All of a process's libraries share a device's primary context, so their pointers are valid here. pycuda ties a context
to the thread that asked for it, so each thread asks, and has its own pool of memory. Kernels run on the default stream,
or, where the caller's library works on another one, on a stream of ours that waits for it and that it waits for.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pycuda.driver as cuda

from polyopt.classes import dataclass
from polyopt.errors import BackendUnavailable, CompileError
from polyopt.runtime.cuda.arrays import Home
from polyopt.runtime.cuda.driver import Array, Limits, Memory, Module
from polyopt.runtime.cuda.image import CudaImage, KernelImage
from polyopt.target import STATIC_SHARED_BYTES


class GpuMemory:
    """Memory from a thread's pool, which it goes back to. free: the pool's blocks of its size"""

    __slots__ = ("_block", "_free", "address", "size")

    def __init__(self, free: list[Any], block: Any, size: int) -> None:
        self._free, self._block = free, block
        self.address = int(block)
        self.size = size

    def __del__(self) -> None:
        self._free.append(self._block)


class Pool:
    """Blocks that calls of one thread have given back, for its next calls: the driver's own ways wait for the device.

    pycuda's pool does not do, since it wants a context wherever memory goes back, which is wherever the last reference
    to an array ends.
    """

    def __init__(self) -> None:
        self._free: defaultdict[int, list[Any]] = defaultdict(list)

    def take(self, size: int) -> GpuMemory:
        """Needs a context. Raises `cuda.MemoryError`."""
        rounded = _rounded(size)
        free = self._free[rounded]
        try:
            block = free.pop()
        except IndexError:
            block = cuda.mem_alloc(rounded)
        return GpuMemory(free, block, size)

    def free(self) -> None:
        """Give the driver what nobody uses. Needs a context."""
        for blocks in self._free.values():
            blocks.clear()


def _rounded(size: int) -> int:
    """The size of the block that holds so many bytes: at most an eighth more, so that a pool has few sizes."""
    step = max(512, 1 << max(0, size.bit_length() - 4))
    return -(-max(1, size) // step) * step


@dataclass(frozen=True, slots=True, eq=False)
class GpuModule:
    """A loaded cubin. functions: by kernel, with their parameters declared"""

    module: Any
    functions: dict[str, Any]


class _Thread(threading.local):
    """What one thread has of the device."""

    context: Any = None
    pool: Pool | None = None
    stream: Any = None


class _Entered(threading.local):
    """The devices that a thread is inside of, the innermost last."""

    def __init__(self) -> None:
        self.devices: list[_Active] = []


_entered = _Entered()


class _Active:
    """The device's primary context is current in the thread that is inside. Entered again at once, it pushes nothing.

    Between two entries of one device there may be another's, as where a finaliser runs a call: then it pushes.
    """

    __slots__ = ("_device", "_thread")

    def __init__(self, device: Any) -> None:
        self._device = device
        self._thread = _Thread()

    def __enter__(self) -> _Thread:
        mine, devices = self._thread, _entered.devices
        if not devices or devices[-1] is not self:
            if mine.context is None:
                mine.context = self._device.retain_primary_context()
            mine.context.push()
        devices.append(self)
        return mine

    def __exit__(self, *_: object) -> None:
        devices = _entered.devices
        devices.pop()
        if not devices or devices[-1] is not self:
            cuda.Context.pop()


class PycudaDriver:
    """A `Driver` for one GPU."""

    wants_cubin = True

    def __init__(self, ordinal: int = 0) -> None:
        """Raises `BackendUnavailable` where there is no device of this number."""
        cuda.init()
        if ordinal >= cuda.Device.count():
            raise BackendUnavailable(
                f"there is no GPU {ordinal}",
                why=f"this machine has {cuda.Device.count()}",
                facts={"device": ordinal},
            )
        self.ordinal = ordinal
        self._device = cuda.Device(ordinal)
        self._active = _Active(self._device)
        self.limits = self._limits()

    def _limits(self) -> Limits:
        get, names = self._device.get_attribute, cuda.device_attribute
        return Limits(
            name=self._device.name(),
            capability=tuple(self._device.compute_capability()),
            shared_bytes=get(names.MAX_SHARED_MEMORY_PER_BLOCK_OPTIN),
            sms=get(names.MULTIPROCESSOR_COUNT),
            sm_threads=get(names.MAX_THREADS_PER_MULTIPROCESSOR),
            l2_bytes=get(names.L2_CACHE_SIZE),
            registers=get(names.MAX_REGISTERS_PER_MULTIPROCESSOR),
            threads=get(names.MAX_THREADS_PER_BLOCK),
            grid=(get(names.MAX_GRID_DIM_X), get(names.MAX_GRID_DIM_Y), get(names.MAX_GRID_DIM_Z)),
            block=(get(names.MAX_BLOCK_DIM_X), get(names.MAX_BLOCK_DIM_Y), get(names.MAX_BLOCK_DIM_Z)),
        )

    def active(self) -> _Active:
        return self._active

    def load(self, image: CudaImage) -> GpuModule:
        with self._active:
            try:
                module = cuda.module_from_buffer(image.cubin)
                return GpuModule(module, {k.name: _prepared(module, k) for k in image.kernels})
            except cuda.Error as error:
                raise CompileError(
                    f"{self.limits.name} refuses kernels compiled for {image.arch}",
                    why=str(error),
                    facts={"arch": image.arch, "device": self.limits.name},
                ) from None

    def allocate(self, size: int, name: str, *, is_written: bool) -> GpuMemory:
        with self._active as mine:
            if mine.pool is None:
                mine.pool = Pool()
            try:
                return mine.pool.take(size)
            except cuda.MemoryError:
                mine.pool.free()
            try:
                return mine.pool.take(size)
            except cuda.MemoryError:
                raise MemoryError(f"no {size} bytes on {self.limits.name} for {name}") from None

    def copy(self, target: int, source: int, size: int) -> None:
        if size:
            with self._active:
                cuda.memcpy_dtod_async(target, source, size, None)

    def wait(self) -> None:
        with self._active:
            cuda.Context.synchronize()

    def begin(self, module: Module, memories: Sequence[Memory], home: object = None) -> GpuQueue:
        caller = _home(home)
        if caller is None or not caller.stream():
            return _DEFAULT_STREAM
        with self._active as mine:
            mine.stream = mine.stream or cuda.Stream()
            caller.let_wait(mine.stream.handle)
            return GpuQueue(mine.stream, caller)


def _home(home: object) -> Home | None:
    return home if hasattr(home, "stream") else None  # type: ignore[return-value]  # the caller's, if it is one


def _prepared(module: Any, kernel: KernelImage) -> Any:
    function = module.get_function(kernel.name)
    if kernel.shared_bytes > STATIC_SHARED_BYTES:
        function.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared_bytes)
    return function.prepare(["P"] * kernel.pointers + ["q"] * (len(kernel.parameters) - kernel.pointers))


@dataclass(frozen=True, slots=True, eq=False)
class GpuQueue:
    """The work of one call. stream: None for the default stream; home: who waits for the stream, and it for them"""

    stream: Any
    home: Home | None

    def put(self, memory: Memory, array: Array) -> None:
        if array.nbytes:
            cuda.memcpy_htod_async(memory.address, _bytes(array), self.stream)

    def get(self, memory: Memory, array: Array) -> None:
        if array.nbytes:
            cuda.memcpy_dtoh_async(_bytes(array), memory.address, self.stream)
            if self.stream is None:
                cuda.Context.synchronize()
            else:
                self.stream.synchronize()

    def launch(self, module: Module, kernel: KernelImage, grid: tuple[int, int, int], words: Sequence[int]) -> None:
        assert isinstance(module, GpuModule), "the module was loaded by this driver"
        function = module.functions[kernel.name]
        function.prepared_async_call(grid, kernel.block, self.stream, *words, shared_size=kernel.shared_bytes)

    def finish(self) -> None:
        if self.home is not None:
            self.home.wait_for(self.stream.handle)


_DEFAULT_STREAM = GpuQueue(None, None)


def _bytes(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)
