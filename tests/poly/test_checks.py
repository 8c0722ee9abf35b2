"""Bounds, single definition, coverage and reductions over nothing: proved, or refuted by a point that is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyopt.dsl import affine, ir
from polyopt.dsl.affine import TRUE, Affine, And, Compare, Condition, Not, Or
from polyopt.errors import BoundsError, DefinitionError, PolyoptError
from polyopt.poly.checks import check
from polyopt.poly.contexts import contexts, read_contexts, reduce_contexts
from polyopt.poly.ranges import resolve
from tests.poly.build import (
    MAX,
    SUM,
    ZERO,
    M,
    N,
    a,
    add,
    axis,
    data,
    eq,
    equation,
    i,
    j,
    k,
    le,
    local,
    lt,
    output,
    program,
    read,
    reduce,
    t,
    tensor,
    where,
)


def one(value: ir.Expr, *inputs: ir.Tensor, extent: int | str | Affine = 4, sizes: Sequence[str] = ()) -> ir.Program:
    """`y[i] = value` for `0 <= i < extent`."""
    definition = equation("y", [i], value, axes=[axis("i", 0, extent)], line=9)
    return program([*inputs, output("y", 1)], [definition], sizes)


def filled(name: str, *extents: int | str | Affine) -> ir.Equation:
    """A definition of every element of a box."""
    names = [f"p{dimension}" for dimension in range(len(extents))]
    axes = [axis(n, 0, e) for n, e in zip(names, extents, strict=True)]
    return equation(name, [affine.axis(n) for n in names], ZERO, axes=axes, line=1)


# --- bounds --------------------------------------------------------------------------------------------------


def test_a_read_outside_is_refuted_by_an_index_tuple() -> None:
    with pytest.raises(BoundsError) as raised:
        resolve(one(read("x", i - 1, line=5), tensor("x", 4)))
    error = raised.value
    assert error.what == "x[i - 1] reads x[-1] at i = 0"
    assert error.facts == {
        "tensor": "x",
        "element": (-1,),
        "dimension": 0,
        "extent": 4,
        "index": {"i": 0},
        "sizes": {},
    }
    assert error.where is not None and error.where.line == 5
    assert "dimension 0 of 'x' has extent 4" in str(error)
    assert ".pad(0)" in error.fix


def test_a_read_inside_a_reduction_names_all_its_indices() -> None:
    total = reduce(SUM, read("x", 0, i + k), axis("k", 0, 3))
    with pytest.raises(BoundsError) as raised:
        resolve(one(total, tensor("x", 2, 5)))
    assert raised.value.what == "x[0, i + k] reads x[0, 5] at i = 3, k = 2"


@pytest.mark.parametrize("boundary", [ir.Pad(ZERO), ir.Clamp(), ir.Wrap()], ids=["pad", "clamp", "wrap"])
def test_reads_through_a_boundary_are_never_outside(boundary: ir.Boundary) -> None:
    resolve(one(read("x", i * 5 - 7, boundary=boundary), tensor("x", 4)))


def test_a_read_counts_only_in_its_branch_and_under_its_guards() -> None:
    resolve(one(where(eq(i, 0), ZERO, read("x", i - 1)), tensor("x", 3)))
    resolve(one(where(lt(0, i), read("x", i - 1), ZERO), tensor("x", 3)))
    resolve(one(reduce(SUM, read("x", i - k), axis("k", 0, 9), guard=le(k, i)), tensor("x", 4)))
    with pytest.raises(BoundsError):
        resolve(one(where(eq(i, 0), read("x", i - 1), ZERO), tensor("x", 3)))
    with pytest.raises(BoundsError, match="i = 1"):
        resolve(one(where(Not(eq(i, 0)), read("x", i - 2), ZERO), tensor("x", 3)))


def test_a_read_that_never_happens_is_in_bounds() -> None:
    resolve(one(reduce(SUM, read("x", i + 100), axis("k", 0, 0)), tensor("x", 3)))
    resolve(one(read("x", i + 100), tensor("x", 3), extent=0))


def test_a_floor_is_followed_exactly() -> None:
    resolve(one(read("x", (i * 3) // 4, i % 3), tensor("x", 3, 3)))
    with pytest.raises(BoundsError, match=r"reads x\[0, 2\] at i = 2"):
        resolve(one(read("x", i // 2 - i // 2, i % 3), tensor("x", 3, 2)))


def test_a_read_inside_a_data_subscript_is_checked_too() -> None:
    with pytest.raises(BoundsError, match=r"ids\[i \+ 1\] reads ids\[4\] at i = 3"):
        resolve(one(read("x", data("ids", i + 1)), tensor("x", 9), tensor("ids", 4)))


def test_a_write_outside_the_shape_is_refuted() -> None:
    below = equation("y", [i - 1], ZERO, axes=[axis("i", 0, 3)], line=2)
    with pytest.raises(BoundsError, match=r"y\[i - 1\] writes y\[-1\] at i = 0"):
        resolve(program([output("y", 1)], [below]))
    above = equation("y", [i], ZERO, axes=[axis("i", 0, 3)], accumulate=True, guard=lt(i, 1))
    with pytest.raises(BoundsError, match=r"writes y\[1\] at i = 1"):
        resolve(program([tensor("y", 1, role="output")], [above]))


def test_bounds_that_need_the_sizes_become_a_condition() -> None:
    resolved = resolve(one(read("x", i + 1), tensor("x", "M"), extent="N", sizes="MN"))
    (condition,) = resolved.conditions
    for m, n in product(range(6), repeat=2):
        assert bool(affine.holds(condition, {}, {"M": m, "N": n})) == (n == 0 or n + 1 <= m)


def test_bounds_that_fail_for_all_ordinary_sizes_are_an_error() -> None:
    with pytest.raises(BoundsError) as raised:
        resolve(one(read("x", i + 1), tensor("x", "N"), extent="N", sizes="N"))
    assert raised.value.what == "x[i + 1] reads x[2] at i = 1 with N = 2"
    assert raised.value.facts["sizes"] == {"N": 2}


# --- one definition ------------------------------------------------------------------------------------------


def test_two_definitions_of_one_element_are_refuted_with_both_places() -> None:
    equations = [
        equation("y", [i, j], ZERO, axes=[axis("i", 0, 3), axis("j", 0, 3)], guard=le(j, i), line=3),
        equation("y", [i, j], ZERO, axes=[axis("i", 0, 3), axis("j", 0, 3)], guard=le(i, j), line=4),
    ]
    with pytest.raises(DefinitionError) as raised:
        resolve(program([output("y", 2)], equations))
    error = raised.value
    assert error.what == "y[0, 0] has two definitions"
    assert error.facts["element"] == (0, 0)
    assert error.where is not None and error.where.line == 4
    assert "(kernel.py:3)" in error.why and "(kernel.py:4)" in error.why


def test_one_definition_may_not_define_an_element_twice() -> None:
    with pytest.raises(DefinitionError) as raised:
        resolve(program([output("y", 1)], [equation("y", [i // 2], ZERO, axes=[axis("i", 0, 4)])]))
    assert raised.value.what == "y[0] has two definitions"
    assert "at i = 0" in raised.value.why and "at i = 1" in raised.value.why


def test_definitions_apart_from_each_other_are_accepted() -> None:
    equations = [
        equation("y", [0, i], ZERO, axes=[axis("i", 0, 3)]),
        equation("y", [t + 1, i], read("y", t, i), axes=[axis("t", 0, 4), axis("i", 0, 3)]),
    ]
    resolve(program([output("y", 2)], equations))
    split = [equation("y", [i * 2 + n], ZERO, axes=[axis("i", 0, 3)]) for n in range(2)]
    resolve(program([output("y", 1)], split))
    skewed = equation("y", [i + j, j], ZERO, axes=[axis("i", 0, 3), axis("j", 0, 2)])
    check(resolve(program([local("y", 2)], [skewed])))


def test_accumulations_may_meet_definitions_and_one_another() -> None:
    equations = [
        equation("y", [i], ZERO, axes=[axis("i", 0, 3)]),
        equation("y", [i], ZERO, axes=[axis("i", 0, 3)], over=[axis("k", 0, 2)]),
        equation("y", [i // 2], ZERO, axes=[axis("i", 0, 6)], accumulate=True),
    ]
    resolve(program([output("y", 1)], equations))


def test_definitions_that_meet_at_one_size_become_a_condition() -> None:
    equations = [
        equation("y", [0], ZERO, axes=[]),
        equation("y", [N - 1], ZERO, axes=[]),
        equation("y", [i + 1], ZERO, axes=[axis("i", 0, N - 2)]),
    ]
    resolved = resolve(program([output("y", 1)], equations, sizes="N"))
    holds = [n for n in range(6) if all(affine.holds(c, {}, {"N": n}) for c in resolved.conditions)]
    assert holds == [2, 3, 4, 5]


# --- coverage ------------------------------------------------------------------------------------------------


def test_a_read_without_a_definition_is_refuted_with_the_element() -> None:
    equations = [
        equation("u", [i, j], ZERO, axes=[axis("i", 0, 3), axis("j", 0, 3)], guard=le(j, i), line=2),
        equation("y", [i], read("u", i, j, line=3), axes=[axis("i", 0, 3)], over=[axis("j", 0, 3)]),
    ]
    with pytest.raises(DefinitionError) as raised:
        resolve(program([local("u", 2), output("y", 1)], equations))
    assert raised.value.what == "u[i, j] reads u[0, 1], which no definition covers"
    assert raised.value.facts["index"] == {"i": 0, "j": 1}
    assert raised.value.where is not None and raised.value.where.line == 3
    assert "u[i, j] (kernel.py:2)" in raised.value.why


def test_a_read_under_a_guard_needs_only_what_it_reads() -> None:
    equations = [
        equation("u", [i, j], ZERO, axes=[axis("i", 0, 3), axis("j", 0, 3)], guard=le(j, i)),
        equation("y", [i], read("u", i, j), axes=[axis("i", 0, 3)], over=[axis("j", 0, 3)], guard=le(j, i)),
    ]
    resolve(program([local("u", 2), output("y", 1)], equations))


def test_a_result_is_read_whole() -> None:
    odd = equation("y", [i * 2 + 1], ZERO, axes=[axis("i", 0, 3)], line=2)
    with pytest.raises(DefinitionError) as raised:
        resolve(program([output("y", 1)], [odd]))
    assert raised.value.what == "result 'y' has no value at y[0]"
    even = equation("y", [i * 2], ZERO, axes=[axis("i", 0, 3)])
    resolve(program([output("y", 1)], [odd, even]))
    resolve(program([local("y", 1)], [odd]))


def test_an_accumulation_covers_its_left_side_without_its_guard() -> None:
    summed = equation("y", [i], ZERO, axes=[axis("i", 0, 6)], guard=lt(i, 2), accumulate=True)
    resolve(program([output("y", 1)], [summed]))
    scattered = equation("h", [data("b", i)], ZERO, axes=[], over=[axis("i")])
    resolve(program([tensor("b", 3), tensor("h", 8, role="output")], [scattered]))


@pytest.mark.parametrize(
    ("boundary", "reads_hole"),
    [(ir.Pad(ZERO), False), (ir.Clamp(), True), (ir.Wrap(), True)],
    ids=["pad", "clamp", "wrap"],
)
def test_coverage_follows_a_read_through_its_boundary(boundary: ir.Boundary, *, reads_hole: bool) -> None:
    hole = equation("u", [i + 1], ZERO, axes=[axis("i", 0, 3)])  # u[0] is missing
    beyond = equation(
        "y",
        [j],
        read("u", j + 4 if isinstance(boundary, ir.Wrap) else j - 3, boundary=boundary),
        axes=[axis("j", 0, 2)],
    )
    candidate = program([local("u", 1), output("y", 1)], [hole, beyond])
    if not reads_hole:
        resolve(candidate)
        return
    with pytest.raises(DefinitionError, match=r"reads u\[0\]"):
        resolve(candidate)


def test_data_may_read_any_element_of_a_dimension() -> None:
    lookup = equation("y", [i], read("u", data("ids", i)), axes=[axis("i")])
    tensors = [tensor("ids", 3), local("u", 1), output("y", 1)]
    resolve(program(tensors, [filled("u", 5), lookup]))
    hole = equation("u", [i + 1], ZERO, axes=[axis("i", 0, 4)])
    with pytest.raises(DefinitionError, match=r"reads u\[0\], which no definition covers"):
        resolve(program(tensors, [hole, lookup]))


def test_coverage_over_symbolic_sizes() -> None:
    equations = [
        equation("u", [i, j], ZERO, axes=[axis("i", 0, N), axis("j", 0, N)], guard=le(j, i)),
        equation("u", [i, j], ZERO, axes=[axis("i", 0, N), axis("j", 0, N)], guard=lt(i, j)),
        equation("y", [i], read("u", i, j), axes=[axis("i", 0, N)], over=[axis("j", 0, N)]),
    ]
    assert resolve(program([local("u", 2), output("y", 1)], equations, sizes="N")).conditions == ()
    with pytest.raises(DefinitionError, match=r"u\[0, 1\], which no definition covers") as raised:
        resolve(program([tensor("u", N, N, role="local"), output("y", 1)], equations[::2], sizes="N"))
    assert raised.value.facts["sizes"] == {"N": 2}


# --- reductions over nothing, elements that depend on themselves ----------------------------------------------


def test_a_maximum_over_nothing_names_the_point() -> None:
    with pytest.raises(DefinitionError) as raised:
        resolve(one(reduce(MAX, read("x", k), axis("k"), guard=lt(k, i)), tensor("x", 4)))
    assert raised.value.what == "max over 'k' has nothing to reduce at i = 0"
    assert "init=" in raised.value.fix


def test_a_maximum_over_nothing_counts_only_where_it_is_evaluated() -> None:
    guarded = where(lt(0, i), reduce(MAX, read("x", k), axis("k"), guard=lt(k, i)), ZERO)
    resolve(one(guarded, tensor("x", 4)))
    resolve(one(reduce(MAX, read("x", k), axis("k")), tensor("x", 0), extent=0))
    with_start = ir.Reducer("max", MAX.dtype, ZERO)
    resolve(one(reduce(with_start, read("x", k), axis("k")), tensor("x", 0)))
    with pytest.raises(DefinitionError, match="nothing to reduce"):
        resolve(one(reduce(MAX, read("x", k), axis("k")), tensor("x", 0)))


def test_a_maximum_over_a_symbolic_size_becomes_a_condition() -> None:
    resolved = resolve(one(reduce(MAX, read("x", k), axis("k")), tensor("x", "N"), extent="M", sizes="MN"))
    (condition,) = resolved.conditions
    for m, n in product(range(4), repeat=2):
        assert bool(affine.holds(condition, {}, {"M": m, "N": n})) == (m == 0 or n > 0)


def test_conditions_stay_plain_when_many_sizes_meet() -> None:
    names = [f"{tensor}{dimension}" for tensor in "ABC" for dimension in range(3)]
    sizes = {name: affine.size(name) for name in names}

    def shaped(name: str) -> ir.Tensor:
        return ir.Tensor(name, MAX.dtype, tuple(sizes[f"{name.upper()}{d}"] for d in range(3)), "input", 3)

    equations = [
        equation("u", [i, j, k], add(read("a", i, j, k), read("b", i, j, k)), axes=[axis(n) for n in "ijk"]),
        equation("y", [i, j], reduce(MAX, read("u", i, j, k), axis("k")), axes=[axis("i"), axis("j")]),
        equation("z", [i, j, k], add(read("c", i, j, k), read("y", i, j)), axes=[axis(n) for n in "ijk"]),
    ]
    tensors = [*map(shaped, "abc"), local("u", 3), output("y", 2), output("z", 3)]
    resolved = resolve(program(tensors, equations, sizes=names))
    plain = [condition for condition in resolved.conditions if isinstance(condition, Compare)]
    assert plain == [
        *(Compare(sizes[f"A{d}"] - sizes[f"B{d}"], "==") for d in range(3)),
        Compare(sizes["A2"] - 1, ">="),
        *(Compare(sizes[f"A{d}"] - sizes[f"C{d}"], ">=") for d in range(2)),
    ]
    assert len(plain) == len(resolved.conditions)


def test_an_element_that_depends_on_itself_is_named() -> None:
    with pytest.raises(DefinitionError, match=r"y\[0\] depends on itself"):
        resolve(one(add(read("y", i), read("x", i)), tensor("x", 4)))
    mirror = equation("y", [i], read("y", a(4) - i), axes=[axis("i", 0, 5)])
    with pytest.raises(DefinitionError, match=r"y\[2\] depends on itself"):
        resolve(program([output("y", 1)], [mirror]))


def test_a_recurrence_does_not_depend_on_itself_in_one_step() -> None:
    forward = equation("y", [i], where(eq(i, 0), ZERO, read("y", i - 1)), axes=[axis("i", 0, 5)])
    resolve(program([output("y", 1)], [forward]))
    solve = equation("y", [i], reduce(SUM, read("y", j), axis("j", 0, 5), guard=lt(j, i)), axes=[axis("i", 0, 5)])
    resolve(program([output("y", 1)], [solve]))


# --- contexts ------------------------------------------------------------------------------------------------


def test_contexts_carry_axes_binders_and_the_condition_of_the_path() -> None:
    inner = reduce(SUM, where(lt(k, i), read("x", k), read("z", k)), axis("k", 0, 4), guard=lt(0, k))
    total = add(inner, reduce(SUM, read("w", k), axis("k", 0, 2)))
    definition = equation("y", [data("b", i)], total, axes=[], over=[axis("i", 0, 4)], guard=lt(i, 3))
    found = {context.read.tensor: context for context in read_contexts(definition)}
    assert list(found) == ["b", "x", "z", "w"]
    assert found["b"].condition == lt(i, 3)
    assert found["x"].condition == And((lt(i, 3), lt(0, k), lt(k, i)))
    assert found["z"].condition == And((lt(i, 3), lt(0, k), Not(lt(k, i))))
    assert [found[name].scope.binders for name in "xzw"] == [(0, 1), (0, 1), (0, 2)]
    assert [context.binder for context in reduce_contexts(definition)] == [1, 2]
    assert len(list(contexts(definition))) == 6


# --- against enumeration -------------------------------------------------------------------------------------

subscripts = st.builds(
    lambda c, d, e, m: (i * c + j * d) // m + e,
    st.sampled_from([0, 1, 1, 2]),
    st.sampled_from([0, 1, 1, -1]),
    st.integers(-1, 2),
    st.sampled_from([1, 1, 1, 2]),
)
guards: st.SearchStrategy[Condition] = st.sampled_from(
    [TRUE, TRUE, le(j, i), lt(i, j), eq(i, j), Or((lt(i, 1), lt(j, 2))), Compare(i - j, "!="), eq((i + j) % 2, 0)]
)
boundaries: st.SearchStrategy[ir.Boundary | None] = st.sampled_from([None, None, ir.Pad(ZERO), ir.Clamp(), ir.Wrap()])
definitions = st.builds(
    lambda sub, guard, width, height, accumulate: equation(
        "u", sub, ZERO, axes=[axis("i", 0, width), axis("j", 0, height)], guard=guard, accumulate=accumulate
    ),
    st.one_of(st.just([i, j]), st.lists(subscripts, min_size=2, max_size=2)),
    guards,
    st.integers(0, 4),
    st.integers(1, 4),
    st.booleans(),
)
uses = st.builds(
    lambda sub, guard, branch, boundary: equation(
        "y",
        [i],
        where(branch, read("u", *sub, boundary=boundary), ZERO),
        axes=[axis("i", 0, 4)],
        over=[axis("j", 0, 3)],
        guard=guard,
    ),
    st.lists(subscripts, min_size=2, max_size=2),
    guards,
    guards,
    boundaries,
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.lists(definitions, min_size=1, max_size=2), uses, st.tuples(st.integers(1, 5), st.integers(1, 5)))
def test_the_verdict_is_that_of_an_enumeration(
    definitions: list[ir.Equation], use: ir.Equation, extents: tuple[int, int]
) -> None:
    candidate = program([tensor("u", *extents, role="local"), output("y", 1)], [*definitions, use])
    defined, wild = _enumerate_definitions(definitions, extents)
    read_outside, read_missing = _enumerate_reads(use, extents, defined)
    twice = {element for element, count in defined.items() if count > 1}
    try:
        resolve(candidate)
    except BoundsError as error:
        element = error.facts["element"]
        assert element in (read_outside if error.facts["tensor"] == "u" and "reads" in error.what else wild)
    except DefinitionError as error:
        element = error.facts["element"]
        assert element in (twice if "two definitions" in error.what else read_missing)
    else:
        assert not (wild or read_outside or twice or read_missing)


Element = tuple[int, ...]


def _points(one: ir.Equation) -> Iterator[dict[str, int]]:
    spans = [range(axis.lower[0].constant, axis.upper[0].constant) for axis in one.all_axes]
    for values in product(*spans):
        yield dict(zip((axis.name for axis in one.all_axes), values, strict=True))


def _at(values: Sequence[ir.Subscript], point: Mapping[str, int]) -> Element:
    return tuple(affine.evaluate(value, point, {}) for value in values if isinstance(value, Affine))


def _enumerate_definitions(
    definitions: Sequence[ir.Equation], extents: Element
) -> tuple[dict[Element, int], set[Element]]:
    """How often each element is plainly defined (0 for one that only accumulations reach), and writes outside."""
    defined: Counter[Element] = Counter()
    wild: set[Element] = set()
    for definition in definitions:
        for point in _points(definition):
            element = _at(definition.subscripts, point)
            if not definition.is_accumulation and not affine.holds(definition.guard, point, {}):
                continue
            if not _is_inside(element, extents):
                wild.add(element)
            defined[element] += 0 if definition.is_accumulation else 1
    return defined, wild


def _enumerate_reads(
    use: ir.Equation, extents: Element, defined: Mapping[Element, int]
) -> tuple[set[Element], set[Element]]:
    """Elements read outside the tensor, and elements read inside that nothing defines."""
    (context,) = read_contexts(use)
    outside: set[Element] = set()
    missing: set[Element] = set()
    for point in _points(use):
        if not affine.holds(context.condition, point, {}):
            continue
        element = _at(context.read.subscripts, point)
        match context.read.boundary:
            case ir.Clamp():
                element = tuple(min(max(value, 0), n - 1) for value, n in zip(element, extents, strict=True))
            case ir.Wrap():
                element = tuple(value % n for value, n in zip(element, extents, strict=True))
            case ir.Pad() if not _is_inside(element, extents):
                continue
        if not _is_inside(element, extents):
            outside.add(element)
        elif element not in defined:
            missing.add(element)
    return outside, missing


def _is_inside(element: Element, extents: Element) -> bool:
    return all(0 <= value < extent for value, extent in zip(element, extents, strict=True))


def test_every_error_is_ours() -> None:
    """isl says little: none of its messages reaches the user."""
    with pytest.raises(PolyoptError):
        resolve(one(read("x", i + M), tensor("x", "M"), extent="N", sizes="MN"))
