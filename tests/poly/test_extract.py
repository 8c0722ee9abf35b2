"""From equations to statements: domains, roles, accesses and start values, compared as isl relations."""

from __future__ import annotations

from typing import Any

import islpy as isl
import numpy as np
import pytest

import polyopt as po
from polyopt import bf16, f16, f32, f64, i8, i32, i64
from polyopt.dsl import affine, ir
from polyopt.dtypes import bool_, u8
from polyopt.errors import DefinitionError
from polyopt.poly import ranges
from polyopt.poly.extract import extract, highest, lowest, start_value
from polyopt.poly.scop import Scop, Statement
from tests.poly.build import MAX, SUM, add, axis, data, equation, local, output, program, read, reduce, tensor
from tests.poly.operators import M, N, histogram, i, j, jacobi_1d, k, product


def scop_of(op: po.Op, **sizes: Any) -> Scop:
    return extract(op.lower(**sizes).program)


def of(tensors: list[ir.Tensor], equations: list[ir.Equation], sizes: str = "") -> Scop:
    return extract(ranges.resolve(program(tensors, equations, tuple(sizes))))


def same(found: isl.Set | isl.Map, text: str) -> bool:
    if isinstance(found, isl.Set):
        return found.is_equal(isl.Set(text))
    return found.is_equal(isl.Map(text))


def read_of(statement: Statement, array: str) -> isl.Map:
    """The relation of a statement's only read of an array."""
    (access,) = [a for a in statement.reads if a.read.tensor == array]
    return access.relation


def test_a_definition_is_one_statement_with_its_domain_write_and_reads() -> None:
    @po.op
    def shifted(x: f64[M, N]):
        y = po.tensor("y")
        y[j, i] = x[i, j] * 2.0
        return y

    (statement,) = scop_of(shifted, M=3, N=4).statements
    assert statement.role == "define" and statement.reducer is None and not statement.is_update
    assert same(statement.domain, "{ y[j, i] : 0 <= i < 3 and 0 <= j < 4 }")
    assert same(statement.write, "{ y[j, i] -> y[j, i] : 0 <= i < 3 and 0 <= j < 4 }")
    assert same(read_of(statement, "x"), "{ y[j, i] -> x[i, j] : 0 <= i < 3 and 0 <= j < 4 }")


def test_an_accumulation_is_a_start_value_and_an_update() -> None:
    scop = scop_of(product, M=2, N=3, K=4)
    start, update, out = scop.statements
    assert [s.role for s in scop.statements] == ["init", "update", "define"]
    assert start.reducer is None and start.value == ir.Const(0.0, f32)
    assert update.reducer is not None and update.reducer.name == "sum" and update.is_update
    assert same(update.domain, "{ y_update[i, j, k] : 0 <= i < 2 and 0 <= j < 3 and 0 <= k < 4 }")
    assert same(start.write, "{ y_init[i, j] -> y[i, j] : 0 <= i < 2 and 0 <= j < 3 }")
    assert scop.writers("y") == (start, update)
    assert scop.statement("out") is out and scop.array("out").role == "output"


def test_an_accumulation_starts_from_the_plain_definition_and_from_zero_elsewhere() -> None:
    @po.op
    def partly(x: f64[N]):
        y = po.tensor("y", shape=(N,))
        y[i] = po.when(i < 2, x[i])
        y[i] += x[i] * x[k]
        return y

    scop = scop_of(partly, N=5)
    define, start, update = (s for s in scop.statements)
    assert [s.role for s in scop.statements] == ["define", "init", "update"]
    assert same(define.write.range(), "{ y[i] : 0 <= i < 2 }")
    assert same(start.write.range(), "{ y[i] : 2 <= i < 5 }")
    assert same(update.write.range(), "{ y[i] : 0 <= i < 5 }")


def test_an_accumulation_onto_a_full_definition_has_no_start_value() -> None:
    @po.op
    def onto(x: f64[N], b: f64[N]):
        y = po.tensor("y")
        y[i] = b[i]
        y[i] += x[i] * x[k]
        return y

    assert [s.role for s in scop_of(onto, N=5).statements] == ["define", "update"]


def test_several_accumulations_share_their_start_values() -> None:
    @po.op
    def both(x: f64[N], w: f64[N]):
        y = po.tensor("y", shape=(N,))
        y[i] += x[i] * x[k]
        y[i] += w[i] * w[k]
        return y

    scop = scop_of(both, N=3)
    assert [s.role for s in scop.statements] == ["init", "update", "update"]
    assert len({s.name for s in scop.statements}) == 3


