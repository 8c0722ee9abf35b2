"""The proof: the final schedule, with its parallel loops, lanes and storage, computes what the equations say.

The order is read back from the isl schedule tree and the kinds of its loops alone; nothing is taken over from the
code that chose them. Claims:

- every source of a dependence runs before its target, with no help from the order inside a parallel or vector
  loop;
- two updates of one element never run at once, except as lanes that are combined after the loop;
- in folded or private storage no value is overwritten between its writing and its last reading;
- every access stays inside its array, and every element that is read was written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import islpy as isl

from polyopt.dsl.affine import Affine, And, Compare, axes_of, axis
from polyopt.dsl.ir import Axis
from polyopt.errors import LegalityError
from polyopt.poly.dependence import Dependence, Dependences
from polyopt.poly.lifetimes import overwritten, relations
from polyopt.poly.order import CONCURRENT, Order
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.space import Space, sample
from polyopt.poly.storage import Storage, StoragePlan, subscript_relation
from polyopt.poly.tree import LoopKind


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
    prover = _Prover(scop, Order.of(scop, schedule, kinds))
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
            Claim("every element that is read was written", f"{prover.check_coverage()} arrays"),
        )
    )


@dataclass(slots=True, eq=False)
class _Prover:
    scop: Scop
    order: Order

    def check_order(self, dependence: Dependence) -> None:
        late = dependence.relation - self.order.before(dependence.source, dependence.target)
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
        together = self.order.pairs(source, target)
        for one, other in self.order.common(source, target):
            if one.row is None or other.row is None:
                if one.position != other.position:
                    break
                continue
            same = one.row.apply_range(other.row.reverse())
            combined = one.kind == "vector" and self.lanes_are_combined(source, target, one.row)
            if one.kind in CONCURRENT and not combined:
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
        scanned = {axis for n, axis in enumerate(statement.axes) if row.involves_dims(isl.dim_type.in_, n, 1)}
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
            for one, other in self.order.common(dependence.source, dependence.target):
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
            rows = {step.loop: step.row for step in self.order.steps[statement.name] if step.row is not None}
            for relation in relations(statement, buffer.array):
                for dimension, (offset, extent) in enumerate(zip(buffer.offset, buffer.extent, strict=True)):
                    line = subscript_relation(relation, dimension)
                    outer = _offset_map(offset, buffer.scope, rows, statement, self.scop.sizes)
                    both = line.flat_range_product(outer.intersect_domain(relation.domain())).range()
                    inside = _inside(extent, self.scop.sizes)
                    outside = (both - inside).intersect_params(self.scop.context)
                    if not outside.is_empty():
                        raise LegalityError(
                            f"the buffer of '{buffer.array}' is too small in dimension {dimension}",
                            why=f"element and first element held: {sample(outside)}",
                            facts={"array": buffer.array, "statement": statement.name},
                        )

    def check_folding(self, buffer: Storage, own: list[Dependence]) -> None:
        """No other element of the same cell is written between a value's writing and its reading."""
        found = overwritten(buffer.array, buffer.modulo, own, self.order)
        if found is not None:
            dependence, lost = found
            raise _violation(
                f"folding '{buffer.array}' overwrites a value that is still needed",
                dependence.relation,
                lost,
                "is overwritten before",
            )

    def check_coverage(self) -> int:
        """Every element of a temporary that is read is written; gives the number of temporaries."""
        temporaries = [array.name for array in self.scop.arrays if array.role == "local"]
        for name in temporaries:
            reads = [a.relation.range() for s in self.scop.statements for a in s.reads if a.read.tensor == name]
            written = [s.write.range() for s in self.scop.writers(name)]
            for elements in reads:
                for one in written:
                    elements = elements - one
                missing = elements.intersect_params(self.scop.context)
                if not missing.is_empty():
                    raise LegalityError(
                        f"an element of '{name}' is read but never written",
                        why=f"for example {sample(missing)}",
                        facts={"array": name},
                    )
        return len(temporaries)

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


def _violation(what: str, relation: isl.Map, pairs: isl.Map, verb: str) -> LegalityError:
    source = sample(pairs.domain())
    target = sample(pairs.intersect_domain(isl.Set.from_point(pairs.domain().sample_point())).range())
    first, second = pairs.get_tuple_name(isl.dim_type.in_), pairs.get_tuple_name(isl.dim_type.out)
    return LegalityError(
        what,
        why=f"dependence   {relation}\nfor example  {first}{source} {verb} {second}{target}",
        facts={"source": (first, source), "target": (second, target)},
    )
