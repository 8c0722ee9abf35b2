"""Runs a scop's instances one by one in the order of a schedule: an oracle between the equations and the loops.

Nothing of tiling, storage or code is involved: values live in whole arrays, and the date of an instance is read
off the loop tree. A schedule that is wrong gives a wrong or missing value here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import islpy as isl
import numpy as np

from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, evaluate, holds
from polyopt.dsl.builtins import BUILTINS
from polyopt.dtypes import converted
from polyopt.errors import LegalityError
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.tree import Leaf, Loop, Sequence, Tree

Point = Mapping[str, int]
Array = np.ndarray


def replay(scop: Scop, tree: Tree, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The result arrays after running every instance in the order of `tree`; for static sizes.

    Raises `LegalityError` where an instance reads an element that no earlier instance has written.
    """
    machine = _Machine(scop, inputs)
    dates = {name: _Date(path) for name, path in _paths(tree, ())}
    instances = [
        (dates[statement.name].at(point), number, point)
        for number, statement in enumerate(scop.statements)
        for point in points(statement)
    ]
    for _, number, point in sorted(instances, key=lambda item: item[:2]):
        machine.run(scop.statements[number], point)
    return {array.name: machine.values[array.name] for array in scop.arrays if array.role == "output"}


def points(statement: Statement) -> Iterator[Point]:
    """Every instance of a statement with static sizes, in no particular order."""
    found: list[isl.Point] = []
    statement.domain.foreach_point(found.append)
    for point in found:
        yield {
            name: int(point.get_coordinate_val(isl.dim_type.set, position).to_python())
            for position, name in enumerate(statement.axes)
        }


class _Date:
    """When a statement's instances run: rows of loops and positions in sequences, outermost first."""

    def __init__(self, path: tuple[Affine | int, ...]) -> None:
        self.path = path

    def at(self, point: Point) -> tuple[int, ...]:
        return tuple(step if isinstance(step, int) else int(evaluate(step, point, {})) for step in self.path)


def _paths(tree: Tree, above: tuple[object, ...]) -> Iterator[tuple[str, tuple[Affine | int, ...]]]:
    match tree:
        case Leaf(statement):
            path = tuple(step if isinstance(step, int) else step.row(statement) for step in above)  # type: ignore[attr-defined]  # a loop
            yield statement, path
        case Sequence(children):
            for position, child in enumerate(children):
                yield from _paths(child, (*above, position))
        case Loop():
            yield from _paths(tree.body, (*above, tree))


class _Machine:
    """Whole arrays, and which of their elements hold a value."""

    def __init__(self, scop: Scop, inputs: Mapping[str, Array]) -> None:
        self.values: dict[str, Array] = {}
        self.written: dict[str, Array] = {}
        for array in scop.arrays:
            shape = tuple(extent.constant for extent in array.shape)
            given = array.role == "input"
            self.values[array.name] = inputs[array.name] if given else np.zeros(shape, array.dtype.numpy)
            self.written[array.name] = np.full(shape, given)

    def run(self, statement: Statement, point: Point) -> None:
        """One instance: its value, stored or combined."""
        element = self.element(statement.array, statement.subscripts, None, point)
        value = self.value(statement.value, point, {})
        if statement.reducer is not None:
            value = self.combined(statement.reducer, self.load(statement.array, element, point), value)
        self.values[statement.array][element] = value
        self.written[statement.array][element] = True

    def combined(self, reducer: ir.Reducer, old: object, new: object) -> object:
        if reducer.combine is not None:
            return self.value(reducer.combine, {}, {"a": old, "b": new})
        name = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}[
            reducer.name
        ]
        with np.errstate(all="ignore"):
            return BUILTINS[name].numpy(old, new)

    def value(self, expr: ir.Expr, point: Point, variables: Mapping[str, object]) -> object:
        match expr:
            case ir.Const(value, dtype):
                return dtype.numpy.type(value)
            case ir.IndexValue(expression):
                return np.int64(evaluate(expression, point, {}))
            case ir.Var(name):
                return variables[name]
            case ir.Op(name, args, dtype):
                operands = [self.value(arg, point, variables) for arg in args]
                with np.errstate(all="ignore"):
                    return np.asarray(BUILTINS[name].numpy(*operands)).astype(dtype.numpy)[()]
            case ir.Cast(arg, dtype):
                with np.errstate(all="ignore"):
                    return converted(np.asarray(self.value(arg, point, variables)), dtype)[()]
            case ir.Where(condition, then, otherwise):
                return self.value(then if holds(condition, point, {}) else otherwise, point, variables)
            case ir.Read(tensor, subscripts, _, boundary):
                return self.read(tensor, subscripts, boundary, point)
            case ir.Reduce():
                raise AssertionError("a reduction is a statement of its own")

    def read(
        self, array: str, subscripts: tuple[ir.Subscript, ...], boundary: ir.Boundary | None, point: Point
    ) -> object:
        element = self.element(array, subscripts, boundary, point)
        outside = any(not 0 <= i < n for i, n in zip(element, self.values[array].shape, strict=True))
        if outside and isinstance(boundary, ir.Pad):
            return boundary.value.dtype.numpy.type(boundary.value.value)
        return self.load(array, element, point)

    def element(
        self, array: str, subscripts: tuple[ir.Subscript, ...], boundary: ir.Boundary | None, point: Point
    ) -> tuple[int, ...]:
        indices = []
        for subscript, extent in zip(subscripts, self.values[array].shape, strict=True):
            if isinstance(subscript, ir.DataIndex):
                index = int(self.value(subscript.value, point, {}))  # type: ignore[call-overload]  # an integer scalar
            else:
                index = int(evaluate(subscript, point, {}))
            if isinstance(boundary, ir.Clamp):
                index = min(max(index, 0), extent - 1)
            elif isinstance(boundary, ir.Wrap):
                index %= extent
            indices.append(index)
        return tuple(indices)

    def load(self, array: str, element: tuple[int, ...], point: Point) -> object:
        if not self.written[array][element]:
            raise LegalityError(
                f"the schedule reads {array}{list(element)} before it is written",
                why=f"at {dict(point)}",
                facts={"array": array, "element": element},
            )
        return self.values[array][element]
