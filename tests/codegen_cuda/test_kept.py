"""Vectors that threads keep in registers from one loop to the next: what is loaded once, and what must not be kept."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32
from polyopt.api import Op
from polyopt.target import gpu_preset
from tests.codegen_cuda.running import Array, emulate, lowered
from tests.codegen_cuda.test_emulated import assert_equals, inputs, needs_compiler

M, N = po.sizes("M N")
i, j = po.indices("i j")

pytestmark = needs_compiler

SMALL = gpu_preset("sm_90", sms=1)
"""A GPU that few rows keep busy."""


@po.op
def softmax(x: f32[M, N]):
    return po.softmax(x, axis=-1)


@po.op
def guarded(x: f32[M, N]):
    """A first loop that reads the elements only where a value that its rows share says so."""
    s, y = po.tensors("s y")
    s[i] = po.sum(po.where(x[i, 0] > 0, x[i, j], 0.0), j)
    y[i, j] = x[i, j] + s[i]
    return y


@po.op
def in_place(x: f32[M, N]):
    """What a kernel writes changes between two loops."""
    y, s = po.tensor("y", shape=(M, N)), po.tensor("s")
    y[i, j] = x[i, j] * 2
    s[i] = po.max(y[i, j], j)
    z = po.tensor("z")
    z[i, j] = y[i, j] - s[i]
    return z, y


def loads(op: Op, args: tuple[Array, ...], name: str) -> int:
    return len(re.findall(rf"po_load<\d>\(&{name}\[", lowered(op, *args, target=SMALL).source("cuda")))


def run(op: Op, args: tuple[Array, ...]) -> tuple[Array, ...]:
    lowering = lowered(op, *args, target=SMALL)
    outcome = emulate(lowering, inputs(op, args), {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    return outcome.results


def rows(m: int, n: int) -> Array:
    return np.random.default_rng(m + n).integers(-4, 5, (m, n)).astype(np.float32)


@pytest.mark.parametrize("shape", [(3, 2052), (3, 4096), (4, 4104), (40, 128), (40, 260)])
def test_a_row_is_loaded_once(shape: tuple[int, int]) -> None:
    args = (rows(*shape),)
    assert loads(softmax, args, "x") == 1
    powers = np.exp(args[0].astype(np.float64))
    assert_equals(run(softmax, args)[0], powers / powers.sum(1, keepdims=True))


def test_rows_beyond_a_threads_registers_are_loaded_again() -> None:
    """256 threads with 64 registers for them keep 16,384 elements."""
    assert loads(softmax, (rows(40, 16384),), "x") == 1
    assert loads(softmax, (rows(40, 16640),), "x") == 3


@pytest.mark.parametrize("op", [guarded, in_place])
@pytest.mark.parametrize("shape", [(3, 1024), (600, 256)])
def test_what_may_change_or_is_not_always_read(op: Op, shape: tuple[int, int]) -> None:
    args: tuple[Any, ...] = (rows(*shape),)
    wanted = op.reference(*args)
    for got, want in zip(run(op, args), wanted if isinstance(wanted, tuple) else (wanted,), strict=True):
        assert_equals(got, want)


def test_an_array_may_be_called_as_registers_would_be() -> None:
    @po.op
    def op(x: f32[M, N], x_v4_kept: f32[N]):
        s, y = po.tensors("s y")
        s[i] = po.max(x[i, j], j)
        y[i, j] = x[i, j] - s[i] + x_v4_kept[j]
        return y

    x, w = rows(3, 2052), rows(1, 2052)[0]
    (found,) = run(op, (x, w))
    np.testing.assert_array_equal(found, x - x.max(1, keepdims=True) + w)
