"""Random programs: machine code and C give what the interpreter gives."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polyopt.codegen_c.emit import emit
from polyopt.errors import BoundsError
from polyopt.loops import edges, interior, split
from polyopt.loops.interpret import interpret
from polyopt.loops.ir import LoopProgram
from polyopt.loops.text import loop_text
from tests.codegen_c.kernels import GCC, BoundsFailure, call, run_c_program
from tests.codegen_c.random_nests import random_nests
from tests.codegen_c.random_programs import Case, random_case

NESTS = (*range(30), 1224, 1265, 1513, 1700, 1905)
"""Seeds of programs of several nests; code of the last five had the iterations of another loop of a name."""

Results = tuple[bool, dict[str, np.ndarray[Any, Any]]]


def compare(case: Case, run: Callable[[], object], form: str) -> None:
    """What a form of the program stores, or that a check fails, against the interpreter."""
    wanted = results(case, partial(interpret, case.program, case.arrays, case.sizes))
    found = results(case, run)
    assert found[0] == wanted[0], f"a check fails for one of the two, {form}\n{loop_text(case.program)}"
    for name, array in found[1].items():
        np.testing.assert_array_equal(array, wanted[1][name], f"{name}, {form}\n{loop_text(case.program)}")


def results(case: Case, run: Callable[[], object]) -> Results:
    """Whether a check failed, and what was stored; each run starts from the same results."""
    for name in case.program.written:
        case.arrays[name][...] = 7
    try:
        run()
    except (BoundsError, BoundsFailure):
        return True, {}
    return False, {name: case.arrays[name].copy() for name in case.program.written}


@pytest.mark.parametrize("vector_bits", [128, 256, 512])
@pytest.mark.parametrize("block", range(3))
def test_machine_code_gives_what_the_interpreter_gives(block: int, vector_bits: int) -> None:
    for seed in range(block * 10, block * 10 + 10):
        case = random_case(seed)
        compare(case, partial(run_machine_code, case, case.program, vector_bits), f"seed {seed}")


def run_machine_code(case: Case, program: LoopProgram, vector_bits: int) -> None:
    module = emit(program, vector_bits=vector_bits)
    call(module, list(case.arrays.values()), list(case.sizes.values()))


@pytest.mark.skipif(GCC is None, reason="there is no C compiler")
def test_c_gives_what_the_interpreter_gives(tmp_path: Path) -> None:
    for seed in range(25):
        case = random_case(seed)
        compare(
            case,
            partial(run_c_program, case.program, case.arrays, tmp_path, list(case.sizes.values())),
            f"seed {seed}",
        )


@pytest.mark.parametrize("seed", NESTS)
def test_nests_that_share_names_give_what_the_interpreter_gives(seed: int) -> None:
    check_forms(random_nests(seed), (128, 256, 512)[seed % 3])


@pytest.mark.parametrize("seed", range(20))
def test_nests_with_edges_give_what_the_interpreter_gives(seed: int) -> None:
    check_forms(random_nests(seed, edges=True), (128, 256, 512)[seed % 3])


def check_forms(case: Case, bits: int) -> None:
    """The program after each pass over loops, and as machine code before and after them."""
    program = case.program
    for rewritten in (interior.split, split.split, edges.split):
        program = rewritten(program)
        compare(case, partial(interpret, program, case.arrays, case.sizes), rewritten.__module__)
    for form in (case.program, program):
        compare(case, partial(run_machine_code, case, form, bits), f"{bits} bits")
