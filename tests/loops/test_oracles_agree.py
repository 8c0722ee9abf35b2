"""The loop programs of real operators: well formed, free of races, and equal to the reference when interpreted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from polyopt.loops.interpret import interpret
from polyopt.loops.verify import check_accesses, verify
from polyopt.reference import evaluate_with_bounds
from tests.polybench import KERNELS
from tests.polybench.kernel import Kernel

SIZE = 4


def assert_oracles_agree(op: Any, *args: Any, seed: int | None = None) -> None:
    """The loop program passes every check, and interpreting it gives the reference's values."""
    lowered = op.lower(*args)
    bound = op.signature.python.bind(*args)
    bound.apply_defaults()
    inputs = {name: np.asarray(bound.arguments[name]) for name in lowered.program.parameters}
    values, bounds = evaluate_with_bounds(lowered.program, inputs)
    verify(lowered.loops)
    check_accesses(lowered.loops, arrays=inputs)
    results = {n: np.empty(values[n].shape, lowered.program.tensor(n).dtype.numpy) for n in values}
    interpret(lowered.loops, {**inputs, **results}, seed=seed)
    for name, result in results.items():
        off = np.abs(result.astype(np.float64) - values[name].astype(np.float64))
        assert (off <= 2 * bounds[name]).all(), name


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_polybench(kernel: Kernel) -> None:
    assert_oracles_agree(kernel.op, *kernel.inputs(SIZE, np.random.default_rng(0)), seed=7)
