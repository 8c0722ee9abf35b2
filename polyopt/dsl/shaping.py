"""Subscripts, slices, and the whole-tensor functions that rearrange: transpose, reshape, concatenate, stack, matmul."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from polyopt.dsl import affine as af
from polyopt.dsl.affine import Affine
from polyopt.dsl.broadcast import ONE, broadcast_element, rank_of
from polyopt.dsl.expr import (
    AffineSize,
    Boundary,
    Call,
    Element,
    Expr,
    Index,
    Literal,
    Size,
    as_expr,
    free_indices,
    try_expr,
)
from polyopt.dsl.extents import Extents, known_extents
from polyopt.dsl.recognise import NeedsSizes, affine_of, extent_of, is_data, size_scope, source_text
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import Handle, check_rank, sugar_indices
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
    return tuple(_counted(e, extent) for e, extent in zip(exprs, extents, strict=False)) if extents else exprs


def _counted(expr: Expr, extent: Affine | None) -> Expr:
    if isinstance(expr, Literal) and _is_negative(expr) and extent is not None:
        return AffineSize(extent + int(expr.value))
    return expr


def _is_negative(expr: Expr) -> bool:
    return isinstance(expr, Literal) and int(expr.value) < 0


# --- slices ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Range:
    """A dimension of a slice: element `start + step * index`, `extent` of them; None where all are taken."""

    start: Affine
    step: int
    extent: Affine | None


def _slice(tensor: Handle, parts: tuple[object, ...], boundary: Boundary | None) -> Handle:
    parts = _without_ellipsis(tensor, parts)
    extents = known_extents(tensor)
    subscripts: list[Expr] = []
    left: list[Index] = []
    for part in parts:
        if part is None:
            left.append(Index("newaxis", as_expr(0), as_expr(1)))
        elif isinstance(part, slice):
            index, expr = _sliced(tensor, part, extents[len(subscripts)], len(left), boundary)
            left.append(index)
            subscripts.append(expr)
        else:
            extent = extents[len(subscripts)] if boundary is None else None
            subscripts.append(_fixed(tensor, part, extent))
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


def _fixed(tensor: Handle, part: object, extent: Affine | None) -> Expr:
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
    return _counted(expr, extent)


def _sliced(
    tensor: Handle, part: slice, extent: Affine | None, position: int, boundary: Boundary | None
) -> tuple[Index, Expr]:
    (name,) = (index.name for index in sugar_indices(1, position))
    if part.start is None and part.stop is None and part.step is None:
        index = Index(name)
        return index, index
    found = _slice_range(tensor, part, extent, boundary)
    count = None if found.extent is None else AffineSize(found.extent)
    index = Index(name, None if count is None else as_expr(0), count)
    scaled = index if found.step == 1 else index * found.step
    return index, scaled if found.start == Affine() else scaled + AffineSize(found.start)


def _slice_range(tensor: Handle, part: slice, extent: Affine | None, boundary: Boundary | None) -> _Range:
    step = _step(part.step)
    whole_start, whole_stop = (
        (af.constant(0), extent) if step > 0 else (None if extent is None else extent - 1, af.constant(-1))
    )
    start = whole_start if part.start is None else _bound(tensor, part.start, extent, boundary)
    stop = whole_stop if part.stop is None else _bound(tensor, part.stop, extent, boundary)
    if start is None or stop is None:
        raise _unknown_extent(tensor, "slice")
    if boundary is None:
        start, stop = _clip(start, extent, step), _clip(stop, extent, step)
    distance = stop - start if step > 0 else start - stop
    count = (distance + abs(step) - 1) // abs(step)
    return _Range(start, step, Affine() if count.is_constant and count.constant < 0 else count)


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
    """A bound moved into the tensor, as NumPy does; a symbolic one is taken as it is and checked later."""
    low, high = (0, 0) if step > 0 else (-1, -1)
    if bound.is_constant and bound.constant < low:
        return af.constant(low)
    if extent is not None and (bound - extent).is_constant and (bound - extent).constant > high:
        return extent + high
    return bound


# --- extents ---------------------------------------------------------------------------------------------------------


def as_size(extent: Affine) -> AffineSize | int:
    return extent.constant if extent.is_constant else AffineSize(extent)


def require_extents(tensor: Handle, what: str) -> tuple[Affine, ...]:
    """The extents. Raises `DefinitionError` where one is not plain at this point of the function."""
    rank_of(tensor)
    extents = known_extents(tensor)
    found = tuple(extent for extent in extents if extent is not None)
    if len(found) < len(extents):
        raise _unknown_extent(tensor, what)
    return found


def _unknown_extent(tensor: Handle, what: str) -> DefinitionError:
    return DefinitionError(
        f"the extents of '{tensor.name}' are not known here",
        where=user_span(),
        why=f"'{what}' needs them at once, and they follow from ranges that are found when every equation is known.",
        fix=f"give the tensor its shape: po.tensor('{tensor.name}', shape=(...)).",
        facts={"tensor": tensor.name},
    )


def as_dims(tensor_sizes: Any, shape: object) -> tuple[Affine, ...]:
    """A `shape=` as affine extents: integers, sizes, names of sizes and affine expressions over them."""
    parts = shape if isinstance(shape, tuple | list) else (shape,)
    return tuple(_as_dim(part, tensor_sizes) for part in parts)


def _as_dim(part: object, sizes: Any) -> Affine:
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


# --- rearranging -----------------------------------------------------------------------------------------------------


def transpose(tensor: Handle, *axes: Any) -> Handle:
    """The dimensions in the order `axes`; reversed without arguments."""
    rank = rank_of(tensor)
    if len(axes) == 1 and (axes[0] is None or isinstance(axes[0], tuple | list)):
        axes = tuple(axes[0] or ())
    order = [normal_axis(axis, rank) for axis in axes] if axes else list(reversed(range(rank)))
    if sorted(order) != list(range(rank)):
        raise ShapeError(
            f"transpose of '{tensor.name}' by {tuple(axes)} is not a permutation of its {rank} dimensions",
            where=user_span(),
            fix="name each dimension once, as in x.transpose(1, 0).",
            facts={"axes": tuple(axes), "rank": rank},
        )
    indices = sugar_indices(rank)
    source = dict(zip(order, indices, strict=True))
    result = tensor.state.new_tensor(f"{tensor.name}_T", rank=rank)
    result.state.define(result, indices, Element(tensor, tuple(source[d] for d in range(rank))))
    return result


def normal_axis(axis: object, rank: int) -> int:
    """A dimension counted from 0. Raises `ShapeError` outside the rank."""
    if isinstance(axis, int | np.integer) and not isinstance(axis, bool) and -rank <= axis < rank:
        return int(axis) % rank
    raise ShapeError(
        f"there is no axis {axis!r} in a tensor of {rank} dimension{'s' * (rank != 1)}",
        where=user_span(),
        fix=f"an axis is an integer from {-rank} to {rank - 1}." if rank else "leave axis= out.",
        facts={"axis": axis, "rank": rank},
    )


def reshape(tensor: Handle, *shape: Any) -> Handle:
    """The elements in row-major order in another shape.

    Dimensions that stay as they are may have symbolic extents; of those that are joined or split, all but the first
    must be numbers. Raises `NeedsSizes` where that takes sizes that are not numbers yet.
    """
    if len(shape) == 1 and isinstance(shape[0], tuple | list):
        shape = tuple(shape[0])
    old = require_extents(tensor, "reshape")
    new = _new_shape(tensor, old, shape)
    groups = _matching_groups(old, new)
    indices = tuple(
        Index(index.name, as_expr(0), AffineSize(extent))
        for index, extent in zip(sugar_indices(len(new)), new, strict=True)
    )
    subscripts: list[Expr] = []
    for old_group, new_group in groups:
        own = [indices[n] for n in new_group]
        subscripts.extend(_regroup(own, [new[n] for n in new_group], [old[n] for n in old_group]))
    result = tensor.state.new_tensor(f"{tensor.name}_reshape", rank=len(new))
    result.state.define(result, indices, Element(tensor, tuple(subscripts)))
    return result


def _new_shape(tensor: Handle, old: Sequence[Affine], shape: Sequence[object]) -> tuple[Affine, ...]:
    free = [n for n, part in enumerate(shape) if isinstance(part, int | np.integer) and part == -1]
    dims = [af.constant(1) if n in free else _as_dim(part, tensor.state.sizes) for n, part in enumerate(shape)]
    if len(free) > 1:
        raise ShapeError("reshape can leave one extent as -1", where=user_span(), fix="write the others down.")
    if free:
        dims[free[0]] = _quotient(tensor, list(old), [d for n, d in enumerate(dims) if n not in free])
    elif not _same_count(old, dims):
        raise ShapeError(
            f"'{tensor.name}' with shape ({_text(old)}) cannot be reshaped to ({_text(dims)})",
            where=user_span(),
            why="The numbers of elements differ.",
            fix="leave one extent as -1.",
            facts={"tensor": tensor.name},
        )
    return tuple(dims)


def _quotient(tensor: Handle, old: list[Affine], others: list[Affine]) -> Affine:
    """The extent that `-1` stands for."""
    for extent in [e for e in others if not e.is_constant]:
        if extent in old:
            old.remove(extent)
            others.remove(extent)
    total, divisor = _product(old), _product(others)
    if divisor.is_constant and divisor.constant == 0:
        return af.constant(0)
    if not divisor.is_constant:
        raise _needs_sizes("reshape divides by a symbolic size")
    exact = all(value % divisor.constant == 0 for value in (total.constant, *(c for _, c in total.terms)))
    if not exact and total.is_constant:
        raise ShapeError(
            f"'{tensor.name}' with {total} elements cannot be reshaped to multiples of {divisor}",
            where=user_span(),
            fix="choose extents whose product divides the number of elements.",
        )
    if not exact:
        raise _needs_sizes("whether the extents divide depends on sizes")
    return total // divisor.constant


def _product(extents: Sequence[Affine]) -> Affine:
    total = af.constant(1)
    for extent in extents:
        if not total.is_constant and not extent.is_constant:
            raise _needs_sizes("the number of elements is a product of symbolic sizes")
        total = total * extent.constant if extent.is_constant else extent * total.constant
    return total


def _same_count(old: Sequence[Affine], new: Sequence[Affine]) -> bool:
    left, right = list(old), list(new)
    for extent in list(left):
        if not extent.is_constant and extent in right:
            left.remove(extent)
            right.remove(extent)
    return _product(left) == _product(right)


def _needs_sizes(reason: str) -> NeedsSizes:
    return NeedsSizes(
        "this reshape is affine only for known sizes",
        where=user_span(),
        why=f"{reason[0].upper()}{reason[1:]}.",
        fix="leave the sizes out of dynamic=, or split into extents that are numbers.",
        facts={"needs_sizes": True},
    )


def _matching_groups(old: Sequence[Affine], new: Sequence[Affine]) -> list[tuple[list[int], list[int]]]:
    """Dimensions that correspond: equal ones from both ends pairwise, the middle as one group."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    pairs = [([n], [n]) for n in range(head)]
    middle = (list(range(head, len(old) - tail)), list(range(head, len(new) - tail)))
    ends = [([len(old) - n], [len(new) - n]) for n in range(tail, 0, -1)]
    return pairs + ([middle] if middle[0] or middle[1] else []) + ends


