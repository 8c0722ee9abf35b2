"""The scalar operations of the language: the closed set of names that `ir.Op` may carry.

Each row holds the operand rule and the NumPy form that defines its meaning. The code generators keep a table of
their own per target, and a test holds the tables to the same names. Compound functions (relu, gelu, silu,
softplus, clip, rsqrt, ...) are expanded by the front end into these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from polyopt.classes import dataclass

Operands = Literal["number", "float", "integer", "logic", "any"]


@dataclass(frozen=True, slots=True)
class Builtin:
    """One scalar operation.

    arity:    number of operands, all of one dtype ("select" takes a bool first)
    operands: "number" any but bool; "float"; "integer"; "logic" bool or integer; "any"
    result:   "same" as the operands, or "bool"
    ulp:      greatest error in units in the last place in default mode; 0 means correctly rounded
    """

    name: str
    arity: int
    operands: Operands
    numpy: Callable[..., Any]
    result: Literal["same", "bool"] = "same"
    ulp: float = 0.0


def _is_float(value: Any) -> bool:
    """Whether the value is floating point; ml_dtypes' bfloat16, of kind "V", is unknown to NumPy's hierarchy."""
    return np.dtype(np.result_type(value)).kind in "fV"


def _floor_divide(a: Any, b: Any) -> Any:
    """NumPy's floor division; an integer divided by zero is 0."""
    if _is_float(a):
        return np.floor_divide(a, b)
    zero = np.equal(b, 0)
    return np.where(zero, np.zeros_like(a), np.floor_divide(a, np.where(zero, np.ones_like(b), b)))


def _remainder(a: Any, b: Any) -> Any:
    """NumPy's remainder (sign of the divisor); an integer modulo zero is 0."""
    if _is_float(a):
        return np.remainder(a, b)
    zero = np.equal(b, 0)
    return np.where(zero, np.zeros_like(a), np.remainder(a, np.where(zero, np.ones_like(b), b)))


def _power(a: Any, b: Any) -> Any:
    """NumPy's power, except that an integer to a negative power is what truncation gives: 0, 1 or -1."""
    if _is_float(a):
        return np.power(a, b)
    a, b = np.asarray(a), np.asarray(b)
    regular = np.power(a, np.where(b < 0, np.zeros_like(b), b))
    odd = (b & np.ones_like(b)) != 0
    inverse = np.where(a == 1, 1, np.where(a == -1, np.where(odd, -1, 1), 0)).astype(regular.dtype)
    return np.where(b < 0, inverse, regular)


def minimum(a: Any, b: Any) -> Any:
    """NumPy's minimum; -0.0 is less than 0.0, as IEEE 754-2019 has it, which NumPy leaves to the processor."""
    return _with_sign(np.minimum(a, b), np.signbit(a) | np.signbit(b)) if _is_float(a) else np.minimum(a, b)


def maximum(a: Any, b: Any) -> Any:
    """NumPy's maximum; 0.0 is more than -0.0."""
    return _with_sign(np.maximum(a, b), np.signbit(a) & np.signbit(b)) if _is_float(a) else np.maximum(a, b)


def _with_sign(values: Any, is_negative: Any) -> Any:
    """The values, where they are 0 with a sign."""
    zero = np.where(is_negative, -0.0, 0.0).astype(np.result_type(values))
    return np.where(np.equal(values, 0), zero, values)


def _shift_left(a: Any, b: Any) -> Any:
    """`a << b`; a shift by the width or more, or by a negative count, is 0."""
    width = np.dtype(np.result_type(a)).itemsize * 8
    inside = np.logical_and(np.greater_equal(b, 0), np.less(b, width))
    return np.where(inside, np.left_shift(a, np.where(inside, b, np.zeros_like(b))), np.zeros_like(a))


