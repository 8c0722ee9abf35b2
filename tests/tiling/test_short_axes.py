"""Images whose channels come last, small windows and arrays in another order: lanes along what is long and near."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

import polyopt as po
from polyopt import f32, f64, i32, u8
from polyopt.dtypes import DType

B, C, H, M, N, W = po.sizes("B C H M N W")
b, c, h, i, j, k, n, w = po.indices("b c h i j k n w")
Array = np.ndarray[Any, Any]


def numbers(dtype: DType, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, 9, shape).astype(dtype.numpy)


@po.op
def largest(x: f32[H, W, 3]):
    return po.max(x, axis=2)


@po.op
def pooled(x: f32[B, H, W]):
    y, r, s = po.tensor("y"), po.index("r", extent=2), po.index("s", extent=2)
    y[b, h, w] = po.max(x[b, 2 * h + r, 2 * w + s], (r, s))
    return y


@po.op
def mixed(m: f32[3, 3], x: f32[H, W, 3]):
    y, d = po.tensor("y"), po.index("d")
    y[h, w, c] += m[c, d] * x[h, w, d]
    return y


@po.op
def channels_last(x: u8[3, H, W]):
    y = po.tensor("y")
    y[h, w, c] = x[c, h, w]
    return y


@po.op
def channels_first(x: u8[H, W, 3]):
    y = po.tensor("y")
    y[c, h, w] = x[h, w, c]
    return y


@po.op
def with_alpha(x: u8[H, W, 3]):
    y, a = po.tensor("y"), po.index("a", extent=4)
    y[h, w, a] = po.where(a < 3, x[h, w, a], po.cast(255, u8))
    return y


@po.op
def table(t: i32[256], x: u8[H, W, 3]):
    y = po.tensor("y")
    y[h, w, c] = t[x[h, w, c]]
    return y


@po.op
def crossed(x: f64[N, 3], y: f64[N, 3]):
    z, a = po.tensor("z"), po.index("a", extent=3)
    z[n, a] = x[n, (a + 1) % 3] * y[n, (a + 2) % 3] - x[n, (a + 2) % 3] * y[n, (a + 1) % 3]
    return z


@po.op
def backwards(x: f32[H, W]):
    y = po.tensor("y")
    y[h, w] = x[h, W - 1 - w] + x[h, w]
    return y


@po.op
def segments(x: f32[N], at: po.i64[M]):
    y, a = po.tensor("y"), po.index("a", extent=12)
    y[i] += x[at[i] + a]
    return y


@po.op
def multiplied(x: f64[M], y: f64[N]):
    z = po.tensor("z")
    z[i + j] += x[i] * y[j]
    return z


def windows(x: Array) -> Array:
    return np.maximum.reduce(
        [x[:, r::2, s::2][:, : x.shape[1] // 2, : x.shape[2] // 2] for r in (0, 1) for s in (0, 1)]
    )


CASES: dict[str, tuple[po.Op, tuple[Array, ...], Callable[..., Any]]] = {}
for H_, W_ in ((3, 70), (5, 33), (2, 7)):
    image, bytes_ = numbers(f32, H_, W_, 3, seed=W_), numbers(u8, H_, W_, 3, seed=W_)
    place = f"{H_} x {W_}"
    CASES |= {
        f"largest {place}": (largest, (image,), lambda x: x.max(2)),
        f"pooled {place}": (pooled, (numbers(f32, 2, 2 * H_, 2 * W_),), windows),
        f"mixed {place}": (mixed, (numbers(f32, 3, 3), image), lambda m, x: x @ m.T),
        f"channels last {place}": (channels_last, (numbers(u8, 3, H_, W_),), lambda x: x.transpose(1, 2, 0)),
        f"channels first {place}": (channels_first, (bytes_,), lambda x: x.transpose(2, 0, 1)),
        f"with alpha {place}": (
            with_alpha,
            (bytes_,),
            lambda x: np.concatenate([x, np.full((*x.shape[:2], 1), 255, np.uint8)], 2),
        ),
        f"table {place}": (table, (numbers(i32, 256), bytes_), lambda t, x: t[x]),
        f"crossed {place}": (crossed, (numbers(f64, W_, 3), numbers(f64, W_, 3, seed=1)), np.cross),
        f"backwards {place}": (backwards, (image[:, :, 0].copy(),), lambda x: x[:, ::-1] + x),
        f"multiplied {place}": (multiplied, (numbers(f64, H_), numbers(f64, W_)), np.convolve),
        f"segments {place}": (
            segments,
            (numbers(f32, 200), np.arange(W_, dtype=np.int64) * 2),
            lambda x, at: np.stack([x[a : a + 12].sum() for a in at]),
        ),
    }


@pytest.mark.parametrize("target", ["cpu", "avx2", "generic"])
@pytest.mark.parametrize("name", CASES)
def test_results_are_what_the_equations_say(name: str, target: str) -> None:
    op, args, expected = CASES[name]
    assert_array_equal(op.on(target)(*args), expected(*args))


@pytest.mark.parametrize(
    ("op", "sizes", "lanes"),
    [
        (largest, {"H": 100, "W": 200}, "vector for j in range(200)"),
        (pooled, {"B": 2, "H": 100, "W": 200}, "vector for w in range(100)"),
        (mixed, {"H": 100, "W": 200}, "vector for w in range(200)"),
        (channels_last, {"H": 100, "W": 200}, "vector for w in range(200)"),
        (with_alpha, {"H": 100, "W": 200}, "vector for w in range(200)"),
        (table, {"H": 100, "W": 200}, "vector for w_c in range(600)"),
        (multiplied, {"M": 5000, "N": 400}, "vector for j in range(400)"),
        (segments, {"N": 5000, "M": 400}, "vector for a in range(12)"),
    ],
    ids=lambda one: one.__name__ if isinstance(one, po.Op) else "",
)
def test_lanes_run_along_what_is_long_and_near(op: po.Op, sizes: dict[str, int], lanes: str) -> None:
    assert lanes in str(op.lower(**sizes, target="avx512").loops)


@po.op
def row_sums(x: f32[M, N]):
    return po.sum(x, axis=1)


@po.op
def doubled(x: f32[M, N]):
    return x * 2 + 1


@po.op
def product(x: f32[M, C], y: f32[C, N]):
    return x @ y


@po.op
def of_three(x: f32[M, N, C]):
    y = po.tensor("y")
    y[i, j] += x[i, j, c]
    return y


LAYOUTS: dict[str, Callable[[Array], Array]] = {
    "columns": np.asfortranarray,
    "turned": lambda x: np.ascontiguousarray(np.moveaxis(x, 0, -1)).transpose(-1, *range(x.ndim - 1)),
    "backwards": lambda x: np.asfortranarray(x[:, ::-1])[:, ::-1],
    "every other": lambda x: np.repeat(np.asfortranarray(x), 2, axis=0)[::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(40, 70), (3, 17), (65, 33)])
def test_arrays_in_another_order(layout: str, shape: tuple[int, int]) -> None:
    x, y = (numbers(f32, *shape, seed=seed) for seed in (1, 2))
    given, other = LAYOUTS[layout](x), LAYOUTS[layout](y)
    assert_array_equal(given, x)
    assert_array_equal(row_sums(given), x.sum(1))
    assert_array_equal(doubled(given), x * 2 + 1)
    assert_array_equal(product(given, other.T), x @ y.T)
    assert_array_equal(
        of_three(LAYOUTS[layout](x[:, :, None] + y[:, None, :3])), (x[:, :, None] + y[:, None, :3]).sum(2)
    )
    out = LAYOUTS[layout](np.zeros_like(x))
    doubled(x, out=out)
    assert_array_equal(out, x * 2 + 1)


def test_lanes_follow_the_order_of_an_array() -> None:
    x = np.asfortranarray(numbers(f32, 500, 300))
    assert "vector for i in" in str(row_sums.lower(x, target="avx512").loops)
    assert "blocks turn in registers" in str(doubled.lower(x, target="avx512").tiling)
