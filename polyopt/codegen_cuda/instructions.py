"""The tensor cores' products: one table of instructions, and where their fragments lie in a warp's tile.

An instruction adds a 16 x K by K x 8 product to a 16 x 8 tile that the 32 lanes of a warp keep together. Lane l is
g = l / 4 and q = l % 4; it has rows g and g + 8 of the result and columns 2 q and 2 q + 1. Which rows and columns of a
block's tile these are is ours to choose. Two instructions share 16 columns, of which a lane has four neighbors: then
four lanes store whole sectors of 32 bytes, of 16-bit results too.

Of bytes, lane q has columns 4 q to 4 q + 3, and rows g and g + 8 are 2 g and 2 g + 1: operands that lie along either
axis are then read by `ldmatrix`, bytes of turned ones in pairs. Of 16-bit elements, rows are the instruction's, and
lane q has the columns from 8 (q % 2) + 4 (q / 2) on. Where the second operand lies along the sum, its columns are read
in this order. A turned one is read in its own: the instructions then leave a lane two columns in each half of the 16,
of which lanes q and q ^ 1 exchange one pair when the sums are complete.

Elements of f32 lie as those of 16 bits do, in halves of 4 steps; turned ones come one by one, since `ldmatrix`
transposes pairs of bytes. An operand x is taken as x' + x'', its upper 11 bits and the next 11, and x y as
x'' y' + x' y'' + x' y'. What is left out is below 2^-19 |x y|; a sum of 128 terms in f32 may be 2^-17 of them off. An
infinite x has no x'', so that this is for numerics="fast".

Four warps of a machine that has it multiply together, 64 rows by up to 256 columns: each warp has 16 of the rows, its
lanes have the columns of as many pairs of instructions above, in their own order. Both operands stay in shared memory,
in atoms of 8 lines of 128 bytes, and the instruction runs on its own until it is waited for.
Sources: [PTX], "Warp-level matrix instructions", "Asynchronous warpgroup level matrix instructions"; [Ootomo22] for the
parts.
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

COLUMN_WIDTH = COLUMNS // COLUMN_LANES
"""Neighboring columns of a lane."""

GROUP_WARPS = 4
"""Warps that multiply together."""

GROUP_ROWS = GROUP_WARPS * ROWS
"""Rows of their instruction."""

ATOM_BYTES = 128
"""Of a line of an atom: what a piece has of each row of an operand along the sum, or of each step along a side."""

GROUPS = (9, 0)
"""The one capability whose machines have instructions of four warps."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One product of the tensor cores.

    helper:       its name in `po_device.h`
    left, right:  dtypes of the operands; result: of the sums
    steps:        of the sum, in one instruction
    row_width:    neighboring rows of a lane: 1 of 16-bit elements, 2 of bytes
    is_exact:     whether the result is that of sums in order
    is_split:     whether f32 operands come as two of tf32 each, whose products are added up
    group:        the name of what four warps do together, where there is one
    """

    helper: str
    left: DType
    right: DType
    result: DType
    steps: int
    row_width: int
    is_exact: bool
    is_split: bool = False
    group: str = ""

    @property
    def is_of_bytes(self) -> bool:
        return self.left.itemsize == 1

    def __str__(self) -> str:
        parts = ", operands in two parts" if self.is_split else ""
        return f"{self.helper.removeprefix('po_')} of 16 x 8 x {self.steps}{parts}"


def _halves(helper: str, dtype: DType) -> Instruction:
    return Instruction(helper, dtype, dtype, f32, 16, 1, is_exact=False, group=helper.replace("mma", "wgmma"))


def _split(helper: str) -> Instruction:
    return Instruction(helper, f32, f32, f32, 8, 1, is_exact=False, is_split=True)


def _bytes(helper: str, left: DType, right: DType) -> Instruction:
    return Instruction(helper, left, right, i32, 32, 2, is_exact=True)


INSTRUCTIONS = (
    _halves("po_mma_f16", f16),
    _halves("po_mma_bf16", bf16),
    _bytes("po_mma_s8", i8, i8),
    _bytes("po_mma_u8", u8, u8),
    _bytes("po_mma_s8_u8", i8, u8),
    _bytes("po_mma_u8_s8", u8, i8),
    _split("po_mma_tf32"),
)
"""All of them that sum up as the language says; the last one does so for finite operands only."""


def instruction_of(left: DType, right: DType, result: DType) -> Instruction | None:
    """The instruction for products of these dtypes; None where there is none."""
    found = (one for one in INSTRUCTIONS if (one.left, one.right, one.result) == (left, right, result))
    return next(found, None)
