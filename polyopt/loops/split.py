"""Splits innermost loops where affine conditions change, so that most iterations test nothing.

A padded read or an affine `where` leaves comparisons of the loop variable in the body. Each comparison holds on
one side of a boundary; the longest stretch on which all of them are decided becomes a loop of its own with the
decisions written in, and short loops before and after keep the tests. Source: index set splitting, [Griebl00].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, AxisRef, axis
from polyopt.dsl.ir import Cast, Const, Op, Var
from polyopt.dtypes import bool_, i64
from polyopt.loops import tiles
from polyopt.loops.affine import as_affine, plain_atoms, tidy
from polyopt.loops.ir import (
    Alloc,
    Block,
    Expr,
    For,
    If,
    Load,
    LoopProgram,
    Stmt,
    Store,
    integer,
    map_stores,
    parts_of,
    walk,
)
from polyopt.loops.scan import affine_expr

SHORTEST = 8
"""Iterations that the stretch without tests must have to be worth its own loop."""


def split(program: LoopProgram) -> LoopProgram:
    """The same instances in the same order, with decided conditions written in."""
    return replace(program, body=_visit(program.body))


def _visit(statement: Stmt) -> Stmt:
    match statement:
        case Block(body):
            return Block(tuple(_visit(inner) for inner in body))
        case For(kind="serial" | "vector", step=1) if _is_innermost(statement):
            return _split_loop(statement)
        case For(kind="serial", step=1):
            pieces = tiles.pieces(replace(statement, body=_visit(statement.body)))
            return pieces[0] if len(pieces) == 1 else Block(pieces)
        case For() | Alloc():
            return replace(statement, body=_visit(statement.body))
        case If(_, then, otherwise):
            return replace(statement, then=_visit(then), otherwise=None if otherwise is None else _visit(otherwise))
        case Store():
            return statement


def _is_innermost(loop: For) -> bool:
    return all(isinstance(inner, Block | Store) for inner in walk(loop.body))


# --- boundaries -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Decided:
    """A comparison and where it is decided: on [first, last) relative to the loop's lower bound it has `value`.

    None is no limit on that side.
    """

    comparison: Expr
    first: int | None
    last: int | None
    value: bool


def _split_loop(loop: For) -> For | Block:
    lower, upper = as_affine(loop.lower), as_affine(loop.upper)
    if lower is None or upper is None or not (upper - lower).is_constant:
        return loop
    count = (upper - lower).constant
    first, last, values = longest_stretch(loop, lower, count)
    if not values:
        return loop

    def piece(start: int, end: int, body: Stmt) -> For:
        return replace(loop, lower=affine_expr(lower + start), upper=affine_expr(lower + end), body=body)

    body = map_stores(loop.body, lambda store: decide(store, values))
    if body == loop.body:
        return loop
    inside = _split_loop(piece(first, last, body))  # a decision may uncover another
    pieces: list[Stmt] = [piece(0, first, loop.body)] if first > 0 else []
    pieces += inside.body if isinstance(inside, Block) else (inside,)
    pieces += [piece(last, count, loop.body)] if last < count else []
    return inside if len(pieces) == 1 else Block(tuple(pieces))


def longest_stretch(loop: For, lower: Affine, count: int) -> tuple[int, int, dict[Expr, bool]]:
    """The first iteration and the one behind the last where comparisons of the body are decided, and what they are.

    Narrows the loop comparison by comparison, each time to the side with more iterations left. Iterations are counted
    from `lower`, of which there are `count`.
    """
    first, last = 0, count
    values: dict[Expr, bool] = {}
    for comparison in _comparisons(loop, count // 2):
        sides = _sides(comparison, loop.var, lower)
        best = max(sides, key=lambda side: _length(side, first, last), default=None)
        if best is None or _length(best, first, last) < SHORTEST:
            continue
        first = first if best.first is None else max(first, best.first)
        last = last if best.last is None else min(last, best.last)
        values[best.comparison] = best.value
    return first, last, values


def _length(side: _Decided, first: int, last: int) -> int:
    start = first if side.first is None else max(first, side.first)
    end = last if side.last is None else min(last, side.last)
    return end - start


def _comparisons(loop: For, middle: int) -> Iterator[Op[Expr]]:
    """Distinct comparisons on which the body depends, those inside a minimum, a maximum or a quotient included.

    middle: an iteration; a quotient is compared with the value that it has there
    """
    seen: set[Expr] = set()
    for store in walk(loop.body):
        if isinstance(store, Store):
            for expr in (*store.indices, store.value):
                for node in parts_of(expr):
                    for comparison in _decisive(node, loop, middle):
                        if comparison not in seen:
                            seen.add(comparison)
                            yield comparison


def _decisive(node: Expr, loop: For, middle: int) -> Iterator[Op[Expr]]:
    """The comparisons that decide what an operation gives."""
    match node:
        case Op(name) if name in _SIDES:
            yield node
        case Op("minimum" | "maximum", (left, right)) if node.dtype == i64:
            yield at_least(left, right)
        case Op("floordiv", (left, Const(divisor))) if node.dtype == i64:
            quotient = _quotient(left, int(divisor), loop, middle)
            if quotient is not None:
                yield at_least(left, integer(quotient * int(divisor)))
                yield at_least(left, integer((quotient + 1) * int(divisor)))
        case _:
            return


def at_least(left: Expr, right: Expr) -> Op[Expr]:
    """The comparison that decides a minimum or a maximum."""
    return Op("ge", (left, right), bool_)


def at_least_times(left: Expr, size: Expr, times: int) -> Op[Expr]:
    """One of the comparisons that decide a remainder by a size."""
    return at_least(left, Op("mul", (size, integer(times)), i64))


def _quotient(numerator: Expr, divisor: int, loop: For, middle: int) -> int | None:
    """The value of a quotient in one iteration, where only the loop variable moves it."""
    affine, lower = as_affine(numerator), as_affine(loop.lower)
    if affine is None or lower is None or divisor <= 0:
        return None
    there = affine - axis(loop.var) + lower + middle if affine.coefficient(AxisRef(loop.var)) == 1 else None
    return there.constant // divisor if there is not None and there.is_constant else None


_SIDES = ("eq", "ne", "lt", "le", "gt", "ge")


def _sides(comparison: Op[Expr], variable: str, lower: Affine) -> list[_Decided]:
    """Where a comparison is decided; empty where it is not a boundary at a constant distance from the start."""
    left, right = (as_affine(arg) for arg in comparison.args)
    if left is None or right is None:
        return []
    difference = left - right
    slope = difference.coefficient(AxisRef(variable))
    rest = difference - axis(variable) * slope
    if abs(slope) != 1 or variable in {atom.name for atom in plain_atoms(rest)}:
        return []
    boundary = rest * -slope - lower  # difference is 0 where variable - lower = boundary
    if not boundary.is_constant:
        return []
    at = boundary.constant
    if comparison.name in ("eq", "ne"):
        value = comparison.name == "ne"
        return [_Decided(comparison, at + 1, None, value), _Decided(comparison, None, at, value)]
    rising = slope == 1
    inclusive = comparison.name in ("ge", "le")
    wants_large = (comparison.name in ("ge", "gt")) == rising
    start = at if wants_large == inclusive else at + 1  # first iteration of the upper side
    return [_Decided(comparison, start, None, wants_large), _Decided(comparison, None, start, not wants_large)]


# --- writing decisions in -------------------------------------------------------------------------------------


def decide(statement: Store, values: Mapping[Expr, bool]) -> Store:
    """The store with comparisons replaced by their values, and what then is decided left out."""
    written = _Written(values)
    indices = tuple(tidy(written.expr(index)) for index in statement.indices)
    return replace(statement, indices=indices, value=written.expr(statement.value))


@dataclass(slots=True)
class _Written:
    """Expressions with comparisons replaced by their values, and what then is decided left out.

    loads: what became of loads, by the object: what an expression repeats is one object
    """

    values: Mapping[Expr, bool]
    loads: dict[int, Load] = field(default_factory=dict)

    def expr(self, expr: Expr) -> Expr:
        match expr:
            case Op(dtype=dtype) if dtype == bool_ and expr in self.values:
                return Const(self.values[expr], bool_)
            case Op("minimum" | "maximum", (left, right), dtype) if (
                dtype == i64 and at_least(left, right) in self.values
            ):
                takes_left = self.values[at_least(left, right)] == (expr.name == "maximum")
                return self.expr(left if takes_left else right)
            case Op("floordiv", (left, Const(divisor))) if expr.dtype == i64 and divisor > 0:
                return self.quotient(expr, left, int(divisor))
            case Op("mod", (left, Var() as size)) if expr.dtype == i64:
                return self.remainder(expr, left, size)
            case Op(name, args):
                return _simplified(name, tuple(self.expr(arg) for arg in args), expr)
            case Cast(arg, dtype):
                return Cast(self.expr(arg), dtype)
            case Load():
                if id(expr) not in self.loads:
                    self.loads[id(expr)] = self.load(expr)
                return self.loads[id(expr)]
            case _:
                return expr

    def load(self, load: Load) -> Load:
        mask = None if load.mask is None else self.expr(load.mask)
        indices = tuple(tidy(self.expr(index)) for index in load.indices)
        return replace(load, indices=indices, mask=None if mask == Const(True, bool_) else mask)

    def quotient(self, expr: Op[Expr], left: Expr, divisor: int) -> Expr:
        """The quotient as a number where both comparisons around it are decided."""
        for comparison, value in self.values.items():
            match comparison:
                case Op("ge", (other, Const(bound))) if other == left and value and int(bound) % divisor == 0:
                    if self.values.get(at_least(left, integer(int(bound) + divisor))) is False:
                        return integer(int(bound) // divisor)
                case _:
                    continue
        return Op("floordiv", (self.expr(left), integer(divisor)), expr.dtype)

    def remainder(self, expr: Op[Expr], left: Expr, size: Expr) -> Expr:
        """The remainder without a division where it is known between which multiples of the size the number lies."""
        number = self.expr(left)
        for times, name in ((0, ""), (1, "sub"), (-1, "add")):
            ends = (self.values.get(at_least_times(left, size, place)) for place in (times, times + 1))
            if [*ends] == [True, False]:
                return Op(name, (number, size), i64) if name else number
        return replace(expr, args=(number, size))


def _simplified(name: str, args: tuple[Expr, ...], original: Op[Expr]) -> Expr:
    true, false = Const(True, bool_), Const(False, bool_)
    if original.dtype == bool_ and name in ("and", "or"):
        unit, zero = (true, false) if name == "and" else (false, true)
        if zero in args:
            return zero
        kept = tuple(arg for arg in args if arg != unit)
        return unit if not kept else kept[0] if len(kept) == 1 else Op(name, kept, bool_)
    if original.dtype == bool_ and name == "not" and isinstance(args[0], Const):
        return Const(not args[0].value, bool_)
    if name == "select" and isinstance(args[0], Const):
        return args[1] if args[0].value else args[2]
    return Op(name, args, original.dtype)
