"""Arithmetic on unevaluated sums of two floats, `high + low` with |low| <= ulp(high) / 2: about twice the precision.

Source: Dekker, "A floating-point technique for extending the available precision" (1971); [Muller16], chapter 2.
"""

from __future__ import annotations

from typing import TypeVar

from polyopt.codegen_c.vmath.builder import Builder

V = TypeVar("V")


def fast_two_sum(b: Builder[V], a: V, small: V) -> tuple[V, V]:
    """`a + small` and its rounding error, where |a| >= |small| or a = 0."""
    total = b.fadd(a, small)
    return total, b.fsub(small, b.fsub(total, a))


def two_sum(b: Builder[V], x: V, y: V) -> tuple[V, V]:
    """`x + y` and its rounding error (Knuth)."""
    total = b.fadd(x, y)
    y_part = b.fsub(total, x)
    return total, b.fadd(b.fsub(x, b.fsub(total, y_part)), b.fsub(y, y_part))


def two_product(b: Builder[V], x: V, y: V) -> tuple[V, V]:
    """`x * y` and its rounding error."""
    product = b.fmul(x, y)
    return product, b.fma(x, y, b.fneg(product))


def multiply(b: Builder[V], x: tuple[V, V], y: tuple[V, V]) -> tuple[V, V]:
    """The product of two sums; the low parts are not renormalised."""
    high, low = two_product(b, x[0], y[0])
    return high, b.fma(x[1], y[0], b.fma(x[0], y[1], low))
