"""Runs an op's function once on symbolic tensors and collects its equations as a `Program`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl.affine import Affine
from polyopt.dsl.elaborate import elaborate
from polyopt.dsl.expr import Convert, Element, Expr, InScope, Size, Weakened, free_indices, try_expr, walk
from polyopt.dsl.extents import check_used, known_extents
from polyopt.dsl.ir import Program
from polyopt.dsl.recognise import InnerSizes, NotAffine, affine_of, extent_of, refusal, size_scope
from polyopt.dsl.results import Structure, as_result, flatten, value_tensor
from polyopt.dsl.signature import Parameter, Signature
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import Handle, State, activated, active, require
from polyopt.dsl.tensor import Tensor
from polyopt.dsl.verify import verify
from polyopt.dtypes import DType
from polyopt.errors import ArgumentError, DefinitionError, ShapeError, Span

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
        returned = function(*positional, **arguments)
        leaves, structure = flatten(returned, signature)
        results = _as_results(state, leaves, signature.span)
    check_used(state)
    program = _elaborate(state, parameters, results, signature)
    verify(program)
    return Traced(program, structure)


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
        if parameter.kind == "constant" or (parameter.kind == "unannotated" and spec is None):
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
    wanted = parameter.constant_type
    accepted = _ACCEPTED.get(wanted, wanted)
    if wanted is None or (isinstance(value, accepted) and not (wanted is int and isinstance(value, bool))):
        return wanted(value) if wanted in _ACCEPTED else value
    raise ArgumentError(
        f"parameter '{parameter.name}' is a compile-time {wanted.__name__} and is given {_given_text(value)}",
        why="It is known when the op is compiled, and decides which equations it has.",
        fix=f"pass a Python {wanted.__name__}, or annotate the parameter with a dtype to give it at each call.",
        facts={"parameter": parameter.name, "type": type(value).__name__},
    )


_ACCEPTED: Mapping[object, Any] = {int: int | np.integer, float: int | float | np.number, bool: bool | np.bool_}


def _given_text(value: object) -> str:
    kind = type(value).__name__
    return f"{value!r}, a {kind}" if isinstance(value, bool | int | float | str | np.generic) else f"a {kind}"


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


# --- ops calling ops -------------------------------------------------------------------------------------------------


def is_tracing() -> bool:
    """Whether an op's function is being read in this thread."""
    return active() is not None


