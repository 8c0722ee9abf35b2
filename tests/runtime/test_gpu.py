"""Calls on a GPU: all but the GPU itself, which a make-believe pycuda runs on the emulator."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import compilation, f32, i32
from polyopt.errors import ArgumentError, BackendUnavailable, BoundsError, CompileError
from polyopt.runtime import arrays
from polyopt.runtime.cuda import devices, dlpack
from polyopt.runtime.cuda.driver import Limits
from polyopt.runtime.cuda.image import KernelImage
from polyopt.runtime.cuda.program import check_grid, check_kernel
from tests.runtime.fake_pycuda import Device, Foreign, host_copy, installed

K, M, N = po.sizes("K M N")
i, j, k = po.indices("i j k")


@po.op
def scaled(x: f32[M, N], a: f32):
    y = po.tensor("y")
    y[i, j] = x[i, j] * a + po.cast(j, f32)
    return y


@po.op
def row_sums(x: f32[M, N]):
    s = po.tensor("s")
    s[i] += x[i, j]
    return s


@po.op
def both(x: f32[M, N], z: f32[M, N]):
    y = po.tensor("y")
    y[i, j] = x[i, j] - z[i, j]
    return y


@po.op
def rows_at(x: f32[M, N], at: i32[K]):
    k = po.index("k")
    y = po.tensor("y")
    y[k, j] = x[at[k], j]
    return y


X = np.arange(35, dtype=np.float32).reshape(5, 7) / 8


def fresh(op: po.Op) -> po.Op:
    """The same op, not yet compiled."""
    return po.op(op.__wrapped__)


def on_gpu(op: po.Op) -> po.Op:
    return fresh(op).on("cuda")


@pytest.fixture
def gpu() -> Iterator[Device]:
    with pytest.MonkeyPatch.context() as patch, installed(patch) as device:
        yield device


def test_host_arrays_are_copied_in_and_out(gpu: Device) -> None:
    np.testing.assert_array_equal(on_gpu(scaled)(X, 2), X * 2 + np.arange(7, dtype=np.float32))
    assert [stream for _, _, stream in gpu.launches] == [None]


def test_arrays_of_the_host_go_through_page_locked_memory(gpu: Device) -> None:
    """Also those larger than one piece of it, in parts; one call's memory is the next one's."""
    large = np.arange(9 * 271 * 1024, dtype=np.float32).reshape(-1, 1024)
    op = on_gpu(scaled)
    for factor in (2, 3):
        np.testing.assert_array_equal(op(large, factor), large * np.float32(factor) + np.arange(1024, dtype=np.float32))
    assert len(gpu.page_locked) == 1
    assert large.nbytes > gpu.page_locked[0].nbytes


def test_page_locked_memory_is_not_used_again_before_its_copies_are_done(gpu: Device) -> None:
    op, x = fresh(scaled), Foreign(gpu, X)
    gpu.is_idle = False
    for _ in range(8):
        op(x, 2)
    assert (len(gpu.page_locked), gpu.events) == (8, []), "calls do not wait"
    op(x, 2)
    assert (len(gpu.page_locked), gpu.events) == (8, ["event waited for"]), "unless many are under way"
    gpu.is_idle = True
    op(x, 2)
    assert len(gpu.page_locked) == 8


def test_a_call_that_fails_gives_its_page_locked_memory_back(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    op = on_gpu(scaled)
    op(X, 2)
    with monkeypatch.context() as patch:
        patch.setattr("polyopt.runtime.cuda.gpu.GpuQueue.launch", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            op(X, 3)
    op(X, 4)
    assert len(gpu.page_locked) == 1


def test_a_second_call_launches_what_the_first_has_loaded(gpu: Device) -> None:
    op = on_gpu(scaled)
    op(X, 2)
    np.testing.assert_array_equal(op(X + 1, 3), (X + 1) * 3 + np.arange(7, dtype=np.float32))
    assert len(gpu.launches) == 2


def test_out_may_be_strided_on_the_host(gpu: Device) -> None:
    out = np.full((5, 14), 9, np.float32)
    assert on_gpu(both)(X, X.T.copy().T, out=out[:, ::2]).base is out
    np.testing.assert_array_equal(out[:, ::2], 0)
    np.testing.assert_array_equal(out[:, 1::2], 9)


def test_device_arrays_stay_on_the_device(gpu: Device) -> None:
    x = Foreign(gpu, X)
    result = fresh(scaled)(x, 2)
    assert hasattr(result, "__cuda_array_interface__")
    np.testing.assert_array_equal(host_copy(gpu, result), X * 2 + np.arange(7, dtype=np.float32))
    assert gpu.events == []


def test_arrays_computed_on_another_stream_are_waited_for(gpu: Device) -> None:
    fresh(scaled)(Foreign(gpu, X, stream=1), 2)
    assert gpu.events == []
    fresh(scaled)(Foreign(gpu, X, stream=7), 2)
    assert gpu.events == ["device waited for"]


def test_a_view_on_the_device_is_read_where_it_is(gpu: Device) -> None:
    turned = Foreign(gpu, X.T.copy()).T
    np.testing.assert_allclose(host_copy(gpu, fresh(row_sums)(turned)), X.sum(1), rtol=1e-6)


@pytest.mark.parametrize("numerics", ["default", "fast"])
def test_tiles_of_open_sizes_copy_from_a_view_on_the_device(gpu: Device, numerics: Any) -> None:
    """Strides that are numbers of the call are read element by element, not by asynchronous copies: a CompileError."""

    @po.op(dynamic=True, numerics=numerics)
    def product(x: f32[M, K], w: f32[K, N]):
        y = po.tensor("y")
        y[i, j] += x[i, k] * w[k, j]
        return y

    x, w = (np.random.default_rng(0).integers(-4, 5, s).astype(np.float32) for s in ((70, 80), (80, 66)))
    turned = Foreign(gpu, x.T.copy()).T
    np.testing.assert_array_equal(host_copy(gpu, product(turned, Foreign(gpu, w))), x @ w)


def test_out_on_the_device(gpu: Device) -> None:
    out = Foreign(gpu, np.zeros((5, 7), np.float32))
    assert fresh(both)(Foreign(gpu, X), Foreign(gpu, X / 2), out=out) is out
    np.testing.assert_array_equal(out.get(), X / 2)


@po.op
def flipped(x: f32[M, N]):
    y = po.tensor("y")
    y[i, j] = x[i, N - 1 - j]
    return y


def test_out_on_the_device_may_be_read_too(gpu: Device) -> None:
    """The result is computed elsewhere and copied, also to what we have made and to what is not aligned."""
    ours = fresh(both)(Foreign(gpu, 2 * X), Foreign(gpu, X))
    assert fresh(flipped)(ours, out=ours) is ours
    np.testing.assert_array_equal(host_copy(gpu, ours), X[:, ::-1])
    for theirs in (Foreign(gpu, X), Foreign(gpu, X, offset=4)):
        fresh(flipped)(theirs, out=theirs)
        np.testing.assert_array_equal(theirs.get(), X[:, ::-1])
    turned = Foreign(gpu, X.T.copy()).T
    with pytest.raises(ArgumentError, match="not contiguous"):
        fresh(flipped)(turned, out=turned)
    np.testing.assert_array_equal(turned.get(), X)


def test_memory_of_other_devices_is_not_taken_for_cudas(gpu: Device) -> None:
    class Elsewhere:
        def __dlpack_device__(self) -> tuple[int, int]:
            return 8, 0  # Metal's

        def __dlpack__(self, **_: Any) -> object:
            return dlpack.give(64, (5, 7), X.dtype, (8, 0), self)

    with pytest.raises(ArgumentError, match="device type 8"):
        fresh(flipped)(Elsewhere())


def test_an_array_that_is_read_only_takes_no_results(gpu: Device) -> None:
    """Arrays of JAX are immutable, and say so since version 1 of DLPack: results were written into them."""

    class Immutable:
        def __init__(self) -> None:
            self.inside = Foreign(gpu, X)

        def __dlpack_device__(self) -> tuple[int, int]:
            return dlpack.CUDA_DEVICE, 0

        def __dlpack__(self, *, max_version: tuple[int, int] = (0, 8), **_: Any) -> object:
            address = self.inside.__cuda_array_interface__["data"][0]
            return read_only_capsule(address, X.shape, X.dtype, self) if max_version >= (1, 0) else None

    theirs = Immutable()
    np.testing.assert_array_equal(host_copy(gpu, fresh(flipped)(theirs)), X[:, ::-1])
    with pytest.raises(ArgumentError, match="read-only"):
        fresh(flipped)(theirs, out=theirs)
    np.testing.assert_array_equal(theirs.inside.get(), X)


def read_only_capsule(address: int, shape: tuple[int, ...], dtype: Any, keep: object) -> Any:
    """A capsule of version 1 with an array on a GPU: NumPy's, with another place."""
    twin = np.zeros(shape, dtype)
    twin.flags.writeable = False
    capsule: Any = twin.__dlpack__(max_version=(1, 0))
    pointer = dlpack._api.PyCapsule_GetPointer(capsule, dlpack._VERSIONED)
    tensor = dlpack._ManagedVersioned.from_address(pointer).tensor
    tensor.data, tensor.device_type, tensor.byte_offset = address, dlpack.CUDA_DEVICE, 0
    return capsule


