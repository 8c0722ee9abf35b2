"""The math functions by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from polyopt.classes import dataclass
from polyopt.codegen_c.vmath import error_function, exponential, hyperbolic, logarithm, power, trigonometric


@dataclass(frozen=True, slots=True)
class Function:
    """One math function.

    body:     takes a `Builder` and the operands, returns the result
    outlined: LLVM code calls it rather than holding it in line: it branches, or it is long
    """

    name: str
    arity: int
    body: Callable[..., Any]
    outlined: bool = False


_TABLE = (
    Function("exp", 1, exponential.exp),
    Function("exp2", 1, exponential.exp2),
    Function("expm1", 1, exponential.expm1),
    Function("log", 1, logarithm.log),
    Function("log2", 1, logarithm.log2),
    Function("log1p", 1, logarithm.log1p),
    Function("sin", 1, trigonometric.sin, outlined=True),
    Function("cos", 1, trigonometric.cos, outlined=True),
    Function("tan", 1, trigonometric.tan, outlined=True),
    Function("sinh", 1, hyperbolic.sinh),
    Function("cosh", 1, hyperbolic.cosh),
    Function("tanh", 1, hyperbolic.tanh),
    Function("sigmoid", 1, hyperbolic.sigmoid),
    Function("erf", 1, error_function.erf),
    Function("pow", 2, power.pow, outlined=True),
)

FUNCTIONS: Mapping[str, Function] = {row.name: row for row in _TABLE}
