"""Batches of points: the values that the axes of an equation take at once, as arrays that broadcast.

A grid of points keeps one axis per dimension (an open mesh), so an expression that uses few axes stays small; a list
of points keeps all axes along one dimension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyopt.classes import dataclass
from polyopt.dsl.affine import evaluate
from polyopt.dsl.ir import Axis

Array = NDArray[Any]

BLOCK = 1 << 18
"""Points evaluated at once: large enough to hide NumPy's overhead, small enough for a few temporaries in cache."""


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Points at which expressions are evaluated.

    axes:  per axis an i64 array of `len(shape)` dimensions that broadcasts to `shape`
    mask:  bool array that broadcasts to `shape`; points where it is false are not there; None: all are
    cache: results at these points, by identity of the expression (a Python variable may use one many times)
    """

    axes: Mapping[str, Array]
    shape: tuple[int, ...]
    mask: Array | None = None
    cache: dict[int, Any] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape or (self.mask is not None and not self.mask.any())

    def where(self, condition: Any) -> Points:
        """The points at which `condition`, a bool or an array over the points, holds."""
        if condition is True or (np.ndim(condition) == 0 and bool(condition)):
            return self
        shaped = np.asarray(condition)
        if shaped.ndim == 0:
            shaped = shaped.reshape((1,) * len(self.shape))
        return Points(self.axes, self.shape, shaped if self.mask is None else shaped & self.mask)

    def extended(self, names: Sequence[str], block: Sequence[range]) -> Points:
        """Each point combined with each point of the box `block` over the axes `names`, in new last dimensions."""
        extra = (1,) * len(names)
        axes = {name: values.reshape(values.shape + extra) for name, values in self.axes.items()}
        axes.update(_mesh(names, block, len(self.shape)))
        shape = self.shape + tuple(len(r) for r in block)
        return Points(axes, shape, None if self.mask is None else self.mask.reshape(self.mask.shape + extra))

    def first(self, condition: Any) -> dict[str, int]:
        """The axis values of the first point where `condition` (an array over the points) holds."""
        found = np.broadcast_to(condition, self.shape)
        place = np.unravel_index(int(np.argmax(found)), self.shape)
        return {name: int(np.broadcast_to(v, self.shape)[place]) for name, v in self.axes.items()}


def grid(names: Sequence[str], block: Sequence[range]) -> Points:
    """All points of a box."""
    return Points(_mesh(names, block, 0), tuple(len(r) for r in block))


def _mesh(names: Sequence[str], block: Sequence[range], before: int) -> dict[str, Array]:
    mesh = {}
    for position, (name, values) in enumerate(zip(names, block, strict=True)):
        shape = [1] * (before + len(names))
        shape[before + position] = len(values)
        mesh[name] = np.arange(values.start, values.stop, dtype=np.int64).reshape(shape)
    return mesh


def axis_range(axis: Axis, sizes: Mapping[str, int]) -> range:
    """The values of a resolved axis for given sizes."""
    assert axis.is_resolved, f"axis '{axis.name}' has no range; resolve the program first"
    lower = max(int(evaluate(bound, {}, sizes)) for bound in axis.lower)
    upper = min(int(evaluate(bound, {}, sizes)) for bound in axis.upper)
    return range(lower, max(lower, upper))


def box(axes: Sequence[Axis], sizes: Mapping[str, int]) -> tuple[range, ...]:
    return tuple(axis_range(axis, sizes) for axis in axes)


def blocks(whole: tuple[range, ...], limit: int) -> Iterator[tuple[range, ...]]:
    """Cuts a box into boxes of at most `limit` points, which together are the box in lexicographic order."""
    if any(len(r) == 0 for r in whole):
        return
    inner, split = 1, len(whole)
    while split > 0 and inner * len(whole[split - 1]) <= limit:
        split -= 1
        inner *= len(whole[split])
    if split == 0:
        yield whole
        return
    step = max(1, limit // inner)
    for prefix in np.ndindex(*(len(r) for r in whole[: split - 1])):
        fixed = tuple(r[p : p + 1] for r, p in zip(whole, prefix, strict=False))
        cut = whole[split - 1]
        for start in range(0, len(cut), step):
            yield (*fixed, cut[start : start + step], *whole[split:])
