"""One entry of the catalogue, and the arguments it is tried with: sizes, layouts, dtypes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

import polyopt as po
from polyopt.dtypes import DType, accumulator, from_name, from_numpy

Array = np.ndarray
Layout = Literal["contiguous", "transposed", "strided", "negative", "broadcast"]
SizeClass = Literal["0", "1", "prime", "tile-1", "tile", "tile+1"]

LAYOUTS: tuple[Layout, ...] = ("contiguous", "transposed", "strided", "negative", "broadcast")
SIZE_CLASSES: tuple[SizeClass, ...] = ("0", "1", "prime", "tile-1", "tile", "tile+1")

PRECISE = ("f32", "f64")
REAL = ("f32", "f64", "f16", "bf16")
SIGNED = ("f32", "i32", "f64", "i8", "i64", "f16", "i16", "bf16")
NUMBER = ("f32", "i32", "u8", "f64", "i8", "u32", "f16", "i64", "u16", "bf16", "i16", "u64")
INTEGER = ("i32", "u8", "i64", "i8", "u32", "i16", "u16", "u64")


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator with its oracle.

    op:       the equations; parameters without annotations, so that one op serves every dtype
    oracle:   NumPy on the arguments widened to 64 bits; its float64 results are meant to be rounded to the
              dtype of the case, its int64 results follow `integers`; results of other dtypes are compared as they are
    inputs:   arguments for a draw and one extent per name of `sizes`
    sizes:    the tile around which each free extent is tried
    dtypes:   the element types it makes sense for, the most used first
    nonempty: extents that must not be 0, since a maximum or mean is taken over them
    integers: what an int64 result becomes for integer dtypes: the dtype itself, its accumulator, or int64
    rtol:     relative tolerance per dtype where conditioning asks for more than the fixture's own bound
    """

    name: str
    op: po.Op
    oracle: Callable[..., Any]
    inputs: Callable[..., tuple[Any, ...]]
    sizes: Mapping[str, int]
    dtypes: tuple[str, ...] = REAL
    nonempty: frozenset[str] = field(default_factory=frozenset)
    integers: Literal["same", "sum", "wide"] = "same"
    rtol: Mapping[str, float] = field(default_factory=dict)

    def expected(self, dtype: DType, arguments: tuple[Any, ...]) -> Any:
        """What the oracle gives for the arguments, in the dtypes that the operator returns."""
        result = self.oracle(*(_widened(argument) for argument in arguments))
        if isinstance(result, tuple):
            return tuple(self._narrowed(dtype, part) for part in result)
        if isinstance(result, dict):
            return {name: self._narrowed(dtype, part) for name, part in result.items()}
        return self._narrowed(dtype, result)

    def _narrowed(self, dtype: DType, result: Any) -> Array:
        array = np.asarray(result)
        if array.dtype == np.float64 and dtype.is_float:
            return array.astype(dtype.numpy)
        if array.dtype == np.int64 and dtype.is_integer and self.integers != "wide":
            return array.astype((dtype if self.integers == "same" else accumulator(dtype)).numpy)
        return array


@dataclass(frozen=True, slots=True)
class Case:
    """One operator at one size class per extent, in one layout and one dtype."""

    operator: Operator
    classes: tuple[SizeClass, ...]
    layout: Layout
    dtype: str

    def __str__(self) -> str:
        sizes = ",".join(f"{name}={value}" for name, value in self.extents.items())
        return f"{self.operator.name}[{sizes}-{self.layout}-{self.dtype}]"

    @property
    def extents(self) -> dict[str, int]:
        pairs = zip(self.operator.sizes.items(), self.classes, strict=True)
        return {name: extent(tile, size_class) for (name, tile), size_class in pairs}

    @property
    def arguments(self) -> tuple[Any, ...]:
        seed = sum(ord(letter) * (place + 1) for place, letter in enumerate(str(self)))
        return self.operator.inputs(Draw(from_name(self.dtype), self.layout, seed), *self.extents.values())


def extent(tile: int, size_class: SizeClass) -> int:
    """The number of a size class: `prime` is the largest prime below `tile - 1`, at least 2."""
    match size_class:
        case "0" | "1":
            return int(size_class)
        case "prime":
            return next((p for p in range(tile - 2, 2, -1) if all(p % d for d in range(2, p))), 2)
        case _:
            return tile + {"tile-1": -1, "tile": 0, "tile+1": 1}[size_class]


class Draw:
    """Random arrays in one dtype and one layout."""

    def __init__(self, dtype: DType, layout: Layout, seed: int) -> None:
        self.dtype = dtype
        self.layout = layout
        self.random = np.random.default_rng(seed)

    def __call__(self, *shape: int) -> Array:
        """Numbers of both signs where the dtype has them: in [-1, 1), or integers up to 4 in magnitude."""
        if self.dtype.is_bool:
            return self._laid_out(self.random.random(shape) < 0.5)
        if self.dtype.is_integer:
            return self._laid_out(self.random.integers(-4 if self.dtype.kind == "i" else 0, 5, shape))
        return self._laid_out(self.random.uniform(-1, 1, shape))

    def positive(self, *shape: int) -> Array:
        """Numbers well away from zero: in [0.5, 1.5), or integers from 1 to 4."""
        integers = self.dtype.is_integer
        return self._laid_out(self.random.integers(1, 5, shape) if integers else self.random.uniform(0.5, 1.5, shape))

    def indices(self, *shape: int, below: int) -> Array:
        """int64 subscripts in [0, below); none can be drawn below 0 or 1, so then they are 0."""
        return lay_out(self.random.integers(0, max(below, 1), shape), self.layout)

    def exactly(self, values: Array) -> Array:
        """These values; a broadcast layout would change them and becomes a contiguous one."""
        layout = "contiguous" if self.layout == "broadcast" else self.layout
        return lay_out(np.asarray(values).astype(self.dtype.numpy), layout)

    def _laid_out(self, values: Array) -> Array:
        return lay_out(values.astype(self.dtype.numpy), self.layout)


def lay_out(values: Array, layout: Layout) -> Array:
    """An array of the same shape in that layout; the same values, unless broadcast along its first axis."""
    if values.ndim == 0 or layout == "contiguous":
        return np.ascontiguousarray(values).reshape(values.shape)
    if layout == "transposed":
        return np.ascontiguousarray(values.T).T
    if layout == "broadcast":
        return np.broadcast_to(values[:1], values.shape) if len(values) else values
    backing = np.zeros(tuple(2 * n for n in values.shape), values.dtype)
    step = 2 if layout == "strided" else -2
    view = backing[(slice(None, None, step),) * values.ndim]
    view[...] = values
    return view


def _widened(argument: Any) -> Any:
    if not isinstance(argument, np.ndarray):
        return argument
    dtype = from_numpy(argument.dtype)
    if dtype.is_bool:
        return np.array(argument)
    return np.array(argument, dtype=np.float64 if dtype.is_float else np.int64)
