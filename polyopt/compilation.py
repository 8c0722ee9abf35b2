"""From a program to a kernel in memory, through the caches: at most one compile per kernel and process."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from polyopt import cache, records, settings
from polyopt import target as targets
from polyopt.cache import Entry
from polyopt.dsl.ir import Program
from polyopt.errors import (
    BackendUnavailable,
    CompileError,
    LegalityError,
    ScheduleError,
    ShapeError,
)
from polyopt.opening import open_compiler
from polyopt.options import Options
from polyopt.problem import Picks, Problem
from polyopt.progress import Progress
from polyopt.room import with_room
from polyopt.runtime import arrays, fastcall, jit
from polyopt.runtime.arrays import Array
from polyopt.runtime.cuda import devices
from polyopt.runtime.cuda.driver import Driver, Limits
from polyopt.runtime.fastcall import Entries
from polyopt.runtime.fastcall_ir import fast_call_ir
from polyopt.runtime.kernel import Kernel, KernelInfo
from polyopt.runtime.objects import LoadedCode
from polyopt.runtime.pool import POOLS, is_supported, pool_text
from polyopt.target import Rates, Target, preset, rates_from_json
from polyopt.working import working

if TYPE_CHECKING:
    from polyopt.pipeline import Lowering
    from polyopt.runtime.cuda.calls import CudaCall, CudaKernel
    from polyopt.runtime.emulator.driver import Emulator, Mode

_log = logging.getLogger(__name__)


class _Compiler:
    """The kernels of this process. One thread makes one at a time."""

    def __init__(self) -> None:
        self._kernels: WeakValueDictionary[str, Kernel] = WeakValueDictionary()
        self._lowerings: WeakValueDictionary[str, Lowering] = WeakValueDictionary()
        self._gpu_kernels: WeakValueDictionary[str, CudaKernel] = WeakValueDictionary()
        self._quick_code: LoadedCode | None = None
        self._has_quick_code = False

    def kernel(self, problem: Problem) -> Kernel:
        def find() -> Kernel:
            picks = recorded_picks(problem)
            key = problem.key(picks)
            kernel = self._kernels.get(key)
            if kernel is None:
                kernel = self._kernels[key] = _from_disk(key) or self._compile(problem, picks, key)
            return kernel

        return working(problem.program, find)

    def gpu_kernel(self, problem: Problem, driver: Driver) -> CudaKernel:
        def find() -> CudaKernel:
            key = _gpu_key(problem, driver)
            memory_key = f"{key} {id(driver)}"
            kernel = self._gpu_kernels.get(memory_key)
            if kernel is None:
                kernel = _gpu_from_disk(key, driver) or _gpu_compile(problem, key, driver)
                self._gpu_kernels[memory_key] = kernel
            return kernel

        return working(problem.program, find)

    def _compile(self, problem: Problem, picks: Picks | None, key: str) -> Kernel:
        """A new kernel; without the picks where these give no legal plan."""
        if picks and (refused := self._refused(problem, picks)):
            _log.warning("%s: recorded picks give no legal plan (%s): not used", problem.program.name, refused)
            picks = None
        return _compile(problem, key, self._lowering(problem, picks))

    def _refused(self, problem: Problem, picks: Picks) -> str:
        """Why picks are of no use; empty where they are."""
        try:
            return self.lower(problem, picks).settled.fallback
        except (LegalityError, ScheduleError) as error:
            return error.what

    def lower(self, problem: Problem, picks: Picks | None) -> Lowering:
        make = self._lowering(problem, picks)
        return working(problem.program, lambda: self._lowerings.setdefault(problem.key(picks), make()))

    def _lowering(self, problem: Problem, picks: Picks | None) -> Callable[[], Lowering]:
        """Makes the stages, or gives those that somebody is looking at: then a compile need not plan them again."""

        def make() -> Lowering:
            open_compiler()
            from polyopt import pipeline

            found = self._lowerings.get(problem.key(picks)) if self._lowerings else None
            if found is None and problem.target.gpu is not None:
                from polyopt import gpu_pipeline

                found = gpu_pipeline.GpuLowering(pipeline.resolve(problem.program), _options(problem, None))
            return found or pipeline.lower(pipeline.resolve(problem.program), _options(problem, picks))

        return make

    def check_strictly(
        self,
        problem: Problem,
        sizes: Mapping[str, int],
        arrays: Mapping[str, Array],
        run: Callable[[], Sequence[Array]],
    ) -> None:
        def check() -> None:
            from polyopt import strict

            lowering = self.lower(problem, recorded_picks(problem)).settled
            if strict.is_small(lowering, sizes):
                strict.check(lowering, sizes, arrays)
                strict.check_results(lowering, sizes, arrays, run())

        working(problem.program, check)

    def quick_code(self) -> LoadedCode | None:
        def find() -> LoadedCode | None:
            if not self._has_quick_code:
                self._has_quick_code = True
                self._quick_code = _load_quick_code() if settings.current().fast_call else None
            return self._quick_code

        return with_room(find)

    def resolve(self, program: Program) -> Program:
        def find() -> Program:
            open_compiler()
            from polyopt import pipeline

            return pipeline.resolve(program)

        return working(program, find)


_COMPILER = _Compiler()


def kernel_for(problem: Problem) -> Kernel:
    """The kernel for a problem: from memory, from the disk cache, or compiled now.

    Raises the errors of resolving the program, and `CompileError` where the machine's code generator fails.
    """
    return _COMPILER.kernel(problem)


def lower(problem: Problem) -> Lowering:
    """The stages of a problem's compilation, each made when it is looked at."""
    return _COMPILER.lower(problem, recorded_picks(problem))