def test_a_scatter_covers_the_whole_shape_and_may_update_every_element() -> None:
    start, update = scop_of(histogram, N=5, count=3).statements
    assert same(start.write.range(), "{ h[d] : 0 <= d < 3 }")
    assert same(update.write, "{ h_update[i] -> h[d] : 0 <= i < 5 and 0 <= d < 3 }")
    assert same(read_of(update, "bins"), "{ h_update[i] -> bins[i] : 0 <= i < 5 }")


def test_accumulations_with_two_operations_are_refused_by_name() -> None:
    largest = ir.Reducer("max", f32, ir.Const(0.0, f32))
    first = equation("y", ["i"], read("x", "i"), axes=[axis("i", 0, 4)], accumulate=True)
    second = ir.Equation("y_1", "y", first.axes, first.subscripts, first.value, reducer=largest)
    tensors = [tensor("x", 4), tensor("y", 4, role="output")]
    with pytest.raises(DefinitionError, match="two different operations") as caught:
        extract(program(tensors, [first]).__class__("p", (), tuple(tensors), (first, second), ("x",), ("y",)))
    assert caught.value.facts == {"tensor": "y"}
    assert "'sum' and 'max'" in caught.value.why


@pytest.mark.parametrize(("narrow", "wide"), [(f16, "f32"), (bf16, "f32"), (i8, "i32")])
def test_a_narrow_accumulation_runs_in_a_wider_array_and_is_rounded_once(narrow: Any, wide: str) -> None:
    @po.op
    def summed(x: narrow[M, N]):
        y = po.tensor("y", shape=(M,), dtype=narrow)
        y[i] += x[i, j]
        return y

    scop = scop_of(summed, M=2, N=3)
    assert [s.role for s in scop.statements] == ["init", "update", "define"]
    accumulator = scop.statements[0].array
    assert str(scop.array(accumulator).dtype) == wide and scop.array(accumulator).role == "local"
    rounding = scop.statements[2]
    assert isinstance(rounding.value, ir.Cast) and rounding.array == "y"
    assert same(rounding.write.range(), "{ y[i] : 0 <= i < 2 }")


def test_a_plain_start_of_a_narrow_accumulation_is_widened() -> None:
    @po.op
    def onto(x: f16[M, N], b: f16[M]):
        y = po.tensor("y", dtype=f16)
        y[i] = b[i]
        y[i] += x[i, j]
        return y

    first = scop_of(onto, M=2, N=3).statements[0]
    assert isinstance(first.value, ir.Cast) and first.value.dtype == f32


def test_a_reduction_inside_an_expression_has_an_array_over_the_axes_it_uses() -> None:
    @po.op
    def centred(x: f64[M, N]):
        y = po.tensor("y")
        y[i, j] = x[i, j] - po.max(x[i, k], k)
        return y

    scop = scop_of(centred, M=3, N=4)
    start, update, define = scop.statements
    array = scop.array(start.array)
    assert array.role == "local" and len(array.shape) == 1 and array.shape[0].constant == 3
    assert same(update.domain, f"{{ {update.name}[i, k] : 0 <= i < 3 and 0 <= k < 4 }}")
    assert update.axes == ("i", "k") and define.role == "define"


def test_a_reduction_under_a_guard_runs_where_some_instance_needs_it() -> None:
    @po.op
    def lower(x: f64[N, N]):
        y = po.tensor("y", shape=(N, N))
        y[i, j] = po.where(j < i - 1, po.sum(x[i, k], k) * x[i, j], 0.0)
        return y

    update = next(s for s in scop_of(lower, N=5).statements if s.is_update)
    assert same(update.domain, f"{{ {update.name}[i, k] : 2 <= i < 5 and 0 <= k < 5 }}")


def test_one_reduction_used_twice_is_computed_once() -> None:
    @po.op
    def twice(x: f64[M, N]):
        y = po.tensor("y")
        total = po.sum(x[i, k], k)
        y[i, j] = x[i, j] / total + total
        return y

    scop = scop_of(twice, M=2, N=3)
    assert [s.role for s in scop.statements] == ["init", "update", "define"]


def test_a_reduction_inside_a_reduction_is_a_statement_of_its_own() -> None:
    @po.op
    def nested(x: f64[M, N]):
        y = po.tensor("y")
        y[i] = po.sum(x[i, j] * po.sum(x[k, j], k), j)
        return y

    scop = scop_of(nested, M=2, N=3)
    assert [s.role for s in scop.statements].count("update") == 2
    assert not any(isinstance(node, ir.Reduce) for s in scop.statements for node in ir.walk(s.value))


