"""The dtype of a tensor that is computed from itself: what its other definitions have, and what the operations make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import DType, bool_, f16, f32, f64, i8, i32, i64, u8, u32, u64

N, M = po.sizes("N M")
i, j, k = po.indices("i j k")
t = po.index("t", extent=3)


@pytest.mark.parametrize("mask", [bool_, i8])
@pytest.mark.parametrize("values", [f16, f32, f64, i32, u32, i64])
@pytest.mark.parametrize("is_added", [False, True])
def test_a_masked_sum_of_the_step_before_has_the_dtype_of_the_steps(
    mask: DType, values: DType, *, is_added: bool
) -> None:
    def op(w, x):
        h = po.tensor("h")
        h[0, j] = x[j]
        if is_added:
            h[t + 1, j] += w[j, k] * h[t, k]
        else:
            h[t + 1, j] = po.sum(w[j, k] * h[t, k], k)
        return h

    op.__annotations__ = {"w": mask[N, N], "x": values[N]}
    w, x = np.array([[1, 0], [1, 1]], mask.numpy), np.array([3, 5], values.numpy)
    steps = [x.astype(np.float64)]
    for _ in range(3):
        steps.append(w.astype(np.float64) @ steps[-1])
    wide = values == u32 and mask == i8
    result = po.op(op)(w, x)
    assert result.dtype == (np.int64 if wide else values.numpy)
    np.testing.assert_array_equal(result, steps)


def test_a_choice_that_starts_a_recurrence_gives_it_its_dtype() -> None:
    @po.op
    def op(x: f32[N], n: i8[N]):
        u = po.tensor("u", shape=(N,))
        u[i] = po.where(i == 0, x[i], po.sum(n[k] * po.where(n[k] > u[i - 1], n[k], u[i - 1]), k))
        return u

    result = op(np.array([3, 0, 0], np.float32), np.array([1, 4, 2], np.int8))
    assert result.dtype == np.float32 and result.tolist() == [3, 25, 175]


def test_what_starts_with_true_is_boolean() -> None:
    @po.op
    def op():
        u, v = po.tensors("u v")
        u[0], v[0] = True, True
        u[t + 1] = ~u[t]
        v[t + 1] = v[t] + 1
        return u, v

    flags, numbers = op()
    assert flags.dtype == np.bool_ and flags.tolist() == [True, False, True, False]
    assert numbers.dtype == np.int64 and numbers.tolist() == [1, 2, 3, 4]


def test_integers_of_64_bits_count_paths_exactly() -> None:
    @po.op
    def op(w: bool_[N, N], x: u64[N]):
        h = po.tensor("h")
        h[0, j] = x[j]
        h[t + 1, j] = po.sum(w[j, k] * h[t, k], k)
        return h

    result = op(np.ones((2, 2), bool), np.array([2**53 + 1, 0], np.uint64))
    assert result.dtype == np.uint64 and result[3].tolist() == [2**55 + 4] * 2


@pytest.mark.parametrize(
    ("step", "first", "other"),
    [
        pytest.param(lambda u, n: n / u, f32, i8, id="a quotient of narrow integers"),
        pytest.param(lambda u, n: n / u + 1, f32, bool_, id="a quotient of booleans"),
        pytest.param(lambda u, n: n - u, i32, bool_, id="a difference from booleans"),
        pytest.param(lambda u, n: -(n * u), i32, bool_, id="the opposite of a masked value"),
        pytest.param(lambda u, n: 300 * (n + u), i32, u8, id="a number that fits the sum alone"),
        pytest.param(lambda u, n: po.maximum(n * u, 1) ** -1, f64, i32, id="a negative power"),
    ],
)
def test_a_step_waits_for_the_dtype_of_what_it_reads(step: Any, first: DType, other: DType) -> None:
    def op(x, n):
        u = po.tensor("u")
        u[0] = x[0]
        u[t + 1] = step(u[t], n[t])
        return u

    op.__annotations__ = {"x": first[N], "n": other[M]}
    x, n = np.array([4], first.numpy), np.array([1, 1, 1], other.numpy)
    result = po.op(op)(x, n)
    assert result.dtype == first.numpy
    u = [4.0]
    for one in n.astype(np.float64):
        u.append(_step_in_f64(step, u[-1], one))
    np.testing.assert_allclose(result, u, rtol=1e-6)


def _step_in_f64(step: Any, u: float, n: float) -> float:
    """The same step of numbers, by an op without a recurrence."""

    @po.op
    def op(u: f64, n: f64):
        return step(u, n)

    return float(op(u, n))


@pytest.mark.parametrize(
    ("step", "factor"),
    [
        pytest.param(lambda u: po.mean(u * 0.5, k), 0.5, id="a mean beside a float"),
        pytest.param(lambda u: po.mean(u * 2, k), 2.0, id="a mean beside an integer"),
        pytest.param(lambda u: po.reduce(lambda a, b: a + b, u, k, init=0), 2.0, id="a reduction with a start"),
        pytest.param(lambda u: po.max(u, k, init=0), 1.0, id="a maximum with a start"),
    ],
)
def test_a_reduction_of_the_step_before_has_its_dtype(step: Any, factor: float) -> None:
    @po.op
    def op(x: f32[N]):
        u = po.tensor("u")
        u[0, j] = x[j]
        u[t + 1, j] = step(u[t, k]) + x[j] * 0
        return u

    result = op(np.array([1, 1], np.float32))
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result[:, 0], factor ** np.arange(4))


def test_a_step_that_nothing_starts_takes_the_dtype_of_what_it_adds() -> None:
    @po.op
    def op(x: f32[N]):
        u = po.tensor("u", shape=(N,))
        u[i] = po.maximum(u.pad(0)[i - 1] + x[i], 0)
        return u

    result = op(np.array([1, -3, 2], np.float32))
    assert result.dtype == np.float32 and result.tolist() == [1, 0, 2]


DTYPES = (bool_, i8, u8, i32, u32, i64, u64, f16, f32, f64)


def _random_step(random: np.random.Generator, depth: int) -> str:
    """An expression over `u` and `n` in the words of the language."""
    if depth == 0:
        return str(random.choice(["u", "n", "u", "2", "0.5", "po.cast(n, f32)"]))
    left, right = (_random_step(random, depth - 1) for _ in range(2))
    form = random.choice(
        [
            *("({a} + {b})", "({a} * {b})", "({a} - {b})", "({a} / {b})", "({a} // {b})", "po.maximum({a}, {b})"),
            *("po.where({a} > {b}, {a}, {b})", "po.sqrt({a})", "po.abs({a})", "(-{a})", "po.sum({a} + x[k], k)"),
            *("po.mean({a} * x[k], k)", "po.max({a} * x[k], k)", "po.sum(n * {a} * x[k], k)", "po.clip({a}, 0, {b})"),
        ]
    )
    return str(form).format(a=left, b=right)


def _dtype_of(body: str, start: DType, *dtypes: DType) -> DType:
    """The dtype of what an op of these lines returns. Raises `DTypeError` where they have none."""
    names: dict[str, Any] = {"po": po, "f32": f32, "start": start, "t": t, "k": k, "i": i}
    exec(f"def op(x, a, n):\n {body}\n return y\n", names)
    names["op"].__annotations__ = dict(zip(("x", "a", "n"), (d[N] for d in dtypes), strict=True))
    program = po.op(names["op"]).lower(N=4).program
    return program.tensor(program.results[0]).dtype


@pytest.mark.parametrize("seed", range(6))
def test_the_dtype_of_a_recurrence_is_where_its_steps_end(seed: int) -> None:
    """From the dtype of its start, a step at a time, each an op without a recurrence."""
    random, compared = np.random.default_rng(seed), 0
    for _ in range(25):
        step, (x, first, n) = _random_step(random, 2), random.choice(np.array(DTYPES, object), 3)
        if "u" not in step:
            continue
        found, seen = first, [first]
        try:
            for _ in range(6):
                line = f"y = po.tensor('y'); u, n = a[i], n[i]; y[i] = po.where(i > 1, po.cast(a[i], start), {step})"
                found = _dtype_of(line, first, x, found, n)
                seen.append(found)
        except po.DTypeError:
            continue
        if seen[-1] != seen[-2]:
            continue
        line = f"y = po.tensor('y'); y[0] = a[0]; u, n = y[t], n[t]; y[t + 1] = {step}"
        assert _dtype_of(line, first, x, first, n) == found, (step, x, first, n)
        compared += 1
    assert compared > 5
