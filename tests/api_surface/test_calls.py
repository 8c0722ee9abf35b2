"""Sections 2 and the end of 1: what a call takes and gives, `out=`, targets, threads, caches, and `po.einsum`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

import polyopt as po
from polyopt import bf16, f32, f64

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")
t = po.index("t", 1, N)
RNG = np.random.default_rng(13)


@po.op
def matmul(x: f32[M, K], w: f32[K, N]):
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j]
    return y


@po.op
def double(x: f64[N]):
    y = po.tensor("y")
    y[i] = 2 * x[i]
    return y


@po.op
def reverse(x: f64[N]):
    y = po.tensor("y")
    y[i] = x[N - 1 - i]
    return y


@po.op
def running_sum(x: f64[N]):
    y = po.tensor("y")
    y[0] = x[0]
    y[t] = y[t - 1] + x[t]
    return y


@po.op
def axpy(x: f64[N], y: f64[N], *, alpha: f64 = 2.0):
    z = po.tensor("z")
    z[i] = alpha * x[i] + y[i]
    return z


X = RNG.standard_normal((33, 20)).astype(np.float32)
W = RNG.standard_normal((20, 17)).astype(np.float32)
V = RNG.standard_normal(9)


# --- arguments --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a[::2, ::3],
        lambda a: a[::-1],
        lambda a: np.asfortranarray(a),
        lambda a: np.broadcast_to(a[:1], a.shape),
        lambda a: a[:, :1],
        lambda a: a[:0],
    ],
)
def test_arrays_may_have_any_strides(view: Any) -> None:
    x = view(X)
    w = RNG.standard_normal((x.shape[1], 4)).astype(np.float32)
    for _ in range(3):
        assert_allclose(matmul(x, w), x @ w, rtol=1e-4, atol=1e-5)


def test_torch_tensors_in_torch_tensor_out() -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.from_numpy(X), torch.from_numpy(W)
    y = matmul(x, w)
    assert isinstance(y, torch.Tensor) and y.dtype == torch.float32
    assert_allclose(y.numpy(), X @ W, rtol=1e-4, atol=1e-5)
    out = torch.empty(33, 17)
    assert matmul(x, w, out=out) is out
    assert torch.equal(out, y)


def test_a_torch_tensor_that_requires_grad_raises_unless_detached() -> None:
    torch = pytest.importorskip("torch")
    x = torch.ones(4, dtype=torch.float64, requires_grad=True)
    with pytest.raises(po.ArgumentError, match="detach"):
        double(x)
    assert torch.equal(double(x.detach()), 2 * x.detach())


def test_bfloat16_of_torch_goes_in_and_comes_out() -> None:
    torch = pytest.importorskip("torch")

    @po.op
    def f(x: bf16[N]):
        return x * 2

    result = f(torch.arange(5, dtype=torch.bfloat16))
    assert result.dtype == torch.bfloat16
    assert result.tolist() == [0, 2, 4, 6, 8]


def test_bfloat16_arrays_are_those_of_ml_dtypes() -> None:
    @po.op
    def f(x: bf16[N]):
        return x * 3

    x = np.arange(5).astype(ml_dtypes.bfloat16)
    result = f(x)
    assert result.dtype == ml_dtypes.bfloat16
    assert_array_equal(result.astype(np.float32), np.arange(5) * 3)


class WithDLPack:
    """Nothing but the protocol."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class WithInterface:
    def __init__(self, array: Any) -> None:
        self._array = array
        self.__array_interface__ = array.__array_interface__


@pytest.mark.parametrize("wrap", [WithDLPack, WithInterface])
def test_anything_with_dlpack_or_an_array_interface_is_taken(wrap: Any) -> None:
    assert_allclose(np.asarray(double(wrap(V))), 2 * V)


def test_lists_and_wrong_objects_are_argument_errors() -> None:
    for bad in ([1.0, 2.0], None, "text", object(), {1: 2}):
        with pytest.raises((po.ArgumentError, po.DTypeError)) as failure:
            double(bad)
        assert "'x'" in str(failure.value)


