"""Section 1 of the language: annotations, sizes and definitions, one test for each statement."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import polyopt as po
from polyopt import bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

M, N, K, T, B = po.sizes("M N K T B")
i, j, k, r, s, h, w = po.indices("i j k r s h w")

RNG = np.random.default_rng(11)
X = RNG.standard_normal((5, 7)).astype(np.float32)
W = RNG.standard_normal((7, 6)).astype(np.float32)
V = RNG.standard_normal(9)
DTYPES = [bool_, i8, i16, i32, i64, u8, u16, u32, u64, f16, bf16, f32, f64]


# --- the first example ------------------------------------------------------------------------------------------


@po.op
def linear_relu(x: f32[M, K], w: f32[K, N], b: f32[N]):
    y, out = po.tensors("y out")
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j] + b[j], 0)
    return out


def test_an_operator_takes_numpy_arrays_and_gives_a_numpy_array() -> None:
    b = np.linspace(-1, 1, 6, dtype=np.float32)
    wanted = np.maximum(X @ W + b, 0)
    result = linear_relu(X, W, b)
    assert type(result) is np.ndarray and result.dtype == np.float32
    assert_allclose(result, wanted, rtol=1e-5, atol=1e-6)
    out = np.empty_like(wanted)
    linear_relu(X, W, b, out=out)
    assert_array_equal(out, result)


# --- annotations ------------------------------------------------------------------------------------------------


def test_strings_name_sizes() -> None:
    @po.op
    def f(x: f64["P", "Q"], y: f64["Q"]):  # noqa: UP037 - strings name sizes
        z = po.tensor("z")
        z[i] += x[i, j] * y[j]
        return z

    x, y = RNG.standard_normal((3, 4)), RNG.standard_normal(4)
    assert_allclose(f(x, y), x @ y)
    with pytest.raises(po.ShapeError):
        f(x, np.ones(5))


def test_a_number_in_an_annotation_is_an_extent() -> None:
    @po.op
    def f(x: i32[N, 3]):
        y = po.tensor("y")
        y[i] += x[i, j]
        return y

    x = np.arange(12, dtype=np.int32).reshape(4, 3)
    assert_array_equal(f(x), x.sum(1))
    with pytest.raises(po.ShapeError):
        f(np.zeros((3, 4), np.int32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_is_taken_and_given_back(dtype: Any) -> None:
    @po.op
    def f(x: dtype[N]):
        y = po.tensor("y")
        y[i] = x[N - 1 - i]
        return y

    x = (RNG.integers(0, 100, 17) % (2 if dtype is bool_ else 100)).astype(dtype.numpy)
    result = f(x)
    assert result.dtype == x.dtype
    assert_array_equal(result, x[::-1])


def test_empty_parentheses_annotate_a_0d_tensor() -> None:
    @po.op
    def f(x: f32[()], y: f32[N]):
        z = po.tensor("z")
        z[i] = y[i] * x[()]
        return z

    assert_array_equal(f(np.float32(3), np.ones(4, np.float32)), np.full(4, 3, np.float32))
    assert_array_equal(f(np.array(3, np.float32), np.ones(4, np.float32)), np.full(4, 3, np.float32))


def test_a_bare_dtype_is_a_scalar_given_at_run_time(monkeypatch: pytest.MonkeyPatch) -> None:
    @po.op
    def f(x: f32[N], alpha: f32):
        y = po.tensor("y")
        y[i] = alpha * x[i]
        return y

    x = np.arange(4, dtype=np.float32)
    assert_array_equal(f(x, 2), 2 * x)
    assert_array_equal(f(x, 3.5), np.float32(3.5) * x)
    assert_array_equal(f(x, np.float32(0.5)), x / 2)
    assert len(f._variants) == 1


@pytest.mark.parametrize(("kind", "value"), [(int, 3), (bool, True), (float, 2.5)])
def test_int_bool_and_float_annotate_compile_time_constants(kind: Any, value: Any) -> None:
    seen = []

    @po.op
    def f(x: f64[N], c: kind):
        seen.append(c)
        return x * c

    assert_array_equal(f(V, value), V * value)
    assert seen[0] == value and type(seen[0]) is kind


def test_without_annotation_rank_and_dtype_come_from_the_argument() -> None:
    @po.op
    def f(x, y):
        return x + y

    assert_array_equal(f(V, V), V + V)
    assert f(np.ones((2, 3), np.int8), np.ones(3, np.int16)).dtype == np.int16
    assert f(X, np.float32(1)).shape == X.shape


# --- sizes ------------------------------------------------------------------------------------------------------


def test_a_dynamic_size_has_one_kernel_for_every_value() -> None:
    @po.op(dynamic=["N"])
    def f(x: f64[N]):
        y = po.tensor("y")
        y[i] = 2 * x[i] + x[N - 1 - i]
        return y

    for n in (0, 1, 2, 8, 9, 100):
        x = RNG.standard_normal(n)
        assert_allclose(f(x), 2 * x + x[::-1])
    variants: list[Any] = [prepared._variant for prepared in f._variants.values()]
    assert len({id(variant.call._bound.kernel) for variant in variants}) == 1


@pytest.mark.parametrize("dynamic", [True, ["M"], ["M", "N", "K"], "M N"])
def test_some_or_all_sizes_may_be_dynamic(dynamic: Any) -> None:
    op = po.op(dynamic=dynamic)(linear_relu.__wrapped__)
    for m, n, kk in ((1, 1, 1), (5, 6, 7), (33, 2, 65), (0, 3, 2), (3, 4, 0)):
        x, ww, b = (RNG.standard_normal(shape).astype(np.float32) for shape in ((m, kk), (kk, n), (n,)))
        assert_allclose(op(x, ww, b), np.maximum(x @ ww + b, 0), rtol=1e-4, atol=1e-5)


def test_makers_of_many_give_tuples_and_makers_of_one_give_one() -> None:
    assert isinstance(po.sizes("A"), tuple) and len(po.sizes("A B")) == 2
    assert isinstance(po.indices("a"), tuple) and len(po.indices("a b c")) == 3
    assert not isinstance(po.size("A"), tuple)
    assert not isinstance(po.index("a"), tuple)

    @po.op
    def f(x: f64[N]):
        made = po.tensors("y")
        assert isinstance(made, tuple)
        (y,) = made
        z = po.tensor("z")
        y[i] = x[i]
        z[i] = y[i]
        return z

    assert_array_equal(f(V), V)


def test_tensors_know_shape_dtype_and_rank() -> None:
    @po.op
    def f(x: f32[M, N]):
        assert x.ndim == 2 and x.dtype == f32
        y = po.tensor("y")
        y[i] = x[x.shape[0] - 1, i] * po.cast(x.shape[1], f32)
        return y

    assert_array_equal(f(X), X[-1] * 7)


def test_sizes_take_part_in_affine_expressions() -> None:
    @po.op
    def f(x: f64[N]):
        y, z = po.tensors("y z")
        a = po.index("a", extent=2 * N)
        b = po.index("b", extent=N // 2)
        y[a] = x[a // 2]
        z[b] = x[N - 1 - b]
        return y, z

    for n in (0, 1, 2, 5, 8):
        y, z = f(V[:n])
        assert_array_equal(y, np.repeat(V[:n], 2))
        assert_array_equal(z, V[:n][::-1][: n // 2])


# --- definitions ------------------------------------------------------------------------------------------------


def test_an_update_reduces_over_what_stands_only_on_the_right() -> None:
    @po.op
    def f(x: f64[M, N]):
        rows, products, total = po.tensors("rows products total")
        rows[i] += x[i, j]
        products[j] *= x[i, j]
        total[()] += x[i, j]
        return rows, products, total

    x = RNG.standard_normal((4, 5))
    rows, products, total = f(x)
    assert_allclose(rows, x.sum(1))
    assert_allclose(products, x.prod(0))
    assert_allclose(total, x.sum())
    assert total.shape == ()


def test_an_update_starts_from_the_plain_definition() -> None:
    @po.op
    def f(x: f64[M, N], b: f64[M]):
        y = po.tensor("y")
        y[i] += x[i, j]
        y[i] = b[i]
        return y

    x, b = RNG.standard_normal((4, 5)), RNG.standard_normal(4)
    assert_allclose(f(x, b), b + x.sum(1))


def test_an_update_starts_from_the_neutral_element_where_nothing_is_defined() -> None:
    @po.op
    def f(x: f64[N]):
        y, z = po.tensors("y z")
        y[i] = po.when(i < 3, x[i])
        y[i] += 10 * x[i]
        z[i] = po.when(i < 3, x[i])
        z[i] *= x[i]
        return y, z

    y, z = f(V)
    head = np.arange(9) < 3
    assert_allclose(y, 10 * V + np.where(head, V, 0))
    assert_allclose(z, V * np.where(head, V, 1))


def test_several_updates_add_up() -> None:
    @po.op
    def f(x: f64[N], y: f64[M]):
        z = po.tensor("z")
        z[()] += x[i]
        z[()] += 2 * y[j]
        z[()] = 5.0
        return z

    assert_allclose(f(V, V[:4]), 5 + V.sum() + 2 * V[:4].sum())


def test_an_update_covers_every_point_of_its_left_side() -> None:
    @po.op
    def f(x: f64[N]):
        y, z = po.tensors("y z")
        y[i] += po.when(i % 2 == 0, x[i])
        z[i] *= po.when(i > 2, x[i])
        return y, z

    y, z = f(V)
    assert_array_equal(y, np.where(np.arange(9) % 2 == 0, V, 0))
    assert_array_equal(z, np.where(np.arange(9) > 2, V, 1))


def test_a_scatter_covers_the_whole_shape() -> None:
    @po.op
    def f(bins: i32[N]):
        hist = po.tensor("hist", shape=(6,))
        hist[bins[i]] += 1
        return hist

    bins = np.array([1, 1, 4], np.int32)
    assert_array_equal(f(bins), [0, 2, 0, 0, 1, 0])
    assert_array_equal(f(bins[:0]), np.zeros(6))


def test_an_index_inside_a_data_subscript_on_the_left_is_reduced() -> None:
    @po.op
    def f(ids: i32[N], x: f64[N, M]):
        y = po.tensor("y", shape=(4, M))
        y[ids[i], j] += x[i, j]
        return y

    ids, x = np.array([3, 0, 3, 1], np.int32), RNG.standard_normal((4, 3))
    wanted = np.zeros((4, 3))
    np.add.at(wanted, ids, x)
    assert_allclose(f(ids, x), wanted)


def test_left_sides_may_be_affine() -> None:
    @po.op
    def f(x: f64[N]):
        y, d = po.tensors("y d")
        y[2 * i + 1] = x[i]
        y[2 * i] = -x[i]
        d[i, i] = x[i]
        d[i, j] = po.when((i != j) & (i < N) & (j < N), 0)
        return y, d

    @po.op
    def g(x: f64[N]):
        y = po.tensor("y")
        y[2 * i + 1] = x[i]
        y[2 * i] = -x[i]
        return y

    y = g(V)
    assert_array_equal(y[1::2], V)
    assert_array_equal(y[::2], -V)


def test_a_diagonal_may_be_defined_apart() -> None:
    @po.op
    def f(x: f64[N, N]):
        d = po.tensor("d")
        d[i, i] = 1.0
        d[i, j] = po.when(i != j, x[i, j])
        return d

    x = RNG.standard_normal((5, 5))
    wanted = x.copy()
    np.fill_diagonal(wanted, 1)
    assert_array_equal(f(x), wanted)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (4, 4), (0, 3)])
def test_the_diagonal_of_a_tensor_need_not_be_as_long_as_its_rows(dynamic: bool, shape: tuple[int, int]) -> None:
    """With open sizes M == N was asked for."""

    @po.op(dynamic=dynamic)
    def f(x: f64[M, N]):
        y = po.tensor("y")
        y[i, j] = x[i, j]
        y[i, i] += 1.0
        return y

    assert_array_equal(f(np.zeros(shape)), np.eye(*shape))


def test_the_order_of_the_text_does_not_matter() -> None:
    t = po.index("t", 1, N)

    @po.op
    def f(x: f64[N]):
        z, y = po.tensors("z y")
        z[i] = y[i] * 2
        y[t] = y[t - 1] + x[t]
        y[0] = x[0]
        return z

    assert_allclose(f(V), 2 * np.cumsum(V))


def test_definitions_may_refer_to_one_another() -> None:
    t = po.index("t", 1, N)

    @po.op
    def fibonacci(x: f64[N]):
        a, b = po.tensors("a b")
        a[0] = x[0]
        b[0] = x[0] + 1
        a[t] = b[t - 1]
        b[t] = a[t - 1] + b[t - 1] * 0.5
        return a, b

    a, b = np.zeros(9), np.zeros(9)
    a[0], b[0] = V[0], V[0] + 1
    for n in range(1, 9):
        a[n], b[n] = b[n - 1], a[n - 1] + b[n - 1] * 0.5
    for found, wanted in zip(fibonacci(V), (a, b)):
        assert_allclose(found, wanted)


def test_two_plain_definitions_of_an_element_are_an_error_that_names_it() -> None:
    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i]
        y[3] = 0.0
        return y

    with pytest.raises(po.DefinitionError, match=r"y\[3\]"):
        f(V)


def test_a_read_of_an_element_without_a_definition_is_an_error_that_names_it() -> None:
    @po.op
    def f(x: f64[N]):
        y, z = po.tensors("y z")
        y[i] = po.when(i != 4, x[i])
        z[i] = y[i]
        return z

    with pytest.raises(po.DefinitionError, match=r"y\[4\]"):
        f(V)


def test_returning_a_tensor_reads_all_of_it() -> None:
    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        y[i] = po.when(i != 4, x[i])
        return y

    with pytest.raises(po.DefinitionError, match=r"y\[4\]"):
        f(V)


def test_a_slice_reads_only_the_slice() -> None:
    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        y[i] = po.when(i >= 4, x[i])
        return y[4:], y[N - 1]

    tail, last = f(V)
    assert_array_equal(tail, V[4:])
    assert_array_equal(last, V[-1])


def test_reads_from_other_tensors_see_the_finished_value() -> None:
    @po.op
    def f(x: f64[M, N]):
        y, z = po.tensors("y z")
        y[i] = 1.0 * po.cast(i, f64)
        z[i] = y[i] * 2
        y[i] += x[i, j]
        return z

    x = RNG.standard_normal((4, 5))
    assert_allclose(f(x), 2 * (np.arange(4) + x.sum(1)))


def test_a_cycle_is_an_error() -> None:
    @po.op
    def f(x: f64[N]):
        y, z = po.tensors("y z")
        y[i] = z[i] + x[i]
        z[i] = y[i]
        return z

    with pytest.raises(po.DefinitionError):
        f(V)
