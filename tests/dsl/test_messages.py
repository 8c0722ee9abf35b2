"""Messages of the front end: each points at the user's line and sub-expression, and says what to try."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt import DefinitionError, PolyoptError, f32
from tests.dsl.tracing import program

M, N = po.sizes("M N")
i, j, k = po.indices("i j k")


def product_of_indices(x: f32[N]) -> Any:
    y = po.tensor("y")
    y[i, j] = x[i] + x[i * j]
    return y


def free_index(x: f32[N]) -> Any:
    y = po.tensor("y")
    y[i] = x[i] + x[k]
    return y


def never_defined(x: f32[N]) -> Any:
    y, z = po.tensors("y z")
    y[i] = x[i] + z[i]
    return y


def chained_comparison(x: f32[N]) -> Any:
    y = po.tensor("y")
    y[i] = po.where(0 < i < 3, x[i], 0)
    return y


def python_if(x: f32[N]) -> Any:
    y = po.tensor("y")
    y[i] = 1 if x[i] > 0 else 0
    return y


def defined_parameter(x: f32[N]) -> Any:
    x[i] = 0
    return x


def wrong_rank(x: f32[M, N]) -> Any:
    y = po.tensor("y")
    y[i] = x[i, j, i]
    return y


def two_ranks(x: f32[N]) -> Any:
    y = po.tensor("y")
    y[i] = x[i]
    y[i, j] = x[i]
    return y


def sliced_left(x: f32[N]) -> Any:
    y = po.tensor("y")
    y[:] = x[i]
    return y


def whole_tensor_as_value(x: f32[N], z: f32[N]) -> Any:
    y = po.tensor("y")
    y[i] = z
    return y


def a_string(x: f32[N]) -> Any:
    y = po.tensor("y")
    y[i] = "zero"
    return y


def a_range_over_a_size(x: f32[N]) -> Any:
    for n in range(N):
        return n
    return x


def iterated(x: f32[N]) -> Any:
    return [row for row in x]  # noqa: C416  # the mistake


def an_array(x: f32[N]) -> Any:
    y = po.tensor("y")
    y[i] = x[i] * np.ones(3)
    return y


def subscripted_value(x: f32[N]) -> Any:
    y = po.tensor("y")
    y[i] = (x[i] + 1)[i]
    return y


def returned_value(x: f32[N]) -> Any:
    return x[i] + 1


def divided_by_zero(x: f32[N]) -> Any:
    y = po.tensor("y")
    y[i] = x[i // 0]
    return y


MISTAKES = [
    (product_of_indices, "i * j", "multiplies two indices"),
    (free_index, "y[i]", "index 'k' is on the right side"),
    (never_defined, "z[i]", "'z' is used and never defined"),
    (chained_comparison, "0 < i < 3", "truth of a condition"),
    (python_if, "x[i] > 0", "truth of a condition"),
    (defined_parameter, "x[i]", "'x' is a parameter"),
    (wrong_rank, "x[i, j, i]", "2 dimensions and is given 3"),
    (two_ranks, "y[i, j]", "1 dimension and is given 2"),
    (sliced_left, "y[:]", "has a slice"),
    (whole_tensor_as_value, "y[i]", "whole tensor of rank 1"),
    (a_string, "y[i]", "cannot use str"),
    (a_range_over_a_size, "range(N)", "has no number"),
    (iterated, "x", "cannot be iterated"),
    (an_array, "x[i] * np.ones(3)", "NumPy array is not part"),
    (subscripted_value, "(x[i] + 1)[i]", "cannot be subscripted"),
    (returned_value, "x[i] + 1", "has a value per index 'i'"),
    (divided_by_zero, "i // 0", "divides by zero"),
]


@pytest.mark.parametrize(("function", "caret", "says"), MISTAKES, ids=lambda value: getattr(value, "__name__", ""))
def test_a_message_points_at_the_line_and_the_expression(function: Callable[..., Any], caret: str, says: str) -> None:
    with pytest.raises(PolyoptError) as caught:
        program(function)
    error = caught.value
    assert says in str(error)
    assert error.fix
    assert error.where is not None and error.where.file == __file__
    line = linecache.getline(error.where.file, error.where.line)
    assert caret in line[error.where.column : error.where.end_column] or line.rstrip().endswith(f"in {caret}]")
    first = function.__code__.co_firstlineno
    assert first < error.where.line < first + 7


def test_columns_count_characters() -> None:
    def op(x: f32[N]) -> Any:
        y = po.tensor("y")
        y[i, j] = po.where("größer" != "", x[i], 0) + x[i * j]
        return y

    with pytest.raises(DefinitionError) as caught:
        program(op)
    where = caught.value.where
    assert where is not None
    assert linecache.getline(where.file, where.line)[where.column : where.end_column] == "i * j"


def test_an_op_without_a_return_names_itself() -> None:
    def nothing(x: f32[N]) -> None:
        y = po.tensor("y")
        y[i] = x[i]

    with pytest.raises(DefinitionError, match="op 'nothing' returns nothing"):
        program(nothing)


@pytest.mark.parametrize("value", [(), {}, "text", object()], ids=["tuple", "dict", "str", "object"])
def test_what_is_no_result_is_refused(value: object) -> None:
    def op(x: f32[N]) -> object:
        return value

    with pytest.raises(DefinitionError) as caught:
        program(op)
    assert caught.value.fix


@pytest.mark.parametrize("make", [lambda: po.tensor("y"), lambda: po.zeros(3)])
def test_tensors_are_made_inside_ops(make: Callable[[], object]) -> None:
    with pytest.raises(DefinitionError, match="only has a meaning inside an op"):
        make()


@pytest.mark.parametrize("name", ["a b", "", "2x", "a-b", "ä", 3])
def test_names_are_identifiers(name: Any) -> None:
    with pytest.raises(DefinitionError):
        po.size(name)


def test_lists_of_names_are_tuples() -> None:
    assert [size.name for size in po.sizes("A, B C")] == ["A", "B", "C"]
    assert len(po.indices("i")) == 1 and isinstance(po.indices("i"), tuple)


@pytest.mark.parametrize("ask", [bool, int, float, len, np.sin, np.asarray, list], ids=lambda ask: ask.__name__)
def test_what_python_and_numpy_ask_of_a_symbol_is_refused(ask: Callable[[Any], object]) -> None:
    with pytest.raises(DefinitionError) as caught:
        ask(i + 1)
    assert caught.value.fix


def test_a_numpy_array_cannot_be_subscripted_by_an_index() -> None:
    with pytest.raises(DefinitionError, match="NumPy"):
        np.arange(3)[i]


def test_nothing_stays_active_after_a_failure() -> None:
    with pytest.raises(DefinitionError):
        program(python_if)
    with pytest.raises(DefinitionError, match="inside an op"):
        po.tensor("y")