@pytest.mark.parametrize(
    "bad", [V.astype(">f8"), V.astype(object), V.astype(np.float32), V.astype(np.complex128), V.astype(np.longdouble)]
)
def test_wrong_dtypes_are_dtype_errors(bad: Any) -> None:
    with pytest.raises(po.DTypeError) as failure:
        double(bad)
    assert isinstance(failure.value, TypeError)


def test_wrong_ranks_and_counts_are_errors_of_a_call() -> None:
    with pytest.raises((po.ArgumentError, po.ShapeError)):
        double(X.astype(float))
    for bad in ((), (V, V)):
        with pytest.raises((po.ArgumentError, TypeError)):
            double(*bad)
    with pytest.raises((po.ArgumentError, TypeError)):
        double(z=V)


def test_keywords_defaults_and_keyword_only_parameters_work() -> None:
    assert_array_equal(axpy(V, V), 3 * V)
    assert_array_equal(axpy(y=V, x=V, alpha=3), 4 * V)
    for _ in range(2):
        with pytest.raises(po.ArgumentError):
            axpy(V, V, 3)


def test_positional_only_parameters_are_not_keywords() -> None:
    @po.op
    def f(x: f64[N], /):
        return x + 1

    assert_array_equal(f(V), V + 1)
    for _ in range(2):
        with pytest.raises(po.ArgumentError):
            f(x=V)


class Model:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    @po.op
    def scaled(self, x: f64[N]):
        return x * self.factor


def test_methods_are_ops() -> None:
    assert_array_equal(Model(3).scaled(V), 3 * V)
    assert_array_equal(Model(5).scaled(V), 5 * V)


# --- out= -------------------------------------------------------------------------------------------------------


def test_out_must_fit() -> None:
    for bad in (np.empty(8), np.empty((9, 1))):
        with pytest.raises(po.ShapeError):
            double(V, out=bad)
    for other in (np.float32, np.int64):
        with pytest.raises(po.DTypeError):
            double(V, out=np.empty(9, other))
    frozen = np.empty(9)
    frozen.flags.writeable = False
    with pytest.raises(po.ArgumentError):
        double(V, out=frozen)
    with pytest.raises((po.ArgumentError, po.DTypeError)):
        double(V, out=[0.0] * 9)


def test_out_of_a_dynamic_op_must_fit_where_the_kernel_is_known_too() -> None:
    @po.op(dynamic=True)
    def twice(x: f64[M, N]):
        y = po.tensor("y")
        y[i, j] = 2 * x[i, j]
        return y

    x, fitting = np.ones((10, 12)), np.zeros((12, 10)).T
    assert twice(x, out=fitting) is fitting
    for bad in (np.zeros(50)[::2], np.zeros((10, 12, 2))[..., ::2], np.zeros((12, 20)).T, np.zeros(())):
        with pytest.raises(po.ShapeError):
            twice(x, out=bad)
    with pytest.raises(po.DTypeError):
        twice(x, out=np.zeros((12, 10), np.float32).T)
    with po.strict_checks(), pytest.raises(po.DTypeError):
        twice(x, out=np.zeros((12, 10), np.int64).T)
    assert_array_equal(fitting, 2 * x)


@pytest.mark.parametrize("op", [double, reverse, running_sum])
def test_out_may_be_the_input(op: Any) -> None:
    wanted = op(V)
    for _ in range(3):
        x = V.copy()
        assert op(x, out=x) is x
        assert_array_equal(x, wanted)


@pytest.mark.parametrize("op", [double, reverse, running_sum])
@pytest.mark.parametrize("shift", [-3, -1, 1, 4])
def test_out_may_overlap_the_input(op: Any, shift: int) -> None:
    for step in (1, -1):
        memory = RNG.standard_normal(30)
        x = memory[10:19][::step]
        out = memory[10 + shift : 19 + shift]
        wanted = op(x.copy())
        op(x, out=out)
        assert_array_equal(out, wanted)


def test_out_may_be_strided() -> None:
    memory = np.zeros(30)
    double(V, out=memory[2:20:2])
    assert_array_equal(memory[2:20:2], 2 * V)
    assert memory[3::2].any() == False and memory[20:].any() == False  # noqa: E712
    double(V, out=memory[8::-1])
    assert_array_equal(memory[8::-1], 2 * V)


