"""Which statements share which loops.

From the outermost dimension inwards: the statements at hand are split into components of mutual dependence,
each with the rows it could run next; then groups along producer-consumer edges are joined greedily where rows
exist under which every value is used in the iteration that makes it (distance zero), so that a shared loop stays
parallel. Each group gets its loop, and the same happens again inside it with the dependences that are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import field, replace
from itertools import combinations

import islpy as isl

from polyopt import graphs, picks
from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, AxisRef, FloorDiv, axes_of, axis
from polyopt.fusion.batches import reads_short_runs
from polyopt.fusion.plan import Decision, FusionPlan
from polyopt.fusion.siblings import are_siblings
from polyopt.fusion.worth import Group, Remaining, Worth
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

BATCH = 16
"""Rows of a recurrence that go through its steps together: enough for a register tile, few enough for all threads."""

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
    apart: frozenset[str] = frozenset(),
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
    apart:       arrays that are filled before what reads them begins

    Raises `DefinitionError` where an element depends on itself, `ScheduleError` where no order was found.
    """
    tiles = {name: dict(rows) for name, rows in (tile_rows or {}).items()}
    shared = {name: dict(rows) for name, rows in (shared_rows or {}).items()}
    tester, roles = DistanceTester.of(scop), Roles.of(scop)
    worth = Worth(scop, roles, tiles)
    fuser = _Fuser(
        scop, tester, roles, worth, dependences, tiles, shared, merges=merge, batch=batch, outer=outer, apart=apart
    )
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


