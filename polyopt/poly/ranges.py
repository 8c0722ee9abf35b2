"""Index ranges and shapes of a program: what the equations leave unsaid, as far as they determine it.

An explicit range wins. An index that stands alone as a subscript of a parameter, or of a tensor with `shape=`, fits
that extent; beyond that it has the largest interval for which every read is in bounds. Equations whose own
parameters leave an index open take the extents of tensors that other definitions determined, until nothing changes.
Most programs are settled by arithmetic on bounds; isl is asked where guards or floors stand in the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Literal

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import (
    TRUE,
    Affine,
    Compare,
    Condition,
    axes_of,
    condition_affines,
    is_axis,
    is_nonnegative,
)
from polyopt.errors import DefinitionError, ShapeError, Span
from polyopt.poly import checks
from polyopt.poly.contexts import element_text, read_contexts, reduce_contexts, replace_axes
from polyopt.poly.coverage import reach
from polyopt.poly.intervals import as_range, is_within, narrowed, window
from polyopt.poly.projection import largest_interval, sizes_of_other_ranges
from polyopt.poly.proof import decided, place, point_text
from polyopt.poly.shapes import Extents
from polyopt.poly.space import Point

Key = tuple[int, str]
"""An axis of an equation: its binder (`contexts.Scope`) and its name."""

Trust = Literal["final", "settled", "own", "any"]
"""Which inferred extents count: those that cannot change; also the own tensor's for an index of the left side, where no
definition that is open reaches further; also the own tensor's as it is so far; or all known ones."""

_Source = tuple[str, int, bool]
"""A dimension of a tensor that a range was taken from, and whether without guards (`Extents.unguarded`)."""


def resolve(program: ir.Program) -> ir.Program:
    """The program with every range and shape filled in, proved to be in bounds and covered.

    `conditions` gains what the symbolic sizes must fulfil. Raises `ShapeError`, `DefinitionError` or `BoundsError`.
    """
    resolved = infer(program)
    conditions = dict.fromkeys(resolved.conditions + checks.check(resolved))
    return replace(resolved, conditions=tuple(conditions))


def infer(program: ir.Program) -> ir.Program:
    """The program with every range and shape filled in; nothing is proved yet."""
    extents = Extents(program)
    states = [_State(equation, program.sizes) for equation in program.equations]
    bases = [state.agree_on_own(extents) for state in states]
    for state, base in zip(states, bases, strict=True):
        state.use_own_parameters(base, extents)
    _use_inferred_extents(states, extents)
    for state in states:
        state.agree_on_all(extents)
    for agreement in program.agreements:
        extents.agree(agreement)
    resolved = tuple(state.resolved(extents) for state in states)
    tensors = tuple(replace(tensor, shape=extents.shape(tensor)) for tensor in program.tensors)
    return replace(program, equations=resolved, tensors=tensors, conditions=extents.conditions(), agreements=())


def _use_inferred_extents(states: Sequence[_State], extents: Extents) -> None:
    """Determines what is still open from the extents of defined tensors, until nothing changes.

    Extents that are final come first. Where all that is open waits, an equation may take the extent that the other
    definitions give its own tensor (a recurrence), and only then that of another unfinished tensor.
    """
    known = {state.equation.name: state.known for state in states}
    extents.update(known, known)
    while open_states := [state for state in states if state.pending]:
        changed = {state.equation.name for state in open_states if state.advance(extents, "final")}
        if not changed:
            trusts: tuple[Trust, ...] = ("settled", "own", "any")
            if not any(state.advance(extents, trust) for trust in trusts for state in open_states):
                raise open_states[0].undetermined()
        extents.update(known, changed or known)
    for state in states:
        state.confirm(extents)


@dataclass(frozen=True, slots=True)
class _Use:
    """A subscript that may determine an axis.

    keys:     the axes in scope, by name
    is_alone: whether the subscript is an axis and nothing else
    is_exact: whether the element must exist as written: not a read with a boundary
    """

    tensor: str
    dimension: int
    subscript: Affine
    condition: Condition
    keys: Mapping[str, Key]
    is_alone: bool
    is_exact: bool
    text: str
    span: Span | None

    def axes(self) -> frozenset[Key]:
        return frozenset(self.keys[name] for name in axes_of(self.subscript))

    def guard_axes(self) -> frozenset[Key]:
        return frozenset(self.keys[name] for part in condition_affines(self.condition) for name in axes_of(part))


