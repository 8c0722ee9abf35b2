"""Splits loops over tiles where conditions of whole tiles change, so that interior tiles test nothing.

Reads beyond an edge, periodic or clamped or padded, leave quotients, minima and comparisons in every tile, though only
the tiles at the edges need them; lanes would gather, since a quotient may differ from lane to lane. Each test is
bounded over the tile by intervals of the loops inside, as affine functions of the tile's loop. The stretch of tiles on
which all of them are decided becomes a loop of its own with the decisions written in; so does a single tile before or
behind it, with its number. A parallel loop stays one, and tests which kind of tile it is at: only for what differs from
lane to lane. Source: index set splitting, [Griebl00], here per tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, AxisRef, FloorDiv, SizeRef
from polyopt.dsl.ir import Const, Op, Var
from polyopt.dtypes import bool_, i64
from polyopt.loops.affine import arms, as_affine, tidy
from polyopt.loops.ir import (
    Alloc,
    Block,
    Expr,
    For,
    If,
    LoopProgram,
    Stmt,
    Store,
    integer,
    substitute_in,
    uses,
    walk,
    walk_expr,
)
from polyopt.loops.split import decide

FEWEST = 1
"""Tiles that the interior must have."""

MOST_STORES = 24
"""Stores of a loop beyond which copies of it would be too much code."""


def split(program: LoopProgram) -> LoopProgram:
    """The same instances in the same order, with what is decided for interior tiles written in."""
    return replace(program, body=_visit(program.body))


def _visit(statement: Stmt) -> Stmt:
    match statement:
        case Block(body):
            return Block(tuple(_visit(inner) for inner in body))
        case For(kind="serial" | "parallel") if _goes_over_tiles(statement) and _is_candidate(statement):
            return _split(statement)
        case For() | Alloc():
            return replace(statement, body=_visit(statement.body))
        case If(_, then, otherwise):
            return replace(statement, then=_visit(then), otherwise=None if otherwise is None else _visit(otherwise))
        case Store():
            return statement


def _goes_over_tiles(loop: For) -> bool:
    """Whether an iteration is several points: of groups, or of loops inside that begin where it says."""
    inside = [inner for inner in walk(loop.body) if isinstance(inner, For)]
    return loop.step > 1 or any(inner.kind == "group" or uses(inner.lower, loop.var) for inner in inside)


def _is_candidate(loop: For) -> bool:
    """Whether a loop has constant bounds, lanes inside, and a body small enough to be copied."""
    inside = list(walk(loop.body))
    stores = sum(isinstance(s, Store) for s in inside)
    has_lanes = any(isinstance(s, For) and s.kind == "vector" for s in inside)
    return has_lanes and stores <= MOST_STORES and isinstance(loop.lower, Const) and isinstance(loop.upper, Const)


def _split(loop: For) -> Stmt:
    assert isinstance(loop.lower, Const) and isinstance(loop.upper, Const), "the bounds are constant"
    start, step = int(loop.lower.value), loop.step
    count = -(-(int(loop.upper.value) - start) // step)
    stretch = Stretch(loop.var, start, step, 0, count)
    values: dict[Place, dict[Expr, bool]] = {}
    for place, test, lowest, greatest in _tests(loop, start + (count // 2) * step):
        narrowed = stretch.where(lowest, greatest)
        if narrowed is not None:
            values.setdefault(place, {})[test], stretch = narrowed
    interior = stretch.last - stretch.first
    if interior < max(FEWEST, count // 2):
        return replace(loop, body=_visit(loop.body))
    body = _decided(loop.body, (), values)
    if body == loop.body or (loop.kind == "parallel" and not _moves_lanes(loop, values)):
        return replace(loop, body=_visit(loop.body))

    def edge(first: int, last: int) -> Stmt:
        return _visit(_where(loop, start + first * step)) if last == first + 1 else loop.body

    before, behind = edge(0, stretch.first), edge(stretch.last, count)
    parts = ((0, stretch.first, before), (stretch.first, stretch.last, _visit(body)), (stretch.last, count, behind))
    return _in_pieces(loop, [(start + first * step, inner) for first, last, inner in parts if first < last])


def _moves_lanes(loop: For, values: Mapping[Place, Mapping[Expr, bool]]) -> bool:
    """Whether what is decided may differ from lane to lane."""
    lanes = {inner.var for inner in walk(loop.body) if isinstance(inner, For) and inner.kind == "vector"}
    return any(uses(test, lane) for decided in values.values() for test in decided for lane in lanes)


def _in_pieces(loop: For, parts: Sequence[tuple[int, Stmt]]) -> Stmt:
    """The loop with a body of its own from each of some points on. A parallel one stays one loop."""
    firsts, bodies = zip(*parts, strict=True)
    if loop.kind == "parallel":
        body = bodies[-1]
        for first, own in zip(reversed(firsts[1:]), reversed(bodies[:-1]), strict=True):
            body = If(Op("le", (Var(loop.var, i64), integer(first - 1)), bool_), own, body)
        return replace(loop, body=body)
    bounds = zip(map(integer, firsts), (*map(integer, firsts[1:]), loop.upper), bodies, strict=True)
    pieces = [replace(loop, lower=lower, upper=upper, body=body) for lower, upper, body in bounds]
    return pieces[0] if len(pieces) == 1 else Block(tuple(pieces))


def _where(loop: For, number: int) -> Stmt:
    """The body in one iteration, with what it then knows."""

    def known(statement: Stmt) -> Stmt:
        match statement:
            case Block(body):
                return Block(tuple(map(known, body)))
            case For(body=body):
                return replace(statement, lower=tidy(statement.lower), upper=tidy(statement.upper), body=known(body))
            case Alloc(_, body):
                return replace(statement, body=known(body))
            case If(_, then, otherwise):
                return replace(statement, then=known(then), otherwise=None if otherwise is None else known(otherwise))
            case Store():
                return decide(statement, {})

    return known(substitute_in(loop.body, {loop.var: integer(number)}))


@dataclass(frozen=True, slots=True)
class Stretch:
    """Iterations `first` to `last` (exclusive) of a loop, counted from 0."""

    variable: str
    start: int
    step: int
    first: int
    last: int

    def where(self, lowest: Affine, greatest: Affine) -> tuple[bool, Stretch] | None:
        """What `value >= 0` is on the longer part that decides it, for a value between two functions of the
        variable; None where it is decided nowhere."""
        true = self.part(lowest)
        false = self.part(-greatest - 1)
        best = max((true, false), key=lambda part: part.last - part.first)
        if best.last - best.first < FEWEST:
            return None
        return best is true, best

    def part(self, affine: Affine) -> Stretch:
        """The part on which an affine function is not negative."""
        slope = affine.coefficient(AxisRef(self.variable)) * self.step
        value = affine.constant + affine.coefficient(AxisRef(self.variable)) * self.start  # of iteration 0
        first, last = self.first, self.last
        if slope > 0:
            first = max(first, -(value // slope))
        elif slope < 0:
            last = min(last, value // -slope + 1)
        elif value < 0:
            last = first
        if first >= last:
            first = last = self.first
        return replace(self, first=first, last=last)


@dataclass(frozen=True, slots=True)
class Range:
    """What the variable of a loop inside the tile runs through."""

    variable: str
    lower: Expr
    upper: Expr


Place = tuple[Range, ...]
"""Where a store stands: the loops around it, outermost first. A test is decided for each place of its own, since loops
side by side have variables of one name."""


# --- tests ------------------------------------------------------------------------------------------------------


def _tests(loop: For, middle: int) -> Iterator[tuple[Place, Expr, Affine, Affine]]:
    """Each `a >= b` on which the body depends and where, with bounds of `a - b` that know the loop's variable alone."""
    seen: set[tuple[Place, Expr]] = set()
    for store, place in _stores(loop.body, ()):
        for expr in (*store.indices, store.value):
            for node in walk_expr(expr):
                for test, difference in _decisive(node, place, loop.var, middle):
                    bounds = _bounds(difference, place, loop.var)
                    moves = any(uses(test, inner.variable) for inner in place)  # otherwise it is one test an iteration
                    if moves and (place, test) not in seen and bounds is not None:
                        seen.add((place, test))
                        yield place, test, *bounds


