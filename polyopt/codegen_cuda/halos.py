"""Rows with a halo: what the lanes of a vector read of a row beside it, as a stencil does.

`x[i, j - 1] + x[i, j] + x[i, j + 1]` for four neighbors `j` reads six elements of the row: a vector and one more on
either side. Each is loaded once, in accesses as wide as alignment lets them be, and the lanes take theirs from
registers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from polyopt.classes import dataclass
from polyopt.codegen_cuda.alignment import first_lane, is_vector
from polyopt.dsl.affine import AxisRef
from polyopt.loops.affine import as_affine
from polyopt.loops.ir import Buffer, Load, walk_expr
from polyopt.loops.scan import affine_expr


@dataclass(frozen=True, slots=True)
class Halo:
    """Elements of a row that the lanes of a vector read.

    start: the load of element number 0, which starts a vector and may not be one of them
    first, last: the numbers of the first element and of the one behind the last
    """

    start: Load
    first: int
    last: int

    def pieces(self, width: int) -> Iterator[tuple[int, int]]:
        """Number and size of the accesses: the widest that start at a multiple of their size."""
        place = self.first
        while place < self.last:
            size = width
            while place % size or place + size > self.last:
                size //= 2
            yield place, size
            place += size

    def element(self, number: int) -> Load:
        """The load of an element."""
        return _moved(self.start, number)


def halos(
    loads: Iterable[Load], lane: str, width: int, buffers: Mapping[str, Buffer], known: Mapping[str, int]
) -> dict[Load, tuple[Halo, int]]:
    """For loads that are no vectors and those of their rows: whose elements they are, and the first lane's number.

    known: what divides variables and sizes
    """
    rows: defaultdict[Load, dict[int, Load]] = defaultdict(dict)
    for load in loads:
        place = _place(load, lane)
        if place is not None and is_vector(buffers[load.buffer], _moved(load, -place).indices, lane, width, known):
            start = _moved(load, -place)
            rows[replace(start, indices=tuple(first_lane(i, lane) for i in start.indices))][place] = load
    result: dict[Load, tuple[Halo, int]] = {}
    for start, places in rows.items():
        for run in _runs(sorted(places), width):
            halo = Halo(start, run[0], run[-1] + width)
            has_vector = any(size == width for _, size in halo.pieces(width))
            if has_vector and any(place % width for place in run):
                result.update({places[place]: (halo, place) for place in run})
    return result


def _place(load: Load, lane: str) -> int | None:
    """The constant in the index along a row, of which lanes read neighbors; None where that does not show."""
    if not load.indices or load.checks or any(isinstance(e, Load) for i in load.indices for e in walk_expr(i)):
        return None
    affine = as_affine(load.indices[-1])
    return None if affine is None or affine.coefficient(AxisRef(lane)) != 1 else affine.constant


def _moved(load: Load, by: int) -> Load:
    """The load of another element of the row."""
    *others, last = load.indices
    affine = as_affine(last)
    assert affine is not None, "a row's index is affine"
    return replace(load, indices=(*others, affine_expr(affine + by)))


def _runs(places: list[int], width: int) -> Iterator[list[int]]:
    """The distances in groups whose vectors have no element between them that none reads."""
    run: list[int] = []
    for place in places:
        if run and place > run[-1] + width:
            yield run
            run = []
        run.append(place)
    if run:
        yield run
