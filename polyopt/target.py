"""What the back ends and the cost models know about a processor.

`host()` describes the machine at hand; the presets describe machines to compile or to look at code for.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

from polyopt.classes import dataclass
from polyopt.errors import ArgumentError
from polyopt.forks import COMPILING

_CPU0 = Path("/sys/devices/system/cpu/cpu0/cache")
_CPU_INFO = Path("/proc/cpuinfo")

_PART_BYTES = 1 << 14
"""More than the system says of one processor; it takes its time to say it of hundreds."""

STATIC_SHARED_BYTES = 48 << 10
"""Shared memory that a block of a GPU has without asking for more."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What a machine does. One core, unless it says otherwise.

    fma_f32, fma_f64, fma_bf16, fma_i8: 1e9 operations a second of multiply-adds (two each)
    l1, l2, l3, dram: 1e9 bytes a second, read in order from data that just fit there
    copy:             1e9 bytes a second, read and written, of arrays beyond the caches
    dram_all, copy_all: the same with every usable core at work at once
    dispatch_us:      microseconds to run an empty parallel region on the thread pool
    cores:            how many cores were at work for `..._all`
    """

    fma_f32: float
    fma_f64: float
    fma_bf16: float
    fma_i8: float
    l1: float
    l2: float
    l3: float
    dram: float
    copy: float
    dram_all: float
    copy_all: float
    dispatch_us: float
    cores: int

    def as_json(self) -> dict[str, float]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def rates_from_json(data: Mapping[str, object]) -> Rates:
    """The rates that `as_json` wrote. Raises `ValueError` or `TypeError` for anything else."""
    numbers = {name: float(str(value)) for name, value in data.items()}
    if not all(1e-9 < value < 1e9 for value in numbers.values()):
        raise ValueError("a rate is not positive, or beyond any machine's")
    return Rates(**{**numbers, "cores": int(numbers.get("cores", 1))})  # type: ignore[arg-type]  # cores is the int


@dataclass(frozen=True, slots=True)
class GpuTarget:
    """A GPU as the code generator sees it. Figures are of the CUDA programming guide, "compute capabilities".

    name:          "sm_80": NVIDIA's name of the architecture, which compilers take
    sms:           streaming multiprocessors
    block_threads: the most threads of a block; sm_threads: of a multiprocessor
    registers:     32-bit registers of a multiprocessor
    shared_bytes:  the most shared memory of a block, asked for as it is launched; 48 KiB without asking
    l2_bytes:      the cache that all multiprocessors share
    """

    name: str
    sms: int
    sm_threads: int
    shared_bytes: int
    l2_bytes: int
    block_threads: int = 1024
    registers: int = 1 << 16

    @property
    def capability(self) -> tuple[int, int]:
        """(8, 0) of "sm_80"."""
        digits = "".join(c for c in self.name if c.isdigit())
        return int(digits[:-1]), int(digits[-1])

    @property
    def threads(self) -> int:
        """How many threads are on the GPU at once."""
        return self.sms * self.sm_threads


WARP = 32
"""Threads that step together."""

LAUNCH_BYTES = 2 << 20
"""What could cross a GPU's memory bus while a kernel starts."""

GPU_OPS_PER_BYTE = 6
"""Multiplications and additions of f32 in the time of a byte of device memory: 6 on an A100, 11 on an H100."""

_GPU_PRESETS: Mapping[str, GpuTarget] = {
    "sm_80": GpuTarget("sm_80", 108, 2048, 163 << 10, 40 << 20),  # A100
    "sm_86": GpuTarget("sm_86", 82, 1536, 99 << 10, 6 << 20),  # RTX 3090
    "sm_89": GpuTarget("sm_89", 128, 1536, 99 << 10, 72 << 20),  # RTX 4090
    "sm_90": GpuTarget("sm_90", 132, 2048, 227 << 10, 50 << 20),  # H100
}
GPU_PRESETS = tuple(_GPU_PRESETS)
ANY_GPU = "sm_80"
"""What code for "cuda" is made for where there is no GPU to ask: newer ones run it too."""


FASTER_THAN_MEMORY, SERVER_CACHE, CORES_SHARE = 1.5, 64, 8


