"""Runs a loaded CUDA program: limits, workspace, the record of run-time checks, and the launches of one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polyopt.classes import dataclass
from polyopt.codegen_cuda.source import RECORD
from polyopt.errors import BackendUnavailable, CompileError
from polyopt.runtime.cuda.driver import Array, Driver, Limits, Memory
from polyopt.runtime.cuda.image import CudaImage, KernelImage

RECORD_WORDS = 3


@dataclass(frozen=True, slots=True)
class Failed:
    """A run-time check that failed: its number, counted from 0, the index that was found, and the extent."""

    site: int
    index: int
    extent: int


@dataclass(frozen=True, slots=True, eq=False)
class OnHost:
    """An argument in the memory of the host: copied in before the kernels run, or out after them."""

    array: Array


Place = Memory | OnHost


class Program:
    """An image on a device. `run` launches it. Safe to call from several threads at once."""

    def __init__(self, image: CudaImage, driver: Driver) -> None:
        """Raises `CompileError` or `BackendUnavailable` where this device cannot run it."""
        for kernel in image.kernels:
            check_kernel(kernel, driver.limits)
        self.image = image
        self.driver = driver
        self.module = driver.load(image)
        self._outputs = frozenset(array.name for array in image.arrays if array.role == "output")

    def run(self, places: Mapping[str, Place], sizes: Mapping[str, int], home: object = None) -> Failed | None:
        """Launch all kernels on the arguments and results.

        places: of every input and result, by name; arrays on the host are C-contiguous
        sizes:  of `image.sizes`
        home:   the library whose arrays they are
        Waits for the kernels only where a result is on the host or run-time checks must be looked at. Returns the
        check that failed first. Raises `MemoryError`, and `CompileError` for a grid beyond the device's limits, before
        anything runs.
        """
        launches = list(self.image.launches(sizes))
        for kernel, grid, _ in launches:
            check_grid(kernel, grid, self.driver.limits)
        memories = self._memories(places, sizes)
        queue = self.driver.begin(self.module, tuple(memories.values()), home)
        for name, place in places.items():
            if isinstance(place, OnHost) and name not in self._outputs:
                queue.put(memories[name], place.array)
        if self.image.checks:
            queue.put(memories[RECORD], np.zeros(RECORD_WORDS, np.int64))
        for kernel, grid, values in launches:
            queue.launch(self.module, kernel, grid, _words(kernel, memories, values))
        failed = None
        if self.image.checks:
            words: Array = np.zeros(RECORD_WORDS, np.int64)
            queue.get(memories[RECORD], words)
            site, index, extent = map(int, words)
            failed = Failed(site - 1, index, extent) if site else None
        for name, place in places.items():
            if isinstance(place, OnHost) and name in self._outputs and failed is None:
                queue.get(memories[name], place.array)
        queue.finish()
        return failed

    def _memories(self, places: Mapping[str, Place], sizes: Mapping[str, int]) -> dict[str, Memory]:
        """Where each array of the kernels lies on the device."""
        allocate = self.driver.allocate
        memories = {
            name: allocate(place.array.nbytes, name, is_written=name not in self._outputs)
            if isinstance(place, OnHost)
            else place
            for name, place in places.items()
        }
        for array in self.image.arrays:
            if array.role == "workspace":
                memories[array.name] = allocate(array.bytes(sizes), array.name, is_written=False)
        if self.image.checks:
            memories[RECORD] = allocate(8 * RECORD_WORDS, RECORD, is_written=True)
        return memories


def _words(kernel: KernelImage, memories: Mapping[str, Memory], values: Mapping[str, int]) -> Sequence[int]:
    pointers, integers = kernel.parameters[: kernel.pointers], kernel.parameters[kernel.pointers :]
    return [memories[name].address for name in pointers] + [values[name] for name in integers]


def check_kernel(kernel: KernelImage, limits: Limits) -> None:
    """Raise `BackendUnavailable` where the device has too little shared memory or too few threads for a kernel."""
    threads = kernel.block[0] * kernel.block[1] * kernel.block[2]
    if kernel.shared_bytes > limits.shared_bytes:
        raise BackendUnavailable(
            f"kernel '{kernel.name}' needs {kernel.shared_bytes} bytes of shared memory",
            why=f"a block on {limits.name} has at most {limits.shared_bytes}",
            fix="compile for this device (op.on('cuda') does), not for a larger one",
            facts={"kernel": kernel.name, "shared_bytes": kernel.shared_bytes, "limit": limits.shared_bytes},
        )
    if threads > limits.threads or any(n > most for n, most in zip(kernel.block, limits.block)):
        raise BackendUnavailable(
            f"kernel '{kernel.name}' has blocks of {kernel.block} threads",
            why=f"{limits.name} takes at most {limits.block}, {limits.threads} in all",
            facts={"kernel": kernel.name, "block": kernel.block},
        )


def check_grid(kernel: KernelImage, grid: tuple[int, int, int], limits: Limits) -> None:
    """Raise `CompileError` where a launch has more blocks than the device takes."""
    for axis, blocks, most in zip("xyz", grid, limits.grid):
        if blocks > most:
            raise CompileError(
                f"kernel '{kernel.name}' would be launched with {blocks} blocks along {axis}",
                why=f"{limits.name} takes at most {most}",
                fix="use smaller sizes, or split the call",
                facts={"kernel": kernel.name, "grid": grid, "limit": limits.grid},
            )
