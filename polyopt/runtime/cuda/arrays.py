"""The caller's arrays in the memory of a GPU: whose they are, where they lie, how results of their kind are made."""

from __future__ import annotations

import ctypes
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache
from typing import Any, NoReturn, Protocol

import numpy as np

from polyopt import dtypes
from polyopt.classes import dataclass
from polyopt.errors import ArgumentError, with_article
from polyopt.runtime import arrays
from polyopt.runtime.arrays import Array, Given
from polyopt.runtime.cuda import dlpack
from polyopt.runtime.cuda.driver import Memory

ALIGNMENT = 16


class Home(Protocol):
    """A library that has arrays on a device.

    ordinal: the device's number
    """

    @property
    def name(self) -> str: ...
    @property
    def ordinal(self) -> int: ...

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A new C-contiguous array of this library. Raises `MemoryError`."""
        ...

    def stream(self) -> int:
        """The handle of the stream on which the library works now; 0 for the default stream."""
        ...

    def wait_for(self, handle: int) -> None:
        """Let the library's current stream wait for what another stream holds now."""
        ...

    def let_wait(self, handle: int) -> None:
        """Let another stream wait for what the library's current stream holds now."""
        ...


class DeviceArray(np.ndarray[Any, Any]):
    """Shape, strides, dtype and address of an array on a device. Its elements cannot be read from the host.

    owner: the caller's array; home: the library it belongs to
    """

    owner: Any
    home: Home
    __array_ufunc__ = None  # type: ignore[assignment]  # NumPy's way to say that no function of it applies

    @property
    def place(self) -> tuple[str, int]:
        """The library and the number of the device."""
        return self.home.name, self.home.ordinal

    @property
    def is_aligned(self) -> bool:
        """Whether kernels, which load up to 16 bytes at once, can start here."""
        return not self.size or self._address % ALIGNMENT == 0

    @property
    def _address(self) -> int:
        return int(self.__array_interface__["data"][0])

    def take_from(self, source: DeviceArray) -> None:
        """Copy the elements of a new array of the same library, on its stream.

        Raises `ArgumentError` where the library copies nothing and this array is not C-contiguous.
        """
        if hasattr(self.owner, "copy_"):
            self.owner.copy_(source.owner)
        elif not isinstance(self.home, OtherHome):
            self.owner[...] = source.owner
        elif self.flags.c_contiguous:
            self.home.copy(self._address, source._address, self.nbytes)
        else:
            raise ArgumentError(
                "an array of 'out' that shares memory with an argument, or is not aligned, is not contiguous",
                why="the result is computed elsewhere and copied, and only whole memory is copied on a GPU",
                fix="give an array of its own, or a contiguous one",
            )

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise AssertionError("elements in the memory of a GPU are not read from the host")

    __getitem__ = copy = tobytes = item = __array__ = __iter__ = _refuse

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)} on device {self.home.ordinal}>"

    __str__ = __repr__


def seen(
    owner: Any, home: Home, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
) -> DeviceArray:
    """The metadata of an array at a device address."""
    low, high = span(shape, strides, dtype.itemsize)
    memory: Any = _window((high - low).bit_length()).from_address(address + low)  # never looked into
    array = np.ndarray.__new__(DeviceArray, shape, dtype, memory, -low, strides)
    assert isinstance(array, DeviceArray), "it was just made"
    array.owner = owner
    array.home = home
    return array


