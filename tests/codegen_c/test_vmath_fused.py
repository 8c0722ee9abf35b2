"""The emulated fused multiply-add rounds once, everywhere."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest

from polyopt.codegen_c.vmath.fused import fma32, fma64
from tests.codegen_c.vmath_support import Array, random_bits, same_bits

Fma = Callable[[Array, Array, Array], Array]
CASES = [("float32", fma32), ("float64", fma64)]


def exact_fma(a: float, b: float, c: float, dtype: str) -> float:
    """`a * b + c` from rational arithmetic, rounded to the nearest, ties to even."""
    value = Fraction(a) * Fraction(b) + Fraction(c)
    if value == 0:
        return a * b + c  # exact; only the sign of the zero is in question
    info = np.finfo(dtype)
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    unit = Fraction(2) ** (max(exponent, int(info.minexp)) - int(info.nmant))
    rounded = round(size / unit) * unit
    magnitude = float("inf") if rounded > Fraction(float(info.max)) else float(rounded)
    return magnitude if value > 0 else -magnitude


def expected_of(dtype: str, a: Array, b: Array, c: Array) -> Array:
    rows = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    return np.array([exact_fma(*row, dtype) for row in rows], dtype=dtype)


def finite(dtype: str, count: int, generator: np.random.Generator) -> Array:
    values = random_bits(dtype, count, generator)
    return np.where(np.isfinite(values), values, np.ones_like(values))


@pytest.mark.parametrize(("dtype", "fma"), CASES)
def test_fma_of_any_numbers(dtype: str, fma: Fma) -> None:
    generator = np.random.default_rng(1)
    a, b, c = (finite(dtype, 3000, generator) for _ in range(3))
    assert same_bits(fma(a, b, c), expected_of(dtype, a, b, c)).all()


@pytest.mark.parametrize(("dtype", "fma"), CASES)
def test_fma_that_cancels(dtype: str, fma: Fma) -> None:
    generator = np.random.default_rng(2)
    a, b = (finite(dtype, 3000, generator) for _ in range(2))
    with np.errstate(all="ignore"):
        product = a * b
    c = np.where(np.isfinite(product), -product, np.ones_like(product))
    assert same_bits(fma(a, b, c), expected_of(dtype, a, b, c)).all()


@pytest.mark.parametrize(("dtype", "fma"), CASES)
def test_fma_with_a_subnormal_result(dtype: str, fma: Fma) -> None:
    generator = np.random.default_rng(3)
    info = np.finfo(dtype)
    low = int(info.minexp) - int(info.nmant)
    a = np.ldexp(generator.uniform(0.5, 1, 3000), generator.integers(-40, 40, 3000)).astype(dtype)
    exponent = generator.integers(low - 3, low + 70, 3000)
    b = np.ldexp(generator.uniform(-1, 1, 3000).astype(dtype), exponent // 2 - np.frexp(a)[1]).astype(dtype)
    b = np.ldexp(b, exponent - exponent // 2).astype(dtype)
    c = np.ldexp(np.ldexp(generator.uniform(-1, 1, 3000).astype(dtype), exponent // 2), exponent - exponent // 2)
    assert same_bits(fma(a, b, c), expected_of(dtype, a, b, c)).all()


@pytest.mark.parametrize(("dtype", "fma"), CASES)
def test_fma_of_ties(dtype: str, fma: Fma) -> None:
    """Half a unit, less or more by the smallest numbers, added to 1 and its neighbors."""
    info = np.finfo(dtype)
    ones = 1 + info.eps * np.arange(-4, 5, dtype=dtype)
    halves = np.array([0.5, 0.25, 1.5, 0.5 + info.eps, 0.5 - info.eps], dtype=dtype) * np.array(info.eps, dtype=dtype)
    c, b = (grid.ravel() for grid in np.meshgrid(ones, np.concatenate([halves, -halves])))
    for a in (np.ones_like(b), np.full_like(b, 1 + info.eps), np.full_like(b, 1 - info.eps)):
        assert same_bits(fma(a, b, c), expected_of(dtype, a, b, c)).all()


@pytest.mark.parametrize(("dtype", "fma"), CASES)
def test_fma_of_special_values(dtype: str, fma: Fma) -> None:
    inf, nan, largest = np.inf, np.nan, float(np.finfo(dtype).max)
    rows = [
        (inf, 0.0, 1.0, nan),
        (inf, 2.0, -inf, nan),
        (largest, 2.0, -inf, -inf),
        (largest, 2.0, 1.0, inf),
        (largest, 2.0, -largest, largest),
        (1.0, nan, 1.0, nan),
        (1.0, 1.0, nan, nan),
        (-0.0, 1.0, -0.0, -0.0),
        (-0.0, 1.0, 0.0, 0.0),
        (1.0, 1.0, -1.0, 0.0),
        (float(np.finfo(dtype).smallest_subnormal), -0.25, 0.0, -0.0),
    ]
    a, b, c, expected = (np.array(column, dtype=dtype) for column in zip(*rows, strict=True))
    assert same_bits(fma(a, b, c), expected).all()