def _shift_right(a: Any, b: Any) -> Any:
    """`a >> b`; a count out of range shifts everything out and leaves the sign of a signed integer, else 0."""
    dtype = np.dtype(np.result_type(a))
    inside = np.logical_and(np.greater_equal(b, 0), np.less(b, dtype.itemsize * 8))
    shifted = np.right_shift(a, np.where(inside, b, np.full_like(b, dtype.itemsize * 8 - 1)))
    return shifted if dtype.kind == "i" else np.where(inside, shifted, np.zeros_like(a))


def _logistic(x: Any) -> Any:
    """1 / (1 + exp(-x)) without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1 / (1 + small), small / (1 + small)).astype(np.result_type(x))


def _erf(x: Any) -> Any:
    values = np.vectorize(math.erf, otypes=[np.float64])(np.asarray(x, dtype=np.float64))
    return np.asarray(values).astype(np.result_type(x))


def _sign(x: Any) -> Any:
    return np.sign(x) + np.zeros_like(x)  # that of a bf16 keeps the sign of -0.0


_TABLE = (
    Builtin("add", 2, "number", np.add),
    Builtin("sub", 2, "number", np.subtract),
    Builtin("mul", 2, "number", np.multiply),
    Builtin("truediv", 2, "float", np.divide),
    Builtin("floordiv", 2, "number", _floor_divide),
    Builtin("mod", 2, "number", _remainder),
    Builtin("pow", 2, "number", _power, ulp=2.0),
    Builtin("minimum", 2, "any", minimum),
    Builtin("maximum", 2, "any", maximum),
    Builtin("neg", 1, "number", np.negative),
    Builtin("abs", 1, "number", np.abs),
    Builtin("sign", 1, "number", _sign),
    Builtin("lt", 2, "any", np.less, result="bool"),
    Builtin("le", 2, "any", np.less_equal, result="bool"),
    Builtin("gt", 2, "any", np.greater, result="bool"),
    Builtin("ge", 2, "any", np.greater_equal, result="bool"),
    Builtin("eq", 2, "any", np.equal, result="bool"),
    Builtin("ne", 2, "any", np.not_equal, result="bool"),
    Builtin("and", 2, "logic", np.bitwise_and),
    Builtin("or", 2, "logic", np.bitwise_or),
    Builtin("xor", 2, "logic", np.bitwise_xor),
    Builtin("not", 1, "logic", np.invert),
    Builtin("shl", 2, "integer", _shift_left),
    Builtin("shr", 2, "integer", _shift_right),
    Builtin("select", 3, "any", np.where),
    Builtin("floor", 1, "float", np.floor),
    Builtin("ceil", 1, "float", np.ceil),
    Builtin("round", 1, "float", np.rint),
    Builtin("sqrt", 1, "float", np.sqrt),
    Builtin("isnan", 1, "float", np.isnan, result="bool"),
    Builtin("isinf", 1, "float", np.isinf, result="bool"),
    Builtin("exp", 1, "float", np.exp, ulp=2.0),
    Builtin("exp2", 1, "float", np.exp2, ulp=2.0),
    Builtin("expm1", 1, "float", np.expm1, ulp=2.0),
    Builtin("log", 1, "float", np.log, ulp=2.0),
    Builtin("log2", 1, "float", np.log2, ulp=2.0),
    Builtin("log1p", 1, "float", np.log1p, ulp=2.0),
    Builtin("sin", 1, "float", np.sin, ulp=2.0),
    Builtin("cos", 1, "float", np.cos, ulp=2.0),
    Builtin("tan", 1, "float", np.tan, ulp=2.0),
    Builtin("sinh", 1, "float", np.sinh, ulp=2.0),
    Builtin("cosh", 1, "float", np.cosh, ulp=2.0),
    Builtin("tanh", 1, "float", np.tanh, ulp=2.0),
    Builtin("sigmoid", 1, "float", _logistic, ulp=2.0),
    Builtin("erf", 1, "float", _erf, ulp=2.0),
)

BUILTINS: Mapping[str, Builtin] = {row.name: row for row in _TABLE}
