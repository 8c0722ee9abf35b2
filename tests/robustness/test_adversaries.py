"""Cruel definitions: each compiles within ten seconds of processor time and a gigabyte, and is right, or is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.robustness.adversaries import ADVERSARIES
from tests.robustness.work import ROOT, untraced

COMPILE_S = 10
MEMORY_MB = 1024

GUARD = """
import os, resource, sys, time
from tests.robustness.adversaries import ADVERSARIES, check
for size in ADVERSARIES[sys.argv[1]].sizes:
    child = os.fork()
    if child == 0:
        begun = time.process_time()
        said = check(sys.argv[1], size)
        took = time.process_time() - begun
        most_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(size, said.partition(chr(10))[0], f"{took:.1f} s, {most_mb} MB", flush=True)
        is_right = said == "right" or said.startswith("refused: ")
        good = is_right and took < float(sys.argv[2]) and most_mb < int(sys.argv[3])
        os._exit(0 if good else 1)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{sys.argv[1]} of size {size} is wrong, or takes too long or too much memory")
"""


def test_there_are_a_hundred() -> None:
    assert sum(len(adversary.sizes) for adversary in ADVERSARIES.values()) >= 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each definition is compiled in a forked child")
@pytest.mark.parametrize("name", ADVERSARIES)
def test_cruel_definitions_compile_soon_and_are_right(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GUARD, name, str(COMPILE_S), str(MEMORY_MB)],
        cwd=ROOT,
        env={**untraced(os.environ), "PYTHONPATH": str(ROOT), "POLYOPT_CACHE_BYTES": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-3000:]}"
