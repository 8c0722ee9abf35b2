"""Operators as a user calls them."""

from __future__ import annotations

import copy
import inspect
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pytest

import polyopt as po
from polyopt import api, bounded, compilation, f32, f64, i32, settings, strict, u8
from polyopt.errors import ArgumentError, BackendUnavailable, BoundsError, DTypeError, ShapeError

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")


class Scaled:
    def __init__(self, factor: float) -> None:
        self.factor = factor

    @po.op
    def times(self, x: f64[N]):
        return self.factor * x


@po.op
def matmul(x: f32[M, K], w: f32[K, N]):
    """The product of two matrices."""
    y = po.tensor("y")
    y[i, j] += x[i, k] * w[k, j]
    return y


@po.op
def scale(x: f64[N], alpha: f64, beta: f64 = 1.0):
    y = po.tensor("y")
    y[i] = alpha * x[i] + beta
    return y


@po.op
def power(x: f64[N], exponent: int = 2):
    return po.prod(po.stack([x] * exponent, axis=0), axis=0)


@po.op
def add(x, y):
    return x + y


@po.op
def reverse(x: f64[N]):
    y = po.tensor("y")
    y[i] = x[N - 1 - i]
    return y


@po.op
def double(x: f64[N]):
    y = po.tensor("y")
    y[i] = 2 * x[i]
    return y


@po.op
def gather(table: f64[N], ids: i32[M]):
    y = po.tensor("y")
    y[i] = table[ids[i]]
    return y


class Parts(NamedTuple):
    sum: Any
    difference: Any


@po.op
def parts(x: f64[N], y: f64[N]):
    return Parts(x + y, x - y)


@po.op
def both(x: f64[N], y: f64[N]):
    return {"sum": x + y, "more": (x * y, x - y)}


X = np.arange(12, dtype=np.float32).reshape(3, 4)
W = np.arange(20, dtype=np.float32).reshape(4, 5)
V = np.arange(7.0)
SLOPPY: Any = "sloppy"


# --- calls ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (3, 2, 0), (1, 1, 1), (2, 3, 5), (33, 17, 65)])
def test_a_call_computes_and_allocates(shape: tuple[int, int, int]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape[:2], np.float32)
    w = rng.standard_normal(shape[1:], np.float32)
    for _ in range(3):
        y = matmul(x, w)
        assert y.dtype == np.float32
        np.testing.assert_allclose(y, x @ w, rtol=1e-4, atol=1e-4)


LAYOUTS = {
    "contiguous": lambda a: a,
    "transposed": lambda a: np.ascontiguousarray(a.T).T,
    "strided": lambda a: np.repeat(np.repeat(a, 2, 0), 3, 1)[::2, ::3],
    "negative": lambda a: np.ascontiguousarray(a[::-1, ::-1])[::-1, ::-1],
    "broadcast": lambda a: np.broadcast_to(a[:1], a.shape),
    "misaligned": lambda a: np.frombuffer(b"\0" + a.tobytes(), np.uint8)[1:].view(a.dtype).reshape(a.shape),
}


@pytest.mark.parametrize("left", LAYOUTS)
@pytest.mark.parametrize("right", LAYOUTS)
def test_arrays_of_any_layout_are_taken(left: str, right: str) -> None:
    x, w = LAYOUTS[left](X), LAYOUTS[right](W)
    for _ in range(2):
        np.testing.assert_allclose(matmul(x, w), np.asarray(x) @ np.asarray(w))


def test_keywords_defaults_and_scalars_work_as_in_python() -> None:
    expected = 3 * V + 1
    assert (scale(V, 3.0) == expected).all()
    assert (scale(V, 3, 1) == expected).all()
    assert (scale(alpha=np.float64(3), x=V) == expected).all()
    assert (scale(V, beta=2.0, alpha=1) == V + 2).all()
    assert (matmul(w=W, x=X) == X @ W).all()


def test_a_compile_time_parameter_decides_the_equations() -> None:
    np.testing.assert_allclose(power(V), V**2)
    np.testing.assert_allclose(power(V, 3), V**3)
    np.testing.assert_allclose(power(V, exponent=1), V)


