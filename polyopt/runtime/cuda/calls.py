"""A CUDA kernel tied to one kind of call, with the interface of `runtime.calls.Call`.

Arrays on the host are copied to the device and back, those on the device are used where they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from polyopt.classes import dataclass
from polyopt.runtime import arrays, extent
from polyopt.runtime.arrays import Array
from polyopt.runtime.calls import address_of, check_conditions, parameter
from polyopt.runtime.cuda.arrays import DeviceArray, Home, empty
from polyopt.runtime.cuda.program import OnHost, Place, Program
from polyopt.runtime.kernel import ArrayInfo, KernelInfo, bounds_error


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CudaKernel:
    """Kernels on a device, and how to call them."""

    info: KernelInfo
    program: Program


@dataclass(frozen=True, slots=True)
class _Foreign:
    """Memory of the caller's library."""

    address: int
    size: int


class CudaCall:
    """Runs kernels on arrays of given dtypes, shapes and strides, all on the host or all on one device.

    results: the results, in order, with their shapes
    """

    __slots__ = ("_home", "_kernel", "_names", "_sizes", "info", "results")

    def __init__(
        self, kernel: CudaKernel, sizes: Mapping[str, int], arguments: Mapping[str, Array], outs: Mapping[str, Array]
    ) -> None:
        """Check the sizes against what the kernel demands. Raises `ShapeError`.

        arguments, outs: as `runtime.calls.Call` takes them
        """
        info = kernel.info
        check_conditions(info, sizes)
        shapes = [tuple(extent.evaluate(length, sizes) for length in result.shape) for result in info.results]
        for result, shape in zip(info.results, shapes):
            arrays.check_size(result, shape)
        self.info = info
        self.results: tuple[tuple[ArrayInfo, tuple[int, ...]], ...] = tuple(zip(info.results, shapes))
        self._kernel = kernel
        self._names = tuple(arguments)
        self._home = next((a.home for a in arguments.values() if isinstance(a, DeviceArray)), None)
        names = kernel.program.image.sizes
        self._sizes = {name: parameter(name, info, sizes, {**arguments, **outs}) for name in names}

    def new_results(self) -> list[Array]:
        """Fresh C-contiguous arrays for the results, where the arguments are. Raises `MemoryError`."""
        return [self._new(self._home, shape, info.dtype.numpy) for info, shape in self.results]

    def _new(self, home: Home | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.empty(shape, dtype) if home is None else empty(home, shape, dtype)

    def run(self, inputs: Sequence[Array], results: Sequence[Array]) -> None:
        """Compute `results` from `inputs`. Raises `BoundsError` and `MemoryError` as a launch does.

        Returns before the kernels have run where everything is on the device and nothing is checked as they run.
        """
        program = self._kernel.program
        given = dict(zip(self._names, inputs))
        places = {info.name: _input(given[info.name]) for info in self.info.inputs}
        contiguous = [_contiguous(result) for result in results]
        places |= {info.name: _output(target) for (info, _), target in zip(self.results, contiguous)}
        failed = program.run(places, self._sizes, self._home)
        if failed is not None:
            raise bounds_error(self.info.sites[failed.site], failed.index, failed.extent)
        for result, target in zip(results, contiguous):
            if result is not target:
                np.copyto(result, target)

    def __call__(self, inputs: Sequence[Array]) -> list[Array] | None:
        """New results for `inputs`."""
        results = self.new_results()
        self.run(inputs, results)
        return results

    def into(self, inputs: Sequence[Array], out: Array) -> bool:
        """Computing into `out` always needs a closer look."""
        return False


def _input(array: Array) -> Place:
    if isinstance(array, DeviceArray):
        return _Foreign(address_of(array), array.nbytes)
    return OnHost(np.ascontiguousarray(array))


def _contiguous(array: Array) -> Array:
    """Where a result is computed: kernels for arrays on the host know C-contiguous ones only."""
    if isinstance(array, DeviceArray) or array.flags.c_contiguous:
        return array
    return np.empty(array.shape, array.dtype)


def _output(array: Array) -> Place:
    return _Foreign(address_of(array), array.nbytes) if isinstance(array, DeviceArray) else OnHost(array)
