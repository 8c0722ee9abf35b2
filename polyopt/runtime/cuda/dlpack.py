"""DLPack, the protocol by which libraries hand each other arrays without a copy, for memory that NumPy cannot open.

Source: the header dlpack.h, version 1.0; a capsule holds a `DLManagedTensorVersioned`, or a `DLManagedTensor` of the
versions before, which does not say what is read-only.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from polyopt import dtypes
from polyopt.classes import dataclass

CPU_DEVICE = 1
CUDA_DEVICE = 2
CUDA_DEVICES = frozenset({CUDA_DEVICE, 13})
"""With managed memory, which both sides reach."""
LEGACY_STREAM = 1
"""What a consumer passes to `__dlpack__` for the default stream of CUDA."""
_NAME = b"dltensor"
_VERSIONED = b"dltensor_versioned"
_READ_ONLY = 1
_CODES = {"i": 0, "u": 1, "f": 2, "V": 4, "b": 6}


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    pass


_Deleter = ctypes.CFUNCTYPE(None, ctypes.POINTER(_Managed))
_Managed._fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter)]


class _ManagedVersioned(ctypes.Structure):
    pass


_ManagedVersioned._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("context", ctypes.c_void_p),
    ("deleter", ctypes.CFUNCTYPE(None, ctypes.POINTER(_ManagedVersioned))),
    ("flags", ctypes.c_uint64),
    ("tensor", _Tensor),
]

_api = ctypes.pythonapi
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_api.PyCapsule_GetPointer.restype = ctypes.c_void_p
_api.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
_api.PyCapsule_IsValid.argtypes = [ctypes.c_void_p, ctypes.c_char_p]


@dataclass(frozen=True, slots=True)
class Imported:
    """An array of another library.

    strides:      in bytes
    device:       DLPack's kind of device and its number
    is_read_only: whether it says so, as immutable arrays do that know version 1
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype[Any]
    device: tuple[int, int]
    keep: object
    is_read_only: bool = False


class _Holder:
    """Gives a foreign tensor back when the last who uses its memory is gone."""

    def __init__(self, managed: Any) -> None:
        self._managed = managed

    def __del__(self) -> None:
        if self._managed and self._managed.contents.deleter:
            self._managed.contents.deleter(self._managed)


def ask(value: Any, **options: Any) -> object:
    """The capsule with an array of another library, of version 1 where it knows that one."""
    try:
        return value.__dlpack__(max_version=(1, 0), **options)
    except TypeError:  # it takes no max_version, or says once more what it does not like
        return value.__dlpack__(**options)


def take(capsule: object) -> Imported:
    """The array in a capsule, which is used up. Raises `TypeError` for elements that polyopt does not have."""
    name, kind = (_VERSIONED, _ManagedVersioned) if _api.PyCapsule_GetName(capsule) == _VERSIONED else (_NAME, _Managed)
    managed: Any = ctypes.cast(_api.PyCapsule_GetPointer(capsule, name), ctypes.POINTER(kind))
    tensor = managed.contents.tensor
    dtype = _dtype(tensor.code, tensor.bits, tensor.lanes)
    _api.PyCapsule_SetName(capsule, _USED[name])
    shape = tuple(tensor.shape[n] for n in range(tensor.ndim))
    strides = tuple(tensor.strides[n] for n in range(tensor.ndim)) if tensor.strides else steps(shape)
    return Imported(
        (tensor.data or 0) + tensor.byte_offset,
        shape,
        tuple(step * dtype.itemsize for step in strides),
        dtype,
        (tensor.device_type, tensor.device_id),
        _Holder(managed),
        name == _VERSIONED and bool(managed.contents.flags & _READ_ONLY),
    )


_USED = {_NAME: b"used_dltensor", _VERSIONED: b"used_dltensor_versioned"}
"""What a capsule is called that was taken; it keeps the address of its name."""


def steps(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Elements from one index to the next, along each dimension of a C-contiguous array."""
    found: list[int] = []
    step = 1
    for length in reversed(shape):
        found.append(step)
        step *= max(1, length)
    return tuple(reversed(found))


def _dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    kind = next((letter for letter, number in _CODES.items() if number == code), "")
    if not kind or lanes != 1 or bits % 8:
        raise TypeError(f"DLPack elements of code {code} with {bits} bits and {lanes} lanes")
    if kind == "V":
        return dtypes.bf16.numpy
    return np.dtype(np.bool_) if kind == "b" else np.dtype(f"{kind}{bits // 8}")


_exported: dict[int, tuple[Any, ...]] = {}
"""What capsules that others hold refer to, until they give it back."""


@_Deleter  # type: ignore[untyped-decorator]  # ctypes has no types for functions that C calls
def _release(managed: Any) -> None:
    _exported.pop(ctypes.addressof(managed.contents), None)


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # type: ignore[untyped-decorator]
def _destroy(capsule: int) -> None:
    """A capsule that nobody took goes with its tensor."""
    if _api.PyCapsule_IsValid(capsule, _NAME):
        get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_GetPointer", _api))
        _exported.pop(get(capsule, _NAME), None)


def give(address: int, shape: tuple[int, ...], dtype: np.dtype[Any], device: tuple[int, int], keep: object) -> object:
    """A capsule with a C-contiguous array. keep: stays alive as long as somebody uses the memory"""
    lengths = (ctypes.c_int64 * max(1, len(shape)))(*shape)
    strides = (ctypes.c_int64 * max(1, len(shape)))(*steps(shape))
    kind = "V" if dtype == dtypes.bf16.numpy else dtype.kind
    tensor = _Tensor(address, *device, len(shape), _CODES[kind], 8 * dtype.itemsize, 1, lengths, strides, 0)
    managed = _Managed(tensor, None, _release)
    _exported[ctypes.addressof(managed)] = (managed, lengths, strides, keep)
    destroy = ctypes.cast(_destroy, ctypes.c_void_p)
    return _api.PyCapsule_New(ctypes.addressof(managed), _NAME, destroy)
