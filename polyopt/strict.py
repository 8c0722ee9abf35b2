"""What POLYOPT_VERIFY=2 and `po.strict_checks()` ask for: a kernel's loops against an enumeration at a call's sizes.

It shares nothing with the proof on the schedule but the domains and the dependences: the loop program is walked
instance by instance in plain Python.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import islpy as isl
import numpy as np

from polyopt.loops import verify
from polyopt.loops.instances import enumerate_instances, uses_data_subscripts
from polyopt.poly.dependence import Dependence
from polyopt.poly.scop import Scop, Statement

if TYPE_CHECKING:
    from polyopt.pipeline import Lowering

_log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Point = tuple[int, ...]
Key = tuple[str, Point]


def check(lowering: Lowering, sizes: Mapping[str, int], arrays: Mapping[str, Array]) -> None:
    """Walk the loops for these sizes and inputs. Raises `LegalityError` for the first fault.

    Every access is in bounds and reads what was written, no two iterations of a parallel or vector loop race, every
    domain is executed exactly once, every dependence is respected. The last two are left out where subscripts are data.
    """
    loops = lowering.loops
    verify.verify(loops)
    known = {name: value for name, value in sizes.items() if name in loops.sizes}
    inputs = {name: array for name, array in arrays.items() if any(b.name == name for b in loops.arguments)}
    verify.check_accesses(loops, known, inputs)
    if not uses_data_subscripts(loops):
        instances = list(enumerate_instances(loops, known, inputs))
        verify.check_instances(instances, {s.name: points(s, known) for s in lowering.scop.statements})
        for dependence in lowering.dependences.ordered:
            verify.check_order(instances, pairs(dependence, lowering.scop, known))
    _log.info("enumerated %s at %s", lowering.program.name, dict(sizes))


def points(statement: Statement, sizes: Mapping[str, int]) -> list[Point]:
    """The instances of a statement."""
    return list(_points(statement.domain, sizes))


def pairs(dependence: Dependence, scop: Scop, sizes: Mapping[str, int]) -> Iterator[tuple[Key, Key]]:
    """The instances that a dependence relates."""
    rank = next(len(s.axes) for s in scop.statements if s.name == dependence.source)
    for point in _points(dependence.relation.wrap(), sizes):
        yield (dependence.source, point[:rank]), (dependence.target, point[rank:])


def _points(domain: isl.Set, sizes: Mapping[str, int]) -> Iterator[Point]:
    for name, value in sizes.items():
        position = domain.find_dim_by_name(isl.dim_type.param, name)
        if position >= 0:
            domain = domain.fix_val(isl.dim_type.param, position, isl.Val(value))
    found: list[isl.Point] = []
    domain.foreach_point(found.append)
    rank = domain.dim(isl.dim_type.set)
    for point in found:
        yield tuple(int(point.get_coordinate_val(isl.dim_type.set, n).to_python()) for n in range(rank))
