"""C as one would write it by hand, by `gcc -O3 -march=native -ffast-math -fopenmp`, into results made once."""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import aligned
from benchmarks.cases import Case

_CC = shutil.which("gcc")
if _CC is None:
    raise ImportError("there is no gcc")
VERSION = subprocess.run([_CC, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout.strip()
FLAGS = ("-O3", "-march=native", "-ffast-math", "-fopenmp", "-shared", "-fPIC")

_SOURCE = Path(__file__).with_name("kernels.c")


@functools.cache
def _library() -> ctypes.CDLL:
    folder = tempfile.mkdtemp(prefix="polyopt-bench-c-")
    path = Path(folder, "kernels.so")
    assert _CC is not None, "checked above"
    subprocess.run([_CC, *FLAGS, "-o", str(path), str(_SOURCE), "-lm"], check=True)
    library = ctypes.CDLL(str(path))
    shutil.rmtree(folder)
    return library


Shape = tuple[int, ...]


def _same(x: Any) -> list[Shape]:
    return [x.shape]


_TABLE: Mapping[str, Callable[..., list[Shape]]] = {
    "batched": lambda x, y: [x.shape],
    "gemv": lambda x, y: [(x.shape[0],)],
    "depthwise": lambda x, g: [x.shape],
    "softmax": _same,
    "layernorm": lambda x, g, b: [x.shape],
    "rmsnorm": lambda x, g: [x.shape],
    "nll": lambda x, t: [(1,)],
    "chain": lambda x, y: [x.shape],
    "gelu": _same,
    "bias_relu": lambda x, b: [x.shape],
    "adam": lambda p, g, m, v: [],
    "blur": lambda x: [x.shape, x.shape],
    "unsharp": lambda x: [x.shape, x.shape],
    "harris": lambda x: [(x.shape[0] - 4, x.shape[1] - 4), (3, *x.shape)],
}
_SCRATCH = frozenset({"blur", "unsharp", "harris"})
"""Kinds whose second result is scratch memory."""
_IN_PLACE = {"adam": (0, 2, 3)}
"""Kinds that compute into copies of their inputs, with the numbers of these."""


def prepare(case: Case, arrays: list[Any]) -> Callable[[], Any] | None:
    if case.kind not in _TABLE:
        return None
    results = [aligned.copy(np.zeros(shape, np.float32)) for shape in _TABLE[case.kind](*arrays)]
    if case.kind in _IN_PLACE:
        arrays = [aligned.copy(array) for array in arrays]
        results = [arrays[number] for number in _IN_PLACE[case.kind]]
    function = getattr(_library(), case.kind)
    sizes = [ctypes.c_int64(extent) for extent in arrays[0].shape]
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (*arrays, *results)]
    shown = results[:1] if case.kind in _SCRATCH else results
    return functools.partial(_call, function, (*sizes, *pointers), shown, [*arrays, *results])


def _call(function: Any, words: tuple[Any, ...], shown: list[Any], _kept: list[Any]) -> list[Any]:
    """The results of one call. The last argument keeps alive what the words point to."""
    function(*words)
    return shown


os.environ.setdefault("OMP_PROC_BIND", "false")
