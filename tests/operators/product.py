"""The full product of operators, sizes, layouts and dtypes, as far as the time goes, and what came of it.

    python -m tests.operators.product --seconds 3600 --first 0 --log tests/reliability.json

A row is one operator in one layout and one dtype, at every combination of sizes. Rows are numbered in an order that
mixes operators, so that any stretch of them is a fair part; where a run ends, the next one begins.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from random import Random

from polyopt import settings
from polyopt.fuzz import log
from polyopt.testing.check import Checker
from tests.operators.catalogue import OPERATORS
from tests.operators.children import failed
from tests.operators.operator import LAYOUTS, Case, Layout, Operator
from tests.operators.test_operators import size_classes

Row = tuple[Operator, Layout, str]


def rows() -> list[Row]:
    """Every row, in an order that is the same in every run."""
    found = [(operator, layout, dtype) for operator in OPERATORS for layout in LAYOUTS for dtype in operator.dtypes]
    return Random(0).sample(found, len(found))


def cases(row: Row) -> Iterator[Case]:
    operator, layout, dtype = row
    for classes in product(*(size_classes(operator, name) for name in operator.sizes)):
        yield Case(operator, classes, layout, dtype)


def run(first: int, seconds: float, checker: Checker) -> log.Entry:
    """Checks rows from number `first` on until the time is over; names the cases that failed."""
    until, counts, failures, number = time.monotonic() + seconds, {"rows": 0, "cases": 0}, 0, first
    for number, row in enumerate(rows()[first:], first):
        found = tuple(cases(row))
        for failure in failed(found, checker):
            failures += 1
            sys.stdout.write(f"row {number}, {failure}\n")
        counts["cases"] += len(found)
        counts["rows"] += 1
        if time.monotonic() > until:
            break
    return log.Entry("operators", log.commit(), counts, failures, ((first, number),))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the row to begin with")
    parser.add_argument("--seconds", type=float, default=60, metavar="S", help="begin no row after that (60)")
    parser.add_argument("--log", type=Path, help="add the totals to this log")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, settings.override(cache_dir=Path(folder)):
        entry = run(options.first, options.seconds, Checker())
    sys.stdout.write(f"{entry.counts['cases']} cases of {entry.counts['rows']} rows: {entry.failures} failed; ")
    sys.stdout.write(f"the next row is {entry.seeds[0][1] + 1} of {len(rows())}\n")
    if options.log is not None:
        log.add(options.log, entry)


if __name__ == "__main__":
    main()
