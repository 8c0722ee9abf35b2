"""Runs an op's function once on symbolic tensors and collects its equations as a `Program`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl.affine import Affine
from polyopt.dsl.elaborate import elaborate
from polyopt.dsl.expr import Element, Expr, Index, Weakened, source_text
from polyopt.dsl.extents import check_used, used_extents
from polyopt.dsl.ir import Program
from polyopt.dsl.recognise import extent_of
from polyopt.dsl.results import Structure, as_result, flatten, value_tensor
from polyopt.dsl.signature import Parameter, Signature
from polyopt.dsl.state import Handle, State, activated, active
from polyopt.dsl.tensor import Tensor
from polyopt.dsl.verify import verify
from polyopt.dtypes import DType
from polyopt.errors import ArgumentError, DefinitionError, Span, with_article
from polyopt.room import with_room

Given = Mapping[
    str,
    tuple[DType, int]
    | tuple[DType, int, tuple[bool, ...]]
    | tuple[DType, int, tuple[bool, ...], bool, tuple[int, int] | None],
]


@dataclass(frozen=True, slots=True, eq=False)
class Traced:
    """An op's equations, and how its results are put together: `structure.rebuild(list of arrays)`."""

    program: Program
    structure: Structure


def trace(
    function: Callable[..., object],
    signature: Signature,
    constants: Mapping[str, object],
    given: Given,
    sizes: Mapping[str, int] | None = None,
) -> Traced:
    """The program of `function`, sizes symbolic and ranges not resolved.

    constants: values of the compile-time parameters
    given:     dtype and rank of each unannotated tensor parameter; a third part says which extents are 1, so that
               NumPy's broadcasting can repeat them, a fourth whether it is a Python number, whose dtype is weak
    sizes:     sizes that are numbers already. A function that multiplies sizes (a flattening reshape) raises
               `NeedsSizes` without them.

    Raises `DefinitionError`, `DTypeError` and `ShapeError` with the user's line.
    """
    known = {name: af.constant(value) for name, value in (sizes or {}).items()}
    state = State(signature.name, Tensor, known)
    with activated(state):
        arguments, parameters = _arguments(state, signature, constants, given)
        positional = [
            arguments.pop(p.name) for p in signature.parameters if p.python_kind == p.python_kind.POSITIONAL_ONLY
        ]
        returned = _returned(function, positional, arguments, signature)
        leaves, structure = flatten(returned, signature)
        results = _as_results(state, leaves, signature.span)
    return Traced(with_room(lambda: _collected(state, parameters, results, signature)), structure)


def _collected(state: State, parameters: list[Handle], results: list[Handle], signature: Signature) -> Program:
    """The program of what the function said."""
    check_used(state)
    state.agreements += used_extents(state)
    program = _elaborate(state, parameters, results, signature)
    verify(program)
    return program


def _returned(
    function: Callable[..., Any], positional: Sequence[Any], arguments: Mapping[str, Any], signature: Signature
) -> Any:
    """What the user's function returns for symbols."""
    try:
        return function(*positional, **arguments)
    except RecursionError:
        raise DefinitionError(
            f"op '{signature.name}' calls functions inside each other without end",
            where=signature.span,
            why="What it calls runs as the equations are read, ops too, and one of these leads back to itself.",
            fix="let a tensor refer to itself instead: u[t + 1, i] = f(u[t, i]).",
        ) from None


def _elaborate(state: State, parameters: list[Handle], results: list[Handle], signature: Signature) -> Program:
    try:
        return elaborate(state, parameters, results)
    except RecursionError:
        raise DefinitionError(
            f"an expression of op '{signature.name}' is nested too deeply",
            where=signature.span,
            why="It has hundreds of operations inside each other.",
            fix="give parts of it tensors of their own, or sum over an index instead of in a Python loop.",
        ) from None


def _as_results(state: State, leaves: list[Any], span: Span) -> list[Handle]:
    results: dict[Handle, None] = {}
    for leaf in leaves:
        results[as_result(state, leaf, set(results), span)] = None
    return list(results)


