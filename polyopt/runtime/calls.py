"""A kernel tied to one kind of call: sizes solved, conditions checked, result shapes known, argument order fixed."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from polyopt.errors import ArgumentError, ShapeError
from polyopt.runtime import arrays, extent, memory
from polyopt.runtime.arrays import Array
from polyopt.runtime.fastcall import Entry, Number, Results, Same
from polyopt.runtime.kernel import ArrayInfo, Kernel, KernelInfo

Example = Array | Number | Same
"""What the quick way takes for an argument."""


class Call:
    """Runs a kernel on arrays of given dtypes, shapes and strides.

    results: the results of the kernel, in order, with their shapes
    """

    __slots__ = ("_bound", "_mask", "_new", "_order", "info", "results")

    def __init__(
        self, kernel: Kernel, sizes: Mapping[str, int], arguments: Mapping[str, Array], outs: Mapping[str, Array]
    ) -> None:
        """Check the sizes against what the kernel demands. Raises `ShapeError`, and what `outs` that do not fit earn.

        arguments: arrays like those of the calls to come, in the order in which the calls give them
        outs:      arrays like those that the calls to come compute into, where these have strides of their own
        """
        info = kernel.info
        check_conditions(info, sizes)
        names = tuple(arguments)
        shapes = [tuple(extent.evaluate(length, sizes) for length in result.shape) for result in info.results]
        for result, shape in zip(info.results, shapes):
            arrays.check_size(result, shape)
        self.info = info
        self.results: tuple[tuple[ArrayInfo, tuple[int, ...]], ...] = tuple(zip(info.results, shapes))
        check_outs(self.results, outs)
        self._new = tuple((shape, result.dtype.numpy) for result, shape in self.results)
        self._order = tuple(names.index(array.name) for array in info.inputs)
        self._mask = max((array.dtype.itemsize for array in info.arguments), default=1) - 1
        self._bound = kernel.bind(
            tuple(parameter(name, info, sizes, {**arguments, **outs}) for name in info.parameters)
        )

    def new_results(self) -> list[Array]:
        """Fresh C-contiguous arrays for the results. Raises `MemoryError`."""
        return [memory.empty(shape, dtype) for shape, dtype in self._new]

    def run(self, inputs: Sequence[Array], results: Sequence[Array]) -> None:
        """Compute `results` from `inputs`, whose dtypes, shapes and strides are those the call was made for.

        Raises `BoundsError` and `MemoryError` as a launch does.
        """
        pointers = [address_of(inputs[position]) for position in self._order]
        pointers += [address_of(result) for result in results]
        self._bound(pointers)

    def __call__(self, inputs: Sequence[Array]) -> list[Array] | None:
        """New results for `inputs`; None where an input is not aligned and must be copied first."""
        pointers = [address_of(inputs[position]) for position in self._order]
        for pointer in pointers:
            if pointer & self._mask:
                return None
        results = [memory.empty(shape, dtype) for shape, dtype in self._new]
        pointers += [address_of(result) for result in results]
        self._bound(pointers)
        return results

    def into(self, inputs: Sequence[Array], out: Array) -> bool:
        """Compute the only result into `out`, if that needs no closer look: whether it was done.

        It is where `out` is a C-contiguous, writable array of the right dtype and shape away from all inputs.
        """
        if type(out) is not np.ndarray or len(self._new) != 1 or (out.shape, out.dtype) != self._new[0]:
            return False
        flags = out.flags
        pointers = [address_of(inputs[position]) for position in self._order]
        pointers.append(address_of(out))
        if not flags.c_contiguous or not flags.writeable or any(pointer & self._mask for pointer in pointers):
            return False
        if any(np.may_share_memory(out, array) for array in inputs):
            return False
        self._bound(pointers)
        return True

    def quick_entry(
        self, examples: Sequence[Example], make: Callable[[Any], Any] | None, outs: Sequence[Array] = ()
    ) -> Entry:
        """The call as the quick way takes it, for arguments like `examples`, compile-time values included.

        make: puts several results together; outs: arrays like those to compute into, behind the arguments
        """
        bound, info = self._bound, self.info
        numbers = [number for number, example in enumerate(examples) if not isinstance(example, Same)]
        inputs = [numbers[position] for position in self._order]
        if outs:
            first = len(examples)
            order = [*inputs, *range(first, first + len(outs))]
            pairs = self._pairs_in_place(dict(zip(inputs, info.inputs)), examples, outs)
            results = Results(written=len(outs), in_place=frozenset(pairs))
        else:
            order = [*inputs, *(-1 - number for number in range(len(self._new)))]
            results = Results(tuple((memory.maker(*new), new) for new in self._new), make=make)
        return Entry(
            bound.kernel,
            [*examples, *outs],
            order,
            results,
            bound.parameters,
            bound.workspace,
            is_parallel=info.is_parallel,
            fail=bound.fail if info.sites else None,
        )

    def _pairs_in_place(
        self, inputs: Mapping[int, ArrayInfo], examples: Sequence[Example], outs: Sequence[Array]
    ) -> Iterator[tuple[int, int]]:
        """Pairs (written argument, argument) that may be the same memory."""
        for position, ((result, _), out) in enumerate(zip(self.results, outs), start=len(examples)):
            for number, info in inputs.items():
                example = examples[number]
                if isinstance(example, np.ndarray) and (result.name, info.name) in self.info.in_place:
                    wanted = out.shape, out.strides, out.dtype
                    if (example.shape, example.strides, example.dtype) == wanted:
                        yield position, number


def check_conditions(info: KernelInfo, sizes: Mapping[str, int]) -> None:
    """Raise `ShapeError` unless the sizes meet every condition that the equations put on them."""
    for condition in info.conditions:
        if not extent.evaluate(condition.test, sizes):
            values = ", ".join(f"{name} = {value}" for name, value in sorted(sizes.items()))
            raise ShapeError(
                f"the sizes of this call do not satisfy {condition.text}",
                why=f"here {values}; otherwise an element lies outside an array, or a shape or number is another one",
                fix="pass arrays whose sizes satisfy it; where such sizes are meant, po.index(..., extent=) says how "
                "far an index runs that several dimensions bound",
                facts={"condition": condition.text, "sizes": dict(sizes)},
            )


def check_outs(results: Sequence[tuple[ArrayInfo, tuple[int, ...]]], outs: Mapping[str, Array]) -> None:
    """Raise `DTypeError`, `ShapeError` or `ArgumentError` where an array does not fit the result of its name."""
    for info, shape in results:
        if info.name in outs:
            arrays.check_out(outs[info.name], info.name, info.dtype, shape)


def parameter(name: str, info: KernelInfo, sizes: Mapping[str, int], arguments: Mapping[str, Array]) -> int:
    """The value of an i64 parameter of a kernel: a size, or a stride of an argument or result."""
    if name in sizes:
        return sizes[name]
    for array in info.arguments:
        for dimension, stride in enumerate(array.strides or ()):
            if stride == name:
                return int(arguments[array.name].strides[dimension])
    raise AssertionError(f"parameter {name} of kernel {info.entry} is neither a size nor a stride")


class Runs(Protocol):
    """A kernel tied to one kind of call, on a processor or on a GPU.

    `run` takes arrays as `runtime.arguments` binds them, `__call__` and `into` what `runtime.glance` has seen.
    """

    info: KernelInfo
    results: tuple[tuple[ArrayInfo, tuple[int, ...]], ...]

    def new_results(self) -> list[Array]: ...
    def run(self, inputs: Sequence[Array], results: Sequence[Array]) -> None: ...
    def __call__(self, inputs: Sequence[Any]) -> list[Any] | None: ...
    def into(self, inputs: Sequence[Any], out: Any) -> bool: ...


def run_into(direct: Runs, contiguous: Callable[[], Runs], inputs: Mapping[str, Array], outs: Sequence[Array]) -> None:
    """Compute into the caller's arrays.

    direct:     made for the layouts of `outs`
    contiguous: gives the call for new C-contiguous results. It computes into temporaries that are then copied, where an
                array of `outs` shares memory with an input in a way the kernel does not allow, or is not aligned
    Raises `DTypeError`, `ShapeError` or `ArgumentError` before anything is computed where `outs` do not fit.
    """
    check_outs(direct.results, {info.name: out for (info, _), out in zip(direct.results, outs)})
    _check_distinct(direct, outs)
    in_place = direct.info.in_place
    if all(
        arrays.is_aligned(out) and not arrays.needs_temporary(out, info.name, inputs, in_place)
        for (info, _), out in zip(direct.results, outs)
    ):
        direct.run(tuple(inputs.values()), outs)
        return
    call = contiguous()
    results = call.new_results()
    call.run(tuple(inputs.values()), results)
    for out, result in zip(outs, results):
        arrays.copy_into(out, result)


def _check_distinct(call: Runs, outs: Sequence[Array]) -> None:
    names = [info.name for info, _ in call.results]
    for position, out in enumerate(outs):
        for name, other in zip(names[:position], outs):
            if arrays.overlap(out, other):
                raise ArgumentError(
                    f"the arrays in out for '{name}' and '{names[position]}' share memory",
                    fix="give each result an array of its own",
                    facts={"results": (name, names[position])},
                )


# --- addresses ------------------------------------------------------------------------------------------------


def _slow_address(array: Array) -> int:
    return array.ctypes.data


def _peeking_address() -> Callable[[Array], int] | None:
    """Reads the data pointer where array objects keep it, 8 times quicker than `array.ctypes`.

    It is the first field behind the object's header in every NumPy so far; a trial on arrays of several kinds tells
    whether it is here. None where it is not.
    """
    offset = object.__basicsize__
    from_address = ctypes.c_int64.from_address

    def peek(array: Array) -> int:
        return from_address(id(array) + offset).value

    base = np.arange(24.0).reshape(4, 6)
    samples = (base, base[1:, ::-2], np.array(3, np.int8), np.empty((0, 2)), base.T.copy(order="F"))
    fits = offset + 8 <= np.ndarray.__basicsize__ and all(peek(array) == array.ctypes.data for array in samples)
    return peek if fits else None


address_of: Callable[[Array], int] = _peeking_address() or _slow_address
"""The address of an array's first element."""
