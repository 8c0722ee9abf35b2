"""How a compiler works: one thread at a time, where there is room for what it calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, overload

from polyopt.dsl.ir import Program
from polyopt.errors import DefinitionError
from polyopt.room import with_room

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)


def working(program: Program, make: Callable[[], Value]) -> Value:
    """What `make` returns, as `with_room` runs it: expressions of a thousand terms have room, each level takes a few
    calls.

    Raises what `make` raises, and `DefinitionError` where an expression is nested more deeply than that.
    """
    try:
        return with_room(make)
    except RecursionError:
        raise DefinitionError(
            f"an expression of op '{program.name}' is nested too deeply to compile",
            where=next((equation.span for equation in program.equations), None),
            why="It has more than a thousand operations inside each other.",
            fix="give parts of it tensors of their own, or sum over an index instead of in a Python loop",
            facts={"op": program.name},
        ) from None


class HasProgram(Protocol):
    """What has stages: something made of a program."""

    @property
    def program(self) -> Program:
        """The equations."""
        ...


class stage(Generic[Value_co]):
    """A property that is computed once, as `working` does, whoever looks at it, in whatever thread."""

    def __init__(self, compute: Callable[[Any], Value_co]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type[Any] | None = None) -> stage[Value_co]: ...
    @overload
    def __get__(self, instance: HasProgram, owner: type[Any] | None = None) -> Value_co: ...
    def __get__(self, instance: HasProgram | None, owner: type[Any] | None = None) -> stage[Value_co] | Value_co:
        if instance is None:
            return self
        kept = vars(instance)  # from now on it is found there, before this

        def compute() -> Value_co:
            if self._name not in kept:
                kept[self._name] = self._compute(instance)
            found: Value_co = kept[self._name]
            return found

        return working(instance.program, compute)
