"""Evaluates a program straight from its equations with NumPy: slow, and plain enough to be believed.

Nothing of the polyhedral path is used: ranges, shapes and conditions are numbers here. A tensor that does not depend
on itself is evaluated over its whole box; tensors that need each other are evaluated element by element, each element
as soon as what it reads is there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyopt.dsl.affine import evaluate as evaluate_affine
from polyopt.dsl.ir import Program, Tensor
from polyopt.errors import ArgumentError, ShapeError
from polyopt.reference.arithmetic import Arithmetic, Precision
from polyopt.reference.bounds import BoundedArithmetic
from polyopt.reference.expressions import Evaluator
from polyopt.reference.graph import equation_reads, evaluation_order
from polyopt.reference.memory import Cells, undefined_error
from polyopt.reference.points import Array
from polyopt.reference.recurrence import define_together
from polyopt.reference.whole import define_whole

__all__ = ["Precision", "evaluate", "evaluate_with_bounds", "shape_of"]


def evaluate(
    program: Program,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    precision: Precision = "f64",
    functions: Mapping[str, Callable[..., Any]] | None = None,
) -> dict[str, Array]:
    """The values of the program's results.

    program:   resolved: every axis has a range, every tensor a shape
    inputs:    one array per parameter
    sizes:     values of the sizes that are still symbolic
    precision: "f64":    floats in float64, integers in their own dtypes, wrapping
               "own":    every value in its own dtype
               "strict": own dtypes, and sums and products in index order: lexicographic over the reduced axes,
                         several accumulations on one tensor in text order, rounded to the tensor's dtype once
    functions: NumPy forms that replace those of `dsl.builtins` where the result is a float, by operation name

    Raises `DefinitionError` for an element that is read but never defined, defined twice or part of a cycle, and
    for a maximum over nothing; `BoundsError` for an index out of range; each names the element and the point.
    """
    return _evaluate(program, inputs, dict(sizes or {}), Arithmetic(precision, dict(functions or {})))


def evaluate_with_bounds(
    program: Program,
    inputs: Mapping[str, Array],
    sizes: Mapping[str, int] | None = None,
    *,
    in_order: bool = False,
) -> tuple[dict[str, Array], dict[str, Array]]:
    """The results in float64 (integers in their own dtypes), and for each element how far a kernel may be off.

    in_order: sums run in index order, as in strict numerics, and not in short chains
    A bound is infinite where an intermediate value overflows its dtype, or nothing can be said. Arguments and errors
    are those of `evaluate`.
    """
    arithmetic = BoundedArithmetic("f64", {}, in_order)
    results = _evaluate(program, inputs, dict(sizes or {}), arithmetic)
    return {name: pair["value"] for name, pair in results.items()}, {n: pair["error"] for n, pair in results.items()}


def _evaluate(
    program: Program, inputs: Mapping[str, Array], sizes: Mapping[str, int], arithmetic: Arithmetic
) -> dict[str, Array]:
    memory = {name: _input_cells(program.tensor(name), inputs, arithmetic, sizes) for name in program.parameters}
    evaluator = Evaluator(program, memory, arithmetic, sizes)
    with np.errstate(all="ignore"):
        for names in evaluation_order(program):
            _define(program, names, memory, evaluator)
    return {name: _finished(memory[name]) for name in program.results}


def shape_of(tensor: Tensor, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """The extents of a resolved tensor for given sizes."""
    assert tensor.shape is not None, f"tensor '{tensor.name}' has no shape; resolve the program first"
    return tuple(max(0, int(evaluate_affine(extent, {}, sizes))) for extent in tensor.shape)


def _input_cells(
    tensor: Tensor, inputs: Mapping[str, Array], arithmetic: Arithmetic, sizes: Mapping[str, int]
) -> Cells:
    if tensor.name not in inputs:
        raise ArgumentError(f"no value is given for '{tensor.name}'", facts={"argument": tensor.name})
    array = np.asarray(inputs[tensor.name])
    shape = shape_of(tensor, sizes)
    if array.shape != shape:
        raise ShapeError(
            f"'{tensor.name}' has shape {array.shape}, but {shape} is needed",
            facts={"argument": tensor.name, "shape": array.shape, "needed": shape},
        )
    return Cells(tensor, arithmetic.given(array, tensor.dtype))


def _define(program: Program, names: tuple[str, ...], memory: dict[str, Cells], evaluator: Evaluator) -> None:
    if names[0] in program.parameters:
        return
    offset = 0
    for name in names:
        tensor = program.tensor(name)
        shape = shape_of(tensor, evaluator.sizes)
        values = np.zeros(shape, evaluator.arithmetic.dtype(tensor.dtype))
        memory[name] = Cells(tensor, values, defined=np.zeros(shape, bool), offset=offset)
        offset += values.size
    if len(names) == 1 and not any(names[0] in equation_reads(e) for e in program.definitions(names[0])):
        define_whole(evaluator, memory[names[0]], program.definitions(names[0]))
    else:
        define_together(evaluator, {name: (memory[name], program.definitions(name)) for name in names})


def _finished(cells: Cells) -> Array:
    if cells.defined is not None and not cells.defined.all():
        missing = np.unravel_index(int(np.argmin(cells.defined)), cells.shape)
        raise undefined_error(cells, tuple(map(int, missing)), {}, cells.tensor.span)
    return cells.values
