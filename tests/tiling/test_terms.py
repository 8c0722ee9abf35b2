"""Sums so long that a block of the packed operand outgrows the second cache: a block of their terms at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64
from polyopt.target import preset
from polyopt.tiling import pack
from tests.poly import running

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")
MACHINE = replace(preset("avx2"), l1_bytes=16 << 10, l2_bytes=64 << 10)


@po.op
def product(x: f32[M, K], y: f32[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def turned(x: f32[K, M], y: f32[N, K]):
    z = po.tensor("z")
    z[i, j] += x[k, i] * y[j, k]
    return z


@po.op
def relu_of_product(x: f32[M, K], y: f32[K, N], bias: f32[N]):
    s, z = po.tensors("s z")
    s[i, j] += x[i, k] * y[k, j]
    z[i, j] = po.maximum(s[i, j] + bias[j], 0)
    return z


@po.op
def two_products(x: f32[M, K], y: f32[K, N], w: f32[K, N]):
    s, t, z = po.tensors("s t z")
    s[i, j] += x[i, k] * y[k, j]
    t[i, j] += x[i, k] * w[k, j]
    z[i, j] = s[i, j] + t[i, j]
    return z


def test_a_block_of_all_terms_that_fits_is_copied_at_once() -> None:
    (packing,) = product.lower(M=40, N=512, K=128, target=MACHINE)._copies.panels.packings
    assert packing.terms is None


def test_long_sums_pass_by_in_blocks_of_columns_and_of_terms() -> None:
    lowering = product.lower(M=40, N=300, K=1000, target=MACHINE)
    (packing,) = lowering._copies.panels.packings
    assert packing.terms is not None and packing.terms[0] == "k"
    block_bytes = packing.block * packing.terms[1] * 4
    assert not lowering.fallback and 0 < 2 * block_bytes <= MACHINE.l2_bytes
    assert "terms along k at a time" in str(lowering.fusion)
    assert [loop.name for loop in lowering.mapping.parallel] == ["j_tile"]


@pytest.mark.parametrize(
    ("op", "columns"), [(product, 64), (product, 40), (turned, 64), (relu_of_product, 64), (two_products, 64)]
)
def test_blocks_of_terms_add_up_to_the_same(op: po.Op, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last block has fewer, and where one block has all columns."""
    monkeypatch.setattr(pack, "BLOCK_COLUMNS", (16,))
    machine, terms = replace(MACHINE, l1_bytes=2 << 10, l2_bytes=4 << 10), 41
    numbers = np.random.default_rng(0)
    shapes = (33, terms), (terms, columns), (terms, columns)
    x, y, w = (numbers.integers(-3, 4, shape).astype(np.float32) for shape in shapes)
    bias = numbers.integers(-3, 4, columns).astype(np.float32)
    given: dict[po.Op, dict[str, Any]] = {
        product: {"x": x, "y": y},
        turned: {"x": x.T.copy(), "y": y.T.copy()},
        relu_of_product: {"x": x, "y": y, "bias": bias},
        two_products: {"x": x, "y": y, "w": w},
    }
    wanted = {product: x @ y, turned: x @ y, relu_of_product: np.maximum(x @ y + bias, 0), two_products: x @ y + x @ w}
    lowering = op.lower(*given[op].values(), target=machine)
    assert not lowering.fallback and any(p.terms for p in lowering._copies.panels.packings)
    (result,) = running.run(lowering.loops, given[op]).values()
    np.testing.assert_array_equal(result, wanted[op])


def test_kernels_with_blocks_of_terms_are_right() -> None:
    numbers = np.random.default_rng(0)
    x, y = numbers.standard_normal((70, 9001), np.float32), numbers.standard_normal((9001, 300), np.float32)
    np.testing.assert_allclose(product(x, y), x @ y, rtol=1e-3, atol=1e-2)


def _numbers(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float64)


def test_what_long_sums_start_from_may_run_over_other_axes(caplog: pytest.LogCaptureFixture) -> None:
    """Blocks of columns are those of the start's own subscript; it was given the contraction's axis: a KeyError."""
    other, high = po.index("s"), po.index("high", extent=1)

    @po.op
    def renamed(x: f64[M, K], w: f64[K, N], c: f64[N]):
        y = po.tensor("y")
        y[i, other] = c[other]
        y[i, j] += x[i, k] * w[k, j]
        return y

    @po.op
    def shifted(x: f64[M, K], w: f64[K, N], c: f64[N + 1]):
        y = po.tensor("y")
        y[i, other] = c[other]
        y[i, j + 1] += x[i, k] * w[k, j]
        return y

    @po.op
    def two_axes(x: f64[M, K], w: f64[K, N]):
        y = po.tensor("y")
        y[i, 300 * high + j] += x[i, k] * w[k, j]
        return y

    x, w, c = _numbers(33, 2500), _numbers(2500, 289), _numbers(290)
    np.testing.assert_array_equal(renamed(x, w, c[1:]), x @ w + c[1:])
    np.testing.assert_array_equal(shifted(x, w, c), np.concatenate([np.full((33, 1), c[0]), x @ w + c[1:]], 1))
    np.testing.assert_array_equal(two_axes(x, w), x @ w)
    lowerings = [op.lower(M=33, K=2500, N=289, target=MACHINE) for op in (renamed, shifted, two_axes)]
    blocks = ["terms along k at a time" in str(lowering.fusion) for lowering in lowerings]
    assert blocks == [True, True, False], "of two axes, a zero's own ones do not say for which column it is"
    assert not any(lowering.fallback for lowering in lowerings)
    assert not caplog.records
