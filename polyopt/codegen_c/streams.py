"""Which results are stored past the caches.

A store to a line that is in no cache first reads the line from memory. A vector that covers a line can go to memory as
it is, which saves that read and leaves the caches to what is read again: for a result that a kernel writes once, in
whole vectors, and that would not stay in the caches anyway until somebody reads it. Where a call computes in place,
the operand's lines are there already, and stores past the caches would throw them out. Of open sizes the kernel asks
when it is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.codegen_c import work
from polyopt.codegen_c.workspace import product, total
from polyopt.dsl.affine import Affine, AxisRef
from polyopt.loops.ir import Buffer, Expr, LoopProgram, integer
from polyopt.poly.scop import Array, Scop, Statement
from polyopt.poly.tree import Loop, Tree, children_of, loops, statements
from polyopt.target import Target
from polyopt.tiling.cost import axis_of
from polyopt.tiling.extents import Extents

OUTGROWN = 1.25
"""Times that a nest must touch what the caches keep: of a little more than that most stays (measured on Zen 4, two
threads, bias and relu of 2048 x 2048, which touches 1.0002 times the last cache: 0.62 ms past the caches, and 0.35 by
the stores of others)."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A result stored past the caches.

    touched_bytes: of the nest that writes it, without what is open
    cached_bytes:  what caches keep
    open:          arrays that the nest touches whose sizes a call says: those of the call decide
    own_bytes:     which the result must exceed then
    """

    array: str
    touched_bytes: int
    cached_bytes: int
    open: tuple[str, ...] = ()
    own_bytes: int = 0

    def __str__(self) -> str:
        if self.open:
            return (
                f"{self.array}: stored past the caches in calls in which it has more than {self.own_bytes} bytes and "
                f"its nest touches more than {round(OUTGROWN * self.cached_bytes)}"
            )
        return (
            f"{self.array}: stored past the caches: its nest touches {self.touched_bytes} bytes, "
            f"of which {self.cached_bytes} would stay"
        )


def decide(scop: Scop, tree: Tree, extents: Extents, target: Target) -> tuple[Stream, ...]:
    """The results of a tiled tree to store past the caches. Only x86 has such stores for vectors."""
    if not target.triple.startswith("x86_64"):
        return ()
    found = []
    for nest in children_of(tree):
        touched = _touched(scop, nest)
        open_ = tuple(array.name for array in touched if work.is_open(array) and array.role != "local")
        size = work.nest_bytes(scop, nest, extents)
        if open_:
            size = sum(work.whole_bytes(scop, array.name) for array in touched)
        for name in _written_once(scop, nest):
            is_large = name in open_ or work.whole_bytes(scop, name) > target.l2_bytes
            if is_large and _goes_past(name, bool(open_) or size > OUTGROWN * target.cached_bytes):
                found.append(Stream(name, round(size), target.cached_bytes, open_, target.l2_bytes if open_ else 0))
    return tuple(found)


def _touched(scop: Scop, nest: Tree) -> list[Array]:
    found = [scop.statement(name) for name in statements(nest)]
    names = {name for s in found for name in (s.array, *(access.read.tensor for access in s.reads))}
    return [array for array in scop.arrays if array.name in names]


def _goes_past(name: str, preferred: bool) -> bool:
    return picks.choose(f"{name} past the caches", preferred, lambda: (preferred, not preferred))


def apply(program: LoopProgram, streams: Sequence[Stream], in_place: Sequence[tuple[str, str]] = ()) -> LoopProgram:
    """The program with its streams marked. in_place: pairs (result, input) that may be the same memory"""
    found = {stream.array: stream for stream in streams}
    arguments = {buffer.name: buffer for buffer in program.arguments}

    def marked(buffer: Buffer) -> Buffer:
        stream = found.get(buffer.name)
        if stream is None:
            return buffer
        others = tuple(given for result, given in in_place if result == buffer.name and given in arguments)
        outgrows: tuple[tuple[Expr, int], ...] = ()
        if stream.open:
            touched = total([integer(stream.touched_bytes), *(_bytes(arguments[name]) for name in stream.open)])
            outgrows = (_bytes(buffer), stream.own_bytes), (touched, round(OUTGROWN * stream.cached_bytes))
        return replace(buffer, passes=True, in_place_of=others, outgrows=outgrows)

    return replace(program, arguments=tuple(map(marked, program.arguments)))


def _bytes(buffer: Buffer) -> Expr:
    """Of the elements, as an expression over sizes."""
    return product([integer(buffer.dtype.itemsize), *buffer.shape])


def _written_once(scop: Scop, nest: Tree) -> Iterator[str]:
    """Results that one statement of the nest writes, along vectors, and that nothing reads from memory."""
    results = {array.name for array in scop.arrays if array.role == "output"}
    for loop in loops(nest):
        for name in loop.statements if loop.kind == "vector" else ():
            statement = scop.statement(name)
            writers = [other for other in scop.statements if other.array == statement.array]
            is_plain = statement.array in results and writers == [statement] and statement.role == "define"
            if is_plain and _runs_along_rows(statement, loop) and _is_read_at_once(statement, loop, scop):
                yield statement.array


def _runs_along_rows(statement: Statement, loop: Loop) -> bool:
    axis = axis_of(loop.row(statement.name))
    last = statement.subscripts[-1] if statement.subscripts else None
    return axis is not None and isinstance(last, Affine) and last.coefficient(AxisRef(axis)) == 1


def _is_read_at_once(statement: Statement, loop: Loop, scop: Scop) -> bool:
    """Whether each read of what a statement writes is of the value that was just computed, in the same vector."""
    readers = [
        (other, access.read.subscripts)
        for other in scop.statements
        for access in other.reads
        if access.read.tensor == statement.array
    ]
    return all(
        other.name in loop.statements
        and (other.axes, subscripts) == (statement.axes, statement.subscripts)
        and loop.row(other.name) == loop.row(statement.name)
        for other, subscripts in readers
    )
