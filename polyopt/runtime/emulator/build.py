"""Builds kernels for the emulator with g++: its runtime once, then each text in a fraction of a second."""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from polyopt.codegen_cuda import source
from polyopt.errors import BackendUnavailable, CompileError

HERE = Path(__file__).parent
RUNTIME_SOURCES = ("po_fibers.cpp", "po_checks.cpp", "po_counters.cpp", "po_products.cpp", "po_groups.cpp")
HEADERS = ("po_emu.h", "po_runtime.h")
VOCABULARY = Path(source.__file__).parent / "po_device.h"
_INCLUDES = ("-I", str(HERE), "-I", str(VOCABULARY.parent))
_COMMON = ("-std=c++17", "-fPIC", "-w", "-fno-gnu-unique")
"""A library with a symbol that is unique in the process is never unloaded."""
_KERNEL = ("-march=native", "-fno-math-errno", "-fno-strict-aliasing", "-g", "-DPO_EMU")
_FAST = ("-O2",)
_CHECKED = (
    *("-O1", "-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0"),
    "-fsanitize=bounds",  # of a thread's own arrays, which are registers on a GPU and no memory that is looked at
    # an access in the text stays one access, and stays under the conditions around it
    *("-fno-tree-loop-im", "-fno-tree-phiprop"),
    *("-fno-tree-sra", "-fno-store-merging", "-fno-tree-vectorize", "-fno-tree-slp-vectorize"),
)
_UNSET = "-ftrivial-auto-var-init=pattern"
"""Registers that nobody has set hold no likely number."""
_KNOWS_UNSET = 12
"""The first g++ that can do so."""


def compiler() -> str | None:
    """The C++ compiler that the emulator uses; None where there is none."""
    return shutil.which("g++")


def build_runtime() -> bytes:
    """The object code of the emulator itself. Takes seconds. Raises `BackendUnavailable` and `CompileError`."""
    output = folder() / "po_emulator.o"
    sources = [str(HERE / name) for name in RUNTIME_SOURCES]
    _run(["-O2", "-r", "-nostdlib", "-o", str(output), *sources], "the emulator")
    return output.read_bytes()


def runtime_text() -> str:
    """All that decides `build_runtime`, for a cache key."""
    return "\n".join((HERE / name).read_text() for name in (*RUNTIME_SOURCES, *HEADERS))


def build_kernels(text: str, runtime: bytes, *, is_checked: bool, contract: bool, name: str) -> Path:
    """A shared library of a text's kernels, in a folder of this process. name: of the library's files.

    Raises `CompileError` with the compiler's messages, whose lines are those of `text`.
    """
    place = folder() / name
    place.mkdir()
    kernels, object_file, library = place / "kernels.cu", place / "kernels.o", place / "kernels.so"
    kernels.write_text(text)
    runtime_file = _runtime_file(runtime)
    options = (*_KERNEL, *(_checked() if is_checked else _FAST), f"-ffp-contract={'fast' if contract else 'off'}")
    headers = ("-I", str(_precompiled(options)), *_INCLUDES)
    _run([*options, *headers, "-x", "c++", "-c", str(kernels), "-o", str(object_file)], "a kernel")
    _run(["-shared", "-Wl,-Bsymbolic", "-o", str(library), str(object_file), str(runtime_file)], "a kernel")
    return library


@cache
def _checked() -> tuple[str, ...]:
    """The options of checked kernels that this machine's g++ knows."""
    version = subprocess.run([compiler() or "g++", "-dumpversion"], capture_output=True, text=True, check=False).stdout
    first = version.partition(".")[0].strip()
    return (*_CHECKED, _UNSET) if first.isdigit() and int(first) >= _KNOWS_UNSET else _CHECKED


@cache
def folder() -> Path:
    """A folder of this process, which goes with it."""
    path = Path(tempfile.mkdtemp(prefix="polyopt-emulator-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


@cache
def _precompiled(options: tuple[str, ...]) -> Path:
    """A folder with the vocabulary as g++ reads it quickest: half of the time of a small kernel is the headers."""
    path = Path(tempfile.mkdtemp(dir=folder()))
    header = path / f"{VOCABULARY.name}.gch"
    _run([*options, *_INCLUDES, "-x", "c++-header", str(VOCABULARY), "-o", str(header)], "the vocabulary")
    return path


@cache
def _runtime_file(runtime: bytes) -> Path:
    path = folder() / "po_runtime.o"
    path.write_bytes(runtime)
    return path


def _run(arguments: Sequence[str], what: str) -> None:
    command = compiler()
    if command is None:
        raise no_compiler()
    done = subprocess.run([command, *_COMMON, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(
            f"g++ refuses {what}",
            why=done.stderr[:4000],
            facts={"messages": done.stderr, "command": (command, *_COMMON, *arguments)},
        )


def no_compiler() -> BackendUnavailable:
    return BackendUnavailable(
        "the CUDA emulator cannot be used here",
        why="it needs the C++ compiler g++, and there is none on PATH",
        fix="install g++ (Debian, Ubuntu: apt install g++)",
        facts={"missing": "g++"},
    )


def lines_of(library: Path, offsets: Sequence[int]) -> list[int]:
    """For each address in the library the line of the kernels' text; 0 where it has none.

    An address inside a function of the vocabulary counts for the line of the text that calls it.
    """
    if not offsets:
        return []
    tool = shutil.which("addr2line")
    if tool is None:
        return [0] * len(offsets)
    addresses = [hex(offset) for offset in offsets]
    done = subprocess.run(
        [tool, "-a", "-i", "-e", str(library), *addresses], capture_output=True, text=True, check=False
    )
    found: list[int] = []
    for line in done.stdout.splitlines():
        if line.startswith("0x"):
            found.append(0)
        elif "/kernels.cu:" in line or line.startswith("kernels.cu:"):
            number = line.split(" ")[0].rpartition(":")[2]
            found[-1] = int(number) if number.isdigit() else found[-1]
    return found if len(found) == len(offsets) else [0] * len(offsets)
