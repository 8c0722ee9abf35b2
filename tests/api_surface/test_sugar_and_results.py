"""Section 1 of the language: whole-tensor sugar, results and options, one test for each statement."""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import polyopt as po
from polyopt import f64

M, N, K, T = po.sizes("M N K T")
i, j, k, l, r = po.indices("i j k l r")

RNG = np.random.default_rng(12)
X = RNG.standard_normal((5, 7))
V = RNG.standard_normal(9)


def value_of(expression: Any, *inputs: Any) -> Any:
    """What an op of unannotated parameters returns."""
    return po.op(expression)(*inputs)


# --- whole-tensor sugar -------------------------------------------------------------------------------------------


def test_arithmetic_between_tensors_broadcasts() -> None:
    x, y, z = X, RNG.standard_normal(7), RNG.standard_normal((5, 1))
    assert_array_equal(value_of(lambda x, y, z: (x + y) * z, x, y, z), (x + y) * z)
    with pytest.raises(po.ShapeError):
        value_of(lambda x, y: x + y, np.ones((2, 3)), np.ones((2, 4)))


def test_elementwise_functions_take_tensors_and_results_may_be_subscripted() -> None:
    @po.op
    def f(x: f64[M, N]):
        e = po.exp(x)
        y = po.tensor("y")
        y[j, i] = e[i, j] + 1
        return y

    assert_allclose(f(X), np.exp(X).T + 1)


@pytest.mark.parametrize("dynamic", [False, True])
def test_slices_by_the_size_of_another_axis(dynamic: bool) -> None:
    op = po.op(dynamic=dynamic)(lambda x: (x[:, : x.shape[0]], x[:, 1 : x.shape[0]], x[:, x.shape[0] :]))
    for shape in ((3, 4), (4, 4), (1, 9), (5, 7)):
        x = RNG.random(shape)
        n = shape[0]
        for found, wanted in zip(op(x), (x[:, :n], x[:, 1:n], x[:, n:])):
            assert_array_equal(found, wanted)


@pytest.mark.parametrize("begin", [lambda x: x.shape[1], lambda x: -x.shape[1], lambda x: x.shape[1] - 1])
def test_a_slice_of_what_was_joined_counts_from_either_end_by_sizes(begin: Any) -> None:
    x = RNG.random((3, 4))
    found = value_of(lambda x: po.concatenate([x, 2 * x], axis=1)[:, begin(x) :], x)
    assert_array_equal(found, np.concatenate([x, 2 * x], axis=1)[:, begin(x) :])


def test_an_array_of_rank_0_is_a_tensor_without_annotation_too() -> None:
    x = np.array(5.0)
    for expression, wanted in (
        (lambda x: po.sum(x), x),
        (lambda x: po.stack([x.reshape(1), x[None]]), np.full((2, 1), 5.0)),
        (lambda x: x.T[()] * x[...], np.array(25.0)),
        (lambda x: po.einsum(",->", x, x) * po.cast(1, x.dtype), np.array(25.0)),
    ):
        assert_array_equal(value_of(expression, x), wanted)

    @po.op
    def scaled(v, a):
        y = po.tensor("y")
        y[i] = po.where(i > 0, v[i] * a, po.maximum(a, v[i]))
        return y, v * a, -a

    for found, annotated in zip(scaled(V, x), scaled(V, 5.0)):
        assert_array_equal(found, annotated)


