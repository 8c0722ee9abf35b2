"""The text of kernels: golden files, the order of launches, and what a compiler makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

import polyopt as po
from polyopt import cli, f32
from polyopt.codegen_c import c_helpers
from polyopt.codegen_cuda.expressions import helpers
from polyopt.codegen_cuda.intervals import as_number, interval
from polyopt.codegen_cuda.source import RECORD, Repeat, walk_steps
from polyopt.dsl.ir import Op, Var
from polyopt.dtypes import bf16, f16, f64, i8, i16, i32, i64, u8, u16, u32, u64
from polyopt.errors import ArgumentError, BackendUnavailable
from polyopt.loops.ir import Expr, integer
from polyopt.runtime.cuda import compilers
from tests.codegen_cuda.running import lowered
from tests.golden.test_golden import OPERATORS, load

GOLDEN = Path(__file__).parent / "golden"
SHOWN = ("linear_relu", "softmax", "layernorm", "conv2d", "cholesky", "heat3d")

i, j, k = po.indices("i j k")
M, N = po.sizes("M N")


@po.op
def stepped(u: f32[N], steps: int) -> object:
    v = po.tensor("v")
    t = po.index("t", 0, steps)
    v[0, i] = u[i]
    v[t + 1, i] = v.clamp()[t, i - 1] + v.clamp()[t, i + 1]
    return v[steps]


@po.op
def gathered(x: f32[N], ids: po.i64[M]) -> object:
    y = po.tensor("y")
    y[j] = x[ids[j]]
    return y


@pytest.mark.parametrize("operator", SHOWN)
def test_kernels_print_what_they_printed(operator: str, request: pytest.FixtureRequest) -> None:
    script, sizes = OPERATORS[operator]
    text = lowered(load(script, operator), **sizes).source("cuda")
    file = GOLDEN / f"{operator}.cu"
    if request.config.getoption("--update-golden"):
        GOLDEN.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    assert text == file.read_text("utf-8"), f"{operator} has changed; --update-golden, and read the diff"


def test_no_golden_file_is_left_over() -> None:
    assert {file.stem for file in GOLDEN.iterdir()} == set(SHOWN)


def test_text_has_no_assembly_and_one_include() -> None:
    for operator in SHOWN:
        script, sizes = OPERATORS[operator]
        text = lowered(load(script, operator), **sizes).source("cuda")
        assert "asm" not in text
        assert [line for line in text.splitlines() if line.startswith("#include")] == ['#include "po_device.h"']


def test_time_steps_are_launches_on_the_host() -> None:
    source = lowered(stepped, N=5000, steps=7).cuda
    repeats = [step for step in walk_steps(source.steps) if isinstance(step, Repeat)]
    assert len(repeats) == 1
    kernel = source.kernel(next(step.kernel for step in walk_steps(repeats[0].steps) if not isinstance(step, Repeat)))  # type: ignore[union-attr]  # launches
    assert repeats[0].var in kernel.parameters[kernel.pointers :]


def test_small_time_steps_stay_in_one_block() -> None:
    source = lowered(stepped, N=100, steps=7).cuda
    assert not [step for step in walk_steps(source.steps) if isinstance(step, Repeat)]
    assert "__syncthreads();" in source.text


def test_checks_add_the_record_to_the_pointers() -> None:
    (kernel,) = lowered(gathered, N=10, M=20).cuda.kernels
    assert kernel.parameters[: kernel.pointers][-1] == RECORD


def test_indices_are_narrow_where_they_are_proved_to_fit() -> None:
    assert "int64_t i" not in lowered(gathered, N=10, M=20).source("cuda").partition("PO_KERNEL")[2]
    assert "int64_t j" in lowered(gathered, N=1 << 33, M=1 << 33).source("cuda")


def test_another_kind_of_source_is_refused() -> None:
    with pytest.raises(ArgumentError, match="for a GPU"):
        lowered(gathered, N=10, M=20).source("llvm")


@pytest.mark.parametrize("operator", SHOWN)
def test_compiles_to_ptx(operator: str) -> None:
    script, sizes = OPERATORS[operator]
    try:
        ptx = lowered(load(script, operator), target="sm_90", **sizes).source("ptx")
    except BackendUnavailable as error:
        pytest.skip(str(error))
    assert ".visible .entry" in ptx and ".target sm_90" in ptx


def test_the_command_prints_every_stage_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    operator = f"{Path(__file__).parents[2] / 'examples' / 'softmax.py'}:softmax"
    for stage in ("mapping", "loops", "cuda", "report"):
        assert cli.main(["show-schedule", operator, "M=64", "N=100", "--target", "cuda", "--stage", stage]) == 0
        printed = capsys.readouterr().out
        assert {"mapping": "rows", "loops": "block for", "cuda": "PO_KERNEL", "report": "proved"}[stage] in printed


@po.op
def relaxed(u: f32[M, N], steps: int):
    v = po.tensor("v")
    t = po.index("t", extent=steps)
    v[0, i, j] = u[i, j]
    v[t + 1, i, j] = po.where((0 < i) & (i < M - 1), (v[t, i, j] + v[t, i - 1, j] + v[t, i + 1, j]) * 0.25, v[t, i, j])
    return v[steps]


def test_kernels_know_where_the_steps_of_the_host_lie() -> None:
    """Slices of the two last steps: the number of a step is a kernel's parameter, and its remainder 0 or 1."""
    text = relaxed.lower(M=8192, N=8192, steps=16, target="sm_90").source("cuda")
    assert "const int j = " in text and "const int64_t" not in text and "po_floordiv" not in text


def test_the_interval_of_a_remainder() -> None:
    t = Var("t", i64)
    for ahead in range(-2, 3):
        whole: Expr = t if not ahead else Op("add", (t, integer(ahead)), i64)
        even: Expr = Op("mul", (Op("floordiv", (whole, integer(3)), i64), integer(3)), i64)
        low, high = map(as_number, interval(Op("sub", (t, even), i64), {"t": (integer(0), integer(10**12))}))
        found = {n - (n + ahead) // 3 * 3 for n in range(30)}
        assert (low, high) == (min(found), max(found))


def test_nvrtc_takes_every_helper_of_printed_kernels() -> None:
    """The emulator's g++ takes `copysign(0, x)`, which is ambiguous to NVRTC: no `//` or `%` of f64 ran on a GPU."""
    dtypes = {"int": (i8, i16, i32, i64), "unsigned": (u8, u16, u32, u64), "float": (f16, bf16, f32, f64)}
    parts = [name.rpartition("_") for name in c_helpers._TEMPLATES]
    names = [c_helpers.helper_name(operation, dtype) for operation, _, kind in parts for dtype in dtypes[kind]]
    text = f'#include "po_device.h"\n{helpers(" ".join((*names, *c_helpers._FIXED)))}\n'
    assert all(name in text for name in names) and "copysign" in text
    assert compilers.compile_text(text, "sm_80", "ptx").code


def test_ptx_ends_with_its_text() -> None:
    @po.op
    def op(x: f64[M]):
        return x + 1

    pytest.importorskip("nvidia")
    assert not op.lower(M=3, target="sm_80").source("ptx").endswith("\0")
