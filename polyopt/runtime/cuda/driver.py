"""What a kernel needs of a machine that runs CUDA: memory, modules, launches. GPUs and the emulator provide it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import numpy as np

from polyopt.classes import dataclass
from polyopt.runtime.cuda.image import CudaImage, KernelImage
from polyopt.target import GpuTarget

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a device can do, as `target.GpuTarget` describes it. grid, block: the most along x, y and z."""

    name: str
    capability: tuple[int, int]
    shared_bytes: int
    sms: int = 108
    sm_threads: int = 2048
    l2_bytes: int = 40 << 20
    registers: int = 1 << 16
    threads: int = 1024
    grid: tuple[int, int, int] = (2**31 - 1, 65535, 65535)
    block: tuple[int, int, int] = (1024, 1024, 64)

    @property
    def arch(self) -> str:
        return f"sm_{self.capability[0]}{self.capability[1]}"

    def as_target(self) -> GpuTarget:
        return GpuTarget(
            self.arch, self.sms, self.sm_threads, self.shared_bytes, self.l2_bytes, self.threads, self.registers
        )


class Memory(Protocol):
    """Memory of a device that is given back when nobody refers to it any more."""

    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...


class Module(Protocol):
    """Kernels that a driver has loaded."""


class Queue(Protocol):
    """Puts the work of one call on a stream, in order; only `get` waits for it. Used inside `Driver.active`."""

    def put(self, memory: Memory, array: Array) -> None:
        """Copy a C-contiguous array of the host to the start of `memory`."""
        ...

    def get(self, memory: Memory, array: Array) -> None:
        """Copy the start of `memory` into a C-contiguous array of the host, after all work before."""
        ...

    def launch(self, module: Module, kernel: KernelImage, grid: tuple[int, int, int], words: Sequence[int]) -> None:
        """Run a kernel whose parameters are these 64-bit words: addresses, then integers."""
        ...

    def finish(self) -> None:
        """The call has put all its work: what the caller does next on its stream comes after it."""
        ...


@runtime_checkable
class Driver(Protocol):
    """One device."""

    @property
    def limits(self) -> Limits: ...
    @property
    def wants_cubin(self) -> bool:
        """Whether it loads machine code; else it takes the text."""
        ...

    def active(self) -> AbstractContextManager[object]:
        """While it lasts this thread works on the device. Entered again inside itself it costs next to nothing."""
        ...

    def load(self, image: CudaImage) -> Module:
        """Raises `CompileError` where the device cannot run the image."""
        ...

    def allocate(self, size: int, name: str, *, is_written: bool) -> Memory:
        """Device memory at a multiple of 256 bytes. is_written: whether it holds values before the first kernel.

        Raises `MemoryError`.
        """
        ...

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy `size` bytes between two addresses of the device, on the default stream."""
        ...

    def wait(self) -> None:
        """Wait for all work on the device."""
        ...

    def begin(self, module: Module, memories: Sequence[Memory], home: object = None) -> Queue:
        """A call starts, whose kernels may touch these memories only. Inside `active`, as all of the call is.

        home: the library whose arrays they are, on whose current stream the work is ordered
        """
        ...
