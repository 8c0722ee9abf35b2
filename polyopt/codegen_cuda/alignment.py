"""What divides an index: whether the lanes of an access lie in one aligned vector, whatever the variables are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import gcd

from polyopt.codegen_cuda.intervals import as_number, folded
from polyopt.dsl.ir import Const, Op, Var
from polyopt.dtypes import bool_
from polyopt.loops.ir import Buffer, Expr, For, integer, substitute, uses

VECTOR_BYTES = 16
"""The widest access, and what the address of every array is a multiple of."""


def note(known: dict[str, int], loop: For) -> None:
    """Puts down what divides a loop's variable inside the loop."""
    known[loop.var] = gcd(divisor(loop.lower, known), loop.step)


def facts(condition: Expr) -> dict[str, int]:
    """What divides variables where a condition holds, as far as it says so: `n % 4 == 0`."""
    match condition:
        case Op("and", args):
            return {name: by for arg in args for name, by in facts(arg).items()}
        case Op("eq", (Op("mod", (Var(name), Const(by))), Const(rest))) if int(rest) == 0:
            return {name: int(by)}
        case _:
            return {}


def divisor(expr: Expr, known: Mapping[str, int]) -> int:
    """A number that divides an index expression whatever the variables are; 0 where the expression is 0."""
    match expr:
        case Const(value):
            return abs(int(value))
        case Var(name):
            return known.get(name, 1)
        case Op("add" | "sub" | "minimum" | "maximum", (left, right)):
            return gcd(divisor(left, known), divisor(right, known))
        case Op("mul", (left, right)):
            return divisor(left, known) * divisor(right, known)
        case Op("mod", (left, Const(by))):
            return gcd(divisor(left, known), abs(int(by)))
        case _:
            return 1


def slope(expr: Expr, var: str) -> int | None:
    """By how much an expression grows with a variable; None where that is not one number."""
    match expr:
        case Var(name):
            return int(name == var)
        case Op("add" | "sub" as name, (left, right)):
            a, b = slope(left, var), slope(right, var)
            return None if a is None or b is None else a + b if name == "add" else a - b
        case Op("mul", (Const(by), other)) | Op("mul", (other, Const(by))):
            inner = slope(other, var)
            return None if inner is None else int(by) * inner
        case _:
            return None if uses(expr, var) else 0


def first_lane(expr: Expr, lane: str) -> Expr:
    """The expression in the first lane."""
    match expr:
        case Var(name):
            return integer(0) if name == lane else expr
        case Op("add" | "sub" | "mul" as name, (left, right)):
            a, b = first_lane(left, lane), first_lane(right, lane)
            return replace(expr, args=(a, b)) if (a, b) == expr.args else folded(name, a, b)
        case _:
            return substitute(expr, {lane: integer(0)})


def is_vector(buffer: Buffer, indices: tuple[Expr, ...], lane: str, width: int, known: Mapping[str, int]) -> bool:
    """Whether the lanes' elements lie in order in one vector at a multiple of its size."""
    item = buffer.dtype.itemsize
    if not indices or width * item > VECTOR_BYTES or any(uses(index, lane) for index in indices[:-1]):
        return False
    if slope(indices[-1], lane) != 1:
        return False
    total = 0
    for index, stride in zip(indices, _strides(buffer), strict=True):
        total = gcd(total, divisor(first_lane(index, lane), known) * divisor(stride, known))
    last = _strides(buffer)[-1]
    return as_number(last) == item and total % (width * item) == 0


def _strides(buffer: Buffer) -> list[Expr]:
    """Bytes per step of each dimension."""
    if buffer.strides is not None:
        return list(buffer.strides)
    found: list[Expr] = []
    step: Expr = integer(buffer.dtype.itemsize)
    for extent in reversed(buffer.shape):
        found.insert(0, step)
        step = folded("mul", extent, step)
    return found


def uniform(condition: Expr, lane: str, width: int, known: Mapping[str, int]) -> Expr | None:
    """A condition that says for all lanes what `condition` says for each of them; None where they may differ."""
    if not uses(condition, lane):
        return condition
    match condition:
        case Op("and" | "or" | "not", args):
            found = [uniform(arg, lane, width, known) for arg in args]
            kept = tuple(arg for arg in found if arg is not None)
            return replace(condition, args=kept) if len(kept) == len(args) else None
        case Op("lt" | "ge", (left, right)) if slope(left, lane) == 1 and not uses(right, lane):
            first = first_lane(left, lane)
            is_whole = divisor(first, known) % width == 0 and divisor(right, known) % width == 0
            return Op(condition.name, (first, right), bool_) if is_whole else None
        case _:
            return None
