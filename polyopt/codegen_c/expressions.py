"""Expressions of a loop program as LLVM values, for one iteration or for a vector of iterations.

Evaluation is width-polymorphic: what does not depend on the lane stays scalar and becomes a vector only where it
meets one. Integers of type i64 are kept as linear forms as long as possible, so subscripts are uniform, linear or
general by construction, and equal subscripts are equal values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any, assert_never

from polyopt.classes import dataclass
from polyopt.codegen_c import conversions, memory, ops, quotients, transposes
from polyopt.codegen_c.llvm_text import Function, Value
from polyopt.codegen_c.memory import Index, Place
from polyopt.codegen_c.values import (
    FALSE,
    TRUE,
    Linear,
    any_lane,
    binary,
    both,
    compare,
    constant,
    convert,
    first_lanes,
    int64,
    intrinsic,
    lane,
    lane_bits,
    lane_choice,
    lane_numbers,
    linear,
    register_scalar,
    scalar_of,
    select,
    splat,
    value_of,
    wrapped,
)
from polyopt.codegen_c.waiting import Waiting
from polyopt.dsl.ir import Cast, Const, Op, Reducer, Var
from polyopt.dtypes import DType, bf16, f16, i64
from polyopt.loops.ir import Check, Expr, For, Load, Store, parts_of, uses
from polyopt.poly.magnitudes import MOST_EXPRESSION, MOST_INDEX

Key = tuple[Linear, ...]


@dataclass(frozen=True, slots=True)
class Slot:
    """A promoted element (or vector of elements) of a buffer, in a register while a loop runs.

    mask:    the lanes that are elements; the others are never written back
    happens: whether it is written back at all; None where it always is
    """

    pointer: Value
    lanes: int
    mask: Value | None = None
    happens: Value | None = None


@dataclass(frozen=True, slots=True)
class Context:
    """Where an expression is evaluated.

    env:       loop variables and sizes
    lanes:     iterations at once; the vector variable's form has a lane factor
    mask:      lanes that are on, at least one; None for all
    operands:  the operands of a custom reduction, by name
    nominal:   as `env`, without the clamping of loop variables in a partial register tile
    registers: promoted elements: buffer, then subscripts
    earlier:   elements that earlier iterations of a serial loop have stored, and that are in registers, too
    handed:    those that this iteration stores, and a later one reads
    flat:      loops to write out, with the number of their iterations, and whether some of those may not happen
    happens:   for a clamped loop variable, whether its iteration happens at all
    written:   for a loop that is written out and whose every iteration comes here: the number of this one, and how many
               there are
    copy:      which of the unrolled copies of a vector loop's body this is
    tail:      the mask, where it only says which lanes are past the end of the vector loop, and not many vectors past
    """

    env: Mapping[str, Linear]
    lanes: int = 1
    mask: Value | None = None
    operands: Mapping[str, Value] = field(default_factory=dict)
    nominal: Mapping[str, Linear] | None = None
    registers: Mapping[str, Mapping[Key, Slot]] = field(default_factory=dict)
    earlier: Mapping[str, Mapping[Key, Slot]] = field(default_factory=dict)
    handed: Mapping[str, Mapping[Key, Slot]] = field(default_factory=dict)
    flat: Mapping[str, Flat] = field(default_factory=dict)
    happens: Mapping[str, Value] = field(default_factory=dict)
    written: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    copy: int = 0
    tail: Value | None = None

    def bind(self, name: str, form: Linear, nominal: Linear | None = None, **changes: Any) -> Context:
        """The context with a loop variable set, and other fields as they are given."""
        unclamped = None
        if nominal is not None or self.nominal is not None:
            unclamped = {**(self.nominal or self.env), name: nominal or form}
        return replace(self, env={**self.env, name: form}, nominal=unclamped, **changes)

    def where(self, *decided_by: Expr) -> Context:
        """The context behind conditions or bounds: what they mention has iterations that may not come here."""
        if not self.written:
            return self
        names = mentioned(*decided_by)
        return replace(self, written={name: one for name, one in self.written.items() if name not in names})

    @property
    def unclamped(self) -> Context:
        return self if self.nominal is None else replace(self, env=self.nominal, nominal=None)


def mentioned(*exprs: Expr) -> set[str]:
    """The variables in expressions."""
    return {node.name for expr in exprs for node in parts_of(expr) if isinstance(node, Var)}


@dataclass(frozen=True, slots=True)
class Flat:
    """A loop that is written out: `count` iterations, of which only the first ones happen if `partial`."""

    count: int
    partial: bool


class Expressions:
    """Evaluates expressions into one LLVM function."""

    def __init__(self, f: Function, math: ops.MathFunctions, words: Value) -> None:
        """words: the kernel's argument block, which holds the error record."""
        self.f = f
        self.places: dict[str, Place] = {}
        self._math = math
        self._words = words
        self._bounded: dict[str, int] = {}
        self._memo: dict[int, tuple[Expr, Value]] = {}
        self._memo_context: Context | None = None
        self.waiting: Waiting | None = None
        self.handed_on: set[str] = set()

    def bounded(self, value: Value, most: int = MOST_INDEX) -> Value:
        """Declares a number to be no farther than `most` from 0, as indices and sizes are."""
        self._bounded[value.text] = most
        return value

    # --- integers ------------------------------------------------------------------------------------------

    def index(self, expr: Expr, context: Context) -> Index:
        """An i64 expression: a linear form, or a vector where it is not linear in the lane."""
        match expr:
            case Const(number):
                return Linear(wrapped(int(number), 64))
            case Var(name) if name in context.env:
                return context.env[name]
            case Op("add" | "sub" | "mul" | "neg", args, dtype) if dtype == i64:
                return self._arithmetic(expr, [self.index(arg, context) for arg in args], context)
            case _:
                value = self._general(expr, context)
                return linear(value) if value.lanes == 1 else value

    def uniform(self, expr: Expr, context: Context) -> Linear:
        """An i64 expression that is known to be the same in all lanes."""
        index = self.index(expr, context)
        assert isinstance(index, Linear) and index.is_uniform, "a loop bound depends on the lane"
        return index

    def _arithmetic(self, expr: Op[Expr], args: list[Index], context: Context) -> Index:
        left = args[0]
        right = args[1] if len(args) == 2 else Linear(-1)
        if isinstance(left, Linear) and isinstance(right, Linear):
            if expr.name == "add":
                return left + right
            if expr.name == "sub":
                return left - right
            for factor, other in ((left, right), (right, left)):
                if factor.is_constant:
                    return other * factor.constant
        operands = [self.vector(arg, context) for arg in (left, right)]
        value = binary(self.f, "mul" if expr.name == "neg" else expr.name, operands[0], operands[1])
        if value.lanes > 1:
            return value
        known = [most for most in (self.most(arg, 1) for arg in (left, right)) if most is not None]
        return linear(self._inherit(value, math.prod(known) if len(known) == len(operands) else None))

    def _inherit(self, value: Value, most: int | None) -> Value:
        return value if most is None or most >= MOST_EXPRESSION else self.bounded(value, most)

    def most(self, index: Index, lanes: int) -> int | None:
        """How far from 0 the number may be, in any lane; None where nothing says."""
        if not isinstance(index, Linear) or not all(value.text in self._bounded for value, _ in index.terms):
            return None
        terms = sum(abs(factor) * self._bounded[value.text] for value, factor in index.terms)
        return abs(index.constant) + abs(index.lane_factor) * lanes + terms

    def is_bounded(self, index: Index, lanes: int) -> bool:
        """Whether differences of the number and another one of which this holds do not overflow."""
        most = self.most(index, lanes)
        return most is not None and most < MOST_EXPRESSION

    def vector(self, index: Index, context: Context) -> Value:
        return value_of(self.f, index, context.lanes) if isinstance(index, Linear) else index

    # --- values --------------------------------------------------------------------------------------------

    def value(self, expr: Expr, context: Context) -> Value:
        """Any expression: a scalar where all lanes agree, else a vector."""
        if isinstance(expr, Var) and expr.name in context.operands:
            return context.operands[expr.name]
        if expr.dtype == i64:
            return self.vector(self.index(expr, context), context)
        if not isinstance(expr, Op | Load):
            return self._general(expr, context)
        if self._memo_context is not context:
            self._memo, self._memo_context = {}, context
        if id(expr) in self._memo:
            return self._memo[id(expr)][1]
        value = self._general(expr, context)
        if self._memo_context is context:
            self._memo[id(expr)] = expr, value
        return value

    def forget(self) -> None:
        """Called where control flow changes: an expression that occurs twice is evaluated once up to here."""
        self._memo_context = None

    def _general(self, expr: Expr, context: Context) -> Value:
        match expr:
            case Const(number, dtype):
                return _number(number, dtype)
            case Var(name):
                return context.operands[name]
            case Cast(arg):
                return conversions.cast(self.f, self.value(arg, context), arg.dtype, expr.dtype)
            case Load():
                return self.load(expr, context)
            case Op():
                return self._operation(expr, context)
            case _:
                assert_never(expr)

    def _operation(self, expr: Op[Expr], context: Context) -> Value:
        dtype = expr.args[-1].dtype
        if expr.name == "select" and _is_masked_alike(expr):
            return self.value(expr.args[1], context)
        # each argument once: operations nested n deep would else be written 2^n times
        forms = [self.index(arg, context) if arg.dtype == i64 else None for arg in expr.args]
        if dtype == i64 and expr.name in _PREDICATES:
            compared = self._compare_linear(expr.name, forms, context)
            if compared is not None:
                return compared
        if dtype == i64 and expr.name in ("floordiv", "mod"):
            divided = self._divide_linear(expr.name, forms, context)
            if divided is not None:
                return divided
        operands = [
            self.value(arg, context) if form is None else self.vector(form, context)
            for arg, form in zip(expr.args, forms, strict=True)
        ]
        result = ops.apply(self.f, expr.name, dtype, operands, self._math)
        if dtype == i64 and expr.name in _INDEX_LIKE:
            numbers = [self.most(form, context.lanes) for form in forms if form is not None]
            self._inherit(result, None if None in numbers else max(n for n in numbers if n is not None))
        return result

    def _compare_linear(self, name: str, forms: Sequence[Index | None], context: Context) -> Value | None:
        """A comparison of indices, decided at once, in a scalar, or in 32-bit lanes."""
        left, right = forms
        if left is None or right is None or not all(self.is_bounded(form, context.lanes) for form in (left, right)):
            return None
        assert isinstance(left, Linear) and isinstance(right, Linear), "bounded indices are linear"
        difference = left - right
        if abs(difference.lane_factor) * context.lanes >= 1 << 30:
            return None
        return self.compare_to_zero(_PREDICATES[name], difference, context.lanes)

    def _divide_linear(self, name: str, forms: Sequence[Index | None], context: Context) -> Value | None:
        """A subscript divided by a constant, in lanes."""
        form, by = forms
        if not (isinstance(form, Linear) and form.lane_factor) or by is None:
            return None
        if not self.is_bounded(form, context.lanes):
            return None
        divisor = self.vector(by, context)
        if not quotients.is_easy(form, divisor, context.lanes):
            return None
        parts = quotients.divided(self.f, form, int(divisor.constant or 1), context.lanes, self._math)
        return parts[0] if name == "floordiv" else parts[1]

    def compare_to_zero(self, predicate: str, form: Linear, lanes: int) -> Value:
        """`form <predicate> 0` for a form that cannot overflow."""
        if form.is_constant:
            return TRUE if _HOLDS[predicate](form.constant) else FALSE
        if form.is_uniform:
            return compare(self.f, predicate, scalar_of(self.f, Linear(0, form.terms)), int64(-form.constant))
        if form.first_lane.is_constant:
            first, step = form.first_lane.constant, form.lane_factor
            return lane_choice([_HOLDS[predicate](first + lane * step) for lane in range(lanes)])
        limit = int64(1 << 30)
        bound = scalar_of(self.f, form.first_lane * -1)
        bound = intrinsic(self.f, "smin", intrinsic(self.f, "smax", bound, int64(-(1 << 30))), limit)
        bound = splat(self.f, convert(self.f, "trunc", bound, "i32"), lanes)
        return compare(self.f, predicate, lane_numbers("i32", lanes, form.lane_factor), bound)

    # --- loads ---------------------------------------------------------------------------------------------

    def load(self, expr: Load, context: Context) -> Value:
        """The element; zero where its mask is off or a checked subscript is out of range."""
        slot = self.promoted(expr.buffer, expr.indices, context)
        if slot is not None:
            return self.f.read(slot.pointer, register_scalar(expr.dtype), slot.lanes)
        guard = None if expr.mask is None else self.value(expr.mask, context)
        zero = constant(0, register_scalar(expr.dtype))
        if guard is not None and guard.constant is not None:
            if not guard.constant:
                return zero
            guard = None
        indices = [self.index(index, context) for index in expr.indices]
        slot = None if expr.checks else slot_of(context.earlier, expr.buffer, indices)
        if slot is not None:
            value = self.f.read(slot.pointer, register_scalar(expr.dtype))
            return value if guard is None else select(self.f, guard, value, zero)
        place = self.places[expr.buffer]
        guard = self.checked(place, indices, expr.checks, guard, context)
        if self.waiting is not None:
            in_all_lanes = guard is None and context.mask is None
            known = self.waiting.value((expr.buffer, tuple(indices)), in_all_lanes=in_all_lanes)
            if known is not None:
                return known
        address = memory.address_of(self.f, place, indices, context.lanes)
        block = self._transposed(place, expr, address, guard, context)
        if block is not None:
            return block
        is_data = any(isinstance(node, Load) for index in expr.indices for node in parts_of(index))
        is_vector = address.scattered is None and address.offset.lane_factor == place.itemsize
        may_read_on = is_vector and place.buffer.dtype.is_float and self.may_read_on(place, context)
        mask = None if may_read_on else context.mask
        stored = memory.read(self.f, place, address, context.lanes, mask, guard, is_regular=not is_data)
        return conversions.from_memory(self.f, stored, expr.dtype)

    @staticmethod
    def may_read_on(place: Place, context: Context) -> bool:
        """Whether lanes past the end of the loop may read what they find: numbers that nobody looks at, in a buffer of
        ours, behind which there is room (`abi.SLACK_BYTES`). Floats only of a panel, whose rows end in zeros: what
        happens to lie elsewhere may be denormal, and arithmetic on that is slow. And not those where the mask is a
        constant, and costs nothing."""
        if place.buffer.space == "argument" or context.mask is None or context.mask != context.tail:
            return False
        return not place.buffer.dtype.is_float or (place.buffer.padded and first_lanes(context.mask) is None)

    def _transposed(
        self, place: Place, expr: Load, address: memory.Address, guard: Value | None, context: Context
    ) -> Value | None:
        """The element as part of a block that the iterations of a written-out loop read column by column, from either
        side.

        All of them have to read: a guard that is true in this one says nothing of the others, nor of where they would.
        """
        lanes, step = context.lanes, address.offset.lane_factor
        if guard is not None or context.mask is not None or address.scattered is not None:
            return None
        if step == 0 or abs(step) == place.itemsize or lanes > transposes.MOST_LANES or place.lanes > 1:
            return None
        always = context if expr.mask is None else context.where(expr.mask)
        for var, (number, count) in always.written.items():
            first = number // lanes * lanes
            along = self.step(place, expr, var)
            if first + lanes > count or along not in (place.itemsize, -place.itemsize):
                continue
            column = number - first if along > 0 else first + lanes - 1 - number
            corner = address.offset.first_lane - Linear(column * place.itemsize)

            def row(lane: int, corner: Linear = corner) -> Value:
                here = memory.Address(place.base, corner + Linear(lane * step, lane_factor=place.itemsize))
                return memory.read(self.f, place, here, lanes, None, None)

            stored = transposes.column(self.f, lanes, 8 * place.itemsize, column, row)
            return conversions.from_memory(self.f, stored, expr.dtype)
        return None

    @staticmethod
    def step(place: Place, expr: Load | Store, var: str) -> int | None:
        """Bytes from the element of this iteration of a loop to that of the next; None where it is not constant."""
        total = 0
        for index, stride in zip(expr.indices, place.strides, strict=True):
            factor = coefficient(index, var)
            if factor is None or (factor and not stride.is_constant):
                return None
            total += factor * stride.constant
        return total

    def stored_across(self, loop: For) -> Store | None:
        """The store of a loop that is written out around lanes, and of which each iteration stores the neighbours of
        what the one before has stored; None for any other loop."""
        lanes = loop.body if loop.kind == "unrolled" and loop.step == 1 else None
        store = lanes.body if isinstance(lanes, For) and lanes.kind == "vector" and lanes.step == 1 else None
        if not isinstance(store, Store) or store.buffer not in self.places:
            return None
        place = self.places[store.buffer]
        return store if self.step(place, store, loop.var) == place.itemsize else None

    def promoted(self, buffer: str, indices: tuple[Expr, ...], context: Context) -> Slot | None:
        """The register that holds the element while the loop around runs."""
        slots = context.registers.get(buffer)
        return None if slots is None else slots[self.key(indices, context)]

    def key(self, indices: tuple[Expr, ...], context: Context) -> Key:
        unclamped = context.unclamped
        forms = tuple(self.index(index, unclamped) for index in indices)
        assert all(isinstance(form, Linear) for form in forms), "a promoted subscript is linear"
        return forms  # type: ignore[return-value]  # asserted

    def checked(
        self, place: Place, indices: Sequence[Index], checks: tuple[Check, ...], guard: Value | None, context: Context
    ) -> Value | None:
        """`guard` and all checked subscripts in range. The first failure is written to the error record."""
        for check in checks:
            index, extent, inside = self.tested(place, indices, check, context)
            self.report_outside(check, index, extent, inside, both(self.f, guard, context.mask))
            guard = both(self.f, guard, inside)
        return guard

    def tested(
        self, place: Place, indices: Sequence[Index], check: Check, context: Context
    ) -> tuple[Value, Value, Value]:
        """A checked subscript, the extent of its dimension, and whether it is in range."""
        index = self.vector(indices[check.dimension], context)
        extent = scalar_of(self.f, place.extents[check.dimension])
        return index, extent, compare(self.f, "ult", index, extent)

    def report_outside(self, check: Check, index: Value, extent: Value, inside: Value, active: Value | None) -> None:
        """Writes to the error record that a subscript is out of range, if it is in some active lane."""
        bad = binary(self.f, "xor", inside, constant(True, "i1"))
        bad = bad if active is None else binary(self.f, "and", bad, active)

        def report() -> None:
            found = index
            if index.lanes > 1:
                wide = splat(self.f, bad, index.lanes)
                bits = convert(self.f, "zext", lane_bits(self.f, wide), "i64")
                first = self.f.intrinsic("llvm.cttz.i64", "i64", 1, [bits, FALSE])
                found = lane(self.f, index, first)
            self.f.line(f"call void @polyopt_report({self._words}, i64 {check.site}, {found}, {extent})")

        self.f.branch(any_lane(self.f, bad), report)

    # --- reductions ----------------------------------------------------------------------------------------

    def combine(self, reducer: Reducer, left: Value, right: Value) -> Value:
        """The running value `left` with one more value."""
        if reducer.name != "custom":
            return ops.apply(self.f, _COMBINE[reducer.name], reducer.dtype, [left, right], self._math)
        operands = {"a": left, "b": right}
        return self.value(combine_of(reducer), Context({}, max(left.lanes, right.lanes), operands=operands))

    def cast(self, value: Value, source: DType, target: DType) -> Value:
        return conversions.cast(self.f, value, source, target)


