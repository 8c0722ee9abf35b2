"""The proof: the final schedule, with its parallel loops, lanes and storage, computes what the equations say.

The order is read back from the isl schedule tree and the kinds of its loops alone; nothing is taken over from the
code that chose them. Claims:

- every instance of every statement runs, once, at a date of its own;
- every source of a dependence runs before its target, with no help from the order inside a parallel or vector
  loop, and no dependence was forgotten;
- two updates of one element never run at once, except as lanes or threads that are combined after the loop;
- in folded or private storage no value is overwritten between its writing and its last reading;
- every access stays inside its array, every reference of a value is an access wherever its branches are taken, and
  every element that is needed was written, by one instance.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import reduce

import islpy as isl

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, And, Compare, axes_of, axis
from polyopt.dsl.ir import Axis, Expr, Read, Where, children
from polyopt.errors import LegalityError
from polyopt.poly.dependence import Dependence, Dependences
from polyopt.poly.lifetimes import overwritten, raced, relations
from polyopt.poly.order import COMBINED, CONCURRENT, Order
from polyopt.poly.scop import Array, Scop, Statement
from polyopt.poly.space import Space, sample, simplified
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
    for statement in scop.statements:
        prover.check_dates(statement)
    prover.check_complete(dependences)
    for dependence in dependences.ordered:
        prover.check_order(dependence)
    for dependence in dependences.reductions:
        prover.check_reduction(dependence)
    prover.check_plan(storage)
    for buffer in storage.buffers:
        prover.check_buffer(buffer, dependences)
    accesses = sum(prover.check_bounds(statement) for statement in scop.statements)
    computed = [array for array in scop.arrays if array.role != "input"]
    for array in computed:
        prover.check_definitions(array)
    for statement in scop.statements:
        prover.check_references(statement)
    return Proof(
        (
            Claim("every instance runs once, at a date of its own", f"{len(scop.statements)} statements"),
            Claim("every value is made before it is used", f"{len(dependences.ordered)} dependences"),
            Claim("updates of one element never meet", f"{len(dependences.reductions)} reductions"),
            Claim("no stored value is overwritten while it is needed", f"{len(storage.buffers)} buffers"),
            Claim("every access stays inside its array, and none is left out", f"{accesses} accesses"),
            Claim("every element that is needed was written, and once", f"{len(computed)} arrays"),
        )
    )


def _references(expr: Expr, points: isl.Set, space: Space) -> Iterator[tuple[Read, isl.Set]]:
    """Each read of single elements that an expression refers to, with the points at which its branches are taken."""
    match expr:
        case Where(condition, then, otherwise):
            holds = space.condition(condition)
            yield from _references(then, points & holds, space)
            yield from _references(otherwise, points - holds, space)
            return
        case Read(subscripts=subscripts, boundary=None) if all(isinstance(s, Affine) for s in subscripts):
            yield expr, points
        case _:
            pass
    for child in children(expr):
        yield from _references(child, points, space)


@dataclass(slots=True, eq=False)
class _Prover:
    scop: Scop
    order: Order
    _boxes: dict[str, isl.Set] = field(default_factory=dict)

    def check_dates(self, statement: Statement) -> None:
        """No two instances of a statement have the same date: the loops around it tell them apart."""
        same = self.order.pairs(statement.name, statement.name)
        for step in self.order.steps[statement.name]:
            if step.row is not None:
                same = same & step.row.apply_range(step.row.reverse())
        undated = self.different(same)
        if not undated.is_empty():
            raise _pair_error(f"no loop tells two instances of '{statement.name}' apart", undated, "has the date of")

    def check_order(self, dependence: Dependence) -> None:
        late = dependence.relation - self.order.before(dependence.source, dependence.target)
        late = late.intersect_params(self.scop.context)
        if not late.is_empty():
            raise _violation(
                f"the schedule of '{self.scop.name}' breaks a {dependence.kind} dependence of '{dependence.array}'",
                dependence.relation,
                late,
                "must run before",
            )

    def check_reduction(self, dependence: Dependence) -> None:
        """No two updates of one element at once, but for the lanes or threads of one statement, which are combined."""
        source, target, together = dependence.source, dependence.target, dependence.relation
        for one, other in self.order.common(source, target):
            if one.row is None or other.row is None:
                if one.position != other.position:
                    return
                continue
            same = one.row.apply_range(other.row.reverse())
            combined = one.kind in COMBINED and self.lanes_are_combined(source, target, one.row)
            if one.kind in CONCURRENT and not combined:
                meeting = (together - same).intersect_params(self.scop.context)
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

    def check_plan(self, storage: StoragePlan) -> None:
        """Every temporary has one buffer, and nothing else has."""
        planned = sorted(buffer.array for buffer in storage.buffers)
        temporaries = sorted(array.name for array in self.scop.arrays if array.role == "local")
        if planned != temporaries:
            raise LegalityError(
                "the storage plan does not give every temporary one buffer",
                why=f"temporaries: {', '.join(temporaries)}\nbuffers for: {', '.join(planned)}",
                facts={"planned": tuple(planned), "temporaries": tuple(temporaries)},
            )

    def check_buffer(self, buffer: Storage, dependences: Dependences) -> None:
        own = [d for d in dependences.ordered if d.array == buffer.array]
        self.check_scope(buffer)
        if buffer.scope:
            self.check_private(buffer, [*own, *(d for d in dependences.reductions if d.array == buffer.array)])
        if buffer.scope or not self.is_whole(buffer):
            self.check_box(buffer)
        if buffer.is_folded:
            self.check_folding(buffer, own)

    def is_whole(self, buffer: Storage) -> bool:
        """Whether every element has its own place from the start of the array."""
        starts_at_zero = all(offset == Affine(0) for offset in buffer.offset)
        return starts_at_zero and not buffer.is_folded and buffer.extent == self.scop.array(buffer.array).shape

    def check_scope(self, buffer: Storage) -> None:
        """The loops that a private buffer names are around every statement that uses it, in the plan's order, and no
        lanes among or around them: lanes run at once in one iteration of the loops outside."""
        for statement in self.scop.users(buffer.array):
            around = [step for step in self.order.steps[statement.name] if step.row is not None]
            names = [step.loop for step in around]
            facts = {"array": buffer.array, "statement": statement.name}
            if [name for name in names if name in buffer.scope] != list(buffer.scope):
                raise LegalityError(
                    f"'{buffer.array}' is private to loops that are not around every use",
                    why=f"'{statement.name}' runs in ({', '.join(names)}), the buffer in ({', '.join(buffer.scope)})",
                    facts=facts,
                )
            inner = names.index(buffer.scope[-1]) + 1 if buffer.scope else 0
            lanes = [step.loop for step in around[:inner] if step.kind == "vector"]
            if lanes:
                raise LegalityError(
                    f"'{buffer.array}' is private to one lane",
                    why=f"all lanes of loop '{lanes[0]}' would share its buffer",
                    facts=facts,
                )
        strange = sorted({name for offset in buffer.offset for name in axes_of(offset)} - set(buffer.scope))
        if strange:
            raise LegalityError(
                f"the first element held of '{buffer.array}' depends on a loop that it is not private to",
                why=f"loop '{strange[0]}', and the buffer is private to ({', '.join(buffer.scope)})",
                facts={"array": buffer.array, "loop": strange[0]},
            )

    def check_private(self, buffer: Storage, own: list[Dependence]) -> None:
        """Every value of a private buffer is used in the iteration that made it."""
        for dependence in own:
            kept = self.order.in_one_iteration(dependence.source, dependence.target, buffer.scope[-1])
            across = (dependence.relation - kept).intersect_params(self.scop.context)
            if not across.is_empty():
                raise _violation(
                    f"'{buffer.array}' is private to an iteration but used in another",
                    dependence.relation,
                    across,
                    "must share an iteration with",
                )

    def check_box(self, buffer: Storage) -> None:
        """Every element touched lies in the box that the buffer holds; a folded dimension has all its planes."""
        for dimension, (extent, modulus) in enumerate(zip(buffer.extent, buffer.modulo, strict=True)):
            if modulus is None:
                self.check_side(buffer, dimension)
            elif modulus < 1 or not extent.is_constant or extent.constant < modulus:
                raise LegalityError(
                    f"the buffer of '{buffer.array}' has fewer planes than it is folded by",
                    why=f"{extent} planes in dimension {dimension}, folded by {modulus}",
                    facts={"array": buffer.array, "dimension": dimension},
                )

    def check_side(self, buffer: Storage, dimension: int) -> None:
        offset, inside = buffer.offset[dimension], _inside(buffer.extent[dimension], self.scop.sizes)
        for statement in self.scop.users(buffer.array):
            rows = {step.loop: step.row for step in self.order.steps[statement.name] if step.row is not None}
            outer = _offset_map(offset, buffer.scope, rows, statement, self.scop.sizes)
            for relation in relations(statement, buffer.array):
                line = subscript_relation(relation, dimension)
                both = line.flat_range_product(outer.intersect_domain(relation.domain())).range()
                outside = (both - inside).intersect_params(self.scop.context)
                if not outside.is_empty():
                    raise LegalityError(
                        f"the buffer of '{buffer.array}' is too small in dimension {dimension}",
                        why=f"element and first element held: {sample(outside)}",
                        facts={"array": buffer.array, "statement": statement.name},
                    )

    def check_folding(self, buffer: Storage, own: list[Dependence]) -> None:
        """No other element of the same cell is written between a value's writing and its reading, or at the same time
        as one that nothing reads."""
        found = overwritten(buffer.array, buffer.modulo, own, self.order)
        if found is not None:
            dependence, lost = found
            raise _violation(
                f"folding '{buffer.array}' overwrites a value that is still needed",
                dependence.relation,
                lost,
                "is overwritten before",
            )
        pairs = raced(buffer.array, buffer.modulo, self.order)
        if pairs is not None:
            raise _pair_error(f"two elements of '{buffer.array}' share a cell and are written at once", pairs, "and")

    # -- elements ----------------------------------------------------------------------------------------------

    def check_definitions(self, array: Array) -> None:
        """No element has two values, and every one that is read, updated or returned has one."""
        definitions = [s for s in self.scop.writers(array.name) if not s.is_update]
        for number, first in enumerate(definitions):
            for second in definitions[number:]:
                twice = self.different(first.write.apply_range(second.write.reverse()))
                if not twice.is_empty():
                    raise _pair_error(
                        f"an element of '{array.name}' is defined twice", twice, "writes what is written by"
                    )
        if self.is_defined_whole(array, definitions):
            return
        for elements in self.used_elements(array):
            for definition in definitions:
                elements = elements - definition.write.range()
            missing = elements.intersect_params(self.scop.context)
            if not missing.is_empty():
                raise LegalityError(
                    f"an element of '{array.name}' is used but never written",
                    why=f"for example {array.name}{sample(missing)}",
                    facts={"array": array.name, "element": sample(missing)},
                )

    def is_defined_whole(self, array: Array, definitions: Sequence[Statement]) -> bool:
        """Whether every element of the array is defined. `check_bounds` has shown that no other one is used, so no
        reference needs a look of its own; those that are divisions and cases cost isl seconds."""
        gap = self.box(array.name).intersect_params(self.scop.context)
        for definition in definitions:
            gap = gap - definition.write.range()
        return bool(gap.is_empty())

    def used_elements(self, array: Array) -> Iterator[isl.Set]:
        """The elements that need a value, reference by reference."""
        for statement in self.scop.users(array.name):
            yield from (relation.range() for read, relation in statement.references if read == array.name)
            if statement.is_update and statement.array == array.name:
                yield statement.write.range()
        if array.role == "output":
            yield self.box(array.name)

    def check_references(self, statement: Statement) -> None:
        """What a value refers to is read, as dependences have it, at every point where it is referred to."""
        accesses: dict[Read, list[isl.Set]] = {}
        for access in statement.reads:
            accesses.setdefault(access.read, []).append(access.relation.domain())
        known = {read: reduce(isl.Set.union, own) for read, own in accesses.items()}
        space = Space(statement.name, statement.axes, self.scop.sizes)
        for read, points in _references(statement.value, statement.domain, space):
            own = known.get(read, isl.Set.empty(points.get_space()))
            left_out = points.intersect_params(self.scop.context) - own
            if not left_out.is_empty():
                raise LegalityError(
                    f"a reference of '{statement.name}' to '{read.tensor}' is no access",
                    why=f"at {sample(left_out)}",
                    facts={"statement": statement.name, "array": read.tensor},
                )

    def check_bounds(self, statement: Statement) -> int:
        """Every access of a statement stays in its array; gives the number of accesses."""
        for array, relation in (*statement.references, (statement.array, statement.write)):
            outside = relation.subtract_range(self.box(array)).intersect_params(self.scop.context)
            if not outside.is_empty():
                raise LegalityError(
                    f"statement '{statement.name}' reaches outside '{array}'",
                    where=statement.span,
                    why=f"for example {sample(outside.wrap())}",
                    facts={"array": array, "statement": statement.name},
                )
        return len(statement.reads) + 1

    def box(self, array: str) -> isl.Set:
        """All elements of an array."""
        if array not in self._boxes:
            self._boxes[array] = self._box(array)
        return self._boxes[array]

    def _box(self, array: str) -> isl.Set:
        shape = self.scop.array(array).shape
        names = tuple(f"d{d}" for d in range(len(shape)))
        axes = [Axis(name, (Affine(0),), (extent,)) for name, extent in zip(names, shape, strict=True)]
        return Space(array, names, self.scop.sizes).box(axes)

    def different(self, pairs: isl.Map) -> isl.Map:
        """The pairs of two different instances."""
        pairs = pairs.intersect_params(self.scop.context)
        same = pairs.get_tuple_name(isl.dim_type.in_) == pairs.get_tuple_name(isl.dim_type.out)
        return pairs - isl.Map.identity(pairs.get_space()) if same else pairs

    # -- dependences -------------------------------------------------------------------------------------------

    def check_complete(self, dependences: Dependences) -> None:
        """Every two instances that touch one element, one of them writing it, are among the dependences."""
        ordered = _by_pair(dependences.ordered)
        either = _by_pair((*dependences.ordered, *dependences.reductions))
        for target in self.scop.statements:
            for array, read in target.references:
                for source in self.scop.writers(array):
                    self.check_known(source.write.apply_range(read.reverse()), ordered)
            if target.is_update:
                for source in self.scop.writers(target.array):
                    pairs = self.different(source.write.apply_range(target.write.reverse()))
                    self.check_known(pairs, either if source.is_update else ordered, unordered=source.is_update)

    def check_known(self, pairs: isl.Map, known: Mapping[tuple[str, str], isl.Map], *, unordered: bool = False) -> None:
        if pairs.is_empty():
            return
        names = pairs.get_tuple_name(isl.dim_type.in_), pairs.get_tuple_name(isl.dim_type.out)
        forgotten = simplified(pairs)
        if names in known:
            forgotten = forgotten - known[names]
        if unordered and names[::-1] in known:
            forgotten = forgotten - known[names[::-1]].reverse()
        forgotten = forgotten.intersect_params(self.scop.context)
        if not forgotten.is_empty():
            raise _pair_error("a dependence was forgotten", forgotten, "touches an element of")


def _by_pair(dependences: Iterable[Dependence]) -> dict[tuple[str, str], isl.Map]:
    """The union of the relations of each pair of statements."""
    found: dict[tuple[str, str], isl.Map] = {}
    for dependence in dependences:
        pair = dependence.source, dependence.target
        found[pair] = found[pair] | dependence.relation if pair in found else dependence.relation
    return found


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
    return _pair_error(what, pairs, verb, f"dependence   {relation}\n")


def _pair_error(what: str, pairs: isl.Map, verb: str, preface: str = "") -> LegalityError:
    """The error that shows one of the offending pairs of instances."""
    source = sample(pairs.domain())
    assert source is not None, "there is a pair"
    target = sample(_from_instance(pairs, source).range())
    first, second = pairs.get_tuple_name(isl.dim_type.in_), pairs.get_tuple_name(isl.dim_type.out)
    return LegalityError(
        what,
        why=f"{preface}for example  {first}{source} {verb} {second}{target}",
        facts={"source": (first, source), "target": (second, target)},
    )


def _from_instance(pairs: isl.Map, source: Mapping[str, int]) -> isl.Map:
    """The pairs of one source, at the sizes for which it was found."""
    for kind in (isl.dim_type.param, isl.dim_type.in_):
        for position in range(pairs.dim(kind)):
            name = pairs.get_dim_name(kind, position) or f"_{position}"
            pairs = pairs.fix_val(kind, position, isl.Val(source[name]))
    return pairs
