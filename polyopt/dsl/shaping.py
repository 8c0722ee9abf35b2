"""The whole-tensor functions that rearrange: transpose, reshape, concatenate, stack, matmul."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from polyopt.dsl import affine as af
from polyopt.dsl.affine import Affine
from polyopt.dsl.broadcast import rank_of, whole
from polyopt.dsl.expr import (
    AffineSize,
    Call,
    Element,
    Expr,
    Index,
    Literal,
    as_expr,
)
from polyopt.dsl.extents import ONE, Extents, known_extents
from polyopt.dsl.recognise import NeedsSizes
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import Handle, sugar_indices
from polyopt.dsl.subscripts import as_dim, require_extents
from polyopt.errors import DefinitionError, ShapeError

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
    dims = [af.constant(1) if n in free else as_dim(part, tensor.state.sizes) for n, part in enumerate(shape)]
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
        raise ShapeError(
            f"'{tensor.name}' cannot be reshaped to an extent of 0 beside -1",
            where=user_span(),
            why="-1 could stand for any number.",
            fix="write every extent down.",
        )
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
    _check_alike(pieces, "concatenate", along)
    for piece in pieces:
        extent = require_extents(piece, "concatenate")[along]
        indices = sugar_indices(rank)
        ranged = Index(indices[along].name, as_expr(0), AffineSize(extent))
        own = (*indices[:along], ranged, *indices[along + 1 :])
        moved: Expr = ranged if offset == Affine() else Call("add", (ranged, AffineSize(offset)))
        result.state.define(result, (*own[:along], moved, *own[along + 1 :]), Element(piece, own))
        offset = offset + extent
    return result


def stack(tensors: Sequence[Handle | Expr], axis: int = 0) -> Handle:
    """The tensors, or single values, along a new dimension at `axis`."""
    pieces = _pieces(_as_tensors(tensors), "stack")
    rank = rank_of(pieces[0])
    along = normal_axis(axis, rank + 1)
    result = pieces[0].state.new_tensor("stack", rank=rank + 1)
    _check_alike(pieces, "stack", None)
    for position, piece in enumerate(pieces):
        own = sugar_indices(rank)
        result.state.define(result, (*own[:along], Literal(position), *own[along:]), Element(piece, own))
    return result


def _as_tensors(values: object) -> object:
    """The list with a tensor of rank 0 for each value that depends on no index."""
    if not isinstance(values, tuple | list):
        return values
    return [whole(value) for value in values]


def _check_alike(pieces: Sequence[Handle], what: str, along: int | None) -> None:
    """Raise `ShapeError` unless ranks agree, and extents but along `along`; symbolic ones are compared when known."""
    first = pieces[0]
    for piece in pieces[1:]:
        differ = rank_of(piece) != rank_of(first)
        for axis, (one, other) in enumerate(zip(known_extents(first), known_extents(piece))):
            if axis == along or one is None or other is None:
                continue
            if (one - other).is_constant:
                differ = differ or one != other
            else:
                piece.state.conditions.append(af.Compare(one - other, "=="))
        if differ:
            raise ShapeError(
                f"po.{what}: the shapes of '{first.name}' and '{piece.name}' do not fit together",
                where=user_span(),
                why=f"They are ({_shape_text(first)}) and ({_shape_text(piece)}).",
                fix="slice, transpose or reshape one of them.",
                facts={"tensors": (first.name, piece.name)},
            )


def _shape_text(tensor: Handle) -> str:
    return ", ".join("?" if extent is None else str(extent) for extent in known_extents(tensor, only_one=True))


def _pieces(tensors: object, what: str) -> list[Handle]:
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
    others = known_extents(other, only_one=True)[: max(rank_of(other) - 2, 0)]
    own = known_extents(tensor, only_one=True)[: max(count, 0)]
    subscripts: list[Expr] = []
    for position in range(count):
        from_end = count - position
        longer = len(others) >= from_end and others[-from_end] != ONE
        index = batch[len(batch) - from_end]
        subscripts.append(Literal(0) if own[position] == ONE and longer else index)
    return Element(tensor, (*subscripts, *last))
