"""Products of narrow integers by dot instructions: the numbers of the reference, bit for bit, whatever the values."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import polyopt as po
from polyopt import dots, f32, i8, i16, i32, u8
from polyopt.dtypes import DType
from polyopt.loops.interpret import interpret
from polyopt.loops.ir import For, walk
from polyopt.loops.verify import check_accesses, verify
from polyopt.poly.replay import replay
from polyopt.target import Target, host, preset
from tests.codegen_c import kernels

Array = NDArray[Any]

VNNI, AVX512, AVX2, SSE = (preset(name) for name in ("avx512_bf16", "avx512", "avx2", "generic"))

M, N, K, B, C, F, H, W = po.sizes("M N K B C F H W")
i, j, k, b, c, f, h, w, r, s = po.indices("i j k b c f h w r s")


def runs_here(target: Target) -> bool:
    here = host()
    needed = {512: "avx512bw", 256: "avx2", 128: "sse2"}[target.vector_bits]
    return here.has(needed) and all(here.has(name[1:]) for name in target.features.split(",") if name)


RUNNING = [pytest.param(target, id=target.name) for target in (VNNI, AVX512, AVX2, SSE) if runs_here(target)]


@cache
def product(left: DType, right: DType, target: Target | None = None) -> po.Op:
    @po.op(target=target)
    def product(x: left[M, K], y: right[K, N]):
        z = po.tensor("z")
        z[i, j] += x[i, k] * y[k, j]
        return z

    return product


def values(dtype: DType, shape: tuple[int, ...], seed: int) -> Array:
    """Numbers of the whole range, with the extremes in the first row and column of the last two dimensions."""
    info = np.iinfo(dtype.numpy)
    drawn = np.random.default_rng(seed).integers(info.min, int(info.max) + 1, shape).astype(dtype.numpy)
    drawn[..., 0, :] = info.min
    drawn[..., :, 0] = info.min
    drawn[..., -1, :] = info.max
    return drawn


def wanted(subscripts: str, *arrays: Array) -> Array:
    """The contraction modulo 2**32."""
    with np.errstate(over="ignore"):
        return np.einsum(subscripts, *(array.astype(np.int64) for array in arrays)).astype(np.int32)


def groups(op: po.Op, *arrays: Array) -> set[int]:
    """How many neighbours one instruction takes, in the loops of a call."""
    return {loop.chunk for loop in walk(op.lower(*arrays).loops.body) if isinstance(loop, For) and loop.kind == "group"}


PAIRS = [(i8, i8), (u8, i8), (i8, u8), (u8, u8), (i16, i16), (i8, i16), (i16, u8)]


@pytest.mark.parametrize("target", RUNNING)
@pytest.mark.parametrize(("left", "right"), PAIRS, ids=str)
def test_products_of_all_pairs_of_dtypes_give_the_reference(left: DType, right: DType, target: Target) -> None:
    op = product(left, right, target)
    x, y = values(left, (37, 90), 1), values(right, (90, 70), 2)
    both_are_bytes = left.bits == right.bits == 8
    assert groups(op, x, y) == {4 if both_are_bytes and target is VNNI else 2}
    np.testing.assert_array_equal(op(x, y), wanted("ik,kj->ij", x, y))


@pytest.mark.parametrize("target", RUNNING)
@pytest.mark.parametrize(("rows", "columns"), [(4, 65), (35, 15)])
@pytest.mark.parametrize("depth", [1, 3, 6])
def test_every_remainder_gives_the_reference(rows: int, columns: int, depth: int, target: Target) -> None:
    x, y = values(i8, (rows, depth), rows), values(i8, (depth, columns), columns)
    op = product(i8, i8, target)
    np.testing.assert_array_equal(op(kernels.guarded(x), kernels.guarded(y)), wanted("ik,kj->ij", x, y))


@pytest.mark.parametrize("target", RUNNING)
@pytest.mark.parametrize("dtype", [i8, i16], ids=str)
def test_sums_that_leave_32_bits_wrap_around(dtype: DType, target: Target) -> None:
    """-2**15 squared twice is 2**31: the instruction's own sum of two products wraps too."""
    extreme, depth = np.iinfo(dtype.numpy).min, 140_000 if dtype is i8 else 66
    x, y = np.full((8, depth), extreme, dtype.numpy), np.full((depth, 17), extreme, dtype.numpy)
    np.testing.assert_array_equal(product(dtype, dtype, target)(x, y), wanted("ik,kj->ij", x, y))


