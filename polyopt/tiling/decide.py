"""Which loops are tiled, which axis becomes lanes, and which tile lives in registers.

Each maximal chain of coincident loops is one nest. If its heaviest statements are best read along a loop of the
chain, that loop's points move innermost and become lanes, with a register tile where a reduction inside can
reuse its operands; otherwise the loops inside the chain are planned on their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, AxisRef, FloorDiv, axes_of
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.tree import Leaf, Loop, Tree, children_of, loops, statements
from polyopt.poly.tree import Sequence as TreeSequence
from polyopt.target import Target
from polyopt.tiling.beside import Beside
from polyopt.tiling.contraction import (
    LEAST_BLOCK,
    PANELS_PASS,
    RegisterTile,
    choose,
    lanes_of,
    rows_along,
    rows_passing,
    streams,
)
from polyopt.tiling.copies import Grouped
from polyopt.tiling.cost import axis_of, covered, is_transposed, lane_score, moves
from polyopt.tiling.extents import Extents
from polyopt.tiling.plan import NestPlan, TilingPlan
from polyopt.tiling.steps import Steps

STRIP = 4096
"""Points of a vector loop that is cut so that its pieces can run in parallel."""

PASS = 8
"""Rows of an operand that are read side by side while a block of sums passes by: as many streams as a core follows."""

VECTORS = 8
"""Vectors of sums that pass by together: enough for the processor to wait for none, and to read whole cache lines."""

LINES = 8
"""Cache lines of a row of a strip (Zen 4, one thread, blur of 2048 x 2048: 2.4 ms with four, 1.8 with eight, 2.1 with
16)."""

SLANTED = 64
"""Lanes of a strip that reads an array along antidiagonals: as many cache lines as are near, one in a page each."""

MOST_BLOCK = 4096
"""Columns of a block of sums: short enough to stay near."""

LEAST_WIDE = 192
"""Columns of a block of sums in the second cache (measured on AVX-512: 96 are an eighth slower, 384 hardly faster)."""

SHARES = 4
"""Pieces of work that leave blocks as wide as they can be: so many threads take stretches or batches of their own."""


def decide(
    scop: Scop,
    tree: Tree,
    target: Target,
    tiles: Mapping[str, RegisterTile] | None = None,
    groups: Mapping[str, Grouped] | None = None,
    layouts: Mapping[str, tuple[int, ...] | None] | None = None,
) -> TilingPlan:
    """A plan for every nest of the tree; the tree's loops have unique names.

    tiles:  the register tiles that operands are packed for, by contraction
    groups: of the statements that one instruction does, or copies for, a group of neighbours at a time
    layouts: byte strides of arguments that are not C-contiguous
    """
    roles = Roles.of(scop)
    steps = Steps(roles.arrays, layouts or {})
    planner = _Planner(scop, roles, steps, Extents(scop), target, tiles or {}, _blocks(tree), groups or {})
    return TilingPlan(tuple(planner.plans(tree)))


def _blocks(tree: Tree) -> dict[tuple[str, str], int]:
    """The points in a row that one iteration of a loop runs, by statement and axis: those of `axis // points`."""
    found: dict[tuple[str, str], int] = {}
    for loop in loops(tree):
        for name, row in loop.rows:
            match row.terms:
                case ((FloorDiv(numerator, points), 1),) if (axis := axis_of(numerator)) is not None:
                    found[name, axis] = min(points, found.get((name, axis), points))
    return found


@dataclass(slots=True)
class _Planner:
    """blocks: the points of an axis that a loop outside the nests keeps together, by statement and axis."""

    scop: Scop
    roles: Roles
    steps: Steps
    extents: Extents
    target: Target
    tiles: Mapping[str, RegisterTile]
    blocks: Mapping[tuple[str, str], int]
    groups: Mapping[str, Grouped]

    def plans(self, tree: Tree) -> Iterator[NestPlan]:
        match tree:
            case Leaf():
                return
            case TreeSequence(children):
                for child in children:
                    yield from self.plans(child)
            case Loop(coincident=True):
                yield from self.nest(tree)
            case Loop():
                if tree.reduction and not any(loops(tree.body)):
                    yield self.reduction(tree)
                else:
                    yield from self.plans(tree.body)

    # -- innermost reductions ----------------------------------------------------------------------------------

    def reduction(self, loop: Loop) -> NestPlan:
        score = self.score(loop, loop.statements)
        if score is None:
            return self.scalar((loop,), "updates may meet in one element")
        if score < 0:
            return self.scalar((loop,), "lanes would gather")
        updates = (self.roles.statements[name] for name in loop.statements)
        places = [(axis_of(loop.row(u.name)), s) for u in updates if u.is_update for s in u.subscripts]
        apart = any(isinstance(s, Affine) and axis in axes_of(s) for axis, s in places)
        reason = "lanes add to elements of their own" if apart else "lanes hold partial results"
        return NestPlan((loop.name,), (loop.name,), (), None, loop.name, reason)

    def scalar(self, chain: Sequence[Loop], reason: str) -> NestPlan:
        names = tuple(loop.name for loop in chain)
        return NestPlan(names, names, (), None, None, reason)

    # -- chains of coincident loops ----------------------------------------------------------------------------

    def nest(self, head: Loop) -> Iterator[NestPlan]:
        chain, body = _chain(head)
        if isinstance(body, Leaf) and body.statement in self.groups:
            yield self.groups_beside(chain, body.statement)
            return
        heavy = self.heavy(statements(body))
        inside = [loop for loop in loops(body) if not any(loops(loop.body)) and set(loop.statements) & set(heavy)]
        best = self.lanes_along(chain, heavy)
        inner_worth = max((self.lane_worth(loop, heavy) for loop in inside), default=float("-inf"))
        if inside and inner_worth > self.lane_worth(best, heavy):
            yield self.rows_beside(chain, body) or self.scalar(chain, "the loops inside suit lanes better")
            yield from self.plans(body)
            return
        if inside and not self.is_vectorizable(best, heavy):
            yield self.scalar(chain, "no loop scans an axis alone")
            yield from self.plans(body)
        elif inside and all(loop.coincident for loop in loops(body)):
            yield self.in_strips(chain, best, heavy)
        elif inside:
            yield self.over_reduction(chain, body, best, heavy)
        else:
            yield self.pointwise(chain, best, heavy)

    def rows_beside(self, chain: Sequence[Loop], body: Tree) -> NestPlan | None:
        """A nest whose sums or recurrences run along several rows at once, where that pays."""
        finder = Beside(self.roles, self.steps, self.extents, self.target)
        names = tuple(loop.name for loop in chain)
        together = finder.in_step(chain[-1], body)
        if together > 1:
            reason = f"{together} rows go on in turn, while each waits for its last step"
            return NestPlan(names, names, ((names[-1], together),), names[-1], None, reason)
        found = finder.tile(chain, body)
        if found is not None:
            down, across, tile = found[0].name, found[1].name, found[2]
            order = (*(name for name in names if name not in (down, across)), across, down)
            reason = f"{tile.height} x {tile.width} sums run together, each vector loaded once for those that it is in"
            return NestPlan(names, order, ((across, tile.width), (down, tile.height)), down, None, reason)
        rows = finder.rows(chain[-1], body)
        if rows < 2:
            return None
        count = self.extent(chain[-1], chain[-1].statements)
        apart = -(-count // rows)
        reason = f"{-(-count // apart)} rows, {apart} apart, are read side by side, each a stream of its own"
        return NestPlan(names, names, ((names[-1], apart),), names[-1], None, reason, is_apart=True)

    def lanes_along(self, chain: Sequence[Loop], heavy: Sequence[str]) -> Loop:
        """The loop of a chain that suits lanes best."""

        def worth(loop: Loop) -> tuple[float, int]:
            return self.lane_worth(loop, heavy), chain.index(loop)

        def ranked() -> list[Loop]:
            legal = [loop for loop in chain if self.lane_worth(loop, heavy) > float("-inf")]
            return sorted(legal, key=worth, reverse=True)

        names = ", ".join(loop.name for loop in chain)
        return picks.choose(f"lanes of {names}", max(chain, key=worth), ranked, lambda loop: loop.name)

    def heavy(self, names: Sequence[str]) -> tuple[str, ...]:
        """The statements with the most dimensions of more than one point."""
        depths = {name: self.depth(name) for name in names}
        deepest = max(depths.values())
        return tuple(name for name in names if depths[name] == deepest)

    def depth(self, name: str) -> int:
        return sum(self.extents.axis(name, axis) != 1 for axis in self.roles.by_statement[name].axes)

    def lane_worth(self, loop: Loop, heavy: Sequence[str]) -> float:
        """Worth of the lanes along a loop, less what lanes past its last point waste."""
        names = [name for name in heavy if name in loop.statements]
        score = self.score(loop, names)
        if score is None:
            return float("-inf")
        return score if score < 0 else score * covered(self.extent(loop, names), self.lanes(names))

    def score(self, loop: Loop, names: Sequence[str]) -> float | None:
        """Mean worth of lanes along the loop; None where lanes would be wrong or no row is an axis alone."""
        scores = []
        for name in names:
            statement = self.roles.statements[name]
            axis = axis_of(loop.row(name))
            if axis is None or not _lanes_are_legal(loop, statement):
                return None
            known = self.groups.get(name)
            within = known.place if known is not None else None
            inside = self.roles.by_statement[name].reduced if loop.coincident else ()
            scores.append(lane_score(self.steps, statement, axis, within, inside=inside))
        return sum(scores) / len(scores) if scores else None

    def lanes(self, names: Sequence[str]) -> int:
        """Lanes of the widest element that the statements touch."""
        return min(lanes_of(self.roles.statements[name], self.roles, self.target) for name in names)

    def extent(self, loop: Loop, names: Sequence[str]) -> int:
        return max(self.extents.row(name, loop.row(name)) for name in names if name in loop.statements)

    def over_reduction(self, chain: Sequence[Loop], body: Tree, vector: Loop, heavy: Sequence[str]) -> NestPlan:
        """Lanes along a free axis around a reduction: a register tile, two-dimensional where operands are reused.

        Columns pass by a few rows while all that the columns read fits the second cache, a block of packed panels
        above all; otherwise rows pass by one panel of columns. Source: [GotoBLAS08], section 4.
        """
        names = tuple(loop.name for loop in chain)
        update = self.contracting(heavy)
        axes = {axis: loop for loop in chain if (axis := axis_of(loop.row(update.name))) is not None}
        tile = self.tiles.get(update.name)
        if tile is None or tile.lanes not in axes or tile.rows not in axes:
            tile = self.register_tile(update, axes, vector)
        vector, rows = axes[tile.lanes], axes[tile.rows] if tile.rows and tile.height > 1 else None
        passes = () if update.name in self.tiles else self.passes(body, tile, rows)
        if passes:
            return self.in_blocks(chain, body, (rows, vector), tile, passes, heavy)
        first = self.rows_first(update, tile)
        along = [rows.name] if rows else []
        moved = [*along, vector.name] if first else [vector.name, *along]
        order = (*(name for name in names if name not in moved), *moved)
        sizes = (*(((rows.name, tile.height),) if rows else ()), (vector.name, tile.columns))
        shape = f"{tile.height} x {tile.columns}" if rows else f"{tile.columns}"
        reason = f"{shape} accumulators stay in registers over the reduction, {tile.loads:.2f} loads per multiply-add"
        if rows:
            reason += f"; {f'columns of {tile.lanes}' if first else f'rows of {tile.rows}'} pass by first"
        if tile.is_whole:
            reason += "; rows from behind the second cache are read whole"
        group = self.group(body, update.name)
        return NestPlan(names, order, sizes, rows.name if rows else None, vector.name, reason, group=group)

    def in_strips(self, chain: Sequence[Loop], vector: Loop, heavy: Sequence[str]) -> NestPlan:
        """Lanes along a loop around others that compute one array after the other: a strip of each at a time."""
        names = tuple(loop.name for loop in chain)
        statement = self.contracting(heavy)
        axes = {axis: loop for loop in chain if (axis := axis_of(loop.row(statement.name))) is not None}
        points = self.register_tile(statement, axes, vector).columns
        others = prod(self.extent(loop, heavy) for loop in chain if loop is not vector)
        if others >= SHARES:  # narrow ones are for threads to share
            lines = LINES * self.target.line_bytes // self.roles.arrays[statement.array].dtype.itemsize
            points = max(points, min(lines, self.extent(vector, heavy)))
            points = picks.choose(f"strip of {vector.name}", points, lambda: (points, points // 2, 2 * points))
        order = (*(name for name in names if name != vector.name), vector.name)
        reason = f"the loops inside compute strips of {points}, which stay near"
        return NestPlan(names, order, ((vector.name, points),), None, vector.name, reason)

    def group(self, body: Tree, update: str) -> tuple[str, int] | None:
        """The reduction loop whose points one instruction takes at once, and how many."""
        known = self.groups.get(update)
        for loop in loops(body):
            if known is not None and loop.statements == (update,) and axis_of(loop.row(update)) == known.axis:
                return loop.name, known.points
        return None

    def groups_beside(self, chain: Sequence[Loop], copy: str) -> NestPlan:
        """A copy of groups that lie side by side: a vector of them at once, if their loops are the copy's alone."""
        known = self.groups[copy]
        axes = {axis_of(loop.row(copy)): loop.name for loop in chain}
        lanes, along = axes.get(known.lanes), axes.get(known.axis)
        if lanes is None or along is None:
            return self.scalar(chain, "what is copied is computed in the same loops")
        names = tuple(loop.name for loop in chain)
        order = tuple(name for name in names if name != lanes)
        reason = "groups lie side by side, and are turned in registers"
        return NestPlan(names, (*order, lanes), (), None, lanes, reason, group=(along, known.points))

    def in_blocks(
        self,
        chain: Sequence[Loop],
        body: Tree,
        tiled: tuple[Loop | None, Loop],
        tile: RegisterTile,
        passes: tuple[tuple[str, int], ...],
        heavy: Sequence[str],
    ) -> NestPlan:
        """Sums that read an operand larger than the cache once: by a few of its rows at a time, each in long runs.

        Kept in registers for all rows, the sums would read a few vectors of each row: a page, or a stream that the
        processor does not foresee, for each. A block of them stays near instead.
        tiled: the loops of the register tile's rows, if it has some, and of its lanes
        """
        rows, vector = tiled
        names = tuple(loop.name for loop in chain)
        order = (*(name for name in names if name not in [loop.name for loop in tiled if loop]), vector.name)
        together = max(len(loop.statements) for loop in loops(body) if loop.name in dict(passes))
        columns = tile.columns if rows else min(tile.columns, max(1, VECTORS // together) * self.lanes(heavy))
        whole = self.extent(vector, heavy)
        shares = prod(self.extent(loop, heavy) for loop in chain if loop not in tiled)
        iterations = max(points for _, points in passes)
        wide = whole if rows and shares >= SHARES else -(-whole // 2)  # two blocks saturate most memories
        fitting = min(max(wide, LEAST_BLOCK), MOST_BLOCK)
        if iterations == PANELS_PASS:
            wide = LEAST_BLOCK if shares >= SHARES else -(-whole // SHARES)
            fitting = min(max(wide, LEAST_WIDE), LEAST_BLOCK)
        points = picks.choose(f"block of {vector.name}", fitting, lambda: (fitting, whole, LEAST_BLOCK))
        block = -(-points // columns) * columns
        shape = f"{tile.height} x {columns}" if rows else f"{columns}"
        near = f"{block} columns of them near" if rows else f"{block} in the first cache"
        reason = f"{shape} sums stay in registers for {iterations} rows, {near}, rows are read in runs"
        tiles = (*(((rows.name, tile.height),) if rows else ()), (vector.name, columns))
        held = rows.name if rows else None
        first = iterations == PANELS_PASS
        return NestPlan(names, order, tiles, held, vector.name, reason, block=block, passes=passes, panels_first=first)

    def passes(self, body: Tree, tile: RegisterTile, rows: Loop | None) -> tuple[tuple[str, int], ...]:
        """The innermost reduction loops of a nest, if all of them read more than a cache holds, row by row, once.

        Nothing where one does not, or where the nest holds anything else than sums and statements beside them.
        rows: the loop of the register tile's rows
        """
        found = []
        for child in children_of(body):
            if isinstance(child, Leaf):
                continue
            inner: Tree = child
            while isinstance(inner, Loop) and isinstance(inner.body, Loop):
                inner = inner.body
            nested = [*loops(child)]
            if not isinstance(inner, Loop) or any(loop.coincident for loop in nested):
                return ()
            iterations = min(self.passes_by(name, inner, tile) for name in inner.statements)
            if not iterations:
                return ()
            found.append((inner.name, iterations))
        return tuple(found)

    def passes_by(self, name: str, inner: Loop, tile: RegisterTile) -> int:
        """How many rows of its operand a sum passes by at a time; 0 for all of them."""
        if tile.rows is None or tile.height == 1:
            return PASS if self.streams_past_cache(name, inner, tile) else 0
        statement = self.roles.statements[name]
        is_known = {tile.rows, tile.lanes} <= {*statement.axes} and (name, tile.rows) not in self.blocks
        held = (tile.rows, tile.lanes)
        return rows_passing(statement, self.roles, self.extents, self.target, held) if is_known else 0

    def streams_past_cache(self, name: str, rows: Loop, tile: RegisterTile) -> bool:
        """Whether a sum reads elements along the lanes once, in rows longer than a tile, more than the first cache."""
        statement = self.roles.statements[name]
        if tile.lanes not in statement.axes or not streams(statement, self.extents, tile.lanes, but_steady=True):
            return False
        along, down = self.extents.axis(name, tile.lanes), self.extents.row(name, rows.row(name))
        read_bytes = along * down * self.roles.arrays[statement.array].dtype.itemsize
        return down >= 4 * PASS and along > tile.columns and read_bytes >= 2 * self.target.l1_bytes

    def contracting(self, heavy: Sequence[str]) -> Statement:
        """The statement that the register tile is for."""
        name = next((n for n in heavy if self.roles.by_statement[n].contraction), heavy[0])
        return self.roles.statements[name]

    def register_tile(self, update: Statement, axes: Mapping[str, Loop], vector: Loop) -> RegisterTile:
        lanes = axis_of(vector.row(update.name))
        assert lanes is not None, "lanes run along an axis"
        is_contraction = self.roles.by_statement[update.name].contraction
        rows = rows_along(update, self.roles, tuple(axes), lanes) if is_contraction else ()
        blocks = {axis: points for (name, axis), points in self.blocks.items() if name == update.name}
        return choose(update, self.roles, self.extents, self.target, lanes=lanes, rows=rows, blocks=blocks)

    def rows_first(self, update: Statement, tile: RegisterTile) -> bool:
        """Whether all columns pass by a few rows before the next rows come."""
        if update.name in self.tiles:
            return True
        read_bytes = 0
        for access in update.reads:
            if any(moves(subscript, tile.lanes) for subscript in access.read.subscripts):
                points = 1
                for name in {n for s in access.read.subscripts if isinstance(s, Affine) for n in axes_of(s)}:
                    points *= self.extents.axis(update.name, name)
                read_bytes += points * self.roles.arrays[access.read.tensor].dtype.itemsize
        fits = 2 * read_bytes <= self.target.l2_bytes
        return picks.choose(f"columns of {update.name} first", fits, lambda: (fits, not fits))

    def pointwise(self, chain: Sequence[Loop], vector: Loop, heavy: Sequence[str]) -> NestPlan:
        """Lanes along a loop with nothing inside; a lone long loop is cut so that its pieces can run in parallel."""
        names = tuple(loop.name for loop in chain)
        if not self.is_vectorizable(vector, heavy):
            return self.scalar(chain, "no loop scans an axis alone")
        crossing = self.crossing(chain, vector, heavy)
        if crossing is not None:
            return self.transposed(chain, crossing, vector, heavy)
        order = tuple(name for name in names if name != vector.name)
        if self.is_slanted(chain, vector, heavy):
            points = picks.choose(f"slanted strip of {vector.name}", SLANTED, lambda: (SLANTED, SLANTED // 4, STRIP))
            reason = f"the next row reads the same cache lines: strips of {points} keep them"
            return NestPlan(names, (vector.name, *order), ((vector.name, points),), None, vector.name, reason)
        others = 1
        for loop in chain:
            if loop is not vector:
                others *= self.extent(loop, heavy)
        is_open = any(self.extents.is_open(name, vector.row(name)) for name in heavy)
        if others < 8 and (is_open or self.extent(vector, heavy) >= 2 * STRIP):
            strip = picks.choose(f"strip of {vector.name}", STRIP, lambda: (STRIP, 4 * STRIP, STRIP // 4))
            tiles = ((vector.name, strip),)
            return NestPlan(names, (*order, vector.name), tiles, None, vector.name, "strips can run in parallel")
        return NestPlan(names, order, (), None, vector.name, "unit stride in the lanes")

    def crossing(self, chain: Sequence[Loop], vector: Loop, heavy: Sequence[str]) -> Loop | None:
        """Another loop along which some read is contiguous while it strides along the lanes, both long enough."""
        lanes = self.lanes(heavy)
        if self.extent(vector, heavy) < lanes:
            return None
        for loop in chain:
            if loop is vector or self.extent(loop, heavy) < lanes:
                continue
            for name in heavy:
                along, across = axis_of(loop.row(name)), axis_of(vector.row(name))
                if along and across and is_transposed(self.steps, self.roles.statements[name], along, across):
                    return loop
        return None

    def is_slanted(self, chain: Sequence[Loop], vector: Loop, heavy: Sequence[str]) -> bool:
        """Whether lanes read far apart what their neighbours in the next row read beside it: antidiagonals."""
        if len(chain) < 2 or self.extent(vector, heavy) < 2 * SLANTED:
            return False
        rows = chain[-1] if chain[-1] is not vector else chain[-2]
        for name in heavy:
            axes = axis_of(rows.row(name)), axis_of(vector.row(name))
            for read in (access.read for access in self.roles.statements[name].reads):
                steps = [self.steps.along(read.tensor, read.subscripts, axis) for axis in axes if axis is not None]
                down, along = steps if len(steps) == len(axes) else (None, None)
                if down is not None and along is not None and abs(along) > SLANTED and abs(down - along) == 1:
                    return True
        return False

    def transposed(self, chain: Sequence[Loop], rows: Loop, vector: Loop, heavy: Sequence[str]) -> NestPlan:
        """Square tiles of one vector each way: read along one axis, turned in registers, written along the other."""
        names, lanes = tuple(loop.name for loop in chain), self.lanes(heavy)
        order = (*(name for name in names if name not in (rows.name, vector.name)), rows.name, vector.name)
        tiles = ((rows.name, lanes), (vector.name, lanes))
        return NestPlan(names, order, tiles, rows.name, vector.name, f"{lanes} x {lanes} blocks turn in registers")

    def is_vectorizable(self, vector: Loop, heavy: Sequence[str]) -> bool:
        return self.lane_worth(vector, heavy) > float("-inf")


def _chain(head: Loop) -> tuple[list[Loop], Tree]:
    chain = [head]
    while isinstance(chain[-1].body, Loop) and chain[-1].body.coincident:
        chain.append(chain[-1].body)
    return chain, chain[-1].body


def _lanes_are_legal(loop: Loop, statement: Statement) -> bool:
    """Along a coincident loop lanes never meet; along a reduction they must all update one known element, or each of
    them another one."""
    if loop.coincident or not statement.is_update:
        return True
    axis = axis_of(loop.row(statement.name))
    slopes = [None if axis is None or not isinstance(s, Affine) else _slope(s, axis) for s in statement.subscripts]
    return any(slopes) or None not in slopes


def _slope(subscript: Affine, axis: str) -> int | None:
    """By how much a subscript grows along an axis; None where quotients decide."""
    floors = (atom for atom, _ in subscript.terms if isinstance(atom, FloorDiv))
    return None if any(axis in axes_of(atom.numerator) for atom in floors) else subscript.coefficient(AxisRef(axis))
