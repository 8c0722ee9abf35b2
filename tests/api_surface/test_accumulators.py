"""What a sum is added up in where the tensor, the values and the start have dtypes of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import DType, f16, f32, f64, i8, i32, i64, u8, u32, u64

N, K = po.sizes("N K")
i, k = po.indices("i k")
X = np.array([[1, 2], [3, 4]])


def check(op: po.Op, arguments: tuple[Any, ...], expected: Any) -> None:
    """The kernel and both references give the numbers, the kernel in their dtype."""
    result = op(*arguments)
    assert result.dtype == expected.dtype
    np.testing.assert_array_equal(result, expected)
    for numerics in ("default", "strict"):
        np.testing.assert_array_equal(op.reference(*arguments, numerics=numerics), expected)


@pytest.mark.parametrize(
    ("values", "of", "start"),
    [
        (i32, f32, [0.5, 0.25]),
        (i64, f16, [0.5, 0.25]),
        (i32, u64, [2**40, 2**63 + 1]),
        (u8, i8, [-3, 5]),
        (f32, i64, [2**40, -(2**50)]),
        (f32, f64, [2.0**40 + 0.5, 0.125]),
    ],
    ids=str,
)
def test_a_start_keeps_its_value(values: DType, of: DType, start: list[float]) -> None:
    @po.op
    def added(x: values[N, K], s: of[N]) -> object:
        y = po.tensor("y", dtype=of)
        y[i] = s[i]
        y[i] += x[i, k]
        return y

    begun = np.array(start, of.numpy)
    check(added, (X.astype(values.numpy), begun), begun + np.array([3, 7], of.numpy))


def test_a_product_keeps_the_start() -> None:
    @po.op
    def multiplied(x: i32[N, K], s: f32[N]) -> object:
        y = po.tensor("y", dtype=f32)
        y[i] = s[i]
        y[i] *= x[i, k]
        return y

    check(multiplied, (X.astype(np.int32), np.array([0.5, 0.25], np.float32)), np.array([1, 3], np.float32))


def test_sums_of_several_dtypes_add_up() -> None:
    @po.op
    def added(x: i32[N, K], z: f32[N, K], w: i8[N, K]) -> object:
        y = po.tensor("y", dtype=f32)
        y[i] += z[i, k]
        y[i] += x[i, k]
        y[i] += w[i, k]
        return y

    halves = np.array([[0.5, 0.25], [0.5, 0.5]], np.float32)
    check(added, (X.astype(np.int32), halves, X.astype(np.int8)), np.array([6.75, 15], np.float32))


@pytest.mark.parametrize(
    ("values", "of", "start", "result"),
    [
        (i32, f32, [0.5, 0.75], f64),
        (i8, i64, [2**40, 1], i64),
        (f16, f32, [0.5, 2**20], f32),
        (f32, i8, [1, 2], f32),
    ],
    ids=str,
)
def test_the_start_of_a_sum_counts_for_its_dtype(values: DType, of: DType, start: list[float], result: DType) -> None:
    @po.op
    def started(x: values[N, K], s: of[N]) -> object:
        y = po.tensor("y")
        y[i] = po.sum(x[i, k], k, init=s[i])
        return y

    begun = np.array(start, of.numpy)
    check(
        started, (X.astype(values.numpy), begun), (begun.astype(result.numpy) + np.array([3, 7])).astype(result.numpy)
    )


def test_a_number_as_the_start_of_a_sum() -> None:
    @po.op
    def started(x: i32[N, K]) -> object:
        y = po.tensor("y")
        y[i] = po.sum(x[i, k], k, init=0.5)
        return y

    check(started, (X.astype(np.int32),), np.array([3.5, 7.5]))


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_subscripts_beyond_i64_at_a_boundary(*, is_dynamic: bool) -> None:
    @po.op(dynamic=is_dynamic)
    def gathered(x: f64[N], b: u64[K]) -> object:
        nearest, periodic, filled = po.tensors("nearest periodic filled")
        nearest[k] = x.clamp()[b[k]]
        periodic[k] = x.wrap()[b[k]]
        filled[k] = x.pad(-1)[b[k]]
        return nearest, periodic, filled

    x, places = np.arange(5.0), [2**64 - 1, 2**63, 2**63 + 3, 7, 2]
    expected = [[min(b, 4) for b in places], [b % 5 for b in places], [b if b < 5 else -1 for b in places]]
    b = np.array(places, np.uint64)
    for results in (gathered(x, b), gathered.reference(x, b), gathered.reference(x, b, numerics="strict")):
        for result, numbers in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result, numbers)


def test_the_reference_of_a_reduction_without_a_start() -> None:
    @po.op
    def largest(x: f64[N, K]) -> object:
        y = po.tensor("y")
        y[i] = po.reduce(lambda a, b: po.maximum(a, b), po.where(x[i, k] > -10, x[i, k], 0.0), k)
        return y

    x = -np.arange(1.0, 7.0).reshape(2, 3)
    check(largest, (x,), x.max(axis=1))
    with po.strict_checks():
        np.testing.assert_array_equal(largest(x), x.max(axis=1))


@pytest.mark.parametrize(
    ("function", "numbers"),
    [
        (lambda v: v & 1, [[1, 0], [1, 0]]),
        (lambda v: v >> 1, [[0, 1], [1, 2]]),
        (lambda v: v << 1, [[2, 4], [6, 8]]),
        (lambda v: ~v, [[-2, -3], [-4, -5]]),
        (lambda v: v ^ 3, [[2, 1], [0, 7]]),
    ],
    ids=["and", "shr", "shl", "not", "xor"],
)
def test_operations_on_bits_are_added_up_as_floats(function: Any, numbers: list[list[int]]) -> None:
    @po.op
    def mean(x: i32[N, K]) -> object:
        y = po.tensor("y")
        y[i] = po.mean(function(x[i, k]), k)
        return y

    @po.op
    def onto_floats(x: i32[N, K], z: f64[N]) -> object:
        y = po.tensor("y")
        y[i] = z[i]
        y[i] += function(x[i, k])
        return y

    x, of_bits = X.astype(np.int32), np.array(numbers, np.float64)
    check(mean, (x,), of_bits.mean(axis=1))
    check(onto_floats, (x, np.full(2, 0.5)), of_bits.sum(axis=1) + 0.5)


def test_what_einsum_gave_may_be_added_to_and_sums_multiplied() -> None:
    A, B, C, D, E, F, L, M = po.sizes("A B C D E F L M")
    a, b, c, d, e, f, j = po.indices("a b c d e f j")

    @po.op
    def added(x: f32[M, K], y: f32[K, N], v: f32[M, L]):
        z = po.einsum("mk,kn->mn", x, y)
        z[i, j] += v[i, k]
        return z

    ones = [np.ones(shape, np.float32) for shape in ((4, 5), (5, 6), (4, 2))]
    np.testing.assert_array_equal(added(*ones), np.full((4, 6), 7))

    @po.op
    def multiplied(x: f32[A, E, B, F], y: f32[F, C, E, D], v: f32[A, K]):
        z = po.tensor("z")
        z[a, b, c, d] = po.sum(x[a, e, b, f] * y[f, c, e, d], (e, f))
        z[a, b, c, d] *= v[a, k]
        return z

    draw = np.random.default_rng(0).integers
    x, y = (draw(-3, 4, s).astype(np.float32) for s in ((16, 16, 16, 16), (16, 7, 16, 3)))
    v = draw(-2, 3, (16, 2)).astype(np.float32)
    expected = np.einsum("aebf,fced->abcd", x, y, optimize=True) * v.prod(1)[:, None, None, None]
    np.testing.assert_array_equal(multiplied(x, y, v), expected)


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize(
    ("add", "expected"),
    [
        pytest.param("y[i] += 300", [301, 302, 427], id="a number"),
        pytest.param("y[i] += N", [4, 5, 130], id="a size"),
        pytest.param("y[i] *= po.where(x[i] > 1, 300, 2)", [2, 600, 38100], id="a choice of numbers"),
        pytest.param("y[i] += po.when(i > 1, 1)", [1, 2, 128], id="under a guard"),
    ],
)
def test_a_number_of_python_added_to_narrow_integers_is_a_sum_in_i32(
    add: str, expected: list[int], *, is_dynamic: bool
) -> None:
    """As what another tensor adds is."""
    names: dict[str, Any] = {"po": po, "i8": i8, "N": N, "i": i}
    exec(f"def op(x: i8[N]):\n y = po.tensor('y')\n y[i] = x[i]\n {add}\n return y\n", names)
    op = po.op(dynamic=is_dynamic)(names["op"])
    check(op, (np.array([1, 2, 127], np.int8),), np.array(expected, np.int32))


def test_a_histogram_that_starts_from_bytes_counts_beyond_them() -> None:
    @po.op
    def op(start: u8[2], ids: i64[N]):
        count = po.tensor("count", shape=(2,))
        bin_ = po.index("bin", extent=2)
        count[bin_] = start[bin_]
        count[ids[i]] += 1
        return count

    check(op, (np.array([7, 0], np.uint8), np.zeros(300, np.int64)), np.array([307, 0], np.int32))


def test_a_number_that_fits_a_sum_and_not_what_is_summed() -> None:
    @po.op
    def op(x: i8[N]):
        y = po.tensor("y")
        y[()] += x[i] * 300
        return y, po.sum(x[i] * 300, i)

    for result in op(np.array([1, 2, 127], np.int8)):
        assert result.dtype == np.int32 and result == 39000

    @po.op
    def beyond(x: i8[N]):
        return po.sum(x[i] * 3_000_000_000, i)

    with pytest.raises(po.DTypeError, match="3000000000 does not fit i32"):
        beyond(np.ones(3, np.int8))


@pytest.mark.parametrize("init", [2.5, float("nan"), np.float32(1.5), np.uint64(2**64 - 1), 2**63])
@pytest.mark.parametrize("function", [po.argmax, po.argmin])
def test_what_stands_for_a_position_is_an_integer_of_i64(function: Any, init: Any) -> None:
    @po.op
    def op(x: f64[N]):
        return function(x, init=init)

    with pytest.raises(po.DTypeError, match=r"init= of po.arg(max|min) is f|does not fit i64"):
        op(np.zeros(0))


@pytest.mark.parametrize("init", [-1, np.uint8(3), np.uint64(9)])
def test_an_integer_of_any_dtype_stands_for_a_position(init: Any) -> None:
    @po.op
    def op(x: f64[N]):
        return po.argmax(x, init=init)

    check(op, (np.zeros(0),), np.array(int(init)))


BIG = np.array([1_700_000_000_000_000_003, 1_700_000_000_000_000_007])


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        pytest.param(lambda a, c: po.mean(a - c, i), 5.0, id="mean"),
        pytest.param(lambda a, c: po.sum((a - c) * 1e-1, i), 1.0, id="sum of floats"),
        pytest.param(lambda a, c: po.sum(a - c, i, init=0.0), 10.0, id="start"),
        pytest.param(lambda a, c: po.mean(a % 10, i), 5.0, id="remainder"),
        pytest.param(lambda a, c: po.prod((a - c) * 1.0, i), 21.0, id="product"),
    ],
)
def test_integers_of_64_bits_are_computed_with_before_a_float_sums_them(made: Any, expected: float) -> None:
    """Nanoseconds since 1970 differ by less than an f64 tells apart."""

    @po.op
    def op(a: i64[N], c: i64[N]):
        return made(a[i], c[i])

    check(op, (BIG, np.full(2, 1_700_000_000_000_000_000)), np.array(expected))


def test_integers_of_64_bits_added_to_a_float() -> None:
    @po.op
    def op(a: i64[N], c: i64[N]):
        z = po.tensor("z")
        z[()] = 0.0
        z[()] += a[i] - c[i]
        return z

    check(op, (BIG, np.full(2, 1_700_000_000_000_000_000)), np.array(10.0))


def test_signed_values_are_computed_before_an_unsigned_sum_takes_them() -> None:
    @po.op
    def op(x: i32[N]):
        z = po.tensor("z", dtype=u64)
        z[()] += po.maximum(x[i], 0)
        return z

    check(op, (np.array([-3, 5], np.int32),), np.array(5, np.uint64))


def test_what_is_taken_away_is_negated_in_the_dtype_of_the_sum() -> None:
    @po.op
    def difference(x: i32[N], y: u8[N]):
        z = po.tensor("z")
        a = x[i]
        a -= y[i]
        z[i] = a
        return z

    check(difference, (np.array([5, -3], np.int32), np.array([1, 200], np.uint8)), np.array([4, -203], np.int32))

    @po.op
    def without_rows(x: u8[N, K], z: i64[N]):
        y = po.tensor("y")
        y[i] = z[i]
        y[i] -= po.sum(x[i, k], k, dtype=u8)
        return y

    x = np.array([[1, 2, 250], [0, 7, 9]], np.uint8)
    check(without_rows, (x, np.array([10, 20])), np.array([-243, 4]))

    @po.op
    def one_less(z: u32[N]):
        y = po.tensor("y")
        y[i] = z[i]
        y[i] -= 1
        y[i] -= po.when(i > 0, 2)
        return y

    check(one_less, (np.array([5, 9], np.uint32),), np.array([4, 6], np.uint32))


def test_a_mean_of_what_fits_no_narrow_integer() -> None:
    @po.op
    def op(x: u8[N]):
        return po.mean(x[i] * 300, i)

    check(op, (np.array([1, 2], np.uint8),), np.array(450.0))


def test_the_place_that_stands_for_none_is_of_the_equation_and_not_of_the_reduction() -> None:
    @po.op
    def op(x: i64[N], y: i64[N]):
        z = po.tensor("z")
        z[k] = po.argmax(x[k], k, where=x[k] > 9, init=k) + y[k]
        return z

    check(op, (np.array([1, 2, 3]), np.zeros(3, np.int64)), np.array([0, 1, 2]))
