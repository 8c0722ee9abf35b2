"""Saved kernels: the library gives the kernel's own numbers, and the printed C compiles without a warning."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import export, f16, f32, f64, i32
from polyopt.codegen_c.identifiers import identifier

needs_compiler = pytest.mark.skipif(export.c_compiler() is None, reason="there is no C compiler")

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")
t = po.index("t", 1, N)

Array = np.ndarray[Any, Any]


@po.op
def running_sum(x: f64[N]):
    y = po.tensor("y")
    y[0] = x[0]
    y[t] = y[t - 1] + x[t]
    return y


@po.op
def gather(table: f64[N], ids: i32[M]):
    y = po.tensor("y")
    y[i] = table[ids[i]]
    return y


@po.op
def linear(x: f32[M, K], w: f32[K, N], b: f32[N]):
    y, out = po.tensors("y out")
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j] + b[j], 0)
    return out


@po.op
def softmax(x: f32[M, N]):
    return po.softmax(x, axis=-1)


@po.op
def halves(x: f16[N]):
    return x * 3


@po.op(dynamic=True)
def blurred_rows(x: f32[M, N]):
    sums, y = po.tensors("sums y")
    sums[i, j] = x[i, j] + x[i + 1, j]
    y[i, j] = sums[i, j] * sums[i, j + 2] + sums[i, j + 1]
    return y


@po.op
def exp(x: f64[N]):
    return po.exp(x)


@po.op
def pair(x: f64[N]):
    return x + 1, x.T @ x


def inputs_of(op: Any) -> tuple[Array, ...]:
    rng = np.random.default_rng(3)
    if op is gather:
        return rng.standard_normal(9), rng.integers(0, 9, 40).astype(np.int32)
    if op is linear:
        return tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((130, 70), (70, 200), (200,)))
    if op in (softmax, blurred_rows):
        return (rng.standard_normal((70, 300)).astype(np.float32),)
    if op is halves:
        return (rng.standard_normal(33).astype(np.float16),)
    return (rng.standard_normal(77),)


OPS = [running_sum, gather, linear, softmax, halves, blurred_rows, exp, pair]


def call(library: Path, symbol: str, arrays: tuple[Array, ...], sizes: tuple[int, ...] = ()) -> int:
    function = ctypes.CDLL(str(library))[symbol]
    function.restype = ctypes.c_int64
    function.argtypes = [ctypes.c_void_p] * len(arrays) + [ctypes.c_int64] * len(sizes)
    return int(function(*(array.ctypes.data for array in arrays), *sizes))


def sizes_of(lowering: Any, inputs: tuple[Array, ...]) -> tuple[int, ...]:
    values = {
        str(extent): length
        for buffer, array in zip(lowering.loops.arguments, inputs)
        for extent, length in zip((e.name if hasattr(e, "name") else e for e in buffer.callers_shape), array.shape)
    }
    return tuple(values[name] for name in lowering.loops.sizes)


def declared(header: Path) -> str:
    """The name of the function that a header declares."""
    line = next(line for line in header.read_text().splitlines() if line.startswith("int64_t "))
    return line.removeprefix("int64_t ").partition("(")[0]


def compiled(source: Path, *options: str) -> Path:
    """The library that gcc makes of the printed C, warnings being errors."""
    library = source.with_suffix(".gcc.so")
    command = ["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC", *options]
    done = subprocess.run(
        [*command, "-o", str(library), str(source), "-lm"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return library


@needs_compiler
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.signature.name)
def test_the_library_gives_the_kernels_bits_and_the_source_its_numbers(op: Any, tmp_path: Path) -> None:
    inputs = inputs_of(op)
    lowering = op.lower(*inputs)
    saved = lowering.save(tmp_path / "kernel")
    assert [path.name for path in saved] == ["kernel.h", "kernel.c", "kernel.so"]
    wanted = op(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for library, exact in (
        (saved.binary, True),
        (compiled(saved.source), False),
        (compiled(saved.source, "-fopenmp"), False),
    ):
        found = tuple(np.full_like(array, 7) for array in wanted)
        assert call(library, declared(saved.header), (*inputs, *found), sizes_of(lowering, inputs)) == 0
        for value, expected in zip(found, wanted):
            if exact:
                np.testing.assert_array_equal(value, expected)
            else:
                np.testing.assert_allclose(value, expected, rtol=1e-5, atol=1e-5)


@needs_compiler
def test_a_check_that_fails_is_returned_by_the_library(tmp_path: Path) -> None:
    table, ids = inputs_of(gather)
    saved = gather.lower(table, ids).save(tmp_path / "gather")
    assert call(saved.binary, "gather", (table, ids, np.zeros(40))) == 0
    ids[7] = 9
    assert call(saved.binary, "gather", (table, ids, np.zeros(40))) == 1
    with pytest.raises(po.BoundsError):
        gather(table, ids)


@needs_compiler
def test_conditions_on_sizes_stand_in_the_header(tmp_path: Path) -> None:
    saved = blurred_rows.lower().save(tmp_path / "blur")
    assert "requires" in saved.header.read_text()


def test_without_a_compiler_there_is_an_object_file_with_the_same_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = inputs_of(linear)
    with monkeypatch.context() as patch:
        patch.setattr(export, "c_compiler", lambda: None)
        saved = linear.lower(*inputs).save(str(tmp_path / "linear"))
    assert saved.binary.name == "linear.o"
    if export.c_compiler() is None:
        return
    main = tmp_path / "main.c"
    main.write_text('#include "linear.h"\nint main(void) { return linear == 0; }\n')
    subprocess.run(["cc", "-o", str(tmp_path / "main"), str(main), str(saved.binary), "-lm"], check=True)
    subprocess.run([str(tmp_path / "main")], check=True)


@needs_compiler
def test_a_compiler_that_fails_is_a_compile_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'ld: cannot find -lgcc_s' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(export, "c_compiler", lambda: str(broken))
    with pytest.raises(po.CompileError) as failure:
        running_sum.lower(N=5).save(tmp_path / "sum")
    assert "ld:" not in str(failure.value)
    assert failure.value.facts["compiler"] == "ld: cannot find -lgcc_s"


def test_a_folder_that_is_not_there_is_an_argument_error(tmp_path: Path) -> None:
    with pytest.raises(po.ArgumentError) as failure:
        running_sum.lower(N=5).save(tmp_path / "missing" / "sum")
    assert failure.value.fix


def test_kernels_for_a_gpu_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(po.ArgumentError, match="cannot be saved as a C library") as failure:
        exp.lower(N=5, target="cuda").save(tmp_path / "exp")
    assert failure.value.fix and not list(tmp_path.iterdir())


@po.op
def new(this: f64[N], delete: f64[N]):
    template = po.tensor("template")
    template[i] = this[i] + delete[i]
    return template


@po.op
def printf(x: f64[N]):
    PRINTF__H = po.tensor("PRINTF__H")
    PRINTF__H[i] = x[i] + 1
    return PRINTF__H


@needs_compiler
@pytest.mark.parametrize("op", [new, printf], ids=["new", "printf"])
def test_names_that_mean_something_in_c_or_cpp_are_not_taken(op: Any, tmp_path: Path) -> None:
    saved = op.lower(N=5).save(tmp_path / "kernel")
    compiled(saved.source)
    command = ["gcc", "-x", "c++", "-Wall", "-Werror", "-fsyntax-only", str(saved.header)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot execute" not in done.stderr:  # gcc without its C++ part
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ['a"b', "a\nb"])
def test_a_name_that_c_cannot_include_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(po.ArgumentError, match="#include"):
        running_sum.lower(N=5).save(tmp_path / name)
    assert not list(tmp_path.iterdir())


@needs_compiler
def test_saving_again_leaves_a_loaded_library_as_it_was(tmp_path: Path) -> None:
    saved = running_sum.lower(N=5).save(tmp_path / "sum")
    loaded = ctypes.CDLL(str(saved.binary))
    running_sum.lower(N=3).save(tmp_path / "sum")
    x, y = np.arange(5.0), np.zeros(5)
    assert loaded.running_sum(ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data)) == 0
    np.testing.assert_array_equal(y, np.cumsum(x))


def test_a_function_does_not_take_a_name_of_the_c_library() -> None:
    source = exp.lower(N=5).source("c")
    assert "int64_t exp_(" in source
    assert identifier("exp") == "exp"


def test_a_notebook_shows_the_loops_and_the_equations() -> None:
    assert "y[t] = y[t - 1] + x[t]" in running_sum._repr_html_()
    shown = running_sum.lower(N=5)._repr_html_()
    assert "<details" in shown and "for t" in shown


def test_a_saved_parallel_kernel_runs_on_openmp(tmp_path: Path) -> None:
    lowering = linear.lower(*inputs_of(linear))
    assert lowering.info.is_parallel
    assert "#pragma omp parallel for" in lowering.save(tmp_path / "linear").source.read_text()


@needs_compiler
def test_two_libraries_of_one_name_keep_their_kernels(tmp_path: Path) -> None:
    """The second one's C function called the first one's kernel, which knows other sizes."""
    i = po.index("i")

    @po.op
    def scale(x: po.f64[N]):
        y = po.tensor("y")
        y[i] = 2 * x[i] + i
        return y

    saved = [scale.lower(N=size).save(tmp_path / f"of_{size}") for size in (4, 8)]
    first, second = (ctypes.CDLL(str(one.binary), mode=ctypes.RTLD_GLOBAL) for one in saved)
    x, y = np.arange(8.0), np.full(8, -1.0)
    assert second.scale(x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p)) == 0
    np.testing.assert_array_equal(y, 3 * np.arange(8.0))
    y[:] = -1
    assert first.scale(x.ctypes.data_as(ctypes.c_void_p), y.ctypes.data_as(ctypes.c_void_p)) == 0
    np.testing.assert_array_equal(y, [0, 3, 6, 9, -1, -1, -1, -1])