@po.op
def turned_rows(x: i8[K, M], y: i8[K, N]):
    z = po.tensor("z")
    z[i, j] += x[k, i] * y[k, j]
    return z


@po.op
def turned_columns(x: i8[M, K], y: i8[N, K]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * y[j, k]
    return z


@po.op
def turned_both(x: i8[K, M], y: i8[N, K]):
    z = po.tensor("z")
    z[i, j] += x[k, i] * y[j, k]
    return z


@pytest.mark.parametrize("depth", [32, 35])
@pytest.mark.parametrize(
    ("op", "subscripts"), [(turned_rows, "ki,kj->ij"), (turned_columns, "ik,jk->ij"), (turned_both, "ki,jk->ij")]
)
def test_turned_operands_give_the_reference(op: po.Op, subscripts: str, depth: int) -> None:
    sizes = {"i": 41, "j": 83, "k": depth}
    inputs = subscripts.partition("->")[0].split(",")
    x, y = (values(i8, tuple(sizes[letter] for letter in letters), n) for n, letters in enumerate(inputs))
    np.testing.assert_array_equal(op(x, y), wanted(subscripts, x, y))


@pytest.mark.parametrize("step", [1, 2, -1])
def test_strided_operands_give_the_reference(step: int) -> None:
    x, y = values(i8, (40, 64), 1)[:, ::step], values(i8, (64, 128), 2)[::step, ::step]
    np.testing.assert_array_equal(product(i8, i8)(x, y), wanted("ik,kj->ij", x, y))


@po.op
def batched(x: i8[B, M, K], y: u8[B, K, N]):
    z = po.tensor("z")
    z[b, i, j] += x[b, i, k] * y[b, k, j]
    return z


@po.op
def batched_signed(x: i8[B, M, K], y: i8[B, K, N]):
    z = po.tensor("z")
    z[b, i, j] += x[b, i, k] * y[b, k, j]
    return z


def test_batches_give_the_reference() -> None:
    x, y = values(i8, (3, 20, 35), 1), values(u8, (3, 35, 50), 2)
    np.testing.assert_array_equal(batched(x, y), wanted("bik,bkj->bij", x, y))
    np.testing.assert_array_equal(batched_signed(x, y.view(np.int8)), wanted("bik,bkj->bij", x, y.view(np.int8)))


@po.op
def with_itself(x: i8[N, K]):
    z = po.tensor("z")
    z[i, j] += x[i, k] * x[j, k]
    return z


@po.op
def lower_triangle(x: i8[N, K]):
    z = po.tensor("z")
    z[i, j] += po.when(j <= i, x[i, k] * x[j, k])
    return z


@po.op
def started(x: i8[M, K], y: i8[K, N], t: i32[N]):
    z = po.tensor("z")
    z[i, j] = t[j]
    z[i, j] += x[i, k] * y[k, j]
    return z


@po.op
def dequantised(x: u8[M, K], y: i8[K, N], scale: f32[N], t: f32[N]):
    z = po.tensor("z")
    z[i, j] = po.relu(po.cast(po.sum(x[i, k] * y[k, j], k), f32) * scale[j] + t[j])
    return z


@po.op
def two_sums(x: i8[M, C, K], y: i8[C, K, N]):
    z = po.tensor("z")
    z[i, j] += x[i, c, k] * y[c, k, j]
    return z


@pytest.mark.parametrize("target", RUNNING)
@pytest.mark.parametrize("sizes", [(2, 2, 1), (5, 7, 3), (20, 37, 70)])
def test_an_operand_that_is_computed_where_it_is_copied_gives_the_reference(
    sizes: tuple[int, int, int], target: Target
) -> None:
    """The loop of the groups is not the copy's alone: its name was looked for in vain."""

    @po.op(target=target)
    def computed(x: u8[M, K], y: u8[K, N]):
        t, z = po.tensor("t", shape=(K, N), dtype=u8), po.tensor("z")
        t[k, j] = po.cast(7, u8) % y.pad(3)[k % 3, j]
        z[i, j] += x[i, k] * t[k, j]
        return z

    rows, depth, columns = sizes
    x, y = values(u8, (rows, depth), 1), values(u8, (depth, columns), 2)
    np.testing.assert_array_equal(computed(x, y), computed.reference(x, y))


def test_products_inside_more_give_the_reference() -> None:
    x, y = values(i8, (40, 37), 1), values(i8, (37, 70), 2)
    np.testing.assert_array_equal(with_itself(x), wanted("ik,jk->ij", x, x))
    np.testing.assert_array_equal(lower_triangle(x), np.tril(wanted("ik,jk->ij", x, x)))
    t = np.arange(70, dtype=np.int32) + np.iinfo(np.int32).min
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(started(x, y, t), wanted("ik,kj->ij", x, y) + t)
    deep, wide = values(i8, (20, 3, 37), 3), values(i8, (3, 37, 70), 4)
    np.testing.assert_array_equal(two_sums(deep, wide), wanted("ick,ckj->ij", deep, wide))
    bytes_, scale, shift = x.view(np.uint8), np.full(70, 0.5, np.float32), np.ones(70, np.float32)
    found = dequantised(bytes_, y, scale, shift)
    np.testing.assert_array_equal(found, dequantised.reference(bytes_, y, scale, shift))


@po.op
def window_rows(x: i8[C, H, W], y: i8[F, C, 3, 3]):
    z = po.tensor("z")
    z[f, h, w] += x[c, h + r, w + s] * y[f, c, r, s]
    return z


@po.op
def window_channels(x: i8[H, W, C], y: i8[3, 3, C, F]):
    z = po.tensor("z")
    z[h, w, f] += x[h + r, w + s, c] * y[r, s, c, f]
    return z


@pytest.mark.parametrize("channels", [8, 11])
def test_windows_give_the_reference(channels: int) -> None:
    x, y = values(i8, (channels, 9, 21), 1), values(i8, (10, channels, 3, 3), 2)
    view = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (1, 2))
    np.testing.assert_array_equal(window_rows(x, y), wanted("chwrs,fcrs->fhw", view, y))
    x, y = values(i8, (9, 21, channels), 3), values(i8, (3, 3, channels, 40), 4)
    view = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (0, 1))
    np.testing.assert_array_equal(window_channels(x, y), wanted("hwcrs,rscf->hwf", view, y))


