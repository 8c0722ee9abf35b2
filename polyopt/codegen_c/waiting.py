"""Vectors that are stored behind all loads of an iteration.

A processor holds a load back that seems to lie where an earlier store is still under way, as far as the twelve lowest
bits of their addresses tell: where a result is a vector further on in its page than an operand, each vector waits for
the one before (Zen 4, rms norm of 512 x 2048: 179 us 64 bytes further on, 112 elsewhere).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field

from polyopt.classes import dataclass
from polyopt.codegen_c.llvm_text import Value
from polyopt.codegen_c.memory import Index
from polyopt.codegen_c.values import memory_scalar, register_scalar
from polyopt.dtypes import DType

Element = tuple[str, tuple[Index, ...]]
"""A buffer and the indices of the first lane."""


@dataclass(slots=True)
class Waiting:
    """What waits, in the order of the stores. What is read of it meanwhile is the value that waits."""

    writes: list[Callable[[], None]] = field(default_factory=list)
    values: dict[Element, Value | None] = field(default_factory=dict)

    def add(self, element: Element, dtype: DType, value: Value, write: Callable[[], None]) -> None:
        """value: of the element, as it is in registers; dtype: as it will be in memory"""
        kept = {other: known for other, known in self.values.items() if other[0] != element[0]}
        self.values = {**kept, element: value if register_scalar(dtype) == memory_scalar(dtype) else None}
        self.writes.append(write)

    def value(self, element: Element, *, in_all_lanes: bool) -> Value | None:
        """What a vector reads; None where memory says it, and then nothing waits that belongs there."""
        known = self.values.get(element) if in_all_lanes else None
        if known is None and any(buffer == element[0] for buffer, _ in self.values):
            self.write()
        return known

    def write(self) -> None:
        """Writes what waits."""
        writes, self.writes, self.values = self.writes, [], {}
        for write in writes:
            write()
