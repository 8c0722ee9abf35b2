"""Places that NVIDIA's compilers get wrong are found in PTX, and compiled otherwise (decision 0050)."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Sequence

import pytest

from polyopt.errors import CompileError
from polyopt.runtime.cuda import compilers, ptx, sass

HEAD = '#include "po_device.h"\n'
LARGER = HEAD + "static PO_DEVICE int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }\n"
FAULTS: dict[ptx.Kind, str] = {
    "stale load": HEAD
    + """\
PO_KERNEL void f(const uint16_t *__restrict__ x, const int32_t *__restrict__ a, uint16_t *__restrict__ y, int64_t n)
{
    int32_t sum = a[0];
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    y[0] = (uint16_t)sum;
    y[1] = 2u > y[0] ? x[0] : y[0];
}
""",
    "lost sign": LARGER
    + """\
PO_KERNEL void f(const int32_t *x, int32_t *y)
{
    y[0] = larger(larger(x[0], 0 - x[1]), x[2]);
}
""",
    "negated half": HEAD
    + """\
PO_KERNEL void f(const int16_t *x, int16_t *y)
{
    y[0] = (int16_t)((int16_t)(0 - (uint16_t)x[0]) >> 1);
}
""",
    "zero without sign": HEAD
    + """\
PO_KERNEL void f(const int32_t *x, float *y)
{
    y[0] = x[0] > 3 ? -0.0f : -1.0f;
}
""",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_is_found_and_compiled_otherwise(kind: ptx.Kind, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "polyopt.runtime.cuda.compilers"):
        compiled = compilers.compile_text(FAULTS[kind], "sm_90", contract=False)
    assert {fault.kind for fault in compiled.faults} == {kind}
    assert [kind in record.getMessage() for record in caplog.records] == [True]
    text = sass.text(compiled.code)
    match kind:
        case "stale load":
            ours = compilers.compile_text(FAULTS[kind], "sm_90", "ptx", contract=False).code.decode()
            assert "ld.global.nc" not in ours
            assert ptx.faults(ours) == []
        case "lost sign":
            assert "VIMNMX3" not in text
            assert "VIMNMX" in text
        case "negated half":
            made_anew = r"IADD3 (R\d+), RZ, -R\d+, RZ.*PRMT \1, \1, 0x9910, RZ.*SHF\.R\.S32\.HI R\d+, RZ, R\d+, \1"
            assert re.search(made_anew, text, re.DOTALL)
        case "zero without sign":
            assert "I2FP" not in text
            assert "-RZ" in text


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed; CI machines may lack it")
@pytest.mark.parametrize("kind", FAULTS)
def test_nvcc_has_the_same_faults_and_remedies(kind: ptx.Kind) -> None:
    compiled = compilers.compile_with_nvcc(FAULTS[kind], "sm_90", contract=False)
    assert {fault.kind for fault in compiled.faults} == {kind}
    assert compiled.code


def test_a_fault_that_stays_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "_remedies", lambda slow: dict.fromkeys(ptx.REMEDIES, slow))
    with pytest.raises(CompileError, match="gets a kernel wrong"):
        compilers.compile_text(FAULTS["stale load"], "sm_90")


def test_a_fault_that_a_remedy_brings_is_mended_too() -> None:
    """Without `__restrict__` the compiler makes other PTX, which may have other faults."""
    head = ".visible .entry f(\n)\n{\n\tld.param.u64 \t%rd1, [f_param_0];\n\tcvta.to.global.u64 \t%rd2, %rd1;\n"
    stale = f"{head}\tld.global.nc.u16 \t%rs1, [%rd2];\n\tst.global.u16 \t[%rd2], %rs1;\n}}\n"
    half = f"{head}\tld.global.u16 \t%rs1, [%rd2];\n\tneg.s16 \t%rs2, %rs1;\n}}\n"
    runs: list[list[str]] = []

    def make(options: Sequence[str]) -> compilers._Made:
        runs.append(list(options))
        return compilers._Made((half if options else stale).encode(), b"", "")

    compiled = compilers._checked(make, compilers._remedies("-O0"), "cubin", "NVRTC")
    assert [fault.kind for fault in compiled.faults] == ["stale load", "negated half"]
    assert runs == [[], ["-D__restrict__="], ["-D__restrict__=", "-O0"]]


def of_kernel(body: str) -> list[ptx.Kind]:
    """The kinds of faults of a kernel with this body, whose instructions stand in one line, each once."""
    lines = body.replace("; ", ";\n\t")
    return list({fault.kind: "" for fault in ptx.faults(f".visible .entry f(\n)\n{{\n\t{lines}\n}}\n")})


ADDRESSES = """\
	ld.param.u64 	%rd1, [f_param_0];
	ld.param.u64 	%rd2, [f_param_1];
	ld.param.u64 	%rd3, [f_param_2];
	cvta.to.global.u64 	%rd4, %rd1;
	cvta.to.global.u64 	%rd5, %rd2;
	mul.lo.s64 	%rd6, %rd3, 8;
	add.s64 	%rd7, %rd4, %rd6;
