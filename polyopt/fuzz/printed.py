"""Runs an operator as the C that is printed of it, which shares no code with the machine code after the loops."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from polyopt import export
from polyopt.codegen_c.c_source import as_c
from polyopt.codegen_c.identifiers import symbol_of
from polyopt.errors import CompileError
from polyopt.fuzz.arrays import Argument, Array
from polyopt.fuzz.plans import sizes_of
from polyopt.pipeline import Lowering
from polyopt.runtime import extent

_OPTIONS = ("-std=c11", "-O2", "-ffp-contract=off", "-shared", "-fPIC")


def run(lowering: Lowering, arguments: Sequence[Argument]) -> list[Array] | None:
    """The results, for contiguous arrays; None where there is no C compiler.

    Raises `CompileError` where the compiler refuses the text, `AssertionError` where the function reports a failure.
    """
    compiler = export.c_compiler()
    if compiler is None:
        return None
    program, loops = lowering.program, lowering.loops
    given = zip(program.parameters, arguments, strict=True)
    arrays = {name: np.array(argument, program.tensor(name).dtype.numpy, order="C") for name, argument in given}
    sizes = sizes_of(lowering, arrays)
    for info in lowering.info.arguments:
        if info.name not in arrays:
            shape = [extent.evaluate(length, sizes) for length in info.shape]
            arrays[info.name] = np.zeros(shape, info.dtype.numpy)
    with TemporaryDirectory() as folder:
        source, library = Path(folder, "printed.c"), Path(folder, "printed.so")
        source.write_text(as_c(loops), encoding="utf-8")
        command = [compiler, *_OPTIONS, "-o", str(library), str(source), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode:
            raise CompileError("the printed C does not compile", why=done.stderr.strip())
        function = ctypes.CDLL(str(library))[symbol_of(loops)]
    function.restype = ctypes.c_int64
    pointers = [ctypes.c_void_p(arrays[info.name].ctypes.data) for info in lowering.info.arguments]
    failure = function(*pointers, *(ctypes.c_int64(sizes[name]) for name in loops.sizes))
    assert not failure, f"the printed C reports {failure}"
    return [arrays[name] for name in program.results]
