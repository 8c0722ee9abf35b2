"""Hand-written kernels with marks at which a test plants a fault, and the machinery to run them on the emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from polyopt import dtypes
from polyopt.compilation import emulator_object
from polyopt.runtime.cuda.image import ArrayImage, CudaImage, KernelImage
from polyopt.runtime.cuda.program import OnHost, Program
from polyopt.runtime.emulator import build
from polyopt.runtime.emulator.driver import EmulatedModule, Emulator, Mode, Problem, Traffic

Array = np.ndarray[Any, Any]

SGEMM = """\
#include "po_device.h"
// C = A B; M and N multiples of 64, K of 16; a 64 x 64 tile of 256 threads, 4 x 4 each
PO_KERNEL void __launch_bounds__(256) sgemm(const float *A, const float *B, float *C, int64_t M, int64_t N, int64_t K) {
  PO_SHARED float As[16][68];
  PO_SHARED float Bs[16][64];
  const int t = threadIdx.x, tx = t % 16, ty = t / 16;
  const int64_t bm = blockIdx.y * 64, bn = blockIdx.x * 64;
  float acc[4][4] = {};
  for (int64_t k0 = 0; k0 < K; k0 += 16) {
    po_vec<float, 4> a = po_load<4>(&A[(bm + t / 4) * K + k0 + t % 4 * 4]);
    for (int i = 0; i < 4; ++i) As[t % 4 * 4 + i][t / 4] = a.v[i];  // stage A
    po_store(&Bs[t / 16][t % 16 * 4], po_load<4>(&B[(k0 + t / 16) * N + bn + t % 16 * 4]));
    __syncthreads();  // tile is there
    for (int k = 0; k < 16; ++k) {
      po_vec<float, 4> x = po_load<4>(&As[k][ty * 4]);  // use A
      po_vec<float, 4> y = po_load<4>(&Bs[k][tx * 4]);
      for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 4; ++j) acc[i][j] += x.v[i] * y.v[j];
    }
    __syncthreads();  // tile is used
  }
  for (int i = 0; i < 4; ++i) {
    po_vec<float, 4> row = {{acc[i][0], acc[i][1], acc[i][2], acc[i][3]}};
    po_store(&C[(bm + ty * 4 + i) * N + bn + tx * 4], row);  // result
  }
}
PO_ENTRY(sgemm)
"""

ROWSUM = """\
#include "po_device.h"
PO_KERNEL void __launch_bounds__(128) rowsum(const float *x, float *y, int64_t M, int64_t N) {
  PO_SHARED float part[4];
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5;
  float s = 0.0f;
  for (int64_t i = t; i < N; i += 128) s += x[blockIdx.x * N + i];  // read
  for (int o = 16; o; o >>= 1) s += po_shfl_down(s, o);
  if (lane == 0) part[warp] = s;  // exchange
  __syncthreads();  // parts are there
  if (warp == 0) {
    s = lane < 4 ? part[lane] : 0.0f;  // collect
    for (int o = 2; o; o >>= 1) s += po_shfl_down(s, o);
    if (lane == 0) y[blockIdx.x] = s;  // result
  }
}
PO_ENTRY(rowsum)
"""

HGEMM = """\
#include "po_device.h"
// C = A B^T; 64 x 64 x 32 tiles, 4 warps of 32 x 32, a ring of 3 slots in swizzled shared memory
#define SLOTS 3  // ring
PO_DEVICE int place(int row, int chunk) { return row * 32 + ((chunk ^ (row >> 1 & 3)) << 3); }  // swizzle
PO_KERNEL void __launch_bounds__(128) hgemm(const uint16_t *A, const uint16_t *B, float *C, int64_t M, int64_t N,
                                             int64_t K) {
  PO_DYN_SHARED(memory);
  uint16_t *As = (uint16_t *)memory, *Bs = As + SLOTS * 64 * 32;
  const int t = threadIdx.x, lane = t & 31, warp = t >> 5, wm = warp % 2 * 32, wn = warp / 2 * 32;
  const int64_t bm = blockIdx.y * 64, bn = blockIdx.x * 64, tiles = K / 32;
  float acc[2][4][4] = {};
  for (int64_t step = 0; step < tiles + 2; ++step) {
    if (step < tiles)
      for (int i = 0; i < 2; ++i) {
        const int q = t + i * 128, r = q / 4, c = q % 4, slot = step % SLOTS * 64 * 32;
        po_cp_async16(&As[slot + place(r, c)], &A[(bm + r) * K + step * 32 + c * 8]);  // copy A
        po_cp_async16(&Bs[slot + place(r, c)], &B[(bn + r) * K + step * 32 + c * 8]);
      }
    po_cp_commit();
    if (step < 2) continue;
    po_cp_wait<2>();  // wait
    __syncthreads();  // tile is there
    const int slot = (step - 2) % SLOTS * 64 * 32;
    for (int k = 0; k < 2; ++k) {
      po_u32 a[2][4], b[2][4];
      for (int i = 0; i < 2; ++i)
        po_ldmatrix_x4(a[i], &As[slot + place(wm + i * 16 + (lane & 15), k * 2 + (lane >> 4))]);  // fragment A
      for (int j = 0; j < 2; ++j)
        po_ldmatrix_x4(b[j], &Bs[slot + place(wn + j * 16 + (lane & 7) + (lane >> 4) * 8, k * 2 + (lane >> 3 & 1))]);
      for (int i = 0; i < 2; ++i)
        for (int j = 0; j < 4; ++j) po_mma_bf16(acc[i][j], a[i], &b[j / 2][j % 2 * 2]);
    }
    __syncthreads();  // tile is used
  }
  for (int i = 0; i < 2; ++i)
    for (int j = 0; j < 4; ++j)
      for (int h = 0; h < 2; ++h) {
        po_vec<float, 2> pair = {{acc[i][j][h * 2], acc[i][j][h * 2 + 1]}};
        po_store(&C[(bm + wm + i * 16 + lane / 4 + h * 8) * N + bn + wn + j * 8 + lane % 4 * 2], pair);
      }
}
PO_ENTRY(hgemm)
"""

PRODUCER = """\
#include "po_device.h"
// warp 0 fills a slot, warp 1 uses it: named barriers, or barrier objects
PO_KERNEL void __launch_bounds__(64) producer(const float *x, float *y, int64_t N) {
  PO_SHARED float slot[32];
  PO_SHARED po_u64 full[1];
  PO_SHARED po_u64 empty[1];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (threadIdx.x == 0) { po_mbar_init(full, 32); po_mbar_init(empty, 32); }
  __syncthreads();
  for (int64_t i = 0; i < N; ++i) {
    if (warp == 0) {
      if (i > 0) WAIT_EMPTY
      slot[lane] = x[i * 32 + lane];  // fill
      ARRIVE_FULL
    } else {
      WAIT_FULL
      y[i * 32 + lane] = slot[31 - lane];  // use
      ARRIVE_EMPTY
    }
  }
}
PO_ENTRY(producer)
"""
_NAMED = {
    "WAIT_EMPTY": "po_bar_sync(1, 64);",
    "ARRIVE_FULL": "po_bar_arrive(2, 64);",
    "WAIT_FULL": "po_bar_sync(2, 64);",
    "ARRIVE_EMPTY": "if (i + 1 < N) po_bar_arrive(1, 64);",
}
_OBJECTS = {
    "WAIT_EMPTY": "po_mbar_wait(empty, i - 1 & 1);",
    "ARRIVE_FULL": "po_mbar_arrive(full);",
    "WAIT_FULL": "po_mbar_wait(full, i & 1);",
    "ARRIVE_EMPTY": "po_mbar_arrive(empty);",
}


def producer(words: Mapping[str, str]) -> str:
    text = PRODUCER
    for name, word in words.items():
        text = text.replace(name, word)
    return text


NAMED = producer(_NAMED)
OBJECTS = producer(_OBJECTS)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run gave."""

    results: Mapping[str, Array]
    problems: tuple[Problem, ...]
    traffic: tuple[Traffic, ...]
    text: str

    def line(self, mark: str) -> int:
        """The number of the line that ends with the comment `mark`."""
        return line_of(self.text, mark)