def _stores(statement: Stmt, place: Place) -> Iterator[tuple[Store, Place]]:
    """The stores and where each stands."""
    match statement:
        case Block(body):
            for one in body:
                yield from _stores(one, place)
        case For(body=body):
            yield from _stores(body, _inside(statement, place))
        case Alloc(_, body):
            yield from _stores(body, place)
        case If(_, then, otherwise):
            for arm in (then, otherwise):
                if arm is not None:
                    yield from _stores(arm, place)
        case Store():
            yield statement, place


def _inside(loop: For, place: Place) -> Place:
    return (*place, Range(loop.var, loop.lower, loop.upper))


def _decisive(node: Expr, place: Place, variable: str, middle: int) -> Iterator[tuple[Expr, Affine]]:
    """Comparisons that an operation is decided by, as `split.decide` takes them, with what must not be negative."""
    match node:
        case Op("ge", (left, right)):
            yield from _comparison(node, left, right)
        case Op("minimum" | "maximum", (left, right)) if node.dtype == i64:
            yield from _comparison(Op("ge", (left, right), bool_), left, right)
        case Op("floordiv", (left, Const(divisor))) if node.dtype == i64 and int(divisor) > 0:
            numerator = as_affine(left)
            bounds = None if numerator is None else _bounds(numerator, place, variable)
            if bounds is None:
                return
            at = [b.constant + b.coefficient(AxisRef(variable)) * middle for b in bounds]
            quotient = at[0] // int(divisor)
            for edge in (quotient, quotient + 1):
                bound = integer(edge * int(divisor))
                yield from _comparison(Op("ge", (left, bound), bool_), left, bound)
        case _:
            return


