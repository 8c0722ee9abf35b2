"""Numbers of Python take the dtype of what they meet, sizes among them; one that does not fit is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import polyopt as po
from polyopt import f32, f64, i8, i64, u8, u64
from polyopt.dsl import integers, ir

N = po.size("N")
i = po.index("i")

Array = np.ndarray[Any, Any]


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_size_beside_a_narrow_tensor_fits_its_dtype(dynamic: bool) -> None:
    """It wrapped around."""

    @po.op(dynamic=dynamic)
    def scaled(x: i8[N]):
        y = po.tensor("y")
        y[i] = x[i] * N + N // 2
        return y

    @po.op(dynamic=dynamic)
    def squared(x: u8[N]):
        y = po.tensor("y", dtype=u8)
        y[i] = x[i] + (N - 3) * N
        return y

    @po.op(dynamic=dynamic)
    def filled(x: u8[N]):
        y = po.tensor("y", dtype=u8)
        y[0] = N
        y[i] = po.when(i > 0, x[i] + (N - 3))
        return y

    x = np.arange(5, dtype=np.int8)
    assert_array_equal(scaled(x), x * 5 + 2)
    assert_array_equal(squared(x.astype(np.uint8)), x + 10)
    assert_array_equal(filled(x.astype(np.uint8)), [5, 3, 4, 5, 6])
    wide = np.full(300, 44, np.int8)
    with pytest.raises((po.DTypeError, po.ShapeError), match=r"300 does not fit i8|N <= 127"):
        scaled(wide)
    with pytest.raises(po.DTypeError, match="does not fit u8"):
        squared(wide.astype(np.uint8))
    with pytest.raises((po.DTypeError, po.ShapeError), match=r"-1 does not fit u8|N >= 3"):
        filled(np.ones(2, np.uint8))


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_size_is_compared_as_the_number_that_it_is(dynamic: bool) -> None:
    @po.op(dynamic=dynamic)
    def below(x: i8[N]):
        y, z = po.tensors("y z")
        y[i] = po.where(x[i] < N, 1, 0)
        z[i] = po.where(x[i] == N, 1, 0)
        return y, z

    y, z = below(np.full(300, 44, np.int8))
    assert y.all() and not z.any()


# --- arguments ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("x", "number"),
    [
        (np.array([1, 2], np.int8), 300),
        (np.array([1, 2], np.int8), 2**63),
        (np.array([1, 2], np.uint8), -1),
        (np.array([1, 2], np.int64), 2**63),
        (np.array([1, 2], np.uint64), -1),
    ],
)
def test_an_integer_that_does_not_fit_is_refused(x: Array, number: int) -> None:
    """It wrapped around; NumPy refuses it."""
    for op in (po.op(lambda x, c: x * c), po.op(lambda x, c: x + (c - 1))):
        with pytest.raises(po.DTypeError, match="does not fit"):
            op(x, number)
    with pytest.raises(OverflowError):
        x * number


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.uint64])
@pytest.mark.parametrize("number", [0, 3, 7, 100])
def test_one_that_fits_has_the_tensors_dtype(dtype: type, number: int) -> None:
    op = po.op(lambda x, c: (x * c, x + c, x - c, x < c, x == c))
    x: Array = np.array([1, 3, 100, 101], dtype)
    with np.errstate(over="ignore"):
        wanted = x * number, x + number, x - number, x < number, x == number
    for found, expected in zip(op(x, number), wanted, strict=True):
        assert found.dtype == expected.dtype
        assert_array_equal(found, expected)


@pytest.mark.parametrize("number", [0, 1, 7, -7])
def test_arithmetic_on_it_fits_for_all_integers_of_about_its_size(number: int) -> None:
    op = po.op(lambda x, c: x * (2 * c + 1) - c)
    x: Array = np.array([1, -2, 3], np.int8)
    assert_array_equal(op(x, number), x * (2 * number + 1) - number)
    with pytest.raises(po.DTypeError, match="an integer from 129 to 255 does not fit i8"):
        op(x, 100)


_OPERATIONS: dict[str, Callable[[Any], Any]] = {
    "//": lambda a: a // 2,
    "%": lambda a: a % 700,
    "abs": lambda a: po.abs(a),
    "&": lambda a: a & 1023,
    "|": lambda a: a | 1,
    "^": lambda a: a ^ 1,
    "~": lambda a: ~a,
    "<<": lambda a: a << 1,
    ">>": lambda a: a >> 1,
    "**": lambda a: a**2,
    "where": lambda a: po.where(a > 3, a // 2, a % 700),
}


@pytest.mark.parametrize("name", _OPERATIONS)
def test_any_arithmetic_on_an_integer_that_does_not_fit_is_refused(name: str) -> None:
    """It wrapped around, behind all but sums, differences and products."""
    function = _OPERATIONS[name]
    op = po.op(lambda x, a: x + function(a))
    with pytest.raises(po.DTypeError, match="does not fit u8"):
        op(np.array([1, 2], np.uint8), 1000)
    wide: Array = np.array([1, 2], np.int32)
    value = function(1000) if name != "where" else 500
    assert_array_equal(op(wide, 1000), wide + value)


@pytest.mark.parametrize("number", [-1000, -7, -1, 0, 1, 6, 13, 1000])
@pytest.mark.parametrize("name", [name for name in _OPERATIONS if name != "where"])
def test_arithmetic_on_an_integer_is_pythons(name: str, number: int) -> None:
    function = _OPERATIONS[name]
    op = po.op(lambda x, a: (x + function(a), x * (5 + function(a)) - function(a) // 3))
    x: Array = np.array([1, -2], np.int64)
    value = function(number)
    for found, expected in zip(op(x, number), (x + value, x * (5 + value) - value // 3), strict=True):
        assert_array_equal(found, expected)


def test_reach_holds_every_result() -> None:
    numbers = (-9, -4, -1, 0, 1, 2, 5, 66)
    ranges = [(low, high) for low in numbers for high in numbers if low <= high and high - low < 12]
    for name, exact in integers.EXACT.items():
        unary = name in ("neg", "abs", "sign", "not")
        for operands in product(ranges, repeat=1 if unary else 2):
            args = tuple(ir.Read(f"s{n}", (), i64) for n in range(len(operands)))
            found = integers.reach(ir.Op(name, args, i64), dict(zip(args, operands, strict=True)))
            values = [exact(*point) for point in product(*(range(low, high + 1) for low, high in operands))]
            assert found is not None
            assert found[0] <= min(values), (name, operands)
            assert max(values) <= found[1], (name, operands)


@pytest.mark.parametrize("dynamic", [False, True])
def test_arithmetic_of_sizes_that_leaves_64_bits_is_exact_beside_floats(dynamic: bool) -> None:
    """It wrapped around."""
    results = po.op(dynamic=dynamic)(
        lambda x: (x * x.shape[0] ** 20, x * 2 ** x.shape[0], x * (x.shape[0] * 2**62), x < x.shape[0] ** 40)
    )
    x: Array = np.ones(64)
    for found, expected in zip(results(x), (2.0**120, 2.0**64, 2.0**68, True), strict=True):
        assert_array_equal(found, np.full(64, expected))

    @po.op(dynamic=dynamic)
    def chosen(x: f64[N]):
        y = po.tensor("y")
        y[i] = po.where(N**40 > 0, x[i] + (N**40 - (N**40 - 1)), -x[i])
        return y

    assert_array_equal(chosen(np.ones(5)), np.full(5, 2.0))

    @po.op(dynamic=dynamic)
    def whole(x: i64[N]):
        y = po.tensor("y")
        y[i] = x[i] + N**40
        return y

    assert_array_equal(whole(np.ones(2, np.int64)), np.full(2, 1 + 2**40))
    with pytest.raises(po.DTypeError, match="does not fit i64"):
        whole(np.ones(5, np.int64))


def test_arithmetic_of_integers_that_leaves_64_bits_is_rounded_beside_floats() -> None:
    """It wrapped around."""
    op = po.op(lambda x, a: (x * (a * a), x * a**4, x + (a * a + 1), x < a**4, x * (1 << (a % 70))))
    for number in (2**40, 2**40 + 3, -(2**40)):
        wanted = (float(number**2), float(number**4), 1.0 + float(number**2 + 1), True, float(1 << (number % 70)))
        for found, expected in zip(op(np.ones(1), number), wanted, strict=True):
            np.testing.assert_allclose(found, [expected], rtol=1e-15)
    for refused in (lambda x, a: x * (a * a - (a * a - 1)), lambda x, a: x * (a * a % 7)):
        with pytest.raises(po.DTypeError, match="does not fit i64"):
            po.op(refused)(np.ones(1), 2**40)
    with pytest.raises(po.DTypeError, match="does not fit i64"):
        po.op(lambda x, a: x + a * a)(np.ones(1, np.int64), 2**40)


def test_an_integer_that_no_float_holds_is_refused() -> None:
    with pytest.raises(po.DTypeError, match=r"2\*\*1328 or beyond does not fit f64"):
        po.op(lambda x: x * 10**400)(np.ones(1))


@pytest.mark.parametrize("number", [300, -1, -300, 255])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_comparisons_with_any_integer_are_exact(dtype: type, number: int) -> None:
    op = po.op(lambda x, c: (x < c, x <= c, x > c, x >= c, x == c, x != c))
    x: Array = np.array([0, 1, 127, np.iinfo(dtype).max, np.iinfo(dtype).min], dtype)
    wanted = x < number, x <= number, x > number, x >= number, x == number, x != number
    for found, expected in zip(op(x, number), wanted, strict=True):
        assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64])
def test_signed_and_unsigned_integers_of_64_bits_compare_exactly(dtype: type) -> None:
    """They were compared as floats, of 53 bits."""
    op = po.op(lambda a, b: (a < b, a <= b, a > b, a >= b, a == b, a != b))
    a: Array = np.array([np.iinfo(dtype).max - 1, -1, 5, np.iinfo(dtype).min], dtype)
    b = np.array([np.iinfo(dtype).max, 2**64 - 1, 5, 2**63], np.uint64)
    for one, other in ((a, b), (b, a)):
        wanted = one < other, one <= other, one > other, one >= other, one == other, one != other
        for found, expected in zip(op(one, other), wanted, strict=True):
            assert_array_equal(found, expected)


def test_scalars_that_are_no_integers_of_their_dtype_are_refused() -> None:
    @po.op
    def scaled(x: i8[N], c: i8):
        y = po.tensor("y")
        y[i] = x[i] * c
        return y

    @po.op
    def spread(x: f32[N], c: f32):
        y = po.tensor("y")
        y[i] = x[i] * c
        return y

    for number in (float("nan"), float("inf"), 1.5):
        with pytest.raises(po.DTypeError, match="the signature says i8"):
            scaled(np.ones(2, np.int8), number)
    for number in (2**64, -(2**70)):
        with pytest.raises(po.ArgumentError, match="bits"):
            scaled(np.ones(2, np.int8), number)
    with pytest.raises(po.ArgumentError, match="does not fit in f32"):
        spread(np.ones(2, np.float32), 10**400)
    assert_array_equal(spread(np.ones(2, np.float32), 10**30), np.float32(1e30))


# --- functions of numbers -------------------------------------------------------------------------------------------

_FUNCTIONS = (
    "exp",
    "log",
    "log1p",
    "sqrt",
    "rsqrt",
    "floor",
    "ceil",
    "round",
    "abs",
    "sign",
    "relu",
    "sigmoid",
    "isnan",
)


@pytest.mark.parametrize("name", _FUNCTIONS)
@pytest.mark.parametrize("value", [0, 3, -2, 0.0, -1.0, 2.5, float("inf"), float("nan"), 1e30])
def test_a_function_of_a_number_is_that_of_an_array(name: str, value: float) -> None:
    """rsqrt(0.0) was a ZeroDivisionError, floor(3) a float."""
    function = getattr(po, name)
    array: Array = np.array([value])
    wanted = po.op(lambda x: function(x))(array)
    found = po.op(lambda x: x * 0 + function(value))(np.zeros(1, array.dtype))
    np.testing.assert_allclose(found * 1.0, wanted * 1.0, rtol=1e-15)
    assert type(function(value)) is type(wanted[0].item())
    strong = function(np.float32(value))
    assert strong.dtype == po.op(lambda x: function(x))(array.astype(np.float32)).dtype


def test_large_integers_stay_exact_in_functions() -> None:
    assert po.abs(-(2**70)) == po.maximum(2**70, 1) == 2**70
    with pytest.raises(po.DTypeError, match="does not fit f64"):
        po.exp(10**400)


def test_a_bf16_scalar_is_one_of_numpys() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    number = ml_dtypes.bfloat16(2.5)

    @po.op
    def op(x: f32[N], b: po.bf16[N], n: i8[N]):
        y, z, w = po.tensors("y z w")
        y[i] = number * x[i] + po.exp(number)
        z[i] = b[i] - number
        w[i] = po.maximum(n[i], number)
        return y, z, w

    x = np.ones(3, np.float32)
    y, z, w = op(x, x.astype(ml_dtypes.bfloat16), x.astype(np.int8))
    assert [a.dtype for a in (y, z, w)] == [np.float32, ml_dtypes.bfloat16, ml_dtypes.bfloat16]
    assert_array_equal(y, 2.5 + x * np.float32(ml_dtypes.bfloat16(np.exp(2.5))))
    assert_array_equal(z.astype("f4"), -1.5 * x)
    assert_array_equal(w.astype("f4"), 2.5 * x)


def test_functions_of_numpys_scalars_are_as_strong_as_they() -> None:
    """They were Python's numbers, for np.float64 is a float."""
    x: Array = np.array([1], np.float32)
    for function in (
        lambda: po.exp(np.float64(0)),
        lambda: po.maximum(np.float64(1e-9), 0),
        lambda: po.clip(np.float64(0.5), 0, 1),
        lambda: po.rsqrt(np.float64(4)),
        lambda: po.silu(np.float64(1)),
        lambda: po.softplus(np.float64(1)),
    ):
        found = po.op(lambda x, value=function: x + value())(x)
        assert found.dtype == np.float64
        assert_array_equal(found, x + np.float64(function()))
    assert po.op(lambda x: x + po.exp(np.float32(0)))(x).dtype == np.float32
    assert po.op(lambda x: x + po.exp(0.0))(x).dtype == np.float32


