"""Which loops are tiled, which axis becomes lanes, and which tile lives in registers.

Each maximal chain of coincident loops is one nest. If its heaviest statements are best read along a loop of the
chain, that loop's points move innermost and become lanes, with a register tile where a reduction inside can
reuse its operands; otherwise the loops inside the chain are planned on their own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from polyopt.dsl.ir import DataIndex
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.tree import Leaf, Loop, Tree, loops, statements
from polyopt.poly.tree import Sequence as TreeSequence
from polyopt.target import Target
from polyopt.tiling.cost import axis_of, covered, is_transposed, lane_score, register_tiles
from polyopt.tiling.extents import Extents
from polyopt.tiling.plan import NestPlan, TilingPlan

STRIP = 4096
"""Points of a vector loop that is cut so that its pieces can run in parallel."""

OUTGROWN_PANEL = 0.5
"""Share of its speed that a register tile keeps when its operand's panel leaves the second cache (measured on
1000^3 and 128 x 768 x 3072 products in f32)."""


def decide(scop: Scop, tree: Tree, target: Target) -> TilingPlan:
    """A plan for every nest of the tree; the tree's loops have unique names."""
    planner = _Planner(scop, Roles.of(scop), Extents(scop), target)
    return TilingPlan(tuple(planner.plans(tree)))


@dataclass(slots=True)
class _Planner:
    scop: Scop
    roles: Roles
    extents: Extents
    target: Target

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
        return NestPlan((loop.name,), (loop.name,), (), None, loop.name, "lanes hold partial results")

    def scalar(self, chain: Sequence[Loop], reason: str) -> NestPlan:
        names = tuple(loop.name for loop in chain)
        return NestPlan(names, names, (), None, None, reason)

    # -- chains of coincident loops ----------------------------------------------------------------------------

    def nest(self, head: Loop) -> Iterator[NestPlan]:
        chain, body = _chain(head)
        heavy = self.heavy(statements(body))
        inside = [loop for loop in loops(body) if not any(loops(loop.body)) and set(loop.statements) & set(heavy)]
        best = max(chain, key=lambda loop: (self.lane_worth(loop, heavy), chain.index(loop)))
        inner_worth = max((self.lane_worth(loop, heavy) for loop in inside), default=float("-inf"))
        if inside and inner_worth > self.lane_worth(best, heavy):
            yield self.scalar(chain, "the loops inside suit lanes better")
            yield from self.plans(body)
            return
        if inside:
            yield self.over_reduction(chain, best, heavy)
        else:
            yield self.pointwise(chain, best, heavy)

    def heavy(self, names: Sequence[str]) -> tuple[str, ...]:
        """The statements with the most dimensions."""
        depth = max(len(self.roles.by_statement[name].axes) for name in names)
        return tuple(name for name in names if len(self.roles.by_statement[name].axes) == depth)

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
            scores.append(lane_score(statement, axis))
        return sum(scores) / len(scores) if scores else None

    def lanes(self, names: Sequence[str]) -> int:
        """Lanes of the widest element that the statements touch."""
        bits = max(
            self.roles.arrays[array].dtype.bits
            for name in names
            for array in self.arrays_of(self.roles.statements[name])
        )
        return self.target.lanes(bits)

    @staticmethod
    def arrays_of(statement: Statement) -> tuple[str, ...]:
        return (statement.array, *(access.read.tensor for access in statement.reads))

    def extent(self, loop: Loop, names: Sequence[str]) -> int:
        return max(self.extents.row(name, loop.row(name)) for name in names if name in loop.statements)

    def over_reduction(self, chain: Sequence[Loop], vector: Loop, heavy: Sequence[str]) -> NestPlan:
        """Lanes along a free axis around a reduction: a register tile, two-dimensional where operands are reused.

        The tile loop over the lanes' axis is the outer one, so that the panel of the operand that the lanes read,
        as deep as the reduction, stays in the second cache while the rows pass by. Source: [GotoBLAS08], section 4.
        """
        names = tuple(loop.name for loop in chain)
        rows = self.reused_rows(chain, vector, heavy)
        height = self.extent(rows, heavy) if rows else 1
        row_points, columns, panel = self.register_tile(heavy, height, self.extent(vector, heavy))
        if row_points == 1:
            rows = None
        moved = [vector.name, *([rows.name] if rows is not None else [])]
        order = (*(name for name in names if name not in moved), *moved)
        tiles = (*(((rows.name, row_points),) if rows is not None else ()), (vector.name, columns))
        shape = f"{row_points} x {columns}" if rows is not None else f"{columns}"
        reason = f"{shape} accumulators stay in registers over the reduction"
        return NestPlan(names, order, tiles, rows.name if rows else None, vector.name, reason, panel)

    def register_tile(self, heavy: Sequence[str], height: int, width: int) -> tuple[int, int, int]:
        """Rows and columns of the best register tile, and the bytes of the operand panel that it goes with."""
        lanes = self.lanes(heavy)
        depth = max(self.reduction_points(name) for name in heavy)
        item_bytes = self.target.vector_bits // 8 // lanes
        best = (0.0, 1, lanes, 0)
        for merit, rows, vectors in register_tiles(self.target.vector_registers, lanes, height, width):
            panel = depth * vectors * lanes * item_bytes
            fits = 1.0 if 2 * panel <= self.target.l2_bytes else OUTGROWN_PANEL
            best = max(best, (merit * fits, rows, vectors * lanes, panel))
        return best[1:]

    def reduction_points(self, name: str) -> int:
        points = 1
        for axis in self.roles.by_statement[name].reduced:
            points *= self.extents.axis(name, axis)
        return points

    def reused_rows(self, chain: Sequence[Loop], vector: Loop, heavy: Sequence[str]) -> Loop | None:
        """The innermost other loop along which some operand of a contraction is reused."""
        for loop in reversed(chain):
            if loop is vector:
                continue
            for name in heavy:
                shape = self.roles.by_statement[name]
                axis = axis_of(loop.row(name))
                if shape.contraction and any(axis in reuse for reuse in shape.reuse):
                    return loop
        return None

    def pointwise(self, chain: Sequence[Loop], vector: Loop, heavy: Sequence[str]) -> NestPlan:
        """Lanes along a loop with nothing inside; a lone long loop is cut so that its pieces can run in parallel."""
        names = tuple(loop.name for loop in chain)
        if not self.is_vectorizable(vector, heavy):
            return self.scalar(chain, "no loop scans an axis alone")
        crossing = self.crossing(chain, vector, heavy)
        if crossing is not None:
            return self.transposed(chain, crossing, vector, heavy)
        order = tuple(name for name in names if name != vector.name)
        others = 1
        for loop in chain:
            if loop is not vector:
                others *= self.extent(loop, heavy)
        if others < 8 and self.extent(vector, heavy) >= 2 * STRIP:
            tiles = ((vector.name, STRIP),)
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
                if along and across and is_transposed(self.roles.statements[name], along, across):
                    return loop
        return None

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
    """Along a coincident loop lanes never meet; along a reduction they must all update one known element."""
    if loop.coincident or not statement.is_update:
        return True
    return not any(isinstance(subscript, DataIndex) for subscript in statement.subscripts)