def line_of(text: str, mark: str) -> int:
    return next(n for n, line in enumerate(text.splitlines(), 1) if line.rstrip().endswith(f"// {mark}"))


def planted(text: str, mark: str, old: str, new: str = "") -> str:
    """The text with a fault in the line of `mark`."""
    lines = text.splitlines(keepends=True)
    place = line_of(text, mark) - 1
    assert old in lines[place]
    lines[place] = lines[place].replace(old, new, 1)
    return "".join(lines)


def needs_compiler() -> None:
    if build.compiler() is None:
        pytest.fail("these tests need g++")


def run(
    text: str,
    name: str,
    grid: tuple[int, int, int],
    threads: int,
    inputs: Mapping[str, Array],
    results: Mapping[str, Array],
    sizes: Sequence[int],
    *,
    mode: Mode = "check",
    seed: int = 0,
    shared_bytes: int = 0,
) -> Outcome:
    """Run one kernel whose parameters are the inputs, the results, and the sizes."""
    names = tuple(f"n{i}" for i in range(len(sizes)))
    parameters = (*inputs, *results, *names)
    kernel = KernelImage(name, grid, (threads, 1, 1), shared_bytes, parameters, len(inputs) + len(results))
    arrays = [ArrayImage(n, "input", dtypes.from_numpy(a.dtype), a.shape) for n, a in inputs.items()]
    arrays += [ArrayImage(n, "output", dtypes.from_numpy(a.dtype), a.shape) for n, a in results.items()]
    program = _program(CudaImage(text, (kernel,), (("launch", name),), tuple(arrays), names), mode)
    emulator, module = program.driver, program.module
    assert isinstance(emulator, Emulator)
    assert isinstance(module, EmulatedModule)
    emulator.seed = seed
    program.run({n: OnHost(a) for n, a in {**inputs, **results}.items()}, dict(zip(names, sizes)))
    return Outcome(results, emulator.problems(module), emulator.traffic(module), text)


