"""What readers of the surface found: numbers, shapes and refusals that are not NumPy's, each in its smallest form."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import polyopt as po
from polyopt import bool_, f32, f64, i8, i32, i64
from polyopt.testing.check import Checker

A, B, C, D, E, F, K, L, M, N, T = po.sizes("A B C D E F K L M N T")
i, j, k, m = po.indices("i j k m")
RANDOM = np.random.default_rng(0)


# --- booleans and conditions ----------------------------------------------------------------------------------------


@po.op
def chosen(x: i32[N]) -> object:
    y, s = po.tensors("y s")
    y[i] = po.where((i >= 1) & x[i], 10, 20)
    s[()] = po.sum(x[k], k, where=x[k] & (k >= 1))
    return y, s


def test_an_integer_beside_a_condition_is_one_of_bits() -> None:
    x, n = np.array([2, 2, 1, 3, 0, 4], np.int32), np.arange(6)
    for results in (chosen(x), chosen.reference(x)):
        assert_array_equal(results[0], np.where((n >= 1) & x, 10, 20))
        assert_array_equal(results[1], np.sum(x, where=((n >= 1) & x).astype(bool)))


def test_a_float_beside_a_condition_is_refused() -> None:
    @po.op
    def op(x: f32[N]):
        y = po.tensor("y")
        y[i] = po.where((i >= 1) & x[i], 10, 20)
        return y

    with pytest.raises(po.DTypeError):
        op(np.ones(3, np.float32))


def test_python_booleans_count_as_integers() -> None:
    @po.op
    def op(x, a):
        y, z, w = po.tensors("y z w")
        y[i] = x[i] * (a + a)
        z[i] = x[i] * ~a
        w[i] = x[i] * (a - a) + -a
        return y, z, w

    x = np.array([1.0, -2, 3], np.float32)
    for results in (op(x, True), op.reference(x, True)):
        for found, expected in zip(results, (x * 2, x * -2, x * 0 - 1), strict=True):
            assert_array_equal(found, expected)


def test_sums_count_booleans() -> None:
    @po.op
    def counted(x: f32[N], bins: i64[N]):
        s, h = po.tensor("s"), po.tensor("h", shape=(3,))
        s[()] += po.where(x[k] > 0, True, False)
        h[bins[i]] += True
        return s, h

    @po.op
    def taken(mask: bool_[N, M]):
        y = po.tensor("y")
        y[i] = 5
        y[i] -= po.when(i >= 0, mask[i, k])
        return y

    s, h = counted(np.array([1.0, -2, 3, 4], np.float32), np.array([0, 1, 1, 2]))
    assert s == 3 and s.dtype.kind == "i"
    assert_array_equal(h, [1, 2, 1])
    assert_array_equal(taken(np.array([[True, False, True], [True] * 3])), [3, 2])


def test_a_custom_reduction_inside_a_sum_is_taken_in_the_sums_dtype() -> None:
    @po.op
    def op(x: i8[N, M]):
        s = po.tensor("s")
        largest = po.reduce(lambda a, b: po.where(a > b, a, b), x[i, k], k)
        s[()] = po.sum(largest * largest, i)
        return s

    x = np.array([[100, 1], [50, 3]], np.int8)
    assert op(x) == op.reference(x) == 12500


# --- positions of extrema -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("numerics", ["default", "fast", "strict"])
def test_the_position_of_a_computed_extremum_is_one_of_the_axis(numerics: Any) -> None:
    """The value is computed for the extremum and for its place, and rounds alike in both."""

    @po.op(numerics=numerics)
    def far(x: f32[M, N], y: f32[N]):
        v, w = po.tensors("v w")
        v[i] = po.argmax(y[j] * y[j] + x[i, j] * x[i, j], j)
        w[i] = po.argmin(x[i, j] * 0.3 + y[j] * 0.7, j)
        return v, w

    @po.op(numerics=numerics)
    def near(x: f32[M, K], c: f32[N, K]):
        v, w = po.tensors("v w")
        v[i] = po.argmin(po.sum((x[i, k] - c[j, k]) ** 2, k), j)
        w[i] = po.argmin(po.sum(x[i, k] * c[j, k], k) / po.sqrt(po.sum(c[j, k] * c[j, k], k) + 0.1), j)
        return v, w

    for rows, columns in ((17, 100), (40, 501), (1, 7)):
        x, y = RANDOM.standard_normal((rows, columns), np.float32), RANDOM.standard_normal(columns, np.float32)
        v, w = far(x, y)
        wide, other = x.astype("f8"), y.astype("f8")
        values = [other**2 + wide**2, wide * 0.3 + other * 0.7]
        assert_allclose(np.take_along_axis(values[0], v[:, None], 1)[:, 0], values[0].max(1), rtol=1e-6)
        assert_allclose(np.take_along_axis(values[1], w[:, None], 1)[:, 0], values[1].min(1), rtol=1e-5, atol=1e-6)
    for rows, columns, depth in ((40, 33, 19), (7, 300, 100)):
        p, c = RANDOM.standard_normal((rows, depth)), RANDOM.standard_normal((columns, depth))
        v, w = near(p.astype("f4"), c.astype("f4"))
        values = [((p[:, None] - c) ** 2).sum(-1), p @ c.T / np.sqrt((c * c).sum(1) + 0.1)]
        assert_allclose(np.take_along_axis(values[0], v[:, None], 1)[:, 0], values[0].min(1), rtol=1e-5)
        assert_allclose(np.take_along_axis(values[1], w[:, None], 1)[:, 0], values[1].min(1), rtol=1e-4)


@pytest.mark.parametrize("numerics", ["default", "fast"])
def test_the_nearest_and_the_longest_row_are_rows(numerics: Any) -> None:
    """Of sums whose two copies would be planned apart, and of a maximum of two sums."""

    @po.op(numerics=numerics)
    def rows(c: f64[N, K], w: f64[K]):
        y, z = po.tensors("y z")
        y[()] = po.argmin(po.sqrt(po.sum((c[j, k] - w[k]) ** 2, k)), j)
        z[()] = po.argmax(po.sum(c[j, k] * c[j, k], k), j)
        return y, z

    @po.op(numerics=numerics)
    def larger(x: f32[M, K], c: f32[N, K], w: f32[K]):
        y = po.tensor("y")
        y[i] = po.argmax(po.maximum(po.sum(x[i, k] * c[j, k], k), po.sum(c[j, m] * w[m], m)), j, where=j >= 1)
        return y

    for count, depth in ((33, 19), (400, 33)):
        for _ in range(5):
            c, w = RANDOM.standard_normal((count, depth)), RANDOM.standard_normal(depth)
            assert tuple(map(int, rows(c, w))) == (((c - w) ** 2).sum(1).argmin(), (c * c).sum(1).argmax())
    x, c, w = (RANDOM.standard_normal(s) for s in ((40, 19), (33, 19), (19,)))
    found, values = larger(x.astype("f4"), c.astype("f4"), w.astype("f4")), np.maximum(x @ c.T, c @ w)
    assert_allclose(np.take_along_axis(values, found[:, None], 1)[:, 0], values[:, 1:].max(1), rtol=1e-5)


@pytest.mark.parametrize("columns", [0, 1, 3])
def test_a_position_that_no_element_asks_for_reads_nothing(columns: int) -> None:
    """Its value leaves out an axis; where that has no point, what it reads need not be there."""

    @po.op(dynamic=["M", "K"])
    def op(x: f64[N, M], like: i32[K]):
        y = po.tensor("y", shape=(M,))
        y[i] = po.argmax(po.where((k // 3 + k % 2 >= 0) & (k // 3 + k % 2 < N), x[k // 3 + k % 2, M - 1] * 2, 1.0), k)
        return y

    x, like = RANDOM.standard_normal((2, columns)), np.zeros(5, np.int32)
    assert_array_equal(op(x, like), op.reference(x, like))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_a_position_in_a_row_that_may_not_be_there_reads_none(rows: int) -> None:
    """A boundary leads back into an array only if that has elements; it was refused as reaching outside."""

    @po.op(dynamic=True)
    def op(x: f32[M, N], ids: i32[K]):
        clamped, wrapped = po.tensor("clamped", shape=(M, N)), po.tensor("wrapped", shape=(M, N))
        clamped[i, j] = po.argmax(po.where(ids[k] == 1, 1.0, x.clamp()[M - 1, j + k]), k)
        wrapped[i, j] = po.argmax(po.where(ids[k] == 1, 1.0, x.wrap()[M - 1, j + k]), k)
        return clamped, wrapped

    args = RANDOM.standard_normal((rows, 4)).astype(np.float32), np.array([0, 1, 0], np.int32)
    for found, wanted in zip(op(*args), op.reference(*args), strict=True):
        assert_array_equal(found, wanted)


def test_a_sum_inside_a_position_is_computed_once() -> None:
    @po.op
    def near(x: f32[M, K], c: f32[N, K]):
        v = po.tensor("v")
        v[i] = po.argmin(po.sum((x[i, k] - c[j, k]) ** 2, k), j)
        return v

    names = [s.name for s in near.lower(M=7, N=100, K=30).scop.statements]
    assert sum("update" in name for name in names) == 3, f"the sum, the minimum and its place: {names}"


def test_a_gpu_contracts_nothing_where_it_compares() -> None:
    @po.op
    def far(x: f32[M, N], y: f32[N]):
        v = po.tensor("v")
        v[i, j] = po.where(y[j] * y[j] + x[i, j] * x[i, j] >= y[j] * x[i, j], 1.0, 0.0)
        return v

    @po.op
    def plain(x: f32[M, N]):
        v = po.tensor("v")
        v[i] = po.argmax(x[i, j], j)
        return v

    assert not far.lower(M=4, N=64, target="sm_80").cuda.contract
    assert plain.lower(M=4, N=64, target="sm_80").cuda.contract


# --- functions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("approximate", [False, True])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_gelu_of_16_bits_keeps_its_negative_tail(kind: str, approximate: bool) -> None:
    @po.op
    def op(x):
        return po.gelu(x, approximate=approximate)

    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    x = np.linspace(-4, 4, 257).astype(dtype)
    found = op(x)
    assert found.dtype == dtype
    exact = op.reference(x.astype("f8"))
    assert_allclose(found.astype("f8"), exact, rtol=2 * float(ml_dtypes.finfo(dtype).eps), atol=1e-7)


@pytest.mark.parametrize("function", [po.silu, po.softplus], ids=["silu", "softplus"])
@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_functions_of_16_bits_round_once(kind: str, function: Any) -> None:
    """silu rounded its sigmoid: 9 units in the last place of f16 at -17, 41 of bf16 at -93."""

    @po.op
    def op(x):
        return function(x)

    dtype = np.dtype(ml_dtypes.bfloat16 if kind == "bfloat16" else kind)
    with np.errstate(invalid="ignore"):  # NaNs among them
        wide = np.arange(2**16, dtype=np.uint16).view(dtype).astype("f8")
    x = wide[np.abs(wide) < 85].astype(dtype)
    found, exact = op(x), op.reference(x.astype("f8"))
    assert found.dtype == dtype
    info = ml_dtypes.finfo(dtype)
    error = np.abs(found.astype("f8") - exact)
    assert np.all(error <= np.maximum(float(info.eps) * np.abs(exact), float(info.smallest_subnormal)))


# --- sizes ----------------------------------------------------------------------------------------------------------


def test_a_slice_of_one_element_broadcasts_with_open_sizes() -> None:
    @po.op(dynamic=True)
    def less_first(x: f64[N, M]):
        return x - x[:, :1]

    @po.op(dynamic=True)
    def less_row(x: f64[N, M]):
        return x[:, :1] - x[0]

    for shape in ((4, 6), (1, 1), (3, 1)):
        x = RANDOM.standard_normal(shape)
        assert_array_equal(less_first(x), x - x[:, :1])
        assert_array_equal(less_row(x), x[:, :1] - x[0])


def test_a_subscript_from_the_end_counts_from_an_extent_that_sizes_decide() -> None:
    @po.op(dynamic=True)
    def last(x: f64[N, M]):
        y = x[:, :2] * 2.0
        return y[:, -1]

    x = RANDOM.standard_normal((4, 6))
    assert_array_equal(last(x), 2 * x[:, 1])


@pytest.mark.parametrize(("kind", "number"), [("uint64", -1), ("int8", 2**63), ("uint8", 300), ("uint64", 3)])
def test_run_time_integers_beyond_a_dtype_compare_as_numbers(kind: str, number: int) -> None:
    @po.op
    def op(x, a):
        y = po.tensor("y")
        y[i] = x[i] < a
        return y

    x = np.array([0, 5], kind)
    assert_array_equal(op(x, number), x < number)


@pytest.mark.parametrize("dynamic", [["M"], ["T"], True])
def test_a_periodic_recurrence_of_open_sizes_is_no_cycle(dynamic: Any) -> None:
    @po.op(dynamic=dynamic)
    def op(u0: f32[M], steps: f32[T]):
        u, t = po.tensor("u"), po.index("t", extent=T)
        u[0, i] = u0[i]
        u[t + 1, i] = u.wrap()[t, i - 1] + steps[t]
        return u[T]

    assert_array_equal(op(np.arange(5, dtype=np.float32), np.ones(3, np.float32)), [5, 6, 7, 3, 4])


def test_one_dynamic_kernel_serves_strided_arrays_of_every_size(tmp_path: Path) -> None:
    @po.op(dynamic=True)
    def op(x: f64[M, N]):
        y = po.tensor("y")
        y[i, j] = x[i, j] * 3.25
        return y

    with po.settings.override(cache_dir=tmp_path):
        for n in range(50, 56):
            x = RANDOM.standard_normal((4, n)).T
            assert_array_equal(op(x), x * 3.25)
        kernels = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(kernels) == 1, kernels


# --- definitions ----------------------------------------------------------------------------------------------------


def test_what_einsum_gave_may_be_added_to_and_sums_multiplied() -> None:
    @po.op
    def added(x: f32[M, K], y: f32[K, N], v: f32[M, L]):
        z = po.einsum("mk,kn->mn", x, y)
        z[i, j] += v[i, k]
        return z

    ones = [np.ones(shape, np.float32) for shape in ((4, 5), (5, 6), (4, 2))]
    assert_array_equal(added(*ones), np.full((4, 6), 7))
    a, b, c, d, e, f = po.indices("a b c d e f")

    @po.op
    def multiplied(x: f32[A, E, B, F], y: f32[F, C, E, D], v: f32[A, K]):
        z = po.tensor("z")
        z[a, b, c, d] = po.sum(x[a, e, b, f] * y[f, c, e, d], (e, f))
        z[a, b, c, d] *= v[a, k]
        return z

    x, y = (RANDOM.integers(-3, 4, s).astype(np.float32) for s in ((16, 16, 16, 16), (16, 7, 16, 3)))
    v = RANDOM.integers(-2, 3, (16, 2)).astype(np.float32)
    expected = np.einsum("aebf,fced->abcd", x, y, optimize=True) * v.prod(1)[:, None, None, None]
    assert_array_equal(multiplied(x, y, v), expected)


def test_shapes_that_do_not_join_are_named_with_their_line() -> None:
    @po.op
    def joined(x, y):
        return po.concatenate([x, y])

    with pytest.raises(po.ShapeError) as caught:
        joined(np.ones((4, 5)), np.ones((4, 3)))
    assert caught.value.where is not None and "(4, 5)" in str(caught.value)


# --- calls ----------------------------------------------------------------------------------------------------------


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


def test_a_long_axis_is_planned_as_fast_as_a_short_one() -> None:
    @po.op
    def product(x: f64[M, K], w: f64[K, N]):
        y = po.tensor("y")
        y[i, j] += x[i, k] * w[k, j]
        return y

    start = time.process_time()
    product.lower(M=64, N=10**12, K=64).report()
    assert time.process_time() - start < 60, "a list of as many blocks took minutes, and then all memory"


def test_ptx_ends_with_its_text() -> None:
    @po.op
    def op(x: f64[M]):
        return x + 1

    pytest.importorskip("nvidia")
    assert not op.lower(M=3, target="sm_80").source("ptx").endswith("\0")


# --- the checker ----------------------------------------------------------------------------------------------------


def test_a_long_product_of_large_integers_passes() -> None:
    @po.op
    def op(x: i64[N, M]):
        y = po.tensor("y")
        y[i] = po.prod(x[i, k], k)
        return y

    Checker(forks=False)(op, np.full((2, 40), 3**18 + 2, np.int64))


def test_a_sum_that_is_infinite_is_checked() -> None:
    @po.op
    def op(x: f32[N, M]):
        y = po.tensor("y")
        y[i] = po.sum(x[i, k], k)
        return y

    x = np.ones((3, 4), np.float32)
    x[0, 1], x[1, 1] = np.inf, np.nan
    _, bounds = po.reference.evaluate_with_bounds(op.lower(x).program, {"x": x}, {})
    assert np.isfinite(bounds[op.lower(x).program.results[0]]).all()
    huge = np.full((1, 4), 3e38, np.float32)
    _, bounds = po.reference.evaluate_with_bounds(op.lower(huge).program, {"x": huge}, {})
    assert np.isinf(bounds[op.lower(huge).program.results[0]]).all(), "a partial sum may overflow"


# --- plans ----------------------------------------------------------------------------------------------------------


def test_an_operand_that_two_branches_read_is_copied_for_both() -> None:
    @po.op
    def op(x: f32[M, K], z: f32[M, K], w: f32[N, K]):
        y = po.tensor("y")
        y[i, j] += po.where(k < 5, x[i, k] * w[j, k], z[i, k] * w[j, k])
        return y

    for rows, columns, depth in ((64, 96, 40), (33, 200, 17)):
        x, z, w = (RANDOM.integers(-3, 4, s).astype("f4") for s in ((rows, depth), (rows, depth), (columns, depth)))
        chosen = np.where(np.arange(depth) < 5, x, z)
        assert_array_equal(op(x, z, w), chosen @ w.T)


def test_windows_whose_axes_start_below_zero_keep_their_tiles() -> None:
    @po.op
    def op(x: f32[M, N]):
        a, y = po.tensors("a y")
        s, t = po.index("s", -5, M - 7), po.index("t", -9, N - 11)
        a[i, j] = po.exp(x[i, j])
        y[s + 5, t + 9] = a[s + 5, t + 9] + a[s + 6, t + 10] + a[s + 7, t + 11]
        return y

    x = RANDOM.standard_normal((1100, 1000), np.float32)
    assert not op.lower(x).fallback
    a = np.exp(x)
    assert_allclose(op(x), a[:-2, :-2] + a[1:-1, 1:-1] + a[2:, 2:], rtol=1e-5)


def test_an_array_whose_folding_is_not_decided_in_time_costs_no_other_plan() -> None:
    """A lattice Boltzmann step: nine directions that stream by themselves."""

    @po.op
    def op(f0: f64[9, M]):
        q, t = po.index("q", extent=9), po.index("t", extent=3)
        f, rho, post = po.tensors("f rho post")
        f[0, q, i] = f0[q, i]
        rho[t, i] = po.sum(f[t, q, i], q)
        for z in range(9):
            post[t, z, i] = f[t, z, i] + 0.5 * (rho[t, i] / 9 - f[t, z, i])
            f[t + 1, z, i] = post.wrap()[t, z, i - (z % 3 - 1)]
        return f[3]

    start = RANDOM.random((9, 6))
    assert not op.lower(start).fallback
    expected = start
    for _ in range(3):
        post = expected + 0.5 * (expected.sum(0) / 9 - expected)
        expected = np.stack([np.roll(post[z], z % 3 - 1) for z in range(9)])
    assert_allclose(op(start), expected)


# --- more of reductions, subscripts and extents ---------------------------------------------------------------------


def test_a_start_that_data_would_repeat_is_refused() -> None:
    @po.op
    def with_start(x: f32[M]):
        s = po.tensor("s")
        s[()] = po.reduce(lambda a, b: a + b, x[k], k, init=5, where=x[k] > 0)
        return s

    @po.op
    def neutral(x: f32[M]):
        s = po.tensor("s")
        s[()] = po.reduce(lambda a, b: a + b, x[k], k, init=0, where=x[k] > 0)
        return s

    x = np.array([1, -2, 3, -4], np.float32)
    with pytest.raises(po.DefinitionError, match="neutral element"):
        with_start(x)
    assert neutral(x) == 4


def test_a_constant_stays_in_a_running_sum() -> None:
    rows = columns = 192

    @po.op
    def op(q: f32[rows, 8], keys: f32[columns, 8], v: f32[columns]):
        s, largest, y = po.tensors("s largest y")
        s[i, j] += q[i, k] * keys[j, k]
        largest[i] = po.max(s[i, j], j)
        y[i] = po.sum(po.exp(s[i, j] - largest[i]) * v[j] * 0.001, j)
        return y

    q, keys, v = np.zeros((rows, 8), "f4"), np.zeros((columns, 8), "f4"), np.full(columns, 1e37, "f4")
    assert_allclose(op(q, keys, v), np.full(rows, 1.92e36), rtol=1e-5)


def test_a_subscript_may_be_computed_from_indices_by_a_cast() -> None:
    @po.op
    def votes(x: f64[M]):
        found = po.tensor("found", shape=(8,))
        found[po.cast(po.floor(po.sqrt(po.cast(i, f64))), i64)] += x[i]
        return found

    @po.op
    def taken(x: f64[M]):
        y = po.tensor("y")
        own = po.index("own", extent=M)
        y[own] = x[po.cast(po.floor(po.sqrt(po.cast(own, f64))), i64)]
        return y

    x = np.arange(10.0)
    bins = np.floor(np.sqrt(x)).astype(int)
    assert_array_equal(votes(x), np.bincount(bins, x, 8))
    assert_array_equal(taken(x), x[bins])


def test_sugar_in_many_layers_is_read_in_time_that_grows_with_them() -> None:
    def normal(x: Any) -> Any:
        mean = po.mean(x, axis=-1, keepdims=True)
        return (x - mean) * po.rsqrt(po.mean((x - mean) ** 2, axis=-1, keepdims=True) + 1e-5)

    def layered(depth: int) -> po.Op:
        @po.op
        def op(x: f64[N, 4]):
            for _ in range(depth):
                x = x + normal(x)
            return x

        return op

    def expected(x: Any, depth: int) -> Any:
        for _ in range(depth):
            mean = x.mean(-1, keepdims=True)
            x = x + (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)
        return x

    x = RANDOM.standard_normal((5, 4))
    assert_allclose(layered(3)(x), expected(x, 3))
    start = time.process_time()
    _ = layered(10).lower(N=5).program
    assert time.process_time() - start < 30, "each layer took six times as long as the one before"


def test_what_follows_a_join_stays_dynamic(caplog: pytest.LogCaptureFixture) -> None:
    @po.op(dynamic=True)
    def op(x: f64[N, 8], token: f64[8]):
        y = po.concatenate([token.reshape(1, 8), x], axis=0)
        return y.reshape(N + 1, 2, 4)

    for count in (4, 5):
        x, token = RANDOM.standard_normal((count, 8)), RANDOM.standard_normal(8)
        assert_array_equal(op(x, token), np.concatenate([token[None], x]).reshape(-1, 2, 4))
    assert not caplog.records


def test_a_kernel_that_llvm_would_take_minutes_for_is_planned_plainly(caplog: pytest.LogCaptureFixture) -> None:
    """Twenty cases of a product, written out in every row of a tile: 50,000 lines."""

    @po.op
    def op(x: po.f16[M, A], w: po.f16[N, B]):
        y = po.tensor("y")
        i, j, k = po.index("i", extent=48), po.index("j", extent=130), po.index("k", extent=37)
        own, near, half, turned = x[k + 1, i], w[j, k], w[j // 2, k], w[k, j + 1]
        third, even = (i + k) % 3 != 0, (k % 2 == 0) & (j < 65)
        deep = po.where(j >= k, x[2 * i, k + 1] * half, own * po.where(k < 11, near, near))
        deep = po.where(k == 18, po.where(i < j, deep, own * half * 2), own * half * own)
        wide = po.where(i < j, own * po.where(even, w[k, j], w[k, j] * 2), x[2 * i, k + 1] * turned * 2)
        first = po.where(j >= k, po.where(third, own * half + half, own * near), own * turned)
        first = po.where(i < j, own * po.where(j < 43, half, 1), first)
        second = po.where(j < 0, po.where(even, own * near + own, po.where(j >= k, deep, wide)), own * half * half)
        last = po.where(third, second, po.where(i < j, own * half * 2, own * half + half))
        y[i, j] += po.where(i < j, own * half, po.where(j >= k, po.where(i < j, own * near * near, first), last))
        return y

    x, w = (RANDOM.integers(0, 2, s).astype(np.float16) for s in ((154, 121), (307, 418)))
    lowering = op.lower(x, w)
    assert "too long" in lowering.fallback and "too long" in caplog.text
    assert_array_equal(op(x, w), op.reference(x, w))


# --- what is said of a tensor before its ranges are found ------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_extent_of_a_local_tensor_is_the_one_that_it_gets(dynamic: bool) -> None:
    """Where a parameter's `x[2*i]` decides, a local tensor's `t0[i]` beside it does not."""

    @po.op(dynamic=dynamic)
    def op(x: f64[N], y: f64[M]):
        t0, t1, s = po.tensors("t0 t1 s")
        t0[i] = y[i]
        t1[i] = t0.pad(0)[i] + x[2 * i]
        s[()] = t1.shape[0]
        return t1, s, t1[-1:], t1[: t1.shape[0]]

    for sizes in ((8, 3), (7, 3), (8, 9), (2, 3)):
        x, y = np.arange(1.0, sizes[0] + 1), np.arange(1.0, sizes[1] + 1)
        want = np.pad(y, (0, 9))[: len(x[::2])] + x[::2]
        whole, length, last, same = op(x, y)
        assert_array_equal(whole, want)
        assert int(length) == len(want)
        assert_array_equal(last, want[-1:])
        assert_array_equal(same, want)


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_extent_that_turns_out_otherwise_than_it_was_used_is_an_error(dynamic: bool) -> None:
    """What `u` reads under a guard decides; this gave a shape beside an array of another one."""

    @po.op(dynamic=dynamic)
    def op(x: f64[N], y: f64[M]):
        u, t0, t, s = po.tensors("u t0 t s")
        u[i] = po.when(i < 5, x[i])
        t0[i] = y[i]
        t[i] = t0[i] + u[i + 1]
        s[()] = t.shape[0]
        return t, s

    with pytest.raises(po.ShapeError, match="satisfy" if dynamic else "was taken for 8 long, and is 4"):
        op(np.ones(5), np.ones(8))


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_extent_of_a_local_tensor_whose_index_does_not_begin_at_zero(dynamic: bool) -> None:
    k = po.index("k")

    @po.op(dynamic=dynamic)
    def op(x: f64[N], w: f64[M]):
        turned, summed, s, length = po.tensors("turned summed s length")
        turned[N + 1 - i] = x[i - 2]
        summed[i] = po.sum(x[i - k] * w[k - 2], k)
        s[()] = turned.shape[0]
        length[()] = summed.shape[0]
        return turned[:], s, summed[M + 1 :], length

    x, w = np.arange(1.0, 9.0), np.arange(1.0, 4.0)
    turned, n, summed, length = op(x, w)
    assert_array_equal(turned, x[::-1])
    assert_array_equal(summed, np.convolve(x, w, "valid"))
    assert (int(n), int(length)) == (8, 10)


def test_the_longest_of_several_runs_is_not_what_was_used() -> None:
    @po.op
    def op(x: f64[N]):
        t, s = po.tensors("t s")
        t[i] = po.where(i == 3, x.pad(0)[i] + x[i - 4], x[i])
        s[()] = t.shape[0]
        return t, s

    with pytest.raises(po.ShapeError, match="was taken for 5 long, and is 3"):
        op(np.ones(5))


@pytest.mark.parametrize(
    ("spec", "operands", "dtype"),
    [
        ("i,i", (np.full(4, 100, np.int8),) * 2, np.int64),
        ("i,i->i", (np.full(4, 100, np.int8),) * 2, np.float64),
        ("i->", (np.full(5, 60000, np.float16),), np.float32),
        ("i,i", (np.full(5, 60000, np.float16),) * 2, np.float32),
        ("i->", (np.array([True] * 3),), np.int64),
    ],
)
def test_einsum_computes_in_the_dtype_of_a_wider_out(spec: str, operands: Any, dtype: Any) -> None:
    shape = np.einsum(spec, *operands).shape
    found, wanted = np.zeros(shape, dtype), np.zeros(shape, dtype)
    np.einsum(spec, *operands, out=wanted)
    assert po.einsum(spec, *operands, out=found) is found
    assert_array_equal(found, wanted)


def test_an_op_may_have_letters_of_any_alphabet_in_its_name() -> None:
    @po.op
    def größe(x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] * 2
        return y

    assert_array_equal(größe(np.ones(3)), [2, 2, 2])


@pytest.mark.parametrize("out", [np.float64(0), 3.0, Foreign(np.zeros((3, 2)))], ids=["scalar", "number", "copies"])
def test_einsum_writes_to_what_can_be_written_alone(out: Any) -> None:
    with pytest.raises(po.PolyoptError, match="out"):
        po.einsum("ij->ji" if isinstance(out, Foreign) else "ij->", np.ones((2, 3)), out=out)


def test_an_op_for_another_target_has_the_annotations_that_it_was_defined_with() -> None:
    extent = 3

    @po.op
    def double(x: f64[extent]):
        return 2 * x

    assert_array_equal(double(np.ones(3)), [2, 2, 2])
    extent = 4
    assert_array_equal(double.on("cpu")(np.ones(extent - 1)), [2, 2, 2])


def test_a_parameter_may_be_called_target() -> None:
    @po.op
    def loss(pred: f64[N], target: f64[N]):
        return po.sum((pred[i] - target[i]) ** 2, i)

    x: Any = np.arange(4.0)
    for lowering in (loss.lower(pred=x, target=x), loss.lower(N=4), loss.lower(N=4, target="cpu")):
        assert "target" in str(lowering.program)
    assert loss(pred=x, target=x + 1) == 4
