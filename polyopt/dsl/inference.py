"""The dtypes of tensors: what their definitions have, by fixpoint where tensors depend on one another.

A definition is read once: its indices bound, its guard split off. Equations are built from the same reading
(`dsl.elaborate`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import count

from polyopt import graphs
from polyopt.classes import dataclass
from polyopt.dsl.affine import Condition
from polyopt.dsl.conversion import Converter
from polyopt.dsl.expr import Choice, Element, Expr, Index, free_indices, source_text, subtracted, walk
from polyopt.dsl.lower_reductions import lower_reduction, summand, unguarded
from polyopt.dsl.recognise import Scope, is_data
from polyopt.dsl.state import Definition, Handle
from polyopt.dsl.types import UNKNOWN, WEAK_BOOL, WEAK_INT, Type, Unknown, WeakType, chosen, concrete, join
from polyopt.dsl.values import Builder, Names
from polyopt.dtypes import DType, accumulator
from polyopt.errors import DefinitionError


def reads_of(definition: Definition) -> tuple[Element, ...]:
    """Every element that the definition reads, data subscripts on its left included."""
    roots = (*definition.subscripts, definition.value)
    return tuple(node for root in roots for node in walk(root) if isinstance(node, Element))


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """A definition with its indices bound, ready to be built, or built as far as its dtype asked for.

    left, others: the indices of its left side; those that an accumulation reduces
    value, guard: its right side without `po.when`, and the condition of that
    """

    build: Builder
    scope: Scope
    left: tuple[Index, ...]
    others: tuple[Index, ...]
    value: Expr
    guard: Condition


_SETTLED = 8
"""Passes after which the dtypes of tensors that depend on one another only grow: nothing changes for ever."""


@dataclass(slots=True, eq=False)
class Reader:
    """Reads definitions, and gives tensors their dtypes.

    reserved: names that axes do not get; types: as far as they are known
    built:    what was built when all types that it reads were known
    """

    reserved: frozenset[str] = frozenset()
    types: dict[Handle, Type] = field(default_factory=dict)
    built: dict[Definition, Reading] = field(default_factory=dict)

    def read(self, definition: Definition, *, provisional: bool = False, guesses: bool = False) -> Reading:
        known = self.built.get(definition)
        if known is not None:
            return known
        build = Builder(
            lambda tensor: self.types.get(tensor, UNKNOWN),
            lower_reduction,
            Converter(provisional),
            Names(self.reserved),
            guesses,
        )
        scope, left, others = _bind(build, definition)
        found = Reading(build, scope, left, others, *unguarded(definition.value, scope))
        if not provisional:
            self.built[definition] = found
        return found

    def infer_dtypes(self, tensors: Sequence[Handle]) -> Mapping[Handle, DType]:
        """The dtype of each tensor, component by component of the dependence graph; `tensors` is closed under reads."""
        self.types.update({t: t.dtype_given for t in tensors if t.dtype_given is not None})
        edges = {t: tuple(dict.fromkeys(r.tensor for d in t.definitions for r in reads_of(d))) for t in tensors}
        for component in _components(tensors, edges):
            unknown = [t for t in component if t.dtype_given is None]
            tensor = unknown[0] if len(unknown) == 1 else None
            if tensor is not None and not any(read is tensor for read in edges[tensor]):
                found = [self._type(definition, provisional=False) for definition in tensor.definitions]
                self.types[tensor] = concrete(_of_all(tensor, found))
            else:
                self._infer_cycle(unknown)
        return {tensor: concrete(type_) for tensor, type_ in self.types.items()}

    def _infer_cycle(self, component: Sequence[Handle]) -> None:
        """Repeats until nothing changes: what has a dtype by itself comes first, and what is computed from it follows.

        A value of which an operand has no dtype yet has none, but for a choice that is all of a definition, one side of
        which starts the other; only where that leaves a tensor open, operands that have a dtype decide. Python scalars
        become i64 or f64 when nothing else decided.
        """
        types = self.types
        least: dict[Handle, Type] = {}
        guesses = False
        for passes in count():
            before = [types.get(tensor, UNKNOWN) for tensor in component]
            provisional = not all(isinstance(type_, DType) for type_ in before)
            for tensor in component:
                found = [self._type(d, provisional=provisional, guesses=guesses) for d in tensor.definitions]
                known = types.get(tensor, UNKNOWN) if passes > _SETTLED else least.get(tensor, UNKNOWN)
                type_ = _of_all(tensor, [known, *found])
                types[tensor] = types.get(tensor, UNKNOWN) if isinstance(type_, Unknown) else type_
            if [types[tensor] for tensor in component] != before:
                for definition in (d for tensor in component for d in tensor.definitions):
                    self.built.pop(definition, None)
                guesses = False
                continue
            weak = [tensor for tensor in component if not isinstance(types[tensor], DType)]
            if not weak:
                return
            if not guesses and any(isinstance(types[tensor], Unknown) for tensor in weak):
                guesses = True
                continue
            for tensor in weak:
                least[tensor] = types[tensor] = concrete(types[tensor])

    def _type(self, definition: Definition, *, provisional: bool, guesses: bool = False) -> Type:
        one = self.read(definition, provisional=provisional, guesses=guesses)
        if definition.kind == "define":
            return _started(one.build, one.value, one.scope)
        taken = subtracted(one.value)
        natural = summand(one.build, one.value if taken is None else taken, one.scope).type
        if natural == WEAK_BOOL:
            return WEAK_INT
        if isinstance(natural, WeakType | Unknown):
            return natural
        return natural if natural.is_float else accumulator(natural)


def _started(build: Builder, value: Expr, scope: Scope) -> Type:
    """The type of a definition; of a choice, that of the side which has one, while the other has none."""
    found = build.build(value, scope).type
    if isinstance(found, Unknown) and isinstance(value, Choice):
        return chosen(_started(build, side, scope) for side in (value.then, value.otherwise))
    return found


def _of_all(tensor: Handle, types: Iterable[Type]) -> Type:
    """The type of a tensor with definitions of these types; a sum's where something is added, be it Python's number."""
    if all(definition.kind == "define" for definition in tensor.definitions):
        return join(types)
    return join(accumulator(t) if isinstance(t, DType) and not t.is_float else t for t in types)


def _components(tensors: Sequence[Handle], reads: Mapping[Handle, Sequence[Handle]]) -> list[list[Handle]]:
    """Tensors that depend on one another, producers first."""
    place = {tensor: n for n, tensor in enumerate(tensors)}  # `==` of tensors is an equation
    edges = [(place[read], place[tensor]) for tensor in tensors for read in reads[tensor]]
    return [[tensors[n] for n in component] for component in graphs.components(range(len(tensors)), edges)]


# --- how a definition is read -----------------------------------------------------------------------------------------


def _bind(build: Builder, definition: Definition) -> tuple[Scope, tuple[Index, ...], tuple[Index, ...]]:
    """The scope of an equation, the indices of its left side, and those that an accumulation reduces."""
    affine = [s for s in definition.subscripts if not is_data(s)]
    data = [s for s in definition.subscripts if is_data(s)]
    left = _free(affine)
    others = tuple(index for index in _free([*data, definition.value]) if not any(index is known for known in left))
    if definition.kind == "define":
        _check_plain(definition, data, others)
    scope = build.bind(Scope({}, definition.sizes, {}), left + others)
    return scope, left, others


def _free(exprs: Iterable[Expr]) -> tuple[Index, ...]:
    return tuple(dict.fromkeys(index for expr in exprs for index in free_indices(expr)))


def _check_plain(definition: Definition, data: Sequence[Expr], others: Sequence[Index]) -> None:
    name = definition.tensor.name
    if data:
        raise DefinitionError(
            f"'{name}' is defined at a position that is data",
            where=definition.span,
            why=f"Several points may meet at one '{source_text(data[0])}', and an element has one value.",
            fix=f"sum what meets there: {name}[...] += ..., with shape= for {name}.",
            facts={"tensor": name},
        )
    if others:
        index = others[0].name
        raise DefinitionError(
            f"index '{index}' is on the right side of the definition of '{name}' only",
            where=definition.span,
            why=f"'=' gives each element one value, and there is one per '{index}' here.",
            fix=f"put '{index}' on the left side, sum over it with += or po.sum(..., {index}).",
            facts={"tensor": name, "index": index},
        )
