"""Strongly connected components and topological orders, against definitions by reachability."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from polyopt.graphs import components, on_cycles, reachable, topological

NODES = list("abcdef")
edges_of = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), max_size=14)


@given(edges_of)
def test_two_nodes_share_a_component_exactly_if_each_reaches_the_other(edges: list[tuple[str, str]]) -> None:
    found = components(NODES, edges)
    assert sorted(node for component in found for node in component) == NODES
    owner = {node: n for n, component in enumerate(found) for node in component}
    for a in NODES:
        for b in NODES:
            mutual = a == b or (b in reachable(a, edges) and a in reachable(b, edges))
            assert (owner[a] == owner[b]) == mutual


@given(edges_of)
def test_components_come_in_topological_order(edges: list[tuple[str, str]]) -> None:
    owner = {node: n for n, component in enumerate(components(NODES, edges)) for node in component}
    assert all(owner[a] <= owner[b] for a, b in edges)


def test_what_is_not_ordered_keeps_the_given_order() -> None:
    assert components(["c", "a", "b"], []) == [("c",), ("a",), ("b",)]
    assert components(["c", "a", "b"], [("b", "c")]) == [("a",), ("b",), ("c",)]
    assert topological([3, 1, 2], [(2, 3), (2, 2)]) == [1, 2, 3]


def test_edges_to_unknown_nodes_do_not_count() -> None:
    assert components(["a", "b"], [("a", "z"), ("z", "b"), ("b", "a")]) == [("b",), ("a",)]


def test_a_long_cycle_does_not_exhaust_the_stack() -> None:
    nodes = [str(n) for n in range(3000)]
    ring = [(nodes[n], nodes[(n + 1) % 3000]) for n in range(3000)]
    assert components(nodes, ring) == [tuple(nodes)]


def test_a_node_is_reachable_from_itself_only_on_a_cycle() -> None:
    assert reachable("a", [("a", "b"), ("b", "c")]) == {"b", "c"}
    assert reachable("a", [("a", "b"), ("b", "a")]) == {"a", "b"}
    assert reachable("z", [("a", "b")]) == set()


@given(edges_of)
def test_a_node_is_on_a_cycle_exactly_if_it_reaches_itself(edges: list[tuple[str, str]]) -> None:
    assert on_cycles(NODES, edges) == {node for node in NODES if node in reachable(node, edges)}
