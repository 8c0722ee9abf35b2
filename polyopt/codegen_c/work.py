"""How long a nest of loops takes on one core, about: what decides whether threads repay being woken.

The larger of two times: operations at the rate of a core's vectors, and bytes, each array once, at the rate of the
cache that holds them. Both are guesses within a factor of two, which is what the decision needs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import assert_never

from polyopt.dsl.affine import Affine, axes_of
from polyopt.dsl.ir import Op
from polyopt.fusion.rewrite import cost
from polyopt.poly.scop import Access, Array, Scop, Statement
from polyopt.poly.tree import Leaf, Loop, Tree, loops, statements
from polyopt.poly.tree import Sequence as TreeSequence
from polyopt.target import Target
from polyopt.tiling.extents import Extents

OPERATIONS_PER_NS = 4.0
"""Of one lane: a core starts one or two vector operations a cycle, and has two or three cycles in a nanosecond."""

NEAR_BYTES_PER_NS, FAR_BYTES_PER_NS = 50.0, 15.0
"""Read by one core from its own caches, and from beyond them, where that was not measured."""

HANDED_BYTES_PER_NS = 4.0
"""Of what one core wrote and another reads: 8 on the way there, and 8 until the first core may write it again.
Measured on a panel of 64 KiB, Emerald Rapids."""


def nanoseconds(scop: Scop, tree: Tree, extents: Extents, target: Target, outside: Mapping[str, int]) -> float:
    """Of one execution of `tree`. outside: how often that is, by statement, 1 where not said."""
    lanes = _lanes(tree, extents, target, scop)
    runs = {name: extents.points(name) / max(outside.get(name, 1), 1) for name in statements(tree)}
    groups = {name: loop.chunk for loop in loops(tree) if loop.kind == "group" for name in loop.statements}
    done = 0.0
    for name, points in runs.items():
        each = 1 / groups[name] if name in groups else operations(scop.statement(name))
        done += points * each / lanes.get(name, 1)
    size = touched_bytes(scop, runs)
    return max(done / OPERATIONS_PER_NS, size / _bytes_per_ns(target, size))


def handed_ns(scop: Scop, loop: Loop, target: Target, shared: Set[str]) -> float:
    """The time for which cores pass on what a parallel loop reads of temporaries that were filled before it runs.

    What outgrows a core's own cache has left it by then, and is read like everything else.
    shared: the temporaries that the threads fill together, so that each has a part already
    """
    inside = [scop.statement(name) for name in loop.statements]
    filled = {array.name for array in scop.arrays if array.role == "local"} - {s.array for s in inside}
    total = 0.0
    for name in filled:
        size, reads = whole_bytes(scop, name), _reads(inside, name)
        if reads and size <= target.l2_bytes // 2:
            is_split = all(_is_split(access, loop.row(statement.name)) for statement, access in reads)
            total += size / (2 if name in shared else 1) / (2 if is_split else 1)
    return total / HANDED_BYTES_PER_NS


def _reads(inside: Sequence[Statement], name: str) -> list[tuple[Statement, Access]]:
    return [(s, access) for s in inside for access in s.reads if access.read.tensor == name]


def _is_split(access: Access, row: Affine) -> bool:
    """Whether iterations read parts of their own: the loop moves what is read."""
    return any(isinstance(s, Affine) and axes_of(s) & axes_of(row) for s in access.read.subscripts)


def operations(statement: Statement) -> int:
    """Instructions of one instance; a product that is added up is one."""
    product = isinstance(statement.value, Op) and statement.value.name == "mul"
    return cost(statement.value) + (0 if statement.is_update and product else 1)


def _lanes(tree: Tree, extents: Extents, target: Target, scop: Scop) -> dict[str, int]:
    """How many instances of each statement run at once in a vector; statements outside vector loops are left out."""
    match tree:
        case Leaf():
            return {}
        case TreeSequence(children):
            return {name: lanes for child in children for name, lanes in _lanes(child, extents, target, scop).items()}
        case Loop(kind="vector", rows=rows):
            return {
                name: max(1, min(target.lanes(_widest(scop, scop.statement(name))), extents.row(name, row)))
                for name, row in rows
            }
        case Loop(body=body):
            return _lanes(body, extents, target, scop)
        case _:
            assert_never(tree)


def _widest(scop: Scop, statement: Statement) -> int:
    names = {statement.array, *(access.read.tensor for access in statement.reads)}
    return 8 * max(array.dtype.itemsize for array in scop.arrays if array.name in names)


def touched_bytes(scop: Scop, runs: Mapping[str, float]) -> float:
    """Bytes of the arrays that instances touch: no more than an array has, or than instances come by.

    runs: how many instances, by statement
    """
    items = {array.name: array.dtype.itemsize for array in scop.arrays}
    found: dict[str, float] = {}
    for name, points in runs.items():
        statement = scop.statement(name)
        for array in {statement.array, *(access.read.tensor for access in statement.reads)}:
            found[array] = max(found.get(array, 0.0), points * items[array])
    return sum(min(size, whole_bytes(scop, name) or size) for name, size in found.items())


def nest_bytes(scop: Scop, nest: Tree, extents: Extents) -> float:
    """The same of all instances of a nest."""
    return touched_bytes(scop, {name: extents.points(name) for name in statements(nest)})


def whole_bytes(scop: Scop, name: str) -> int:
    """Bytes of an array; 0 where its shape is symbolic."""
    array = next(array for array in scop.arrays if array.name == name)
    total = array.dtype.itemsize
    for extent in array.shape:
        total *= 0 if extent.terms else extent.constant
    return total


def is_open(array: Array) -> bool:
    """Whether a call says how large the array is."""
    return not all(extent.is_constant for extent in array.shape)


def _bytes_per_ns(target: Target, size: float) -> float:
    near = size <= target.l2_bytes
    if target.rates is None:
        return NEAR_BYTES_PER_NS if near else FAR_BYTES_PER_NS
    return target.rates.l2 if near else target.rates.l3 if size <= target.l3_bytes else target.rates.dram
