"""Instructions that multiply short groups of narrow numbers and add the products: what there is, by processor.

One lane of the result takes a group of neighbours from either operand. Of those for integers only the ones that are
exact for every input are listed: `vpmaddubsw` saturates. `vpdpbf16ps` rounds as multiply-adds do but takes subnormal
operands and sums for zero. Where no operand is subnormal and no product but 0 is smaller than 2**-112 there are no
such sums: a bf16 has 8 significant bits, so the product of the two smallest ones, and with it every other, is a
multiple of 2**-126, and so is every sum of them, which then is 0 or a normal f32.
Sources: [Intel21], vector neural network instructions and BF16.
"""

from __future__ import annotations

from collections.abc import Sequence

from polyopt.classes import dataclass
from polyopt.dtypes import DType, bf16, f32, i8, i16, i32, u8
from polyopt.target import Target


@dataclass(frozen=True, slots=True)
class Dot:
    """`sum + left[0] * right[0] + left[1] * right[1] ...` in each 32-bit lane, of integers modulo 2**32.

    name:        the mnemonic
    points:      elements of a group
    left, right: dtypes of the operands, of which a group has 32 bits
    symbols:     the LLVM intrinsics, by bits of a vector
    accumulates: the instruction adds to a sum itself; else it starts from 0
    total:       dtype of the sum
    """

    name: str
    points: int
    left: DType
    right: DType
    symbols: tuple[tuple[int, str], ...]
    accumulates: bool
    total: DType = i32

    @property
    def is_screened(self) -> bool:
        """Whether the operands' elements have to be looked at first, since the instruction takes subnormal numbers for
        zero."""
        return self.total.is_float

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
HALVES = Dot(
    "vdpbf16ps", 2, bf16, bf16, tuple((bits, f"llvm.x86.avx512bf16.dpbf16ps.{bits}") for bits in _VNNI), True, f32
)

LEAST_PRODUCT = -112
"""The least sum of two exponents of bf16 of whose products no sum is subnormal in f32."""

WIDENED_REGISTERS = 4
"""Registers that pairs of bf16 take, more than an instruction does, where they are multiplied one after the other."""

_SLOW_HALVES = ("cooperlake", "sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d", "diamondrapids")
"""Processors whose `vdpbf16ps` issues every other cycle, which two multiply-adds of f32 in each outdo (measured on
Emerald Rapids: 91 and 187 G operations a second; on Zen 4 it is 236 and 118)."""


def between(dots: Sequence[Dot], left: DType, right: DType) -> Dot | None:
    """The first instruction for integers that multiplies values of two dtypes as they are, or as 16-bit integers that
    hold them."""
    for dot in dots:
        if {left, right} == {dot.left, dot.right} or (dot.left == dot.right == i16 and {left, right} <= {i8, u8, i16}):
            return dot
    return None


def available(target: Target) -> tuple[Dot, ...]:
    """The instructions of a processor in vectors of its full width, faster ones first."""
    if target.gpu is not None or not target.triple.startswith("x86_64"):
        return ()
    if target.vector_bits == 512 and "-avx512bw" in target.features.split(","):
        return ()  # LLVM takes wide vectors in pieces, and these instructions not
    wide = target.has("avx512vnni") and (target.vector_bits == 512 or target.has("avx512vl"))
    has_vnni = wide or (target.has("avxvnni") and target.vector_bits < 512)
    integers = (BYTES, WORDS) if has_vnni else (PAIRS,)
    has_halves = target.has("avx512bf16") and (target.vector_bits == 512 or target.has("avx512vl"))
    return (*integers, HALVES) if has_halves else integers


def is_fast(dot: Dot, target: Target) -> bool:
    """Whether an instruction multiplies faster than its operands, widened, are multiplied."""
    if not dot.is_screened:
        return True
    if target.rates is not None:
        return target.rates.fma_bf16 > target.rates.fma_f32
    return target.cpu not in _SLOW_HALVES
