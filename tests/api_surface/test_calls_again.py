"""A call that is recognised does what it did the first time, and one that only looks alike is looked at."""

from __future__ import annotations

import ctypes
import enum
import functools
import inspect
import logging
import os
import signal
import subprocess
import sys
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import polyopt as po
from polyopt import bounded, f32, f64
from polyopt.runtime.state import constants_key

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


class Countdown:
    """Its equations change what they read."""

    def __init__(self) -> None:
        self.left = 5

    @po.op
    def step(self, x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] * self.left
        self.left -= 1
        return y


def test_equations_that_change_what_they_read_are_kept_for_what_they_read() -> None:
    countdown, x = Countdown(), np.arange(3.0)
    for left in (5, 4, 4, 5, 3, 4, 4, 4, 3, 3):
        countdown.left = left
        assert_array_equal(countdown.step(x), x * left)


def test_a_method_is_recognised_by_what_its_object_holds_now(monkeypatch: pytest.MonkeyPatch) -> None:
    held, op, looks = Filter([2.0]), Filter.first, 0
    for gain in (2.0, 2.0, 3.0, 2.0, 3.0):
        held.held[0] = gain
        assert_array_equal(held.first(np.arange(3.0)), gain * np.arange(3.0))
    carefully = op._call_carefully

    def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return carefully(*args)

    monkeypatch.setattr(op, "_call_carefully", counted)
    for gain, count in ((2.0, 0), (3.0, 0), (2.0, 0), (4.0, 1), (4.0, 1)):
        held.held[0] = gain
        assert_array_equal(held.first(np.ones(3)), [gain] * 3)
        assert looks == count


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


class Private:
    __slots__ = ("__gain",)

    def __init__(self, gain: float) -> None:
        self.__gain = gain

    def become(self, gain: float) -> None:
        self.__gain = gain

    @po.op
    def amplified(self, x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] * self.__gain
        return y


def test_private_slots_count() -> None:
    kept = Private(2.0)
    assert kept.amplified(np.ones(1)) == 2
    kept.become(5.0)
    assert kept.amplified(np.ones(1)) == 5


@po.op
def amplified(x: f64[N], settings):
    y = po.tensor("y")
    y[i] = x[i] * settings.gain
    return y


def test_attributes_of_classes_that_are_values_count() -> None:
    class Settings:
        gain = 2.0

    class Model(Settings):
        used = Settings

        table = staticmethod(functools.partial(max, [1.0]))

        @classmethod
        @po.op
        def of_class(cls, x: f64[N]):
            y = po.tensor("y")
            y[i] = x[i] * cls.gain
            return y

        @po.op
        def of_inner(self, x: f64[N]):
            y = po.tensor("y")
            y[i] = x[i] * self.used.gain * self.table()
            return y

    def results() -> list[float]:
        x = np.ones(1)
        given = [amplified(x, Settings), amplified(x, Model), amplified(x, settings=Model())]
        return [float(y[0]) for y in (*given, Model.of_class(x), Model().of_inner(x))]

    assert set(results()) == {2.0}
    Settings.gain = 5.0
    assert set(results()) == {5.0}
    vars(Model)["table"].__func__.args[0].append(2.0)
    assert results() == [5.0, 5.0, 5.0, 5.0, 10.0]


def test_methods_that_were_replaced_count(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Filter()
    kept.held = kept.own_gain
    assert kept.called(np.ones(1)) == 2
    monkeypatch.setattr(Filter, "own_gain", lambda _: 3.0)
    kept.held = kept.own_gain
    assert kept.called(np.ones(1)) == 3


def test_what_arrays_of_objects_hold_counts() -> None:
    inner: list[float] = [2.0]
    table = np.array([None, 0], dtype=object)
    table[0] = inner
    kept = Filter(functools.partial(lambda held: held[0][0], table))
    assert kept.called(np.ones(1)) == 2
    inner[0] = 5.0
    assert kept.called(np.ones(1)) == 5


class Named:
    """Equal to others of its name, whatever its gain."""

    def __init__(self, name: str, gain: float) -> None:
        self.name, self.gain = name, gain

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)


