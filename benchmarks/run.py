"""Run times of the examples beside NumPy, each result checked before it is timed: `make bench`.

    python benchmarks/run.py [EXAMPLE ...] [--json FILE]

Each row states the floor that the machine sets (bytes over bandwidth, measured by a copy) next to what was reached, and
`--json` appends a line with commit and machine, so that a figure in a page can point at it.
"""

from __future__ import annotations

import argparse
import json
import platform
import runpy
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np

from polyopt import measure
from polyopt.cli import EXAMPLES
from polyopt.runtime import pool

ROOT = Path(__file__).resolve().parent.parent
COPIED_BYTES = 1 << 28


def bandwidth() -> float:
    """Bytes a second that a large copy reads and writes, the median of five."""
    source = np.ones(COPIED_BYTES // 8)
    target = np.empty_like(source)
    times = []
    for _ in range(5):
        start = time.perf_counter()
        np.copyto(target, source)
        times.append(time.perf_counter() - start)
    return 2 * COPIED_BYTES / statistics.median(times)


def measured(name: str, copy_rate: float) -> dict[str, Any]:
    """One row. Raises `SystemExit` where the result is wrong: a wrong result has no speed."""
    operator, inputs, oracle = runpy.run_path(str(ROOT / "examples" / f"{name}.py"))["demo_case"]()
    case = measure.case(operator, inputs, oracle)
    if case.wrong:
        raise SystemExit(f"{name} differs from {', '.join(case.wrong)}")
    report = operator.lower(*inputs).report()
    return {
        "operator": case.operator,
        "run_ms": 1e3 * case.run_s,
        "numpy_ms": 1e3 * case.numpy_s,
        "speedup": case.numpy_s / case.run_s,
        "gops": report.flops / case.run_s / 1e9,
        "gbytes": report.bytes / case.run_s / 1e9,
        "floor_ms": 1e3 * report.bytes / copy_rate,
        "compile_ms": 1e3 * case.compile_s,
    }


def commit() -> str:
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("examples", nargs="*", metavar="EXAMPLE", help=", ".join(EXAMPLES))
    parser.add_argument("--json", type=Path, help="append the figures to this file, one line a run")
    options = parser.parse_args()
    copy_rate = bandwidth()
    print(f"{pool.num_threads()} threads, copy {copy_rate / 1e9:.1f} GB/s")
    print(f"{'operator':<18}{'run ms':>9}{'NumPy ms':>10}{'ratio':>8}{'Gop/s':>8}{'GB/s':>8}{'bytes floor ms':>16}")
    rows = []
    for name in options.examples or EXAMPLES:
        row = measured(name, copy_rate)
        rows.append(row)
        print(
            f"{row['operator']:<18}{row['run_ms']:>9.3g}{row['numpy_ms']:>10.3g}{row['speedup']:>8.3g}"
            f"{row['gops']:>8.3g}{row['gbytes']:>8.3g}{row['floor_ms']:>16.3g}"
        )
    if options.json:
        line = {"commit": commit(), "machine": platform.processor() or platform.machine(), "rows": rows}
        with options.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
