"""The three instances of a math function as callables on arrays, oracles, and errors in ulp."""

from __future__ import annotations

import ctypes
import functools
import math
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import numpy as np
from numpy.typing import NDArray

from polyopt.codegen_c.vmath import FUNCTIONS, LlvmBuilder, LlvmModule, c_source, emit_call
from polyopt.dtypes import from_name

Array = NDArray[Any]
Kernel = Callable[..., Array]


def llvm_instance(name: str, dtype: str, lanes: int, *, native: bool = True, has_scaling: bool = False) -> Kernel:
    """The LLVM code of `lanes` lanes, compiled for this machine or for any of its kind, in a loop over the array."""
    return _as_kernel(_address_llvm(name, dtype, lanes, native, has_scaling), FUNCTIONS[name].arity, dtype, lanes)


def c_instance(name: str, dtype: str) -> Kernel:
    """The C code, compiled by the system's compiler, in a loop over the array."""
    return _as_kernel(_address_c(name, dtype), FUNCTIONS[name].arity, dtype, 1)


def _as_kernel(address: int, arity: int, dtype: str, lanes: int) -> Kernel:
    prototype = ctypes.CFUNCTYPE(None, ctypes.c_int64, *[ctypes.c_void_p] * (arity + 1))
    loop = prototype(address)

    def run(*operands: Array) -> Array:
        count = operands[0].size
        padded = -(-count // lanes) * lanes
        inputs = [np.ascontiguousarray(np.resize(a, padded), dtype=dtype) for a in operands]
        result = np.empty(padded, dtype=dtype)
        loop(padded, *[a.ctypes.data for a in inputs], result.ctypes.data)
        return result[:count].reshape(operands[0].shape)

    return run


# What holds the machine code alive.
_ENGINES: list[Any] = []
_LIBRARIES: list[ctypes.CDLL] = []


@functools.cache
def _address_llvm(name: str, dtype: str, lanes: int, native: bool, has_scaling: bool) -> int:
    cpu, features = (llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()) if native else ("", "")
    attributes = f'"target-cpu"="{cpu}" "target-features"="{features}"' if native else ""
    engine = _engine(llvm_loop(name, dtype, lanes, attributes, has_scaling), cpu, features)
    _ENGINES.append(engine)
    return int(engine.get_function_address("loop"))


_SUFFIX = {"float32": "f32", "float64": "f64"}


def llvm_loop(name: str, dtype: str, lanes: int, attributes: str = "", has_scaling: bool = False) -> str:
    """A module with `void loop(i64 count, ptr x0, ..., ptr result)`; count is a multiple of the lanes."""
    element = {"float32": "float", "float64": "double"}[dtype]
    kind = element if lanes == 1 else f"<{lanes} x {element}>"
    align = np.dtype(dtype).itemsize
    lines: list[str] = []

    def emit(text: str) -> str:
        lines.append(f"  %v{len(lines)} = {text}")
        return f"%v{len(lines) - 1}"

    module = LlvmModule(attributes, has_scaling)
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
define void @loop(i64 %count, {parameters}, ptr %result) {attributes} {{
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


def _engine(text: str, cpu: str, features: str) -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(text)
    module.verify()
    target = llvm.Target.from_default_triple()
    machine = target.create_target_machine(cpu=cpu, features=features, opt=2)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return engine


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


# --- inputs ---


def sampled_bits(dtype: str, stride: int, first: int = 0, last: int | None = None) -> Array:
    """Every `stride`-th bit pattern: all signs, exponents, infinities and NaN when the stride is small."""
    bits = 8 * np.dtype(dtype).itemsize
    patterns = np.arange(first, 2**bits if last is None else last, stride, dtype=np.uint64)
    return patterns.astype(f"u{bits // 8}").view(dtype)


def random_bits(dtype: str, count: int, generator: np.random.Generator) -> Array:
    bits = 8 * np.dtype(dtype).itemsize
    return generator.integers(0, 2**bits, count, dtype=np.uint64).astype(f"u{bits // 8}").view(dtype)


def around(points: Sequence[float], dtype: str, count: int) -> Array:
    """The `count` nearest floats below and above each point, of both signs."""
    kind = np.dtype(f"i{np.dtype(dtype).itemsize}")
    centers = np.array(points, dtype=dtype).view(kind)
    steps = np.arange(-count, count + 1, dtype=kind)
    positive = (centers[:, None] + steps[None, :]).ravel().view(dtype)
    return np.concatenate([positive, -positive])


# --- oracles and errors ---


def sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small))


ORACLES: dict[str, Callable[..., Array]] = {
    name: getattr(np, name)
    for name in ("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh")
}
ORACLES |= {"sigmoid": sigmoid, "erf": np.vectorize(math.erf, otypes=[np.float64]), "pow": np.power}


def exact_values(name: str, *operands: Array) -> Array:
    """The function in a wider format: float64 for f32, the machine's extended format for f64."""
    wide = np.float64 if operands[0].dtype == np.float32 else np.longdouble
    with np.errstate(all="ignore"):
        return ORACLES[name](*[a.astype(wide) for a in operands])


def ulp_error(result: Array, exact: Array) -> Array:
    """|result - exact| in units of the last place of `exact` in the format of `result`.

    Where either is infinite or NaN the error is 0 if they agree once `exact` is rounded, or if one overflowed where
    the other is the largest number; else infinite.
    """
    info = np.finfo(result.dtype)
    with np.errstate(all="ignore"):
        rounded = exact.astype(result.dtype)
        exponent = np.maximum(np.frexp(exact)[1] - 1, info.minexp)
        error = np.abs(np.ldexp(result.astype(exact.dtype) - exact, info.nmant - exponent))
        same = (result == rounded) | (np.isnan(result) & np.isnan(rounded))
        both = np.abs(np.nan_to_num(np.stack([result, rounded]), nan=0.0, posinf=info.max, neginf=info.min))
        edge = (both == info.max).all(axis=0) & (np.signbit(result) == np.signbit(rounded))
        special = ~(np.isfinite(result) & np.isfinite(rounded))
    return np.where(special, np.where(same | edge, 0.0, np.inf), error).astype(np.float64)


def worst(name: str, result: Array, exact: Array, *operands: Array) -> tuple[float, str]:
    """The greatest error in ulp, and a line that says where."""
    errors = ulp_error(result, exact)
    at = int(np.argmax(errors))
    arguments = ", ".join(repr(a[at]) for a in operands)
    return float(errors[at]), f"{name}({arguments}) = {result[at]!r}, exactly {exact[at]!r}: {errors[at]:.3f} ulp"


def same_bits(a: Array, b: Array) -> Array:
    """Where two arrays hold the same number with the same sign, or both NaN."""
    return ((a == b) & (np.signbit(a) == np.signbit(b))) | (np.isnan(a) & np.isnan(b))
