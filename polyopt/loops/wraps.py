"""Splits innermost loops of open lengths where a subscript wraps around or meets an end.

`x[(i - 1) % N]` and `x[max(i - 1, 0)]` are neighbors of one another but for the first point, and lanes that do not
know it gather. Where sizes decide how long a loop is, so they decide where it is cut: each piece between two cuts has
subscripts that its points tell without a remainder, a minimum or a maximum. Pieces may be empty. Loops of known
lengths are cut by `split`. Source: index set splitting, [Griebl00].
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from functools import partial
from itertools import islice

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, AxisRef, FloorDiv, axis
from polyopt.dsl.ir import Op, Var
from polyopt.dtypes import i64
from polyopt.loops.affine import as_affine
from polyopt.loops.ir import Alloc, Block, Expr, For, If, LoopProgram, Stmt, Store, map_stores, walk, walk_expr
from polyopt.loops.scan import affine_expr
from polyopt.loops.split import at_least, at_least_times, decide

MOST_PIECES = 9
MOST_NODES = 800
"""Of one loop, and of the expressions in all of them: more would be too much code. Two wrapped reads in a long
expression have fewer pieces, in which one of them wraps."""


def split(program: LoopProgram) -> LoopProgram:
    """The same instances in the same order, in loops that know where they are, and a note of those that know it only
    in part."""
    if not program.sizes:
        return program
    splitter = _Splitter(frozenset(program.sizes))
    body = splitter.visit(program.body)
    return replace(program, body=body, notes=(*program.notes, *splitter.notes))


@dataclass(slots=True)
class _Splitter:
    sizes: frozenset[str]
    notes: dict[str, None] = field(default_factory=dict)

    def visit(self, statement: Stmt) -> Stmt:
        match statement:
            case Block(body):
                return Block(tuple(map(self.visit, body)))
            case For(kind="serial" | "vector", step=1) if all(
                isinstance(s, Block | Store) for s in walk(statement.body)
            ):
                return self.split(statement)
            case For() | Alloc():
                return replace(statement, body=self.visit(statement.body))
            case If(_, then, otherwise):
                other = None if otherwise is None else self.visit(otherwise)
                return replace(statement, then=self.visit(then), otherwise=other)
            case Store():
                return statement

    def split(self, loop: For) -> Stmt:
        lowers, uppers = _arms(loop.lower, "maximum"), _arms(loop.upper, "minimum")
        if (
            lowers is None
            or uppers is None
            or (len(lowers) == 1 == len(uppers) and (uppers[0] - lowers[0]).is_constant)
        ):
            return loop
        most = min(MOST_PIECES, max(1, MOST_NODES // _nodes(loop.body)))
        whole = _Piece(loop, lowers, uppers, {}, _deciders(loop.body), {})
        for cuts in range(MOST_PIECES, -1, -1):
            pieces = [*islice(_pieces(whole, self.sizes, cuts), most + 1)]
            if len(pieces) <= most:
                break
        if cuts < MOST_PIECES:
            note = (
                f"{loop.axis or loop.var}: subscripts wrap around or meet an end at more places than its loop is cut "
                f"at (pieces: {len(pieces)}); some points ask where they are"
            )
            self.notes[note] = None
        if len(pieces) == 1 and not pieces[0].values:
            return loop
        loops = tuple(replace(p.loop, body=map_stores(loop.body, partial(decide, values=p.values))) for p in pieces)
        return loops[0] if len(loops) == 1 else Block(loops)


def _arms(bound: Expr, name: str) -> tuple[Affine, ...] | None:
    """What a bound is the greatest or the least of; None where one of them is not affine."""
    match bound:
        case Op(own, (left, right)) if own == name:
            first, second = _arms(left, name), _arms(right, name)
            return None if first is None or second is None else (*first, *second)
        case _:
            affine = as_affine(bound)
            return None if affine is None else (affine,)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of a loop.

    lowers, uppers: what each of its points is at least, and less than
    values: what is known of comparisons there
    deciders: what of the body comparisons decide
    cuts: of the comparisons that were looked at, in this piece or another one, where they have another value
    """

    loop: For
    lowers: tuple[Affine, ...]
    uppers: tuple[Affine, ...]
    values: Mapping[Expr, bool]
    deciders: tuple[Op[Expr], ...]
    cuts: dict[Expr, tuple[Affine, bool] | None]

    def cut(self, question: Expr) -> tuple[Affine, bool] | None:
        """Where a comparison has another value, and whether it holds from there on; None where that is nowhere."""
        if question not in self.cuts:
            self.cuts[question] = _boundary(question, self.loop.var)
        return self.cuts[question]

    def knowing(self, question: Expr, value: bool) -> _Piece:
        return replace(self, values={**self.values, question: value})

    def is_at_least(self, boundary: Affine, sizes: frozenset[str]) -> bool:
        """Whether every point is surely not in front of a boundary."""
        return any(self.is_natural(lower - boundary, sizes) for lower in self.lowers)

    def is_less(self, boundary: Affine, sizes: frozenset[str]) -> bool:
        """Whether every point surely is."""
        return any(self.is_natural(boundary - upper, sizes) for upper in self.uppers)

    def end(self, boundary: Affine, sizes: frozenset[str]) -> Expr:
        """Where the piece is cut: at the boundary, or at its own end beyond which that lies.

        Its loop starts at the greatest of `lowers` or before, and ends at the least of `uppers` or behind.
        """
        place = affine_expr(boundary)
        if not all(_is_natural(boundary - lower, sizes) for lower in self.lowers):
            place = Op("maximum", (place, self.loop.lower), i64)
        if not all(_is_natural(upper - boundary, sizes) for upper in self.uppers):
            place = Op("minimum", (place, self.loop.upper), i64)
        return place

    def is_natural(self, affine: Affine, sizes: frozenset[str]) -> bool:
        """Whether an expression of sizes is not negative where the piece has a point."""
        points = (upper - lower - 1 for upper in self.uppers for lower in self.lowers)
        return any(_is_natural(affine - known, sizes) for known in (Affine(0), *points))


