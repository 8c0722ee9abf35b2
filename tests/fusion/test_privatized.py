"""Scattered sums that are shared out: which ones, into how many copies, and that they give what they gave."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import BoundsError, Op, f16, f32, f64, i8, i32
from polyopt.fusion import privatized
from polyopt.runtime import pool
from polyopt.target import Target, preset, resolve

B, D, K, M, N = po.sizes("B D K M N")
b, d, i, j, k = po.indices("b d i j k")
i_part = po.index("i_part")
RANDOM = np.random.default_rng(0)


def sums(at: i32[N], x: f32[N]) -> object:
    h = po.tensor("h", shape=(16,))
    h[at[i]] += x[i]
    return h


histogram, in_order = po.op(sums), po.op(numerics="strict")(sums)


@po.op(numerics="strict")
def counts(at: i32[N]) -> object:
    h = po.tensor("h", shape=(16,), dtype=i32)
    h[at[i]] += 1
    return h


@po.op
def products(at: i32[N], x: f64[N]) -> object:
    h = po.tensor("h", shape=(16,))
    h[at[i]] *= x[i]
    return h


@po.op
def halves(at: i32[N], x: f16[N]) -> object:
    h = po.tensor("h", shape=(16,), dtype=f16)
    h[at[i]] += x[i]
    return h


@po.op
def onto_others(at: i32[N], to: i8[M], x: f64[N], y: f64[M], start: f64[16]) -> object:
    """Two scatters and a sum onto a definition, in two dimensions, read by another equation."""
    h, z = po.tensor("h", shape=(16, 3)), po.tensor("z")
    h[k, j] = start[k]
    h[at[i], at[i] % 3] += x[i]
    h[2, to[j] % 3] += y[j]
    h[k, 1] += start[k]
    z[k] = po.sum(h[k, j], j)
    return h, z


@po.op
def conditions(at: i32[M, N], x: f64[M, N]) -> object:
    """The lower triangle of every third column, edges repeated; an axis is called as the one over shares would be."""
    h, clamped = po.tensor("h", shape=(16,)), x.clamp()
    h[at[i, i_part]] += po.when((i_part <= i) & (i_part % 3 == 0), clamped[i, i_part + 2] + i)
    return h


@po.op
def of_sums(at: i32[N], x: f64[N, M]) -> object:
    h = po.tensor("h", shape=(16,))
    h[at[i]] += po.sum(x[i, i_part] * x[i, i_part], i_part, where=i_part <= i)
    return h


@po.op
def two_passes(first: i32[N], second: i32[16], x: f64[N]) -> object:
    """One scatter of another's results."""
    g, h = po.tensor("g", shape=(16,)), po.tensor("h", shape=(4,))
    g[first[i]] += x[i]
    h[second[k]] += g[k]
    return g, h


@po.op
def batches(at: i32[B, N], x: f64[B, N]) -> object:
    h = po.tensor("h", shape=(x.shape[0], 16))
    h[b, at[b, i]] += x[b, i]
    return h


@po.op
def rows(at: i32[N], x: f64[N, D]) -> object:
    h = po.tensor("h", shape=(16, x.shape[1]))
    h[at[i], d] += x[i, d]
    return h


@po.op
def chain(at: i32[N], x: f64[N]) -> object:
    """Every sum reads what was scattered before."""
    h, t = po.tensor("h", shape=(x.shape[0] + 1, 16)), po.index("t", extent=x.shape[0])
    h[0, k] = po.cast(1, f64)
    h[t + 1, at[t]] += x[t] * po.sum(h[t, k], k)
    return h


def places(*shape: int, below: int = 16) -> Any:
    return RANDOM.integers(0, below, shape).astype(np.int32)


def numbers(*shape: int, dtype: Any = np.float64) -> Any:
    return RANDOM.integers(-8, 9, shape).astype(dtype)


def added(shape: tuple[int, ...], at: Any, values: Any, dtype: Any = np.float64) -> Any:
    result = np.zeros(shape, dtype)
    np.add.at(result, at, values)
    return result


def multiplied(at: Any, values: Any) -> Any:
    result = np.ones(16)
    np.multiply.at(result, at, values)
    return result


def onto(at: Any, to: Any, x: Any, y: Any, start: Any) -> Any:
    h = np.repeat(start[:, None], 3, axis=1)
    np.add.at(h, (at, at % 3), x)
    np.add.at(h, (2, to % 3), y)
    h[:, 1] += start
    return h, h.sum(1)


def triangle(at: Any, x: Any) -> Any:
    row, column = np.nonzero((np.tri(*x.shape) > 0) & (np.arange(x.shape[1]) % 3 == 0))
    return added((16,), at[row, column], x[row, np.minimum(column + 2, x.shape[1] - 1)] + row)


def again(first: Any, second: Any, x: Any) -> Any:
    g = added((16,), first, x)
    return g, added((4,), second, g)


def case(op: Op, expected: Any, *arguments: Any) -> Any:
    return op, arguments, expected(*arguments)


