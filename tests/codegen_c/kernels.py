"""Builds loop programs by hand and runs them as machine code."""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from polyopt.codegen_c.c_source import as_c
from polyopt.codegen_c.emit import LlvmModule, emit
from polyopt.codegen_c.identifiers import symbol_of
from polyopt.dsl.ir import Const, Op, Reducer, Var
from polyopt.dtypes import DType, f32, from_numpy, i64
from polyopt.loops.ir import (
    Block,
    Buffer,
    Expr,
    For,
    Load,
    LoopProgram,
    Site,
    Stmt,
    Store,
    index_var,
    integer,
    walk_expr,
)
from polyopt.runtime import jit
from polyopt.target import host

Number: TypeAlias = "int | Expr"


def number(value: Number) -> Expr:
    return integer(value) if isinstance(value, int) else value


def op(name: str, *args: Number, dtype: DType = i64) -> Op[Expr]:
    """An operation; of i64 unless said otherwise."""
    return Op(name, tuple(number(arg) for arg in args), dtype)


def add(left: Number, right: Number) -> Op[Expr]:
    return op("add", left, right)


def fl(name: str, *args: Expr) -> Op[Expr]:
    """An operation whose result has the dtype of its last operand."""
    return Op(name, args, args[-1].dtype)


def buffer(name: str, array: np.ndarray[Any, Any], *, strided: bool = True) -> Buffer:
    """An argument like the array."""
    strides = tuple(integer(stride) for stride in array.strides) if strided else None
    return Buffer(name, from_numpy(array.dtype), tuple(integer(n) for n in array.shape), "argument", strides)


def load(name: str, *indices: Number, dtype: DType = f32, **options: Any) -> Load:
    return Load(name, tuple(number(index) for index in indices), dtype, **options)


def store(name: str, indices: Sequence[Number], value: Expr, reducer: Reducer | None = None, **options: Any) -> Store:
    return Store("S", (), name, tuple(number(index) for index in indices), value, reducer, **options)


def loop(var: str, upper: Number, *body: Stmt, lower: Number = 0, kind: Any = "serial", **options: Any) -> For:
    inner = body[0] if len(body) == 1 else Block(body)
    return For(var, number(lower), number(upper), inner, kind=kind, **options)


def total(dtype: DType = f32) -> Reducer:
    return Reducer("sum", dtype, Const(0, dtype))


i, j, k, t = (index_var(name) for name in "ijkt")


class BoundsFailure(Exception):
    """site, index found, extent"""


def module_of(body: Stmt, arrays: dict[str, np.ndarray[Any, Any]], **options: Any) -> tuple[LoopProgram, LlvmModule]:
    program, options = program_of(body, arrays, **options)
    return program, emit(program, **{"vector_bits": 512, **options})


def program_of(
    body: Stmt,
    arrays: dict[str, np.ndarray[Any, Any]],
    *,
    workspace: tuple[Buffer, ...] = (),
    sizes: tuple[str, ...] = (),
    arguments: tuple[Buffer, ...] | None = None,
    **options: Any,
) -> tuple[LoopProgram, dict[str, Any]]:
    declared = arguments or tuple(buffer(name, array) for name, array in arrays.items())
    sites = tuple(Site("x", 0, None) for _ in range(8))
    program = LoopProgram("kernel", declared, workspace, sizes, tuple(arrays)[-1:], body, sites)
    return program, options


def run(
    body: Stmt,
    arrays: dict[str, np.ndarray[Any, Any]],
    *,
    size_values: Sequence[int] = (),
    slots: int = 1,
    pool: int = 0,
    opt: int = 2,
    **options: Any,
) -> None:
    """Compiles the statement and runs it on the arrays, in place."""
    _, module = module_of(body, arrays, **options)
    call(module, list(arrays.values()), size_values, slots=slots, pool=pool, opt=opt)


