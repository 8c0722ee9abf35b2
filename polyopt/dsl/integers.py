"""Arithmetic of Python integers: its exact results, and how far those of numbers known at the call may reach."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from polyopt.dsl import affine as af
from polyopt.dsl import ir
from polyopt.dtypes import DType, f64, i64

Reach = tuple[int, int]
"""The least and the greatest value."""

HUGE = 1 << 4096
"""What no result is told apart from: a larger one fits no dtype."""
MOST_SIZE = (1 << 31) - 1
"""What a size that is open is taken not to exceed where it is multiplied."""


def integer_range(dtype: DType) -> Reach:
    """The least and the greatest value of an integer dtype."""
    if dtype.kind == "u":
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def integer_text(value: int) -> str:
    """The number in digits, or roughly where it has many."""
    if value.bit_length() <= 128:
        return str(value)
    return f"{'' if value > 0 else '-'}2**{abs(value).bit_length() - 1} or beyond"


# --- exact results ---------------------------------------------------------------------------------------------------


def _floor_divide(a: int, b: int) -> int:
    return a // b if b else 0


def _remainder(a: int, b: int) -> int:
    return a % b if b else 0


def _power(a: int, b: int) -> int:
    if b < 0:  # what truncation gives
        return 1 if a == 1 else (-1 if b % 2 else 1) if a == -1 else 0
    if abs(a) > 1 and (abs(a).bit_length() - 1) * b >= HUGE.bit_length():
        return -HUGE if a < 0 and b % 2 else HUGE
    return int(a**b)


def _shift_left(a: int, b: int) -> int:
    return 0 if b < 0 else a << min(b, HUGE.bit_length())


def _shift_right(a: int, b: int) -> int:
    return a >> (b if b >= 0 else max(abs(a).bit_length(), 1))


def _sign(a: int) -> int:
    return (a > 0) - (a < 0)


EXACT: Mapping[str, Callable[..., int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": _floor_divide,
    "mod": _remainder,
    "pow": _power,
    "minimum": min,
    "maximum": max,
    "neg": operator.neg,
    "abs": abs,
    "sign": _sign,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "not": operator.invert,
    "shl": _shift_left,
    "shr": _shift_right,
}
"""The operations on Python integers, with the builtins' results where Python has none."""


# --- how far results reach -------------------------------------------------------------------------------------------

_MODULAR = frozenset({"add", "sub", "mul", "neg", "and", "or", "xor", "not"})
"""Operations whose low 64 bits follow from those of the operands, so that these may leave them."""


def reach(node: ir.Expr, known: Mapping[ir.Expr, Reach]) -> Reach | None:
    """How far the exact value of integer arithmetic on numbers, sizes and run-time scalars reaches.

    None where nothing is known of an operand, or where one that leaves 64 bits makes the low 64 bits wrong.
    known: the scalars' own. Open sizes are taken not to exceed `MOST_SIZE`
    """
    if node in known:
        return known[node]
    match node:
        case ir.Const(value=value):
            return int(value), int(value)
        case ir.Where(_, then, otherwise) | ir.Op("select", (_, then, otherwise)):
            return _either(reach(then, known), reach(otherwise, known))
        case _ if node.dtype.is_bool:
            return 0, 1
        case ir.IndexValue(affine) if not af.axes_of(affine):
            return _of_sizes(affine)
        case ir.Cast(arg):
            return reach(arg, known) if not arg.dtype.is_float else None
        case ir.Op(name, args) if name in EXACT:
            operands = [reach(arg, known) for arg in args]
            found = [operand for operand in operands if operand is not None]
            if len(found) < len(operands) or (name not in _MODULAR and not all(within(r, i64) for r in found)):
                return None
            return reach_of(name, *found)
        case _:
            return None


def within(found: Reach, dtype: DType) -> bool:
    """Whether the integer dtype holds all of the range."""
    low, high = integer_range(dtype)
    return low <= found[0] and found[1] <= high


def _either(one: Reach | None, other: Reach | None) -> Reach | None:
    return None if one is None or other is None else (min(one[0], other[0]), max(one[1], other[1]))


def _of_sizes(affine: af.Affine) -> Reach:
    low = high = affine.constant
    for atom, factor in affine.terms:
        ends = 0, MOST_SIZE
        if isinstance(atom, af.FloorDiv):
            least, most = _of_sizes(atom.numerator)
            ends = least // atom.divisor, most // atom.divisor
        products = [factor * end for end in ends]
        low, high = low + min(products), high + max(products)
    return low, high


