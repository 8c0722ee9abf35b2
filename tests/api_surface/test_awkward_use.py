"""What users do that no example shows: objects that change, ops without parameters, absurd sizes, odd arguments."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import polyopt as po
from polyopt import f64

N = po.size("N")
i = po.index("i")


# --- methods --------------------------------------------------------------------------------------------------------


class Gain:
    """An object whose state decides the equations."""

    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.taps = [1.0, 2.0]

    @po.op
    def apply(self, x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] * self.factor + sum(self.taps)
        return y


@dataclass
class Shift:
    by: float

    @po.op
    def apply(self, x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] + self.by
        return y


class Nested:
    def __init__(self) -> None:
        self.inner = Gain(2.0)
        self.owner = self  # a cycle

    @po.op
    def apply(self, x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] * self.inner.factor
        return y


class Slotted:
    __slots__ = ("factor",)

    def __init__(self, factor: float) -> None:
        self.factor = factor

    @po.op
    def apply(self, x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] * self.factor
        return y


def test_a_method_sees_attributes_that_changed_since_the_last_call() -> None:
    x = np.arange(3.0)
    gain = Gain(5.0)
    assert_allclose(gain.apply(x), 5 * x + 3)
    gain.factor = 7.0
    assert_allclose(gain.apply(x), 7 * x + 3)
    gain.taps.append(10.0)
    assert_allclose(gain.apply(x), 7 * x + 13)


def test_a_method_of_a_mutable_dataclass_sees_changes_too() -> None:
    shift = Shift(1.0)
    x = np.arange(3.0)
    assert_allclose(shift.apply(x), x + 1)
    shift.by = 2.0
    assert_allclose(shift.apply(x), x + 2)


def test_a_method_sees_changes_in_objects_that_its_own_object_holds() -> None:
    nested, x = Nested(), np.arange(3.0)
    assert_allclose(nested.apply(x), 2 * x)
    nested.inner.factor = 3.0
    assert_allclose(nested.apply(x), 3 * x)


def test_a_method_of_a_class_with_slots_sees_changes() -> None:
    slotted, x = Slotted(2.0), np.arange(3.0)
    assert_allclose(slotted.apply(x), 2 * x)
    slotted.factor = 4.0
    assert_allclose(slotted.apply(x), 4 * x)


def test_a_method_shows_itself_as_an_op_does() -> None:
    method = Gain(5.0).apply
    assert "y[i] = x[i] * 5 + 3" in str(method)
    assert "y[i] = x[i] * 5 + 3" in method._repr_html_()
    assert repr(method).startswith("<bound op apply(self, x: f64[N]) of <")


# --- ops without parameters, keyword-only parameters ----------------------------------------------------------------


def test_an_op_without_parameters_is_called() -> None:
    @po.op
    def table():
        return po.arange(4) * 2

    assert_array_equal(table(), np.arange(4) * 2)
    assert_array_equal(table(), np.arange(4) * 2)
    assert_array_equal(table.reference(), np.arange(4) * 2)


def test_a_printed_signature_shows_what_is_keyword_only_and_positional_only() -> None:
    @po.op
    def f(x: f64[N], /, y: f64[N], *, scale: f64 = 2.0):
        return x + y * scale

    assert str(f).splitlines()[0] == "f(x: f64[N], /, y: f64[N], *, scale: f64 = 2.0)"


# --- absurd sizes and options ---------------------------------------------------------------------------------------


@po.op
def double(x: f64[N]):
    return x * 2


@pytest.mark.parametrize("size", [2**63, 2**70, 10**30])
def test_a_size_beyond_64_bits_is_refused(size: int) -> None:
    with pytest.raises(po.ArgumentError, match="N"):
        double.compile(N=size)


def test_the_choice_of_dynamic_sizes_must_be_names() -> None:
    with pytest.raises(po.ArgumentError, match="dynamic"):
        po.op(dynamic=3)(lambda x: x)  # type: ignore[call-overload]


def test_a_name_of_nothing_cannot_be_saved_to() -> None:
    with pytest.raises(po.ArgumentError, match="file"):
        double.lower(N=4).save("")


# --- results --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("out", [3, 2.5, "text", None.__class__, [np.empty(3)]])
def test_out_that_is_no_array_is_named_as_such(out: object) -> None:
    with pytest.raises(po.ArgumentError, match="out") as raised:
        double(np.ones(3), out=out)
    assert "argument 'out for" not in str(raised.value) and "np.asarray(out for" not in str(raised.value)


# --- joining --------------------------------------------------------------------------------------------------------


def test_joined_tensors_must_agree_along_the_other_axes() -> None:
    x, y = np.ones((2, 3)), np.ones((4, 2))
    for joined in (
        lambda x, y: po.concatenate([x, y]),
        lambda x, y: po.stack([x, y]),
        lambda x, y: po.concatenate([x, y[0]]),
        lambda x, y: po.stack([x, y[0]]),
    ):
        with pytest.raises(po.ShapeError):
            po.op(joined)(x, y)


# --- the command line's module --------------------------------------------------------------------------------------


def test_the_package_runs_as_a_module() -> None:
    assert (Path(po.__file__).parent / "__main__.py").is_file()


# --- slices of what is shorter --------------------------------------------------------------------------------------


def test_slices_that_begin_before_the_first_element_are_clipped_as_in_numpy() -> None:
    @po.op
    def ends(x: f64[N]):
        return x[-3:], x[-100:2]

    for count in (0, 1, 2, 5):
        x = np.arange(float(count))
        for found, wanted, slow in zip(ends(x), (x[-3:], x[-100:2]), ends.reference(x)):
            assert_array_equal(found, wanted)
            assert_array_equal(slow, wanted)
        assert str(ends.lower(x).report())


# --- names ------------------------------------------------------------------------------------------------------------


def test_an_op_may_have_letters_of_any_alphabet_in_its_name() -> None:
    @po.op
    def größe(x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] * 2
        return y

    assert_array_equal(größe(np.ones(3)), [2, 2, 2])


def test_a_parameter_may_be_called_target() -> None:
    @po.op
    def loss(pred: f64[N], target: f64[N]):
        return po.sum((pred[i] - target[i]) ** 2, i)

    x: Any = np.arange(4.0)
    for lowering in (loss.lower(pred=x, target=x), loss.lower(N=4), loss.lower(N=4, target="cpu")):
        assert "target" in str(lowering.program)
    assert loss(pred=x, target=x + 1) == 4


def test_an_op_for_another_target_has_the_annotations_that_it_was_defined_with() -> None:
    extent = 3

    @po.op
    def double(x: f64[extent]):
        return 2 * x

    assert_array_equal(double(np.ones(3)), [2, 2, 2])
    extent = 4
    assert_array_equal(double.on("cpu")(np.ones(extent - 1)), [2, 2, 2])


# --- out= that cannot be written --------------------------------------------------------------------------------------


class Foreign:
    """As an array of a library that hands out copies alone."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array

    def __dlpack__(self, **_: object) -> object:
        raise BufferError("no")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __array__(self, dtype: object = None, copy: object = None) -> np.ndarray[Any, Any]:
        return self.array.copy()


def test_a_result_is_not_written_into_a_copy() -> None:
    @po.op
    def op(x: f64[N]):
        return x * 2.0

    out = Foreign(np.zeros(3))
    with pytest.raises(po.ArgumentError, match="written"):
        op(np.arange(3.0), out=out)
    assert_array_equal(op(Foreign(np.arange(3.0))), [0, 2, 4])


@pytest.mark.parametrize("out", [np.float64(0), 3.0, Foreign(np.zeros((3, 2)))], ids=["scalar", "number", "copies"])
def test_einsum_writes_to_what_can_be_written_alone(out: Any) -> None:
    with pytest.raises(po.PolyoptError, match="out"):
        po.einsum("ij->ji" if isinstance(out, Foreign) else "ij->", np.ones((2, 3)), out=out)
