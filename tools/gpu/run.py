"""Everything a GPU is needed for: `python tools/gpu/run.py` on a machine with one; `--dry` on any machine.

1. installs the wheels that lie in `--wheels`, without a network, into a folder of this run;
2. runs the CUDA tests, whose kernels then run on the hardware;
3. runs the probes on the GPU and on the emulator and compares their bits;
4. runs random programs on the GPU and holds each against its reference, two minutes long;
5. runs random contractions of larger sizes on the GPU and holds each to its exact result;
6. sends arrays to the GPU and back from all cores at once, and looks whether every byte arrives;
7. counts sectors and wavefronts of some kernels with Nsight Compute and on the emulator;
8. times the benchmark table;
9. writes all of it as JSON.

`--dry` does without a GPU what can be done: the tests and probes run on the emulator, the table's kernels are compiled
for sm_90, and every time is "not measured".
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
NOT_MEASURED = "not measured"
TESTS = ("tests/codegen_cuda", "tests/runtime/test_gpu.py", "tests/operators")
ARCH = "sm_90"
STEPS = ("tests", "probes", "programs", "contractions", "copies", "counters", "table")
COPY_SECONDS = 10
CONTRACTION_SECONDS = 40


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the steps. Returns 0 where none failed."""
    options = _parser().parse_args(arguments)
    if options.wheels is not None:
        _install(options.wheels)
        return _again(arguments if arguments is not None else sys.argv[1:])
    sys.path.insert(0, str(ROOT))
    steps: dict[str, Callable[[], Any]] = {
        "machine": lambda: _machine(options.dry),
        "tests": lambda: _tests(options.tests),
        "probes": lambda: _probes(options.dry, options.save_probes),
        "programs": lambda: _programs(options.dry, options.seconds),
        "contractions": lambda: _contractions(options.dry),
        "copies": lambda: _copies(options.dry),
        "counters": lambda: _counters(options.dry),
        "table": lambda: _table(options.dry, options.rows),
    }
    results: dict[str, Any] = {}
    for name, step in steps.items():
        if name in options.skip:
            continue
        _say(f"{name} ...")
        results[name] = step()
        options.out.write_text(json.dumps(results, indent=1) + "\n")  # what is known so far, should a step hang
        _say(json.dumps(results[name], indent=1)[:4000])
    return 0 if _is_good(results) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", action="store_true", help="do without a GPU")
    parser.add_argument("--wheels", type=Path, help="folder of wheels to install first")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"), help="where the results go (default: gpu.json)")
    parser.add_argument("--skip", action="append", default=[], choices=STEPS)
    parser.add_argument("--seconds", type=float, default=120, help="how long random programs run (default: 120)")
    parser.add_argument("--rows", nargs="*", help="rows of the table (default: all)")
    parser.add_argument("--tests", nargs="*", default=list(TESTS), help="what pytest runs")
    parser.add_argument(
        "--save-probes", type=Path, help="keep the probes' results, which hold the emulator to this GPU"
    )
    return parser


def _is_good(results: Mapping[str, Any]) -> bool:
    differ = results.get("probes", {}).get("differ", {})
    wrong = [row for row in results.get("table", []) if row.get("failure")]
    wrong += results.get("programs", {}).get("failures", []) + results.get("contractions", {}).get("failures", [])
    wrong += [one for one in results.get("copies", []) if one.get("wrong") or "died" in one]
    return not any(differ.values()) and results.get("tests", {}).get("rc", 0) == 0 and not wrong


def _install(wheels: Path) -> None:
    """The wheels go to a folder that this run's Python looks into first; nothing else on the machine changes."""
    site = Path(tempfile.mkdtemp(prefix="polyopt-site-"))
    files = sorted(map(str, wheels.glob("*.whl")))
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--no-compile", "--target"]
    subprocess.run([*command, str(site), *files], check=True)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(site), str(ROOT), os.environ.get("PYTHONPATH", "")])


def _again(arguments: Sequence[str]) -> int:
    """This program with what was installed."""
    rest = list(arguments)
    place = rest.index("--wheels")
    return subprocess.run([sys.executable, __file__, *rest[:place], *rest[place + 2 :]], check=False).returncode


