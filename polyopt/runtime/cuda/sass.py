"""The machine instructions of a compiled kernel, by NVIDIA's disassembler, which needs no GPU."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from polyopt.errors import BackendUnavailable, CompileError
from polyopt.runtime.cuda.compilers import wheel_folders

_SECTION = re.compile(r"^\s*\.section\s+\.text\.([\w$.]+),")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:\{\s*)?(?:@!?U?P[0-9]+\s+)?([A-Z][A-Z0-9_.]*)")
"""An instruction with its predicate; one under `@!PT` never runs, and is a filler of ptxas."""


def disassembler() -> str | None:
    """The path of nvdisasm, from its wheel or on PATH; None where there is none."""
    for folder in wheel_folders("bin"):
        if (folder / "nvdisasm").exists():
            return str(folder / "nvdisasm")
    return shutil.which("nvdisasm")


def text(cubin: bytes) -> str:
    """The assembly of a cubin. Raises `BackendUnavailable` without nvdisasm, `CompileError` where it refuses."""
    command = disassembler()
    if command is None:
        raise BackendUnavailable(
            "machine code for a GPU cannot be shown here",
            why="nvdisasm is not installed",
            fix="pip install nvidia-cuda-nvdisasm, which needs no GPU",
            facts={"missing": "nvdisasm"},
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        done = subprocess.run([command, "-c", file.name], capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{Path(command).name} refuses a cubin", why=done.stderr[:4000])
    return done.stdout


def opcodes(cubin: bytes) -> Mapping[str, Counter[str]]:
    """How often each instruction stands in each kernel, with its suffixes: "LDG.E.128", "HMMA.16816.F32.BF16"."""
    found: dict[str, Counter[str]] = {}
    current: Counter[str] = Counter()
    for line in text(cubin).splitlines():
        if section := _SECTION.match(line):
            current = found.setdefault(section[1], Counter())
        elif instruction := _INSTRUCTION.search(line):
            current[instruction[1]] += 1
    return found


def count(codes: Counter[str], start: str, *parts: str) -> int:
    """How many instructions start with `start` and have each of the suffixes `parts`: count(codes, "LDG", "128")."""
    return sum(
        number
        for code, number in codes.items()
        if code.split(".")[0] == start and set(parts) <= set(code.split(".")[1:])
    )
