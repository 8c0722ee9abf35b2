"""How a block works on its tile of a contraction: pieces of the sum, and the slots that they go through.

Operands come to shared memory in pieces of the sum, whose copies run ahead in a ring where the machine copies
asynchronously and shared memory has room.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyopt.codegen_cuda.cost import access_bytes
from polyopt.codegen_cuda.plan import Contraction
from polyopt.codegen_cuda.rings import slots_of
from polyopt.dsl.affine import Affine, axes_of
from polyopt.dsl.ir import DataIndex, Read
from polyopt.poly.roles import roles_of
from polyopt.poly.scop import Scop
from polyopt.target import STATIC_SHARED_BYTES, GpuTarget
from polyopt.tiling.extents import Extents

TILES = (128, 64, 32)
"""Points along each side of a block's tile of a contraction; 256 threads have 64, 16 or 4 of them each."""

PIECE_BYTES = 64
"""Bytes along the sum of one piece of an operand: half a line of cache."""

ROW_PADDING = 16
"""Bytes between the rows of a copy whose columns neighboring threads read: they then lie in different banks."""

ASYNCHRONOUS = (8, 0)
"""The first GPUs that copy to shared memory on their own."""


def decide(
    scop: Scop, extents: Extents, target: GpuTarget, name: str, axes: tuple[str, str], sides: tuple[int, int]
) -> Contraction:
    """How a block sums up its tile.

    name: the update; axes: those of the tile's sides, rows first
    """
    statement = scop.statement(name)
    depth = max(roles_of(statement).reduced, key=lambda axis: extents.axis(name, axis))
    steps = extents.axis(name, depth)
    item = max((scop.array(access.read.tensor).dtype.itemsize for access in statement.reads), default=4)
    piece = max(1, min(PIECE_BYTES // item, steps))
    copies = (_copy_bytes(scop, access.read, axes, sides, depth, piece) for access in statement.reads)
    slots = slots_of(sum(copies), steps // piece, STATIC_SHARED_BYTES) if target.capability >= ASYNCHRONOUS else 1
    return Contraction(name, piece, slots)


def _copy_bytes(scop: Scop, read: Read, axes: Sequence[str], sides: Sequence[int], depth: str, piece: int) -> int:
    """Bytes of a read's copy in shared memory; 0 where it gets none."""
    used = {axis for subscript in read.subscripts if isinstance(subscript, Affine) for axis in axes_of(subscript)}
    along = [side for axis, side in zip(axes, sides, strict=True) if axis in used]
    if len(along) != 1 or depth not in used or any(isinstance(subscript, DataIndex) for subscript in read.subscripts):
        return 0
    dtype = scop.array(read.tensor).dtype
    is_turned = axes[1] in used and access_bytes(read.subscripts, dtype, depth) == dtype.itemsize
    return along[0] * (piece * dtype.itemsize + (ROW_PADDING if is_turned else 0))
