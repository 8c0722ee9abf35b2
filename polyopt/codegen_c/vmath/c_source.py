"""The C11 instance: the math functions as `static inline` scalar functions of a saved kernel.

`function("exp", "f32")` is the name and the text of one function; a file that holds some of them starts with
`PREAMBLE`. The compiler must not contract `a * b + c` by itself: `-std=c11` or `-ffp-contract=off`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from polyopt.codegen_c.vmath.builder import F32, F64, FloatPredicate, Format, IntPredicate
from polyopt.codegen_c.vmath.catalogue import FUNCTIONS

PREAMBLE = """\
#include <math.h>
#include <stdint.h>
#include <string.h>

/* The math functions rely on each operation being rounded: compile with -std=c11 or -ffp-contract=off. */
#ifdef __clang__
#pragma STDC FP_CONTRACT OFF
#endif

static inline uint32_t polyopt_bits_f32(float x) { uint32_t i; memcpy(&i, &x, sizeof i); return i; }
static inline uint64_t polyopt_bits_f64(double x) { uint64_t i; memcpy(&i, &x, sizeof i); return i; }
static inline float polyopt_from_bits_f32(uint32_t i) { float x; memcpy(&x, &i, sizeof x); return x; }
static inline double polyopt_from_bits_f64(uint64_t i) { double x; memcpy(&x, &i, sizeof x); return x; }
"""

_OPERATOR = {"olt": "<", "ole": "<=", "ogt": ">", "oeq": "==", "une": "!="}
_INT_OPERATOR = {"eq": "==", "ult": "<"}


def function(name: str, dtype: Literal["f32", "f64"]) -> tuple[str, str]:
    """The C name and the definition of the function `name` on `dtype`."""
    form = F32 if dtype == "f32" else F64
    entry = FUNCTIONS[name]
    builder = CBuilder(form)
    parameters = tuple(f"x{k}" for k in range(entry.arity))
    result = entry.body(builder, *parameters)
    kind = builder.float_type
    symbol = f"polyopt_{name}_{dtype}"
    head = f"static inline {kind} {symbol}({', '.join(f'{kind} {p}' for p in parameters)})"
    return symbol, "\n".join([head, "{", *builder.lines, f"    return {result};", "}", ""])


class CBuilder:
    """A `Builder` whose values are names of C variables, or constants; `lines` is the body so far."""

    def __init__(self, form: Format, parent: CBuilder | None = None) -> None:
        self.format = form
        self.lines: list[str] = [] if parent is None else parent.lines
        self._counter: list[int] = [0, 1] if parent is None else parent._counter  # values so far, indentation
        self.float_type = "float" if form is F32 else "double"
        self._int_type = f"uint{form.bits}_t"
        self._f = "f" if form is F32 else ""

    @property
    def wide(self) -> CBuilder:
        return self if self.format is F64 else CBuilder(F64, self)

    # --- floats ---

    def const(self, value: float) -> str:
        if math.isnan(value):
            return "NAN" if self.format is F32 else "(double)NAN"
        if math.isinf(value):
            return "INFINITY" if value > 0 else "-INFINITY"
        text = value.hex()
        sign, digits = ("-", text[1:]) if text.startswith("-") else ("", text)
        mantissa, exponent = digits.split("p")
        shortened = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{sign}{shortened}p{exponent}{self._f}"

    def fadd(self, a: str, b: str) -> str:
        return self._float(f"{a} + {b}")

    def fsub(self, a: str, b: str) -> str:
        return self._float(f"{a} - {b}")

    def fmul(self, a: str, b: str) -> str:
        return self._float(f"{a} * {b}")

    def fdiv(self, a: str, b: str) -> str:
        return self._float(f"{a} / {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        return self._float(f"fma{self._f}({a}, {b}, {c})")

    def fneg(self, a: str) -> str:
        return self._float(f"-({a})")

    def fabs(self, a: str) -> str:
        return self._float(f"fabs{self._f}({a})")

    def copysign(self, magnitude: str, sign: str) -> str:
        return self._float(f"copysign{self._f}({magnitude}, {sign})")

    def rint(self, a: str) -> str:
        return self._float(f"rint{self._f}({a})")

    def fcmp(self, predicate: FloatPredicate, a: str, b: str) -> str:
        text = f"isunordered({a}, {b})" if predicate == "uno" else f"{a} {_OPERATOR[predicate]} {b}"
        return self._value("int", text)

    # --- integers: unsigned, so that they wrap ---

    def iconst(self, value: int) -> str:
        wrapped = value % (1 << self.format.bits)
        return f"UINT{self.format.bits}_C({wrapped if wrapped < 1 << 16 else hex(wrapped)})"

    def iadd(self, a: str, b: str) -> str:
        return self._int(f"{a} + {b}")

    def isub(self, a: str, b: str) -> str:
        return self._int(f"{a} - {b}")

    def imul(self, a: str, b: str) -> str:
        return self._int(f"{a} * {b}")

    def iand(self, a: str, b: str) -> str:
        return self._int(f"{a} & {b}")

    def ior(self, a: str, b: str) -> str:
        return self._int(f"{a} | {b}")

    def shl(self, a: str, count: str) -> str:
        return self._int(f"{a} << {count}")

    def lshr(self, a: str, count: str) -> str:
        return self._int(f"{a} >> {count}")

    def icmp(self, predicate: IntPredicate, a: str, b: str) -> str:
        return self._value("int", f"{a} {_INT_OPERATOR[predicate]} {b}")

    def lookup(self, table: tuple[int, ...], index: str) -> str:
        self._counter[0] += 1
        name = f"table{self._counter[0]}"
        values = ", ".join(f"UINT{self.format.bits}_C({value:#x})" for value in table)
        self._line(f"static const {self._int_type} {name}[{len(table)}] = {{{values}}};")
        return self._int(f"{name}[{index}]")

    # --- between the sorts ---

    def as_int(self, a: str) -> str:
        return self._int(f"polyopt_bits_{self.format.name}({a})")

    def as_float(self, a: str) -> str:
        return self._float(f"polyopt_from_bits_{self.format.name}({a})")

    def widen(self, a: str) -> str:
        return a if self.format is F64 else self._value("double", a)

    def narrow(self, a: str) -> str:
        return a if self.format is F64 else self._float(f"(float){a}")

    has_scaling = False

    def scaled(self, value: str, n: str) -> str:
        raise AssertionError("the factors are multiplied here")

    # --- masks ---

    def mask_and(self, a: str, b: str) -> str:
        return self._value("int", f"{a} & {b}")

    def mask_or(self, a: str, b: str) -> str:
        return self._value("int", f"{a} | {b}")

    def select(self, mask: str, then: str, otherwise: str) -> str:
        return self._float(f"{mask} ? {then} : {otherwise}")

    def select_int(self, mask: str, then: str, otherwise: str) -> str:
        return self._int(f"{mask} ? {then} : {otherwise}")

    def select_rare(
        self, mask: str, then: Callable[[], tuple[str, ...]], otherwise: tuple[str, ...]
    ) -> tuple[str, ...]:
        names = []
        for other in otherwise:
            self._counter[0] += 1
            names.append(f"v{self._counter[0]}")
            self._line(f"{self.float_type} {names[-1]} = {other};")
        self._line(f"if ({mask}) {{")
        self._counter[1] += 1
        for name, value in zip(names, then(), strict=True):
            self._line(f"{name} = {value};")
        self._counter[1] -= 1
        self._line("}")
        return tuple(names)

    def outline(self, name: str, body: Callable[..., str], operands: tuple[str, ...]) -> str:
        return body(self, *operands)

    # --- helpers ---

    def _float(self, text: str) -> str:
        return self._value(self.float_type, text)

    def _int(self, text: str) -> str:
        return self._value(self._int_type, text)

    def _value(self, kind: str, text: str) -> str:
        self._counter[0] += 1
        name = f"v{self._counter[0]}"
        self._line(f"const {kind} {name} = {text};")
        return name

    def _line(self, text: str) -> None:
        self.lines.append("    " * self._counter[1] + text)
