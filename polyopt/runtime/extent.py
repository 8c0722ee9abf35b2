"""Integer expressions over sizes that a compiled kernel carries along: extents, byte counts, conditions.

An extent is a number, the name of a size, or a tuple of an operation and its operands: `("mul", "N", 4)`. It is plain
data, so that it goes to the disk cache and back, and that a call can evaluate it without the polyhedral part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, assert_never

from polyopt.dsl.affine import Affine, And, AxisRef, Compare, Condition, FloorDiv, Not, Or, SizeRef
from polyopt.dsl.ir import Cast, Const, Op, Var
from polyopt.loops.ir import Expr, Load

Extent = int | str | tuple[Any, ...]

_OPERATIONS: Mapping[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    "neg": lambda a: -a,
    "minimum": min,
    "maximum": max,
    "eq": lambda a, b: int(a == b),
    "ne": lambda a, b: int(a != b),
    "lt": lambda a, b: int(a < b),
    "le": lambda a, b: int(a <= b),
    "gt": lambda a, b: int(a > b),
    "ge": lambda a, b: int(a >= b),
    "and": lambda *parts: int(all(parts)),
    "or": lambda *parts: int(any(parts)),
    "not": lambda a: int(not a),
    "select": lambda condition, a, b: a if condition else b,
}
_COMPARISONS = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


def evaluate(extent: Extent, sizes: Mapping[str, int]) -> int:
    """The value for given sizes."""
    match extent:
        case int():
            return extent
        case str():
            return sizes[extent]
        case (operation, *operands):
            return _OPERATIONS[operation](*(evaluate(operand, sizes) for operand in operands))
        case _:
            raise ValueError(f"not an extent: {extent!r}")


def text(extent: Extent) -> str:
    """The extent as a person writes it, multiplied out: `("mul", ("add", "N", 1), 4)` is `4*N + 4`."""
    joined = ""
    for atoms, factor in sorted(_polynomial(extent).items(), key=lambda term: (-len(term[0]), term[0])):
        number = () if abs(factor) == 1 and atoms else (str(abs(factor)),)
        sign = "-" if factor < 0 else "+"
        joined += f" {sign} {'*'.join((*number, *atoms))}"
    if joined.startswith(" - "):
        return f"-{joined.removeprefix(' - ')}"
    return joined.removeprefix(" + ") or "0"


_Polynomial = dict[tuple[str, ...], int]
"""The factor of each product of sizes and of what is no sum or product of them."""


def _polynomial(extent: Extent) -> _Polynomial:
    match extent:
        case int():
            return {(): extent} if extent else {}
        case str():
            return {(extent,): 1}
        case ("add" | "sub" as operation, left, right):
            return _sum(_polynomial(left), _polynomial(right), 1 if operation == "add" else -1)
        case ("neg", part):
            return _sum({}, _polynomial(part), -1)
        case ("mul", left, right):
            total: _Polynomial = {}
            for one, factor in _polynomial(left).items():
                product = {tuple(sorted((*one, *other))): factor * times for other, times in _polynomial(right).items()}
                total = _sum(total, product, 1)
            return total
        case ("maximum", part, 0) if all(factor > 0 for factor in _polynomial(part).values()):
            return _polynomial(part)  # sizes are not negative
        case (operation, *operands):
            return {(_call(operation, [text(operand) for operand in operands]),): 1}
        case _:
            raise ValueError(f"not an extent: {extent!r}")


def _sum(left: _Polynomial, right: _Polynomial, times: int) -> _Polynomial:
    total = {atoms: left.get(atoms, 0) + times * right.get(atoms, 0) for atoms in (*left, *right)}
    return {atoms: factor for atoms, factor in total.items() if factor}


def _call(operation: str, operands: list[str]) -> str:
    signs = {"floordiv": "//", "mod": "%"}
    if operation in signs:
        left, right = (operand if operand.isalnum() else f"({operand})" for operand in operands)
        return f"({left}{signs[operation]}{right})"
    names = {"maximum": "max", "minimum": "min"}
    return f"{names.get(operation, operation)}({', '.join(operands)})"


def from_affine(affine: Affine) -> Extent:
    """The extent with the value of an affine expression over sizes."""
    total: Extent = affine.constant
    for atom, coefficient in affine.terms:
        match atom:
            case SizeRef(name):
                value: Extent = name
            case FloorDiv(numerator, divisor):
                value = ("floordiv", from_affine(numerator), divisor)
            case AxisRef(name):
                raise AssertionError(f"axis {name} in an expression over sizes")
            case _:
                assert_never(atom)
        term = value if coefficient == 1 else ("mul", coefficient, value)
        total = term if total == 0 else ("add", total, term)
    return total


def from_condition(condition: Condition) -> Extent:
    """The extent that is 1 where the condition over sizes holds, and else 0."""
    match condition:
        case Compare(left, op):
            return (_COMPARISONS[op], from_affine(left), 0)
        case And(parts):
            return ("and", *map(from_condition, parts))
        case Or(parts):
            return ("or", *map(from_condition, parts))
        case Not(part):
            return ("not", from_condition(part))
        case _:
            assert_never(condition)


def from_expr(expr: Expr) -> Extent:
    """The extent with the value of an integer expression of a loop program over its sizes."""
    match expr:
        case Const(value):
            return int(value)
        case Var(name):
            return name
        case Op(name, args):
            return (name, *(from_expr(arg) for arg in args))
        case Cast(arg):
            return from_expr(arg)
        case Load(buffer):
            raise AssertionError(f"a load of {buffer} in an expression over sizes")
        case _:
            assert_never(expr)


def from_json(value: Any) -> Extent:
    """The extent that JSON gave back as nested lists. Raises `ValueError` for anything else."""
    if isinstance(value, int | str):
        return int(value) if isinstance(value, int) else value
    if isinstance(value, list) and value and value[0] in _OPERATIONS:
        return (value[0], *map(from_json, value[1:]))
    raise ValueError(f"not an extent: {value!r}")
