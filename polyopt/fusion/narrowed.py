"""Integers in 16 bits, where no value on the way needs more.

Pixels of 8 bits are averaged in 32, since a sum of two leaves 8: `u8((i32(x[i]) + 2*i32(y[i]) + i32(z[i])) // 4)`.
No value of it leaves 16 bits, and a vector has twice as many lanes of those. So arithmetic whose result is stored in
16 bits or fewer, or compared, runs in i16 or u16 where that holds every number, every partial result included, where
none leaves its own dtype, and where the equation has nothing wider besides.

Exact: the range of each is known from the dtypes of what is read and the constants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.integers import Reach, integer_range, reach_of, within
from polyopt.dtypes import DType, i16, u16

_ARITHMETIC = frozenset({
    "add", "sub", "mul", "floordiv", "mod", "minimum", "maximum", "neg", "abs", "and", "or", "xor", "shl", "shr",
})  # fmt: skip
_DIVISIONS = frozenset({"floordiv", "mod"})
"""By constants alone: vectors of 16 bits are taken apart for divisors that differ from lane to lane."""
_COMPARISONS = frozenset({"lt", "le", "gt", "ge", "eq", "ne"})
_BITS = 16


@dataclass(frozen=True, slots=True)
class Narrowed:
    """The program with narrow arithmetic, and a sentence for each equation that has any."""

    program: ir.Program
    notes: tuple[str, ...] = ()


def narrow(program: ir.Program) -> Narrowed:
    """The program whose integers have 16 bits where none needs more and a narrow result or a comparison takes them."""
    equations = tuple(map(_equation, program.equations))
    changed = [new.name for old, new in zip(program.equations, equations, strict=True) if new != old]
    notes = tuple(f"integers of {name} have {_BITS} bits: none needs more" for name in changed)
    return Narrowed(replace(program, equations=equations) if changed else program, notes)


def _equation(equation: ir.Equation) -> ir.Equation:
    """The equation with narrow arithmetic; as it is where something else in it is wide, and so has few lanes."""
    found = replace(equation, value=_Narrower().visited(equation.value))
    return found if all(node.dtype.bits <= _BITS for node in ir.walk(found.value)) else equation


def _is_wide(expr: ir.Expr) -> bool:
    return expr.dtype.is_integer and expr.dtype.bits > _BITS


@dataclass(slots=True, eq=False)
class _Narrower:
    """Rewrites one expression. Its parts are known by the object, since a definition may use one again and again.

    done:    what became of them
    reaches: how far a wide integer reaches, and how far all numbers do that it is made of; None where one of these is
             unknown or leaves its dtype
    """

    done: dict[int, ir.Expr] = field(default_factory=dict)
    reaches: dict[int, tuple[Reach, Reach] | None] = field(default_factory=dict)

    def visited(self, expr: ir.Expr) -> ir.Expr:
        if id(expr) not in self.done:
            self.done[id(expr)] = self._visit(expr)
        return self.done[id(expr)]

    def _visit(self, expr: ir.Expr) -> ir.Expr:
        match expr:
            case ir.Cast(arg, dtype) if _is_wide(arg) and dtype.is_integer and dtype.bits <= _BITS:
                found = self._all_narrow((arg,))
                return expr if found is None else _cast(found[0], dtype)
            case ir.Op(name, args) if name in _COMPARISONS and all(map(_is_wide, args)):
                found = self._all_narrow(args)
                return expr if found is None else replace(expr, args=found)
            case _:
                return ir.rebuild(expr, self.visited)

    def _all_narrow(self, exprs: Sequence[ir.Expr]) -> tuple[ir.Expr, ...] | None:
        """The expressions in one dtype of 16 bits; None where some number of them does not fit."""
        reaches = [self._reach(expr) for expr in exprs]
        ends = [reach[1] for reach in reaches if reach is not None]
        for dtype in (i16, u16):
            if len(ends) == len(exprs) and within(_hull(ends), dtype):
                made: dict[int, ir.Expr] = {}
                return tuple(self._in(expr, dtype, made) for expr in exprs)
        return None

    def _reach(self, expr: ir.Expr) -> tuple[Reach, Reach] | None:
        if id(expr) not in self.reaches:
            self.reaches[id(expr)] = self._found_reach(expr)
        return self.reaches[id(expr)]

    def _found_reach(self, expr: ir.Expr) -> tuple[Reach, Reach] | None:
        if expr.dtype.is_bool:
            return (0, 1), (0, 1)
        if isinstance(expr, ir.Const) and expr.dtype.is_integer:
            return (int(expr.value), int(expr.value)), (int(expr.value), int(expr.value))
        if expr.dtype.is_integer and not _is_wide(expr):
            return integer_range(expr.dtype), integer_range(expr.dtype)  # what is computed in few bits may wrap
        parts = [self._reach(part) for part in _parts(expr)]
        known = [part for part in parts if part is not None]
        if not parts or len(known) < len(parts):
            return None
        own = [part[0] for part in known]
        found = reach_of(expr.name, *own) if isinstance(expr, ir.Op) and expr.name != "select" else _hull(own)
        return (found, _hull([found, *(part[1] for part in known)])) if within(found, expr.dtype) else None

    def _in(self, expr: ir.Expr, dtype: DType, made: dict[int, ir.Expr]) -> ir.Expr:
        """Wide integer arithmetic in a dtype that holds all of its numbers. made: what became of its parts"""
        if id(expr) not in made:
            made[id(expr)] = self._made(expr, dtype, made)
        return made[id(expr)]

    def _made(self, expr: ir.Expr, dtype: DType, made: dict[int, ir.Expr]) -> ir.Expr:
        parts = tuple(self._in(part, dtype, made) for part in _parts(expr)) if _is_wide(expr) else ()
        match expr:
            case ir.Const(value=value):
                return ir.Const(int(value), dtype)
            case ir.Cast() if parts:
                return parts[0]
            case ir.Op("select", (condition, *_)) if parts:
                return ir.Op("select", (self.visited(condition), *parts), dtype)
            case ir.Where(condition) if parts:
                return ir.Where(condition, parts[0], parts[1], dtype)
            case ir.Op(name) if parts:
                return ir.Op(name, parts, dtype)
            case _:
                return _cast(self.visited(expr), dtype)


def _parts(expr: ir.Expr) -> tuple[ir.Expr, ...]:
    """The integers and truth values that a wide integer is made of; none where that is not known."""
    match expr:
        case ir.Cast(arg) if not arg.dtype.is_float:
            return (arg,)
        case ir.Op("select", (_, then, otherwise)) | ir.Where(_, then, otherwise):
            return then, otherwise
        case ir.Op(name, args) if name in _ARITHMETIC:
            return args if name not in _DIVISIONS or isinstance(args[1], ir.Const) else ()
        case _:
            return ()


def _cast(expr: ir.Expr, dtype: DType) -> ir.Expr:
    return expr if expr.dtype == dtype else ir.Cast(expr, dtype)


def _hull(found: Sequence[Reach]) -> Reach:
    return min(low for low, _ in found), max(high for _, high in found)
