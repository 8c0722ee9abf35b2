"""Random programs: machine code and C give what the interpreter gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polyopt.codegen_c.emit import emit
from polyopt.errors import BoundsError
from polyopt.loops.interpret import interpret
from polyopt.loops.text import loop_text
from tests.codegen_c.kernels import GCC, BoundsFailure, call, run_c_program
from tests.codegen_c.random_programs import Case, random_case


def interpreted(case: Case) -> bool:
    """Runs the interpreter; whether a check failed."""
    try:
        interpret(case.program, case.arrays, case.sizes)
    except BoundsError:
        return True
    return False


def compare(seed: int, run: Callable[[Case], object]) -> None:
    case = random_case(seed)
    before = case.arrays["y"].copy()
    has_failed = interpreted(case)
    wanted = case.arrays["y"].copy()
    case.arrays["y"][...] = before
    try:
        run(case)
    except BoundsFailure:
        assert has_failed, f"seed {seed}: a check failed that should not"
        return
    assert not has_failed, f"seed {seed}: no check failed"
    np.testing.assert_array_equal(case.arrays["y"], wanted, f"seed {seed}\n{loop_text(case.program)}")


@pytest.mark.parametrize("vector_bits", [128, 256, 512])
@pytest.mark.parametrize("block", range(3))
def test_machine_code_gives_what_the_interpreter_gives(block: int, vector_bits: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        compare(seed, lambda case: run_machine_code(case, vector_bits))


def run_machine_code(case: Case, vector_bits: int) -> None:
    module = emit(case.program, vector_bits=vector_bits)
    call(module, list(case.arrays.values()), list(case.sizes.values()))


@pytest.mark.skipif(GCC is None, reason="there is no C compiler")
def test_c_gives_what_the_interpreter_gives(tmp_path: Path) -> None:
    for seed in range(25):
        compare(seed, lambda case: run_c_program(case.program, case.arrays, tmp_path, list(case.sizes.values())))
