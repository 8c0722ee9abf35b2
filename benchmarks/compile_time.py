"""What a user waits for besides the kernel itself: import, compile, load from the disk cache, a warm call.

`make bench-compile` runs it. Each compile is in a process of its own with a cache of its own where a user's would be:
first cold, then from the disk cache that the first process filled. `--json` appends a line with commit and machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"

IMPORT_CODE = """
import time, numpy
start = time.perf_counter()
import polyopt
print(1e3 * (time.perf_counter() - start))
"""

COMPILE_CODE = """
import runpy, sys, time
case = runpy.run_path(sys.argv[1])["demo_case"]
op, inputs, _ = case()
start = time.perf_counter()
op.compile(*inputs)
print(1e3 * (time.perf_counter() - start))
"""

CALL_CODE = """
import time, numpy as np, polyopt as po
from polyopt import f32

i, j = po.indices("i j")

@po.op
def add(a: f32["N", "N"], b: f32["N", "N"]):
    c = po.tensor("c")
    c[i, j] = a[i, j] + b[i, j]
    return c

a, b = (np.ones((8, 8), np.float32) for _ in range(2))
add(a, b)
best = float("inf")
for _ in range(50):
    start = time.perf_counter()
    for _ in range(200):
        add(a, b)
    best = min(best, (time.perf_counter() - start) / 200)
print(1e6 * best)
"""

COLD_MEDIAN_MS, COLD_MOST_MS, CACHED_MS, IMPORT_MS, CALL_US = 300.0, 3000.0, 25.0, 80.0, 3.0


def measured(code: str, *arguments: str, home: str) -> float:
    """The number that `code` prints in a new process, which finds Python's bytecode as an installed package does."""
    own = {"XDG_CACHE_HOME": f"{home}/cache", "PYTHONPYCACHEPREFIX": f"{home}/bytecode", "TMPDIR": f"{home}/temporary"}
    Path(own["TMPDIR"]).mkdir(exist_ok=True)
    ours = ("POLYOPT_CACHE_DIR", "PYTHONDONTWRITEBYTECODE")
    environment = {**{name: value for name, value in os.environ.items() if name not in ours}, **own}
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=environment, capture_output=True, text=True, check=False
    )
    if run.returncode:
        raise SystemExit(run.stderr)
    return float(run.stdout)


def commit() -> str:
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return run.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="append the figures to this file, one line a run")
    options = parser.parse_args()
    figures: dict[str, float] = {}
    print(f"{'example':<20}{'cold ms':>10}{'cached ms':>12}")
    examples: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        figures["import_ms"] = min(measured(IMPORT_CODE, home=folder) for _ in range(5))
        figures["call_us"] = measured(CALL_CODE, home=folder)
        for script in sorted(EXAMPLES.glob("*.py")):
            cold = measured(COMPILE_CODE, str(script), home=folder)
            cached = min(measured(COMPILE_CODE, str(script), home=folder) for _ in range(3))
            examples[script.stem] = {"cold_ms": cold, "cached_ms": cached}
            print(f"{script.stem:<20}{cold:>10.0f}{cached:>12.1f}")
    colds = [example["cold_ms"] for example in examples.values()]
    figures |= {"cold_median_ms": statistics.median(colds), "cold_most_ms": max(colds)}
    figures["cached_most_ms"] = max(example["cached_ms"] for example in examples.values())
    limits = {
        "cold_median_ms": COLD_MEDIAN_MS,
        "cold_most_ms": COLD_MOST_MS,
        "cached_most_ms": CACHED_MS,
        "import_ms": IMPORT_MS,
        "call_us": CALL_US,
    }
    print()
    for name, limit in limits.items():
        verdict = "ok" if figures[name] <= limit else "over"
        print(f"{name:<20}{figures[name]:>10.1f}   at most {limit:g}   {verdict}")
    if options.json:
        machine = platform.processor() or platform.machine()
        line = {"commit": commit(), "machine": machine, "time": time.time(), **figures, "examples": examples}
        options.json.parent.mkdir(exist_ok=True)
        with options.json.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
