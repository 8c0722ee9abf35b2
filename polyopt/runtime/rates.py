"""Measures what a machine can do: operations a second, bytes a second from each cache, the cost of waking threads.

Each figure is the best of several short runs, so that other work on the machine lowers it as little as can be. The
kernels are LLVM IR with explicit vectors, so that no compiler flag decides what is measured.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable

import numpy as np

from polyopt.classes import dataclass
from polyopt.runtime import jit
from polyopt.runtime.pool import POOLS, is_supported
from polyopt.target import Rates, Target, host

REPEATS = 7
RUN_S = 2e-3
LARGEST_BYTES = 256 << 20
_ALIGNMENT = 4096
_LEAST = 1e-3
"""No rate is below this, whatever a loaded machine makes of the clock."""


def measure(target: Target | None = None, *, largest_bytes: int = LARGEST_BYTES, repeats: int = REPEATS) -> Rates:
    """Measure this machine; takes about a second on an idle one.

    target:        what to generate code for; by default this machine
    largest_bytes: of the arrays that stand for main memory
    """
    machine = target or host()
    kernels = _Kernels(machine)
    cores = POOLS.current().slots
    big = max(2 * machine.line_bytes, min(largest_bytes, max(64 << 20, 4 * machine.l3_bytes)))
    l3 = machine.l3_bytes or machine.l2_bytes
    return Rates(
        **{f"fma_{name}": _rate(kernels.fma(name), repeats) for name in _MULTIPLY_ADDS},
        l1=_rate(kernels.read(machine.l1_bytes // 2), repeats),
        l2=_rate(kernels.read(min(machine.l2_bytes // 2, big)), repeats),
        l3=_rate(kernels.read(min(max(l3 // 2, machine.l2_bytes), big)), repeats),
        dram=_rate(kernels.read(big), repeats),
        copy=_rate(kernels.copy(big), repeats),
        dram_all=_together([kernels.read(big // cores) for _ in range(cores)], repeats),
        copy_all=_together([kernels.copy(big // cores) for _ in range(cores)], repeats),
        dispatch_us=_dispatch_us(kernels, repeats),
        cores=cores,
    )


@dataclass(frozen=True, slots=True)
class _Work:
    """Something to time: `run(times)` does `amount` operations or bytes, `times` over."""

    run: Callable[[int], object]
    amount: float


def _rate(work: _Work, repeats: int) -> float:
    """1e9 operations or bytes a second, the best of several runs of a few milliseconds."""
    times = 1
    while (took := _seconds(work, times)) < RUN_S and times < 1 << 40:
        times *= 2 if took > RUN_S / 8 else 8
    best = min(took, *(_seconds(work, times) for _ in range(repeats)))
    return max(_LEAST, work.amount * times / max(best, 1e-9) / 1e9)


def _seconds(work: _Work, times: int) -> float:
    start = time.perf_counter()
    work.run(times)
    return time.perf_counter() - start


def _together(works: list[_Work], repeats: int) -> float:
    """1e9 bytes a second of all works at once, a thread for each; the best of several rounds of about 20 ms."""
    works[0].run(1)
    times = max(1, round(10 * RUN_S / max(_seconds(works[0], 1), 1e-6)))
    best = 0.0
    for _ in range(repeats):
        gate = threading.Barrier(len(works) + 1)

        def go(work: _Work, gate: threading.Barrier = gate) -> None:
            gate.wait()
            work.run(times)

        threads = [threading.Thread(target=go, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        gate.wait()
        start = time.perf_counter()
        for thread in threads:
            thread.join()
        best = max(best, sum(work.amount for work in works) * times / (time.perf_counter() - start) / 1e9)
    return max(_LEAST, best)


def _dispatch_us(kernels: _Kernels, repeats: int) -> float:
    """Microseconds of a parallel region with nothing to do, with workers that were just at work."""
    pool = POOLS.current()
    if not is_supported() or not pool.run:
        return _LEAST
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(pool.run)

    def regions(times: int) -> None:
        for _ in range(times):
            run(kernels.empty, None, pool.slots)

    times = 200
    regions(times)
    return max(_LEAST, 1e6 * min(_seconds(_Work(regions, 0.0), times) for _ in range(repeats)) / times)


# --- the kernels ------------------------------------------------------------------------------------------------

_MULTIPLY_ADDS = ("f32", "f64", "bf16", "i8")


def kernels_ir(target: Target) -> str:
    """The module with everything that is timed: `fma_f32` and so on, `read`, `copy`, `empty`."""
    bodies = {name: _multiply_add(name, target) for name in _MULTIPLY_ADDS}
    declarations = dict.fromkeys(body.declaration for body in bodies.values())
    loops = [_fma_ir(name, body, _chains(target)) for name, body in bodies.items()]
    lanes = target.lanes(32)
    return "\n".join([*declarations, *loops, _read_ir(lanes), _COPY.replace("LANES", str(lanes)), _EMPTY])


def _chains(target: Target) -> int:
    """Independent accumulators: enough to hide the latency of an instruction, few enough for the registers."""
    return 24 if target.vector_registers >= 32 else 12


class _Kernels:
    """Machine code to measure with."""

    def __init__(self, target: Target) -> None:
        self._operations = {name: _multiply_add(name, target).operations * _chains(target) for name in _MULTIPLY_ADDS}
        names = [*(f"fma_{name}" for name in _MULTIPLY_ADDS), "read", "copy", "empty"]
        self._code = jit.load_object(jit.compile_object(kernels_ir(target), target), names)
        self.empty = self._code.addresses["empty"]

    def fma(self, name: str) -> _Work:
        function = ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._code.addresses[f"fma_{name}"])
        return _Work(lambda times: function(64 * times), 64.0 * self._operations[name])

    def read(self, size: int) -> _Work:
        size = max(_BLOCK, size // _BLOCK * _BLOCK)
        data = _aligned(size)
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(self._code.addresses["read"])
        return _Work(lambda times: function(data.ctypes.data, size // 4, times), float(size))

    def copy(self, size: int) -> _Work:
        size = max(_BLOCK, size // 2 // _BLOCK * _BLOCK)
        source, sink = _aligned(size), _aligned(size)
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)(
            self._code.addresses["copy"]
        )
        return _Work(lambda times: function(source.ctypes.data, sink.ctypes.data, size // 4, times), 2.0 * size)


_BLOCK = 8 * 64
"""Bytes that one turn of `read` takes at most."""


def _aligned(size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Zeroed memory at the start of a page, every page touched."""
    raw = np.ones(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + size]


