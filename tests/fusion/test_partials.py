"""Long sums with few results as partial sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import compilation, f32, i8
from polyopt.dsl.affine import constant
from polyopt.fusion import partials
from polyopt.picks import Pick
from polyopt.runtime import pool
from polyopt.target import preset
from tests.poly import running

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")
SMALL = replace(preset("avx2"), l1_bytes=16 << 10, l2_bytes=128 << 10)


def plain_product(x: f32[M, K], y: f32[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


product, product_in_order = po.op(plain_product), po.op(numerics="strict")(plain_product)


@po.op
def relu_of_product(x: f32[M, K], y: f32[N, K], bias: f32[N]):
    s, z = po.tensors("s z")
    s[i, j] += x[i, k] * y[j, k]
    z[i, j] = po.maximum(s[i, j] + bias[j], 0)
    return z


@po.op
def product_of_bytes(x: i8[M, K], y: i8[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def rows(x: f32[M, K], v: f32[K]):
    z = po.tensor("z")
    z[i] += x[i, k] * v[k]
    return z


@po.op
def all_pairs(x: f32[M], y: f32[N]):
    z = po.tensor("z")
    z[i, j] += x[i] * y[j]
    return z


def planned(op: po.Op, target: Any = SMALL, **sizes: int) -> tuple[partials.PartialSum, ...]:
    return partials.decide(op.lower(**sizes, target=target).program, target)


def test_a_long_sum_with_few_results_is_split() -> None:
    (plan,) = planned(product, M=16, N=16, K=4096)
    assert (plan.axis, plan.parts, plan.terms) == ("k", constant(16), 256)
    lowering = product.lower(M=16, N=16, K=4096, target=SMALL)
    assert not lowering.fallback and "16 partial sums of 256 terms along k" in str(lowering.fusion)
    assert any(loop.name == "k_part" for loop in lowering.mapping.parallel)


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        (product, {"M": 16, "N": 16, "K": 960}),
        (product, {"M": 64, "N": 64, "K": 4096}),
        (product, {"M": 7, "N": 32, "K": 4096}),
        (rows, {"M": 16, "K": 4096}),
        (product_of_bytes, {"M": 16, "N": 16, "K": 1 << 15}),
    ],
    ids=["short", "results fill a cache", "few rows use an element", "an element is used once", "converted"],
)
def test_a_sum_that_would_gain_nothing_is_left(op: po.Op, sizes: dict[str, int]) -> None:
    assert planned(op, **sizes) == ()


def test_operands_that_stay_in_the_second_cache_are_left() -> None:
    assert planned(product, replace(SMALL, l2_bytes=4 << 20), M=16, N=16, K=4096) == ()


def test_strict_numerics_keep_the_order_of_terms() -> None:
    lowering = product_in_order.lower(M=16, N=16, K=4096, target=SMALL)
    assert not lowering.fallback and "partial" not in str(lowering.rewritten)


@pytest.mark.parametrize("terms", [80, 100, 127])
@pytest.mark.parametrize("op", [product, relu_of_product])
def test_partial_sums_add_up_to_the_same(op: po.Op, terms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the last one has fewer terms."""
    monkeypatch.setattr(partials, "LEAST_TERMS", 8)
    monkeypatch.setattr(partials, "WHOLE", 4)
    monkeypatch.setattr(partials, "MOST_PARTS", 4)
    numbers = np.random.default_rng(0)
    x, y = (numbers.integers(-3, 4, shape).astype(np.float32) for shape in ((17, terms), (terms, 16)))
    bias = numbers.integers(-3, 4, 16).astype(np.float32)
    args = {"x": x, "y": y} if op is product else {"x": x, "y": y.T.copy(), "bias": bias}
    lowering = op.lower(*args.values(), target=replace(SMALL, l2_bytes=17 << 10))
    assert not lowering.fallback and "4 partial sums" in str(lowering.fusion)
    (result,) = running.run(lowering.loops, args).values()
    np.testing.assert_array_equal(result, x @ y if op is product else np.maximum(x @ y + bias, 0))


@pytest.mark.parametrize("parts", [2, 4, 16])
@pytest.mark.parametrize("op", [product, relu_of_product])
def test_picks_split_what_would_gain_nothing(op: po.Op, parts: int) -> None:
    """So the tuner tries other numbers of parts, and random programs, which are small, have parts at all."""
    numbers = np.random.default_rng(0)
    x, y = (numbers.integers(-3, 4, shape).astype(np.float32) for shape in ((5, 19), (19, 7)))
    bias = numbers.integers(-3, 4, 7).astype(np.float32)
    args = {"x": x, "y": y} if op is product else {"x": x, "y": y.T.copy(), "bias": bias}
    tensor = "z" if op is product else "s"
    sizes = {"M": 5, "N": 7, "K": 19}
    pick = Pick(f"parts of the sums of {tensor}", str(parts))
    lowering = compilation.lower_with(op.problem(**sizes), (pick,))
    assert not lowering.fallback and f"{-(-19 // -(-19 // parts))} partial sums of" in str(lowering.fusion)
    (result,) = running.run(lowering.loops, args).values()
    np.testing.assert_array_equal(result, x @ y if op is product else np.maximum(x @ y + bias, 0))


def test_an_accumulation_of_one_term_stays() -> None:
    assert planned(all_pairs, M=64, N=64) == ()
    x, y = np.arange(5, dtype=np.float32), np.arange(3, dtype=np.float32)
    np.testing.assert_array_equal(all_pairs(x, y), np.outer(x, y))


def test_the_kernel_adds_up_the_same_on_any_number_of_threads() -> None:
    numbers = np.random.default_rng(0)
    x, y = (numbers.standard_normal(shape, np.float32) for shape in ((64, 8192), (8192, 64)))
    before = pool.num_threads()
    results = []
    try:
        for threads in (1, 2, 3):
            po.set_num_threads(threads)
            results.append(product(x, y))
    finally:
        po.set_num_threads(before)
    np.testing.assert_allclose(results[0], x @ y, rtol=1e-3, atol=1e-3)
    assert all(np.array_equal(results[0], result) for result in results)
