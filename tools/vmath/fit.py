"""Polynomial fits whose coefficients are numbers of the target format.

`fit` minimises the greatest weighted error by Lawson's iteration: weighted least squares at Chebyshev points,
each weight multiplied by the error found there. Coefficients are then rounded to the target precision one by one,
lowest exponent first, and those still free are fitted anew after each rounding, so that they absorb what the
rounding of the earlier ones lost. All arithmetic is mpmath at `DIGITS` decimal digits.

Sources: Lawson, "Contributions to the theory of linear least maximum approximations" (1961); for the rounding,
[Muller16], chapter 4.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mpmath import mp, mpf

DIGITS = 70
mp.dps = DIGITS

Real = Callable[[mpf], mpf]


@dataclass(frozen=True, slots=True)
class Fit:
    """coefficients: by ascending exponent; error: greatest weighted error on a dense grid."""

    coefficients: tuple[mpf, ...]
    error: mpf


def round_to(value: mpf, bits: int) -> mpf:
    """The nearest number with `bits` significant bits (exponents are never near the end of the range here)."""
    if value == 0:
        return mpf(0)
    exponent = int(mp.floor(mp.log(abs(value), 2)))
    unit = mpf(2) ** (exponent - bits + 1)
    return mp.nint(value / unit) * unit


def split(value: mpf, bits: Sequence[int]) -> tuple[mpf, ...]:
    """Numbers of the given precisions that sum to `value`, each the nearest to what the earlier ones left."""
    parts = []
    for precision in bits:
        parts.append(round_to(value, precision))
        value -= parts[-1]
    return tuple(parts)


def fit(
    function: Real,
    interval: tuple[mpf, mpf],
    exponents: Sequence[int],
    bits: int,
    *,
    weight: Real = lambda x: mpf(1),
    sweeps: int = 12,
) -> Fit:
    """Coefficients `c` of `bits` bits that make `weight(x) * (function(x) - sum c_k x^exponents[k])` small.

    exponents: ascending; the fit is over `interval`, end points included
    sweeps:    Lawson sweeps of each least squares problem
    """
    points = _chebyshev_points(interval, 4 * len(exponents) + 9)
    weights = [weight(x) for x in points]
    rest = [function(x) for x in points]
    fixed: list[mpf] = []
    for index in range(len(exponents)):
        free = exponents[index:]
        coefficients = _lawson(points, rest, weights, free, sweeps)
        fixed.append(round_to(coefficients[0], bits))
        rest = [r - fixed[-1] * x ** free[0] for r, x in zip(rest, points, strict=True)]
    return Fit(tuple(fixed), _greatest_error(function, interval, exponents, fixed, weight))


def _chebyshev_points(interval: tuple[mpf, mpf], count: int) -> list[mpf]:
    low, high = interval
    return [(low + high) / 2 + (high - low) / 2 * mp.cos(mp.pi * (2 * k + 1) / (2 * count)) for k in range(count)]


def _lawson(
    points: Sequence[mpf], values: Sequence[mpf], weights: Sequence[mpf], exponents: Sequence[int], sweeps: int
) -> list[mpf]:
    basis = [[w * x**e for e in exponents] for x, w in zip(points, weights, strict=True)]
    target = [w * v for v, w in zip(values, weights, strict=True)]
    importance = [mpf(1)] * len(points)
    solution: list[mpf] = []
    for _ in range(sweeps):
        solution = _least_squares(basis, target, importance)
        errors = [
            abs(sum((c * b for c, b in zip(solution, row, strict=True)), -t))
            for row, t in zip(basis, target, strict=True)
        ]
        scale = max(errors)
        if scale == 0:
            break
        importance = [max(p * e / scale, mpf(10) ** -20) for p, e in zip(importance, errors, strict=True)]
        total = sum(importance)
        importance = [p * len(points) / total for p in importance]
    return solution


def _least_squares(basis: Sequence[Sequence[mpf]], target: Sequence[mpf], importance: Sequence[mpf]) -> list[mpf]:
    """By the normal equations: `DIGITS` is ample for their condition at the degrees used here."""
    size = len(basis[0])
    matrix = mp.zeros(size)
    right = mp.zeros(size, 1)
    for i in range(size):
        for j in range(i, size):
            matrix[i, j] = mp.fsum(p * row[i] * row[j] for p, row in zip(importance, basis, strict=True))
            matrix[j, i] = matrix[i, j]
        right[i] = mp.fsum(p * row[i] * t for p, row, t in zip(importance, basis, target, strict=True))
    return list(mp.lu_solve(matrix, right))


def _greatest_error(
    function: Real,
    interval: tuple[mpf, mpf],
    exponents: Sequence[int],
    coefficients: Sequence[mpf],
    weight: Real,
) -> mpf:
    low, high = interval
    grid = [low + (high - low) * k / 500 for k in range(501)]
    return max(
        abs(weight(x) * (mp.fsum(c * x**e for c, e in zip(coefficients, exponents, strict=True)) - function(x)))
        for x in grid
    )
