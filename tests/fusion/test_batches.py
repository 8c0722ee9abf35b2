"""Batched recurrences: rows go through the steps together where a sum in them reads the same for all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import polyopt as po
from polyopt import f32, f64

B, D, E, N, T = po.sizes("B D E N T")
b, d, k, i, j = po.indices("b d k i j")
t = po.index("t", extent=T)
Array = np.ndarray[Any, Any]


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


@po.op
def steps(x: f64[T, B, D], w: f64[D, D], start: f64[B, D]):
    u = po.tensor("u")
    u[0, b, d] = start[b, d]
    u[t + 1, b, d] = po.maximum(x[t, b, d] + po.sum(u[t, b, k] * w[k, d], k), 0) - 2 * x[t, b, d]
    return u[T]


@po.op
def two_states(x: f64[T, B, D], w: f64[D, E], v: f64[E, D]):
    u, h = po.tensors("u h")
    e = po.index("e")
    u[0, b, d] = 0 * x[0, b, d]
    h[t, b, e] = po.sum(u[t, b, d] * w[d, e], d)
    u[t + 1, b, d] = po.maximum(po.sum(h[t, b, e] * v[e, d], e), x[t, b, d]) - 3
    return u[T]


@po.op
def powers(a: f32[N, N]):
    u, s = po.tensor("u"), po.index("s", extent=3)
    u[0, i, j] = a[i, j]
    u[s + 1, i, j] = po.sum(u[s, i, k] * a[k, j], k)
    return u[3]


@po.op
def along(x: f64[T, B], w: f64[B]):
    """No sum: nothing is read again."""
    u = po.tensor("u")
    u[0, b] = w[b]
    u[t + 1, b] = u[t, b] * 2 - x[t, b]
    return u[T]


@po.op
def product(x: f64[B, D], w: f64[D, E]):
    return x @ w


def numbers(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float64)


def stepped(x: Array, w: Array, start: Array) -> Array:
    u = start
    for row in x:
        u = relu(row + u @ w) - 2 * row
    return u


@pytest.mark.parametrize("rows", [1, 7, 8, 15, 16, 17, 33, 50])
def test_batches_of_all_lengths(rows: int) -> None:
    x, w, start = numbers(0, 3, rows, 5), numbers(1, 5, 5), numbers(2, rows, 5)
    assert_array_equal(steps(x, w, start), stepped(x, w, start))
    assert_array_equal(po.op(dynamic=True)(steps.__wrapped__)(x, w, start), stepped(x, w, start))
    v, z = numbers(3, 5, 4), numbers(4, 4, 5)
    u = 0 * x[0]
    for row in x:
        u = np.maximum(u @ v @ z, row) - 3
    assert_array_equal(two_states(x, v, z), u)
    a = numbers(5, rows, rows).astype(np.float32)
    assert_array_equal(powers(a), a @ a @ a @ a)


def test_rows_share_what_a_step_reads() -> None:
    loops = str(steps.lower(T=100, B=64, D=128, target="avx512").loops)
    assert "parallel for b_batch in range(4)" in loops
    assert "for b_tile in range(b_batch*16" in loops, "a register tile of rows"
    assert "u: f64[2, 64, 128]" in loops, "two steps at a time"
    report = str(steps.lower(T=100, B=64, D=128, target="avx512").report())
    assert "16 points of b go through the steps together, and read the same" in report


def test_nothing_is_batched_without_need() -> None:
    assert "b_batch" not in str(along.lower(T=100, B=64).loops)
    assert "b_batch" not in str(steps.lower(T=100, B=4, D=128).loops), "too few rows"
    assert "b_batch" not in str(steps.lower(T=100, B=64, D=128, target="sm_90").loops)
    strict = po.op(numerics="strict")(product.__wrapped__)
    assert "batch" not in str(strict.lower(B=64, D=128, E=32).loops), "terms in order are no recurrence"


@pytest.mark.parametrize(("rows", "lanes"), [(1, 16), (63, 17), (64, 16), (40, 17), (64, 3)])
def test_rows_that_lie_beside_each_other_are_read_together(rows: int, lanes: int) -> None:
    """A state of a few lanes for each row: 64 rows of 64 bytes are a page, and each step reads another one."""

    @po.op
    def states(a: f32[T, D, E], x: f32[T, D, E], c: f32[T, E]):
        h, y, e = po.tensor("h"), po.tensor("y"), po.index("e", extent=E)
        step, s = po.index("step", extent=T), po.index("s", 0, T - 1)
        h[0, d, e] = x[0, d, e]
        h[s + 1, d, e] = a[s + 1, d, e] * h[s, d, e] - x[s + 1, d, e]
        y[step, d] = po.sum(h[step, d, e] * c[step, e], e)
        return y

    random = np.random.default_rng(rows)
    a, x = (random.integers(-1, 2, (9, rows, lanes)).astype(np.float32) for _ in range(2))
    c = random.integers(-2, 3, (9, lanes)).astype(np.float32)
    h, wanted = x[0], []
    for step in range(9):
        h = a[step] * h - x[step] if step else h
        wanted.append(h @ c[step])
    assert_array_equal(states(a, x, c), wanted)
    beside = "go through the steps together, and read what lies side by side" in str(states.lower(a, x, c).fusion)
    assert beside == (rows == 64 and lanes == 16)
