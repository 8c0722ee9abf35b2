"""A `torch` whose tensors lie in the memory of a make-believe GPU: as much of it as calls on a GPU use."""

from __future__ import annotations

import math
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.runtime.fake_pycuda import Device


class Dtype:
    """As torch.dtype."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


@dataclass(frozen=True)
class TorchDevice:
    """As torch.device."""

    type: str
    index: int


class Tensor:
    """As torch.Tensor. offset: of the first element in `memory`, in bytes; steps: strides in elements"""

    def __init__(
        self,
        memory: Any,
        shape: Iterable[int],
        dtype: Dtype,
        steps: tuple[int, ...] | None = None,
        offset: int = 0,
        ordinal: int = 0,
    ) -> None:
        self.memory, self.offset, self.shape, self.dtype = memory, offset, tuple(shape), dtype
        self.device = TorchDevice("cuda", ordinal)
        self.steps = _contiguous(self.shape) if steps is None else steps
        self.requires_grad = self.is_quantized = self.is_negated = False
        self.layout, self.is_cuda = "strided", True

    def data_ptr(self) -> int:
        return int(self.memory.address) + self.offset

    def stride(self) -> tuple[int, ...]:
        return self.steps

    def numel(self) -> int:
        return math.prod(self.shape)

    def is_contiguous(self) -> bool:
        return self.steps == _contiguous(self.shape)

    def is_complex(self) -> bool:
        return False

    def is_neg(self) -> bool:
        return self.is_negated

    def numpy(self) -> Any:
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    @property
    def elements(self) -> Any:
        """The elements, in the memory of the device."""
        start = self.memory.bytes[self.offset :].view(self.dtype.name)
        strides = tuple(start.itemsize * step for step in self.steps)
        return np.lib.stride_tricks.as_strided(start, self.shape, strides)

    @property
    def T(self) -> Tensor:
        return self.view(self.shape[::-1], self.steps[::-1])

    def view(self, shape: tuple[int, ...], steps: tuple[int, ...], offset: int = 0) -> Tensor:
        return Tensor(self.memory, shape, self.dtype, steps, self.offset + offset)

    def copy_(self, source: Tensor) -> None:
        self.elements[...] = source.elements

    def clone(self) -> Tensor:
        made: Tensor = sys.modules["torch"].empty(self.shape, dtype=self.dtype)
        made.copy_(self)
        return made


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    steps = [1]
    for length in shape[:0:-1]:
        steps.append(steps[-1] * max(1, length))
    return tuple(steps[::-1][: len(shape)] if shape else ())


class Streams:
    """torch.cuda. current: the handle of the current stream; events: who waited for whom"""

    class OutOfMemoryError(RuntimeError):
        pass

    def __init__(self) -> None:
        self.current = 0
        self.events: list[tuple[int, int]] = []

    def current_stream(self, ordinal: int) -> Any:
        return self._stream(self.current)

    def ExternalStream(self, handle: int, device: int) -> Any:
        return self._stream(handle)

    def _stream(self, handle: int) -> Any:
        def wait_stream(other: Any) -> None:
            self.events.append((handle, other.cuda_stream))

        return types.SimpleNamespace(cuda_stream=handle, wait_stream=wait_stream)


class Torch(types.ModuleType):
    """The module."""

    float32, float64, int32, int64 = map(Dtype, ("float32", "float64", "int32", "int64"))
    strided = "strided"
    Tensor = Tensor

    def __init__(self, allocate: Callable[[int], Any]) -> None:
        super().__init__("torch")
        self.cuda = Streams()
        self._C = types.SimpleNamespace(_cuda_getCurrentRawStream=lambda ordinal: self.cuda.current)
        self._allocate = allocate

    def empty(self, shape: Iterable[int], *, dtype: Dtype, device: str = "cuda:0") -> Tensor:
        shape = tuple(shape)
        return Tensor(self._allocate(math.prod(shape) * np.dtype(dtype.name).itemsize), shape, dtype)

    def tensor(self, values: Any, *, offset: int = 0) -> Tensor:
        """A tensor on the GPU with the elements of an array."""
        array = np.asarray(values)
        made = Tensor(self._allocate(array.nbytes + offset), array.shape, getattr(self, array.dtype.name))
        made.offset = offset
        made.elements[...] = array
        return made


@contextmanager
def installed(patch: pytest.MonkeyPatch, device: Device) -> Iterator[Torch]:
    """While it lasts `torch` has tensors in the memory of the device."""

    def allocate(size: int) -> Any:
        device.stack.append("torch")
        try:
            return device.allocate(size)
        finally:
            device.stack.pop()

    torch = Torch(allocate)
    patch.setitem(sys.modules, "torch", torch)
    yield torch
