"""The C of a sample of the operators is free of undefined behaviour, stays inside its arrays, and computes what the
equations say; planted faults are caught the same way."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, i32
from polyopt.export import c_compiler
from tests.exported.sanitized import Caught, Exported, exported, run
from tests.operators.catalogue import OPERATORS
from tests.operators.operator import Case, Layout, SizeClass

COMPILER = c_compiler() or ""
pytestmark = pytest.mark.skipif(not COMPILER, reason="there is no C compiler")

M, N = po.sizes("M N")
BY_NAME = {operator.name: operator for operator in OPERATORS}


class Choice(NamedTuple):
    """An operator of the catalogue with the arguments it gets."""

    name: str
    dtype: str
    size: SizeClass = "prime"
    layout: Layout = "contiguous"

    def exported(self) -> Exported:
        operator = BY_NAME[self.name]
        classes = tuple("1" if self.size == "0" and n in operator.nonempty else self.size for n in operator.sizes)
        case = Case(operator, classes, self.layout, self.dtype)
        return exported(str(case).replace('"', ""), operator.op, case.arguments)


BATCHES: dict[str, tuple[Choice, ...]] = {
    "products": (
        Choice("matmul", "f32", "tile+1"),
        Choice("matmul", "u8", "prime", "negative"),
        Choice("batched_matmul", "bf16"),
        Choice("int8_matmul", "i8", "tile+1"),
        Choice("matvec", "i64", "0"),
        Choice("conv2d_same", "f32"),
        Choice("conv2d_transposed", "i16"),
        Choice("max_pool2d", "f16", "tile+1", "strided"),
        Choice("conv_chain", "f64", "tile-1"),
    ),
    "rows": (
        Choice("softmax_columns", "f32", "prime", "transposed"),
        Choice("layernorm", "f64", "tile+1"),
        Choice("causal_attention", "f32", "tile+1"),
        Choice("grouped_query_attention", "f64"),
        Choice("embedding", "u16"),
        Choice("embedding_gradient", "f16"),
        Choice("histogram", "i64", "tile+1"),
        Choice("take_along", "i8", "tile-1", "broadcast"),
        Choice("concatenate_and_stack", "i32", "1"),
    ),
    "sequences": (
        Choice("cumulative_max", "i8", "tile+1"),
        Choice("lstm", "f32"),
        Choice("smith_waterman", "i64"),
        Choice("triangular_solve", "f64", "tile+1"),
        Choice("rule_110", "bool"),
        Choice("casts", "f32"),
        Choice("integer_division", "i32"),
        Choice("integer_division", "u64", "tile+1"),
        Choice("bits", "i8"),
        Choice("harris", "f32", "tile+1"),
    ),
}


@pytest.mark.parametrize("batch", BATCHES)
def test_the_c_of_operators_under_sanitizers(batch: str, tmp_path: Path) -> None:
    run([choice.exported() for choice in BATCHES[batch]], COMPILER, tmp_path)


# --- extreme numbers, and planted faults --------------------------------------------------------------------------


@po.op
def wrapping(x: i32[N], y: i32[N], f: f32[N]):
    i = po.index("i")
    total, product, shifted, absolute, whole, negated = po.tensors("total product shifted absolute whole negated")
    total[i] = x[i] + y[i]
    product[i] = x[i] * y[i]
    shifted[i] = x[i] << 3
    absolute[i] = po.abs(x[i]) - y[i]
    negated[i] = -x[i]
    whole[i] = po.cast(f[i], i32)
    return total, product, shifted, absolute, negated, whole


@po.op
def shifted_sum(x: f32[N], y: i32[M]):
    i, j = po.indices("i j")
    s, t = po.tensors("s t")
    s[i] = x[i] + x[i + 1]
    t[j] = y[j] * 3
    return s, t


def test_integers_that_wrap_are_no_undefined_behaviour(tmp_path: Path) -> None:
    limits = np.array([2**31 - 1, -(2**31), -1, 0, 1, 2**30, -(2**31)], np.int32)
    floats = np.array([0.5, -1.5, 2.0**30, -(2.0**31), 7, -0.0, 3], np.float32)
    run([exported("wrapping", wrapping, (limits, limits[::-1].copy(), floats))], COMPILER, tmp_path)


def small() -> Exported:
    return exported("shifted_sum", shifted_sum, (np.arange(19, dtype=np.float32), np.arange(5, dtype=np.int32)))


def test_the_saved_source_is_what_is_checked(tmp_path: Path) -> None:
    kernel = small()
    saved = kernel.lowering.save(tmp_path / "saved")
    include = exported(
        "saved",
        shifted_sum,
        tuple(kernel.inputs.values()),
        text=f'#include "{saved.source.name}"',
    )
    run([include], COMPILER, tmp_path)


@pytest.mark.parametrize(
    ("pattern", "replacement", "finding"),
    [
        (r"\+ x\[([^]]*)\]", r"+ x[\1 + 1]", "heap-buffer-overflow"),
        (r"s\[([^]]*)\] =", r"s[\1 - 1] =", "heap-buffer-overflow"),
        (r"return error;", "free(s); return error;", "heap-use-after-free"),
        (r"int64_t error = 0;", "int64_t error = 0; t[0] = 2147483647; t[0] += y[1];", "signed integer overflow"),
        (r"int64_t error = 0;", "int64_t error = 0; error += malloc(8) == 0;", "still allocated"),
        (r"s\[([^]]*)\] = ([^;]*);", r"s[\1] = 2 * (\2);", "differs from the reference"),
        (r"return error;", "((float *)x)[2] = 0; return error;", "was changed"),
        (r"return error;", "return error + 7;", "returned 7"),
    ],
)
def test_planted_faults_are_caught(pattern: str, replacement: str, finding: str, tmp_path: Path) -> None:
    with pytest.raises(Caught, match=finding):
        run([small().edited(pattern, replacement)], COMPILER, tmp_path)
