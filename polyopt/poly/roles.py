"""What kind of work a statement does, read off its access relations; no operator has a name here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, axes_of, axes_outer_first
from polyopt.dsl.ir import DataIndex, Subscript, reads
from polyopt.poly.scop import Array, Scop, Statement


@dataclass(frozen=True, slots=True)
class AxisRoles:
    """The axes of a statement by what they do.

    free:        axes of the written element, in the order of its subscripts
    reduced:     axes only the update sums over
    reuse:       for each read with affine subscripts, the axes it does not depend on
    contraction: a reduction in which at least two reads each can be reused along a free axis that the other uses:
                 worth a register tile
    """

    free: tuple[str, ...]
    reduced: tuple[str, ...]
    reuse: tuple[frozenset[str], ...]
    contraction: bool

    @property
    def axes(self) -> tuple[str, ...]:
        return self.free + self.reduced


def roles_of(statement: Statement) -> AxisRoles:
    """The roles of a statement's axes."""
    written = _axes_in_order(statement.subscripts)
    if statement.is_update:
        free = tuple(a for a in written if a in statement.axes)
        reduced = tuple(a for a in statement.axes if a not in free)
    else:
        free = written + tuple(a for a in statement.axes if a not in written)
        reduced = ()
    reuse = tuple(frozenset(statement.axes) - _axes_of_read(access.read.subscripts) for access in statement.reads)
    return AxisRoles(free, reduced, reuse, bool(reduced) and _reused_both_ways(reuse, free))


def _axes_in_order(subscripts: tuple[Subscript, ...]) -> tuple[str, ...]:
    order: dict[str, None] = {}
    for subscript in subscripts:
        if isinstance(subscript, Affine):
            for name in axes_outer_first(subscript):
                order.setdefault(name)
    return tuple(order)


def _axes_of_read(subscripts: tuple[Subscript, ...]) -> frozenset[str]:
    used: frozenset[str] = frozenset()
    for subscript in subscripts:
        if isinstance(subscript, DataIndex):
            used = used.union(*(_axes_of_read(read.subscripts) for read in reads(subscript.value)))
        else:
            used |= axes_of(subscript)
    return used


def _reused_both_ways(reuse: tuple[frozenset[str], ...], free: tuple[str, ...]) -> bool:
    """Whether two reads are each reusable along a free axis that the other depends on."""
    along = [r & frozenset(free) for r in reuse]
    return any((one - other) and (other - one) for n, one in enumerate(along) for other in along[n + 1 :])


@dataclass(slots=True)
class Roles:
    """The roles of a scop's statements and the sizes of its arrays."""

    by_statement: Mapping[str, AxisRoles]
    arrays: Mapping[str, Array]
    statements: Mapping[str, Statement] = field(default_factory=dict)

    @staticmethod
    def of(scop: Scop) -> Roles:
        return Roles(
            {s.name: roles_of(s) for s in scop.statements},
            {a.name: a for a in scop.arrays},
            {s.name: s for s in scop.statements},
        )

    def bytes(self, array: str) -> int:
        """Size of an array in bytes; 0 where an extent is symbolic."""
        total = self.arrays[array].dtype.itemsize
        for extent in self.arrays[array].shape:
            if not extent.is_constant:
                return 0
            total *= max(extent.constant, 0)
        return total
