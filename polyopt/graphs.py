"""Graphs: strongly connected components and orders that depend on nothing but the input."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from heapq import heappop, heappush
from typing import TypeVar

Node = TypeVar("Node", bound=Hashable)


def components(nodes: Sequence[Node], edges: Iterable[tuple[Node, Node]]) -> list[tuple[Node, ...]]:
    """Strongly connected components in a topological order that keeps the given order where it can.

    Tarjan's algorithm without recursion, then Kahn's on the condensation. Source: [Tarjan72].
    """
    successors: dict[Node, list[Node]] = {node: [] for node in nodes}
    for source, target in edges:
        if source in successors and target in successors:
            successors[source].append(target)
    owner = _tarjan(nodes, successors)
    members: dict[int, list[Node]] = {}
    for node in nodes:
        members.setdefault(owner[node], []).append(node)
    order = topological(
        list(members), [(owner[a], owner[b]) for a, found in successors.items() for b in found if owner[a] != owner[b]]
    )
    return [tuple(members[component]) for component in order]


def _tarjan(nodes: Sequence[Node], successors: Mapping[Node, Sequence[Node]]) -> dict[Node, int]:
    index: dict[Node, int] = {}
    low: dict[Node, int] = {}
    owner: dict[Node, int] = {}
    stack: list[Node] = []
    for root in nodes:
        if root in index:
            continue
        work = [(root, iter(successors[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        while work:
            node, following = work[-1]
            for target in following:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(successors[target])))
                    break
                if target not in owner:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    while True:
                        member = stack.pop()
                        owner[member] = index[node]
                        if member == node:
                            break
    return owner


def topological(nodes: Sequence[Node], edges: Iterable[tuple[Node, Node]]) -> list[Node]:
    """The nodes with sources before targets, otherwise in the given order. The graph must have no cycle."""
    successors: dict[Node, set[Node]] = {node: set() for node in nodes}
    for source, target in edges:
        if source != target:
            successors[source].add(target)
    waits_for = dict.fromkeys(nodes, 0)
    for targets in successors.values():
        for target in targets:
            waits_for[target] += 1
    position = {node: number for number, node in enumerate(nodes)}
    ready = [position[node] for node in nodes if not waits_for[node]]
    order: list[Node] = []
    while ready:
        order.append(nodes[heappop(ready)])
        for target in successors[order[-1]]:
            waits_for[target] -= 1
            if not waits_for[target]:
                heappush(ready, position[target])
    assert len(order) == len(nodes), "the graph has a cycle"
    return order


def on_cycles(nodes: Sequence[str], edges: Iterable[tuple[str, str]]) -> set[str]:
    """The nodes that a path leads back to."""
    pairs = list(edges)
    loops = {source for source, target in pairs if source == target}
    return loops.union(*(found for found in components(nodes, pairs) if len(found) > 1))


def reachable(start: Node, edges: Iterable[tuple[Node, Node]]) -> set[Node]:
    """All nodes that a path from `start` leads to (`start` itself only on a cycle)."""
    successors: dict[Node, list[Node]] = {}
    for source, target in edges:
        successors.setdefault(source, []).append(target)
    found: set[Node] = set()
    work = list(successors.get(start, ()))
    while work:
        node = work.pop()
        if node not in found:
            found.add(node)
            work.extend(successors.get(node, ()))
    return found
