"""Rewrites a loop tree as a tiling plan says: strip-mines, moves point loops innermost, marks lanes.

Only coincident loops move: every dependence inside has distance zero along them, so any order of theirs is legal, also
inside a loop that was inside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from polyopt.dsl.affine import Affine
from polyopt.poly.tree import Leaf, Loop, LoopKind, Sequence, Tree, children_of, loops, sequence, statements
from polyopt.tiling.plan import NestPlan, TilingPlan


def apply(tree: Tree, plan: TilingPlan) -> Tree:
    """The tiled tree; loops of `tree` have unique names."""
    names = _tile_names(tree, plan)
    return _visit(tree, {nest.chain[0]: nest for nest in plan.nests}, names)


def _tile_names(tree: Tree, plan: TilingPlan) -> dict[str, str]:
    """For each tiled loop a name for the loop over its tiles that no other loop has, not even one of the user's; for
    each loop in blocks one for the loop over these."""
    used = {loop.name for loop in loops(tree)}
    names: dict[str, str] = {}

    def give(loop: str, suffix: str, key: str) -> None:
        name, number = f"{loop}_{suffix}", 1
        while name in used:
            number += 1
            name = f"{loop}_{suffix}#{number}"
        used.add(name)
        names[key] = name

    for nest in plan.nests:
        grouped = (nest.group,) if nest.group is not None else ()
        for loop, _ in (*nest.tiles, *nest.passes, *grouped):
            give(loop, "tile", loop)
        if nest.block and nest.vector is not None:
            give(nest.vector, "block", _block(nest.vector))
    return names


def _block(loop: str) -> str:
    """What the name of the loop over a loop's blocks is kept under; no loop is called so."""
    return f"{loop} block"


def _visit(tree: Tree, nests: Mapping[str, NestPlan], names: Mapping[str, str]) -> Tree:
    match tree:
        case Leaf():
            return tree
        case Sequence(children):
            return Sequence(tuple(_visit(child, nests, names) for child in children))
        case Loop(name=name):
            if name in nests:
                return _apply_nest(tree, nests[name], nests, names)
            return replace(tree, body=_visit(tree.body, nests, names))
        case _:
            assert_never(tree)


def _apply_nest(tree: Loop, nest: NestPlan, nests: Mapping[str, NestPlan], names: Mapping[str, str]) -> Tree:
    chain: dict[str, Loop] = {}
    body: Tree = tree
    for name in nest.chain:
        assert isinstance(body, Loop) and body.name == name, f"the plan's chain follows the tree at {name}"
        chain[name] = body
        body = body.body
    body = _visit(body, {head: inner for head, inner in nests.items() if head != nest.chain[0]}, names)
    if nest.block:
        return _apply_blocks(chain, body, nest, names)
    group, group_points = nest.group or (None, 1)
    if group in chain:
        body = _sink(replace(chain[group], kind="group", chunk=group_points), body)
    elif group is not None:
        body = _in_groups(body, group, group_points, names)
    points = [name for name, _ in nest.tiles if name not in (nest.rows, nest.vector)]
    inner = [*points, *(name for name in (nest.rows, nest.vector) if name is not None)]
    for name in reversed(inner):
        is_held = name == nest.rows or (nest.rows is not None and nest.vector is None)
        kind: LoopKind = "vector" if name == nest.vector else "unrolled" if is_held else "serial"
        body = _sink(replace(_point_loop(chain[name], nest), kind=kind), body, into_lanes=nest.vector is None)
    for name in reversed(nest.order):
        size = nest.tile(name)
        if name == group:
            body = _over_groups(chain[name], names[name], group_points, body)
        elif size is not None and nest.is_apart and name == nest.rows:
            body = _inside_tiles(chain[name], names[name], size, body)
        elif size is not None:
            body = _tile_loop(chain[name], names[name], size, body)
        elif name not in inner:
            body = replace(chain[name], body=body)
    return body


def _in_groups(body: Tree, name: str, points: int, names: Mapping[str, str]) -> Tree:
    """A reduction inside a nest, a group of its terms at a time: inside all other loops stand those of the group."""
    match body:
        case Loop() if body.name == name:
            inner = _sink(replace(body, kind="group", chunk=points), body.body)
            return _over_groups(body, names[name], points, inner)
        case Loop():
            return replace(body, body=_in_groups(body.body, name, points, names))
        case Sequence(children):
            return Sequence(tuple(_in_groups(child, name, points, names) for child in children))
        case Leaf():
            return body
        case _:
            assert_never(body)