def _arguments(
    state: State, signature: Signature, constants: Mapping[str, object], given: Given
) -> tuple[dict[str, Any], list[Handle]]:
    """What the function is called with, and the input tensors among it."""
    arguments: dict[str, Any] = {}
    parameters: list[Handle] = []
    for parameter in signature.parameters:
        spec = given.get(parameter.name)
        is_none = parameter.is_optional and parameter.name in constants
        if parameter.kind == "constant" or is_none or (parameter.kind == "unannotated" and spec is None):
            arguments[parameter.name] = _constant(parameter, constants)
            continue
        tensor = _input(state, parameter, spec)
        parameters.append(tensor)
        is_value = parameter.kind == "scalar" or _is_weak(spec)
        arguments[parameter.name] = _value(tensor, spec) if is_value else tensor
    return arguments, parameters


def _value(tensor: Handle, spec: Any) -> Expr:
    """A run-time scalar as the function sees it; what was given as a Python number is weak."""
    if not _is_weak(spec):
        return Element(tensor, ())
    reach = spec[4] if len(spec) > 4 else None
    return Weakened(Element(tensor, ()), "b" if spec[0].is_bool else "f" if spec[0].is_float else "i", reach)


def _is_weak(spec: Any) -> bool:
    """Whether a parameter without annotation was given a Python number."""
    return spec is not None and len(spec) > 3 and bool(spec[3])


def _constant(parameter: Parameter, constants: Mapping[str, object]) -> object:
    if parameter.name in constants:
        return checked_constant(parameter, constants[parameter.name])
    if parameter.has_default:
        return parameter.default
    raise ArgumentError(
        f"parameter '{parameter.name}' has no value",
        why="It is known when the op is compiled, and decides which equations it has.",
        fix=f"pass {parameter.name}=...",
        facts={"parameter": parameter.name},
    )


def checked_constant(parameter: Parameter, value: object) -> object:
    """The value of a compile-time parameter as its annotation has it. Raises `ArgumentError` for another type."""
    if value is None and parameter.is_optional:
        return None
    wanted = parameter.constant_type
    accepted = _ACCEPTED.get(wanted, wanted)
    if wanted is None or (isinstance(value, accepted) and not (wanted is int and isinstance(value, bool))):
        try:
            return wanted(value) if wanted in _ACCEPTED else value
        except OverflowError:
            raise ArgumentError(
                f"parameter '{parameter.name}' is given a number beyond those of a float",
                fix="pass a number below 2**1024",
                facts={"parameter": parameter.name},
            ) from None
    raise ArgumentError(
        f"parameter '{parameter.name}' is a compile-time {wanted.__name__} and is given {_given_text(value)}",
        why="It is known when the op is compiled, and decides which equations it has.",
        fix=f"pass a Python {wanted.__name__}, or annotate the parameter with a dtype to give it at each call.",
        facts={"parameter": parameter.name, "type": type(value).__name__},
    )


_ACCEPTED: Mapping[object, Any] = {int: int | np.integer, float: int | float | np.number, bool: bool | np.bool_}


def _given_text(value: object) -> str:
    if isinstance(value, Index):
        return f"the index '{value.name}'"
    if isinstance(value, Expr):
        return f"'{source_text(value)}', which is known at each call"
    if isinstance(value, Handle):
        return f"the tensor '{value.name}'"
    kind = type(value).__name__
    shown = with_article(kind)
    return f"{value!r}, {shown}" if isinstance(value, bool | int | float | str | np.generic) else shown


def _input(state: State, parameter: Parameter, spec: Any) -> Handle:
    if parameter.kind == "unannotated":
        return state.new_tensor(
            parameter.name, role="input", dtype=spec[0], dims=unannotated_dims(state.sizes, parameter.name, spec)
        )
    dims = tuple(extent_of(dim, state.sizes, f"an extent of parameter '{parameter.name}'") for dim in parameter.dims)
    return state.new_tensor(parameter.name, role="input", dtype=parameter.dtype, dims=dims)


def unannotated_dims(sizes: Mapping[str, Affine], name: str, spec: Any) -> tuple[Affine, ...]:
    """Extents of an unannotated parameter: sizes `x_0`, `x_1`, ..., or 1 where that is known."""
    units = spec[2] if len(spec) > 2 else (False,) * spec[1]
    names = [f"{name}_{n}" for n in range(spec[1])]
    return tuple(
        af.constant(1) if unit else sizes.get(dim, af.size(dim)) for dim, unit in zip(names, units, strict=True)
    )


def is_tracing() -> bool:
    """Whether an op's function is being read in this thread."""
    return active() is not None


__all__ = ["Traced", "is_tracing", "trace", "unannotated_dims", "value_tensor"]
