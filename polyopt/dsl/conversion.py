"""How a value takes the dtype of what it meets: conversions, and comparisons that no common dtype can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl import ir
from polyopt.dsl.constants import Typed, constant, is_condition, literal, not_fitting, recast
from polyopt.dsl.expr import Passed, source_text
from polyopt.dsl.integers import MOST_SIZE, Reach, in_floats, integer_range, integer_text, reach, within
from polyopt.dsl.recognise import NeedsSizes
from polyopt.dsl.types import WEAK_INT, Type, Unknown, WeakType, concrete
from polyopt.dtypes import DType, bool_, f64, i32, i64, promote, u64
from polyopt.errors import DTypeError, Span


@dataclass(slots=True, eq=False)
class Converter:
    """Converts the values of one equation.

    provisional: dtypes are still being inferred, so a weak integer keeps its own
    conditions: what the equation asks of the sizes: as values they fit the dtypes that they meet
    reaches: the least and the greatest value of run-time scalars
    """

    provisional: bool = False
    conditions: list[af.Condition] = field(default_factory=list)
    reaches: dict[ir.Expr, Reach] = field(default_factory=dict)

    def convert(self, value: Typed, type_: Type, span: Span | None) -> ir.Expr:
        """The node converted to a type; a weak number becomes a constant of that dtype."""
        dtype = concrete(type_)
        if value.type == WEAK_INT == type_ and value.node.dtype == dtype:
            return value.node  # what it meets is not known yet
        if value.type == WEAK_INT != type_ and not self.provisional:
            return self._settled(value.node, dtype, span)
        if isinstance(value.type, WeakType):
            return recast(value.node, dtype, span)
        if value.type == dtype or value.node.dtype == dtype:
            return value.node
        return recast(value.node, dtype, span) if is_condition(value.node) else ir.Cast(value.node, dtype)

    def _settled(self, node: ir.Expr, dtype: DType, span: Span | None) -> ir.Expr:
        """A weak integer in the dtype that it meets. One that is no constant fits: for the call's sizes, and by the
        reach of scalars; what a float meets is computed in f64 where it may leave 64 bits.

        Raises `DTypeError` where it does not fit, and `NeedsSizes` where only numbers for sizes tell.
        """
        match node:
            case ir.Const():
                return constant(node.value, dtype, span)
            case ir.Where(condition, then, otherwise):
                chosen = self._settled(then, dtype, span), self._settled(otherwise, dtype, span)
                return ir.Where(condition, *chosen, dtype)
            case ir.Op("select", (condition, then, otherwise)):
                chosen = self._settled(then, dtype, span), self._settled(otherwise, dtype, span)
                return ir.Op("select", (condition, *chosen), dtype)
            case ir.IndexValue(affine):
                self._require_size(affine, dtype)
                return recast(node, dtype, span)
            case _ if dtype.is_bool:
                return recast(node, dtype, span)
        found = reach(node, self.reaches)
        sizes = sorted(
            {s for part in ir.walk(node) if isinstance(part, ir.IndexValue) for s in af.sizes_of(part.affine)}
        )
        if found is not None and within(found, dtype if dtype.is_integer else node.dtype):
            if isinstance(node, ir.Op):
                self.conditions += [af.Compare(af.size(name) - MOST_SIZE, "<=") for name in sizes]
            return recast(node, dtype, span)
        if dtype.is_float:
            computed = in_floats(node, self.reaches)
            if computed is not None:
                return computed if dtype == f64 else ir.Cast(computed, dtype)
        if sizes:
            raise NeedsSizes(
                f"whether a number made of sizes fits {i64 if dtype.is_float else dtype} depends on the sizes",
                where=span,
                fix=f"convert {'the sizes in it' if dtype.is_float or dtype.bits == i64.bits else 'the other operand'} "
                "to i64 with po.cast.",
            )
        if found is not None:
            ends = integer_text(found[0]), integer_text(found[1])
            raise not_fitting(f"an integer from {ends[0]} to {ends[1]}", i64 if dtype.is_float else dtype, span)
        if isinstance(node, ir.Op):
            raise not_fitting("a step of the arithmetic on Python's integers", i64, span)
        return recast(node, dtype, span)

    def _require_size(self, affine: af.Affine, dtype: DType) -> None:
        """Ask of the sizes that a number made of them fits an integer dtype."""
        if not dtype.is_integer:
            return
        low, high = integer_range(dtype)
        if dtype != i64 and not (low == 0 and af.is_nonnegative(affine)):
            self.conditions.append(af.Compare(affine - low, ">="))
        if dtype.bits < i64.bits:
            self.conditions.append(af.Compare(affine - high, "<="))


def check_passed(expr: Passed, value: Typed) -> None:
    """Raises `DTypeError` where a value is not of a parameter's kind, or an integer that may not fit its dtype."""
    given = value.type
    if isinstance(given, Unknown):
        return
    fits = _KIND_ORDER[concrete(given).kind] <= _KIND_ORDER[expr.dtype.kind]
    if fits and isinstance(given, DType) and given.is_integer and expr.dtype.is_integer:
        fits = _holds(expr.dtype, given, value.node)
    if not fits or (expr.is_exact and isinstance(given, DType) and given != expr.dtype):
        raise DTypeError(
            f"parameter '{expr.parameter}' is {expr.dtype} and is given '{source_text(expr.arg)}', which is "
            f"{concrete(given)}",
            where=expr.span,
            fix=f"convert it: po.cast(..., {expr.dtype}).",
            facts={"parameter": expr.parameter, "dtype": str(concrete(given))},
        )


