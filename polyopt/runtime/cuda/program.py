"""Runs a loaded CUDA program: limits, workspace, the record of run-time checks, and the launches of one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

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


class Program:
    """An image on a device. `run` launches it on arrays that are there already."""

    def __init__(self, image: CudaImage, driver: Driver) -> None:
        """Raises `CompileError` or `BackendUnavailable` where this device cannot run it."""
        for kernel in image.kernels:
            check_kernel(kernel, driver.limits)
        self.image = image
        self.driver = driver
        self.module = driver.load(image)

    def run(self, arguments: Mapping[str, Memory], sizes: Mapping[str, int]) -> Memory | None:
        """Launch all kernels; the record of run-time checks, where there are any, for `failed`.

        arguments: the memory of every input and result, by name
        sizes:     of `image.sizes`
        Returns before the kernels have run. Raises `MemoryError`, and `CompileError` for a grid beyond the limits.
        """
        launches = list(self.image.launches(sizes))
        for kernel, grid, _ in launches:
            check_grid(kernel, grid, self.driver.limits)
        memories = {**arguments, **self._workspace(sizes)}
        record = self._record() if self.image.checks else None
        if record is not None:
            memories[RECORD] = record
        self.driver.begin(self.module, tuple(memories.values()))
        for kernel, grid, values in launches:
            self.driver.launch(self.module, kernel, grid, _words(kernel, memories, values))
        return record

    def failed(self, record: Memory) -> Failed | None:
        """Which check failed first; None where all passed. Waits for the kernels."""
        words = np.zeros(RECORD_WORDS, np.int64)
        self.driver.get(record, words)
        site, index, extent = map(int, words)
        return Failed(site - 1, index, extent) if site else None

    def _workspace(self, sizes: Mapping[str, int]) -> dict[str, Memory]:
        return {
            array.name: self.driver.allocate(array.bytes(sizes), array.name, is_written=False)
            for array in self.image.arrays
            if array.role == "workspace"
        }

    def _record(self) -> Memory:
        zeros: Array = np.zeros(RECORD_WORDS, np.int64)
        memory = self.driver.allocate(zeros.nbytes, RECORD, is_written=True)
        self.driver.put(memory, zeros)
        return memory


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