def test_an_array_that_is_not_aligned_is_copied_first(gpu: Device) -> None:
    shifted = Foreign(gpu, X, offset=4)
    np.testing.assert_array_equal(host_copy(gpu, fresh(both)(shifted, Foreign(gpu, X))), 0)


def test_a_subscript_out_of_range_is_an_error(gpu: Device) -> None:
    with pytest.raises(BoundsError) as caught:
        on_gpu(rows_at)(X, np.array([1, 9], np.int32))
    assert (caught.value.facts["index"], caught.value.facts["extent"]) == (9, 5)


def test_host_and_device_arrays_do_not_mix(gpu: Device) -> None:
    with pytest.raises(ArgumentError, match="'x' is in the memory of a GPU and 'z' in that of the host"):
        fresh(both)(Foreign(gpu, X), X)
    with pytest.raises(ArgumentError, match="in the memory of a GPU"):
        fresh(both)(X, X, out=Foreign(gpu, X))


def test_arrays_of_two_devices_do_not_mix(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    there = Foreign(gpu, X)
    there.__dlpack_device__ = lambda: (2, 1)
    with pytest.raises(ArgumentError, match="'x' is on GPU 0 and 'z' on GPU 1"):
        fresh(both)(Foreign(gpu, X), there)


def test_a_device_array_for_the_cpu_is_refused(gpu: Device) -> None:
    with pytest.raises(ArgumentError, match="the target is the CPU"):
        fresh(row_sums).on("cpu")(Foreign(gpu, X))


def test_a_scalar_on_the_device_is_refused(gpu: Device) -> None:
    with pytest.raises(ArgumentError, match="the scalar 'a' was given an array in the memory of a GPU"):
        fresh(scaled)(Foreign(gpu, X), Foreign(gpu, X[0, 0]))


def test_too_little_memory_on_the_device_is_a_memory_error(gpu: Device) -> None:
    op = on_gpu(row_sums)
    op(X)
    gpu.total_bytes = 4096
    with pytest.raises(MemoryError, match="no 80000 bytes on a make-believe GPU"):
        op(np.ones((2000, 10), np.float32))
    assert not gpu.memories, "what the first call used was given back to make room"


def test_memory_goes_to_the_next_call_whatever_context_is_current_where_it_ends(gpu: Device) -> None:
    op = on_gpu(row_sums)
    op(X)
    assert not gpu.stack, "the arrays of the first call have ended"
    before = set(gpu.memories)
    np.testing.assert_allclose(op(X + 1), (X + 1).sum(1), rtol=1e-6)
    assert set(gpu.memories) == before


def test_kernels_come_from_the_disk_cache(gpu: Device, caplog: pytest.LogCaptureFixture) -> None:
    on_gpu(row_sums)(X)
    compilation._COMPILER._gpu_kernels.clear()
    with caplog.at_level("DEBUG", "polyopt.cache"):
        on_gpu(row_sums)(X)
    assert any(message.startswith("hit") for message in caplog.messages)


def test_without_pycuda_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "find_spec", lambda name: None)
    devices.missing.cache_clear()
    try:
        with pytest.raises(BackendUnavailable) as caught:
            on_gpu(row_sums)(X)
        assert "pycuda" in caught.value.why
        assert "pip install 'polyopt[cuda]'" in caught.value.fix
    finally:
        devices.missing.cache_clear()


