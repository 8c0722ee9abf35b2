"""Runs a loaded CUDA program: limits, workspace, the record of run-time checks, and the launches of one call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from polyopt.classes import dataclass
from polyopt.codegen_cuda.source import RECORD
from polyopt.errors import BackendUnavailable, CompileError
from polyopt.runtime.cuda.driver import Array, Driver, Limits, Memory, Queue
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


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """A kernel, its grid, and its parameters: names of arrays, then integers."""

    kernel: KernelImage
    grid: tuple[int, int, int]
    pointers: tuple[str, ...]
    integers: tuple[int, ...]

    def words(self, memories: Mapping[str, Memory]) -> Sequence[int]:
        """The parameters, with the arrays' addresses."""
        return [*[memories[name].address for name in self.pointers], *self.integers]


@dataclass(frozen=True, slots=True, eq=False)
class LaunchPlan:
    """What calls with given sizes do. launches: in order; workspace: arrays of their own, with their bytes"""

    launches: tuple[Launch, ...]
    workspace: tuple[tuple[str, int], ...]


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

    def run(self, places: Mapping[str, Place], sizes: Mapping[str, int]) -> Failed | None:
        """Launch all kernels on arguments and results, by name, as `plan` and `launch` do."""
        hosted = {name: place.array for name, place in places.items() if isinstance(place, OnHost)}
        memories = {name: place for name, place in places.items() if not isinstance(place, OnHost)}
        return self.launch(self.plan(sizes), memories, hosted)

    def plan(self, sizes: Mapping[str, int]) -> LaunchPlan:
        """What a call does whose `image.sizes` are these. Raises `CompileError` for a grid beyond the limits."""
        launches = []
        for kernel, grid, values in self.image.launches(sizes):
            check_grid(kernel, grid, self.driver.limits)
            pointers, integers = kernel.parameters[: kernel.pointers], kernel.parameters[kernel.pointers :]
            launches.append(Launch(kernel, grid, pointers, tuple(values[name] for name in integers)))
        workspace = ((array.name, array.bytes(sizes)) for array in self.image.arrays if array.role == "workspace")
        return LaunchPlan(tuple(launches), tuple(workspace))

    def launch(
        self, plan: LaunchPlan, given: Mapping[str, Memory], hosted: Mapping[str, Array], home: object = None
    ) -> Failed | None:
        """Launch all kernels on the arguments and results.

        given:  inputs and results on the device, by name
        hosted: the others, C-contiguous arrays on the host
        home:   the library whose arrays are on the device
        Waits for the kernels only where a result is on the host or run-time checks must be looked at. Returns the
        check that failed first. Raises `MemoryError` before anything runs.
        """
        with self.driver.active():
            memories = {**given, **self._memories(plan, hosted)}
            queue = self.driver.begin(self.module, tuple(memories.values()), home)
            try:
                return self._launched(queue, plan, memories, hosted)
            finally:
                queue.finish()

    def _launched(
        self, queue: Queue, plan: LaunchPlan, memories: Mapping[str, Memory], hosted: Mapping[str, Array]
    ) -> Failed | None:
        for name, array in hosted.items():
            if name not in self._outputs:
                queue.put(memories[name], array)
        if self.image.checks:
            queue.put(memories[RECORD], np.zeros(RECORD_WORDS, np.int64))
        for launch in plan.launches:
            queue.launch(self.module, launch.kernel, launch.grid, launch.words(memories))
        failed = _failed(queue, memories[RECORD]) if self.image.checks else None
        for name, array in hosted.items():
            if name in self._outputs and failed is None:
                queue.get(memories[name], array)
        return failed

    def _memories(self, plan: LaunchPlan, hosted: Mapping[str, Array]) -> dict[str, Memory]:
        """Memory for one call: for arrays of the host, for what kernels leave each other, for the record of checks."""
        allocate = self.driver.allocate
        memories: dict[str, Memory] = {}
        for name, array in hosted.items():
            memories[name] = allocate(array.nbytes, name, is_written=name not in self._outputs)
        for name, size in plan.workspace:
            memories[name] = allocate(size, name, is_written=False)
        if self.image.checks:
            memories[RECORD] = allocate(8 * RECORD_WORDS, RECORD, is_written=True)
        return memories


def _failed(queue: Queue, record: Memory) -> Failed | None:
    """The check that failed first. Waits for the kernels."""
    words: Array = np.zeros(RECORD_WORDS, np.int64)
    queue.get(record, words)
    site, index, extent = map(int, words)
    return Failed(site - 1, index, extent) if site else None


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
