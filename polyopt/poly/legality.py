"""The proof: the final schedule, with its parallel loops, lanes and storage, computes what the equations say.

The order is read back from the isl schedule tree and the kinds of its loops alone; nothing is taken over from the
code that chose them. Claims:

- every source of a dependence runs before its target, with no help from the order inside a parallel or vector
  loop;
- two updates of one element never run at once, except as lanes that are combined after the loop;
- in folded or private storage no value is overwritten between its writing and its last reading;
- every access stays inside its array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import islpy as isl

from polyopt.dsl.affine import Affine, And, Compare, axes_of, axis
from polyopt.dsl.ir import Axis
from polyopt.errors import LegalityError
from polyopt.poly.dependence import Dependence, Dependences
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.space import Space, sample
from polyopt.poly.storage import Storage, StoragePlan
from polyopt.poly.tree import LoopKind

_NODE = isl.schedule_node_type
_CONCURRENT = ("parallel", "vector")


@dataclass(frozen=True, slots=True)
class Claim:
    """One thing that was proved. detail: how many facts it rests on."""

    name: str
    detail: str

    def __str__(self) -> str:
        return f"proved: {self.name} ({self.detail})"


@dataclass(frozen=True, slots=True)
class Proof:
    """The ledger of a kernel's claims."""

    claims: tuple[Claim, ...]

    def __str__(self) -> str:
        return "\n".join(str(claim) for claim in self.claims)


@dataclass(frozen=True, slots=True, eq=False)
class _Step:
    """One coordinate of an instance's date: a loop's row, or a position in a sequence.

    loop: the loop's name; empty for a sequence
    row:  `{ S[x] -> [value] }`; None for a sequence
    """

    loop: str
    kind: LoopKind
    row: isl.Map | None
    position: int = 0


def prove(
    scop: Scop,
    dependences: Dependences,
    schedule: isl.Schedule,
    kinds: Mapping[str, LoopKind],
    storage: StoragePlan,
) -> Proof:
    """Checks every claim; raises `LegalityError` with a violating pair of instances.

    kinds: by loop name, as the marks of the schedule name them; an unknown mark is an error of ours
    """
    prover = _Prover(scop, {s.name: _steps(schedule.get_root().child(0), s.name, kinds) for s in scop.statements})
    for dependence in dependences.ordered:
        prover.check_order(dependence)
    for dependence in dependences.reductions:
        prover.check_reduction(dependence)
    for buffer in storage.buffers:
        prover.check_lifetimes(buffer, dependences)
    accesses = sum(prover.check_bounds(statement) for statement in scop.statements)
    return Proof(
        (
            Claim("every value is made before it is used", f"{len(dependences.ordered)} dependences"),
            Claim("updates of one element never meet", f"{len(dependences.reductions)} reductions"),
            Claim("no stored value is overwritten while it is needed", f"{len(storage.buffers)} buffers"),
            Claim("every access stays inside its array", f"{accesses} accesses"),
        )
    )


def _steps(node: isl.ScheduleNode, name: str, kinds: Mapping[str, LoopKind]) -> tuple[_Step, ...]:
    """The date of a statement's instances: what stands on the way from the root of the schedule tree to it."""
    steps: list[_Step] = []
    mark = ""
    while (kind := node.get_type()) != _NODE.leaf:
        if kind == _NODE.mark:
            mark = node.mark_get_id().get_name()
            node = node.child(0)
        elif kind == _NODE.band:
            assert node.band_n_member() == 1 and mark in kinds, "every loop is one band under its own mark"
            rows = isl.UnionMap.from_multi_union_pw_aff(node.band_get_partial_schedule())
            steps.append(_Step(mark, kinds[mark], _of_statement(rows, name)))
            node = node.child(0)
        elif kind in (_NODE.sequence, _NODE.set):
            position = next(n for n in range(node.n_children()) if name in _names(node.child(n).filter_get_filter()))
            steps.append(_Step("", "serial", None, position))
            node = node.child(position).child(0)
        else:
            raise LegalityError("the schedule has a node that cannot be read back", why=str(kind))
    return tuple(steps)


def _names(domain: isl.UnionSet) -> set[str]:
    sets = domain.get_set_list()
    return {sets.get_at(n).get_tuple_name() for n in range(sets.n_set())}


def _of_statement(rows: isl.UnionMap, name: str) -> isl.Map:
    maps = rows.get_map_list()
    found = (maps.get_at(n) for n in range(maps.n_map()))
    return next(m for m in found if m.get_tuple_name(isl.dim_type.in_) == name)