def call(
    module: LlvmModule,
    arrays: Sequence[np.ndarray[Any, Any]],
    size_values: Sequence[int] = (),
    *,
    slots: int = 1,
    pool: int = 0,
    opt: int = 2,
) -> None:
    code = jit.load_object(jit.compile_object(module.text, host(), opt=opt), [module.entry])
    sizes = dict(zip(_size_names(module), size_values, strict=False))
    needed = _bytes(module.shared_bytes, sizes) + slots * _bytes(module.private_bytes, sizes)
    memory = np.full(needed + 64, 0xAB, np.uint8)
    record = np.zeros(3, np.int64)
    start = memory.ctypes.data + (-memory.ctypes.data) % 64
    words = [pool, start, record.ctypes.data, slots, *(array.ctypes.data for array in arrays), *size_values]
    block = (ctypes.c_int64 * len(words))(*words)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.addresses[module.entry])(ctypes.addressof(block))
    if record[0]:
        raise BoundsFailure(int(record[0]) - 1, int(record[1]), int(record[2]))


def _size_names(module: LlvmModule) -> list[str]:
    names: dict[str, None] = {}
    for size in (module.shared_bytes, module.private_bytes):
        if not isinstance(size, int):
            names.update((node.name, None) for node in walk_expr(size) if isinstance(node, Var))
    return list(names)


def _bytes(size: int | Expr, sizes: dict[str, int]) -> int:
    if isinstance(size, int):
        return size
    match size:
        case Const(value):
            return int(value)
        case Var(name):
            return sizes[name]
        case Op(name, args):
            a, b = (_bytes(arg, sizes) for arg in args)
            return {"add": a + b, "sub": a - b, "mul": a * b, "floordiv": a // b if b else 0, "maximum": max(a, b)}[
                name
            ]
    raise AssertionError(size)


# --- guard pages ----------------------------------------------------------------------------------------------


def guarded(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """A copy that ends where memory ends: an access behind it kills the process."""
    pages = -(-max(values.nbytes, 1) // mmap.PAGESIZE)
    memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    behind = ctypes.c_void_p(start + pages * mmap.PAGESIZE)
    assert ctypes.CDLL(None).mprotect(behind, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
    usable = np.frombuffer(memory, np.uint8, pages * mmap.PAGESIZE)
    array = usable[usable.size - values.nbytes :].view(values.dtype).reshape(values.shape)
    array[...] = values
    return array


# --- the same as C ---------------------------------------------------------------------------------------------

GCC = shutil.which("gcc")
_SHARED = {False: ["-std=c11", "-Wall", "-Werror", "-O2"], True: ["-std=c11", "-Wall", "-Werror", "-O1", "-fopenmp"]}


def run_c(
    body: Stmt,
    arrays: dict[str, np.ndarray[Any, Any]],
    folder: Path,
    *,
    size_values: Sequence[int] = (),
    openmp: bool = False,
    **options: Any,
) -> str:
    """Prints the statement as C, compiles it strictly, runs it on the arrays, in place. Returns the text."""
    program, _ = program_of(body, arrays, **options)
    return run_c_program(program, arrays, folder, size_values, openmp=openmp)


def run_c_program(
    program: LoopProgram,
    arrays: dict[str, np.ndarray[Any, Any]],
    folder: Path,
    size_values: Sequence[int] = (),
    *,
    openmp: bool = False,
) -> str:
    text = as_c(program, openmp=openmp)
    source = folder / f"k{len(list(folder.iterdir()))}.c"
    source.write_text(text)
    library = source.with_suffix(".so")
    assert GCC is not None
    command = [GCC, *_SHARED[openmp], "-shared", "-fPIC", "-o", str(library), str(source), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + text
    kernel = ctypes.CDLL(str(library))[symbol_of(program)]
    kernel.restype = ctypes.c_int64
    kernel.argtypes = [ctypes.c_void_p] * len(arrays) + [ctypes.c_int64] * len(size_values)
    result = kernel(*(array.ctypes.data for array in arrays.values()), *size_values)
    if result:
        raise BoundsFailure(result - 1)
    return text