# --- einsum ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["i,j->", "i,j->i", "i,i->"])
def test_einsum_of_booleans_over_an_axis_of_one_operand(spec: str) -> None:
    a = np.array([True, False, True])
    assert_array_equal(po.einsum(spec, a, a), np.einsum(spec, a, a))


@pytest.mark.parametrize("order", "CFAK")
def test_a_number_from_einsum_has_no_dimensions(order: str) -> None:
    x = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    assert po.einsum("ij->", x, order=order).shape == ()


def test_large_keys_are_told_apart() -> None:
    @po.op
    def matches(keys: u64[N], query: i64[()]):
        y = po.tensor("y")
        y[()] = po.sum(po.cast(keys[i] == query[()], i64), i)
        return y

    keys = np.array([2**60, 2**60 + 1, 2**60 + 2], np.uint64)
    assert matches(keys, np.array(2**60)) == 1


OF_A_NUMBER = {
    "floordiv": lambda a: a // 2,
    "mod": lambda a: a % 700,
    "abs": lambda a: po.abs(a),
    "and": lambda a: a & 1023,
    "or": lambda a: a | 512,
    "shl": lambda a: a << 1,
    "shr": lambda a: a >> 1,
    "not": lambda a: ~a,
    "mul": lambda a: a * a,
}


