"""Loop trees, their isl schedules, and the order that they guarantee: against dates computed in Python."""

from __future__ import annotations

from random import Random

import islpy as isl
import pytest

from polyopt.dsl.affine import Affine, axis
from polyopt.errors import LegalityError
from polyopt.pipeline import Lowering
from polyopt.poly import tree as trees
from polyopt.poly.order import Order
from polyopt.poly.tree import Leaf, Loop, Sequence, as_schedule, kinds, loops, numbered, sequence, statements, tree_text
from tests import brute_force
from tests.poly.operators import jacobi_1d, lower_triangle_solve, prefix, product, softmax
from tests.test_checkers import mutated

OPERATORS = {
    "jacobi_1d": lambda: jacobi_1d.lower(N=4, steps=2),
    "lower_triangle_solve": lambda: lower_triangle_solve.lower(N=4),
    "product": lambda: product.lower(M=2, N=3, K=2),
    "softmax": lambda: softmax.lower(M=2, N=3),
}
every_operator = pytest.mark.parametrize("name", OPERATORS)


def pairs_of(relation: isl.Map) -> set[tuple[tuple[int, ...], tuple[int, ...]]]:
    size = relation.dim(isl.dim_type.in_)
    return {(point[:size], point[size:]) for point in brute_force.points(relation.wrap().flatten())}


def before_by_dates(lowering: Lowering, tree: trees.Tree, first: str, second: str) -> set[tuple[tuple[int, ...], ...]]:
    needed = brute_force.pairs(lowering.scop)
    paths = dict(brute_force._paths(tree, ()))
    dates = {key: brute_force._date(paths[key[0]], key[0], axes) for key, axes in needed.axes.items()}
    return {
        (one[1], other[1])
        for one in dates
        for other in dates
        if (one[0], other[0]) == (first, second) and brute_force._order(dates[one], dates[other]) == "before"
    }


@every_operator
def test_the_order_read_back_from_isl_is_that_of_the_trees_dates(name: str) -> None:
    lowering = OPERATORS[name]()
    draw = Random(name)
    for _ in range(6):
        tree = lowering.tree
        for _ in range(draw.randint(0, 2)):
            tree = mutated(tree, draw)
        try:
            mapped = kinds(tree)
        except LegalityError:  # two kinds for loops of one name
            continue
        order = Order.of(lowering.scop, as_schedule(tree, lowering.scop), mapped)
        for first in statements(tree):
            for second in statements(tree):
                before = order.before(first, second) & order.pairs(first, second)
                assert pairs_of(before) == before_by_dates(lowering, tree, first, second)


@every_operator
def test_nothing_runs_before_itself_and_never_both_ways(name: str) -> None:
    lowering = OPERATORS[name]()
    order = Order.of(lowering.scop, lowering.schedule, kinds(lowering.tree))
    for first in order.steps:
        for second in order.steps:
            there, back = order.before(first, second), order.before(second, first)
            assert (there & back.reverse()).is_empty()
            assert order.before(first, second) is there, "remembered"


def test_pairs_in_one_iteration_share_all_rows_down_to_the_loop() -> None:
    lowering = product.lower(M=3, N=2, K=2)
    inner = Loop("k", (("y_update", axis("k")),), Leaf("y_update"))
    rows = tuple((name, axis("i")) for name in ("y_init", "y_update", "out"))
    columns = tuple((name, axis("j")) for name, _ in rows)
    tree = Loop("i", rows, Loop("j", columns, Sequence((Leaf("y_init"), inner, Leaf("out")))))
    order = Order.of(lowering.scop, as_schedule(tree, lowering.scop), kinds(tree))
    box = "0 <= i < 3 and 0 <= j, l < 2 and 0 <= k < 2"
    assert order.in_one_iteration("y_init", "y_update", "i").is_equal(
        isl.Map(f"{{ y_init[i, j] -> y_update[i, l, k] : {box} }}")
    )
    assert order.in_one_iteration("y_init", "y_update", "j").is_equal(
        isl.Map("{ y_init[i, j] -> y_update[i, j, k] : 0 <= i < 3 and 0 <= j, k < 2 }")
    )
    assert order.in_one_iteration("y_init", "y_update", "k").is_empty()


# --- trees ------------------------------------------------------------------------------------------------------


def test_a_tree_names_its_statements_and_loops_from_outside_in() -> None:
    tree = Sequence((Loop("i", (("S", axis("i")),), Loop("j", (("S", axis("j")),), Leaf("S"))), Leaf("T")))
    assert statements(tree) == ("S", "T")
    assert [loop.name for loop in loops(tree)] == ["i", "j"]
    assert [loop.statements for loop in loops(tree)] == [("S",), ("S",)]
    assert next(loops(tree)).row("S") == axis("i")


def test_nested_sequences_are_one() -> None:
    a, b, c = Leaf("a"), Leaf("b"), Leaf("c")
    assert sequence([a, Sequence((b, c))]) == Sequence((a, b, c))
    assert sequence([a]) == a
    assert sequence([]) == Sequence(())


def test_numbering_makes_names_unique_and_changes_nothing_else() -> None:
    twin = Loop("i", (("S", axis("i")),), Leaf("S"))
    tree = Sequence((twin, Loop("i", (("T", axis("i")),), Loop("i", (("T", axis("j")),), Leaf("T")))))
    assert [loop.name for loop in loops(numbered(tree))] == ["i", "i#2", "i#3"]
    assert statements(numbered(tree)) == ("S", "T")
    assert numbered(Leaf("S")) == Leaf("S")


def test_the_schedule_of_an_empty_sequence_runs_nothing() -> None:
    lowering = prefix.lower(N=3)
    assert as_schedule(Sequence(()), lowering.scop).get_domain().is_empty()


def test_coincident_loops_are_coincident_members_for_isl() -> None:
    lowering = prefix.lower(N=3)
    for coincident in (False, True):
        loop = Loop("t", (("s_1", axis("t")),), Leaf("s_1"), coincident=coincident)
        band = as_schedule(loop, lowering.scop).get_root().child(0).child(0)
        assert band.band_member_get_coincident(0) == coincident


def test_a_tree_prints_as_an_indented_outline() -> None:
    inner = Loop("j", (("S", axis("j") + 1),), Leaf("S"), coincident=True, kind="vector")
    tree = Sequence(
        (
            Loop("i", (("S", axis("i")),), inner, coincident=True),
            Loop("k", (("T", Affine(0)),), Leaf("T"), reduction=True),
        )
    )
    assert tree_text(tree).splitlines() == [
        "coincident loop i  [S: i]",
        "  vector loop j  [S: j + 1]",
        "    S",
        "reduction loop k  [T: 0]",
        "  T",
    ]
