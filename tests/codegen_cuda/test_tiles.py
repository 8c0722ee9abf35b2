"""Contractions by tiles: ragged sizes, every layout of the operands, prologues and epilogues, on the emulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import Op, bf16, f16, f32, f64, i8, i64
from polyopt.codegen_cuda import tiled
from polyopt.errors import BackendUnavailable
from polyopt.runtime.cuda import compilers
from tests.codegen_cuda.running import emulate, interpreted, lowered
from tests.codegen_cuda.test_emulated import assert_equals, inputs, needs_compiler

B, M, N, K, C, H, W, O = po.sizes("B M N K C H W O")
b, i, j, k = po.indices("b i j k")


@po.op
def plain(x: f32[M, K], w: f32[K, N]) -> object:
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j]
    return y


@po.op
def turned(x: f32[K, M], w: f32[N, K]) -> object:
    y = po.tensor("y")
    y[i, j] += x[k, i] * w[j, k]
    return y


@po.op
def fused(x: f64[M, K], w: f64[K, N], c: f64[M, N], bias: f64[N]) -> object:
    y, out = po.tensors("y out")
    y[i, j] = 3 * c[i, j]
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j] + bias[j], 0)
    return out


@po.op
def batched(x: f16[B, M, K], w: f16[B, N, K]) -> object:
    y = po.tensor("y")
    y[b, i, j] += x[b, i, k] * w[b, j, k]
    return y


@po.op
def integers(x: i8[M, K], w: i8[N, K]) -> object:
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[j, k]
    return y


@po.op
def window(x: f32[C, H, W], f: f32[O, C, 3, 3]) -> object:
    y = po.tensor("y")
    o, c, r, s = po.indices("o c r s")
    h, w = po.index("h", extent=x.shape[1]), po.index("w", extent=x.shape[2])
    y[o, h, w] += x.pad(0)[c, h + r - 1, w + s - 1] * f[o, c, r, s]
    return y


@po.op
def weighted(x: f32[M, K], w: f32[K, N], s: f32[M, N], r: f32[M], ids: i64[N], t: f32[O]) -> object:
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j] * s[i, j] * r[i] * t[ids[j]]
    return y


@po.op
def shortest(x: f32[M, K], w: f32[K, N]) -> object:
    """The product of min and plus."""
    y = po.tensor("y")
    y[i, j] = po.min(x[i, k] + w[k, j], k)
    return y


@po.op
def distances(x: f64[M, K], w: f64[N, K]) -> object:
    y = po.tensor("y")
    y[i, j] = po.sqrt(po.max(po.abs(x[i, k] - w[j, k]), k))
    return y


@po.op
def greatest(x: i8[M, K], w: i8[N, K]) -> object:
    y = po.tensor("y")
    y[i, j] = po.max(po.minimum(x[i, k], w[j, k]), k)
    return y


def special(*arrays: Any) -> tuple[Any, ...]:
    """With rows, columns and single elements of what is no number."""
    for array in arrays:
        array[3], array[:, 2] = np.inf, -np.inf
        array[5:7, 4] = np.nan
    return arrays


def lattice(combine: Any, inside: Any, x: Any, w: Any) -> Any:
    """A product of matrices in another arithmetic, the second one given by columns."""
    with np.errstate(invalid="ignore"):
        return combine.reduce(inside(x[:, None], w[None]), axis=2)


def arrays(*shapes: tuple[int, ...], dtype: str) -> tuple[Any, ...]:
    random = np.random.default_rng(0)
    if dtype == "i8":
        return tuple(random.integers(-9, 9, shape).astype(np.int8) for shape in shapes)
    return tuple(random.uniform(-1, 1, shape).astype(dtype) for shape in shapes)


def convolved(x: Any, f: Any) -> Any:
    padded = np.pad(x.astype(np.float64), ((0, 0), (1, 1), (1, 1)))
    height, width = x.shape[1:]
    return sum(
        np.einsum("chw,oc->ohw", padded[:, r : r + height, s : s + width], f[:, :, r, s].astype(np.float64))
        for r in range(3)
        for s in range(3)
    )


@po.op
def cast_before(x: f16[M, K], w: f32[K, N]) -> object:
    return po.einsum("mk,kn->mn", po.maximum(po.cast(x, f32), 0), w)


CASES: dict[str, tuple[Op, tuple[Any, ...], Any]] = {
    "plain": (plain, (a := arrays((70, 37), (37, 101), dtype="f4")), a[0].astype("f8") @ a[1]),
    "even": (plain, (a := arrays((64, 32), (32, 96), dtype="f4")), a[0].astype("f8") @ a[1]),
    "turned": (turned, (a := arrays((37, 70), (101, 37), dtype="f4")), a[0].T.astype("f8") @ a[1].T),
    "fused": (
        fused,
        (a := arrays((40, 9), (9, 50), (40, 50), (50,), dtype="f8")),
        np.maximum(3 * a[2] + a[0] @ a[1] + a[3], 0),
    ),
    "batched": (
        batched,
        (a := arrays((3, 33, 70), (3, 35, 70), dtype="f2")),
        np.einsum("bik,bjk->bij", a[0].astype("f8"), a[1].astype("f8")),
    ),
    "integers": (integers, (a := arrays((35, 65), (34, 65), dtype="i8")), a[0].astype("i4") @ a[1].T.astype("i4")),
    "weighted": (
        weighted,
        (*(a := arrays((35, 9), (9, 50), (35, 50), (35,), dtype="f4")), np.arange(50) % 7, arrays((7,), dtype="f4")[0]),
        (a[0].astype("f8") @ a[1]) * a[2] * a[3][:, None] * arrays((7,), dtype="f4")[0][np.arange(50) % 7],
    ),
    "cast before": (
        cast_before,
        (a := (*arrays((70, 37), dtype="f2"), *arrays((37, 101), dtype="f4"))),
        np.maximum(a[0].astype("f8"), 0) @ a[1],
    ),
    "min and plus": (
        shortest,
        (a := arrays((70, 37), (37, 101), dtype="f4")),
        lattice(np.minimum, np.add, a[0], a[1].T),
    ),
    "min and plus of no numbers": (
        shortest,
        (a := special(*arrays((70, 37), (37, 101), dtype="f4"))),
        lattice(np.minimum, np.add, a[0], a[1].T),
    ),
    "distances": (
        distances,
        (a := special(*arrays((35, 65), (34, 65), dtype="f8"))),
        np.sqrt(lattice(np.maximum, lambda x, w: abs(x - w), *a)),
    ),
    "max and min": (
        greatest,
        (a := tuple(-abs(each) - 5 for each in arrays((35, 65), (34, 65), dtype="i8"))),
        lattice(np.maximum, np.minimum, *a),
    ),
    "window": (window, (a := arrays((5, 6, 40), (33, 5, 3, 3), dtype="f4")), convolved(*a)),
}


@needs_compiler
@pytest.mark.parametrize("name", CASES)
def test_tiles_give_what_numpy_gives(name: str) -> None:
    op, args, expected = CASES[name]
    lowering = lowered(op, *args)
    assert [nest.style for nest in lowering.mapping.nests] == ["tiles"] and not lowering.fallback
    assert "_tile[" in lowering.source("cuda"), "operands are staged"
    outcome = emulate(lowering, inputs(op, args), {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{lowering.source('cuda')}"
    assert_equals(outcome.results[0], expected)


def test_tiles_mean_what_the_loops_mean() -> None:
    args = arrays((33, 5), (5, 34), dtype="f4")
    lowering = lowered(plain, *args)
    (got,) = interpreted(lowering, inputs(plain, args), {})
    assert_equals(got, args[0].astype("f8") @ args[1])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_a_large_product_fits_registers(arch: str) -> None:
    lowering = lowered(plain, target=arch, M=4096, N=4096, K=4096)
    try:
        compiled = compilers.compile_text(lowering.cuda.text, arch)
    except BackendUnavailable as error:
        pytest.skip(str(error))
    (resources,) = compiled.resources.values()
    assert not resources.spills and resources.stack == 0
    assert resources.registers <= 128, "more would leave room for a single block of 256 threads only"


def _product(x: f32[M, K], w: f32[K, N]) -> object:
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j]
    return y


def test_tiles_that_nothing_comes_of_are_logged_and_in_the_report(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tiled, "staged", lambda *_, **__: None)
    report = str(po.op(_product).lower(M=64, N=96, K=80, target="sm_80").report())
    assert "y_update is not summed by tiles as planned" in report
    assert any("y_update is not summed by tiles" in record.message for record in caplog.records)


@po.op
def farthest(x: f32[M, K], w: f32[K, N]) -> object:
    """A reduction of its own, of which nothing is known that points beyond the nest could start with."""
    y = po.tensor("y")
    y[i, j] = po.reduce(lambda a, b: po.where(po.abs(b) > po.abs(a), b, a), x[i, k] + w[k, j], k)
    return y


def test_a_reduction_that_has_nothing_to_start_with_is_not_planned_as_tiles() -> None:
    lowering = lowered(farthest, M=64, N=96, K=80)
    assert "tiles" not in [nest.style for nest in lowering.mapping.nests]
    assert "as planned" not in str(lowering.report())


@po.op
def uncopied(x: f32[M, K], w: f32[K, N], s: f32[M], t: f32[N], ids: i64[N]) -> object:
    """Elements that lie along no term of the sum are read where they are."""
    y = po.tensor("y")
    after = po.where(i < M - 1, s[i + 1], s[0])
    y[i, j] += (x[i, k] - s[i]) * (w[k, j] - t[j]) + after * t[ids[j]] + s.wrap()[i - j]
    return y


@needs_compiler
@pytest.mark.parametrize("is_open", [False, True])
def test_points_beyond_the_nest_read_what_the_last_one_does(is_open: bool) -> None:
    rows, columns, terms = 67, 70, 21
    x, w, s, t = arrays((rows, terms), (terms, columns), (rows,), (columns,), dtype="f4")
    ids = (np.arange(columns) * 7 % columns).astype("i8")
    op = uncopied.on("sm_80") if not is_open else po.op(dynamic=True)(uncopied.__wrapped__)
    lowering = lowered(op, x, w, s, t, ids)
    assert [nest.style for nest in lowering.mapping.nests] == ["tiles"] and not lowering.fallback
    text = lowering.source("cuda")
    assert "po_min(i_block + row" in text, "a place, and no guard around each read"
    sizes = {"M": rows, "N": columns, "K": terms}
    outcome = emulate(lowering, inputs(op, (x, w, s, t, ids)), sizes if is_open else {})
    assert not outcome.problems, f"{outcome.problems[0]}\n{text}"
    i, j = np.ogrid[:rows, :columns]
    expected = (x - s[:, None]).astype("f8") @ (w - t).astype("f8")
    expected += terms * (np.roll(s, -1)[:, None] * t[ids] + s[(i - j) % rows])
    assert_equals(outcome.results[0], expected)


def _cases(a: Any, b: Any) -> Any:
    return po.where(a < b, (a - b) * (a + b) / (1 + a * a), (a + 1) * (b + 2) * (a + 3) * (b + 4) * (a + 5))


SUMMANDS: dict[str, tuple[Callable[[Any, Any], Any], int, bool]] = {
    "product": (lambda a, b: a * b, 128, True),
    "function": (lambda a, b: po.exp(a) * b, 128, True),
    "many operations": (_cases, 64, False),
    "quotient": (lambda a, b: a % b, 32, True),
    "quotients": (lambda a, b: a % b % (a + b) % 3, 0, False),
}


@pytest.mark.parametrize("name", SUMMANDS)
def test_a_long_summand_has_small_tiles_and_is_not_written_out_for_a_whole_piece(name: str) -> None:
    """NVRTC took minutes and gigabytes for 512 wrapped reads under guards that were written out for one loop."""
    summand, side, is_unrolled = SUMMANDS[name]

    @po.op
    def summed(x: f32[M, K], w: f32[K, N]) -> object:
        y = po.tensor("y")
        y[i, j] += summand(x[i, k], w[k, j])
        return y

    lowering = lowered(summed, M=4096, N=4096, K=64)
    text, (nest,) = lowering.source("cuda"), lowering.mapping.nests
    assert nest.style == ("tiles" if side else "points")
    assert not side or nest.chunks == (side, side)
    assert (f"sides of {side} at most, as a point is" in str(lowering.report())) == (0 < side < 128)
    assert text.count("for (int k_own = 0") == bool(side)
    assert text.count("#pragma unroll\n        for (int k_own = 0") == is_unrolled


@pytest.mark.parametrize(("times", "side", "is_grouped"), [(1, 128, True), (5, 128, False), (20, 64, False)])
def test_four_warps_leave_a_long_end_to_smaller_tiles(times: int, side: int, is_grouped: bool) -> None:
    @po.op
    def ended(x: bf16[M, K], w: bf16[K, N]) -> object:
        y, z = po.tensors("y z", dtype=f32)
        y[i, j] += x[i, k] * w[k, j]
        value = y[i, j]
        for _ in range(times):
            value = po.tanh(po.exp(value) - 1)
        z[i, j] = value
        return z

    lowering = lowered(ended, M=2048, N=2048, K=2048, target="sm_90")
    (nest,) = lowering.mapping.nests
    assert nest.chunks == (side, 256 if is_grouped else side)
    assert ("wgmma" in str(lowering.mapping)) == is_grouped
    assert is_grouped or "for each of a thread's 128" in str(lowering.mapping)
