"""Products of four warps as CUDA C++: one instruction multiplies copies in shared memory, while its threads go on.

All instructions of a piece are one group. The pipeline around waits for the group before, so that tensor cores have
work when a piece begins, and behind its loop for the last one (`shared_text`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from polyopt.codegen_cuda.instructions import COLUMNS, GROUP_ROWS, GROUP_WARPS, ROWS, instruction_of
from polyopt.codegen_cuda.intervals import as_number, folded, placed
from polyopt.codegen_cuda.threads import indented
from polyopt.codegen_cuda.warp_text import WarpPrinter, uses
from polyopt.errors import ScheduleError
from polyopt.loops.ir import Expr, For, Load, Stmt, Store, index_var, integer, walk, walk_expr


class GroupPrinter(WarpPrinter):
    """Prints the loops that are instructions of four warps."""

    def _group_steps(self, steps: For, loop: For) -> Iterator[str]:
        """The instructions of a piece, one for as many steps as each takes."""
        nest: list[For] = []
        inner: Stmt = loop.body
        while isinstance(inner, For):
            nest.append(inner)
            inner = inner.body
        warps, *lanes = (s for s in walk(self._body) if isinstance(s, For) and s.kind == "block" and s.chunk)
        if not isinstance(inner, Store) or len(nest) != 3 or (warps.step, warps.chunk % GROUP_WARPS) != (ROWS, 0):
            raise ScheduleError("a product of four warps has another form than their instruction's", why=loop.var)
        store = inner
        left, right = sorted(_loads(store), key=lambda load: not uses(load, warps.var))
        columns = (as_number(nest[1].upper) or 0) * COLUMNS
        helper = f"{_helper(left, right, store, loop)}<{columns}, {_turned(left, loop)}, {_turned(right, loop)}>"
        first: dict[str, Expr] = {one.var: integer(0) for one in (*nest, *lanes, loop)}
        sums = [self._sum(store, {**first, nest[0].var: integer(row)}) for row in range(2)]
        group = folded("mul", folded("floordiv", index_var(warps.var), integer(GROUP_ROWS)), integer(GROUP_ROWS))
        operands = [self._start_of(load, {**first, warps.var: group}) for load in (left, right)]
        yield "po_wgmma_begin();"
        yield from self._for(steps)
        yield from indented([f"{helper}({', '.join((*sums, *operands))});"])
        yield "}"
        yield "po_wgmma_commit();"

    def _sum(self, store: Store, at: Mapping[str, Expr]) -> str:
        """The address of a thread's first sum in a row."""
        indices = tuple(placed(index, at) for index in store.indices)
        return f"&{self._x.element(store.buffer, indices).text}"

    def _start_of(self, load: Load, at: Mapping[str, Expr]) -> str:
        """The address of an operand's first element, in the first line of an atom, whose parts are where they are."""
        buffer = replace(self._shared.buffers[load.buffer], swizzled="")
        indices = tuple(placed(index, at) for index in load.indices)
        place = self._x.text(self._x.offset(buffer, indices, load.dtype.itemsize))
        return f"&{self._shared.names.arrays[load.buffer]}[{place}]"


def _loads(store: Store) -> list[Load]:
    return [node for node in walk_expr(store.value) if isinstance(node, Load)]


def _helper(left: Load, right: Load, store: Store, loop: For) -> str:
    assert store.reducer is not None, "a product is summed up"
    one = instruction_of(left.dtype, right.dtype, store.reducer.dtype)
    if one is None or not one.group or as_number(loop.upper) != one.steps:
        raise ScheduleError("no instruction of four warps multiplies these", why=f"{left.dtype} and {right.dtype}")
    return one.group


def _turned(load: Load, loop: For) -> int:
    """1 for an operand that does not lie along the sum."""
    return int(not any(node == index_var(loop.var) for node in walk_expr(load.indices[-1])))
