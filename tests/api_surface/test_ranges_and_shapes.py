"""Section 1 of the language: guards, index ranges and shapes, one test for each statement."""

from __future__ import annotations

from collections.abc import Callable
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


# --- guards -----------------------------------------------------------------------------------------------------


def test_a_guard_defines_only_where_it_holds() -> None:
    @po.op
    def lower(x: f64[N, N]):
        low = po.tensor("low")
        low[i, j] = po.when(j <= i, x[i, j])
        low[i, j] = po.when(j > i, 0)
        return low

    x = RNG.standard_normal((6, 6))
    assert_array_equal(lower(x), np.tril(x))


def test_a_guard_on_an_update_restricts_what_is_summed() -> None:
    @po.op
    def f(x: f64[N, N]):
        y = po.tensor("y")
        y[i] += po.when(j < i, x[i, j])
        return y

    x = RNG.standard_normal((6, 6))
    assert_allclose(f(x), np.tril(x, -1).sum(1))


def test_conditions_combine() -> None:
    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        inside = (i > 1) & (i < 5) | (i == 7)
        y[i] = po.when(inside, x[i])
        y[i] = po.when(~inside, -1.0)
        return y

    n = np.arange(8)
    assert_array_equal(f(V[:8]), np.where((n > 1) & (n < 5) | (n == 7), V[:8], -1))


def test_where_with_an_affine_condition_reads_only_the_branch_taken() -> None:
    @po.op
    def shifted(x: f64[N]):
        y = po.tensor("y")
        y[i] = po.where(i == 0, 0, x[i - 1])
        return y

    for n in (1, 2, 9):
        assert_array_equal(shifted(V[:n]), np.concatenate([[0], V[:n]]))


def test_where_with_data_selects_and_both_branches_must_be_in_bounds() -> None:
    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        y[i] = po.where(x[i] > 0, x[i], x[i] * 10)
        return y

    assert_array_equal(f(V), np.where(V > 0, V, V * 10))
    t = po.index("t", extent=N)

    @po.op
    def g(x: f64[N]):
        y = po.tensor("y")
        y[t] = po.where(x[t] > 0, x[t], x[t - 1])
        return y

    with pytest.raises(po.BoundsError):
        g(V)


# --- index ranges -----------------------------------------------------------------------------------------------


def test_an_explicit_range_wins_and_may_be_empty() -> None:
    @po.op
    def f(x: f64[N]):
        a, b, c = po.index("a", extent=3), po.index("b", 1, N), po.index("c", 4, 4)
        y, z, e = po.tensors("y z e")
        y[a] = x[a]
        z[()] += x[b]
        e[()] += x[c]
        return y, z, e

    y, z, e = f(V)
    assert_array_equal(y, V[:3])
    assert_allclose(z, V[1:].sum())
    assert e == 0


def test_an_index_takes_the_extent_of_the_dimension_where_it_stands_alone() -> None:
    @po.op
    def f(x: f64[M, N], y: f64[M]):
        z = po.tensor("z")
        z[i, j] = x[i, j] + y[i]
        return z

    with pytest.raises(po.ShapeError):
        f(np.ones((3, 4)), np.ones(4))


def test_extents_that_disagree_name_both_places() -> None:
    @po.op
    def f(x: f64[M], y: f64[N]):
        z = po.tensor("z")
        z[i] = x[i] + y[i]
        return z

    assert_array_equal(f(V, V), 2 * V)
    with pytest.raises(po.ShapeError) as failure:
        f(V, V[:-1])
    assert "'x'" in str(failure.value) and "'y'" in str(failure.value)


def test_a_valid_convolution_follows_from_its_equation() -> None:
    @po.op
    def conv(x: f64[M, N], f: f64["R", "S"]):  # noqa: UP037 - strings name sizes
        y = po.tensor("y")
        y[h, w] += x[h + r, w + s] * f[r, s]
        return y

    x, f = RNG.standard_normal((8, 9)), RNG.standard_normal((3, 2))
    wanted = sum(f[a, b] * x[a : a + 6, b : b + 8] for a in range(3) for b in range(2))
    assert_allclose(conv(x, f), wanted)


def test_the_largest_range_for_which_every_read_is_in_bounds() -> None:
    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i + 1] + x[i + 3]
        return y

    assert_array_equal(f(V), V[1:-2] + V[3:])


def test_two_reads_with_offsets_give_n_minus_2_elements() -> None:
    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] + x[i + 2]
        return y

    assert_array_equal(f(V), V[:-2] + V[2:])