@pytest.mark.parametrize("shape", [(), (2, 3)])
@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float16, np.float32, np.int64])
def test_a_reduction_over_no_axis_reduces_each_element_alone(shape: tuple[int, ...], dtype: Any) -> None:
    names = ("sum", "prod", "mean", "max", "min", "any", "all")
    x = (RNG.random(shape) * 9).astype(dtype)
    alone = po.op(lambda x: tuple(getattr(po, name)(x, axis=()) for name in names))
    along = po.op(lambda x: tuple(getattr(po, name)(x, axis=0) for name in names))
    for name, found, slow, other in zip(names, alone(x), alone.reference(x), along(np.atleast_1d(x))):
        assert found.dtype == other.dtype, name
        assert_array_equal(found, getattr(np, name)(x, axis=()))
        assert_array_equal(slow, found)
    chosen = po.op(lambda x: (po.sum(x, axis=(), dtype=f64), po.sum(x, axis=(), where=x > 0)))
    for found, wanted in zip(chosen(x), (x.astype(np.float64), np.where(x > 0, x, 0))):
        assert_array_equal(found, wanted)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "argmax", "argmin"])
@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reductions_of_whole_tensors(name: str, axis: Any, keepdims: bool) -> None:
    if name.startswith("arg") and isinstance(axis, tuple):
        return
    options = {"keepdims": keepdims} | ({} if axis is None else {"axis": axis})
    result = value_of(lambda x: getattr(po, name)(x, **options), X)
    wanted = getattr(np, name)(X, axis=axis, keepdims=keepdims)
    assert result.shape == np.shape(wanted)
    assert_allclose(result, wanted)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis: int) -> None:
    e = np.exp(X - X.max(axis, keepdims=True))
    assert_allclose(value_of(lambda x: po.softmax(x, axis=axis), X), e / e.sum(axis, keepdims=True))


def test_einsum_and_matrix_products() -> None:
    x, y = RNG.standard_normal((4, 5)), RNG.standard_normal((5, 6))
    batch = RNG.standard_normal((3, 5, 2))
    for expression in (lambda x, y: po.einsum("mk,kn->mn", x, y), lambda x, y: x @ y):
        assert_allclose(value_of(expression, x, y), x @ y)
    assert_allclose(value_of(lambda x, y: x @ y, x, batch), x @ batch)
    assert_allclose(value_of(lambda x, y: x @ y, x, V[:5]), x @ V[:5])
    assert_allclose(value_of(lambda x, y: x @ y, V[:4], x), V[:4] @ x)
    assert_allclose(value_of(lambda x, y: x @ y, V, V), V @ V)


def test_transposes_and_reshapes() -> None:
    x = RNG.standard_normal((3, 4, 5))
    assert_array_equal(value_of(lambda x: x.T, x), x.T)
    assert_array_equal(value_of(lambda x: x.transpose(1, 0, 2), x), x.transpose(1, 0, 2))
    assert_array_equal(value_of(lambda x: x.transpose((2, 0, 1)), x), x.transpose((2, 0, 1)))
    assert_array_equal(value_of(lambda x: x.transpose(), x), x.transpose())
    assert_array_equal(value_of(lambda x: x.reshape(12, 5), x), x.reshape(12, 5))
    assert_array_equal(value_of(lambda x: x.reshape(-1), x), x.reshape(-1))
    assert_array_equal(value_of(lambda x: x.reshape((2, -1)), x), x.reshape((2, -1)))


def test_slices() -> None:
    x = RNG.standard_normal((6, 5))
    for expression in (
        lambda x: x[2],
        lambda x: x[:, 0],
        lambda x: x[::2],
        lambda x: x[1:4],
        lambda x: x[1:-1, 2:],
        lambda x: x[:3, ::-1],
        lambda x: x[-2],
        lambda x: x[..., 1],
        lambda x: x[::3, 1::2],
    ):
        assert_array_equal(value_of(expression, x), expression(x))


