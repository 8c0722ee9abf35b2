"""A cold compile imports what it needs, and changes nothing that a process sees."""

from __future__ import annotations

import subprocess
import sys

COLD = """
import gc, sys
opened = "importlib.metadata" in sys.modules
import numpy as np
import polyopt as po
from polyopt import f32

i = po.index("i")

@po.op
def twice(x: f32["N"]):
    y = po.tensor("y")
    y[i] = 2 * x[i]
    return y

assert "islpy" not in sys.modules
assert (twice(np.ones(3, np.float32)) == 2).all()
assert "islpy" in sys.modules and gc.isenabled()
"""


def check(code: str, cache: object) -> None:
    environment = {"POLYOPT_CACHE_DIR": str(cache), "PATH": "/usr/bin:/bin"}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr


def test_a_cold_compile_does_not_look_up_versions(tmp_path: object) -> None:
    check(COLD + "assert ('importlib.metadata' in sys.modules) == opened", tmp_path)


def test_islpy_knows_its_version_all_the_same(tmp_path: object) -> None:
    more = """
import importlib.metadata, islpy
from islpy.version import VERSION, VERSION_STATUS, VERSION_TEXT
ours = VERSION, VERSION_STATUS, VERSION_TEXT, islpy.__version__
assert islpy.version is sys.modules["islpy.version"]
assert VERSION_TEXT == importlib.metadata.version("islpy")
assert not hasattr(islpy.version, "__file__")
del sys.modules["islpy.version"]
from islpy.version import VERSION, VERSION_STATUS, VERSION_TEXT
assert ours == (VERSION, VERSION_STATUS, VERSION_TEXT, VERSION_TEXT)
"""
    check(COLD + more, tmp_path)


def test_an_islpy_that_is_open_stays_as_it_is(tmp_path: object) -> None:
    check(
        "import islpy\nown = islpy.version\n"
        + COLD.replace('assert "islpy" not in sys.modules', "")
        + "assert islpy.version is own and own.__file__",
        tmp_path,
    )
