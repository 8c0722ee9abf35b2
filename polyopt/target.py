"""What the back ends and the cost models know about a processor.

`host()` describes the machine at hand; the presets describe machines to compile or to look at code for.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from polyopt.errors import ArgumentError

_CPU0 = Path("/sys/devices/system/cpu/cpu0/cache")
_CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, slots=True)
class Target:
    """A processor as the code generator sees it.

    name:             "avx512", "avx2", "generic", or "cuda"
    vector_bits:      width of a vector register
    vector_registers: how many there are
    l1_bytes, l2_bytes, l3_bytes: data caches; l1 and l2 of one core, l3 shared (0: none)
    line_bytes:       cache line
    triple:           LLVM's name of architecture, system and ABI
    cpu:              LLVM's name of the processor
    features:         LLVM's feature string: what the processor has *and* the system lets programs use
    parallel_instances: statement instances below which one thread is as fast: dispatch costs about 13 microseconds
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
    parallel_instances: int = 1 << 15

    def lanes(self, bits: int) -> int:
        """How many elements of `bits` bits one vector register holds; at least 1."""
        return max(1, self.vector_bits // bits)

    def has(self, feature: str) -> bool:
        """Whether LLVM's `feature` ("avx512bf16") is usable."""
        return f"+{feature}" in self.features.split(",")


_DEFAULT_CACHES = {"l1_bytes": 32 << 10, "l2_bytes": 1 << 20, "l3_bytes": 16 << 20, "line_bytes": 64}
_X86_PRESETS: Mapping[str, tuple[int, int, str]] = {
    "avx512": (512, 32, "x86-64-v4"),
    "avx2": (256, 16, "x86-64-v3"),
    "generic": (128, 16, "x86-64"),
}
PRESETS = tuple(_X86_PRESETS)
CPU = "cpu"
CUDA = "cuda"


def resolve(name: str) -> Target:
    """The target called "cpu" (this machine) or by the name of a preset. Raises `ArgumentError` for another name."""
    if name == CPU:
        return host()
    if name in PRESETS:
        return preset(name)
    raise ArgumentError(
        f"there is no target '{name}'",
        fix=f"one of {', '.join((CPU, CUDA, *PRESETS))}",
        facts={"target": name},
    )


@cache
def preset(name: str) -> Target:
    """A machine to generate code for: "avx512", "avx2" or "generic", with this machine's cache sizes.

    On a processor that is no x86, "generic" is its baseline and the others are x86 cross targets.
    """
    is_x86 = _is_x86()
    bits, registers, cpu = _X86_PRESETS[name]
    if name == "generic" and not is_x86:
        bits, registers, cpu = 128, 32, "generic"
    triple = _triple(platform.machine() if is_x86 or name == "generic" else "x86_64")
    caches = {**_DEFAULT_CACHES, **_cache_sizes()}
    return Target(name, bits, registers, triple=triple, cpu=cpu, features="", **caches)


@cache
def host() -> Target:
    """This machine. Imports llvmlite, which knows the processor; the result is kept."""
    from llvmlite import binding  # heavy: only when a kernel is compiled or loaded

    features = usable_features(binding.get_host_cpu_features(), _system_flags())
    base = preset(_widest_preset(features))
    enabled = ",".join(f"{'+' if on else '-'}{name}" for name, on in sorted(features.items()))
    return replace(base, triple=_triple(platform.machine()), cpu=binding.get_host_cpu_name(), features=enabled)


def host_facts() -> tuple[str, ...]:
    """What identifies this processor without LLVM: with the same facts, `host()` is the same."""
    return (
        platform.system(),
        platform.machine(),
        *_identity_lines(),
        *map(str, _cache_sizes().items()),
    )


def _identity_lines() -> list[str]:
    """What the system says about the first processor, without what changes from moment to moment."""
    try:
        first = _CPU_INFO.read_text(encoding="ascii", errors="replace").partition("\n\n")[0]
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
    return "avx2" if all_of("avx2", "fma", "f16c") else "generic"


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
        lines = _CPU_INFO.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        if line.startswith("flags"):
            return frozenset(line.partition(":")[2].split())
    return frozenset()


def _cache_sizes() -> dict[str, int]:
    """What /sys tells about the data caches of core 0; empty where it tells nothing."""
    found: dict[str, int] = {}
    for index in sorted(_CPU0.glob("index*")):
        try:
            level, kind, size, line = (
                (index / name).read_text().strip() for name in ("level", "type", "size", "coherency_line_size")
            )
            if kind != "Instruction" and f"l{level}_bytes" in _DEFAULT_CACHES:
                found[f"l{level}_bytes"] = _as_bytes(size)
                found["line_bytes"] = int(line)
        except (OSError, ValueError):
            continue
    return found


def _as_bytes(text: str) -> int:
    """ "48K" is 49152. Raises `ValueError` for anything else than digits with K, M or G behind."""
    factor = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * factor