def test_attributes_of_objects_that_are_equal_count() -> None:
    first = Named("a", 2.0)
    assert amplified(np.ones(1), first) == 2
    first.gain = 5.0
    assert amplified(np.ones(1), first) == 5
    assert amplified(np.ones(1), Named("a", 7.0)) == 7


class Part:
    def __init__(self, gain: float = 2.0) -> None:
        self.gain = gain
        self.others: list[Part] = []


def test_objects_that_know_one_another_are_told_apart() -> None:
    """The same parts, joined in other ways, are other values."""

    def gain(parts: list[Part]) -> float:
        return parts[0].others[0].gain

    one, two = Part(2.0), Part(3.0)
    one.others, two.others = [one, two], [two, one]
    kept = Filter(functools.partial(gain, [one, two]))
    assert kept.called(np.ones(1)) == 2
    one.others.reverse()
    assert kept.called(np.ones(1)) == 3
    two.gain = 4.0
    assert kept.called(np.ones(1)) == 4
    shared: list[float] = [1.0]
    assert constants_key({"p": [shared, shared]}) == constants_key({"p": [shared, shared]})
    assert constants_key({"p": [shared, [1.0], [2.0]]}) != constants_key({"p": [shared, [2.0], [1.0]]})
    assert constants_key({"p": [[1, 2], 3]}) != constants_key({"p": [[1, 2, 3]]})
    assert constants_key({"p": [], "q": [1]}) != constants_key({"p": [1], "q": []})


def test_equal_values_made_anew_share_a_key() -> None:
    def make() -> dict[str, object]:
        numbers = [1, 1.5, "a", (2, [3]), {"k": {4}}, np.ones(2), np.float32(1), 2j, range(3), slice(1, 2)]
        return {
            "p": [*numbers, Fraction(1, 2), Decimal(2), Path("a"), Shade.DARK, Part, len, np.dtype("f4"), deque([1])]
        }

    assert constants_key(make()) == constants_key(make())
    assert hash(constants_key(make())) == hash(constants_key(make()))


class Shade(enum.Enum):
    DARK = 1
    LIGHT = 2


def test_members_of_an_enumeration_are_told_apart() -> None:
    dark, light = (constants_key({"p": shade}) for shade in Shade)
    assert dark != light


def deep_list() -> Any:
    """Lists in lists, deeper than Python recurses."""
    held: list[Any] = [1.0]
    for _ in range(20_000):
        held = [held]
    return held


def linked_parts() -> Any:
    first = Part()
    for _ in range(20_000):
        last, first = first, Part()
        first.others = [last]
    return first


def shared_lists() -> Any:
    """Two to the power of 60 paths."""
    held: list[Any] = [1.0]
    for _ in range(60):
        held = [held, held]
    return held


def acquainted_parts() -> Any:
    parts = [Part() for _ in range(30)]
    for part in parts:
        part.others = parts
    return parts[0]


@pytest.mark.parametrize("make", [deep_list, linked_parts, shared_lists, acquainted_parts])
def test_what_an_object_reaches_is_looked_through_once_in_each_call(make: Callable[[], Any]) -> None:
    """By every path it took more than a lifetime, and recursion stopped at a thousand levels."""
    kept = Filter(make())
    assert kept.amplified(np.ones(1)) == 2
    kept.gain = 3.0
    assert kept.amplified(np.ones(1)) == 3


def test_ops_loggers_and_threads_count_by_identity() -> None:
    """What they hold changes all the time, in ops with every call."""
    held = [double, logging.getLogger("polyopt.a"), threading.Thread(), threading.Lock(), threading.Event(), np]
    before = constants_key({"p": held})
    double(np.ones(7))
    logging.getLogger("polyopt.a.b")
    held[4].set()
    assert constants_key({"p": held}) == before

    class Worker(threading.Thread):
        gain = 2.0

    worker = Worker()
    assert amplified(np.ones(1), worker) == 2
    worker.gain = 3.0
    assert amplified(np.ones(1), worker) == 3


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


# --- compile-time values that hold others ---------------------------------------------------------------------------


class Scaled:
    def __init__(self, factor: Any) -> None:
        self.factor = factor

    @po.op
    def apply(self, x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] * self.factor
        return y


