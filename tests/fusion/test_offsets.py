"""Zero points leave sums of products of narrow integers, and the numbers stay what they were, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import polyopt as po
from polyopt import i8, i16, i32, u8
from polyopt.dsl import ir
from polyopt.dtypes import DType
from polyopt.fusion.offsets import distribute
from polyopt.target import preset

Array = NDArray[Any]
M, N, K, H, W, C, F = po.sizes("M N K H W C F")
i, j, k, h, w, c, f, r, s = po.indices("i j k h w c f r s")

VNNI = preset("avx512_bf16")


@po.op
def accumulated(x: u8[M, K], y: i8[K, N], p: i32):
    z = po.tensor("z")
    z[i, j] += (x[i, k] - p) * y[k, j]
    return z


@po.op
def by_channel(x: u8[M, K], y: u8[K, N], p: u8[()], q: i32[N]):
    z = po.tensor("z")
    z[i, j] = po.sum((x[i, k] - po.cast(p[()], i32)) * (3 + y[k, j] - q[j]), k)
    return z


@po.op
def window(x: i8[H, W, C], y: i8[3, 3, C, F], q: i32[F]):
    z = po.tensor("z")
    z[h, w, f] = po.sum((x[h + r, w + s, c] + 5) * (y[r, s, c, f] - q[f]), (r, s, c))
    return z


@po.op
def negated(x: i8[M, K], y: i8[K, N], p: i32):
    z = po.tensor("z")
    z[i, j] = po.sum((p - x[i, k]) * y[k, j], k)
    return z


@po.op
def along_the_sum(x: i8[M, K], y: i8[K, N], p: i32[K]):
    z = po.tensor("z")
    z[i, j] = po.sum((x[i, k] - p[k]) * y[k, j], k)
    return z


@po.op
def triangle(x: i8[M, K], y: i8[K, N], p: i32):
    z = po.tensor("z")
    z[i, j] = po.sum((x[i, k] - p) * y[k, j], k, where=k <= i)
    return z


@po.op
def started(x: i8[M, K], y: i8[K, N], p: i32, t: i32[N]):
    z = po.tensor("z")
    z[i, j] = t[j]
    z[i, j] += (x[i, k] - p) * y[k, j]
    return z


@po.op
def shorts(x: i16[M, K], y: i16[N, K], p: i32):
    z = po.tensor("z")
    z[i, j] = po.sum((x[i, k] - p) * y[j, k], k)
    return z


def values(dtype: DType, *shape: int) -> Array:
    info = np.iinfo(dtype.numpy)
    found = np.random.default_rng(shape[-1]).integers(info.min, int(info.max) + 1, shape).astype(dtype.numpy)
    found[..., 0] = info.min
    return found


POINT = np.int32(-(2**31) + 7)
"""An offset whose products wrap around."""
CHANNELS = np.random.default_rng(1).integers(-(2**31), 2**31, 37).astype(np.int32)


@pytest.mark.parametrize(
    ("op", "arguments", "taken"),
    [
        (accumulated, (values(u8, 20, 33), values(i8, 33, 37), POINT), True),
        (by_channel, (values(u8, 20, 33), values(u8, 33, 37), np.uint8(200), CHANNELS), True),
        (window, (values(i8, 7, 12, 9), values(i8, 3, 3, 9, 37), CHANNELS), True),
        (shorts, (values(i16, 20, 34), values(i16, 37, 34), POINT), True),
        (negated, (values(i8, 20, 33), values(i8, 33, 37), POINT), False),
        (along_the_sum, (values(i8, 20, 33), values(i8, 33, 37), CHANNELS[:33]), False),
        (triangle, (values(i8, 20, 20), values(i8, 20, 37), POINT), False),
        (started, (values(i8, 20, 33), values(i8, 33, 37), POINT, CHANNELS), False),
    ],
)
def test_results_are_the_references_with_and_without_offsets_in_sums(
    op: po.Op, arguments: tuple[Any, ...], taken: bool
) -> None:
    shaped = tuple(np.asarray(a) if op is by_channel and np.ndim(a) == 0 else a for a in arguments)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(op(*shaped), op.reference(*shaped))
    lowering = op.lower(*shaped, target=VNNI)
    assert lowering.fallback == ""
    assert ("offsets taken out" in str(lowering.report())) == taken
    assert ("by vpdp" in str(lowering.report())) == taken


def test_without_dot_instructions_an_offset_is_a_factor_computed_once() -> None:
    text = str(accumulated.lower(M=64, N=64, K=64, target=preset("neon")).report())
    assert "computed once" in text and "offsets" not in text


def test_a_program_without_offsets_is_left_as_it_is() -> None:
    @po.op
    def plain(x: u8[M, K], y: i8[K, N]):
        z = po.tensor("z")
        z[i, j] += x[i, k] * y[k, j]
        return z

    program: ir.Program = plain.lower(M=8, N=8, K=8).program
    assert distribute(program).program is program
