"""The tensor cores' products: one table of instructions, and where their fragments lie in a warp's tile.

An instruction adds a 16 x K by K x 8 product to a 16 x 8 tile that the 32 lanes of a warp keep together. Lane l is
g = l / 4 and q = l % 4; it has rows g and g + 8 of the result and columns 2 q and 2 q + 1. Which rows and columns of a
block's tile these are is ours to choose. Of 16-bit elements they are those of the instruction. Of bytes, rows g and
g + 8 are 2 g and 2 g + 1, and two instructions share 16 columns, of which lane q has 4 q to 4 q + 3: then operands that
lie along either axis are read by `ldmatrix`, bytes of turned ones in pairs, and results are stored in vectors.
Source: [PTX], "Warp-level matrix instructions".
"""

from __future__ import annotations

from polyopt.classes import dataclass
from polyopt.dtypes import DType, bf16, f16, f32, i8, i32, u8

ROWS = 16
"""Rows of one instruction."""

COLUMNS = 16
"""Columns of two instructions, whose second operands come from one `ldmatrix`."""

ROW_LANES, COLUMN_LANES = 8, 4
"""Values of g and of q."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One product of the tensor cores.

    helper:       its name in `po_device.h`
    left, right:  dtypes of the operands; result: of the sums
    steps:        of the sum, in one instruction
    row_width, column_width: neighboring rows and columns of a lane: 1 and 2 of 16-bit elements, 2 and 4 of bytes
    is_exact:     whether the result is that of sums in order
    """

    helper: str
    left: DType
    right: DType
    result: DType
    steps: int
    row_width: int
    column_width: int
    is_exact: bool

    @property
    def is_of_bytes(self) -> bool:
        return self.left.itemsize == 1

    def __str__(self) -> str:
        return f"{self.helper.removeprefix('po_')} of 16 x 8 x {self.steps}"


def _halves(helper: str, dtype: DType) -> Instruction:
    return Instruction(helper, dtype, dtype, f32, 16, 1, 2, is_exact=False)


def _bytes(helper: str, left: DType, right: DType) -> Instruction:
    return Instruction(helper, left, right, i32, 32, 2, 4, is_exact=True)


INSTRUCTIONS = (
    _halves("po_mma_f16", f16),
    _halves("po_mma_bf16", bf16),
    _bytes("po_mma_s8", i8, i8),
    _bytes("po_mma_u8", u8, u8),
    _bytes("po_mma_s8_u8", i8, u8),
    _bytes("po_mma_u8_s8", u8, i8),
)
"""All of them that sum up as the language says: tf32 is not here, since it rounds f32 operands."""


def instruction_of(left: DType, right: DType, result: DType) -> Instruction | None:
    """The instruction for products of these dtypes; None where there is none."""
    found = (one for one in INSTRUCTIONS if (one.left, one.right, one.result) == (left, right, result))
    return next(found, None)