@po.op
def applied(x: f64[N], function):
    return function(x) + 0.0


def test_a_method_of_ours_is_what_its_object_is_now() -> None:
    x, scaled = np.ones(3), Scaled(2.0)
    method = scaled.apply
    assert_array_equal(applied(x, method), [2, 2, 2])
    scaled.factor = 5.0
    assert_array_equal(applied(x, method), [5, 5, 5])
    assert constants_key({"f": scaled.apply}) == constants_key({"f": scaled.apply})


def test_bound_ops_are_like_methods_of_python() -> None:
    scaled, other = Scaled(2.0), Scaled(2.0)
    method: Any = scaled.apply
    assert method == scaled.apply and method != other.apply and len({method, scaled.apply, other.apply}) == 2
    assert method.__func__ is Scaled.apply and method.__self__ is scaled
    assert method.__name__ == "apply" and list(inspect.signature(method).parameters) == ["x"]
    assert weakref.WeakMethod(method)() == scaled.apply


class Words(ctypes.Structure):
    _fields_ = (("word", ctypes.c_double),)


class Shown:
    """An array of another library: `__array__`, and no equality but identity."""

    def __init__(self, values: Array) -> None:
        self._held = (lambda: values,)  # what is inside a function is not looked at

    def __array__(self, dtype: Any = None, copy: Any = None) -> Array:
        return self._held[0]()


def changed(holder: Any, kind: str) -> None:
    if kind == "structure":
        holder.word = 3.0
    else:
        holder[0] = 3.0


@pytest.mark.parametrize("kind", ["proxy", "values", "ctypes", "structure", "array of others"])
def test_what_a_compile_time_value_shows_is_looked_at(kind: str) -> None:
    inside: Any = np.array([2.0]) if kind == "array of others" else {0: 2.0}
    if kind == "ctypes":
        inside = (ctypes.c_double * 1)(2.0)
    elif kind == "structure":
        inside = Words(2.0)
    holder = {"proxy": MappingProxyType, "values": dict.values, "array of others": Shown}.get(kind, lambda v: v)(inside)
    before = constants_key({"c": holder})
    assert constants_key({"c": holder}) == before
    changed(inside, kind)
    assert constants_key({"c": holder}) != before


def test_special_methods_of_a_class_may_be_replaced() -> None:
    class Table:
        def __getitem__(self, key: str) -> float:
            return 2.0

    @po.op
    def scaled(x: f64[N], table):
        return x * table["factor"]

    table = Table()
    assert_array_equal(scaled(np.ones(1), table), [2])
    Table.__getitem__ = lambda self, key: 3.0  # type: ignore[method-assign]
    assert_array_equal(scaled(np.ones(1), table), [3])


# --- at once ----------------------------------------------------------------------------------------------------------


INTERRUPTED = """
import faulthandler, signal
import numpy as np
import polyopt as po
from polyopt import f64

faulthandler.dump_traceback_later(60, exit=True)
N, i = po.size("N"), po.index("i")

@po.op(dynamic=True)
def double(x: f64[N]):
    y = po.tensor("y")
    y[i] = x[i] * 2
    return y

arrays = [np.ones(n) for n in range(1, 2500)]
for x in arrays:
    double(x)
later, is_busy = iter(arrays[1200:]), False

def handler(*_):
    global is_busy
    x = None if is_busy else next(later, None)
    if x is not None:
        is_busy = True
        double(x)
        is_busy = False

signal.signal(signal.SIGALRM, handler)
signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)
for x in arrays[:1200]:
    double(x)  # learns the call
signal.setitimer(signal.ITIMER_REAL, 0)
print("done")
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="signals of a timer")
def test_a_handler_of_signals_may_call_what_is_being_learnt() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "done", done.stderr[-2000:]


def test_tables_may_be_full_in_several_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    table: dict[Any, int] = {}
    problems: list[Exception] = []

    def fill(number: int) -> None:
        try:
            for n in range(20_000):
                bounded.put(table, (number, n), n, 64)
        except RuntimeError as error:
            problems.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert not problems and len(table) <= 64