def test_the_report_says_what_arrays_on_the_host_cost() -> None:
    report = row_sums.lower(M=100, N=10, target="cuda").report()
    assert "arrays on the host are copied to the GPU and back, 4400 bytes a call" in str(report)


LIMITS = Limits("a small GPU", (8, 6), shared_bytes=99 << 10, grid=(2**31 - 1, 65535, 65535))


def kernel(block: tuple[int, int, int] = (256, 1, 1), shared_bytes: int = 0) -> KernelImage:
    return KernelImage("k", (1, 1, 1), block, shared_bytes, (), 0)


def test_more_shared_memory_than_the_device_has_is_refused() -> None:
    check_kernel(kernel(shared_bytes=99 << 10), LIMITS)
    with pytest.raises(BackendUnavailable, match="needs 167936 bytes of shared memory") as caught:
        check_kernel(kernel(shared_bytes=164 << 10), LIMITS)
    assert caught.value.facts["limit"] == 99 << 10


def test_more_threads_than_the_device_has_are_refused() -> None:
    with pytest.raises(BackendUnavailable, match="blocks of"):
        check_kernel(kernel((1024, 2, 1)), LIMITS)
    with pytest.raises(BackendUnavailable, match="blocks of"):
        check_kernel(kernel((1, 1, 128)), LIMITS)


