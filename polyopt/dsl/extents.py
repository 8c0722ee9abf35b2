"""Extents that are plain while the equations are still being read.

`shape`, `reshape`, slices and `concatenate` need the extent of a tensor at once, before `poly.ranges` has seen the
whole program. A parameter's extent is written down; for a local tensor this module follows indices that stand alone
or with constant offsets, and says None wherever isl would be needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl.affine import Affine, AxisRef
from polyopt.dsl.expr import Choice, Element, Expr, Guarded, Index, Reduction, walk
from polyopt.dsl.recognise import NotAffine, Scope, affine_of, extent_of
from polyopt.dsl.state import Definition, Handle

Extents = tuple[Affine | None, ...]


def known_extents(tensor: Handle, busy: frozenset[Handle] = frozenset()) -> Extents:
    """The extent of each dimension where it is plain, else None. For some sizes it may be below 0, and counts as 0."""
    if tensor.dims is not None:
        return tensor.dims
    if tensor.rank is None or tensor in busy:
        return (None,) * (tensor.rank or 0)
    found = [_definition_extents(d, busy | {tensor}) for d in tensor.definitions]
    if not found:
        return (None,) * tensor.rank
    return tuple(_counted(_pick(list(column), greatest=True)) for column in zip(*found, strict=True))


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
        lower, upper = (extent_of(bound, scope.sizes, "an extent") for bound in (index.lower, index.upper))
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


def _definition_extents(definition: Definition, busy: frozenset[Handle]) -> Extents:
    """One more than the greatest value of each subscript of the left side."""
    if isinstance(definition.value, Guarded):
        return (None,) * len(definition.subscripts)
    ranges = _Ranges.of(definition, busy)
    greatest = [ranges.greatest(_affine(s, ranges.scope)) for s in definition.subscripts]
    return tuple(None if value is None else value + 1 for value in greatest)


def _affine(expr: Expr, scope: Scope) -> Affine | None:
    try:
        return affine_of(expr, scope)
    except NotAffine:
        return None


@dataclass(frozen=True, slots=True)
class _Ranges:
    """The ranges of a definition's indices, by axis name: lower bounds and, where plain, exclusive upper bounds."""

    scope: Scope
    lower: Mapping[str, Affine]
    upper: Mapping[str, Affine | None]

    @staticmethod
    def of(definition: Definition, busy: frozenset[Handle]) -> _Ranges:
        nodes = [node for root in (*definition.subscripts, definition.value) for node in walk(root)]
        indices = tuple(dict.fromkeys(node for node in nodes if isinstance(node, Index)))
        indices += tuple(
            i for node in nodes if isinstance(node, Reduction) for i in node.indices if i not in set(indices)
        )
        scope = Scope({index: f"axis{n}" for n, index in enumerate(dict.fromkeys(indices))}, definition.sizes, {})
        constraints = list(_constraints(definition, nodes, scope, busy))
        guarded = any(isinstance(node, Choice | Guarded) or _has_where(node) for node in nodes)
        alone = _explicit(scope, definition.sizes, upper=True)
        for subscript, extent, _ in constraints:
            name = _alone(subscript)
            if name is not None and name not in _explicit(scope, definition.sizes, upper=True):
                alone[name] = _pick([alone[name], extent] if name in alone else [extent], greatest=False)
        lower = {name: af.constant(0) for name in scope.axes.values()} | _known(
            _explicit(scope, definition.sizes, upper=False)
        )
        first = _Ranges(scope, lower, alone)
        return first if guarded else first._narrowed([(s, e) for s, e, plain in constraints if plain], definition)

    def _narrowed(self, constraints: list[tuple[Affine, Affine]], definition: Definition) -> _Ranges:
        """Upper bounds that also keep `c*i + rest` within its extent."""
        fixed = _explicit(self.scope, definition.sizes, upper=True)
        upper = dict(self.upper)
        for subscript, extent in constraints:
            for atom, coefficient in subscript.terms:
                if not isinstance(atom, AxisRef) or atom.name in fixed or coefficient < 0 or _alone(subscript):
                    continue
                rest = self.greatest(subscript - af.axis(atom.name) * coefficient)
                bound = None if rest is None else (extent - 1 - rest) // coefficient + 1
                candidates = [upper[atom.name], bound] if atom.name in upper else [bound]
                upper[atom.name] = _pick(candidates, greatest=False)
        return _Ranges(self.scope, self.lower, upper)

    def greatest(self, value: Affine | None) -> Affine | None:
        """The greatest value of an affine expression over the ranges; None where that is not plain."""
        if value is None:
            return None
        total = Affine(value.constant)
        for atom, coefficient in value.terms:
            if isinstance(atom, AxisRef):
                upper = self.upper.get(atom.name)
                end = self.lower[atom.name] if coefficient < 0 else None if upper is None else upper - 1
                if end is None:
                    return None
                total = total + end * coefficient
            elif isinstance(atom, af.FloorDiv) and af.axes_of(atom.numerator):
                return None
            else:
                total = total + Affine(0, ((atom, coefficient),))
        return total


def _constraints(
    definition: Definition, nodes: Sequence[Expr], scope: Scope, busy: frozenset[Handle]
) -> Iterator[tuple[Affine, Affine, bool]]:
    """Each affine subscript with the extent it indexes; False where a boundary lets it leave the box."""
    reads = [(n.tensor, n.subscripts, n.boundary is None) for n in nodes if isinstance(n, Element)]
    if definition.tensor.dims is not None:
        reads.append((definition.tensor, definition.subscripts, True))
    for tensor, subscripts, plain in reads:
        extents = known_extents(tensor, busy)
        for subscript, extent in zip(subscripts, extents, strict=False):
            affine = _affine(subscript, scope)
            if affine is not None and extent is not None:
                yield affine, extent, plain


def _alone(subscript: Affine) -> str | None:
    """The axis that is the whole subscript."""
    match subscript:
        case Affine(0, ((AxisRef(name), 1),)):
            return name
        case _:
            return None


def _explicit(scope: Scope, sizes: Mapping[str, Affine], *, upper: bool) -> dict[str, Affine | None]:
    found: dict[str, Affine | None] = {}
    for index, name in scope.axes.items():
        bound = index.upper if upper else index.lower
        if bound is not None:
            is_plain = index.cap is None or not upper
            found[name] = extent_of(bound, sizes, f"the range of index '{index.name}'") if is_plain else None
    return found


def _known(bounds: Mapping[str, Affine | None]) -> dict[str, Affine]:
    return {name: bound for name, bound in bounds.items() if bound is not None}


def _has_where(node: object) -> bool:
    return isinstance(node, Reduction) and node.where is not None


def _pick(values: list[Affine | None], *, greatest: bool) -> Affine | None:
    """The greatest or least of values whose differences are numbers; None where one is unknown or not comparable."""
    best = values[0]
    for value in values[1:]:
        if best is None or value is None or not (value - best).is_constant:
            return None
        difference = (value - best).constant
        if difference > 0 if greatest else difference < 0:
            best = value
    return best
