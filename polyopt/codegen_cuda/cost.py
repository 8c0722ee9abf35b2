"""The numbers behind the mapping: bytes that cross the memory bus when neighboring threads run along an axis."""

from __future__ import annotations

from collections.abc import Sequence

from polyopt.dsl.affine import Affine, AxisRef, axes_of
from polyopt.dsl.ir import DataIndex, Subscript, reads
from polyopt.dtypes import DType
from polyopt.poly.scop import Scop, Statement
from polyopt.target import WARP

SECTOR_BYTES = 32
"""What one access to memory moves at least."""


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


def _depends(subscript: Subscript, axis: str) -> bool:
    if isinstance(subscript, DataIndex):
        return any(_depends(inner, axis) for read in reads(subscript.value) for inner in read.subscripts)
    return axis in axes_of(subscript)


def power_above(value: int) -> int:
    """The least power of two that is at least `value`, and at least 1."""
    return 1 << max(value - 1, 0).bit_length()
