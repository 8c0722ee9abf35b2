"""Writes RELIABILITY.md: what is promised, what each CI run tries, and how much was tried in all.

    python tools/reliability.py

The totals come from tests/reliability.json, to which `polyopt fuzz --log`, `python -m tests.fuzz.verdicts --log`,
`python -m tests.mutation.harness --log`, `python -m tests.operators.product --log`,
`python -m tests.fuzz.contractions --log` and `python -m tests.codegen_c.exhaustive --log` add a line for each commit.
What a CI run tries is read from the tests.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from polyopt.fuzz import log  # noqa: E402 - the checkout at hand, installed or not
from polyopt.fuzz.generate import PLANS  # noqa: E402
from tests.codegen_c import exhaustive  # noqa: E402
from tests.fuzz import test_contractions, test_random_operators, test_verdicts, verdicts  # noqa: E402
from tests.mutation import harness, test_mutation  # noqa: E402
from tests.operators import product as operators  # noqa: E402
from tests.operators import test_operators  # noqa: E402
from tests.operators.catalogue import OPERATORS  # noqa: E402
from tests.robustness import test_processes  # noqa: E402
from tests.robustness.adversaries import ADVERSARIES  # noqa: E402

LOG = ROOT / "tests" / "reliability.json"
PAGE = ROOT / "RELIABILITY.md"

HEAD = """# Reliability

What polyopt promises about its results is checked in layers that share no code, and the checkers are checked by faults
that are planted. This page is written by `python tools/reliability.py` from `tests/reliability.json`; every number in
the column "in all" was counted by the command beside it. "False" means a wrong number, a crash, a hang, a needless
refusal or an illegal schedule that was called legal; where the column is empty, a test fails at the first one.

| layer | what | where |
|---|---|---|
| L0 | the equations, evaluated by NumPy | `polyopt/reference` |
| L1 | the proof of the final schedule, for every compile | `polyopt/poly/legality.py` |
| L2 | the loop program, enumerated in Python without isl | `polyopt/loops/verify.py`, `places.py` |
| L3 | the machine code between guard pages, at every effort of the code generator, for wide and narrow vectors | \
`polyopt/fuzz/plans.py`, `polyopt/testing/guarded.py` |
| L3 | one loop program at LLVM's efforts 0 and 3, for this processor and the least one: the same bits | \
`tests/codegen_c/test_efforts.py` |
| L5 | the printed C under AddressSanitizer and UndefinedBehaviorSanitizer, on blocks of exactly the arrays' size | \
`tests/exported` |

The report of a kernel lists what is proved; LLVM, the driver and the processor are trusted.
"""


def rows() -> Iterator[tuple[str, str, str, str, str, str]]:
    """(number, what, each CI run, in all, false, command)"""
    entries = log.read(LOG)

    def total(figure: str, name: str) -> int:
        return sum(entry.counts.get(name, 0) for entry in entries if entry.figure == figure)

    def false(figure: str) -> str:
        return str(sum(entry.failures for entry in entries if entry.figure == figure))

    programs = test_random_operators.BLOCKS * test_random_operators.BLOCK
    emulated = f"{test_random_operators.GPU_CASES} programs on the emulator"
    kernels = f"{programs} programs, about {programs * PLANS:,} plans; {emulated}"
    tried = f"{total('programs', 'kernels'):,} kernels of {total('programs', 'programs'):,} programs"
    yield (
        "1",
        "random programs under random plans equal the reference, to the bit",
        kernels,
        tried,
        false("programs"),
        ("`polyopt fuzz --log tests/reliability.json`"),
    )
    yield "2", "schedules proved when they are compiled", "all", "all", "", "`op.lower(...).verify()`"
    own = 7 * 720 + test_verdicts.BLOCKS * test_verdicts.OPERATORS * verdicts.TREES * 2 // 3
    yield (
        "3",
        "verdicts of the proof on random schedules, against enumeration",
        f"about {own:,}",
        (f"{total('verdicts', 'verdicts'):,}, of which illegal {total('verdicts', 'illegal'):,}"),
        false("verdicts"),
        "`python -m tests.fuzz.verdicts --log tests/reliability.json`",
    )
    yield (
        "4",
        "planted faults killed by L1 to L3",
        f"{test_mutation.FAULTS * len(harness.CLASSES)}",
        (f"{total('faults', 'killed'):,} of {total('faults', 'planted'):,}"),
        false("faults"),
        "`python -m tests.mutation.harness --log tests/reliability.json`",
    )
    ordinary = sum(len(batch.cases) for batch in test_operators.batches())
    cases = sum(1 for row in operators.rows() for _ in operators.cases(row))
    yield (
        "5",
        f"the {len(OPERATORS)} operators of the catalogue at awkward sizes, layouts, dtypes",
        f"{ordinary:,} cases: every size in every layout and dtype, every two sizes",
        f"{total('operators', 'cases'):,} cases of the {cases:,} of the full product",
        false("operators"),
        "`python -m tests.operators.product --log tests/reliability.json`",
    )
    for number, what, share, command in (
        (
            "6",
            "damaged cache: each truncation, each flipped bit, 15 more ways",
            "all",
            "`pytest tests/test_cache.py`",
        ),
        ("7", "processes on one cold cache with kill -9", _shared(), "`pytest tests/robustness`"),
        ("8", "threads that call and compile; forks after use", "32 x 1,000; 225", "`pytest tests/robustness`"),
        ("9", "guard pages behind every array", "all operators", "`pytest tests/operators`"),
        ("10", "cruel definitions within 10 s and 1 GiB", _cruel(), "`pytest tests/robustness`"),
        ("11", "mistakes and the messages they earn", "all", "`pytest tests/errors`"),
    ):
        yield number, what, share, "", "", command

    yield (
        "12",
        "functions of one float32 within 2 ulp of the exact value, for each of the 2^32 arguments",
        "a sample",
        f"{total('functions', 'functions')} of {len(exhaustive.NAMES)} functions",
        false("functions"),
        "`python -m tests.codegen_c.exhaustive --log tests/reliability.json`",
    )
    yield (
        "13",
        "contractions of the sizes that are packed, turned and summed in parts, against NumPy, to the bit",
        f"{test_contractions.BLOCK * test_contractions.BLOCKS}",
        f"{total('contractions', 'contractions'):,}",
        false("contractions"),
        "`python -m tests.fuzz.contractions --log tests/reliability.json`",
    )


def _shared() -> str:
    return f"{test_processes.PROCESSES} x {test_processes.OPERATORS}, half killed"


def _cruel() -> str:
    return str(sum(len(adversary.sizes) for adversary in ADVERSARIES.values()))


def page() -> str:
    """The page."""
    lines = [HEAD, "| # | what | each CI run | in all | false | command |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows()]
    lines += ["", "## Runs", "", "| what | commit | day | totals | false | seeds |", "|---|---|---|---|---|---|"]
    for entry in log.read(LOG):
        totals = ", ".join(f"{name} {count:,}" for name, count in sorted(entry.counts.items()))
        seeds = ", ".join(f"{first} to {last}" if first != last else str(first) for first, last in entry.seeds)
        lines.append(f"| {entry.figure} | {entry.commit} | {entry.day} | {totals} | {entry.failures} | {seeds} |")
    found = (ROOT / "tests" / "reliability.md").read_text(encoding="utf-8")
    return "\n".join([*lines, "", found])


def main() -> None:
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
