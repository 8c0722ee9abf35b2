"""Ops that call ops: equations are inlined, sizes keep their meaning, results keep their structure."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import polyopt as po
from polyopt import ArgumentError, DefinitionError, DTypeError, ShapeError, f32, f64
from tests.dsl.tracing import dtypes, equations, program, traced

M, N, K = po.sizes("M N K")
i, j, k = po.indices("i j k")
RNG = np.random.default_rng(0)


@po.op
def average(x: f32[M, N]) -> Any:
    y = po.tensor("y")
    y[i] += x[i, j] / N
    return y


@po.op
def scale(x: f32[N], a: f32, b: float = 0) -> Any:
    y = po.tensor("y")
    y[i] = a * x[i] + b
    return y


def test_the_sizes_of_an_inlined_op_mean_the_extents_of_its_arguments() -> None:
    def op(x: f32[N, M]) -> Any:
        return average(x)

    assert equations(op) == ["y[i] += x[i, j] / cast(M, f32)"]
    x = RNG.random((3, 4), np.float32)
    np.testing.assert_allclose(po.op(op).reference(x), x.mean(1), rtol=1e-6)


def test_an_op_can_be_inlined_twice_under_names_of_its_own() -> None:
    def op(x: f32[M, N], w: f32[N, K]) -> Any:
        return average(x), average(w), average(x=w)

    assert [equation.tensor for equation in program(op).equations] == ["y", "y_1", "y_2"]
    assert program(op).results == ("y", "y_1", "y_2")


def test_arguments_may_be_local_tensors_scalars_and_values() -> None:
    def op(x: f32[N], c: f32) -> Any:
        z = po.tensor("z")
        z[i] = 2 * x[i]
        return scale(z, c), scale(z, 1.5, b=2), scale(x, po.sum(x)), scale(x, x[0] * N)

    assert equations(op)[1:] == [
        "y[i] = c * z[i] + 0",
        "y_1[i] = 1.5 * z[i] + 2",
        "sum[()] = sum(x[i], i)",
        "y_2[i] = sum * x[i] + 0",
        "y_3[i] = x[0] * cast(N, f32) * x[i] + 0",
    ]


def test_a_value_given_to_an_inlined_op_keeps_the_callers_sizes() -> None:
    def op(x: f32[M, N]) -> Any:
        return scale(x[0], M)

    assert equations(op)[-1] == "y[i] = cast(M, f32) * x_slice[i] + 0"


def test_structures_pass_through() -> None:
    class Pair(NamedTuple):
        low: Any
        high: Any

    @po.op
    def bounds(x: f32[N]) -> Pair:
        return Pair(po.min(x), po.max(x))

    def op(x: f32[N]) -> Any:
        found = bounds(x)
        return {"width": found.high - found.low, "both": [found.low, found.high]}

    result = traced(op)
    assert result.structure.rebuild([1, 2, 3]) == {"width": 1, "both": [2, 3]}
    np.testing.assert_allclose(po.op(op).reference(np.array([1, 5, 3], np.float32))["width"], 4)


def test_an_op_that_returns_its_argument_gives_back_the_callers_tensor() -> None:
    @po.op
    def same(x: f32[N]) -> Any:
        return x

    def op(x: f32[N]) -> Any:
        return same(x) + 1

    assert equations(op) == ["add[i] = x[i] + 1"]


def test_compile_time_parameters_are_python_values() -> None:
    @po.op
    def power(x: f32[N], steps: int) -> Any:
        return x if steps == 0 else x * power(x, steps - 1)

    def op(x: f32[N]) -> Any:
        return power(x, 3)

    assert len(equations(op)) == 3


def test_dtypes_are_checked_when_they_are_known() -> None:
    def op(x: f64[M, N]) -> Any:
        return average(x)

    with pytest.raises(DTypeError, match="'x' is f32 and is given 'x', which is f64"):
        program(op)

    def converted(x: f64[M, N]) -> Any:
        return average(po.cast(x, f32))

    assert dtypes(converted)["y"] == "f32"


def test_ranks_and_extents_are_checked() -> None:
    def rank(x: f32[N]) -> Any:
        return average(x)

    with pytest.raises(ShapeError, match="rank 2 and is given 'x' of rank 1"):
        program(rank)

    @po.op
    def add(x: f32[N], y: f32[N]) -> Any:
        return x + y

    def numbers(x: f32[3], y: f32[4]) -> Any:
        return add(x, y)

    with pytest.raises(ShapeError, match="extent 3, and 4"):
        program(numbers)

    def symbols(x: f32[M], y: f32[K]) -> Any:
        return add(x, y)

    assert len(program(symbols).conditions) == 1


def test_arguments_are_bound_as_python_binds_them() -> None:
    def op(x: f32[M, N]) -> Any:
        return average(x, x)

    with pytest.raises(ArgumentError, match="too many positional"):
        program(op)

    def with_out(x: f32[M, N]) -> Any:
        return average(x, out=x)

    with pytest.raises(ArgumentError, match="out= has no meaning"):
        program(with_out)

    def with_element(x: f32[M, N]) -> Any:
        return average(x[i, j])

    with pytest.raises(ArgumentError, match="a value per index 'i'"):
        program(with_element)


def test_a_size_whose_extent_is_not_plain_is_refused_where_it_is_used() -> None:
    def op(x: f32[M, N]) -> Any:
        z = po.tensor("z")
        z[i, j] = po.when(j < i, x[i, j])
        return average(z)

    with pytest.raises(DefinitionError, match="size 'N' of the inlined op") as caught:
        program(op)
    assert "'z'" in caught.value.why


def test_a_tensor_of_another_op_is_refused() -> None:
    kept = []

    @po.op
    def first(x: f32[N]) -> Any:
        y = po.tensor("y")
        y[i] = x[i]
        kept.append(y)
        return y

    first.reference(np.ones(3, np.float32))

    def second(x: f32[N]) -> Any:
        return x + kept[0]

    with pytest.raises(DefinitionError, match="belongs to another op"):
        program(second)
