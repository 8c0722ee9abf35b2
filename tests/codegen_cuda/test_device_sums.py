"""Long reductions with few results on a GPU: parts that blocks share, and a kernel that reduces those."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, f16, f32, f64, i8
from polyopt.fusion import device_sums
from polyopt.loops.ir import Const
from polyopt.target import GpuTarget, resolve
from tests.codegen_cuda.running import emulate, interpreted, lowered
from tests.codegen_cuda.test_emulated import assert_equals, inputs, needs_compiler

B, C, H, W, K, M, N, T = po.sizes("B C H W K M N T")
b, c, h, w, i, j, k = po.indices("b c h w i j k")


@po.op
def total(x: f32[N]) -> object:
    z = po.tensor("z", shape=())
    z[()] += x[i]
    return z


@po.op
def norm(x: f32[M, N]) -> object:
    return po.sqrt(po.sum(x[i, j] * x[i, j], (i, j)))


@po.op
def largest(x: f64[N]) -> object:
    return po.max(x[i], i), po.argmax(x[i], i)


@po.op
def place(x: f32[N]) -> object:
    return po.argmax(x[i], i)


@po.op
def product_of_all(x: f64[N]) -> object:
    return po.prod(x[i], i)


@po.op
def truths(x: i8[N]) -> object:
    return po.any(x[i] > 7, i), po.all(x[i] > -9, i)


@po.op
def halves(x: f16[N], c: f16[N]) -> object:
    return po.mean(x[i] - c[i], i)


@po.op
def moments(x: f64[N]) -> object:
    a, b = po.tensor("a", shape=()), po.tensor("b", shape=())
    a[()] += x[i]
    b[()] += x[i] * x[i]
    return a, b


@po.op
def columns(x: f32[M, N]) -> object:
    z = po.tensor("z")
    z[j] += x[i, j]
    return z


@po.op
def channels(x: f32[B, C, H, W]) -> object:
    """Means and variances of a batch's channels."""
    m, v = po.tensor("m"), po.tensor("v")
    m[c] = po.mean(x[b, c, h, w], (b, h, w))
    v[c] = po.mean((x[b, c, h, w] - m[c]) * (x[b, c, h, w] - m[c]), (b, h, w))
    return m, v


@po.op
def images(x: f32[B, C, H, W]) -> object:
    z = po.tensor("z", shape=())
    z[()] += x[b, c, h, w]
    return z


@po.op
def rows(x: f64[M, N]) -> object:
    return po.softmax(x, -1)


@po.op
def mm(x: f32[M, K], y: f32[K, N]) -> object:
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def padded(x: f32[N]) -> object:
    s = po.index("s", extent=N)
    return po.sum(x.pad(1)[s + 3], s)


@po.op
def gathered(x: f32[M], at: po.i32[N]) -> object:
    return po.sum(x[at[i]], i)


@po.op
def later_first(x: f64[N], y: f64[N]) -> object:
    """Deviations from two means, one of which is written before its mean."""
    a, b, c, d = (po.tensor(name, shape=()) for name in "abcd")
    a[()] += x[i]
    b[()] += (x[i] - a[()]) * (x[i] - a[()])
    c[()] += (y[i] - d[()]) * (y[i] - d[()])
    d[()] += y[i]
    return a, b, c, d


@po.op
def crossed(x: f64[M], y: f64[N]) -> object:
    """Each sum of one length needs one of the other length."""
    a, b, c, d = (po.tensor(name, shape=()) for name in "abcd")
    a[()] += x[i]
    b[()] += y[j]
    c[()] += (x[i] - b[()]) * (x[i] - b[()])
    d[()] += (y[j] - a[()]) * (y[j] - a[()])
    return c, d


@po.op
def scaled(x: f64[N]) -> object:
    y = po.tensor("y")
    y[i] = x[i] / po.sum(po.abs(x[j]), j)
    return y


@po.op
def guarded(x: f64[M], y: f64[K, M]) -> object:
    z, column = po.tensor("z", shape=(M,)), po.index("column", extent=M)
    z[column] = po.sum(x[i] * po.max(y[k, column - 1], k), i, where=column >= 1)
    return z


