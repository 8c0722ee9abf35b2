"""Writes `polyopt/codegen_c/vmath/coefficients.py`: every constant of the math functions, and its error.

    python tools/vmath/generate.py            # a minute or two; needs mpmath

Each table names the function it fits, its interval and the weight that turns the fit's error into a relative error
of the final result, which the generated file states in units of 2**-24 (f32) and 2**-53 (f64).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fit import Fit, Real, fit, split
from mpmath import mp, mpf

OUTPUT = Path(__file__).resolve().parents[2] / "polyopt" / "codegen_c" / "vmath" / "coefficients.py"
BITS = {"f32": 24, "f64": 53}
TINY = mpf(10) ** -12
HALF_LN2 = mp.log(2) / 2 * mpf("1.0001")  # a little more: the reduction rounds


Interval = tuple[mpf, mpf]


@dataclass(frozen=True, slots=True)
class Table:
    """A polynomial of each format: `degrees[format]` gives the number of coefficients minus one."""

    name: str
    meaning: str
    function: Real
    interval: Interval | dict[str, Interval]
    weight: Real
    degrees: dict[str, int]


@dataclass(frozen=True, slots=True)
class Constant:
    """A number as parts of given precisions that sum to it, one tuple per format."""

    name: str
    meaning: str
    value: mpf
    parts: dict[str, tuple[int, ...]]


def series(exact: Real, taylor: Callable[[mpf], mpf]) -> Real:
    """`exact`, with its Taylor form where it would cancel."""
    return lambda x: taylor(x) if abs(x) < TINY else exact(x)


def erf_ratio(z: mpf) -> mpf:
    """erf(x) / x - 1 as a function of z = x**2."""
    x = mp.sqrt(z)
    return (mp.erf(x) / x if x > TINY else (1 - z / 3) * 2 / mp.sqrt(mp.pi)) - 1


def erfc_root(x: mpf) -> mpf:
    return mp.erfc(x) ** (mpf(1) / 8)


def scaled_erfc(t: mpf) -> mpf:
    """exp(x**2) erfc(x) at x = t + 2."""
    return mp.erfc(t + 2) * mp.exp((t + 2) ** 2)


def of_square(function: Real) -> Real:
    """A function of x as one of z = x**2, kept away from the cancellation at 0."""
    return lambda z: function(mp.sqrt(max(z, TINY**2)))


QUARTER_PI = mp.pi / 4 + mpf("0.01")  # a little more: see `reduction`
LOG_INTERVAL = (mp.sqrt(mpf(1) / 2) - 1, mp.sqrt(2) - 1)
RATIO_LIMIT = (mp.sqrt(2) - 1) / (mp.sqrt(2) + 1)

TABLES = (
    Table(
        "EXP",
        "exp(r) = 1 + r * (1 + r * p(r)) for |r| <= ln(2) / 2",
        series(lambda r: (mp.expm1(r) - r) / r**2, lambda r: mpf(1) / 2 + r / 6),
        (-HALF_LN2, HALF_LN2),
        lambda r: r**2 / mp.exp(r),
        {"f32": 4, "f64": 9},
    ),
    Table(
        "EXP2",
        "2**r = 1 + r * p(r) for |r| <= 1/2",
        series(lambda r: (mpf(2) ** r - 1) / r, lambda r: mp.log(2) + r * mp.log(2) ** 2 / 2),
        (mpf(-1) / 2, mpf(1) / 2),
        lambda r: abs(r) / mpf(2) ** r,
        {"f32": 5, "f64": 11},
    ),
    Table(
        "EXP2_SHORT",
        "2**r = p(r) for |r| <= 1/2, enough for an f32 result",
        lambda r: mpf(2) ** r,
        (mpf(-1) / 2, mpf(1) / 2),
        lambda r: 1 / mpf(2) ** r,
        {"f64": 6},
    ),
    Table(
        "LOG",
        "log(1 + f) = f + f**2 * p(f) for sqrt(1/2) <= 1 + f <= sqrt(2)",
        series(lambda f: (mp.log1p(f) - f) / f**2, lambda f: -mpf(1) / 2 + f / 3),
        LOG_INTERVAL,
        lambda f: f**2 / mp.log1p(f) if f else mpf(0),
        {"f32": 8, "f64": 20},
    ),
    Table(
        "LOG2_SHORT",
        "log2(1 + f) = f * p(f) for sqrt(1/2) <= 1 + f <= sqrt(2), enough for an f32 power",
        series(lambda f: mp.log1p(f) / f / mp.log(2), lambda f: (1 - f / 2) / mp.log(2)),
        LOG_INTERVAL,
        series(lambda f: f * mp.log(2) / mp.log1p(f), lambda f: mp.log(2)),
        {"f64": 12},
    ),
    Table(
        "ATANH",
        "atanh(s) = s + s**3 * (1/3 + z * p(z)), z = s**2, for |s| <= (sqrt(2) - 1) / (sqrt(2) + 1)",
        lambda z: mp.nsum(lambda k: z**k / (2 * k + 5), [0, mp.inf], method="direct") if z else mpf(1) / 5,
        (mpf(0), RATIO_LIMIT**2),
        lambda z: z**2,
        {"f64": 7},
    ),
    Table(
        "SIN",
        "sin(r) = r + r**3 * p(r**2) for |r| <= pi/4 + 0.01",
        of_square(series(lambda r: (mp.sin(r) - r) / r**3, lambda r: -mpf(1) / 6)),
        (mpf(0), QUARTER_PI**2),
        of_square(lambda r: r**3 / mp.sin(r)),
        {"f32": 3, "f64": 6},
    ),
    Table(
        "COS",
        "cos(r) = 1 - r**2 / 2 + r**4 * p(r**2) for |r| <= pi/4 + 0.01",
        of_square(series(lambda r: (mp.cos(r) - 1 + r**2 / 2) / r**4, lambda r: mpf(1) / 24)),
        (mpf(0), QUARTER_PI**2),
        of_square(lambda r: r**4 / mp.cos(r)),
        {"f32": 2, "f64": 5},
    ),
    Table(
        "SINH",
        "sinh(x) = x + x**3 * p(x**2) for |x| <= 1",
        of_square(series(lambda x: (mp.sinh(x) - x) / x**3, lambda x: mpf(1) / 6)),
        (mpf(0), mpf(1)),
        of_square(lambda x: x**3 / mp.sinh(x)),
        {"f32": 3, "f64": 7},
    ),
    Table(
        "ERF",
        "erf(x) = x + x * p(x**2) for |x| <= 1.25 (f32), 1 (f64)",
        erf_ratio,
        {"f32": (mpf(0), mpf("1.25") ** 2), "f64": (mpf(0), mpf(1))},
        of_square(lambda x: x / mp.erf(x)),
        {"f32": 7, "f64": 12},
    ),
    Table(
        "ERFC_ROOT",
        "erfc(x) = p(x)**8 for 1.25 <= x <= 3.9375, weighted for 1 - erfc(x)",
        erfc_root,
        (mpf("1.25"), mpf("3.9375")),
        lambda x: 8 * erfc_root(x) ** 7,
        {"f32": 6},
    ),
    Table(
        "ERFCX",
        "erfc(x) = exp(-x**2) * p(x - 2) for 1 <= x <= 6, weighted for 1 - erfc(x)",
        scaled_erfc,
        (mpf(-1), mpf(4)),
        lambda t: mp.exp(-((t + 2) ** 2)),
        {"f64": 20},
    ),
)

CONSTANTS = (
    Constant("LOG2E", "1 / ln(2)", 1 / mp.log(2), {"f32": (24, 24), "f64": (53, 53)}),
    Constant("TWO_LOG2E", "2 / ln(2)", 2 / mp.log(2), {"f64": (53, 53)}),
    Constant("LN2", "ln(2)", mp.log(2), {"f32": (24, 24), "f64": (53, 53)}),
    Constant(
        "LN2_SHORT",
        "ln(2), the high part short enough for exact multiples",
        mp.log(2),
        {"f32": (15, 24), "f64": (40, 53)},
    ),
    Constant("THIRD", "1 / 3", mpf(1) / 3, {"f64": (53, 53)}),
    Constant("TWO_OVER_PI", "2 / pi", 2 / mp.pi, {"f32": (24,), "f64": (53,)}),
    Constant("HALF_PI", "pi / 2", mp.pi / 2, {"f32": (24, 24, 24), "f64": (53, 53, 53)}),
)

# 64 zeros, and the bits of 2 / pi that the largest f64 can ask for: 1033 + 4 * 64 at most
TWO_OVER_PI_WORDS = 21

HEADER = '''"""The constants of the math functions, by format. Written by `tools/vmath/generate.py`; do not edit.

