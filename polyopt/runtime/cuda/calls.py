"""A CUDA kernel tied to one kind of call, with the interface of `runtime.calls.Call`.

Arrays on the host are copied to the device and back, those on the device are used where they are. A call with tensors
of torch that is like one before looks at their addresses and at nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from polyopt.classes import dataclass
from polyopt.runtime import arrays, extent
from polyopt.runtime.arrays import Array
from polyopt.runtime.calls import address_of, check_conditions, check_outs, parameter
from polyopt.runtime.cuda.arrays import ALIGNMENT, DeviceArray, Home, TorchHome, empty, span
from polyopt.runtime.cuda.driver import Memory
from polyopt.runtime.cuda.program import LaunchPlan, Program
from polyopt.runtime.kernel import ArrayInfo, KernelInfo, bounds_error

KEPT_LAUNCHES = 4096
"""The longest plan that a call keeps; a longer one is made in each call, which takes about as long as its launches."""


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class CudaKernel:
    """Kernels on a device, and how to call them."""

    info: KernelInfo
    program: Program


class _Foreign(NamedTuple):
    """Memory of the caller's library."""

    address: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class _Input:
    """An input of the kernels.

    position:  among the arguments
    low, high: where its elements start and end, in bytes from its address
    in_place:  whether the only result may be computed in its memory
    """

    name: str
    position: int
    size: int
    low: int
    high: int
    in_place: bool

    def allows(self, address: int, target: _Foreign) -> bool:
        """Whether the only result, C-contiguous, may be written to the target."""
        is_apart = address + self.high <= target.address or target.address + target.size <= address + self.low
        return is_apart or (self.in_place and address == target.address)


class _Output:
    """A result. size: in bytes"""

    __slots__ = ("dtype", "name", "shape", "size")

    def __init__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.name, self.shape, self.dtype = name, shape, dtype
        self.size = math.prod(shape) * dtype.itemsize


