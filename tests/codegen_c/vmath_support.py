"""The three instances of a math function as callables on arrays, oracles, and errors in ulp."""

from __future__ import annotations

import ctypes
import functools
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from polyopt.codegen_c.vmath import FUNCTIONS, LlvmBuilder, LlvmModule, c_source, emit_call
from polyopt.dtypes import from_name

Array = NDArray[Any]
Kernel = Callable[..., Array]


def llvm_instance(name: str, dtype: str, lanes: int) -> Kernel:
    """The LLVM code of `lanes` lanes, compiled for this machine, in a loop over the array."""
    return _as_kernel(_address_llvm(name, dtype, lanes), FUNCTIONS[name].arity, dtype, lanes, _address_llvm)


def c_instance(name: str, dtype: str) -> Kernel:
    """The C code, compiled by the system's compiler, in a loop over the array."""
    return _as_kernel(_address_c(name, dtype), FUNCTIONS[name].arity, dtype, 1, _address_c)


def _as_kernel(address: int, arity: int, dtype: str, lanes: int, owner: object) -> Kernel:
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (arity + 1))
    loop = prototype(address)

    def run(*operands: Array) -> Array:
        count = operands[0].size
        padded = -(-count // lanes) * lanes
        inputs = [np.ascontiguousarray(np.resize(a, padded), dtype=dtype) for a in operands]
        result = np.empty(padded, dtype=dtype)
        loop(padded, *[a.ctypes.data for a in inputs], result.ctypes.data)
        return result[:count].reshape(operands[0].shape)

    run.__dict__["owner"] = owner  # the machine code lives as long as its cache
    return run


@functools.cache
def _address_llvm(name: str, dtype: str, lanes: int) -> int:
    engine = _engine(llvm_loop(name, dtype, lanes))
    address = int(engine.get_function_address("loop"))
    _ENGINES.append(engine)
    return address


_ENGINES: list[Any] = []
_SUFFIX = {"float32": "f32", "float64": "f64"}


def llvm_loop(name: str, dtype: str, lanes: int) -> str:
    """A module with `void loop(i64 count, ptr x0, ..., ptr result)`; count is a multiple of the lanes."""
    element = {"float32": "float", "float64": "double"}[dtype]
    kind = element if lanes == 1 else f"<{lanes} x {element}>"
    align = np.dtype(dtype).itemsize
    lines: list[str] = []

    def emit(text: str) -> str:
        lines.append(f"  %v{len(lines)} = {text}")
        return f"%v{len(lines) - 1}"

    module = LlvmModule(attributes=_attributes())
    builder = LlvmBuilder(emit, from_name(_SUFFIX[dtype]), lanes, module)
    arity = FUNCTIONS[name].arity
    operands = []
    for k in range(arity):
        address = emit(f"getelementptr {element}, ptr %x{k}, i64 %i")
        operands.append(emit(f"load {kind}, ptr {address}, align {align}"))
    result = emit_call(builder, name, from_name(_SUFFIX[dtype]), tuple(operands))
    parameters = ", ".join(f"ptr %x{k}" for k in range(arity))
    body = "\n".join(lines)
    return f"""
define void @loop(i64 %count, {parameters}, ptr %result) {_attributes()} {{
entry:
  %none = icmp eq i64 %count, 0
  br i1 %none, label %done, label %body
body:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
{body}
  %out = getelementptr {element}, ptr %result, i64 %i
  store {kind} {result}, ptr %out, align {align}
  %next = add i64 %i, {lanes}
  %more = icmp ult i64 %next, %count
  br i1 %more, label %body, label %done
done:
  ret void
}}
{module.text()}"""


def _attributes() -> str:
    features = llvm.get_host_cpu_features().flatten()
    return f'"target-cpu"="{llvm.get_host_cpu_name()}" "target-features"="{features}"'


def _engine(text: str) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    module.verify()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


_LIBRARIES: list[ctypes.CDLL] = []


@functools.cache
def _address_c(name: str, dtype: str) -> int:
    symbol, text = c_source.function(name, _SUFFIX[dtype])  # type: ignore[arg-type]  # a literal's value
    kind = {"float32": "float", "float64": "double"}[dtype]
    arity = FUNCTIONS[name].arity
    parameters = ", ".join(f"const {kind} *x{k}" for k in range(arity))
    arguments = ", ".join(f"x{k}[i]" for k in range(arity))
    source = f"""{c_source.PREAMBLE}
{text}
void loop(int64_t count, {parameters}, {kind} *result)
{{
    for (int64_t i = 0; i < count; i++) result[i] = {symbol}({arguments});
}}
"""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loop.c"
        path.write_text(source)
        command = ["cc", "-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
        subprocess.run([*command, "-o", f"{folder}/loop.so", str(path), "-lm"], check=True)
        library = ctypes.CDLL(f"{folder}/loop.so")
    _LIBRARIES.append(library)
    return ctypes.cast(library.loop, ctypes.c_void_p).value or 0


# --- oracles and errors ---


def ulp_error(result: Array, exact: Array) -> Array:
    """|result - exact| in units of the last place of `exact` in the format of `result`.

    exact: longdouble or float64. Where it rounds to a special value or is NaN the error is 0 or infinite.
    """
    dtype = result.dtype
    info = np.finfo(dtype)
    wide = exact.astype(np.longdouble)
    with np.errstate(all="ignore"):
        rounded = wide.astype(dtype)
        _, exponent = np.frexp(wide)
        exponent = np.clip(exponent, info.minexp + 1, None)
        unit = np.ldexp(np.longdouble(1), exponent - 1 - info.nmant)
        error = np.abs(result.astype(np.longdouble) - wide) / unit
        same = (result == rounded) | (np.isnan(result) & np.isnan(rounded))
        special = ~np.isfinite(result) | ~np.isfinite(rounded) | ~np.isfinite(wide)
        # a result may overflow where the exact value is within the error of the largest number
        edge = np.isinf(result) & (np.abs(wide) >= np.longdouble(info.max)) | np.isinf(rounded) & (
            np.abs(result) == info.max
        )
    return np.where(special, np.where(same | edge, 0.0, np.inf), error).astype(np.float64)
