"""Calls of ops that take the quick way: several results, written in place, numbers, compile-time values, checks.

Each op is called until the quick way knows the call; `quick` then says whether it is the one that answers.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import compilation, f32, f64, i32, i64, u8
from polyopt.quick import AGAIN_AFTER
from polyopt.runtime.fastcall import KEPT_ENTRIES
from polyopt.runtime.memory import LEASED_BYTES, SMALLEST_BYTES

N, M = po.sizes("N M")
i, j = po.indices("i j")
X = np.arange(5, dtype=np.float32)
Pair = namedtuple("Pair", "low high")


def learn(op: po.Op, *args: Any, **kwargs: Any) -> Any:
    for _ in range(2):
        op(*args, **kwargs)
    return op(*args, **kwargs)


def quick(op: po.Op, *args: Any) -> Any:
    """What the quick way gives; None where it leaves the call to the careful way."""
    if op._ways.plain is None and op._ways.into is None:
        pytest.skip("this Python or NumPy has no quick way")
    function = op._ways.plain
    assert function is not None
    return function(*args)


def op_that_returns(make: Callable[[Any, Any], Any]) -> po.Op:
    @po.op
    def plain(x: f32[N]):
        a, b = po.tensors("a b")
        a[i] = x[i] + 1
        b[i] = x[i] * 2
        return make(a, b)

    return plain


def test_several_results_come_as_the_function_returns_them() -> None:
    makers: list[Callable[[Any, Any], Any]] = [
        lambda a, b: (a, b),
        lambda a, b: {"a": a, "b": b},
        lambda a, b: Pair(a, b),
        lambda a, b: [a, (b,)],
        lambda a, b: (a,),
    ]
    for make in makers:
        plain = op_that_returns(make)
        first = plain(X)
        again = learn(plain, X)
        found = quick(plain, X)
        assert type(first) is type(again) is type(found)
        flat = found.values() if isinstance(found, dict) else found
        assert np.array_equal(next(iter(flat)), X + 1)
        assert str(first) == str(found)


def test_out_has_the_structure_of_the_results_in_every_call() -> None:
    plain = op_that_returns(lambda a, b: (a,))
    learn(plain, X)
    for _ in range(2):
        with pytest.raises(po.ArgumentError, match="out must be a tuple of 1"):
            plain(X, out=np.empty_like(X))


@po.op
def scaled(x: f32[N], alpha: f32, shift: i32):
    y = po.tensor("y")
    y[i] = alpha * x[i] + po.cast(shift, f32)
    return y


def test_numbers_arrive_as_numpy_converts_them() -> None:
    learn(scaled, X, 0.1, 3)
    assert np.array_equal(quick(scaled, X, 0.1, 3), np.float32(0.1) * X + np.float32(3))
    assert np.array_equal(quick(scaled, X, -0.0, -7), np.float32(-0.0) * X - 7)
    for careful in [(X, 0.1, 2**31), (X, 1e39, 3), (X, float("nan"), 3), (X, True, 3), (X, 0.1, 3.5), (X, "1", 3)]:
        assert quick(scaled, *careful) is None
    learn(scaled, X, 2, 3)
    assert np.array_equal(quick(scaled, X, 2, 3), 2 * X + 3)
    assert quick(scaled, X, 2**24 + 1, 3) is None
    assert np.isnan(scaled(X, float("nan"), 3)).all()


FORMS: dict[str, Callable[[Any], Callable[..., Any]]] = {}


def form(function: Callable[[Any], Callable[..., Any]]) -> Callable[[Any], Callable[..., Any]]:
    FORMS[function.__name__] = function
    return function


@po.op
def named(x: f32[N], /, y: f32[N], a: f32 = 2.0, *, power: int = 1):
    z = po.tensor("z")
    z[i] = x[i] - a * y[i] ** power
    return z


def test_keywords_and_defaults_take_the_quick_way() -> None:
    y, out = X + 1, np.empty_like(X)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((X,), {"y": y, "power": 2}),
        ((X, y), {"a": 3.0}),
        ((X, y, 4.0), {}),
        ((X, y), {"power": 2, "a": 3.0}),
        ((X, y), {}),
    ]
    if compilation.quick_entries() is None:
        pytest.skip("this Python or NumPy has no quick way")
    for args, keywords in (*calls, *calls, *calls):
        rest = {"a": 2.0, "power": 1, **keywords}
        wanted = X - np.float32(rest["a"] if len(args) < 3 else args[2]) * y ** rest["power"]
        assert np.array_equal(named(*args, **keywords), wanted)
        assert named(*args, **keywords, out=out) is out and np.array_equal(out, wanted)
    assert named._ways.plain is not None and named._ways.into is not None
    assert np.array_equal(quick(named, X, y, 5.0, 2), X - 5 * y**2)
    assert into(named, X, y, 5.0, 2, out) is out
    for wrong in ({"y": y, "b": 1}, {"x": X, "y": y}, {}):
        with pytest.raises(po.ArgumentError):
            named(X, **wrong)
    for keywords in ({}, {"out": out}):
        with pytest.raises(po.ArgumentError, match="positional"):
            named(X, y, 5.0, 2, **keywords)


def test_a_kind_of_call_that_others_pushed_out_is_learnt_again() -> None:
    plain = op_that_returns(lambda a, _: a)
    learn(plain, X)
    for length in range(6, 7 + KEPT_ENTRIES):
        learn(plain, np.ones(length, np.float32))
    assert quick(plain, X) is None
    for _ in range(AGAIN_AFTER - 1):
        plain(X)
    assert quick(plain, X) is None and np.array_equal(plain(X), X + 1)
    assert np.array_equal(quick(plain, X), X + 1)


def test_two_names_of_one_dtype_are_both_learnt() -> None:
    @po.op
    def plain(x: i64[N]):
        return x + 1

    dtypes = [np.dtype(char) for char in "ilq" if np.dtype(char) == np.int64]
    for dtype in dtypes:
        learn(plain, np.arange(3).astype(dtype))
    for dtype in dtypes:
        assert np.array_equal(quick(plain, np.arange(3).astype(dtype)), [1, 2, 3])


@form
def scalar(dtype: Any) -> Callable[..., Any]:
    def taken(a: dtype, x: i64[N]):
        y = po.tensor("y")
        y[i] = po.where(x[i] > 0, a, a)
        return y

    taken.__annotations__["a"] = dtype
    return taken


@form
def tensor(dtype: Any) -> Callable[..., Any]:
    def taken(a: dtype, x: i64[N]):
        y = po.tensor("y")
        y[i] = po.where(x[i] > 0, a[()], a[()])
        return y

    taken.__annotations__["a"] = dtype[()]
    return taken


@form
def free(_: Any) -> Callable[..., Any]:
    def taken(a, x: i64[N]):
        y = po.tensor("y")
        y[i] = po.where(x[i] > 0, a * x[i], a)
        return y

    return taken


NUMBERS: list[Any] = [
    *(0, 1, -1, 7, 200, 300, -129, 40000, 2**31, 2**40 + 1, 2**53 + 1, -(2**63), 2**63, 2**64 - 1, 2**64, True, False),
    *(0.0, -0.0, 0.1, 1.5, -3.25, 1e-50, 1e38, 1e39, 1e300, float("inf"), float("nan")),
]
KINDS: list[Any] = [
    *(float, int, bool, np.float16, np.float32, np.float64, np.longdouble),
    *(np.bool_, np.int8, np.uint8, np.int16, np.int32, np.int64, np.longlong, np.uint64),
]


def outcome(op: Any, value: Any, x: Any) -> Any:
    """What a call gives, to the bit, or the type of its error."""
    with np.errstate(all="ignore"):
        try:
            result = op(value, x)
        except po.PolyoptError as error:
            return type(error)
    assert isinstance(result, np.ndarray)
    return result.dtype, result.tobytes()


@pytest.mark.parametrize("dtype", [f32, f64, i32, i64, u8], ids=str)
@pytest.mark.parametrize("name", ["scalar", "tensor"])
def test_numbers_of_every_type_arrive_as_after_a_close_look(name: str, dtype: Any) -> None:
    check_numbers(po.op(FORMS[name](dtype)), np.array([1, -1]))


def test_numbers_without_annotation_arrive_as_after_a_close_look() -> None:
    check_numbers(po.op(FORMS["free"](None)), np.array([1, -1]))


def check_numbers(op: po.Op, x: Any) -> None:
    """Calls like earlier ones give what a close look at each gives."""

    def carefully(*args: Any) -> Any:
        return op._call_carefully(args, {})

    for kind in KINDS:
        values = []
        for number in NUMBERS:
            with contextlib.suppress(OverflowError, ValueError), np.errstate(all="ignore"):
                values.append(kind(number))
        expected = [outcome(carefully, value, x) for value in values]
        for _ in range(3):
            assert [outcome(op, value, x) for value in values] == expected, kind


def test_numbers_of_numpy_take_the_quick_way() -> None:
    if compilation.quick_entries() is None:
        pytest.skip("this Python or NumPy has no quick way")
    for name, dtype, value in [
        *((name, f32, value) for name in ("scalar", "tensor") for value in (np.float32(2), np.float64(2), 2.0, 2)),
        *((name, f64, np.float64(2)) for name in ("scalar", "tensor")),
        *((name, i32, np.int32(2)) for name in ("scalar", "tensor")),
        *(("free", None, value) for value in (2, 2.0, np.float32(2), np.int8(2), np.uint64(2))),
    ]:
        op, x = po.op(FORMS[name](dtype)), np.array([1, -1])
        learn(op, value, x)
        assert op._ways.plain is not None, (name, dtype, value)
        found = quick(op, value, x)
        assert found is not None and np.array_equal(found, op.reference(value, x)), (name, dtype, value)
        assert quick(op, "2", x) is None and quick(op, np.complex64(2), x) is None
    known = po.op(FORMS["scalar"](f32))
    learn(known, np.array(2, np.float32), np.array([1, -1]))
    assert quick(known, np.array(3, np.float32), np.array([1, -1])) is not None
    assert quick(known, np.array(3, np.float64), np.array([1, -1])) is None


@po.op
def widths(a: u8, b: i64, c: f64, x: i64[N]):
    y = po.tensor("y")
    y[i] = po.cast(a, i64) + b + po.cast(c, i64) + x[i]
    return y


def test_a_number_beyond_64_bits_with_a_sign_takes_the_careful_way() -> None:
    """Its kind could not be learnt: an OverflowError from the second call on."""

    @po.op
    def scaled(x: f64[N], a):
        y = po.tensor("y")
        y[i] = x[i] * a
        return y

    x = np.array([1.0, 2.0])
    for number in (2**63, 2**64 - 1, 2**63, 3):
        for _ in range(3):
            assert np.array_equal(scaled(x, number), x * np.float64(number))
            assert np.array_equal(scaled(x, number, out=np.empty(2)), x * np.float64(number))


def test_none_and_an_array_for_one_parameter_take_turns() -> None:
    @po.op
    def added(x: f64[N], b: f64[N] | None = None):
        return x + 1 if b is None else x + b  # type: ignore[redundant-expr]  # f64[N] stands for what op makes of it

    x = np.array([1.0, 2.0])
    for _ in range(3):
        for given, expected in (((x,), x + 1), ((x, x), 2 * x), ((x, None), x + 1), ((x, -x), 0 * x)):
            assert np.array_equal(added(*given), expected)


def test_numbers_of_every_width_are_checked_against_their_range() -> None:
    x = np.arange(3)
    learn(widths, 200, -(2**40), 7, x)
    assert np.array_equal(quick(widths, 255, 2**62, 2**53 // 4, x), 255 + 2**62 + 2**53 // 4 + x)
    for careful in [(256, 0, 0, x), (-1, 0, 0, x), (0, 2**63, 0, x), (0, 0, 2**53, x)]:
        assert quick(widths, *careful) is None


@po.op
def power(x: f32[N], steps: int):
    u = po.tensor("u")
    t = po.index("t", extent=steps)
    u[0, i] = x[i]
    u[t + 1, i] = x[i] * u[t, i]
    return u[steps]


def test_a_compile_time_value_decides_which_kernel_runs() -> None:
    learn(power, X, 1)
    learn(power, X, 2)
    assert np.array_equal(quick(power, X, 1), X**2)
    assert np.array_equal(quick(power, X, 2), X**3)
    assert quick(power, X, 3) is None and quick(power, X, 1.0) is None
    assert np.array_equal(power(X, 3), X**4)


def test_an_object_that_may_change_is_looked_at_each_time() -> None:
    class Scale:
        by = 2

        @po.op
        def times(self, x: f32[N]):
            y = po.tensor("y")
            y[i] = self.by * x[i]
            return y

    scale = Scale()
    for by in (2, 2, 2, 3):
        scale.by = by
        assert np.array_equal(scale.times(X), by * X)
        out = np.empty_like(X)
        scale.times.op(scale, X, out=out)
        assert np.array_equal(out, by * X)


@po.op
def doubled(x: f32[N]):
    y = po.tensor("y")
    y[i] = 2 * x[i]
    return y


@po.op
def shifted(x: f32[N]):
    y = po.tensor("y")
    y[i] = x[i] + x.clamp()[i - 1]
    return y


def into(op: po.Op, *args: Any) -> Any:
    if op._ways.into is None:
        pytest.skip("this Python or NumPy has no quick way")
    return op._ways.into(*args)


def test_results_are_written_in_place_only_where_that_is_right() -> None:
    memory = np.zeros(64, np.float32)
    x, y = memory[:5], memory[32:37]
    x[:] = X
    assert learn(doubled, x, out=y) is y
    assert into(doubled, x, y) is y and np.array_equal(y, 2 * X)
    assert into(doubled, x, x) is x and np.array_equal(x, 2 * X)  # each element depends on itself only
    x[:] = X
    assert into(doubled, x, memory[1:6]) is None and into(doubled, memory[2:7], x) is None
    assert np.array_equal(x, X)
    learn(shifted, x, out=y)
    assert into(shifted, x, y) is y and into(shifted, x, x) is None
    assert shifted(x, out=x) is x
    assert np.array_equal(x, X + np.concatenate([X[:1], X[:-1]]))


def test_what_is_not_fit_to_be_written_to_is_left_to_the_careful_way() -> None:
    y = np.empty_like(X)
    learn(doubled, X, out=y)
    frozen = y.copy()
    frozen.flags.writeable = False
    misfits = [frozen, y.astype(np.float64), np.empty(6, np.float32), np.empty(10, np.float32)[::2], None, y.tolist()]
    assert all(into(doubled, X, out) is None for out in misfits)
    with pytest.raises(po.ArgumentError):
        doubled(X, out=frozen)
    strided = np.zeros(10, np.float32)
    assert learn(doubled, X, out=strided[::-2]) is not None
    assert np.array_equal(strided[::-2], 2 * X) and not strided[::2].any()


def test_several_results_are_written_in_place_and_never_into_one_another() -> None:
    @po.op
    def both(x: f32[N], y: f32[N]):
        a, b = po.tensors("a b")
        a[i] = x[i] + 1
        b[i] = y[i] * 2
        return a, b

    x, y = X.copy(), X.copy()
    a, b = np.empty_like(X), np.empty_like(X)
    result = learn(both, x, y, out=(a, b))
    assert result[0] is a and result[1] is b
    assert into(both, x, y, a, b) is b and np.array_equal(a, X + 1) and np.array_equal(b, 2 * X)
    assert into(both, x, y, a, a) is None and into(both, x, y, y, b) is None
    assert into(both, x, y, x, y) is y
    assert np.array_equal(x, X + 1) and np.array_equal(y, 2 * X)


def test_a_check_that_fails_raises_and_gives_results_back() -> None:
    @po.op
    def taken(x: f32[N], at: i64[M]):
        y = po.tensor("y")
        y[j] = x[at[j]]
        return y

    good, bad = np.array([4, 0]), np.array([4, 5])
    learn(taken, X, good)
    assert np.array_equal(quick(taken, X, good), [4, 0])
    with pytest.raises(po.BoundsError) as caught:
        quick(taken, X, bad)
    assert caught.value.facts["index"] == 5 and caught.value.facts["extent"] == 5
    gc.collect()
    before = sys.getrefcount(X), sys.getrefcount(None)
    for _ in range(1000):
        with pytest.raises(po.BoundsError):
            quick(taken, X, bad)
    gc.collect()
    assert abs(sys.getrefcount(X) - before[0]) < 50 and abs(sys.getrefcount(None) - before[1]) < 500


def test_references_are_neither_lost_nor_kept() -> None:
    @po.op
    def pair(x: f32[N], alpha: f32):
        a, b = po.tensors("a b")
        a[i] = x[i] + alpha
        b[i] = x[i] * alpha
        return {"a": a, "b": b}

    out = np.empty_like(X)
    learn(pair, X, 2.5)
    learn(doubled, X, out=out)
    value = 2.5
    watched: list[Any] = [X, out, value, None, np.empty, X.dtype, float]
    before = [sys.getrefcount(item) for item in watched]
    for _ in range(2000):
        pair(X, value)
        doubled(X, out=out)
    after = [sys.getrefcount(item) for item in watched]
    assert all(abs(now - then) < 50 for now, then in zip(after, before))
    assert sys.getrefcount(pair(X, value)["a"]) <= 2


def test_a_kept_workspace_is_one_call_s_at_a_time() -> None:
    """Calls of several threads at once, each with a temporary of 20 to 700 KB."""

    @po.op
    def mirrored(x: f32[N, N]):
        y, z = po.tensors("y z")
        y[i, j] = po.exp(x[i, N - 1 - j])
        z[i, j] = y[j, i] + y[i, j] + y[N - 1 - i, j]
        return z

    numbers, sizes = np.random.default_rng(4), (70, 130, 260, 420)
    inputs = [numbers.random((n, n), np.float32) for n in sizes]
    expected = [learn(mirrored, x) for x in inputs]
    for x, result in zip(inputs, expected, strict=True):
        assert quick(mirrored, x) is not None and "workspace" in str(mirrored.lower(x).loops)
        np.testing.assert_allclose(result, mirrored.reference(x), rtol=1e-5)
    wrong, start = [], threading.Barrier(8)

    def work(number: int) -> None:
        start.wait()
        for turn in range(40):
            chosen = (number + turn) % len(sizes)
            if not np.array_equal(quick(mirrored, inputs[chosen]), expected[chosen]):
                wrong.append((number, turn))

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@pytest.mark.parametrize("size", [SMALLEST_BYTES, LEASED_BYTES])
def test_large_results_use_memory_that_was_given_back(size: int) -> None:
    large = np.ones(size // 4, np.float32)
    learn(doubled, large)
    seen = set()
    for _ in range(4):
        result = quick(doubled, large)
        assert result[-1] == 2
        seen.add(result.ctypes.data)
        del result
    assert len(seen) == 1


def test_tensors_of_torch_take_a_quick_way_of_their_own() -> None:
    torch = pytest.importorskip("torch")

    @po.op
    def pair(x: f32[N], alpha: f32):
        a, b = po.tensors("a b")
        a[i] = x[i] + alpha
        b[i] = x[i] * alpha
        return {"a": a, "b": b}

    x = torch.arange(5, dtype=torch.float32)
    for _ in range(2):
        found = pair(x, 0.5)
        assert isinstance(found["a"], torch.Tensor) and torch.equal(found["b"], x * 0.5)
    assert pair._ways.torch is not None and pair._ways.torch(x.numpy(), 0.5) is not None
    assert type(pair(X, 0.5)["a"]) is np.ndarray
    assert torch.equal(pair(torch.arange(10, dtype=torch.float32)[::2], 0.5)["a"], torch.arange(0, 10, 2) + 0.5)
    with pytest.raises(po.ArgumentError, match="grad"):
        pair(x.clone().requires_grad_(), 0.5)


def test_arrays_in_out_are_no_arguments() -> None:
    """As many arrays in all, but divided otherwise: what is known of one call is not another's."""

    @po.op
    def both(x: f64[N], w: Any = None):
        return (x + 1.0, x * 2.0) if w is None else x + w

    @po.op
    def added(x: f64[N], w: f64[N]):
        return x + w

    x, w, o, p = np.arange(4.0), np.full(4, 10.0), np.empty(4), np.empty(4)
    learn(both, x, w, out=o)
    both(x, out=(o, p))
    np.testing.assert_array_equal((o, p), (x + 1, x * 2))
    learn(added, x, w, out=o)
    for args, out in [((x,), (w, o)), ((x, w), (o,)), ((x, w, o), ()), ((x, w, x), o)]:
        with pytest.raises(po.ArgumentError):
            added(*args, out=out)
    np.testing.assert_array_equal(w, 10)