def test_out_with_overlapping_elements_is_refused() -> None:
    with pytest.raises(po.ArgumentError):
        double(V, out=np.lib.stride_tricks.as_strided(np.zeros(9), (9,), (0,)))


def test_out_of_several_results_has_their_structure() -> None:
    @po.op
    def f(x: f64[N]):
        return x + 1, {"a": x - 1}

    a, b = np.empty(9), np.empty(9)
    f(V, out=(a, {"a": b}))
    assert_array_equal(a, V + 1)
    assert_array_equal(b, V - 1)
    with pytest.raises(po.ArgumentError):
        f(V, out=a)
    x = V.copy()
    f(x, out=(x, {"a": np.empty(9)}))
    assert_array_equal(x, V + 1)


def test_one_array_for_two_results_is_refused() -> None:
    @po.op
    def f(x: f64[N]):
        return x + 1, x - 1

    same = np.empty(9)
    with pytest.raises(po.ArgumentError):
        f(V, out=(same, same))


def test_results_are_new_arrays_each_time() -> None:
    first = double(V)
    second = double(V)
    assert not np.shares_memory(first, second)
    result = po.op(lambda x: x)(V)
    assert not np.shares_memory(result, V)
    assert_array_equal(result, V)


def test_inputs_are_never_written() -> None:
    x = V.copy()
    x.flags.writeable = False
    double(x), running_sum(x)
    assert_array_equal(x, V)


# --- targets, threads, determinism --------------------------------------------------------------------------------


def test_the_cpu_is_a_target_and_cuda_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_array_equal(double.on("cpu")(V), 2 * V)
    for call in (lambda: double.on("cuda")(V), lambda: po.op(target="cuda")(double.__wrapped__)(V)):
        with pytest.raises(po.BackendUnavailable) as failure:
            call()
        assert "pycuda" in str(failure.value)
    monkeypatch.setenv("POLYOPT_TARGET", "cuda")
    with pytest.raises(po.BackendUnavailable):
        po.op(double.__wrapped__)(V)


@pytest.mark.parametrize("n", [1, 2, 3, 7])
def test_the_thread_count_changes_no_bit(n: int) -> None:
    @po.op
    def f(x: f32[M, N]):
        return po.sum(po.exp(x)), po.softmax(x, axis=-1)

    x = RNG.standard_normal((300, 1000)).astype(np.float32)
    before = f(x)
    po.set_num_threads(n)
    try:
        after = f(x)
    finally:
        po.set_num_threads(po.num_threads() if hasattr(po, "num_threads") else os.cpu_count() or 1)
    for a, b in zip(before, after):
        assert a.tobytes() == b.tobytes()


def test_a_wrong_number_of_threads_is_an_argument_error() -> None:
    for bad in (0, -1, 1.5, "two"):
        with pytest.raises(po.ArgumentError):
            po.set_num_threads(bad)


def test_a_kernel_runs_in_several_threads_at_once() -> None:
    x = RNG.standard_normal((150, 20)).astype(np.float32)
    wanted = matmul(x, W)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(50):
            if matmul(x, W).tobytes() != wanted.tobytes():
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_compiling_ahead_by_sizes_and_by_arrays(tmp_path: Path) -> None:
    op = po.op(matmul.__wrapped__)
    assert op.compile(M=8, N=9, K=10) is op
    op.compile(X, W)
    assert_allclose(op(X, W), X @ W, rtol=1e-4, atol=1e-5)


