"""The numbers behind the mapping: bytes that cross the memory bus when neighboring threads run along an axis."""

from __future__ import annotations

from collections.abc import Sequence

from polyopt.dsl.affine import Affine, AxisRef, axes_of
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.ir import Const, DataIndex, Expr, Op, Read, Subscript, Wrap, children, reads
from polyopt.dtypes import DType, f64
from polyopt.poly.scop import Scop, Statement
from polyopt.target import WARP

SECTOR_BYTES = 32
"""What one access to memory moves at least."""

_QUOTIENT_OF_F64 = 400
"""Its remainder has loops, which take the compiler longer than lines do."""


def access_bytes(subscripts: Sequence[Subscript], dtype: DType, axis: str | None) -> float:
    """Bytes per instance that an access moves when the threads of a warp differ in `axis`."""
    if axis is None or not any(_depends(subscript, axis) for subscript in subscripts):
        return dtype.itemsize / WARP
    last = subscripts[-1]
    is_contiguous = (
        isinstance(last, Affine)
        and abs(last.coefficient(AxisRef(axis))) == 1
        and not any(_depends(subscript, axis) for subscript in subscripts[:-1])
    )
    return float(dtype.itemsize if is_contiguous else SECTOR_BYTES)


def statement_bytes(scop: Scop, statement: Statement, axis: str | None) -> float:
    """Bytes per instance of a statement, all its accesses together."""
    accesses = [(access.read.tensor, access.read.subscripts) for access in statement.reads]
    accesses.append((statement.array, statement.subscripts))
    return sum(access_bytes(subscripts, scop.array(name).dtype, axis) for name, subscripts in accesses)


def length(expr: Expr, *, is_open: bool) -> int:
    """How many instructions an expression becomes, about: half of the lines of PTX that NVRTC makes of it.

    is_open: whether what a wrapped read is periodic in is a size that only a call gives
    """
    match expr:
        case Op("mod" | "floordiv" | "pow", (_, other), dtype):
            own = _QUOTIENT_OF_F64 if dtype == f64 else 64 if dtype.is_float else 4 if isinstance(other, Const) else 16
        case Op(name, dtype=dtype):
            own = 1 if not BUILTINS[name].ulp else 40 if dtype == f64 else 6
        case Read(subscripts=subscripts, boundary=boundary):
            own = 8 * sum(isinstance(subscript, DataIndex) for subscript in subscripts)
            own += (16 if is_open else 4) if isinstance(boundary, Wrap) else 0
        case _:
            own = 1
    return own + sum(length(child, is_open=is_open) for child in children(expr))


def _depends(subscript: Subscript, axis: str) -> bool:
    if isinstance(subscript, DataIndex):
        return any(_depends(inner, axis) for read in reads(subscript.value) for inner in read.subscripts)
    return axis in axes_of(subscript)


def power_above(value: int) -> int:
    """The least power of two that is at least `value`, and at least 1."""
    return 1 << max(value - 1, 0).bit_length()
