"""What an op is written with: sizes, indices, tensors, `when` and `where`."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from polyopt.dsl.broadcast import elementwise
from polyopt.dsl.expr import Choice, Expr, Guarded, Index, Size, as_expr
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import require
from polyopt.dsl.subscripts import as_dims
from polyopt.dsl.tensor import Tensor
from polyopt.dtypes import DType, from_name, from_numpy
from polyopt.errors import DefinitionError, DTypeError, with_article


def size(name: str) -> Size:
    """One symbolic size. Sizes of one name are the same size."""
    (only,) = _names(name, "size", 1)
    return Size(only)


def sizes(names: str) -> tuple[Size, ...]:
    """Symbolic sizes, from names separated by blanks or commas."""
    return tuple(Size(name) for name in _names(names, "size"))


def index(name: str, *bounds: object, extent: object = None) -> Index:
    """One index variable.

    index("t", extent=T), index("t", T) and index("t", 0, T) have the explicit range 0 <= t < T; bounds are integers
    or affine in sizes, half-open as `range`. Without them the range follows from what the index subscripts.
    """
    (only,) = _names(name, "index", 1)
    return _ranged(only, bounds, extent)


def indices(names: str, *bounds: object, extent: object = None) -> tuple[Index, ...]:
    """Index variables, from names separated by blanks or commas; a range, if given, is that of each."""
    return tuple(_ranged(name, bounds, extent) for name in _names(names, "index"))


def _ranged(name: str, bounds: tuple[object, ...], extent: object) -> Index:
    if (extent is not None and bounds) or len(bounds) > 2:
        raise DefinitionError(
            f"index '{name}' is given more than one range",
            where=user_span(),
            fix="po.index('t', extent=T) or po.index('t', 1, T).",
        )
    if extent is not None:
        bounds = (extent,)
    if not bounds:
        return Index(name)
    lower, upper = (0, bounds[0]) if len(bounds) == 1 else bounds
    return Index(name, _bound(lower), _bound(upper))


def _bound(value: object) -> Expr:
    if isinstance(value, float | np.floating):
        raise DefinitionError(
            f"the range of an index cannot end at {value}", where=user_span(), fix="use integers and sizes."
        )
    return Size(value) if isinstance(value, str) else as_expr(value, "as the bound of an index")


def tensor(name: str, shape: object = None, dtype: object = None) -> Tensor:
    """One tensor of the op being read; `shape=` and `dtype=` fix what otherwise follows from its definitions."""
    (only,) = _names(name, "tensor", 1)
    return _new_tensor(only, shape, dtype)


def tensors(names: str, shape: object = None, dtype: object = None) -> tuple[Tensor, ...]:
    """Tensors of the op being read, from names separated by blanks or commas."""
    return tuple(_new_tensor(name, shape, dtype) for name in _names(names, "tensor"))


def _new_tensor(name: str, shape: object, dtype: object) -> Tensor:
    state = require("po.tensor")
    dims = None if shape is None else as_dims(state.sizes, shape)
    made = state.new_tensor(name, dims=dims, dtype=None if dtype is None else as_dtype(dtype))
    assert isinstance(made, Tensor), "a trace makes Tensors"
    return made


def _names(text: object, what: str, count: int | None = None) -> tuple[str, ...]:
    """The names in a string. Raises `DefinitionError` for anything that is not an ASCII identifier."""
    names = tuple(part for part in re.split(r"[\s,]+", text) if part) if isinstance(text, str) else ()
    if not names or (count is not None and len(names) != count):
        plural = {"index": "indices"}.get(what, f"{what}s")
        raise DefinitionError(
            f"{text!r} is not {'the name of one ' + what if count else 'a list of names'}",
            where=user_span(),
            fix=f"po.{what}('a'), or po.{plural}('a b c') for several.",
        )
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            raise DefinitionError(
                f"{name!r} cannot be the name of {with_article(what)}",
                where=user_span(),
                fix="use letters, digits and underscores, beginning with a letter.",
                facts={"name": name},
            )
    return names


def as_dtype(dtype: object) -> DType:
    """A dtype from polyopt's, NumPy's, a name, or Python's bool, int and float. Raises `DTypeError`."""
    if isinstance(dtype, DType):
        return dtype
    if isinstance(dtype, str) and dtype in (
        "bf16",
        "f16",
        "f32",
        "f64",
        "i8",
        "i16",
        "i32",
        "i64",
        "u8",
        "u16",
        "u32",
        "u64",
    ):
        return from_name(dtype)
    if dtype is bool or dtype is int or dtype is float:
        return from_name({bool: "bool", int: "i64", float: "f64"}[dtype])
    try:
        return from_numpy(np.dtype(dtype))  # type: ignore[call-overload]  # anything that NumPy takes
    except TypeError as problem:
        if isinstance(problem, DTypeError):
            raise
        raise DTypeError(f"{dtype!r} is not a dtype", where=user_span(), fix="one of po.f32, po.i64, ...") from None


def when(condition: object, value: object) -> Expr:
    """`value` where the affine condition holds, and no definition elsewhere: the whole right side of an equation."""
    return Guarded(as_expr(condition, "as the condition of po.when"), as_expr(value, "as the value of po.when"))


def where(condition: object, then: object, otherwise: object) -> Any:
    """`then` where the condition holds, else `otherwise`.

    By an affine condition the domain is split, and only the chosen branch is read; by data, both are.
    """
    return elementwise("where", Choice, (condition, then, otherwise))