def test_extents_of_defined_tensors_determine_what_parameters_do_not() -> None:
    @po.op
    def f(x: f64[N]):
        y, z = po.tensors("y z")
        y[2 * i] = x[i]
        y[2 * i + 1] = x[i]
        z[j] = y[j] + 1
        return z

    assert_array_equal(f(V), np.repeat(V, 2) + 1)


def test_inferred_extents_do_not_conflict_and_are_bounds_checked() -> None:
    @po.op
    def f(x: f64[N]):
        y, z, both = po.tensors("y z both")
        a, b = po.index("a", extent=4), po.index("b", extent=5)
        y[a] = x[a]
        z[b] = x[b]
        both[i] = y[i] + z[i]
        return both

    assert_array_equal(f(V), 2 * V[:4])


@pytest.mark.parametrize("boundary", ["pad", "clamp", "wrap"])
def test_an_index_alone_in_a_padded_read_still_gives_the_extent(boundary: str) -> None:
    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        read = x.pad(0) if boundary == "pad" else getattr(x, boundary)()
        y[i] = read[i] + read[i + 2]
        return y

    mode: Any = {"pad": "constant", "clamp": "edge", "wrap": "wrap"}[boundary]
    assert_array_equal(f(V), V + np.pad(V, (0, 2), mode)[2:])


def test_an_undetermined_index_asks_for_an_extent() -> None:
    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        y[i, j] = x[i]
        return y

    with pytest.raises(po.DefinitionError, match="extent="):
        f(V)


# --- shapes -----------------------------------------------------------------------------------------------------


def test_a_tensor_is_the_smallest_box_that_holds_its_elements() -> None:
    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        y[i + 2] = x[i]
        y[0] = 0.0
        y[1] = 1.0
        return y

    assert_array_equal(f(V), np.concatenate([[0, 1], V]))


def test_a_guard_makes_the_box_smaller() -> None:
    @po.op
    def f(x: f64[N]):
        y = po.tensor("y")
        y[i] = po.when(i < 4, x[i])
        return y

    assert f(V).shape == (4,)


def test_boundaries_refer_to_the_box() -> None:
    @po.op
    def f(x: f64[N]):
        y, z = po.tensors("y z")
        y[i] = po.when(i < 4, x[i])
        z[j] = y[j] * 0 + y.clamp()[j + 1]
        return z

    assert_array_equal(f(V), V[[1, 2, 3, 3]])


def test_conditions_on_symbolic_sizes_are_checked_at_the_call() -> None:
    @po.op(dynamic=True)
    def f(x: f64[N]):
        y = po.tensor("y")
        y[0] = x[2]
        return y

    assert_array_equal(f(V), V[2:3])
    with pytest.raises(po.ShapeError) as failure:
        f(V[:2])
    assert "N" in str(failure.value)


@pytest.mark.parametrize("dynamic", [False, True])
def test_emptiness_is_checked_only_where_guards_hold(dynamic: bool) -> None:
    @po.op(dynamic=dynamic)
    def f(x: f64[M, N]):
        y = po.tensor("y")
        y[i] = po.max(x[i, j], j)
        return y

    assert f(np.zeros((0, 0))).shape == (0,)
    assert_array_equal(f(np.array([[1.0, 3.0]])), [3.0])
    with pytest.raises(po.PolyoptError):
        f(np.zeros((2, 0)))


@pytest.mark.parametrize("dynamic", [False, True])
def test_definitions_may_share_the_elements_of_a_tensor_among_them(dynamic: bool) -> None:
    @po.op(dynamic=dynamic)
    def alternate(x: f64[N]):
        y = po.tensor("y")
        y[i] = po.when(i % 2 == 0, x[i])
        y[i] = po.when(i % 2 == 1, -x[i])
        return y

    for n in range(10):
        assert_array_equal(alternate(V[:n]), V[:n] * (-1.0) ** np.arange(n))


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_empty_dimension_leaves_the_others_as_they_are(dynamic: bool) -> None:
    @po.op(dynamic=dynamic)
    def board(x: f64[M, N]):
        y = po.tensor("y")
        y[i, j] = po.when((i + j) % 2 == 0, x[i, j])
        y[i, j] = po.when((i + j) % 2 == 1, 0.0)
        return y

    for shape in ((4, 5), (0, 3), (3, 0), (0, 0)):
        result = board(np.ones(shape))
        assert result.shape == shape
        assert result.sum() == (np.indices(shape).sum(0) % 2 == 0).sum()


