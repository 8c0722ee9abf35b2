"""Where temporaries live on a GPU: a thread's registers, a block's shared memory, or device memory.

The storage planner finds the box that one iteration of the loops around needs. Such a box is a thread's or a block's
own only if each of the loops that blocks share is among these loops, and if it has a number of elements, which is
small; else the array is whole, in device memory. So it is in nests that one thread runs, too.
"""

from __future__ import annotations

from dataclasses import replace

from polyopt.poly.scop import Scop
from polyopt.poly.storage import Storage, StoragePlan, common_loops, whole
from polyopt.poly.tree import Loop, Tree, loops

THREAD_BYTES = 512
"""What a thread may keep for itself: beyond registers, it is memory that only this thread sees."""

BLOCK_BYTES = 40 << 10
"""What a block may keep in shared memory, all buffers of it together."""


def settled(scop: Scop, plan: StoragePlan, tree: Tree) -> StoragePlan:
    """The plan with every box that does not fit its place made whole."""
    left: dict[str, int] = {}
    return StoragePlan(tuple(_settled(scop, buffer, tree, left) for buffer in plan.buffers))


def _settled(scop: Scop, buffer: Storage, tree: Tree, left: dict[str, int]) -> Storage:
    if not buffer.scope:
        return buffer
    array = scop.array(buffer.array)
    users = [
        s.name for s in scop.statements if s.array == array.name or any(a.read.tensor == array.name for a in s.reads)
    ]
    around = list(common_loops(tree, users))
    shared = [loop.name for loop in around if loop.kind in ("grid", "block")]
    inside = [loop for loop in loops(tree) if loop.kind == "block" and set(users) & set(loop.statements)]
    if any(name not in buffer.scope for name in shared):
        return whole(array)
    size = array.dtype.itemsize
    for extent in buffer.extent:
        if not extent.is_constant:
            return whole(array)
        size *= max(extent.constant, 0)
    is_blocks_own = any(loop.name not in buffer.scope for loop in inside)
    if not is_blocks_own:
        return buffer if size <= THREAD_BYTES else whole(array)
    place = around[0].name if around else ""
    groups = _groups(around)
    used = left.get(place, 0) + size * groups
    if used > BLOCK_BYTES:
        return whole(array)
    left[place] = used
    return replace(buffer)


def _groups(around: list[Loop]) -> int:
    """How many iterations of the grid loops around one block takes: each has a box of its own."""
    count = 1
    for loop in around:
        count *= loop.chunk if loop.kind == "grid" else 1
    return count
