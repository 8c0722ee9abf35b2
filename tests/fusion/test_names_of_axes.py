"""New axes of rewritten equations have names that nothing in them has, inner reductions included."""

from __future__ import annotations

import numpy as np
import pytest

import polyopt as po
from polyopt import f32

K, R = po.sizes("K R")
r = po.index("r")


def test_scattered_sums_leave_the_axes_of_inner_sums_alone() -> None:
    """The element of a gathered sum was called `h_0`, as the index of the sum inside: its numbers were wrong."""
    h, inner = po.index("h", 20), po.index("h_0", 4)

    @po.op
    def upsampled(v: f32[K], w: f32[R]) -> object:
        y = po.tensor("y")
        y[2 * h + r] += w[r] * po.sum(v[inner], inner)
        return y

    rng = np.random.default_rng(0)
    v, w = rng.integers(0, 9, 64).astype(np.float32), rng.integers(0, 9, 16).astype(np.float32)
    wanted = np.zeros(2 * 19 + 16, np.float32)
    for step in range(20):
        wanted[2 * step : 2 * step + 16] += w * v[:4].sum()
    np.testing.assert_array_equal(upsampled(v, w), wanted)


def test_scattered_sums_leave_the_range_of_inner_sums_alone() -> None:
    """The read that the inner index was moved to lay outside: no plan was legal."""
    h, inner = po.index("h", 20), po.index("h_0")

    @po.op
    def upsampled(v: f32[K], w: f32[R]) -> object:
        y = po.tensor("y")
        y[2 * h + r] += w[r] * po.sum(v[inner], inner)
        return y

    found = upsampled(np.ones(64, np.float32), np.ones(16, np.float32))
    assert found.sum() == 20 * 16 * 64 and found[0] == 64


def test_parts_of_a_sum_on_a_gpu_leave_the_axes_of_inner_sums_alone() -> None:
    """The parts were called `k_part`, and rows were read by the index of the sum inside."""
    k, inner = po.index("k"), po.index("k_part", 4)

    @po.op
    def weighed(x: f32[K, R], y: f32[K]) -> object:
        s = po.tensor("s")
        s[()] = po.sum(y[k] * po.sum(x[k, inner], inner), k)
        return s

    rewritten = weighed.lower(K=1 << 20, R=8, target="sm_80").rewritten
    for equation in rewritten.equations:
        names = [axis.name for axis in equation.bound_axes]
        assert len(names) == len(set(names))
    assert any("part_2" in axis.name for equation in rewritten.equations for axis in equation.axes)


def test_joined_axes_have_a_name_each(caplog: pytest.LogCaptureFixture) -> None:
    """`a` and `b_c`, `a_b` and `c` were both joined to `a_b_c`: the plain order was left, one nest a statement."""
    a, b, c, d = (po.index(name) for name in ("a", "b_c", "a_b", "c"))
    k = po.index("k")
    rows, columns, terms = po.sizes("P Q T")

    @po.op
    def gram(x: f32[rows, columns, terms]) -> object:
        s = po.tensor("s")
        s[a, b, c, d] += x[a, b, k] * x[c, d, k]
        return s

    x = np.random.default_rng(0).integers(0, 9, (6, 8, 16)).astype(np.float32)
    with caplog.at_level("WARNING", logger="polyopt"):
        np.testing.assert_array_equal(gram(x), np.einsum("abk,cdk->abcd", x, x))
    assert not caplog.messages
    report = str(gram.lower(x).report())
    assert report.count("run as one axis") == 1
