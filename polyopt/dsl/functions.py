"""The elementwise functions of the language, on values and on whole tensors.

What `dsl.builtins` does not have is composed here. Functions of numbers alone are numbers: Python's of Python's.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from polyopt.dsl.broadcast import elementwise
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.constants import constant
from polyopt.dsl.expr import Call, Convert, Expr
from polyopt.dsl.integers import EXACT
from polyopt.dsl.spans import user_span
from polyopt.dsl.symbols import as_dtype
from polyopt.dtypes import f64, from_numpy


def _apply(name: str, *operands: object) -> Any:
    """The builtin on the operands; at once where all of them are numbers."""
    if all(isinstance(operand, _NUMBERS) for operand in operands):
        return _of_numbers(name, operands)
    return elementwise(name, lambda *args: Call(name, args), operands)


_NUMBERS = (bool, int, float, np.generic)


def _of_numbers(name: str, operands: tuple[Any, ...]) -> Any:
    """Python's number of Python's, and NumPy's where one is NumPy's: these keep their dtype among tensors."""
    if name in _WHOLE and not _is_float(operands[0]):
        return operands[0]
    if all(type(operand) is int for operand in operands) and name in EXACT:
        return EXACT[name](*operands)
    takes_floats = BUILTINS[name].operands == "float" or any(map(_is_float, operands))
    values = [_as_float(v) if takes_floats and not isinstance(v, np.generic) else v for v in operands]
    with np.errstate(all="ignore"):
        result = np.asarray(BUILTINS[name].numpy(*values))
    return result[()] if any(isinstance(operand, np.generic) for operand in operands) else result.item()


_WHOLE = ("floor", "ceil", "round")


def _is_float(value: Any) -> bool:
    return from_numpy(value.dtype).is_float if isinstance(value, np.generic) else isinstance(value, float)


def _as_float(value: float) -> float:
    return float(constant(value, f64, user_span()).value)


def _compose(name: str, build: Callable[..., Any], *operands: object) -> Any:
    """An expression of several builtins as one operation: on whole tensors it makes one equation, called `name`."""
    if all(isinstance(operand, _NUMBERS) for operand in operands):
        with np.errstate(all="ignore"):
            return build(*operands)
    return elementwise(name, build, operands)


def exp(x: object) -> Any:
    return _apply("exp", x)


def exp2(x: object) -> Any:
    return _apply("exp2", x)


def expm1(x: object) -> Any:
    return _apply("expm1", x)


def log(x: object) -> Any:
    return _apply("log", x)


def log2(x: object) -> Any:
    return _apply("log2", x)


def log1p(x: object) -> Any:
    return _apply("log1p", x)


def sqrt(x: object) -> Any:
    return _apply("sqrt", x)


def sin(x: object) -> Any:
    return _apply("sin", x)


def cos(x: object) -> Any:
    return _apply("cos", x)


def tan(x: object) -> Any:
    return _apply("tan", x)


def sinh(x: object) -> Any:
    return _apply("sinh", x)


def cosh(x: object) -> Any:
    return _apply("cosh", x)


def tanh(x: object) -> Any:
    return _apply("tanh", x)


def sigmoid(x: object) -> Any:
    return _apply("sigmoid", x)


def erf(x: object) -> Any:
    return _apply("erf", x)


def abs(x: object) -> Any:  # noqa: A001  # the language's name
    return _apply("abs", x)


def floor(x: object) -> Any:
    return _apply("floor", x)


def ceil(x: object) -> Any:
    return _apply("ceil", x)


def round(x: object) -> Any:  # noqa: A001  # the language's name
    """The nearest integer, half to even."""
    return _apply("round", x)


def sign(x: object) -> Any:
    return _apply("sign", x)


def isnan(x: object) -> Any:
    return _apply("isnan", x)


def isinf(x: object) -> Any:
    return _apply("isinf", x)


def maximum(x: object, y: object) -> Any:
    """The greater of two values; NaN where one is NaN."""
    return _apply("maximum", x, y)


def minimum(x: object, y: object) -> Any:
    """The lesser of two values; NaN where one is NaN."""
    return _apply("minimum", x, y)


def rsqrt(x: object) -> Any:
    """1 / sqrt(x)."""
    return _compose("rsqrt", lambda v: _apply("truediv", 1, sqrt(v)), x)


def clip(x: object, low: object = None, high: object = None) -> Any:
    """min(max(x, low), high); a bound that is None does not bound."""
    if low is None:
        return x if high is None else _compose("clip", minimum, x, high)
    if high is None:
        return _compose("clip", maximum, x, low)
    return _compose("clip", lambda v, lo, hi: minimum(maximum(v, lo), hi), x, low, high)


def relu(x: object) -> Any:
    """max(x, 0)."""
    return _compose("relu", lambda v: maximum(v, 0), x)


def silu(x: object) -> Any:
    """x * sigmoid(x)."""
    return _compose("silu", _silu, x)


def softplus(x: object) -> Any:
    """log(1 + exp(x)), without overflow."""
    return _compose("softplus", _softplus, x)


def gelu(x: object, approximate: bool = False) -> Any:
    """x times the normal distribution function; the tanh form with `approximate`. Source: Hendrycks, Gimpel 2016."""
    return _compose("gelu", _gelu_tanh if approximate else _gelu_erf, x)


def as_argument(x: Any) -> Any:
    """A value in the dtype that functions of floats take it in, so that arithmetic before them does not wrap."""
    if isinstance(x, Expr):
        return Call("as_argument", (x,))
    return x if isinstance(x, np.floating) else float(x)


def _beside_float(x: Any) -> Any:
    """A value in the dtype that it has beside a float of Python."""
    return Call("beside_float", (x,)) if isinstance(x, Expr) else float(x)


def _as_wide(x: Any) -> Any:
    """A float of 16 bits in f32, where what is rounded in between is lost in the result; others as they are."""
    return Call("as_wide", (x,)) if isinstance(x, Expr) else x


def _in_dtype_of(value: Any, like: Any) -> Any:
    """A value converted to another's dtype."""
    return Call("in_dtype_of", (value, like)) if isinstance(value, Expr) else value


def _silu(x: Any) -> Any:
    number = as_argument(x)
    wide = _as_wide(number)
    return _in_dtype_of(wide * sigmoid(wide), number)


def _softplus(x: Any) -> Any:
    number = as_argument(x)
    wide = _as_wide(number)
    return _in_dtype_of(maximum(wide, 0) + log1p(exp(-abs(wide))), number)


def _gelu_erf(x: Any) -> Any:
    number = _beside_float(x)
    wide = _as_wide(number)
    return _in_dtype_of(0.5 * wide * (1 + erf(wide * math.sqrt(0.5))), number)


def _gelu_tanh(x: Any) -> Any:
    number = _beside_float(x)
    wide = _as_wide(number)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
    return _in_dtype_of(0.5 * wide * (1 + tanh(inner)), number)


def cast(x: object, dtype: object) -> Any:
    """The value converted, as `numpy.ndarray.astype`.

    A float that an integer cannot hold, NaN among them, gives the same number on every machine, and no error: the
    lowest of 32 bits, or of 64 for i64, u32 and u64, of which narrower dtypes keep the low bits. NumPy leaves it open.
    """
    wanted = as_dtype(dtype)

    def convert(value: Expr) -> Expr:
        return Convert(value, wanted)

    return elementwise("cast", convert, (x,))