def slot_of(kept: Mapping[str, Mapping[Key, Slot]], buffer: str, indices: Sequence[Index]) -> Slot | None:
    """The register among `kept` that an element is in as well."""
    slots = kept.get(buffer)
    if slots is None:
        return None
    return slots.get(tuple(form for form in indices if isinstance(form, Linear)))


def combine_of(reducer: Reducer) -> Expr:
    """The expression of a custom reducer, over `a` and `b` alone: a program's and a loop program's alike."""
    assert reducer.combine is not None, "a custom reducer has an expression"
    return reducer.combine


def neutral_number(reducer: Reducer) -> bool | int | float | None:
    """The number that changes nothing when combined; None for a custom reducer, which may have none."""
    dtype = reducer.dtype
    match reducer.name:
        case "sum":
            return -0.0 if dtype.is_float else 0  # -0.0 + x is x for every x, +0.0 + -0.0 is not -0.0
        case "prod":
            return 1
        case "any":
            return False
        case "all":
            return True
        case "max":
            return lowest(dtype)
        case "min":
            return highest(dtype)
        case "custom":
            return None
        case _:
            assert_never(reducer.name)


def lowest(dtype: DType) -> int | float:
    if dtype.is_float:
        return float("-inf")
    return -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0


def highest(dtype: DType) -> int | float:
    if dtype.is_float:
        return float("inf")
    if dtype.is_bool:
        return 1
    return (1 << (dtype.bits - (dtype.kind == "i"))) - 1


