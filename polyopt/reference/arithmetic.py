"""What the scalar operations compute: in float64, or in the dtypes of the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.ir import Const
from polyopt.dtypes import DType
from polyopt.reference.points import Array

Precision = Literal["f64", "own", "strict"]


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """NumPy arithmetic at one precision.

    precision: "f64": every float in float64; "own": the program's dtypes; "strict": also sums in index order
    functions: forms that replace those of `dsl.builtins`, by operation name
    """

    precision: Precision
    functions: Mapping[str, Callable[..., Any]]

    @property
    def in_order(self) -> bool:
        return self.precision == "strict"

    def dtype(self, dtype: DType) -> np.dtype[Any]:
        """The NumPy dtype that values of `dtype` have here."""
        return np.dtype(np.float64) if dtype.is_float and self.precision == "f64" else dtype.numpy

    def constant(self, const: Const) -> Array:
        """The literal, rounded to its own dtype at every precision: it is an input of the program."""
        own = np.asarray(const.value).astype(const.dtype.numpy)
        return own.astype(self.dtype(const.dtype))

    def cast(self, value: Any, dtype: DType) -> Array:
        return np.asarray(value).astype(self.dtype(dtype), copy=False)

    def apply(self, name: str, args: list[Array], dtype: DType) -> Array:
        """One operation of `dsl.builtins`, element by element."""
        form = self.functions.get(name, BUILTINS[name].numpy)
        return np.asarray(form(*args)).astype(self.dtype(dtype), copy=False)


def identity(name: str, dtype: np.dtype[Any]) -> Array:
    """The value that leaves every other one as it is under a named reducer, in every bit: -0.0 for a float sum."""
    floating = np.issubdtype(dtype, np.floating) or dtype.kind == "V"  # ml_dtypes' bfloat16 has kind V
    match name:
        case "sum":
            value: Any = -0.0 if floating else 0
        case "prod":
            value = 1
        case "max":
            value = -np.inf if floating else False if dtype.kind == "b" else np.iinfo(dtype).min
        case "min":
            value = np.inf if floating else True if dtype.kind == "b" else np.iinfo(dtype).max
        case "any":
            value = False
        case "all":
            value = True
        case _:
            raise AssertionError(f"reducer '{name}' has no identity of its own")
    return np.asarray(value).astype(dtype)


UFUNCS: Mapping[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}
"""The ufunc of each named reducer."""
