"""Loads across the grain: blocks of whole vectors, transposed in registers.

Inside a loop that is written out, lanes that step over rows while the loop steps along them read a square block of
the array. Its rows are loaded as vectors and transposed by shuffles; each iteration then takes its column. The block
is written down again for every iteration, and value numbering leaves one.
"""

from __future__ import annotations

from collections.abc import Callable

from polyopt.codegen_c.llvm_text import Function, Value
from polyopt.codegen_c.values import shuffle

MOST_LANES = 16


def column(f: Function, lanes: int, number: int, load_row: Callable[[int], Value]) -> Value:
    """Column `number` of the square block of which `load_row(n)` gives row n.

    log2(lanes) rounds of interleaving the first half of the vectors with the second.
    """
    vectors = [load_row(row) for row in range(lanes)]
    half = lanes // 2
    low = [entry for lane in range(half) for entry in (lane, lanes + lane)]
    high = [entry for lane in range(half, lanes) for entry in (lane, lanes + lane)]
    rounds = lanes.bit_length() - 1
    for _ in range(rounds):
        pairs = list(zip(vectors[:half], vectors[half:], strict=True))
        vectors = [shuffle(f, a, order, b) for a, b in pairs for order in (low, high)]
    return vectors[number]
