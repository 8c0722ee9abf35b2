"""Loading object code without LLVM: the same code runs, and what cannot be loaded goes to LLVM's linker."""

from __future__ import annotations

import ctypes
import gc
import os
from collections.abc import Callable
from typing import Any

import pytest

from polyopt.errors import CompileError
from polyopt.runtime import jit, objects
from polyopt.runtime.objects import LoadedCode
from polyopt.target import host

pytestmark = pytest.mark.skipif(not objects._is_supported(), reason="there is no such loader for this system")

# A constant table, a global, an array of addresses, calls inside and outside, a variadic call, a value of the process.
EVERYTHING = """
@table = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
@counter = internal global i64 5
@zeroes = internal global [1000 x i64] zeroinitializer, align 64
@functions = internal constant [2 x ptr] [ptr @one, ptr @two]
@Py_Version = external global i64
declare i64 @syscall(i64, ...)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define internal i64 @one() noinline { ret i64 1 }
define internal i64 @two() noinline { ret i64 2 }
define i64 @pid() {
  %r = call i64 (i64, ...) @syscall(i64 39)
  ret i64 %r
}
define i64 @pick(i64 %k) {
  %p = getelementptr [4 x i64], ptr @table, i64 0, i64 %k
  %v = load i64, ptr %p
  ret i64 %v
}
define i64 @count() {
  %v = load volatile i64, ptr @counter
  %n = add i64 %v, 1
  store volatile i64 %n, ptr @counter
  ret i64 %n
}
define i64 @indirect(i64 %k) {
  %p = getelementptr [2 x ptr], ptr @functions, i64 0, i64 %k
  %f = load ptr, ptr %p
  %v = call i64 %f()
  ret i64 %v
}
define i64 @clear(i64 %n) {
  call void @llvm.memset.p0.i64(ptr @zeroes, i8 7, i64 %n, i1 false)
  %p = getelementptr [1000 x i64], ptr @zeroes, i64 0, i64 999
  %v = load i64, ptr %p
  ret i64 %v
}
define i64 @version() {
  %v = load i64, ptr @Py_Version
  ret i64 %v
}
define double @vector(double %x) {
  %a = insertelement <4 x double> poison, double %x, i32 0
  %b = shufflevector <4 x double> %a, <4 x double> poison, <4 x i32> zeroinitializer
  %c = fmul <4 x double> %b, <double 1.5, double 2.5, double 3.5, double 4.5>
  %d = extractelement <4 x double> %c, i32 3
  ret double %d
}
"""
NAMES = ("pid", "pick", "count", "indirect", "clear", "version", "vector")


@pytest.fixture(scope="module")
def object_code() -> bytes:
    return jit.compile_object(EVERYTHING, host())


def linked(loader: Callable[..., LoadedCode | None], object_code: bytes) -> LoadedCode:
    code = loader(object_code, NAMES, {})
    assert code is not None
    return code


@pytest.mark.parametrize("loader", [objects.load, jit._link_with_llvm])
def test_each_kind_of_reference_is_linked(loader: Any, object_code: bytes) -> None:
    code = linked(loader, object_code)

    def call(name: str, *arguments: int) -> int:
        return int(
            ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))(code.addresses[name])(*arguments)
        )

    assert call("pid") == os.getpid()
    assert [call("pick", k) for k in range(4)] == [10, 20, 30, 40]
    assert [call("count"), call("count")] == [6, 7]
    assert [call("indirect", 0), call("indirect", 1)] == [1, 2]
    assert call("clear", 8) == 0
    assert call("clear", 8000) == 0x0707070707070707
    assert call("version") & 0xFFFFFFFF == ctypes.c_int64.in_dll(ctypes.pythonapi, "Py_Version").value & 0xFFFFFFFF
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(code.addresses["vector"])(2.0) == 9.0


def test_two_copies_have_data_of_their_own(object_code: bytes) -> None:
    codes = [linked(objects.load, object_code) for _ in range(2)]
    counts = [ctypes.CFUNCTYPE(ctypes.c_int64)(code.addresses["count"])() for code in codes]
    assert counts == [6, 6]


@pytest.mark.parametrize("loader", [objects.load, jit._link_with_llvm])
def test_a_forked_child_has_data_of_its_own(loader: Any, object_code: bytes) -> None:
    """Parent and child would otherwise share the counters of one thread pool, and wait for each other's chunks."""
    code = linked(loader, object_code)
    count = ctypes.CFUNCTYPE(ctypes.c_int64)(code.addresses["count"])
    child = os.fork()
    if child == 0:
        os._exit(0 if [count(), count()] == [6, 7] else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert count() == 6


def test_nothing_is_writable_and_executable(object_code: bytes) -> None:
    code = linked(objects.load, object_code)
    with open("/proc/self/maps", encoding="ascii") as maps:  # noqa: PTH123  # the kernel's own file
        lines = [line.split() for line in maps]
    ranges = [(*(int(end, 16) for end in line[0].split("-")), line[1]) for line in lines]
    for address in code.addresses.values():
        (protection,) = [p for start, end, p in ranges if start <= address < end]
        assert protection.startswith("r-x")


def test_code_is_freed_with_its_owner(object_code: bytes) -> None:
    before = len(objects._IMAGES)
    code: LoadedCode | None = linked(objects.load, object_code)
    assert len(objects._IMAGES) == before + 1
    del code
    gc.collect()
    assert len(objects._IMAGES) == before


def test_every_truncation_is_left_to_llvm_which_refuses_it(object_code: bytes) -> None:
    for length in range(0, len(object_code), 7):
        assert objects.load(object_code[:length], NAMES, {}) is None
    with pytest.raises(CompileError):
        jit.load_object(object_code[:100], NAMES)


@pytest.mark.parametrize("field", [0, 4, 16, 18])
def test_objects_for_other_machines_are_left_to_llvm(object_code: bytes, field: int) -> None:
    other = bytearray(object_code)
    other[field] ^= 0x55
    assert objects.load(bytes(other), NAMES, {}) is None


def test_missing_symbols_are_left_to_llvm_which_refuses(object_code: bytes) -> None:
    assert objects.load(object_code, ("nothing",), {}) is None
    foreign = jit.compile_object("declare void @nowhere_to_be_found()\ndefine void @f() {\n"
                                 "  call void @nowhere_to_be_found()\n  ret void\n}", host())  # fmt: skip
    assert objects.load(foreign, ("f",), {}) is None
    with pytest.raises(CompileError, match="could not be loaded"):
        jit.load_object(foreign, ("f",))


def test_imports_come_first() -> None:
    text = "declare i64 @given()\ndefine i64 @f() {\n  %v = call i64 @given()\n  ret i64 %v\n}"
    seven = ctypes.CFUNCTYPE(ctypes.c_int64)(lambda: 7)
    address = ctypes.cast(seven, ctypes.c_void_p).value
    assert address is not None
    code = jit.load_object(jit.compile_object(text, host()), ("f",), {"given": address})
    assert ctypes.CFUNCTYPE(ctypes.c_int64)(code.addresses["f"])() == 7
