"""The reference evaluates equations as they are written, and refuses those that have no meaning."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import polyopt as po
from polyopt.dsl.affine import Compare, axis, constant, size
from polyopt.dsl.ir import (
    Axis,
    Cast,
    Clamp,
    Combine,
    Const,
    DataIndex,
    Expr,
    IndexValue,
    Op,
    Pad,
    Reduce,
    Reducer,
    Var,
    Where,
    Wrap,
)
from polyopt.dtypes import bool_, f16, f32, f64, i8, i32, i64, u8, u32, u64
from polyopt.errors import ArgumentError, BoundsError, DefinitionError, ShapeError
from polyopt.reference import evaluate
from polyopt.reference.arithmetic import Arithmetic
from tests.equations import adding, at, ax, less, num, op, plain, program, rd, summing, tensor

RNG = np.random.default_rng(0)
N = po.size("N")


def matmul(m, n, k):
    return program(
        [tensor("x", m, k), tensor("w", k, n), tensor("y", m, n)],
        [
            adding(
                rd("y", "i", "j"),
                op("mul", rd("x", "i", "k"), rd("w", "k", "j")),
                [ax("i", m), ax("j", n)],
                [ax("k", k)],
            )
        ],
        "x w",
        "y",
    )


@pytest.mark.parametrize("sizes", [(0, 3, 4), (3, 4, 0), (1, 1, 1), (7, 5, 3), (70, 80, 90)])
def test_a_sum_over_an_index_is_a_matrix_product(sizes):
    m, n, k = sizes
    x, w = RNG.random((m, k)), RNG.random((k, n))
    assert_allclose(evaluate(matmul(m, n, k), {"x": x, "w": w})["y"], x @ w)


def test_symbolic_sizes_are_given_at_the_call():
    n = size("N")
    double = replace(
        program(
            [tensor("x", n), tensor("y", n * 2)],
            [
                plain(rd("y", axis("i") * 2), rd("x", "i"), ax("i", n)),
                plain(rd("y", axis("i") * 2 + 1), num(0), ax("i", n)),
            ],
            "x",
            "y",
        ),
        sizes=("N",),
    )
    result = evaluate(double, {"x": np.array([1.0, 2.0])}, {"N": 2})["y"]
    assert_array_equal(result, [1, 0, 2, 0])


def test_a_range_is_the_intersection_of_its_bounds():
    i = Axis("i", (constant(1), constant(0)), (constant(5), constant(3)))
    ranged = program([tensor("s")], [adding(rd("s"), num(1), [], [i])], "", "s")
    assert evaluate(ranged, {})["s"] == 2
    assert evaluate(ranged, {})["s"].shape == ()


def test_only_the_chosen_branch_of_a_where_is_read():
    value = Where(Compare(axis("i"), "=="), num(0), rd("x", axis("i") - 1), f64)
    shift = program([tensor("x", 3), tensor("y", 4)], [plain(rd("y", "i"), value, ax("i", 4))], "x", "y")
    assert_array_equal(evaluate(shift, {"x": np.arange(3.0)})["y"], [0, 0, 1, 2])


@pytest.mark.parametrize(
    ("boundary", "expected"),
    [(Pad(Const(9.0, f64)), [9, 9, 0, 1, 2, 9]), (Clamp(), [0, 0, 0, 1, 2, 2]), (Wrap(), [1, 2, 0, 1, 2, 0])],
)
def test_boundaries_give_a_value_outside_the_box(boundary, expected):
    value = rd("x", axis("i") - 2, boundary=boundary)
    padded = program([tensor("x", 3), tensor("y", 6)], [plain(rd("y", "i"), value, ax("i", 6))], "x", "y")
    assert_array_equal(evaluate(padded, {"x": np.arange(3.0)})["y"], expected)


def test_reading_outside_without_a_boundary_names_the_point():
    bad = program([tensor("x", 3), tensor("y", 3)], [plain(rd("y", "i"), rd("x", axis("i") + 1), ax("i", 3))], "x", "y")
    with pytest.raises(BoundsError) as caught:
        evaluate(bad, {"x": np.zeros(3)})
    assert caught.value.facts["index"] == (3,)
    assert caught.value.facts["point"] == {"i": 2}


def gather(dtype=i64):
    return program(
        [tensor("table", 4), tensor("ids", 3, dtype=dtype), tensor("y", 3)],
        [plain(rd("y", "i"), rd("table", DataIndex(rd("ids", "i", dtype=dtype))), ax("i", 3))],
        "table ids",
        "y",
    )


def test_a_data_subscript_gathers():
    table = RNG.random(4)
    assert_array_equal(evaluate(gather(), {"table": table, "ids": np.array([3, 0, 3])})["y"], table[[3, 0, 3]])


@pytest.mark.parametrize("wrong", [-1, 4])
def test_a_data_subscript_out_of_range_is_refused_and_does_not_wrap(wrong):
    with pytest.raises(BoundsError) as caught:
        evaluate(gather(), {"table": np.zeros(4), "ids": np.array([0, wrong, 0])})
    assert caught.value.facts["index"] == (wrong,)


def test_a_data_subscript_is_not_checked_where_its_branch_is_not_taken():
    value = Where(less("i", 2), num(0), rd("table", DataIndex(rd("ids", "i", dtype=i64))), f64)
    guarded = replace(gather(), equations=(plain(rd("y", "i"), value, ax("i", 3)),))
    assert_array_equal(evaluate(guarded, {"table": np.ones(4), "ids": np.array([99, -5, 0])})["y"], [0, 0, 1])


def histogram(guard=None):
    extra = {} if guard is None else {"guard": guard}
    return program(
        [tensor("bins", 6, dtype=i64), tensor("h", 4, dtype=i32)],
        [
            adding(
                rd("h", DataIndex(rd("bins", "i", dtype=i64))),
                num(1, i32),
                [],
                [ax("i", 6)],
                reducer=summing(i32),
                **extra,
            )
        ],
        "bins",
        "h",
    )


def test_a_scatter_counts_and_covers_the_whole_shape():
    bins = np.array([1, 1, 3, 1, 0, 3])
    assert_array_equal(evaluate(histogram(), {"bins": bins})["h"], [1, 3, 0, 2])
    assert evaluate(histogram(), {"bins": bins})["h"].dtype == np.int32


def test_a_scatter_out_of_range_is_refused_only_where_its_guard_holds():
    bins = np.array([1, 1, 3, 9, 0, 3])
    with pytest.raises(BoundsError):
        evaluate(histogram(), {"bins": bins})
    assert_array_equal(evaluate(histogram(less("i", 3)), {"bins": bins})["h"], [0, 2, 0, 1])


def test_an_accumulation_starts_from_the_plain_definition():
    start = program(
        [tensor("x", 3, 2), tensor("y", 3)],
        [
            plain(rd("y", "i"), num(10), ax("i", 3)),
            adding(rd("y", "i"), rd("x", "i", "k"), [ax("i", 3)], [ax("k", 2)]),
            adding(rd("y", "i"), num(1), [ax("i", 2)], []),
        ],
        "x",
        "y",
    )
    x = RNG.random((3, 2))
    assert_allclose(evaluate(start, {"x": x})["y"], 10 + x.sum(1) + [1, 1, 0])


def test_a_guard_on_an_accumulation_restricts_what_is_added_but_not_what_is_covered():
    guarded = program(
        [tensor("x", 4), tensor("y", 4)],
        [adding(rd("y", "i"), rd("x", "k"), [ax("i", 4)], [ax("k", 4)], guard=less("k", "i"))],
        "x",
        "y",
    )
    assert_array_equal(evaluate(guarded, {"x": np.arange(1.0, 5)})["y"], [0, 1, 3, 6])


def test_several_points_of_the_left_side_may_add_to_one_element():
    convolve = program(
        [tensor("x", 4), tensor("w", 3), tensor("y", 6)],
        [adding(rd("y", axis("i") + axis("j")), op("mul", rd("x", "i"), rd("w", "j")), [ax("i", 4), ax("j", 3)], [])],
        "x w",
        "y",
    )
    x, w = RNG.random(4), RNG.random(3)
    assert_allclose(evaluate(convolve, {"x": x, "w": w})["y"], np.convolve(x, w))


def test_two_definitions_of_one_element_name_it():
    twice = program(
        [tensor("y", 4)],
        [plain(rd("y", "i"), num(1), ax("i", 3)), plain(rd("y", "j"), num(2), ax("j", 4, 2), name="other")],
        "",
        "y",
    )
    with pytest.raises(DefinitionError) as caught:
        evaluate(twice, {})
    assert caught.value.facts["index"] == (2,)


def test_an_element_that_is_returned_but_not_defined_is_named():
    half = program([tensor("y", 4)], [plain(rd("y", "i"), num(1), ax("i", 4), guard=less("i", 2))], "", "y")
    with pytest.raises(DefinitionError) as caught:
        evaluate(half, {})
    assert caught.value.facts["index"] == (2,)


def test_an_element_that_is_read_but_not_defined_is_named_with_its_reader():
    half = program(
        [tensor("t", 4), tensor("y", 4)],
        [
            plain(rd("t", "i"), num(1), ax("i", 4), guard=less("i", 2)),
            plain(rd("y", "i"), rd("t", "i"), ax("i", 4)),
        ],
        "",
        "y",
    )
    with pytest.raises(DefinitionError) as caught:
        evaluate(half, {})
    assert caught.value.facts == {"tensor": "t", "index": (2,), "point": {"i": 2}}


def test_equations_that_no_result_needs_are_not_evaluated():
    unused = program(
        [tensor("x", 2), tensor("t", 2), tensor("y", 2)],
        [plain(rd("t", "i"), rd("x", axis("i") + 5), ax("i", 2)), plain(rd("y", "i"), rd("x", "i"), ax("i", 2))],
        "x",
        "y",
    )
    assert_array_equal(evaluate(unused, {"x": np.ones(2)})["y"], [1, 1])


# --- reductions -----------------------------------------------------------------------------------------------


def reduction(reducer, n=5, dtype=f64, guard=None):
    extra = {} if guard is None else {"guard": guard}
    value = Reduce(reducer, rd("x", "i", "k", dtype=dtype), (ax("k", n),), dtype, **extra)
    return program(
        [tensor("x", 3, n, dtype=dtype), tensor("y", 3, dtype=dtype)],
        [plain(rd("y", "i", dtype=dtype), value, ax("i", 3))],
        "x",
        "y",
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [("sum", np.sum), ("prod", np.prod), ("max", np.max), ("min", np.min)],
    ids=lambda v: str(v)[:5],
)
@pytest.mark.parametrize("precision", ["f64", "own", "strict"])
def test_named_reducers(name, expected, precision):
    neutral = {"sum": Const(0, f64), "prod": Const(1, f64)}.get(name)
    x = RNG.random((3, 5)) - 0.5
    result = evaluate(reduction(Reducer(name, f64, neutral)), {"x": x}, precision=precision)["y"]
    assert_allclose(result, expected(x, axis=1))


def test_any_and_all():
    x = np.array([[0, 0, 1], [1, 1, 1], [0, 0, 0]], dtype=bool)
    any_ = reduction(Reducer("any", bool_, Const(False, bool_)), 3, bool_)
    all_ = reduction(Reducer("all", bool_, Const(True, bool_)), 3, bool_)
    assert_array_equal(evaluate(any_, {"x": x})["y"], x.any(1))
    assert_array_equal(evaluate(all_, {"x": x})["y"], x.all(1))


def test_a_custom_reducer_combines_in_any_precision():
    b = Var("b", f64)
    square: Combine = Op("add", (Var("a", f64), Op("mul", (b, b), f64)), f64)
    norm = Reducer("custom", f64, Const(0.0, f64), square)
    x = RNG.random((3, 5))
    assert_allclose(evaluate(reduction(norm, guard=less("k", 3)), {"x": x})["y"], (x[:, :3] ** 2).sum(1))


def test_a_maximum_over_nothing_names_the_point():
    with pytest.raises(DefinitionError) as caught:
        evaluate(reduction(Reducer("max", f64, None), guard=less("k", "i")), {"x": np.ones((3, 5))})
    assert caught.value.facts["point"] == {"i": 0}


def test_a_maximum_over_nothing_with_a_start_value_gives_it():
    empty = reduction(Reducer("max", f64, Const(-7.0, f64)), n=0)
    assert_array_equal(evaluate(empty, {"x": np.ones((3, 0))})["y"], [-7, -7, -7])


def test_a_maximum_propagates_nan_and_a_negative_zero_survives_a_guarded_sum():
    x = np.array([[1.0, np.nan, 2.0, 0, 0]] * 3)
    assert np.isnan(evaluate(reduction(Reducer("max", f64, None)), {"x": x})["y"]).all()
    start = Reducer("sum", f64, Const(-0.0, f64))
    result = evaluate(reduction(start, guard=less("k", 0)), {"x": x}, precision="strict")["y"]
    assert np.signbit(result).all()


def test_strict_sums_run_in_index_order_from_the_plain_value():
    n = 1000
    x = RNG.random(n).astype(np.float32)
    chain = program(
        [tensor("x", n, dtype=f32), tensor("s", dtype=f32)],
        [
            plain(rd("s", dtype=f32), num(0.1, f32)),
            adding(rd("s", dtype=f32), rd("x", "k", dtype=f32), [], [ax("k", n)], reducer=summing(f32)),
        ],
        "x",
        "s",
    )
    expected = np.float32(0.1)
    for value in x:
        expected += value
    assert evaluate(chain, {"x": x}, precision="strict")["s"] == expected
    assert_allclose(evaluate(chain, {"x": x})["s"], np.float32(0.1) + x.astype(np.float64).sum())


def test_strict_calls_the_given_functions():
    double = program(
        [tensor("x", 2), tensor("y", 2)], [plain(rd("y", "i"), op("exp", rd("x", "i")), ax("i", 2))], "x", "y"
    )
    result = evaluate(double, {"x": np.ones(2)}, precision="strict", functions={"exp": lambda v: v * 3})["y"]
    assert_array_equal(result, [3, 3])


# --- values ---------------------------------------------------------------------------------------------------


def test_integers_wrap_in_every_precision():
    value = op("add", rd("x", "i", dtype=u8), num(250, u8), dtype=u8)
    wrap = program(
        [tensor("x", 2, dtype=u8), tensor("y", 2, dtype=u8)],
        [plain(rd("y", "i", dtype=u8), value, ax("i", 2))],
        "x",
        "y",
    )
    x = np.array([3, 10], np.uint8)
    for precision in ("f64", "own", "strict"):
        result = evaluate(wrap, {"x": x}, precision=precision)["y"]
        assert result.dtype == np.uint8
        assert_array_equal(result, [253, 4])


def test_floats_are_float64_or_the_programs_own():
    half = program(
        [tensor("x", 1, dtype=f16), tensor("y", 1, dtype=f16)],
        [plain(rd("y", "i", dtype=f16), op("add", rd("x", "i", dtype=f16), num(1e-4, f16), dtype=f16), ax("i", 1))],
        "x",
        "y",
    )
    x = np.ones(1, np.float16)
    assert evaluate(half, {"x": x})["y"].dtype == np.float64
    assert evaluate(half, {"x": x})["y"][0] > 1
    assert evaluate(half, {"x": x}, precision="own")["y"].dtype == np.float16
    assert evaluate(half, {"x": x}, precision="own")["y"][0] == 1


def test_an_index_is_a_value():
    value = Cast(IndexValue(axis("i") * 2 + axis("j"), i64), f32)
    index = program(
        [tensor("y", 2, 3, dtype=f32)], [plain(rd("y", "i", "j", dtype=f32), value, ax("i", 2), ax("j", 3))], "", "y"
    )
    assert_array_equal(evaluate(index, {})["y"], [[0, 1, 2], [2, 3, 4]])


def test_an_expression_used_many_times_is_evaluated_once():
    value: Expr = rd("x", "i", dtype=i8)
    for _ in range(200):
        value = op("add", value, value, dtype=i8)
    deep = program(
        [tensor("x", 2, dtype=i8), tensor("y", 2, dtype=i8)],
        [plain(rd("y", "i", dtype=i8), value, ax("i", 2))],
        "x",
        "y",
    )
    assert_array_equal(evaluate(deep, {"x": np.ones(2, np.int8)})["y"], [0, 0])


def test_missing_and_misshapen_inputs_are_refused():
    with pytest.raises(ArgumentError):
        evaluate(matmul(2, 2, 2), {"x": np.ones((2, 2))})
    with pytest.raises(ShapeError):
        evaluate(matmul(2, 2, 2), {"x": np.ones((2, 2)), "w": np.ones((2, 3))})


# --- recurrences ----------------------------------------------------------------------------------------------


def test_a_prefix_sum_needs_no_order_in_the_text():
    value = op("add", rd("s", axis("i") - 1), rd("x", "i"))
    scan = program(
        [tensor("x", 300), tensor("s", 300)],
        [plain(rd("s", "i"), value, ax("i", 300, 1)), plain(rd("s", 0), rd("x", 0))],
        "x",
        "s",
    )
    x = RNG.random(300)
    assert_allclose(evaluate(scan, {"x": x})["s"], np.cumsum(x))


def cholesky(n):
    """L[j, j] and L[i, j] for j < i from each other."""
    inner = [ax("k", n)]
    below = Reduce(summing(), op("mul", rd("L", "i", "k"), rd("L", "j", "k")), tuple(inner), f64, less("k", "j"))
    square = Reduce(summing(), op("mul", rd("L", "i", "k"), rd("L", "i", "k")), tuple(inner), f64, less("k", "i"))
    return program(
        [tensor("A", n, n), tensor("L", n, n)],
        [
            plain(
                rd("L", "i", "j"),
                op("truediv", op("sub", rd("A", "i", "j"), below), rd("L", "j", "j")),
                ax("i", n),
                ax("j", n),
                guard=less("j", "i"),
            ),
            plain(rd("L", "i", "i"), op("sqrt", op("sub", rd("A", "i", "i"), square)), ax("i", n)),
            plain(rd("L", "i", "j"), num(0), ax("i", n), ax("j", n), guard=less("i", "j"), name="upper"),
        ],
        "A",
        "L",
    )


@pytest.mark.parametrize("n", [0, 1, 2, 7, 60])
def test_cholesky_is_solved_in_an_order_that_works(n):
    m = RNG.random((n, n))
    a = m @ m.T + n * np.eye(n)
    assert_allclose(evaluate(cholesky(n), {"A": a})["L"], np.linalg.cholesky(a) if n else a)


def test_an_accumulation_may_read_its_own_finished_elements():
    rows = program(
        [tensor("x", 6), tensor("y", 6)],
        [
            plain(rd("y", "i"), rd("x", "i"), ax("i", 6)),
            adding(rd("y", "i"), rd("y", "k"), [ax("i", 6)], [ax("k", 6)], guard=less("k", "i")),
        ],
        "x",
        "y",
    )
    x = RNG.random(6)
    expected: list[float] = []
    for value in x:
        expected.append(value + sum(expected))
    assert_allclose(evaluate(rows, {"x": x})["y"], expected)


def test_tensors_that_need_each_other_are_evaluated_together():
    n = 50
    both = program(
        [tensor("a", n), tensor("b", n)],
        [
            plain(rd("a", "i"), op("add", rd("b", axis("i") - 1), num(1)), ax("i", n, 1)),
            plain(rd("b", "i"), op("mul", rd("a", "i"), num(0.5)), ax("i", n)),
            plain(rd("a", 0), num(1)),
        ],
        "",
        "a b",
    )
    a = [1.0]
    for _ in range(n - 1):
        a.append(a[-1] * 0.5 + 1)
    result = evaluate(both, {})
    assert_allclose(result["a"], a)
    assert_allclose(result["b"], np.array(a) / 2)


def test_a_wavefront_in_two_dimensions_with_padding():
    n = 40
    nought = Pad(Const(0.0, f64))
    best = op(
        "maximum",
        op("maximum", rd("h", axis("i") - 1, "j", boundary=nought), rd("h", "i", axis("j") - 1, boundary=nought)),
        op("add", rd("h", axis("i") - 1, axis("j") - 1, boundary=nought), rd("x", "i", "j")),
    )
    align = program(
        [tensor("x", n, n), tensor("h", n, n)], [plain(rd("h", "i", "j"), best, ax("i", n), ax("j", n))], "x", "h"
    )
    x = RNG.random((n, n)) - 0.5
    expected = np.zeros((n + 1, n + 1))
    for i in range(n):
        for j in range(n):
            expected[i + 1, j + 1] = max(expected[i, j + 1], expected[i + 1, j], expected[i, j] + x[i, j])
    assert_allclose(evaluate(align, {"x": x})["h"], expected[1:, 1:])


def test_a_gather_of_earlier_elements_of_itself():
    parent = np.array([0, 0, 1, 0, 2, 4])
    value = op("add", rd("d", DataIndex(rd("p", "i", dtype=i64))), num(1))
    depth = program(
        [tensor("p", 6, dtype=i64), tensor("d", 6)],
        [plain(rd("d", 0), num(0)), plain(rd("d", "i"), value, ax("i", 6, 1))],
        "p",
        "d",
    )
    assert_array_equal(evaluate(depth, {"p": parent})["d"], [0, 1, 2, 1, 3, 4])
    with pytest.raises(DefinitionError, match="depends on itself"):
        evaluate(depth, {"p": np.array([0, 2, 1, 0, 2, 4])})


def test_a_scatter_inside_a_recurrence_over_time():
    """u[t + 1, next[t, i]] += u[t, i]: walkers move, and their number stays."""
    steps, n = 5, 7
    step = adding(
        rd("u", axis("t") + 1, DataIndex(rd("to", "t", "i", dtype=i64))),
        rd("u", "t", "i"),
        [ax("t", steps)],
        [ax("i", n)],
    )
    walk = program(
        [tensor("to", steps, n, dtype=i64), tensor("x", n), tensor("u", steps + 1, n)],
        [plain(rd("u", 0, "i"), rd("x", "i"), ax("i", n)), step],
        "to x",
        "u",
    )
    to, x = RNG.integers(0, n, (steps, n)), RNG.random(n)
    expected = np.zeros((steps + 1, n))
    expected[0] = x
    for t in range(steps):
        np.add.at(expected[t + 1], to[t], expected[t])
    assert_allclose(evaluate(walk, {"to": to, "x": x})["u"], expected)


def test_a_cycle_is_named():
    loop = program(
        [tensor("a", 4), tensor("b", 4)],
        [plain(rd("a", "i"), rd("b", "i"), ax("i", 4)), plain(rd("b", "i"), rd("a", "i"), ax("i", 4))],
        "",
        "b",
    )
    with pytest.raises(DefinitionError) as caught:
        evaluate(loop, {})
    assert caught.value.facts["cycle"] in [("a[0]", "b[0]"), ("b[0]", "a[0]")]


def test_an_undefined_element_inside_a_recurrence_is_named():
    value = op("add", rd("s", axis("i") - 1), num(1))
    hole = program([tensor("s", 4)], [plain(rd("s", "i"), value, ax("i", 4, 1))], "", "s")
    with pytest.raises(DefinitionError) as caught:
        evaluate(hole, {})
    assert caught.value.facts["index"] == (0,)
    assert caught.value.facts["point"] == {"i": 1}


def test_two_definitions_inside_a_recurrence_are_named():
    value = op("add", rd("s", axis("i") - 1), num(1))
    double = program(
        [tensor("s", 4)],
        [plain(rd("s", "i"), value, ax("i", 4, 1)), plain(rd("s", "i"), num(1), ax("i", 2), name="start")],
        "",
        "s",
    )
    with pytest.raises(DefinitionError) as caught:
        evaluate(double, {})
    assert caught.value.facts["index"] == (1,)


def test_subscripts_helper_accepts_every_form():
    assert at("i") == axis("i") and at(3) == constant(3)


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        (i8, [0, 0, 0, 44, -3, 0]),
        (u8, [0, 0, 0, 44, 253, 0]),
        (i32, [-(2**31), -(2**31), -(2**31), 300, -3, -(2**31)]),
        (u32, [0, 0, 0, 300, 2**32 - 3, 0]),
        (i64, [-(2**63), -(2**63), -(2**63), 300, -3, -(2**63)]),
        (u64, [2**63, 0, 2**63, 300, 2**64 - 3, 2**63]),
    ],
    ids=str,
)
@pytest.mark.parametrize("repeats", [1, 7])
def test_floats_that_an_integer_does_not_hold(dtype, expected, repeats):
    """NumPy gives one number in its vector loop and another one behind it."""
    values = np.array([np.nan, np.inf, -np.inf, 300.7, -3.7, -1e30] * repeats, np.float32)
    assert_array_equal(Arithmetic("strict", {}).cast(values, dtype), np.array(expected * repeats, dtype.numpy))

    @po.op
    def converted(x: po.f32[N]):
        y, i = po.tensor("y"), po.index("i")
        y[i] = po.cast(x[i], dtype)
        return y

    assert_array_equal(converted(values), np.array(expected * repeats, dtype.numpy))
    assert_array_equal(converted.reference(values), np.array(expected * repeats, dtype.numpy))
