"""Reductions: over indices of an expression, and over axes of a whole tensor."""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

import numpy as np

from polyopt.dsl.affine import is_nonnegative
from polyopt.dsl.broadcast import broadcast_element, rank_of, whole
from polyopt.dsl.expr import AffineSize, Call, Element, Expr, Index, Literal, Placeholder, Reduction, as_expr, spelled
from polyopt.dsl.extents import known_extents
from polyopt.dsl.shaping import normal_axis
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import Handle, sugar_indices
from polyopt.dsl.subscripts import require_extents
from polyopt.dsl.symbols import as_dtype
from polyopt.errors import DefinitionError, ShapeError


def sum(  # noqa: A001  # the language's name
    e: object,
    over: object = None,
    *,
    axis: object = None,
    keepdims: bool = False,
    where: object = None,
    init: object = None,
    dtype: object = None,
) -> Any:
    """The sum of `e` over indices, or of a whole tensor over axes."""
    return _reduce("sum", e, over, axis, keepdims, where, init, dtype)


def prod(
    e: object,
    over: object = None,
    *,
    axis: object = None,
    keepdims: bool = False,
    where: object = None,
    init: object = None,
    dtype: object = None,
) -> Any:
    """The product of `e` over indices, or of a whole tensor over axes."""
    return _reduce("prod", e, over, axis, keepdims, where, init, dtype)


def max(  # noqa: A001  # the language's name
    e: object,
    over: object = None,
    *,
    axis: object = None,
    keepdims: bool = False,
    where: object = None,
    init: object = None,
) -> Any:
    """The greatest value; NaN where one is NaN. Over nothing it is an error, unless `init=` is given."""
    return _reduce("max", e, over, axis, keepdims, where, init, None)


def min(  # noqa: A001  # the language's name
    e: object,
    over: object = None,
    *,
    axis: object = None,
    keepdims: bool = False,
    where: object = None,
    init: object = None,
) -> Any:
    """The least value; NaN where one is NaN. Over nothing it is an error, unless `init=` is given."""
    return _reduce("min", e, over, axis, keepdims, where, init, None)


def any(e: object, over: object = None, *, axis: object = None, keepdims: bool = False, where: object = None) -> Any:  # noqa: A001  # the language's name
    """Whether `e` is true (not 0) somewhere."""
    return _reduce("any", e, over, axis, keepdims, where, None, None)


def all(e: object, over: object = None, *, axis: object = None, keepdims: bool = False, where: object = None) -> Any:  # noqa: A001  # the language's name
    """Whether `e` is true (not 0) everywhere."""
    return _reduce("all", e, over, axis, keepdims, where, None, None)


def mean(
    e: object,
    over: object = None,
    *,
    axis: object = None,
    keepdims: bool = False,
    where: object = None,
    dtype: object = None,
) -> Any:
    """The sum over the number of points; f64 for integers."""
    return _reduce("mean", e, over, axis, keepdims, where, None, dtype)


def argmax(
    e: object,
    over: object = None,
    *,
    axis: object = None,
    keepdims: bool = False,
    where: object = None,
    init: object = None,
) -> Any:
    """The first index of the greatest value, i64; several indices count row by row. NaN counts as the greatest."""
    return _reduce("argmax", e, over, axis, keepdims, where, init, None)


def argmin(
    e: object,
    over: object = None,
    *,
    axis: object = None,
    keepdims: bool = False,
    where: object = None,
    init: object = None,
) -> Any:
    """The first index of the least value, i64; several indices count row by row. NaN counts as the least."""
    return _reduce("argmin", e, over, axis, keepdims, where, init, None)


def reduce(
    combine: Callable[[Any, Any], Any],
    e: object,
    over: object = None,
    *,
    init: object = None,
    axis: object = None,
    keepdims: bool = False,
    where: object = None,
) -> Any:
    """`e` combined by a function of two values, which is declared associative and commutative.

    init: its neutral element; without it a reduction over nothing is an error
    """
    combined = as_expr(combine(Placeholder("a"), Placeholder("b")), "as the result of the function of po.reduce")
    return _reduce("custom", e, over, axis, keepdims, where, init, None, combined)


def _reduce(
    kind: str,
    e: object,
    over: object,
    axis: object,
    keepdims: bool,
    where: object,
    init: object,
    dtype: object,
    combine: Expr | None = None,
) -> Any:
    if not _are_indices(over):
        e = whole(e)
    if isinstance(e, Handle) and (rank_of(e) > 0 or not _are_indices(over)):
        return _over_axes(kind, e, over if axis is None else axis, keepdims, where, init, dtype, combine)
    body = as_expr(e, f"in po.{spelled(kind)}")
    return Reduction(
        kind,
        body,
        _indices(kind, over, body),
        where=None if where is None else as_expr(where, "as where="),
        init=None if init is None else as_expr(init, "as init="),
        dtype=None if dtype is None else as_dtype(dtype),
        combine=combine,
    )


def _are_indices(over: object) -> bool:
    parts = over if isinstance(over, tuple | list) else (over,)
    return bool(parts) and builtins.all(isinstance(part, Index) for part in parts)


