"""Reductions in expressions: their axes, guards, neutral elements, and the lowering of means and positions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import DefinitionError, f32, f64, i32, i64
from polyopt.dsl import affine as af
from polyopt.dsl import ir
from tests.dsl.tracing import equations, program

M, N = po.sizes("M N")
i, j, k, l = po.indices("i j k l")


def reductions(function: Callable[..., object]) -> list[ir.Reduce]:
    roots = [equation.value for equation in program(function).equations]
    return [node for root in roots for node in ir.walk(root) if isinstance(node, ir.Reduce)]


def reference(function: Callable[..., Any], *arguments: Any) -> Any:
    return po.op(function).reference(*arguments)


def test_an_affine_where_is_the_guard_and_a_data_where_a_select() -> None:
    def op(x: f32[M, N]) -> object:
        y = po.tensor("y")
        y[i] = po.sum(x[i, k], k, where=(k < i) & (x[i, k] > 0))
        return y

    (reduce,) = reductions(op)
    assert reduce.guard == af.Compare(af.axis("k") - af.axis("i"), "<")
    assert isinstance(reduce.body, ir.Op) and reduce.body.name == "select"
    assert reduce.body.args[2] == ir.Const(0.0, f32)


def test_when_inside_a_reduction_is_its_guard() -> None:
    def op(x: f32[M, N]) -> object:
        y = po.tensor("y")
        y[i] = po.sum(po.when(k < i, x[i, k]), k)
        return y

    assert equations(op) == ["y[i] = sum(x[i, k], k, where=k < i)"]


def test_several_indices_are_one_reduction() -> None:
    def op(x: f32[M, N]) -> object:
        y = po.tensor("y")
        y[()] = po.sum(x[k, l], (k, l))
        return y

    (reduce,) = reductions(op)
    assert [axis.name for axis in reduce.axes] == ["k", "l"]


def test_an_index_bound_twice_gets_two_names() -> None:
    def op(x: f32[N]) -> object:
        y = po.tensor("y")
        y[()] = po.sum(x[k] * po.max(x[k], k), k)
        return y

    assert equations(op) == ["y[()] = sum(x[k] * max(x[k_1], k_1), k)"]


def test_neutral_elements() -> None:
    def op(x: f32[N], n: i32[N]) -> object:
        s = po.tensor("s")
        s[()] = po.cast(po.sum(x[k], k) + po.prod(x[k], k) + po.max(x[k], k) + po.min(n[k], k, init=9), f64)
        return s

    assert [node.reducer.neutral for node in reductions(op)] == [
        ir.Const(0.0, f32),
        ir.Const(1.0, f32),
        None,
        ir.Const(9, i32),
    ]


def test_any_and_all_take_numbers_and_conditions() -> None:
    def op(x: f32[M, N]) -> object:
        y = po.tensor("y")
        y[i] = po.any(x[i, k] > 0, k) & po.all(x[i, k], k)
        return y

    assert equations(op) == ["y[i] = any(x[i, k] > 0, k) & all(x[i, k] != 0, k)"]


def test_an_init_that_is_a_value_is_taken_in_once() -> None:
    def op(x: f32[N], a: f32) -> object:
        y = po.tensor("y")
        y[()] = po.sum(x[k], k, init=a) + po.max(x[k], k, init=a)
        return y

    assert equations(op) == ["y[()] = a + sum(x[k], k) + maximum(a, max(x[k], k, init=-inf))"]


def test_positions_are_the_least_index_of_the_extremum() -> None:
    def op(x: f32[M, N], n: i32[M, N]) -> object:
        y, z = po.tensors("y z")
        y[i] = po.argmax(x[i, k], k)
        z[i] = po.argmin(n[i, k], k)
        return y, z

    assert equations(op) == [
        "y[i] = min(where((x[i, k] == max(x[i, k_1], k_1)) | isnan(x[i, k]), k, 9223372036854775807), k)",
        "z[i] = min(where(n[i, k] == min(n[i, k_1], k_1), k, 9223372036854775807), k)",
    ]
    assert all(str(tensor.dtype) == "i64" for tensor in program(op).tensors if tensor.role == "output")


def test_positions_are_numpys_with_ties_and_nans() -> None:
    def op(x: f64[M, N]) -> object:
        y, z = po.tensors("y z")
        y[i] = po.argmax(x[i, k], k)
        z[i] = po.argmin(x[i, k], k)
        return y, z

    x = np.array([[1.0, 3, 3, 0], [2, 2, 2, 2], [1, np.nan, 5, np.nan], [-np.inf, 0, np.inf, -np.inf]])
    got = reference(op, x)
    np.testing.assert_array_equal(got[0], x.argmax(1))
    np.testing.assert_array_equal(got[1], x.argmin(1))


def test_a_position_over_nothing_is_its_init() -> None:
    def op(x: f64[M, N]) -> object:
        y = po.tensor("y")
        y[i] = po.argmax(x[i, k], k, where=x[i, k] > 0, init=-1)
        return y

    np.testing.assert_array_equal(reference(op, np.array([[1.0, 2, -3], [-1, -2, -3]])), [1, -1])


def test_a_position_over_several_indices_counts_row_by_row() -> None:
    def op(x: f64[3, 4]) -> object:
        a, b = po.index("a", 3), po.index("b", 1, 4)
        y = po.tensor("y")
        y[()] = po.argmax(x[a, b], (a, b))
        return y

    x = np.random.default_rng(0).random((3, 4))
    assert reference(op, x) == x[:, 1:].argmax()

    def open_ranges(x: f64[M, N]) -> object:
        y = po.tensor("y")
        y[()] = po.argmax(x[i, k], (i, k))
        return y

    with pytest.raises(DefinitionError, match="needs their extents"):
        program(open_ranges)


def test_a_mean_counts_its_points() -> None:
    def op(x: f64[M, N]) -> object:
        y, z, w = po.tensors("y z w")
        y[i] = po.mean(x[i, k], k)
        z[i] = po.mean(x[i, k], k, where=k <= i)
        w[()] = po.mean(x[i, k] + x[i, k + 1], (i, k))
        return y, z, w

    x = np.random.default_rng(0).random((3, 5))
    y, z, w = reference(op, x)
    np.testing.assert_allclose(y, x.mean(1))
    np.testing.assert_allclose(z, [x[n, : n + 1].mean() for n in range(3)])
    np.testing.assert_allclose(w, (x[:, 1:] + x[:, :-1]).mean())


def test_a_maximum_over_points_chosen_by_data_needs_init() -> None:
    def op(x: f32[N]) -> object:
        y = po.tensor("y")
        y[()] = po.max(x[k], k, where=x[k] > 0)
        return y

    with pytest.raises(DefinitionError, match="needs init="):
        program(op)


def test_a_custom_reduction_keeps_its_function() -> None:
    def op(x: f32[N]) -> object:
        y = po.tensor("y")
        y[()] = po.reduce(lambda a, b: a + b + a * b, x[k], k, init=0)
        return y

    (reduce,) = reductions(op)
    assert reduce.reducer.name == "custom" and reduce.reducer.neutral == ir.Const(0.0, f32)
    assert equations(op) == ["y[()] = reduce(lambda a, b: a + b + a * b, x[k], k, init=0)"]


def test_a_custom_reduction_widens_to_what_its_function_gives() -> None:
    def op(n: i32[N]) -> object:
        y = po.tensor("y")
        y[()] = po.reduce(lambda a, b: (a + b) / 2, n[k], k)
        return y

    (reduce,) = reductions(op)
    assert reduce.dtype == f64


def test_a_custom_function_sees_its_two_values_alone() -> None:
    def op(x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = po.reduce(lambda a, b: a + b * x[i], x[k], k, init=0)
        return y

    with pytest.raises(DefinitionError, match="more than its two values"):
        program(op)


def test_a_reduction_of_an_expression_names_its_indices() -> None:
    for wrong in (None, 1, (k, k), "k"):

        def op(x: f32[N], wrong: Any = wrong) -> object:
            y = po.tensor("y")
            y[()] = po.sum(x[k], wrong)
            return y

        with pytest.raises(DefinitionError, match="needs the indices"):
            program(op)


def test_counting_points_gives_i64() -> None:
    def op(x: f32[N]) -> object:
        y = po.tensor("y")
        y[()] = po.sum(po.where(x[k] > 0, 1, 0), k)
        return y

    (reduce,) = reductions(op)
    assert reduce.dtype == i64


def test_an_infinite_constant_prints_and_stays() -> None:
    def op(x: f32[N]) -> object:
        y = po.tensor("y")
        y[()] = po.max(x[k], k, init=-math.inf)
        return y

    assert equations(op) == ["y[()] = max(x[k], k, init=-inf)"]