def test_slices_by_sizes_and_compile_time_numbers() -> None:
    @po.op
    def f(x: f64[N, M], steps: int):
        return x[N - 1], x[steps], x[: N // 2]

    last, one, half = f(X, 3)
    assert_array_equal(last, X[-1])
    assert_array_equal(one, X[3])
    assert_array_equal(half, X[:2])


def test_concatenate_stack_and_makers() -> None:
    x, y = RNG.standard_normal((2, 3)), RNG.standard_normal((4, 3))
    assert_array_equal(value_of(lambda x, y: po.concatenate([x, y]), x, y), np.concatenate([x, y]))
    assert_array_equal(value_of(lambda x: po.concatenate([x, x], axis=1), x), np.concatenate([x, x], axis=1))
    assert_array_equal(value_of(lambda x: po.stack([x, -x]), x), np.stack([x, -x]))
    assert_array_equal(value_of(lambda x: po.stack([x, -x], axis=-1), x), np.stack([x, -x], axis=-1))
    assert_array_equal(value_of(lambda x: x + po.zeros((2, 3)), x), x)
    assert_array_equal(value_of(lambda x: x + po.ones((2, 3)), x), x + 1)
    assert_array_equal(value_of(lambda x: x + po.full((3,), 7.0), x), x + 7)
    assert_array_equal(value_of(lambda x: x + po.arange(3), x), x + np.arange(3))
    assert_array_equal(value_of(lambda x: x @ po.eye(3), x), x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_pieces_whose_extent_depends_on_sizes_are_joined(dynamic: bool) -> None:
    @po.op(dynamic=dynamic)
    def f(x: f64[M, N]):
        return po.concatenate([x, x[:, :2]], axis=1)

    for shape in ((4, 7), (4, 2), (4, 1), (0, 3)):
        x = RNG.standard_normal(shape)
        assert_array_equal(f(x), np.concatenate([x, x[:, :2]], axis=1))


def test_an_axis_twice_is_an_error() -> None:
    with pytest.raises(po.ShapeError):
        value_of(lambda x: po.sum(x, axis=(0, -2)), X)


def test_ops_inside_ops_are_inlined() -> None:
    @po.op
    def norm(x: f64[N]):
        return po.sqrt(po.sum(x * x))

    @po.op
    def f(x: f64[M]):
        return x / norm(x), norm(2 * x)

    unit, twice = f(V)
    assert_allclose(unit, V / np.linalg.norm(V))
    assert_allclose(twice, 2 * np.linalg.norm(V))


# --- results ----------------------------------------------------------------------------------------------------

Pair = namedtuple("Pair", "low high")


@pytest.mark.parametrize("make", [lambda a, b: (a, b), lambda a, b: Pair(a, b), lambda a, b: {"a": a, "b": b}])
def test_results_have_the_structure_that_the_function_returns(make: Any) -> None:
    result = value_of(lambda x: make(x + 1, po.sum(x)), V)
    wanted = make(V + 1, V.sum())
    assert type(result) is type(wanted)
    pairs = [(result[key], wanted[key]) for key in wanted] if isinstance(wanted, dict) else list(zip(result, wanted))
    for found, expected in pairs:
        assert isinstance(found, np.ndarray)
        assert_allclose(found, expected)


def test_0d_results_are_0d_arrays() -> None:
    result = value_of(lambda x: po.sum(x), V)
    assert type(result) is np.ndarray and result.shape == ()


@pytest.mark.parametrize("numerics", ["default", "strict", "fast"])
def test_numerics_are_chosen_by_an_option(numerics: Any) -> None:
    op = po.op(numerics=numerics)(lambda x: po.softmax(x, axis=-1))
    assert_allclose(op(X).sum(1), np.ones(5))


def test_an_unknown_option_value_is_an_argument_error() -> None:
    with pytest.raises(po.ArgumentError):
        po.op(numerics="sloppy")(lambda x: x)  # type: ignore[call-overload]
    with pytest.raises(po.ArgumentError):
        po.op(target="toaster")(lambda x: x)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "uint16", "int32", "uint32", "int64", "bool"])