"""  # arrays 0 and 1, and the number 2


@pytest.mark.parametrize(
    "body, found",
    [
        ("ld.global.nc.u64 %rd9, [%rd7+8]; st.global.u64 [%rd5], %rd9;", []),
        ("ld.global.nc.u64 %rd9, [%rd7]; add.s64 %rd8, %rd5, %rd6; st.global.u64 [%rd8], %rd9;", []),
        ("ld.global.u64 %rd9, [%rd7]; st.global.u64 [%rd7], %rd9;", []),
        ("ld.global.nc.u64 %rd9, [%rd7]; atom.global.add.u64 %rd8, [%rd4], %rd9;", ["stale load"]),
        ("ld.global.nc.v2.u64 {%rd8, %rd9}, [%rd7]; @%p1 st.global.u64 [%rd4+16], %rd9;", ["stale load"]),
        (
            "selp.b64 %rd8, %rd7, %rd5, %p1; ld.global.nc.u32 %r1, [%rd8]; st.global.u32 [%rd5], %r1;",
            ["stale load"],
        ),
        (
            "mov.u64 %rd8, %rd7; mov.u64 %rd8, %rd5; ld.global.nc.u32 %r1, [%rd8]; st.global.u32 [%rd5], %r1;",
            ["stale load"],
        ),
        ("selp.b64 %rd8, %rd7, %rd5, %p1; ld.global.nc.u32 %r1, [%rd8]; st.shared.u32 [%rd9], %r1;", []),
    ],
)
def test_a_load_of_what_may_be_written(body: str, found: list[ptx.Kind]) -> None:
    assert of_kernel(ADDRESSES + body) == found


@pytest.mark.parametrize(
    "body, found",
    [
        ("neg.s32 %r1, %r2; max.s32 %r3, %r1, 16;", []),
        ("neg.s32 %r1, %r2; max.s32 %r3, %r1, %r4; min.s32 %r5, %r3, %r6;", []),
        ("neg.s32 %r1, %r2; max.s32 %r3, %r1, %r4; max.s32 %r5, %r3, %r6;", ["lost sign"]),
        ("neg.s32 %r1, %r2; max.s32 %r3, %r4, %r6; max.s32 %r5, %r1, %r3;", ["lost sign"]),
        ("mov.u32 %r7, 0; sub.s32 %r1, %r7, %r2; min.s32 %r3, %r1, %r4; min.s32 %r5, %r3, 1;", ["lost sign"]),
        ("sub.s32 %r1, %r7, %r2; min.s32 %r3, %r1, %r4; min.s32 %r5, %r3, 1;", []),
        ("neg.s32 %r1, %r2; mov.u32 %r8, %r1; min.s32 %r3, %r8, %r4; min.s32 %r5, %r3, 1;", ["lost sign"]),
        ("neg.s32 %r1, %r2; min.u32 %r3, %r1, %r4; min.u32 %r5, %r3, 1;", []),
    ],
)
def test_a_negated_operand_of_two_extrema(body: str, found: list[ptx.Kind]) -> None:
    assert of_kernel(body) == found


@pytest.mark.parametrize(
    "body, found",
    [
        ("ld.global.u16 %rs1, [%rd1]; neg.s16 %rs2, %rs1;", ["negated half"]),
        ("ld.global.u16 %rs1, [%rd1]; abs.s16 %rs2, %rs1;", ["negated half"]),
        ("cvt.s16.s8 %rs1, %rs3; neg.s16 %rs2, %rs1;", []),
        ("shr.s16 %rs1, %rs3, 1; neg.s16 %rs2, %rs1;", []),
    ],
)
def test_a_negation_that_may_overflow(body: str, found: list[ptx.Kind]) -> None:
    assert of_kernel(body) == found


@pytest.mark.parametrize(
    "body, found",
    [
        ("selp.f32 %f1, 0f80000000, 0fBF800000, %p1;", ["zero without sign"]),
        ("selp.f32 %f1, 0f3F800000, 0f80000000, %p1;", ["zero without sign"]),
        ("selp.f32 %f1, 0f00000000, 0f80000000, %p1;", []),
        ("selp.f32 %f1, 0f00000000, 0fBF800000, %p1;", []),
        ("selp.f32 %f1, 0f80000000, 0f40000000, %p1;", []),
        ("selp.f32 %f1, 0f80000000, %f2, %p1;", []),
        ("mov.f32 %f1, 0f80000000; mov.f32 %f1, 0fBF800000;", ["zero without sign"]),
        ("mov.f32 %f1, 0f80000000; add.f32 %f1, %f1, %f2;", []),
        (
            "mov.f32 %f2, 0f80000000; selp.f32 %f3, 0f00000000, 0f3F800000, %p2; selp.f32 %f1, %f2, %f3, %p1;",
            ["zero without sign"],
        ),
    ],
)
def test_a_zero_whose_sign_is_lost(body: str, found: list[ptx.Kind]) -> None:
    assert of_kernel(body) == found
