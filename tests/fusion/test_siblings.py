"""Definitions from the same operands share a loop, where neither waits for the other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f16, f32, f64, i8, i32
from polyopt.poly.tree import loops

Array = np.ndarray[Any, Any]

M, N = po.sizes("M N")
i, j = po.indices("i j")


@po.op
def rotated(x: f32[M, 2 * N], c: f32[M, N], s: f32[M, N]):
    y = po.tensor("y")
    y[i, 2 * j] = x[i, 2 * j] * c[i, j] - x[i, 2 * j + 1] * s[i, j]
    y[i, 2 * j + 1] = x[i, 2 * j] * s[i, j] + x[i, 2 * j + 1] * c[i, j]
    return y


@po.op
def forces(p: f64[N, 3], m: f64[N]):
    """Three sums over one loop, which compute the distance once."""
    f = po.tensor("f")
    apart = [p[j, axis] - p[i, axis] for axis in range(3)]
    squared = apart[0] ** 2 + apart[1] ** 2 + apart[2] ** 2 + 1.0
    for axis in range(3):
        f[i, axis] = po.sum(m[j] * apart[axis] / (squared * po.sqrt(squared)), j)
    return f


@po.op
def waiting(x: i32[N]):
    """The second half is computed from the first one, by way of a third tensor that turns it around."""
    y, z, own = po.tensor("y", shape=(2 * N,)), po.tensor("z"), po.index("own", extent=N)
    y[own] = x[own] * 3 + 1
    z[own] = po.max(y[j] * po.where(j >= own, 1, 0), j, where=j < N)
    y[N + own] = x[own] * z[N - 1 - own]
    return y


@po.op
def strangers(x: i32[N], z: i32[N]):
    y = po.tensor("y", shape=(2, N))
    y[0, j] = x[j] + 1
    y[1, j] = z[j] + 1
    return y


@po.op
def scattering(x: f32[N], ids: i32[N]):
    """Lanes and threads of the first row would be lost to what meets in the second one."""
    y = po.tensor("y", shape=(2, N))
    y[0, j] = po.exp(x[j])
    y[1, ids[j]] += x[j]
    return y


@po.op
def totalled(x: f32[M, N]):
    y, own = po.tensor("y", shape=(M, N + 1)), po.index("own", extent=N)
    y[i, own] = x[i, own] * 2
    y[i, N] = po.sum(x[i, own], own)
    return y


@po.op
def of_different_lengths(x: i32[N]):
    y, own, other = po.tensor("y", shape=(2 * N - 1,)), po.index("own", extent=N), po.index("own", 1, N)
    y[own] = x[own] + 1
    y[N - 1 + other] = x[other] + 2
    return y


@po.op
def twice(x: i32[N], w: i32[N]):
    """Two sums that add to one element."""
    y = po.tensor("y")
    y[()] += x[j] * w[j]
    y[()] += x[j] * x[j] * w[j]
    return y


@po.op
def extremes(x: f32[M, N]):
    low, high = po.tensors("low high")
    low[i], high[i] = po.min(x[i, j], j), po.max(x[i, j], j)
    return low, high


def shared(lowered: Any, *arrays: str) -> list[tuple[str, ...]]:
    """The innermost loops with several statements that write arrays."""
    innermost = [loop for loop in loops(lowered.tree) if not any(loops(loop.body))]
    writers = {s.name for array in arrays for s in lowered.scop.writers(array) if s.reads}
    found = [tuple(name for name in loop.statements if name in writers) for loop in innermost]
    return [names for names in found if len(names) > 1]


@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 16), (5, 33)])
def test_a_rotation_loads_each_pair_once(m: int, n: int) -> None:
    random = np.random.default_rng(n)
    x, c, s = (random.integers(-3, 4, shape).astype(np.float32) for shape in ((m, 2 * n), (m, n), (m, n)))
    wanted = np.stack([x[:, ::2] * c - x[:, 1::2] * s, x[:, ::2] * s + x[:, 1::2] * c], -1).reshape(m, -1)
    np.testing.assert_array_equal(rotated(x, c, s), wanted)
    if n > 1:
        assert shared(rotated.lower(x, c, s), "y") == [("y", "y_1")]


@pytest.mark.parametrize("count", [1, 7, 40])
def test_the_parts_of_a_vector_share_what_they_have_in_common(count: int) -> None:
    random = np.random.default_rng(count)
    p, m = random.random((count, 3)), random.random(count)
    apart = p[None] - p[:, None]
    squared = (apart**2).sum(2) + 1
    wanted = (m[None, :, None] * apart / (squared * np.sqrt(squared))[..., None]).sum(1)
    np.testing.assert_allclose(forces(p, m), wanted, rtol=1e-12, atol=1e-14)
    if count > 1:
        assert [len(names) for names in shared(forces.lower(p, m), "f")] == [3]


def test_what_waits_or_reads_something_else_has_loops_of_its_own() -> None:
    x, z = np.arange(40, dtype=np.int32), np.arange(40, dtype=np.int32)[::-1].copy()
    for operator, arrays in ((waiting, (x,)), (strangers, (x, z)), (of_different_lengths, (x,)), (twice, (x, z))):
        np.testing.assert_array_equal(operator(*arrays), operator.reference(*arrays))
        assert not shared(operator.lower(*arrays), "y"), operator


@pytest.mark.parametrize("name", ["int8", "float16"])
def test_sums_of_narrow_products_keep_their_instructions(name: str) -> None:
    dtype = {"int8": i8, "float16": f16}[name]

    @po.op
    def two(x: dtype[M, N], v: dtype[N], w: dtype[N]):
        y, z = po.tensors("y z")
        y[i] += x[i, j] * v[j]
        z[i] += x[i, j] * w[j]
        return y, z

    random = np.random.default_rng(0)
    x, v, w = (random.integers(-3, 4, s).astype(name) for s in ((6, 40), 40, 40))
    for found, other in zip(two(x, v, w), (v, w), strict=True):
        np.testing.assert_array_equal(found, x.astype(np.int32) @ other.astype(np.int32))
    assert not shared(two.lower(x, v, w), "y", "z")


def test_contractions_stay_apart() -> None:
    k = po.index("k")

    @po.op
    def products(x: f32[M, N], v: f32[N, M], w: f32[N, M]):
        y, z = po.tensors("y z")
        y[i, k] += x[i, j] * v[j, k]
        z[i, k] += x[i, j] * w[j, k]
        return y, z

    random = np.random.default_rng(0)
    x, v, w = (random.integers(-3, 4, s).astype(np.float32) for s in ((20, 30), (30, 20), (30, 20)))
    for found, other in zip(products(x, v, w), (v, w), strict=True):
        np.testing.assert_array_equal(found, x @ other)
    assert not shared(products.lower(x, v, w), "y", "z")


def test_what_would_take_lanes_or_threads_has_loops_of_its_own() -> None:
    x = np.arange(40, dtype=np.float32) / 8
    ids = np.arange(40, dtype=np.int32) % 7
    found = scattering(x, ids)
    np.testing.assert_allclose(found, np.stack([np.exp(x), np.bincount(ids, x, 40)]), rtol=1e-6)
    rows = x.reshape(5, 8)
    np.testing.assert_array_equal(totalled(rows), np.concatenate([2 * rows, rows.sum(1, keepdims=True)], 1))
    assert not shared(scattering.lower(x, ids), "y") and not shared(totalled.lower(rows), "y")


@pytest.mark.parametrize("count", [5, 20, 50])
def test_no_more_stand_side_by_side_than_a_processor_follows(count: int) -> None:
    @po.op
    def multiples(x: i32[N], z: i32[N]):
        y = po.tensor("y", shape=(2 * count, N))
        for number in range(count):
            y[number, j] = x[j] * (number + 2)
            y[count + number, j] = z[j] * (number + 3)
        return y

    x, z = np.arange(30, dtype=np.int32), np.arange(30, dtype=np.int32) % 11
    factors = np.arange(count)[:, None]
    lowered = multiples.lower(x, z)
    np.testing.assert_array_equal(multiples(x, z), np.concatenate([x * (factors + 2), z * (factors + 3)]))
    assert max(map(len, shared(lowered, "y"))) == min(count, 8) and not lowered.fallback


def test_results_of_one_pass() -> None:
    x = np.random.default_rng(0).random((9, 70), np.float32)
    low, high = extremes(x)
    np.testing.assert_array_equal(low, x.min(1))
    np.testing.assert_array_equal(high, x.max(1))
    assert [len(names) for names in shared(extremes.lower(x), "low", "high")] == [2]


def test_symbolic_sizes_share_loops_too() -> None:
    found = shared(rotated.lower(), "y")
    assert found == [("y", "y_1")]