@cache
def inner(left: DType, right: DType, target: Target | None = None) -> po.Op:
    @po.op(target=target)
    def inner(x: left[M, K], y: right[K]):
        z = po.tensor("z")
        z[i] += x[i, k] * y[k]
        return z

    return inner


@pytest.mark.parametrize("target", RUNNING)
@pytest.mark.parametrize(("left", "right"), PAIRS, ids=str)
def test_sums_along_lanes_give_the_reference(left: DType, right: DType, target: Target) -> None:
    """Groups of lanes become one running value, vectors at an end are filled up with zeros."""
    for depth in (129, 70_004):
        x, y = values(left, (3, depth), depth), values(right, (1, depth), 2)[0]
        op = inner(left, right, target)
        np.testing.assert_array_equal(op(kernels.guarded(x), kernels.guarded(y)), wanted("ik,k->i", x, y))
    lowering = inner(left, right, target).lower(M=4, K=1024)
    name = "pmaddwd" if target in (AVX512, AVX2, SSE) else "vpdpbusd" if {left, right} == {u8, i8} else "vpdpwssd"
    assert name in lowering.source("asm") and "pmulld" not in lowering.source("asm")


@pytest.mark.parametrize("step", [2, -1])
def test_strided_sums_along_lanes_give_the_reference(step: int) -> None:
    x, y = values(i8, (3, 600), 1)[:, ::step], values(u8, (1, 600), 2)[0, ::step]
    np.testing.assert_array_equal(inner(i8, u8)(x, y), wanted("ik,k->i", x, y))


def test_symbolic_sizes_give_the_reference() -> None:
    @po.op(dynamic=True)
    def dynamic(x: i8[M, K], y: i8[K, N]):
        z = po.tensor("z")
        z[i, j] += x[i, k] * y[k, j]
        return z

    for depth in (31, 32):
        x, y = values(i8, (40, depth), 1), values(i8, (depth, 70), 2)
        np.testing.assert_array_equal(dynamic(x, y), wanted("ik,kj->ij", x, y))


