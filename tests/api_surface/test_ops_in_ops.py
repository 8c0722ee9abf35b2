"""Ops that call ops: what a call by the user checks and converts, a call by an op does too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import polyopt as po
from polyopt import f32, f64, i32, i64

M, N, K = po.sizes("M N K")
X = np.arange(1.0, 9.0)


@po.op
def halves(x: f64[2 * N]) -> object:
    y, t = po.tensor("y"), po.index("t", extent=N)
    y[t] = x[t] * po.cast(N, f64)
    return y


@po.op
def pairs(x: f64[2 * N], y: f64[N]) -> object:
    return po.sum(x) + po.sum(y)


@po.op
def joined(x: f64[M + N], y: f64[M], z: f64[N]) -> object:
    return po.sum(x) + po.sum(y) + po.sum(z)


@po.op
def differences(a: f64[N + 1]) -> object:
    z, t = po.tensor("z"), po.index("t", extent=N)
    z[t] = a[t + 1] - a[t]
    return z


def ones(*extents: int) -> list[Any]:
    return [np.ones(n) for n in extents]


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_a_size_within_an_extent_is_the_callees_own(*, is_dynamic: bool) -> None:
    """A size that has a factor in the annotation meant the caller's size of its name."""

    @po.op(dynamic=is_dynamic)
    def of_one_name(x: f64[N]) -> object:
        return halves(x)

    @po.op(dynamic=is_dynamic)
    def of_another(x: f64[K]) -> object:
        return halves(x)

    for caller in (of_one_name, of_another):
        assert_array_equal(caller(X), halves(X))
        with pytest.raises(po.ShapeError):
            caller(X[:7])


@pytest.mark.parametrize(
    ("callee", "extents", "fits"),
    [
        (pairs, (8, 4), True),
        (pairs, (8, 3), False),
        (joined, (8, 3, 5), True),
        (joined, (8, 3, 2), False),
        (differences, (1,), True),
        (differences, (0,), False),
    ],
    ids=lambda value: value.__name__ if isinstance(value, po.Op) else str(value),
)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_extents_of_a_callee_are_checked(
    callee: po.Op, extents: tuple[int, ...], *, fits: bool, is_dynamic: bool
) -> None:
    @po.op(dynamic=is_dynamic)
    def one(a: f64[K]) -> object:
        return callee(a)

    @po.op(dynamic=is_dynamic)
    def two(a: f64[N], b: f64[K]) -> object:
        return callee(a, b)

    @po.op(dynamic=is_dynamic)
    def three(a: f64[K], b: f64[N], c: f64[M]) -> object:
        return callee(a, b, c)

    caller = (one, two, three)[len(extents) - 1]
    if fits:
        assert_array_equal(caller(*ones(*extents)), callee(*ones(*extents)))
        return
    for op in (callee, caller):
        with pytest.raises(po.ShapeError):
            op(*ones(*extents))


def test_a_size_that_is_handed_over_is_the_callers() -> None:
    """It meant the callee's size of its name."""

    @po.op
    def repeated(w: f64[N], steps: int) -> object:
        t = po.index("t", extent=steps)
        return po.sum(po.cast(t, f64), t) + w

    @po.op
    def filled(w: f64[N], shape) -> object:
        return po.ones(shape)

    @po.op
    def caller(a: f64[N], w: f64[M]) -> object:
        return repeated(w, N), repeated(w, N - 1), repeated(w, a.shape[0]), filled(w, (N, 2)), filled(w, [N, M])

    w = np.zeros(8)
    results = caller(np.ones(4), w)
    for result, expected in zip(results[:3], (6.0, 3.0, 6.0)):
        assert_array_equal(result, w + expected)
    assert [result.shape for result in results[3:]] == [(4, 2), (4, 8)]


@po.op
def scaled(x: i32[N], a: float) -> object:
    return x * a


@po.op
def counted(x: f64[N], a: int) -> object:
    return x * a


@po.op
def by_scalar(x: f64[N], a: i32) -> object:
    return x * a


def with_number(callee: po.Op, number: Any) -> po.Op:
    """An op that hands a number on."""

    @po.op
    def caller(x) -> object:
        return callee(x, number)

    return caller


def test_a_number_is_converted_as_at_a_call() -> None:
    x = np.array([1, 2**30], np.int32)
    result = with_number(scaled, 2)(x)
    assert result.dtype == scaled(x, 2).dtype == np.float64
    assert_array_equal(result, scaled(x, 2))
    for callee in (counted, by_scalar):
        for number in (3, np.int8(3)):
            assert_array_equal(with_number(callee, number)(X), 3 * X)


