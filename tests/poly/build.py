"""Programs built by hand, for tests of single stages: `x[i + 1]` and `y[i] = ...` without the front end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from polyopt.dsl import affine, ir
from polyopt.dsl.affine import TRUE, Affine, Compare, Condition
from polyopt.dtypes import DType, f32, i64
from polyopt.errors import Span

Role = Literal["input", "output", "local"]
LIKE_AFFINE = Affine | int | str


def a(value: LIKE_AFFINE) -> Affine:
    """An affine expression: a number, the name of an axis (lower case) or of a size (upper case), or itself."""
    if isinstance(value, str):
        return affine.size(value) if value.isupper() else affine.axis(value)
    return Affine(value) if isinstance(value, int) else value


i, j, k, h, w, r, s, t = (affine.axis(name) for name in "ijkhwrst")
M, N, K = (affine.size(name) for name in "MNK")


def lt(left: LIKE_AFFINE, right: LIKE_AFFINE) -> Condition:
    return Compare(a(left) - a(right), "<")


def le(left: LIKE_AFFINE, right: LIKE_AFFINE) -> Condition:
    return Compare(a(left) - a(right), "<=")


def eq(left: LIKE_AFFINE, right: LIKE_AFFINE) -> Condition:
    return Compare(a(left) - a(right), "==")


def _subscripts(values: Sequence[LIKE_AFFINE | ir.DataIndex]) -> tuple[ir.Subscript, ...]:
    return tuple(value if isinstance(value, ir.DataIndex) else a(value) for value in values)


def read(
    tensor: str, *subscripts: LIKE_AFFINE | ir.DataIndex, boundary: ir.Boundary | None = None, line: int = 0
) -> ir.Read:
    span = Span("kernel.py", line) if line else None
    return ir.Read(tensor, _subscripts(subscripts), f32, boundary, span)


def data(tensor: str, *subscripts: LIKE_AFFINE) -> ir.DataIndex:
    return ir.DataIndex(ir.Read(tensor, _subscripts(subscripts), i64))


def add(*parts: ir.Expr) -> ir.Expr:
    total = parts[0]
    for part in parts[1:]:
        total = ir.Op("add", (total, part), f32)
    return total


def where(condition: Condition, then: ir.Expr, otherwise: ir.Expr) -> ir.Where:
    return ir.Where(condition, then, otherwise, f32)


ZERO = ir.Const(0.0, f32)
SUM = ir.Reducer("sum", f32, ZERO)
MAX = ir.Reducer("max", f32, None)


def axis(name: str, lower: LIKE_AFFINE | None = None, upper: LIKE_AFFINE | None = None) -> ir.Axis:
    return ir.Axis(name, () if lower is None else (a(lower),), () if upper is None else (a(upper),))


def reduce(reducer: ir.Reducer, body: ir.Expr, *axes: ir.Axis, guard: Condition = TRUE) -> ir.Reduce:
    return ir.Reduce(reducer, body, axes, f32, guard)


def equation(
    tensor: str,
    subscripts: Sequence[LIKE_AFFINE | ir.DataIndex],
    value: ir.Expr,
    *,
    axes: Sequence[ir.Axis],
    over: Sequence[ir.Axis] = (),
    guard: Condition = TRUE,
    accumulate: bool = False,
    line: int = 0,
) -> ir.Equation:
    """`tensor[subscripts] = value`; an accumulation if there are axes to reduce over or `accumulate` says so."""
    reducer = SUM if over or accumulate else None
    span = Span("kernel.py", line) if line else None
    return ir.Equation("", tensor, tuple(axes), _subscripts(subscripts), value, guard, reducer, tuple(over), span)


def tensor(
    name: str, *shape: LIKE_AFFINE, role: Role = "input", rank: int | None = None, dtype: DType = f32
) -> ir.Tensor:
    """An input of the given shape; with `rank` a tensor whose shape is to be found."""
    extents = None if rank is not None else tuple(a(extent) for extent in shape)
    return ir.Tensor(name, dtype, extents, role, len(shape) if rank is None else rank)


def program(tensors: Sequence[ir.Tensor], equations: Sequence[ir.Equation], sizes: Sequence[str] = ()) -> ir.Program:
    """A program of these; equations are numbered, inputs and outputs taken in order."""
    named = tuple(replace(e, name=f"{e.tensor}_{number}") for number, e in enumerate(equations))
    inputs = tuple(t.name for t in tensors if t.role == "input")
    outputs = tuple(t.name for t in tensors if t.role == "output")
    return ir.Program("kernel", tuple(sizes), tuple(tensors), named, inputs, outputs)


def local(name: str, rank: int) -> ir.Tensor:
    return tensor(name, role="local", rank=rank)


def output(name: str, rank: int) -> ir.Tensor:
    return tensor(name, role="output", rank=rank)
