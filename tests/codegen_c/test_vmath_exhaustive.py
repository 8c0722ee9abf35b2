"""Every f32 argument of every math function of one operand: `pytest -m exhaustive tests/codegen_c`."""

from __future__ import annotations

import pytest

from polyopt.codegen_c.vmath import FUNCTIONS
from tests.codegen_c.vmath_support import exact_values, llvm_instance, sampled_bits, worst

BLOCK = 1 << 22


@pytest.mark.exhaustive
@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", [f.name for f in FUNCTIONS.values() if f.arity == 1])
def test_no_f32_argument_is_off_by_more_than_two_ulp(name: str) -> None:
    kernel = llvm_instance(name, "float32", 16)
    greatest, where = 0.0, ""
    for first in range(0, 1 << 32, BLOCK):
        x = sampled_bits("float32", 1, first, first + BLOCK)
        error, text = worst(name, kernel(x), exact_values(name, x), x)
        greatest, where = max((greatest, where), (error, text))
    print(where)  # noqa: T201  # shown by `pytest -s`: the figure that the docstrings quote
    assert greatest <= 2.0, where
