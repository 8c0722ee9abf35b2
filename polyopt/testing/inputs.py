"""Random arguments for an op, from its program: values in range where they are used as subscripts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from polyopt import reference
from polyopt.dsl.ir import DataIndex, Equation, Expr, Program, Read, children
from polyopt.dtypes import DType
from polyopt.errors import BoundsError
from polyopt.runtime.arrays import accept

Array = NDArray[Any]

_ATTEMPTS = ((0, 1), (0, 2), (1, 2), (1, 4), (0, 8))
"""The least subscript, and the part of the extent below which all are: of `2 * ids[i] - 1` at least 1, below a half."""


def random_inputs(program: Program, sizes: Mapping[str, int], seed: int, given: Mapping[str, Any]) -> dict[str, Array]:
    """One array per parameter; those in `given` as they are.

    Floats are in [-1, 1), and in [0.5, 1.5) where those give NaN; integers are small; subscripts are in range: below
    the least extent of the dimensions in which they are used, and otherwise, at last 0, where that is out of range.
    Raises `BoundsError` where no such subscripts are found.
    """
    ceilings = subscript_ceilings(program, sizes)
    for low, part in _ATTEMPTS:
        limits = {name: (low, max(low + 1, ceiling // part)) for name, ceiling in ceilings.items()}
        arrays = _draw_valid(program, sizes, seed, given, limits)
        if arrays is not None:
            return arrays
    last = _draw_valid(program, sizes, seed, given, dict.fromkeys(ceilings, (0, 1)), may_raise=True)
    assert last is not None, "the last attempt raises or succeeds"
    return last


def _draw_valid(
    program: Program,
    sizes: Mapping[str, int],
    seed: int,
    given: Mapping[str, Any],
    limits: Mapping[str, tuple[int, int]],
    *,
    may_raise: bool = False,
) -> dict[str, Array] | None:
    """Inputs on which the program is defined; None where a subscript is out of range."""
    for positive in (False, True):
        random = np.random.default_rng(seed)
        arrays = {
            name: _given(program, name, given[name])
            if name in given
            else _draw(random, program, name, sizes, limits.get(name), positive)
            for name in program.parameters
        }
        try:
            results = reference.evaluate(program, arrays, sizes)
        except BoundsError:
            if may_raise:
                raise
            return None
        if not any(_has_nan(result) for result in results.values()):
            return arrays
    return arrays


def _has_nan(array: Array) -> bool:
    return array.dtype.kind == "f" and bool(np.isnan(array).any())


def _given(program: Program, name: str, value: Any) -> Array:
    return as_array(value, name, program.tensor(name).dtype.numpy)


def as_array(value: Any, name: str, dtype: np.dtype[Any] | None = None) -> Array:
    """An argument as a NumPy array, as a call takes it. dtype: of a number"""
    has_protocol = hasattr(value, "__dlpack__") or hasattr(value, "__array_interface__")
    if has_protocol and not isinstance(value, np.ndarray | np.generic):
        return accept(value, name).array
    return value if isinstance(value, np.ndarray) else np.asarray(value, dtype)


def _draw(
    random: np.random.Generator,
    program: Program,
    name: str,
    sizes: Mapping[str, int],
    limits: tuple[int, int] | None,
    positive: bool,
) -> Array:
    tensor = program.tensor(name)
    shape = reference.shape_of(tensor, sizes)
    if limits is not None and tensor.dtype.is_integer:
        low, high = limits
        top = min(high, int(np.iinfo(tensor.dtype.numpy).max))
        return random.integers(low, max(low + 1, top), shape).astype(tensor.dtype.numpy)
    return _values(random, tensor.dtype, shape, positive).astype(tensor.dtype.numpy)


def _values(random: np.random.Generator, dtype: DType, shape: tuple[int, ...], positive: bool) -> Array:
    if dtype.is_bool:
        return np.asarray(random.random(shape) < 0.5)
    if dtype.is_integer:
        return np.asarray(random.integers(1 if positive else 0 if dtype.kind == "u" else -4, 5, shape))
    return np.asarray(random.uniform(0.5 if positive else -1.0, 1.5 if positive else 1.0, shape))


# --- which inputs are subscripts ------------------------------------------------------------------------------


def subscript_ceilings(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """For each input whose values end up in a data subscript: the least extent that such a subscript must be below."""
    ceilings: dict[str, int] = {}
    for value, extent in _data_subscripts(program, sizes):
        for name in _inputs_behind(program, value):
            ceilings[name] = min(extent, ceilings.get(name, extent))
    return ceilings


def _data_subscripts(program: Program, sizes: Mapping[str, int]) -> Iterator[tuple[Expr, int]]:
    for equation in program.equations:
        left = Read(equation.tensor, equation.subscripts, program.tensor(equation.tensor).dtype)
        for read in (left, *_reads_of(equation)):
            shape = reference.shape_of(program.tensor(read.tensor), sizes)
            for subscript, extent in zip(read.subscripts, shape, strict=True):
                if isinstance(subscript, DataIndex) and read.boundary is None:
                    yield subscript.value, extent


def _reads_of(equation: Equation) -> Iterator[Read]:
    roots = [equation.value, *(s.value for s in equation.subscripts if isinstance(s, DataIndex))]
    return (node for root in roots for node in _nodes(root) if isinstance(node, Read))


def _nodes(root: Expr) -> Iterator[Expr]:
    """Every sub-expression once, however often it is used."""
    seen: set[int] = set()
    pending = [root]
    while pending:
        node = pending.pop()
        if id(node) not in seen:
            seen.add(id(node))
            pending.extend(children(node))
            yield node


def _inputs_behind(program: Program, value: Expr) -> frozenset[str]:
    """The integer inputs whose values reach an expression, through other tensors too."""
    found: set[str] = set()
    seen: set[str] = set()
    pending = [value]
    while pending:
        for node in _nodes(pending.pop()):
            if not isinstance(node, Read) or node.tensor in seen:
                continue
            seen.add(node.tensor)
            if node.tensor in program.parameters:
                found.add(node.tensor)
            pending.extend(equation.value for equation in program.definitions(node.tensor))
    return frozenset(found)
