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


@dataclass(frozen=True, slots=True)
class Table:
    """A polynomial of each format: `degrees[format]` gives the number of coefficients minus one."""

    name: str
    meaning: str
    function: Real
    interval: tuple[mpf, mpf]
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
        "LOG",
        "log(1 + f) = f + f**2 * p(f) for sqrt(1/2) <= 1 + f <= sqrt(2)",
        series(lambda f: (mp.log1p(f) - f) / f**2, lambda f: -mpf(1) / 2 + f / 3),
        (mp.sqrt(mpf(1) / 2) - 1, mp.sqrt(2) - 1),
        lambda f: f**2 / mp.log1p(f) if f else mpf(0),
        {"f32": 8, "f64": 20},
    ),
)

CONSTANTS = (
    Constant("LOG2E", "1 / ln(2)", 1 / mp.log(2), {"f32": (24, 24), "f64": (53, 53)}),
    Constant("LN2", "ln(2)", mp.log(2), {"f32": (24, 24), "f64": (53, 53)}),
    Constant("LN2_SHORT", "ln(2), the high part short enough for exact multiples", mp.log(2),
             {"f32": (15, 24), "f64": (40, 53)}),
)  # fmt: skip

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
    OUTPUT.write_text("\n".join(lines))


def constant_lines(constant: Constant) -> Iterator[str]:
    yield f"# {constant.meaning}, as a sum of parts"
    yield f"{constant.name}: dict[str, tuple[float, ...]] = {{"
    for form, precisions in constant.parts.items():
        yield from tuple_lines(form, split(constant.value, precisions))
    yield "}\n"


def table_lines(table: Table) -> Iterator[str]:
    fits = {
        form: fit(table.function, table.interval, range(degree + 1), BITS[form], weight=table.weight)
        for form, degree in table.degrees.items()
    }
    errors = ", ".join(f"{form} {error_units(form, result)}" for form, result in fits.items())
    yield f"# {table.meaning}; error {errors}"
    yield f"{table.name}: dict[str, tuple[float, ...]] = {{"
    for form, result in fits.items():
        yield from tuple_lines(form, result.coefficients)
    yield "}\n"


def error_units(form: str, result: Fit) -> str:
    return mp.nstr(result.error * mpf(2) ** BITS[form], 3)


def tuple_lines(form: str, values: tuple[mpf, ...]) -> Iterator[str]:
    yield f'    "{form}": ('
    for value in values:
        assert mpf(float(value)) == value, "a part does not fit a double"
        yield f"        {float(value)!r},"
    yield "    ),"


if __name__ == "__main__":
    main()
