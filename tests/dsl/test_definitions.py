"""Definitions: what `=`, `+=`, `*=`, guards, ranges and boundaries become in the core program."""

from __future__ import annotations

import pytest

import polyopt as po
from polyopt import DefinitionError, DTypeError, f16, f32, f64, i8, i32, i64
from polyopt.dsl import affine as af
from polyopt.dsl import ir
from tests.dsl.tracing import dtypes, equations, program

M, N, K, T = po.sizes("M N K T")
i, j, k, t = po.indices("i j k t")


def linear_relu(x: f32[M, K], w: f32[K, N], b: f32[N]) -> object:
    y, out = po.tensors("y out")
    y[i, j] += x[i, k] * w[k, j]
    out[i, j] = po.maximum(y[i, j] + b[j], 0)
    return out


def test_an_index_on_the_right_only_is_summed() -> None:
    found = program(linear_relu)
    product, relu = found.equations
    assert [axis.name for axis in product.axes] == ["i", "j"]
    assert [axis.name for axis in product.reduce_axes] == ["k"]
    assert product.reducer == ir.Reducer("sum", f32, ir.Const(0.0, f32))
    assert relu.reducer is None and not relu.reduce_axes


def test_a_program_names_sizes_parameters_and_results_in_order() -> None:
    found = program(linear_relu)
    assert found.name == "linear_relu"
    assert found.sizes == ("M", "K", "N")
    assert found.parameters == ("x", "w", "b")
    assert found.results == ("out",)
    assert [tensor.role for tensor in found.tensors] == ["input"] * 3 + ["local", "output"]
    assert found.tensor("x").shape == (af.size("M"), af.size("K"))
    assert found.tensor("y").shape is None and found.tensor("y").rank == 2


def test_ranges_are_left_open_unless_they_are_explicit() -> None:
    def steps(x: f32[N]) -> object:
        s, u = po.index("s", extent=T), po.index("u", 1, N - 1)
        y = po.tensor("y")
        y[s, u] = x[u]
        return y

    first, second = program(steps).equations[0].axes
    assert first == ir.Axis("s", (af.constant(0),), (af.size("T"),))
    assert second == ir.Axis("u", (af.constant(1),), (af.size("N") - 1,))
    assert not program(linear_relu).equations[0].axes[0].is_resolved


def test_an_index_can_be_given_its_end_alone() -> None:
    made = po.index("t", 5)
    assert made.lower is not None and made.upper is not None
    with pytest.raises(DefinitionError, match="more than one range"):
        po.index("t", 5, extent=3)


def test_times_equals_multiplies_up() -> None:
    def product(x: f32[N]) -> object:
        p = po.tensor("p")
        p[()] *= x[i]
        return p

    (equation,) = program(product).equations
    assert equation.reducer == ir.Reducer("prod", f32, ir.Const(1.0, f32))


def test_minus_equals_adds_the_negative() -> None:
    def residual(x: f32[N], y: f32[N]) -> object:
        r = po.tensor("r")
        r[i] = x[i]
        r[i] -= y[i]
        return r

    assert equations(residual) == ["r[i] = x[i]", "r[i] += -y[i]"]


def test_an_accumulation_in_a_python_variable_is_plain_addition() -> None:
    def total(x: f32[N], y: f32[N]) -> object:
        z = po.tensor("z")
        acc = x[i]
        acc += y[i]
        z[i] = acc
        return z

    assert equations(total) == ["z[i] = x[i] + y[i]"]


def test_plus_equals_and_times_equals_on_one_tensor_are_refused() -> None:
    def both(x: f32[N]) -> object:
        y = po.tensor("y")
        y[()] += x[i]
        y[()] *= x[i]
        return y

    with pytest.raises(DefinitionError, match=r"\+= and \*="):
        program(both)


def test_when_becomes_the_guard() -> None:
    def lower(x: f32[N, N]) -> object:
        y = po.tensor("y")
        y[i, j] = po.when(j < i, po.when(i > 0, x[i, j]))
        y[i, i] = 1
        y[i, j] += po.when(j > i, x[j, i])
        return y

    assert equations(lower) == [
        "y[i, j] = when((j < i) & (i > 0), x[i, j])",
        "y[i, i] = 1",
        "y[i, j] += when(j > i, x[j, i])",
    ]