# --- extents that would be less than none -------------------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [False, True])
def test_nothing_is_left_of_a_slice_that_ends_before_it_starts(dynamic: bool) -> None:
    """The extent counted as a negative number: means were -0.0, and what came behind it began before its place."""

    @po.op
    def mean_of_the_rest(x):
        return po.mean(x[:-5])

    @po.op(dynamic=dynamic)
    def mean_of_a_range(x: f64[N], y: f64[M]):
        rows, mean = po.index("rows", N, M), po.tensor("mean", shape=(M,))
        mean[i] = po.mean(y[i] + rows, rows)
        return mean

    assert np.isnan(mean_of_the_rest(np.arange(3.0))) and mean_of_the_rest(np.arange(9.0)) == 1.5
    assert np.isnan(mean_of_a_range(np.ones(5), np.ones(2))).all()
    assert mean_of_a_range(np.ones(2), np.ones(4)).tolist() == [3.5] * 4


def test_an_extent_below_none_is_none_where_it_is_a_number() -> None:
    @po.op
    def counted(x, y):
        return y + x[:-5].shape[0]

    @po.op
    def behind(x: f64[N], y: f64[M]):
        z = po.tensor("z")
        z[i] = x[i] - x[i + 3]
        return z, y[z.shape[0] :], po.concatenate([y, z, y])

    y = np.arange(4.0)
    assert counted(np.arange(3.0), np.zeros(2)).tolist() == [0, 0]
    assert counted(np.arange(8.0), np.zeros(2)).tolist() == [3, 3]
    for n, left in ((2, 0), (5, 2)):
        z, rest, joined = behind(np.zeros(n), y)
        assert z.tolist() == [0] * left
        assert_array_equal(rest, y[left:])
        assert_array_equal(joined, np.concatenate([y, z, y]))
    with pytest.raises(po.ShapeError, match="N >= 3"):
        po.op(dynamic=True)(behind.__wrapped__)(np.zeros(2), y)


@pytest.mark.parametrize("part", [np.s_[:1], np.s_[1:2], np.s_[:, :1], np.s_[3:], np.s_[::4], np.s_[-1:]])
def test_a_slice_of_one_element_is_broadcast(part: tuple[slice, ...]) -> None:
    @po.op
    def centred(x):
        return x - x[part]

    x = RNG.standard_normal((4, 6))
    assert_array_equal(centred(x), x - x[part])


