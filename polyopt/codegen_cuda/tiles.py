"""The two sides of a block's tile, which points of it are a thread's, and copies of operands along them."""

from __future__ import annotations

from polyopt.classes import dataclass
from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.dsl.ir import Op
from polyopt.dtypes import bool_, i64
from polyopt.loops.ir import Buffer, Expr, For, LoopKind, Stmt, index_var, integer

SIDE = 16
"""Threads along each side of a block's tile."""


@dataclass(frozen=True, slots=True)
class Side:
    """One loop of the tile. Of the points of its warp a thread has `width` neighbors, and as many again every
    `threads * width` points.

    tile: variable of the first point; thread, place, lane: of a thread's first point, of a group of points, in a group
    warp: variable of a warp's first point, where `warps` warps share the side
    half: variable of the first point of a half, where every other thread has its points in the second half of a group
    """

    loop: For
    tile: str
    thread: str
    place: str
    lane: str
    points: int
    width: int = 1
    threads: int = SIDE
    warp: str = ""
    warps: int = 1
    half: str = ""

    @property
    def groups(self) -> int:
        """Groups of neighbors of a thread."""
        return self.points // (self.warps * self.threads * self.width)

    @property
    def first(self) -> Expr:
        """The place in the tile of a group's first point."""
        place: Expr = index_var(self.thread)
        if self.warps > 1:
            place = Op("add", (index_var(self.warp), place), i64)
        if self.half:
            place = Op("add", (place, index_var(self.half)), i64)
        if self.groups == 1:
            return place
        apart = integer(self.threads * self.width)
        return Op("add", (place, Op("mul", (index_var(self.place), apart), i64)), i64)

    @property
    def local(self) -> Expr:
        """A point's place in the tile."""
        return self.first if self.width == 1 else Op("add", (self.first, index_var(self.lane)), i64)

    @property
    def own(self) -> tuple[Expr, ...]:
        """A point's number among those of a thread."""
        group = (index_var(self.place),) if self.groups > 1 else ()
        return (*group, index_var(self.lane)) if self.width > 1 else group

    @property
    def shape(self) -> tuple[Expr, ...]:
        group = (integer(self.groups),) if self.groups > 1 else ()
        return (*group, integer(self.width)) if self.width > 1 else group

    def global_(self, local: Expr) -> Expr:
        """The point at a place in the tile."""
        return Op("add", (index_var(self.tile), local), i64)

    def inside(self, local: Expr) -> Expr | None:
        """That a point exists; None where tiles divide the loop."""
        return below(self.global_(local), self.loop, self.points)

    def existing(self, local: Expr) -> Expr:
        """The same of a point that exists; the last of the loop for those beyond it."""
        point = self.global_(local)
        if self.inside(local) is None:
            return point
        return Op("minimum", (point, folded("sub", self.loop.upper, integer(1))), i64)

    def over_threads(self, body: Stmt) -> Stmt:
        """`body` for each thread along the side in a warp."""
        threads, end, axis = self.threads, self.threads * self.width, f"{self.loop.axis} in tile"
        if self.half:
            threads, end = threads // 2, end // 2
            body = For(self.half, integer(0), integer(2 * end), body, end, "block", f"{self.loop.axis} half", 2)
        return For(self.thread, integer(0), integer(end), body, self.width, "block", axis, threads)

    def over_warps(self, body: Stmt) -> Stmt:
        """`body` for each warp along the side."""
        if self.warps == 1:
            return body
        step, axis = self.points // self.warps, f"{self.loop.axis} of warp"
        return For(self.warp, integer(0), integer(self.points), body, step, "block", axis, self.warps)

    def over(self, body: Stmt, *, lanes: LoopKind | None = "unrolled") -> Stmt:
        """`body` for each group of points of a thread, and each of its points."""
        if lanes is not None and self.width > 1:
            body = For(self.lane, integer(0), integer(self.width), body, 1, lanes, self.loop.axis)
        if self.groups > 1:
            body = For(self.place, integer(0), integer(self.groups), body, 1, "unrolled", self.loop.axis)
        return body


@dataclass(frozen=True, slots=True)
class Copy:
    """An operand's copy in shared memory. name: the operand's; axes: of the copy, the contiguous one last"""

    name: str
    buffer: Buffer
    axes: tuple[str, str]
    side: Side

    def side_of(self, rows: Side, columns: Side) -> Side:
        """The side it lies along, as it is now."""
        return rows if self.side.loop is rows.loop else columns


def extent(loop: For) -> int | None:
    """Iterations of a loop of unit steps, where they are known."""
    return as_number(folded("sub", loop.upper, loop.lower))


def below(value: Expr, loop: For, points: int) -> Expr | None:
    """That a point is in the loop; None where its points are so many times `points`."""
    length = extent(loop)
    if length is not None and length % points == 0:
        return None
    return Op("lt", (value, loop.upper), bool_)
