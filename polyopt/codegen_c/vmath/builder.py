"""The straight-line language that the math functions are written in.

A function such as `exponential.exp` is written once, against `Builder`, and has three instances: LLVM IR for a
scalar or for lanes (`llvm`), a C11 function (`c_source`) and NumPy arrays (`numpy`). All three perform the same
IEEE 754 operations in the same order, so they agree bit for bit (NaN payloads aside).

A value is whatever the instance makes it: a name in a text, or an array. There are three sorts, and a builder has
one width for the first two: floats of `format`, integers of the same width (two's complement, wrapping), masks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeVar

from polyopt.classes import dataclass

FloatPredicate = Literal["oeq", "une", "olt", "ole", "ogt", "uno"]
IntPredicate = Literal["eq", "ult"]

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class Format:
    """A binary interchange format of IEEE 754.

    name:     that of the dtype
    bits:     storage size
    fraction: stored significand bits
    """

    name: Literal["f32", "f64"]
    bits: int
    fraction: int

    @property
    def bias(self) -> int:
        return (1 << (self.bits - self.fraction - 2)) - 1

    @property
    def rounder(self) -> float:
        """Added and subtracted again, it rounds a float below `2**(fraction - 2)` in magnitude to an integer.

        In the sum that integer stands in the low bits of the significand, in two's complement.
        """
        return 1.5 * 2.0**self.fraction


F32 = Format("f32", 32, 23)
F64 = Format("f64", 64, 52)


class Builder(Protocol[V]):
    """What a math function may do with its values.

    Comparisons named "o.." are false on NaN, "une" and "uno" are true on NaN. Nothing traps, and no operation is
    fused, reordered or flushed to zero by the instance.
    """

    @property
    def format(self) -> Format: ...

    @property
    def wide(self) -> Builder[V]:
        """The builder of f64 values in the same lanes; that of f64 itself."""
        ...

    # floats
    def const(self, value: float) -> V:
        """A float. `value` must be a number of `format`: nothing is rounded here."""
        ...

    def fadd(self, a: V, b: V) -> V: ...
    def fsub(self, a: V, b: V) -> V: ...
    def fmul(self, a: V, b: V) -> V: ...
    def fdiv(self, a: V, b: V) -> V: ...

    def fma(self, a: V, b: V, c: V) -> V:
        """`a * b + c`, rounded once."""
        ...

    def fneg(self, a: V) -> V: ...
    def fabs(self, a: V) -> V: ...

    def copysign(self, magnitude: V, sign: V) -> V: ...

    def rint(self, a: V) -> V:
        """To the nearest integer, half to even."""
        ...

    def fcmp(self, predicate: FloatPredicate, a: V, b: V) -> V: ...

    # integers
    def iconst(self, value: int) -> V:
        """An integer, taken modulo `2**bits`."""
        ...

    def iadd(self, a: V, b: V) -> V: ...
    def isub(self, a: V, b: V) -> V: ...
    def imul(self, a: V, b: V) -> V: ...
    def iand(self, a: V, b: V) -> V: ...
    def ior(self, a: V, b: V) -> V: ...

    def shl(self, a: V, count: V) -> V:
        """Zeros enter, as in `lshr`; the counts are in [0, bits)."""
        ...

    def lshr(self, a: V, count: V) -> V: ...

    def icmp(self, predicate: IntPredicate, a: V, b: V) -> V:
        """ "ult" is less than, unsigned."""
        ...

    def lookup(self, table: tuple[int, ...], index: V) -> V:
        """`table[index]` of unsigned integers of the builder's width; every lane's index must be inside."""
        ...

    # between the sorts
    def as_int(self, a: V) -> V:
        """The bits of a float."""
        ...

    def as_float(self, a: V) -> V:
        """The float of these bits."""
        ...

    def widen(self, a: V) -> V:
        """A float of this builder as one of `wide`."""
        ...

    def narrow(self, a: V) -> V:
        """A float of `wide` rounded to this builder's format."""
        ...

    @property
    def has_scaling(self) -> bool:
        """Whether `scaled` may be called: where it is one instruction."""
        ...

    def scaled(self, value: V, n: V) -> V:
        """`value * 2**n` for a whole float n, rounded once."""
        ...

    # masks
    def mask_and(self, a: V, b: V) -> V: ...
    def mask_or(self, a: V, b: V) -> V: ...

    def select(self, mask: V, then: V, otherwise: V) -> V:
        """Lane by lane, of floats."""
        ...

    def select_int(self, mask: V, then: V, otherwise: V) -> V:
        """Lane by lane, of integers."""
        ...

    def select_rare(self, mask: V, then: Callable[[], tuple[V, ...]], otherwise: tuple[V, ...]) -> tuple[V, ...]:
        """`select` of several floats, where `then` is costly and seldom wanted.

        `then` adds its operations behind a branch that is taken where the mask holds in any lane, so the value in a
        lane does not depend on the other lanes. Only allowed in functions that `catalogue` marks `outlined`.
        """
        ...


def polynomial(b: Builder[V], x: V, coefficients: tuple[float, ...]) -> V:
    """`sum(c[k] * x**k)` by Horner's rule, one fma for each coefficient but the last."""
    value = b.const(coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        value = b.fma(value, x, b.const(coefficient))
    return value


def long_polynomial(b: Builder[V], x: V, x2: V, coefficients: tuple[float, ...]) -> V:
    """The same as even part plus `x` times odd part: half the latency for one operation more. `x2 = x * x`."""
    even = polynomial(b, x2, coefficients[0::2])
    odd = polynomial(b, x2, coefficients[1::2])
    return b.fma(odd, x, even)