def test_kernels_are_found_in_the_disk_cache(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy as np, polyopt as po\n"
        "from polyopt import f64\n"
        "i = po.index('i')\n"
        "@po.op\n"
        "def double(x: f64['N']):\n"
        "    y = po.tensor('y')\n"
        "    y[i] = 2 * x[i]\n"
        "    return y\n"
        "print(double(np.arange(5.0)).tolist(), 'islpy' in sys.modules)\n"
    )
    environment = {**os.environ, "POLYOPT_CACHE_DIR": str(tmp_path / "cache")}
    outputs = [
        subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert outputs == ["[0.0, 2.0, 4.0, 6.0, 8.0] True\n", "[0.0, 2.0, 4.0, 6.0, 8.0] False\n"]


# --- einsum outside an op -----------------------------------------------------------------------------------------

A, B, C = RNG.standard_normal((4, 5)), RNG.standard_normal((5, 6)), RNG.standard_normal((4, 6))
S = RNG.standard_normal((3, 4, 4))


@pytest.mark.parametrize(
    ("spec", "arrays"),
    [
        ("ij,jk->ik", (A, B)),
        ("ij,jk", (A, B)),
        ("ji", (A,)),
        ("ij->", (A,)),
        ("bii->bi", (S,)),
        ("bii", (S,)),
        ("...ij->...ji", (S,)),
        ("...ij,jk->...ik", (S, A)),
        ("ij,jk,ik->", (A, B, C)),
        ("ij,jk,ik->i", (A, B, C)),
        (" ij , jk -> ik ", (A, B)),
        ("i,j->ij", (A[0], B[0])),
        ("ij,ij->ij", (A, A)),
    ],
)
def test_einsum_is_a_drop_in_for_numpys(spec: str, arrays: tuple[Any, ...]) -> None:
    wanted = np.einsum(spec, *arrays)
    result = po.einsum(spec, *arrays)
    assert type(result) is type(wanted) or np.ndim(wanted) == 0
    assert result.dtype == wanted.dtype and np.shape(result) == np.shape(wanted)
    assert_allclose(result, wanted)
    assert not any(np.shares_memory(result, array) for array in arrays)
    for optimize in (True, False, "greedy", "optimal"):
        assert_allclose(po.einsum(spec, *arrays, optimize=optimize), wanted)
    out = np.empty_like(wanted)
    assert po.einsum(spec, *arrays, out=out) is out
    assert_allclose(out, wanted)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint16, np.int32, np.float16, np.float32])
def test_einsum_has_numpys_dtype(dtype: Any) -> None:
    x = RNG.integers(0, 2, (4, 4)).astype(dtype)
    wanted = np.einsum("ij,jk->ik", x, x)
    result = po.einsum("ij,jk->ik", x, x)
    assert result.dtype == wanted.dtype
    assert_array_equal(result, wanted)


def test_einsum_takes_sublists_dtype_order_and_casting() -> None:
    assert_allclose(po.einsum(A, [0, 1], B, [1, 2], [0, 2]), A @ B)
    assert_allclose(po.einsum(A, [0, 1], B, [1, 2]), A @ B)
    whole = np.arange(12).reshape(3, 4)
    assert po.einsum("ij->i", whole, dtype=np.float64).dtype == np.float64
    assert po.einsum("ij->ji", A, order="F").flags.f_contiguous
    with pytest.raises(TypeError):
        po.einsum("ij->i", A, dtype=np.int32)
    assert po.einsum("ij->i", A, dtype=np.int32, casting="unsafe").dtype == np.int32


@pytest.mark.parametrize("dtype", [np.complex128, np.longdouble, object])
def test_einsum_refuses_what_has_no_dtype_here(dtype: Any) -> None:
    with pytest.raises(po.DTypeError):
        po.einsum("ij->i", A.astype(dtype))


@pytest.mark.parametrize("bad", ["ij,jk", "ij->k", "ijk->i", "iJ->>", "ij->ii"])
def test_a_wrong_einsum_is_an_error_as_in_numpy(bad: str) -> None:
    with pytest.raises(ValueError):
        np.einsum(bad, A)
    with pytest.raises(po.PolyoptError) as failure:
        po.einsum(bad, A)
    assert isinstance(failure.value, ValueError)


def is_left_out(value: object) -> bool:
    return value is None


@po.op
def biased(x: f64[N], b: f64[N] | None = None, *, alpha: f64 = None, times: int | None = None):
    y = po.tensor("y")
    scaled = x[i] if is_left_out(alpha) else alpha * x[i]
    y[i] = (scaled if is_left_out(b) else scaled + b[i]) * (1 if times is None else times)
    return y


