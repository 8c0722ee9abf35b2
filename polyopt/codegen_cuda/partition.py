"""Cuts a mapped loop program into kernels: what the host runs in order, and under it nests of grid and block loops.

A grid loop that gives several iterations to a block becomes a grid loop over tiles and a block loop over the points
of a tile. Where isl left several pieces inside a grid loop, each piece becomes a nest: the loop carries no
dependence, so all of a piece may run before the next one. The result means what the program meant.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import field, replace
from math import prod
from typing import assert_never

from polyopt.classes import dataclass
from polyopt.codegen_cuda import columns, edges, tiled, turning
from polyopt.codegen_cuda.alignment import VECTOR_BYTES
from polyopt.codegen_cuda.intervals import Interval, as_number, folded, interval
from polyopt.codegen_cuda.plan import Contraction
from polyopt.codegen_cuda.vectors import Vectors
from polyopt.dsl.ir import Op, Var
from polyopt.dtypes import bool_, i64
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    If,
    Load,
    LoopProgram,
    Stmt,
    Store,
    buffers_used,
    index_var,
    integer,
    stores_of,
    substatements,
    substitute_in,
    walk,
    walk_expr,
)
from polyopt.loops.scan import both

_LOG = logging.getLogger(__name__)


def partition(
    program: LoopProgram, plans: Sequence[Contraction] = (), *, reorderable: bool = True, blocks: int = 1
) -> LoopProgram:
    """The program as kernels. Its body is, on the host, blocks, serial loops and branches; a grid loop starts a kernel,
    and so does what has no grid loop in it.

    plans: how the tiles of contractions are summed up; reorderable: whether the order of a sum may change;
    blocks: how many keep the GPU busy
    """
    used = {loop.var for loop in walk(program.body) if isinstance(loop, For)} | set(program.sizes)
    used |= {buffer.name for buffer in (*program.arguments, *program.workspace)}
    used |= {inner.buffer.name for inner in walk(program.body) if isinstance(inner, Alloc)}
    allocated = [inner.buffer for inner in walk(program.body) if isinstance(inner, Alloc)]
    buffers = {b.name: b for b in (*program.arguments, *program.workspace, *allocated)}
    cutter = _Cutter(used, reorderable, blocks, buffers, {plan.statement: plan for plan in plans})
    body = cutter.host(program.body)
    buffers.update({inner.buffer.name: inner.buffer for inner in walk(body) if isinstance(inner, Alloc)})
    body = cutter.vectors.everywhere(body)
    notes = dict.fromkeys(cutter.notes)
    for note in notes:
        _LOG.warning("%s: %s", program.name, note)
    alone = (
        f"{name} runs in one thread: none of its loops may run in parallel" for name in dict.fromkeys(cutter.alone)
    )
    workspace = (*program.workspace, *cutter.hoisted)
    return replace(program, body=body, workspace=workspace, notes=(*program.notes, *notes, *alone))


def has_grid(statement: Stmt) -> bool:
    """Whether a statement holds a loop for blocks."""
    return any(isinstance(inner, For) and inner.kind == "grid" for inner in walk(statement))


BLOCK_POINTS = 256
"""Points of a block that are a thread's each; with more, threads have several."""


