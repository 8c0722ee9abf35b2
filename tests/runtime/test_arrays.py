"""The caller's arrays: what is accepted, what is refused, and what shares memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyopt import dtypes
from polyopt.errors import ArgumentError, DTypeError, ShapeError
from polyopt.runtime import arrays, calls
from polyopt.runtime.kernel import ArrayInfo


class Dlpack:
    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> object:
        return self.array.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


class Interface:
    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.__array_interface__ = array.__array_interface__


@pytest.mark.parametrize("export", [lambda a: a, Dlpack, Interface, lambda a: a.view(np.matrix)])
def test_memory_is_shared_and_not_copied(export: Any) -> None:
    array = np.arange(12.0).reshape(3, 4)[:, ::-1]
    seen = arrays.accept(export(array), "x").array
    assert arrays.is_same_memory(seen, array)


@pytest.mark.parametrize("value", [3, 2.5, True, np.float32(1), np.array(7)])
def test_numbers_are_arrays_of_rank_0(value: Any) -> None:
    assert arrays.accept(value, "x").array.shape == ()


@pytest.mark.parametrize(
    "value",
    [
        np.zeros(3, complex),
        np.zeros(3, object),
        np.zeros(3, ">f4"),
        np.zeros(3, np.longdouble),
        np.zeros(3, "datetime64[s]"),
        np.zeros(3, "U3"),
        np.zeros(3, [("a", "f4")]),
    ],
)
def test_other_dtypes_are_refused_by_name(value: np.ndarray) -> None:
    with pytest.raises(DTypeError, match="argument 'weights'") as caught:
        arrays.accept(value, "weights")
    assert caught.value.fix


@pytest.mark.parametrize("dtype", [">f4", object, "datetime64[s]"])
def test_other_dtypes_behind_dlpack_are_refused_as_such(dtype: str) -> None:
    value = Dlpack(np.zeros(3, dtype))
    with pytest.raises(DTypeError, match="argument 'weights'"):
        arrays.accept(value, "weights")
    with pytest.raises(DTypeError, match="out"):
        arrays.accept_out(value, "y")


@pytest.mark.parametrize("value", [[1, 2], None, "text", object(), {"a": 1}, 1j])
def test_what_is_no_array_is_refused_by_name(value: object) -> None:
    with pytest.raises((ArgumentError, DTypeError), match="argument 'x'"):
        arrays.accept(value, "x")


def test_a_masked_array_is_refused() -> None:
    with pytest.raises(ArgumentError, match="masked"):
        arrays.accept(np.ma.masked_array([1.0, 2.0], [True, False]), "x")


def test_device_arrays_are_told_from_host_arrays() -> None:
    assert not arrays.is_on_device(np.zeros(3))
    assert not arrays.is_on_device(Dlpack(np.zeros(3)))
    assert arrays.is_on_device(Dlpack(np.zeros(3), device=2))


@pytest.mark.parametrize(
    ("value", "dtype", "result"),
    [
        (1, dtypes.f32, 1.0),
        (True, dtypes.i8, 1),
        (-3, dtypes.i64, -3),
        (0.5, dtypes.bf16, 0.5),
        (np.float64(0.5), dtypes.f32, 0.5),
        (np.array(2, np.int8), dtypes.u16, 2),
    ],
)
def test_scalars_take_the_parameters_dtype(value: Any, dtype: dtypes.DType, result: float) -> None:
    pytest.importorskip("ml_dtypes") if dtype == dtypes.bf16 else None
    array = arrays.scalar(value, dtype, "alpha")
    assert array.dtype == dtype.numpy
    assert array == result


@pytest.mark.parametrize(
    ("value", "dtype", "error"),
    [
        (1.5, dtypes.i32, DTypeError),
        (1, dtypes.bool_, DTypeError),
        (300, dtypes.i8, ArgumentError),
        (-1, dtypes.u8, ArgumentError),
        (np.zeros(2), dtypes.f64, ArgumentError),
        ("1", dtypes.f64, ArgumentError),
    ],
)
def test_scalars_that_do_not_fit_are_refused(value: Any, dtype: dtypes.DType, error: type[Exception]) -> None:
    with pytest.raises(error, match="'alpha'"):
        arrays.scalar(value, dtype, "alpha")


@pytest.mark.parametrize(
    ("value", "dtype", "says"),
    [
        (1.5, dtypes.i32, "int(alpha)"),
        (1, dtypes.bool_, "bool(alpha)"),
        ("1", dtypes.f64, "is given a str"),
        (None, dtypes.f64, "is given a NoneType"),
    ],
)
def test_an_unfit_scalar_is_not_told_about_arrays(value: Any, dtype: dtypes.DType, says: str) -> None:
    with pytest.raises((ArgumentError, DTypeError)) as caught:
        arrays.scalar(value, dtype, "alpha")
    assert says in str(caught.value)
    assert "array" not in str(caught.value) and "astype" not in str(caught.value)


def test_what_cannot_become_an_array_is_not_said_to() -> None:
    with pytest.raises(ArgumentError) as caught:
        arrays.accept(None, "mask")
    assert "np.asarray" not in str(caught.value)


def test_layouts_ignore_steps_along_single_elements() -> None:
    base = np.zeros((6, 8))
    assert arrays.layout(base) is None
    assert arrays.layout(base[:, ::2]) == (64, 16)
    assert arrays.layout(base[::-1]) == (-64, 8)
    assert arrays.layout(base[2:3, ::2]) == (0, 16)
    assert arrays.layout(np.broadcast_to(np.float64(1), (2, 3))) == (0, 0)


OUT = np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(
    ("out", "error", "message"),
    [
        (OUT.astype(np.float64), DTypeError, "dtype float64"),
        (OUT[:2], ShapeError, "shape"),
        (np.broadcast_to(np.float32(0), (3, 4)), ArgumentError, "read-only"),
        (np.lib.stride_tricks.as_strided(OUT, (3, 4), (0, 4)), ArgumentError, "share memory"),
        (np.lib.stride_tricks.as_strided(OUT, (3, 4), (4, 4)), ArgumentError, "share memory"),
    ],
)
def test_an_unfit_out_is_refused(out: np.ndarray, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        arrays.check_out(out, "y", dtypes.f32, (3, 4))


def test_any_writable_view_of_distinct_elements_will_do() -> None:
    for out in (OUT, OUT[::-1, ::-1], np.zeros((4, 3), np.float32).T, np.zeros((6, 8), np.float32)[::2, ::2]):
        arrays.check_out(out, "y", dtypes.f32, (3, 4))


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(-12, 12)), min_size=1, max_size=3))
def test_self_overlap_is_found_exactly(dimensions: list[tuple[int, int]]) -> None:
    memory = np.zeros(600, np.int32)
    shape = tuple(extent for extent, _ in dimensions)
    view = np.lib.stride_tricks.as_strided(memory[300:], shape, tuple(4 * step for _, step in dimensions))
    places = {sum(step * k for (_, step), k in zip(dimensions, index)) for index in np.ndindex(shape)}
    assert arrays.overlaps_itself(view) == (len(places) < view.size)


def test_the_very_same_memory_is_allowed_only_where_the_kernel_says_so() -> None:
    x = np.zeros(10)
    assert not arrays.needs_temporary(x, "y", {"x": x}, [("y", "x")])
    assert arrays.needs_temporary(x, "y", {"x": x}, [])
    assert arrays.needs_temporary(x[1:], "y", {"x": x[:-1]}, [("y", "x")])
    assert arrays.needs_temporary(x[::-1], "y", {"x": x}, [("y", "x")])
    assert not arrays.needs_temporary(x[::2], "y", {"x": x[1::2]}, [])


def test_huge_results_are_refused_before_they_are_allocated() -> None:
    info = ArrayInfo("y", dtypes.f64, "output", ("N",))
    with pytest.raises(ShapeError, match="address space"):
        arrays.check_size(info, (1 << 40, 1 << 40))
    with pytest.raises(ShapeError, match="negative"):
        arrays.check_size(info, (3, -1))
    arrays.check_size(info, (0, 5))


def test_addresses_are_those_numpy_tells() -> None:
    array = np.arange(10.0)
    for view in (array, array[3:], array[::-1], np.zeros(0)):
        assert calls.address_of(view) == view.ctypes.data


def test_torch_tensors_come_and_go_without_a_copy() -> None:
    torch = pytest.importorskip("torch")
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4).T
    seen = arrays.accept(tensor, "x")
    assert calls.address_of(seen.array) == tensor.data_ptr()
    assert seen.wrap is not None
    back = seen.wrap(np.ones((2, 2), np.float32))
    assert isinstance(back, torch.Tensor) and back.dtype == torch.float32


def test_torch_bfloat16_goes_both_ways() -> None:
    torch = pytest.importorskip("torch")
    pytest.importorskip("ml_dtypes")
    seen = arrays.accept(torch.tensor([1.5, -2.0], dtype=torch.bfloat16), "x")
    assert seen.array.dtype.name == "bfloat16" and seen.array.tolist() == [1.5, -2.0]
    assert seen.wrap is not None and seen.wrap(seen.array).dtype == torch.bfloat16


@pytest.mark.parametrize("make", ["requires_grad", "sparse", "complex", "meta", "float8"])
def test_torch_tensors_that_would_lose_something_are_refused(make: str) -> None:
    torch = pytest.importorskip("torch")
    tensor = {
        "requires_grad": lambda: torch.zeros(3, requires_grad=True),
        "sparse": lambda: torch.zeros(3).to_sparse(),
        "complex": lambda: torch.zeros(3, dtype=torch.complex64),
        "meta": lambda: torch.zeros(3, device="meta"),
        "float8": lambda: torch.zeros(3, dtype=torch.float8_e4m3fn),
    }[make]()
    assert not arrays.is_on_device(tensor)
    with pytest.raises((ArgumentError, DTypeError), match="'x'"):
        arrays.accept(tensor, "x")
