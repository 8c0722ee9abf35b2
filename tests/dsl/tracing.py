"""Traces functions to programs, and prints their equations, for the tests of the front end."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from polyopt.dsl.ir import Program
from polyopt.dsl.signature import read_signature
from polyopt.dsl.text import equation_text
from polyopt.dsl.trace import Given, Traced, trace


def traced(
    function: Callable[..., object],
    given: Given | None = None,
    sizes: Mapping[str, int] | None = None,
    **constants: Any,
) -> Traced:
    """The trace of a function with these compile-time constants."""
    return trace(function, read_signature(function), constants, given or {}, sizes)


def program(
    function: Callable[..., object],
    given: Given | None = None,
    sizes: Mapping[str, int] | None = None,
    **constants: Any,
) -> Program:
    return traced(function, given, sizes, **constants).program


def equations(function: Callable[..., object], given: Given | None = None, **constants: Any) -> list[str]:
    """The function's equations, one line each."""
    return [equation_text(equation) for equation in program(function, given, **constants).equations]


def dtypes(function: Callable[..., object], given: Given | None = None, **constants: Any) -> dict[str, str]:
    """The dtype of each tensor that is no input."""
    found = program(function, given, **constants)
    return {tensor.name: str(tensor.dtype) for tensor in found.tensors if tensor.role != "input"}
