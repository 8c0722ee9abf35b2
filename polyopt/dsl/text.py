"""Prints a program as the equations a user would write."""

from __future__ import annotations

import math
from typing import assert_never

import numpy as np

from polyopt.dsl import affine as af
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine
from polyopt.dtypes import DType

_INFIX = {  # operators with their binding strength, as in Python
    "add": ("+", 12), "sub": ("-", 12), "mul": ("*", 13), "truediv": ("/", 13), "floordiv": ("//", 13),
    "mod": ("%", 13), "pow": ("**", 15), "shl": ("<<", 11), "shr": (">>", 11), "and": ("&", 10), "xor": ("^", 9),
    "or": ("|", 8),
    "lt": ("<", 7), "le": ("<=", 7), "gt": (">", 7), "ge": (">=", 7), "eq": ("==", 7), "ne": ("!=", 7),
}  # fmt: skip
_PREFIX = {"neg": "-", "not": "~"}
_UNARY_LEVEL, _ATOM_LEVEL = 14, 20


def program_text(program: ir.Program) -> str:
    """The whole program: its signature, its local tensors and its equations, ranges behind them once resolved."""
    lines = [header_text(program)]
    locals_ = [tensor for tensor in program.tensors if tensor.role == "local"]
    if locals_:
        lines.append(f"  local {', '.join(map(_tensor_text, locals_))}")
    conditions = (*program.conditions, *(agreement.condition for agreement in program.agreements))
    if conditions:
        lines.append(f"  if {', '.join(map(af.condition_text, conditions))}")
    lines.extend(f"  {equation_text(equation)}" for equation in program.equations)
    return "\n".join(lines)


def header_text(program: ir.Program) -> str:
    """Its name, inputs and results: `double(x: f64[N]) -> y: f64[N]`."""
    inputs = ", ".join(_tensor_text(program.tensor(name)) for name in program.parameters)
    outputs = ", ".join(_tensor_text(program.tensor(name)) for name in program.results)
    return f"{program.name}({inputs}) -> {outputs}"


def _tensor_text(tensor: ir.Tensor) -> str:
    if tensor.shape is None:
        return f"{tensor.name}: {tensor.dtype}[{', '.join('?' * tensor.rank) or '()'}]"
    return f"{tensor.name}: {tensor.dtype}[{', '.join(map(str, tensor.shape)) or '()'}]"


def equation_text(equation: ir.Equation) -> str:
    """One equation: `y[i, j] += x[i, k] * w[k, j]  for i in 0..M, j in 0..N, k in 0..K`."""
    left = f"{equation.tensor}[{', '.join(map(_subscript_text, equation.subscripts)) or '()'}]"
    operator = "=" if equation.reducer is None else "*=" if equation.reducer.name == "prod" else "+="
    right = expr_text(equation.value)
    if equation.guard != af.TRUE:
        right = f"when({af.condition_text(equation.guard)}, {right})"
    ranges = [text for axis in equation.all_axes if (text := _range_text(axis))]
    return f"{left} {operator} {right}" + (f"  for {', '.join(ranges)}" if ranges else "")


def _range_text(axis: ir.Axis) -> str:
    """`i in 0..N` (the end is exclusive); empty while the range is not resolved."""
    if not axis.is_resolved:
        return ""
    lower = str(axis.lower[0]) if len(axis.lower) == 1 else f"max({', '.join(map(str, axis.lower))})"
    upper = str(axis.upper[0]) if len(axis.upper) == 1 else f"min({', '.join(map(str, axis.upper))})"
    return f"{axis.name} in {lower}..{upper}"


def _subscript_text(subscript: ir.Subscript) -> str:
    return str(subscript) if isinstance(subscript, Affine) else expr_text(subscript.value)


def expr_text(expr: ir.Expr, level: int = 0) -> str:
    """The expression, in parentheses where it binds more loosely than `level`."""
    text, own = _text_and_level(expr)
    return f"({text})" if own < level else text