@dataclass(frozen=True, slots=True)
class Target:
    """A processor as the code generator sees it.

    name:             one of `PRESETS` or `GPU_PRESETS`
    vector_bits:      width of a vector register
    vector_registers: how many there are
    l1_bytes, l2_bytes, l3_bytes: data caches; l1 and l2 of one core, l3 shared (0: none)
    line_bytes:       cache line
    triple:           LLVM's name of architecture, system and ABI
    cpu:              LLVM's name of the processor
    features:         LLVM's feature string: what the processor has *and* the system lets programs use
    parallel_ns:      estimated nanoseconds of work on one core from which threads repay being woken
    gpu:              the GPU, where code is for one; then the rest says nothing
    rates:            what was measured here by `polyopt doctor --calibrate`; None for a preset, or before that
    """

    name: str
    vector_bits: int
    vector_registers: int
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int
    line_bytes: int
    triple: str
    cpu: str
    features: str
    parallel_ns: int = 10_000
    rates: Rates | None = None
    gpu: GpuTarget | None = None

    def lanes(self, bits: int) -> int:
        """How many elements of `bits` bits one vector register holds; at least 1."""
        return max(1, self.vector_bits // bits)

    @property
    def passes(self) -> int:
        """In how many pieces, one after the other, the processor takes a vector: Zen 4 has halves of 512 bits."""
        return 2 if self.cpu == "znver4" and self.vector_bits == 512 else 1

    @property
    def register_names(self) -> tuple[str, ...]:
        """What LLVM calls the registers of vectors; none where that is not known."""
        is_x86 = self.triple.startswith("x86_64")
        return tuple(f"xmm{number}" for number in range(self.vector_registers)) if is_x86 else ()

    @property
    def cached_bytes(self) -> int:
        """How much of what was just written is read back faster than memory is.

        The last cache, unless it is no faster than memory: where that was not measured, one that is more than 64 times
        a core's own is taken for the cache of a large server, of which a core sees its share.
        """
        if self.rates is not None:
            is_fast = self.rates.l3 > FASTER_THAN_MEMORY * self.rates.dram
        else:
            is_fast = self.l3_bytes <= SERVER_CACHE * self.l2_bytes
        return max(self.l3_bytes, self.l2_bytes) if is_fast else CORES_SHARE * self.l2_bytes

    def has(self, feature: str) -> bool:
        """Whether LLVM's `feature` ("avx512bf16") is usable."""
        return f"+{feature}" in self.features.split(",")

    def lacking(self, here: Target) -> tuple[str, ...]:
        """What the machine `here` would have to have for code of this target: LLVM's names of features, or of the
        processor; empty where the code runs. Wide vectors are no reason: LLVM takes them in pieces."""
        if self.triple != here.triple:
            return (self.triple,)
        implied = () if self.cpu == here.cpu else _IMPLIED.get(self.cpu, (self.cpu,))
        enabled = [feature[1:] for feature in self.features.split(",") if feature.startswith("+")]
        return tuple(feature for feature in (*implied, *enabled) if not here.has(feature))


_DEFAULT_CACHES = {"l1_bytes": 32 << 10, "l2_bytes": 1 << 20, "l3_bytes": 16 << 20, "line_bytes": 64}


@dataclass(frozen=True, slots=True)
class _Preset:
    """A kind of machine: what `Target` says of it, by LLVM's names, with caches that are usual there."""

    vector_bits: int
    vector_registers: int
    architecture: str
    cpu: str
    features: str = ""
    l2_bytes: int = 1 << 20


_PRESETS: Mapping[str, _Preset] = {
    "avx512": _Preset(512, 32, "x86_64", "x86-64-v4"),
    "avx512_bf16": _Preset(512, 32, "x86_64", "x86-64-v4", "+avx512bf16,+avx512vnni"),
    "avx2": _Preset(256, 16, "x86_64", "x86-64-v3", l2_bytes=512 << 10),
    "neon": _Preset(128, 32, "aarch64", "generic", "+neon"),
    "generic": _Preset(128, 16, "x86_64", "x86-64"),
}
PRESETS = tuple(_PRESETS)

_V3 = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt")
_V4 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
_IMPLIED = {"x86-64-v4": (*_V3, *_V4), "x86-64-v3": _V3, "x86-64": (), "generic": ()}
"""The features that code for a processor of a preset takes as given, beyond those of its architecture."""

CPU = "cpu"
CUDA = "cuda"
NAMES = (CPU, CUDA, *PRESETS, *GPU_PRESETS)
"""All names of targets."""


def resolve(name: str) -> Target:
    """The target called "cpu" (this machine), "cuda" or by the name of a preset. Raises `ArgumentError` for another
    name."""
    if name == CPU:
        return host()
    if name in PRESETS:
        return preset(name)
    if name in (CUDA, *GPU_PRESETS):
        return gpu_preset(ANY_GPU if name == CUDA else name)
    raise ArgumentError(
        f"there is no target '{name}'",
        fix=f"one of {', '.join(NAMES)}",
        facts={"target": name},
    )


@cache
def gpu_preset(name: str, *, sms: int | None = None) -> Target:
    """A GPU to generate code for, by its name in `GPU_PRESETS`; with `sms` multiprocessors, as a part of one has."""
    found = _GPU_PRESETS[name]
    return replace(preset("generic"), name=name, gpu=found if sms is None else replace(found, sms=sms))


@cache
def preset(name: str) -> Target:
    """A machine to generate code for, by its name in `PRESETS`: the same on every machine that asks.

    Only "generic" differs: on a processor that is no x86 it is that processor's baseline.
    """
    found = _PRESETS[name]
    if name == "generic" and not _is_x86():
        found = replace(_PRESETS["neon"], architecture=platform.machine(), features="")
    return Target(
        name,
        found.vector_bits,
        found.vector_registers,
        triple=_triple(found.architecture),
        cpu=found.cpu,
        features=found.features,
        l1_bytes=_DEFAULT_CACHES["l1_bytes"],
        l2_bytes=found.l2_bytes,
        l3_bytes=_DEFAULT_CACHES["l3_bytes"],
        line_bytes=_DEFAULT_CACHES["line_bytes"],
    )


@cache
def host() -> Target:
    """This machine. Imports llvmlite, which knows the processor; the result is kept."""
    with COMPILING:  # to the end: what is imported on the way must not be half imported where a process forks
        from llvmlite import binding  # heavy: only when a kernel is compiled or loaded

        features = usable_features(binding.get_host_cpu_features(), _system_flags())
        base = preset(_widest_preset(features))
        enabled = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features.items()))
        caches = {**_DEFAULT_CACHES, **_cache_sizes()}
        return replace(
            base,
            l1_bytes=caches["l1_bytes"],
            l2_bytes=caches["l2_bytes"],
            l3_bytes=caches["l3_bytes"],
            line_bytes=caches["line_bytes"],
            triple=_triple(platform.machine()),
            cpu=binding.get_host_cpu_name(),
            features=enabled,
        )


