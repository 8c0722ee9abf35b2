"""A loop program as standalone C11: one function on plain pointers, readable, and correct where C is not careful.

    int64_t name(const float *x, float *out, int64_t N);

It returns 0, or n > 0 if run-time check n - 1 failed (results are then not to be used), or -1 if memory ran out.
Compile with `-std=c11 -lm`, for strict numerics also with `-ffp-contract=off`; add `-fopenmp` for threads in a text
printed with OpenMP. Loops that may run in parallel or in vector lanes say so in a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import assert_never

from polyopt.codegen_c import c_helpers
from polyopt.codegen_c.c_expressions import CExpressions, cast, from_stored, is_typed, pointer_type, to_stored
from polyopt.codegen_c.c_helpers import helper_name, stored_type, value_type
from polyopt.codegen_c.expressions import combine_of
from polyopt.codegen_c.workspace import size_bytes
from polyopt.dsl.ir import Reducer
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    LoopProgram,
    Stmt,
    Store,
    expr_children,
    walk,
)

_INDENT = "    "
_RESERVED = """
auto bool break case char const continue default do double else enum extern false float for goto if inline int long
register restrict return short signed sizeof static struct switch true typedef union unsigned void volatile while
abs calloc cos div erf error exp fma fmod free gamma index isinf isnan j0 j1 jn log malloc memcpy pow rint sin sqrt
tan y0 y1 yn I NAN INFINITY NULL HUGE_VAL EXIT_SUCCESS EXIT_FAILURE RAND_MAX MB_CUR_MAX SIZE_MAX PTRDIFF_MIN PTRDIFF_MAX
INT8_MIN INT16_MIN INT32_MIN INT64_MIN INT8_MAX INT16_MAX INT32_MAX INT64_MAX UINT8_MAX UINT16_MAX UINT32_MAX UINT64_MAX
INTPTR_MIN INTPTR_MAX UINTPTR_MAX INTMAX_MIN INTMAX_MAX UINTMAX_MAX WCHAR_MIN WCHAR_MAX SIG_ATOMIC_MIN SIG_ATOMIC_MAX
FP_NAN FP_INFINITE FP_ZERO FP_SUBNORMAL FP_NORMAL M_PI M_E math_errhandling
"""
"""Names that an argument or loop must not take: C's own, the library's, and this printer's."""
_EXTERNAL = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cosh erfc exp2 expm1 fabs fdim floor fmax fmin frexp hypot
ilogb ldexp lgamma llrint llround log10 log1p log2 logb lrint lround modf nan nearbyint nextafter nexttoward remainder
remquo round scalbln scalbn sinh tanh tgamma trunc fpclassify isfinite isgreater isless isnormal isunordered signbit
abort atexit atof atoi atol atoll bsearch exit getenv labs ldiv llabs lldiv mblen mbtowc qsort rand realloc srand
strtod strtof strtol strtoul system wctomb memchr memcmp memmove memset strcat strchr strcmp strcoll strcpy strcspn
strerror strlen strncat strncmp strncpy strpbrk strrchr strspn strstr strtok strxfrm index rindex random main
drem exp10 gamma_r pow10 scalb significand clearenv mktemp putenv setenv select
"""
"""More names that a function must not take: the external ones of the headers that the text includes, and `main`."""


def reserved() -> frozenset[str]:
    """Names that an argument, a loop or a function must not take in C or with C's library."""
    return frozenset(_RESERVED.split()) | frozenset(_EXTERNAL.split())


def as_c(program: LoopProgram, *, openmp: bool = False) -> str:
    """The program as the text of a C file.

    openmp: put `#pragma omp parallel for` on parallel loops, for compilers with OpenMP
    """
    return _Printer(program, openmp).file()


def symbol_of(program: LoopProgram) -> str:
    """The name of the C function."""
    name = identifier(program.name)
    taken = {*_RESERVED.split(), *_EXTERNAL.split()}
    return f"{name}_" if name in taken or name.removesuffix("f") in taken or name.removesuffix("l") in taken else name