def _uses(equation: ir.Equation) -> Iterator[_Use]:
    """The left side's subscripts that stand alone, then all affine subscripts of reads that may determine an axis."""
    scope = reach(equation)
    keys = {axis.name: (0, axis.name) for axis in scope.axes}
    text = element_text(equation.tensor, equation.subscripts)
    for dimension, subscript in enumerate(equation.subscripts):
        if isinstance(subscript, Affine) and is_axis(subscript):
            yield _Use(equation.tensor, dimension, subscript, scope.condition, keys, True, True, text, equation.span)
    for context in read_contexts(equation):
        read = context.read
        keys = {
            axis.name: (binder, axis.name) for axis, binder in zip(context.axes, context.scope.binders, strict=True)
        }
        text = element_text(read.tensor, read.subscripts)
        for dimension, subscript in enumerate(read.subscripts):
            if not isinstance(subscript, Affine) or not axes_of(subscript):
                continue
            alone, exact = is_axis(subscript), read.boundary is None
            if alone or exact:
                yield _Use(read.tensor, dimension, subscript, context.condition, keys, alone, exact, text, read.span)


@dataclass(slots=True)
class _State:
    """What is known of the axes of one equation so far.

    known:    the ranges found
    explicit: axes with a range that the user gave
    pending:  axes without a range, in order of appearance
    borrowed: which inferred extents each axis was determined from
    stuck:    what was known when extents that are final determined no axis; None where they did
    """

    equation: ir.Equation
    sizes: tuple[str, ...]
    known: dict[Key, ir.Axis] = field(default_factory=dict)
    explicit: frozenset[Key] = frozenset()
    pending: list[Key] = field(default_factory=list)
    uses: tuple[_Use, ...] = ()
    borrowed: dict[Key, dict[_Source, Affine]] = field(default_factory=dict)
    stuck: object = None

    def __post_init__(self) -> None:
        axes = [(0, axis) for axis in self.equation.all_axes]
        for context in reduce_contexts(self.equation):
            axes += [(context.binder, axis) for axis in context.reduction.axes]
        for binder, axis in axes:
            if axis.is_resolved:
                self.known[binder, axis.name] = as_range(axis.name, axis.lower, axis.upper)
            else:
                self.pending.append((binder, axis.name))
        self.explicit = frozenset(self.known)
        if self.pending:
            self.uses = tuple(_uses(self.equation))

    # --- from the equation's own parameters ---

    def agree_on_own(self, extents: Extents) -> dict[Key, Affine]:
        """The extents of axes that stand alone in parameters and tensors with `shape=`, all of which must agree."""
        own = [use for use in self.uses if extents.is_fixed(use.tensor)]
        return self._agree(own, self.pending, extents)

    def use_own_parameters(self, bases: Mapping[Key, Affine], extents: Extents) -> None:
        """Determines what parameters and tensors with `shape=` determine."""
        own = [use for use in self.uses if extents.is_fixed(use.tensor)]
        self._use_bases(bases, own, extents)
        while self._determine_one(lambda use, _: use in own, extents):
            pass

    def _agree(self, uses: Sequence[_Use], keys: Sequence[Key], extents: Extents) -> dict[Key, Affine]:
        alone: dict[Key, list[_Use]] = {}
        for use in uses:
            for key in use.axes() if use.is_alone else ():
                if key in keys:
                    alone.setdefault(key, []).append(use)
        return {key: _agreed(self.equation, key[1], found, extents) for key, found in alone.items()}

    def _use_bases(self, bases: Mapping[Key, Affine], own: Sequence[_Use], extents: Extents) -> None:
        """Each axis that stands alone has its extent, narrowed by the reads that depend on no other such axis."""
        full = {key: extents.axis(as_range(key[1], (Affine(0),), (extent,))) for key, extent in bases.items()}
        self.known.update(full)
        self.pending = [key for key in self.pending if key not in bases]
        for key, axis in full.items():
            narrowing = [
                use for use in own if use.is_exact and not use.is_alone and key in use.axes() <= self.explicit | {key}
            ]
            if narrowing:
                found = self._interval(key, axis, narrowing, extents)
                assert found is not None, "an axis with an extent has a range"
                self.known[key] = found

    # --- from inferred extents ---

    def advance(self, extents: Extents, trust: Trust) -> bool:
        """Determines axes from the extents that are trusted; an axis waits for all other tensors it depends on."""
        final = [extents.get(use.tensor, use.dimension, final=True) for use in self.uses] if trust == "final" else []
        state = (final, tuple(self.pending), extents.demands)
        if trust == "final" and state == self.stuck:
            return False
        waiting = {
            key
            for use in self.uses
            for key in use.axes()
            if use.tensor != self.equation.tensor and not self._is_trusted(use, key, extents, trust)
        }
        progress = False
        while self._determine_one(
            lambda use, key: self._is_trusted(use, key, extents, trust),
            extents,
            frozenset() if trust == "any" else frozenset(waiting),
        ):
            progress = True
        if trust == "final":
            self.stuck = None if progress else state
        return progress

    def _is_trusted(self, use: _Use, key: Key, extents: Extents, trust: Trust) -> bool:
        if self._takes_unguarded(use, key) and trust != "final":
            known = extents.unguarded(use.tensor, use.dimension) is not None
            return known and (trust != "settled" or extents.is_settled(use.tensor, use.dimension))
        lenient = trust == "any" or (trust == "own" and use.tensor == self.equation.tensor)
        return extents.get(use.tensor, use.dimension, final=not lenient) is not None

    def _takes_unguarded(self, use: _Use, key: Key) -> bool:
        """Whether an index ends where its own tensor does without the guards of the other definitions.

        So does one of the left side, which says what elements there are. A sum over the tensor, and what is read with a
        boundary, end where the elements do.
        """
        is_left = key in {(0, axis.name) for axis in self.equation.axes}
        return is_left and use.is_exact and use.tensor == self.equation.tensor

    def _determine_one(
        self, is_usable: Callable[[_Use, Key], bool], extents: Extents, waiting: frozenset[Key] = frozenset()
    ) -> bool:
        """Determines one pending axis; first choice is one whose reads involve nothing else that is open."""
        candidates: list[tuple[int, Key, list[_Use]]] = []
        for key in self.pending:
            if key in waiting:
                continue
            mentions = [use for use in self.uses if key in use.axes() and is_usable(use, key)]
            others = set(self.pending) - {key}
            usable = [use for use in mentions if not use.axes() & others]
            if usable:
                blocked = sum(bool((use.axes() | use.guard_axes()) & others) for use in mentions)
                candidates.append((blocked, key, usable))
        for _, key, usable in sorted(candidates, key=lambda candidate: candidate[0]):
            if self.equation.is_whole:
                self._agree([use for use in usable if use.tensor != self.equation.tensor], [key], extents)
            found = self._interval(key, None, usable, extents)
            if found is not None:
                self._borrow(key, usable, extents)
                self.known[key] = self._from_zero(key, found)
                self.pending.remove(key)
                return True
        return False

    def _borrow(self, key: Key, uses: Sequence[_Use], extents: Extents) -> None:
        """Notes the inferred extents that an axis was determined from; those that may still grow, or that guards may
        leave without an element, must be reached."""
        inferred = [use for use in uses if not extents.is_fixed(use.tensor)]
        self.borrowed[key] = {
            (use.tensor, use.dimension, self._takes_unguarded(use, key)): self._extent(use, key, extents)
            for use in inferred
        }
        for (tensor, dimension, is_unguarded), extent in self.borrowed[key].items():
            error = partial(self._unreached, key, (tensor, dimension), extent)
            if is_unguarded:
                extents.take_unguarded(self.equation, key[1], dimension, error)
            elif extents.get(tensor, dimension, final=True) is None or extents.is_guarded(tensor, dimension):
                extents.demand_reached(tensor, dimension, error)

    def _from_zero(self, key: Key, axis: ir.Axis) -> ir.Axis:
        """The range without negative values if the index is a subscript by itself: no element has one there."""
        if any(use.is_exact and use.is_alone and use.condition == TRUE and key in use.axes() for use in self.uses):
            return as_range(axis.name, (*axis.lower, Affine(0)), axis.upper)
        return axis

    def _interval(self, key: Key, base: ir.Axis | None, uses: Sequence[_Use], extents: Extents) -> ir.Axis | None:
        """The largest range of the axis for which the uses are in bounds, within `base`; None if they leave it open."""
        lower, upper = (list(base.lower), list(base.upper)) if base is not None else ([], [])
        hard: list[_Use] = []
        for use in uses:
            extent = self._extent(use, key, extents)
            if use.is_alone:
                bounds: tuple[Affine, Affine] | None = (Affine(0), extent)
            else:
                bounds = window(use.subscript, key[1], self._ranges(use), extent)
            if bounds is None or (use.condition != TRUE and not use.is_alone):
                hard.append(use)
            else:
                lower.append(bounds[0])
                upper.append(bounds[1])
        easy = as_range(key[1], lower, upper)
        if easy.is_resolved:  # else even reads that are plainly in bounds say where some read happens
            hard = [use for use in hard if not self._holds_within(use, key, easy, extents)]
        if not hard:
            return easy if easy.is_resolved else None
        reads = [(use.subscript, self._extent(use, key, extents), use.condition, self._ranges(use)) for use in hard]
        found = largest_interval(easy, reads, self.sizes, self.equation)
        if found is not None and self.sizes:
            with decided(f"when '{key[1]}' has the range of a read"):
                others = sizes_of_other_ranges(easy, found, reads, self.sizes, summed=key[0] != 0)
                extents.refute(others, partial(self._moves, key))
        return found

    def _extent(self, use: _Use, key: Key, extents: Extents) -> Affine:
        """Where the dimension ends for an axis."""
        end = extents.unguarded(use.tensor, use.dimension) if self._takes_unguarded(use, key) else None
        return extents.value(use.tensor, use.dimension) if end is None else end

    def _ranges(self, use: _Use) -> dict[str, ir.Axis]:
        return {name: self.known[key] for name, key in use.keys.items() if key in self.known}

    def _holds_within(self, use: _Use, key: Key, axis: ir.Axis, extents: Extents) -> bool:
        """Whether the read is plainly in bounds all over `axis`, where its guard holds."""
        ranges = narrowed({**self._ranges(use), axis.name: axis}, use.condition)
        return is_within(use.subscript, self._extent(use, key, extents), ranges)

    def confirm(self, extents: Extents) -> None:
        """Raises `DefinitionError` if an axis was taken from an extent that this very axis made grow."""
        for key, sources in self.borrowed.items():
            for source, used in sources.items():
                before = extents.same(used)
                after = _moved(source, before, extents)
                if after is not None:
                    raise _no_range(
                        self.equation,
                        key[1],
                        f"its range would follow from dimension {source[1]} of '{source[0]}', whose extent "
                        f"({before}, then {after}) depends on that range",
                    )

    def _moves(self, key: Key, point: Point) -> DefinitionError:
        why = f"the reads that bound it happen on an interval that no affine expression gives {point_text(point, ())}"
        return _no_range(self.equation, key[1], why)

    def _unreached(self, key: Key, source: tuple[str, int], extent: Affine, point: Point) -> DefinitionError:
        tensor, dimension = source
        return _no_range(
            self.equation,
            key[1],
            f"its range would follow from dimension {dimension} of '{tensor}', and no other definition reaches the "
            f"last element of its extent {extent} {point_text(point, ())}",
        )

    def agree_on_all(self, extents: Extents) -> None:
        """In whole-tensor arithmetic the extents of all operands agree, inferred ones too."""
        if self.equation.is_whole:
            operands = [use for use in self.uses if use.tensor != self.equation.tensor]
            self._agree(operands, [key for key in self.known if key not in self.explicit], extents)

    def undetermined(self) -> DefinitionError:
        name = self.pending[0][1]
        return _no_range(self.equation, name, "no read in the equation bounds it")

    def resolved(self, extents: Extents) -> ir.Equation:
        return replace_axes(self.equation, {key: extents.axis(axis) for key, axis in self.known.items()})


