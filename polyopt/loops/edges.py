"""Gives the last tile of an axis code of its own, with the rows and the lanes that are left.

`for i0 in range(0, 129, 9)` around `for i in range(i0, min(129, i0 + 9))` is 14 tiles of nine rows and one of three.
First points of tiles are multiples of the tile apart, so only one of them is so close to the end that its tile is cut
short, and how short is known: `if i0 <= 120: for i in range(i0, i0 + 9)`, else `range(i0, i0 + 3)`. What is written out
for either computes no row twice, masks no whole vector and tests nothing.

Rows that stand a tile apart, one in each of four tiles of 33 say, are as many as there are tiles until the last tile
ends: `for i0 in range(33)` around `for i in range(4 - (i0 + 3) // 33)` is `range(4)` for 30 places and `range(3)` for
three.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, AxisRef
from polyopt.dsl.ir import Const, Op, Var
from polyopt.dtypes import bool_, i64
from polyopt.loops.affine import as_affine, tidy
from polyopt.loops.ir import Alloc, Block, Expr, For, If, LoopProgram, Stmt, Store, integer, stores_of, walk, walk_expr

MOST_STORES = 8
"""Stores of a loop beyond which a copy of it would be too much code."""


def split(program: LoopProgram) -> LoopProgram:
    """The same instances in the same order, with last tiles of known lengths."""
    return replace(program, body=_visit(program.body, {}))


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Some of the numbers from `least` to `greatest` that are `residue` modulo `modulus`; one number for modulus 0."""

    modulus: int
    residue: int
    least: int
    greatest: int

    def within(self, least: int, greatest: int) -> _Numbers:
        """Those in a range; all of them where none is."""
        least, greatest = max(self.least, least), min(self.greatest, greatest)
        if self.modulus:
            least += (self.residue - least) % self.modulus
            greatest -= (greatest - self.residue) % self.modulus
        if least >= greatest:
            return self if least > greatest else _Numbers(0, least, least, least)
        return replace(self, least=least, greatest=greatest)


@dataclass(frozen=True, slots=True)
class _Edge:
    """A tile that starts at `first` and ends `length` points further, or at `end` if that is nearer.

    rest:  points of the one tile that is cut short; `length` where there is none
    alone: that tile is the only one
    """

    first: Expr
    end: int
    length: int
    rest: int
    alone: bool

    def bound(self, length: int) -> Expr:
        return Op("add", (self.first, integer(length)), i64)

    def cuts(self, loop: For) -> bool:
        """Whether the loop ends where the tile does."""
        first = as_affine(self.first)
        return first is not None and set(_ends(loop.upper)) == {Affine(self.end), first + self.length}


Known = Mapping[str, _Numbers]


def _visit(statement: Stmt, known: Known) -> Stmt:
    match statement:
        case Block(body):
            return Block(tuple(_visit(inner, known) for inner in body))
        case For(var=var):
            numbers = _numbers_of(statement, known)
            inside = known if numbers is None else {**known, var: numbers}
            return replace(statement, body=_cut(statement.body, inside))
        case Alloc():
            return replace(statement, body=_visit(statement.body, known))
        case If(_, then, otherwise):
            arms = _arms(statement, known)
            visit, (first, second) = (_visit, (known, known)) if arms is None else (_cut, arms)
            rest = None if otherwise is None else visit(otherwise, second)
            return replace(statement, then=visit(then, first), otherwise=rest)
        case Store():
            return statement


def _arms(choice: If, known: Known) -> tuple[Known, Known] | None:
    """What is known in either arm, where they are of ranges of a loop's variable that `interior` has told apart."""
    match choice.condition:
        case Op("le", (Var(name), Const(last))) if name in known:
            numbers, at = known[name], int(last)
            first, second = numbers.within(numbers.least, at), numbers.within(at + 1, numbers.greatest)
            return {**known, name: first}, {**known, name: second}
        case _:
            return None


def _cut(body: Stmt, known: Known) -> Stmt:
    """The body of a loop, once for full tiles and once for the last one."""
    edge, is_small = next(_edges(body, known), None), len(stores_of(body)) <= MOST_STORES
    if edge is None:
        step = next(_steps(body, known), None) if is_small else None
        return _visit(body, known) if step is None else step.apart(body, known)
    if edge.alone or edge.rest == edge.length:
        return _cut(_bounded(body, edge, edge.rest), known)
    if not is_small:
        return _visit(body, known)
    is_full: Expr = Op("le", (edge.first, integer(edge.end - edge.length)), bool_)
    full, last = (_cut(_bounded(body, edge, length), known) for length in (edge.length, edge.rest))
    return If(is_full, full, last)


def _edges(statement: Stmt, known: Known) -> Iterator[_Edge]:
    """The tiles whose first points are known where the statement begins."""
    match statement:
        case Block(body):
            for inner in body:
                yield from _edges(inner, known)
        case For():
            edge = _edge_of(statement, known) if statement.kind in ("unrolled", "vector") else None
            if edge is not None:
                yield edge
            yield from _edges(statement.body, known)
        case Alloc(_, body):
            yield from _edges(body, known)
        case If(_, then, otherwise):
            if _arms(statement, known) is None:
                yield from _edges(then, known)
                yield from () if otherwise is None else _edges(otherwise, known)
        case Store():
            return


