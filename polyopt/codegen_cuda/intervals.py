"""Between which values an index expression lies, given where its variables lie."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from polyopt.dsl.ir import Const, Op, Var
from polyopt.dtypes import i64
from polyopt.loops.ir import Expr, For, integer, substitute

Interval = tuple[Expr, Expr]
"""The least and the greatest value, both included, over sizes and variables of loops outside."""

_FOLD: Mapping[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "minimum": min,
    "maximum": max,
}


def folded(name: str, left: Expr, right: Expr) -> Expr:
    """`left <name> right`, calculated where both are constants and left out where it changes nothing."""
    if isinstance(left, Const) and isinstance(right, Const):
        return integer(_FOLD[name](int(left.value), int(right.value)))
    if name in ("add", "sub") and isinstance(right, Const) and right.value == 0:
        return left
    if name == "add" and isinstance(left, Const) and left.value == 0:
        return right
    if name in ("mul", "floordiv") and isinstance(right, Const) and right.value == 1:
        return left
    if name in ("minimum", "maximum") and left == right:
        return left
    if name == "sub" and left == right:
        return integer(0)
    if name == "sub" and isinstance(left, Op) and left.name == "add" and right in left.args:
        return left.args[1] if left.args[0] == right else left.args[0]
    return Op(name, (left, right), i64)


def placed(expr: Expr, at: Mapping[str, Expr]) -> Expr:
    """An index expression with values for variables, calculated where that leaves less of it."""
    match expr:
        case Var(name):
            return at.get(name, expr)
        case Op(name, (left, right)) if name in _FOLD:
            return folded(name, placed(left, at), placed(right, at))
        case _:
            return substitute(expr, dict(at))


def of_loop(loop: For, ranges: Mapping[str, Interval]) -> Interval:
    """Where a loop's variable lies while the loop runs."""
    return interval(loop.lower, ranges)[0], folded("sub", interval(loop.upper, ranges)[1], integer(1))


def interval(expr: Expr, ranges: Mapping[str, Interval]) -> Interval:
    """The bounds of an index expression; an expression that is not understood is its own bound."""
    match expr:
        case Var(name):
            return ranges.get(name, (expr, expr))
        case Op("add", (left, right)):
            (a, b), (c, d) = interval(left, ranges), interval(right, ranges)
            return folded("add", a, c), folded("add", b, d)
        case Op("sub", (left, Op("mul", (Op("floordiv", (whole, Const(divisor))), Const(factor))))) if (
            divisor == factor and int(divisor) > 0 and (more := _ahead(whole, left)) is not None
        ):
            return integer(-more), integer(int(divisor) - 1 - more)
        case Op("sub", (left, right)):
            (a, b), (c, d) = interval(left, ranges), interval(right, ranges)
            return folded("sub", a, d), folded("sub", b, c)
        case Op("neg", (arg,)):
            a, b = interval(arg, ranges)
            return folded("sub", integer(0), b), folded("sub", integer(0), a)
        case Op("mul", (left, right)):
            return _product(left, right, ranges)
        case Op("floordiv" | "mod" as name, (left, Const(divisor))) if int(divisor) > 0:
            a, b = interval(left, ranges)
            if name == "floordiv":
                return folded(name, a, integer(int(divisor))), folded(name, b, integer(int(divisor)))
            return integer(0), integer(int(divisor) - 1)
        case Op("minimum" | "maximum" as name, (left, right)):
            (a, b), (c, d) = interval(left, ranges), interval(right, ranges)
            return folded(name, a, c), folded(name, b, d)
        case Op("select", (_, left, right)):
            (a, b), (c, d) = interval(left, ranges), interval(right, ranges)
            return folded("minimum", a, c), folded("maximum", b, d)
        case _:
            return expr, expr


def _ahead(expr: Expr, other: Expr) -> int | None:
    """By which constant an expression is more than another one; None where that is not plain."""
    match expr:
        case _ if expr == other:
            return 0
        case Op("add", (left, Const(more))) if left == other:
            return int(more)
        case Op("sub", (left, Const(less))) if left == other:
            return -int(less)
        case _:
            return None


def _product(left: Expr, right: Expr, ranges: Mapping[str, Interval]) -> Interval:
    (a, b), (c, d) = interval(left, ranges), interval(right, ranges)
    if c == d and isinstance(c, Const):
        ends = folded("mul", a, c), folded("mul", b, c)
        return ends if int(c.value) >= 0 else (ends[1], ends[0])
    if a == b and isinstance(a, Const):
        return _product(right, left, ranges)
    corners = [folded("mul", x, y) for x in (a, b) for y in (c, d)]
    if a == b and c == d:
        return corners[0], corners[0]
    low, high = corners[0], corners[0]
    for corner in corners[1:]:
        low, high = folded("minimum", low, corner), folded("maximum", high, corner)
    return low, high


def as_number(expr: Expr) -> int | None:
    """The value of a constant; None for anything else."""
    return int(expr.value) if isinstance(expr, Const) else None