@dataclass(slots=True)
class _Cutter:
    used: set[str]
    reorderable: bool
    blocks: int
    buffers: dict[str, Buffer]
    plans: dict[str, Contraction]
    hoisted: list[Buffer] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    vectors: Vectors = field(init=False)

    def __post_init__(self) -> None:
        self.vectors = Vectors(self.buffers, self.fresh)

    def host(self, statement: Stmt) -> Stmt:
        if not has_grid(statement):
            self.alone += _repeated(statement)
            return statement
        match statement:
            case Block(body):
                return Block(tuple(self.host(inner) for inner in body))
            case For(kind="grid"):
                parts = [self.tiled(loops, body) for loops, body in _with_threads(self.nests(statement, ()))]
                return parts[0] if len(parts) == 1 else Block(tuple(parts))
            case For():
                return replace(statement, kind="serial", body=self.host(statement.body))
            case If(_, then, otherwise):
                other = None if otherwise is None else self.host(otherwise)
                return replace(statement, then=self.host(then), otherwise=other)
            case Alloc(buffer, body):
                self.hoisted.append(replace(buffer, space="workspace"))
                self.buffers[buffer.name] = self.hoisted[-1]
                return self.host(body)
            case Store():
                return statement
            case _:
                assert_never(statement)

    def nests(self, statement: Stmt, around: tuple[For, ...]) -> list[tuple[tuple[For, ...], Stmt]]:
        """Grid loops nested perfectly and what is inside them, piece by piece. What is under a condition on the loops
        around is a piece, too, with the condition inside."""
        if isinstance(statement, For) and statement.kind == "grid":
            return self.nests(statement.body, (*around, statement))
        if isinstance(statement, If) and has_grid(statement) and not any(_loads(statement.condition)):
            condition, fails = statement.condition, Op("not", (statement.condition,), bool_)
            found: list[tuple[tuple[For, ...], Stmt]]
            found = [(loops, If(condition, body)) for loops, body in self.nests(statement.then, around)]
            if statement.otherwise is not None:
                found += [(loops, If(fails, body)) for loops, body in self.nests(statement.otherwise, around)]
            return found
        if isinstance(statement, Block) and any(has_grid(inner) for inner in statement.body):
            return [nest for inner in statement.body for nest in self.nests(inner, around)]
        return [(around, _in_order(statement))]

    def tiled(self, loops: tuple[For, ...], body: Stmt) -> Stmt:
        """Loops over tiles outside, over the points of a tile inside."""
        if prod(loop.chunk for loop in loops) > BLOCK_POINTS:
            staged = self.staged(loops, body)
            if staged is None:
                self.notes += self.untiled(body)
                staged = turning.turned(loops, body, self.vectors)
            if staged is not None:
                return staged
            loops = _one_point_each(loops)
        summed = columns.columns(loops, body, self.vectors) if self.reorderable else None
        if summed is not None:
            return summed
        width, threads, body = self.spread(loops, body)
        ranges: dict[str, Interval] = {}
        points: list[For] = []
        outer: list[For] = []
        for loop in loops:
            lower, upper = interval(loop.lower, ranges)[0], interval(loop.upper, ranges)[1]
            if loop.step > 1 and loop.lower != lower:
                loop = replace(loop, step=1)  # points of a tile start at different places between two steps
            if loop.chunk == 1:
                outer.append(replace(loop, lower=lower, upper=upper))
                points.append(loop)
                ranges[loop.var] = index_var(loop.var), index_var(loop.var)
                continue
            if loop is loops[-1] and width > 1:
                loop = replace(loop, step=width, chunk=threads)
            size = loop.chunk * loop.step
            name = self.fresh(f"{loop.var}_block")
            end = folded("add", index_var(name), integer(size))
            if not _divides(size, lower, upper):
                end = Op("minimum", (end, upper), i64)
            outer.append(replace(loop, var=name, lower=lower, upper=upper, step=size, axis=f"{loop.axis} block"))
            points.append(replace(loop, kind="block", lower=index_var(name), upper=end))
            ranges[loop.var] = index_var(name), folded("sub", end, integer(1))
        return _joined(loops, outer, points, body)

    def untiled(self, body: Stmt) -> list[str]:
        """What the report says of planned tiles that nothing comes of."""
        names = {store.statement for store in stores_of(body)} & self.plans.keys()
        return [f"{name} is not summed by tiles as planned: its loops do not allow them" for name in sorted(names)]

    def staged(self, loops: tuple[For, ...], body: Stmt) -> Stmt | None:
        """The nest as tiles of a contraction. Where sizes decide whether rows start at multiples of a vector, there is
        one nest for those that do and one for all others."""

        def nest() -> Stmt | None:
            return tiled.staged(loops, body, self.vectors, self.plans, reorderable=self.reorderable)

        condition = self.is_aligned(body)
        if condition is None:
            return nest()
        with self.vectors.given(condition):
            aligned = nest()
        other = None if aligned is None else nest()
        return aligned if aligned is None or other is None else If(condition, aligned, other)

    def is_aligned(self, body: Stmt) -> Expr | None:
        """That rows of all arrays that a nest touches start at multiples of a vector; None where no size matters."""
        touched = [self.buffers[name] for name in buffers_used(body) if name in self.buffers]
        rows = [buffer for buffer in touched if buffer.space != "local" and len(buffer.shape) > 1]
        sizes = sorted({row.shape[-1].name for row in rows if isinstance(row.shape[-1], Var)})
        if not sizes:
            return None
        lanes = integer(VECTOR_BYTES // min(row.dtype.itemsize for row in rows))
        condition: Expr | None = None
        for size in sizes:
            rest: Expr = Op("mod", (index_var(size), lanes), i64)
            condition = both(condition, Op("eq", (rest, integer(0)), bool_))
        return condition

    def spread(self, loops: tuple[For, ...], body: Stmt) -> tuple[int, int, Stmt]:
        """How many neighbors along the last loop a thread takes, the threads along it, and what a thread does."""
        last = loops[-1]
        if last.chunk == 1 or any(isinstance(inner, For) and inner.kind == "block" for inner in walk(body)):
            return 1, last.chunk, body
        vectors = self.vectors
        vectors.known.clear()
        most = last.chunk // 2  # a block loop has two threads at least
        width, spread = vectors.widest(last, body, most)
        wider, inside = self.spread_inside(loops, body, most)
        if wider > width:
            width, spread = wider, inside
        if spread is None:
            return 1, last.chunk, body
        counts = [as_number(folded("sub", loop.upper, loop.lower)) for loop in loops]
        groups = prod(-(-(count or 0) // (loop.chunk * loop.step)) for count, loop in zip(counts, loops))
        return width, last.chunk if groups >= width * self.blocks else last.chunk // width, spread

    def spread_inside(self, loops: tuple[For, ...], body: Stmt, most: int) -> tuple[int, Stmt | None]:
        """Vectors where lanes differ at edges alone: inside, and points one by one where a vector meets an edge."""
        last, found = loops[-1], edges.inside(loops, body)
        if found is None:
            return 1, None
        width, spread = self.vectors.widest(last, found.body, most)
        condition = found.condition(last, width)
        if spread is None or condition is None:
            return 1, None
        lane = self.vectors.lanes[last.var]
        point: Expr = Op("add", (index_var(last.var), index_var(lane)), i64)
        single = For(lane, integer(0), integer(width), substitute_in(body, {last.var: point}), axis=lane)
        return width, If(condition, spread, single)

    def fresh(self, name: str) -> str:
        candidate, number = name, 1
        while candidate in self.used:
            number += 1
            candidate = f"{name}_{number}"
        self.used.add(candidate)
        return candidate


def _loads(expr: Expr) -> Iterator[Load]:
    return (node for node in walk_expr(expr) if isinstance(node, Load))


def _repeated(statement: Stmt, *, is_inside: bool = False) -> Iterator[str]:
    """The statements that one thread runs in a loop of more than one iteration. is_inside: whether this one is in such
    a loop, already"""
    if isinstance(statement, Store) and is_inside:
        yield statement.statement
    if isinstance(statement, For):
        if statement.kind == "block":
            return
        is_inside |= as_number(folded("sub", statement.upper, statement.lower)) not in (0, 1)
    for inner in substatements(statement):
        yield from _repeated(inner, is_inside=is_inside)


def _with_threads(nests: list[tuple[tuple[For, ...], Stmt]]) -> list[tuple[tuple[For, ...], Stmt]]:
    """The pieces of a nest; one that lacks the loops which threads share in others has threads along its last one."""
    points = max(prod(loop.chunk for loop in loops) for loops, _ in nests)
    found = []
    for loops, body in nests:
        if len(nests) > 1 and loops and all(loop.chunk == 1 for loop in loops) and not _has_threads(body):
            loops = (*loops[:-1], replace(loops[-1], chunk=min(points, BLOCK_POINTS)))
        found.append((loops, body))
    return found


def _has_threads(body: Stmt) -> bool:
    return any(isinstance(inner, For) and inner.kind not in ("serial", "unrolled") for inner in walk(body))


def _one_point_each(loops: tuple[For, ...]) -> tuple[For, ...]:
    """The loops with a thread for each point of a block."""
    wide = [loop for loop in loops if loop.chunk > 1]
    return tuple(replace(loop, chunk=min(loop.chunk, 32 if loop is wide[-1] else 8)) for loop in loops)


def _joined(loops: tuple[For, ...], outer: list[For], points: list[For], body: Stmt) -> Stmt:
    """`body` at the points that the loops scan: tiles are as large as any of the points around makes them."""
    for loop, tile, point in reversed(list(zip(loops, outer, points, strict=True))):
        var = index_var(loop.var)
        if loop.upper != tile.upper:
            body = If(Op("lt", (var, loop.upper), bool_), body)
        if loop.lower != tile.lower:
            body = If(Op("ge", (var, loop.lower), bool_), body)
            if loop.step > 1:
                past: Expr = Op("sub", (var, loop.lower), i64)
                phase: Expr = Op("mod", (past, integer(loop.step)), i64)
                body = If(Op("eq", (phase, integer(0)), bool_), body)
        if point.kind == "block":
            body = replace(point, body=body)
    for tile in reversed(outer):
        body = replace(tile, body=body, chunk=1)
    return body


def _divides(size: int, lower: Expr, upper: Expr) -> bool:
    extent = as_number(folded("sub", upper, lower))
    return extent is not None and extent % size == 0


def _in_order(statement: Stmt) -> Stmt:
    """The statement with the grid loops inside it run by each thread in order."""
    match statement:
        case For():
            kind = "serial" if statement.kind == "grid" else statement.kind
            return replace(statement, kind=kind, body=_in_order(statement.body))
        case Block(body):
            return Block(tuple(_in_order(inner) for inner in body))
        case Alloc(body=body):
            return replace(statement, body=_in_order(body))
        case If(_, then, otherwise):
            other = None if otherwise is None else _in_order(otherwise)
            return replace(statement, then=_in_order(then), otherwise=other)
        case Store():
            return statement
        case _:
            assert_never(statement)
