"""Ops that call ops: equations are inlined, sizes keep their meaning, results keep their structure."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

import polyopt as po
from polyopt import ArgumentError, DefinitionError, DTypeError, ShapeError, f32, f64, i32
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


# --- sizes -----------------------------------------------------------------------------------------------------------


@po.op
def halves(x: f64[2 * N]) -> Any:
    y = po.tensor("y")
    t = po.index("t", extent=N)
    y[t] = x[t] * N
    return y


@po.op
def add(x: f64[N], y: f64[N]) -> Any:
    z = po.tensor("z")
    z[i] = x[i] + y[i]
    return z


@po.op
def total_of_joined(x: f64[M + N], y: f64[M], z: f64[N]) -> Any:
    return po.sum(x) + po.sum(y) + po.sum(z)


def test_a_size_that_an_annotation_has_with_a_factor_is_solved() -> None:
    @po.op
    def same_name(x: f64[N]) -> Any:
        return halves(x)

    @po.op
    def no_such_name(x: f64[K]) -> Any:
        return halves(x)

    x = np.arange(1.0, 9.0)
    for op in (same_name, no_such_name):
        np.testing.assert_array_equal(op(x), halves(x))
        np.testing.assert_array_equal(po.op(dynamic=True)(op._function)(x), halves(x))

    def twice_as_long(x: f64[M]) -> Any:
        z = po.tensor("z", shape=(2 * M,))
        z[i] = x[i // 2]
        return halves(z)

    assert program(twice_as_long).conditions == ()
    np.testing.assert_array_equal(po.op(twice_as_long)(x), 8 * np.repeat(x, 2)[:8])


@pytest.mark.parametrize("dynamic", [False, True])
def test_an_extent_that_an_annotation_cannot_be_is_refused_at_the_call(dynamic: bool) -> None:
    @po.op(dynamic=dynamic)
    def symbolic(x: f64[M]) -> Any:
        return halves(x)

    @po.op(dynamic=dynamic)
    def of_a_guarded_tensor(x: f64[M]) -> Any:
        z = po.tensor("z")
        z[i] = po.when(i >= 0, x[i])
        return po.sum(x) + twice(z)

    @po.op
    def twice(x: f64[2 * N]) -> Any:
        return po.sum(x)

    for op in (symbolic, of_a_guarded_tensor):
        op(np.ones(6))
        with pytest.raises(ShapeError):
            op(np.ones(7))

    def number(x: f64[7]) -> Any:
        return halves(x)

    with pytest.raises(ShapeError, match=r"dimension 0 of 'x' is '2 \* N', which 7 in 'x' cannot be"):
        program(number)


@pytest.mark.parametrize("dynamic", [False, True])
def test_all_extents_of_an_inlined_op_are_checked(dynamic: bool) -> None:
    @po.op
    def pair(x: f64[2 * N], y: f64[N]) -> Any:
        return po.sum(x) + po.sum(y)

    @po.op(dynamic=dynamic)
    def outer_pair(x: f64[M], y: f64[K]) -> Any:
        return pair(x, y)

    @po.op(dynamic=dynamic)
    def outer_joined(x: f64[K], y: f64[N], z: f64[M]) -> Any:
        return total_of_joined(x, y, z)

    assert outer_pair(np.ones(8), np.ones(4)) == 12
    with pytest.raises(ShapeError):
        outer_pair(np.ones(8), np.ones(3))
    assert outer_joined(np.ones(8), np.ones(5), np.ones(3)) == 16
    with pytest.raises(ShapeError):
        outer_joined(np.ones(8), np.ones(3), np.ones(2))


def test_an_extent_that_is_not_plain_is_checked_once_it_is_known() -> None:
    @po.op
    def sliced(x: f64[M], v: f64[N]) -> Any:
        return add(x, v[:3])

    assert sliced(np.ones(3), np.ones(8)).tolist() == [2, 2, 2]
    with pytest.raises(ShapeError, match="dimension 0 of 'y' has extent 2, and 3 in 'v_slice'") as caught:
        sliced(np.ones(2), np.ones(8))
    assert caught.value.where is not None and caught.value.where.text == "add(x, v[:3])"

    def guarded(x: f64[M], v: f64[N]) -> Any:
        z = po.tensor("z")
        z[i] = po.when(i >= 0, v[i])
        return add(x, z)

    assert len(program(guarded).agreements) == 1
    assert "if M == z.shape[0]" in str(program(guarded)) or "if z.shape[0] == M" in str(program(guarded))
    for op in (po.op(guarded), po.op(dynamic=True)(guarded)):
        assert op(np.ones(3), np.ones(3)).tolist() == [2, 2, 2]
        with pytest.raises(ShapeError):
            op(np.ones(2), np.ones(3))


def test_products_of_sizes_are_checked_with_numbers() -> None:
    @po.op
    def table(x: f64[M * N], y: f64[M], z: f64[N]) -> Any:
        return po.sum(x) + po.sum(y) + po.sum(z)

    @po.op
    def outer(x: f64[K], y: f64[N], z: f64[M]) -> Any:
        return table(x, y, z)

    assert outer(np.ones(6), np.ones(2), np.ones(3)) == 11
    with pytest.raises(ShapeError, match="dimension 0 of 'x' has extent 6, and 5 in 'x'"):
        outer(np.ones(5), np.ones(2), np.ones(3))


def test_sizes_that_do_not_follow_from_the_arguments_are_refused_as_at_a_call() -> None:
    @po.op
    def joined(x: f64[M + N]) -> Any:
        return po.sum(x)

    def outer_joined(x: f64[K]) -> Any:
        return joined(x)

    with pytest.raises(ShapeError, match=r"the sizes in 'M \+ N' do not follow from the arguments of 'joined'"):
        program(outer_joined)

    @po.op
    def another(x: f64[M]) -> Any:
        return po.sum(x) + po.sum(po.ones((N,)))

    def outer(x: f64[N]) -> Any:
        return another(x)

    with pytest.raises(ShapeError, match="size 'N' does not follow from the arguments of 'another'"):
        program(outer)


def test_sizes_that_are_given_keep_the_callers_meaning() -> None:
    @po.op
    def ramp(w: f64[N], steps: int) -> Any:
        t = po.index("t", extent=steps)
        return po.sum(po.cast(t, f64), t) + w

    @po.op
    def ones(w: f64[N], shape: Any) -> Any:
        return po.ones(shape["shape"][0])

    @po.op
    def counted(w: f64[N], t: Any) -> Any:
        y = po.tensor("y")
        y[t] = po.cast(t, f64)
        return y

    @po.op
    def outer(a: f64[N], w: f64[M]) -> Any:
        return (
            ramp(w, N),
            ramp(w, a.shape[0]),
            ones(w, {"shape": [(N, 2)]}),
            counted(w, po.index("t", extent=N)),
        )

    a, w = np.ones(4), np.ones(8)
    first, second, filled, steps = outer(a, w)
    assert first.tolist() == second.tolist() == [7] * 8
    assert filled.shape == (4, 2)
    assert steps.tolist() == [0, 1, 2, 3]


def test_a_default_is_the_inlined_ops_own() -> None:
    @po.op
    def ones(x: f64[M], shape: Any = (M, 2)) -> Any:
        return po.ones(shape)

    @po.op
    def outer(x: f64[N], y: f64[M]) -> Any:
        return ones(x)

    assert outer(np.ones(3), np.ones(5)).shape == (3, 2)


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


# --- numbers ---------------------------------------------------------------------------------------------------------


@po.op
def by_int(x: f64[N], a: int) -> Any:
    return x * a


@po.op
def by_scalar(x: f64[N], a: i32) -> Any:
    return x * a


@po.op
def by_float(x: i32[N], a: float = 1) -> Any:
    return x * a


def test_compile_time_values_are_converted_as_at_a_call() -> None:
    @po.op
    def outer(x: i32[N]) -> Any:
        return by_float(x, 2), by_float(x), by_float(x, N)

    x = np.array([1, 2**30], np.int32)
    for found, expected in zip(outer(x), (by_float(x, 2), by_float(x), by_float(x, 2)), strict=True):
        assert found.dtype == expected.dtype == np.float64
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("op", "value", "error", "text"),
    [
        (by_int, 2.5, ArgumentError, "'a' is a compile-time int and is given 2.5, a float"),
        (by_int, True, ArgumentError, "'a' is a compile-time int and is given True, a bool"),
        (by_int, lambda x: x[0], ArgumentError, r"is given 'x\[0\]', which is known at each call"),
        (by_int, po.sum, ArgumentError, "is given the tensor 'sum'"),
        (by_int, lambda x: i, ArgumentError, "is given the index 'i'"),
        (by_scalar, 2.7, DTypeError, "the scalar 'a' is 2.7, but the signature says i32"),
        (by_scalar, np.int64(2**40), ArgumentError, "1099511627776, which does not fit in i32"),
        (by_scalar, lambda x: x[0] * 2, DTypeError, r"'a' is i32 and is given 'x\[0\] \* 2', which is f64"),
    ],
)
def test_numbers_that_do_not_fit_are_refused_as_at_a_call(op: Any, value: Any, error: Any, text: str) -> None:
    def outer(x: f64[N]) -> Any:
        return op(x, value(x) if callable(value) else value)

    with pytest.raises(error, match=text) as caught:
        program(outer)
    assert caught.value.where is not None
    assert caught.value.where.text.startswith("op(x") or "x[0]" in caught.value.where.text


def test_numbers_that_fit_a_scalar_are_taken() -> None:
    @po.op
    def outer(x: f64[N]) -> Any:
        values = (N, True, 3, np.int64(4), np.array(5), po.cast(x[0], i32))
        return [by_scalar(x, value) for value in values]

    assert [found.tolist() for found in outer(np.array([6.0]))] == [[6 * a] for a in (1, 1, 3, 4, 5, 6)]


def test_a_value_given_to_a_tensor_without_dimensions_has_its_dtype() -> None:
    @po.op
    def scaled(x: f64[N], a: f32[()]) -> Any:
        return x * a[()]

    def narrow(x: f64[N]) -> Any:
        return scaled(x, 2)

    assert program(narrow).results

    def wide(x: f64[N]) -> Any:
        return scaled(x, x[0] * 2)

    with pytest.raises(DTypeError, match=r"'a' is f32 and is given 'x\[0\] \* 2', which is f64"):
        program(wide)
