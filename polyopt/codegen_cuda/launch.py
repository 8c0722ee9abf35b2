"""How a kernel is launched: its parameters, the width of its indices, and the place of a block in the grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

from polyopt.codegen_c.c_helpers import stored_type
from polyopt.codegen_cuda.alignment import note
from polyopt.codegen_cuda.intervals import Interval, as_number, folded, interval, of_loop
from polyopt.codegen_cuda.reductions import Reductions
from polyopt.codegen_cuda.shapes import (
    exprs,
)
from polyopt.codegen_cuda.source import RECORD
from polyopt.codegen_cuda.threads import Names, comment
from polyopt.codegen_cuda.vector_text import VectorPrinter
from polyopt.dsl.ir import Const, Op, Var
from polyopt.dtypes import i64
from polyopt.loops.ir import (
    Expr,
    For,
    If,
    Load,
    Stmt,
    Store,
    buffers_used,
    integer,
    walk,
    walk_expr,
)

NARROW = 1 << 31
"""Indices whose every part stays below this in size are `int`."""

MOST_BLOCKS_YZ = 65535


class LaunchPrinter(VectorPrinter):
    """Prints what stands before a kernel's statements."""

    def __init__(self, shared: Names, reductions: Reductions, statement: Stmt) -> None:
        super().__init__(shared, reductions)
        self._grid: list[For] = []
        while isinstance(statement, For) and statement.kind == "grid":
            self._grid.append(statement)
            statement = statement.body
        self._body = statement

    # --- parameters -----------------------------------------------------------------------------------------------

    def _pointers(self) -> list[str]:
        used = buffers_used(self._body)
        used = used | {b for loop in walk(self._body) if isinstance(loop, If) for b in _loaded(loop.condition)}
        pointers = [name for name in self._shared.parameters if name in used]
        has_checks = any(
            store.checks or any(isinstance(e, Load) and e.checks for x in exprs(store) for e in walk_expr(x))
            for store in walk(self._body)
            if isinstance(store, Store)
        )
        return [*pointers, RECORD] if has_checks else pointers

    def _values(self) -> list[str]:
        """The i64 parameters: what is used and no loop of the kernel scans."""
        scanned = {loop.var for loop in (*self._grid, *walk(self._body)) if isinstance(loop, For)}
        used: set[str] = set()
        needed = [e for loop in self._grid for e in (loop.lower, loop.upper)]
        for statement in walk(self._body):
            needed += list(exprs(statement))
        used_buffers = buffers_used(self._body)
        for name in sorted(used_buffers):
            buffer = self._shared.buffers[name]
            needed += [*buffer.shape, *(buffer.strides or ())]
        for expr in needed:
            used.update(node.name for node in walk_expr(expr) if isinstance(node, Var))
        known = [name for name in self._shared.sizes if name in used]
        return [*known, *sorted(used - scanned - set(known))]

    # --- widths ---------------------------------------------------------------------------------------------------

    def _ranges(self) -> None:
        """Where each variable lies; loops one after the other may have the same one."""
        ranges: dict[str, Interval] = self._x.ranges
        shapes = {e.name for b in self._shared.buffers.values() for e in b.shape if isinstance(e, Var)}
        ranges.update({size: (integer(0), Var(size, i64)) for size in self._shared.sizes if size in shapes})
        loops = [*self._grid, *(inner for inner in walk(self._body) if isinstance(inner, For))]
        for loop in loops:
            low, high = of_loop(loop, ranges)
            if loop.var in ranges:
                low = folded("minimum", ranges[loop.var][0], low)
                high = folded("maximum", ranges[loop.var][1], high)
            ranges[loop.var] = low, high

    def _is_narrow(self) -> bool:
        """Whether every index expression, offset and extent is proved to fit an `int`."""
        needed: list[Expr] = [e for loop in self._grid for e in (loop.lower, loop.upper)]
        for statement in walk(self._body):
            needed += list(exprs(statement))
        for name in buffers_used(self._body):
            buffer = self._shared.buffers[name]
            extents = [as_number(extent) for extent in buffer.shape]
            if any(extent is None for extent in extents):
                return False
            strides = [as_number(s) for s in buffer.strides or ()]
            if any(s is None for s in strides):
                return False
            reach = sum(abs(s or 0) * (e or 0) for s, e in zip(strides, extents)) if buffer.strides is not None else 0
            if max(reach, prod(e or 0 for e in extents)) * 2 >= NARROW:
                return False
        return all(self._fits(node) for expr in needed for node in walk_expr(expr))

    def _fits(self, node: Expr) -> bool:
        if not isinstance(node, Op | Var) or node.dtype.name != "i64":
            return True
        if any(isinstance(inner, Load) or not isinstance(inner, Op | Var | Const) for inner in walk_expr(node)):
            return True
        low, high = (as_number(bound) for bound in interval(node, self._x.ranges))
        return low is not None and high is not None and -NARROW // 2 < low and high < NARROW // 2

    # --- blocks and threads ---------------------------------------------------------------------------------------

    def _blocks(self) -> tuple[tuple[Expr, Expr, Expr], list[str]]:
        """The extents of the grid, and the lines that find out a block's place in it."""
        ranges: dict[str, Interval] = {}
        extents: list[Expr] = []
        for loop in self._grid:
            low, high = interval(loop.lower, ranges)[0], interval(loop.upper, ranges)[1]
            whole = folded("sub", folded("add", high, integer(loop.step - 1)), low)
            extents.append(folded("floordiv", whole, integer(loop.step)))
            ranges[loop.var] = low, folded("sub", high, integer(1))
        places, lines, dims = self._places(extents)
        return dims, self._block_lines(places, lines)

    def _places(self, extents: Sequence[Expr]) -> tuple[list[str], list[str], tuple[Expr, Expr, Expr]]:
        """A block's place along each loop, the lines that calculate them, and the extents of the grid in x, y and z.

        The innermost loops have a dimension each and those outside share z, or all of them share x, which is longest.
        """
        one = integer(1)
        numbers = [as_number(extent) for extent in extents]
        places = ["0"] * len(extents)
        wide = [n for n, number in enumerate(numbers) if number != 1]
        known = [number for n in wide if (number := numbers[n]) is not None]
        own, rest = wide[-2:], wide[:-2]
        if (
            (len(known) < len(wide) and len(wide) > 1)
            or any(n > MOST_BLOCKS_YZ for n in known[:-1])
            or prod(numbers[n] or 0 for n in rest) > MOST_BLOCKS_YZ
        ):
            own, rest = [], wide
        dims: list[Expr] = []
        for number, axis in zip(reversed(own), "xy"):
            places[number] = f"({self._index})blockIdx.{axis}"
            dims.append(extents[number])
        axis, lines = "xyz"[len(dims)], []
        if len(rest) == 1:
            places[rest[0]] = f"({self._index})blockIdx.{axis}"
            dims.append(extents[rest[0]])
        elif rest:
            total: Expr = one
            blocks: Expr = one  # none where a loop has no iteration: two lengths below 0 would have a product above it
            for number in reversed(rest):
                below = "" if total == one else f" / ({self._x.text(total)})"
                above = "" if number == rest[0] else f" % ({self._x.text(extents[number])})"
                places[number] = f"block_{number}"
                place = f"({self._index})blockIdx.{axis}{below}{above}"
                lines.append(f"const {self._index} block_{number} = {place};")
                total = folded("mul", extents[number], total)
                blocks = folded("mul", self._or_none(extents[number]), blocks)
            dims.append(blocks)
        x, y, z = [*dims, one, one, one][:3]
        return places, lines, (x, y, z)

    def _or_none(self, extent: Expr) -> Expr:
        """An extent, 0 where it would be less."""
        least = as_number(interval(extent, self._x.ranges)[0])
        return extent if least is not None and least >= 0 else folded("maximum", extent, integer(0))

    def _block_lines(self, places: Sequence[str], lines: list[str]) -> list[str]:
        for loop, place in zip(self._grid, places, strict=True):
            note(self._known, loop)
            lines.append(f"const {self._index} {self._var(loop)} = {self._start(loop, place)};{comment(loop)}")
            depends = {node.name for e in (loop.lower, loop.upper) for node in walk_expr(e) if isinstance(node, Var)}
            if depends & {other.var for other in self._grid}:
                lines.append(f"if ({self._var(loop)} >= {self._x.compared(loop.upper)}) return;")
        return lines

    def _start(self, loop: For, place: str) -> str:
        """`lower + place * step`"""
        if place == "0":
            return self._x.text(loop.lower)
        scaled = place if loop.step == 1 else f"{place} * {loop.step}"
        return scaled if loop.lower == integer(0) else f"{self._x.value(loop.lower).within(2)} + {scaled}"


def _loaded(expr: Expr) -> Iterator[str]:
    return (node.buffer for node in walk_expr(expr) if isinstance(node, Load))


def pointer(shared: Names, name: str, *, is_written: bool, is_alone: bool) -> str:
    """The parameter of an array.

    is_alone: whether no thread touches what another one writes. Of a `__restrict__` pointer the compiler takes this
    thread for the only one that writes there, and moves loads and stores over barriers.
    """
    kind = stored_type(shared.buffers[name].dtype)
    alone = "__restrict__ " if is_alone else ""
    return f"{'' if is_written else 'const '}{kind} *{alone}{shared.names.arrays[name]}"
