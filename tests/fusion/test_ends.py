"""Last columns of products that vectors would leave almost empty, by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import polyopt as po
from polyopt import picks
from polyopt.loops.interpret import interpret
from polyopt.picks import Question
from polyopt.target import preset

Array = NDArray[Any]

WIDE = preset("avx512")
ORDERS = [("ik", "kj"), ("ik", "jk"), ("ki", "kj"), ("ki", "jk"), ("bik", "bkj"), ("bik", "kj"), ("kib", "jk")]


def product(left: str, right: str, extents: dict[str, int], dtype: po.DType, **options: Any) -> po.Op:
    """`z[b, i, j] = sum(x * y)`, of dimensions in these orders."""
    axes = {name: po.index(name, extent=extent) for name, extent in extents.items()}
    result = [name for name in "bij" if name in left + right]

    @po.op(**options)
    def times(
        x: dtype[tuple(extents[name] for name in left)],
        y: dtype[tuple(extents[name] for name in right)],
    ) -> object:
        z = po.tensor("z", shape=tuple(extents[name] for name in result))
        place = tuple(axes[name] for name in result)
        z[place] += x[tuple(axes[name] for name in left)] * y[tuple(axes[name] for name in right)]
        return z

    return times


def numbers(*shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(sum(shape)).integers(-4, 5, shape).astype(dtype)


def apart(question: Question) -> str:
    wanted = question.text.startswith("last columns ") and "True" in question.options
    return "True" if wanted else question.preferred


@pytest.mark.parametrize(("left", "right"), ORDERS)
@pytest.mark.parametrize(("columns", "dtype"), [(17, po.f32), (34, po.f32), (9, po.f64), (3, po.f32)])
def test_the_last_columns_are_those_of_the_product(left: str, right: str, columns: int, dtype: po.DType) -> None:
    extents = {"b": 3, "i": 5, "j": columns, "k": 19}
    extents = {name: extent for name, extent in extents.items() if name in left + right}
    op = product(left, right, extents, dtype)
    x, y = (numbers(*(extents[n] for n in one), dtype=dtype.numpy) for one in (left, right))
    y.flat[[0, -1]] = np.inf, np.nan
    with picks.decided(apart):
        lowering = op.lower(x, y, target=WIDE)
        assert not lowering.fallback
        result = "".join(name for name in "bij" if name in left + right)
        z = np.full([extents[name] for name in result], np.nan, dtype.numpy)
        with np.errstate(invalid="ignore"):
            interpret(lowering.loops, {"x": x, "y": y, "z": z}, seed=1)
            wanted = np.einsum(f"{left},{right}->{result}", x, y)
        assert " columns of z along j by themselves" in str(lowering.fusion)
    np.testing.assert_array_equal(z, wanted)


@pytest.mark.parametrize("n", [33, 65, 100, 129])
def test_products_of_such_sizes_on_this_machine(n: int) -> None:
    op = product("ik", "kj", {"i": n, "j": n, "k": n}, po.f32)
    x, y = numbers(n, n), numbers(n, n)
    np.testing.assert_array_equal(op(x, y), x @ y)
    np.testing.assert_array_equal(op.on(preset("avx2"))(x, y), x @ y)


@pytest.mark.parametrize(
    ("left", "right", "extents", "why"),
    [
        ("bik", "bkj", {"b": 64, "i": 2, "j": 33, "k": 200}, "its column is copied for two rows"),
        ("ik", "kj", {"i": 1, "j": 17, "k": 1000}, "its column is copied for one row"),
        ("ik", "kj", {"i": 48, "j": 49, "k": 8192}, "the sum is split for threads"),
        ("ki", "kj", {"i": 10000, "j": 33, "k": 512}, "x would come from far away twice"),
    ],
)
def test_columns_stay_where_that_costs_more(left: str, right: str, extents: dict[str, int], why: str) -> None:
    assert "by themselves" not in str(product(left, right, extents, po.f32).lower(target=WIDE).fusion), why


def test_nobody_asks_where_vectors_are_full() -> None:
    asked: list[str] = []

    def preferred(question: Question) -> str:
        asked.append(question.text)
        return question.preferred

    with picks.decided(preferred):
        _ = product("ik", "kj", {"i": 48, "j": 48, "k": 48}, po.f32).lower(target=WIDE).fusion
    assert asked
    assert not any("last columns" in text for text in asked)


def test_columns_stay_where_little_is_saved_or_more_is_made_of_them() -> None:
    def report(n: int, **options: Any) -> str:
        return str(product("ik", "kj", {"i": n, "j": n, "k": n}, po.f32, **options).lower(target=WIDE).fusion)

    assert "the last of 65 columns of z along j by themselves: 15 of 16 lanes would be empty" in report(65)
    for n in (17, 64, 72, 2049):  # a small product, whole vectors, half a vector, one column of very many
        assert "by themselves" not in report(n)
    assert "by themselves" not in report(65, numerics="strict")

    i, j, k = (po.index(name, extent=65) for name in "ijk")

    @po.op
    def followed(x: po.f32[65, 65], y: po.f32[65, 65]) -> object:
        z, v = po.tensors("z v")
        z[i, j] = po.sum(x[i, k] * y[k, j], k)
        v[i, j] = po.relu(z[i, j])
        return v, z

    assert "by themselves" not in str(followed.lower(target=WIDE).fusion)
