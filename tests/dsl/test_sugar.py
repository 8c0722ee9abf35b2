"""Whole-tensor functions: each gives what NumPy gives, and is made of equations with readable names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import DefinitionError, ShapeError, f32, f64
from polyopt.dsl.recognise import NeedsSizes
from tests.dsl.tracing import equations, program

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")

RNG = np.random.default_rng(0)
X = RNG.standard_normal((5, 7))
B = RNG.standard_normal(7)
W = RNG.standard_normal((7, 4))
CUBE = RNG.standard_normal((3, 5, 7))


def leaves(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def assert_as_numpy(build: Callable[..., Any], numpy: Callable[..., Any], *arrays: Any) -> None:
    """The op `build` of unannotated parameters and the NumPy function give equal arrays of equal shape."""
    for got, expected in zip(leaves(po.op(build).reference(*arrays)), leaves(numpy(*arrays)), strict=True):
        assert np.shape(got) == np.shape(expected)
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def softmax(x: Any, axis: int) -> Any:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


@pytest.mark.parametrize(
    "build",
    [
        lambda x, b: (x + b) * 2 - x / 3,
        lambda x, b: x[:, None, 0] + b,
        lambda x, b: -x + 1.5 > b,
        lambda x, b: 2**x % 3,
        lambda x, b: (x // 0.5) @ b,
        lambda x, b: x.T.transpose(),
        lambda x, b: x.transpose(1, 0)[1],
        lambda x, b: x[-1] + x[0, -2] + b[-1],
        lambda x, b: x[::2, ::-1],
        lambda x, b: x[1:4, 2:-1],
        lambda x, b: x[:100, -3:],
        lambda x, b: x[3:1],
        lambda x, b: x[..., 1],
        lambda x, b: x[None, ..., None],
        lambda x, b: x[4:0:-2],
        lambda x, b: x.reshape(7, 5),
        lambda x, b: x.reshape(-1),
        lambda x, b: x.reshape((5, 7, 1)),
        lambda x, b: x.reshape(1, 5, -1)[0],
    ],
)
def test_works_on_whole_tensors_as_numpy_does(build: Callable[..., Any]) -> None:
    assert_as_numpy(build, build, X, B)


@pytest.mark.parametrize("axis", [None, 0, 1, -1, (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reduces_axes_as_numpy_does(axis: Any, keepdims: bool) -> None:
    names = ["sum", "prod", "max", "min", "mean"] + ([] if isinstance(axis, tuple) else ["argmax", "argmin"])

    def build(x: Any) -> Any:
        return tuple(getattr(po, name)(x, axis=axis, keepdims=keepdims) for name in names)

    def numpy(x: Any) -> Any:
        return tuple(getattr(np, name)(x, axis=axis, keepdims=keepdims) for name in names)

    assert_as_numpy(build, numpy, X)


def test_reductions_take_where_and_init() -> None:
    assert_as_numpy(
        lambda x: (po.sum(x, axis=0, where=x > 0), po.max(x, 1, init=0.5), po.any(x > 2), po.all(x > -9, axis=0)),
        lambda x: (x.sum(0, where=x > 0), np.maximum(x.max(1), 0.5), (x > 2).any(), (x > -9).all(0)),
        X,
    )


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_softmax(axis: int) -> None:
    assert_as_numpy(lambda x: po.softmax(x, axis=axis), lambda x: softmax(x, axis), X)


def test_softmax_is_three_equations_with_names() -> None:
    def op(x: f32[M, N]) -> object:
        return po.softmax(x)

    assert equations(op) == [
        "softmax_max[i] = max(x[i, j], j)",
        "softmax_sum[i] = sum(exp(x[i, j] - softmax_max[i]), j)",
        "softmax[i, j] = exp(x[i, j] - softmax_max[i]) / softmax_sum[i]",
    ]


@pytest.mark.parametrize("left", [B, X, CUBE], ids=["vector", "matrix", "stack"])
@pytest.mark.parametrize("right", [B, W, RNG.random((1, 7, 2)), RNG.random((4, 1, 7, 2))], ids=lambda a: str(a.ndim))
def test_matmul(left: Any, right: Any) -> None:
    assert_as_numpy(lambda a, b: a @ b, lambda a, b: a @ b, left, right)


def test_concatenate_and_stack() -> None:
    def build(library: Any) -> Callable[..., Any]:
        return lambda x: (
            library.concatenate([x, x[1:]], axis=0),
            library.concatenate((x, 2 * x), axis=-1),
            library.stack([x, x + 1]),
            library.stack([x, x], axis=2),
        )

    assert_as_numpy(build(po), build(np), X)


def test_tensors_from_nothing() -> None:
    def op(x: f64[M, N]) -> object:
        return (
            po.zeros((M, 3)),
            po.ones(N),
            po.full((2, 2), 7),
            po.arange(N),
            po.arange(1, 10, 3),
            po.arange(N, 0, -2),
            po.arange(0.0, 1.0, 0.25),
            po.eye(M, N, 1),
        )

    expected = [np.zeros((5, 3)), np.ones(7), np.full((2, 2), 7), np.arange(7), np.arange(1, 10, 3)]
    expected += [np.arange(7, 0, -2), np.arange(0, 1, 0.25), np.eye(5, 7, 1)]
    for got, want in zip(po.op(op).reference(X), expected, strict=True):
        np.testing.assert_array_equal(got, want)


def test_numpys_default_dtypes() -> None:
    def op(x: f32[N]) -> object:
        return po.zeros(3), po.full(3, 1), po.full(3, 1.5), po.arange(3), po.ones(3, dtype=f32), po.eye(2, dtype="i32")

    found = program(op)
    assert [str(found.tensor(name).dtype) for name in found.results] == ["f64", "i64", "f64", "i64", "f32", "i32"]


def test_functions_on_tensors_are_one_equation() -> None:
    def op(x: f32[M, N]) -> object:
        return po.relu(po.gelu(x)), po.where(x > 0, x, 0)

    assert [line.split(" = ")[0] for line in equations(op)] == ["gelu[i, j]", "relu[i, j]", "gt[i, j]", "where[i, j]"]


def test_an_extent_of_one_repeats_only_where_it_is_written_or_known() -> None:
    def op(x: f32[M, N], b: f32[M, 1]) -> object:
        return x + b

    assert equations(op) == ["add[i, j] = x[i, j] + b[i, 0]"]
    assert equations(lambda a, b: a + b, {"a": (f32, 2), "b": (f32, 2, (False, True))}) == [
        "add[i, j] = a[i, j] + b[i, 0]"
    ]


def test_equations_and_sugar_mix() -> None:
    def op(x: f32[M, K], w: f32[K, N], b: f32[N]) -> object:
        y, out = po.tensors("y out")
        y[i, j] += x[i, k] * w[k, j]
        z = y + b
        out[i] = po.sum(z[i, j] * po.sum(z), j)
        return out, z.T

    x, w, b = (RNG.standard_normal(s).astype(np.float32) for s in ((3, 4), (4, 5), (5,)))
    z = x.astype(float) @ w + b
    got = po.op(op).reference(x, w, b)
    np.testing.assert_allclose(got[0], (z * z.sum()).sum(1), rtol=1e-6)
    np.testing.assert_allclose(got[1], z.T, rtol=1e-6)


def test_a_row_of_a_recurrence_is_a_slice() -> None:
    def op(x: f64[N], steps: int) -> object:
        u, t = po.tensor("u"), po.index("t", 0, steps)
        u[0, i] = x[i]
        u[t + 1, i] = 2 * u[t, i]
        return u[steps]

    np.testing.assert_array_equal(po.op(op).reference(B, 3), 8 * B)


def test_shapes_of_local_tensors_follow_where_they_are_plain() -> None:
    def op(x: f32[M, N], f: f32[3, N]) -> object:
        y, z = po.tensors("y z")
        y[i, j] = x[i, j] + x[i, j + 1]
        r = po.index("r", 3)
        z[i] += x[i + r, j] * f[r, j]
        assert [str(extent) for extent in y.shape] == ["M", "N - 1"]
        assert [str(extent) for extent in z.shape] == ["M - 2"]
        return y.reshape(M, -1), z

    program(op)


def test_a_shape_that_takes_isl_asks_for_shape() -> None:
    def op(x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = po.when(i < 5, x[0])
        return y.reshape(-1)

    with pytest.raises(DefinitionError, match="extents of 'y' are not known") as caught:
        program(op)
    assert "shape=" in caught.value.fix


def test_joining_symbolic_extents_needs_sizes_and_works_with_them() -> None:
    def op(x: f32[M, N]) -> object:
        return x.reshape(M * N)

    with pytest.raises(NeedsSizes):
        program(op)
    found = program(op, sizes={"M": 3, "N": 4})
    assert not found.sizes
    assert found.tensor("x").shape is not None


def test_splitting_by_numbers_stays_symbolic() -> None:
    def op(x: f32[M, 12]) -> object:
        return x.reshape(M, 3, 4), x.reshape(2 * M, 6)

    found = program(op)
    assert found.sizes == ("M",)


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x.reshape(3, 3),
        lambda x: x.transpose(0, 0),
        lambda x: po.sum(x, axis=2),
        lambda x: x.reshape(-1, -1),
        lambda x: po.concatenate([x, x], axis=5),
    ],
)
def test_shapes_that_do_not_fit_are_refused(build: Callable[..., Any]) -> None:
    def op(x: f32[2, 6]) -> object:
        return build(x)

    with pytest.raises(ShapeError) as caught:
        program(op)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda x: x + x[i, j], "whole tensor 'x' meets"),
        (lambda x: x[i, :], "index 'i' and sliced"),
        (lambda x: x[i], "index 'i' and sliced"),
        (lambda x: x[i, j, k], "2 dimensions and is given 3"),
        (lambda x: x[[0, 1]], "cannot use list"),
        (lambda x: x[x], "subscripted by the whole tensor"),
        (lambda x: x[0:i], "not affine in sizes"),
        (lambda x: x[..., 0, ...], "one ellipsis"),
        (lambda x: po.softmax(x[i, j]), "takes a whole tensor"),
        (lambda x: po.concatenate(x), "takes a list"),
        (lambda x: x @ 2, "takes two tensors"),
        (lambda x: po.sum(x, i), "reduces axes"),
    ],
)
def test_what_is_neither_an_element_nor_a_tensor_is_refused(build: Callable[..., Any], says: str) -> None:
    def op(x: f32[M, N]) -> object:
        return build(x)

    with pytest.raises(DefinitionError) as caught:
        program(op)
    assert says in str(caught.value)
    assert caught.value.fix and caught.value.where is not None


def test_constant_extents_that_do_not_broadcast_are_refused() -> None:
    def op(x: f32[M, 3], y: f32[4]) -> object:
        return x + y

    with pytest.raises(ShapeError, match="do not broadcast"):
        program(op)


def test_einsum_is_one_equation() -> None:
    def op(x: f32[M, K], w: f32[K, N]) -> object:
        return po.einsum("mk,kn->nm", x, w)

    assert equations(op) == ["einsum[n, m] += x[m, k] * w[k, n]"]


@pytest.mark.parametrize("spec", ["ij", "ji", "ij->", "ij,ij", "ij,kj->ik", "ij,j->i", "...j->...", "ij,...j->i..."])
def test_einsum_gives_numpys_result(spec: str) -> None:
    operands = [X, X if spec != "ij,j->i" else B][: spec.count(",") + 1]

    def one(a: Any) -> Any:
        return po.einsum(spec, a)

    def two(a: Any, b: Any) -> Any:
        return po.einsum(spec, a, b)

    build = one if len(operands) == 1 else two
    assert_as_numpy(build, lambda *a: np.einsum(spec, *a), *operands)
