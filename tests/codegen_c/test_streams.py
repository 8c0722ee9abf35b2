"""Results stored past the caches: which ones, and the same numbers wherever they lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, f32, f64
from polyopt.codegen_c import streams
from polyopt.target import Target, host, preset
from tests.poly.operators import M, N, i, j, product, shifted, softmax

is_x86 = pytest.mark.skipif(not host().triple.startswith("x86_64"), reason="only x86 stores vectors past the caches")


@po.op
def moments(p: f32[N], g: f32[N]):
    m, q = po.tensors("m q")
    m[i] = 0.9 * p[i] + g[i]
    q[i] = po.sqrt(m[i] * m[i] + 1.0)
    return m, q


@po.op
def neighbours(x: f32[N]):
    y, z = po.tensors("y z")
    y[i] = po.sqrt(x[i])
    z[i] = y[i] - y.clamp()[i - 1]
    return y, z


@po.op
def narrowed(x: f64[M, N]):
    y = po.tensor("y")
    y[i, j] = po.cast(x[i, j] * 2.0, bf16)
    return y


def tiny(parallel_ns: int) -> Target:
    """This machine with caches that hold nothing."""
    return replace(host(), parallel_ns=parallel_ns, l1_bytes=64, l2_bytes=64, l3_bytes=64)


def streamed(operator: po.Op, target: Target, **sizes: int) -> list[str]:
    return sorted(stream.array for stream in operator.lower(target=target, **sizes).mapping.streams)


def test_a_result_larger_than_the_caches_goes_past_them() -> None:
    machine = preset("avx512")
    assert streamed(shifted, machine, M=4096, N=4096) == ["y"]
    assert streamed(shifted, machine, M=256, N=256) == []
    lowering = shifted.lower(M=4096, N=4096, target=machine)
    assert "y: stored past the caches: its nest touches 134234112 bytes, of which 16777216 would stay" in str(
        lowering.report()
    )
    assert "# 67108864 bytes, stored past the caches" in str(lowering.loops)
    assert "!nontemporal" in lowering.source("llvm") and "sfence" in lowering.source("llvm")


def test_open_sizes_are_asked_when_the_kernel_is_called() -> None:
    machine = preset("avx512")
    lowering = po.op(dynamic=["M"])(shifted.__wrapped__).lower(N=1024, target=machine)
    (stream,) = lowering.mapping.streams
    assert (stream.array, stream.open, stream.touched_bytes) == ("y", ("x", "y"), 4096)
    assert str(stream) == (
        f"y: stored past the caches in calls in which it has more than {machine.l2_bytes} bytes and its nest touches "
        f"more than {round(streams.OUTGROWN * machine.cached_bytes)}"
    )
    assert "# stored past the caches that it outgrows" in str(lowering.loops)
    assert "!nontemporal" in lowering.source("llvm")
    near = po.op(dynamic=["K"])(product.__wrapped__).lower(M=64, N=64, target=machine)
    assert near.mapping.streams == (), "the result itself is near"


@is_x86
@pytest.mark.parametrize("cached", [64, 4000])
@pytest.mark.parametrize("threads", [0, 1 << 40])
def test_calls_on_both_sides_of_the_caches_hold_the_same_bits(cached: int, threads: int) -> None:
    machine = replace(tiny(threads), l3_bytes=cached)
    op = po.op(dynamic=True, target=machine)(shifted.__wrapped__)
    for rows, columns in ((1, 1), (1, 16), (3, 37), (16, 64), (40, 16), (7, 129)):
        x = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
        wanted = np.maximum(x + x[0], 0)
        np.testing.assert_array_equal(op(x, x[0].copy()), wanted)
        op(x, x[0].copy(), out=x)
        np.testing.assert_array_equal(x, wanted)


def test_what_touches_little_more_than_the_caches_hold_stays_in_them() -> None:
    machine = preset("avx512")
    assert 2 * 4 * 1449**2 > machine.cached_bytes and streamed(shifted, machine, M=1449, N=1449) == []
    assert streamed(shifted, machine, M=1640, N=1640) == ["y"]


def test_a_small_last_cache_of_a_core_with_a_large_own_one_still_counts() -> None:
    machine = preset("avx512")
    assert machine.cached_bytes == machine.l3_bytes
    assert replace(machine, l3_bytes=0).cached_bytes == machine.l2_bytes
    server = replace(machine, l3_bytes=256 << 20)
    assert server.cached_bytes == 8 * machine.l2_bytes


def test_sums_and_what_is_read_later_stay_in_the_caches() -> None:
    machine = preset("avx512")
    assert streamed(product, machine, M=4096, N=4096, K=16) in ([], ["out"])
    assert streamed(softmax, machine, M=4096, N=4096) == ["softmax"]
    assert streamed(neighbours, machine, N=1 << 24) in ([], ["z"])


def test_a_result_read_where_it_is_computed_goes_past_the_caches_too() -> None:
    assert streamed(moments, preset("avx512"), N=1 << 24) == ["m", "q"]


def test_only_processors_that_have_such_stores_use_them() -> None:
    assert streamed(shifted, preset("neon"), M=4096, N=4096) == []


@is_x86
@pytest.mark.parametrize("numbers", [(1, 1), (3, 37), (16, 64), (5, 129), (40, 16)])
@pytest.mark.parametrize("offset", [0, 1, 5, 16])
def test_rows_at_any_address_hold_the_same_bits(numbers: tuple[int, int], offset: int) -> None:
    rows, columns = numbers
    x = np.random.default_rng(7).standard_normal((rows, columns)).astype(np.float32)
    b = x[0].copy()
    raw = np.full(rows * columns + 64, 7, np.float32)
    start = (-raw.ctypes.data // 4) % 16 + offset
    out = raw[start : start + rows * columns].reshape(rows, columns)
    for threads in (0, 1 << 40):
        shifted.on(tiny(threads))(x, b, out=out)
        np.testing.assert_array_equal(out, np.maximum(x + b, 0))
        assert (raw[:start] == 7).all() and (raw[start + rows * columns :] == 7).all()
        raw[start : start + rows * columns] = 0


@is_x86
def test_results_in_place_and_of_a_narrow_dtype_are_right() -> None:
    machine = tiny(0)
    x = np.random.default_rng(8).standard_normal((33, 100))
    np.testing.assert_array_equal(narrowed.on(machine)(x).view(np.uint16), narrowed(x).view(np.uint16))
    values = x.astype(np.float32)
    wanted = np.maximum(values + values[0], 0)
    shifted.on(machine)(values, values[0].copy(), out=values)
    np.testing.assert_array_equal(values, wanted)
    p, g = (np.linspace(0, 1, 1003, dtype=np.float32) for _ in range(2))
    m, q = moments.on(machine)(p, g)
    np.testing.assert_allclose(q, np.sqrt(m.astype(np.float64) ** 2 + 1), rtol=1e-6)


def test_a_call_in_place_keeps_what_it_has_read() -> None:
    lowering = moments.lower(N=1 << 24, target=preset("avx512"))
    places = {buffer.name: buffer.in_place_of for buffer in lowering.loops.arguments}
    assert places == {"p": (), "g": (), "m": ("p", "g"), "q": ()}
    assert "icmp eq ptr" in lowering.source("llvm"), "whether a call is in place is asked when it is made"


def test_a_program_without_streams_is_not_marked() -> None:
    loops = shifted.lower(M=8, N=8).loops
    assert streams.apply(loops, ()) == loops
