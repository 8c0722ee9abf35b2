"""Index expressions fit into 64 bits: they are exact in a definition, and computed in integers that wrap around."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, AxisRef, FloorDiv, SizeRef, condition_affines, sizes_of
from polyopt.errors import DefinitionError

MOST_INDEX = 1 << 40
"""What an index and a size stay below: a byte for each of so many elements is a terabyte."""
MOST_SYMBOLIC = 1 << 31
"""What a size that is open is taken to stay below where something is multiplied by it."""
MOST_EXPRESSION = 1 << 62
"""What every index expression stays below, so that the difference of two does not overflow."""


def check_magnitudes(equation: ir.Equation) -> frozenset[str]:
    """The sizes that must stay below `MOST_SYMBOLIC`, because something large is computed of them. equation: resolved

    Raises `DefinitionError` for an index or an index expression that may be too large.
    """
    ranges: dict[str, int] = {}
    bounded: set[str] = set()
    for axis in _axes(equation):
        bounds = (*axis.lower, *axis.upper)
        most = max(_magnitude(bound, {}) for bound in bounds)
        bounded.update(*(_growing(bound, {}) for bound in bounds))
        if most > MOST_INDEX:
            if not any(sizes_of(bound) for bound in bounds):
                raise _too_large(equation, axis.name, most, MOST_INDEX, "let the index begin at 0, and add to it")
            most = MOST_INDEX  # for sizes that a call can have
        ranges[axis.name] = max(most, ranges.get(axis.name, 0))
    for affine in _affines(equation):
        most = _magnitude(affine, ranges)
        if most >= MOST_EXPRESSION:
            fix = "numbers of 64 bits wrap around, as NumPy's do: po.cast(i, po.i64) * ..."
            raise _too_large(equation, str(affine), most, MOST_EXPRESSION, fix)
        bounded |= _growing(affine, ranges)
    return frozenset(bounded)


def _growing(affine: Affine, ranges: Mapping[str, int]) -> frozenset[str]:
    """The sizes of an expression that is too large where they are as large as a size can be."""
    is_large = _magnitude(affine, ranges, MOST_INDEX) >= MOST_EXPRESSION
    return frozenset(sizes_of(affine)) if is_large else frozenset()


def _too_large(equation: ir.Equation, text: str, most: int, limit: int, fix: str) -> DefinitionError:
    return DefinitionError(
        f"index expression '{text}' may be as large as {most}",
        where=equation.span,
        why=f"index expressions are exact, and stay below 2**{limit.bit_length() - 1}",
        fix=fix,
        facts={"expression": text, "most": most},
    )


def _magnitude(affine: Affine, ranges: Mapping[str, int], size: int = MOST_SYMBOLIC) -> int:
    """No value of the expression, nor of a part of it, is farther from 0. size: what sizes stay below"""
    return abs(affine.constant) + sum(abs(factor) * _of_atom(atom, ranges, size) for atom, factor in affine.terms)


def _of_atom(atom: AxisRef | SizeRef | FloorDiv, ranges: Mapping[str, int], size: int) -> int:
    match atom:
        case AxisRef(name):
            return ranges.get(name, MOST_INDEX)
        case SizeRef():
            return size
        case FloorDiv(numerator, divisor):
            most = _magnitude(numerator, ranges, size)
            return most if most >= MOST_EXPRESSION else most // divisor + 1


def _axes(equation: ir.Equation) -> Iterator[ir.Axis]:
    yield from equation.all_axes
    for node in _nodes(equation):
        if isinstance(node, ir.Reduce):
            yield from node.axes


def _affines(equation: ir.Equation) -> Iterator[Affine]:
    yield from condition_affines(equation.guard)
    yield from (s for s in equation.subscripts if isinstance(s, Affine))
    for node in _nodes(equation):
        match node:
            case ir.IndexValue(affine):
                yield affine
            case ir.Where(condition) | ir.Reduce(guard=condition):
                yield from condition_affines(condition)
            case ir.Read(subscripts=subscripts):
                yield from (s for s in subscripts if isinstance(s, Affine))
            case _:
                pass


def _nodes(equation: ir.Equation) -> Iterator[ir.Expr]:
    return (node for expr in equation.exprs for node in ir.walk(expr))
