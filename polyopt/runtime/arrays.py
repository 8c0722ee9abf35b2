"""The caller's arrays: seen as NumPy arrays without a copy, checked, and results given back in the caller's kind."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from polyopt import dtypes
from polyopt.classes import dataclass
from polyopt.dtypes import DType
from polyopt.errors import ArgumentError, DTypeError, ShapeError, with_article
from polyopt.runtime.kernel import ArrayInfo

Array = np.ndarray[Any, Any]
Wrap = Callable[[Array], Any]
Layout = tuple[int, ...] | None

MAX_EXTENT = (1 << 63) - 1
MAX_BYTES = 1 << 47
"""What an address space can hold; a larger result is refused before anybody tries to allocate it."""
_ENUMERATED_ELEMENTS = 1 << 20
_OVERLAP_WORK = 1000
_CPU_DEVICES = (1, 3, 13)
"""DLPack's numbers of devices whose memory the processor can read: CPU, CUDA host, CUDA managed."""
_TORCH_DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """One argument of a call.

    array: the argument's elements, never a copy, except where the caller's value was no array (a Python scalar)
    wrap:  makes an array of the caller's kind from a NumPy array; None for NumPy itself and for scalars
    """

    array: Array
    wrap: Wrap | None = None


# --- what comes in --------------------------------------------------------------------------------------------


def is_on_device(value: object) -> bool:
    """Whether `value` is an array in the memory of a GPU."""
    if isinstance(value, np.ndarray | int | float):
        return False
    if is_torch(value):
        return bool(value.is_cuda)  # type: ignore[attr-defined]  # others, such as "meta", have no number in DLPack
    if hasattr(value, "__cuda_array_interface__"):
        return True
    device = getattr(value, "__dlpack_device__", None)
    return device is not None and device()[0] not in _CPU_DEVICES


def accept(value: Any, name: str) -> Given:
    """`value` as a NumPy array of a supported dtype, in the same memory.

    Accepted: NumPy arrays and scalars, PyTorch tensors, whatever has DLPack or `__array_interface__`, Python numbers.
    Raises `ArgumentError` for other values, masked arrays and tensors that require grad, `DTypeError` for a dtype.
    """
    if type(value) is np.ndarray:
        given = Given(value)
    elif _is_masked(value):
        raise ArgumentError(
            f"argument '{name}' is a masked array",
            why="the mask would be ignored",
            fix=f"pass {name}.filled(...), and the mask as an argument of its own",
            facts={"argument": name},
        )
    elif isinstance(value, int) and not is_representable(value):
        raise ArgumentError(
            f"argument '{name}' is an integer of {value.bit_length()} bits",
            why="integers have 64",
            fix=f"pass float({name}), or a smaller number",
            facts={"argument": name, "bits": value.bit_length()},
        )
    elif isinstance(value, np.ndarray | np.generic | bool | int | float):
        given = Given(np.asarray(value))
    elif is_torch(value):
        given = _accept_torch(value, name)
    else:
        given = _accept_protocol(value, name)
    check_dtype(given.array, name)
    return given


def is_representable(value: int) -> bool:
    """Whether an integer of 64 bits, with or without sign, holds the number."""
    return -(1 << 63) <= value < 1 << 64


def accept_out(value: Any, name: str) -> Array:
    """`out=` for the result `name` as an array over its memory. Raises as `accept` does, with the result's name."""
    if is_on_device(value):
        from polyopt.runtime.cuda import arrays as on_device  # opens with the first array on a GPU

        return on_device.accept(value, f"out for {name}", is_read=False).array
    if isinstance(value, bool | int | float | np.generic):
        raise _no_out(value, name)
    if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray) and not is_torch(value):
        return _view(value, "out", is_written=True)
    try:
        return accept(value, "out").array
    except ArgumentError as error:
        if error.facts.get("type") is None:
            raise
        raise _no_out(value, name) from None


def _no_out(value: object, name: str) -> ArgumentError:
    return _no_array(f"out for '{name}'", value, "pass np.empty(...) of the result's shape and dtype")


def place(array: Array) -> Hashable:
    """On which device the array lies, and which library it belongs to; None on the host."""
    return getattr(array, "place", None)


def check_dtype(array: Array, name: str) -> DType:
    """The dtype of an argument. Raises `DTypeError`, with the argument's name, for one that polyopt does not have."""
    try:
        return _known_dtype(array.dtype)
    except DTypeError as error:
        raise DTypeError(
            f"argument '{name}': {error.what}",
            why=error.why,
            fix=error.fix,
            facts={**error.facts, "argument": name},
        ) from None


_known_dtype = cache(dtypes.from_numpy)