def as_c_header(program: LoopProgram, *, conditions: Sequence[str] = ()) -> str:
    """The declaration of the function, as the text of a C header.

    conditions: on the sizes, which callers must meet
    """
    printer = _Printer(program, False)
    guard = f"{printer.symbol.upper()}_H"
    lines = [
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        *printer.description(conditions),
        f"{printer.signature()};",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        f"#endif /* {guard} */",
        "",
    ]
    return "\n".join(lines)


class _Printer:
    """Prints one program."""

    def __init__(self, program: LoopProgram, openmp: bool) -> None:
        self._program = program
        self._openmp = openmp
        self._allocated = [inner.buffer for inner in walk(program.body) if isinstance(inner, Alloc)]
        self._buffers = {b.name: b for b in (*program.arguments, *program.workspace, *self._allocated)}
        self._names = self._c_names()
        self._x = CExpressions(self._names, self._buffers)
        self._reducers: list[Reducer] = []
        self._written = {inner.buffer for inner in walk(program.body) if isinstance(inner, Store)}
        self.symbol = symbol_of(program)

    def _c_names(self) -> dict[str, str]:
        loops = [inner.var for inner in walk(self._program.body) if isinstance(inner, For)]
        names: dict[str, str] = {}
        taken = set(_RESERVED.split()) | {symbol_of(self._program)}
        for name in dict.fromkeys([*self._buffers, *self._program.sizes, *loops]):
            candidate = identifier(name)
            while candidate in taken:
                candidate += "_"
            taken.add(candidate)
            names[name] = candidate
        return names

    # --- the file ------------------------------------------------------------------------------------------

    def file(self) -> str:
        body = "\n".join([f"{self.signature()}", "{", *self._function_body(), "}", ""])
        combines = "".join(self._combine_function(reducer) for reducer in self._reducers)
        helpers = c_helpers.definitions(combines + body)
        includes = [f"#include <{name}.h>" for name in ("math", "stdbool", "stdint", "stdlib", "string")]
        parts = ["\n".join(includes), helpers, combines, "\n".join(self.description()) + "\n" + body]
        return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"

    def description(self, conditions: Sequence[str] = ()) -> list[str]:
        """A comment that says what the arguments are."""
        lines = [f"/* {self._program.name}"]
        for buffer in self._program.arguments:
            shape = "".join(f"[{self._x.text(extent)}]" for extent in buffer.callers_shape) or " (one element)"
            role = "result" if buffer.name in self._program.written else "input"
            layout = ", strided" if buffer.strides is not None else ""
            lines.append(f"   {self._names[buffer.name]}: {role}, {buffer.dtype}{shape}{layout}")
        for number, site in enumerate(self._program.sites):
            lines.append(f"   check {number}: dimension {site.dimension} of {site.array}")
        lines.extend(f"   requires {condition}" for condition in conditions)
        lines.append("   Returns 0; n > 0: check n - 1 found a subscript out of range; -1: out of memory. */")
        return lines

    def signature(self) -> str:
        parameters = [
            f"{pointer_type(b.dtype, is_written=b.name in self._written)}{self._names[b.name]}"
            for b in self._program.arguments
        ]
        parameters += [f"int64_t {self._names[size]}" for size in self._program.sizes]
        return f"int64_t {self.symbol}({', '.join(parameters) or 'void'})"

    def _combine_function(self, reducer: Reducer) -> str:
        kind = value_type(reducer.dtype)
        value = self._x.text(combine_of(reducer))
        return f"static inline {kind} {self._combine_name(reducer)}({kind} a, {kind} b)\n{{\n    return {value};\n}}\n"

    def _combine_name(self, reducer: Reducer) -> str:
        if reducer not in self._reducers:
            self._reducers.append(reducer)
        return f"combine_{self._reducers.index(reducer)}"

    def _function_body(self) -> list[str]:
        lines = ["int64_t error = 0;"]
        workspace = self._program.workspace
        for buffer in workspace:
            lines.append(self._allocation(buffer))
        inner = list(self._statement(self._program.body))
        if workspace:
            missing = " || ".join(f"!{self._names[buffer.name]}" for buffer in workspace)
            inner = [f"if ({missing}) {{", f"{_INDENT}error = -1;", "} else {", *_indented(inner), "}"]
            inner += [f"free({self._names[buffer.name]});" for buffer in workspace]
        return _indented([*lines, *inner, "return error;"])

    def _allocation(self, buffer: Buffer) -> str:
        kind = stored_type(buffer.dtype)
        size = self._x.text(size_bytes(buffer))
        return f"{kind} *{self._names[buffer.name]} = malloc((size_t)({size}) + 64);"

    # --- statements ----------------------------------------------------------------------------------------

    def _statement(self, statement: Stmt) -> Iterator[str]:
        match statement:
            case Block(body):
                for inner in body:
                    yield from self._statement(inner)
            case For():
                yield from self._loop(statement)
            case If(condition, then, otherwise):
                yield f"if ({self._x.text(condition)}) {{"
                yield from _indented(self._statement(then))
                if otherwise is not None:
                    yield "} else {"
                    yield from _indented(self._statement(otherwise))
                yield "}"
            case Alloc(buffer, body):
                yield from self._alloc(buffer, body)
            case Store():
                yield from self._store(statement)
            case _:
                assert_never(statement)

    def _loop(self, loop: For) -> Iterator[str]:
        var = self._names[loop.var]
        lower, upper = self._x.text(loop.lower), self._x.text(loop.upper)
        step = f"{var}++" if loop.step == 1 else f"{var} += {loop.step}"
        notes = [note for note in ("" if loop.kind == "serial" else loop.kind, loop.axis) if note and note != loop.var]
        if loop.kind == "parallel" and self._openmp:
            yield from ("#ifdef _OPENMP", "#pragma omp parallel for", "#endif")
        comment = f" /* {': '.join(notes)} */" if notes else ""
        yield f"for (int64_t {var} = {lower}; {var} < {upper}; {step}) {{{comment}"
        yield from _indented(self._statement(loop.body))
        yield "}"

    def _alloc(self, buffer: Buffer, body: Stmt) -> Iterator[str]:
        name = self._names[buffer.name]
        yield "{"
        if buffer.space == "local":
            count = 1
            for extent in buffer.shape:
                assert not expr_children(extent), "a local buffer has constant extents"
                count *= max(1, int(self._x.text(extent)))
            yield f"{_INDENT}{stored_type(buffer.dtype)} {name}[{count}];"
            yield from _indented(self._statement(body))
        else:
            yield f"{_INDENT}{self._allocation(buffer)}"
            yield f"{_INDENT}if ({name}) {{"
            yield from _indented(_indented(self._statement(body)))
            yield f"{_INDENT}}} else {{"
            yield f"{_INDENT * 2}error = -1;"
            yield f"{_INDENT}}}"
            yield f"{_INDENT}free({name});"
        yield "}"

    def _store(self, store: Store) -> Iterator[str]:
        line = f"{self._assignment(store)} /* {store.statement} */"
        guard = self._x.guard(store.buffer, store.indices, None, store.checks)
        yield line if guard is None else f"if ({guard.text}) {line}"

    def _assignment(self, store: Store) -> str:
        buffer = self._buffers[store.buffer]
        element = self._x.element(store.buffer, store.indices)
        value = self._x.value(store.value)
        reducer = store.reducer
        if reducer is not None:
            dtype = reducer.dtype
            if is_typed(buffer) and dtype == buffer.dtype and dtype.name in ("f32", "f64") and reducer.name in _UPDATE:
                return f"{element.text} {_UPDATE[reducer.name]} {value.text};"
            old = cast(from_stored(element, buffer.dtype), buffer.dtype, dtype)
            value = cast(self._x.combined(reducer, old, value, self._combine_name), dtype, buffer.dtype)
        stored = to_stored(value, buffer.dtype)
        if is_typed(buffer):
            return f"{element.text} = {stored.text};"
        address = self._x.address(store.buffer, store.indices, "char *")
        return f"{helper_name('store', buffer.dtype)}({address}, {stored.text});"


_UPDATE = {"sum": "+=", "prod": "*="}


def identifier(name: str) -> str:
    """A C identifier that resembles the name."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{text}" if not text or text[0].isdigit() else text


def _indented(lines: Iterator[str] | list[str]) -> list[str]:
    return [line if line.startswith("#") else _INDENT + line for line in lines]
