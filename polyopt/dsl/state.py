"""The trace in progress: the tensors and definitions that the user's function has written so far."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field
from typing import Any, Literal

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine, Condition
from polyopt.dsl.expr import Boundary, Element, Expr, Index
from polyopt.dsl.ir import Agreement, UsedExtent
from polyopt.dsl.operators import Operators
from polyopt.dsl.spans import user_span
from polyopt.dtypes import DType
from polyopt.errors import DefinitionError, Span

Role = Literal["input", "local"]


class Handle(Operators):
    """A tensor of the op that is being traced.

    rank:  None until the first definition or `shape=` fixes it
    dims:  extents as far as they are known without looking at ranges; None for a local tensor without `shape=`
    dtype_given: None for a local tensor whose dtype follows from its definitions
    """

    __slots__ = ("dims", "dtype_given", "name", "rank", "role", "span", "state")

    def __init__(
        self,
        state: State,
        name: str,
        *,
        role: Role = "local",
        dtype: DType | None = None,
        dims: tuple[Affine, ...] | None = None,
        rank: int | None = None,
        span: Span | None = None,
    ) -> None:
        self.state, self.name, self.role, self.dtype_given, self.dims = state, name, role, dtype, dims
        self.rank = len(dims) if dims is not None else rank
        self.span = span

    def __repr__(self) -> str:
        return self.name

    def _as_element(self) -> Expr | None:
        """A tensor of rank 0 as the one value it holds."""
        return Element(self, ()) if self.rank == 0 else None

    @property
    def definitions(self) -> tuple[Definition, ...]:
        return tuple(d for d in self.state.definitions if d.tensor is self)


@dataclass(frozen=True, slots=True, eq=False)
class Definition:
    """One equation as the user wrote it.

    kind:     "define", "sum" (`+=`) or "prod" (`*=`)
    sizes:    what the names of sizes mean in the op that wrote it
    is_whole: written by the library for whole-tensor arithmetic, where extents must agree
    is_contraction: a sum of products whose order is free
    """

    tensor: Handle
    subscripts: tuple[Expr, ...]
    value: Expr
    kind: Literal["define", "sum", "prod"]
    sizes: Mapping[str, Affine]
    span: Span | None
    is_whole: bool = True
    is_contraction: bool = False


@dataclass(slots=True, eq=False)
class State:
    """A trace in progress. It changes while the user's function runs, and ends as a `Program`.

    make:       makes a tensor the user can hold
    sizes:      what the names of sizes mean in the op being read; a name that is missing means itself
    conditions: what inlined ops ask of the sizes
    agreements: what they, and extents that were used, ask of extents that are not known yet
    dtypes_due: tensors handed to inlined ops whose parameter fixes a dtype
    used_extents: extents of local tensors that equations were written with, whether despite guards, and where
    found_extents: what `extents` has found so far
    """

    name: str
    make: Callable[..., Handle]
    sizes: Mapping[str, Affine] = field(default_factory=dict)
    tensors: list[Handle] = field(default_factory=list)
    definitions: list[Definition] = field(default_factory=list)
    conditions: list[Condition] = field(default_factory=list)
    agreements: list[Agreement | UsedExtent] = field(default_factory=list)
    dtypes_due: list[tuple[Handle, DType, str, Span | None]] = field(default_factory=list)
    used_extents: list[tuple[Handle, tuple[Affine | None, ...], bool, Span | None]] = field(default_factory=list)
    found_extents: dict[tuple[Handle, bool], list[Any]] = field(default_factory=dict)
    depth: int = 0

    def new_tensor(
        self,
        name: str,
        *,
        role: Role = "local",
        dtype: DType | None = None,
        dims: tuple[Affine, ...] | None = None,
        rank: int | None = None,
    ) -> Handle:
        """A tensor with a name of its own: `name`, or `name_1`, `name_2`, ... where it is taken."""
        unique = fresh_name(name, {tensor.name for tensor in self.tensors})
        tensor = self.make(self, unique, role=role, dtype=dtype, dims=dims, rank=rank, span=user_span())
        self.tensors.append(tensor)
        return tensor

    def define(
        self,
        tensor: Handle,
        subscripts: tuple[Expr, ...],
        value: Expr,
        kind: Literal["define", "sum", "prod"] = "define",
        span: Span | None = None,
        *,
        is_whole: bool = True,
        is_contraction: bool = False,
    ) -> None:
        """Records an equation. Raises `DefinitionError` for an input and for a wrong number of subscripts.

        is_whole:       False for an equation that the user wrote, index by index
        is_contraction: a sum of products whose order is free
        """
        span = span or user_span()
        if tensor.role == "input":
            raise DefinitionError(
                f"'{tensor.name}' is a parameter and cannot be defined",
                where=span,
                why="A parameter has the values of the caller's array.",
                fix="define a new tensor, y = po.tensor('y'), and return it; out= writes it in place.",
                facts={"tensor": tensor.name},
            )
        if tensor.rank is None:
            tensor.rank = len(subscripts)
        check_rank(tensor, len(subscripts), span)
        self.definitions.append(Definition(tensor, subscripts, value, kind, self.sizes, span, is_whole, is_contraction))


def check_rank(tensor: Handle, count: int, span: Span | None) -> None:
    """Raises `DefinitionError` where `count` subscripts do not fit the tensor's rank."""
    if tensor.rank is not None and tensor.rank != count:
        raise DefinitionError(
            f"'{tensor.name}' has {tensor.rank} dimension{'s' * (tensor.rank != 1)} and is given {count} "
            f"subscript{'s' * (count != 1)}",
            where=span,
            why=f"Its rank comes from {_rank_source(tensor)}.",
            fix=f"write {tensor.name}[{', '.join('ijklmnpqrs'[: tensor.rank]) or '()'}].",
            facts={"tensor": tensor.name, "rank": tensor.rank, "subscripts": count},
        )


def _rank_source(tensor: Handle) -> str:
    if tensor.role == "input":
        return "the parameter's annotation or argument"
    if tensor.dims is not None:
        return "shape="
    first = next((d.span for d in tensor.definitions), None)
    return f"its first definition, {first}" if first else "its first definition"


def fresh_name(name: str, taken: set[str]) -> str:
    """`name` where it is free, else the first free one of `name_1`, `name_2`, ..."""
    if name not in taken:
        return name
    count = 1
    while f"{name}_{count}" in taken:
        count += 1
    return f"{name}_{count}"


# --- the active trace ------------------------------------------------------------------------------------------------

_ACTIVE: ContextVar[State | None] = ContextVar("polyopt_trace", default=None)


def active() -> State | None:
    """The trace in progress in this thread or task."""
    return _ACTIVE.get()


def require(what: str) -> State:
    """The trace in progress. Raises `DefinitionError` outside an op."""
    state = _ACTIVE.get()
    if state is None:
        raise DefinitionError(
            f"{what} only has a meaning inside an op",
            where=user_span(),
            fix="use it in a function decorated with @po.op.",
        )
    return state


@contextmanager
def activated(state: State) -> Iterator[State]:
    token = _ACTIVE.set(state)
    try:
        yield state
    finally:
        _ACTIVE.reset(token)


def sugar_indices(count: int, taken: int = 0) -> tuple[Index, ...]:
    """Fresh indices for equations that the library writes: i, j, k, ... from the `taken`-th letter."""
    return tuple(Index("ijklmnpqrs"[n] if n < 10 else f"i{n}") for n in range(taken, taken + count))


__all__ = ["Boundary", "Definition", "Handle", "State", "activated", "active", "require"]
