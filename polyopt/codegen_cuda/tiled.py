"""Which nests are contractions by tiles, and who builds them: `staging` for threads, `tensor_tiles` for warps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyopt.codegen_cuda.intervals import as_number
from polyopt.codegen_cuda.plan import Contraction
from polyopt.codegen_cuda.staging import Tiler
from polyopt.codegen_cuda.sums import parts_of, tiled_loop
from polyopt.codegen_cuda.tensor_tiles import TensorTiler
from polyopt.codegen_cuda.tiles import Side
from polyopt.codegen_cuda.vectors import Vectors
from polyopt.dsl.ir import Var
from polyopt.loops.ir import For, Stmt, walk_expr


def staged(
    loops: Sequence[For], body: Stmt, vectors: Vectors, plans: Mapping[str, Contraction], *, reorderable: bool
) -> Stmt | None:
    """The nest by tiles of its two loops that have more than one point per block; None where it does not suit.

    plans: by the update's name; reorderable: whether the loops of the sum may change places
    """
    wide = [loop for loop in loops if loop.chunk > 1]
    found = parts_of(body)
    if len(wide) != 2 or found is None or not all(_is_plain(loop, loops) for loop in wide):
        return None
    if not found.can_stay(vectors.buffers[found.update.buffer]):
        return None
    plan = plans.get(found.update.statement)
    depth = tiled_loop(found, {loop.var for loop in wide}, reorderable=reorderable)
    if depth is None or plan is None:
        return None
    fresh = vectors.fresh
    rows, columns = (
        Side(
            loop,
            fresh(f"{loop.var}_block"),
            fresh(f"{side}"),
            fresh(f"{loop.var}_own"),
            fresh(f"{loop.var}_lane"),
            loop.chunk,
        )
        for loop, side in zip(wide, ("row", "column"))
    )
    tiler = Tiler if plan.instruction is None else TensorTiler
    return tiler(found, rows, columns, depth, vectors, plan).nest(loops)


def _is_plain(loop: For, loops: Sequence[For]) -> bool:
    """Whether a loop has unit steps from a constant on, and an end that no other loop changes."""
    scanned = {other.var for other in loops}
    is_known = not any(isinstance(node, Var) and node.name in scanned for node in walk_expr(loop.upper))
    return loop.step == 1 and as_number(loop.lower) is not None and is_known
