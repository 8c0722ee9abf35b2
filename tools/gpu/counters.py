"""What the emulator counts of a kernel's traffic, beside what Nsight Compute counts on the hardware.

Sectors of global memory that warps ask for, and wavefronts of shared memory: by the emulator's, gates hold kernels.
"""

from __future__ import annotations

import csv
import io
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
METRICS: Mapping[str, tuple[str, ...]] = {
    "global": (
        "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
        "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    ),
    "shared": (
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
        "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    ),
}
"""What the hardware's counters of each kind of memory are called."""


def emulated() -> dict[str, dict[str, int]]:
    """What the emulator counts, by operator and kind of memory."""
    from tests.codegen_cuda.gate_ops import OPS
    from tests.codegen_cuda.running import emulate

    found = {}
    for name in OPS:
        lowering, arguments = _problem(name)
        traffic = emulate(lowering, arguments, {}, "count").traffic
        found[name] = {space: sum(row.used for row in traffic if row.space == space) for space in METRICS}
    return found


def compared() -> dict[str, dict[str, dict[str, int]]]:
    """By operator and kind of memory, what the emulator and the hardware count; nothing of the latter without `ncu`."""
    found = {name: {space: {"emulated": n} for space, n in row.items()} for name, row in emulated().items()}
    for name, counted in _profiled(found).items():
        for space, number in counted.items():
            found[name][space]["hardware"] = number
    return found


def _profiled(names: Iterable[str]) -> dict[str, dict[str, int]]:
    command = shutil.which("ncu")
    if command is None:
        return {}
    metrics = ",".join(metric for group in METRICS.values() for metric in group)
    options = ["--clock-control", "none", "--csv", "--page", "raw", "--metrics", metrics]
    child = [sys.executable, "-m", "tools.gpu.counters", *names]
    done = subprocess.run([command, *options, *child], cwd=ROOT, capture_output=True, text=True, check=False)
    found = counted(done.stdout)
    if not found:
        raise RuntimeError(f"ncu counted nothing: {done.stdout[-500:]}{done.stderr[-500:]}")
    return found


def counted(text: str) -> dict[str, dict[str, int]]:
    """The sums over an operator's kernels, in what `ncu --csv --page raw` prints."""
    lines = text.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), len(lines))
    found: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in csv.DictReader(io.StringIO("\n".join([*lines[start : start + 1], *lines[start + 2 :]]))):  # units: a row
        name = row["Kernel Name"].rpartition("_")[0]
        for space, group in METRICS.items():
            found[name][space] += sum(int(float(row.get(metric, "0").replace(",", "") or 0)) for metric in group)
    return {name: dict(sums) for name, sums in found.items()}


def _problem(name: str) -> tuple[Any, dict[str, Any]]:
    """The operator's lowering and inputs at a size that the emulator can run."""
    from polyopt.testing.inputs import random_inputs
    from tests.codegen_cuda.gate_ops import OPS
    from tests.codegen_cuda.running import lowered

    op, _, sizes = OPS[name]
    lowering = lowered(op, **sizes)
    return lowering, {n: np.asarray(v) for n, v in random_inputs(lowering.program, {}, 0, {}).items()}


def main(names: Iterable[str]) -> None:
    """Runs the operators' kernels on the GPU, for the profiler around."""
    from tests.codegen_cuda.running import on_gpu, run

    for name in names:
        lowering, arguments = _problem(name)
        run(on_gpu(lowering), arguments, {})


if __name__ == "__main__":
    main(sys.argv[1:])
