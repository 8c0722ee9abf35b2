"""The elementwise functions of the language, on values and on whole tensors.

What `dsl.builtins` does not have is composed here. Functions of Python numbers alone are Python numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyopt.dsl.broadcast import elementwise
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.expr import Call, Convert, Expr
from polyopt.dsl.symbols import as_dtype


def _apply(name: str, *operands: object) -> Any:
    """The builtin on the operands; at once where all of them are Python numbers."""
    if all(map(_is_python, operands)):
        return _of_numbers(name, operands)
    return elementwise(name, lambda *args: Call(name, args), operands)


def _is_python(operand: object) -> bool:
    """Whether the operand is a number of Python; NumPy's f64 is a float of Python too, and has a dtype."""
    return isinstance(operand, bool | int | float) and not isinstance(operand, np.generic)


def _of_numbers(name: str, operands: tuple[object, ...]) -> Any:
    if name in _OF_INTEGERS and all(isinstance(operand, int) for operand in operands):
        return _OF_INTEGERS[name](*operands)
    builtin = BUILTINS[name]
    values = [float(operand) if builtin.operands == "float" else operand for operand in operands]  # type: ignore[arg-type]
    with np.errstate(all="ignore"):
        return np.asarray(builtin.numpy(*values)).item()


_OF_INTEGERS: Mapping[str, Callable[..., Any]] = {
    "maximum": max,
    "minimum": min,
    "abs": abs,
    **dict.fromkeys(("floor", "ceil", "round"), lambda value: value),
}
"""What stays an integer of Python, however large."""


def _compose(name: str, build: Callable[..., Any], *operands: object) -> Any:
    """An expression of several builtins as one operation: on whole tensors it makes one equation, called `name`."""
    if all(map(_is_python, operands)):
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
    return _compose("rsqrt", lambda v: _reciprocal(sqrt(v)), x)


def _reciprocal(x: Any) -> Any:
    if isinstance(x, Expr):
        return 1 / x
    with np.errstate(all="ignore"):
        return float(np.divide(1.0, x))


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
    return _compose("silu", lambda v: v * sigmoid(v), x)


def softplus(x: object) -> Any:
    """log(1 + exp(x)), without overflow."""
    return _compose("softplus", _softplus, x)


def gelu(x: object, approximate: bool = False) -> Any:
    """x times the normal distribution function; the tanh form with `approximate`. Source: Hendrycks, Gimpel 2016."""
    return _compose("gelu", _gelu_tanh if approximate else _gelu_erf, x)


def as_argument(x: Any) -> Any:
    """A value in the dtype that functions of floats take it in, so that arithmetic before them does not wrap."""
    return Call("as_argument", (x,)) if isinstance(x, Expr) else float(x)


def _beside_float(x: Any) -> Any:
    """A value in the dtype that it has beside a float of Python."""
    return Call("beside_float", (x,)) if isinstance(x, Expr) else float(x)


def _softplus(x: Any) -> Any:
    number = as_argument(x)
    return maximum(number, 0) + log1p(exp(-abs(number)))


def _gelu_erf(x: Any) -> Any:
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def _gelu_tanh(x: Any) -> Any:
    number = _beside_float(x)
    inner = math.sqrt(2 / math.pi) * (number + 0.044715 * (number * number * number))
    return 0.5 * number * (1 + tanh(inner))


def cast(x: object, dtype: object) -> Any:
    """The value converted, as `numpy.ndarray.astype`.

    A float that an integer cannot hold, NaN among them, gives the same number on every machine, and no error: the
    lowest of 32 bits, or of 64 for i64, u32 and u64, of which narrower dtypes keep the low bits. NumPy leaves it open.
    """
    wanted = as_dtype(dtype)

    def convert(value: Expr) -> Expr:
        return Convert(value, wanted)

    return elementwise("cast", convert, (x,))
