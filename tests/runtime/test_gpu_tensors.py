"""Calls with tensors on a GPU, repeated: what is known from the call before, and what is looked at each time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import f32, i32
from polyopt.errors import ArgumentError, BackendUnavailable, BoundsError, DTypeError, ShapeError
from polyopt.runtime import extent
from polyopt.runtime.cuda import calls, devices
from tests.runtime import fake_torch
from tests.runtime.fake_pycuda import Device, Foreign, host_copy, installed
from tests.runtime.fake_torch import Tensor, Torch

K, M, N = po.sizes("K M N")
i, j, k = po.indices("i j k")
X = np.arange(35, dtype=np.float32).reshape(5, 7) / 8


@pytest.fixture
def gpu() -> Iterator[Device]:
    with pytest.MonkeyPatch.context() as patch, installed(patch) as device:
        yield device


@pytest.fixture
def torch(gpu: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Torch]:
    with fake_torch.installed(monkeypatch, gpu) as module:
        yield module


def new_doubled() -> po.Op:
    @po.op
    def doubled(x: f32[M, N]):
        y = po.tensor("y")
        y[i, j] = 2 * x[i, j]
        return y

    return doubled


def new_scaled() -> po.Op:
    @po.op
    def scaled(x: f32[M, N], a: f32):
        y = po.tensor("y")
        y[i, j] = x[i, j] * a
        return y

    return scaled


def new_columns() -> po.Op:
    """A result of which each element depends on many."""

    @po.op
    def columns(x: f32[M, N]):
        y = po.tensor("y")
        y[j] += x[i, j]
        return y

    return columns


def known(op: po.Op, *args: Any, **kwargs: Any) -> Any:
    """The result of a call that is like one before; a closer look at the arguments fails."""

    def refuse(*_: Any) -> Any:
        raise AssertionError("a closer look was taken")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(po.Op, "_call_carefully", refuse)
        return op(*args, **kwargs)


def equal(found: Any, wanted: Any) -> None:
    assert type(found) is Tensor
    np.testing.assert_array_equal(found.elements, wanted)


def test_a_repeated_call_gives_a_new_tensor(torch: Torch) -> None:
    op = new_doubled()
    first = op(torch.tensor(X))
    second = known(op, torch.tensor(X + 1))
    equal(first, 2 * X)
    equal(second, 2 * X + 2)
    equal(known(op, x=torch.tensor(X)), 2 * X)


def test_a_repeated_call_pushes_the_context_once_and_evaluates_nothing(
    gpu: Device, torch: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    @po.op
    def centred(x: f32[M, N], a: f32):
        s, y = po.tensors("s y")
        s[()] += x[i, j]
        y[i, j] = x[i, j] * a - s[()]
        return y

    x = torch.tensor(X)
    centred(x, 2.0)
    before, launched = gpu.pushes, len(gpu.launches)
    memories = len(gpu.memories)
    monkeypatch.setattr(extent, "evaluate", None)
    result = known(centred, x, 3.0)
    np.testing.assert_allclose(result.elements, 3 * X - X.sum(), rtol=1e-5)
    assert gpu.pushes == before + 1
    assert len(gpu.launches) - launched == launched > 1
    assert len(gpu.memories) == memories + 1, "the result alone is new"


def test_other_shapes_and_strides_are_other_calls(torch: Torch) -> None:
    op = new_doubled()
    for values in (X, X[:4], np.ones((7, 5), np.float32), X):
        equal(op(torch.tensor(values)), 2 * values)
    turned = torch.tensor(np.arange(35, dtype=np.float32).reshape(7, 5)).T
    assert turned.shape == (5, 7)
    for _ in range(2):
        equal(op(turned), 2 * turned.elements)
        equal(known(op, torch.tensor(X)), 2 * X)
    equal(known(op, turned), 2 * turned.elements)


def test_changed_numbers_arrive(torch: Torch) -> None:
    op = new_scaled()
    x = torch.tensor(X)
    op(x, 2.0)
    equal(known(op, x, 3.0), 3 * X)
    equal(known(op, x, -0.5), X * np.float32(-0.5))
    equal(op(x, 4), 4 * X)
    with pytest.raises(ArgumentError, match="'a'"):
        op(x, "3")


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("requires_grad", True, "requires grad"),
        ("is_negated", True, "lazily negated"),
        ("layout", "sparse_coo", "is sparse"),
        ("is_quantized", True, "has no plain numbers"),
    ],
)
def test_a_tensor_that_turns_unfit_is_refused(torch: Torch, name: str, value: Any, error: str) -> None:
    op = new_doubled()
    x, out = torch.tensor(X), torch.tensor(X)
    op(x)
    known(op, x)
    known(op, x, out=out)
    if name == "is_quantized":
        x.dtype = out.dtype = fake_torch.Dtype("qint8")
    setattr(x, name, value)
    with pytest.raises(ArgumentError, match=error):
        op(x)
    setattr(out, name, value)
    with pytest.raises(ArgumentError, match=error):
        op(torch.tensor(X), out=out)


def test_a_tensor_on_another_device_is_another_call(torch: Torch) -> None:
    op = new_doubled()
    x = torch.tensor(X)
    op(x)
    x.device = fake_torch.TorchDevice("cuda", 1)
    with pytest.raises(BackendUnavailable, match="there is no GPU 1"):
        op(x)
    y = torch.tensor(X)
    with pytest.raises(ArgumentError, match="on GPU 0 and 'y' on GPU 1"):
        op(y, out=x)


def test_subclasses_get_a_closer_look(torch: Torch) -> None:
    class Parameter(Tensor):
        pass

    op = new_doubled()
    x = torch.tensor(X)
    op(x)
    equal(op(Parameter(x.memory, x.shape, x.dtype)), 2 * X)
    assert op._glance.look((Parameter(x.memory, x.shape, x.dtype),), {}) is None


def test_a_tensor_that_is_not_aligned_is_copied_in_each_call(torch: Torch) -> None:
    op = new_doubled()
    aligned, shifted = torch.tensor(X), torch.tensor(X + 1, offset=4)
    for x in (shifted, aligned, shifted, aligned):
        equal(op(x), 2 * x.elements)
    with pytest.raises(AssertionError, match="closer look"):
        known(op, shifted)


def test_the_copy_of_a_tensor_that_is_not_aligned_does_not_stand_for_its_strides(torch: Torch) -> None:
    """The copy is C-contiguous, the tensor is not."""
    op = new_doubled()
    values = np.arange(35, dtype=np.float32).reshape(7, 5)
    for x in (torch.tensor(values, offset=4).T, torch.tensor(values + 1).T):
        equal(op(x), 2 * x.elements)
        equal(op(x), 2 * x.elements)


def test_out_after_no_out_and_no_out_after_out(torch: Torch) -> None:
    for first in ("plain", "out"):
        op = new_doubled()
        x, out = torch.tensor(X), torch.tensor(X * 0)
        if first == "plain":
            op(x)
        else:
            assert op(x, out=out) is out
        x = torch.tensor(X + 1)
        assert known(op, x, out=out) is out
        equal(out, 2 * X + 2)
        equal(known(op, x), 2 * X + 2)


def test_out_that_needs_a_closer_look_gets_one(torch: Torch) -> None:
    op = new_doubled()
    x = torch.tensor(X)
    op(x)
    strided = torch.tensor(np.zeros((7, 5), np.float32)).T
    shifted = torch.tensor(np.zeros((5, 7), np.float32), offset=4)
    for out in (strided, shifted):
        assert op(x, out=out) is out
        equal(out, 2 * X)
    with pytest.raises(ShapeError, match="'y'"):
        op(x, out=torch.tensor(X[:4]))
    with pytest.raises(DTypeError, match="'y'"):
        op(x, out=torch.tensor(X.astype(np.int32)))
    with pytest.raises(ArgumentError, match="'y'"):
        op(x, out=X.copy())


def test_results_are_written_in_place_only_where_that_is_right(torch: Torch) -> None:
    op, columns = new_doubled(), new_columns()
    memory = torch.tensor(np.zeros(64, np.float32))
    x, behind = memory.view((5, 7), (7, 1)), memory.view((5, 7), (7, 1), 16)
    op(x)
    x.elements[...] = X
    equal(known(op, x, out=x), 2 * X)
    x.elements[...] = X
    assert op(x, out=behind) is behind
    equal(behind, 2 * X)
    columns(torch.tensor(X))
    x.elements[...] = X
    row = memory.view((7,), (1,))
    assert columns(x, out=row) is row
    np.testing.assert_allclose(row.elements, X.sum(0), rtol=1e-6)
    for out in (behind, row):
        with pytest.raises(AssertionError, match="closer look"):
            known(op if out is behind else columns, x, out=out)


def test_a_call_runs_on_the_stream_that_is_current_then(gpu: Device, torch: Torch) -> None:
    op = new_doubled()
    x = torch.tensor(X)
    op(x)
    for current in (0, 77, 0):
        torch.cuda.current, torch.cuda.events = current, []
        equal(known(op, x), 2 * X)
        stream = gpu.launches[-1][2]
        if current:
            assert torch.cuda.events == [(stream.handle, 77), (77, stream.handle)]
        else:
            assert stream is None and torch.cuda.events == []
    assert gpu.events == [], "nothing was waited for"


def test_checks_of_subscripts_are_made_in_each_call(torch: Torch) -> None:
    @po.op
    def rows_at(x: f32[M, N], at: i32[K]):
        y = po.tensor("y")
        y[k, j] = x[at[k], j]
        return y

    x = torch.tensor(X)
    rows_at(x, torch.tensor(np.array([1, 4], np.int32)))
    equal(known(rows_at, x, torch.tensor(np.array([0, 3], np.int32))), X[[0, 3]])
    with pytest.raises(BoundsError) as caught:
        known(rows_at, x, torch.tensor(np.array([1, 9], np.int32)))
    assert (caught.value.facts["index"], caught.value.facts["extent"]) == (9, 5)


def test_tensors_without_elements(torch: Torch) -> None:
    op = new_doubled()
    empty = torch.tensor(np.empty((0, 7), np.float32))
    for _ in range(2):
        assert op(empty).shape == (0, 7)


def test_several_results_come_as_the_function_returns_them(torch: Torch) -> None:
    @po.op
    def pair(x: f32[M, N]):
        a, b = po.tensors("a b")
        a[i, j] = x[i, j] + 1
        b[i, j] = x[i, j] * 2
        return {"a": a, "b": (b,)}

    x = torch.tensor(X)
    pair(x)
    found = known(pair, x)
    equal(found["a"], X + 1)
    equal(found["b"][0], 2 * X)


def test_threads_share_what_is_known_and_have_contexts_of_their_own(gpu: Device, torch: Torch) -> None:
    op = new_doubled()
    x = torch.tensor(X)
    op(x)
    found: list[Any] = []
    before = gpu.pushes
    thread = threading.Thread(target=lambda: found.append(op(x)))
    thread.start()
    thread.join()
    equal(found[0], 2 * X)
    assert gpu.pushes == before + 1


def test_a_thread_that_uses_the_emulator_does_not_run_on_the_gpu(torch: Torch) -> None:
    op = new_doubled()
    x = torch.tensor(X)
    op(x)
    with devices.use(po.compilation.emulator()), pytest.raises(BackendUnavailable, match="memory of a GPU"):
        op(x)


def test_a_plan_of_many_launches_is_not_kept(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "KEPT_LAUNCHES", 0)
    op = new_doubled()
    x = torch.tensor(X)
    for _ in range(2):
        equal(op(x), 2 * X)
    (variant,) = op._hot.values()
    assert isinstance(variant.call, calls.CudaCall) and variant.call._plan is None


def test_another_device_inside_a_call_is_not_taken_for_the_same(gpu: Device) -> None:
    one = devices.driver(0)
    devices._gpu.cache_clear()
    other = devices.driver(0)
    with one.active(), one.active():
        assert len(gpu.stack) == 1
        with other.active(), one.active():
            assert len(gpu.stack) == 3
        assert len(gpu.stack) == 1
    assert gpu.stack == []


def test_results_lie_where_the_arrays_on_the_gpu_are_whatever_comes_first(gpu: Device) -> None:
    """A number of another library stands before them."""

    class Number:
        """A value on the host, of a library with arrays of its own."""

        def __dlpack__(self, **_: Any) -> Any:
            return np.array(3, np.float32).__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return 1, 0

        def __array_namespace__(self) -> Any:
            return SimpleNamespace(from_dlpack=lambda array: "on the host")

    @po.op
    def times(a: f32[()], x: f32[M, N]):
        y = po.tensor("y")
        y[i, j] = a[()] * x[i, j]
        return y

    np.testing.assert_array_equal(host_copy(gpu, times(Number(), Foreign(gpu, X))), 3 * X)
