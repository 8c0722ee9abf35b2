"""Random nests of loops, cut into kernels: on the interpreter, and as CUDA on the emulator, which looks for races."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from polyopt.codegen_cuda import partition
from polyopt.codegen_cuda.emit import emit
from polyopt.compilation import emulator_object
from polyopt.dtypes import bool_
from polyopt.errors import BoundsError
from polyopt.loops import split
from polyopt.loops.interpret import interpret
from polyopt.loops.ir import Alloc, Block, For, If, LoopProgram, Stmt, Store
from polyopt.runtime.cuda.image import from_source
from polyopt.runtime.cuda.program import OnHost, Program
from polyopt.runtime.emulator.driver import Emulator
from tests.codegen_c.kernels import i, index_var, k, load, loop, op, program_of, store, total
from tests.codegen_c.random_nests import random_nests
from tests.codegen_c.random_programs import Arrays, Case

N = index_var("N")


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")
@pytest.mark.parametrize("seed", range(16))
def test_kernels_give_what_the_loops_give(seed: int) -> None:
    case = contiguous(random_nests(seed))
    marked = replace(case.program, body=on_a_grid(case.program.body, Random(seed)))
    kernels = partition.partition(split.split(marked), blocks=4)
    wanted = results(case, lambda: interpret(case.program, case.arrays, case.sizes))
    found = results(case, lambda: interpret(kernels, case.arrays, case.sizes, seed=seed))
    np.testing.assert_equal(found, wanted, "the kernels on the interpreter")
    np.testing.assert_equal(results(case, lambda: emulate(kernels, case)), wanted, "the kernels on the emulator")


@pytest.mark.skipif(shutil.which("g++") is None, reason="the emulator needs g++")
@pytest.mark.parametrize("n", [2, 7])
@pytest.mark.parametrize("chunk", [1, 4])
def test_bounds_that_are_choices(n: int, chunk: int) -> None:
    """isl gives piecewise bounds so; `i < c ? a : b` chose by `i < c`."""
    upper = op("select", op("gt", N, 5, dtype=bool_), 3, N)
    added = loop("k", upper, store("y", [i], load("x", k), total()))
    body = loop("i", upper, store("y", [i], load("x", i)), added, kind="grid", chunk=chunk)
    arrays = {"x": np.arange(1, 9, dtype=np.float32), "y": np.zeros(8, np.float32)}
    program, _ = program_of(body, arrays, sizes=("N",))
    case = contiguous(Case(program, arrays, {"N": n}))
    kernels = partition.partition(split.split(case.program), blocks=4)
    found = results(case, lambda: emulate(kernels, case))["y"]
    rows = 3 if n > 5 else n
    first = np.arange(1, rows + 1, dtype=np.float32)
    np.testing.assert_array_equal(found, np.concatenate([first + first.sum(), np.full(8 - rows, np.nan, np.float32)]))


def contiguous(case: Case) -> Case:
    """The program for arrays without strides, as kernels take them."""
    arguments = tuple(replace(buffer, strides=None) for buffer in case.program.arguments)
    arrays = {name: np.array(array, order="C") for name, array in case.arrays.items()}
    return Case(replace(case.program, arguments=arguments), arrays, case.sizes)


def on_a_grid(statement: Stmt, random: Random, *, is_host: bool = True) -> Stmt:
    """The statement with parallel loops on the grid, and all others serial."""
    match statement:
        case Block(body):
            return Block(tuple(on_a_grid(inner, random, is_host=is_host) for inner in body))
        case For(kind="parallel", body=body) if is_host:
            inside = on_a_grid(body, random, is_host=False)
            return replace(statement, kind="grid", chunk=random.choice([1, 4, 32, 64]), body=inside)
        case For(kind=kind, body=body):
            inside = on_a_grid(body, random, is_host=is_host)
            return replace(statement, kind=kind if kind == "unrolled" else "serial", body=inside)
        case If(condition, then, otherwise):
            other = None if otherwise is None else on_a_grid(otherwise, random, is_host=is_host)
            return If(condition, on_a_grid(then, random, is_host=is_host), other)
        case Alloc(buffer, body):
            return Alloc(buffer, on_a_grid(body, random, is_host=is_host))
        case Store():
            return statement


def emulate(kernels: LoopProgram, case: Case) -> None:
    emulator = Emulator(emulator_object, "check")
    program = Program(from_source(emit(kernels)), emulator)
    places = {
        array.name: OnHost(case.arrays[array.name]) for array in program.image.arrays if array.name in case.arrays
    }
    failed = program.run(places, case.sizes)
    if failed is not None:
        raise BoundsError("a check failed")
    assert not emulator.found


def results(case: Case, run: Callable[[], object]) -> Arrays | None:
    """What is stored; None where a check fails."""
    for name in case.program.written:
        case.arrays[name][...] = 0
    try:
        run()
    except BoundsError:
        return None
    return {name: case.arrays[name].copy() for name in case.program.written}
