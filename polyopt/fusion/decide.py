"""Which statements share which loops.

From the outermost dimension inwards: the statements at hand are split into components of mutual dependence,
each with the rows it could run next; then groups along producer-consumer edges are joined greedily where rows
exist under which every value is used in the iteration that makes it (distance zero), so that a shared loop stays
parallel. Each group gets its loop, and the same happens again inside it with the dependences that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field, replace

import islpy as isl

from polyopt import graphs, picks
from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, AxisRef, FloorDiv, axes_of, axis
from polyopt.fusion.plan import Decision, FusionPlan
from polyopt.poly import isl_schedule
from polyopt.poly.dependence import Dependence, Dependences
from polyopt.poly.distance import DistanceTester, Rows
from polyopt.poly.roles import Roles
from polyopt.poly.schedule import choose_rows
from polyopt.poly.scop import Scop
from polyopt.poly.space import operation_budget
from polyopt.poly.tree import Leaf, Loop, Tree, sequence

JOIN_OPERATIONS = 100_000
"""What isl may do to find one order for two recurrences."""

LEAST_ROWS = 64
"""Points of an axis that are enough rows for the register tiles of a contraction: several tiles of 14, and an edge."""

LEAST_OUTER = 16
"""Iterations of a loop around a contraction and what has fewer results, for all threads to find some."""

BATCH = 16
"""Rows of a recurrence that go through its steps together: enough for a register tile, few enough for all threads."""

Remaining = Mapping[str, tuple[str, ...]]

TileRows = Mapping[str, tuple[tuple[str, Affine], ...]]


def decide(
    scop: Scop,
    dependences: Dependences,
    tile_rows: TileRows | None = None,
    shared_rows: TileRows | None = None,
    *,
    merge: bool = True,
    batch: int = 0,
    outer: bool = True,
) -> FusionPlan:
    """The tree of shared loops of a scop.

    tile_rows:   names and rows of loops that come before a statement's other axes: over tiles (see `attach`), or over
                 axes that are to be scanned first
    shared_rows: names and rows of loops that statements share before all others, outermost first (see `cascade`,
                 and `tiling.copies`)
    merge:       whether components of mutual dependence may share loops with others; without it, they run one after
                 the other in the order of their dependences, which takes few tests
    batch:       how many points of a parallel axis around a recurrence go through its steps together, where sums in it
                 read the same for them; 0 for one at a time
    outer:       whether a contraction shares loops with what has fewer results, where its register tile loses nothing;
                 a GPU has blocks of threads for each of them

    Raises `DefinitionError` where an element depends on itself, `ScheduleError` where no order was found.
    """
    tiles = {name: dict(rows) for name, rows in (tile_rows or {}).items()}
    shared = {name: dict(rows) for name, rows in (shared_rows or {}).items()}
    tester = DistanceTester.of(scop)
    fuser = _Fuser(scop, tester, Roles.of(scop), dependences, tiles, shared, merges=merge, batch=batch, outer=outer)
    names = tuple(s.name for s in scop.statements)
    remaining = {name: fuser.axes_after(name) for name in names}
    tree = fuser.block(names, dependences.ordered, remaining, inside_parallel=False)
    return FusionPlan(tree, tuple(fuser.decisions), tuple(fuser.notes))


def can_share(scop: Scop, dependences: Dependences, shared_rows: TileRows) -> bool:
    """Whether loops over shared rows run no dependence backwards, all but the innermost carry none, and those inside
    one loop can run one after the other, with what shares none between them."""
    paths = {s.name: tuple(dict(shared_rows.get(s.name, ()))) for s in scop.statements}
    for depth in range(1, max(map(len, paths.values())) + 1):
        owner = {name: path[:depth] if len(path) >= depth else (*path, "", name) for name, path in paths.items()}
        edges = [(str(owner[d.source]), str(owner[d.target])) for d in dependences.ordered]
        shared = {str(owner[name]) for name, path in paths.items() if len(path) >= depth}
        nodes = tuple(dict.fromkeys(map(str, owner.values())))
        if shared & graphs.on_cycles(nodes, [(a, b) for a, b in edges if a != b]):
            return False
    tester = DistanceTester.of(scop)
    inside = [d for d in dependences.ordered if d.source in shared_rows and d.target in shared_rows]
    for dependence in inside:
        source, target = (dict(shared_rows[name]) for name in (dependence.source, dependence.target))
        common = [loop for loop in source if loop in target]
        for number, loop in enumerate(common):
            rows = {dependence.source: source[loop], dependence.target: target[loop]}
            if dependence.source == dependence.target:
                rows = {dependence.source: source[loop]}
            last = number == max(len(source), len(target)) - 1
            legal = tester.respects([dependence], rows) if last else tester.is_coincident([dependence], rows)
            if not legal:
                return False
    return True


@dataclass(frozen=True, slots=True)
class _Group:
    """Statements that will share their next loop.

    candidates: consistent rows, best first; empty where the statement has no dimension left
    spent:      for each candidate, the axis each statement's row uses up
    recurrent:  the rows carry dependences: iterations run in order
    cyclic:     the statements depend on one another around a cycle
    batched:    the loop goes over batches of its points, which stay for the loops inside
    fixed:      a finished subtree, where isl scheduled the component
    """

    statements: tuple[str, ...]
    candidates: tuple[Rows, ...]
    spent: tuple[Mapping[str, str], ...]
    recurrent: bool = False
    cyclic: bool = False
    batched: bool = False
    fixed: Tree | None = None


@dataclass(slots=True)
class _Fuser:
    scop: Scop
    tester: DistanceTester
    roles: Roles
    dependences: Dependences
    tiles: Mapping[str, Mapping[str, Affine]]
    shared: Mapping[str, Mapping[str, Affine]]
    merges: bool = True
    batch: int = 0
    outer: bool = True
    batches: dict[str, frozenset[str]] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def blocks(self) -> Set[str]:
        """Names of loops over blocks of a contraction's results, that are no statement's own axes."""
        contractions = (name for name, shape in self.roles.by_statement.items() if shape.contraction)
        own = {axis for shape in self.roles.by_statement.values() for axis in shape.axes}
        return {loop for name in contractions for loop in self.tiles.get(name, ())} - own

    def axes_after(self, name: str) -> tuple[str, ...]:
        """What a statement's loops may scan: the loops it must share, tiles, then its own axes, but those that a
        shared loop scans point by point."""
        shared = self.shared.get(name, {})
        scanned = {str(row) for row in shared.values()}
        own = tuple(a for a in self.roles.by_statement[name].axes if a not in scanned)
        return tuple(dict.fromkeys((*shared, *self.tiles.get(name, ()), *own)))

    def block(
        self, names: Sequence[str], dependences: Sequence[Dependence], remaining: Remaining, *, inside_parallel: bool
    ) -> Tree:
        """A tree for statements whose outer loops are settled; `dependences` are those not carried outside."""
        together = self.sharing(names, dependences, remaining)
        rest = tuple(name for name in names if not any(name in group.statements for group in together))
        found = graphs.components(rest, [(d.source, d.target) for d in _within(rest, dependences)])
        groups = [*together, *(self.seed(component, dependences, remaining) for component in found)]
        groups = self.merge(groups, dependences, remaining, inside_parallel=inside_parallel)
        return sequence([self.nest(group, dependences, remaining, inside_parallel) for group in groups])

    def sharing(self, names: Sequence[str], dependences: Sequence[Dependence], remaining: Remaining) -> list[_Group]:
        """A group for each loop that the statements must share next."""
        by_loop: dict[str, list[str]] = {}
        for name in names:
            if remaining[name] and remaining[name][0] in self.shared.get(name, {}):
                by_loop.setdefault(remaining[name][0], []).append(name)
        groups = []
        for loop, members in by_loop.items():
            rows = {name: self.shared[name][loop] for name in members}
            recurrent = not self.tester.is_coincident(_within(members, dependences), rows)
            spent = dict.fromkeys(members, loop)
            groups.append(_Group(tuple(members), (rows,), (spent,), recurrent=recurrent, cyclic=recurrent))
        return groups

    def seed(self, component: tuple[str, ...], dependences: Sequence[Dependence], remaining: Remaining) -> _Group:
        inner = _within(component, dependences)
        if not inner:
            name = component[0]
            axes = remaining[name]
            rows = tuple({name: self.tiles.get(name, {}).get(a) or axis(a)} for a in axes)
            return _Group(component, rows, tuple({name: a} for a in axes))
        choice = choose_rows(component, inner, self.own_axes(component, remaining), self.tester)
        if choice is not None:
            batched = choice.coincident and self.gains_in_batches(choice.rows, inner, remaining)
            group = _Group(component, (choice.rows,), (choice.spent,), recurrent=not choice.coincident, cyclic=True)
            return replace(group, batched=batched)
        tree = isl_schedule.schedule(self.scop, component, inner, _within(component, self.dependences.reductions))
        return self.from_isl(component, tree, remaining)

    def from_isl(self, component: tuple[str, ...], tree: Tree, remaining: Remaining) -> _Group:
        """A component as isl orders it: the outermost loop alone where its rows are axes, moved by so many steps.

        What is inside is decided here again: isl puts a statement of few loops into one iteration of those of another.
        """
        if isinstance(tree, Loop):
            rows = dict(tree.rows)
            spent = {name: _moved(row) for name, row in rows.items()}
            if all(spent[name] in remaining[name] for name in component):
                return _Group(component, (rows,), (spent,), recurrent=True, cyclic=True)
        return _Group(component, (), (), recurrent=True, fixed=tree)

    def own_axes(self, names: Sequence[str], remaining: Remaining) -> Remaining:
        """What is left of the statements' own axes: recurrences are not tiled, and batches stay together in them."""
        others = {name: {*self.tiles.get(name, ()), *self.batches.get(name, ())} for name in names}
        return {name: tuple(a for a in remaining[name] if a not in others[name]) for name in names}

    def gains_in_batches(self, rows: Rows, inner: Sequence[Dependence], remaining: Remaining) -> bool:
        """Whether some sum of a recurrence reads an operand again for each point of the axis that rows scan, of which
        there is half a batch at least. The terms of a sum in order are no recurrence."""
        flows = [(d.source, d.target) for d in inner if d.kind == "flow"]
        axes = {name: _alone(row) for name, row in rows.items()}
        if not self.batch or None in axes.values() or not graphs.on_cycles(tuple(rows), flows):
            return False
        sums = [name for name in rows if self.is_open_contraction(name, remaining)]
        reads_again = any(axes[name] in reuse for name in sums for reuse in self.roles.by_statement[name].reuse)
        if not reads_again:
            return False
        is_long = all(self.has_points(name, row, self.batch // 2) for name, row in rows.items())
        return picks.choose(f"{' '.join(rows)} in batches", is_long, lambda: (True, False))

    def has_points(self, name: str, row: Affine, least: int) -> bool:
        """Whether a row is an axis of a statement that has so many points, or as many as sizes decide."""
        statement = self.scop.statement(name)
        position = next((n for n, own in enumerate(statement.axes) if row == axis(own)), None)
        if position is None:
            return False
        low, high = statement.domain.dim_min_val(position), statement.domain.dim_max_val(position)
        return not (low.is_int() and high.is_int()) or int(high.to_python()) - int(low.to_python()) + 1 >= least

    # -- merging -----------------------------------------------------------------------------------------------

    def merge(
        self,
        groups: list[_Group],
        dependences: Sequence[Dependence],
        remaining: Remaining,
        *,
        inside_parallel: bool,
    ) -> list[_Group]:
        """Joins groups along producer-consumer edges until nothing more can be joined; topological order."""
        refused: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
        while True:
            owner = {name: n for n, group in enumerate(groups) for name in group.statements}
            between: dict[tuple[int, int], list[Dependence]] = {}
            for d in dependences:
                if d.source in owner and d.target in owner and owner[d.source] != owner[d.target]:
                    between.setdefault((owner[d.source], owner[d.target]), []).append(d)
            joined = (
                self.join_once(groups, between, dependences, remaining, refused, inside_parallel=inside_parallel)
                if self.merges
                else None
            )
            if joined is None:
                order = graphs.topological(range(len(groups)), between)
                return [groups[n] for n in order]
            producer, consumer, group = joined
            groups = [g for n, g in enumerate(groups) if n not in (producer, consumer)]
            groups.insert(min(producer, consumer, len(groups)), group)

    def join_once(
        self,
        groups: list[_Group],
        between: Mapping[tuple[int, int], Sequence[Dependence]],
        dependences: Sequence[Dependence],
        remaining: Remaining,
        refused: set[tuple[tuple[str, ...], tuple[str, ...]]],
        *,
        inside_parallel: bool,
    ) -> tuple[int, int, _Group] | None:
        """Joins two groups; `between` holds the dependences by the positions of the groups that they are between."""
        for producer, consumer in sorted(between, key=lambda e: self.urgency(groups, e, between[e], remaining)):
            both, own = (groups[producer], groups[consumer]), between[producer, consumer]
            pair = both[0].statements, both[1].statements
            if pair in refused or self.goes_around(producer, consumer, between):
                continue
            group, reason = self.joined(*both, own, dependences, remaining, inside_parallel)
            self.record(*both, own, group is not None, reason)
            if group is not None:
                return producer, consumer, group
            refused.add(pair)
        return None

    def urgency(
        self, groups: Sequence[_Group], edge: tuple[int, int], between: Sequence[Dependence], remaining: Remaining
    ) -> tuple[bool, bool, bool]:
        """What is joined first: recurrences with one another, then start values with their reduction, then what shares
        a loop over tiles, such as an operand with the contraction that it is computed for block by block."""
        producer, consumer = groups[edge[0]], groups[edge[1]]
        shares = self.next_is_a_tile(producer, consumer, remaining)
        return not (producer.cyclic and consumer.cyclic), not self.only_starts(producer, between), not shares

    @staticmethod
    def goes_around(producer: int, consumer: int, edges: Iterable[tuple[int, int]]) -> bool:
        """Whether a third group stands between the two: joined, they would have to run before and after it."""
        return consumer in graphs.reachable(producer, (edge for edge in edges if edge != (producer, consumer)))

    def joined(
        self,
        producer: _Group,
        consumer: _Group,
        between: Sequence[Dependence],
        dependences: Sequence[Dependence],
        remaining: Remaining,
        inside_parallel: bool,
    ) -> tuple[_Group | None, str]:
        """The two groups as one, or None with the reason."""
        if not producer.candidates or not consumer.candidates:
            return None, "no loop is left to share"
        if producer.cyclic and consumer.cyclic and (producer.recurrent or consumer.recurrent):
            return self.joined_recurrences(producer, consumer, dependences, remaining)
        if producer.recurrent or (consumer.recurrent and not self.only_starts(producer, between)):
            return None, "one side runs its loop in order"
        reason = self.unprofitable(producer, consumer, between, remaining)
        if reason:
            return None, reason
        meeting = self.updates_of_both(producer, consumer)
        outer_only = self.has_fewer_results(producer, consumer, between, remaining)
        candidates: list[Rows] = []
        spent: list[Mapping[str, str]] = []
        for rows, used in zip(producer.candidates, producer.spent, strict=True):
            for other, other_used in zip(consumer.candidates, consumer.spent, strict=True):
                both = {**rows, **other}
                all_used = {**used, **other_used}
                if outer_only and not (self.outer and self.leaves_a_tile(producer, used, remaining)):
                    continue
                keeps = inside_parallel or consumer.recurrent
                if not keeps and self.loses_parallelism(all_used, producer, consumer):
                    continue
                if self.tester.is_coincident((*between, *meeting), both):
                    candidates.append(both)
                    spent.append(all_used)
        if not candidates:
            if outer_only:
                return None, "the producer's register tile would lose its reuse"
            return None, "no loop makes and uses each value in one iteration"
        names = producer.statements + consumer.statements
        cyclic = producer.cyclic or consumer.cyclic
        question = f"fuse {' '.join(producer.statements)} with {' '.join(consumer.statements)}"
        if not self.only_starts(producer, between) and not picks.choose(question, True, lambda: (True, False)):
            return None, "kept apart by a recorded choice"
        batched = producer.batched or consumer.batched
        group = _Group(names, tuple(candidates), tuple(spent), consumer.recurrent, cyclic, batched)
        return group, f"share the loop over {', '.join(dict.fromkeys(spent[0].values()))}"

    def updates_of_both(self, producer: _Group, consumer: _Group) -> list[Dependence]:
        """Pairs of updates of one element on either side: in a loop over what both sum up, lanes would not tell whose
        partial result they hold."""
        first, second = set(producer.statements), set(consumer.statements)
        ends = ((d, {d.source, d.target}) for d in self.dependences.reductions)
        return [d for d, both in ends if both & first and both & second]

    def joined_recurrences(
        self, producer: _Group, consumer: _Group, dependences: Sequence[Dependence], remaining: Remaining
    ) -> tuple[_Group | None, str]:
        """Two recurrences in one loop that runs in order, where one row serves both and isl says so in time."""
        names = producer.statements + consumer.statements
        try:
            with operation_budget(JOIN_OPERATIONS):
                choice = choose_rows(names, _within(names, dependences), self.own_axes(names, remaining), self.tester)
        except isl.Error:
            return None, "isl does not say in time whether a row runs both recurrences in order"
        if choice is None or not choice.settles:
            return None, "no row runs both recurrences in order"
        group = _Group(names, (choice.rows,), (choice.spent,), recurrent=not choice.coincident, cyclic=True)
        return group, f"run in order together: {choice.why}"

    @staticmethod
    def only_starts(producer: _Group, between: Sequence[Dependence]) -> bool:
        """Whether the producer only writes start values of the consumer's reductions."""
        return {d.source for d in between if d.kind == "start"} == set(producer.statements)

    def unprofitable(
        self, producer: _Group, consumer: _Group, between: Sequence[Dependence], remaining: Remaining
    ) -> str:
        """Why sharing a loop would cost more than it saves; empty where it pays."""
        if self.only_starts(producer, between) or self.next_is_a_tile(producer, consumer, remaining):
            return ""
        is_open = any(self.is_open_contraction(name, remaining) for name in consumer.statements)
        if is_open and not self.runs_batches_next(consumer, remaining):
            return "the consumer's register tile would lose its reuse"
        return ""

    def has_fewer_results(
        self, producer: _Group, consumer: _Group, between: Sequence[Dependence], remaining: Remaining
    ) -> bool:
        """Whether a contraction would share loops with what has not as many free axes: fewer and fewer would be left to
        its register tile."""
        if self.only_starts(producer, between) or self.next_is_a_tile(producer, consumer, remaining):
            return False
        open_ones = [name for name in producer.statements if self.is_open_contraction(name, remaining)]
        counts = {self.open_free(name, remaining) for name in (*open_ones, *consumer.statements)}
        return bool(open_ones) and len(counts) > 1

    def leaves_a_tile(self, producer: _Group, used: Mapping[str, str], remaining: Remaining) -> bool:
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

    def next_is_a_tile(self, producer: _Group, consumer: _Group, remaining: Remaining) -> bool:
        """Whether the loop to be shared goes over tiles, which leaves the points inside to the register tile."""
        following = {next(iter(remaining[name]), "") for name in (*producer.statements, *consumer.statements)}
        tiled = any(self.tiles.get(name) for name in consumer.statements)
        return tiled and len(following) == 1 and all(following & set(self.tiles.get(n, following)) for n in remaining)

    def runs_batches_next(self, group: _Group, remaining: Remaining) -> bool:
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

    def loses_parallelism(self, spent: Mapping[str, str], producer: _Group, consumer: _Group) -> bool:
        """Whether the shared loop would run over some statement's reduction while both sides could be parallel."""
        return any(a in self.roles.by_statement[name].reduced for name, a in spent.items()) and any(
            self.roles.by_statement[name].free for name in (*producer.statements, *consumer.statements)
        )

    def record(
        self, producer: _Group, consumer: _Group, between: Sequence[Dependence], fused: bool, reason: str
    ) -> None:
        flows = [d for d in between if d.kind == "flow"]
        if not flows or (not fused and reason == "no loop is left to share"):
            return
        array = flows[-1].array
        tiled = any(self.tiles.get(name) for name in (*producer.statements, *consumer.statements))
        saved = 2 * self.roles.bytes(array) if fused and not tiled else 0  # an array in tiles has a copy for each
        verdict = "fused" if fused else "kept apart"
        decision = Decision(flows[-1].source, flows[-1].target, array, verdict, reason, saved)
        if decision not in self.decisions:
            self.decisions.append(decision)

    # -- nesting -----------------------------------------------------------------------------------------------

    def nest(
        self, group: _Group, dependences: Sequence[Dependence], remaining: Remaining, inside_parallel: bool
    ) -> Tree:
        group, remaining = self.without_blocks_of_others(group, remaining)
        if group.fixed is not None:
            return group.fixed
        if not group.candidates:
            return sequence([Leaf(name) for name in group.statements])
        rows, spent = group.candidates[0], group.spent[0]
        inner = _within(group.statements, dependences)
        if group.batched:
            return self.in_batches(group, inner, remaining)
        left = self.tester.left(inner, rows)
        rest = {name: tuple(a for a in remaining[name] if a != spent[name]) for name in group.statements}
        reduction = any(axes_of(row) & set(self.roles.by_statement[name].reduced) for name, row in rows.items())
        reduction = reduction or any(self.meets_itself(name) for name in group.statements)
        coincident = not group.recurrent and not (reduction and self.carries_reduction(group, rows))
        body = self.block(group.statements, left, rest, inside_parallel=inside_parallel or coincident)
        name = self.loop_name(rows, spent)
        return Loop(
            name,
            tuple((statement, rows[statement]) for statement in group.statements),
            body,
            coincident=coincident,
            reduction=not group.recurrent and not coincident,
        )

    def without_blocks_of_others(self, group: _Group, remaining: Remaining) -> tuple[_Group, Remaining]:
        """The group without loops over the blocks of a contraction that is not in it: nothing is left to share, and
        inside them lanes would find no axis alone."""
        theirs = {n: self.blocks & {*self.tiles.get(n, ())} & {*remaining[n]} for n in group.statements}
        own = frozenset().union(*(theirs[n] for n in group.statements if self.roles.by_statement[n].contraction))
        lone = frozenset().union(*theirs.values()) - own
        kept = [n for n, spent in enumerate(group.spent) if not lone & {*spent.values()}]
        if not lone or (group.candidates and not kept):
            return group, remaining
        rest = {n: tuple(a for a in axes if n not in theirs or a not in lone) for n, axes in remaining.items()}
        rows, spent = tuple(group.candidates[n] for n in kept), tuple(group.spent[n] for n in kept)
        return replace(group, candidates=rows, spent=spent), rest

    def in_batches(self, group: _Group, inner: Sequence[Dependence], remaining: Remaining) -> Tree:
        """A loop over batches of points, whose points are left to the loops inside, behind the recurrence's own."""
        spent = group.spent[0]
        rows = {name: row // self.batch for name, row in group.candidates[0].items()}
        self.batches |= {name: self.batches.get(name, frozenset()) | {spent[name]} for name in group.statements}
        body = self.block(group.statements, self.tester.left(inner, rows), remaining, inside_parallel=True)
        along = spent[group.statements[0]]
        shown = ", ".join(group.statements)
        self.notes.append(f"{shown}: {self.batch} points of {along} go through the steps together, and read the same")
        return Loop(f"{along}_batch", tuple(rows.items()), body, coincident=True)

    def meets_itself(self, name: str) -> bool:
        """Whether points that differ in axes of the left side may update one element: `y[2*h + r]`, `y[i // 2]`."""
        statement = self.scop.statement(name)
        affine = [s for s in statement.subscripts if isinstance(s, Affine)]
        several = any(len(s.terms) > 1 or any(isinstance(atom, FloorDiv) for atom, _ in s.terms) for s in affine)
        return statement.is_update and several

    def carries_reduction(self, group: _Group, rows: Mapping[str, Affine]) -> bool:
        inside = [d for d in self.dependences.reductions if {d.source, d.target} <= set(group.statements)]
        return not self.tester.is_coincident(inside, rows)

    def loop_name(self, rows: Rows, spent: Mapping[str, str]) -> str:
        widest = max(rows, key=lambda name: len(self.roles.by_statement[name].axes))
        if len(rows[widest].terms) == 1:
            return spent[widest]
        row = str(rows[widest])
        return row if row[0].isalpha() else f"({row})"  # isl takes "2*i + j" for a number, not for a name


def _alone(row: Affine) -> str | None:
    """The axis that is all there is in a row."""
    atoms = [atom.name for atom, _ in row.terms if isinstance(atom, AxisRef)]
    return atoms[0] if len(atoms) == 1 and row == axis(atoms[0]) else None


def _moved(row: Affine) -> str:
    """The axis that is all there is in a row beside a number; "" for another row."""
    return _alone(row - row.constant) or ""


def _within(names: Sequence[str], dependences: Sequence[Dependence]) -> tuple[Dependence, ...]:
    inside = set(names)
    return tuple(d for d in dependences if d.source in inside and d.target in inside)