def _indices(kind: str, over: object, body: Expr) -> tuple[Index, ...]:
    if _are_indices(over):
        parts: tuple[Any, ...] = tuple(over) if isinstance(over, tuple | list) else (over,)
        if len(set(parts)) == len(parts):
            return parts
    function = f"po.{spelled(kind)}({_COMBINED if kind == 'custom' else ''}"
    fix = f"{function}e, k), or {function}e, (k, l)) with k, l = po.indices('k l')."
    if kind in ("max", "min") and over is not None:
        fix += f" The {kind}imum of two values is po.{kind}imum(a, b)."
    raise DefinitionError(
        f"po.{spelled(kind)} of an expression needs the indices to reduce",
        where=user_span(),
        why=f"It is given {over!r}." if over is not None else "None is given.",
        fix=fix,
    )


# --- whole tensors ---------------------------------------------------------------------------------------------------


def _over_axes(
    kind: str,
    tensor: Handle,
    axis: object,
    keepdims: bool,
    where: object,
    init: object,
    dtype: object,
    combine: Expr | None,
) -> Handle:
    """One equation that reduces the tensor over `axis` (an int, a tuple of them, or None for all).

    Over no axis, as of a tensor of rank 0, it reduces each element alone: dtype, where= and init= hold as elsewhere.
    """
    rank = rank_of(tensor)
    reduced = _axes(kind, axis, rank)
    letters = sugar_indices(rank)
    needs_extents = kind in ("argmax", "argmin") and len(reduced) > 1
    extents = require_extents(tensor, kind) if needs_extents else ()
    indices = tuple(
        Index(letter.name, Literal(0), AffineSize(extents[n])) if needs_extents and n in reduced else letter
        for n, letter in enumerate(letters)
    )
    over = tuple(indices[n] for n in reduced) or (Index("point", Literal(0), Literal(1)),)
    value = _value(kind, tensor, indices, over, where, init, dtype, combine)
    kept = tuple(index for n, index in enumerate(indices) if n not in reduced)
    if keepdims:
        kept = tuple(
            Index(f"{i.name}_kept", Literal(0), Literal(1)) if n in reduced else i for n, i in enumerate(indices)
        )
    result = tensor.state.new_tensor(spelled(kind), rank=len(kept))
    result.state.define(result, kept, value)
    return result


def _value(
    kind: str,
    tensor: Handle,
    indices: tuple[Index, ...],
    over: tuple[Index, ...],
    where: object,
    init: object,
    dtype: object,
    combine: Expr | None,
) -> Expr:
    element = Element(tensor, indices)
    if isinstance(where, Handle) and rank_of(where) > len(indices):
        raise ShapeError(
            f"where= has rank {rank_of(where)}, and '{tensor.name}' rank {len(indices)}",
            where=user_span(),
            fix="pass a condition for each element of the tensor, or broadcast the tensor first.",
            facts={"tensor": tensor.name, "rank": len(indices)},
        )
    condition = broadcast_element(where, indices, (tensor,)) if isinstance(where, Handle) else where
    options: dict[str, Any] = {
        "where": None if condition is None else as_expr(condition, "as where="),
        "init": None if init is None else as_expr(init, "as init="),
        "dtype": None if dtype is None else as_dtype(dtype),
    }
    known = _known(kind, element, indices, over) if where is None and init is None else None
    return Reduction(kind, element, over, combine=combine, known=known, **options)


def _known(kind: str, element: Element, indices: tuple[Index, ...], over: tuple[Index, ...]) -> Expr | None:
    """What a mean or a position needs apart from its own pass: the number of points, or a tensor of the extrema."""
    if kind == "mean":
        return _count(element.tensor, indices, over)
    if kind not in ("argmax", "argmin"):
        return None
    kept = tuple(index for index in indices if index not in set(over))
    extremum = kind.removeprefix("arg")
    best = element.tensor.state.new_tensor(f"{kind}_{extremum}", rank=len(kept))
    best.state.define(best, kept, Reduction(extremum, element, over))
    return Element(best, kept)


def _count(tensor: Handle, indices: tuple[Index, ...], over: tuple[Index, ...]) -> Expr | None:
    """The number of points as a product of extents; None where an extent is not plain."""
    count: Expr = Literal(1)
    for index, extent in zip(indices, known_extents(tensor), strict=True):
        if index in set(over):
            if extent is None:
                return None
            size: Expr = AffineSize(extent)
            count = Call("mul", (count, size if is_nonnegative(extent) else Call("maximum", (size, Literal(0)))))
    return count


_COMBINED = "lambda a, b: ..., "
"""What po.reduce is given first."""


def _axes(kind: str, axis: object, rank: int) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(rank))
    parts = axis if isinstance(axis, tuple | list) else (axis,)
    if not builtins.all(isinstance(part, int | np.integer) for part in parts):
        function = f"po.{spelled(kind)}({_COMBINED if kind == 'custom' else ''}"
        raise DefinitionError(
            f"po.{spelled(kind)} of a whole tensor reduces axes, and is given {axis!r}",
            where=user_span(),
            fix=f"{function}x, axis=1), or subscript: {function}x[i, k], k).",
        )
    found = sorted(normal_axis(part, rank) for part in parts)
    if len(set(found)) < len(found):
        raise ShapeError(
            f"po.{spelled(kind)} is given an axis twice: axis={axis!r}",
            where=user_span(),
            fix="name each axis once.",
            facts={"axis": axis, "rank": rank},
        )
    return tuple(found)