class CudaCall:
    """Runs kernels on arrays of given dtypes, shapes and strides, all on the host or all on one device.

    results: the results, in order, with their shapes
    """

    __slots__ = ("_home", "_inputs", "_kernel", "_outputs", "_plan", "_sizes", "info", "results")

    def __init__(
        self, kernel: CudaKernel, sizes: Mapping[str, int], arguments: Mapping[str, Array], outs: Mapping[str, Array]
    ) -> None:
        """Check the sizes against what the kernel demands. Raises as `runtime.calls.Call` does.

        arguments, outs: as `runtime.calls.Call` takes them
        """
        info = kernel.info
        check_conditions(info, sizes)
        shapes = [tuple(extent.evaluate(length, sizes) for length in result.shape) for result in info.results]
        for result, shape in zip(info.results, shapes):
            arrays.check_size(result, shape)
        self.info = info
        self.results: tuple[tuple[ArrayInfo, tuple[int, ...]], ...] = tuple(zip(info.results, shapes))
        check_outs(self.results, outs)
        self._kernel = kernel
        self._inputs = tuple(_inputs(info, arguments, shapes))
        self._outputs = tuple(_Output(each.name, shape, each.dtype.numpy) for each, shape in self.results)
        self._plan: LaunchPlan | None = None
        self._home = next((a.home for a in arguments.values() if isinstance(a, DeviceArray)), None)
        names = kernel.program.image.sizes
        self._sizes = {name: parameter(name, info, sizes, {**arguments, **outs}) for name in names}

    def new_results(self) -> list[Array]:
        """Fresh C-contiguous arrays for the results, where the arguments are. Raises `MemoryError`."""
        return [_new(self._home, each.shape, each.dtype) for each in self._outputs]

    def run(self, inputs: Sequence[Array], results: Sequence[Array]) -> None:
        """Compute `results` from `inputs`. Raises `BoundsError` and `MemoryError` as a launch does.

        Returns before the kernels have run where everything is on the device and nothing is checked as they run.
        """
        given: dict[str, Memory] = {}
        hosted: dict[str, Array] = {}
        contiguous = [_contiguous(result) for result in results]
        everything = [*((each.name, inputs[each.position]) for each in self._inputs)]
        everything += [(each.name, target) for each, target in zip(self._outputs, contiguous)]
        for name, array in everything:
            if isinstance(array, DeviceArray):
                given[name] = _Foreign(address_of(array), array.nbytes)
            else:
                hosted[name] = np.ascontiguousarray(array)
        self._launch(given, hosted)
        for result, target in zip(results, contiguous):
            if result is not target:
                np.copyto(result, target)

    def _launch(self, given: Mapping[str, Memory], hosted: Mapping[str, Array]) -> None:
        program, plan = self._kernel.program, self._plan
        if plan is None:
            plan = program.plan(self._sizes)
            self._plan = plan if len(plan.launches) <= KEPT_LAUNCHES else None
        failed = program.launch(plan, given, hosted, self._home)
        if failed is not None:
            raise bounds_error(self.info.sites[failed.site], failed.index, failed.extent)

    # --- calls like one before ------------------------------------------------------------------------------------

    def __call__(self, inputs: Sequence[Any]) -> list[Any] | None:
        """New results for `inputs`, tensors for tensors; None where one is not aligned and must be copied first."""
        home = self._home
        if not isinstance(home, TorchHome):
            results = self.new_results()
            self.run(inputs, results)
            return results
        found = self._found(inputs)
        if found is None:
            return None
        given, hosted = found
        made: list[Any] = []
        for each in self._outputs:
            tensor = home.empty(each.shape, each.dtype)
            given[each.name] = _Foreign(tensor.data_ptr(), each.size)
            made.append(tensor)
        self._launch(given, hosted)
        return made

    def into(self, inputs: Sequence[Any], out: Any) -> bool:
        """Compute the only result into `out`, if that needs no closer look: whether it was done.

        It is where `out` is a C-contiguous tensor, aligned, and away from all inputs but those the kernel may replace.
        """
        home = self._home
        if not isinstance(home, TorchHome) or len(self._outputs) != 1:
            return False
        (only,) = self._outputs
        found = self._found(inputs) if home.can_hold(out, only.shape, only.dtype) else None
        if found is None:
            return False
        given, hosted = found
        target = _Foreign(out.data_ptr(), only.size)
        if target.address % ALIGNMENT or not all(
            each.allows(given[each.name].address, target) for each in self._inputs if each.name in given
        ):
            return False
        given[only.name] = target
        self._launch(given, hosted)
        return True

    def _found(self, inputs: Sequence[Any]) -> tuple[dict[str, Memory], dict[str, Array]] | None:
        """Where tensors are, and the numbers, arrays without dimensions; None where a tensor is not aligned."""
        given: dict[str, Memory] = {}
        hosted: dict[str, Array] = {}
        for each in self._inputs:
            value = inputs[each.position]
            if isinstance(value, np.ndarray):
                hosted[each.name] = value
                continue
            address = value.data_ptr()
            if address % ALIGNMENT:
                return None
            given[each.name] = _Foreign(address, each.size)
        return given, hosted


def _inputs(info: KernelInfo, arguments: Mapping[str, Array], shapes: Sequence[tuple[int, ...]]) -> Iterator[_Input]:
    """The inputs of the kernels, in order. shapes: of the results"""
    positions = {name: position for position, name in enumerate(arguments)}
    for each in info.inputs:
        array = arguments[each.name]
        first = info.results[0]
        is_like_it = array.flags.c_contiguous and (array.shape, array.dtype) == (shapes[0], first.dtype.numpy)
        in_place = is_like_it and (first.name, each.name) in info.in_place
        low, high = span(array.shape, array.strides, array.itemsize)
        yield _Input(each.name, positions[each.name], array.nbytes, low, high, in_place)


def _new(home: Home | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    return np.empty(shape, dtype) if home is None else empty(home, shape, dtype)


def _contiguous(array: Array) -> Array:
    """Where a result is computed: kernels for arrays on the host know C-contiguous ones only."""
    if isinstance(array, DeviceArray) or array.flags.c_contiguous:
        return array
    return np.empty(array.shape, array.dtype)
