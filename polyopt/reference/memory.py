"""Tensors under evaluation: their values so far, and which elements have one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl.ir import Tensor
from polyopt.errors import BoundsError, DefinitionError, Span
from polyopt.reference.points import Array, Points


@dataclass(slots=True, eq=False)
class Cells:
    """A tensor while its elements are being found.

    values:  one value per element, meaningless where `defined` is false
    defined: bool per element; None once every element is defined
    covered: elements that some definition reaches; while None, an undefined element is never going to be defined
    offset:  number of the first element, for numbering the elements of several tensors
    """

    tensor: Tensor
    values: Array
    defined: Array | None = None
    covered: Array | None = None
    offset: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.values.shape

    def settle(self) -> None:
        """Drops the masks that are not needed any more: nothing else is going to be defined."""
        self.covered = None
        if self.defined is not None and self.defined.all():
            self.defined = None


def element_text(tensor: str, index: Sequence[int]) -> str:
    return f"{tensor}[{', '.join(map(str, index)) or '()'}]"


def point_text(point: dict[str, int]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in point.items())


def outside(indices: Sequence[Array], shape: Sequence[int]) -> Any:
    """Where any of the indices leaves the box `shape`; False where none can."""
    result: Any = False
    for index, extent in zip(indices, shape, strict=True):
        wrong = (index < 0) | (index >= extent)
        if wrong.any():
            result = result | wrong
    return result


def index_at(indices: Sequence[Array], shape: tuple[int, ...], condition: Array) -> tuple[int, ...]:
    """The index tuple at the first point where `condition` holds."""
    place = np.unravel_index(int(np.argmax(np.broadcast_to(condition, shape))), shape)
    return tuple(int(np.broadcast_to(index, shape)[place]) for index in indices)


def bounds_error(cells: Cells, indices: Sequence[Array], points: Points, bad: Array, span: Span | None) -> BoundsError:
    index, point = index_at(indices, points.shape, bad), points.first(bad)
    name = cells.tensor.name
    dimension = next(d for d, (i, n) in enumerate(zip(index, cells.shape, strict=True)) if not 0 <= i < n)
    return BoundsError(
        f"index {index[dimension]} is out of bounds for dimension {dimension} of '{name}'",
        where=span,
        why=f"{element_text(name, index)} is touched for {point_text(point) or 'the only point'}; "
        f"'{name}' has shape {cells.shape}",
        fix="restrict the index with po.when or po.where, or read through .pad(), .clamp() or .wrap()",
        facts={
            "array": cells.tensor.name,
            "index": index,
            "dimension": dimension,
            "shape": cells.shape,
            "point": point,
        },
    )


def undefined_error(cells: Cells, index: tuple[int, ...], point: dict[str, int], span: Span | None) -> DefinitionError:
    element = element_text(cells.tensor.name, index)
    returned = f"'{cells.tensor.name}' is returned, which reads all of it"
    return DefinitionError(
        f"{element} is read, but no definition covers it",
        where=span,
        why=f"it is read for {point_text(point)}" if point else returned,
        fix=f"define {element}, or do not read it there",
        facts={"tensor": cells.tensor.name, "index": index, "point": point},
    )