def _machine(dry: bool) -> dict[str, Any]:
    from polyopt.runtime.cuda import compilers, devices

    facts = {"python": platform.python_version(), "compiler": compilers.version(), "time": time.strftime("%F %T %z")}
    commit = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    facts["commit"] = commit.stdout.strip()
    lack = devices.missing()
    if dry:
        return {**facts, "gpu": NOT_MEASURED}
    if lack is not None:
        raise SystemExit(f"no GPU can be used here: {lack.what}\n{lack.fix}\n(--dry does without)")
    limits = devices.driver().limits
    return {**facts, "gpu": limits.name, "arch": limits.arch, "multiprocessors": limits.sms}


def _tests(which: Sequence[str]) -> dict[str, Any]:
    """With a GPU, the fixture `polyopt_check` runs kernels there, and so does what runs them on the emulator."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:benchmark", *which]
    if not any(entry.name == "polyopt" for entry in metadata.entry_points(group="pytest11")):
        command += ["-p", "polyopt.testing"]  # run from the sources, not installed
    if importlib.util.find_spec("xdist") is not None:
        command += ["-n", "auto", "--dist", "worksteal"]
    command += ["--polyopt-target", "cuda"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return {"rc": done.returncode, "tail": done.stdout.splitlines()[-20:]}


def _probes(dry: bool, save: Path | None) -> dict[str, Any]:
    import numpy as np

    from polyopt import compilation
    from polyopt.runtime.cuda import devices
    from tools.gpu import probes

    emulator = compilation.emulator()
    names = probes.PROBES if dry else probes.probes_of(devices.driver().limits.arch)
    emulated = {name: probes.run(probes.probe(name), emulator) for name in names}
    if dry:
        return {"device": NOT_MEASURED, "problems": list(map(str, emulator.found)), "differ": {}}
    found = {name: probes.run(probes.probe(name), devices.driver()) for name in names}
    if save is not None:
        np.savez_compressed(save, **found)  # type: ignore[arg-type]  # by name
    differ = {name: probes.differences(probes.probe(name), found[name], emulated[name]) for name in names}
    return {"device": devices.driver().limits.name, "problems": list(map(str, emulator.found)), "differ": differ}


def _programs(dry: bool, seconds: float) -> dict[str, Any]:
    from tools.gpu import programs

    return {"counts": NOT_MEASURED, "failures": []} if dry else programs.run_together(seconds)


def _contractions(dry: bool) -> dict[str, Any]:
    from tools.gpu import contractions

    return {"counts": NOT_MEASURED, "failures": []} if dry else contractions.run_together(CONTRACTION_SECONDS)


def _copies(dry: bool) -> list[dict[str, Any]]:
    from tools.gpu import copies

    return [] if dry else copies.run_together(COPY_SECONDS)


def _counters(dry: bool) -> Any:
    from tools.gpu import counters

    return counters.emulated() if dry else counters.compared()


def _table(dry: bool, rows: Sequence[str] | None) -> list[dict[str, Any]]:
    from tools.gpu.table import ROWS

    found = []
    if not dry:
        _compile_together(rows or list(ROWS))
    for name in rows or ROWS:
        try:
            found.append(_compiled(name) if dry else _measured(name))
        except Exception as failure:  # noqa: BLE001  # one row's failure must not cost the others their times
            found.append({"row": name, "failure": f"{type(failure).__name__}: {failure}"[:500]})
        _say(f"  {found[-1]}")
    return found


def _compile_together(rows: Sequence[str]) -> None:
    """A process for each row calls everything once, so that the caches on disk have what timing needs."""
    code = "import sys\nfrom tools.gpu import table, timing\ntiming.warm(sys.argv[1], table.ROWS[sys.argv[1]])"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, row], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for row in rows
    ]
    for one in started:
        one.wait()


def _compiled(name: str) -> dict[str, Any]:
    from polyopt.runtime.cuda import compilers
    from tools.gpu.table import ROWS

    row = ROWS[name]
    lowering = row.op.lower(**row.sizes, **row.constants, target=ARCH)
    compiled = compilers.compile_text(lowering.source("cuda"), ARCH)
    kernels = {kernel: str(taken) for kernel, taken in compiled.resources.items()}
    return {"row": name, "ms": NOT_MEASURED, "arch": ARCH, "kernels": kernels}


def _measured(name: str) -> dict[str, Any]:
    from tools.gpu import timing
    from tools.gpu.table import ROWS

    bandwidth = timing.copy_bandwidth()
    found = timing.measure(name, ROWS[name])
    return {**found, "copy_gbytes_per_s": bandwidth, "of_copy": found["gbytes_per_s"] / bandwidth}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
