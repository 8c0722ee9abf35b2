"""Cuts loops around lanes and registers where the bounds of these move.

`for j: unrolled for i in range(max(i0, j + c), i0 + 4)` is a register tile up to `j = i0 - c`, and a few iterations at
the diagonal of a triangle; and `for s in range(3): unrolled for w in range(max(0, 1 - s), min(7, 8 - s))` is a row of a
padded image three times, each with bounds of its own. Between the pieces nothing else runs, so the order stays.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from polyopt.dsl.affine import Affine, AxisRef, axis, constant, substitute
from polyopt.dsl.ir import Op
from polyopt.dtypes import i64
from polyopt.loops.affine import arms, as_affine, plain_atoms
from polyopt.loops.ir import Expr, For, Stmt, integer
from polyopt.loops.scan import affine_expr

MOST_APART = 8
"""Iterations of a loop that are written one by one."""

_SIDES = (("lower", "maximum"), ("upper", "minimum"))
"""The bounds of a loop, and what each is of several."""


def pieces(loop: For) -> tuple[For, ...]:
    """The loop in pieces: each iteration, where all lanes and rows inside then have bounds that do not move, else one
    piece in which they do not."""
    found = _iterations(loop) or _split_bounds(loop)
    return tuple(piece for piece in found if not _is_empty(piece)) or (loop,)


def _is_empty(loop: For) -> bool:
    lower, upper = as_affine(loop.lower), as_affine(loop.upper)
    return lower is not None and upper is not None and (upper - lower).is_constant and (upper - lower).constant <= 0


def _iterations(loop: For) -> tuple[For, ...]:
    """Each iteration as a loop of its own, in which registers hold the same all the time; none where there are many,
    or bounds of the registers inside would move all the same."""
    lower, upper = as_affine(loop.lower), as_affine(loop.upper)
    if lower is None or upper is None or not lower.is_constant or not upper.is_constant:
        return ()
    if all(map(_is_bounded, _registers(loop.body))) or not 1 < upper.constant - lower.constant <= MOST_APART:
        return ()
    made = tuple(
        replace(loop, lower=integer(at), upper=integer(at + 1), body=_at(loop.body, loop.var, at))
        for at in range(lower.constant, upper.constant)
    )
    return made if all(_is_bounded(inner) for piece in made for inner in _registers(piece.body)) else ()


def _registers(body: Stmt) -> Iterator[For]:
    """The loops that are written out of those straight inside one another."""
    while isinstance(body, For):
        if body.kind == "unrolled":
            yield body
        body = body.body


def _at(body: Stmt, variable: str, value: int) -> Stmt:
    """The body with bounds of the loops straight inside one another as they are for a value of a variable."""
    if not isinstance(body, For):
        return body
    lower, upper = (_bound_at(getattr(body, side), name, variable, value) for side, name in _SIDES)
    return replace(body, lower=lower, upper=upper, body=_at(body.body, variable, value))


def _bound_at(bound: Expr, name: str, variable: str, value: int) -> Expr:
    """The bound for a value of the variable: of parts at a constant distance from each other the one that decides."""
    kept: list[Affine] = []
    for arm in arms(bound, name):
        affine = as_affine(arm)
        if affine is None:
            return bound
        part = substitute(affine, lambda atom: constant(value) if atom == AxisRef(variable) else None)
        other = next((o for o in kept if (o - part).is_constant), None)
        if other is None:
            kept.append(part)
        elif ((part - other).constant > 0) == (name == "maximum"):
            kept[kept.index(other)] = part
    return _joined(name, [affine_expr(part) for part in kept])


def _split_bounds(loop: For) -> tuple[For, ...]:
    """The loop in pieces, in one of which the lanes and rows inside have bounds that it does not move."""
    inside: set[str] = set()
    for inner in _written_out(loop.body):
        around = frozenset(inside)
        inside.add(inner.var)
        if _is_bounded(inner):
            continue
        for side in ("lower", "upper"):
            edge = _edge(inner, side, loop.var, around)
            if edge is None:
                continue
            bound, boundary, is_first = edge
            lower, upper = _bounded("maximum", loop.lower, boundary), _bounded("minimum", loop.upper, boundary)
            first, last = replace(loop, upper=upper), replace(loop, lower=lower)
            if is_first:
                return (*_split_bounds(replace(first, body=_with_bound(first.body, inner, side, bound))), last)
            return (first, *_split_bounds(replace(last, body=_with_bound(last.body, inner, side, bound))))
    return (loop,)


def _written_out(body: Stmt) -> Iterator[For]:
    """The loops straight inside that become lanes or registers."""
    while isinstance(body, For) and body.kind in ("unrolled", "vector", "group"):
        yield body
        body = body.body


def _is_bounded(loop: For) -> bool:
    """Whether a greatest number of iterations is known."""
    lower = as_affine(loop.lower)
    uppers = [as_affine(arm) for arm in arms(loop.upper, "minimum")]
    return lower is not None and any(upper is not None and (upper - lower).is_constant for upper in uppers)


def _edge(inner: For, side: str, variable: str, around: frozenset[str]) -> tuple[Expr, Expr, bool] | None:
    """For a bound that is the greatest (or least) of a part that the variable moves and a part that it does not: the
    latter, the first iteration on the other side, and whether the latter holds before it.

    around: variables of loops between the one that is split and `inner`, which the first iteration cannot depend on
    """
    name = "maximum" if side == "lower" else "minimum"
    moved: list[Affine] = []
    still: list[Affine] = []
    for arm in arms(inner.lower if side == "lower" else inner.upper, name):
        affine = as_affine(arm)
        if affine is None:
            return None
        moves = variable in {atom.name for atom in plain_atoms(affine)}
        (moved if moves else still).append(affine)
    if len(moved) != 1 or not still:
        return None
    slope = moved[0].coefficient(AxisRef(variable))
    rest = moved[0] - axis(variable) * slope
    if abs(slope) != 1 or variable in {atom.name for atom in plain_atoms(rest)}:
        return None
    is_first = (slope == 1) == (side == "lower")
    if any(atom.name in around for part in still for atom in plain_atoms(part - rest)):
        return None
    # the parts are equal where variable = (still - rest) * slope; there the part that does not move still holds
    shift = 1 if is_first else 0
    ends = [affine_expr((part - rest) * slope + shift) for part in still]
    bound = _joined(name, [affine_expr(part) for part in still])
    other = {"maximum": "minimum", "minimum": "maximum"}
    return bound, _joined(name if slope == 1 else other[name], ends), is_first


def _joined(name: str, parts: list[Expr]) -> Expr:
    result = parts[0]
    for part in parts[1:]:
        result = Op(name, (result, part), i64)
    return result


def _bounded(name: str, bound: Expr, boundary: Expr) -> Expr:
    """The bound and the boundary, whichever is further in; as one expression where their distance is known."""
    first, second = as_affine(bound), as_affine(boundary)
    if first is not None and second is not None and (first - second).is_constant:
        takes_first = ((first - second).constant >= 0) == (name == "maximum")
        return bound if takes_first else boundary
    return Op(name, (bound, boundary), i64)


def _with_bound(body: Stmt, inner: For, side: str, bound: Expr) -> Stmt:
    """The body with a bound of one of the loops written out replaced."""
    assert isinstance(body, For), "the loops stand straight inside one another"
    if body is inner or body == inner:
        return replace(body, lower=bound) if side == "lower" else replace(body, upper=bound)
    return replace(body, body=_with_bound(body.body, inner, side, bound))
