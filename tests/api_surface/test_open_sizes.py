"""Ops whose sizes stay symbolic: slices, subscripts from the end, periodic recurrences, strides, and the extents of
local tensors, which are asked for before ranges are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import polyopt as po
from polyopt import f32, f64

M, N, T = po.sizes("M N T")
i, j, k = po.indices("i j k")
RANDOM = np.random.default_rng(0)


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

    kernels = []
    with po.settings.override(cache_dir=tmp_path):
        for n in range(50, 56):
            x = RANDOM.standard_normal((4, n)).T
            assert_array_equal(op(x), x * 3.25)
            kernels.append({path.name for path in tmp_path.rglob("*") if path.is_file()})
    assert kernels[0], "the first call stores its kernel, and what the runtime needs if it is the first of the process"
    assert all(later == kernels[0] for later in kernels)


def test_what_follows_a_join_stays_dynamic(caplog: pytest.LogCaptureFixture) -> None:
    @po.op(dynamic=True)
    def op(x: f64[N, 8], token: f64[8]):
        y = po.concatenate([token.reshape(1, 8), x], axis=0)
        return y.reshape(N + 1, 2, 4)

    for count in (4, 5):
        x, token = RANDOM.standard_normal((count, 8)), RANDOM.standard_normal(8)
        assert_array_equal(op(x, token), np.concatenate([token[None], x]).reshape(-1, 2, 4))
    assert not caplog.records


# --- the extents of local tensors -------------------------------------------------------------------------------------


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
