"""The look through arguments that a kernel takes when it starts, before instructions that flush subnormal numbers.

A bf16 without its sign is an integer that grows with the magnitude. Less one, modulo 2**16, a zero is the greatest of
all, so the least of these integers tells how small the smallest element but zeros is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from math import prod

from polyopt.dots import LEAST_PRODUCT
from polyopt.dsl.ir import Cast, Const, Op, Reducer
from polyopt.dtypes import bool_, i32, i64, u16
from polyopt.loops.ir import Alloc, Block, Buffer, Expr, For, Load, LoopKind, Stmt, Store, index_var, integer

BIAS, FRACTION_BITS = 127, 7
"""Of a bf16: what is added to its exponent, and how many bits lie below that."""

PARTS = 64
"""Of an argument that threads look through together."""

PARALLEL_BYTES = 1 << 19
"""Of an argument from which on they do: some twenty microseconds of one core."""

_LEAST, _LEAST_OF_PARTS = "polyopt.least", "polyopt.least.parts"
_MAGNITUDE, _ONE, _ZERO = Const(0x7FFF, u16), Const(1, u16), Const(0xFFFF, u16)
_MINIMUM = Reducer("min", u16, None)


def bits_of(argument: Buffer) -> Buffer:
    """The argument as one of integers."""
    return replace(argument, name=f"{argument.name}.bits", dtype=u16)


def buffers(arguments: Sequence[Buffer]) -> tuple[Buffer, ...]:
    """Where the least integers are kept: of each argument, and of the parts of one."""
    return (
        Buffer(_LEAST, u16, (integer(max(1, len(arguments))),), "local"),
        Buffer(_LEAST_OF_PARTS, u16, (integer(PARTS),), "local"),
    )


def look(arguments: Sequence[Buffer]) -> Stmt:
    """What finds them.

    arguments: of bf16 and of known extents, each known as the integers of `bits_of`, too
    """
    body: Stmt = Block(tuple(s for number, argument in enumerate(arguments) for s in _least_of(number, argument)))
    for buffer in buffers(arguments):
        body = Alloc(buffer, body)
    return body


def are_large(arguments: Sequence[Buffer], pairs: Sequence[tuple[str, str]]) -> Expr:
    """Whether no product of an element of one argument and one of the other is smaller than `LEAST_PRODUCT`, zeros
    aside, and no element is subnormal, for each pair of arguments."""
    exponents = {argument.name: _exponent(number) for number, argument in enumerate(arguments)}
    return reduce(lambda a, b: Op("and", (a, b), bool_), _conditions(exponents, pairs))


def _conditions(exponents: Mapping[str, Expr], pairs: Sequence[tuple[str, str]]) -> Iterator[Expr]:
    for left, right in pairs:
        yield from (Op("gt", (exponents[name], Const(0, i32)), bool_) for name in (left, right))
        total: Expr = Op("add", (exponents[left], exponents[right]), i32)
        yield Op("ge", (total, Const(2 * BIAS + LEAST_PRODUCT, i32)), bool_)


def _exponent(number: int) -> Expr:
    """Of the smallest element of an argument; 0 where that is subnormal, beyond all exponents where all are zeros."""
    least: Expr = Cast(Load(_LEAST, (integer(number),), u16), i32)
    bits: Expr = Op("add", (least, Const(1, i32)), i32)
    return Op("shr", (bits, Const(FRACTION_BITS, i32)), i32)


def _least_of(number: int, argument: Buffer) -> Iterator[Stmt]:
    """The least integer of an argument: by threads, where it is large."""
    place: tuple[Expr, ...] = (integer(number),)
    yield _start(_LEAST, place)
    extents = [_constant(extent) for extent in argument.shape]
    order = _outer_first(argument, extents)
    cut = max(order[:-1] or order, key=lambda dimension: extents[dimension])
    if prod(extents) * argument.dtype.itemsize < PARALLEL_BYTES:
        yield _pass(argument, order, {}, _LEAST, place)
        return
    part = index_var("polyopt.part")
    share = -(-extents[cut] // PARTS)
    first: Expr = Op("mul", (part, integer(share)), i64)
    last: Expr = Op("minimum", (Op("add", (first, integer(share)), i64), integer(extents[cut])), i64)
    found = _pass(argument, order, {cut: (first, last)}, _LEAST_OF_PARTS, (part,))
    body = Block((_start(_LEAST_OF_PARTS, (part,)), found))
    yield For(part.name, integer(0), integer(PARTS), body, kind="parallel")
    least = Load(_LEAST_OF_PARTS, (part,), u16)
    yield For(part.name, integer(0), integer(PARTS), Store(_LEAST, (), _LEAST, place, least, _MINIMUM), kind="vector")


def _start(buffer: str, place: tuple[Expr, ...]) -> Store:
    return Store(_LEAST, (), buffer, place, _ZERO)


def _outer_first(argument: Buffer, extents: Sequence[int]) -> list[int]:
    """The dimensions, those in which neighbours lie far apart before those in which they are near."""
    strides = [abs(int(s.value)) if isinstance(s, Const) else 0 for s in argument.strides or ()]
    dimensions = range(len(extents))
    return sorted(dimensions, key=lambda d: -strides[d]) if all(strides) and strides else list(dimensions)


def _pass(
    argument: Buffer,
    order: Sequence[int],
    shares: Mapping[int, tuple[Expr, Expr]],
    buffer: str,
    place: tuple[Expr, ...],
) -> Stmt:
    """Loops over the elements of an argument, the last of `order` in lanes.

    shares: the bounds of a dimension of which only a part is looked through
    """
    bits = bits_of(argument)
    indices = tuple(index_var(f"polyopt.{dimension}") for dimension in range(len(bits.shape)))
    magnitude: Expr = Op("and", (Load(bits.name, indices, u16), _MAGNITUDE), u16)
    less_one: Expr = Op("sub", (magnitude, _ONE), u16)
    body: Stmt = Store(_LEAST, (), buffer, place, less_one, _MINIMUM)
    for dimension in reversed(order):
        lower, upper = shares.get(dimension, (integer(0), bits.shape[dimension]))
        kind: LoopKind = "vector" if dimension == order[-1] else "serial"
        body = For(indices[dimension].name, lower, upper, body, kind=kind)
    return body


def _constant(extent: Expr) -> int:
    assert isinstance(extent, Const), "dot instructions are for arrays of known extents"
    return int(extent.value)