def _regroup(indices: Sequence[Index], new: Sequence[Affine], old: Sequence[Affine]) -> list[Expr]:
    """The old subscripts of the element at `indices` in the new dimensions of one group."""
    if len(indices) == 1 and len(old) == 1:
        return [indices[0]]
    flat: Expr = Literal(0)
    for stride, index in zip(_strides(new), indices, strict=True):
        flat = Call("add", (flat, Call("mul", (index, Literal(stride)))))
    subscripts: list[Expr] = []
    for position, stride in enumerate(_strides(old)):
        quotient = Call("floordiv", (flat, Literal(max(stride, 1))))
        extent = old[position]
        subscripts.append(quotient if position == 0 else Call("mod", (quotient, Literal(max(extent.constant, 1)))))
    return subscripts


def _strides(extents: Sequence[Affine]) -> list[int]:
    strides, stride = [], 1
    for extent in reversed(extents):
        strides.append(stride)
        if len(strides) < len(extents):
            if not extent.is_constant:
                raise _needs_sizes(f"'{extent}' is a stride here, which must be a number")
            stride *= extent.constant
    return strides[::-1]


def _text(extents: Extents | Sequence[Affine]) -> str:
    return ", ".join(str(extent) for extent in extents)


# --- joining ---------------------------------------------------------------------------------------------------------