def _over_groups(loop: Loop, outside: str, points: int, body: Tree) -> Loop:
    """The loop that counts groups, as the subscripts of packed operands do."""
    return replace(loop, name=outside, rows=tuple((name, row // points) for name, row in loop.rows), body=body)


def _apply_blocks(chain: Mapping[str, Loop], body: Tree, nest: NestPlan, names: Mapping[str, str]) -> Tree:
    """Blocks of the vector loop, inside which every reduction goes on by a few iterations as the tiles pass by.

    What stands beside the reductions runs once a block. The order in which an element's terms are added stays.
    """
    children = children_of(body)
    body = sequence([_in_passes(child, chain, nest, names) for child in children])
    for name in reversed(nest.order):
        if name == nest.vector:
            body = _tile_loop(chain[name], names[_block(name)], nest.block, body)
        else:
            body = replace(chain[name], body=body)
    return body


def _in_passes(child: Tree, chain: Mapping[str, Loop], nest: NestPlan, names: Mapping[str, str]) -> Tree:
    """A reduction inside a block, `passes` iterations of its innermost loop at a time as the tiles pass by; a statement
    beside it in lanes, tile by tile where a tile has rows."""
    assert nest.vector is not None, "blocks are blocks of lanes"
    if not isinstance(child, Loop):
        vector = replace(chain[nest.vector], kind="vector")
        return _in_tiles(child, chain, nest, names) if nest.rows is not None else _sink(vector, child)
    iterations = dict(nest.passes).get(child.name)
    if iterations is None:
        return replace(child, body=_in_passes(child.body, chain, nest, names))
    return _tile_loop(child, names[child.name], iterations, _in_tiles(child, chain, nest, names))


def _in_tiles(child: Tree, chain: Mapping[str, Loop], nest: NestPlan, names: Mapping[str, str]) -> Tree:
    """Register tiles of what is inside a block, one after the other."""
    kinds: dict[str | None, LoopKind] = {nest.rows: "unrolled", nest.vector: "vector"}
    held = [name for name in (nest.rows, nest.vector) if name is not None]
    body = child
    for name in reversed(held):
        body = _sink(replace(chain[name], kind=kinds[name]), body)
    for name in held if nest.panels_first else reversed(held):
        size = nest.tile(name)
        assert size is not None, "the tiles that pass by have a size"
        around = replace(chain[name], kind="serial", rows=_restricted(chain[name], statements(child)))
        body = _tile_loop(around, names[name], size, body)
    return body


def _tile_loop(loop: Loop, tile: str, size: int, body: Tree) -> Loop:
    """The loop over the first points of the tiles of `loop`."""
    rows = tuple((name, (row // size) * size) for name, row in loop.rows)
    return replace(loop, name=tile, rows=rows, body=body)


def _point_loop(loop: Loop, nest: NestPlan) -> Loop:
    """The loop over the points of a tile; over those in one place of all tiles where rows stand apart."""
    size = nest.tile(loop.name)
    if size is None or not nest.is_apart or loop.name != nest.rows:
        return loop
    return replace(loop, rows=tuple((name, row // size) for name, row in loop.rows))


def _inside_tiles(loop: Loop, place: str, size: int, body: Tree) -> Loop:
    """The loop over the places in the tiles of `loop`."""
    rows = tuple((name, row - (row // size) * size) for name, row in loop.rows)
    return replace(loop, name=place, rows=rows, body=body)


def _sink(loop: Loop, body: Tree, *, into_lanes: bool = False) -> Tree:
    """`loop` around every statement of `body`, inside all of its loops but those moved before.

    into_lanes: also inside loops that are lanes
    """
    match body:
        case Leaf(statement):
            return replace(loop, rows=_restricted(loop, (statement,)), body=body)
        case Sequence(children):
            if all(isinstance(child, Leaf) for child in children):
                return replace(loop, rows=_restricted(loop, statements(body)), body=body)
            return Sequence(tuple(_sink(loop, child, into_lanes=into_lanes) for child in children))
        case Loop(kind="vector" | "unrolled" | "group") if not into_lanes:
            return replace(loop, rows=_restricted(loop, statements(body)), body=body)
        case Loop():
            return replace(body, body=_sink(loop, body.body, into_lanes=into_lanes))
        case _:
            assert_never(body)


def _restricted(loop: Loop, names: tuple[str, ...]) -> tuple[tuple[str, Affine], ...]:
    return tuple((name, row) for name, row in loop.rows if name in names)
