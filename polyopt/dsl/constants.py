"""Numbers in the typed core: literals, weak values that take a dtype, and what is computed at once."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl import ir
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.types import WEAK_BOOL, WEAK_FLOAT, WEAK_INT, Type, WeakType
from polyopt.dtypes import DType, bool_, f64, from_numpy, i64
from polyopt.errors import DTypeError, Span


@dataclass(frozen=True, slots=True)
class Typed:
    """A typed node. While `type` is weak or unknown, the node's own dtype is provisional."""

    node: ir.Expr
    type: Type


def literal(value: bool | int | float | np.generic) -> Typed:
    """A number: weak where it is Python's, of its own dtype where it is NumPy's."""
    if isinstance(value, np.generic):
        dtype = from_numpy(value.dtype)
        return Typed(ir.Const(value.item(), dtype), dtype)
    if isinstance(value, bool):
        return Typed(ir.Const(value, bool_), WEAK_BOOL)
    if isinstance(value, int):
        return Typed(ir.Const(value, i64), WEAK_INT)
    return Typed(ir.Const(value, f64), WEAK_FLOAT)


def not_fitting(value: object, dtype: DType, span: Span | None) -> DTypeError:
    """The error of a number that an integer dtype does not hold."""
    low, high = integer_range(dtype)
    return DTypeError(
        f"{value} does not fit {dtype}",
        where=span,
        why=f"{dtype} holds {low} to {high}.",
        fix="convert the other operand to a wider dtype with po.cast, or fix the tensor's dtype with dtype=.",
        facts={"value": value, "dtype": str(dtype)},
    )


def constant(value: bool | int | float, dtype: DType, span: Span | None) -> ir.Const:
    """The number in a dtype. Raises `DTypeError` where an integer dtype cannot hold it."""
    if dtype.is_float:
        return ir.Const(_rounded(float(value), dtype), dtype)
    if dtype.is_bool:
        return ir.Const(bool(value), dtype)
    low, high = integer_range(dtype)
    if not math.isfinite(value) or not low <= int(value) <= high:
        raise not_fitting(value, dtype, span)
    return ir.Const(int(value), dtype)


def _rounded(value: float, dtype: DType) -> float:
    """The value nearest to `value` in a floating dtype."""
    if dtype.name == "f64" or not math.isfinite(value):
        return value
    if dtype.name == "bf16":
        return _round_to_bf16(value)
    with np.errstate(over="ignore"):
        return float(np.asarray(value).astype(dtype.numpy))


def _round_to_bf16(value: float) -> float:
    """Round half to even at 8 significant bits; ml_dtypes is an extra, so it is not asked."""
    mantissa, exponent = math.frexp(value)
    step = math.ldexp(1.0, max(exponent - 8, -133))
    rounded = round(value / step) * step if mantissa else value
    return math.copysign(math.inf, value) if abs(rounded) >= math.ldexp(1.0, 128) else math.copysign(rounded, value)


def integer_range(dtype: DType) -> tuple[int, int]:
    """The least and the greatest value of an integer dtype."""
    if dtype.kind == "u":
        return 0, 2**dtype.bits - 1
    return -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1


def reach(node: ir.Expr, known: Mapping[ir.Expr, tuple[int, int]]) -> tuple[int, int] | None:
    """A range that holds every value of integer arithmetic on numbers and run-time scalars; None where there is more in
    it. known: the scalars' own"""
    match node:
        case ir.Const(value=value):
            return int(value), int(value)
        case ir.Op(name, args) if name in _REACH and node not in known:
            parts = [reach(arg, known) for arg in args]
            found = [part for part in parts if part is not None]
            return _REACH[name](*found) if len(found) == len(parts) else None
        case _:
            return known.get(node)


Reach = tuple[int, int]


def _corners(operation: Callable[[int, int], int]) -> Callable[[Reach, Reach], Reach]:
    """Of an operation that is monotone in each operand, or is between the corners of any box."""

    def found(left: Reach, right: Reach) -> Reach:
        values = [operation(a, b) for a in left for b in right]
        return min(values), max(values)

    return found


