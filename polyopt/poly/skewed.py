"""Temporaries of a wavefront, stored diagonal by diagonal.

A wavefront runs the elements of an antidiagonal at once, and in rows these lie a row less one element apart: a gather
for each read, a scatter for each value. Where `[i, j]` lies at `i*(W + 1) + j*W` instead, with as many elements `W` as
there are `i`, an antidiagonal is a row: `i + j` says which, and `i` where in it, so that no two elements share a place.
A table of `M*N` elements then takes `(M + N)*M`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, AxisRef, axes_of, axis
from polyopt.dsl.ir import Subscript
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.tree import Loop, Tree, loops

MOST_GROWTH = 4
"""Times the memory that a table may take."""

MOST_BYTES = 1 << 28
"""Of a table."""

MOST_OUTSIDE = 2
"""Times that statements outside the wavefront may touch each element, which for them lie apart."""


@dataclass(frozen=True, slots=True)
class _Front:
    """An antidiagonal of an array: all elements of one `weight*[lanes] + [other]`, of which `lanes` and `other` are
    dimensions; a lane's neighbour has the next subscript in `lanes`."""

    lanes: int
    other: int
    weight: int


def layouts(scop: Scop, tree: Tree) -> dict[str, tuple[int, ...]]:
    """Bytes from one element to the next along each dimension of the temporaries of `scop` that will be stored so where
    they are stored whole; the tree has no lanes yet."""
    found: dict[str, tuple[int, ...]] = {}
    for array in scop.arrays:
        steps = strides(array.name, array.shape, scop, tree, mapped=False) if array.role == "local" else None
        if steps is not None:
            found[array.name] = tuple(step * array.dtype.itemsize for step in steps)
    return found


def strides(
    array: str, shape: Sequence[Affine], scop: Scop, tree: Tree, *, mapped: bool = True
) -> tuple[int, ...] | None:
    """Elements from one to the next along each dimension, such that the lanes of a wavefront find neighbours; None
    where rows suit the array's statements better, or sizes are open.

    shape:  of what is stored of the array
    mapped: whether the tree's loops say which of them are lanes; otherwise an innermost loop that may be is taken for
            one
    """
    if len(shape) < 2 or not all(extent.is_constant for extent in shape):
        return None
    inside = {name: pair for pair in _wavefronts(tree, mapped) for name in pair[1].statements}
    users = {statement.name: statement for statement in scop.users(array)}
    fronts = {_front(users[name], array, wave, lanes) for name, (wave, lanes) in inside.items() if name in users}
    front = fronts.pop() if len(fronts) == 1 else None
    if front is None or {front.lanes, front.other} != {len(shape) - 2, len(shape) - 1}:
        return None
    extents = [extent.constant for extent in shape]
    width, length = extents[front.lanes], extents[front.other]
    rows = (width - 1) * front.weight + length
    outside = [_points(statement) for name, statement in users.items() if name not in inside]
    known = [points for points in outside if points is not None]
    others = prod(extents[:-2]) * scop.array(array).dtype.itemsize
    if len(known) < len(outside) or sum(known) > MOST_OUTSIDE * prod(extents):
        return None
    if not fits(width, length, front.weight, others):
        return None
    if not picks.choose(f"{array} by diagonals", True, lambda: (True, False)):
        return None
    found = {front.lanes: width * front.weight + 1, front.other: width}
    step = rows * width
    for dimension in reversed(range(len(shape) - 2)):
        found[dimension] = step
        step *= extents[dimension]
    return tuple(found[dimension] for dimension in range(len(shape)))


def fits(width: int, length: int, weight: int, others: int) -> bool:
    """Whether a table may grow to one row for each antidiagonal.

    width, length: elements along the lanes, and along the other dimension
    others:        bytes of an element, times elements along other dimensions
    """
    rows = (width - 1) * weight + length
    return rows <= MOST_GROWTH * length and rows * width * others <= MOST_BYTES


def _wavefronts(tree: Tree, mapped: bool) -> Iterator[tuple[Loop, Loop]]:
    """Loops over sums of axes, each with a loop inside whose iterations are lanes, or may be."""
    for wave in loops(tree):
        if any(len(row.terms) > 1 for _, row in wave.rows):
            for one in loops(wave.body):
                if one.kind == "vector" if mapped else one.coincident and not any(loops(one.body)):
                    yield wave, one


def _front(statement: Statement, array: str, wave: Loop, lanes: Loop) -> _Front | None:
    """What an iteration of a wavefront touches of an array; None where its accesses do not agree."""
    along, row = lanes.row(statement.name), wave.row(statement.name)
    if len(along.terms) != 1 or along != axis(_only_axis(along)) or len(row.terms) != 2:
        return None
    own = _only_axis(along)
    others = [atom.name for atom, _ in row.terms if isinstance(atom, AxisRef) and atom.name != own]
    if len(others) != 1 or row.coefficient(AxisRef(others[0])) != 1 or row.coefficient(AxisRef(own)) < 1:
        return None
    weight = row.coefficient(AxisRef(own))
    accesses = [access.read.subscripts for access in statement.reads if access.read.tensor == array]
    if statement.array == array:
        accesses.append(statement.subscripts)
    found = {(_dimension(subscripts, own), _dimension(subscripts, others[0])) for subscripts in accesses}
    first, second = found.pop() if len(found) == 1 else (None, None)
    return None if first is None or second is None else _Front(first, second, weight)


def _only_axis(row: Affine) -> str:
    return next(iter(axes_of(row)), "")


def _dimension(subscripts: Sequence[Subscript], name: str) -> int | None:
    """The dimension whose subscript is an axis beside a number; None where another one knows the axis too."""
    known = [d for d, s in enumerate(subscripts) if not isinstance(s, Affine) or name in axes_of(s)]
    if len(known) != 1:
        return None
    subscript = subscripts[known[0]]
    is_alone = isinstance(subscript, Affine) and subscript - subscript.constant == axis(name)
    return known[0] if is_alone else None


def _points(statement: Statement) -> int | None:
    """Points of the box around a statement's domain; None where sizes say."""
    sides = range(len(statement.axes))
    ends = [(statement.domain.dim_min_val(n), statement.domain.dim_max_val(n)) for n in sides]
    if not all(low.is_int() and high.is_int() for low, high in ends):
        return None
    return prod(max(0, int(high.to_python()) - int(low.to_python()) + 1) for low, high in ends)
