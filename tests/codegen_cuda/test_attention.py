"""Attention on a GPU: a product by tensor cores, rows, and another product, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, bf16, f32
from polyopt.codegen_cuda.plan import CudaMapping
from tests.codegen_cuda.running import lowered
from tests.codegen_cuda.test_emulated import needs_compiler
from tests.operators import attention as catalogue
from tools.gpu.table import attention

Array = np.ndarray[Any, Any]

B, H, S, K = po.sizes("B H S K")
b, h, i, t, d = po.indices("b h i t d")


def scaled_scores(q: Any, keys: Any) -> Any:
    return po.sum(q[b, h, i, d] * keys[b, h, t, d], d, dtype=f32) * 0.125


def weighted(p: Any, v: Any) -> Any:
    weights, o = po.softmax(p, axis=-1), po.tensor("o")
    o[b, h, i, d] += weights[b, h, i, t] * po.cast(v[b, h, t, d], f32)
    return po.cast(o, bf16)


@po.op
def causal(q: bf16[B, H, S, K], keys: bf16[B, H, S, K], v: bf16[B, H, S, K]):
    p = po.tensor("p")
    p[b, h, i, t] = po.where(t <= i, scaled_scores(q, keys), -float("inf"))
    return weighted(p, v)


@po.op(dynamic=True)
def causal_of_any_size(q: bf16[B, H, S, K], keys: bf16[B, H, S, K], v: bf16[B, H, S, K]):
    p = po.tensor("p")
    p[b, h, i, t] = po.where(t <= i, scaled_scores(q, keys), -float("inf"))
    return weighted(p, v)


@po.op(numerics="fast")
def fast(q: bf16[B, H, S, K], keys: bf16[B, H, S, K], v: bf16[B, H, S, K]):
    p = po.tensor("p")
    p[b, h, i, t] = scaled_scores(q, keys)
    return weighted(p, v)


LARGE = {"B": 4, "H": 16, "S": 4096, "K": 128}
SMALL = {"B": 1, "H": 2, "S": 512, "K": 64}


def mapping(op: Op, sizes: Mapping[str, int]) -> CudaMapping:
    return lowered(op, **sizes, target="sm_90").mapping


def instructions(plan: CudaMapping) -> list[str]:
    return ["threads" if one.instruction is None else one.instruction.helper for one in plan.contractions]


@pytest.mark.parametrize("sizes", [LARGE, SMALL], ids=["large", "small"])
@pytest.mark.parametrize("op", [attention, causal], ids=["full", "causal"])
def test_attention_is_two_products_with_rows_between(op: Op, sizes: Mapping[str, int]) -> None:
    plan = mapping(op, sizes)
    assert [nest.style for nest in plan.nests] == ["tiles", "rows", "tiles"] and not plan.cut
    assert instructions(plan) == ["po_mma_bf16", "threads"]  # f32 weights are not rounded


def test_tiles_of_a_causal_product_come_about() -> None:
    """A triangle has none: they were planned, and its loops did not allow them."""
    lowering = lowered(causal, **LARGE, target="sm_90")
    assert lowering.loops.notes == () and "po_mma_bf16" in lowering.cuda.text


def test_fast_numerics_multiply_weights_by_values_in_parts() -> None:
    plan = mapping(fast, LARGE)
    assert [nest.style for nest in plan.nests] == ["tiles", "rows", "points", "tiles"]  # points: values in f32
    assert instructions(plan) == ["po_mma_bf16", "po_mma_tf32"]


@pytest.mark.parametrize(
    ("op", "shapes"),
    [
        (catalogue.attention, ((2, 16, 2048, 64),) * 3),
        (catalogue.grouped_query_attention, ((4, 8, 1024, 64), (4, 1024, 64), (4, 1024, 64))),
        (catalogue.biased_attention, (*((16, 2048, 64),) * 3, (2048, 2048))),
        (catalogue.relative_attention, (*((2048, 64),) * 3, (4095,))),
        (catalogue.causal_attention, ((16, 2048, 64),) * 3),
    ],
    ids=lambda value: value.__name__ if isinstance(value, Op) else "",
)
def test_attention_of_the_catalogue_is_two_products_with_rows_between(op: Op, shapes: tuple[Any, ...]) -> None:

    plan = lowered(op, *(np.empty(shape, np.float32) for shape in shapes), target="sm_90").mapping
    assert [nest.style for nest in plan.nests] == ["tiles", "rows", "tiles"] and not plan.cut


def reference(q: Array, keys: Array, v: Array, *, scale: float, is_causal: bool) -> Array:
    scores = scale * np.einsum("bhid,bhtd->bhit", q.astype("f8"), keys.astype("f8"))
    if is_causal:
        scores = np.where(np.tri(q.shape[2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("bhit,bhtd->bhid", weights / weights.sum(-1, keepdims=True), v.astype("f8"))


@needs_compiler
@pytest.mark.parametrize("op", [attention, causal, causal_of_any_size, fast], ids=lambda op: op.__name__)
def test_ragged_attention_is_that_of_numpy(op: Op, polyopt_check: Callable[..., Any]) -> None:
    generator = np.random.default_rng(7)
    q, keys, v = (generator.normal(size=(1, 2, 70, 40)).astype(bf16.numpy) for _ in range(3))
    is_causal = op in (causal, causal_of_any_size)
    expected = reference(q, keys, v, scale=128**-0.5 if op is attention else 0.125, is_causal=is_causal)
    polyopt_check(op, q, keys, v, target="cuda", expected=expected.astype(bf16.numpy))
    assert "po_mma_bf16" in lowered(op, q, keys, v).cuda.text
