"""Sums over prefixes: when they are made from one another, and that the result stays what the equations say."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import polyopt as po
from polyopt import f16, f32, f64, i8, i32, u8
from polyopt.fusion import prefixes

K, L, M, N = po.sizes("K L M N")
i, j, k, l = po.indices("i j k l")


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefixes of few steps too."""
    monkeypatch.setattr(prefixes, "LEAST_STEPS", 2)


def is_stepped(op: po.Op, **how: Any) -> bool:
    return "one before" in str(op.lower(**how).report())


def numbers(seed: int, *shape: int, dtype: Any = np.float64) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(dtype)


@po.op
def cumulative(x: f64[N]):
    y, n = po.tensor("y"), po.index("n", extent=N)
    y[n] = po.sum(x[k], k, where=k <= n)
    return y


def test_a_cumulative_sum_takes_one_addition_an_element() -> None:
    """It took five thousand million for these."""
    x = numbers(0, 100_000)
    assert_array_equal(cumulative(x), np.cumsum(x))
    loops = str(cumulative.lower(N=100_000).loops)
    assert "y[n] = y[n - 1] + x[n]" in loops and "y_prefix" not in loops


def test_short_ones_stay_sums_and_a_gpu_has_threads_for_all() -> None:
    assert is_stepped(cumulative, N=256) and not is_stepped(cumulative, N=255)
    assert not is_stepped(cumulative, N=4096, target="sm_90")
    assert is_stepped(cumulative)


GUARDS: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    "k <= n": lambda k, n, i, j: k <= n,
    "k < n": lambda k, n, i, j: k < n,
    "n + 2 >= k": lambda k, n, i, j: n + 2 >= k,
    "k <= n - 3": lambda k, n, i, j: k <= n - 3,
    "k >= n": lambda k, n, i, j: k >= n,
    "k > n - 2": lambda k, n, i, j: k > n - 2,
    "k + n <= 9": lambda k, n, i, j: k + n <= 9,
    "k + n > 5": lambda k, n, i, j: k + n > 5,
    "k <= n + i": lambda k, n, i, j: k <= n + i,
    "and k >= 2": lambda k, n, i, j: (k <= n) & (k >= 2),
    "and k % 3 != 1": lambda k, n, i, j: (k <= n) & (k % 3 != 1),
    "and i < 3": lambda k, n, i, j: (k <= n) & (i < 3),
    "and j > 1": lambda k, n, i, j: (k >= n) & (j > 1),
    "and j <= k": lambda k, n, i, j: (k <= n) & (j <= k),
}
REDUCED = {
    "sum": lambda *a, **w: po.sum(*a, **w),
    "max": lambda *a, **w: po.max(*a, **w, init=-9),
    "min": lambda *a, **w: po.min(*a, **w, init=9),
}


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("reduced", REDUCED)
@pytest.mark.parametrize("guard", GUARDS)
@pytest.mark.parametrize("dtype", [f64, i32], ids=str)
def test_all_directions_and_conditions_give_what_the_equations_say(dtype: po.DType, guard: str, reduced: str) -> None:
    def op(x: Any):
        y = po.tensor("y", shape=(4, 11))
        n = po.index("n", extent=11)
        i, j, k = po.index("i", extent=4), po.index("j", extent=3), po.index("k", extent=7)
        over = (j, k) if "j" in guard else k
        element = x[i, j, k] if "j" in guard else x[i, 1, k]
        y[i, n] = 2 * REDUCED[reduced](element, over, where=GUARDS[guard](k, n, i, j)) + x[0, 0, 0]
        return y

    op.__annotations__ = {"x": dtype[4, 3, 7]}
    x = numbers(len(guard), 4, 3, 7, dtype=dtype.numpy)
    for made in (po.op(op), po.op(numerics="strict")(op), po.op(dynamic=True)(op)):
        assert_array_equal(made(x), made.reference(x))
    assert is_stepped(po.op(op))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("grows", [True, False])
def test_any_size_does(grows: bool) -> None:
    @po.op(dynamic=True)
    def op(x: f64[M, N]):
        y, n = po.tensor("y"), po.index("n", extent=N + 1)
        y[i, n] = po.max(x[i, k], k, where=k < n if grows else k >= n, init=-5.0)
        return y

    @po.op(dynamic=True)
    def from_one(x: f64[M, N]):
        y, n = po.tensor("y", shape=(M, N + 1)), po.index("n", 1, N)
        y[i, 0] = 7
        y[i, N] = po.when(N >= 1, 8)
        y[i, n] = po.sum(x[i, k], k, where=k <= n if grows else k >= n)
        return y

    for rows, length in product(range(3), range(6)):
        x = numbers(length, rows, length)
        assert_array_equal(op(x), op.reference(x))
        assert_array_equal(from_one(x), from_one.reference(x))
    assert is_stepped(op) and is_stepped(from_one)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("dtype", [f16, f32, i8, u8], ids=str)