def _accept_protocol(value: Any, name: str) -> Given:
    if hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__"):
        return Given(_view(value, name), _maker(value))
    fix = f"np.asarray({name})"
    if value is None:
        fix = "pass an array, or annotate the parameter with '| None' to leave it out"
    elif not isinstance(value, Iterable):  # np.asarray would make it an object
        fix = "pass an array, or give the parameter no annotation to take such a value when compiling"
    raise _no_array(f"argument '{name}'", value, fix)


def _no_array(place: str, value: object, fix: str) -> ArgumentError:
    return ArgumentError(
        f"{place} is {with_article(type(value).__name__)}, which is no array",
        why="arrays are NumPy arrays, PyTorch tensors, and what has DLPack or __array_interface__",
        fix=fix,
        facts={"argument": place, "type": type(value).__name__},
    )


def _view(value: Any, name: str, *, is_written: bool = False) -> Array:
    """The memory of a foreign array. DLPack has no bfloat16 in NumPy, so the array interface is the second try; where
    nothing is written, a copy is the third."""
    failure: Exception | None = None
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            failure = error
    if hasattr(value, "__array_interface__") or (hasattr(value, "__array__") and not is_written):
        try:
            return np.asarray(value)
        except (TypeError, ValueError) as error:
            failure = error
    kind, verb = with_article(type(value).__name__), "written" if is_written else "read"
    if any(words in str(failure) for words in _ABOUT_DTYPES):
        raise DTypeError(
            f"the elements of argument '{name}', {kind}, are of no dtype that polyopt has",
            why=str(failure),
            fix="pass numbers of 8 to 64 bits in this machine's byte order",
            facts={"argument": name},
        ) from failure
    raise ArgumentError(
        f"the memory of argument '{name}', {kind}, cannot be {verb}",
        why=str(failure),
        fix=f"convert it to a NumPy array first: np.asarray({name})",
        facts={"argument": name},
    ) from failure


_ABOUT_DTYPES = ("byte order", "dtype")
"""Words of NumPy's where it gives no array by DLPack because of its elements, which nothing else tells of."""


def _maker(value: Any) -> Wrap | None:
    """What turns a NumPy array into an array of the library of `value`; None where that library has no way."""
    namespace = value.__array_namespace__() if hasattr(value, "__array_namespace__") else None
    if namespace is None or namespace is np:
        return None

    def wrap(array: Array) -> Any:
        has_dlpack = hasattr(namespace, "from_dlpack") and array.dtype.name != "bfloat16"
        return namespace.from_dlpack(array) if has_dlpack else namespace.asarray(array)

    return wrap


def _is_masked(value: object) -> bool:
    """Whether `value` is a masked array of NumPy, which opens that module late: where it is not open, there is none."""
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def is_torch(value: object) -> bool:
    """Whether `value` is a tensor of PyTorch, which need not be imported for the question."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def check_torch(tensor: Any, name: str) -> None:
    """Raise `ArgumentError` or `DTypeError` for a tensor that is no plain array of numbers."""
    import torch

    if tensor.requires_grad:
        raise ArgumentError(
            f"the tensor '{name}' requires grad",
            why="polyopt computes no gradients, so the result would silently be cut from the graph",
            fix=f"{name}.detach()",
            facts={"argument": name},
        )
    if tensor.layout is not torch.strided:
        raise ArgumentError(f"the tensor '{name}' is sparse", fix=f"{name}.to_dense()", facts={"argument": name})
    if tensor.device.type not in _TORCH_DEVICES or tensor.is_quantized:
        raise ArgumentError(
            f"the tensor '{name}' has no plain numbers in the memory of the host or of an NVIDIA GPU",
            why=f"its device is {tensor.device}, its dtype {tensor.dtype}",
            fix=f"{name}.dequantize()" if tensor.is_quantized else f"{name}.cpu(), or a tensor with values",
            facts={"argument": name},
        )
    if tensor.is_complex():
        raise _complex_error(name, str(tensor.dtype))
    if tensor.is_neg():
        raise ArgumentError(
            f"the tensor '{name}' is a lazily negated view",
            fix=f"{name}.resolve_neg()",
            facts={"argument": name},
        )


def _accept_torch(tensor: Any, name: str) -> Given:
    import torch

    check_torch(tensor, name)
    if tensor.dtype == torch.bfloat16:
        bits: Array = tensor.view(torch.int16).numpy()
        return Given(bits.view(dtypes.bf16.numpy), as_torch)
    try:
        return Given(tensor.numpy(), as_torch)
    except TypeError:  # a dtype that NumPy has no name for, such as float8
        raise DTypeError(
            f"argument '{name}': dtype {tensor.dtype} is not supported",
            fix=f"{name}.to(torch.float32)",
            facts={"dtype": str(tensor.dtype), "argument": name},
        ) from None


def tensor_key(value: Any) -> Hashable | None:
    """What a kernel depends on in a torch tensor on a GPU, but for its address; None where a closer look is needed.

    A quantized or complex tensor has a dtype that no call ever had.
    """
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor or not value.is_cuda:
        return None
    if value.requires_grad or value.layout is not torch.strided or value.is_neg():
        return None
    return value.dtype, value.shape, value.stride(), value.device


def torch_views(values: tuple[Any, ...]) -> list[Any] | None:
    """The values with plain torch tensors on the host seen as NumPy arrays; None where torch refuses one, or none is
    a tensor."""
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    kind = torch.Tensor
    try:
        views = [value.numpy() if type(value) is kind and not value.is_cuda else value for value in values]
    except (RuntimeError, TypeError):  # requires grad, sparse, a lazy view, on another device, bfloat16
        return None
    return views if any(type(value) is kind for value in values) else None


def as_torch(array: Array) -> Any:
    """The array as a tensor, in the same memory. NumPy's bfloat16, a kind of its own, goes as 16-bit integers."""
    import torch

    if array.dtype.kind == "V":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def _complex_error(name: str, dtype: str) -> DTypeError:
    return DTypeError(
        f"argument '{name}': dtype {dtype} is not supported",
        why="there are no complex dtypes",
        fix="pass the real and the imaginary part as two arguments",
        facts={"dtype": dtype, "argument": name},
    )


