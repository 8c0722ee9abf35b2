"""Runs operators through the CUDA path without a GPU: on the emulator, every access checked, or on the interpreter."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from polyopt import Op
from polyopt.compilation import emulator_object
from polyopt.gpu_pipeline import GpuLowering
from polyopt.loops.interpret import interpret
from polyopt.runtime import extent
from polyopt.runtime.cuda.image import from_source
from polyopt.runtime.cuda.program import Failed, OnHost, Place, Program
from polyopt.runtime.emulator.driver import EmulatedModule, Emulator, Mode, Problem, Traffic

Array = np.ndarray[Any, Any]


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
    vars(other)["settled"] = other
    return other


def emulate(lowering: GpuLowering, arguments: dict[str, Array], sizes: dict[str, int], mode: Mode = "check") -> Outcome:
    """Runs the kernels. arguments: the inputs, by name; results are new arrays."""
    emulator = Emulator(emulator_object, mode)
    program = Program(from_source(lowering.cuda), emulator)
    places: dict[str, Place] = {}
    results: dict[str, Array] = {}
    for array in program.image.arrays:
        if array.role == "input":
            places[array.name] = OnHost(np.ascontiguousarray(arguments[array.name]))
        elif array.role == "output":
            shape = tuple(extent.evaluate(length, sizes) for length in array.shape)
            results[array.name] = np.zeros(shape, array.dtype.numpy)
            places[array.name] = OnHost(results[array.name])
    failed = program.run(places, sizes)
    assert isinstance(program.module, EmulatedModule)
    traffic = emulator.traffic(program.module) if mode == "count" else ()
    return Outcome(tuple(results.values()), tuple(emulator.found), traffic, failed)


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
