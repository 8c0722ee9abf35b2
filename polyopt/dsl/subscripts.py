"""Subscripts and slices: `x[i, j]` is an element, `x[1:, 0]` a new tensor; and the extents that slices need."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl.affine import Affine, Compare, is_nonnegative
from polyopt.dsl.broadcast import rank_of
from polyopt.dsl.expr import (
    AffineSize,
    Boundary,
    Element,
    Expr,
    Index,
    Literal,
    Size,
    as_expr,
    free_indices,
    source_text,
    try_expr,
)
from polyopt.dsl.extents import extent_despite_guards, known_extents
from polyopt.dsl.recognise import NeedsSizes, extent_of, is_data
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import Handle, check_rank, sugar_indices
from polyopt.dtypes import bool_
from polyopt.errors import DefinitionError, DTypeError, ShapeError

# --- subscripts ------------------------------------------------------------------------------------------------------


def subscript(tensor: Handle, key: object, boundary: Boundary | None) -> Expr | Handle:
    """`tensor[key]`: an element, or a new tensor where dimensions are taken whole or in part.

    Raises `DefinitionError` for an index together with slices, and for what cannot be a subscript.
    """
    parts = key if isinstance(key, tuple) else (key,)
    count = sum(part is not None and part is not Ellipsis for part in parts)
    sliced = any(part is None or part is Ellipsis or isinstance(part, slice) for part in parts)
    if not sliced and (tensor.rank is None or count >= tensor.rank):
        exprs = tuple(subscript_expr(part, tensor) for part in parts)
        check_rank(tensor, len(exprs), user_span())
        return Element(tensor, exprs if boundary is not None else _from_the_end(tensor, exprs), boundary)
    return _slice(tensor, parts, boundary)


def left_side(tensor: Handle, key: object) -> tuple[Expr, ...]:
    """The subscripts of a definition. Raises `DefinitionError` for slices."""
    parts = key if isinstance(key, tuple) else (key,)
    if any(part is None or part is Ellipsis or isinstance(part, slice) for part in parts):
        raise DefinitionError(
            f"the left side '{tensor.name}[...]' has a slice",
            where=user_span(),
            why="A definition says the value of each element, so its left side has one subscript per dimension.",
            fix=f"write it with indices: {tensor.name}[i] = x[i].",
            facts={"tensor": tensor.name},
        )
    return tuple(subscript_expr(part, tensor) for part in parts)


def subscript_expr(part: object, tensor: Handle) -> Expr:
    """One subscript as an expression. Raises `DTypeError` for floats and booleans, `DefinitionError` for the rest."""
    if isinstance(part, float | bool | np.floating | np.bool_):
        raise DTypeError(
            f"'{tensor.name}' cannot be subscripted by {part!r}",
            where=user_span(),
            why="A subscript is an integer.",
            fix="convert it with int(...), or divide with //.",
            facts={"tensor": tensor.name},
        )
    expr = try_expr(part)
    if expr is not None:
        return expr
    if isinstance(part, Handle) and part.dtype is bool_:  # type: ignore[attr-defined]  # traces make Tensors
        raise DefinitionError(
            f"'{tensor.name}' is subscripted by a mask",
            where=user_span(),
            why="How many elements that selects is data, and a tensor's shape is not.",
            fix=f"po.where(mask, {tensor.name}, 0), or where= of a reduction.",
            facts={"tensor": tensor.name, "subscript": part.name},
        )
    if isinstance(part, Handle):
        raise DefinitionError(
            f"'{tensor.name}' is subscripted by the whole tensor '{part.name}'",
            where=user_span(),
            why="A gather reads one position per index.",
            fix=f"subscript it too: {tensor.name}[{part.name}[i]].",
            facts={"tensor": tensor.name, "subscript": part.name},
        )
    if isinstance(part, str):
        raise DefinitionError(
            f"'{tensor.name}' cannot be subscripted by a string",
            where=user_span(),
            fix="subscript by indices, integers and sizes.",
        )
    return as_expr(part, f"as a subscript of '{tensor.name}'")


def _from_the_end(tensor: Handle, exprs: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """Negative numbers count from the end, as in NumPy, where no index takes part: there `-1` is a position."""
    if any(not isinstance(expr, Literal) and free_indices(expr) for expr in exprs):
        return exprs
    if not any(_is_negative(expr) for expr in exprs):
        return exprs
    extents = known_extents(tensor)
    return tuple(_counted(tensor, expr, n, extents[n]) for n, expr in enumerate(exprs)) if extents else exprs


def _counted(tensor: Handle, expr: Expr, dimension: int, extent: Affine | None) -> Expr:
    if not isinstance(expr, Literal) or not _is_negative(expr):
        return expr
    extent = _required(tensor, dimension, extent, "a subscript from the end")
    return AffineSize(extent + int(expr.value))


def _is_negative(expr: Expr) -> bool:
    return isinstance(expr, Literal) and int(expr.value) < 0


# --- slices ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Range:
    """A dimension of a slice: element `start + step * index`, `extent` of them, but at most `cap`."""

    start: Affine
    step: int
    extent: Affine
    cap: Affine | None


def _slice(tensor: Handle, parts: tuple[object, ...], boundary: Boundary | None) -> Handle:
    parts = _without_ellipsis(tensor, parts)
    extents = known_extents(tensor)
    subscripts: list[Expr] = []
    left: list[Index] = []
    for part in parts:
        if part is None:
            left.append(Index("newaxis", as_expr(0), as_expr(1)))
        elif isinstance(part, slice):
            index, expr = _sliced(tensor, part, len(subscripts), extents[len(subscripts)], len(left), boundary)
            left.append(index)
            subscripts.append(expr)
        else:
            subscripts.append(_fixed(tensor, part, len(subscripts), extents[len(subscripts)], boundary))
    result = tensor.state.new_tensor(f"{tensor.name}_slice", rank=len(left))
    result.state.define(result, tuple(left), Element(tensor, tuple(subscripts), boundary))
    return result


def _without_ellipsis(tensor: Handle, parts: tuple[object, ...]) -> tuple[object, ...]:
    count = sum(part is not None and part is not Ellipsis for part in parts)
    where = [n for n, part in enumerate(parts) if part is Ellipsis]
    if len(where) > 1:
        raise DefinitionError(
            "a subscript can have one ellipsis", where=user_span(), fix="write the other dimensions as ':'."
        )
    if tensor.rank is None and not where:
        tensor.rank = count
    missing = rank_of(tensor) - count
    if missing < 0:
        check_rank(tensor, count, user_span())
    whole = (slice(None),) * missing
    at = where[0] if where else len(parts)
    return (*parts[:at], *whole, *parts[at + 1 :])


def _fixed(tensor: Handle, part: object, dimension: int, extent: Affine | None, boundary: Boundary | None) -> Expr:
    expr = subscript_expr(part, tensor)
    free = free_indices(expr)
    if free:
        raise DefinitionError(
            f"'{tensor.name}' is subscripted by index '{free[0].name}' and sliced",
            where=user_span(),
            why="An index makes an element, a slice a whole tensor.",
            fix="give every dimension an index.",
            facts={"tensor": tensor.name, "index": free[0].name},
        )
    return expr if boundary is not None else _counted(tensor, expr, dimension, extent)


def _sliced(
    tensor: Handle, part: slice, dimension: int, extent: Affine | None, position: int, boundary: Boundary | None
) -> tuple[Index, Expr]:
    (name,) = (index.name for index in sugar_indices(1, position))
    if part.start is None and part.stop is None and part.step is None:
        index = Index(name)
        return index, index
    if extent is None and boundary is None and _runs_to_the_end(part):
        open_index = Index(name)  # it runs as far as the tensor does, which is found when every equation is known
        first = 0 if part.start is None else part.start
        step, start = _step(part.step), _bound(tensor, first, None, None)
        assert start is not None, "a bound that is not negative needs no extent"
        return open_index, (open_index if step == 1 else open_index * step) + AffineSize(start)
    if _counts_from_the_end(part, boundary):
        extent = _required(tensor, dimension, extent, "slice")
    found = _slice_range(tensor, part, extent, boundary)
    cap = None if found.cap is None else AffineSize(found.cap)
    index = Index(name, as_expr(0), AffineSize(found.extent), cap=cap)
    scaled = index if found.step == 1 else index * found.step
    return index, scaled if found.start == Affine() else scaled + AffineSize(found.start)


def _runs_to_the_end(part: slice) -> bool:
    """Whether a slice goes forwards from a bound counted from the start to the last element."""
    counts_back = isinstance(part.start, int | np.integer) and part.start < 0
    return part.stop is None and not counts_back and _step(part.step) > 0


def _counts_from_the_end(part: slice, boundary: Boundary | None) -> bool:
    """Whether a bound of a slice depends on where the tensor ends."""
    is_open = part.stop is None if _step(part.step) > 0 else part.start is None
    bounds = [bound for bound in (part.start, part.stop) if isinstance(bound, int | np.integer)]
    return is_open or (boundary is None and any(bound < 0 for bound in bounds))


def _slice_range(tensor: Handle, part: slice, extent: Affine | None, boundary: Boundary | None) -> _Range:
    step = _step(part.step)
    whole_start, whole_stop = (
        (af.constant(0), extent) if step > 0 else (None if extent is None else extent - 1, af.constant(-1))
    )
    start = whole_start if part.start is None else _bound(tensor, part.start, extent, boundary)
    stop = whole_stop if part.stop is None else _bound(tensor, part.stop, extent, boundary)
    assert start is not None and stop is not None, "the extent is known where a bound depends on it"
    if boundary is not None:
        return _Range(start, step, _count(start, stop, step), None)
    start, stop = _clip(start, extent, step), _clip(stop, extent, step)
    _require_clipped(tensor, start, stop, extent, step)
    is_open = step > 0 and extent is not None and not (extent - stop).is_constant
    if is_open and extent is not None and stop - start == af.constant(1):
        tensor.state.conditions.append(Compare(extent - stop, ">="))  # one element, so that it broadcasts
        is_open = False
    return _Range(start, step, _count(start, stop, step), _count(start, extent, step) if is_open and extent else None)


def _count(start: Affine, stop: Affine, step: int) -> Affine:
    """The number of elements from `start` to before `stop`."""
    distance = stop - start if step > 0 else start - stop
    count = (distance + abs(step) - 1) // abs(step)
    return Affine() if count.is_constant and count.constant < 0 else count


def _step(step: object) -> int:
    if step is None:
        return 1
    if isinstance(step, int | np.integer) and step != 0:
        return int(step)
    raise DefinitionError(
        "the step of a slice must be a number other than 0", where=user_span(), fix="x[::2], or x[::-1]."
    )


def _bound(tensor: Handle, bound: object, extent: Affine | None, boundary: Boundary | None) -> Affine | None:
    if isinstance(bound, int | np.integer) and bound < 0 and boundary is None:
        return None if extent is None else extent + int(bound)
    expr = subscript_expr(bound, tensor)
    if free_indices(expr) or is_data(expr):
        raise DefinitionError(
            f"the bound '{source_text(expr)}' of a slice of '{tensor.name}' is not affine in sizes",
            where=user_span(),
            fix="slice by numbers and sizes, or write the equation with indices.",
            facts={"tensor": tensor.name},
        )
    return extent_of(expr, tensor.state.sizes, "the bound of a slice")


def _clip(bound: Affine, extent: Affine | None, step: int) -> Affine:
    """A bound moved into the tensor, as NumPy does, where the extent is comparable."""
    low, high = (0, 0) if step > 0 else (-1, -1)
    if bound.is_constant and bound.constant < low:
        return af.constant(low)
    if extent is not None and (bound - extent).is_constant and (bound - extent).constant > high:
        return extent + high
    return bound


def _require_clipped(tensor: Handle, start: Affine, stop: Affine, extent: Affine | None, step: int) -> None:
    """Conditions on the sizes for which no bound had to be moved where that cannot be told here: `x[-3:]`, `x[2::-1]`.

    Bounds beyond the others make a range that ends before it starts, or one with a cap, and need not be moved.
    """
    inside = [start] if step > 0 else [stop + 1]
    if step < 0 and extent is not None:
        inside.append(extent - 1 - start)
    tensor.state.conditions += [Compare(left, ">=") for left in inside if not is_nonnegative(left)]


# --- extents ---------------------------------------------------------------------------------------------------------


def as_size(extent: Affine) -> AffineSize | int:
    return extent.constant if extent.is_constant else AffineSize(extent)


def require_extents(tensor: Handle, what: str) -> tuple[Affine, ...]:
    """The extents, of which the program's sizes may make none less than 0: as a number, it is no extent.

    Raises `NeedsSizes` where one is not plain at this point of the function.
    """
    rank_of(tensor)
    found = tuple(_required(tensor, n, extent, what) for n, extent in enumerate(known_extents(tensor)))
    tensor.state.conditions.extend(Compare(extent, ">=") for extent in found if not is_nonnegative(extent))
    return found


def _required(tensor: Handle, dimension: int, extent: Affine | None, what: str) -> Affine:
    """The extent, else what it is where guards shorten nothing. Raises `NeedsSizes` where neither is plain."""
    if extent is None:
        extent = extent_despite_guards(tensor, dimension)
    if extent is None:
        raise _unknown_extent(tensor, what)
    return extent


def _unknown_extent(tensor: Handle, what: str) -> NeedsSizes:
    """Asks for numbers: x[:2] has two elements where x has 8, and perhaps fewer where it has N."""
    return NeedsSizes(
        f"the extents of '{tensor.name}' are not known here",
        where=user_span(),
        why=f"'{what}' needs them at once, and they follow from ranges that are found when every equation is known.",
        fix=f"give the tensor its shape: po.tensor('{tensor.name}', shape=(...)).",
        facts={"tensor": tensor.name},
    )


def as_dims(sizes: Mapping[str, Affine], shape: object) -> tuple[Affine, ...]:
    """A `shape=` as affine extents: integers, sizes, names of sizes and affine expressions over them."""
    parts = shape if isinstance(shape, tuple | list) else (shape,)
    return tuple(as_dim(part, sizes) for part in parts)


def as_dim(part: object, sizes: Mapping[str, Affine]) -> Affine:
    """One extent. Raises `DefinitionError` for data and indices, `ShapeError` below 0."""
    expr = Size(part) if isinstance(part, str) else as_expr(part, "as an extent")
    if is_data(expr) or free_indices(expr):
        raise DefinitionError(
            "an extent must be made of sizes and numbers", where=user_span(), fix="shape=(N, 3) with N = po.size('N')."
        )
    extent = extent_of(expr, sizes, "an extent")
    if extent.is_constant and extent.constant < 0:
        raise ShapeError(
            f"an extent cannot be negative: {extent}",
            where=user_span(),
            fix="use 0 or more.",
            facts={"extent": str(extent)},
        )
    return extent
