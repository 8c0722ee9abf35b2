"""Index ranges and shapes: the rules of the language, each with the smallest program that shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import polyopt as po
from polyopt.dsl import affine, ir
from polyopt.dsl.affine import TRUE, Affine, And, Compare, Condition, Or
from polyopt.errors import DefinitionError, PolyoptError, ShapeError
from polyopt.poly.ranges import infer, resolve
from tests.poly.build import (
    LIKE_AFFINE,
    MAX,
    ZERO,
    K,
    M,
    N,
    a,
    add,
    axis,
    data,
    eq,
    equation,
    h,
    i,
    j,
    k,
    le,
    local,
    lt,
    output,
    program,
    r,
    read,
    reduce,
    s,
    t,
    tensor,
    w,
    where,
)

Range = tuple[int, int]


def one_index(
    value: ir.Expr, *inputs: ir.Tensor, sizes: Sequence[str] = (), guard: Condition = TRUE, line: int = 0
) -> ir.Program:
    """`y[i] = value`."""
    tensors = [*inputs, output("y", 1)]
    return program(tensors, [equation("y", [i], value, axes=[axis("i")], guard=guard, line=line)], sizes)


def found(resolved: ir.Program, name: str, position: int = 0) -> Range:
    """The range of an axis of an equation at concrete sizes, nested reductions included."""
    axes = [*resolved.equations[position].all_axes]
    for node in ir.walk(resolved.equations[position].value):
        if isinstance(node, ir.Reduce):
            axes += node.axes
    (one,) = [one for one in axes if one.name == name]
    return max(b.constant for b in one.lower), min(b.constant for b in one.upper)


def shape(resolved: ir.Program, name: str) -> tuple[str, ...]:
    extents = resolved.tensor(name).shape
    assert extents is not None
    return tuple(str(extent) for extent in extents)


# --- parameters ----------------------------------------------------------------------------------------------


def test_an_index_alone_takes_the_extent_of_a_parameter() -> None:
    matmul = program(
        [tensor("x", 3, 5), tensor("w", 5, 4), output("y", 2)],
        [equation("y", [i, j], add(read("x", i, k), read("w", k, j)), axes=[axis("i"), axis("j")], over=[axis("k")])],
    )
    resolved = resolve(matmul)
    assert [found(resolved, name) for name in "ijk"] == [(0, 3), (0, 4), (0, 5)]
    assert shape(resolved, "y") == ("3", "4")


def test_extents_that_differ_are_an_error_that_names_both_places() -> None:
    value = add(read("x", i, line=3), read("w", 0, i, line=4))
    with pytest.raises(ShapeError) as raised:
        resolve(one_index(value, tensor("x", 3), tensor("w", 2, 5)))
    assert raised.value.facts == {"index": "i", "tensors": ("x", "w"), "dimensions": (0, 1), "extents": (3, 5)}
    assert raised.value.where is not None and raised.value.where.line == 4
    for part in ("x[i]: dimension 0 of 'x' has extent 3 (kernel.py:3)", "w[0, i]: dimension 1 of 'w' has extent 5"):
        assert part in str(raised.value)


def test_symbolic_extents_that_may_agree_become_a_condition() -> None:
    value = add(read("x", i), read("w", i))
    resolved = resolve(one_index(value, tensor("x", "M"), tensor("w", "N"), sizes="MN"))
    assert resolved.conditions == (Compare(M - N, "=="),)
    with pytest.raises(ShapeError):
        resolve(one_index(value, tensor("x", "M"), tensor("w", M + 1), sizes="M"))


def test_an_explicit_range_wins_over_extents() -> None:
    tensors = [tensor("x", 9), output("y", 1)]
    resolved = resolve(program(tensors, [equation("y", [i], read("x", i + 2), axes=[axis("i", 0, 4)])]))
    assert (found(resolved, "i"), shape(resolved, "y")) == ((0, 4), ("4",))


def test_an_explicit_range_may_be_empty() -> None:
    tensors = [tensor("x", 9), output("y", 1)]
    resolved = resolve(program(tensors, [equation("y", [i], read("x", i), axes=[axis("i", 0, -2)])]))
    assert (found(resolved, "i"), shape(resolved, "y")) == ((0, 0), ("0",))


def test_a_shape_given_to_a_defined_tensor_counts_like_a_parameter() -> None:
    tensors = [tensor("w", 3), tensor("y", 6, role="output")]
    resolved = resolve(program(tensors, [equation("y", [i], read("w", k), axes=[axis("i")], over=[axis("k")])]))
    assert (found(resolved, "i"), found(resolved, "k")) == ((0, 6), (0, 3))


def test_an_index_inside_a_data_subscript_takes_its_extent_and_the_data_bound_nothing() -> None:
    tensors = [tensor("table", 100, 8), tensor("ids", 5), output("y", 2)]
    lookup = equation("y", [i, j], read("table", data("ids", i), j), axes=[axis("i"), axis("j")])
    resolved = resolve(program(tensors, [lookup]))
    assert shape(resolved, "y") == ("5", "8")


def test_a_scatter_takes_its_shape_from_the_tensor() -> None:
    histogram = equation("hist", [data("bins", i)], ZERO, axes=[], over=[axis("i")])
    resolved = resolve(program([tensor("bins", 7), tensor("hist", 4, role="output")], [histogram]))
    assert (found(resolved, "i"), shape(resolved, "hist")) == ((0, 7), ("4",))
    with pytest.raises(DefinitionError, match="needs a shape"):
        resolve(program([tensor("bins", 7), output("hist", 1)], [histogram]))


# --- windows -------------------------------------------------------------------------------------------------


def test_reads_beside_the_index_alone_narrow_its_range() -> None:
    assert found(resolve(one_index(add(read("x", i), read("x", i + 2)), tensor("x", 10))), "i") == (0, 8)
    assert found(infer(one_index(add(read("x", i), read("x", i - 2)), tensor("x", 10))), "i") == (2, 10)


def test_a_window_is_the_valid_convolution() -> None:
    value = add(read("x", h + r, w * 2 + s), read("f", r, s))
    equations = [equation("y", [h, w], value, axes=[axis("h"), axis("w")], over=[axis("r"), axis("s")])]
    resolved = resolve(program([tensor("x", 10, 11), tensor("f", 3, 2), output("y", 2)], equations))
    assert [found(resolved, name) for name in "hwrs"] == [(0, 8), (0, 5), (0, 3), (0, 2)]
    dynamic = resolve(program([tensor("x", "M", 11), tensor("f", "K", 2), output("y", 2)], equations, sizes="MK"))
    assert shape(dynamic, "y") == ("-K + M + 1", "5")
    assert Compare(M - K + 1, ">=") in dynamic.conditions


def test_a_window_larger_than_the_tensor_leaves_nothing() -> None:
    value = add(read("x", i + r), read("f", r))
    equations = [equation("y", [i], value, axes=[axis("i")], over=[axis("r")])]
    assert shape(resolve(program([tensor("x", 2), tensor("f", 5), output("y", 1)], equations)), "y") == ("0",)


def test_a_window_found_by_another_window_waits_for_it() -> None:
    value = add(read("x", i + r), read("f", r * 2))
    equations = [equation("y", [i], value, axes=[axis("i")], over=[axis("r")])]
    resolved = resolve(program([tensor("x", 10), tensor("f", 5), output("y", 1)], equations))
    assert (found(resolved, "r"), found(resolved, "i")) == ((0, 3), (0, 8))


@pytest.mark.parametrize(
    ("subscript", "expected"),
    [
        (i * 2, (0, 5)),
        (i * 3 + 1, (0, 3)),
        (Affine(9) - i, (0, 10)),
        (Affine(12) - i * 2, (2, 7)),
        (i // 2, (0, 20)),
        ((i + 1) // 3 - 1, (2, 32)),
    ],
    ids=str,
)
def test_an_affine_subscript_by_itself_bounds_the_index(subscript: Affine, expected: Range) -> None:
    assert found(infer(one_index(read("x", subscript), tensor("x", 10))), "i") == expected


def test_an_index_that_is_a_subscript_by_itself_starts_at_0() -> None:
    shift = program([tensor("x", 10), output("y", 1)], [equation("y", [i], read("x", i + 1), axes=[axis("i")])])
    assert found(resolve(shift), "i") == (0, 9)
    moved = program([tensor("x", 10), output("y", 1)], [equation("y", [i + 1], read("x", i + 1), axes=[axis("i")])])
    assert (found(resolve(moved), "i"), shape(resolve(moved), "y")) == ((-1, 9), ("10",))


def test_mutually_recursive_definitions_find_their_ranges() -> None:
    equations = [
        equation("a", [0], read("x", 0), axes=[]),
        equation("b", [i], read("a", i), axes=[axis("i")]),
        equation("a", [i + 1], add(read("b", i), read("x", i + 1)), axes=[axis("i")]),
    ]
    resolved = resolve(program([tensor("x", 10), output("a", 1), output("b", 1)], equations))
    assert (shape(resolved, "a"), shape(resolved, "b")) == (("10",), ("10",))


def test_symbolic_floors_bound_the_index() -> None:
    assert shape(resolve(one_index(read("x", i // 2), tensor("x", "N"), sizes="N")), "y") == ("2*N",)
    assert shape(resolve(one_index(read("x", i * 2), tensor("x", "N"), sizes="N")), "y") == ("(N + 1)//2",)


# --- boundaries ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("boundary", [ir.Pad(ZERO), ir.Clamp(), ir.Wrap()], ids=["pad", "clamp", "wrap"])
def test_through_a_boundary_only_an_index_alone_gives_an_extent(boundary: ir.Boundary) -> None:
    value = add(read("x", i, boundary=boundary), read("x", i - 1, boundary=boundary))
    assert found(resolve(one_index(value, tensor("x", 10))), "i") == (0, 10)
    with pytest.raises(DefinitionError, match="has no range"):
        resolve(one_index(read("x", i - 1, boundary=boundary), tensor("x", 10)))


# --- guards --------------------------------------------------------------------------------------------------


def test_a_read_counts_only_where_its_branch_is_taken() -> None:
    shift = where(eq(i, 0), ZERO, read("x", i - 1))
    assert found(resolve(one_index(shift, tensor("x", 10))), "i") == (0, 11)
    assert shape(resolve(one_index(shift, tensor("x", "N"), sizes="N")), "y") == ("N + 1",)
    both = add(read("x", i), shift)
    assert found(resolve(one_index(both, tensor("x", 10))), "i") == (0, 10)


def test_a_side_that_no_read_bounds_ends_with_the_last_read() -> None:
    half = where(lt(i, 5), read("x", i * 2), ZERO)
    assert found(resolve(one_index(half, tensor("x", 100))), "i") == (0, 5)
    even = where(eq(i % 2, 0), read("x", i * 2), ZERO)
    assert found(resolve(one_index(even, tensor("x", 100))), "i") == (0, 49)


def test_of_several_intervals_the_longest_wins_and_of_equal_ones_the_first() -> None:
    hole = where(Or((eq(i, 3), lt(9, i), lt(i, 0))), read("x", i + 100), add(read("x", 0), read("z", i)))
    assert found(infer(one_index(hole, tensor("x", 50), tensor("z", 10))), "i") == (4, 10)
    tie = where(eq(i, 2), read("x", i + 100), add(read("x", 0), read("z", i)))
    assert found(infer(one_index(tie, tensor("x", 50), tensor("z", 5))), "i") == (0, 2)


def test_the_guard_of_an_equation_and_of_a_reduction_counts() -> None:
    tensors = [tensor("x", 10), output("y", 1)]
    guarded = equation("y", [i], read("x", i - 3), axes=[axis("i")], guard=le(5, i))
    assert found(infer(program(tensors, [guarded])), "i") == (5, 13)
    summed = reduce(MAX, read("x", i + k), axis("k", 0, 10), guard=le(k, 2))
    assert found(resolve(program(tensors, [equation("y", [i], summed, axes=[axis("i")])])), "i") == (0, 8)


def test_a_guard_that_never_holds_counts_as_none() -> None:
    never = where(lt(i, i), read("x", i + 1), ZERO)
    assert found(infer(one_index(never, tensor("x", 10))), "i") == (0, 9)


def test_sibling_reductions_may_share_a_name_with_different_ranges() -> None:
    value = add(reduce(MAX, read("x", i, k), axis("k")), reduce(MAX, read("x", k, i), axis("k")))
    tensors = [tensor("x", 3, 3), tensor("z", 3, 5), output("y", 1)]
    value = add(value, reduce(MAX, read("z", i, k), axis("k")))
    resolved = resolve(program(tensors, [equation("y", [i], value, axes=[axis("i")])]))
    reductions = [node for node in ir.walk(resolved.equations[0].value) if isinstance(node, ir.Reduce)]
    assert [node.axes[0].upper for node in reductions] == [(a(3),), (a(3),), (a(5),)]


# --- extents of other definitions ----------------------------------------------------------------------------


def test_extents_flow_through_definitions_in_any_order() -> None:
    def pair(name: str) -> ir.Expr:
        return add(read(name, i), read(name, i + 2))

    equations = [
        equation("y", [i], pair("v"), axes=[axis("i")]),
        equation("v", [i], pair("u"), axes=[axis("i")]),
        equation("u", [i], pair("x"), axes=[axis("i")]),
    ]
    tensors = [local("u", 1), local("v", 1), output("y", 1)]
    assert shape(resolve(program([tensor("x", 20), *tensors], equations)), "y") == ("14",)
    dynamic = resolve(program([tensor("x", "N"), *tensors], equations, sizes="N"))
    assert shape(dynamic, "y") == ("N - 6",)


def test_a_recurrence_takes_the_extents_of_its_other_definition() -> None:
    inside = And((lt(0, i), lt(i, N - 1)))
    step = where(inside, add(read("u", t, i - 1), read("u", t, i + 1)), read("u", t, i))
    equations = [
        equation("u", [0, i], read("x", i), axes=[axis("i")]),
        equation("u", [t + 1, i], step, axes=[axis("t", 0, "K"), axis("i")]),
        equation("y", [i], read("u", K, i), axes=[axis("i")]),
    ]
    resolved = resolve(program([tensor("x", "N"), local("u", 2), output("y", 1)], equations, sizes="NK"))
    assert (shape(resolved, "u"), shape(resolved, "y")) == (("K + 1", "N"), ("N",))


def test_the_left_side_takes_the_extent_of_another_definition_of_its_tensor() -> None:
    equations = [
        equation("y", [i], read("w", k), axes=[axis("i")], over=[axis("k")]),
        equation("y", [i], read("b", i), axes=[axis("i")]),
    ]
    resolved = resolve(program([tensor("w", 3), tensor("b", 8), output("y", 1)], equations))
    assert found(resolved, "i") == (0, 8)


def test_inferred_extents_do_not_conflict() -> None:
    equations = [
        equation("u", [i], read("x", i), axes=[axis("i", 0, 6)]),
        equation("v", [i], read("x", i), axes=[axis("i", 0, 4)]),
        equation("y", [i], add(read("u", i), read("v", i)), axes=[axis("i")]),
    ]
    resolved = resolve(program([tensor("x", 9), local("u", 1), local("v", 1), output("y", 1)], equations))
    assert shape(resolved, "y") == ("4",)


def test_in_whole_tensor_arithmetic_inferred_extents_must_agree() -> None:
    def sum_of(first: int, second: int) -> ir.Program:
        whole = replace(equation("y", [i], add(read("u", i), read("v", i)), axes=[axis("i")]), is_whole=True)
        equations = [
            equation("u", [i], read("x", i), axes=[axis("i", 0, first)]),
            equation("v", [i], read("x", i), axes=[axis("i", 0, second)]),
            whole,
        ]
        return program([tensor("x", 9), local("u", 1), local("v", 1), output("y", 1)], equations)

    assert shape(resolve(sum_of(4, 4)), "y") == ("4",)
    with pytest.raises(ShapeError, match="do not fit together: extents 6 and 4"):
        resolve(sum_of(6, 4))


def test_equations_of_the_library_are_whole_and_those_of_the_user_are_not() -> None:
    @po.op
    def whole(x, z):
        u, v = po.tensors("u v")
        n = po.index("n")
        u[n], v[n] = x[n], z[n]
        return u + v

    @po.op
    def by_index(x, z):
        u, v, y = po.tensors("u v y")
        n = po.index("n")
        u[n], v[n] = x[n], z[n]
        y[n] = u[n] + v[n]
        return y

    three, five = np.ones(3, np.float32), np.ones(5, np.float32)
    assert by_index.reference(three, five).shape == (3,)
    assert whole.reference(three, three).shape == (3,)
    with pytest.raises(ShapeError, match="'u' and 'v' do not fit together: extents 3 and 5"):
        whole.reference(three, five)


def test_in_whole_tensor_arithmetic_an_inferred_extent_must_agree_with_a_parameter() -> None:
    whole = replace(equation("y", [i], add(read("x", i), read("u", i)), axes=[axis("i")]), is_whole=True)
    equations = [equation("u", [i], read("z", i), axes=[axis("i")]), whole]
    tensors = [tensor("x", 3), tensor("z", "N"), local("u", 1), output("y", 1)]
    resolved = resolve(program(tensors, equations, sizes="N"))
    assert resolved.conditions == (Compare(Affine(3) - N, "=="),)


def test_an_index_that_its_own_extent_would_move_stays_undetermined() -> None:
    equations = [
        equation("y", [0], ZERO, axes=[]),
        equation("y", [1], ZERO, axes=[]),
        equation("y", [i + 2], add(read("y", i), read("y", i + 1)), axes=[axis("i")]),
    ]
    with pytest.raises(DefinitionError, match="index 'i' in the definition of 'y' has no range"):
        resolve(program([output("y", 1)], equations))


def test_an_undetermined_index_is_named_and_extent_suggested() -> None:
    with pytest.raises(DefinitionError) as raised:
        resolve(one_index(read("x", 0), tensor("x", 4), line=7))
    assert raised.value.facts == {"index": "i", "tensor": "y"}
    assert raised.value.where is not None and raised.value.where.line == 7
    assert "extent=" in raised.value.fix


# --- shapes --------------------------------------------------------------------------------------------------


def test_a_shape_is_the_box_of_all_definitions() -> None:
    equations = [
        equation("u", [2, i], read("x", i), axes=[axis("i", 0, 3)]),
        equation("u", [t, i + 1], read("x", i), axes=[axis("t", 0, 2), axis("i", 0, 5)]),
    ]
    assert shape(infer(program([tensor("x", 9), local("u", 2)], equations)), "u") == ("3", "6")


def test_a_guard_shrinks_the_box_and_an_accumulation_ignores_it() -> None:
    axes = [axis("i", 0, 6), axis("j", 0, 6)]
    plain = equation("u", [i, j], ZERO, axes=axes, guard=lt(j, i))
    assert shape(infer(program([local("u", 2)], [plain])), "u") == ("6", "5")
    summed = equation("u", [i, j], ZERO, axes=axes, guard=lt(j, i), accumulate=True)
    assert shape(infer(program([local("u", 2)], [summed])), "u") == ("6", "6")


def test_an_empty_axis_keeps_the_other_extents() -> None:
    equations = [equation("y", [i, j], read("x", i, j), axes=[axis("i"), axis("j")], guard=le(j, 2))]
    assert shape(resolve(program([tensor("x", 0, 5), output("y", 2)], equations)), "y") == ("0", "3")


def test_two_sizes_that_could_each_be_the_extent_must_be_equal() -> None:
    equations = [
        equation("y", [i], ZERO, axes=[axis("i", 0, "M")]),
        equation("y", [i], ZERO, axes=[axis("i", 0, "N")], accumulate=True),
    ]
    resolved = resolve(program([output("y", 1)], equations, sizes="MN"))
    assert (shape(resolved, "y"), resolved.conditions) == (("M",), (Compare(M - N, "=="),))


def test_an_extent_between_bounds_is_the_one_of_large_sizes_where_the_sizes_agree() -> None:
    half = where(lt(i, 5), read("x", i * 2), ZERO)
    resolved = resolve(one_index(half, tensor("x", "N"), sizes="N"))
    assert shape(resolved, "y") == ("5",)
    assert [n for n in range(12) if all(affine.holds(c, {}, {"N": n}) for c in resolved.conditions)] == [9, 10, 11]


def test_a_symbolic_extent_that_is_not_affine_asks_for_a_shape() -> None:
    hidden = Or((lt(i, M // 3), And((lt(i, N), eq(i % 2, 0)))))
    with pytest.raises(DefinitionError, match="not an affine expression") as raised:
        resolve(
            program(
                [local("y", 1)],
                [equation("y", [(i * 3) % 5 + i], ZERO, axes=[axis("i", 0, M)], guard=hidden)],
                sizes="MN",
            )
        )
    assert "shape=" in raised.value.fix


def test_one_of_equal_sizes_stands_for_all() -> None:
    equations = [
        equation("u", [i], add(read("x", i), read("z", i)), axes=[axis("i")]),
        equation("v", [i], read("z", i), axes=[axis("i")]),
        equation("y", [i], add(read("u", i), read("v", i)), axes=[axis("i")]),
    ]
    tensors = [tensor("x", "M"), tensor("z", "N"), local("u", 1), local("v", 1), output("y", 1)]
    resolved = resolve(program(tensors, equations, sizes="MN"))
    assert resolved.conditions == (Compare(M - N, "=="),)
    assert {shape(resolved, name) for name in "uvy"} == {("M",)}
    assert shape(resolved, "z") == ("N",)


def test_the_larger_of_two_extents_becomes_a_condition() -> None:
    equations = [
        equation("y", [0], ZERO, axes=[]),
        equation("y", [i + 1], ZERO, axes=[axis("i", 0, N - 2)]),
    ]
    resolved = resolve(program([output("y", 1)], equations, sizes="N"))
    assert shape(resolved, "y") == ("N - 1",)
    assert resolved.conditions == (Compare(N - 2, ">="),)


def test_a_tensor_without_a_definition_is_an_error() -> None:
    with pytest.raises(DefinitionError, match="'u' has no definition"):
        resolve(program([local("u", 1), output("y", 1)], [equation("y", [i], read("u", i), axes=[axis("i", 0, 2)])]))


# --- against enumeration -------------------------------------------------------------------------------------

WIDE = range(-60, 61)

linear = st.builds(lambda c, d: i * c + d, st.sampled_from([1, 1, 2, -1, -2]), st.integers(-4, 4))
floors = st.builds(lambda c, m, d: (i * c) // m + d, st.sampled_from([1, 3]), st.integers(2, 3), st.integers(-2, 2))
comparisons = st.one_of(
    st.builds(lambda b, c: lt(i * c, b), st.integers(-3, 9), st.sampled_from([1, -1])),
    st.builds(lambda b: eq(i, b), st.integers(0, 5)),
    st.builds(lambda b: Compare(i - b, "!="), st.integers(0, 5)),
    st.builds(lambda m: eq(i % m, 0), st.integers(2, 3)),
)
conditions = st.recursive(comparisons, lambda inner: st.builds(lambda x, y: Or((x, y)), inner, inner), max_leaves=2)
guarded_reads = st.lists(
    st.tuples(st.one_of(linear, floors), st.one_of(st.just(TRUE), conditions)), min_size=1, max_size=3
)


def _is_good(reads: Sequence[tuple[Affine, Condition]], extent: int, value: int) -> bool:
    at = {"i": value}
    if any(subscript == i for subscript, _ in reads) and not 0 <= value < extent:
        return False  # alone it fits the extent, whatever the guard
    return all(
        not affine.holds(condition, at, {}) or 0 <= affine.evaluate(subscript, at, {}) < extent
        for subscript, condition in reads
    )


def _happens(reads: Sequence[tuple[Affine, Condition]], value: int) -> bool:
    return any(affine.holds(condition, {"i": value}, {}) for _, condition in reads)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(guarded_reads, st.integers(0, 9))
def test_a_range_is_in_bounds_and_cannot_grow(reads: list[tuple[Affine, Condition]], extent: int) -> None:
    branches = [where(condition, read("x", subscript), ZERO) for subscript, condition in reads]
    definition = equation("y", [i + 99], add(ZERO, *branches), axes=[axis("i")])
    try:
        lower, upper = found(infer(program([tensor("x", extent), output("y", 1)], [definition])), "i")
    except DefinitionError:
        return  # undetermined: reads without end, or none
    if not any(_happens(reads, value) for value in WIDE):
        return  # the guards never hold, so they count as none
    inside = range(lower, upper)
    assert all(_is_good(reads, extent, value) for value in inside)
    reading = [value for value in WIDE if _is_good(reads, extent, value) and _happens(reads, value)]
    assert any(value in inside for value in reading) or not reading
    for outside in (lower - 1, upper):
        if inside and _is_good(reads, extent, outside):
            beyond = [value for value in reading if (value < lower) == (outside < lower) and value not in inside]
            gap = [_reachable(reads, extent, outside, value) for value in beyond]
            assert not any(gap), "the range stops short of a read that it could have reached"


def _reachable(reads: Sequence[tuple[Affine, Condition]], extent: int, start: int, end: int) -> bool:
    between = range(min(start, end), max(start, end) + 1)
    return all(_is_good(reads, extent, value) for value in between)


Make = Callable[[Callable[[str], LIKE_AFFINE]], ir.Program]


def _convolution(size: Callable[[str], LIKE_AFFINE]) -> ir.Program:
    value = add(read("x", h * 2 + r), read("f", r))
    equations = [
        equation("u", [h], value, axes=[axis("h")], over=[axis("r")]),
        equation("y", [i], add(read("u", i), read("u", i + 1)), axes=[axis("i")]),
    ]
    return program([tensor("x", size("M")), tensor("f", size("K")), local("u", 1), output("y", 1)], equations)


def _triangle(size: Callable[[str], LIKE_AFFINE]) -> ir.Program:
    total = reduce(MAX, read("x", i, k), axis("k"), guard=le(k, i))
    equations = [
        equation("u", [i, j], add(read("x", i, j), total), axes=[axis("i"), axis("j")], guard=le(j, i)),
        equation("y", [i], read("u", i, j), axes=[axis("i")], over=[axis("j")], guard=le(j, i)),
    ]
    return program([tensor("x", size("M"), size("M")), local("u", 2), output("y", 1)], equations)


def _scan(size: Callable[[str], LIKE_AFFINE]) -> ir.Program:
    equations = [
        equation("u", [0], ZERO, axes=[]),
        equation("u", [i + 1], add(read("u", i), read("x", i)), axes=[axis("i")]),
        equation("y", [j], where(eq(j, 0), ZERO, read("u", j - 1)), axes=[axis("j")]),
    ]
    return program([tensor("x", size("M")), local("u", 1), output("y", 1)], equations)


@pytest.mark.parametrize("make", [_convolution, _triangle, _scan], ids=["convolution", "triangle", "scan"])
def test_symbolic_and_concrete_sizes_agree_wherever_the_conditions_hold(make: Make) -> None:
    plain = make(lambda name: name)
    symbolic = resolve(ir.Program("f", ("M", "K"), plain.tensors, plain.equations, plain.parameters, plain.results))
    for sizes in ({"M": m, "K": n} for m in range(8) for n in range(1, 4)):
        concrete = _resolved_or_none(make(lambda name, sizes=sizes: sizes[name]))
        if all(affine.holds(condition, {}, sizes) for condition in symbolic.conditions):
            assert concrete is not None
            assert _shapes(symbolic, sizes) == _shapes(concrete, {})


def _resolved_or_none(one: ir.Program) -> ir.Program | None:
    try:
        return resolve(one)
    except PolyoptError:
        return None


def _shapes(one: ir.Program, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    return [tuple(affine.evaluate(extent, {}, sizes) for extent in t.shape or ()) for t in one.tensors]


def half_read(index: po.Index) -> po.Op:
    height, width, size = po.sizes("height width size")

    @po.op(dynamic=True)
    def y(x: po.f32[height, width], start: po.f32[size]):
        t = po.tensor("t", dtype=po.f32)
        row, column = index // 3 + index % 2, 2 * index
        inside = (row < height) & (column < width)
        t[index] = po.when(index >= size - 3, start[index])
        t[index] = po.when(index < size - 3, po.where(inside, x[row, column], 1.0) - t[index + 3])
        return t

    return y


def test_a_range_that_no_affine_bound_ends_is_asked_for() -> None:
    x, start = np.arange(128, dtype=np.float32).reshape(8, 16), np.ones(9, np.float32)
    with pytest.raises(DefinitionError, match="index 'k' in the definition of 't' has no single range") as raised:
        half_read(po.index("k"))(x, start)
    assert "extent=" in str(raised.value)
    told = half_read(po.index("k", extent=po.size("size")))
    np.testing.assert_array_equal(told(x, start), told.reference(x, start).astype(np.float32))


def test_a_range_whose_ends_are_too_hard_to_find_is_asked_for_even_inside_a_known_one() -> None:
    """The index has the result's extent, and guarded reads at thirds and at doubles of it narrow that: to nothing
    that isl could say within its operations, which ended in an AssertionError."""
    height, width, depth, steps = po.sizes("height width depth steps")
    row, column, time = po.index("row"), po.index("column"), po.index("time", extent=steps)

    @po.op(dynamic=True)
    def stencil(x: po.f32[height, width], table: po.f64[width, depth], count: po.i32[steps]):
        start = po.tensor("start", shape=(2 * height,), dtype=po.f32)
        state = po.tensor("state", shape=(steps + 1, width), dtype=po.f32)
        start[2 * row] = po.cast(table[0, row], po.f32) - x.wrap()[row, row // 3 + row % 2]
        near = column // 3 + column % 2
        edge = po.where((near >= 0) & (near < 2 * height), start[near], 1)
        state[time + 1, column] = po.where((column > 0) & (column < width - 1), start[2 * column - 2], edge)
        return state

    with pytest.raises(DefinitionError, match="index 'column' in the definition of 'state' has no single range"):
        stencil.lower()


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_guard_that_keeps_a_read_in_bounds_says_where_the_index_ends(dynamic: bool) -> None:
    """Nothing can be out of bounds, so the range is where the read happens; the index was said to have none."""
    height, width, size = po.sizes("height width size")
    place, step = po.indices("place step")

    @po.op(dynamic=dynamic)
    def greatest(x: po.f64[height, width], like: po.f64[size]):
        y = po.tensor("y", shape=(size,))
        inside = (step >= 2) & (step - 2 < height) & (step - 2 < width)
        y[place] = po.max(po.where(inside, x[step - 2, step - 2], 1.0), step)
        return y

    for shape in ((3, 3), (3, 5), (5, 3), (1, 1)):
        x = np.arange(np.prod(shape), dtype=float).reshape(shape)
        np.testing.assert_array_equal(greatest(x, np.zeros(2)), np.diag(x).max())
