"""Kernels for programs without Python: a C header, C source, and a shared library or an object file.

The library holds the kernel's own machine code behind the function that the header declares, so it gives the same
bits as a call from Python and takes the same time. Its parallel loops run on OpenMP where the C compiler has it, and
serially otherwise. The C source is the same computation in portable C11, to read or to compile elsewhere.
"""

from __future__ import annotations

import logging
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from polyopt.codegen_c.c_entry import RUN, SLOTS
from polyopt.codegen_c.c_source import as_c, as_c_header
from polyopt.errors import ArgumentError, CompileError
from polyopt.loops.ir import LoopProgram
from polyopt.target import Target

_log = logging.getLogger(__name__)

COMPILERS = ("cc", "gcc", "clang")

_RUNNER = f"""\
#include <omp.h>
#include <stdint.h>

__attribute__((visibility("hidden"))) int64_t {SLOTS}(void)
{{
    return omp_get_max_threads();
}}

__attribute__((visibility("hidden")))
void {RUN}(void (*body)(void *, int64_t, int64_t, int64_t), void *context, int64_t chunks)
{{
#pragma omp parallel for schedule(dynamic)
    for (int64_t chunk = 0; chunk < chunks; chunk++) body(context, chunk, chunks, omp_get_thread_num());
}}
"""


class Saved(NamedTuple):
    """The files of a saved kernel. binary: a shared library, or an object file where there is no C compiler."""

    header: Path
    source: Path
    binary: Path


def save(
    name: str | Path,
    program: LoopProgram,
    object_code: Callable[[], bytes],
    target: Target,
    conditions: Sequence[str] = (),
) -> Saved:
    """Write `name.h`, `name.c` and `name.so`, or `name.o` where no C compiler makes libraries for the target.

    name:        a path without suffix; its folder must exist
    object_code: the kernel with its C function
    conditions:  on sizes that a caller must meet; they stand in the header
    Raises `ArgumentError` for a path that cannot be written to, and `CompileError` where linking fails.
    """
    base = Path(name)
    if not base.name:
        raise ArgumentError(
            f"'{name}' names no file to save to",
            fix="give a path without suffix: save('build/linear')",
            facts={"name": str(name)},
        )
    if any(c in '"\\\n\r' for c in base.name):
        raise ArgumentError(
            f"the header's name {base.name!r} cannot stand in an #include",
            fix="give a name without quotes, backslashes and line ends",
            facts={"name": str(name)},
        )
    header, source = base.with_name(f"{base.name}.h"), base.with_name(f"{base.name}.c")
    try:
        header.write_text(as_c_header(program, conditions=conditions), encoding="utf-8")
        source.write_text(f'#include "{header.name}"\n\n{as_c(program, openmp=True)}', encoding="utf-8")
        return Saved(header, source, _binary(base, object_code(), target))
    except OSError as error:
        raise ArgumentError(
            f"the files of '{base}' cannot be written",
            why=f"{error.strerror}: {error.filename}",
            fix="give a path whose folder exists and may be written to, without suffix: save('build/linear')",
            facts={"name": str(base)},
        ) from None


def c_compiler() -> str | None:
    """The path of the system's C compiler, if there is one."""
    return next((path for name in COMPILERS if (path := shutil.which(name))), None)


def _binary(base: Path, object_code: bytes, target: Target) -> Path:
    compiler = c_compiler()
    if compiler is None or not _is_for_this_system(target):
        _log.info("no C compiler for %s: wrote an object file", target.triple)
        path = base.with_name(f"{base.name}.o")
        path.write_bytes(object_code)
        return path
    path = base.with_name(f"{base.name}.so")
    with tempfile.TemporaryDirectory() as folder:
        _link(compiler, Path(folder), object_code, path)
    return path


def _is_for_this_system(target: Target) -> bool:
    machine = "x86_64" if platform.machine().lower() in ("x86_64", "amd64") else platform.machine().lower()
    return target.triple.startswith(f"{machine}-")


def _link(compiler: str, folder: Path, object_code: bytes, library: Path) -> None:
    """Make the library, with OpenMP if the compiler has it."""
    kernel, runner, made = folder / "kernel.o", folder / "runner.c", folder / "made.so"
    kernel.write_bytes(object_code)
    runner.write_text(_RUNNER, encoding="ascii")
    shared = [compiler, "-shared", "-fPIC", "-O2", "-o", str(made), str(kernel)]
    words = _errors_of([*shared, "-std=c11", "-fopenmp", str(runner), "-lm"])
    if words:
        _log.info("%s has no OpenMP; the library %s runs on one thread", compiler, library)
        words = _errors_of([*shared, "-lm"])
    if words:
        raise CompileError(
            f"the C compiler could not make the library {library.name}",
            why=f"{compiler} failed; its own words are in the error's facts['compiler']",
            fix="`polyopt doctor` shows the compiler; name.c compiles with any other: cc -std=c11 -c name.c",
            facts={"compiler": words},
        )
    _replace(made, library)


def _replace(made: Path, library: Path) -> None:
    """Put the file in its place at once: a program that has the old one loaded keeps the old one."""
    beside = library.with_name(f".{library.name}.new")
    shutil.copyfile(made, beside)
    beside.chmod(0o755)
    beside.replace(library)


def _errors_of(command: Sequence[str]) -> str:
    """What a compiler says of a failure; empty where it succeeded."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    except OSError as error:
        return str(error)
    return (done.stderr.strip() or f"exit status {done.returncode}") if done.returncode else ""
