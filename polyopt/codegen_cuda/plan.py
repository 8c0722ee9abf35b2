"""What the mapping decided for each nest: which loops the blocks and the threads of a GPU share, and why."""

from __future__ import annotations

from typing import Literal, TypeAlias

from polyopt.classes import dataclass
from polyopt.codegen_cuda.instructions import GROUP_ROWS, Instruction

Style: TypeAlias = Literal["points", "tiles", "turned", "rows", "columns", "one block"]


@dataclass(frozen=True, slots=True)
class Contraction:
    """How a block sums up its tile.

    statement: the update
    piece:     steps of the sum whose operands are in shared memory together
    slots:     pieces that shared memory has room for: copies run as many ahead, less one; 1 where none do
    instruction: of the tensor cores, which multiplies; None: threads do
    reason:    why threads do
    alone:     why warps multiply by themselves on a GPU where four can together
    columns:   of the instruction of four warps that multiply together; 0 where warps do by themselves
    joined:    loops just outside that of the rows which are one with it
    """

    statement: str
    piece: int
    slots: int
    instruction: Instruction | None = None
    reason: str = ""
    alone: str = ""
    columns: int = 0
    joined: int = 0

    @property
    def lag(self) -> int:
        """Pieces whose products may be under way while the next one's begin."""
        return 1 if self.columns else 0

    def __str__(self) -> str:
        count = self.slots - 1 - self.lag
        ahead = f", copies run {count} pieces ahead in {self.slots} slots" if self.slots > 1 else ""
        multiplied = f", no tensor cores: {self.reason}" if self.instruction is None else f" by {self.instruction}"
        if self.columns and self.instruction is not None:
            steps, name = self.instruction.steps, self.instruction.group.removeprefix("po_")
            multiplied = f" by {name} of {GROUP_ROWS} x {self.columns} x {steps}, four warps together"
        if self.alone:
            multiplied += f", warps by themselves: {self.alone}"
        if self.joined:
            multiplied += f", {self.joined + 1} loops as one of rows"
        return f"sums in pieces of {self.piece}{multiplied}{ahead}"


@dataclass(frozen=True, slots=True)
class CudaNest:
    """Decisions for the nest that starts at the loop `head`.

    style:   "points":    every point of the loops `grid` is a thread's; what is inside a thread does in order
             "tiles":     a block takes a tile of two loops, each of its 256 threads several points, whose sums it keeps
             "turned":    a block takes a square of two loops; what is contiguous along the first comes through shared
                          memory, neighboring threads run along the second
             "rows":      every point of `grid` is a block's (or a warp's), whose threads share the loops inside
             "columns":   a block takes 32 points of the last loop, along which threads are neighbors; its warps share
                          the outermost loop of the sum inside
             "one block": the threads of a single block share the loops inside; there is nothing outside
    grid:    the loops given to blocks, outermost first; the last one's threads are neighbors ("points")
    chunks:  how many iterations of each loop of `grid` one block takes
    shared:  the loops inside whose iterations threads share, each moved outermost of its own nest
    threads: threads that share each of them
    reason:  one sentence
    contraction: how the tiles of a contraction are summed up ("tiles")
    """

    head: str
    style: Style
    grid: tuple[str, ...]
    chunks: tuple[int, ...]
    shared: tuple[str, ...] = ()
    threads: int = 1
    reason: str = ""
    contraction: Contraction | None = None

    def __str__(self) -> str:
        parts = [f"nest {self.head}: {self.style};"]
        if self.grid:
            tiles = ", ".join(f"{loop} by {chunk}" for loop, chunk in zip(self.grid, self.chunks, strict=True))
            parts.append(f"blocks take {tiles};")
        if self.shared:
            parts.append(f"{self.threads} threads share {', '.join(self.shared)};")
        if self.contraction is not None:
            parts.append(f"{self.contraction};")
        return " ".join(parts) + f" {self.reason}"


@dataclass(frozen=True, slots=True)
class Cut:
    """A nest of the fused tree that becomes several, with copies of its loops: one per nest inside.

    at_sums: one per sum as well
    """

    head: str
    at_sums: bool = False

    def __str__(self) -> str:
        if self.at_sums:
            return f"nest {self.head}: cut into one kernel per sum; in one they move more, or too few threads do"
        return f"nest {self.head}: cut into one kernel per part; together they have too few threads"


@dataclass(frozen=True, slots=True)
class CudaMapping:
    """One decision per nest, in order of the tree; loops that are in none run in order, on the host or in a thread.

    cut: nests of the fused tree that are cut at their sequences into one nest per child, whose loops inside then join
         the grid; `nests` names loops of the tree after that
    """

    nests: tuple[CudaNest, ...]
    cut: tuple[Cut, ...] = ()

    @property
    def contractions(self) -> tuple[Contraction, ...]:
        """How the tiles of contractions are summed up."""
        return tuple(nest.contraction for nest in self.nests if nest.contraction is not None)

    def of(self, head: str) -> CudaNest | None:
        return next((nest for nest in self.nests if nest.head == head), None)

    def __str__(self) -> str:
        lines = [*map(str, self.cut), *map(str, self.nests)]
        return "\n".join(lines) or "one thread: no loop may run in parallel"