def host_facts() -> tuple[str, ...]:
    """What identifies this processor without LLVM: with the same facts, `host()` is the same."""
    with COMPILING:  # as above: reading a file imports its encoding
        return (
            platform.system(),
            platform.machine(),
            *_identity_lines(),
            *map(str, _cache_sizes().items()),
        )


def _identity_lines() -> list[str]:
    """What the system says about the first processor, without what changes from moment to moment."""
    try:
        first = _start_of(_CPU_INFO).partition("\n\n")[0]
    except OSError:
        return []
    return [
        line for line in first.splitlines() if not line.startswith(("cpu MHz", "bogomips", "apicid", "initial apicid"))
    ]


_SYSTEMS = {"Darwin": "apple-darwin", "Windows": "pc-windows-msvc"}


def _triple(machine: str) -> str:
    """LLVM's name of this system on a machine of the given kind."""
    architecture = "x86_64" if machine.lower() in ("x86_64", "amd64") else machine.lower()
    return f"{architecture}-{_SYSTEMS.get(platform.system(), 'unknown-linux-gnu')}"


def _is_x86() -> bool:
    return platform.machine().lower() in ("x86_64", "amd64")


def _widest_preset(features: Mapping[str, bool]) -> str:
    def all_of(*names: str) -> bool:
        return all(features.get(name, False) for name in names)

    if all_of("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "fma"):
        return "avx512"
    if all_of("avx2", "fma", "f16c"):
        return "avx2"
    return "neon" if all_of("neon") and not _is_x86() else "generic"


def usable_features(reported: Mapping[str, bool], system_flags: frozenset[str]) -> dict[str, bool]:
    """The features that LLVM reports without those that programs cannot use.

    LLVM reads the processor's identification and the register XCR0 (which vector states are saved). The system may
    withhold more, under a hypervisor above all: a vector feature must also be among the flags that the
    kernel lists. AMX needs a permission that polyopt does not ask for.
    system_flags: the names in /proc/cpuinfo; empty where there is no such file, and then LLVM's word counts.
    """
    return {name: on and _is_usable(name, system_flags) for name, on in reported.items()}


def _is_usable(feature: str, system_flags: frozenset[str]) -> bool:
    if feature.startswith("amx"):
        return False
    if not system_flags or not feature.startswith(("avx", "fma", "f16c", "vaes", "vpclmul", "gfni")):
        return True
    if feature.startswith("avx10"):
        return "avx512f" in system_flags
    plain = {flag.replace("_", "") for flag in system_flags}
    return feature in plain


def _system_flags() -> frozenset[str]:
    try:
        lines = _start_of(_CPU_INFO).splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _cache_sizes() -> dict[str, int]:
    """What /sys tells about the data caches of core 0; empty where it tells nothing."""
    found: dict[str, int] = {}
    try:
        with os.scandir(_CPU0) as items:
            indices = sorted(item.name for item in items if item.name.startswith("index"))
    except OSError:
        return found
    for index in indices:
        try:
            level, kind, size, line = (
                _start_of(f"{_CPU0}/{index}/{name}").strip()
                for name in ("level", "type", "size", "coherency_line_size")
            )
            if kind != "Instruction" and f"l{level}_bytes" in _DEFAULT_CACHES:
                found[f"l{level}_bytes"] = _as_bytes(size)
                found["line_bytes"] = int(line)
        except (OSError, ValueError):
            continue
    return found


def _start_of(path: str | Path) -> str:
    """What a small file says, or the first of many equal parts of one. Raises `OSError`."""
    file = os.open(path, os.O_RDONLY)
    try:
        return os.read(file, _PART_BYTES).decode("ascii", errors="replace")
    finally:
        os.close(file)


def _as_bytes(text: str) -> int:
    """ "48K" is 49152. Raises `ValueError` for anything else than digits with K, M or G behind."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * factor
