"""Whether statements that may share their next loop should: what a contraction's register tile would lose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, axis
from polyopt.poly.dependence import Dependence
from polyopt.poly.distance import Rows
from polyopt.poly.roles import Roles
from polyopt.poly.scop import Scop
from polyopt.poly.tree import Tree

LEAST_ROWS = 64
"""Points of an axis that are enough rows for the register tiles of a contraction: several tiles of 14, and an edge."""

LEAST_OUTER = 16
"""Iterations of a loop around a contraction and what has fewer results, for all threads to find some."""

Remaining = Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Group:
    """Statements that will share their next loop.

    candidates: consistent rows, best first; empty where the statement has no dimension left
    spent:      for each candidate, the axis each statement's row uses up
    recurrent:  the rows carry dependences: iterations run in order
    cyclic:     the statements depend on one another around a cycle
    batched:    what is gained where the loop goes over batches of its points, which stay for the loops inside
    fixed:      a finished subtree, where isl scheduled the component
    """

    statements: tuple[str, ...]
    candidates: tuple[Rows, ...]
    spent: tuple[Mapping[str, str], ...]
    recurrent: bool = False
    cyclic: bool = False
    batched: str = ""
    fixed: Tree | None = None


@dataclass(frozen=True, slots=True)
class Worth:
    """Judges groups of a scop's statements. tiles: rows of loops over tiles, by statement and loop"""

    scop: Scop
    roles: Roles
    tiles: Mapping[str, Mapping[str, Affine]]

    @staticmethod
    def only_starts(producer: Group, between: Sequence[Dependence]) -> bool:
        """Whether the producer only writes start values of the consumer's reductions."""
        return {d.source for d in between if d.kind == "start"} == set(producer.statements)

    def unprofitable(
        self, producer: Group, consumer: Group, between: Sequence[Dependence], remaining: Remaining
    ) -> str:
        """Why sharing a loop would cost more than it saves; empty where it pays."""
        if self.only_starts(producer, between) or self.next_is_a_tile(producer, consumer, remaining):
            return ""
        is_open = any(self.is_open_contraction(name, remaining) for name in consumer.statements)
        if is_open and not self.runs_batches_next(consumer, remaining):
            return "the consumer's register tile would lose its reuse"
        return ""

    def has_fewer_results(
        self, producer: Group, consumer: Group, between: Sequence[Dependence], remaining: Remaining
    ) -> bool:
        """Whether a contraction would share loops with what has not as many free axes: fewer and fewer would be left to
        its register tile."""
        if self.only_starts(producer, between) or self.next_is_a_tile(producer, consumer, remaining):
            return False
        open_ones = [name for name in producer.statements if self.is_open_contraction(name, remaining)]
        counts = {self.open_free(name, remaining) for name in (*open_ones, *consumer.statements)}
        return bool(open_ones) and len(counts) > 1

    def leaves_a_tile(self, producer: Group, used: Mapping[str, str], remaining: Remaining) -> bool:
        """Whether the producer's contractions keep the axis of their lanes and another one of many points, along which
        they read an operand again, when a loop is taken from them that is long enough for the threads."""
        for name in producer.statements:
            if not self.is_open_contraction(name, remaining):
                continue
            statement, shape = self.scop.statement(name), self.roles.by_statement[name]
            if any(loop in remaining[name] for loop in self.tiles.get(name, ())):
                return False  # its operands are copied for all that a block's loop goes around
            if not self.has_points(name, axis(used[name]), LEAST_OUTER):
                return False
            left = [a for a in shape.free if a in remaining[name] and a != used.get(name)]
            lanes = next((a for a in left if statement.subscripts and axis(a) == statement.subscripts[-1]), None)
            rows = [a for a in left if a != lanes and any(a in reuse for reuse in shape.reuse)]
            if lanes is None or not any(self.has_points(name, axis(a), LEAST_ROWS) for a in rows):
                return False
        return True

    def next_is_a_tile(self, producer: Group, consumer: Group, remaining: Remaining) -> bool:
        """Whether the loop to be shared goes over tiles, which leaves the points inside to the register tile."""
        names = (*producer.statements, *consumer.statements)
        following = {next(iter(remaining[name]), "") for name in names}
        tiled = any(self.tiles.get(name) for name in consumer.statements)
        return tiled and len(following) == 1 and all(following & set(self.tiles.get(n, following)) for n in names)

    def runs_batches_next(self, group: Group, remaining: Remaining) -> bool:
        """Whether the group's next loop goes over several results that operands are computed for in turn: tiles of
        registers are within it, and what is made in it is made for one of them, not far ahead."""
        following = {next(iter(remaining[name]), "") for name in group.statements}
        if len(following) != 1:
            return False
        (loop,) = following
        rows = {name: self.tiles.get(name, {}).get(loop) for name in group.statements}
        return all(row is not None and self.has_points(name, row, 2) for name, row in rows.items())

    def is_open_contraction(self, name: str, remaining: Remaining) -> bool:
        """Whether a contraction still has its reduction and at least one reused axis ahead."""
        shape = self.roles.by_statement[name]
        return shape.contraction and any(a in remaining[name] for a in shape.reduced)

    def open_free(self, name: str, remaining: Remaining) -> int:
        return sum(a in remaining[name] for a in self.roles.by_statement[name].free)

    def loses_parallelism(self, spent: Mapping[str, str], producer: Group, consumer: Group) -> bool:
        """Whether the shared loop would run over some statement's reduction while both sides could be parallel."""
        return any(a in self.roles.by_statement[name].reduced for name, a in spent.items()) and any(
            self.roles.by_statement[name].free for name in (*producer.statements, *consumer.statements)
        )

    def has_points(self, name: str, row: Affine, least: int) -> bool:
        """Whether a row is an axis of a statement that has so many points, or as many as sizes decide."""
        statement = self.scop.statement(name)
        position = next((n for n, own in enumerate(statement.axes) if row == axis(own)), None)
        if position is None:
            return False
        low, high = statement.domain.dim_min_val(position), statement.domain.dim_max_val(position)
        return not (low.is_int() and high.is_int()) or int(high.to_python()) - int(low.to_python()) + 1 >= least
