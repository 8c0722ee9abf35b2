"""How far apart neighbors along an axis lie in memory, which decides what an access of lanes is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, FloorDiv, axes_of
from polyopt.poly.scop import Array

LEAST_PANEL = 8
"""Columns of the narrowest panel that vectors lie in; a quotient by less is not constant within a vector."""


@dataclass(frozen=True, slots=True)
class Steps:
    """The arrays' steps.

    layouts: bytes from one element to the next along each dimension, of arrays that are not C-contiguous
    """

    arrays: Mapping[str, Array]
    layouts: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)

    def along(self, array: str, subscripts: Sequence[ir.Subscript], axis: str) -> int | None:
        """Elements from one point of an axis to the next; None where that is no number, or not the same everywhere.

        Without some of an array's last subscripts, what these say is taken for one element.
        """
        total = 0
        for subscript, step in zip(subscripts, self.of(array, len(subscripts)), strict=True):
            slope = slope_of(subscript, axis)
            if slope is None or (slope and step is None):
                return None
            total += slope * (step or 0)
        return total

    def of(self, array: str, rank: int) -> list[int | None]:
        """Elements from one to the next along each of the first dimensions; None where sizes decide."""
        found = self.arrays[array]
        layout = self.layouts.get(array)
        if layout is not None and len(layout) == rank == len(found.shape):
            item = found.dtype.itemsize
            return [step // item if step % item == 0 else None for step in layout]
        steps: list[int | None] = []
        step: int | None = 1
        for extent in reversed(found.shape[:rank]):
            steps.insert(0, step)
            step = step * extent.constant if step is not None and extent.is_constant else None
        return steps


def slope_of(subscript: ir.Subscript, axis: str) -> int | None:
    """By how much a subscript grows along an axis; None where that is no number. A quotient, such as the number of a
    panel, does not grow within a vector."""
    if isinstance(subscript, ir.DataIndex):
        return _slope_of_data(subscript.value, axis)
    small = (a for a, _ in subscript.terms if isinstance(a, FloorDiv) and a.divisor < LEAST_PANEL)
    if any(axis in axes_of(atom.numerator) for atom in small):
        return None
    return subscript.coefficient(AxisRef(axis))


def _slope_of_data(value: ir.Expr, axis: str) -> int | None:
    match value:
        case ir.IndexValue(affine):
            return slope_of(affine, axis)
        case ir.Cast(arg, dtype) if dtype.kind in "iu" and arg.dtype.kind in "iu":
            return _slope_of_data(arg, axis)
        case ir.Op("add" | "sub" as name, (left, right)):
            one, other = _slope_of_data(left, axis), _slope_of_data(right, axis)
            return None if one is None or other is None else one + (other if name == "add" else -other)
        case _:
            return None if _depends(value, axis) else 0


def _depends(value: ir.Expr, axis: str) -> bool:
    for node in ir.walk(value):
        match node:
            case ir.IndexValue(affine) if axis in axes_of(affine):
                return True
            case ir.Read(subscripts=subscripts):
                if any(isinstance(s, Affine) and axis in axes_of(s) for s in subscripts):
                    return True
            case ir.Where() | ir.Reduce():
                return True  # conditions may ask for it
            case _:
                pass
    return False