def lower_with(problem: Problem, picks: Picks) -> Lowering:
    """The same with a tuner's picks, whatever is recorded; the questions are noted."""
    return _COMPILER.lower(problem, picks)


def recorded_picks(problem: Problem) -> Picks | None:
    """What tuning recorded for a problem; None for nothing."""
    if not records.exist():
        return None
    return records.picks_for(problem.tuning_key, machine()) or None


def resolve(program: Program) -> Program:
    """The program with ranges and shapes found and checked."""
    return _COMPILER.resolve(program)


def check_strictly(
    problem: Problem, sizes: Mapping[str, int], arrays: Mapping[str, Array], run: Callable[[], Sequence[Array]]
) -> None:
    """Check the kernel against an enumeration for these sizes and inputs, if the settings ask for it.

    run: computes the kernel's results for the inputs
    Raises `LegalityError` with the instances or elements where they differ, and what `run` raises.
    """
    if settings.current().verify >= settings.ENUMERATION_LEVEL:
        _COMPILER.check_strictly(problem, sizes, arrays, run)


def quick_entries() -> Entries | None:
    """A new quick way into kernels, knowing none yet; None where this process must go through ctypes."""
    code = _COMPILER.quick_code()
    return None if code is None else Entries(code)


def choose_target(choice: str | Target | None, *, on_device: bool = False) -> Target:
    """The machine to compile for: the op's choice, else POLYOPT_TARGET, else where the arrays are.

    Code can be made for each of them; `check_runs_here` says whether it runs. Raises `ArgumentError` for an unknown
    name.
    """
    wanted = choice or settings.target() or (targets.CUDA if on_device else targets.CPU)
    if isinstance(wanted, Target):
        return wanted
    if wanted == targets.CUDA:
        return gpu_here() or targets.resolve(wanted)
    return host() if wanted == targets.CPU else targets.resolve(wanted)


@functools.cache
def host() -> Target:
    """This machine. What LLVM says about it is kept on disk, as asking it means loading it; so are its rates."""
    key = cache.digest(host=targets.host_facts())
    entry = cache.lookup(key)
    if entry is not None:
        with suppress(ValueError, TypeError):
            return dataclasses.replace(Target(**json.loads(entry.report)), rates=_kept_rates())
    found = with_room(targets.host)
    cache.store(key, Entry(KernelInfo("host", ()), b"", json.dumps(dataclasses.asdict(found))))
    return dataclasses.replace(found, rates=_kept_rates())


CALIBRATION = "calibration.json"


def calibrate() -> Rates:
    """Measure this machine and keep the rates, for this process from now on and for later ones."""
    from polyopt.runtime import rates

    measured = rates.measure()
    kept = {"machine": machine(), "rates": measured.as_json()}
    cache.write_text(CALIBRATION, json.dumps(kept, indent=1) + "\n")
    host.cache_clear()
    return measured


def _kept_rates() -> Rates | None:
    """The rates of an earlier calibration, if it was of this machine."""
    with suppress(ValueError, TypeError, KeyError, OverflowError, RecursionError):
        kept = json.loads(cache.read_text(CALIBRATION) or "{}")
        if kept["machine"] == machine():
            return rates_from_json(kept["rates"])
    return None


