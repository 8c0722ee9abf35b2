"""Whole-tensor functions made of several equations, and tensors made from nothing."""

from __future__ import annotations

import numpy as np

from polyopt.dsl import functions
from polyopt.dsl.affine import Affine
from polyopt.dsl.broadcast import rank_of
from polyopt.dsl.expr import AffineSize, Call, Choice, Element, Expr, Index, Literal, Reduction, Size, as_expr
from polyopt.dsl.functions import as_argument
from polyopt.dsl.recognise import extent_of
from polyopt.dsl.shaping import normal_axis
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import Handle, State, require, sugar_indices
from polyopt.dsl.subscripts import as_dims
from polyopt.dsl.symbols import as_dtype
from polyopt.dtypes import DType, f64, i64
from polyopt.errors import DefinitionError


def softmax(x: object, axis: int = -1) -> Handle:
    """exp(x - max) / sum(exp(x - max)) along an axis: three equations."""
    if not isinstance(x, Handle) or rank_of(x) == 0:
        raise DefinitionError(
            "po.softmax takes a whole tensor",
            where=user_span(),
            fix="po.softmax(x, axis=-1), or write exp(x[i] - m[()]) / s[()] with a maximum and a sum.",
        )
    rank = rank_of(x)
    along = normal_axis(axis, rank)
    indices = sugar_indices(rank)
    k = indices[along]
    rest = (*indices[:along], *indices[along + 1 :])
    greatest = x.state.new_tensor("softmax_max", rank=rank - 1)
    total = x.state.new_tensor("softmax_sum", rank=rank - 1)
    result = x.state.new_tensor("softmax", rank=rank)
    shifted = functions.exp(as_argument(Element(x, indices)) - as_argument(Element(greatest, rest)))
    x.state.define(greatest, rest, Reduction("max", Element(x, indices), (k,)))
    x.state.define(total, rest, Reduction("sum", shifted, (k,)))
    x.state.define(result, indices, shifted / Element(total, rest))
    return result


# --- tensors from nothing --------------------------------------------------------------------------------------------


def zeros(shape: object, dtype: object = f64) -> Handle:
    """A tensor of zeros."""
    return _filled("zeros", shape, Literal(0), as_dtype(dtype))


def ones(shape: object, dtype: object = f64) -> Handle:
    """A tensor of ones."""
    return _filled("ones", shape, Literal(1), as_dtype(dtype))


def full(shape: object, value: object, dtype: object = None) -> Handle:
    """A tensor of one value; of the value's dtype unless `dtype=` is given."""
    return _filled("full", shape, as_expr(value, "as the value of po.full"), None if dtype is None else as_dtype(dtype))


def _filled(name: str, shape: object, value: Expr, dtype: DType | None) -> Handle:
    state = require(f"po.{name}")
    dims = as_dims(state.sizes, shape)
    indices = _ranged(dims)
    result = state.new_tensor(name, dims=dims, dtype=dtype)
    state.define(result, indices, value)
    return result


def arange(start: object, stop: object = None, step: object = 1, dtype: object = None) -> Handle:
    """start, start + step, ... up to and without `stop`, as `numpy.arange`; integers and sizes, or Python floats."""
    state = require("po.arange")
    if stop is None:
        start, stop = 0, start
    if any(isinstance(part, float | np.floating) for part in (start, stop, step)):
        return _float_range(state, start, stop, step, dtype)
    if not isinstance(step, int | np.integer) or step == 0:
        raise DefinitionError(
            "the step of po.arange must be a number other than 0", where=user_span(), fix="po.arange(0, N, 2)."
        )
    (first, last) = (_bound(state, part) for part in (start, stop))
    distance = last - first if step > 0 else first - last
    count = (distance + abs(int(step)) - 1) // abs(int(step))
    return _progression(state, count, AffineSize(first), Literal(int(step)), i64 if dtype is None else as_dtype(dtype))


def _bound(state: State, part: object) -> Affine:
    """An integer or affine expression over sizes, of either sign."""
    expr = Size(part) if isinstance(part, str) else as_expr(part, "in po.arange")
    return extent_of(expr, state.sizes, "a bound of po.arange")


def _float_range(state: State, start: object, stop: object, step: object, dtype: object) -> Handle:
    numbers = [float(part) for part in (start, stop, step) if isinstance(part, int | float | np.integer | np.floating)]
    if len(numbers) < 3:
        raise DefinitionError(
            "po.arange with floats needs numbers",
            where=user_span(),
            why="The number of elements must be known.",
            fix="po.cast(po.arange(N), f64) * step.",
        )
    count = Affine(len(np.arange(*numbers)))
    wanted = f64 if dtype is None else as_dtype(dtype)
    return _progression(state, count, Literal(numbers[0]), Literal(numbers[2]), wanted)


def _progression(state: State, count: Affine, first: Expr, step: Expr, dtype: DType) -> Handle:
    if count.is_constant and count.constant < 0:
        count = Affine()
    (i,) = _ranged((count,))
    result = state.new_tensor("arange", dims=(count,), dtype=dtype)
    state.define(result, (i,), Call("add", (first, Call("mul", (step, i)))))
    return result


def eye(n: object, m: object = None, k: int = 0, dtype: object = f64) -> Handle:
    """Ones on the k-th diagonal of an n by m matrix, zeros elsewhere."""
    state = require("po.eye")
    dims = as_dims(state.sizes, (n, n if m is None else m))
    i, j = _ranged(dims)
    result = state.new_tensor("eye", dims=dims, dtype=as_dtype(dtype))
    state.define(result, (i, j), Choice(Call("eq", (j - i, Literal(k))), Literal(1), Literal(0)))
    return result


def _ranged(dims: tuple[Affine, ...]) -> tuple[Index, ...]:
    return tuple(
        Index(index.name, Literal(0), AffineSize(extent))
        for index, extent in zip(sugar_indices(len(dims)), dims, strict=True)
    )
