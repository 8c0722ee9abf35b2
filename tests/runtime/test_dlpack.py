"""Capsules of DLPack made and taken here, held against NumPy's."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from polyopt import dtypes
from polyopt.runtime.cuda import dlpack

CPU = (dlpack.CPU_DEVICE, 0)


class Exporter:
    """An array that only we hand out."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU

    def __dlpack__(self, **_: Any) -> object:
        return dlpack.give(self.array.ctypes.data, self.array.shape, self.array.dtype, CPU, self)


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "i1", "u2", "i8", "?"])
@pytest.mark.parametrize("shape", [(3, 5), (4,), (), (2, 0)])
def test_numpy_takes_what_we_give(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    taken = np.from_dlpack(Exporter(array))  # type: ignore[arg-type]  # it has what the protocol asks for
    assert taken.dtype == array.dtype
    np.testing.assert_array_equal(taken, array)


def test_what_we_give_lives_as_long_as_it_is_used() -> None:
    exporter = Exporter(np.arange(6.0))
    gone = weakref.ref(exporter)
    taken = np.from_dlpack(exporter)  # type: ignore[arg-type]
    del exporter
    gc.collect()
    assert gone() is not None and taken[5] == 5
    del taken
    gc.collect()
    assert gone() is None


def test_a_capsule_that_nobody_takes_goes_with_its_array() -> None:
    exporter = Exporter(np.arange(6.0))
    gone = weakref.ref(exporter)
    capsule = exporter.__dlpack__()
    del exporter
    gc.collect()
    assert gone() is not None
    del capsule
    gc.collect()
    assert gone() is None


def test_we_take_what_numpy_gives() -> None:
    array = np.arange(24, dtype=np.int16).reshape(4, 6)
    found = dlpack.take(array[1:, ::2].__dlpack__())
    assert (found.shape, found.strides, found.dtype) == ((3, 3), (12, 4), np.dtype("i2"))
    assert (found.address, found.device) == (array.ctypes.data + 12, CPU)


def test_bf16_is_told_apart() -> None:
    array = np.zeros(4, dtypes.bf16.numpy)
    capsule = dlpack.give(array.ctypes.data, array.shape, array.dtype, CPU, array)
    assert dlpack.take(capsule).dtype == dtypes.bf16.numpy


def test_complex_numbers_are_refused() -> None:
    with pytest.raises(TypeError, match="code 5"):
        dlpack.take(np.zeros(3, np.complex64).__dlpack__())


@pytest.mark.parametrize("is_read_only", [False, True])
def test_an_array_of_version_1_says_whether_it_is_read_only(*, is_read_only: bool) -> None:
    array = np.arange(24, dtype=np.int16).reshape(4, 6).copy()
    array.flags.writeable = not is_read_only
    gone = weakref.ref(array)
    capsule = dlpack.ask(array[1:, ::2])
    found = dlpack.take(capsule)
    assert (found.shape, found.strides, found.dtype) == ((3, 3), (12, 4), np.dtype("i2"))
    assert (found.address, found.device, found.is_read_only) == (array.ctypes.data + 12, CPU, is_read_only)
    del array, capsule
    gc.collect()
    assert gone() is not None
    del found
    gc.collect()
    assert gone() is None


def test_a_library_that_knows_no_versions_is_asked_without() -> None:
    class Before:
        def __dlpack__(self, stream: int | None = None) -> object:
            return np.arange(3.0).__dlpack__()

    found = dlpack.take(dlpack.ask(Before(), stream=None))
    assert (found.shape, found.is_read_only) == ((3,), False)