def test_a_reduction_in_a_data_subscript_is_hoisted_too() -> None:
    @po.op
    def picked(x: f64[N], ids: i64[N, N]):
        y = po.tensor("y")
        y[i] = x[po.max(ids[i, k], k)]
        return y

    scop = scop_of(picked, N=3)
    define = scop.statement("y")
    assert {a.read.tensor for a in define.reads} == {"x", next(s.array for s in scop.statements if s.is_update)}
    assert same(read_of(define, "x"), "{ y[i] -> x[d] : 0 <= i < 3 and 0 <= d < 3 }")


def test_a_guarded_reduction_sums_only_where_its_guard_holds() -> None:
    @po.op
    def triangle(x: f64[N, N]):
        y = po.tensor("y")
        y[i] = po.sum(x[i, k], k, where=k <= i)
        return y

    update = next(s for s in scop_of(triangle, N=4).statements if s.is_update)
    assert same(update.domain, f"{{ {update.name}[i, k] : 0 <= k <= i < 4 }}")


def test_each_branch_of_an_affine_choice_reads_where_it_is_taken() -> None:
    update = scop_of(jacobi_1d, N=5, steps=3).statement("u_1")
    edge = [
        a.relation.domain()
        for a in update.reads
        if same(a.relation.range(), "{ u[t, i] : 0 <= t < 3 and (i = 0 or i = 4) }")
    ]
    assert len(edge) == 1
    middle = isl.Set("{ u_1[t, i] : 0 <= t < 3 and 0 < i < 4 }")
    assert sum(bool(a.relation.domain().is_equal(middle)) for a in update.reads) == 3


@pytest.mark.parametrize(
    ("boundary", "relation"),
    [
        ("pad", "{ y[i] -> x[i - 1] : 1 <= i < 4 }"),
        ("clamp", "{ y[i] -> x[i - 1] : 1 <= i < 4; y[0] -> x[0] }"),
        ("wrap", "{ y[i] -> x[i - 1] : 1 <= i < 4; y[0] -> x[3] }"),
    ],
)
def test_a_read_beyond_the_border_touches_what_its_boundary_says(boundary: str, relation: str) -> None:
    @po.op
    def moved(x: f64[N]):
        y = po.tensor("y")
        source = {"pad": x.pad(0), "clamp": x.clamp(), "wrap": x.wrap()}[boundary]
        y[i] = source[i - 1] + x[i] * 0.0
        return y

    (statement,) = scop_of(moved, N=4).statements
    bounded = next(a for a in statement.reads if a.read.boundary is not None)
    assert same(bounded.relation, relation)


def test_a_periodic_read_of_symbolic_extent_may_touch_every_element_where_it_leaves() -> None:
    @po.op(dynamic=True)
    def moved(x: f64[N]):
        y = po.tensor("y")
        y[i] = x.wrap()[i - 1] + x[i]
        return y

    (statement,) = extract(moved.lower().program).statements
    bounded = next(a for a in statement.reads if a.read.boundary is not None)
    assert same(bounded.relation, "[N] -> { y[i] -> x[i - 1] : 1 <= i < N; y[0] -> x[d] : 0 <= d < N }")


def test_what_is_known_of_symbolic_sizes_is_the_context() -> None:
    @po.op(dynamic=True)
    def tail(x: f64[N]):
        y = po.tensor("y", shape=(N - 2,))
        y[i] = x[i + 2]
        return y

    scop = extract(tail.lower().program)
    assert scop.sizes == ("N",)
    assert scop.context.is_subset(isl.Set("[N] -> { : N >= 0 }"))


def test_statements_that_never_run_are_left_out() -> None:
    @po.op
    def empty(x: f64[N]):
        y = po.tensor("y", shape=(N,))
        y[i] = po.when(i < 0, x[i] * 2.0)
        y[i] = po.when(i >= 0, x[i])
        return y

    assert len(scop_of(empty, N=3).statements) == 1


def test_names_of_statements_and_arrays_never_clash_with_the_users() -> None:
    @po.op
    def awkward(y_init: f64[N], y_update: f64[N]):
        y = po.tensor("y", shape=(N,))
        y[i] += y_init[i] * y_update[k]
        return y

    scop = scop_of(awkward, N=3)
    names = [s.name for s in scop.statements] + [a.name for a in scop.arrays]
    assert len({*names}) == len(names)
    x = np.arange(3.0)
    np.testing.assert_array_equal(awkward(x, x), awkward.reference(x, x))


