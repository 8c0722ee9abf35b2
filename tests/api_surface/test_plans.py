"""Ops that led to a plan that failed, was given up, or took minutes to make."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import polyopt as po
from polyopt import f32, f64

A, B, K, M, N = po.sizes("A B K M N")
i, j, k = po.indices("i j k")
RANDOM = np.random.default_rng(0)


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


def test_a_kernel_that_llvm_would_take_minutes_for_is_planned_plainly(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twenty cases of a product, written out in every row of a tile: 29,000 lines, where the plain order has 8,600."""
    monkeypatch.setattr("polyopt.pipeline.MOST_LINES", 5_000)

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


def test_a_kernel_of_many_steps_may_be_long_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three layers of a transformer had 32,000 lines, and so the plainest of plans; no function had a third of them."""

    @po.op
    def layers(x: f32[M, M]):
        for _ in range(4):
            x = po.maximum(x @ x, 0)
        return x

    text = layers.lower(M=513).source("llvm")
    longest = max(function.count("\n") for function in text.split("define "))
    most = longest * 11 // 10
    monkeypatch.setattr("polyopt.pipeline.MOST_LINES", most)
    assert 2 * most < text.count("\n")
    assert layers.lower(M=515).fallback == ""
    monkeypatch.setattr("polyopt.pipeline.MOST_LINES", longest // 2)
    assert "is too long" in layers.lower(M=517).fallback


def test_a_long_axis_is_planned_as_fast_as_a_short_one() -> None:
    @po.op
    def product(x: f64[M, K], w: f64[K, N]):
        y = po.tensor("y")
        y[i, j] += x[i, k] * w[k, j]
        return y

    start = time.process_time()
    product.lower(M=64, N=10**12, K=64).report()
    assert time.process_time() - start < 60, "a list of as many blocks took minutes, and then all memory"


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


@pytest.mark.parametrize("dtype", ["i8", "u16", "f16"])
def test_columns_of_narrow_elements_are_not_stored_all_at_once(dtype: str) -> None:
    """LLVM took 89 seconds for 1,000 such stores of one block: no instruction of AVX2 scatters bytes or masks them."""

    def op(x):
        a, y = po.tensors("a y")
        a[j] = po.max(x[k, j], k)
        y[i, j] = x[i, j] - a[j]
        return y

    op.__annotations__ = {"x": getattr(po, dtype)[M, N]}
    x = RANDOM.integers(0, 50, (512, 3)).astype(getattr(po, dtype).numpy)
    compiled = po.op(op)
    text = compiled.lower(M=512, N=3, target="avx2").module.text
    assert text.count("call void @llvm.masked.store") < 20, "49 with all rows written out"
    assert_array_equal(compiled(x), x - x.max(0))


def test_hundreds_of_equations_are_planned_as_few_are(caplog: pytest.LogCaptureFixture) -> None:
    @po.op
    def op(x: f32[N]):
        results = po.tensors(" ".join(f"y{n}" for n in range(250)))
        for n, y in enumerate(results):
            y[i] = x[i] * n
        return results

    x = RANDOM.random(9).astype("f4")
    assert_array_equal(op(x)[-1], x * np.float32(249))
    assert not caplog.records


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("is_guarded", [False, True])
def test_strict_sums_over_seven_axes_are_planned(
    *, is_dynamic: bool, is_guarded: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Their terms keep an order, row by row: many distances to measure."""
    axes = po.indices("a b c d e f g")
    sizes = po.sizes("A B C D E F G")

    @po.op(numerics="strict", dynamic=is_dynamic)
    def op(x: f32[sizes]):
        return po.sum(x[axes], tuple(reversed(axes)), where=axes[0] + axes[1] < 4 if is_guarded else None)

    x = RANDOM.integers(-3, 4, (2, 5, 4, 3, 2, 3, 2)).astype("f4")
    kept = np.add.outer(range(2), range(5)) < 4
    assert op(x) == (x[kept] if is_guarded else x).sum()
    assert not caplog.records