def concatenate(tensors: Sequence[Handle], axis: int = 0) -> Handle:
    """The tensors one behind the other along `axis`."""
    pieces = _pieces(tensors, "concatenate")
    rank = rank_of(pieces[0])
    along = normal_axis(axis, rank)
    result = pieces[0].state.new_tensor("concatenate", rank=rank)
    offset = af.constant(0)
    for piece in pieces:
        check_rank(piece, rank, user_span())
        extent = require_extents(piece, "concatenate")[along]
        indices = sugar_indices(rank)
        ranged = Index(indices[along].name, as_expr(0), AffineSize(extent))
        own = (*indices[:along], ranged, *indices[along + 1 :])
        moved: Expr = ranged if offset == Affine() else Call("add", (ranged, AffineSize(offset)))
        result.state.define(result, (*own[:along], moved, *own[along + 1 :]), Element(piece, own))
        offset = offset + extent
    return result


def stack(tensors: Sequence[Handle], axis: int = 0) -> Handle:
    """The tensors along a new dimension at `axis`."""
    pieces = _pieces(tensors, "stack")
    rank = rank_of(pieces[0])
    along = normal_axis(axis, rank + 1)
    result = pieces[0].state.new_tensor("stack", rank=rank + 1)
    for position, piece in enumerate(pieces):
        check_rank(piece, rank, user_span())
        own = sugar_indices(rank)
        result.state.define(result, (*own[:along], Literal(position), *own[along:]), Element(piece, own))
    return result