def inline(
    function: Callable[..., object], signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Reads another op's equations into the trace in progress, with the caller's tensors in place of its parameters.

    The names of sizes in the other op mean the extents of what it is given. Returns tensors in the structure that
    the function returns. Raises `ArgumentError` for arguments that do not fit the parameters.
    """
    state = require("calling an op")
    bound = _bound(signature, args, kwargs)
    outer, span = state.sizes, user_span()
    sizes = InnerSizes()
    arguments = {p.name: _inlined(state, p, bound[p.name], outer, span) for p in signature.parameters}
    for parameter in signature.parameters:
        _bind_sizes(state, parameter, arguments[parameter.name], sizes, span)
    state.sizes = sizes
    try:
        positional = [
            arguments.pop(p.name) for p in signature.parameters if p.python_kind == p.python_kind.POSITIONAL_ONLY
        ]
        leaves, structure = flatten(function(*positional, **arguments), signature)
    finally:
        state.sizes = outer
    return structure.rebuild(
        [leaf if isinstance(leaf, Handle) else _returned(leaf, sizes, signature) for leaf in leaves]
    )


def _bound(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in kwargs.items() if name != "out"}
    if "out" in kwargs and "out" not in signature.python.parameters:
        raise ArgumentError(
            "out= has no meaning inside an op",
            where=user_span(),
            why="The equations say what values are; where they are stored is decided when the outer op is compiled.",
            fix="use the returned tensor.",
        )
    try:
        bound = signature.python.bind(*args, **given)
    except TypeError as problem:
        raise ArgumentError(
            f"{signature.name}: {problem}", where=user_span(), fix=f"its signature is {signature}."
        ) from None
    bound.apply_defaults()
    return dict(bound.arguments)


def _inlined(state: State, parameter: Parameter, value: Any, sizes: Mapping[str, Affine], span: Span | None) -> Any:
    """An argument as the inner function sees it. What mentions sizes keeps the caller's meaning of them."""
    if parameter.kind == "constant":
        return value
    if isinstance(value, Handle):
        rank = len(parameter.dims)
        if parameter.kind in ("tensor", "scalar"):
            _check_inlined_rank(parameter, value, rank, span)
            assert parameter.dtype is not None, "a typed parameter has a dtype"
            state.dtypes_due.append((value, parameter.dtype, parameter.name, span))
        return Element(value, ()) if parameter.kind == "scalar" else value
    expr = try_expr(value)
    if expr is None:
        if parameter.kind == "unannotated":
            return value
        raise ArgumentError(
            f"parameter '{parameter.name}' is given {type(value).__name__}",
            where=span,
            fix="pass a tensor of the op.",
            facts={"parameter": parameter.name},
        )
    return _inlined_value(state, parameter, InScope(expr, sizes), value)


def _inlined_value(state: State, parameter: Parameter, expr: Expr, value: Any) -> Any:
    if parameter.kind == "unannotated":
        return expr if isinstance(value, Expr) else value
    assert parameter.dtype is not None, "a typed parameter has a dtype"
    if parameter.kind == "scalar":
        return Convert(expr, parameter.dtype)
    free = free_indices(expr)
    if parameter.dims or free:
        given = f"a value per index '{free[0].name}'" if free else "a single value"
        raise ArgumentError(
            f"parameter '{parameter.name}' is a tensor of rank {len(parameter.dims)} and is given {given}",
            where=expr.span,
            fix="define a tensor with these values and pass that.",
            facts={"parameter": parameter.name},
        )
    tensor = state.new_tensor(parameter.name, rank=0, dtype=parameter.dtype)
    state.define(tensor, (), expr)
    return tensor


def _check_inlined_rank(parameter: Parameter, tensor: Handle, rank: int, span: Span | None) -> None:
    if tensor.rank is None:
        tensor.rank = rank
    if tensor.rank != rank:
        raise ShapeError(
            f"parameter '{parameter.name}' has rank {rank} and is given '{tensor.name}' of rank {tensor.rank}",
            where=span,
            fix="slice it or give it another dimension with x[:, None].",
            facts={"parameter": parameter.name, "rank": tensor.rank},
        )


def _bind_sizes(state: State, parameter: Parameter, value: Any, sizes: InnerSizes, span: Span | None) -> None:
    """Gives the names of sizes in a parameter's annotation their meaning; two meanings of one name must agree."""
    if parameter.kind != "tensor" or not isinstance(value, Handle):
        return
    for position, (dim, extent) in enumerate(zip(parameter.dims, known_extents(value), strict=True)):
        if extent is None:
            names = (node.name for node in walk(dim) if isinstance(node, Size) and node.name not in sizes)
            sizes.unknown.update(dict.fromkeys(names, value.name))
            continue
        try:
            wanted = affine_of(dim, size_scope({}))
        except NotAffine as problem:
            raise refusal(problem, f"an extent of parameter '{parameter.name}' is not affine in sizes") from None
        unsolved = [atom for atom, _ in wanted.terms if isinstance(atom, af.SizeRef) and atom.name not in sizes]
        if len(unsolved) == 1 and wanted.coefficient(unsolved[0]) == 1:
            rest = af.substitute(wanted - af.size(unsolved[0].name), lambda atom: sizes.get(getattr(atom, "name", "")))
            sizes[unsolved[0].name] = extent - rest
            sizes.unknown.pop(unsolved[0].name, None)
        elif not unsolved:
            _require_equal(state, parameter, position, _in_scope(wanted, sizes), extent, value, span)


def _in_scope(affine: Affine, sizes: Mapping[str, Affine]) -> Affine:
    return af.substitute(affine, lambda atom: sizes.get(atom.name) if isinstance(atom, af.SizeRef) else None)


def _require_equal(
    state: State, parameter: Parameter, position: int, wanted: Affine, extent: Affine, tensor: Handle, span: Span | None
) -> None:
    difference = wanted - extent
    if not difference.is_constant:
        state.conditions.append(af.Compare(difference, "=="))
    elif difference.constant:
        raise ShapeError(
            f"dimension {position} of '{parameter.name}' has extent {wanted}, and {extent} in '{tensor.name}'",
            where=span,
            fix="pass a tensor whose extents fit.",
            facts={"parameter": parameter.name, "dimension": position, "wanted": str(wanted), "given": str(extent)},
        )


def _returned(leaf: Any, sizes: Mapping[str, Affine], signature: Signature) -> Any:
    expr = try_expr(leaf)
    if expr is None:
        raise DefinitionError(
            f"op '{signature.name}' returns {type(leaf).__name__}",
            where=signature.span,
            fix="return the tensor, or a tuple or dict of tensors.",
        )
    return InScope(expr, sizes)


__all__ = ["Traced", "inline", "is_tracing", "trace", "unannotated_dims", "value_tensor"]