@pytest.mark.parametrize("dtype", ["f4", "f8", "i4", "u1", "?"])
def test_parameters_without_annotation_follow_the_arguments(dtype: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(dtype)
    if dtype == "?":
        return
    for left, right in ((x, x), (x, x[0]), (x[:, :1], x)):
        found, expected = add(left, right), left + right
        assert found.dtype == expected.dtype
        assert (found == expected).all()


def test_results_come_in_the_functions_structure() -> None:
    y = np.ones(7)
    found = parts(V, y)
    assert isinstance(found, Parts)
    assert (found.difference == V - y).all()
    mixed = both(V, y)
    assert list(mixed) == ["sum", "more"]
    assert (mixed["more"][1] == V - y).all()


def test_methods_take_their_instance() -> None:
    class Model:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        @po.op
        def apply(self, x: f64[N]):
            y = po.tensor("y")
            y[i] = self.factor * x[i]
            return y

    model, other = Model(3.0), Model(5.0)
    assert (model.apply(V) == 3 * V).all()
    assert (other.apply(V) == 5 * V).all()
    assert (model.apply.reference(V) == 3 * V).all()
    assert "3.0" in str(model.apply.lower(N=4).program) or "3" in str(model.apply.lower(V).program)
    assert (Model.apply(model, V) == 3 * V).all()


def test_an_op_keeps_what_its_function_is() -> None:
    assert matmul.__name__ == "matmul"
    assert matmul.__doc__ == "The product of two matrices."
    assert list(inspect.signature(matmul).parameters) == ["x", "w"]
    assert pickle.loads(pickle.dumps(matmul)) is matmul  # noqa: S301  # our own bytes
    assert "matmul(x: f32[M, K], w: f32[K, N])" in str(matmul)
    assert "y[i, j] += x[i, k] * w[k, j]" in str(matmul)
    assert repr(matmul) == "<op matmul(x: f32[M, K], w: f32[K, N])>"
    assert str(add).startswith("add(")


def test_sizes_by_name_may_be_numbers_of_numpy() -> None:
    sizes: dict[str, Any] = {name: np.int64(size) for name, size in (("M", 2), ("K", 3), ("N", 4))}
    assert str(matmul.lower(**sizes).loops) == str(matmul.lower(M=2, K=3, N=4).loops)
    assert matmul.lower(**sizes).module.text == matmul.lower(M=2, K=3, N=4).module.text
    matmul.compile(**sizes)
    with pytest.raises(po.ArgumentError, match="size 'M' cannot be"):
        matmul.lower(M=np.float64(2))


def test_an_op_for_another_target_is_pickled_and_copied() -> None:
    on = matmul.on("cpu")
    with pytest.raises(po.ArgumentError, match="target cannot be"):
        matmul.on(["cpu"])  # type: ignore[arg-type]
    assert pickle.loads(pickle.dumps(on)) is on  # noqa: S301
    assert pickle.loads(pickle.dumps(on.on("avx2"))) is on.on("avx2")  # noqa: S301
    assert copy.copy(on) is on and copy.deepcopy([on, matmul]) == [on, matmul]
    bound = pickle.loads(pickle.dumps(Scaled(3.0).times.on("cpu")))  # noqa: S301
    assert (bound(V) == 3 * V).all()


def test_a_call_inside_an_op_is_inlined() -> None:
    @po.op
    def twice(x: f64[N]):
        return double(double(x))

    assert (twice(V) == 4 * V).all()


def test_the_reference_evaluates_in_float64() -> None:
    found = matmul.reference(X, W)
    assert found.dtype == np.float64
    assert (found == X.astype(np.float64) @ W).all()
    assert matmul.reference(X, W, numerics="strict").dtype == np.float32


# --- out= -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["contiguous", "transposed", "strided", "negative"])
def test_out_of_any_layout_is_filled_and_returned(layout: str) -> None:
    out = LAYOUTS[layout](np.full((3, 5), 7, np.float32)).copy(order="K")
    out = LAYOUTS[layout](out)
    for _ in range(2):
        assert matmul(X, W, out=out) is out
        assert (out == X @ W).all()


def test_out_in_the_functions_structure() -> None:
    y = np.ones(7)
    outs = Parts(np.zeros(7), np.zeros(7))
    assert parts(V, y, out=outs) is outs
    assert (outs.sum == V + y).all()
    named = {"more": (np.zeros(7), np.zeros(7)), "sum": np.zeros(7)}
    both(V, y, out=named)
    assert (named["more"][0] == V * y).all() and (named["sum"] == V + y).all()
    with pytest.raises(ArgumentError, match="tuple of 2"):
        parts(V, y, out=np.zeros(7))
    with pytest.raises(ArgumentError, match="keys 'sum', 'more'"):
        both(V, y, out={"sum": np.zeros(7)})
    with pytest.raises(ArgumentError, match="share memory"):
        parts(V, y, out=(outs.sum, outs.sum))


def test_out_may_be_an_input_or_overlap_one() -> None:
    for op, expected in ((double, lambda a: 2 * a), (reverse, lambda a: a[::-1].copy())):
        memory = np.arange(12.0)
        for inputs, out in (
            (memory, memory),
            (memory[1:], memory[:-1]),
            (memory[:-1], memory[1:]),
            (memory, memory[::-1]),
            (memory[::2], memory[1::2]),
        ):
            memory[:] = np.arange(12.0)
            wanted = expected(inputs.copy())
            op(inputs, out=out)
            assert (out == wanted).all()


def test_an_unfit_out_is_refused_and_not_touched() -> None:
    frozen = np.zeros((3, 5), np.float32)
    frozen.flags.writeable = False
    for out, error in (
        (frozen, ArgumentError),
        (np.zeros((3, 5)), DTypeError),
        (np.zeros((3, 4), np.float32), ShapeError),
        (np.zeros((5, 3), np.float32).T[:2], ShapeError),
        (np.zeros(15, np.float32), ShapeError),
        (np.zeros((3, 5), ">f4"), DTypeError),
        (np.broadcast_to(np.zeros(5, np.float32), (3, 5)), ArgumentError),
        ([[0.0]], ArgumentError),
    ):
        with pytest.raises(error):
            matmul(X, W, out=out)
        assert not np.any(out)


# --- mistakes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: matmul(X), ArgumentError, "missing a required argument: 'w'"),
        (lambda: matmul(X, W, X), ArgumentError, "too many"),
        (lambda: matmul(X, W, z=1), ArgumentError, "'z'"),
        (lambda: matmul(X, w=W, x=X), ArgumentError, "multiple values"),
        (lambda: matmul(X, W.astype("f8")), DTypeError, "argument 'w' has dtype float64"),
        (lambda: matmul(X, W[0]), ShapeError, "'w' has 1 dimensions"),
        (lambda: matmul(X, W[:3]), ShapeError, "w.shape"),
        (lambda: matmul(X, W.tolist()), ArgumentError, "'w' is a list"),
        (lambda: scale(V, "3"), ArgumentError, "'alpha'"),
        (lambda: scale(V, V), ArgumentError, "scalar 'alpha'"),
        (lambda: matmul.lower(Q=3), ArgumentError, "no size or compile-time parameter 'Q'"),
        (lambda: matmul.lower(M=-1), ArgumentError, "size 'M'"),
        (lambda: matmul.lower(M=1.5), ArgumentError, "size 'M'"),
        (lambda: add.lower(N=3), ArgumentError, "parameter 'x' are not known"),
        (lambda: matmul.on("tpu"), ArgumentError, "no target 'tpu'"),
        (lambda: po.op(numerics=SLOPPY)(lambda x: x), ArgumentError, "numerics"),
        (lambda: po.op(dynamic=["Q"])(matmul.__wrapped__)(X, W), ArgumentError, "no size 'Q'"),
        (lambda: matmul.on("cuda")(X, W), BackendUnavailable, "cuda"),
    ],
)
def test_a_mistake_is_named(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_an_index_out_of_range_is_an_error_and_the_next_call_works() -> None:
    table, ids = np.arange(5.0), np.array([0, 4, 2], np.int32)
    assert (gather(table, ids) == table[ids]).all()
    for bad in (5, -1, 1 << 30):
        with pytest.raises(BoundsError) as caught:
            gather(table, np.array([0, bad, 2], np.int32))
        assert caught.value.facts["index"] == bad
        assert caught.value.where is not None and caught.value.where.file == __file__
    assert (gather(table, ids) == table[ids]).all()


# --- kinds of arrays --------------------------------------------------------------------------------------------


def test_torch_in_torch_out() -> None:
    torch = pytest.importorskip("torch")
    x, w = torch.from_numpy(X.copy()), torch.from_numpy(W.copy())
    y = matmul(x, w)
    assert isinstance(y, torch.Tensor)
    assert torch.equal(y, x @ w)
    assert torch.equal(matmul(x.T.contiguous().T, w), x @ w)
    out = torch.zeros(3, 5)
    assert matmul(x, w, out=out) is out
    assert torch.equal(out, x @ w)
    with pytest.raises(ArgumentError, match="detach"):
        matmul(x.requires_grad_(), w)


class Foreign:
    """An array of another library, with DLPack alone."""

    def __init__(self, array: np.ndarray, device: int = 1) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0


def test_dlpack_arrays_are_taken() -> None:
    assert (matmul(Foreign(X), W) == X @ W).all()


def test_device_arrays_want_the_device() -> None:
    with pytest.raises(BackendUnavailable):
        matmul(Foreign(X, device=2), W)
    with pytest.raises(ArgumentError, match="GPU"):
        matmul.on("cpu")(Foreign(X, device=2), W)


# --- options ----------------------------------------------------------------------------------------------------


def test_one_dynamic_kernel_serves_every_size() -> None:
    op = po.op(dynamic=True)(matmul.__wrapped__)
    kernels = set()
    for m, kk, n in ((3, 4, 5), (1, 1, 1), (17, 33, 9), (0, 2, 2), (64, 64, 64)):
        x, w = np.ones((m, kk), np.float32), np.ones((kk, n), np.float32)
        np.testing.assert_allclose(op(x, w), x @ w)
        variant = op._variants[next(reversed(op._variants))]._variant
        assert variant is not None
        kernels.add(variant.call._bound.kernel.address)
    assert len(kernels) == 1


def test_some_sizes_may_stay_dynamic() -> None:
    op = po.op(dynamic="M")(matmul.__wrapped__)
    for m in (1, 5, 40):
        x = np.ones((m, 4), np.float32)
        np.testing.assert_allclose(op(x, W), x @ W)


@pytest.mark.parametrize("numerics", ["default", "strict", "fast"])
def test_numerics(numerics: Any) -> None:
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((9, 70), np.float32), rng.standard_normal((70, 6), np.float32)
    op = po.op(numerics=numerics)(matmul.__wrapped__)
    np.testing.assert_allclose(op(x, w), x @ w, rtol=1e-4, atol=1e-4)
    if numerics == "strict":
        assert np.array_equal(op(x, w), op.reference(x, w, numerics="strict"))


@pytest.mark.parametrize("target", ["cpu", "generic", "avx2", "avx512"])
def test_targets(target: str) -> None:
    op = matmul.on(target)
    assert op is matmul.on(target)
    try:
        np.testing.assert_allclose(op(X, W), X @ W)
    except BackendUnavailable as error:
        assert target in str(error)
    assert op.lower(M=3, N=5, K=4).source("asm")


def test_the_environment_chooses_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYOPT_TARGET", "cuda")
    with pytest.raises(BackendUnavailable):
        po.op(matmul.__wrapped__)(X, W)


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_the_thread_count_changes_no_bit(threads: int) -> None:
    rng = np.random.default_rng(2)
    x, w = rng.standard_normal((64, 100), np.float32), rng.standard_normal((100, 80), np.float32)
    before = matmul(x, w)
    po.set_num_threads(threads)
    try:
        assert np.array_equal(matmul(x, w), before)
    finally:
        po.set_num_threads(api.pool.usable_cores())


@pytest.mark.parametrize("dynamic", [False, True])
def test_strict_checks_enumerate_a_kernel_that_is_known_already(dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Any] = []
    check = strict.check

    def noted(lowering: Any, sizes: Any, inputs: Any) -> None:
        checked.append(sizes)
        check(lowering, sizes, inputs)

    monkeypatch.setattr(strict, "check", noted)
    op = po.op(dynamic=dynamic)(matmul.__wrapped__)
    assert (op(X, W) == X @ W).all()
    assert checked == []
    with po.strict_checks():
        assert settings.current().verify == 2
        assert (op(X, W) == X @ W).all()
        assert (po.op(gather.__wrapped__)(V, np.array([3, 1], np.int32)) == V[[3, 1]]).all()
    assert checked == [{"M": 3, "K": 4, "N": 5}, {"N": 7, "M": 2}]


# --- compiling --------------------------------------------------------------------------------------------------


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the programs that are compiled."""
    names: list[str] = []
    compile_ = compilation._compile

    def count(problem: Any, *rest: Any) -> Any:
        names.append(problem.program.name)
        return compile_(problem, *rest)

    monkeypatch.setattr(compilation, "_compile", count)
    yield names


def fresh() -> api.Op:
    """An op with a name, and so a program, that no other test has."""

    def made(x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i] + 17
        return y

    made.__name__ = f"made{os.urandom(4).hex()}"
    return po.op(made)


def test_threads_that_want_the_same_kernel_compile_it_once(counted: list[str]) -> None:
    op = fresh()
    results: list[Any] = []
    barrier = threading.Barrier(8)

    def call() -> None:
        barrier.wait()
        results.extend(op(V) for _ in range(20))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 160
    assert all((result == V + 17).all() for result in results)
    assert len(counted) == 1


def test_compile_ahead_leaves_nothing_to_compile(counted: list[str]) -> None:
    op = fresh()
    assert op.compile(N=7) is op
    assert (op(V) == V + 17).all()
    assert len(counted) == 1
    op.compile(np.zeros(9))
    op(np.zeros(9))
    assert len(counted) == 2


def test_an_error_while_compiling_is_raised_again_at_the_next_call() -> None:
    @po.op
    def bad(x: f64[N]):
        y = po.tensor("y")
        y[i] = x[i]
        y[i] = x[i] + 1
        return y

    for _ in range(2):
        with pytest.raises(po.DefinitionError):
            bad(V)


def test_lowering_shows_the_stages() -> None:
    lowering = matmul.lower(M=3, N=5, K=4)
    assert "y[i, j]" in str(lowering.program) or lowering.program.results == ("y",)
    assert "for" in str(lowering)
    assert "define" in lowering.source("llvm")
    assert str(lowering.report())
    lowering.verify()
    assert matmul.lower(X, W).program == lowering.program
    assert matmul.lower().program.sizes


SECOND_PROCESS = """
import sys
import numpy as np
import polyopt as po
from polyopt import f64
N, = po.sizes("N")
i = po.index("i")

@po.op
def triple(x: f64[N]):
    y = po.tensor("y")
    y[i] = 3 * x[i]
    return y

assert (triple(np.arange(7.0)) == 3 * np.arange(7.0)).all()
heavy = [name for name in ("islpy", "sympy", "llvmlite", "polyopt.poly", "polyopt.pipeline") if name in sys.modules]
print(",".join(heavy) or "light")
"""


def test_a_process_whose_kernels_are_cached_loads_no_compiler() -> None:
    outputs = [
        subprocess.run([sys.executable, "-c", SECOND_PROCESS], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert outputs[0].strip() != "light"
    assert outputs[1].strip() == "light"


def test_forked_children_call_and_compile() -> None:
    matmul(X, W)
    for _ in range(5):
        child = os.fork()
        if child == 0:
            fine = (matmul(X, W) == X @ W).all() and (fresh()(V) == V + 17).all()
            os._exit(0 if fine else 1)
        assert os.waitpid(child, 0)[1] == 0


def test_the_table_of_known_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MOST", 3)
    op = po.op(dynamic=True)(double.__wrapped__)
    for count in range(1, 8):
        assert (op(np.ones(count)) == 2).all()
    assert len(op._hot) <= 3 and len(op._variants) <= 3


@pytest.mark.parametrize("is_quick", [True, False])
def test_a_call_like_an_earlier_one_looks_at_what_differs(is_quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_quick:
        monkeypatch.setattr(compilation, "quick_entries", lambda: None)
    op = po.op(matmul.__wrapped__)
    for _ in range(3):
        np.testing.assert_allclose(op(X, W), X @ W)
        np.testing.assert_allclose(op(w=W, x=X), X @ W)
        np.testing.assert_allclose(op(X[::-1], W), X[::-1] @ W)
        np.testing.assert_allclose(op(LAYOUTS["misaligned"](X), W), X @ W)
        out = np.zeros((3, 5), np.float32)
        np.testing.assert_allclose(op(X, W, out=out), X @ W)
        for bad in (np.ma.masked_array(X), X.astype("f8"), X.astype(">f4"), [[1.0]]):
            with pytest.raises(po.PolyoptError):
                op(bad, W)
    assert (op._ways.plain is not None) == is_quick


def test_scalars_and_constants_are_told_apart_in_later_calls() -> None:
    for _ in range(3):
        for alpha in (2, 2.5, True, np.float64(0.5)):
            assert (scale(V, alpha) == alpha * V + 1).all()
        for exponent in (1, 2, 3):
            np.testing.assert_allclose(power(V, exponent), V**exponent)
        with pytest.raises(ArgumentError):
            scale(V, "2")
        with pytest.raises(ArgumentError):
            matmul(X, W, X)


def test_a_sum_of_hundreds_of_terms_compiles_and_one_of_thousands_is_refused() -> None:
    def many(terms: int) -> po.Op:
        @po.op
        def op(x: f32[N]) -> object:
            y = po.tensor("y")
            value = x[i]
            for d in range(terms):
                value = value + x.pad(0)[i - d % 3]
            y[i] = value
            return y

        return op

    x = np.arange(5, dtype=np.float32)
    shifted = [np.concatenate([np.zeros(d, np.float32), x[: 5 - d]]) for d in range(3)]
    np.testing.assert_array_equal(many(300)(x), x + 100 * sum(shifted))
    with pytest.raises(po.DefinitionError, match="nested too deeply"):
        many(3000)(x)


@pytest.mark.parametrize("dynamic", [False, True])
def test_arrays_of_more_elements_than_32_bits_count(dynamic: bool) -> None:
    """Memory that nothing touches is not there, so the arrays cost a few pages."""
    last = po.index("last", extent=4)

    @po.op(dynamic=dynamic)
    def end(x: u8[N]):
        y = po.tensor("y", shape=(4,))
        y[last] = x[N - 4 + last]
        return y

    @po.op(dynamic=dynamic)
    def corner(x: u8[M, N]):
        y = po.tensor("y", shape=(4, 4))
        row = po.index("row", extent=4)
        y[row, last] = x[M - 4 + row, N - 4 + last]
        return y

    line, square = np.zeros(2**31 + 16, np.uint8), np.zeros((2**16 + 1, 2**16 + 8), np.uint8)
    line[-4:] = 1, 2, 3, 4
    square[-4:, -4:] = np.arange(16).reshape(4, 4)
    np.testing.assert_array_equal(end(line), [1, 2, 3, 4])
    np.testing.assert_array_equal(end(line[::-1]), 0)
    np.testing.assert_array_equal(corner(square), np.arange(16).reshape(4, 4))
    np.testing.assert_array_equal(corner(square.T), np.arange(16).reshape(4, 4).T)


def test_a_signal_handler_may_call_what_its_own_thread_is_compiling() -> None:
    prepared = api._Prepared()
    depth: list[None] = []

    def make() -> Any:
        depth.append(None)
        return prepared.get(make) if len(depth) == 1 else "made inside"

    assert prepared.get(make) == "made inside"


def test_a_reduction_of_the_users_own_over_nothing_is_called_as_they_call_it() -> None:
    @po.op
    def joined(x: u8[N]):
        y = po.tensor("y")
        y[i] = po.reduce(lambda a, b: a | b, x[j] + 0 * x[i], j, where=j < i)
        return y

    with pytest.raises(po.DefinitionError, match=r"po\.reduce over 'j' has nothing to reduce at i = 0") as caught:
        joined.lower(N=3).loops
    assert caught.value.why == "a po.reduce over nothing has no value"
    assert "custom" not in str(caught.value)
