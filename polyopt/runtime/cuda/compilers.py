"""From the text of kernels to machine code for a GPU: NVRTC in this process, or nvcc where there is only a toolkit.

Neither needs a GPU or a driver. NVRTC is 4 to 9 times quicker, and comes as a wheel (decision 0016). Both compile some
kernels wrong; where `ptx` finds such a place, they compile again, otherwise (decision 0050).
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Literal

from polyopt.classes import dataclass
from polyopt.codegen_cuda import source
from polyopt.errors import BackendUnavailable, CompileError
from polyopt.room import with_room
from polyopt.runtime.cuda import ptx, ptxas
from polyopt.runtime.cuda.ptxas import Resources

VOCABULARY = Path(source.__file__).parent / "po_device.h"
Kind = Literal["cubin", "ptx"]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Compiled:
    """Machine code or PTX.

    log:      what the compiler said
    compiler: "NVRTC 13.0" or "nvcc 13.0"
    faults:   what the compiler would have got wrong, had it not been told to compile otherwise
    """

    code: bytes
    log: str
    compiler: str
    faults: tuple[ptx.Fault, ...] = ()

    @property
    def resources(self) -> Mapping[str, Resources]:
        """By kernel; empty for PTX."""
        return ptxas.resources(self.log)


def compile_text(text: str, arch: str, kind: Kind = "cubin", *, contract: bool = True) -> Compiled:
    """Compile kernels for an architecture such as "sm_90".

    contract: whether a product and a sum may become one operation
    Raises `CompileError` with the compiler's messages, and `BackendUnavailable` where there is neither compiler.
    """
    library = nvrtc()
    if library is not None:
        return library.compile(text, arch, kind, contract=contract)
    if shutil.which("nvcc") is not None:
        _log.info("NVRTC is not installed; compiling with nvcc")
        return compile_with_nvcc(text, arch, kind, contract=contract)
    raise BackendUnavailable(
        "CUDA kernels cannot be compiled here",
        why="neither NVRTC nor nvcc is installed",
        fix="pip install 'nvidia-cuda-nvrtc>=13.0,<13.1', which needs no GPU",
        facts={"missing": "nvrtc"},
    )


def version() -> str:
    """The compiler that `compile_text` uses, for cache keys; empty where there is none."""
    library = nvrtc()
    return library.name if library is not None else _nvcc_version()


def _options(text: str, arch: str, kind: Kind, *, contract: bool) -> list[str]:
    if "po_wgmma" in text:  # code for this architecture alone, not for those after it
        arch += "a"
    options = [f"-arch={arch}" if kind == "cubin" else f"-arch={arch.replace('sm_', 'compute_')}", "-std=c++17"]
    return options if contract else [*options, "-fmad=false"]


def _remedies(slow: str) -> dict[ptx.Kind, str]:
    """The option for each kind of fault. slow: the one that lets ptxas change little"""
    return {kind: "-D__restrict__=" if kind == "stale load" else slow for kind in ptx.REMEDIES}


@dataclass(frozen=True, slots=True)
class _Made:
    """What one run of a compiler gives: PTX, the machine code made of it if that is wanted, and messages."""

    ptx: bytes
    cubin: bytes
    log: str

    def code(self, kind: Kind) -> bytes:
        return self.cubin if kind == "cubin" else self.ptx


def _checked(make: Callable[[Sequence[str]], _Made], remedies: Mapping[ptx.Kind, str], kind: Kind, by: str) -> Compiled:
    """What a compiler makes, compiled again with remedies as long as something is known to come out wrong.

    make: runs the compiler with more options
    Raises `CompileError` where a fault stays that only other PTX can mend.
    """
    found: list[ptx.Fault] = []
    given: set[str] = set()
    while True:
        made = make(sorted(given))
        faults = ptx.faults(made.ptx.decode())
        for fault in faults:
            if fault.kind == "stale load" and remedies[fault.kind] in given:
                raise CompileError(f"{by} gets a kernel wrong", why=str(fault), facts={"compiler": by})
        new = [fault for fault in faults if remedies[fault.kind] not in given]
        if not new:
            return Compiled(made.code(kind), made.log, by, tuple(found))
        for fault in {fault.kind: fault for fault in new}.values():
            level = logging.INFO if fault.kind == "stale load" else logging.WARNING  # the others make kernels slow
            _log.log(level, "%s would get a kernel wrong, %s; compiled %s", by, fault, ptx.REMEDIES[fault.kind])
        found += new
        given |= {remedies[fault.kind] for fault in new}


def _refused(compiler: str, arch: str, messages: str) -> CompileError:
    return CompileError(
        f"{compiler} refuses a kernel for {arch}",
        why=messages[:4000],
        facts={"compiler": compiler, "arch": arch, "messages": messages},
    )


# --- NVRTC ------------------------------------------------------------------------------------------------------


class Nvrtc:
    """The library, loaded into this process. One compile runs at a time."""

    def __init__(self, path: str) -> None:
        """Raises `OSError` where there is no such library."""
        # the library opens its builtins by their bare name, which only finds what is loaded already
        for builtins in sorted(Path(path).parent.glob("libnvrtc-builtins.so.*")) if "/" in path else ():
            ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)
        self.path = path
        self._library = ctypes.CDLL(path)
        self._library.nvrtcGetErrorString.restype = ctypes.c_char_p
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        self.name = f"NVRTC {major.value}.{minor.value}"

    def compile(self, text: str, arch: str, kind: Kind, *, contract: bool) -> Compiled:
        """Raises `CompileError` with the compiler's messages."""
        options = [*_options(text, arch, kind, contract=contract), "--ptxas-options=-v"]
        remedies = _remedies("--ptxas-options=-O0")
        return _checked(lambda more: self._made(text, arch, kind, [*options, *more]), remedies, kind, self.name)

    def _made(self, text: str, arch: str, kind: Kind, options: list[str]) -> _Made:
        def compiled() -> _Made:
            program = self._program(text)
            try:
                failure = self._library.nvrtcCompileProgram(program, len(options), _strings(options))
                log = self._read(program, "ProgramLog").decode(errors="replace").rstrip("\0")
                if failure:
                    raise _refused(self.name, arch, log or self._message(failure))
                cubin = self._read(program, "CUBIN") if kind == "cubin" else b""
                return _Made(self._read(program, "PTX").rstrip(b"\0"), cubin, log)
            finally:
                self._library.nvrtcDestroyProgram(ctypes.byref(program))

        return with_room(compiled)

    def _program(self, text: str) -> ctypes.c_void_p:
        program = ctypes.c_void_p()
        headers, names = _strings([VOCABULARY.read_text()]), _strings([VOCABULARY.name])
        failure = self._library.nvrtcCreateProgram(
            ctypes.byref(program), text.encode(), b"kernels.cu", 1, headers, names
        )
        if failure:
            raise CompileError(f"{self.name}: {self._message(failure)}", facts={"compiler": self.name})
        return program

    def _read(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw

    def _message(self, failure: int) -> str:
        return bytes(self._library.nvrtcGetErrorString(failure)).decode()


def _strings(values: list[str]) -> Any:
    return (ctypes.c_char_p * len(values))(*(value.encode() for value in values))


@cache
def nvrtc() -> Nvrtc | None:
    """The library of the newest wheel, else the system's; None where there is none."""
    for path in _nvrtc_paths():
        with suppress(OSError):
            return Nvrtc(path)
    return None


def _nvrtc_paths() -> Iterator[str]:
    for folder in wheel_folders("lib"):
        yield from (str(p) for p in sorted(folder.glob("libnvrtc.so.*"), reverse=True))
    toolkit = shutil.which("nvcc")
    if toolkit is not None:
        folder = Path(toolkit).resolve().parent.parent
        yield from (str(p) for p in sorted(folder.glob("lib*/libnvrtc.so.*"), reverse=True))
    yield from ("libnvrtc.so.13", "libnvrtc.so.12")


def wheel_folders(name: str) -> Iterator[Path]:
    """Folders of this name in NVIDIA's wheels, which share the package `nvidia`; the newest toolkit first."""
    found = importlib.util.find_spec("nvidia")
    for place in (found.submodule_search_locations or ()) if found is not None else ():
        yield from sorted(Path(place).glob(f"*/{name}"), reverse=True)


# --- nvcc -------------------------------------------------------------------------------------------------------


def compile_with_nvcc(text: str, arch: str, kind: Kind = "cubin", *, contract: bool = True) -> Compiled:
    """As `compile_text`, in a process of nvcc."""
    command = shutil.which("nvcc")
    assert command is not None, "the caller has looked for nvcc"
    options = [*_options(text, arch, kind, contract=contract), "-Xptxas", "-v", "-I", str(VOCABULARY.parent)]
    remedies, name = _remedies("-Xptxas=-O0"), _nvcc_version()

    def make(more: Sequence[str]) -> _Made:
        with tempfile.TemporaryDirectory(prefix="polyopt-nvcc-") as folder:
            kernels, cubin = Path(folder) / "kernels.cu", Path(folder) / "kernels.cubin"
            kernels.write_text(text)
            wanted = ["-cubin", "-keep", f"-keep-dir={folder}"] if kind == "cubin" else ["-ptx"]
            done = subprocess.run(
                [command, *options, *more, *wanted, "-o", str(cubin), str(kernels)],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            log = done.stdout + done.stderr
            if done.returncode:
                raise _refused(name, arch, log)
            if kind == "ptx":
                return _Made(cubin.read_bytes(), b"", log)
            return _Made((Path(folder) / "kernels.ptx").read_bytes(), cubin.read_bytes(), log)

    return _checked(make, remedies, kind, name)


@cache
def _nvcc_version() -> str:
    command = shutil.which("nvcc")
    if command is None:
        return ""
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    release = re.search(r"release ([0-9.]+)", done.stdout)
    return f"nvcc {release[1]}" if release else "nvcc"
