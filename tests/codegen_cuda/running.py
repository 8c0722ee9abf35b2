"""Runs operators through the CUDA path: on the emulator, every access checked, and on a GPU if there is one."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyopt import Op, compilation
from polyopt.compilation import emulator_object
from polyopt.gpu_pipeline import GpuLowering
from polyopt.loops.interpret import interpret
from polyopt.runtime import extent
from polyopt.runtime.cuda import compilers, devices
from polyopt.runtime.cuda.image import from_source
from polyopt.runtime.cuda.program import Failed, OnHost, Place, Program
from polyopt.runtime.emulator.driver import EmulatedModule, Emulator, Mode, Problem, Traffic

Array = np.ndarray[Any, Any]
Results = tuple[dict[str, Array], Failed | None]
"""By name, and the run-time check that failed."""


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """What a run on the emulator gave."""

    results: tuple[Array, ...]
    problems: tuple[Problem, ...]
    traffic: tuple[Traffic, ...]
    failed: Failed | None


def lowered(op: Op, *args: Any, **sizes: Any) -> GpuLowering:
    """The stages of an op for a GPU; for "sm_80" unless `target` says otherwise."""
    lowering = op.lower(*args, **{"target": "sm_80", **sizes})
    assert isinstance(lowering, GpuLowering)
    return lowering


def changed_text(lowering: GpuLowering, text: str) -> GpuLowering:
    """The lowering with another text for its kernels."""
    used = lowering.settled
    other = copy(used)
    vars(other)["_decided"] = replace(used._decided, cuda=replace(used.cuda, text=text))
    vars(other)["_settled"] = other
    return other


def emulate(lowering: GpuLowering, arguments: dict[str, Array], sizes: dict[str, int], mode: Mode = "check") -> Outcome:
    """Runs the kernels. arguments: the inputs, by name; results are new arrays.

    Where this machine has a GPU, kernels without a problem run there too, and must give what they gave here.
    """
    emulator = Emulator(emulator_object, mode)
    program = Program(from_source(lowering.cuda), emulator)
    results, failed = run(program, arguments, sizes)
    assert isinstance(program.module, EmulatedModule)
    traffic = emulator.traffic(program.module) if mode == "count" else ()
    if mode == "check" and not emulator.found and compilation.gpu_here() is not None:
        _assert_alike(run(on_gpu(lowering), arguments, sizes), (results, failed))
    return Outcome(tuple(results.values()), tuple(emulator.found), traffic, failed)


def run(program: Program, arguments: dict[str, Array], sizes: dict[str, int]) -> Results:
    """The results, by name, and the check that failed."""
    places: dict[str, Place] = {}
    results: dict[str, Array] = {}
    for array in program.image.arrays:
        if array.role == "input":
            places[array.name] = OnHost(np.ascontiguousarray(arguments[array.name]))
        elif array.role == "output":
            shape = tuple(extent.evaluate(length, sizes) for length in array.shape)
            results[array.name] = np.zeros(shape, array.dtype.numpy)
            places[array.name] = OnHost(results[array.name])
    return results, program.run(places, sizes)


def on_gpu(lowering: GpuLowering) -> Program:
    """The kernels on this machine's GPU."""
    driver, source = devices.driver(), lowering.cuda
    arch = driver.limits.arch
    cubin = compilers.compile_text(source.text, arch, contract=source.contract).code
    return Program(from_source(source, arch=arch, cubin=cubin), driver)


def _assert_alike(got: Results, want: Results) -> None:
    """Integers exactly, floats to the rounding of their dtype: functions and sums inside `mma` differ in last bits."""
    assert got[1] == want[1], f"a run-time check gave {got[1]} on the GPU and {want[1]} on the emulator"
    for name, array in got[0].items() if want[1] is None else ():
        other = want[0][name]
        if array.dtype.kind in "iub":
            np.testing.assert_array_equal(array, other, err_msg=f"{name} on the GPU")
            continue
        wide, expected = array.astype(np.float64), other.astype(np.float64)
        scale = float(np.abs(expected[np.isfinite(expected)]).max(initial=1.0))
        share = {2: 4e-2, 4: 1e-4, 8: 1e-9}[array.dtype.itemsize]
        np.testing.assert_allclose(wide, expected, rtol=share, atol=share * scale, err_msg=f"{name} on the GPU")


def interpreted(
    lowering: GpuLowering, arguments: dict[str, Array], sizes: dict[str, int], seed: int = 0
) -> list[Array]:
    """The results of the mapped loop program on the interpreter, blocks and threads in a random order."""
    loops = lowering.loops
    arrays = dict(arguments)
    for buffer in loops.arguments:
        if buffer.name in loops.written:
            shape = tuple(extent.evaluate(extent.from_expr(e), sizes) for e in buffer.shape)
            arrays[buffer.name] = np.zeros(shape, buffer.dtype.numpy)
    interpret(loops, arrays, sizes, seed=seed)
    return [arrays[name] for name in loops.written]