def test_functions_of_integers_do_not_wrap(dtype):
    """Differences, negatives and cubes within them were taken in the integers."""

    @po.op
    def functions(x):
        return po.softmax(x), po.softplus(x), po.gelu(x, approximate=True), po.gelu(x), po.silu(x)

    x = np.array([100, 3, 0, 1, 33]).astype(dtype)
    v = x.astype(np.float64)
    powers = np.exp(v - v.max())
    inner = np.sqrt(2 / np.pi) * (v + 0.044715 * v**3)
    softmax, softplus, tanh_form, erf_form, silu = functions(x)
    tolerance = 2e-3 if softmax.dtype == np.float16 else 1e-6
    assert_allclose(softmax, powers / powers.sum(), atol=tolerance)
    assert_allclose(softplus, np.log1p(np.exp(v)), rtol=tolerance)
    assert_allclose(tanh_form, 0.5 * v * (1 + np.tanh(inner)), rtol=1e-6)
    assert_allclose(erf_form, [0.5 * a * (1 + math.erf(a / math.sqrt(2))) for a in v], rtol=1e-6)
    assert_allclose(silu, v / (1 + np.exp(-v)), rtol=tolerance)
    assert softmax.dtype == np.exp(x[:0]).dtype and tanh_form.dtype == erf_form.dtype == np.float64


def test_an_index_that_the_result_of_an_op_is_summed_over():
    """The index bound within was taken for the one around it."""

    @po.op
    def norm(a: f64[N]):
        return po.sum(a[i] * a[i], i)

    @po.op
    def added(x: f64[M], z: f64[K]):
        y = po.tensor("y")
        y[i] = x[i] + norm(z)
        return y

    x = np.arange(6.0)
    for _ in range(20):
        assert_array_equal(po.op(added.__wrapped__)(x, np.ones(3)), x + 3)


@pytest.mark.parametrize("part", [np.s_[-3:], np.s_[2::-1], np.s_[:-3:-1], np.s_[1:-1], np.s_[-4:-2]])
@pytest.mark.parametrize("extent", [1, 2, 3, 5])
def test_slices_are_clipped_where_nothing_reads_them(part, extent):
    """Only reads out of bounds showed that a bound had to be moved: lengths and shapes were wrong."""

    @po.op
    def lengths(x: f64[N], rows: f64[N, M]):
        return po.cast(x[part].shape[0], f64) * x, po.ones(x[part].shape), rows[part], po.sum(rows[part], axis=1)

    x, rows = np.ones(extent), np.ones((extent, 0))
    length, ones_, empty, sums = lengths(x, rows)
    assert_array_equal(length, np.full(extent, len(x[part])))
    assert ones_.shape == x[part].shape
    assert empty.shape == rows[part].shape
    assert_array_equal(sums, np.zeros(len(x[part])))


@pytest.mark.parametrize("is_dynamic", [False, True])
def test_joins_of_extents_that_differ_are_refused_where_they_are_not_read(is_dynamic):
    @po.op(dynamic=is_dynamic)
    def first_column(a: f64[M, N], b: f64[M, K]):
        return po.concatenate([a, b], axis=0)[:, 0]

    @po.op(dynamic=is_dynamic)
    def first_row(a: f64[N], b: f64[K]):
        return po.stack([a, b])[0]

    assert first_column(np.ones((2, 3)), np.ones((2, 3))).shape == (4,)
    assert first_row(np.ones(3), np.ones(3)).shape == (3,)
    for call in (lambda: first_column(np.ones((2, 3)), np.ones((2, 2))), lambda: first_row(np.ones(3), np.ones(2))):
        with pytest.raises(po.ShapeError):
            call()


def test_values_are_stacked():
    x = np.arange(4.0)
    assert_array_equal(value_of(lambda x: po.stack([po.sum(x) / 2, po.max(x), x[0] + 1]), x), [3, 3, 1])


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda x: x.reshape(-1, 0), po.ShapeError),
        (lambda x: po.sum(x, where=po.stack([x, x]) > 0), po.ShapeError),
        (lambda x: po.mean(x, dtype=po.i32), po.DTypeError),
    ],
    ids=["reshape", "where", "mean"],
)
def test_what_numpy_refuses_is_refused(wrong, error):
    with pytest.raises(error):
        value_of(wrong, np.arange(4.0))


