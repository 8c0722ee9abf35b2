"""Arithmetic on values: constants, lanes, integers and floats, and the linear forms that subscripts become."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache, reduce
from itertools import groupby

from polyopt.classes import dataclass
from polyopt.codegen_c.llvm_text import Function, Value, float_text, scalar_bits, signature_suffix, vector_type
from polyopt.dtypes import DType, bf16, f16

_FLOAT_SCALARS = {"f16": "float", "bf16": "float", "f32": "float", "f64": "double"}


def register_scalar(dtype: DType) -> str:
    """LLVM type of one element in a register: i1 for bool; f16 and bf16 are held as (already rounded) f32."""
    if dtype.is_bool:
        return "i1"
    return _FLOAT_SCALARS[dtype.name] if dtype.is_float else f"i{dtype.bits}"


def memory_scalar(dtype: DType) -> str:
    """LLVM type of one element in memory."""
    if dtype in (f16, bf16):
        return "i16"
    return "i8" if dtype.is_bool else register_scalar(dtype)


# --- constants ------------------------------------------------------------------------------------------------


def constant(value: bool | int | float, scalar: str, lanes: int = 1) -> Value:
    """A constant, the same in all lanes; integers wrap to the width."""
    if scalar in ("float", "double"):
        number: int | float = float(value)
        text = float_text(number, scalar)
    else:
        number = wrapped(int(value), scalar_bits(scalar))
        text = ("true" if number else "false") if scalar == "i1" else str(number)
    return Value(text if lanes == 1 else f"splat ({scalar} {text})", scalar, lanes, 0, number)


def wrapped(value: int, bits: int) -> int:
    """`value` as a signed integer of that many bits (0 or 1 for one bit)."""
    if bits == 1:
        return value & 1
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


@lru_cache(maxsize=1024)
def int64(value: int) -> Value:
    return constant(value, "i64")


TRUE = constant(True, "i1")
FALSE = constant(False, "i1")


def lane_numbers(scalar: str, lanes: int, factor: int = 1) -> Value:
    """The vector 0, factor, 2 * factor, ..."""
    numbers = ", ".join(f"{scalar} {wrapped(lane * factor, scalar_bits(scalar))}" for lane in range(lanes))
    return Value(f"<{numbers}>", scalar, lanes)


def lane_mask(lanes: int, active: int) -> Value:
    """The constant mask whose first `active` lanes are on."""
    return lane_choice([lane < active for lane in range(lanes)])


def lane_choice(chosen: Sequence[bool]) -> Value:
    """The constant mask with these lanes."""
    bits = ", ".join(f"i1 {'true' if on else 'false'}" for on in chosen)
    return Value(f"<{bits}>", "i1", len(chosen))


def only_lane(mask: Value) -> int | None:
    """The lane that is on, for a constant mask with one."""
    lanes = mask.text.strip("<>").split(", ") if mask.text.startswith("<") else []
    on = [number for number, text in enumerate(lanes) if text == "i1 true"]
    return on[0] if len(on) == 1 else None


def first_lanes(mask: Value) -> int | None:
    """How many lanes are on, for a constant mask whose first ones are."""
    lanes = mask.text.strip("<>").split(", ") if mask.text.startswith("<") else []
    on = sum(text == "i1 true" for text in lanes)
    return on if on and mask.text == lane_mask(mask.lanes, on).text else None


# --- lanes ----------------------------------------------------------------------------------------------------


def splat(f: Function, value: Value, lanes: int) -> Value:
    """The scalar in every lane; a vector as it is."""
    if value.lanes == lanes:
        return value
    assert value.lanes == 1, "only scalars can be splat"
    if value.constant is not None:
        return constant(value.constant, value.scalar, lanes)
    vector = vector_type(value.scalar, lanes)
    single = f.instruction(f"insertelement {vector} poison, {value}, i64 0", value.scalar, lanes, [value])
    text = f"shufflevector {single}, {vector} poison, <{lanes} x i32> zeroinitializer"
    return f.instruction(text, value.scalar, lanes, [single])


def aligned_lanes(f: Function, *values: Value) -> list[Value]:
    """The values with scalars splat to the width of the widest."""
    widths = [value.lanes for value in values]
    lanes = max(widths)
    return [*values] if min(widths) == lanes else [splat(f, value, lanes) for value in values]


def lane(f: Function, vector: Value, index: Value) -> Value:
    """One lane of a vector."""
    return f.instruction(f"extractelement {vector}, {index}", vector.scalar, 1, [vector, index])


def shuffle(f: Function, vector: Value, indices: Sequence[int], second: Value | None = None) -> Value:
    """The lanes at `indices` of `vector` and then `second`, as a new vector; a scalar for one."""
    if len(indices) == 1:
        return lane(f, vector, int64(indices[0]))
    order = ", ".join(f"i32 {index}" for index in indices)
    other = second or Value("poison", vector.scalar, vector.lanes)
    text = f"shufflevector {vector}, {other}, <{len(indices)} x i32> <{order}>"
    return f.instruction(text, vector.scalar, len(indices), [vector, other])


def any_lane(f: Function, mask: Value) -> Value:
    """Whether some lane of a mask is on.

    Asked of bytes: LLVM 22 folds a test of the bits wrongly where it finds late that the mask is a constant.
    """
    if mask.lanes == 1:
        return mask
    lanes, scalar = convert(f, "sext", mask, "i8"), f"i{8 * mask.lanes}"
    whole = f.instruction(f"bitcast {lanes} to {scalar}", scalar, 1, [lanes])
    return compare(f, "ne", whole, constant(0, scalar))


def lane_bits(f: Function, mask: Value) -> Value:
    """The mask as an integer, lane 0 in the lowest bit."""
    scalar = f"i{mask.lanes}"
    return f.instruction(f"bitcast {mask} to {scalar}", scalar, 1, [mask])


# --- instructions ---------------------------------------------------------------------------------------------


def binary(f: Function, opcode: str, left: Value, right: Value, flags: str = "") -> Value:
    """`opcode` on two operands of one scalar type."""
    left, right = aligned_lanes(f, left, right)
    assert left.type == right.type, f"{opcode} on {left} and {right}"
    is_cheap = left.lanes == 1 and left.scalar not in ("float", "double")
    text = f"{opcode} {flags}{left}, {right.text}"
    return f.instruction(text, left.scalar, left.lanes, [left, right], "cheap" if is_cheap else "pure")


def compare(f: Function, predicate: str, left: Value, right: Value, flags: str = "") -> Value:
    """Integer or float comparison by LLVM's predicate."""
    left, right = aligned_lanes(f, left, right)
    assert left.type == right.type, f"{predicate} on {left} and {right}"
    is_float = left.scalar in ("float", "double")
    text = f"{'fcmp' if is_float else 'icmp'} {flags if is_float else ''}{predicate} {left}, {right.text}"
    return f.instruction(text, "i1", left.lanes, [left, right], "pure" if is_float or left.lanes > 1 else "cheap")