def _is_natural(affine: Affine, sizes: frozenset[str]) -> bool:
    of_sizes = all(isinstance(a, AxisRef) and a.name in sizes and factor > 0 for a, factor in affine.terms)
    return of_sizes and affine.constant >= 0


def _nodes(body: Stmt) -> int:
    """How large the expressions of a loop's body are."""
    exprs = (expr for store in walk(body) if isinstance(store, Store) for expr in (*store.indices, store.value))
    return sum(1 for expr in exprs for _ in walk_expr(expr))


def _pieces(piece: _Piece, sizes: frozenset[str], cuts: int) -> Iterator[_Piece]:
    """The piece in parts, each of which answers all questions that can be answered with so many cuts before it.

    Of several cuts, the one farthest from an end comes first: behind it, the others of that end are answered too.
    """
    places = {}
    for question in _questions(piece):
        cut = piece.cut(question)
        if cut is None:
            continue
        boundary, is_true_behind = cut
        if piece.is_at_least(boundary, sizes) or piece.is_less(boundary, sizes):
            value = piece.is_at_least(boundary, sizes) == is_true_behind
            yield from _pieces(piece.knowing(question, value), sizes, cuts)
            return
        places[question] = cut
    if not places or not cuts:
        yield piece
        return
    question = _farthest(piece, {question: boundary for question, (boundary, _) in places.items()})
    boundary, is_true_behind = places[question]
    end = piece.end(boundary, sizes)
    front = replace(piece, loop=replace(piece.loop, upper=end), uppers=(*piece.uppers, boundary))
    behind = replace(piece, loop=replace(piece.loop, lower=end), lowers=(*piece.lowers, boundary))
    yield from _pieces(front.knowing(question, not is_true_behind), sizes, cuts - 1)
    yield from _pieces(behind.knowing(question, is_true_behind), sizes, cuts - 1)


def _farthest(piece: _Piece, boundaries: Mapping[Expr, Affine]) -> Expr:
    """Which boundary is a number of points from the same end as the first one, and farthest from it."""
    first, *_ = boundaries.values()
    if any((first - lower).is_constant for lower in piece.lowers):
        inwards = 1
    elif any((upper - first).is_constant for upper in piece.uppers):
        inwards = -1
    else:
        inwards = 0
    steps = {question: boundary - first for question, boundary in boundaries.items()}
    return max(
        (question for question, step in steps.items() if step.is_constant),
        key=lambda question: inwards * steps[question].constant,
    )


def _deciders(body: Stmt) -> tuple[Op[Expr], ...]:
    """The remainders by sizes, minima and maxima of a loop's body, each once, in the order in which they occur."""
    exprs = (expr for store in walk(body) if isinstance(store, Store) for expr in (*store.indices, store.value))
    found = (n for expr in exprs for n in walk_expr(expr) if isinstance(n, Op) and n.dtype == i64)
    return tuple(dict.fromkeys(n for n in found if n.name in ("minimum", "maximum") or _is_remainder(n)))


def _is_remainder(node: Op[Expr]) -> bool:
    return node.name == "mod" and isinstance(node.args[1], Var)


def _questions(piece: _Piece) -> Iterator[Expr]:
    """Comparisons that decide a subscript and are open, in the order in which they may be asked."""
    for node in piece.deciders:
        left, right = node.args
        if node.name == "mod":
            yield from _of_remainder(left, right, piece.values)
        else:
            question = at_least(left, right)
            if question not in piece.values:
                yield question


def _of_remainder(left: Expr, size: Expr, values: Mapping[Expr, bool]) -> Iterator[Expr]:
    """Between which multiples of a size something lies, asked from 0 on."""
    for places in ((0, 1, 2), (0, -1)):
        for place in places:
            question = at_least_times(left, size, place)
            if question not in values:
                yield question
                return
            if values[question] != (places[-1] > 0):
                break


def _boundary(question: Expr, variable: str) -> tuple[Affine, bool] | None:
    """The first point behind which a comparison has another value, and whether it holds there; None where there is
    none or it is not a number of points away from one that sizes and loops around tell."""
    assert isinstance(question, Op), "a comparison has operands"
    left, right = (as_affine(arg) for arg in question.args)
    if left is None or right is None:
        return None
    difference = left - right
    slope = difference.coefficient(AxisRef(variable))
    rest = difference - axis(variable) * slope
    if abs(slope) != 1 or any(isinstance(atom, FloorDiv) for atom, _ in rest.terms):
        return None
    return (-rest, True) if slope == 1 else (rest + 1, False)