def test_a_parameter_that_is_none_is_absent_and_given_is_what_its_annotation_says(polyopt_check) -> None:
    x = np.arange(5.0)
    out = np.empty(5)
    for _ in range(4):
        assert_array_equal(biased(x), x)
        assert_array_equal(biased(x, None, times=None), x)
        assert_array_equal(biased(x, x), 2 * x)
        assert_array_equal(biased(x, b=x, alpha=3.0, times=2), 8 * x)
        assert_array_equal(biased(x, alpha=2), 2 * x)
        assert_array_equal(biased(x, None, out=out), x)
        assert_array_equal(biased(x, x, out=out), 2 * x)
    assert_array_equal(biased.reference(x), x)
    assert_array_equal(biased.reference(x, x, times=3), 6 * x)
    assert biased.lower(N=5).program.parameters == ("x",)
    assert biased.lower(x, x).program.parameters == ("x", "b")
    assert "y[i] = x[i]" in str(biased.compile(N=7).compile(x, x))
    polyopt_check(biased, N=7)
    polyopt_check(biased, x, x, alpha=2.0)
    with pytest.raises(po.DTypeError):
        biased(x, x.astype(np.float32))
    with pytest.raises(po.ShapeError):
        biased(x, x[:1])


def test_an_op_in_an_op_may_be_given_none() -> None:
    @po.op
    def twice(x: f64[N], b: f64[N] = None):
        return biased(x) + biased(x, None) + biased(x, b)

    x = np.arange(5.0)
    assert_array_equal(twice(x), 3 * x)
    assert_array_equal(twice(x, x), 4 * x)


def test_none_for_a_tensor_that_must_be_given_says_how_to_allow_it() -> None:
    with pytest.raises(po.ArgumentError, match="NoneType") as caught:
        double(None)
    assert "| None" in caught.value.fix


@po.op
def shifted(x: f64[N], /, b: f64[N], *, by: f64 = 1.0):
    return x + b + by


@pytest.mark.parametrize(
    ("positions", "names"), [(1, ()), (3, ()), (2, ("b",)), (2, ("c",)), (0, ("x", "b")), (0, ()), (1, ("b", "c"))]
)
def test_a_call_of_the_wrong_form_is_a_type_error_as_in_python(positions: int, names: tuple[str, ...]) -> None:
    x = np.arange(5.0)
    args = (x,) * positions
    kwargs: dict[str, Any] = dict.fromkeys(names, x)

    @po.op
    def calls(y: f64[N]):
        return shifted(*(y,) * positions, **dict.fromkeys(names, y))

    for call in (lambda: shifted(*args, **kwargs), lambda: shifted.reference(*args, **kwargs), lambda: calls(x)):
        with pytest.raises(TypeError) as caught:
            call()
        assert isinstance(caught.value, po.ArgumentError) and isinstance(caught.value, ValueError)
        assert "shifted(x: f64[N], /, b: f64[N], *, by: f64" in caught.value.fix


@pytest.mark.parametrize("annotation", [np.ndarray, NDArray[np.float64], np.ndarray | None])
@pytest.mark.parametrize("value", [[1.0, 2.0], (1.0, 2.0), "text"])
def test_what_is_annotated_as_an_array_takes_no_list(annotation: Any, value: object) -> None:
    """It was a value known when compiling: twice a list is a longer one."""

    def twice(x):
        return x * 2

    twice.__annotations__["x"] = annotation
    op = po.op(twice)
    with pytest.raises(po.ArgumentError, match=r"argument 'x' is a \w+, which is no array"):
        op(value)
    assert_array_equal(op(np.array([1.0, 2.0])), [2, 4])
    assert op(1.5) == 3


def test_a_list_for_a_parameter_without_annotation_is_known_when_compiling() -> None:
    @po.op
    def weighted(x: f64[N], weights):
        return sum((w * x for w in weights), 0 * x)

    assert_array_equal(weighted(np.ones(3), [1, 2]), [3, 3, 3])
    assert_array_equal(weighted(np.ones(3), (5,)), [5, 5, 5])
