"""Short ways to build resolved programs by hand, for tests of the stages behind the front end."""

from __future__ import annotations

from collections.abc import Sequence

from polyopt.dsl.affine import TRUE, Affine, Compare, Condition, axis, constant
from polyopt.dsl.ir import (
    Axis,
    Boundary,
    Const,
    DataIndex,
    Equation,
    Expr,
    Op,
    Program,
    Read,
    Reducer,
    Subscript,
    Tensor,
)
from polyopt.dtypes import DType, f64

Index = str | int | Affine | DataIndex


def at(index: Index) -> Subscript:
    """A subscript: an axis by name, a constant, or an expression."""
    if isinstance(index, str):
        return axis(index)
    return constant(index) if isinstance(index, int) else index


def ax(name: str, stop: int | Affine, start: int | Affine = 0) -> Axis:
    """An axis with the range from `start` to `stop`."""
    lower, upper = (constant(v) if isinstance(v, int) else v for v in (start, stop))
    return Axis(name, (lower,), (upper,))


def rd(tensor: str, *indices: Index, dtype: DType = f64, boundary: Boundary | None = None) -> Read:
    return Read(tensor, tuple(at(index) for index in indices), dtype, boundary)


def op(name: str, *args: Expr, dtype: DType = f64) -> Op[Expr]:
    return Op(name, args, dtype)


def num(value: float, dtype: DType = f64) -> Const:
    return Const(value, dtype)


def less(left: Index, right: Index) -> Condition:
    """`left < right`."""
    a, b = at(left), at(right)
    assert isinstance(a, Affine) and isinstance(b, Affine)
    return Compare(a - b, "<")


def summing(dtype: DType = f64) -> Reducer:
    return Reducer("sum", dtype, Const(0, dtype))


def tensor(name: str, *shape: int | Affine, dtype: DType = f64) -> Tensor:
    extents = tuple(constant(n) if isinstance(n, int) else n for n in shape)
    return Tensor(name, dtype, extents, "local", len(extents))


def plain(target: Read, value: Expr, *axes: Axis, guard: Condition = TRUE, name: str = "") -> Equation:
    """`target = value` for all points of the axes."""
    return Equation(name or f"{target.tensor}_def", target.tensor, axes, target.subscripts, value, guard)


def adding(
    target: Read,
    value: Expr,
    axes: Sequence[Axis],
    reduce_axes: Sequence[Axis],
    guard: Condition = TRUE,
    reducer: Reducer | None = None,
) -> Equation:
    """`target += value`."""
    return Equation(
        f"{target.tensor}_sum",
        target.tensor,
        tuple(axes),
        target.subscripts,
        value,
        guard,
        reducer or summing(),
        tuple(reduce_axes),
    )


def program(tensors: Sequence[Tensor], equations: Sequence[Equation], inputs: str, results: str) -> Program:
    """A program without symbolic sizes; names of inputs and results are separated by blanks."""
    return Program("test", (), tuple(tensors), tuple(equations), tuple(inputs.split()), tuple(results.split()))