@pytest.mark.parametrize(
    ("callee", "number", "error"),
    [(counted, 2.5, po.ArgumentError), (by_scalar, 2.7, po.DTypeError), (by_scalar, 2**40, po.ArgumentError)],
)
def test_a_number_is_refused_as_at_a_call(callee: po.Op, number: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        callee(X, number)
    with pytest.raises(error):
        with_number(callee, number)(X)


# --- indices, ranges and sizes across ops ---------------------------------------------------------------------------

t = po.index("t", N)
i = po.index("i")
U, V, W = np.arange(1.0, 5), np.array([1.0, 10, 100, 1000]), np.array([7.0, 7.0])


@po.op
def dotted(e, b: f64[N], at):
    s = po.tensor("s")
    s[()] += e * b[at]
    return s


@po.op
def paired(b: f64[N], c: f64[N], p, q):
    s = po.tensor("s")
    s[()] += b[p] * c[q]
    return s


@po.op
def total(e, z: f64[N]):
    s = po.tensor("s")
    s[()] += e
    return s


@po.op
def element(z: f64[N], at):
    return z[at]


def test_an_index_with_a_range_is_one_index_in_both_ops() -> None:
    @po.op
    def beside(x: f64[N], y: f64[N]):
        return dotted(x[t], y, t)

    @po.op
    def twice(x: f64[N], y: f64[N]):
        return paired(x, y, t, t)

    @po.op
    def back(x: f64[N], y: f64[N]):
        s = po.tensor("s")
        s[()] += x[t] * element(y, t)
        return s

    for op in (beside, twice, back):
        assert op(U, V) == op.reference(U, V) == U @ V


def test_the_range_of_an_index_is_in_the_sizes_of_the_op_that_gives_it() -> None:
    @po.op
    def given(x: f64[N], z: f64[M]):
        return total(x[t], z)

    @po.op
    def alone(x: f64[N], z: f64[M]):
        return total(po.cast(t, f64), z)

    assert given(U, W) == given.reference(U, W) == U.sum()
    assert alone(U, W) == alone.reference(U, W) == 6


def test_extents_are_in_the_sizes_of_the_op_that_reads() -> None:
    @po.op
    def tail(z: f64[N]):
        return z[i + N - 2]

    @po.op
    def outer(x: f64[N], z: f64[M]):
        o = po.tensor("o")
        o[i] = tail(z)
        return o, o.shape[0], o[1:], o[-1], po.concatenate([o, x])

    o, extent, rest, last, joined = outer(U, W)
    assert_array_equal(o, W)
    assert extent == 2 and last == 7
    assert_array_equal(rest, W[1:])
    assert_array_equal(joined, [*W, *U])


def test_a_when_may_come_from_another_op_or_go_there() -> None:
    @po.op
    def first(e, z: f64[N]):
        return po.when(i < N - 1, e)

    @po.op
    def received(x: f64[N], z: f64[M]):
        o = po.tensor("o")
        o[i] = first(x[i], z)
        return o

    @po.op
    def put(e, z: f64[N]):
        o = po.tensor("o")
        o[i] = e
        return o

    @po.op
    def sent(x: f64[N], z: f64[M]):
        return put(po.when(i < M, x[i] * 2), z)

    x, z = np.arange(8.0), np.zeros(5)
    assert_array_equal(received(x, z), x[:4])
    assert_array_equal(sent(x, z), x[:5] * 2)


def test_scalars_and_numbers_of_inlined_ops_are_taken_as_in_a_call() -> None:
    @po.op
    def at(x: f64[N], q: i64):
        return x[q]

    @po.op
    def ends(x: f64[N]):
        y = po.tensor("y")
        y[i] = at(x, i) + at(x, N - 1 - i) + at(x, 1)
        return y

    @po.op
    def ramp(x: f64[N], n: int):
        h = po.tensor("h", shape=(n,))
        h[i] = po.cast(i, f64)
        return h

    @po.op
    def long(x: f64[N], z: f64[M]):
        return ramp(x, N * M)

    @po.op
    def scaled(a: f64, x: f64[N]):
        o = po.tensor("o")
        o[i] = a * x[i]
        return o

    @po.op
    def of_sum(x: f32[N], y: f64[N]):
        return scaled(po.sum(x), y)

    x = np.arange(1.0, 4)
    assert_array_equal(ends(x), x + x[::-1] + 2)
    assert_array_equal(long(np.arange(4.0), np.ones(2)), np.arange(8))
    assert_array_equal(of_sum(x.astype("f4"), x), 6 * x)


def test_sizes_in_a_function_that_an_op_is_given_are_the_givers() -> None:
    @po.op
    def applied(f, x: f64[M]):
        y = po.tensor("y")
        y[i] = f(x[i])
        return y

    @po.op
    def outer(x: f64[N], z: f64[M]):
        return applied(lambda e: e * M, x)

    assert_array_equal(outer(np.arange(4.0), np.ones(2)), [0, 2, 4, 6])


@pytest.mark.parametrize(
    ("given", "wanted", "is_taken"),
    [
        ("i64", "i8", False),
        ("u8", "i8", False),
        ("i64", "u8", False),
        ("u64", "i32", False),
        ("i8", "u64", False),
        ("u8", "i16", True),
        ("i8", "i8", True),
        ("i32", "i64", True),
        ("bool_", "i8", True),
    ],
)
def test_an_integer_that_may_not_fit_a_parameter_is_not_passed_on(given: str, wanted: str, *, is_taken: bool) -> None:
    def inner(x, a):
        return x + a

    def outer(x, a):
        return inner_op(x, a[0])

    inner.__annotations__ = {"x": po.f64[N], "a": getattr(po, wanted)}
    outer.__annotations__ = {"x": po.f64[N], "a": getattr(po, given)[po.size("K")]}
    inner_op = po.op(inner)
    arguments = np.zeros(2), np.ones(1, getattr(po, given).numpy)
    if is_taken:
        assert_array_equal(po.op(outer)(*arguments), np.ones(2))
    else:
        with pytest.raises(po.DTypeError, match=rf"parameter 'a' is {wanted} and is given 'a\[0\]', which is {given}"):
            po.op(outer)(*arguments)