@lru_cache(maxsize=8)
def _program(image: CudaImage, mode: Mode) -> Program:
    return Program(image, Emulator(emulator_object, mode))


# --- the kernels with arguments ----------------------------------------------------------------------------------


def random(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def sgemm(text: str = SGEMM, shape: tuple[int, int, int] = (128, 64, 48), **options: Any) -> tuple[Outcome, Array]:
    m, n, k = shape
    a, b, c = random(m, k), random(k, n), np.empty((m, n), np.float32)
    grid = options.pop("grid", (n // 64, m // 64, 1))
    outcome = run(text, "sgemm", grid, 256, {"A": a, "B": b}, {"C": c}, shape, **options)
    return outcome, a.astype(np.float64) @ b


def rowsum(text: str = ROWSUM, shape: tuple[int, int] = (5, 300), **options: Any) -> tuple[Outcome, Array]:
    x, y = random(*shape), np.empty(shape[0], np.float32)
    outcome = run(text, "rowsum", (shape[0], 1, 1), 128, {"x": x}, {"y": y}, shape, **options)
    return outcome, x.astype(np.float64).sum(1)


def hgemm(text: str = HGEMM, shape: tuple[int, int, int] = (64, 128, 128), **options: Any) -> tuple[Outcome, Array]:
    m, n, k = shape
    a, b, c = (random(*s).astype(dtypes.bf16.numpy) for s in ((m, k), (n, k), (m, n)))
    result = np.empty(c.shape, np.float32)
    inputs = {"A": a.view(np.uint16), "B": b.view(np.uint16)}
    shared = 3 * 2 * 64 * 32 * 2
    outcome = run(
        text, "hgemm", (n // 64, m // 64, 1), 128, inputs, {"C": result}, shape, shared_bytes=shared, **options
    )
    return outcome, a.astype(np.float64) @ b.astype(np.float64).T


def reversed_rows(text: str, count: int = 5, **options: Any) -> tuple[Outcome, Array]:
    x, y = random(count, 32), np.empty((count, 32), np.float32)
    outcome = run(text, "producer", (1, 1, 1), 64, {"x": x}, {"y": y}, (count,), **options)
    return outcome, x[:, ::-1]