@functools.cache
def machine() -> str:
    """A name of this machine that changes with the processor, but not with the versions of software."""
    return hashlib.sha256("\n".join(targets.host_facts()).encode()).hexdigest()[:16]


def check_runs_here(target: Target) -> None:
    """Raise `BackendUnavailable` where this machine cannot run code for `target`."""
    if target.gpu is not None:
        devices.driver()
        return
    here = host()
    lacking = target.lacking(here)
    if not lacking:
        return
    raise BackendUnavailable(
        f"this machine cannot run code for the target '{target.name}'",
        why=f"it is '{here.name}' ({here.cpu}, {here.triple}) and lacks {', '.join(lacking)}",
        fix="op.on('cpu') runs; op.lower(..., target=...) shows the code for another machine",
        facts={"target": target.name, "host": here.name, "lacking": lacking},
    )


# --- GPUs -------------------------------------------------------------------------------------------------------


def gpu_here() -> Target | None:
    """The GPU of this machine, as the code generator sees it; None where there is none."""
    if devices.other() is not None or devices.missing() is not None:
        return None
    return _gpu_target(devices.driver().limits)


@functools.cache
def _gpu_target(limits: Limits) -> Target:
    return dataclasses.replace(targets.resolve(targets.CUDA), name=limits.arch, gpu=limits.as_target())


def has_other_device() -> bool:
    """Whether this thread runs GPU kernels on something else than a GPU."""
    return devices.other() is not None


def device_key() -> int:
    """Differs where GPU kernels run on another thing."""
    return id(devices.other())


def check_places(found: Mapping[str, Array], target: Target) -> None:
    """Raise `ArgumentError` where arrays lie in several memories, or where the target cannot reach them."""
    if any(arrays.place(array) is not None for array in found.values()):
        from polyopt.runtime.cuda.arrays import check_places as check  # opens with the first array on a GPU

        check(found, is_gpu=target.gpu is not None)


def gpu_kernel_for(problem: Problem, ordinal: int = 0) -> CudaKernel:
    """As `kernel_for`, for the GPU of this number. Raises `BackendUnavailable` where it cannot run the kernel."""
    return _COMPILER.gpu_kernel(problem, devices.driver(ordinal))


def gpu_call(
    problem: Problem, sizes: Mapping[str, int], given: Mapping[str, Array], outs: Mapping[str, Array]
) -> CudaCall:
    """A kernel tied to arrays like `given` and `outs`, on the device where they lie, else on the first one.

    Arrays on the host are copied, so that their layouts say nothing.
    """
    from polyopt.runtime.cuda.calls import CudaCall

    everything = {**given, **outs}
    at = next((place for place in map(arrays.place, everything.values()) if place is not None), None)
    if at is not None:
        layouts = {name: arrays.layout(array) for name, array in everything.items()}
        problem = dataclasses.replace(
            problem, layouts={n: layout for n, layout in layouts.items() if layout is not None}
        )
    ordinal = at[1] if isinstance(at, tuple) else 0
    return CudaCall(gpu_kernel_for(problem, ordinal), sizes, given, outs)


def emulator(mode: Mode = "check", seed: int = 0, *, through_ptx: bool = False) -> Emulator:
    """A stand-in for a GPU that runs kernels on the CPU and checks their accesses. It needs g++.

    mode: "fast" without checks, "check", "count" with counters too, "trace" with where products come from;
    seed: order of the threads; through_ptx: run what NVRTC makes of the kernels
    """
    from polyopt.runtime.emulator.driver import Emulator

    return Emulator(emulator_object, mode, seed, through_ptx)


@functools.cache
def emulator_object() -> bytes:
    """The emulator's own machine code, from the disk cache where it is there."""
    from polyopt.runtime.emulator import build

    key = cache.key(host(), emulator=build.runtime_text())
    entry = cache.lookup(key)
    if entry is None:
        entry = Entry(KernelInfo("emulator", ()), build.build_runtime())
        cache.store(key, entry)
    return entry.object_code


