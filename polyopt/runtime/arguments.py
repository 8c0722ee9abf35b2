"""The arguments of a call, sorted by what they decide: which equations, which kernel, or only the numbers."""

from __future__ import annotations

import inspect
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl.signature import Parameter, Signature
from polyopt.dsl.spans import user_span
from polyopt.dtypes import ARRAY_PROTOCOLS, DType
from polyopt.errors import ArgumentError, CallError, ShapeError, counted
from polyopt.runtime import arrays
from polyopt.runtime.arrays import Array, Layout, Wrap
from polyopt.runtime.state import constants_key

Free: TypeAlias = "tuple[DType, int, tuple[bool, ...], bool, tuple[int, int] | None]"


@dataclass(frozen=True, slots=True, eq=False)
class Arguments:
    """One call's arguments.

    constants: values of compile-time parameters
    arrays:    tensors and run-time scalars by name, in the order of the signature, elements aligned
    free:      of what is given to parameters without annotation: dtype, rank, which extents are 1, and whether it is
               a Python number, which is weak: an integer with the range, of some number of bits, that holds it
    wrap:      makes results of the caller's kind, that of an array on a GPU if there is one; None for NumPy arrays
    is_as_given: whether every array is the caller's own memory, read as it is: a call like this one can be made without
               a close look
    """

    constants: Mapping[str, object]
    arrays: Mapping[str, Array]
    free: Mapping[str, Free]
    wrap: Wrap | None = None
    is_as_given: bool = True

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: array.shape for name, array in self.arrays.items()}

    @property
    def layouts(self) -> dict[str, Layout]:
        """Byte strides by name; None for C-contiguous."""
        return {name: arrays.layout(array) for name, array in self.arrays.items()}

    @property
    def is_on_device(self) -> bool:
        """Whether the arrays are in the memory of a GPU."""
        return any(arrays.place(array) is not None for array in self.arrays.values())

    def key(self) -> Hashable:
        """What a compiled kernel depends on: constants, dtypes, shapes, layouts, places."""
        return (
            constants_key(self.constants),
            tuple((name, a.dtype, a.shape, arrays.layout(a), arrays.place(a)) for name, a in self.arrays.items()),
            tuple(weak for *_, is_weak, reach in self.free.values() for weak in (is_weak, reach)),
        )