@dataclass(frozen=True, slots=True)
class _MultiplyAdd:
    """One vector instruction, or the shortest sequence, that multiplies and adds.

    kind:        LLVM type of the accumulator
    operand:     LLVM type of `%x` and `%y`
    call:        text of one step, from accumulator `{a}` to `{b}`
    operations:  multiplications and additions of one step
    declaration: of the intrinsic
    """

    kind: str
    operand: str
    call: str
    operations: int
    declaration: str


def _multiply_add(name: str, target: Target) -> _MultiplyAdd:
    bits = target.vector_bits
    if name in ("f32", "f64"):
        lanes = target.lanes(int(name[1:]))
        kind = f"<{lanes} x {'float' if name == 'f32' else 'double'}>"
        function = f"@llvm.fma.v{lanes}{name}"
        return _MultiplyAdd(
            kind,
            kind,
            f"{{b}} = call {kind} {function}({kind} %x, {kind} %y, {kind} {{a}})",
            2 * lanes,
            f"declare {kind} {function}({kind}, {kind}, {kind})",
        )
    lanes = target.lanes(32)
    if name == "bf16" and target.has("avx512bf16") and bits == 512:
        function, kind, operand = "@llvm.x86.avx512bf16.dpbf16ps.512", f"<{lanes} x float>", f"<{2 * lanes} x bfloat>"
        return _MultiplyAdd(
            kind,
            operand,
            f"{{b}} = call {kind} {function}({kind} {{a}}, {operand} %x, {operand} %y)",
            4 * lanes,
            f"declare {kind} {function}({kind}, {operand}, {operand})",
        )
    if name == "bf16":
        return _multiply_add("f32", target)
    if target.has("avx512vnni") and bits == 512:
        function, kind, operand = "@llvm.x86.avx512.vpdpbusd.512", f"<{lanes} x i32>", f"<{4 * lanes} x i8>"
        return _MultiplyAdd(
            kind,
            operand,
            f"{{b}} = call {kind} {function}({kind} {{a}}, {operand} %x, {operand} %y)",
            8 * lanes,
            f"declare {kind} {function}({kind}, {operand}, {operand})",
        )
    if target.name == "avx2":
        function, kind, operand = "@llvm.x86.avx2.pmadd.wd", f"<{lanes} x i32>", f"<{2 * lanes} x i16>"
        step = f"{{b}}.p = call {kind} {function}({operand} {{o}}, {operand} %y)\n  {{b}} = add {kind} {{a}}, {{b}}.p"
        return _MultiplyAdd(kind, operand, step, 4 * lanes, f"declare {kind} {function}({operand}, {operand})")
    kind = f"<{lanes} x i32>"
    step = f"{{b}}.p = mul {kind} {{a}}, %x\n  {{b}} = add {kind} %y, {{b}}.p"
    return _MultiplyAdd(kind, kind, step, 2 * lanes, "")


