"""Numbers in the typed core: literals, weak values that take a dtype, and what is computed at once."""

from __future__ import annotations

import math

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl import ir
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.integers import EXACT, HUGE, integer_range, integer_text
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
    """The error of a number that a dtype does not hold."""
    held = f"numbers below 2**{_EXPONENT[dtype.name]}" if dtype.is_float else "{} to {}".format(*integer_range(dtype))
    return DTypeError(
        f"{value} does not fit {dtype}",
        where=span,
        why=f"{dtype} holds {held}.",
        fix="convert the other operand to a wider dtype with po.cast, or fix the tensor's dtype with dtype=.",
        facts={"value": value, "dtype": str(dtype)},
    )


def constant(value: bool | int | float, dtype: DType, span: Span | None) -> ir.Const:
    """The number in a dtype. Raises `DTypeError` where an integer dtype, or any float, cannot hold it."""
    if dtype.is_float:
        if isinstance(value, int) and abs(value) >= _TOO_LARGE:
            raise not_fitting(integer_text(value), dtype, span)
        return ir.Const(_rounded(float(value), dtype), dtype)
    if dtype.is_bool:
        return ir.Const(bool(value), dtype)
    low, high = integer_range(dtype)
    if isinstance(value, float) and not math.isfinite(value):
        raise not_fitting(value, dtype, span)
    if not low <= int(value) <= high:
        raise not_fitting(integer_text(value) if isinstance(value, int) else value, dtype, span)
    return ir.Const(int(value), dtype)


_EXPONENT = {"f16": 16, "bf16": 128, "f32": 128, "f64": 1024}
_TOO_LARGE = 2**1024 - 2**970  # rounds to 2**1024, as do greater ones


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


def recast(node: ir.Expr, dtype: DType, span: Span | None) -> ir.Expr:
    """A weak node in a dtype: constants change in place, choices in their branches."""
    if node.dtype == dtype:
        return node if not isinstance(node, ir.Const) else constant(node.value, dtype, span)
    match node:
        case ir.Const(value=value):
            return constant(value, dtype, span)
        case ir.Where(condition, then, otherwise):
            return ir.Where(condition, recast(then, dtype, span), recast(otherwise, dtype, span), dtype)
        case ir.Op(name="select", args=(condition, then, otherwise)):
            return ir.Op("select", (condition, recast(then, dtype, span), recast(otherwise, dtype, span)), dtype)
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
    if operand == WEAK_INT and name in EXACT:
        whole = EXACT[name](*map(int, values))
        return None if abs(whole) >= HUGE else literal(whole)
    try:
        with np.errstate(all="ignore"):
            result = BUILTINS[name].numpy(*values)
    except (ArithmeticError, TypeError, ValueError):
        return None
    value = np.asarray(result).item()
    kind = {"b": bool, "i": int, "f": float}[operand.kind]
    return literal(kind(value))