def _comparison(test: Expr, left: Expr, right: Expr) -> Iterator[tuple[Expr, Affine]]:
    first, second = as_affine(left), as_affine(right)
    if first is not None and second is not None:
        yield test, first - second


def _bounds(affine: Affine, place: Place, variable: str) -> tuple[Affine, Affine] | None:
    """The least and the greatest value while the loops inside run, as functions of the variable; None for others."""
    low = high = affine
    for around in reversed(place):
        ends = _ends(around, variable)
        if ends is None:
            if any(around.variable in _names(side) for side in (low, high)):
                return None
            continue
        low, high = _without(low, around.variable, *ends), _without(high, around.variable, *reversed(ends))
    known = all(_names(side) <= {variable} and not _has_floor(side) for side in (low, high))
    return (low, high) if known else None


def _ends(around: Range, variable: str) -> tuple[Affine, Affine] | None:
    """The least first and the greatest last value of a loop; bounds that move with the variable before constants."""
    lower = _best(arms(around.lower, "maximum"), variable)
    upper = _best(arms(around.upper, "minimum"), variable)
    return None if lower is None or upper is None else (lower, upper - 1)


def _best(ends: Iterator[Expr], variable: str) -> Affine | None:
    found = [affine for affine in map(as_affine, ends) if affine is not None and not _has_floor(affine)]
    return max(found, key=lambda a: variable in _names(a), default=None)


def _without(affine: Affine, name: str, at_least: Affine, at_most: Affine) -> Affine:
    """The least value of an expression over the range of one variable."""
    coefficient = affine.coefficient(AxisRef(name))
    rest = affine - Affine(0, ((AxisRef(name), 1),)) * coefficient
    return rest + (at_least if coefficient > 0 else at_most) * coefficient


def _names(affine: Affine) -> set[str]:
    found: set[str] = set()
    for atom, _ in affine.terms:
        match atom:
            case AxisRef(name) | SizeRef(name):
                found.add(name)
            case FloorDiv(numerator):
                found |= _names(numerator)
    return found


def _has_floor(affine: Affine) -> bool:
    return any(isinstance(atom, FloorDiv) for atom, _ in affine.terms)


# --- writing decisions in ---------------------------------------------------------------------------------------


def _decided(statement: Stmt, place: Place, values: Mapping[Place, dict[Expr, bool]]) -> Stmt:
    """The statement with decisions in what it stores; bounds of loops stay as they are."""
    match statement:
        case Block(body):
            return Block(tuple(_decided(inner, place, values) for inner in body))
        case For(body=body):
            return replace(statement, body=_decided(body, _inside(statement, place), values))
        case Alloc(_, body):
            return replace(statement, body=_decided(body, place, values))
        case If(_, then, otherwise):
            rest = None if otherwise is None else _decided(otherwise, place, values)
            return replace(statement, then=_decided(then, place, values), otherwise=rest)
        case Store():
            return decide(statement, values[place]) if place in values else statement