def _quotients(left: Reach, right: Reach) -> Reach:
    if right[0] > 0 or right[1] < 0:
        return _corners(lambda a, b: a // b)(left, right)
    most = max(map(abs, left))  # a division by zero gives 0
    return -most, most


def _remainders(left: Reach, right: Reach) -> Reach:
    """They have the sign of the divisor, and one by zero is 0."""
    top = right[1] - 1 if left[0] < 0 else min(left[1], right[1] - 1)
    return min(right[0] + 1, 0), max(top, 0)


def _bits(left: Reach, right: Reach) -> Reach:
    bits = max(end.bit_length() for end in (*left, *right))
    return -(1 << bits) if min(left[0], right[0]) < 0 else 0, (1 << bits) - 1


def _common_bits(left: Reach, right: Reach) -> Reach:
    tops = [part[1] for part in (left, right) if part[0] >= 0]
    return (0, min(tops)) if tops else _bits(left, right)


def _shifted_left(left: Reach, right: Reach) -> Reach:
    """A shift by 64 or more, or by less than 0, gives 0."""
    most = min(max(right[1], 0), 63)
    return min(left[0] << most, 0), max(left[1] << most, 0)


def _magnitudes(arg: Reach) -> Reach:
    low = 0 if arg[0] <= 0 <= arg[1] else min(map(abs, arg))
    return low, max(map(abs, arg))


_REACH: Mapping[str, Callable[..., Reach]] = {
    "add": _corners(operator.add),
    "sub": _corners(operator.sub),
    "mul": _corners(operator.mul),
    "minimum": _corners(min),
    "maximum": _corners(max),
    "neg": lambda arg: (-arg[1], -arg[0]),
    "abs": _magnitudes,
    "sign": lambda arg: (-1, 1),
    "floordiv": _quotients,
    "mod": _remainders,
    "and": _common_bits,
    "or": _bits,
    "xor": _bits,
    "not": lambda arg: (~arg[1], ~arg[0]),
    "shl": _shifted_left,
    "shr": lambda left, right: (min(left[0], 0), max(left[1], 0)),
}
"""Ranges of results from those of the operands, before they wrap around."""


def recast(node: ir.Expr, dtype: DType, span: Span | None) -> ir.Expr:
    """A weak node in a dtype: constants change in place, choices in their branches.

    Sums, products and powers of integers become those of floats where a float is wanted: integers would wrap around.
    """
    if node.dtype == dtype:
        return node if not isinstance(node, ir.Const) else constant(node.value, dtype, span)
    match node:
        case ir.Const(value=value):
            return constant(value, dtype, span)
        case ir.Where(condition, then, otherwise):
            return ir.Where(condition, recast(then, dtype, span), recast(otherwise, dtype, span), dtype)
        case ir.Op(name="select", args=(condition, then, otherwise)):
            return ir.Op("select", (condition, recast(then, dtype, span), recast(otherwise, dtype, span)), dtype)
        case ir.Op("add" | "sub" | "mul" | "neg" | "pow" as name, args) if dtype.is_float and node.dtype.is_integer:
            number = ir.Op(name, tuple(recast(arg, f64, span) for arg in args), f64)
            return number if dtype == f64 else ir.Cast(number, dtype)
        case _:
            return ir.Cast(node, dtype)


def condition_value(condition: af.Condition) -> Typed:
    """An affine condition used as a value."""
    if condition in (af.TRUE, af.FALSE):
        return Typed(ir.Const(condition == af.TRUE, bool_), bool_)
    return Typed(ir.Where(condition, ir.Const(True, bool_), ir.Const(False, bool_), bool_), bool_)


def is_condition(node: ir.Expr) -> bool:
    """Whether the node is what `condition_value` makes, so that a conversion can go into its branches."""
    return isinstance(node, ir.Where) and isinstance(node.then, ir.Const) and isinstance(node.otherwise, ir.Const)


def fold_weak(name: str, values: tuple[bool | int | float, ...], operand: WeakType) -> Typed | None:
    """A operation on Python numbers alone, done at once; None where Python would not give a number."""
    try:
        with np.errstate(all="ignore"):
            result = BUILTINS[name].numpy(*values)
    except (ArithmeticError, TypeError, ValueError):
        return None
    value = np.asarray(result).item()
    kind = {"b": bool, "i": int, "f": float}[operand.kind]
    return literal(kind(value))
