"""Every f32 argument of the math functions of one operand, and what came of it.

    python -m tests.codegen_c.exhaustive --log tests/reliability.json exp log

A function takes minutes of one processor; where the result is the correctly rounded one, its error is not computed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

from polyopt.codegen_c.vmath import FUNCTIONS
from polyopt.fuzz import log
from tests.codegen_c.vmath_support import exact_values, llvm_instance, same_bits, sampled_bits, worst

ARGUMENTS = 1 << 32
BLOCK = 1 << 18
"""So few that what a block needs stays in a cache."""
MOST_ULP = 2.0
NAMES = tuple(f.name for f in FUNCTIONS.values() if f.arity == 1)


def worst_of_all(name: str) -> tuple[float, str]:
    """The greatest error of a function in ulp, at least 0.5, and a line that says where it is made."""
    kernel = llvm_instance(name, "float32", 16)
    greatest, where = 0.5, f"{name} is correctly rounded"
    for first in range(0, ARGUMENTS, BLOCK):
        x = sampled_bits("float32", 1, first, first + BLOCK)
        result, exact = kernel(x), exact_values(name, x)
        with np.errstate(over="ignore"):
            off = ~same_bits(result, exact.astype("float32"))
        if off.any():
            error, text = worst(name, result[off], exact[off], x[off])
            greatest, where = max((greatest, where), (error, text))
    return greatest, where


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=NAMES, metavar="function", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--log", type=Path, help="add the totals to this log")
    options = parser.parse_args()
    for name in options.names:
        greatest, where = worst_of_all(name)
        sys.stdout.write(f"{where}\n")
        sys.stdout.flush()
        if options.log is not None:
            counts = {"functions": 1, "arguments": ARGUMENTS}
            log.add(options.log, log.Entry("functions", log.commit(), counts, int(greatest > MOST_ULP)))


if __name__ == "__main__":
    main()
