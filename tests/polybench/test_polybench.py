"""Every PolyBench kernel equals its loops, is proved legal, and runs in parallel or in vectors."""

from __future__ import annotations

import numpy as np
import pytest

import polyopt as po
from polyopt.loops.ir import For, walk
from tests.polybench import KERNELS
from tests.polybench.kernel import Inputs, Kernel, results

SIZES = (1, 2, 7, 40, 61)

every_kernel = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)


def inputs_of(kernel: Kernel, size: int) -> Inputs:
    return kernel.inputs(size, np.random.default_rng(size))


def assert_same(kernel: Kernel, got: object, want: object) -> None:
    """Equal to rounding: each result within 1e-10 of its own largest magnitude, integers exactly."""
    got_all, want_all = results(got), results(want)  # type: ignore[arg-type]  # a result or a tuple of them
    assert len(got_all) == len(want_all)
    for number, (g, w) in enumerate(zip(got_all, want_all, strict=True)):
        assert g.shape == w.shape and g.dtype == w.dtype, f"result {number} of {kernel.name}"
        tolerance = 0 if w.dtype.kind == "i" else 1e-10 * float(np.max(np.abs(w), initial=0))
        np.testing.assert_allclose(g, w, rtol=0, atol=tolerance, err_msg=f"result {number} of {kernel.name}")


def test_the_suite_is_complete() -> None:
    assert len(KERNELS) == 30
    assert len({kernel.name for kernel in KERNELS}) == 30


@every_kernel
@pytest.mark.parametrize("size", SIZES)
def test_equals_its_loops(kernel: Kernel, size: int) -> None:
    inputs = inputs_of(kernel, size)
    assert_same(kernel, kernel.op(*inputs), kernel.loops(*inputs))


@every_kernel
@pytest.mark.parametrize("size", [1, 2, 7])
def test_the_reference_reads_the_equations_as_the_loops_do(kernel: Kernel, size: int) -> None:
    inputs = inputs_of(kernel, size)
    assert_same(kernel, kernel.op.reference(*inputs), kernel.loops(*inputs))


@every_kernel
@pytest.mark.parametrize("size", [7, 40])
def test_is_proved_legal(kernel: Kernel, size: int) -> None:
    kernel.op.lower(*inputs_of(kernel, size)).verify()


@every_kernel
def test_runs_in_parallel_or_in_vectors(kernel: Kernel) -> None:
    lowered = kernel.op.lower(*inputs_of(kernel, 40))
    kinds = {loop.kind for loop in walk(lowered.loops.body) if isinstance(loop, For)}
    assert kinds & {"parallel", "vector"}, f"{kernel.name} has only {sorted(kinds)} loops:\n{lowered.loops}"


@every_kernel
def test_one_dynamic_kernel_serves_every_size(kernel: Kernel) -> None:
    op = po.op(dynamic=True)(kernel.op.__wrapped__)
    for size in (7, 1, 2, 40):
        inputs = inputs_of(kernel, size)
        assert_same(kernel, op(*inputs), kernel.loops(*inputs))


@every_kernel
def test_strict_numerics_give_the_bits_of_the_sequential_definition(kernel: Kernel) -> None:
    op = po.op(numerics="strict")(kernel.op.__wrapped__)
    inputs = inputs_of(kernel, 19)
    for got, want in zip(results(op(*inputs)), results(op.reference(*inputs, numerics="strict")), strict=True):
        np.testing.assert_array_equal(got, want)


STATES = ("fdtd-2d", "heat-3d", "jacobi-1d", "jacobi-2d", "seidel-2d")
"""Kernels whose results are their first arguments some steps later."""


@pytest.mark.parametrize("kernel", [k for k in KERNELS if k.name in STATES], ids=lambda kernel: kernel.name)
def test_no_time_steps_give_the_initial_state(kernel: Kernel) -> None:
    *fields, _ = inputs_of(kernel, 7)
    for state, field in zip(results(kernel.op(*fields, 0)), fields, strict=False):
        np.testing.assert_array_equal(state, field)