@po.op(numerics="strict")
def in_order(x: f32[N]) -> object:
    return po.sum(x[i], i)


@po.op
def steps(x: f64[T, N]) -> object:
    z, t = po.tensor("z", shape=(T + 1,), dtype=po.f64), po.index("t", extent=T)
    z[0] = po.cast(1, po.f64)
    z[t + 1] = po.sum(x[t, i] * z[t], i)
    return z


def given(*shapes: tuple[int, ...], dtype: Any = np.float32) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    return tuple(random.integers(-8, 9, shape).astype(dtype) for shape in shapes)


def deviation(x: Any, center: Any) -> Any:
    return ((x - center) ** 2).sum()


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


SOME = np.random.default_rng(0).random(3000)

CASES: dict[str, tuple[Op, tuple[Any, ...], Any]] = {
    "all": (total, (a := given((4096,))), a[0].sum()),
    "ragged": (total, (a := given((5003,))), a[0].sum()),
    "two axes": (norm, (a := given((37, 129))), np.sqrt((a[0] ** 2).sum())),
    "a maximum in a minimum": (largest, (SOME,), (SOME.max(), SOME.argmax())),
    "the place of a NaN": (place, (np.where(np.arange(3000) == 2217, np.nan, SOME).astype(np.float32),), 2217),
    "a product": (product_of_all, (SOME + 0.5,), np.prod(SOME + 0.5)),
    "truths": (truths, (a := given((4000,), dtype=np.int8)), (True, True)),
    "halves": (halves, (a := given((4000,), (4000,), dtype=np.float16)), np.mean((a[0] - a[1]).astype(float))),
    "two sums": (moments, (SOME,), (SOME.sum(), (SOME**2).sum())),
    "a sum before its mean": (
        later_first,
        (SOME, SOME[::-1].copy()),
        (SOME.sum(), d := deviation(SOME, SOME.sum()), d, SOME.sum()),
    ),
    "two lengths crossed": (
        crossed,
        (SOME, SOME[:2500]),
        (deviation(SOME, SOME[:2500].sum()), deviation(SOME[:2500], SOME.sum())),
    ),
    "columns": (columns, (a := given((3001, 40))), a[0].sum(0)),
    "channels": (
        channels,
        (a := given((5, 3, 19, 13))),
        (a[0].mean((0, 2, 3), dtype=float), a[0].var((0, 2, 3), dtype=float)),
    ),
    "parts of one term": (images, (a := given((5, 67, 3, 7))), a[0].sum()),
    "rows": (rows, (SOME.reshape(3, 1000),), softmax(SOME.reshape(3, 1000))),
    "tiles": (mm, (a := given((32, 66), (66, 32))), a[0] @ a[1]),
    "ragged tiles": (mm, (a := given((33, 90), (90, 40))), a[0] @ a[1]),
    "an edge": (padded, (a := given((4001,))), a[0][3:].sum() + 3),
    "data subscripts": (gathered, (a := (given((50,))[0], (SOME * 50).astype(np.int32))), a[0][a[1]].sum()),
    "read by all": (scaled, (SOME,), SOME / SOME.sum()),
}
"""Operators, arguments, results; each with a reduction that is split on the small GPU below."""


def small_gpu() -> Any:
    target = resolve("sm_80")
    assert isinstance(target.gpu, GpuTarget)
    return replace(target, gpu=replace(target.gpu, sms=16, sm_threads=1024))