def test_when_over_data_is_refused() -> None:
    def positive(x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = po.when(x[i] > 0, x[i])
        return y

    with pytest.raises(DefinitionError, match=r"po\.when must be affine") as caught:
        program(positive)
    assert "po.where" in caught.value.fix


def test_when_inside_a_value_is_refused() -> None:
    def doubled(x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = 2 * po.when(i > 0, x[i])
        return y

    with pytest.raises(DefinitionError, match="whole right side"):
        program(doubled)


def test_where_by_indices_is_a_choice_of_domains_and_by_data_a_select() -> None:
    def chosen(x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = po.where(i == 0, 0, x[i - 1]) + po.where(x[i] > 0, x[i], 0)
        return y

    value = program(chosen).equations[0].value
    assert isinstance(value, ir.Op)
    split, select = value.args
    assert isinstance(split, ir.Where)
    assert split.condition == af.Compare(af.axis("i"), "==")
    assert isinstance(select, ir.Op) and select.name == "select"


def test_data_in_a_conjunction_is_read_only_where_the_affine_part_holds() -> None:
    def rising(x: f32[N]) -> object:
        y, z = po.tensors("y z")
        y[i] = po.where((i > 0) & (x[i - 1] > 0), 1.0, 2.0)
        z[i] = po.where((x[i - 1] > 0) | (i == 0), 1.0, 2.0)
        return y, z

    assert equations(rising) == [
        "y[i] = where(i > 0, where(x[i - 1] > 0, 1, 2), 2)",
        "z[i] = where(i == 0, 1, where(x[i - 1] > 0, 1, 2))",
    ]


def test_a_condition_can_be_a_value() -> None:
    def mask(x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = x[i] * (i < 3)
        return y

    assert equations(mask) == ["y[i] = x[i] * where(i < 3, 1, 0)"]


def test_conditions_combine() -> None:
    def inner(x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = po.where(~((0 < i) & (i < N - 1)) | (i == 5), 0, x[i])
        return y

    (condition,) = [n.condition for n in ir.walk(program(inner).equations[0].value) if isinstance(n, ir.Where)]
    for size in (4, 9):
        for at in range(size):
            assert af.holds(condition, {"i": at}, {"N": size}) == (not 0 < at < size - 1 or at == 5)


def test_boundaries_go_with_the_read() -> None:
    def shifted(x: f32[N], q: i8[N]) -> object:
        y = po.tensor("y")
        y[i] = x.pad(1.5)[i - 1] + x.clamp()[i + 1] + x.wrap()[i + 2] + q.pad(-1)[i - 1]
        return y

    reads = list(ir.reads(program(shifted).equations[0].value))
    assert [read.boundary for read in reads] == [
        ir.Pad(ir.Const(1.5, f32)),
        ir.Clamp(),
        ir.Wrap(),
        ir.Pad(ir.Const(-1, i8)),
    ]


def test_a_pad_value_that_does_not_fit_is_refused() -> None:
    def padded(q: i8[N]) -> object:
        y = po.tensor("y")
        y[i] = q.pad(300)[i - 1]
        return y

    with pytest.raises(DTypeError, match="300 does not fit i8"):
        program(padded)


def test_a_left_side_may_be_affine() -> None:
    def rows(x: f32[N]) -> object:
        u = po.tensor("u")
        u[0, i] = x[i]
        u[t + 1, 2 * i + 1] = u[t, i]
        u[t + 1, 2 * i] = 0
        return u

    assert [equation.split(" = ")[0] for equation in equations(rows)] == [
        "u[0, i]",
        "u[t + 1, 2*i + 1]",
        "u[t + 1, 2*i]",
    ]


def test_a_gather_and_a_scatter_have_data_subscripts() -> None:
    def lookup(table: f32[M, N], ids: i32[K]) -> object:
        y, hist = po.tensor("y"), po.tensor("hist", shape=(M,))
        y[i, j] = table[ids[i], j]
        hist[ids[i]] += 1
        return y, hist

    gather, scatter = program(lookup).equations
    (read,) = [r for r in ir.reads(gather.value) if r.tensor == "table"]
    assert isinstance(read.subscripts[0], ir.DataIndex)
    assert isinstance(scatter.subscripts[0], ir.DataIndex)
    assert not scatter.axes and [axis.name for axis in scatter.reduce_axes] == ["i"]


def test_a_plain_definition_at_a_data_subscript_is_refused() -> None:
    def scattered(ids: i32[K]) -> object:
        y = po.tensor("y", shape=(N,))
        y[ids[i]] = 1
        return y

    with pytest.raises(DefinitionError, match="position that is data"):
        program(scattered)


def test_a_float_is_no_data_subscript() -> None:
    def lookup(table: f32[M], x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = table[x[i]]
        return y

    with pytest.raises(DTypeError, match="not an integer"):
        program(lookup)


def test_an_index_and_a_size_are_values() -> None:
    def ramp(x: f32[N]) -> object:
        y, z, n = po.tensors("y z n")
        y[i] = po.cast(i, f32) * x[i] + x.shape[0]
        z[i] = x[i] * i
        n[()] = N
        return y, z, n

    assert dtypes(ramp) == {"y": "f32", "z": "f64", "n": "i64"}


def test_equations_that_no_result_needs_are_dropped() -> None:
    def one(x: f32[N]) -> object:
        y, z = po.tensors("y z")
        y[i] = x[i]
        z[i] = 2 * x[i]
        return y

    found = program(one)
    assert [equation.tensor for equation in found.equations] == ["y"]
    assert [tensor.name for tensor in found.tensors] == ["x", "y"]


def test_definitions_may_stand_before_what_they_read() -> None:
    def backwards(x: f32[N]) -> object:
        y, z = po.tensors("y z")
        y[i] = z[i] + 1
        z[i] = 2 * x[i]
        return y

    assert equations(backwards) == ["y[i] = z[i] + 1", "z[i] = 2 * x[i]"]


def test_names_are_unique() -> None:
    def halves(x: f32[N]) -> object:
        y = po.tensor("y")
        y[i] = x[i]
        again, parameter = po.tensor("y"), po.tensor("x")
        again[i] = y[i] / 2
        parameter[i] = again[i] + 1
        return parameter

    assert [equation.tensor for equation in program(halves).equations] == ["y", "y_1", "x_1"]


def test_an_axis_does_not_share_the_name_of_a_size() -> None:
    def named(x: f32["n"]) -> object:  # noqa: UP037  # the name of a size
        n = po.index("n")
        y = po.tensor("y")
        y[n] = x[n]
        return y

    assert [axis.name for axis in program(named).equations[0].axes] == ["n_1"]


def test_two_indices_of_one_name_are_two_axes() -> None:
    def outer(x: f32[N]) -> object:
        first, second = po.index("i"), po.index("i")
        y = po.tensor("y")
        y[first, second] = x[first] * x[second]
        return y

    assert equations(outer) == ["y[i, i_1] = x[i] * x[i_1]"]


def test_a_definition_that_repeats_itself_out_of_hand_is_refused() -> None:
    def doubling(x: f64[N]) -> object:
        y = po.tensor("y")
        value = x[i]
        for _ in range(60):
            value = value + value
        y[i] = value
        return y

    with pytest.raises(DefinitionError, match="more than 50000 operations"):
        program(doubling)


def test_definitions_that_repeat_their_parts_together_are_refused() -> None:
    """Each was below what one may have, and their compile did not end."""

    def rounds(x: f64[16, N]) -> object:
        y = po.tensor("y")
        values = [x[row, i] for row in range(16)]
        for step in range(4 * 16):
            values[step % 16] = values[step % 16] + values[(step + 5) % 16] * values[(step + 11) % 16]
        for row in range(16):
            y[row, i] = values[row]
        return y

    with pytest.raises(DefinitionError, match="repeat more than 25000 operations") as refused:
        program(rounds)
    assert refused.value.where is not None and "t[i]" in refused.value.fix


def test_a_subscript_of_the_left_side_is_counted_too() -> None:
    """Its compile did not end."""

    def scattered(x: f64[N], bins: i64[N]) -> object:
        y = po.tensor("y", shape=(N,))
        place = bins[i]
        for _ in range(20):
            place = place + place
        y[place] += x[i]
        return y

    with pytest.raises(DefinitionError, match="has more than 50000 operations"):
        program(scattered)


def test_a_long_sum_of_terms_is_no_trouble() -> None:
    def many(x: f32[N]) -> object:
        y = po.tensor("y")
        value = x[i]
        for d in range(400):
            value = value + x.pad(0)[i - d]
        y[i] = value
        return y

    assert len(list(ir.reads(program(many).equations[0].value))) == 401


def test_scalars_of_the_op_are_tensors_of_rank_0() -> None:
    def scaled(x: f16[N], a: f32) -> object:
        y = po.tensor("y")
        y[i] = a * x[i]
        return y

    found = program(scaled)
    assert found.tensor("a") == ir.Tensor("a", f32, (), "input", 0)
    assert dtypes(scaled) == {"y": "f32"}
