"""A GPU through pycuda: the thin layer that no machine without one can run.

All of a process's libraries share a device's primary context, so their pointers are valid here. pycuda ties a context
to the thread that asked for it, so each thread asks, and has its own pool of memory. Kernels run on the default stream,
or, where the caller's library works on another one, on a stream of ours that waits for it and that it waits for.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pycuda.driver as cuda

from polyopt.classes import dataclass
from polyopt.errors import BackendUnavailable, CompileError
from polyopt.runtime.cuda.arrays import Home
from polyopt.runtime.cuda.driver import Array, Limits, Memory, Module
from polyopt.runtime.cuda.image import CudaImage, KernelImage
from polyopt.target import STATIC_SHARED_BYTES

STAGED_BYTES, PART_BYTES = 8 << 20, 4 << 20
"""Page-locked memory of a call that copies from and to the host, and the most that one copy takes of it."""

MOST_STAGED = 8
"""Calls that may be under way with such memory before another one waits for the first of them."""


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


class Staging:
    """Page-locked memory for arrays of the host, the only kind that asynchronous copies are defined for (pycuda's
    rule).

    Each piece is one call's at a time, also where a finaliser calls an op inside another's call. It comes back with an
    event behind the last copy that reads it. Needs a context.
    """

    def __init__(self) -> None:
        self._given: list[tuple[Any, Array]] = []

    def take(self) -> Array:
        """A piece whose copies are done, else a new one, unless many are under way."""
        for given in tuple(self._given):
            if given[0].query() and _removed(self._given, given):
                return given[1]
        if len(self._given) >= MOST_STAGED:
            event, first = self._given.pop(0)
            event.synchronize()
            return first
        piece: Array = cuda.pagelocked_empty((STAGED_BYTES,), np.uint8)
        return piece

    def give(self, piece: Array, stream: Any) -> None:
        """Give a piece back, whose last copy has been put on a stream."""
        event = cuda.Event(cuda.event_flags.DISABLE_TIMING)
        event.record(stream)
        self._given.append((event, piece))


def _removed(pieces: list[tuple[Any, Array]], one: tuple[Any, Array]) -> bool:
    """Whether this thread, and no other one, takes a piece from the list."""
    try:
        pieces.remove(one)
    except ValueError:
        return False
    return True


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
        self._staging = Staging()
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
            return GpuQueue(None, None, self._staging)
        with self._active as mine:
            mine.stream = mine.stream or cuda.Stream()
            caller.let_wait(mine.stream.handle)
            return GpuQueue(mine.stream, caller, self._staging)


def _home(home: object) -> Home | None:
    return home if hasattr(home, "stream") else None  # type: ignore[return-value]  # the caller's, if it is one


def _prepared(module: Any, kernel: KernelImage) -> Any:
    function = module.get_function(kernel.name)
    if kernel.shared_bytes > STATIC_SHARED_BYTES:
        function.set_attribute(cuda.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, kernel.shared_bytes)
    return function.prepare(["P"] * kernel.pointers + ["q"] * (len(kernel.parameters) - kernel.pointers))


class GpuQueue:
    """The work of one call. stream: None for the default stream; home: who waits for the stream, and it for them;
    staging: what arrays of the host go through"""

    __slots__ = ("_staged", "_staging", "_used", "home", "stream")

    def __init__(self, stream: Any, home: Home | None, staging: Staging) -> None:
        self.stream = stream
        self.home = home
        self._staging = staging
        self._staged: Array | None = None
        self._used = 0

    def put(self, memory: Memory, array: Array) -> None:
        for start, part in _parts(array):
            place = self._place(part.nbytes)
            place[:] = part
            cuda.memcpy_htod_async(memory.address + start, place, self.stream)

    def get(self, memory: Memory, array: Array) -> None:
        for start, part in _parts(array):
            place = self._place(part.nbytes)
            cuda.memcpy_dtoh_async(place, memory.address + start, self.stream)
            self._wait()
            part[:] = place

    def _place(self, size: int) -> Array:
        """Page-locked memory for a copy."""
        if self._staged is None:
            self._staged = self._staging.take()
        if self._used + size > STAGED_BYTES:
            self._wait()
        start = self._used
        self._used += -(-size // 64) * 64
        return self._staged[start : start + size]

    def _wait(self) -> None:
        """Until all that was put has run."""
        if self.stream is None:
            cuda.Context.synchronize()
        else:
            self.stream.synchronize()
        self._used = 0

    def launch(self, module: Module, kernel: KernelImage, grid: tuple[int, int, int], words: Sequence[int]) -> None:
        assert isinstance(module, GpuModule), "the module was loaded by this driver"
        function = module.functions[kernel.name]
        function.prepared_async_call(grid, kernel.block, self.stream, *words, shared_size=kernel.shared_bytes)

    def finish(self) -> None:
        if self._staged is not None:
            self._staging.give(self._staged, self.stream)
            self._staged = None
        if self.home is not None:
            self.home.wait_for(self.stream.handle)


def _parts(array: Array) -> Iterator[tuple[int, Array]]:
    """The bytes of a contiguous array, as many at a time as one copy takes, each with how many are before."""
    whole = array.reshape(-1).view(np.uint8)
    return ((start, whole[start : start + PART_BYTES]) for start in range(0, whole.nbytes, PART_BYTES))
