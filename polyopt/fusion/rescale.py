"""How a summand moves when the value that it is taken relative to moves: found with sympy, not by a pattern.

A sum of `f(x, m)` can run while `m` is still changing if `f(x, m') = g(m, m') * f(x, m)` for a `g` that does not
depend on x: what has been summed so far is multiplied by `g` whenever `m` changes. Such an `f` is a product
`F(x) * G(m)`, and `g` is `G(m') / G(m)`. Here `G` must be an exponential, the one case in which `F` and `G` alone
may overflow while their product does not; any other factor simply leaves the sum. Source: [OnlineSoftmax18].
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from math import isclose, isfinite
from typing import TYPE_CHECKING

from polyopt.classes import dataclass
from polyopt.dsl import ir

if TYPE_CHECKING:
    import sympy


@dataclass(frozen=True, slots=True)
class Rescale:
    """`g(m, m') = function(factor * (m - m'))`. function: "exp" or "exp2"."""

    function: str
    factor: float

    def of(self, before: ir.Expr, after: ir.Expr) -> ir.Expr:
        """What a sum relative to `before` is multiplied by to be relative to `after`."""
        dtype = before.dtype
        distance: ir.Expr = ir.Op("sub", (before, after), dtype)
        if self.factor != 1:
            distance = ir.Op("mul", (ir.Const(self.factor, dtype), distance), dtype)
        return ir.Op(self.function, (distance,), dtype)

    def __str__(self) -> str:
        distance = "before - after" if self.factor == 1 else f"{self.factor:g} * (before - after)"
        return f"{self.function}({distance})"


def factors(expr: ir.Expr, inverted: bool = False) -> Iterator[tuple[ir.Expr, bool]]:
    """The factors of a product of floats, each with whether it divides."""
    match expr:
        case ir.Op("mul", (left, right)) if expr.dtype.is_float:
            yield from factors(left, inverted)
            yield from factors(right, inverted)
        case ir.Op("truediv", (left, right)):
            yield from factors(left, inverted)
            yield from factors(right, not inverted)
        case _:
            yield expr, inverted


def product(parts: Sequence[tuple[ir.Expr, bool]]) -> ir.Expr | None:
    """The product of factors; None for none. Divisors come last."""
    result: ir.Expr | None = None
    for part, inverted in sorted(parts, key=lambda p: p[1]):
        if inverted:
            result = ir.Op("truediv", (result or ir.Const(1.0, part.dtype), part), part.dtype)
        else:
            result = part if result is None else ir.Op("mul", (result, part), part.dtype)
    return result


def without(expr: ir.Expr, dropped: Collection[ir.Expr], replaced: Mapping[ir.Expr, ir.Expr]) -> ir.Expr | None:
    """The product without some of its `factors` and with others replaced, its operations in the same order."""
    match expr:
        case ir.Op("mul" | "truediv" as name, (left, right)) if name == "truediv" or expr.dtype.is_float:
            first, second = without(left, dropped, replaced), without(right, dropped, replaced)
            if first is None and second is not None and name == "truediv":
                first = ir.Const(1.0, expr.dtype)
            return first if second is None else second if first is None else ir.Op(name, (first, second), expr.dtype)
        case _:
            return None if expr in dropped else replaced.get(expr, expr)


def solve(weight: ir.Expr, is_moving: Callable[[ir.Expr], bool]) -> Rescale | None:
    """The rescaling of a summand; None where there is none.

    is_moving: whether a read is of the value that moves; all else is taken as given
    """
    plain = _logarithm_slope(weight, is_moving)
    if plain is not None:
        return Rescale(*plain)
    import sympy  # half a second, with the first summand that has another shape

    before, after = sympy.Symbol("m", real=True), sympy.Symbol("n", real=True)
    given: dict[ir.Expr, sympy.Expr] = {}
    first = _as_sympy(weight, is_moving, before, given)
    second = _as_sympy(weight, is_moving, after, given)
    if first is None or second is None:
        return None
    slope = sympy.simplify(sympy.log(sympy.powsimp(second / first, combine="exp", force=True)) / (before - after))
    slope = sympy.simplify(sympy.expand_log(slope, force=True))
    for function, unit in (("exp", sympy.Integer(1)), ("exp2", sympy.log(2))):
        factor = sympy.simplify(slope / unit)
        if factor.is_number and (factor.is_Rational or factor.is_Float):
            return Rescale(function, float(factor))
    return None


def is_bounded(weight: ir.Expr, body: ir.Expr, is_moving: Callable[[ir.Expr], bool], factor: float) -> bool:
    """Whether a weight is a product of powers of `exp(body - m)`, `factor` in all, where `m` moves towards the body's
    extremum: then it is at most 1 whatever `m` is so far, and 0 where the body is infinitely far from any."""
    total = Fraction(0)
    parts = [(part, inverted) for part, inverted in factors(weight) if part != ir.Const(1.0, part.dtype)]
    functions = {part.name for part, _ in parts if isinstance(part, ir.Op)}
    if len(functions) != 1 or not functions <= {"exp", "exp2"}:
        return False
    whole = _terms(body, is_moving)
    for part, inverted in parts:
        if not isinstance(part, ir.Op):
            return False
        terms = _terms(part.args[0], is_moving)
        moves = (1 if inverted else -1) * terms.pop(None, Fraction(0))
        sign = -1 if inverted else 1
        if (
            moves * Fraction(factor) <= 0
            or 0 in terms.values()
            or {k: sign * v for k, v in terms.items()} != {k: moves * v for k, v in whole.items()}
        ):
            return False
        total += moves
    return isclose(total, factor, rel_tol=1e-12)


def _terms(expr: ir.Expr, is_moving: Callable[[ir.Expr], bool]) -> dict[ir.Expr | None, Fraction]:
    """The expression as a sum of multiples of others; that of the moving value is at None."""
    found: dict[ir.Expr | None, Fraction] = {}

    def add(expr: ir.Expr, times: Fraction) -> None:
        match expr:
            case _ if is_moving(expr):
                found[None] = found.get(None, Fraction(0)) + times
            case ir.Op("add", (left, right)):
                add(left, times)
                add(right, times)
            case ir.Op("sub", (left, right)):
                add(left, times)
                add(right, -times)
            case ir.Op("neg", (inner,)):
                add(inner, -times)
            case ir.Op("mul", (inner, ir.Const(value))) | ir.Op("mul", (ir.Const(value), inner)) if isfinite(value):
                add(inner, times * Fraction(value))
            case ir.Op("truediv", (inner, ir.Const(value))) if isfinite(value) and value:
                add(inner, times / Fraction(value))
            case _:
                found[expr] = found.get(expr, Fraction(0)) + times

    add(expr, Fraction(1))
    return found


def _logarithm_slope(weight: ir.Expr, is_moving: Callable[[ir.Expr], bool]) -> tuple[str, float] | None:
    """Of one exponential whose argument moves in proportion, the function and the proportion; None for the rest."""
    if isinstance(weight, ir.Op) and weight.name in ("exp", "exp2"):
        slope = _slope(weight.args[0], is_moving)
        if slope is not None and slope != 0:
            return weight.name, -slope
    return None


def _slope(expr: ir.Expr, is_moving: Callable[[ir.Expr], bool]) -> float | None:
    """The derivative by the moving value, where it is a number."""
    if is_moving(expr):
        return 1.0
    if not any(is_moving(node) for node in ir.walk(expr)):
        return 0.0
    match expr:
        case ir.Op("add" | "sub" as name, (left, right)):
            first, second = _slope(left, is_moving), _slope(right, is_moving)
            if first is None or second is None:
                return None
            return first + second if name == "add" else first - second
        case ir.Op("mul", (inner, ir.Const(value))) | ir.Op("mul", (ir.Const(value), inner)):
            slope = _slope(inner, is_moving)
            return None if slope is None else slope * value
        case ir.Op("neg", (inner,)):
            slope = _slope(inner, is_moving)
            return None if slope is None else -slope
        case _:
            return None


def _as_sympy(
    expr: ir.Expr, is_moving: Callable[[ir.Expr], bool], moving: sympy.Symbol, given: dict[ir.Expr, sympy.Expr]
) -> sympy.Expr | None:
    """The expression over a symbol for the moving value and one for each part without it."""
    import sympy

    if is_moving(expr):
        return moving
    if isinstance(expr, ir.Const) and isinstance(expr.value, (int, float)):
        return sympy.nsimplify(expr.value) if abs(expr.value) < 1 << 20 else None
    if not any(is_moving(node) for node in ir.walk(expr)):
        return given.setdefault(expr, sympy.Symbol(f"x{len(given)}", real=True))
    if not isinstance(expr, ir.Op):
        return None
    args: list[sympy.Expr] = []
    for part in expr.args:
        arg = _as_sympy(part, is_moving, moving, given)
        if arg is None:
            return None
        args.append(arg)
    match expr.name, args:
        case "add", (left, right):
            return left + right
        case "sub", (left, right):
            return left - right
        case "mul", (left, right):
            return left * right
        case "truediv", (left, right):
            return left / right
        case "neg", (only,):
            return -only
        case "exp", (only,):
            return sympy.exp(only)
        case "exp2", (only,):
            return sympy.exp(only * sympy.log(2))
        case _:
            return None
