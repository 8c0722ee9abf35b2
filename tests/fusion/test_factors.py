"""What a sum repeats is computed once, where that is exact, safe and worth a temporary."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, f32, i8, i32

Array = np.ndarray[Any, Any]

M, N, K, C, H, W, F = po.sizes("M N K C H W F")
i, j, k, c, h, w, f, r, s = po.indices("i j k c h w f r s")


@po.op
def exponential(x: f32[M, K], y: f32[K, N]):
    z = po.tensor("z")
    z[i, j] += po.exp(x[i, k]) * y[k, j]
    return z


@po.op(numerics="strict")
def exponential_in_order(x: f32[M, K], y: f32[K, N]):
    z = po.tensor("z")
    z[i, j] += po.exp(x[i, k]) * y[k, j]
    return z


@po.op
def symmetric(t: f32[M, M], y: f32[M, N], u: f32[M, N], alpha: f32, beta: f32):
    """The upper half of t is not read."""
    z = po.tensor("z")
    z[i, j] = beta * u[i, j]
    z[i, j] += alpha * po.where(k <= i, t[i, k], t[k, i]) * y[k, j]
    return z


@po.op
def triangular(t: f32[M, M], y: f32[M, N], alpha: f32):
    z = po.tensor("z")
    z[i, j] += po.when(k <= i, alpha * t[i, k] * y[k, j])
    return z


@po.op
def lower_products(x: f32[M, K], alpha: f32):
    z = po.tensor("z")
    z[i, j] += po.when(j <= i, alpha * x[i, k] * x[j, k])
    return z


@po.op
def quantised(x: bf16[M, K], q: i8[K, N], zero: i8[N], scale: f32[N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * (po.cast(q[k, j], f32) - po.cast(zero[j], f32)) * scale[j]
    return z


@po.op
def nested(x: f32[M, K], y: f32[K, N]):
    z = po.tensor("z")
    z[i, j] = po.tanh(po.sum(po.maximum(x[i, k], 0) * po.maximum(x[i, k], 0) * y[k, j], k))
    return z


@po.op
def window(x: f32[C, H, W], t: f32[F, C, 3, 3]):
    """Each element of x is a factor in nine places: a temporary for all of them would be nine times as large."""
    z = po.tensor("z")
    z[f, h, w] += po.maximum(x[c, h + r, w + s], 0) * t[f, c, r, s]
    return z


@po.op
def looked_up(x: f32[M], ids: i32[K], y: f32[K, N]):
    z = po.tensor("z")
    z[j] += po.exp(x[ids[k]]) * y[k, j]
    return z


@po.op
def recurrent(a: f32[M, M]):
    """Each element needs the ones before it in its column."""
    u = po.tensor("u", shape=(M, M))
    u[i, j] = a[i, j] + po.sum(po.tanh(u[k, j]) * a[i, k], k, where=k < i)
    return u


@po.op
def branch_only(t: f32[M, M], y: f32[M, N]):
    """t[k, i + 1] is read only where the branch is taken."""
    z = po.tensor("z")
    z[i, j] += po.where(i < M - 1, t[k, i] * y[k, j], y[k, j])
    return z


@po.op
def cosines(x: f32[M, N]):
    """The table has a row for each term of a sum, and no array that it is computed from."""
    z = po.tensor("z")
    n, m = po.index("n", extent=N), po.index("m", extent=N)
    z[i, m] = po.sum(x[i, n] * po.cos((po.cast(n, f32) + 0.5) * po.cast(m, f32) * (np.pi / 16)), n)
    return z


@po.op
def phases(x: f32[M, N], t: f32[N], q: f32[K]):
    z = po.tensor("z")
    z[i, k] += x[i, j] * po.cos(t[j] * q[k])
    return z


def temporaries(op: po.Op, *args: Array, **sizes: Any) -> dict[str, tuple[int, ...]]:
    """Shapes of the temporaries that factors live in."""
    tensors = op.lower(*args, **sizes).rewritten.tensors
    return {t.name: tuple(e.constant for e in t.shape or ()) for t in tensors if t.name.startswith(("z_factor", "u_f"))}


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(np.float32)


def test_a_function_of_one_operand_is_computed_once_an_element() -> None:
    assert temporaries(exponential, M=20, K=30, N=40) == {"z_factor": (20, 30)}
    report = str(exponential.lower(M=20, K=30, N=40).report())
    assert "z_factor[i, k] computed once, not again for each j" in report
    x, y = np.random.default_rng(0).standard_normal((2, 33, 33), np.float32)
    np.testing.assert_array_equal(exponential_in_order(x, y), exponential.reference(x, y, numerics="strict"))
    np.testing.assert_allclose(exponential(x, y), np.exp(x) @ y, rtol=1e-4, atol=1e-4)


def test_a_factor_that_few_points_share_stays_in_the_sum() -> None:
    assert temporaries(exponential, M=20, K=30, N=1) == {}
    assert temporaries(triangular, M=20, N=8) == {}
    assert temporaries(triangular, M=20, N=80) == {"z_factor": (20, 20)}


@pytest.mark.parametrize("size", [(0, 70), (1, 64), (7, 65), (33, 100), (70, 0)])
def test_a_mirrored_matrix_is_written_out_and_its_unread_half_stays_unread(size: tuple[int, int]) -> None:
    rows, columns = size
    t, y, u = numbers(rows, rows), numbers(rows, columns), numbers(rows, columns)
    whole = np.tril(t) + np.tril(t, -1).T
    t[np.triu_indices(rows, 1)] = np.nan
    np.testing.assert_array_equal(symmetric(t, y, u, 2.0, 3.0), 3 * u + 2 * whole @ y)
    wide = np.full((rows, 2 * rows), np.nan, np.float32)
    wide[:, ::2] = t
    np.testing.assert_array_equal(symmetric(wide[:, ::2], y, u, 2.0, 0.0), 2 * whole @ y)


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_guards_hold_for_temporaries(rows: int) -> None:
    t, y = numbers(rows, rows), numbers(rows, 80)
    t[np.triu_indices(rows, 1)] = np.nan
    y[-1] = np.inf
    with np.errstate(invalid="ignore"):
        expected = np.array(
            [[sum(2 * t[a, e] * y[e, b] for e in range(a + 1)) for b in range(80)] for a in range(rows)]
        )
    np.testing.assert_array_equal(triangular(t, y, 2.0), expected)
    x = numbers(80, rows)
    assert temporaries(lower_products, M=80, K=rows) == {"z_factor": (80, rows)}
    np.testing.assert_array_equal(lower_products(x, 2.0), np.tril(2 * x @ x.T))


def test_other_operands_and_places_of_sums() -> None:
    x, q = numbers(70, 20).astype(bf16.numpy), numbers(20, 66).astype(np.int8)
    zero, scale = numbers(66).astype(np.int8), 2 * numbers(66)
    expected = x.astype(np.float32) @ ((q.astype(np.float32) - zero) * scale)
    assert "z_factor" in temporaries(quantised, x, q, zero, scale)
    np.testing.assert_array_equal(quantised(x, q, zero, scale), expected)
    a, b = numbers(9, 20), numbers(20, 66)
    assert temporaries(nested, a, b) == {"z_factor": (9, 20)}
    np.testing.assert_allclose(nested(a, b), np.tanh(np.maximum(a, 0) ** 2 @ b), rtol=1e-5)


def test_a_table_of_functions_is_computed_once_for_all_rows() -> None:
    """A transform of 500 rows computed each cosine 500 times, and took 32 times as long as with a table of its own."""
    x = numbers(70, 16)
    assert temporaries(cosines, M=70, N=16) == {"z_factor": (16, 16)}
    table = np.cos(np.outer(np.arange(16) + 0.5, np.arange(16)) * np.pi / 16)
    np.testing.assert_allclose(cosines(x), x @ table, rtol=1e-4, atol=1e-4)
    t, q = numbers(16) / 8, numbers(9) / 8
    assert temporaries(phases, M=70, N=16, K=9) == {"z_factor": (16, 9)}
    np.testing.assert_allclose(phases(x, t, q), x @ np.cos(np.outer(t, q)), rtol=1e-4, atol=1e-4)
    assert temporaries(cosines, M=8, N=16) == temporaries(phases, M=2, N=40, K=30) == {}


def test_a_table_is_not_filled_where_a_guard_asks_for_few_of_its_elements() -> None:
    @po.op
    def banded(x: f32[K], y: f32[M, K]):
        z, q = po.tensor("z"), po.index("q", extent=K)
        near = (k <= i + 2) & (k >= i - 2) & (q <= i + 2) & (q >= i - 2)
        z[i] = po.sum(po.exp(-(x[k] - x[q]) * (x[k] - x[q])) * y[i, k], (k, q), where=near)
        return z

    assert temporaries(banded, M=40, K=40) == {}
    x, y = numbers(40) / 8, numbers(40, 40)
    near = [range(max(0, row - 2), min(40, row + 3)) for row in range(40)]
    expected = [sum(np.exp(-((x[a] - x[b]) ** 2)) * y[row, a] for a in ks for b in ks) for row, ks in enumerate(near)]
    np.testing.assert_allclose(banded(x, y), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", [window, looked_up, recurrent, branch_only])
def test_a_factor_stays_where_a_temporary_would_be_larger_unsafe_or_part_of_a_cycle(op: po.Op) -> None:
    x, ids, y = numbers(12), np.arange(12, dtype=np.int32), numbers(12, 70)
    square = numbers(9, 9) / 8
    args: tuple[Array, ...]
    args = (x, ids, y) if op is looked_up else (numbers(2, 6, 7), numbers(64, 2, 3, 3)) if op is window else (square,)
    args = (numbers(70, 70), numbers(70, 66)) if op is branch_only else args
    assert temporaries(op, *args) == {}
    np.testing.assert_allclose(op(*args), op.reference(*args), rtol=1e-4, atol=1e-4)


def test_symbolic_sizes_take_factors_out_too() -> None:
    some = po.op(dynamic=True)(_exponential)
    for rows, columns in ((3, 5), (0, 4), (17, 33)):
        x, y = np.random.default_rng(1).standard_normal((rows, 6), np.float32), numbers(6, columns)
        np.testing.assert_allclose(some(x, y), np.exp(x) @ y, rtol=1e-4, atol=1e-4)


def test_a_factor_is_not_computed_where_the_sum_has_no_point(caplog: pytest.LogCaptureFixture) -> None:
    """With no column there is no last one: the temporary read outside its operand, and the plan was given up."""

    @po.op(dynamic=True)
    def last(x: f32[M, N], y: f32[N, K]):
        z = po.tensor("z", shape=(M, K))
        z[i, j] = po.sum(po.exp(x[i, N - 1]) * y[k, j], k)
        return z

    for columns in (0, 1, 5):
        x, y = np.ones((4, columns), np.float32), np.ones((columns, 40), np.float32)
        np.testing.assert_allclose(last(x, y), last.reference(x, y), rtol=1e-5)
    assert "z_factor" in {statement.name for statement in last.lower().scop.statements}
    assert not caplog.records


def _exponential(x: f32[M, K], y: f32[K, N]):
    z = po.tensor("z")
    z[i, j] += po.exp(x[i, k]) * y[k, j]
    return z
