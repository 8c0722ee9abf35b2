"""Instructions that multiply short groups of narrow integers and add the products: what there is, by processor.

One lane of the result takes a group of neighbours from either operand. Only those that are exact for every input are
listed: `vpmaddubsw` saturates, `vpdpbf16ps` flushes denormals and rounds otherwise than a product and a sum do.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyopt.classes import dataclass
from polyopt.dtypes import DType, i8, i16, u8
from polyopt.target import Target


@dataclass(frozen=True, slots=True)
class Dot:
    """`sum + left[0] * right[0] + left[1] * right[1] ...` in each 32-bit lane, modulo 2**32.

    name:        the mnemonic
    points:      elements of a group
    left, right: dtypes of the operands, of which a group has 32 bits
    symbols:     the LLVM intrinsics, by bits of a vector
    accumulates: the instruction adds to a sum itself; else it starts from 0
    """

    name: str
    points: int
    left: DType
    right: DType
    symbols: tuple[tuple[int, str], ...]
    accumulates: bool

    def symbol(self, bits: int) -> str | None:
        return dict(self.symbols).get(bits)


_VNNI = (512, 256, 128)

BYTES = Dot("vpdpbusd", 4, u8, i8, tuple((bits, f"llvm.x86.avx512.vpdpbusd.{bits}") for bits in _VNNI), True)
WORDS = Dot("vpdpwssd", 2, i16, i16, tuple((bits, f"llvm.x86.avx512.vpdpwssd.{bits}") for bits in _VNNI), True)
PAIRS = Dot(
    "vpmaddwd",
    2,
    i16,
    i16,
    ((512, "llvm.x86.avx512.pmaddw.d.512"), (256, "llvm.x86.avx2.pmadd.wd"), (128, "llvm.x86.sse2.pmadd.wd")),
    False,
)


def between(dots: Sequence[Dot], left: DType, right: DType) -> Dot | None:
    """The first instruction that multiplies values of two dtypes as they are, or as 16-bit integers that hold them."""
    for dot in dots:
        if {left, right} == {dot.left, dot.right} or (dot.left == dot.right == i16 and {left, right} <= {i8, u8, i16}):
            return dot
    return None


def available(target: Target) -> tuple[Dot, ...]:
    """The instructions of a processor in vectors of its full width, faster ones first."""
    if target.gpu is not None or not target.triple.startswith("x86_64"):
        return ()
    wide = target.has("avx512vnni") and (target.vector_bits == 512 or target.has("avx512vl"))
    has_vnni = wide or (target.has("avxvnni") and target.vector_bits < 512)
    return (BYTES, WORDS) if has_vnni else (PAIRS,)