def _pieces(tensors: Sequence[Handle], what: str) -> list[Handle]:
    pieces = list(tensors) if isinstance(tensors, tuple | list) else []
    if pieces and all(isinstance(piece, Handle) for piece in pieces):
        return pieces
    raise DefinitionError(f"po.{what} takes a list of tensors", where=user_span(), fix=f"po.{what}([a, b]).")


# --- contraction -----------------------------------------------------------------------------------------------------


def matmul(left: object, right: object) -> Handle:
    """`left @ right` as NumPy has it: vectors, matrices, and stacks of matrices that broadcast."""
    if not isinstance(left, Handle) or not isinstance(right, Handle) or not rank_of(left) or not rank_of(right):
        raise DefinitionError(
            "@ takes two tensors with dimensions", where=user_span(), fix="use * with a single value."
        )
    a, b = rank_of(left), rank_of(right)
    batch = sugar_indices(max(a - 2, b - 2, 0), 3)
    i, j, k = Index("i"), Index("j"), Index("k")
    row = (i,) if a > 1 else ()
    column = (j,) if b > 1 else ()
    first = _batched(left, batch, (*row, k), right)
    second = _batched(right, batch, (k, *column), left)
    subscripts = (*batch, *row, *column)
    result = left.state.new_tensor("matmul", rank=len(subscripts))
    result.state.define(result, subscripts, Call("mul", (first, second)), "sum")
    return result


def _batched(tensor: Handle, batch: Sequence[Index], last: tuple[Index, ...], other: Handle) -> Expr:
    count = rank_of(tensor) - len(last)
    others = known_extents(other)[: max(rank_of(other) - 2, 0)]
    own = known_extents(tensor)[: max(count, 0)]
    subscripts: list[Expr] = []
    for position in range(count):
        from_end = count - position
        longer = len(others) >= from_end and others[-from_end] != ONE
        index = batch[len(batch) - from_end]
        subscripts.append(Literal(0) if own[position] == ONE and longer else index)
    return Element(tensor, (*subscripts, *last))


__all__ = [
    "affine_of",
    "as_dims",
    "broadcast_element",
    "concatenate",
    "left_side",
    "matmul",
    "require_extents",
    "reshape",
    "size_scope",
    "stack",
    "subscript",
    "transpose",
]
