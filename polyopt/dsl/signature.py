"""What an op's function takes, read from its parameters and annotations."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import FrameType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin
from typing import Literal as OneOf

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl.expr import Call, Expr, Literal, Size, source_text, try_expr, walk
from polyopt.dsl.spans import function_span
from polyopt.dtypes import ARRAY_PROTOCOLS, DType, TensorType, alternatives, annotation_text, from_numpy
from polyopt.errors import DefinitionError, DTypeError, Span

ParameterKind = OneOf["tensor", "scalar", "constant", "unannotated"]

_CONSTANT_TYPES = (int, bool, float, complex, str, bytes, tuple, list, dict, set, frozenset, type(None))


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """One parameter of an op.

    kind:       "tensor" and "scalar" are given at each call, "constant" is known when compiling, "unannotated"
                follows the argument
    dtype:      of a tensor or run-time scalar
    dims:       of a tensor: expressions over sizes; empty for a scalar
    constant_type: of a constant: the annotated type; None for `self`
    default:    `inspect.Parameter.empty` where there is none
    python_kind: as in `inspect.Parameter.kind`
    is_optional: whether it may be None, by its annotation or its default, which is then known when compiling
    is_array:   of an unannotated one: whether types of a library are annotated that are arrays, as `np.ndarray`
    """

    name: str
    kind: ParameterKind
    dtype: DType | None
    dims: tuple[Expr, ...]
    default: object
    python_kind: Any
    constant_type: Any = None
    is_optional: bool = False
    is_array: bool = False

    @property
    def has_default(self) -> bool:
        return self.default is not inspect.Parameter.empty

    @property
    def number_dtype(self) -> DType | None:
        """The dtype that a number is converted to; None where the parameter takes none, or takes it as it is."""
        return self.dtype if self.kind == "scalar" or (self.kind == "tensor" and not self.dims) else None

    @property
    def is_keyword_only(self) -> bool:
        return bool(self.python_kind is inspect.Parameter.KEYWORD_ONLY)

    @property
    def is_positional_only(self) -> bool:
        return bool(self.python_kind is inspect.Parameter.POSITIONAL_ONLY)


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """The parameters of an op, in order. name: the function's; span: its definition."""

    name: str
    parameters: tuple[Parameter, ...]
    python: inspect.Signature
    span: Span

    def parameter(self, name: str) -> Parameter:
        """The parameter called `name`; a `KeyError` is our own mistake."""
        for parameter in self.parameters:
            if parameter.name == name:
                return parameter
        raise KeyError(name)

    def __str__(self) -> str:
        parts: list[str] = []
        for parameter, following in zip(self.parameters, (*self.parameters[1:], None)):
            if parameter.is_keyword_only and "*" not in parts:
                parts.append("*")
            parts.append(_parameter_text(parameter))
            if parameter.is_positional_only and (following is None or not following.is_positional_only):
                parts.append("/")
        return f"{self.name}({', '.join(parts)})"


def read_signature(function: Callable[..., object]) -> Signature:
    """The signature of an op's function.

    Understands string annotations (`from __future__ import annotations`), methods (`self` and `cls` are constants),
    keyword-only parameters, defaults, and None as an alternative or default. Raises `DefinitionError` for an annotation
    that cannot be read or says what no parameter can be, for `*args` and `**kwargs`, and for what is no function.
    """
    if isinstance(function, classmethod | staticmethod):
        decorator = f"@{type(function).__name__}"
        raise DefinitionError(f"@po.op stands above {decorator}", fix=f"write {decorator} above @po.op.")
    span = function_span(function.__code__) if hasattr(function, "__code__") else Span("<unknown>", 1)
    try:
        python = inspect.signature(function)
    except (TypeError, ValueError):
        raise DefinitionError(
            f"an op is made of a function of equations, and {function!r} is none", fix="@po.op above a def."
        ) from None
    annotations = _annotations(function, python, span)
    parameters = tuple(
        _parameter(p, annotations.get(name, p.empty), position, function, span)
        for position, (name, p) in enumerate(python.parameters.items())
    )
    return Signature(getattr(function, "__name__", "op"), parameters, python, span)