@dataclass(slots=True, eq=False)
class _Prover:
    scop: Scop
    steps: Mapping[str, tuple[_Step, ...]]
    _orders: dict[tuple[str, str], isl.Map] = field(default_factory=dict)

    # -- order -------------------------------------------------------------------------------------------------

    def before(self, first: str, second: str) -> isl.Map:
        """`{ first[x] -> second[y] : x surely runs before y }`"""
        if (first, second) not in self._orders:
            self._orders[first, second] = self._before(first, second)
        return self._orders[first, second]

    def _before(self, first: str, second: str) -> isl.Map:
        together = self.pairs(first, second)
        ordered = together - together
        for one, other in self.common(first, second):
            if one.row is None or other.row is None:
                if one.position < other.position:
                    ordered = ordered | together
                if one.position != other.position:
                    break
                continue
            if one.kind not in _CONCURRENT:
                ordered = ordered | (together & _rows_related(one.row, other.row, isl.Map.lex_lt))
            together = together & one.row.apply_range(other.row.reverse())
        return ordered

    def pairs(self, first: str, second: str) -> isl.Map:
        return isl.Map.from_domain_and_range(self.scop.statement(first).domain, self.scop.statement(second).domain)

    def common(self, first: str, second: str) -> Iterator[tuple[_Step, _Step]]:
        """The steps shared by two statements, up to the sequence where they part."""
        for one, other in zip(self.steps[first], self.steps[second], strict=False):
            yield one, other
            if one.row is None and one.position != other.position:
                return

    def check_order(self, dependence: Dependence) -> None:
        late = dependence.relation - self.before(dependence.source, dependence.target)
        if not late.is_empty():
            raise _violation(
                f"the schedule of '{self.scop.name}' breaks a {dependence.kind} dependence of '{dependence.array}'",
                dependence.relation,
                late,
                "must run before",
            )

    def check_reduction(self, dependence: Dependence) -> None:
        """No two updates of one element at once, but for the lanes of one statement, which are combined."""
        source, target = dependence.source, dependence.target
        together = self.pairs(source, target)
        for one, other in self.common(source, target):
            if one.row is None or other.row is None:
                if one.position != other.position:
                    break
                continue
            same = one.row.apply_range(other.row.reverse())
            if one.kind == "parallel" or (one.kind == "vector" and not self.lanes_are_combined(source, target, one.row)):
                meeting = (dependence.relation & together) - same
                if not meeting.is_empty():
                    raise _violation(
                        f"two updates of '{dependence.array}' run at once in {one.kind} loop '{one.loop}'",
                        dependence.relation,
                        meeting,
                        "must not run at the same time as",
                    )
            together = together & same

    def lanes_are_combined(self, source: str, target: str, row: isl.Map) -> bool:
        """Whether all lanes update one element known before the loop."""
        statement = self.scop.statement(source)
        if source != target:
            return False
        scanned = {
            axis for n, axis in enumerate(statement.axes) if row.involves_dims(isl.dim_type.in_, n, 1)
        }
        return all(isinstance(s, Affine) and not axes_of(s) & scanned for s in statement.subscripts)

    # -- storage -----------------------------------------------------------------------------------------------

    def check_lifetimes(self, buffer: Storage, dependences: Dependences) -> None:
        own = [d for d in dependences.ordered if d.array == buffer.array]
        if buffer.scope:
            self.check_private(buffer, [*own, *(d for d in dependences.reductions if d.array == buffer.array)])
            self.check_box(buffer)
        if buffer.is_folded:
            self.check_folding(buffer, own)

    def check_private(self, buffer: Storage, own: list[Dependence]) -> None:
        """Every value of a private buffer is used in the iteration that made it."""
        for dependence in own:
            apart = dependence.relation
            for one, other in self.common(dependence.source, dependence.target):
                if one.row is not None and other.row is not None and one.loop in buffer.scope:
                    apart = apart & one.row.apply_range(other.row.reverse())
            across = dependence.relation - apart
            if not across.is_empty():
                raise _violation(
                    f"'{buffer.array}' is private to an iteration but used in another",
                    dependence.relation,
                    across,
                    "must share an iteration with",
                )

    def check_box(self, buffer: Storage) -> None:
        """Every element touched lies in the box that a private buffer holds."""
        for statement in self.scop.statements:
            rows = {step.loop: step.row for step in self.steps[statement.name] if step.row is not None}
            for relation in self.relations(statement, buffer.array):
                for dimension, (offset, extent) in enumerate(zip(buffer.offset, buffer.extent, strict=True)):
                    line = _dimension(relation, dimension)
                    outer = _offset_map(offset, buffer.scope, rows, statement, self.scop.sizes)
                    both = line.flat_range_product(outer.intersect_domain(relation.domain())).range()
                    inside = _inside(extent, self.scop.sizes)
                    outside = both - inside
                    if not outside.is_empty():
                        raise LegalityError(
                            f"the buffer of '{buffer.array}' is too small in dimension {dimension}",
                            why=f"element and first element held: {sample(outside)}",
                            facts={"array": buffer.array, "statement": statement.name},
                        )

    def check_folding(self, buffer: Storage, own: list[Dependence]) -> None:
        """No other element of the same cell is written between a value's writing and its reading."""
        cell = _folding(buffer, self.scop)
        for dependence in own:
            source, target = self.scop.statement(dependence.source), self.scop.statement(dependence.target)
            read = _union(self.relations(target, buffer.array))
            for other in self.scop.writers(buffer.array):
                clash_source = _clash(other.write, source.write, cell) - self.before(other.name, source.name)
                clash_target = _clash(other.write, read, cell) - self.before(target.name, other.name).reverse()
                lost = clash_source.reverse().apply_range(clash_target) & dependence.relation
                if not lost.is_empty():
                    raise _violation(
                        f"folding '{buffer.array}' overwrites a value that is still needed",
                        dependence.relation,
                        lost,
                        "is overwritten before",
                    )

    def relations(self, statement: Statement, array: str) -> list[isl.Map]:
        found = [access.relation for access in statement.reads if access.read.tensor == array]
        return [*found, statement.write] if statement.array == array else found

    def check_bounds(self, statement: Statement) -> int:
        """Every access of a statement stays in its array; gives the number of accesses."""
        arrays = {array.name: array for array in self.scop.arrays}
        accesses = [(a.read.tensor, a.relation) for a in statement.reads] + [(statement.array, statement.write)]
        for array, relation in accesses:
            names = tuple(f"d{d}" for d in range(len(arrays[array].shape)))
            space = Space(array, names, self.scop.sizes)
            box = space.universe()
            for name, extent in zip(names, arrays[array].shape, strict=True):
                box = box & space.box([Axis(name, (Affine(0),), (extent,))])
            outside = relation.subtract_range(box).intersect_params(self.scop.context)
            if not outside.is_empty():
                raise LegalityError(
                    f"statement '{statement.name}' reaches outside '{array}'",
                    where=statement.span,
                    why=f"for example {sample(outside.wrap())}",
                    facts={"array": array, "statement": statement.name},
                )
        return len(accesses)


