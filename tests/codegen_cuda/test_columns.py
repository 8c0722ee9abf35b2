"""Sums along columns: ragged sizes, what stands before and after the sum, and planted faults."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, bf16, f16, f32, f64, i8, u8
from polyopt.codegen_cuda import mapping
from polyopt.target import resolve
from tests.codegen_cuda.running import emulate, interpreted, lowered
from tests.codegen_cuda.test_emulated import assert_equals, inputs, needs_compiler
from tests.codegen_cuda.test_faults import planted, problems

B, K, M, N = po.sizes("B K M N")
b, i, j, k = po.indices("b i j k")


@po.op
def sums(x: f32[M, N]) -> object:
    s = po.tensor("s")
    s[j] += x[i, j]
    return s


@po.op
def means(x: f64[M, N], c: f64[N]) -> object:
    y = po.tensor("y")
    y[j] = po.maximum(po.mean(x[i, j], i) + c[j], 0)
    return y


@po.op
def started(x: f32[M, N], v: f32[M], c: f32[N]) -> object:
    y = po.tensor("y")
    y[j] = 3 * c[j]
    y[j] += x[i, j] * v[i]
    return y


@po.op
def integers(x: i8[M, N]) -> object:
    return po.sum(x, axis=0)


@po.op
def batched(x: bf16[B, M, N]) -> object:
    return po.sum(x, axis=1)


@po.op
def two_axes(x: f32[M, K, N]) -> object:
    y = po.tensor("y")
    y[j] += x[i, k, j]
    return y


@po.op
def triangle(x: f32[M, M]) -> object:
    y = po.tensor("y")
    y[j] += po.where(i >= j, x[i, j], 0)
    return y


@po.op
def maxima(x: f32[M, N]) -> object:
    return po.max(x, axis=0)


@po.op
def products(x: f64[M, K, N], c: f64[N]) -> object:
    y = po.tensor("y")
    y[j] = po.minimum(po.min(x[i, k, j] * c[j], (i, k)), c[j])
    return y


@po.op
def least(x: i8[M, N]) -> object:
    return po.min(x, axis=0)


@po.op
def greatest(x: u8[M, N]) -> object:
    return po.max(x, axis=0)


@po.op
def halves(x: f16[M, N]) -> object:
    return po.max(x, axis=0)


def given(*shapes: tuple[int, ...], dtype: Any = np.float32) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    return tuple(random.integers(-9, 9, shape).astype(dtype) for shape in shapes)


def special(rows: int, columns: int, dtype: Any = np.float32) -> Any:
    """Columns of numbers, with NaN, with infinities, and of one of these alone."""
    (x,) = given((rows, columns), dtype=dtype)
    x[rows // 2, 1::5] = np.nan
    x[rows - 1, 2::5] = np.inf
    x[:, 3::10], x[:, 8::10], x[:, 4::10] = -np.inf, np.inf, np.nan
    return x


CASES: dict[str, tuple[Op, tuple[Any, ...], Any]] = {
    "whole": (sums, (a := given((64, 96))), a[0].sum(0)),
    "ragged": (sums, (a := given((70, 45))), a[0].sum(0)),
    "a step more than warps": (sums, (a := given((33, 70))), a[0].sum(0)),
    "before and after": (
        means,
        (a := given((50, 40), (40,), dtype=np.float64)),
        np.maximum(a[0].mean(0) + a[1], 0),
    ),
    "a start": (started, (a := given((40, 33), (40,), (33,))), 3 * a[2] + a[0].T @ a[1]),
    "integers": (integers, (a := given((70, 50), dtype=np.int8)), a[0].sum(0)),
    "batched": (batched, (a := given((2, 40, 48), dtype=bf16.numpy)), a[0].astype("f4").sum(1)),
    "two axes": (two_axes, (a := given((37, 3, 40))), a[0].sum((0, 1))),
    "a triangle": (triangle, (a := given((40, 40))), np.tril(a[0]).sum(0)),
    "maxima": (maxima, (a := (special(70, 45),)), a[0].max(0)),
    "maxima of fewer rows than warps": (maxima, (a := (special(29, 64),)), a[0].max(0)),
    "minima after products": (
        products,
        (a := (special(5 * 9, 40, np.float64).reshape(5, 9, 40), np.arange(-19.5, 20))),
        np.minimum((a[0] * a[1]).min((0, 1)), a[1]),
    ),
    "minima of bytes": (least, (a := (np.abs(given((70, 50), dtype=np.int8)[0]) + np.int8(100),)), a[0].min(0)),
    "maxima of unsigned bytes": (greatest, (a := (given((70, 50), dtype=np.int8)[0].view(np.uint8),)), a[0].max(0)),
    "maxima of halves": (halves, (a := (special(40, 48, np.float16),)), a[0].max(0)),
}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_columns_give_what_numpy_gives(name: str) -> None:
    op, args, expected = CASES[name]
    lowering = lowered(op, *args)
    assert [nest.style for nest in lowering.mapping.nests] == ["columns"] and not lowering.fallback
    assert "_parts[" in lowering.source("cuda")
    outcome = emulate(lowering, inputs(op, args), {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    assert_equals(outcome.results[0], expected)


@needs_compiler
@pytest.mark.parametrize("op", [sums, maxima], ids=["sums", "maxima"])
def test_columns_move_no_more_than_they_read(op: Op) -> None:
    """Threads that shared the rows of a maximum strode over them: eight times as much."""
    x = given((64, 128))[0]
    outcome = emulate(lowered(op, x), {"x": x}, {}, "count")
    rows = [row for row in outcome.traffic if row.space == "global"]
    assert sum(row.used for row in rows) <= 1.05 * sum(row.ideal for row in rows)


def test_columns_mean_what_the_loops_mean() -> None:
    args = given((35, 33))
    (got,) = interpreted(lowered(sums, *args), inputs(sums, args), {})
    assert_equals(got, args[0].sum(0))


def test_a_call_gives_the_same_bits_again() -> None:
    x = np.random.default_rng(0).standard_normal((300, 40), np.float32)
    lowering = lowered(sums, x)
    first, second = (emulate(lowering, {"x": x}, {}, "fast").results[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_warps_that_would_be_no_gain_are_left_out() -> None:
    assert lowered(sums, M=512, N=1 << 17).mapping.nests[0].style == "points"
    assert lowered(sums, M=4096, N=16).mapping.nests[0].style == "rows"


@po.op
def softmax(x: f32[M, N]) -> object:
    return po.softmax(x, axis=0)


@po.op
def places(x: f32[M, N]) -> object:
    return po.argmax(x, axis=0)


@po.op
def deviations(x: f32[M, N]) -> object:
    """A mean, a variance, and a value of both behind these."""
    m, v, y = po.tensors("m v y")
    m[j] = po.mean(x[i, j], i)
    v[j] = po.mean((x[i, j] - m[j]) * (x[i, j] - m[j]), i)
    y[j] = m[j] / po.sqrt(v[j] + 1)
    return y


def exponentials(x: Any) -> Any:
    with np.errstate(invalid="ignore"):
        e = np.exp(x - x.max(0))
        return e / e.sum(0)


SEVERAL: dict[str, tuple[Op, tuple[Any, ...], Any]] = {
    "softmax": (softmax, (a := (special(70, 45),)), exponentials(a[0])),
    "places": (places, (a := (special(33, 70),)), a[0].argmax(0)),
    "deviations": (deviations, (a := given((50, 40))), a[0].mean(0) / np.sqrt(a[0].var(0) + 1)),
}


@needs_compiler
@pytest.mark.parametrize("name", SEVERAL)
def test_sums_one_after_the_other_are_columns_each(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A nest of two sums had blocks for its rows, whose threads strode."""
    monkeypatch.setattr(mapping, "LAUNCH_BYTES", 16)
    op, args, expected = SEVERAL[name]
    target = resolve("sm_80")
    assert target.gpu is not None
    lowering = lowered(op, *args, target=replace(target, gpu=replace(target.gpu, sms=2, sm_threads=512)))
    assert [nest.style for nest in lowering.mapping.nests][:2] == ["columns", "columns"] and not lowering.fallback
    outcome = emulate(lowering, inputs(op, args), {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    assert_equals(outcome.results[0], expected)


FAULTS = {
    "the barrier before parts are added": (r"__syncthreads\(\);", ";", ("race", "uninitialised")),
    "the guard of a column": (r"if \(j_block", "if (true || j_block", ("outside every buffer", "race")),
    "every warp stores": (r"== 0", ">= 0", ("race",)),
}


@needs_compiler
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_in_columns_is_reported(name: str) -> None:
    pattern, replacement, kinds = FAULTS[name]
    outcomes = problems(sums, (70, 45), lambda text: planted(text, pattern, replacement))
    assert outcomes, "the kernel has nothing of the kind"
    for fault, found in outcomes:
        assert found, f"line {fault.line}: without '{fault.without}' nothing is reported"
        assert any(kind in problem.what for problem in found for kind in kinds), found