def test_a_grid_beyond_the_limits_is_refused_before_anything_runs() -> None:
    check_grid(kernel(), (2**31 - 1, 65535, 1), LIMITS)
    for grid in ((2**31, 1, 1), (1, 65536, 1), (1, 1, 65536)):
        with pytest.raises(CompileError, match="would be launched with"):
            check_grid(kernel(), grid, LIMITS)


def test_indices_of_more_than_two_thousand_million_elements_are_64_bits_wide() -> None:
    text = row_sums.lower(M=70000, N=70000, target="cuda").source("cuda")
    assert "int64_t" in text or "(long long)" in text
    assert "int64_t" not in row_sums.lower(M=700, N=700, target="cuda").source("cuda")


def test_tensors_of_pytorch_are_taken_on_the_host_and_on_a_gpu_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no PyTorch here and no GPU, so stand-ins say what a tensor says of itself."""
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(strided="strided"))

    def tensor(device: str) -> Any:
        return SimpleNamespace(
            requires_grad=False, layout="strided", device=SimpleNamespace(type=device), dtype="torch.float32",
            is_quantized=False, is_complex=lambda: False, is_neg=lambda: False,
        )  # fmt: skip

    for device in ("cpu", "cuda"):
        arrays.check_torch(tensor(device), "x")
    for device in ("meta", "mps"):
        with pytest.raises(ArgumentError, match="the tensor 'x' has no plain numbers in the memory of the host or of"):
            arrays.check_torch(tensor(device), "x")