def span(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> tuple[int, int]:
    """Where the elements start and end, in bytes from the address of the first one."""
    ends = [stride * (length - 1) for length, stride in zip(shape, strides) if length > 1]
    return sum(end for end in ends if end < 0), sum(end for end in ends if end > 0) + itemsize


@cache
def _window(bits: int) -> Any:
    """A type of memory of so many bytes, one of few: making a type takes longer than all else that is done here."""
    return ctypes.c_char * (1 << bits)


def accept(value: Any, name: str, *, is_read: bool = True) -> Given:
    """An array on a GPU, not copied unless it is read and not aligned to 16 bytes.

    Raises `ArgumentError` and `DTypeError` as `runtime.arrays.accept` does.
    """
    array = _seen(value, name)
    if is_read and not array.is_aligned:
        array = _seen(value.clone() if hasattr(value, "clone") else value.copy(), name)
    arrays.check_dtype(array, name)
    return Given(array, _maker(value) if isinstance(array.home, OtherHome) else operator.attrgetter("owner"))


def _maker(value: Any) -> Callable[[Array], Any]:
    """What turns a result into an array of the library of `value`: by DLPack, else it stays an `OwnArray`."""
    namespace = value.__array_namespace__() if hasattr(value, "__array_namespace__") else None
    if hasattr(namespace, "from_dlpack"):
        make: Any = namespace
        return lambda array: make.from_dlpack(getattr(array, "owner"))  # noqa: B009  # an array of ours has one
    return operator.attrgetter("owner")


def _seen(value: Any, name: str) -> DeviceArray:
    """DLPack before the CUDA array interface, which does not say when the elements are there; CuPy's stream we know."""
    if arrays.is_torch(value):
        return _from_torch(value, name)
    if hasattr(value, "__dlpack__") and not (_is_cupy(value) and hasattr(value, "__cuda_array_interface__")):
        return _from_dlpack(value, name)
    return _from_interface(value, name)


def empty(home: Home, shape: tuple[int, ...], dtype: np.dtype[Any]) -> DeviceArray:
    """A new array of the library."""
    owner = home.empty(shape, dtype)
    return torch_array(owner, home) if isinstance(home, TorchHome) else interface_array(owner, home)


def check_places(found: Mapping[str, Array], *, is_gpu: bool) -> None:
    """Raise `ArgumentError` where arrays lie in several memories, or where the target cannot reach them.

    is_gpu: whether the target is a GPU. Numbers, which are arrays without dimensions, go anywhere.
    """
    on_device = {name: array.home.ordinal for name, array in found.items() if isinstance(array, DeviceArray)}
    if not on_device:
        return
    (first, ordinal), *others = on_device.items()
    if not is_gpu:
        raise ArgumentError(
            f"out for '{first}' is in the memory of a GPU, and the target is the CPU",
            fix="pass arrays on the GPU, or use op.on('cuda')",
            facts={"result": first},
        )
    for name, other in others:
        if other != ordinal:
            raise ArgumentError(
                f"'{first}' is on GPU {ordinal} and '{name}' on GPU {other}",
                why="one call runs on one device",
                fix=f"move one of them, as in {name}.to('cuda:{ordinal}')",
                facts={"arguments": (first, name), "devices": (ordinal, other)},
            )
    for name, array in found.items():
        if array.ndim and name not in on_device:
            raise ArgumentError(
                f"'{first}' is in the memory of a GPU and '{name}' in that of the host",
                why="a copy nobody asked for would hide the time it takes",
                fix=f"move '{name}' to the GPU, or pass every array on the host",
                facts={"arguments": (first, name)},
            )


# --- PyTorch ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TorchHome:
    """PyTorch on one device."""

    ordinal: int
    name: str = "torch"

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        torch = sys.modules["torch"]
        try:
            return torch.empty(shape, dtype=getattr(torch, _name(dtype)), device=f"cuda:{self.ordinal}")
        except torch.cuda.OutOfMemoryError as error:
            raise MemoryError(str(error)) from None

    def can_hold(self, value: object, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
        """Whether a result can be written to `value`, a tensor of any kind or something else, as a kernel does it."""
        tensor: Any = value
        return (
            arrays.tensor_key(tensor) is not None
            and tensor.device.index == self.ordinal
            and tensor.shape == shape
            and tensor.dtype is getattr(sys.modules["torch"], _name(dtype))
            and tensor.is_contiguous()
        )

    def stream(self) -> int:
        torch = sys.modules["torch"]
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # of torch's own compiled code: makes no object
        return int(raw(self.ordinal) if raw else torch.cuda.current_stream(self.ordinal).cuda_stream)

    def wait_for(self, handle: int) -> None:
        cuda = sys.modules["torch"].cuda
        cuda.current_stream(self.ordinal).wait_stream(cuda.ExternalStream(handle, device=self.ordinal))

    def let_wait(self, handle: int) -> None:
        cuda = sys.modules["torch"].cuda
        cuda.ExternalStream(handle, device=self.ordinal).wait_stream(cuda.current_stream(self.ordinal))


@cache
def _name(dtype: np.dtype[Any]) -> str:
    """NumPy takes a microsecond to say it."""
    return dtype.name


def _from_torch(tensor: Any, name: str) -> DeviceArray:
    arrays.check_torch(tensor, name)
    return torch_array(tensor, TorchHome(tensor.device.index or 0))


def torch_array(tensor: Any, home: TorchHome) -> DeviceArray:
    dtype = str(tensor.dtype).removeprefix("torch.")
    numpy = dtypes.bf16.numpy if dtype == "bfloat16" else np.dtype(dtype)
    strides = tuple(step * numpy.itemsize for step in tensor.stride())
    return seen(tensor, home, tensor.data_ptr(), tuple(tensor.shape), strides, numpy)


# --- CuPy, and whoever speaks the CUDA array interface ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CupyHome:
    """CuPy on one device."""

    ordinal: int
    name: str = "cupy"

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(self.ordinal):
            try:
                return cupy.empty(shape, dtype)
            except cupy.cuda.memory.OutOfMemoryError as error:
                raise MemoryError(str(error)) from None

    def stream(self) -> int:
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)

    def wait_for(self, handle: int) -> None:
        cuda = sys.modules["cupy"].cuda
        cuda.get_current_stream().wait_event(cuda.ExternalStream(handle).record())

    def let_wait(self, handle: int) -> None:
        cuda = sys.modules["cupy"].cuda
        cuda.ExternalStream(handle).wait_event(cuda.get_current_stream().record())


@dataclass(frozen=True, slots=True)
class OtherHome:
    """A library of which only its arrays are known; its work is taken to be on the default stream.

    allocate: gives memory for so many bytes; copy: to an address from another so many bytes; wait: for all work there
    """

    ordinal: int
    allocate: Callable[[int], Memory] = field(compare=False)
    copy: Callable[[int, int, int], None] = field(compare=False)
    wait: Callable[[], None] = field(compare=False)
    name: str = "other"

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return OwnArray(self.allocate(size), shape, dtype, self.ordinal, self.wait)

    def stream(self) -> int:
        return 0

    def wait_for(self, handle: int) -> None:
        """The default stream, on which such calls run, waits by itself."""

    def let_wait(self, handle: int) -> None:
        """The default stream, on which such calls run, waits by itself."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnArray:
    """A result in memory of our own, for libraries that take the CUDA array interface or DLPack. C-contiguous."""

    memory: Memory
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    ordinal: int
    wait: Callable[[], None]

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        typestr = self.dtype.str if self.dtype.kind != "V" else "<V2"
        return {
            "shape": self.shape,
            "strides": None,
            "typestr": typestr,
            "data": (self.memory.address, False),
            "version": 3,
            "stream": 1,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.CUDA_DEVICE, self.ordinal

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> object:
        """stream: the consumer's; None and 1 are the default stream, where the result is computed"""
        if stream not in (None, dlpack.LEGACY_STREAM, -1):
            self.wait()
        return dlpack.give(self.memory.address, self.shape, self.dtype, self.__dlpack_device__(), self)


def _from_interface(value: Any, name: str) -> DeviceArray:
    if value.__cuda_array_interface__.get("mask") is not None:
        raise ArgumentError(
            f"argument '{name}' is a masked array", why="the mask would be ignored", facts={"argument": name}
        )
    ordinal = _ordinal(value)
    if _is_cupy(value):
        return interface_array(value, CupyHome(ordinal))
    home = _other(ordinal)
    if value.__cuda_array_interface__.get("stream") not in (None, dlpack.LEGACY_STREAM):
        home.wait()
    return interface_array(value, home)


def _is_cupy(value: Any) -> bool:
    return type(value).__module__.split(".")[0] == "cupy"


def interface_array(value: Any, home: Home) -> DeviceArray:
    """The array behind `__cuda_array_interface__`."""
    facts = value.__cuda_array_interface__
    shape = tuple(map(int, facts["shape"]))
    named = getattr(value, "dtype", None)
    is_bf16 = facts["typestr"].endswith("V2") or getattr(named, "name", "") == "bfloat16"
    dtype = dtypes.bf16.numpy if is_bf16 else np.dtype(facts["typestr"])
    strides = facts.get("strides") or tuple(dtype.itemsize * step for step in dlpack.steps(shape))
    array = seen(value, home, int(facts["data"][0]), shape, tuple(strides), dtype)
    array.flags.writeable = not facts["data"][1]
    return array


def _ordinal(value: Any) -> int:
    """The number of the device of an array; 0 where its library does not say."""
    device = getattr(value, "device", None)
    if isinstance(getattr(device, "id", None), int):
        return int(device.id)  # type: ignore[union-attr]
    asked = getattr(value, "__dlpack_device__", None)
    return int(asked()[1]) if asked is not None else 0


def _other(ordinal: int) -> OtherHome:
    from polyopt.runtime.cuda import devices  # it looks for pycuda

    return OtherHome(
        ordinal,
        lambda size: devices.driver(ordinal).allocate(size, "result", is_written=False),
        lambda target, source, size: devices.driver(ordinal).copy(target, source, size),
        lambda: devices.driver(ordinal).wait(),
    )


def _from_dlpack(value: Any, name: str) -> DeviceArray:
    try:
        found = dlpack.take(dlpack.ask(value, stream=dlpack.LEGACY_STREAM))
    except (BufferError, RuntimeError, TypeError, ValueError) as failure:
        raise ArgumentError(
            f"the memory of argument '{name}', {with_article(type(value).__name__)}, cannot be read",
            why=str(failure),
            facts={"argument": name},
        ) from failure
    if found.device[0] not in dlpack.CUDA_DEVICES:
        raise ArgumentError(
            f"argument '{name}', {with_article(type(value).__name__)}, is in the memory of no GPU of CUDA's",
            why=f"DLPack says device type {found.device[0]}",
            fix="copy it to the host, or to a GPU of CUDA's",
            facts={"argument": name, "device": found.device},
        )
    array = seen((value, found), _other(found.device[1]), found.address, found.shape, found.strides, found.dtype)
    array.flags.writeable = not found.is_read_only
    return array