def _text_and_level(expr: ir.Expr) -> tuple[str, int]:
    match expr:
        case ir.Const(value, dtype):
            return _constant_text(value, dtype)
        case ir.IndexValue(affine=affine):
            text = str(affine)
            return text, _ATOM_LEVEL if text.isidentifier() or text.isdigit() else 12
        case ir.Var(name=name):
            return name, _ATOM_LEVEL
        case ir.Cast(arg, dtype):
            return f"cast({expr_text(arg)}, {dtype})", _ATOM_LEVEL
        case ir.Read():
            return _read_text(expr), _ATOM_LEVEL
        case ir.Where(condition, then, otherwise):
            return f"where({af.condition_text(condition)}, {expr_text(then)}, {expr_text(otherwise)})", _ATOM_LEVEL
        case ir.Op(name, args):
            return _operation_text(name, args)
        case ir.Reduce():
            return _reduce_text(expr), _ATOM_LEVEL
        case _:
            assert_never(expr)


def _constant_text(value: bool | int | float, dtype: DType) -> tuple[str, int]:
    """Numbers as Python has them; a dtype that the number does not suggest is in the operands around it."""
    if isinstance(value, float) and dtype.is_float:
        text = _float_text(value, dtype)
        return text, _UNARY_LEVEL if text.startswith("-") else _ATOM_LEVEL
    return str(value), _UNARY_LEVEL if str(value).startswith("-") else _ATOM_LEVEL


def _float_text(value: float, dtype: DType) -> str:
    """The shortest text that names the value in its dtype."""
    if float(f"{value:g}") == value or not math.isfinite(value):
        return f"{value:g}"
    return str(np.float32(value)) if dtype.bits <= 32 else repr(value)


def _read_text(read: ir.Read) -> str:
    match read.boundary:
        case ir.Pad(value):
            through = f".pad({_constant_text(value.value, value.dtype)[0]})"
        case ir.Clamp():
            through = ".clamp()"
        case ir.Wrap():
            through = ".wrap()"
        case _:
            through = ""
    if not read.subscripts:
        return f"{read.tensor}{through}"
    return f"{read.tensor}{through}[{', '.join(map(_subscript_text, read.subscripts))}]"


def _operation_text(name: str, args: tuple[ir.Expr, ...]) -> tuple[str, int]:
    if name in _PREFIX:
        return f"{_PREFIX[name]}{expr_text(args[0], _UNARY_LEVEL)}", _UNARY_LEVEL
    if name in _INFIX:
        symbol, level = _INFIX[name]
        left_level, right_level = (level + 1, level) if name == "pow" else (level, level + 1)
        if level == 7:  # comparisons do not chain
            left_level = right_level = 8
        return f"{expr_text(args[0], left_level)} {symbol} {expr_text(args[1], right_level)}", level
    label = "where" if name == "select" else name
    return f"{label}({', '.join(map(expr_text, args))})", _ATOM_LEVEL


def _reduce_text(expr: ir.Reduce) -> str:
    axes = [_range_text(axis) or axis.name for axis in expr.axes]
    over = axes[0] if len(axes) == 1 else f"({', '.join(axes)})"
    guard = "" if expr.guard == af.TRUE else f", where={af.condition_text(expr.guard)}"
    reducer = expr.reducer
    if reducer.combine is not None:
        init = "" if reducer.neutral is None else f", init={_constant_text(reducer.neutral.value, reducer.dtype)[0]}"
        return f"reduce(lambda a, b: {expr_text(reducer.combine)}, {expr_text(expr.body)}, {over}{guard}{init})"
    init = ""
    if reducer.neutral is not None and reducer.name in ("max", "min"):
        init = f", init={_constant_text(reducer.neutral.value, reducer.dtype)[0]}"
    return f"{reducer.name}({expr_text(expr.body)}, {over}{guard}{init})"
