"""Kernels become machine code without a GPU, and what ptxas and the disassembler say of it is read right."""

from __future__ import annotations

import shutil

import pytest

from polyopt.errors import BackendUnavailable, CompileError
from polyopt.runtime.cuda import compilers, ptxas, sass
from tests.emulator.kernels import HGEMM, ROWSUM, SGEMM


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_nvrtc_compiles_without_a_gpu_and_tells_what_a_kernel_takes(arch: str) -> None:
    compiled = compilers.compile_text(SGEMM, arch)
    assert compiled.compiler.startswith("NVRTC 13.0")
    found = compiled.resources["sgemm"]
    assert (found.stack, found.spills, found.shared, found.barriers) == (0, False, 8448, 1)
    assert 32 <= found.registers <= 64
    assert ptxas.remarks(compiled.log) == ()


def test_machine_code_holds_the_instructions_that_the_vocabulary_names() -> None:
    codes = sass.opcodes(compilers.compile_text(HGEMM, "sm_80").code)["hgemm"]
    assert sass.count(codes, "HMMA", "16816") == 16
    assert sass.count(codes, "LDSM", "4") == 8
    assert sass.count(codes, "LDGSTS", "128") == 4
    assert sass.count(codes, "LDL") == sass.count(codes, "STL") == 0


def test_ptx_is_text() -> None:
    compiled = compilers.compile_text(ROWSUM, "sm_80", "ptx")
    assert ".target sm_80" in compiled.code.decode()


def test_without_contraction_no_product_and_sum_become_one() -> None:
    text = '#include "po_device.h"\nPO_KERNEL void f(float *x) { x[0] = x[1] * x[2] + x[3]; }\n'
    fused = sass.opcodes(compilers.compile_text(text, "sm_80").code)["f"]
    apart = sass.opcodes(compilers.compile_text(text, "sm_80", contract=False).code)["f"]
    assert sass.count(fused, "FFMA") == 1
    assert (sass.count(apart, "FMUL"), sass.count(apart, "FADD")) == (1, 1)


def test_a_text_that_is_wrong_is_an_error_with_the_line_of_the_kernel() -> None:
    with pytest.raises(CompileError) as caught:
        compilers.compile_text('#include "po_device.h"\nPO_KERNEL void f() { y = 1; }\n', "sm_80")
    assert "kernels.cu(2)" in str(caught.value.facts["messages"])


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc is not installed; CI machines may lack it")
def test_nvcc_takes_the_same_text() -> None:
    compiled = compilers.compile_with_nvcc(ROWSUM, "sm_80")
    assert compiled.resources["rowsum"].spills is False


def test_without_a_compiler_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilers, "nvrtc", lambda: None)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BackendUnavailable, match="cannot be compiled") as caught:
        compilers.compile_text(ROWSUM, "sm_80")
    assert "nvidia-cuda-nvrtc" in caught.value.fix


LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ... in 'k'
ptxas info    : Function properties for k
    40 bytes stack frame, 16 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 232 registers, used 3 barriers, 49152+16 bytes smem, 400 bytes cmem[0]
"""


def test_spills_and_remarks_are_read_from_the_log() -> None:
    (found,) = ptxas.resources(LOG).values()
    assert found == ptxas.Resources(232, 40, 16, 24, 49152, 400, 3)
    assert found.spills
    assert "spills 16 out and 24 in" in str(found)
    assert [line[:23] for line in ptxas.remarks(LOG)] == ["ptxas info    : (C7510)"]
