"""Whole-tensor arithmetic: one equation per operation, with NumPy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from polyopt.dsl.expr import Element, Expr, Index, as_expr, free_indices, source_text
from polyopt.dsl.extents import ONE, Extents, known_extents
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import Handle, active, sugar_indices
from polyopt.errors import DefinitionError, ShapeError


def elementwise(name: str, build: Callable[..., Expr], operands: Sequence[object]) -> Expr | Handle:
    """`build` on the operands' elements: a tensor where an operand has dimensions, else a value.

    Raises `DefinitionError` where a whole tensor meets a value that depends on an index.
    """
    tensors = [operand for operand in operands if isinstance(operand, Handle) and rank_of(operand) > 0]
    if not tensors:
        return build(*(as_expr(operand, f"as an operand of {name}") for operand in operands))
    exprs = [operand if isinstance(operand, Handle) else _value(operand, tensors[0], name) for operand in operands]
    rank = max(rank_of(tensor) for tensor in tensors)
    indices = sugar_indices(rank)
    _check_shapes(tensors, rank)
    elements = [broadcast_element(e, indices, tensors) if isinstance(e, Handle) else e for e in exprs]
    result = tensors[0].state.new_tensor(name, rank=rank)
    result.state.define(result, indices, build(*elements))
    return result


def whole(value: object) -> object:
    """A tensor of rank 0 for a value that depends on no index; anything else as it is."""
    state = active()
    if state is None or not isinstance(value, Expr) or free_indices(value):
        return value
    tensor = state.new_tensor("value", rank=0)
    state.define(tensor, (), value)
    return tensor


def rank_of(tensor: Handle) -> int:
    """The tensor's rank. Raises `DefinitionError` where nothing has fixed it yet."""
    if tensor.rank is None:
        raise DefinitionError(
            f"the rank of '{tensor.name}' is not known yet",
            where=user_span(),
            why="It is used as a whole before it has a definition.",
            fix=f"define '{tensor.name}' above this line, or give it shape=.",
            facts={"tensor": tensor.name},
        )
    return tensor.rank


def broadcast_element(tensor: Handle, indices: Sequence[Index], others: Sequence[Handle]) -> Expr:
    """The tensor's element at trailing `indices`; a dimension of extent 1 repeats where another operand is longer."""
    rank = rank_of(tensor)
    if rank == 0:
        return Element(tensor, ())
    trailing = indices[len(indices) - rank :]
    extents = known_extents(tensor, only_one=True)
    subscripts = [
        as_expr(0) if extent == ONE and _is_longer(others, rank - position) else index
        for position, (extent, index) in enumerate(zip(extents, trailing, strict=True))
    ]
    return Element(tensor, tuple(subscripts))


def _is_longer(tensors: Sequence[Handle], from_end: int) -> bool:
    """Whether a tensor has a dimension at this distance from the end that is not of extent 1."""
    return any(rank_of(t) >= from_end and known_extents(t, only_one=True)[-from_end] != ONE for t in tensors)


def _value(operand: object, tensor: Handle, name: str) -> Expr:
    expr = as_expr(operand, f"as an operand of {name}")
    free = free_indices(expr)
    if free:
        raise DefinitionError(
            f"the whole tensor '{tensor.name}' meets '{source_text(expr)}', a value per index '{free[0].name}'",
            where=user_span(),
            why="An equation works on elements, whole-tensor arithmetic on whole tensors.",
            fix=f"subscript it: {tensor.name}[{', '.join('ijklmnpqrs'[: tensor.rank])}].",
            facts={"tensor": tensor.name, "index": free[0].name},
        )
    return expr


def _check_shapes(tensors: Sequence[Handle], rank: int) -> None:
    """Raises `ShapeError` where two constant extents differ and neither is 1."""
    for from_end in range(1, rank + 1):
        sized = [(t, known_extents(t, only_one=True)[-from_end]) for t in tensors if rank_of(t) >= from_end]
        numbers = [(t, e.constant) for t, e in sized if e is not None and e.is_constant and e != ONE]
        for tensor, extent in numbers[1:]:
            if extent != numbers[0][1]:
                raise ShapeError(
                    f"shapes of '{numbers[0][0].name}' and '{tensor.name}' do not broadcast",
                    where=user_span(),
                    why=f"Dimension {-from_end} has extent {numbers[0][1]} in one and {extent} in the other.",
                    fix="slice or reshape one of them.",
                    facts={numbers[0][0].name: numbers[0][1], tensor.name: extent},
                )


def extents_text(extents: Extents) -> str:
    return ", ".join("?" if extent is None else str(extent) for extent in extents)
