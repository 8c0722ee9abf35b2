"""How far a correct kernel may be off: every value of the reference with a bound on the error of computing it.

Running error analysis: a value carries the largest error that rounding in its own dtype, in any order of its sums,
can have given it, as each operation passes on the errors of its operands and adds its own. Recurrences and
ill-conditioned steps widen the bound by themselves, and a comparison of values closer than their errors makes what
it decides uncertain by as much as the choices differ. First order: products of errors are kept, but a function of
several operands is judged at the corners of their error box.

Sums follow the promise of the default numerics (chains of at most `CHAIN` terms, then a tree).
Source: [Higham02], chapters 3 and 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import log2
from typing import Any

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.ir import Const, Reducer
from polyopt.dtypes import DType, bf16, converted, f16, f32, f64
from polyopt.reference.arithmetic import UFUNCS, Arithmetic
from polyopt.reference.points import Array

CHAIN = 128
"""Terms that the default numerics add up one after the other at most."""

_WIDEN = 2.0**20
"""In float64 an error is too small to be seen in float64: operands are moved further, and the effect scaled down."""


@dataclass(frozen=True, slots=True)
class _Format:
    """A floating-point format: unit roundoff, least positive number, greatest finite number."""

    unit: float
    least: float
    greatest: float


_FORMATS: Mapping[DType, _Format] = {
    f16: _Format(2.0**-11, 2.0**-24, 65504.0),
    bf16: _Format(2.0**-8, 2.0**-133, 3.3895313892515355e38),
    f32: _Format(2.0**-24, 2.0**-149, 3.4028234663852886e38),
    f64: _Format(2.0**-53, 5e-324, 1.7976931348623157e308),
}


@dataclass(frozen=True)
class BoundedArithmetic(Arithmetic):
    """Values with error bounds, as structured arrays of fields `value` and `error`; floats are float64.

    in_order: sums run in index order, as in strict numerics
    """

    in_order: bool = False

    def dtype(self, dtype: DType) -> np.dtype[Any]:
        value = np.float64 if dtype.is_float else dtype.numpy
        return np.dtype([("value", value), ("error", np.float64)])

    def constant(self, const: Const) -> Array:
        return self.given(np.asarray(const.value).astype(const.dtype.numpy), const.dtype)

    def given(self, array: Array, dtype: DType) -> Array:
        return self._pair(np.asarray(array), 0.0, dtype)

    def cast(self, value: Array, dtype: DType) -> Array:
        if dtype.is_float:
            wide = value["value"].astype(np.float64, copy=False)
            exact = value["value"].dtype.kind == "b"
            return self._rounded(wide, value["error"], dtype, ulp=0.0 if exact else 0.5)
        error = _spread(lambda v: np.trunc(v) if dtype.is_integer else v != 0, [value], 1.0)
        return self._pair(converted(value["value"], dtype), error, dtype)

    def apply(self, name: str, args: list[Array], dtype: DType) -> Array:
        values = [arg["value"] for arg in args]
        result = np.asarray(BUILTINS[name].numpy(*values)).astype(self.dtype(dtype)["value"], copy=False)
        widen = _WIDEN if dtype == f64 else 1.0
        error = _passed_on(name, args, result, widen) if any(arg["error"].any() for arg in args) else 0.0
        return self._rounded(result, error, dtype, ulp=max(0.5, BUILTINS[name].ulp) if _rounds(name) else 0.0)

    def plain(self, value: Array) -> Array:
        number: Array = value["value"]
        return number

    def index(self, value: Array) -> Array:
        return super().index(self.plain(value))

    # --- reductions -------------------------------------------------------------------------------------------

    def identity(self, reducer: Reducer) -> Array:
        return self.given(Arithmetic("f64", {}).identity(reducer), reducer.dtype)

    def fold(self, reducer: Reducer, running: Array, values: Array, axes: tuple[int, ...], length: int) -> Array:
        part = UFUNCS[reducer.name].reduce(values["value"], axis=axes, dtype=values["value"].dtype)
        error = self._fold_error(reducer, values, part, axes, length)
        total = np.asarray(UFUNCS[reducer.name](running["value"], part))
        if reducer.name != "prod":
            together = np.add if reducer.name == "sum" else np.maximum
            if reducer.name == "sum":
                start = np.abs(running["value"])
                error = error + np.where(np.isfinite(start), start, 0) * self._unit(reducer.dtype)
            return self._rounded(total, together(running["error"], error), reducer.dtype, ulp=0.0)
        return self._rounded(total, _product_error(running, self._pair(part, error, reducer.dtype)), reducer.dtype)

    def _fold_error(self, reducer: Reducer, values: Array, part: Array, axes: tuple[int, ...], length: int) -> Array:
        unit = self._unit(reducer.dtype)
        size = np.abs(values["value"].astype(np.float64))
        match reducer.name:
            case "sum":
                finite = np.where(np.isfinite(size), size, 0.0).sum(axis=axes)  # beside an infinity nothing rounds
                added: Array = self._steps(length) * unit * finite
                if reducer.dtype.is_float:
                    added = np.where(finite > _FORMATS[reducer.dtype].greatest, np.inf, added)
                return np.asarray(values["error"].sum(axis=axes) + added)
            case "prod":
                return _long_product_error(size, values["error"], unit, axes)
            case _:
                worst: Array = values["error"].max(axis=axes, initial=0.0)
                return worst

    def _steps(self, length: int) -> float:
        """The roundings that a term of a sum of `length` terms goes through at most."""
        return length if self.in_order else min(length, log2(max(length, 1)) + CHAIN)

    def combine(self, reducer: Reducer, running: Array, value: Array, length: int) -> Array:
        if reducer.combine is None:
            return self.fold(reducer, running, value[..., None], (value.ndim,), length)
        return super().combine(reducer, running, value, length)

    def fold_at(self, reducer: Reducer, total: Array, place: tuple[Array, ...], values: Array, length: int) -> None:
        if reducer.name != "sum":
            for number in range(len(values)):
                where = tuple(int(index[number]) for index in place)
                total[where] = self.combine(reducer, total[where], values[number], length)
            return
        np.add.at(total["value"], place, values["value"])
        size = np.abs(values["value"].astype(np.float64))
        start = np.abs(total["value"][place].astype(np.float64)) * self._unit(reducer.dtype)
        np.add.at(total["error"], place, values["error"] + self._steps(length) * self._unit(reducer.dtype) * size)
        np.maximum.at(total["error"], place, start)

    # --- pairs ------------------------------------------------------------------------------------------------

    def _unit(self, dtype: DType) -> float:
        return _FORMATS[dtype].unit if dtype.is_float else 0.0

    def _pair(self, value: Array, error: Any, dtype: DType) -> Array:
        result = np.empty(value.shape, self.dtype(dtype))
        result["value"] = value
        result["error"] = error
        return result

    def _rounded(self, value: Array, error: Any, dtype: DType, ulp: float = 0.5) -> Array:
        """The value with the error of an operation, and that of rounding its result to `dtype` within `ulp` units."""
        if not dtype.is_float:
            return self._pair(value, error, dtype)
        form = _FORMATS[dtype]
        size = np.abs(value)
        rounding = np.where(size > 0, 2 * ulp * (form.unit * size + form.least), 0.0)
        total = np.asarray(error) + np.where(np.isfinite(value), rounding, 0.0)
        total = np.where(np.isnan(total) & ~np.isfinite(value), 0.0, total)
        total = np.where(np.isfinite(value) & ~(size + total <= form.greatest), np.inf, total)
        return self._pair(value, total, dtype)


def _rounds(name: str) -> bool:
    """Whether an operation on floats rounds its result."""
    exact = ("neg", "abs", "sign", "minimum", "maximum", "floor", "ceil", "round", "select")
    return name not in exact


# --- how operations pass errors on ----------------------------------------------------------------------------


def _passed_on(name: str, args: list[Array], result: Array, widen: float) -> Array:
    """The error of the result that is due to the errors of the operands."""
    errors = [arg["error"] for arg in args]
    match name:
        case "add" | "sub":
            return np.asarray(errors[0] + errors[1])
        case "neg" | "abs":
            return np.asarray(errors[0])
        case "mul":
            return _product_error(*args)
        case "minimum" | "maximum":
            return np.asarray(np.maximum(errors[0], errors[1]))
        case "truediv":
            return _quotient_error(args[0], args[1], result)
        case "select":
            return _choice_error(*args)
        case "lt" | "le" | "gt" | "ge" | "eq" | "ne":
            return _comparison_error(name, args[0], args[1])
        case "and" | "or" | "xor" | "not" | "shl" | "shr":
            worst: Array = np.maximum.reduce(np.broadcast_arrays(*errors))
            return worst if args[0]["value"].dtype.kind == "b" else np.where(worst > 0, np.inf, 0.0)
        case _:
            return _spread(BUILTINS[name].numpy, args, widen)


def _product_error(a: Array, b: Array) -> Array:
    x, y = np.abs(a["value"].astype(np.float64)), np.abs(b["value"].astype(np.float64))
    terms = [_times(x, b["error"]), _times(y, a["error"]), _times(a["error"], b["error"])]
    total: Array = terms[0] + terms[1] + terms[2]
    return total


def _long_product_error(size: Array, error: Array, unit: float, axes: tuple[int, ...]) -> Array:
    """Of a product over `axes`, each factor with its error and a rounding: relative errors add up, to first order."""
    room = np.where(size > 0, size, 1.0)
    relative: Array = _times(size.prod(axis=axes), np.expm1(np.log1p(error / room + unit).sum(axis=axes)))
    return np.asarray(np.where((size == 0).any(axis=axes), (size + error).prod(axis=axes), relative))


def _times(size: Array, error: Array) -> Array:
    """An error times a factor; no error stays none, however large the factor."""
    return np.where((error == 0) | (size == 0), 0.0, size * error)


def _quotient_error(a: Array, b: Array, result: Array) -> Array:
    room = np.abs(b["value"]) - b["error"]
    error = (a["error"] + _times(np.abs(result), b["error"])) / room
    return np.where(a["error"] + b["error"] == 0, 0.0, np.where(room > 0, error, np.inf))


def _choice_error(condition: Array, then: Array, otherwise: Array) -> Array:
    chosen = np.where(condition["value"], then["error"], otherwise["error"])
    apart = np.abs(then["value"].astype(np.float64) - otherwise["value"].astype(np.float64))
    apart = np.where(np.isnan(apart), np.inf, apart) + then["error"] + otherwise["error"]
    return np.where(condition["error"] > 0, apart, chosen)


def _comparison_error(name: str, a: Array, b: Array) -> Array:
    """1 where the errors could turn the answer round. Equal values are taken to be computed alike."""
    room = a["error"] + b["error"]
    apart = np.abs(a["value"].astype(np.float64) - b["value"].astype(np.float64))
    near = (apart <= room) & (room > 0)
    if name in ("eq", "ne"):
        near &= apart > 0
    return np.asarray(near, np.float64)


def _spread(form: Any, args: list[Array], widen: float) -> Array:
    """How far the result moves when the operands move by their errors: the worst corner."""
    values = [arg["value"].astype(np.float64) for arg in args]
    if not any(arg["error"].any() for arg in args):
        return np.zeros(np.broadcast_shapes(*(value.shape for value in values)))
    center = np.asarray(form(*values)).astype(np.float64)
    worst = np.zeros(center.shape)
    for signs in product((-widen, widen), repeat=len(args)):
        moved = [
            np.where(arg["error"] == 0, value, value + sign * arg["error"])
            for value, arg, sign in zip(values, args, signs, strict=True)
        ]
        there = np.asarray(form(*moved)).astype(np.float64)
        off = np.abs(there - center) / widen
        off = np.where(np.isnan(off) & (there != center) & ~np.isnan(center), np.inf, off)
        worst = np.fmax(worst, np.where(np.isnan(off), 0.0, off))
    return worst
