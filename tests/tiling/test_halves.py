"""Products of bf16 by pairs: rounded as multiply-adds are, and never a subnormal number lost."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

import polyopt as po
from polyopt import bf16, f32, pipeline
from polyopt.loops.interpret import interpret
from polyopt.loops.ir import For, walk
from polyopt.loops.verify import check_accesses, verify
from polyopt.picks import Pick
from polyopt.poly.replay import replay
from polyopt.runtime import pool
from polyopt.target import Rates, Target, host, preset
from tests.codegen_c import kernels

ml_dtypes = pytest.importorskip("ml_dtypes")

Array = NDArray[Any]
Numerics = Literal["default", "strict", "fast"]

PAIRS = preset("avx512_bf16")
NONE = preset("avx512")

HERE = [
    pytest.param(target, id=target.name)
    for target in (PAIRS, NONE, preset("avx2"), preset("generic"))
    if not target.lacking(host())
]
needs_pairs = pytest.mark.skipif(bool(PAIRS.lacking(host())), reason="the processor has no vdpbf16ps")

M, N, K, B, L, C, F, H, W = po.sizes("M N K B L C F H W")
i, j, k, b, c, f, h, w, r, s = po.indices("i j k b c f h w r s")


@cache
def wide(target: Target | None = None, numerics: Numerics = "default") -> po.Op:
    """A product in f32, in which nothing is rounded at the end."""

    @po.op(target=target, numerics=numerics)
    def wide(x: bf16[M, K], y: bf16[K, N]):
        z = po.tensor("z")
        z[i, j] += po.cast(x[i, k], f32) * po.cast(y[k, j], f32)
        return z

    return wide


@cache
def rounded(target: Target | None = None) -> po.Op:
    @po.op(target=target)
    def rounded(x: bf16[M, K], y: bf16[K, N]):
        z = po.tensor("z")
        z[i, j] += x[i, k] * y[k, j]
        return z

    return rounded


def small_integers(shape: tuple[int, ...], seed: int, scale: float = 1.0) -> Array:
    """Numbers whose products and sums are exact in f32, times a power of two."""
    drawn = np.random.default_rng(seed).integers(-9, 10, shape).astype(np.float64)
    return (drawn * scale).astype(bf16.numpy)


def wanted(x: Array, y: Array) -> Array:
    with np.errstate(all="ignore"):
        return x.astype(np.float64) @ y.astype(np.float64)


def groups(op: po.Op, *arrays: Array) -> set[int]:
    """How many neighbours are multiplied at once, in the loops of a call."""
    return {loop.chunk for loop in walk(op.lower(*arrays).loops.body) if isinstance(loop, For) and loop.kind == "group"}


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize(("rows", "columns"), [(16, 65), (35, 17), (37, 70), (1, 200)])
@pytest.mark.parametrize("depth", [1, 2, 3, 6, 91])
def test_every_remainder_gives_the_reference(rows: int, columns: int, depth: int, target: Target) -> None:
    x, y = small_integers((rows, depth), rows), small_integers((depth, columns), columns)
    given = kernels.guarded(x.view(np.uint16)).view(x.dtype), kernels.guarded(y.view(np.uint16)).view(y.dtype)
    np.testing.assert_array_equal(wide(target)(*given), wanted(x, y))
    np.testing.assert_array_equal(rounded(target)(*given), wanted(x, y).astype(bf16.numpy))


def test_pairs_are_taken_where_they_are_faster() -> None:
    x, y = small_integers((32, 64), 1), small_integers((64, 64), 2)
    assert groups(wide(PAIRS), x, y) == groups(rounded(PAIRS), x, y) == {2}
    assert groups(wide(NONE), x, y) == set()
    rates = Rates(100.0, 50.0, 200.0, 400.0, 200.0, 100.0, 50.0, 20.0, 20.0, 40.0, 40.0, 5.0, 2)
    assert groups(wide(replace(PAIRS, rates=rates)), x, y) == {2}
    assert groups(wide(replace(PAIRS, rates=replace(rates, fma_bf16=50.0))), x, y) == set()
    assert groups(wide(replace(PAIRS, cpu="sapphirerapids")), x, y) == set()
    assert groups(wide(PAIRS, "strict"), x, y) == set()
    assert groups(wide(PAIRS), x[:15], y) == set(), "a look at y would take longer than the products"


SCALES = [
    pytest.param(2.0**-56, 2.0**-56, id="normal"),
    pytest.param(2.0**-60, 2.0**-60, id="subnormal sums"),
    pytest.param(2.0**-70, 2.0**-70, id="subnormal products"),
    pytest.param(2.0**-127, 2.0**3, id="subnormal operand"),
    pytest.param(2.0**20, 2.0**-130, id="subnormal operand of the lanes"),
]


@pytest.mark.parametrize("target", HERE)
@pytest.mark.parametrize(("left", "right"), SCALES)
def test_small_numbers_are_not_lost(left: float, right: float, target: Target) -> None:
    """Integers times powers of two: each product and each sum of them is a number of f32, if only a subnormal one."""
    x, y = small_integers((20, 90), 1, left), small_integers((90, 70), 2, right)
    np.testing.assert_array_equal(wide(target)(x, y), wanted(x, y))
    np.testing.assert_array_equal(wide(target, "strict")(x, y), wanted(x, y))


@needs_pairs
@pytest.mark.parametrize("exponent", [-56, -57])
def test_what_cancels_leaves_the_least_numbers(exponent: int) -> None:
    """About the smallest products for which pairs are taken: what their sums are multiples of is 2**-126 or, where
    they are not taken, 2**-128."""
    one, next_one = 2.0**exponent, 2.0**exponent * (1 + 2.0**-7)
    x = np.tile(np.array([next_one, -next_one, -one, one], bf16.numpy), (16, 1))
    y = np.tile(np.array([[next_one], [one], [next_one], [one]], bf16.numpy), (1, 64))
    assert wanted(x, y)[0, 0] == 2.0 ** (2 * exponent - 14)
    assert groups(wide(PAIRS), x, y) == {2}
    np.testing.assert_array_equal(wide(PAIRS)(x, y), wanted(x, y))


@needs_pairs
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("left", [True, False])
def test_a_single_small_number_is_found_wherever_it_is(place: int, left: bool) -> None:
    """One product is the smallest subnormal number; by the instruction it would be 0."""
    for shape in [(16, 40), (19, 129), (40, 3), (20, 16_384)]:  # threads look through the last one's operands
        x = np.zeros((shape[0], shape[1]), bf16.numpy)
        y = np.zeros((shape[1], 48), bf16.numpy)
        row, depth, column = ((n - 1) * place for n in (shape[0], shape[1], 48))
        x[row, depth], y[depth, column] = (2.0**-100, 2.0**-49) if left else (2.0**-20, 2.0**-129)
        assert wide(PAIRS)(x, y)[row, column] == 2.0**-149


@needs_pairs
def test_numbers_that_are_none_stay_so() -> None:
    x, y = small_integers((25, 40), 1), small_integers((40, 64), 2)
    x[1, 3], x[2, 4], y[7, 9] = np.inf, np.nan, -np.inf
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(wide(PAIRS)(x, y), wanted(x, y))


@needs_pairs
def test_zeros_are_not_small() -> None:
    x, y = np.zeros((28, 40), bf16.numpy), small_integers((40, 64), 2)
    x[3] = -0.0
    np.testing.assert_array_equal(wide(PAIRS)(x, y), np.zeros((28, 64), np.float32))


@needs_pairs
@pytest.mark.parametrize("scale", [1.0, 2.0**-65])
@pytest.mark.parametrize("step", [1, 2, -1])
def test_strided_operands_give_the_reference(step: int, scale: float) -> None:
    x, y = small_integers((40, 64), 1, scale)[:, ::step], small_integers((64, 128), 2, scale)[::step, ::step]
    np.testing.assert_array_equal(wide(PAIRS)(x, y), wanted(x, y))


@po.op(target=PAIRS)
def turned(x: bf16[K, M], y: bf16[N, K]):
    z = po.tensor("z")
    z[i, j] += po.cast(x[k, i], f32) * po.cast(y[j, k], f32)
    return z


@po.op(target=PAIRS)
def window(x: bf16[C, H, W], y: bf16[F, C, 3, 3]):
    z = po.tensor("z")
    z[f, h, w] += po.cast(x[c, h + r, w + s], f32) * po.cast(y[f, c, r, s], f32)
    return z


@needs_pairs
@pytest.mark.parametrize("scale", [1.0, 2.0**-65])
def test_other_layouts_give_the_reference(scale: float) -> None:
    x, y = small_integers((35, 41), 1, scale), small_integers((83, 35), 2, scale)
    np.testing.assert_array_equal(turned(x, y), wanted(x.T, y.T))
    image, filters = small_integers((9, 9, 21), 1, scale), small_integers((20, 9, 3, 3), 2, scale)
    assert groups(turned, x, y) == groups(window, image, filters) == {2}
    view = np.lib.stride_tricks.sliding_window_view(image.astype(np.float64), (3, 3), (1, 2))
    np.testing.assert_array_equal(window(image, filters), np.einsum("chwrs,fcrs->fhw", view, filters.astype(float)))


@needs_pairs
def test_two_products_look_through_their_operands() -> None:
    @po.op(target=PAIRS)
    def two(x: bf16[M, K], y: bf16[K, N], v: bf16[K, N]):
        a, b = po.tensors("a b")
        a[i, j] += po.cast(x[i, k], f32) * po.cast(y[k, j], f32)
        b[i, j] += po.cast(x[i, k], f32) * po.cast(v[k, j], f32)
        return a, b

    x, y = small_integers((20, 40), 1), small_integers((40, 64), 2)
    for scale in (1.0, 2.0**-132):
        v = small_integers((40, 64), 3, scale)
        first, second = two(x, y, v)
        np.testing.assert_array_equal(first, wanted(x, y))
        np.testing.assert_array_equal(second, wanted(x, v))


@needs_pairs
def test_sums_and_operands_of_the_kernel_itself_are_widened() -> None:
    """Nobody has looked through what a sum starts from, or what the kernel computes."""

    @po.op(target=PAIRS)
    def started(x: bf16[M, K], y: bf16[K, N], t: f32[N]):
        z = po.tensor("z")
        z[i, j] = t[j]
        z[i, j] += po.cast(x[i, k], f32) * po.cast(y[k, j], f32)
        return z

    @po.op(target=PAIRS)
    def computed(x: bf16[M, K], y: bf16[K, N]):
        t, z = po.tensors("t z")
        t[i, k] = x[i, k] * po.cast(2.0**-100, bf16)
        z[i, j] += po.cast(t[i, k], f32) * po.cast(y[k, j], f32)
        return z

    x, y = small_integers((20, 40), 1), small_integers((40, 64), 2)
    t = np.full(64, 2.0**-140, np.float32)
    np.testing.assert_array_equal(started(np.zeros_like(x), y, t), np.broadcast_to(t, (20, 64)))
    np.testing.assert_array_equal(computed(x, small_integers((40, 64), 2, 2.0**-40)), wanted(x, y) * 2.0**-140)
    assert groups(started, x, y, t) == groups(computed, x, y) == set()


@needs_pairs
def test_an_array_of_which_little_is_read_is_not_looked_through() -> None:
    """A layer's weights out of many: the look took longer than the product."""

    @po.op(target=PAIRS)
    def layer(x: bf16[M, K], y: bf16[L, K, N]):
        z = po.tensor("z")
        z[i, j] += po.cast(x[i, k], f32) * po.cast(y[0, k, j], f32)
        return z

    x, y = small_integers((32, 40), 1), small_integers((3, 40, 64), 2)
    assert groups(layer, x, y[:1]) == groups(layer, x, y[:2]) == {2}
    assert groups(layer, x, y) == set()
    for layers in (1, 2, 3):
        np.testing.assert_array_equal(layer(x, y[:layers]), wanted(x, y[0]))


