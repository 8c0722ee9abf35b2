"""How an op returns: a tensor, or tuples, named tuples, lists and dicts of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from polyopt.classes import dataclass
from polyopt.dsl.expr import Element, Expr, free_indices, source_text, try_expr
from polyopt.dsl.signature import Signature
from polyopt.dsl.state import Handle, State, sugar_indices
from polyopt.errors import DefinitionError, Span


@dataclass(frozen=True, slots=True)
class Structure:
    """The shape of what the function returned.

    make:  puts the parts together again; None for a single tensor
    parts: the structure of each part
    """

    make: Callable[[list[Any]], Any] | None = None
    parts: tuple[Structure, ...] = ()

    @property
    def count(self) -> int:
        """The number of tensors."""
        return 1 if self.make is None else sum(part.count for part in self.parts)

    def rebuild(self, values: Sequence[Any]) -> Any:
        """The values, one per tensor, as the function returned them."""
        if self.make is None:
            (value,) = values
            return value
        rest, built = list(values), []
        for part in self.parts:
            built.append(part.rebuild(rest[: part.count]))
            rest = rest[part.count :]
        return self.make(built)


def flatten(value: object, signature: Signature) -> tuple[list[Any], Structure]:
    """The leaves of what the function returned, and how to put them together again."""
    if isinstance(value, dict):
        keys = tuple(value)
        return _flatten_parts(list(value.values()), lambda parts: dict(zip(keys, parts, strict=True)), signature)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _flatten_parts(list(value), type(value)._make, signature)  # type: ignore[attr-defined]  # a named tuple
    if isinstance(value, tuple | list):
        return _flatten_parts(list(value), type(value), signature)
    if value is None:
        raise DefinitionError(
            f"op '{signature.name}' returns nothing",
            where=signature.span,
            why="Its function has no return statement, or a bare one.",
            fix="return the tensor, or a tuple or dict of tensors.",
        )
    return [value], Structure()


def _flatten_parts(
    values: list[object], make: Callable[[list[Any]], Any], signature: Signature
) -> tuple[list[Any], Structure]:
    if any(value is None for value in values):
        raise DefinitionError(
            f"op '{signature.name}' returns None among its results",
            where=signature.span,
            why="Each result is a tensor.",
            fix="leave it out.",
        )
    if not values:
        raise DefinitionError(
            f"op '{signature.name}' returns an empty container",
            where=signature.span,
            fix="return at least one tensor.",
        )
    flat = [flatten(value, signature) for value in values]
    return [leaf for leaves, _ in flat for leaf in leaves], Structure(make, tuple(structure for _, structure in flat))


def as_result(state: State, value: object, taken: set[Handle], span: Span) -> Handle:
    """The tensor to return for a leaf; a parameter, a second mention and a value get a tensor of their own."""
    if isinstance(value, Handle):
        if value.role == "local" and value not in taken:
            return value
        return _copy(state, value)
    expr = try_expr(value)
    if expr is None:
        raise DefinitionError(
            f"an op cannot return {type(value).__name__}",
            where=span,
            fix="return the tensor, or a tuple or dict of tensors.",
            facts={"type": type(value).__name__},
        )
    return value_tensor(state, expr)


def value_tensor(state: State, expr: Expr, name: str = "result") -> Handle:
    """A tensor of rank 0 that holds a value. Raises `DefinitionError` where the value depends on an index."""
    free = free_indices(expr)
    if free:
        raise DefinitionError(
            f"'{source_text(expr)}' has a value per index '{free[0].name}', and is not a tensor",
            where=expr.span,
            why="Only a definition makes a tensor of such values.",
            fix=f"y = po.tensor('y'); y[{', '.join(i.name for i in free)}] = ...; return y.",
            facts={"index": free[0].name},
        )
    tensor = state.new_tensor(name, rank=0)
    state.define(tensor, (), expr)
    return tensor


def _copy(state: State, tensor: Handle) -> Handle:
    indices = sugar_indices(tensor.rank or 0)
    copy = state.new_tensor(f"{tensor.name}_copy", rank=tensor.rank, dims=tensor.dims)
    state.define(copy, indices, Element(tensor, indices))
    return copy