@pytest.mark.parametrize("function", OF_A_NUMBER.values(), ids=OF_A_NUMBER)
@pytest.mark.parametrize("number", [1000, -1000, 3, 0, -3, 100])
def test_arithmetic_of_a_run_time_integer_does_not_wrap(function, number):
    """It is a number of the narrow dtype that it meets, in which that of literals is exact, or it is refused."""
    x = np.array([1, 2], np.int8)

    @po.op
    def given(x, a):
        return x + function(a)

    @po.op
    def literal(x):
        return x + function(number)

    try:
        result = given(x, number)
    except po.DTypeError:
        return
    assert_array_equal(result, literal(x))


@pytest.mark.parametrize("number", [5, 1, 100])
def test_a_run_time_integer_less_one_fits_an_unsigned_dtype(number):
    @po.op
    def less_one(x, a):
        return x + (a - 1), po.minimum(x, a - 1)

    x = np.array([1, 200], np.uint8)
    with np.errstate(over="ignore"):
        total, least = x + np.uint8(number - 1), np.minimum(x, np.uint8(number - 1))
    for result, expected in zip(less_one(x, number), (total, least), strict=True):
        assert_array_equal(result, expected)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_integers_that_meet_a_float_do_not_wrap_before(dtype):
    """Products and powers of sizes, and of integers given at run time, were 64-bit integers first."""

    @po.op
    def of_sizes(x: po.f64[N]):
        return x * N**20, x * 2**N, x * (N * 2**62), x < N**40

    @po.op
    def of_numbers(x, a):
        return x * (a * a), x + (a + 1), x * (-a), x < a * a

    x = np.ones(64)
    for result, expected in zip(of_sizes(x), (64.0**20, 2.0**64, 2.0**68, True), strict=True):
        assert_array_equal(result, np.full(64, expected))
    x = np.ones(2, dtype)
    for number in (2**40, -(2**40), 3 * 10**6):
        exact = (number * number, number + 2, -number, 1 < number * number)
        for result, value in zip(of_numbers(x, number), exact, strict=True):
            assert_allclose(result, np.array([value, value], result.dtype), rtol=1e-6 if dtype == np.float32 else 1e-15)


@pytest.mark.parametrize("number", [float("inf"), float("-inf"), float("nan"), 1e39])
def test_quotients_by_what_is_no_finite_number(number: float) -> None:
    """A loop asked where the quotient changes, as it does of indices."""

    @po.op
    def op(x: po.f32[N]):
        return x // np.float32(number), x % np.float32(number)

    x = np.array([3, -3, 0, np.inf, 7.5, -0.0, np.nan, 1], np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        divisor = np.float32(number)
        assert_array_equal(op(x)[0], x // divisor)
        assert_array_equal(op(x)[1], x % divisor)


@pytest.mark.parametrize(("kind", "number"), [("uint64", -1), ("int8", 2**63), ("uint8", 300), ("uint64", 3)])
def test_run_time_integers_beyond_a_dtype_compare_as_numbers(kind: str, number: int) -> None:
    @po.op
    def op(x, a):
        y = po.tensor("y")
        y[i] = x[i] < a
        return y

    x = np.array([0, 5], kind)
    assert_array_equal(op(x, number), x < number)
