"""The emulator runs what NVRTC makes of kernels too, and shows where that is something else than the text."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, compilation, f16, f32, f64, i8, i16, i32, i64, u8
from polyopt.api import Op
from polyopt.errors import CompileError
from polyopt.fuzz.check import compare
from polyopt.runtime import arguments
from polyopt.runtime.cuda import compilers
from polyopt.runtime.cuda.image import from_source
from polyopt.runtime.cuda.program import Program
from polyopt.runtime.emulator import from_ptx
from polyopt.target import gpu_preset
from tests.codegen_cuda.running import lowered, run
from tests.codegen_cuda.test_emulated import needs_compiler
from tests.emulator import kernels

pytestmark = needs_compiler

M, N, K = po.sizes("M N K")
i, j, k, ii = po.index("i", extent=M), po.index("j", extent=N), po.index("k", extent=K), po.index("ii", extent=M)


@po.op(numerics="strict")
def product(x: f32[M, K], y: f32[K, N]) -> object:
    z = po.tensor("z")
    z[i, j] = po.relu(po.sum(x[i, k] * y[k, j], k))
    return z


@po.op
def halves(x: f16[M, K], y: f16[K, N]) -> object:
    z = po.tensor("z")
    z[i, j] = po.sum(po.cast(x[i, k], f32) * po.cast(y[k, j], f32), k)
    return z


@po.op
def brains(x: bf16[M, K], y: bf16[K, N]) -> object:
    z = po.tensor("z")
    z[i, j] = po.sum(po.cast(x[i, k], f32) * po.cast(y[k, j], f32), k)
    return z


@po.op
def bytes_of(x: i8[M, K], y: u8[N, K]) -> object:
    z = po.tensor("z")
    z[i, j] = po.sum(po.cast(x[i, k], i32) * po.cast(y[j, k], i32), k)
    return z


@po.op
def softmax(x: f32[M, N]) -> object:
    e = po.tensor("e", shape=(M, N))
    e[i, j] = po.exp(x[i, j] - po.max(x[i, j], j))
    y = po.tensor("y")
    y[i, j] = e[i, j] / po.sum(e[i, j], j)
    return y


@po.op
def turned(x: f64[M, N]) -> object:
    y = po.tensor("y")
    y[j, i] = x[i, j]
    return y


@po.op
def running(x: i64[M]) -> object:
    y = po.tensor("y", shape=(M,))
    y[0] = x[0]
    y[i] = po.when(i > 0, po.maximum(y[i - 1] * 3, x[i]) // 2 - x[M - 1 - i] % 5)
    return y


@po.op(dynamic=["M"])
def picked(x: i16[M, N], ids: i32[M]) -> object:
    y = po.tensor("y")
    y[i, j] = po.abs(-x[ids[i], j]) >> 1
    return y


RANDOM = np.random.default_rng(5)


def integers(shape: tuple[int, ...], dtype: Any, low: int = -4, high: int = 5) -> Any:
    return RANDOM.integers(low, high, shape).astype(dtype)


CASES: dict[str, tuple[Op, tuple[Any, ...]]] = {
    "product": (product, (integers((70, 19), np.float32), integers((19, 45), np.float32))),
    "halves": (halves, (integers((64, 32), np.float16), integers((32, 64), np.float16))),
    "brains": (brains, (integers((128, 48), bf16.numpy), integers((48, 64), bf16.numpy))),
    "bytes_of": (bytes_of, (integers((64, 64), np.int8), integers((64, 64), np.uint8, 0, 9))),
    "softmax": (softmax, (integers((9, 130), np.float32),)),
    "turned": (turned, (integers((70, 41), np.float64),)),
    "running": (running, (integers((50,), np.int64),)),
    "picked": (picked, (integers((8, 33), np.int16, -32768, 32768), np.arange(8, dtype=np.int32)[::-1].copy())),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_what_nvrtc_makes_of_kernels_gives_the_numbers_of_the_text(name: str, arch: str) -> None:
    op, args = CASES[name]
    lowering = lowered(op, *args, target=gpu_preset(arch, sms=1))
    given = arguments.bind(op.signature, args, {})
    found = []
    for through_ptx in (False, True):
        emulator = compilation.emulator(through_ptx=through_ptx)
        found.append(run(Program(from_source(lowering.cuda), emulator), dict(given.arrays), {"M": 8}))
        assert emulator.found == []
    (plain, _), (compiled, failed) = found
    assert failed is None
    for array, wanted in zip(compiled.values(), plain.values(), strict=True):
        if name == "softmax":
            np.testing.assert_allclose(array, wanted, rtol=1e-6)  # of `ex2.approx` and of a division beside it
        else:
            np.testing.assert_array_equal(array, wanted)


COUNTED = """\
#include "po_device.h"
static PO_DEVICE int64_t sum(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
static PO_DEVICE int64_t product(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
static PO_DEVICE int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

PO_KERNEL void __launch_bounds__(256) f(int64_t *y)
{
    PO_SHARED int64_t most[272];
    const int j_block = (int)blockIdx.x * 8;
    const int j = j_block + (int)threadIdx.y;
    if (j < 17) {
        for (int i = (int)threadIdx.x; i < 33; i += 32) {
            most[((int)threadIdx.y) * 34 + i] = 1;
        }
        __syncwarp();
        for (int ii = 0; ii < 33; ++ii) {
            if ((int)threadIdx.x == 0) {
                y[ii * 17 + j] = sum(NUMBER, most[((int)threadIdx.y) * 34 + ii]);
            }
            __syncwarp();
            const int i = ii + 2 + (int)threadIdx.x;
            if (i < 33) {
                const int64_t next = product(3 * j + 2, y[ii * 17 + j]);
                most[((int)threadIdx.y) * 34 + i] = larger(most[((int)threadIdx.y) * 34 + i], next);
            }
            __syncwarp();
        }
    }
}
PO_ENTRY(f)
"""
"""The threads of a warp go through the loop over `ii` together."""


@pytest.mark.parametrize("number, rows", [("2 + 1 * ii + 1", 29), ("po_value(2 + 1 * ii + 1)", 33)])
def test_nvvm_counts_a_loop_wrong_whose_index_is_a_number_of_64_bits_too(number: str, rows: int) -> None:
    """An H200 had no numbers from row 29 on; `po_value` is why the kernels that we emit have all of them."""
    text = COUNTED.replace("NUMBER", number)
    compiled = from_ptx.translated(compilers.compile_text(text, "sm_90", "ptx").code.decode())
    plain, y = (np.full((33, 17), -1, np.int64) for _ in range(2))
    kernels.run(text, "f", (1, 1, 1), 32, {}, {"y": plain}, ())
    outcome = kernels.run(compiled, "f", (1, 1, 1), 32, {}, {"y": y}, ())
    assert outcome.problems == ()
    assert np.count_nonzero(plain[:, 0] == y[:, 0]) == rows


@po.op(numerics="strict")
def growing(x: i64[M, N]) -> object:
    y = po.tensor("y", shape=(M, N), dtype=i64)
    y[i, j] = x[i, j] + (i + 3) + po.max((3 * j + 2) * y[ii, j], ii, where=ii + 1 < i, init=1)
    return y


def test_an_index_that_becomes_a_number_is_one_that_nvvm_does_not_see_through() -> None:
    x = integers((33, 17), np.int64)
    on_gpu = growing.on(gpu_preset("sm_90", sms=2))
    text = lowered(growing, x, target=gpu_preset("sm_90", sms=2)).source("cuda")
    assert re.search(r"po_value\([^()]*ii[^()]*\)", text)
    compare(on_gpu, (x,), gpu=True)


def test_an_instruction_that_is_not_known_is_an_error() -> None:
    with pytest.raises(CompileError, match=r"does not know the PTX instruction 'call\.uni'"):
        from_ptx.translated("//\n.visible .entry f(\n)\n{\n\tcall.uni f, (%r1);\n}\n")
    with pytest.raises(CompileError, match="wgmma"):
        from_ptx.translated("//\n.visible .entry f(\n)\n{\n\twgmma.fence.sync.aligned;\n}\n")


INSTRUCTIONS: dict[str, int] = {
    "mul.hi.s32 %r1, %r2, -2004318071": -5 * -2004318071 >> 32,
    "mul.wide.s32 %rd1, %r2, 3; cvt.u32.u64 %r1, %rd1": -15,
    "mad.lo.s32 %r1, %r2, 7, -1": -36,
    "shr.s32 %r1, %r2, 40": -1,
    "shr.u32 %r1, %r2, 40": 0,
    "cvt.s16.s8 %rs1, %r2; cvt.s32.s16 %r1, %rs1": -5,
    "cvt.u16.u32 %rs1, %r2; cvt.u32.u16 %r1, %rs1": 65531,
    "bfe.s32 %r1, 2032, 4, 3": -1,
    "bfe.u32 %r1, 2032, 4, 3": 7,
    "bfi.b32 %r1, 5, 0, 27, 3": 5 << 27,
    "prmt.b32 %r1, 305419896, 0, 291": 0x78563412,
    "min.u32 %r1, %r2, 3": 3,
    "min.s32 %r1, %r2, 3": -5,
    "div.s32 %r1, %r2, 2": -2,
    "rem.s32 %r1, %r2, 2": -1,
    "abs.s32 %r1, %r2": 5,
    "not.b32 %r1, %r2": 4,
    "neg.s32 %r1, -2147483648": -(1 << 31),
    "dp4a.s32.u32 %r1, 67305985, 16843009, 1": 11,
    "lop3.b32 %r1, 12, 10, 0, 192": 8,
    "shf.l.wrap.b32 %r1, -2147483648, 1, 1": 3,
    "mov.f32 %f1, 0f40400000; cvt.rzi.s32.f32 %r1, %f1": 3,
    "cvt.rmi.f32.f32 %f1, 0fC0200000; cvt.rzi.s32.f32 %r1, %f1": -3,
    "cvt.rni.s32.f32 %r1, 0f40200000": 2,
    "cvt.rzi.s32.f64 %r1, 0d7FF8000000000000": 0,
    "cvt.rzi.s32.f32 %r1, 0f501502F9": (1 << 31) - 1,
    "setp.ne.f32 %p1, 0f7FC00000, 0f3F800000; selp.b32 %r1, 1, 0, %p1": 0,
    "setp.neu.f32 %p1, 0f7FC00000, 0f3F800000; selp.b32 %r1, 1, 0, %p1": 1,
    "setp.num.f32 %p1, 0f7FC00000, 0f3F800000; selp.b32 %r1, 1, 0, %p1": 0,
    "setp.lt.s32 %p1, %r2, 0; mov.u32 %r1, 1; @%p1 mov.u32 %r1, 2; @!%p1 mov.u32 %r1, 3": 2,
    "mov.b64 %rd1, {%r2, 7}; shr.u64 %rd1, %rd1, 32; cvt.u32.u64 %r1, %rd1": 7,
    "mov.b64 {%r1, %r3}, 30064771075": 3,
    "max.NaN.f32 %f1, 0f3F800000, 0f7FC00000; setp.num.f32 %p1, %f1, %f1; selp.b32 %r1, 1, 0, %p1": 0,
    "max.f32 %f1, 0f3F800000, 0f7FC00000; cvt.rzi.s32.f32 %r1, %f1": 1,
    "fma.rz.f32 %f1, 0f3F800001, 0f3F800001, 0f33000000; mov.b32 %r1, %f1": 0x3F800002,
    "fma.rm.f32 %f1, 0f3F800001, 0f3F800001, 0f33000000; mov.b32 %r1, %f1": 0x3F800002,
    "fma.rp.f32 %f1, 0f3F800001, 0f3F800001, 0f33000000; mov.b32 %r1, %f1": 0x3F800003,
    "fma.rz.f32 %f1, 0fBF800001, 0f3F800001, 0fB3000000; mov.b32 %r1, %f1": 0xBF800002 - (1 << 32),
    "cvt.sat.f32.f32 %f1, 0f40400000; mov.b32 %r1, %f1": 0x3F800000,
    "st.shared.u32 [one_$_0], 9; ld.shared.u32 %r1, [one_$_0]": 9,
    "mov.u64 %rd1, several; st.shared.v2.u32 [%rd1+8], {5, 6}; ld.shared.u32 %r1, [several+12]": 6,
    "copysign.f32 %f1, 0f80000000, 0f40000000; mov.b32 %r1, %f1": 0xC0000000 - (1 << 32),
}
"""What is in %r1 after it, of -5 in %r2."""


def test_instructions() -> None:
    registers = [".pred %p", ".b16 %rs", ".b32 %r", ".b64 %rd", ".f32 %f", ".f64 %fd"]
    lines = [f".reg {kind}<4>;" for kind in registers]
    lines += [".shared .align 4 .u32 one_$_0;", ".shared .align 16 .b8 several[16];"]
    lines += ["mov.u32 %r2, -5;", "ld.param.u64 %rd2, [f_param_1];", "cvta.to.global.u64 %rd3, %rd2;"]
    for number, line in enumerate(INSTRUCTIONS):
        lines += [f"{part};" for part in line.split("; ")] + [f"st.global.u32 [%rd3+{4 * number}], %r1;"]
    body = "\n\t".join([*lines, "ret;"])
    head = "//\n.visible .entry f(\n\t.param .u64 f_param_0,\n\t.param .u64 f_param_1\n)\n{\n\t"
    found = np.zeros(len(INSTRUCTIONS), np.int32)
    outcome = kernels.run(
        from_ptx.translated(f"{head}{body}\n}}\n"), "f", (1, 1, 1), 1, {"x": np.zeros(1, np.int32)}, {"y": found}, ()
    )
    assert outcome.problems == ()
    got = dict(zip(INSTRUCTIONS, map(int, outcome.results["y"]), strict=True))
    assert got == INSTRUCTIONS
