"""Loads across the grain: blocks of whole vectors, transposed in registers.

Inside a loop that is written out, lanes that step over rows while the loop steps along them read a square block of
the array. Its rows are loaded as vectors and transposed by shuffles; each iteration then takes its column. The block
is written down again for every iteration, and value numbering leaves one.

Of a place in the block some bits are the row's number and as many the lane's; each round of shuffles brings one bit
of the row into the lane and one of the lane into the row. Within 128 bits neighbours interleave, as elements and then
as pairs of them; beyond, even and odd pieces of 128 bits come together. For both the processor has instructions that
hold the order themselves, where any other order would take a register.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyopt.codegen_c.llvm_text import Function, Value
from polyopt.codegen_c.values import shuffle

MOST_LANES = 16

PIECE_BITS = 128
"""Of a vector, within which elements interleave in one instruction."""


def column(f: Function, lanes: int, bits: int, number: int, load_row: Callable[[int], Value]) -> Value:
    """Column `number` of the square block of which `load_row(n)` gives row n; `bits` is the width of an element."""
    vectors = [load_row(row) for row in range(lanes)]
    piece = min(max(PIECE_BITS // bits, 1), lanes)
    inside, rounds = piece.bit_length() - 1, lanes.bit_length() - 1
    for turn in range(rounds):
        orders = _interleaved(lanes, piece, 1 << turn) if turn < inside else _sorted_out(lanes, piece)
        vectors = _round(f, vectors, turn, orders)
    # of the lane's bits within a piece the highest has gone into the row first
    low = sum((number >> bit & 1) << (inside - 1 - bit) for bit in range(inside))
    return vectors[number & -piece | low]


def _round(f: Function, vectors: Sequence[Value], bit: int, orders: tuple[Sequence[int], Sequence[int]]) -> list[Value]:
    """Two vectors out of each two whose numbers differ in one bit."""
    found = list(vectors)
    for number in range(len(vectors)):
        if not number >> bit & 1:
            other = number | 1 << bit
            for place, order in zip((number, other), orders, strict=True):
                found[place] = shuffle(f, vectors[number], order, vectors[other])
    return found


def _interleaved(lanes: int, piece: int, unit: int) -> tuple[list[int], list[int]]:
    """Of each piece the first half of two vectors in turns, then the second half, `unit` elements at a time."""
    halves: tuple[list[int], list[int]] = ([], [])
    for half, order in enumerate(halves):
        for start in range(0, lanes, piece):
            first = start + half * (piece // 2)
            for place in range(first, first + piece // 2, unit):
                order += [vector * lanes + place + n for vector in (0, 1) for n in range(unit)]
    return halves


def _sorted_out(lanes: int, piece: int) -> tuple[list[int], list[int]]:
    """The even pieces of two vectors, one behind the other, then the odd ones."""
    even, odd = (
        [start + n for start in range(first * piece, 2 * lanes, 2 * piece) for n in range(piece)] for first in (0, 1)
    )
    return even, odd