def _parameter(
    parameter: inspect.Parameter, annotation: object, position: int, function: Callable[..., object], span: Span
) -> Parameter:
    name = parameter.name
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        stars = "*" if parameter.kind == parameter.VAR_POSITIONAL else "**"
        raise DefinitionError(
            f"an op cannot take {stars}{name}",
            where=span,
            why="Each tensor of an op has a name of its own.",
            fix="list the parameters one by one.",
            facts={"parameter": name},
        )
    meant, may_be_none = _without_none(annotation)
    kind, dtype, dims = _classify(meant, name, span)
    if position == 0 and kind == "unannotated" and name in ("self", "cls") and "." in function.__qualname__:
        kind = "constant"
    constant_type = meant if kind == "constant" and _is_constant_type(meant) else None
    is_optional = kind != "unannotated" and (may_be_none or parameter.default is None)
    is_array = kind == "unannotated" and _is_array_type(meant)
    return Parameter(name, kind, dtype, dims, parameter.default, parameter.kind, constant_type, is_optional, is_array)


def _without_none(annotation: object) -> tuple[object, bool]:
    """What an annotation says besides None, behind aliases and metadata, and whether None is among what it allows."""
    annotation = getattr(annotation, "__value__", annotation)  # of `type Row = f32[N]`
    if get_origin(annotation) is Annotated:
        return _without_none(get_args(annotation)[0])
    if get_origin(annotation) not in _UNIONS:
        return type(None) if annotation is None else annotation, False
    found = get_args(annotation)
    rest = tuple(kind for kind in found if kind is not type(None))
    if len(rest) != 1:
        return annotation, False
    return _without_none(rest[0])[0], True


_UNIONS = (Union, UnionType)


def _classify(annotation: object, name: str, span: Span) -> tuple[ParameterKind, DType | None, tuple[Expr, ...]]:
    match annotation:
        case TensorType(dtype, dims):
            return "tensor", dtype, () if dims == ((),) else tuple(_dim(dim, name, span) for dim in dims)
        case DType():
            return "scalar", annotation, ()
        case _ if _is_constant_type(annotation):
            return "constant", None, ()
        case np.dtype():
            return "scalar", _dtype_of(annotation, name, span), ()
        case type() if issubclass(annotation, np.generic) and annotation not in _ABSTRACT:
            return "scalar", _dtype_of(annotation, name, span), ()
        case inspect.Parameter.empty:
            return "unannotated", None, ()
        case _ if _is_python_type(annotation):
            return "unannotated", None, ()
        case _:
            raise _unknown(annotation, name, span)


def _is_constant_type(annotation: object) -> bool:
    return isinstance(annotation, type) and annotation in _CONSTANT_TYPES


def _is_python_type(annotation: object) -> bool:
    """Whether an annotation names types of Python's or of a library, as `Any` and `Callable[[int], int]`.

    It tells the reader what is meant, and the argument tells polyopt.
    """
    if get_origin(annotation) is OneOf or annotation is ...:
        return True
    parts = annotation if isinstance(annotation, list) else get_args(annotation)
    if parts:
        return all(map(_is_python_type, parts))
    is_special = type(annotation).__module__ in ("typing", "typing_extensions")  # Callable, Self, TypeVar, NewType
    return isinstance(annotation, type) or is_special or get_origin(annotation) is not None


def _is_array_type(annotation: object) -> bool:
    """Whether an annotation names a type of arrays: NumPy's, or one that others can read."""
    named = get_origin(annotation) or annotation
    return isinstance(named, type) and any(hasattr(named, protocol) for protocol in ARRAY_PROTOCOLS)


_ABSTRACT = (np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger, np.inexact, np.floating)
"""Types of NumPy that name no dtype."""


def _dtype_of(annotation: Any, name: str, span: Span) -> DType:
    """The dtype that NumPy's name means."""
    try:
        return from_numpy(np.dtype(annotation))
    except (DTypeError, TypeError):
        raise _unknown(annotation, name, span) from None