def test_sums_and_products_of_booleans_are_any_and_all():
    for x in (np.array([1, 2, 4], np.int32), np.array([0, 2, 4], np.int32), np.zeros(2, np.int32)):
        assert value_of(lambda x: po.sum(x, dtype=po.bool_), x) == x.sum(dtype=bool)
        assert value_of(lambda x: po.prod(x, dtype=po.bool_), x) == x.prod(dtype=bool)


def test_functions_of_numbers_give_what_numpy_gives():
    x = np.ones(2, np.float32)
    wide = value_of(lambda x: x + po.maximum(np.float64(1e-9), 0), x)
    assert wide.dtype == np.float64 and wide[0] == 1 + 1e-9
    assert value_of(lambda x: x + po.exp(np.float64(0)), x).dtype == np.float64
    assert value_of(lambda x: x + po.exp(0.0), x).dtype == np.float32
    assert_array_equal(value_of(lambda x: x + po.rsqrt(0.0), x), [np.inf] * 2)
    assert value_of(lambda n: n + po.floor(3), np.ones(2, np.int32)).dtype == np.int32
    assert_array_equal(value_of(lambda x: x * po.maximum(2**70, 1), np.ones(2)), [2.0**70] * 2)


def test_shapes_that_do_not_join_are_named_with_their_line() -> None:
    @po.op
    def joined(x, y):
        return po.concatenate([x, y])

    with pytest.raises(po.ShapeError) as caught:
        joined(np.ones((4, 5)), np.ones((4, 3)))
    assert caught.value.where is not None and "(4, 5)" in str(caught.value)


@po.op
def lower_half(x: f64[N, N]):
    y = po.tensor("y")
    y[i, j] = po.when(j <= i, x[i, j])
    y[i, j] = po.when(j > i, 0.0)
    return y


@po.op
def first_two(x: f64[N, N]):
    y = po.tensor("y")
    y[i, j] = po.when(i < 2, x[i, j])
    return y


FORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "reversed": (lambda y: y[::-1], lambda y: y[::-1]),
    "last": (lambda y: y[-1], lambda y: y[-1]),
    "all but the last": (lambda y: y[:, :-1], lambda y: y[:, :-1]),
    "flat": (lambda y: y.reshape(-1), np.ravel),
    "twice": (lambda y: po.concatenate([y, y]), lambda y: np.concatenate([y, y])),
    "shape": (lambda y: y * po.cast(y.shape[0], f64), lambda y: y * len(y)),
    "position": (po.argmax, np.argmax),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("is_dynamic", [False, True])
def test_what_needs_the_extent_of_a_tensor_whose_guards_leave_nothing_out(form: str, *, is_dynamic: bool) -> None:
    ours, numpys = FORMS[form]

    @po.op(dynamic=is_dynamic)
    def op(x: f64[N, N]):
        return ours(lower_half(x))

    x = np.random.default_rng(0).random((5, 5))
    np.testing.assert_array_equal(op(x), numpys(np.tril(x)))


@pytest.mark.parametrize("form", ["reversed", "last", "flat", "twice", "shape"])
def test_an_extent_that_guards_shorten_is_never_taken_for_the_whole(form: str) -> None:
    @po.op
    def op(x: f64[N, N]):
        return FORMS[form][0](first_two(x))

    with pytest.raises(po.ShapeError, match="dimension 0 of 'y' was taken for 5 long, and is 2"):
        op(np.ones((5, 5)))
    np.testing.assert_array_equal(op(np.ones((2, 2))), FORMS[form][1](np.ones((2, 2))))


def test_a_dimension_that_no_guard_shortens_is_cut_beside_one_that_is() -> None:
    @po.op
    def op(x: f64[N, N]):
        return first_two(x)[:, ::-1]

    x = np.random.default_rng(0).random((5, 5))
    np.testing.assert_array_equal(op(x), x[:2, ::-1])
