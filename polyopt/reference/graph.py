"""Which tensors read which, and in which order they can be evaluated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from polyopt.dsl.ir import DataIndex, Equation, Expr, Program, Read, children


def equation_reads(equation: Equation) -> frozenset[str]:
    """The tensors that an equation reads, in its data subscripts too."""
    found: set[str] = set()
    visited: set[int] = set()
    pending: list[Expr] = [equation.value, *(s.value for s in equation.subscripts if isinstance(s, DataIndex))]
    while pending:
        node = pending.pop()
        if id(node) not in visited:
            visited.add(id(node))
            pending.extend(children(node))
            if isinstance(node, Read):
                found.add(node.tensor)
    return frozenset(found)


def evaluation_order(program: Program) -> Iterator[tuple[str, ...]]:
    """Groups of tensors that need each other, each after all that it reads; only what the results depend on."""
    reads: dict[str, tuple[str, ...]] = {}
    for tensor in program.tensors:
        names = frozenset().union(*(equation_reads(e) for e in program.definitions(tensor.name)))
        reads[tensor.name] = tuple(sorted(names))
    return _components(reads, program.results)


def _components(edges: Mapping[str, tuple[str, ...]], roots: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Strongly connected components reachable from the roots, successors first (Tarjan, without recursion)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    open_nodes: list[str] = []
    for root in roots:
        trail: list[tuple[str, Iterator[str]]] = []
        if root not in number:
            _enter(root, edges, number, low, open_nodes, trail)
        while trail:
            node, successors = trail[-1]
            following = next(successors, None)
            if following is None:
                trail.pop()
                if trail:
                    low[trail[-1][0]] = min(low[trail[-1][0]], low[node])
                if low[node] == number[node]:
                    cut = open_nodes.index(node)
                    yield tuple(sorted(open_nodes[cut:]))
                    del open_nodes[cut:]
            elif following not in number:
                _enter(following, edges, number, low, open_nodes, trail)
            elif following in open_nodes:
                low[node] = min(low[node], number[following])


def _enter(
    node: str,
    edges: Mapping[str, tuple[str, ...]],
    number: dict[str, int],
    low: dict[str, int],
    open_nodes: list[str],
    trail: list[tuple[str, Iterator[str]]],
) -> None:
    number[node] = low[node] = len(number)
    open_nodes.append(node)
    trail.append((node, iter(edges[node])))
