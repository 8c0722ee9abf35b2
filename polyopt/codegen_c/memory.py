"""Elements of buffers in lanes: addresses, loads and stores.

An address is a base pointer plus a byte offset that is linear in the lane, plus an optional vector of offsets for
subscripts that are not. A step of one item per lane is a contiguous vector access, no step a broadcast, a step of
minus one item a reversed vector; anything else is a gather or scatter.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyopt.classes import dataclass
from polyopt.codegen_c.llvm_text import Function, Value, signature_suffix, vector_type
from polyopt.codegen_c.values import (
    Linear,
    any_lane,
    binary,
    compare,
    constant,
    first_lanes,
    int64,
    lane,
    lane_choice,
    lane_mask,
    lane_numbers,
    level_sums,
    linear,
    memory_scalar,
    only_lane,
    scalar_of,
    select,
    shuffle,
    splat,
)
from polyopt.loops.ir import Buffer

Index = Linear | Value

MASKS_ARE_CHEAP = 64
"""Bytes of a vector from which on masked stores cost what others do: AVX-512."""

_ZEROS = "@polyopt_zeros = internal constant [64 x i8] zeroinitializer, align 64"


@dataclass(frozen=True, slots=True)
class Place:
    """A buffer as a function sees it.

    base:      address of element 0
    strides:   bytes per step of each dimension
    extents:   of each dimension
    alignment: that every element is known to have
    lanes:     for a local buffer inside a vector loop: every element holds one item per lane, lane after lane
    kept:      for a buffer that passes the caches: not 0 in a call in which it does not, as it is in place, or small
    """

    buffer: Buffer
    base: Value
    strides: tuple[Linear, ...]
    extents: tuple[Linear, ...]
    alignment: int
    lanes: int = 1
    kept: Value | None = None

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def itemsize(self) -> int:
        return self.buffer.dtype.itemsize

    @property
    def scalar(self) -> str:
        return memory_scalar(self.buffer.dtype)


@dataclass(frozen=True, slots=True)
class Address:
    """`base + offset + unit * scattered`, in bytes; `scattered` holds one number per lane."""

    base: Value
    offset: Linear
    scattered: Value | None = None
    unit: int = 1

    @property
    def is_uniform(self) -> bool:
        return self.scattered is None and self.offset.is_uniform


def address_of(f: Function, place: Place, indices: Sequence[Index], lanes: int) -> Address:
    """The address of an element, lane by lane."""
    offset = Linear(lane_factor=place.itemsize if place.lanes > 1 else 0)
    scattered: list[tuple[Value, Linear]] = []
    for index, stride in zip(indices, place.strides, strict=True):
        if isinstance(index, Value):
            scattered.append((index, stride))
        elif stride.is_constant:
            offset = offset + index * stride.constant
        else:
            offset = offset + _product(f, index.first_lane, stride)
            if index.lane_factor:
                scattered.append((lane_numbers("i64", lanes, index.lane_factor), stride))
    if not scattered:
        return Address(place.base, offset)
    return _scattered_address(f, place, offset, scattered, lanes)


def _product(f: Function, index: Linear, stride: Linear) -> Linear:
    """The product of two uniform forms: each product of two run-time numbers becomes a term of its own."""
    total = index * stride.constant + Linear(0, stride.terms) * index.constant
    for value, factor in index.terms:
        for step, step_factor in stride.terms:
            total = total + linear(binary(f, "mul", value, step)) * (factor * step_factor)
    return total


def _scattered_address(
    f: Function, place: Place, offset: Linear, parts: list[tuple[Value, Linear]], lanes: int
) -> Address:
    in_items = offset.lane_factor % place.itemsize == 0 and all(
        stride.is_constant and stride.constant % place.itemsize == 0 for _, stride in parts
    )
    unit = place.itemsize if in_items else 1
    total: Value | None = None
    if offset.lane_factor:
        total = lane_numbers("i64", lanes, offset.lane_factor // unit)
    for index, stride in parts:
        step = int64(stride.constant // unit) if stride.is_constant else scalar_of(f, stride)
        term = index if step.constant == 1 else binary(f, "mul", index, step)
        total = term if total is None else binary(f, "add", total, term)
    return Address(place.base, offset.first_lane, total, unit)


def pointer(f: Function, address: Address, shift: int = 0) -> Value:
    """The pointer to lane 0 (`shift` bytes further), for an address without scattered part.

    The offset is added depth by depth, so that what an inner loop does not change is computed outside it, and the
    constant last, so that neighbouring accesses share the rest.
    """
    result = address.base
    for part in level_sums(f, address.offset):
        result = _moved(f, result, part)
    constant_part = address.offset.constant + shift
    return _moved(f, result, int64(constant_part)) if constant_part else result


def _moved(f: Function, base: Value, offset: Value) -> Value:
    return f.instruction(f"getelementptr i8, {base}, {offset}", "ptr", 1, [base, offset], "cheap")


def pointers(f: Function, address: Address, lanes: int) -> Value:
    """One pointer per lane."""
    scattered = address.scattered
    base = pointer(f, address)
    if scattered is None:
        scattered, unit = lane_numbers("i64", lanes, address.offset.lane_factor), 1
    else:
        scattered, unit = splat(f, scattered, lanes), address.unit
    text = f"getelementptr i{8 * unit}, {base}, {scattered}"
    return f.instruction(text, "ptr", lanes, [base, scattered])


# --- loads ----------------------------------------------------------------------------------------------------


def read(
    f: Function,
    place: Place,
    address: Address,
    lanes: int,
    mask: Value | None,
    guard: Value | None,
    *,
    is_regular: bool = False,
) -> Value:
    """The element of each lane; zero where `guard` does not hold. A scalar where all lanes read one element.

    mask:       lanes that are on (at least one); the others' values do not matter
    guard:      where false nothing is read
    is_regular: scattered lanes are often neighbours all the same, as they are where a subscript wraps around or
                is clamped
    """
    if address.is_uniform:
        return _read_uniform(f, place, address, mask, guard)
    is_same = guard is None or guard.lanes == 1
    if guard is not None:
        guard = splat(f, guard, lanes)
    active = guard if mask is None else mask if guard is None else binary(f, "and", mask, guard)
    step = address.offset.lane_factor
    if address.scattered is None and step == place.itemsize:
        return _read_vector(f, place, pointer(f, address), lanes, active)
    if address.scattered is None and step == -place.itemsize:
        first = pointer(f, address, -place.itemsize * (lanes - 1))
        backwards = range(lanes - 1, -1, -1)
        active = active and shuffle(f, active, backwards)
        return shuffle(f, _read_vector(f, place, first, lanes, active), backwards)
    if address.scattered is None and mask is None and is_same and step in _few_items(place):
        return _read_strided(f, place, address, lanes, step // place.itemsize, guard)
    if is_regular and address.scattered is not None and address.unit == place.itemsize:
        return _read_neighbours(f, place, address, lanes, active)
    return _gather(f, place, address, lanes, active)


def _few_items(place: Place) -> tuple[int, ...]:
    """Steps per lane for which whole vectors and shuffles beat a gather."""
    return tuple(place.itemsize * items for items in (2, 3, 4))


def _read_strided(f: Function, place: Place, address: Address, lanes: int, items: int, guard: Value | None) -> Value:
    """Every second, third or fourth element, out of whole vectors; nothing behind the last one is read.

    guard: whether anything is read, the same in all lanes
    """
    wanted = (lanes - 1) * items + 1
    result: Value | None = None
    for start in range(0, wanted, lanes):
        mask = lane_mask(lanes, wanted - start) if wanted - start < lanes else None
        mask = guard if mask is None else mask if guard is None else binary(f, "and", mask, guard)
        part = _read_vector(f, place, pointer(f, address, start * place.itemsize), lanes, mask)
        if result is None:
            result = shuffle(f, part, [min(number * items, lanes - 1) for number in range(lanes)])
            continue
        places = [number * items - start for number in range(lanes)]
        order = [lanes + where if 0 <= where < lanes else number for number, where in enumerate(places)]
        result = shuffle(f, result, order, part)
    assert result is not None, "a vector has lanes"
    return result


def _read_neighbours(f: Function, place: Place, address: Address, lanes: int, active: Value | None) -> Value:
    """One vector where the lanes turn out to read neighbouring elements, else a gather."""
    assert address.scattered is not None, "only scattered lanes need to be looked at"
    scattered = splat(f, address.scattered, lanes)
    first = lane(f, scattered, int64(0))
    expected = binary(f, "add", splat(f, first, lanes), lane_numbers("i64", lanes))
    apart = any_lane(f, compare(f, "ne", scattered, expected))
    slot = f.alloca(vector_type(place.scalar, lanes), 64)

    def gather() -> None:
        f.write(slot, _gather(f, place, address, lanes, active))

    def whole() -> None:
        start = _moved(f, pointer(f, address), binary(f, "mul", first, int64(address.unit)))
        f.write(slot, _read_vector(f, place, start, lanes, active))

    f.branch(apart, gather, whole)
    return f.read(slot, place.scalar, lanes)


def _read_uniform(f: Function, place: Place, address: Address, mask: Value | None, guard: Value | None) -> Value:
    source = pointer(f, address)
    if guard is None:
        return f.load(place.scalar, 1, source, place.alignment, place.name)
    wanted = guard
    if guard.lanes > 1:
        wanted = any_lane(f, guard if mask is None else binary(f, "and", guard, mask))
    safe = select(f, wanted, source, _zeros(f))
    value = f.load(place.scalar, 1, safe, place.alignment, place.name)
    if guard.lanes == 1:
        return value
    return select(f, guard, value, constant(0, value.scalar))


def _zeros(f: Function) -> Value:
    """A place that reads as 0 in every dtype: where a load that must not happen goes instead."""
    f.module.declare(_ZEROS)
    return Value("@polyopt_zeros", "ptr")


def _read_vector(f: Function, place: Place, source: Value, lanes: int, active: Value | None) -> Value:
    if active is None:
        return f.load(place.scalar, lanes, source, place.alignment, place.name)
    zero = constant(0, place.scalar, lanes)
    name = f"llvm.masked.load.{signature_suffix(zero)}.p0"
    operands = [_aligned(source, place), active, zero]
    return f.intrinsic(name, place.scalar, lanes, operands, motion="load", buffer=place.name)


def _gather(f: Function, place: Place, address: Address, lanes: int, active: Value | None) -> Value:
    zero = constant(0, place.scalar, lanes)
    source = pointers(f, address, lanes)
    name = f"llvm.masked.gather.{signature_suffix(zero)}.v{lanes}p0"
    operands = [_aligned(source, place), active or constant(True, "i1", lanes), zero]
    return f.intrinsic(name, place.scalar, lanes, operands, motion="load", buffer=place.name)


def _aligned(address: Value, place: Place) -> Value:
    """The pointer operand of a masked access, which carries the alignment as an attribute."""
    return Value(f"align {place.alignment} {address.text}", "ptr", address.lanes, address.level)


# --- stores ---------------------------------------------------------------------------------------------------


def write(f: Function, place: Place, address: Address, lanes: int, mask: Value | None, value: Value) -> None:
    """Stores the lanes that are on. Lanes that share an element must have been taken apart before."""
    if lanes == 1:
        assert mask is None, "a scalar store is guarded by a branch"
        f.store(value, pointer(f, address), place.alignment, place.name)
        return
    value = splat(f, value, lanes)
    step = address.offset.lane_factor
    if address.scattered is None and step == place.itemsize:
        _write_vector(f, place, pointer(f, address), mask, value)
    elif address.scattered is None and step == -place.itemsize:
        first = pointer(f, address, -place.itemsize * (lanes - 1))
        backwards = range(lanes - 1, -1, -1)
        _write_vector(f, place, first, mask and shuffle(f, mask, backwards), shuffle(f, value, backwards))
    elif address.scattered is None and mask is None and step in _few_items(place):
        _write_strided(f, place, address, lanes, step // place.itemsize, value)
    else:
        target = _aligned(pointers(f, address, lanes), place)
        f.effect(
            f"llvm.masked.scatter.{signature_suffix(value)}.v{lanes}p0",
            [value, target, mask or constant(True, "i1", lanes)],
        )
        f.clobber([place.name])


def _write_pieces(f: Function, place: Place, target: Value, count: int, value: Value) -> None:
    """The first lanes, as stores of 8, 4, 2 and 1 of them: a masked store of AVX2 takes longer than all of these."""
    start = 0
    while start < count:
        size = 1 << ((count - start).bit_length() - 1)
        here = _moved(f, target, int64(start * place.itemsize)) if start else target
        f.store(shuffle(f, value, range(start, start + size)), here, place.alignment, place.name)
        start += size


def _write_strided(f: Function, place: Place, address: Address, lanes: int, items: int, value: Value) -> None:
    """Every second, third or fourth element, by masked vectors."""
    for part in range(items):
        positions = range(part * lanes, (part + 1) * lanes)
        order = [position // items for position in positions]
        mask = lane_choice([position % items == 0 for position in positions])
        _write_vector(f, place, pointer(f, address, part * lanes * place.itemsize), mask, shuffle(f, value, order))


def _write_past(f: Function, place: Place, target: Value, value: Value) -> None:
    """A vector to memory, past the caches, if it is aligned (rows of a length that is no multiple are not) and the
    call is not in place."""
    size = value.lanes * place.itemsize
    number = f.instruction(f"ptrtoint {target} to i64", "i64", 1, [target], "cheap")
    rest = binary(f, "and", number, int64(size - 1))
    if place.kept is not None:
        rest = binary(f, "or", rest, place.kept)
    f.branch(
        compare(f, "eq", rest, int64(0)),
        lambda: f.store_past(value, target, size, place.name),
        lambda: f.store(value, target, place.alignment, place.name),
    )
    f.remember(value, target, place.alignment, place.name)


def _write_vector(f: Function, place: Place, target: Value, mask: Value | None, value: Value) -> None:
    if mask is None and place.buffer.passes:
        _write_past(f, place, target, value)
        return
    if mask is None:
        f.store(value, target, place.alignment, place.name)
        return
    only = only_lane(mask)
    if only is not None:
        # LLVM 22 makes a 4-byte store of a 2-byte element out of a truncation and a mask with one constant lane.
        start = _moved(f, target, int64(only * place.itemsize)) if only else target
        f.store(lane(f, value, int64(only)), start, place.alignment, place.name)
        return
    first = first_lanes(mask)
    if first is not None and value.lanes * place.itemsize < MASKS_ARE_CHEAP:
        _write_pieces(f, place, target, first, value)
        return
    f.effect(f"llvm.masked.store.{signature_suffix(value)}.p0", [value, _aligned(target, place), mask])
    f.clobber([place.name])
