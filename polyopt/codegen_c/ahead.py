"""Which operands vector loops ask for before they read them.

A processor foresees what a loop reads along a row, and has several vectors under way at once. Two kinds of loops want
more than that:

- One whose vectors take long, where stores go to memory besides: a loop of 50 cycles a vector then waits 40 more for
  each. What it reads once, from behind a core's own cache, is asked for a few lines ahead.
- Loops that pass over a row one after the other, as those of a softmax do: the first of them waits for the memory, and
  the memory for the others. The one of the others that computes most asks for the next row, line by line as it passes
  over its own. What the last cache holds comes so soon that only a loop whose vectors take long has time to ask.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from math import prod

from polyopt.classes import dataclass
from polyopt.codegen_c import work
from polyopt.dsl.affine import Affine, AxisRef, axes_of
from polyopt.loops.ir import Buffer, Fetch, LoopProgram
from polyopt.poly.scop import Array, Scop, Statement
from polyopt.poly.tree import Loop, Tree, children_of, loops, statements
from polyopt.poly.tree import Sequence as TreeSequence
from polyopt.target import Target
from polyopt.tiling.cost import axis_of
from polyopt.tiling.extents import Extents
from polyopt.tiling.steps import Steps, slope_of

LONG = 16
"""Operations of an instance, as many as a function has, from which on too few vectors are under way at once."""

AHEAD_BYTES = 1024
"""How far ahead of a vector such a loop asks: 16 lines of the cache, 5 to 20 ns each."""

LEAST_ROW = 2048
"""Bytes of a row that is worth asking for: along shorter ones the processor is in the next one by itself."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """An operand asked for ahead. whole_bytes: of it, 0 where its size is open; row_bytes: of the rows that it is asked
    for by, if it is"""

    array: str
    whole_bytes: int
    fetch: Fetch
    row_bytes: int = 0

    def __str__(self) -> str:
        size = f"{self.whole_bytes} bytes" if self.whole_bytes else "if it is large,"
        far = f"{self.array}: read ahead: {size} from behind the second cache"
        if not self.row_bytes:
            return f"{far}, each once"
        return (
            f"{far}, by rows of {self.row_bytes}; {self.fetch.reader} asks for the next one as it passes over its own"
        )


def decide(scop: Scop, tree: Tree, steps: Steps, extents: Extents, target: Target) -> tuple[Ahead, ...]:
    """What the statements of a tiled tree ask for, one of them for each operand: of those that the second cache does
    not hold, or may not."""
    far = ((array, work.whole_bytes(scop, array.name)) for array in scop.arrays)
    found = (_asked(scop, tree, steps, extents, target, a, n) for a, n in far if n > target.l2_bytes or work.is_open(a))
    return tuple(ahead for ahead in found if ahead is not None)


def apply(program: LoopProgram, ahead: Sequence[Ahead]) -> LoopProgram:
    """The program whose buffers say what vector loops ask for."""
    fetched = {operand.array: operand.fetch for operand in ahead}

    def marked(buffers: tuple[Buffer, ...]) -> tuple[Buffer, ...]:
        return tuple(replace(buffer, ahead=fetched.get(buffer.name)) for buffer in buffers)

    return replace(program, arguments=marked(program.arguments), workspace=marked(program.workspace))


def _asked(
    scop: Scop, tree: Tree, steps: Steps, extents: Extents, target: Target, array: Array, size: int
) -> Ahead | None:
    readers = [s for s in scop.statements if any(access.read.tensor == array.name for access in s.reads)]
    if len(readers) == 1:
        (reader,) = readers
        is_slow = array.role == "input" and _is_slow(reader, array.name)
        return Ahead(array.name, size, Fetch(reader.name, AHEAD_BYTES)) if is_slow else None
    found = [
        row
        for nest in children_of(tree)
        for row in _rows(scop, nest, steps, extents, array)
        if row.operations >= LONG or work.nest_bytes(scop, nest, extents) > target.cached_bytes
    ]
    rows = max(found, key=lambda row: row.operations, default=None)
    if rows is None or not LEAST_ROW <= rows.bytes <= target.l2_bytes // 2:
        return None
    is_near = 4 * rows.bytes <= target.l1_bytes
    return Ahead(array.name, size, Fetch(rows.reader, further=rows.further, is_near=is_near), rows.bytes)


def _is_slow(reader: Statement, array: str) -> bool:
    """Whether a statement whose instances take long reads each element once."""
    place = _place(reader, array)
    return place is not None and _axes(place) == {*reader.axes} and work.operations(reader) >= LONG


def _place(reader: Statement, array: str) -> tuple[Affine, ...] | None:
    """The one place that a statement reads of an array."""
    places = {access.read.subscripts for access in reader.reads if access.read.tensor == array}
    if len(places) != 1:
        return None
    (place,) = places
    known = tuple(s for s in place if isinstance(s, Affine))
    return known if len(known) == len(place) else None


def _axes(place: tuple[Affine, ...]) -> Set[str]:
    return frozenset().union(*map(axes_of, place))


# --- rows that several loops pass over --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of an operand that loops inside an iteration pass over.

    reader:  a statement of a later pass
    further: by how much each subscript is greater in the next iteration
    """

    reader: str
    further: tuple[int, ...]
    bytes: int
    operations: int


def _rows(scop: Scop, nest: Tree, steps: Steps, extents: Extents, array: Array) -> Iterator[_Row]:
    """The rows of an array that are read again inside the iteration that read them first, and not written there."""
    for around in loops(nest):
        passes = around.body.children if isinstance(around.body, TreeSequence) else ()
        if any(scop.statement(name).array == array.name for name in around.statements):
            continue
        before: list[tuple[int, ...]] = []
        for one in passes:
            further = {name: step for name in statements(one) if (step := _further(scop, around, name, array.name))}
            for loop in loops(one):
                for name in loop.statements if loop.kind == "vector" else ():
                    place, axis = _place(scop.statement(name), array.name), axis_of(loop.row(name))
                    if place is None or axis is None or further.get(name) not in before:
                        continue
                    if steps.along(array.name, place, axis) == 1:
                        moving = _axes(place) - axes_of(around.row(name))
                        points = prod(extents.axis(name, moved) for moved in moving)
                        operations = work.operations(scop.statement(name))
                        yield _Row(name, further[name], points * array.dtype.itemsize, operations)
            before += further.values()


def _further(scop: Scop, around: Loop, name: str, array: str) -> tuple[int, ...]:
    """By how much the subscripts of what a statement reads are greater in the next iteration; nothing where it reads
    nothing, several places, or the same one again."""
    place, axis = _place(scop.statement(name), array), axis_of(around.row(name))
    if place is None or axis is None:
        return ()
    direction = around.row(name).coefficient(AxisRef(axis))
    further = tuple(direction * (slope_of(subscript, axis) or 0) for subscript in place)
    return further if any(further) else ()
