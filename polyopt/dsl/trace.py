"""Runs an op's function once on symbolic tensors and collects its equations as a `Program`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl.affine import Affine
from polyopt.dsl.elaborate import elaborate
from polyopt.dsl.expr import AffineSize, Convert, Element, Expr, InScope, Size, Weakened, free_indices, try_expr, walk
from polyopt.dsl.extents import check_used, known_extents
from polyopt.dsl.integers import integer_range
from polyopt.dsl.ir import Program
from polyopt.dsl.recognise import InnerSizes, NotAffine, affine_of, extent_of, refusal, size_scope
from polyopt.dsl.results import Structure, as_result, flatten, value_tensor
from polyopt.dsl.signature import Parameter, Signature
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import Handle, State, activated, active, require
from polyopt.dsl.tensor import Tensor
from polyopt.dsl.verify import verify
from polyopt.dtypes import DType
from polyopt.errors import ArgumentError, DefinitionError, DTypeError, ShapeError, Span

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
    _bind_sizes(state, signature, arguments, sizes, span)
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
        meant = _in_root(value, sizes)
        return meant if isinstance(meant, Expr) else checked_constant(parameter, meant)
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
            return _in_root(value, sizes)
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
        _check_number(parameter, value, expr.span)
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


def _in_root(value: Any, sizes: Mapping[str, Affine]) -> Any:
    """A compile-time value with the caller's meaning of the sizes in it, as the inner op has names of its own."""
    if type(value) in (tuple, list):
        return type(value)(_in_root(part, sizes) for part in value)
    if type(value) is dict:
        return {key: _in_root(part, sizes) for key, part in value.items()}
    if not isinstance(value, Expr):
        return value
    try:
        return AffineSize(affine_of(value, size_scope(sizes)))
    except NotAffine:
        return InScope(value, sizes)


def _check_number(parameter: Parameter, value: Any, span: Span | None) -> None:
    """Raises `DTypeError` or `ArgumentError` where a number is none of the parameter's dtype, as at a call."""
    assert parameter.dtype is not None, "a scalar has a dtype"
    if not isinstance(value, bool | int | float | np.number) or parameter.dtype.is_float or parameter.dtype.is_bool:
        return
    facts = {"parameter": parameter.name, "dtype": str(parameter.dtype)}
    if isinstance(value, float | np.floating):
        raise DTypeError(
            f"the scalar '{parameter.name}' is {value!r}, but the signature says {parameter.dtype}",
            where=span,
            fix=f"convert it: po.cast(..., {parameter.dtype}).",
            facts=facts,
        )
    low, high = integer_range(parameter.dtype)
    if not low <= value <= high:
        raise ArgumentError(
            f"the scalar '{parameter.name}' is {value}, which does not fit in {parameter.dtype}",
            where=span,
            fix="change the annotation to a wider dtype",
            facts=facts,
        )


@dataclass(frozen=True, slots=True)
class _Extent:
    """An extent of a parameter. wanted: over the inner op's sizes; given: what the tensor has, over the root's"""

    parameter: Parameter
    position: int
    wanted: Affine
    given: Affine
    tensor: Handle


def _bind_sizes(
    state: State, signature: Signature, arguments: Mapping[str, Any], sizes: InnerSizes, span: Span | None
) -> None:
    """Gives the names of sizes in annotations their meaning, as a call does; two meanings of one name must agree."""
    pending: list[_Extent] = []
    for parameter in signature.parameters:
        value = arguments[parameter.name]
        if parameter.kind != "tensor" or not isinstance(value, Handle):
            continue
        for position, (dim, extent) in enumerate(zip(parameter.dims, known_extents(value), strict=True)):
            sizes.unknown.update(dict.fromkeys((n.name for n in walk(dim) if isinstance(n, Size)), value.name))
            if extent is not None:
                pending.append(_Extent(parameter, position, _annotated(parameter, dim), extent, value))
    while pending:
        left = [extent for extent in pending if not _solve(state, extent, sizes, span)]
        if len(left) == len(pending):
            return  # what is still open is unknown
        pending = left


def _annotated(parameter: Parameter, dim: Expr) -> Affine:
    try:
        return affine_of(dim, size_scope({}))
    except NotAffine as problem:
        raise refusal(problem, f"an extent of parameter '{parameter.name}' is not affine in sizes") from None


def _solve(state: State, extent: _Extent, sizes: InnerSizes, span: Span | None) -> bool:
    """Uses one extent: checks it where all its sizes are known, solves it where one is missing; False for later."""
    open_sizes = [name for name in af.sizes_of(extent.wanted) if name not in sizes]
    if not open_sizes:
        _require_equal(state, extent, _in_scope(extent.wanted, sizes), span)
        return True
    name, factor = open_sizes[0], extent.wanted.coefficient(af.SizeRef(open_sizes[0]))
    rest = extent.wanted - af.size(name) * factor
    if len(open_sizes) > 1 or factor <= 0 or name in af.sizes_of(rest):
        return False
    times = extent.given - _in_scope(rest, sizes)
    value = times // factor
    if times.is_constant and (times.constant % factor or times.constant < 0):
        raise ShapeError(
            f"{extent.parameter.name}.shape[{extent.position}] is {extent.given} in '{extent.tensor.name}', "
            f"which '{extent.wanted}' cannot be",
            where=span,
            fix="pass a tensor whose extents fit.",
            facts={"parameter": extent.parameter.name, "dimension": extent.position},
        )
    if not (times % factor).is_constant:
        state.conditions.append(af.Compare(times % factor, "=="))
    if not af.is_nonnegative(times):
        state.conditions.append(af.Compare(times, ">="))
    sizes[name] = value
    sizes.unknown.pop(name, None)
    return True


def _in_scope(affine: Affine, sizes: Mapping[str, Affine]) -> Affine:
    return af.substitute(affine, lambda atom: sizes.get(atom.name) if isinstance(atom, af.SizeRef) else None)


def _require_equal(state: State, extent: _Extent, wanted: Affine, span: Span | None) -> None:
    difference = wanted - extent.given
    if not difference.is_constant:
        state.conditions.append(af.Compare(difference, "=="))
    elif difference.constant:
        raise ShapeError(
            f"dimension {extent.position} of '{extent.parameter.name}' has extent {wanted}, and {extent.given} in "
            f"'{extent.tensor.name}'",
            where=span,
            fix="pass a tensor whose extents fit.",
            facts={
                "parameter": extent.parameter.name,
                "dimension": extent.position,
                "wanted": str(wanted),
                "given": str(extent.given),
            },
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