def _moved(source: _Source, used: Affine, extents: Extents) -> Affine | None:
    """What an extent that was used has become, if that is another: without guards, if elements lie beyond it too."""
    tensor, dimension, is_unguarded = source
    extent = extents.value(tensor, dimension)
    if not is_unguarded:
        return extent if extent != used else None
    unguarded = extents.unguarded(tensor, dimension)
    if unguarded != used:
        return unguarded
    return None if is_nonnegative(used - extent) else extent


def _agreed(equation: ir.Equation, name: str, uses: Sequence[_Use], extents: Extents) -> Affine:
    """The extent that all dimensions agree on; that they agree is asked of the sizes where it does not show."""
    first, *others = uses
    for other in others:
        left, right = (extents.value(use.tensor, use.dimension) for use in (first, other))
        difference = left - right
        if difference.is_constant and difference.constant != 0:
            raise _conflict(equation, name, (first, other), (left, right))
        if not difference.is_constant:
            extents.demand(Compare(difference, "=="))
    return extents.value(first.tensor, first.dimension)


def _conflict(equation: ir.Equation, name: str, uses: tuple[_Use, _Use], extents: tuple[Affine, Affine]) -> ShapeError:
    lines = [
        f"{use.text}: dimension {use.dimension} of '{use.tensor}' has extent {extent}" + place(use.span)
        for use, extent in zip(uses, extents, strict=True)
    ]
    tensors = tuple(use.tensor for use in uses)
    what = f"index '{name}' runs over dimensions of different extents: {extents[0]} and {extents[1]}"
    fix = f"pass arrays whose extents agree, or give '{name}' its own range with po.index(\"{name}\", extent=...)"
    if equation.is_whole:
        what = f"shapes of '{tensors[0]}' and '{tensors[1]}' do not fit together: extents {extents[0]} and {extents[1]}"
        fix = "pass arrays whose extents agree, or slice one of the tensors"
    return ShapeError(
        what,
        where=uses[1].span or uses[0].span or equation.span,
        why="\n".join(lines),
        fix=fix,
        facts={
            "index": name,
            "tensors": tensors,
            "dimensions": tuple(use.dimension for use in uses),
            "extents": tuple(value.constant if value.is_constant else str(value) for value in extents),
        },
    )


def _no_range(equation: ir.Equation, name: str, reason: str) -> DefinitionError:
    return DefinitionError(
        f"index '{name}' in the definition of '{equation.tensor}' has no range",
        where=equation.span,
        why=reason,
        fix=f'say its range: po.index("{name}", extent=...)',
        facts={"index": name, "tensor": equation.tensor},
    )