def _gpu_from_disk(key: str, driver: Driver) -> CudaKernel | None:
    from polyopt.runtime.cuda import image
    from polyopt.runtime.cuda.calls import CudaKernel
    from polyopt.runtime.cuda.program import Program as GpuProgram

    entry = cache.lookup(key)
    if entry is None:
        return None
    try:
        return CudaKernel(entry.info, GpuProgram(image.from_bytes(entry.object_code), driver))
    except (CompileError, ValueError, KeyError, TypeError) as error:
        _log.warning("the cache entry %s does not load here (%s); compiling again", key[:12], error)
        return None


def _gpu_compile(problem: Problem, key: str, driver: Driver) -> CudaKernel:
    open_compiler()
    from polyopt import gpu_pipeline, pipeline
    from polyopt.runtime.cuda.calls import CudaKernel
    from polyopt.runtime.cuda.program import Program as GpuProgram

    started = time.perf_counter()
    with Progress(f"polyopt: compiling {problem.program.name}"):
        resolved = pipeline.resolve(problem.program)
        _check_result_shapes(resolved, problem)
        built = gpu_pipeline.build(resolved, _options(problem, None), driver.limits.arch if driver.wants_cubin else "")
    _log.info("compiled %s in %.0f ms", problem.program.name, 1e3 * (time.perf_counter() - started))
    cache.store(key, Entry(built.info, built.object_code, built.report))
    return CudaKernel(built.info, GpuProgram(built.image, driver))


# --- making a kernel ------------------------------------------------------------------------------------------


def _load_quick_code() -> LoadedCode | None:
    try:
        return fastcall.load(_helper_object(fast_call_ir()))
    except CompileError as error:
        _log.warning("calls go through ctypes: %s", error.what)
        return None


def _from_disk(key: str) -> Kernel | None:
    entry = cache.lookup(key)
    if entry is None:
        return None
    try:
        return _load(entry.info, entry.object_code)
    except CompileError:
        _log.warning("the cache entry %s does not link here; compiling again", key[:12])
        return None


def _compile(problem: Problem, key: str, make_lowering: Callable[[], Lowering]) -> Kernel:
    open_compiler()
    from polyopt import pipeline

    started = time.perf_counter()
    with Progress(f"polyopt: compiling {problem.program.name}"):
        lowering = make_lowering()
        _check_result_shapes(lowering.program, problem)
        built = pipeline.build(lowering)
    _log.info("compiled %s in %.0f ms", problem.program.name, 1e3 * (time.perf_counter() - started))
    cache.store(key, Entry(built.info, built.object_code, built.report))
    return _load(built.info, built.object_code)


def _options(problem: Problem, picks: Picks | None) -> Options:
    return Options(problem.numerics, problem.target, problem.dynamic, dict(problem.layouts), picks)


def _load(info: KernelInfo, object_code: bytes) -> Kernel:
    if info.is_parallel and is_supported():
        _provide_pool()
    return Kernel(info, object_code)


def _provide_pool() -> None:
    """Let the thread pool take its machine code from the disk cache."""
    if POOLS.has_object_code:
        return
    POOLS.provide_object_code(_helper_object(pool_text()))


def _helper_object(text: str) -> bytes:
    """Machine code of the runtime itself, from the disk cache where it is there. Good for each machine of this kind."""
    key = cache.key(preset("generic"), helper=text)
    entry = cache.lookup(key)
    if entry is None:
        entry = Entry(KernelInfo("helper", ()), jit.compile_object(text, preset("generic")))
        cache.store(key, entry)
    return entry.object_code


def _check_result_shapes(resolved: Program, problem: Problem) -> None:
    """Raise `ShapeError` where an `out=` array cannot hold its result."""
    for name, found in problem.result_shapes.items():
        tensor = resolved.tensor(name)
        assert tensor.shape is not None, "a resolved program has shapes"
        if len(found) != len(tensor.shape) or any(
            affine.is_constant and affine.constant != length for affine, length in zip(tensor.shape, found)
        ):
            shape = ", ".join(map(str, tensor.shape))
            raise ShapeError(
                f"out for '{name}' has shape {found}, but the result has shape ({shape})",
                fix=f"pass an array of shape ({shape})",
                facts={"result": name, "shape": found},
            )


def _gpu_key(problem: Problem, driver: Driver) -> str:
    """Machine code depends on the device's architecture and on the compiler, text on neither."""
    made_by = ""
    if driver.wants_cubin:
        from polyopt.runtime.cuda import compilers

        made_by = f"{driver.limits.arch} {compilers.version()}"
    return cache.digest(problem=problem.key(None), made_by=made_by)