def reach_of(name: str, *operands: Reach) -> Reach:
    """Where the exact results of an operation of `EXACT` are, of operands in these ranges."""
    if all(low == high for low, high in operands):
        exact = EXACT[name](*(low for low, _ in operands))
        return exact, exact
    match name:
        case "mod":
            return _hull([_remainders(operands[0], divisors) for divisors in _by_sign(operands[1])])
        case "and" | "or" | "xor":
            return _of_bits(name, *operands)
        case "floordiv" | "pow" | "shl" | "shr" | "abs" | "sign" | "mul":
            parts = [_by_sign(operand) for operand in operands]
        case _:
            parts = [[operand] for operand in operands]
    return _hull([_corners(name, *part) for part in _products(parts)])


def _by_sign(found: Reach) -> list[Reach]:
    """The range in parts below, at and above 0; on each the operations are monotone in each operand."""
    low, high = found
    parts = [(low, min(high, -1)), (max(low, 0), min(high, 0)), (max(low, 1), high)]
    return [(least, most) for least, most in parts if least <= most]


def _products(parts: list[list[Reach]]) -> list[tuple[Reach, ...]]:
    if not parts:
        return [()]
    return [(first, *rest) for first in parts[0] for rest in _products(parts[1:])]


def _corners(name: str, *operands: Reach) -> Reach:
    ends = [list(operand) for operand in operands]
    if name == "pow" and operands[0][0] < 0:  # the sign alternates with the exponent
        low, high = operands[1]
        ends[1] += [min(low + 1, high), max(high - 1, low)]
    values = [EXACT[name](*corner) for corner in _products(ends)]  # type: ignore[arg-type]
    return min(values), max(values)


def _remainders(dividends: Reach, divisors: Reach) -> Reach:
    """divisors: of one sign"""
    low, high = divisors
    if low >= 0:
        most = max(high - 1, 0)
        return (0, min(most, dividends[1])) if dividends[0] >= 0 else (0, most)
    least = low + 1
    return (max(least, dividends[0]), 0) if dividends[1] <= 0 else (least, 0)


def _of_bits(name: str, one: Reach, other: Reach) -> Reach:
    """Logic on the bits of two numbers, whose results have no more bits than they."""
    if name == "and" and (one[0] >= 0 or other[0] >= 0):
        return 0, min(r[1] for r in (one, other) if r[0] >= 0)
    most = (1 << max(end.bit_length() for end in (*one, *other))) - 1
    return (0 if one[0] >= 0 and other[0] >= 0 else -most - 1), most


def _hull(parts: list[Reach]) -> Reach:
    return min(low for low, _ in parts), max(high for _, high in parts)


# --- as floats -------------------------------------------------------------------------------------------------------

_EXACT_IN_FLOATS = 1 << 52
_FLOAT = frozenset({"add", "sub", "mul", "neg", "abs", "sign", "minimum", "maximum", "pow"})


def in_floats(node: ir.Expr, known: Mapping[ir.Expr, Reach]) -> ir.Expr | None:
    """The arithmetic done in f64, for results that leave 64 bits; None where that may lose more than rounding.

    known: how far scalars reach
    """
    match node:
        case ir.Op(name, args) if name in _FLOAT:
            parts = [in_floats(arg, known) for arg in args]
            operands = [part for part in parts if part is not None]
            if len(operands) < len(parts) or (name in ("add", "sub") and _may_cancel(name, args, known)):
                return None
            return ir.Op(name, tuple(operands), f64)
        case ir.Op("shl", (value, count)):
            power = ir.Op("pow", (ir.Const(2, i64), count), i64)
            return in_floats(ir.Op("mul", (value, power), i64), known) if _is_natural(count, known) else None
        case ir.Const(value=value):
            return ir.Const(float(value), f64) if abs(value) < 1 << 1023 else None
        case ir.Cast(arg) if arg.dtype.is_integer:
            return in_floats(arg, known)
        case ir.Op():
            found = reach(node, known)
            return ir.Cast(node, f64) if found is not None and within(found, i64) else None
        case _:
            return ir.Cast(node, f64)


def _is_natural(node: ir.Expr, known: Mapping[ir.Expr, Reach]) -> bool:
    found = reach(node, known)
    return found is not None and found[0] >= 0


def _may_cancel(name: str, args: tuple[ir.Expr, ...], known: Mapping[ir.Expr, Reach]) -> bool:
    """Whether a sum of two large numbers may be small, and what rounding left of it wrong."""
    one, other = (reach(arg, known) for arg in args)
    for found in (one, other):
        if found is not None and max(map(abs, found)) <= _EXACT_IN_FLOATS:
            return False
    if one is None or other is None:
        return True
    low, high = other if name == "add" else (-other[1], -other[0])
    return not ((one[0] >= 0 and low >= 0) or (one[1] <= 0 and high <= 0))