"error" is the greatest relative error of the final result due to the polynomial alone, in units of 2**-24 for f32
and of 2**-53 for f64, with the coefficients rounded as they stand here (ascending powers).
"""
'''


def main() -> None:
    lines = [HEADER]
    for constant in CONSTANTS:
        lines += constant_lines(constant)
    for table in TABLES:
        lines += table_lines(table)
    lines += two_over_pi_lines()
    OUTPUT.write_text("\n".join(lines))


def constant_lines(constant: Constant) -> Iterator[str]:
    yield f"# {constant.meaning}, as a sum of parts"
    yield f"{constant.name}: dict[str, tuple[float, ...]] = {{"
    for form, precisions in constant.parts.items():
        yield from tuple_lines(form, split(constant.value, precisions))
    yield "}\n"


def table_lines(table: Table) -> Iterator[str]:
    fits = {
        form: fit(table.function, interval_of(table, form), range(degree + 1), BITS[form], weight=table.weight)
        for form, degree in table.degrees.items()
    }
    errors = ", ".join(f"{form} {error_units(form, result)}" for form, result in fits.items())
    yield f"# {table.meaning}; error {errors}"
    yield f"{table.name}: dict[str, tuple[float, ...]] = {{"
    for form, result in fits.items():
        yield from tuple_lines(form, result.coefficients)
    yield "}\n"


def interval_of(table: Table, form: str) -> Interval:
    return table.interval[form] if isinstance(table.interval, dict) else table.interval


def two_over_pi_lines() -> Iterator[str]:
    with mp.workdps(500):
        bits = int(mp.floor(2 / mp.pi * mpf(2) ** (64 * (TWO_OVER_PI_WORDS - 1))))
    yield "# 64 zero bits, then the bits of 2 / pi after the point, as 64-bit words"
    yield "TWO_OVER_PI_WORDS: tuple[int, ...] = ("
    for word in reversed(range(TWO_OVER_PI_WORDS)):
        yield f"    0x{bits >> (64 * word) & (2**64 - 1):016X},"
    yield ")\n"


def error_units(form: str, result: Fit) -> str:
    return mp.nstr(result.error * mpf(2) ** BITS[form], 3)


def tuple_lines(form: str, values: tuple[mpf, ...]) -> Iterator[str]:
    assert all(mpf(float(value)) == value for value in values), "a part does not fit a double"
    if len(values) == 1:
        yield f'    "{form}": ({float(values[0])!r},),'
        return
    yield f'    "{form}": ('
    for value in values:
        yield f"        {float(value)!r},"
    yield "    ),"


if __name__ == "__main__":
    main()
