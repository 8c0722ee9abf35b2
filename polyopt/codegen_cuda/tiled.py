"""Which nests are contractions by tiles, and who builds them: `staging` for threads, `tensor_tiles` for warps,
`group_tiles` for four warps together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from polyopt.codegen_cuda.group_tiles import GroupTiler
from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.codegen_cuda.plan import Contraction
from polyopt.codegen_cuda.staging import Tiler
from polyopt.codegen_cuda.sums import parts_of, tiled_loop
from polyopt.codegen_cuda.tensor_tiles import TensorTiler
from polyopt.codegen_cuda.tiles import Side, extent
from polyopt.codegen_cuda.vectors import Vectors
from polyopt.dsl.ir import Op, Var
from polyopt.dtypes import i64
from polyopt.loops.ir import Expr, For, Stmt, index_var, integer, substitute_in, walk_expr


def staged(
    loops: Sequence[For], body: Stmt, vectors: Vectors, plans: Mapping[str, Contraction], *, reorderable: bool
) -> Stmt | None:
    """The nest by tiles of its two loops that have more than one point per block; None where it does not suit.

    plans: by the update's name; reorderable: whether the loops of the sum may change places
    """
    found = parts_of(body)
    plan = None if found is None else plans.get(found.update.statement)
    if plan is not None and plan.joined:
        loops, body = _joined(loops, body, plan.joined, vectors)
        found = parts_of(body)
    wide = [loop for loop in loops if loop.chunk > 1]
    if len(wide) != 2 or found is None or not all(_is_plain(loop, loops) for loop in wide):
        return None
    if not found.can_stay(vectors.buffers[found.update.buffer]):
        return None
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
    tiler = Tiler if plan.instruction is None else GroupTiler if plan.columns else TensorTiler
    return tiler(found, rows, columns, depth, vectors, plan).nest(loops)


def _joined(loops: Sequence[For], body: Stmt, count: int, vectors: Vectors) -> tuple[Sequence[For], Stmt]:
    """The first loop that a block has several iterations of as one with `count` loops outside it, where all have known
    bounds."""
    rows = next((number for number, loop in enumerate(loops) if loop.chunk > 1), 0)
    parts = loops[rows - count : rows + 1] if rows >= count else ()
    extents = [extent(loop) for loop in parts]
    if not parts or not all(extents) or not all(_is_plain(loop, loops) for loop in parts):
        return loops, body
    name, axis = vectors.fresh("_".join(loop.var for loop in parts)), ", ".join(loop.axis for loop in parts)
    values: dict[str, Expr] = {}
    below = 1
    for loop, length in reversed(list(zip(parts, extents, strict=True))):
        place = folded("floordiv", index_var(name), integer(below))
        place = place if loop is parts[0] else Op("mod", (place, integer(length or 1)), i64)
        values[loop.var] = folded("add", place, loop.lower)
        below *= length or 1
    one = replace(loops[rows], var=name, lower=integer(0), upper=integer(below), axis=axis)
    return (*loops[: rows - count], one, *loops[rows + 1 :]), substitute_in(body, values)


def _is_plain(loop: For, loops: Sequence[For]) -> bool:
    """Whether a loop has unit steps from a constant on, and an end that no other loop changes."""
    scanned = {other.var for other in loops}
    is_known = not any(isinstance(node, Var) and node.name in scanned for node in walk_expr(loop.upper))
    return loop.step == 1 and as_number(loop.lower) is not None and is_known
