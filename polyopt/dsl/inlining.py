"""Ops that call ops: the equations of one are read into the trace of the other, with the same checks as a call.

What an op is given keeps the caller's meaning of sizes. The sizes of the inlined op are solved from the extents of its
arguments, as at a call, but symbolically: each is an affine expression over the caller's, and what the annotations say
beyond that is asked of the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from types import FunctionType
from typing import Any

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl.affine import Affine, Condition, SizeRef
from polyopt.dsl.expr import (
    AffineSize,
    Element,
    Expr,
    Index,
    Passed,
    Size,
    free_indices,
    in_scope,
    source_text,
    try_expr,
    walk,
)
from polyopt.dsl.extents import known_extents
from polyopt.dsl.ir import Agreement
from polyopt.dsl.recognise import (
    InnerSizes,
    NeedsSizes,
    NotAffine,
    Scope,
    affine_of,
    fold,
    is_data,
    range_sizes,
    refusal,
    size_scope,
)
from polyopt.dsl.results import flatten
from polyopt.dsl.signature import Parameter, Signature
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import Handle, State, require
from polyopt.dsl.subscripts import as_size
from polyopt.dsl.trace import checked_constant
from polyopt.dtypes import DType, f64
from polyopt.errors import ArgumentError, CallError, DefinitionError, DTypeError, ShapeError, Span

AsScalar = Callable[[Any, DType, str], np.ndarray]
"""A number as a 0-d array of a scalar parameter's dtype, or the error of a call with it."""


@dataclass(frozen=True, slots=True, eq=False)
class _Call:
    """A call in the trace `state`. sizes: what the names of sizes mean in the caller."""

    state: State
    signature: Signature
    sizes: Mapping[str, Affine]
    span: Span | None
    as_scalar: AsScalar


def inline(
    function: Callable[..., object],
    signature: Signature,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    as_scalar: AsScalar,
) -> Any:
    """Reads another op's equations into the trace in progress, with the caller's tensors in place of its parameters.

    The names of sizes in the other op mean the extents of what it is given. Returns tensors in the structure that
    the function returns. Raises `ArgumentError`, `ShapeError` and `DTypeError` for arguments that do not fit the
    parameters.
    """
    state = require("calling an op")
    call = _Call(state, signature, state.sizes, user_span(), as_scalar)
    given = _given(signature, args, kwargs)
    arguments = {p.name: _argument_here(call, p, given) for p in signature.parameters}
    sizes = _solved(call, arguments)
    for index in _indices_in(tuple(given.values())):
        sizes.given[index] = range_sizes(index, call.sizes)
    state.sizes = sizes
    try:
        positional = [
            arguments.pop(p.name) for p in signature.parameters if p.python_kind == p.python_kind.POSITIONAL_ONLY
        ]
        leaves, structure = flatten(function(*positional, **arguments), signature)
    finally:
        state.sizes = call.sizes
    return structure.rebuild(
        [leaf if isinstance(leaf, Handle) else _returned(leaf, sizes, signature) for leaf in leaves]
    )


