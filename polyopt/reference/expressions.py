"""Evaluates expressions at batches of points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, assert_never

import numpy as np

from polyopt.dsl.affine import Condition, axes_of, condition_affines, evaluate, holds
from polyopt.dsl.ir import (
    Axis,
    Cast,
    Clamp,
    Const,
    DataIndex,
    Expr,
    IndexValue,
    Op,
    Pad,
    Program,
    Read,
    Reduce,
    Reducer,
    Subscript,
    Var,
    Where,
    Wrap,
    children,
)
from polyopt.dtypes import i64
from polyopt.errors import DefinitionError, Span
from polyopt.reference.arithmetic import Arithmetic
from polyopt.reference.memory import Cells, bounds_error, index_at, outside, point_text, undefined_error
from polyopt.reference.points import BLOCK, Array, Points, blocks, box


class Evaluator:
    """Evaluates expressions over the tensors known so far.

    Every result is a 0-d array or has as many dimensions as the points, each 1 or that of the points; at points
    outside the mask it means nothing.

    blocked: while a recurrence is evaluated, per point of the (one-dimensional) batch the number of an element
             that must be defined first, the greatest one met; -1 for none. None where nothing can block.
    """

    def __init__(
        self, program: Program, memory: Mapping[str, Cells], arithmetic: Arithmetic, sizes: Mapping[str, int]
    ) -> None:
        self.memory = memory
        self.arithmetic = arithmetic
        self.sizes = sizes
        self.blocked: Array | None = None
        self._shared = shared_nodes(program)
        self._free_axes: dict[int, frozenset[str]] = {}

    def evaluate(self, expr: Expr, points: Points) -> Array:
        """The value at each point. Raises `BoundsError` or `DefinitionError` for a bad read at one that is there."""
        if id(expr) not in self._shared:
            return self._evaluate(expr, points)
        if id(expr) not in points.cache:
            points.cache[id(expr)] = self._evaluate(expr, points)
        value: Array = points.cache[id(expr)]
        return value

    def _evaluate(self, expr: Expr, points: Points) -> Array:
        match expr:
            case Const():
                return self.arithmetic.constant(expr)
            case IndexValue(affine):
                return self.arithmetic.given(evaluate(affine, points.axes, self.sizes), i64)
            case Op(name, args, dtype):
                return self.arithmetic.apply(name, [self.evaluate(arg, points) for arg in args], dtype)
            case Cast(arg, dtype):
                return self.arithmetic.cast(self.evaluate(arg, points), dtype)
            case Read():
                return self._read(expr, points)
            case Where():
                return self._choose(expr, points)
            case Reduce(reducer, body, axes, _, guard, span):
                return self.reduce(reducer, body, axes, guard, points, span=span)
            case Var():
                raise AssertionError("a placeholder stands only inside the combine of a reduction")
            case _:
                assert_never(expr)

    # --- choices and reads ------------------------------------------------------------------------------------

    def holds(self, condition: Condition, points: Points) -> Any:
        return holds(condition, points.axes, self.sizes)

    def _choose(self, expr: Where, points: Points) -> Array:
        condition = self.holds(expr.condition, points)
        yes, no = points.where(condition), points.where(np.logical_not(condition))
        if no.is_empty:
            return self.evaluate(expr.then, yes)
        if yes.is_empty:
            return self.evaluate(expr.otherwise, no)
        return np.where(condition, self.evaluate(expr.then, yes), self.evaluate(expr.otherwise, no))

    def subscripts(self, subscripts: Sequence[Subscript], points: Points) -> list[Array]:
        """The index along each dimension, as i64."""
        return [self._subscript(subscript, points) for subscript in subscripts]

    def _subscript(self, subscript: Subscript, points: Points) -> Array:
        if isinstance(subscript, DataIndex):
            return self.arithmetic.index(self.evaluate(subscript.value, points))
        return np.asarray(evaluate(subscript, points.axes, self.sizes), dtype=np.int64)

    def _periodic(self, subscript: Subscript, extent: int, points: Points) -> Array:
        """The index of a periodic read; the remainder is taken in the dtype of the data."""
        if not isinstance(subscript, DataIndex):
            return self._subscript(subscript, points) % max(extent, 1)
        value = self.arithmetic.plain(self.evaluate(subscript.value, points))
        wide = value if value.dtype == np.uint64 else value.astype(np.int64)
        return (wide % wide.dtype.type(max(extent, 1))).astype(np.int64)

    def _read(self, node: Read, points: Points) -> Array:
        cells = self.memory[node.tensor]
        if isinstance(node.boundary, Wrap):
            indices = [self._periodic(s, n, points) for s, n in zip(node.subscripts, cells.shape, strict=True)]
            return self._fetch(cells, indices, points, node.span)
        indices = self.subscripts(node.subscripts, points)
        match node.boundary:
            case None:
                return self._fetch(cells, indices, points, node.span)
            case Clamp():
                indices = [np.clip(i, 0, max(n - 1, 0)) for i, n in zip(indices, cells.shape, strict=True)]
                return self._fetch(cells, indices, points, node.span)
            case Pad(value):
                off = outside(indices, cells.shape)
                if off is False:
                    return self._fetch(cells, indices, points, node.span)
                inside = self._fetch(cells, indices, points.where(~off), node.span)
                return np.where(off, self.arithmetic.constant(value), inside)
            case _:
                assert_never(node.boundary)

    def _fetch(self, cells: Cells, indices: list[Array], points: Points, span: Span | None) -> Array:
        off = outside(indices, cells.shape)
        if off is not False:
            bad = self.live(off, points)
            if bad.any():
                raise bounds_error(cells, indices, points, bad, span)
            indices = [np.where(off, 0, index) for index in indices]
            if 0 in cells.shape:
                return np.zeros(np.shape(off), dtype=cells.values.dtype)
        place = tuple(indices)
        if cells.defined is not None:
            missing = ~cells.defined[place]
            if np.any(missing):
                self._note_missing(cells, indices, missing, points, span)
        return np.asarray(cells.values[place])

    def live(self, condition: Any, points: Points) -> Array:
        """`condition` at the points that are there and whose values so far are meaningful."""
        result = np.asarray(condition)
        if points.mask is not None:
            result = result & points.mask
        if self.blocked is not None:
            result = result & (self.blocked < 0).reshape((-1,) + (1,) * (len(points.shape) - 1))
        return result

    def _note_missing(
        self, cells: Cells, indices: list[Array], missing: Array, points: Points, span: Span | None
    ) -> None:
        """Raises for an element that is never defined; makes its points wait for one that is not defined yet."""
        bad = self.live(missing, points)
        never = bad if cells.covered is None else bad & ~cells.covered[tuple(indices)]
        if never.any():
            raise undefined_error(cells, index_at(indices, points.shape, never), points.first(never), span)
        if self.blocked is None or not bad.any():
            return
        number = cells.offset + sum(
            (index * prod(cells.shape[d + 1 :]) for d, index in enumerate(indices)), start=np.int64(0)
        )
        waits = np.broadcast_to(np.where(bad, number, -1), points.shape)
        self.blocked = np.maximum(self.blocked, waits.reshape(len(self.blocked), -1).max(axis=1, initial=-1))

    # --- reductions -------------------------------------------------------------------------------------------

    def reduce(
        self,
        reducer: Reducer,
        body: Expr,
        axes: Sequence[Axis],
        guard: Condition,
        points: Points,
        *,
        start: Array | None = None,
        span: Span | None = None,
    ) -> Array:
        """`body` reduced over the points of `axes` where `guard` holds, from `start`, else from the neutral element.

        Raises `DefinitionError` where there is nothing to reduce, no start, and no neutral element.
        """
        whole = box(axes, self.sizes)
        fold = _Fold(self.arithmetic, reducer, len(points.shape), prod(len(r) for r in whole), start)
        limit = max(1, BLOCK // self._width(body, guard, points))
        for block in blocks(whole, limit):
            inner = points.extended([axis.name for axis in axes], block)
            inner = inner.where(self.holds(guard, inner))
            if not inner.is_empty:
                fold.add(self.evaluate(body, inner), inner)
        if not fold.has_start:
            nothing = self.live(~fold.seen, points)
            if nothing.any():
                raise _nothing_to_reduce(reducer, points.first(nothing), span)
        return fold.result

    def _width(self, body: Expr, guard: Condition, points: Points) -> int:
        """The number of distinct points outside a reduction that its body can tell apart."""
        used = self._free(body) | {name for affine in condition_affines(guard) for name in axes_of(affine)}
        shapes = [values.shape for name, values in points.axes.items() if name in used]
        if points.mask is not None:
            shapes.append(points.mask.shape)
        return max(1, prod(np.broadcast_shapes(*shapes)))

    def _free(self, expr: Expr) -> frozenset[str]:
        """The axes that occur in the expression."""
        if id(expr) not in self._free_axes:
            self._free_axes[id(expr)] = _own_axes(expr).union(*(self._free(child) for child in children(expr)))
        return self._free_axes[id(expr)]


def shared_nodes(program: Program) -> frozenset[int]:
    """Identities of the expressions that the equations hold at several places, by way of Python variables."""
    visited: set[int] = set()
    shared: set[int] = set()
    pending: list[Expr] = [equation.value for equation in program.equations]
    while pending:
        node = pending.pop()
        if id(node) in visited:
            shared.add(id(node))
        else:
            visited.add(id(node))
            pending.extend(children(node))
    return frozenset(shared)


def _own_axes(node: Expr) -> frozenset[str]:
    match node:
        case IndexValue(affine):
            return axes_of(affine)
        case Read(subscripts=subscripts):
            return frozenset(name for s in subscripts if not isinstance(s, DataIndex) for name in axes_of(s))
        case Where(condition=condition) | Reduce(guard=condition):
            return frozenset(name for affine in condition_affines(condition) for name in axes_of(affine))
        case _:
            return frozenset()


def _nothing_to_reduce(reducer: Reducer, point: dict[str, int], span: Span | None) -> DefinitionError:
    return DefinitionError(
        f"'{reducer.name}' over nothing" + (f" for {point_text(point)}" if point else ""),
        where=span,
        why="no point of the reduction is in range there, and the reduction has no start value",
        fix="give a start value with init=, or restrict the definition with po.when",
        facts={"reducer": reducer.name, "point": point},
    )


class _Fold:
    """The running value of a reduction over blocks of points that come in lexicographic order."""

    def __init__(self, arithmetic: Arithmetic, reducer: Reducer, rank: int, length: int, start: Array | None) -> None:
        self._arithmetic = arithmetic
        self._reducer = reducer
        self._rank = rank
        self._length = length
        if start is None and reducer.neutral is not None:
            start = arithmetic.constant(reducer.neutral)
        self.has_start = start is not None
        self.seen: Array = np.asarray(False)
        if start is None:
            start = (
                arithmetic.identity(reducer)
                if reducer.name != "custom"
                else arithmetic.given(np.asarray(0), reducer.dtype)
            )
        self.result: Array = start
        self.filled: Array = np.asarray(self.has_start)

    def add(self, value: Array, inner: Points) -> None:
        """Combines the values at the points of one block, a box in the dimensions from `rank` on."""
        full = value if value.ndim else value.reshape((1,) * len(inner.shape))
        mask_shape = () if inner.mask is None else inner.mask.shape
        outer = np.broadcast_shapes(full.shape, mask_shape, (1,) * len(inner.shape))[: self._rank]
        shape = outer + inner.shape[self._rank :]
        full = np.broadcast_to(full, shape)
        mask = None if inner.mask is None else np.broadcast_to(inner.mask, shape)
        reduced = tuple(range(self._rank, len(shape)))
        self.seen = self.seen | (np.ones(outer, dtype=bool) if mask is None else mask.any(axis=reduced))
        if self._reducer.name == "custom":
            flat_mask = None if mask is None else mask.reshape((*outer, -1))
            self._add_one_by_one(full.reshape((*outer, -1)), flat_mask)
            return
        if mask is not None:
            full = np.where(mask, full, self._arithmetic.identity(self._reducer))
        self.result = self._arithmetic.fold(self._reducer, self.result, full, reduced, self._length)

    def _add_one_by_one(self, values: Array, mask: Array | None) -> None:
        """The first value stands for itself where there is no start."""
        for place in range(values.shape[-1]):
            value, there = values[..., place], np.asarray(True) if mask is None else mask[..., place]
            together = self._arithmetic.combine(self._reducer, self.result, value, self._length)
            self.result = np.where(there, np.where(self.filled, together, value), self.result)
            self.filled = self.filled | there