@needs_pairs
@pytest.mark.parametrize("scale", [1.0, 2.0**-65])
def test_large_operands_in_any_order_give_the_reference(scale: float) -> None:
    """Threads share the longest dimension but that in which neighbours lie, whichever these are."""

    @po.op(target=PAIRS)
    def batch(x: bf16[B, M, K], y: bf16[B, K, N]):
        z = po.tensor("z")
        z[b, i, j] += po.cast(x[b, i, k], f32) * po.cast(y[b, k, j], f32)
        return z

    for shape in [(1, 500, 600), (2, 300, 500)]:
        x, y = small_integers(shape, 1, scale), small_integers((shape[0], shape[2], 17), 2, scale)
        assert groups(batch, x, y) == {2}
        for left in (x, np.asfortranarray(x)):
            np.testing.assert_array_equal(batch(left, y), wanted(x, y))
        x[:], y[:] = 0, 0
        x[-1, -1, -1], y[-1, -1, -1] = 2.0**-100, 2.0**-49
        for left in (x, np.asfortranarray(x)):
            assert batch(left, y)[-1, -1, -1] == 2.0**-149


def test_pairs_are_given_up_before_all_plans_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its loops twice a kernel of many products was too long, and so had none of its plans."""
    lines = wide(PAIRS).lower(M=64, N=64, K=64).source("llvm").count("\n")
    monkeypatch.setattr(pipeline, "MOST_LINES", 3 * lines // 4)
    lowering = wide(PAIRS).lower(M=64, N=64, K=66)
    assert lowering.fallback == "" and "group" not in str(lowering.loops) and "tiles i#2 by" in str(lowering.tiling)
    assert "bf16 is not multiplied in pairs: the kernel of 'wide' is too long" in str(lowering.report())


def test_a_kernel_of_many_products_has_no_pairs() -> None:
    """Its loops, twice, would take LLVM seconds."""

    @po.op(target=PAIRS)
    def many(x: bf16[M, K], y: bf16[B, K, N]):
        return tuple(po.gelu(x @ y[number]) for number in range(5))

    assert many.lower(M=128, N=32, K=32, B=5).loops.screened == ()
    assert rounded(PAIRS).lower(M=64, N=32, K=32).loops.screened == (("x", "y"),)


def test_tiles_are_asked_for_where_pairs_are_taken_only(caplog: pytest.LogCaptureFixture) -> None:
    """An answer that only tiles without pairs have was called none any more."""
    for target in (PAIRS, NONE):
        lowering = wide(target).lower(M=100, N=300, K=200)
        asked = replace(lowering, options=replace(lowering.options, picks=()))
        (question,) = [question for question in asked.questions if question.text.startswith("register tile")]
        for answer in question.options:
            picks = (Pick(question.text, answer),)
            _ = replace(lowering, options=replace(lowering.options, picks=picks)).questions
    assert "no option any more" not in caplog.text


@needs_pairs
@pytest.mark.parametrize("scale", [1.0, 2.0**-65])
def test_the_number_of_threads_changes_nothing(scale: float) -> None:
    drawn = np.random.default_rng(0)
    x, y = ((drawn.standard_normal(shape) * scale).astype(bf16.numpy) for shape in ((300, 257), (257, 300)))
    found = []
    for count in (1, 2):
        po.set_num_threads(count)
        found.append(wide(PAIRS)(x, y))
    po.set_num_threads(pool.usable_cores())
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(found[0], wanted(x, y), rtol=1e-5, atol=1e-4 * scale * scale)


@pytest.mark.parametrize("depth", [8, 9])
def test_replay_and_interpreter_know_pairs(depth: int) -> None:
    x, y = small_integers((19, depth), 1), small_integers((depth, 35), 2)
    lowering = wide(PAIRS).lower(x, y)
    assert lowering.fallback == "" and groups(wide(PAIRS), x, y) == {2}
    verify(lowering.loops)
    check_accesses(lowering.loops, {})
    z = np.zeros((19, 35), np.float32)
    interpret(lowering.loops, {"x": x, "y": y, "z": z}, seed=1)
    np.testing.assert_array_equal(z, wanted(x, y))
    np.testing.assert_array_equal(replay(lowering.scop, lowering.tree, {"x": x, "y": y})["z"], z)


def test_what_was_decided_is_said() -> None:
    lowering = rounded(PAIRS).lower(M=64, N=64, K=64)
    assert (
        "z_update by vdpbf16ps, groups of 2 along k; by multiply-adds of f32 where elements of x and y are so"
        in str(lowering.report())
    )
    assembly = lowering.source("asm")
    assert "vdpbf16ps" in assembly and "vpminuw" in assembly and "vfmadd" in assembly
    assert "vdpbf16ps" not in rounded(NONE).lower(M=64, N=64, K=64).source("asm")
