"""In fast numerics on a GPU, narrow factors of f32 are copied as f32, for tensor cores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, bf16, f16, f32
from polyopt.gpu_pipeline import GpuLowering
from tests.codegen_cuda.running import lowered
from tests.codegen_cuda.test_emulated import needs_compiler

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")


@po.op(numerics="fast")
def mixed(x: f32[M, K], y: bf16[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * po.cast(y[k, j], f32)
    return z


@po.op(numerics="fast")
def mixed_inside(x: f16[M, K], y: f32[K, N]):
    z = po.tensor("z")
    z[i, j] = 1 + po.sum(po.cast(x[i, k], f32) * y[k, j], k)
    return z


@po.op(numerics="fast")
def padded(x: f32[M, K], y: bf16[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * po.cast(y.pad(0)[k - 1, j], f32)
    return z


@po.op
def mixed_by_default(x: f32[M, K], y: bf16[K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * po.cast(y[k, j], f32)
    return z


def instructions(lowering: GpuLowering) -> list[str]:
    return [one.instruction.helper for one in lowering.mapping.contractions if one.instruction is not None]


@pytest.mark.parametrize("op", [mixed, mixed_inside], ids=lambda op: str(op.__name__))
def test_a_narrow_factor_of_f32_is_copied_for_tensor_cores(op: Op) -> None:
    lowering = lowered(op, M=256, N=256, K=256)
    assert instructions(lowering) == ["po_mma_tf32"]
    assert any(tensor.name.endswith("_f32") for tensor in lowering.rewritten.tensors)


@pytest.mark.parametrize(
    ("op", "sizes"),
    [(mixed_by_default, (256, 256, 256)), (padded, (256, 256, 256)), (mixed, (16, 256, 256))],
    ids=["default numerics", "padded", "few products of each element"],
)
def test_others_are_read_as_they_are(op: Op, sizes: tuple[int, int, int]) -> None:
    lowering = lowered(op, **dict(zip("MNK", sizes, strict=True)))
    assert not any(tensor.name.endswith("_f32") for tensor in lowering.rewritten.tensors)
    assert instructions(lowering) == []


@needs_compiler
def test_the_copy_changes_no_result(polyopt_check: Callable[..., None]) -> None:
    generator = np.random.default_rng(5)
    x, y = (generator.normal(size=shape).astype(np.float32) for shape in ((50, 24), (24, 40)))
    polyopt_check(mixed, x, y.astype(bf16.numpy), target="cuda")