@dataclass(slots=True)
class _Fuser:
    scop: Scop
    tester: DistanceTester
    roles: Roles
    worth: Worth
    dependences: Dependences
    tiles: Mapping[str, Mapping[str, Affine]]
    shared: Mapping[str, Mapping[str, Affine]]
    merges: bool = True
    batch: int = 0
    outer: bool = True
    apart: frozenset[str] = frozenset()
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

    def sharing(self, names: Sequence[str], dependences: Sequence[Dependence], remaining: Remaining) -> list[Group]:
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
            groups.append(Group(tuple(members), (rows,), (spent,), recurrent=recurrent, cyclic=recurrent))
        return groups

    def seed(self, component: tuple[str, ...], dependences: Sequence[Dependence], remaining: Remaining) -> Group:
        inner = _within(component, dependences)
        if not inner:
            name = component[0]
            axes = remaining[name]
            rows = tuple({name: self.tiles.get(name, {}).get(a) or axis(a)} for a in axes)
            return Group(component, rows, tuple({name: a} for a in axes))
        choice = choose_rows(component, inner, self.own_axes(component, remaining), self.tester)
        if choice is not None:
            batched = self.gain_in_batches(choice.rows, inner, remaining) if choice.coincident else ""
            group = Group(component, (choice.rows,), (choice.spent,), recurrent=not choice.coincident, cyclic=True)
            return replace(group, batched=batched)
        tree = isl_schedule.schedule(self.scop, component, inner, _within(component, self.dependences.reductions))
        return self.from_isl(component, tree, remaining)

    def from_isl(self, component: tuple[str, ...], tree: Tree, remaining: Remaining) -> Group:
        """A component as isl orders it: the outermost loop alone where its rows are axes, moved by so many steps.

        What is inside is decided here again: isl puts a statement of few loops into one iteration of those of another.
        """
        if isinstance(tree, Loop):
            rows = dict(tree.rows)
            spent = {name: _moved(row) for name, row in rows.items()}
            if all(spent[name] in remaining[name] for name in component):
                return Group(component, (rows,), (spent,), recurrent=True, cyclic=True)
        return Group(component, (), (), recurrent=True, fixed=tree)

    def own_axes(self, names: Sequence[str], remaining: Remaining) -> Remaining:
        """What is left of the statements' own axes: recurrences are not tiled, and batches stay together in them."""
        others = {name: {*self.tiles.get(name, ()), *self.batches.get(name, ())} for name in names}
        return {name: tuple(a for a in remaining[name] if a not in others[name]) for name in names}

    def gain_in_batches(self, rows: Rows, inner: Sequence[Dependence], remaining: Remaining) -> str:
        """What batches of points of the axis that rows scan gain; empty for nothing. Some sum of a recurrence reads an
        operand again for each point, of which there is half a batch at least, or each step reads short runs beside
        each other for the points of four batches. The terms of a sum in order are no recurrence."""
        flows = [(d.source, d.target) for d in inner if d.kind == "flow"]
        axes = {name: _alone(row) for name, row in rows.items()}
        if not self.batch or None in axes.values() or not graphs.on_cycles(tuple(rows), flows):
            return ""
        sums = [name for name in rows if self.worth.is_open_contraction(name, remaining)]
        reads_again = any(axes[name] in reuse for name in sums for reuse in self.roles.by_statement[name].reuse)
        beside = any(reads_short_runs(self.scop.statement(name), self.roles, str(axes[name])) for name in rows)
        if not reads_again and not beside:
            return ""
        least = self.batch // 2 if reads_again else 4 * self.batch
        is_long = all(self.worth.has_points(name, row, least) for name, row in rows.items())
        gain = "read the same" if reads_again else "read what lies side by side"
        return gain if picks.agreed(f"{' '.join(rows)} in batches", is_long) else ""

    # -- merging -----------------------------------------------------------------------------------------------

    def merge(
        self,
        groups: list[Group],
        dependences: Sequence[Dependence],
        remaining: Remaining,
        *,
        inside_parallel: bool,
    ) -> list[Group]:
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
            ) or self.join_siblings(groups, between, refused)
            if joined is None:
                order = graphs.topological(range(len(groups)), between)
                return [groups[n] for n in order]
            producer, consumer, group = joined
            groups = [g for n, g in enumerate(groups) if n not in (producer, consumer)]
            groups.insert(min(producer, consumer, len(groups)), group)

    def join_once(
        self,
        groups: list[Group],
        between: Mapping[tuple[int, int], Sequence[Dependence]],
        dependences: Sequence[Dependence],
        remaining: Remaining,
        refused: set[tuple[tuple[str, ...], tuple[str, ...]]],
        *,
        inside_parallel: bool,
    ) -> tuple[int, int, Group] | None:
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

    def join_siblings(
        self,
        groups: Sequence[Group],
        between: Mapping[tuple[int, int], Sequence[Dependence]],
        refused: set[tuple[tuple[str, ...], tuple[str, ...]]],
    ) -> tuple[int, int, Group] | None:
        """Joins two groups that compute from the same operands, neither of which waits for the other: what both read is
        loaded once, and what both compute is computed once."""
        for first, second in combinations(range(len(groups)) if self.merges else (), 2):
            both = groups[first], groups[second]
            pair = both[0].statements, both[1].statements
            if pair in refused:
                continue
            refused.add(pair)
            if not self.can_be_siblings(*both):
                continue
            if second in graphs.reachable(first, between) or first in graphs.reachable(second, between):
                continue
            found = [
                ({**rows, **other}, {**used, **other_used})
                for rows, used in zip(both[0].candidates, both[0].spent, strict=True)
                for other, other_used in zip(both[1].candidates, both[1].spent, strict=True)
                if len({*used.values(), *other_used.values()}) == 1 == len({*rows.values(), *other.values()})
            ]
            if found and picks.agreed(f"{' '.join(pair[0])} beside {' '.join(pair[1])}", True):
                candidates, spent = zip(*found, strict=True)
                named = " and ".join(" ".join(statements) for statements in pair)
                self.notes.append(f"{named} share the loop over {next(iter(spent[0].values()))}: they read the same")
                return first, second, Group((*pair[0], *pair[1]), candidates, spent)
        return None

    def can_be_siblings(self, first: Group, second: Group) -> bool:
        """Whether groups that do not wait for one another gain from a loop that they share."""
        both = (first, second)
        if any(group.recurrent or group.cyclic or group.fixed is not None for group in both):
            return False
        if any(self.tiles.get(name) for group in both for name in group.statements):
            return False
        if self.updates_of_both(*both):
            return False
        return are_siblings(self.scop, self.roles, first.statements, second.statements)

    def urgency(
        self, groups: Sequence[Group], edge: tuple[int, int], between: Sequence[Dependence], remaining: Remaining
    ) -> tuple[bool, bool, bool]:
        """What is joined first: recurrences with one another, then start values with their reduction, then what shares
        a loop over tiles, such as an operand with the contraction that it is computed for block by block."""
        producer, consumer = groups[edge[0]], groups[edge[1]]
        shares = self.worth.next_is_a_tile(producer, consumer, remaining)
        return not (producer.cyclic and consumer.cyclic), not self.worth.only_starts(producer, between), not shares

    @staticmethod
    def goes_around(producer: int, consumer: int, edges: Iterable[tuple[int, int]]) -> bool:
        """Whether a third group stands between the two: joined, they would have to run before and after it."""
        return consumer in graphs.reachable(producer, (edge for edge in edges if edge != (producer, consumer)))

    def joined(
        self,
        producer: Group,
        consumer: Group,
        between: Sequence[Dependence],
        dependences: Sequence[Dependence],
        remaining: Remaining,
        inside_parallel: bool,
    ) -> tuple[Group | None, str]:
        """The two groups as one, or None with the reason."""
        if not producer.candidates or not consumer.candidates:
            return None, "no loop is left to share"
        if producer.cyclic and consumer.cyclic and (producer.recurrent or consumer.recurrent):
            return self.joined_recurrences(producer, consumer, dependences, remaining)
        if producer.recurrent or (consumer.recurrent and not self.worth.only_starts(producer, between)):
            return None, "one side runs its loop in order"
        reason = self.worth.unprofitable(producer, consumer, between, remaining)
        if any(d.array in self.apart and d.kind != "start" for d in between):
            reason = "partial results are the threads' work"
        if reason:
            return None, reason
        meeting = self.updates_of_both(producer, consumer)
        outer_only = self.worth.has_fewer_results(producer, consumer, between, remaining)
        candidates: list[Rows] = []
        spent: list[Mapping[str, str]] = []
        for rows, used in zip(producer.candidates, producer.spent, strict=True):
            for other, other_used in zip(consumer.candidates, consumer.spent, strict=True):
                both = {**rows, **other}
                all_used = {**used, **other_used}
                if outer_only and not (self.outer and self.worth.leaves_a_tile(producer, used, remaining)):
                    continue
                keeps = inside_parallel or consumer.recurrent
                if not keeps and self.worth.loses_parallelism(all_used, producer, consumer):
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
        if not self.worth.only_starts(producer, between) and not picks.choose(question, True, lambda: (True, False)):
            return None, "kept apart by a recorded choice"
        batched = producer.batched or consumer.batched
        group = Group(names, tuple(candidates), tuple(spent), consumer.recurrent, cyclic, batched)
        return group, f"share the loop over {', '.join(dict.fromkeys(spent[0].values()))}"

    def updates_of_both(self, producer: Group, consumer: Group) -> list[Dependence]:
        """Pairs of updates of one element on either side: in a loop over what both sum up, lanes would not tell whose
        partial result they hold."""
        first, second = set(producer.statements), set(consumer.statements)
        ends = ((d, {d.source, d.target}) for d in self.dependences.reductions)
        return [d for d, both in ends if both & first and both & second]

    def joined_recurrences(
        self, producer: Group, consumer: Group, dependences: Sequence[Dependence], remaining: Remaining
    ) -> tuple[Group | None, str]:
        """Two recurrences in one loop that runs in order, where one row serves both and isl says so in time."""
        names = producer.statements + consumer.statements
        try:
            with operation_budget(JOIN_OPERATIONS):
                choice = choose_rows(names, _within(names, dependences), self.own_axes(names, remaining), self.tester)
        except isl.Error:
            return None, "isl does not say in time whether a row runs both recurrences in order"
        if choice is None or not choice.settles:
            return None, "no row runs both recurrences in order"
        group = Group(names, (choice.rows,), (choice.spent,), recurrent=not choice.coincident, cyclic=True)
        return group, f"run in order together: {choice.why}"

    def record(self, producer: Group, consumer: Group, between: Sequence[Dependence], fused: bool, reason: str) -> None:
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
        self, group: Group, dependences: Sequence[Dependence], remaining: Remaining, inside_parallel: bool
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

    def without_blocks_of_others(self, group: Group, remaining: Remaining) -> tuple[Group, Remaining]:
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

    def in_batches(self, group: Group, inner: Sequence[Dependence], remaining: Remaining) -> Tree:
        """A loop over batches of points, whose points are left to the loops inside, behind the recurrence's own."""
        spent = group.spent[0]
        rows = {name: row // self.batch for name, row in group.candidates[0].items()}
        self.batches |= {name: self.batches.get(name, frozenset()) | {spent[name]} for name in group.statements}
        body = self.block(group.statements, self.tester.left(inner, rows), remaining, inside_parallel=True)
        along = spent[group.statements[0]]
        shown = ", ".join(group.statements)
        self.notes.append(f"{shown}: {self.batch} points of {along} go through the steps together, and {group.batched}")
        return Loop(f"{along}_batch", tuple(rows.items()), body, coincident=True)

    def meets_itself(self, name: str) -> bool:
        """Whether points that differ in axes of the left side may update one element: `y[2*h + r]`, `y[i // 2]`."""
        statement = self.scop.statement(name)
        affine = [s for s in statement.subscripts if isinstance(s, Affine)]
        several = any(len(s.terms) > 1 or any(isinstance(atom, FloorDiv) for atom, _ in s.terms) for s in affine)
        return statement.is_update and several

    def carries_reduction(self, group: Group, rows: Mapping[str, Affine]) -> bool:
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