@pytest.fixture(autouse=True)
def kernels_start_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small sums are worth splitting."""
    monkeypatch.setattr(device_sums, "LAUNCH_BYTES", 16)
    monkeypatch.setattr(device_sums, "LEAST_TERMS", 16)


@pytest.mark.parametrize("name", [name for name in CASES if name != "ragged tiles"])  # three minutes
def test_the_interpreter_agrees(name: str) -> None:
    op, arguments, expected = CASES[name]
    lowering = lowered(op, *arguments, target=small_gpu())
    assert not lowering.fallback and "_part" in str(lowering.rewritten)
    results = interpreted(lowering, inputs(op, arguments), {}, seed=1)
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, wanted in zip(results, expected, strict=True):
        assert_equals(got, np.asarray(wanted))


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_the_emulator_agrees_and_finds_nothing_wrong(name: str) -> None:
    op, arguments, expected = CASES[name]
    lowering = lowered(op, *arguments, target=small_gpu())
    outcome = emulate(lowering, inputs(op, arguments), {})
    assert outcome.problems == () and outcome.failed is None
    expected = expected if isinstance(expected, tuple) else (expected,)
    for got, wanted in zip(outcome.results, expected, strict=True):
        assert_equals(got, np.asarray(wanted))


def blocks(op: Op, **sizes: Any) -> list[int]:
    """Of each kernel on an A100."""
    grids = [kernel.grid for kernel in lowered(op, **sizes).cuda.kernels]
    return [prod(length.value for length in grid if isinstance(length, Const)) for grid in grids]


def threads(op: Op, **sizes: Any) -> list[int]:
    """Of each kernel on an A100."""
    kernels = lowered(op, **sizes).cuda.kernels
    return [count * prod(kernel.block) for count, kernel in zip(blocks(op, **sizes), kernels, strict=True)]


def test_the_sum_of_an_array_keeps_every_multiprocessor_busy() -> None:
    assert blocks(total, N=1 << 26) == [512, 1]
    assert "512 partial sums of 131072 terms along i" in str(lowered(total, N=1 << 26).fusion)


def test_sums_that_need_not_wait_for_each_other_share_a_kernel() -> None:
    assert len(blocks(moments, N=1 << 24)) == 2


def test_long_rows_are_shared_by_blocks() -> None:
    """Maxima, their maximum, sums, their sum, quotients."""
    assert len(blocks(rows, M=8, N=1 << 20)) == 5


def test_what_a_value_has_twice_is_cut_into_parts_once() -> None:
    """A position found in 32 bits is compared with "nowhere" and widened: each part was looked for twice."""
    partial = [tensor.name for tensor in lowered(place, N=70000).rewritten.tensors if "_partial" in tensor.name]
    assert partial == ["result_partial", "result_partial_2"]


@pytest.mark.parametrize("sizes", [(32, 64, 56, 56), (32, 64, 28, 28), (1, 64, 56, 56), (4096, 64, 7, 7)], ids=str)
def test_sums_of_channels_keep_the_gpu_busy_though_their_rows_are_short(sizes: tuple[int, ...]) -> None:
    """Threads share one loop of a sum, the short one along memory."""
    gpu = resolve("sm_90").gpu
    assert gpu is not None
    found = threads(channels, **dict(zip("BCHW", sizes, strict=True)), target="sm_90")
    assert max(found) >= gpu.threads / 5


def test_threads_share_the_rows_of_parts_of_one_term() -> None:
    """A loop of one step between the others kept them from running along memory."""
    mapping = str(lowered(images, B=32, C=256, H=56, W=56).mapping)
    assert "threads share w" in mapping and "cut into" not in mapping


def test_what_a_guarded_sum_takes_as_given_is_not_computed_where_the_guard_forbids_it() -> None:
    """Column -1 of y would be read."""
    lowering = lowered(guarded, M=3, K=1 << 16, target=small_gpu())
    assert "[k, column - 1]" in str(lowering.rewritten) and "k_part" not in str(lowering.rewritten)


@pytest.mark.parametrize(
    ("op", "sizes"),
    [
        (total, {"N": 1 << 12}),
        (rows, {"M": 4096, "N": 4096}),
        (columns, {"M": 65536, "N": 4096}),
        (mm, {"M": 1024, "N": 1024, "K": 1024}),
        (in_order, {"N": 1 << 26}),
        (steps, {"T": 16, "N": 1 << 24}),
    ],
    ids=["short", "many rows", "many columns", "many tiles", "in order", "a recurrence"],
)
def test_what_would_gain_nothing_stays_whole(op: Op, sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert "_part" not in str(lowered(op, **sizes).rewritten)