def bind(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """The arguments of a call `op(*args, **kwargs)` by parameter.

    Raises `ArgumentError` where they do not fit the signature, `DTypeError` and `ShapeError` where an array does not
    fit its annotation.
    """
    values = _by_name(signature, args, kwargs)
    constants: dict[str, object] = {}
    found: dict[str, Array] = {}
    free: dict[str, Free] = {}
    givens: list[arrays.Given] = []
    is_as_given = True
    for parameter in signature.parameters:
        value = values[parameter.name]
        if is_constant(parameter, value):
            constants[parameter.name] = value
            continue
        given = _given(parameter, value)
        found[parameter.name] = given.array
        is_as_given = is_as_given and _is_as_given(parameter, value, given.array)
        givens.append(given)
        if parameter.kind == "unannotated":
            free[parameter.name] = _free(parameter.name, given.array, value)
    return Arguments(constants, found, free, _wrap(givens), is_as_given)


def _wrap(givens: Sequence[arrays.Given]) -> Wrap | None:
    """That of the first array on a GPU, where the results are then, else of the first that is not NumPy's."""
    on_device_first = sorted(givens, key=lambda given: arrays.place(given.array) is None)
    return next((given.wrap for given in on_device_first if given.wrap is not None), None)


def _is_as_given(parameter: Parameter, value: object, array: Array) -> bool:
    """Whether the array is the value's memory, neither converted nor copied; numbers are converted in every call."""
    if arrays.place(array) is not None:
        return getattr(array, "owner", None) is value
    if isinstance(value, bool | int | float | np.generic):
        return True
    if parameter.kind == "scalar" and isinstance(value, np.ndarray):
        return bool(value.dtype == array.dtype)
    if isinstance(value, np.ndarray):
        return (array.dtype, array.strides, array.ctypes.data) == (value.dtype, value.strides, value.ctypes.data)
    return parameter.kind != "scalar" and array.base is not None


def refuse_device_arrays(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise `ArgumentError` that names the first argument in the memory of a GPU, if there is one."""
    for name, value in _by_name(signature, args, kwargs).items():
        if arrays.is_on_device(value):
            raise ArgumentError(
                f"argument '{name}' is in the memory of a GPU, and the target is the CPU",
                fix=f"copy it to the host first, or use op.on('cuda')(..., {name}, ...)",
                facts={"argument": name},
            )


def _by_name(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """Each parameter's value, defaults included."""
    last = signature.parameters[-1] if signature.parameters else None
    if last is not None and not kwargs and len(args) == len(signature.parameters) and last.python_kind in _POSITIONAL:
        return {parameter.name: value for parameter, value in zip(signature.parameters, args)}
    try:
        bound = signature.python.bind(*args, **kwargs)
    except TypeError as problem:
        raise CallError(
            f"{signature.name}: {problem}",
            where=user_span(),
            fix=f"its signature is {signature}",
            facts={"op": signature.name},
        ) from None
    bound.apply_defaults()
    return bound.arguments


_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def is_constant(parameter: Parameter, value: object) -> bool:
    """Whether `value` is known when compiling: by its annotation, as a None that it allows, or, without one, because it
    is no array or number, where none is meant."""
    if parameter.kind == "constant" or (value is None and parameter.is_optional):
        return True
    if parameter.kind != "unannotated" or (parameter.is_array and value is not None):
        return False
    is_data = isinstance(value, np.ndarray | np.generic | bool | int | float)
    return not is_data and not any(hasattr(value, protocol) for protocol in ARRAY_PROTOCOLS)


def _given(parameter: Parameter, value: Any) -> arrays.Given:
    """The argument as an aligned array of the parameter's dtype and rank."""
    if arrays.is_on_device(value):
        return _given_on_device(parameter, value)
    if parameter.kind == "scalar":
        assert parameter.dtype is not None, "a scalar parameter has a dtype"
        return arrays.Given(arrays.scalar(value, parameter.dtype, parameter.name))
    given = arrays.accept(value, parameter.name)
    if parameter.kind == "tensor":
        given = _typed(parameter, value, given)
    return arrays.Given(arrays.aligned(given.array), given.wrap)


def _given_on_device(parameter: Parameter, value: Any) -> arrays.Given:
    from polyopt.runtime.cuda import arrays as on_device  # opens with the first array on a GPU

    if parameter.kind == "scalar":
        raise ArgumentError(
            f"the scalar '{parameter.name}' was given an array in the memory of a GPU",
            why="reading it would wait for the GPU",
            fix=f"pass a number, such as {parameter.name}.item(), or annotate it as a tensor: f32[()]",
            facts={"argument": parameter.name},
        )
    given = on_device.accept(value, parameter.name)
    return _typed(parameter, value, given) if parameter.kind == "tensor" else given


def _typed(parameter: Parameter, value: Any, given: arrays.Given) -> arrays.Given:
    assert parameter.dtype is not None, "a tensor parameter has a dtype"
    if given.array.ndim != len(parameter.dims):
        raise ShapeError(
            f"argument '{parameter.name}' has {counted(given.array.ndim, 'dimension')}, but the signature says "
            f"{len(parameter.dims)}",
            where=user_span(),
            why=f"its shape is {given.array.shape}",
            fix="reshape the argument, or change the annotation",
            facts={"argument": parameter.name, "shape": given.array.shape, "rank": len(parameter.dims)},
        )
    if isinstance(value, bool | int | float):
        return arrays.Given(arrays.scalar(value, parameter.dtype, parameter.name))
    if given.array.dtype != parameter.dtype.numpy:
        raise arrays.wrong_dtype(parameter.name, parameter.dtype, given.array.dtype)
    return given


def _free(name: str, array: Array, value: object) -> Free:
    units = tuple(extent == 1 for extent in array.shape)
    bounds = reach(value) if type(value) is int else None
    return arrays.check_dtype(array, name), array.ndim, units, type(value) in (bool, int, float), bounds


def reach(value: int) -> tuple[int, int]:
    """A range that holds the integer, one of few, so that calls with others of about its size share a kernel."""
    if value < 0:
        return tuple(~end for end in reversed(reach(~value)))  # type: ignore[return-value]  # two of them
    place = next(n for n, bits in enumerate(_BITS) if value < 1 << bits)
    return 1 << _BITS[place - 1] if place else 0, (1 << _BITS[place]) - 1


_BITS = (0, 4, 5, 6, 7, 8, 12, 15, 16, 24, 31, 32, 48, 63, 64)
