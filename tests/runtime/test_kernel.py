"""Loaded kernels: calls, workspace, error records, and the info that travels with them."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest

from polyopt.dtypes import f64
from polyopt.errors import BoundsError, CompileError, Span
from polyopt.runtime import jit, kernel, memory
from polyopt.runtime.kernel import ArrayInfo, ConditionInfo, Kernel, KernelInfo, SiteInfo
from polyopt.target import host, preset

# scale(x, out, N): out[i] = 2 * x[i] for i < N, through the workspace; i == 3 with x[3] < 0 is an "index error"
SCALE = """
define void @scale(ptr %words) {
entry:
  %pw = getelementptr i64, ptr %words, i64 1
  %w = load ptr, ptr %pw
  %pe = getelementptr i64, ptr %words, i64 2
  %error = load ptr, ptr %pe
  %px = getelementptr i64, ptr %words, i64 4
  %x = load ptr, ptr %px
  %po = getelementptr i64, ptr %words, i64 5
  %o = load ptr, ptr %po
  %pn = getelementptr i64, ptr %words, i64 6
  %n = load i64, ptr %pn
  %any = icmp sgt i64 %n, 0
  br i1 %any, label %loop, label %done
loop:
  %i = phi i64 [ 0, %entry ], [ %i1, %next ]
  %xi = getelementptr double, ptr %x, i64 %i
  %v = load double, ptr %xi
  %d = fmul double %v, 2.0
  %wi = getelementptr double, ptr %w, i64 %i
  store double %d, ptr %wi
  %back = load double, ptr %wi
  %oi = getelementptr double, ptr %o, i64 %i
  store double %back, ptr %oi
  %negative = fcmp olt double %v, 0.0
  br i1 %negative, label %bad, label %next
bad:
  store i64 1, ptr %error
  %e1 = getelementptr i64, ptr %error, i64 1
  %index = fptosi double %v to i64
  store i64 %index, ptr %e1
  %e2 = getelementptr i64, ptr %error, i64 2
  store i64 %n, ptr %e2
  br label %next
next:
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %n
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
INFO = KernelInfo(
    entry="scale",
    arguments=(ArrayInfo("x", f64, "input", ("N",)), ArrayInfo("y", f64, "output", (("sub", "N", 0),), (8,))),
    parameters=("N",),
    shared_bytes=("mul", "N", 8),
    sites=(SiteInfo("x", 0, Span("somewhere.py", 3, 1, 4)),),
    conditions=(ConditionInfo("N >= 1", ("ge", "N", 1)),),
    in_place=(("y", "x"),),
)


@pytest.fixture(scope="module")
def scale() -> Kernel:
    return Kernel(INFO, jit.compile_object(SCALE, host()))


def run(scale: Kernel, x: np.ndarray) -> np.ndarray:
    out = np.empty_like(x)
    scale.launch([x.ctypes.data, out.ctypes.data], [len(x)])
    return out


@pytest.mark.parametrize("count", [0, 1, 5, 1000, 3, 100_000, 1])
def test_a_launch_computes_with_workspace_of_any_size(scale: Kernel, count: int) -> None:
    x = np.arange(count, dtype=np.float64)
    assert (run(scale, x) == 2 * x).all()


def test_an_error_record_becomes_an_error_with_the_users_line(scale: Kernel) -> None:
    with pytest.raises(BoundsError, match=r"subscript 0 of 'x' is -7, outside its extent 4") as caught:
        run(scale, np.array([1.0, 2.0, -7.0, 0.0]))
    assert caught.value.facts == {"array": "x", "dimension": 0, "index": -7, "extent": 4}
    assert caught.value.where == Span("somewhere.py", 3, 1, 4)
    assert (run(scale, np.ones(4)) == 2).all()


def test_threads_share_a_kernel_and_not_its_workspace(scale: Kernel) -> None:
    wrong: list[int] = []

    def call(value: float) -> None:
        for _ in range(200):
            if not (run(scale, np.full(257, value)) == 2 * value).all():
                wrong.append(1)

    threads = [threading.Thread(target=call, args=(float(k),)) for k in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_workspace_that_memory_cannot_hold_is_a_memory_error(scale: Kernel) -> None:
    with pytest.raises(MemoryError):
        scale.launch([0, 0], [1 << 58])
    assert (run(scale, np.ones(4)) == 2).all()


def test_large_workspace_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "KEPT_WORKSPACE_BYTES", 1000)
    workspace = kernel._Workspace()
    workspace.reserve(5000)
    _, found = workspace.reserve(100)
    assert found.nbytes < 1000
    assert workspace.reserve(64)[0] % 64 == 0


def test_the_info_survives_json() -> None:
    assert kernel.from_json(json.loads(json.dumps(kernel.as_json(INFO)))) == INFO


def test_temporary_bytes_count_every_slot() -> None:
    info = KernelInfo("k", (), ("N",), shared_bytes=("mul", "N", 8), private_bytes=64)
    assert info.temporary_bytes({"N": 10}, slots=3) == 80 + 3 * 64


def test_results_and_inputs_are_told_apart() -> None:
    assert [array.name for array in INFO.inputs] == ["x"]
    assert [array.name for array in INFO.results] == ["y"]


@pytest.mark.parametrize("text", ["nonsense", "define void @f() {\n ret i32 0\n}"])
def test_invalid_ir_is_a_compile_error_without_raw_text(text: str) -> None:
    with pytest.raises(CompileError) as caught:
        jit.compile_object(text, host())
    assert "error:" not in str(caught.value)
    assert caught.value.facts["llvm"]


@pytest.mark.parametrize("damage", ["missing symbol", "no object", "cut short"])
def test_an_object_that_cannot_be_linked_is_a_compile_error(damage: str) -> None:
    code = jit.compile_object(SCALE, host())
    damaged = {"missing symbol": code, "no object": b"xyz", "cut short": code[:150]}[damage]
    with pytest.raises(CompileError):
        jit.load_object(damaged, ["other" if damage == "missing symbol" else "scale"])


@pytest.mark.parametrize("name", ["avx512", "avx2", "generic"])
def test_assembly_is_printed_for_each_preset(name: str) -> None:
    assert "scale:" in jit.assembly(SCALE, preset(name))


def test_a_call_keeps_its_workspace_while_a_nested_one_takes_a_larger_one() -> None:
    """A signal handler between taking the workspace and running the kernel: the memory must serve nobody else."""
    workspace = kernel._Workspace()
    size = 3 << 20
    _, held = workspace.reserve(size)
    workspace.reserve(2 * size)
    others = [memory.empty(held.shape, held.dtype) for _ in range(4)]
    assert not any(np.shares_memory(other, held) for other in others)
