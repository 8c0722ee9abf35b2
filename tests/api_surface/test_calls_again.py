"""A call that is recognised does what it did the first time, and one that only looks alike is looked at."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from array import array
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import polyopt as po
from polyopt import f32, f64

N = po.size("N")
i = po.index("i")

Array = np.ndarray[Any, Any]


@po.op
def scale(x: f32[N], a: f32):
    y = po.tensor("y")
    y[i] = x[i] * a
    return y


@po.op
def double(x: f64[N]):
    y = po.tensor("y")
    y[i] = 2 * x[i]
    return y


# --- arrays -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.int8, np.float32, np.float16])
def test_a_scalar_given_as_an_array_of_another_dtype_is_converted_each_time(dtype: type) -> None:
    """From the second call on its memory was read as the parameter's dtype."""
    x, out = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    for number in (2, 3, 3):
        given: Array = np.array(number, dtype)
        assert_array_equal(scale(x, given), x * number)
        assert_array_equal(scale(x, a=given), x * number)
        scale(x, given, out=out)
        assert_array_equal(out, x * number)


@pytest.mark.parametrize("other", ["f4", "u1", "i2"])
def test_a_field_of_a_packed_struct_is_copied_each_time(other: str) -> None:
    """From the second call on it was read as if it were contiguous: its steps are no multiples of its elements."""
    records = np.zeros(6, dtype=[("b", "f8"), ("a", other)])
    records["b"] = np.arange(6)
    out = np.zeros(6)
    for _ in range(3):
        assert_array_equal(double(records["b"]), 2.0 * np.arange(6))
        double(records["b"], out=out)
        assert_array_equal(out, 2.0 * np.arange(6))
    results = np.zeros(6, dtype=records.dtype)
    for _ in range(3):
        double(np.arange(6.0), out=results["b"])
        assert_array_equal(results["b"], 2.0 * np.arange(6))
        assert not results["a"].any()


# --- compile-time values ----------------------------------------------------------------------------------------------


def test_numpys_numbers_and_pythons_are_two_constants() -> None:
    @po.op
    def divided(x: f32[N], p):
        y = po.tensor("y")
        y[i] = x[i] / p[0]
        return y

    x = np.ones(2, np.float32)
    for number in (1.5, np.float64(1.5), 1.5):
        assert divided(x, [number]).dtype == (np.float64 if isinstance(number, np.float64) else np.float32)
    for zero in (np.float32(0.0), np.float32(-0.0), 0.0, -0.0):
        assert_array_equal(divided(x, [zero]), np.inf * np.copysign(1, zero))


class Filter:
    """Its op reads what it holds."""

    gain = 2.0

    def __init__(self, held: Any = None) -> None:
        self.held = held

    @po.op
    def first(self, x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] * self.held[0]
        return y

    @po.op
    def amplified(self, x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] * self.gain
        return y

    @po.op
    def called(self, x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] * self.held()
        return y

    def own_gain(self) -> float:
        return self.gain


@pytest.mark.parametrize("make", [list, np.array, deque, lambda values: array("d", values), bytearray])
def test_what_a_container_holds_now_counts(make: Callable[[list[int]], Any]) -> None:
    held = Filter(make([2, 3]))
    assert held.first(np.ones(2)).tolist() == [2, 2]
    held.held[0] = 10
    assert held.first(np.ones(2)).tolist() == [10, 10]


def test_attributes_of_classes_and_of_what_is_bound_count() -> None:
    kept = Filter(memoryview(bytearray(3)))
    assert kept.amplified(np.ones(1)) == 2
    bound, partial = Filter(Filter().own_gain), Filter(functools.partial(max, [1, 2]))
    assert bound.called(np.ones(1)) == 2 and partial.called(np.ones(1)) == 2
    partial.held.args[0].append(7)
    assert partial.called(np.ones(1)) == 7
    bound.held.__self__.gain = 5.0
    assert bound.called(np.ones(1)) == 5
    try:
        Filter.gain = 10.0
        assert kept.amplified(np.ones(1)) == 10
    finally:
        Filter.gain = 2.0


# --- einsum -----------------------------------------------------------------------------------------------------------


def test_a_dtypes_name_that_numpy_takes_for_another_is_refused() -> None:
    a = np.ones(200, np.int8)
    for name in ("i8", "u8"):
        with pytest.raises(po.DTypeError, match="in NumPy"):
            po.einsum("i,i->", a, a, dtype=name)
    for dtype in ("int64", "f4", np.int64, po.i64):
        assert po.einsum("i,i->", a, a, dtype=dtype) == 200


def test_einsum_takes_the_common_dtype_of_all_operands_at_once() -> None:
    arrays = [np.ones((2, 2), dtype) for dtype in ("i2", "u2", "f4")]
    for order in ([0, 1, 2], [0, 2, 1], [2, 1, 0]):
        chosen = [arrays[n] for n in order]
        assert po.einsum("ij,jk,kl", *chosen).dtype == np.einsum("ij,jk,kl", *chosen).dtype


# --- what lies around -------------------------------------------------------------------------------------------------

PROGRAM = """
import numpy as np, polyopt as po
N, i = po.size("N"), po.index("i")
@po.op
def double(x: po.f64[N]):
    y = po.tensor("y"); y[i] = 2 * x[i]; return y
print(double(np.ones(2)).tolist())
"""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tuning.jsonl", "[" * 200_000),
        ("tuning.jsonl", '{"format": 1, "op": "f", "key": "k", "machine": "m", "picks": [], "ms": 1' + "0" * 400 + "}"),
        ("calibration.json", "[" * 200_000),
    ],
)
def test_damaged_records_stop_nobody(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    (tmp_path / name).chmod(0o600)
    environment = {**os.environ, "POLYOPT_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[2.0, 2.0]", done.stderr


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("POLYOPT_CACHE_DIR", "~nosuchuser/x", "POLYOPT_CACHE_DIR"),
        ("POLYOPT_NUM_THREADS", "9" * 5000, "POLYOPT_NUM_THREADS"),
        ("POLYOPT_LOG", "x" * 300, "logs nothing"),
    ],
)
def test_settings_that_make_no_sense_are_named(name: str, text: str, says: str) -> None:
    environment = {**os.environ, name: text}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    assert says in done.stderr
    assert "RuntimeError" not in done.stderr and "OSError" not in done.stderr and "ValueError" not in done.stderr