def like(value: Value, number: int | float) -> Value:
    """A scalar constant of the value's type."""
    return constant(number, value.scalar)


def is_nan(f: Function, value: Value) -> Value:
    return compare(f, "uno", value, value)


def select(f: Function, condition: Value, then: Value, otherwise: Value) -> Value:
    if condition.constant is not None:
        return then if condition.constant else otherwise
    if then == otherwise:
        return then
    then, otherwise = aligned_lanes(f, then, otherwise)
    if condition.lanes > then.lanes:
        then, otherwise = splat(f, then, condition.lanes), splat(f, otherwise, condition.lanes)
    is_cheap = then.lanes == 1 and then.scalar in ("i64", "i1", "ptr")
    text = f"select {condition}, {then}, {otherwise}"
    return f.instruction(text, then.scalar, then.lanes, [condition, then, otherwise], "cheap" if is_cheap else "pure")


def convert(f: Function, opcode: str, value: Value, scalar: str, flags: str = "") -> Value:
    """A conversion instruction (`sext`, `fptrunc`, `bitcast`, ...); nothing where the type stays."""
    if value.scalar == scalar:
        return value
    text = f"{opcode} {flags}{value} to {vector_type(scalar, value.lanes)}"
    return f.instruction(
        text, scalar, value.lanes, [value], "cheap" if value.lanes == 1 and scalar == "i64" else "pure"
    )


def bitcast(f: Function, value: Value, scalar: str, lanes: int) -> Value:
    """The bits of a vector as another one; nothing where that is what it is."""
    if (value.scalar, value.lanes) == (scalar, lanes):
        return value
    return f.instruction(f"bitcast {value} to {vector_type(scalar, lanes)}", scalar, lanes, [value])