def _rows_related(first: isl.Map, second: isl.Map, relate: Callable[[isl.Space], isl.Map]) -> isl.Map:
    return first.apply_range(relate(first.get_space().range())).apply_range(second.reverse())


def _dimension(relation: isl.Map, dimension: int) -> isl.Map:
    """The relation to one subscript alone."""
    rank = relation.dim(isl.dim_type.out)
    relation = relation.reset_tuple_id(isl.dim_type.out)
    relation = relation.project_out(isl.dim_type.out, dimension + 1, rank - dimension - 1)
    return relation.project_out(isl.dim_type.out, 0, dimension)


def _offset_map(
    offset: Affine, scope: tuple[str, ...], rows: Mapping[str, isl.Map], statement: Statement, sizes: tuple[str, ...]
) -> isl.Map:
    """`{ S[x] -> [offset at x's rows] }`"""
    outer = isl.Map.from_domain_and_range(
        Space(statement.name, statement.axes, sizes).universe(), Space("", (), sizes).universe()
    )
    for loop in scope:
        outer = outer.flat_range_product(rows[loop])
    return outer.apply_range(isl.Map.from_aff(Space("", scope, sizes).aff(offset)))


def _inside(extent: Affine, sizes: tuple[str, ...]) -> isl.Set:
    """`{ [element, first] : 0 <= element - first < extent }`"""
    space = Space("", ("element", "first"), sizes)
    held = axis("element") - axis("first")
    return space.condition(And((Compare(held, ">="), Compare(held - extent, "<"))))


def _folding(buffer: Storage, scop: Scop) -> isl.Map:
    """`{ A[e] -> [cell] }`"""
    names = tuple(f"d{d}" for d in range(len(buffer.extent)))
    space = Space(buffer.array, names, scop.sizes)
    result = isl.Map.from_domain_and_range(space.universe(), Space("", (), scop.sizes).universe())
    for name, modulus in zip(names, buffer.modulo, strict=True):
        subscript = axis(name) if modulus is None else axis(name) % modulus
        result = result.flat_range_product(isl.Map.from_aff(space.aff(subscript)))
    return result


def _clash(first: isl.Map, second: isl.Map, cell: isl.Map) -> isl.Map:
    """Pairs of instances that touch different elements of one cell."""
    same_cell = cell.apply_range(cell.reverse())
    different = same_cell - isl.Map.identity(same_cell.get_space())
    return first.apply_range(different).apply_range(second.reverse())


def _union(relations: list[isl.Map]) -> isl.Map:
    result = relations[0]
    for other in relations[1:]:
        result = result | other
    return result


def _violation(what: str, relation: isl.Map, pairs: isl.Map, verb: str) -> LegalityError:
    source = sample(pairs.domain())
    target = sample(pairs.intersect_domain(isl.Set.from_point(pairs.domain().sample_point())).range())
    first, second = pairs.get_tuple_name(isl.dim_type.in_), pairs.get_tuple_name(isl.dim_type.out)
    return LegalityError(
        what,
        why=f"dependence   {relation}\nfor example  {first}{source} {verb} {second}{target}",
        facts={"source": (first, source), "target": (second, target)},
    )