def scalar(value: Any, dtype: DType, name: str) -> Array:
    """A run-time scalar, a Python or NumPy number or a 0-d array, as a 0-d array of `dtype`.

    Raises `DTypeError` where the kind does not fit (a float for an integer) and `ArgumentError` where the value does
    not (300 for an i8, an array with dimensions).
    """
    try:
        array = accept(float(value) if type(value) is int and dtype.is_float else value, name).array
    except OverflowError:
        raise _too_wide(name, value, dtype) from None
    except ArgumentError as error:
        if error.facts.get("type") is None:
            raise
        raise ArgumentError(
            f"the scalar '{name}' is given {with_article(type(value).__name__)}",
            why=f"it is one number of dtype {dtype}",
            fix="pass a Python or NumPy number",
            facts=error.facts,
        ) from None
    if array.ndim:
        raise ArgumentError(
            f"the scalar '{name}' was given an array of shape {array.shape}",
            fix=f"pass one number, or annotate '{name}' as a tensor",
            facts={"argument": name, "shape": array.shape},
        )
    given = _known_dtype(array.dtype)
    if _KIND_ORDER[given.kind] > _KIND_ORDER[dtype.kind]:
        raise DTypeError(
            f"the scalar '{name}' is {value!r}, but the signature says {dtype}",
            fix=f"{_CONVERSIONS[dtype.kind]}({name}), or change the annotation",
            facts={"argument": name, "dtype": str(array.dtype), "expected": dtype.name},
        )
    try:
        return np.array(float(array.item()) if dtype.is_float else array.item(), dtype.numpy)
    except OverflowError:
        raise _too_wide(name, value, dtype) from None


def _too_wide(name: str, value: Any, dtype: DType) -> ArgumentError:
    shown = f"an integer of {value.bit_length()} bits" if isinstance(value, int) and abs(value) >= 1 << 64 else value
    return ArgumentError(
        f"the scalar '{name}' is {shown}, which does not fit in {dtype}",
        fix="change the annotation to a wider dtype",
        facts={"argument": name, "value": value, "dtype": dtype.name},
    )


_CONVERSIONS = {"b": "bool", "u": "int", "i": "int", "f": "float"}
_KIND_ORDER = {"b": 0, "u": 1, "i": 1, "f": 2}


def wrong_dtype(name: str, wanted: DType, found: np.dtype[Any]) -> DTypeError:
    """The error for an argument of another dtype than the signature says."""
    return DTypeError(
        f"argument '{name}' has dtype {found}, but the signature says {wanted}",
        fix=f"{name}.astype({str(wanted.numpy.name)!r}), or change the annotation",
        facts={"argument": name, "dtype": str(found), "expected": wanted.name},
    )


# --- layouts --------------------------------------------------------------------------------------------------


def layout(array: Array) -> Layout:
    """The byte strides that a kernel is compiled for; None where the array is C-contiguous.

    Steps along dimensions of one element say nothing and count as 0.
    """
    if array.flags.c_contiguous:
        return None
    return tuple(0 if extent <= 1 else stride for extent, stride in zip(array.shape, array.strides))


def laid_out_as(array: Array) -> Array:
    """A new array of the same shape, dtype and strides. Not initialised."""
    low, high = np.lib.array_utils.byte_bounds(array)
    memory = np.empty(high - low, np.uint8)
    return np.ndarray(array.shape, array.dtype, memory, array.ctypes.data - low, array.strides)