def _fma_ir(name: str, body: _MultiplyAdd, chains: int) -> str:
    """`fma_NAME(n)`: n rounds of one step on each of `chains` independent accumulators."""
    kind = body.kind
    zero = "zeroinitializer"
    phis = [f"  %a{c} = phi {kind} [ {zero}, %entry ], [ %b{c}, %loop ]" for c in range(chains)]
    # Where an operand must differ from step to step lest the product leave the loop, it is the accumulator's own bits.
    steps = []
    for c in range(chains):
        if "{o}" in body.call:
            steps.append(f"  %o{c} = bitcast {kind} %a{c} to {body.operand}")
        steps.append("  " + body.call.format(a=f"%a{c}", b=f"%b{c}", o=f"%o{c}"))
    sinks = [f"  store volatile {kind} %b{c}, ptr %sink" for c in range(chains)]
    lines = [
        f"define void @fma_{name}(i64 %n) {{",
        "entry:",
        f"  %sink = alloca {kind}, align 64",
        f"  %operands = alloca {body.operand}, align 64",
        f"  store volatile {body.operand} {zero}, ptr %operands",
        f"  %x = load volatile {body.operand}, ptr %operands",
        f"  %y = load volatile {body.operand}, ptr %operands",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %entry ], [ %i1, %loop ]",
        *phis,
        *steps,
        "  %i1 = add i64 %i, 1",
        "  %more = icmp slt i64 %i1, %n",
        "  br i1 %more, label %loop, label %done",
        "done:",
        *sinks,
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


def _read_ir(lanes: int) -> str:
    """`read(data, floats, times)`: the bits of `data` combined, eight vectors a turn."""
    kind, count = f"<{lanes} x i32>", 8
    per_turn = count * lanes
    phis = [f"  %a{c} = phi {kind} [ zeroinitializer, %pass ], [ %b{c}, %loop ]" for c in range(count)]
    steps = []
    for c in range(count):
        steps += [
            f"  %i_{c} = add i64 %i, {c * lanes}",
            f"  %p{c} = getelementptr float, ptr %data, i64 %i_{c}",
            f"  %v{c} = load {kind}, ptr %p{c}, align 4",
            f"  %b{c} = or {kind} %a{c}, %v{c}",
        ]
    sinks = [f"  store volatile {kind} %b{c}, ptr %sink" for c in range(count)]
    lines = [
        "define void @read(ptr %data, i64 %floats, i64 %times) {",
        "entry:",
        f"  %sink = alloca {kind}, align 64",
        "  br label %pass",
        "pass:",
        "  %t = phi i64 [ 0, %entry ], [ %t1, %end ]",
        "  br label %loop",
        "loop:",
        "  %i = phi i64 [ 0, %pass ], [ %i1, %loop ]",
        *phis,
        *steps,
        f"  %i1 = add i64 %i, {per_turn}",
        "  %more = icmp slt i64 %i1, %floats",
        "  br i1 %more, label %loop, label %end",
        "end:",
        *sinks,
        "  %t1 = add i64 %t, 1",
        "  %again = icmp slt i64 %t1, %times",
        "  br i1 %again, label %pass, label %done",
        "done:",
        "  ret void",
        "}",
    ]
    return "\n".join(lines)


_COPY = """define void @copy(ptr %source, ptr %sink, i64 %floats, i64 %times) {
entry:
  br label %pass
pass:
  %t = phi i64 [ 0, %entry ], [ %t1, %end ]
  br label %loop
loop:
  %i = phi i64 [ 0, %pass ], [ %i1, %loop ]
  %from = getelementptr float, ptr %source, i64 %i
  %to = getelementptr float, ptr %sink, i64 %i
  %v = load <LANES x float>, ptr %from, align 4
  store volatile <LANES x float> %v, ptr %to, align 4
  %i1 = add i64 %i, LANES
  %more = icmp slt i64 %i1, %floats
  br i1 %more, label %loop, label %end
end:
  %t1 = add i64 %t, 1
  %again = icmp slt i64 %t1, %times
  br i1 %again, label %pass, label %done
done:
  ret void
}
"""

_EMPTY = """define void @empty(ptr %context, i64 %chunk, i64 %chunks, i64 %slot) {
  ret void
}
"""
