"""Contractions whose sizes only a call gives: tiles like static ones, a nest for aligned rows and one for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import polyopt as po
from polyopt import Op, bf16, f32, i8
from polyopt.codegen_cuda import ring_proof
from polyopt.codegen_cuda.source import Branch
from polyopt.dsl.ir import Var
from polyopt.gpu_pipeline import GpuLowering
from polyopt.runtime.cuda import compilers
from tests.codegen_cuda.running import Array, changed_text, emulate, interpreted
from tests.codegen_cuda.test_emulated import needs_compiler
from tests.codegen_cuda.test_faults import planted

B, M, N, K, C = po.sizes("B M N K C")
b, i, j, k = po.indices("b i j k")
RANDOM = np.random.default_rng(0)


@po.op
def fused(x: f32[M, K], w: f32[K, N], c: f32[N]) -> object:
    y, out = po.tensors("y out")
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j] + c[j], 0)
    return out


@po.op
def turned(x: f32[K, M], w: f32[N, K]) -> object:
    y = po.tensor("y")
    y[i, j] += x[k, i] * w[j, k]
    return y


@po.op
def largest(x: f32[M, K], w: f32[K, N]) -> object:
    y = po.tensor("y")
    y[i, j] = -1000.0
    y[i, j] = po.maximum(y[i, j], po.max(x[i, k] - w[k, j], k))
    return y


@po.op
def shortest(x: f32[M, K], w: f32[K, N]) -> object:
    y = po.tensor("y")
    y[i, j] = po.min(x[i, k] + w[k, j], k)
    return y


@po.op
def halves(x: bf16[B, M, K], w: bf16[B, K, N]) -> object:
    y = po.tensor("y", dtype=f32)
    y[b, i, j] += x[b, i, k] * w[b, k, j]
    return y


@po.op
def bytes_(x: i8[M, K], w: i8[N, K]) -> object:
    y = po.tensor("y", dtype=po.i32)
    y[i, j] += x[i, k] * w[j, k]
    return y


@po.op
def windows(x: f32[M, C], w: f32[3, C, N]) -> object:
    y = po.tensor("y")
    r, c = po.indices("r c")
    y[i, j] += x[i + r, c] * w[r, c, j]
    return y


def values(dtype: Any, *shape: int) -> Array:
    found: Array = RANDOM.integers(-8, 9, shape).astype(dtype)
    return found


def of(kind: Any, *shapes: Callable[[int, int, int], tuple[int, ...]]) -> Callable[[int, int, int], tuple[Array, ...]]:
    return lambda m, n, k: tuple(values(kind, *shape(m, n, k)) for shape in shapes)


CASES: dict[str, tuple[Op, Callable[[int, int, int], tuple[Array, ...]], Callable[..., Array]]] = {
    "fused": (
        fused,
        of(np.float32, lambda m, n, k: (m, k), lambda m, n, k: (k, n), lambda m, n, k: (n,)),
        lambda x, w, c: np.maximum(x @ w + c, 0),
    ),
    "turned": (turned, of(np.float32, lambda m, n, k: (k, m), lambda m, n, k: (n, k)), lambda x, w: x.T @ w.T),
    "min and plus": (
        shortest,
        of(np.float32, lambda m, n, k: (m, k + 1), lambda m, n, k: (k + 1, n)),  # a minimum of nothing is an error
        lambda x, w: (x[:, :, None] + w).min(1),
    ),
    "halves": (
        halves,
        of(ml_dtypes.bfloat16, lambda m, n, k: (2, m, k), lambda m, n, k: (2, k, n)),
        lambda x, w: x.astype("f4") @ w.astype("f4"),
    ),
    "bytes": (
        bytes_,
        of(np.int8, lambda m, n, k: (m, k), lambda m, n, k: (n, k)),
        lambda x, w: x.astype("i4") @ w.T.astype("i4"),
    ),
    "windows": (
        windows,
        of(np.float32, lambda m, n, k: (m + 2, k), lambda m, n, k: (3, k, n)),
        lambda x, w: sum(x[r : r + len(x) - 2] @ w[r] for r in range(3)),
    ),
}
SHAPES = [(70, 37, 101), (64, 96, 64), (33, 68, 20), (1, 2, 3), (5, 4, 0), (0, 3, 5)]


def symbolic(op: Op) -> GpuLowering:
    lowering = op.lower(target="sm_80")
    assert isinstance(lowering, GpuLowering)
    return lowering


def given(lowering: GpuLowering, args: tuple[Array, ...]) -> tuple[dict[str, Array], dict[str, int]]:
    """The inputs and the sizes by name."""
    inputs = dict(zip(lowering.program.parameters, args, strict=True))
    sizes = {
        extent.name: length
        for buffer in lowering.loops.arguments
        if buffer.name in inputs
        for extent, length in zip(buffer.shape, inputs[buffer.name].shape, strict=True)
        if isinstance(extent, Var)
    }
    return inputs, sizes


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_tiles_of_symbolic_sizes_give_what_numpy_gives(name: str) -> None:
    op, arguments, reference = CASES[name]
    lowering = symbolic(op)
    assert [nest.style for nest in lowering.mapping.nests] == ["tiles"] and not lowering.fallback
    assert any(isinstance(step, Branch) for step in lowering.cuda.steps), "rows are aligned or not"
    for shape in SHAPES:
        args = arguments(*shape)
        outcome = emulate(lowering, *given(lowering, args))
        assert not outcome.problems, f"{shape}: {outcome.problems[0]}\n{lowering.source('cuda')}"
        np.testing.assert_array_equal(outcome.results[0], reference(*args), err_msg=str(shape))


def test_symbolic_rings_are_proved_and_run_by_the_interpreter() -> None:
    lowering = symbolic(turned)
    assert ring_proof.prove(lowering.loops) == 2
    args = values(np.float32, 37, 9), values(np.float32, 10, 37)
    (got,) = interpreted(lowering, *given(lowering, args))
    np.testing.assert_array_equal(got, args[0].T @ args[1].T)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
@pytest.mark.parametrize("name", CASES)
def test_resources(name: str, arch: str) -> None:
    op = CASES[name][0]
    for found in compilers.compile_text(op.lower(target=arch).source("cuda"), arch).resources.values():
        assert not found.spills and found.stack == 0
        assert found.registers <= 128, "more would leave room for a single block of 256 threads only"


FAULTS = {
    "what ends the filling of the ring": (r"if \(k_block(_2)? < K / 16 \* 16\)", "if (true)", 36),
    "what ends the copies ahead": (r"if \(k_block(_2)? \+ 48 < K / 16 \* 16\)", "if (true)", 36),
    "the wait": (r"po_cp_wait<2>\(\);", ";", 36),
    "a barrier": (r"__syncthreads\(\);", ";", 84),
    "the guard of the results": (r"if \(i_block(_2)? \+ row.*\) \{", "if (true) {", 36),
}
"""What is changed into what, and a length of the sum that needs it: the rest of 84 follows a piece in its own slot."""


@needs_compiler
@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_reported_with_a_line(name: str) -> None:
    """In the nest for aligned rows by sizes that are aligned, in the other one by sizes that are not."""
    op, arguments, _ = CASES["fused"]
    lowering = symbolic(op)
    pattern, replacement, length = FAULTS[name]
    faults = planted(lowering.cuda.text, pattern, replacement)
    assert len(faults) >= 2
    start = lowering.cuda.text.index(f"{lowering.cuda.kernels[1].name}(")
    second = lowering.cuda.text[:start].count("\n")
    for fault in faults:
        args = arguments(35, 71, length + 1) if fault.line > second else arguments(36, 72, length)
        outcome = emulate(changed_text(lowering, fault.text), *given(lowering, args))
        assert outcome.problems, f"line {fault.line}: without '{fault.without}' nothing is reported"
        assert all(problem.line > 0 for problem in outcome.problems)


@needs_compiler
@pytest.mark.parametrize("start", [0, 3])
def test_a_sum_that_may_have_no_terms_reads_nothing_then(start: int) -> None:
    """Of less than none: the last pieces began before the sum does, at elements that are not there."""

    @po.op
    def op(x: f32[M, K], w: f32[K, N]):
        inner = po.index("k", start, K - 5)
        y = po.tensor("y")
        y[i, j] += x[i, inner] * w[inner, j]
        return y

    lowering = symbolic(op)
    assert [nest.style for nest in lowering.mapping.nests] == ["tiles"]
    for length in (1, 4, 5, 9, 24):
        x, w = values(np.float32, 40, length), values(np.float32, length, 40)
        outcome = emulate(lowering, *given(lowering, (x, w)))
        assert outcome.problems == ()
        end = max(length - 5, start)
        np.testing.assert_array_equal(outcome.results[0], x[:, start:end] @ w[start:end])
