"""The emulator computes what a GPU would, and reports each planted fault at the line of the kernel where it stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from polyopt.compilation import emulator_object
from polyopt.runtime.cuda.image import CudaImage
from polyopt.runtime.emulator.driver import Emulator
from tests.emulator import kernels
from tests.emulator.kernels import HGEMM, NAMED, OBJECTS, ROWSUM, SGEMM, Array, Outcome, planted

Run = Callable[..., tuple[Outcome, Array]]
MAPS = Path("/proc/self/maps")

GOOD: dict[str, tuple[Run, str]] = {
    "sgemm": (kernels.sgemm, SGEMM),
    "rowsum": (kernels.rowsum, ROWSUM),
    "hgemm": (kernels.hgemm, HGEMM),
    "named barriers": (kernels.reversed_rows, NAMED),
    "barrier objects": (kernels.reversed_rows, OBJECTS),
}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("seed", [0, 1, 7])
def test_a_right_kernel_gives_right_numbers_and_no_report_in_any_order_of_threads(name: str, seed: int) -> None:
    run, text = GOOD[name]
    outcome, expected = run(text, seed=seed)
    assert outcome.problems == ()
    (result,) = outcome.results.values()
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["sgemm", "hgemm"])
def test_a_kernel_runs_without_checks_too(name: str) -> None:
    run, text = GOOD[name]
    outcome, expected = run(text, mode="fast")
    (result,) = outcome.results.values()
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4)


FAULTS: dict[str, tuple[Run, str, str, str]] = {
    "barrier before the tile is read": (
        kernels.sgemm,
        planted(SGEMM, "tile is there", "__syncthreads();"),
        "race: write after unordered read",
        "stage A",
    ),
    "barrier before the next tile": (
        kernels.sgemm,
        planted(SGEMM, "tile is used", "__syncthreads();"),
        "race: write after unordered read",
        "stage A",
    ),
    "barrier in a reduction": (
        kernels.rowsum,
        planted(ROWSUM, "parts are there", "__syncthreads();", "__syncwarp();"),
        "race: read after unordered write",
        "collect",
    ),
    "a part that nobody wrote": (
        kernels.rowsum,
        planted(ROWSUM, "exchange", "lane == 0", "t == 0"),
        "read of uninitialised shared memory",
        "collect",
    ),
    "a guard one too wide": (
        kernels.rowsum,
        planted(ROWSUM, "read", "i < N", "i < N + 1"),
        "access outside every buffer",
        "read",
    ),
    "a result written by every lane": (
        kernels.rowsum,
        planted(ROWSUM, "result", "if (lane == 0) "),
        "race: write after unordered write",
        "result",
    ),
    "an index past an array of the thread's own": (
        kernels.sgemm,
        SGEMM.replace("acc[i][j] += x.v[i] * y.v[j];", "acc[i][j + 1] += x.v[i] * y.v[j];  // own"),
        "index outside an array of the kernel's own",
        "own",
    ),
    "a result one element off": (
        kernels.sgemm,
        planted(SGEMM, "result", "bn + tx * 4]", "bn + tx * 4 + 1]"),
        "misaligned access of 16 bytes",
        "result",
    ),
    "wait one group short": (
        kernels.hgemm,
        planted(HGEMM, "wait", "po_cp_wait<2>", "po_cp_wait<3>"),
        "read of a cp.async destination before its wait",
        "fragment A",
    ),
    "no wait": (
        kernels.hgemm,
        planted(HGEMM, "wait", "po_cp_wait<2>();"),
        "read of a cp.async destination before its wait",
        "fragment A",
    ),
    "ring one slot short": (
        kernels.hgemm,
        planted(HGEMM, "ring", "3", "2"),
        "write to a cp.async destination before its wait",
        "copy A",
    ),
    "no barrier after the wait": (
        kernels.hgemm,
        planted(HGEMM, "tile is there", "__syncthreads();"),
        "race: read after unordered write",
        "fragment A",
    ),
    "tile of the next slot": (
        kernels.hgemm,
        planted(
            HGEMM, "fragment A", "place(wm + i * 16 + (lane & 15), ", "64 * 32 * 2 + place(wm + i * 16 + (lane & 15), "
        ),
        "read of a cp.async destination before its wait",
        "fragment A",
    ),
    "named barrier left out": (
        kernels.reversed_rows,
        NAMED.replace("if (i > 0) po_bar_sync(1, 64);", "").replace("if (i + 1 < N) po_bar_arrive(1, 64);", ""),
        "race: read after unordered write",
        "use",
    ),
    "arrival before the use": (
        kernels.reversed_rows,
        OBJECTS.replace("      y[i * 32", "      po_mbar_arrive(empty);\n      y[i * 32").replace(
            "// use\n      po_mbar_arrive(empty);", "// use"
        ),
        "race: write after unordered read",
        "fill",
    ),
    "barrier object not waited for": (
        kernels.reversed_rows,
        OBJECTS.replace("po_mbar_wait(full, i & 1);", ""),
        "race: write after unordered read",
        "fill",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_reported_with_its_line(fault: str) -> None:
    run, text, what, mark = FAULTS[fault]
    outcome, _ = run(text)
    found = {(problem.what, problem.line) for problem in outcome.problems}
    assert (what, outcome.line(mark)) in found, found


def test_blocks_that_write_the_same_elements_race() -> None:
    outcome, _ = kernels.sgemm(grid=(1, 2, 2))
    assert [(p.what, p.line) for p in outcome.problems] == [
        ("race: write after unordered write", outcome.line("result"))
    ]


def test_a_barrier_that_some_threads_never_reach_is_a_deadlock() -> None:
    text = NAMED.replace("if (i > 0) po_bar_sync(1, 64);", "po_bar_sync(1, 64);")
    outcome, _ = kernels.reversed_rows(text)
    assert {problem.what for problem in outcome.problems} == {"deadlock at a barrier"}


def test_threads_at_different_barriers_are_reported() -> None:
    text = ROWSUM.replace(
        "  __syncthreads();  // parts are there", "  if (warp == 0) { __syncthreads(); } else {\n    __syncthreads(); }"
    )
    outcome, _ = kernels.rowsum(text)
    assert outcome.problems[0].what == "threads of a block wait at different __syncthreads"


def test_a_fault_poisons_the_result_without_checks_too() -> None:
    outcome, _ = kernels.hgemm(planted(HGEMM, "wait", "po_cp_wait<2>();"), mode="fast")
    assert np.isnan(outcome.results["C"]).any()


def test_counters_give_sectors_and_wavefronts_by_line() -> None:
    outcome, _ = kernels.hgemm(mode="count")
    fragments = [t for t in outcome.traffic if t.line == outcome.line("fragment A")]
    assert [(t.space, t.used == t.ideal) for t in fragments] == [("shared", True)]
    assert all(t.used == t.ideal for t in outcome.traffic if t.space == "global")


def test_counters_show_what_a_missing_swizzle_costs() -> None:
    outcome, expected = kernels.hgemm(planted(HGEMM, "swizzle", "(chunk ^ (row >> 1 & 3))", "chunk"), mode="count")
    np.testing.assert_allclose(outcome.results["C"], expected, rtol=1e-4, atol=1e-4)
    (fragment,) = (t for t in outcome.traffic if t.line == outcome.line("fragment A"))
    assert fragment.used == 4 * fragment.ideal


def test_counters_show_strided_accesses() -> None:
    text = ROWSUM.replace("x[blockIdx.x * N + i]", "x[i * M + blockIdx.x]")
    outcome, _ = kernels.rowsum(text, (64, 128), mode="count")
    (read,) = (t for t in outcome.traffic if t.line == outcome.line("read"))
    assert read.used == 8 * read.ideal


SPLIT = """\
#include "po_device.h"
PO_KERNEL void __launch_bounds__(32) split(const po_u32 *x, po_u32 *own, po_u32 *rest, int64_t N) {
  po_u32 high[4], low[4];
  for (int i = 0; i < 4; ++i) high[i] = x[threadIdx.x * 4 + i];
  po_split_tf32(high, low);
  for (int i = 0; i < 4; ++i) own[threadIdx.x * 4 + i] = high[i], rest[threadIdx.x * 4 + i] = low[i];
}
PO_ENTRY(split)
"""


def test_both_parts_of_a_float_are_of_tf32_and_nan_stays_nan() -> None:
    """Also a NaN whose upper bits are those of an infinity: only data has such."""
    values = np.random.default_rng(0).standard_normal(128).astype(np.float32)
    bits = values.view(np.uint32)
    bits[:4] = 0x7F800001, 0xFF800001, 0x7FC00000, 0x7FFFFFFF
    parts = {name: np.zeros(128, np.uint32) for name in ("own", "rest")}
    outcome = kernels.run(SPLIT, "split", (1, 1, 1), 32, {"x": bits}, parts, (128,))
    assert outcome.problems == ()
    assert not any((part & 0x1FFF).any() for part in parts.values())
    own, rest = (part.view(np.float32) for part in parts.values())
    assert np.isnan(own[:4]).all()
    split = own[4:].astype(np.float64) + rest[4:]
    assert (np.abs(split - values[4:]) <= 2.0**-21 * np.abs(values[4:])).all()


def test_registers_that_nobody_set_hold_no_likely_number() -> None:
    text = SGEMM.replace("float acc[4][4] = {};", "float acc[4][4];")
    outcome, expected = kernels.sgemm(text)
    (result,) = outcome.results.values()
    assert (np.abs(result - expected) > 1e30).all()


def test_a_module_that_nobody_holds_gives_its_memory_back() -> None:
    """Its shadow memory is many times that of the arrays, and every fork copies the tables of its pages."""
    module = Emulator(emulator_object).load(CudaImage(SPLIT, (), (), (), ()))
    assert str(module.path) in MAPS.read_text()
    place = module.path
    del module
    assert str(place) not in MAPS.read_text()
