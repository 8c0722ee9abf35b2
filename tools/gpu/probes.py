"""One small kernel per word of the vocabulary whose meaning is our reading of the PTX manual.

The same text runs on the emulator and on a GPU; both must give the same bits. Results from a GPU, saved once, hold the
emulator to the hardware ever after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyopt import dtypes
from polyopt.runtime.cuda.driver import Driver
from polyopt.runtime.cuda.image import ArrayImage, CudaImage, KernelImage
from polyopt.runtime.cuda.program import OnHost, Program

Array = np.ndarray[Any, Any]
WORDS = 512
"""32-bit words of the result of each probe."""

_PROLOGUE = """\
#include "po_device.h"
PO_KERNEL void __launch_bounds__(32) probe(const uint32_t *__restrict__ x, uint32_t *__restrict__ y)
{
    PO_SHARED uint32_t tile[512];
    const int lane = threadIdx.x;
    for (int n = 0; n < 16; ++n) { tile[n * 32 + lane] = x[n * 32 + lane]; y[n * 32 + lane] = 0; }
    __syncthreads();
"""
_EPILOGUE = """\
}
PO_ENTRY(probe)
"""


def _ldmatrix(count: int, turned: str) -> str:
    return f"""\
    po_u32 r[{count}];
    po_ldmatrix_x{count}{turned}(r, &tile[lane % {8 * count} * 4]);
    for (int n = 0; n < {count}; ++n) y[n * 32 + lane] = r[n];
"""


def _mma(kind: str, sums: str) -> str:
    """Operands of small whole numbers, whose products are exact in any order."""
    return f"""\
    po_u32 a[4], b[2];
    {sums} d[4];
    for (int n = 0; n < 4; ++n) a[n] = tile[n * 32 + lane];
    for (int n = 0; n < 2; ++n) b[n] = tile[128 + n * 32 + lane];
    for (int n = 0; n < 4; ++n) d[n] = ({sums})(lane * 4 + n);
    po_mma_{kind}(d, a, b);
    for (int n = 0; n < 4; ++n) y[n * 32 + lane] = ((po_u32 *)d)[n];
"""


_BODIES = {
    "ldmatrix_x4": _ldmatrix(4, ""),
    "ldmatrix_x4_t": _ldmatrix(4, "_t"),
    "ldmatrix_x2": _ldmatrix(2, ""),
    "ldmatrix_x2_t": _ldmatrix(2, "_t"),
    **{f"mma_{kind}": _mma(kind, "float") for kind in ("bf16", "f16", "tf32")},
    **{f"mma_{kind}": _mma(kind, "int32_t") for kind in ("s8", "u8", "s8_u8", "u8_s8")},
    "shuffles": """\
    y[lane] = po_shfl(x[lane], 5);
    y[32 + lane] = po_shfl_xor(x[lane], 3);
    y[64 + lane] = po_shfl_down(x[lane], 7);
""",
    "conversions": """\
    for (int n = 0; n < 4; ++n) {
        const float v = po_float(x[n * 32 + lane]);
        y[n * 32 + lane] = po_to_f16(v) | (po_u32)po_to_bf16(v) << 16;
        y[128 + n * 32 + lane] = po_to_tf32(v);
        y[256 + n * 32 + lane] = po_bits(po_from_f16((uint16_t)(x[n * 32 + lane] >> 16)));
        y[384 + n * 32 + lane] = po_bits(po_max_nan(v, po_float(x[lane])));
    }
""",
    "copies": """\
    __syncthreads();
    po_cp_async16_zfill(&tile[lane * 4], &x[lane * 4], lane % 3 != 0);
    po_cp_async8_zfill(&tile[128 + lane * 2], &x[128 + lane * 2], lane % 5 != 0);
    po_cp_async4_zfill(&tile[192 + lane], &x[192 + lane], lane % 7 != 0);
    po_cp_commit();
    po_cp_wait<0>();
    __syncthreads();
    for (int n = 0; n < 7; ++n) y[n * 32 + lane] = tile[n * 32 + lane];
