"""What POLYOPT_VERIFY=2 and `po.strict_checks()` ask for: a kernel against an enumeration at a call's own sizes.

The loop program is walked instance by instance in plain Python, which shares nothing with the proof on the schedule but
the domains and the dependences. Then the machine code runs on the call's own inputs, and its results are compared
with the reference, which shares nothing with the kernel but the equations.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import islpy as isl
import numpy as np

from polyopt import reference
from polyopt.codegen_c.vmath.numpy import forms
from polyopt.errors import LegalityError
from polyopt.loops import verify
from polyopt.loops.instances import deciding_buffers, enumerate_instances, uses_data_subscripts
from polyopt.loops.interpret import interpret
from polyopt.loops.places import check_places
from polyopt.poly.dependence import Dependence
from polyopt.poly.scop import Scop, Statement
from polyopt.reference.compare import difference
from polyopt.runtime import extent

if TYPE_CHECKING:
    from polyopt.pipeline import Lowering

_log = logging.getLogger(__name__)

Array = np.ndarray[Any, Any]
Point = tuple[int, ...]
Key = tuple[str, Point]

MOST_INSTANCES = 1 << 20
"""A kernel with more instances is not walked: that takes some 0.2 ms for each, so three minutes for this many."""

MOST_PAIRS = 1 << 20
"""A dependence that relates more pairs of instances is not enumerated: each takes some 35 us and 700 bytes."""

SLACK = 2.0
"""The bound on errors is of first order, and the reference itself is rounded: twice the bound is allowed."""


def is_small(lowering: Lowering, sizes: Mapping[str, int]) -> bool:
    """Whether there are at most `MOST_INSTANCES` instances; logs a warning where there are more."""
    count = most_instances(lowering, sizes)
    if count > MOST_INSTANCES:
        _log.warning(
            "%s is proved but not enumerated: more than %d instances (%d) take too long; call it with smaller arrays",
            lowering.program.name,
            MOST_INSTANCES,
            count,
        )
    return count <= MOST_INSTANCES


def most_instances(lowering: Lowering, sizes: Mapping[str, int]) -> int:
    """A bound on the number of instances, from the boxes around the domains."""
    return sum(_most_points(statement.domain, sizes) for statement in lowering.scop.statements)


def check(lowering: Lowering, sizes: Mapping[str, int], arrays: Mapping[str, Array]) -> None:
    """Walk the loops of a settled lowering for these sizes and inputs. Raises `LegalityError` for the first fault.

    Every access is in bounds, touches the element that the equation names and reads what was written, no two iterations
    of a parallel or vector loop race, every domain is executed exactly once, every dependence is respected. The last
    two are left out where subscripts are data; where the kernel itself computes them, the loops are interpreted, which
    checks accesses alone.
    """
    loops = lowering.loops
    verify.verify(loops)
    known = {name: value for name, value in sizes.items() if name in loops.sizes}
    inputs = {name: array for name, array in arrays.items() if any(b.name == name for b in loops.arguments)}
    if deciding_buffers(loops) - set(inputs):
        _interpret(lowering, known, inputs)
        return
    verify.check_accesses(loops, known, inputs)
    instances = list(enumerate_instances(loops, known, inputs))
    check_places(instances, lowering.scop, lowering.tree, lowering.storage, known)
    if not uses_data_subscripts(loops):
        verify.check_instances(instances, {s.name: points(s, known) for s in lowering.scop.statements})
        for dependence in lowering.dependences.ordered:
            count = _at(dependence.relation.wrap(), known).count_val().to_python()
            if count > MOST_PAIRS:
                what = "%s: a dependence of %s on %s is proved but not enumerated: it relates %d pairs, more than %d"
                _log.warning(what, lowering.program.name, dependence.target, dependence.source, count, MOST_PAIRS)
                continue
            verify.check_order(instances, pairs(dependence, lowering.scop, known))
    _log.info("enumerated %s at %s", lowering.program.name, dict(sizes))


def _interpret(lowering: Lowering, sizes: Mapping[str, int], inputs: Mapping[str, Array]) -> None:
    """Run the loops in Python, iterations of parallel and vector loops shuffled. Raises as `loops.interpret` does."""
    info = lowering.info
    shapes = {result: tuple(extent.evaluate(length, sizes) for length in result.shape) for result in info.results}
    results = {result.name: np.zeros(shape, result.dtype.numpy) for result, shape in shapes.items()}
    interpret(lowering.loops, {**inputs, **results}, sizes, seed=0)


def check_results(
    lowering: Lowering, sizes: Mapping[str, int], arrays: Mapping[str, Array], results: Sequence[Array]
) -> None:
    """Compare what the kernel computed from `arrays` with the equations, evaluated one after the other in NumPy.

    Raises `LegalityError` for the element that is furthest off: by a bit in strict numerics, else by more than what
    rounding may do in a sum in any order. Elements for which nothing can be said (overflow) are left out.
    """
    program = lowering.program
    known = {name: value for name, value in sizes.items() if name in program.sizes}
    is_strict = lowering.options.numerics == "strict"
    values, bounds = reference.evaluate_with_bounds(program, arrays, known, in_order=is_strict)
    if is_strict:
        values = reference.evaluate(program, arrays, known, precision="strict", functions=forms())
    for name, found in zip(program.results, results, strict=True):
        allowed = np.zeros(found.shape) if is_strict else SLACK * bounds[name]
        worst = difference(name, found, values[name], allowed)
        if worst is not None:
            raise LegalityError(
                f"the kernel of '{program.name}' computes wrong values",
                why=str(worst),
                fix="report it with the operator's definition and the sizes; numerics='strict' may be right meanwhile",
                facts={"result": name, "index": worst.index, "found": worst.got, "expected": worst.expected},
            )


def points(statement: Statement, sizes: Mapping[str, int]) -> list[Point]:
    """The instances of a statement."""
    return list(_points(statement.domain, sizes))


def pairs(dependence: Dependence, scop: Scop, sizes: Mapping[str, int]) -> Iterator[tuple[Key, Key]]:
    """The instances that a dependence relates."""
    rank = next(len(s.axes) for s in scop.statements if s.name == dependence.source)
    for point in _points(dependence.relation.wrap(), sizes):
        yield (dependence.source, point[:rank]), (dependence.target, point[rank:])


def _at(domain: isl.Set, sizes: Mapping[str, int]) -> isl.Set:
    """The domain for these sizes."""
    for name, value in sizes.items():
        position = domain.find_dim_by_name(isl.dim_type.param, name)
        if position >= 0:
            domain = domain.fix_val(isl.dim_type.param, position, isl.Val(value))
    return domain


def _most_points(domain: isl.Set, sizes: Mapping[str, int]) -> int:
    """How many points the smallest box around the domain has."""
    domain = _at(domain, sizes)
    if domain.is_empty():
        return 0
    ends = [(domain.dim_min_val(n), domain.dim_max_val(n)) for n in range(domain.dim(isl.dim_type.set))]
    return math.prod(last.to_python() - first.to_python() + 1 for first, last in ends)


def _points(domain: isl.Set, sizes: Mapping[str, int]) -> Iterator[Point]:
    domain = _at(domain, sizes)
    found: list[isl.Point] = []
    domain.foreach_point(found.append)
    rank = domain.dim(isl.dim_type.set)
    for point in found:
        yield tuple(int(point.get_coordinate_val(isl.dim_type.set, n).to_python()) for n in range(rank))
