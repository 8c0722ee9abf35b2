"""Rows divided by one number have the bits of a division each, whatever the numbers are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, f64
from polyopt.target import Target, host, preset
from tests.poly.operators import M, N, i, j

WIDE = replace(host(), vector_bits=512, vector_registers=32)
"""Wide vectors on any machine: where it has none, they are taken in pieces."""


@po.op(target=WIDE)
def shares(x: f32[M, N], total: f32[M]):
    y = po.tensor("y")
    y[i, j] = x[i, j] / total[i]
    return y


@po.op(target=WIDE)
def shares_f64(x: f64[M, N], total: f64[M]):
    y = po.tensor("y")
    y[i, j] = x[i, j] / total[i]
    return y


def numbers(random: np.random.Generator, count: int, dtype: str) -> np.ndarray:
    """Any bits, numbers of about 1, and those where results overflow, underflow or are no numbers."""
    anything = np.frombuffer(random.bytes(count * np.dtype(dtype).itemsize), dtype)
    usual = random.uniform(-4, 4, count).astype(dtype)
    limits = np.finfo(dtype)
    edges = np.array(
        [0.0, -0.0, np.inf, -np.inf, np.nan, limits.tiny, limits.max, limits.smallest_subnormal, 1, 3]
        + [2.0**60, 2.0**-60, np.nextafter(2.0**60, 0), np.nextafter(2.0**-60, 0), -(2.0**59.5)],
        dtype,
    )
    return np.where(
        random.random(count) < 0.9, usual, np.where(random.random(count) < 0.5, anything, random.choice(edges, count))
    )


@pytest.mark.parametrize("columns", [1, 16, 100, 513])
@pytest.mark.parametrize(("operator", "dtype"), [(shares, "float32"), (shares_f64, "float64")])
def test_quotients_have_the_bits_of_a_division(operator: po.Op, dtype: str, columns: int) -> None:
    random = np.random.default_rng(columns)
    x = numbers(random, 200 * columns, dtype).reshape(200, columns)
    x[:100] = random.uniform(-4, 4, (100, columns)).astype(dtype)  # rows without a number that is divided as ever
    total = numbers(random, 200, dtype)
    with np.errstate(all="ignore"):
        wanted = x / total[:, None]
    found = operator(x, total)
    whole = {"float32": np.uint32, "float64": np.uint64}[dtype]
    assert ((found.view(whole) == wanted.view(whole)) | (np.isnan(found) & np.isnan(wanted))).all()


@pytest.mark.parametrize(("operator", "dtype", "safe"), [(shares, "float32", 64), (shares_f64, "float64", 512)])
def test_quotients_have_the_bits_of_a_division_up_to_the_limits_of_what_is_safe(
    operator: po.Op, dtype: str, safe: int
) -> None:
    random = np.random.default_rng(safe)
    rows, columns = 512, 256
    mantissa = random.uniform(1, 2, (rows, columns)).astype(dtype)
    edges = random.integers(0, 3, (rows, 1)) * (safe - 3) - (safe - 3)  # rows of one magnitude: no lane is divided
    x = np.ldexp(mantissa, edges + random.integers(-3, 3, (rows, columns)))
    x[::7, 5] = np.asarray([2.0**safe, np.nextafter(2.0**-safe, 0)], dtype)[random.integers(0, 2, len(x[::7]))]
    total = np.ldexp(random.uniform(1, 2, rows).astype(dtype), random.integers(-61, 61, rows))
    with np.errstate(all="ignore"):
        wanted = x / total[:, None]
    assert np.array_equal(operator(x, total), wanted)


def lines(target: Target, **sizes: int) -> str:
    text: str = shares.lower(target=target, **sizes).source("llvm")
    return text


def test_a_division_by_a_number_of_the_row_is_one_of_scalars_and_remainders_of_vectors() -> None:
    assert "fdiv float 0x3FF0000000000000" in lines(preset("avx512"), M=100, N=1000)
    assert "fdiv float 0x3FF0000000000000" not in lines(preset("avx2"), M=100, N=1000)


def test_lanes_are_found_safe_by_their_bits_without_a_mask() -> None:
    text = lines(preset("avx512"), M=100, N=1024)
    assert "to i512" in text and "sext <16 x i1>" not in text