""",
}
_GROUP_BYTES = 8192 + 32768
"""Both operands of a product of four warps."""
_GROUP = """\
#include "po_device.h"
PO_KERNEL void __launch_bounds__(128) probe(const uint32_t *__restrict__ x, uint32_t *__restrict__ y)
{{
    PO_DYN_SHARED(shared);
    const int thread = threadIdx.x;
    uint16_t *const tile = (uint16_t *)shared;
    for (int n = thread; n < 20480; n += 128) tile[n] = po_to_{kind}((float)((int)(x[n % 512] >> n % 29 & 7) - 3));
    po_async_fence();
    __syncthreads();
    float sums[128];
    for (int n = 0; n < 128; ++n) sums[n] = (float)(thread - n);
    po_wgmma_begin();
    po_wgmma_{kind}<256, {turned}>(&sums[0], &sums[64], &tile[0], &tile[4096]);
    po_wgmma_commit();
    po_wgmma_wait<0>();
    for (int k = 0; k < 4; ++k) {{
        float sum = 0;
        for (int n = 0; n < 128; ++n) sum += sums[n] * (float)(n * (k + 3) % 11 + 1);
        y[k * 128 + thread] = po_bits(sum);
    }}
}}
PO_ENTRY(probe)
"""
_GROUPS = {
    "wgmma_bf16": ("bf16", "0, 0"),
    "wgmma_bf16_left_t": ("bf16", "1, 0"),
    "wgmma_bf16_right_t": ("bf16", "0, 1"),
    "wgmma_f16_t": ("f16", "1, 1"),
}
PROBES = (*_BODIES, *_GROUPS)
_SPECIAL = (0.0, -0.0, 1e-8, 6e-8, 65504.0, 65520.0, 1e38, np.inf, -np.inf, np.nan, 1.0009765625, 3.3895314e38)


@dataclass(frozen=True, slots=True)
class Probe:
    """A kernel with its input. loose: whether NaNs may differ in their bits; threads, shared: of its block, in bytes"""

    name: str
    text: str
    words: Array
    loose: bool
    threads: int = 32
    shared: int = 0


def probes_of(arch: str) -> tuple[str, ...]:
    """The probes of words that a GPU of this architecture has."""
    return PROBES if arch == "sm_90" else tuple(_BODIES)


def probe(name: str) -> Probe:
    """The probe of this name."""
    if name in _GROUPS:
        kind, turned = _GROUPS[name]
        return Probe(name, _GROUP.format(kind=kind, turned=turned), _input(name), False, 128, _GROUP_BYTES)
    return Probe(name, _PROLOGUE + _BODIES[name] + _EPILOGUE, _input(name), name == "conversions")


def _input(name: str) -> Array:
    random = np.random.default_rng(7)
    numbers: Mapping[str, Any] = {"mma_bf16": dtypes.bf16.numpy, "mma_f16": np.float16, "mma_tf32": np.float32}
    if name in numbers:
        whole = random.integers(-8, 9, WORDS * 4 // np.dtype(numbers[name]).itemsize)
        return whole.astype(numbers[name]).view(np.uint32)
    if name == "conversions":
        floats = np.concatenate([np.array(_SPECIAL), random.standard_normal(WORDS - len(_SPECIAL)) * 100])
        return floats.astype(np.float32).view(np.uint32)
    return random.integers(0, 1 << 32, WORDS, np.uint64).astype(np.uint32)


def image(found: Probe, arch: str = "", cubin: bytes = b"") -> CudaImage:
    """The probe as a driver loads it."""
    u32 = dtypes.from_name("u32")
    arrays = (ArrayImage("x", "input", u32, (WORDS,)), ArrayImage("y", "output", u32, (WORDS,)))
    kernel = KernelImage("probe", (1, 1, 1), (found.threads, 1, 1), found.shared, ("x", "y"), 2)
    return CudaImage(found.text, (kernel,), (("launch", "probe"),), arrays, (), arch=arch, cubin=cubin)


def run(found: Probe, driver: Driver) -> Array:
    """What the probe gives on a device."""
    from polyopt.runtime.cuda import compilers

    arch = driver.limits.arch if driver.wants_cubin else ""
    cubin = compilers.compile_text(found.text, arch).code if arch else b""
    result = np.zeros(WORDS, np.uint32)
    Program(image(found, arch, cubin), driver).run({"x": OnHost(found.words), "y": OnHost(result)}, {})
    return result


def differences(found: Probe, got: Array, want: Array) -> int:
    """In how many words two results differ."""
    differ: Array = got != want
    if found.loose:
        differ &= ~(np.isnan(got.view(np.float32)) & np.isnan(want.view(np.float32)))
    return int(differ.sum())
