"""Faults planted in generated kernels are found by the emulator, at lines of the generated text."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, compilation, f32
from polyopt.runtime.cuda.image import from_source
from polyopt.runtime.cuda.program import OnHost, Program
from polyopt.runtime.emulator.driver import Problem
from tests.codegen_cuda.running import Array, emulate, lowered

M, N = po.sizes("M N")
i, j = po.indices("i j")


@po.op
def softmax(x: f32[M, N]):
    return po.softmax(x, axis=-1)


@po.op
def normalised(x: f32[M, N]):
    y = po.tensor("y")
    y[i, j] = (x[i, j] - po.mean(x[i, j], j)) * po.rsqrt(po.mean(x[i, j] * x[i, j], j) + 1e-5)
    return y


@po.op
def shifted(x: f32[M, N]):
    y = po.tensor("y")
    y[i, j] = x[i, j] + x[i, j + 1]
    return y


@po.op
def column_sums(x: f32[M, N]):
    s = po.tensor("s")
    s[j] += x[i, j]
    return s


@dataclass(frozen=True, slots=True)
class Fault:
    """text: where the fault was planted; line: which line it is; without: what stood there"""

    text: str
    line: int
    without: str


def planted(text: str, pattern: str, replacement: str) -> list[Fault]:
    """One fault for each line of kernels that the pattern matches."""
    found = []
    lines = text.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if re.search(pattern, line):
            changed = [*lines[:number], re.sub(pattern, replacement, line, count=1), *lines[number + 1 :]]
            found.append(Fault("".join(changed), number + 1, line.strip()))
    return found


def problems(
    op: Op, shape: tuple[int, int], fault: Callable[[str], list[Fault]], *others: Array
) -> list[tuple[Fault, list[Problem]]]:
    """What the emulator says of each planted fault. others: arguments after the first one, which has the shape"""
    x = np.random.default_rng(0).standard_normal(shape, np.float32)
    lowering = lowered(op, x, *others)
    image = from_source(lowering.cuda)
    given = {array.name: OnHost(value) for array, value in zip(image.arrays, (x, *others))}
    (result,) = (a for a in image.arrays if a.role == "output")
    out: Array = np.zeros(tuple(int(length) for length in result.shape if isinstance(length, int)), np.float32)
    found = []
    for each in fault(lowering.cuda.text):
        emulator = compilation.emulator()
        Program(replace(image, text=each.text), emulator).run({**given, result.name: OnHost(out)}, {})
        found.append((each, emulator.found))
    return found


CASES: dict[str, tuple[Op, tuple[int, int], str, str, tuple[str, ...]]] = {
    "barriers of a softmax": (softmax, (3, 300), r"__syncthreads\(\);", ";", ("race", "uninitialised")),
    "barriers of a layernorm": (normalised, (3, 300), r"__syncthreads\(\);", ";", ("race", "uninitialised")),
    "the guard of an axis": (shifted, (3, 71), r"if \(j < 70\)", "if (true)", ("outside every buffer", "race")),
    "an index one too far": (shifted, (3, 71), r"\+ j \+ 1\]", "+ j + 2]", ("outside every buffer",)),
    "the guard of a column": (column_sums, (5, 33), r"if \(j < 33\)", "if (true)", ("outside every buffer", "race")),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_in_a_generated_kernel_is_reported_with_a_line(name: str) -> None:
    op, shape, pattern, replacement, kinds = CASES[name]
    outcomes = problems(op, shape, lambda text: planted(text, pattern, replacement))
    assert outcomes, "the kernel has nothing of the kind"
    for fault, found in outcomes:
        assert found, f"line {fault.line}: without '{fault.without}' nothing is reported"
        assert all(problem.line > 0 for problem in found)
        assert any(kind in problem.what for problem in found for kind in kinds), found


def test_what_only_the_leader_reads_stays_the_leaders_where_the_compiler_could_read_it_before_its_loop() -> None:
    """An access of every thread, moved out of `for (...) if (thread == 0)`, would be a race that the text has not."""
    greatest = po.index("k", extent=M)

    @po.op
    def carried(x: f32[M, N]):
        y = po.tensor("y", shape=(M, N))
        first = po.reduce(lambda a, b: po.maximum(a, b), po.where((i + j) % 3 == 1, 1.0, 2.0), greatest, init=3)
        y[i, j] = po.where((i >= 2) & (j >= 2) & (j < N - 1), y[i, j - 1], first)
        return y

    outcome = emulate(lowered(carried, M=4, N=33), {"x": np.zeros((4, 33), np.float32)}, {})
    assert outcome.problems == ()
    assert np.array_equal(outcome.results[0], np.full((4, 33), 3, np.float32))


def test_what_the_fixture_says_of_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch, polyopt_check: Any) -> None:
    """The line, what is wrong with it, and the kernel's text with its lines numbered."""
    from polyopt import gpu_pipeline

    monkeypatch.setattr("polyopt.compilation.gpu_here", lambda: None)
    emit = gpu_pipeline.cuda_emit.emit

    def wrong(program: Any, **options: Any) -> Any:
        source = emit(program, **options)
        return replace(source, text=source.text.replace("if (j < 70)", "if (true)"))

    monkeypatch.setattr(gpu_pipeline.cuda_emit, "emit", wrong)
    op = po.op(shifted.__wrapped__)
    with pytest.raises(pytest.fail.Exception) as caught:
        polyopt_check(op, M=3, N=71, target="cuda")
    text = str(caught.value)
    line = next(
        n for n, row in enumerate(op.lower(M=3, N=71, target="cuda").source("cuda").splitlines(), 1) if "y[" in row
    )
    assert f"line {line}: access outside every buffer" in text or f"line {line}: race" in text
    assert "on the CPU emulator: there is no GPU here" in text
    assert "PO_KERNEL" in text
