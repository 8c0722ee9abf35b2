"""What the threads of a block do together while each is by itself: copies to shared memory, at once or ahead.

A loop of kind "pipeline" runs copies ahead of what reads them, through the slots of a ring: the copies of a piece are
on their way, as asynchronous as the machine allows, while the pieces before it are summed up. A piece is waited for
once, at one barrier, which is also what lets its slot be written anew. Source: [CUDA], asynchronous copies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import prod

from polyopt.classes import dataclass
from polyopt.codegen_c.c_helpers import stored_type
from polyopt.codegen_cuda.alignment import note
from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.codegen_cuda.launch import LaunchPrinter
from polyopt.codegen_cuda.reductions import Reductions
from polyopt.codegen_cuda.rings import around, lag_of, pieces_of, read, written
from polyopt.codegen_cuda.shapes import dims, exprs, extents_of
from polyopt.codegen_cuda.threads import INDENT, Names, comment, indented
from polyopt.dsl.ir import Var
from polyopt.errors import ScheduleError
from polyopt.loops.ir import Block, Buffer, Expr, For, If, Stmt, integer, walk, walk_expr
from polyopt.target import STATIC_SHARED_BYTES

LINE_BYTES = 128
"""All banks of shared memory once."""

ATOM_LINES = 8 * LINE_BYTES
"""Bytes of an atom of operands of four warps: 8 lines."""

UNROLLED_TURNS, GROUP_TURNS = 4, 8
"""Copies of a thread that are written out beside products of warps, and of four warps, which keep no operands."""


@dataclass(frozen=True, slots=True)
class SharedArray:
    """An array in the shared memory of a block. kind: the C type of its elements; count: how many there are"""

    kind: str
    name: str
    count: int
    size: int

    def lines(self, of: int) -> int:
        """Bytes up to the next array, which starts at a line."""
        return -(-self.size // of) * of


class SharedPrinter(LaunchPrinter):
    """Prints what goes through the shared memory of a block.

    _dims: threads along each dimension of the block; _is_filled: whether anything has been copied yet;
    _has_products: whether the threads of a warp multiply together; _has_groups: four warps
    """

    def __init__(self, shared: Names, reductions: Reductions, statement: Stmt) -> None:
        super().__init__(shared, reductions, statement)
        self._dims = dims(self._body)
        self._arrays: list[SharedArray] = []
        self._most_shared = STATIC_SHARED_BYTES
        self._is_filled = False
        kinds = {loop.kind for loop in walk(self._body) if isinstance(loop, For)}
        self._has_groups = "warpgroup" in kinds
        self._has_products = self._has_groups or "warp" in kinds

    @property
    def threads(self) -> int:
        return prod(self._dims)

    # --- a thread's place -------------------------------------------------------------------------------------------

    def _coordinates(self) -> list[str]:
        """The lines that name a thread's place along each dimension of the block where they have no name of CUDA's."""
        if len(self._dims) <= 3:
            return []
        lines, below = [], self.threads
        for depth, extent in enumerate(self._dims):
            place = "threadIdx.x" if depth == 0 else f"threadIdx.x % {below}"
            below //= extent
            lines.append(f"const int thread_{depth} = {place}{f' / {below}' if below > 1 else ''};")
        return lines

    def _coordinate(self, depth: int) -> str:
        if len(self._dims) > 3:
            return f"thread_{depth}"
        return f"(int)threadIdx.{'xyz'[len(self._dims) - 1 - depth]}"

    def _group(self, depth: int) -> int:
        """How many threads share the places of the first dimensions."""
        return prod(self._dims[depth:])

    def _thread_in_group(self, depth: int) -> str:
        """A thread's number in its group."""
        if depth >= len(self._dims):
            return "0"
        if depth == 0 and len(self._dims) > 3:
            return "(int)threadIdx.x"
        if len(self._dims) - depth == 1:
            return self._coordinate(depth)
        text = self._coordinate(depth)
        for inner in range(depth + 1, len(self._dims)):
            text = text if inner == depth + 1 else f"({text})"
            text = f"{text} * {self._dims[inner]} + {self._coordinate(inner)}"
        return text

    def _share(self, buffer: Buffer) -> None:
        strides = buffer.strides or ()
        row = as_number(strides[0]) if len(strides) > 1 else None
        extents = extents_of(buffer)
        size = extents[0] * row if row is not None else prod(extents) * buffer.dtype.itemsize
        item = buffer.dtype.itemsize
        self._declare_shared(stored_type(buffer.dtype), self._shared.names.arrays[buffer.name], size // item, item)

    def _together(self, loops: Sequence[For]) -> Iterator[str]:
        """Copies to shared memory: no thread reads what another one has not written, or writes what one still reads."""
        if self._depth or self._is_filled:
            yield "__syncthreads();"
        self._is_filled = True
        for loop in loops:
            yield from self._dealt_to_all(loop)
        yield "__syncthreads();"

    def _dealt_to_all(self, loop: For) -> Iterator[str]:
        """The iterations of loops nested perfectly, counted through and given to the threads in turn."""
        nest: list[For] = []
        inner: Stmt = loop
        while isinstance(inner, For) and inner.kind == "block":
            nest.append(inner)
            inner = inner.body
        extents = [(as_number(folded("sub", one.upper, one.lower)) or 0) // one.step for one in nest]
        total, index = prod(extents), self._unused(f"{self._var(nest[0])}_all", "")
        start = self._thread_in_group(0)
        if total == self.threads:
            yield "{"
            yield f"{INDENT}const int {index} = {start};"
        elif total % self.threads == 0:
            turn = self._unused(f"{self._var(nest[0])}_turn", "")
            most = GROUP_TURNS if self._has_groups else UNROLLED_TURNS
            is_many = total // self.threads > most or not self._has_products
            is_scarce = self._depth and is_many  # a thread's sums and operands need the registers
            yield "#pragma unroll 1" if is_scarce else "#pragma unroll"
            yield f"for (int {turn} = 0; {turn} < {total // self.threads}; ++{turn}) {{"
            yield f"{INDENT}const int {index} = {start} + {turn} * {self.threads};"
        else:
            yield f"for (int {index} = {start}; {index} < {total}; {index} += {self.threads}) {{"
        below = total
        for one, extent in zip(nest, extents, strict=True):
            note(self._known, one)
            below //= max(extent, 1)
            text = index if below == 1 else f"{index} / {below}"
            text = text if one is nest[0] else f"{text} % {extent}"
            text = text if one.step == 1 else f"{text} * {one.step}"
            text = text if one.lower == integer(0) else f"{self._x.value(one.lower).within(2)} + {text}"
            yield f"{INDENT}const int {self._var(one)} = {text};"
        yield from indented(self._thread(inner))
        yield "}"

    # --- shared memory ----------------------------------------------------------------------------------------------

    def _declare_shared(self, kind: str, name: str, count: int, item: int) -> None:
        self._arrays.append(SharedArray(kind, name, count, count * item))
        if self._shared_bytes > self._most_shared:
            raise ScheduleError(
                "a kernel needs more shared memory than a block has",
                why=f"{self._shared_bytes} bytes with '{name}', of {self._most_shared}",
                facts={"bytes": self._shared_bytes, "limit": self._most_shared},
            )

    @property
    def _shared_bytes(self) -> int:
        """What the arrays take, each from a whole line of banks or an atom on."""
        return sum(array.lines(self._line) for array in self._arrays)

    @property
    def _line(self) -> int:
        """What the address of every array is a multiple of."""
        return ATOM_LINES if self._has_groups else LINE_BYTES

    @property
    def _dynamic_bytes(self) -> int:
        """Shared memory to ask for at the launch: a block has so much without asking."""
        return self._shared_bytes if self._shared_bytes > STATIC_SHARED_BYTES else 0

    def _shared_lines(self) -> Iterator[str]:
        """The declarations of the arrays in shared memory."""
        if not self._dynamic_bytes:
            yield from (f"PO_SHARED {array.kind} {array.name}[{array.count}];" for array in self._arrays)
            return
        whole, start = self._unused("shared", ""), 0
        yield f"PO_DYN_SHARED({whole});  // {self._dynamic_bytes} bytes"
        for array in self._arrays:
            place = f"({whole} + {start})" if start else whole
            yield f"{array.kind} *const {array.name} = ({array.kind} *){place};"
            start += array.lines(self._line)

    # --- copies ahead -----------------------------------------------------------------------------------------------

    def _pipeline(self, loop: For) -> Iterator[str]:
        """Pieces through a ring: a loop that only copies fills it, one that also reads keeps it full."""
        if not pieces_of(loop)[1]:
            if self._depth or self._is_filled:
                yield "__syncthreads();"
            yield "#pragma unroll"
        self._is_filled = True
        yield from self._for(loop)
        self._depth += 1
        yield from indented(self._piece(loop))
        self._depth -= 1
        yield "}"
        if lag_of(loop):
            yield "po_wgmma_wait<0>();"

    def _piece(self, loop: For) -> Iterator[str]:
        """One piece: what it needs has come, what comes later is on its way, then the work. Work of four warps, which
        goes on by itself, begins before the copies, and that of the piece before is waited for behind them."""
        ahead, reads = pieces_of(loop)
        targets, lag = written(ahead), lag_of(loop)
        if reads:
            yield f"po_cp_wait<{loop.chunk - 2 - lag}>();"
            if lag:
                yield "po_async_fence();"
            yield "__syncthreads();"
        if lag:
            yield from self._read(reads, loop, targets)
            yield from self._copied_ahead(ahead, loop, targets)
            yield f"po_wgmma_wait<{lag}>();"
        else:
            yield from self._copied_ahead(ahead, loop, targets)
            yield from self._read(reads, loop, targets)
        self._x.named.clear()

    def _copied_ahead(self, ahead: Sequence[Stmt], loop: For, targets: Mapping[str, Expr]) -> Iterator[str]:
        """One group of copies."""
        self._flying = set(targets)
        for statement in ahead:
            yield from self._ahead(statement, loop, targets)
        self._flying = set()
        yield "po_cp_commit();"

    def _read(self, reads: Sequence[Stmt], loop: For, targets: Mapping[str, Expr]) -> Iterator[str]:
        """What is done with a piece."""
        if reads:
            yield from self._slot(loop, "slot", read(reads, targets).values())
        for statement in reads:
            names, inner = around(statement)
            yield from self._names(names, inner)
            yield from self._thread(inner)

    def _names(self, loops: Sequence[For], body: Stmt) -> Iterator[str]:
        """The values of loops of one iteration, as far as the body needs them."""
        found = [e for statement in walk(body) for expr in exprs(statement) for e in walk_expr(expr)]
        used = {e.name for e in found if isinstance(e, Var)}
        for loop in loops:
            note(self._known, loop)
            if loop.var in used:
                yield f"const {self._index} {self._var(loop)} = {self._x.text(loop.lower)};{comment(loop)}"

    def _ahead(self, statement: Stmt, loop: For, targets: Mapping[str, Expr]) -> Iterator[str]:
        """Copies that are on their way; nobody waits for them here."""
        match statement:
            case Block(body):
                for inner in body:
                    yield from self._ahead(inner, loop, targets)
            case If(condition, then):
                yield f"if ({self._x.text(condition)}) {{"
                yield from indented([*self._slot(loop, "next", targets.values()), *self._ahead(then, loop, targets)])
                yield "}"
            case For(kind="block"):
                yield from self._dealt_to_all(statement)
            case For():
                names, inner = around(statement)
                yield from self._names(names, inner)
                yield from self._ahead(inner, loop, targets)
            case _:
                raise AssertionError("copies are loops of all threads, one after the other")

    def _slot(self, loop: For, name: str, slots: Collection[Expr]) -> Iterator[str]:
        """A name for the one slot that buffers share."""
        for slot in dict.fromkeys(slots):
            name = self._unused(f"{self._var(loop)}_{name}", "")
            yield f"const {self._index} {name} = {self._x.text(slot)};"
            self._x.named[slot] = name