def intrinsic(f: Function, name: str, *operands: Value, flags: str = "") -> Value:
    """An LLVM intrinsic whose result and operands have one type: `llvm.<name>.<suffix>`."""
    values = aligned_lanes(f, *operands)
    first = values[0]
    return f.intrinsic(f"llvm.{name}.{signature_suffix(first)}", first.scalar, first.lanes, values, flags)


def both(f: Function, left: Value | None, right: Value | None) -> Value | None:
    """The conjunction of two masks, where None is always true."""
    if left is None or left.constant == 1:
        return right
    if right is None or right.constant == 1:
        return left
    return binary(f, "and", left, right)


def conjunction(f: Function, masks: Sequence[Value | None]) -> Value | None:
    """All of the masks, where None is always true."""
    result: Value | None = None
    for mask in masks:
        result = both(f, result, mask)
    return result


# --- linear forms ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Linear:
    """`constant + sum(factor * value) + lane_factor * lane`, in 64-bit arithmetic.

    terms: scalar i64 values with their factors, sorted by depth, then name; factors are not zero
    lane_factor: what one lane adds; 0 for a number that is the same in all lanes
    """

    constant: int = 0
    terms: tuple[tuple[Value, int], ...] = ()
    lane_factor: int = 0

    def __add__(self, other: Linear) -> Linear:
        constant, lane_factor = wrapped(self.constant + other.constant, 64), self.lane_factor + other.lane_factor
        if not (self.terms and other.terms):
            return Linear(constant, self.terms or other.terms, lane_factor)
        found = {term[0].text: term for term in self.terms}  # one text, one value
        for term in other.terms:
            value, factor = term
            known = found.get(value.text)
            found[value.text] = term if known is None else (value, known[1] + factor)
        kept = [term for term in found.values() if term[1]]
        if len(found) > len(self.terms):
            kept.sort(key=_by_depth)
        return Linear(constant, tuple(kept), lane_factor)

    def __mul__(self, factor: int) -> Linear:
        if factor == 1:
            return self
        if factor == 0:
            return Linear()
        terms = tuple((value, wrapped(f * factor, 64)) for value, f in self.terms)
        return Linear(wrapped(self.constant * factor, 64), terms, self.lane_factor * factor)

    def __sub__(self, other: Linear) -> Linear:
        if not other.terms:
            constant = wrapped(self.constant - other.constant, 64)
            return Linear(constant, self.terms, self.lane_factor - other.lane_factor)
        return self + other * -1

    @property
    def is_constant(self) -> bool:
        return not self.terms and self.lane_factor == 0

    @property
    def is_uniform(self) -> bool:
        return self.lane_factor == 0

    @property
    def level(self) -> int:
        return max((value.level for value, _ in self.terms), default=0)

    @property
    def first_lane(self) -> Linear:
        return Linear(self.constant, self.terms)


def _by_depth(term: tuple[Value, int]) -> tuple[int, str]:
    return term[0].level, term[0].text


def linear(value: Value) -> Linear:
    """A scalar i64 as a linear form."""
    if value.constant is not None:
        return Linear(int(value.constant))
    return Linear(0, ((value, 1),))


def scaled(f: Function, value: Value, factor: int) -> Value:
    return value if factor == 1 else binary(f, "mul", value, int64(factor))


def level_sums(f: Function, form: Linear) -> list[Value]:
    """The terms summed per depth, outermost first, so that each partial sum can be hoisted to its depth."""
    sums: list[Value] = []
    for _, terms in groupby(form.terms, key=lambda term: term[0].level):
        parts = [scaled(f, value, factor) for value, factor in terms]
        sums.append(reduce(lambda left, right: binary(f, "add", left, right), parts))
    return sums


def scalar_of(f: Function, form: Linear) -> Value:
    """The value of lane 0."""
    sums = level_sums(f, form)
    if not sums:
        return int64(form.constant)
    total = sums[0]
    for part in sums[1:]:
        total = binary(f, "add", total, part)
    return total if form.constant == 0 else binary(f, "add", total, int64(form.constant))


def value_of(f: Function, form: Linear, lanes: int) -> Value:
    """The value: a scalar where all lanes agree, else a vector."""
    base = scalar_of(f, form)
    if form.is_uniform or lanes == 1:
        return base
    return binary(f, "add", splat(f, base, lanes), lane_numbers("i64", lanes, form.lane_factor))