def _given(signature: Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """What the call gives, by parameter; defaults are left out."""
    if "out" in kwargs and "out" not in signature.python.parameters:
        raise ArgumentError(
            "out= has no meaning inside an op",
            where=user_span(),
            why="The equations say what values are; where they are stored is decided when the outer op is compiled.",
            fix="use the returned tensor.",
        )
    try:
        return signature.python.bind(*args, **kwargs).arguments
    except TypeError as problem:
        raise CallError(
            f"{signature.name}: {problem}", where=user_span(), fix=f"its signature is {signature}."
        ) from None


def _returned(leaf: Any, sizes: Mapping[str, Affine], signature: Signature) -> Any:
    expr = try_expr(leaf)
    if expr is None:
        raise DefinitionError(
            f"op '{signature.name}' returns {type(leaf).__name__}",
            where=signature.span,
            fix="return the tensor, or a tuple or dict of tensors.",
        )
    return in_scope(expr, sizes)


# --- arguments -------------------------------------------------------------------------------------------------------


def _argument_here(call: _Call, parameter: Parameter, given: Mapping[str, Any]) -> Any:
    try:
        return _argument(call, parameter, given)
    except (ArgumentError, DTypeError) as error:
        error.where = error.where or call.span
        raise


def _argument(call: _Call, parameter: Parameter, given: Mapping[str, Any]) -> Any:
    """An argument as the inlined op sees it: a default is its own, what is given keeps the caller's meaning."""
    is_given = parameter.name in given
    value = _for_callee(given[parameter.name], call.sizes) if is_given else parameter.default
    if parameter.kind == "unannotated" or (value is None and parameter.is_optional):
        return value
    if parameter.kind == "constant":
        return _constant(call, parameter, value) if is_given else checked_constant(parameter, value)
    if isinstance(value, Handle):
        return _tensor(call, parameter, value)
    assert parameter.dtype is not None, "a typed parameter has a dtype"
    if parameter.kind == "scalar" or isinstance(value, bool | int | float):
        value = _number(call, parameter, value)
    expr = try_expr(value)
    if expr is None:
        raise ArgumentError(
            f"parameter '{parameter.name}' is given {type(value).__name__}",
            where=call.span,
            fix="pass a tensor of the op.",
            facts={"parameter": parameter.name},
        )
    passed = Passed(expr, parameter.dtype, parameter.name, is_exact=parameter.kind == "tensor")
    return passed if parameter.kind == "scalar" else _single(call, parameter, passed)


def _for_callee(value: Any, sizes: Mapping[str, Affine]) -> Any:
    """A value in which sizes, those inside of containers too, keep the caller's meaning in another op."""
    if isinstance(value, Expr):
        return _expr_for_callee(value, sizes)
    if type(value) is FunctionType:
        return _function_for_callee(value, sizes)
    if isinstance(value, slice):
        return slice(*(_for_callee(part, sizes) for part in (value.start, value.stop, value.step)))
    if type(value) is dict:
        return {_for_callee(key, sizes): _for_callee(part, sizes) for key, part in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)._make(_for_callee(part, sizes) for part in value)  # type: ignore[attr-defined]  # a named tuple
    if type(value) in (tuple, list, set, frozenset):
        return type(value)(_for_callee(part, sizes) for part in value)
    return value


def _function_for_callee(function: Callable[..., Any], sizes: Mapping[str, Affine]) -> Callable[..., Any]:
    """A function that the caller wrote: sizes in it are the caller's, wherever it is called."""

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        state = require("calling a function of the caller")
        here = state.sizes
        given, named = _for_callee(args, here), {name: _for_callee(value, here) for name, value in kwargs.items()}
        state.sizes = sizes
        try:
            return _for_callee(function(*given, **named), sizes)
        finally:
            state.sizes = here

    return call


def _expr_for_callee(expr: Expr, sizes: Mapping[str, Affine]) -> Any:
    if isinstance(expr, Index):
        return expr
    if not _has_sizes(expr) or is_data(expr) or free_indices(expr):
        return in_scope(expr, sizes)
    try:
        return as_size(affine_of(expr, size_scope(sizes)))
    except NotAffine:
        return in_scope(expr, sizes)


def _indices_in(value: Any) -> Iterator[Index]:
    """The indices among what is given, those inside of containers too."""
    if isinstance(value, Index):
        yield value
    elif isinstance(value, slice):
        yield from _indices_in((value.start, value.stop, value.step))
    elif isinstance(value, dict):
        yield from _indices_in((*value, *value.values()))
    elif isinstance(value, tuple | list | set | frozenset):
        for part in value:
            yield from _indices_in(part)


def _has_sizes(expr: Expr | None) -> bool:
    return expr is not None and any(isinstance(node, Size | AffineSize) for node in walk(expr))


def _constant(call: _Call, parameter: Parameter, value: Any) -> object:
    """A compile-time argument. A size is an integer that is known when compiling, and stays symbolic where it can."""
    if isinstance(value, AffineSize) and parameter.constant_type is int:
        return value
    if isinstance(value, AffineSize) and parameter.constant_type is float:
        raise NeedsSizes(
            f"parameter '{parameter.name}' is a compile-time float and is given the size '{source_text(value)}'",
            where=call.span,
            why="It is known when the op is compiled, and the size is symbolic.",
            fix="give the sizes as numbers (leave them out of dynamic=), or annotate the parameter with a dtype.",
            facts={"parameter": parameter.name},
        )
    if isinstance(value, Expr) and not is_data(value) and not free_indices(value):
        try:
            affine_of(value, size_scope(call.sizes))
        except NotAffine as problem:
            if problem.needs_sizes:
                raise refusal(problem, f"parameter '{parameter.name}' is known when the op is compiled") from None
    return checked_constant(parameter, value)


def _number(call: _Call, parameter: Parameter, value: Any) -> Any:
    """A number, checked and converted as at a call; anything else as it is."""
    if not isinstance(value, bool | int | float | np.generic | np.ndarray):
        return value
    dtype = parameter.dtype
    assert dtype is not None, "a typed parameter has a dtype"
    return call.as_scalar(value, f64 if dtype.is_float else dtype, parameter.name).item()


def _tensor(call: _Call, parameter: Parameter, tensor: Handle) -> Any:
    rank = len(parameter.dims)
    if tensor.rank is None:
        tensor.rank = rank
    if tensor.rank != rank:
        raise ShapeError(
            f"parameter '{parameter.name}' has rank {rank} and is given '{tensor.name}' of rank {tensor.rank}",
            where=call.span,
            fix="slice it or give it another dimension with x[:, None].",
            facts={"parameter": parameter.name, "rank": tensor.rank},
        )
    assert parameter.dtype is not None, "a typed parameter has a dtype"
    if parameter.kind == "scalar":
        return Passed(Element(tensor, ()), parameter.dtype, parameter.name, is_exact=False)
    call.state.dtypes_due.append((tensor, parameter.dtype, parameter.name, call.span))
    return tensor


def _single(call: _Call, parameter: Parameter, expr: Expr) -> Handle:
    """A tensor of rank 0 that holds a value."""
    free = free_indices(expr)
    if parameter.dims or free:
        given = f"a value per index '{free[0].name}'" if free else "a single value"
        raise ArgumentError(
            f"parameter '{parameter.name}' is a tensor of rank {len(parameter.dims)} and is given {given}",
            where=expr.span,
            fix="define a tensor with these values and pass that.",
            facts={"parameter": parameter.name},
        )
    tensor = call.state.new_tensor(parameter.name, rank=0, dtype=parameter.dtype)
    call.state.define(tensor, (), expr)
    return tensor


# --- sizes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Extent:
    """One dimension of a tensor argument. dim: what the annotation says; actual: what it is, in the caller's sizes."""

    parameter: str
    dim: Expr
    tensor: Handle
    dimension: int
    actual: Affine

    @property
    def indirection(self) -> tuple[bool, bool]:
        """What keeps a size from being plainly this extent."""
        return bool(af.extents_of(self.actual)), not isinstance(self.dim, Size)

    @property
    def names(self) -> tuple[str, ...]:
        """The sizes in the annotation."""
        return tuple(dict.fromkeys(node.name for node in walk(self.dim) if isinstance(node, Size)))


def _solved(call: _Call, arguments: Mapping[str, Any]) -> InnerSizes:
    """The sizes of the inlined op. Raises `ShapeError` where they do not follow from the arguments.

    An extent that is not known yet, and an annotation such as 2*N, give a size its value where nothing plainer does.
    """
    sizes = InnerSizes(call.signature.name)
    pending = sorted(_extents(call.signature, arguments), key=lambda extent: extent.indirection)
    while pending:
        solved = next((extent for extent in pending if _solve(call, extent, sizes)), None)
        if solved is None:
            raise _unsolvable(call, pending[0], sizes)
        pending.remove(solved)
    return sizes


def _extents(signature: Signature, arguments: Mapping[str, Any]) -> Iterator[_Extent]:
    for parameter in signature.parameters:
        tensor = arguments[parameter.name]
        if parameter.kind != "tensor" or not isinstance(tensor, Handle):
            continue
        for dimension, (dim, known) in enumerate(zip(parameter.dims, known_extents(tensor), strict=True)):
            actual = af.extent(tensor.name, dimension) if known is None else known
            yield _Extent(parameter.name, dim, tensor, dimension, actual)


def _solve(call: _Call, extent: _Extent, sizes: InnerSizes) -> bool:
    """Uses one extent: asks for it where all its sizes are known, solves it where one is missing; False for later."""
    open_ = {_stand_in(name): name for name in extent.names if name not in sizes}
    try:
        wanted = affine_of(extent.dim, _scope(extent, sizes))
    except NotAffine:
        return False
    unknown = sorted(af.sizes_of(wanted) & open_.keys())
    if not unknown:
        _ask(call, extent, af.Compare(wanted - extent.actual, "=="), wanted)
        return True
    atom = SizeRef(unknown[0])
    factor = wanted.coefficient(atom)
    rest = wanted - Affine(0, ((atom, factor),))
    if factor == 0 or not af.sizes_of(rest).isdisjoint(open_):
        return False
    multiple = extent.actual - rest
    found = multiple // factor
    _ask(call, extent, af.Compare(multiple % abs(factor), "=="))
    if not af.is_nonnegative(found):
        _ask(call, extent, af.Compare(found, ">="))
    sizes[open_[unknown[0]]] = found
    return True


def _stand_in(name: str) -> str:
    """A size of the inlined op that is not known yet, under a name that no size of the caller has."""
    return f"?{name}"


def _scope(extent: _Extent, sizes: InnerSizes) -> Scope:
    """What the names in an annotation mean so far."""
    return size_scope({name: sizes[name] if name in sizes else af.size(_stand_in(name)) for name in extent.names})


def _ask(call: _Call, extent: _Extent, condition: Condition, wanted: Affine | None = None) -> None:
    """Asks the sizes for a condition. Raises `ShapeError` where it never holds."""
    condition = fold(condition)
    if condition == af.TRUE:
        return
    agreement = Agreement(
        condition,
        extent.parameter,
        source_text(extent.dim),
        extent.tensor.name,
        extent.dimension,
        extent.actual,
        wanted,
        call.span,
    )
    if condition == af.FALSE:
        raise agreement.error()
    if any(af.extents_of(affine) for affine in af.condition_affines(condition)):
        call.state.agreements.append(agreement)
    else:
        call.state.conditions.append(condition)


def _unsolvable(call: _Call, extent: _Extent, sizes: InnerSizes) -> DefinitionError | ShapeError:
    text = source_text(extent.dim)
    try:
        affine_of(extent.dim, _scope(extent, sizes))
    except NotAffine as problem:
        if not problem.needs_sizes or all(name in sizes for name in extent.names):
            return refusal(problem, f"an extent of parameter '{extent.parameter}' is not affine in sizes")
    return ShapeError(
        f"the sizes in '{text}' do not follow from the arguments of '{call.signature.name}'",
        where=call.span,
        why=f"Dimension {extent.dimension} of '{extent.tensor.name}' is {extent.actual}, and more than one size, or "
        "one under a division, is unknown in it.",
        fix="give a parameter whose extent is that size alone.",
        facts={"parameter": extent.parameter, "dimension": extent.dimension},
    )


__all__ = ["inline"]