def _edge_of(loop: For, known: Known) -> _Edge | None:
    """The edge at which a loop over the points of a tile is cut short, if there is one."""
    first = as_affine(loop.lower)
    ends = _ends(loop.upper)
    if first is None or len(ends) != 2:
        return None
    end, other = sorted(ends, key=lambda part: not part.is_constant)
    length = other - first
    numbers = _range_of(first, known)
    if not end.is_constant or other.is_constant or not length.is_constant or numbers is None:
        return None
    points = length.constant
    if points <= 0 or numbers.modulus % points or numbers.greatest >= end.constant:
        return None
    last = end.constant - 1 - numbers.residue  # a multiple of the modulus before the last tile
    rest = 1 + (last % numbers.modulus if numbers.modulus else last)
    if numbers.greatest <= end.constant - points:
        rest = points
    return _Edge(loop.lower, end.constant, points, min(points, rest), numbers.least > end.constant - points)


def _ends(upper: Expr) -> list[Affine]:
    if not isinstance(upper, Op) or upper.name != "minimum":
        return []
    return [end for end in map(as_affine, upper.args) if end is not None]


def _numbers_of(loop: For, known: Known) -> _Numbers | None:
    """What is known of a loop's variable."""
    lower = as_affine(loop.lower)
    start = None if lower is None else _range_of(lower, known)
    ends = _ends(loop.upper) or [end for end in (as_affine(loop.upper),) if end is not None]
    greatest = [found.greatest for end in ends if (found := _range_of(end, known)) is not None]
    if start is None or not greatest:
        return None
    modulus = gcd(loop.step, start.modulus)
    return _Numbers(modulus, start.residue % modulus, start.least, min(greatest) - 1)


def _range_of(value: Affine, known: Known) -> _Numbers | None:
    """What is known of a sum of multiples of variables."""
    modulus, residue, least, greatest = 0, value.constant, value.constant, value.constant
    for atom, factor in value.terms:
        numbers = known.get(atom.name) if isinstance(atom, AxisRef) else None
        if numbers is None or factor < 0:
            return None
        modulus = gcd(modulus, factor * numbers.modulus)
        residue += factor * numbers.residue
        least += factor * numbers.least
        greatest += factor * numbers.greatest
    return _Numbers(modulus, residue % modulus if modulus else residue, least, greatest)


def _bounded(statement: Stmt, edge: _Edge, length: int) -> Stmt:
    """The statement with the loops over the points of a tile at their length."""
    match statement:
        case Block(body):
            return Block(tuple(_bounded(inner, edge, length) for inner in body))
        case For():
            upper = edge.bound(length) if edge.cuts(statement) else statement.upper
            return replace(statement, upper=upper, body=_bounded(statement.body, edge, length))
        case Alloc(_, body):
            return replace(statement, body=_bounded(body, edge, length))
        case If(_, then, otherwise):
            rest = None if otherwise is None else _bounded(otherwise, edge, length)
            return replace(statement, then=_bounded(then, edge, length), otherwise=rest)
        case Store():
            return statement


# --- rows a tile apart ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Step:
    """A quotient in the bound of a loop over few points that has two values: `value`, and behind some point one more.

    is_before: whether it has the first one
    """

    quotient: Op[Expr]
    is_before: Expr
    value: int

    def apart(self, body: Stmt, known: Known) -> If:
        """The body, once for each value."""
        first, second = (_cut(_with(body, self.quotient, value), known) for value in (self.value, self.value + 1))
        return If(self.is_before, first, second)


def _steps(statement: Stmt, known: Known) -> Iterator[_Step]:
    """The quotients that are known to have two values where the statement begins."""
    for loop in walk(statement):
        for node in walk_expr(loop.upper) if isinstance(loop, For) and loop.kind == "unrolled" else ():
            match node:
                case Op("floordiv", (numerator, Const(divisor))):
                    affine, size = as_affine(numerator), int(divisor)
                    numbers = None if affine is None else _range_of(affine, known)
                    if numbers is not None and numbers.greatest // size == numbers.least // size + 1:
                        value = numbers.least // size
                        is_before = Op("le", (numerator, integer((value + 1) * size - 1)), bool_)
                        yield _Step(node, is_before, value)
                case _:
                    continue


def _with(statement: Stmt, quotient: Op[Expr], value: int) -> Stmt:
    """The statement whose loops end where a quotient with this value says."""
    match statement:
        case Block(body):
            return Block(tuple(_with(inner, quotient, value) for inner in body))
        case For():
            upper = _replaced(statement.upper, quotient, value)
            return replace(statement, upper=upper, body=_with(statement.body, quotient, value))
        case Alloc(_, body):
            return replace(statement, body=_with(body, quotient, value))
        case If(_, then, otherwise):
            rest = None if otherwise is None else _with(otherwise, quotient, value)
            return replace(statement, then=_with(then, quotient, value), otherwise=rest)
        case Store():
            return statement


def _replaced(bound: Expr, quotient: Op[Expr], value: int) -> Expr:
    def visit(expr: Expr) -> Expr:
        if expr == quotient:
            return integer(value)
        return replace(expr, args=tuple(map(visit, expr.args))) if isinstance(expr, Op) else expr

    return tidy(visit(bound)) if quotient in walk_expr(bound) else bound