@pytest.mark.parametrize("target", [VNNI, AVX2, SSE], ids=lambda target: target.name)
@pytest.mark.parametrize("depth", [8, 9])
def test_replay_and_interpreter_know_groups(depth: int, target: Target) -> None:
    x, y = values(i8, (9, depth), 1), values(i8, (depth, 35), 2)
    lowering = product(i8, i8, target).lower(x, y)
    assert lowering.fallback == ""
    verify(lowering.loops)
    check_accesses(lowering.loops, {})
    z = np.zeros((9, 35), np.int32)
    interpret(lowering.loops, {"x": x, "y": y, "z": z}, seed=1)
    np.testing.assert_array_equal(z, wanted("ik,kj->ij", x, y))
    np.testing.assert_array_equal(replay(lowering.scop, lowering.tree, {"x": x, "y": y})["z"], z)


def test_what_was_decided_is_said() -> None:
    lowering = product(i8, i8, VNNI).lower(M=64, N=64, K=64)
    assert "z_update by vpdpbusd, groups of 4 along k; one operand has 128 added" in str(lowering.report())
    assert "groups of 4 along k" in str(lowering.tiling)
    assert "group for k in range(k_tile*4, k_tile*4 + 4)" in str(lowering.loops)
    assert "group" in lowering.source("c")
    assert "vpdpbusd" in lowering.source("asm") and "vpmulld" not in lowering.source("asm")
    assert "vpmaddwd" in product(i8, i8, AVX2).lower(M=64, N=64, K=64).source("asm")


def test_a_block_of_columns_stays_in_the_first_cache() -> None:
    lowering = product(i8, i8, VNNI).lower(M=512, N=512, K=512)
    assert "32 columns at a time" in str(lowering.fusion), "16 KiB of 32, beside two tiles of 14 rows"


def test_an_operand_that_is_unsigned_needs_no_offset() -> None:
    assert "_sums" not in str(product(u8, i8, VNNI).lower(M=64, N=64, K=64).loops)
    assert "_sums" not in str(product(i8, u8, VNNI).lower(M=64, N=64, K=64).loops)
    assert "x_sums" in str(product(u8, u8, VNNI).lower(M=64, N=64, K=64).loops)


@pytest.mark.parametrize("part", ["init", "update"])
def test_a_tensor_may_have_the_name_that_a_statement_of_sums_would_have(
    part: str, caplog: pytest.LogCaptureFixture
) -> None:
    @po.op
    def op(x: i8[M, K], w: i8[K, N]):
        y, u = po.tensors(f"y x_sums_{part}")
        u[i] = x[i, 0] * 2 + x[i, 1]
        y[i, j] = u[i]
        y[i, j] += x[i, k] * w[k, j]
        return y, u

    x, w = (np.random.default_rng(0).integers(-128, 128, s).astype(np.int8) for s in ((65, 131), (131, 97)))
    for found, wanted in zip(op(x, w), op.reference(x, w)):
        np.testing.assert_array_equal(found, wanted)
    assert not op.lower(x, w, target=VNNI).fallback and not caplog.records


@pytest.mark.parametrize("dtype", [i8, u8], ids=str)
def test_rows_that_begin_late_have_sums_of_their_own(dtype: DType, caplog: pytest.LogCaptureFixture) -> None:
    late, later = po.index("i", 2, 70), po.index("j", 3, 300)

    def product(x: Any, w: Any) -> Any:
        y = po.tensor("y")
        y[late, later] += x[late, k] * w[k, later]
        return y[2:, 3:]

    product.__annotations__ = {"x": dtype[M, K], "w": dtype[K, N]}
    info, op, random = np.iinfo(dtype.numpy), po.op(product), np.random.default_rng(0)
    x, w = (random.integers(info.min, info.max + 1, s).astype(dtype.numpy) for s in ((70, 131), (131, 300)))
    np.testing.assert_array_equal(op(x, w), x[2:].astype(int) @ w[:, 3:].astype(int))
    assert not op.lower(x, w, target=VNNI).fallback and not caplog.records


def test_vectors_wider_than_the_processors_have_no_instruction_for_groups() -> None:
    """LLVM cuts arithmetic of such vectors in pieces, and ended the process at an intrinsic of their width."""
    here = host()
    narrow = replace(here, vector_bits=512, features="-avx512bw")
    assert dots.available(narrow) == ()

    @po.op(target=replace(here, vector_bits=512))
    def op(x: i16[M, K], w: i16[K]):
        y = po.tensor("y", dtype=i32)
        y[i] += po.cast(x[i, k], i32) * po.cast(w[k], i32)
        return y

    np.testing.assert_array_equal(op(np.ones((3, 257), np.int16), np.ones(257, np.int16)), [257] * 3)