SIGNS = 2.0 ** RANDOM.integers(-1, 2, 1000)
CASES: dict[str, tuple[Op, tuple[Any, ...], Any]] = {
    "sums": case(histogram, lambda at, x: added((16,), at, x), places(1000), numbers(1000, dtype=np.float32)),
    "fewer terms than copies": case(
        histogram, lambda at, x: added((16,), at, x), places(5), numbers(5, dtype=np.float32)
    ),
    "counts": case(counts, lambda at: added((16,), at, 1), places(1003)),
    "products": case(products, multiplied, places(1000), SIGNS),
    "halves": case(halves, lambda at, x: added((16,), at, x), places(1000), numbers(1000, dtype=np.float16)),
    "onto other definitions": case(
        onto_others, onto, places(900), places(301).astype(np.int8), numbers(900), numbers(301), numbers(16)
    ),
    "conditions and edges": case(conditions, triangle, places(37, 29), numbers(37, 29)),
    "sums of sums": case(
        of_sums, lambda at, x: added((16,), at, (np.tri(*x.shape) * x * x).sum(1)), places(333), numbers(333, 7)
    ),
    "a scatter of a scatter": case(two_passes, again, places(500), places(16, below=4), numbers(500)),
    "batches": case(
        batches, lambda at, x: np.stack([added((16,), *row) for row in zip(at, x)]), places(3, 200), numbers(3, 200)
    ),
    "rows": case(rows, lambda at, x: added((16, x.shape[1]), at, x), places(200), numbers(200, 5)),
}
"""Operators, arguments, results; the sums are exact in any order."""


@pytest.fixture
def copies_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small sums are worth sharing out."""
    monkeypatch.setattr(privatized, "LEAST_UPDATES", 4)
    monkeypatch.setattr(privatized, "UPDATES_PER_COPY", 1 / 64)


def planned(op: Op, sizes: dict[str, Any], target: Target | None = None, *, reorder: bool = True) -> Any:
    return privatized.decide(op.lower(**sizes).program, target or preset("avx2"), reorder=reorder)


@pytest.mark.usefixtures("copies_cost_nothing")
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_numpy(name: str) -> None:
    op, arguments, expected = CASES[name]
    lowering = op.lower(*arguments)
    assert not lowering.fallback and "_partial" in str(lowering.loops)
    results = op(*arguments)
    several = isinstance(expected, tuple)
    for got, wanted in zip(results if several else (results,), expected if several else (expected,), strict=True):
        np.testing.assert_array_equal(got, np.asarray(wanted, got.dtype))


def test_copies_are_filled_in_parallel_and_added_up_once() -> None:
    lowering = histogram.lower(N=1_000_000)
    assert "h: scatters into 16 copies, 62500 terms along i each" in str(lowering.fusion)
    assert [loop.name for loop in lowering.mapping.parallel] == ["d0"]
    assert str(lowering.loops).count("for ") == 4  # over shares, to clear one, to fill it, to add all up


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        (histogram, {"N": 1 << 15}),
        (rows, {"N": 1 << 20, "D": 64}),
        (batches, {"B": 64, "N": 1 << 16}),
        (chain, {"N": 1 << 16}),
    ],
    ids=["few terms", "rows that threads share", "batches that threads share", "a recurrence"],
)
def test_what_would_gain_nothing_stays_whole(op: Op, sizes: dict[str, int]) -> None:
    assert planned(op, sizes) == ()


def test_copies_as_large_as_what_fills_them_are_not_made() -> None:
    @po.op
    def sparse(at: i32[N], x: f32[N]) -> object:
        h = po.tensor("h", shape=(1 << 17,))
        h[at[i]] += x[i]
        return h

    assert planned(sparse, {"N": 1 << 20}) == ()
    (plan,) = planned(sparse, {"N": 1 << 22})
    assert plan.parts == 8


def test_floats_keep_their_order_with_strict_numerics() -> None:
    assert planned(histogram, {"N": 1 << 20}, reorder=False) == ()
    assert "_partial" not in str(in_order.lower(N=1 << 20).loops)
    assert "_partial" in str(counts.lower(N=1 << 20).loops)


def test_neighboring_threads_of_a_gpu_take_neighboring_terms() -> None:
    (plan,) = planned(histogram, {"N": 1_000_000}, resolve("sm_90"))
    assert plan.interleaved and plan.parts >= 1024 and str(plan.point("p")) == f"{plan.parts}*i + p"


def test_copies_fit_the_memory_of_a_gpu() -> None:
    @po.op
    def nodes(at: i32[N], x: f32[N, D]) -> object:
        h = po.tensor("h", shape=(1 << 20, x.shape[1]))
        h[at[i], d] += x[i, d]
        return h

    (plan,) = planned(nodes, {"N": 1 << 24, "D": 4}, resolve("sm_90"))
    assert plan.parts * (1 << 20) * 4 * 4 <= privatized.MOST_COPY_BYTES


def test_results_do_not_depend_on_threads() -> None:
    at, x = places(1 << 18), RANDOM.random(1 << 18, np.float32)
    before, found = pool.num_threads(), set()
    try:
        for count in (1, 2, 5):
            pool.set_num_threads(count)
            found.add(histogram(at, x).tobytes())
    finally:
        pool.set_num_threads(before)
    assert len(found) == 1


def test_an_error_names_what_the_user_wrote() -> None:
    """The subscript is that of the second dimension of a copy."""
    at, x = places(1 << 18), numbers(1 << 18, dtype=np.float32)
    at[100_000] = 16
    assert "_partial" in str(histogram.lower(at, x).loops)
    with pytest.raises(BoundsError, match="subscript 0 of 'h' is 16, outside its extent 16"):
        histogram(at, x)