def _unknown(annotation: object, name: str, span: Span) -> DefinitionError:
    found = [kind for kind in get_args(annotation) if kind is not type(None)]
    if get_origin(annotation) in _UNIONS:
        error = alternatives(found)
        error.where, error.facts = span, {"parameter": name}
        return error
    text = annotation_text(annotation)
    return DefinitionError(
        f"the annotation '{text}' of '{name}' says nothing that a parameter of an op can be",
        where=span,
        why="A parameter is a tensor (f32[M, K]), a run-time scalar (f32), or a value known when compiling (int, bool, "
        "float), each also with '| None'.",
        fix="one of these, or no annotation: the argument then decides.",
        facts={"parameter": name, "annotation": text},
    )


def _dim(dim: object, name: str, span: Span) -> Expr:
    """An extent in an annotation: a size, the name of one, an integer, or an expression of these."""
    if isinstance(dim, str) and dim.isidentifier():
        return Size(dim)
    expr = None if isinstance(dim, float | bool | np.floating) else try_expr(dim)
    is_negative = isinstance(expr, Literal) and isinstance(expr.value, int) and expr.value < 0
    if expr is None or is_negative or not all(isinstance(node, Size | Call | Literal) for node in walk(expr)):
        raise DefinitionError(
            f"'{dim}' in the annotation of '{name}' is not a size",
            where=span,
            why="An extent is a size, the name of one, an integer, or an affine expression of these.",
            fix="f32[M, K] with M, K = po.sizes('M K'), or f32['M', 'K'].",
            facts={"parameter": name},
        )
    return expr


def _parameter_text(parameter: Parameter) -> str:
    if parameter.dtype is None:
        constant = parameter.constant_type
        text = parameter.name if constant is None else f"{parameter.name}: {constant.__name__}"
    elif parameter.kind == "scalar":
        text = f"{parameter.name}: {parameter.dtype}"
    else:
        text = f"{parameter.name}: {parameter.dtype}[{', '.join(map(source_text, parameter.dims)) or '()'}]"
    text += " | None" if parameter.is_optional else ""
    return text + (f" = {parameter.default}" if parameter.has_default else "")


# --- string annotations ----------------------------------------------------------------------------------------------


def _annotations(function: Callable[..., object], python: inspect.Signature, span: Span) -> Mapping[str, object]:
    """The annotations, strings evaluated where the function was written."""
    found: dict[str, object] = {}
    names: Mapping[str, object] | None = None
    for name, parameter in python.parameters.items():
        annotation = parameter.annotation
        if isinstance(annotation, str):
            names = _visible_names(function) if names is None else names
            annotation = _evaluate(annotation, names, name, span)
        found[name] = annotation
    return found


def _evaluate(text: str, names: Mapping[str, object], parameter: str, span: Span) -> object:
    try:
        return eval(text, {**names})  # noqa: S307  # the user's own annotation, as Python itself would evaluate it
    except _UNREADABLE as problem:
        raise DefinitionError(
            f"the annotation '{text}' of '{parameter}' cannot be read",
            where=span,
            why=f"{type(problem).__name__}: {problem}.",
            fix="name dtypes and sizes that are defined where the op is, as in f32[M, K] or f32['M', 'K'].",
            facts={"parameter": parameter, "annotation": text},
        ) from None


_UNREADABLE = (NameError, AttributeError, SyntaxError, TypeError)


def _visible_names(function: Callable[..., object]) -> dict[str, object]:
    """The names that the function's annotations can use: globals, closures, and locals of the enclosing function."""
    unwrapped = inspect.unwrap(function)
    names: dict[str, object] = dict(getattr(unwrapped, "__globals__", {}))
    for frame in reversed(_enclosing_frames(unwrapped)):
        names.update(frame.f_locals)
    code = getattr(unwrapped, "__code__", None)
    for name, cell in zip(
        getattr(code, "co_freevars", ()), getattr(unwrapped, "__closure__", None) or (), strict=False
    ):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # a cell that the enclosing function has not filled yet
            continue
    return names


def _enclosing_frames(function: Callable[..., object]) -> list[FrameType]:
    """The frames, innermost first, of the functions and classes that the function's definition stands in."""
    qualified = getattr(function, "__qualname__", "")
    frames: list[FrameType] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        owner = frame.f_code.co_qualname
        same_file = frame.f_code.co_filename == getattr(getattr(function, "__code__", None), "co_filename", None)
        if same_file and owner != "<module>" and (qualified.startswith((f"{owner}.<locals>.", f"{owner}."))):
            frames.append(frame)
        frame = frame.f_back
    return frames