def _holds(dtype: DType, given: DType, node: ir.Expr) -> bool:
    """Whether an integer dtype holds a value of another one: an index counts elements that are in memory."""
    if isinstance(node, ir.Const):
        return within((int(node.value), int(node.value)), dtype)
    is_index = isinstance(node, ir.IndexValue) and dtype.kind == "i" and dtype.bits >= i32.bits
    return is_index or promote(given, dtype) == dtype


_KIND_ORDER = {"b": 0, "u": 1, "i": 1, "f": 2}


# --- comparisons -----------------------------------------------------------------------------------------------------

_MIRRORED = {"lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne"}


def within_range(
    name: str, args: tuple[Typed, ...], dtype: DType, known: Mapping[ir.Expr, Reach]
) -> tuple[str, tuple[Typed, ...]]:
    """A comparison whose Python integer fits the other operand's dtype, with the same outcome for all its values.

    known: how far run-time scalars reach
    """
    left, right = args
    if left.type == WEAK_INT and right.type != WEAK_INT:
        name, left, right = _MIRRORED[name], right, left
    low, high = integer_range(dtype)
    found = reach(right.node, known) if right.type == WEAK_INT else None
    if found is None or (found[0] <= high and low <= found[1]):
        return name, (left, right)
    if found[0] > high:
        return ("le" if name in ("lt", "le", "ne") else "gt"), (left, literal(high))
    return ("ge" if name in ("gt", "ge", "ne") else "lt"), (left, literal(low))


def compare_signs(name: str, args: tuple[Typed, ...]) -> Typed:
    """A comparison of a signed integer with a u64, exact as NumPy's is: no dtype of integers holds both."""
    left, right = args
    if left.type == u64:
        name, left, right = _MIRRORED[name], right, left
    below = ir.Op("lt", (left.node, ir.Const(0, left.node.dtype)), bool_)
    as_unsigned = ir.Op(name, (ir.Cast(left.node, u64), right.node), bool_)
    if name in ("lt", "le", "ne"):
        return Typed(ir.Op("or", (below, as_unsigned), bool_), bool_)
    return Typed(ir.Op("and", (ir.Op("not", (below,), bool_), as_unsigned), bool_), bool_)