def is_aligned(array: Array) -> bool:
    """Whether a kernel can work on the array where it is."""
    on_device = getattr(array, "is_aligned", None)
    return bool(array.flags.aligned if on_device is None else on_device)


def copy_into(target: Array, source: Array) -> None:
    """Copy elements between arrays on the host, or between arrays of one library on a device."""
    if hasattr(target, "take_from"):
        target.take_from(source)
    else:
        np.copyto(target, source)


def aligned(array: Array) -> Array:
    """The array, or a copy of it where elements lie at addresses that are no multiple of their size."""
    return array if array.flags.aligned else array.copy()


# --- results --------------------------------------------------------------------------------------------------


def check_size(info: ArrayInfo, shape: tuple[int, ...]) -> None:
    """Raise `ShapeError` where a result of `shape` cannot exist: a negative extent, or more than an address space."""
    needed = math.prod(shape) * info.dtype.itemsize
    if min(shape, default=0) >= 0 and needed < MAX_BYTES:
        return
    raise ShapeError(
        f"result '{info.name}' would have the shape {shape}",
        why=f"that is {needed} bytes, more than an address space holds" if needed > 0 else "an extent is negative",
        fix="pass sizes for which every extent is 0 or more, and small enough",
        facts={"result": info.name, "shape": shape},
    )


def check_out(out: Array, name: str, dtype: DType, shape: tuple[int, ...]) -> None:
    """Raise unless a result can be written to `out`: `DTypeError`, `ShapeError`, or `ArgumentError`."""
    if out.dtype != dtype.numpy:
        raise DTypeError(
            f"out for '{name}' has dtype {out.dtype}, but the result is {dtype}",
            fix=f"np.empty({shape}, {str(dtype.numpy.name)!r})",
            facts={"result": name, "dtype": str(out.dtype), "expected": dtype.name},
        )
    if out.shape != shape:
        raise ShapeError(
            f"out for '{name}' has shape {out.shape}, but the result has shape {shape}",
            fix=f"np.empty({shape}, {str(dtype.numpy.name)!r})",
            facts={"result": name, "shape": out.shape, "expected": shape},
        )
    check_writable(out, name)


def check_writable(out: Array, name: str) -> None:
    """Raise `ArgumentError` where `out` is read-only or where two of its elements lie in the same memory."""
    if not out.flags.writeable:
        raise ArgumentError(f"out for '{name}' is read-only", fix="pass a writable array", facts={"result": name})
    if overlaps_itself(out):
        raise ArgumentError(
            f"elements of out for '{name}' share memory",
            why=f"its shape is {out.shape} and its strides are {out.strides} bytes",
            fix="pass an array of its own, such as out.copy()",
            facts={"result": name, "shape": out.shape, "strides": out.strides},
        )


def overlaps_itself(array: Array) -> bool:
    """Whether two elements share bytes. Exact up to a million elements; above that, in doubt yes."""
    if array.size <= 1:
        return False
    reach = array.itemsize
    for stride, extent in sorted((abs(s), n) for s, n in zip(array.strides, array.shape) if n > 1):
        if stride < reach:
            return array.size > _ENUMERATED_ELEMENTS or _shares_bytes(array)
        reach += stride * (extent - 1)
    return False


def _shares_bytes(array: Array) -> bool:
    offsets: Any = np.zeros((), np.int64)
    for stride, extent in zip(array.strides, array.shape):
        offsets = np.add.outer(offsets, stride * np.arange(extent, dtype=np.int64))
    return bool((np.diff(np.sort(offsets, axis=None)) < array.itemsize).any())


def needs_temporary(out: Array, name: str, inputs: Mapping[str, Array], in_place: Sequence[tuple[str, str]]) -> bool:
    """Whether the result `name` must be computed elsewhere and copied, because `out` shares memory with an input.

    in_place: pairs (result, input) for which the kernel allows the very same memory
    """
    return any(
        overlap(out, array) and not ((name, source) in in_place and is_same_memory(out, array))
        for source, array in inputs.items()
    )


def overlap(left: Array, right: Array) -> bool:
    """Whether two arrays share memory; where that is hard to decide, yes."""
    if not np.may_share_memory(left, right):
        return False
    try:
        return np.shares_memory(left, right, max_work=_OVERLAP_WORK)  # type: ignore[arg-type]  # any work is allowed
    except np.exceptions.TooHardError:
        return True


def is_same_memory(left: Array, right: Array) -> bool:
    """Whether the arrays are element by element the same memory."""
    return (
        left.__array_interface__["data"][0] == right.__array_interface__["data"][0]
        and left.shape == right.shape
        and left.strides == right.strides
        and left.dtype == right.dtype
    )