def test_an_index_over_many_times_a_size_that_is_open() -> None:
    """Refused because the index may be as large as 1024 times any size."""
    long = po.index("long", extent=1024 * N)

    @po.op(dynamic=True)
    def flattened(x: f64[N, 64, 32]):
        return x.reshape(N * 2048)

    @po.op(dynamic=True)
    def repeated(x: f64[N]):
        y = po.tensor("y")
        y[long] = x[long // 1024]
        return y

    x = np.arange(2.0 * 64 * 32).reshape(2, 64, 32)
    assert_array_equal(flattened(x), x.ravel())
    assert_array_equal(repeated(x[:, 3, 1]), np.repeat(x[:, 3, 1], 1024))


def test_a_size_called_as_the_stride_of_an_argument() -> None:
    """The kernel read the argument with the size for its stride."""
    stride = po.size("x_stride0")

    @po.op(dynamic=True)
    def added(x: f64[N], w: f64[stride]):
        y = po.tensor("y")
        y[i] = x[i] + po.sum(w)
        return y

    x = np.arange(40.0)[::4]
    assert_array_equal(added(x, np.ones(8)), x + 8)


BEFORE = {
    "mean": lambda y, x: po.mean(y),
    "reversed": lambda y, x: y[::-1],
    "last": lambda y, x: y[-1],
    "shape": lambda y, x: y.shape[0] * x,
    "reshape": lambda y, x: y.reshape(-1),
    "concatenate": lambda y, x: po.concatenate([x, y]),
}


@pytest.mark.parametrize("use", BEFORE.values(), ids=BEFORE)
def test_a_definition_after_the_extent_was_used(use):
    """The later element was left out."""

    @po.op
    def op(x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i]
        result = use(y, x)
        y[N] = 100.0
        return result

    with pytest.raises(po.DefinitionError, match="'y' is defined further after its extent was used"):
        op(np.arange(1.0, 5.0))


def test_a_definition_after_uses_that_it_does_not_change():
    @po.op
    def grown(x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i]
        doubled, total = y * 2, po.sum(y)
        y[N] = 100.0
        return doubled, total

    @po.op
    def counted(x: f64[N]):
        y = po.tensor("y")
        y[0] = x[0]
        first = po.index("first", 1, N)
        y[first] = 2 * x[first]
        mean = po.mean(y)
        y[i] += 1
        return mean

    x = np.arange(1.0, 5.0)
    doubled, total = grown(x)
    assert_array_equal(doubled, [2, 4, 6, 8, 200])
    assert total == 110
    assert counted(x) == (2 * x.sum() - x[0]) / 4 + 1


NARROWED = {
    "by data": (lambda x, z: po.where(x[i] > 3, x[i + 1], x[i]), 9),
    "negative": (lambda x, z: x[i] + z[5 - i], 6),
    "of a size": (lambda x, z: x[i] + x[N // 2 - i], 6),
    "quotient": (lambda x, z: x[i] + z[i // 2 + 3], 6),
    "inner": (lambda x, z: x[i] + po.sum(z[i] * z[i], i), 10),
    "guarded": (lambda x, z: po.where((i > 0) & (i < N - 1), x[i - 1] + x[i + 1], x[i]), 10),
    "shifted": (lambda x, z: x[i + 1] - x[i], 9),
}


@pytest.mark.parametrize(("value", "extent"), NARROWED.values(), ids=NARROWED)
def test_the_extent_that_sugar_takes_is_the_one_that_a_tensor_has(value, extent):
    """Reads that narrow an index were passed over where they are guarded, reversed or divided."""

    def tensor(x, z):
        y = po.tensor("y")
        y[i] = value(x, z)
        return y

    @po.op
    def whole(x: f64[N], z: f64[K]):
        return tensor(x, z), po.mean(tensor(x, z))

    @po.op
    def turned(x: f64[N], z: f64[K]):
        return tensor(x, z)[::-1], tensor(x, z)[-1], po.full((), tensor(x, z).shape[0])

    x, z = np.arange(1.0, 11.0), np.arange(6.0)
    y, mean = whole(x, z)
    assert len(y) == extent and mean == pytest.approx(y.mean())
    try:
        backwards, last, length = turned(x, z)
    except po.DefinitionError as error:  # it asks for shape= where isl alone can say
        assert "shape=" in str(error)
    else:
        assert_array_equal(backwards, y[::-1])
        assert (last, length) == (y[-1], extent)


def test_slices_fit_ahead_of_a_call_as_they_do_in_it() -> None:
    """Numbers for sizes by name were put in where the equations had been read without them."""
    K = po.size("K")

    @po.op
    def joined(x: f64[N]):
        t = po.index("t", extent=K)
        z = po.tensor("z")
        z[t] = po.cast(t, f64)
        return x[:1] + x, x[-3:], z

    lowered = joined.lower(N=2, K=3)
    assert "f64[2]" in str(lowered.rewritten) and "f64[3]" in str(lowered.rewritten)
    assert joined.compile(N=np.int64(2), K=3) is joined
    assert not joined.problem(N=2, K=3).program.sizes
    with pytest.raises(po.ArgumentError, match="no size or compile-time parameter 'Q'"):
        joined.lower(N=2, K=3, Q=1)
    with pytest.raises(po.ArgumentError, match="size 'N' cannot be -2"):
        joined.compile(N=-2, K=3)
    with pytest.raises(po.ShapeError, match="2 and 5"):
        po.op(lambda x: x[:2] + x).lower(np.zeros(5))

    @po.op
    def unfit(x: f64[N]):
        return x[:2] + x

    with pytest.raises(po.ShapeError, match="2 and 5"):
        unfit.lower(N=5)


@pytest.mark.parametrize("dynamic", [True, ["N"], ["M", "N"]])
def test_equations_that_need_numbers_for_sizes_say_that_none_stays_dynamic(dynamic, caplog):
    """Named sizes were said not to exist."""

    @po.op(dynamic=dynamic)
    def flat(x: f64[M, N]):
        return x.reshape(-1)

    for rows in (2, 3):
        assert flat(np.ones((rows, 4))).shape == (4 * rows,)
    assert "flat: no size stays dynamic" in caplog.text
    with pytest.raises(po.ArgumentError, match="'flat' has no size 'K'"):
        po.op(dynamic=["K"])(flat.__wrapped__)(np.ones((2, 4)))


def test_open_sizes_that_index_expressions_do_not_fit_64_bits_with_are_refused() -> None:
    many = 1 << 30
    t = po.index("t", extent=3)

    @po.op(dynamic=True)
    def chosen(x: u8[N]):
        y = po.tensor("y")
        y[t] = po.where(N * many + t >= 0, 1, 0)
        return y

    @po.op(dynamic=True)
    def read(x: u8[N]):
        y = po.tensor("y")
        y[t] = x[(N * many + t) // (many + 1)]
        return y

    for op in (chosen, read):
        op(np.ones(7, np.uint8))
        with pytest.raises(po.ShapeError, match=str(1 << 31)):
            op(np.broadcast_to(np.uint8(1), (1 << 33,)))


@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_two_definitions_that_take_turns_have_any_length(numerics: Any) -> None:
    """Which of them ends last depends on whether the size is odd: every odd size was refused."""

    @po.op(dynamic=True, numerics=numerics)
    def op(x: f32[N]):
        y = po.tensor("y")
        even, odd = po.index("even", (N + 1) // 2), po.index("odd", N // 2)
        y[2 * even] = x[even]
        y[2 * odd + 1] = -x[odd]
        return y

    for size in range(10):
        x = np.arange(1, size + 1, dtype=np.float32)
        want = np.zeros(size, np.float32)
        want[::2], want[1::2] = x[: (size + 1) // 2], -x[: size // 2]
        np.testing.assert_array_equal(op(x), want)


@pytest.mark.parametrize("sizes", [(0, 1), (0, 2), (2, 0), (3, 0), (0, 0), (2, 3)])
def test_a_sum_of_indices_of_which_one_has_no_value_reaches_nothing(sizes: tuple[int, int]) -> None:
    """The other one's end was the extent, whose elements nothing defines."""

    @po.op
    def convolved(x: f64[M], w: f64[N]):
        z = po.tensor("z")
        z[i + j] += x[i] * w[j]
        return z

    @po.op
    def turned(x: f64[M, N]):
        z, y = po.tensors("z y")
        z[i + j, j] = x[i, j]
        y[k] = po.sum(z[k, j], j)
        return y

    m, n = sizes
    expected = np.convolve(np.ones(m), np.ones(n)) if m and n else np.zeros(0)
    assert_array_equal(convolved(np.ones(m), np.ones(n)), expected)
    if not (m and n):
        assert turned(np.ones((m, n))).shape == (0,)


# --- indices that take the extent of their own tensor ---------------------------------------------------------------


@pytest.mark.parametrize("dynamic", [[], ["N"]], ids=["numbers", "open"])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_unit_diagonal_is_as_long_as_its_matrix(size: int, dynamic: list[str]) -> None:
    """What the guard of the first equation leaves of L has a column less: the last element of the diagonal was lost."""

    @po.op(dynamic=dynamic)
    def doolittle(a: f64[N, N]):
        low, up, product = po.tensors("low up product")
        up[i, j] = po.when(i <= j, a[i, j] - po.sum(low[i, k] * up[k, j], k, where=k < i))
        up[i, j] = po.when(i > j, 0)
        low[i, j] = po.when(i > j, (a[i, j] - po.sum(low[i, k] * up[k, j], k, where=k < j)) / up[j, j])
        low[i, i] = 1
        low[i, j] = po.when(i < j, 0)
        product[i, j] += low[i, k] * up[k, j]
        return low, up, product

    a = RNG.standard_normal((size, size)) + 5 * np.eye(size)
    low, up, product = doolittle(a)
    assert low.shape == up.shape == product.shape == (size, size)
    assert_array_equal(np.diag(low), 1)
    assert_allclose(product, a, rtol=1e-12)


@pytest.mark.parametrize("dynamic", [[], ["N"]], ids=["numbers", "open"])
@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_what_guards_leave_out_of_a_tensor_another_equation_may_define(size: int, dynamic: list[str]) -> None:
    @po.op(dynamic=dynamic)
    def op(x: f64[N]):
        y, c, f = po.tensors("y c f")
        y[i] = po.when(i < N - 1, x[i + 1] - x[i])
        y[i] = po.when(i == N - 1, 100.0)
        c[i, j] = po.when(i < j, x[i] * x[j])
        c[i, i] = 1
        c[i, j] = po.when(i > j, -c[j, i])
        f[i] = po.when(i < 2, x[i])
        f[i] = f[i - 1] + f[i - 2]
        return y, c, f, po.sum(y[i], i)

    x = np.arange(1.0, size + 1) ** 2
    y, c, f, total = op(x)
    assert_array_equal(y, [*np.diff(x), 100.0])
    products = np.triu(np.outer(x, x), 1)
    assert_array_equal(c, products - products.T + np.eye(size))
    expected = list(x[:2])
    while len(expected) < size:
        expected.append(expected[-1] + expected[-2])
    assert_array_equal(f, expected)
    assert total == y.sum()


def test_an_update_of_all_elements_is_of_those_that_guards_leave_out_too() -> None:
    @po.op
    def op(x: i32[N]):
        y = po.tensor("y")
        y[i] = po.when(i % 2 == 0, x[i])
        y[i] += 7
        return y

    assert_array_equal(op(np.arange(4, dtype=np.int32)), [7, 7, 9, 7])
    assert_array_equal(op(np.arange(5, dtype=np.int32)), [7, 7, 9, 7, 11])


@pytest.mark.parametrize("dynamic", [False, True], ids=["numbers", "open"])
@pytest.mark.parametrize("size", [2, 5, 6])
def test_a_sum_over_its_own_tensor_ends_where_the_elements_do(size: int, dynamic: bool) -> None:
    """It ended where they would without guards, and added what pad, clamp and wrap give outside."""

    def op(define: Callable[[po.Tensor], Any]) -> Any:
        @po.op(dynamic=dynamic)
        def rows(x: f64[N]):
            y = po.tensor("y")
            y[0, j] = po.when(j < N - 1, x[j])
            y[1, 0] = define(y)
            return y[1, 0]

        return rows(x)

    x = np.arange(1.0, size + 1)
    inside = x[:-1]
    assert op(lambda y: po.sum(y.clamp()[0, k], k)) == inside.sum()
    assert op(lambda y: po.sum(y.wrap()[0, k], k)) == inside.sum()
    assert op(lambda y: po.mean(y.pad(0)[0, k], k)) == inside.mean()
    assert op(lambda y: po.max(y.pad(99)[0, k], k)) == inside.max()
    assert op(lambda y: po.cast(po.argmin(y.pad(-5)[0, k], k), f64)) == 0
    assert op(lambda y: po.sum(y[0, k], k)) == inside.sum()


@pytest.mark.parametrize("dynamic", [False, True], ids=["numbers", "open"])
def test_a_sum_over_rows_of_two_guards_has_one_column(dynamic: bool) -> None:
    @po.op(dynamic=dynamic)
    def op(a: f64[M], b: f64[N]):
        y = po.tensor("y")
        y[0, j] = po.when(j == 0, a[j])
        y[1, j] = po.when(j == 0, b[j])
        y[2, 0] = po.sum(y.pad(1)[0, k], k)
        return y[2, 0]

    assert op(np.ones(2), np.ones(5)) == 1


@pytest.mark.parametrize("dynamic", [False, True], ids=["numbers", "open"])
@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_what_a_definition_takes_from_its_tensor_is_no_reason_to_take_more(size: int, dynamic: bool) -> None:
    """Its own reach without its guard counted as another definition's."""

    @po.op(dynamic=dynamic)
    def doubled(x: f64[N]):
        y = po.tensor("y")
        y[i] = po.when((i % 2 == 1) | (i == 0), x[i])
        y[2 * i] = po.when((i > 0) & (2 * i < N), y[i] * 2)
        return y

    x = np.arange(1.0, size + 1)
    expected = x.copy()
    for place in range(2, size, 2):
        expected[place] = 2 * expected[place // 2]
    assert_array_equal(doubled(x), expected)


@pytest.mark.parametrize("dynamic", [False, True], ids=["numbers", "open"])
def test_an_extent_that_two_definitions_know_one_half_of(dynamic: bool) -> None:
    @po.op(dynamic=dynamic)
    def halves(b: f64[M], c: f64[N]):
        y = po.tensor("y")
        y[i, j] = po.when(i < j, b[i])
        y[i, j] = po.when(i >= j, c[j])
        return y

    for m, n in ((3, 5), (5, 3), (4, 4), (1, 1)):
        b, c = np.arange(1.0, m + 1), -np.arange(1.0, n + 1)
        below = np.arange(m)[:, None] >= np.arange(n)
        assert_array_equal(halves(b, c), np.where(below, c, b[:, None]))


def test_a_tensor_does_not_grow_by_what_it_takes_from_itself() -> None:
    @po.op
    def grows(x: f64[N]):
        y = po.tensor("y")
        y[i] = po.when(i < 3, x[i])
        y[i + 3] = po.when(i < 3, y[i])
        return y

    with pytest.raises(po.DefinitionError, match="depends on that range"):
        grows(np.ones(5))
