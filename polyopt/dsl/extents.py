"""Extents that are plain while the equations are still being read.

`shape`, `reshape`, slices and `concatenate` need the extent of a tensor at once, before `poly.ranges` has seen the
whole program. A parameter's extent is written down; for a local tensor this module follows indices that stand alone
or with constant offsets, and says None wherever isl would be needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl.affine import Affine, AxisRef
from polyopt.dsl.expr import Choice, Element, Expr, Guarded, Index, InScope, Reduction, walk
from polyopt.dsl.ir import UsedExtent
from polyopt.dsl.recognise import NotAffine, Scope, affine_of, extent_of, range_sizes, ranges_in, try_condition
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import Definition, Handle, State
from polyopt.errors import DefinitionError, Span

Extents = tuple[Affine | None, ...]
ONE = af.constant(1)
_EXPLICIT, _ALONE, _LAST = 0, 1, 1 << 30
"""When an axis gets its range: given by the user, of the extent that it indexes alone, from inferred extents."""


def known_extents(tensor: Handle, *, only_one: bool = False) -> Extents:
    """The extent of each dimension where it is plain, else None. For some sizes it may be below 0, and counts as 0.

    What it says of a local tensor must stay true (`check_used`). only_one: the caller asks which extents are 1
    """
    extents = _extents(tensor, _Search(tensor.state))
    if tensor.dims is None and tensor.definitions:
        kept = tuple(extent if extent == ONE or not only_one else None for extent in extents)
        if any(extent is not None for extent in kept):
            tensor.state.used_extents.append((tensor, kept, False, user_span()))
    return extents


def extent_despite_guards(tensor: Handle, dimension: int) -> Affine | None:
    """The same of one dimension, as if `po.when` kept no index from its end; ranges say later whether it does."""
    extents = _extents(tensor, _Search(tensor.state, despite_guards=True))
    kept = tuple(extent if n == dimension else None for n, extent in enumerate(extents))
    if any(extent is not None for extent in kept):
        tensor.state.used_extents.append((tensor, kept, True, user_span()))
    return extents[dimension]


def check_used(state: State) -> None:
    """Raises `DefinitionError` where definitions changed an extent that was used before them."""
    last: dict[tuple[Handle, bool], Extents] = {}
    for tensor, used, despite_guards, span in state.used_extents:
        key = tensor, despite_guards
        if key not in last:
            last[key] = _extents(tensor, _Search(tensor.state, despite_guards=despite_guards))
        for dimension, (before, after) in enumerate(zip(used, last[key], strict=True)):
            if before is not None and before != after:
                raise DefinitionError(
                    f"'{tensor.name}' is defined further after its extent was used",
                    where=tensor.definitions[-1].span,
                    why=f"dimension {dimension} had {before} elements{_place(span)}, and has "
                    f"{'others' if after is None else after} with all definitions",
                    fix=f"write every definition of '{tensor.name}' before that line, or give it shape=.",
                    facts={"tensor": tensor.name, "dimension": dimension},
                )


def used_extents(state: State) -> tuple[UsedExtent, ...]:
    """What was said of local tensors, which must be what they have once every range is found."""
    return tuple(
        dict.fromkeys(
            UsedExtent(tensor.name, dimension, af.extent(tensor.name, dimension), extent, span)
            for tensor, used, _, span in state.used_extents
            for dimension, extent in enumerate(used)
            if extent is not None
        )
    )


def _place(span: Span | None) -> str:
    return "" if span is None else f" at line {span.line}"


class _Found:
    """Extents of a tensor, and what they hold for: `met` may not be in the middle of being found, `cuts` must be; since
    definition `until` of the trace none of `met` or `cuts` was defined further."""

    __slots__ = ("cuts", "extents", "met", "until")

    def __init__(self, extents: Extents, met: set[Handle], cuts: set[Handle], until: int) -> None:
        self.extents, self.met, self.cuts, self.until = extents, met, cuts, until


class _Search:
    """The tensors whose extents are being found, outermost first, with those met and those left out inside of each.

    A tensor that is read by many is looked at once: a chain of tensors, each of which reads the one before twice, would
    else take twice as long for each.
    """

    __slots__ = ("_cuts", "_met", "_state", "busy", "despite_guards")

    def __init__(self, state: State, *, despite_guards: bool = False) -> None:
        self._state = state
        self.despite_guards = despite_guards
        self.busy: set[Handle] = set()
        self._met: list[set[Handle]] = [set()]
        self._cuts: list[set[Handle]] = [set()]

    def left_out(self, tensor: Handle) -> None:
        self._cuts[-1].add(tensor)

    def of(self, tensor: Handle) -> Extents:
        found = self._recalled(tensor)
        if found is None:
            self.busy.add(tensor)
            self._met.append({tensor})
            self._cuts.append(set())
            try:
                extents = _local_extents(tensor, self)
            finally:
                self.busy.remove(tensor)
                met, cuts = self._met.pop(), self._cuts.pop() - {tensor}
            found = _Found(extents, met, cuts, len(self._state.definitions))
            self._state.found_extents.setdefault((tensor, self.despite_guards), []).append(found)
        self._met[-1] |= found.met
        self._cuts[-1] |= found.cuts
        return found.extents

    def _recalled(self, tensor: Handle) -> _Found | None:
        known: list[_Found] | None = self._state.found_extents.get((tensor, self.despite_guards))
        if known is None:
            return None
        written = self._state.definitions
        for found in known:
            if any(d.tensor in found.met or d.tensor in found.cuts for d in written[found.until :]):
                continue
            found.until = len(written)
            if found.cuts <= self.busy and not found.met & self.busy:
                return found
        known[:] = [found for found in known if found.until == len(written)]
        return None


def _extents(tensor: Handle, search: _Search) -> Extents:
    if tensor.dims is not None:
        return tensor.dims
    if tensor in search.busy:
        search.left_out(tensor)
        return (None,) * (tensor.rank or 0)
    return search.of(tensor)


def _local_extents(tensor: Handle, search: _Search) -> Extents:
    if tensor.rank is None:
        return ()
    found = [_definition_extents(d, search) for d in tensor.definitions]
    if not found:
        return (None,) * tensor.rank
    columns = [list(column) for column in zip(*found, strict=True)]
    if search.despite_guards:
        columns = [_without_open_guards(column, tensor.definitions) for column in columns]
    return tuple(_counted(_pick(column, greatest=True)) for column in columns)


def _without_open_guards(extents: list[Affine | None], definitions: Sequence[Definition]) -> list[Affine | None]:
    """Those of definitions that are not under a guard alone, as far as others give any: `L[i, j] = po.when(j > i, 0)`
    takes the ranges of its indices from them."""
    pairs = zip(extents, definitions, strict=True)
    return [e for e, d in pairs if e is not None or not isinstance(d.value, Guarded)] or extents


def _counted(extent: Affine | None) -> Affine | None:
    """The number of values up to a bound: none where the bound is a number below 0."""
    return af.constant(0) if extent is not None and extent.is_constant and extent.constant < 0 else extent


def index_extent(body: Expr, index: Index, scope: Scope) -> Affine | None:
    """The number of values of an index that `body` alone gives a range, where that is plain; below 0 for none, for
    some sizes.

    It is where the range is explicit, or the index stands alone wherever it occurs as a subscript of a parameter or
    of a tensor with `shape=`, with one extent.
    """
    if index.upper is not None and index.lower is not None and index.cap is None:
        sizes = range_sizes(index, scope.sizes)
        lower, upper = (extent_of(bound, sizes, "an extent", index.span) for bound in (index.lower, index.upper))
        return _counted(upper - lower)
    extents: set[Affine | None] = set()
    for node in walk(body):
        if not isinstance(node, Element):
            continue
        dims = node.tensor.dims or (None,) * len(node.subscripts)
        for subscript, extent in zip(node.subscripts, dims, strict=False):
            if subscript is index:
                extents.add(extent)
            elif any(inside is index for inside in walk(subscript)):
                extents.add(None)
    return extents.pop() if len(extents) == 1 else None


def _definition_extents(definition: Definition, search: _Search) -> Extents:
    """One more than the greatest value of each subscript of the left side."""
    if isinstance(definition.value, Guarded) and not search.despite_guards:
        return (None,) * len(definition.subscripts)
    ranges = _Ranges.of(definition, search)
    greatest = [ranges.greatest(_affine(s, ranges.scope)) for s in definition.subscripts]
    return tuple(None if value is None else value + 1 for value in greatest)


def _affine(expr: Expr, scope: Scope) -> Affine | None:
    try:
        return affine_of(expr, scope)
    except NotAffine:
        return None


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The ranges of a definition's indices by axis name: lower and exclusive upper bounds, None where not plain."""

    scope: Scope
    lower: Mapping[str, Affine | None]
    upper: Mapping[str, Affine | None]

    @staticmethod
    def of(definition: Definition, search: _Search) -> _Ranges:
        nodes = [node for root in (*definition.subscripts, definition.value) for node in walk(root)]
        indices = tuple(dict.fromkeys(node for node in nodes if isinstance(node, Index)))
        indices += tuple(
            i for node in nodes if isinstance(node, Reduction) for i in node.indices if i not in set(indices)
        )
        scope = Scope({index: f"axis{n}" for n, index in enumerate(dict.fromkeys(indices))}, definition.sizes, {})
        constraints = list(_constraints(definition, scope, search))
        guarded = any(isinstance(node, Choice | Guarded) or _has_where(node) for node in nodes)
        sizes = ranges_in((*definition.subscripts, definition.value), definition.sizes)
        fixed = _explicit(scope, sizes, upper=True)
        given = _extents_alone(constraint for constraint in constraints if constraint.is_given)
        inferred = _extents_alone(constraint for constraint in constraints if not constraint.is_given)
        turns = _turns(constraints, fixed, given)
        inferred = {name: extents for name, extents in inferred.items() if name not in turns}
        alone = {name: _pick(extents, greatest=False) for name, extents in (inferred | given).items()}
        alone |= fixed | {scope.axes[i]: None for i in _bound_again(definition, nodes) if scope.axes[i] not in fixed}
        lower = {name: af.constant(0) for name in scope.axes.values()} | _known(_explicit(scope, sizes, upper=False))
        first = _Ranges(scope, lower, alone)
        bounding = [c for c in constraints if c.is_plain and c.extent is not None and not first._holds(c)]
        if guarded:
            # Which other reads happen is for isl to find out; it does not matter where they bound nothing more.
            narrowed = first._narrowed(bounding, turns).upper
            kept = {name: bound if first.upper.get(name) == bound else None for name, bound in narrowed.items()}
            return _Ranges(scope, lower, kept)
        from_zero = fixed.keys() | {_alone(c.subscript) for c in constraints if c.is_plain}
        from_zero |= {_alone(left) for s in definition.subscripts if (left := _affine(s, scope)) is not None}
        bounded = {name for constraint in bounding for name in af.axes_of(constraint.subscript)}
        begun = {name: start for name, start in lower.items() if name in from_zero or name not in bounded}
        return _Ranges(scope, begun, alone)._narrowed(bounding, turns)

    def _narrowed(self, constraints: Sequence[_Constraint], turns: Mapping[str, int]) -> _Ranges:
        """Bounds that also keep subscripts within their extents: of each subscript the axes that get their ranges
        last, but for explicit ones."""
        ranges = self
        for turn in sorted({*turns.values(), _LAST} - {_EXPLICIT}):
            lower, upper = dict(ranges.lower), dict(ranges.upper)
            for constraint in constraints:
                subscript = constraint.subscript
                last = max((turns.get(name, _LAST) for name in af.axes_of(subscript)), default=_EXPLICIT)
                if last != turn or _alone(subscript) is not None:
                    continue
                for atom, coefficient in subscript.terms:
                    start, end = ranges._window(constraint, atom, coefficient)
                    for name in af.axes_of(Affine(0, ((atom, 1),))):
                        if turns.get(name, _LAST) == turn:
                            lower[name] = _pick([lower[name], start] if name in lower else [start], greatest=True)
                            upper[name] = _pick([upper[name], end] if name in upper else [end], greatest=False)
            ranges = _Ranges(self.scope, lower, upper)
        return ranges

    def _holds(self, constraint: _Constraint) -> bool:
        """Whether the guards around a read keep its subscript below its extent."""
        if not constraint.uppers or constraint.extent is None:
            return False
        under = _Ranges(self.scope, self.lower, {**self.upper, **constraint.uppers})
        greatest = under.greatest(constraint.subscript)
        left = None if greatest is None else constraint.extent - 1 - greatest
        return left is not None and left.is_constant and left.constant >= 0

    def _window(self, constraint: _Constraint, atom: af.Atom, coefficient: int) -> tuple[Affine | None, Affine | None]:
        """The start and the end of an axis such that a subscript in which it occurs in `coefficient * atom` stays in
        its extent; each None where it is not plain."""
        assert constraint.extent is not None, "those without one are left out"
        rest = constraint.subscript - Affine(0, ((atom, coefficient),))
        greatest, negated_least = self.greatest(rest), self.greatest(-rest)
        below = None if negated_least is None else -negated_least
        above = None if greatest is None else constraint.extent - 1 - greatest
        if coefficient < 0:
            coefficient, below, above = -coefficient, above, below
        # -below <= coefficient * atom <= above
        start = None if below is None else -(below // coefficient)
        end = None if above is None else above // coefficient + 1
        match atom:
            case AxisRef():
                return start, end
            case af.FloorDiv(Affine(shift, ((AxisRef(), 1),)), divisor):
                started = None if start is None else start * divisor - shift
                return started, None if end is None else end * divisor - shift
            case _:
                return None, None

    def greatest(self, value: Affine | None) -> Affine | None:
        """The greatest value of an affine expression over the ranges; None where that is not plain."""
        if value is None:
            return None
        total = Affine(value.constant)
        for atom, coefficient in value.terms:
            if isinstance(atom, AxisRef):
                upper = self.upper.get(atom.name)
                end = self.lower.get(atom.name) if coefficient < 0 else None if upper is None else upper - 1
                if end is None:
                    return None
                total = total + end * coefficient
            elif isinstance(atom, af.FloorDiv) and af.axes_of(atom.numerator):
                return None
            else:
                total = total + Affine(0, ((atom, coefficient),))
        return total


@dataclass(frozen=True, slots=True)
class _Constraint:
    """An affine subscript and the extent that it indexes, where that is plain.

    is_plain: no boundary lets it leave the box; is_given: the extent is a parameter's, or that of `shape=`
    uppers:   ends of axes that guards around the read give, exclusive
    """

    subscript: Affine
    extent: Affine | None
    is_plain: bool
    is_given: bool
    uppers: Mapping[str, Affine]


def _turns(constraints: Sequence[_Constraint], fixed: Iterable[str], given: Iterable[str]) -> dict[str, int]:
    """When axes get their ranges that do not wait for inferred extents, in the order of `poly.ranges`: explicit ones,
    those that stand alone in parameters and tensors with `shape=`, then those that subscripts there determine."""
    turns = dict.fromkeys(given, _ALONE) | dict.fromkeys(fixed, _EXPLICIT)
    turn = _ALONE
    while True:
        turn += 1
        opened = [af.axes_of(c.subscript) - turns.keys() for c in constraints if c.is_given and c.is_plain]
        found = set().union(*(names for names in opened if len(names) == 1))
        if not found:
            return turns
        turns |= dict.fromkeys(found, turn)


def _extents_alone(constraints: Iterable[_Constraint]) -> dict[str, list[Affine | None]]:
    """The extents that each axis indexes where it is the whole subscript."""
    found: dict[str, list[Affine | None]] = {}
    for constraint in constraints:
        name = _alone(constraint.subscript)
        if name is not None:
            found.setdefault(name, []).append(constraint.extent)
    return found


def _guarded_reads(root: Expr, scope: Scope) -> Iterator[tuple[Element, Mapping[str, Affine], Scope]]:
    """Each element that is read, the ends of axes that the conditions around it give, and what sizes mean there."""
    pending: list[tuple[Expr, Mapping[str, Affine], Scope]] = [(root, {}, scope)]
    while pending:
        node, uppers, here = pending.pop()
        if isinstance(node, Element):
            yield node, uppers, here
        if isinstance(node, Choice):
            condition = try_condition(node.condition, here)
            then = uppers if condition is None else {**uppers, **_ends(condition)}
            pending += [(node.condition, uppers, here), (node.then, then, here), (node.otherwise, uppers, here)]
        else:
            here = here.of_sizes(node.sizes) if isinstance(node, InScope) else here
            pending.extend((child, uppers, here) for child in node.children())


def _ends(condition: af.Condition) -> dict[str, Affine]:
    """The ends, exclusive, of axes that a conjunction bounds alone by what has no axes."""
    if isinstance(condition, af.And):
        return {name: end for part in condition.parts for name, end in _ends(part).items()}
    if not isinstance(condition, af.Compare):
        return {}
    if condition.op in ("==", "!="):
        return {}
    sign = 1 if condition.op in (">", ">=") else -1
    least = condition.left * sign - int(condition.op in ("<", ">"))
    found = {}
    for atom, coefficient in least.terms:  # 0 <= least
        rest = least - Affine(0, ((atom, coefficient),))
        if isinstance(atom, AxisRef) and coefficient < 0 and not af.axes_of(rest):
            found[atom.name] = rest // -coefficient + 1
    return found


def _bound_again(definition: Definition, nodes: Sequence[Expr]) -> frozenset[Index]:
    """Indices of the left side that a reduction on the right binds too, where they mean something else."""
    left = {node for root in definition.subscripts for node in walk(root) if isinstance(node, Index)}
    return frozenset(index for node in nodes if isinstance(node, Reduction) for index in node.indices if index in left)


def _constraints(definition: Definition, scope: Scope, search: _Search) -> Iterator[_Constraint]:
    """Each affine subscript of a tensor that is not being defined here."""
    roots = (*definition.subscripts, definition.value)
    found = [read for root in roots for read in _guarded_reads(root, scope)]
    reads = [(n.tensor, n.subscripts, n.boundary is None, uppers, here) for n, uppers, here in found]
    if definition.tensor.dims is not None:
        reads.append((definition.tensor, definition.subscripts, True, {}, scope))
    for tensor, subscripts, plain, uppers, here in reads:
        extents = _extents(tensor, search)
        if tensor in search.busy and tensor.dims is None:
            continue
        for subscript, extent in zip(subscripts, extents, strict=False):
            affine = _affine(subscript, here)
            if affine is not None:
                yield _Constraint(affine, extent, plain, tensor.dims is not None, uppers)


def _alone(subscript: Affine) -> str | None:
    """The axis that is the whole subscript."""
    match subscript:
        case Affine(0, ((AxisRef(name), 1),)):
            return name
        case _:
            return None


def _explicit(
    scope: Scope, sizes: Mapping[Index, tuple[Mapping[str, Affine], ...]], *, upper: bool
) -> dict[str, Affine | None]:
    found: dict[str, Affine | None] = {}
    for index, name in scope.axes.items():
        bound = index.upper if upper else index.lower
        if bound is not None:
            is_plain = index.cap is None or not upper
            what = f"the range of index '{index.name}'"
            found[name] = extent_of(bound, sizes[index][0], what, index.span) if is_plain else None
    return found


def _known(bounds: Mapping[str, Affine | None]) -> dict[str, Affine]:
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _has_where(node: object) -> bool:
    return isinstance(node, Reduction) and node.where is not None


def _pick(values: list[Affine | None], *, greatest: bool) -> Affine | None:
    """The greatest or least of values whose differences are numbers, or for the greatest have one sign for all sizes;
    None where one is unknown or not comparable."""
    best = values[0]
    for value in values[1:]:
        if best is None or value is None:
            return None
        if greatest and af.is_nonnegative(value - best):
            best = value
            continue
        if greatest and af.is_nonnegative(best - value):
            continue
        if not (value - best).is_constant:
            return None
        difference = (value - best).constant
        if difference > 0 if greatest else difference < 0:
            best = value
    return best