def test_accumulations_round_and_wrap_at_the_end(dtype: po.DType) -> None:
    def op(x: Any):
        y, n = po.tensor("y", dtype=dtype), po.index("n", extent=N)
        y[i, n] += po.when(k <= n, x[i, k] * x[i, k])
        return y

    op.__annotations__ = {"x": dtype[M, N]}
    x = (np.arange(5 * 40).reshape(5, 40) % 13).astype(dtype.numpy)
    assert is_stepped(po.op(op), M=5, N=40)
    for numerics in ("default", "strict"):
        made = po.op(numerics=numerics)(op)
        assert_array_equal(made(x), made.reference(x, numerics="strict"))


@pytest.mark.usefixtures("few")
def test_an_accumulation_of_prefixes_is_no_prefix() -> None:
    @po.op
    def op(x: f64[K, L]):
        y, n = po.tensor("y", shape=(8,)), po.index("n", extent=8)
        y[n] += po.sum(x[k, l], k, where=k <= n)
        return y

    x = numbers(3, 8, 5)
    assert_array_equal(op(x), np.cumsum(x.sum(axis=1)))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("dynamic", [False, True], ids=["numbers", "open"])
def test_prefixes_inside_other_reductions_are_made_step_by_step(dynamic: bool) -> None:
    """Drawdowns of 200 rows of 2,000 prices took 40 ms, a fiftieth with the highest price so far as a tensor."""

    def op(x: f64[M, N], z: f64[N]):
        low, high, total = po.tensors("low high total")
        low[i] = po.min(x[i, j] - po.max(x[i, k], k, where=k <= j), j)
        high[i] = po.max(po.sum(x[i, k], k, where=k >= j) + z[j], j)
        total[i] += po.sum(x[i, k], k, where=k < j) * z[j]
        return low, high, total

    made = po.op(dynamic=dynamic)(op)
    assert is_stepped(made)
    for shape in ((3, 9), (1, 1), (2, 40)):
        x, z = numbers(1, *shape), numbers(2, shape[1])
        sums = x.cumsum(1)
        assert_array_equal(made(x, z)[0], (x - np.maximum.accumulate(x, axis=1)).min(1))
        assert_array_equal(made(x, z)[1], (x[:, ::-1].cumsum(1)[:, ::-1] + z).max(1))
        assert_array_equal(made(x, z)[2], ((sums - x) * z).sum(1))
        strict = po.op(dynamic=dynamic, numerics="strict")(op)
        for got, wanted in zip(strict(x, z), strict.reference(x, z, numerics="strict"), strict=True):
            assert got.tobytes() == wanted.tobytes()


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("dynamic", [False, True], ids=["numbers", "open"])
@pytest.mark.parametrize("inside", [False, True], ids=["beside", "inside"])
def test_prefixes_are_not_made_where_another_axis_has_no_point(
    inside: bool, dynamic: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """They looked at subscripts, or read elements, that nobody asks for."""

    @po.op(dynamic=dynamic)
    def gathered(x: f64[L], ids: i32[N], w: f64[M]):
        y, n = po.tensor("y"), po.index("n", extent=N)
        if inside:
            y[i] = po.max(po.max(x[ids[k]], k, where=k <= n) * w[i], n)
        else:
            y[i, n] = po.sum(x[ids[k]], k, where=k <= n) * w[i]
        return y

    ids = np.array([0, 1, 7, 2, 0, 1, 2, 2], np.int32)
    assert gathered(numbers(0, 3), ids, np.ones(0)).size == 0
    with pytest.raises(po.BoundsError):
        gathered(numbers(0, 3), ids, np.ones(1))
    assert not caplog.records


@pytest.mark.usefixtures("few")
def test_a_prefix_of_a_sum_without_a_term_reads_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """x[m] is outside for the last five, and nobody asks for them: the plan was given up."""

    @po.op
    def beyond(x: f64[N], w: f64[M]):
        y, n, m = po.tensor("y"), po.index("n", extent=N + 5), po.index("m", extent=N + 5)
        y[()] = po.sum(po.sum(x[m], m, where=m <= n) * w[j], (n, j))
        return y

    assert beyond(numbers(0, 3), np.ones(0)) == 0
    assert not caplog.records


@pytest.mark.usefixtures("few")
def test_prefixes_inside_others_stay_where_their_results_would_take_more_room() -> None:
    @po.op
    def op(x: f64[M, K], w: f64[K, N]):
        y, n = po.tensor("y"), po.index("n", extent=K)
        y[i, j] = po.max(po.sum(x[i, k] * w[k, j], k, where=k <= n), n)
        return y

    x, w = numbers(3, 5, 9), numbers(4, 9, 6)
    assert not is_stepped(op, M=5, K=9, N=6)
    assert_array_equal(op(x, w), (x[:, :, None] * w).cumsum(1).max(1))


def test_strict_numerics_keep_the_order_of_terms() -> None:
    def before(x: f32[N]):
        y, n = po.tensor("y"), po.index("n", extent=N)
        y[n] = po.sum(x[k], k, where=k <= n)
        return y

    def after(x: f32[N]):
        y, n = po.tensor("y"), po.index("n", extent=N)
        y[n] = po.sum(x[k], k, where=k >= n)
        return y

    x = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    for op, steps in ((before, True), (after, False)):
        strict = po.op(numerics="strict")(op)
        assert is_stepped(strict, N=300) == steps and is_stepped(po.op(op), N=300)
        assert strict(x).tobytes() == strict.reference(x, numerics="strict").tobytes()
    zeros = np.array([-0.0, -0.0, 1.0], np.float32)
    strict = po.op(numerics="strict")(before)
    assert strict(zeros).tobytes() == strict.reference(zeros, numerics="strict").tobytes()


@pytest.mark.usefixtures("few")
def test_an_integral_image_is_made_along_both_axes() -> None:
    @po.op
    def integral(x: f64[M, N]):
        y, a, b = po.tensor("y"), po.index("a", extent=M), po.index("b", extent=N)
        y[a, b] = po.sum(x[i, j], (i, j), where=(i <= a) & (j <= b))
        return y

    x = numbers(0, 30, 40)
    assert_array_equal(integral(x), x.cumsum(0).cumsum(1))
    assert "sum" not in str(integral.lower(M=30, N=40).rewritten.equations[-1])


@pytest.mark.usefixtures("few")
def test_a_product_over_a_prefix_is_added_to_the_one_before() -> None:
    @po.op
    def op(v: f64[N, K], w: f64[N, L]):
        y, n = po.tensor("y"), po.index("n", extent=N)
        y[n, j] = po.sum(v[k, i] * w[k, j], (k, i), where=k <= n)
        return y

    v, w = numbers(0, 20, 3), numbers(1, 20, 4)
    assert_array_equal(op(v, w), np.cumsum(v.sum(1)[:, None] * w, 0))
    assert is_stepped(op, N=20, K=3, L=4)


def test_what_is_no_prefix_stays_as_it_is() -> None:
    @po.op
    def op(x: f64[N, N], z: f64[N]):
        n, a, c, d = po.index("n", extent=N), *po.tensors("a c d")
        a[n] = po.sum(x[n, k] * z[k], k, where=k <= n)  # each with terms of its own
        c[n] = po.sum(z[k], k, where=2 * k <= n)
        d[n] = po.where(n < N - 3, po.sum(z[k], k, where=k <= n), 0)
        return a, c, d

    assert not is_stepped(op, N=512)


def test_prefixes_that_end_at_a_quotient_are_made_for_each_remainder() -> None:
    @po.op
    def op(z: f64[N]):
        n, b = po.index("n", extent=N), po.tensor("b")
        b[n] = po.sum(z[k], k, where=k <= n // 2)
        return b

    z = numbers(0, 600)
    assert_array_equal(op(z), np.cumsum(z)[np.arange(600) // 2])
    assert is_stepped(op, N=600)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("seed", range(12))
def test_random_prefixes(seed: int) -> None:
    """Two reductions in an expression, each with its own direction, beside sums that are no prefix."""
    random = Random(seed)
    signs = [random.choice((1, -1)) for _ in range(4)]
    shifts = [random.randint(-3, 8) for _ in range(2)]
    names = [random.choice(("sum", "max", "min")) for _ in range(2)]

    @po.op(dynamic=random.random() < 0.5, numerics=random.choice(("default", "strict")))
    def op(x: f64[M, N], z: f64[N]):
        y, n = po.tensor("y"), po.index("n", extent=N)
        first, second = (
            REDUCED[names[s]](x[i, k] + s, k, where=signs[2 * s] * k <= signs[2 * s + 1] * n + shifts[s])
            for s in (0, 1)
        )
        y[i, n] = first - second * z[n] + po.sum(x[i, l], l, where=l <= i) + first
        return y

    for shape in ((3, 9), (1, 1), (4, 17), (2, 0)):
        x, z = numbers(seed, *shape), numbers(seed + 1, shape[1])
        assert_array_equal(op(x, z), op.reference(x, z))