def test_a_start_value_covers_only_what_the_left_side_reaches() -> None:
    double = equation("a", [affine.axis("i") * 2], read("x", "i"), axes=[axis("i", 0, 3)], accumulate=True)
    result = equation("y", ["i"], read("a", affine.axis("i") * 2), axes=[axis("i", 0, 3)])
    scop = of([tensor("x", 3), local("a", 1), output("y", 1)], [double, result])
    assert same(scop.statements[0].write.range(), "{ a[d] : (d) mod 2 = 0 and 0 <= d <= 4 }")


def test_a_diagonal_gets_names_for_its_dimensions() -> None:
    diagonal = equation("a", ["i", "i"], read("x", "i"), axes=[axis("i", 0, 3)], accumulate=True)
    result = equation("y", ["i"], read("a", "i", "i"), axes=[axis("i", 0, 3)])
    scop = of([tensor("x", 3), local("a", 2), output("y", 1)], [diagonal, result])
    assert scop.statements[0].axes == ("d0", "d1")
    assert same(scop.statements[0].write.range(), "{ a[d, d] : 0 <= d < 3 }")


def test_a_dimension_that_is_data_reaches_all_of_it() -> None:
    gather = equation("y", ["i"], read("x", data("ids", "i")), axes=[axis("i", 0, 3)])
    scop = of([tensor("x", 7), tensor("ids", 3, dtype=i64), output("y", 1)], [gather])
    (statement,) = scop.statements
    assert same(read_of(statement, "x"), "{ y_0[i] -> x[d] : 0 <= i < 3 and 0 <= d < 7 }")


@pytest.mark.parametrize("dtype", [i8, i32, i64, u8, f16, bf16, f32, f64, bool_])
def test_the_start_of_a_maximum_is_less_than_any_value(dtype: Any) -> None:
    low, high = lowest(dtype).value, highest(dtype).value
    if dtype.is_float:
        assert (low, high) == (float("-inf"), float("inf"))
    elif dtype.is_bool:
        assert (low, high) == (False, True)
    else:
        assert (low, high) == (np.iinfo(dtype.numpy).min, np.iinfo(dtype.numpy).max)


def test_a_reduction_starts_from_its_neutral_element_where_it_has_one() -> None:
    assert start_value(SUM) == ir.Const(0.0, f32)
    assert start_value(MAX) == lowest(f32)
    assert start_value(ir.Reducer("min", f32, None)) == highest(f32)


def test_a_whole_reduction_accumulates_into_the_defined_tensor() -> None:
    total = equation("y", [], reduce(SUM, add(read("x", "k"), read("x", "k")), axis("k")), axes=[])
    scop = of([tensor("x", 4), output("y", 0)], [total])
    assert [s.array for s in scop.statements] == ["y", "y"]
    assert not any(array.role == "local" for array in scop.arrays)


def test_a_local_tensor_is_local_storage() -> None:
    first = equation("a", ["i"], read("x", "i"), axes=[axis("i")])
    second = equation("y", ["i"], read("a", "i"), axes=[axis("i")])
    scop = of([tensor("x", 4), local("a", 1), output("y", 1)], [first, second])
    assert {array.name: array.role for array in scop.arrays} == {"x": "input", "a": "local", "y": "output"}


def test_one_reduction_under_two_guards_is_computed_for_both() -> None:
    """Sums inside sums: what is shared is shared only under the same guards."""

    @po.op
    def pieces(x: f64[M, N]):
        i, j, k, m = (po.index(n, extent=e) for n, e in (("i", M), ("j", N), ("k", N), ("m", N)))
        y = po.tensor("y", shape=(M, N))
        inner = po.sum(x[i, m], m, where=m <= k)
        for row in range(4):
            y[i, j] = po.when((i == row) & (j < 2), po.sum(x[i, k] * inner, k) + float(row))
            y[i, j] = po.when((i == row) & (j >= 2), po.sum(x[i, k] * inner * inner, k))
        return y

    x = np.random.default_rng(0).random((4, 3))
    np.testing.assert_allclose(pieces(x), pieces.reference(x), rtol=1e-12)


def test_a_reduction_without_a_start_value_begins_with_its_first_point() -> None:
    @po.op
    def folded(x: f64[M, N]):
        y = po.tensor("y")
        y[i] = po.reduce(lambda a, b: a * 0.5 + b, x[i, k], k)
        return y

    first, update = scop_of(folded, M=3, N=4).statements
    assert (first.role, update.role) == ("init", "update") and first.reducer is None
    assert same(first.domain, f"{{ {first.name}[i, k] : 0 <= i < 3 and k = 0 }}")
    assert same(update.domain, f"{{ {update.name}[i, k] : 0 <= i < 3 and 1 <= k < 4 }}")
