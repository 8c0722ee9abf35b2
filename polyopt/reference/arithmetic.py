"""What the scalar operations compute: in float64, or in the dtypes of the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.ir import Cast, Const, Expr, Op, Reducer, Var
from polyopt.dtypes import DType, converted
from polyopt.reference.points import Array

Precision = Literal["f64", "own", "strict"]


@dataclass(frozen=True)
class Arithmetic:
    """NumPy arithmetic at one precision.

    precision: "f64": every float in float64; "own": the program's dtypes; "strict": also sums in index order
    functions: forms that replace those of `dsl.builtins` where the result is a float, by operation name
    """

    precision: Precision
    functions: Mapping[str, Callable[..., Any]]

    def dtype(self, dtype: DType) -> np.dtype[Any]:
        """The NumPy dtype that values of `dtype` have here."""
        return np.dtype(np.float64) if dtype.is_float and self.precision == "f64" else dtype.numpy

    def constant(self, const: Const) -> Array:
        """The literal, rounded to its own dtype at every precision: it is an input of the program."""
        own = np.asarray(const.value).astype(const.dtype.numpy)
        return own.astype(self.dtype(const.dtype))

    def given(self, array: Array, dtype: DType) -> Array:
        """An input array."""
        return np.asarray(array).astype(self.dtype(dtype), copy=False)

    def cast(self, value: Array, dtype: DType) -> Array:
        return value.astype(self.dtype(dtype), copy=False) if dtype.is_float else converted(value, dtype)

    def apply(self, name: str, args: list[Array], dtype: DType) -> Array:
        """One operation of `dsl.builtins`, element by element."""
        form = self.functions.get(name, BUILTINS[name].numpy) if dtype.is_float else BUILTINS[name].numpy
        return np.asarray(form(*args)).astype(self.dtype(dtype), copy=False)

    def plain(self, value: Array) -> Array:
        """An integer value without what an arithmetic knows of it besides."""
        return value

    def index(self, value: Array) -> Array:
        """An integer value as a subscript, i64."""
        if value.dtype == np.uint64:  # beyond i64 it is out of every range, and must not come back as negative
            value = np.minimum(value, np.uint64(np.iinfo(np.int64).max))
        return value.astype(np.int64)

    # --- reductions -------------------------------------------------------------------------------------------

    def identity(self, reducer: Reducer) -> Array:
        """The value that leaves every other one as it is under a named reducer, in every bit: -0.0 for a float sum."""
        return np.asarray(_identity(reducer.name, reducer.dtype)).astype(self.dtype(reducer.dtype))

    def fold(self, reducer: Reducer, running: Array, values: Array, axes: tuple[int, ...], length: int) -> Array:
        """`running` combined by a named reducer with `values`, a block reduced over its last dimensions `axes`.

        length: the number of points of the whole reduction, of which this is a block
        """
        ufunc = UFUNCS[reducer.name]
        if self.precision == "strict" and reducer.dtype.is_float and reducer.name in ("sum", "prod"):
            return _in_order(ufunc, running, values.reshape((*values.shape[: values.ndim - len(axes)], -1)))
        part = ufunc.reduce(values, axis=axes, dtype=values.dtype) if axes else values
        if reducer.dtype.is_float and reducer.name in ("max", "min"):
            part = _signed(reducer.name == "max", np.asarray(part), values, axes)
        return np.asarray(COMBINE.get(reducer.name, ufunc)(running, part))

    def combine(self, reducer: Reducer, running: Array, value: Array, length: int) -> Array:
        """Two values combined, element by element."""
        if reducer.combine is None:
            return np.asarray(COMBINE.get(reducer.name, UFUNCS[reducer.name])(running, value))
        return self._combine(reducer.combine, {"a": running, "b": value})

    def _combine(self, expr: Expr, values: Mapping[str, Array]) -> Array:
        match expr:
            case Var(name):
                return values[name]
            case Const():
                return self.constant(expr)
            case Op(name, args, dtype):
                return self.apply(name, [self._combine(arg, values) for arg in args], dtype)
            case Cast(arg, dtype):
                return self.cast(self._combine(arg, values), dtype)
            case _:
                raise AssertionError("the combine of a reduction holds operations on its two values only")

    def fold_at(self, reducer: Reducer, total: Array, place: tuple[Array, ...], values: Array, length: int) -> None:
        """`total[place]` combined with `values`, in place, one after the other where places repeat."""
        if reducer.combine is None:
            UFUNCS[reducer.name].at(total, place, values)
            return
        for number, value in enumerate(values):
            where = tuple(int(index[number]) for index in place)
            total[where] = self.combine(reducer, np.asarray(total[where]), np.asarray(value), length)


def _signed(is_max: bool, extreme: Array, values: Array, axes: tuple[int, ...]) -> Array:
    """The extreme of values along `axes`; where it is zero with its sign, which NumPy leaves to the processor."""
    zeros = (values == 0) & (np.signbit(values) != is_max)
    found = zeros.any(axis=axes) if axes else zeros
    number = np.where(found == is_max, 0.0, -0.0).astype(values.dtype)
    return np.where(extreme == 0, number, extreme)


def _in_order(ufunc: np.ufunc, running: Array, values: Array) -> Array:
    """`running`, then each of the values along the last dimension, combined from left to right."""
    shape = np.broadcast_shapes(running.shape, values.shape[:-1])
    before = np.broadcast_to(running, shape)[..., None]
    terms = np.concatenate([before, np.broadcast_to(values, shape + values.shape[-1:])], axis=-1)
    result: Array = ufunc.accumulate(terms, axis=-1)[..., -1]
    return result


def _identity(name: str, dtype: DType) -> Any:
    match name:
        case "sum":
            return -0.0 if dtype.is_float else 0
        case "prod":
            return 1
        case "max":
            return -np.inf if dtype.is_float else False if dtype.is_bool else np.iinfo(dtype.numpy).min
        case "min":
            return np.inf if dtype.is_float else True if dtype.is_bool else np.iinfo(dtype.numpy).max
        case "any" | "all":
            return name == "all"
        case _:
            raise AssertionError(f"reducer '{name}' has no identity of its own")


UFUNCS: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}
"""The ufunc of each named reducer."""
COMBINE: Mapping[str, Callable[..., Any]] = {"max": BUILTINS["maximum"].numpy, "min": BUILTINS["minimum"].numpy}
"""How two values are combined, where NumPy does not say it of every bit."""
