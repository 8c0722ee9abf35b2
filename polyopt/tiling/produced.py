"""Operands that are computed a block at a time, where a panel of them would be copied.

A contraction may read a temporary that another statement writes in an order of its own: columns of windows, of which
`u[9*c + 3*r + s, 7*h + w]` is written row by row of an image. A copy of its panels would read and write it again, and
the whole temporary would travel through memory. Instead the statement itself computes the part of each block, with the
number of the block as its outermost axis, as a copy has that of its panel.
"""

from __future__ import annotations

from dataclasses import replace

from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, axis
from polyopt.dtypes import DType
from polyopt.poly.scop import Access, Scop, Statement
from polyopt.poly.space import Space, insert_axes
from polyopt.target import Target
from polyopt.tiling.evenness import evenness

LEAST_BLOCKS = 3
"""Blocks into which the columns are cut, where a cache would hold more, so that threads find work: two, and a rest."""


def producer(scop: Scop, update: Statement, read: ir.Read, cut: int) -> Statement | None:
    """The statement that can compute an operand block by block along its dimension `cut`; None where there is none.

    It writes the whole operand and nothing else reads it; along `cut` it runs with several axes, so that a copy of
    panels could not take its place.
    """
    writers = scop.writers(read.tensor)
    readers = [s.name for s in scop.statements for a in s.reads if a.read.tensor == read.tensor]
    if scop.array(read.tensor).role != "local" or len(writers) != 1 or readers != [update.name]:
        return None
    (writer,) = writers
    is_plain = all(isinstance(node, ir.Read | ir.Const | ir.Op | ir.Cast) for node in ir.walk(writer.value))
    affine = all(
        isinstance(s, Affine) and all(isinstance(a, AxisRef) for a, _ in s.terms)
        for subscripts in (writer.subscripts, *(a.read.subscripts for a in writer.reads))
        for s in subscripts
    )
    along = writer.subscripts[cut]
    spreads = isinstance(along, Affine) and len(along.terms) > 1
    guarded = any(a.read.boundary is not None for a in writer.reads)
    return writer if writer.role == "define" and is_plain and affine and spreads and not guarded else None


def block_of(length: int, columns: int, width: int, bytes_per_column: int, batches: int, target: Target) -> int:
    """Points of a block, whole register tiles of `columns`: as many as a quarter of the second cache holds, beside what
    the block is made from and what passes by, and few enough for the threads. Where all blocks are one result's,
    threads share them, as evenly as they can.

    width: columns of a vector
    """
    fitting = max(target.l2_bytes // 4 // max(bytes_per_column, 1) // columns, 1)
    shared = -(-length * batches // (LEAST_BLOCKS * columns))
    most = min(fitting, max(shared, 1), -(-length // columns))
    if batches > 1:
        return most * columns
    return max((evenness(length, tiles * columns, width), tiles) for tiles in range(1, most + 1))[1] * columns


def statement_for(
    scop: Scop,
    writer: Statement,
    name: str,
    blocks: tuple[str, Affine],
    written: tuple[Affine, ...],
    dtype: DType | None,
) -> Statement:
    """`name[written] = value` on the instances of the writer, with the number of the block as their outermost axis.

    blocks: a name for that axis, and the number of the block that an instance of the writer is in
    dtype:  what the value is converted to
    """
    panel, number = blocks
    axes = (panel, *writer.axes)
    space = Space(name, axes, scop.sizes)
    domain = insert_axes(writer.domain, space).set_tuple_name(name) & space.aff(axis(panel)).eq_set(space.aff(number))

    def read(access: Access) -> Access:
        subscripts = [s for s in access.read.subscripts if isinstance(s, Affine)]
        return Access(access.read, space.access(access.read.tensor, subscripts).intersect_domain(domain))

    return replace(
        writer,
        name=name,
        axes=axes,
        domain=domain,
        array=name,
        subscripts=written,
        value=writer.value if dtype is None else ir.Cast(writer.value, dtype),
        write=space.access(name, written).intersect_domain(domain),
        reads=tuple(map(read, writer.reads)),
    )