def _number(number: bool | int | float, dtype: DType) -> Value:
    if dtype in (f16, bf16):
        return constant(conversions.rounded_number(float(number), dtype), "float")
    return constant(number, register_scalar(dtype))


def _is_masked_alike(choice: Op[Expr]) -> bool:
    """Whether a choice of a load or zero is what the load's own mask says."""
    condition, then, otherwise = choice.args
    if not (isinstance(then, Load) and isinstance(otherwise, Const) and then.mask == condition):
        return False
    return otherwise.value == 0 and math.copysign(1, otherwise.value) > 0


def coefficient(expr: Expr, var: str) -> int | None:
    """The factor of `var` in an expression that is linear in it; None where it is not."""
    match expr:
        case Var(name):
            return int(name == var)
        case Op("add" | "sub" as name, (left, right)):
            first, second = coefficient(left, var), coefficient(right, var)
            return None if first is None or second is None else first + second * (1 if name == "add" else -1)
        case Op("mul", (Const(factor), other)) | Op("mul", (other, Const(factor))):
            inner = coefficient(other, var)
            return None if inner is None else inner * int(factor)
        case _:
            return None if uses(expr, var) else 0


_PREDICATES = {"lt": "slt", "le": "sle", "gt": "sgt", "ge": "sge", "eq": "eq", "ne": "ne"}
_HOLDS = {
    "slt": lambda n: n < 0,
    "sle": lambda n: n <= 0,
    "sgt": lambda n: n > 0,
    "sge": lambda n: n >= 0,
    "eq": lambda n: n == 0,
    "ne": lambda n: n != 0,
}
_INDEX_LIKE = frozenset({"floordiv", "mod", "minimum", "maximum", "select"})
_COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}
